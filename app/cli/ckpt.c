/* app/cli/ckpt.c -- `cohort ckpt`: lists, shows, verifies, compares and folds checkpoints.
 *
 * Each command is a function that gets the options and returns the exit code. Output for people
 * is a table; with --json each line is a JSON object. Everything is read through
 * cohort/checkpoint_reader.h: tensors in parts of the list (walk_next), and values in small
 * pieces. So the memory does not depend on the number of tensors or on their sizes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cohort/checkpoint_reader.h"
#include "command.h"
#include "text.h"
#include "values.h"

static const char usage[] =
    "usage: cohort ckpt ls [--json] [PATH...]\n"
    "       cohort ckpt show [--json] PATH...\n"
    "       cohort ckpt verify [--json] PATH...\n"
    "       cohort ckpt diff [--json] [--values] PATH PATH\n"
    "       cohort ckpt fold [--json] PATH PREFIX\n"
    "\n"
    "PATH is the prefix of a checkpoint (run/ckpt-7), its index (run/ckpt-7.index) or a\n"
    "directory, for the newest checkpoint in it.\n"
    "\n"
    "  ls      list all checkpoints of a directory: name, step, time, size, state\n"
    "  show    print all tensors: dtype, shape, bytes, minimum, maximum, mean, number of "
    "NaNs,\n"
    "          name; and the slices of tensors that are stored in slices\n"
    "  verify  check all checksums; print the file and the byte of each error\n"
    "  diff    print the tensors that only one of two checkpoints has (- first, + second), "
    "and\n"
    "          those with another dtype or shape (!); with --values also other values\n"
    "  fold    write a delta and its base as a full checkpoint at PREFIX\n"
    "\n"
    "--json prints JSON lines: an object in each line.\n"
    "\n"
    "Exit code: 0 ok; 1 an error, damage, or a difference; 2 wrong arguments, for verify and "
    "diff\n"
    "also a checkpoint that cannot be read.\n";

/* The arguments of a command. */
typedef struct cli_options {
    bool   json, values;
    int    n; /* paths */
    char **path;
} cli_options;

/* Prints this thread's error. Returns `code`. */
static int fail(int code)
{
    fputs("cohort: ", stderr);
    cli_print(stderr, ch_error_message());
    fputc('\n', stderr);
    return code;
}

static int worse(int a, int b)
{
    return a > b ? a : b;
}

/* Returns the part of a path after its last slash. */
static const char *last_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

/* ---- tensors ---- */

/* A walk through all tensors of a checkpoint. Zeros, except the path, are its beginning. */
typedef struct cli_walk {
    const char           *path;
    ch_checkpoint_reader *r; /* the part that is open; NULL: none */
    ch_checkpoint_info    info;
    int                   i, n; /* next tensor of the part, and the number of its tensors */
} cli_walk;

static void walk_end(cli_walk *w)
{
    ch_checkpoint_close(w->r);
    w->r = NULL;
}

/* Opens the first part, or the part after that which is open. */
static ch_status walk_open(cli_walk *w)
{
    cli_walk  next = {.path = w->path};
    ch_status rc = w->r == NULL
                       ? ch_checkpoint_open_part(w->path, NULL, &next.r)
                       : ch_checkpoint_open_part(w->info.prefix, w->info.next, &next.r);

    if (rc == CH_OK)
        rc = ch_checkpoint_describe(next.r, &next.info);
    if (rc == CH_OK && w->r != NULL && next.info.id != w->info.id)
        rc = ch_fail(CH_ABORTED, "%s: was replaced while it was read; start again",
                     w->info.prefix);
    if (rc != CH_OK) {
        walk_end(&next);
        return rc;
    }
    next.n = ch_checkpoint_count(next.r);
    walk_end(w);
    *w = next;
    return CH_OK;
}

/* Gives the next tensor. *has_next is false at the end. w->r is then the reader of the tensor,
 * and w->i its index. */
static ch_status walk_peek(cli_walk *w, ch_checkpoint_item *item, bool *has_next)
{
    ch_status rc = CH_OK;

    while (rc == CH_OK && w->i == w->n && w->info.next != NULL)
        rc = walk_open(w);
    *has_next = rc == CH_OK && w->i < w->n;
    return *has_next ? ch_checkpoint_entry(w->r, w->i, item) : rc;
}

/* ---- ls ---- */

/* A line of the table. */
typedef struct ls_row {
    char    *prefix, *base, *error; /* owned; NULL: none */
    double   time;
    int64_t  step, bytes;
    bool     has_index, is_latest;
    bool     is_damaged; /* the error is one of the bytes, not of access or of the format */
    cli_text texts[3];   /* step, time, size */
} ls_row;

typedef struct ls_table {
    ls_row *row;
    int     n, capacity;
    char    latest[4096]; /* prefix of the newest checkpoint; "": not known */
} ls_table;

/* Returns true if an error says that bytes of a checkpoint are wrong or missing. */
static bool is_damage(ch_status rc)
{
    return rc == CH_DATA_LOSS || rc == CH_OUT_OF_RANGE;
}

/* Fills in a row from the open checkpoint, or with the error of opening it. */
static void describe_row(ls_row *row)
{
    ch_checkpoint_reader *r = NULL;
    ch_checkpoint_info    info;
    ch_status             rc = ch_checkpoint_open_part(row->prefix, NULL, &r);

    if (rc == CH_OK)
        rc = ch_checkpoint_describe(r, &info);
    if (rc == CH_OK) {
        row->step = info.step;
        row->time = info.time;
        row->base = info.base != NULL ? strdup(info.base) : NULL;
    } else {
        row->error = strdup(ch_error_message());
        row->is_damaged = is_damage(rc) || rc == CH_NOT_FOUND;
    }
    ch_checkpoint_close(r);
}

static ch_status add_row(void *arg, const ch_checkpoint_found *found)
{
    ls_table *t = arg;
    ls_row   *row;

    if (t->n == t->capacity) {
        ls_row *grown = realloc(t->row, (size_t)(2 * t->n + 16) * sizeof(*t->row));

        if (grown == NULL)
            return ch_fail(CH_RESOURCE_EXHAUSTED, "ls: out of memory");
        t->row = grown;
        t->capacity = 2 * t->n + 16;
    }
    row = &t->row[t->n];
    *row = (ls_row){.prefix = strdup(found->prefix),
                    .step = -1,
                    .bytes = found->bytes,
                    .has_index = found->has_index,
                    .is_latest = strcmp(found->prefix, t->latest) == 0};
    if (row->prefix == NULL)
        return ch_fail(CH_RESOURCE_EXHAUSTED, "ls: out of memory");
    t->n++;
    if (found->has_index)
        describe_row(row);
    row->texts[0] = cli_step(row->step);
    row->texts[1] = cli_time(row->time);
    row->texts[2] = cli_bytes(row->bytes);
    return CH_OK;
}

static const char *state_of(const ls_row *row)
{
    return !row->has_index      ? "incomplete"
           : row->is_damaged    ? "damaged"
           : row->error != NULL ? "unreadable"
           : row->base != NULL  ? "delta"
                                : "full";
}

static void print_row_json(const ls_row *row)
{
    printf("{\"checkpoint\": ");
    cli_print_json(stdout, row->prefix);
    if (row->step >= 0)
        printf(", \"step\": %" PRId64, row->step);
    if (row->time != 0) {
        printf(", \"time\": ");
        cli_print_json_number(stdout, row->time);
    }
    printf(", \"bytes\": %" PRId64 ", \"state\": \"%s\", \"latest\": %s", row->bytes,
           state_of(row), row->is_latest ? "true" : "false");
    if (row->base != NULL) {
        printf(", \"base\": ");
        cli_print_json(stdout, row->base);
    }
    if (row->error != NULL) {
        printf(", \"error\": ");
        cli_print_json(stdout, row->error);
    }
    printf("}\n");
}

static void print_rows(const ls_table *t)
{
    static const char *const title[] = {"step", "time", "size"};
    int                      width[3] = {4, 4, 4};
    size_t                   name = 4;

    for (int i = 0; i < t->n; i++) {
        size_t n = strlen(last_name(t->row[i].prefix));

        name = n > name ? n : name;
        for (int k = 0; k < 3; k++) {
            int m = (int)strlen(t->row[i].texts[k].at);

            width[k] = m > width[k] ? m : width[k];
        }
    }
    if (t->n == 0)
        printf("no checkpoints\n");
    else
        printf("%-*s  %*s  %-*s  %*s  state\n", (int)name, "name", width[0], title[0], width[1],
               title[1], width[2], title[2]);
    for (int i = 0; i < t->n; i++) {
        const ls_row *row = &t->row[i];
        const char   *shown = last_name(row->prefix);

        cli_print(stdout, shown);
        printf("%*s  %*s  %-*s  %*s  %s", (int)(name - strlen(shown)), "", width[0],
               row->texts[0].at, width[1], row->texts[1].at, width[2], row->texts[2].at,
               state_of(row));
        if (row->base != NULL) {
            printf(" of ");
            cli_print(stdout, last_name(row->base));
        }
        printf("%s%s", row->is_latest ? ", latest" : "",
               !row->has_index ? ": no index; the save did not end, or the index was removed"
                               : "");
        if (row->error != NULL) {
            printf(": ");
            cli_print(stdout, row->error);
        }
        putchar('\n');
    }
}

static void drop_rows(ls_table *t)
{
    for (int i = 0; i < t->n; i++) {
        free(t->row[i].prefix);
        free(t->row[i].base);
        free(t->row[i].error);
    }
    free(t->row);
}

/* Finds the newest checkpoint in the directory of a prefix, if it is that of the prefix. */
static void find_latest(ls_table *t, const char *prefix)
{
    int  n = (int)(last_name(prefix) - prefix);
    char directory[sizeof(t->latest)], latest[sizeof(t->latest)];

    t->latest[0] = '\0';
    snprintf(directory, sizeof(directory), "%.*s", n > 0 ? n : 1, n > 0 ? prefix : ".");
    if (ch_checkpoint_find_latest(directory, latest, sizeof(latest)) == CH_OK &&
        strcmp(last_name(latest), last_name(prefix)) == 0)
        snprintf(t->latest, sizeof(t->latest), "%s", prefix);
}

/* Adds the checkpoint that a path means, which is no directory. */
static ch_status add_single(ls_table *t, const char *path)
{
    ch_checkpoint_reader *r = NULL;
    ch_checkpoint_info    info;
    ch_status             rc = ch_checkpoint_open_part(path, NULL, &r);

    if (rc == CH_OK)
        rc = ch_checkpoint_describe(r, &info);
    if (rc == CH_OK) {
        find_latest(t, info.prefix);
        rc = add_row(t, &(ch_checkpoint_found){info.prefix, true, info.bytes});
    }
    ch_checkpoint_close(r);
    return rc;
}

static int ls_path(const char *path, const cli_options *o)
{
    ls_table    t = {.row = NULL};
    struct stat about;
    bool        is_directory = stat(path, &about) == 0 && S_ISDIR(about.st_mode);
    ch_status   rc;

    if (is_directory && ch_checkpoint_find_latest(path, t.latest, sizeof(t.latest)) != CH_OK)
        t.latest[0] = '\0';
    rc = is_directory ? ch_checkpoint_list(path, add_row, &t) : add_single(&t, path);
    if (rc == CH_OK && !o->json && o->n > 1) {
        cli_print(stdout, path);
        printf(":\n");
    }
    if (rc == CH_OK && !o->json)
        print_rows(&t);
    for (int i = 0; i < t.n && rc == CH_OK && o->json; i++)
        print_row_json(&t.row[i]);
    drop_rows(&t);
    return rc == CH_OK ? CLI_OK : fail(CLI_BAD);
}

static int run_ls(const cli_options *o)
{
    int code = o->n == 0 ? ls_path(".", o) : CLI_OK;

    for (int i = 0; i < o->n; i++) {
        if (i > 0 && !o->json)
            putchar('\n');
        code = worse(code, ls_path(o->path[i], o));
    }
    return code;
}

/* ---- show ---- */

static void print_info(const ch_checkpoint_info *info)
{
    int64_t n = info->n_tensors;

    cli_print(stdout, info->prefix);
    printf(": ");
    if (info->base != NULL) {
        printf("delta of ");
        cli_print(stdout, last_name(info->base));
        printf(", ");
    }
    if (info->step >= 0)
        printf("step %" PRId64 ", ", info->step);
    if (info->time != 0)
        printf("saved %s, ", cli_time(info->time).at);
    printf("%" PRId64 " tensor%s in %d data file%s, %s\n", n, n == 1 ? "" : "s", info->n_files,
           info->n_files == 1 ? "" : "s", cli_bytes(info->bytes).at);
}

static void print_info_json(const ch_checkpoint_info *info)
{
    printf("{\"checkpoint\": ");
    cli_print_json(stdout, info->prefix);
    if (info->format > 0) {
        printf(", \"format\": %d, \"id\": \"%016" PRIx64 "\", \"time\": ", info->format,
               info->id);
        cli_print_json_number(stdout, info->time);
    }
    if (info->step >= 0)
        printf(", \"step\": %" PRId64, info->step);
    if (info->base != NULL) {
        printf(", \"base\": ");
        cli_print_json(stdout, info->base);
        printf(", \"base_id\": \"%016" PRIx64 "\"", info->base_id);
    }
    printf(", \"files\": %d, \"bytes\": %" PRId64 ", \"tensors\": %" PRId64 "}\n",
           info->n_files, info->bytes, info->n_tensors);
}

static void print_sizes(const char *name, int rank, const int64_t *size)
{
    printf("\"%s\": [", name);
    for (int k = 0; k < rank; k++)
        printf("%s%" PRId64, k > 0 ? ", " : "", size[k]);
    putchar(']');
}

/* Prints the slices of a tensor, a line for each. */
static ch_status print_slices(const ch_checkpoint_reader *r, int i,
                              const ch_checkpoint_item *item)
{
    ch_checkpoint_part part;
    ch_status          rc = CH_OK;

    if (item->n_rows >= 0)
        printf("    %" PRId64 " of %" PRId64 " rows have changed since the base\n",
               item->n_rows, item->shape.dim[0]);
    for (int p = 0; p < item->n_parts && !item->is_whole && rc == CH_OK; p++) {
        rc = ch_checkpoint_slice(r, i, p, &part);
        if (rc != CH_OK)
            break;
        printf("    slice [");
        for (int k = 0; k < item->shape.rank; k++)
            printf("%s%" PRId64 ":%" PRId64, k > 0 ? ", " : "", part.begin[k],
                   part.begin[k] + part.size[k]);
        printf("] at byte %" PRId64 " of ", part.offset);
        cli_print(stdout, last_name(part.file));
        printf(", %s, checksum %08" PRIx32 "\n", cli_bytes(part.bytes).at, part.crc);
    }
    return rc;
}

static ch_status print_slices_json(const ch_checkpoint_reader *r, int i,
                                   const ch_checkpoint_item *item)
{
    ch_checkpoint_part part;
    ch_status          rc = CH_OK;

    if (item->n_rows >= 0)
        printf(", \"rows\": %" PRId64, item->n_rows);
    printf(", \"slices\": [");
    for (int p = 0; p < item->n_parts && rc == CH_OK; p++) {
        rc = ch_checkpoint_slice(r, i, p, &part);
        if (rc != CH_OK)
            break;
        printf("%s{", p > 0 ? ", " : "");
        print_sizes("begin", item->shape.rank, part.begin);
        printf(", ");
        print_sizes("size", item->shape.rank, part.size);
        printf(", \"file\": ");
        cli_print_json(stdout, part.file);
        printf(", \"offset\": %" PRId64 ", \"bytes\": %" PRId64 ", \"crc\": \"%08" PRIx32 "\"}",
               part.offset, part.bytes, part.crc);
    }
    printf("]");
    return rc;
}

/* Returns whether a tensor has numbers that can be read. */
static bool has_numbers(const ch_checkpoint_item *item)
{
    return item->dtype != CH_STR && item->dtype != CH_DTYPE_COUNT;
}

static ch_status show_tensor_json(ch_checkpoint_reader *r, int i,
                                  const ch_checkpoint_item *item)
{
    cli_stats s;
    ch_status rc = has_numbers(item) ? cli_stats_of(r, item, &s) : CH_OK;

    if (rc != CH_OK)
        return rc;
    printf("{\"tensor\": ");
    cli_print_json(stdout, item->name);
    printf(", \"dtype\": \"%s\", ", item->dtype_name);
    print_sizes("shape", item->shape.rank, item->shape.dim);
    printf(", \"bytes\": %" PRId64, item->bytes);
    if (has_numbers(item)) {
        printf(", \"min\": ");
        cli_print_json_number(stdout, s.min);
        printf(", \"max\": ");
        cli_print_json_number(stdout, s.max);
        printf(", \"mean\": ");
        cli_print_json_number(stdout, s.mean);
        printf(", \"nan\": %" PRId64, s.n_nan);
    }
    rc = print_slices_json(r, i, item);
    printf("}\n");
    return rc;
}

/* Widths of the columns dtype and shape. */
typedef struct show_widths {
    int dtype, shape;
} show_widths;

static ch_status show_tensor(ch_checkpoint_reader *r, int i, const ch_checkpoint_item *item,
                             show_widths w)
{
    cli_stats s;
    cli_text  shape;
    ch_status rc = has_numbers(item) ? cli_stats_of(r, item, &s) : CH_OK;

    if (rc != CH_OK)
        return rc;
    ch_shape_print(item->shape, shape.at, sizeof(shape.at));
    printf("%-*s  %-*s  %10s", w.dtype, item->dtype_name, w.shape, shape.at,
           cli_bytes(item->bytes).at);
    if (has_numbers(item) && !isnan(s.min))
        printf("  %11.4g  %11.4g  %11.4g  %5" PRId64 "  ", s.min, s.max, s.mean, s.n_nan);
    else if (has_numbers(item))
        printf("  %11s  %11s  %11s  %5" PRId64 "  ", "-", "-", "-", s.n_nan);
    else
        printf("  %11s  %11s  %11s  %5s  ", "-", "-", "-", "-");
    cli_print(stdout, item->name);
    putchar('\n');
    return print_slices(r, i, item);
}

static ch_status measure(const char *path, show_widths *w)
{
    cli_walk           walk = {.path = path};
    ch_checkpoint_item item;
    bool               has_next = true;
    ch_status          rc = walk_open(&walk);

    for (; rc == CH_OK && has_next; walk.i++) {
        rc = walk_peek(&walk, &item, &has_next);
        if (rc != CH_OK || !has_next)
            break;
        int dtype = (int)strlen(item.dtype_name), shape = ch_shape_print(item.shape, NULL, 0);

        w->dtype = dtype > w->dtype ? dtype : w->dtype;
        w->shape = shape > w->shape ? shape : w->shape;
    }
    walk_end(&walk);
    return rc;
}

static int show_path(const char *path, const cli_options *o)
{
    cli_walk           walk = {.path = path};
    ch_checkpoint_item item;
    show_widths        w = {5, 5};
    bool               has_next = true;
    int                code = CLI_OK;
    ch_status          rc = o->json ? CH_OK : measure(path, &w);

    if (rc == CH_OK)
        rc = walk_open(&walk);
    if (rc == CH_OK && o->json) {
        print_info_json(&walk.info);
    } else if (rc == CH_OK) {
        print_info(&walk.info);
        printf("%-*s  %-*s  %10s  %11s  %11s  %11s  %5s  name\n", w.dtype, "dtype", w.shape,
               "shape", "bytes", "min", "max", "mean", "NaN");
    }
    for (; rc == CH_OK && has_next; walk.i++) {
        rc = walk_peek(&walk, &item, &has_next);
        if (rc != CH_OK || !has_next)
            break;
        /* A tensor that is damaged does not hide the others. */
        if ((o->json ? show_tensor_json(walk.r, walk.i, &item)
                     : show_tensor(walk.r, walk.i, &item, w)) != CH_OK)
            code = fail(CLI_BAD);
    }
    if (rc != CH_OK)
        code = fail(CLI_BAD);
    walk_end(&walk);
    return code;
}

static int run_show(const cli_options *o)
{
    int code = CLI_OK;

    for (int i = 0; i < o->n; i++) {
        if (i > 0 && !o->json)
            putchar('\n');
        code = worse(code, show_path(o->path[i], o));
    }
    return code;
}

/* ---- verify ---- */

/* Prints an error of a checkpoint. `tensor` may be NULL. */
static void print_damage(const char *path, const char *tensor, const cli_options *o)
{
    if (!o->json) {
        printf("damaged: ");
        cli_print(stdout, ch_error_message());
        putchar('\n');
        return;
    }
    printf("{\"checkpoint\": ");
    cli_print_json(stdout, path);
    if (tensor != NULL) {
        printf(", \"tensor\": ");
        cli_print_json(stdout, tensor);
    }
    printf(", \"error\": ");
    cli_print_json(stdout, ch_error_message());
    printf("}\n");
}

/* Returns true if a path means a checkpoint that has an index: its data may be missing. */
static bool has_index(const char *path)
{
    static const char suffix[] = ".index";
    size_t            n = strlen(path), m = strlen(suffix);
    char              index[4096];
    struct stat       about;

    if (ch_checkpoint_find_latest(path, index, sizeof(index)) == CH_OK ||
        (n > m && strcmp(path + n - m, suffix) == 0 && stat(path, &about) == 0))
        return true;
    return snprintf(index, sizeof(index), "%s%s", path, suffix) < (int)sizeof(index) &&
           stat(index, &about) == 0;
}

static int verify_path(const char *path, const cli_options *o)
{
    cli_walk           walk = {.path = path};
    ch_checkpoint_item item;
    bool               has_next = true;
    int64_t            n_bad = 0;
    bool               exists = has_index(path); /* before: it may set this thread's error */
    ch_status          rc = walk_open(&walk);

    for (; rc == CH_OK && has_next; walk.i++) {
        rc = walk_peek(&walk, &item, &has_next);
        if (rc == CH_OK && has_next && ch_checkpoint_verify(walk.r, walk.i) != CH_OK) {
            print_damage(walk.info.prefix, item.name, o);
            n_bad++;
        }
    }
    if (rc != CH_OK) {
        walk_end(&walk);
        if (!is_damage(rc) && !(rc == CH_NOT_FOUND && exists))
            return fail(CLI_USAGE);
        print_damage(path, NULL, o);
        return CLI_BAD;
    }
    if (o->json) {
        printf("{\"checkpoint\": ");
        cli_print_json(stdout, walk.info.prefix);
        printf(", \"tensors\": %" PRId64 ", \"damaged\": %" PRId64 ", \"bytes\": %" PRId64
               "}\n",
               walk.info.n_tensors, n_bad, walk.info.bytes);
    } else {
        cli_print(stdout, walk.info.prefix);
        if (n_bad == 0)
            printf(": ok, %" PRId64 " tensor%s, %s\n", walk.info.n_tensors,
                   walk.info.n_tensors == 1 ? "" : "s", cli_bytes(walk.info.bytes).at);
        else
            printf(": %" PRId64 " of %" PRId64 " tensors are damaged\n", n_bad,
                   walk.info.n_tensors);
    }
    walk_end(&walk);
    return n_bad == 0 ? CLI_OK : CLI_BAD;
}

static int run_verify(const cli_options *o)
{
    int code = CLI_OK;

    for (int i = 0; i < o->n; i++)
        code = worse(code, verify_path(o->path[i], o));
    return code;
}

/* ---- diff ---- */

/* The comparison of two checkpoints. */
typedef struct diffing {
    cli_walk           walk[2];
    const cli_options *o;
    bool               differs;
} diffing;

static cli_text type_text(const ch_checkpoint_item *item)
{
    cli_text t, shape;

    ch_shape_print(item->shape, shape.at, sizeof(shape.at));
    snprintf(t.at, sizeof(t.at), "%s %.120s", item->dtype_name, shape.at);
    return t;
}

/* Begins the line of a difference. */
static void print_change(diffing *d, char mark, const char *change, const ch_checkpoint_item *x)
{
    d->differs = true;
    if (d->o->json) {
        printf("{\"tensor\": ");
        cli_print_json(stdout, x->name);
        printf(", \"change\": \"%s\"", change);
    } else {
        printf("%c ", mark);
        cli_print(stdout, x->name);
    }
}

/* Prints a tensor that only checkpoint `which` has. */
static void print_single(diffing *d, int which, const ch_checkpoint_item *x)
{
    print_change(d, which == 0 ? '-' : '+', which == 0 ? "removed" : "added", x);
    printf(d->o->json ? ", \"type\": \"%s\"}\n" : "  %s\n", type_text(x).at);
}

/* Gives the index of a number's position along each axis. */
static void print_index(ch_shape shape, int64_t number)
{
    int64_t index[CH_MAX_RANK];

    for (int k = shape.rank - 1; k >= 0; k--) {
        index[k] = number % shape.dim[k];
        number /= shape.dim[k];
    }
    putchar('[');
    for (int k = 0; k < shape.rank; k++)
        printf("%s%" PRId64, k > 0 ? ", " : "", index[k]);
    putchar(']');
}

/* Returns whether two tensors without numbers have the same parts, by their checksums. */
static ch_status same_parts(const diffing *d, const ch_checkpoint_item x[2], bool *same)
{
    ch_checkpoint_part a, b;
    ch_status          rc = CH_OK;

    *same = x[0].n_parts == x[1].n_parts && x[0].bytes == x[1].bytes;
    for (int k = 0; k < x[0].n_parts && *same && rc == CH_OK; k++) {
        rc = ch_checkpoint_slice(d->walk[0].r, d->walk[0].i, k, &a);
        if (rc == CH_OK)
            rc = ch_checkpoint_slice(d->walk[1].r, d->walk[1].i, k, &b);
        *same = rc == CH_OK && a.crc == b.crc && a.bytes == b.bytes &&
                memcmp(a.begin, b.begin, sizeof(a.begin)) == 0;
    }
    return rc;
}

/* Prints the number of values that differ, by how much, and where. */
static void print_difference(ch_shape shape, const cli_difference *found)
{
    int64_t n = ch_shape_count(shape);

    if (n == 1)
        printf("the value differs, by %.4g", found->most);
    else if (found->n == 1)
        printf("1 of %" PRId64 " values differs, by %.4g, at ", n, found->most);
    else
        printf("%" PRId64 " of %" PRId64 " values differ, by at most %.4g, the first at ",
               found->n, n, found->most);
    if (n > 1)
        print_index(shape, found->first);
}

static ch_status diff_values(diffing *d, const ch_checkpoint_item x[2])
{
    cli_difference found;
    bool           same;
    ch_status      rc;

    if (!has_numbers(&x[0])) {
        rc = same_parts(d, x, &same);
        if (rc == CH_OK && !same) {
            print_change(d, '!', "values", &x[0]);
            if (d->o->json)
                printf("}\n");
            else
                printf("  %s: the contents differ\n", type_text(&x[0]).at);
        }
        return rc;
    }
    rc = cli_compare(d->walk[0].r, d->walk[1].r, &x[0], &found);
    if (rc != CH_OK || found.n == 0)
        return rc;
    print_change(d, '!', "values", &x[0]);
    if (d->o->json) {
        printf(", \"different\": %" PRId64 ", \"of\": %" PRId64 ", \"first\": %" PRId64
               ", \"most\": ",
               found.n, ch_shape_count(x[0].shape), found.first);
        cli_print_json_number(stdout, found.most);
        printf("}\n");
        return CH_OK;
    }
    printf("  %s: ", type_text(&x[0]).at);
    print_difference(x[0].shape, &found);
    putchar('\n');
    return CH_OK;
}

static ch_status diff_pair(diffing *d, const ch_checkpoint_item x[2])
{
    if (x[0].dtype == x[1].dtype && strcmp(x[0].dtype_name, x[1].dtype_name) == 0 &&
        ch_shape_equal(x[0].shape, x[1].shape))
        return d->o->values ? diff_values(d, x) : CH_OK;
    print_change(d, '!', "type", &x[0]);
    printf(d->o->json ? ", \"from\": \"%s\", \"to\": \"%s\"}\n" : "  %s -> %s\n",
           type_text(&x[0]).at, type_text(&x[1]).at);
    return CH_OK;
}

/* Walks through both lists of names, which are sorted. */
static ch_status diff_all(diffing *d)
{
    ch_checkpoint_item x[2];
    bool               has[2] = {true, true};
    ch_status          rc = CH_OK;

    for (;;) {
        int order;

        for (int k = 0; k < 2 && rc == CH_OK; k++)
            rc = walk_peek(&d->walk[k], &x[k], &has[k]);
        if (rc != CH_OK || (!has[0] && !has[1]))
            return rc;
        order = !has[0] ? 1 : !has[1] ? -1 : strcmp(x[0].name, x[1].name);
        if (order != 0)
            print_single(d, order > 0, &x[order > 0]);
        else if (strcmp(x[0].name, "_COHORT") != 0) /* the id and time of each save */
            rc = diff_pair(d, x);
        d->walk[0].i += order <= 0;
        d->walk[1].i += order >= 0;
    }
}

static int run_diff(const cli_options *o)
{
    diffing   d = {.walk = {{.path = o->path[0]}, {.path = o->path[1]}}, .o = o};
    ch_status rc = walk_open(&d.walk[0]);

    if (rc == CH_OK)
        rc = walk_open(&d.walk[1]);
    if (rc == CH_OK)
        rc = diff_all(&d);
    walk_end(&d.walk[0]);
    walk_end(&d.walk[1]);
    return rc != CH_OK ? fail(CLI_USAGE) : d.differs ? CLI_BAD : CLI_OK;
}

/* ---- fold ---- */

static int run_fold(const cli_options *o)
{
    ch_checkpoint_reader *from = NULL, *to = NULL;
    ch_checkpoint_info    info;
    ch_status             rc = ch_checkpoint_open_part(o->path[0], NULL, &from);

    if (rc == CH_OK)
        rc = ch_checkpoint_fold(from, o->path[1]);
    if (rc == CH_OK)
        rc = ch_checkpoint_open_part(o->path[1], NULL, &to);
    if (rc == CH_OK)
        rc = ch_checkpoint_describe(to, &info);
    if (rc == CH_OK && o->json)
        print_info_json(&info);
    else if (rc == CH_OK)
        print_info(&info);
    ch_checkpoint_close(from);
    ch_checkpoint_close(to);
    return rc == CH_OK ? CLI_OK : fail(CLI_BAD);
}

/* ---- commands ---- */

static const struct {
    const char *name;
    int (*run)(const cli_options *o);
    int min, max; /* paths; max -1: any number */
} commands[] = {{"ls", run_ls, 0, -1},
                {"show", run_show, 1, -1},
                {"verify", run_verify, 1, -1},
                {"diff", run_diff, 2, 2},
                {"fold", run_fold, 2, 2}};

static int complain(const char *problem, const char *word)
{
    fprintf(stderr, "cohort ckpt: %s%s%s; `cohort ckpt --help` lists the commands\n", problem,
            word != NULL ? " " : "", word != NULL ? word : "");
    return CLI_USAGE;
}

int cli_ckpt(int argc, char **argv)
{
    cli_options o = {.path = argv + 2};
    bool        ended = false; /* options have ended: "--" */

    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(usage, stdout);
            return CLI_OK;
        }
    if (argc < 2)
        return complain("no command", NULL);
    for (int i = 2; i < argc; i++)
        if (ended || argv[i][0] != '-')
            o.path[o.n++] = argv[i];
        else if (strcmp(argv[i], "--") == 0)
            ended = true;
        else if (strcmp(argv[i], "--json") == 0)
            o.json = true;
        else if (strcmp(argv[i], "--values") == 0 && strcmp(argv[1], "diff") == 0)
            o.values = true;
        else
            return complain("unknown option", argv[i]);
    for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return o.n < commands[i].min || (commands[i].max >= 0 && o.n > commands[i].max)
                       ? complain("wrong number of paths for", argv[1])
                       : commands[i].run(&o);
    return complain("no command", argv[1]);
}

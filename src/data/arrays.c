/* data/arrays.c -- the stages `npy`, `idx` and `npz`: rows of array files.
 *
 * An array_cursor reads a file after the other; each element holds the next row of every array
 * of the file. Rows point into the blocks of the readers, so no data is copied. data/reading.h
 * opens the files. If the program does not pass the type of a row, the public functions read it
 * from the first file when the dataset is made.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/iterator.h"
#include "data/reading.h"
#include "data/stages.h"
#include "file/idx.h"
#include "file/npy.h"
#include "file/zip.h"

static const char suffix[] = ".npy"; /* of the members of npz files */

/* An array of a file, and the reader of its rows. */
typedef struct source {
    ch_reader *reader;
    ch_array   array;
} source;

/* A file of npy or IDX has a single array. A file of npz may have several; each element has the
 * next row of all of them. */
typedef struct array_cursor {
    ch_reading base;
    int        n;      /* arrays */
    source    *source; /* n; for npy and IDX the reader is base.reader */
    ch_zip    *zip;    /* NULL for npy and IDX */
} array_cursor;

static bool is_npz(const ch_stage *stage)
{
    return stage == &ch__stage_npz;
}

static ch_array_head head_of(const ch_stage *stage)
{
    return stage == &ch__stage_idx ? ch__idx_head : ch__npy_head;
}

/* ---- opening ---- */

/* Closes the readers of npz members. data/reading.c closes base.reader. */
static void drop_sources(ch_reading *r)
{
    array_cursor *x = (array_cursor *)r;

    for (int i = 0; x->source != NULL && i < x->n; i++)
        if (x->zip != NULL)
            ch__reader_close(x->source[i].reader);
    ch__zip_close(x->zip);
    x->zip = NULL;
    ch__free(x->source);
    x->source = NULL;
}

static ch_status read_head(const ch_dataset *d, source *s)
{
    ch_status rc = head_of(d->stage)(s->reader, &s->array);

    return rc == CH_OK ? ch__array_check_rows(s->reader, &s->array) : rc;
}

/* Returns an error unless the rows of the array match component i of the dataset, and their
 * number matches that of the first array. */
static ch_status check_head(const ch_dataset *d, int i, const source *s, const source *first)
{
    ch_shape row = ch_shape_make(s->array.shape.rank - 1, s->array.shape.dim + 1);

    if (s->array.dtype != d->spec[i].dtype || !ch_shape_equal(row, d->spec[i].shape))
        return ch__fail(CH_INVALID_ARGUMENT, "%s: rows are %s, want %s",
                        ch__reader_path(s->reader), ch__label(s->array.dtype, row).text,
                        ch__label(d->spec[i].dtype, d->spec[i].shape).text);
    if (s->array.n_rows != first->array.n_rows)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: the array has %lld rows, but the first array has %lld",
                        ch__reader_path(s->reader), (long long)s->array.n_rows,
                        (long long)first->array.n_rows);
    return CH_OK;
}

/* Returns the limits that also apply to the members of a zip archive. */
static ch_load_options limits_of(const Cohort__Read *read)
{
    return (ch_load_options){.max_expansion = read != NULL ? read->max_expansion : 0};
}

static ch_status open_member(array_cursor *x, int i)
{
    const char     *array = x->base.base.dataset->spec[i].name;
    ch_load_options opt = limits_of(CH_ATTRS(&x->base.base, Cohort__Arrays)->read);
    size_t          room = strlen(array) + sizeof(suffix);
    char           *name = ch__malloc(room);
    int             at;

    if (name == NULL)
        return ch__fail_memory("npz");
    snprintf(name, room, "%s%s", array, suffix);
    at = ch__zip_find(x->zip, name);
    ch__free(name);
    if (at < 0)
        return ch__fail(CH_NOT_FOUND, "%s: no array \"%s\" in this file", x->zip->path, array);
    return ch__zip_reader(x->zip, at, &opt, x->base.pool, &x->source[i].reader);
}

/* Opens the arrays of a file and checks their headers. */
static ch_status array_begin(ch_reading *r)
{
    array_cursor     *x = (array_cursor *)r;
    const ch_dataset *d = r->base.dataset;
    ch_status         rc = CH_OK;

    x->n = d->n_parts;
    x->source = ch__calloc((size_t)x->n, sizeof(*x->source));
    if (x->source == NULL)
        return ch__fail_memory(d->stage->name);
    if (is_npz(d->stage))
        rc = ch__zip_open(ch__reader_path(r->reader), &x->zip);
    else
        x->source[0].reader = r->reader;
    for (int i = 0; i < x->n && rc == CH_OK; i++) {
        if (x->zip != NULL)
            rc = open_member(x, i);
        if (rc == CH_OK)
            rc = read_head(d, &x->source[i]);
        if (rc == CH_OK)
            rc = check_head(d, i, &x->source[i], &x->source[0]);
    }
    return rc;
}

/* ---- rows ---- */

/* Creates an element of the next row of each array. The parts point into the blocks of the
 * readers. */
static ch_status next_row(array_cursor *x, ch_element **out)
{
    const ch_dataset *d = x->base.base.dataset;
    ch_element       *e = ch__element_new(x->n, x->n, 0);

    if (e == NULL)
        return ch__fail_memory(d->stage->name);
    for (int i = 0; i < x->n; i++) {
        source     *s = &x->source[i];
        const char *row;
        ch_status   rc = ch__array_row(s->reader, &s->array, &row);

        if (rc != CH_OK) {
            ch__element_free(e);
            return rc;
        }
        e->part[i] =
            (ch_part){.dtype = d->spec[i].dtype, .shape = d->spec[i].shape, .data = row};
        e->owner[i] = s->reader->block != NULL ? ch__buffer_ref(s->reader->block) : NULL;
    }
    *out = e;
    return CH_OK;
}

/* Checks that the file ends behind the last row of each array. */
static ch_status finish(const array_cursor *x)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < x->n && rc == CH_OK; i++)
        rc = ch__array_end(x->source[i].reader, &x->source[i].array);
    return rc;
}

static void array_pull(ch_cursor *c, ch_data_job *job)
{
    array_cursor *x = (array_cursor *)c;
    ch_reading   *r = &x->base;
    ch_status     rc = ch__reading_file(r, CH_ATTRS(c, Cohort__Arrays)->read);

    job->has_end = rc == CH_OK && r->reader == NULL;
    while (rc == CH_OK && r->reader != NULL && job->n < job->want) {
        ch_element *e = NULL;

        if (r->n == x->source[0].array.n_rows) {
            rc = finish(x);
            ch__reading_close_file(r);
            break;
        }
        rc = next_row(x, &e);
        if (rc == CH_OK) {
            ch__data_job_add(job, e);
            r->n++;
        } else { /* the rows behind it cannot be read either */
            ch__reading_close_file(r);
        }
    }
    if (rc != CH_OK)
        ch__reading_damage(r, CH_ATTRS(c, Cohort__Arrays)->read, job, rc);
}

/* ---- the stages ---- */

static ch_status array_infer(ch_dataset *d)
{
    const Cohort__Arrays *a = CH_ATTRS_OF(d, Cohort__Arrays);
    Cohort__ElementSpec   spec = COHORT__ELEMENT_SPEC__INIT;
    ch_status             rc = ch__reading_infer(d, a->read);

    spec.n_parts = a->n_rows;
    spec.parts = a->rows;
    if (rc == CH_OK && (a->n_rows < 1 || (!is_npz(d->stage) && a->n_rows != 1)))
        rc = ch__dataset_fail(d, "number of arrays (got %zu, want 1, or for npz 1 or more)",
                              a->n_rows);
    if (rc == CH_OK)
        rc = ch__dataset_set_spec(d, &spec);
    for (int i = 0; i < d->n_parts && rc == CH_OK; i++)
        if (ch_shape_count(d->spec[i].shape) < 0 || d->spec[i].dtype == CH_STR ||
            (is_npz(d->stage) && d->spec[i].name == NULL))
            rc = ch__dataset_fail(d,
                                  "array %d \"%s\": rows of %s; want numbers of known sizes, "
                                  "and for npz a name",
                                  i, d->spec[i].name != NULL ? d->spec[i].name : "",
                                  ch__label(d->spec[i].dtype, d->spec[i].shape).text);
    return rc;
}

static ch_status array_open(ch_cursor *c)
{
    static const ch_workqueue_ops ops = {array_pull, NULL};
    array_cursor                 *x = (array_cursor *)c;

    x->base.begin = array_begin;
    x->base.leave = drop_sources;
    x->base.seeks_rows = true;
    return ch__reading_open(&x->base, &ops);
}

/* Moves the readers behind the rows that were already returned (base.n). */
static ch_status go_to_row(array_cursor *x)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < x->n && rc == CH_OK; i++) {
        const ch_array *a = &x->source[i].array;

        if (x->base.n > a->n_rows)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "restore: %s: the saved position is behind its %lld rows",
                            ch__reader_path(x->source[i].reader), (long long)a->n_rows);
        rc = ch__reader_seek(x->source[i].reader, a->offset + x->base.n * a->row_bytes);
    }
    return rc;
}

static ch_status array_load(ch_cursor *c, ch_loader *l)
{
    array_cursor *x = (array_cursor *)c;
    ch_status     rc = ch__reading_load(c, l);

    return rc == CH_OK && x->base.reader != NULL ? go_to_row(x) : rc;
}

/* clang-format off */
#define ARRAY_STAGE(text)                                                                      \
    {                                                                                          \
        .name = text, .version = 1, .traits = CH_READS_FILES, .n_in = 1,                       \
        .attrs = &cohort__arrays__descriptor,                                                  \
        .cursor_bytes = sizeof(array_cursor), .infer = array_infer, .open = array_open,        \
        .next = ch__queued_next, .rewind = ch__reading_rewind, .save = ch__reading_save,       \
        .load = array_load, .close = ch__reading_close,                                        \
    }

/* clang-format on */

const ch_stage ch__stage_npy = ARRAY_STAGE("npy");
const ch_stage ch__stage_idx = ARRAY_STAGE("idx");
const ch_stage ch__stage_npz = ARRAY_STAGE("npz");

/* ---- the type of a row, from the first file ---- */

/* Returns the first name that `files` gives. The arena owns the string. */
static ch_status first_name(ch_arena *arena, ch_dataset *files, char **out)
{
    ch_iterator *it = NULL;
    ch_tuple    *t = NULL;
    ch_status    rc = ch_iterator_new(files, NULL, &it);
    ch_str       s = {0};

    while (rc == CH_OK && s.data == NULL) {
        ch_tensor *names;

        ch_tuple_unref(t);
        t = NULL;
        rc = ch_iterator_next(it, &t);
        if (rc == CH_OK && t == NULL)
            rc = ch__fail(CH_NOT_FOUND, "no file to read the type of a row from; pass `row`");
        if (rc != CH_OK)
            break;
        names = ch_value_at(ch_tuple_at(t, 0), 0);
        if (ch_tensor_count(names) > 0)
            s = *(const ch_str *)ch_tensor_data(names);
    }
    if (rc == CH_OK) {
        *out = ch__arena_alloc(arena, s.size + 1);
        if (*out != NULL)
            memcpy(*out, s.data, s.size);
        else
            rc = ch__fail_memory("the name of a file");
    }
    ch_tuple_unref(t);
    ch_iterator_unref(it);
    return rc;
}

/* Sets *out to the spec of a row of the array. Fails if the array cannot be read by rows. */
static ch_status row_spec(const ch_reader *r, const ch_array *a, const char *name,
                          ch_tensor_spec *out)
{
    *out = (ch_tensor_spec){name, a->dtype, ch_shape_make(a->shape.rank - 1, a->shape.dim + 1)};
    return ch__array_check_rows(r, a);
}

/* Appends the spec of member i to `out`, if the member is an array with rows. Skips scalars and
 * members that are not .npy. */
static ch_status read_member_spec(ch_arena *arena, const ch_zip *zip, int i,
                                  const ch_load_options *opt, int *n, ch_tensor_spec *out)
{
    size_t     length = strlen(zip->member[i].name), m = strlen(suffix);
    char      *name = ch__arena_strdup(arena, zip->member[i].name);
    ch_reader *r = NULL;
    ch_array   a;
    ch_status  rc;

    if (name == NULL)
        return ch__fail_memory("npz");
    if (length < m || strcmp(name + length - m, suffix) != 0)
        return CH_OK;
    name[length - m] = '\0';
    rc = ch__zip_reader(zip, i, opt, NULL, &r);
    if (rc == CH_OK)
        rc = ch__npy_head(r, &a);
    if (rc == CH_OK && a.shape.rank > 0)
        rc = row_spec(r, &a, name, &out[(*n)++]);
    ch__reader_close(r);
    return rc;
}

/* Returns the specs of all arrays of an npz file. The arena owns the specs and names. */
static ch_status read_npz_specs(ch_arena *arena, const char *path, const ch_load_options *opt,
                                int *n, ch_tensor_spec **out)
{
    ch_zip   *zip = NULL;
    ch_status rc = ch__zip_open(path, &zip);

    if (rc != CH_OK)
        return rc;
    *n = 0;
    *out = ch__arena_alloc(arena, ((size_t)zip->n + 1) * sizeof(**out));
    if (*out == NULL)
        rc = ch__fail_memory("npz");
    for (int i = 0; i < zip->n && rc == CH_OK; i++)
        rc = read_member_spec(arena, zip, i, opt, n, *out);
    if (rc == CH_OK && *n == 0)
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s: no array with rows in this file", path);
    ch__zip_close(zip);
    return rc;
}

/* Reads the specs of the rows from the first file. */
static ch_status read_row_specs(const ch_stage *stage, ch_arena *arena, ch_dataset *files,
                                const ch_read_options *opt, int *n, ch_tensor_spec **out)
{
    ch_load_options load = {0};
    ch_reader      *r = NULL;
    ch_array        a;
    char           *path = NULL;
    ch_status       rc = first_name(arena, files, &path);

    if (rc != CH_OK)
        return rc;
    if (opt != NULL)
        load = (ch_load_options){.compression = opt->compression,
                                 .max_expansion = opt->max_expansion};
    if (is_npz(stage))
        return read_npz_specs(arena, path, &load, n, out);
    *n = 1;
    *out = ch__arena_alloc(arena, sizeof(**out));
    rc = *out == NULL ? ch__fail_memory(stage->name) : ch__reader_open(path, &load, NULL, &r);
    if (rc == CH_OK)
        rc = head_of(stage)(r, &a);
    if (rc == CH_OK)
        rc = row_spec(r, &a, NULL, *out);
    ch__reader_close(r);
    return rc;
}

/* Creates a dataset of one of the three stages. Takes ownership of `files`. */
static ch_dataset *array_dataset(const ch_stage *stage, ch_dataset *files, int n,
                                 const ch_tensor_spec *row, const ch_read_options *opt)
{
    Cohort__Arrays       a = COHORT__ARRAYS__INIT;
    Cohort__Read         read;
    Cohort__ElementSpec *spec = NULL;
    ch_tensor_spec      *seen = NULL;
    ch_arena             arena = {0};
    ch_dataset          *d = NULL;
    ch_status            rc = CH_OK;

    if (files == NULL)
        return NULL;
    if ((row == NULL || n == 0) && ch__gives_names(files)) {
        rc = read_row_specs(stage, &arena, files, opt, &n, &seen);
        row = seen;
    }
    if (rc == CH_OK && ch__gives_names(files)) {
        rc = ch__spec_encode(&arena, n, row, &spec);
        a.n_rows = rc == CH_OK ? spec->n_parts : 0;
        a.rows = rc == CH_OK ? spec->parts : NULL;
    }
    ch__read_message(&read, opt);
    a.read = &read;
    if (rc == CH_OK) {
        d = ch__dataset_new(stage,
                            &(ch_dataset_make){.attrs = &a.base, .n_in = 1, .in = &files});
    } else {
        (void)ch__fail_at(rc, "%s", stage->name);
        ch_dataset_unref(files);
    }
    ch__arena_drop(&arena);
    return d;
}

ch_dataset *ch_dataset_npy(ch_dataset *files, const ch_tensor_spec *row,
                           const ch_read_options *opt)
{
    return array_dataset(&ch__stage_npy, files, 1, row, opt);
}

ch_dataset *ch_dataset_idx(ch_dataset *files, const ch_tensor_spec *row,
                           const ch_read_options *opt)
{
    return array_dataset(&ch__stage_idx, files, 1, row, opt);
}

ch_dataset *ch_dataset_npz(ch_dataset *files, int n, const ch_tensor_spec *row,
                           const ch_read_options *opt)
{
    return array_dataset(&ch__stage_npz, files, n, row, opt);
}

/* data/files.c -- the stages `file_list` (given names) and `files` (names found by a pattern).
 *
 * A `naming` is the cursor of both stages. At the first element of a pass it lists all names in
 * the order of this pass; `files` searches, sorts and shuffles them then. Stages that read
 * files take the names as their input. A saved position holds the list of names and an index,
 * so a restored pass reads the same files even if the directory has changed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/sys.h"
#include "data/iterator.h"
#include "data/random.h"

typedef struct naming {
    ch_cursor base;
    bool      is_listed; /* `name` holds the names of this pass */
    int       n, at;     /* names, and the index of the next */
    char    **name;      /* n; owned */
} naming;

static ch_status infer_names(ch_dataset *d)
{
    return ch__dataset_set_parts(d, 1, &(ch_tensor_spec){.dtype = CH_STR});
}

static void reset(naming *x)
{
    for (int i = 0; i < x->n; i++)
        ch__free(x->name[i]);
    ch__free(x->name);
    x->name = NULL;
    x->n = x->at = 0;
    x->is_listed = false;
}

/* Replaces the list by copies of n names. */
static ch_status copy_names(naming *x, size_t n, char *const *path)
{
    reset(x);
    x->name = ch__calloc(n + 1, sizeof(char *));
    for (size_t i = 0; x->name != NULL && i < n; i++) {
        if ((x->name[i] = ch__strdup(path[i])) == NULL)
            return ch__fail_memory("names of files");
        x->n++;
    }
    x->is_listed = true;
    return x->name == NULL ? ch__fail_memory("names of files") : CH_OK;
}

/* Returns the next name as a string scalar; NULL at the end. */
static ch_status names_next(naming *x, ch_element **out)
{
    size_t      size;
    ch_element *e;
    ch_str     *s;

    if (x->at == x->n)
        return CH_OK;
    size = strlen(x->name[x->at]);
    e = ch__element_new(1, 0, sizeof(*s) + size);
    if (e == NULL)
        return ch__fail_memory("name of a file");
    s = e->room;
    *s = (ch_str){(char *)(s + 1), size};
    memcpy(s + 1, x->name[x->at++], size);
    e->part[0] = (ch_part){.dtype = CH_STR, .data = s};
    *out = e;
    return CH_OK;
}

static void names_save(ch_cursor *c, ch_saver *s)
{
    naming *x = (naming *)c;

    ch__save_int(s, x->is_listed);
    ch__save_int(s, x->n);
    ch__save_int(s, x->at);
    for (int i = 0; i < x->n; i++)
        ch__save_text(s, x->name[i], strlen(x->name[i]));
}

static ch_status names_load(ch_cursor *c, ch_loader *l)
{
    naming *x = (naming *)c;
    bool    is_listed = ch__load_int(l, 0, 1) != 0;
    int     n = (int)ch__load_int(l, 0, INT32_MAX / 16), at = (int)ch__load_int(l, 0, n);

    reset(x);
    for (int i = 0; i < n && !ch__load_fails(l); i++) {
        ch_str s = ch__load_text(l);
        char **more = ch__realloc(x->name, ((size_t)x->n + 1) * sizeof(char *));

        if (more != NULL)
            x->name = more;
        if (more == NULL || (x->name[x->n] = ch__malloc(s.size + 1)) == NULL)
            return ch__fail_memory("names of files");
        memcpy(x->name[x->n], s.data, s.size);
        x->name[x->n++][s.size] = '\0';
    }
    x->at = at;
    x->is_listed = is_listed;
    return ch__load_status(l);
}

static void names_close(ch_cursor *c)
{
    reset((naming *)c);
}

/* ---- file_list ---- */

static ch_status list_infer(ch_dataset *d)
{
    d->cardinality = (int64_t)CH_ATTRS_OF(d, Cohort__FileList)->n_path;
    return infer_names(d);
}

static ch_status list_next(ch_cursor *c, ch_element **out)
{
    const Cohort__FileList *a = CH_ATTRS(c, Cohort__FileList);
    naming                 *x = (naming *)c;
    ch_status               rc = CH_OK;

    if (!x->is_listed)
        rc = copy_names(x, a->n_path, a->path);
    return rc == CH_OK ? names_next(x, out) : rc;
}

static ch_status list_rewind(ch_cursor *c)
{
    ((naming *)c)->at = 0;
    return CH_OK;
}

const ch_stage ch__stage_file_list = {
    .name = "file_list",
    .version = 1,
    .attrs = &cohort__file_list__descriptor,
    .cursor_bytes = sizeof(naming),
    .infer = list_infer,
    .open = ch__open_nothing,
    .next = list_next,
    .rewind = list_rewind,
    .save = names_save,
    .load = names_load,
    .close = names_close,
};

ch_dataset *ch_dataset_file_list(int n, const char *const *path)
{
    Cohort__FileList a = COHORT__FILE_LIST__INIT;
    ch_arena         arena = {0};
    ch_dataset      *d = NULL;
    bool             fits = n >= 0 && (path != NULL || n == 0);

    a.path = ch__arena_alloc(&arena, ((size_t)(fits ? n : 0) + 1) * sizeof(char *));
    for (int i = 0; i < n && fits && a.path != NULL; i++) {
        a.path[i] = ch__arena_strdup(&arena, path[i]);
        fits = a.path[i] != NULL;
        a.n_path++;
    }
    if (fits && a.path != NULL)
        d = ch__dataset_new(&ch__stage_file_list, &(ch_dataset_make){.attrs = &a.base});
    else
        (void)ch__fail(
            CH_INVALID_ARGUMENT,
            "file_list: %d names: the number is negative, or the list or a name is NULL", n);
    ch__arena_drop(&arena);
    return d;
}

/* ---- files ---- */

static ch_status files_infer(ch_dataset *d)
{
    if (CH_ATTRS_OF(d, Cohort__Files)->pattern[0] == '\0')
        return ch__dataset_fail(d, "the pattern is empty or NULL");
    return infer_names(d);
}

/* Error of the directory that glob could not read. It is a thread variable, because the error
 * function of glob has no argument for its caller. */
static _Thread_local ch_status unreadable;

/* The error function of glob. Returns 1 to stop the search. */
static int on_glob_error(const char *path, int error)
{
    if (error == ENOENT || error == ENOTDIR) /* no match in it; not an error */
        return 0;
    unreadable = ch__fail_errno(error, "files: directory %s cannot be read", path);
    return 1;
}

/* Compares names byte by byte. The locale must not matter, because it may differ between
 * workers, and workers divide the files by their order. */
static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Lists the files that match the pattern, sorted. */
static ch_status find_files(naming *x, const Cohort__Files *a)
{
    glob_t    found = {0};
    int       code;
    ch_status rc;

    unreadable = CH_OK;
    code = glob(a->pattern, GLOB_NOSORT, on_glob_error, &found);
    if (code == GLOB_NOSPACE)
        rc = ch__fail_memory("names of files");
    else if (code != 0 && code != GLOB_NOMATCH)
        rc = unreadable != CH_OK
                 ? ch__fail_at(unreadable, "pattern \"%s\"", a->pattern)
                 : ch__fail(CH_UNAVAILABLE, "files: a directory of \"%s\" cannot be read",
                            a->pattern);
    else if (found.gl_pathc == 0 && !a->may_be_empty)
        rc = ch__fail(CH_NOT_FOUND, "files: no file matches the pattern \"%s\"", a->pattern);
    else
        rc = copy_names(x, found.gl_pathc, found.gl_pathv);
    if (rc == CH_OK && x->n > 1)
        qsort(x->name, (size_t)x->n, sizeof(*x->name), by_bytes);
    globfree(&found);
    return rc;
}

/* Shuffles the names in place (Fisher-Yates). */
static void shuffle_names(naming *x, ch_draws draws)
{
    for (int i = x->n - 1; i > 0; i--) {
        int64_t k = ch__draw_below(draws, i, i + 1);
        char   *name = x->name[i];

        x->name[i] = x->name[k];
        x->name[k] = name;
    }
}

static ch_status files_list(naming *x)
{
    const Cohort__Files *a = CH_ATTRS(&x->base, Cohort__Files);
    ch_status            rc = find_files(x, a);

    if (rc == CH_OK && a->shuffle)
        shuffle_names(x, ch__draws(&x->base, a->seed, !a->reshuffle));
    return rc;
}

/* If the search fails, returns its error once and then the end. */
static ch_status files_next(ch_cursor *c, ch_element **out)
{
    naming   *x = (naming *)c;
    ch_status rc = x->is_listed ? CH_OK : files_list(x);

    if (rc != CH_OK)
        reset(x);
    x->is_listed = true;
    return rc == CH_OK ? names_next(x, out) : rc;
}

static ch_status files_rewind(ch_cursor *c)
{
    reset((naming *)c);
    return CH_OK;
}

const ch_stage ch__stage_files = {
    .name = "files",
    .version = 1,
    .attrs = &cohort__files__descriptor,
    .cursor_bytes = sizeof(naming),
    .infer = files_infer,
    .open = ch__open_nothing,
    .next = files_next,
    .rewind = files_rewind,
    .save = names_save,
    .load = names_load,
    .close = names_close,
};

ch_dataset *ch_dataset_files(const char *pattern, const ch_files_options *opt)
{
    Cohort__Files a;
    ch_arena      arena = {0};
    ch_dataset   *d = NULL;

    cohort__files__init(&a);
    a.pattern = ch__arena_strdup(&arena, pattern != NULL ? pattern : "");
    if (opt != NULL) {
        a.shuffle = opt->shuffle;
        a.seed = opt->seed;
        a.reshuffle = opt->reshuffle;
        a.may_be_empty = opt->may_be_empty;
    }
    if (a.pattern != NULL)
        d = ch__dataset_new(&ch__stage_files, &(ch_dataset_make){.attrs = &a.base});
    else
        (void)ch__fail_memory("files");
    ch__arena_drop(&arena);
    return d;
}

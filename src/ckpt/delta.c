/* ckpt/delta.c -- reads deltas: the rows of the base, overlaid by the changed rows.
 *
 * ch__delta_link rebuilds the array of tensors of an open delta. The tensors that the delta
 * shows come first, in the order of their names: those that are stored themselves, and for each
 * pair of ids and values (ckpt_rows) the tensor that they belong to. The pairs follow.
 *
 * A region is read from the base first. Then the changed rows in it are found by binary search
 * in the ids, which stay on disk, and are read through buffers of at most BUFFER bytes. So the
 * memory does not depend on the number of rows.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/delta.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"

enum {
    IDS = 1 << 16,    /* ids that are read at a time */
    BUFFER = 1 << 20, /* bytes of rows that are read at a time, unless a row has more */
};

/* ---- opening ---- */

static ch_status fail_delta(const ch_ckpt *c, const char *name, const char *problem)
{
    return ch__fail(CH_DATA_LOSS, "%s: delta: tensor \"%s\": %s", c->prefix, name, problem);
}

/* Returns the length of a name without the suffix; 0 if the name does not end with it. */
static size_t stem(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);

    return n > m && strcmp(name + n - m, suffix) == 0 ? n - m : 0;
}

static ch_status check_base(const ch_ckpt *c)
{
    const ch_ckpt_metadata *base = &c->base->metadata;

    if (base->id != c->metadata.base_id)
        return ch__fail(CH_DATA_LOSS,
                        "%s: is a delta of checkpoint %016llx, and %s is checkpoint %016llx",
                        c->prefix, (unsigned long long)c->metadata.base_id, c->base->prefix,
                        (unsigned long long)base->id);
    if (base->base != NULL)
        return ch__fail(CH_DATA_LOSS, "%s: is a delta of %s, which is a delta too", c->prefix,
                        c->base->prefix);
    return CH_OK;
}

/* Checks the ids and values of a tensor against the tensor in the base. Returns NULL, or a
 * description of the fault. */
static const char *check_rows(const ckpt_tensor *ids, const ckpt_tensor *values,
                              const ckpt_tensor *base)
{
    if (ch__ckpt_dtype_of(ids->dtype) != CH_I64 || ids->rank != 1)
        return "its row ids are not of dtype i64 and shape (n)";
    if (ch__ckpt_dtype_bytes(base->dtype) == 0 || base->rank == 0)
        return "in the base it has no rows of numbers";
    if (values->dtype != base->dtype || values->rank != base->rank)
        return "its rows have another dtype or rank than in the base";
    if (values->dim[0] != ids->dim[0] || ids->dim[0] > base->dim[0])
        return "the numbers of its rows and ids do not match";
    for (int k = 1; k < base->rank; k++)
        if (values->dim[k] != base->dim[k])
            return "its rows have another shape than in the base";
    return NULL;
}

/* Arrays of a delta under construction. */
typedef struct delta_linking {
    ch_ckpt     *c;
    ckpt_tensor *tensor; /* the new array: n_shown tensors, then pairs of ids and values */
    int          n_shown, n_rows;
    char        *names; /* end of the names so far */
} delta_linking;

/* Adds the tensor whose ids are tensor i of the old array; `n` bytes of its name are those of
 * the shown tensor. */
static ch_status link_rows(delta_linking *l, int i, size_t n, int pairs)
{
    ch_ckpt     *c = l->c;
    ckpt_rows   *rows = &c->rows[l->n_rows];
    ckpt_tensor *pair = &l->tensor[pairs + 2 * l->n_rows], *base;
    char         name[CH_CKPT_MAX_NAME + sizeof(CH_DELTA_VALUES)];
    const char  *problem = NULL;
    int          values;

    memcpy(l->names, c->tensor[i].name, n);
    l->names[n] = '\0';
    snprintf(name, sizeof(name), "%s" CH_DELTA_VALUES, l->names);
    values = ch__ckpt_find(c, name);
    rows->base = ch__ckpt_find(c->base, l->names);
    if (values < 0 || rows->base < 0)
        return fail_delta(c, l->names,
                          values < 0 ? "it has ids of rows and no values" : "not in the base");
    base = &c->base->tensor[rows->base];
    problem = check_rows(&c->tensor[i], &c->tensor[values], base);
    if (problem != NULL)
        return fail_delta(c, l->names, problem);
    pair[0] = c->tensor[i];
    pair[1] = c->tensor[values];
    rows->ids = &pair[0];
    rows->values = &pair[1];
    l->tensor[l->n_shown++] = (ckpt_tensor){.name = l->names,
                                            .dim = base->dim,
                                            .rank = base->rank,
                                            .dtype = base->dtype,
                                            .rows = l->n_rows++};
    l->names += n + 1;
    return CH_OK;
}

static int compare_names(const void *a, const void *b)
{
    const ckpt_tensor *x = a, *y = b;

    return strcmp(x->name, y->name);
}

ch_status ch__delta_link(ch_ckpt *c)
{
    delta_linking l = {.c = c};
    int           n_ids = 0, n_values = 0;
    size_t        names = 0;
    ch_status     rc = check_base(c);

    for (int i = 0; i < c->n_tensors; i++) {
        size_t n = stem(c->tensor[i].name, CH_DELTA_IDS);

        n_ids += n > 0;
        names += n > 0 ? n + 1 : 0;
        n_values += stem(c->tensor[i].name, CH_DELTA_VALUES) > 0;
    }
    if (rc == CH_OK && n_ids != n_values)
        rc = ch__fail(CH_DATA_LOSS,
                      "%s: delta: its tensors with ids of rows are %d, those with values %d",
                      c->prefix, n_ids, n_values);
    if (rc != CH_OK)
        return rc;
    c->rows = ch__calloc((size_t)n_ids + 1, sizeof(*c->rows));
    c->row_names = ch__malloc(names + 1);
    l.tensor = ch__malloc(((size_t)c->n_tensors + (size_t)n_ids + 1) * sizeof(*l.tensor));
    l.names = c->row_names;
    if (c->rows == NULL || c->row_names == NULL || l.tensor == NULL)
        rc = ch__fail_memory(c->prefix);
    for (int i = 0; i < c->n_tensors && rc == CH_OK; i++) {
        size_t n = stem(c->tensor[i].name, CH_DELTA_IDS);

        if (n > 0)
            rc = link_rows(&l, i, n, c->n_tensors - n_ids);
        else if (stem(c->tensor[i].name, CH_DELTA_VALUES) == 0)
            l.tensor[l.n_shown++] = c->tensor[i];
    }
    if (rc != CH_OK) {
        ch__free(l.tensor);
        return rc;
    }
    qsort(l.tensor, (size_t)l.n_shown, sizeof(*l.tensor), compare_names);
    for (int i = 1; i < l.n_shown && rc == CH_OK; i++)
        if (compare_names(&l.tensor[i - 1], &l.tensor[i]) == 0)
            rc = fail_delta(c, l.tensor[i].name, "it is stored itself and as rows");
    ch__free(c->tensor);
    c->tensor = l.tensor;
    c->n_tensors = l.n_shown;
    return rc;
}

/* ---- reading ---- */

/* Reads ids [from, from + n). */
static ch_status read_ids(ch_ckpt *c, const ckpt_rows *rows, int64_t from, int64_t n,
                          int64_t *to)
{
    ch_region r = {.begin = {from}, .size = {n}};

    return ch__ckpt_read_stored(c, rows->ids, &r, to);
}

/* Checks that the ids ascend and are those of rows, unless that was done. `id` has room for IDS
 * ids. */
static ch_status check_ids(ch_ckpt *c, const ckpt_tensor *t, ckpt_rows *rows, int64_t *id)
{
    int64_t   n_ids = rows->ids->dim[0], last = -1;
    ch_status rc = CH_OK;

    if (atomic_load_explicit(&rows->is_checked, memory_order_relaxed) != 0)
        return CH_OK;
    for (int64_t at = 0, n; at < n_ids && rc == CH_OK; at += n) {
        n = ch__min(n_ids - at, IDS);
        rc = read_ids(c, rows, at, n, id);
        for (int64_t i = 0; i < n && rc == CH_OK; last = id[i++])
            if (id[i] <= last || id[i] >= t->dim[0])
                rc = ch__fail(CH_DATA_LOSS,
                              "%s: delta: tensor \"%s\": row id %lld at position %lld (want "
                              "ascending ids below %lld)",
                              c->prefix, t->name, (long long)id[i], (long long)(at + i),
                              (long long)t->dim[0]);
    }
    if (rc == CH_OK)
        atomic_store_explicit(&rows->is_checked, 1, memory_order_relaxed);
    return rc;
}

/* Gives the position of the first id that is not below `row`. */
static ch_status find_row(ch_ckpt *c, const ckpt_rows *rows, int64_t row, int64_t *out)
{
    int64_t   low = 0, high = rows->ids->dim[0], id;
    ch_status rc = CH_OK;

    while (low < high && rc == CH_OK) {
        int64_t middle = low + (high - low) / 2;

        rc = read_ids(c, rows, middle, 1, &id);
        if (rc == CH_OK && id < row)
            low = middle + 1;
        else
            high = middle;
    }
    *out = low;
    return rc;
}

/* A region of a tensor that is being read. */
typedef struct delta_reading {
    ch_ckpt         *c;
    const ckpt_rows *rows;
    const ch_region *want;
    int64_t          row_bytes; /* of a row of the region */
    int64_t         *id;        /* IDS ids */
    char            *buffer;    /* BUFFER bytes, or those of the region if it has less */
    char            *to;
} delta_reading;

/* Returns the address of a row of the result. */
static char *row_at(const delta_reading *x, int64_t id)
{
    return x->to + (id - x->want->begin[0]) * x->row_bytes;
}

/* Copies n changed rows, from position `at` of all ids on. Their ids are x->id[0, n). */
static ch_status copy_rows(const delta_reading *x, int64_t at, int64_t n)
{
    int64_t   most = BUFFER / x->row_bytes;
    ch_status rc = CH_OK;

    for (int64_t i = 0, now; i < n && rc == CH_OK; i += now) {
        ch_region r = *x->want;

        now = most > 1 ? ch__min(n - i, most) : 1;
        r.begin[0] = at + i;
        r.size[0] = now;
        if (now == 1) {
            rc = ch__ckpt_read_stored(x->c, x->rows->values, &r, row_at(x, x->id[i]));
            continue;
        }
        rc = ch__ckpt_read_stored(x->c, x->rows->values, &r, x->buffer);
        for (int64_t k = 0; k < now && rc == CH_OK; k++)
            memcpy(row_at(x, x->id[i + k]), x->buffer + k * x->row_bytes, (size_t)x->row_bytes);
    }
    return rc;
}

/* Overlays a region of the base by the changed rows in it. */
static ch_status overlay(const delta_reading *x)
{
    int64_t   n_ids = x->rows->ids->dim[0], at = 0;
    int64_t   begin = x->want->begin[0], end = begin + x->want->size[0];
    ch_status rc = find_row(x->c, x->rows, begin, &at);
    bool      has_ended = false;

    for (int64_t n; at < n_ids && rc == CH_OK && !has_ended; at += n) {
        int64_t inside = 0;

        n = ch__min(n_ids - at, ch__min(IDS, end - begin));
        rc = read_ids(x->c, x->rows, at, n, x->id);
        /* The ids were checked, but the file may have changed since. */
        while (rc == CH_OK && inside < n && x->id[inside] >= begin && x->id[inside] < end)
            inside++;
        has_ended = inside < n;
        if (rc == CH_OK)
            rc = copy_rows(x, at, inside);
    }
    return rc;
}

ch_status ch__delta_read(ch_ckpt *c, const ckpt_tensor *t, const ch_region *region, void *to)
{
    ckpt_rows    *rows = &c->rows[t->rows];
    ch_shape      shape = ch_shape_make(t->rank, t->dim);
    ch_region     want = {.begin = {0}};
    delta_reading x = {.c = c, .rows = rows, .want = &want, .to = to};
    ch_status     rc = ch__ckpt_read_stored(c->base, &c->base->tensor[rows->base], region, to);

    if (rc != CH_OK)
        return rc;
    memcpy(want.size, shape.dim, sizeof(want.size));
    want = region != NULL ? *region : want;
    x.row_bytes = ch__ckpt_dtype_bytes(t->dtype);
    for (int k = 1; k < t->rank; k++)
        x.row_bytes *= want.size[k];
    if (x.row_bytes == 0 || want.size[0] == 0)
        return CH_OK;
    x.id = ch__malloc(IDS * sizeof(*x.id));
    x.buffer = ch__malloc((size_t)ch__min(BUFFER, want.size[0] * x.row_bytes));
    rc = x.id != NULL && x.buffer != NULL ? check_ids(c, t, rows, x.id)
                                          : ch__fail_memory(t->name);
    if (rc == CH_OK)
        rc = overlay(&x);
    ch__free(x.id);
    ch__free(x.buffer);
    return rc;
}

ch_status ch__delta_verify(ch_ckpt *c, const ckpt_tensor *t)
{
    ckpt_rows *rows = &c->rows[t->rows];
    int64_t   *id;
    ch_status  rc = ch__ckpt_verify_stored(c->base, &c->base->tensor[rows->base]);

    if (rc == CH_OK)
        rc = ch__ckpt_verify_stored(c, rows->ids);
    if (rc == CH_OK)
        rc = ch__ckpt_verify_stored(c, rows->values);
    if (rc != CH_OK)
        return rc;
    id = ch__malloc(IDS * sizeof(*id));
    rc = id != NULL ? check_ids(c, t, rows, id) : ch__fail_memory(t->name);
    ch__free(id);
    return rc;
}

/* strategy/var_rows.c -- reads rows of variables outside steps.
 *
 * Implements ch_var_lookup, ch_var_slice and ch_var_row. Rows are read by ch_var_ops.gather
 * with a list of ids for each part of axis 0. The ids count from the first row of the part. So
 * each part is read once, and only its wanted rows are sent.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "job/shard.h"
#include "job/slice.h"
#include "kernel/rows.h"
#include "strategy/strategy.h"

/* A read of rows: the ids for each part of axis 0, and the rows that are read. */
typedef struct lookup {
    ch_var     *v;
    int         n;    /* number of parts of axis 0 */
    ch_tensor **ids;  /* ids for each part; NULL: no row of this part */
    ch_tensor **rows; /* rows of each part, in the order of its ids */
} lookup;

static int64_t rows_of(const ch_var *v)
{
    return v->shape.dim[0];
}

static ch_shape row_shape(const ch_var *v)
{
    ch_shape row = v->shape;

    memmove(row.dim, row.dim + 1, (size_t)(row.rank - 1) * sizeof(row.dim[0]));
    row.rank--;
    return row;
}

/* Allocates the lists. The caller must call end_lookup, also on an error. */
static ch_status begin_lookup(ch_var *v, lookup *a)
{
    *a = (lookup){.v = v, .n = ch__layout_parts_of(v->layout, 0)};
    a->ids = ch__calloc((size_t)a->n, sizeof(ch_tensor *));
    a->rows = ch__calloc((size_t)a->n, sizeof(ch_tensor *));
    return a->ids == NULL || a->rows == NULL ? ch__fail_memory("rows") : CH_OK;
}

static void end_lookup(lookup *a)
{
    for (int i = 0; a->ids != NULL && a->rows != NULL && i < a->n; i++) {
        ch_tensor_unref(a->ids[i]);
        ch_tensor_unref(a->rows[i]);
    }
    ch__free(a->ids);
    ch__free(a->rows);
}

static ch_status read_rows(lookup *a)
{
    return a->v->strategy->var_ops->gather(a->v, a->ids, a->rows);
}

/* ---- rows by ids ---- */

/* Returns an error unless rows of v can be read here. */
static ch_status check(ch_var *v, const char *call)
{
    ch_status rc = ch__var_check_outside(v, "ch_gather");

    if (rc == CH_OK && v->shape.rank == 0)
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s of %s: a scalar has no rows", call, v->name);
    if (rc == CH_OK && v->dtype == CH_STR)
        rc = ch__fail(CH_UNIMPLEMENTED, "%s of %s: not implemented for strings; use ch_var_get",
                      call, v->name);
    return rc;
}

/* Returns INVALID_ARGUMENT with the first id that is out of range. */
static ch_status check_ids(const ch_var *v, const ch_id_split *s, const ch_tensor *ids)
{
    int64_t at = ch__id_split_first_invalid(s);

    if (at < 0)
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT,
                    "id %lld at position %lld is not in [0, %lld), the rows of table %s",
                    (long long)ch__id(ch__ids(ids->data, ids->dtype == CH_I64), at),
                    (long long)at, (long long)rows_of(v), v->name);
}

/* Reads the rows of contiguous ids. Equal ids are read once. */
static ch_status look_up(ch_var *v, ch_tensor *ids, ch_tensor **out)
{
    ch_id_split *s = NULL;
    lookup       a;
    ch_status    rc = begin_lookup(v, &a);

    if (rc == CH_OK)
        rc = ch__id_split_new(&s);
    if (rc == CH_OK)
        rc = ch__id_split(s, ids, rows_of(v), a.n);
    if (rc == CH_OK)
        rc = check_ids(v, s, ids);
    for (int i = 0; i < a.n && rc == CH_OK; i++)
        rc = ch__id_split_lookup_ids(s, i, &a.ids[i]);
    if (rc == CH_OK)
        rc = read_rows(&a);
    if (rc == CH_OK)
        rc = ch__id_split_lookup_rows(s, v->dtype, row_shape(v), a.rows, out);
    ch__id_split_free(s);
    end_lookup(&a);
    return rc;
}

ch_status ch_var_lookup(ch_var *v, ch_tensor *ids, ch_tensor **out)
{
    const char *call = "lookup";
    ch_tensor  *whole = NULL;
    ch_status   rc = ch__check_not_null(call, "the variable", v, "out", out);

    if (rc == CH_OK)
        rc = check(v, call);
    if (rc == CH_OK && (ids == NULL || (ids->dtype != CH_I32 && ids->dtype != CH_I64)))
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s in %s: ids are %s, want i32 or i64", call,
                      v->name, ids != NULL ? ch_dtype_name(ids->dtype) : "NULL");
    if (rc == CH_OK)
        rc = ch_tensor_contiguous(ids, &whole);
    if (rc != CH_OK)
        return rc;
    rc = look_up(v, whole, out);
    ch_tensor_unref(whole);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "lookup in %s", v->name);
}

/* ---- rows by a slice ---- */

/* Makes a tensor of the row numbers; *out is unchanged if there are none. */
static ch_status list_ids(ch_slice_range of, ch_tensor **out)
{
    int64_t  *to;
    ch_status rc;

    if (of.count == 0)
        return CH_OK;
    rc = ch_tensor_new(CH_I64, ch_shape_of(of.count), out);
    if (rc != CH_OK)
        return rc;
    to = ch_tensor_data_mut(*out);
    for (int64_t k = 0; k < of.count; k++)
        to[k] = of.begin + k * of.step;
    return CH_OK;
}

/* Copies the rows of each part into the result. The rows of a part are contiguous there. */
static ch_status join_rows(const lookup *a, ch_slice_range all, ch_tensor **out)
{
    ch_shape  shape = a->v->shape;
    ch_status rc;

    shape.dim[0] = all.count;
    rc = ch_tensor_new(a->v->dtype, shape, out);
    for (int i = 0; i < a->n && rc == CH_OK; i++) {
        ch_slice_range of = ch__slice_shard(all, rows_of(a->v), a->n, i);

        if (of.count > 0)
            memcpy((*out)->data +
                       (size_t)of.at * (ch_tensor_bytes(a->rows[i]) / (size_t)of.count),
                   a->rows[i]->data, ch_tensor_bytes(a->rows[i]));
    }
    return rc;
}

/* Reads the rows of a slice. */
static ch_status pick(ch_var *v, ch_slice_range all, ch_tensor **out)
{
    lookup    a;
    ch_status rc = begin_lookup(v, &a);

    for (int i = 0; i < a.n && rc == CH_OK; i++)
        rc = list_ids(ch__slice_shard(all, rows_of(v), a.n, i), &a.ids[i]);
    if (rc == CH_OK)
        rc = read_rows(&a);
    if (rc == CH_OK)
        rc = join_rows(&a, all, out);
    end_lookup(&a);
    return rc;
}

ch_status ch_var_slice(ch_var *v, int64_t start, int64_t stop, int64_t step, ch_tensor **out)
{
    const ch_slice_bounds b = {start, stop, start != CH_SLICE_END, stop != CH_SLICE_END, step};
    ch_slice_range        all;
    ch_status             rc = ch__check_not_null("slice", "the variable", v, "out", out);

    if (rc == CH_OK)
        rc = check(v, "slice");
    if (rc != CH_OK)
        return rc;
    rc = ch__slice_rows(rows_of(v), &b, &all);
    if (rc == CH_OK)
        rc = pick(v, all, out);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "slice of %s", v->name);
}

ch_status ch_var_row(ch_var *v, int64_t index, ch_tensor **out)
{
    int        shard;
    int64_t    row;
    ch_tensor *one = NULL;
    ch_status  rc = ch__check_not_null("row", "the variable", v, "out", out);

    if (rc == CH_OK)
        rc = check(v, "row");
    if (rc != CH_OK)
        return rc;
    rc = ch__slice_row(rows_of(v), 1, index, &shard, &row);
    if (rc == CH_OK)
        rc = pick(v, (ch_slice_range){.begin = row, .step = 1, .count = 1}, &one);
    if (rc == CH_OK)
        rc = ch_tensor_reshape(one, row_shape(v), out);
    ch_tensor_unref(one);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "row of %s", v->name);
}

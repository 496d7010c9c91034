/* strategy/var_rows.c -- rows of variables, for the program: of the shards that have them, each asked once.
 *
 * What is asked of the shards are ids, counted from a shard's first row. Along another axis than the first every shard has a piece of
 * each row: all are asked for the same ids, and the pieces are put together. A variable of this process is one shard, that is here.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "job/message.h"
#include "job/shard.h"
#include "job/slice.h"
#include "kernel/rows.h"
#include "strategy/parameter_server.h"

/* ---- asking ---- */

typedef struct asked {
    ch_var   *v;
    ch_layout l; /* n 1: it is whole, or of this process */
    int       n; /* those that rows are cut over: 1 where each shard has a piece of every row */
    ch_tensor **ids;  /* of each of those; NULL: none are asked for */
    ch_tensor **part; /* the rows that each gave */
} asked;

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

static ch_status begin(ch_var *v, asked *a)
{
    const ch_ps_place *p = v->away;

    *a = (asked){.v = v, .l = ch__layout_along(p != NULL ? p->axis : 0, p != NULL ? p->n : 1)};
    a->n = ch__layout_axis(a->l) == 0 ? ch__layout_parts(a->l) : 1;
    a->ids = ch__calloc((size_t)a->n, sizeof(ch_tensor *));
    a->part = ch__calloc((size_t)a->n, sizeof(ch_tensor *));
    return a->ids == NULL || a->part == NULL ? ch__fail_memory("rows") : CH_OK;
}

static void end(asked *a)
{
    for (int i = 0; a->ids != NULL && a->part != NULL && i < a->n; i++) {
        ch_tensor_unref(a->ids[i]);
        ch_tensor_unref(a->part[i]);
    }
    ch__free(a->ids);
    ch__free(a->part);
}

static ch_status speak_rows(const ch_ps_store *s, ch_tensor *ids, ch_parcel **out)
{
    Cohort__PsRows m;
    uint64_t       number = s->number;

    cohort__ps_rows__init(&m);
    m.n_variables = 1;
    m.variables = &number;
    (void)ch_tensor_ref(ids);
    return ch__speak(CH_PS_ROWS, &m.base, 1, &ids, out);
}

static ch_status check_rows(const asked *a, int shard, const ch_tensor *ids, const ch_parcel *p)
{
    ch_shape want = ch__layout_shape(a->l, a->v->shape, shard);

    want.dim[0] = ids->shape.dim[0];
    return p->n_tensors == 1 && p->tensor[0]->dtype == a->v->dtype &&
                   ch_shape_equal(p->tensor[0]->shape, want)
               ? CH_OK
               : ch__fail(CH_INTERNAL, "a server gave other rows than were asked for");
}

/* The shards that have any of the rows; `given` gets what they answer. */
static ch_status ask(const asked *a, ch_tensor **given)
{
    const ch_ps_place *p = a->v->away;
    size_t             most = (size_t)p->n;
    ch_parcel        **parcel = ch__calloc(2 * most, sizeof(ch_parcel *));
    ch_parcel        **answer = parcel != NULL ? parcel + most : NULL;
    int               *server = ch__calloc(2 * most, sizeof(int));
    int               *shard = server != NULL ? server + most : NULL;
    ch_status          rc = parcel == NULL || server == NULL ? ch__fail_memory("rows") : CH_OK;
    int                n = 0;

    for (int i = 0; i < p->n && rc == CH_OK; i++) {
        ch_tensor *ids = a->ids[a->n > 1 ? i : 0];

        if (ids == NULL)
            continue;
        server[n] = p->store[i]->server;
        shard[n] = i;
        rc = speak_rows(p->store[i], ids, &parcel[n]);
        n += rc == CH_OK;
    }
    if (rc == CH_OK && n > 0)
        rc = ch__chief_ask(p->store[0]->ps->chief, n, server, parcel, answer);
    else
        for (int k = 0; k < n; k++)
            ch__parcel_unref(parcel[k]);
    for (int k = 0; k < n && rc == CH_OK; k++) {
        rc = check_rows(a, shard[k], a->ids[a->n > 1 ? shard[k] : 0], answer[k]);
        if (rc == CH_OK)
            given[shard[k]] = ch_tensor_ref(answer[k]->tensor[0]);
    }
    for (int k = 0; answer != NULL && k < n; k++)
        ch__parcel_unref(answer[k]);
    ch__free(parcel);
    ch__free(server);
    return rc;
}

/* Every shard's piece of the rows becomes the rows. */
static ch_status ask_pieces(asked *a)
{
    ch_tensor **piece = ch__calloc((size_t)ch__layout_parts(a->l), sizeof(ch_tensor *));
    ch_status   rc = piece == NULL ? ch__fail_memory("rows") : ask(a, piece);

    if (rc == CH_OK && a->ids[0] != NULL)
        rc = ch__layout_join(a->l, piece, &a->part[0]);
    for (int i = 0; piece != NULL && i < ch__layout_parts(a->l); i++)
        ch_tensor_unref(piece[i]);
    ch__free(piece);
    return rc;
}

static ch_status take_here(asked *a)
{
    ch_tensor *whole = NULL;
    ch_shape   shape = a->v->shape;
    ch_status  rc = a->ids[0] != NULL ? ch__var_get(a->v, &whole) : CH_OK;

    if (rc != CH_OK || a->ids[0] == NULL)
        return rc;
    shape.dim[0] = a->ids[0]->shape.dim[0];
    rc = ch_tensor_new(a->v->dtype, shape, &a->part[0]);
    if (rc == CH_OK)
        ch__rows_gather((ch_ids){a->ids[0]->data, true}, 0, shape.dim[0], whole->data,
                        rows_of(a->v), (int64_t)ch_tensor_bytes(whole) / rows_of(a->v),
                        a->part[0]->data);
    ch_tensor_unref(whole);
    return rc;
}

static ch_status ask_all(asked *a)
{
    if (a->v->away == NULL)
        return take_here(a);
    return ch__layout_axis(a->l) == 0 ? ask(a, a->part) : ask_pieces(a);
}

/* ---- rows by their numbers ---- */

static ch_status check(ch_var *v, const char *call)
{
    ch_status rc = ch__var_check_outside(v, "ch_gather");

    if (rc == CH_OK && v->shape.rank == 0)
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s of %s: a scalar has no rows", call, v->name);
    if (rc == CH_OK && v->dtype == CH_STR)
        rc = ch__fail(CH_UNIMPLEMENTED,
                      "%s of %s: it has strings; ch_var_get gives all of them", call, v->name);
    return rc;
}

static ch_status check_ids(const ch_var *v, const ch_id_split *s, const ch_tensor *ids)
{
    int64_t at = ch__id_split_stray(s);

    if (at < 0)
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT,
                    "id %lld at position %lld is not in [0, %lld), the rows of table %s",
                    (long long)ch__id((ch_ids){ids->data, ids->dtype == CH_I64}, at),
                    (long long)at, (long long)rows_of(v), v->name);
}

static ch_status look_up(ch_var *v, ch_tensor *ids, ch_tensor **out)
{
    ch_id_split *s = NULL;
    asked        a;
    ch_status    rc = begin(v, &a);

    if (rc == CH_OK)
        rc = ch__id_split_new(&s);
    if (rc == CH_OK)
        rc = ch__id_split(s, ids, rows_of(v), a.n);
    if (rc == CH_OK)
        rc = check_ids(v, s, ids);
    for (int i = 0; i < a.n && rc == CH_OK; i++)
        rc = ch__id_split_asked(s, i, &a.ids[i]);
    if (rc == CH_OK)
        rc = ask_all(&a);
    if (rc == CH_OK)
        rc = ch__id_split_spread(s, v->dtype, row_shape(v), a.part, out);
    ch__id_split_free(s);
    end(&a);
    return rc;
}

ch_status ch_var_lookup(ch_var *v, ch_tensor *ids, ch_tensor **out)
{
    const char *call = "lookup";
    ch_tensor  *whole = NULL;
    ch_status   rc = ch__want_given(call, "the variable", v, "out", out);

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

static ch_status number(ch_picked of, ch_tensor **out)
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

/* They lie side by side in the result. */
static ch_status put_together(const asked *a, ch_picked all, ch_tensor **out)
{
    ch_shape  shape = a->v->shape;
    ch_status rc;

    shape.dim[0] = all.count;
    rc = ch_tensor_new(a->v->dtype, shape, out);
    for (int i = 0; i < a->n && rc == CH_OK; i++) {
        ch_picked of = ch__slice_shard(all, rows_of(a->v), a->n, i);

        if (of.count > 0)
            memcpy((*out)->data +
                       (size_t)of.at * (ch_tensor_bytes(a->part[i]) / (size_t)of.count),
                   a->part[i]->data, ch_tensor_bytes(a->part[i]));
    }
    return rc;
}

static ch_status pick(ch_var *v, ch_picked all, ch_tensor **out)
{
    asked     a;
    ch_status rc = begin(v, &a);

    for (int i = 0; i < a.n && rc == CH_OK; i++)
        rc = number(ch__slice_shard(all, rows_of(v), a.n, i), &a.ids[i]);
    if (rc == CH_OK)
        rc = ask_all(&a);
    if (rc == CH_OK)
        rc = put_together(&a, all, out);
    end(&a);
    return rc;
}

ch_status ch_var_slice(ch_var *v, int64_t start, int64_t stop, int64_t step, ch_tensor **out)
{
    const ch_bounds b = {start, stop, start != CH_SLICE_END, stop != CH_SLICE_END, step};
    ch_picked       all;
    ch_status       rc = ch__want_given("slice", "the variable", v, "out", out);

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
    ch_status  rc = ch__want_given("row", "the variable", v, "out", out);

    if (rc == CH_OK)
        rc = check(v, "row");
    if (rc != CH_OK)
        return rc;
    rc = ch__slice_row(rows_of(v), 1, index, &shard, &row);
    if (rc == CH_OK)
        rc = pick(v, (ch_picked){.begin = row, .step = 1, .count = 1}, &one);
    if (rc == CH_OK)
        rc = ch_tensor_reshape(one, row_shape(v), out);
    ch_tensor_unref(one);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "row of %s", v->name);
}

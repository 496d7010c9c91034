/* graph/dims.c -- sizes with symbols, and the helper functions of shape rules.
 *
 * Declared in graph/node.h and graph/op.h, used by the `infer` functions of ops, and by all of
 * graph/ for arithmetic, comparison and printing of sizes. Symbol 1 is printed as "rows",
 * symbol n as "sn".
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "graph/graph.h"
#include "tensor/print.h"

bool ch__dims_same(const ch_dims *a, const ch_dims *b)
{
    if (a->rank != b->rank)
        return false;
    for (int i = 0; i < a->rank; i++)
        if (!ch__dim_same(a->dim[i], b->dim[i]))
            return false;
    return true;
}

ch_dims ch__dims_of(ch_shape s)
{
    ch_dims d = {.rank = s.rank}; /* shape rules reject an invalid rank */

    for (int i = 0; i < s.rank && i < CH_MAX_RANK; i++)
        d.dim[i] = ch__dim(s.dim[i]);
    return d;
}

ch_shape ch__dims_shape(const ch_dims *d)
{
    ch_shape s = {.rank = d->rank};

    for (int i = 0; i < d->rank; i++)
        s.dim[i] = d->dim[i].sym != 0 ? -1 : d->dim[i].n;
    return s;
}

bool ch__dims_product(const ch_dims *d, int from, int to, ch_dim *out)
{
    ch_dim p = ch__dim(1);

    for (int i = from; i < to; i++) {
        if (d->dim[i].sym != 0 && p.sym != 0)
            return false;
        if (!ch__mul_size(p.n, d->dim[i].n, &p.n))
            return false;
        if (d->dim[i].sym != 0)
            p.sym = d->dim[i].sym;
    }
    *out = p;
    return true;
}

ch_shape ch__shape(const ch_node *n)
{
    return ch__dims_shape(&n->dims);
}

int64_t ch__count(const ch_node *n)
{
    return ch_shape_count(ch__shape(n));
}

int64_t ch__bytes(const ch_node *n)
{
    return ch__count(n) * (int64_t)ch_dtype_bytes(n->dtype);
}

bool ch__axis(int64_t axis, int rank, int *out)
{
    if (axis < -rank || axis >= rank)
        return false;
    *out = (int)(axis < 0 ? axis + rank : axis);
    return true;
}

static void print_dim(ch_text *t, ch_dim d)
{
    if (d.sym == 0 || d.n != 1)
        ch__text_add(t, "%lld%s", (long long)d.n, d.sym != 0 ? "*" : "");
    if (d.sym == 1)
        ch__text_add(t, "rows");
    else if (d.sym > 1)
        ch__text_add(t, "s%d", d.sym);
}

int ch__dims_print(const ch_dims *d, char *text, size_t size)
{
    ch_text t = ch__text(text, size);

    ch__text_add(&t, "(");
    for (int i = 0; i < d->rank; i++) {
        if (i > 0)
            ch__text_add(&t, ", ");
        print_dim(&t, d->dim[i]);
    }
    ch__text_add(&t, ")");
    return ch__text_length(&t);
}

const char *ch__dim_text(const ch_infer *c, ch_dim d)
{
    static _Thread_local char ring[4][32];
    static _Thread_local int  next;
    char                     *text = ring[next++ & 3];
    ch_text                   t = ch__text(text, sizeof(ring[0]));

    (void)c;
    print_dim(&t, d);
    return text;
}

const char *ch__type_text(ch_dtype dtype, const ch_dims *d)
{
    static _Thread_local char ring[4][192];
    static _Thread_local int  next;
    char                     *text = ring[next++ & 3];
    int used = snprintf(text, sizeof(ring[0]), "%s", ch_dtype_name(dtype));

    ch__dims_print(d, text + used, sizeof(ring[0]) - (size_t)used);
    return text;
}

ch_status ch__infer_dims(ch_infer *c, int i, ch_dtype dtype, const ch_dims *dims)
{
    if (i < 0 || i >= CH_MAX_OUT)
        return ch__infer_fail(c, "%d outputs, want at most %d", i + 1, CH_MAX_OUT);
    if (dims->rank < 0 || dims->rank > CH_MAX_RANK)
        return ch__infer_fail(c, "the result would have rank %d, want 0 to %d", dims->rank,
                              CH_MAX_RANK);
    for (int k = 0; k < dims->rank; k++)
        if (dims->dim[k].n < 0)
            return ch__infer_fail(c, "axis %d of the result would have %lld elements", k,
                                  (long long)dims->dim[k].n);
    c->out[i] = *dims;
    c->out_dtype[i] = dtype;
    if (i >= c->n_out)
        c->n_out = i + 1;
    return CH_OK;
}

ch_status ch__infer_out(ch_infer *c, int i, ch_dtype dtype, int rank, const ch_dim *dim)
{
    ch_dims d = {.rank = rank};

    if (rank < 0 || rank > CH_MAX_RANK)
        return ch__infer_fail(c, "the result would have rank %d, want at most %d", rank,
                              CH_MAX_RANK);
    for (int k = 0; k < rank; k++)
        d.dim[k] = dim[k];
    return ch__infer_dims(c, i, dtype, &d);
}

ch_status ch__infer_like(ch_infer *c, int i, int j)
{
    return ch__infer_dims(c, i, c->dtype[j], &c->in[j]);
}

ch_status ch__infer_fail(const ch_infer *c, const char *format, ...)
{
    char    why[512], what[512], name[160];
    ch_text t = ch__text(what, sizeof(what));
    va_list args;

    va_start(args, format);
    vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    for (int i = 0; i < c->n_in && i < 6; i++) {
        char dims[160];

        ch__dims_print(&c->in[i], dims, sizeof(dims));
        ch__text_add(&t, "%s%s%s", i > 0 ? ", " : "", ch_dtype_name(c->dtype[i]), dims);
    }
    return ch__fail(CH_INVALID_ARGUMENT, "%s(%s%s): %s",
                    ch__call_name(c->op, c->attrs, name, sizeof(name)), what,
                    c->n_in > 6 ? ", ..." : "", why);
}

ch_status ch__infer_want_float(const ch_infer *c, int i)
{
    if (ch_dtype_is_float(c->dtype[i]))
        return CH_OK;
    return ch__infer_fail(c, "input %d is %s, want a float type; cast it first", i,
                          ch_dtype_name(c->dtype[i]));
}

ch_status ch__infer_want_ids(const ch_infer *c, int i)
{
    if (c->dtype[i] == CH_I32 || c->dtype[i] == CH_I64)
        return CH_OK;
    return ch__infer_fail(c, "input %d holds ids and is %s, want i32 or i64", i,
                          ch_dtype_name(c->dtype[i]));
}

ch_status ch__infer_want_rank(const ch_infer *c, int i, int rank)
{
    if (c->in[i].rank == rank)
        return CH_OK;
    return ch__infer_fail(c, "input %d has rank %d, want %d", i, c->in[i].rank, rank);
}

ch_status ch__infer_want_same(const ch_infer *c)
{
    for (int i = 1; i < c->n_in; i++)
        if (c->dtype[i] != c->dtype[0])
            return ch__infer_fail(c, "inputs 0 and %d are %s and %s; cast one of them", i,
                                  ch_dtype_name(c->dtype[0]), ch_dtype_name(c->dtype[i]));
    return CH_OK;
}

ch_status ch__infer_want_number(const ch_infer *c, ch_dim d)
{
    if (d.sym == 0)
        return CH_OK;
    ch__graph_root(c->graph)->wants_numbers = true;
    return ch__infer_fail(c, "the op needs size %s as a number", ch__dim_text(c, d));
}

/* Merges size b into *a by the rules of numpy. A symbol equals only itself, because the meaning
 * of a graph must not depend on whether a batch has a single row. */
static bool broadcast_dim(ch_dim *a, ch_dim b)
{
    if (ch__dim_same(*a, b) || ch__dim_is(b, 1))
        return true;
    if (!ch__dim_is(*a, 1))
        return false;
    *a = b;
    return true;
}

ch_status ch__infer_broadcast(const ch_infer *c, int from, int to, ch_dims *out)
{
    ch_dims r = {0};

    for (int i = from; i < to; i++)
        if (c->in[i].rank > r.rank)
            r.rank = c->in[i].rank;
    for (int k = 0; k < r.rank; k++)
        r.dim[k] = ch__dim(1);
    for (int i = from; i < to; i++) {
        int skip = r.rank - c->in[i].rank;

        for (int k = 0; k < c->in[i].rank; k++)
            if (!broadcast_dim(&r.dim[skip + k], c->in[i].dim[k]))
                return ch__infer_fail(
                    c, "sizes %s and %s do not fit together (axis %d of input %d)",
                    ch__dim_text(c, r.dim[skip + k]), ch__dim_text(c, c->in[i].dim[k]), k, i);
    }
    *out = r;
    return CH_OK;
}

ch_dim ch__infer_symbol(ch_infer *c)
{
    return (ch_dim){1, ++ch__graph_root(c->graph)->n_symbols};
}

ch_dim ch__infer_add(ch_infer *c, ch_dim a, ch_dim b)
{
    if (ch__dim_is(a, 0) || (a.n == 0))
        return b;
    if (b.n == 0)
        return a;
    if (a.sym == b.sym)
        return (ch_dim){a.n + b.n, a.sym};
    return ch__infer_symbol(c);
}

/* job/shard.c -- variables in shards: sizes, graphs, values that lie along them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/shard.h"

#include "graph/extract.h"
#include "tensor/tensor.h"

/* ---- sizes ---- */

int64_t ch__shard_begin(int64_t size, int n, int i)
{
    int64_t base = size / n, more = size % n;

    return i * base + (i < more ? i : more);
}

int ch__shard_of(int64_t size, int n, int64_t row)
{
    int64_t base = size / n, more = size % n;

    if (row < more * (base + 1))
        return (int)(row / (base + 1));
    return (int)((row - more) / base); /* base is not 0: row is in range */
}

ch_shape ch__shard_shape(ch_layout l, ch_shape whole, int i)
{
    int64_t size = whole.rank > l.axis ? whole.dim[l.axis] : 0;

    if (l.n > 1 && whole.rank > l.axis)
        whole.dim[l.axis] = ch__shard_begin(size, l.n, i + 1) - ch__shard_begin(size, l.n, i);
    return whole;
}

/* ---- graphs ---- */

/* The axis of a value of this rank that lies along the variable's, counted from the last; -1: it has none. */
static int axis_in(ch_layout l, int rank, int of_rank)
{
    int axis = l.axis - (of_rank - rank);

    return axis >= 0 ? axis : -1;
}

/* The sizes that inputs lie along: those of the variable, of which a slot may have a number for each row. */
static ch_shape widest(const ch_graph *g)
{
    ch_shape shape = g->resource[0].shape;

    for (int i = 1; i < g->n_resources; i++)
        if (g->resource[i].shape.rank > shape.rank)
            shape = g->resource[i].shape;
    return shape;
}

ch_shard_role ch__shard_role(ch_shard_role role, ch_layout l)
{
    if (l.n == 1 || (l.axis > 0 && role == CH_SHARD_IDS))
        return CH_SHARD_WHOLE;
    return l.axis > 0 && role == CH_SHARD_ROWS ? CH_SHARD_CUT : role;
}

/* What an input looks like that a shard gets; ids of each list are as many as they are. */
static ch_dims shard_dims(const ch_graph *g, const ch_route_input *in, ch_layout l, int k,
                          int i)
{
    ch_dims       d = g->input[k]->dims;
    ch_shape      whole = widest(g);
    ch_shard_role role = ch__shard_role(in[k].role, l);
    int           axis = axis_in(l, d.rank, whole.rank);

    if (role == CH_SHARD_CUT && axis >= 0 && ch__dim_is(d.dim[axis], whole.dim[l.axis]))
        d.dim[axis] = ch__dim(ch__shard_shape(l, whole, i).dim[l.axis]);
    if (role == CH_SHARD_IDS || role == CH_SHARD_ROWS)
        d.dim[0] = (ch_dim){1, g->n_symbols + 1 + (role == CH_SHARD_IDS ? k : in[k].ids)};
    return d;
}

ch_status ch__shard_graph(const ch_graph *g, const ch_route_input *in, ch_layout l, int i,
                          ch_graph **out)
{
    ch_arena        a = {0};
    size_t          n_in = (size_t)g->n_inputs + 1, n_out = (size_t)g->n_outputs + 1;
    size_t          n_own = (size_t)g->n_resources + 1;
    unsigned char  *take = ch__arena_alloc(&a, (size_t)g->n_values + 1);
    const ch_node **result = ch__arena_alloc(&a, n_out * sizeof(*result));
    const ch_node **input = ch__arena_alloc(&a, n_in * sizeof(*input));
    ch_dims        *dims = ch__arena_alloc(&a, n_in * sizeof(*dims));
    ch_shape       *shape = ch__arena_alloc(&a, n_own * sizeof(*shape));
    int            *own = ch__arena_alloc(&a, n_own * sizeof(*own));
    ch_extract      e = {.name = g->name,
                         .take = take,
                         .n_in = g->n_inputs,
                         .n_out = g->n_outputs,
                         .in = input,
                         .out = result,
                         .n_resources = g->n_resources,
                         .resource = own,
                         .in_dims = dims,
                         .shape = shape};
    ch_status       rc = CH_OK;

    if (take == NULL || result == NULL || input == NULL || dims == NULL || shape == NULL ||
        own == NULL)
        rc = ch__fail_memory("the graph of a shard");
    for (const ch_node *n = g->first; rc == CH_OK && n != NULL; n = n->next)
        take[n->id] = n->op != ch__roles.input && n->op != ch__roles.read;
    for (int k = 0; rc == CH_OK && k < g->n_inputs; k++) {
        input[k] = g->input[k];
        dims[k] = shard_dims(g, in, l, k, i);
    }
    for (int k = 0; rc == CH_OK && k < g->n_outputs; k++)
        result[k] = g->output[k].node;
    for (int k = 0; rc == CH_OK && k < g->n_resources; k++) {
        own[k] = k;
        shape[k] = ch__shard_shape(l, g->resource[k].shape, i);
    }
    if (rc == CH_OK)
        rc = ch__graph_extract(g, &e, out);
    if (rc == CH_OK)
        (*out)->n_symbols = g->n_symbols + g->n_inputs;
    ch__arena_drop(&a);
    return rc;
}

/* ---- values that lie along a variable ---- */

ch_status ch__shard_cut(ch_tensor *t, ch_layout l, ch_shape whole, int i, ch_tensor **out)
{
    int        axis = axis_in(l, t->shape.rank, whole.rank);
    ch_tensor *view = NULL;
    ch_status  rc;

    if (l.n == 1 || axis < 0 || t->shape.dim[axis] != whole.dim[l.axis]) {
        *out = ch_tensor_ref(t);
        return CH_OK;
    }
    rc = ch_tensor_slice(t, axis, ch__shard_begin(whole.dim[l.axis], l.n, i),
                         ch__shard_begin(whole.dim[l.axis], l.n, i + 1), 1, &view);
    if (rc == CH_OK)
        rc = ch_tensor_contiguous(view, out);
    ch_tensor_unref(view);
    return rc;
}

ch_status ch__shard_join(ch_layout l, ch_tensor *const *part, ch_tensor **out)
{
    ch_shape   shape = part[0]->shape;
    ch_tensor *whole = NULL;
    int64_t    at = 0;
    ch_status  rc;

    if (l.n == 1 || l.axis >= shape.rank) {
        *out = ch_tensor_ref(part[0]);
        return CH_OK;
    }
    for (int i = 1; i < l.n; i++)
        shape.dim[l.axis] += part[i]->shape.dim[l.axis];
    rc = ch_tensor_new(part[0]->dtype, shape, &whole);
    for (int i = 0; i < l.n && rc == CH_OK; i++) {
        ch_tensor *view = NULL;
        int64_t    to = at + part[i]->shape.dim[l.axis];

        rc = ch_tensor_slice(whole, l.axis, at, to, 1, &view);
        if (rc == CH_OK)
            rc = ch_tensor_copy(part[i], view);
        ch_tensor_unref(view);
        at = to;
    }
    if (rc == CH_OK)
        *out = whole;
    else
        ch_tensor_unref(whole);
    return rc;
}

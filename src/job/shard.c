/* job/shard.c -- the graph of an update for a shard of its variables (shard.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/shard.h"

#include "graph/extract.h"
#include "tensor/tensor.h"

/* Returns the axis of a value of rank `rank` that is aligned with the sharded axis of a
 * variable of rank `of_rank`. Axes are aligned from the last. -1: there is none. */
static int aligned_axis(ch_layout l, int rank, int of_rank)
{
    int axis = ch__layout_axis(l) - (of_rank - rank);

    return axis >= 0 ? axis : -1;
}

/* Returns the shape of the resource with the highest rank, the variable itself. Inputs are
 * aligned with it. A slot of an optimizer may have a lower rank: a number for each row. */
static ch_shape variable_shape(const ch_graph *g)
{
    ch_shape shape = g->resource[0].shape;

    for (int i = 1; i < g->n_resources; i++)
        if (g->resource[i].shape.rank > shape.rank)
            shape = g->resource[i].shape;
    return shape;
}

ch_shard_role ch__shard_role(ch_shard_role role, ch_layout l)
{
    int axis = ch__layout_axis(l);

    if (ch__layout_parts(l) == 1 || (axis > 0 && role == CH_SHARD_IDS))
        return CH_SHARD_WHOLE;
    return axis > 0 && role == CH_SHARD_ROWS ? CH_SHARD_SLICE : role;
}

/* Returns the sizes of input k for shard i. The number of ids is a new symbol for each list of
 * ids, because it differs from shard to shard. Rows have the symbol of their ids. */
static ch_dims shard_dims(const ch_graph *g, const ch_plan_input *in, ch_layout l, int k, int i)
{
    ch_dims       d = g->input[k]->dims;
    ch_shape      whole = variable_shape(g);
    ch_shard_role role = ch__shard_role(in[k].role, l);
    int           axis = aligned_axis(l, d.rank, whole.rank);

    if (role == CH_SHARD_SLICE && axis >= 0 &&
        ch__dim_is(d.dim[axis], whole.dim[ch__layout_axis(l)]))
        d.dim[axis] = ch__dim(ch__layout_shape(l, whole, i).dim[ch__layout_axis(l)]);
    if (role == CH_SHARD_IDS || role == CH_SHARD_ROWS)
        d.dim[0] = (ch_dim){1, g->n_symbols + 1 + (role == CH_SHARD_IDS ? k : in[k].ids)};
    return d;
}

ch_status ch__shard_graph(const ch_graph *g, const ch_plan_input *in, ch_layout l, int i,
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
        shape[k] = ch__layout_shape(l, g->resource[k].shape, i);
    }
    if (rc == CH_OK)
        rc = ch__graph_extract(g, &e, out);
    if (rc == CH_OK)
        (*out)->n_symbols = g->n_symbols + g->n_inputs;
    ch__arena_drop(&a);
    return rc;
}

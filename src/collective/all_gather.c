/* collective/all_gather.c -- the op: the rows of all replicas, one after another, on each.
 *
 * Several arrays go together: they have as many rows as each other, here and after it. How many
 * that will be is known once all replicas' sizes are: until then it is a new symbol.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "collective/collective.h"
#include "collective/group.h"
#include "graph/graph.h"
#include "ops/ops.h"

/* Rows of all replicas; a symbol while recording. */
static ch_status rows_of_all(ch_infer *c, ch_dim *out)
{
    int64_t sum = 0;

    if (!c->graph->is_concrete) {
        *out = ch__infer_symbol(c);
        return CH_OK;
    }
    *out = c->in[0].dim[0];
    if (c->n_peers == 0)
        return CH_OK;
    for (int r = 0; r < c->n_peers; r++)
        if (__builtin_add_overflow(sum, c->peer[r][0].dim[0].n, &sum))
            return ch__infer_fail(c, "too many rows");
    *out = ch__dim(sum);
    return CH_OK;
}

static ch_status all_gather_infer(ch_infer *c)
{
    ch_dim    rows;
    ch_status rc = CH_OK;

    if (c->n_in < 1 || c->n_in > CH_MAX_OUT)
        return ch__infer_fail(c, "%d inputs, want 1 to %d", c->n_in, CH_MAX_OUT);
    for (int i = 0; i < c->n_in; i++) {
        if (c->dtype[i] == CH_STR)
            return ch__infer_fail(c, "input %d is string, want numbers", i);
        if (c->in[i].rank < 1 || !ch__dim_same(c->in[i].dim[0], c->in[0].dim[0]))
            return ch__infer_fail(c, "input %d has not as many rows as input 0", i);
        for (int r = 0; r < c->n_peers; r++)
            for (int k = 1; k < c->in[i].rank; k++)
                if (!ch__dim_same(c->in[i].dim[k], c->peer[r][i].dim[k]))
                    return ch__infer_fail(c, "replica %d has another size of axis %d", r, k);
    }
    rc = rows_of_all(c, &rows);
    for (int i = 0; i < c->n_in && rc == CH_OK; i++) {
        ch_dims d = c->in[i];

        d.dim[0] = rows;
        rc = ch__infer_dims(c, i, c->dtype[i], &d);
    }
    return rc;
}

/* Where all rows are this replica's, they are where they are. */
static ch_status all_gather_prepare(const ch_node *n, ch_prep *p)
{
    for (int i = 0; i < n->n_in; i++)
        p->over[i] = i < 32 ? 1u << i : 0;
    return CH_OK;
}

static ch_status all_gather_run(const ch_call *c, ch_piece t)
{
    (void)t;
    for (int i = 0; i < c->node->n_in; i++) {
        size_t    bytes = (size_t)ch__bytes(c->node->in[i]);
        ch_status rc = CH_OK;

        if (c->env->group != NULL)
            rc = ch__group_all_gather(c->env->group, c->env->local, bytes, c->in[i], c->out[i]);
        else if (c->in[i] != c->out[i])
            memcpy(c->out[i], c->in[i], bytes);
        if (rc != CH_OK)
            return rc;
    }
    return CH_OK;
}

static const ch_kernel all_gather_shared = {"shared", ch__always, all_gather_prepare,
                                            all_gather_run, NULL};

const ch_op ch__op_all_gather = {
    .name = "all_gather",
    .version = 1,
    .n_in = -1,
    .n_out = -1,
    .flags = CH_OP_COLLECTIVE | CH_OP_READS_ENV | CH_OP_ALONE_IS_INPUT,
    .infer = all_gather_infer,
    .kernels = (const ch_kernel *const[]){&all_gather_shared, NULL},
};

bool ch__all_gather(int n, ch_node *const *in, ch_node **out)
{
    ch_node *y = ch__node(&ch__op_all_gather, NULL, n, in);

    for (int i = 0; i < n; i++)
        out[i] = y != NULL ? ch__out(y, i) : NULL;
    return y != NULL;
}

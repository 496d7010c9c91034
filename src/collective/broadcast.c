/* collective/broadcast.c -- the op: what replica 0 has, on each.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "collective/collective.h"
#include "collective/group.h"
#include "graph/step.h"
#include "ops/ops.h"

static ch_status broadcast_infer(ch_infer *c)
{
    if (c->dtype[0] == CH_STR)
        return ch__infer_fail(c, "the input is string, want numbers");
    for (int r = 1; r < c->n_peers; r++)
        if (!ch__dims_same(&c->peer[0][0], &c->peer[r][0]))
            return ch__infer_fail(c,
                                  "replica 0 has %s and replica %d has %s; want the same shape",
                                  ch__type_text(c->dtype[0], &c->peer[0][0]), r,
                                  ch__type_text(c->dtype[0], &c->peer[r][0]));
    return ch__infer_like(c, 0, 0);
}

static ch_status broadcast_prepare(const ch_node *n, ch_prep *p)
{
    (void)n;
    p->over[0] = 1;
    return CH_OK;
}

static ch_status broadcast_run(const ch_call *c, ch_piece t)
{
    int64_t bytes = ch__bytes(c->node);

    (void)t;
    if (c->env->group != NULL)
        return ch__group_broadcast(c->env->group, c->env->local, bytes, c->in, c->out[0]);
    if (c->in[0] != c->out[0])
        memcpy(c->out[0], c->in[0], (size_t)bytes);
    return CH_OK;
}

/* All replicas have replica 0's: it gets what all of them ask for, and the others' own count for
 * nothing. */
static void broadcast_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *sum = ch_all_reduce(CH_SUM, dout[0]);
    ch_node *is_first = ch_equal(ch_step_replica_id(s), ch_cast(ch_number(s, 0), CH_I32));

    (void)n;
    din[0] = ch_select(is_first, sum, ch_zeros_like(sum));
}

static const ch_kernel broadcast_shared = {"shared", ch__always, broadcast_prepare,
                                           broadcast_run, NULL};

const ch_op ch__op_broadcast = {
    .name = "broadcast",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .flags = CH_OP_COLLECTIVE | CH_OP_READS_ENV | CH_OP_ALONE_IS_INPUT,
    .infer = broadcast_infer,
    .grad = broadcast_grad,
    .factors = ch__factors_elementwise,
    .kernels = (const ch_kernel *const[]){&broadcast_shared, NULL},
};

ch_node *ch_broadcast(ch_node *x)
{
    return ch__node(&ch__op_broadcast, NULL, 1, &x);
}

/* collective/traffic.c -- the bytes that collectives between replicas will move.
 *
 * The members of a group count the bytes while they move them (ch__count_cross). This file
 * computes the same numbers from a planned call.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "collective/collective.h"
#include "collective/member.h"

static int64_t bytes_of_results(const ch_node *call)
{
    int64_t bytes = 0;

    for (int i = 0; i < call->n_out; i++)
        bytes += ch__bytes(&call[i]);
    return bytes;
}

static int64_t bytes_of_inputs(const ch_node *call)
{
    int64_t bytes = 0;

    for (int i = 0; i < call->n_in; i++)
        bytes += ch__bytes(call->in[i]);
    return bytes;
}

int64_t ch__group_cross_bytes(const void *group, int me, const ch_node *call)
{
    const ch_group *g = group;
    ch_addend       array[CH_MAX_OUT];
    ch_addends      sum;

    if (call->op == &ch__op_all_reduce || call->op == &ch__op_all_reduce_begin) {
        ch__all_reduce_addends(call, array, &sum);
        return ch__cross_bytes(ch__cross_in(g, &sum), g->n, me, &sum);
    }
    if (call->op == &ch__op_all_gather)
        return bytes_of_results(call) - bytes_of_inputs(call);
    if (call->op == &ch__op_reduce_scatter)
        return (g->n - 1) * bytes_of_results(call);
    if (call->op == &ch__op_broadcast)
        return me != 0 ? bytes_of_results(call) : 0;
    if (call->op == &ch__op_reduce_to_first)
        return me == 0 ? (g->n - 1) * bytes_of_results(call) : 0;
    return -1;
}

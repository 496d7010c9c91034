/* strategy/tmp.c -- stands in for what collective/ does not have yet; whoever lands those removes it.   SPDX-License-Identifier: Apache-2.0 */
#include "cohort/cohort.h"
#include "cohort/replica.h"
ch_node *ch_broadcast(ch_node *x)
{
    ch_step *s = ch_node_step(x);
    return ch_all_reduce(
        CH_SUM,
        ch_mul(x, ch_cast(ch_equal(ch_step_replica_id(s), ch_number(s, 0)), ch_node_dtype(x))));
}
ch_node *ch_all_gather(ch_node *x, int a)
{
    (void)a;
    return x;
}

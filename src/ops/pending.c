/* ops/pending.c -- stands in for two functions until the families that own them are there.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ops/ops.h"

__attribute__((weak)) ch_node *ch_add(ch_node *a, ch_node *b);

__attribute__((weak)) ch_node *ch_add(ch_node *a, ch_node *b)
{
    (void)a, (void)b;
    return NULL;
}

__attribute__((weak)) ch_node *ch__unbroadcast(ch_node *d, const ch_node *like)
{
    (void)d, (void)like;
    return NULL;
}

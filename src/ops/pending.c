/* ops/pending.c -- stands in for a function until the family that owns it is there.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ops/ops.h"

__attribute__((weak)) ch_node *ch__unbroadcast(ch_node *d, const ch_node *like)
{
    (void)d, (void)like;
    return NULL;
}

/* collective/collective.h -- the list of collective ops, for src/cohort.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTIVE_COLLECTIVE_H
#define COLLECTIVE_COLLECTIVE_H

#include "graph/op.h"

#define CH_OPS_COLLECTIVE(X) X(all_reduce)

#define CH_OP_DECLARE(name)  extern const ch_op ch__op_##name;
CH_OPS_COLLECTIVE(CH_OP_DECLARE)
#undef CH_OP_DECLARE

#endif

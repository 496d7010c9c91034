/* cohort.c -- the table of all ops, and the ops that graph/ uses itself.
 *
 * Only this file lists every op that a graph can be recorded with: those of ops/ and
 * collective/, and the op of annotations. graph/ does not include their headers:
 * graph/ finds ops by name and version with ch__op_find, and the ops and functions that graph/
 * uses itself in ch__roles (graph/op.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "collective/collective.h"
#include "ops/ops.h"
#include "spmd/annotate.h"

#define CH_OP_ADDRESS(name) &ch__op_##name,
static const ch_op *const op_table[] = {CH_OPS(CH_OP_ADDRESS) CH_OPS_COLLECTIVE(CH_OP_ADDRESS)
                                            CH_OPS_SPMD(CH_OP_ADDRESS) NULL};
#undef CH_OP_ADDRESS

const ch_op *const *ch__op_table(void)
{
    return op_table;
}

const ch_op *ch__op_find(const char *name, int version)
{
    for (const ch_op *const *op = op_table; *op != NULL; op++)
        if ((*op)->version == version && strcmp((*op)->name, name) == 0)
            return *op;
    return NULL;
}

const ch_roles ch__roles = {
    .input = &ch__op_input,
    .constant = &ch__op_constant,
    .read = &ch__op_read,
    .cast = &ch__op_cast,
    .identity = &ch__op_identity,
    .fused = &ch__op_fused,
    .fill_room = &ch__op_fill_room,
    .add = ch__add_gradients,
    .zeros_like = ch_zeros_like,
    .ones_like = ch_ones_like,
    .cast_to = ch__cast_weak,
};

/* test/ops/list_ops.c -- prints a line for each op, for tools/check-ops: its name, the functions
 * of its partition rule, and the reason why it has no rule. Tabs separate the fields.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "graph/op.h"

int main(void)
{
    for (int i = 0; ch__op_table()[i] != NULL; i++) {
        const ch_op *op = ch__op_table()[i];

        printf("%s\t%s\t%s\t%s\t%s\t%s\n", op->name, op->factors != NULL ? "factors" : "",
               op->local != NULL ? "local" : "", op->expand != NULL ? "expand" : "",
               (op->flags & CH_OP_ORIGIN) != 0 ? "origin" : "",
               op->replicated != NULL ? op->replicated : "");
    }
    return 0;
}

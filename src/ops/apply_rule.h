/* ops/apply_rule.h -- what apply and apply_rows share.   SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_APPLY_RULE_H
#define OPS_APPLY_RULE_H

#include "graph/op.h"
#include "kernel/rule.h"

/* Inputs: the variable, ..., a gradient like it at hyper - 1, the numbers at `hyper`, the
 * slots. Outputs: the variable, the slots. The gradient's sizes are the caller's to check. */
ch_status ch__infer_apply(ch_infer *c, const char *name, const ch_rule **rule, int hyper);
/* Each output may be written over its input. */
void ch__apply_over(const ch_rule *r, int hyper, ch_prep *p);
bool ch__hyper_applies(ch_dtype dtype, const void *hyper);

/* Every output is cut as the variable is, and so is input `grad`, or not, if its rows are looked up by the ids before it
 * (`by_id`); the numbers are whole. With `is_whole` elements depend on each other, and nothing may be cut. */
ch_status ch__apply_factors(const ch_node *n, const ch_rule *r, int hyper, bool by_id,
                            bool is_whole, ch_factors *f);

/* Records it; `n` inputs come before the slots, which become the new ones. */
ch_node *ch__apply_node(const void *caller, const ch_op *op, const void *attrs,
                        const ch_rule *rule, int n, ch_node *const *in, ch_node **slot);

#endif

/* ops/apply_rule.h -- functions that the ops apply and apply_rows share (ops/apply.c).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_APPLY_RULE_H
#define OPS_APPLY_RULE_H

#include "graph/op.h"
#include "kernel/rule.h"

/* Shape rule. Inputs: the variable, ..., the gradient (index hyper - 1), the hyperparameters
 * (index `hyper`), the slots. Outputs: the variable, the slots. Sets *rule to the rule of that
 * name. The caller must check the shape of the gradient. */
ch_status ch__infer_apply(ch_infer *c, const char *name, const ch_rule **rule, int hyper);
/* Allows each output to be written over its input. */
void ch__apply_over(const ch_rule *r, int hyper, ch_prep *p);
/* Returns false if CH_HYPER_APPLY is 0: the step must then change nothing. */
bool ch__hyper_applies(ch_dtype dtype, const void *hyper);

/* Partition rule. All outputs and the slots are divided as the variable is. So is the gradient,
 * but with `by_id` its rows must be whole, because the ids in the input before it name rows of
 * the variable. The hyperparameters must be whole. A rule by row needs whole rows. With
 * `is_whole` nothing may be divided, because elements depend on each other. */
ch_status ch__apply_factors(const ch_node *n, const ch_rule *r, int hyper, bool by_id,
                            bool is_whole, ch_factors *f);

/* Records a call with the n inputs `in`, then the slots. Returns the new variable, and replaces
 * `slot` by the new slots (NULL after an error). */
ch_node *ch__apply_node(const void *caller, const ch_op *op, const void *attrs,
                        const ch_rule *rule, int n, ch_node *const *in, ch_node **slot);

#endif

/* train/optimizer.h -- the inside of an optimizer.
 *
 * What it keeps are variables, made when a step that needs them is first recorded: its own
 * ("adam/iterations"), and for each variable that it updates the slots of its rule and
 * others. They are looked up by the variable, so a second recording finds them again.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAIN_OPTIMIZER_H
#define TRAIN_OPTIMIZER_H

#include <stdatomic.h>

#include "cohort/optimizer.h"
#include "ops/apply.h"

/* Variables of the optimizer's own. */
typedef enum ch_opt_own {
    CH_OPT_ITERATIONS, /* i64: steps that were applied */
    CH_OPT_RATE,       /* f32; none with a schedule */
    CH_OPT_SKIPPED,    /* i64: steps with gradients that were not finite */
    CH_OPT_PENDING,    /* i64: gradients in the accumulators */
    CH_OPT_LOSS_SCALE, /* f32 */
    CH_OPT_GOOD,       /* i64: steps since the loss scale changed */
    CH_OPT_OWN
} ch_opt_own;

/* Variables for each that is updated: the slots of the rule, then these. */
enum {
    CH_OPT_MASTER = CH_RULE_SLOTS, /* of a 16-bit variable: its value in f32 */
    CH_OPT_AVERAGE,                /* moving average of the value */
    CH_OPT_SUM,                    /* of gradients, until they are applied */
    CH_OPT_TOUCHED,                /* bool (rows): named by a sparse gradient in the sum */
    CH_OPT_SLOTS
};

typedef struct ch_opt_entry {
    ch_var *var; /* referenced */
    ch_var *slot[CH_OPT_SLOTS];
} ch_opt_entry;

struct ch_optimizer {
    atomic_int      refs;
    char           *name;
    const ch_rule  *rule;
    ch_rule_numbers numbers;
    double          initial; /* of the accumulator */
    double          rate;    /* until its variable is made */
    bool            has_schedule;
    ch_schedule     schedule;
    int             accumulate;
    double          average;
    ch_nonfinite    nonfinite;
    double          loss_scale; /* 0: none */
    bool            is_dynamic;

    ch_var       *own[CH_OPT_OWN];
    ch_opt_entry *entry;
    int           n_entries, cap_entries;
    ch_var      **all; /* in the order in which they were made; referenced */
    int           n_all, cap_all;
};

/* The variables, made if need be: of the optimizer; and slot i of a variable. */
ch_status     ch__opt_own(ch_optimizer *o, ch_strategy *st, ch_opt_own which, ch_var **out);
ch_status     ch__opt_slot(ch_optimizer *o, ch_var *v, int i, ch_var **out);
ch_opt_entry *ch__opt_entry(const ch_optimizer *o, const ch_var *v); /* NULL if there is none */

/* What is computed for a variable: f64 for f64, else f32. */
static inline ch_dtype ch__opt_dtype(const ch_var *v)
{
    return ch_var_dtype(v) == CH_F64 ? CH_F64 : CH_F32;
}

#endif

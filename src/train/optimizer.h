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
    CH_OPT_RATE,       /* f64; none with a schedule */
    CH_OPT_SKIPPED,    /* i64: steps with gradients that were not finite */
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
    bool    was_noted; /* the log knows that its sparse gradients become dense */
} ch_opt_entry;

/* With accumulation: what calls with this list of variables have gathered. A variable may be in
 * several lists; each has sums of its own. */
typedef struct ch_opt_list {
    int           n;
    ch_opt_entry *entry;   /* n: the variables, with the slots CH_OPT_SUM and CH_OPT_TOUCHED */
    ch_var       *pending; /* i64: gradients in the sums */
} ch_opt_list;

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
    ch_opt_list  *list;
    int           n_lists, cap_lists;
    ch_var      **all; /* in the order in which they were made; referenced */
    int           n_all, cap_all;
};

/* INVALID_ARGUMENT for variables that no call can train. */
ch_status ch__opt_check(const ch_optimizer *o, int n, ch_var *const *var);
/* The same variables, each whole: where shards of one are given, all of them are, and that one stands for them. With their
 * gradients, if `d` is not NULL. Checks them as above. (optimizer_shards.c) */
typedef struct ch_opt_wholes {
    int       n;
    ch_var  **var;
    ch_node **d;
} ch_opt_wholes;
ch_status ch__opt_wholes(const ch_optimizer *o, int n, ch_var *const *var, ch_node *const *d,
                         ch_opt_wholes *w);
void      ch__opt_wholes_drop(ch_opt_wholes *w); /* on an error too */
/* The axis along which a variable is cut; -1: it is in one piece. (optimizer_shards.c) */
int ch__opt_cut_axis(ch_var *v);
/* Makes whatever is not there yet and a call with these variables needs, which depends on the
 * options and the variables alone. */
ch_status ch__opt_build(ch_optimizer *o, ch_strategy *st, int n, ch_var *const *var);
/* One variable of the optimizer's own, made if need be. */
ch_status ch__opt_own(ch_optimizer *o, ch_strategy *st, ch_opt_own which, ch_var **out);
/* What was built; NULL if it was not, or is not needed. */
ch_opt_entry *ch__opt_entry(const ch_optimizer *o, const ch_var *v);
ch_opt_list  *ch__opt_list(const ch_optimizer *o, int n, ch_var *const *var);

/* What is computed for a variable: f64 for f64, else f32. */
static inline ch_dtype ch__opt_dtype(const ch_var *v)
{
    return ch_var_dtype(v) == CH_F64 ? CH_F64 : CH_F32;
}

#endif

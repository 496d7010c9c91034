/* train/optimizer.h -- the struct behind ch_optimizer.
 *
 * The state of an optimizer is variables. They are created when a step that needs them is first
 * recorded: the optimizer's own ("adam/iterations") and, for each variable that it updates, the
 * slots of its rule and further slots. A later recording finds them again by the updated
 * variable.
 *
 * optimizer.c creates optimizers, optimizer_vars.c creates and reads their variables,
 * optimizer_step.c records their steps, and optimizer_shards.c joins shards.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAIN_OPTIMIZER_H
#define TRAIN_OPTIMIZER_H

#include <stdatomic.h>

#include "cohort/optimizer.h"
#include "ops/apply.h"

/* The optimizer's own variables; all are scalars. */
typedef enum ch_opt_own {
    CH_OPT_ITERATIONS, /* i64: steps that were applied */
    CH_OPT_RATE,       /* f64; does not exist if there is a schedule */
    CH_OPT_SKIPPED,    /* i64: steps that were skipped because a gradient was not finite */
    CH_OPT_LOSS_SCALE, /* f32 */
    CH_OPT_GOOD,       /* i64: finite steps since the loss scale changed */
    CH_OPT_OWN
} ch_opt_own;

/* Slots of an updated variable: the slots of the rule, then these. */
enum {
    CH_OPT_MASTER = CH_RULE_SLOTS, /* value of a 16-bit variable in f32 */
    CH_OPT_AVERAGE,                /* moving average of the value */
    CH_OPT_SUM,                    /* sum of gradients that are not applied yet */
    CH_OPT_TOUCHED,                /* bool (rows): the row is in a sparse gradient of the sum */
    CH_OPT_SLOTS
};

typedef struct ch_opt_entry {
    ch_var *var; /* referenced */
    ch_var *slot[CH_OPT_SLOTS];
    bool    was_logged; /* it was logged that its sparse gradients become dense */
} ch_opt_entry;

/* With accumulation: the sums of the gradients of calls with this list of variables. A variable
 * may be in several lists; each list has its own sums. */
typedef struct ch_opt_list {
    int n;
    /* The n variables, with the slots CH_OPT_SUM and CH_OPT_TOUCHED. */
    ch_opt_entry *entry;
    ch_var       *pending; /* i64: number of steps in the sums */
} ch_opt_list;

struct ch_optimizer {
    atomic_int      refs;
    char           *name;
    const ch_rule  *rule;
    ch_rule_numbers numbers;
    double          initial; /* initial value of the accumulator */
    double          rate;    /* learning rate until its variable is created */
    bool            has_schedule;
    ch_schedule     schedule;
    /* Number of steps that are summed before the gradients are applied; 1: no accumulation. */
    int          accumulate;
    double       average; /* decay of the moving averages; 0: no averages */
    ch_nonfinite nonfinite;
    double       loss_scale; /* 0: no loss scale */
    bool         is_dynamic; /* the loss scale changes during the training */

    ch_var       *own[CH_OPT_OWN];
    ch_opt_entry *entry;
    int           n_entries, cap_entries;
    ch_opt_list  *list;
    int           n_lists, cap_lists;
    /* All variables of the optimizer, in the order of their creation; referenced. */
    ch_var **all;
    int      n_all, cap_all;
};

/* Returns INVALID_ARGUMENT if the list or a variable in it cannot be trained. */
ch_status ch__opt_check(const ch_optimizer *o, int n, ch_var *const *var);
/* A list of variables in which the shards of a variable are replaced by the variable itself,
 * and their gradients by its gradient. */
typedef struct ch_opt_joined {
    int       n;
    ch_var  **var;
    ch_node **d;
} ch_opt_joined;
/* Joins the shards in a list of variables and, if `d` is not NULL, in the list of their
 * gradients. All shards of a variable must be given. Checks the variables as ch__opt_check
 * does. The caller must drop *w, also on an error. (optimizer_shards.c) */
ch_status ch__opt_join_shards(const ch_optimizer *o, int n, ch_var *const *var,
                              ch_node *const *d, ch_opt_joined *w);
void      ch__opt_joined_drop(ch_opt_joined *w);
/* Returns the axis along which a variable is sharded; -1: it has a single shard.
 * (optimizer_shards.c) */
int ch__opt_shard_axis(ch_var *v);
/* Creates the variables that a call with this list needs and that do not exist yet. They depend
 * on the options and the list only. */
ch_status ch__opt_build(ch_optimizer *o, ch_strategy *st, int n, ch_var *const *var);
/* Returns one of the optimizer's own variables, and creates it if necessary. `out` may be NULL.
 * Borrowed. */
ch_status ch__opt_own(ch_optimizer *o, ch_strategy *st, ch_opt_own which, ch_var **out);
/* Return the slots of a variable, and the sums of a list. NULL if they do not exist. */
ch_opt_entry *ch__opt_entry(const ch_optimizer *o, const ch_var *v);
ch_opt_list  *ch__opt_list(const ch_optimizer *o, int n, ch_var *const *var);

/* Returns the dtype of the arithmetic for a variable: f64 for f64, otherwise f32. */
static inline ch_dtype ch__opt_dtype(const ch_var *v)
{
    return ch_var_dtype(v) == CH_F64 ? CH_F64 : CH_F32;
}

#endif

/* kernel/rule.h -- update rules: how a variable and its slots follow a gradient.
 *
 * Plain arithmetic on pointers, so that whoever holds a variable can call it: the op `apply`,
 * or a server of parameters. Everything is updated in place. What a rule needs beside the
 * arrays are numbers of the run: one vector of CH_HYPERS elements, of the variable's dtype (f32
 * or f64), indexed by ch_hyper. Every rule takes the gradient as g' = g * scale, cut to [-clip,
 * clip]; and first takes decay * var from the variable, but for LAMB, where the decay is part
 * of the update. Where `apply` is 0, a caller calls nothing.
 *
 * Elements do not depend on each other, so arrays may be cut anywhere, with two exceptions:
 * rules `by_row` keep one element of the slot for each row of axis 0 and are cut between rows;
 * rules with norms need those of the whole variable first.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_RULE_H
#define KERNEL_RULE_H

#include "kernel/rows.h"
#include "kernel/simd.h"

typedef enum ch_rule_kind {
    CH_RULE_SGD,
    CH_RULE_MOMENTUM,
    CH_RULE_NESTEROV,
    CH_RULE_ADAGRAD,
    CH_RULE_ADAGRAD_ROWS,
    CH_RULE_RMSPROP,
    CH_RULE_RMSPROP_MOMENTUM,
    CH_RULE_RMSPROP_CENTERED,
    CH_RULE_RMSPROP_CENTERED_MOMENTUM,
    CH_RULE_ADAM,
    CH_RULE_AMSGRAD,
    CH_RULE_ADAMAX,
    CH_RULE_FTRL,
    CH_RULE_LAMB,
    CH_RULES
} ch_rule_kind;

/* The numbers of a run. Which of them a rule reads, its loop in rule_loops.inc says. */
typedef enum ch_hyper {
    CH_HYPER_APPLY, /* 0: nothing changes; so it is for FTRL at a rate of 0 */
    CH_HYPER_SCALE, /* of the gradient */
    CH_HYPER_CLIP,  /* bound of the scaled gradient; infinity: none */
    CH_HYPER_RATE,  /* with the correction of the bias, for Adam and Adamax */
    CH_HYPER_DECAY, /* rate times decay; LAMB: the decay */
    CH_HYPER_BETA1,
    CH_HYPER_REST1, /* 1 - beta1, exact before it is rounded */
    CH_HYPER_BETA2,
    CH_HYPER_REST2,
    CH_HYPER_EPSILON,
    CH_HYPER_MOMENTUM,
    CH_HYPER_POWER, /* FTRL */
    CH_HYPER_L1,
    CH_HYPER_L2,
    CH_HYPER_SHRINK,
    CH_HYPER_RIGHT1, /* LAMB: 1 / (1 - beta1^t) */
    CH_HYPER_RIGHT2,
    CH_HYPERS
} ch_hyper;

#define CH_RULE_SLOTS 3 /* at most */

typedef struct ch_rule {
    ch_rule_kind kind;
    const char  *name; /* also on the wire */
    int          n_slots;
    const char  *slot[CH_RULE_SLOTS];
    bool         is_sparse; /* rows that no id names may be left alone */
    bool         by_row;    /* its slot has one element for each row */
    bool         has_norms;
    bool         has_initial; /* its first slot starts at a number that is chosen, not at 0 */
} ch_rule;

const ch_rule *ch__rule(ch_rule_kind kind);
const ch_rule *ch__rule_find(const char *name); /* NULL if there is none */

/* n elements, of rows of `width`; not for rules with norms. */
void ch__rule_dense(const ch_rule *r, ch_dtype dtype, int64_t n, int64_t width, void *var,
                    const void *grad, void *const *slot, const void *hyper);
/* For those, which is LAMB: slots, and the sums of squares of variable and update, added to
 * norm[2]; then, with the sums over all of it, the variable. */
void ch__rule_norms(ch_dtype dtype, int64_t n, const void *var, const void *grad,
                    void *const *slot, const void *hyper, double *norm);
void ch__rule_finish(ch_dtype dtype, int64_t n, void *var, void *const *slot, const void *hyper,
                     const double *norm);

/* The sum of squares of n elements, in f64. */
double ch__sum_of_squares(ch_dtype dtype, int64_t n, const void *x);

/* ---- rows ---- */

/* Groups of equal ids: a rule is applied once to each, with the sum of its rows in order of
 * position. Threads own ids: see kernel/rows.h. Ids out of range stand for no row. */
typedef struct ch_groups {
    ch_scatter scatter; /* n_ids (below 2^31), n_rows and width; cut sets the rest */
} ch_groups;

/* Rows of a gradient: that of position p is row[which[p]], or row[p] where which.at is NULL;
 * zeros where that is out of range. */
typedef struct ch_grad_rows {
    const void *row;
    ch_ids      which;
    int64_t     n; /* rows that there are */
} ch_grad_rows;

void   ch__groups_cut(ch_groups *g, int tiles);
size_t ch__groups_scratch(const ch_groups *g);
/* First every chunk [0, scatter.chunks), in any order ... */
void ch__groups_sort(const ch_groups *g, ch_ids ids, int chunk, void *scratch);
/* ... then every tile [0, scatter.tiles), in any order. `slot` and `var` are whole arrays. */
void ch__rule_rows(const ch_rule *r, ch_dtype dtype, const ch_groups *g, ch_ids ids,
                   ch_grad_rows grad, void *var, void *const *slot, const void *hyper, int tile,
                   void *scratch);
/* Puts the sum of each group at its first position of `to`, and its id in `to_ids`, of the type
 * of ids; other positions are not written. */
void ch__rows_merge(ch_dtype dtype, const ch_groups *g, ch_ids ids, ch_grad_rows grad,
                    void *to_ids, void *to, int tile, void *scratch);

/* ---- the loops, for each SIMD level ---- */

typedef struct ch_rule_loops {
    void (*update[CH_RULES])(int64_t n, void *var, const void *grad, void *const *slot,
                             const void *hyper);
    /* By row: the sum of squares of the scaled gradient; then the row. */
    double (*squares)(int64_t n, const void *grad, const void *hyper);
    void (*row)(int64_t n, void *var, const void *grad, double accumulated, const void *hyper);
    void (*norms)(int64_t n, const void *var, const void *grad, void *const *slot,
                  const void *hyper, double *norm);
    void (*finish)(int64_t n, void *var, void *const *slot, const void *hyper, double ratio);
    void (*add)(int64_t n, const void *from, void *to); /* to += from */
    double (*sum_squares)(int64_t n, const void *x);
} ch_rule_loops;

typedef struct ch_rule_table {
    ch_rule_loops f32, f64;
} ch_rule_table;

CH_SIMD_DECLARE(ch_rule_table, ch__rule_table)

#endif

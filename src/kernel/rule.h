/* kernel/rule.h -- update rules: how a gradient changes a variable and its slots.
 *
 * Plain arithmetic on pointers, so that every owner of a variable can use it: the op `apply` or
 * a parameter server. All arrays are updated in place. The hyperparameters of the step are a
 * vector of CH_HYPERS elements of the dtype of the variable (f32 or f64), indexed by ch_hyper.
 *
 * Every rule uses the gradient g' = g * scale, clipped to [-clip, clip]. Every rule except LAMB
 * first subtracts decay * var from the variable; in LAMB the decay is part of the update. If
 * `apply` is 0, the caller must not call any rule.
 *
 * Elements are independent, so arrays may be cut anywhere, with two exceptions. A rule with
 * `by_row` keeps a slot element for each row of axis 0 and must be cut between rows. A rule
 * with norms needs the norms of the whole variable first.
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

/* The hyperparameters of a step. The loops in rule_loops.inc show which of them a rule
 * reads. */
typedef enum ch_hyper {
    CH_HYPER_APPLY, /* 0: no change; for FTRL also at a rate of 0 */
    CH_HYPER_SCALE, /* factor of the gradient */
    CH_HYPER_CLIP,  /* bound of the scaled gradient; infinity: none */
    CH_HYPER_RATE,  /* learning rate; with bias correction for Adam and Adamax */
    CH_HYPER_DECAY, /* rate * decay; for LAMB the decay */
    CH_HYPER_BETA1,
    CH_HYPER_REST1, /* 1 - beta1, computed exactly and then rounded */
    CH_HYPER_BETA2,
    CH_HYPER_REST2,
    CH_HYPER_EPSILON,
    CH_HYPER_MOMENTUM,
    CH_HYPER_POWER, /* FTRL */
    CH_HYPER_L1,
    CH_HYPER_L2,
    CH_HYPER_SHRINK,
    CH_HYPER_CORRECTION1, /* LAMB: bias corrections 1 / (1 - beta1^t), 1 / (1 - beta2^t) */
    CH_HYPER_CORRECTION2,
    CH_HYPERS
} ch_hyper;

#define CH_RULE_SLOTS 3 /* at most */

typedef struct ch_rule {
    ch_rule_kind kind;
    const char  *name; /* also used in messages between tasks */
    int          n_slots;
    const char  *slot[CH_RULE_SLOTS];
    bool         is_sparse; /* rows without an id in the gradient may be left unchanged */
    bool         by_row;    /* the slot has an element for each row */
    bool         has_norms;
    bool         has_initial; /* the initial value of the first slot is configurable, not 0 */
} ch_rule;

const ch_rule *ch__rule(ch_rule_kind kind);
const ch_rule *ch__rule_find(const char *name); /* NULL if there is none */

/* Updates n elements in rows of `width`. Not for rules with norms. */
void ch__rule_dense(const ch_rule *r, ch_dtype dtype, int64_t n, int64_t width, void *var,
                    const void *grad, void *const *slot, const void *hyper);
/* For rules with norms (LAMB). ch__rule_norms updates the slots and adds the sums of squares of
 * the variable and of the update to norm[2]. ch__rule_finish updates the variable, with the
 * sums over the whole variable. */
void ch__rule_norms(ch_dtype dtype, int64_t n, const void *var, const void *grad,
                    void *const *slot, const void *hyper, double *norm);
void ch__rule_finish(ch_dtype dtype, int64_t n, void *var, void *const *slot, const void *hyper,
                     const double *norm);

/* Returns the sum of squares of n elements, computed in f64. */
double ch__sum_of_squares(ch_dtype dtype, int64_t n, const void *x);

/* ---- rows ---- */

/* Groups of equal ids. A rule is applied once to each group, with the sum of its rows in order
 * of position. Threads own ids, see kernel/rows.h. An id out of range means no row. */
typedef struct ch_groups {
    /* The caller sets n_ids (below 2^31), n_rows and width; ch__groups_cut sets the rest. */
    ch_scatter scatter;
} ch_groups;

/* The rows of a gradient. The row of position p is row[which[p]], or row[p] if which.at is
 * NULL. If that is out of range, the row is zeros. */
typedef struct ch_grad_rows {
    const void *row;
    ch_ids      which;
    int64_t     n; /* number of rows */
} ch_grad_rows;

void   ch__groups_cut(ch_groups *g, int tiles);
size_t ch__groups_scratch(const ch_groups *g);
/* Sorts a chunk of [0, scatter.chunks). Chunks may be sorted in any order, and must all be
 * sorted before any tile runs. */
void ch__groups_sort(const ch_groups *g, ch_ids ids, int chunk, void *scratch);
/* Updates the rows of a tile of [0, scatter.tiles). Tiles may run in any order. `slot` and
 * `var` are whole arrays. */
void ch__rule_rows(const ch_rule *r, ch_dtype dtype, const ch_groups *g, ch_ids ids,
                   ch_grad_rows grad, void *var, void *const *slot, const void *hyper, int tile,
                   void *scratch);
/* Writes the sum of each group to the first position of the group in `to`, and its id to
 * `to_ids`, which has the type of ids. Other positions are not written. */
void ch__rows_merge(ch_dtype dtype, const ch_groups *g, ch_ids ids, ch_grad_rows grad,
                    void *to_ids, void *to, int tile, void *scratch);

/* ---- the loops, for each SIMD level ---- */

typedef struct ch_rule_loops {
    void (*update[CH_RULES])(int64_t n, void *var, const void *grad, void *const *slot,
                             const void *hyper);
    /* For rules by row: returns the sum of squares of the scaled gradient. */
    double (*squares)(int64_t n, const void *grad, const void *hyper);
    /* For rules by row: updates a row with the accumulated squares. */
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

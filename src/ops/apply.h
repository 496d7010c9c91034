/* ops/apply.h -- ops of optimizers: the list of ops and the functions that record them.
 *
 * A rule (kernel/rule.h) updates a variable with a gradient. Slots are further arrays that a
 * rule keeps for each variable, such as the moments of Adam. `apply` (dense gradient) and
 * `apply_rows` (sparse gradient) take the values of the variable and its slots and return the
 * new values; the planner lets them write over the old values. The hyperparameters of a step
 * are a vector, the result of `hyper`.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_APPLY_H
#define OPS_APPLY_H

#include "graph/op.h"
#include "kernel/hyper.h"

/* clang-format off */
#define CH_OPS_APPLY(X) \
    X(apply) X(apply_norms) X(apply_rows) X(marked_ids) X(hyper) X(all_finite) X(sum_squares) \
    X(merge_rows) X(clear_if) X(round_over) X(round_rows)
/* clang-format on */

/* Returns the new value of var (f32 or f64), and replaces slot[0 .. n_slots - 1] by the new
 * slots. `grad` must have the shape of var. `norms` is the result of ch__apply_norms, for a
 * rule with norms; if NULL, the op computes the norms itself. */
ch_node *ch__apply(ch_rule_kind rule, ch_node *var, ch_node *grad, ch_node *norms,
                   ch_node *hyper, ch_node **slot);
/* Returns the norms, f64(2), that ch__apply needs for a rule with norms: the sums of squares of
 * the variable and of its update. They are sums over elements, so the norms of a variable in
 * shards are the sum over the shards. */
ch_node *ch__apply_norms(ch_rule_kind rule, ch_node *var, ch_node *grad, ch_node *hyper,
                         ch_node *const *slot);
/* Returns true if input k of the op apply_norms is the variable or a slot, false if it is the
 * gradient or the hyperparameters. */
bool ch__norms_reads_variable(int k);
/* Converts bools (rows) to ids, i64 (rows): element i is i if mark[i] is true, otherwise -1. On
 * a shard, ids count from the first row of the shard, as they do in ch__apply_rows. */
ch_node *ch__marked_ids(ch_node *mark);
/* Like ch__apply, for a sparse gradient: rows (k, ...) with ids (k). Rows with equal ids are
 * added, and other rows of var do not change. An id out of range names no row. */
ch_node *ch__apply_rows(ch_rule_kind rule, ch_node *var, ch_node *ids, ch_node *rows,
                        ch_node *hyper, ch_node **slot);
/* Implements ch_op.absorb for a gather along axis 0 that gives zeros for ids out of range. If
 * `user` is an apply_rows call that has `rows`, the result of the gather, as its rows, sets *w
 * to an update that reads the rows from the input of the gather. Returns false otherwise. */
bool ch__apply_gathered(const ch_node *rows, const ch_node *user, ch_rewrite *w);

/* The inputs of a rule that change in each step: ch_rule_run of kernel/hyper.h as nodes. All
 * are scalars. */
typedef struct ch_rule_inputs {
    ch_node *iterations; /* i64: steps that were applied before this one */
    ch_node *rate;       /* f64: learning rate */
    ch_node *apply;      /* bool; false: the step changes nothing */
    ch_node *divisor;    /* f32: the gradient is divided by it, the loss scale */
    /* f64: sums of squares of this gradient and of all gradients, before scaling. */
    ch_node *squares, *squares_of_global;
} ch_rule_inputs;

/* Returns the vector of hyperparameters of kernel/rule.h, in the given dtype. */
ch_node *ch__hyper(ch_rule_kind rule, ch_dtype dtype, const ch_rule_numbers *numbers,
                   const ch_rule_inputs *in);

/* Return whether all elements of n float arrays are finite (a bool scalar), and the sum of
 * their squares (an f64 scalar). The arrays may have different dtypes; n may be 0. */
ch_node *ch__are_finite(ch_step *s, int n, ch_node *const *x);
ch_node *ch__sum_squares(ch_step *s, int n, ch_node *const *x);

/* Adds rows (f32 or f64) of equal ids. The first position of an id gets the sum of its rows.
 * All other positions get the id -1 and zeros, and so do positions of ids outside [0,
 * n_rows). */
void ch__merge_rows(ch_node *ids, ch_node *rows, ch_dim n_rows, ch_node **out_ids,
                    ch_node **out_rows);

/* Returns `wide`, which is f32, rounded to the 16-bit dtype of x. Written over the memory of x,
 * so that the new value of a 16-bit variable needs no other memory. */
ch_node *ch__round_over(ch_node *x, ch_node *wide);
/* Returns x, a 16-bit table, with the rows of the ids replaced by the rounded rows of `wide`,
 * the same table in f32. An id out of range names no row. The op cannot fail, so it may follow
 * an update. */
ch_node *ch__round_rows(ch_node *x, ch_node *ids, ch_node *wide);

/* Returns zeros if `when`, a bool scalar, is true, otherwise x. If the result is written over
 * x, the case `false` costs nothing. */
ch_node *ch__clear_if(ch_node *x, ch_node *when);

#endif

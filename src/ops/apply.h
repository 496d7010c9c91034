/* ops/apply.h -- the list of ops of this family, and what optimizers record.
 *
 * `apply` and `apply_rows` are functions of a variable's value and its slots; the planner lets
 * them write over both. The numbers of the run come as one vector, the result of `hyper`.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_APPLY_H
#define OPS_APPLY_H

#include "graph/op.h"
#include "kernel/hyper.h"

/* clang-format off */
#define CH_OPS_APPLY(X) \
    X(apply) X(apply_norms) X(apply_rows) X(marked_ids) X(hyper) X(all_finite) X(sum_squares) X(merge_rows) X(clear_if) \
    X(round_over) X(round_rows)
/* clang-format on */

/* The new value of var (f32 or f64), and of its slots in slot[0 .. n_slots - 1], from a
 * gradient like var. `norms` is NULL, or of a rule with norms the result of ch__apply_norms. */
ch_node *ch__apply(ch_rule_kind rule, ch_node *var, ch_node *grad, ch_node *norms,
                   ch_node *hyper, ch_node **slot);
/* The sums of squares, f64(2), that ch__apply of a rule with norms would use: of the variable, and of
 * its update. A sum over elements, so the norms of a variable in shards are the sum over the shards. */
ch_node *ch__apply_norms(ch_rule_kind rule, ch_node *var, ch_node *grad, ch_node *hyper,
                         ch_node *const *slot);
/* Whether input k of that op is the variable or a slot, and not the gradient or the numbers. */
bool ch__norms_read(int k);
/* Of bools (rows): i64 (rows), the index where one is true, else -1. In shards indices are the
 * shard's own, as those of ch__apply_rows beside it are. */
ch_node *ch__marked_ids(ch_node *mark);
/* The same for the rows (k, ...) of a sparse gradient with their ids (k): rows of equal ids are
 * added up, and no other row of var is touched. Ids out of range stand for no row. */
ch_node *ch__apply_rows(ch_rule_kind rule, ch_node *var, ch_node *ids, ch_node *rows,
                        ch_node *hyper, ch_node **slot);
/* For ch_op.absorb, where `rows` are looked up, with zeros for ids out of range, in axis 0 of
 * others: the update reads those where they are. */
bool ch__apply_gathered(const ch_node *rows, const ch_node *user, ch_rewrite *w);

/* What a rule is told in each run, all scalars: ch_rule_run of kernel/hyper.h, as nodes. */
typedef struct ch_rule_inputs {
    ch_node *iterations;                  /* i64: steps that were applied before this one */
    ch_node *rate;                        /* f64 */
    ch_node *apply;                       /* bool */
    ch_node *divisor;                     /* f32, of the gradient: the loss scale */
    ch_node *squares, *squares_of_global; /* f64: of the gradient as it is */
} ch_rule_inputs;

/* The vector of kernel/rule.h, of this dtype. */
ch_node *ch__hyper(ch_rule_kind rule, ch_dtype dtype, const ch_rule_numbers *numbers,
                   const ch_rule_inputs *in);

/* Over all elements of n floats of any dtypes: a bool and an f64 scalar. */
ch_node *ch__are_finite(ch_step *s, int n, ch_node *const *x);
ch_node *ch__sum_squares(ch_step *s, int n, ch_node *const *x);

/* Ids and rows (f32 or f64) in which no id stands twice: the first position has the sum, the
 * others -1 and zeros; so have ids that are not in [0, n_rows). */
void ch__merge_rows(ch_node *ids, ch_node *rows, ch_dim n_rows, ch_node **out_ids,
                    ch_node **out_rows);

/* `wide`, of f32, rounded to the dtype of x, and in its place: so that a variable of 16 bits
 * needs no other memory. */
ch_node *ch__round_over(ch_node *x, ch_node *wide);
/* x, a 16-bit table, with the rows of these ids rounded from `wide`, the same table in f32. Ids
 * out of range stand for no row; it cannot fail, so it may follow an update. */
ch_node *ch__round_rows(ch_node *x, ch_node *ids, ch_node *wide);

/* x, or zeros if `when` (a bool scalar) holds. Written over x, the other case costs nothing. */
ch_node *ch__clear_if(ch_node *x, ch_node *when);

#endif

/* cohort/replica.h -- collectives and merge calls: how the replicas of a step exchange values.
 *
 * A step is recorded as the code of a single replica (the replica context of tf.distribute).
 * The ops of this header are collectives. Every replica executes all of them, in recording
 * order.
 *
 *     ch_node *total = ch_all_reduce(CH_SUM, loss);        // the same on every replica
 *     ch_node *all = ch_all_gather(embeddings, 0);         // the rows of every replica
 *
 * A merge call records code for all replicas at once (the cross-replica context). In it, a
 * per-replica value is opaque: it can only be reduced, gathered or passed to an update. The
 * result of a reduction is a single value for all replicas.
 *
 *     static void merge(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
 *     {
 *         out[0] = ch_merge_reduce(CH_MEAN, in[0]);
 *         ch_var_assign(s, arg, out[0]);
 *     }
 *
 *     ch_merge_call(s, merge, var, 1, &x, 1, &mean);       // in a step
 *
 * The step owns every node: there is nothing to free. The thread that records the step calls
 * these functions. Collectives, merge calls and updates must not be recorded inside a branch or
 * loop body. cohort/step.h has the rules for nodes and errors.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_REPLICA_H
#define COHORT_REPLICA_H

#include "cohort/strategy.h"

/* Returns the strategy that records the step. Borrowed. For code that creates variables in a
 * step. */
CH_API ch_strategy *ch_step_strategy(ch_step *s);

/* Returns the sum or mean of x over the replicas, the same on each. x must have the same shape
 * on all replicas. A sparse gradient stays sparse. The mean of integers is floating point, as
 * in ch_strategy_reduce: f64, or f32 for types of 8 and 16 bits. */
CH_API ch_node *ch_all_reduce(ch_reduce_op op, ch_node *x);
/* Reduces n values in few collectives. If n is below 1, or a list is NULL, the call records
 * nothing, because there is no step that could keep an error. The same holds for
 * ch_all_gather_all and ch_all_reduce_all_with. */
CH_API void ch_all_reduce_all(ch_reduce_op op, int n, ch_node *const *x, ch_node **out);
/* ch_all_reduce_with and ch_all_reduce_all_with reduce as ch_all_reduce and ch_all_reduce_all
 * do, with options for this call. The options override the options of the strategy: the
 * algorithm, the timeout, and, for several values, the size of packs. A field that is 0, or a
 * NULL `opt`, keeps the strategy's option. For a sparse value only the timeout is used. */
CH_API ch_node *ch_all_reduce_with(ch_reduce_op op, ch_node *x,
                                   const ch_communication_options *opt);
CH_API void     ch_all_reduce_all_with(ch_reduce_op op, int n, ch_node *const *x,
                                       const ch_communication_options *opt, ch_node **out);
/* ch_all_gather concatenates the values of all replicas along an axis, 0 to rank - 1, in
 * replica order. Replicas may differ in the size of that axis only. A sparse gradient is
 * UNIMPLEMENTED. ch_all_gather_all gathers n values. */
CH_API ch_node *ch_all_gather(ch_node *x, int axis);
CH_API void     ch_all_gather_all(int n, ch_node *const *x, int axis, ch_node **out);
/* Returns the value of replica 0 on every replica, with the shape of replica 0. The other
 * replicas may have other shapes. The rows of the result are a new symbol, because the
 * replica's own rows may be another number. */
CH_API ch_node *ch_broadcast(ch_node *x);

/* Records code for all replicas, in a merge call. Must set out[0 .. n_out - 1]. */
typedef void (*ch_merge_fn)(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg);
/* Calls `fn` once to record a merge call. `in` may be NULL if n is 0, and `out` if n_out is
 * 0. */
CH_API void ch_merge_call(ch_step *s, ch_merge_fn fn, void *arg, int n, ch_node *const *in,
                          int n_out, ch_node **out);

/* ch_merge_reduce reduces a per-replica value, and ch_merge_gather concatenates its components,
 * in a merge call. A value that is the same for all replicas (a constant, a plain input, the
 * result of another reduction) is its own mean. With several replicas, its sum and
 * ch_merge_gather are an error, because nothing says how often the value counts. In replica
 * code, ch_identity makes such a value per-replica. */
CH_API ch_node *ch_merge_reduce(ch_reduce_op op, ch_node *x);
CH_API ch_node *ch_merge_gather(ch_node *x, int axis);
/* Records an update of each copy of a variable. `in` are the values of the copy's replica. Must
 * set the n_out results. */
typedef void (*ch_update_fn)(ch_step *s, ch_var *v, int n, ch_node *const *in, ch_node **out,
                             void *arg);
/* Calls `fn` once to record an update of each copy of a variable, with the values of `in` on
 * its replica. May be called in a merge call or in replica code. Assigns in `fn` change the
 * copy and are not aggregated. A variable that the replicas share gets the value of the first
 * replica. */
CH_API void ch_update(ch_step *s, ch_var *v, ch_update_fn fn, void *arg, int n,
                      ch_node *const *in, int n_out, ch_node **out);
/* Calls `fn` once to record code for each replica, inside a merge call. */
CH_API void ch_replica_call(ch_step *s, ch_merge_fn fn, void *arg, int n, ch_node *const *in,
                            int n_out, ch_node **out);

#endif

/* cohort/replica.h -- what a step does across replicas.
 *
 * A step speaks of one replica. These ops are where replicas meet: each of them comes to every one, in the
 * order in which they are recorded, which is the same for all.
 *
 *     ch_node *total = ch_all_reduce(CH_SUM, loss);        // the same on every replica
 *     ch_node *all = ch_all_gather(embeddings, 0);         // the rows of every replica
 *
 * In a merge call the code speaks of all replicas at once. What a replica has of its own is opaque
 * there: it can be reduced, gathered or given to an update; what came of that is one value, for all.
 *
 *     static void merge(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
 *     {
 *         ch_node *mean = ch_merge_reduce(CH_MEAN, in[0]);
 *         ch_var_assign(s, arg, mean);
 *         out[0] = mean;
 *     }
 *     ch_merge_call(s, merge, var, 1, &x, 1, &mean);
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_REPLICA_H
#define COHORT_REPLICA_H

#include "cohort/strategy.h"

/* In a step: the strategy that records it; borrowed. For code that makes variables there. */
CH_API ch_strategy *ch_step_strategy(ch_step *s);

/* Returns the sum or mean over the replicas, the same on each; they must have the same shape of it. A sparse
 * gradient stays sparse. The mean of integers is floating point, as in ch_strategy_reduce: f64, or f32 for
 * types of 8 and 16 bits. */
CH_API ch_node *ch_all_reduce(ch_reduce_op op, ch_node *x);
/* Reduces n values in few collectives. Without a list, or with n below 1, the call records nothing:
 * there is no step that could keep an error. The same holds for ch_all_gather_all. */
CH_API void ch_all_reduce_all(ch_reduce_op op, int n, ch_node *const *x, ch_node **out);
/* Both with options of the call's own, which go over the strategy's: its way of adding, its timeout and, of several,
 * its packs; where a field is 0, and all of it if `opt` is NULL, the strategy's hold. Of a sparse one the timeout. */
CH_API ch_node *ch_all_reduce_with(ch_reduce_op op, ch_node *x,
                                   const ch_communication_options *opt);
CH_API void     ch_all_reduce_all_with(ch_reduce_op op, int n, ch_node *const *x,
                                       const ch_communication_options *opt, ch_node **out);
/* Returns the values of all replicas, one after another along an axis, 0 to rank - 1. Replicas may differ in
 * the size of that axis and in no other. A sparse gradient is UNIMPLEMENTED. */
CH_API ch_node *ch_all_gather(ch_node *x, int axis);
CH_API void     ch_all_gather_all(int n, ch_node *const *x, int axis, ch_node **out);
/* What replica 0 has, in its shape: the others need not have that, and their number of rows is not taken to be its. */
CH_API ch_node *ch_broadcast(ch_node *x);

/* Records `fn` as code for all replicas. `in` may be NULL if n is 0, and `out` if n_out is. */
typedef void (*ch_merge_fn)(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg);
CH_API void ch_merge_call(ch_step *s, ch_merge_fn fn, void *arg, int n, ch_node *const *in,
                          int n_out, ch_node **out);

/* In a merge call. What is one value for all replicas is its own mean, and has no sum: a constant, a plain input,
 * the result of another reduction. ch_identity in a replica gives each its own. */
CH_API ch_node *ch_merge_reduce(ch_reduce_op op, ch_node *x);
CH_API ch_node *ch_merge_gather(ch_node *x, int axis);
/* In a merge call or a replica: records `fn` as what is done to each copy of a variable, with what its
 * replica has of `in`. Assigns in it change that copy, and nothing is aggregated; a variable that replicas share is
 * assigned what the first has. */
typedef void (*ch_update_fn)(ch_step *s, ch_var *v, int n, ch_node *const *in, ch_node **out,
                             void *arg);
CH_API void ch_update(ch_step *s, ch_var *v, ch_update_fn fn, void *arg, int n,
                      ch_node *const *in, int n_out, ch_node **out);
/* In a merge call: records `fn` as code of each replica again. */
CH_API void ch_replica_call(ch_step *s, ch_merge_fn fn, void *arg, int n, ch_node *const *in,
                            int n_out, ch_node **out);

#endif

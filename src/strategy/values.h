/* strategy/values.h -- helpers for values with a component for each replica.
 *
 * Users are reduce.c, gather.c, move.c, update.c and values.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef STRATEGY_VALUES_H
#define STRATEGY_VALUES_H

#include "strategy/strategy.h"

/* Returns INVALID_ARGUMENT unless `v` has a component for each local replica and all have the
 * same dtype. A plain value is accepted only if there is a single replica. `call` and `verb`
 * ("reduced") are for messages. (reduce.c) */
ch_status ch__check_components(ch_strategy *st, const char *call, const char *verb,
                               const ch_value *v);
/* Returns the index of the component on `device`, or 0 if there is none. For mirrored values,
 * where every component is equal. (reduce.c) */
int ch__component_on(const ch_value *v, const ch_device *device);

/* Reduces `v` over the replicas and over n axes, and stores the result, on `device`, in *out.
 * (reduce.c) */
ch_status ch__reduce_value(ch_strategy *st, const char *call, ch_reduce_op op,
                           const ch_value *v, int n, const int *axis, ch_device *device,
                           ch_tensor **out);
/* Reduces `v` over the replicas without axes, adding in the order of the algorithm `cross`.
 * (reduce.c) */
ch_status ch__reduce_value_as(ch_cross_device cross, ch_strategy *st, const char *call,
                              ch_reduce_op op, const ch_value *v, ch_device *device,
                              ch_tensor **out);

/* Computes a tensor from a leaf of a tuple. The caller must release *out. */
typedef ch_status (*ch_leaf_fn)(void *arg, const ch_value *v, ch_tensor **out);
/* Calls `fn` for each leaf and stores a tuple of the results, with the names of the leaves, in
 * *out. An error names the leaf. (values.c) */
ch_status ch__tuple_map(const char *call, const ch_tuple *t, ch_leaf_fn fn, void *arg,
                        ch_tuple **out);

/* Stores a tuple of the components of replica `replica`, as plain leaves, in *out.
 * (values.c) */
ch_status ch__tuple_of_replica(const char *call, const ch_tuple *t, int replica,
                               ch_tuple **out);

#endif

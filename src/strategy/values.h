/* strategy/values.h -- what the files about values of several replicas share.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef STRATEGY_VALUES_H
#define STRATEGY_VALUES_H

#include "strategy/strategy.h"

/* INVALID_ARGUMENT unless `v` has a component for each replica of this process, all of one dtype; what is
 * plain has one for one replica only. `call` is for messages, and so is `verb` ("reduced"). */
ch_status ch__want_components(ch_strategy *st, const char *call, const char *verb,
                              const ch_value *v);
/* Which component is on a device, else 0: for mirrored values, of which one is as good as another. */
int ch__component_on(const ch_value *v, const ch_device *device);

/* The reduction of `v` over replicas and n axes, on a device. */
ch_status ch__reduce_value(ch_strategy *st, const char *call, ch_reduce_op op,
                           const ch_value *v, int n, const int *axis, ch_device *device,
                           ch_tensor **out);
/* Without axes, in the order of a way of adding. */
ch_status ch__reduce_value_as(ch_cross_device cross, ch_strategy *st, const char *call,
                              ch_reduce_op op, const ch_value *v, ch_device *device,
                              ch_tensor **out);

/* Makes a tensor of each leaf. */
typedef ch_status (*ch_leaf_fn)(void *arg, const ch_value *v, ch_tensor **out);
/* A tuple of what `fn` makes of the leaves, with their names; errors say which leaf it was. */
ch_status ch__tuple_map(const char *call, const ch_tuple *t, ch_leaf_fn fn, void *arg,
                        ch_tuple **out);

/* What a replica has of a tuple, as plain leaves. */
ch_status ch__tuple_of_replica(const char *call, const ch_tuple *t, int replica,
                               ch_tuple **out);

#endif

/* cohort/strategy_ops.h -- writing a strategy.
 *
 * A strategy says which devices run replicas and where variables live. All else follows: a variable with
 * a copy for each replica is mirrored, one with a single copy is shared; replicas meet as the options say.
 *
 *     static const ch_strategy_ops ops = {"Alternating", devices, place, close};
 *     rc = ch_strategy_new(&ops, self, &(ch_strategy_parts){.n_replicas = 2}, &st);
 *
 * examples/own_strategy.c is one.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_STRATEGY_OPS_H
#define COHORT_STRATEGY_OPS_H

#include "cohort/strategy.h"

/* All of them are there. */
typedef struct ch_strategy_ops {
    const char *name; /* "Mirrored" */
    /* The devices of the replicas, in their order, as many as there are. Asked for each run: they may
     * change between runs. */
    ch_device *const *(*devices)(void *self);
    /* Writes the devices that a variable gets copies on, and returns how many: one for each replica, in
     * their order, or one for all. */
    int (*place)(void *self, const ch_var_spec *spec, ch_device **out);
    void (*close)(void *self); /* all its variables are gone */
} ch_strategy_ops;

typedef struct ch_strategy_parts {
    int                      n_replicas; /* 1 or more */
    ch_communication_options communication;
} ch_strategy_parts;

/* `ops` and `self` are borrowed until close is called, which on an error is not. */
CH_API CH_MUST_CHECK ch_status ch_strategy_new(const ch_strategy_ops *ops, void *self,
                                               const ch_strategy_parts *parts,
                                               ch_strategy            **out);

#endif

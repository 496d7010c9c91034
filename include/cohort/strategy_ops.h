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

#include "cohort/extended.h"
#include "cohort/layout.h"

/* All of them are there. */
typedef struct ch_strategy_ops {
    const char *name; /* "Mirrored" */
    /* The devices of the replicas, in their order, as many as there are, and each its own. Asked for each
     * run: they may change between runs. A run with a device that is NULL, or one for two replicas, is
     * INVALID_ARGUMENT. */
    ch_device *const *(*devices)(void *self);
    /* Chooses where a variable is stored. `spec` has its final name, dtype and shape. `out` is all zeros, except that
     * out->device has room for CH_LAYOUT_DEVICES devices, which this function writes. A variable has one copy, which all
     * replicas share, or one for each replica, in their order and each on a device of its own. */
    ch_status (*place)(void *self, const ch_var_spec *spec, ch_layout *out);
    void (*close)(void *self); /* all its variables are gone */
} ch_strategy_ops;

/* What a strategy says of itself; the library's own say no more. Zero is usual everywhere. */
typedef struct ch_strategy_parts {
    int                      n_replicas; /* 1 or more */
    ch_communication_options communication;
    /* Where variables live, for ch_strategy_parameter_devices; 0: with the replicas. Borrowed until close. */
    int               n_parameter;
    ch_device *const *parameter;
    /* NULL: should_init, should_checkpoint and should_save_summary are true, the others false. Copied. */
    const ch_strategy_traits *traits;
    ch_resolver              *resolver; /* for ch_strategy_resolver; borrowed until close */
    bool isolates_state; /* ch_strategy_configure asks for isolate_session_state */
    bool own_pipelines;  /* CH_EACH_REPLICA (cohort/input.h) is allowed */
    /* There is one replica and never another: values are plain, stay where they are, and are taken as they
     * are, as OneDevice does. */
    bool is_bare;
} ch_strategy_parts;

/* `ops` and `self` are borrowed until close is called, which on an error is not. */
CH_API CH_MUST_CHECK ch_status ch_strategy_new(const ch_strategy_ops *ops, void *self,
                                               const ch_strategy_parts *parts,
                                               ch_strategy            **out);

#endif

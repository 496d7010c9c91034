/* cohort/strategy_ops.h -- custom strategies: the functions that a strategy consists of.
 *
 * A strategy is a table of functions that say which devices run replicas and where variables
 * are stored. The library does the rest. A variable with a copy for each replica is mirrored; a
 * variable with a single copy is shared by the replicas. Collectives use the communication
 * options of the strategy.
 *
 *     static const ch_strategy_ops ops = {"Alternating", devices, place, close_strategy};
 *
 *     rc = ch_strategy_new(&ops, self, &(ch_strategy_parts){.n_replicas = 2}, &st);
 *
 * The strategy borrows the table and `self` until it calls `close`. The library calls the
 * functions on the threads that use the strategy, so several threads may run them at the same
 * time. examples/own_strategy.c has two complete strategies.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_STRATEGY_OPS_H
#define COHORT_STRATEGY_OPS_H

#include "cohort/extended.h"
#include "cohort/layout.h"
#include "cohort/logical.h"

/* The functions of a strategy. No field may be NULL. */
typedef struct ch_strategy_ops {
    const char *name; /* such as "Mirrored" */
    /* Returns the devices, all different: one for each replica, in replica order. If replicas
     * have n_cores logical devices (ch_strategy_parts), device r * n_cores + c is logical
     * device c of replica r. Called for each run: the devices may change between runs. If a
     * device is NULL, or occurs twice, the run is INVALID_ARGUMENT. */
    ch_device *const *(*devices)(void *self);
    /* Chooses where a variable is stored. `spec` has its final name, dtype and shape. `out` is
     * all zeros, except that out->device has room for CH_LAYOUT_DEVICES devices, which this
     * function writes. A variable has a single copy, which all replicas share, or a copy for
     * each replica, in replica order and on different devices. If replicas have several logical
     * devices, a copy of a replica is on its logical device 0. */
    ch_status (*place)(void *self, const ch_var_spec *spec, ch_layout *out);
    /* Frees `self`. Called when the last reference to the strategy is dropped; all its
     * variables have been freed. */
    void (*close)(void *self);
} ch_strategy_ops;

/* The properties of a strategy. 0 is the default of every field except n_replicas. */
typedef struct ch_strategy_parts {
    int n_replicas; /* 1 or more */
    /* Logical devices of each replica, at most CH_LOGICAL_DEVICES_MAX; 0: 1. They execute the
     * step of a replica together (cohort/logical.h). */
    int n_cores;
    /* The axes of the logical mesh for ch_mesh_split; their product must be n_cores. n_mesh 0:
     * one axis of all logical devices. */
    int n_mesh, mesh[CH_MESH_AXES_MAX];
    /* Splits of variables by their names, copied. The first rule that matches holds, unless the
     * variable has a split of its own (ch_var_spec.split, ch_var_split), or is created in the
     * scope of a logical device (ch_logical_device_enter). If the rule does not fit the
     * variable, ch_var_new returns INVALID_ARGUMENT. */
    int                  n_rules;
    const ch_split_rule *rule;
    /* Splits every other variable of at least this many bytes along its longest axis, over all
     * logical devices; 0: none. Slots of optimizers get the split of their variable. */
    int64_t split_bytes;
    /* Splits the inputs of steps along axis 0, their rows, over all logical devices. Together
     * with split_bytes each device keeps its part of every variable and slot, and computes its
     * rows of the batch: the values that a layer needs are gathered before it, and gradients
     * are scattered as they are summed. */
    bool split_rows;
    /* Frees the gathered values of variables after the forward pass, and gathers them again for
     * the backward pass. This moves more bytes and needs less memory. */
    bool reshard_after_forward;
    /* Searches for layouts before the first run of each function: for its variables that have
     * none by an annotation, a split, a rule, a scope of a logical device, or split_bytes, and
     * for its inputs, unless split_rows is set. The plan with the least cost is chosen among
     * those that fit the memory of the devices, by bytes that move, operations and barriers.
     * Variables whose names differ only in numbers ("dense/kernel", "dense_1/kernel") and whose
     * shapes are equal get the same layout; slots of optimizers follow their variable. The
     * variables are moved with their values, and keep their layouts in later functions. Until
     * then they are split along their longest axis. ch_function_print_layouts prints the plan.
     * If no plan fits, the run is RESOURCE_EXHAUSTED. */
    bool choose_layouts;
    /* Values and variables whose layout nothing else chooses are on logical device 0. False:
     * all logical devices have them. */
    bool defaults_to_device_0;
    /* ch_assign_to_logical_device and ch_logical_device_enter are INVALID_ARGUMENT. */
    bool                     forbids_single_devices;
    ch_communication_options communication;
    /* Devices of variables, for ch_strategy_parameter_devices; n_parameter 0: those of the
     * replicas. Borrowed until close. */
    int               n_parameter;
    ch_device *const *parameter;
    /* Copied. NULL: should_init, should_checkpoint and should_save_summary are true, the others
     * false. */
    const ch_strategy_traits *traits;
    ch_resolver              *resolver; /* for ch_strategy_resolver; borrowed until close */
    bool isolates_state;                /* ch_strategy_configure sets isolate_session_state */
    bool own_pipelines;                 /* CH_EACH_REPLICA (cohort/input.h) is allowed */
    /* A step of this strategy may read the variables of another strategy with this property,
     * and the other way round: each replica reads the copy that is on one of its devices. If a
     * replica has none, the step fails. */
    bool shares_by_device;
    /* The strategy has exactly one replica, always. Values are then plain, and are neither
     * copied nor moved, as under OneDevice. */
    bool is_bare;
} ch_strategy_parts;

/* Creates a strategy. `ops` and `self` are borrowed until `close` is called. On an error
 * `close` is not called. INVALID_ARGUMENT: a function is NULL, or a property or device is
 * invalid. */
CH_API CH_MUST_CHECK ch_status ch_strategy_new(const ch_strategy_ops *ops, void *self,
                                               const ch_strategy_parts *parts,
                                               ch_strategy            **out);

#endif

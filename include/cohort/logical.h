/* cohort/logical.h -- logical devices: one replica on several devices.
 *
 * A replica of some strategies has several cores (logical devices). A step is written as for
 * one device; the cores execute it together, and each core has a shard of the values. A few
 * annotations say how values are split, and all other layouts follow from them:
 *
 *     ch_node *image = ch_step_in(s, 0);                                    // (n, 32, 64, 3)
 *     image = ch_split_to_logical_devices(image, 4, (int[]){1, 2, 4, 1});   // 8 cores
 *     ch_node *y = ch_conv2d(image, filter, NULL);                          // on 8 cores
 *
 * The results are those of one device up to rounding. An annotation returns a node with the
 * value of its argument, and the gradient gets the same annotation. Under a strategy without
 * logical devices it returns the argument, so a step runs under every strategy.
 *
 * An annotation of a wrong rank, with numbers out of range, or that does not divide a known
 * size, is an error of the step. Numbers of rows need not divide.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_LOGICAL_H
#define COHORT_LOGICAL_H

#include "cohort/function.h"
#include "cohort/step.h"
#include "cohort/strategy.h"
#include "cohort/var.h"

/* The largest number of logical devices of a replica, and of axes of their mesh. */
#define CH_LOGICAL_DEVICES_MAX 64
#define CH_MESH_AXES_MAX       4

/* Returns the number of logical devices of each replica: 1, unless the strategy gives replicas
 * several (ch_strategy_parts.n_cores). `st` NULL is the strategy of the current scope. */
CH_API int ch_strategy_logical_devices(ch_strategy *st);

/* Splits axis i of x into parts[i] parts. The product of the parts must be the number of
 * logical devices; shard (i, j, ..) is on device row_major(i, j, ..). n must be the rank of
 * x. */
CH_API ch_node *ch_split_to_logical_devices(ch_node *x, int n, const int *parts);
/* Gives every logical device the whole of x. */
CH_API ch_node *ch_replicate_to_logical_devices(ch_node *x);
/* Gives x to one logical device, in [0, ch_strategy_logical_devices). */
CH_API ch_node *ch_assign_to_logical_device(ch_node *x, int device);

/* In place of an axis of the mesh: all axes of the mesh. */
#define CH_MESH_ALL (-2)
/* Splits axis i of x over axis axis[i] of the logical mesh; CH_MESH_ALL: over all axes; CH_OFF:
 * not split. Mesh axes that are not named hold copies. Sizes need not divide. The mesh has one
 * axis of all logical devices, unless the strategy says otherwise (ch_strategy_parts.mesh). */
CH_API ch_node *ch_mesh_split(ch_node *x, int n, const int *axis);

/* Place the variables that this thread creates on one logical device of each replica, until the
 * matching leave. A variable with a split of its own, or colocated with another, is not moved.
 * In a step, the scope also gives the results of the calls that the step records to this
 * device, and their gradients; annotations and new values of variables keep their layouts. Must
 * be called in the scope of the strategy (ch_strategy_enter) or in a step of it; `st` must be
 * NULL or that strategy. Calls nest, up to 64 deep. Under a strategy without logical devices
 * nothing changes. FAILED_PRECONDITION: `st` is another strategy. INVALID_ARGUMENT: a replica
 * has no such device. */
CH_API CH_MUST_CHECK ch_status ch_logical_device_enter(ch_strategy *st, int device);
CH_API void                    ch_logical_device_leave(void);

/* ---- variables ----
 *
 * The logical devices of a replica store a variable in tiles: a tile is the part that one
 * device has. If the variable is not split, each device has the whole value. Two kinds of
 * variables that are not split are on a single device: a variable that was created in the scope
 * of ch_logical_device_enter is on that device, and other variables of a TPUStrategy without
 * ch_tpu_options.spmd are on device 0. The value of the variable (ch_var_get, ch_var_set,
 * checkpoints) is always the whole value. */

/* Splits axis i of the variable over axis axis[i] of the mesh, as ch_mesh_split does; the same
 * as ch_var_spec.split. n must be the rank. Slots of optimizers that are created later get the
 * split of their variable. FAILED_PRECONDITION: a step has used the variable, or it has been
 * split in another way. Under a strategy without logical devices nothing changes. */
CH_API CH_MUST_CHECK ch_status ch_var_split(ch_var *v, int n, const int *axis);
/* Splits the variables whose names match `name`, in which "*" stands for any characters: axis i
 * over axis axis[i] of the mesh. {"*query/kernel", 2, {CH_OFF, 0}} splits the columns of all
 * these kernels. A strategy has a list of rules (ch_strategy_parts.rule). */
typedef struct ch_split_rule {
    const char *name;
    int         n; /* the rank of the variables, at most CH_MAX_RANK */
    int         axis[CH_MAX_RANK];
} ch_split_rule;

/* Copies the tile of a logical device of a local replica to a new tensor. Must be called
 * outside steps. NOT_FOUND: the device has no tile. */
CH_API CH_MUST_CHECK ch_status ch_var_get_tile(ch_var *v, int replica, int device,
                                               ch_tensor **out);

/* ---- reports ----
 *
 * A report describes the last run of a function: how its step was divided among the logical
 * devices of local replica 0, and the bytes that these devices moved. Under a strategy without
 * logical devices, the report has 1 device, and only collectives between replicas move bytes.
 * These functions must not be called while another thread runs the function. */

/* Transfers: their number, and the bytes that devices received from other devices. */
typedef struct ch_traffic {
    int64_t count, bytes;
} ch_traffic;

typedef struct ch_layout_report {
    int devices;  /* logical devices of the replica */
    int programs; /* different programs of all devices: devices with equal sizes share one */
    int calls;    /* calls of the divided step, without inputs, constants and variables */
    /* calls that every device computed whole, although an input was split */
    int replicated_calls;
    /* Transfers between the devices of the replica, by pattern. `other`: permutations and the
     * rest. */
    ch_traffic all_reduce, reduce_scatter, all_gather, all_to_all, halo, other;
    /* Parts of inputs and of constants that devices read, and results that they wrote, whole or
     * in parts. A device that needs all of an input or a constant uses it where it is: that is
     * not counted. */
    ch_traffic host;
    /* Collectives between replicas, such as the sum of gradients. The bytes are those that the
     * devices of all replicas moved: a sum of B bytes over n replicas moves 2 (n - 1) B; if B
     * is small, n (n - 1) B. */
    ch_traffic cross_replica;
    /* Memory of each device in bytes. Planned: for the values and variables of this step.
     * Measured: ch_device_peak_bytes, which counts all steps and variables of the device. */
    int64_t peak_bytes[CH_LOGICAL_DEVICES_MAX];
    /* Arithmetic operations of the device that has most of them, divided by those of the step
     * on a single device. 1 / devices is the least. */
    double work;
} ch_layout_report;

/* Sets *planned to the plan of the last run of f, and *measured to what its kernels counted:
 * the transfers, and the peaks of memory. The other members of both are equal. If the run
 * succeeded, the transfers of both are equal too, except those in ch_while and ch_cond: the
 * plan has one iteration, and the branch that moves more. `planned` and `measured` may be NULL.
 * FAILED_PRECONDITION: f has not run. */
CH_API CH_MUST_CHECK ch_status ch_function_report_layouts(ch_function      *f,
                                                          ch_layout_report *planned,
                                                          ch_layout_report *measured);
/* Prints the plan of the last run of f, as snprintf does. A line for each value says how it
 * lies over the devices, why, and which line of the program computes it. The lines below it are
 * the transfers of the value, with their bytes and the call that they are for:
 *
 *  %17 matmul  f32(128, 10)  partial sum of 4, (128, 10) each      net/dense_1, at train.c:41
 *      all-reduce  30,720 B  for sub %18 at train.c:44, which is replicated: nothing splits it
 *
 * {4, 1} is a value in 4 parts along axis 0. A layout may come from an annotation, a variable,
 * a split rule, or another value ("from %16", "from %20 through mul at train.c:50"). The bytes
 * in a body are those of one iteration. Before a run the text is empty. */
CH_API int ch_function_print_layouts(ch_function *f, char *text, size_t size);

#endif

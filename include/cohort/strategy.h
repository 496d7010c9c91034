/* cohort/strategy.h -- strategies: where variables are stored, and which devices run a step.
 *
 * A strategy distributes training over replicas, as in tf.distribute. It stores variables, runs
 * steps on its replicas, and combines their results.
 *
 *     rc = ch_strategy_mirrored(NULL, &st);        // a replica on every device
 *     rc = ch_strategy_run(st, train, batch, &out);
 *     rc = ch_strategy_reduce(st, CH_SUM, ch_tuple_get(out, "loss"), CH_NO_AXIS, &loss);
 *
 *   - Functions take a strategy as an argument. NULL means the strategy of the current scope,
 *     or Default if there is none. Default runs everything on the current device.
 *   - Strategies are reference counted. A variable holds a reference to its strategy.
 *   - Several threads may use a strategy. Runs that share a device are executed one after the
 *     other, each as a whole, in an unspecified order. Every thread has its own scope.
 *
 * Other headers: cohort/extended.h (more functions of strategies), cohort/replica.h
 * (collectives in a step), cohort/input.h (data for replicas), cohort/strategy_ops.h (custom
 * strategies).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_STRATEGY_H
#define COHORT_STRATEGY_H

#include "cohort/function.h"
#include "cohort/resolver.h"
#include "cohort/value.h"
#include "cohort/var.h"

typedef enum ch_reduce_op { CH_SUM, CH_MEAN } ch_reduce_op;

/* Parses "sum" or "mean", in upper or lower case. INVALID_ARGUMENT: any other text. */
CH_API CH_MUST_CHECK ch_status ch_reduce_op_parse(const char *text, ch_reduce_op *out);

/* ---- the strategies ---- */

/* The algorithm of an all-reduce between the replicas of a process. The sum is the same on all
 * replicas and in every run. Different algorithms may differ in the last place. */
typedef enum ch_cross_device {
    CH_CROSS_AUTO,         /* CH_CROSS_SHARED */
    CH_CROSS_SHARED,       /* each replica adds a share of all values, in shared memory */
    CH_CROSS_ONE_DEVICE,   /* the first replica adds all values, and the others copy the sum */
    CH_CROSS_HIERARCHICAL, /* two halves add among themselves, then across */
    CH_CROSS_RING          /* each replica passes shares to the next */
} ch_cross_device;

typedef struct ch_communication_options {
    ch_cross_device implementation;
    /* Gradients are reduced in packs. A pack is full when it has more than this number of
     * bytes. 0: the library chooses. Results do not depend on it. */
    int64_t bytes_per_pack;
    /* Longest time that a replica waits for another; 0: COHORT_WAIT_LIMIT_MS. */
    double timeout_seconds;
} ch_communication_options;

/* Returns the options of `base`, overridden by the fields of `over` that are not 0. Both may be
 * NULL. */
CH_API ch_communication_options ch_communication_merge(const ch_communication_options *base,
                                                       const ch_communication_options *over);

typedef struct ch_mirrored_options {
    int n_devices;
    /* Names. n_devices 0: all devices of the first type that exists among TPU, GPU and CPU. */
    const char *const       *device;
    ch_communication_options communication;
} ch_mirrored_options;

/* Creates a strategy with a replica, and a copy of every variable, on each device. `opt` may be
 * NULL. */
CH_API CH_MUST_CHECK ch_status ch_strategy_mirrored(const ch_mirrored_options *opt,
                                                    ch_strategy              **out);

/* Creates a strategy with a single replica, on a named device such as "/gpu:0". */
CH_API CH_MUST_CHECK ch_status ch_strategy_one_device(const char *device, ch_strategy **out);

typedef struct ch_central_storage_options {
    int n_compute;
    /* Names of compute devices. n_compute 0: see `type`. */
    const char *const *compute;
    /* Name of the device of the variables. NULL: the compute device if there is only one, else
     * the first CPU. */
    const char              *parameter;
    ch_communication_options communication;
    /* n_compute 0: all devices of this type, such as "CPU". NULL: all GPUs, or the first CPU if
     * there is no GPU. Must be NULL if n_compute is not 0. */
    const char *type;
} ch_central_storage_options;

/* Creates a strategy with a replica on each compute device. Every variable has a single copy,
 * on the parameter device, which all replicas read. The values that replicas assign are
 * aggregated first. `opt` may be NULL. */
CH_API CH_MUST_CHECK ch_status
ch_strategy_central_storage(const ch_central_storage_options *opt, ch_strategy **out);

CH_API ch_strategy *ch_strategy_ref(ch_strategy *st);
CH_API void         ch_strategy_unref(ch_strategy *st);

CH_API const char *ch_strategy_name(ch_strategy *st); /* such as "Mirrored" */
/* Returns the name of the strategy in error messages, such as "Mirrored#2 (GPU:0, GPU:1)". The
 * number counts the strategies of the process. */
CH_API const char *ch_strategy_label(ch_strategy *st);
CH_API int         ch_strategy_replicas(ch_strategy *st);       /* num_replicas_in_sync */
CH_API int         ch_strategy_local_replicas(ch_strategy *st); /* in this process */

/* Returns the resolver that the strategy was created with; NULL if it has none. Borrowed. */
CH_API ch_resolver *ch_strategy_resolver(const ch_strategy *st);

/* ---- scope ---- */

/* ch_strategy_enter makes `st` the current strategy of this thread until the matching
 * ch_strategy_leave. Inside a scope, only the same strategy may be entered again; inside the
 * scope of Default, any strategy may. Devices, colocations and creators that are entered inside
 * the scope must be left before it. If any of them is still open, ch_strategy_leave closes it,
 * and the log warns. */
CH_API CH_MUST_CHECK ch_status ch_strategy_enter(ch_strategy *st);
CH_API void                    ch_strategy_leave(void);
/* Sets the current strategy of this thread, instead of enter and leave, for a program with a
 * single strategy. NULL: none. Must not be called inside a scope or a step. */
CH_API CH_MUST_CHECK ch_status ch_strategy_set(ch_strategy *st);
/* Returns the current strategy of this thread; Default if there is no scope. Never NULL.
 * Borrowed. */
CH_API ch_strategy *ch_strategy_current(void);
CH_API bool         ch_strategy_is_set(void); /* the current is not Default */

/* The context of the code that this thread runs, as in tf.distribute. */
typedef enum ch_context {
    CH_CONTEXT_DEFAULT, /* no scope, or the scope of Default */
    CH_CONTEXT_CROSS,   /* in a scope, or in a merge call: code for all replicas */
    CH_CONTEXT_REPLICA, /* recording a step: code for each replica */
    CH_CONTEXT_UPDATE   /* recording an update: code for each copy of a variable */
} ch_context;
CH_API ch_context ch_context_now(void); /* of this thread */

/* ---- run ---- */

typedef struct ch_run_options {
    bool     has_step_number; /* false: the function counts its runs, from 0 */
    int64_t  step_number;     /* for ch_step_number and random numbers; 0 or more */
    uint64_t seed;            /* of random numbers */
    /* How TensorFlow pads batches of different sizes on TPUs; for programs that set them there.
     * They have no effect: replicas may have different numbers of rows under every strategy,
     * and nothing is padded. 0: on; CH_OFF. */
    int  dynamic_batch_size, dynamic_padder;
    bool bucketizing_dynamic_shape;
} ch_run_options;

/* ch_strategy_run runs a step once on every replica, and ch_strategy_run_with does so with
 * options. `in` may be NULL if the step has no inputs. A per-replica leaf gives each replica
 * its own component; a plain leaf is shared. The results are per-replica if there are several
 * replicas. `out` may be NULL.
 *
 * On an error no variable has changed, and *out is not written. There are two exceptions:
 * updates on parameter servers whose results the step has used (cohort/var.h), and INTERNAL
 * from COHORT_CHECK_COPIES, which compares the copies of variables after the step. */
CH_API CH_MUST_CHECK ch_status ch_strategy_run(ch_strategy *st, ch_function *f, ch_tuple *in,
                                               ch_tuple **out);
CH_API CH_MUST_CHECK ch_status ch_strategy_run_with(ch_strategy *st, ch_function *f,
                                                    ch_tuple *in, const ch_run_options *opt,
                                                    ch_tuple **out);

/* Records the step of a function for inputs with these specs, without running it. A spec
 * describes the input of a single replica. A size of -1 is allowed for axis 0 only, and means
 * any size. A number for axis 0 does not limit later runs either. From then on the function
 * accepts only inputs of these names, dtypes and shapes, and is not recorded again.
 * FAILED_PRECONDITION: the function has a graph already. */
CH_API CH_MUST_CHECK ch_status ch_function_declare(ch_function *f, ch_strategy *st, int n,
                                                   const ch_tensor_spec *spec);

/* ---- values of several replicas ---- */

enum { CH_NO_AXIS = -2147483647 - 1 }; /* reduces over replicas only */

/* Reduces the components of a per-replica value on the host, in replica order. With CH_NO_AXIS
 * the reduction is elementwise. With an axis it also reduces the elements along that axis;
 * components may differ in its size, and a mean gives each element the same weight. The mean of
 * integers is f64 (f32 for types of 8 and 16 bits). A mirrored value is reduced as a single
 * component: this is its mean. With several replicas, its sum is an error. */
CH_API CH_MUST_CHECK ch_status ch_strategy_reduce(ch_strategy *st, ch_reduce_op op,
                                                  const ch_value *v, int axis, ch_tensor **out);
/* Reduces as ch_strategy_reduce does, along n axes. n = 0 means CH_NO_AXIS. */
CH_API CH_MUST_CHECK ch_status ch_strategy_reduce_axes(ch_strategy *st, ch_reduce_op op,
                                                       const ch_value *v, int n,
                                                       const int *axis, ch_tensor **out);
/* Reduces each leaf of a tuple. The result has the same names. */
CH_API CH_MUST_CHECK ch_status ch_strategy_reduce_tuple(ch_strategy *st, ch_reduce_op op,
                                                        const ch_tuple *t, int axis,
                                                        ch_tuple **out);

/* ch_strategy_gather concatenates the components of a value along an axis, in replica order, on
 * the host. All other sizes must be equal. ch_strategy_gather_tuple does so for each leaf. */
CH_API CH_MUST_CHECK ch_status ch_strategy_gather(ch_strategy *st, const ch_value *v, int axis,
                                                  ch_tensor **out);
CH_API CH_MUST_CHECK ch_status ch_strategy_gather_tuple(ch_strategy *st, const ch_tuple *t,
                                                        int axis, ch_tuple **out);

/* Splits a tuple by replica: out[r] gets the leaves of local replica r, for r = 0 to n - 1. A
 * plain leaf is in all of them. n must be ch_strategy_local_replicas(st), else the call returns
 * INVALID_ARGUMENT and does not write `out`. The caller owns the n tuples. */
CH_API CH_MUST_CHECK ch_status ch_strategy_local_results(ch_strategy *st, const ch_tuple *t,
                                                         int n, ch_tuple **out);

/* The replica that a ch_value_fn is called for. */
typedef struct ch_value_context {
    int replica;    /* number of the replica in the job */
    int n_replicas; /* number of replicas in the job */
} ch_value_context;
/* Creates the values of a replica: a tuple of plain leaves. The caller takes over the
 * reference. */
typedef ch_status (*ch_value_fn)(const ch_value_context *c, void *arg, ch_tuple **out);
/* Creates per-replica values from a function, which is called once for each replica of this
 * process, in order. All tuples must have the same number of leaves and the same names. */
CH_API CH_MUST_CHECK ch_status ch_strategy_distribute_values_from_function(ch_strategy *st,
                                                                           ch_value_fn  fn,
                                                                           void        *arg,
                                                                           ch_tuple   **out);

#endif

/* cohort/strategy.h -- where variables live, who runs a step, how results meet.
 *
 *     ch_strategy *st = NULL;
 *     rc = ch_strategy_mirrored(NULL, &st);        // a copy on every device; NULL is Default
 *     rc = ch_strategy_run(st, train, batch, &out);
 *     rc = ch_strategy_reduce(st, CH_SUM, ch_tuple_get(out, "loss"), CH_NO_AXIS, &loss);
 *
 * Every call takes the strategy first; NULL is the current scope's, else Default, which runs
 * everything on the current device and needs nothing. More of a strategy is in cohort/extended.h, what a
 * step can do across replicas in cohort/replica.h, data for replicas in cohort/input.h, and how to write a
 * strategy in cohort/strategy_ops.h.
 *
 * A strategy may be used by several threads. Runs that have a device in common come one after the other, each as a
 * whole; in which order is not said. The scope is a thread's own.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_STRATEGY_H
#define COHORT_STRATEGY_H

#include "cohort/function.h"
#include "cohort/resolver.h"
#include "cohort/value.h"
#include "cohort/var.h"

typedef enum ch_reduce_op { CH_SUM, CH_MEAN } ch_reduce_op;

/* "sum", "MEAN", in any case. */
CH_API CH_MUST_CHECK ch_status ch_reduce_op_parse(const char *text, ch_reduce_op *out);

/* ---- the strategies ---- */

/* How the replicas of one process add up what each of them has. The sum is the same on all of them, and
 * from run to run; between these it differs in the last place. */
typedef enum ch_cross_device {
    CH_CROSS_AUTO,         /* CH_CROSS_SHARED */
    CH_CROSS_SHARED,       /* each adds up its share of the values of all, where they are */
    CH_CROSS_ONE_DEVICE,   /* the first adds up all, and the others copy */
    CH_CROSS_HIERARCHICAL, /* two halves add up within, then across */
    CH_CROSS_RING          /* shares go round, from each to the next */
} ch_cross_device;

typedef struct ch_communication_options {
    ch_cross_device implementation;
    /* Gradients are reduced together, in packs that are full when they have more than this; 0: as the
     * library finds best. Results do not depend on it. */
    int64_t bytes_per_pack;
    double  timeout_seconds; /* that a replica waits for another; 0: COHORT_WAIT_LIMIT_MS */
} ch_communication_options;

/* `over`'s fields where they are not zero, else `base`'s. */
CH_API ch_communication_options ch_communication_merge(const ch_communication_options *base,
                                                       const ch_communication_options *over);

typedef struct ch_mirrored_options {
    int                n_devices;
    const char *const *device; /* names; n_devices 0: every device of the first type there is
                                  of TPU, GPU, CPU */
    ch_communication_options communication;
} ch_mirrored_options;

/* A copy of every variable on every device; each device is a replica. */
CH_API CH_MUST_CHECK ch_status ch_strategy_mirrored(const ch_mirrored_options *opt,
                                                    ch_strategy              **out);

/* Everything on one device: "/gpu:0". */
CH_API CH_MUST_CHECK ch_status ch_strategy_one_device(const char *device, ch_strategy **out);

typedef struct ch_central_storage_options {
    int                n_compute;
    const char *const *compute; /* names; n_compute 0: every GPU, or the first CPU */
    const char *parameter; /* NULL: the compute device if that is one, else the first CPU */
    ch_communication_options communication;
    const char *type; /* n_compute 0: every device of this type, "CPU"; NULL: as said above */
} ch_central_storage_options;

/* Every variable once, on the parameter device; each compute device is a replica, reads it there, and
 * what replicas write to it is aggregated first. */
CH_API CH_MUST_CHECK ch_status
ch_strategy_central_storage(const ch_central_storage_options *opt, ch_strategy **out);

CH_API ch_strategy *ch_strategy_ref(ch_strategy *st);
CH_API void         ch_strategy_unref(ch_strategy *st);

CH_API const char *ch_strategy_name(ch_strategy *st); /* "Mirrored" */
/* Returns the name by which error messages call the strategy: "Mirrored#2 (GPU:0, GPU:1)". The number
 * counts the strategies that the process has made. */
CH_API const char *ch_strategy_label(ch_strategy *st);
CH_API int         ch_strategy_replicas(ch_strategy *st);       /* num_replicas_in_sync */
CH_API int         ch_strategy_local_replicas(ch_strategy *st); /* of those, in this process */

/* What found the machines that a strategy spans, as it was made with; NULL for those of one machine. */
CH_API ch_resolver *ch_strategy_resolver(const ch_strategy *st);

/* ---- scope ---- */

/* The strategy of this thread until the matching leave; sugar for passing it. Another one cannot be
 * entered inside, except inside Default's. A device, colocation or creator that was entered inside is left before:
 * one that is still open ends with the scope, and the log warns. */
CH_API CH_MUST_CHECK ch_status ch_strategy_enter(ch_strategy *st);
CH_API void                    ch_strategy_leave(void);
/* In place of enter and leave, for a program that has one; NULL: none any more. Not inside a scope. */
CH_API CH_MUST_CHECK ch_status ch_strategy_set(ch_strategy *st);
/* Never NULL: Default without a scope; borrowed. */
CH_API ch_strategy *ch_strategy_current(void);
CH_API bool         ch_strategy_is_set(void); /* there is one, and not Default */

/* Where this thread's code is. Of the last two, one is said of code that records a step: it speaks of
 * one replica, or, in a merge call, of all of them. */
typedef enum ch_context {
    CH_CONTEXT_DEFAULT, /* in no scope */
    CH_CONTEXT_CROSS,   /* in a scope, or in a merge call */
    CH_CONTEXT_REPLICA, /* records a step */
    CH_CONTEXT_UPDATE   /* records what is done to each copy of a variable */
} ch_context;
CH_API ch_context ch_context_now(void);

/* ---- run ---- */

typedef struct ch_run_options {
    bool     has_step_number; /* false: the function's runs are counted from 0 */
    int64_t  step_number;     /* for ch_step_number and random numbers */
    uint64_t seed;            /* of random numbers */
} ch_run_options;

/* Runs a step once on every replica. `in` may be NULL for a step without inputs; a per-replica
 * leaf gives each replica its own, a plain one is shared. The results are per-replica where
 * there is more than one replica. On an error nothing has changed (but as cohort/var.h says of parameter servers), and *out is not written
 * (COHORT_CHECK_COPIES looks after the step: when it finds copies that differ, INTERNAL, they have changed).
 * `out` may be NULL. */
CH_API CH_MUST_CHECK ch_status ch_strategy_run(ch_strategy *st, ch_function *f, ch_tuple *in,
                                               ch_tuple **out);
CH_API CH_MUST_CHECK ch_status ch_strategy_run_with(ch_strategy *st, ch_function *f,
                                                    ch_tuple *in, const ch_run_options *opt,
                                                    ch_tuple **out);

/* Records the step for inputs of these specs, each replica's own, and runs nothing. A size of -1, of axis 0 only, is
 * any; of a known one too, axis 0 may be another when it runs. From then on the function is that graph: it takes
 * inputs of these names, dtypes and shapes and no others, and is not recorded again. */
CH_API CH_MUST_CHECK ch_status ch_function_declare(ch_function *f, ch_strategy *st, int n,
                                                   const ch_tensor_spec *spec);

/* ---- values of several replicas ---- */

enum { CH_NO_AXIS = -2147483647 - 1 };

/* Combines the components of a per-replica value on the host, in replica order: elementwise, or, with an
 * axis, all that is along it in any of them, so that a component weighs what it has. The mean of integers is
 * f64 (of 8 and 16 bits f32). Of a mirrored value the mean is what each has, and there is no sum. */
CH_API CH_MUST_CHECK ch_status ch_strategy_reduce(ch_strategy *st, ch_reduce_op op,
                                                  const ch_value *v, int axis, ch_tensor **out);
/* Over several axes; n = 0 is CH_NO_AXIS. */
CH_API CH_MUST_CHECK ch_status ch_strategy_reduce_axes(ch_strategy *st, ch_reduce_op op,
                                                       const ch_value *v, int n,
                                                       const int *axis, ch_tensor **out);
/* Each leaf; the result has their names. */
CH_API CH_MUST_CHECK ch_status ch_strategy_reduce_tuple(ch_strategy *st, ch_reduce_op op,
                                                        const ch_tuple *t, int axis,
                                                        ch_tuple **out);

/* The components one after another along an axis, on the host. Sizes of other axes are equal. */
CH_API CH_MUST_CHECK ch_status ch_strategy_gather(ch_strategy *st, const ch_value *v, int axis,
                                                  ch_tensor **out);
CH_API CH_MUST_CHECK ch_status ch_strategy_gather_tuple(ch_strategy *st, const ch_tuple *t,
                                                        int axis, ch_tuple **out);

/* Takes a tuple apart: out[r] gets the leaves of local replica r, for every r below n. A plain leaf is
 * in all of them. n must be ch_strategy_local_replicas(st); any other n is INVALID_ARGUMENT, and `out`
 * is not written. The caller unrefs the n tuples. */
CH_API CH_MUST_CHECK ch_status ch_strategy_local_results(ch_strategy *st, const ch_tuple *t,
                                                         int n, ch_tuple **out);

/* Per-replica values from a function, which is called once for each replica of this process, in order,
 * and makes what that replica will have: tuples of the same number of plain leaves, with the same names. */
typedef struct ch_value_context {
    int replica;    /* in the job */
    int n_replicas; /* in the job */
} ch_value_context;
typedef ch_status (*ch_value_fn)(const ch_value_context *c, void *arg, ch_tuple **out);
CH_API CH_MUST_CHECK ch_status ch_strategy_distribute_values_from_function(ch_strategy *st,
                                                                           ch_value_fn  fn,
                                                                           void        *arg,
                                                                           ch_tuple   **out);

#endif

/* cohort/strategy.h -- where variables live, who runs a step, how results meet.
 *
 *     ch_strategy *st = NULL;
 *     rc = ch_strategy_mirrored(NULL, &st);        // a copy on every device; NULL is Default
 *     rc = ch_strategy_run(st, train, batch, &out);
 *     rc = ch_strategy_reduce(st, CH_SUM, ch_tuple_get(out, "loss"), &loss);
 *
 * Every call takes the strategy first; NULL is the current scope's, else Default, which runs
 * everything on the current device and needs nothing.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_STRATEGY_H
#define COHORT_STRATEGY_H

#include "cohort/function.h"
#include "cohort/value.h"
#include "cohort/var.h"

typedef enum ch_reduce_op { CH_SUM, CH_MEAN } ch_reduce_op;

typedef struct ch_mirrored_options {
    int                n_devices;
    const char *const *device; /* names; n_devices 0: every device of the first type there is
                                  of TPU, GPU, CPU */
} ch_mirrored_options;

/* A copy of every variable on every device; each device is a replica. */
CH_API CH_MUST_CHECK ch_status ch_strategy_mirrored(const ch_mirrored_options *opt,
                                                    ch_strategy              **out);
CH_API ch_strategy            *ch_strategy_ref(ch_strategy *st);
CH_API void                    ch_strategy_unref(ch_strategy *st);

CH_API const char *ch_strategy_name(ch_strategy *st);
CH_API int         ch_strategy_replicas(ch_strategy *st);

typedef struct ch_run_options {
    bool     has_step_number; /* false: the function's runs are counted from 0 */
    int64_t  step_number;     /* for ch_step_number and random numbers */
    uint64_t seed;            /* of random numbers */
} ch_run_options;

/* Runs a step once on every replica. `in` may be NULL for a step without inputs; a per-replica
 * leaf gives each replica its own, a plain one is shared. The results are per-replica where
 * there is more than one replica. On an error nothing has changed, and *out is not written.
 * `out` may be NULL. */
CH_API CH_MUST_CHECK ch_status ch_strategy_run(ch_strategy *st, ch_function *f, ch_tuple *in,
                                               ch_tuple **out);
CH_API CH_MUST_CHECK ch_status ch_strategy_run_with(ch_strategy *st, ch_function *f,
                                                    ch_tuple *in, const ch_run_options *opt,
                                                    ch_tuple **out);

/* Combines the components of a per-replica value elementwise, in replica order, on the host. */
CH_API CH_MUST_CHECK ch_status ch_strategy_reduce(ch_strategy *st, ch_reduce_op op,
                                                  const ch_value *v, ch_tensor **out);

/* In a step: the strategy that records it; borrowed. For code that makes variables there. */
CH_API ch_strategy *ch_step_strategy(ch_step *s);
/* The sum or mean over the replicas, the same on each. */
CH_API ch_node *ch_all_reduce(ch_reduce_op op, ch_node *x);

/* The strategy of this thread until the matching leave; sugar for passing it. */
CH_API CH_MUST_CHECK ch_status ch_strategy_enter(ch_strategy *st);
CH_API void                    ch_strategy_leave(void);
CH_API ch_strategy *
ch_strategy_current(void); /* never NULL: Default without a scope; borrowed */

#endif

/* cohort/extended.h -- the rest of a strategy: for code that places and moves things itself.
 *
 *     ch_value *sum = NULL;
 *     rc = ch_strategy_reduce_to(st, CH_SUM, grads, &(ch_destination){.var = w}, &sum);
 *     rc = ch_strategy_update(st, w, assign, &sum_and_more, NULL);
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_EXTENDED_H
#define COHORT_EXTENDED_H

#include "cohort/strategy.h"

/* ---- where ---- */

/* Replicas run on the worker devices, one on each; variables live on the parameter devices. Borrowed,
 * as long as the strategy. Default has none: FAILED_PRECONDITION. */
CH_API CH_MUST_CHECK ch_status ch_strategy_worker_devices(ch_strategy *st, int *n,
                                                          ch_device *const **out);
CH_API CH_MUST_CHECK ch_status ch_strategy_parameter_devices(ch_strategy *st, int *n,
                                                             ch_device *const **out);

/* What tf.distribute says of a strategy in properties. */
typedef struct ch_strategy_traits {
    bool is_multi_worker;
    bool between_graph;
    bool should_init, should_checkpoint, should_save_summary;
    bool requires_static_shapes;
} ch_strategy_traits;
CH_API ch_strategy_traits ch_strategy_traits_of(ch_strategy *st);

/* What a strategy wants of a session's configuration: `in`, and its own over that. */
typedef struct ch_session_config {
    bool isolate_session_state;
    char collective_group_leader[128]; /* "": none */
    char device_filter[128];           /* "": none */
} ch_session_config;
CH_API void ch_strategy_configure(ch_strategy *st, const ch_session_config *in,
                                  ch_session_config *out);

/* ---- moving ---- */

/* One of these: a device, or where a value or a variable is. */
typedef struct ch_destination {
    const char     *device;
    const ch_value *value;
    ch_var         *var;
} ch_destination;

/* The reduction of a per-replica value, elementwise: a plain value for one device, mirrored for
 * several; under OneDevice and Default it stays where it is. The mean of integers is a float, as that of
 * ch_strategy_reduce. A mirrored value has no sum, and if it is of floats it is its own mean: that is given
 * back, mirrored, wherever it should go. A variable that is the destination is not changed. */
CH_API CH_MUST_CHECK ch_status ch_strategy_reduce_to(ch_strategy *st, ch_reduce_op op,
                                                     const ch_value       *v,
                                                     const ch_destination *to, ch_value **out);
/* n of them; on an error none. */
CH_API CH_MUST_CHECK ch_status ch_strategy_batch_reduce_to(ch_strategy *st, ch_reduce_op op,
                                                           int n, const ch_value *const *v,
                                                           const ch_destination *to,
                                                           ch_value            **out);
/* Both with options of the call's own, which go over the strategy's; NULL: none. It is the caller's thread that adds
 * up, in the order in which replicas would that add in this way: the bits are those of ch_all_reduce. It waits for
 * nobody, so a timeout has nothing to limit, nor do packs. */
CH_API CH_MUST_CHECK ch_status ch_strategy_reduce_to_with(ch_strategy *st, ch_reduce_op op,
                                                          const ch_value                 *v,
                                                          const ch_destination           *to,
                                                          const ch_communication_options *opt,
                                                          ch_value                      **out);
CH_API CH_MUST_CHECK ch_status ch_strategy_batch_reduce_to_with(
    ch_strategy *st, ch_reduce_op op, int n, const ch_value *const *v, const ch_destination *to,
    const ch_communication_options *opt, ch_value **out);
/* Copies of a tensor there. */
CH_API CH_MUST_CHECK ch_status ch_strategy_broadcast_to(ch_strategy *st, ch_tensor *t,
                                                        const ch_destination *to,
                                                        ch_value            **out);

/* The variable that has this tensor as a copy (ch_var_copies), referenced; NULL: none of this strategy's. */
CH_API ch_var *ch_strategy_value_container(ch_strategy *st, const ch_tensor *copy);

/* ---- changing variables ---- */

/* Runs `f` once for each copy of a variable, on its device, with its components of `in`: what it assigns
 * to variables is assigned to that copy, and not aggregated. What copies get of a per-replica value, or of
 * the replica's number, may differ: the log warns of it once, and COHORT_CHECK_COPIES does not look at that
 * variable any more. Where there are several copies, results are called mirrored, as copies are, though they
 * differ where the copies do. FAILED_PRECONDITION if `f` assigns to a variable that has several copies, and not one on each of
 * these devices: they would differ. One with a single copy may be assigned from anywhere. */
CH_API CH_MUST_CHECK ch_status ch_strategy_update(ch_strategy *st, ch_var *v, ch_function *f,
                                                  ch_tuple *in, ch_tuple **out);
/* Where what goes with these variables, and is none of them, should be: for update_non_slot. */
CH_API CH_MUST_CHECK ch_status ch_strategy_non_slot_devices(ch_strategy *st, int n,
                                                            ch_var *const  *v,
                                                            ch_destination *out);
/* The same on a device, or where a value or a variable is; a value has one component, or one for each replica. */
CH_API CH_MUST_CHECK ch_status ch_strategy_update_non_slot(ch_strategy          *st,
                                                           const ch_destination *where,
                                                           ch_function *f, ch_tuple *in,
                                                           ch_tuple **out);

/* ---- making variables ---- */

/* Makes variables of this thread go where v is, until the matching leave. Must be called inside the scope of
 * v's strategy (ch_strategy_enter) or in a step of it, else it is FAILED_PRECONDITION. `st` is NULL or that
 * strategy. */
CH_API CH_MUST_CHECK ch_status ch_colocate_enter(ch_strategy *st, ch_var *v);
CH_API void                    ch_colocate_leave(void);

/* Sees the specification of each variable that this thread makes until the matching leave, and may
 * change it; an error is that of ch_var_new (ch_fail says why). The innermost is asked first. */
typedef ch_status (*ch_var_creator)(ch_var_spec *spec, void *arg);
CH_API CH_MUST_CHECK ch_status ch_var_creator_enter(ch_var_creator fn, void *arg);
CH_API void                    ch_var_creator_leave(void);

#endif

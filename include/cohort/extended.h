/* cohort/extended.h -- strategy.extended: placement and movement of values, for library code.
 *
 * These functions are the counterpart of tf.distribute.StrategyExtended. Most programs do not
 * need them.
 *
 *     ch_value *sum = NULL;
 *     ch_tuple *in = NULL;
 *     rc = ch_strategy_reduce_to(st, CH_SUM, grads, &(ch_destination){.var = w}, &sum);
 *     rc = ch_tuple_new(1, &sum, NULL, &in);
 *     rc = ch_strategy_update(st, w, assign, in, NULL); // assign: a ch_function
 *
 *   - `st` NULL is the strategy of the current scope, as in cohort/strategy.h.
 *   - The caller unrefs the values and tuples that it is given. Devices are borrowed.
 *   - The calls that move values or change variables must be made in cross-replica context,
 *     that is, outside a step.
 *   - The scopes of the last section belong to the calling thread.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_EXTENDED_H
#define COHORT_EXTENDED_H

#include "cohort/strategy.h"

/* ---- devices and properties ---- */

/* Return the worker devices, each of which runs a replica, and the parameter devices, which
 * hold the variables. The array is valid as long as the strategy. FAILED_PRECONDITION: the
 * Default strategy has no devices of its own. */
CH_API CH_MUST_CHECK ch_status ch_strategy_worker_devices(ch_strategy *st, int *n,
                                                          ch_device *const **out);
CH_API CH_MUST_CHECK ch_status ch_strategy_parameter_devices(ch_strategy *st, int *n,
                                                             ch_device *const **out);

/* The properties of tf.distribute.StrategyExtended with these names. */
typedef struct ch_strategy_traits {
    bool is_multi_worker;
    bool between_graph;
    bool should_init, should_checkpoint, should_save_summary;
    bool requires_static_shapes;
} ch_strategy_traits;
CH_API ch_strategy_traits ch_strategy_traits_of(ch_strategy *st);

/* Writes to `out` the session configuration that a strategy needs: a copy of `in`, with the
 * strategy's own settings over it. `in` may be NULL. */
typedef struct ch_session_config {
    bool isolate_session_state;
    char collective_group_leader[128]; /* "": none */
    char device_filter[128];           /* "": none */
} ch_session_config;
CH_API void ch_strategy_configure(ch_strategy *st, const ch_session_config *in,
                                  ch_session_config *out);

/* ---- moving values ---- */

/* A set of devices. Exactly one field must be set. */
typedef struct ch_destination {
    const char     *device; /* the device with this name */
    const ch_value *value;  /* the devices of the components */
    ch_var         *var;    /* the devices of the copies */
} ch_destination;

/* Reduces a per-replica value elementwise, and copies the result to the destination. The result
 * is a plain value for a single device, and a mirrored value for several. If the destination is
 * a variable, the variable does not change.
 *
 * Under OneDevice and Default the value stays where it is. The mean of integers is a float, as
 * in ch_strategy_reduce. CH_SUM of a mirrored value is an error. CH_MEAN of a mirrored float
 * value is that value, on its own devices. */
CH_API CH_MUST_CHECK ch_status ch_strategy_reduce_to(ch_strategy *st, ch_reduce_op op,
                                                     const ch_value       *v,
                                                     const ch_destination *to, ch_value **out);
/* Reduces v[i] to to[i], for n values. On an error `out` is not written. */
CH_API CH_MUST_CHECK ch_status ch_strategy_batch_reduce_to(ch_strategy *st, ch_reduce_op op,
                                                           int n, const ch_value *const *v,
                                                           const ch_destination *to,
                                                           ch_value            **out);
/* Reduce like the functions above, with options for this call, which override the strategy's
 * options; NULL: none. The calling thread adds the components in the order that
 * `implementation` defines, so the result has the same bits as ch_all_reduce. These calls do
 * not wait for other threads, so the timeout and the pack size have no effect. */
CH_API CH_MUST_CHECK ch_status ch_strategy_reduce_to_with(ch_strategy *st, ch_reduce_op op,
                                                          const ch_value                 *v,
                                                          const ch_destination           *to,
                                                          const ch_communication_options *opt,
                                                          ch_value                      **out);
CH_API CH_MUST_CHECK ch_status ch_strategy_batch_reduce_to_with(
    ch_strategy *st, ch_reduce_op op, int n, const ch_value *const *v, const ch_destination *to,
    const ch_communication_options *opt, ch_value **out);
/* Copies a tensor to each device of the destination. UNIMPLEMENTED for the Default strategy. */
CH_API CH_MUST_CHECK ch_status ch_strategy_broadcast_to(ch_strategy *st, ch_tensor *t,
                                                        const ch_destination *to,
                                                        ch_value            **out);

/* Returns a reference to the variable of which this tensor is a copy (ch_var_copies). NULL: no
 * variable of this strategy. */
CH_API ch_var *ch_strategy_value_container(ch_strategy *st, const ch_tensor *copy);

/* ---- updating variables ---- */

/* Runs `f` for each copy of a variable, on the device of the copy, with the copy's components
 * of `in`. An assignment in `f` changes that copy, and is not aggregated over replicas. `in`
 * and `out` may be NULL.
 *
 * If `f` assigns a per-replica value or something computed from the replica id, the copies may
 * differ. The log then warns once, and COHORT_CHECK_COPIES ignores the variable from then on.
 * If there are several copies, the results are mirrored values, even if they differ.
 *
 * FAILED_PRECONDITION: `f` assigns to another variable that has several copies, but not a copy
 * on each of these devices. A variable with a single copy may be assigned. */
CH_API CH_MUST_CHECK ch_status ch_strategy_update(ch_strategy *st, ch_var *v, ch_function *f,
                                                  ch_tuple *in, ch_tuple **out);
/* Writes the destination for state that belongs to these variables but is not a slot of any of
 * them. It is an argument of ch_strategy_update_non_slot. */
CH_API CH_MUST_CHECK ch_status ch_strategy_non_slot_devices(ch_strategy *st, int n,
                                                            ch_var *const  *v,
                                                            ch_destination *out);
/* Runs `f` like ch_strategy_update, on each device of `where`. If `where` is a value, it must
 * have a single component, or a component for each replica. */
CH_API CH_MUST_CHECK ch_status ch_strategy_update_non_slot(ch_strategy          *st,
                                                           const ch_destination *where,
                                                           ch_function *f, ch_tuple *in,
                                                           ch_tuple **out);

/* ---- creating variables ---- */

/* Place the variables that this thread creates on the devices of v, until the matching leave.
 * ch_colocate_enter must be called inside the scope of v's strategy (ch_strategy_enter) or in a
 * step of it. `st` must be NULL or that strategy. FAILED_PRECONDITION: there is no scope, or
 * `st` is another strategy. INVALID_ARGUMENT: v is of another strategy. Calls nest, up to 64
 * deep. */
CH_API CH_MUST_CHECK ch_status ch_colocate_enter(ch_strategy *st, ch_var *v);
CH_API void                    ch_colocate_leave(void);

/* Call `fn` for each variable that this thread creates, until the matching leave. `fn` may
 * change the spec of the variable. If a restored value waits for the variable
 * (cohort/checkpoint.h), `fn` sees the same spec, and the restored value replaces the initial
 * value afterwards. If `fn` returns an error, ch_var_new returns it; `fn` sets
 * the message with ch_fail. Calls nest, up to 64 deep; the innermost function is called
 * first. */
typedef ch_status (*ch_var_creator)(ch_var_spec *spec, void *arg);
CH_API CH_MUST_CHECK ch_status ch_var_creator_enter(ch_var_creator fn, void *arg);
CH_API void                    ch_var_creator_leave(void);

#endif

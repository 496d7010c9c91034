/* cohort/effect.h -- ops that check, tell and call out.
 *
 *     x = ch_check_numerics(x, "logits");      // a run with NaN or Inf fails, and says where
 *     ch_print(loss, "loss");                  // to the log, in every run
 *     y = ch_mul(x, ch_stop_gradient(scale));
 *
 * What is seen from outside keeps its recorded order, and stays though nobody uses its result.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_EFFECT_H
#define COHORT_EFFECT_H

#include "cohort/step.h"

/* x, as a node of its own; and x where gradients are taken as of a constant. They cost nothing.
 */
CH_API ch_node *ch_identity(ch_node *x);
CH_API ch_node *ch_stop_gradient(ch_node *x);

/* x, a float; a run in which it has NaN or Inf fails with INVALID_ARGUMENT, which names
 * `message`, what was found and the first index. Its gradient is checked likewise. */
CH_API ch_node *ch_check_numerics(ch_node *x, const char *message);

/* A run in which an element of `condition` (bool) is false fails with INVALID_ARGUMENT and this
 * message, and changes no variable. */
CH_API void ch_check(ch_node *condition, const char *message);

/* x; each run writes "label: tensor(f32 (2,) [1 2])" to the log, at its own level, CH_LOG_PRINT,
 * which goes to stderr unless the program has a sink; with several replicas, "replica 0, label:
 * ...". */
CH_API ch_node *ch_print(ch_node *x, const char *label);

/* A function of the program that a step calls. It may read `in` and must fill `out`, contiguous
 * tensors which are valid only during the call. On an error the run fails and no variable has
 * changed. Every replica calls it, from its own thread. */
typedef ch_status (*ch_host_fn)(void *arg, int n_in, ch_tensor *const *in, int n_out,
                                ch_tensor *const *out);

#define CH_MAX_HOST_IN  16
#define CH_MAX_HOST_OUT 8

typedef struct ch_host_out {
    ch_dtype       dtype;
    ch_shape       shape;
    const ch_node *like; /* if not NULL: this one's sizes, rows included, in place of shape */
} ch_host_out;

typedef struct ch_host_spec {
    const char *name; /* for messages; NULL: none */
    ch_host_fn  fn;
    void       *arg; /* borrowed as long as the step can run */
    int         n_out;
    ch_host_out out[CH_MAX_HOST_OUT];
} ch_host_spec;

/* Calls a host function in every run; `out` gets n_out nodes and may be NULL if there are none.
 * It has no gradient, and a step that calls one cannot be encoded. */
CH_API void ch_host_call(ch_step *s, const ch_host_spec *spec, int n_in, ch_node *const *in,
                         ch_node **out);

#endif

/* cohort/effect.h -- ops with effects: checks, printing, calls of C functions in a step.
 *
 * An op with an effect can make a run fail, write to the log, or call the program. Effects
 * happen in recording order, even if no other op uses the result.
 *
 *     x = ch_check_numerics(x, "logits"); // the run fails if x has NaN or Inf
 *     ch_print(loss, "loss");             // writes the loss to the log in every run
 *     y = ch_mul(x, ch_stop_gradient(scale));
 *
 *   - The step owns the nodes. Messages, labels and names are copied.
 *   - If a check or a host function fails, the run returns the error and no variable has
 *     changed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_EFFECT_H
#define COHORT_EFFECT_H

#include "cohort/step.h"

/* Return x as a new node. ch_stop_gradient is a constant for gradients. Both cost nothing. */
CH_API ch_node *ch_identity(ch_node *x);
CH_API ch_node *ch_stop_gradient(ch_node *x);

/* Returns x, which must be a float. If x has NaN or Inf, the run fails with INVALID_ARGUMENT.
 * The error has `message`, the value found and the first index. The gradient of the node is
 * checked too. */
CH_API ch_node *ch_check_numerics(ch_node *x, const char *message);

/* Makes the run fail with INVALID_ARGUMENT and this message if an element of `condition`, of
 * dtype bool, is false. */
CH_API void ch_check(ch_node *condition, const char *message);

/* Returns x. Each run writes "label: tensor(f32 (2,) [1 2])" to the log; with several replicas,
 * "replica 0, label: ...". The level is CH_LOG_PRINT, which goes to stderr unless the program
 * has a sink (cohort/log.h). */
CH_API ch_node *ch_print(ch_node *x, const char *label);

/* A C function that a step calls. It reads the tensors of `in` and must fill the tensors of
 * `out`. They are contiguous, and valid only during the call. Every replica calls the function,
 * and calls of different replicas may overlap in different threads. */
typedef ch_status (*ch_host_fn)(void *arg, int n_in, ch_tensor *const *in, int n_out,
                                ch_tensor *const *out);

#define CH_MAX_HOST_IN  16
#define CH_MAX_HOST_OUT 8

typedef struct ch_host_out {
    ch_dtype       dtype;
    ch_shape       shape;
    const ch_node *like; /* a node with the sizes of the output, rows included; NULL: `shape` */
} ch_host_out;

typedef struct ch_host_spec {
    const char *name; /* for error messages; may be NULL */
    ch_host_fn  fn;
    void       *arg; /* passed on to fn; must be valid as long as the step can run */
    int         n_out;
    ch_host_out out[CH_MAX_HOST_OUT];
    /* Computes the gradients of the inputs, with the same `arg`. Its inputs are those of the
     * call, then the gradients of the float outputs; its outputs are the gradients of the float
     * inputs. The limits of CH_MAX_HOST_IN and CH_MAX_HOST_OUT hold for it too. NULL:
     * ch_gradient through the call is UNIMPLEMENTED. */
    ch_host_fn gradient;
} ch_host_spec;

/* Calls a C function in every run. Writes n_out nodes to `out`, which may be NULL if n_out is
 * 0. A step with a host call cannot be encoded. */
CH_API void ch_host_call(ch_step *s, const ch_host_spec *spec, int n_in, ch_node *const *in,
                         ch_node **out);

#endif

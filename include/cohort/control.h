/* cohort/control.h -- branches and loops inside a step.
 *
 * The bodies are C functions that record, once, what each branch or iteration does. They may
 * use any node of the step around them. Everything can be differentiated.
 *
 *     static void body(ch_step *s, void *arg, ch_node *const *h, ch_node *const *x,
 *                      ch_node **next, ch_node **y)
 *     {
 *         next[0] = y[0] = ch_tanh(ch_add(ch_matmul(h[0], false, arg, false), x[0]));
 *     }
 *     ch_scan(s, &(ch_scan_spec){.n_carry = 1, .n_x = 1, .n_y = 1}, body, w, &h0, &xs, &h, &hs);
 *
 * Inside a body no variable can be assigned and no collective stands: return the value, and do
 * it outside.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_CONTROL_H
#define COHORT_CONTROL_H

#include "cohort/step.h"

/* Records one branch: sets out[0 .. n_out - 1]. */
typedef void (*ch_branch_fn)(ch_step *s, void *arg, ch_node **out);

/* `then` if `pred` (a bool scalar) is true when the step runs, else `otherwise`; only one of
 * them is computed. Both give n_out values, 1 to 64, of equal types and shapes. */
CH_API void ch_cond(ch_node *pred, int n_out, ch_branch_fn then, ch_branch_fn otherwise,
                    void *arg, ch_node **out);

typedef struct ch_scan_spec {
    int     n_carry; /* values handed from one iteration to the next */
    int     n_x;     /* values cut along axis 0: each iteration gets a slice */
    int     n_y;     /* values that each iteration gives, stacked along axis 0 */
    int64_t length;  /* iterations, where there are no xs to say it */
    bool    reverse; /* from the last slice to the first */
} ch_scan_spec;

/* Records one iteration: sets next[0 .. n_carry - 1] and y[0 .. n_y - 1]. */
typedef void (*ch_scan_fn)(ch_step *s, void *arg, ch_node *const *carry, ch_node *const *x,
                           ch_node **next, ch_node **y);

/* Runs the iterations in turn. `last` gets the carries of the last one; it and y may be
 * NULL. 2 n_carry + n_y is at most 64. */
CH_API void ch_scan(ch_step *s, const ch_scan_spec *spec, ch_scan_fn fn, void *arg,
                    ch_node *const *carry, ch_node *const *x, ch_node **last, ch_node **y);

/* Records the test (a bool scalar), and the iteration: sets next[0 .. n - 1]. */
typedef ch_node *(*ch_while_test)(ch_step *s, void *arg, ch_node *const *state);
typedef void (*ch_while_body)(ch_step *s, void *arg, ch_node *const *state, ch_node **next);

/* Iterates on n values, up to 31, while the test holds, at most `limit` times. Time and memory follow the
 * iterations made, also in the gradient, but a gradient reserves address space for `limit`
 * states. If these would not fit in the memory of the machine, CH_RESOURCE_EXHAUSTED names the
 * limit and the bytes: ch_gradient fails, or the run if the sizes of the state depend on its
 * inputs. Without a gradient any limit will do. */
CH_API void ch_while(ch_step *s, int n, int64_t limit, ch_while_test test, ch_while_body body,
                     void *arg, ch_node *const *state, ch_node **last);

#endif

/* cohort/control.h -- control flow in a step: conditions and loops.
 *
 * A condition or a loop is an op. Its branches and its body are C functions of the program,
 * which record nodes. They are called while the step is recorded, not in every iteration.
 *
 *     static void body(ch_step *s, void *arg, ch_node *const *h, ch_node *const *x,
 *                      ch_node **next, ch_node **y)
 *     {
 *         next[0] = y[0] = ch_tanh(ch_add(ch_matmul(h[0], false, arg, false), x[0]));
 *     }
 *     ch_scan_spec spec = {.n_carry = 1, .n_x = 1, .n_y = 1};
 *     ch_scan(s, &spec, body, w, &h0, &xs, &h, &hs);
 *
 *   - A branch or body may use any node of the enclosing step.
 *   - A branch or body must not assign a variable or use a collective (cohort/replica.h).
 *     Return the value, and assign or reduce it outside.
 *   - All of these ops have gradients.
 *   - The step owns the nodes. `arg` is passed on to the functions, and is not used after the
 *     call.
 *   - Results are NULL after an error; the step keeps the error (cohort/step.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_CONTROL_H
#define COHORT_CONTROL_H

#include "cohort/step.h"

/* Records a branch. Must set out[0] to out[n_out - 1]. */
typedef void (*ch_branch_fn)(ch_step *s, void *arg, ch_node **out);

/* Computes `then` if `pred`, a bool scalar, is true when the step runs, and `otherwise` if it
 * is false. The other branch is not computed. Both branches must give n_out values, 1 to 64, of
 * equal dtypes and shapes. */
CH_API void ch_cond(ch_node *pred, int n_out, ch_branch_fn then, ch_branch_fn otherwise,
                    void *arg, ch_node **out);

typedef struct ch_scan_spec {
    int     n_carry; /* values that an iteration passes on to the next iteration */
    int     n_x;     /* values cut along axis 0: each iteration gets a slice of each */
    int     n_y;     /* values that each iteration gives; they are stacked along axis 0 */
    int64_t length;  /* number of iterations if n_x is 0; else the size of axis 0 of x[0] */
    bool    reverse; /* run from the last slice to the first */
} ch_scan_spec;

/* Records an iteration. Must set next[0] to next[n_carry - 1] and y[0] to y[n_y - 1]. next[i]
 * must have the dtype and shape of carry[i]. */
typedef void (*ch_scan_fn)(ch_step *s, void *arg, ch_node *const *carry, ch_node *const *x,
                           ch_node **next, ch_node **y);

/* Runs the iterations in order. Writes the carries after the last iteration to `last` and the
 * stacked values to `y`; either may be NULL. 2 * n_carry + n_y must be at most 64. */
CH_API void ch_scan(ch_step *s, const ch_scan_spec *spec, ch_scan_fn fn, void *arg,
                    ch_node *const *carry, ch_node *const *x, ch_node **last, ch_node **y);

/* Record the test, which returns a bool scalar, and an iteration, which must set next[0] to
 * next[n - 1]. next[i] must have the dtype and shape of state[i]. */
typedef ch_node *(*ch_while_test)(ch_step *s, void *arg, ch_node *const *state);
typedef void (*ch_while_body)(ch_step *s, void *arg, ch_node *const *state, ch_node **next);

/* Repeats `body` on n values, at most 31, while `test` is true, but at most `limit` times.
 * Writes the final values to `last`.
 *
 * Time and memory depend on the iterations made, also in the gradient. A gradient reserves
 * address space for `limit` states. If these are larger than the memory of the machine,
 * CH_RESOURCE_EXHAUSTED names the limit and the bytes: ch_gradient fails, or the run fails if
 * the sizes of the state depend on its inputs. Without a gradient, `limit` may be any
 * number. */
CH_API void ch_while(ch_step *s, int n, int64_t limit, ch_while_test test, ch_while_body body,
                     void *arg, ch_node *const *state, ch_node **last);

#endif

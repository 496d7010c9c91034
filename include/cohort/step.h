/* cohort/step.h -- recording a step.
 *
 * A step is a C function that runs once to record a graph. It gets a ch_step, asks it for
 * its inputs, combines nodes with the ops of cohort/ops.h and names its outputs:
 *
 *     static void train(ch_step *s, void *arg)
 *     {
 *         ch_node *x = ch_step_in(s, 0), *y = ch_step_in(s, 1);
 *         ch_node *w = ch_var_read(s, arg);
 *         ch_node *loss = ch_mean_all(ch_square(ch_sub(ch_matmul(x, false, w, false), y)));
 *         ch_node *dw = ch_gradient(loss, w);
 *         ch_var_assign_sub(s, arg, ch_mul(ch_number(s, 0.1), dw));
 *         ch_step_out(s, "loss", loss);
 *     }
 *
 * A node is a value that will exist when the step runs, on every replica. Rules:
 *   - What differs between runs or replicas is a node and never a C number: the replica's id,
 *     the number of rows, the step's number. What C code reads while recording is frozen.
 *   - Axis 0 of an input is a symbol (its rows), so that one recording serves every batch size.
 *   - Errors stick: an op that is given NULL returns NULL, the first error is kept, and the
 *     run that recorded returns it. Model code checks nothing.
 *   - Nodes belong to the step's graph; there is nothing to free.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_STEP_H
#define COHORT_STEP_H

#include "cohort/tensor.h"

typedef struct ch_step ch_step;
typedef struct ch_node ch_node;

typedef void (*ch_step_fn)(ch_step *s, void *arg);

/* The i-th input, and the one of a name; an error sticks if there is none. In a branch or loop
 * body too, these are the step's inputs. */
CH_API ch_node *ch_step_in(ch_step *s, int i);
CH_API ch_node *ch_step_in_named(ch_step *s, const char *name);
CH_API int      ch_step_in_count(const ch_step *s);

/* Makes a node a result of the step, in this order. `name` may be NULL; it is copied. Not in a
 * branch or loop body, which has results of its own. */
CH_API void ch_step_out(ch_step *s, const char *name, ch_node *n);

/* Names the part of the model that is being recorded, for errors and printing. They nest:
 * enter "block", enter "dense" is the path block/dense. */
CH_API void ch_step_enter(ch_step *s, const char *scope);
CH_API void ch_step_leave(ch_step *s);

/* The first error of this recording, CH_OK if there is none; its text is then this
 * thread's message. For C code that wants to stop early. */
CH_API ch_status ch_step_status(ch_step *s);
/* Makes the recording fail, with a printf-like reason; the first error stays. The status is
 * INVALID_ARGUMENT, or the one that is given; CH_OK counts as INVALID_ARGUMENT too. A format of NULL
 * stands for the status's own words. */
CH_API void ch_step_fail_as(ch_step *s, ch_status status, const char *format, ...)
    CH_LIKE_PRINTF(3, 4);
CH_API void ch_step_fail(ch_step *s, const char *format, ...) CH_LIKE_PRINTF(2, 3);

/* Numbers that only a run knows, as scalar nodes. */
CH_API ch_node *ch_step_replica_id(ch_step *s);    /* i32: 0 .. replicas - 1 */
CH_API ch_node *ch_step_replica_count(ch_step *s); /* i32, weak (see ch_number) */
/* i64, weak: rows of input 0, over all replicas. If input 0 is the values or the row splits of a
 * ragged component, these are the rows of the component, not its values. */
CH_API ch_node *ch_step_global_rows(ch_step *s);
CH_API ch_node *ch_step_number(ch_step *s); /* i64: the number of this run, from 0 */
CH_API ch_node *ch_rows(ch_node *x);        /* i64, weak: the size of axis 0 */

/* Constants. A number is weak: beside a node of another type it takes that type, so that
 * ch_mul(x, ch_number(s, 0.5)) is right for f32, f64 and bf16. */
CH_API ch_node *ch_number(ch_step *s, double value);
CH_API ch_node *ch_constant(ch_step *s, ch_tensor *t); /* the tensor must not change any more */

/* What is known of a node while recording. A size that is a symbol shows as -1. The step is the
 * one that ops of the node are recorded in now: in a branch or loop body, the body's. Of NULL,
 * which an op gives after an error: f32, a scalar, NULL. */
CH_API ch_dtype ch_node_dtype(const ch_node *n);
CH_API ch_shape ch_node_shape(const ch_node *n);
CH_API ch_step *ch_node_step(const ch_node *n);

/* d sum(y) / d x: a node of x's shape, zeros where y does not depend on x. Gradients are
 * nodes, and can be differentiated again. */
CH_API ch_node *ch_gradient(ch_node *y, ch_node *x);
/* The same for n at once, in one backward pass. `dy` may be NULL for ones. */
CH_API void ch_gradients(ch_node *y, ch_node *dy, int n, ch_node *const *x, ch_node **dx);

#endif

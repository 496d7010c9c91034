/* cohort/step.h -- steps: C functions that record a graph of nodes.
 *
 * A step is a C function that runs once, to record a graph, like a tf.function. It gets a
 * ch_step, reads its inputs from it, combines nodes with the ops of cohort/ops.h, and names its
 * outputs. The graph then runs many times, on every replica.
 *
 *     static void train_step(ch_step *s, void *arg)
 *     {
 *         ch_node *x = ch_step_in(s, 0), *y = ch_step_in(s, 1);
 *         ch_node *w = ch_var_read(s, arg);
 *         ch_node *error = ch_sub(ch_matmul(x, false, w, false), y);
 *         ch_node *loss = ch_div(ch_sum_all(ch_square(error)), ch_step_global_rows(s));
 *         ch_node *dw = ch_all_reduce(CH_SUM, ch_gradient(loss, w)); // over the replicas
 *         ch_var_assign_sub(s, arg, ch_mul(ch_number(s, 0.1), dw));
 *         ch_step_out(s, "loss", loss);
 *     }
 *
 * A node is a value that exists when the step runs, on every replica.
 *
 *   - A value that differs between runs or replicas must be a node, not a C number: the replica
 *     id, the number of rows, the number of the step. A C value that the function reads while
 *     it records becomes a constant of the graph.
 *   - Axis 0 of an input, its rows, is a symbol, so that a single recording works for every
 *     batch size.
 *   - Errors: after an error an op returns NULL, and an op that is given NULL returns NULL. The
 *     step keeps the first error, and the run that recorded the step returns it. Model code
 *     need not check for errors.
 *   - A list of results must not overlap a list of arguments.
 *   - Ownership: nodes belong to the graph of the step. There is nothing to free.
 *   - Threads: a step and its nodes must be used only by the thread that records the step, and
 *     only until the function returns.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_STEP_H
#define COHORT_STEP_H

#include "cohort/tensor.h"

typedef struct ch_step ch_step;
typedef struct ch_node ch_node;

/* Records a step. `arg` is the argument of ch_function_new. */
typedef void (*ch_step_fn)(ch_step *s, void *arg);

/* ch_step_in returns input i, ch_step_in_named the input with a name, and ch_step_in_count the
 * number of inputs. A missing input is an error of the step. In a branch or loop body too,
 * these are the inputs of the step. */
CH_API ch_node *ch_step_in(ch_step *s, int i);
CH_API ch_node *ch_step_in_named(ch_step *s, const char *name);
CH_API int      ch_step_in_count(const ch_step *s);

/* Makes a node the next output of the step. `name` may be NULL; it is copied. Must not be
 * called in a branch or loop body, which has outputs of its own. */
CH_API void ch_step_out(ch_step *s, const char *name, ch_node *n);

/* ch_step_enter names the part of the model that is recorded until the matching ch_step_leave,
 * for error messages and printing. Scopes nest: "dense" entered inside "block" is the path
 * block/dense. */
CH_API void ch_step_enter(ch_step *s, const char *scope);
CH_API void ch_step_leave(ch_step *s);

/* Returns the first error of this recording, or CH_OK. Its text becomes this thread's message.
 * For code that stops early. */
CH_API ch_status ch_step_status(ch_step *s);
/* ch_step_fail and ch_step_fail_as make the recording fail, with a printf format. The step
 * keeps the first error. ch_step_fail uses INVALID_ARGUMENT, ch_step_fail_as the given status
 * (CH_OK counts as INVALID_ARGUMENT). A NULL format stands for the text of the status. */
CH_API void ch_step_fail_as(ch_step *s, ch_status status, const char *format, ...)
    CH_LIKE_PRINTF(3, 4);
CH_API void ch_step_fail(ch_step *s, const char *format, ...) CH_LIKE_PRINTF(2, 3);

/* These functions return numbers that are known only when the step runs, as scalar nodes. */
CH_API ch_node *ch_step_replica_id(ch_step *s);    /* i32: 0 to replicas - 1 */
CH_API ch_node *ch_step_replica_count(ch_step *s); /* i32, weak (see ch_number) */
/* Returns the rows of input 0 over all replicas: i64, weak. If input 0 is the values or the row
 * splits of a ragged component, the result is the number of rows of the component. */
CH_API ch_node *ch_step_global_rows(ch_step *s);
CH_API ch_node *ch_step_number(ch_step *s); /* i64: the number of this run, from 0 */
CH_API ch_node *ch_rows(ch_node *x);        /* i64, weak: the size of axis 0 */

/* Returns a constant number. It is weak: next to a node of another dtype it takes that dtype.
 * So ch_mul(x, ch_number(s, 0.5)) works for f32, f64 and bf16. */
CH_API ch_node *ch_number(ch_step *s, double value);
/* Returns a constant tensor. The tensor must not be changed afterwards. */
CH_API ch_node *ch_constant(ch_step *s, ch_tensor *t);

/* These functions return the dtype, the shape and the step of a node, while the step is
 * recorded. A size that is a symbol is -1. The step is the one that ops on the node are
 * recorded in: in a branch or loop body, that of the body. For NULL, which an op returns after
 * an error, the results are CH_F32, a scalar and NULL. */
CH_API ch_dtype ch_node_dtype(const ch_node *n);
CH_API ch_shape ch_node_shape(const ch_node *n);
CH_API ch_step *ch_node_step(const ch_node *n);

/* Returns the gradient d sum(y) / d x: a node with the shape of x, zeros where y does not
 * depend on x. Gradients are ordinary nodes and can be differentiated again. */
CH_API ch_node *ch_gradient(ch_node *y, ch_node *x);
/* Computes the gradients for n nodes in a single backward pass, and writes them to `dx`. `dy`
 * is the gradient of y; NULL: ones. */
CH_API void ch_gradients(ch_node *y, ch_node *dy, int n, ch_node *const *x, ch_node **dx);

#endif

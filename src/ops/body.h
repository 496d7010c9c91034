/* ops/body.h -- bodies: the subgraphs of cond and scan, held as attributes.
 *
 * When a call is prepared, each of its bodies is planned as a program. The program runs in the
 * scratch of the call. The inputs of a body are the values that the op passes, then the
 * captures: nodes of the enclosing graphs that the body uses. Captures are ordinary inputs of
 * the call.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_BODY_H
#define OPS_BODY_H

#include "graph/program.h"
#include "graph/step.h"

/* A planned body, part of the state of a kernel. */
typedef struct ch_body {
    ch_program *program; /* the owner must unref it */
    /* offsets in the scratch of the call */
    size_t run_at, instance_at, arena_at, pointers_at;
    int    n_in, n_out;
} ch_body;

/* A body that runs, for the duration of a call. All memory is in the scratch of the call, so a
 * call that is repeated after CH__BLOCKED continues its body. */
typedef struct ch_body_run {
    ch_instance *instance;
    const void **in;  /* addresses of the inputs, b->n_in */
    void       **out; /* addresses of the outputs, b->n_out */
    ch_env       env;
    ch_bind      bind;
    int64_t      iteration; /* for loops; 0 at first */
    bool         is_blocked;
} ch_body_run;

/* Reserves `bytes` of scratch after the *used bytes that are reserved, and adds to *used.
 * Returns the offset of the reserved bytes. */
size_t ch__scratch_alloc(size_t *used, size_t bytes);
/* Plans body g of the call that p describes, and reserves the scratch that the body needs. */
ch_status ch__body_prepare(ch_body *b, ch_graph *g, ch_prep *p, size_t *used);
/* Sets up the body in the scratch of call c, unless the call is repeated: then the body is as
 * it was. The caller must set r->in and r->out of the result if it is not blocked. */
ch_body_run *ch__body_start(const ch_body *b, const ch_call *c);
/* Runs the body, or continues it if it is blocked. Returns its first error, or CH__BLOCKED. */
ch_status ch__body_run(ch_body_run *r);

/* Fails unless inputs [from, from + n) of the call have the dtypes and dims of inputs
 * [at, at + n) of body g. If `cut`, the body gets slices along axis 0 of these inputs. */
ch_status ch__body_check(const ch_infer *c, const ch_graph *g, int from, int at, int n,
                         bool cut);

/* Records a call with the inputs of three lists, in order. Sets out[0 .. n_out - 1] to its
 * first outputs. Leaves `out` unchanged after an error, which the step keeps. */
void ch__record_call(ch_step *s, const ch_op *op, const void *attrs, int n0,
                     ch_node *const *in0, int n1, ch_node *const *in1, int n2,
                     ch_node *const *in2, int n_out, ch_node **out);
/* Returns true if n, the number of outputs of a call, is 1 to CH_MAX_OUT. Otherwise records an
 * error, which begins with `what`, in the step. */
bool ch__fits_outputs(ch_step *s, const char *what, int n);

/* Returns the number of inputs [from, to) of body g that are floats. Only these have a
 * gradient. */
int ch__count_floats(const ch_graph *g, int from, int to);
/* Records body g a second time, in s, with inputs `in`. Then differentiates the sum of
 * out[i] * dout[i] with respect to the float inputs, and sets d to their gradients, in order.
 * dout[i] may be NULL. */
void ch__body_gradient(ch_step *s, const ch_graph *g, ch_node *const *in, ch_node *const *dout,
                       ch_node **d);

#endif

/* ops/body.h -- what cond and scan share: bodies, which are graphs in attributes.
 *
 * A body is planned as a program of its own when the call is prepared, and runs in the call's
 * scratch. The inputs of a body are the values it is handed, then what it captured of the
 * graphs around it; captures are ordinary inputs of the call.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_BODY_H
#define OPS_BODY_H

#include "graph/program.h"
#include "graph/step.h"

/* A body ready to run: its program, and where in the call's scratch its parts are. */
typedef struct ch_body {
    ch_program *program;
    size_t      instance_at, arena_at, pointers_at; /* in scratch */
    int         n_in, n_out;
} ch_body;

/* A body on a device, for the length of one call. */
typedef struct ch_attempt {
    ch_instance *instance;
    const void **in;
    void       **out;
    ch_env       env;
    ch_bind      bind;
} ch_attempt;

/* Takes `bytes` of scratch, of which *used are taken; where they begin. */
size_t ch__scratch_take(size_t *used, size_t bytes);
/* Plans body g of call p, and takes the scratch it needs. */
ch_status ch__body_prepare(ch_body *b, ch_graph *g, ch_prep *p, size_t *used);
/* Sets it up in the scratch of call c; r->in and r->out are the caller's to fill. */
void ch__body_start(const ch_body *b, const ch_call *c, ch_attempt *r);

/* Inputs [from, from + n) of the call must be what inputs [at, at + n) of body g say; cut: each
 * is a stack of what the body takes. */
ch_status ch__body_check(const ch_infer *c, const ch_graph *g, int from, int at, int n,
                         bool cut);

/* Records a call whose inputs are three lists; sets its first n_out outputs. */
void ch__record_call(ch_step *s, const ch_op *op, const void *attrs, int n0,
                     ch_node *const *in0, int n1, ch_node *const *in1, int n2,
                     ch_node *const *in2, int n_out, ch_node **out);
/* True if so many outputs are possible; the error sticks if not. */
bool ch__fits_outputs(ch_step *s, const char *what, int n);

/* The inputs [from, to) of body g that are floats: those that have a gradient. */
int ch__count_floats(const ch_graph *g, int from, int to);
/* Records body g once more, with inputs `in`, and differentiates the sum of out[i] * dout[i]
 * with respect to those inputs that are floats: d gets that many, in order. */
void ch__body_gradient(ch_step *s, const ch_graph *g, ch_node *const *in, ch_node *const *dout,
                       ch_node **d);

#endif

/* ops/cond.c -- cond: runs one of two branches, chosen when the step runs.
 *
 * The branches are bodies (ops/body.h) without inputs of their own: everything they use is
 * captured. Inputs of the call: the condition, the captures of `then`, the captures of
 * `otherwise`. Outputs: those of the branch that runs. The gradient is a cond with the same
 * condition, whose branches compute the gradients of the two branches.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "ops/body.h"
#include "ops/ops.h"

typedef struct cond_attrs {
    ch_graph *then, *otherwise;
} cond_attrs;

static const ch_attr cond_rows[] = {
    CH_ATTR_GRAPH(cond_attrs, then),
    CH_ATTR_GRAPH(cond_attrs, otherwise),
    CH_ATTR_END,
};

static ch_status cond_infer(ch_infer *c)
{
    const cond_attrs *a = c->attrs;
    ch_status         rc;

    if (a->then == NULL || a->otherwise == NULL)
        return ch__infer_fail(c, "a branch is missing");
    if (c->n_in != 1 + a->then->n_inputs + a->otherwise->n_inputs)
        return ch__infer_fail(
            c, "there are %d inputs, want %d: the condition and the captures of both branches",
            c->n_in, 1 + a->then->n_inputs + a->otherwise->n_inputs);
    if (c->dtype[0] != CH_BOOL || c->in[0].rank != 0)
        return ch__infer_fail(c, "the condition must be a bool scalar");
    if (a->then->n_outputs != a->otherwise->n_outputs || a->then->n_outputs == 0)
        return ch__infer_fail(
            c, "the branches return %d and %d values, want the same number, at least 1",
            a->then->n_outputs, a->otherwise->n_outputs);
    rc = ch__body_check(c, a->then, 1, 0, a->then->n_inputs, false);
    if (rc == CH_OK)
        rc = ch__body_check(c, a->otherwise, 1 + a->then->n_inputs, 0, a->otherwise->n_inputs,
                            false);
    for (int i = 0; i < a->then->n_outputs && rc == CH_OK; i++) {
        const ch_node *x = a->then->output[i].node, *y = a->otherwise->output[i].node;

        if (x->dtype != y->dtype || !ch__dims_same(&x->dims, &y->dims))
            return ch__infer_fail(c, "value %d differs between the branches: %s and %s", i,
                                  ch__type_text(x->dtype, &x->dims),
                                  ch__type_text(y->dtype, &y->dims));
        rc = ch__infer_dims(c, i, x->dtype, &x->dims);
    }
    return rc;
}

typedef struct cond_state {
    ch_body branch[2];
} cond_state;

static void cond_drop(void *state)
{
    cond_state *s = state;

    ch__program_unref(s->branch[0].program);
    ch__program_unref(s->branch[1].program);
}

static ch_status cond_prepare(const ch_node *n, ch_prep *p)
{
    const cond_attrs *a = n->attrs;
    cond_state       *s = ch__prep_state(p, sizeof(*s));
    size_t            used[2] = {0, 0}; /* only one branch runs, so they share the scratch */
    ch_status         rc;

    if (s == NULL)
        return ch__fail_memory("cond");
    rc = ch__body_prepare(&s->branch[0], a->then, p, &used[0]);
    if (rc == CH_OK)
        rc = ch__body_prepare(&s->branch[1], a->otherwise, p, &used[1]);
    p->scratch_bytes = used[0] > used[1] ? used[0] : used[1];
    return rc;
}

static ch_status cond_run(const ch_call *c, ch_kernel_tile t)
{
    const cond_state *s = c->state;
    int               which = *(const bool *)c->in[0] ? 0 : 1;
    const ch_body    *b = &s->branch[which];
    int               first = 1 + (which == 0 ? 0 : s->branch[0].n_in);
    ch_body_run      *r = ch__body_start(b, c);

    (void)t;
    for (int i = 0; i < b->n_in; i++)
        r->in[i] = c->in[first + i];
    for (int i = 0; i < b->n_out; i++)
        r->out[i] = c->out[i];
    return ch__body_run(r);
}

/* The values of both branches lie alike, so the outputs do not depend on the condition. */
static void cond_ties(const ch_node *n, ch_body_ties *t)
{
    const cond_attrs *a = ch__attrs(n);

    for (int i = 0; i < a->then->n_inputs; i++)
        ch__tie_in(t, 1 + i, 0, i, false);
    for (int i = 0; i < a->otherwise->n_inputs; i++)
        ch__tie_in(t, 1 + a->then->n_inputs + i, 1, i, false);
    for (int i = 0; i < n->n_out; i++) {
        ch__tie_out(t, i, 0, true, i, false);
        ch__tie_out(t, i, 1, true, i, false);
    }
}

static const ch_kernel cond_plain = {"bodies", .prepare = cond_prepare, .run = cond_run,
                                     .drop = cond_drop};

static void cond_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[]);

const ch_op ch__op_cond = {
    .name = "cond",
    .version = 1,
    .n_in = -1,
    .n_out = -1,
    .flags = CH_OP_CAN_FAIL | CH_OP_READS_ENV,
    .attrs = cond_rows,
    .attrs_bytes = sizeof(cond_attrs),
    .infer = cond_infer,
    .replicated = "its bodies are divided call by call (spmd/body.c)",
    .ties = cond_ties,
    .grad = cond_grad,
    .kernels = (const ch_kernel *const[]){&cond_plain, NULL},
};

/* The argument of record_branch: a function of the user. */
typedef struct branch_record {
    ch_branch_fn fn;
    void        *arg;
    int          n_out;
} branch_record;

/* Calls the user's function to record a branch. */
static void record_branch(ch_step *s, int n, ch_node *const *in, void *arg)
{
    branch_record *b = arg;
    ch_node       *out[CH_MAX_OUT] = {0};
    ch_site        mine = ch__step_save_site(s);

    (void)n, (void)in;
    b->fn(s, b->arg, out);
    ch__step_restore_site(s, mine);
    for (int i = 0; i < b->n_out; i++)
        ch__body_out(s, out[i]);
}

/* Records both branches with `then` and `otherwise`, and then the call. */
static void record_cond(ch_step *s, ch_node *pred, int n_out, ch_body_fn then, void *then_arg,
                        ch_body_fn otherwise, void *otherwise_arg, ch_node **out)
{
    int        n_then = 0, n_else = 0;
    ch_node  **then_in = NULL, **else_in = NULL;
    cond_attrs a = {0};

    a.then = ch__step_body(s, "then", 0, NULL, NULL, then, then_arg, &n_then, &then_in);
    if (a.then != NULL)
        a.otherwise = ch__step_body(s, "else", 0, NULL, NULL, otherwise, otherwise_arg, &n_else,
                                    &else_in);
    if (a.otherwise != NULL)
        ch__record_call(s, &ch__op_cond, &a, 1, &pred, n_then, then_in, n_else, else_in, n_out,
                        out);
    ch_graph_unref(a.then);
    ch_graph_unref(a.otherwise);
}

void ch_cond(ch_node *pred, int n_out, ch_branch_fn then, ch_branch_fn otherwise, void *arg,
             ch_node **out)
{
    ch_step      *s = pred != NULL ? ch_node_step(pred) : NULL;
    branch_record yes = {then, arg, n_out}, no = {otherwise, arg, n_out};
    const void   *before;

    if (n_out > 0 && n_out <= CH_MAX_OUT && out != NULL)
        memset(out, 0, (size_t)n_out * sizeof(*out));
    if (!ch__step_want(s, then != NULL && otherwise != NULL && (n_out <= 0 || out != NULL),
                       "cond", "a branch, or the list of results,",
                       __builtin_return_address(0)))
        return;
    before = ch__step_begin(s);
    if (ch__fits_outputs(s, "cond", n_out))
        record_cond(s, pred, n_out, record_branch, &yes, record_branch, &no, out);
    ch__step_end(s, before);
}

/* ---- gradient ---- */

/* The argument of record_branch_gradient. */
typedef struct branch_gradient {
    const ch_node  *call;  /* the cond that is differentiated */
    const ch_graph *body;  /* its branch */
    int             first; /* index of the body's first input among the inputs of the call */
    ch_node *const *dout;
} branch_gradient;

/* Records a branch of the gradient. Its outputs are the gradients of the float inputs of both
 * branches. The gradients of the branch that does not run are 0. */
static void record_branch_gradient(ch_step *s, int n, ch_node *const *none, void *arg)
{
    branch_gradient  *b = arg;
    const cond_attrs *a = b->call->attrs;
    int               n_in = b->call->n_in - 1;
    ch_node         **in = ch__step_nodes(s, "gradient", n_in * 2 + 2), **d = in + n_in + 1;
    ch_node          *dout[CH_MAX_OUT] = {0};

    (void)n, (void)none;
    if (in == NULL)
        return;
    for (int i = 0; i < b->body->n_inputs; i++)
        in[i] = ch__step_capture(s, b->call->in[b->first + i]);
    for (int i = 0; i < b->call->n_out; i++)
        dout[i] = b->dout[i] != NULL ? ch__step_capture(s, b->dout[i]) : NULL;
    ch__body_gradient(s, b->body, in, dout, d);
    for (int side = 0; side < 2; side++) {
        const ch_graph *g = side == 0 ? a->then : a->otherwise;
        int             first = side == 0 ? 1 : 1 + a->then->n_inputs;

        for (int i = 0, k = 0; i < g->n_inputs; i++)
            if (ch_dtype_is_float(g->input[i]->dtype))
                ch__body_out(
                    s, g == b->body
                           ? d[k++]
                           : ch__full_like(ch__step_capture(s, b->call->in[first + i]), 0));
    }
}

static void cond_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const cond_attrs *a = n->attrs;
    int               n_out = ch__count_floats(a->then, 0, a->then->n_inputs) +
                ch__count_floats(a->otherwise, 0, a->otherwise->n_inputs);
    branch_gradient yes = {n, a->then, 1, dout};
    branch_gradient no = {n, a->otherwise, 1 + a->then->n_inputs, dout};
    ch_node        *d[CH_MAX_OUT] = {0};

    if (n_out == 0 || !ch__fits_outputs(s, "the gradient of cond", n_out))
        return;
    record_cond(s, n->in[0], n_out, record_branch_gradient, &yes, record_branch_gradient, &no,
                d);
    for (int i = 1, k = 0; i < n->n_in; i++)
        if (ch_dtype_is_float(n->in[i]->dtype))
            din[i] = d[k++];
}

/* graph/gradient.c -- reverse-mode differentiation, from graph to graph.
 *
 * The calls are walked once, backwards. Each holds what has been gathered so far of the
 * derivative of y with respect to its outputs; its op says what that means for its inputs.
 * All that is recorded are ordinary calls, so a gradient can be differentiated again.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "graph/step.h"

typedef struct backward {
    ch_step  *s;
    int       n_calls, n_values; /* of the graph before the walk: what it adds comes after */
    ch_node **call;
    ch_node **d;    /* the derivative with respect to each value; NULL: none so far */
    bool     *need; /* the value depends on one of the x */
} backward;

static void mark_needed(backward *b, int n, ch_node *const *x)
{
    for (int i = 0; i < n; i++)
        b->need[x[i]->id] = true;
    for (int i = 0; i < b->n_calls; i++) {
        const ch_node *c = b->call[i];
        bool           any = false;

        for (int k = 0; k < c->n_in && !any; k++)
            any = b->need[c->in[k]->id];
        for (int k = 0; k < c->n_out && any; k++)
            b->need[c[k].id] |= ch_dtype_is_float(c[k].dtype);
    }
}

static void gather(backward *b, const ch_node *to, ch_node *d)
{
    ch_node **sum = &b->d[to->id];

    if (d != NULL)
        *sum = *sum == NULL ? d : ch__roles.add(*sum, d);
}

static bool wants(const backward *b, const ch_node *call)
{
    for (int i = 0; i < call->n_in; i++)
        if (b->need[call->in[i]->id])
            return true;
    return false;
}

/* Hands the derivatives of a call's outputs on to its inputs. */
static void pass_back(backward *b, const ch_node *call)
{
    ch_node *few[16] = {0}, **din = few, *dout[CH_MAX_OUT] = {0};
    bool     any = false;

    for (int i = 0; i < call->n_out; i++)
        any |= (dout[i] = b->d[call[i].id]) != NULL;
    if (!any || !wants(b, call) || (call->op->flags & CH_OP_NO_GRAD) != 0)
        return;
    if (call->op->grad == NULL) {
        ch__step_take(b->s,
                      ch__fail(CH_UNIMPLEMENTED,
                               "gradient: %s has none; ch_stop_gradient before "
                               "it if it is to be treated as a constant",
                               call->op->name),
                      call->caller);
        return;
    }
    if (call->n_in > 16 && (din = ch__calloc((size_t)call->n_in, sizeof(*din))) == NULL) {
        ch__step_take(b->s, ch__fail_memory("gradient"), NULL);
        return;
    }
    call->op->grad(b->s, call, dout, din);
    for (int i = 0; i < call->n_in; i++)
        if (b->need[call->in[i]->id])
            gather(b, call->in[i], din[i]);
    if (din != few)
        ch__free(din);
}

static void walk(backward *b, ch_node *y, ch_node *dy)
{
    const void *before = b->s->caller;

    b->d[y->id] = dy;
    for (int i = b->n_calls - 1; i >= 0 && b->s->rc == CH_OK; i--)
        if (b->call[i]->id <= y->head->id) {
            b->s->caller = b->call[i]->caller; /* an error here is about that line */
            pass_back(b, b->call[i]);
        }
    b->s->caller = before;
}

static ch_status check(ch_step *s, const ch_node *y, const ch_node *dy, int n,
                       ch_node *const *x)
{
    if (!ch_dtype_is_float(y->dtype))
        return ch__fail(CH_INVALID_ARGUMENT, "gradient: y is %s, want a float type",
                        ch_dtype_name(y->dtype));
    if (dy != NULL && (dy->dtype != y->dtype || !ch__dims_same(&dy->dims, &y->dims)))
        return ch__fail(CH_INVALID_ARGUMENT, "gradient: dy is not like y");
    for (int i = 0; i < n; i++)
        if (x[i] == NULL || x[i]->graph != s->graph)
            return ch__fail(CH_INVALID_ARGUMENT, "gradient: x %d is %s", i,
                            x[i] == NULL ? "NULL" : "a node of another step");
    return CH_OK;
}

void ch_gradients(ch_node *y, ch_node *dy, int n, ch_node *const *x, ch_node **dx)
{
    backward    b = {.s = y != NULL ? y->graph->step : NULL};
    const void *before;
    ch_status   rc;

    if (n > 0 && dx != NULL)
        memset(dx, 0, (size_t)n * sizeof(*dx));
    if (!ch__step_want(b.s, n <= 0 || (x != NULL && dx != NULL), "gradient", "a list of nodes",
                       __builtin_return_address(0)))
        return;
    before = ch__step_begin(b.s);
    rc = check(b.s, y, dy, n, x);
    if (dy == NULL && rc == CH_OK)
        dy = ch__roles.ones_like(y);
    b.n_calls = b.s->graph->n_calls;
    b.n_values = b.s->graph->n_values;
    b.call = ch__calloc((size_t)b.n_calls, sizeof(*b.call));
    b.d = ch__calloc((size_t)b.n_values, sizeof(*b.d));
    b.need = ch__calloc((size_t)b.n_values, sizeof(*b.need));
    if (rc == CH_OK && (b.call == NULL || b.d == NULL || b.need == NULL))
        rc = ch__fail_memory("gradient");
    if (rc != CH_OK) {
        ch__step_take(b.s, rc, NULL);
        goto done;
    }
    ch__graph_calls(b.s->graph, b.call);
    mark_needed(&b, n, x);
    walk(&b, y, dy);
    for (int i = 0; i < n && b.s->rc == CH_OK; i++)
        dx[i] = b.d[x[i]->id] != NULL ? b.d[x[i]->id] : ch__roles.zeros_like(x[i]);
done:
    ch__free(b.call);
    ch__free(b.d);
    ch__free(b.need);
    ch__step_end(b.s, before);
}

ch_node *ch_gradient(ch_node *y, ch_node *x)
{
    const void *before;
    ch_node    *dx = NULL;
    ch_step    *s = y != NULL ? y->graph->step : NULL;

    if (s == NULL || s->rc != CH_OK)
        return NULL;
    before = ch__step_begin(s);
    ch_gradients(y, NULL, 1, &x, &dx);
    ch__step_end(s, before);
    return dx;
}

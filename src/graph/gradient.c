/* graph/gradient.c -- reverse-mode differentiation: ch_gradients and ch_gradient.
 *
 * The calls of the graph are visited once, in reverse order. For each value the derivative of y
 * is accumulated. A call passes the derivatives of its outputs to its op (ch_op.grad), which
 * records the derivatives of its inputs. These are ordinary calls, so a gradient can be
 * differentiated again.
 *
 * If y is in a branch or loop body, the walk continues in the graphs that contain the body. The
 * derivative of a capture is added to that of the captured value. Everything is recorded in the
 * body. A `backward` is the walk over one graph; level[0] is the graph of y, and each level is
 * contained in the next.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "graph/step.h"

typedef struct backward {
    ch_step  *s;                 /* step in which everything is recorded */
    ch_step  *of;                /* step of the graph that is visited */
    int       n_calls, n_values; /* of that graph before the walk, which appends calls */
    int       n_captures;        /* same */
    ch_node **call;
    ch_node **d;    /* by value id: derivative of y; NULL: none so far */
    bool     *need; /* by value id: the value depends on an x */
} backward;

/* Sets b->need. `out` is the walk of the graph that contains this graph; NULL: none. */
static void mark_needed(backward *b, const backward *out, int n, ch_node *const *x)
{
    for (int i = 0; i < n; i++)
        if (x[i]->graph == b->of->graph)
            b->need[x[i]->id] = true;
    for (int i = 0; out != NULL && i < b->n_captures; i++)
        b->need[b->of->capture[i]->id] |= out->need[b->of->captured[i]->id];
    for (int i = 0; i < b->n_calls; i++) {
        const ch_node *c = b->call[i];
        bool           any = false;

        for (int k = 0; k < c->n_in && !any; k++)
            any = b->need[c->in[k]->id];
        for (int k = 0; k < c->n_out && any; k++)
            b->need[c[k].id] |= ch_dtype_is_float(c[k].dtype);
    }
}

/* Adds d to the derivative of value `to`. d may be NULL. */
static void accumulate(backward *b, const ch_node *to, ch_node *d)
{
    ch_node **sum = &b->d[to->id];

    if (d != NULL)
        *sum = *sum == NULL ? d : ch__roles.add(*sum, d);
}

/* Returns true if an input of the call depends on an x. */
static bool depends_on_x(const backward *b, const ch_node *call)
{
    for (int i = 0; i < call->n_in; i++)
        if (b->need[call->in[i]->id])
            return true;
    return false;
}

/* Passes the derivatives of the outputs of a call on to its inputs. */
static void propagate(backward *b, const ch_node *call)
{
    ch_node *few[16] = {0}, **din = few, *dout[CH_MAX_OUT] = {0};
    bool     any = false;
    char     name[128];

    for (int i = 0; i < call->n_out; i++)
        any |= (dout[i] = b->d[call[i].id]) != NULL;
    if (!any || !depends_on_x(b, call) || (call->op->flags & CH_OP_NO_GRAD) != 0)
        return;
    if (call->op->grad == NULL) {
        ch__step_record_error(b->s,
                              ch__fail(CH_UNIMPLEMENTED,
                                       "gradient: %s%s%s has no gradient; use ch_stop_gradient "
                                       "if it is to be treated as a constant",
                                       ch__call_name(call->op, call->attrs, name, sizeof(name)),
                                       call->composite != NULL ? " of " : "",
                                       call->composite != NULL ? call->composite : ""),
                              call->caller);
        return;
    }
    if (call->n_in > 16 && (din = ch__calloc((size_t)call->n_in, sizeof(*din))) == NULL) {
        ch__step_record_error(b->s, ch__fail_memory("gradient"), NULL);
        return;
    }
    call->op->grad(b->s, call, dout, din);
    for (int i = 0; i < call->n_in; i++)
        if (b->need[call->in[i]->id])
            accumulate(b, call->in[i], din[i]);
    if (din != few)
        ch__free(din);
}

/* Visits the calls up to value `last` in reverse order. The derivative of `last` must be
 * complete. */
static void walk(backward *b, int last)
{
    const void *before = b->s->caller;
    int         device = b->s->chosen_device;

    for (int i = b->n_calls - 1; i >= 0 && b->s->rc == CH_OK; i--)
        if (b->call[i]->id <= last) {
            b->s->caller = b->call[i]->caller; /* errors name the line of this call */
            b->s->chosen_device = b->call[i]->chosen_device;
            propagate(b, b->call[i]);
        }
    b->s->caller = before;
    b->s->chosen_device = device;
}

/* Adds the derivatives of the captures of a body to the captured values of the outer graph. */
static void propagate_captures(const backward *b, backward *out)
{
    for (int i = 0; i < b->n_captures; i++)
        if (out->need[b->of->captured[i]->id])
            accumulate(out, b->of->captured[i], b->d[b->of->capture[i]->id]);
}

static ch_status check(ch_step *s, const ch_node *y, const ch_node *dy, int n,
                       ch_node *const *x)
{
    if (!ch_dtype_is_float(y->dtype))
        return ch__fail(CH_INVALID_ARGUMENT, "gradient: y is %s, want a float type",
                        ch_dtype_name(y->dtype));
    if (dy != NULL && (dy->dtype != y->dtype || !ch__dims_same(&dy->dims, &y->dims)))
        return ch__fail(CH_INVALID_ARGUMENT, "gradient: dy is %s, want %s, the type of y",
                        ch__type_text(dy->dtype, &dy->dims), ch__type_text(y->dtype, &y->dims));
    for (int i = 0; i < n; i++)
        if (x[i] == NULL || !ch__step_can_use(s, x[i]))
            return ch__fail(CH_INVALID_ARGUMENT, "gradient: x %d is %s", i,
                            x[i] == NULL ? "NULL" : "a node of another step, branch or body");
    return CH_OK;
}

static ch_status set_up(backward *b, ch_step *s, ch_step *of)
{
    b->s = s;
    b->of = of;
    b->n_calls = of->graph->n_calls;
    b->n_values = of->graph->n_values;
    b->n_captures = of->n_captures;
    b->call = ch__calloc((size_t)b->n_calls, sizeof(*b->call));
    b->d = ch__calloc((size_t)b->n_values, sizeof(*b->d));
    b->need = ch__calloc((size_t)b->n_values, sizeof(*b->need));
    if (b->call == NULL || b->d == NULL || b->need == NULL)
        return ch__fail_memory("gradient");
    ch__graph_calls(of->graph, b->call);
    return CH_OK;
}

/* Returns the derivative of y with respect to x; NULL: y does not depend on x. */
static ch_node *derivative_of(const backward *level, int n_levels, const ch_node *x)
{
    for (int i = 0; i < n_levels; i++)
        if (level[i].of->graph == x->graph)
            return x->id < level[i].n_values ? level[i].d[x->id] : NULL;
    return NULL;
}

/* Differentiates y. Sets dx[i], to zeros if y does not depend on x[i]. */
static ch_status differentiate(ch_step *s, backward *level, int n_levels, ch_node *y,
                               ch_node *dy, int n, ch_node *const *x, ch_node **dx)
{
    ch_step  *of = y->graph->step;
    ch_status rc = CH_OK;

    for (int i = 0; i < n_levels && rc == CH_OK; i++, of = of->outer)
        rc = set_up(&level[i], s, of);
    if (rc != CH_OK)
        return rc;
    for (int i = n_levels - 1; i >= 0; i--)
        mark_needed(&level[i], i + 1 < n_levels ? &level[i + 1] : NULL, n, x);
    level[0].d[y->id] = dy;
    walk(&level[0], y->head->id);
    for (int i = 1; i < n_levels; i++) {
        propagate_captures(&level[i - 1], &level[i]);
        walk(&level[i], level[i].n_values);
    }
    for (int i = 0; i < n && s->rc == CH_OK; i++) {
        dx[i] = derivative_of(level, n_levels, x[i]);
        if (dx[i] == NULL)
            dx[i] = ch__roles.zeros_like(x[i]);
    }
    return CH_OK;
}

void ch_gradients(ch_node *y, ch_node *dy, int n, ch_node *const *x, ch_node **dx)
{
    ch_step     *s = ch_node_step(y);
    backward    *level;
    int          n_levels = 0;
    const void  *before;
    ch_work_kind work;
    ch_status    rc;

    if (n > 0 && dx != NULL)
        memset(dx, 0, (size_t)n * sizeof(*dx));
    if (!ch__step_want(s, n <= 0 || (x != NULL && dx != NULL), "gradient", "a list of nodes",
                       __builtin_return_address(0)))
        return;
    before = ch__step_begin_at(s, __builtin_return_address(0), "gradient");
    work = s->work;
    s->work = CH_WORK_BACKWARD;
    rc = check(s, y, dy, n, x);
    if (dy == NULL && rc == CH_OK)
        dy = ch__roles.ones_like(y);
    for (const ch_step *of = y->graph->step; of != NULL; of = of->outer)
        n_levels++;
    level = ch__calloc((size_t)n_levels, sizeof(*level));
    if (rc == CH_OK && s->rc == CH_OK)
        rc = level == NULL ? ch__fail_memory("gradient")
                           : differentiate(s, level, n_levels, y, dy, n, x, dx);
    if (rc != CH_OK)
        ch__step_record_error(s, rc, NULL);
    for (int i = 0; level != NULL && i < n_levels; i++) {
        ch__free(level[i].call);
        ch__free(level[i].d);
        ch__free(level[i].need);
    }
    ch__free(level);
    s->work = work;
    ch__step_end(s, before);
}

ch_node *ch_gradient(ch_node *y, ch_node *x)
{
    const void *before;
    ch_node    *dx = NULL;
    ch_step    *s = ch_node_step(y);

    if (s == NULL || s->rc != CH_OK)
        return NULL;
    before = ch__step_begin(s);
    ch_gradients(y, NULL, 1, &x, &dx);
    ch__step_end(s, before);
    return dx;
}

/* spmd/body.c -- divides the bodies of scan, while and cond, call by call.
 *
 * A body has a division of its own, made by the same passes as that of the step around it. The
 * ties of the call (ch_body_ties) connect the two: values that are tied have the same layout,
 * except that the value of a call may have axis 0, of the iterations, in addition. This axis is
 * never divided. So:
 *   - Layouts spread along ties in both directions (propagate.c), until those of the carries no
 *     longer change: a carry goes into an iteration as it came out of the one before.
 *   - Then the layouts of all tied values are settled. The calls of the body are divided after
 *     that (choose.c), and each result of the body is brought to its layout, as the new values
 *     of variables are.
 *   - The graph of a core (partition.c) has the same call, with the core's parts of the values
 *     and the core's graphs of the bodies.
 *
 * All cores execute the call, also those without a part of any value: its bodies may contain
 * exchanges, in which all cores must take part. So all cores must make the same iterations and
 * take the same branch. Every core has the condition, which is a scalar.
 *
 * Invariants:
 *   1. A settled layout is complete: every core has a part, and no value is partial.
 *   2. A value of the call without a tie (a condition, a count) is on every core.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "spmd/divide.h"

/* Returns the node of the call that a tie names. */
static const ch_node *call_value(const ch_node *call, const ch_body_tie *t)
{
    return t->is_call_out ? &call[t->call_at] : call->in[t->call_at];
}

/* Returns the node of the body that a tie names. */
static const ch_node *body_value(const ch_core_division *body, const ch_body_tie *t)
{
    return t->is_body_out ? body->g->output[t->body_at].node : body->g->input[t->body_at];
}

/* Sets *out to the layout that a slice of a value has, or that a value has whose slices have
 * layout l. */
static void without_axis(const ch_core_layout *l, ch_core_layout *out)
{
    int from[CH_LAYOUT_RANK];

    for (int k = 0; k + 1 < l->rank; k++)
        from[k] = k + 1;
    ch__layout_project(l, l->rank - 1, from, out);
}

static void with_axis(const ch_core_layout *l, ch_core_layout *out)
{
    int from[CH_LAYOUT_RANK] = {-1};

    for (int k = 0; k < l->rank; k++)
        from[k + 1] = k;
    ch__layout_project(l, l->rank + 1, from, out);
}

const ch_core_layout *ch__body_input_layout(const ch_core_division *d, const ch_node *n)
{
    const ch_input_attrs *a = ch__attrs(n);

    return d->input != NULL && n->op == ch__roles.input ? d->input[a->index] : NULL;
}

/* Allocates the layouts of the inputs and outputs of a body. */
static ch_status new_layouts(ch_core_division *body)
{
    size_t n_in = (size_t)body->g->n_inputs + 1, n_out = (size_t)body->g->n_outputs + 1;

    body->input = ch__arena_alloc(&body->base, n_in * sizeof(*body->input));
    body->output = ch__arena_alloc(&body->base, n_out * sizeof(*body->output));
    return body->input == NULL || body->output == NULL
               ? ch__fail_memory("the layouts of a body")
               : CH_OK;
}

ch_status ch__bodies_begin(ch_core_division *d, ch_call_plan *p)
{
    ch_graph     *body[CH_MAX_BODIES];
    ch_body_plan *b;
    size_t        n_in = (size_t)p->call->n_in + 1, n_out = (size_t)p->call->n_out + 1;
    ch_status     rc;

    b = ch__arena_alloc(&d->base, sizeof(*b));
    if (b == NULL || (b->in = ch__arena_alloc(&d->base, n_in * sizeof(*b->in))) == NULL ||
        (b->out = ch__arena_alloc(&d->base, n_out * sizeof(*b->out))) == NULL)
        return ch__fail_memory("the layouts of a body");
    p->bodies = b;
    rc = ch__ties_of(p->call, &d->base, &b->ties);
    b->n = ch__call_bodies(p->call, body);
    for (int i = 0; i < b->n && rc == CH_OK; i++) {
        ch_core_division *of = &b->body[i];

        of->opt = d->opt;
        of->layouts = d->layouts;
        of->cost = d->cost;
        rc = ch__division_begin(of, body[i]);
        if (rc == CH_OK)
            rc = new_layouts(of);
    }
    return rc;
}

void ch__bodies_reset(const ch_call_plan *p)
{
    ch_body_plan *b = p->bodies;

    memset(b->in, 0, ((size_t)p->call->n_in + 1) * sizeof(*b->in));
    memset(b->out, 0, ((size_t)p->call->n_out + 1) * sizeof(*b->out));
    for (int i = 0; i < b->n; i++) {
        ch_core_division *of = &b->body[i];

        memset(of->input, 0, ((size_t)of->g->n_inputs + 1) * sizeof(*of->input));
        memset(of->output, 0, ((size_t)of->g->n_outputs + 1) * sizeof(*of->output));
        ch__division_reset(of);
    }
}

/* ---- propagation ---- */

/* Spreads the layout of a tied value to the other one. */
static ch_status spread_tie(ch_core_division *d, const ch_call_plan *p, const ch_body_tie *t,
                            ch_spread_level at, bool inwards, bool *changed)
{
    ch_core_division     *body = &p->bodies->body[t->body];
    ch_core_division     *to = inwards ? body : d;
    const ch_node        *outer = call_value(p->call, t), *inner = body_value(body, t);
    const ch_core_layout *has =
        inwards ? d->value[outer->id].want : body->value[inner->id].want;
    ch_core_layout l;

    if (has == NULL || (inwards && !ch__spreads(d, outer, at)))
        return CH_OK;
    ch__layout_copy(has, &l);
    if (t->is_slice && inwards)
        without_axis(has, &l);
    else if (t->is_slice)
        with_axis(has, &l);
    return ch__improve(to, inwards ? inner : outer, &l, inwards ? outer : inner, p->call,
                       changed);
}

static ch_status spread_ties(ch_core_division *d, const ch_call_plan *p, ch_spread_level at,
                             bool *changed)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < p->bodies->ties.n && rc == CH_OK; i++) {
        rc = spread_tie(d, p, &p->bodies->ties.tie[i], at, true, changed);
        if (rc == CH_OK)
            rc = spread_tie(d, p, &p->bodies->ties.tie[i], at, false, changed);
    }
    return rc;
}

ch_status ch__bodies_spread(ch_core_division *d, const ch_call_plan *p, ch_spread_level at,
                            bool forward, bool *changed)
{
    ch_status rc = spread_ties(d, p, at, changed);

    for (int i = 0; i < p->bodies->n && rc == CH_OK; i++)
        rc = ch__spread(&p->bodies->body[i], at, forward, changed);
    return rc == CH_OK ? spread_ties(d, p, at, changed) : rc;
}

/* ---- choice ---- */

/* Returns a unique layout: `l`, or replicated if `l` is not complete. NULL: out of memory. */
static const ch_core_layout *complete(ch_core_division *d, const ch_core_layout *l)
{
    const ch_core_layout *unique;

    if (!ch__layout_is_complete(l))
        return ch__division_replicated(d, l->rank);
    return ch__layout_intern(d->layouts, l, &unique) == CH_OK ? unique : NULL;
}

/* Settles the layout of an input of a body, and of the values of the call that are tied to
 * it. */
static bool settle_input(ch_core_division *d, ch_body_plan *b, const ch_body_tie *t)
{
    ch_core_division      *body = &b->body[t->body];
    ch_value_plan         *v = &body->value[body->g->input[t->body_at]->id];
    const ch_core_layout **of_call = t->is_call_out ? &b->out[t->call_at] : &b->in[t->call_at];
    ch_core_layout         l;

    v->want = complete(d, v->want);
    if (v->want == NULL)
        return false;
    body->input[t->body_at] = v->want;
    ch__layout_copy(v->want, &l);
    if (t->is_slice)
        with_axis(v->want, &l);
    *of_call = complete(d, &l);
    return *of_call != NULL;
}

/* Settles the layout of an output of a body. Outputs that are not carries have the wanted
 * layout of the output of the call. */
static bool settle_output(ch_core_division *d, const ch_node *call, ch_body_plan *b,
                          const ch_body_tie *t)
{
    ch_core_division      *body = &b->body[t->body];
    ch_value_plan         *v = &body->value[body->g->output[t->body_at].node->id];
    const ch_core_layout **of_call = &b->out[t->call_at];
    ch_core_layout         l;

    ch__layout_copy(*of_call != NULL ? *of_call : d->value[call[t->call_at].id].want, &l);
    if (t->is_slice)
        without_axis(&l, &l);
    body->output[t->body_at] = complete(d, &l);
    if (body->output[t->body_at] == NULL)
        return false;
    if (!v->is_fixed)
        v->want = body->output[t->body_at];
    ch__layout_copy(body->output[t->body_at], &l);
    if (t->is_slice)
        with_axis(body->output[t->body_at], &l);
    *of_call = complete(d, &l);
    return *of_call != NULL;
}

/* Sets the layouts of all inputs and outputs of the call and of its bodies. */
static ch_status settle(ch_core_division *d, const ch_node *call, ch_body_plan *b)
{
    bool ok = true;

    for (int i = 0; i < b->ties.n && ok; i++)
        if (!b->ties.tie[i].is_body_out)
            ok = settle_input(d, b, &b->ties.tie[i]);
    for (int i = 0; i < b->ties.n && ok; i++)
        if (b->ties.tie[i].is_body_out)
            ok = settle_output(d, call, b, &b->ties.tie[i]);
    for (int i = 0; i < call->n_in && ok; i++)
        if (b->in[i] == NULL)
            ok = (b->in[i] = ch__division_replicated(d, call->in[i]->dims.rank)) != NULL;
    for (int i = 0; i < call->n_out && ok; i++)
        if (b->out[i] == NULL)
            ok = (b->out[i] = ch__division_replicated(d, call[i].dims.rank)) != NULL;
    return ok ? CH_OK : ch__fail_memory("the layouts of a body");
}

ch_status ch__bodies_choose(ch_core_division *d, ch_forms *forms, const ch_call_plan *p)
{
    ch_body_plan  *b = p->bodies;
    const ch_node *call = p->call;
    double         before = d->cost != NULL ? d->cost->times : 1;
    ch_status      rc = settle(d, call, b);

    for (int i = 0; i < call->n_in && rc == CH_OK; i++)
        rc = ch__form_need(forms, call->in[i], b->in[i]);
    if (d->cost != NULL && b->ties.iterations >= 0)
        d->cost->times *= (double)b->ties.iterations;
    for (int i = 0; i < b->n && rc == CH_OK; i++)
        rc = ch__choose(&b->body[i]);
    if (d->cost != NULL)
        d->cost->times = before;
    for (int i = 0; i < call->n_out && rc == CH_OK; i++)
        if (ch__form_add(forms, &call[i], b->out[i], NULL) == NULL)
            rc = ch__fail_memory("the layouts of a body");
    return rc;
}

/* spmd/propagate.c -- gives every value of a graph a wanted layout.
 *
 * Annotations, chosen devices and variables fix the layouts of their values. All others are
 * taken from neighbours: a call lifts the layouts of its values to its factors, and lowers the
 * factors to its other values. Layouts spread forwards and backwards until nothing changes, in
 * three levels: through elementwise ops, transposes and reshapes first, then through all ops
 * except broadcasts, then through broadcasts too. So layouts come from the neighbours whose
 * agreement costs no communication, if there are any.
 *
 * If the options split the inputs, the layouts of variables spread in a fourth level only.
 * Variables are split then to save memory, and the split of a bias must not turn the rows of
 * all later values into columns.
 *
 * Invariants:
 *   1. A layout only becomes finer, so the passes end.
 *   2. A factor that is summed over decides nothing: the inner axis of a product does not
 *      spread from one operand to the other.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ops/ops.h"
#include "spmd/annotate.h"
#include "spmd/divide.h"

/* Returns true if the rule is that of an elementwise op, such as the update of a variable by an
 * optimizer: every factor is an axis of every output, and inputs have some of them. */
static bool is_elementwise(const ch_call_plan *p)
{
    const ch_node *n = p->call;

    if (p->rule.n_set_out < n->n_out || p->rule.n != n->dims.rank)
        return false;
    for (int k = 0; k < p->rule.n; k++) {
        if (p->rule.factor[k].kind != CH_PAR)
            return false;
        for (int i = 0; i < n->n_out; i++)
            if (n[i].dims.rank != n->dims.rank || ch__axis_factor(&p->rule.out[i][k]) != k)
                return false;
    }
    for (int i = 0; i < n->n_in; i++)
        for (int k = 0; k < n->in[i]->dims.rank; k++)
            if (p->rule.in[i][k].n > 1 || p->rule.in[i][k].is_mapped)
                return false;
    return true;
}

static bool takes_part(const ch_call_plan *p, ch_spread_level at)
{
    const ch_op *op = p->call->op;

    if (op == &ch__op_broadcast_to)
        return at >= CH_SPREAD_BROADCAST;
    return at > CH_SPREAD_ELEMENTWISE || p->bodies != NULL || op->block != NULL ||
           is_elementwise(p) || op == &ch__op_transpose || op == &ch__op_reshape;
}

ch_status ch__improve(ch_core_division *d, const ch_node *n, const ch_core_layout *l,
                      const ch_node *from, const ch_node *through, bool *changed)
{
    ch_value_plan        *v = &d->value[n->id];
    ch_core_layout        merged;
    const ch_core_layout *unique;
    ch_status             rc;

    if (v->is_fixed)
        return CH_OK;
    if (v->want != NULL) {
        if (!ch__layout_merge(v->want, l, &merged))
            return CH_OK;
        l = &merged;
    }
    rc = ch__layout_intern(d->layouts, l, &unique);
    if (rc != CH_OK || unique == v->want ||
        (v->want == NULL && ch__layout_is_replicated(unique)))
        return rc;
    *v = (ch_value_plan){.want = unique,
                         .source = CH_LAYOUT_NEIGHBOUR,
                         .from = from,
                         .through = through,
                         .changed = ++d->n_changes};
    *changed = true;
    return CH_OK;
}

/* Returns the wanted layout of a value; NULL: undecided. */
static const ch_core_layout *want_of(const ch_core_division *d, const ch_node *n)
{
    return d->value[n->id].want;
}

bool ch__spreads(const ch_core_division *d, const ch_node *n, ch_spread_level at)
{
    const ch_value_plan *v = &d->value[n->id];

    if (n->op == ch__roles.read && d->opt->input_axis > 0 && at < CH_SPREAD_VARIABLES)
        return false;
    return v->want != NULL && !(d->opt->defaults_to_core_0 && v->source == CH_LAYOUT_VARIABLE &&
                                ch__layout_is_on_one_core(v->want));
}

/* Merges the layouts of the n values `value`, with the axes `axis`, to ranges. They decide in
 * the order `order`; a layout that does not fit those before is left out. Sets *from to the
 * first value that splits a factor. Returns false if no value has a layout. */
static bool merge_wants(const ch_core_division *d, const ch_factors *f, ch_spread_level at,
                        int n, const ch_node *const *value, const int *order,
                        ch_axis_rule (*axis)[CH_MAX_RANK], ch_core_layout *out,
                        const ch_node **from)
{
    bool any = false, is_split = false;

    for (int k = 0; k < n; k++) {
        ch_core_layout lifted;
        int            i = order[k];

        if (!ch__spreads(d, value[i], at) ||
            !ch__lift(f, axis[i], want_of(d, value[i]), CH_LIFT_RESULT, false, &lifted))
            continue;
        if (!any)
            ch__layout_copy(&lifted, out);
        else
            (void)ch__layout_merge(out, &lifted, out);
        if (!is_split)
            *from = value[i];
        is_split = !ch__layout_is_replicated(out);
        any = true;
    }
    return any;
}

/* Lowers ranges to n values and improves their layouts. */
static ch_status spread(ch_core_division *d, const ch_call_plan *p,
                        const ch_core_layout *ranges, int n, const ch_node *const *value,
                        ch_axis_rule (*axis)[CH_MAX_RANK], const ch_node *from, bool *changed)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < n && rc == CH_OK; i++) {
        ch_core_layout l;

        if (ch__lower(&p->rule, ranges, axis[i], &value[i]->dims, true, &l))
            rc = ch__improve(d, value[i], &l, from, p->call, changed);
    }
    return rc;
}

/* Spreads layouts between the inputs and outputs of a pack. */
static ch_status pass_pack(ch_core_division *d, const ch_call_plan *p, ch_spread_level at,
                           bool forward, bool *changed)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < p->call->n_out && rc == CH_OK; i++) {
        const ch_node *from = forward ? p->call->in[i] : &p->call[i];
        const ch_node *to = forward ? &p->call[i] : p->call->in[i];

        if (ch__spreads(d, from, at))
            rc = ch__improve(d, to, want_of(d, from), from, p->call, changed);
    }
    return rc;
}

/* Returns true if the layout of a value from which layouts spread through the call has changed
 * since they last did. Otherwise they need not spread again. */
static bool has_news(const ch_core_division *d, const ch_call_plan *p, bool forward)
{
    int n = forward ? p->call->n_in : p->call->n_out;

    for (int i = 0; i < n; i++) {
        const ch_node *value = forward ? p->call->in[i] : &p->call[i];

        if (d->value[value->id].changed > p->n_seen[forward])
            return true;
    }
    return false;
}

/* Spreads layouts through a call: from inputs to outputs, or back. */
static ch_status pass_call(ch_core_division *d, ch_call_plan *p, ch_spread_level at,
                           bool forward, bool *changed)
{
    const ch_node        *out[CH_MAX_OUT];
    const ch_node        *from = NULL;
    ch_core_layout        ranges;
    const ch_node *const *in = (const ch_node *const *)p->call->in;
    int                   n_out = p->call->n_out;

    if (p->bodies != NULL)
        return ch__bodies_spread(d, p, at, forward, changed);
    if (!has_news(d, p, forward))
        return CH_OK;
    p->n_seen[forward] = d->n_changes;
    if (ch__is_pack(p->call))
        return pass_pack(d, p, at, forward, changed);
    if (p->rule.n_set_out == 0)
        return CH_OK;
    for (int i = 0; i < n_out; i++)
        out[i] = &p->call[i];
    if (forward)
        return merge_wants(d, &p->rule, at, p->call->n_in, in, p->in_order, p->rule.in, &ranges,
                           &from)
                   ? spread(d, p, &ranges, n_out, out, p->rule.out, from, changed)
                   : CH_OK;
    return merge_wants(d, &p->rule, at, n_out, out, p->out_order, p->rule.out, &ranges, &from)
               ? spread(d, p, &ranges, p->call->n_in, in, p->rule.in, from, changed)
               : CH_OK;
}

ch_status ch__spread(ch_core_division *d, ch_spread_level at, bool forward, bool *changed)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < d->n_calls && rc == CH_OK; i++) {
        ch_call_plan *p = &d->call[forward ? i : d->n_calls - 1 - i];

        if (takes_part(p, at))
            rc = pass_call(d, p, at, forward, changed);
    }
    return rc;
}

/* Fixes the layouts of variables, and of their new values. */
static ch_status fix_variables(ch_core_division *d)
{
    ch_core_layout l;
    ch_status      rc = CH_OK;

    for (int i = 0; i < d->g->n_resources && rc == CH_OK; i++) {
        const ch_resource *r = &d->g->resource[i];
        ch_value_plan      plan = {.is_fixed = true, .source = CH_LAYOUT_VARIABLE};

        rc = d->opt->variable(d->opt->arg, r, &l, &plan.source, &plan.rule);
        if (rc == CH_OK)
            rc = ch__layout_intern(d->layouts, &l, &d->tiles[i]);
        if (rc != CH_OK)
            return rc;
        plan.want = d->tiles[i];
        if (r->read != NULL)
            d->value[r->read->id] = plan;
        if (r->value != NULL)
            d->value[r->value->id] = plan;
    }
    return rc;
}

/* Fixes the outputs of a call to the device that the user chose for it, unless they are new
 * values of variables, or annotated. */
static ch_status fix_to_device(ch_core_division *d, const ch_node *call)
{
    ch_core_layout l;
    ch_status      rc = CH_OK;

    if (call->chosen_device == 0)
        return CH_OK;
    if (call->chosen_device > d->opt->n_cores) /* a step of another program or strategy */
        return ch__fail_in_call(
            ch__fail(CH_INVALID_ARGUMENT,
                     "logical device %d: it was recorded for more logical devices than %d",
                     call->chosen_device - 1, d->opt->n_cores),
            call);
    for (int k = 0; k < call->n_out && rc == CH_OK; k++) {
        ch_value_plan *v = &d->value[call[k].id];

        if (v->is_fixed)
            continue;
        *v = (ch_value_plan){.is_fixed = true, .source = CH_LAYOUT_CHOSEN_DEVICE};
        ch__layout_on_core(d->opt->n_cores, call[k].dims.rank, call->chosen_device - 1, &l);
        rc = ch__layout_intern(d->layouts, &l, &v->want);
    }
    return rc;
}

/* Fixes the layout of an input of the step, if the options split inputs. The inputs of a body
 * take theirs from the call. */
static ch_status fix_input(ch_core_division *d, const ch_node *n)
{
    ch_value_plan *v = &d->value[n->id];
    int            axis = d->opt->input_axis - 1;
    ch_core_layout l;

    if (n->op != ch__roles.input || d->input != NULL || axis < 0 || axis >= n->dims.rank ||
        (axis > 0 && n->dims.rank != CH_IMAGE_RANK))
        return CH_OK;
    *v = (ch_value_plan){.is_fixed = true, .source = CH_LAYOUT_INPUT};
    ch__layout_over_cores(d->opt->n_cores, n->dims.rank, axis, &l);
    return ch__layout_intern(d->layouts, &l, &v->want);
}

/* Fixes the layouts of variables, of inputs and annotated values, and of the outputs of calls
 * on a chosen device. */
static ch_status fix_layouts(ch_core_division *d)
{
    ch_core_layout l;
    ch_status      rc = fix_variables(d);

    for (int i = 0; i < d->n_calls && rc == CH_OK; i++) {
        const ch_call_plan *p = &d->call[i];

        if (p->call->op == &ch__op_with_layout) {
            ch_value_plan *v = &d->value[p->call->id];

            *v = (ch_value_plan){.is_fixed = true, .source = CH_LAYOUT_ANNOTATION};
            rc = ch__annotated_layout(d->opt, p->call, &l);
            if (rc == CH_OK)
                rc = ch__layout_intern(d->layouts, &l, &v->want);
        }
        if (rc == CH_OK)
            rc = fix_input(d, p->call);
        if (rc == CH_OK)
            rc = fix_to_device(d, p->call);
        for (int k = 0; p->bodies != NULL && k < p->bodies->n && rc == CH_OK; k++)
            rc = fix_layouts(&p->bodies->body[k]);
    }
    d->n_changes = 1;
    for (int i = 0; i < d->g->n_values; i++)
        d->value[i].changed = d->value[i].want != NULL;
    return rc;
}

/* Returns true if every core can compute a call without values of other cores: it has no input
 * that a single core has. */
static bool is_on_all_cores(const ch_core_division *d, const ch_node *call)
{
    bool is_on_all =
        !ch__is_source(call) && (call->op->flags & (CH_OP_EFFECT | CH_OP_HOST)) == 0;

    for (int i = 0; i < call->n_in && is_on_all; i++)
        is_on_all = call->in[i]->head->op == ch__roles.constant ||
                    ch__layout_is_replicated(want_of(d, call->in[i]));
    return is_on_all;
}

/* Returns the layout of output k of a call, which nothing decides. NULL: out of memory. */
static const ch_core_layout *default_layout(ch_core_division *d, const ch_node *call, int k)
{
    return is_on_all_cores(d, call) ? ch__division_replicated(d, call[k].dims.rank)
                                    : ch__division_default(d, call[k].dims.rank);
}

/* Gives the default layout to values whose layouts are undecided. */
static ch_status decide_rest(ch_core_division *d)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < d->n_calls && rc == CH_OK; i++) {
        const ch_call_plan *p = &d->call[i];

        for (int k = 0; k < p->call->n_out && rc == CH_OK; k++) {
            const ch_node *n = &p->call[k];

            if (d->value[n->id].want == NULL &&
                (d->value[n->id].want = default_layout(d, p->call, k)) == NULL)
                rc = ch__fail_memory("the layouts of a step");
        }
        for (int k = 0; p->bodies != NULL && k < p->bodies->n && rc == CH_OK; k++)
            rc = decide_rest(&p->bodies->body[k]);
    }
    return rc;
}

/* Lets layouts spread through all calls again: at the next level more calls take part, and more
 * layouts spread. */
static void forget_seen(ch_core_division *d)
{
    for (int i = 0; i < d->n_calls; i++) {
        ch_call_plan *p = &d->call[i];

        p->n_seen[0] = p->n_seen[1] = 0;
        for (int k = 0; p->bodies != NULL && k < p->bodies->n; k++)
            forget_seen(&p->bodies->body[k]);
    }
}

ch_status ch__propagate(ch_core_division *d)
{
    ch_status rc = fix_layouts(d);
    int       n = d->opt->input_axis > 0 ? CH_SPREAD_LEVELS : CH_SPREAD_VARIABLES;

    for (int i = 0; i < n && rc == CH_OK; i++) {
        forget_seen(d);
        for (bool changed = true; changed && rc == CH_OK;) {
            changed = false;
            rc = ch__spread(d, (ch_spread_level)i, true, &changed);
            if (rc == CH_OK)
                rc = ch__spread(d, (ch_spread_level)i, false, &changed);
        }
    }
    return rc == CH_OK ? decide_rest(d) : rc;
}

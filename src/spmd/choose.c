/* spmd/choose.c -- chooses the ranges of every call: which core computes which part of it.
 *
 * The calls are visited in order, with the forms of their inputs (forms.c). The candidates of a
 * call are the ranges that give its results their wanted layouts, the ranges that each input
 * suggests, and each combination of two of these. The cheapest candidate is chosen. If several
 * cost the same, the results decide, then the larger input, and combinations last. The cost is
 * the number of bytes that must be moved, for the inputs and from the results to their wanted
 * layouts, plus a small cost of each arithmetic operation, on all cores together. So work is
 * divided rather than repeated, if that does not move more bytes than it saves work.
 *
 * A result may be partial. Partial sums stay partial through calls that are linear in all
 * inputs together (CH_OP_LINEAR), and through products and quotients of which the other input
 * is complete (CH_OP_LINEAR_0, CH_OP_LINEAR_1). So the gradients of a value that several
 * products use are added before they are combined. A reduction that several calls need, and a
 * reduction of a result to which several partial sums are added, cost each of them a share
 * (sums.c).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "collective/collective.h"
#include "ops/ops.h"
#include "spmd/annotate.h"
#include "spmd/divide.h"

/* The state of choosing for a call. */
typedef struct chooser {
    ch_core_division *d;
    ch_forms          forms;
    ch_core_regions  *room; /* for regions that are no layout */
    ch_call_plan     *p;    /* the call */
    /* in order of preference, without repetitions; in the arena, with room for cap */
    const ch_core_layout **candidate;
    int                    n_candidates, cap;
} chooser;

/* ---- candidates ---- */

static ch_status add_candidate(chooser *c, const ch_core_layout *ranges)
{
    const ch_core_layout *unique, **more;
    ch_status             rc = ch__layout_intern(c->d->layouts, ranges, &unique);

    for (int i = 0; i < c->n_candidates; i++)
        if (c->candidate[i] == unique)
            return rc;
    if (rc == CH_OK && c->n_candidates == c->cap) {
        more = ch__arena_alloc(&c->d->arena, (2 * (size_t)c->cap + 16) * sizeof(*more));
        if (more == NULL)
            return ch__fail_memory("the layouts of a step");
        if (c->cap > 0)
            memcpy(more, c->candidate, (size_t)c->cap * sizeof(*more));
        c->candidate = more;
        c->cap = 2 * c->cap + 16;
    }
    if (rc == CH_OK)
        c->candidate[c->n_candidates++] = unique;
    return rc;
}

/* Adds the ranges that give all results their wanted layouts, as far as these fit together. */
static ch_status add_result(chooser *c)
{
    ch_core_layout ranges, lifted;
    const ch_node *call = c->p->call;

    ch__layout_replicated(c->d->opt->n_cores, c->p->rule.n, &ranges);
    for (int i = 0; i < call->n_out; i++)
        if (ch__lift(&c->p->rule, c->p->rule.out[i], c->d->value[call[i].id].want, CH_LIFT_ALL,
                     false, &lifted))
            (void)ch__layout_merge(&ranges, &lifted, &ranges);
    return add_candidate(c, &ranges);
}

/* Adds the ranges that the computed layout of each input gives, the largest first. */
static ch_status add_inputs(chooser *c)
{
    const ch_node *call = c->p->call;
    ch_status      rc = CH_OK;

    for (int k = 0; k < call->n_in && rc == CH_OK; k++) {
        int                   i = c->p->in_order[k];
        const ch_core_layout *has = ch__computed_layout(&c->forms, call->in[i]);
        ch_core_layout        ranges;

        if (has != NULL &&
            ch__lift(&c->p->rule, c->p->rule.in[i], has, CH_LIFT_ALL, true, &ranges))
            rc = add_candidate(c, &ranges);
    }
    return rc;
}

/* Adds each combination of two of the candidates. */
static ch_status add_pairs(chooser *c)
{
    int       n = c->n_candidates;
    ch_status rc = CH_OK;

    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n && rc == CH_OK; k++) {
            ch_core_layout merged;

            if (ch__layout_merge(c->candidate[i], c->candidate[k], &merged))
                rc = add_candidate(c, &merged);
        }
    return rc;
}

/* Sets *ranges to the whole of a call: on every core or on a single one, if the result is
 * wanted there; otherwise on core 0. */
static void whole_where_wanted(const chooser *c, ch_core_layout *ranges)
{
    const ch_node        *call = c->p->call;
    const ch_core_layout *want = call->n_out > 0 ? c->d->value[call->id].want : NULL;

    ch__layout_on_core(c->d->opt->n_cores, c->p->rule.n, 0, ranges);
    if (want != NULL && (ch__layout_is_replicated(want) || ch__layout_is_on_one_core(want)))
        ranges->cores = want->cores;
}

/* Adds the ranges of a call that must not be divided, which are the whole call. A call with an
 * effect outside the graph is on core 0. Other calls are on every core, or where their result
 * is wanted if values are on core 0 by default. */
static ch_status add_whole(chooser *c)
{
    ch_core_layout ranges;

    if ((c->p->call->op->flags & (CH_OP_EFFECT | CH_OP_HOST)) != 0)
        ch__layout_on_core(c->d->opt->n_cores, c->p->rule.n, 0, &ranges);
    else if (c->d->opt->defaults_to_core_0)
        whole_where_wanted(c, &ranges);
    else
        ch__layout_replicated(c->d->opt->n_cores, c->p->rule.n, &ranges);
    return add_candidate(c, &ranges);
}

static ch_status find_candidates(chooser *c)
{
    ch_status rc = CH_OK;

    c->n_candidates = 0;
    if (c->p->rule.n_set_out == 0 || (c->p->call->op->flags & (CH_OP_EFFECT | CH_OP_HOST)) != 0)
        return add_whole(c);
    rc = add_result(c);
    if (c->p->call->op == &ch__op_with_layout || c->p->call->chosen_device > 0)
        return rc; /* the user says where it is computed */
    if (rc == CH_OK)
        rc = add_inputs(c);
    return rc == CH_OK ? add_pairs(c) : rc;
}

/* ---- cost ---- */

/* Sets *stay to the inputs that stay partial, as bits: all inputs of a linear call, or a single
 * one of which the result is a multiple. Returns false if the call cannot keep the partial
 * results of the candidate. */
static bool inputs_stay_partial(chooser *c, const ch_core_layout *ranges, unsigned *stay)
{
    const ch_node *call = c->p->call;
    int            n = 0, n_partial = 0;

    *stay = 0;
    if (ranges->n_partial == 1)
        return true;
    for (int i = 0; i < call->n_in; i++) {
        const ch_core_layout *has = ch__computed_layout(&c->forms, call->in[i]);

        n_partial += has != NULL && has->n_partial > 1;
        if (i < 32 && ch__may_stay_partial(call, i) &&
            ch__has_partial(c->d, call, &c->p->rule, ranges, i, has)) {
            *stay |= 1u << i;
            n++;
        }
    }
    return n == n_partial && n == ((call->op->flags & CH_OP_LINEAR) != 0 ? call->n_in : 1);
}

/* Returns the share of the call in the cost of reducing input i. Other calls may need the sum
 * too. */
static double share_of_input(const chooser *c, int i)
{
    const ch_node        *call = c->p->call, *in = call->in[i];
    const ch_core_layout *has = ch__computed_layout(&c->forms, in);
    double                due = c->d->value[in->id].due, share;

    if (has == NULL || has->n_partial == 1)
        return 1;
    share = ch__sum_share(c->d, call, i);
    return share < due ? share / due : 1;
}

/* Returns the elements that bring partial value `in` to its wanted layout, in which other calls
 * need it. */
static int64_t moved_to_wanted(const chooser *c, const ch_node *in)
{
    const ch_core_layout  *want = c->d->value[in->id].want;
    const ch_core_regions *at = ch__layout_regions(c->d->layouts, want, ch__shape(in));

    return at != NULL ? ch__form_moved(&c->forms, in, at) : 0;
}

/* Adds the bytes that must be moved for input i. The call pays its share in a reduction to the
 * wanted layout, and all of what moves beyond that. Returns false if the candidate is
 * impossible. */
static bool add_input_cost(chooser *c, const ch_core_layout *ranges, int i, double *cost)
{
    const ch_node         *in = c->p->call->in[i];
    const ch_core_regions *want =
        ch__input_regions(c->d, c->p->call, &c->p->rule, ranges, i, c->room);
    double  share = share_of_input(c, i), beyond = 0;
    int64_t moved;

    if (want == NULL)
        return false;
    moved = ch__form_moved(&c->forms, in, want);
    if (moved > 0 && share < 1)
        beyond = fmax(0, (double)(moved - moved_to_wanted(c, in)));
    if (moved > 0)
        *cost +=
            (((double)moved - beyond) * share + beyond) * (double)ch_dtype_bytes(in->dtype);
    return true;
}

/* Returns the layout in which output i is computed; NULL: the candidate is impossible. */
static const ch_core_layout *output_layout(chooser *c, const ch_core_layout *ranges, int i)
{
    const ch_node        *out = &c->p->call[i];
    const ch_core_layout *unique;
    ch_core_layout        l;

    return ch__lower(&c->p->rule, ranges, c->p->rule.out[i], &out->dims, false, &l) &&
                   ch__layout_intern(c->d->layouts, &l, &unique) == CH_OK
               ? unique
               : NULL;
}

/* Adds the bytes that bring output i to its wanted layout. A partial sum that waits for an
 * addition costs its share in the reduction of the result. */
static bool add_output_cost(chooser *c, const ch_core_layout *ranges, int i, double *cost)
{
    const ch_node         *out = &c->p->call[i];
    const ch_core_layout  *has = output_layout(c, ranges, i), *want = c->d->value[out->id].want;
    double                 due = c->d->value[out->id].due, bytes = (double)ch__bytes(out);
    const ch_core_regions *at;

    if (has == NULL || has == want)
        return has != NULL;
    at = ch__layout_regions(c->d->layouts, want, ch__shape(out));
    if (at == NULL)
        return false;
    *cost += (double)ch__forms_cost(&c->forms, has, out, at).n_moved *
             (double)ch_dtype_bytes(out->dtype) *
             (has->n_partial > 1 && has->combiner == CH_PARTIAL_SUM && due < bytes ? due / bytes
                                                                                   : 1);
    return true;
}

/* Sets *cost to the cost of a candidate, and *stay to the inputs that stay partial. Returns
 * false if the candidate is impossible. */
static bool cost_of(chooser *c, const ch_core_layout *ranges, unsigned *stay, double *cost)
{
    if (!inputs_stay_partial(c, ranges, stay))
        return false;
    /* The bytes are added up first. They are whole numbers, so rounding breaks no tie, except
     * where a call pays a share of a reduction (add_output_cost). */
    *cost = 0;
    for (int i = 0; i < c->p->call->n_in; i++)
        if (!ch__stays_partial(*stay, i) && !add_input_cost(c, ranges, i, cost))
            return false;
    for (int i = 0; i < c->p->call->n_out; i++)
        if (!add_output_cost(c, ranges, i, cost))
            return false;
    *cost += ch__bytes_per_operation(c->d->opt) * ch__all_operations(&c->p->rule, ranges);
    return true;
}

/* ---- the choice ---- */

static ch_status choose_best(chooser *c)
{
    double best = 0;

    c->p->ranges = NULL;
    for (int i = 0; i < c->n_candidates; i++) {
        unsigned stay = 0;
        double   cost;

        if (cost_of(c, c->candidate[i], &stay, &cost) &&
            (c->p->ranges == NULL || cost < best)) {
            best = cost;
            c->p->ranges = c->candidate[i];
            c->p->stays_partial = stay;
        }
    }
    if (c->p->ranges != NULL)
        return CH_OK;
    c->n_candidates = 0;
    if (add_whole(c) != CH_OK)
        return ch__fail_memory("the layouts of a step");
    c->p->ranges = c->candidate[0];
    return CH_OK;
}

ch_status ch__choose_again(ch_core_division *d, const ch_forms *forms, ch_call_plan *p,
                           bool keep)
{
    chooser   c = {.d = d, .forms = *forms, .p = p};
    unsigned  stay;
    double    cost;
    ch_status rc;

    c.room = ch__arena_alloc(&d->arena, sizeof(*c.room));
    if (c.room == NULL)
        return ch__fail_memory("the layouts of a step");
    if (keep && cost_of(&c, p->ranges, &stay, &cost) && stay == p->stays_partial)
        return CH_OK;
    p->stays_partial = 0;
    rc = find_candidates(&c);
    return rc == CH_OK ? choose_best(&c) : rc;
}

/* Adds the forms that the call makes: of its inputs, by reshards, and of its outputs. */
static ch_status add_forms(chooser *c)
{
    const ch_node *call = c->p->call;
    ch_form       *in = NULL;

    for (int i = 0; i < call->n_in; i++) {
        const ch_core_regions *want;
        ch_status              rc;

        if (ch__stays_partial(c->p->stays_partial, i)) {
            in = c->forms.first[call->in[i]->id];
            ch__cost_use(&c->forms, in);
            continue;
        }
        want = ch__input_regions(c->d, call, &c->p->rule, c->p->ranges, i, c->room);
        if (want == NULL)
            return ch__fail(CH_INTERNAL, "%s: no regions of input %d", call->op->name, i);
        rc =
            ch__form_get(&c->forms, call->in[i], want,
                         ch__input_layout(c->d, call, &c->p->rule, c->p->ranges, i, want), &in);
        if (rc != CH_OK)
            return rc;
    }
    for (int i = 0; i < call->n_out; i++) {
        const ch_core_layout *l = output_layout(c, c->p->ranges, i);
        ch_form *out = l != NULL ? ch__form_add(&c->forms, &call[i], l, NULL) : NULL;

        if (out == NULL)
            return ch__fail_memory("the layouts of a step");
        if (call->op == &ch__op_reshape)
            out->view_of = in;
    }
    return CH_OK;
}

/* ---- packs ---- */

/* Returns true if an array of a pack can have the layout. A core that has no part takes part
 * with an array of no elements, which a scalar cannot be. */
static bool may_be_array(const ch_core_layout *l)
{
    return ch__layout_is_complete(l) || (l->n_partial == 1 && l->rank > 0);
}

/* Returns the layout of array i of a pack: that in which it was computed, if it is split.
 * Otherwise the wanted layout, which a partial or replicated value can take at least as cheaply
 * as any other. NULL: out of memory. */
static const ch_core_layout *array_layout(chooser *c, int i)
{
    const ch_node        *in = c->p->call->in[i];
    const ch_core_layout *has = ch__computed_layout(&c->forms, in);
    const ch_core_layout *want = c->d->value[c->p->call[i].id].want;

    if (has != NULL && may_be_array(has) &&
        (!ch__layout_is_replicated(has) || c->forms.first[in->id]->is_in_flight))
        return has;
    return may_be_array(want) ? want : ch__division_replicated(c->d, in->dims.rank);
}

static ch_status choose_pack(chooser *c)
{
    const ch_node *call = c->p->call;
    bool           is_begin = call->op == &ch__op_all_reduce_begin;

    c->p->array =
        ch__arena_alloc(&c->d->arena, (size_t)(call->n_in + 1) * sizeof(*c->p->array));
    if (c->p->array == NULL)
        return ch__fail_memory("the layouts of a step");
    for (int i = 0; i < call->n_in; i++) {
        const ch_core_layout *l = array_layout(c, i);
        ch_form              *form;

        if (l == NULL || ch__form_need(&c->forms, call->in[i], l) != CH_OK)
            return ch__fail_memory("the layouts of a step");
        c->p->array[i] = l;
        form = ch__form_add(&c->forms, &call[i], l, NULL);
        if (form == NULL)
            return ch__fail_memory("the layouts of a step");
        form->is_in_flight = is_begin;
    }
    return CH_OK;
}

/* Adds the form of a value that no op computes. */
static ch_status add_source(chooser *c)
{
    const ch_node        *call = c->p->call;
    bool                  is_read = call->op == ch__roles.read;
    const ch_core_layout *l = ch__body_input_layout(c->d, call);
    ch_form              *form =
        ch__form_add(&c->forms, call, l != NULL ? l : c->d->value[call->id].want, NULL);

    if (form == NULL)
        return ch__fail_memory("the layouts of a step");
    form->is_host = !is_read && l == NULL;
    return CH_OK;
}

/* Chooses how a call is divided, and adds the forms of its values. */
static ch_status choose_call(chooser *c)
{
    ch_status rc;

    if (ch__is_source(c->p->call))
        return add_source(c);
    if (c->p->bodies != NULL)
        return ch__bodies_choose(c->d, &c->forms, c->p);
    if (ch__is_pack(c->p->call)) {
        rc = choose_pack(c);
    } else {
        rc = find_candidates(c);
        if (rc == CH_OK)
            rc = choose_best(c);
        if (rc == CH_OK)
            rc = add_forms(c);
    }
    if (rc == CH_OK)
        ch__cost_call(&c->forms, c->p);
    return rc;
}

/* Brings new values of variables to the layouts of the variables, and results to theirs, as
 * actions.c does. */
static ch_status finish(chooser *c)
{
    ch_core_division *d = c->d;
    ch_status         rc = CH_OK;

    c->forms.now = d->n_calls;
    for (int i = 0; i < d->g->n_resources && rc == CH_OK && d->output == NULL; i++) {
        const ch_resource *r = &d->g->resource[i];

        if (r->value != NULL && r->value != r->read)
            rc = ch__form_need(&c->forms, r->value, d->tiles[i]);
    }
    for (int i = 0; i < d->g->n_outputs && rc == CH_OK; i++) {
        const ch_node        *n = d->g->output[i].node;
        const ch_core_layout *l = c->forms.first[n->id]->layout;

        if (d->output != NULL)
            l = d->output[i];
        else if (l->n_partial > 1)
            l = d->value[n->id].want;
        rc = ch__form_need(&c->forms, n, l);
    }
    return rc == CH_OK ? ch__cost_peak(d, &c->forms) : rc;
}

ch_status ch__choose(ch_core_division *d)
{
    chooser   c = {.d = d};
    ch_status rc = ch__forms_begin(d, d->g, &c.forms);

    c.room = ch__arena_alloc(&d->arena, sizeof(*c.room));
    if (rc != CH_OK || c.room == NULL)
        return ch__fail_memory("the layouts of a step");
    ch__find_sums(d);
    for (int i = 0; i < d->n_calls && rc == CH_OK; i++) {
        c.p = &d->call[i];
        c.forms.now = i;
        ch__forms_visit(&c.forms, c.p->call);
        rc = choose_call(&c);
    }
    return rc == CH_OK && d->cost != NULL ? finish(&c) : rc;
}

/* spmd/forms.c -- the forms in which values are on the cores.
 *
 * A value is computed in one form. A call that needs other regions of it gets them by a
 * reshard, and the resharded value is a further form, which later calls can use.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mutant.h"
#include "collective/collective.h"
#include "ops/ops.h"
#include "spmd/divide.h"

ch_status ch__forms_begin(ch_core_division *d, const ch_graph *g, ch_forms *out)
{
    bool *from_variables;

    *out = (ch_forms){
        .arena = &d->arena, .layouts = d->layouts, .n_cores = d->opt->n_cores, .d = d};
    out->first = ch__arena_alloc(&d->arena, ((size_t)g->n_values + 1) * sizeof(*out->first));
    if (out->first == NULL)
        return ch__fail_memory("the layouts of a step");
    if (!d->opt->regathers)
        return CH_OK;
    from_variables =
        ch__arena_alloc(&d->arena, ((size_t)g->n_values + 1) * sizeof(*from_variables));
    if (from_variables == NULL)
        return ch__fail_memory("the layouts of a step");
    for (const ch_node *n = g->first; n != NULL; n = n->next) {
        bool is_from = n->op == ch__roles.read || n->n_in > 0;

        for (int i = 0; i < n->n_in; i++)
            is_from &= from_variables[n->in[i]->id];
        for (int i = 0; i < n->n_out; i++)
            from_variables[n[i].id] = is_from;
    }
    out->regathered = from_variables;
    return CH_OK;
}

/* Returns true if the call that is visited may use a form of value n. */
static bool is_usable(const ch_forms *forms, const ch_form *form, const ch_node *n)
{
    return forms->regathered == NULL || !forms->regathered[n->id] || !form->is_made ||
           form->is_for_backward == forms->in_backward;
}

/* Returns true if every core that needs a region has exactly this region in the form. */
static bool fits(const ch_forms *forms, const ch_form *form, const ch_node *n,
                 const ch_core_regions *want)
{
    const ch_core_regions *has = form->regions;

    if (form->layout != NULL && form->layout->n_partial > 1)
        return false;
    if (want->cores == 0 || form->is_host)
        return want->cores == 0;
    if (has == NULL)
        has = ch__layout_regions(forms->layouts, form->layout, ch__shape(n));
    if (has == want)
        return true;
    if (has == NULL || (want->cores & ~has->cores) != 0)
        return false;
    for (uint64_t m = want->cores; m != 0; m &= m - 1) {
        int c = ch__first_core(m);

        if (!ch__region_equal(&has->at[c], &want->at[c], n->dims.rank))
            return false;
    }
    return true;
}

ch_reshard_cost ch__forms_cost(const ch_forms *forms, const ch_core_layout *from,
                               const ch_node *n, const ch_core_regions *want)
{
    ch_reshard_cost *known =
        want->layout != NULL ? ch__layout_cost(forms->layouts, from, want) : NULL;
    ch_reshard_cost cost;
    bool            wants[CH_MAX_CORES];

    if (known != NULL && known->n_moved >= 0)
        return *known;
    for (int c = 0; c < CH_MAX_CORES; c++)
        wants[c] = ch__has_core(want->cores, c);
    ch__reshard_cost(from, ch__shape(n), want->at, wants, &cost);
    if (known != NULL)
        *known = cost;
    return cost;
}

ch_form *ch__form_for(const ch_forms *forms, const ch_node *n, const ch_core_regions *want,
                      int64_t *moved)
{
    ch_form *best = NULL;

    *moved = 0;
    for (ch_form *form = forms->first[n->id]; form != NULL; form = form->next)
        if (is_usable(forms, form, n) && fits(forms, form, n, want)) {
            *moved = -1;
            return form;
        }
    for (ch_form *form = forms->first[n->id]; form != NULL; form = form->next) {
        int64_t cost;

        if ((form->layout == NULL && !form->is_host) || !is_usable(forms, form, n))
            continue; /* halos overlap, so they are no source of a reshard */
        cost = form->is_host ? 0 : ch__forms_cost(forms, form->layout, n, want).n_moved;
        if (best == NULL || cost < *moved) {
            best = form;
            *moved = cost;
        }
    }
    return best;
}

const ch_core_layout *ch__computed_layout(const ch_forms *forms, const ch_node *n)
{
    const ch_form *form = forms->first[n->id];

    return form->is_host ? NULL : form->layout;
}

ch_form *ch__form_add(ch_forms *forms, const ch_node *n, const ch_core_layout *layout,
                      const ch_core_regions *regions)
{
    ch_form  *form = ch__arena_alloc(forms->arena, sizeof(*form));
    ch_form **last = &forms->first[n->id];

    if (form == NULL)
        return NULL;
    form->layout = layout;
    form->is_made = *last != NULL;
    form->is_for_backward = forms->in_backward;
    form->made = form->used = forms->now;
    if (layout == NULL) {
        form->regions = ch__regions_copy(forms->arena, regions, forms->n_cores);
        if (form->regions == NULL)
            return NULL;
    }
    while (*last != NULL)
        last = &(*last)->next;
    *last = form;
    return form;
}

bool ch__repeats(const ch_forms *forms, const ch_node *n, const ch_core_regions *want,
                 int64_t moved, ch_repeat *out)
{
    const ch_node        *call = n->head, *in;
    const ch_core_layout *l = want->layout, *unique;
    const ch_form        *first;
    ch_factors           *f = &out->rule;
    ch_core_layout        lowered;

    if (moved <= 0 || call->op != &ch__op_reshape || l == NULL || l->n_partial > 1)
        return false;
    in = call->in[0];
    first = forms->first[in->id];
    if (first->next == NULL && !first->is_host)
        return false; /* the result has the only form of the input */
    if (ch__factors_of(call, forms->arena, f) != CH_OK || f->n_set_out == 0 ||
        !ch__lift(f, f->out[0], l, CH_LIFT_ALL, false, &out->ranges) ||
        !ch__ranges_are_full(f, &out->ranges) ||
        !ch__lower(f, &out->ranges, f->out[0], &n->dims, false, &lowered) ||
        ch__layout_intern(forms->layouts, &lowered, &unique) != CH_OK || unique != l ||
        !ch__lower(f, &out->ranges, f->in[0], &in->dims, true, &lowered) ||
        ch__layout_intern(forms->layouts, &lowered, &unique) != CH_OK)
        return false;
    out->in = ch__layout_regions(forms->layouts, unique, ch__shape(in));
    if (out->in == NULL)
        return false;
    (void)ch__form_for(forms, in, out->in, &out->moved);
    return out->moved < moved;
}

int64_t ch__form_moved(const ch_forms *forms, const ch_node *n, const ch_core_regions *want)
{
    int64_t   moved;
    ch_repeat r;

    (void)ch__form_for(forms, n, want, &moved);
    return ch__repeats(forms, n, want, moved, &r) ? r.moved : moved;
}

/* Adds the form of value n that its repeated call makes. */
static ch_form *add_repeated(ch_forms *forms, const ch_node *n, const ch_repeat *r,
                             const ch_core_layout *l)
{
    ch_form *in = NULL, *form = NULL;

    if (ch__form_get(forms, n->head->in[0], r->in, r->in->layout, &in) == CH_OK)
        form = ch__form_add(forms, n, l, NULL);
    if (form != NULL)
        form->view_of = in;
    return form;
}

ch_status ch__form_get(ch_forms *forms, const ch_node *n, const ch_core_regions *want,
                       const ch_core_layout *l, ch_form **out)
{
    int64_t   moved;
    ch_form  *form = ch__form_for(forms, n, want, &moved);
    ch_repeat r;

    if (ch__repeats(forms, n, want, moved, &r)) {
        form = add_repeated(forms, n, &r, want->layout);
    } else if (moved >= 0) {
        ch_form *from = form;

        if (moved > 0)
            ch__cost_reshard(forms, from, n, want);
        ch__cost_use(forms, from);
        form = ch__form_add(forms, n, l, want);
        if (form != NULL && from->layout->n_partial > 1)
            form->reduces = from;
    }
    if (form == NULL)
        return ch__fail_memory("the layouts of a step");
    ch__cost_use(forms, form);
    if (out != NULL)
        *out = form;
    return CH_OK;
}

ch_status ch__form_need(ch_forms *forms, const ch_node *n, const ch_core_layout *l)
{
    const ch_core_regions *want = ch__layout_regions(forms->layouts, l, ch__shape(n));

    return want != NULL ? ch__form_get(forms, n, want, l, NULL)
                        : ch__fail_memory("the layouts of a step");
}

/* Removes the cores that have no region from a layout of value n. A part without elements stays
 * on its cores. Returns false if another part would be on no core. */
static bool keep_cores(ch_core_layout *l, const ch_node *n, const ch_core_regions *at)
{
    for (int c = 0; c < l->n_cores; c++) {
        ch_region part;

        if (!ch__has_core(at->cores, c) && ch__core_region(l, ch__shape(n), c, &part) &&
            ch__region_count(&part, n->dims.rank) > 0 && CH_KEEPS(SOURCE))
            l->cores &= ~((uint64_t)1 << c);
    }
    return ch__layout_is_covered(l);
}

const ch_core_layout *ch__input_layout(ch_core_division *d, const ch_node *call,
                                       const ch_factors *f, const ch_core_layout *ranges, int i,
                                       const ch_core_regions *at)
{
    const ch_node        *n = call->in[i];
    const ch_core_layout *unique;
    ch_core_layout        l;

    if (at->layout != NULL)
        return at->layout;
    for (int k = 0; k < n->dims.rank; k++)
        if (f->in[i][k].is_mapped)
            return NULL;
    return ch__lower(f, ranges, f->in[i], &n->dims, true, &l) && keep_cores(&l, n, at) &&
                   ch__layout_intern(d->layouts, &l, &unique) == CH_OK
               ? unique
               : NULL;
}

bool ch__is_pack(const ch_node *call)
{
    const ch_op *op = call->op;

    return op == &ch__op_all_reduce || op == &ch__op_all_reduce_begin ||
           op == &ch__op_all_reduce_end || op == &ch__op_broadcast ||
           op == &ch__op_reduce_to_first;
}

bool ch__is_source(const ch_node *call)
{
    return call->op == ch__roles.input || call->op == ch__roles.constant ||
           call->op == ch__roles.read;
}

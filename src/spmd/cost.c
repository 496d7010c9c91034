/* spmd/cost.c -- the cost of a division: bytes that move, operations, barriers, and the memory
 * of each core.
 *
 * choose.c counts a division while it makes it, so search.c can compare divisions without their
 * graphs. Bytes between cores are those that the exchanges of the divided step will count.
 * Bytes between replicas are those of a reduction in shares: 2 (n - 1) / n of the arrays.
 *
 * The memory of a core is estimated from the lifetimes of its forms, in the order in which the
 * step was recorded. A form lives from the call that makes it to the last call that uses it.
 * The estimate leaves out what the planner (graph/plan.c) does not store, or stores elsewhere:
 *   - inputs, constants and tiles of variables, and new values of tiles;
 *   - results that are contiguous in the whole result: they are computed there;
 *   - the result of an elementwise call that can overwrite an input, and a view of an input;
 *   - values that are computed where they are used, such as a broadcast bias.
 * Partial results with a single use are reduced at once, as actions.c does.
 * It does not know the scratch memory of kernels, the gaps between buffers, and which values
 * fusion leaves out. For the three models of test/strategy/test_choose_layouts.c it is between
 * 0.93 and 1.28 of what a core needs; for small steps it has been half of it. So
 * strategy/found_layouts.c plans the programs of a division before it accepts the division.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "collective/collective.h"
#include "ops/ops.h"
#include "spmd/divide.h"

/* ---- counts ---- */

/* Returns the elements of the largest region of a layout. */
static int64_t largest_part(const ch_forms *forms, const ch_core_layout *l, const ch_node *n)
{
    const ch_core_regions *at = ch__layout_regions(forms->layouts, l, ch__shape(n));
    int64_t                most = 0;

    for (int c = 0; at != NULL && c < l->n_cores; c++) {
        int64_t count =
            ch__has_core(at->cores, c) ? ch__region_count(&at->at[c], n->dims.rank) : 0;

        most = count > most ? count : most;
        if (at->same_sizes)
            break;
    }
    return most;
}

void ch__cost_reshard(const ch_forms *forms, const ch_form *from, const ch_node *n,
                      const ch_core_regions *want)
{
    ch_division_cost *to = forms->d->cost;
    double            each = (double)ch_dtype_bytes(n->dtype);
    ch_reshard_cost   cost;

    if (to == NULL)
        return;
    cost = ch__forms_cost(forms, from->layout, n, want);
    to->bytes += to->times * each * (double)cost.n_moved;
    to->barriers +=
        to->times * ch__exchange_barriers(cost.n_stages, largest_part(forms, from->layout, n) *
                                                             (int64_t)ch_dtype_bytes(n->dtype));
}

/* Returns the elements of a value that all cores together have in its first form. */
static double elements_of(const ch_forms *forms, const ch_node *n)
{
    const ch_core_layout *l = forms->first[n->id]->layout;
    double                sum = 0;
    ch_region             at;

    for (int c = 0; c < l->n_cores; c++)
        if (ch__core_region(l, ch__shape(n), c, &at))
            sum += (double)ch__region_count(&at, n->dims.rank);
    return sum;
}

void ch__cost_call(const ch_forms *forms, const ch_call_plan *p)
{
    ch_division_cost *to = forms->d->cost;
    int               n_replicas = to != NULL ? to->n_replicas : 1;

    if (to == NULL)
        return;
    if (p->ranges != NULL)
        to->operations += to->times * ch__all_operations(&p->rule, p->ranges);
    for (int i = 0; i < p->call->n_out && p->array != NULL; i++) {
        double n = elements_of(forms, &p->call[i]);

        to->operations += to->times * n;
        if (p->call->op != &ch__op_all_reduce_end) /* the beginning counts */
            to->bytes += to->times * n * (double)ch_dtype_bytes(p->call[i].dtype) * 2 *
                         (n_replicas - 1) / n_replicas;
    }
}

/* ---- lifetimes ---- */

/* Returns true if a call reads each element of its inputs before it writes the element of its
 * result, so that the result may overwrite an input. */
static bool overwrites(const ch_node *call)
{
    return call->op->block != NULL;
}

void ch__cost_use(const ch_forms *forms, ch_form *form)
{
    const ch_core_division *d = forms->d;

    if (d->cost == NULL || !d->cost->has_peaks)
        return;
    for (; form != NULL; form = form->view_of) {
        form->used = forms->now;
        form->n_uses++;
        form->is_overwritten = forms->now < d->n_calls && overwrites(d->call[forms->now].call);
    }
}

/* Returns true if a region is contiguous in the whole array. */
static bool is_contiguous(const ch_region *r, const ch_dims *whole)
{
    int k = whole->rank - 1;

    while (k > 0 && r->size[k] == whole->dim[k].n)
        k--;
    while (--k >= 0)
        if (r->size[k] > 1)
            return false;
    return true;
}

/* The memory of values over time. */
typedef struct lifetimes {
    ch_core_division *d;
    const ch_forms   *forms;
    int64_t          *change; /* [time * n_cores + core]: bytes that are added at the time */
    bool             *is_output, *is_new; /* by value: a result; a new value of a variable */
} lifetimes;

/* Returns true if a form of value n needs no memory in the arena of a core, which has the
 * region r of it. */
static bool is_elsewhere(const lifetimes *l, const ch_node *n, const ch_form *form,
                         const ch_region *r)
{
    const ch_op *op = n->head->op;

    if (form->is_host || form->view_of != NULL || op == ch__roles.read)
        return true;
    if (!form->is_made && (op == &ch__op_broadcast_to || op == &ch__op_fill))
        return true; /* computed by the calls that use it */
    if (l->is_new[n->id] && form->layout != NULL && form->layout == l->d->value[n->id].want)
        return true;
    return l->is_output[n->id] && is_contiguous(r, &n->dims);
}

static const ch_core_regions *regions_of(const lifetimes *l, const ch_node *n,
                                         const ch_form *form)
{
    return form->regions != NULL
               ? form->regions
               : ch__layout_regions(l->forms->layouts, form->layout, ch__shape(n));
}

/* Returns the elements of value n that all cores together have in a form. */
static int64_t elements_in(const lifetimes *l, const ch_node *n, const ch_form *form)
{
    const ch_core_regions *at = regions_of(l, n, form);
    int64_t                sum = 0;

    for (int c = 0; at != NULL && c < l->d->opt->n_cores; c++)
        sum += ch__has_core(at->cores, c) ? ch__region_count(&at->at[c], n->dims.rank) : 0;
    return sum;
}

/* Returns true if a form is made by the only use of partial results, and is not larger: then
 * the reduction follows the call that computes them. */
static bool is_reduced_early(const lifetimes *l, const ch_node *n, const ch_form *form)
{
    return form->reduces != NULL && form->reduces->n_uses == 1 &&
           elements_in(l, n, form) <= elements_in(l, n, form->reduces);
}

/* Adds the lifetime of a form of value n. */
static void add_lifetime(lifetimes *l, const ch_node *n, const ch_form *form)
{
    int                    cores = l->d->opt->n_cores, begin = form->made, end = form->used;
    const ch_core_regions *at = regions_of(l, n, form);

    if (form->is_overwritten && end > begin)
        end--;
    if (is_reduced_early(l, n, form))
        begin = form->reduces->made;
    for (const ch_form *f = form->next; f != NULL; f = f->next)
        if (f->reduces == form && is_reduced_early(l, n, f))
            end = begin;
    for (int c = 0; at != NULL && c < cores; c++) {
        int64_t bytes;

        if (!ch__has_core(at->cores, c) || is_elsewhere(l, n, form, &at->at[c]))
            continue;
        bytes = ch__region_count(&at->at[c], n->dims.rank) * (int64_t)ch_dtype_bytes(n->dtype);
        l->change[begin * cores + c] += bytes;
        l->change[(end + 1) * cores + c] -= bytes;
    }
}

/* Adds the memory of the bodies of call i while it runs. */
static void add_bodies(lifetimes *l, int i)
{
    const ch_body_plan *b = l->d->call[i].bodies;
    int                 cores = l->d->opt->n_cores;

    for (int c = 0; b != NULL && c < cores; c++) {
        int64_t most = 0;

        for (int k = 0; k < b->n; k++)
            most = b->body[k].peak[c] > most ? b->body[k].peak[c] : most;
        l->change[i * cores + c] += most;
        l->change[(i + 1) * cores + c] -= most;
    }
}

ch_status ch__cost_peak(ch_core_division *d, const ch_forms *forms)
{
    size_t    cores = (size_t)d->opt->n_cores, values = (size_t)d->g->n_values + 1;
    size_t    times = (size_t)d->n_calls + 2;
    lifetimes l = {.d = d, .forms = forms};

    if (!d->cost->has_peaks)
        return CH_OK;
    d->peak = ch__arena_alloc(&d->arena, 2 * cores * sizeof(*d->peak));
    l.change = ch__arena_alloc(&d->arena, times * cores * sizeof(*l.change));
    l.is_output = ch__arena_alloc(&d->arena, 2 * values);
    if (d->peak == NULL || l.change == NULL || l.is_output == NULL)
        return ch__fail_memory("the layouts of a step");
    l.is_new = l.is_output + values;
    for (int i = 0; i < d->g->n_outputs && d->output == NULL; i++)
        l.is_output[d->g->output[i].node->id] = true;
    for (int i = 0; i < d->g->n_resources; i++)
        if (d->g->resource[i].value != NULL)
            l.is_new[d->g->resource[i].value->id] = true;
    for (int i = 0; i < d->n_calls; i++) {
        const ch_node *call = d->call[i].call;

        for (int k = 0; k < call->n_out; k++)
            for (const ch_form *f = forms->first[call[k].id]; f != NULL; f = f->next)
                add_lifetime(&l, &call[k], f);
        add_bodies(&l, i);
    }
    for (size_t t = 0; t < times; t++)
        for (size_t c = 0; c < cores; c++) {
            int64_t *now = &d->peak[cores + c];

            *now += l.change[t * cores + c];
            d->peak[c] = *now > d->peak[c] ? *now : d->peak[c];
        }
    return CH_OK;
}

/* spmd/describe.c -- describes a division in a report (report.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "spmd/annotate.h"
#include "spmd/divide.h"

/* ---- counts ---- */

static bool is_split(const ch_core_layout *l)
{
    for (int k = 0; l != NULL && k < l->rank; k++)
        if (l->parts[k] > 1)
            return true;
    return false;
}

/* Returns the layout in which a value was computed; NULL: every core can take any part. */
static const ch_core_layout *computed_layout(const ch_forms *forms, const ch_node *n)
{
    const ch_form *form = forms->first[n->id];

    return form->is_host ? NULL : form->layout;
}

/* Returns true if every core computes the whole call, although input i is split. */
static bool is_repeated(const ch_call_plan *p, const ch_node *call, const ch_forms *forms,
                        int i)
{
    const ch_core_layout *does = p->array != NULL ? p->array[i] : p->ranges;

    return call->op != &ch__op_with_layout && ch__layout_is_replicated(does) &&
           is_split(computed_layout(forms, call->in[i]));
}

/* Returns true if all ranges of each factor have the same size. */
static bool is_even(const ch_factors *f, const ch_core_layout *ranges)
{
    for (int k = 0; k < f->n; k++)
        if (f->factor[k].size.n % (ranges->parts[k] * ranges->unit[k]) != 0)
            return false;
    return true;
}

static void count_operations(ch_step_report *r, const ch_factors *f,
                             const ch_core_layout *ranges)
{
    int64_t from[CH_MAX_FACTORS] = {0}, to[CH_MAX_FACTORS];
    bool    all_same = is_even(f, ranges), computes = false;
    int     first = __builtin_ctzll(ranges->cores);

    for (int k = 0; k < f->n; k++)
        to[k] = f->factor[k].size.n;
    r->all_operations += r->times * ch__operations(f, from, to);
    for (int c = first; c < ranges->n_cores; c++) {
        if (!all_same || c == first)
            computes = ch__core_ranges(f, ranges, c, from, to);
        if (computes && ch__layout_has(ranges, c))
            r->operations[c] += r->times * ch__operations(f, from, to);
    }
}

/* Counts an operation for each element of the outputs. */
static void count_elements(ch_step_report *r, const ch_node *call, const ch_forms *forms)
{
    for (int i = 0; i < call->n_out; i++) {
        const ch_core_layout *l = forms->first[call[i].id]->layout;
        ch_region             at;

        r->all_operations += r->times * (double)ch__count(&call[i]);
        for (int c = 0; c < l->n_cores; c++)
            if (ch__core_region(l, ch__shape(&call[i]), c, &at))
                r->operations[c] += r->times * (double)ch__region_count(&at, call[i].dims.rank);
    }
}

void ch__describe_call(ch_step_report *r, const ch_call_plan *p, const ch_node *call,
                       const ch_factors *rule, const ch_forms *forms)
{
    bool any = false;

    if (p->bodies != NULL)
        return; /* the calls of the bodies were added */
    r->n_calls++;
    for (int i = 0; i < call->n_in && !any; i++)
        any = is_repeated(p, call, forms, i);
    r->n_replicated += any;
    if (p->array == NULL && rule->n_set_out > 0)
        count_operations(r, rule, p->ranges);
    else
        count_elements(r, call, forms);
}

/* spmd/describe.c -- describes a division in a report (report.h).
 *
 * actions.c calls ch__describe_call for every call that it adds to the actions of the cores,
 * and partition.c calls ch__describe_move for every transfer. The layouts of a report are those
 * in which values are computed (ch_forms.first), which need not be the wanted ones. An origin
 * is that of the wanted layout, if the value is computed in it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "spmd/actions.h"
#include "spmd/annotate.h"

static ch_status no_memory(void)
{
    return ch__fail_memory("the report of a step");
}

/* Copies a text to the report. Returns false if memory is exhausted. */
static bool copy_text(ch_step_report *r, const char *text, const char **out)
{
    *out = ch__arena_strdup(&r->arena, text);
    return text == NULL || *out != NULL;
}

ch_status ch__describe_begin(ch_step_report *r, ch_report_body *b, const char *name, int n)
{
    b->times = 1;
    b->by_id = ch__arena_alloc(&r->arena, ((size_t)n + 1) * sizeof(ch_report_value *));
    b->last = &b->first;
    return b->by_id != NULL && copy_text(r, name, &b->name) ? CH_OK : no_memory();
}

ch_status ch__describe_bodies(ch_step_report *r, const ch_node *call, ch_report_body **out)
{
    ch_graph *body[CH_MAX_BODIES];
    int       n = ch__call_bodies(call, body), i = 0;
    ch_status rc = CH_OK;

    *out = ch__arena_alloc(&r->arena, ((size_t)n + 1) * sizeof(**out));
    if (*out == NULL)
        return no_memory();
    for (const ch_attr *row = call->op->attrs; i < n && rc == CH_OK; row++) {
        if (row->kind != CH_ATTR_KIND_GRAPH)
            continue;
        rc = ch__describe_begin(r, &(*out)[i], row->name, body[i]->n_values);
        (*out)[i].times = ch__body_iterations(call);
        (*out)[i].next = i + 1 < n ? &(*out)[i + 1] : NULL;
        i++;
    }
    return rc;
}

/* ---- counts ---- */

static bool is_split(const ch_core_layout *l)
{
    for (int k = 0; l != NULL && k < l->rank; k++)
        if (l->parts[k] > 1)
            return true;
    return false;
}

/* Returns true if every core computes the whole call, although an input is split. */
static bool is_repeated(const ch_partition *p, const ch_call_plan *plan, const ch_node *call)
{
    for (int i = 0; i < call->n_in && call->op != &ch__op_with_layout; i++)
        if (ch__layout_is_replicated(plan->array != NULL ? plan->array[i] : plan->ranges) &&
            is_split(ch__computed_layout(&p->forms, call->in[i])))
            return true;
    return false;
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
    int64_t        from[CH_MAX_FACTORS] = {0}, to[CH_MAX_FACTORS];
    bool           all_same = is_even(f, ranges);
    double         n = 0;
    ch_range_table t;

    for (int k = 0; k < f->n; k++)
        to[k] = f->factor[k].size.n;
    r->all_operations += r->times * ch__operations(f, from, to);
    ch__range_table_set(f, ranges, &t);
    for (uint64_t m = t.cores; m != 0; m &= m - 1) {
        if (!all_same || m == t.cores) {
            ch__range_table_core(&t, ch__first_core(m), from, to);
            n = r->times * ch__operations(f, from, to);
        }
        r->operations[ch__first_core(m)] += n;
    }
}

/* Counts an operation for each element of the outputs. */
static ch_status count_elements(ch_partition *p, const ch_node *call)
{
    ch_step_report *r = p->report;

    for (int i = 0; i < call->n_out; i++) {
        const ch_core_regions *at = ch__layout_regions(
            p->d->layouts, p->forms.first[call[i].id]->layout, ch__shape(&call[i]));

        if (at == NULL)
            return no_memory();
        r->all_operations += r->times * (double)ch__count(&call[i]);
        for (uint64_t m = at->cores; m != 0; m &= m - 1) {
            int c = ch__first_core(m);

            r->operations[c] +=
                r->times * (double)ch__region_count(&at->at[c], call[i].dims.rank);
        }
    }
    return CH_OK;
}

/* ---- calls and layouts ---- */

/* Returns the name of an input or variable, or the text in the attributes, as "save" of a host
 * call. NULL: none. */
static const char *name_of(const ch_graph *g, const ch_node *call)
{
    if (call->op == ch__roles.input)
        return g->input_name[((const ch_input_attrs *)call->attrs)->index];
    if (call->op == ch__roles.read)
        return g->resource[((const ch_read_attrs *)call->attrs)->resource].name;
    for (const ch_attr *row = call->attrs != NULL ? call->op->attrs : NULL;
         row != NULL && row->name != NULL; row++)
        if (row->kind == CH_ATTR_KIND_TEXT)
            return *(char *const *)(const void *)((const char *)call->attrs + row->offset);
    return NULL;
}

static bool set_call(ch_partition *p, const ch_node *call, ch_report_call *out)
{
    *out = (ch_report_call){.op = call->op->name, .caller = call->caller};
    if (call->op == &ch__op_with_layout)
        out->op = "annotation";
    return copy_text(p->report, name_of(p->g, call), &out->name) &&
           copy_text(p->report, call->scope, &out->scope);
}

/* Returns the name of the variable of which n is the value, before or after the step. NULL:
 * none. */
static const char *variable_of(const ch_graph *g, const ch_node *n)
{
    for (int i = 0; i < g->n_resources; i++)
        if (g->resource[i].read == n || g->resource[i].value == n)
            return g->resource[i].name;
    return NULL;
}

/* Returns the input from which the ranges of a call were taken; NULL: none. */
static const ch_node *model_of(ch_partition *p, const ch_call_plan *plan, const ch_node *call)
{
    for (int i = 0; plan != NULL && plan->ranges != NULL && i < call->n_in; i++) {
        const ch_core_layout *has = ch__computed_layout(&p->forms, call->in[i]), *unique;
        ch_core_layout        lifted;

        if (is_split(has) &&
            ch__lift(&plan->rule, plan->rule.in[i], has, CH_LIFT_ALL, true, &lifted) &&
            ch__layout_intern(p->d->layouts, &lifted, &unique) == CH_OK &&
            unique == plan->ranges)
            return call->in[i];
    }
    return NULL;
}

/* Sets *out to where the layout l of value n comes from. */
static bool set_origin(ch_partition *p, const ch_call_plan *plan, const ch_node *n,
                       const ch_core_layout *l, ch_report_layout *out)
{
    const ch_value_plan *v = &p->d->value[n->id];
    const ch_node       *from = v->from, *through = v->through;
    const ch_graph      *own = p->d->g; /* of `through`: that of the division, or p->g */

    out->source = v->source;
    if (l->n_partial > 1) {
        out->source = CH_LAYOUT_PARTIAL;
    } else if (plan != NULL && plan->ranges != NULL && plan->rule.n_set_out == 0) {
        out->source = CH_LAYOUT_UNDIVIDED;
        out->name = n->head->op->replicated; /* a constant */
    } else if (l != v->want && ch__layout_is_replicated(l)) {
        out->source = CH_LAYOUT_CHEAPEST;
    } else if (l != v->want) {
        from = model_of(p, plan, n->head);
        through = n->head;
        own = p->g;
        out->source = from != NULL ? CH_LAYOUT_NEIGHBOUR : CH_LAYOUT_CHEAPEST;
    }
    if (out->source == CH_LAYOUT_RULE)
        return copy_text(p->report, v->rule, &out->name);
    if (out->source == CH_LAYOUT_VARIABLE)
        return copy_text(p->report, variable_of(p->g, n), &out->name);
    if (out->source == CH_LAYOUT_ANNOTATION) {
        out->is_own = true;
        return set_call(p, n->head, &out->at);
    }
    if (out->source != CH_LAYOUT_NEIGHBOUR)
        return true;
    if (through->op == &ch__op_with_layout) /* the value goes to an annotation */
        out->source = CH_LAYOUT_ANNOTATION;
    out->from = from->id;
    out->is_own = through->graph == p->d->g && through->id == n->head->id;
    out->is_in_body = from->graph != own && through->graph == own;
    out->is_outside = from->graph != own && !out->is_in_body;
    return set_call(p, through, &out->at);
}

static bool set_layout(ch_partition *p, const ch_core_layout *l, ch_report_layout *out)
{
    const ch_core_layout *unique;
    const char           *text = NULL;

    if (ch__layout_intern(p->d->layouts, l, &unique) == CH_OK)
        text = ch__layout_text(p->d->layouts, unique);
    return text != NULL && copy_text(p->report, text, &out->text);
}

/* Sets the sizes of the value, and of the largest part of a core along each axis. The first
 * part of an axis is the largest. */
static void set_parts(const ch_core_layout *l, const ch_node *n, ch_report_value *v)
{
    v->shape = v->each = ch__shape(n);
    v->is_whole = l->n_partial == 1 && !is_split(l);
    v->is_even = true;
    for (int k = 0; k < v->shape.rank; k++) {
        int64_t begin[CH_MAX_CORES + 1];

        v->is_even &= ch__core_parts(l, k, v->shape.dim[k], begin);
        v->each.dim[k] = begin[1];
    }
}

/* Adds a value; n NULL: a call without results. */
static ch_status add_value(ch_partition *p, const ch_call_plan *plan, const ch_node *call,
                           const ch_node *n)
{
    ch_report_body       *b = p->described;
    ch_report_value      *v = ch__arena_alloc(&p->report->arena, sizeof(*v));
    const ch_core_layout *l = n != NULL ? p->forms.first[n->id]->layout : plan->ranges;

    if (v == NULL || !set_call(p, call, &v->call) || !set_layout(p, l, &v->layout))
        return no_memory();
    v->id = n != NULL ? n->id : -1;
    if (n == NULL) {
        v->is_whole = true;
        v->layout.source = CH_LAYOUT_UNDIVIDED;
        v->layout.name = call->op->replicated; /* a constant */
    } else {
        v->dtype = n->dtype;
        v->is_host = p->forms.first[n->id]->is_host;
        set_parts(l, n, v);
        if (!set_origin(p, plan, n, l, &v->layout))
            return no_memory();
        b->by_id[n->id] = v;
    }
    *b->last = v;
    b->last = &v->next;
    return CH_OK;
}

ch_status ch__describe_call(ch_partition *p, const ch_call_plan *plan, const ch_node *call,
                            const ch_core_call *of)
{
    ch_step_report   *r = p->report;
    ch_report_value **first = p->described->last;
    ch_status         rc = call->n_out == 0 ? add_value(p, plan, call, NULL) : CH_OK;

    for (int i = 0; i < call->n_out && rc == CH_OK; i++)
        rc = add_value(p, plan, call, &call[i]);
    if (rc != CH_OK || plan == NULL)
        return rc;
    (*first)->body = of->described;
    if (plan->bodies != NULL)
        return CH_OK; /* the calls of the bodies were counted */
    r->n_calls++;
    (*first)->is_repeated = is_repeated(p, plan, call);
    r->n_replicated += (*first)->is_repeated;
    if (plan->array == NULL && of->rule.n_set_out > 0)
        count_operations(r, &of->rule, plan->ranges);
    else
        rc = count_elements(p, call);
    return rc;
}

/* ---- transfers ---- */

/* Returns true if an annotation or a chosen device asks for the transfer: it is of the
 * annotation itself, of a call whose result goes to the annotation, or of a call on a chosen
 * device. */
static bool is_asked(const ch_core_division *d, const ch_planned_move *m)
{
    const ch_value_plan *v;

    if (m->use != CH_FOR_CALL || m->call->n_out == 0)
        return false;
    v = &d->value[m->call->id];
    return m->call->op == &ch__op_with_layout || v->source == CH_LAYOUT_CHOSEN_DEVICE ||
           (v->source == CH_LAYOUT_NEIGHBOUR && v->through->op == &ch__op_with_layout);
}

/* Returns the result of a call that the input `value` is for. */
static const ch_node *result_for(const ch_node *call, const ch_node *value)
{
    for (int i = 0; i < call->n_in && ch__is_pack(call); i++)
        if (call->in[i] == value)
            return &call[i];
    return call;
}

/* Sets the use of a transfer. */
static bool set_use(ch_partition *p, const ch_planned_move *m, ch_report_move *to)
{
    to->use = m->use;
    to->id = -1;
    if (m->use == CH_FOR_CALL) {
        const ch_report_value *user =
            m->call->n_out > 0 ? p->described->by_id[result_for(m->call, m->value)->id] : NULL;

        to->is = user != NULL ? user->layout : (ch_report_layout){.text = "on core 0"};
        if (user == NULL) {
            to->is.source = CH_LAYOUT_UNDIVIDED;
            to->is.name = m->call->op->replicated;
        } else {
            to->id = user->id;
        }
        return set_call(p, m->call, &to->call);
    }
    if (!set_layout(p, m->layout, &to->is) ||
        !set_origin(p, NULL, m->value, m->layout, &to->is))
        return false;
    if (m->use == CH_FOR_RESULT) {
        to->id = m->index;
        return copy_text(p->report, p->g->output[m->index].name, &to->name);
    }
    to->is.source = CH_LAYOUT_VARIABLE;
    return copy_text(p->report, p->g->resource[m->index].name, &to->name);
}

ch_status ch__describe_move(ch_partition *p, const ch_planned_move *m)
{
    ch_report_move **last = &p->described->by_id[m->value->id]->move, *to;

    if (m->bytes == 0)
        return CH_OK;
    to = ch__arena_alloc(&p->report->arena, sizeof(*to));
    if (to == NULL || !set_use(p, m, to))
        return no_memory();
    to->kind = m->kind;
    to->bytes = m->bytes;
    to->is_asked = is_asked(p->d, m);
    while (*last != NULL)
        last = &(*last)->next;
    *last = to;
    return CH_OK;
}

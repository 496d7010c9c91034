/* spmd/actions.c -- lists the actions of the cores of a replica, and finds the classes of cores
 * (actions.h).
 *
 * The calls of the graph are visited in order, as by choose.c. For each call the file adds the
 * reshards that bring its inputs to the regions that the cores need, and decides which parts
 * the cores compute: their regions, attributes and positions. In the end it adds the actions
 * that bring new values of variables to their tiles, and results to the memory of the host.
 * Cores are in a class if their actions have equal sizes and attributes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "spmd/actions.h"

#include <stdlib.h>
#include <string.h>

#include "graph/attr.h"
#include "ops/box.h"

static ch_status no_memory(void)
{
    return ch__fail_memory("the graphs of the cores");
}

static void *allocate(ch_partition *p, size_t n, size_t bytes)
{
    return ch__arena_alloc(&p->d->arena, n * bytes);
}

static ch_action *add_action(ch_partition *p, ch_action_kind kind, const ch_node *value)
{
    ch_action *a = allocate(p, 1, sizeof(*a));

    if (a == NULL)
        return NULL;
    a->kind = kind;
    a->value = value;
    a->move = p->move;
    a->move.value = value;
    *p->last = a;
    p->last = &a->next;
    return a;
}

/* Returns the regions of a value in a unique layout; NULL: out of memory. */
static const ch_core_regions *regions_of(ch_partition *p, const ch_core_layout *l,
                                         const ch_node *n)
{
    return ch__layout_regions(p->d->layouts, l, ch__shape(n));
}

/* Adds the action that repeats a call, and sets *out to the form of its result. */
static ch_status repeat(ch_partition *p, const ch_node *call, const ch_repeat *r,
                        const ch_form **out);

/* Adds the action that gives the cores the regions `want` of value n, if they do not have them.
 * Sets *out to the form with these regions, which must live as long as the division. */
static ch_status need(ch_partition *p, const ch_node *n, const ch_core_regions *want,
                      const ch_core_layout *layout, const ch_form **out)
{
    int64_t    moved;
    ch_action *a;
    ch_repeat  r;

    *out = ch__form_for(&p->forms, n, want, &moved);
    if (moved < 0)
        return CH_OK;
    if (ch__repeats(&p->forms, n, want, moved, &r))
        return repeat(p, n->head, &r, out);
    a = add_action(p, (*out)->is_host ? CH_ACTION_TAKE : CH_ACTION_RESHARD, n);
    if (a == NULL)
        return no_memory();
    a->source = *out;
    a->want = want;
    a->made = ch__form_add(&p->forms, n, layout, want);
    if (a->made == NULL)
        return no_memory();
    *out = a->made;
    return CH_OK;
}

/* Adds the inputs of a call, with the reshards that they need. */
static ch_status add_inputs(ch_partition *p, const ch_node *call, const ch_core_layout *ranges,
                            ch_core_call *of)
{
    for (int i = 0; i < call->n_in; i++) {
        const ch_form *first = p->forms.first[call->in[i]->id];
        ch_status      rc;

        if (ch__stays_partial(of->stays_partial, i)) {
            of->in[i] = first;
            of->in_at[i] = regions_of(p, first->layout, call->in[i]);
            if (of->in_at[i] == NULL)
                return no_memory();
            continue;
        }
        of->in_at[i] = ch__input_regions(p->d, call, &of->rule, ranges, i, &p->room);
        if (of->in_at[i] == &p->room)
            of->in_at[i] = ch__regions_copy(&p->d->arena, &p->room, p->d->opt->n_cores);
        if (of->in_at[i] == NULL)
            return ch__fail(CH_INTERNAL, "%s: input %d: the cores need no regions",
                            call->op->name, i);
        rc = need(p, call->in[i], of->in_at[i],
                  ch__input_layout(p->d, call, &of->rule, ranges, i, of->in_at[i]), &of->in[i]);
        if (rc != CH_OK)
            return rc;
    }
    return CH_OK;
}

ch_status ch__part_attrs(ch_partition *p, const ch_node *call, const ch_core_call *of, int c,
                         const int64_t *from, const int64_t *to, void *attrs)
{
    ch_region    few[8], *in = few, out[CH_MAX_OUT];
    ch_call_part part = {.rule = &of->rule, .from = from, .to = to, .out = out};

    if (call->n_in > (int)(sizeof(few) / sizeof(few[0])))
        in = allocate(p, (size_t)call->n_in, sizeof(*in));
    if (in == NULL)
        return no_memory();
    part.in = in;
    for (int i = 0; i < call->n_in; i++)
        in[i] = of->in_at[i]->at[c];
    for (int i = 0; i < call->n_out; i++)
        out[i] = of->out_at[i]->at[c];
    /* The copy refers to the tensors and bodies of the call, which lives longer. */
    memcpy(attrs, call->attrs, call->op->attrs_bytes);
    return call->op->local(call, &part, attrs);
}

bool ch__has_part_attrs(const ch_node *call)
{
    return call->op->local != NULL && call->attrs != NULL;
}

/* Returns true if the attributes of a part follow from the sizes of its outputs. */
static bool has_simple_attrs(const ch_node *call)
{
    return !ch__has_part_attrs(call) || call->op->local == ch__local_dims;
}

/* Sets the attributes of the parts of all cores. Cores whose attributes equal those of the core
 * before share them. */
static ch_status add_attrs(ch_partition *p, const ch_node *call, const ch_range_table *t,
                           ch_core_call *of)
{
    int64_t   from[CH_MAX_FACTORS] = {0}, to[CH_MAX_FACTORS] = {0};
    void     *last = NULL, *room = NULL;
    ch_status rc = CH_OK;

    for (uint64_t m = t->cores; m != 0 && rc == CH_OK; m &= m - 1) {
        int c = ch__first_core(m);

        if (room == NULL && (room = allocate(p, 1, call->op->attrs_bytes)) == NULL)
            return no_memory();
        ch__range_table_core(t, c, from, to);
        rc = ch__part_attrs(p, call, of, c, from, to, room);
        if (rc == CH_OK && (last == NULL || !ch__attrs_equal(call->op, last, room))) {
            last = room;
            room = NULL;
        }
        of->attrs[c] = last;
    }
    return rc;
}

/* Decides what each core does in a call, of which every core has a part that is not empty. */
static ch_status add_full_parts(ch_partition *p, const ch_node *call,
                                const ch_core_layout *ranges, ch_core_call *of)
{
    of->computes = ranges->cores;
    of->is_full = true;
    for (int i = 0; i < call->n_out; i++)
        if ((of->out_at[i] = regions_of(p, of->out[i]->layout, &call[i])) == NULL)
            return no_memory();
    return CH_OK;
}

/* Returns the regions of a value in a unique layout, for these cores only; NULL: out of
 * memory. */
static const ch_core_regions *regions_for(ch_partition *p, const ch_core_layout *l,
                                          const ch_node *n, uint64_t cores)
{
    const ch_core_regions *at = regions_of(p, l, n);
    ch_core_regions       *own;

    if (at == NULL || at->cores == cores)
        return at;
    own = ch__regions_copy(&p->d->arena, at, p->d->opt->n_cores);
    if (own == NULL)
        return NULL;
    own->cores = cores;
    own->layout = NULL;
    own->same_sizes = false;
    return own;
}

/* Decides what each core does in a call. */
static ch_status add_parts(ch_partition *p, const ch_node *call, const ch_core_layout *ranges,
                           ch_core_call *of)
{
    ch_range_table t;

    if (ch__ranges_are_full(&of->rule, ranges) && has_simple_attrs(call))
        return add_full_parts(p, call, ranges, of);
    ch__range_table_set(&of->rule, ranges, &t);
    of->computes = t.cores;
    for (int i = 0; i < call->n_out; i++)
        if ((of->out_at[i] = regions_for(p, of->out[i]->layout, &call[i], t.cores)) == NULL)
            return no_memory();
    return ch__has_part_attrs(call) ? add_attrs(p, call, &t, of) : CH_OK;
}

/* Sets the positions of the parts of a call in the whole call, if its kernels need them. */
static ch_status add_origins(ch_partition *p, const ch_node *call, ch_core_call *of)
{
    int  n = p->d->opt->n_cores;
    bool is_whole = true;

    if ((call->op->flags & CH_OP_ORIGIN) == 0)
        return CH_OK;
    for (int c = 0; c < n; c++) {
        for (int k = 0; k < call->dims.rank && call->n_out > 0; k++)
            is_whole &= !ch__has_core(of->computes, c) ||
                        of->out_at[0]->at[c].size[k] == call->dims.dim[k].n;
        for (int k = 0; call->n_in > 0 && k < call->in[0]->dims.rank; k++)
            is_whole &= !ch__has_core(of->computes, c) ||
                        of->in_at[0]->at[c].size[k] == call->in[0]->dims.dim[k].n;
    }
    if (is_whole)
        return CH_OK;
    of->origins = allocate(p, 1, sizeof(*of->origins));
    if (of->origins == NULL ||
        (of->origins->in = allocate(p, (size_t)n, sizeof(*of->origins->in))) == NULL ||
        (of->origins->out = allocate(p, (size_t)n, sizeof(*of->origins->out))) == NULL)
        return no_memory();
    of->origins->n_cores = n;
    if (call->n_in > 0)
        of->origins->whole_in = call->in[0]->dims;
    if (call->n_out > 0)
        of->origins->whole_out = call->dims;
    for (int c = 0; c < n; c++) {
        if (call->n_in > 0)
            memcpy(of->origins->in[c], of->in_at[0]->at[c].begin, sizeof(of->origins->in[c]));
        if (call->n_out > 0)
            memcpy(of->origins->out[c], of->out_at[0]->at[c].begin,
                   sizeof(of->origins->out[c]));
    }
    return CH_OK;
}

/* Adds the forms of the outputs of a call. */
static ch_status add_outputs(ch_partition *p, const ch_node *call, const ch_core_layout *ranges,
                             ch_core_call *of)
{
    for (int i = 0; i < call->n_out; i++) {
        const ch_core_layout *unique;
        ch_core_layout        l;
        ch_status             rc;

        if (!ch__lower(&of->rule, ranges, of->rule.out[i], &call[i].dims, false, &l))
            return ch__fail(CH_INTERNAL, "%s: output %d has no layout", call->op->name, i);
        rc = ch__layout_intern(p->d->layouts, &l, &unique);
        if (rc != CH_OK)
            return rc;
        of->out[i] = ch__form_add(&p->forms, &call[i], unique, NULL);
        if (of->out[i] == NULL)
            return no_memory();
    }
    return CH_OK;
}

/* Decides what the cores do in a call of which every core computes its part of every array: a
 * pack, or a call with bodies. `in` and `out` are the layouts of the arrays. */
static ch_status add_arrays(ch_partition *p, const ch_node *call,
                            const ch_core_layout *const *in, const ch_core_layout *const *out,
                            ch_core_call *of)
{
    of->computes = ch__first_cores(p->d->opt->n_cores);
    of->is_full = true;
    for (int i = 0; i < call->n_in; i++) {
        ch_status rc;

        of->in_at[i] = regions_of(p, in[i], call->in[i]);
        rc = of->in_at[i] == NULL ? no_memory()
                                  : need(p, call->in[i], of->in_at[i], in[i], &of->in[i]);
        if (rc != CH_OK)
            return rc;
    }
    for (int i = 0; i < call->n_out; i++) {
        of->out_at[i] = regions_of(p, out[i], &call[i]);
        of->out[i] = ch__form_add(&p->forms, &call[i], out[i], NULL);
        if (of->out_at[i] == NULL || of->out[i] == NULL)
            return no_memory();
    }
    return CH_OK;
}

/* Lists the actions in the bodies of a call. The classes of cores depend on them too. */
static ch_status add_bodies(ch_partition *p, const ch_node *call, ch_body_plan *plan,
                            ch_core_call *of)
{
    ch_graph *body[CH_MAX_BODIES];
    int       n = ch__call_bodies(call, body);
    double    before = p->report != NULL ? p->report->times : 0;
    double    times = plan->ties.iterations >= 0 ? (double)plan->ties.iterations : 1;
    ch_status rc = add_arrays(p, call, plan->in, plan->out, of);

    if (rc == CH_OK && p->report != NULL)
        rc = ch__describe_bodies(p->report, call, &of->described);
    of->body = allocate(p, (size_t)n + 1, sizeof(*of->body));
    if (rc == CH_OK && of->body == NULL)
        rc = no_memory();
    of->n_bodies = rc == CH_OK ? n : 0;
    for (int i = 0; i < n && rc == CH_OK; i++) {
        if (p->report != NULL)
            p->report->times *= times;
        rc = ch__actions_list(&of->body[i], &plan->body[i], body[i], p->report,
                              p->report != NULL ? &of->described[i] : NULL);
        if (p->report != NULL)
            p->report->times = before;
    }
    return rc;
}

/* Adds the action in which the cores compute their parts of a call. */
static ch_status add_parts_of(ch_partition *p, const ch_node *call, ch_core_call *of)
{
    ch_action *a = add_action(p, CH_ACTION_CALL, call);

    if (a == NULL)
        return no_memory();
    a->call = of;
    return CH_OK;
}

/* Returns room for the parts of a call; NULL: out of memory. */
static ch_core_call *new_call(ch_partition *p, const ch_node *call)
{
    size_t        n_in = (size_t)call->n_in + 1, n_out = (size_t)call->n_out + 1;
    ch_core_call *of = allocate(p, 1, sizeof(*of));

    if (of == NULL || (of->in = allocate(p, n_in, sizeof(*of->in))) == NULL ||
        (of->out = allocate(p, n_out, sizeof(*of->out))) == NULL ||
        (of->in_at = allocate(p, n_in, sizeof(*of->in_at))) == NULL ||
        (of->out_at = allocate(p, n_out, sizeof(*of->out_at))) == NULL ||
        (of->attrs = allocate(p, (size_t)p->d->opt->n_cores, sizeof(*of->attrs))) == NULL)
        return NULL;
    return of;
}

/* Decides what the cores do in a call that they compute in these ranges. */
static ch_status divide_by_ranges(ch_partition *p, const ch_node *call,
                                  const ch_core_layout *ranges, ch_core_call *of)
{
    ch_status rc = add_inputs(p, call, ranges, of);

    if (rc == CH_OK)
        rc = add_outputs(p, call, ranges, of);
    if (rc == CH_OK)
        rc = add_parts(p, call, ranges, of);
    return rc == CH_OK ? add_origins(p, call, of) : rc;
}

static ch_status repeat(ch_partition *p, const ch_node *call, const ch_repeat *r,
                        const ch_form **out)
{
    ch_core_call *of = new_call(p, call);
    ch_status     rc;

    if (of == NULL)
        return no_memory();
    of->rule = r->rule;
    rc = divide_by_ranges(p, call, &r->ranges, of);
    *out = of->out[0];
    return rc == CH_OK ? add_parts_of(p, call, of) : rc;
}

/* Decides what the cores do in a call. Adds the reshards of its inputs, which precede it. */
static ch_status divide_call(ch_partition *p, const ch_node *call, const ch_call_plan *plan,
                             ch_core_call *of)
{
    if (plan->array != NULL)
        return add_arrays(p, call, plan->array, plan->array, of);
    if (plan->bodies != NULL)
        return add_bodies(p, call, plan->bodies, of);
    return divide_by_ranges(p, call, plan->ranges, of);
}

static ch_status add_call(ch_partition *p, const ch_node *call, ch_call_plan plan)
{
    ch_core_call  *of = new_call(p, call);
    ch_core_layout room;
    ch_status      rc;

    p->move = (ch_planned_move){.use = CH_FOR_CALL, .call = call};
    rc = of == NULL ? no_memory() : ch__plan_in_replica(p->d, &p->forms, call, &plan, &room);
    if (rc != CH_OK)
        return rc;
    of->rule = plan.rule;
    of->stays_partial = plan.stays_partial;
    rc = divide_call(p, call, &plan, of);
    if (rc == CH_OK)
        rc = add_parts_of(p, call, of);
    return rc != CH_OK || p->report == NULL ? rc : ch__describe_call(p, &plan, call, of);
}

/* Adds the form of a value that no op computes. */
static ch_status add_source(ch_partition *p, const ch_node *call)
{
    const ch_core_layout *l = ch__body_input_layout(p->d, call);
    bool                  is_host = l == NULL && call->op != ch__roles.read;
    ch_form              *form;

    if (call->op == ch__roles.read)
        l = p->d->tiles[((const ch_read_attrs *)ch__attrs(call))->resource];
    else if (is_host)
        l = ch__division_replicated(p->d, call->dims.rank);
    form = l != NULL ? ch__form_add(&p->forms, call, l, NULL) : NULL;
    if (form == NULL)
        return no_memory();
    form->is_host = is_host;
    return p->report == NULL ? CH_OK : ch__describe_call(p, NULL, call, NULL);
}

/* Adds the actions that bring results to the memory of the host, and new values of variables to
 * the layouts of the variables. */
static ch_status add_roots(ch_partition *p)
{
    const ch_core_regions *at;
    ch_status              rc = CH_OK;

    for (int i = 0; i < p->g->n_resources && rc == CH_OK; i++) {
        const ch_resource    *r = &p->g->resource[i];
        const ch_core_layout *tiles = p->d->tiles[i];

        if (r->value == NULL || r->value == r->read)
            continue;
        at = regions_of(p, tiles, r->value);
        p->move = (ch_planned_move){.use = CH_FOR_VARIABLE, .index = i, .layout = tiles};
        rc = at == NULL ? no_memory() : need(p, r->value, at, tiles, &p->written[i]);
    }
    for (int i = 0; i < p->g->n_outputs && rc == CH_OK; i++) {
        const ch_node        *n = p->g->output[i].node;
        const ch_form        *form = p->forms.first[n->id];
        const ch_core_layout *l = form->layout;
        ch_action            *a;

        if (l->n_partial > 1)
            l = p->d->value[n->id].want;
        at = regions_of(p, l, n);
        p->move = (ch_planned_move){.use = CH_FOR_RESULT, .index = i, .layout = l};
        rc = at == NULL ? no_memory() : need(p, n, at, l, &form);
        if (rc != CH_OK)
            return rc;
        a = add_action(p, CH_ACTION_PUT, n);
        if (a == NULL)
            return no_memory();
        /* Each element of a result is written once. */
        a->want = regions_for(p, l, n, ch__layout_first_cores(l));
        if (a->want == NULL)
            return no_memory();
        a->index = i;
        a->source = form;
    }
    return rc;
}

/* Adds the actions that bring the outputs of a body to their layouts. */
static ch_status add_body_outputs(ch_partition *p)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < p->g->n_outputs && rc == CH_OK; i++) {
        const ch_node         *n = p->g->output[i].node;
        const ch_core_regions *at = regions_of(p, p->d->output[i], n);

        p->move =
            (ch_planned_move){.use = CH_FOR_RESULT, .index = i, .layout = p->d->output[i]};
        rc = at == NULL ? no_memory() : need(p, n, at, p->d->output[i], &p->result[i]);
    }
    return rc;
}

/* ---- the order of reductions ---- */

/* Where the partial results of a value are computed, and how many actions use them. */
typedef struct partial_value {
    ch_action *computed;
    int        uses;
} partial_value;

/* Lists the values of which the cores have partial results. at[i] is of value id i. */
static void find_partial_values(const ch_partition *p, partial_value *at)
{
    for (ch_action *a = p->first; a != NULL; a = a->next) {
        if (a->kind == CH_ACTION_RESHARD && a->source->layout->n_partial > 1)
            at[a->value->id].uses++;
        if (a->kind != CH_ACTION_CALL)
            continue;
        for (int i = 0; i < a->value->n_in; i++)
            if (ch__stays_partial(a->call->stays_partial, i))
                at[a->value->in[i]->id].uses++;
        for (int i = 0; i < a->value->n_out; i++)
            if (a->call->out[i]->layout->n_partial > 1)
                at[a->value[i].id].computed = a;
    }
}

/* Returns the number of elements that all cores have together. */
static int64_t elements_of(const ch_core_regions *at, int rank)
{
    int64_t sum = 0;

    for (uint64_t m = at->cores; m != 0; m &= m - 1)
        sum += ch__region_count(&at->at[ch__first_core(m)], rank);
    return sum;
}

/* Returns true if the memory of a value gets no larger by a reshard. */
static bool saves_memory(ch_partition *p, const ch_action *a)
{
    const ch_core_regions *has = regions_of(p, a->source->layout, a->value);

    return has != NULL &&
           elements_of(a->want, a->value->dims.rank) <= elements_of(has, a->value->dims.rank);
}

/* Moves each reduction that is the only use of partial results to the call that computes them.
 * Every core has partial results of a gradient as large as the variable; so they are freed
 * before those of the next gradient are computed. */
static ch_status reduce_early(ch_partition *p)
{
    partial_value *at = allocate(p, (size_t)p->g->n_values + 1, sizeof(*at));
    ch_action    **link = &p->first;

    if (at == NULL)
        return no_memory();
    find_partial_values(p, at);
    while (*link != NULL) {
        ch_action     *a = *link;
        partial_value *v = &at[a->value->id];

        if (a->kind != CH_ACTION_RESHARD || a->source->layout->n_partial == 1 || v->uses != 1 ||
            v->computed == NULL || v->computed->next == a || !saves_memory(p, a)) {
            link = &a->next;
            continue;
        }
        *link = a->next;
        a->next = v->computed->next;
        v->computed->next = a;
    }
    return CH_OK;
}

ch_status ch__actions_list(ch_partition *p, ch_core_division *d, ch_graph *g,
                           ch_step_report *report, ch_report_body *described)
{
    ch_status rc = CH_OK;
    int       i = 0;

    if (g->n_calls != d->n_calls)
        return ch__fail(CH_INTERNAL, "a replica has %d calls, and another has %d", g->n_calls,
                        d->n_calls);
    *p = (ch_partition){
        .d = d, .g = g, .last = &p->first, .report = report, .described = described};
    rc = ch__forms_begin(d, g, &p->forms);
    p->written = allocate(p, (size_t)g->n_resources + 1, sizeof(*p->written));
    p->result = allocate(p, (size_t)g->n_outputs + 1, sizeof(*p->result));
    if (rc != CH_OK || p->written == NULL || p->result == NULL)
        return no_memory();
    for (const ch_node *n = g->first; n != NULL && rc == CH_OK; n = n->next, i++) {
        ch__forms_visit(&p->forms, n);
        rc = ch__is_source(n) ? add_source(p, n) : add_call(p, n, d->call[i]);
    }
    if (rc != CH_OK)
        return rc;
    rc = d->output != NULL ? add_body_outputs(p) : add_roots(p);
    return rc == CH_OK ? reduce_early(p) : rc;
}

/* ---- classes of cores ---- */

/* Classes of cores that are being found. There is one at first, and every difference between
 * cores of a class divides it. */
typedef struct classifier {
    ch_core_class *class;
    int n;
    /* by hash: regions in which the cores of a class do not differ any more */
    const ch_core_regions *compared[CH_MAX_CORES];
} classifier;

/* Divides the classes until same(arg, b, c) for the cores of each. */
static void divide_classes(classifier *s, bool (*same)(const void *arg, int b, int c),
                           const void *arg)
{
    for (int i = 0; i < s->n; i++) {
        uint64_t others = 0, cores = s->class[i].cores;

        for (uint64_t m = cores & (cores - 1); m != 0; m &= m - 1)
            if (!same(arg, ch__first_core(cores), ch__first_core(m)))
                others |= m & -m;
        if (others == 0)
            continue;
        s->class[i].cores = cores & ~others;
        s->class[s->n++].cores = others; /* divided later in this loop, if necessary */
    }
}

/* Regions of a value, of which those of some cores matter. */
typedef struct parts_of {
    const ch_core_regions *at;
    int                    rank;
    uint64_t               cores;
} parts_of;

/* Returns true if cores b and c have parts with equal sizes, or both have none. */
static bool same_part(const void *arg, int b, int c)
{
    const parts_of        *p = arg;
    const ch_core_regions *at = p->at;

    if (!ch__has_core(p->cores, b))
        return true;
    return ch__has_core(at->cores, b) == ch__has_core(at->cores, c) &&
           (!ch__has_core(at->cores, b) ||
            memcmp(at->at[b].size, at->at[c].size,
                   (size_t)p->rank * sizeof(at->at[b].size[0])) == 0);
}

static void divide_by_parts(classifier *s, const ch_core_regions *at, int rank, uint64_t cores)
{
    const ch_core_regions **known =
        &s->compared[(uintptr_t)at / sizeof(*at->at) % CH_MAX_CORES];

    if (at->same_sizes || *known == at)
        return;
    divide_classes(s, same_part, &(parts_of){at, rank, cores});
    if (cores == ~UINT64_C(0))
        *known = at;
}

static bool same_computing(const void *arg, int b, int c)
{
    const ch_core_call *of = arg;

    return ch__has_core(of->computes, b) == ch__has_core(of->computes, c);
}

static bool same_attrs(const void *arg, int b, int c)
{
    const ch_action    *a = arg;
    const ch_core_call *of = a->call;

    return !ch__has_core(of->computes, b) || of->attrs[b] == of->attrs[c] ||
           ch__attrs_equal(a->value->op, of->attrs[b], of->attrs[c]);
}

static ch_status divide_by_actions(classifier *s, const ch_partition *p);

static ch_status divide_by_call(classifier *s, const ch_action *a, uint64_t all)
{
    const ch_node      *n = a->value;
    const ch_core_call *of = a->call;
    ch_status           rc = CH_OK;

    if (of->computes != all)
        divide_classes(s, same_computing, of);
    for (int i = 0; i < n->n_out; i++)
        divide_by_parts(s, of->out_at[i], n[i].dims.rank, ~UINT64_C(0));
    for (int i = 0; i < n->n_in; i++)
        divide_by_parts(s, of->in_at[i], n->in[i]->dims.rank,
                        of->computes == all ? ~UINT64_C(0) : of->computes);
    if (!of->is_full)
        divide_classes(s, same_attrs, a);
    for (int i = 0; i < of->n_bodies && rc == CH_OK; i++)
        rc = divide_by_actions(s, &of->body[i]);
    return rc;
}

/* Divides the classes until the cores of each can share a graph: what they read, compute and
 * write differs only in positions. */
static ch_status divide_by_actions(classifier *s, const ch_partition *p)
{
    const uint64_t all = ch__first_cores(p->d->opt->n_cores);
    ch_status      rc = CH_OK;

    for (const ch_node *n = p->g->first; n != NULL; n = n->next) {
        const ch_core_layout  *l = ch__is_source(n) ? p->forms.first[n->id]->layout : NULL;
        const ch_core_regions *at;

        if (l == NULL || ch__layout_is_replicated(l))
            continue;
        at = ch__layout_regions(p->d->layouts, l, ch__shape(n));
        if (at == NULL)
            return no_memory();
        divide_by_parts(s, at, n->dims.rank, ~UINT64_C(0));
    }
    for (const ch_action *a = p->first; a != NULL && rc == CH_OK; a = a->next) {
        if (a->kind == CH_ACTION_CALL)
            rc = divide_by_call(s, a, all);
        else if (a->kind != CH_ACTION_PUT)
            divide_by_parts(s, a->want, a->value->dims.rank, ~UINT64_C(0));
    }
    return rc;
}

static int by_first_core(const void *a, const void *b)
{
    const ch_core_class *x = a, *y = b;

    return x->first - y->first;
}

/* Gives the forms of all values room for a node of each class. */
static ch_status give_nodes(ch_partition *p, int n_classes)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < p->g->n_values; i++)
        for (ch_form *form = p->forms.first[i]; form != NULL; form = form->next)
            if ((form->node = allocate(p, (size_t)n_classes, sizeof(*form->node))) == NULL)
                return no_memory();
    for (ch_action *a = p->first; a != NULL; a = a->next)
        for (int i = 0; a->call != NULL && i < a->call->n_bodies && rc == CH_OK; i++)
            rc = give_nodes(&a->call->body[i], n_classes);
    return rc;
}

ch_status ch__actions_classes(ch_partition *p)
{
    classifier s = {.class = p->class, .n = 1};
    ch_status  rc;

    p->class[0].cores = ch__first_cores(p->d->opt->n_cores);
    rc = divide_by_actions(&s, p);
    p->n_classes = s.n;
    for (int i = 0; i < s.n; i++)
        p->class[i].first = ch__first_core(p->class[i].cores);
    qsort(p->class, (size_t)s.n, sizeof(p->class[0]), by_first_core);
    for (int i = 0; i < s.n; i++)
        for (uint64_t m = p->class[i].cores; m != 0; m &= m - 1)
            p->class_of[ch__first_core(m)] = i;
    return rc == CH_OK ? give_nodes(p, s.n) : rc;
}

/* spmd/partition.c -- writes the graphs of the cores of a replica.
 *
 * The division (choose.c) says which ranges of each call a core computes. For each replica this
 * file lists the actions of the cores, in order: take a part of an input, reshard a value,
 * compute a call, put a part of a result. All cores have the same list, so their collectives
 * match; a core that has no part in a call leaves it out. Cores whose actions have equal sizes
 * and attributes are a class, and share a graph. The positions in which they differ are in
 * tables by core (ch_origins, and the regions of the ops in core_ops.h).
 *
 * Invariants:
 *   1. The list is the same for all cores of a replica, and the calls in it for all replicas.
 *      Reshards are not: they depend on sizes, and no replica waits for another in a reshard.
 *   2. A core that has nothing to add to a result has no partial result (ch__lower).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/mutant.h"
#include "graph/attr.h"
#include "graph/step.h"
#include "ops/box.h"
#include "spmd/core_ops.h"
#include "spmd/divide.h"

typedef enum action_kind { TAKE, RESHARD, CALL, PUT } action_kind;

/* An action of the cores. Regions are by core, in the arena of the division. */
typedef struct action {
    action_kind    kind;
    const ch_node *value;        /* TAKE, RESHARD: the value; CALL: the call; PUT: the result */
    int            index;        /* CALL: of the call; PUT: of the output */
    const ch_form *source;       /* RESHARD and PUT */
    ch_form       *made;         /* TAKE, RESHARD */
    const ch_core_regions *want; /* TAKE, RESHARD, PUT: the regions that the cores get or put */
    /* CALL: */
    ch_factors              rule;
    const ch_form         **in;            /* form of each input */
    unsigned                stays_partial; /* as in ch_call_plan */
    ch_form               **out;           /* form of each output */
    ch_origins             *origins;
    const ch_core_regions **in_at, **out_at; /* regions of each input and output */
    uint64_t                computes;        /* bit c: core c computes its part */
    /* every core has a part that is not empty, and its attributes follow from the sizes of its
     * outputs: write_call makes them */
    bool              is_full;
    void            **attrs; /* by core: attributes of the part; NULL: those of the call */
    struct partition *body;  /* of a call with bodies: by body; else NULL */
    int               n_bodies;
    ch_report_body   *described; /* likewise: by body, its part of the report */
    ch_planned_move   move;      /* TAKE, RESHARD, PUT */
    struct action    *next;
} action;

/* A class of cores with the same actions, and their graph. */
typedef struct core_class {
    int       first; /* the lowest core of the class */
    uint64_t  cores; /* bit c: core c is in the class */
    ch_graph *g;     /* referenced */
} core_class;

typedef struct partition {
    ch_core_division *d;
    ch_graph         *g; /* the graph of the replica */
    ch_forms          forms;
    ch_step_report   *report;    /* NULL: none */
    ch_report_body   *described; /* the part of the report for this graph */
    ch_planned_move   move;      /* the use of the transfers that need() adds */
    action           *first, **last;
    int               n_classes, class_of[CH_MAX_CORES];
    core_class class[CH_MAX_CORES];
    /* by resource and by output: forms of new values of variables, and of results of a body */
    const ch_form **written, **result;
    ch_core_regions room; /* for regions that are no layout */
} partition;

static ch_status no_memory(void)
{
    return ch__fail_memory("the graphs of the cores");
}

static void *allocate(partition *p, size_t n, size_t bytes)
{
    return ch__arena_alloc(&p->d->arena, n * bytes);
}

/* ---- classes of cores ---- */

static bool has_core(uint64_t cores, int c)
{
    return (cores >> c & 1) != 0;
}

static bool same_size(const ch_region *a, const ch_region *b, int rank)
{
    return memcmp(a->size, b->size, (size_t)rank * sizeof(a->size[0])) == 0;
}

/* Returns true if cores b and c have parts with equal sizes, or both have none. */
static bool same_part(const ch_core_regions *at, int rank, int b, int c)
{
    return at->same_sizes ||
           (has_core(at->cores, b) == has_core(at->cores, c) &&
            (!has_core(at->cores, b) || same_size(&at->at[b], &at->at[c], rank)));
}

/* The same for a value that no op computes. */
static bool same_source(const partition *p, const ch_node *n, int b, int c)
{
    const ch_core_layout  *l = p->forms.first[n->id]->layout;
    const ch_core_regions *at = ch__layout_regions(p->d->layouts, l, ch__shape(n));

    return at != NULL && same_part(at, n->dims.rank, b, c);
}

static bool same_bodies(const action *a, int b, int c);

static bool same_call(const action *a, int b, int c)
{
    const ch_node *n = a->value;
    bool           computes = has_core(a->computes, b);

    if (computes != has_core(a->computes, c))
        return false;
    for (int i = 0; i < n->n_out; i++)
        if (!same_part(a->out_at[i], n[i].dims.rank, b, c))
            return false;
    for (int i = 0; i < n->n_in && computes; i++)
        if (!same_part(a->in_at[i], n->in[i]->dims.rank, b, c))
            return false;
    if (computes && a->attrs[b] != NULL && !ch__attrs_equal(n->op, a->attrs[b], a->attrs[c]))
        return false;
    return same_bodies(a, b, c);
}

/* Returns true if cores b and c can share a graph: what they read, compute and write differs
 * only in positions. */
static bool same_actions(const partition *p, int b, int c)
{
    for (const ch_node *n = p->g->first; n != NULL; n = n->next)
        if (ch__is_source(n) && !same_source(p, n, b, c))
            return false;
    for (const action *a = p->first; a != NULL; a = a->next) {
        if (a->kind == CALL ? !same_call(a, b, c)
                            : a->kind != PUT && !same_part(a->want, a->value->dims.rank, b, c))
            return false;
    }
    return true;
}

static bool same_bodies(const action *a, int b, int c)
{
    for (int i = 0; i < a->n_bodies; i++)
        if (!same_actions(&a->body[i], b, c))
            return false;
    return true;
}

static void find_classes(partition *p)
{
    for (int c = 0; c < p->d->opt->n_cores; c++) {
        int i = 0;

        while (i < p->n_classes && !same_actions(p, p->class[i].first, c))
            i++;
        if (i == p->n_classes)
            p->class[p->n_classes++].first = c;
        p->class[i].cores |= (uint64_t)1 << c;
        p->class_of[c] = i;
    }
}

/* ---- actions ---- */

static action *add_action(partition *p, action_kind kind, const ch_node *value)
{
    action *a = allocate(p, 1, sizeof(*a));

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

static bool give_nodes(partition *p, ch_form *form)
{
    form->node = allocate(p, CH_MAX_CORES, sizeof(ch_node *));
    return form->node != NULL;
}

/* Adds the form of a layout or of regions to a value, with room for its nodes. */
static ch_form *add_form(partition *p, const ch_node *n, const ch_core_layout *l,
                         const ch_core_regions *at)
{
    ch_form *form = ch__form_add(&p->forms, n, l, at);

    return form != NULL && give_nodes(p, form) ? form : NULL;
}

/* Returns the regions of a value in a unique layout; NULL: out of memory. */
static const ch_core_regions *regions_of(partition *p, const ch_core_layout *l,
                                         const ch_node *n)
{
    return ch__layout_regions(p->d->layouts, l, ch__shape(n));
}

/* Adds the action that gives the cores the regions `want` of value n, if they do not have them.
 * Sets *out to the form with these regions. */
static ch_status need(partition *p, const ch_node *n, const ch_core_regions *want,
                      const ch_core_layout *layout, const ch_form **out)
{
    int64_t moved;
    action *a;

    *out = ch__form_for(&p->forms, n, want, &moved);
    if (moved < 0)
        return CH_OK;
    a = add_action(p, (*out)->is_host ? TAKE : RESHARD, n);
    if (a == NULL)
        return no_memory();
    a->source = *out;
    a->want = want->layout != NULL ? want : ch__arena_copy(&p->d->arena, want, sizeof(*want));
    a->made = add_form(p, n, layout, want);
    if (a->want == NULL || a->made == NULL)
        return no_memory();
    *out = a->made;
    return CH_OK;
}

/* Adds the inputs of a call, with the reshards that they need. */
static ch_status add_inputs(partition *p, const ch_node *call, const ch_core_layout *ranges,
                            action *a)
{
    for (int i = 0; i < call->n_in; i++) {
        const ch_form *first = p->forms.first[call->in[i]->id];
        ch_status      rc;

        if (ch__stays_partial(a->stays_partial, i)) {
            a->in[i] = first;
            a->in_at[i] = regions_of(p, first->layout, call->in[i]);
            if (a->in_at[i] == NULL)
                return no_memory();
            continue;
        }
        a->in_at[i] = ch__input_regions(p->d, call, &a->rule, ranges, i, &p->room);
        if (a->in_at[i] == &p->room)
            a->in_at[i] = ch__arena_copy(&p->d->arena, &p->room, sizeof(p->room));
        if (a->in_at[i] == NULL)
            return ch__fail(CH_INTERNAL, "%s: input %d: the cores need no regions",
                            call->op->name, i);
        rc = need(p, call->in[i], a->in_at[i],
                  ch__input_layout(p->d, call, &a->rule, ranges, i, a->in_at[i]), &a->in[i]);
        if (rc != CH_OK)
            return rc;
    }
    return CH_OK;
}

/* Sets the attributes of the part of a call that core c computes. */
static ch_status make_attrs(partition *p, const ch_node *call, const action *a, int c,
                            const int64_t *from, const int64_t *to)
{
    ch_region    in[CH_MAX_OUT], out[CH_MAX_OUT];
    ch_call_part part = {.rule = &a->rule, .from = from, .to = to, .in = in, .out = out};

    if (call->op->local == NULL || call->attrs == NULL)
        return CH_OK;
    if (call->n_in > CH_MAX_OUT)
        return ch__fail(CH_UNIMPLEMENTED, "%s: %d inputs, want at most %d", call->op->name,
                        call->n_in, CH_MAX_OUT);
    for (int i = 0; i < call->n_in; i++)
        in[i] = a->in_at[i]->at[c];
    for (int i = 0; i < call->n_out; i++)
        out[i] = a->out_at[i]->at[c];
    /* The copy refers to the tensors and bodies of the call, which lives longer. */
    a->attrs[c] = ch__arena_copy(&p->d->arena, call->attrs, call->op->attrs_bytes);
    return a->attrs[c] == NULL ? no_memory() : call->op->local(call, &part, a->attrs[c]);
}

/* Returns true if the attributes of a part follow from the sizes of its outputs. */
static bool has_simple_attrs(const ch_node *call)
{
    return call->op->local == NULL || call->attrs == NULL || call->op->local == ch__local_dims;
}

/* Decides what each core does in a call, of which every core has a part that is not empty. */
static ch_status add_full_parts(partition *p, const ch_node *call, const ch_core_layout *ranges,
                                action *a)
{
    a->computes = ranges->cores;
    a->is_full = true;
    for (int i = 0; i < call->n_out; i++)
        if ((a->out_at[i] = regions_of(p, a->out[i]->layout, &call[i])) == NULL)
            return no_memory();
    return CH_OK;
}

/* Decides what each core does in a call. */
static ch_status add_parts(partition *p, const ch_node *call, const ch_core_layout *ranges,
                           action *a)
{
    int64_t          from[CH_MAX_FACTORS] = {0}, to[CH_MAX_FACTORS] = {0};
    ch_core_regions *out_at;
    ch_status        rc = CH_OK;

    if (ch__ranges_are_full(&a->rule, ranges) && has_simple_attrs(call))
        return add_full_parts(p, call, ranges, a);
    out_at = allocate(p, (size_t)call->n_out + 1, sizeof(*out_at));
    if (out_at == NULL)
        return no_memory();
    for (int i = 0; i < call->n_out; i++)
        a->out_at[i] = &out_at[i];
    for (int c = 0; c < p->d->opt->n_cores && rc == CH_OK; c++) {
        if (!ch__core_ranges(&a->rule, ranges, c, from, to))
            continue;
        a->computes |= (uint64_t)1 << c;
        for (int i = 0; i < call->n_out; i++) {
            (void)ch__core_region(a->out[i]->layout, ch__shape(&call[i]), c, &out_at[i].at[c]);
            out_at[i].cores |= (uint64_t)1 << c;
        }
        rc = make_attrs(p, call, a, c, from, to);
    }
    return rc;
}

/* Sets the positions of the parts of a call in the whole call, if its kernels need them. */
static ch_status add_origins(partition *p, const ch_node *call, action *a)
{
    int  n = p->d->opt->n_cores;
    bool is_whole = true;

    if ((call->op->flags & CH_OP_ORIGIN) == 0)
        return CH_OK;
    for (int c = 0; c < n; c++) {
        for (int k = 0; k < call->dims.rank && call->n_out > 0; k++)
            is_whole &= (a->computes >> c & 1) == 0 ||
                        a->out_at[0]->at[c].size[k] == call->dims.dim[k].n;
        for (int k = 0; call->n_in > 0 && k < call->in[0]->dims.rank; k++)
            is_whole &= (a->computes >> c & 1) == 0 ||
                        a->in_at[0]->at[c].size[k] == call->in[0]->dims.dim[k].n;
    }
    if (is_whole)
        return CH_OK;
    a->origins = allocate(p, 1, sizeof(*a->origins));
    if (a->origins == NULL ||
        (a->origins->in = allocate(p, (size_t)n, sizeof(*a->origins->in))) == NULL ||
        (a->origins->out = allocate(p, (size_t)n, sizeof(*a->origins->out))) == NULL)
        return no_memory();
    a->origins->n_cores = n;
    if (call->n_in > 0)
        a->origins->whole_in = call->in[0]->dims;
    if (call->n_out > 0)
        a->origins->whole_out = call->dims;
    for (int c = 0; c < n; c++) {
        if (call->n_in > 0)
            memcpy(a->origins->in[c], a->in_at[0]->at[c].begin, sizeof(a->origins->in[c]));
        if (call->n_out > 0)
            memcpy(a->origins->out[c], a->out_at[0]->at[c].begin, sizeof(a->origins->out[c]));
    }
    return CH_OK;
}

/* Adds the forms of the outputs of a call. */
static ch_status add_outputs(partition *p, const ch_node *call, const ch_core_layout *ranges,
                             action *a)
{
    for (int i = 0; i < call->n_out; i++) {
        const ch_core_layout *unique;
        ch_core_layout        l;
        ch_status             rc;

        if (!ch__lower(&a->rule, ranges, a->rule.out[i], &call[i].dims, false, &l))
            return ch__fail(CH_INTERNAL, "%s: output %d has no layout", call->op->name, i);
        rc = ch__layout_intern(p->d->layouts, &l, &unique);
        if (rc != CH_OK)
            return rc;
        a->out[i] = add_form(p, &call[i], unique, NULL);
        if (a->out[i] == NULL)
            return no_memory();
    }
    return CH_OK;
}

/* Decides what the cores do in a call of which every core computes its part of every array: a
 * pack, or a call with bodies. `in` and `out` are the layouts of the arrays. */
static ch_status add_arrays(partition *p, const ch_node *call, const ch_core_layout *const *in,
                            const ch_core_layout *const *out, action *a)
{
    a->computes = ~(uint64_t)0 >> (CH_MAX_CORES - p->d->opt->n_cores);
    a->is_full = true;
    for (int i = 0; i < call->n_in; i++) {
        ch_status rc;

        a->in_at[i] = regions_of(p, in[i], call->in[i]);
        rc = a->in_at[i] == NULL ? no_memory()
                                 : need(p, call->in[i], a->in_at[i], in[i], &a->in[i]);
        if (rc != CH_OK)
            return rc;
    }
    for (int i = 0; i < call->n_out; i++) {
        a->out_at[i] = regions_of(p, out[i], &call[i]);
        a->out[i] = add_form(p, &call[i], out[i], NULL);
        if (a->out_at[i] == NULL || a->out[i] == NULL)
            return no_memory();
    }
    return CH_OK;
}

static ch_status list_actions(partition *p);

/* Sets up the partition of a graph: of a replica, or of a body. It is described in a part of
 * the report. */
static ch_status begin(partition *p, ch_core_division *d, ch_graph *g, ch_step_report *report,
                       ch_report_body *described)
{
    *p = (partition){.d = d,
                     .g = g,
                     .forms = {.arena = &d->arena, .layouts = d->layouts},
                     .last = &p->first,
                     .report = report,
                     .described = described};
    p->forms.first = allocate(p, (size_t)g->n_values + 1, sizeof(*p->forms.first));
    p->written = allocate(p, (size_t)g->n_resources + 1, sizeof(*p->written));
    p->result = allocate(p, (size_t)g->n_outputs + 1, sizeof(*p->result));
    return p->forms.first == NULL || p->written == NULL || p->result == NULL ? no_memory()
                                                                             : CH_OK;
}

/* Lists the actions in the bodies of a call. The classes of cores depend on them too. */
static ch_status add_bodies(partition *p, const ch_node *call, ch_body_plan *plan, action *a)
{
    ch_graph *body[CH_MAX_BODIES];
    int       n = ch__call_bodies(call, body);
    double    before = p->report != NULL ? p->report->times : 0;
    double    times = plan->ties.iterations >= 0 ? (double)plan->ties.iterations : 1;
    ch_status rc = add_arrays(p, call, plan->in, plan->out, a);

    if (rc == CH_OK && p->report != NULL)
        rc = ch__describe_bodies(p->report, call, &a->described);
    a->body = allocate(p, (size_t)n + 1, sizeof(*a->body));
    if (rc == CH_OK && a->body == NULL)
        rc = no_memory();
    a->n_bodies = rc == CH_OK ? n : 0;
    for (int i = 0; i < n && rc == CH_OK; i++) {
        rc = begin(&a->body[i], &plan->body[i], body[i], p->report,
                   p->report != NULL ? &a->described[i] : NULL);
        if (rc == CH_OK && p->report != NULL)
            p->report->times *= times;
        if (rc == CH_OK)
            rc = list_actions(&a->body[i]);
        if (p->report != NULL)
            p->report->times = before;
    }
    return rc;
}

static ch_status add_call(partition *p, const ch_node *call, int index)
{
    ch_call_plan   of = p->d->call[index];
    ch_core_layout room;
    size_t         n_in = (size_t)call->n_in + 1, n_out = (size_t)call->n_out + 1;
    ch_factors     rule;
    ch_status      rc = ch__factors_of(call, &p->d->arena, &rule);
    action         plan = {.rule = rule}, *a = &plan;

    p->move = (ch_planned_move){.use = CH_FOR_CALL, .call = call};
    plan.in = allocate(p, n_in, sizeof(*plan.in));
    plan.out = allocate(p, n_out, sizeof(*plan.out));
    plan.in_at = allocate(p, n_in, sizeof(*plan.in_at));
    plan.out_at = allocate(p, n_out, sizeof(*plan.out_at));
    plan.attrs = allocate(p, CH_MAX_CORES, sizeof(*plan.attrs));
    if (rc == CH_OK && (plan.in == NULL || plan.out == NULL || plan.in_at == NULL ||
                        plan.out_at == NULL || plan.attrs == NULL))
        rc = no_memory();
    if (rc == CH_OK && of.array != NULL) {
        rc = add_arrays(p, call, of.array, of.array, a);
    } else if (rc == CH_OK && of.bodies != NULL) {
        rc = add_bodies(p, call, of.bodies, a);
    } else if (rc == CH_OK) {
        of.ranges =
            ch__ranges_in(p->d, &p->forms, &of, call, &rule, &room, &plan.stays_partial);
        rc = add_inputs(p, call, of.ranges, a); /* adds reshards, which precede the call */
        if (rc == CH_OK)
            rc = add_outputs(p, call, of.ranges, a);
        if (rc == CH_OK)
            rc = add_parts(p, call, of.ranges, a);
        if (rc == CH_OK)
            rc = add_origins(p, call, a);
    }
    if (rc != CH_OK)
        return rc;
    a = add_action(p, CALL, call);
    if (a == NULL)
        return no_memory();
    plan.kind = CALL;
    plan.value = call;
    plan.index = index;
    *a = plan;
    return p->report == NULL ? CH_OK
                             : ch__describe_call(p->report, p->described, p->d, p->g, &of, call,
                                                 &a->rule, &p->forms, a->described);
}

/* Adds the form of a value that no op computes. */
static ch_status add_source(partition *p, const ch_node *call)
{
    const ch_core_layout *l = ch__body_input_layout(p->d, call);
    bool                  is_host = l == NULL && call->op != ch__roles.read;
    ch_form              *form;

    if (call->op == ch__roles.read)
        l = p->d->tiles[((const ch_read_attrs *)ch__attrs(call))->resource];
    else if (is_host)
        l = ch__division_replicated(p->d, call->dims.rank);
    form = l != NULL ? add_form(p, call, l, NULL) : NULL;
    if (form == NULL)
        return no_memory();
    form->is_host = is_host;
    return p->report == NULL ? CH_OK
                             : ch__describe_call(p->report, p->described, p->d, p->g, NULL,
                                                 call, NULL, &p->forms, NULL);
}

/* Leaves out the cores that have the same part as a lower core, so that each element of a
 * result is written once. */
static void leave_one_copy(const ch_core_layout *l, ch_core_regions *at)
{
    for (int c = 0; c < l->n_cores && !ch__layout_has_no_copies(l); c++)
        for (int lower = 0; lower <= c; lower++)
            if (!ch__layout_has(l, c) ||
                (lower < c && ch__layout_has(l, lower) &&
                 memcmp(l->part[lower], l->part[c], sizeof(l->part[c])) == 0))
                at->cores &= ~((uint64_t)1 << c);
}

/* Adds the actions that bring results to the memory of the host, and new values of variables to
 * the layouts of the variables. */
static ch_status add_roots(partition *p)
{
    const ch_core_regions *at;
    ch_core_regions       *put;
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
        action               *a;

        if (l->n_partial > 1)
            l = p->d->value[n->id].want;
        at = regions_of(p, l, n);
        p->move = (ch_planned_move){.use = CH_FOR_RESULT, .index = i, .layout = l};
        rc = at == NULL ? no_memory() : need(p, n, at, l, &form);
        if (rc != CH_OK)
            return rc;
        a = add_action(p, PUT, n);
        put = ch__arena_copy(&p->d->arena, at, sizeof(*at));
        if (a == NULL || put == NULL)
            return no_memory();
        put->layout = NULL;
        leave_one_copy(l, put);
        a->want = put;
        a->index = i;
        a->source = form;
    }
    return rc;
}

/* Adds the actions that bring the outputs of a body to their layouts. */
static ch_status add_body_outputs(partition *p)
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

static ch_status list_actions(partition *p)
{
    ch_status rc = CH_OK;
    int       i = 0;

    for (const ch_node *n = p->g->first; n != NULL && rc == CH_OK; n = n->next, i++)
        rc = ch__is_source(n) ? add_source(p, n) : add_call(p, n, i);
    if (rc != CH_OK)
        return rc;
    return p->d->output != NULL ? add_body_outputs(p) : add_roots(p);
}

/* ---- graphs of cores ---- */

/* Sets *out to the sizes of a region. */
static void dims_of(const ch_region *r, int rank, ch_dims *out)
{
    out->rank = rank;
    for (int k = 0; k < rank; k++)
        out->dim[k] = ch__dim(r->size[k]);
}

/* Copies an input, a constant, or the read of a variable, with the sizes of the core's part. */
static ch_status write_source(partition *p, int k, ch_graph *g, const ch_node *n)
{
    ch_form       *form = p->forms.first[n->id];
    ch_region      r;
    ch_node       *to;
    ch_read_attrs  read;
    ch_input_attrs input;
    const void    *attrs = n->attrs;
    ch_dims        dims = n->dims;

    if (!form->is_host) {
        if (!ch__core_region(form->layout, ch__shape(n), p->class[k].first, &r))
            return CH_OK;
        dims_of(&r, n->dims.rank, &dims);
    }
    if (n->op == ch__roles.read) {
        read = *(const ch_read_attrs *)n->attrs;
        read.dims = dims;
        attrs = &read;
    } else if (n->op == ch__roles.input) {
        input = *(const ch_input_attrs *)n->attrs;
        input.dims = dims;
        attrs = &input;
    }
    to = ch__graph_add(g, n->op, attrs, 0, NULL, 1);
    if (to == NULL)
        return no_memory();
    ch__call_copy_origin(to, n);
    to->dtype = n->dtype;
    to->dims = dims;
    form->node[k] = to;
    return CH_OK;
}

/* Gives a call the positions of the cores' parts, in the memory of its graph. */
static ch_status write_origins(partition *p, const action *a, ch_graph *g, ch_node *to)
{
    size_t      n = (size_t)p->d->opt->n_cores;
    ch_origins *o;

    if (a->origins == NULL || !CH_KEEPS(ORIGIN))
        return CH_OK;
    o = ch__arena_copy(&g->arena, a->origins, sizeof(*o));
    if (o == NULL ||
        (o->in = ch__arena_copy(&g->arena, a->origins->in, n * sizeof(*o->in))) == NULL ||
        (o->out = ch__arena_copy(&g->arena, a->origins->out, n * sizeof(*o->out))) == NULL)
        return no_memory();
    to->origins = o;
    return CH_OK;
}

/* Runs the shape rule of a part of a call, and checks that it gives the sizes of the part. */
static ch_status infer_part(partition *p, const action *a, int k, ch_graph *g, ch_node *to)
{
    ch_dims   dims[CH_MAX_OUT];
    ch_dtype  dtype[CH_MAX_OUT];
    ch_infer  infer = {.out = dims, .out_dtype = dtype};
    ch_status rc = ch__call_infer(g, to->op, to->attrs, to->n_in, to->in, &infer);

    for (int i = 0; i < to->n_out && rc == CH_OK; i++) {
        ch_dims want;

        dims_of(&a->out_at[i]->at[p->class[k].first], dims[i].rank, &want);
        for (int d = 0; d < dims[i].rank; d++)
            if (dims[i].dim[d].sym != 0)
                dims[i].dim[d] = want.dim[d]; /* such as the rows of all replicas */
        if (!ch__dims_same(&dims[i], &want) || dims[i].rank != a->value[i].dims.rank) {
            char has[128], should[128];

            (void)ch__dims_print(&dims[i], has, sizeof(has));
            (void)ch__dims_print(&want, should, sizeof(should));
            rc = ch__fail(CH_INTERNAL, "%s: output %d of a part is %s, want %s", to->op->name,
                          i, has, should);
        }
        to[i].dims = dims[i];
        to[i].dtype = dtype[i];
    }
    return rc == CH_OK ? CH_OK : ch__fail_in_call(rc, a->value);
}

/* Records a value without elements, for a core that needs nothing of value n: no call has
 * computed it. `user` is the call that needs it. */
static ch_node *write_empty(const ch_node *n, const ch_region *at, const ch_node *user, int c,
                            ch_step *s)
{
    ch_dims dims;

    if (ch__region_count(at, n->dims.rank) > 0) {
        ch__step_record_error(s,
                              ch__fail(CH_INTERNAL,
                                       "%s: core %d does not have the result of %s",
                                       user->head->op->name, c, n->head->op->name),
                              NULL);
        return NULL;
    }
    dims_of(at, n->dims.rank, &dims);
    return ch__fill_dims(s, n->dtype, &dims, 0);
}

static ch_status write_graph(partition *p, int k, const partition *outer);

/* Gives a call the graphs of its bodies for class k. */
static ch_status write_bodies(partition *p, const action *a, int k, ch_node *to)
{
    ch_graph *body[CH_MAX_BODIES];
    int       n = a->n_bodies;
    ch_status rc = CH_OK;

    for (int i = 0; i < n && rc == CH_OK; i++) {
        rc = write_graph(&a->body[i], k, p);
        body[i] = a->body[i].class[k].g;
    }
    if (rc == CH_OK && n > 0)
        ch__call_set_bodies(to, n, body);
    for (int i = 0; i < n; i++) {
        ch_graph_unref(a->body[i].class[k].g);
        a->body[i].class[k].g = NULL;
    }
    return rc;
}

static ch_status write_call(partition *p, const action *a, int k, ch_step *s)
{
    int            c = p->class[k].first;
    const ch_node *n = a->value;
    const int64_t  none[CH_MAX_FACTORS] = {0}; /* has_simple_attrs */
    ch_node      **in, *to;
    ch_status      rc;

    if (!has_core(a->computes, c))
        return CH_OK;
    rc = a->is_full ? make_attrs(p, n, a, c, none, none) : CH_OK;
    if (rc != CH_OK)
        return rc;
    in = allocate(p, (size_t)n->n_in + 1, sizeof(*in));
    for (int i = 0; in != NULL && i < n->n_in; i++) {
        in[i] = a->in[i]->node[k];
        if (in[i] == NULL &&
            (in[i] = write_empty(n->in[i], &a->in_at[i]->at[c], n, c, s)) == NULL)
            return ch_step_status(s);
    }
    to = in == NULL
             ? NULL
             : ch__graph_add(s->graph, n->op, a->attrs[c] != NULL ? a->attrs[c] : n->attrs,
                             n->n_in, in, n->n_out);
    if (to == NULL)
        return no_memory();
    ch__call_copy_origin(to, n);
    rc = write_origins(p, a, s->graph, to);
    if (rc == CH_OK)
        rc = write_bodies(p, a, k, to);
    if (rc == CH_OK)
        rc = infer_part(p, a, k, s->graph, to);
    for (int i = 0; i < n->n_out; i++)
        a->out[i]->node[k] = &to[i];
    return rc;
}

/* Takes a core's part of an input or constant. The whole value needs no call. */
static ch_status write_take(partition *p, const action *a, int k, ch_step *s)
{
    int      c = p->class[k].first;
    ch_node *whole = a->source->node[k];
    ch_dims  dims;

    if (!has_core(a->want->cores, c))
        return CH_OK;
    dims_of(&a->want->at[c], whole->dims.rank, &dims);
    a->made->node[k] = ch__dims_same(&dims, &whole->dims)
                           ? whole
                           : ch__take_part(s, whole, p->d->opt->n_cores, c, a->want);
    return a->made->node[k] != NULL ? CH_OK : ch_step_status(s);
}

static ch_status write_reshard(partition *p, action *a, int k, ch_step *s)
{
    const ch_node    *n = a->value;
    int               c = p->class[k].first;
    bool              wants[CH_MAX_CORES];
    const ch_reshard *plan;
    ch_status         rc;
    ch_dims           dims;
    ch_node          *out;

    for (int i = 0; i < CH_MAX_CORES; i++)
        wants[i] = has_core(a->want->cores, i);
    rc = ch__reshard_plan(a->source->layout, ch__shape(n), a->want->at, wants, &s->graph->arena,
                          &plan);
    if (rc != CH_OK)
        return rc;
    dims_of(&a->want->at[c], n->dims.rank, &dims);
    rc = ch__exchange(s, plan, n, a->source->node[k], wants[c] ? &dims : NULL, &out);
    a->move.kind = plan->kind;
    a->move.bytes = plan->n_moved * (int64_t)ch_dtype_bytes(n->dtype);
    a->made->node[k] = out;
    return rc;
}

static ch_status write_put(partition *p, const action *a, int k, ch_step *s)
{
    ch_graph  *g = s->graph;
    ch_output *o = ch__graph_add_output(g);

    if (o == NULL)
        return no_memory();
    if (p->g->output[a->index].name != NULL &&
        (o->name = ch__arena_strdup(&g->arena, p->g->output[a->index].name)) == NULL)
        return no_memory();
    o->node = ch__put_part(s, a->source->node[k], a->value, p->d->opt->n_cores,
                           p->class[k].cores, a->want);
    return o->node != NULL ? CH_OK : ch_step_status(s);
}

/* Adds the outputs of a body. */
static ch_status write_body_outputs(partition *p, int k, ch_step *s)
{
    int c = p->class[k].first;

    for (int i = 0; i < p->g->n_outputs; i++) {
        const ch_node *n = p->g->output[i].node;
        ch_output     *o = ch__graph_add_output(s->graph);
        ch_region      at;

        if (o == NULL)
            return no_memory();
        (void)ch__core_region(p->d->output[i], ch__shape(n), c, &at);
        o->node = p->result[i]->node[k];
        if (o->node == NULL && (o->node = write_empty(n, &at, n, c, s)) == NULL)
            return ch_step_status(s);
    }
    return CH_OK;
}

/* Adds the variables, with the sizes of the core's tiles. */
static ch_status write_resources(partition *p, int k, ch_graph *g)
{
    for (int i = 0; i < p->g->n_resources; i++) {
        const ch_resource    *from = &p->g->resource[i];
        const ch_core_layout *tiles = p->d->tiles[i];
        ch_resource          *r = ch__graph_add_resource(g);
        ch_region             at;

        if (r == NULL || (r->name = ch__arena_strdup(&g->arena, from->name)) == NULL)
            return no_memory();
        r->dtype = from->dtype;
        r->key = from->key;
        r->is_borrowed = from->is_borrowed;
        r->layout = ch__layout_hash(tiles);
        r->shape = from->shape;
        if (!ch__core_region(tiles, from->shape, p->class[k].first, &at))
            continue;
        for (int d = 0; d < r->shape.rank; d++)
            r->shape.dim[d] = at.size[d];
        if (from->read != NULL)
            r->read = p->forms.first[from->read->id]->node[k];
        r->value = from->value == from->read ? r->read : p->written[i]->node[k];
        if (r->value == NULL)
            r->value = r->read; /* the tile has no elements, so no call computes it */
    }
    return CH_OK;
}

static ch_status write_action(partition *p, action *a, int k, ch_step *s)
{
    switch (a->kind) {
    case TAKE:
        return write_take(p, a, k, s);
    case RESHARD:
        return write_reshard(p, a, k, s);
    case CALL:
        return write_call(p, a, k, s);
    case PUT:
        return write_put(p, a, k, s);
    }
    return CH_OK;
}

/* Writes the graph of class k. `outer` is the partition of the graph around a body, which has
 * the classes; NULL: p itself has them. */
static ch_status write_graph(partition *p, int k, const partition *outer)
{
    ch_step  *s = NULL;
    ch_status rc = ch__step_new(p->g->name, NULL, &s);

    if (outer != NULL)
        p->class[k] =
            (core_class){.first = outer->class[k].first, .cores = outer->class[k].cores};

    for (const ch_node *n = p->g->first; n != NULL && rc == CH_OK; n = n->next)
        if (ch__is_source(n))
            rc = write_source(p, k, s->graph, n);
    for (action *a = p->first; a != NULL && rc == CH_OK; a = a->next)
        rc = write_action(p, a, k, s);
    if (rc == CH_OK && p->d->output != NULL)
        rc = write_body_outputs(p, k, s);
    if (rc == CH_OK)
        rc = write_resources(p, k, s->graph);
    for (int i = 0; rc == CH_OK && i < p->g->n_inputs; i++) {
        s->graph->input_name[i] = ch__arena_strdup(&s->graph->arena, p->g->input_name[i]);
        if (p->g->input_name[i] != NULL && s->graph->input_name[i] == NULL)
            rc = no_memory();
    }
    if (rc == CH_OK)
        rc = ch__step_finish(s, &p->class[k].g);
    if (rc == CH_OK) {
        p->class[k].g->is_concrete = true;
        p->class[k].g->step = NULL;
    }
    ch__step_free(s);
    return rc;
}

/* Returns the bytes of the parts that cores read from an input or write to a result. Whole
 * values are used where they are. */
static int64_t host_bytes(const partition *p, const action *a)
{
    int64_t whole = ch__count(a->value), sum = 0;

    for (int c = 0; c < p->d->opt->n_cores; c++) {
        int64_t n = ch__region_count(&a->want->at[c], a->value->dims.rank);

        if (has_core(a->want->cores, c) && (a->kind == PUT || n < whole))
            sum += n;
    }
    return sum * (int64_t)ch_dtype_bytes(a->value->dtype);
}

/* Adds the transfers to the report. */
static ch_status describe_moves(partition *p)
{
    ch_status rc = CH_OK;

    for (action *a = p->first; a != NULL && rc == CH_OK; a = a->next) {
        for (int i = 0; i < a->n_bodies && rc == CH_OK; i++)
            rc = describe_moves(&a->body[i]);
        if (a->kind == CALL || rc != CH_OK)
            continue;
        if (a->kind != RESHARD) {
            a->move.kind = CH_TRAFFIC_HOST;
            a->move.bytes = host_bytes(p, a);
        }
        rc = ch__describe_move(p->report, p->described, p->d, p->g, &a->move);
    }
    return rc;
}

ch_status ch__partition(ch_core_division *d, ch_graph *g, ch_graph **core,
                        ch_step_report *report)
{
    partition p;
    ch_status rc;

    rc = begin(&p, d, g, report, report != NULL ? &report->step : NULL);
    if (rc == CH_OK && report != NULL)
        rc = ch__describe_begin(report, &report->step, g->name, g->n_values);
    if (rc == CH_OK)
        rc = list_actions(&p);
    if (rc == CH_OK)
        find_classes(&p);
    for (int k = 0; k < p.n_classes && rc == CH_OK; k++)
        rc = write_graph(&p, k, NULL);
    if (rc == CH_OK && report != NULL)
        rc = describe_moves(&p);
    for (int c = 0; c < d->opt->n_cores && rc == CH_OK; c++)
        core[c] = ch_graph_ref(p.class[p.class_of[c]].g);
    for (int k = 0; k < p.n_classes; k++)
        ch_graph_unref(p.class[k].g);
    return rc;
}

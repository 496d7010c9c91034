/* spmd/partition.c -- writes the graphs of the cores of a replica.
 *
 * actions.c lists the actions of the cores, and finds the classes of cores with equal sizes and
 * attributes. This file writes a graph for each class: a core that has no part in an action
 * leaves it out. The positions in which the cores of a class differ are in tables by core
 * (ch_origins, and the regions of the ops in core_ops.h). A body is a graph of its own, in the
 * attributes of the call of its class. At last the transfers are described in the report.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/mutant.h"
#include "graph/step.h"
#include "ops/box.h"
#include "spmd/actions.h"
#include "spmd/core_ops.h"

static ch_status no_memory(void)
{
    return ch__fail_memory("the graphs of the cores");
}

/* Sets *out to the sizes of a region. */
static void dims_of(const ch_region *r, int rank, ch_dims *out)
{
    out->rank = rank;
    for (int k = 0; k < rank; k++)
        out->dim[k] = ch__dim(r->size[k]);
}

/* Copies an input, a constant, or the read of a variable, with the sizes of the core's part. */
static ch_status write_source(ch_partition *p, int k, ch_graph *g, const ch_node *n)
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
static ch_status write_origins(ch_partition *p, const ch_core_call *of, ch_graph *g,
                               ch_node *to)
{
    size_t      n = (size_t)p->d->opt->n_cores;
    ch_origins *o;

    if (of->origins == NULL || !CH_KEEPS(ORIGIN))
        return CH_OK;
    o = ch__arena_copy(&g->arena, of->origins, sizeof(*o));
    if (o == NULL ||
        (o->in = ch__arena_copy(&g->arena, of->origins->in, n * sizeof(*o->in))) == NULL ||
        (o->out = ch__arena_copy(&g->arena, of->origins->out, n * sizeof(*o->out))) == NULL)
        return no_memory();
    to->origins = o;
    return CH_OK;
}

/* Runs the shape rule of a part of a call, and checks that it gives the sizes of the part. */
static ch_status infer_part(ch_partition *p, const ch_node *n, const ch_core_call *of, int k,
                            ch_graph *g, ch_node *to)
{
    ch_dims   dims[CH_MAX_OUT];
    ch_dtype  dtype[CH_MAX_OUT];
    ch_infer  infer = {.out = dims, .out_dtype = dtype};
    ch_status rc = ch__call_infer(g, to->op, to->attrs, to->n_in, to->in, &infer);

    for (int i = 0; i < to->n_out && rc == CH_OK; i++) {
        ch_dims want;

        dims_of(&of->out_at[i]->at[p->class[k].first], dims[i].rank, &want);
        for (int d = 0; d < dims[i].rank; d++)
            if (dims[i].dim[d].sym != 0)
                dims[i].dim[d] = want.dim[d]; /* such as the rows of all replicas */
        if (!ch__dims_same(&dims[i], &want) || dims[i].rank != n[i].dims.rank) {
            char has[128], should[128];

            (void)ch__dims_print(&dims[i], has, sizeof(has));
            (void)ch__dims_print(&want, should, sizeof(should));
            rc = ch__fail(CH_INTERNAL, "%s: output %d of a part is %s, want %s", to->op->name,
                          i, has, should);
        }
        to[i].dims = dims[i];
        to[i].dtype = dtype[i];
    }
    return rc == CH_OK ? CH_OK : ch__fail_in_call(rc, n);
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

static ch_status write_graph(ch_partition *p, int k, const ch_partition *outer);

/* Gives a call the graphs of its bodies for class k. */
static ch_status write_bodies(ch_partition *p, const ch_core_call *of, int k, ch_node *to)
{
    ch_graph *body[CH_MAX_BODIES];
    int       n = of->n_bodies;
    ch_status rc = CH_OK;

    for (int i = 0; i < n && rc == CH_OK; i++) {
        rc = write_graph(&of->body[i], k, p);
        body[i] = of->body[i].class[k].g;
    }
    if (rc == CH_OK && n > 0)
        ch__call_set_bodies(to, n, body);
    for (int i = 0; i < n; i++) {
        ch_graph_unref(of->body[i].class[k].g);
        of->body[i].class[k].g = NULL;
    }
    return rc;
}

static ch_status write_call(ch_partition *p, const ch_action *a, int k, ch_step *s)
{
    int                 c = p->class[k].first;
    const ch_node      *n = a->value;
    const ch_core_call *of = a->call;
    const int64_t       none[CH_MAX_FACTORS] = {0}; /* has_simple_attrs */
    ch_node           **in, *to;
    ch_status           rc = CH_OK;

    if (!ch__has_core(of->computes, c))
        return CH_OK;
    if (of->is_full && ch__has_part_attrs(n)) {
        of->attrs[c] = ch__arena_alloc(&p->d->arena, n->op->attrs_bytes);
        rc = of->attrs[c] == NULL ? no_memory()
                                  : ch__part_attrs(p, n, of, c, none, none, of->attrs[c]);
    }
    if (rc != CH_OK)
        return rc;
    in = ch__arena_alloc(&p->d->arena, ((size_t)n->n_in + 1) * sizeof(*in));
    for (int i = 0; in != NULL && i < n->n_in; i++) {
        in[i] = of->in[i]->node[k];
        /* a core may have a form of which the call needs nothing there */
        if (!ch__has_core(of->in_at[i]->cores, c) && n->in[i]->dims.rank > 0)
            in[i] = NULL;
        if (in[i] == NULL &&
            (in[i] = write_empty(n->in[i], &of->in_at[i]->at[c], n, c, s)) == NULL)
            return ch_step_status(s);
    }
    to = in == NULL
             ? NULL
             : ch__graph_add(s->graph, n->op, of->attrs[c] != NULL ? of->attrs[c] : n->attrs,
                             n->n_in, in, n->n_out);
    if (to == NULL)
        return no_memory();
    ch__call_copy_origin(to, n);
    rc = write_origins(p, of, s->graph, to);
    if (rc == CH_OK)
        rc = write_bodies(p, of, k, to);
    if (rc == CH_OK)
        rc = infer_part(p, n, of, k, s->graph, to);
    for (int i = 0; i < n->n_out; i++)
        of->out[i]->node[k] = &to[i];
    return rc;
}

/* Takes a core's part of an input or constant. The whole value needs no call. */
static ch_status write_take(ch_partition *p, const ch_action *a, int k, ch_step *s)
{
    int      c = p->class[k].first;
    ch_node *whole = a->source->node[k];
    ch_dims  dims;

    if (!ch__has_core(a->want->cores, c))
        return CH_OK;
    dims_of(&a->want->at[c], whole->dims.rank, &dims);
    a->made->node[k] = ch__dims_same(&dims, &whole->dims)
                           ? whole
                           : ch__take_part(s, whole, p->d->opt->n_cores, c, a->want);
    return a->made->node[k] != NULL ? CH_OK : ch_step_status(s);
}

/* Plans a reshard, for the graphs of all classes. */
static ch_status plan_reshard(ch_partition *p, ch_action *a)
{
    const ch_node    *n = a->value;
    bool              wants[CH_MAX_CORES];
    const ch_reshard *plan;
    ch_status         rc;

    for (int i = 0; i < CH_MAX_CORES; i++)
        wants[i] = ch__has_core(a->want->cores, i);
    rc = ch__reshard_plan(a->source->layout, ch__shape(n), a->want->at, wants,
                          &p->shared->arena, &plan);
    if (rc != CH_OK)
        return rc;
    a->move.kind = plan->kind;
    a->move.bytes = plan->n_moved * (int64_t)ch_dtype_bytes(n->dtype);
    return ch__exchange_table_new(&p->shared->arena, plan, n->dtype, &a->table);
}

static ch_status write_reshard(ch_partition *p, ch_action *a, int k, ch_step *s)
{
    const ch_node *n = a->value;
    int            c = p->class[k].first;
    const void    *before = s->caller;
    ch_status      rc = a->table == NULL ? plan_reshard(p, a) : CH_OK;
    ch_dims        dims;

    if (rc != CH_OK)
        return rc;
    dims_of(&a->want->at[c], n->dims.rank, &dims);
    s->caller = a->move.call != NULL ? a->move.call->caller : NULL;
    rc = ch__exchange(s, a->table, n, a->source->node[k],
                      ch__has_core(a->want->cores, c) ? &dims : NULL, &a->made->node[k]);
    s->caller = before;
    return rc;
}

static ch_status write_put(ch_partition *p, const ch_action *a, int k, ch_step *s)
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
static ch_status write_body_outputs(ch_partition *p, int k, ch_step *s)
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
static ch_status write_resources(ch_partition *p, int k, ch_graph *g)
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

static ch_status write_action(ch_partition *p, ch_action *a, int k, ch_step *s)
{
    switch (a->kind) {
    case CH_ACTION_TAKE:
        return write_take(p, a, k, s);
    case CH_ACTION_RESHARD:
        return write_reshard(p, a, k, s);
    case CH_ACTION_CALL:
        return write_call(p, a, k, s);
    case CH_ACTION_PUT:
        return write_put(p, a, k, s);
    }
    return CH_OK;
}

/* Writes the graph of class k. `outer` is the partition of the graph around a body, which has
 * the classes; NULL: p itself has them. */
static ch_status write_graph(ch_partition *p, int k, const ch_partition *outer)
{
    ch_step  *s = NULL;
    ch_status rc = ch__step_new(p->g->name, NULL, &s);

    if (rc != CH_OK)
        return rc;
    if (outer != NULL) {
        p->class[k] =
            (ch_core_class){.first = outer->class[k].first, .cores = outer->class[k].cores};
        p->shared = outer->shared;
    }
    s->graph->shared = ch__shared_memory_ref(p->shared);
    for (const ch_node *n = p->g->first; n != NULL && rc == CH_OK; n = n->next)
        if (ch__is_source(n))
            rc = write_source(p, k, s->graph, n);
    for (ch_action *a = p->first; a != NULL && rc == CH_OK; a = a->next)
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
static int64_t host_bytes(const ch_partition *p, const ch_action *a)
{
    int64_t whole = ch__count(a->value), sum = 0;

    for (int c = 0; c < p->d->opt->n_cores; c++) {
        int64_t n = ch__region_count(&a->want->at[c], a->value->dims.rank);

        if (ch__has_core(a->want->cores, c) && (a->kind == CH_ACTION_PUT || n < whole))
            sum += n;
    }
    return sum * (int64_t)ch_dtype_bytes(a->value->dtype);
}

/* Adds the transfers to the report. */
static ch_status describe_moves(ch_partition *p)
{
    ch_status rc = CH_OK;

    for (ch_action *a = p->first; a != NULL && rc == CH_OK; a = a->next) {
        if (a->kind == CH_ACTION_CALL) {
            for (int i = 0; i < a->call->n_bodies && rc == CH_OK; i++)
                rc = describe_moves(&a->call->body[i]);
            continue;
        }
        if (a->kind != CH_ACTION_RESHARD) {
            a->move.kind = CH_TRAFFIC_HOST;
            a->move.bytes = host_bytes(p, a);
        }
        rc = ch__describe_move(p, &a->move);
    }
    return rc;
}

ch_status ch__partition(ch_core_division *d, ch_graph *g, ch_graph **core,
                        ch_step_report *report)
{
    ch_report_body *described = report != NULL ? &report->step : NULL;
    ch_partition    p = {.n_classes = 0};
    ch_status       rc = CH_OK;

    if (report != NULL)
        rc = ch__describe_begin(report, described, g->name, g->n_values);
    if (rc == CH_OK)
        rc = ch__actions_list(&p, d, g, report, described);
    if (rc == CH_OK)
        rc = ch__actions_classes(&p);
    if (rc == CH_OK && (p.shared = ch__shared_memory_new()) == NULL)
        rc = no_memory();
    for (int k = 0; k < p.n_classes && rc == CH_OK; k++)
        rc = write_graph(&p, k, NULL);
    if (rc == CH_OK && report != NULL)
        rc = describe_moves(&p);
    for (int c = 0; c < d->opt->n_cores && rc == CH_OK; c++)
        core[c] = ch_graph_ref(p.class[p.class_of[c]].g);
    for (int k = 0; k < p.n_classes; k++)
        ch_graph_unref(p.class[k].g);
    ch__shared_memory_unref(p.shared);
    return rc;
}

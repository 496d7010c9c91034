/* graph/graph.c -- graphs: reference counting, lists of calls, outputs and resources, live
 * values.
 *
 * graph/step_call.c, decode.c, specialise.c and extract.c build graphs with these functions,
 * and the passes and the planner read them. Nodes, names and arrays of inputs are in the arena
 * of the graph. The arrays `input`, `output` and `resource` grow and are allocated separately.
 * A graph holds references to the tensors, tables and bodies in attributes and to borrowed
 * variables.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/graph.h"

#include <string.h>

#include "graph/attr.h"

ch_shared_memory *ch__shared_memory_new(void)
{
    ch_shared_memory *m = ch__calloc(1, sizeof(*m));

    if (m != NULL)
        atomic_init(&m->refs, 1);
    return m;
}

ch_shared_memory *ch__shared_memory_ref(ch_shared_memory *m)
{
    atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
    return m;
}

void ch__shared_memory_unref(ch_shared_memory *m)
{
    if (m == NULL || atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) != 1)
        return;
    ch__arena_drop(&m->arena);
    ch__free(m);
}

ch_status ch__graph_new(const char *name, ch_graph **out)
{
    ch_graph *g = ch__calloc(1, sizeof(*g));

    if (g == NULL)
        return ch__fail_memory("a graph");
    atomic_init(&g->refs, 1);
    g->name = ch__arena_strdup(&g->arena, name);
    if (g->name == NULL) {
        ch__free(g);
        return ch__fail_memory("a graph");
    }
    *out = g;
    return CH_OK;
}

ch_graph *ch_graph_ref(ch_graph *g)
{
    if (g != NULL)
        atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
    return g;
}

void ch_graph_unref(ch_graph *g)
{
    if (g == NULL || atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (ch_node *n = g->first; n != NULL; n = n->next)
        ch__attrs_drop(n->op, n->attrs);
    ch__free(g->input);
    ch__free(g->input_name);
    ch__free(g->output);
    for (int i = 0; i < g->n_resources; i++)
        if (ch__is_borrowed(&g->resource[i]))
            g->resource[i].release(g->resource[i].key);
    ch__free(g->resource);
    ch__arena_drop(&g->arena);
    ch__shared_memory_unref(g->shared);
    ch__free(g);
}

bool ch__splits_rows(const ch_node *splits, ch_dim *rows)
{
    const ch_graph *g = ch__graph_root(splits->graph);
    ch_dim          n = splits->dims.rank == 1 ? splits->dims.dim[0] : ch__dim(0);

    for (int i = 0; i < g->n_inputs && n.sym != 0; i++) {
        const ch_input_attrs *a = ch__attrs(g->input[i]);

        if (a->rows.rank == 1 && ch__dim_same(a->dims.dim[0], n)) {
            *rows = a->rows.dim[0];
            return true;
        }
    }
    return false;
}

ch_graph *ch__graph_root(ch_graph *g)
{
    while (g->outer != NULL)
        g = g->outer;
    return g;
}

int ch_graph_nodes(const ch_graph *g)
{
    return g != NULL ? g->n_calls : 0;
}

/* Allocates the nodes of a call and its array of inputs. */
static ch_node *new_call(ch_graph *g, int n_in, int n_out)
{
    ch_node *n = ch__arena_alloc(&g->arena, (size_t)n_out * sizeof(*n));

    if (n == NULL)
        return NULL;
    n->in = ch__arena_alloc(&g->arena, (size_t)(n_in > 0 ? n_in : 1) * sizeof(n->in[0]));
    return n->in == NULL ? NULL : n;
}

/* Appends n to the inputs of the graph. Returns false if memory is exhausted. */
static bool append_input(ch_graph *g, ch_node *n)
{
    int cap = g->cap_inputs;

    if (!ch__grow((void **)&g->input, &cap, g->n_inputs + 1, sizeof(g->input[0])))
        return false;
    cap = g->cap_inputs;
    if (!ch__grow((void **)&g->input_name, &cap, g->n_inputs + 1, sizeof(g->input_name[0])))
        return false;
    g->cap_inputs = cap;
    g->input_name[g->n_inputs] = NULL;
    g->input[g->n_inputs++] = n;
    return true;
}

ch_node *ch__graph_add(ch_graph *g, const ch_op *op, const void *attrs, int n_in,
                       ch_node *const *in, int n_out)
{
    ch_node *n = new_call(g, n_in, n_out > 0 ? n_out : 1);
    void    *own = NULL;

    if (n == NULL || (op == ch__roles.input && !append_input(g, n)))
        return NULL;
    if (op->attrs != NULL) {
        own = ch__attrs_copy(&g->arena, op, attrs);
        if (own == NULL) {
            g->n_inputs -= op == ch__roles.input;
            return NULL;
        }
    }
    for (int i = 0; i < (n_out > 0 ? n_out : 1); i++) {
        n[i].head = n;
        n[i].index = i;
        n[i].id = g->n_values++;
        n[i].graph = g;
    }
    n->op = op;
    n->attrs = own;
    n->work = (op->flags & CH_OP_COLLECTIVE) != 0 ? CH_WORK_REDUCE : CH_WORK_FORWARD;
    n->n_in = n_in;
    n->n_out = n_out;
    for (int i = 0; i < n_in; i++)
        n->in[i] = in[i];
    if (g->last != NULL)
        g->last->next = n;
    else
        g->first = n;
    g->last = n;
    g->n_calls++;
    return n;
}

ch_node *ch__graph_copy_call(ch_graph *g, const ch_node *n, ch_node **map)
{
    ch_node *few[16] = {NULL}, **in = few, *to;

    if (n->n_in > 16 && (in = ch__calloc((size_t)n->n_in, sizeof(*in))) == NULL)
        return NULL;
    for (int i = 0; i < n->n_in; i++)
        in[i] = map[n->in[i]->id];
    to = ch__graph_add(g, n->op, n->attrs, n->n_in, in, n->n_out);
    if (in != few)
        ch__free(in);
    if (to == NULL)
        return NULL;
    ch__call_copy_origin(to, n);
    for (int i = 0; i < n->n_out; i++) {
        to[i].dtype = n[i].dtype;
        to[i].dims = n[i].dims;
        map[n[i].id] = &to[i];
    }
    return to;
}

void ch__call_copy_origin(ch_node *to, const ch_node *n)
{
    to->scope = n->scope;
    to->caller = n->caller;
    to->composite = n->composite;
    to->chosen_device = n->chosen_device;
    to->ordinal = n->ordinal;
    to->work = n->work;
}

ch_status ch__graph_copy_roots(ch_graph *to, const ch_graph *g, ch_node *const *map)
{
    for (int i = 0; i < g->n_inputs; i++) {
        to->input_name[i] = ch__arena_strdup(&to->arena, g->input_name[i]);
        if (g->input_name[i] != NULL && to->input_name[i] == NULL)
            return ch__fail_memory("a program");
    }
    for (int i = 0; i < g->n_outputs; i++) {
        ch_output *o = ch__graph_add_output(to);

        if (o == NULL)
            return ch__fail_memory("a program");
        o->name = ch__arena_strdup(&to->arena, g->output[i].name);
        o->node = map[g->output[i].node->id];
        if (g->output[i].name != NULL && o->name == NULL)
            return ch__fail_memory("a program");
    }
    for (int i = 0; i < g->n_resources; i++) {
        const ch_resource *from = &g->resource[i];
        ch_resource       *r = ch__graph_add_resource(to);

        if (r == NULL || (r->name = ch__arena_strdup(&to->arena, from->name)) == NULL)
            return ch__fail_memory("a program");
        r->dtype = from->dtype;
        r->shape = from->shape;
        r->key = from->key;
        r->is_borrowed = from->is_borrowed;
        r->read = from->read != NULL ? map[from->read->id] : NULL;
        /* A read that no root needs was not copied. Then the resource is only written. */
        r->value = from->value == from->read ? r->read : map[from->value->id];
    }
    return CH_OK;
}

static bool uses_result_of(const ch_node *call, const ch_node *other)
{
    for (int i = 0; i < call->n_in; i++)
        if (call->in[i]->head == other)
            return true;
    return false;
}

void ch__graph_hoist(ch_node *call)
{
    ch_graph *g = call->graph;
    /* `behind`: the last call whose results are used; `before`: the call before `call`. */
    ch_node *behind = NULL, *before = NULL;

    for (ch_node *n = g->first; n != call; n = n->next) {
        behind = uses_result_of(call, n) ? n : behind;
        before = n;
    }
    if (behind == before || behind == NULL || call != g->last)
        return;
    before->next = NULL;
    g->last = before;
    call->next = behind->next;
    behind->next = call;
}

ch_output *ch__graph_add_output(ch_graph *g)
{
    if (!ch__grow((void **)&g->output, &g->cap_outputs, g->n_outputs + 1, sizeof(*g->output)))
        return NULL;
    return memset(&g->output[g->n_outputs++], 0, sizeof(*g->output));
}

ch_resource *ch__graph_add_resource(ch_graph *g)
{
    if (!ch__grow((void **)&g->resource, &g->cap_resources, g->n_resources + 1,
                  sizeof(*g->resource)))
        return NULL;
    return memset(&g->resource[g->n_resources++], 0, sizeof(*g->resource));
}

/* Returns the attribute at a row of kind CH_ATTR_KIND_GRAPH. */
static ch_graph **body_at(const ch_node *call, const ch_attr *row)
{
    return (ch_graph **)(void *)((char *)call->head->attrs + row->offset);
}

int ch__call_bodies(const ch_node *call, ch_graph **body)
{
    int n = 0;

    for (const ch_attr *a = call->op->attrs; a != NULL && a->name != NULL; a++)
        if (a->kind == CH_ATTR_KIND_GRAPH && *body_at(call, a) != NULL && n < CH_MAX_BODIES)
            body[n++] = *body_at(call, a);
    return n;
}

void ch__call_set_bodies(ch_node *call, int n, ch_graph *const *body)
{
    int i = 0;

    for (const ch_attr *a = call->op->attrs; a->name != NULL && i < n; a++) {
        if (a->kind != CH_ATTR_KIND_GRAPH)
            continue;
        ch_graph_unref(*body_at(call, a));
        *body_at(call, a) = ch_graph_ref(body[i++]);
    }
}

unsigned ch__call_effects(const ch_node *call)
{
    const unsigned effects = CH_OP_EFFECT | CH_OP_COLLECTIVE;
    unsigned       has = call->op->flags & effects;
    ch_graph      *body[CH_MAX_BODIES];
    int            n = ch__call_bodies(call, body);

    for (int i = 0; i < n && has != effects; i++)
        for (const ch_node *c = body[i]->first; c != NULL && has != effects; c = ch__next(c))
            has |= ch__call_effects(c);
    return has;
}

static bool body_calls_host(const ch_node *call)
{
    ch_graph *body[CH_MAX_BODIES];
    int       n = ch__call_bodies(call, body);

    for (int i = 0; i < n; i++)
        if (ch__graph_calls_host(body[i]))
            return true;
    return false;
}

bool ch__graph_calls_host(const ch_graph *g)
{
    const unsigned host = CH_OP_HOST | CH_OP_EFFECT;

    for (const ch_node *c = g->first; c != NULL; c = ch__next(c))
        if ((c->op->flags & host) == host || body_calls_host(c))
            return true;
    return false;
}

bool ch__call_is_root(const ch_node *call)
{
    return ch__call_effects(call) != 0;
}

void ch__graph_calls(const ch_graph *g, ch_node **call)
{
    int i = 0;

    for (ch_node *n = g->first; n != NULL; n = n->next)
        call[i++] = n;
}

static void mark_call(const ch_node *call, unsigned char *live)
{
    bool needed = ch__call_is_root(call);

    for (int i = 0; i < call->n_out && !needed; i++)
        needed = live[call[i].id] != 0;
    if (!needed)
        return;
    live[call->id] |= 1; /* the head represents the call */
    for (int i = 0; i < call->n_in; i++)
        live[call->in[i]->id] |= 1;
}

ch_status ch__graph_mark(const ch_graph *g, unsigned char *live)
{
    ch_node **call = ch__calloc((size_t)g->n_calls + 1, sizeof(*call));

    if (call == NULL)
        return ch__fail_memory("a graph");
    ch__graph_calls(g, call);
    for (int i = 0; i < g->n_outputs; i++)
        live[g->output[i].node->id] = 1;
    for (int i = 0; i < g->n_resources; i++)
        if (g->resource[i].value != g->resource[i].read)
            live[g->resource[i].value->id] = 1;
    for (int i = 0; i < g->n_inputs; i++) /* inputs are kept: they are the signature */
        live[g->input[i]->id] = 1;
    for (int i = g->n_calls - 1; i >= 0; i--)
        mark_call(call[i], live);
    ch__free(call);
    return CH_OK;
}

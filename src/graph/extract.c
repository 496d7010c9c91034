/* graph/extract.c -- copies a part of a graph to a graph of its own.
 *
 * The inputs and resources of the part are added first, then its calls in order, then its
 * outputs and writes. If a size changes (a shard), every copied call runs its shape rule again;
 * otherwise dtypes and dims are copied. job/step_plan/ and job/shard.c call ch__graph_extract.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/extract.h"

#include <string.h>

/* The state of a copy. */
typedef struct extraction {
    const ch_graph   *from;
    const ch_extract *e;
    ch_graph         *to;
    ch_node         **map; /* by value id of `from`: the copy; NULL: not copied */
    ch_node         **own; /* by input: its node, if it is for a single use; else NULL */
} extraction;

/* Larger sources are sent as values, because every part that needs one would hold a copy. */
enum { FREE_ELEMENTS = 16 };

bool ch__call_is_copyable(const ch_node *call)
{
    const unsigned not_free = CH_OP_RANDOM | CH_OP_EFFECT | CH_OP_COLLECTIVE | CH_OP_HOST |
                              CH_OP_READS_ENV | CH_OP_VARIES;
    ch_dim all;

    return call->n_in == 0 && call->n_out == 1 && (call->op->flags & not_free) == 0 &&
           call->op != ch__roles.input && call->op != ch__roles.read &&
           ch__dims_product(&call->dims, 0, call->dims.rank, &all) && all.sym == 0 &&
           all.n <= FREE_ELEMENTS;
}

/* ---- inputs and resources ---- */

/* Returns ch_input_attrs.splits_input of flat values in the part. `in` has their attributes in
 * the graph. */
static int64_t find_splits(const extraction *x, const ch_input_attrs *in)
{
    for (int k = 0; k < x->e->n_in; k++)
        if (in->splits_input > 0 && in->splits_input <= x->from->n_inputs &&
            x->e->in[k] == x->from->input[in->splits_input - 1])
            return k + 1;
    return -1;
}

/* Sets a->rows or a->splits_input if n is as long as half of a ragged component that is an
 * input of the graph. Of several components with as many values, the component of n itself is
 * preferred, then a component whose row splits are in the part. */
static void find_half(const extraction *x, const ch_node *n, ch_input_attrs *a)
{
    const ch_graph *from = x->from;
    ch_dim          rows;

    if (ch__splits_rows(n, &rows))
        a->rows = (ch_dims){.rank = 1, .dim = {rows}};
    for (int i = 0; i < from->n_inputs && n->dims.rank > 0 && n->dims.dim[0].sym != 0; i++) {
        const ch_input_attrs *in = ch__attrs(from->input[i]);

        if (in->splits_input != 0 && ch__dim_same(in->dims.dim[0], n->dims.dim[0]) &&
            (a->splits_input <= 0 || n == from->input[i]))
            a->splits_input = find_splits(x, in);
    }
}

static ch_status add_input(extraction *x, int i)
{
    const ch_node *n = x->e->in[i];
    ch_input_attrs a = {.index = i, .dtype = n->dtype, .dims = n->dims};
    ch_node       *to;

    if (x->e->in_dims != NULL)
        a.dims = x->e->in_dims[i];
    else
        find_half(x, n, &a);
    to = ch__graph_add(x->to, ch__roles.input, &a, 0, NULL, 1);
    if (to == NULL)
        return ch__fail_memory("a graph");
    to->dtype = a.dtype;
    to->dims = a.dims;
    if (x->e->use != NULL && x->e->use[i].call != NULL)
        x->own[i] = to;
    else
        x->map[n->id] = to;
    return CH_OK;
}

static ch_status add_resource(extraction *x, int i)
{
    const ch_resource *from = &x->from->resource[x->e->resource[i]];
    ch_resource       *r = ch__graph_add_resource(x->to);
    ch_read_attrs      a = {.resource = i, .dtype = from->dtype};
    ch_node           *read;

    if (r == NULL || (r->name = ch__arena_strdup(&x->to->arena, from->name)) == NULL)
        return ch__fail_memory("a graph");
    r->dtype = from->dtype;
    r->shape = x->e->shape != NULL ? x->e->shape[i] : from->shape;
    if (from->read == NULL)
        return CH_OK;
    a.dims = ch__dims_of(r->shape);
    read = ch__graph_add(x->to, ch__roles.read, &a, 0, NULL, 1);
    if (read == NULL)
        return ch__fail_memory("a graph");
    read->dtype = a.dtype;
    read->dims = a.dims;
    x->to->resource[i].read = x->to->resource[i].value = read;
    x->map[from->read->id] = read;
    return CH_OK;
}

/* ---- calls ---- */

/* Runs the shape rule of a copied call for its new inputs. */
static ch_status infer_again(extraction *x, ch_node *to)
{
    ch_dims   out[CH_MAX_OUT];
    ch_dtype  dtype[CH_MAX_OUT];
    ch_infer  c = {.out = out, .out_dtype = dtype};
    ch_status rc = ch__call_infer(x->to, to->op, to->attrs, to->n_in, to->in, &c);

    if (rc == CH_OK && c.n_out != to->n_out)
        rc = ch__fail(CH_INTERNAL, "%s: %d outputs, but %d were recorded", to->op->name,
                      c.n_out, to->n_out);
    for (int i = 0; i < to->n_out && rc == CH_OK; i++) {
        to[i].dims = out[i];
        to[i].dtype = dtype[i];
    }
    return rc;
}

/* Returns the copy of input k of a call; NULL: it is not in the part. */
static ch_node *find_input(const extraction *x, const ch_node *n, int k)
{
    for (int i = 0; x->e->use != NULL && i < x->e->n_in; i++)
        if (x->e->use[i].call == n && x->e->use[i].k == k)
            return x->own[i];
    return x->map[n->in[k]->id];
}

static ch_status copy_call(extraction *x, const ch_node *n)
{
    ch_node  *few[16], **in = few, *to;
    ch_status rc = CH_OK;

    if (n->n_in > 16 && (in = ch__calloc((size_t)n->n_in, sizeof(*in))) == NULL)
        return ch__fail_memory("a graph");
    for (int i = 0; i < n->n_in && rc == CH_OK; i++)
        if ((in[i] = find_input(x, n, i)) == NULL)
            rc = ch__fail(CH_INTERNAL, "%s of %s uses %s, which is not in the part", x->e->name,
                          x->from->name, n->in[i]->head->op->name);
    to = rc == CH_OK ? ch__graph_add(x->to, n->op, n->attrs, n->n_in, in, n->n_out) : NULL;
    if (in != few)
        ch__free(in);
    if (to == NULL)
        return rc != CH_OK ? rc : ch__fail_memory("a graph");
    to->scope = ch__arena_strdup(&x->to->arena, n->scope);
    to->caller = n->caller;
    to->composite = n->composite;
    to->ordinal = n->ordinal;
    to->work = n->work;
    for (int i = 0; i < n->n_out; i++) {
        to[i].dtype = n[i].dtype;
        to[i].weak = n[i].weak;
        to[i].dims = n[i].dims;
        x->map[n[i].id] = &to[i];
    }
    return x->e->in_dims != NULL || x->e->shape != NULL ? infer_again(x, to) : CH_OK;
}

/* Sets needed[id] for all values that the part uses. */
static void mark_needed(const extraction *x, unsigned char *needed)
{
    const ch_extract *e = x->e;

    for (const ch_node *n = x->from->first; n != NULL; n = n->next)
        for (int i = 0; e->take[n->id] && i < n->n_in; i++)
            needed[n->in[i]->id] = 1;
    for (int i = 0; i < e->n_out; i++)
        needed[e->out[i]->id] = 1;
    for (int i = 0; i < e->n_resources && !e->only_reads; i++)
        needed[x->from->resource[e->resource[i]].value->id] = 1;
}

static ch_status copy_calls(extraction *x)
{
    unsigned char *needed = ch__calloc((size_t)x->from->n_values + 1, 1);
    ch_status      rc = needed == NULL ? ch__fail_memory("a graph") : CH_OK;

    if (rc == CH_OK)
        mark_needed(x, needed);
    for (const ch_node *n = x->from->first; n != NULL && rc == CH_OK; n = n->next) {
        bool take = x->e->take[n->id] || (needed[n->id] && ch__call_is_copyable(n));

        if (take && x->map[n->id] == NULL)
            rc = copy_call(x, n);
    }
    ch__free(needed);
    return rc;
}

/* ---- roots ---- */

/* Sets *out to the copy of n. */
static ch_status find_mapped(const extraction *x, const ch_node *n, ch_node **out)
{
    *out = x->map[n->id];
    return *out != NULL ? CH_OK
                        : ch__fail(CH_INTERNAL, "%s of %s returns %s, which is not in the part",
                                   x->e->name, x->from->name, n->head->op->name);
}

static ch_status set_roots(extraction *x)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < x->e->n_out && rc == CH_OK; i++) {
        ch_output *o = ch__graph_add_output(x->to);

        rc = o == NULL ? ch__fail_memory("a graph") : find_mapped(x, x->e->out[i], &o->node);
    }
    for (int i = 0; i < x->e->n_resources && rc == CH_OK; i++) {
        const ch_resource *r = &x->from->resource[x->e->resource[i]];

        if (r->value != r->read && !x->e->only_reads)
            rc = find_mapped(x, r->value, &x->to->resource[i].value);
    }
    return rc;
}

ch_status ch__graph_extract(const ch_graph *g, const ch_extract *e, ch_graph **out)
{
    extraction x = {.from = g, .e = e};
    ch_status  rc = ch__graph_new(e->name, &x.to);

    if (rc != CH_OK)
        return rc;
    x.to->n_symbols = g->n_symbols;
    x.to->n_ordinals = g->n_ordinals;
    x.map = ch__calloc((size_t)g->n_values + 1, sizeof(*x.map));
    x.own = ch__calloc((size_t)e->n_in + 1, sizeof(*x.own));
    rc = x.map == NULL || x.own == NULL ? ch__fail_memory("a graph") : CH_OK;
    for (int i = 0; i < e->n_in && rc == CH_OK; i++)
        rc = add_input(&x, i);
    for (int i = 0; i < e->n_resources && rc == CH_OK; i++)
        rc = add_resource(&x, i);
    if (rc == CH_OK)
        rc = copy_calls(&x);
    if (rc == CH_OK)
        rc = set_roots(&x);
    ch__free(x.map);
    ch__free(x.own);
    if (rc != CH_OK) {
        ch_graph_unref(x.to);
        return rc;
    }
    *out = x.to;
    return CH_OK;
}

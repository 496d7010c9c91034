/* graph/specialise.c -- copies a graph with symbols to graphs with numbers.
 *
 * graph/prepared.c calls ch__specialise for the input shapes of a run. Replicas with different
 * shapes get different variants, which are copied together, call by call. Symbols in attributes
 * are replaced by their numbers, and the shape rule of the op infers the outputs again. If an
 * output was recorded with a symbol that has no number yet (a gathered axis), the inferred size
 * is the number.
 *
 * Invariants:
 *   1. The inputs of the graph bind all symbols that do not come from a shape rule.
 *   2. The inferred outputs must match the recorded ones; a difference is an error of the
 *      inputs.
 *   3. All variants of a collective are copied before its shape rule runs, because the rule
 *      needs the dims of all replicas.
 *   4. If inputs may have room (graph/room.h), each call on flat values has the input that
 *      counts its live rows, and calls that need filled room read results of fill_room.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "graph/attr.h"
#include "graph/graph.h"
#include "graph/room.h"
#include "tensor/print.h"

/* The copy for a variant, and the numbers of its symbols. */
typedef struct variant {
    ch_graph  *to;
    ch_node  **map;    /* by value id of the source */
    ch_node  **filled; /* by value id of the source: the copy with filled room; NULL: none */
    int64_t   *symbol; /* number of each symbol; -1: not bound yet */
    const int *live_input; /* by symbol: 1 plus the input with room; NULL or 0: none */
    int        n_symbols;
} variant;

/* Replaces the symbols of dims by their numbers. */
static ch_status substitute(const variant *v, ch_dims *d)
{
    for (int i = 0; i < d->rank; i++) {
        int sym = d->dim[i].sym;

        if (sym == 0)
            continue;
        if (sym < 0 || sym > v->n_symbols || v->symbol[sym] < 0)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "a size depends on symbol %d, which no input defines", sym);
        if (!ch__mul_size(d->dim[i].n, v->symbol[sym], &d->dim[i].n))
            return ch__fail(CH_INVALID_ARGUMENT, "a size overflows");
        d->dim[i].sym = 0;
    }
    return CH_OK;
}

/* Binds unbound symbols of the recorded dims to the actual sizes, and checks that all sizes
 * match. */
static ch_status unify(variant *v, const char *what, const ch_dims *recorded,
                       const ch_dims *actual)
{
    bool same = recorded->rank == actual->rank;

    for (int i = 0; i < recorded->rank && same; i++) {
        ch_dim r = recorded->dim[i];

        if (r.sym > 0 && r.sym <= v->n_symbols && v->symbol[r.sym] < 0 && r.n > 0 &&
            actual->dim[i].n % r.n == 0)
            v->symbol[r.sym] = actual->dim[i].n / r.n;
        if (r.sym > 0 && r.sym <= v->n_symbols)
            same = r.n * v->symbol[r.sym] == actual->dim[i].n;
        else
            same = r.n == actual->dim[i].n;
    }
    if (!same) {
        char want[160], have[160];

        ch__dims_print(recorded, want, sizeof(want));
        ch__dims_print(actual, have, sizeof(have));
        return ch__fail(CH_INVALID_ARGUMENT, "%s: recorded as %s, but now %s", what, want,
                        have);
    }
    return CH_OK;
}

static ch_status copy_graph(const ch_graph *g, int n_variants, variant *v,
                            const ch_signature *sig);

/* Copies a body. It uses the symbols of the graph that contains it. */
static ch_status copy_body(const ch_graph *body, const variant *outer, ch_graph **out)
{
    variant   v = {.symbol = outer->symbol, .n_symbols = outer->n_symbols};
    ch_status rc = copy_graph(body, 1, &v, NULL);

    if (rc == CH_OK)
        *out = v.to;
    return rc;
}

/* Replaces symbols and bodies in copied attributes. */
static ch_status specialise_attrs(const ch_op *op, void *attrs, const variant *v)
{
    for (const ch_attr *row = op->attrs; row->name != NULL; row++) {
        void     *at = (char *)attrs + row->offset;
        ch_status rc = CH_OK;

        if (row->kind == CH_ATTR_KIND_DIMS)
            rc = substitute(v, at);
        if (row->kind == CH_ATTR_KIND_GRAPH && *(ch_graph **)at != NULL) {
            ch_graph *body = NULL;

            rc = copy_body(*(ch_graph **)at, v, &body);
            if (rc == CH_OK) {
                ch_graph_unref(*(ch_graph **)at);
                *(ch_graph **)at = body;
            }
        }
        if (rc != CH_OK)
            return rc;
    }
    return CH_OK;
}

/* Returns 1 plus the input with room whose length is the symbol of axis 0; 0: none. */
static int live_input_of(const variant *v, const ch_dims *d)
{
    return v->live_input != NULL && d->rank > 0 ? v->live_input[d->dim[0].sym] : 0;
}

/* Sets the members of a copied call that count its live rows. */
static void set_live(const variant *v, const ch_node *n, ch_node *to)
{
    int            counted = n->op->room_counted - 1;
    const ch_dims *d = counted >= 0 ? &n->in[counted]->dims : &n->dims;

    for (int i = 0; i < n->n_in && counted < 0 && live_input_of(v, d) == 0; i++)
        d = &n->in[i]->dims;
    to->live_input = live_input_of(v, d);
    to->live_each = to->live_input != 0 ? d->dim[0].n : 0;
}

/* Replaces *in, the copy of input i of n, by a copy with filled room, if n needs it. */
static ch_status fill_input(const ch_node *n, int i, variant *v, ch_node **in)
{
    const ch_node *x = n->in[i];
    ch_fill_attrs  a = {.value = n->op->room_fill};
    ch_node       *to;

    if (v->filled == NULL || live_input_of(v, &x->dims) == 0 ||
        ch__room_use(n->graph, n, i) != CH_ROOM_FILLED)
        return CH_OK;
    to = v->filled[x->id];
    if (to == NULL || ((const ch_fill_attrs *)ch__attrs(to))->value != a.value) {
        to = ch__graph_add(v->to, ch__roles.fill_room, &a, 1, in, 1);
        if (to == NULL)
            return ch__fail_memory("a program");
        to->dtype = (*in)->dtype;
        to->dims = (*in)->dims;
        to->scope = n->scope;
        to->caller = n->caller;
        to->composite = n->composite;
        to->live_input = live_input_of(v, &x->dims);
        to->live_each = x->dims.dim[0].n;
        v->filled[x->id] = to;
    }
    *in = to;
    return CH_OK;
}

static ch_status copy_call(const ch_node *n, variant *v, ch_node **out)
{
    ch_node  *few[16] = {NULL}, **in = few, *to;
    ch_status rc = CH_OK;

    if (n->n_in > 16 && (in = ch__calloc((size_t)n->n_in, sizeof(*in))) == NULL)
        return ch__fail_memory("a program");
    for (int i = 0; i < n->n_in && rc == CH_OK; i++) {
        in[i] = v->map[n->in[i]->id];
        rc = fill_input(n, i, v, &in[i]);
    }
    to = rc == CH_OK ? ch__graph_add(v->to, n->op, n->attrs, n->n_in, in, n->n_out) : NULL;
    if (in != few)
        ch__free(in);
    if (to == NULL)
        return rc != CH_OK ? rc : ch__fail_memory("a program");
    set_live(v, n, to);
    ch__call_copy_origin(to, n);
    for (int i = 0; i < n->n_out; i++)
        v->map[n[i].id] = &to[i];
    *out = to;
    return n->op->attrs != NULL ? specialise_attrs(n->op, to->attrs, v) : CH_OK;
}

/* Infers the outputs of the copied call `to`. */
static ch_status infer_call(const ch_node *n, ch_node *to, variant *v, ch_infer *c)
{
    ch_dims   out[CH_MAX_OUT];
    ch_dtype  dtype[CH_MAX_OUT];
    ch_status rc;

    c->out = out;
    c->out_dtype = dtype;
    rc = ch__call_infer(v->to, n->op, to->attrs, to->n_in, to->in, c);
    if (rc != CH_OK)
        return ch__fail_in_call(rc, n);
    if (c->n_out != n->n_out)
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s: %d outputs, but %d were recorded", n->op->name,
                      c->n_out, n->n_out);
    for (int i = 0; i < n->n_out && rc == CH_OK; i++) {
        rc = unify(v, n->op->name, &n[i].dims, &out[i]);
        to[i].dims = out[i];
        to[i].dtype = dtype[i];
    }
    return rc == CH_OK ? CH_OK : ch__fail_in_call(rc, n);
}

/* Sets c->peer to the dims of the inputs of a call on all replicas, for the shape rule of a
 * collective. The caller must free *memory. */
static ch_status collect_peers(const ch_signature *sig, ch_node *const *to, ch_infer *c,
                               void **memory)
{
    int             n_in = to[0]->n_in, n = sig->n_replicas;
    const ch_dims **peer =
        ch__calloc(1, (size_t)n * (sizeof(*peer) + (size_t)n_in * sizeof(ch_dims)));
    ch_dims *dims = (ch_dims *)(void *)(peer + n);

    if (peer == NULL)
        return ch__fail_memory("a program");
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < n_in; i++)
            dims[r * n_in + i] = to[sig->variant[r]]->in[i]->dims;
        peer[r] = &dims[r * n_in];
    }
    c->n_peers = n;
    c->peer = peer;
    *memory = peer;
    return CH_OK;
}

/* Replaces the outputs of a collective by its inputs, for a single replica. */
static ch_status pass_through(const ch_node *n, variant *v)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < n->n_out && rc == CH_OK; i++) {
        v->map[n[i].id] = v->map[n->in[i]->id];
        rc = unify(v, n->op->name, &n[i].dims, &v->map[n[i].id]->dims);
    }
    return rc == CH_OK ? CH_OK : ch__fail_in_call(rc, n);
}

/* Copies a call for all variants, and infers its outputs. sig is NULL in a body. */
static ch_status copy_variants(const ch_node *n, int n_variants, variant *v,
                               const ch_signature *sig, ch_node **to)
{
    ch_infer  c = {0};
    void     *memory = NULL;
    ch_status rc = CH_OK;

    if ((n->op->flags & CH_OP_ALONE_IS_INPUT) != 0 && sig != NULL && sig->n_replicas == 1)
        return pass_through(n, v);
    for (int i = 0; i < n_variants && rc == CH_OK; i++)
        rc = copy_call(n, &v[i], &to[i]);
    if (rc == CH_OK && sig != NULL && (n->op->flags & CH_OP_COLLECTIVE) != 0)
        rc = collect_peers(sig, to, &c, &memory);
    for (int i = 0; i < n_variants && rc == CH_OK; i++) {
        ch_infer each = c;

        rc = infer_call(n, to[i], &v[i], &each);
    }
    ch__free(memory);
    return rc;
}

static bool has_symbol(const ch_dims *d, int sym)
{
    for (int i = 0; i < d->rank; i++)
        if (d->dim[i].sym == sym)
            return true;
    return false;
}

/* Returns true if the call defines a symbol. Only its shape rule can give the number of the
 * symbol, so the call is copied even if no root needs it. A later pass removes it. */
static bool makes_symbol(const ch_node *n)
{
    for (int k = 0; k < n->n_out; k++)
        for (int i = 0; i < n[k].dims.rank; i++) {
            int  sym = n[k].dims.dim[i].sym;
            bool old = sym == 0;

            for (int j = 0; j < n->n_in && !old; j++)
                old = has_symbol(&n->in[j]->dims, sym);
            if (!old)
                return true;
        }
    return false;
}

/* Copies the live calls of g for all variants. The symbols of v must be bound to the inputs. */
static ch_status copy_graph(const ch_graph *g, int n_variants, variant *v,
                            const ch_signature *sig)
{
    unsigned char *live = ch__calloc((size_t)g->n_values + 1, 1);
    ch_node      **to = ch__calloc((size_t)n_variants, sizeof(*to));
    ch_status      rc = live == NULL || to == NULL ? ch__fail_memory("a program") : CH_OK;

    for (int i = 0; i < n_variants && rc == CH_OK; i++) {
        rc = ch__graph_new(g->name, &v[i].to);
        if (rc != CH_OK)
            break;
        v[i].to->is_concrete = true;
        v[i].map = ch__calloc((size_t)g->n_values + 1, sizeof(*v[i].map));
        if (v[i].live_input != NULL)
            v[i].filled = ch__calloc((size_t)g->n_values + 1, sizeof(*v[i].filled));
        if (v[i].map == NULL || (v[i].live_input != NULL && v[i].filled == NULL))
            rc = ch__fail_memory("a program");
    }
    for (const ch_node *n = g->first; n != NULL && rc == CH_OK; n = n->next)
        live[n->id] = n->n_in > 0 && makes_symbol(n);
    if (rc == CH_OK)
        rc = ch__graph_mark(g, live);
    for (const ch_node *n = g->first; n != NULL && rc == CH_OK; n = n->next)
        if (live[n->id])
            rc = copy_variants(n, n_variants, v, sig, to);
    for (int i = 0; i < n_variants && rc == CH_OK; i++)
        rc = ch__graph_copy_roots(v[i].to, g, v[i].map);
    for (int i = 0; i < n_variants; i++) {
        ch__free(v[i].map);
        ch__free(v[i].filled);
        v[i].map = v[i].filled = NULL;
        if (rc != CH_OK) {
            ch_graph_unref(v[i].to);
            v[i].to = NULL;
        }
    }
    ch__free(to);
    ch__free(live);
    return rc;
}

/* Returns "input 1 (labels)" for messages, in a ring of two buffers of this thread. */
static const char *input_text(const ch_graph *g, int i)
{
    static _Thread_local char ring[2][96];
    static _Thread_local int  next;
    char                     *text = ring[next++ & 1];
    const char               *name = g->input_name[i];

    snprintf(text, sizeof(ring[0]), "input %d%s%s%s", i, name != NULL ? " (" : "",
             name != NULL ? name : "", name != NULL ? ")" : "");
    return text;
}

/* Returns the rows that an input was recorded with: those of row splits, or axis 0. */
static const ch_dims *recorded_rows(const ch_graph *g, int i)
{
    const ch_input_attrs *a = ch__attrs(g->input[i]);

    return a->rows.rank == 1 ? &a->rows : &a->dims;
}

static int64_t rows_of(const ch_graph *g, int i, const ch_shape *shape)
{
    const ch_input_attrs *a = ch__attrs(g->input[i]);

    return shape[i].dim[0] - (a->rows.rank == 1);
}

/* Returns true if only the number of rows of input i differs from the recording, where it was
 * equal to that of the earlier input *other. */
static bool has_other_rows(const ch_graph *g, int i, const ch_dims *actual, int *other)
{
    const ch_dims *recorded = recorded_rows(g, i);
    int            sym = recorded->rank > 0 ? recorded->dim[0].sym : 0;

    if (sym == 0 || recorded->rank != actual->rank)
        return false;
    for (int k = 1; k < actual->rank; k++)
        if (!ch__dim_same(recorded->dim[k], actual->dim[k]))
            return false;
    for (*other = 0; *other < i; ++*other)
        if (has_symbol(recorded_rows(g, *other), sym))
            return true;
    return false;
}

/* Binds the symbol of the number of rows of row splits: their length minus 1. */
static ch_status bind_rows(const ch_graph *g, int i, variant *v, const ch_shape *shape)
{
    const ch_input_attrs *a = ch__attrs(g->input[i]);
    ch_dims               actual = {.rank = 1, .dim = {ch__dim(shape[i].dim[0] - 1)}};

    if (a->rows.rank != 1)
        return CH_OK;
    if (shape[i].dim[0] < 1)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: there are no row splits; want one more than the number of rows",
                        input_text(g, i));
    return unify(v, input_text(g, i), &a->rows, &actual);
}

static ch_status bind_inputs(const ch_graph *g, variant *v, const ch_shape *shape)
{
    for (int i = 0; i < g->n_inputs; i++) {
        ch_dims   actual = ch__dims_of(shape[i]);
        ch_status rc = unify(v, input_text(g, i), &g->input[i]->dims, &actual);
        int       other;

        if (rc == CH_OK)
            rc = bind_rows(g, i, v, shape);
        if (rc != CH_OK && has_other_rows(g, i, &actual, &other))
            return ch__fail(CH_INVALID_ARGUMENT,
                            "%s has %lld rows and %s %lld; when the step was recorded, both "
                            "had the same number of rows. Give the same number, or record the "
                            "step with inputs that differ",
                            input_text(g, i), (long long)rows_of(g, i, shape),
                            input_text(g, other), (long long)rows_of(g, other, shape));
        if (rc != CH_OK)
            return rc;
    }
    return CH_OK;
}

/* Sets *out to an array by symbol: 1 plus the input with room that has this length, or 0. NULL
 * if no input has room. The caller must free it. */
static ch_status find_live_inputs(const ch_graph *g, const bool *may_have_room, int **out)
{
    *out = NULL;
    for (int i = 0; i < g->n_inputs && may_have_room != NULL; i++) {
        if (!may_have_room[i])
            continue;
        if (*out == NULL && (*out = ch__calloc((size_t)g->n_symbols + 1, sizeof(int))) == NULL)
            return ch__fail_memory("a program");
        (*out)[g->input[i]->dims.dim[0].sym] = i + 1;
    }
    return CH_OK;
}

ch_status ch__specialise(const ch_graph *g, const ch_signature *sig, ch_graph **out)
{
    variant  *v = ch__calloc((size_t)sig->n_variants, sizeof(*v));
    int      *live_input = NULL;
    ch_status rc = v == NULL ? ch__fail_memory("a program")
                             : find_live_inputs(g, sig->may_have_room, &live_input);

    for (int i = 0; i < sig->n_variants && rc == CH_OK; i++) {
        v[i].n_symbols = g->n_symbols;
        v[i].live_input = live_input;
        v[i].symbol = ch__malloc(((size_t)g->n_symbols + 1) * sizeof(int64_t));
        if (v[i].symbol == NULL) {
            rc = ch__fail_memory("a program");
            break;
        }
        for (int k = 0; k <= g->n_symbols; k++)
            v[i].symbol[k] = -1;
        rc = bind_inputs(g, &v[i], sig->shape[i]);
    }
    if (rc == CH_OK)
        rc = copy_graph(g, sig->n_variants, v, sig);
    for (int i = 0; v != NULL && i < sig->n_variants; i++) {
        ch__free(v[i].symbol);
        if (rc == CH_OK)
            out[i] = v[i].to;
    }
    ch__free(v);
    ch__free(live_input);
    return rc;
}

/* fuzz/decode/grow.c -- adds calls to a graph, with any attributes that a shape rule accepts.
 *
 * grow() decodes a graph, or begins a new graph, and adds up to four calls. For each call it
 * picks a random op, inputs and attributes, until the shape rule of the op accepts them. The
 * struct `grower` holds the state. A body of a call is a graph that grows in the same way.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "cohort/logical.h"
#include "cohort/table.h"
#include "decode/decode.h"
#include "graph/attr.h"

enum { MOST_IN = 8, MOST_DEPTH = 2, LARGE_BYTES = 1500 };

typedef struct grower {
    dice     *d;
    ch_graph *g;
    int       depth; /* depth of nested bodies */
    int       n_in;  /* inputs of the call that is being made */
    ch_node  *in[MOST_IN];
} grower;

static ch_status grow_calls(grower *w, uint64_t n);

/* Returns a random value. Later values are more likely. */
static ch_node *some_value(grower *w)
{
    uint64_t at, n = 0;

    for (ch_node *c = w->g->first; c != NULL; c = c->next)
        n += (uint64_t)c->n_out;
    if (n == 0)
        return NULL;
    at = roll(w->d, 2) == 0 || n < 8 ? roll(w->d, n) : n - 1 - roll(w->d, 8);
    for (ch_node *c = w->g->first; c != NULL; at -= (uint64_t)c->n_out, c = c->next)
        if (at < (uint64_t)c->n_out)
            return &c[at];
    return NULL;
}

/* ---- attributes ---- */

static ch_dims some_dims(grower *w)
{
    const ch_node *like = some_value(w);
    ch_dims        dims = {0};

    if (like != NULL && roll(w->d, 2) == 0)
        dims = like->dims;
    else
        dims.rank = (int)roll(w->d, 5);
    for (int i = 0; i < dims.rank; i++)
        if (dims.dim[i].n == 0 || roll(w->d, 8) == 0)
            dims.dim[i] = ch__dim(some_integer(w->d) & INT64_MAX);
    return dims;
}

static ch_ints some_ints(grower *w)
{
    ch_ints v = {.n = (int)roll(w->d, roll(w->d, 8) == 0 ? CH_MAX_INTS + 1 : 5)};

    for (int i = 0; i < v.n; i++)
        v.at[i] = roll(w->d, 3) > 0 ? (int64_t)roll(w->d, (uint64_t)v.n) : some_integer(w->d);
    return v;
}

static ch_tensor *some_tensor(grower *w)
{
    ch_dtype   dtype = (ch_dtype)roll(w->d, CH_STR);
    ch_shape   shape = {.rank = (int)roll(w->d, 4)};
    ch_tensor *t = NULL;

    for (int i = 0; i < shape.rank; i++)
        shape.dim[i] = (int64_t)roll(w->d, 4);
    if (ch_tensor_new(dtype, shape, &t) != CH_OK)
        return NULL;
    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        ch__store(dtype, t->data + (size_t)i * ch_dtype_bytes(dtype), some_number(w->d));
    return t;
}

/* Returns a table with a few keys, ids or words, all of which map to zero. */
static ch_table *some_table(grower *w)
{
    static const ch_str word[] = {{"", 0}, {"x", 1}, {"word", 4}, {"words and words", 15}};
    const int64_t       n = (int64_t)roll(w->d, 5);
    ch_tensor          *keys = NULL, *values = NULL;
    ch_table           *t = NULL;
    int64_t             id[4];

    for (int i = 0; i < 4; i++)
        id[i] = roll(w->d, 2) == 0 ? i - 1 : some_integer(w->d);
    if (ch_tensor_new((ch_dtype)roll(w->d, CH_STR), ch_shape_of(n), &values) == CH_OK &&
        (roll(w->d, 2) == 0 ? ch_tensor_copy_of(CH_I64, ch_shape_of(n), id, &keys)
                            : ch_tensor_copy_of(CH_STR, ch_shape_of(n), word, &keys)) == CH_OK)
        (void)(ch_table_new(keys, values, 1, &t) == CH_OK);
    ch_tensor_unref(keys);
    ch_tensor_unref(values);
    return t;
}

static ch_node *add_input(ch_graph *g, ch_dtype dtype, const ch_dims *dims)
{
    ch_input_attrs a = {.index = g->n_inputs, .dtype = dtype, .dims = *dims};
    ch_node       *n = ch__graph_add(g, ch__roles.input, &a, 0, NULL, 1);

    n->dtype = dtype;
    n->dims = *dims;
    return n;
}

/* Returns a body whose inputs are those of the call, with or without the first. */
static ch_graph *some_body(grower *w)
{
    grower   inner = {.d = w->d, .depth = w->depth + 1};
    uint64_t n_out = roll(w->d, 3) + (roll(w->d, 2) == 0 ? 0 : (uint64_t)w->n_in);

    if (w->depth == MOST_DEPTH || ch__graph_new("body", &inner.g) != CH_OK)
        return NULL;
    inner.g->outer = w->g;
    for (int i = (int)roll(w->d, 2); i < w->n_in; i++)
        add_input(inner.g, w->in[i]->dtype, &w->in[i]->dims);
    (void)(grow_calls(&inner, roll(w->d, 3)) == CH_OK);
    for (uint64_t i = 0; i < n_out && inner.g->first != NULL; i++) {
        ch_output *o = ch__graph_add_output(inner.g);

        o->node = i < (uint64_t)inner.g->n_inputs && roll(w->d, 2) == 0 ? inner.g->input[i]
                                                                        : some_value(&inner);
    }
    inner.g->outer = NULL;
    return inner.g;
}

static void fill_row(grower *w, const ch_attr *row, void *at)
{
    static const char *const texts[] = {NULL, "", "SAME", "VALID", "x", "%s%n"};

    if (roll(w->d, 4) == 0 && row->kind != CH_ATTR_KIND_GRAPH)
        return; /* zero */
    switch (row->kind) {
    case CH_ATTR_KIND_BOOL:
        *(bool *)at = roll(w->d, 2) == 0;
        break;
    case CH_ATTR_KIND_INT:
        *(int64_t *)at = some_integer(w->d);
        break;
    case CH_ATTR_KIND_FLOAT:
        *(double *)at = some_number(w->d);
        break;
    case CH_ATTR_KIND_DTYPE:
        *(ch_dtype *)at = (ch_dtype)roll(w->d, CH_DTYPE_COUNT);
        break;
    case CH_ATTR_KIND_INTS:
        *(ch_ints *)at = some_ints(w);
        break;
    case CH_ATTR_KIND_DIMS:
        *(ch_dims *)at = some_dims(w);
        break;
    case CH_ATTR_KIND_TEXT:
        *(const char **)at = texts[roll(w->d, sizeof(texts) / sizeof(texts[0]))];
        break;
    case CH_ATTR_KIND_TENSOR:
        *(ch_tensor **)at = some_tensor(w);
        break;
    case CH_ATTR_KIND_TABLE:
        *(ch_table **)at = some_table(w);
        break;
    case CH_ATTR_KIND_GRAPH:
        *(ch_graph **)at = some_body(w);
        break;
    case CH_ATTR_KIND_HOST:
        break;
    }
}

/* ---- calls ---- */

static const ch_op *some_op(dice *d)
{
    const ch_op *const *table = ch__op_table();
    size_t              n = 0;

    while (table[n] != NULL)
        n++;
    for (;;) {
        const ch_op *op = table[roll(d, n)];
        bool         is_host = (op->flags & CH_OP_HOST) != 0;

        for (const ch_attr *row = op->attrs; row != NULL && row->name != NULL; row++)
            is_host |= row->kind == CH_ATTR_KIND_HOST;
        if (!is_host)
            return op;
    }
}

/* Sets the index of an op that reads an input or a variable. */
static bool settle_source(grower *w, const ch_op *op, void *attrs)
{
    if (op == ch__roles.input) {
        ch_input_attrs *a = attrs;

        a->index = w->g->n_inputs;
        for (int i = 0; i < a->dims.rank && w->depth == 0; i++)
            if (roll(w->d, 2) == 0 && a->dims.dim[i].sym == 0 && w->g->n_symbols < 6)
                a->dims.dim[i] = (ch_dim){(int64_t)roll(w->d, 3) + 1, ++w->g->n_symbols};
        return true;
    }
    if (op == ch__roles.read) {
        ch_read_attrs *a = attrs;
        ch_resource   *r;
        char           name[16];
        int64_t        count, bytes;

        for (int i = 0; i < a->dims.rank; i++)
            a->dims.dim[i].sym = 0;
        a->resource = w->g->n_resources;
        if (w->depth > 0 || a->dtype == CH_STR ||
            ch__tensor_size(a->dtype, ch__dims_shape(&a->dims), &count, &bytes) != CH_OK)
            return false;
        r = ch__graph_add_resource(w->g);
        snprintf(name, sizeof(name), "v%d", w->g->n_resources);
        r->name = ch__arena_strdup(&w->g->arena, name);
        r->dtype = a->dtype;
        r->shape = ch__dims_shape(&a->dims);
    }
    return true;
}

static bool is_allowed(const ch_infer *c)
{
    for (int i = 0; i < c->n_out; i++)
        if (c->out_dtype[i] == CH_STR && c->op != ch__roles.input)
            return false;
    return true;
}

static bool try_call(grower *w, const ch_op *op, void *attrs)
{
    ch_dims   dims[CH_MAX_OUT];
    ch_dtype  dtype[CH_MAX_OUT];
    ch_infer  c = {.out = dims, .out_dtype = dtype};
    ch_graph *root = ch__graph_root(w->g);
    int       n_symbols = root->n_symbols;
    ch_node  *n;

    if (ch__call_infer(w->g, op, attrs, w->n_in, w->in, &c) != CH_OK || !is_allowed(&c)) {
        root->n_symbols = n_symbols;
        return false;
    }
    n = ch__graph_add(w->g, op, attrs, w->n_in, w->in, c.n_out);
    n->ordinal = w->g->n_ordinals++;
    n->chosen_device = roll(w->d, 4) == 0 ? (int)roll(w->d, CH_LOGICAL_DEVICES_MAX + 1) : 0;
    for (int i = 0; i < c.n_out; i++) {
        n[i].dims = dims[i];
        n[i].dtype = dtype[i];
    }
    if (op == ch__roles.read) {
        ch_resource *r = &w->g->resource[w->g->n_resources - 1];

        r->read = r->value = n;
    }
    return true;
}

static bool grow_call(grower *w)
{
    const ch_op *op = some_op(w->d);
    void        *attrs = calloc(1, op->attrs_bytes + 1);
    bool         ok = true;

    w->n_in = op->n_in >= 0 ? op->n_in : (int)roll(w->d, 4);
    for (int i = 0; i < w->n_in && ok; i++) {
        w->in[i] = i > 0 && roll(w->d, 4) == 0 ? w->in[i - 1] : some_value(w);
        ok = w->in[i] != NULL;
    }
    for (const ch_attr *row = op->attrs; ok && row != NULL && row->name != NULL; row++)
        fill_row(w, row, (char *)attrs + row->offset);
    ok = ok && settle_source(w, op, attrs) && try_call(w, op, attrs);
    if (op->attrs != NULL)
        ch__attrs_drop(op, attrs);
    free(attrs);
    return ok;
}

static ch_status grow_calls(grower *w, uint64_t n)
{
    for (int tries = 0; n > 0 && tries < 64; tries++)
        n -= grow_call(w);
    return CH_OK;
}

/* Makes a random value an output, and the new value of each variable that it fits. */
static void grow_roots(grower *w)
{
    ch_node *n = some_value(w);

    if (n == NULL)
        return;
    if (w->g->n_outputs < 4)
        ch__graph_add_output(w->g)->node = n;
    else
        w->g->output[roll(w->d, (uint64_t)w->g->n_outputs)].node = n;
    for (int i = 0; i < w->g->n_resources; i++) {
        ch_resource *r = &w->g->resource[i];
        ch_dims      dims = ch__dims_of(r->shape);

        if (n->dtype == r->dtype && ch__dims_same(&n->dims, &dims))
            r->value = n;
    }
}

static ch_graph *begin(dice *d)
{
    ch_graph *g = NULL;
    ch_dims   dims = {2, {{1, 1}, {4, 0}}};

    if (ch__graph_new("f", &g) != CH_OK)
        return NULL;
    g->n_symbols = 1;
    add_input(g, (ch_dtype)roll(d, CH_BOOL + 1), &dims);
    return g;
}

size_t grow(dice *d, uint8_t *data, size_t size, size_t max_size)
{
    grower w = {.d = d};
    void  *bytes = NULL;
    size_t n = 0;

    /* Most bugs need few calls, and small graphs are fast, so large graphs are often
     * replaced. */
    if (roll(d, LARGE_BYTES) < size || ch_graph_decode(data, size, &w.g) != CH_OK)
        w.g = begin(d);
    if (w.g == NULL)
        return 0;
    if (grow_calls(&w, roll(d, 4) + 1) == CH_OK)
        grow_roots(&w);
    if (ch_graph_encode(w.g, &bytes, &n) != CH_OK || n > max_size)
        n = 0;
    if (n > 0)
        memcpy(data, bytes, n);
    ch_bytes_free(bytes);
    ch_graph_unref(w.g);
    return n;
}

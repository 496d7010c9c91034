/* graph/decode.c -- a graph from a message that came from anywhere (proto/graph.proto).
 *
 * Nothing in the message is trusted. What keeps a hostile one harmless:
 *   1. Memory: what the message unpacks to, the graph and its tensors are counted together, and
 *      may take CH_CODEC_MEMORY and twice the message. Calls are unpacked one at a time, and
 *      what has been read is let go at once.
 *   2. Depth: a body is bytes inside its call. So protobuf-c never recurses on input, and
 *      this file does so CH_CODEC_MAX_DEPTH times at most.
 *   3. Order: a call's inputs are values that were made before it. So there are no cycles.
 *   4. Shapes: every op's own rule works out the outputs again; what the message says of them
 *      must be the same. Symbols are the exception: a rule makes a new one where the message
 *      says which one it was, and that must be one that nobody has used so far.
 *   5. Attributes: only those in the op's rows, of their kinds, within their bounds.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "graph/attr.h"
#include "graph/codec.h"
#include "graph/graph.h"

#if !CH_HAVE_PROTOBUF

ch_status ch_graph_decode(const void *bytes, size_t n, ch_graph **out)
{
    (void)bytes, (void)n, (void)out;
    return ch__fail(CH_UNIMPLEMENTED, "decode: this library was built without protobuf-c");
}

#else

#include "graph/graph.pb-c.h"

enum { NUMBERS = 64 };

/* A symbol that a shape rule has just made, and what it is called in the message. */
typedef struct renamed {
    int made, recorded;
} renamed;

typedef struct decoder {
    ProtobufCAllocator allocator;
    size_t             live, limit; /* bytes: see 1 above */
    bool               is_over;     /* the limit has been hit */
    bool               is_out;      /* so has that of the machine */
    int                depth, n_calls;
    ch_graph          *root;
    unsigned char     *defined; /* by symbol: an input or a call has made it */
    int                n_symbols;
    ch_node          **in; /* of the call at hand */
    int                cap_in;
    ch_dims            dims[CH_MAX_OUT]; /* of its outputs, as worked out */
    ch_dtype           dtype[CH_MAX_OUT];
    renamed            fresh[CH_MAX_OUT * CH_MAX_RANK];
    int                n_fresh;
    ch_tensor *number[NUMBERS]; /* by hash of the bytes: scalars that were read before */
} decoder;

/* One graph of the nest. */
typedef struct level {
    ch_graph *g;
    ch_node **value; /* by number */
    int       n_values, cap_values;
} level;

/* ---- memory ---- */

enum {
    HEADER_BYTES = 16,     /* before each block, for its size; keeps the alignment */
    SLACK_BYTES = 2 << 20, /* for what is not counted: half-filled blocks, growing arrays */
    VALUE_BYTES = 16,      /* of the table of values, for each: it doubles */
    TENSOR_BYTES = 512     /* about what a tensor is without its data */
};

static bool charge(decoder *d, size_t bytes)
{
    if (bytes > d->limit || d->live > d->limit - bytes) {
        d->is_over = true;
        return false;
    }
    d->live += bytes;
    return true;
}

static void *unpack_alloc(void *arg, size_t bytes)
{
    decoder *d = arg;
    char    *p;

    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + HEADER_BYTES + 8 + 15) / 16 * 16; /* as malloc rounds it */
    if (!charge(d, bytes))
        return NULL;
    p = ch__malloc(bytes - 8);
    if (p == NULL) {
        d->live -= bytes;
        d->is_out = true;
        return NULL;
    }
    memcpy(p, &bytes, sizeof(bytes));
    return p + HEADER_BYTES;
}

static void unpack_free(void *arg, void *p)
{
    decoder *d = arg;
    size_t   bytes;

    if (p == NULL)
        return;
    memcpy(&bytes, (char *)p - HEADER_BYTES, sizeof(bytes));
    d->live -= bytes;
    ch__free((char *)p - HEADER_BYTES);
}

static ch_status fail_memory(const decoder *d)
{
    if (!d->is_over)
        return ch__fail_memory("decoding a graph");
    return ch__fail(CH_RESOURCE_EXHAUSTED, "it would take more than %zu bytes of memory",
                    d->limit);
}

/* Lets go of bytes that have been read. */
static void let_go(decoder *d, ProtobufCBinaryData *b)
{
    unpack_free(d, b->data);
    *b = (ProtobufCBinaryData){0};
}

/* ---- names ---- */

/* Text of the message as it may stand in an error: short, and without control characters. */
typedef struct quote {
    char text[48];
} quote;

static quote quoted(const char *s)
{
    quote  q;
    size_t i = 0;

    for (; s[i] != '\0' && i < sizeof(q.text) - 1; i++)
        q.text[i] = (unsigned char)s[i] < ' ' || s[i] == 127 ? '?' : s[i];
    q.text[i] = '\0';
    return q;
}

/* A copy in the graph's arena; NULL for "". */
static ch_status decode_name(decoder *d, ch_graph *g, const char *what, const char *name,
                             const char **out)
{
    *out = NULL;
    if (name[0] == '\0')
        return CH_OK;
    if (strlen(name) > CH_CODEC_MAX_NAME)
        return ch__fail(CH_INVALID_ARGUMENT, "%s \"%s...\" has %zu bytes, more than %d", what,
                        quoted(name).text, strlen(name), CH_CODEC_MAX_NAME);
    *out = ch__arena_strdup(&g->arena, name);
    return *out == NULL ? fail_memory(d) : CH_OK;
}

static ch_status decode_dtype(const char *name, ch_dtype *out)
{
    for (int i = 0; i < CH_DTYPE_COUNT; i++)
        if (strcmp(name, ch_dtype_name((ch_dtype)i)) == 0) {
            *out = (ch_dtype)i;
            return CH_OK;
        }
    return ch__fail(CH_INVALID_ARGUMENT, "\"%s\" is no element type", quoted(name).text);
}

/* ---- sizes ---- */

static ch_status decode_shape(size_t rank, const int64_t *dim, ch_shape *out)
{
    if (rank > CH_MAX_RANK)
        return ch__fail(CH_INVALID_ARGUMENT, "rank %zu, more than %d", rank, CH_MAX_RANK);
    for (size_t i = 0; i < rank; i++)
        if (dim[i] < 0)
            return ch__fail(CH_INVALID_ARGUMENT, "size %lld of axis %zu is negative",
                            (long long)dim[i], i);
    *out = ch_shape_make((int)rank, dim);
    return CH_OK;
}

static ch_status decode_dims(const decoder *d, size_t n_sizes, const int64_t *sizes,
                             size_t n_symbols, const uint32_t *symbols, ch_dims *out)
{
    ch_shape  shape;
    ch_status rc = decode_shape(n_sizes, sizes, &shape);

    if (rc != CH_OK)
        return rc;
    if (n_symbols != 0 && n_symbols != n_sizes)
        return ch__fail(CH_INVALID_ARGUMENT, "%zu sizes and %zu symbols", n_sizes, n_symbols);
    *out = ch__dims_of(shape);
    for (size_t i = 0; i < n_symbols; i++) {
        if (symbols[i] > (uint32_t)d->n_symbols)
            return ch__fail(CH_INVALID_ARGUMENT, "axis %zu has symbol %u of %d", i, symbols[i],
                            d->n_symbols);
        out->dim[i].sym = (int)symbols[i];
    }
    return CH_OK;
}

/* An input of the whole graph may bring symbols; all else uses those that are there. */
static ch_status define_symbols(decoder *d, const ch_op *op, const ch_dims *dims)
{
    for (int i = 0; i < dims->rank; i++) {
        ch_dim x = dims->dim[i];

        if (op == ch__roles.input && d->depth == 0 && x.n > 0)
            d->defined[x.sym] = 1;
        if (x.sym != 0 && !d->defined[x.sym])
            return ch__fail(CH_INVALID_ARGUMENT,
                            "axis %d has symbol %d before anything made it", i, x.sym);
    }
    return CH_OK;
}

/* ---- attributes ---- */

static ch_status decode_ints(const Cohort__Ints *m, ch_ints *out)
{
    if (m->n_at > CH_MAX_INTS)
        return ch__fail(CH_INVALID_ARGUMENT, "%zu numbers, more than %d", m->n_at, CH_MAX_INTS);
    out->n = (int)m->n_at;
    for (int i = 0; i < out->n; i++)
        out->at[i] = m->at[i];
    return CH_OK;
}

static ch_status check_data(ch_dtype dtype, ch_shape shape, const ProtobufCBinaryData *data)
{
    int64_t   count, bytes;
    ch_status rc = ch__tensor_size(dtype, shape, &count, &bytes);

    if (rc != CH_OK)
        return rc;
    if (dtype == CH_STR)
        return ch__fail(CH_INVALID_ARGUMENT, "it holds strings, which no graph may");
    if ((uint64_t)bytes != data->len)
        return ch__fail(CH_INVALID_ARGUMENT, "%zu bytes of data, want %lld", data->len,
                        (long long)bytes);
    for (size_t i = 0; dtype == CH_BOOL && i < data->len; i++)
        if (data->data[i] > 1)
            return ch__fail(CH_INVALID_ARGUMENT, "element %zu is %d, no bool", i,
                            data->data[i]);
    return CH_OK;
}

/* Steps have the same few numbers in many places: equal scalars are one tensor. */
static ch_tensor **number_of(decoder *d, ch_dtype dtype, ch_shape shape,
                             const ProtobufCBinaryData *data)
{
    uint64_t h = (uint64_t)dtype;

    if (shape.rank > 0)
        return NULL;
    for (size_t i = 0; i < data->len; i++)
        h = (h ^ data->data[i]) * 0x100000001b3u;
    return &d->number[(h ^ (h >> 32)) % NUMBERS];
}

static ch_status make_tensor(decoder *d, ch_dtype dtype, ch_shape shape,
                             const ProtobufCBinaryData *data, ch_tensor **out)
{
    ch_tensor **known = number_of(d, dtype, shape, data);
    ch_status   rc;

    if (known != NULL && *known != NULL && (*known)->dtype == dtype &&
        memcmp((*known)->data, data->data, data->len) == 0) {
        *out = ch_tensor_ref(*known);
        return CH_OK;
    }
    if (!charge(d, data->len + TENSOR_BYTES))
        return fail_memory(d);
    rc = ch_tensor_copy_of(dtype, shape, data->data, out);
    if (rc == CH_OK && known != NULL) {
        ch_tensor_unref(*known);
        *known = ch_tensor_ref(*out);
    }
    return rc;
}

static ch_status decode_tensor(decoder *d, Cohort__Tensor *m, ch_tensor **out)
{
    ch_dtype  dtype = CH_F32;
    ch_shape  shape;
    ch_status rc = decode_dtype(m->dtype, &dtype);

    if (rc == CH_OK)
        rc = decode_shape(m->n_shape, m->shape, &shape);
    if (rc == CH_OK)
        rc = check_data(dtype, shape, &m->data);
    if (rc == CH_OK)
        rc = make_tensor(d, dtype, shape, &m->data, out);
    let_go(d, &m->data);
    return rc;
}

static ch_status decode_graph(decoder *d, Cohort__Outline *m, ch_graph *outer, ch_graph **out);

static ch_status fail_unpack(const decoder *d, const char *what, size_t n)
{
    if (d->is_over || d->is_out)
        return fail_memory(d);
    return ch__fail(CH_INVALID_ARGUMENT, "its %zu bytes are not %s", n, what);
}

/* The depth is bounded, so this may recurse. */
static ch_status decode_body(decoder *d, ch_graph *outer, ProtobufCBinaryData *bytes,
                             ch_graph **out)
{
    Cohort__Outline *m;
    ch_status        rc;

    if (d->depth == CH_CODEC_MAX_DEPTH)
        return ch__fail(CH_INVALID_ARGUMENT, "bodies nest deeper than %d", CH_CODEC_MAX_DEPTH);
    m = cohort__outline__unpack(&d->allocator, bytes->len, bytes->data);
    if (m == NULL)
        return fail_unpack(d, "a graph", bytes->len);
    let_go(d, bytes);
    d->depth++;
    rc = decode_graph(d, m, outer, out);
    d->depth--;
    cohort__outline__free_unpacked(m, &d->allocator);
    return rc;
}

static const struct {
    const char *name;
    int         value_case;
} kinds[] = {
    [CH_ATTR_KIND_BOOL] = {"a bool", COHORT__ATTR__VALUE_FLAG},
    [CH_ATTR_KIND_INT] = {"an integer", COHORT__ATTR__VALUE_INTEGER},
    [CH_ATTR_KIND_FLOAT] = {"a number", COHORT__ATTR__VALUE_NUMBER},
    [CH_ATTR_KIND_DTYPE] = {"an element type", COHORT__ATTR__VALUE_DTYPE},
    [CH_ATTR_KIND_INTS] = {"integers", COHORT__ATTR__VALUE_INTS},
    [CH_ATTR_KIND_DIMS] = {"sizes", COHORT__ATTR__VALUE_DIMS},
    [CH_ATTR_KIND_TEXT] = {"text", COHORT__ATTR__VALUE_TEXT},
    [CH_ATTR_KIND_TENSOR] = {"a tensor", COHORT__ATTR__VALUE_TENSOR},
    [CH_ATTR_KIND_GRAPH] = {"a body", COHORT__ATTR__VALUE_BODY},
    [CH_ATTR_KIND_HOST] = {"something of one process", -1},
};

/* Into the op's own struct. Text stays in the message; tensors and bodies are the struct's. */
static ch_status decode_value(decoder *d, ch_graph *g, const ch_op *op, const ch_attr *row,
                              Cohort__Attr *m, void *at)
{
    ch_status rc;

    if ((int)m->value_case != kinds[row->kind].value_case)
        return ch__fail(CH_INVALID_ARGUMENT, "it is not %s", kinds[row->kind].name);
    switch (row->kind) {
    case CH_ATTR_KIND_BOOL:
        *(bool *)at = m->flag != 0;
        return CH_OK;
    case CH_ATTR_KIND_INT:
        *(int64_t *)at = m->integer;
        return CH_OK;
    case CH_ATTR_KIND_FLOAT:
        *(double *)at = m->number;
        return CH_OK;
    case CH_ATTR_KIND_DTYPE:
        return decode_dtype(m->dtype, at);
    case CH_ATTR_KIND_INTS:
        return decode_ints(m->ints, at);
    case CH_ATTR_KIND_DIMS:
        rc = decode_dims(d, m->dims->n_sizes, m->dims->sizes, m->dims->n_symbols,
                         m->dims->symbols, at);
        return rc == CH_OK ? define_symbols(d, op, at) : rc;
    case CH_ATTR_KIND_TEXT:
        *(const char **)at = m->text;
        if (strlen(m->text) <= CH_CODEC_MAX_NAME)
            return CH_OK;
        return ch__fail(CH_INVALID_ARGUMENT, "its text is longer than %d", CH_CODEC_MAX_NAME);
    case CH_ATTR_KIND_TENSOR:
        return decode_tensor(d, m->tensor, at);
    case CH_ATTR_KIND_GRAPH:
        return decode_body(d, g, &m->body, at);
    case CH_ATTR_KIND_HOST:
        break; /* refused by find_op */
    }
    return CH_OK;
}

static const ch_attr *find_row(const ch_op *op, const char *name)
{
    if (op->attrs != NULL)
        for (const ch_attr *row = op->attrs; row->name != NULL; row++)
            if (strcmp(row->name, name) == 0)
                return row;
    return NULL;
}

static bool has_attr(const Cohort__Call *m, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(m->attrs[i]->name, name) == 0)
            return true;
    return false;
}

/* What is not mentioned stays zero; only element types must be there. */
static ch_status decode_attrs(decoder *d, ch_graph *g, const ch_op *op, Cohort__Call *m,
                              void *attrs)
{
    for (size_t i = 0; i < m->n_attrs; i++) {
        const char    *name = m->attrs[i]->name;
        const ch_attr *row = find_row(op, name);
        ch_status      rc;

        if (row == NULL)
            return ch__fail(CH_UNIMPLEMENTED, "version %d of it has no attribute \"%s\" here",
                            op->version, quoted(name).text);
        if (has_attr(m, i, name)) /* i is less than the number of rows */
            return ch__fail(CH_INVALID_ARGUMENT, "attribute %s is there twice", name);
        rc = decode_value(d, g, op, row, m->attrs[i], (char *)attrs + row->offset);
        if (rc != CH_OK)
            return ch__fail_at(rc, "attribute %s", name);
    }
    for (const ch_attr *row = op->attrs; row != NULL && row->name != NULL; row++)
        if (row->kind == CH_ATTR_KIND_DTYPE && !has_attr(m, m->n_attrs, row->name))
            return ch__fail(CH_INVALID_ARGUMENT, "attribute %s is missing", row->name);
    return CH_OK;
}

/* ---- calls ---- */

static bool is_host(const ch_op *op)
{
    for (const ch_attr *row = op->attrs; row != NULL && row->name != NULL; row++)
        if (row->kind == CH_ATTR_KIND_HOST)
            return true;
    return (op->flags & CH_OP_HOST) != 0;
}

static ch_status find_op(const Cohort__Call *m, const ch_op **out)
{
    *out = m->version <= INT_MAX ? ch__op_find(m->op, (int)m->version) : NULL;
    if (*out != NULL && is_host(*out))
        return ch__fail(CH_INVALID_ARGUMENT, "it means something in one process only");
    if (*out != NULL)
        return CH_OK;
    for (const ch_op *const *op = ch__op_table(); *op != NULL; op++)
        if (strcmp((*op)->name, m->op) == 0)
            return ch__fail(CH_UNIMPLEMENTED, "version %u of it is not known here, but %d is",
                            m->version, (*op)->version);
    return ch__fail(CH_UNIMPLEMENTED, "there is no such op here");
}

static ch_status decode_inputs(decoder *d, const level *l, const Cohort__Call *m)
{
    if (m->n_inputs > CH_CODEC_MAX_INPUTS)
        return ch__fail(CH_INVALID_ARGUMENT, "%zu inputs, more than %d", m->n_inputs,
                        CH_CODEC_MAX_INPUTS);
    if (!ch__grow((void **)&d->in, &d->cap_in, (int)m->n_inputs + 1, sizeof(d->in[0])))
        return fail_memory(d);
    for (size_t i = 0; i < m->n_inputs; i++) {
        if (m->inputs[i] >= (uint32_t)l->n_values)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "input %zu is value %u, but only %d were made before it", i,
                            m->inputs[i], l->n_values);
        d->in[i] = l->value[m->inputs[i]];
    }
    return CH_OK;
}

/* What the roles demand beyond their shape rules: inputs come in order, and each resource is
 * read once, as what it is. */
static ch_status check_source(const ch_graph *g, const ch_op *op, const void *attrs,
                              size_t n_inputs)
{
    if (op == ch__roles.input) {
        const ch_input_attrs *a = attrs;

        if (a->index != g->n_inputs || (size_t)a->index >= n_inputs)
            return ch__fail(CH_INVALID_ARGUMENT, "it has index %lld, want %d of %zu",
                            (long long)a->index, g->n_inputs, n_inputs);
    } else if (op == ch__roles.read) {
        const ch_read_attrs *a = attrs;
        const ch_resource   *r = NULL;
        ch_dims              dims;

        if (a->resource < 0 || a->resource >= g->n_resources)
            return ch__fail(CH_INVALID_ARGUMENT, "there is no variable %lld of %d",
                            (long long)a->resource, g->n_resources);
        r = &g->resource[a->resource];
        dims = ch__dims_of(r->shape);
        if (r->read != NULL)
            return ch__fail(CH_INVALID_ARGUMENT, "variable %s is read twice",
                            quoted(r->name).text);
        if (a->dtype != r->dtype || !ch__dims_same(&a->dims, &dims))
            return ch__fail(CH_INVALID_ARGUMENT, "variable %s has another type",
                            quoted(r->name).text);
    }
    return CH_OK;
}

/* Sees to it that the new symbol `made` is called `recorded` in all outputs of this call, and
 * that nobody has used that name before. */
static bool rename_symbol(decoder *d, int made, int recorded)
{
    for (int i = 0; i < d->n_fresh; i++)
        if (d->fresh[i].made == made || d->fresh[i].recorded == recorded)
            return d->fresh[i].made == made && d->fresh[i].recorded == recorded;
    if (recorded == 0 || d->defined[recorded])
        return false;
    d->fresh[d->n_fresh++] = (renamed){made, recorded};
    return true;
}

static bool same_dims(decoder *d, const ch_dims *inferred, const ch_dims *recorded)
{
    bool same = inferred->rank == recorded->rank;

    for (int i = 0; same && i < inferred->rank; i++) {
        ch_dim x = inferred->dim[i], y = recorded->dim[i];

        same = x.n == y.n &&
               (x.sym > d->n_symbols ? rename_symbol(d, x.sym, y.sym) : x.sym == y.sym);
    }
    return same;
}

/* Compares output i with what the message says of it, and takes that. */
static ch_status check_output(decoder *d, const Cohort__Value *m, int i)
{
    ch_dtype  dtype = CH_F32;
    ch_dims   dims;
    ch_status rc = decode_dtype(m->dtype, &dtype);

    if (rc == CH_OK)
        rc = decode_dims(d, m->n_sizes, m->sizes, m->n_symbols, m->symbols, &dims);
    if (rc != CH_OK)
        return ch__fail_at(rc, "output %d", i);
    if (dtype == CH_STR)
        return ch__fail(CH_INVALID_ARGUMENT, "output %d holds strings, which no graph may", i);
    if (dtype != d->dtype[i] || !same_dims(d, &d->dims[i], &dims)) {
        char have[160], want[160];

        ch__dims_print(&dims, have, sizeof(have));
        ch__dims_print(&d->dims[i], want, sizeof(want));
        return ch__fail(CH_INVALID_ARGUMENT, "output %d is %s%s in the message, but %s%s", i,
                        ch_dtype_name(dtype), have, ch_dtype_name(d->dtype[i]), want);
    }
    d->dims[i] = dims;
    return CH_OK;
}

/* Asks the op's shape rule, which may make symbols: they get the numbers of the message. */
static ch_status check_outputs(decoder *d, ch_graph *g, const ch_op *op, const void *attrs,
                               const Cohort__Call *m)
{
    ch_infer  c = {.out = d->dims, .out_dtype = d->dtype};
    ch_status rc = ch__call_infer(g, op, attrs, (int)m->n_inputs, d->in, &c);

    d->root->n_symbols = d->n_symbols;
    d->n_fresh = 0;
    if (rc == CH_OK && m->n_outputs != (size_t)c.n_out)
        rc = ch__fail(CH_INVALID_ARGUMENT, "it has %zu outputs in the message, but %d",
                      m->n_outputs, c.n_out);
    for (int i = 0; i < c.n_out && rc == CH_OK; i++)
        rc = check_output(d, m->outputs[i], i);
    for (int i = 0; i < d->n_fresh && rc == CH_OK; i++)
        d->defined[d->fresh[i].recorded] = 1;
    return rc;
}

static ch_status add_call(decoder *d, level *l, const ch_op *op, const void *attrs,
                          const Cohort__Call *m)
{
    ch_graph      *g = l->g;
    size_t         before = g->arena.bytes;
    const ch_node *last = g->last;
    ch_node       *n = ch__graph_add(g, op, attrs, (int)m->n_inputs, d->in, (int)m->n_outputs);
    ch_status      rc = CH_OK;

    if (n == NULL || !ch__grow((void **)&l->value, &l->cap_values, l->n_values + n->n_out,
                               sizeof(l->value[0])))
        return fail_memory(d);
    if (op == ch__roles.read) {
        ch_resource *r = &g->resource[((const ch_read_attrs *)attrs)->resource];

        r->read = r->value = n;
    }
    n->ordinal = (int)m->ordinal;
    if (g->n_ordinals <= n->ordinal)
        g->n_ordinals = n->ordinal + 1;
    for (int i = 0; i < n->n_out; i++) {
        n[i].dtype = d->dtype[i];
        n[i].dims = d->dims[i];
        n[i].weak = m->outputs[i]->weak != 0;
        l->value[l->n_values++] = &n[i];
    }
    if (last != NULL && last->scope != NULL && strcmp(last->scope, m->scope) == 0)
        n->scope = last->scope;
    else
        rc = decode_name(d, g, "scope", m->scope, &n->scope);
    if (rc == CH_OK && !charge(d, g->arena.bytes - before + (size_t)n->n_out * VALUE_BYTES))
        rc = fail_memory(d);
    return rc;
}

static ch_status decode_call(decoder *d, level *l, Cohort__Call *m, size_t n_inputs)
{
    const ch_op *op;
    void        *attrs = NULL;
    ch_status    rc = find_op(m, &op);

    if (rc == CH_OK && m->ordinal >= INT_MAX)
        rc = ch__fail(CH_INVALID_ARGUMENT, "ordinal %u is too large", m->ordinal);
    if (rc == CH_OK && op->attrs != NULL && (attrs = ch__calloc(1, op->attrs_bytes)) == NULL)
        rc = fail_memory(d);
    if (rc != CH_OK)
        return rc;
    rc = decode_attrs(d, l->g, op, m, attrs);
    if (rc == CH_OK)
        rc = check_source(l->g, op, attrs, n_inputs);
    if (rc == CH_OK)
        rc = decode_inputs(d, l, m);
    if (rc == CH_OK)
        rc = check_outputs(d, l->g, op, attrs, m);
    if (rc == CH_OK)
        rc = add_call(d, l, op, attrs, m);
    ch__attrs_drop(op, attrs);
    ch__free(attrs);
    return rc;
}

/* Unpacks one call and lets go of its bytes. */
static ch_status unpack_call(decoder *d, ProtobufCBinaryData *bytes, Cohort__Call **out)
{
    *out = cohort__call__unpack(&d->allocator, bytes->len, bytes->data);
    if (*out == NULL)
        return fail_unpack(d, "a call", bytes->len);
    let_go(d, bytes);
    return CH_OK;
}

static ch_status decode_calls(decoder *d, level *l, Cohort__Outline *m)
{
    if (m->n_calls > (size_t)(CH_CODEC_MAX_CALLS - d->n_calls))
        return ch__fail(CH_INVALID_ARGUMENT, "more than %d calls", CH_CODEC_MAX_CALLS);
    d->n_calls += (int)m->n_calls;
    for (size_t i = 0; i < m->n_calls; i++) {
        Cohort__Call *call = NULL;
        ch_status     rc = unpack_call(d, &m->calls[i], &call);

        if (rc != CH_OK)
            return ch__fail_at(rc, "call %zu", i);
        rc = decode_call(d, l, call, m->n_inputs);
        if (rc != CH_OK)
            rc = ch__fail_at(rc, "call %zu, %s%s%s", i, quoted(call->op).text,
                             call->scope[0] != '\0' ? " in " : "", quoted(call->scope).text);
        cohort__call__free_unpacked(call, &d->allocator);
        if (rc != CH_OK)
            return rc;
    }
    return CH_OK;
}

/* ---- what a graph is for ---- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Two resources of one name would be one piece of memory that is planned as two. */
static ch_status check_unique(decoder *d, const ch_graph *g)
{
    size_t       n = (size_t)g->n_resources;
    const char **name = unpack_alloc(d, (n + 1) * sizeof(*name));
    ch_status    rc = CH_OK;

    if (name == NULL)
        return fail_memory(d);
    for (size_t i = 0; i < n; i++)
        name[i] = g->resource[i].name;
    qsort(name, n, sizeof(*name), compare_names);
    for (size_t i = 1; i < n && rc == CH_OK; i++)
        if (strcmp(name[i - 1], name[i]) == 0)
            rc = ch__fail(CH_INVALID_ARGUMENT, "two variables are called %s",
                          quoted(name[i]).text);
    unpack_free(d, name);
    return rc;
}

static ch_status decode_resource(decoder *d, ch_graph *g, const Cohort__Resource *m)
{
    ch_resource *r = ch__graph_add_resource(g);
    int64_t      count, bytes;
    ch_status    rc;

    if (r == NULL || !charge(d, sizeof(*r) + strlen(m->name)))
        return fail_memory(d);
    if ((rc = decode_name(d, g, "variable", m->name, &r->name)) != CH_OK ||
        (rc = decode_dtype(m->dtype, &r->dtype)) != CH_OK ||
        (rc = decode_shape(m->n_shape, m->shape, &r->shape)) != CH_OK)
        return rc;
    if (r->name == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "it has no name");
    return ch__tensor_size(r->dtype, r->shape, &count, &bytes);
}

static ch_status decode_resources(decoder *d, ch_graph *g, const Cohort__Outline *m)
{
    if (d->depth > 0 && m->n_resources > 0)
        return ch__fail(CH_INVALID_ARGUMENT, "a body has no variables of its own");
    for (size_t i = 0; i < m->n_resources; i++) {
        ch_status rc = decode_resource(d, g, m->resources[i]);

        if (rc != CH_OK)
            return ch__fail_at(rc, "variable %zu, %s", i, quoted(m->resources[i]->name).text);
    }
    return check_unique(d, g);
}

static ch_status decode_input_names(decoder *d, ch_graph *g, const Cohort__Outline *m)
{
    if (m->n_inputs != (size_t)g->n_inputs)
        return ch__fail(CH_INVALID_ARGUMENT, "%zu names of %d inputs", m->n_inputs,
                        g->n_inputs);
    for (int i = 0; i < g->n_inputs; i++) {
        ch_status rc = decode_name(d, g, "input", m->inputs[i]->name, &g->input_name[i]);

        if (rc != CH_OK)
            return rc;
    }
    return CH_OK;
}

static ch_status value_of(const level *l, const char *what, size_t i, uint32_t number,
                          ch_node **out)
{
    if (number >= (uint32_t)l->n_values)
        return ch__fail(CH_INVALID_ARGUMENT, "%s %zu is value %u of %d", what, i, number,
                        l->n_values);
    *out = l->value[number];
    return CH_OK;
}

static ch_status decode_results(decoder *d, const level *l, const Cohort__Outline *m)
{
    for (size_t i = 0; i < m->n_outputs; i++) {
        ch_output *o = ch__graph_add_output(l->g);
        ch_status  rc;

        if (o == NULL || !charge(d, sizeof(*o) + strlen(m->outputs[i]->name)))
            return fail_memory(d);
        rc = value_of(l, "output", i, m->outputs[i]->value, &o->node);
        if (rc == CH_OK)
            rc = decode_name(d, l->g, "output", m->outputs[i]->name, &o->name);
        if (rc != CH_OK)
            return rc;
    }
    return CH_OK;
}

static ch_status decode_write(const level *l, const Cohort__Write *m, size_t i)
{
    ch_resource *r;
    ch_node     *n = NULL;
    ch_dims      dims;
    ch_status    rc = value_of(l, "write", i, m->value, &n);

    if (rc != CH_OK)
        return rc;
    if (m->resource >= (uint32_t)l->g->n_resources)
        return ch__fail(CH_INVALID_ARGUMENT, "write %zu is to variable %u of %d", i,
                        m->resource, l->g->n_resources);
    r = &l->g->resource[m->resource];
    dims = ch__dims_of(r->shape);
    if (r->value != r->read)
        return ch__fail(CH_INVALID_ARGUMENT, "variable %s is written twice",
                        quoted(r->name).text);
    if (n->dtype != r->dtype || !ch__dims_same(&n->dims, &dims))
        return ch__fail(CH_INVALID_ARGUMENT, "what is written to variable %s has another type",
                        quoted(r->name).text);
    r->value = n;
    return CH_OK;
}

static ch_status decode_parts(decoder *d, level *l, Cohort__Outline *m)
{
    ch_status rc;

    if ((rc = decode_resources(d, l->g, m)) != CH_OK || (rc = decode_calls(d, l, m)) != CH_OK ||
        (rc = decode_input_names(d, l->g, m)) != CH_OK ||
        (rc = decode_results(d, l, m)) != CH_OK)
        return rc;
    for (size_t i = 0; i < m->n_writes && rc == CH_OK; i++)
        rc = decode_write(l, m->writes[i], i);
    return rc;
}

static ch_status check_head(const Cohort__Outline *m)
{
    if (m->format == 0)
        return ch__fail(CH_INVALID_ARGUMENT, "it is not an encoded graph");
    if (m->format != CH_CODEC_FORMAT)
        return ch__fail(CH_UNIMPLEMENTED, "it has format %u, and this library reads %d",
                        m->format, CH_CODEC_FORMAT);
    if (m->symbols > CH_CODEC_MAX_SYMBOLS)
        return ch__fail(CH_INVALID_ARGUMENT, "%u symbols, more than %d", m->symbols,
                        CH_CODEC_MAX_SYMBOLS);
    if (strlen(m->name) > CH_CODEC_MAX_NAME)
        return ch__fail(CH_INVALID_ARGUMENT, "its name is longer than %d bytes",
                        CH_CODEC_MAX_NAME);
    return CH_OK;
}

/* The first graph is the root: it owns the symbols. */
static ch_status decode_symbols(decoder *d, ch_graph *g, const Cohort__Outline *m)
{
    if (d->depth > 0)
        return m->symbols == 0
                   ? CH_OK
                   : ch__fail(CH_INVALID_ARGUMENT, "a body has no symbols of its own");
    d->root = g;
    d->n_symbols = g->n_symbols = (int)m->symbols;
    d->defined = ch__calloc((size_t)d->n_symbols + 1, 1);
    return d->defined == NULL ? fail_memory(d) : CH_OK;
}

static ch_status decode_graph(decoder *d, Cohort__Outline *m, ch_graph *outer, ch_graph **out)
{
    level     l = {0};
    ch_status rc = check_head(m);

    if (rc == CH_OK)
        rc = ch__graph_new(m->name, &l.g);
    if (rc != CH_OK)
        return rc;
    l.g->outer = outer;
    rc = decode_symbols(d, l.g, m);
    if (rc == CH_OK)
        rc = decode_parts(d, &l, m);
    l.g->outer = NULL;
    ch__free(l.value);
    if (rc != CH_OK) {
        ch_graph_unref(l.g);
        return ch__fail_at(rc, "graph %s", quoted(m->name).text);
    }
    *out = l.g;
    return CH_OK;
}

ch_status ch_graph_decode(const void *bytes, size_t n, ch_graph **out)
{
    decoder         *d;
    Cohort__Outline *m;
    ch_status        rc;

    if (out == NULL)
        return ch__want_given("decode", "out", out, NULL, NULL);
    if (bytes == NULL && n > 0)
        return ch__fail(CH_INVALID_ARGUMENT, "decode: %zu bytes at NULL", n);
    d = ch__calloc(1, sizeof(*d));
    if (d == NULL)
        return ch__fail_memory("decoding a graph");
    d->allocator = (ProtobufCAllocator){unpack_alloc, unpack_free, d};
    d->limit = n < SIZE_MAX / 4 ? CH_CODEC_MEMORY + 2 * n - SLACK_BYTES : SIZE_MAX;
    m = cohort__outline__unpack(&d->allocator, n, bytes);
    rc = m == NULL ? fail_unpack(d, "an encoded graph", n) : decode_graph(d, m, NULL, out);
    cohort__outline__free_unpacked(m, &d->allocator);
    for (int i = 0; i < NUMBERS; i++)
        ch_tensor_unref(d->number[i]);
    ch__free(d->defined);
    ch__free(d->in);
    ch__free(d);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "decode");
}

#endif

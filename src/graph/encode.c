/* graph/encode.c -- encodes a recorded graph as a message (proto/graph.proto).
 *
 * ch_graph_encode builds the protobuf-c structs of the message in an arena and packs them at
 * the end. Data of tensors and tables is not copied before packing. Equal graphs give equal
 * bytes, because everything is in recorded order. The encoder rejects every graph that the
 * decoder would reject.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "graph/codec.h"
#include "graph/graph.h"
#include "tensor/table.h"

void ch_bytes_free(void *bytes)
{
    ch__free(bytes);
}

#include "graph/graph.pb-c.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensors are written as they lie in memory, and the format is little-endian"
#endif

/* The state of encoding a graph. */
typedef struct encoder {
    ch_arena  arena;
    int       depth;   /* nesting of the current body */
    int       n_calls; /* including calls in bodies */
    size_t    weight;  /* upper bound of the memory of all calls when decoded, in bytes */
    uint32_t *number;  /* by value id of the current graph: number in the message */
} encoder;

static ch_status out_of_memory(void)
{
    return ch__fail_memory("encoding a graph");
}

static void *alloc(encoder *e, size_t n, size_t bytes)
{
    /* no overflow: n counts objects that exist in memory */
    return ch__arena_alloc(&e->arena, n * bytes);
}

/* Copies a text. NULL leaves *out unchanged: init has set it to "". `what` is a label for
 * errors. */
static ch_status encode_text(encoder *e, const char *what, const char *text, char **out)
{
    if (text == NULL)
        return CH_OK;
    if (strlen(text) > CH_CODEC_MAX_NAME)
        return ch__fail(CH_INVALID_ARGUMENT, "%s \"%.40s...\" has %zu bytes, more than %d",
                        what, text, strlen(text), CH_CODEC_MAX_NAME);
    *out = ch__arena_strdup(&e->arena, text);
    return *out == NULL ? out_of_memory() : CH_OK;
}

static ch_status encode_dtype(encoder *e, ch_dtype dtype, char **out)
{
    return encode_text(e, "a type", ch_dtype_name(dtype), out);
}

/* ---- attributes ---- */

static ch_status encode_sizes(encoder *e, const ch_dims *d, size_t *n_sizes, int64_t **sizes,
                              size_t *n_symbols, uint32_t **symbols)
{
    bool is_symbolic = false;

    for (int i = 0; i < d->rank; i++)
        is_symbolic |= d->dim[i].sym != 0;
    *sizes = alloc(e, (size_t)d->rank, sizeof(**sizes));
    *symbols = alloc(e, (size_t)d->rank, sizeof(**symbols));
    if (*sizes == NULL || *symbols == NULL)
        return out_of_memory();
    *n_sizes = (size_t)d->rank;
    *n_symbols = is_symbolic ? (size_t)d->rank : 0;
    for (int i = 0; i < d->rank; i++) {
        (*sizes)[i] = d->dim[i].n;
        (*symbols)[i] = (uint32_t)d->dim[i].sym;
    }
    return CH_OK;
}

static ch_status encode_dims(encoder *e, const ch_dims *d, Cohort__Attr *m)
{
    m->dims = alloc(e, 1, sizeof(*m->dims));
    if (m->dims == NULL)
        return out_of_memory();
    cohort__dims__init(m->dims);
    m->value_case = COHORT__ATTR__VALUE_DIMS;
    return encode_sizes(e, d, &m->dims->n_sizes, &m->dims->sizes, &m->dims->n_symbols,
                        &m->dims->symbols);
}

static ch_status encode_ints(encoder *e, const ch_ints *v, Cohort__Attr *m)
{
    m->ints = alloc(e, 1, sizeof(*m->ints));
    if (m->ints == NULL)
        return out_of_memory();
    cohort__ints__init(m->ints);
    m->value_case = COHORT__ATTR__VALUE_INTS;
    m->ints->n_at = (size_t)v->n;
    m->ints->at = ch__arena_copy(&e->arena, v->at, (size_t)v->n * sizeof(v->at[0]));
    return m->ints->at == NULL ? out_of_memory() : CH_OK;
}

static ch_status encode_tensor(encoder *e, ch_tensor *t, Cohort__Attr *m)
{
    Cohort__Tensor *x = alloc(e, 1, sizeof(*x));

    if (x == NULL)
        return out_of_memory();
    if (t->dtype == CH_STR)
        return ch__fail(CH_UNIMPLEMENTED, "a tensor of strings cannot be encoded");
    cohort__tensor__init(x);
    m->value_case = COHORT__ATTR__VALUE_TENSOR;
    m->tensor = x;
    x->n_shape = (size_t)t->shape.rank;
    x->shape = ch__arena_copy(&e->arena, t->shape.dim, x->n_shape * sizeof(x->shape[0]));
    x->data.len = ch_tensor_bytes(t);
    x->data.data = ch_tensor_data_mut(t); /* packing only reads it */
    return x->shape == NULL ? out_of_memory() : encode_dtype(e, t->dtype, &x->dtype);
}

static ch_status encode_words(encoder *e, const ch_table *t, Cohort__Table *m)
{
    m->text.data = (uint8_t *)t->text;
    m->text.len = t->at[t->n];
    m->sizes = alloc(e, t->n, sizeof(m->sizes[0]));
    if (m->sizes == NULL)
        return out_of_memory();
    m->n_sizes = t->n;
    for (uint32_t i = 0; i < t->n; i++)
        m->sizes[i] = t->at[i + 1] - t->at[i];
    return CH_OK;
}

/* Casts away const, because packing only reads the data. */
static ch_status encode_table(encoder *e, const ch_table *t, Cohort__Attr *m)
{
    Cohort__Table *x = alloc(e, 1, sizeof(*x));
    ch_status      rc;

    if (x == NULL)
        return out_of_memory();
    cohort__table__init(x);
    m->value_case = COHORT__ATTR__VALUE_TABLE;
    m->table = x;
    x->has_words = t->has_words;
    x->values.data = (uint8_t *)t->value;
    x->values.len = ((size_t)t->n + 1) * ch_dtype_bytes(t->dtype);
    rc = encode_dtype(e, t->dtype, &x->dtype);
    if (rc != CH_OK || t->has_words)
        return rc == CH_OK ? encode_words(e, t, x) : rc;
    x->ids.data = (uint8_t *)t->id;
    x->ids.len = t->n * sizeof(t->id[0]);
    return CH_OK;
}

static ch_status encode_graph(encoder *e, const ch_graph *g, Cohort__Graph *m);

/* Packs a body to bytes. Recursive; the depth is limited. */
static ch_status encode_body(encoder *e, const ch_graph *body, Cohort__Attr *m)
{
    Cohort__Graph inner;
    uint32_t     *number = e->number;
    ch_status     rc;

    if (e->depth == CH_CODEC_MAX_DEPTH)
        return ch__fail(CH_INVALID_ARGUMENT, "bodies nest deeper than %d", CH_CODEC_MAX_DEPTH);
    e->depth++;
    rc = encode_graph(e, body, &inner);
    e->depth--;
    e->number = number;
    if (rc != CH_OK)
        return rc;
    m->value_case = COHORT__ATTR__VALUE_BODY;
    m->body.len = cohort__graph__get_packed_size(&inner);
    m->body.data = alloc(e, m->body.len, 1);
    if (m->body.data == NULL)
        return out_of_memory();
    cohort__graph__pack(&inner, m->body.data);
    return CH_OK;
}

/* Encodes an attribute. If it is zero, m gets no value: the decoder then sets it to zero. */
static ch_status encode_value(encoder *e, const ch_attr *row, const void *at, Cohort__Attr *m)
{
    switch (row->kind) {
    case CH_ATTR_KIND_BOOL:
        m->flag = *(const bool *)at;
        m->value_case = m->flag ? COHORT__ATTR__VALUE_FLAG : COHORT__ATTR__VALUE__NOT_SET;
        return CH_OK;
    case CH_ATTR_KIND_INT:
        m->integer = *(const int64_t *)at;
        m->value_case = m->integer != 0 ? COHORT__ATTR__VALUE_INTEGER : 0;
        return CH_OK;
    case CH_ATTR_KIND_FLOAT: /* -0.0 differs from 0.0 */
        m->number = *(const double *)at;
        m->value_case = m->number != 0 || signbit(m->number) ? COHORT__ATTR__VALUE_NUMBER : 0;
        return CH_OK;
    case CH_ATTR_KIND_DTYPE:
        m->value_case = COHORT__ATTR__VALUE_DTYPE;
        return encode_dtype(e, *(const ch_dtype *)at, &m->dtype);
    case CH_ATTR_KIND_INTS:
        return ((const ch_ints *)at)->n > 0 ? encode_ints(e, at, m) : CH_OK;
    case CH_ATTR_KIND_DIMS:
        return ((const ch_dims *)at)->rank > 0 ? encode_dims(e, at, m) : CH_OK;
    case CH_ATTR_KIND_TEXT:
        m->value_case = *(const char *const *)at != NULL ? COHORT__ATTR__VALUE_TEXT : 0;
        return encode_text(e, row->name, *(const char *const *)at, &m->text);
    case CH_ATTR_KIND_TENSOR:
        return *(ch_tensor *const *)at != NULL ? encode_tensor(e, *(ch_tensor *const *)at, m)
                                               : CH_OK;
    case CH_ATTR_KIND_TABLE:
        return *(ch_table *const *)at != NULL ? encode_table(e, *(ch_table *const *)at, m)
                                              : CH_OK;
    case CH_ATTR_KIND_GRAPH:
        return *(ch_graph *const *)at != NULL ? encode_body(e, *(ch_graph *const *)at, m)
                                              : CH_OK;
    case CH_ATTR_KIND_HOST:
        break;
    }
    return ch__fail(CH_UNIMPLEMENTED,
                    "attribute %s refers to an object of this process, and cannot be encoded",
                    row->name);
}

static ch_status encode_attrs(encoder *e, const ch_node *n, Cohort__Call *m)
{
    size_t n_rows = 0;

    if (n->op->attrs == NULL)
        return CH_OK;
    while (n->op->attrs[n_rows].name != NULL)
        n_rows++;
    m->attrs = alloc(e, n_rows, sizeof(m->attrs[0]));
    if (m->attrs == NULL)
        return out_of_memory();
    for (size_t i = 0; i < n_rows; i++) {
        const ch_attr *row = &n->op->attrs[i];
        Cohort__Attr  *attr = alloc(e, 1, sizeof(*attr));
        ch_status      rc;

        if (attr == NULL)
            return out_of_memory();
        cohort__attr__init(attr);
        rc = encode_text(e, "an attribute", row->name, &attr->name);
        if (rc == CH_OK)
            rc = encode_value(e, row, (const char *)n->attrs + row->offset, attr);
        if (rc != CH_OK)
            return rc;
        if (attr->value_case != COHORT__ATTR__VALUE__NOT_SET)
            m->attrs[m->n_attrs++] = attr;
    }
    return CH_OK;
}

/* ---- calls ---- */

static ch_status encode_inputs(encoder *e, const ch_node *n, Cohort__Call *m)
{
    if (n->n_in > CH_CODEC_MAX_INPUTS)
        return ch__fail(CH_INVALID_ARGUMENT, "%d inputs, more than %d", n->n_in,
                        CH_CODEC_MAX_INPUTS);
    m->inputs = alloc(e, (size_t)n->n_in, sizeof(m->inputs[0]));
    if (m->inputs == NULL)
        return out_of_memory();
    m->n_inputs = (size_t)n->n_in;
    for (int i = 0; i < n->n_in; i++)
        m->inputs[i] = e->number[n->in[i]->id];
    return CH_OK;
}

static ch_status encode_outputs(encoder *e, const ch_node *n, Cohort__Call *m)
{
    Cohort__Value *v = alloc(e, (size_t)n->n_out, sizeof(*v));

    m->outputs = alloc(e, (size_t)n->n_out, sizeof(m->outputs[0]));
    if (m->outputs == NULL || v == NULL)
        return out_of_memory();
    m->n_outputs = (size_t)n->n_out;
    for (int i = 0; i < n->n_out; i++) {
        ch_status rc;

        cohort__value__init(&v[i]);
        m->outputs[i] = &v[i];
        v[i].weak = n[i].weak;
        rc = encode_dtype(e, n[i].dtype, &v[i].dtype);
        if (rc == CH_OK)
            rc = encode_sizes(e, &n[i].dims, &v[i].n_sizes, &v[i].sizes, &v[i].n_symbols,
                              &v[i].symbols);
        if (rc != CH_OK)
            return rc;
    }
    return CH_OK;
}

static ch_status encode_call(encoder *e, const ch_node *n, Cohort__Call *m)
{
    ch_status rc;

    if ((n->op->flags & CH_OP_HOST) != 0)
        return ch__fail(CH_UNIMPLEMENTED,
                        "a call of a function of this process cannot be encoded");
    if (n->origins != NULL)
        return ch__fail(CH_UNIMPLEMENTED, "a part of a call cannot be encoded");
    if (++e->n_calls > CH_CODEC_MAX_CALLS)
        return ch__fail(CH_INVALID_ARGUMENT, "more than %d calls", CH_CODEC_MAX_CALLS);
    e->weight += (size_t)n->n_out * 512 + (size_t)n->n_in * 8 + 2048;
    m->version = (uint32_t)n->op->version;
    m->ordinal = (uint32_t)n->ordinal;
    m->device = (uint32_t)n->chosen_device;
    if ((rc = encode_text(e, "an op", n->op->name, &m->op)) != CH_OK ||
        (rc = encode_text(e, "a scope", n->scope, &m->scope)) != CH_OK ||
        (rc = encode_inputs(e, n, m)) != CH_OK || (rc = encode_attrs(e, n, m)) != CH_OK)
        return rc;
    return encode_outputs(e, n, m);
}

/* Adds the call and its source line to the error. */
static ch_status fail_at_call(ch_status rc, const ch_node *n)
{
    char call[256];

    ch__call_print(n, call, sizeof(call));
    return ch__fail_at(rc, "%s", call);
}

static ch_status encode_calls(encoder *e, const ch_graph *g, Cohort__Graph *m)
{
    Cohort__Call *call = alloc(e, (size_t)g->n_calls, sizeof(*call));
    uint32_t      next = 0;

    m->calls = alloc(e, (size_t)g->n_calls, sizeof(m->calls[0]));
    e->number = alloc(e, (size_t)g->n_values, sizeof(e->number[0]));
    if (call == NULL || m->calls == NULL || e->number == NULL)
        return out_of_memory();
    for (const ch_node *n = g->first; n != NULL; n = n->next) {
        ch_status rc;

        cohort__call__init(call);
        rc = encode_call(e, n, call);
        if (rc != CH_OK)
            return fail_at_call(rc, n);
        for (int i = 0; i < n->n_out; i++)
            e->number[n[i].id] = next++;
        m->calls[m->n_calls++] = call++;
    }
    return CH_OK;
}

/* ---- inputs, outputs and resources ---- */

static ch_status encode_input_names(encoder *e, const ch_graph *g, Cohort__Graph *m)
{
    Cohort__Input *in = alloc(e, (size_t)g->n_inputs, sizeof(*in));

    m->inputs = alloc(e, (size_t)g->n_inputs, sizeof(m->inputs[0]));
    if (in == NULL || m->inputs == NULL)
        return out_of_memory();
    m->n_inputs = (size_t)g->n_inputs;
    for (int i = 0; i < g->n_inputs; i++) {
        ch_status rc;

        cohort__input__init(&in[i]);
        m->inputs[i] = &in[i];
        rc = encode_text(e, "an input", g->input_name[i], &in[i].name);
        if (rc != CH_OK)
            return rc;
    }
    return CH_OK;
}

static ch_status encode_resources(encoder *e, const ch_graph *g, Cohort__Graph *m)
{
    Cohort__Resource *r = alloc(e, (size_t)g->n_resources, sizeof(*r));

    m->resources = alloc(e, (size_t)g->n_resources, sizeof(m->resources[0]));
    if (r == NULL || m->resources == NULL)
        return out_of_memory();
    m->n_resources = (size_t)g->n_resources;
    for (int i = 0; i < g->n_resources; i++) {
        const ch_resource *from = &g->resource[i];
        size_t             bytes = (size_t)from->shape.rank * sizeof(int64_t);
        ch_status          rc;

        cohort__resource__init(&r[i]);
        m->resources[i] = &r[i];
        r[i].n_shape = (size_t)from->shape.rank;
        r[i].shape = ch__arena_copy(&e->arena, from->shape.dim, bytes);
        rc = r[i].shape == NULL ? out_of_memory() : encode_dtype(e, from->dtype, &r[i].dtype);
        if (rc == CH_OK)
            rc = encode_text(e, "a variable", from->name, &r[i].name);
        if (rc != CH_OK)
            return rc;
    }
    return CH_OK;
}

static ch_status encode_writes(encoder *e, const ch_graph *g, Cohort__Graph *m)
{
    Cohort__Write *w = alloc(e, (size_t)g->n_resources, sizeof(*w));

    m->writes = alloc(e, (size_t)g->n_resources, sizeof(m->writes[0]));
    if (w == NULL || m->writes == NULL)
        return out_of_memory();
    for (int i = 0; i < g->n_resources; i++) {
        if (g->resource[i].value == g->resource[i].read)
            continue;
        cohort__write__init(w);
        w->resource = (uint32_t)i;
        w->value = e->number[g->resource[i].value->id];
        m->writes[m->n_writes++] = w++;
    }
    return CH_OK;
}

static ch_status encode_results(encoder *e, const ch_graph *g, Cohort__Graph *m)
{
    Cohort__Output *o = alloc(e, (size_t)g->n_outputs, sizeof(*o));

    m->outputs = alloc(e, (size_t)g->n_outputs, sizeof(m->outputs[0]));
    if (o == NULL || m->outputs == NULL)
        return out_of_memory();
    m->n_outputs = (size_t)g->n_outputs;
    for (int i = 0; i < g->n_outputs; i++) {
        ch_status rc;

        cohort__output__init(&o[i]);
        m->outputs[i] = &o[i];
        o[i].value = e->number[g->output[i].node->id];
        rc = encode_text(e, "an output", g->output[i].name, &o[i].name);
        if (rc != CH_OK)
            return rc;
    }
    return CH_OK;
}

static ch_status encode_graph(encoder *e, const ch_graph *g, Cohort__Graph *m)
{
    ch_status rc;

    cohort__graph__init(m);
    m->format = CH_CODEC_FORMAT;
    m->symbols = e->depth == 0 ? (uint32_t)g->n_symbols : 0;
    if (g->n_symbols > CH_CODEC_MAX_SYMBOLS)
        return ch__fail(CH_INVALID_ARGUMENT, "%d symbols, more than %d", g->n_symbols,
                        CH_CODEC_MAX_SYMBOLS);
    if ((rc = encode_text(e, "a graph", g->name, &m->name)) != CH_OK ||
        (rc = encode_input_names(e, g, m)) != CH_OK ||
        (rc = encode_resources(e, g, m)) != CH_OK || (rc = encode_calls(e, g, m)) != CH_OK ||
        (rc = encode_results(e, g, m)) != CH_OK)
        return rc;
    return encode_writes(e, g, m);
}

/* Rejects a graph that the decoder would reject because of its memory. Only a graph with very
 * many calls can exceed the limit, so only such a graph is decoded as a test. */
static ch_status check_readable(const encoder *e, const void *bytes, size_t n)
{
    ch_graph *again = NULL;
    ch_status rc = e->weight < CH_CODEC_MEMORY ? CH_OK : ch_graph_decode(bytes, n, &again);

    ch_graph_unref(again);
    return rc == CH_OK ? CH_OK
                       : ch__fail_at(rc, "%d calls, %zu bytes: more than a decoder accepts",
                                     e->n_calls, n);
}

ch_status ch_graph_encode(const ch_graph *g, void **bytes, size_t *n)
{
    encoder       e = {0};
    Cohort__Graph m;
    void         *packed = NULL;
    size_t        size = 0;
    ch_status     rc;

    if (g == NULL)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "encode: the graph is NULL; a function has a graph after its first run");
    if (bytes == NULL || n == NULL)
        return ch__check_not_null("encode", "bytes", bytes, "n", n);
    rc = encode_graph(&e, g, &m);
    if (rc == CH_OK) {
        size = cohort__graph__get_packed_size(&m);
        packed = ch__malloc(size);
        rc = packed == NULL ? out_of_memory() : CH_OK;
    }
    if (rc == CH_OK)
        cohort__graph__pack(&m, packed);
    ch__arena_drop(&e.arena);
    if (rc == CH_OK)
        rc = check_readable(&e, packed, size);
    if (rc != CH_OK) {
        ch__free(packed);
        return ch__fail_at(rc, "encode %s", g->name);
    }
    *bytes = packed;
    *n = size;
    return CH_OK;
}

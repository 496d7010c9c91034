/* graph/decode_part.c -- decodes the parts of a call: names, types, sizes, attributes. Also
 * counts the memory of decoding.
 *
 * The message is untrusted; the opening comment of decode.c lists the protections. All
 * functions return INVALID_ARGUMENT for an invalid part, UNIMPLEMENTED for an unknown
 * attribute, and RESOURCE_EXHAUSTED if the memory limit is exceeded. The caller adds the
 * position in the message to the error.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/decode.h"

#include <string.h>

#include "base/hash.h"
#include "graph/attr.h"
#include "tensor/table.h"

/* ---- memory ---- */

enum {
    HEADER_BYTES = 16, /* before each block, for its size; keeps the alignment */
    TENSOR_BYTES = 512 /* estimated size of a tensor without its data */
};

bool ch__decode_charge(ch_decoder *d, size_t bytes)
{
    if (bytes > d->limit || d->live > d->limit - bytes) {
        d->is_over_limit = true;
        return false;
    }
    d->live += bytes;
    return true;
}

void *ch__decode_alloc(void *arg, size_t bytes)
{
    ch_decoder *d = arg;
    char       *p;

    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + HEADER_BYTES + 8 + 15) / 16 * 16; /* rounded as malloc does */
    if (!ch__decode_charge(d, bytes))
        return NULL;
    p = ch__malloc(bytes - 8);
    if (p == NULL) {
        d->live -= bytes;
        d->is_out_of_memory = true;
        return NULL;
    }
    memcpy(p, &bytes, sizeof(bytes));
    return p + HEADER_BYTES;
}

void ch__decode_free(void *arg, void *p)
{
    ch_decoder *d = arg;
    size_t      bytes;

    if (p == NULL)
        return;
    memcpy(&bytes, (char *)p - HEADER_BYTES, sizeof(bytes));
    d->live -= bytes;
    ch__free((char *)p - HEADER_BYTES);
}

ch_status ch__decode_no_memory(const ch_decoder *d)
{
    if (!d->is_over_limit)
        return ch__fail_memory("decoding a graph");
    return ch__fail(
        CH_RESOURCE_EXHAUSTED,
        "decoding would need more than %zu bytes of memory, the limit for this message",
        d->limit);
}

void ch__decode_release(ch_decoder *d, ProtobufCBinaryData *b)
{
    ch__decode_free(d, b->data);
    *b = (ProtobufCBinaryData){0};
}

/* ---- names ---- */

ch_quote ch__quoted(const char *s)
{
    ch_quote q;
    size_t   i = 0;

    for (; s[i] != '\0' && i < sizeof(q.text) - 1; i++)
        q.text[i] = (unsigned char)s[i] < ' ' || s[i] == 127 ? '?' : s[i];
    q.text[i] = '\0';
    return q;
}

ch_status ch__decode_name(ch_decoder *d, ch_graph *g, const char *what, const char *name,
                          const char **out)
{
    *out = NULL;
    if (name[0] == '\0')
        return CH_OK;
    if (strlen(name) > CH_CODEC_MAX_NAME)
        return ch__fail(CH_INVALID_ARGUMENT, "%s \"%s...\" has %zu bytes, more than %d", what,
                        ch__quoted(name).text, strlen(name), CH_CODEC_MAX_NAME);
    *out = ch__arena_strdup(&g->arena, name);
    return *out == NULL ? ch__decode_no_memory(d) : CH_OK;
}

ch_status ch__decode_dtype(const char *name, ch_dtype *out)
{
    for (int i = 0; i < CH_DTYPE_COUNT; i++)
        if (strcmp(name, ch_dtype_name((ch_dtype)i)) == 0) {
            *out = (ch_dtype)i;
            return CH_OK;
        }
    return ch__fail(CH_INVALID_ARGUMENT, "\"%s\" is not an element type",
                    ch__quoted(name).text);
}

/* ---- sizes ---- */

ch_status ch__decode_shape(size_t rank, const int64_t *dim, ch_shape *out)
{
    if (rank > CH_MAX_RANK)
        return ch__fail(CH_INVALID_ARGUMENT, "rank %zu, want at most %d", rank, CH_MAX_RANK);
    for (size_t i = 0; i < rank; i++)
        if (dim[i] < 0)
            return ch__fail(CH_INVALID_ARGUMENT, "size %lld of axis %zu is negative",
                            (long long)dim[i], i);
    *out = ch_shape_make((int)rank, dim);
    return CH_OK;
}

ch_status ch__decode_dims(const ch_decoder *d, size_t n_sizes, const int64_t *sizes,
                          size_t n_symbols, const uint32_t *symbols, ch_dims *out)
{
    ch_shape  shape;
    ch_status rc = ch__decode_shape(n_sizes, sizes, &shape);

    if (rc != CH_OK)
        return rc;
    if (n_symbols != 0 && n_symbols != n_sizes)
        return ch__fail(CH_INVALID_ARGUMENT, "%zu sizes and %zu symbols", n_sizes, n_symbols);
    *out = ch__dims_of(shape);
    for (size_t i = 0; i < n_symbols; i++) {
        if (symbols[i] > (uint32_t)d->n_symbols)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "axis %zu has symbol %u, but there are %d symbols", i, symbols[i],
                            d->n_symbols);
        out->dim[i].sym = (int)symbols[i];
    }
    return CH_OK;
}

/* Defines the symbols of inputs of the outermost graph. All other calls may use defined symbols
 * only. */
static ch_status define_symbols(ch_decoder *d, const ch_op *op, const ch_dims *dims)
{
    for (int i = 0; i < dims->rank; i++) {
        ch_dim x = dims->dim[i];

        if (op == ch__roles.input && d->depth == 0 && x.n > 0)
            d->defined[x.sym] = 1;
        if (x.sym != 0 && !d->defined[x.sym])
            return ch__fail(CH_INVALID_ARGUMENT,
                            "axis %d has symbol %d, which no earlier input or call defines", i,
                            x.sym);
    }
    return CH_OK;
}

/* ---- attributes ---- */

static ch_status decode_ints(const Cohort__Ints *m, ch_ints *out)
{
    if (m->n_at > CH_MAX_INTS)
        return ch__fail(CH_INVALID_ARGUMENT, "%zu numbers, want at most %d", m->n_at,
                        CH_MAX_INTS);
    out->n = (int)m->n_at;
    for (int i = 0; i < out->n; i++)
        out->at[i] = m->at[i];
    return CH_OK;
}

static ch_status check_bools(ch_dtype dtype, const ProtobufCBinaryData *data)
{
    for (size_t i = 0; dtype == CH_BOOL && i < data->len; i++)
        if (data->data[i] > 1)
            return ch__fail(CH_INVALID_ARGUMENT, "element %zu is %d, want 0 or 1 for a bool", i,
                            data->data[i]);
    return CH_OK;
}

static ch_status check_data(ch_dtype dtype, ch_shape shape, const ProtobufCBinaryData *data)
{
    int64_t   count, bytes;
    ch_status rc = ch__tensor_size(dtype, shape, &count, &bytes);

    if (rc != CH_OK)
        return rc;
    if (dtype == CH_STR)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "the tensor holds strings, which a graph must not contain");
    if ((uint64_t)bytes != data->len)
        return ch__fail(CH_INVALID_ARGUMENT, "%zu bytes of data, want %lld", data->len,
                        (long long)bytes);
    return check_bools(dtype, data);
}

static ch_status make_tensor(ch_decoder *d, ch_dtype dtype, ch_shape shape,
                             const ProtobufCBinaryData *data, ch_tensor **out)
{
    if (!ch__decode_charge(d, data->len + TENSOR_BYTES))
        return ch__decode_no_memory(d);
    return ch_tensor_copy_of(dtype, shape, data->data, out);
}

/* Sets *out to a scalar. Equal scalars share a tensor, because steps contain the same few
 * numbers many times. */
static ch_status make_number(ch_decoder *d, ch_dtype dtype, const ProtobufCBinaryData *data,
                             ch_tensor **out)
{
    uint64_t    h = ch__hash((uint64_t)dtype, data->data, data->len);
    ch_tensor **known;

    known = &d->number[(h ^ (h >> 32)) % CH_DECODE_NUMBERS];
    if (*known == NULL || (*known)->dtype != dtype ||
        memcmp((*known)->data, data->data, data->len) != 0) {
        ch_tensor *made = NULL;
        ch_status  rc = make_tensor(d, dtype, ch_shape_scalar(), data, &made);

        if (rc != CH_OK)
            return rc;
        ch_tensor_unref(*known);
        *known = made;
    }
    *out = ch_tensor_ref(*known);
    return CH_OK;
}

static ch_status decode_tensor(ch_decoder *d, Cohort__Tensor *m, ch_tensor **out)
{
    ch_dtype  dtype = CH_F32;
    ch_shape  shape;
    ch_status rc = ch__decode_dtype(m->dtype, &dtype);

    if (rc == CH_OK)
        rc = ch__decode_shape(m->n_shape, m->shape, &shape);
    if (rc == CH_OK)
        rc = check_data(dtype, shape, &m->data);
    if (rc == CH_OK)
        rc = shape.rank == 0 ? make_number(d, dtype, &m->data, out)
                             : make_tensor(d, dtype, shape, &m->data, out);
    ch__decode_release(d, &m->data);
    return rc;
}

/* Checks the sizes of the parts of a table. Keys and values may be arbitrary. */
static ch_status check_table(const Cohort__Table *m, ch_table_parts *p)
{
    const size_t bytes = ch_dtype_bytes(p->dtype);
    uint64_t     text = 0;

    for (size_t i = 0; i < m->n_sizes; i++)
        text += m->sizes[i];
    if (p->dtype == CH_STR)
        return ch__fail(CH_INVALID_ARGUMENT, "the values of the table are strings");
    if (m->has_words ? m->ids.len > 0 : m->text.len > 0 || m->n_sizes > 0)
        return ch__fail(CH_INVALID_ARGUMENT, "the table has both ids and words");
    if (m->has_words ? text != m->text.len || text > UINT32_MAX : m->ids.len % 8 != 0)
        return ch__fail(CH_INVALID_ARGUMENT, "%zu bytes of keys do not match %zu keys",
                        m->has_words ? m->text.len : m->ids.len, p->n);
    if (m->values.len / bytes != p->n + 1 || m->values.len % bytes != 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%zu bytes of values do not match %zu keys and a default value",
                        m->values.len, p->n);
    return check_bools(p->dtype, &m->values);
}

static ch_status decode_table(ch_decoder *d, Cohort__Table *m, ch_table **out)
{
    ch_table_parts p = {.has_words = m->has_words != 0,
                        .n = m->has_words ? m->n_sizes : m->ids.len / sizeof(int64_t),
                        .ids = m->ids.data,
                        .text = (const char *)m->text.data,
                        .size = m->sizes,
                        .values = m->values.data};
    ch_status      rc = ch__decode_dtype(m->dtype, &p.dtype);

    if (rc == CH_OK)
        rc = check_table(m, &p);
    if (rc == CH_OK &&
        !ch__decode_charge(d, m->ids.len + m->text.len + m->values.len + TENSOR_BYTES))
        rc = ch__decode_no_memory(d);
    if (rc == CH_OK)
        rc = ch__table_of(&p, out);
    ch__decode_release(d, &m->ids);
    ch__decode_release(d, &m->text);
    ch__decode_release(d, &m->values);
    return rc;
}

ch_status ch__decode_fail_unpack(const ch_decoder *d, const char *what, size_t n)
{
    if (d->is_over_limit || d->is_out_of_memory)
        return ch__decode_no_memory(d);
    return ch__fail(CH_INVALID_ARGUMENT, "the %zu bytes are not %s", n, what);
}

/* Recursive. The depth is limited. */
static ch_status decode_body(ch_decoder *d, ch_graph *outer, ProtobufCBinaryData *bytes,
                             ch_graph **out)
{
    Cohort__Outline *m;
    ch_status        rc;

    if (d->depth == CH_CODEC_MAX_DEPTH)
        return ch__fail(CH_INVALID_ARGUMENT, "bodies nest deeper than %d", CH_CODEC_MAX_DEPTH);
    m = cohort__outline__unpack(&d->allocator, bytes->len, bytes->data);
    if (m == NULL)
        return ch__decode_fail_unpack(d, "a graph", bytes->len);
    ch__decode_release(d, bytes);
    d->depth++;
    rc = ch__decode_graph(d, m, outer, out);
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
    [CH_ATTR_KIND_TABLE] = {"a table", COHORT__ATTR__VALUE_TABLE},
    [CH_ATTR_KIND_GRAPH] = {"a body", COHORT__ATTR__VALUE_BODY},
    [CH_ATTR_KIND_HOST] = {"an object of a process", -1},
};

/* Decodes an attribute into the attribute struct. Text stays in the message; tensors, tables
 * and bodies belong to the struct. */
static ch_status decode_value(ch_decoder *d, ch_graph *g, const ch_op *op, const ch_attr *row,
                              Cohort__Attr *m, void *at)
{
    ch_status rc;

    if ((int)m->value_case != kinds[row->kind].value_case)
        return ch__fail(CH_INVALID_ARGUMENT, "the value is not %s", kinds[row->kind].name);
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
        return ch__decode_dtype(m->dtype, at);
    case CH_ATTR_KIND_INTS:
        return decode_ints(m->ints, at);
    case CH_ATTR_KIND_DIMS:
        rc = ch__decode_dims(d, m->dims->n_sizes, m->dims->sizes, m->dims->n_symbols,
                             m->dims->symbols, at);
        return rc == CH_OK ? define_symbols(d, op, at) : rc;
    case CH_ATTR_KIND_TEXT:
        *(const char **)at = m->text;
        if (strlen(m->text) <= CH_CODEC_MAX_NAME)
            return CH_OK;
        return ch__fail(CH_INVALID_ARGUMENT, "the text is longer than %d bytes",
                        CH_CODEC_MAX_NAME);
    case CH_ATTR_KIND_TENSOR:
        return decode_tensor(d, m->tensor, at);
    case CH_ATTR_KIND_TABLE:
        return decode_table(d, m->table, at);
    case CH_ATTR_KIND_GRAPH:
        return decode_body(d, g, &m->body, at);
    case CH_ATTR_KIND_HOST:
        break; /* find_op has rejected such ops */
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

/* Attributes that the message omits stay zero, except dtypes, which must be present. */
ch_status ch__decode_attrs(ch_decoder *d, ch_graph *g, const ch_op *op, Cohort__Call *m,
                           void *attrs)
{
    for (size_t i = 0; i < m->n_attrs; i++) {
        const char    *name = m->attrs[i]->name;
        const ch_attr *row = find_row(op, name);
        ch_status      rc;

        if (row == NULL)
            return ch__fail(CH_UNIMPLEMENTED,
                            "version %d of the op has no attribute \"%s\" in this library",
                            op->version, ch__quoted(name).text);
        /* a linear search is enough: i is less than the number of rows */
        if (has_attr(m, i, name))
            return ch__fail(CH_INVALID_ARGUMENT, "attribute %s occurs twice", name);
        rc = decode_value(d, g, op, row, m->attrs[i], (char *)attrs + row->offset);
        if (rc != CH_OK)
            return ch__fail_at(rc, "attribute %s", name);
    }
    for (const ch_attr *row = op->attrs; row != NULL && row->name != NULL; row++)
        if (row->kind == CH_ATTR_KIND_DTYPE && !has_attr(m, m->n_attrs, row->name))
            return ch__fail(CH_INVALID_ARGUMENT, "attribute %s is missing", row->name);
    return CH_OK;
}

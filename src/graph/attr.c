/* graph/attr.c -- copies, compares, hashes and prints attributes.
 *
 * All functions read the attribute table of the op (ch_attr), so ops need no code for this.
 * Callers: graph.c copies attributes of new calls, pass.c compares and hashes calls, print.c
 * prints graphs.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/attr.h"

#include <string.h>

#include "base/hash.h"
#include "graph/graph.h"
#include "tensor/print.h"
#include "tensor/table.h"

static size_t kind_bytes(ch_attr_kind kind)
{
    switch (kind) {
    case CH_ATTR_KIND_BOOL:
        return sizeof(bool);
    case CH_ATTR_KIND_INT:
        return sizeof(int64_t);
    case CH_ATTR_KIND_FLOAT:
        return sizeof(double);
    case CH_ATTR_KIND_DTYPE:
        return sizeof(ch_dtype);
    case CH_ATTR_KIND_INTS:
        return sizeof(ch_ints);
    case CH_ATTR_KIND_DIMS:
        return sizeof(ch_dims);
    case CH_ATTR_KIND_TEXT:
    case CH_ATTR_KIND_TENSOR:
    case CH_ATTR_KIND_TABLE:
    case CH_ATTR_KIND_GRAPH:
    case CH_ATTR_KIND_HOST:
        return sizeof(void *);
    }
    return 0;
}

static bool copy_row(ch_arena *a, const ch_attr *row, const char *from, char *to)
{
    memcpy(to + row->offset, from + row->offset, kind_bytes(row->kind));
    if (row->kind == CH_ATTR_KIND_TEXT) {
        const char *text = *(const char *const *)(const void *)(from + row->offset);
        char       *copy = ch__arena_strdup(a, text);

        *(const char **)(void *)(to + row->offset) = copy;
        return text == NULL || copy != NULL;
    }
    if (row->kind == CH_ATTR_KIND_TENSOR)
        ch_tensor_ref(*(ch_tensor **)(void *)(to + row->offset));
    if (row->kind == CH_ATTR_KIND_TABLE)
        ch_table_ref(*(ch_table **)(void *)(to + row->offset));
    if (row->kind == CH_ATTR_KIND_GRAPH)
        ch_graph_ref(*(ch_graph **)(void *)(to + row->offset));
    return true;
}

void *ch__attrs_copy(ch_arena *a, const ch_op *op, const void *from)
{
    char *to = ch__arena_alloc(a, op->attrs_bytes);

    if (to == NULL)
        return NULL;
    /* Texts first, because only they can fail: then no reference is left behind. */
    for (const ch_attr *row = op->attrs; row->name != NULL; row++)
        if (row->kind == CH_ATTR_KIND_TEXT && !copy_row(a, row, from, to))
            return NULL;
    for (const ch_attr *row = op->attrs; row->name != NULL; row++)
        if (row->kind != CH_ATTR_KIND_TEXT)
            copy_row(a, row, from, to);
    return to;
}

void ch__attrs_drop(const ch_op *op, void *attrs)
{
    if (attrs == NULL)
        return;
    for (const ch_attr *row = op->attrs; row->name != NULL; row++) {
        void *at = (char *)attrs + row->offset;

        if (row->kind == CH_ATTR_KIND_TENSOR)
            ch_tensor_unref(*(ch_tensor **)at);
        if (row->kind == CH_ATTR_KIND_TABLE)
            ch_table_unref(*(ch_table **)at);
        if (row->kind == CH_ATTR_KIND_GRAPH)
            ch_graph_unref(*(ch_graph **)at);
    }
}

static bool text_equal(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

static bool tensor_equal(const ch_tensor *a, const ch_tensor *b)
{
    return a == b || (a != NULL && b != NULL && a->dtype == b->dtype && a->dtype != CH_STR &&
                      ch_shape_equal(a->shape, b->shape) &&
                      memcmp(a->data, b->data, ch_tensor_bytes(a)) == 0);
}

static bool ints_equal(const ch_ints *a, const ch_ints *b)
{
    return a->n == b->n && memcmp(a->at, b->at, (size_t)a->n * sizeof(a->at[0])) == 0;
}

static bool row_equal(const ch_attr *row, const void *a, const void *b)
{
    switch (row->kind) {
    case CH_ATTR_KIND_INTS:
        return ints_equal(a, b);
    case CH_ATTR_KIND_DIMS:
        return ch__dims_same(a, b);
    case CH_ATTR_KIND_TEXT:
        return text_equal(*(const char *const *)a, *(const char *const *)b);
    case CH_ATTR_KIND_TENSOR:
        return tensor_equal(*(ch_tensor *const *)a, *(ch_tensor *const *)b);
    case CH_ATTR_KIND_TABLE:
        return ch__table_equal(*(ch_table *const *)a, *(ch_table *const *)b);
    default: /* numbers and pointers: compared as bytes, so -0.0 differs from 0.0 */
        return memcmp(a, b, kind_bytes(row->kind)) == 0;
    }
}

bool ch__attrs_equal(const ch_op *op, const void *a, const void *b)
{
    if (op->attrs == NULL)
        return true;
    for (const ch_attr *row = op->attrs; row->name != NULL; row++)
        if (!row_equal(row, (const char *)a + row->offset, (const char *)b + row->offset))
            return false;
    return true;
}

static uint64_t row_hash(uint64_t h, const ch_attr *row, const void *at)
{
    switch (row->kind) {
    case CH_ATTR_KIND_INTS: {
        const ch_ints *v = at;
        return ch__hash(h, v->at, (size_t)v->n * sizeof(v->at[0]));
    }
    case CH_ATTR_KIND_DIMS: {
        const ch_dims *d = at;
        for (int i = 0; i < d->rank; i++)
            h = ch__hash(ch__hash(h, &d->dim[i].n, sizeof(int64_t)), &d->dim[i].sym,
                         sizeof(int));
        return h;
    }
    case CH_ATTR_KIND_TEXT: {
        const char *text = *(const char *const *)at;
        return text == NULL ? h : ch__hash(h, text, strlen(text));
    }
    case CH_ATTR_KIND_TENSOR: { /* the first bytes are enough to distinguish most tensors */
        const ch_tensor *t = *(ch_tensor *const *)at;
        size_t           bytes = ch_tensor_bytes(t);

        if (t == NULL || t->dtype == CH_STR)
            return h;
        h = ch__hash(h, t->shape.dim, sizeof(t->shape.dim));
        return ch__hash(h, t->data, bytes < 64 ? bytes : 64);
    }
    case CH_ATTR_KIND_TABLE: {
        const ch_table *t = *(ch_table *const *)at;
        return t == NULL ? h : h ^ ch__table_hash(t);
    }
    default:
        return ch__hash(h, at, kind_bytes(row->kind));
    }
}

uint64_t ch__attrs_hash(const ch_op *op, const void *attrs)
{
    uint64_t h = CH_HASH_START;

    if (op->attrs != NULL)
        for (const ch_attr *row = op->attrs; row->name != NULL; row++)
            h = row_hash(h, row, (const char *)attrs + row->offset);
    return h;
}

/* Returns true if the attribute is zero and need not be printed. For dtypes and floats, zero is
 * printed like any other value. */
static bool is_zero(const ch_attr *row, const char *at)
{
    if (row->kind == CH_ATTR_KIND_INTS || row->kind == CH_ATTR_KIND_DIMS)
        return *(const int *)(const void *)at == 0; /* both begin with their length */
    for (size_t i = 0; i < kind_bytes(row->kind); i++)
        if (at[i] != 0)
            return row->kind == CH_ATTR_KIND_HOST;
    return row->kind != CH_ATTR_KIND_DTYPE && row->kind != CH_ATTR_KIND_FLOAT;
}

/* Returns true if the attribute is the dtype or the dims of output 0. */
static bool is_type(const ch_node *call, const ch_attr *row, const void *at)
{
    if (call->n_out == 0)
        return false;
    return row->kind == CH_ATTR_KIND_DTYPE  ? *(const ch_dtype *)at == call->dtype
           : row->kind == CH_ATTR_KIND_DIMS ? ch__dims_same(at, &call->dims)
                                            : false;
}

static void print_ints(ch_text *t, const ch_ints *v)
{
    ch__text_add(t, "(");
    for (int i = 0; i < v->n; i++)
        ch__text_add(t, "%s%lld", i > 0 ? ", " : "", (long long)v->at[i]);
    ch__text_add(t, ")");
}

/* Prints the elements in a line of at most SHOWN characters. */
static void print_tensor(ch_text *t, const ch_tensor *x)
{
    enum { SHOWN = 40 };
    char    all[512], line[SHOWN + 1];
    ch_text elements = ch__text(all, sizeof(all));
    size_t  n = 0;

    ch__text_elements(&elements, x);
    for (const char *p = all; *p != '\0' && n < SHOWN; p++) {
        bool is_gap = *p == ' ' || *p == '\n';

        if (!is_gap || (n > 0 && line[n - 1] != ' '))
            line[n++] = is_gap ? ' ' : *p;
    }
    line[n] = '\0';
    ch__text_add(t, "%s%s", line, n == SHOWN ? "..." : "");
}

static void print_table(ch_text *t, const ch_table *x)
{
    ch__text_add(t, "(%u %s, else ", x->n, x->has_words ? "words" : "ids");
    ch__text_element(t, x->dtype, x->value + (size_t)x->n * ch_dtype_bytes(x->dtype));
    ch__text_add(t, ")");
}

static void print_value(ch_text *t, const ch_attr *row, const void *at)
{
    char dims[160];

    switch (row->kind) {
    case CH_ATTR_KIND_BOOL:
        ch__text_add(t, "%s", *(const bool *)at ? "true" : "false");
        break;
    case CH_ATTR_KIND_INT:
        ch__text_add(t, "%lld", (long long)*(const int64_t *)at);
        break;
    case CH_ATTR_KIND_FLOAT:
        ch__text_add(t, "%g", *(const double *)at);
        break;
    case CH_ATTR_KIND_DTYPE:
        ch__text_add(t, "%s", ch_dtype_name(*(const ch_dtype *)at));
        break;
    case CH_ATTR_KIND_INTS:
        print_ints(t, at);
        break;
    case CH_ATTR_KIND_DIMS:
        ch__dims_print(at, dims, sizeof(dims));
        ch__text_add(t, "%s", dims);
        break;
    case CH_ATTR_KIND_TEXT:
        ch__text_add(t, "\"%s\"", *(const char *const *)at);
        break;
    case CH_ATTR_KIND_TENSOR:
        print_tensor(t, *(ch_tensor *const *)at);
        break;
    case CH_ATTR_KIND_TABLE:
        print_table(t, *(ch_table *const *)at);
        break;
    case CH_ATTR_KIND_GRAPH:
        break;
    case CH_ATTR_KIND_HOST:
        ch__text_add(t, "<host>");
        break;
    }
}

void ch__attrs_print(const ch_node *call, ch_text *t)
{
    if (call->op->attrs == NULL)
        return;
    for (const ch_attr *row = call->op->attrs; row->name != NULL; row++) {
        const char *at = (const char *)call->attrs + row->offset;

        if (row->kind == CH_ATTR_KIND_GRAPH || is_zero(row, at) || is_type(call, row, at))
            continue;
        /* the name is omitted, because the op makes it clear */
        if (row->kind == CH_ATTR_KIND_TENSOR || row->kind == CH_ATTR_KIND_TABLE)
            ch__text_add(t, " ");
        else
            ch__text_add(t, " %s=", row->name);
        print_value(t, row, at);
    }
}

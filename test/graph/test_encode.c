/* test/graph/test_encode.c -- a decoded graph equals the graph that was encoded, and invalid
 * messages are rejected.
 *
 * Hostile messages are made from a valid message: a test unpacks it, changes a field, and packs
 * it again. Other tests cut messages at every byte and bound the memory and the time that
 * decoding takes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "cohort/ops.h"
#include "cohort/table.h"
#include "graph/codec.h"
#include "graph/graph.pb-c.h"
#include "graph/step.h"

typedef struct bytes {
    void  *data;
    size_t n;
} bytes;

/* ---- a graph with every feature ---- */

static ch_node *add_constant(ch_step *s, ch_dtype dtype, ch_shape shape, const void *data)
{
    ch_tensor *t = NULL;
    ch_node   *n;

    assert_int_equal(ch_tensor_copy_of(dtype, shape, data, &t), CH_OK);
    n = ch_constant(s, t);
    ch_tensor_unref(t);
    return n;
}

static void record_sample(ch_step *s)
{
    const float w[4] = {1, -2, 3.5f, 0};
    const bool  yes_no[2] = {true, false};
    ch_node    *x = ch_step_in(s, 0), *value;
    static int  key_w, key_b;

    ch_step_enter(s, "block");
    value = add_constant(s, CH_F32, ch_shape_of(2, 2), w);
    ch_step_enter(s, "dense");
    ch_step_out(s, "rows", ch_rows(x));
    ch_step_leave(s);
    ch_step_out(s, NULL, ch__step_read(s, &key_w, "w", CH_F32, ch_shape_of(2, 2)));
    ch_step_leave(s);
    ch_step_out(s, "half", ch_number(s, 0.5));
    ch_step_out(s, "mask", add_constant(s, CH_BOOL, ch_shape_of(2), yes_no));
    ch_step_out(s, "none", add_constant(s, CH_F64, ch_shape_of(0, 3), NULL));
    ch_step_out(s, "replica", ch_step_replica_id(s));
    ch__step_write(s, &key_w, "w", CH_F32, ch_shape_of(2, 2), value);
    ch__step_read(s, &key_b, "b", CH_F32, ch_shape_of(3));
}

/* Records a step "train" with inputs f32(rows, 4) and i64(2*rows). */
static ch_graph *recorded(void (*record)(ch_step *s))
{
    const ch_dims by4 = {2, {{1, 1}, {4, 0}}}, ids = {1, {{2, 1}}};
    ch_step      *s = NULL;
    ch_graph     *g = NULL;

    assert_int_equal(ch__step_new("train", NULL, &s), CH_OK);
    s->graph->n_symbols = 1;
    ch__step_add_input(s, "x", CH_F32, &by4);
    ch__step_add_input(s, NULL, CH_I64, &ids);
    record(s);
    if (ch__step_finish(s, &g) != CH_OK)
        fail_msg("%s", ch_error_message());
    ch__step_free(s);
    return g;
}

static ch_graph *sample(void)
{
    return recorded(record_sample);
}

/* Joins axes of different inputs, whose sizes are unknown. Each size gets its own symbol. */
static void record_symbols(ch_step *s)
{
    const ch_dims other = {2, {{1, 2}, {4, 0}}};
    ch_node      *x = ch_step_in(s, 0), *y, *wide, *wider;

    s->graph->n_symbols = 2;
    y = ch__step_add_input(s, "y", CH_F32, &other);
    wide = ch_concat(2, (ch_node *[]){x, y}, 0);
    wider = ch_concat(2, (ch_node *[]){wide, y}, 0);
    ch_step_out(s, "wide", ch_tanh(wide));
    ch_step_out(s, "wider", ch_zeros_like(wider)); /* its attribute names the symbol */
}

static void twice(ch_step *s, void *arg, ch_node **out)
{
    out[0] = ch_mul(arg, ch_number(s, 2));
}

static void twice_or_not(ch_step *s, void *arg, ch_node **out)
{
    ch_node *yes = ch_less(ch_rows(arg), ch_number(s, 7));

    ch_cond(yes, 1, twice, twice, arg, out);
}

/* Bodies in bodies. */
static void record_bodies(ch_step *s)
{
    ch_node *x = ch_step_in(s, 0), *y = NULL;

    ch_step_enter(s, "gate");
    ch_cond(ch_greater(ch_rows(x), ch_number(s, 3)), 1, twice_or_not, twice, x, &y);
    ch_step_leave(s);
    ch_step_out(s, "y", y);
}

/* Strings are an input and an output, unchanged. */
static void record_words(ch_step *s)
{
    const ch_dims one_each = {1, {{1, 1}}};
    ch_node      *words = ch__step_add_input(s, "words", CH_STR, &one_each);

    ch_step_out(s, "rows", ch_rows(words));
    ch_step_out(s, "words", words);
    ch_step_out(s, "y", ch_tanh(ch_step_in(s, 0)));
}

/* The table maps all keys to true except the last, which it maps to false, as all unknown keys.
 * Takes ownership of the keys. */
static ch_node *look_up(ch_tensor *keys, int64_t n, ch_node *asked)
{
    bool       values[8];
    ch_tensor *v = NULL;
    ch_table  *t = NULL;
    ch_node   *out;

    for (int64_t i = 0; i < n; i++)
        values[i] = i < n - 1;
    assert_int_equal(ch_tensor_copy_of(CH_BOOL, ch_shape_of(n), values, &v), CH_OK);
    assert_int_equal(ch_table_new(keys, v, 0, &t), CH_OK);
    ch_tensor_unref(keys);
    ch_tensor_unref(v);
    out = ch_table_lookup(t, asked);
    ch_table_unref(t);
    return out;
}

static const ch_str some_words[] = {{"a", 1}, {"cat", 3}, {"", 0}, {"catalogue", 9}};

static ch_tensor *some_keys(ch_dtype dtype, int64_t n)
{
    static const int64_t id[] = {7, -1, INT64_MAX, 1000000};
    ch_tensor           *t = NULL;

    assert_int_equal(ch_tensor_copy_of(dtype, ch_shape_of(n),
                                       dtype == CH_STR ? (const void *)some_words : id, &t),
                     CH_OK);
    return t;
}

static void record_ids(ch_step *s)
{
    ch_node *ids = ch_step_in(s, 1);

    ch_step_out(s, "some", look_up(some_keys(CH_I64, 4), 4, ids));
    ch_step_out(s, "none", look_up(some_keys(CH_I64, 0), 0, ids));
}

static void record_vocabulary(ch_step *s)
{
    const ch_dims one_each = {1, {{1, 1}}};
    ch_node      *words = ch__step_add_input(s, "words", CH_STR, &one_each);

    ch_step_out(s, "some", look_up(some_keys(CH_STR, 4), 4, words));
    ch_step_out(s, "none", look_up(some_keys(CH_STR, 0), 0, words));
}

static bytes encoded(const ch_graph *g)
{
    bytes b = {0};

    assert_int_equal(ch_graph_encode(g, &b.data, &b.n), CH_OK);
    return b;
}

static bytes encoded_sample(void)
{
    ch_graph *g = sample();
    bytes     b = encoded(g);

    ch_graph_unref(g);
    return b;
}

static ch_graph *decoded(bytes b)
{
    ch_graph *g = NULL;

    if (ch_graph_decode(b.data, b.n, &g) != CH_OK)
        fail_msg("%s", ch_error_message());
    return g;
}

static char *printed(const ch_graph *g)
{
    int   n = ch_graph_print(g, NULL, 0);
    char *text = malloc((size_t)n + 1);

    ch_graph_print(g, text, (size_t)n + 1);
    return text;
}

/* ---- round trips ---- */

static void assert_comes_back(const ch_graph *g)
{
    bytes     b = encoded(g), again;
    ch_graph *back = decoded(b);
    char     *was = printed(g), *is = printed(back);

    again = encoded(back);
    assert_string_equal(was, is);
    assert_int_equal(b.n, again.n);
    assert_memory_equal(b.data, again.data, b.n);
    free(was);
    free(is);
    ch_graph_unref(back);
    ch_bytes_free(b.data);
    ch_bytes_free(again.data);
}

static void graph_decode_restores_an_encoded_graph(void **state)
{
    void (*const record[])(ch_step *) = {record_sample, record_symbols, record_bodies,
                                         record_words,  record_ids,     record_vocabulary};

    for (size_t i = 0; i < sizeof(record) / sizeof(record[0]); i++) {
        ch_graph *g = recorded(record[i]);

        assert_comes_back(g);
        ch_graph_unref(g);
    }
    (void)state;
}

static void graph_decode_restores_an_empty_graph(void **state)
{
    ch_graph *g = NULL;

    assert_int_equal(ch__graph_new("nothing", &g), CH_OK);
    assert_comes_back(g);
    ch_graph_unref(g);
    (void)state;
}

static void graph_decode_restores_fields_that_are_not_printed(void **state)
{
    ch_graph      *g = sample(), *back;
    const ch_node *y;
    bytes          b;
    int            device = 0;

    for (ch_node *n = g->first; n != NULL; n = n->next)
        n->chosen_device = device++ % 65;
    b = encoded(g);
    back = decoded(b);
    y = back->first;
    assert_int_equal(back->n_symbols, 1);
    assert_int_equal(back->n_ordinals, g->n_ordinals);
    assert_int_equal(back->n_values, g->n_values);
    assert_string_equal(back->input_name[0], "x");
    assert_null(back->input_name[1]);
    assert_int_equal(back->n_resources, 2);
    assert_string_equal(back->resource[0].name, "w");
    assert_null(back->resource[0].key);
    assert_true(back->resource[0].value != back->resource[0].read);
    assert_ptr_equal(back->resource[1].value, back->resource[1].read);
    for (const ch_node *x = g->first; x != NULL; x = x->next, y = y->next) {
        assert_ptr_equal(x->op, y->op);
        assert_int_equal(x->weak, y->weak);
        assert_int_equal(x->ordinal, y->ordinal);
        assert_int_equal(x->chosen_device, y->chosen_device);
        assert_true((x->scope == NULL) == (y->scope == NULL));
        assert_null(y->caller);
    }
    ch_graph_unref(g);
    ch_graph_unref(back);
    ch_bytes_free(b.data);
    (void)state;
}

static void graph_decode_ignores_unknown_fields(void **state)
{
    const unsigned char unknown[] = {0xfa, 0x07, 3, 'n', 'e', 'w'}; /* field 127 */
    bytes               b = encoded_sample();
    unsigned char      *longer = malloc(b.n + sizeof(unknown));
    ch_graph           *g;

    memcpy(longer, b.data, b.n);
    memcpy(longer + b.n, unknown, sizeof(unknown));
    g = decoded((bytes){longer, b.n + sizeof(unknown)});
    ch_graph_unref(g);
    free(longer);
    ch_bytes_free(b.data);
    (void)state;
}

/* ---- hostile messages ---- */

static ch_status decode_altered(void (*record)(ch_step *s), void (*alter)(Cohort__Graph *m))
{
    ch_graph      *g = recorded(record);
    bytes          b = encoded(g), packed;
    Cohort__Graph *m = cohort__graph__unpack(NULL, b.n, b.data);
    ch_status      rc;

    assert_non_null(m);
    ch_graph_unref(g);
    g = NULL;
    alter(m);
    packed.n = cohort__graph__get_packed_size(m);
    packed.data = malloc(packed.n);
    cohort__graph__pack(m, packed.data);
    rc = ch_graph_decode(packed.data, packed.n, &g);
    ch_graph_unref(g);
    assert_true((rc == CH_OK) == (g != NULL));
    free(packed.data);
    cohort__graph__free_unpacked(m, NULL);
    ch_bytes_free(b.data);
    return rc;
}

static Cohort__Call *call_of(Cohort__Graph *m, const char *op)
{
    for (size_t i = 0; i < m->n_calls; i++)
        if (strcmp(m->calls[i]->op, op) == 0)
            return m->calls[i];
    fail_msg("no call of %s in the sample", op);
    return NULL;
}

static Cohort__Attr *attr_of(Cohort__Graph *m, const char *op, const char *name)
{
    Cohort__Call *c = call_of(m, op);

    for (size_t i = 0; i < c->n_attrs; i++)
        if (strcmp(c->attrs[i]->name, name) == 0)
            return c->attrs[i];
    fail_msg("%s has no %s in the sample", op, name);
    return NULL;
}

static void set(char **text, const char *to)
{
    if (*text != (const char *)protobuf_c_empty_string)
        free(*text);
    *text = strdup(to);
}

static char *long_name(void)
{
    static char name[CH_CODEC_MAX_NAME + 2];

    memset(name, 'n', CH_CODEC_MAX_NAME + 1);
    return name;
}

static void no_format(Cohort__Graph *m)
{
    m->format = 0;
}
static void later_format(Cohort__Graph *m)
{
    m->format = 7;
}
static void long_graph_name(Cohort__Graph *m)
{
    set(&m->name, long_name());
}
static void many_symbols(Cohort__Graph *m)
{
    m->symbols = 0xffffffffu;
}
static void no_symbols(Cohort__Graph *m)
{
    m->symbols = 0;
}
static void unknown_op(Cohort__Graph *m)
{
    set(&call_of(m, "rows")->op, "sum_of_all_fears\x1b[2J");
}
static void wrong_version(Cohort__Graph *m)
{
    call_of(m, "rows")->version = 9;
}
static void huge_version(Cohort__Graph *m)
{
    call_of(m, "rows")->version = 0x80000001u;
}
static void forward_reference(Cohort__Graph *m)
{
    call_of(m, "rows")->inputs[0] = 9;
}
static void own_output(Cohort__Graph *m) /* a call that reads its own output */
{
    call_of(m, "rows")->inputs[0] = 3;
}
static void too_few_inputs(Cohort__Graph *m)
{
    call_of(m, "rows")->n_inputs = 0;
}
static void too_many_inputs(Cohort__Graph *m)
{
    Cohort__Call *c = call_of(m, "rows");

    c->n_inputs = CH_CODEC_MAX_INPUTS + 1;
    c->inputs = realloc(c->inputs, c->n_inputs * sizeof(c->inputs[0]));
    memset(c->inputs, 0, c->n_inputs * sizeof(c->inputs[0]));
}
static void no_outputs(Cohort__Graph *m)
{
    Cohort__Call *c = call_of(m, "replica_id");

    cohort__value__free_unpacked(c->outputs[0], NULL);
    c->n_outputs = 0;
}
static void wrong_output_dtype(Cohort__Graph *m)
{
    set(&call_of(m, "rows")->outputs[0]->dtype, "i32");
}
static void unknown_output_dtype(Cohort__Graph *m)
{
    set(&call_of(m, "rows")->outputs[0]->dtype, "float32"); /* each dtype has a single name */
}
static void wrong_output_size(Cohort__Graph *m)
{
    call_of(m, "constant")->outputs[0]->sizes[1] = 3;
}
static void wrong_output_rank(Cohort__Graph *m)
{
    call_of(m, "constant")->outputs[0]->n_sizes = 1;
}
static void wrong_output_symbol(Cohort__Graph *m)
{
    call_of(m, "input")->outputs[0]->symbols[1] = 1;
}
static void unknown_output_symbol(Cohort__Graph *m)
{
    call_of(m, "input")->outputs[0]->symbols[0] = 2;
}
static void fewer_symbols_than_sizes(Cohort__Graph *m)
{
    call_of(m, "input")->outputs[0]->n_symbols = 1;
}
static void large_ordinal(Cohort__Graph *m)
{
    call_of(m, "rows")->ordinal = 0x80000000u;
}
static void large_device(Cohort__Graph *m)
{
    call_of(m, "rows")->device = 65;
}
static void negative_device(Cohort__Graph *m)
{
    call_of(m, "rows")->device = (uint32_t)-1;
}
static void long_scope(Cohort__Graph *m)
{
    set(&call_of(m, "rows")->scope, long_name());
}
static void unknown_attr(Cohort__Graph *m)
{
    set(&attr_of(m, "constant", "value")->name, "valeu");
}
static void attr_of_none(Cohort__Graph *m)
{
    Cohort__Call *from = m->calls[m->n_calls - 1], *to = call_of(m, "rows");

    to->attrs = from->attrs;
    to->n_attrs = from->n_attrs;
    from->n_attrs = 0;
    from->attrs = NULL;
}
static void attr_twice(Cohort__Graph *m)
{
    set(&attr_of(m, "input", "dims")->name, "dtype");
}
static void wrong_kind(Cohort__Graph *m)
{
    Cohort__Attr *a = attr_of(m, "input", "dtype");

    free(a->dtype);
    a->value_case = COHORT__ATTR__VALUE_INTEGER;
    a->integer = 1;
}
static void no_kind(Cohort__Graph *m)
{
    Cohort__Attr *a = attr_of(m, "input", "dtype");

    free(a->dtype);
    a->value_case = COHORT__ATTR__VALUE__NOT_SET;
}
static void missing_dtype(Cohort__Graph *m)
{
    Cohort__Call *c = call_of(m, "input");

    cohort__attr__free_unpacked(c->attrs[0], NULL); /* the index is 0, so dtype comes first */
    memmove(c->attrs, c->attrs + 1, --c->n_attrs * sizeof(c->attrs[0]));
}
static void unknown_dtype(Cohort__Graph *m)
{
    set(&attr_of(m, "input", "dtype")->dtype, "f8");
}
static void negative_size(Cohort__Graph *m)
{
    attr_of(m, "input", "dims")->dims->sizes[1] = -4;
}
static void overflowing_size(Cohort__Graph *m)
{
    attr_of(m, "input", "dims")->dims->sizes[1] = INT64_MAX;
    call_of(m, "input")->outputs[0]->sizes[1] = INT64_MAX;
}
static void undefined_symbol(Cohort__Graph *m)
{
    m->symbols = 2;
    attr_of(m, "read", "dims")->dims->symbols = calloc(2, sizeof(uint32_t));
    attr_of(m, "read", "dims")->dims->n_symbols = 2;
    attr_of(m, "read", "dims")->dims->symbols[0] = 2;
}
static void wide_rank(Cohort__Graph *m)
{
    Cohort__Dims *d = attr_of(m, "input", "dims")->dims;

    d->n_symbols = 0;
    d->n_sizes = 9;
    d->sizes = realloc(d->sizes, 9 * sizeof(d->sizes[0]));
    for (int i = 0; i < 9; i++)
        d->sizes[i] = 1;
}
static void wrong_index(Cohort__Graph *m)
{
    attr_of(m, "input", "dims")->dims->sizes[0] = 1;
    set(&m->calls[0]->attrs[0]->name, "index");
    free(m->calls[0]->attrs[0]->dtype);
    m->calls[0]->attrs[0]->value_case = COHORT__ATTR__VALUE_INTEGER;
    m->calls[0]->attrs[0]->integer = -1;
    set(&m->calls[0]->attrs[1]->name, "dtype");
    cohort__dims__free_unpacked(m->calls[0]->attrs[1]->dims, NULL);
    m->calls[0]->attrs[1]->value_case = COHORT__ATTR__VALUE_DTYPE;
    m->calls[0]->attrs[1]->dtype = strdup("f32");
}
static void missing_input_name(Cohort__Graph *m)
{
    cohort__input__free_unpacked(m->inputs[--m->n_inputs], NULL);
}
static void long_input_name(Cohort__Graph *m)
{
    set(&m->inputs[1]->name, long_name());
}
static void unnamed_variable(Cohort__Graph *m)
{
    set(&m->resources[0]->name, "");
}
static void variables_of_one_name(Cohort__Graph *m)
{
    set(&m->resources[0]->name, "b");
}
static void huge_variable(Cohort__Graph *m)
{
    m->resources[0]->shape[0] = (int64_t)1e18;
    m->resources[0]->shape[1] = (int64_t)1e18;
}
static void variable_of_another_type(Cohort__Graph *m)
{
    set(&m->resources[0]->dtype, "i32");
}
static void variable_of_another_size(Cohort__Graph *m)
{
    m->resources[0]->shape[0] = 3;
}
static void read_of_none(Cohort__Graph *m)
{
    Cohort__Attr *a = m->calls[m->n_calls - 1]->attrs[0];

    assert_string_equal(a->name, "resource");
    a->integer = 2;
}
static void read_twice(Cohort__Graph *m)
{
    m->calls[m->n_calls - 1]->attrs[0]->integer = 0;
}
static void output_of_none(Cohort__Graph *m)
{
    m->outputs[0]->value = 99;
}
static void write_of_none(Cohort__Graph *m)
{
    m->writes[0]->value = 99;
}
static void write_to_none(Cohort__Graph *m)
{
    m->writes[0]->resource = 2;
}
static void write_of_another_type(Cohort__Graph *m)
{
    m->writes[0]->value = 0;
}
static void write_twice(Cohort__Graph *m)
{
    m->writes = realloc(m->writes, 2 * sizeof(m->writes[0]));
    m->writes[1] = malloc(sizeof(*m->writes[1]));
    cohort__write__init(m->writes[1]);
    m->writes[1]->resource = m->writes[0]->resource;
    m->writes[1]->value = m->writes[0]->value;
    m->n_writes = 2;
}
static void huge_tensor(Cohort__Graph *m)
{
    attr_of(m, "constant", "value")->tensor->shape[0] = (int64_t)1e18;
}
static void overflowing_tensor(Cohort__Graph *m)
{
    attr_of(m, "constant", "value")->tensor->shape[0] = INT64_MAX;
    attr_of(m, "constant", "value")->tensor->shape[1] = INT64_MAX;
}
static void negative_tensor(Cohort__Graph *m)
{
    attr_of(m, "constant", "value")->tensor->shape[0] = -2;
}
static void short_tensor(Cohort__Graph *m)
{
    attr_of(m, "constant", "value")->tensor->data.len = 12;
}
static void string_tensor(Cohort__Graph *m)
{
    set(&attr_of(m, "constant", "value")->tensor->dtype, "string");
}
static void bad_bool(Cohort__Graph *m)
{
    for (size_t i = 0; i < m->n_calls; i++)
        if (strcmp(m->calls[i]->op, "constant") == 0 &&
            strcmp(m->calls[i]->outputs[0]->dtype, "bool") == 0)
            m->calls[i]->attrs[0]->tensor->data.data[1] = 2;
}

typedef struct hostile {
    const char *name;
    void (*alter)(Cohort__Graph *m);
    ch_status   rc;
    const char *words;
} hostile;

static void assert_refused(void (*record)(ch_step *s), int n, const hostile *rows)
{
    int64_t live;

    ch_device_current(); /* the devices are made before the count begins */
    live = ch__mem_live();
    for (int i = 0; i < n; i++) {
        ch_status rc = decode_altered(record, rows[i].alter);

        if (rc != rows[i].rc || strstr(ch_error_message(), rows[i].words) == NULL)
            fail_msg("%s: %s, \"%s\"", rows[i].name, ch_status_text(rc), ch_error_message());
        assert_int_equal(ch__mem_live(), live);
    }
}

#define ROW(alter, rc, words)                                                                  \
    {                                                                                          \
#alter, alter, CH_##rc, words                                                          \
    }

static void graph_decode_rejects_hostile_messages(void **state)
{
    static const hostile rows[] = {
        ROW(no_format, INVALID_ARGUMENT, "not an encoded graph"),
        ROW(later_format, UNIMPLEMENTED, "format 7, but this library reads format 1"),
        ROW(long_graph_name, INVALID_ARGUMENT, "graph is longer than 4096"),
        ROW(many_symbols, INVALID_ARGUMENT, "4294967295 symbols"),
        ROW(no_symbols, INVALID_ARGUMENT, "axis 0 has symbol 1, but there are 0 symbols"),
        ROW(unknown_op, UNIMPLEMENTED,
            "sum_of_all_fears?[2J in block/dense: this library has no such"),
        ROW(wrong_version, UNIMPLEMENTED,
            "version 9 of the op is not supported; this library has version 1"),
        ROW(huge_version, UNIMPLEMENTED, "version 2147483649"),
        ROW(forward_reference, INVALID_ARGUMENT,
            "call 3, rows in block/dense: input 0 is value 9, but only 3 values come before "
            "it"),
        ROW(own_output, INVALID_ARGUMENT, "value 3, but only 3 values come before it"),
        ROW(too_few_inputs, INVALID_ARGUMENT, "0 inputs, want 1"),
        ROW(too_many_inputs, INVALID_ARGUMENT, "16385 inputs, want at most"),
        ROW(no_outputs, INVALID_ARGUMENT, "0 outputs in the message, but the op has 1"),
        ROW(wrong_output_dtype, INVALID_ARGUMENT,
            "output 0 is i32() in the message, but the op computes i64()"),
        ROW(unknown_output_dtype, INVALID_ARGUMENT, "\"float32\" is not an element type"),
        ROW(wrong_output_size, INVALID_ARGUMENT,
            "f32(2, 3) in the message, but the op computes f32(2, 2)"),
        ROW(wrong_output_rank, INVALID_ARGUMENT,
            "f32(2) in the message, but the op computes f32(2, 2)"),
        ROW(wrong_output_symbol, INVALID_ARGUMENT,
            "f32(rows, 4*rows) in the message, but the op computes f32(rows, 4)"),
        ROW(unknown_output_symbol, INVALID_ARGUMENT,
            "axis 0 has symbol 2, but there are 1 symbols"),
        ROW(fewer_symbols_than_sizes, INVALID_ARGUMENT, "2 sizes and 1 symbols"),
        ROW(large_ordinal, INVALID_ARGUMENT, "ordinal 2147483648"),
        ROW(large_device, INVALID_ARGUMENT, "logical device 64 is not from 0 to 63"),
        ROW(negative_device, INVALID_ARGUMENT, "is not from 0 to 63"),
        ROW(long_scope, INVALID_ARGUMENT, "scope \"nnnn"),
        ROW(unknown_attr, UNIMPLEMENTED, "no attribute \"valeu\""),
        ROW(attr_of_none, UNIMPLEMENTED, "no attribute \"resource\""),
        ROW(attr_twice, INVALID_ARGUMENT, "attribute dtype occurs twice"),
        ROW(wrong_kind, INVALID_ARGUMENT, "attribute dtype: the value is not an element type"),
        ROW(no_kind, INVALID_ARGUMENT, "attribute dtype: the value is not an element type"),
        ROW(missing_dtype, INVALID_ARGUMENT, "attribute dtype is missing"),
        ROW(unknown_dtype, INVALID_ARGUMENT, "\"f8\" is not an element type"),
        ROW(negative_size, INVALID_ARGUMENT, "size -4 of axis 1 is negative"),
        ROW(overflowing_size, INVALID_ARGUMENT, "2^48 bytes or more"),
        ROW(undefined_symbol, INVALID_ARGUMENT,
            "symbol 2, which no earlier input or call defines"),
        ROW(wide_rank, INVALID_ARGUMENT, "rank 9, want at most 8"),
        ROW(wrong_index, INVALID_ARGUMENT, "index -1, want 0 of 2"),
        ROW(missing_input_name, INVALID_ARGUMENT, "index 1, want 1 of 1"),
        ROW(long_input_name, INVALID_ARGUMENT, "input \"nnnn"),
        ROW(unnamed_variable, INVALID_ARGUMENT, "the variable has no name"),
        ROW(variables_of_one_name, INVALID_ARGUMENT, "two variables are named b"),
        ROW(huge_variable, INVALID_ARGUMENT, "1000000000000000000"),
        ROW(variable_of_another_type, INVALID_ARGUMENT, "variable w has another type"),
        ROW(variable_of_another_size, INVALID_ARGUMENT, "variable w has another type"),
        ROW(read_of_none, INVALID_ARGUMENT, "no variable 2; the graph has 2 variables"),
        ROW(read_twice, INVALID_ARGUMENT, "variable w is read twice"),
        ROW(output_of_none, INVALID_ARGUMENT, "output 0 is value 99"),
        ROW(write_of_none, INVALID_ARGUMENT, "write 0 is value 99"),
        ROW(write_to_none, INVALID_ARGUMENT, "variable 2, but there are 2 variables"),
        ROW(write_of_another_type, INVALID_ARGUMENT, "written to variable w has another type"),
        ROW(write_twice, INVALID_ARGUMENT, "variable w is written twice"),
        ROW(huge_tensor, INVALID_ARGUMENT, "16 bytes of data, want 8000000000000000000"),
        ROW(overflowing_tensor, INVALID_ARGUMENT, "attribute value"),
        ROW(negative_tensor, INVALID_ARGUMENT, "size -2 of axis 0 is negative"),
        ROW(short_tensor, INVALID_ARGUMENT, "12 bytes of data, want 16"),
        ROW(string_tensor, INVALID_ARGUMENT, "holds strings"),
        ROW(bad_bool, INVALID_ARGUMENT, "element 1 is 2, want 0 or 1 for a bool"),
    };

    assert_refused(record_sample, sizeof(rows) / sizeof(rows[0]), rows);
    (void)state;
}

/* ---- hostile symbols ---- */

static Cohort__Call *first_concat(Cohort__Graph *m)
{
    return call_of(m, "concat");
}

static void a_known_symbol(Cohort__Graph *m)
{
    first_concat(m)->outputs[0]->symbols[0] = 1;
}
static void no_symbol(Cohort__Graph *m)
{
    first_concat(m)->outputs[0]->n_symbols = 0;
}
static void a_multiple_of_a_symbol(Cohort__Graph *m)
{
    first_concat(m)->outputs[0]->sizes[0] = 2;
}
static void symbols_the_wrong_way_round(Cohort__Graph *m)
{
    first_concat(m)->outputs[0]->symbols[0] = m->symbols; /* a symbol that a later call makes */
}
static void symbol_of_the_future(Cohort__Graph *m)
{
    Cohort__Call *fill = call_of(m, "fill"), *first = m->calls[2];

    /* The call that names the symbol is before the call that makes it. */
    for (size_t i = 0; i < m->n_calls; i++)
        if (m->calls[i] == fill)
            m->calls[i] = first;
    m->calls[2] = fill;
}

static void graph_decode_rejects_symbols_that_no_node_made(void **state)
{
    static const hostile rows[] = {
        ROW(a_known_symbol, INVALID_ARGUMENT, "f32(rows, 4) in the message, but"),
        ROW(no_symbol, INVALID_ARGUMENT, "f32(1, 4) in the message, but"),
        ROW(a_multiple_of_a_symbol, INVALID_ARGUMENT, "in the message, but"),
        ROW(symbols_the_wrong_way_round, INVALID_ARGUMENT, "in the message, but"),
        ROW(symbol_of_the_future, INVALID_ARGUMENT, "which no earlier input or call defines"),
    };

    assert_refused(record_symbols, sizeof(rows) / sizeof(rows[0]), rows);
    (void)state;
}

static void tanh_of_strings(Cohort__Graph *m)
{
    set(&attr_of(m, "input", "dtype")->dtype, "string");
    set(&call_of(m, "input")->outputs[0]->dtype, "string");
}

static void strings_of_tanh(Cohort__Graph *m)
{
    set(&call_of(m, "tanh")->outputs[0]->dtype, "string");
}

static void graph_decode_rejects_ops_on_strings(void **state)
{
    static const hostile rows[] = {
        ROW(tanh_of_strings, INVALID_ARGUMENT,
            "input 0 holds strings, which this op does not accept"),
        ROW(strings_of_tanh, INVALID_ARGUMENT,
            "output 0 holds strings; only inputs may hold strings"),
    };

    assert_refused(record_words, sizeof(rows) / sizeof(rows[0]), rows);
    (void)state;
}

static Cohort__Table *table_of(Cohort__Graph *m)
{
    return attr_of(m, "table_lookup", "table")->table;
}
static void no_table(Cohort__Graph *m)
{
    Cohort__Call *c = call_of(m, "table_lookup");

    cohort__attr__free_unpacked(c->attrs[--c->n_attrs], NULL);
}
static void broken_id(Cohort__Graph *m)
{
    table_of(m)->ids.len = 31;
}
static void missing_id(Cohort__Graph *m)
{
    table_of(m)->ids.len = 24;
}
static void missing_value(Cohort__Graph *m)
{
    table_of(m)->values.len = 4;
}
static void key_of_two_values(Cohort__Graph *m)
{
    uint8_t *v = table_of(m)->values.data, *id = table_of(m)->ids.data;

    v[0] = true;
    v[1] = false;
    memcpy(id + 8, id, 8);
}
static void value_no_bool(Cohort__Graph *m)
{
    table_of(m)->values.data[2] = 2;
}
static void values_of_another_type(Cohort__Graph *m)
{
    set(&table_of(m)->dtype, "i64");
}
static void string_values(Cohort__Graph *m)
{
    set(&table_of(m)->dtype, "string");
}
static void values_of_no_type(Cohort__Graph *m)
{
    set(&table_of(m)->dtype, "f8");
}
static void ids_for_words(Cohort__Graph *m)
{
    table_of(m)->has_words = true;
}
static void table_of_another_kind(Cohort__Graph *m)
{
    Cohort__Attr *a = attr_of(m, "table_lookup", "table");

    cohort__table__free_unpacked(a->table, NULL);
    a->value_case = COHORT__ATTR__VALUE_FLAG;
    a->flag = true;
}

static void graph_decode_rejects_hostile_tables(void **state)
{
    static const hostile rows[] = {
        ROW(no_table, INVALID_ARGUMENT, "the table is NULL"),
        ROW(broken_id, INVALID_ARGUMENT, "31 bytes of keys do not match 3 keys"),
        ROW(missing_id, INVALID_ARGUMENT,
            "5 bytes of values do not match 3 keys and a default value"),
        ROW(missing_value, INVALID_ARGUMENT,
            "4 bytes of values do not match 4 keys and a default value"),
        ROW(key_of_two_values, INVALID_ARGUMENT, "occurs twice, at 0 and 1"),
        ROW(value_no_bool, INVALID_ARGUMENT, "element 2 is 2, want 0 or 1 for a bool"),
        ROW(values_of_another_type, INVALID_ARGUMENT, "5 bytes of values"),
        ROW(string_values, INVALID_ARGUMENT, "the values of the table are strings"),
        ROW(values_of_no_type, INVALID_ARGUMENT, "\"f8\" is not an element type"),
        ROW(ids_for_words, INVALID_ARGUMENT, "the table has both ids and words"),
        ROW(table_of_another_kind, INVALID_ARGUMENT, "the value is not a table"),
    };

    assert_refused(record_ids, sizeof(rows) / sizeof(rows[0]), rows);
    (void)state;
}

static void words_for_ids(Cohort__Graph *m)
{
    table_of(m)->has_words = false;
}
static void missing_text(Cohort__Graph *m)
{
    table_of(m)->text.len--;
}
static void huge_word(Cohort__Graph *m)
{
    table_of(m)->sizes[0] = UINT32_MAX;
}
static void missing_size(Cohort__Graph *m)
{
    Cohort__Table *t = table_of(m);
    size_t         last = 0;

    /* Without the size of the empty word the text still matches, but there is a value too
     * many. */
    while (t->sizes[last] != 0)
        last++;
    t->sizes[last] = t->sizes[--t->n_sizes];
}

static void graph_decode_rejects_hostile_vocabularies(void **state)
{
    static const hostile rows[] = {
        ROW(words_for_ids, INVALID_ARGUMENT, "the table has both ids and words"),
        ROW(missing_text, INVALID_ARGUMENT, "12 bytes of keys do not match 4 keys"),
        ROW(huge_word, INVALID_ARGUMENT, "13 bytes of keys do not match 4 keys"),
        ROW(missing_size, INVALID_ARGUMENT,
            "5 bytes of values do not match 3 keys and a default value"),
        ROW(string_values, INVALID_ARGUMENT, "the values of the table are strings"),
    };

    assert_refused(record_vocabulary, sizeof(rows) / sizeof(rows[0]), rows);
    (void)state;
}

/* Moves the first key and its value to the end. */
static void shuffled_ids(Cohort__Graph *m)
{
    uint8_t *v = table_of(m)->values.data, *id = table_of(m)->ids.data, aside[8], truth = v[0];

    memcpy(aside, id, 8);
    memmove(id, id + 8, 24);
    memcpy(id + 24, aside, 8);
    memmove(v, v + 1, 3);
    v[3] = truth;
}

static void graph_decode_accepts_table_keys_in_any_order(void **state)
{
    assert_int_equal(decode_altered(record_ids, shuffled_ids), CH_OK);
    (void)state;
}

/* ---- hostile bodies ---- */

static void alter_body(Cohort__Graph *m, void (*alter)(Cohort__Graph *body))
{
    Cohort__Attr  *a = attr_of(m, "cond", "then");
    Cohort__Graph *body = cohort__graph__unpack(NULL, a->body.len, a->body.data);

    assert_non_null(body);
    alter(body);
    free(a->body.data);
    a->body.len = cohort__graph__get_packed_size(body);
    a->body.data = malloc(a->body.len);
    cohort__graph__pack(body, a->body.data);
    cohort__graph__free_unpacked(body, NULL);
}

static void garbage_body(Cohort__Graph *m)
{
    attr_of(m, "cond", "then")->body.data[0] = 0xff;
}
static void no_body(Cohort__Graph *m)
{
    Cohort__Call *c = call_of(m, "cond");

    cohort__attr__free_unpacked(c->attrs[--c->n_attrs], NULL);
}
static void body_with_symbols(Cohort__Graph *m)
{
    alter_body(m, many_symbols);
}
static void body_with_a_symbol(Cohort__Graph *body)
{
    body->symbols = 1;
}
static void body_with_one_symbol(Cohort__Graph *m)
{
    alter_body(m, body_with_a_symbol);
}
static void add_variable(Cohort__Graph *body)
{
    body->resources = malloc(sizeof(body->resources[0]));
    body->resources[0] = malloc(sizeof(*body->resources[0]));
    cohort__resource__init(body->resources[0]);
    body->n_resources = 1;
}
static void body_with_variables(Cohort__Graph *m)
{
    alter_body(m, add_variable);
}
static void wrong_op_in_the_body_of_the_body(Cohort__Graph *body)
{
    set(&call_of(body, "mul")->op, "mull");
}
static void wrong_op_in_the_body(Cohort__Graph *body)
{
    alter_body(body, wrong_op_in_the_body_of_the_body);
}
static void wrong_op_deep_inside(Cohort__Graph *m)
{
    alter_body(m, wrong_op_in_the_body);
}
static void make_read(Cohort__Graph *body)
{
    set(&call_of(body, "input")->op, "read");
}
static void body_that_reads(Cohort__Graph *m)
{
    alter_body(m, make_read);
}

static void graph_decode_rejects_hostile_bodies_and_names_the_attribute(void **state)
{
    static const hostile rows[] = {
        ROW(garbage_body, INVALID_ARGUMENT, "attribute then: the"),
        ROW(no_body, INVALID_ARGUMENT, "a branch is missing"),
        ROW(body_with_symbols, INVALID_ARGUMENT, "symbols, want at most"),
        ROW(body_with_one_symbol, INVALID_ARGUMENT, "a body must not have symbols"),
        ROW(body_with_variables, INVALID_ARGUMENT, "a body must not have variables"),
        ROW(body_that_reads, INVALID_ARGUMENT,
            "there is no variable 0; the graph has 0 variables"),
        ROW(wrong_op_deep_inside, UNIMPLEMENTED, "cond in gate: attribute then: graph"),
        ROW(wrong_op_deep_inside, UNIMPLEMENTED, ", mull in gate: this library has no such op"),
    };

    assert_refused(record_bodies, sizeof(rows) / sizeof(rows[0]), rows);
    (void)state;
}

#undef ROW

/* ---- graphs that cannot be encoded ---- */

static ch_status host_one(void *arg, int n_in, ch_tensor *const *in, int n_out,
                          ch_tensor *const *out)
{
    (void)arg, (void)n_in, (void)in, (void)n_out, (void)out;
    return CH_OK;
}

static int host_line;

static void record_host_call(ch_step *s)
{
    const ch_host_spec spec = {
        .name = "mine", .fn = host_one, .n_out = 1, .out = {{.dtype = CH_F32}}};
    ch_node *x = ch_step_in(s, 0), *y = NULL;

    ch_step_enter(s, "feed");
    host_line = __LINE__ + 1;
    ch_host_call(s, &spec, 1, &x, &y);
    ch_step_leave(s);
    ch_step_out(s, NULL, y);
}

static void graph_encode_rejects_a_host_call_by_name_scope_and_line(void **state)
{
    ch_graph *g = recorded(record_host_call);
    bytes     b = {0};
    char      call[128] = "encode train: host_call mine, in feed, at ";

    assert_int_equal(ch_graph_encode(g, &b.data, &b.n), CH_UNIMPLEMENTED);
    assert_null(b.data);
    assert_non_null(strstr(ch_error_message(), call));
#if CH_HAVE_LIBDW
    snprintf(
        call, sizeof(call),
        "encode train: host_call mine, in feed, at test_encode.c:%d: a call of a function of "
        "this process",
        host_line);
    assert_non_null(strstr(ch_error_message(), call));
#endif
    ch_graph_unref(g);
    (void)state;
}

/* ---- damage ---- */

/* Wherever a message is cut, decoding reads nothing beyond the end and leaks nothing. */
static void graph_decode_survives_a_message_cut_anywhere(void **state)
{
    bytes   b = encoded_sample();
    int64_t live = ch__mem_live();

    for (size_t n = 0; n < b.n; n++) {
        void     *part = malloc(n + 1); /* so that a sanitizer sees its end */
        ch_graph *g = NULL;

        memcpy(part, b.data, n);
        if (ch_graph_decode(part, n, &g) == CH_OK)
            ch_graph_unref(g);
        assert_int_equal(ch__mem_live(), live);
        free(part);
    }
    ch_bytes_free(b.data);
    (void)state;
}

static void assert_survives_a_lack_of_memory(void (*record)(ch_step *s))
{
    ch_graph *g = recorded(record), *back = NULL;
    int64_t   live = ch__mem_live();
    ch_status rc = CH_RESOURCE_EXHAUSTED;

    for (int n = 1; rc != CH_OK; n++) {
        bytes b = {0};

        back = NULL;
        ch__mem_fail_at(n);
        rc = ch_graph_encode(g, &b.data, &b.n);
        if (rc == CH_OK)
            rc = ch_graph_decode(b.data, b.n, &back);
        ch__mem_fail_at(0);
        assert_true(rc == CH_OK || rc == CH_RESOURCE_EXHAUSTED);
        ch_bytes_free(b.data);
        ch_graph_unref(back);
        assert_int_equal(ch__mem_live(), live);
    }
    ch_graph_unref(g);
}

static void graph_codec_leaks_nothing_when_out_of_memory(void **state)
{
    void (*const record[])(ch_step *) = {record_sample, record_ids, record_vocabulary};

    for (int i = 0; i < 3; i++)
        assert_survives_a_lack_of_memory(record[i]);
    (void)state;
}
/* ---- bounds ---- */

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Fills a megabyte with the same field again and again. */
static bytes repeated(const void *field, size_t n)
{
    bytes b = {malloc(1 << 20), 0};

    ((unsigned char *)b.data)[b.n++] = 8; /* format */
    ((unsigned char *)b.data)[b.n++] = 1;
    while (b.n + n <= 1 << 20) {
        memcpy((char *)b.data + b.n, field, n);
        b.n += n;
    }
    return b;
}

/* Limits this process to 64 MiB more than it has, unless a sanitizer needs more. */
static void cap_memory(bool on)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    static struct rlimit before;
    struct rlimit        cap;
    long                 pages = 0;
    FILE                *f = fopen("/proc/self/statm", "r");

    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld", &pages), 1);
    fclose(f);
    if (on)
        assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    cap = before;
    if (on)
        cap.rlim_cur = (rlim_t)pages * 4096 + ((rlim_t)64 << 20);
    assert_int_equal(setrlimit(RLIMIT_AS, &cap), 0);
#else
    (void)on;
#endif
}

/* A megabyte of the smallest parts, each of which would need much more memory when decoded. */
static void graph_decode_of_many_small_parts_takes_bounded_memory(void **state)
{
    static const struct {
        const char *name, *field;
        size_t      n;
    } rows[] = {
#define ROW(name, field) {name, field, sizeof(field) - 1}
        ROW("inputs", "\x22\0"),
        ROW("resources", "\x2a\0"),
        ROW("calls", "\x32\0"),
        ROW("outputs", "\x3a\0"),
        ROW("writes", "\x42\0"),
        ROW("attributes", "\x32\x02\x22\0"),
        ROW("unknown fields", "\x80\x01\0"),
        ROW("true calls", "\x32\x17\x0a\x0areplica_id\x10\x01\x2a\x05\x0a\x03i32\x38\0"),
#undef ROW
    };

    ch_device_current();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bytes     b = repeated(rows[i].field, rows[i].n);
        ch_graph *g = NULL;
        double    start = seconds(), took;
        ch_status rc;

        cap_memory(true);
        rc = ch_graph_decode(b.data, b.n, &g);
        cap_memory(false);
        took = seconds() - start;
        if (rc == CH_RESOURCE_EXHAUSTED && strstr(ch_error_message(), "more than") == NULL)
            fail_msg("%s: %s", rows[i].name, ch_error_message()); /* the limit of the process */
        if (took > 1) /* seconds; 0.1 on an idle machine */
            fail_msg("%s: %g s", rows[i].name, took);
        ch_graph_unref(g);
        free(b.data);
    }
    (void)state;
}

/* Returns an op with a body, or NULL if there is none. */
static const ch_op *op_with_body(const char **attr)
{
    for (const ch_op *const *op = ch__op_table(); *op != NULL; op++)
        for (const ch_attr *row = (*op)->attrs; row != NULL && row->name != NULL; row++)
            if (row->kind == CH_ATTR_KIND_GRAPH) {
                *attr = row->name;
                return *op;
            }
    return NULL;
}

/* Returns a graph whose only call has this body. */
static bytes around(bytes body, const ch_op *op, const char *attr)
{
    char          op_name[64], attr_name[64];
    Cohort__Graph g;
    Cohort__Call  c, *calls[] = {&c};
    Cohort__Attr  a, *attrs[] = {&a};
    bytes         b;

    snprintf(op_name, sizeof(op_name), "%s", op->name);
    snprintf(attr_name, sizeof(attr_name), "%s", attr);
    cohort__graph__init(&g);
    cohort__call__init(&c);
    cohort__attr__init(&a);
    g.format = 1;
    g.n_calls = c.n_attrs = 1;
    g.calls = calls;
    c.attrs = attrs;
    c.op = op_name;
    c.version = (uint32_t)op->version;
    a.name = attr_name;
    a.value_case = COHORT__ATTR__VALUE_BODY;
    a.body = (ProtobufCBinaryData){body.n, body.data};
    b.n = cohort__graph__get_packed_size(&g);
    b.data = malloc(b.n);
    cohort__graph__pack(&g, b.data);
    return b;
}

static int n_products;

static void record_products(ch_step *s)
{
    ch_node *x = ch_step_in(s, 0);

    for (int i = 0; i < n_products; i++)
        x = ch_mul(x, ch_number(s, 2));
    ch_step_out(s, NULL, x);
}

static void graph_encode_rejects_graphs_that_decode_would_reject_as_too_large(void **state)
{
    ch_graph *g, *back = NULL;
    bytes     b = {0};

    n_products = 20000;
    g = recorded(record_products);
    b = encoded(g);
    assert_int_equal(ch_graph_decode(b.data, b.n, &back), CH_OK);
    assert_int_equal(ch_graph_nodes(back), ch_graph_nodes(g));
    ch_bytes_free(b.data);
    ch_graph_unref(back);
    ch_graph_unref(g);

    n_products = 40000;
    g = recorded(record_products);
    b = (bytes){0};
    assert_int_equal(ch_graph_encode(g, &b.data, &b.n), CH_RESOURCE_EXHAUSTED);
    assert_null(b.data);
    assert_non_null(strstr(ch_error_message(), "encode train: 1200"));
    ch_graph_unref(g);
    (void)state;
}

static void graph_decode_accepts_bodies_64_deep_and_no_deeper(void **state)
{
    const char  *attr = NULL, *words = "bodies nest deeper than 64";
    const ch_op *op = op_with_body(&attr);
    bytes        b = {malloc(2), 2};

    if (op == NULL) {
        free(b.data);
        skip();
    }
    memcpy(b.data, (const unsigned char[]){8, 1}, 2); /* only format = 1 */
    for (int depth = 0; depth < 4000; depth++) {
        bytes     next = around(b, op, attr);
        ch_graph *g = NULL;

        free(b.data);
        b = next;
        if (depth < 60 || (depth > 70 && depth < 3990))
            continue;
        assert_int_equal(ch_graph_decode(b.data, b.n, &g), CH_INVALID_ARGUMENT);
        assert_true((strstr(ch_error_message(), words) != NULL) == (depth >= 64));
    }
    free(b.data);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graph_decode_restores_an_encoded_graph),
        cmocka_unit_test(graph_decode_restores_an_empty_graph),
        cmocka_unit_test(graph_decode_restores_fields_that_are_not_printed),
        cmocka_unit_test(graph_decode_ignores_unknown_fields),
        cmocka_unit_test(graph_decode_rejects_hostile_messages),
        cmocka_unit_test(graph_decode_rejects_symbols_that_no_node_made),
        cmocka_unit_test(graph_decode_rejects_ops_on_strings),
        cmocka_unit_test(graph_decode_rejects_hostile_tables),
        cmocka_unit_test(graph_decode_rejects_hostile_vocabularies),
        cmocka_unit_test(graph_decode_accepts_table_keys_in_any_order),
        cmocka_unit_test(graph_decode_rejects_hostile_bodies_and_names_the_attribute),
        cmocka_unit_test(graph_encode_rejects_a_host_call_by_name_scope_and_line),
        cmocka_unit_test(graph_decode_survives_a_message_cut_anywhere),
        cmocka_unit_test(graph_codec_leaks_nothing_when_out_of_memory),
        cmocka_unit_test(graph_decode_of_many_small_parts_takes_bounded_memory),
        cmocka_unit_test(graph_encode_rejects_graphs_that_decode_would_reject_as_too_large),
        cmocka_unit_test(graph_decode_accepts_bodies_64_deep_and_no_deeper),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

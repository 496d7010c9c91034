/* test/data/test_example.c -- examples of every valid encoding become elements.
 *
 * The model is the writer below. It keeps the values that it has written, and writes them in
 * every form that the format allows.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/thread.h"
#include "cohort/file.h"
#include "data/format/example.h"
#include "random.h"

/* ---- a writer ---- */

typedef struct bytes {
    uint8_t data[1 << 15];
    size_t  n;
} bytes;

static void add(bytes *b, const void *data, size_t n)
{
    assert_true(b->n + n <= sizeof(b->data));
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

static void add_varint(bytes *b, uint64_t x)
{
    for (; x >= 0x80; x >>= 7)
        add(b, &(uint8_t){(uint8_t)(x | 0x80)}, 1);
    add(b, &(uint8_t){(uint8_t)x}, 1);
}

static void add_tag(bytes *b, int number, int type)
{
    add_varint(b, (uint64_t)number << 3 | (uint64_t)type);
}

static void add_message(bytes *b, int number, const void *data, size_t n)
{
    add_tag(b, number, 2);
    add_varint(b, n);
    add(b, data, n);
}

/* ---- records, as a reader gives them ---- */

typedef struct block {
    ch_buffer base;
    char      data[];
} block;

static void release_block(ch_buffer *b)
{
    ch__free(b);
}

/* Returns an element with a single string, whose bytes are in a block of exactly that size. */
static ch_element *record_of(const void *data, size_t n)
{
    block      *b = ch__malloc(sizeof(*b) + n);
    ch_element *e = ch__element_new(1, 1, sizeof(ch_str));

    assert_non_null(b);
    assert_non_null(e);
    memset(&b->base, 0, sizeof(b->base));
    atomic_init(&b->base.refs, 1);
    b->base.release = release_block;
    memcpy(b->data, data, n);
    *(ch_str *)e->room = (ch_str){b->data, n};
    e->part[0] = (ch_part){.dtype = CH_STR, .shape = ch_shape_scalar(), .data = e->room};
    e->owner[0] = &b->base;
    return e;
}

/* Returns a record that owns its bytes, as ch__element_copy makes it. */
static ch_element *record_without_block(const void *data, size_t n)
{
    ch_element *e = record_of(data, n), *copy = NULL;

    assert_int_equal(ch__element_copy(e, &copy), CH_OK);
    ch__element_free(e);
    return copy;
}

static ch_example_schema *schema_of(int n, const ch_feature *f)
{
    ch_example_schema *s = NULL;

    assert_int_equal(ch__example_schema_new(n, f, &s), CH_OK);
    return s;
}

static ch_element *parsed(const ch_example_schema *s, const bytes *b)
{
    ch_element *e = NULL;
    ch_status   rc = ch__example_parse(s, record_of(b->data, b->n), &e);

    if (rc != CH_OK)
        fail_msg("%s", ch_error_message());
    return e;
}

/* Checks that the error message contains all of these words, up to NULL. */
static void assert_fails(const ch_feature *f, const bytes *b, ch_status rc, const char *word,
                         ...)
{
    ch_example_schema *s = schema_of(1, f);
    ch_element        *e = NULL;
    int64_t            live = ch__mem_live();
    va_list            args;

    assert_int_equal(ch__example_parse(s, record_of(b->data, b->n), &e), rc);
    va_start(args, word);
    for (; word != NULL; word = va_arg(args, const char *))
        if (strstr(ch_error_message(), word) == NULL)
            fail_msg("\"%s\" is not in: %s", word, ch_error_message());
    va_end(args);
    assert_null(e);
    assert_int_equal(ch__mem_live(), live);
    ch__example_schema_free(s);
}

/* Appends {name: the list of `kind` with these fields in it}. */
static bytes example_of(const char *name, int kind, const void *values, size_t n)
{
    bytes feature = {.n = 0}, entry = {.n = 0}, features = {.n = 0}, example = {.n = 0};

    add_message(&feature, kind, values, n);
    add_message(&entry, 1, name, strlen(name));
    add_message(&entry, 2, feature.data, feature.n);
    add_message(&features, 1, entry.data, entry.n);
    add_message(&example, 1, features.data, features.n);
    return example;
}

static bytes example_of_integers(int n, const int64_t *x)
{
    bytes packed = {.n = 0}, list = {.n = 0};

    for (int i = 0; i < n; i++)
        add_varint(&packed, (uint64_t)x[i]);
    add_message(&list, 1, packed.data, packed.n);
    return example_of("x", 3, list.data, list.n);
}

static bytes example_of_floats(int n, const float *x)
{
    bytes list = {.n = 0};

    add_message(&list, 1, x, (size_t)n * sizeof(*x));
    return example_of("x", 2, list.data, list.n);
}

static bytes example_of_strings(int n, const char *const *x)
{
    bytes list = {.n = 0};

    for (int i = 0; i < n; i++)
        add_message(&list, 1, x[i], strlen(x[i]));
    return example_of("x", 1, list.data, list.n);
}

static double value_at(const ch_element *e, int part, int i)
{
    size_t size = ch_dtype_bytes(e->part[part].dtype);
    char   aligned[8];

    memcpy(aligned, (const char *)e->part[part].data + (size_t)i * size, size);
    return ch__load(e->part[part].dtype, aligned);
}

static void assert_string(const ch_element *e, int part, int i, const char *text)
{
    ch_str s = ((const ch_str *)e->part[part].data)[i];

    assert_int_equal(s.size, strlen(text));
    assert_memory_equal(s.data, text, s.size);
}

/* ---- a single feature ---- */

/* EX-2 */
static void example_parse_reads_the_bytes_of_the_specification(void **state)
{
    static const uint8_t data[] = {0x0a, 0x0d, 0x0a, 0x0b, 0x0a, 0x01, 0x61, 0x12,
                                   0x06, 0x1a, 0x04, 0x0a, 0x02, 0x01, 0x02};
    ch_feature           f = {.name = "a", .dtype = CH_I64, .shape = ch_shape_of(2)};
    ch_example_schema   *s = schema_of(1, &f);
    ch_element          *e = NULL;

    assert_int_equal(ch__example_parse(s, record_of(data, sizeof(data)), &e), CH_OK);
    assert_int_equal(e->n, 1);
    assert_int_equal(e->part[0].dtype, CH_I64);
    assert_true(ch_shape_equal(e->part[0].shape, ch_shape_of(2)));
    assert_memory_equal(e->part[0].data, ((int64_t[]){1, 2}), 16);
    assert_int_equal(e->n_owners, 0); /* no reference to the record: its block is free */
    ch__element_free(e);
    ch__example_schema_free(s);
    (void)state;
}

static void example_parse_converts_int64_to_every_number_dtype(void **state)
{
    static const int64_t x[] = {0, 1, 0, 1};

    for (int t = 0; t < CH_DTYPE_COUNT; t++) {
        ch_feature f = {.name = "x", .dtype = (ch_dtype)t, .shape = ch_shape_of(2, 2)};
        bytes      b = example_of_integers(4, x);

        if (t == CH_STR) {
            assert_fails(&f, &b, CH_INVALID_ARGUMENT, "\"x\"", "int64", "string(2, 2)", NULL);
            continue;
        }
        ch_example_schema *s = schema_of(1, &f);
        ch_element        *e = parsed(s, &b);
        assert_true(ch_shape_equal(e->part[0].shape, f.shape));
        for (int i = 0; i < 4; i++)
            assert_true(value_at(e, 0, i) == (double)x[i]);
        ch__element_free(e);
        ch__example_schema_free(s);
    }
    (void)state;
}

static void example_parse_rejects_an_integer_out_of_range_of_its_dtype(void **state)
{
    static const struct {
        ch_dtype dtype;
        int64_t  low, high; /* the limits of the dtype */
    } rows[] = {{CH_BOOL, 0, 1},         {CH_I8, -128, 127},    {CH_U8, 0, 255},
                {CH_I16, -32768, 32767}, {CH_U16, 0, 65535},    {CH_I32, INT32_MIN, INT32_MAX},
                {CH_U32, 0, UINT32_MAX}, {CH_U64, 0, INT64_MAX}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        ch_feature         f = {.name = "x", .dtype = rows[i].dtype, .shape = ch_shape_of(3)};
        ch_example_schema *s = schema_of(1, &f);
        bytes       b = example_of_integers(3, (int64_t[]){0, rows[i].low, rows[i].high});
        ch_element *e = parsed(s, &b);

        assert_true(value_at(e, 0, 1) == (double)rows[i].low);
        assert_true(value_at(e, 0, 2) == (double)rows[i].high);
        b = example_of_integers(3, (int64_t[]){0, 0, rows[i].low - 1});
        assert_fails(&f, &b, CH_INVALID_ARGUMENT, "\"x\"", "-", ch_dtype_name(f.dtype), NULL);
        b = example_of_integers(3, (int64_t[]){0, 0, (int64_t)((uint64_t)rows[i].high + 1)});
        assert_fails(&f, &b, CH_INVALID_ARGUMENT, "out of range", NULL);
        ch__element_free(e);
        ch__example_schema_free(s);
    }
    (void)state;
}

static void example_parse_converts_floats_to_floating_dtypes_only(void **state)
{
    static const float x[] = {0.5f, -2.0f, 1024.0f};

    for (int t = 0; t < CH_DTYPE_COUNT; t++) {
        ch_feature f = {.name = "x", .dtype = (ch_dtype)t, .shape = ch_shape_of(3)};
        bytes      b = example_of_floats(3, x);

        if (!ch_dtype_is_float(f.dtype)) {
            assert_fails(&f, &b, CH_INVALID_ARGUMENT, "\"x\"", "float", ch_dtype_name(f.dtype),
                         NULL);
            continue;
        }
        ch_example_schema *s = schema_of(1, &f);
        ch_element        *e = parsed(s, &b);
        for (int i = 0; i < 3; i++)
            assert_true(value_at(e, 0, i) == x[i]);
        ch__element_free(e);
        ch__example_schema_free(s);
    }
    (void)state;
}

static void example_parse_does_not_copy_strings_and_bytes(void **state)
{
    const char        *two[] = {"one", ""}, *pixels[] = {"\x01\x02\xff"};
    ch_feature         text = {.name = "x", .dtype = CH_STR, .shape = ch_shape_of(2)};
    ch_feature         image = {.name = "x", .dtype = CH_U8, .shape = ch_shape_of(3)};
    ch_example_schema *s = schema_of(1, &text), *u = schema_of(1, &image);
    bytes              b = example_of_strings(2, two), c = example_of_strings(1, pixels);
    ch_element        *record = record_of(b.data, b.n), *e = NULL;
    ch_buffer         *owner = record->owner[0];

    assert_int_equal(ch__example_parse(s, record, &e), CH_OK);
    assert_string(e, 0, 0, "one");
    assert_string(e, 0, 1, "");
    assert_ptr_equal(e->owner[0], owner);
    assert_int_equal(atomic_load(&owner->refs), 1);
    ch__element_free(e);

    record = record_of(c.data, c.n);
    const char *data = (*(const ch_str *)record->part[0].data).data;
    assert_int_equal(ch__example_parse(u, record, &e), CH_OK);
    assert_memory_equal(e->part[0].data, "\x01\x02\xff", 3);
    assert_in_range((uintptr_t)e->part[0].data, (uintptr_t)data, (uintptr_t)(data + c.n - 3));
    ch__element_free(e);
    ch__example_schema_free(s);
    ch__example_schema_free(u);
    (void)state;
}

static void example_parse_does_not_copy_packed_floats(void **state)
{
    ch_feature         f = {.name = "x", .dtype = CH_F32, .shape = ch_shape_of(-1)};
    ch_example_schema *s = schema_of(1, &f);
    bytes              b = example_of_floats(2, (float[]){1, 2});
    ch_element        *record = record_of(b.data, b.n), *e = NULL;
    const char        *data = (*(const ch_str *)record->part[0].data).data;

    assert_int_equal(ch__example_parse(s, record, &e), CH_OK);
    assert_ptr_equal(e->part[0].data, data + b.n - 8);
    assert_int_equal(e->n_owners, 1);
    ch__element_free(e);
    ch__example_schema_free(s);
    (void)state;
}

static void example_parse_keeps_a_record_that_owns_its_bytes(void **state)
{
    ch_feature         f = {.name = "x", .dtype = CH_STR};
    ch_example_schema *s = schema_of(1, &f);
    const char        *text[] = {"hello"};
    bytes              b = example_of_strings(1, text);
    int64_t            live = ch__mem_live();
    ch_element        *e = NULL;

    assert_int_equal(ch__example_parse(s, record_without_block(b.data, b.n), &e), CH_OK);
    assert_string(e, 0, 0, "hello");
    ch__element_free(e);
    assert_int_equal(ch__mem_live(), live);
    ch__example_schema_free(s);
    (void)state;
}

/* ---- shapes ---- */

static void example_feature_of_size_minus_one_takes_all_rows(void **state)
{
    ch_feature         f = {.name = "x", .dtype = CH_I32, .shape = ch_shape_of(-1, 2)};
    ch_example_schema *s = schema_of(1, &f);

    for (int n = 0; n <= 200; n += 2) {
        int64_t x[200];

        for (int i = 0; i < n; i++)
            x[i] = i * i * i;
        bytes       b = example_of_integers(n, x);
        ch_element *e = parsed(s, &b);
        assert_true(ch_shape_equal(e->part[0].shape, ch_shape_of(n / 2, 2)));
        for (int i = 0; i < n; i++)
            assert_int_equal(((const int32_t *)e->part[0].data)[i], x[i]);
        ch__element_free(e);
    }
    bytes odd = example_of_integers(3, (int64_t[]){1, 2, 3});
    assert_fails(&f, &odd, CH_INVALID_ARGUMENT, "3 int64 values", "i32(?, 2)",
                 "a multiple of 2", NULL);
    ch__example_schema_free(s);
    (void)state;
}

static void example_parse_rejects_a_wrong_number_of_values(void **state)
{
    const char *three[] = {"a", "bc", "d"};
    ch_feature  f = {.name = "x", .dtype = CH_F32, .shape = ch_shape_of(2, 2)};
    bytes       b = example_of_floats(3, (float[]){1, 2, 3});

    assert_fails(&f, &b, CH_INVALID_ARGUMENT, "\"x\" has 3 float values", "f32(2, 2)",
                 "needs 4", NULL);
    f = (ch_feature){.name = "x", .dtype = CH_I64};
    b = example_of_integers(0, NULL);
    assert_fails(&f, &b, CH_INVALID_ARGUMENT, "0 int64 values", "needs 1", NULL);
    f = (ch_feature){.name = "x", .dtype = CH_U8, .shape = ch_shape_of(4)};
    b = example_of_strings(3, three);
    assert_fails(&f, &b, CH_INVALID_ARGUMENT, "3 byte strings", "needs exactly 1", NULL);
    b = example_of_strings(1, &three[1]);
    assert_fails(&f, &b, CH_INVALID_ARGUMENT, "2 bytes values", "needs 4", NULL);
    (void)state;
}

/* ---- missing ---- */

static void example_parse_gives_a_missing_feature_its_default_or_no_rows(void **state)
{
    const ch_feature f[] = {
        {.name = "a",
         .dtype = CH_F32,
         .shape = ch_shape_of(2),
         .optional = true,
         .missing = -1},
        {.name = "b", .dtype = CH_STR, .optional = true, .missing_text = "none"},
        {.name = "c", .dtype = CH_STR, .shape = ch_shape_of(2), .optional = true},
        {.name = "d", .dtype = CH_I64, .shape = ch_shape_of(-1, 3), .optional = true},
        {.name = "e", .dtype = CH_BOOL, .optional = true, .missing = 1}};
    ch_example_schema *s = schema_of(5, f);
    bytes              nothing = {.n = 0};
    ch_element        *e = parsed(s, &nothing);

    ch__example_schema_free(s); /* the element stays valid */
    assert_true(value_at(e, 0, 0) == -1 && value_at(e, 0, 1) == -1);
    assert_string(e, 1, 0, "none");
    assert_string(e, 2, 0, "");
    assert_string(e, 2, 1, "");
    assert_true(ch_shape_equal(e->part[3].shape, ch_shape_of(0, 3)));
    assert_true(value_at(e, 4, 0) == 1);
    ch__element_free(e);
    (void)state;
}

static void example_parse_rejects_a_missing_feature_that_is_not_optional(void **state)
{
    ch_feature f = {.name = "label", .dtype = CH_I64};
    bytes      b = example_of_integers(1, (int64_t[]){1}), nothing = {.n = 0};

    assert_fails(&f, &b, CH_INVALID_ARGUMENT, "\"label\"", "has \"x\"", NULL);
    assert_fails(&f, &nothing, CH_INVALID_ARGUMENT, "\"label\"", "no features", NULL);
    (void)state;
}

/* EX-3: a Feature with no kind set. */
static void example_feature_of_no_kind_counts_as_missing(void **state)
{
    static const uint8_t no_kind[] = {0x0a, 0x07, 0x0a, 0x05, 0x0a, 0x01, 'x', 0x12, 0x00};
    static const uint8_t no_value[] = {0x0a, 0x05, 0x0a, 0x03, 0x0a, 0x01, 'x'};
    ch_feature           f = {.name = "x", .dtype = CH_I64, .optional = true, .missing = 7};
    ch_example_schema   *s = schema_of(1, &f);
    ch_element          *e = NULL;

    assert_int_equal(ch__example_parse(s, record_of(no_kind, sizeof(no_kind)), &e), CH_OK);
    assert_true(value_at(e, 0, 0) == 7);
    ch__element_free(e);
    assert_int_equal(ch__example_parse(s, record_of(no_value, sizeof(no_value)), &e), CH_OK);
    assert_true(value_at(e, 0, 0) == 7);
    ch__element_free(e);
    ch__example_schema_free(s);
    (void)state;
}

/* ---- schemas ---- */

static void example_schema_rejects_invalid_features(void **state)
{
    const ch_feature rows[] = {
        {.name = NULL, .dtype = CH_F32},
        {.name = "", .dtype = CH_F32},
        {.name = "x", .dtype = CH_DTYPE_COUNT},
        {.name = "x", .dtype = CH_F32, .shape = ch_shape_of(2, -1)},
        {.name = "x", .dtype = CH_F32, .shape = ch_shape_of(-2)},
        {.name = "x", .dtype = CH_F32, .shape = ch_shape_of(-1, 0)},
        {.name = "x", .dtype = CH_F32, .shape = {.rank = 9}},
        {.name = "x", .dtype = CH_F32, .shape = {.rank = -1}},
        {.name = "x", .dtype = CH_F64, .shape = ch_shape_of(INT64_MAX, 2)},
        {.name = "x", .dtype = CH_U8, .optional = true, .missing = 256},
        {.name = "x", .dtype = CH_I32, .optional = true, .missing = 0.5},
    };
    ch_example_schema *s = NULL;
    int64_t            live = ch__mem_live();
    char               name[5000];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(ch__example_schema_new(1, &rows[i], &s), CH_INVALID_ARGUMENT);
        assert_non_null(strstr(ch_error_message(), "parse_examples"));
    }
    assert_int_equal(ch__example_schema_new(0, rows, &s), CH_INVALID_ARGUMENT);
    const ch_feature twice[] = {{.name = "same", .dtype = CH_F32}, {.name = "same"}};
    assert_int_equal(ch__example_schema_new(2, twice, &s), CH_INVALID_ARGUMENT);
    assert_non_null(strstr(ch_error_message(), "\"same\" is given twice"));
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    assert_int_equal(ch__example_schema_new(1, &(ch_feature){.name = name}, &s),
                     CH_INVALID_ARGUMENT);
    assert_null(s);
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

static void example_schema_rejects_defaults_whose_bytes_overflow(void **state)
{
    const ch_feature f[] = {
        {.name = "a", .shape = ch_shape_of(INT64_MAX / 8), .optional = true},
        {.name = "b", .shape = ch_shape_of(INT64_MAX / 8), .optional = true},
        {.name = "c", .shape = ch_shape_of(INT64_MAX / 8), .optional = true}};
    ch_example_schema *s = NULL;

    assert_int_equal(ch__example_schema_new(3, f, &s), CH_RESOURCE_EXHAUSTED);
    (void)state;
}

static void example_schema_spec_has_names_dtypes_and_shapes(void **state)
{
    char                  name[] = "x";
    ch_feature            f = {.name = name, .dtype = CH_F64, .shape = ch_shape_of(-1, 2)};
    ch_example_schema    *s = schema_of(1, &f);
    const ch_tensor_spec *spec = NULL;

    name[0] = '?'; /* the library has copied it */
    assert_int_equal(ch__example_schema_spec(s, &spec), 1);
    assert_string_equal(spec[0].name, "x");
    assert_int_equal(spec[0].dtype, CH_F64);
    assert_true(ch_shape_equal(spec[0].shape, f.shape));
    ch__example_schema_free(s);
    ch__example_schema_free(NULL);
    (void)state;
}

static void example_parse_rejects_an_element_that_is_not_a_single_string(void **state)
{
    ch_feature         f = {.name = "x", .dtype = CH_F32};
    ch_example_schema *s = schema_of(1, &f);
    int64_t            live = ch__mem_live();
    ch_element        *e = ch__element_new(1, 0, 4), *out = NULL;

    e->part[0] = (ch_part){.dtype = CH_F32, .shape = ch_shape_scalar(), .data = e->room};
    assert_int_equal(ch__example_parse(s, e, &out), CH_INVALID_ARGUMENT);
    assert_non_null(strstr(ch_error_message(), "single string"));
    assert_int_equal(ch__example_parse(s, ch__element_new(0, 0, 0), &out), CH_INVALID_ARGUMENT);
    assert_int_equal(ch__mem_live(), live);
    ch__example_schema_free(s);
    (void)state;
}

/* ---- damage ---- */

static void example_parse_error_names_the_byte_of_malformed_data(void **state)
{
    static const struct {
        const char *data;
        size_t      n;
        const char *words[2];
    } rows[] = {
        {"\x0a\x05\x0a", 3, {"byte 0 of 3", "longer than the rest"}},
        {"\x0b", 1, {"byte 0 of 1", "type"}}, /* a group */
        {"\x08\x01\x0f", 3, {"byte 2 of 3", "type"}},
        {"\x02\x00", 2, {"byte 0 of 2", "invalid field number"}},
        {"\xff\xff\xff\xff\xff\x01\x00", 7, {"byte 0 of 7", "invalid field number"}},
        {"\x08\xff", 2, {"byte 1 of 2", "does not end"}},
        {"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", 12, {"byte 1", "ten bytes"}},
        {"\x0d\x00\x00\x00", 4, {"byte 0 of 4", "rest"}},
        {"\x09\x00\x00\x00\x00\x00\x00\x00", 8, {"byte 0 of 8", "rest"}},
        /* 2^63 - 1 bytes */
        {"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 10, {"byte 0 of 10", "rest"}},
        {"\x0a\x0b\x0a\x09\x0a\x01x\x12\x04\x12\x02\x0a\x63", 13, {"byte 11 of 13", "rest"}},
        {"\x0a\x0e\x0a\x0c\x0a\x01x\x12\x07\x12\x05\x0a\x03\x01\x02\x03",
         16,
         {"byte 13", "multiple of 4"}},
        {"\x0a\x0c\x0a\x0a\x0a\x01x\x12\x05\x1a\x03\x0a\x01\x80", 14, {"byte 13", "not end"}},
        {"\x0a\x17\x0a\x15\x0a\x01x\x12\x10\x1a\x0e\x0a\x0c"
         "\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
         25,
         {"byte 13", "ten bytes"}},
    };
    ch_feature f = {.name = "x", .dtype = CH_F32};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bytes b = {.n = 0};

        add(&b, rows[i].data, rows[i].n);
        assert_fails(&f, &b, CH_DATA_LOSS, rows[i].words[0], rows[i].words[1], NULL);
    }
    (void)state;
}

/* ---- every form of the same example ---- */

/* Appends a random field that messages of Example do not have, or have with another type. */
static void add_unknown(dice *d, bytes *b)
{
    int number = (int)roll(d, 2) ? 4 + (int)roll(d, 1000) : 1 + (int)roll(d, 3);

    switch (roll(d, 4)) {
    case 0:
        add_tag(b, number > 3 ? number : 9, 0);
        add_varint(b, roll_bits(d));
        break;
    case 1:
        add_tag(b, number, 1);
        add(b, "12345678", 8);
        break;
    case 2:
        add_message(b, number > 3 ? number : 4, "unknown", roll(d, 8));
        break;
    default:
        add_tag(b, number > 3 ? number : 7, 5);
        add(b, "1234", 4);
    }
}

static void add_some_unknown(dice *d, bytes *b)
{
    while (roll(d, 4) == 0)
        add_unknown(d, b);
}

/* Values of a feature, all of the same kind; floats and integers as bits. */
typedef struct model {
    int      kind; /* 0: not in the example */
    int      n;
    uint64_t x[100];
} model;

static void add_value(const model *m, int i, bytes *b)
{
    float f;

    if (m->kind == 3) {
        add_varint(b, m->x[i]);
    } else {
        f = (float)(int64_t)m->x[i];
        add(b, &f, sizeof(f));
    }
}

/* Appends values [from, to) as fields of a list. */
static void add_values(dice *d, const model *m, int from, int to, bytes *list)
{
    while (from < to) {
        bytes packed = {.n = 0};
        int   next = from + 1 + (int)roll(d, (uint64_t)(to - from));

        add_some_unknown(d, list);
        if (m->kind == 1) {
            add_message(list, 1, &m->x[from], m->x[from] % 9);
            next = from + 1;
        } else if (roll(d, 3) == 0) {
            add_tag(list, 1, m->kind == 3 ? 0 : 5);
            add_value(m, from, list);
            next = from + 1;
        } else {
            for (int i = from; i < next; i++)
                add_value(m, i, &packed);
            add_message(list, 1, packed.data, packed.n);
        }
        from = next;
    }
    add_some_unknown(d, list);
}

/* Appends the Feature. Lists of the same kind are merged; a list replaces earlier lists of
 * other kinds. */
static void add_feature(dice *d, const model *m, bytes *feature)
{
    int half = m->n / 2;

    add_some_unknown(d, feature);
    if (m->kind == 0)
        return;
    if (roll(d, 8) == 0)
        add_message(feature, 1 + m->kind % 3, "\x0a\x00", 2);
    if (roll(d, 8) == 0) {
        bytes first = {.n = 0};

        add_values(d, m, 0, half, &first);
        add_message(feature, m->kind, first.data, first.n);
        add_some_unknown(d, feature);
    } else {
        half = 0;
    }
    bytes list = {.n = 0};
    add_values(d, m, half, m->n, &list);
    add_message(feature, m->kind, list.data, list.n);
    add_some_unknown(d, feature);
}

static void add_entry(dice *d, const char *name, const model *m, bytes *features)
{
    bytes feature = {.n = 0}, entry = {.n = 0};
    bool  key_first = roll(d, 4) != 0;

    add_feature(d, m, &feature);
    add_some_unknown(d, &entry);
    if (key_first)
        add_message(&entry, 1, name, strlen(name));
    add_message(&entry, 2, feature.data, feature.n);
    add_some_unknown(d, &entry);
    if (!key_first)
        add_message(&entry, 1, name, strlen(name));
    add_message(features, 1, entry.data, entry.n);
    add_some_unknown(d, features);
}

static void roll_model(dice *d, int kind, int n, model *m)
{
    m->kind = kind;
    m->n = n;
    for (int i = 0; i < n; i++)
        m->x[i] = roll_bits(d) >> roll(d, 64) >> (kind == 2 ? 40 : 0);
}

enum { N_FEATURES = 6 };

static const ch_feature every_kind[N_FEATURES] = {
    {.name = "label", .dtype = CH_I64},
    {.name = "image", .dtype = CH_F32, .shape = {2, {5, 3}}},
    {.name = "a_name_of_more_than_eight_bytes", .dtype = CH_F64, .shape = {1, {-1}}},
    {.name = "words", .dtype = CH_STR, .shape = {1, {-1}}, .optional = true},
    {.name = "ids", .dtype = CH_I64, .shape = {2, {-1, 3}}, .optional = true},
    {.name = "weight", .dtype = CH_F32, .optional = true, .missing = 0.5}};

static void roll_models(dice *d, model *m)
{
    roll_model(d, 3, 1, &m[0]);
    roll_model(d, 2, 15, &m[1]);
    roll_model(d, 2, (int)roll(d, 20), &m[2]);
    roll_model(d, (int)roll(d, 2), (int)roll(d, 20), &m[3]);
    roll_model(d, roll(d, 2) ? 3 : 0, 3 * (int)roll(d, 30), &m[4]);
    roll_model(d, roll(d, 2) ? 2 : 0, 1, &m[5]);
}

static void write_example(dice *d, const model *m, bytes *out)
{
    bytes features = {.n = 0};
    int   first = (int)roll(d, N_FEATURES);

    for (int i = 0; i < N_FEATURES; i++) {
        int f = (first + i) % N_FEATURES;

        if (roll(d, 6) == 0) /* the last entry counts */
            add_entry(d, every_kind[f].name, &m[roll(d, N_FEATURES)], &features);
        if (roll(d, 6) == 0)
            add_entry(d, "nobody asks", &m[f], &features);
        if (roll(d, 6) == 0) { /* Features in two fields of the example */
            add_message(out, 1, features.data, features.n);
            features.n = 0;
        }
        if (m[f].kind != 0 || roll(d, 2))
            add_entry(d, every_kind[f].name, &m[f], &features);
        else /* cancels an earlier entry of that name */
            add_entry(d, every_kind[f].name, &(model){.kind = 0}, &features);
    }
    add_some_unknown(d, out);
    add_message(out, 1, features.data, features.n);
    add_some_unknown(d, out);
}

static void assert_is(const ch_element *e, int f, const model *m)
{
    const ch_part *p = &e->part[f];

    if (m->kind == 0) {
        assert_int_equal(ch_shape_count(p->shape), f == 5 ? 1 : 0);
        assert_true(f != 5 || value_at(e, f, 0) == 0.5);
        return;
    }
    assert_int_equal(ch_shape_count(p->shape), m->n);
    for (int i = 0; i < m->n; i++) {
        if (p->dtype == CH_I64) {
            assert_int_equal(((const int64_t *)p->data)[i], (int64_t)m->x[i]);
        } else if (p->dtype == CH_STR) {
            ch_str s = ((const ch_str *)p->data)[i];

            assert_int_equal(s.size, m->x[i] % 9);
            assert_memory_equal(s.data, &m->x[i], s.size);
        } else {
            assert_true(value_at(e, f, i) == (float)(int64_t)m->x[i]);
        }
    }
}

/* EX-1, EX-3, EX-4 */
static void example_parse_reads_every_valid_encoding_alike(void **state)
{
    ch_example_schema *s = schema_of(N_FEATURES, every_kind);

    for (uint64_t seed = 0; seed < 3000; seed++) {
        dice  d = {seed};
        bytes b = {.n = 0};
        model m[N_FEATURES];

        roll_models(&d, m);
        write_example(&d, m, &b);
        ch_element *e = parsed(s, &b);
        for (int f = 0; f < N_FEATURES; f++)
            assert_is(e, f, &m[f]);
        ch__element_free(e);
    }
    ch__example_schema_free(s);
    (void)state;
}

static void example_parse_survives_a_record_cut_anywhere(void **state)
{
    ch_example_schema *s = schema_of(N_FEATURES, every_kind);
    dice               d = {5};
    bytes              b = {.n = 0};
    model              m[N_FEATURES];

    roll_models(&d, m);
    write_example(&d, m, &b);
    int64_t live = ch__mem_live();
    for (size_t n = 0; n < b.n; n++) {
        ch_element *e = NULL;

        if (ch__example_parse(s, record_of(b.data, n), &e) == CH_OK)
            ch__element_free(e);
        assert_int_equal(ch__mem_live(), live);
    }
    ch__example_schema_free(s);
    (void)state;
}

static void example_parse_survives_any_changed_byte(void **state)
{
    ch_example_schema *s = schema_of(N_FEATURES, every_kind);
    dice               d = {6};
    bytes              b = {.n = 0};
    model              m[N_FEATURES];

    roll_models(&d, m);
    write_example(&d, m, &b);
    int64_t live = ch__mem_live();
    for (size_t i = 0; i < b.n; i++)
        for (int k = 0; k < 16; k++) {
            ch_element *e = NULL;
            uint8_t     was = b.data[i];

            b.data[i] = (uint8_t)roll_bits(&d);
            if (ch__example_parse(s, record_of(b.data, b.n), &e) == CH_OK)
                ch__element_free(e);
            b.data[i] = was;
            assert_int_equal(ch__mem_live(), live);
        }
    ch__example_schema_free(s);
    (void)state;
}

/* The parser reads all that the library writes: every dtype that a feature can have. */
static void example_encode_output_is_parsed_to_the_same_values(void **state)
{
    ch_example *x = NULL;
    ch_tensor  *numbers[CH_DTYPE_COUNT] = {NULL};
    ch_feature  f[CH_DTYPE_COUNT];
    ch_str      encoded;

    assert_int_equal(ch_example_new(&x), CH_OK);
    for (int t = 0; t < CH_DTYPE_COUNT; t++) {
        f[t] = (ch_feature){.name = ch_dtype_name((ch_dtype)t),
                            .dtype = (ch_dtype)t,
                            .shape = ch_shape_of(2, 2)};
        assert_int_equal(ch_tensor_new(f[t].dtype, f[t].shape, &numbers[t]), CH_OK);
        for (int i = 0; i < 4; i++) {
            int64_t at[] = {i / 2, i % 2};

            if (t == CH_STR)
                assert_int_equal(ch_tensor_set_str(numbers[t], at, (ch_str){"text", (size_t)i}),
                                 CH_OK);
            else
                assert_int_equal(ch_tensor_set(numbers[t], at, i % 2), CH_OK);
        }
        assert_int_equal(ch_example_set(x, f[t].name, numbers[t]), CH_OK);
    }
    assert_int_equal(ch_example_encode(x, &encoded), CH_OK);

    ch_example_schema *s = schema_of(CH_DTYPE_COUNT, f);
    ch_element        *e = NULL;
    assert_int_equal(ch__example_parse(s, record_of(encoded.data, encoded.size), &e), CH_OK);
    for (int t = 0; t < CH_DTYPE_COUNT; t++)
        for (int i = 0; i < 4; i++)
            if (t == CH_STR)
                assert_memory_equal(((const ch_str *)e->part[t].data)[i].data, "text",
                                    (size_t)i);
            else
                assert_true(value_at(e, t, i) == i % 2);
    ch__element_free(e);
    ch__example_schema_free(s);
    for (int t = 0; t < CH_DTYPE_COUNT; t++)
        ch_tensor_unref(numbers[t]);
    ch_example_free(x);
    (void)state;
}

/* ---- many features, many threads, little memory ---- */

static void example_parse_finds_a_thousand_features_in_any_order(void **state)
{
    enum { N = 1000 };
    ch_feature *f = calloc(N, sizeof(*f));
    char(*name)[16] = calloc(N, sizeof(*name));
    bytes *features = calloc(1, sizeof(*features)), *b = calloc(1, sizeof(*b));

    for (int i = 0; i < N; i++) {
        snprintf(name[i], sizeof(name[i]), "f%d", i);
        f[i] = (ch_feature){.name = name[i], .dtype = CH_I32};
    }
    for (int i = 0; i < N; i++) {
        int   k = i * 7 % N;
        bytes list = {.n = 0}, feature = {.n = 0}, entry = {.n = 0};

        add_tag(&list, 1, 0);
        add_varint(&list, (uint64_t)k);
        add_message(&feature, 3, list.data, list.n);
        add_message(&entry, 1, name[k], strlen(name[k]));
        add_message(&entry, 2, feature.data, feature.n);
        add_message(features, 1, entry.data, entry.n);
    }
    add_message(b, 1, features->data, features->n);
    ch_example_schema *s = schema_of(N, f);
    ch_element        *e = parsed(s, b);
    for (int i = 0; i < N; i++)
        assert_true(value_at(e, i, 0) == i);
    ch__element_free(e);
    ch__example_schema_free(s);
    free(f);
    free(name);
    free(features);
    free(b);
    (void)state;
}

typedef struct shared {
    const ch_example_schema *schema;
    atomic_int               n_wrong;
} shared;

static void parse_in_thread(void *arg, int i)
{
    shared *x = arg;
    dice    d = {(uint64_t)i};
    model   m[N_FEATURES];

    for (int k = 0; k < 100; k++) {
        bytes       b = {.n = 0};
        ch_element *e = NULL;

        roll_models(&d, m);
        write_example(&d, m, &b);
        if (ch__example_parse(x->schema, record_of(b.data, b.n), &e) != CH_OK ||
            value_at(e, 0, 0) != (double)(int64_t)m[0].x[0])
            atomic_fetch_add(&x->n_wrong, 1);
        ch__element_free(e);
    }
}

static void example_schema_is_shared_by_threads(void **state)
{
    ch_example_schema *s = schema_of(N_FEATURES, every_kind);
    shared             x = {.schema = s};
    ch_team           *team = NULL;

    assert_int_equal(ch__team_new("test", 4, &team), CH_OK);
    ch__team_run(team, 8, parse_in_thread, &x);
    ch__team_free(team);
    assert_int_equal(atomic_load(&x.n_wrong), 0);
    ch__example_schema_free(s);
    (void)state;
}

static void example_parse_leaks_nothing_when_out_of_memory(void **state)
{
    enum { N = 40 }; /* too many for the stack */
    ch_feature f[N];
    char       name[N][8];
    bytes      b = example_of_integers(1, (int64_t[]){3});
    ch_status  rc = CH_RESOURCE_EXHAUSTED;
    int64_t    live = ch__mem_live();

    for (int i = 0; i < N; i++) {
        snprintf(name[i], sizeof(name[i]), "f%d", i);
        f[i] = (ch_feature){.name = name[i], .dtype = CH_STR, .optional = true};
    }
    f[0] = (ch_feature){.name = "x", .dtype = CH_I64};
    for (int n = 1; rc != CH_OK; n++) {
        ch_element        *record = record_without_block(b.data, b.n), *e = NULL;
        ch_example_schema *s = NULL;

        ch__mem_fail_at(n);
        rc = ch__example_schema_new(N, f, &s);
        if (rc == CH_OK)
            rc = ch__example_parse(s, record, &e);
        else
            ch__element_free(record);
        ch__mem_fail_at(0);
        assert_true(rc == CH_OK || rc == CH_RESOURCE_EXHAUSTED);
        ch__element_free(e);
        ch__example_schema_free(s);
        assert_int_equal(ch__mem_live(), live);
    }
    (void)state;
}

static void example_parse_frees_the_kept_record_when_out_of_memory(void **state)
{
    const char        *text[] = {"hello"};
    ch_feature         f = {.name = "x", .dtype = CH_STR};
    ch_example_schema *s = schema_of(1, &f);
    bytes              b = example_of_strings(1, text);
    int64_t            live = ch__mem_live();
    ch_status          rc = CH_RESOURCE_EXHAUSTED;

    for (int n = 1; rc != CH_OK; n++) {
        ch_element *record = record_without_block(b.data, b.n), *e = NULL;

        ch__mem_fail_at(n);
        rc = ch__example_parse(s, record, &e);
        ch__mem_fail_at(0);
        assert_true(rc == CH_OK || rc == CH_RESOURCE_EXHAUSTED);
        ch__element_free(e);
        assert_int_equal(ch__mem_live(), live);
    }
    ch__example_schema_free(s);
    (void)state;
}

static int make_devices(void **state)
{
    ch_device_current(); /* made once, so that tests which count allocations do not count it */
    (void)state;
    return 0;
}

/* The default value of a missing feature is allocated with the schema, so its size must be
 * limited. */
static void example_schema_limits_the_bytes_of_defaults(void **state)
{
    const ch_feature huge = {
        .name = "x", .dtype = CH_F32, .shape = ch_shape_of(INT32_MAX), .optional = true};
    ch_example_schema *s = NULL;

    (void)state;
    assert_int_equal(ch__example_schema_new(1, &huge, &s), CH_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(ch_error_message(), "16 MiB"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(example_parse_reads_the_bytes_of_the_specification),
        cmocka_unit_test(example_parse_converts_int64_to_every_number_dtype),
        cmocka_unit_test(example_parse_rejects_an_integer_out_of_range_of_its_dtype),
        cmocka_unit_test(example_parse_converts_floats_to_floating_dtypes_only),
        cmocka_unit_test(example_parse_does_not_copy_strings_and_bytes),
        cmocka_unit_test(example_parse_does_not_copy_packed_floats),
        cmocka_unit_test(example_parse_keeps_a_record_that_owns_its_bytes),
        cmocka_unit_test(example_feature_of_size_minus_one_takes_all_rows),
        cmocka_unit_test(example_parse_rejects_a_wrong_number_of_values),
        cmocka_unit_test(example_parse_gives_a_missing_feature_its_default_or_no_rows),
        cmocka_unit_test(example_parse_rejects_a_missing_feature_that_is_not_optional),
        cmocka_unit_test(example_feature_of_no_kind_counts_as_missing),
        cmocka_unit_test(example_schema_rejects_invalid_features),
        cmocka_unit_test(example_schema_rejects_defaults_whose_bytes_overflow),
        cmocka_unit_test(example_schema_spec_has_names_dtypes_and_shapes),
        cmocka_unit_test(example_parse_rejects_an_element_that_is_not_a_single_string),
        cmocka_unit_test(example_parse_error_names_the_byte_of_malformed_data),
        cmocka_unit_test(example_parse_reads_every_valid_encoding_alike),
        cmocka_unit_test(example_parse_survives_a_record_cut_anywhere),
        cmocka_unit_test(example_parse_survives_any_changed_byte),
        cmocka_unit_test(example_encode_output_is_parsed_to_the_same_values),
        cmocka_unit_test(example_parse_finds_a_thousand_features_in_any_order),
        cmocka_unit_test(example_schema_is_shared_by_threads),
        cmocka_unit_test(example_parse_leaks_nothing_when_out_of_memory),
        cmocka_unit_test(example_schema_limits_the_bytes_of_defaults),
        cmocka_unit_test(example_parse_frees_the_kept_record_when_out_of_memory),
    };
    return cmocka_run_group_tests_name("example", tests, make_devices, NULL);
}

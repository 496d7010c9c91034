/* test/data/test_dataset.c -- each stage by itself, C functions in stages, and decoding of
 * datasets.
 *
 * The last tests decode short messages that describe very many stages or components. Decoding
 * must limit both.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "pipeline.h"

static ch_dataset *range(int64_t n)
{
    return ch_dataset_range(0, n, 1);
}

static void range_gives_its_numbers(void **state)
{
    (void)state;
    t_gives(range(4), "0 | 1 | 2 | 3");
    t_gives(ch_dataset_range(5, -3, -3), "5 | 2 | -1");
    t_gives(ch_dataset_range(5, 5, 1), "");
}

static void batch_stacks_elements_as_rows(void **state)
{
    (void)state;
    t_gives(ch_dataset_batch(range(7), 3, NULL), "0 1 2 | 3 4 5 | 6");
    t_gives(ch_dataset_batch(range(7), 3, &(ch_batch_options){.drop_remainder = true}),
            "0 1 2 | 3 4 5");
    t_gives(ch_dataset_batch(ch_dataset_batch(range(7), 2, NULL), 2, NULL),
            "0 1 2 3 | !INVALID_ARGUMENT");
}

static void take_skip_repeat_and_shard_count_elements(void **state)
{
    (void)state;
    t_gives(ch_dataset_take(range(9), 2), "0 | 1");
    t_gives(ch_dataset_skip(range(4), 2), "2 | 3");
    t_gives(ch_dataset_repeat(range(2), 3), "0 | 1 | 0 | 1 | 0 | 1");
    t_gives(ch_dataset_take(ch_dataset_repeat(range(2), CH_INFINITE), 5), "0 | 1 | 0 | 1 | 0");
    t_gives(ch_dataset_repeat(range(0), CH_INFINITE), "");
    t_gives(ch_dataset_shard(range(10), 3, 1), "1 | 4 | 7");
    t_gives(ch_dataset_repeat(ch_dataset_take(ch_dataset_batch(range(100), 2, NULL), 2), 2),
            "0 1 | 2 3 | 0 1 | 2 3");
}

static void zip_concatenate_and_enumerate_combine_datasets(void **state)
{
    (void)state;
    t_gives(ch_dataset_zip(2, (ch_dataset *[]){range(3), ch_dataset_range(7, 20, 1)}),
            "0, 7 | 1, 8 | 2, 9");
    t_gives(ch_dataset_concatenate(2, (ch_dataset *[]){range(2), ch_dataset_range(7, 9, 1)}),
            "0 | 1 | 7 | 8");
    t_gives(ch_dataset_enumerate(ch_dataset_range(7, 9, 1), 3), "3, 7 | 4, 8");
    t_gives(ch_dataset_skip(ch_dataset_enumerate(range(2), INT64_MAX), 1), "!OUT_OF_RANGE");
}

static void a_shuffle_is_a_permutation_that_the_seed_decides(void **state)
{
    static t_given a, b, c;
    ch_dataset    *d = ch_dataset_shuffle(range(20), 8, &(ch_shuffle_options){.seed = 5});
    ch_iterator   *it = NULL;

    (void)state;
    t_ok(ch_iterator_new(d, NULL, &it));
    t_take(it, -1, &a);
    t_ok(ch_iterator_restart(it));
    t_take(it, -1, &b);
    ch_iterator_unref(it);
    t_ok(ch_iterator_new(d, NULL, &it));
    t_take(it, -1, &c);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    assert_string_equal(a.text, c.text);
    assert_string_not_equal(a.text, b.text);
}

static void iterator_restores_a_saved_position(void **state)
{
    ch_dataset *d = ch_dataset_batch(
        ch_dataset_repeat(ch_dataset_shuffle(range(20), 8, &(ch_shuffle_options){.seed = 5}),
                          2),
        3, NULL);
    static t_given whole, rest;

    for (int n = 0; n < 15; n++) {
        ch_iterator *it = NULL, *other = NULL;
        void        *bytes = NULL;
        size_t       size = 0;
        t_given      head = {0};

        memset(&whole, 0, sizeof(whole));
        memset(&rest, 0, sizeof(rest));
        t_ok(ch_iterator_new(d, NULL, &it));
        t_take(it, n, &head);
        t_ok(ch_iterator_save(it, &bytes, &size));
        t_take(it, -1, &whole);
        t_ok(ch_iterator_new(d, NULL, &other));
        t_ok(ch_iterator_restore(other, bytes, size));
        t_take(other, -1, &rest);
        assert_string_equal(whole.text, rest.text);
        ch_bytes_free(bytes);
        ch_iterator_unref(it);
        ch_iterator_unref(other);
    }
    ch_dataset_unref(d);
    (void)state;
}

static void dataset_print_shows_the_stages(void **state)
{
    char        text[1000];
    ch_dataset *d = ch_dataset_batch(ch_dataset_shuffle(range(20), 8, NULL), 3, NULL);

    (void)state;
    ch_dataset_print(d, text, sizeof(text));
    assert_string_equal(text, "batch size=3  (i64(?,)) x 7\n"
                              "shuffle buffer=8  (i64()) x 20\n"
                              "range to=20 step=1  (i64()) x 20\n");
    ch_dataset_unref(d);
    d = ch_dataset_csv(ch_dataset_file_list(1, (const char *[]){"a.csv"}), 2,
                       (ch_csv_column[]){{.name = "x", .dtype = CH_I64}, {.name = "y"}},
                       &(ch_csv_options){.read = {.skip_bad = true}, .separator = ';'});
    d = ch_dataset_zip(2, (ch_dataset *[]){ch_dataset_take(range(3), 2), d});
    ch_dataset_print(d, text, sizeof(text));
    assert_string_equal(
        text,
        "zip  (i64(), x: i64(), y: f32()) x ?\n"
        "  - take count=2  (i64()) x 2\n"
        "    range to=3 step=1  (i64()) x 3\n"
        "  - csv skip_bad columns=2 [\"x\", \"y\"] separator=';'  (x: i64(), y: f32()) x ?\n"
        "    file_list path=[\"a.csv\"]  (string()) x 1\n");
    ch_dataset_unref(d);
}

static void cardinality_is_known_for_common_stages(void **state)
{
    const struct {
        ch_dataset *d;
        int64_t     n;
    } row[] = {
        {range(7), 7},
        {ch_dataset_batch(range(7), 3, NULL), 3},
        {ch_dataset_batch(range(7), 3, &(ch_batch_options){.drop_remainder = true}), 2},
        {ch_dataset_repeat(range(7), CH_INFINITE), CH_INFINITE},
        {ch_dataset_take(ch_dataset_repeat(range(7), CH_INFINITE), 9), 9},
        {ch_dataset_skip(range(7), 2), 5},
        {ch_dataset_shard(range(7), 3, 1), 2},
        {ch_dataset_shard(range(7), INT64_MAX, 6), 1},
        {ch_dataset_shard(range(7), INT64_MAX, 7), 0},
        {ch_dataset_zip(2, (ch_dataset *[]){range(7), range(4)}), 4},
        {ch_dataset_concatenate(2, (ch_dataset *[]){range(7), range(4)}), 11},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        assert_int_equal(ch_dataset_cardinality(row[i].d), row[i].n);
        ch_dataset_unref(row[i].d);
    }
}

static void element_spec_has_name_dtype_and_shape(void **state)
{
    ch_tensor            *t = t_f32(ch_shape_of(4, 2), NULL);
    ch_dataset           *d = ch_dataset_of(1, &t, (const char *[]){"x"});
    ch_iterator          *it = NULL, *same;
    const ch_tensor_spec *spec;

    (void)state;
    assert_int_equal(ch_dataset_element_spec(d, &spec), 1);
    assert_string_equal(spec[0].name, "x");
    assert_true(ch_shape_equal(spec[0].shape, ch_shape_of(4, 2)));
    ch_dataset_unref(d);
    d = ch_dataset_batch(ch_dataset_slices(1, &t, NULL), 3, NULL);
    t_ok(ch_iterator_new(d, NULL, &it));
    same = ch_iterator_ref(it); /* 5.8.5 */
    assert_int_equal(ch_iterator_element_spec(same, &spec), 1);
    assert_true(ch_shape_equal(spec[0].shape, ch_shape_of(-1, 2)));
    ch_iterator_unref(same);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    ch_tensor_unref(t);
}

static void iterator_get_next_fails_at_the_end_of_the_data(void **state)
{
    ch_dataset      *d = range(1);
    ch_iterator     *it = NULL;
    ch_tuple        *t = NULL;
    ch_stage_profile profile[4];

    (void)state;
    t_ok(ch_iterator_new(d, NULL, &it));
    t_ok(ch_iterator_get_next(it, &t));
    ch_tuple_unref(t);
    t_refused(ch_iterator_get_next(it, &t), CH_OUT_OF_RANGE, "end", "data");
    assert_int_equal(ch_iterator_profile(it, profile, 4), 1);
    assert_string_equal(profile[0].stage, "range");
    assert_int_equal(profile[0].n_elements, 1);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
}

/* ---- C functions ---- */

typedef struct counter {
    int64_t at, to;
} counter;

static ch_status counter_next(void *arg, ch_tuple **out)
{
    counter   *c = arg;
    ch_tensor *t = NULL;
    ch_status  rc;

    if (c->at == c->to)
        return CH_OK;
    rc = ch_tensor_copy_of(CH_I64, ch_shape_scalar(), &c->at, &t);
    if (rc == CH_OK)
        rc = ch_tuple_of(1, &t, out);
    ch_tensor_unref(t);
    c->at++;
    return rc;
}

static ch_status counter_restart(void *arg)
{
    ((counter *)arg)->at = 0;
    return CH_OK;
}

static ch_status counter_save(void *arg, ch_tensor **out)
{
    return ch_tensor_copy_of(CH_I64, ch_shape_scalar(), &((counter *)arg)->at, out);
}

static ch_status counter_restore(void *arg, ch_tensor *place)
{
    ((counter *)arg)->at = *(const int64_t *)ch_tensor_data(place);
    return CH_OK;
}

static ch_status counter_make(void *arg, void **out)
{
    counter *c = malloc(sizeof(*c));

    *c = *(const counter *)arg;
    *out = c;
    return CH_OK;
}

static void generator_position_is_saved_when_it_has_save_functions(void **state)
{
    const ch_tensor_spec one = {.dtype = CH_I64};
    ch_generator         g = {
                .spec = &one, .n_spec = 1, .next = counter_next, .restart = counter_restart};
    counter        c = {0, 5};
    ch_dataset    *d = ch_dataset_generator(&g, counter_make, free, &c);
    ch_iterator   *it = NULL, *other = NULL;
    void          *bytes = NULL;
    size_t         n = 0;
    static t_given head, rest;

    (void)state;
    t_gives(ch_dataset_repeat(ch_dataset_ref(d), 2), "0 | 1 | 2 | 3 | 4 | 0 | 1 | 2 | 3 | 4");
    t_refused(ch_dataset_encode(d, &bytes, &n), CH_UNIMPLEMENTED, "generator", "C function");
    t_ok(ch_iterator_new(d, NULL, &it));
    t_refused(ch_iterator_save(it, &bytes, &n), CH_UNIMPLEMENTED, "generator", "save");
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    g.save = counter_save;
    g.restore = counter_restore;
    d = ch_dataset_generator(&g, counter_make, free, &c);
    t_ok(ch_iterator_new(d, NULL, &it));
    t_take(it, 2, &head);
    t_ok(ch_iterator_save(it, &bytes, &n));
    t_ok(ch_iterator_new(d, NULL, &other));
    t_ok(ch_iterator_restore(other, bytes, n));
    t_take(other, -1, &rest);
    assert_string_equal(rest.text, "2 | 3 | 4");
    ch_bytes_free(bytes);
    ch_iterator_unref(it);
    ch_iterator_unref(other);
    ch_dataset_unref(d);
}

static ch_status is_below(void *arg, ch_tuple *in, bool *keep)
{
    *keep =
        *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(in, 0), 0)) < *(int64_t *)arg;
    return CH_OK;
}

static void filter_call_and_take_while_call_use_c_functions(void **state)
{
    int64_t limit = 3;

    (void)state;
    t_gives(ch_dataset_filter_call(ch_dataset_range(5, -1, -1), is_below, &limit), "2 | 1 | 0");
    t_gives(ch_dataset_take_while_call(range(9), is_below, &limit), "0 | 1 | 2");
}

/* ---- few stages that refer to very many ---- */

typedef struct bytes {
    uint8_t *at;
    size_t   n;
} bytes;

static void put_number(bytes *b, uint64_t value)
{
    for (; value > 127; value >>= 7)
        b->at[b->n++] = (uint8_t)(value | 128);
    b->at[b->n++] = (uint8_t)value;
}

static void put_text(bytes *b, int field, const void *text, size_t n)
{
    put_number(b, (uint64_t)field << 3 | 2);
    put_number(b, n);
    memcpy(b->at + b->n, text, n);
    b->n += n;
}

/* A Stage of a Pipeline, as proto/dataset.proto has them. */
static void put_stage(bytes *b, const char *name, int n_in, int in, const void *attrs,
                      size_t n_attrs)
{
    static uint8_t room[1 << 20], inputs[100];
    bytes          stage = {room, 0}, list = {inputs, 0};

    put_text(&stage, 1, name, strlen(name));
    put_number(&stage, 2 << 3);
    put_number(&stage, 1);
    for (int i = 0; i < n_in; i++)
        put_number(&list, (uint64_t)in);
    put_text(&stage, 3, inputs, list.n);
    put_text(&stage, 4, attrs, n_attrs);
    put_text(b, 2, room, stage.n);
}

/* Decodes a source and 200 stages that each read their input twice: 2^200 paths in all. */
static void decode_doublings(const char *name, const void *attrs, size_t n_attrs)
{
    static uint8_t room[1 << 16];
    bytes          b = {room, 0};
    ch_dataset    *d = NULL;

    put_number(&b, 1 << 3);
    put_number(&b, 1);
    put_stage(&b, "element", 0, 0, attrs, n_attrs);
    for (int i = 0; i < 200; i++)
        put_stage(&b, name, 2, i, "", 0);
    assert_int_equal(ch_dataset_decode(b.at, b.n, &d), CH_INVALID_ARGUMENT);
    assert_non_null(strstr(ch_error_message(), "more than 16384 stages"));
}

static void dataset_decode_rejects_too_many_stages(void **state)
{
    static const char one_int[] = "\x0a\x05\x12\x03i64"; /* ElementSpec: a component, i64 */
    ch_dataset       *d = range(3);
    int               n = 0;

    (void)state;
    decode_doublings("zip", "", 0); /* without components, elements have no size */
    decode_doublings("concatenate", one_int, sizeof(one_int) - 1);
    for (; d != NULL; n++)
        d = ch_dataset_concatenate(2, (ch_dataset *[]){ch_dataset_ref(d), d});
    assert_int_equal(n, 14);
}

/* Just below that limit, functions that visit all stages must still be fast. */
static void dataset_with_shared_stages_is_distributed_and_printed_quickly(void **state)
{
    ch_dataset *d = ch_dataset_with_options(
        range(1), &(ch_dataset_options){.threads = 1, .shard = CH_SHARD_DATA});
    ch_dataset  *mine = NULL;
    ch_iterator *it = NULL;
    ch_tuple    *t = NULL;
    int64_t      n = 0;

    (void)state;
    for (int i = 0; i < 12; i++)
        d = ch_dataset_concatenate(2, (ch_dataset *[]){ch_dataset_ref(d), d});
    assert_int_equal(ch_dataset_cardinality(d), 1 << 12);
    assert_true(ch_dataset_print(d, NULL, 0) > 1 << 12);
    d = ch_dataset_with_options(ch_dataset_batch(d, 64, NULL),
                                &(ch_dataset_options){.shard = CH_SHARD_HINT});
    t_ok(ch_dataset_distribute(d, &(ch_input_context){.n_pipelines = 2}, &mine));
    t_ok(ch_iterator_new(mine, NULL, &it));
    for (; ch_iterator_next(it, &t) == CH_OK && t != NULL; ch_tuple_unref(t))
        n += ch_tensor_count(ch_value_at(ch_tuple_at(t, 0), 0));
    assert_int_equal(n, 1 << 12);
    ch_iterator_unref(it);
    ch_dataset_unref(mine);
    ch_dataset_unref(d);
}

/* Few bytes name a stage, but its components, and above all their names, may need much
 * memory. */
static void dataset_decode_limits_the_components_of_its_stages(void **state)
{
    enum { NAME = 300000, STAGES = 1000 };
    static uint8_t room[1 << 20], attrs[NAME + 64], part[NAME + 32];
    static char    name[NAME];
    bytes          b = {room, 0}, spec = {attrs, 0}, p = {part, 0};
    ch_dataset    *d = NULL;

    (void)state;
    memset(name, 'x', sizeof(name));
    put_text(&p, 1, name, sizeof(name));
    put_text(&p, 2, "i64", 3);
    put_text(&spec, 1, part, p.n);
    put_number(&b, 1 << 3);
    put_number(&b, 1);
    put_stage(&b, "element", 0, 0, attrs, spec.n);
    for (int i = 0; i < STAGES; i++)
        put_stage(&b, "skip", 1, 0, "", 0);
    assert_int_equal(ch_dataset_decode(b.at, b.n, &d), CH_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(ch_error_message(), "too much memory"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(range_gives_its_numbers),
        cmocka_unit_test(batch_stacks_elements_as_rows),
        cmocka_unit_test(take_skip_repeat_and_shard_count_elements),
        cmocka_unit_test(zip_concatenate_and_enumerate_combine_datasets),
        cmocka_unit_test(a_shuffle_is_a_permutation_that_the_seed_decides),
        cmocka_unit_test(iterator_restores_a_saved_position),
        cmocka_unit_test(dataset_print_shows_the_stages),
        cmocka_unit_test(cardinality_is_known_for_common_stages),
        cmocka_unit_test(element_spec_has_name_dtype_and_shape),
        cmocka_unit_test(iterator_get_next_fails_at_the_end_of_the_data),
        cmocka_unit_test(generator_position_is_saved_when_it_has_save_functions),
        cmocka_unit_test(filter_call_and_take_while_call_use_c_functions),
        cmocka_unit_test(dataset_decode_rejects_too_many_stages),
        cmocka_unit_test(dataset_with_shared_stages_is_distributed_and_printed_quickly),
        cmocka_unit_test(dataset_decode_limits_the_components_of_its_stages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

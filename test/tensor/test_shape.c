/* test/tensor/test_shape.c -- names and sizes of dtypes; counts of shapes without overflow.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "cohort/shape.h"
#include "tensor/tensor.h"

static void dtype_parse_reads_the_name_of_every_dtype(void **state)
{
    for (int i = 0; i < CH_DTYPE_COUNT; i++) {
        ch_dtype t = CH_DTYPE_COUNT;

        assert_int_equal(ch_dtype_parse(ch_dtype_name((ch_dtype)i), &t), CH_OK);
        assert_int_equal(t, i);
        assert_true(ch_dtype_bytes(t) > 0);
    }
    assert_int_equal(ch_dtype_bytes(CH_STR), sizeof(ch_str));
    (void)state;
}

static void dtypes_are_parsed_by_the_names_of_numpy_and_tensorflow(void **state)
{
    static const struct {
        const char *text;
        ch_dtype    dtype;
    } rows[] = {{"float32", CH_F32},  {"<f4", CH_F32},     {"float64", CH_F64},
                {"<f8", CH_F64},      {"float16", CH_F16}, {"<f2", CH_F16},
                {"int64", CH_I64},    {"<i8", CH_I64},     {"|u1", CH_U8},
                {"uint16", CH_U16},   {"|b1", CH_BOOL},    {"string", CH_STR},
                {"bfloat16", CH_BF16}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        ch_dtype t = CH_DTYPE_COUNT;

        assert_int_equal(ch_dtype_parse(rows[i].text, &t), CH_OK);
        assert_int_equal(t, rows[i].dtype);
    }
    (void)state;
}

static void dtype_parse_names_the_invalid_dtype(void **state)
{
    ch_dtype t = CH_I8;

    assert_int_equal(ch_dtype_parse(">f4", &t), CH_INVALID_ARGUMENT);
    assert_non_null(strstr(ch_error_message(), "\">f4\""));
    assert_int_equal(ch_dtype_parse(NULL, &t), CH_INVALID_ARGUMENT);
    assert_int_equal(t, CH_I8);
    assert_string_equal(ch_dtype_name(CH_DTYPE_COUNT), "?");
    assert_string_equal(ch_dtype_name((ch_dtype)-1), "?");
    assert_int_equal(ch_dtype_bytes(CH_DTYPE_COUNT), 0);
    (void)state;
}

static void a_dtype_is_float_or_integer_or_neither(void **state)
{
    for (int i = 0; i < CH_DTYPE_COUNT; i++) {
        bool neither = i == CH_BOOL || i == CH_STR;

        assert_int_equal(ch_dtype_is_float((ch_dtype)i) + ch_dtype_is_int((ch_dtype)i),
                         !neither);
    }
    assert_true(ch_dtype_is_float(CH_BF16));
    assert_true(ch_dtype_is_int(CH_U64));
    assert_false(ch_dtype_is_int(CH_DTYPE_COUNT));
    (void)state;
}

static void shapes_are_values_that_compare_by_rank_and_sizes(void **state)
{
    assert_true(ch_shape_equal(ch_shape_of(2, 3), ch_shape_of(2, 3)));
    assert_false(ch_shape_equal(ch_shape_of(2, 3), ch_shape_of(3, 2)));
    assert_false(ch_shape_equal(ch_shape_of(2), ch_shape_of(2, 1)));
    assert_true(ch_shape_equal(ch_shape_scalar(), ch_shape_scalar()));
    (void)state;
}

static void shape_of_a_rank_above_the_limit_is_rejected(void **state)
{
    ch_shape s = ch_shape_of(1, 1, 1, 1, 1, 1, 1, 1, 1);
    int64_t  count, bytes;

    assert_int_equal(s.rank, -1);
    assert_int_equal(ch_shape_count(s), -1);
    assert_int_equal(ch__tensor_size(CH_F32, s, &count, &bytes), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_shape_of(1, 1, 1, 1, 1, 1, 1, 1).rank, CH_MAX_RANK);
    (void)state;
}

static void shape_count_is_the_product_or_minus_one(void **state)
{
    assert_int_equal(ch_shape_count(ch_shape_scalar()), 1);
    assert_int_equal(ch_shape_count(ch_shape_of(2, 3, 4)), 24);
    assert_int_equal(ch_shape_count(ch_shape_of(2, 0, 4)), 0);
    assert_int_equal(ch_shape_count(ch_shape_of(2, -1)), -1);
    assert_int_equal(ch_shape_count(ch_shape_of(INT64_MAX, 2)), -1);
    assert_int_equal(ch_shape_count(ch_shape_of(INT64_MAX, 2, 0)), -1);
    assert_int_equal(ch_shape_count(ch_shape_of(INT64_MAX)), INT64_MAX);
    (void)state;
}

static void tensor_size_names_sizes_whose_bytes_overflow(void **state)
{
    int64_t count, bytes;

    assert_int_equal(ch__tensor_size(CH_F64, ch_shape_of(INT64_MAX / 4), &count, &bytes),
                     CH_INVALID_ARGUMENT);
    assert_non_null(strstr(ch_error_message(), "f64(2305843009213693951,)"));
    assert_int_equal(ch__tensor_size(CH_F32, ch_shape_of(2, -5), &count, &bytes),
                     CH_INVALID_ARGUMENT);
    assert_non_null(strstr(ch_error_message(), "-5 of axis 1"));
    assert_int_equal(ch__tensor_size(CH_DTYPE_COUNT, ch_shape_of(2), &count, &bytes),
                     CH_INVALID_ARGUMENT);
    (void)state;
}

static void assert_prints(ch_shape s, const char *want)
{
    char text[64];

    assert_int_equal(ch_shape_print(s, text, sizeof(text)), strlen(want));
    assert_string_equal(text, want);
}

static void shapes_print_as_tuples(void **state)
{
    assert_prints(ch_shape_scalar(), "()");
    assert_prints(ch_shape_of(3), "(3,)");
    assert_prints(ch_shape_of(2, 0, 4), "(2, 0, 4)");
    assert_prints(ch_shape_of(-1, 3), "(?, 3)");
    (void)state;
}

static void shape_print_returns_the_length_when_the_text_does_not_fit(void **state)
{
    char text[4] = "xxx";

    assert_int_equal(ch_shape_print(ch_shape_of(12, 34), NULL, 0), 8);
    assert_int_equal(ch_shape_print(ch_shape_of(12, 34), text, sizeof(text)), 8);
    assert_string_equal(text, "(12");
    (void)state;
}

static void strides_count_elements_and_the_last_axis_is_dense(void **state)
{
    int64_t stride[CH_MAX_RANK];

    ch__strides(ch_shape_of(2, 3, 4), stride);
    assert_int_equal(stride[0], 12);
    assert_int_equal(stride[1], 4);
    assert_int_equal(stride[2], 1);
    assert_int_equal(stride[3], 0);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dtype_parse_reads_the_name_of_every_dtype),
        cmocka_unit_test(dtypes_are_parsed_by_the_names_of_numpy_and_tensorflow),
        cmocka_unit_test(dtype_parse_names_the_invalid_dtype),
        cmocka_unit_test(a_dtype_is_float_or_integer_or_neither),
        cmocka_unit_test(shapes_are_values_that_compare_by_rank_and_sizes),
        cmocka_unit_test(shape_of_a_rank_above_the_limit_is_rejected),
        cmocka_unit_test(shape_count_is_the_product_or_minus_one),
        cmocka_unit_test(tensor_size_names_sizes_whose_bytes_overflow),
        cmocka_unit_test(shapes_print_as_tuples),
        cmocka_unit_test(shape_print_returns_the_length_when_the_text_does_not_fit),
        cmocka_unit_test(strides_count_elements_and_the_last_axis_is_dense),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

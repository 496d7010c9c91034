/* test/tensor/test_tensor.c -- tensors, views of tensors, and their text form.
 *
 * The tests cover ownership of memory (new, wrapped, viewed, recycled), slices, transpositions
 * and reshapes with any strides, copies, conversions of every dtype, strings, and printing.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

/* Returns a tensor of this shape with elements 0, 1, 2, ... */
static ch_tensor *counting(ch_dtype dtype, ch_shape shape)
{
    ch_tensor *t = NULL;

    assert_int_equal(ch_tensor_new(dtype, shape, &t), CH_OK);
    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        ch__store(dtype, (char *)ch_tensor_data_mut(t) + i * (int64_t)ch_dtype_bytes(dtype),
                  (double)i);
    return t;
}

static ch_str str(const char *text)
{
    return (ch_str){text, strlen(text)};
}

static double at(const ch_tensor *t, int64_t i, int64_t k)
{
    double x = NAN;

    assert_int_equal(ch_tensor_get(t, (int64_t[]){i, k}, &x), CH_OK);
    return x;
}

static void assert_says(const char *part)
{
    if (strstr(ch_error_message(), part) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", ch_error_message(), part);
}

static void assert_prints(const ch_tensor *t, const char *want)
{
    char text[512];

    assert_int_equal(ch_tensor_print(t, text, sizeof(text)), strlen(want));
    assert_string_equal(text, want);
}

static void a_new_tensor_is_zero_contiguous_and_aligned(void **state)
{
    for (int i = 0; i < CH_DTYPE_COUNT; i++) {
        ch_tensor *t = NULL;

        assert_int_equal(ch_tensor_new((ch_dtype)i, ch_shape_of(2, 3), &t), CH_OK);
        assert_int_equal(ch_tensor_dtype(t), i);
        assert_int_equal(ch_tensor_count(t), 6);
        assert_int_equal(ch_tensor_bytes(t), 6 * ch_dtype_bytes((ch_dtype)i));
        assert_true(ch_shape_equal(ch_tensor_shape(t), ch_shape_of(2, 3)));
        assert_true(ch_tensor_is_contiguous(t));
        assert_int_equal(ch_tensor_strides(t)[0], 3);
        assert_int_equal((uintptr_t)ch_tensor_data(t) % CH_ALIGN, 0);
        for (size_t k = 0; k < ch_tensor_bytes(t); k++)
            assert_int_equal(((const char *)ch_tensor_data(t))[k], 0);
        ch_tensor_unref(t);
    }
    (void)state;
}

static void a_tensor_may_have_no_elements(void **state)
{
    ch_tensor *t = NULL, *view = NULL, *copy = NULL;

    assert_int_equal(ch_tensor_new(CH_F32, ch_shape_of(3, 0, 2), &t), CH_OK);
    assert_int_equal(ch_tensor_count(t), 0);
    assert_non_null(ch_tensor_data(t));
    assert_prints(t, "tensor(f32 (3, 0, 2) [])");
    assert_int_equal(ch_tensor_rows(t, 1, 3, &view), CH_OK);
    assert_true(ch_tensor_is_contiguous(view));
    ch_tensor_unref(view);
    assert_int_equal(ch_tensor_slice(t, 1, -1, -1, -1, &view), CH_OK);
    ch_tensor_unref(view);
    assert_int_equal(ch_tensor_reshape(t, ch_shape_of(0, 7), &view), CH_OK);
    ch_tensor_unref(view);
    assert_int_equal(ch_tensor_copy_of(CH_STR, ch_shape_of(0), NULL, &copy), CH_OK);
    assert_int_equal(ch_tensor_copy(copy, copy), CH_OK);
    ch_tensor_unref(copy);
    ch_tensor_unref(t);
    (void)state;
}

static void tensor_new_names_an_invalid_shape_or_dtype(void **state)
{
    ch_tensor *t = NULL;

    assert_int_equal(ch_tensor_new(CH_F32, ch_shape_of(INT64_MAX, INT64_MAX), &t),
                     CH_INVALID_ARGUMENT);
    assert_says("f32(9223372036854775807, 9223372036854775807)");
    assert_int_equal(ch_tensor_new(CH_F32, ch_shape_of(-1), &t), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_tensor_new(CH_F32, (ch_shape){.rank = -1}, &t), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_tensor_new(CH_F32, (ch_shape){.rank = 9}, &t), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_tensor_new((ch_dtype)99, ch_shape_of(1), &t), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_tensor_copy_of(CH_F32, ch_shape_of(2), NULL, &t), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_tensor_scalar(CH_STR, 1, &t), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_tensor_of_text(NULL, &t), CH_INVALID_ARGUMENT);
    ch__mem_fail_at(1);
    assert_int_equal(ch_tensor_new(CH_F32, ch_shape_of(5, 2), &t), CH_RESOURCE_EXHAUSTED);
    ch__mem_fail_at(0);
    assert_says("f32(5, 2)");
    assert_null(t);
    (void)state;
}

static void tensor_copy_of_does_not_share_its_data(void **state)
{
    float      data[] = {1, 2, 3, 4};
    ch_tensor *t = NULL;

    assert_int_equal(ch_tensor_copy_of(CH_F32, ch_shape_of(2, 2), data, &t), CH_OK);
    data[3] = 9;
    assert_true(at(t, 1, 1) == 4);
    ch_tensor_unref(t);
    (void)state;
}

static void tensor_get_and_set_use_doubles_for_every_dtype(void **state)
{
    for (int i = 0; i < CH_STR; i++) {
        ch_tensor *t = NULL;
        double     x = 0;

        assert_int_equal(ch_tensor_scalar((ch_dtype)i, 1, &t), CH_OK);
        assert_int_equal(ch_tensor_item(t, &x), CH_OK);
        assert_true(x == 1);
        assert_int_equal(ch_tensor_set(t, NULL, 0), CH_OK);
        assert_int_equal(ch_tensor_get(t, NULL, &x), CH_OK);
        assert_true(x == 0);
        ch_tensor_unref(t);
    }
    (void)state;
}

static void tensor_get_names_an_index_out_of_range(void **state)
{
    ch_tensor *t = counting(CH_I32, ch_shape_of(2, 3));
    double     x;

    assert_int_equal(ch_tensor_get(t, (int64_t[]){0, 3}, &x), CH_INVALID_ARGUMENT);
    assert_says("index 3 of axis 1 of i32(2, 3)");
    assert_int_equal(ch_tensor_set(t, (int64_t[]){-1, 0}, 1), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_tensor_get(t, NULL, &x), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_tensor_item(t, &x), CH_INVALID_ARGUMENT);
    assert_says("6 elements");
    ch_tensor_unref(t);
    (void)state;
}

static void a_string_tensor_owns_copies_of_its_strings(void **state)
{
    char       word[] = "one";
    ch_tensor *t = NULL;
    ch_str     s;

    assert_int_equal(
        ch_tensor_copy_of(CH_STR, ch_shape_of(2), (ch_str[]){str(word), {NULL, 0}}, &t), CH_OK);
    word[0] = 'X';
    assert_int_equal(ch_tensor_str(t, (int64_t[]){0}, &s), CH_OK);
    assert_int_equal(s.size, 3);
    assert_memory_equal(s.data, "one", 3);
    assert_int_equal(ch_tensor_set_str(t, (int64_t[]){0}, s), CH_OK); /* a view of itself */
    assert_int_equal(ch_tensor_set_str(t, (int64_t[]){1}, (ch_str){"a\0b", 3}), CH_OK);
    assert_int_equal(ch_tensor_str(t, (int64_t[]){1}, &s), CH_OK);
    assert_memory_equal(s.data, "a\0b", 3);
    assert_int_equal(ch_tensor_set_str(t, (int64_t[]){2}, s), CH_INVALID_ARGUMENT);
    ch_tensor_unref(t);
    (void)state;
}

static void tensor_functions_reject_strings_for_numbers(void **state)
{
    ch_tensor *text = NULL, *number = counting(CH_F32, ch_shape_scalar());
    double     x;
    ch_str     s;

    assert_int_equal(ch_tensor_of_text("text", &text), CH_OK);
    assert_int_equal(ch_tensor_get(text, NULL, &x), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_tensor_set(text, NULL, 1), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_tensor_item(text, &x), CH_INVALID_ARGUMENT);
    assert_says("ch_tensor_str");
    assert_int_equal(ch_tensor_str(number, NULL, &s), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_tensor_set_str(number, NULL, str("x")), CH_INVALID_ARGUMENT);
    ch_tensor_unref(text);
    ch_tensor_unref(number);
    (void)state;
}

static void count_release(void *arg)
{
    ++*(int *)arg;
}

static void tensor_wrap_releases_memory_once_with_the_last_view(void **state)
{
    float      data[] = {1, 2, 3, 4};
    int        n = 0;
    ch_tensor *t = NULL, *row = NULL;

    assert_int_equal(ch_tensor_wrap(CH_F32, ch_shape_of(2, 2), data, count_release, &n, &t),
                     CH_OK);
    assert_ptr_equal(ch_tensor_data(t), data);
    assert_int_equal(ch_tensor_rows(t, 1, 2, &row), CH_OK);
    ch_tensor_unref(t);
    assert_int_equal(n, 0);
    assert_ptr_equal(ch_tensor_data(row), &data[2]);
    ch_tensor_unref(row);
    assert_int_equal(n, 1);
    assert_int_equal(ch_tensor_wrap(CH_F32, ch_shape_of(4), data, NULL, NULL, &t), CH_OK);
    ch_tensor_unref(t);
    (void)state;
}

static void tensor_wrap_releases_nothing_when_it_fails(void **state)
{
    _Alignas(8) char data[16];
    int              n = 0;
    ch_tensor       *t = NULL;

    assert_int_equal(ch_tensor_wrap(CH_F32, ch_shape_of(2), data + 1, count_release, &n, &t),
                     CH_INVALID_ARGUMENT);
    assert_says("aligned");
    assert_int_equal(ch_tensor_wrap(CH_F32, ch_shape_of(2), NULL, count_release, &n, &t),
                     CH_INVALID_ARGUMENT);
    assert_int_equal(ch_tensor_wrap(CH_F32, ch_shape_of(-2), data, count_release, &n, &t),
                     CH_INVALID_ARGUMENT);
    for (int i = 1; i <= 2; i++) {
        ch__mem_fail_at(i);
        assert_int_equal(ch_tensor_wrap(CH_F32, ch_shape_of(2), data, count_release, &n, &t),
                         CH_RESOURCE_EXHAUSTED);
        ch__mem_fail_at(0);
    }
    assert_int_equal(n, 0);
    assert_null(t);
    (void)state;
}

static void tensor_wrap_of_strings_is_read_only(void **state)
{
    ch_str     data[] = {str("one")};
    ch_tensor *t = NULL, *copy = NULL;
    ch_str     s;

    assert_int_equal(ch_tensor_wrap(CH_STR, ch_shape_of(1), data, NULL, NULL, &t), CH_OK);
    assert_int_equal(ch_tensor_str(t, (int64_t[]){0}, &s), CH_OK);
    assert_ptr_equal(s.data, data[0].data);
    assert_int_equal(ch_tensor_set_str(t, (int64_t[]){0}, s), CH_FAILED_PRECONDITION);
    assert_int_equal(ch_tensor_new(CH_STR, ch_shape_of(1), &copy), CH_OK);
    assert_int_equal(ch_tensor_copy(copy, t), CH_FAILED_PRECONDITION);
    assert_int_equal(ch_tensor_copy(t, copy), CH_OK);
    assert_prints(copy, "tensor(string (1,) [\"one\"])");
    ch_tensor_unref(copy);
    ch_tensor_unref(t);
    (void)state;
}

static void tensor_views_share_and_keep_the_buffer(void **state)
{
    int64_t    live = ch__mem_live();
    ch_tensor *t = counting(CH_F32, ch_shape_of(4, 2)), *view = NULL;

    assert_int_equal(ch_tensor_rows(t, 1, 3, &view), CH_OK);
    assert_int_equal(ch_tensor_set(t, (int64_t[]){1, 0}, 42), CH_OK);
    ch_tensor_unref(t);
    assert_prints(view, "tensor(f32 (2, 2) [[42 3]\n [4 5]])");
    assert_true(ch_tensor_is_contiguous(view));
    ch_tensor_unref(view);
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

static void tensor_slice_steps_both_ways(void **state)
{
    static const struct {
        int64_t     from, to, step;
        const char *want;
    } rows[] = {
        {0, 7, 1, "tensor(i32 (7,) [0 1 2 3 4 5 6])"},
        {1, 6, 2, "tensor(i32 (3,) [1 3 5])"},
        {1, 5, 2, "tensor(i32 (2,) [1 3])"},
        {6, -1, -3, "tensor(i32 (3,) [6 3 0])"},
        {6, 0, -3, "tensor(i32 (2,) [6 3])"},
        {2, 7, INT64_MAX, "tensor(i32 (1,) [2])"},
        {4, -1, INT64_MIN, "tensor(i32 (1,) [4])"},
        {7, 7, 1, "tensor(i32 (0,) [])"},
        {-1, -1, -1, "tensor(i32 (0,) [])"},
    };
    ch_tensor *t = counting(CH_I32, ch_shape_of(7));

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        ch_tensor *view = NULL;

        assert_int_equal(ch_tensor_slice(t, 0, rows[i].from, rows[i].to, rows[i].step, &view),
                         CH_OK);
        assert_prints(view, rows[i].want);
        ch_tensor_unref(view);
    }
    ch_tensor_unref(t);
    (void)state;
}

static void tensor_slice_error_says_which_end_is_out_of_range(void **state)
{
    ch_tensor *t = counting(CH_F32, ch_shape_of(5, 2)), *view = NULL;

    assert_int_equal(ch_tensor_slice(t, 0, 3, 9, 1, &view), CH_INVALID_ARGUMENT);
    assert_string_equal(
        ch_error_message(),
        "tensor slice: rows [3, 9) of axis 0 of f32(5, 2): 9 is past the end 5");
    assert_int_equal(ch_tensor_rows(t, -1, 2, &view), CH_INVALID_ARGUMENT);
    assert_says("-1 is before the start 0");
    assert_int_equal(ch_tensor_rows(t, 3, 2, &view), CH_INVALID_ARGUMENT);
    assert_says("2 is before the first, 3");
    assert_int_equal(ch_tensor_slice(t, 0, 5, 0, -1, &view), CH_INVALID_ARGUMENT);
    assert_says("5 is past the end 4");
    assert_int_equal(ch_tensor_slice(t, 0, 4, -2, -1, &view), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_tensor_slice(t, 0, 0, 5, 0, &view), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_tensor_slice(t, 2, 0, 1, 1, &view), CH_INVALID_ARGUMENT);
    assert_says("no axis 2");
    assert_int_equal(ch_tensor_slice(t, -1, 0, 1, 1, &view), CH_INVALID_ARGUMENT);
    assert_null(view);
    ch_tensor_unref(t);
    (void)state;
}

static void tensor_transpose_reorders_axes_without_copying(void **state)
{
    ch_tensor *t = counting(CH_I64, ch_shape_of(2, 3)), *view = NULL;

    assert_int_equal(ch_tensor_transpose(t, (int[]){1, 0}, &view), CH_OK);
    assert_ptr_equal(ch_tensor_data(view), ch_tensor_data(t));
    assert_false(ch_tensor_is_contiguous(view));
    assert_prints(view, "tensor(i64 (3, 2) [[0 3]\n [1 4]\n [2 5]])");
    ch_tensor_unref(view);
    assert_int_equal(ch_tensor_transpose(t, NULL, &view), CH_OK);
    assert_true(ch_shape_equal(ch_tensor_shape(view), ch_shape_of(3, 2)));
    ch_tensor_unref(view);
    assert_int_equal(ch_tensor_transpose(t, (int[]){1, 1}, &view), CH_INVALID_ARGUMENT);
    assert_says("occurs twice");
    assert_int_equal(ch_tensor_transpose(t, (int[]){0, 2}, &view), CH_INVALID_ARGUMENT);
    ch_tensor_unref(t);
    (void)state;
}

static void tensor_reshape_is_a_view_when_strides_allow_it(void **state)
{
    ch_tensor *t = counting(CH_I32, ch_shape_of(4, 2, 6)), *half = NULL, *view = NULL;

    /* Rows 0 and 2: the last two axes are contiguous together, the first is not. */
    assert_int_equal(ch_tensor_slice(t, 0, 0, 4, 2, &half), CH_OK);
    assert_int_equal(ch_tensor_reshape(half, ch_shape_of(2, 1, 3, 4), &view), CH_OK);
    assert_ptr_equal(ch_tensor_data(view), ch_tensor_data(t));
    assert_int_equal(ch_tensor_strides(view)[0], 24);
    assert_int_equal(ch_tensor_strides(view)[2], 4);
    double x;
    assert_int_equal(ch_tensor_get(view, (int64_t[]){1, 0, 1, 2}, &x), CH_OK);
    assert_true(x == 24 + 6);
    ch_tensor_unref(view);

    assert_int_equal(ch_tensor_reshape(half, ch_shape_of(24), &view), CH_OK);
    assert_ptr_not_equal(ch_tensor_data(view), ch_tensor_data(t));
    assert_int_equal(ch_tensor_get(view, (int64_t[]){12}, &x), CH_OK);
    assert_true(x == 24);
    ch_tensor_unref(view);

    assert_int_equal(ch_tensor_reshape(half, ch_shape_of(5, 5), &view), CH_INVALID_ARGUMENT);
    assert_says("i32(2, 2, 6) has 24 elements, i32(5, 5) would have 25");
    ch_tensor_unref(half);
    ch_tensor_unref(t);
    (void)state;
}

static void tensor_reshape_infers_one_size(void **state)
{
    ch_tensor *t = NULL, *u = NULL;

    assert_int_equal(ch_tensor_new(CH_I8, ch_shape_of(4, 6), &t), CH_OK);
    assert_int_equal(ch_tensor_reshape(t, ch_shape_of(3, -1, 2), &u), CH_OK);
    assert_true(ch_shape_equal(ch_tensor_shape(u), ch_shape_of(3, 4, 2)));
    ch_tensor_unref(u);
    u = NULL;
    assert_int_equal(ch_tensor_reshape(t, ch_shape_of(-1, 5), &u), CH_INVALID_ARGUMENT);
    assert_non_null(strstr(ch_error_message(), "has 24 elements"));
    assert_int_equal(ch_tensor_reshape(t, ch_shape_of(-1, -1), &u), CH_INVALID_ARGUMENT);
    assert_non_null(strstr(ch_error_message(), "two sizes of -1"));
    assert_int_equal(ch_tensor_reshape(t, ch_shape_of(-1, 0), &u), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_tensor_reshape(t, ch_shape_of(-2, -1), &u), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_tensor_reshape(t, ch_shape_of(-1, INT64_MAX, 4), &u),
                     CH_INVALID_ARGUMENT);
    assert_null(u);
    ch_tensor_unref(t);
    (void)state;
}

/* Reshapes every transposition of (2, 3, 4) to every shape of 24 elements. The elements keep
 * their order, whether copied or not. */
static void tensor_reshape_keeps_the_order_of_elements(void **state)
{
    static const int perms[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                   {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    ch_tensor       *t = counting(CH_U8, ch_shape_of(2, 3, 4));

    for (int p = 0; p < 6; p++) {
        ch_tensor *view = NULL, *dense = NULL;

        assert_int_equal(ch_tensor_transpose(t, perms[p], &view), CH_OK);
        assert_int_equal(ch_tensor_contiguous(view, &dense), CH_OK);
        for (int64_t a = 1; a <= 24; a++) {
            for (int64_t b = 1; b <= 24; b++) {
                ch_tensor *shaped = NULL, *flat = NULL;

                if (24 % (a * b) != 0)
                    continue;
                assert_int_equal(
                    ch_tensor_reshape(view, ch_shape_of(a, b, 24 / a / b), &shaped), CH_OK);
                assert_int_equal(ch_tensor_contiguous(shaped, &flat), CH_OK);
                assert_memory_equal(ch_tensor_data(flat), ch_tensor_data(dense), 24);
                ch_tensor_unref(flat);
                ch_tensor_unref(shaped);
            }
        }
        ch_tensor_unref(dense);
        ch_tensor_unref(view);
    }
    ch_tensor_unref(t);
    (void)state;
}

static void tensor_copy_follows_any_strides_of_every_dtype(void **state)
{
    for (int i = 0; i < CH_STR; i++) {
        ch_tensor *t = counting((ch_dtype)i, ch_shape_of(3, 4)), *across = NULL, *down = NULL;
        ch_tensor *to = counting((ch_dtype)i, ch_shape_of(4, 3));

        assert_int_equal(ch_tensor_transpose(t, NULL, &across), CH_OK);
        assert_int_equal(ch_tensor_slice(across, 0, 3, -1, -1, &down), CH_OK);
        assert_int_equal(ch_tensor_copy(down, to), CH_OK);
        for (int64_t a = 0; a < 4; a++)
            for (int64_t b = 0; b < 3; b++)
                assert_true(at(to, a, b) == at(t, b, 3 - a));
        ch_tensor_unref(down);
        ch_tensor_unref(across);
        ch_tensor_unref(to);
        ch_tensor_unref(t);
    }
    (void)state;
}

static void tensor_copy_between_overlapping_views_is_right(void **state)
{
    ch_tensor *t = counting(CH_I32, ch_shape_of(6)), *from = NULL, *to = NULL;

    assert_int_equal(ch_tensor_rows(t, 0, 5, &from), CH_OK);
    assert_int_equal(ch_tensor_rows(t, 1, 6, &to), CH_OK);
    assert_int_equal(ch_tensor_copy(from, to), CH_OK);
    assert_prints(t, "tensor(i32 (6,) [0 0 1 2 3 4])");
    ch_tensor_unref(from);
    assert_int_equal(ch_tensor_slice(t, 0, 5, 0, -1, &from), CH_OK);
    assert_int_equal(ch_tensor_copy(from, to), CH_OK);
    assert_prints(t, "tensor(i32 (6,) [0 4 3 2 1 0])");
    ch_tensor_unref(from);
    ch_tensor_unref(to);
    ch_tensor_unref(t);
    (void)state;
}

static void tensor_copy_rejects_another_dtype_or_shape(void **state)
{
    ch_tensor *a = counting(CH_I32, ch_shape_of(6)), *b = counting(CH_I32, ch_shape_of(2, 3)),
              *c = counting(CH_F32, ch_shape_of(6));

    assert_int_equal(ch_tensor_copy(a, b), CH_INVALID_ARGUMENT);
    assert_says("i32(6,) into i32(2, 3)");
    assert_int_equal(ch_tensor_copy(a, c), CH_INVALID_ARGUMENT);
    ch_tensor_unref(a);
    ch_tensor_unref(b);
    ch_tensor_unref(c);
    (void)state;
}

static void tensor_copy_of_strings_follows_views(void **state)
{
    ch_tensor *t = NULL, *view = NULL, *flat = NULL;
    ch_str     words[] = {str("a"), str("b"), str("c"), str("")};

    assert_int_equal(ch_tensor_copy_of(CH_STR, ch_shape_of(2, 2), words, &t), CH_OK);
    assert_int_equal(ch_tensor_transpose(t, NULL, &view), CH_OK);
    assert_int_equal(ch_tensor_reshape(view, ch_shape_of(4), &flat), CH_OK);
    ch_tensor_unref(view);
    assert_int_equal(ch_tensor_copy(t, t), CH_OK);
    ch_tensor_unref(t);
    assert_prints(flat, "tensor(string (4,) [\"a\" \"c\" \"b\" \"\"])");
    ch_tensor_unref(flat);
    (void)state;
}

static void tensor_contiguous_and_tensor_to_copy_only_when_needed(void **state)
{
    ch_tensor *t = counting(CH_F32, ch_shape_of(2, 3)), *same = NULL, *moved = NULL;
    ch_device *other = ch_device_at(ch_device_count(NULL) - 1);

    assert_int_equal(ch_tensor_contiguous(t, &same), CH_OK);
    assert_ptr_equal(same, t);
    ch_tensor_unref(same);
    assert_int_equal(ch_tensor_to(t, ch_tensor_device(t), &same), CH_OK);
    assert_ptr_equal(same, t);
    ch_tensor_unref(same);
    assert_int_equal(ch_tensor_to(t, other, &moved), CH_OK);
    assert_ptr_equal(ch_tensor_device(moved), other);
    assert_ptr_not_equal(moved, t);
    assert_true(at(moved, 1, 2) == 5);
    assert_int_equal(ch_tensor_to(t, NULL, &same), CH_INVALID_ARGUMENT);
    ch_tensor_unref(moved);
    ch_tensor_unref(t);
    (void)state;
}

static void *ref_often(void *arg)
{
    for (int i = 0; i < 1000; i++) {
        ch_tensor *view = NULL;

        ch_tensor_ref(arg);
        if (ch_tensor_rows(arg, 0, 1, &view) != CH_OK)
            return arg;
        ch_tensor_unref(arg);
        ch_tensor_unref(view);
    }
    ch_tensor_unref(arg);
    return NULL;
}

static void threads_may_share_a_tensor_to_ref_and_unref_it(void **state)
{
    int64_t    live = ch__mem_live();
    ch_tensor *t = counting(CH_F32, ch_shape_of(2));
    pthread_t  other;
    void      *result;

    ch_tensor_ref(t);
    assert_int_equal(pthread_create(&other, NULL, ref_often, t), 0);
    assert_null(ref_often(t));
    assert_int_equal(pthread_join(other, &result), 0);
    assert_null(result);
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

static ch_tensor *recycled;

static void keep(ch_tensor *t)
{
    recycled = t;
}

static void tensor_unref_calls_recycle_instead_of_free(void **state)
{
    ch_tensor *t = counting(CH_F32, ch_shape_of(2));

    t->recycle = keep;
    ch_tensor_ref(t);
    ch_tensor_unref(t);
    assert_null(recycled);
    ch_tensor_unref(t);
    assert_ptr_equal(recycled, t);
    t->recycle = NULL;
    atomic_store(&t->refs, 1);
    ch_tensor_unref(t);
    (void)state;
}

static void tensors_print_as_nested_brackets(void **state)
{
    ch_tensor *t = counting(CH_F32, ch_shape_of(2, 2));

    assert_prints(t, "tensor(f32 (2, 2) [[0 1]\n [2 3]])");
    ch_tensor_unref(t);
    t = counting(CH_F64, ch_shape_of(2, 2, 2));
    assert_prints(t, "tensor(f64 (2, 2, 2) [[[0 1]\n  [2 3]]\n\n [[4 5]\n  [6 7]]])");
    ch_tensor_unref(t);
    t = counting(CH_U8, ch_shape_of(9, 8));
    assert_prints(t, "tensor(u8 (9, 8) [[0 1 2 ... 5 6 7]\n [8 9 10 ... 13 14 15]\n"
                     " [16 17 18 ... 21 22 23]\n ...\n [48 49 50 ... 53 54 55]\n"
                     " [56 57 58 ... 61 62 63]\n [64 65 66 ... 69 70 71]])");
    ch_tensor_unref(t);
    assert_prints(NULL, "NULL");
    (void)state;
}

static void tensor_print_formats_elements_by_dtype(void **state)
{
    double   f64[] = {0.1, -1.0 / 3, 1e20, -NAN, -INFINITY};
    int64_t  i64[] = {INT64_MIN, INT64_MAX};
    uint64_t u64[] = {UINT64_MAX};
    uint8_t  flags[] = {0, 1};
    ch_str   text[] = {str("a \"b\"\\\n\t\r\x01\xff")};
    static const struct {
        ch_dtype    dtype;
        int64_t     n;
        const char *want;
    } rows[] = {
        {CH_F64, 5, "tensor(f64 (5,) [0.1 -0.333333 1e+20 nan -inf])"},
        {CH_I64, 2, "tensor(i64 (2,) [-9223372036854775808 9223372036854775807])"},
        {CH_U64, 1, "tensor(u64 (1,) [18446744073709551615])"},
        {CH_BOOL, 2, "tensor(bool (2,) [false true])"},
        {CH_STR, 1, "tensor(string (1,) [\"a \\\"b\\\"\\\\\\n\\t\\r\\x01\\xff\"])"},
    };
    const void *data[] = {f64, i64, u64, flags, text};

    for (int i = 0; i < 5; i++) {
        ch_tensor *t = NULL;

        assert_int_equal(ch_tensor_copy_of(rows[i].dtype, ch_shape_of(rows[i].n), data[i], &t),
                         CH_OK);
        assert_prints(t, rows[i].want);
        ch_tensor_unref(t);
    }
    (void)state;
}

static void tensor_print_cuts_long_strings(void **state)
{
    char       long_text[100], text[200];
    ch_tensor *t = NULL;

    memset(long_text, 'x', sizeof(long_text));
    long_text[99] = '\0';
    assert_int_equal(ch_tensor_of_text(long_text, &t), CH_OK);
    assert_true(ch_tensor_print(t, text, sizeof(text)) < 100);
    assert_non_null(strstr(text, "xx\"...)"));
    ch_tensor_unref(t);
    (void)state;
}

static void tensor_spec_print_shows_name_dtype_and_shape(void **state)
{
    char text[64];

    ch_tensor_spec_print(&(ch_tensor_spec){.dtype = CH_F32, .shape = ch_shape_of(-1, 3)}, text,
                         sizeof(text));
    assert_string_equal(text, "f32(?, 3)");
    ch_tensor_spec_print(&(ch_tensor_spec){"x", CH_STR, ch_shape_scalar()}, text, sizeof(text));
    assert_string_equal(text, "x: string()");
    (void)state;
}

/* Calls every function that allocates; the first failure ends the sequence. */
static ch_status scenario(void)
{
    ch_str     words[] = {str("a"), str("b"), str("c"), str("d")};
    ch_tensor *t = NULL, *view = NULL, *flat = NULL, *moved = NULL, *text = NULL;
    ch_status  st = ch_tensor_copy_of(CH_STR, ch_shape_of(2, 2), words, &t);

    if (st == CH_OK)
        st = ch_tensor_transpose(t, NULL, &view);
    if (st == CH_OK)
        st = ch_tensor_reshape(view, ch_shape_of(4), &flat);
    if (st == CH_OK)
        st = ch_tensor_to(view, ch_device_at(1), &moved);
    if (st == CH_OK)
        st = ch_tensor_copy(view, t); /* a copy over itself */
    if (st == CH_OK)
        st = ch_tensor_set_str(t, (int64_t[]){0, 1}, str("e"));
    if (st == CH_OK)
        st = ch_tensor_of_text("text", &text);
    ch_tensor_unref(text);
    ch_tensor_unref(moved);
    ch_tensor_unref(flat);
    ch_tensor_unref(view);
    ch_tensor_unref(t);
    return st;
}

static void tensors_leak_nothing_when_out_of_memory(void **state)
{
    int64_t   live = ch__mem_live();
    ch_status st;

    for (int64_t n = 1;; n++) {
        ch__mem_fail_at(n);
        st = scenario();
        ch__mem_fail_at(0);
        assert_int_equal(ch__mem_live(), live);
        if (st == CH_OK)
            break;
        assert_int_equal(st, CH_RESOURCE_EXHAUSTED);
        assert_true(n < 100);
    }
    (void)state;
}

static int two_devices(void **state)
{
    (void)state;
    return ch_devices_configure(&(ch_devices_options){.spec = "CPU=2"}) == CH_OK ? 0 : -1;
}

static int no_devices(void **state)
{
    (void)state;
    ch__devices_reset();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_tensor_is_zero_contiguous_and_aligned),
        cmocka_unit_test(a_tensor_may_have_no_elements),
        cmocka_unit_test(tensor_new_names_an_invalid_shape_or_dtype),
        cmocka_unit_test(tensor_copy_of_does_not_share_its_data),
        cmocka_unit_test(tensor_get_and_set_use_doubles_for_every_dtype),
        cmocka_unit_test(tensor_get_names_an_index_out_of_range),
        cmocka_unit_test(a_string_tensor_owns_copies_of_its_strings),
        cmocka_unit_test(tensor_functions_reject_strings_for_numbers),
        cmocka_unit_test(tensor_wrap_releases_memory_once_with_the_last_view),
        cmocka_unit_test(tensor_wrap_releases_nothing_when_it_fails),
        cmocka_unit_test(tensor_wrap_of_strings_is_read_only),
        cmocka_unit_test(tensor_views_share_and_keep_the_buffer),
        cmocka_unit_test(tensor_slice_steps_both_ways),
        cmocka_unit_test(tensor_slice_error_says_which_end_is_out_of_range),
        cmocka_unit_test(tensor_transpose_reorders_axes_without_copying),
        cmocka_unit_test(tensor_reshape_is_a_view_when_strides_allow_it),
        cmocka_unit_test(tensor_reshape_infers_one_size),
        cmocka_unit_test(tensor_reshape_keeps_the_order_of_elements),
        cmocka_unit_test(tensor_copy_follows_any_strides_of_every_dtype),
        cmocka_unit_test(tensor_copy_between_overlapping_views_is_right),
        cmocka_unit_test(tensor_copy_rejects_another_dtype_or_shape),
        cmocka_unit_test(tensor_copy_of_strings_follows_views),
        cmocka_unit_test(tensor_contiguous_and_tensor_to_copy_only_when_needed),
        cmocka_unit_test(threads_may_share_a_tensor_to_ref_and_unref_it),
        cmocka_unit_test(tensor_unref_calls_recycle_instead_of_free),
        cmocka_unit_test(tensors_print_as_nested_brackets),
        cmocka_unit_test(tensor_print_formats_elements_by_dtype),
        cmocka_unit_test(tensor_print_cuts_long_strings),
        cmocka_unit_test(tensor_spec_print_shows_name_dtype_and_shape),
        cmocka_unit_test(tensors_leak_nothing_when_out_of_memory),
    };

    return cmocka_run_group_tests(tests, two_devices, no_devices);
}

/* test/job/test_slice.c -- slices of sharded variables: the rows of each shard, and their
 * order.
 *
 * ch__slice_shard and its helpers map the rows of a slice to shards. The results are compared
 * with a slow model that steps through the slice as Python does.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../strategy/help.h"
#include "job/shard.h"
#include "job/slice.h"

enum { NONE = 99, MOST = 32 }; /* NONE: no bound; MOST: rows of a result */

static ch_slice_bounds bounds(int64_t start, int64_t stop, int64_t step)
{
    return (ch_slice_bounds){start, stop, start != NONE, stop != NONE, step};
}

/* Reads a slice as callers do: requests rows from each shard once, and stores them at their
 * positions. Returns the number of rows. */
static int64_t read_rows(int64_t size, int n, ch_slice_bounds b, int64_t *row)
{
    ch_slice_range all;
    int64_t        count = 0;

    for (int i = 0; i < MOST; i++)
        row[i] = -1;
    t_ok(ch__slice_rows(size, &b, &all));
    assert_in_range(all.count, 0, MOST);
    assert_int_equal(all.at, 0);
    for (int i = 0; i < n; i++) {
        int64_t        begin = ch__part_begin(size, n, i), end = ch__part_begin(size, n, i + 1);
        ch_slice_range of = ch__slice_shard(all, size, n, i);

        assert_true(of.count >= 0 && of.at >= 0 && of.at + of.count <= all.count);
        assert_true(of.count > 0 || of.begin == 0);
        for (int64_t k = 0; k < of.count; k++) {
            int64_t local = of.begin + k * of.step;

            assert_true(local >= 0 && local < end - begin);
            assert_int_equal(row[of.at + k], -1); /* the position was not written before */
            row[of.at + k] = begin + local;
        }
        count += of.count;
    }
    assert_int_equal(count, all.count);
    return count;
}

static void check_rows(int64_t size, int n, ch_slice_bounds b, int count, const int *want)
{
    int64_t row[MOST];

    assert_int_equal(read_rows(size, n, b, row), count);
    for (int i = 0; i < count; i++)
        assert_int_equal(row[i], want[i]);
}

/* ---- slices ---- */

/* SV-10: rows 0 to 7 as shards 3, 3, 2. */
static void slice_rows_match_the_specification(void **state)
{
    static const struct {
        int start, stop, step, n, row[4];
    } row[] = {
        {NONE, NONE, 3, 3, {0, 3, 6}},
        {1, NONE, 6, 2, {1, 7}},
        {NONE, NONE, -5, 2, {7, 2}},
        {7, 1, -4, 2, {7, 3}},
        {2, -10, -1, 3, {2, 1, 0}},
        {-10, 2, 1, 2, {0, 1}},
        {5, 3, 1, 0, {0}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
        check_rows(8, 3, bounds(row[i].start, row[i].stop, row[i].step), row[i].n, row[i].row);
}

/* SV-13: a start beyond an end is clamped to that end, whatever the step. */
static void slice_start_beyond_an_end_is_clamped(void **state)
{
    (void)state;
    for (int n = 1; n <= 10; n++) {
        check_rows(10, n, bounds(-11, NONE, 3), 4, (int[]){0, 3, 6, 9});
        check_rows(10, n, bounds(20, NONE, -3), 4, (int[]){9, 6, 3, 0});
    }
}

/* Python's rule with a minimum of arithmetic: adds the step until the stop is reached. */
static int model_rows(int size, int start, int stop, int step, int *row)
{
    int first = step > 0 ? 0 : size - 1, end = step > 0 ? size : -1, n = 0;
    int from = start == NONE ? first : start < 0 ? start + size : start;
    int to = stop == NONE ? end : stop < 0 ? stop + size : stop;

    while (from < (step > 0 ? 0 : -1))
        from++;
    while (from > (step > 0 ? size : size - 1))
        from--;
    while (stop != NONE && to < -1)
        to++;
    for (int i = from; (step > 0 ? i < to : i > to) && i >= 0 && i < size; i += step)
        row[n++] = i;
    return n;
}

/* SV-10, SV-13: all starts and stops from -13 to 13 and none, steps from -3 to 3, and from 1
 * shard to as many shards as rows. */
static void slice_rows_match_a_slow_model(void **state)
{
    static const int size[] = {0, 1, 2, 5, 8, 10, 13};
    int              want[MOST];

    (void)state;
    for (size_t i = 0; i < sizeof(size) / sizeof(size[0]); i++)
        for (int start = -14; start <= 13; start++)
            for (int stop = -14; stop <= 13; stop++)
                for (int step = -3; step <= 3; step++) {
                    int from = start == -14 ? NONE : start, to = stop == -14 ? NONE : stop;

                    if (step == 0)
                        continue;
                    for (int n = 1; n == 1 || n <= size[i]; n++)
                        check_rows(size[i], n, bounds(from, to, step),
                                   model_rows(size[i], from, to, step, want), want);
                }
}

/* Bounds and steps near the limits of int64_t do not overflow. */
static void slice_bounds_and_steps_do_not_overflow(void **state)
{
    static const int64_t huge[] = {INT64_MIN, INT64_MIN + 1, INT64_MAX - 1, INT64_MAX};
    ch_slice_range       all, of;

    (void)state;
    for (int i = 0; i < 4; i++) {
        bool is_up = huge[i] > 0;

        check_rows(10, 3, bounds(NONE, NONE, huge[i]), 1, (int[]){is_up ? 0 : 9});
        check_rows(10, 3, bounds(huge[i], NONE, 6), is_up ? 0 : 2, (int[]){0, 6});
        check_rows(10, 3, bounds(huge[i], NONE, -6), is_up ? 2 : 0, (int[]){9, 3});
        check_rows(10, 3, bounds(NONE, huge[i], 6), is_up ? 2 : 0, (int[]){0, 6});
        check_rows(10, 3, bounds(NONE, huge[i], -6), is_up ? 0 : 2, (int[]){9, 3});
    }
    t_ok(ch__slice_rows(INT64_MAX, &(ch_slice_bounds){.step = -(INT64_MAX - 1)}, &all));
    assert_int_equal(all.count, 2);
    of = ch__slice_shard(all, INT64_MAX, 2, 0); /* the last row is in the other shard */
    assert_true(of.begin == 0 && of.count == 1 && of.at == 1);
    t_ok(ch__slice_rows(INT64_MAX, &(ch_slice_bounds){.step = 1}, &all));
    of = ch__slice_shard(all, INT64_MAX, 3, 2);
    assert_int_equal(of.at, ch__part_begin(INT64_MAX, 3, 2));
    assert_int_equal(of.at + of.count, INT64_MAX);
}

/* SV-10 */
static void slice_rejects_a_step_of_zero(void **state)
{
    ch_slice_bounds b = bounds(NONE, NONE, 0);
    ch_slice_range  all = {.count = -7};

    (void)state;
    t_refused(ch__slice_rows(8, &b, &all), CH_INVALID_ARGUMENT, "slice", "step is 0");
    assert_int_equal(all.count, -7);
}

/* ---- a single row ---- */

/* SV-9, B22: of 13 ids in 5 shards 9 is (3, 0) and 12 is (4, 1). */
static void slice_row_finds_the_shard_and_row_of_an_index(void **state)
{
    static const struct {
        int index, shard, row;
    } want[] = {{0, 0, 0},  {2, 0, 2},  {3, 1, 0},  {8, 2, 2},   {9, 3, 0},
                {10, 3, 1}, {12, 4, 1}, {-1, 4, 1}, {-13, 0, 0}, {-4, 3, 0}};
    int     shard = -1;
    int64_t row = -1;

    (void)state;
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        t_ok(ch__slice_row(13, 5, want[i].index, &shard, &row));
        assert_int_equal(shard, want[i].shard);
        assert_int_equal(row, want[i].row);
    }
}

/* SV-9 */
static void slice_row_rejects_an_index_out_of_bounds(void **state)
{
    static const int64_t beyond[] = {13, -14, INT64_MAX, INT64_MIN};
    int                  shard = -7;
    int64_t              row = -7;

    (void)state;
    for (int i = 0; i < 4; i++)
        t_refused(ch__slice_row(13, 5, beyond[i], &shard, &row), CH_INVALID_ARGUMENT,
                  "out of bounds", "13 rows");
    t_refused(ch__slice_row(0, 1, 0, &shard, &row), CH_INVALID_ARGUMENT, "out of bounds",
              "0 rows");
    t_refused(ch__slice_row(0, 1, -1, &shard, &row), CH_INVALID_ARGUMENT, "index -1", "0 rows");
    assert_int_equal(shard, -7);
    assert_int_equal(row, -7);
}

/* ---- values ---- */

/* Reads a slice from the shards of a variable. Each shard is read once. */
static ch_tensor *read_slice(ch_tensor *whole, int n, ch_slice_bounds b)
{
    ch_shape       shape = ch_tensor_shape(whole), result = shape;
    ch_tensor     *out = NULL;
    ch_slice_range all;

    t_ok(ch__slice_rows(shape.dim[0], &b, &all));
    result.dim[0] = all.count;
    t_ok(ch_tensor_new(CH_F32, result, &out));
    for (int i = 0; i < n; i++) {
        ch_slice_range of = ch__slice_shard(all, shape.dim[0], n, i);
        int64_t        end = of.begin + (of.count - 1) * of.step + (of.step > 0 ? 1 : -1);
        ch_tensor     *shard = NULL, *from = NULL, *to = NULL;

        if (of.count == 0)
            continue;
        t_ok(ch__layout_cut(ch__layout_along(0, n), shape, whole, i, &shard));
        t_ok(ch_tensor_slice(shard, 0, of.begin, end, of.step, &from));
        t_ok(ch_tensor_rows(out, of.at, of.at + of.count, &to));
        t_ok(ch_tensor_copy(from, to));
        ch_tensor_unref(to);
        ch_tensor_unref(from);
        ch_tensor_unref(shard);
    }
    return out;
}

/* SV-11: slices of further axes, and new axes, are applied to the rows that were read. */
static void slice_of_further_axes_is_a_view_of_the_rows(void **state)
{
    ch_tensor *whole = t_noise(ch_shape_of(8, 4), 5);
    ch_tensor *read = read_slice(whole, 3, bounds(6, NONE, -2)), *columns = NULL, *more = NULL;

    (void)state;
    assert_true(ch_shape_equal(ch_tensor_shape(read), ch_shape_of(4, 4)));
    t_ok(ch_tensor_slice(read, 1, 1, 4, 2, &columns)); /* x[6::-2, 1:4:2] */
    t_ok(ch_tensor_reshape(read, ch_shape_of(1, 4, 4), &more));
    for (int64_t i = 0; i < 4; i++)
        for (int64_t k = 0; k < 2; k++) {
            double want = 0, x = 0;

            t_ok(ch_tensor_get(whole, (int64_t[]){6 - 2 * i, 1 + 2 * k}, &want));
            t_ok(ch_tensor_get(columns, (int64_t[]){i, k}, &x));
            assert_true(x == want);
            t_ok(ch_tensor_get(more, (int64_t[]){0, i, 1 + 2 * k}, &x));
            assert_true(x == want);
        }
    ch_tensor_unref(more);
    ch_tensor_unref(columns);
    ch_tensor_unref(read);
    ch_tensor_unref(whole);
}

/* SV-13: further axes of an empty slice are cut too. */
static void empty_slice_keeps_the_sizes_of_further_axes(void **state)
{
    ch_tensor *whole = t_noise(ch_shape_of(8, 2), 5);
    ch_tensor *read = read_slice(whole, 3, bounds(0, 0, 1)), *column = NULL;

    (void)state;
    assert_true(ch_shape_equal(ch_tensor_shape(read), ch_shape_of(0, 2)));
    t_ok(ch_tensor_slice(read, 1, 0, 1, 1, &column));
    assert_true(ch_shape_equal(ch_tensor_shape(column), ch_shape_of(0, 1)));
    ch_tensor_unref(column);
    ch_tensor_unref(read);
    ch_tensor_unref(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slice_rows_match_the_specification),
        cmocka_unit_test(slice_start_beyond_an_end_is_clamped),
        cmocka_unit_test(slice_rows_match_a_slow_model),
        cmocka_unit_test(slice_bounds_and_steps_do_not_overflow),
        cmocka_unit_test(slice_rejects_a_step_of_zero),
        cmocka_unit_test(slice_row_finds_the_shard_and_row_of_an_index),
        cmocka_unit_test(slice_row_rejects_an_index_out_of_bounds),
        cmocka_unit_test(slice_of_further_axes_is_a_view_of_the_rows),
        cmocka_unit_test(empty_slice_keeps_the_sizes_of_further_axes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test/strategy/test_ragged_gather.c -- steps that gather rows by ragged ids: a program fits
 * many sizes, and the results are those of exact sizes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ragged_model.h"
#include "tensor/ragged.h"

enum { PLAIN, ONE, MIRRORED, CENTRAL, STRATEGIES };

static ch_strategy *strategy_of(int which)
{
    ch_strategy *st = NULL;

    if (which == ONE)
        t_ok(ch_strategy_one_device("GPU:1", &st));
    return which == PLAIN      ? ch_strategy_ref(ch_strategy_current())
           : which == MIRRORED ? t_mirrored(2)
           : which == CENTRAL  ? t_central(2)
                               : st;
}

static int replicas_of(int which)
{
    return which == MIRRORED || which == CENTRAL ? 2 : 1;
}

static void ignore(const ch_log_record *r, void *arg)
{
    if (strcmp(r->code, "program-cache") == 0 && strncmp(r->text, "room", 4) == 0)
        ++*(int *)arg;
}

/* Returns the number of programs. The model with room must cause no warning. */
static int train_under(int which, bool has_two_lists, int steps, int64_t most)
{
    ch_strategy *st[] = {strategy_of(which), strategy_of(which)};
    int          warnings = 0, n;

    ch_log_set_sink(ignore, &warnings, CH_LOG_WARNING);
    n = train_both(st, replicas_of(which), has_two_lists, steps, most);
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    assert_int_equal(warnings, 0);
    ch_strategy_unref(st[0]);
    ch_strategy_unref(st[1]);
    return n;
}

static void gather_over_ragged_ids_trains_as_with_exact_sizes(void **state)
{
    for (int which = 0; which < STRATEGIES; which++) {
        int n = train_under(which, false, 60, 420);

        assert_in_range(n, 3, 7); /* 32, 64, 128, 256, 320, 384, 448 */
    }
    (void)state;
}

static void gather_over_ragged_ids_trains_as_with_exact_sizes_when_room_is_nan(void **state)
{
    for (int which = 0; which < STRATEGIES; which++) {
        int n;

        ch__room_poison(true);
        n = train_under(which, false, 60, 420);
        ch__room_poison(false);
        assert_in_range(n, 3, 7);
    }
    (void)state;
}

static void two_ragged_gathers_need_at_most_20_programs(void **state)
{
    for (int which = MIRRORED; which <= CENTRAL; which++) {
        int n;

        ch__room_poison(which == MIRRORED);
        n = train_under(which, true, 60, 700);
        ch__room_poison(false);
        assert_in_range(n, 8, 20);
    }
    (void)state;
}

/* Lengths that grow slowly are the worst case: each new capacity is the largest so far. */
static void rising_lengths_need_at_most_20_programs_for_two_lists(void **state)
{
    ragged_model m = new_ragged_model(NULL, true);

    m.train = t_function(train_words, &m);
    for (int64_t a = 1, k = 0; a <= 4096; a += a / 7 + 1, k++)
        for (int64_t b = 1; b <= 4096; b += b / 3 + 400) {
            int64_t   n[1][2] = {{k % 2 == 0 ? a : b, k % 2 == 0 ? b : a}};
            ch_tuple *in = words_of(1, n, (uint64_t)a, true);

            t_ok(ch_strategy_run(NULL, m.train, in, NULL));
            ch_tuple_unref(in);
        }
    assert_int_equal(ch_function_recordings(m.train), 1);
    assert_in_range(ch_function_programs(m.train), 8, 20);
    drop_ragged_model(&m);
    (void)state;
}

/* ---- ids ---- */

static void gather_rows(ch_step *s, void *arg)
{
    ch_node *x = ch_gather(ch_var_read(s, arg), ch_step_in(s, 0), 0);

    ch_step_out(s, "x", x);
    ch_step_out_sparse(s, "dx", ch_gradient(ch_sum_all(ch_square(x)), ch_var_read(s, arg)));
}

static ch_status run_ids(ch_function *f, int64_t n, int64_t bad, ch_tuple **out)
{
    static const char *const name[] = {"u/values", "u/row_splits"};
    ch_tensor               *t[2] = {NULL};
    ch_value                *v[2] = {NULL};
    ch_tuple                *in = NULL;
    ch_status                rc;

    t_ok(ch_tensor_new(CH_I32, ch_shape_of(n), &t[0]));
    for (int64_t i = 0; i < n; i++)
        ((int32_t *)ch_tensor_data_mut(t[0]))[i] = i == bad ? -1 : (int32_t)(i * 5 % WORDS);
    t_ok(ch_tensor_copy_of(CH_I32, ch_shape_of(2), (int32_t[]){0, (int32_t)n}, &t[1]));
    for (int i = 0; i < 2; i++)
        t_ok(ch_value_new(CH_PLAIN, 1, &t[i], &v[i]));
    t_ok(ch_tuple_new(2, v, name, &in));
    rc = ch_strategy_run(NULL, f, in, out);
    ch_tuple_unref(in);
    for (int i = 0; i < 2; i++) {
        ch_value_unref(v[i]);
        ch_tensor_unref(t[i]);
    }
    return rc;
}

static void gather_refuses_ids_of_values_and_ignores_those_of_room(void **state)
{
    ch_var      *v = t_var(NULL, "v", t_noise(ch_shape_of(WORDS, COLUMNS), 1));
    ch_function *f = t_function(gather_rows, v);
    ch_tuple    *out = NULL;

    ch__room_poison(true);
    for (int64_t n = 33; n <= 64; n++) {
        t_refused(run_ids(f, n, n - 1, NULL), CH_INVALID_ARGUMENT, "gather",
                  "id -1 at position");
        t_ok(run_ids(f, n, -1, NULL));
    }
    ch__room_poison(false);
    assert_int_equal(ch_function_programs(f), 1);
    t_ok(run_ids(f, 33, 33, &out));
    assert_int_equal(ch_tensor_count(ch_value_at(ch_tuple_get(out, "x"), 0)), 33 * COLUMNS);
    assert_int_equal(ch_tensor_count(ch_value_at(ch_tuple_get(out, "dx/ids"), 0)), 33);
    assert_int_equal(ch_tensor_count(ch_value_at(ch_tuple_get(out, "dx/rows"), 0)),
                     33 * COLUMNS);
    for (int i = 0; i < 33; i++)
        assert_int_equal(
            ((const int32_t *)ch_tensor_data(ch_value_at(ch_tuple_get(out, "dx/ids"), 0)))[i],
            i * 5 % WORDS);
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_var_unref(v);
    (void)state;
}

static void gather_from_empty(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "x",
                ch_gather(ch_fill(s, CH_F32, ch_shape_of(0, 2), 1), ch_step_in(s, 0), 0));
}

static void gather_from_no_rows_succeeds_when_there_are_no_ragged_ids(void **state)
{
    ch_function *f = t_function(gather_from_empty, NULL);

    t_ok(run_ids(f, 0, 0, NULL));
    t_refused(run_ids(f, 1, 1, NULL), CH_INVALID_ARGUMENT, "gather", "id 0 at position 0");
    ch_function_unref(f);
    (void)state;
}

/* Values after the last row split are in no row, but a gather reads them. */
static void gather_reads_values_after_the_last_split(void **state)
{
    static const char *const name[] = {"u/values", "u/row_splits"};
    ch_var                  *v = t_var(NULL, "v", t_noise(ch_shape_of(WORDS, COLUMNS), 1));
    ch_function             *f = t_function(gather_rows, v);
    ch_tensor               *t[2] = {NULL};
    ch_value                *x[2] = {NULL};
    ch_tuple                *in = NULL, *out = NULL;
    const float             *row;

    t_ok(ch_tensor_copy_of(CH_I64, ch_shape_of(3), (int64_t[]){4, 5, 6}, &t[0]));
    t_ok(ch_tensor_copy_of(CH_I64, ch_shape_of(2), (int64_t[]){0, 1}, &t[1]));
    for (int i = 0; i < 2; i++)
        t_ok(ch_value_new(CH_PLAIN, 1, &t[i], &x[i]));
    t_ok(ch_tuple_new(2, x, name, &in));
    t_ok(ch_strategy_run(NULL, f, in, &out));
    row = ch_tensor_data(ch_value_at(ch_tuple_get(out, "dx/rows"), 0));
    for (int i = 0; i < 3 * COLUMNS; i++)
        assert_true(row[i] == 2 * t_floats(out, 0, 0)[i] &&
                    t_floats(out, 0, 0)[i] == t_copy_of(v, 0, 4 * COLUMNS + i));
    ch_tuple_unref(in);
    ch_tuple_unref(out);
    for (int i = 0; i < 2; i++) {
        ch_value_unref(x[i]);
        ch_tensor_unref(t[i]);
    }
    ch_function_unref(f);
    ch_var_unref(v);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gather_over_ragged_ids_trains_as_with_exact_sizes),
        cmocka_unit_test(gather_over_ragged_ids_trains_as_with_exact_sizes_when_room_is_nan),
        cmocka_unit_test(two_ragged_gathers_need_at_most_20_programs),
        cmocka_unit_test(rising_lengths_need_at_most_20_programs_for_two_lists),
        cmocka_unit_test(gather_refuses_ids_of_values_and_ignores_those_of_room),
        cmocka_unit_test(gather_from_no_rows_succeeds_when_there_are_no_ragged_ids),
        cmocka_unit_test(gather_reads_values_after_the_last_split),
    };

    return cmocka_run_group_tests(tests, t_four_gpus, NULL);
}

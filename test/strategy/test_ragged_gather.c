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
        for (int64_t b = 2; b <= 4096; b += b / 3 + 400) {
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

/* ---- ops on rows ---- */

/* Every op that treats rows alike or sums them up, with its gradient. x is (n, 1) from a ragged
 * input, w a variable. */
static ch_node *by_row(ch_step *s, int which, ch_node *x, ch_node *ids, ch_node *w)
{
    ch_node *y = ch_matmul(x, false, w, false), *p = ch_softmax(y, -1); /* (n, COLUMNS) */
    ch_node *gamma = ch_fill(s, CH_F32, ch_shape_of(COLUMNS), 0.5);
    ch_node *pair[] = {y, p};

    switch (which) {
    case 0:
        return ch_log_softmax(y, -1);
    case 1:
        return ch_rms_norm(y, gamma, 1e-5);
    case 2:
        return ch_expand_dims(ch_softmax_cross_entropy(y, p), 1);
    case 3:
        return ch_transpose(ch_stack(2, pair, 1), 3, (int[]){0, 2, 1});
    case 4:
        return ch_concat(2, pair, 1);
    case 5:
        return ch_slice(y, 2, (int64_t[]){0, 1}, (int64_t[]){-1, 3});
    case 6:
        return ch_pad(y, 2, (int64_t[]){0, 1}, (int64_t[]){0, 2}, 0.5);
    case 7:
        return ch_max(y, 1, (int[]){1}, true);
    case 8:
        return ch_logsumexp(y, 1, (int[]){1}, true);
    case 9:
        return ch_mean(y, 1, (int[]){-1}, true);
    case 10:
        return ch_min(p, 1, (int[]){-1}, true);
    case 11:
        return ch_mul(ch_dropout(y, 0.5, 3), ch_random_normal_like(y, 1, 0.5, 4));
    case 12:
        return ch_matmul(ch_expand_dims(y, 2), false, ch_expand_dims(p, 1), false);
    case 13:
        return ch_scatter_add(ch_fill(s, CH_F32, ch_shape_of(WORDS, COLUMNS), 1), ids, y);
    case 14:
        y = ch_scatter_max(ch_fill(s, CH_F32, ch_shape_of(WORDS, COLUMNS), 0), ids, y);
        return ch_add(ch_stop_gradient(y), w);
    case 15:
        return ch_gather_nd(w, ch_stack(2, (ch_node *[]){ch_zeros_like(ids), ids}, 1));
    case 16:
        return ch_matmul(y, true, p, false);
    case 17:
        return ch_sum(y, 1, (int[]){0}, true);
    default:
        return NULL;
    }
}

enum { ROW_OPS = 18 };

static void run_row_op(ch_step *s, void *arg)
{
    static float columns[COLUMNS] = {0.5f, -1, 2, 0.25f, -0.75f, 1};
    ch_node     *ids = ch_step_in(s, 0), *w, *x, *y;
    ch_tensor   *t = t_f32(ch_shape_of(1, COLUMNS), columns);

    w = ch_constant(s, t);
    ch_tensor_unref(t);
    x = ch_expand_dims(ch_div(ch_cast(ids, CH_F32), ch_number(s, COLUMNS)), 1);
    y = by_row(s, *(const int *)arg, x, ids, w);
    ch_step_out(s, "y", y);
    ch_step_out(s, "dw", ch_gradient(ch_sum_all(ch_square(y)), w));
}

/* The ids of the list are columns of w. */
static ch_tuple *columns_of(int64_t n, bool is_ragged)
{
    static const char *const name[2][2] = {{"u", "us"}, {"u/values", "u/row_splits"}};
    ch_tensor               *t[2] = {NULL};
    ch_value                *v[2] = {NULL};
    ch_tuple                *in = NULL;

    t_ok(ch_tensor_new(CH_I32, ch_shape_of(n), &t[0]));
    for (int64_t i = 0; i < n; i++)
        ((int32_t *)ch_tensor_data_mut(t[0]))[i] = (int32_t)(i * 5 % COLUMNS);
    t_ok(ch_tensor_copy_of(CH_I64, ch_shape_of(2), (int64_t[]){0, n}, &t[1]));
    for (int i = 0; i < 2; i++)
        t_ok(ch_value_new(CH_PLAIN, 1, &t[i], &v[i]));
    t_ok(ch_tuple_new(2, v, name[is_ragged], &in));
    for (int i = 0; i < 2; i++) {
        ch_value_unref(v[i]);
        ch_tensor_unref(t[i]);
    }
    return in;
}

static void ops_on_rows_ignore_the_room_of_ragged_values(void **state)
{
    ch__room_poison(true);
    for (int which = 0; which < ROW_OPS; which++) {
        ch_function *f[] = {t_function(run_row_op, &which), t_function(run_row_op, &which)};

        for (int64_t n = 57; n < 63; n++) {
            ch_tuple *out[2] = {NULL};

            for (int i = 0; i < 2; i++) {
                ch_tuple *in = columns_of(n, i == 0);

                t_ok(ch_strategy_run(NULL, f[i], in, &out[i]));
                ch_tuple_unref(in);
            }
            for (int k = 0; k < 2; k++)
                assert_near(ch_tuple_name(out[1], k), which,
                            ch_value_at(ch_tuple_at(out[0], k), 0),
                            ch_value_at(ch_tuple_at(out[1], k), 0));
            ch_tuple_unref(out[0]);
            ch_tuple_unref(out[1]);
        }
        if (ch_function_programs(f[0]) != 1)
            fail_msg("op %d: %d programs, want 1", which, ch_function_programs(f[0]));
        ch_function_unref(f[0]);
        ch_function_unref(f[1]);
    }
    ch__room_poison(false);
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

static void sum_rows(ch_step *s, void *arg)
{
    ch_node *ids = ch_step_in(s, 0), *x = ch_gather(ch_var_read(s, arg), ids, 0);
    ch_node *y = ch_embedding_bag(x, ids, ch_step_in(s, 1), NULL);

    ch_step_out(s, "y", y);
    ch_step_out(s, "dx", ch_gradient(ch_sum_all(ch_square(y)), x));
}

/* The ids are positions of rows now, and go up to WORDS - 1. */
static void bag_over_gathered_rows_refuses_positions_of_room(void **state)
{
    ch_var      *v = t_var(NULL, "v", t_noise(ch_shape_of(WORDS, COLUMNS), 1));
    ch_function *f = t_function(sum_rows, v);

    for (int64_t n = 25; n <= 60; n++) {
        ch_status rc = run_ids(f, n, -1, NULL);

        if (n < WORDS)
            t_refused(rc, CH_INVALID_ARGUMENT, "embedding_bag", "is not in [0, ");
        else
            t_ok(rc);
    }
    assert_int_equal(ch_function_programs(f), 2); /* 32, 64 */
    ch_function_unref(f);
    ch_var_unref(v);
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
        cmocka_unit_test(ops_on_rows_ignore_the_room_of_ragged_values),
        cmocka_unit_test(gather_refuses_ids_of_values_and_ignores_those_of_room),
        cmocka_unit_test(gather_from_no_rows_succeeds_when_there_are_no_ragged_ids),
        cmocka_unit_test(bag_over_gathered_rows_refuses_positions_of_room),
        cmocka_unit_test(gather_reads_values_after_the_last_split),
    };

    return cmocka_run_group_tests(tests, t_four_gpus, NULL);
}

/* test/strategy/test_ragged.c -- ragged arguments of steps: a program fits many sizes, and the
 * results do not depend on its capacity.
 *
 * The values of a ragged argument have room after their last element. The tests compare results
 * with plain C for many sizes, and count programs.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "base/mem.h"
#include "graph/room.h"
#include "help.h"
#include "tensor/ragged.h"

/* ---- capacities ---- */

/* Returns the least allowed size that is not below n, by trying all. */
static int64_t capacity_by_trying(int64_t n)
{
    int64_t best = INT64_MAX;

    for (int64_t power = 32; power <= 2 * n + 32; power *= 2)
        for (int64_t quarters = 4; quarters < (power < 256 ? 5 : 8); quarters++)
            if (power * quarters / 4 >= n && power * quarters / 4 < best)
                best = power * quarters / 4;
    return best;
}

static void capacity_is_the_least_quarter_step_that_holds_n(void **state)
{
    for (int64_t n = 0; n < 5000; n++)
        assert_int_equal(ch__ragged_capacity(n), capacity_by_trying(n));
    (void)state;
}

static void capacities_up_to_4096_values_are_20(void **state)
{
    int     n_capacities = 0;
    int64_t last = 0;

    for (int64_t n = 0; n <= 4096; n++) {
        n_capacities += ch__ragged_capacity(n) != last;
        last = ch__ragged_capacity(n);
    }
    assert_int_equal(n_capacities, 20);
    (void)state;
}

static void allocated_values_have_the_capacity_of_every_piece(void **state)
{
    int64_t most = 0; /* the most room of up to n values */

    for (int64_t n = 0; n < 5000; n++) {
        int64_t room = ch__ragged_capacity(n) - n;

        most = room > most ? room : most;
        assert_true(n + most <= ch__ragged_allocated(n));
    }
    (void)state;
}

/* ---- arguments ---- */

/* Returns the values 0, 1, ... n - 1 in two rows, which end at `first` and `end`. */
static ch_tuple *two_rows(int64_t n, int64_t first, int64_t end)
{
    static const char *const name[] = {"x/values", "x/row_splits"};
    ch_tensor               *t[2] = {NULL};
    ch_value                *v[2] = {NULL};
    ch_tuple                *in = NULL;

    t_ok(ch_tensor_new(CH_F32, ch_shape_of(n), &t[0]));
    for (int64_t i = 0; i < n; i++)
        ((float *)ch_tensor_data_mut(t[0]))[i] = (float)i;
    t_ok(ch_tensor_copy_of(CH_I64, ch_shape_of(3), (int64_t[]){0, first, end}, &t[1]));
    for (int i = 0; i < 2; i++)
        t_ok(ch_value_new(CH_PLAIN, 1, &t[i], &v[i]));
    t_ok(ch_tuple_new(2, v, name, &in));
    for (int i = 0; i < 2; i++) {
        ch_value_unref(v[i]);
        ch_tensor_unref(t[i]);
    }
    return in;
}

static ch_status run_rows(ch_function *f, int64_t n, int64_t end, ch_tuple **out)
{
    ch_tuple *in = two_rows(n, n / 3, end);
    ch_status rc = ch_strategy_run(NULL, f, in, out);

    ch_tuple_unref(in);
    return rc;
}

/* ---- steps ---- */

/* Returns the sum of the square roots of each row, as a table with a single column: row-wise
 * ops and a bag. */
static ch_node *sums_of(ch_step *s, ch_node *x)
{
    ch_node *one = ch_fill(s, CH_F32, ch_shape_of(1, 1), 1), *zero = ch_cast(x, CH_I32);

    zero = ch_zeros_like(zero);
    return ch_embedding_bag(one, zero, ch_step_in(s, 1),
                            &(ch_bag_options){.weights = ch_sqrt(x)});
}

static void rowwise(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *y = sums_of(s, x);

    (void)arg;
    ch_step_out(s, "sums", y);
    ch_step_out(s, "twice", ch_mul(x, ch_number(s, 2)));
    ch_step_out(s, "gradient", ch_gradient(ch_square(y), x));
    ch_step_out(s, "rows", ch_step_global_rows(s));
}

static const float *floats_of(const ch_tuple *out, int i)
{
    return ch_tensor_data(ch_value_at(ch_tuple_at(out, i), 0));
}

static void check_rowwise(const ch_tuple *out, int64_t n)
{
    double sum[2] = {0};

    for (int64_t i = 0; i < n; i++)
        sum[i >= n / 3] += sqrt((double)i);
    for (int r = 0; r < 2; r++)
        assert_true(fabs(floats_of(out, 0)[r] - sum[r]) < 1e-3);
    assert_int_equal(ch_tensor_count(ch_value_at(ch_tuple_at(out, 1), 0)), n);
    assert_int_equal(ch_tensor_count(ch_value_at(ch_tuple_at(out, 2), 0)), n);
    for (int64_t i = 0; i < n; i++) {
        double slope = sum[i >= n / 3] / sqrt((double)i); /* 2 sum times 1 / (2 sqrt) */

        assert_true(floats_of(out, 1)[i] == 2 * (float)i);
        assert_true(i == 0 || fabs(floats_of(out, 2)[i] - slope) < 1e-4 * fabs(slope) + 1e-4);
    }
    assert_int_equal(*(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(out, 3), 0)), 2);
}

static void ragged_results_have_live_rows_alone(void **state)
{
    for (int poison = 0; poison < 2; poison++) {
        ch_function *f = NULL;

        t_ok(ch_function_new("rowwise", rowwise, NULL, &f));
        ch__room_poison(poison == 1);
        for (int64_t n = 0; n <= 128; n++) {
            ch_tuple *out = NULL;

            t_ok(run_rows(f, n, n, &out));
            check_rowwise(out, n);
            ch_tuple_unref(out);
        }
        ch__room_poison(false);
        assert_int_equal(ch_function_recordings(f), 1);
        assert_int_equal(ch_function_programs(f), 3); /* 32, 64, 128 */
        ch_function_unref(f);
    }
    (void)state;
}

static void ragged_runs_of_other_sizes_allocate_nothing(void **state)
{
    ch_function *f = NULL;
    ch_tuple    *in[] = {two_rows(57, 9, 57), two_rows(64, 1, 64), two_rows(60, 60, 60)};
    int64_t      before = 0;

    t_ok(ch_function_new("rowwise", rowwise, NULL, &f));
    for (int i = 0; i < 12; i++) {
        if (i == 6)
            before = ch__mem_allocs();
        t_ok(ch_strategy_run(NULL, f, in[i % 3], NULL));
    }
    assert_int_equal(ch__mem_allocs(), before);
    assert_int_equal(ch_function_programs(f), 1);
    for (int i = 0; i < 3; i++)
        ch_tuple_unref(in[i]);
    ch_function_unref(f);
    (void)state;
}

/* ---- ops that would read the room ---- */

static void mixing(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0);

    ch_step_out(s, "sum", ch_sum_all(x));
    ch_step_out(s, "mean", ch_mean_all(x));
    ch_step_out(s, "count", ch_cast(ch_rows(x), CH_F32));
    if (arg != NULL)
        ch_step_out(s, "reversed", ch_reverse(x, 1, (int[]){0}));
    ch_step_out(s, "slope", ch_gradient(ch_square(ch_mean_all(x)), x));
    ch_step_out(s, "most", ch_max_all(x));
}

typedef struct caught {
    int  n;
    char text[512];
} caught;

static void catch (const ch_log_record *r, void *arg)
{
    caught *c = arg;

    if (strcmp(r->code, "program-cache") != 0)
        return;
    c->n++;
    snprintf(c->text, sizeof(c->text), "%s", r->text);
}

/* Runs `mixing` for 20 lengths and checks its results. */
static void check_mixing(ch_function *f)
{
    ch__room_poison(true);
    for (int64_t n = 33; n < 53; n++) {
        ch_tuple    *out = NULL;
        const float *slope;

        t_ok(run_rows(f, n, n, &out));
        slope = ch_tensor_data(ch_value_at(ch_tuple_get(out, "slope"), 0));
        assert_true(floats_of(out, 0)[0] == (float)(n * (n - 1) / 2));
        assert_true(floats_of(out, 1)[0] == (float)(n - 1) / 2);
        assert_true(floats_of(out, 2)[0] == (float)n);
        assert_true(*(const float *)ch_tensor_data(ch_value_at(ch_tuple_get(out, "most"), 0)) ==
                    (float)(n - 1));
        for (int64_t i = 0; i < n; i++)
            assert_true(slope[i] == (float)(n - 1) / (float)n);
        ch_tuple_unref(out);
    }
    ch__room_poison(false);
}

static void reductions_over_flat_values_leave_out_the_room(void **state)
{
    ch_function *f = t_function(mixing, NULL);

    check_mixing(f);
    assert_int_equal(ch_function_programs(f), 1);
    ch_function_unref(f);
    (void)state;
}

static void ops_that_move_values_are_exact_and_the_warning_says_what_to_do(void **state)
{
    ch_function *f = NULL;
    caught       c = {0};

    ch_log_set_sink(catch, &c, CH_LOG_WARNING);
    t_ok(ch_function_new("mixing", mixing, &c, &f));
    check_mixing(f);
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    assert_int_equal(c.n, 1);
    assert_non_null(strstr(c.text, "input 0 (x/values)"));
    assert_non_null(strstr(c.text, "ch_embedding_bag"));
    assert_non_null(strstr(c.text, "ch_dataset_padded_batch"));
    ch_function_unref(f);
    (void)state;
}

static void ragged_values_need_at_most_20_programs_and_no_warning(void **state)
{
    ch_function *f = NULL;
    caught       c = {0};

    ch_log_set_sink(catch, &c, CH_LOG_WARNING);
    t_ok(ch_function_new("rowwise", rowwise, NULL, &f));
    for (int64_t n = 0; n <= 4096; n += n / 16 + 1)
        t_ok(run_rows(f, n, n, NULL));
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    assert_int_equal(c.n, 0);
    assert_in_range(ch_function_programs(f), 15, 20);
    ch_function_unref(f);
    (void)state;
}

static void splits_that_end_behind_the_values_are_refused(void **state)
{
    ch_function *f = NULL;

    t_ok(ch_function_new("rowwise", rowwise, NULL, &f));
    for (int64_t end = 58; end <= 70; end++) /* the capacity of 57 is 64 */
        t_refused(run_rows(f, 57, end, NULL), CH_INVALID_ARGUMENT, "row split", "57 ids");
    t_ok(run_rows(f, 57, 50, NULL)); /* values after the last split are in no row */
    ch_function_unref(f);
    (void)state;
}

/* ---- several components ---- */

/* The components u, ids, and w, weights, with two rows each, and a table. Replica r has n[r][0]
 * ids and n[r][1] weights. If not `is_ragged`, the names do not say that they are components,
 * so that programs are planned for exact sizes. */
static ch_tuple *two_components(int n_replicas, int64_t (*n)[2], bool is_ragged)
{
    static const char *const ragged[] = {"u/values", "u/row_splits", "w/values", "w/row_splits",
                                         "table"};
    static const char *const exact[] = {"u", "u_splits", "w", "w_splits", "table"};
    ch_tensor               *t[4][2] = {{NULL}}, *table = t_noise(ch_shape_of(50, 4), 7);
    ch_value                *v[5] = {NULL};
    ch_tuple                *in = NULL;

    for (int r = 0; r < n_replicas; r++) {
        t_ok(ch_tensor_new(CH_I64, ch_shape_of(n[r][0]), &t[0][r]));
        t_ok(ch_tensor_new(CH_F32, ch_shape_of(n[r][1]), &t[2][r]));
        for (int64_t i = 0; i < n[r][0]; i++)
            ((int64_t *)ch_tensor_data_mut(t[0][r]))[i] = (i * 7 + r) % 50;
        for (int64_t i = 0; i < n[r][1]; i++)
            ((float *)ch_tensor_data_mut(t[2][r]))[i] = 0.3f * (float)(i % 13 + r);
        for (int k = 0; k < 2; k++)
            t_ok(ch_tensor_copy_of(CH_I64, ch_shape_of(3), (int64_t[]){0, n[r][k] / 3, n[r][k]},
                                   &t[2 * k + 1][r]));
    }
    for (int k = 0; k < 4; k++)
        t_ok(ch_value_new(n_replicas > 1 ? CH_PER_REPLICA : CH_PLAIN, n_replicas, t[k], &v[k]));
    t_ok(ch_value_new(CH_PLAIN, 1, &table, &v[4]));
    t_ok(ch_tuple_new(5, v, is_ragged ? ragged : exact, &in));
    for (int k = 0; k < 5; k++)
        ch_value_unref(v[k]);
    for (int k = 0; k < 4; k++)
        for (int r = 0; r < n_replicas; r++)
            ch_tensor_unref(t[k][r]);
    ch_tensor_unref(table);
    return in;
}

static void two_bags(ch_step *s, void *arg)
{
    ch_node *u = ch_step_in(s, 0), *w = ch_step_in(s, 2), *table = ch_step_in(s, 4);
    ch_node *x = ch_embedding_bag(table, u, ch_step_in(s, 1),
                                  &(ch_bag_options){.combiner = CH_COMBINE_MEAN});
    ch_node *y = ch_embedding_bag(table, ch_zeros_like(ch_cast(w, CH_I32)), ch_step_in(s, 3),
                                  &(ch_bag_options){.weights = ch_sqrt(w)});

    (void)arg;
    ch_step_out(s, "x", x);
    ch_step_out(s, "y", y);
    ch_step_out(s, "next", ch_add(u, ch_cast(ch_number(s, 1), CH_I64)));
    ch_step_out(s, "dx", ch_gradient(ch_square(x), table));
    ch_step_out(s, "dy", ch_gradient(ch_square(y), table));
    ch_step_out(s, "dw", ch_gradient(ch_square(y), w));
}

static void assert_same_bits(const ch_tuple *got, const ch_tuple *want)
{
    assert_int_equal(ch_tuple_count(got), ch_tuple_count(want));
    for (int i = 0; i < ch_tuple_count(want); i++) {
        ch_value *g = ch_tuple_at(got, i), *w = ch_tuple_at(want, i);

        assert_int_equal(ch_value_count(g), ch_value_count(w));
        for (int r = 0; r < ch_value_count(w); r++) {
            const ch_tensor *a = ch_value_at(g, r), *b = ch_value_at(w, r);

            assert_true(ch_shape_equal(ch_tensor_shape(a), ch_tensor_shape(b)));
            assert_memory_equal(ch_tensor_data(a), ch_tensor_data(b), ch_tensor_bytes(b));
        }
    }
}

/* Runs two_bags with n, with room and with exact sizes, and compares the results. */
static void check_two_bags(ch_strategy *st, ch_function *f, ch_function *exact, int64_t (*n)[2])
{
    ch_function *run[] = {f, exact};
    ch_tuple    *out[2] = {NULL};

    for (int i = 0; i < 2; i++) {
        ch_tuple *in = two_components(st != NULL ? 2 : 1, n, i == 0);

        t_ok(ch_strategy_run(st, run[i], in, &out[i]));
        ch_tuple_unref(in);
    }
    assert_same_bits(out[0], out[1]);
    ch_tuple_unref(out[0]);
    ch_tuple_unref(out[1]);
}

static void program_fits_components_of_different_lengths(void **state)
{
    ch_strategy *st[] = {NULL, t_mirrored(2)};
    caught       c = {0};

    ch_log_set_sink(catch, &c, CH_LOG_WARNING); /* the exact sizes need many programs */
    for (int k = 0; k < 4; k++) {
        ch_function *f = t_function(two_bags, NULL), *exact = t_function(two_bags, NULL);

        ch__room_poison(k % 2 == 1);
        for (int i = 0; i < 20; i++) {
            int64_t n[2][2] = {{41 + i % 8, 100 + i % 13}, {48 - i % 5, 97 + i % 7}};

            check_two_bags(st[k / 2], f, exact, n);
        }
        ch__room_poison(false);
        assert_int_equal(ch_function_recordings(f), 1);
        assert_int_equal(ch_function_programs(f), 1);
        ch_function_unref(f);
        ch_function_unref(exact);
    }
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    ch_strategy_unref(st[1]);
    (void)state;
}

static void combinations_of_lengths_need_at_most_20_programs(void **state)
{
    ch_strategy *st[] = {NULL, t_mirrored(2)};
    uint64_t     x = 1;

    for (int k = 0; k < 4; k++) {
        ch_function *f = NULL, *exact = NULL;
        caught       c = {0};

        t_ok(ch_function_new("room", two_bags, NULL, &f));
        t_ok(ch_function_new("exact", two_bags, NULL, &exact));
        ch_log_set_sink(catch, &c, CH_LOG_WARNING);
        ch__room_poison(k % 2 == 1);
        for (int i = 0; i < 60; i++) {
            int64_t n[2][2];

            for (int j = 0; j < 4; j++) {
                x = x * 6364136223846793005u + 1442695040888963407u;
                n[j / 2][j % 2] = (int64_t)(x >> 33) % 420;
            }
            check_two_bags(st[k / 2], f, exact, n);
        }
        ch__room_poison(false);
        ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
        assert_int_equal(c.n, 1); /* of the exact sizes */
        assert_non_null(strstr(c.text, "exact: ten programs already"));
        assert_in_range(ch_function_programs(f), 5, 20);
        ch_function_unref(f);
        ch_function_unref(exact);
    }
    ch_strategy_unref(st[1]);
    (void)state;
}

/* Components u and w; u has n values, its splits end at end[0], those of w at end[1]. */
static ch_status run_ends(ch_function *f, int64_t n, int64_t n_w, const int64_t *end, bool more)
{
    static const char *const name[] = {"u/values", "u/row_splits", "w/values", "w/row_splits"};
    int64_t                  split[][4] = {{0, 1, end[0], 0}, {0, 1, end[1], end[1]}};
    ch_tensor               *t[4] = {NULL};
    ch_value                *v[4] = {NULL};
    ch_tuple                *in = NULL;
    ch_status                rc;

    for (int k = 0; k < 2; k++) {
        t[2 * k] = t_noise(ch_shape_of(k == 0 ? n : n_w), 3);
        t_ok(ch_tensor_copy_of(CH_I64, ch_shape_of(k == 1 && more ? 4 : 3), split[k],
                               &t[2 * k + 1]));
    }
    for (int i = 0; i < 4; i++)
        t_ok(ch_value_new(CH_PLAIN, 1, &t[i], &v[i]));
    t_ok(ch_tuple_new(4, v, name, &in));
    rc = ch_strategy_run(NULL, f, in, NULL);
    ch_tuple_unref(in);
    for (int i = 0; i < 4; i++) {
        ch_value_unref(v[i]);
        ch_tensor_unref(t[i]);
    }
    return rc;
}

/* The values of u, added up by the splits of u or, if *arg is 3, of w. */
static void sum_by(ch_step *s, void *arg)
{
    ch_node *u = ch_step_in(s, 0), *one = ch_fill(s, CH_F32, ch_shape_of(1, 1), 1);
    ch_node *y =
        ch_embedding_bag(one, ch_zeros_like(ch_cast(u, CH_I32)),
                         ch_step_in(s, *(const int *)arg), &(ch_bag_options){.weights = u});

    ch_step_out(s, "y", y);
    ch_step_out(s, "du", ch_gradient(ch_square(y), u));
    ch_step_out(s, "w", ch_square(ch_step_in(s, 2)));
}

static void splits_of_another_component_must_end_within_the_values(void **state)
{
    for (int more = 0; more < 2; more++) { /* more: w has a row more than u */
        ch_function *f = t_function(sum_by, &(int){3});

        for (int64_t end = 58; end <= 70; end++)
            t_refused(run_ends(f, 57, 100, (int64_t[]){57, end}, more == 1),
                      CH_INVALID_ARGUMENT, "row split", "57 ids");
        t_ok(run_ends(f, 57, 100, (int64_t[]){57, 57}, more == 1));
        ch_function_unref(f);
    }
    (void)state;
}

static void splits_are_checked_by_component_when_lengths_are_equal(void **state)
{
    ch_function *f = t_function(sum_by, &(int){1});

    t_ok(run_ends(f, 57, 57, (int64_t[]){57, 57}, false));
    for (int64_t end = 58; end <= 70; end++)
        t_refused(run_ends(f, 57, 57, (int64_t[]){end, 57}, false), CH_INVALID_ARGUMENT,
                  "row split", "57 ids");
    t_ok(run_ends(f, 57, 57, (int64_t[]){57, 60}, false)); /* no op reads the splits of w */
    ch_function_unref(f);
    (void)state;
}

static void sum_of_values(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "y", ch_add(ch_step_in(s, 0), ch_step_in(s, 2)));
}

static void graph_with_equal_lengths_refuses_others_within_the_same_capacity(void **state)
{
    ch_function *f = t_function(sum_of_values, NULL), *fixed = NULL;

    t_ok(run_ends(f, 57, 57, (int64_t[]){57, 57}, false));
    t_ok(ch_function_of_graph("fixed", ch_function_graph(f), &fixed));
    t_ok(run_ends(fixed, 60, 60, (int64_t[]){60, 60}, false));
    t_refused(run_ends(fixed, 57, 60, (int64_t[]){57, 60}, false), CH_INVALID_ARGUMENT, "57",
              "60");
    ch_function_unref(fixed);
    ch_function_unref(f);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(capacity_is_the_least_quarter_step_that_holds_n),
        cmocka_unit_test(capacities_up_to_4096_values_are_20),
        cmocka_unit_test(allocated_values_have_the_capacity_of_every_piece),
        cmocka_unit_test(ragged_results_have_live_rows_alone),
        cmocka_unit_test(ragged_runs_of_other_sizes_allocate_nothing),
        cmocka_unit_test(reductions_over_flat_values_leave_out_the_room),
        cmocka_unit_test(ops_that_move_values_are_exact_and_the_warning_says_what_to_do),
        cmocka_unit_test(ragged_values_need_at_most_20_programs_and_no_warning),
        cmocka_unit_test(splits_that_end_behind_the_values_are_refused),
        cmocka_unit_test(program_fits_components_of_different_lengths),
        cmocka_unit_test(combinations_of_lengths_need_at_most_20_programs),
        cmocka_unit_test(splits_of_another_component_must_end_within_the_values),
        cmocka_unit_test(splits_are_checked_by_component_when_lengths_are_equal),
        cmocka_unit_test(graph_with_equal_lengths_refuses_others_within_the_same_capacity),
    };

    return cmocka_run_group_tests(tests, t_four_gpus, NULL);
}

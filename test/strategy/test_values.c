/* test/strategy/test_values.c -- values of several replicas: creation from a function, local
 * results, printing.
 *
 * The numbers in comments are rows of doc/conformance.md and doc/seed-examples.md.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "values.h"

#define N(...) ((const double[]){__VA_ARGS__})

typedef ch_tensor *(*number_fn)(const ch_value_context *c);

/* Returns a tuple with the result of the function at `arg`. */
static ch_status one_number(const ch_value_context *c, void *arg, ch_tuple **out)
{
    *out = t_tuple(1, (ch_tensor *[]){(*(const number_fn *)arg)(c)});
    return CH_OK;
}

static ch_tensor *always_1(const ch_value_context *c)
{
    (void)c;
    return t_number(CH_F32, 1);
}

static ch_tensor *from_an_array(const ch_value_context *c)
{
    return t_number(CH_F64, N(3, 2, 1)[c->replica]);
}

static ch_tensor *how_many(const ch_value_context *c)
{
    return t_number(CH_I32, c->n_replicas);
}

/* 2.4.2, 2.4.5, 2.3.1, B2, B2', B3, B4: each replica's component of values from a function */
static void distribute_values_from_function_gives_each_replica_its_value(void **state)
{
    static const struct {
        number_fn fn;
        ch_dtype  dtype;
        double    of_2[2], of_1;
    } row[] = {{always_1, CH_F32, {1, 1}, 1},
               {from_an_array, CH_F64, {3, 2}, 3},
               {how_many, CH_I32, {2, 2}, 1}};

    for (int i = 0; i < 12; i++) {
        int          n = i % 2 + 1, k = i / 4;
        ch_strategy *st = i / 2 % 2 ? t_central(n) : t_mirrored(n);
        number_fn    fn = row[k].fn;
        ch_tuple    *t = NULL, *each[2] = {NULL, NULL};

        t_ok(ch_strategy_distribute_values_from_function(st, one_number, &fn, &t));
        assert_int_equal(ch_value_kind_of(ch_tuple_at(t, 0)), CH_PER_REPLICA); /* n = 1 too */
        assert_int_equal(ch_value_count(ch_tuple_at(t, 0)), n);
        t_ok(ch_strategy_local_results(st, t, n, each));
        for (int r = 0; r < n; r++) {
            assert_int_equal(ch_value_kind_of(ch_tuple_at(each[r], 0)), CH_PLAIN);
            t_is(ch_value_at(ch_tuple_at(each[r], 0), 0), row[k].dtype, ch_shape_scalar(),
                 n == 2 ? &row[k].of_2[r] : &row[k].of_1);
            ch_tuple_unref(each[r]);
        }
        ch_tuple_unref(t);
        ch_strategy_unref(st);
    }
    (void)state;
}

/* 2.4.3, 1.5.1: called once, with a plain result */
static void one_device_has_plain_values(void **state)
{
    ch_strategy *st[] = {NULL, t_one_device()};

    for (int i = 0; i < 2; i++) {
        number_fn fn = how_many;
        ch_tuple *t = NULL;

        t_ok(ch_strategy_distribute_values_from_function(st[i], one_number, &fn, &t));
        assert_int_equal(ch_value_kind_of(ch_tuple_at(t, 0)), CH_PLAIN);
        t_is(ch_value_at(ch_tuple_at(t, 0), 0), CH_I32, ch_shape_scalar(), N(1));
        ch_tuple_unref(t);
        ch_strategy_unref(st[i]);
    }
    (void)state;
}

/* Returns three numbers, times the replica's number. Counts its calls, which are made in
 * order. */
static ch_status three_numbers(const ch_value_context *c, void *arg, ch_tuple **out)
{
    int       *calls = arg;
    ch_value  *v[3];
    ch_device *d = NULL;

    assert_int_equal(c->replica, (*calls)++);
    assert_int_equal(c->n_replicas, 2);
    t_ok(ch_device_find(t_gpus[3 - c->replica], &d));
    t_ok(ch_device_enter(d));
    for (int i = 0; i < 3; i++)
        v[i] = t_value(CH_PLAIN, 1, (ch_tensor *[]){t_number(CH_F32, (i + 1) * c->replica)});
    ch_device_leave();
    t_ok(ch_tuple_new(3, v, (const char *[]){"a", "b/c", NULL}, out));
    for (int i = 0; i < 3; i++)
        ch_value_unref(v[i]);
    return CH_OK;
}

/* 2.4.2, 2.4.6: leaf by leaf, on the devices that the function has chosen */
static void value_function_may_return_several_leaves(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_tuple    *t = NULL;
    int          calls = 0;

    t_ok(ch_strategy_distribute_values_from_function(st, three_numbers, &calls, &t));
    assert_int_equal(calls, 2);
    assert_int_equal(ch_tuple_count(t), 3);
    for (int i = 0; i < 3; i++)
        for (int r = 0; r < 2; r++) {
            ch_tensor *x = ch_value_at(ch_tuple_at(t, i), r);

            t_is(x, CH_F32, ch_shape_scalar(), N(r * (i + 1)));
            t_on(x, r == 0 ? "GPU:3" : "GPU:2");
        }
    assert_ptr_equal(ch_tuple_get(t, "b/c"), ch_tuple_at(t, 1));
    ch_tuple_unref(t);
    ch_strategy_unref(st);
    (void)state;
}

static ch_tensor *share(const ch_value_context *c)
{
    return t_number(CH_F64, (double)c->replica / c->n_replicas);
}

/* 2.4.1: the context of replica 2 of 4 has 2 and 4; that of a single replica has 0 and 1 */
static void value_context_has_the_replica_id_and_the_number_of_replicas(void **state)
{
    ch_strategy *st[] = {t_mirrored(4), t_central(4), t_one_device(), NULL};
    number_fn    fn = share;

    for (int i = 0; i < 4; i++) {
        ch_tuple *t = NULL;

        t_ok(ch_strategy_distribute_values_from_function(st[i], one_number, &fn, &t));
        assert_int_equal(ch_value_count(ch_tuple_at(t, 0)), i < 2 ? 4 : 1);
        for (int r = 0; r < (i < 2 ? 4 : 1); r++)
            t_is(ch_value_at(ch_tuple_at(t, 0), r), CH_F64, ch_shape_scalar(), N(r / 4.0));
        ch_tuple_unref(t);
        ch_strategy_unref(st[i]);
    }
    (void)state;
}

/* How the function differs for replica 1. */
typedef enum wrong { FAILS, GIVES_NONE, MORE, ANOTHER_NAME, NO_NAME, NOT_PLAIN } wrong;

static ch_status wrong_for_1(const ch_value_context *c, void *arg, ch_tuple **out)
{
    wrong     w = c->replica == 1 ? *(const wrong *)arg : (wrong)-1;
    ch_value *v[2] = {w == NOT_PLAIN
                          ? t_both(t_number(CH_F32, 1), t_number(CH_F32, 1))
                          : t_value(CH_PLAIN, 1, (ch_tensor *[]){t_number(CH_F32, 1)}),
                      t_value(CH_PLAIN, 1, (ch_tensor *[]){t_number(CH_F32, 1)})};

    if (w != GIVES_NONE && w != FAILS)
        t_ok(ch_tuple_new(w == MORE ? 2 : 1, v,
                          (const char *[]){w == ANOTHER_NAME ? "y"
                                           : w == NO_NAME    ? NULL
                                                             : "x",
                                           "z"},
                          out));
    ch_value_unref(v[0]);
    ch_value_unref(v[1]);
    return w == FAILS ? ch_fail(CH_DATA_LOSS, "no luck") : CH_OK;
}

/* 2.2.2: replicas must have the same leaves */
static void value_function_must_return_the_same_leaves_for_each_replica(void **state)
{
    static const struct {
        wrong       w;
        ch_status   rc;
        const char *word, *other;
    } row[] = {{FAILS, CH_DATA_LOSS, "replica 1 of 2", "no luck"},
               {GIVES_NONE, CH_INVALID_ARGUMENT, "replica 1 of 2", "no tuple"},
               {MORE, CH_INVALID_ARGUMENT, "replicas 0 and 1", "1 and 2 leaves"},
               {ANOTHER_NAME, CH_INVALID_ARGUMENT, "\"x\"", "\"y\""},
               {NO_NAME, CH_INVALID_ARGUMENT, "\"x\"", "\"\""},
               {NOT_PLAIN, CH_INVALID_ARGUMENT, "replica 1 of 2", "plain"}};
    ch_strategy *st = t_mirrored(2);
    int64_t      live = ch__mem_live();
    ch_tuple    *t = NULL;

    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        wrong w = row[i].w;

        t_refused(ch_strategy_distribute_values_from_function(st, wrong_for_1, &w, &t),
                  row[i].rc, row[i].word, row[i].other);
        assert_null(t);
        assert_int_equal(ch__mem_live(), live);
    }
    t_refused(ch_strategy_distribute_values_from_function(st, NULL, NULL, &t),
              CH_INVALID_ARGUMENT, "the function", "NULL");
    ch_strategy_unref(st);
    (void)state;
}

static void plus_1_and_2(ch_step *s, void *arg)
{
    ch_node *id = ch_step_replica_id(s);

    (void)arg;
    ch_step_out(s, "a", ch_add(id, ch_number(s, 1)));
    ch_step_out(s, "b", ch_add(id, ch_number(s, 2)));
}

/* 2.3.2, 2.3.3, 2.2.9, 2.2.1: leaves, order and names are kept */
static void local_results_gives_each_replica_its_tuple(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_function *f = t_function(plus_1_and_2, NULL);
    ch_tuple    *out = NULL, *each[2];
    ch_tuple    *plain = t_tuple(
           3, (ch_tensor *[]){t_number(CH_F32, 1), t_number(CH_F32, 2), t_number(CH_F32, 3)});

    t_ok(ch_strategy_run(st, f, NULL, &out));
    t_ok(ch_strategy_local_results(st, out, 2, each));
    for (int r = 0; r < 2; r++) {
        t_is(ch_value_at(ch_tuple_get(each[r], "a"), 0), CH_I32, ch_shape_scalar(), N(r + 1));
        t_is(ch_value_at(ch_tuple_get(each[r], "b"), 0), CH_I32, ch_shape_scalar(), N(r + 2));
        ch_tuple_unref(each[r]);
    }
    t_ok(ch_strategy_local_results(st, plain, 2, each)); /* plain leaves are copied */
    for (int r = 0; r < 2; r++) {
        assert_int_equal(ch_tuple_count(each[r]), 3);
        for (int i = 0; i < 3; i++)
            t_is(ch_value_at(ch_tuple_at(each[r], i), 0), CH_F32, ch_shape_scalar(), N(i + 1));
        ch_tuple_unref(each[r]);
    }
    ch_tuple_unref(plain);
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

/* 2.3.4, 1.5.2, 6.3.7 */
static void local_results_under_one_device_returns_the_leaves_whole(void **state)
{
    ch_strategy *st[] = {NULL, t_one_device()};
    ch_tuple    *t = t_one(t_both(t_number(CH_F32, 1), t_number(CH_F32, 2)), "x");

    for (int i = 0; i < 2; i++) {
        ch_tuple *same = NULL;

        t_ok(ch_strategy_local_results(st[i], t, 1, &same));
        assert_ptr_equal(ch_tuple_get(same, "x"), ch_tuple_get(t, "x"));
        ch_tuple_unref(same);
        ch_strategy_unref(st[i]);
    }
    ch_tuple_unref(t);
    (void)state;
}

static void local_results_rejects_values_of_another_number_of_replicas(void **state)
{
    ch_strategy *st = t_mirrored(3), *one = t_mirrored(1);
    ch_tuple    *t = t_one(t_both(t_number(CH_F32, 1), t_number(CH_F32, 2)), "x");
    ch_tuple    *each[3] = {NULL};

    t_refused(ch_strategy_local_results(st, t, 3, each), CH_INVALID_ARGUMENT, "\"x\"",
              "2 components");
    assert_null(each[0]);
    t_refused(ch_strategy_local_results(one, t, 1, each), CH_INVALID_ARGUMENT, "\"x\"",
              "2 components"); /* a single replica cannot have two either */
    ch_strategy_unref(one);
    t_refused(ch_strategy_local_results(st, NULL, 3, each), CH_INVALID_ARGUMENT, "the tuple",
              "NULL");
    t_refused(ch_strategy_local_results(st, t, 3, NULL), CH_INVALID_ARGUMENT, "out", "NULL");
    ch_tuple_unref(t);
    ch_strategy_unref(st);
    (void)state;
}

static void local_results_refuses_a_count_other_than_the_local_replicas(void **state)
{
    ch_strategy *st[] = {t_mirrored(2), NULL};
    ch_tuple    *t = t_tuple(1, (ch_tensor *[]){t_number(CH_F32, 1)});

    for (int i = 0; i < 2; i++)
        for (int n = -1; n < 4; n++) {
            int       want = ch_strategy_local_replicas(st[i]);
            ch_tuple *each[4] = {NULL};
            char      got[32];

            snprintf(got, sizeof(got), "got n = %d", n);
            if (n != want)
                t_refused(ch_strategy_local_results(st[i], t, n, each), CH_INVALID_ARGUMENT,
                          got, "ch_strategy_local_replicas");
            else
                t_ok(ch_strategy_local_results(st[i], t, n, each));
            for (int r = 0; r < 4; r++) {
                assert_int_equal(each[r] != NULL, n == want && r < n);
                ch_tuple_unref(each[r]);
            }
        }
    ch_tuple_unref(t);
    ch_strategy_unref(st[0]);
    (void)state;
}

typedef struct seen {
    ch_strategy *st;
    ch_tuple    *t;
} seen;

static void values_inside(ch_step *s, void *arg)
{
    const seen *a = arg;
    number_fn   fn = always_1;
    ch_tuple   *t = NULL, *each[2];

    t_ok(ch_strategy_distribute_values_from_function(a->st, one_number, &fn, &t));
    t_ok(ch_strategy_local_results(a->st, t, 2, each));
    for (int r = 0; r < 2; r++)
        ch_tuple_unref(each[r]);
    ch_tuple_unref(t);
    ch_step_out(s, "x", ch_number(s, 1));
}

/* 1.3.8: allowed in every context */
static void value_calls_are_allowed_in_steps_and_in_other_scopes(void **state)
{
    seen         a = {t_mirrored(2), NULL};
    ch_strategy *other = t_central(2);
    ch_function *f = t_function(values_inside, &a);
    number_fn    fn = always_1;
    ch_tuple    *t = NULL;

    t_ok(ch_strategy_run(a.st, f, NULL, NULL));
    t_ok(ch_strategy_enter(other));
    t_ok(ch_strategy_distribute_values_from_function(a.st, one_number, &fn, &t));
    ch_strategy_leave();
    ch_tuple_unref(t);
    ch_function_unref(f);
    ch_strategy_unref(a.st);
    ch_strategy_unref(other);
    (void)state;
}

static void twice(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0);

    (void)arg;
    ch_step_out(s, "y", ch_mul(x, ch_number(s, 2)));
}

/* B13, B14, 1.4.4, 1.4.5, 2.2.3, 2.2.7, 2.2.8: with several replicas, results are
 * per-replica */
static void results_are_per_replica_and_on_their_devices(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_function *f = t_function(twice, NULL);
    number_fn    fn = how_many;
    ch_tuple    *in[2] = {t_tuple(1, (ch_tensor *[]){t_number(CH_F32, 3)}), NULL};

    t_ok(ch_strategy_distribute_values_from_function(st, one_number, &fn, &in[1]));
    for (int i = 0; i < 2; i++) {
        ch_tuple *out = NULL;
        ch_value *v;

        t_ok(ch_strategy_run(st, f, in[i], &out));
        v = ch_tuple_get(out, "y");
        assert_int_equal(ch_value_kind_of(v), CH_PER_REPLICA);
        assert_int_equal(ch_value_count(v), 2);
        for (int r = 0; r < 2; r++) {
            t_is(ch_value_at(v, r), i == 0 ? CH_F32 : CH_I32, ch_shape_scalar(),
                 N(i == 0 ? 6 : 4));
            t_on(ch_value_at(v, r), r == 0 ? "GPU:0" : "GPU:1");
        }
        ch_tuple_unref(out);
        ch_tuple_unref(in[i]);
    }
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

static void sum_of_ids(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "sum", ch_all_reduce(CH_SUM, ch_step_replica_id(s)));
}

/* B15, 4.4.6, 4.4.7 */
static void all_reduce_sum_of_ids_is_a_result_on_each_device(void **state)
{
    ch_strategy *st = NULL;
    ch_function *f = t_function(sum_of_ids, NULL);
    ch_tuple    *out = NULL;

    t_ok(ch_strategy_mirrored(
        &(ch_mirrored_options){.n_devices = 2, .device = (const char *[]){"gpu:0", "gpu:1"}},
        &st));
    t_ok(ch_strategy_run(st, f, NULL, &out));
    assert_int_equal(ch_value_count(ch_tuple_at(out, 0)), 2);
    for (int r = 0; r < 2; r++) {
        t_is(ch_value_at(ch_tuple_at(out, 0), r), CH_I32, ch_shape_scalar(), N(1));
        t_on(ch_value_at(ch_tuple_at(out, 0), r), r == 0 ? "GPU:0" : "GPU:1");
    }
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

/* 2.1.6 */
static void step_is_recorded_once_for_values_of_one_spec(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_function *f = t_function(twice, NULL);

    for (int i = 0; i < 3; i++) {
        ch_tuple *in = t_one(t_both(t_number(CH_F32, i), t_number(CH_F32, i + 1)), NULL);
        ch_tuple *out = NULL;

        t_ok(ch_strategy_run(st, f, in, &out));
        for (int r = 0; r < 2; r++)
            t_is(ch_value_at(ch_tuple_at(out, 0), r), CH_F32, ch_shape_scalar(),
                 N(2 * (i + r)));
        ch_tuple_unref(out);
        ch_tuple_unref(in);
    }
    assert_int_equal(ch_function_recordings(f), 1);
    assert_int_equal(ch_function_programs(f), 1);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

/* 2.1.3, 8.16: in a replica its own component; outside the component on the current device,
 * else the first */
static void mirrored_value_is_read_from_the_nearest_device(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_function *f = t_function(twice, NULL);
    ch_tuple    *in, *out = NULL;
    ch_tensor   *c[2] = {NULL, NULL}, *mean = NULL;
    ch_device   *d = NULL;

    for (int r = 0; r < 2; r++) { /* unequal, to identify the component */
        t_ok(ch_device_find(t_gpus[r], &d));
        t_ok(ch_tensor_new_on(d, CH_F32, ch_shape_scalar(), &c[r]));
        t_ok(ch_tensor_set(c[r], NULL, r + 1));
    }
    in = t_one(t_value(CH_MIRRORED, 2, c), NULL);
    t_ok(ch_strategy_run(st, f, in, &out));
    for (int r = 0; r < 2; r++)
        t_is(ch_value_at(ch_tuple_at(out, 0), r), CH_F32, ch_shape_scalar(), N(2 * (r + 1)));
    t_ok(ch_strategy_reduce(st, CH_MEAN, ch_tuple_at(in, 0), CH_NO_AXIS, &mean));
    t_gave_number(mean, CH_F32, 1);
    t_ok(ch_device_enter(d));
    t_ok(ch_strategy_reduce(st, CH_MEAN, ch_tuple_at(in, 0), CH_NO_AXIS, &mean));
    ch_device_leave();
    t_gave_number(mean, CH_F32, 2);
    ch_tuple_unref(out);
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

/* 2.2.4: the results of a single replica are plain */
static void results_of_one_replica_are_plain(void **state)
{
    ch_strategy *st[] = {t_mirrored(1), t_central(1), t_one_device()};

    for (int i = 0; i < 3; i++) {
        ch_function *f = t_function(twice, NULL);
        ch_tuple    *in = t_tuple(1, (ch_tensor *[]){t_number(CH_F32, 3)}), *out = NULL;

        t_ok(ch_strategy_run(st[i], f, in, &out));
        assert_int_equal(ch_value_kind_of(ch_tuple_at(out, 0)), CH_PLAIN);
        t_is(ch_value_at(ch_tuple_at(out, 0), 0), CH_F32, ch_shape_scalar(), N(6));
        t_on(ch_value_at(ch_tuple_at(out, 0), 0), "GPU:0");
        ch_tuple_unref(out);
        ch_tuple_unref(in);
        ch_function_unref(f);
        ch_strategy_unref(st[i]);
    }
    (void)state;
}

/* 2.1.7 */
static void value_print_lists_components_by_replica(void **state)
{
    ch_value *v = t_both(t_number(CH_F32, 1), t_number(CH_F32, 2));
    ch_value *m = t_value(CH_MIRRORED, 1, (ch_tensor *[]){t_number(CH_I32, 7)});
    char      text[300];

    ch_value_print(v, text, sizeof(text));
    assert_string_equal(text, "PerReplica:{\n  0: tensor(f32 () 1),\n  1: tensor(f32 () 2)\n}");
    ch_value_print(m, text, sizeof(text));
    assert_string_equal(text, "Mirrored:{\n  0: tensor(i32 () 7)\n}");
    ch_value_unref(v);
    ch_value_unref(m);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distribute_values_from_function_gives_each_replica_its_value),
        cmocka_unit_test(one_device_has_plain_values),
        cmocka_unit_test(value_function_may_return_several_leaves),
        cmocka_unit_test(value_context_has_the_replica_id_and_the_number_of_replicas),
        cmocka_unit_test(value_function_must_return_the_same_leaves_for_each_replica),
        cmocka_unit_test(local_results_gives_each_replica_its_tuple),
        cmocka_unit_test(local_results_under_one_device_returns_the_leaves_whole),
        cmocka_unit_test(local_results_rejects_values_of_another_number_of_replicas),
        cmocka_unit_test(local_results_refuses_a_count_other_than_the_local_replicas),
        cmocka_unit_test(value_calls_are_allowed_in_steps_and_in_other_scopes),
        cmocka_unit_test(results_are_per_replica_and_on_their_devices),
        cmocka_unit_test(all_reduce_sum_of_ids_is_a_result_on_each_device),
        cmocka_unit_test(step_is_recorded_once_for_values_of_one_spec),
        cmocka_unit_test(mirrored_value_is_read_from_the_nearest_device),
        cmocka_unit_test(results_of_one_replica_are_plain),
        cmocka_unit_test(value_print_lists_components_by_replica),
    };

    return cmocka_run_group_tests(tests, t_four_gpus, NULL);
}

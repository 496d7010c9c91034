/* test/strategy/test_tpu_shared.c -- several TPU strategies side by side, and steps of one that
 * read variables of another.
 *
 * Copies are matched by device: a replica reads the copy that is on one of its own devices.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "tpu.h"

/* Four replicas of two cores: replica r on TPU:2r and TPU:2r+1. */
static const int in_order[] = {0, 1, 2, 3, 4, 5, 6, 7};

static void double_it(ch_step *s, void *v)
{
    ch_step_out(s, "x", ch_mul(ch_var_read(s, v), ch_number(s, 2)));
}

static void add_replica(ch_step *s, void *v)
{
    ch_var_assign_add(
        s, v, ch_add(ch_cast(ch_step_replica_id(s), CH_F32), ch_zeros_like(ch_var_read(s, v))));
}

/* Runs double_it, and checks element 0 of the result of each replica. */
static void gives(ch_strategy *st, ch_var *v, const float *want)
{
    ch_function *f = t_function(double_it, v);
    ch_tuple    *out = NULL;

    t_ok(ch_strategy_run(st, f, NULL, &out));
    for (int r = 0; r < ch_strategy_replicas(st); r++)
        if (t_floats(out, 0, r)[0] != want[r])
            fail_msg("replica %d: %g, want %g", r, (double)t_floats(out, 0, r)[0],
                     (double)want[r]);
    ch_tuple_unref(out);
    ch_function_unref(f);
}

/* Returns a variable of which replica r has the value r. */
static ch_var *replica_number(ch_strategy *st)
{
    ch_tensor   *zero = t_f32(ch_shape_of(2), (float[]){0, 0});
    ch_var      *v = NULL;
    ch_function *f;

    t_ok(ch_var_new(st,
                    &(ch_var_spec){.name = "v",
                                   .initial = zero,
                                   .sync = CH_SYNC_ON_READ,
                                   .aggregation = CH_AGGREGATE_SUM},
                    &v));
    f = t_function(add_replica, v);
    t_ok(ch_strategy_run(st, f, NULL, NULL));
    ch_function_unref(f);
    ch_tensor_unref(zero);
    return v;
}

/* TPS-12: over the same cores, in other replicas, and over cores that they do not share. */
static void strategies_exist_side_by_side(void **state)
{
    ch_strategy *st[] = {t_tpu_on(4, 2, in_order, false), t_tpu_on(2, 4, in_order, true),
                         t_tpu_on(1, 3, (int[]){0, 1, 2}, false),
                         t_tpu_on(5, 1, (int[]){3, 4, 5, 6, 7}, false)};
    const float  want[] = {6, 6, 6, 6, 6, 6, 6, 6};

    for (int i = 0; i < 4; i++) {
        ch_var *v = t_var(st[i], "v", t_f32(ch_shape_of(1), (float[]){3}));

        gives(st[i], v, want);
        ch_var_unref(v);
    }
    for (int i = 0; i < 4; i++)
        ch_strategy_unref(st[i]);
    (void)state;
}

/* TPS-13: replicas of the second strategy run on the same cores, in another order, or on some of
 * them. Each reads the copy of its own device. */
static void replica_reads_the_copy_on_its_own_device(void **state)
{
    static const struct {
        int   n_replicas, n_cores, at[8];
        float want[8];
    } row[] = {
        {4, 1, {0, 2, 4, 6}, {0, 2, 4, 6}},
        {4, 1, {6, 0, 4, 2}, {6, 0, 4, 2}},
        {1, 1, {4}, {4}},
        {2, 4, {3, 2, 1, 0, 7, 6, 5, 4}, {2, 6}}, /* the first core that has a copy */
        {3, 2, {1, 4, 3, 2, 5, 6}, {4, 2, 6}},
        {1, 8, {7, 6, 5, 4, 3, 2, 1, 0}, {6}},
    };

    for (int spmd = 0; spmd < 2; spmd++) {
        ch_strategy *st = t_tpu_on(4, 2, in_order, false);
        ch_var      *v = replica_number(st);

        for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
            ch_strategy *other = t_tpu_on(row[i].n_replicas, row[i].n_cores, row[i].at, spmd);

            gives(other, v, row[i].want);
            ch_strategy_unref(other);
        }
        ch_var_unref(v);
        ch_strategy_unref(st);
    }
    (void)state;
}

/* TPS-13: a core that stores a part of a copy has the copy; its value is the whole value. */
static void split_variable_is_read_whole(void **state)
{
    ch_strategy *st = t_tpu_on(4, 2, in_order, true), *other;
    ch_tensor   *t = t_f32(ch_shape_of(3), (float[]){1, 2, 3});
    ch_var      *v = NULL;
    ch_function *f;
    ch_tuple    *out = NULL;

    t_ok(ch_var_new(
        st, &(ch_var_spec){.name = "v", .initial = t, .split = (int[]){0}, .n_split = 1}, &v));
    other = t_tpu_on(3, 1, (int[]){1, 2, 7}, false);
    f = t_function(double_it, v);
    t_ok(ch_strategy_run(other, f, NULL, &out));
    for (int r = 0; r < 3; r++)
        assert_memory_equal(t_floats(out, 0, r), ((float[]){2, 4, 6}), 3 * sizeof(float));
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_var_unref(v);
    ch_tensor_unref(t);
    ch_strategy_unref(st);
    ch_strategy_unref(other);
    (void)state;
}

/* The value is that of the time of the run, and is read in place. */
static void changes_are_seen_by_the_other_strategy(void **state)
{
    ch_strategy *st = t_tpu_on(4, 1, in_order, false), *other;
    ch_var      *v = t_var(st, "v", t_f32(ch_shape_of(1), (float[]){3}));
    ch_function *f = t_function(double_it, v), *add = t_function(add_replica, v);
    ch_tuple    *out = NULL;
    ch_tensor   *t = t_f32(ch_shape_of(1), (float[]){5});

    other = t_tpu_on(2, 2, (int[]){1, 0, 2, 5}, true);
    for (int i = 0; i < 2; i++) {
        t_ok(ch_strategy_run(other, f, NULL, &out));
        for (int r = 0; r < 2; r++)
            assert_true(t_floats(out, 0, r)[0] == (i == 0 ? 6 : 10));
        ch_tuple_unref(out);
        t_ok(ch_var_set(v, t));
    }
    assert_int_equal(ch_function_recordings(f), 1);
    t_refused(ch_strategy_run(other, add, NULL, NULL), CH_FAILED_PRECONDITION,
              "may read it but not write it", ch_strategy_label(st));
    ch_tensor_unref(t);
    ch_function_unref(f);
    ch_function_unref(add);
    ch_var_unref(v);
    ch_strategy_unref(st);
    ch_strategy_unref(other);
    (void)state;
}

/* TPS-13: the error lists the devices of the copies and of the replicas. */
static void replica_without_a_copy_is_an_error_that_lists_both(void **state)
{
    ch_strategy *st = t_tpu_on(2, 2, (int[]){0, 1, 4, 5}, false), *other, *mirrored = NULL;
    ch_var      *v = t_var(st, "v", t_f32(ch_shape_of(1), (float[]){3}));
    ch_function *f = t_function(double_it, v);

    /* the copies are on core 0 of each replica only */
    other = t_tpu_on(3, 2, (int[]){4, 2, 0, 3, 1, 5}, true);
    t_refused(ch_strategy_run(other, f, NULL, NULL), CH_INVALID_ARGUMENT, "variable v: TPU#",
              "has no copy of it on a device of replica 2");
    t_refused(CH_INVALID_ARGUMENT, CH_INVALID_ARGUMENT, "its copies are on TPU:0, TPU:4, and",
              "the 3 replicas of 2 devices run on TPU:4, TPU:2, TPU:0, TPU:3, TPU:1, TPU:5");
    t_refused(CH_INVALID_ARGUMENT, CH_INVALID_ARGUMENT, ch_strategy_label(st),
              "test_tpu_shared.c:");
    ch_strategy_unref(other);

    /* strategies of other kinds do not share */
    t_ok(ch_strategy_mirrored(
        &(ch_mirrored_options){.n_devices = 1, .device = (const char *[]){"TPU:0"}},
        &mirrored));
    t_refused(ch_strategy_run(mirrored, f, NULL, NULL), CH_FAILED_PRECONDITION,
              "mixing different strategies", ch_strategy_label(mirrored));
    ch_strategy_unref(mirrored);
    ch_function_unref(f);
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

static void read_it(ch_step *s, int n, ch_node *const *in, ch_node **out, void *v)
{
    (void)n;
    (void)in;
    out[0] = ch_mul(ch_var_read(s, v), ch_number(s, 2));
}

static void read_in_merge_call(ch_step *s, void *v)
{
    ch_node *x = NULL;

    ch_merge_call(s, read_it, v, 0, NULL, 1, &x);
    ch_step_out(s, "x", x);
}

static void merge_call_reads_copies_that_are_equal(void **state)
{
    ch_strategy *st = t_tpu_on(4, 1, in_order, false), *other;
    ch_var      *same = t_var(st, "same", t_f32(ch_shape_of(1), (float[]){3}));
    ch_var      *own = replica_number(st);
    ch_function *f = t_function(read_in_merge_call, same);
    ch_function *g = t_function(read_in_merge_call, own);
    ch_tuple    *out = NULL;

    other = t_tpu_on(2, 1, in_order, false);
    t_ok(ch_strategy_run(other, f, NULL, &out));
    assert_true(t_floats(out, 0, 1)[0] == 6);
    ch_tuple_unref(out);
    t_refused(ch_strategy_run(other, g, NULL, NULL), CH_INVALID_ARGUMENT, "its copies differ",
              "read it outside the merge call");
    ch_function_unref(f);
    ch_function_unref(g);
    ch_var_unref(same);
    ch_var_unref(own);
    ch_strategy_unref(st);
    ch_strategy_unref(other);
    (void)state;
}

static void predict(ch_step *s, void *m)
{
    ch_step_out(s, "y", ch_model_call(m, s, ch_step_in(s, 0), false));
}

/* A model that a strategy of all cores trains is used by one core. */
static void model_is_called_under_a_strategy_of_one_of_its_cores(void **state)
{
    ch_strategy *st = t_tpu_on(4, 2, in_order, false), *one = t_tpu_on(1, 1, in_order, false);
    ch_tensor   *x = t_noise(ch_shape_of(4, 2), 7);
    ch_tuple    *in = t_tuple(1, &x), *out[2] = {NULL, NULL};
    ch_model    *m = NULL;
    ch_function *f;

    t_ok(ch_model_new(
        st, ch_layer_dense(3, NULL),
        &(ch_model_options){.n_inputs = 1,
                            .input = {{.dtype = CH_F32, .shape = ch_shape_of(-1, 2)}}},
        &m));
    f = t_function(predict, m);
    t_ok(ch_strategy_run(st, f, in, &out[0]));
    t_ok(ch_strategy_run(one, f, in, &out[1]));
    assert_memory_equal(t_floats(out[0], 0, 3), t_floats(out[1], 0, 0), 12 * sizeof(float));
    ch_tuple_unref(out[0]);
    ch_tuple_unref(out[1]);
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_model_unref(m);
    ch_strategy_unref(st);
    ch_strategy_unref(one);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strategies_exist_side_by_side),
        cmocka_unit_test(replica_reads_the_copy_on_its_own_device),
        cmocka_unit_test(split_variable_is_read_whole),
        cmocka_unit_test(changes_are_seen_by_the_other_strategy),
        cmocka_unit_test(replica_without_a_copy_is_an_error_that_lists_both),
        cmocka_unit_test(merge_call_reads_copies_that_are_equal),
        cmocka_unit_test(model_is_called_under_a_strategy_of_one_of_its_cores),
    };

    return cmocka_run_group_tests(tests, t_eight_tpus, NULL);
}

/* test/strategy/test_borrowed.c -- steps that read variables of another strategy than their
 * own.
 *
 * Any step may read variables of Default, and a step of Default may read the variables of all
 * strategies. Only the strategy of a variable may write it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

static ch_strategy *one_device(void)
{
    ch_strategy *st = NULL;

    t_ok(ch_strategy_one_device("GPU:3", &st));
    return st;
}

static void set(ch_var *v, float a, float b)
{
    ch_tensor *t = t_f32(ch_shape_of(2), (float[]){a, b});

    t_ok(ch_var_set(v, t));
    ch_tensor_unref(t);
}

static ch_var *pair(ch_strategy *st, const char *name, float a, float b)
{
    return t_var(st, name, t_f32(ch_shape_of(2), (float[]){a, b}));
}

/* Runs f, whose output 0 has two elements, and compares it on every replica r with (r + 1) *
 * (a, b). */
static void gives(ch_strategy *st, ch_function *f, float a, float b)
{
    ch_tuple *out = NULL;

    t_ok(ch_strategy_run(st, f, NULL, &out));
    for (int r = 0; r < ch_strategy_replicas(st); r++) {
        assert_true(t_floats(out, 0, r)[0] == (float)(r + 1) * a);
        assert_true(t_floats(out, 0, r)[1] == (float)(r + 1) * b);
    }
    ch_tuple_unref(out);
}

static ch_node *number(ch_step *s)
{
    return ch_add(ch_cast(ch_step_replica_id(s), CH_F32), ch_number(s, 1));
}

static void times_number(ch_step *s, void *v)
{
    ch_step_out(s, "x", ch_mul(ch_var_read(s, v), number(s)));
}

static void variable_of_default_is_read_by_every_replica(void **state)
{
    ch_strategy *st[] = {t_mirrored(1), t_mirrored(2), t_mirrored(4),
                         t_central(1),  t_central(2),  one_device()};
    ch_var      *v = pair(NULL, "v", 1, 2);
    ch_function *f = t_function(times_number, v);

    for (int i = 0; i < 6; i++) {
        int recordings = ch_function_recordings(f);

        set(v, 1, 2);
        gives(st[i], f, 1, 2);
        set(v, 5, 7);
        gives(st[i], f, 5, 7);
        assert_int_equal(ch_function_recordings(f), recordings + 1);
        ch_strategy_unref(st[i]);
    }
    ch_function_unref(f);
    ch_var_unref(v);
    (void)state;
}

static void default_reads_the_first_copy_of_a_mirrored_variable(void **state)
{
    ch_strategy *st[] = {t_mirrored(2), t_central(2), one_device()};

    for (int i = 0; i < 3; i++) {
        ch_var      *v = pair(st[i], "v", 1, 2);
        ch_function *f = t_function(times_number, v);

        gives(NULL, f, 1, 2);
        set(v, 5, 7);
        gives(NULL, f, 5, 7);
        ch_function_unref(f);
        ch_var_unref(v);
        ch_strategy_unref(st[i]);
    }
    (void)state;
}

static void add_number(ch_step *s, void *v)
{
    ch_var_assign_add(s, v, number(s));
}

static void read_it(ch_step *s, void *v)
{
    ch_step_out(s, "x", ch_var_read(s, v));
}

/* Three replicas have added 1, 2 and 3. */
static void default_reads_the_aggregate_of_a_sync_on_read_variable(void **state)
{
    static const struct {
        ch_aggregation aggregation;
        float          once, twice;
    } row[] = {
        {CH_AGGREGATE_SUM, 6, 12}, {CH_AGGREGATE_MEAN, 2, 4}, {CH_AGGREGATE_FIRST, 1, 2}};
    ch_strategy *st = t_mirrored(3);

    for (int i = 0; i < 4; i++) {
        ch_tensor   *zero = t_f32(ch_shape_scalar(), &(float){0});
        ch_tuple    *out = NULL;
        ch_var      *v = NULL;
        ch_function *add, *read;

        t_ok(ch_var_new(
            st,
            &(ch_var_spec){.initial = zero,
                           .sync = CH_SYNC_ON_READ,
                           .aggregation = i < 3 ? row[i].aggregation : CH_AGGREGATE_NONE},
            &v));
        add = t_function(add_number, v);
        read = t_function(read_it, v);
        for (int k = 0; k < 2; k++) {
            t_ok(ch_strategy_run(st, add, NULL, NULL));
            if (i == 3) {
                t_refused(ch_strategy_run(NULL, read, NULL, NULL), CH_INVALID_ARGUMENT,
                          "no aggregation", "test_borrowed.c");
                continue;
            }
            t_ok(ch_strategy_run(NULL, read, NULL, &out));
            assert_true(t_floats(out, 0, 0)[0] == (k == 0 ? row[i].once : row[i].twice));
            ch_tuple_unref(out);
        }
        ch_function_unref(add);
        ch_function_unref(read);
        ch_var_unref(v);
        ch_tensor_unref(zero);
    }
    ch_strategy_unref(st);
    (void)state;
}

/* ---- contexts in which a read is allowed ---- */

typedef struct two {
    ch_var *own, *other;
} two;

static void add_other(ch_step *s, ch_var *v, int n, ch_node *const *in, ch_node **out,
                      void *other)
{
    (void)n;
    (void)in;
    (void)out;
    ch_var_assign_add(s, v, ch_var_read(s, other));
}

static void merge_read(ch_step *s, int n, ch_node *const *in, ch_node **out, void *other)
{
    (void)n;
    (void)in;
    out[0] = ch_mul(ch_var_read(s, other), ch_number(s, 10));
}

static void body_read(ch_step *s, void *other, ch_node **out)
{
    out[0] = ch_var_read(s, other);
}

static void body_zero(ch_step *s, void *other, ch_node **out)
{
    out[0] = ch_zeros_like(ch_var_read(s, other));
}

static void read_everywhere(ch_step *s, void *arg)
{
    const two *t = arg;
    ch_node   *merged = NULL, *chosen = NULL;
    ch_node   *yes = ch_less(ch_step_replica_id(s), ch_cast(ch_number(s, 9), CH_I32));

    ch_merge_call(s, merge_read, t->other, 0, NULL, 1, &merged);
    ch_cond(yes, 1, body_read, body_zero, t->other, &chosen);
    ch_update(s, t->own, add_other, t->other, 0, NULL, 0, NULL);
    ch_step_out(s, "merged", merged);
    ch_step_out(s, "chosen", chosen);
    ch_step_out(s, "own", ch_var_read(s, t->own));
}

static void variable_of_default_is_read_in_merge_calls_branches_and_updates(void **state)
{
    for (int i = 0; i < 2; i++) {
        ch_strategy *st = i == 0 ? t_mirrored(2) : t_central(2);
        two          t = {pair(st, "same", 100, 200), pair(NULL, "same", 1, 2)};
        ch_function *f = t_function(read_everywhere, &t);
        ch_tuple    *out = NULL;

        assert_string_equal(ch_var_name(t.own), ch_var_name(t.other));
        t_ok(ch_strategy_run(st, f, NULL, &out));
        for (int r = 0; r < 2; r++) {
            assert_true(t_floats(out, 0, r)[1] == 20);
            assert_true(t_floats(out, 1, r)[1] == 2);
            assert_true(t_floats(out, 2, r)[0] == 101);
        }
        assert_true(t_copy_of(t.own, 0, 1) == 202 && t_copy_of(t.other, 0, 1) == 2);
        ch_tuple_unref(out);
        ch_function_unref(f);
        ch_var_unref(t.own);
        ch_var_unref(t.other);
        ch_strategy_unref(st);
    }
    (void)state;
}

static void square_error(ch_step *s, void *v)
{
    ch_node *now = ch_var_read(s, v), *loss = ch_sum_all(ch_square(now));

    ch_step_out(s, "x", ch_gradient(loss, now));
}

static void variable_of_default_is_differentiated(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_var      *v = pair(NULL, "v", 3, 4);
    ch_function *f = t_function(square_error, v);
    ch_tuple    *out = NULL;

    t_ok(ch_strategy_run(st, f, NULL, &out));
    assert_true(t_floats(out, 0, 1)[0] == 6 && t_floats(out, 0, 1)[1] == 8);
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

/* The recorded step has references to the variables that it reads, so they may be released in
 * any order. */
static void function_keeps_the_variables_of_another_strategy(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_var      *v = pair(st, "v", 1, 2);
    ch_function *f = t_function(times_number, v);

    gives(NULL, f, 1, 2);
    ch_var_unref(v);
    ch_strategy_unref(st);
    gives(NULL, f, 1, 2);
    ch_function_unref(f);
    (void)state;
}

/* ---- writes ---- */

/* Each function continues after the write, so that the compiler does not make a tail call and
 * the source line is known. */

static void write_whole(ch_step *s, void *v)
{
    ch_var_assign(s, v, ch_var_read(s, v));
    read_it(s, v);
}

static void write_sum(ch_step *s, void *v)
{
    ch_var_assign_add(s, v, ch_var_read(s, v));
    read_it(s, v);
}

static void write_rows(ch_step *s, void *v)
{
    ch_node *row = ch_reshape(ch_number(s, 0), ch_shape_of(1));

    ch_var_scatter_update(s, v, ch_cast(row, CH_I32), row);
    read_it(s, v);
}

static void write_update(ch_step *s, void *v)
{
    ch_update(s, v, add_other, v, 0, NULL, 0, NULL);
    read_it(s, v);
}

static void write_to_another_strategys_variable_is_refused_with_the_reason(void **state)
{
    static const struct {
        ch_step_fn  step;
        const char *call;
    } row[] = {{write_whole, "assign: variable v"},
               {write_sum, "assign_add: variable v"},
               {write_rows, "scatter_update: variable v"},
               {write_update, "update: variable v"}};
    ch_strategy *st = t_mirrored(2);
    ch_strategy *runs[] = {st, NULL}, *makes[] = {NULL, st};

    for (int k = 0; k < 2; k++) {
        ch_var *v = pair(makes[k], "v", 1, 2);

        for (int i = 0; i < 4; i++) {
            ch_function *f = t_function(row[i].step, v);

            t_refused(ch_strategy_run(runs[k], f, NULL, NULL), CH_FAILED_PRECONDITION,
                      row[i].call, "may read it but not write it");
            assert_non_null(strstr(ch_error_message(), ch_strategy_label(makes[k])));
            assert_non_null(strstr(ch_error_message(), ch_strategy_label(runs[k])));
            assert_non_null(strstr(ch_error_message(), "test_borrowed.c"));
            ch_function_unref(f);
        }
        assert_true(t_copy_of(v, 0, 0) == 1 && t_copy_of(v, 0, 1) == 2);
        ch_var_unref(v);
    }
    ch_strategy_unref(st);
    (void)state;
}

static void strategy_label_distinguishes_strategies_of_one_kind(void **state)
{
    ch_strategy *a = t_mirrored(2), *b = t_mirrored(2);
    ch_var      *v = pair(a, "v", 1, 2);
    ch_function *f = t_function(read_it, v);
    char         of_a[96], of_b[96];

    snprintf(of_a, sizeof(of_a), "%s made it", ch_strategy_label(a));
    snprintf(of_b, sizeof(of_b), "under %s", ch_strategy_label(b));
    assert_string_not_equal(ch_strategy_label(a), ch_strategy_label(b));
    assert_non_null(strstr(ch_strategy_label(b), "Mirrored#"));
    assert_non_null(strstr(ch_strategy_label(b), " (GPU:0, GPU:1)"));
    assert_string_equal(ch_strategy_label(NULL), "Default");
    t_refused(ch_strategy_run(b, f, NULL, NULL), CH_FAILED_PRECONDITION, of_a, of_b);
    assert_non_null(strstr(ch_error_message(), "mixing different strategies"));
    ch_function_unref(f);
    ch_var_unref(v);
    ch_strategy_unref(a);
    ch_strategy_unref(b);
    (void)state;
}

/* ---- models ---- */

static ch_model *model(ch_strategy *st, bool has_inputs)
{
    ch_layer *root = ch_layer_sequential(
        "net", 2, (ch_layer *[]){ch_layer_dense(3, NULL), ch_layer_batch_norm(NULL)});
    ch_model *m = NULL;

    t_ok(ch_model_new(
        st, root,
        &(ch_model_options){.n_inputs = has_inputs,
                            .input = {{.dtype = CH_F32, .shape = ch_shape_of(-1, 2)}}},
        &m));
    return m;
}

static void predict(ch_step *s, void *m)
{
    ch_step_out(s, "y", ch_model_call(m, s, ch_step_in(s, 0), false));
}

static void train(ch_step *s, void *m)
{
    ch_step_out(s, "y", ch_model_call(m, s, ch_step_in(s, 0), true));
}

/* The results under the model's own strategy, with the same rows on each replica, are the
 * expected results. */
static void model_is_called_outside_its_strategy(void **state)
{
    ch_strategy *st[] = {t_mirrored(2), NULL};

    for (int k = 0; k < 2; k++) {
        ch_model    *m = model(st[k], true);
        ch_function *f = t_function(predict, m), *g = t_function(train, m);
        ch_tensor   *x = t_noise(ch_shape_of(4, 2), 7);
        ch_tuple    *in = t_tuple(1, &x), *own = NULL, *out = NULL;

        t_ok(ch_strategy_run(st[k], f, in, &own));
        t_ok(ch_strategy_run(st[1 - k], f, in, &out));
        assert_memory_equal(t_floats(own, 0, 0), t_floats(out, 0, 0), 12 * sizeof(float));
        t_refused(ch_strategy_run(st[1 - k], g, in, NULL), CH_FAILED_PRECONDITION,
                  "may read it but not write it", "moving_mean");
        ch_tuple_unref(own);
        ch_tuple_unref(out);
        ch_tuple_unref(in);
        ch_function_unref(f);
        ch_function_unref(g);
        ch_model_unref(m);
    }
    ch_strategy_unref(st[0]);
    (void)state;
}

static void model_without_variables_is_refused_outside_its_strategy(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_model    *m = model(st, false);
    ch_function *f = t_function(predict, m);
    ch_tensor   *x = t_noise(ch_shape_of(4, 2), 7);
    ch_tuple    *in = t_tuple(1, &x);

    t_refused(ch_strategy_run(NULL, f, in, NULL), CH_FAILED_PRECONDITION, "no variables yet",
              ch_strategy_label(st));
    t_ok(ch_strategy_run(st, f, in, NULL));
    t_ok(ch_strategy_run(NULL, f, in, NULL));
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_model_unref(m);
    ch_strategy_unref(st);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variable_of_default_is_read_by_every_replica),
        cmocka_unit_test(default_reads_the_first_copy_of_a_mirrored_variable),
        cmocka_unit_test(default_reads_the_aggregate_of_a_sync_on_read_variable),
        cmocka_unit_test(variable_of_default_is_read_in_merge_calls_branches_and_updates),
        cmocka_unit_test(variable_of_default_is_differentiated),
        cmocka_unit_test(function_keeps_the_variables_of_another_strategy),
        cmocka_unit_test(write_to_another_strategys_variable_is_refused_with_the_reason),
        cmocka_unit_test(strategy_label_distinguishes_strategies_of_one_kind),
        cmocka_unit_test(model_is_called_outside_its_strategy),
        cmocka_unit_test(model_without_variables_is_refused_outside_its_strategy),
    };

    return cmocka_run_group_tests(tests, t_four_gpus, NULL);
}

/* test/train/test_model.c -- models: built at once or in their first call, printed, trained on
 * replicas.
 *
 * The tests compare trained weights for several divisions of the rows among two replicas, and
 * check the table that ch_model_print writes, options, errors, and allocation failures.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "layer_help.h"

static ch_layer *mlp(void)
{
    return ch_layer_sequential(
        "net", 3,
        (ch_layer *[]){ch_layer_dense(64, &(ch_layer_dense_options){.activation = CH_RELU}),
                       ch_layer_dropout(0.5), ch_layer_dense(10, NULL)});
}

static const ch_model_options mnist = {.n_inputs = 1,
                                       .input = {{CH_F32, {.rank = 2, .dim = {-1, 784}}}}};

static void model_new_with_inputs_makes_the_variables(void **state)
{
    ch_model      *m = NULL;
    ch_var *const *v;

    t_ok(ch_model_new(NULL, mlp(), &mnist, &m));
    assert_int_equal(ch_model_vars(m, &v), 4);
    assert_string_equal(ch_var_name(v[2]), "net/dense_1/kernel");
    assert_int_equal(ch_model_trainable(m, &v), 4);
    assert_ptr_equal(ch_model_strategy(m), ch_strategy_current());
    assert_string_equal(ch_layer_name(ch_model_layer(m)), "net");
    ch_model_unref(ch_model_ref(m));
    ch_model_unref(m);
    (void)state;
}

static void model_print_writes_a_table(void **state)
{
    static const char want[] = "Layer (type)         Output          Parameters\n"
                               "-----------------------------------------------\n"
                               "net (sequential)     f32(?, 10)          50,890\n"
                               "  dense (dense)      f32(?, 64)          50,240\n"
                               "  dropout (dropout)  f32(?, 64)               0\n"
                               "  dense_1 (dense)    f32(?, 10)             650\n"
                               "-----------------------------------------------\n"
                               "Parameters             50,890      203.6 KB\n"
                               "Trainable              50,890      203.6 KB\n"
                               "Not trainable               0       0 bytes\n";
    ch_model         *m = NULL;
    char              text[2048], cut[20];

    t_ok(ch_model_new(NULL, mlp(), &mnist, &m));
    assert_int_equal(ch_model_print(m, text, sizeof(text)), (int)strlen(want));
    assert_string_equal(text, want);
    assert_int_equal(ch_model_print(m, cut, sizeof(cut)), (int)strlen(want));
    assert_int_equal(strlen(cut), sizeof(cut) - 1);
    assert_int_equal(ch_model_print(m, NULL, 0), (int)strlen(want));
    ch_model_unref(m);
    (void)state;
}

static void model_print_marks_layers_that_were_not_called(void **state)
{
    ch_model *m = NULL;
    char      text[2048];

    t_ok(ch_model_new(NULL, mlp(), NULL, &m));
    ch_model_print(m, text, sizeof(text));
    assert_non_null(strstr(text, "  dense_1 (dense)    not called yet               0\n"));
    ch_model_unref(m);
    (void)state;
}

static void model_print_indents_layers_in_layers(void **state)
{
    static const char want[] = "Layer (type)               Output             Parameters\n"
                               "--------------------------------------------------------\n"
                               "net (sequential)           f32(?, 7, 11)             359\n"
                               "  embedding (embedding)    f32(?, 7, 4)               44\n"
                               "  block (transformer)      f32(?, 7, 4)              244\n"
                               "    norm_1 (layer_norm)    f32(?, 7, 4)                8\n"
                               "    attention (attention)  f32(?, 7, 4)               80\n"
                               "      query (dense)        f32(?, 7, 4)               20\n"
                               "      key (dense)          f32(?, 7, 4)               20\n"
                               "      value (dense)        f32(?, 7, 4)               20\n"
                               "      output (dense)       f32(?, 7, 4)               20\n"
                               "    norm_2 (layer_norm)    f32(?, 7, 4)                8\n"
                               "    hidden (dense)         f32(?, 7, 16)              80\n"
                               "    output (dense)         f32(?, 7, 4)               68\n"
                               "  batch_norm (batch_norm)  f32(?, 7, 4)               16\n"
                               "  dense (dense)            f32(?, 7, 11)              55\n"
                               "--------------------------------------------------------\n"
                               "Parameters                359        1.4 KB\n"
                               "Trainable                 351        1.4 KB\n"
                               "Not trainable               8      32 bytes\n";
    ch_model_options  o = {.n_inputs = 1, .input = {{CH_I32, ch_shape_of(-1, 7)}}};
    ch_model         *m = NULL;
    ch_var *const    *v;
    char              text[4096];

    t_ok(ch_model_new(
        NULL,
        ch_layer_sequential(
            "net", 4,
            (ch_layer *[]){ch_layer_embedding(11, 4, NULL),
                           ch_layer_named("block", ch_layer_transformer_block(2, NULL)),
                           ch_layer_batch_norm(NULL), ch_layer_dense(11, NULL)}),
        &o, &m));
    ch_model_print(m, text, sizeof(text));
    assert_string_equal(text, want);
    assert_int_equal(ch_model_vars(m, &v), 1 + 16 + 4 + 2);
    assert_string_equal(ch_var_name(v[3]), "net/block/attention/query/kernel");
    ch_model_unref(m);
    (void)state;
}

static void model_options_set_dtype_and_seed_of_layers(void **state)
{
    ch_model_options o = mnist;
    ch_model        *a = NULL, *b = NULL;
    ch_var *const   *v;
    float           *first, *second;
    char             text[2048];

    t_ok(ch_model_new(NULL, mlp(), &o, &a));
    first = t_values(ch_model_layer(a), "dense/kernel");
    ch_model_unref(a);
    o.seed = 1;
    t_ok(ch_model_new(NULL, mlp(), &o, &a));
    second = t_values(ch_model_layer(a), "dense/kernel");
    assert_memory_not_equal(first, second, 784 * sizeof(float));
    ch_model_unref(a);
    o.dtype = CH_BF16;
    t_ok(ch_model_new(NULL, mlp(), &o, &b));
    assert_int_equal(ch_model_vars(b, &v), 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(ch_var_dtype(v[i]), CH_BF16);
    ch_model_print(b, text, sizeof(text));
    assert_non_null(strstr(text, "bf16(?, 64)"));
    assert_non_null(strstr(text, "101.8 KB"));
    ch_model_unref(b);
    free(first);
    free(second);
    (void)state;
}

/* ---- training ---- */

static void train(ch_step *s, void *arg)
{
    ch_model      *m = arg;
    ch_node       *x = ch_step_in(s, 0), *labels = ch_step_in(s, 1), *value[8], *d[8];
    ch_node       *logits = ch_model_call(m, s, x, true);
    ch_node       *loss = ch_div(ch_sum_all(ch_sparse_softmax_cross_entropy(logits, labels)),
                                 ch_step_global_rows(s));
    ch_var *const *v;
    int            n = ch_model_trainable(m, &v);

    for (int i = 0; i < n; i++)
        value[i] = ch_var_read(s, v[i]);
    ch_gradients(loss, NULL, n, value, d);
    for (int i = 0; i < n; i++)
        ch_var_assign_sub(s, v[i], ch_all_reduce(CH_SUM, ch_mul(ch_number(s, 0.5), d[i])));
    ch_step_out(s, "loss", loss);
}

/* Returns rows [from, to) of the batch for each of two replicas. */
static ch_tuple *batch_of(const int *end)
{
    ch_value  *leaf[2] = {NULL, NULL};
    ch_tensor *x = t_noise(ch_shape_of(8, 3), 5), *y = NULL, *part[2];
    ch_tuple  *batch = NULL;

    t_ok(ch_tensor_copy_of(CH_I32, ch_shape_of(8), (int32_t[]){0, 1, 1, 0, 1, 0, 0, 1}, &y));
    for (int i = 0; i < 2; i++) {
        for (int r = 0; r < 2; r++)
            t_ok(ch_tensor_rows(i == 0 ? x : y, r == 0 ? 0 : end[0], end[r], &part[r]));
        t_ok(ch_value_new(CH_PER_REPLICA, 2, part, &leaf[i]));
        ch_tensor_unref(part[0]);
        ch_tensor_unref(part[1]);
    }
    t_ok(ch_tuple_new(2, leaf, NULL, &batch));
    ch_value_unref(leaf[0]);
    ch_value_unref(leaf[1]);
    ch_tensor_unref(x);
    ch_tensor_unref(y);
    return batch;
}

static float train_split(const int *end, int steps)
{
    ch_strategy *st = NULL;
    ch_model    *m = NULL;
    ch_function *f;
    ch_tuple    *batch = batch_of(end), *out = NULL;
    ch_tensor   *sum = NULL;
    double       loss = 0;

    t_ok(ch_strategy_mirrored(NULL, &st));
    t_ok(ch_model_new(
        st,
        ch_layer_sequential(
            "net", 2,
            (ch_layer *[]){ch_layer_dense(16, &(ch_layer_dense_options){.activation = CH_TANH}),
                           ch_layer_dense(2, NULL)}),
        NULL, &m));
    f = t_function(train, m);
    for (int i = 0; i < steps; i++) {
        t_ok(ch_strategy_run(st, f, batch, &out));
        t_ok(ch_strategy_reduce(st, CH_SUM, ch_tuple_get(out, "loss"), CH_NO_AXIS, &sum));
        t_ok(ch_tensor_item(sum, &loss));
        ch_tensor_unref(sum);
        ch_tuple_unref(out);
    }
    ch_function_unref(f);
    ch_model_unref(m);
    ch_tuple_unref(batch);
    ch_strategy_unref(st);
    return (float)loss;
}

static void model_learns_alike_for_any_division_of_rows_among_replicas(void **state)
{
    float even = train_split((int[]){4, 8}, 150), odd = train_split((int[]){7, 8}, 150);
    float all = train_split((int[]){8, 8}, 150); /* the second replica has no rows */

    assert_true(even < 0.3);
    t_near(odd, even, 1e-3);
    t_near(all, even, 1e-3);
    (void)state;
}

/* ---- errors ---- */

static void model_new_errors_say_what_to_do(void **state)
{
    ch_model        *m = NULL;
    ch_model_options o = mnist;
    int64_t          live = ch__mem_live();

    t_refused(ch_model_new(
                  NULL, ch_layer_sequential("net", 1, (ch_layer *[]){ch_layer_dense(0, NULL)}),
                  &mnist, &m),
              CH_INVALID_ARGUMENT, "the layer could not be created", "dense: 0 units");
    o.input[0].shape = ch_shape_of(-1, -1);
    t_refused(ch_model_new(NULL, mlp(), &o, &m), CH_INVALID_ARGUMENT, "model net: input 0",
              "-1");
    o.n_inputs = 9;
    t_refused(ch_model_new(NULL, mlp(), &o, &m), CH_INVALID_ARGUMENT, "9 inputs", "at most 8");
    o = mnist;
    o.n_inputs = 2;
    t_refused(ch_model_new(NULL, mlp(), &o, &m), CH_INVALID_ARGUMENT, "model net",
              "called with 2 nodes");
    assert_non_null(strstr(ch_error_message(), "test_model.c"));
    o = mnist;
    o.dtype = CH_I32;
    t_refused(ch_model_new(NULL, mlp(), &o, &m), CH_INVALID_ARGUMENT, "is i32", "net");
    assert_null(m);
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

static void model_functions_accept_a_null_model(void **state)
{
    char           text[8] = "before";
    ch_model      *m = NULL;
    ch_var *const *v = NULL;

    assert_int_equal(ch_model_print(NULL, text, sizeof(text)), 4);
    assert_string_equal(text, "NULL");
    assert_int_equal(ch_model_trainable(NULL, &v), 0);
    assert_null(ch_model_layer(NULL));
    t_refused(ch_model_new(NULL, NULL, NULL, &m), CH_INVALID_ARGUMENT,
              "the layer could not be created", "the layer is NULL");
    (void)state;
}

static void call_it(ch_step *s, void *arg)
{
    ch_step_out(s, "y", ch_model_call(arg, s, ch_step_in(s, 0), false));
}

static void model_call_rejects_another_strategy(void **state)
{
    ch_strategy *st = NULL, *other = NULL;
    ch_model    *m = NULL;
    ch_tensor   *x = t_noise(ch_shape_of(2, 784), 1);
    ch_tuple    *in = t_tuple(1, &x), *out = NULL;
    ch_function *f;

    t_ok(ch_strategy_mirrored(NULL, &st));
    t_ok(ch_strategy_one_device("CPU:0", &other));
    t_ok(ch_model_new(st, mlp(), &mnist, &m));
    f = t_function(call_it, m);
    t_refused(ch_strategy_run(other, f, in, &out), CH_FAILED_PRECONDITION,
              "mixing different strategies", "model net");
    assert_non_null(strstr(ch_error_message(), ch_strategy_label(st)));
    assert_non_null(strstr(ch_error_message(), ch_strategy_label(other)));
    t_ok(ch_strategy_run(st, f, in, &out));
    ch_tuple_unref(out);
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_model_unref(m);
    ch_strategy_unref(st);
    ch_strategy_unref(other);
    (void)state;
}

static void call_both_ways(ch_step *s, void *m)
{
    ch_node *x = ch_step_in(s, 0);

    ch_step_out(s, "one", ch_model_call(m, s, x, false));
    ch_step_out(s, "list", ch_model_call_n(m, s, 1, &x, false));
}

static void model_call_n_of_one_input_equals_model_call(void **state)
{
    ch_model    *m = NULL;
    ch_tensor   *x = t_noise(ch_shape_of(2, 784), 1);
    ch_tuple    *in = t_tuple(1, &x), *out = NULL;
    ch_function *f;

    t_ok(ch_model_new(NULL, mlp(), &mnist, &m));
    f = t_function(call_both_ways, m);
    t_ok(ch_strategy_run(NULL, f, in, &out));
    assert_memory_equal(t_floats(out, 0, 0), t_floats(out, 1, 0), 20 * sizeof(float));
    ch_tuple_unref(out);
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_model_unref(m);
    (void)state;
}

static void model_new_leaks_nothing_when_out_of_memory(void **state)
{
    ch_model_options o = {.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, 3)}}};
    int64_t          live = ch__mem_live();

    for (int64_t k = 1;; k++) {
        ch_model *m = NULL;
        ch_status rc;

        ch__mem_fail_at(k);
        rc = ch_model_new(NULL, mlp(), &o, &m);
        ch__mem_fail_at(0);
        if (rc == CH_OK) {
            ch_model_unref(m);
            assert_true(k > 20);
            break;
        }
        assert_int_equal(rc, CH_RESOURCE_EXHAUSTED);
        assert_int_equal(ch__mem_live(), live);
    }
    (void)state;
}

static void model_shards_reports_that_memory_is_exhausted(void **state)
{
    ch_model_options o = {.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, 3)}}};
    ch_var *const   *var = NULL;
    ch_model        *m = NULL;

    t_ok(ch_model_new(NULL, mlp(), &o, &m));
    assert_true(ch_model_shards(m, &var) > 0); /* the list of variables is made once */
    ch__mem_fail_at(1);
    assert_int_equal(ch_model_shards(m, &var), -1);
    ch__mem_fail_at(0);
    assert_non_null(strstr(ch_error_message(), "model shards"));
    assert_true(ch_model_shards(m, &var) > 0);
    ch_model_unref(m);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(model_new_with_inputs_makes_the_variables),
        cmocka_unit_test(model_print_writes_a_table),
        cmocka_unit_test(model_print_indents_layers_in_layers),
        cmocka_unit_test(model_print_marks_layers_that_were_not_called),
        cmocka_unit_test(model_options_set_dtype_and_seed_of_layers),
        cmocka_unit_test(model_learns_alike_for_any_division_of_rows_among_replicas),
        cmocka_unit_test(model_new_errors_say_what_to_do),
        cmocka_unit_test(model_functions_accept_a_null_model),
        cmocka_unit_test(model_call_rejects_another_strategy),
        cmocka_unit_test(model_call_n_of_one_input_equals_model_call),
        cmocka_unit_test(model_new_leaks_nothing_when_out_of_memory),
        cmocka_unit_test(model_shards_reports_that_memory_is_exhausted),
    };

    if (ch_devices_configure(&(ch_devices_options){.spec = "CPU=2"}) != CH_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

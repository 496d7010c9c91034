/* test/strategy/test_null.c -- NULL instead of an object: every function of the engine's
 * headers returns a status that names the argument, does nothing, or prints "NULL", and never
 * crashes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

static void refuses(ch_status rc, const char *word)
{
    t_refused(rc, CH_INVALID_ARGUMENT, word, "NULL");
}

static void functions_that_can_fail_name_what_is_null(void **state)
{
    ch_tensor     *t = t_noise(ch_shape_of(2, 3), 1), *u = NULL;
    ch_value      *v = NULL;
    ch_device     *d = NULL;
    ch_device_spec where;
    ch_dtype       dtype;
    ch_function   *f = NULL;
    ch_strategy   *st = NULL;
    ch_graph      *g = NULL;
    void          *bytes = NULL;
    ch_str         text;
    double         x;
    int64_t        at[2] = {0};
    size_t         n;

    refuses(ch_tensor_new(CH_F32, ch_shape_of(2), NULL), "out");
    refuses(ch_tensor_new_on(NULL, CH_F32, ch_shape_of(2), NULL), "out");
    refuses(ch_tensor_copy_of(CH_F32, ch_shape_of(2), &x, NULL), "out");
    refuses(ch_tensor_copy_of(CH_F32, ch_shape_of(2), NULL, &u), "data");
    refuses(ch_tensor_scalar(CH_F32, 1, NULL), "out");
    refuses(ch_tensor_of_text(NULL, &u), "text");
    refuses(ch_tensor_of_text("x", NULL), "out");
    refuses(ch_tensor_wrap(CH_F32, ch_shape_of(2), &x, NULL, NULL, NULL), "out");
    refuses(ch_tensor_rows(NULL, 0, 1, &u), "the tensor");
    refuses(ch_tensor_rows(t, 0, 1, NULL), "out");
    refuses(ch_tensor_slice(NULL, 0, 0, 1, 1, &u), "the tensor");
    refuses(ch_tensor_transpose(NULL, NULL, &u), "the tensor");
    refuses(ch_tensor_transpose(t, NULL, NULL), "out");
    refuses(ch_tensor_reshape(NULL, ch_shape_of(6), &u), "the tensor");
    refuses(ch_tensor_reshape(t, ch_shape_of(6), NULL), "out");
    refuses(ch_tensor_contiguous(NULL, &u), "the tensor");
    refuses(ch_tensor_contiguous(t, NULL), "out");
    refuses(ch_tensor_to(NULL, ch_device_current(), &u), "the tensor");
    refuses(ch_tensor_to(t, NULL, &u), "the device");
    refuses(ch_tensor_to(t, ch_device_current(), NULL), "out");
    refuses(ch_tensor_copy(NULL, t), "the source");
    refuses(ch_tensor_copy(t, NULL), "the destination");
    refuses(ch_tensor_get(NULL, at, &x), "the tensor");
    refuses(ch_tensor_get(t, NULL, &x), "index");
    refuses(ch_tensor_get(t, at, NULL), "out");
    refuses(ch_tensor_set(NULL, at, 1), "the tensor");
    refuses(ch_tensor_str(NULL, at, &text), "the tensor");
    refuses(ch_tensor_set_str(NULL, at, (ch_str){"x", 1}), "the tensor");
    refuses(ch_tensor_item(NULL, &x), "the tensor");

    refuses(ch_value_new(CH_PLAIN, 1, NULL, &v), "the list of tensors");
    refuses(ch_value_new(CH_PLAIN, 1, &t, NULL), "out");
    refuses(ch_tuple_new(0, NULL, NULL, NULL), "out");
    refuses(ch_tuple_of(1, &t, NULL), "out");

    refuses(ch_device_spec_parse(NULL, &where), "the name");
    refuses(ch_device_spec_parse("", NULL), "out");
    refuses(ch_device_spec_canonical(NULL, NULL, &where), "the name");
    refuses(ch_device_find(NULL, &d), "the name");
    refuses(ch_device_find("CPU:0", NULL), "out");
    refuses(ch_dtype_parse(NULL, &dtype), "the text");
    refuses(ch_dtype_parse("f32", NULL), "out");

    refuses(ch_var_new(NULL, NULL, NULL), "its spec");
    refuses(ch_var_new(NULL, &(ch_var_spec){.name = "w"}, NULL), "out");
    refuses(ch_var_get(NULL, &u), "the variable");
    refuses(ch_var_set(NULL, t), "variable");
    refuses(ch_var_copies(NULL, &v), "the variable");
    refuses(ch_init_tensor(NULL, "x", CH_F32, ch_shape_of(2), NULL), "out");

    refuses(ch_function_new(NULL, NULL, NULL, &f), "its name");
    refuses(ch_function_new("f", NULL, NULL, &f), "the step");
    refuses(ch_function_of_graph("f", NULL, &f), "its graph");
    refuses(ch_graph_encode(NULL, &bytes, &n), "the graph");
    refuses(ch_graph_decode(NULL, 3, &g), "3 bytes at");
    refuses(ch_graph_decode("", 0, NULL), "out");
    refuses(ch_strategy_mirrored(NULL, NULL), "out");
    refuses(ch_strategy_run(NULL, NULL, NULL, NULL), "the function");
    refuses(ch_strategy_reduce(NULL, CH_SUM, NULL, CH_NO_AXIS, &u), "the value");
    refuses(ch_strategy_enter(NULL), "the strategy");
    refuses(ch_step_status(NULL), "step");
    assert_null(u);
    assert_null(v);
    assert_null(f);
    assert_null(st);
    ch_tensor_unref(t);
    (void)n, (void)state;
}

static void getters_of_null_return_empty_values(void **state)
{
    assert_int_equal(ch_tensor_dtype(NULL), CH_F32);
    assert_int_equal(ch_tensor_shape(NULL).rank, 0);
    assert_int_equal(ch_tensor_count(NULL), 0);
    assert_int_equal(ch_tensor_bytes(NULL), 0);
    assert_null(ch_tensor_strides(NULL));
    assert_false(ch_tensor_is_contiguous(NULL));
    assert_null(ch_tensor_device(NULL));
    assert_null(ch_tensor_data(NULL));
    assert_null(ch_tensor_data_mut(NULL));

    assert_int_equal(ch_value_kind_of(NULL), CH_PLAIN);
    assert_int_equal(ch_value_count(NULL), 0);
    assert_null(ch_value_at(NULL, 0));
    assert_int_equal(ch_tuple_count(NULL), 0);
    assert_null(ch_tuple_at(NULL, 0));
    assert_null(ch_tuple_name(NULL, 0));
    assert_null(ch_tuple_get(NULL, "x"));

    assert_null(ch_device_name(NULL));
    assert_null(ch_device_where(NULL));
    assert_int_equal(ch_device_threads(NULL), 0);
    assert_int_equal(ch_device_bytes(NULL), 0);
    assert_int_equal(ch_device_spec_merge(NULL, NULL).index, -1);

    assert_null(ch_var_name(NULL));
    assert_int_equal(ch_var_dtype(NULL), CH_F32);
    assert_int_equal(ch_var_shape(NULL).rank, 0);
    assert_false(ch_var_is_trainable(NULL));
    assert_null(ch_var_strategy(NULL));
    assert_null(ch_var_read(NULL, NULL));
    assert_null(ch_var_assign(NULL, NULL, NULL));

    assert_null(ch_function_name(NULL));
    assert_int_equal(ch_function_recordings(NULL), 0);
    assert_int_equal(ch_function_programs(NULL), 0);
    assert_null(ch_function_graph(NULL));
    assert_int_equal(ch_graph_nodes(NULL), 0);
    assert_string_equal(ch_strategy_name(NULL), "Default");

    assert_null(ch_step_in(NULL, 0));
    assert_null(ch_step_in_named(NULL, "x"));
    assert_int_equal(ch_step_in_count(NULL), 0);
    assert_null(ch_number(NULL, 1));
    assert_null(ch_step_strategy(NULL));
    assert_null(ch_node_step(NULL));
    assert_int_equal(ch_node_shape(NULL).rank, 0);
    (void)state;
}

static void ref_unref_and_step_calls_ignore_null(void **state)
{
    ch_tensor_unref(ch_tensor_ref(NULL));
    ch_value_unref(ch_value_ref(NULL));
    ch_tuple_unref(ch_tuple_ref(NULL));
    ch_var_unref(ch_var_ref(NULL));
    ch_graph_unref(ch_graph_ref(NULL));
    ch_function_unref(ch_function_ref(NULL));
    ch_strategy_unref(ch_strategy_ref(NULL));
    ch_bytes_free(NULL);
    ch_function_static_rows(NULL);
    ch_function_watch(NULL, NULL, NULL);
    ch_step_out(NULL, "x", NULL);
    ch_step_enter(NULL, "x");
    ch_step_leave(NULL);
    ch_step_fail(NULL, "x");
    (void)state;
}

static void printers_print_null(void **state)
{
    char text[16];

    assert_int_equal(ch_tensor_print(NULL, text, sizeof(text)), 4);
    assert_string_equal(text, "NULL");
    assert_int_equal(ch_tensor_spec_print(NULL, text, sizeof(text)), 4);
    assert_int_equal(ch_value_print(NULL, text, sizeof(text)), 4);
    assert_int_equal(ch_tuple_print(NULL, text, sizeof(text)), 4);
    assert_int_equal(ch_device_spec_print(NULL, text, sizeof(text)), 4);
    assert_int_equal(ch_graph_print(NULL, text, sizeof(text)), 4);
    assert_int_equal(ch_function_print_plan(NULL, text, sizeof(text)), 4);
    assert_string_equal(text, "NULL");
    assert_int_equal(ch_tensor_print(NULL, NULL, 16), 4); /* the buffer may be NULL too */
    assert_int_equal(ch_shape_print(ch_shape_of(2), NULL, 16), 4);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_that_can_fail_name_what_is_null),
        cmocka_unit_test(getters_of_null_return_empty_values),
        cmocka_unit_test(ref_unref_and_step_calls_ignore_null),
        cmocka_unit_test(printers_print_null),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

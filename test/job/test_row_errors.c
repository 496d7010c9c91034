/* test/job/test_row_errors.c -- invalid ids and rows in assignments to rows of variables.
 *
 * Every strategy must give the same message, which names the call, the variable and the reason.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/ops.h"
#include "rows.h"

enum { ROWS = 4, WIDTH = 3 };

/* ---- invalid calls ---- */

static ch_node *ids(ch_step *s)
{
    return ch_range(s, CH_I64, 0, 2, 1);
}

static ch_node *rows(ch_step *s, int64_t n, int64_t width)
{
    return ch_fill(s, CH_F32, ch_shape_of(n, width), 1);
}

static void add_at_scalar(ch_step *s, void *v)
{
    ch_step_out(s, "w",
                ch_var_scatter_add(s, v, ch_cast(ch_number(s, 0), CH_I32),
                                   ch_fill(s, CH_F32, ch_shape_of(WIDTH), 1)));
}

static void update_at_scalar(ch_step *s, void *v)
{
    ch_step_out(
        s, "w",
        ch_var_scatter_update(s, v, ch_cast(ch_number(s, 0), CH_I32), rows(s, 2, WIDTH)));
}

static void sub_at_matrix(ch_step *s, void *v)
{
    ch_step_out(
        s, "w",
        ch_var_scatter_sub(s, v, ch_reshape(ids(s), ch_shape_of(1, 2)), rows(s, 2, WIDTH)));
}

static void mul_at_floats(ch_step *s, void *v)
{
    ch_step_out(s, "w", ch_var_scatter_mul(s, v, ch_cast(ids(s), CH_F32), rows(s, 2, WIDTH)));
}

static void update_with_doubles(ch_step *s, void *v)
{
    ch_step_out(s, "w",
                ch_var_scatter_update(s, v, ids(s), ch_cast(rows(s, 2, WIDTH), CH_F64)));
}

static void add_doubles(ch_step *s, void *v)
{
    ch_step_out(s, "w", ch_var_scatter_add(s, v, ids(s), ch_cast(rows(s, 2, WIDTH), CH_F64)));
}

static void add_list(ch_step *s, void *v)
{
    ch_step_out(s, "w",
                ch_var_scatter_add(s, v, ids(s), ch_fill(s, CH_F32, ch_shape_of(2), 1)));
}

static void div_wide_rows(ch_step *s, void *v)
{
    ch_step_out(s, "w", ch_var_scatter_div(s, v, ids(s), rows(s, 2, WIDTH + 1)));
}

static void add_more_rows(ch_step *s, void *v)
{
    ch_step_out(s, "w", ch_var_scatter_add(s, v, ids(s), rows(s, 3, WIDTH)));
}

static void max_with_number(ch_step *s, void *v)
{
    ch_step_out(s, "w", ch_var_scatter_max(s, v, ids(s), ch_number(s, 1)));
}

static void add_beyond_the_table(ch_step *s, void *v)
{
    ch_step_out(s, "w",
                ch_var_scatter_add(s, v, ch_range(s, CH_I32, 0, 8, 7), rows(s, 2, WIDTH)));
}

static const struct {
    ch_step_fn     step;
    ch_aggregation aggregation;
    const char    *message;
} mistakes[] = {
    {add_at_scalar, CH_AGGREGATE_SUM,
     "scatter_add of w: the ids are i32(), want a list of i32 or i64 (rank 1)"},
    {update_at_scalar, CH_AGGREGATE_FIRST,
     "scatter_update of w: the ids are i32(), want a list of i32 or i64 (rank 1)"},
    {sub_at_matrix, CH_AGGREGATE_MEAN,
     "scatter_sub of w: the ids are i64(1, 2), want a list of i32 or i64 (rank 1)"},
    {mul_at_floats, CH_AGGREGATE_SUM,
     "scatter_mul of w: the ids are f32(2), want a list of i32 or i64 (rank 1)"},
    {update_with_doubles, CH_AGGREGATE_FIRST,
     "scatter_update of w: the value is f64(2, 3), want f32; use ch_cast"},
    {add_doubles, CH_AGGREGATE_MEAN,
     "scatter_add of w: the value is f64(2, 3), want f32; use ch_cast"},
    {add_list, CH_AGGREGATE_SUM,
     "scatter_add of w: the rows are f32(2), want f32(2, 3): one row for each id"},
    {div_wide_rows, CH_AGGREGATE_SUM,
     "scatter_div of w: the rows are f32(2, 4), want f32(2, 3): one row for each id"},
    {add_more_rows, CH_AGGREGATE_SUM,
     "scatter_add of w: the rows are f32(3, 3), want f32(2, 3): one row for each id"},
    {max_with_number, CH_AGGREGATE_NONE,
     "scatter_max of w: the rows are f64(), want f32(2, 3): one row for each id"},
};

enum { N_MISTAKES = sizeof(mistakes) / sizeof(mistakes[0]) };

/* ---- strategies ---- */

static void refuse_mistake(ch_strategy *st, int i)
{
    ch_tensor   *initial = t_counted(ch_shape_of(ROWS, WIDTH));
    ch_var      *v = NULL;
    ch_function *f;

    t_ok(ch_var_new(
        st,
        &(ch_var_spec){.name = "w", .initial = initial, .aggregation = mistakes[i].aggregation},
        &v));
    f = t_function(mistakes[i].step, v);
    t_refused(ch_strategy_run(st, f, NULL, NULL), CH_INVALID_ARGUMENT, mistakes[i].message,
              "at test_row_errors.c:");
    ch_function_unref(f);
    ch_var_unref(v);
    ch_tensor_unref(initial);
}

/* Each invalid call has its own strategy, in which the name "w" is not used yet. */
static void refuse_mistakes(ch_strategy *(*make)(void))
{
    for (int i = 0; i < N_MISTAKES; i++) {
        ch_strategy *st = make();

        refuse_mistake(st, i);
        ch_strategy_unref(st);
    }
}

static ch_strategy *one_device(void)
{
    ch_strategy *st = NULL;

    t_ok(ch_strategy_one_device("GPU:0", &st));
    return st;
}

static ch_strategy *mirrored(void)
{
    return t_mirrored(2);
}

static ch_strategy *central_storage(void)
{
    return t_central(2);
}

static ch_strategy *servers(void)
{
    return t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = 1}, NULL, NULL);
}

static ch_strategy *servers_of_two_devices(void)
{
    return t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = 1, .devices = 2}, NULL,
                     NULL);
}

static ch_strategy *shards(void)
{
    return t_in_shards(2);
}

static void wrong_rows_are_named_when_the_strategy_is_local(void **state)
{
    (void)state;
    refuse_mistakes(one_device);
    refuse_mistakes(mirrored);
    refuse_mistakes(central_storage);
}

static void wrong_rows_are_named_when_variables_are_on_servers(void **state)
{
    (void)state;
    refuse_mistakes(servers);
    refuse_mistakes(servers_of_two_devices);
    refuse_mistakes(shards);
}

/* The name "w" can be used only once in Default, so there is a single invalid call. */
static void wrong_rows_are_named_when_the_strategy_is_default(void **state)
{
    (void)state;
    refuse_mistake(NULL, 0);
}

/* An id that is out of range is an error of the run. */
static void id_out_of_range_is_named_with_the_variable(void **state)
{
    static ch_strategy *(*const make[])(void) = {one_device, mirrored, central_storage, servers,
                                                 shards};

    (void)state;
    for (size_t i = 0; i < sizeof(make) / sizeof(make[0]); i++) {
        ch_strategy *st = make[i]();
        ch_tensor   *initial = t_counted(ch_shape_of(ROWS, WIDTH));
        ch_var      *v = NULL;
        ch_function *f;

        t_ok(ch_var_new(
            st,
            &(ch_var_spec){.name = "w", .initial = initial, .aggregation = CH_AGGREGATE_SUM},
            &v));
        f = t_function(add_beyond_the_table, v);
        t_refused(ch_strategy_run(st, f, NULL, NULL), CH_INVALID_ARGUMENT,
                  "scatter_add of w: id 7 at position 1 is not in [0, 4)", "");
        assert_null(strstr(ch_error_message(), "check_ids"));
        ch_function_unref(f);
        ch_var_unref(v);
        ch_tensor_unref(initial);
        ch_strategy_unref(st);
    }
}

static void add_to_scalar(ch_step *s, void *v)
{
    ch_step_out(s, "w",
                ch_var_scatter_add(s, v, ids(s), ch_fill(s, CH_F32, ch_shape_of(2), 1)));
}

static void scalar_variable_has_no_rows(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_var      *v = t_var_in(st, "w", 1);
    ch_function *f = t_function(add_to_scalar, v);

    (void)state;
    t_refused(ch_strategy_run(st, f, NULL, NULL), CH_INVALID_ARGUMENT,
              "scatter_add of w: the variable is a scalar", "no rows");
    ch_function_unref(f);
    ch_var_unref(v);
    ch_strategy_unref(st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_rows_are_named_when_the_strategy_is_local),
        cmocka_unit_test(wrong_rows_are_named_when_variables_are_on_servers),
        cmocka_unit_test(wrong_rows_are_named_when_the_strategy_is_default),
        cmocka_unit_test(id_out_of_range_is_named_with_the_variable),
        cmocka_unit_test(scalar_variable_has_no_rows),
    };

    return cmocka_run_group_tests(tests, t_four_gpus, NULL);
}

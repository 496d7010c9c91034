/* test/train/test_pipeline.c -- steps of a pipeline cannot use objects with variables. Each
 * attempt is an error with a message.
 * SPDX-License-Identifier: Apache-2.0 */
#include "../strategy/help.h"

static ch_var       *var;
static ch_metric    *metric;
static ch_model     *model;
static ch_layer     *layer;
static ch_optimizer *optimizer;

static void change_nothing(ch_step *s, ch_var *v, int n, ch_node *const *in, ch_node **out,
                           void *arg)
{
    (void)s, (void)v, (void)n, (void)in, (void)out, (void)arg;
}

static ch_node *as_row(ch_node *x)
{
    return ch_cast(ch_reshape(x, ch_shape_of(1, 1)), CH_F32);
}

static void by_read(ch_step *s, ch_node *x)
{
    (void)x;
    (void)ch_var_read(s, var);
}

static void by_assign(ch_step *s, ch_node *x)
{
    ch_var_assign(s, var, ch_reshape(x, ch_shape_of(1)));
}

static void by_add(ch_step *s, ch_node *x)
{
    ch_var_assign_add(s, var, ch_reshape(x, ch_shape_of(1)));
}

static void by_sub(ch_step *s, ch_node *x)
{
    ch_var_assign_sub(s, var, ch_reshape(x, ch_shape_of(1)));
}

static void by_rows(ch_step *s, ch_node *x)
{
    ch_var_scatter_add(s, var, ch_reshape(x, ch_shape_of(1)), ch_reshape(x, ch_shape_of(1)));
}

static void by_update(ch_step *s, ch_node *x)
{
    ch_update(s, var, change_nothing, NULL, 1, &x, 0, NULL);
}

static void by_metric(ch_step *s, ch_node *x)
{
    ch_metric_update(metric, s, NULL, ch_cast(x, CH_F32), NULL);
}

static void by_model(ch_step *s, ch_node *x)
{
    (void)ch_model_call(model, s, as_row(x), false);
}

static void by_layer(ch_step *s, ch_node *x)
{
    (void)ch_layer_call(layer, s, as_row(x), false);
}

static void by_minimize(ch_step *s, ch_node *x)
{
    ch_optimizer_minimize(optimizer, s, ch_cast(x, CH_F32), 1, &var);
}

static void by_apply(ch_step *s, ch_node *x)
{
    ch_node *d = ch_reshape(x, ch_shape_of(1));

    ch_optimizer_apply(optimizer, s, 1, &var, &d);
}

static const struct {
    void (*use)(ch_step *s, ch_node *x);
    const char *word;
} ways[] = {
    {by_read, "\"w\""},      {by_assign, "\"w\""},  {by_add, "\"w\""},
    {by_sub, "\"w\""},       {by_rows, "\"w\""},    {by_update, "\"w\""},
    {by_metric, "variable"}, {by_model, "\"net\""}, {by_layer, "variable"},
    {by_minimize, "trains"}, {by_apply, "trains"},
};

static void step(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0);

    ways[*(const size_t *)arg].use(s, x);
    ch_step_out(s, NULL, ch_less(x, ch_number(s, 100)));
}

static ch_dataset *of_map(size_t *way)
{
    return ch_dataset_map(ch_dataset_range(0, 3, 1), step, way, NULL);
}

static ch_dataset *of_filter(size_t *way)
{
    return ch_dataset_filter(ch_dataset_range(0, 3, 1), step, way);
}

static ch_dataset *of_take_while(size_t *way)
{
    return ch_dataset_take_while(ch_dataset_range(0, 3, 1), step, way);
}

static void dataset_stages_reject_steps_that_use_variables(void **state)
{
    static ch_dataset *(*const stage[])(size_t *) = {of_map, of_filter, of_take_while};
    static const char *const name[] = {"map", "filter", "take_while"};

    (void)state;
    for (size_t way = 0; way < sizeof(ways) / sizeof(ways[0]); way++)
        for (int i = 0; i < 3; i++) {
            ch_iterator *it = NULL;

            assert_null(stage[i](&way));
            t_refused(ch_iterator_new(NULL, NULL, &it), CH_INVALID_ARGUMENT, name[i],
                      ways[way].word);
            if (strstr(ch_error_message(), "must not use variables") == NULL)
                fail_msg("%s", ch_error_message());
        }
}

static int make(void **state)
{
    ch_tensor *zero = NULL;

    (void)state;
    t_ok(ch_tensor_new(CH_I64, ch_shape_of(1), &zero));
    t_ok(ch_var_new(NULL, &(ch_var_spec){.name = "w", .initial = zero}, &var));
    t_ok(ch_metric_new(NULL, ch_metric_named(ch_metric_mean(), "m"), &metric));
    layer = ch_layer_dense(2, NULL);
    t_ok(ch_model_new(NULL,
                      ch_layer_sequential("net", 1, (ch_layer *[]){ch_layer_dense(2, NULL)}),
                      NULL, &model));
    t_ok(ch_optimizer_sgd(0.1, NULL, NULL, &optimizer));
    ch_tensor_unref(zero);
    return 0;
}

static int drop(void **state)
{
    (void)state;
    ch_optimizer_unref(optimizer);
    ch_model_unref(model);
    ch_layer_unref(layer);
    ch_metric_unref(metric);
    ch_var_unref(var);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dataset_stages_reject_steps_that_use_variables),
    };

    return cmocka_run_group_tests(tests, make, drop);
}

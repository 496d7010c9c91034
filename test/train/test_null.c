/* test/train/test_null.c -- NULL as an object, in all functions that the headers of training
 * declare.
 *
 * Each function returns a status that names the argument, does nothing, or prints "NULL". None
 * crashes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../strategy/help.h"

#include <math.h>

#include "base/mem.h"

static void refuses(ch_status rc, const char *word)
{
    t_refused(rc, CH_INVALID_ARGUMENT, word, "NULL");
}

static void optimizer_functions_name_the_null_argument(void **state)
{
    int64_t       live = ch__mem_live(), n = -7;
    ch_optimizer *o = NULL;
    ch_tensor    *t = NULL;
    double        x = -7;

    refuses(ch_optimizer_sgd(1, NULL, NULL, NULL), "sgd: out");
    refuses(ch_optimizer_adagrad(1, NULL, NULL, NULL), "adagrad: out");
    refuses(ch_optimizer_rmsprop(1, NULL, NULL, NULL), "rmsprop: out");
    refuses(ch_optimizer_adam(1, NULL, NULL, NULL), "adam: out");
    refuses(ch_optimizer_adamw(1, NULL, NULL, NULL), "adamw: out");
    refuses(ch_optimizer_adamax(1, NULL, NULL, NULL), "adamax: out");
    refuses(ch_optimizer_ftrl(1, NULL, NULL, NULL), "ftrl: out");
    refuses(ch_optimizer_lamb(1, NULL, NULL, NULL), "lamb: out");
    refuses(ch_optimizer_build(NULL, 0, NULL), "optimizer");
    refuses(ch_optimizer_rate(NULL, &x), "optimizer");
    refuses(ch_optimizer_set_rate(NULL, 1), "optimizer");
    refuses(ch_optimizer_loss_scale(NULL, &x), "optimizer");
    refuses(ch_optimizer_iterations(NULL, &n), "optimizer");
    refuses(ch_optimizer_skipped(NULL, &n), "optimizer");
    refuses(ch_optimizer_average(NULL, NULL, &t), "optimizer");
    refuses(ch_optimizer_swap_averages(NULL), "optimizer");

    t_ok(ch_optimizer_sgd(1, NULL, &(ch_optimizer_options){.average = 0.5}, &o));
    refuses(ch_optimizer_build(o, 1, (ch_var *[]){NULL}), "variable 0");
    refuses(ch_optimizer_rate(o, NULL), "optimizer");
    refuses(ch_optimizer_loss_scale(o, NULL), "optimizer");
    refuses(ch_optimizer_iterations(o, NULL), "optimizer");
    refuses(ch_optimizer_skipped(o, NULL), "optimizer");
    refuses(ch_optimizer_average(o, NULL, &t), "variable");
    refuses(ch_optimizer_average(o, NULL, NULL), "optimizer");
    assert_true(x == -7 && n == -7 && t == NULL);
    ch_optimizer_unref(o);
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

static void metric_functions_name_the_null_argument(void **state)
{
    ch_metric *m = NULL;
    ch_tensor *t = NULL;
    double     x = -7;

    refuses(ch_metric_new(NULL, ch_metric_mean(), NULL), "metric new: out");
    refuses(ch_metric_result(NULL, &x), "the metric");
    refuses(ch_metric_tensor(NULL, &t), "the metric");
    refuses(ch_metric_reset(NULL), "the metric");

    t_ok(ch_metric_new(NULL, ch_metric_mean(), &m));
    refuses(ch_metric_result(m, NULL), "out");
    refuses(ch_metric_tensor(m, NULL), "out");
    assert_int_equal(ch_metric_vars(m, NULL), 1);
    assert_true(x == -7 && t == NULL);
    ch_metric_unref(m);
    (void)state;
}

/* A layer that is passed to a model is released on an error. */
static void layer_and_model_functions_name_the_null_argument(void **state)
{
    int64_t   live = ch__mem_live();
    ch_model *m = NULL;
    ch_layer *l;

    refuses(ch_model_new(NULL, NULL, NULL, &m), "the layer");
    refuses(ch_model_new(NULL, ch_layer_dense(1, NULL), NULL, NULL), "out");
    refuses(ch_layer_weight(NULL, &(ch_layer_weight_spec){.name = "w"}, NULL), "the layer");
    l = ch_layer_dense(1, NULL);
    refuses(ch_layer_weight(l, NULL, NULL), "its spec");
    assert_int_equal(ch_layer_children(l, NULL), 0);
    assert_int_equal(ch_layer_vars(l, NULL), 0);
    assert_int_equal(ch_layer_trainable(l, NULL), 0);
    assert_null(ch_layer_var(l, NULL));
    assert_null(ch_layer_named("x", NULL));
    assert_null(ch_layer_named(NULL, l));
    assert_null(ch_layer_sequential(NULL, 1, NULL));
    assert_null(ch_layer_sequential(NULL, 1, (ch_layer *[]){NULL}));
    assert_null(ch_layer_function(NULL, NULL, NULL, 0, NULL));
    assert_null(ch_layer_new(NULL, NULL, 0, 0, NULL));
    assert_null(m);
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

static void layer_and_model_getters_accept_null(void **state)
{
    ch_layer *const *child = &(ch_layer *){NULL};
    ch_var *const   *v = &(ch_var *){NULL};

    assert_null(ch_layer_name(NULL));
    assert_null(ch_layer_type(NULL));
    assert_int_equal(ch_layer_children(NULL, &child), 0);
    assert_null(child);
    assert_int_equal(ch_layer_vars(NULL, &v), 0);
    assert_null(v);
    assert_int_equal(ch_layer_trainable(NULL, NULL), 0);
    assert_null(ch_layer_var(NULL, "w"));
    assert_null(ch_model_layer(NULL));
    assert_null(ch_model_strategy(NULL));
    assert_int_equal(ch_model_vars(NULL, &v), 0);
    assert_int_equal(ch_model_trainable(NULL, NULL), 0);
    assert_int_equal(ch_optimizer_vars(NULL, &v), 0);
    assert_int_equal(ch_optimizer_vars(NULL, NULL), 0);
    assert_null(ch_optimizer_slot(NULL, NULL, NULL));
    assert_null(ch_metric_name(NULL));
    assert_int_equal(ch_metric_vars(NULL, &v), 0);
    assert_int_equal(ch_metric_vars(NULL, NULL), 0);
    assert_null(v);
    (void)state;
}

static void layer_model_and_optimizer_calls_ignore_null(void **state)
{
    ch_layer_unref(ch_layer_ref(NULL));
    ch_model_unref(ch_model_ref(NULL));
    ch_optimizer_unref(ch_optimizer_ref(NULL));
    ch_metric_unref(ch_metric_ref(NULL));
    ch_layer_set_dtype(NULL, CH_F32);
    ch_layer_set_seed(NULL, 1);
    ch_layer_synchronize(NULL, true);
    assert_null(ch_layer_call(NULL, NULL, NULL, true));
    assert_null(ch_layer_call_n(NULL, NULL, 1, NULL, true));
    assert_null(ch_model_call(NULL, NULL, NULL, true));
    assert_null(ch_model_call_n(NULL, NULL, 1, NULL, true));
    ch_optimizer_minimize(NULL, NULL, NULL, 0, NULL);
    ch_optimizer_apply(NULL, NULL, 0, NULL, NULL);
    assert_null(ch_optimizer_rate_node(NULL, NULL));
    assert_null(ch_optimizer_loss_scale_node(NULL, NULL));
    ch_metric_update(NULL, NULL, NULL, NULL, NULL);
    assert_null(ch_loss_sparse_categorical(NULL, NULL));
    assert_null(ch_loss_categorical(NULL, NULL, 0));
    assert_null(ch_loss_binary(NULL, NULL));
    assert_null(ch_loss_mse(NULL, NULL));
    assert_null(ch_loss_mae(NULL, NULL));
    assert_null(ch_loss_huber(NULL, NULL, 1));
    assert_null(ch_loss_cosine(NULL, NULL));
    assert_null(ch_loss_hinge(NULL, NULL));
    assert_null(ch_loss_kl(NULL, NULL));
    assert_null(ch_loss_average(NULL, NULL));
    assert_null(ch_loss_weighted_mean(NULL, NULL));
    assert_true(isnan(ch_schedule_at(NULL, 1)));
    assert_null(ch_schedule_node(NULL, NULL));
    (void)state;
}

/* Objects that are NULL in a step make it fail, with a message. */
static void use_nothing(ch_step *s, void *arg)
{
    switch (*(int *)arg) {
    case 0:
        assert_null(ch_layer_call_n(NULL, s, 1, NULL, true));
        break;
    case 1:
        assert_null(ch_model_call(NULL, s, NULL, true));
        break;
    case 2:
        ch_optimizer_minimize(NULL, s, NULL, 1, NULL);
        break;
    case 3:
        ch_optimizer_apply(NULL, s, 1, NULL, NULL);
        break;
    case 4:
        assert_null(ch_optimizer_rate_node(NULL, s));
        break;
    case 5:
        assert_null(ch_optimizer_loss_scale_node(NULL, s));
        break;
    default:
        ch_metric_update(NULL, s, NULL, NULL, NULL);
        break;
    }
}

static void null_layer_optimizer_or_metric_in_a_step_is_an_error(void **state)
{
    static const char *const word[] = {"layer",     "model",     "optimizer", "optimizer",
                                       "optimizer", "optimizer", "metric"};

    for (int i = 0; i < (int)(sizeof(word) / sizeof(word[0])); i++) {
        ch_function *f = t_function(use_nothing, &i);

        refuses(ch_strategy_run(NULL, f, NULL, NULL), word[i]);
        ch_function_unref(f);
    }
    (void)state;
}

static void model_print_of_null_writes_null(void **state)
{
    char text[16];

    assert_int_equal(ch_model_print(NULL, text, sizeof(text)), 4);
    assert_string_equal(text, "NULL");
    assert_int_equal(ch_model_print(NULL, NULL, 16), 4);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            null_layer_optimizer_or_metric_in_a_step_is_an_error), /* no layer has failed yet */
        cmocka_unit_test(optimizer_functions_name_the_null_argument),
        cmocka_unit_test(metric_functions_name_the_null_argument),
        cmocka_unit_test(layer_and_model_functions_name_the_null_argument),
        cmocka_unit_test(layer_and_model_getters_accept_null),
        cmocka_unit_test(layer_model_and_optimizer_calls_ignore_null),
        cmocka_unit_test(model_print_of_null_writes_null),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

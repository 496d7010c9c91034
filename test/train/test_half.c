/* test/train/test_half.c -- 16-bit training takes half the memory: of parameters, and of what a step holds.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../strategy/help.h"

typedef struct job {
    ch_model     *model;
    ch_optimizer *opt;
} job;

static void train(ch_step *s, void *arg)
{
    job           *j = arg;
    ch_node       *guess = ch_model_call(j->model, s, ch_step_in(s, 0), true);
    ch_node       *each = ch_loss_sparse_categorical(guess, ch_step_in(s, 1));
    ch_var *const *var;
    int            n = ch_model_trainable(j->model, &var);

    ch_optimizer_minimize(j->opt, s, ch_loss_average(each, NULL), n, var);
}

static ch_layer *network(void)
{
    const ch_conv_layer_options conv = {.activation = CH_RELU};

    return ch_sequential("cnn", 6,
                         (ch_layer *[]){ch_conv2d_layer(32, 3, 3, &conv),
                                        ch_max_pool_layer(2, 2, 0, 0, CH_PAD_VALID),
                                        ch_conv2d_layer(64, 3, 3, &conv),
                                        ch_max_pool_layer(2, 2, 0, 0, CH_PAD_VALID),
                                        ch_flatten_layer(), ch_dense(10, NULL)});
}

static double parameter_bytes(ch_model *m)
{
    ch_var *const *var;
    int            n = ch_model_trainable(m, &var);
    double         sum = 0;

    for (int i = 0; i < n; i++)
        sum += (double)ch_shape_count(ch_var_shape(var[i])) *
               (double)ch_dtype_bytes(ch_var_dtype(var[i]));
    return sum;
}

/* Bytes that the plan of a training step takes; and those of the parameters. */
static double arena_bytes(ch_dtype t, double *parameters)
{
    static char  text[1 << 16];
    job          j = {0};
    ch_tensor   *labels = NULL;
    ch_function *f = t_function(train, &j);
    ch_tuple    *in;
    const char  *at;
    double       bytes = 0;

    t_ok(ch_model_new(NULL, network(),
                      &(ch_model_options){.n_inputs = 1,
                                          .input = {{CH_F32, ch_shape_of(-1, 28, 28, 1)}},
                                          .dtype = t},
                      &j.model));
    t_ok(ch_sgd(0.01, NULL, NULL, &j.opt));
    t_ok(ch_tensor_new(CH_I32, ch_shape_of(64), &labels));
    in = t_tuple(2, (ch_tensor *[]){t_noise(ch_shape_of(64, 28, 28, 1), 1), labels});
    t_ok(ch_strategy_run(NULL, f, in, NULL));
    ch_function_print_plan(f, text, sizeof(text));
    at = strstr(text, "\narena ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, " arena %lf bytes", &bytes), 1);
    *parameters = parameter_bytes(j.model);
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_optimizer_unref(j.opt);
    ch_model_unref(j.model);
    return bytes;
}

static void sixteen_bits_take_half_the_memory(void **state)
{
    double p32, p16, a32 = arena_bytes(CH_F32, &p32);

    for (int i = 0; i < 2; i++) {
        double a16 = arena_bytes(i == 0 ? CH_BF16 : CH_F16, &p16);

        assert_true(p16 == p32 / 2);
        assert_true(a16 <
                    0.56 * a32); /* an image at a time is widened, and gradients of weights */
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sixteen_bits_take_half_the_memory)};

    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "CPU=1", .threads = 1}));
    return cmocka_run_group_tests(tests, NULL, NULL);
}

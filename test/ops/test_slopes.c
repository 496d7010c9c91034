/* test/ops/test_slopes.c -- gradients of smooth activations against exact derivatives.
 *
 * The samples of test_ops.c compare gradients with finite differences, which are accurate to a
 * few digits. Here the derivatives have closed forms in f64, so that the bound of cohort/math.h
 * can be checked.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <cohort/cohort.h>
#include <math.h>

enum { N = 40001 };

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double gelu_slope(double x)
{
    return 0.5 * erfc(-x / sqrt(2)) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
}

static double gelu_tanh_slope(double x)
{
    double k = sqrt(8 / M_PI), q = sigmoid(k * (x + 0.044715 * x * x * x));

    return q + x * q * (1 - q) * k * (1 + 3 * 0.044715 * x * x);
}

static double silu_slope(double x)
{
    return sigmoid(x) + x * sigmoid(x) * sigmoid(-x);
}

typedef struct activation {
    const char *name;
    ch_node *(*op)(ch_node *x);
    double (*slope)(double x);
} activation;

static void record(ch_step *s, void *arg)
{
    const activation *a = arg;
    ch_node          *x = ch_step_in(s, 0);

    ch_step_out(s, "slope", ch_gradient(a->op(x), x));
}

static void gradients_of_gelu_and_silu_are_within_their_bound(void **state)
{
    static activation all[] = {{"gelu", ch_gelu, gelu_slope},
                               {"gelu_tanh", ch_gelu_tanh, gelu_tanh_slope},
                               {"silu", ch_silu, silu_slope}};
    static float      x[N];
    ch_tensor        *t = NULL;
    ch_tuple         *in = NULL;

    for (int i = 0; i < N; i++)
        x[i] = (float)(i - N / 2) / 1000;
    assert_int_equal(ch_tensor_copy_of(CH_F32, ch_shape_of(N), x, &t), CH_OK);
    assert_int_equal(ch_tuple_of(1, &t, &in), CH_OK);
    for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++) {
        ch_function *f = NULL;
        ch_tuple    *out = NULL;
        const float *got;

        assert_int_equal(ch_function_new(all[k].name, record, &all[k], &f), CH_OK);
        assert_int_equal(ch_strategy_run(NULL, f, in, &out), CH_OK);
        got = ch_tensor_data(ch_value_at(ch_tuple_at(out, 0), 0));
        for (int i = 0; i < N; i++) {
            double want = all[k].slope((double)x[i]);

            if (!(fabs((double)got[i] - want) <= 2e-6))
                fail_msg("slope of %s at %.9g is %.9g, want %.9g", all[k].name, (double)x[i],
                         (double)got[i], want);
        }
        ch_tuple_unref(out);
        ch_function_unref(f);
    }
    ch_tuple_unref(in);
    ch_tensor_unref(t);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_gelu_and_silu_are_within_their_bound),
    };

    return cmocka_run_group_tests_name("slopes", tests, NULL, NULL);
}

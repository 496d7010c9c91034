/* test/train/test_half.c -- 16-bit training of the CNN example: half the memory, the same
 * accuracy.
 *
 * The test includes the source of the example, and uses its network, its step and its images.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../strategy/help.h"

int cnn_main(int argc, char **argv);
#define main cnn_main
#include "../../examples/cnn.c" /* NOLINT(bugprone-suspicious-include) */
#undef main

enum { STEPS = 300, LAST = 100 }; /* LAST: those whose accuracy counts */

typedef struct trained {
    double accuracy, arena_bytes, parameter_bytes;
} trained;

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

/* Trains on the same images in the same order for every dtype. */
static trained train_in(ch_dtype dtype)
{
    job          j;
    trained      t;
    ch_function *f;

    srand(1);
    make_job(dtype, &j);
    f = t_function(train, &j);
    for (int i = 0; i < STEPS; i++) {
        ch_tuple *batch = next_batch();

        if (i == STEPS - LAST)
            t_ok(ch_metric_reset(j.accuracy));
        t_ok(ch_strategy_run(NULL, f, batch, NULL));
        ch_tuple_unref(batch);
    }
    t_ok(ch_metric_result(j.accuracy, &t.accuracy));
    t.arena_bytes = t_arena_bytes(f);
    t.parameter_bytes = parameter_bytes(j.model);
    ch_function_unref(f);
    ch_metric_unref(j.accuracy);
    ch_optimizer_unref(j.optimizer);
    ch_model_unref(j.model);
    return t;
}

static void training_in_16_bits_is_as_accurate_with_half_the_parameter_bytes(void **state)
{
    const trained wide = train_in(CH_F32);

    assert_true(wide.accuracy > 0.98);
    for (int i = 0; i < 2; i++) {
        trained half = train_in(i == 0 ? CH_BF16 : CH_F16);

        if (!(fabs(half.accuracy - wide.accuracy) <= 0.005))
            fail_msg("%g, where f32 has %g", half.accuracy, wide.accuracy);
        assert_true(half.parameter_bytes == wide.parameter_bytes / 2);
        /* The ratio is 0.554: half, and the input in 16 bits, which f32 need not copy (0.026),
         * and an image at a time in f32 for the gradients of pools (0.03 for 64 images). */
        if (!(half.arena_bytes < 0.56 * wide.arena_bytes))
            fail_msg("%.0f bytes, where f32 takes %.0f", half.arena_bytes, wide.arena_bytes);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_in_16_bits_is_as_accurate_with_half_the_parameter_bytes)};

    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "CPU=1", .threads = 1}));
    return cmocka_run_group_tests(tests, NULL, NULL);
}

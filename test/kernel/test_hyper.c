/* test/kernel/test_hyper.c -- update rules without a graph, as a parameter server applies them.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "kernel/hyper.h"

/* Adam as in its paper, except that epsilon is added before the correction, as in Keras. */
static void adam_rule_agrees_with_the_paper(void **state)
{
    const ch_rule  *adam = ch__rule(CH_RULE_ADAM);
    ch_rule_numbers set = {.beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-7, .scale = 1};
    double          w = 3, m = 0, v = 0, h[CH_HYPERS], want = 3, m_want = 0, v_want = 0;

    for (int t = 0; t < 20; t++) {
        ch_rule_run run = {.iterations = t, .rate = 0.1, .apply = true, .divisor = 2};
        double      grad = 2 * (2 * w), g = 2 * want, rate;

        ch__hyper_fill(adam, CH_F64, &set, &run, h);
        ch__rule_dense(adam, CH_F64, 1, 1, &w, &grad, (void *[]){&m, &v}, h);
        m_want = 0.9 * m_want + 0.1 * g;
        v_want = 0.99 * v_want + 0.01 * g * g;
        rate = 0.1 * sqrt(1 - pow(0.99, t + 1)) / (1 - pow(0.9, t + 1));
        want -= rate * m_want / (sqrt(v_want) + 1e-7);
        assert_true(fabs(w - want) < 1e-12);
    }
    (void)state;
}

static void hyper_fill_scales_by_clip_norm_and_stops_ftrl_at_rate_0(void **state)
{
    ch_rule_numbers set = {.clip_norm = 1, .scale = 1};
    ch_rule_run     run = {.rate = 0, .apply = true, .divisor = 1, .squares = 16};
    float           h[CH_HYPERS];

    ch__hyper_fill(ch__rule(CH_RULE_SGD), CH_F32, &set, &run, h);
    assert_true(h[CH_HYPER_SCALE] == 0.25f && h[CH_HYPER_APPLY] == 1);
    ch__hyper_fill(ch__rule(CH_RULE_FTRL), CH_F32, &set, &run, h);
    assert_true(h[CH_HYPER_APPLY] == 0);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adam_rule_agrees_with_the_paper),
        cmocka_unit_test(hyper_fill_scales_by_clip_norm_and_stops_ftrl_at_rate_0),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

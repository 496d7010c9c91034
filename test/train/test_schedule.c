/* test/train/test_schedule.c -- learning rate schedules, computed in C and in a step.
 * SPDX-License-Identifier: Apache-2.0 */
#include "../strategy/help.h"

#include <math.h>

#define PI 3.14159265358979323846

static void at_step(ch_step *s, void *arg)
{
    ch_step_out(s, NULL, ch_schedule_node(arg, ch_step_in(s, 0)));
}

static double node_at(const ch_schedule *p, int64_t step)
{
    ch_schedule  copy = *p;
    ch_function *f = t_function(at_step, &copy);
    ch_tensor   *t = NULL;
    ch_tuple    *in, *out = NULL;
    double       rate;

    t_ok(ch_tensor_copy_of(CH_I64, ch_shape_scalar(), &step, &t));
    in = t_tuple(1, &t);
    t_ok(ch_strategy_run(NULL, f, in, &out));
    assert_int_equal(ch_tensor_dtype(ch_value_at(ch_tuple_at(out, 0), 0)), CH_F64);
    t_ok(ch_tensor_item(ch_value_at(ch_tuple_at(out, 0), 0), &rate));
    ch_tuple_unref(in);
    ch_tuple_unref(out);
    ch_function_unref(f);
    return rate;
}

/* Checks the rate in C and in a step. */
static void expect(ch_schedule p, int64_t step, double rate)
{
    if (!(fabs(ch_schedule_at(&p, step) - rate) <= 1e-12))
        fail_msg("step %d: %.9g, want %.9g", (int)step, ch_schedule_at(&p, step), rate);
    if (!(fabs(node_at(&p, step) - rate) <= 1e-12))
        fail_msg("step %d, in a step: %.9g, want %.9g", (int)step, node_at(&p, step), rate);
}

static void schedule_constant_and_exponential_follow_their_formulas(void **state)
{
    expect(ch_schedule_constant(0.25), 0, 0.25);
    expect(ch_schedule_constant(0.25), 1000000, 0.25);
    expect(ch_schedule_exponential(0.5, 10, 0.25, false), 0, 0.5);
    expect(ch_schedule_exponential(0.5, 10, 0.25, false), 5, 0.25);
    expect(ch_schedule_exponential(0.5, 10, 0.25, false), 20, 0.03125);
    expect(ch_schedule_exponential(0.5, 10, 0.25, true), 9, 0.5);
    expect(ch_schedule_exponential(0.5, 10, 0.25, true), 10, 0.125);
    expect(ch_schedule_exponential(1, 3, 0.5, true), 29, 0x1p-9);
    (void)state;
}

static void schedule_piecewise_changes_after_its_boundaries(void **state)
{
    ch_schedule p = ch_schedule_piecewise(2, (double[]){100, 200}, (double[]){1, 0.5, 0.125});

    expect(p, 0, 1);
    expect(p, 100, 1);
    expect(p, 101, 0.5);
    expect(p, 200, 0.5);
    expect(p, 201, 0.125);
    expect(ch_schedule_piecewise(0, NULL, (double[]){0.75}), 7, 0.75);
    (void)state;
}

static void schedule_polynomial_and_cosine_end_at_their_last_value(void **state)
{
    ch_schedule p = ch_schedule_polynomial(1, 10, 0.2, 2), c = ch_schedule_cosine(2, 100, 0.25);

    expect(p, 0, 1);
    expect(p, 5, 0.8 * 0.25 + 0.2);
    expect(p, 10, 0.2);
    expect(p, 1000, 0.2);
    expect(c, 0, 2);
    expect(c, 25, 2 * (0.75 * 0.5 * (1 + cos(PI / 4)) + 0.25));
    expect(c, 50, 2 * (0.375 + 0.25));
    expect(c, 100, 0.5);
    expect(c, 101, 0.5);
    (void)state;
}

static void schedule_cosine_restarts_follow_their_formula(void **state)
{
    ch_schedule same = ch_schedule_cosine_restarts(1, 10, 1, 0.5, 0);
    ch_schedule wider = ch_schedule_cosine_restarts(1, 10, 2, 0.5, 0.2);

    expect(same, 5, 0.5);
    expect(same, 10, 0.5);
    expect(same, 25, 0.125);
    expect(same, 30, 0.125);
    expect(wider, 5, 0.8 * 0.5 + 0.2);
    expect(wider, 10, 0.8 * 0.5 + 0.2);
    expect(wider, 20, 0.8 * 0.25 + 0.2);
    expect(wider, 30, 0.8 * 0.25 + 0.2);
    expect(wider, 70, 0.8 * 0.125 + 0.2);
    expect(wider, 110, 0.8 * 0.0625 + 0.2);
    expect(wider, 150, 0.8 * 0.0625 + 0.2);
    (void)state;
}

static void schedule_warm_up_precedes_the_schedule(void **state)
{
    ch_schedule p = ch_schedule_warm_up(ch_schedule_exponential(0.5, 10, 0.5, false), 4);
    ch_schedule c = ch_schedule_warm_up(ch_schedule_cosine_restarts(1, 10, 3, 1, 0), 5);

    expect(p, 0, 0);
    expect(p, 3, 0.375);
    expect(p, 4, 0.5);
    expect(p, 14, 0.25);
    expect(c, 1, 0.2);
    expect(c, 10, 0.5);
    (void)state;
}

static void schedule_check_rejects_invalid_schedules(void **state)
{
    ch_schedule bad[] = {ch_schedule_cosine(1, 0, 0),
                         ch_schedule_cosine_restarts(1, 1, 0.5, 1, 0),
                         ch_schedule_piecewise(17, NULL, NULL),
                         ch_schedule_piecewise(2, (double[]){2, 1}, (double[]){1, 2, 3}),
                         ch_schedule_warm_up(ch_schedule_constant(1), -1)};
    const char *word[] = {"0 steps", "factor is 0.5", "17 boundaries", "want ascending",
                          "warm up"};

    for (int i = 0; i < 5; i++) {
        ch_function *f = t_function(at_step, &bad[i]);
        int64_t      step = 3;
        ch_tensor   *t = NULL;
        ch_tuple    *in;

        t_ok(ch_tensor_copy_of(CH_I64, ch_shape_scalar(), &step, &t));
        in = t_tuple(1, &t);
        t_refused(ch_strategy_run(NULL, f, in, NULL), CH_INVALID_ARGUMENT, "schedule", word[i]);
        assert_true(isnan(ch_schedule_at(&bad[i], 3)));
        ch_tuple_unref(in);
        ch_function_unref(f);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedule_constant_and_exponential_follow_their_formulas),
        cmocka_unit_test(schedule_piecewise_changes_after_its_boundaries),
        cmocka_unit_test(schedule_polynomial_and_cosine_end_at_their_last_value),
        cmocka_unit_test(schedule_cosine_restarts_follow_their_formula),
        cmocka_unit_test(schedule_warm_up_precedes_the_schedule),
        cmocka_unit_test(schedule_check_rejects_invalid_schedules),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

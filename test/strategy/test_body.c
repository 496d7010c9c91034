/* test/strategy/test_body.c -- branches and loop bodies: their access to the step around them,
 * and the location of their errors.
 *
 * The bodies of ch_cond and loops may use nodes of the enclosing step. The tests check results,
 * gradients and the source lines in errors.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

/* Runs the step once on x = (0.5, 1, 1.5). */
static ch_status run_once(ch_step_fn step, void *arg, ch_tuple **out)
{
    ch_function *f = t_function(step, arg);
    ch_tuple *in = t_tuple(1, (ch_tensor *[]){t_f32(ch_shape_of(3), (float[]){0.5, 1, 1.5})});
    ch_status rc = ch_strategy_run(NULL, f, in, out);

    ch_tuple_unref(in);
    ch_function_unref(f);
    return rc;
}

static void gives(ch_step_fn step, void *arg, int n, const float *want)
{
    ch_tuple *out = NULL;

    t_ok(run_once(step, arg, &out));
    for (int i = 0; i < n; i++)
        assert_float_equal(t_floats(out, 0, 0)[i], want[i], 1e-6);
    ch_tuple_unref(out);
}

static void has_line(const char *file, int line)
{
    char text[64];

    snprintf(text, sizeof(text), "%s:%d", file, line);
#if CH_HAVE_LIBDW
    if (strstr(ch_error_message(), text) == NULL)
        fail_msg("\"%s\" has not \"%s\"", ch_error_message(), text);
#endif
}

static ch_node *is_positive(ch_node *x)
{
    return ch_greater(ch_sum_all(x), ch_number(ch_node_step(x), 0));
}

/* A step with a single cond. Both branches are `branch`, with x as their argument. */
static void one_cond(ch_step *s, void *branch)
{
    ch_node *x = ch_step_in(s, 0), *y = NULL;

    ch_step_enter(s, "outside");
    ch_cond(is_positive(x), 1, *(ch_branch_fn *)branch, *(ch_branch_fn *)branch, x, &y);
    ch_step_leave(s);
    ch_step_out(s, "y", y);
}

/* ---- inputs and outputs ---- */

static void gives_an_output(ch_step *s, void *x, ch_node **out)
{
    ch_step_out(s, "inner", x);
    out[0] = ch_neg(x);
}

static void an_output_of_the_step_cannot_be_made_inside_a_body(void **state)
{
    ch_branch_fn branch = gives_an_output;

    t_refused(run_once(one_cond, &branch, NULL), CH_FAILED_PRECONDITION, "ch_step_out",
              "return the value");
    (void)state;
}

static void adds_the_input(ch_step *s, void *arg, ch_node *const *carry, ch_node *const *x,
                           ch_node **next, ch_node **y)
{
    (void)arg, (void)x, (void)y;
    assert_int_equal(ch_step_in_count(s), 1);
    next[0] = ch_add(carry[0], ch_step_in(s, 0));
}

static void three_times(ch_step *s, void *arg)
{
    ch_node *h = ch_mul(ch_step_in(s, 0), ch_number(s, 100)), *last = NULL;

    (void)arg;
    ch_scan(s, &(ch_scan_spec){.n_carry = 1, .length = 3}, adds_the_input, NULL, &h, NULL,
            &last, NULL);
    ch_step_out(s, "y", last);
}

static void body_reads_the_inputs_of_its_step(void **state)
{
    gives(three_times, NULL, 3, (float[]){51.5, 103, 154.5});
    (void)state;
}

/* ---- numbers ---- */

typedef struct captured {
    ch_node *x, *number;
} captured;

static void scale(ch_step *s, void *arg, ch_node **out)
{
    captured *c = arg;

    (void)s;
    out[0] = ch_add(ch_mul(c->x, c->number),
                    ch_cast(ch_add(ch_cast(c->x, CH_I32), c->number), CH_F32));
}

static void number_from_outside(ch_step *s, void *arg)
{
    captured c = {ch_step_in(s, 0), ch_number(s, 2)};
    ch_node *y = NULL;

    (void)arg;
    ch_cond(is_positive(c.x), 1, scale, scale, &c, &y);
    ch_step_out(s, "y", y);
}

static void captured_number_takes_the_type_of_the_other_operand(void **state)
{
    gives(number_from_outside, NULL, 3, (float[]){3, 5, 6});
    (void)state;
}

/* ---- gradients ---- */

static void gradient_of_square(ch_step *s, void *x, ch_node **out)
{
    (void)s;
    out[0] = ch_gradient(ch_square(x), x);
}

static void gradient_of_nothing(ch_step *s, void *x, ch_node **out)
{
    out[0] = ch_gradient(ch_sum_all(ch_fill(s, CH_F32, ch_shape_of(2), 1)), x);
}

static void captured_value_has_a_gradient_inside_the_body(void **state)
{
    ch_branch_fn branch = gradient_of_square;

    gives(one_cond, &branch, 3, (float[]){1, 2, 3});
    branch = gradient_of_nothing;
    gives(one_cond, &branch, 3, (float[]){0, 0, 0});
    (void)state;
}

/* d (x^2)^2 / dx, where x^2 is a node of the enclosing step. */
static void gradient_through_outside(ch_step *s, void *arg, ch_node **out)
{
    captured *c = arg;

    (void)s;
    out[0] = ch_gradient(ch_square(c->number), c->x);
}

static void square_outside(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *y = NULL;
    captured c = {x, ch_square(x)};

    (void)arg;
    ch_cond(is_positive(x), 1, gradient_through_outside, gradient_through_outside, &c, &y);
    ch_step_out(s, "dx", arg != NULL ? ch_gradient(y, x) : y);
}

static void a_gradient_in_a_body_goes_on_outside_of_it(void **state)
{
    int twice = 1;

    gives(square_outside, NULL, 3, (float[]){0.5, 4, 13.5});
    gives(square_outside, &twice, 3, (float[]){3, 12, 27});
    (void)state;
}

static ch_node *predicate;

static void nested_cond(ch_step *s, void *arg, ch_node *const *carry, ch_node *const *x,
                        ch_node **next, ch_node **y)
{
    (void)s, (void)arg, (void)x, (void)y;
    ch_cond(predicate, 1, gradient_of_square, gradient_of_square, carry[0], next);
}

static void nest(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *last = NULL;

    (void)arg;
    predicate = is_positive(x);
    ch_scan(s, &(ch_scan_spec){.n_carry = 1, .length = 3}, nested_cond, NULL, &x, NULL, &last,
            NULL);
    ch_step_out(s, "y", last);
}

static void cond_in_a_loop_takes_a_condition_from_outside(void **state)
{
    gives(nest, NULL, 3, (float[]){4, 8, 12});
    (void)state;
}

static void noise_like_outside(ch_step *s, void *arg, ch_node *const *carry, ch_node *const *x,
                               ch_node **next, ch_node **y)
{
    (void)s, (void)x;
    next[0] = carry[0];
    y[0] = ch_random_uniform_like(arg, 0, 1, 0);
}

static void draw_in_a_loop(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *last = NULL, *y = NULL;

    (void)arg;
    ch_scan(s, &(ch_scan_spec){.n_carry = 1, .n_y = 1, .length = 2}, noise_like_outside, x, &x,
            NULL, &last, &y);
    ch_step_out(s, "y", y);
}

static void random_op_like_a_captured_value_is_drawn_in_every_iteration(void **state)
{
    ch_tuple *out = NULL;

    t_ok(run_once(draw_in_a_loop, NULL, &out));
    assert_memory_not_equal(t_floats(out, 0, 0), t_floats(out, 0, 0) + 3, 3 * sizeof(float));
    ch_tuple_unref(out);
    (void)state;
}

/* ---- errors ---- */

static int bad_line;

static void multiplies_wrongly(ch_step *s, void *x, ch_node **out)
{
    ch_step_enter(s, "inside");
    bad_line = __LINE__ + 1;
    out[0] = ch_matmul(x, false, x, false);
    ch_step_leave(s);
}

static void an_error_in_a_body_names_its_own_line_and_scope(void **state)
{
    ch_branch_fn branch = multiplies_wrongly;

    t_refused(run_once(one_cond, &branch, NULL), CH_INVALID_ARGUMENT, "matmul(f32(rows)",
              "in outside/inside");
    has_line("test_body.c", bad_line);
    (void)state;
}

static void checks_wrongly(ch_step *s, void *x, ch_node **out)
{
    ch_step_enter(s, "inside");
    bad_line = __LINE__ + 1;
    out[0] = ch_check_numerics(ch_log(ch_neg(x)), "logs");
    ch_step_leave(s);
}

static void an_error_of_a_run_in_a_body_names_its_own_line_and_scope(void **state)
{
    ch_branch_fn branch = checks_wrongly;

    t_refused(run_once(one_cond, &branch, NULL), CH_INVALID_ARGUMENT, "check_numerics",
              "in outside/inside");
    has_line("test_body.c", bad_line);
    (void)state;
}

/* NaN occurs in the gradient only: sqrt is defined at 0, its derivative is not. */
static void has_a_bad_gradient(ch_step *s, void *x, ch_node **out)
{
    ch_step_enter(s, "inside");
    bad_line = __LINE__ + 1;
    out[0] = ch_check_numerics(x, "slope");
    ch_step_leave(s);
    out[0] = ch_sqrt(ch_sub(out[0], out[0]));
}

static void differentiate_cond(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *y = NULL;

    (void)arg;
    ch_step_enter(s, "outside");
    ch_cond(is_positive(x), 1, has_a_bad_gradient, has_a_bad_gradient, x, &y);
    ch_step_leave(s);
    ch_step_out(s, "dx", ch_gradient(y, x));
}

static void an_error_in_the_gradient_of_a_body_names_the_line_in_the_body(void **state)
{
    t_refused(run_once(differentiate_cond, NULL, NULL), CH_INVALID_ARGUMENT, "slope", "");
    has_line("test_body.c", bad_line);
    (void)state;
}

static ch_node *tests_wrongly(ch_step *s, void *arg, ch_node *const *state)
{
    (void)arg;
    bad_line = __LINE__ + 1;
    return ch_less(ch_matmul(state[0], false, state[0], false), ch_number(s, 0));
}

static void doubles(ch_step *s, void *arg, ch_node *const *state, ch_node **next)
{
    (void)arg;
    next[0] = ch_mul(state[0], ch_number(s, 2));
}

static void loop_on_it(ch_step *s, void *test)
{
    ch_node *x = ch_step_in(s, 0), *y = NULL;

    bad_line = __LINE__ + 1;
    ch_while(s, 1, 3, *(ch_while_test *)test, doubles, NULL, &x, &y);
    ch_step_out(s, "y", y);
}

static ch_node *tests_nothing(ch_step *s, void *arg, ch_node *const *state)
{
    (void)s, (void)arg, (void)state;
    return NULL;
}

static void an_error_in_the_test_of_a_while_names_its_own_line(void **state)
{
    ch_while_test test = tests_wrongly;

    t_refused(run_once(loop_on_it, &test, NULL), CH_INVALID_ARGUMENT, "matmul(", "");
    has_line("test_body.c", bad_line);
    test = tests_nothing;
    t_refused(run_once(loop_on_it, &test, NULL), CH_INVALID_ARGUMENT,
              "while: the test returns NULL", "");
    has_line("test_body.c", bad_line);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_output_of_the_step_cannot_be_made_inside_a_body),
        cmocka_unit_test(body_reads_the_inputs_of_its_step),
        cmocka_unit_test(captured_number_takes_the_type_of_the_other_operand),
        cmocka_unit_test(captured_value_has_a_gradient_inside_the_body),
        cmocka_unit_test(a_gradient_in_a_body_goes_on_outside_of_it),
        cmocka_unit_test(cond_in_a_loop_takes_a_condition_from_outside),
        cmocka_unit_test(random_op_like_a_captured_value_is_drawn_in_every_iteration),
        cmocka_unit_test(an_error_in_a_body_names_its_own_line_and_scope),
        cmocka_unit_test(an_error_of_a_run_in_a_body_names_its_own_line_and_scope),
        cmocka_unit_test(an_error_in_the_gradient_of_a_body_names_the_line_in_the_body),
        cmocka_unit_test(an_error_in_the_test_of_a_while_names_its_own_line),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

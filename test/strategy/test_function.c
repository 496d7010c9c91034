/* test/strategy/test_function.c -- functions: a step is recorded once, planned for every size,
 * and its errors name their source line.
 *
 * The tests count recordings and programs, and check names of inputs, gradients of gradients,
 * the time of planning, and printed graphs.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/mem.h"
#include "help.h"

static ch_tuple *rows_of(int64_t rows, int64_t columns)
{
    return t_tuple(1, (ch_tensor *[]){t_noise(ch_shape_of(rows, columns), 5)});
}

static void run_rows(ch_function *f, int64_t rows, int64_t columns)
{
    ch_tuple *in = rows_of(rows, columns);

    t_ok(ch_strategy_run(NULL, f, in, NULL));
    ch_tuple_unref(in);
}

static int n_recorded;

static void twice(ch_step *s, void *arg)
{
    (void)arg;
    n_recorded++;
    ch_step_out(s, "y", ch_add(ch_step_in(s, 0), ch_step_in(s, 0)));
}

static void sets_static_rows(ch_step *s, void *arg)
{
    ch_function_static_rows(*(ch_function **)arg);
    n_recorded++;
    ch_step_out(s, "y", ch_add(ch_step_in(s, 0), ch_step_in(s, 0)));
}

static void *set_static_rows(void *f)
{
    for (int i = 0; i < 1000; i++)
        ch_function_static_rows(f);
    return NULL;
}

/* The thread sanitizer reports a race if the member is not atomic. */
static void function_static_rows_may_be_set_while_the_function_records_and_runs(void **state)
{
    ch_function *f = NULL;
    pthread_t    other;

    f = t_function(sets_static_rows, &f);
    n_recorded = 0;
    assert_int_equal(pthread_create(&other, NULL, set_static_rows, f), 0);
    for (int i = 0; i < 20; i++)
        run_rows(f, 3, 5);
    assert_int_equal(pthread_join(other, NULL), 0);
    n_recorded = 0;
    run_rows(f, 4, 5); /* a recording for each number of rows */
    run_rows(f, 5, 5);
    assert_int_equal(n_recorded, 2);
    ch_function_unref(f);
    (void)state;
}

static void a_step_is_recorded_once_for_all_numbers_of_rows(void **state)
{
    ch_function *f = t_function(twice, NULL);

    n_recorded = 0;
    for (int64_t rows = 0; rows < 5; rows++)
        run_rows(f, rows, 3);
    assert_int_equal(n_recorded, 1);
    assert_int_equal(ch_function_programs(f), 5);
    run_rows(f, 2, 4); /* another size past axis 0 */
    assert_int_equal(n_recorded, 2);
    assert_int_equal(ch_function_recordings(f), 2);
    ch_function_unref(f);
    (void)state;
}

typedef struct caught {
    int  n;
    char code[32], text[256];
} caught;

static void catch (const ch_log_record *r, void *arg)
{
    caught *c = arg;

    if (strcmp(r->code, "program-cache") != 0)
        return;
    c->n++;
    snprintf(c->text, sizeof(c->text), "%s", r->text);
}

static void function_keeps_at_most_64_programs_and_warns_at_the_tenth(void **state)
{
    ch_function *f = t_function(twice, NULL);
    caught       c = {0};
    int64_t      live;

    ch_log_set_sink(catch, &c, CH_LOG_WARNING);
    for (int64_t rows = 1; rows <= 64; rows++)
        run_rows(f, rows, 3);
    live = ch__mem_live();
    for (int64_t rows = 65; rows <= 90; rows++)
        run_rows(f, rows, 3);
    assert_int_equal(ch_function_programs(f), 64);
    assert_int_equal(ch__mem_live(), live);
    assert_int_equal(c.n, 1);
    assert_non_null(strstr(c.text, "axis 0 of input 0 keeps changing (9, then 10)"));
    assert_non_null(strstr(c.text, "ch_dataset_batch with drop_remainder"));
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    ch_function_unref(f);
    (void)state;
}

static void function_keeps_at_most_64_recordings_with_their_programs(void **state)
{
    ch_function *f = t_function(twice, NULL);
    int64_t      live;

    ch_log_set_sink(catch, &(caught){0}, CH_LOG_WARNING);
    n_recorded = 0;
    for (int64_t columns = 1; columns <= 64; columns++)
        run_rows(f, 2, columns);
    live = ch__mem_live();
    for (int64_t columns = 65; columns <= 90; columns++) {
        run_rows(f, 2, 1); /* used in each round, so it stays */
        run_rows(f, 2, columns);
    }
    assert_int_equal(n_recorded, 90);
    assert_int_equal(ch_function_recordings(f), 90);
    assert_int_equal(ch_function_programs(f), 64);
    assert_int_equal(ch__mem_live(), live);
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    ch_function_unref(f);
    (void)state;
}

/* ---- names ---- */

static void subtract_by_name(ch_step *s, void *arg)
{
    (void)arg;
    n_recorded++;
    ch_step_out(s, "z", ch_sub(ch_step_in_named(s, "x"), ch_step_in_named(s, "y")));
}

/* Returns (5, 3) under these names. */
static ch_tuple *named(const char *first, const char *second)
{
    ch_tuple   *t = NULL;
    ch_value   *v[2] = {0};
    const char *name[] = {first, second};

    for (int i = 0; i < 2; i++) {
        ch_tensor *x = t_f32(ch_shape_of(1), (float[]){i == 0 ? 5 : 3});

        t_ok(ch_value_new(CH_PLAIN, 1, &x, &v[i]));
        ch_tensor_unref(x);
    }
    t_ok(ch_tuple_new(2, v, name, &t));
    ch_value_unref(v[0]);
    ch_value_unref(v[1]);
    return t;
}

static float run_named(ch_function *f, const char *first, const char *second)
{
    ch_tuple *in = named(first, second), *out = NULL;
    float     z;

    t_ok(ch_strategy_run(NULL, f, in, &out));
    z = t_floats(out, 0, 0)[0];
    ch_tuple_unref(in);
    ch_tuple_unref(out);
    return z;
}

static void inputs_are_found_by_name_in_whatever_order_they_come(void **state)
{
    ch_function *f = t_function(subtract_by_name, NULL), *g = NULL;
    ch_tuple    *in = named("x", "w");

    n_recorded = 0;
    assert_float_equal(run_named(f, "x", "y"), 2, 0);
    assert_float_equal(run_named(f, "y", "x"), -2, 0);
    assert_float_equal(run_named(f, "x", "y"), 2, 0);
    assert_int_equal(n_recorded, 2);
    t_refused(ch_strategy_run(NULL, f, in, NULL), CH_INVALID_ARGUMENT, "none of its 2 inputs",
              "\"y\"");
    /* A function that was created from a graph takes its inputs in the graph's order, and its
     * errors name that order. */
    t_ok(ch_function_of_graph("again", ch_function_graph(f), &g));
    assert_float_equal(run_named(g, "x", "y"), 2, 0);
    assert_float_equal(run_named(g, NULL, NULL), 2, 0);
    t_refused(ch_strategy_run(NULL, g, in, NULL), CH_INVALID_ARGUMENT, "input 1 is named \"w\"",
              "\"y\"");
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_function_unref(g);
    (void)state;
}

/* ---- errors ---- */

static int bad_line;

static void multiply_wrongly(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0);

    (void)arg;
    ch_step_enter(s, "block");
    ch_step_enter(s, "dense");
    bad_line = __LINE__ + 1;
    x = ch_matmul(x, false, x, false);
    ch_step_leave(s);
    ch_step_leave(s);
    assert_null(x);
    x = ch_add(ch_relu(x), ch_step_in(s, 0)); /* recording continues after the error */
    assert_null(x);
    ch_step_out(s, "y", x);
}

static void an_error_names_op_shapes_scope_and_line(void **state)
{
    ch_function *f = t_function(multiply_wrongly, NULL);
    ch_tuple    *in = rows_of(2, 3);
    char         line[64];

    t_refused(ch_strategy_run(NULL, f, in, NULL), CH_INVALID_ARGUMENT,
              "matmul(f32(rows, 3), f32(rows, 3))", "in block/dense");
#if CH_HAVE_LIBDW
    snprintf(line, sizeof(line), "test_function.c:%d", bad_line);
    assert_non_null(strstr(ch_error_message(), line));
#endif
    ch_tuple_unref(in);
    ch_function_unref(f);
    (void)line, (void)state;
}

/* ---- scopes ---- */

static void enter_paths(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0);

    (void)arg;
    ch_step_leave(s); /* no scope is open */
    ch_step_enter(s, "outer");
    ch_step_enter(s, "a/b");
    x = ch_exp(x);
    ch_step_leave(s);
    x = ch_tanh(x);
    for (int i = 0; i < 1000; i++)
        ch_step_enter(s, "deep");
    for (int i = 0; i < 1000; i++)
        ch_step_leave(s);
    x = ch_square(x);
    ch_step_leave(s);
    ch_step_out(s, "y", ch_sqrt(x));
}

static void step_leave_closes_the_whole_scope_when_its_name_has_a_slash(void **state)
{
    ch_function *f = t_function(enter_paths, NULL);
    char         text[2048];
    const char  *exp, *tanh, *square, *root;

    run_rows(f, 3, 5);
    ch_graph_print(ch_function_graph(f), text, sizeof(text));
    exp = strstr(text, "  # outer/a/b\n  %1 = exp %0");
    tanh = strstr(text, "  # outer\n  %2 = tanh %1");
    square = strstr(text, "%3 = square %2");
    root = strstr(text, "%4 = sqrt %3");
    assert_true(exp != NULL && tanh != NULL && square != NULL && root != NULL);
    assert_null(strstr(text, "deep"));
    ch_function_unref(f);
    (void)state;
}

static void ask_for_too_much(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "y", ch_add(ch_step_in(s, 0), ch_step_in(s, 1)));
}

static void step_in_rejects_a_missing_input(void **state)
{
    ch_function *f = t_function(ask_for_too_much, NULL);
    ch_tuple    *in = rows_of(2, 3);

    t_refused(ch_strategy_run(NULL, f, in, NULL), CH_INVALID_ARGUMENT, "no input 1",
              "inputs is 1");
    ch_tuple_unref(in);
    ch_function_unref(f);
    (void)state;
}

static void sum_both(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "z", ch_add(ch_sum_all(ch_step_in(s, 0)), ch_sum_all(ch_step_in(s, 1))));
}

static void function_of_graph_names_both_inputs_of_unequal_rows(void **state)
{
    ch_function *f = t_function(sum_both, NULL), *g = NULL;
    ch_tensor   *x = t_noise(ch_shape_of(4, 2), 1), *y = t_noise(ch_shape_of(5, 3), 1);
    ch_tensor   *z = t_noise(ch_shape_of(4, 3), 1);
    ch_tuple    *equal = t_tuple(2, (ch_tensor *[]){x, z});
    ch_tuple    *unequal = t_tuple(2, (ch_tensor *[]){ch_tensor_ref(x), y});

    t_ok(ch_strategy_run(NULL, f, equal, NULL));
    t_ok(ch_function_of_graph("again", ch_function_graph(f), &g));
    t_ok(ch_strategy_run(NULL, g, equal, NULL));
    t_refused(ch_strategy_run(NULL, g, unequal, NULL), CH_INVALID_ARGUMENT,
              "again: input 1 has 5 rows and input 0 4",
              "record the step with inputs that differ");
    t_ok(ch_strategy_run(NULL, f, unequal, NULL)); /* the step is recorded again */
    ch_tuple_unref(equal);
    ch_tuple_unref(unequal);
    ch_function_unref(f);
    ch_function_unref(g);
    (void)state;
}

static void repeat_often(ch_step *s, void *arg)
{
    (void)arg;
    bad_line = __LINE__ + 1;
    ch_step_out(s, "y", ch_tile(ch_step_in(s, 0), 2, (int64_t[]){1 << 22, 1 << 20}));
}

/* Whether the result is too large depends on the number of rows, which only the run has. */
static void an_error_of_sizes_that_only_a_run_knows_names_the_line(void **state)
{
    ch_function *f = t_function(repeat_often, NULL);
    ch_tuple    *in = rows_of(100, 3);
    char         line[64];

    t_refused(ch_strategy_run(NULL, f, in, NULL), CH_INVALID_ARGUMENT, "tile(f32(100, 3))",
              "2^48");
#if CH_HAVE_LIBDW
    snprintf(line, sizeof(line), "test_function.c:%d", bad_line);
    assert_non_null(strstr(ch_error_message(), line));
#endif
    ch_tuple_unref(in);
    ch_function_unref(f);
    (void)line, (void)state;
}

static void run_itself(ch_step *s, void *arg)
{
    ch_status rc = ch_strategy_run(NULL, *(ch_function **)arg, NULL, NULL);

    t_refused(rc, CH_FAILED_PRECONDITION, "being recorded", "a plain call of the other");
    ch_step_out(s, "x", ch_number(s, 1));
}

static void a_step_cannot_run_itself_while_it_is_recorded(void **state)
{
    ch_function *f = NULL;

    t_ok(ch_function_new("self", run_itself, &f, &f));
    t_ok(ch_strategy_run(NULL, f, NULL, NULL));
    ch_function_unref(f);
    (void)state;
}

/* ---- gradients ---- */

static void cube(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *y = ch_mul(x, ch_mul(x, x)), *d1, *d2, *d3, *d4;

    (void)arg;
    d1 = ch_gradient(y, x);
    d2 = ch_gradient(d1, x);
    d3 = ch_gradient(d2, x);
    d4 = ch_gradient(d3, x);
    ch_step_out(s, "d1", d1);
    ch_step_out(s, "d2", d2);
    ch_step_out(s, "d3", d3);
    ch_step_out(s, "d4", d4); /* d3 does not depend on x: zeros, never NULL */
}

static void gradients_can_be_differentiated_again(void **state)
{
    ch_function *f = t_function(cube, NULL);
    ch_tuple    *in = t_tuple(1, (ch_tensor *[]){t_f32(ch_shape_of(2), (float[]){2, -3})});
    ch_tuple    *out = NULL;
    const float  want[4][2] = {{12, 27}, {12, -18}, {6, 6}, {0, 0}};

    t_ok(ch_strategy_run(NULL, f, in, &out));
    for (int i = 0; i < 4; i++)
        assert_memory_equal(t_floats(out, i, 0), want[i], sizeof(want[i]));
    ch_tuple_unref(out);
    ch_tuple_unref(in);
    ch_function_unref(f);
    (void)state;
}

static void power(ch_step *s, void *arg)
{
    ch_node *a = ch_step_in(s, 0), *b = ch_step_in(s, 1), *y = ch_pow(a, b), *da;

    (void)arg;
    da = ch_gradient(y, a);
    ch_step_out(s, "da", da);
    ch_step_out(s, "dda", ch_gradient(da, a));
}

static void a_power_of_zero_has_a_slope(void **state)
{
    ch_function *f = t_function(power, NULL);
    ch_tuple    *out = NULL,
             *in = t_tuple(2, (ch_tensor *[]){t_f32(ch_shape_of(5), (float[]){0, 0, 0, 3, -2}),
                                              t_f32(ch_shape_of(5), (float[]){0, 1, 2, 0, 3})});
    const float da[] = {0, 1, 0, 0, 12}, dda[] = {0, 0, 2, 0, -12};

    t_ok(ch_strategy_run(NULL, f, in, &out));
    for (int i = 0; i < 5; i++) {
        assert_float_equal(t_floats(out, 0, 0)[i], da[i], 1e-6);
        assert_float_equal(t_floats(out, 1, 0)[i], dda[i], 1e-5);
    }
    ch_tuple_unref(out);
    ch_tuple_unref(in);
    ch_function_unref(f);
    (void)state;
}

/* ---- numbers ---- */

static void many_numbers(ch_step *s, void *arg)
{
    ch_node *sum = ch_step_in(s, 0);

    for (int i = 0; i < *(const int *)arg; i++)
        sum = ch_add(sum, ch_mul(ch_step_in(s, 0), ch_number(s, i)));
    ch_step_out(s, "sum", sum);
}

static double seconds_for(int n)
{
    ch_function    *f = t_function(many_numbers, &n);
    struct timespec a, b;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    run_rows(f, 2, 1);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    ch_function_unref(f);
    return (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
}

/* Merging equal constants must not take time that is quadratic in their number. */
static void planning_takes_a_time_in_proportion_to_the_numbers_in_a_step(void **state)
{
    double few = seconds_for(500), many = seconds_for(4000);

    if (many > 8 * 6 * few)
        fail_msg("500 numbers took %g s, 4000 took %g s", few, many);
    (void)state;
}

static void count_on(ch_step *s, void *arg)
{
    double by = *(const double *)arg;

    ch_step_out(s, "next", ch_add(ch_step_number(s), ch_number(s, by)));
}

static void number_beside_an_integer_must_be_whole(void **state)
{
    double       by = 2;
    ch_function *f = t_function(count_on, &by), *g = NULL;
    ch_tuple    *out = NULL;

    t_ok(ch_strategy_run(NULL, f, NULL, NULL));
    t_ok(ch_strategy_run(NULL, f, NULL, &out));
    assert_int_equal(*(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(out, 0), 0)), 3);
    by = 0.5;
    g = t_function(count_on, &by);
    t_refused(ch_strategy_run(NULL, g, NULL, NULL), CH_INVALID_ARGUMENT, "i64", "f64");
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_function_unref(g);
    (void)state;
}

/* ---- loops ---- */

static void scale_at_random(ch_step *s, void *arg, ch_node *const *h, ch_node *const *x,
                            ch_node **next, ch_node **y)
{
    (void)arg;
    next[0] = h[0];
    y[0] = ch_mul(x[0], ch_random_uniform(s, CH_F32, ch_shape_of(2), 1, 2, 0));
}

static void scan_at_random(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *h = ch_number(s, 0), *y = NULL;

    (void)arg;
    ch_scan(s, &(ch_scan_spec){.n_carry = 1, .n_x = 1, .n_y = 1}, scale_at_random, NULL, &h, &x,
            &h, &y);
    ch_step_out(s, "y", y);
    ch_step_out(s, "dx", ch_gradient(y, x));
}

static void scan_draws_new_numbers_each_iteration_and_its_gradient_the_same(void **state)
{
    ch_function *f = t_function(scan_at_random, NULL);
    ch_tensor   *ones = t_f32(ch_shape_of(5, 2), (float[]){1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
    ch_tuple    *in = t_tuple(1, &ones), *out = NULL;

    t_ok(ch_strategy_run(NULL, f, in, &out));
    assert_memory_equal(t_floats(out, 0, 0), t_floats(out, 1, 0), 10 * sizeof(float));
    for (int i = 0; i < 10; i++)
        for (int k = 0; k < i; k++)
            assert_true(t_floats(out, 0, 0)[i] != t_floats(out, 0, 0)[k]);
    ch_tuple_unref(out);
    ch_tuple_unref(in);
    ch_function_unref(f);
    (void)state;
}

/* ---- watched runs ---- */

typedef struct seen {
    int  n;
    char names[256];
} seen;

static void see(const char *node, int replica, int n, ch_tensor *const *out, void *arg)
{
    seen  *w = arg;
    size_t used = strlen(w->names);

    assert_int_equal(replica, 0);
    assert_true(n >= 1 && out[0] != NULL);
    w->n++;
    snprintf(w->names + used, sizeof(w->names) - used, "%s ", node);
}

static void mix(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *y;

    (void)arg;
    ch_step_enter(s, "mix");
    y = ch_exp(ch_mul(x, x));
    ch_step_leave(s);
    ch_step_out(s, "y", ch_add(y, ch_number(s, 1)));
}

static void watching_shows_every_node_and_changes_no_bit(void **state)
{
    ch_function *f = t_function(mix, NULL);
    ch_tuple    *in = rows_of(3, 5), *fast = NULL, *slow = NULL;
    seen         w = {0};

    t_ok(ch_strategy_run(NULL, f, in, &fast));
    ch_function_watch(f, see, &w);
    t_ok(ch_strategy_run(NULL, f, in, &slow));
    ch_function_watch(f, NULL, NULL);
    assert_string_equal(w.names, "mix/mul mix/exp cast add ");
    assert_memory_equal(t_floats(fast, 0, 0), t_floats(slow, 0, 0), 15 * sizeof(float));
    ch_tuple_unref(fast);
    ch_tuple_unref(slow);
    ch_tuple_unref(in);
    ch_function_unref(f);
    (void)state;
}

/* ---- printing ---- */

static void graph_print_writes_inputs_scopes_nodes_and_results(void **state)
{
    ch_function *f = t_function(mix, NULL);
    char         text[2048];

    run_rows(f, 3, 5);
    ch_graph_print(ch_function_graph(f), text, sizeof(text));
    assert_non_null(strstr(text, "step step(%0: f32(rows, 5))\n"));
    assert_non_null(strstr(text, "  # mix\n  %1 = mul %0 %0"));
    assert_non_null(strstr(text, "return y = %"));
    assert_int_equal(ch_graph_print(ch_function_graph(f), NULL, 0), strlen(text));
    ch_function_print_plan(f, text, sizeof(text));
    assert_non_null(strstr(text, "arena "));
    ch_function_unref(f);
    (void)state;
}

static void draw(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "x", ch_random_uniform(s, CH_F32, ch_shape_of(8), 0, 1, 3));
    ch_step_out(s, "number", ch_step_number(s));
}

/* Runs `f` and returns the number of the run; `x` gets its random numbers. */
static int64_t run_draw(ch_function *f, float x[8])
{
    ch_tuple *out = NULL;
    double    number = -1;

    t_ok(ch_strategy_run(NULL, f, NULL, &out));
    memcpy(x, ch_tensor_data(ch_value_at(ch_tuple_get(out, "x"), 0)), 8 * sizeof(float));
    t_ok(ch_tensor_item(ch_value_at(ch_tuple_get(out, "number"), 0), &number));
    ch_tuple_unref(out);
    return (int64_t)number;
}

static void function_draws_the_numbers_of_the_run_that_set_runs_names(void **state)
{
    enum { RUNS = 5, FROM = 3 };
    ch_function *first = NULL, *second = NULL;
    float        x[RUNS][8], again[8];

    t_ok(ch_function_new("draw", draw, NULL, &first));
    t_ok(ch_function_new("draw", draw, NULL, &second));
    assert_int_equal(ch_function_runs(first), 0);
    for (int i = 0; i < RUNS; i++)
        assert_int_equal(run_draw(first, x[i]), i);
    assert_int_equal(ch_function_runs(first), RUNS);
    assert_memory_not_equal(x[FROM], x[FROM + 1], sizeof(again));
    t_ok(ch_function_set_runs(second, FROM));
    for (int i = FROM; i < RUNS; i++) {
        assert_int_equal(run_draw(second, again), i);
        assert_memory_equal(again, x[i], sizeof(again));
    }
    t_refused(ch_function_set_runs(second, -1), CH_INVALID_ARGUMENT, "draw", "-1");
    t_refused(ch_function_set_runs(NULL, 1), CH_INVALID_ARGUMENT, "NULL", "function");
    assert_int_equal(ch_function_runs(second), RUNS);
    assert_int_equal(ch_function_runs(NULL), 0);
    ch_function_unref(first);
    ch_function_unref(second);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(function_draws_the_numbers_of_the_run_that_set_runs_names),
        cmocka_unit_test(a_step_is_recorded_once_for_all_numbers_of_rows),
        cmocka_unit_test(function_static_rows_may_be_set_while_the_function_records_and_runs),
        cmocka_unit_test(function_keeps_at_most_64_programs_and_warns_at_the_tenth),
        cmocka_unit_test(function_keeps_at_most_64_recordings_with_their_programs),
        cmocka_unit_test(inputs_are_found_by_name_in_whatever_order_they_come),
        cmocka_unit_test(an_error_names_op_shapes_scope_and_line),
        cmocka_unit_test(step_leave_closes_the_whole_scope_when_its_name_has_a_slash),
        cmocka_unit_test(step_in_rejects_a_missing_input),
        cmocka_unit_test(function_of_graph_names_both_inputs_of_unequal_rows),
        cmocka_unit_test(an_error_of_sizes_that_only_a_run_knows_names_the_line),
        cmocka_unit_test(a_step_cannot_run_itself_while_it_is_recorded),
        cmocka_unit_test(gradients_can_be_differentiated_again),
        cmocka_unit_test(a_power_of_zero_has_a_slope),
        cmocka_unit_test(planning_takes_a_time_in_proportion_to_the_numbers_in_a_step),
        cmocka_unit_test(number_beside_an_integer_must_be_whole),
        cmocka_unit_test(scan_draws_new_numbers_each_iteration_and_its_gradient_the_same),
        cmocka_unit_test(watching_shows_every_node_and_changes_no_bit),
        cmocka_unit_test(graph_print_writes_inputs_scopes_nodes_and_results),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

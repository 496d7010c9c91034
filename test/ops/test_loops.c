/* test/ops/test_loops.c -- the cost of a while follows its iterations, not its limit.
 *
 * The loops here have limits of a hundred million iterations and make about ten. The tests count
 * the iterations that run and the pages of the workspace that are resident. They compare values
 * and derivatives with closed forms.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <malloc.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cohort/cohort.h>
#include <cohort/ops.h>
#include <cohort/strategy.h>

#include "base/mem.h"
#include "tensor/device.h"

enum { N = 9 }; /* iterations: 1.5^9 is the first power above 30 */

static const int64_t large = 100000000;

/* ---- helpers ---- */

static int n_calls;

/* Counts a call and returns 1. */
static ch_status count_call(void *arg, int n_in, ch_tensor *const *in, int n_out,
                            ch_tensor *const *out)
{
    (void)arg, (void)n_in, (void)in, (void)n_out;
    n_calls++;
    *(float *)ch_tensor_data_mut(out[0]) = 1;
    return CH_OK;
}

static ch_node *is_below_30(ch_step *s, void *arg, ch_node *const *x)
{
    (void)arg;
    return ch_less(x[0], ch_number(s, 30));
}

/* Returns x * w, through a host call that each iteration makes, and makes again in the
 * gradient. */
static void multiply(ch_step *s, void *w, ch_node *const *x, ch_node **next)
{
    ch_node *now = ch_stop_gradient(x[0]), *one = NULL;

    ch_host_call(s,
                 &(ch_host_spec){.fn = count_call,
                                 .n_out = 1,
                                 .out = {{.dtype = CH_F32, .shape = ch_shape_of()}}},
                 1, &now, &one);
    next[0] = ch_mul(ch_mul(x[0], w), ch_stop_gradient(one));
}

static ch_node *loop(ch_step *s, int64_t limit, ch_while_body body, ch_node *x, ch_node *w)
{
    ch_node *y = NULL;

    ch_while(s, 1, limit, is_below_30, body, w, &x, &y);
    return y;
}

/* Runs a step whose inputs are x and w, scalars, and whose outputs are scalars too. */
static ch_status run(ch_function *f, float x, float w, int n, double *got)
{
    ch_tensor *t[2] = {NULL, NULL};
    ch_tuple  *in = NULL, *out = NULL;
    ch_status  rc;

    assert_int_equal(ch_tensor_copy_of(CH_F32, ch_shape_of(), &x, &t[0]), CH_OK);
    assert_int_equal(ch_tensor_copy_of(CH_F32, ch_shape_of(), &w, &t[1]), CH_OK);
    assert_int_equal(ch_tuple_of(2, t, &in), CH_OK);
    rc = ch_strategy_run(NULL, f, in, &out);
    for (int i = 0; i < n && rc == CH_OK; i++)
        got[i] = *(const float *)ch_tensor_data(ch_value_at(ch_tuple_at(out, i), 0));
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    ch_tuple_unref(in);
    ch_tuple_unref(out);
    return rc;
}

static void assert_about(double got, double want)
{
    if (!(fabs(got - want) <= 1e-4 * fabs(want)))
        fail_msg("got %.9g, want %.9g", got, want);
}

/* Returns the resident bytes of the workspace, and sets *all to its size. */
static size_t resident(size_t *all)
{
    ch_device     *d = ch_device_at(0);
    size_t         page = (size_t)sysconf(_SC_PAGESIZE), bytes = 0;
    ch_workspace   w;
    unsigned char *seen;
    ch_status      rc;

    ch__devices_hold(1, &d);
    rc = ch__device_workspace(d, 0, false, &w);
    ch__devices_release(1, &d);
    assert_int_equal(rc, CH_OK);
    *all = w.bytes;
    seen = ch__calloc(w.bytes / page + 1, 1);
    assert_non_null(seen);
    assert_int_equal(mincore(w.base, w.bytes / page * page, seen), 0);
    for (size_t i = 0; i < w.bytes / page; i++)
        bytes += (seen[i] & 1) * page;
    ch__free(seen);
    return bytes;
}

/* A buffer begins and ends within pages of up to 2 MiB, so a few dozen of these pages may be
 * resident. */
static void assert_workspace_is_mostly_untouched(void)
{
    size_t all, here = resident(&all);

    assert_true(all >= (size_t)large * sizeof(float));
    if (here > (size_t)64 << 20)
        fail_msg("%zu of %zu bytes are resident", here, all);
}

/* ---- forward ---- */

static void forward_step(ch_step *s, void *limit)
{
    ch_step_out(s, "y",
                loop(s, *(const int64_t *)limit, multiply, ch_step_in(s, 0), ch_step_in(s, 1)));
}

static void while_runs_without_memory_for_its_limit(void **state)
{
    ch_function *f = NULL;
    int64_t      limit = 30000000000000;
    double       y;

    n_calls = 0;
    assert_int_equal(ch_function_new("loop", forward_step, &limit, &f), CH_OK);
    assert_int_equal(run(f, 1, 1.5f, 1, &y), CH_OK);
    assert_about(y, pow(1.5, N));
    assert_int_equal(n_calls, N);
    assert_true(ch_device_bytes(ch_device_at(0)) < 1 << 20);
    ch_function_unref(f);
    (void)state;
}

/* ---- gradients ---- */

static void gradient_step(ch_step *s, void *limit)
{
    ch_node *x = ch_step_in(s, 0), *w = ch_step_in(s, 1);
    ch_node *y = loop(s, *(const int64_t *)limit, multiply, x, w);

    ch_step_out(s, "y", y);
    ch_step_out(s, "dx", ch_gradient(y, x));
    ch_step_out(s, "dw", ch_gradient(y, w));
}

static void while_gradient_makes_as_many_iterations_as_the_loop(void **state)
{
    ch_function *f = NULL;
    int64_t      limit = large;
    double       got[3];

    assert_int_equal(ch_function_new("loop", gradient_step, (void *)&limit, &f), CH_OK);
    for (int round = 0; round < 2; round++) { /* the second run finds the slices of the first */
        int n = round == 0 ? N : 4;           /* 2.5^4 is the first power above 30 */

        double w = round == 0 ? 1.5 : 2.5;

        n_calls = 0;
        assert_int_equal(run(f, 1, (float)w, 3, got), CH_OK);
        assert_about(got[0], pow(w, n));
        assert_about(got[1], pow(w, n));
        assert_about(got[2], n * pow(w, n - 1));
        /* Each call of ch_gradient makes its own backward loop. */
        assert_int_equal(n_calls, 3 * n);
        assert_workspace_is_mostly_untouched();
    }
    assert_int_equal(run(f, 31, 1.5f, 3, got), CH_OK); /* no iteration */
    assert_about(got[0], 31);
    assert_about(got[1], 1);
    assert_true(got[2] == 0);
    ch_function_unref(f);
    (void)state;
}

static void while_gradient_is_right_when_the_limit_ends_the_loop(void **state)
{
    ch_function *f = NULL;
    int64_t      limit = 3;
    double       got[3];

    assert_int_equal(ch_function_new("loop", gradient_step, &limit, &f), CH_OK);
    assert_int_equal(run(f, 1, 1.5f, 3, got), CH_OK);
    assert_about(got[0], pow(1.5, 3));
    assert_about(got[1], pow(1.5, 3));
    assert_about(got[2], 3 * pow(1.5, 2));
    ch_function_unref(f);
    (void)state;
}

static void multiply_plainly(ch_step *s, void *w, ch_node *const *x, ch_node **next)
{
    (void)s;
    next[0] = ch_mul(x[0], w);
}

static void second_gradient_step(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *w = ch_step_in(s, 1);
    ch_node *dw = ch_gradient(loop(s, large, multiply_plainly, x, w), w);

    (void)arg;
    ch_step_out(s, "dwdw", ch_gradient(dw, w));
    ch_step_out(s, "dwdx", ch_gradient(dw, x));
}

static void while_second_gradient_touches_no_more_than_its_iterations(void **state)
{
    ch_function *f = NULL;
    double       got[2];

    assert_int_equal(ch_function_new("loop", second_gradient_step, NULL, &f), CH_OK);
    assert_int_equal(run(f, 1, 1.5f, 2, got), CH_OK);
    assert_about(got[0], N * (N - 1) * pow(1.5, N - 2));
    assert_about(got[1], N * pow(1.5, N - 1));
    assert_workspace_is_mostly_untouched();
    ch_function_unref(f);
    (void)state;
}

/* Multiplies by random numbers in [1.2, 1.8). They differ in each iteration, and are the same
 * again in the gradient. */
static void multiply_randomly(ch_step *s, void *w, ch_node *const *x, ch_node **next)
{
    next[0] = ch_mul(ch_mul(x[0], w), ch_random_uniform(s, CH_F32, ch_shape_of(), 1.2, 1.8, 7));
}

static void random_step(ch_step *s, void *limit)
{
    ch_node *x = ch_step_in(s, 0), *w = ch_step_in(s, 1);
    ch_node *y = loop(s, *(const int64_t *)limit, multiply_randomly, x, w);

    ch_step_out(s, "y", y);
    ch_step_out(s, "dx", ch_gradient(y, x));
}

static void while_gradient_draws_the_numbers_of_each_iteration_again(void **state)
{
    int64_t limits[] = {100, large};
    double  got[2][2];

    for (int i = 0; i < 2; i++) {
        ch_function *f = NULL;

        assert_int_equal(ch_function_new("loop", random_step, &limits[i], &f), CH_OK);
        assert_int_equal(run(f, 1, 1, 2, got[i]), CH_OK);
        assert_about(got[i][1], got[i][0]); /* y is x times the numbers, and x is 1 */
        ch_function_unref(f);
    }
    assert_memory_equal(got[0], got[1], sizeof(got[0]));
    (void)state;
}

/* A while in the body of a scan: its trace is in the scratch of the scan's gradient. */
static void scan_a_loop(ch_step *s, void *w, ch_node *const *carry, ch_node *const *x,
                        ch_node **next, ch_node **y)
{
    (void)x, (void)y;
    next[0] = ch_mul(loop(s, large, multiply_plainly, carry[0], w), ch_number(s, 0.01));
}

static void nested_step(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *w = ch_step_in(s, 1), *y = NULL;

    (void)arg;
    ch_scan(s, &(ch_scan_spec){.n_carry = 1, .length = 2}, scan_a_loop, w, &x, NULL, &y, NULL);
    ch_step_out(s, "y", y);
    ch_step_out(s, "dx", ch_gradient(y, x));
}

static void while_in_a_scan_touches_no_more_than_its_iterations(void **state)
{
    ch_function *f = NULL;
    double       got[2], want = 1;

    for (int i = 0; i < 2; i++) {
        while (want < 30)
            want *= 1.5;
        want *= 0.01;
    }
    assert_int_equal(ch_function_new("nested", nested_step, NULL, &f), CH_OK);
    assert_int_equal(run(f, 1, 1.5f, 2, got), CH_OK);
    assert_about(got[0], want);
    assert_about(got[1], want);
    assert_workspace_is_mostly_untouched();
    ch_function_unref(f);
    (void)state;
}

/* ---- refusals ---- */

static void while_gradient_is_refused_when_its_limit_needs_too_much_memory(void **state)
{
    ch_function *f = NULL;
    int64_t      limit = 30000000000000;
    double       got[3];

    assert_int_equal(ch_function_new("loop", gradient_step, &limit, &f), CH_OK);
    assert_int_equal(run(f, 1, 1.5f, 3, got), CH_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(ch_error_message(), "while: limit 30000000000000"));
    assert_non_null(strstr(ch_error_message(), "needs 120000000000000 bytes"));
    assert_non_null(strstr(ch_error_message(), "lower the limit"));
    ch_function_unref(f);
    (void)state;
}

/* ---- a state whose number of rows is known only in the run ---- */

typedef struct rows_arg {
    int64_t limit;
    bool    has_gradient;
} rows_arg;

static ch_node *all_below_30(ch_step *s, void *arg, ch_node *const *x)
{
    (void)arg;
    return ch_less(ch_mean_all(x[0]), ch_number(s, 30));
}

static void rows_step(ch_step *s, void *arg)
{
    const rows_arg *r = arg;
    ch_node        *x = ch_step_in(s, 0), *w = ch_number(s, 1.5), *y = NULL;

    ch_while(s, 1, r->limit, all_below_30, multiply_plainly, w, &x, &y);
    y = ch_mean_all(y);
    ch_step_out(s, "y", y);
    if (r->has_gradient)
        ch_step_out(s, "dx", ch_sum_all(ch_gradient(y, x)));
}

/* Runs f, a rows_step, on `rows` ones. */
static ch_status run_rows(ch_function *f, int64_t rows, int n, double *got)
{
    ch_tensor *x = NULL;
    ch_tuple  *in = NULL, *out = NULL;
    ch_status  rc;

    assert_int_equal(ch_tensor_new(CH_F32, ch_shape_of(rows), &x), CH_OK);
    for (int64_t i = 0; i < rows; i++)
        ((float *)ch_tensor_data_mut(x))[i] = 1;
    assert_int_equal(ch_tuple_of(1, &x, &in), CH_OK);
    rc = ch_strategy_run(NULL, f, in, &out);
    for (int i = 0; i < n && rc == CH_OK; i++)
        got[i] = *(const float *)ch_tensor_data(ch_value_at(ch_tuple_at(out, i), 0));
    ch_tensor_unref(x);
    ch_tuple_unref(in);
    ch_tuple_unref(out);
    return rc;
}

static void assert_refused(int64_t limit, int64_t rows, const char *limit_text,
                           const char *bytes_text)
{
    rows_arg     arg = {limit, true};
    ch_function *f = NULL;

    assert_int_equal(ch_function_new("rows", rows_step, &arg, &f), CH_OK);
    assert_int_equal(run_rows(f, rows, 0, NULL), CH_RESOURCE_EXHAUSTED);
    if (strstr(ch_error_message(), limit_text) == NULL ||
        strstr(ch_error_message(), bytes_text) == NULL ||
        strstr(ch_error_message(), "lower the limit or use a smaller state") == NULL)
        fail_msg("%s", ch_error_message());
    ch_function_unref(f);
}

static void while_gradient_is_refused_in_words_when_the_run_says_the_size(void **state)
{
    (void)state;
    assert_refused(25000000, 1000000, "while: limit 25000000:", "needs 100000000000000 bytes");
    assert_refused(100000000, 1000000,
                   "while: limit 100000000:", "needs 400000000000000 bytes");
}

static void while_gradient_is_refused_in_words_when_no_number_holds_its_bytes(void **state)
{
    (void)state;
    assert_refused(INT64_MAX, 3, "while: limit 9223372036854775807:", "needs over ");
}

static void while_runs_with_any_limit_when_it_has_no_gradient(void **state)
{
    const int64_t limits[] = {100000000, INT64_MAX / 4, INT64_MAX};

    (void)state;
    for (int i = 0; i < 3; i++) {
        rows_arg     arg = {limits[i], false};
        ch_function *f = NULL;
        double       y;

        assert_int_equal(ch_function_new("rows", rows_step, &arg, &f), CH_OK);
        assert_int_equal(run_rows(f, 1000000, 1, &y), CH_OK);
        assert_about(y, pow(1.5, N));
        ch_function_unref(f);
    }
}

static void while_gradient_runs_on_few_rows_after_too_many(void **state)
{
    const int64_t rows[] = {1000000, 10, 0, 1000000, 100};
    rows_arg      arg = {25000000, true};
    ch_function  *f = NULL;
    double        got[2];

    (void)state;
    assert_int_equal(ch_function_new("rows", rows_step, &arg, &f), CH_OK);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(run_rows(f, rows[i], 2, got),
                         rows[i] == 1000000 ? CH_RESOURCE_EXHAUSTED : CH_OK);
        if (rows[i] == 10 || rows[i] == 100)
            assert_about(got[1], pow(1.5, N));
    }
    ch_function_unref(f);
}

static int n_traces;

/* The trace is the only value of 20 numbers. */
static void check_trace(const char *node, int replica, int n, ch_tensor *const *out, void *arg)
{
    (void)node, (void)replica, (void)arg;
    for (int i = 0; i < n; i++) {
        const float *v = ch_tensor_data(out[i]);

        if (ch_tensor_dtype(out[i]) != CH_F32 || ch_tensor_shape(out[i]).rank != 1)
            continue;
        n_traces++;
        for (int t = 0; t < 20; t++)
            if (t >= N)
                assert_true(v[t] == 0);
    }
}

static void while_shows_zeros_after_its_iterations_when_watched(void **state)
{
    ch_function *f = NULL;
    int64_t      limit = 20;
    double       got[3];

    n_traces = 0;
    assert_int_equal(ch_function_new("loop", gradient_step, &limit, &f), CH_OK);
    ch_function_watch(f, check_trace, NULL);
    assert_int_equal(run(f, 1, 1.5f, 3, got), CH_OK);
    assert_true(n_traces > 0);
    assert_about(got[1], pow(1.5, N));
    ch_function_unref(f);
    (void)state;
}

/* ---- all of them ---- */

/* A workspace never shrinks, so each test begins with a new device. */
static int new_device(void **state)
{
    (void)state;
    ch__devices_reset();
    return ch_devices_configure(&(ch_devices_options){.spec = "CPU=1", .threads = 1}) != CH_OK;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(while_runs_without_memory_for_its_limit, new_device),
        cmocka_unit_test_setup(while_gradient_makes_as_many_iterations_as_the_loop, new_device),
        cmocka_unit_test_setup(while_gradient_is_right_when_the_limit_ends_the_loop,
                               new_device),
        cmocka_unit_test_setup(while_second_gradient_touches_no_more_than_its_iterations,
                               new_device),
        cmocka_unit_test_setup(while_gradient_draws_the_numbers_of_each_iteration_again,
                               new_device),
        cmocka_unit_test_setup(while_in_a_scan_touches_no_more_than_its_iterations, new_device),
        cmocka_unit_test_setup(while_gradient_is_refused_when_its_limit_needs_too_much_memory,
                               new_device),
        cmocka_unit_test_setup(while_gradient_is_refused_in_words_when_the_run_says_the_size,
                               new_device),
        cmocka_unit_test_setup(
            while_gradient_is_refused_in_words_when_no_number_holds_its_bytes, new_device),
        cmocka_unit_test_setup(while_runs_with_any_limit_when_it_has_no_gradient, new_device),
        cmocka_unit_test_setup(while_gradient_runs_on_few_rows_after_too_many, new_device),
        cmocka_unit_test_setup(while_shows_zeros_after_its_iterations_when_watched, new_device),
    };

    mallopt(M_PERTURB, 0); /* with MALLOC_PERTURB_, malloc itself would touch every page */
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test/ops/test_effects.c -- effects of ops outside of the graph: log lines, host calls, failed
 * runs.
 *
 * The tests record the lines of the log and the order of host calls. A check that fails must
 * fail the run and change no variable.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cohort/cohort.h>
#include <cohort/ops.h>
#include <cohort/strategy.h>

#include "base/mem.h"

/* ---- helpers ---- */

static char seen[4096]; /* the lines of the log, each with its code */

static void sink(const ch_log_record *r, void *arg)
{
    size_t used = strlen(seen);

    (void)arg;
    snprintf(seen + used, sizeof(seen) - used, "%s|%s\n", r->code, r->text);
}

static int listen_to_log(void **state)
{
    (void)state;
    seen[0] = '\0';
    ch_log_set_sink(sink, NULL, CH_LOG_INFO);
    return 0;
}

static int close_log(void **state)
{
    (void)state;
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    return 0;
}

static ch_tuple *rows(int n, const float *v, int cols)
{
    ch_tensor *t = NULL;
    ch_tuple  *in = NULL;

    assert_int_equal(ch_tensor_copy_of(CH_F32, ch_shape_of(n, cols), v, &t), CH_OK);
    assert_int_equal(ch_tuple_of(1, &t, &in), CH_OK);
    ch_tensor_unref(t);
    return in;
}

static void assert_says(const char *part)
{
    if (strstr(ch_error_message(), part) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", ch_error_message(), part);
}

/* ---- print ---- */

static void print_step(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0);

    (void)arg;
    ch_print(x, "x");
    ch_print(ch_rows(x), "rows");
    ch_print(ch_step_number(s), NULL);
    ch_step_out(s, "x", x);
}

static void print_writes_one_line_each_in_recording_order(void **state)
{
    ch_function *f = NULL;
    ch_tuple    *in = rows(2, (float[]){1, 2, 3, 4.5f}, 2);

    assert_int_equal(ch_function_new("print", print_step, NULL, &f), CH_OK);
    assert_int_equal(ch_strategy_run(NULL, f, in, NULL), CH_OK);
    assert_string_equal(seen, "print|x: tensor(f32 (2, 2) [[1 2]  [3 4.5]])\n"
                              "print|rows: tensor(i64 () 2)\n"
                              "print|tensor(i64 () 0)\n");
    seen[0] = '\0';
    assert_int_equal(ch_strategy_run(NULL, f, in, NULL), CH_OK);
    assert_non_null(strstr(seen, "print|tensor(i64 () 1)\n"));
    ch_function_unref(f);
    ch_tuple_unref(in);
    (void)state;
}

static void print_allocates_nothing_when_nothing_is_logged(void **state)
{
    ch_function *f = NULL;
    ch_tuple    *in = rows(2, (float[]){1, 2, 3, 4.5f}, 2);
    int64_t      before;

    assert_int_equal(ch_function_new("print", print_step, NULL, &f), CH_OK);
    assert_int_equal(ch_strategy_run(NULL, f, in, NULL), CH_OK);
    before = ch__mem_allocs();
    assert_int_equal(ch_strategy_run(NULL, f, in, NULL), CH_OK);
    assert_int_equal(ch__mem_allocs(), before);
    ch_function_unref(f);
    ch_tuple_unref(in);
    (void)state;
}

static void print_names_the_replica(void **state)
{
    ch_strategy *st = NULL;
    ch_function *f = NULL;
    ch_tuple    *in = rows(1, (float[]){1, 2}, 2);

    assert_int_equal(ch_strategy_mirrored(NULL, &st), CH_OK);
    assert_int_equal(ch_function_new("print", print_step, NULL, &f), CH_OK);
    assert_int_equal(ch_strategy_run(st, f, in, NULL), CH_OK);
    assert_non_null(strstr(seen, "print|replica 0, x: tensor(f32 (1, 2) [[1 2]])\n"));
    assert_non_null(strstr(seen, "print|replica 1, x: tensor(f32 (1, 2) [[1 2]])\n"));
    ch_function_unref(f);
    ch_tuple_unref(in);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- check_numerics ---- */

/* A chain of three values with a check behind a value; a variable is written last. */
typedef struct chain {
    ch_var *v;
    int     position;
    bool    unused; /* the result of the check is not used */
} chain;

static void chain_step(ch_step *s, void *arg)
{
    chain   *c = arg;
    ch_node *x = ch_step_in(s, 0);

    ch_step_enter(s, "tower");
    for (int i = 0; i < 3; i++) {
        if (i == c->position && c->unused)
            (void)ch_check_numerics(x, "tower's value");
        else if (i == c->position)
            x = ch_check_numerics(x, "tower's value");
        x = ch_identity(x);
    }
    ch_step_leave(s);
    ch_var_assign(s, c->v, ch_reshape(x, ch_shape_of(2)));
    ch_step_out(s, "x", x);
}

static void check_numerics_fails_the_run_and_changes_no_variable(void **state)
{
    ch_tensor *first = NULL, *now = NULL;
    ch_tuple  *good = rows(1, (float[]){5, 6}, 2), *bad = rows(1, (float[]){5, NAN}, 2);

    assert_int_equal(ch_tensor_copy_of(CH_F32, ch_shape_of(2), (float[]){1, 2}, &first), CH_OK);
    for (int i = 0; i < 6; i++) {
        chain        c = {.position = i % 3, .unused = i >= 3};
        ch_function *f = NULL;
        double       x;

        assert_int_equal(ch_var_new(NULL, &(ch_var_spec){.initial = first}, &c.v), CH_OK);
        assert_int_equal(ch_function_new("chain", chain_step, &c, &f), CH_OK);
        assert_int_equal(ch_strategy_run(NULL, f, bad, NULL), CH_INVALID_ARGUMENT);
        assert_says("tower's value: NaN at index (0, 1), in tower");
        assert_int_equal(ch_var_get(c.v, &now), CH_OK);
        assert_int_equal(ch_tensor_get(now, (int64_t[]){0}, &x), CH_OK);
        assert_true(x == 1);
        ch_tensor_unref(now);
        assert_int_equal(ch_strategy_run(NULL, f, good, NULL), CH_OK);
        assert_int_equal(ch_var_get(c.v, &now), CH_OK);
        assert_int_equal(ch_tensor_get(now, (int64_t[]){0}, &x), CH_OK);
        assert_true(x == 5);
        ch_tensor_unref(now);
        ch_function_unref(f);
        ch_var_unref(c.v);
    }
    ch_tensor_unref(first);
    ch_tuple_unref(good);
    ch_tuple_unref(bad);
    (void)state;
}

/* ---- host calls ---- */

static int calls[8], n_calls;

static ch_status note(void *arg, int n_in, ch_tensor *const *in, int n_out,
                      ch_tensor *const *out)
{
    (void)n_in, (void)in, (void)n_out, (void)out;
    calls[n_calls++ % 8] = *(const int *)arg;
    return CH_OK;
}

static int number[] = {0, 1, 2};

static void notes_step(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0);

    (void)arg;
    for (int i = 0; i < 3; i++)
        ch_host_call(s, &(ch_host_spec){.fn = note, .arg = &number[i]}, i == 1 ? 1 : 0, &x,
                     NULL);
    ch_step_out(s, NULL, x);
}

static void host_calls_keep_their_order(void **state)
{
    ch_function *f = NULL;
    ch_tuple    *in = rows(1, (float[]){1, 2}, 2);

    n_calls = 0;
    assert_int_equal(ch_function_new("notes", notes_step, NULL, &f), CH_OK);
    assert_int_equal(ch_strategy_run(NULL, f, in, NULL), CH_OK);
    assert_int_equal(ch_strategy_run(NULL, f, in, NULL), CH_OK);
    assert_int_equal(n_calls, 6);
    assert_memory_equal(calls, ((int[]){0, 1, 2, 0, 1, 2}), 6 * sizeof(int));
    ch_function_unref(f);
    ch_tuple_unref(in);
    (void)state;
}

static void a_step_with_a_host_call_cannot_be_encoded(void **state)
{
    ch_function *f = NULL;
    ch_tuple    *in = rows(1, (float[]){1, 2}, 2);
    void        *bytes = NULL;
    size_t       n = 0;

    assert_int_equal(ch_function_new("notes", notes_step, NULL, &f), CH_OK);
    assert_int_equal(ch_strategy_run(NULL, f, in, NULL), CH_OK);
    assert_int_equal(ch_graph_encode(ch_function_graph(f), &bytes, &n), CH_UNIMPLEMENTED);
    assert_says("host_call");
    ch_function_unref(f);
    ch_tuple_unref(in);
    (void)state;
}

static int two_devices(void **state)
{
    (void)state;
    return ch_devices_configure(&(ch_devices_options){.spec = "CPU=2", .threads = 1}) != CH_OK;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(print_writes_one_line_each_in_recording_order,
                                        listen_to_log, close_log),
        cmocka_unit_test(print_allocates_nothing_when_nothing_is_logged),
        cmocka_unit_test_setup_teardown(print_names_the_replica, listen_to_log, close_log),
        cmocka_unit_test(check_numerics_fails_the_run_and_changes_no_variable),
        cmocka_unit_test(host_calls_keep_their_order),
        cmocka_unit_test(a_step_with_a_host_call_cannot_be_encoded),
    };

    return cmocka_run_group_tests(tests, two_devices, NULL);
}

/* test/strategy/test_host.c -- process-wide settings of the host program that the library must
 * not change.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "help.h"

static void multiply_and_convolve(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *w = ch_step_in(s, 1);

    (void)arg;
    ch_step_out(s, "product", ch_matmul(x, true, x, false));
    ch_step_out(s, "image", ch_conv2d(ch_reshape(x, ch_shape_of(-1, 8, 8, 4)), w, NULL));
}

static ch_tuple *inputs(void)
{
    return t_tuple(2, (ch_tensor *[]){t_noise(ch_shape_of(32, 256), 1),
                                      t_noise(ch_shape_of(3, 3, 4, 8), 2)});
}

/* The number of OpenMP threads, if the process has OpenMP. The library calls no other library
 * with such a setting. */
static void the_hosts_settings_of_openmp_stay_as_they_were(void **state)
{
    int (*get)(void) = NULL;
    void (*set)(int) = NULL;
    void        *get_at = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
    void        *set_at = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    ch_function *f = t_function(multiply_and_convolve, NULL);
    ch_tuple    *in = inputs();

    if (get_at == NULL || set_at == NULL)
        skip();
    memcpy(&get, &get_at, sizeof(get));
    memcpy(&set, &set_at, sizeof(set));
    set(3);
    for (int i = 0; i < 3; i++)
        t_ok(ch_strategy_run(NULL, f, in, NULL));
    assert_int_equal(get(), 3);
    ch_tuple_unref(in);
    ch_function_unref(f);
    (void)state;
}

static ch_status run_another(void *arg, int n_in, ch_tensor *const *in, int n_out,
                             ch_tensor *const *out)
{
    (void)n_in, (void)in, (void)n_out, (void)out;
    return ch_strategy_run(NULL, arg, NULL, NULL);
}

static void nothing(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_number(s, 1));
}

static void call_out(ch_step *s, void *arg)
{
    ch_node *x = ch_number(s, 1), *y = NULL;

    ch_host_call(s,
                 &(ch_host_spec){.name = "another",
                                 .fn = run_another,
                                 .arg = arg,
                                 .n_out = 1,
                                 .out = {{.dtype = CH_F32, .shape = ch_shape_scalar()}}},
                 1, &x, &y);
    ch_step_out(s, NULL, y);
}

static void a_host_function_that_runs_a_step_gets_an_error_not_a_deadlock(void **state)
{
    ch_function *inner = t_function(nothing, NULL), *outer = t_function(call_out, inner);

    t_refused(ch_strategy_run(NULL, outer, NULL, NULL), CH_FAILED_PRECONDITION,
              "a step is running on this thread", "another");
    ch_function_unref(outer);
    ch_function_unref(inner);
    (void)state;
}

static void forked_child_gets_an_error_and_its_parent_goes_on(void **state)
{
    ch_strategy *st = NULL;
    ch_function *f = t_function(nothing, NULL);
    int          status = 0;
    pid_t        child;

    t_ok(ch_strategy_mirrored(NULL, &st));
    t_ok(ch_strategy_run(st, f, NULL, NULL));
    child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(ch_strategy_run(st, f, NULL, NULL) == CH_FAILED_PRECONDITION &&
                      strstr(ch_error_message(), "fork") != NULL
                  ? 0
                  : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    t_ok(ch_strategy_run(st, f, NULL, NULL));
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_hosts_settings_of_openmp_stay_as_they_were),
        cmocka_unit_test(a_host_function_that_runs_a_step_gets_an_error_not_a_deadlock),
        cmocka_unit_test(forked_child_gets_an_error_and_its_parent_goes_on),
    };

    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "CPU=2"}));
    return cmocka_run_group_tests(tests, NULL, NULL);
}

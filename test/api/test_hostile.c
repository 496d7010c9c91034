/* test/api/test_hostile.c -- no public function crashes or hangs, whatever its arguments are.
 *
 * tools/make-hostile-calls writes the calls from the headers. Each function is called with usual
 * arguments, with each hostile value of each argument in turn, and with the last hostile value of
 * all arguments at once. Each call is made in a process of its own, so that a crash is
 * attributed and no call sees what another one left behind.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hostile.h"

struct hostile hostile;

static const hostile_function *function;
static const int              *picked;

static void record(ch_step *s, void *arg)
{
    (void)arg;
    hostile.step = s;
    hostile.node = ch_step_in(s, 0);
    function->call(picked);
}

static void as_it_is(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "y", ch_step_in(s, 0));
}

/* Makes the usual values; what cannot be made stays NULL, which is a value too. */
static void make_objects(void)
{
    static const float x[] = {1, 2};
    ch_status          rc = ch_tensor_copy_of(CH_F32, ch_shape_of(2), x, &hostile.tensor);

    if (rc == CH_OK)
        rc = ch_tuple_of(1, &hostile.tensor, &hostile.tuple);
    hostile.value = ch_tuple_at(hostile.tuple, 0);
    if (rc == CH_OK)
        rc = ch_strategy_one_device("CPU:0", &hostile.strategy);
    if (rc == CH_OK)
        rc = ch_var_new(hostile.strategy, &(ch_var_spec){.name = "w", .shape = ch_shape_of(2)},
                        &hostile.var);
    if (rc == CH_OK)
        rc = ch_function_new("as_it_is", as_it_is, NULL, &hostile.function);
    hostile.device = ch_device_at(0);
    hostile.layer = ch_layer_dense(2, NULL);
    if (rc != CH_OK)
        fprintf(stderr, "%s\n", ch_error_message());
}

static void call_in_step(void)
{
    ch_function *f = NULL;

    if (ch_function_new("hostile", record, NULL, &f) == CH_OK)
        (void)!ch_strategy_run(hostile.strategy, f, hostile.tuple, NULL);
}

/* Makes the call in a new process. Returns its exit status, as wait does. */
static int call(const hostile_function *f, const int *pick)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    pid_t            child = fork();
    int              status = 0;

    assert_true(child >= 0);
    if (child == 0) {
        if (freopen("/dev/null", "w", stdout) == NULL ||
            freopen("/dev/null", "w", stderr) == NULL)
            _exit(2);
        for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
            signal(faults[i], SIG_DFL); /* cmocka would go on after them */
        alarm(20);                      /* a call that hangs is a fault too */
        make_objects();
        function = f;
        picked = pick;
        if (f->in_step)
            call_in_step();
        else
            f->call(pick);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static int report(const hostile_function *f, const int *pick, const char *what)
{
    int status = call(f, pick);

    if (status == 0)
        return 0;
    fprintf(stderr, "%s: signal %d with %s, values", f->name,
            WIFSIGNALED(status) ? WTERMSIG(status) : 0, what);
    for (int i = 0; i < f->n; i++)
        fprintf(stderr, " %d", pick[i]);
    fprintf(stderr, "\n");
    return 1;
}

static int count_faults(const hostile_function *f)
{
    int pick[HOSTILE_ARGUMENTS] = {0}, faults = report(f, pick, "usual arguments");

    for (int i = 0; i < f->n; i++) {
        for (pick[i] = 1; pick[i] < f->values[i]; pick[i]++)
            faults += report(f, pick, "one hostile argument");
        pick[i] = 0;
    }
    for (int i = 0; i < f->n; i++)
        pick[i] = f->values[i] - 1;
    return faults + report(f, pick, "hostile arguments");
}

static void public_functions_neither_crash_nor_hang_when_arguments_are_hostile(void **state)
{
    char dir[] = "/tmp/hostile-XXXXXX";
    int  faults = 0;

    assert_non_null(mkdtemp(dir)); /* calls that write files do so here */
    assert_int_equal(chdir(dir), 0);
    for (const hostile_function *f = hostile_functions; f->name != NULL; f++)
        faults += count_faults(f);
    assert_int_equal(faults, 0);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(public_functions_neither_crash_nor_hang_when_arguments_are_hostile),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test/fit/test_interrupt.c -- Ctrl-C, SIGTERM and SIGUSR1, sent once and twice.
 *
 * Signal handlers belong to the process, so each test runs in a child process and checks how
 * the child ends.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/terminal.h"
#include "base/thread.h"
#include "fit/interrupt.h"

/* Runs a child. Returns its exit code, or 1000 plus the number of the signal that ended it. */
static int outcome(int (*child)(void))
{
    pid_t id = fork();
    int   status = 0;

    if (id == 0) {
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        alarm(20);
        _exit(child());
    }
    assert_true(id > 0 && waitpid(id, &status, 0) == id);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void press(void)
{
    kill(getpid(), SIGINT);
}

static int press_once(void)
{
    ch__interrupt_catch(CH_INTERRUPT_STOP);
    if (ch__interrupted())
        return 1;
    press();
    return ch__interrupted() ? 0 : 2;
}

static int press_twice(void)
{
    ch__interrupt_catch(CH_INTERRUPT_STOP);
    press();
    press();
    return 3;
}

static int press_after_release(void)
{
    ch__interrupt_catch(CH_INTERRUPT_STOP);
    ch__interrupt_release(CH_INTERRUPT_STOP);
    press();
    return 3;
}

static void interrupt_once_sets_a_flag_and_twice_ends_the_process(void **state)
{
    assert_int_equal(outcome(press_once), 0);
    assert_int_equal(outcome(press_twice), 1000 + SIGINT);
    assert_int_equal(outcome(press_after_release), 1000 + SIGINT);
    (void)state;
}

/* An inner training that was stopped stops the outer training too; a later training is not
 * affected. */
static int nest(void)
{
    ch__interrupt_catch(CH_INTERRUPT_STOP);
    ch__interrupt_catch(CH_INTERRUPT_STOP);
    press();
    ch__interrupt_release(CH_INTERRUPT_STOP);
    if (!ch__interrupted())
        return 1;
    ch__interrupt_release(CH_INTERRUPT_STOP);
    if (ch__interrupted())
        return 2;
    ch__interrupt_catch(CH_INTERRUPT_STOP);
    if (ch__interrupted())
        return 3;
    press();
    return ch__interrupted() ? 0 : 4;
}

static void interrupt_handlers_nest(void **state)
{
    assert_int_equal(outcome(nest), 0);
    (void)state;
}

static int        live_fd;
static atomic_int n_own;

static void own_handler(int sig)
{
    (void)sig;
    atomic_fetch_add(&n_own, 1);
}

static int come_back(void)
{
    signal(SIGINT, own_handler);
    ch__interrupt_catch(CH_INTERRUPT_STOP);
    press();
    if (atomic_load(&n_own) != 0)
        return 1;
    ch__interrupt_release(CH_INTERRUPT_STOP);
    press();
    return atomic_load(&n_own) == 1 ? 0 : 2;
}

/* The program has installed another handler meanwhile: that handler stays. */
static int keep_a_newer(void)
{
    ch__interrupt_catch(CH_INTERRUPT_STOP);
    signal(SIGINT, own_handler);
    ch__interrupt_release(CH_INTERRUPT_STOP);
    press();
    return atomic_load(&n_own) == 1 ? 0 : 2;
}

static int stay_ignored(void)
{
    signal(SIGINT, SIG_IGN);
    ch__interrupt_catch(CH_INTERRUPT_STOP);
    press();
    press();
    return ch__interrupted() ? 1 : 0;
}

static void interrupt_release_restores_the_handler_of_the_program(void **state)
{
    assert_int_equal(outcome(come_back), 0);
    assert_int_equal(outcome(keep_a_newer), 0);
    assert_int_equal(outcome(stay_ignored), 0);
    (void)state;
}

/* A blocking system call continues after the signal, and returns its data. */
static int read_on(void)
{
    int   ends[2];
    char  byte = 0;
    pid_t id;

    if (pipe(ends) != 0)
        return 1;
    ch__interrupt_catch(CH_INTERRUPT_STOP);
    id = fork();
    if (id == 0) {
        kill(getppid(), SIGINT);
        _exit(write(ends[1], "x", 1) == 1 ? 0 : 1);
    }
    if (read(ends[0], &byte, 1) != 1 || byte != 'x')
        return 2;
    waitpid(id, NULL, 0);
    return ch__interrupted() ? 0 : 3;
}

static void interrupt_does_not_break_system_calls(void **state)
{
    assert_int_equal(outcome(read_on), 0);
    (void)state;
}

/* Each thread catches the signal and polls the flag, as a training does. */
static void *train(void *arg)
{
    atomic_int *ready = arg;

    ch__interrupt_catch(CH_INTERRUPT_STOP);
    atomic_fetch_add(ready, 1);
    while (!ch__interrupted())
        ch__relax();
    atomic_fetch_sub(ready, 1);
    while (atomic_load(ready) > 0) /* the last thread to release clears the flag */
        ch__relax();
    ch__interrupt_release(CH_INTERRUPT_STOP);
    return NULL;
}

static int stop_threads(void)
{
    pthread_t  id[4];
    atomic_int ready = 0;

    for (int i = 0; i < 4; i++)
        if (pthread_create(&id[i], NULL, train, &ready) != 0)
            return 1;
    while (atomic_load(&ready) < 4)
        ch__relax();
    press();
    for (int i = 0; i < 4; i++)
        pthread_join(id[i], NULL);
    if (ch__interrupted())
        return 2;
    press();
    return 3;
}

static void interrupt_stops_the_trainings_of_all_threads(void **state)
{
    assert_int_equal(outcome(stop_threads), 1000 + SIGINT);
    (void)state;
}

/* The cursor leaves the progress line, so that the shell's prompt is below it. */
static int leave_the_line(void)
{
    ch__interrupt_catch(CH_INTERRUPT_STOP);
    if (!ch__live_set(live_fd, true))
        return 1;
    ch__live_draw("bar", 3, 80);
    press();
    press();
    return 3;
}

static void interrupt_that_ends_the_process_ends_the_live_line(void **state)
{
    char text[64] = "";
    int  ends[2];

    assert_int_equal(pipe(ends), 0);
    live_fd = ends[1];
    assert_int_equal(outcome(leave_the_line), 1000 + SIGINT);
    assert_true(read(ends[0], text, sizeof(text) - 1) > 0);
    assert_string_equal(text, "\r\033[J\033[?7lbar\033[?7h\r\n");
    close(ends[0]);
    close(ends[1]);
    (void)state;
}

static int keep_errno(void)
{
    ch__interrupt_catch(CH_INTERRUPT_STOP);
    errno = 77;
    press();
    return errno == 77 ? 0 : 1;
}

static void interrupt_handler_keeps_errno(void **state)
{
    assert_int_equal(outcome(keep_errno), 0);
    (void)state;
}

/* ---- SIGTERM and SIGUSR1 ---- */

static int terminate_once(void)
{
    int64_t before = ch__now_ns();

    ch__interrupt_catch(CH_INTERRUPT_TERMINATE);
    if (ch__interrupt_ns(CH_INTERRUPT_TERMINATE) != 0)
        return 1;
    kill(getpid(), SIGTERM);
    if (ch__interrupts(CH_INTERRUPT_TERMINATE) != 1 || ch__interrupted())
        return 2;
    return ch__interrupt_ns(CH_INTERRUPT_TERMINATE) >= before ? 0 : 3;
}

static int terminate_twice(void)
{
    ch__interrupt_catch(CH_INTERRUPT_TERMINATE);
    kill(getpid(), SIGTERM);
    kill(getpid(), SIGTERM);
    return 3;
}

static int request_thrice(void)
{
    ch__interrupt_catch(CH_INTERRUPT_SAVE);
    for (int i = 0; i < 3; i++)
        kill(getpid(), SIGUSR1);
    return ch__interrupts(CH_INTERRUPT_SAVE) == 3 ? 0 : 1;
}

static void interrupt_counts_requests_and_ends_at_the_second_sigterm(void **state)
{
    assert_int_equal(outcome(terminate_once), 0);
    assert_int_equal(outcome(terminate_twice), 1000 + SIGTERM);
    assert_int_equal(outcome(request_thrice), 0);
    (void)state;
}

static void own_action(int sig, siginfo_t *info, void *context)
{
    (void)context;
    atomic_fetch_add(&n_own, info != NULL && info->si_pid == getpid() ? sig : 1000);
}

/* Handlers of both kinds are called after ours, and are back after the release. */
static int chain(void)
{
    struct sigaction own = {.sa_sigaction = own_action, .sa_flags = SA_SIGINFO};

    sigemptyset(&own.sa_mask);
    signal(SIGTERM, own_handler);
    sigaction(SIGUSR1, &own, NULL);
    ch__interrupt_catch(CH_INTERRUPT_TERMINATE);
    ch__interrupt_catch(CH_INTERRUPT_SAVE);
    kill(getpid(), SIGTERM);
    if (atomic_load(&n_own) != 1 || ch__interrupts(CH_INTERRUPT_TERMINATE) != 1)
        return 1;
    kill(getpid(), SIGUSR1);
    if (atomic_load(&n_own) != 1 + SIGUSR1 || ch__interrupts(CH_INTERRUPT_SAVE) != 1)
        return 2;
    ch__interrupt_release(CH_INTERRUPT_TERMINATE);
    ch__interrupt_release(CH_INTERRUPT_SAVE);
    kill(getpid(), SIGUSR1);
    kill(getpid(), SIGTERM);
    return atomic_load(&n_own) == 2 + 2 * SIGUSR1 ? 0 : 3;
}

static void interrupt_calls_the_handlers_of_the_program(void **state)
{
    assert_int_equal(outcome(chain), 0);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interrupt_once_sets_a_flag_and_twice_ends_the_process),
        cmocka_unit_test(interrupt_handlers_nest),
        cmocka_unit_test(interrupt_release_restores_the_handler_of_the_program),
        cmocka_unit_test(interrupt_does_not_break_system_calls),
        cmocka_unit_test(interrupt_stops_the_trainings_of_all_threads),
        cmocka_unit_test(interrupt_that_ends_the_process_ends_the_live_line),
        cmocka_unit_test(interrupt_handler_keeps_errno),
        cmocka_unit_test(interrupt_counts_requests_and_ends_at_the_second_sigterm),
        cmocka_unit_test(interrupt_calls_the_handlers_of_the_program),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

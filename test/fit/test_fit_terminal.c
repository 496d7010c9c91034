/* test/fit/test_fit_terminal.c -- ch_fit as a user sees it: its line on a terminal, Ctrl-C, the
 * table, the trace.
 *
 * Each training runs in a child process on a pseudo-terminal whose other end the test reads.
 * The test sends Ctrl-C as the byte that the key sends.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/thread.h"
#include "fit/interrupt.h"
#include "fit_help.h"

enum { KEY = 3, SHOWN = 1 << 17, SOON = 60 };

/* ---- in the child ---- */

/* The results of the training, which the child sends to the test. */
typedef struct report {
    int     rc, epochs;
    int64_t steps, validation_steps;
    bool    has_loss, has_val_loss;
    char    stopped[40];
} report;

typedef struct child {
    int      ready, answer; /* write ends of pipes: 'k' requests the key; the report */
    ch_event event;         /* at which the child requests the key; 0: never */
    int      after;         /* number of events of that kind */
    int      presses;
    int64_t  validation_steps;
    int      n;
} child;

static ch_status want_keys(ch_training *t, ch_event event, void *arg)
{
    child *c = arg;

    (void)t;
    c->validation_steps += event == CH_ON_VALIDATION_STEP;
    if (event != c->event || ++c->n != c->after)
        return CH_OK;
    for (int i = 0; i < c->presses; i++) {
        if (write(c->ready, "k", 1) != 1)
            return CH_INTERNAL;
        while (!ch__interrupted() || i > 0) /* the second Ctrl-C ends the process here */
            ch__relax();
    }
    return CH_OK;
}

static void train_and_report(child *c, const ch_fit_options *opt)
{
    fixture        x = new_fixture(MIRRORED_2);
    ch_data        d = {.n = 2, .array = x.a.t};
    ch_fit_options o = *opt;
    ch_callback   *keys = NULL;
    ch_history    *h = NULL;
    report         r = {0};

    t_ok(ch_callback_of(CH_ON_STEP | CH_ON_VALIDATION_STEP, want_keys, c, &keys));
    o.validation = d;
    o.n_callbacks = 1;
    o.callback = &keys;
    r.rc = ch_fit(x.m, d, &o, &h);
    r.epochs = ch_history_epochs(h);
    r.steps = ch_history_time(h).steps;
    r.validation_steps = c->validation_steps;
    r.has_loss = ch_history_last(h, "loss") > 0;
    r.has_val_loss = !isnan(ch_history_last(h, "val_loss"));
    snprintf(r.stopped, sizeof(r.stopped), "%s",
             ch_history_stopped(h) != NULL ? ch_history_stopped(h) : "");
    if (write(c->answer, &r, sizeof(r)) != sizeof(r))
        _exit(3);
    ch_history_unref(h);
    ch_callback_unref(keys);
    drop_fixture(&x);
}

/* ---- in the test ---- */

typedef struct outcome {
    int    status; /* from waitpid */
    bool   has_report;
    report report;
    char  *shown; /* all output to standard error */
} outcome;

typedef struct ends {
    int terminal, other; /* the end of the test, and the end of the child */
} ends;

/* Opens a pseudo-terminal. Returns false if there is none (a root without /dev/pts). */
static bool open_terminal(ends *e)
{
    struct winsize size = {.ws_row = 24, .ws_col = 120};

    e->terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (e->terminal < 0 || grantpt(e->terminal) != 0 || unlockpt(e->terminal) != 0)
        return false;
    e->other = open(ptsname(e->terminal), O_RDWR | O_NOCTTY);
    return e->other >= 0 && ioctl(e->terminal, TIOCSWINSZ, &size) == 0;
}

static void be_child(const ends *e, bool is_terminal, child *c, const ch_fit_options *opt)
{
    signal(SIGINT, SIG_DFL);
    alarm(SOON);
    setenv("TERM", "xterm-256color", 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    unsetenv("NO_COLOR");
    unsetenv("COLUMNS");
    if (setsid() < 0 || dup2(e->other, 2) < 0 ||
        (is_terminal && ioctl(e->other, TIOCSCTTY, 0) != 0))
        _exit(2);
    t_four_gpus(NULL);
    train_and_report(c, opt);
    _exit(0);
}

/* Reads until both ends have closed. A read from a terminal fails when its other end is
 * closed. */
static void listen_to(const ends *e, int ready, outcome *o)
{
    struct pollfd from[2] = {{e->terminal, POLLIN, 0}, {ready, POLLIN, 0}};
    size_t        n = 0;

    while (from[0].fd >= 0 || from[1].fd >= 0) {
        char    key[16];
        ssize_t got;

        assert_true(poll(from, 2, SOON * 1000) > 0);
        if (from[0].revents != 0) {
            got = read(e->terminal, o->shown + n, SHOWN - 1 - n);
            n += got > 0 ? (size_t)got : 0;
            from[0].fd = got > 0 ? from[0].fd : -1;
        }
        if (from[1].revents != 0) {
            got = read(ready, key, sizeof(key));
            for (ssize_t i = 0; i < got; i++)
                assert_int_equal(write(e->terminal, &(char){KEY}, 1), 1);
            from[1].fd = got > 0 ? ready : -1;
        }
    }
    o->shown[n] = '\0';
}

static outcome run(ends e, bool is_terminal, child c, const ch_fit_options *opt)
{
    outcome o = {.shown = calloc(1, SHOWN)};
    int     ready[2], answer[2];
    pid_t   id;

    assert_non_null(o.shown);
    assert_true(pipe(ready) == 0 && pipe(answer) == 0);
    c.ready = ready[1];
    c.answer = answer[1];
    id = fork();
    assert_true(id >= 0);
    if (id == 0) {
        close(e.terminal);
        be_child(&e, is_terminal, &c, opt);
    }
    close(e.other);
    close(ready[1]);
    close(answer[1]);
    listen_to(&e, ready[0], &o);
    assert_int_equal(waitpid(id, &o.status, 0), id);
    o.has_report = read(answer[0], &o.report, sizeof(o.report)) == sizeof(o.report);
    close(e.terminal);
    close(ready[0]);
    close(answer[0]);
    return o;
}

static outcome on_terminal(child c, const ch_fit_options *opt)
{
    ends e;

    if (!open_terminal(&e))
        skip();
    return run(e, true, c, opt);
}

static outcome on_pipe(const ch_fit_options *opt)
{
    int at[2];

    assert_int_equal(pipe(at), 0);
    return run((ends){at[0], at[1]}, false, (child){.n = 0}, opt);
}

static void ended_well(const outcome *o)
{
    if (!WIFEXITED(o->status) || WEXITSTATUS(o->status) != 0 || !o->has_report)
        fail_msg("status %d: %s", o->status, o->shown);
    assert_int_equal(o->report.rc, CH_OK);
}

static void shows(const outcome *o, const char *word)
{
    if (strstr(o->shown, word) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", word, o->shown);
}

/* ---- tests ---- */

/* The line is redrawn in place, and the table is below it. */
static void fit_draws_its_line_on_a_terminal(void **state)
{
    outcome     o = on_terminal((child){.n = 0}, &(ch_fit_options){.epochs = 3,
                                                                   .batch = 5,
                                                                   .progress = CH_PROGRESS_AUTO,
                                                                   .summary = true,
                                                                   .catch_interrupt = true});
    const char *table;

    ended_well(&o);
    assert_int_equal(o.report.epochs, 3);
    assert_true(o.report.has_loss && o.report.has_val_loss);
    shows(&o, "Epoch 1/3");
    shows(&o, "Epoch 3/3");
    shows(&o, "\r");
    shows(&o, "val_loss");
    table = strstr(o.shown, ch_time_name(CH_TIME_FORWARD));
    assert_non_null(table);
    assert_non_null(strstr(table, ch_time_name(CH_TIME_OTHER)));
    assert_null(strstr(table, "Epoch"));
    free(o.shown);
    (void)state;
}

/* On a pipe the output must not move the cursor. */
static void fit_writes_lines_to_a_pipe(void **state)
{
    outcome o = on_pipe(&(ch_fit_options){
        .epochs = 2, .batch = 5, .progress = CH_PROGRESS_AUTO, .summary = true});

    ended_well(&o);
    shows(&o, "val_loss");
    shows(&o, "100.0 %");
    assert_null(strchr(o.shown, '\033'));
    assert_null(strchr(o.shown, '\r'));
    free(o.shown);
    (void)state;
}

static void fit_is_quiet_unless_asked(void **state)
{
    outcome o = on_pipe(&(ch_fit_options){.epochs = 2, .batch = 5});

    ended_well(&o);
    assert_string_equal(o.shown, "");
    free(o.shown);
    (void)state;
}

static const ch_fit_options long_one = {.epochs = 1000,
                                        .batch = 5,
                                        .progress = CH_PROGRESS_AUTO,
                                        .summary = true,
                                        .catch_interrupt = true};

/* The step is finished, no other step is started, and the results so far are returned. */
static void interrupt_key_once_finishes_the_step(void **state)
{
    outcome o = on_terminal((child){.event = CH_ON_STEP, .after = 12, .presses = 1}, &long_one);

    ended_well(&o);
    assert_int_equal(o.report.steps, 12); /* 9 of epoch 1, 3 of epoch 2 */
    assert_int_equal(o.report.epochs, 2);
    assert_int_equal(o.report.validation_steps, 9);
    assert_true(o.report.has_loss && !o.report.has_val_loss);
    assert_string_equal(o.report.stopped, "interrupted");
    shows(&o, ch_time_name(CH_TIME_FORWARD));
    free(o.shown);
    (void)state;
}

static void interrupt_key_ends_a_validation(void **state)
{
    outcome o = on_terminal((child){.event = CH_ON_VALIDATION_STEP, .after = 4, .presses = 1},
                            &long_one);

    ended_well(&o);
    assert_int_equal(o.report.steps, 9);
    assert_int_equal(o.report.epochs, 1);
    assert_int_equal(o.report.validation_steps, 4);
    assert_true(o.report.has_loss && !o.report.has_val_loss);
    assert_string_equal(o.report.stopped, "interrupted");
    free(o.shown);
    (void)state;
}

static void interrupt_key_twice_ends_the_process(void **state)
{
    outcome o = on_terminal((child){.event = CH_ON_STEP, .after = 5, .presses = 2}, &long_one);

    assert_true(WIFSIGNALED(o.status) && WTERMSIG(o.status) == SIGINT);
    assert_false(o.has_report);
    free(o.shown);
    (void)state;
}

/* Without the option, ch_fit does not handle the key, and here the program does not either. */
static void interrupt_key_is_not_caught_without_the_option(void **state)
{
    outcome o = on_terminal((child){.event = CH_ON_STEP, .after = 5, .presses = 1},
                            &(ch_fit_options){.epochs = 1000, .batch = 5});

    assert_true(WIFSIGNALED(o.status) && WTERMSIG(o.status) == SIGINT);
    free(o.shown);
    (void)state;
}

/* ---- the trace ---- */

/* Returns true if all brackets outside of strings are balanced. */
static bool is_balanced(const char *text)
{
    char   open[64];
    size_t n = 0;
    bool   in_string = false;

    for (; *text != '\0'; text++) {
        if (in_string && *text == '\\' && text[1] != '\0')
            text++;
        else if (*text == '"')
            in_string = !in_string;
        else if (!in_string && (*text == '[' || *text == '{') && n < sizeof(open))
            open[n++] = *text == '[' ? ']' : '}';
        else if (!in_string && (*text == ']' || *text == '}') && (n == 0 || open[--n] != *text))
            return false;
    }
    return n == 0 && !in_string;
}

/* The file is complete and has a track for the loop and a track for each of both devices. */
static void fit_writes_a_trace(void **state)
{
    char    path[] = "/tmp/cohort-trace-XXXXXX";
    char   *text = calloc(1, 1 << 22);
    int     fd = mkstemp(path);
    outcome o;

    assert_true(fd >= 0 && text != NULL);
    o = on_pipe(&(ch_fit_options){.epochs = 2, .batch = 20, .trace = path});
    ended_well(&o);
    assert_true(read(fd, text, (1 << 22) - 1) > 0);
    assert_int_equal(text[0], '[');
    assert_true(is_balanced(text));
    assert_non_null(strstr(text, "\"fit\""));
    assert_non_null(strstr(text, "GPU:0"));
    assert_non_null(strstr(text, "GPU:1"));
    assert_non_null(strstr(text, ch_time_name(CH_TIME_INPUT)));
    close(fd);
    remove(path);
    free(text);
    free(o.shown);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fit_draws_its_line_on_a_terminal),
        cmocka_unit_test(fit_writes_lines_to_a_pipe),
        cmocka_unit_test(fit_is_quiet_unless_asked),
        cmocka_unit_test(interrupt_key_once_finishes_the_step),
        cmocka_unit_test(interrupt_key_ends_a_validation),
        cmocka_unit_test(interrupt_key_twice_ends_the_process),
        cmocka_unit_test(interrupt_key_is_not_caught_without_the_option),
        cmocka_unit_test(fit_writes_a_trace),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test/fit/test_progress.c -- the progress callback: lines in a file, JSON objects, and the
 * text of a live line.
 *
 * A simulated training with its own clock (progress_help.h) calls the callback, and the tests
 * compare the bytes in a pipe.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "progress_help.h"

#include <math.h>

#include "base/terminal.h"
#include "cohort/dataset.h"
#include "fit/report/progress_text.h"

/* ---- a pipe ---- */

typedef struct {
    int  reader, writer;
    char text[16384];
} pipe_end;

static void open_pipe(pipe_end *p)
{
    int ends[2];

    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    *p = (pipe_end){.reader = ends[0], .writer = ends[1]};
}

/* Returns the bytes that arrived since the last call. */
static const char *arrived(pipe_end *p)
{
    ssize_t n = read(p->reader, p->text, sizeof(p->text) - 1);

    p->text[n > 0 ? n : 0] = '\0';
    return p->text;
}

static void close_pipe(pipe_end *p)
{
    close(p->reader);
    close(p->writer);
}

static int count_lines(const char *text)
{
    int n = 0;

    for (; *text != '\0'; text++)
        n += *text == '\n';
    return n;
}

/* ---- numbers ---- */

static void short_number_has_few_digits(void **state)
{
    assert_string_equal(ch__short_number(0).text, "0.0000");
    assert_string_equal(ch__short_number(0.31251).text, "0.3125");
    assert_string_equal(ch__short_number(-12.5).text, "-12.5000");
    assert_string_equal(ch__short_number(1.2e-5).text, "1.2000e-05");
    assert_string_equal(ch__short_number(1e300).text, "1.0000e+300");
    assert_string_equal(ch__short_number(-(double)NAN).text, "nan");
    assert_string_equal(ch__short_number(-(double)INFINITY).text, "-inf");
    assert_string_equal(ch__short_time(-1).text, "0s");
    assert_string_equal(ch__short_time(59.4).text, "59s");
    assert_string_equal(ch__short_time(59.6).text, "1:00");
    assert_string_equal(ch__short_time(3723).text, "1:02:03");
    assert_string_equal(ch__short_elapsed(-1).text, "0.0s");
    assert_string_equal(ch__short_elapsed(9.94).text, "9.9s");
    assert_string_equal(ch__short_elapsed(9.96).text, "10s");
    assert_string_equal(ch__short_step(12e-6).text, "12us/step");
    assert_string_equal(ch__short_step(0.9996e-3).text, "1.0ms/step");
    assert_string_equal(ch__short_step(0.0315).text, "32ms/step");
    assert_string_equal(ch__short_step(0.9999).text, "1.0s/step");
    assert_string_equal(ch__short_step(75).text, "75s/step");
    assert_string_equal(ch__short_rate(0.5).text, "0.50");
    assert_string_equal(ch__short_rate(12.34).text, "12.3");
    assert_string_equal(ch__short_rate(999.6).text, "1.00k");
    assert_string_equal(ch__short_rate(20134).text, "20.1k");
    assert_string_equal(ch__short_rate(3e13).text, "30000G");
    (void)state;
}

/* ---- lines ---- */

static void progress_lines_show_a_short_epoch_as_one_line(void **state)
{
    pipe_end     p;
    ch_training  t = {.epochs = 2, .epoch_steps = 100};
    ch_callback *c;

    open_pipe(&p);
    c = t_progress(CH_PROGRESS_AUTO, p.writer); /* not a terminal, so lines are written */
    t_tell(c, &t, CH_ON_BEGIN);
    t_begin_epoch(c, &t);
    t_pass(990);
    t_steps(c, &t, 100, 10);
    assert_string_equal(arrived(&p), "");
    t_tell(c, &t, CH_ON_VALIDATION_BEGIN);
    t_pass(2000);
    t.validation_step = 1;
    t_tell(c, &t, CH_ON_VALIDATION_STEP);
    t_log(&t, "val_loss", 0.25);
    t_tell(c, &t, CH_ON_EPOCH_END);
    assert_string_equal(arrived(&p), "Epoch 1/2 - 100/100 - 4.0s - 10ms/step - 3.20k ex/s - "
                                     "loss: 0.0100 - accuracy: 0.5000 - val_loss: 0.2500\n");
    t_tell(c, &t, CH_ON_END);
    assert_string_equal(arrived(&p), "");
    t_drop(c, &t);
    close_pipe(&p);
    (void)state;
}

/* A line is written at each tenth of an epoch if the last line is 5 s old, and every 30 s. */
static void progress_lines_show_a_long_epoch_at_intervals(void **state)
{
    pipe_end     p;
    ch_training  t = {.epochs = 1, .epoch_steps = 1000};
    ch_callback *c;

    open_pipe(&p);
    c = t_progress(CH_PROGRESS_LINES, p.writer);
    t_tell(c, &t, CH_ON_BEGIN);
    t_begin_epoch(c, &t);
    t_steps(c, &t, 99, 100);
    assert_string_equal(arrived(&p), "");
    t_steps(c, &t, 1, 100);
    assert_string_equal(arrived(&p),
                        "Epoch 1/1 - 100/1000 - ETA 1:30 - 100ms/step - 320 ex/s - "
                        "loss: 0.0100 - accuracy: 0.5000\n");
    t_steps(c, &t, 100, 20); /* 2 s later: too soon */
    assert_string_equal(arrived(&p), "");
    t_steps(c, &t, 100, 1000); /* that tenth; 30 s, 60 s, 90 s; the next tenth */
    assert_int_equal(count_lines(arrived(&p)), 5);
    t_steps(c, &t, 700, 1); /* fast again */
    assert_string_equal(arrived(&p), "");
    t_tell(c, &t, CH_ON_EPOCH_END);
    assert_int_equal(count_lines(arrived(&p)), 1);
    t_drop(c, &t);
    close_pipe(&p);
    (void)state;
}

static void progress_lines_have_no_eta_when_steps_are_unknown(void **state)
{
    pipe_end     p;
    ch_training  t = {.epochs = 1, .epoch_steps = CH_UNKNOWN};
    ch_callback *c;

    open_pipe(&p);
    c = t_progress(CH_PROGRESS_LINES, p.writer);
    t_tell(c, &t, CH_ON_BEGIN);
    t_begin_epoch(c, &t);
    t_steps(c, &t, 300, 100);
    assert_string_equal(arrived(&p), "Epoch 1/1 - 300 - 30s - 100ms/step - 320 ex/s - "
                                     "loss: 0.0033 - accuracy: 0.5000\n");
    t_drop(c, &t);
    close_pipe(&p);
    (void)state;
}

static void progress_lines_have_no_control_characters(void **state)
{
    pipe_end     p;
    ch_training  t = {.epochs = 1, .epoch_steps = 1};
    ch_callback *c;

    open_pipe(&p);
    c = t_progress(CH_PROGRESS_LINES, p.writer);
    t_tell(c, &t, CH_ON_BEGIN);
    t_begin_epoch(c, &t);
    t_log(&t, "a\033[2Jb\nc\xff", NAN);
    t.epoch_step = 1;
    t_tell(c, &t, CH_ON_STEP);
    ch_training_stop(&t, "enough");
    t_tell(c, &t, CH_ON_EPOCH_END);
    t_tell(c, &t, CH_ON_END);
    assert_string_equal(arrived(&p),
                        "Epoch 1/1 - 1/1 - 0.0s - a?[2Jb?c?: nan\nStopped: enough\n");
    t_drop(c, &t);
    close_pipe(&p);
    (void)state;
}

static void progress_lines_of_an_evaluation_have_no_epochs(void **state)
{
    pipe_end     p;
    ch_training  t = {.is_evaluation = true, .validation_steps = 3};
    ch_callback *c;

    open_pipe(&p);
    c = t_progress(CH_PROGRESS_LINES, p.writer);
    t_tell(c, &t, CH_ON_BEGIN);
    t_tell(c, &t, CH_ON_VALIDATION_BEGIN);
    for (t.validation_step = 1; t.validation_step <= 3; t.validation_step++) {
        t_pass(2000);
        t.examples += 32;
        t_tell(c, &t, CH_ON_VALIDATION_STEP);
    }
    t.validation_step = 3;
    t_log(&t, "loss", 0.5);
    t_tell(c, &t, CH_ON_VALIDATION_END);
    t_tell(c, &t, CH_ON_END);
    assert_string_equal(arrived(&p),
                        "Evaluate - 3/3 - 6.0s - 2.0s/step - 16.0 ex/s - loss: 0.5000\n");
    t_drop(c, &t);
    close_pipe(&p);
    (void)state;
}

static void progress_lines_of_a_prediction_have_no_metrics(void **state)
{
    pipe_end     p;
    ch_training  t = {.is_evaluation = true, .validation_steps = 1};
    ch_callback *c;

    open_pipe(&p);
    c = t_progress(CH_PROGRESS_LINES, p.writer);
    t_tell(c, &t, CH_ON_BEGIN);
    t_tell(c, &t, CH_ON_VALIDATION_BEGIN);
    t_pass(2000);
    t.examples = 32;
    t.validation_step = 1;
    t_tell(c, &t, CH_ON_VALIDATION_STEP);
    t_tell(c, &t, CH_ON_VALIDATION_END);
    t_tell(c, &t, CH_ON_END);
    assert_string_equal(arrived(&p), "Predict - 1/1 - 2.0s - 2.0s/step - 16.0 ex/s\n");
    t_drop(c, &t);
    close_pipe(&p);
    (void)state;
}

/* ---- objects ---- */

static void progress_json_writes_an_object_on_each_line(void **state)
{
    pipe_end     p;
    ch_training  t = {.epochs = 1, .epoch_steps = CH_UNKNOWN};
    ch_callback *c;

    open_pipe(&p);
    c = t_progress(CH_PROGRESS_JSON, p.writer);
    t_tell(c, &t, CH_ON_BEGIN);
    assert_string_equal(arrived(&p),
                        "{\"event\": \"begin\", \"epoch\": 0, \"epochs\": 1, \"step\": 0, "
                        "\"steps\": null, \"seconds\": 0, \"examples_per_second\": null, "
                        "\"logs\": {}}\n");
    t_begin_epoch(c, &t);
    t_steps(c, &t, 11, 100); /* an object each second */
    assert_string_equal(arrived(&p),
                        "{\"event\": \"step\", \"epoch\": 0, \"epochs\": 1, \"step\": 10, "
                        "\"steps\": null, \"seconds\": 1, \"examples_per_second\": 320, "
                        "\"logs\": {\"loss\": 0.1, \"accuracy\": 0.5}}\n");
    t.epoch_steps = 11;
    t_log(&t, "accuracy", INFINITY);
    t_log(&t, "a \"\\\n\xc3\xa9\xff", NAN);
    ch_training_stop(&t, "he said \"now\"");
    t_tell(c, &t, CH_ON_EPOCH_END);
    assert_string_equal(arrived(&p),
                        "{\"event\": \"epoch\", \"epoch\": 0, \"epochs\": 1, \"step\": 11, "
                        "\"steps\": 11, \"seconds\": 1.1, \"examples_per_second\": 320, "
                        "\"stopped\": \"he said \\\"now\\\"\", \"logs\": "
                        "{\"loss\": 0.09090909090909091, \"accuracy\": null, "
                        "\"a \\\"\\\\\\u000a\xc3\xa9?\": null}}\n");
    t_tell(c, &t, CH_ON_END);
    assert_memory_equal(arrived(&p), "{\"event\": \"end\"", 15);
    t_drop(c, &t);
    close_pipe(&p);
    (void)state;
}

/* ---- cost and errors ---- */

static int n_refreshed;

static ch_status count_refresh(ch_training *t)
{
    (void)t;
    n_refreshed++;
    return CH_OK;
}

static void progress_reads_metrics_only_when_it_shows_them(void **state)
{
    const ch_progress how[] = {CH_PROGRESS_BAR, CH_PROGRESS_JSON, CH_PROGRESS_LINES};
    const int         times[] = {40, 2, 1};

    for (int i = 0; i < 3; i++) {
        int          null = open("/dev/null", O_WRONLY);
        ch_training  t = {.epochs = 1, .epoch_steps = 2000, .refresh = count_refresh};
        ch_callback *c = t_progress(how[i], null);

        n_refreshed = 0;
        t_tell(c, &t, CH_ON_BEGIN);
        t_begin_epoch(c, &t);
        t_steps(c, &t, 2000, 1);
        t_tell(c, &t, CH_ON_EPOCH_END);
        t_tell(c, &t, CH_ON_END);
        assert_int_equal(n_refreshed, times[i]);
        t_drop(c, &t);
        close(null);
    }
    (void)state;
}

static void progress_does_not_fail_when_nothing_can_be_written(void **state)
{
    int fds[] = {open("/dev/full", O_WRONLY), -1};

    for (int how = CH_PROGRESS_AUTO; how <= CH_PROGRESS_JSON; how++)
        for (int i = 0; i < 2; i++) {
            ch_training  t = {.epochs = 1, .epoch_steps = 3};
            ch_callback *c = t_progress((ch_progress)how, fds[i]);

            t_tell(c, &t, CH_ON_BEGIN);
            t_begin_epoch(c, &t);
            t_steps(c, &t, 3, 40000);
            t_tell(c, &t, CH_ON_EPOCH_END);
            t_tell(c, &t, CH_ON_END);
            t_drop(c, &t);
        }
    close(fds[0]);
    (void)state;
}

static void progress_does_not_fail_when_out_of_memory(void **state)
{
    pipe_end     p;
    ch_training  t = {.epochs = 1, .epoch_steps = 3};
    ch_callback *c = NULL;

    for (int i = 1; i <= 2; i++) {
        ch__mem_fail_at(i);
        t_refused(ch__progress_new(CH_PROGRESS_BAR, 2, &c), CH_RESOURCE_EXHAUSTED, "out of",
                  "memory");
        ch__mem_fail_at(0);
        assert_null(c);
    }
    open_pipe(&p);
    c = t_progress(CH_PROGRESS_LINES, p.writer);
    t_tell(c, &t, CH_ON_BEGIN);
    t_begin_epoch(c, &t);
    t_steps(c, &t, 1, 10);
    ch__mem_fail_from(1);
    t_pass(30000);
    t_tell(c, &t, CH_ON_STEP);
    ch__mem_fail_from(0);
    assert_int_equal(count_lines(arrived(&p)), 1);
    t_drop(c, &t);
    close_pipe(&p);
    (void)state;
}

static void progress_new_rejects_off_and_invalid_modes(void **state)
{
    ch_callback *c = NULL;

    t_refused(ch__progress_new(CH_PROGRESS_OFF, 2, &c), CH_INVALID_ARGUMENT, "progress", "0");
    t_refused(ch__progress_new((ch_progress)9, 2, &c), CH_INVALID_ARGUMENT, "progress", "9");
    t_refused(ch__progress_new(CH_PROGRESS_BAR, 2, NULL), CH_INVALID_ARGUMENT, "out", "NULL");
    assert_null(c);
    (void)state;
}

/* ---- a live line on a file that is not a terminal ---- */

static void progress_bar_works_without_escape_sequences(void **state)
{
    pipe_end     p;
    ch_training  t = {.epochs = 1, .epoch_steps = 2};
    ch_callback *c;
    const char  *text;

    open_pipe(&p);
    setenv("COLUMNS", "60", 1);
    setenv("LC_ALL", "C", 1);
    c = t_progress(CH_PROGRESS_BAR, p.writer);
    t_tell(c, &t, CH_ON_BEGIN);
    t_begin_epoch(c, &t);
    t_steps(c, &t, 2, 100);
    t_tell(c, &t, CH_ON_EPOCH_END);
    t_tell(c, &t, CH_ON_END);
    text = arrived(&p);
    assert_null(strchr(text, '\033'));
    assert_non_null(strstr(text, "Epoch 1/1\n\r\r 0/2 ["));
    assert_non_null(strstr(text, "\r 2/2 [==========] 0.2s 100ms/step 320/s - loss: 0.5000"));
    t_environment();
    t_drop(c, &t);
    close_pipe(&p);
    (void)state;
}

/* For all names, numbers and widths: no line is wider than the terminal, and names cannot
 * contain control characters. */
static void progress_line_is_never_wider_than_the_terminal(void **state)
{
    const char *names[] = {"loss",
                           "\xe6\xb8\xac\xe8\xa9\xa6",
                           "a\033[2J\r\n",
                           "a name that is much longer than names of metrics ever are, by far",
                           "\xc3\xa9t\xc3\xa9",
                           "val_loss"};
    ch_logs     l = {0};

    for (int i = 0; i < 6; i++)
        t_ok(ch__logs_set(&l, names[i], i % 2 ? 1.23456e-200 : -0.5));
    for (int i = 0; i < 250 * 16; i++) {
        ch_progress_record r = {.step = 123456,
                                .steps = i & 1 ? 1234567 : -1,
                                .epoch_seconds = 4e5,
                                .per_step = 3,
                                .per_second = 12345,
                                .is_done = i & 2,
                                .is_validating = i & 4,
                                .validation_steps = 50,
                                .logs = &l};
        ch_progress_style  look = {.columns = i / 16, .is_utf8 = i & 8, .frame = i};
        char               text[4096];
        ch_text            o = ch__text(text, sizeof(text));

        assert_true(ch__progress_live(&o, &r, &look) < look.columns || look.columns == 0);
        for (char *at = text, *end; at != NULL; at = end != NULL ? end + 1 : NULL) {
            int columns = 0;

            end = strchr(at, '\n');
            for (; *at != '\0' && at != end; at++)
                columns +=
                    ((unsigned char)*at & 0xc0) != 0x80
                        ? (unsigned char)*at == 0xe6 || (unsigned char)*at == 0xe8 ? 2 : 1
                        : 0;
            assert_true(columns == 0 || columns < look.columns);
            assert_null(strchr(text, '\033'));
            assert_null(strchr(text, '\r'));
        }
    }
    ch__logs_drop(&l);
    (void)state;
}

static void progress_reserve_counts_the_columns_of_metrics(void **state)
{
    ch_logs l = {0};

    assert_int_equal(ch__progress_reserve(&l, true, true), 0);
    t_ok(ch__logs_set(&l, "loss", 1));
    t_ok(ch__logs_set(&l, "val_loss", 1));
    assert_int_equal(ch__progress_reserve(&l, true, false), (int)strlen(" - loss: 1.0000"));
    assert_int_equal(ch__progress_reserve(&l, true, true),
                     (int)strlen(" - loss: 1.0000 - val_loss: 1.0000"));
    assert_true(ch__is_of_validation("val_x") && !ch__is_of_validation("value"));
    ch__logs_drop(&l);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_number_has_few_digits),
        cmocka_unit_test(progress_lines_show_a_short_epoch_as_one_line),
        cmocka_unit_test(progress_lines_show_a_long_epoch_at_intervals),
        cmocka_unit_test(progress_lines_have_no_eta_when_steps_are_unknown),
        cmocka_unit_test(progress_lines_have_no_control_characters),
        cmocka_unit_test(progress_lines_of_an_evaluation_have_no_epochs),
        cmocka_unit_test(progress_lines_of_a_prediction_have_no_metrics),
        cmocka_unit_test(progress_json_writes_an_object_on_each_line),
        cmocka_unit_test(progress_reads_metrics_only_when_it_shows_them),
        cmocka_unit_test(progress_does_not_fail_when_nothing_can_be_written),
        cmocka_unit_test(progress_does_not_fail_when_out_of_memory),
        cmocka_unit_test(progress_new_rejects_off_and_invalid_modes),
        cmocka_unit_test(progress_bar_works_without_escape_sequences),
        cmocka_unit_test(progress_line_is_never_wider_than_the_terminal),
        cmocka_unit_test(progress_reserve_counts_the_columns_of_metrics),
    };

    t_environment();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test/base/test_trace.c -- a trace file is complete JSON in all cases.
 *
 * trace_help.h parses the files. The tests cover several threads, lost spans, file errors,
 * forked children, and the setting that opens a trace for the whole process.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../file/folder.h"
#include "base/config.h"
#include "base/mem.h"
#include "base/sys.h"
#include "base/thread.h"
#include "base/trace.h"
#include "trace_help.h"

static const char *path(void)
{
    return t_path("trace.json");
}

/* Writes a span of 10 ns that begins now, or at the end of the last span. */
static void span(const char *track, const char *name)
{
    static _Thread_local int64_t last;
    int64_t                      now = ch__now_ns();

    last = last + 10 > now ? last + 10 : now;
    ch__trace_span(track, name, last, last + 10);
}

static void trace_without_spans_is_a_complete_file(void **state)
{
    t_trace *t;

    t_ok(ch__trace_close()); /* no span is open: allowed */
    t_ok(ch__trace_open(path()));
    assert_true(ch__trace_is_on());
    t_ok(ch__trace_close());
    assert_false(ch__trace_is_on());
    t = t_trace_read(path());
    assert_int_equal(t->n_spans, 0);
    assert_non_null(strstr(t->process, "test_base_trace"));
    free(t);
    (void)state;
}

static void trace_spans_are_on_tracks_with_their_times(void **state)
{
    int64_t  at;
    t_trace *t;

    t_ok(ch__trace_open(path()));
    at = ch__now_ns();
    ch__trace_span("GPU:0", "outer", at, at + 5001);
    ch__trace_span("GPU:1", "other", at + 2, at + 2);
    ch__trace_span("GPU:0", "inner", at + 1000, at + 5001);
    ch__trace_span("GPU:0", "before the file", at - 1000000000, at);
    t_ok(ch__trace_close());
    ch__trace_span("GPU:0", "after it", at, at);
    t = t_trace_read(path());
    assert_int_equal(t->n_spans, 3);
    assert_int_equal(t->n_tracks, 2);
    assert_int_equal(t_count(t, "GPU:0", "inner"), 1);
    assert_int_equal(t_count(t, "GPU:1", "other"), 1);
    assert_int_equal(t->span[0].end - t->span[0].begin, 5001);
    assert_int_equal(t->span[1].begin - t->span[0].begin, 1000);
    assert_int_equal(t->span[1].end, t->span[0].end);
    assert_string_equal(t->labels, "");
    free(t);
    (void)state;
}

static void *span_of_thread(void *arg)
{
    int64_t began = ch__trace_begin();

    ch__trace_end(NULL, "job", began);
    ch__trace_end("GPU:0", "step", began);
    (void)arg;
    return NULL;
}

static void trace_end_writes_a_span_on_the_track_of_its_thread(void **state)
{
    pthread_t other;
    t_trace  *t;

    assert_int_equal(ch__trace_begin(), 0);
    t_ok(ch__trace_open(path()));
    ch__trace_end(NULL, "began before the file", 0);
    span_of_thread(NULL);
    assert_int_equal(pthread_create(&other, NULL, span_of_thread, NULL), 0);
    pthread_join(other, NULL);
    t_ok(ch__trace_close());
    t = t_trace_read(path());
    assert_int_equal(t->n_spans, 4);
    assert_int_equal(t->n_tracks, 3); /* two threads and GPU:0 */
    assert_int_equal(t_count(t, "GPU:0", "step"), 2);
    assert_int_equal(t_count(t, "(thread ", "job"), 1);
    free(t);
    (void)state;
}

static void trace_escapes_names_as_json_strings(void **state)
{
    static const char *const name[] = {
        "a \"quoted\" back\\slash", "line\nbreak\ttab\x01\x7f", "gr\xc3\xbc\xc3\x9f",
        "\xff\xc3\xe2\x82 \xed\xa0\x80 \xf4\x90\x80\x80 \xc0\x80", ""};
    char     longest[1000];
    t_trace *t;

    memset(longest, '"', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    t_ok(ch__trace_open(path()));
    for (int i = 0; i < 5; i++)
        span("names", name[i]);
    span("names", longest);
    span(longest, "on a track");
    t_ok(ch__trace_close());
    t = t_trace_read(path());
    assert_int_equal(t->n_spans, 7);
    for (int i = 0; i < 3; i++)
        assert_string_equal(t->span[i].name, name[i]);
    assert_string_equal(t->span[3].name, "???? ??? ???? ??");
    assert_string_equal(t->span[4].name, "");
    assert_int_equal(strlen(t->span[5].name), 200);
    free(t);
    (void)state;
}

static char warned[256];

static void keep_warning(const ch_log_record *record, void *arg)
{
    (void)arg;
    if (strcmp(record->code, "trace") == 0)
        snprintf(warned, sizeof(warned), "%s", record->text);
}

static void trace_reports_missing_spans_in_file_and_log_past_its_limit(void **state)
{
    t_trace *t;

    t_ok(ch__config_set("trace_limit", "10"));
    ch_log_set_sink(keep_warning, NULL, CH_LOG_WARNING);
    t_ok(ch__trace_open(path()));
    for (int i = 0; i < 25; i++)
        span("GPU:0", "step");
    t_ok(ch__trace_close());
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    t_ok(ch__config_set("trace_limit", "250000"));
    t = t_trace_read(path());
    assert_int_equal(t->n_spans, 10);
    assert_non_null(strstr(t->labels, "15 events are missing"));
    assert_non_null(strstr(t->labels, "COHORT_TRACE_LIMIT is 10"));
    assert_non_null(strstr(warned, "full after 10 events; 15 later events were dropped"));
    free(t);
    (void)state;
}

static char gpu[] = "GPU:0";

static void *write_many(void *track)
{
    for (int i = 0; i < 500; i++)
        span(track, "a name that is not so short, so that blocks fill up and go to the file, "
                    "while others write theirs, and then some");
    return NULL;
}

static void trace_accepts_spans_of_several_threads(void **state)
{
    pthread_t thread[4];
    char      name[4][16];
    t_trace  *t;

    t_ok(ch__trace_open(path()));
    for (int i = 0; i < 4; i++) {
        snprintf(name[i], sizeof(name[i]), "thread %d", i);
        assert_int_equal(pthread_create(&thread[i], NULL, write_many, name[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    t_ok(ch__trace_close());
    t = t_trace_read(path());
    assert_int_equal(t->n_spans, 2000);
    assert_int_equal(t->n_tracks, 4);
    free(t);
    (void)state;
}

/* Spans that are written after the trace was closed are not in the file and cause no fault. */
static void trace_can_be_closed_and_opened_while_threads_write(void **state)
{
    static char name[] = "busy";
    pthread_t   thread;

    for (int i = 0; i < 20; i++) {
        t_ok(ch__trace_open(path()));
        assert_int_equal(pthread_create(&thread, NULL, write_many, name), 0);
        t_ok(ch__trace_close());
        free(t_trace_read(path()));
        pthread_join(thread, NULL);
    }
    (void)state;
}

static void trace_open_rejects_a_second_trace(void **state)
{
    t_ok(ch__trace_open(path()));
    t_refused(ch__trace_open(t_path("another.json")), CH_FAILED_PRECONDITION, "another.json",
              "trace.json");
    t_ok(ch__trace_close());
    t_refused(ch__trace_open(NULL), CH_INVALID_ARGUMENT, "trace", "path");
    (void)state;
}

static void trace_reports_file_errors_on_open_and_close(void **state)
{
    t_refused(ch__trace_open("/nowhere/to/be/found.json"), CH_NOT_FOUND, "trace", "/nowhere");
    t_refused(ch__trace_open("/dev/full"), CH_RESOURCE_EXHAUSTED, "/dev/full", "space");
    assert_false(ch__trace_is_on());
    t_ok(ch__trace_open(path()));
    ch__file_fail_at(1, EIO);
    write_many(gpu);
    ch__file_fail_at(0, 0);
    assert_false(ch__trace_is_on());
    t_refused(ch__trace_close(), CH_DATA_LOSS, "trace.json", "could not be written completely");
    ch__file_fail_at(1, EIO);
    assert_int_not_equal(ch__trace_open(path()), CH_OK);
    ch__file_fail_at(0, 0);
    t_ok(ch__trace_close());
    (void)state;
}

static void trace_counts_lost_spans_when_out_of_memory(void **state)
{
    int64_t  live = ch__mem_live();
    t_trace *t;

    ch__mem_fail_from(1);
    t_refused(ch__trace_open(path()), CH_RESOURCE_EXHAUSTED, "trace", "");
    ch__mem_fail_from(0);
    t_ok(ch__trace_open(path()));
    ch__mem_fail_from(1);
    span("GPU:0", "lost");
    ch__mem_fail_from(0);
    span("GPU:0", "kept");
    t_ok(ch__trace_close());
    t = t_trace_read(path());
    assert_int_equal(t->n_spans, 1);
    assert_non_null(strstr(t->labels, "1 events"));
    free(t);
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

static void trace_file_is_not_written_by_a_forked_child(void **state)
{
    int      status = 0;
    pid_t    child;
    t_trace *t;

    t_ok(ch__trace_open(path()));
    span("GPU:0", "before");
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        write_many(gpu);
        _exit(ch__trace_close() == CH_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    span("GPU:0", "after");
    t_ok(ch__trace_close());
    t = t_trace_read(path());
    assert_int_equal(t->n_spans, 2);
    free(t);
    (void)state;
}

/* ---- a trace that a setting opens, in a separate process that does not close it ---- */

static void answer(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_enter(s, "life");
    ch_step_out(s, NULL, ch_square(ch_step_in(s, 0)));
    ch_step_leave(s);
}

static int run_and_end(void)
{
    ch_function *f = t_function(answer, NULL);
    ch_tuple    *in = t_tuple(1, (ch_tensor *[]){t_noise(ch_shape_of(8, 8), 1)});

    for (int i = 0; i < 3; i++)
        t_ok(ch_strategy_run(NULL, f, in, NULL));
    ch_tuple_unref(in);
    ch_function_unref(f);
    return 0;
}

static int run_again_with(const char *file)
{
    int   status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        setenv("COHORT_TRACE", file, 1);
        execl("/proc/self/exe", "traced", "run", (char *)NULL);
        _exit(9);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void trace_setting_opens_the_file_and_process_exit_closes_it(void **state)
{
    t_trace *t;

    assert_int_equal(run_again_with(path()), 0);
    t = t_trace_read(path());
    assert_string_equal(t->process, "traced");
    assert_int_equal(t->n_tracks, 1);
    assert_int_equal(t_count(t, "CPU:0", "step"), 3);
    assert_int_equal(t_count(t, "CPU:0", "life/"), 3);
    assert_int_equal(t->n_spans, 6);
    free(t);
    (void)state;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trace_without_spans_is_a_complete_file),
        cmocka_unit_test(trace_spans_are_on_tracks_with_their_times),
        cmocka_unit_test(trace_end_writes_a_span_on_the_track_of_its_thread),
        cmocka_unit_test(trace_escapes_names_as_json_strings),
        cmocka_unit_test(trace_reports_missing_spans_in_file_and_log_past_its_limit),
        cmocka_unit_test(trace_accepts_spans_of_several_threads),
        cmocka_unit_test(trace_can_be_closed_and_opened_while_threads_write),
        cmocka_unit_test(trace_open_rejects_a_second_trace),
        cmocka_unit_test(trace_reports_file_errors_on_open_and_close),
        cmocka_unit_test(trace_counts_lost_spans_when_out_of_memory),
        cmocka_unit_test(trace_file_is_not_written_by_a_forked_child),
        cmocka_unit_test(trace_setting_opens_the_file_and_process_exit_closes_it),
    };

    (void)argv;
    return argc > 1 ? run_and_end()
                    : cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}

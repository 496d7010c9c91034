/* test/base/test_log.c -- the sink, the level and the default output of log records.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

typedef struct {
    int          n, n_inside;
    ch_log_level level;
    char         code[32], text[4096];
} heard;

static void listen(const ch_log_record *r, void *arg)
{
    heard *h = arg;

    assert_int_equal(h->n_inside++, 0); /* one thread at a time, and no nested call */
    h->n++;
    h->level = r->level;
    snprintf(h->code, sizeof(h->code), "%s", r->code);
    snprintf(h->text, sizeof(h->text), "%s", r->text);
    ch__log(CH_LOG_ERROR, "nested", "a sink may use the library, which may log");
    h->n_inside--;
}

static int restore_default(void **state)
{
    ch_log_set_sink(NULL, NULL, CH_LOG_DEBUG);
    (void)state;
    return 0;
}

static void log_sink_gets_level_code_and_text(void **state)
{
    heard h = {0};

    ch_log_set_sink(listen, &h, CH_LOG_INFO);
    ch__log(CH_LOG_INFO, "program-cache", "%d programs", 3);
    assert_int_equal(h.n, 1);
    assert_int_equal(h.level, CH_LOG_INFO);
    assert_string_equal(h.code, "program-cache");
    assert_string_equal(h.text, "3 programs");
    (void)state;
}

static void log_sink_gets_only_its_levels(void **state)
{
    heard h = {0};

    ch_log_set_sink(listen, &h, CH_LOG_WARNING);
    assert_false(ch__log_is_enabled(CH_LOG_INFO));
    assert_true(ch__log_is_enabled(CH_LOG_WARNING));
    ch__log(CH_LOG_INFO, "x", "no");
    ch__log(CH_LOG_DEBUG, "x", "no");
    assert_int_equal(h.n, 0);
    ch__log(CH_LOG_ERROR, "x", "yes");
    assert_int_equal(h.n, 1);
    (void)state;
}

static void log_record_is_one_line(void **state)
{
    heard h = {0};

    ch_log_set_sink(listen, &h, CH_LOG_INFO);
    ch__log(CH_LOG_INFO, "x", "path %s", "a\nb\r\n");
    assert_string_equal(h.text, "path a b  ");
    (void)state;
}

static void log_accepts_text_of_any_length(void **state)
{
    heard h = {0};

    ch_log_set_sink(listen, &h, CH_LOG_INFO);
    ch__log(CH_LOG_INFO, "x", "%5000s", "end");
    assert_int_equal(h.n, 1);
    assert_true(strlen(h.text) >= 1024);
    (void)state;
}

static void *log_a_hundred(void *arg)
{
    for (int i = 0; i < 100; i++)
        ch__log(CH_LOG_INFO, "x", "record %d", i);
    return arg;
}

static void log_sink_is_called_by_one_thread_at_a_time(void **state)
{
    heard     h = {0};
    pthread_t id[4];

    ch_log_set_sink(listen, &h, CH_LOG_INFO);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&id[i], NULL, log_a_hundred, NULL), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(id[i], NULL), 0);
    assert_int_equal(h.n, 400);
    (void)state;
}

/* Copies the text that the default sink writes to stderr for a record of each level. */
static void default_output(char *out, int bytes)
{
    FILE  *file = tmpfile();
    int    saved = dup(STDERR_FILENO);
    size_t n;

    assert_non_null(file);
    dup2(fileno(file), STDERR_FILENO);
    for (int level = CH_LOG_DEBUG; level <= CH_LOG_ERROR; level++)
        ch__log((ch_log_level)level, "code", "level %d", level);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(file);
    n = fread(out, 1, (size_t)bytes - 1, file);
    out[n] = '\0';
    fclose(file);
}

static void default_log_sink_writes_prints_warnings_and_errors_to_stderr(void **state)
{
    char  out[256];
    heard h = {0};

    for (int again = 0; again < 2; again++) {
        default_output(out, sizeof(out));
        assert_string_equal(out, "cohort: print [code]: level 2\n"
                                 "cohort: warning [code]: level 3\n"
                                 "cohort: error [code]: level 4\n");
        ch_log_set_sink(listen, &h, CH_LOG_DEBUG);
        ch_log_set_sink(NULL, NULL, CH_LOG_DEBUG); /* restores the default sink and its level */
    }
    (void)state;
}

static void log_levels_have_names(void **state)
{
    assert_string_equal(ch_log_level_name(CH_LOG_DEBUG), "debug");
    assert_string_equal(ch_log_level_name(CH_LOG_ERROR), "error");
    assert_string_equal(ch_log_level_name((ch_log_level)99), "unknown");
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(log_sink_gets_level_code_and_text, restore_default),
        cmocka_unit_test_teardown(log_sink_gets_only_its_levels, restore_default),
        cmocka_unit_test_teardown(log_record_is_one_line, restore_default),
        cmocka_unit_test_teardown(log_accepts_text_of_any_length, restore_default),
        cmocka_unit_test_teardown(log_sink_is_called_by_one_thread_at_a_time, restore_default),
        cmocka_unit_test(default_log_sink_writes_prints_warnings_and_errors_to_stderr),
        cmocka_unit_test(log_levels_have_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test/base/test_status.c -- status codes, error messages, and errors that cross threads.
 *
 * An error message belongs to the thread in which it was set. A ch_fault carries the first
 * error of several threads, with its message, to the thread that raises it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <string.h>

#include "base/fault.h"
#include "cohort/status.h"

static void *make_an_error(void *arg)
{
    (void)ch__fail(CH_NOT_FOUND, "from another thread");
    return arg;
}

static void run_in_a_thread(void *(*run)(void *), void *arg)
{
    pthread_t id;

    assert_int_equal(pthread_create(&id, NULL, run, arg), 0);
    assert_int_equal(pthread_join(id, NULL), 0);
}

static void status_codes_have_a_name_a_text_and_what_they_break(void **state)
{
    for (int rc = CH_OK; rc < CH_STATUS_COUNT; rc++) {
        assert_true(strlen(ch_status_name((ch_status)rc)) > 0);
        assert_true(strlen(ch_status_text((ch_status)rc)) > 0);
        assert_int_equal(ch_status_breaks((ch_status)rc) == CH_BREAKS_NOTHING, rc == CH_OK);
    }
    assert_string_equal(ch_status_name(CH_INVALID_ARGUMENT), "INVALID_ARGUMENT");
    assert_int_equal(ch_status_breaks(CH_UNAVAILABLE), CH_BREAKS_PEER);
    assert_int_equal(ch_status_breaks(CH_DATA_LOSS), CH_BREAKS_JOB);
    (void)state;
}

static void status_name_is_unknown_when_the_number_is_no_code(void **state)
{
    assert_string_equal(ch_status_name(CH_STATUS_COUNT), "UNKNOWN");
    assert_string_equal(ch_status_name((ch_status)-1), "UNKNOWN");
    assert_int_equal(ch_status_breaks((ch_status)1000), CH_BREAKS_CALL);
    (void)state;
}

static void error_message_is_empty_in_a_thread_that_never_failed(void **state)
{
    assert_string_equal(ch_error_message(), ""); /* must run before any test that fails */
    (void)state;
}

static void fail_returns_its_code_and_sets_the_message(void **state)
{
    assert_int_equal(ch__fail(CH_OUT_OF_RANGE, "row %d of %d", 7, 5), CH_OUT_OF_RANGE);
    assert_string_equal(ch_error_message(), "row 7 of 5");
    assert_int_equal(ch__fail_memory("arena"), CH_RESOURCE_EXHAUSTED);
    assert_string_equal(ch_error_message(), "arena: out of memory");
    (void)state;
}

static void public_fail_sets_the_message_unless_the_status_is_ok(void **state)
{
    assert_int_equal(ch_fail(CH_DATA_LOSS, "%s, row %d", "a.csv", 3), CH_DATA_LOSS);
    assert_string_equal(ch_error_message(), "a.csv, row 3");
    assert_int_equal(ch_fail(CH_OK, "nothing is wrong"), CH_OK);
    assert_string_equal(ch_error_message(), "a.csv, row 3");
    (void)state;
}

static void fail_since_gives_a_status_without_message_its_default_text(void **state)
{
    (void)ch__fail(CH_INTERNAL, "earlier");
    uint64_t mark = ch__fail_mark();
    assert_int_equal(ch__fail_since(mark, CH_OK), CH_OK);
    assert_string_equal(ch_error_message(), "earlier");
    assert_int_equal(ch__fail_since(mark, CH_NOT_FOUND), CH_NOT_FOUND);
    assert_string_equal(ch_error_message(), "no such thing");
    mark = ch__fail_mark();
    assert_int_equal(ch__fail_since(mark, ch_fail(CH_ABORTED, "later")), CH_ABORTED);
    assert_string_equal(ch_error_message(), "later");
    (void)state;
}

static void fail_accepts_the_current_message_as_an_argument(void **state)
{
    (void)ch__fail(CH_INTERNAL, "inner");
    (void)ch__fail(CH_INTERNAL, "outer, then %s", ch_error_message());
    assert_string_equal(ch_error_message(), "outer, then inner");
    (void)state;
}

static void fail_at_puts_its_prefix_before_the_message(void **state)
{
    (void)ch__fail(CH_INVALID_ARGUMENT, "bad axis");
    assert_int_equal(ch__fail_at(CH_INVALID_ARGUMENT, "node %d", 3), CH_INVALID_ARGUMENT);
    assert_string_equal(ch_error_message(), "node 3: bad axis");
    (void)state;
}

static void error_message_is_cut_with_dots_when_too_long(void **state)
{
    char text[2 * CH_FAULT_TEXT];

    memset(text, 'x', sizeof(text));
    text[CH_FAULT_TEXT - 1] = '\0';
    (void)ch__fail(CH_UNKNOWN, "%s", text);
    assert_string_equal(ch_error_message(), text); /* just fits */

    text[CH_FAULT_TEXT - 1] = 'x';
    text[sizeof(text) - 1] = '\0';
    (void)ch__fail(CH_UNKNOWN, "%s", text);
    assert_int_equal(strlen(ch_error_message()), CH_FAULT_TEXT - 1);
    assert_string_equal(ch_error_message() + CH_FAULT_TEXT - 5, "x...");
    (void)state;
}

static void error_message_cut_does_not_split_a_character(void **state)
{
    char text[2 * CH_FAULT_TEXT];

    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (i % 2 == 0) ? '\xC3' : '\xA9'; /* e with an acute accent */
    text[sizeof(text) - 2] = '\0';
    for (int shift = 0; shift < 2; shift++) {
        const char *dots;

        (void)ch__fail(CH_UNKNOWN, "%s%s", shift ? "x" : "", text);
        dots = strstr(ch_error_message(), "...");
        assert_non_null(dots);
        assert_int_equal((unsigned char)dots[-1], 0xA9);
    }
    (void)state;
}

static void error_message_belongs_to_its_thread(void **state)
{
    (void)ch__fail(CH_INTERNAL, "mine");
    run_in_a_thread(make_an_error, NULL);
    assert_string_equal(ch_error_message(), "mine");
    (void)state;
}

static void a_fault_without_error_raises_nothing(void **state)
{
    ch_fault f = {0};

    assert_false(ch__fault_is_set(&f));
    assert_int_equal(ch__fault_raise(&f), CH_OK);
    (void)state;
}

static void fault_record_keeps_the_first_error(void **state)
{
    ch_fault f = {0};

    (void)ch__fail(CH_NOT_FOUND, "first");
    assert_true(ch__fault_record(&f, CH_NOT_FOUND, -1, NULL));
    (void)ch__fail(CH_INTERNAL, "second");
    assert_false(ch__fault_record(&f, CH_INTERNAL, -1, NULL));
    assert_int_equal(ch__fault_raise(&f), CH_NOT_FOUND);
    assert_string_equal(ch_error_message(), "first");
    (void)state;
}

static void fault_raise_names_replica_and_op(void **state)
{
    ch_fault f = {0};

    (void)ch__fail(CH_INVALID_ARGUMENT, "id 7 at position 3");
    assert_true(ch__fault_record(&f, CH_INVALID_ARGUMENT, 1, "gather"));
    assert_int_equal(ch__fault_raise(&f), CH_INVALID_ARGUMENT);
    assert_string_equal(ch_error_message(), "replica 1: gather: id 7 at position 3");
    (void)state;
}

static void fault_records_again_after_clear(void **state)
{
    ch_fault f = {0};

    (void)ch__fail(CH_INTERNAL, "old");
    assert_true(ch__fault_record(&f, CH_INTERNAL, 0, "op"));
    ch__fault_clear(&f);
    assert_false(ch__fault_is_set(&f));
    (void)ch__fail(CH_ABORTED, "new");
    assert_true(ch__fault_record(&f, CH_ABORTED, -1, NULL));
    assert_int_equal(ch__fault_raise(&f), CH_ABORTED);
    assert_string_equal(ch_error_message(), "new");
    (void)state;
}

static void *fail_and_take(void *arg)
{
    (void)make_an_error(NULL);
    (void)ch__fault_record(arg, CH_NOT_FOUND, 2, "");
    return NULL;
}

static void a_fault_carries_the_message_to_another_thread(void **state)
{
    ch_fault f = {0};

    run_in_a_thread(fail_and_take, &f);
    assert_true(ch__fault_is_set(&f));
    assert_int_equal(ch__fault_raise(&f), CH_NOT_FOUND);
    assert_string_equal(ch_error_message(), "replica 2: from another thread");
    (void)state;
}

static void fault_record_succeeds_in_one_of_many_threads(void **state)
{
    enum { N = 8 };
    ch_fault  f = {0};
    pthread_t id[N];

    for (int i = 0; i < N; i++)
        assert_int_equal(pthread_create(&id[i], NULL, fail_and_take, &f), 0);
    while (!ch__fault_is_set(&f))
        continue;
    assert_int_equal(ch__fault_raise(&f), CH_NOT_FOUND); /* threads may still record */
    assert_string_equal(ch_error_message(), "replica 2: from another thread");
    for (int i = 0; i < N; i++)
        assert_int_equal(pthread_join(id[i], NULL), 0);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_message_is_empty_in_a_thread_that_never_failed),
        cmocka_unit_test(status_codes_have_a_name_a_text_and_what_they_break),
        cmocka_unit_test(status_name_is_unknown_when_the_number_is_no_code),
        cmocka_unit_test(fail_returns_its_code_and_sets_the_message),
        cmocka_unit_test(public_fail_sets_the_message_unless_the_status_is_ok),
        cmocka_unit_test(fail_since_gives_a_status_without_message_its_default_text),
        cmocka_unit_test(fail_accepts_the_current_message_as_an_argument),
        cmocka_unit_test(fail_at_puts_its_prefix_before_the_message),
        cmocka_unit_test(error_message_is_cut_with_dots_when_too_long),
        cmocka_unit_test(error_message_cut_does_not_split_a_character),
        cmocka_unit_test(error_message_belongs_to_its_thread),
        cmocka_unit_test(a_fault_without_error_raises_nothing),
        cmocka_unit_test(fault_record_keeps_the_first_error),
        cmocka_unit_test(fault_raise_names_replica_and_op),
        cmocka_unit_test(fault_records_again_after_clear),
        cmocka_unit_test(a_fault_carries_the_message_to_another_thread),
        cmocka_unit_test(fault_record_succeeds_in_one_of_many_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test/graph/test_where.c -- source lines of code addresses.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "graph/where.h"

static int line;

__attribute__((noinline)) static void tell(char *text, size_t size)
{
    ch__where(__builtin_return_address(0), text, size);
}

static void address_of_this_program_resolves_to_file_and_line(void **state)
{
    char text[256], want[64];

    line = __LINE__ + 1;
    tell(text, sizeof(text));
    snprintf(want, sizeof(want), "test_where.c:%d", line);
#if CH_HAVE_LIBDW
    assert_string_equal(text, want);
#endif
    (void)state;
}

/* The cmocka library is an example of code that was compiled without -g. */
static void address_without_debug_information_resolves_to_offset_and_advice(void **state)
{
    int (*const program)(const char *, const struct CMUnitTest *, size_t, CMFixtureFunction,
                         CMFixtureFunction) = _cmocka_run_group_tests;
    char        text[256];
    const char *at;

    memcpy(&at, &program, sizeof(at)); /* C does not convert functions to addresses */
    ch__where(at + 4, text, sizeof(text));
    if (strstr(text, ".c:") != NULL)
        skip(); /* skipped if debug information of cmocka is installed */
    assert_non_null(strstr(text, "+0x"));
#if CH_HAVE_LIBDW
    assert_non_null(strstr(text, "(compile with -g to see the line)"));
#endif
    (void)state;
}

static void null_address_resolves_to_empty_text(void **state)
{
    char text[8] = "x";

    ch__where(NULL, text, sizeof(text));
    assert_string_equal(text, "");
    (void)state;
}

static void fail_in_adds_call_and_scope_to_the_message(void **state)
{
    (void)ch__fail(CH_INVALID_ARGUMENT, "concat: no");
    assert_int_equal(ch__fail_in(CH_ABORTED, "ch_stack", "a/b", NULL), CH_ABORTED);
    assert_string_equal(ch_error_message(), "stack: concat: no, in a/b");
    (void)ch__fail(CH_INVALID_ARGUMENT, "stack: no");
    (void)ch__fail_in(CH_ABORTED, "ch_stack", NULL, NULL);
    assert_string_equal(ch_error_message(), "stack: no");
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(address_of_this_program_resolves_to_file_and_line),
        cmocka_unit_test(address_without_debug_information_resolves_to_offset_and_advice),
        cmocka_unit_test(null_address_resolves_to_empty_text),
        cmocka_unit_test(fail_in_adds_call_and_scope_to_the_message),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

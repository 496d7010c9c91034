/* test/data/test_lines.c -- lines with any line ending, at any offset in a block.
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

#include "data/format/lines.h"
#include "random.h"

static void assert_lines(const char *text, const char *const *want)
{
    ch_reader *r = t_reader(text, strlen(text));
    ch_str     line;

    for (; *want != NULL; want++) {
        assert_int_equal(ch__line_next(r, 100, &line), CH_OK);
        assert_non_null(line.data);
        assert_int_equal(line.size, strlen(*want));
        assert_memory_equal(line.data, *want, line.size);
    }
    assert_int_equal(ch__line_next(r, 100, &line), CH_OK);
    assert_null(line.data);
    assert_int_equal(ch__line_next(r, 100, &line), CH_OK); /* and again */
    assert_null(line.data);
    ch__reader_close(r);
}

static void lines_end_with_a_newline_or_the_file(void **state)
{
    assert_lines("", (const char *[]){NULL});
    assert_lines("a", (const char *[]){"a", NULL});
    assert_lines("a\nb\n", (const char *[]){"a", "b", NULL});
    assert_lines("a\r\nb\r\n\r\n", (const char *[]){"a", "b", "", NULL});
    assert_lines("\n\na\rb\r\r\nc\r", (const char *[]){"", "", "a\rb\r", "c\r", NULL});
    (void)state;
}

static void line_next_rejects_a_line_that_is_too_long_and_line_pass_skips_it(void **state)
{
    const char *text = "1234\r\n12345\n1234";
    ch_reader  *r = t_reader(text, strlen(text));
    ch_str      line;
    bool        has_end = false;

    assert_int_equal(ch__line_next(r, 4, &line), CH_OK);
    assert_int_equal(line.size, 4);
    t_assert_error(ch__line_next(r, 4, &line), CH_RESOURCE_EXHAUSTED, t_folder, "byte 6",
                   "4 bytes");
    t_assert_error(ch__line_next(r, 4, &line), CH_RESOURCE_EXHAUSTED, "byte 6");
    assert_int_equal(ch__line_skip(r, 100, &has_end), CH_OK);
    assert_true(has_end);
    assert_int_equal(ch__line_next(r, 4, &line), CH_OK);
    assert_memory_equal(line.data, "1234", 4);
    has_end = false;
    assert_int_equal(ch__line_skip(r, 100, &has_end), CH_OK); /* of an empty file */
    assert_true(has_end);
    ch__reader_close(r);
    (void)state;
}

/* At most the largest line is held in memory. */
static void line_next_does_not_read_an_endless_line_to_its_end(void **state)
{
    size_t     n = 4 << 20;
    char      *text = malloc(n);
    ch_str     line;
    ch_reader *r;

    memset(text, 'x', n);
    r = t_reader(text, n);
    t_assert_error(ch__line_next(r, 1000, &line), CH_RESOURCE_EXHAUSTED, "byte 0", "1000");
    assert_in_range(r->block->bytes, 1, 1 << 20);
    ch__reader_close(r);
    free(text);
    (void)state;
}

/* Finds lines that cross blocks, and finds them again by a simple loop. */
static void lines_across_blocks_are_whole(void **state)
{
    size_t     n = 3 << 20, at = 0, seen = 0;
    char      *text = malloc(n);
    dice       d = {3};
    ch_reader *r;
    ch_str     line;
    bool       has_end;

    while (at < n) {
        size_t size = roll(&d, 200) == 0 ? roll(&d, 600000) : roll(&d, 100);

        for (size_t i = 0; i < size && at < n; i++)
            text[at++] = (char)('a' + (char)(i % 26));
        if (at < n)
            text[at++] = '\n';
    }
    r = t_reader(text, n);
    for (int k = 0;; k++) {
        size_t end = seen;

        while (end < n && text[end] != '\n')
            end++;
        if (k % 3 == 2) {
            do
                assert_int_equal(ch__line_skip(r, 1000, &has_end), CH_OK);
            while (!has_end);
        } else {
            assert_int_equal(ch__line_next(r, 1 << 20, &line), CH_OK);
            assert_int_equal(line.data != NULL, seen < n);
            assert_int_equal(line.size, end - seen);
            assert_true(seen == n || memcmp(line.data, text + seen, line.size) == 0);
        }
        if (seen >= n)
            break;
        seen = end < n ? end + 1 : n;
    }
    ch__reader_close(r);
    free(text);
    (void)state;
}

static void line_next_leaks_nothing_when_out_of_memory(void **state)
{
    size_t    n = 2 << 20;
    char     *text = malloc(n);
    int64_t   live = ch__mem_live();
    ch_status rc = CH_RESOURCE_EXHAUSTED;

    memset(text, 'x', n);
    for (int k = 1; rc != CH_OK; k++) {
        ch_reader *r = t_reader(text, n);
        ch_str     line;

        ch__mem_fail_at(k);
        rc = ch__line_next(r, INT64_MAX, &line);
        ch__mem_fail_at(0);
        assert_true(rc == CH_OK || rc == CH_RESOURCE_EXHAUSTED);
        ch__reader_close(r);
        assert_int_equal(ch__mem_live(), live);
    }
    free(text);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_end_with_a_newline_or_the_file),
        cmocka_unit_test(line_next_rejects_a_line_that_is_too_long_and_line_pass_skips_it),
        cmocka_unit_test(line_next_does_not_read_an_endless_line_to_its_end),
        cmocka_unit_test(lines_across_blocks_are_whole),
        cmocka_unit_test(line_next_leaks_nothing_when_out_of_memory),
    };
    return cmocka_run_group_tests_name("lines", tests, t_setup, t_folder_remove);
}

/* test/base/test_terminal.c -- abilities of terminals, and the live line at the bottom of a
 * terminal.
 *
 * The tests use pseudo-terminals. They check escape sequences, colours, UTF-8 and width against
 * environment variables, and that text printed above the live line keeps the line.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/log.h"
#include "base/terminal.h"
#include "pseudo_terminal.h"

/* Both ends of a pseudo-terminal. */
typedef struct {
    int reader, writer;
} pair;

static pair open_terminal(void)
{
    pair p;

    t_terminal(&p.reader, &p.writer);
    return p;
}

static pair open_pipe(void)
{
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    return (pair){ends[0], ends[1]};
}

static void close_both(pair p)
{
    close(p.reader);
    close(p.writer);
}

/* Reads all that was written in a single read, because it is far less than a terminal
 * buffers. */
static const char *arrived(pair p)
{
    static char text[4096];
    ssize_t     n = read(p.reader, text, sizeof(text) - 1);

    assert_true(n >= 0);
    text[n] = '\0';
    return text;
}

static void terminal_abilities_follow_term_and_no_color(void **state)
{
    pair p = open_terminal(), q = open_pipe();

    unsetenv("NO_COLOR");
    setenv("TERM", "xterm-256color", 1);
    assert_true(ch__terminal(p.writer).can_erase && ch__terminal(p.writer).has_color);
    assert_false(ch__terminal(q.writer).can_erase || ch__terminal(q.writer).has_color);
    assert_false(ch__terminal(-1).can_erase);
    setenv("NO_COLOR", "1", 1);
    assert_true(ch__terminal(p.writer).can_erase && !ch__terminal(p.writer).has_color);
    setenv("NO_COLOR", "", 1);
    assert_true(ch__terminal(p.writer).has_color);
    setenv("TERM", "dumb", 1);
    assert_false(ch__terminal(p.writer).can_erase || ch__terminal(p.writer).has_color);
    unsetenv("TERM");
    assert_false(ch__terminal(p.writer).can_erase);
    close_both(p);
    close_both(q);
    (void)state;
}

static void utf8_is_decided_by_the_first_locale_variable_that_is_set(void **state)
{
    unsetenv("LC_ALL");
    unsetenv("LC_CTYPE");
    unsetenv("LANG");
    assert_false(ch__locale_is_utf8());
    setenv("LANG", "de_DE.UTF-8", 1);
    assert_true(ch__locale_is_utf8());
    setenv("LC_CTYPE", "C", 1);
    assert_false(ch__locale_is_utf8());
    setenv("LC_ALL", "C.utf8", 1);
    assert_true(ch__locale_is_utf8());
    setenv("LC_ALL", "de_DE.ISO-8859-1", 1);
    assert_false(ch__locale_is_utf8());
    setenv("LC_ALL", "", 1);
    setenv("LC_CTYPE", "de_DE.utf8@euro", 1);
    assert_true(ch__locale_is_utf8());
    (void)state;
}

static void terminal_columns_are_the_lesser_of_variable_and_window(void **state)
{
    pair           p = open_terminal(), q = open_pipe();
    struct winsize size = {.ws_row = 24, .ws_col = 100};

    setenv("COLUMNS", "60", 1);
    assert_int_equal(ioctl(p.reader, TIOCSWINSZ, &size), 0);
    assert_int_equal(ch__terminal_columns(p.writer), 60);
    setenv("COLUMNS", "", 1);
    assert_int_equal(ch__terminal_columns(p.writer), 100);
    setenv("COLUMNS", "200", 1);
    assert_int_equal(ch__terminal_columns(p.writer), 100);
    setenv("COLUMNS", "60", 1);
    size.ws_col = 33;
    assert_int_equal(ioctl(p.reader, TIOCSWINSZ, &size), 0);
    assert_int_equal(ch__terminal_columns(p.writer), 33);
    assert_int_equal(ch__terminal_columns(q.writer), 60);
    size.ws_col = 0;
    assert_int_equal(ioctl(p.reader, TIOCSWINSZ, &size), 0);
    assert_int_equal(ch__terminal_columns(p.writer), 60);
    setenv("COLUMNS", "wide", 1);
    assert_int_equal(ch__terminal_columns(q.writer), 80);
    setenv("COLUMNS", "-3", 1);
    assert_int_equal(ch__terminal_columns(q.writer), 80);
    unsetenv("COLUMNS");
    assert_int_equal(ch__terminal_columns(q.writer), 80);
    close_both(p);
    close_both(q);
    (void)state;
}

static void write_all_fails_when_not_all_bytes_are_written(void **state)
{
    int full = open("/dev/full", O_WRONLY);

    assert_false(ch__write_all(full, "x", 1));
    assert_true(ch__write_all(full, "x", 0));
    assert_false(ch__write_all(-1, "x", 1));
    close(full);
    (void)state;
}

/* Line wrapping is off while the live line is drawn. */
#define NO  "\033[?7l"
#define YES "\033[?7h"

static void live_line_has_one_owner_at_a_time(void **state)
{
    pair p = open_pipe();

    assert_true(ch__live_set(p.writer, true));
    assert_false(ch__live_set(p.writer, true));
    ch__live_end(NULL); /* the live line was not drawn: no newline */
    assert_true(ch__live_set(p.writer, true));
    ch__live_draw("one", 3, 80);
    ch__live_draw("two", 3, 80);
    ch__live_draw("three", 5, 40);
    ch__live_end("last\nand more");
    assert_string_equal(arrived(p), "\r\033[J" NO "one" YES "\r\r" NO "two" YES "\033[K\r"
                                    "\r\033[J" NO "three" YES "\r"
                                    "\r\033[Jlast\nand more\n");
    close_both(p);
    (void)state;
}

static void live_line_is_erased_with_blanks_without_escape_sequences(void **state)
{
    pair p = open_pipe();

    assert_true(ch__live_set(p.writer, false));
    ch__live_draw("three", 5, 80);
    ch__live_draw("two", 3, 80);
    ch__live_end(NULL);
    assert_string_equal(arrived(p), "\r\rthree\r\r     \rtwo\r\n");
    close_both(p);
    (void)state;
}

static void print_above_keeps_the_live_line_below(void **state)
{
    pair p = open_pipe();
    int  saved = dup(STDERR_FILENO);

    assert_true(ch__live_set(p.writer, true));
    ch__print_above(p.writer, "first\n", 6);
    assert_string_equal(arrived(p), "first\n");
    ch__live_draw("bar", 3, 80);
    ch__print_above(p.writer, "text\n", 5);
    assert_string_equal(arrived(p),
                        "\r\033[J" NO "bar" YES "\r\r\033[Jtext\n\r\033[J" NO "bar" YES "\r");
    fflush(stderr);
    dup2(p.writer, STDERR_FILENO);
    ch__log(CH_LOG_WARNING, "code", "a record");
    dup2(saved, STDERR_FILENO);
    close(saved);
    assert_string_equal(arrived(p),
                        "\r\033[Jcohort: warning [code]: a record\n\r\033[J" NO "bar" YES "\r");
    ch__live_leave();
    ch__live_end(NULL);
    assert_string_equal(arrived(p), "\n\n");
    ch__live_leave(); /* there is no live line */
    ch__print_above(p.writer, "end\n", 4);
    assert_string_equal(arrived(p), "end\n");
    close_both(p);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(terminal_abilities_follow_term_and_no_color),
        cmocka_unit_test(utf8_is_decided_by_the_first_locale_variable_that_is_set),
        cmocka_unit_test(terminal_columns_are_the_lesser_of_variable_and_window),
        cmocka_unit_test(write_all_fails_when_not_all_bytes_are_written),
        cmocka_unit_test(live_line_has_one_owner_at_a_time),
        cmocka_unit_test(live_line_is_erased_with_blanks_without_escape_sequences),
        cmocka_unit_test(print_above_keeps_the_live_line_below),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test/fit/test_picture.c -- images as text, as the examples print them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../../examples/picture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../base/pseudo_terminal.h"

static void speak(const char *locale)
{
    unsetenv("LC_ALL");
    unsetenv("LC_CTYPE");
    setenv("LANG", locale, 1);
}

/* Prints to memory, which is not a terminal. */
static void expect_characters(int height, int width, const uint8_t *x, const char *want)
{
    char  *text = NULL;
    size_t n;
    FILE  *f = open_memstream(&text, &n);

    print_picture(f, height, width, x);
    fclose(f);
    assert_string_equal(text, want);
    free(text);
}

static void picture_draws_two_rows_as_a_line_of_shades(void **state)
{
    const uint8_t x[] = {0, 2, 4, 0, 2, 4, 0, 0, 4}, grey[] = {7, 7, 7, 7};

    speak("C");
    expect_characters(3, 3, x, " =@\n  @\n");
    expect_characters(2, 2, grey, "  \n");
    expect_characters(0, 3, x, "");
    speak("C.UTF-8");
    expect_characters(3, 3, x, " \u2592\u2588\n  \u2588\n");
    (void)state;
}

/* Prints to a terminal, which puts a carriage return before a newline. */
static void expect_on_terminal(int height, int width, const uint8_t *x, const char *want)
{
    char    text[512];
    ssize_t n;
    int     main_side, side;
    FILE   *f;

    t_terminal(&main_side, &side);
    f = fdopen(side, "w");
    print_picture(f, height, width, x);
    fflush(f);
    n = read(main_side, text, sizeof(text) - 1);
    assert_true(n > 0);
    text[n] = '\0';
    assert_string_equal(text, want);
    fclose(f);
    close(main_side);
}

static void picture_is_grey_on_a_terminal_with_colors(void **state)
{
    const uint8_t x[] = {0, 1, 1, 0}, same[] = {1, 1, 0, 0, 0, 0};

    speak("C.UTF-8");
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    expect_on_terminal(2, 2, x,
                       "\033[38;5;232;48;5;255m\u2580\033[38;5;255;48;5;232m\u2580\033[0m\r\n");
    expect_on_terminal(2, 2, same,
                       "\033[38;5;255;48;5;232m\u2580\u2580\033[0m\r\n"); /* once for both */
    setenv("NO_COLOR", "1", 1);
    expect_on_terminal(2, 2, x, "\u2592\u2592\r\n");
    unsetenv("NO_COLOR");
    setenv("TERM", "dumb", 1);
    expect_on_terminal(2, 2, x, "\u2592\u2592\r\n");
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(picture_draws_two_rows_as_a_line_of_shades),
        cmocka_unit_test(picture_is_grey_on_a_terminal_with_colors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

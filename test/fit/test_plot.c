/* test/fit/test_plot.c -- small pictures for terminals.   SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../base/pseudo_terminal.h"
#include "fit/plot.h"

static void speak(const char *locale)
{
    unsetenv("LC_ALL");
    unsetenv("LC_CTYPE");
    setenv("LANG", locale, 1);
}

static void expect(int n, const double *y, int columns, int rows, const char *want)
{
    char text[4096];
    int  length = ch__plot(n, y, columns, rows, text, sizeof(text));

    assert_string_equal(text, want);
    assert_int_equal(length, strlen(want));
}

static void plot_draws_a_line_between_numbers(void **state)
{
    double y[] = {4, 3, 2, 1};

    speak("C");
    expect(4, y, 24, 6,
           "4 +****\n"
           "  |    *******\n"
           "  |           ******\n"
           "1 +                 ****\n"
           "  +---------------------\n"
           "   1                   4\n");
    speak("C.UTF-8");
    expect(4, y, 24, 4,
           "4 ┤⠉⠉⠒⠒⠒⠢⠤⠤⢄⣀⡀\n"
           "1 ┤          ⠈⠉⠑⠒⠒⠢⠤⠤⠤⣀⣀\n"
           "  └─────────────────────\n"
           "   1                   4\n");
    (void)state;
}

static void plot_leaves_a_gap_for_numbers_that_are_not_finite(void **state)
{
    double y[] = {2, 2, NAN, 1, INFINITY, 2, -INFINITY};

    speak("C");
    expect(7, y, 24, 4,
           "2 +****             *\n"
           "1 +          *\n"
           "  +---------------------\n"
           "   1                   7\n");
    (void)state;
}

static void plot_draws_equal_numbers_in_the_middle(void **state)
{
    double y[] = {0.5, 0.5};

    speak("C");
    expect(2, y, 24, 5,
           "    |\n"
           "0.5 +*******************\n"
           "    |\n"
           "    +-------------------\n"
           "     1                 2\n");
    expect(1, y, 24, 5,
           "    |\n"
           "0.5 +*\n"
           "    |\n"
           "    +-------------------\n"
           "     1\n");
    (void)state;
}

static void plot_without_numbers_draws_the_axes_alone(void **state)
{
    double      y[] = {NAN, NAN};
    const char *axes = "  |\n"
                       "  |\n"
                       "  +---------------------\n"
                       "   0\n";

    speak("C");
    expect(0, y, 24, 4, axes);
    expect(-1, y, 24, 4, axes);
    expect(3, NULL, 24, 4, axes);
    expect(2, y, 24, 4,
           "  |\n"
           "  |\n"
           "  +---------------------\n"
           "   1                   2\n");
    (void)state;
}

/* How many lines there are, and the columns of the longest: a character is a column. */
static void measure(const char *text, int *lines, int *columns)
{
    *lines = *columns = 0;
    for (int at = 0; *text != '\0'; text++) {
        at = *text == '\n' ? 0 : at + (((unsigned char)*text & 0xc0) != 0x80);
        *lines += *text == '\n';
        *columns = at > *columns ? at : *columns;
    }
}

static void plot_has_the_given_size_within_limits(void **state)
{
    static char text[80000];
    double      y[1000];
    int         sizes[][4] = {{30, 5, 30, 5},
                              {240, 64, 240, 64},
                              {1000, 1000, 240, 64},
                              {1, 1, 24, 4},
                              {-5, -5, 24, 4}};
    int         lines, columns;

    for (int i = 0; i < 1000; i++)
        y[i] = 1.2345e-300 * sin(i);
    for (int utf8 = 0; utf8 < 2; utf8++)
        for (int i = 0; i < 5; i++) {
            speak(utf8 ? "C.utf8" : "C");
            assert_true(ch__plot(1000, y, sizes[i][0], sizes[i][1], text, sizeof(text)) <
                        (int)sizeof(text));
            measure(text, &lines, &columns);
            assert_int_equal(columns, sizes[i][2]);
            assert_int_equal(lines, sizes[i][3]);
        }
    (void)state;
}

static void plot_draws_numbers_of_any_size(void **state)
{
    double y[] = {-1.7e308, 1.7e308};
    char   text[2048];

    speak("C");
    assert_true(ch__plot(2, y, 40, 8, text, sizeof(text)) > 0);
    assert_non_null(strstr(text, " 1.7e+308 +"));
    assert_non_null(strstr(text, "-1.7e+308 +*"));
    (void)state;
}

static void plot_axis_has_a_unit(void **state)
{
    double y[] = {2, 1};
    char   text[512];

    speak("C");
    ch__plot_over(&(ch_plot_axis){"step", 1, 2814}, 2, y, 24, 4, text, sizeof(text));
    assert_string_equal(text, "2 +***********\n"
                              "1 +           **********\n"
                              "  +---------------------\n"
                              "   step 1           2814\n");
    ch__plot_over(&(ch_plot_axis){"epoch", 1, 1}, 1, y, 24, 4, text, sizeof(text));
    assert_non_null(strstr(text, "\n   epoch 1\n"));
    ch__plot_over(&(ch_plot_axis){"a unit with a long name", 1, 9}, 2, y, 24, 4, text,
                  sizeof(text));
    assert_non_null(strstr(text, "\n   a unit with a long name 1\n"));
    (void)state;
}

static void plot_returns_the_length_when_the_text_does_not_fit(void **state)
{
    double y[] = {1, 2, 3};
    float  x[] = {1, 2};
    char   text[8] = "before", lines[30];
    int    whole;

    speak("C");
    whole = ch__plot(3, y, 24, 4, NULL, 0);
    assert_int_equal(ch__plot(3, y, 24, 4, text, sizeof(text)), whole);
    assert_string_equal(text, ""); /* whole lines, of which none fits */
    assert_int_equal(ch__plot(3, y, 24, 4, lines, sizeof(lines)), whole);
    assert_string_equal(lines, "3 +      ***************\n");
    assert_int_equal(ch__picture(1, 2, x, NULL, 0), 3);
    (void)state;
}

/* ---- pixels ---- */

static void expect_picture(int height, int width, const float *x, const char *want)
{
    char text[512];

    assert_int_equal(ch__picture(height, width, x, text, sizeof(text)), strlen(want));
    assert_string_equal(text, want);
}

/* Standard output is a file while it lasts. */
static void picture_draws_two_rows_as_a_line_of_shades(void **state)
{
    float x[] = {0, 0.5f, 1, 0, 0.5f, 1, 0, 0, 1};
    float grey[] = {7, 7, 7, 7}, bad[] = {NAN, 0, 255, -INFINITY};
    int   saved = dup(STDOUT_FILENO), file = open("/dev/null", O_WRONLY);

    fflush(stdout);
    dup2(file, STDOUT_FILENO);
    speak("C");
    expect_picture(3, 3, x, " =@\n  @\n");
    expect_picture(2, 2, grey, "  \n");
    expect_picture(1, 4, bad, "  @ \n");
    speak("C.UTF-8");
    expect_picture(3, 3, x, " ▒█\n  █\n");
    expect_picture(0, 3, x, "");
    expect_picture(3, 3, NULL, "");
    dup2(saved, STDOUT_FILENO);
    close(saved);
    close(file);
    (void)state;
}

/* Whatever room there is, what is there are whole lines, which end without color. */
static void expect_cut_picture(void)
{
    static char text[4096];
    float       x[8 * 6];
    int         whole;

    for (int i = 0; i < 8 * 6; i++)
        x[i] = (float)((i * 7) % 48);
    whole = ch__picture(8, 6, x, NULL, 0);
    for (int size = 1; size <= whole + 1; size++) {
        size_t n;

        memset(text, 'x', sizeof(text));
        assert_int_equal(ch__picture(8, 6, x, text, (size_t)size), whole);
        n = strlen(text);
        assert_true(n < (size_t)size);
        assert_true(n == 0 || (n > 5 && strcmp(text + n - 5, "\033[0m\n") == 0));
        assert_int_equal(n == (size_t)whole, size > whole);
    }
}

static void picture_is_grey_on_a_terminal_with_colors(void **state)
{
    float x[] = {0, 1, 1, 0};
    float same[] = {1, 1, 0, 0, 1, 1};
    int   main_side, side, saved;

    t_terminal(&main_side, &side);
    saved = dup(STDOUT_FILENO);
    fflush(stdout);
    dup2(side, STDOUT_FILENO);
    speak("C.UTF-8");
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    expect_picture(2, 2, x,
                   "\033[38;5;232;48;5;255m▀\033[38;5;255;48;5;232m▀"
                   "\033[0m\n");
    expect_picture(1, 2, same, "\033[38;5;232;48;5;232m▀▀\033[0m\n"); /* said once */
    expect_cut_picture();
    setenv("NO_COLOR", "1", 1);
    expect_picture(2, 2, x, "▒▒\n");
    unsetenv("NO_COLOR");
    setenv("TERM", "dumb", 1);
    expect_picture(2, 2, x, "▒▒\n");
    dup2(saved, STDOUT_FILENO);
    close(saved);
    close(side);
    close(main_side);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plot_draws_a_line_between_numbers),
        cmocka_unit_test(plot_leaves_a_gap_for_numbers_that_are_not_finite),
        cmocka_unit_test(plot_draws_equal_numbers_in_the_middle),
        cmocka_unit_test(plot_without_numbers_draws_the_axes_alone),
        cmocka_unit_test(plot_has_the_given_size_within_limits),
        cmocka_unit_test(plot_draws_numbers_of_any_size),
        cmocka_unit_test(plot_axis_has_a_unit),
        cmocka_unit_test(plot_returns_the_length_when_the_text_does_not_fit),
        cmocka_unit_test(picture_draws_two_rows_as_a_line_of_shades),
        cmocka_unit_test(picture_is_grey_on_a_terminal_with_colors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

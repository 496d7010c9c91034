/* test/fit/test_plot.c -- plots for terminals.
 *
 * The tests compare whole plots, and check for many sizes that a plot has the requested number
 * of lines and columns.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fit/report/plot.h"

static void speak(const char *locale)
{
    unsetenv("LC_ALL");
    unsetenv("LC_CTYPE");
    setenv("LANG", locale, 1);
}

/* Plots over the positions of the numbers, from 1. */
static int plot(int n, const double *y, int columns, int rows, char *text, size_t size)
{
    ch_plot_axis axis = {NULL, n > 0 && y != NULL, y != NULL ? n : 0};

    return ch__plot(&axis, n, y, columns, rows, text, size);
}

static void expect(int n, const double *y, int columns, int rows, const char *want)
{
    char text[4096];
    int  length = plot(n, y, columns, rows, text, sizeof(text));

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

/* Counts the lines, and the columns of the longest line. Each character is a column. */
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
            assert_true(plot(1000, y, sizes[i][0], sizes[i][1], text, sizeof(text)) <
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
    assert_true(plot(2, y, 40, 8, text, sizeof(text)) > 0);
    assert_non_null(strstr(text, " 1.7e+308 +"));
    assert_non_null(strstr(text, "-1.7e+308 +*"));
    (void)state;
}

static void plot_axis_has_a_unit(void **state)
{
    double y[] = {2, 1};
    char   text[512];

    speak("C");
    ch__plot(&(ch_plot_axis){"step", 1, 2814}, 2, y, 24, 4, text, sizeof(text));
    assert_string_equal(text, "2 +***********\n"
                              "1 +           **********\n"
                              "  +---------------------\n"
                              "   step 1           2814\n");
    ch__plot(&(ch_plot_axis){"epoch", 1, 1}, 1, y, 24, 4, text, sizeof(text));
    assert_non_null(strstr(text, "\n   epoch 1\n"));
    ch__plot(&(ch_plot_axis){"a unit with a long name", 1, 9}, 2, y, 24, 4, text, sizeof(text));
    assert_non_null(strstr(text, "\n   a unit with a long name 1\n"));
    (void)state;
}

static void plot_returns_the_length_when_the_text_does_not_fit(void **state)
{
    double y[] = {1, 2, 3};
    char   text[8] = "before", lines[30];
    int    whole;

    speak("C");
    whole = plot(3, y, 24, 4, NULL, 0);
    assert_int_equal(plot(3, y, 24, 4, text, sizeof(text)), whole);
    assert_string_equal(text, ""); /* only whole lines are written, and none fits */
    assert_int_equal(plot(3, y, 24, 4, lines, sizeof(lines)), whole);
    assert_string_equal(lines, "3 +      ***************\n");
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
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

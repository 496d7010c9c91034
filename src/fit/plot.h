/* fit/plot.h -- small pictures for terminals: numbers as a line, pixels as grey.
 *
 * Unicode where the environment's locale is UTF-8 (base/terminal.h), else ASCII; as snprintf
 * does, but that text which does not fit ends with the last line that does. Each line ends in a
 * newline, and without color.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_PLOT_H
#define FIT_PLOT_H

#include <stddef.h>
#include <stdint.h>

enum { CH_PLOT_COLUMNS = 240, CH_PLOT_ROWS = 64 }; /* at most; at least 24 and 4 */

/* `n` numbers as a line, in a picture that is `columns` wide and `rows` high with its axes.
 * What is not finite is a gap. */
int ch__plot(int n, const double *y, int columns, int rows, char *text, size_t size);

/* What stands below it: "epoch 1 ... 5", "1 ... 5" without a unit. `first` alone if `last` is
 * not more. */
typedef struct ch_plot_axis {
    const char *unit; /* NULL: none */
    int64_t     first, last;
} ch_plot_axis;
int ch__plot_over(const ch_plot_axis *axis, int n, const double *y, int columns, int rows,
                  char *text, size_t size);

/* An image of (height, width), from its darkest to its brightest pixel: two rows a line of
 * text. In shades of grey where standard output is a terminal with colors; else in
 * characters. */
int ch__picture(int height, int width, const float *pixel, char *text, size_t size);

#endif

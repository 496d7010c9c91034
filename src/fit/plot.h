/* fit/plot.h -- small pictures for terminals: numbers as a line, pixels as shades of grey.
 *
 * The text is Unicode if the locale of the environment is UTF-8 (base/terminal.h), otherwise
 * ASCII. The functions return the length of the whole text, as snprintf does. A text that does
 * not fit is cut after the last line that fits. Each line ends with a newline and with colors
 * reset.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_PLOT_H
#define FIT_PLOT_H

#include <stddef.h>
#include <stdint.h>

/* Greatest size of a plot; the least is 24 x 4. */
enum { CH_PLOT_COLUMNS = 240, CH_PLOT_ROWS = 64 };

/* Draws n numbers as a line. The picture is `columns` wide and `rows` high, including the axes;
 * both are limited to the sizes above. A number that is not finite is a gap. */
int ch__plot(int n, const double *y, int columns, int rows, char *text, size_t size);

/* Label of the horizontal axis: "epoch 1 ... 5", or "1 ... 5" without a unit. Only `first` is
 * printed if `last` is not greater. */
typedef struct ch_plot_axis {
    const char *unit; /* NULL: none */
    int64_t     first, last;
} ch_plot_axis;
int ch__plot_over(const ch_plot_axis *axis, int n, const double *y, int columns, int rows,
                  char *text, size_t size);

/* Draws an image of (height, width). The darkest pixel is black, the brightest is white. A line
 * of text shows two rows of pixels. Uses shades of grey if standard output is a terminal with
 * colors, otherwise characters. */
int ch__picture(int height, int width, const float *pixel, char *text, size_t size);

#endif

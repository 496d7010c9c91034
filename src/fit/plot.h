/* fit/plot.h -- small pictures for terminals: numbers as a line, pixels as grey.
 *
 * Unicode where the locale is UTF-8, else ASCII; both as snprintf does, each line ends in a newline.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_PLOT_H
#define FIT_PLOT_H

#include <stddef.h>

enum { CH_PLOT_COLUMNS = 240, CH_PLOT_ROWS = 64 }; /* at most; at least 24 and 4 */

/* `n` numbers as a line, in a picture that is `columns` wide and `rows` high with its axes. What is not finite
 * is a gap. */
int ch__plot(int n, const double *y, int columns, int rows, char *text, size_t size);

/* An image of (height, width), from its darkest to its brightest pixel: two rows a line of text. In shades of
 * grey where standard output is a terminal with colors; else in characters. */
int ch__picture(int height, int width, const float *pixel, char *text, size_t size);

#endif

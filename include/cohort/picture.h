/* cohort/picture.h -- pictures for terminals: line plots of numbers, and images in grey.
 *
 * A picture is text that a terminal shows.
 *
 *     ch_plot(n, loss, 60, 10, text, sizeof(text));
 *     fputs(text, stdout);
 *
 * Both functions return the length needed, as snprintf does. If the text does not fit, only
 * whole lines are written. Each line ends with a newline, and colors are reset at its end. The
 * functions keep no state: any thread may call them.
 *
 * The text is Unicode if the environment says UTF-8, else ASCII. The first of LC_ALL, LC_CTYPE
 * and LANG that is set decides; setlocale has no effect.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_PICTURE_H
#define COHORT_PICTURE_H

#include "cohort/tensor.h"

/* Draws `n` numbers as a line. The picture is `columns` wide (24 to 240) and `rows` high (4 to
 * 64), axes included; values outside these ranges are limited to them. A number that is not
 * finite is a gap. */
CH_API int ch_plot(int n, const double *y, int columns, int rows, char *text, size_t size);
/* Draws an image, (height, width) of any numbers, from its darkest to its brightest pixel. Axes
 * of size 1 are ignored. A line of text shows two rows. The tensor must be contiguous, and its
 * sizes at most 1024; otherwise, and for strings, the text is empty.
 *
 * If standard output is a terminal with colors (NO_COLOR is not set) and the text is Unicode,
 * the image has shades of grey. Such a line takes up to 27 bytes for each column: call with
 * size 0 to get the length. */
CH_API int ch_picture(const ch_tensor *image, char *text, size_t size);

#endif

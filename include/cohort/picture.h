/* cohort/picture.h -- small pictures for terminals: numbers as a line, an image in grey.
 *
 *     ch_plot(n, loss, 60, 10, text, sizeof(text));
 *     fputs(text, stdout);
 *
 * In Unicode where the environment says UTF-8 (LC_ALL, LC_CTYPE or LANG, the first that is set; setlocale is not asked),
 * else in ASCII. Both return the length that is needed, as snprintf does; of text that does not fit the lines stay that do.
 * Each line ends in a newline, and in no color.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_PICTURE_H
#define COHORT_PICTURE_H

#include "cohort/tensor.h"

/* `n` numbers as a line, in a picture that is `columns` (24 to 240) wide and `rows` (4 to 64) high with its axes. What is
 * not finite is a gap. */
CH_API int ch_plot(int n, const double *y, int columns, int rows, char *text, size_t size);
/* An image, (height, width) of any numbers, axes of size 1 aside, from its darkest to its brightest pixel: two rows a line
 * of text. In shades of grey where standard output is a terminal with colors (NO_COLOR is not set), which takes up to
 * 27 bytes for each column of a line: ask with a size of 0. Of anything else, an empty text. */
CH_API int ch_picture(const ch_tensor *image, char *text, size_t size);

#endif

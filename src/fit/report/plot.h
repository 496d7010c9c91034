/* fit/report/plot.h -- plots for terminals: numbers as a line.
 *
 * The text is Unicode if the locale of the environment is UTF-8 (base/terminal.h), otherwise
 * ASCII.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_REPORT_PLOT_H
#define FIT_REPORT_PLOT_H

#include <stddef.h>
#include <stdint.h>

/* Greatest size of a plot; the least is 24 x 4. */
enum { CH_PLOT_COLUMNS = 240, CH_PLOT_ROWS = 64 };

/* Label of the horizontal axis: "epoch 1 ... 5", or "1 ... 5" without a unit. Only `first` is
 * printed if `last` is not greater. */
typedef struct ch_plot_axis {
    const char *unit; /* NULL: none */
    int64_t     first, last;
} ch_plot_axis;

/* Draws n numbers as a line. The picture is `columns` wide and `rows` high, including the axes;
 * both are limited to the sizes above. A number that is not finite is a gap. Returns the length
 * of the whole text, as snprintf does. A text that does not fit is cut after the last line that
 * fits. */
int ch__plot(const ch_plot_axis *axis, int n, const double *y, int columns, int rows,
             char *text, size_t size);

#endif

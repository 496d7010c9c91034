/* fit/report/number.h -- numbers as text that reads back to the same double.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_REPORT_NUMBER_H
#define FIT_REPORT_NUMBER_H

#include <stdbool.h>

/* A number as text, with as few digits as read back to the same double, and with a decimal
 * point in every locale: "0.1", "469", "1e-07". NaN and infinities are "nan", "inf" and "-inf";
 * if `is_json` is true, "null". */
typedef struct ch_number_text {
    char text[40];
} ch_number_text;
ch_number_text ch__number_text(double x, bool is_json);
/* Returns x rounded to a multiple of 1 / parts, as text for JSON. Used for measured values:
 * with 1e6 parts 0.015975 has no further digits. */
ch_number_text ch__rounded_text(double x, double parts);

#endif

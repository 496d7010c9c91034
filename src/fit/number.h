/* fit/number.h -- numbers as text that reads back to the same number.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_NUMBER_H
#define FIT_NUMBER_H

#include <stdbool.h>

/* As few digits as that takes, a point whatever the program's locale: "0.1", "469", "1e-07";
 * "nan", "inf" and "-inf". Where `is_json`, these are null. */
typedef struct ch_number_text {
    char text[40];
} ch_number_text;
ch_number_text ch__number_text(double x, bool is_json);
/* For JSON, of what is measured: in so many parts of 1, so that "0.015975" has no tail. */
ch_number_text ch__rounded_text(double x, double parts);

#endif

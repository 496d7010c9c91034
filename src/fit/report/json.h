/* fit/report/json.h -- the logs of a training as JSON members, and characters of JSON strings.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_REPORT_JSON_H
#define FIT_REPORT_JSON_H

#include "base/bytes_builder.h"
#include "fit/training.h"

/* Appends `, "loss": 0.31` for each log. NaN and infinities are written as null. */
void ch__json_logs(ch_bytes_builder *p, const ch_logs *l);
/* Writes the first character of `s`, which must not be empty, as in a JSON string, and returns
 * the number of its bytes in `s`. Bytes that are not UTF-8 become "?", because JSON must be
 * UTF-8. */
int ch__json_character(const char *s, char text[8]);
/* Returns the number of bytes of the multi-byte UTF-8 character at s; 0 if it is ASCII or
 * invalid. */
int ch__utf8_bytes(const char *s);

#endif

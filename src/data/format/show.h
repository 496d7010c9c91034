/* data/format/show.h -- prints bytes of a file in a message: quoted, shortened and escaped.
 *
 * The bytes are untrusted. Control characters are escaped, so that a terminal cannot interpret
 * them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_FORMAT_SHOW_H
#define DATA_FORMAT_SHOW_H

#include "tensor/print.h"

/* Appends the bytes in quotes, such as "tab\x09". If there are more than `most` bytes, appends
 * the first `most` and "...". */
void ch__text_bytes(ch_text *o, ch_str s, size_t most);

/* The result of ch__show. */
typedef struct ch_shown {
    char text[4 * 40 + 8];
} ch_shown;

/* Returns the same text for up to 40 bytes as a value, for use in a call:
 * ch__fail(..., ch__show(s).text). */
ch_shown ch__show(ch_str s);

#endif

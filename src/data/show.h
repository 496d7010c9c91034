/* data/show.h -- bytes of a file in a message: quoted, shortened, nothing in them that a terminal
 * would take for more than text.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_SHOW_H
#define DATA_SHOW_H

#include "tensor/print.h"

/* "tab\x09" with its quotes; of what is longer than `most` bytes the beginning, with "..." */
void ch__text_bytes(ch_text *o, ch_str s, size_t most);

typedef struct ch_shown {
    char text[4 * 40 + 8];
} ch_shown;

/* The same, of up to 40 bytes, as a value: ch__fail(..., ch__show(s).text). */
ch_shown ch__show(ch_str s);

#endif

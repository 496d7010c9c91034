/* data/format/show.c -- prints bytes of a file in a message.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/format/show.h"

void ch__text_bytes(ch_text *o, ch_str s, size_t most)
{
    ch__text_add(o, "\"");
    for (size_t i = 0; i < s.size && i < most; i++) {
        unsigned char c = (unsigned char)s.data[i];

        if (c < 0x20 || c >= 0x7f)
            ch__text_add(o, "\\x%02x", c);
        else
            ch__text_add(o, c == '"' || c == '\\' ? "\\%c" : "%c", c);
    }
    ch__text_add(o, s.size > most ? "...\"" : "\"");
}

ch_shown ch__show(ch_str s)
{
    ch_shown shown;
    ch_text  o = ch__text(shown.text, sizeof(shown.text));

    ch__text_bytes(&o, s, 40);
    return shown;
}

/* fit/report/json.c -- the logs of a training as JSON members, and characters of JSON strings.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "fit/report/json.h"

#include <stdio.h>
#include <string.h>

#include "fit/report/number.h"

int ch__utf8_bytes(const char *s)
{
    unsigned char c = (unsigned char)*s;
    int           n = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc2 ? 2 : 0;

    for (int i = 1; i < n; i++)
        if (((unsigned char)s[i] & 0xc0) != 0x80)
            return 0;
    return c < 0xf5 ? n : 0;
}

int ch__json_character(const char *s, char text[8])
{
    int n = ch__utf8_bytes(s);

    if (n > 0)
        snprintf(text, 8, "%.*s", n, s);
    else if (*s == '"' || *s == '\\')
        snprintf(text, 8, "\\%c", *s);
    else if ((unsigned char)*s < 0x20)
        snprintf(text, 8, "\\u%04x", (unsigned char)*s);
    else
        snprintf(text, 8, "%c", (unsigned char)*s < 0x80 ? *s : '?');
    return n > 0 ? n : 1;
}

void ch__json_logs(ch_bytes_builder *p, const ch_logs *l)
{
    char text[8];

    for (int i = 0; i < l->n; i++) {
        ch__bytes_builder_text(p, ", \"");
        for (const char *name = l->at[i].name; *name != '\0';) {
            name += ch__json_character(name, text);
            ch__bytes_builder_text(p, text);
        }
        ch__bytes_builder_text(p, "\": ");
        ch__bytes_builder_text(p, ch__number_text(l->at[i].value, true).text);
    }
}

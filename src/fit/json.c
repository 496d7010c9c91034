/* fit/json.c -- the logs of a training as JSON members.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "fit/json.h"

#include <stdio.h>

#include "fit/number.h"

/* Appends `"name": `, with the escapes of JSON. */
static void put_name(ch_bytes_builder *p, const char *name)
{
    char text[8];

    ch__bytes_builder_text(p, "\"");
    for (; *name != '\0'; name++) {
        unsigned char c = (unsigned char)*name;

        if (c == '"' || c == '\\')
            snprintf(text, sizeof(text), "\\%c", c);
        else
            snprintf(text, sizeof(text), c < 0x20 ? "\\u%04x" : "%c", c);
        ch__bytes_builder_text(p, text);
    }
    ch__bytes_builder_text(p, "\": ");
}

void ch__json_logs(ch_bytes_builder *p, ch_training *t)
{
    for (int i = 0; i < ch_training_logs(t); i++) {
        ch__bytes_builder_text(p, ", ");
        put_name(p, ch_training_log_name(t, i));
        ch__bytes_builder_text(p, ch__number_text(ch_training_log(t, i), true).text);
    }
}

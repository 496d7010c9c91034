/* base/bytes_builder.c -- a growable buffer of bytes.   SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes_builder.h"

#include <limits.h>
#include <string.h>

#include "base/mem.h"

char *ch__bytes_builder_reserve(ch_bytes_builder *p, size_t n)
{
    char *room;

    if (p->has_failed || n > (size_t)(INT_MAX / 2 - p->n) ||
        !ch__grow((void **)&p->at, &p->capacity, p->n + (int)n, 1)) {
        p->has_failed = true;
        return NULL;
    }
    room = p->at + p->n;
    p->n += (int)n;
    return room;
}

void ch__bytes_builder_add(ch_bytes_builder *p, const void *data, size_t n)
{
    char *room = ch__bytes_builder_reserve(p, n);

    if (room != NULL && n > 0)
        memcpy(room, data, n);
}

void ch__bytes_builder_text(ch_bytes_builder *p, const char *text)
{
    ch__bytes_builder_add(p, text, strlen(text));
}

void ch__bytes_builder_drop(ch_bytes_builder *p)
{
    ch__free(p->at);
    *p = (ch_bytes_builder){0};
}

/* fit/bytes_builder.c -- a growable buffer of bytes.   SPDX-License-Identifier: Apache-2.0 */
#include "fit/bytes_builder.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/sys.h"

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

ch_status ch__bytes_builder_write(ch_bytes_builder *p, int fd, const char *path)
{
    int written = 0;

    if (p->has_failed)
        return ch__fail_memory(path);
    while (written < p->n) {
        ssize_t put = ch__sys_write(fd, p->at + written, (size_t)(p->n - written));

        if (put <= 0)
            return ch__fail_errno(put < 0 ? errno : ENOSPC, "%s: cannot be written", path);
        written += (int)put;
    }
    p->n = 0;
    return CH_OK;
}

ch_status ch__bytes_builder_read(ch_bytes_builder *p, int fd, const char *path)
{
    enum { PART = 64 << 10 };
    char   *room;
    ssize_t got;

    do {
        room = ch__bytes_builder_reserve(p, PART);
        if (room == NULL)
            return ch__fail_memory(path);
        got = ch__sys_read(fd, room, PART);
        p->n -= PART - (got > 0 ? (int)got : 0);
    } while (got > 0);
    return got == 0 ? CH_OK : ch__fail_errno(errno, "%s: cannot be read", path);
}

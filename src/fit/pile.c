/* fit/pile.c -- bytes that pile up until they are written.   SPDX-License-Identifier: Apache-2.0 */
#include "fit/pile.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "file/sys.h"

char *ch__pile_room(ch_pile *p, size_t n)
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

void ch__pile_add(ch_pile *p, const void *data, size_t n)
{
    char *room = ch__pile_room(p, n);

    if (room != NULL && n > 0)
        memcpy(room, data, n);
}

void ch__pile_text(ch_pile *p, const char *text)
{
    ch__pile_add(p, text, strlen(text));
}

void ch__pile_drop(ch_pile *p)
{
    ch__free(p->at);
    *p = (ch_pile){0};
}

ch_status ch__pile_write(ch_pile *p, int fd, const char *path)
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

ch_status ch__pile_read(ch_pile *p, int fd, const char *path)
{
    enum { PART = 64 << 10 };
    char   *room;
    ssize_t got;

    do {
        room = ch__pile_room(p, PART);
        if (room == NULL)
            return ch__fail_memory(path);
        got = ch__sys_read(fd, room, PART);
        p->n -= PART - (got > 0 ? (int)got : 0);
    } while (got > 0);
    return got == 0 ? CH_OK : ch__fail_errno(errno, "%s: cannot be read", path);
}

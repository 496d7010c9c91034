/* base/bytes_builder.c -- a growable buffer of bytes.   SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes_builder.h"

#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/sys.h"

enum { MIN_BYTES = 16 }; /* capacity of the first allocation */

/* Makes room for `need` bytes in total. Doubles the capacity, so that many small additions cost
 * few copies. */
static bool grow(ch_bytes_builder *p, size_t need)
{
    size_t capacity = p->capacity > 0 ? 2 * p->capacity : MIN_BYTES;
    char  *at;

    if (capacity < need)
        capacity = need;
    at = ch__realloc(p->at, capacity);
    if (at == NULL)
        return false;
    p->at = at;
    p->capacity = capacity;
    return true;
}

char *ch__bytes_builder_reserve(ch_bytes_builder *p, size_t n)
{
    char *room;

    if (p->has_failed || n > PTRDIFF_MAX - p->n ||
        (p->n + n > p->capacity && !grow(p, p->n + n))) {
        p->has_failed = true;
        return NULL;
    }
    room = p->at + p->n;
    p->n += n;
    return room;
}

void ch__bytes_builder_add(ch_bytes_builder *p, const void *data, size_t n)
{
    char *room = n > 0 ? ch__bytes_builder_reserve(p, n) : NULL;

    if (room != NULL)
        memcpy(room, data, n);
}

void ch__bytes_builder_text(ch_bytes_builder *p, const char *text)
{
    ch__bytes_builder_add(p, text, strlen(text));
}

void ch__bytes_builder_varint(ch_bytes_builder *p, uint64_t x)
{
    unsigned char bytes[CH_VARINT_BYTES];

    ch__bytes_builder_add(p, bytes, (size_t)(ch__put_varint(bytes, x) - bytes));
}

void ch__bytes_builder_fixed32(ch_bytes_builder *p, uint32_t x)
{
    unsigned char bytes[4];

    ch__put_le(bytes, x, 4);
    ch__bytes_builder_add(p, bytes, 4);
}

void ch__bytes_builder_fixed64(ch_bytes_builder *p, uint64_t x)
{
    unsigned char bytes[8];

    ch__put_le(bytes, x, 8);
    ch__bytes_builder_add(p, bytes, 8);
}

void ch__bytes_builder_sized(ch_bytes_builder *p, const void *data, size_t n)
{
    ch__bytes_builder_varint(p, n);
    ch__bytes_builder_add(p, data, n);
}

void ch__bytes_builder_clear(ch_bytes_builder *p)
{
    p->n = 0;
    p->has_failed = false;
}

void ch__bytes_builder_drop(ch_bytes_builder *p)
{
    ch__free(p->at);
    *p = (ch_bytes_builder){0};
}

ch_status ch__bytes_builder_write(ch_bytes_builder *p, int fd, const char *path)
{
    size_t written = 0;

    if (p->has_failed)
        return ch__fail_memory(path);
    while (written < p->n) {
        ssize_t put = ch__sys_write(fd, p->at + written, p->n - written);

        if (put <= 0)
            return ch__fail_errno(put < 0 ? errno : ENOSPC, "%s: cannot be written", path);
        written += (size_t)put;
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
        p->n -= (size_t)(PART - (got > 0 ? got : 0));
    } while (got > 0);
    return got == 0 ? CH_OK : ch__fail_errno(errno, "%s: cannot be read", path);
}

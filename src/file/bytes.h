/* file/bytes.h -- reads and writes little-endian and big-endian integers at any address.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_BYTES_H
#define FILE_BYTES_H

#include <stdint.h>
#include <string.h>

static inline uint16_t ch__le16(const void *at)
{
    const unsigned char *p = at;

    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t ch__le32(const void *at)
{
    const unsigned char *p = at;

    return ch__le16(p) | (uint32_t)ch__le16(p + 2) << 16;
}

static inline uint64_t ch__le64(const void *at)
{
    const unsigned char *p = at;

    return ch__le32(p) | (uint64_t)ch__le32(p + 4) << 32;
}

static inline uint32_t ch__be32(const void *at)
{
    return __builtin_bswap32(ch__le32(at));
}

/* Write an integer to `to` and return the position after it. `bytes` is the integer's size. */
static inline unsigned char *ch__put_le(unsigned char *to, uint64_t x, int bytes)
{
    for (int i = 0; i < bytes; i++)
        *to++ = (unsigned char)(x >> 8 * i);
    return to;
}

static inline unsigned char *ch__put_be32(unsigned char *to, uint32_t x)
{
    return ch__put_le(to, __builtin_bswap32(x), 4);
}

#endif

/* base/bytes.h -- reads and writes integers at any address: little-endian, big-endian, and
 * varints (seven bits in a byte, the lowest first, as protobuf encodes them).
 *
 * base/pbwire.h decodes varints of untrusted bytes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <stddef.h>
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

enum { CH_VARINT_BYTES = 10 }; /* of the longest varint */

/* Returns the size of x as a varint, in bytes. */
static inline size_t ch__varint_bytes(uint64_t x)
{
    return (size_t)(63 - __builtin_clzll(x | 1)) / 7 + 1;
}

static inline unsigned char *ch__put_varint(unsigned char *to, uint64_t x)
{
    for (; x >= 0x80; x >>= 7)
        *to++ = (unsigned char)(x | 0x80);
    *to++ = (unsigned char)x;
    return to;
}

#endif

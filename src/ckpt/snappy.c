/* ckpt/snappy.c -- decodes snappy blocks, which TensorFlow 2 has written into indexes.
 *
 * A block is the decoded length as a varint, then elements. The two low bits of an element's
 * first byte are its kind: literal bytes (0), or a copy of earlier output with an offset of 11
 * (1), 16 (2) or 32 (3) bits.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/snappy.h"

#include <string.h>

typedef struct snappy_input {
    const uint8_t *at, *end;
} snappy_input;

/* Reads a little-endian integer of `bytes` bytes. */
static bool get_le(snappy_input *in, size_t bytes, uint32_t *out)
{
    if ((size_t)(in->end - in->at) < bytes)
        return false;
    *out = 0;
    for (size_t i = 0; i < bytes; i++)
        *out |= (uint32_t)*in->at++ << 8 * i;
    return true;
}

static bool get_length(snappy_input *in, uint32_t *out)
{
    uint64_t x = 0;

    for (unsigned shift = 0; shift < 35 && in->at < in->end; shift += 7) {
        uint8_t byte = *in->at++;

        x |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *out = (uint32_t)x;
            return x <= UINT32_MAX;
        }
    }
    return false;
}

bool ch__snappy_bytes(const void *from, size_t n, uint32_t *out)
{
    snappy_input in = {from, (const uint8_t *)from + n};

    return get_length(&in, out);
}

bool ch__snappy_decode(const void *from, size_t n, void *to)
{
    snappy_input in = {from, (const uint8_t *)from + n};
    uint8_t     *out = to;
    uint32_t     room, done = 0, length, offset;

    if (!get_length(&in, &room))
        return false;
    while (in.at < in.end) {
        uint32_t tag = *in.at++, kind = tag & 3;

        length = (tag >> 2) + 1;
        if (kind == 0) {
            if (length > 60) {
                if (!get_le(&in, length - 60, &length) || length == UINT32_MAX)
                    return false;
                length++;
            }
            if (length > (size_t)(in.end - in.at) || length > room - done)
                return false;
            memcpy(out + done, in.at, length);
            in.at += length;
            done += length;
            continue;
        }
        if (!get_le(&in, kind == 3 ? 4 : kind, &offset))
            return false;
        if (kind == 1) {
            length = (tag >> 2 & 7) + 4;
            offset |= tag >> 5 << 8;
        }
        if (offset == 0 || offset > done || length > room - done)
            return false;
        for (; length > 0; length--, done++) /* the copy may overlap its own output */
            out[done] = out[done - offset];
    }
    return done == room;
}

/* base/pbwire.c -- decoding of protobuf fields: long varints, arrays of varints, and faults.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/pbwire.h"

#include <string.h>

void ch__wire_set_fault(ch_wire *w, const uint8_t *at, const char *why)
{
    if (w->fault != NULL)
        return;
    w->fault = why;
    w->fault_at = at;
}

/* A varint has at most ten bytes of seven bits. As in all decoders, bits above 64 are
 * ignored. */
bool ch__wire_long_varint(ch_wire *w, ch_wire_span *s, uint64_t *out)
{
    const uint8_t *at = s->at;
    uint64_t       value = 0;

    for (unsigned shift = 0; at < s->end && shift < 64; shift += 7) {
        value |= (uint64_t)(*at & 0x7f) << shift;
        if (*at++ < 0x80) {
            s->at = at;
            *out = value;
            return true;
        }
    }
    return ch__wire_fault(w, s->at,
                          at - s->at == 10 ? "varint of more than ten bytes"
                                           : "varint that does not end");
}

/* Returns the number that eight groups of seven bits make. Each byte of x has a group. */
static uint64_t pack_groups(uint64_t x)
{
    x = (x & 0x007f007f007f007fu) | (x & 0x7f007f007f007f00u) >> 1;
    x = (x & 0x00003fff00003fffu) | (x & 0x3fff00003fff0000u) >> 2;
    return (x & 0x000000000fffffffu) | (x & 0x0fffffff00000000u) >> 4;
}

/* Decodes varints of up to eight bytes without a branch on their length, because such a branch
 * is unpredictable. */
int ch__wire_varints(ch_wire *w, ch_wire_span *s, int most, int64_t *out)
{
    uint64_t x, ends;
    int      n = 0;

    for (; n < most && s->end - s->at >= (ptrdiff_t)sizeof(x); n++) {
        memcpy(&x, s->at, sizeof(x));
        ends = ~x & 0x8080808080808080u;
        if (ends != 0) {
            out[n] = (int64_t)pack_groups(x & (ends ^ (ends - 1)));
            s->at += __builtin_ctzll(ends) / 8 + 1;
        } else if (ch__wire_long_varint(w, s, &x)) {
            out[n] = (int64_t)x;
        } else {
            return n;
        }
    }
    for (; n < most && s->at < s->end && ch__wire_varint(w, s, &x); n++)
        out[n] = (int64_t)x;
    return n;
}

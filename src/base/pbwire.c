/* base/pbwire.c -- reads long varints and arrays of varints, and writes fields.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/pbwire.h"

#include <string.h>

#include "base/bytes.h"

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

/* ---- writing ---- */

static void put_tag(ch_bytes_builder *p, int field, ch_wire_type type)
{
    ch__bytes_builder_varint(p, (uint64_t)field << 3 | type);
}

void ch__wire_put_number(ch_bytes_builder *p, int field, uint64_t x)
{
    if (x == 0)
        return;
    put_tag(p, field, CH_WIRE_VARINT);
    ch__bytes_builder_varint(p, x);
}

void ch__wire_put_fixed32(ch_bytes_builder *p, int field, uint32_t x)
{
    put_tag(p, field, CH_WIRE_32);
    ch__bytes_builder_fixed32(p, x);
}

void ch__wire_put_fixed64(ch_bytes_builder *p, int field, uint64_t x)
{
    put_tag(p, field, CH_WIRE_64);
    ch__bytes_builder_fixed64(p, x);
}

void ch__wire_put_bytes(ch_bytes_builder *p, int field, const void *data, size_t n)
{
    put_tag(p, field, CH_WIRE_BYTES);
    ch__bytes_builder_sized(p, data, n);
}

void ch__wire_put_text(ch_bytes_builder *p, int field, const char *text)
{
    ch__wire_put_bytes(p, field, text, strlen(text));
}

size_t ch__wire_begin(ch_bytes_builder *p, int field)
{
    put_tag(p, field, CH_WIRE_BYTES);
    return p->n;
}

/* The length of the contents precedes them, but is known only now, so this function moves the
 * contents to insert the length. */
void ch__wire_end(ch_bytes_builder *p, size_t start)
{
    size_t bytes = p->n - start, length = ch__varint_bytes(bytes);

    if (ch__bytes_builder_reserve(p, length) == NULL)
        return;
    memmove(p->at + start + length, p->at + start, bytes);
    ch__put_varint((unsigned char *)p->at + start, bytes);
}

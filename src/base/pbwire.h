/* base/pbwire.h -- reads and writes the fields of encoded protobuf messages.
 *
 * Reading, one field after the other:
 *
 *     ch_wire w = ch__wire(bytes, size);
 *     ch_wire_span message = w.all;
 *     ch_wire_field f;
 *     while (ch__wire_next(&w, &message, &f))
 *         ... f.number, f.type, f.data ...
 *     if (w.fault != NULL)
 *         ... damaged ...
 *
 * A submessage is the data of a field, and so another span. Nothing is copied and nothing
 * recurses. The ch_wire keeps the first fault; after a fault, all loops over its spans end.
 * The bytes may be untrusted. base/protobuf.h unpacks whole messages instead.
 *
 * Writing, to a bytes builder:
 *
 *     ch__wire_put_number(p, 1, 42);
 *     size_t start = ch__wire_begin(p, 2);
 *     ch__wire_put_text(p, 1, "name");
 *     ch__wire_end(p, start);
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_PBWIRE_H
#define BASE_PBWIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes_builder.h"

/* Bytes of a message that are not decoded yet. */
typedef struct ch_wire_span {
    const uint8_t *at, *end;
} ch_wire_span;

static inline size_t ch__wire_bytes(ch_wire_span s)
{
    return (size_t)(s.end - s.at);
}

typedef struct ch_wire {
    ch_wire_span   all;      /* the whole message */
    const char    *fault;    /* description of the first fault; NULL: none yet */
    const uint8_t *fault_at; /* where the fault is */
} ch_wire;

static inline ch_wire ch__wire(const void *bytes, size_t size)
{
    const uint8_t *at = size > 0 ? bytes : (const uint8_t *)"";

    return (ch_wire){.all = {at, at + size}};
}

/* Wire types. Groups (3 and 4) are not part of proto3; they are a fault. */
typedef enum ch_wire_type {
    CH_WIRE_VARINT = 0,
    CH_WIRE_64 = 1,
    CH_WIRE_BYTES = 2,
    CH_WIRE_32 = 5
} ch_wire_type;

typedef struct ch_wire_field {
    uint32_t     number;
    ch_wire_type type;
    ch_wire_span data; /* of a varint: its encoded bytes; of CH_WIRE_BYTES: the contents */
} ch_wire_field;

/* Sets the fault unless one is set already. */
void ch__wire_set_fault(ch_wire *w, const uint8_t *at, const char *why) __attribute__((cold));

/* The same. Always returns false; inline, so that the compiler sees that. */
static inline bool ch__wire_fault(ch_wire *w, const uint8_t *at, const char *why)
{
    ch__wire_set_fault(w, at, why);
    return false;
}

/* Like ch__wire_varint, for varints of any length. */
bool ch__wire_long_varint(ch_wire *w, ch_wire_span *s, uint64_t *out);

/* Decodes a varint at the beginning of `s` and advances `s`. Returns false and sets the fault
 * if there is no valid varint. */
static inline bool ch__wire_varint(ch_wire *w, ch_wire_span *s, uint64_t *out)
{
    if (s->at < s->end && *s->at < 0x80) {
        *out = *s->at++;
        return true;
    }
    return ch__wire_long_varint(w, s, out);
}

/* Decodes up to `most` varints at the beginning of `s` and advances `s`. Returns their number,
 * which is less than `most` at the end of `s` or after a fault. */
int ch__wire_varints(ch_wire *w, ch_wire_span *s, int most, int64_t *out);

/* Decodes the next field at the beginning of `s` and advances `s`. Returns false at the end of
 * `s` and after a fault. */
static inline bool ch__wire_next(ch_wire *w, ch_wire_span *s, ch_wire_field *f)
{
    const uint8_t *start = s->at;
    uint64_t       tag, bytes = 0;

    if (start == s->end || !ch__wire_varint(w, s, &tag))
        return false;
    if (tag > UINT32_MAX || tag >> 3 == 0)
        return ch__wire_fault(w, start, "invalid field number");
    f->number = (uint32_t)tag >> 3;
    f->type = (ch_wire_type)(tag & 7);
    f->data.at = s->at;
    switch (f->type) {
    case CH_WIRE_VARINT:
        if (!ch__wire_varint(w, s, &tag))
            return false;
        break;
    case CH_WIRE_64:
        bytes = 8;
        break;
    case CH_WIRE_BYTES:
        if (!ch__wire_varint(w, s, &bytes))
            return false;
        f->data.at = s->at;
        break;
    case CH_WIRE_32:
        bytes = 4;
        break;
    default:
        return ch__wire_fault(w, start, "wire type that proto3 does not have");
    }
    if (bytes > ch__wire_bytes(*s))
        return ch__wire_fault(w, start, "field is longer than the rest of its message");
    s->at += bytes;
    f->data.end = s->at;
    return true;
}

/* Decodes a field of type CH_WIRE_BYTES if it is the next field of `s` and its tag is a single
 * byte. This is a fast path for the fields that writers usually write. Otherwise returns false
 * and leaves `s` unchanged, so that the caller can use ch__wire_next. */
static inline bool ch__wire_field(ch_wire_span *s, int number, ch_wire_span *data)
{
    const uint8_t *at = s->at;
    size_t         bytes = 0;
    unsigned       shift = 0;

    if (s->end - at < 2 || *at++ != (number << 3 | CH_WIRE_BYTES))
        return false;
    for (; *at >= 0x80; at++, shift += 7) {
        if (shift > 28 || s->end - at < 2)
            return false;
        bytes |= (size_t)(*at & 0x7f) << shift;
    }
    bytes |= (size_t)*at++ << shift;
    if (bytes > (size_t)(s->end - at))
        return false;
    *data = (ch_wire_span){at, at + bytes};
    s->at = at + bytes;
    return true;
}

/* ---- writing ---- */

/* Append a field. put_number writes a varint, and omits 0, which is the default of an absent
 * field. The others write every value. */
void ch__wire_put_number(ch_bytes_builder *p, int field, uint64_t x);
void ch__wire_put_fixed32(ch_bytes_builder *p, int field, uint32_t x);
void ch__wire_put_fixed64(ch_bytes_builder *p, int field, uint64_t x);
void ch__wire_put_bytes(ch_bytes_builder *p, int field, const void *data, size_t n);
void ch__wire_put_text(ch_bytes_builder *p, int field, const char *text);
/* Begin and end a field of type CH_WIRE_BYTES whose contents are appended in between, such as a
 * nested message. begin returns the start of the contents, for end. */
size_t ch__wire_begin(ch_bytes_builder *p, int field);
void   ch__wire_end(ch_bytes_builder *p, size_t start);

#endif

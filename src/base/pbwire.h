/* base/pbwire.h -- the fields of an encoded protobuf message, one after the other.
 *
 *     ch_wire w = ch__wire(bytes, size);
 *     ch_wire_span message = w.all;
 *     ch_wire_field f;
 *     while (ch__wire_next(&w, &message, &f))
 *         ... f.number, f.type, f.data ...
 *     if (w.fault != NULL)
 *         ... damaged ...
 *
 * A message within a message is the data of a field: another span. Nothing is copied and nothing
 * recurses. The first fault sticks to the ch_wire and ends every loop over it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_PBWIRE_H
#define BASE_PBWIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ch_wire_span {
    const uint8_t *at, *end;
} ch_wire_span;

static inline size_t ch__wire_bytes(ch_wire_span s)
{
    return (size_t)(s.end - s.at);
}

typedef struct ch_wire {
    ch_wire_span   all;
    const char    *fault; /* NULL: none yet */
    const uint8_t *fault_at;
} ch_wire;

static inline ch_wire ch__wire(const void *bytes, size_t size)
{
    const uint8_t *at = size > 0 ? bytes : (const uint8_t *)"";

    return (ch_wire){.all = {at, at + size}};
}

/* Groups (3 and 4) are no part of proto3, and a fault. */
typedef enum ch_wire_type {
    CH_WIRE_VARINT = 0,
    CH_WIRE_64 = 1,
    CH_WIRE_BYTES = 2,
    CH_WIRE_32 = 5
} ch_wire_type;

typedef struct ch_wire_field {
    uint32_t     number;
    ch_wire_type type;
    ch_wire_span data; /* of a varint its bytes; of bytes what they hold */
} ch_wire_field;

void ch__wire_keep(ch_wire *w, const uint8_t *at, const char *why) __attribute__((cold));

/* Keeps the first fault. Always false, which the compiler sees. */
static inline bool ch__wire_fault(ch_wire *w, const uint8_t *at, const char *why)
{
    ch__wire_keep(w, at, why);
    return false;
}

bool ch__wire_long_varint(ch_wire *w, ch_wire_span *s, uint64_t *out);

/* Takes a varint off the beginning of `s`. */
static inline bool ch__wire_varint(ch_wire *w, ch_wire_span *s, uint64_t *out)
{
    if (s->at < s->end && *s->at < 0x80) {
        *out = *s->at++;
        return true;
    }
    return ch__wire_long_varint(w, s, out);
}

/* Takes up to `most` varints off the beginning of `s`, of which the last byte ends one; returns how
 * many. */
int ch__wire_varints(ch_wire *w, ch_wire_span *s, int most, int64_t *out);

/* Takes the next field off the beginning of `s`; false at its end, and at a fault. */
static inline bool ch__wire_next(ch_wire *w, ch_wire_span *s, ch_wire_field *f)
{
    const uint8_t *start = s->at;
    uint64_t       tag, bytes = 0;

    if (start == s->end || !ch__wire_varint(w, s, &tag))
        return false;
    if (tag > UINT32_MAX || tag >> 3 == 0)
        return ch__wire_fault(w, start, "a field with a number that none has");
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
        return ch__wire_fault(w, start, "a field of a type that no proto3 message has");
    }
    if (bytes > ch__wire_bytes(*s))
        return ch__wire_fault(w, start, "a field that is longer than what is left");
    s->at += bytes;
    f->data.end = s->at;
    return true;
}

/* Takes a field of bytes with a given tag of one byte off the beginning of `s`, if that is what
 * is there: what every writer writes, without the questions. False leaves `s` as it was, for
 * ch__wire_next. */
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

#endif

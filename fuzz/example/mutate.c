/* fuzz/example/mutate.c -- changes a nested message, and corrects the lengths around it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "example/mutate.h"

enum { MOST_BYTES = 1 << 16, DEEP = 6 };

typedef struct buffer {
    uint8_t data[MOST_BYTES];
    size_t  n;
} buffer;

static void add(buffer *b, const void *data, size_t n)
{
    if (n == 0 || n > sizeof(b->data) - b->n)
        return;
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

static void add_varint(buffer *b, uint64_t x)
{
    for (; x >= 0x80; x >>= 7)
        add(b, &(uint8_t){(uint8_t)(x | 0x80)}, 1);
    add(b, &(uint8_t){(uint8_t)x}, 1);
}

static void add_message(buffer *b, int number, const void *data, size_t n)
{
    add_varint(b, (uint64_t)number << 3 | 2);
    add_varint(b, n);
    add(b, data, n);
}

/* ---- nested messages ---- */

/* A field of bytes at some depth. */
typedef struct place {
    size_t field, length, data, end; /* offsets */
} place;

static bool read_varint(const uint8_t *data, size_t *at, size_t end, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; *at < end && shift < 63; shift += 7) {
        *out |= (uint64_t)(data[*at] & 0x7f) << shift;
        if (data[(*at)++] < 0x80)
            return true;
    }
    return false;
}

/* Picks a field of bytes in [from, to), with equal probability. */
static bool pick(dice *d, const uint8_t *data, size_t from, size_t to, place *out)
{
    uint64_t tag, n;
    int      seen = 0;

    for (size_t at = from; at < to;) {
        place p = {.field = at};

        if (!read_varint(data, &at, to, &tag))
            break;
        p.length = at;
        if ((tag & 7) == 2) {
            if (!read_varint(data, &at, to, &n) || n > to - at)
                break;
            p.data = at;
            at = p.end = at + n;
            if (roll(d, (uint64_t)++seen) == 0)
                *out = p;
        } else if ((tag & 7) == 0) {
            if (!read_varint(data, &at, to, &n))
                break;
        } else {
            at += (tag & 7) == 1 ? 8 : 4;
        }
    }
    return seen > 0;
}

/* Replaces the innermost field by `with`, and corrects the lengths of the fields around it. */
static size_t mend(const place *p, int depth, buffer *with, uint8_t *data, size_t size,
                   size_t max_size)
{
    static buffer out;

    for (int k = depth - 1; k >= 0; k--) {
        size_t from = k > 0 ? p[k - 1].data : 0, to = k > 0 ? p[k - 1].end : size;

        out.n = 0;
        add(&out, data + from, p[k].length - from);
        add_varint(&out, with->n);
        add(&out, with->data, with->n);
        add(&out, data + p[k].end, to - p[k].end);
        *with = out;
    }
    if (with->n > max_size)
        return 0;
    memcpy(data, with->data, with->n);
    return with->n;
}

size_t mutate_within(dice *d, uint8_t *data, size_t size, size_t max_size)
{
    static buffer with;
    place         p[DEEP];
    int           depth = 0, most = 1 + (int)roll(d, DEEP);
    size_t        from = 0, to = size;

    for (; depth < most && pick(d, data, from, to, &p[depth]); depth++) {
        from = p[depth].data;
        to = p[depth].end;
    }
    if (depth == 0 || to - from > sizeof(with.data) / 2)
        return 0;
    with.n = 0;
    add(&with, data + from, to - from);
    switch (roll(d, 4)) {
    case 0: /* repeats the contents */
        add(&with, data + from, to - from);
        break;
    case 1: /* adds a field */
        add_message(&with, 1 + (int)roll(d, 3), data + from, roll(d, to - from + 1));
        break;
    default:
        with.n = LLVMFuzzerMutate(with.data, with.n, with.n + 64);
    }
    return mend(p, depth, &with, data, size, max_size);
}

/* ---- adding a feature ---- */

static void add_values(dice *d, int kind, buffer *list)
{
    static buffer packed;
    int           n = (int)roll(d, 5);

    packed.n = 0;
    for (int i = 0; i < n; i++) {
        uint64_t x = roll(d, UINT64_MAX) >> roll(d, 64);
        bool     alone = roll(d, 4) == 0;

        if (kind == 1) {
            add_message(list, 1, "some bytes", roll(d, 11));
        } else if (alone) {
            add_varint(list, kind == 3 ? 8 : 13);
            kind == 3 ? add_varint(list, x) : add(list, &x, 4);
        } else {
            kind == 3 ? add_varint(&packed, x) : add(&packed, &x, 4);
        }
    }
    if (kind != 1)
        add_message(list, 1, packed.data, packed.n);
}

size_t mutate_grow(dice *d, uint8_t *data, size_t size, size_t max_size)
{
    static const char names[] = "ifsux";
    static buffer     list, feature, entry, features, all;
    int               kind = 1 + (int)roll(d, 3);
    size_t            name = roll(d, 8) ? (size_t)(3 - kind) : roll(d, 5); /* mostly its own */

    list.n = feature.n = entry.n = features.n = all.n = 0;
    add_values(d, kind, &list);
    add_message(&feature, kind, list.data, list.n);
    add_message(&entry, 1, &names[name], 1);
    add_message(&entry, 2, feature.data, feature.n);
    add_message(&features, 1, entry.data, entry.n);
    add(&all, data, size);
    add_message(&all, 1, features.data, features.n);
    if (all.n > max_size || size > sizeof(all.data) / 2)
        return 0;
    memcpy(data, all.data, all.n);
    return all.n;
}

/* net/hello.c -- packs and reads hellos (cohort.FrameHello of proto/net.proto).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/hello.h"

#include <limits.h>
#include <string.h>

#include "base/pbwire.h"

/* The texts of a hello. The number of the field is the index. */
typedef struct text {
    size_t at, size; /* place and size of the array in ch_hello; size 0: no text */
} text;

#define TEXT(field)                                                                            \
    {                                                                                          \
        offsetof(ch_hello, field), sizeof(((ch_hello *)0)->field)                              \
    }
static const text texts[] = {
    [3] = TEXT(release),  [4] = TEXT(job),  [5] = TEXT(sender),
    [6] = TEXT(receiver), [7] = TEXT(role), [12] = TEXT(host),
};
#undef TEXT
enum { N_TEXTS = sizeof(texts) / sizeof(texts[0]) };

static void put_texts(ch_bytes_builder *p, const ch_hello *h)
{
    for (int i = 0; i < N_TEXTS; i++) {
        const char *from = (const char *)h + texts[i].at;

        if (texts[i].size > 0 && from[0] != '\0')
            ch__wire_put_bytes(p, i, from, strnlen(from, texts[i].size - 1));
    }
}

ch_status ch__hello_encode(const ch_hello *h, ch_message **out)
{
    ch_bytes_builder p = {0};
    void            *bytes;
    ch_status        st = CH_OK;

    ch__wire_put_number(&p, 1, h->least_version);
    ch__wire_put_number(&p, 2, h->most_version);
    put_texts(&p, h);
    ch__wire_put_number(&p, 8, h->incarnation);
    ch__wire_put_number(&p, 9, (uint64_t)h->calls);
    ch__wire_put_number(&p, 10, (uint64_t)h->bytes);
    ch__wire_put_number(&p, 11, (uint64_t)h->max_frame);
    ch__wire_put_number(&p, 13, h->features);
    if (p.has_failed)
        st = ch__fail_memory("hello");
    else
        st = ch__message_new(0, p.n, &bytes, 0, NULL, out);
    if (st == CH_OK && p.n > 0)
        memcpy(bytes, p.at, p.n);
    ch__bytes_builder_drop(&p);
    return st;
}

static ch_status fail_damaged(const char *why)
{
    return ch__fail(CH_DATA_LOSS, "hello from a peer: damaged: %s", why);
}

/* Copies a text. Texts are names that appear in messages, so they have no control
 * characters. */
static ch_status read_text(ch_hello *h, const text *t, ch_wire_span s)
{
    size_t n = ch__wire_bytes(s);

    if (n >= t->size)
        return fail_damaged("a text is too long");
    for (size_t i = 0; i < n; i++)
        if (s.at[i] < ' ' || s.at[i] == 0x7f)
            return fail_damaged("a text has control characters");
    memcpy((char *)h + t->at, s.at, n);
    ((char *)h + t->at)[n] = '\0';
    return CH_OK;
}

static ch_status read_number(ch_hello *h, uint32_t field, ch_wire_span s)
{
    ch_wire  w = ch__wire(s.at, ch__wire_bytes(s));
    uint64_t v = 0, most = field == 9 ? INT_MAX : field <= 2 ? UINT32_MAX : INT64_MAX;

    ch__wire_varint(&w, &s, &v); /* cannot fail: ch__wire_next has read it */
    if (v > most && field != 8 && field != 13)
        return fail_damaged("a number is too large");
    switch (field) {
    case 1:
        h->least_version = (uint32_t)v;
        break;
    case 2:
        h->most_version = (uint32_t)v;
        break;
    case 8:
        h->incarnation = v;
        break;
    case 9:
        h->calls = (int)v;
        break;
    case 10:
        h->bytes = (int64_t)v;
        break;
    case 11:
        h->max_frame = (int64_t)v;
        break;
    case 13:
        h->features = v;
        break;
    default: /* unknown */
        break;
    }
    return CH_OK;
}

ch_status ch__hello_decode(const ch_message *m, ch_hello *out)
{
    ch_wire       w = ch__wire(m->bytes, m->n_bytes);
    ch_wire_span  s = w.all;
    ch_wire_field f;
    ch_status     st = CH_OK;

    *out = (ch_hello){0};
    while (st == CH_OK && ch__wire_next(&w, &s, &f)) {
        bool is_text = f.number < N_TEXTS && texts[f.number].size > 0;

        if (is_text != (f.type == CH_WIRE_BYTES) && f.number <= 13)
            st = fail_damaged("a field has another type");
        else if (is_text)
            st = read_text(out, &texts[f.number], f.data);
        else if (f.type == CH_WIRE_VARINT)
            st = read_number(out, f.number, f.data);
    }
    if (st == CH_OK && w.fault != NULL)
        st = fail_damaged(w.fault);
    return st;
}

/* fuzz/npz.c -- reads arbitrary files as .npz files.
 *
 * If a file loads, saving and loading it again, stored or deflated, must give the same tensors.
 * The mutator splits an archive into members, changes a member as fuzz/npy.c does, and joins
 * the members with valid checksums, sizes and offsets. Sometimes a single field is wrong.
 *
 * covers: src/file/zip.c src/file/npz.c
 * longest: 1000
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "file/codec.h"
#include "file/help.h"

static void load(const char *path)
{
    ch_tuple *t = NULL;

    if (ch_npz_load(path, NULL, &t) == CH_OK)
        ch_tuple_unref(t);
}

static void check_saved(const ch_tuple *t, ch_compression kind)
{
    ch_tuple *back = NULL;

    MUST(ch_npz_save(file_to_write(), t,
                     &(ch_save_options){.compression = kind, .no_sync = true}) == CH_OK);
    MUST(ch_npz_load(file_to_write(), NULL, &back) == CH_OK);
    MUST(ch_tuple_count(t) == ch_tuple_count(back));
    for (int i = 0; i < ch_tuple_count(t); i++) {
        MUST(strcmp(ch_tuple_name(t, i), ch_tuple_name(back, i)) == 0);
        MUST(same_tensors(ch_value_at(ch_tuple_at(t, i), 0),
                          ch_value_at(ch_tuple_at(back, i), 0)));
    }
    ch_tuple_unref(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *path = file_of(data, size);
    int64_t     live = ch__mem_live();
    unsigned    h = fuzz_hash(data, size);
    ch_tuple   *t = NULL;

    if (h % 16 == 0)
        with_failures(h / 16, load, path);
    if (ch_npz_load(path, NULL, &t) == CH_OK) {
        if (h % 16 == 1)
            check_saved(t, h / 16 % 2 == 0 ? CH_UNCOMPRESSED : CH_ZLIB);
        ch_tuple_unref(t);
    }
    MUST(ch__mem_live() == live);
    return 0;
}

/* ---- mutating ---- */

enum { MOST_MEMBERS = 6, MOST_BYTES = 4096, NAME_BYTES = 24 };

typedef struct member {
    char    name[NAME_BYTES];
    size_t  n_name, n;
    bool    is_deflated;
    uint8_t data[MOST_BYTES];
} member;

static size_t convert(ch_codec *c, const uint8_t *in, size_t n, uint8_t *out, size_t room)
{
    ch_codec_io io = {(const char *)in, n, (char *)out, room};
    bool        ended = false;

    for (int i = 0; i < 8 && !ended; i++)
        if (c->step(c, &io, true, &ended) != CH_OK)
            break;
    ch__codec_free(c);
    return room - io.n_out;
}

static size_t inflated(const uint8_t *in, size_t n, uint8_t *out, size_t room)
{
    ch_codec *c = NULL;

    return ch__inflate_new(-15, &c) == CH_OK ? convert(c, in, n, out, room) : 0;
}

static size_t deflated(const uint8_t *in, size_t n, uint8_t *out, size_t room)
{
    ch_codec *c = NULL;

    return ch__deflate_new(-15, 1, &c) == CH_OK ? convert(c, in, n, out, room) : 0;
}

/* Reads the members by their local headers, in file order. Returns their number. */
static int take_apart(const uint8_t *data, size_t size, member *m)
{
    size_t at = 0;
    int    n = 0;

    while (n < MOST_MEMBERS && size - at > 30 && ch__le32(data + at) == 0x04034b50) {
        const uint8_t *h = data + at;
        size_t name = ch__le16(h + 26), extra = ch__le16(h + 28), packed = ch__le32(h + 18);

        if (packed == UINT32_MAX && extra >= 20 && size - at > 30 + name + 20)
            packed = ch__le32(h + 30 + name + 12);
        if (size - at - 30 < name + extra || size - at - 30 - name - extra < packed)
            break;
        m[n].n_name = name < NAME_BYTES ? name : NAME_BYTES;
        memcpy(m[n].name, h + 30, m[n].n_name);
        m[n].is_deflated = h[8] == 8;
        h += 30 + name + extra;
        if (m[n].is_deflated)
            m[n].n = inflated(h, packed, m[n].data, MOST_BYTES);
        else {
            m[n].n = packed < MOST_BYTES ? packed : MOST_BYTES;
            memcpy(m[n].data, h, m[n].n);
        }
        at = (size_t)(h - data) + packed;
        n++;
    }
    return n;
}

/* Fields of a member in the new archive. */
typedef struct place {
    size_t   offset, packed;
    uint32_t crc;
    bool     is_wide, is_behind; /* 64-bit sizes, sizes after the member */
    int      method, flags;
} place;

static uint8_t *put_extra(uint8_t *at, uint64_t bytes, uint64_t packed, uint64_t offset, int n)
{
    at = ch__put_le(at, 1, 2);
    at = ch__put_le(at, (uint64_t)n * 8, 2);
    at = ch__put_le(at, bytes, 8);
    at = ch__put_le(at, packed, 8);
    return n > 2 ? ch__put_le(at, offset, 8) : at;
}

static uint8_t *put_sizes(uint8_t *at, const member *m, const place *p, bool is_local)
{
    bool none = is_local && p->is_behind;

    at = ch__put_le(at, 20, 2);
    at = ch__put_le(at, (uint64_t)p->flags, 2);
    at = ch__put_le(at, (uint64_t)p->method, 2);
    at = ch__put_le(at, 0x00210000, 4);
    at = ch__put_le(at, none ? 0 : p->crc, 4);
    at = ch__put_le(at, none ? 0 : p->is_wide ? UINT32_MAX : p->packed, 4);
    at = ch__put_le(at, none ? 0 : p->is_wide ? UINT32_MAX : m->n, 4);
    at = ch__put_le(at, m->n_name, 2);
    return ch__put_le(at, none || !p->is_wide ? 0 : is_local ? 20 : 28, 2);
}

/* Writes an archive. Returns its size; 0 if it does not fit. */
static size_t put_together(dice *d, const member *m, int n, uint8_t *out, size_t room)
{
    static uint8_t all[1 << 16];
    place          p[MOST_MEMBERS];
    uint8_t       *at = all, *directory, *end;

    for (int i = 0; i < n; i++) {
        p[i] = (place){.offset = (size_t)(at - all),
                       .crc = ch__crc32(0, m[i].data, m[i].n),
                       .is_wide = roll(d, 4) == 0,
                       .is_behind = roll(d, 6) == 0};
        p[i].flags = (p[i].is_behind ? 8 : 0) | (roll(d, 40) == 0);
        p[i].method = roll(d, 40) == 0 ? 14 : m[i].is_deflated ? 8 : 0;
        uint8_t *header = at;
        at += 30 + m[i].n_name + (p[i].is_wide && !p[i].is_behind ? 20 : 0);
        if (m[i].is_deflated)
            p[i].packed = deflated(m[i].data, m[i].n, at, 8192);
        else
            memcpy(at, m[i].data, p[i].packed = m[i].n);
        at += p[i].packed;
        header = put_sizes(ch__put_le(header, 0x04034b50, 4), &m[i], &p[i], true);
        memcpy(header, m[i].name, m[i].n_name);
        if (p[i].is_wide && !p[i].is_behind)
            put_extra(header + m[i].n_name, m[i].n, p[i].packed, 0, 2);
    }
    directory = at;
    for (int i = 0; i < n; i++) {
        at = ch__put_le(ch__put_le(at, 0x02014b50, 4), 20, 2);
        at = put_sizes(at, &m[i], &p[i], false);
        at = ch__put_le(ch__put_le(at, 0, 8), 0, 2);
        at = ch__put_le(at, p[i].is_wide ? UINT32_MAX : p[i].offset, 4);
        memcpy(at, m[i].name, m[i].n_name);
        at += m[i].n_name;
        if (p[i].is_wide)
            at = put_extra(at, m[i].n, p[i].packed, p[i].offset, 3);
    }
    end = at;
    bool is_large = roll(d, 4) == 0;
    if (is_large) {
        at = ch__put_le(ch__put_le(at, 0x06064b50, 4), 44, 8);
        at = ch__put_le(ch__put_le(at, 0, 8), 0, 4);
        at = ch__put_le(ch__put_le(at, (uint64_t)n, 8), (uint64_t)n, 8);
        at = ch__put_le(at, (uint64_t)(end - directory), 8);
        at = ch__put_le(at, (uint64_t)(directory - all), 8);
        at = ch__put_le(ch__put_le(at, 0x07064b50, 4), 0, 4);
        at = ch__put_le(ch__put_le(at, (uint64_t)(end - all), 8), 1, 4);
    }
    at = ch__put_le(ch__put_le(at, 0x06054b50, 4), 0, 4);
    at = ch__put_le(at, is_large ? UINT32_MAX : (uint64_t)n * 0x10001, 4);
    at = ch__put_le(at, is_large ? UINT32_MAX : (uint64_t)(end - directory), 4);
    at = ch__put_le(at, is_large ? UINT32_MAX : (uint64_t)(directory - all), 4);
    at = ch__put_le(at, 0, 2);
    if (roll(d, 4) == 0) { /* a wrong field */
        uint8_t *from = roll(d, 2) == 0 ? directory : all;
        uint64_t x = some_size(d);

        memcpy(from + roll(d, (uint64_t)(at - from) - 8), &x, 1 + roll(d, 8));
    }
    if ((size_t)(at - all) > room)
        return 0;
    memcpy(out, all, (size_t)(at - all));
    return (size_t)(at - all);
}

/* Changes, adds, removes or renames a member. Returns the number of members. */
static int alter_members(dice *d, member *m, int n)
{
    int which = n > 0 ? (int)roll(d, (uint64_t)n) : 0;

    switch (roll(d, 6)) {
    case 0:
        if (n > 0)
            m[which] = m[--n];
        break;
    case 1:
        if (n == 0 || n == MOST_MEMBERS)
            break;
        m[n] = m[which];
        m[n].name[0] = (char)('a' + roll(d, 26));
        n++;
        break;
    case 2:
        if (n > 0)
            m[which].n_name =
                LLVMFuzzerMutate((uint8_t *)m[which].name, m[which].n_name, NAME_BYTES);
        break;
    case 3:
        if (n > 0)
            m[which].is_deflated = !m[which].is_deflated;
        break;
    default:
        if (n > 0) {
            size_t size = alter_npy(d, m[which].data, m[which].n, 1500);

            m[which].n = size > 0 ? size : LLVMFuzzerMutate(m[which].data, m[which].n, 1500);
        }
    }
    return n;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    static member m[MOST_MEMBERS];
    dice          d = {seed};

    if (roll(&d, 4) == 0)
        return LLVMFuzzerMutate(data, size, max_size);
    int    n = alter_members(&d, m, take_apart(data, size, m));
    size_t made = put_together(&d, m, n, data, max_size);
    return made > 0 ? made : LLVMFuzzerMutate(data, size, max_size);
}

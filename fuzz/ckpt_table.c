/* fuzz/ckpt_table.c -- reads arbitrary files as the index of a checkpoint.
 *
 * The input is the file. The mutator changes a byte of a block and corrects the checksum. A
 * table that the reader accepts must have ascending keys. If the writer writes its entries, the
 * reader must return the same entries. Some inputs are only numbers, from which the target makes
 * a table of several blocks.
 *
 * covers: src/ckpt/sstable.c src/ckpt/snappy.c
 * longest: 1500
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "ckpt/sstable.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/sys.h"
#include "file/crc32c.h"
#include "file/help.h"

typedef struct entries {
    ch_sst_writer copy;
    char          last[20000];
    size_t        n_last;
    int           n;
    unsigned      hash;
} entries;

static ch_status see(void *arg, ch_str key, ch_str value)
{
    entries *e = arg;
    size_t   n = key.size < e->n_last ? key.size : e->n_last;

    if (e->n > 0) {
        int order = memcmp(key.data, e->last, n);

        MUST(order > 0 || (order == 0 && key.size > e->n_last));
    }
    memcpy(e->last, key.data, key.size);
    e->n_last = key.size;
    e->n++;
    e->hash = e->hash * 31 + fuzz_hash((const uint8_t *)key.data, key.size);
    e->hash = e->hash * 31 + fuzz_hash((const uint8_t *)value.data, value.size);
    ch__sst_add(&e->copy, key, value.data, value.size);
    return CH_OK;
}

/* Reads a file that has `size` bytes, or had some more when it was opened. */
static ch_status read_entries_of(const void *data, size_t size, size_t more, entries *e)
{
    const char *path = file_of(data, size);
    int         fd = open(path, O_RDONLY);
    ch_status   rc;

    memset(&e->copy, 0, sizeof(e->copy));
    e->n = 0;
    e->n_last = 0;
    e->hash = 1;
    rc = ch__sst_read(fd, (int64_t)(size + more), path, see, e);
    close(fd);
    return rc;
}

static ch_status read_entries(const void *data, size_t size, entries *e)
{
    return read_entries_of(data, size, 0, e);
}

static void read_once(const char *path)
{
    static entries e;
    int            fd = open(path, O_RDONLY);

    memset(&e, 0, sizeof(e));
    (void)!ch__sst_read(fd, lseek(fd, 0, SEEK_END), path, see, &e);
    ch__sst_drop(&e.copy);
    close(fd);
}

/* Writes a table of several blocks, or one with a key or a value that is too long (`kind` 1 and
 * 2), and reads it. */
static void write_large(unsigned h, unsigned kind)
{
    static entries e;
    static char    key[40000], value[3 << 20];
    ch_sst_writer  w = {.has_ended = false};
    dice           d = {h};
    size_t         end = kind == 2 ? sizeof(value) : 100000 + roll(&d, 900000);

    for (size_t n = 0, i = 0; n < end; i++) {
        size_t n_key = (size_t)snprintf(key, sizeof(key), "%c%06zu/%0*d", 'a' + (int)(i / 9), i,
                                        kind == 1 ? 39000 : 1 + (int)roll(&d, 40), 0);
        size_t bytes = kind == 2 ? end : roll(&d, 40000);

        ch__sst_add(&w, (ch_str){key, n_key}, value, bytes);
        n += n_key + bytes;
    }
    ch__sst_end(&w);
    MUST(!w.out.has_failed);
    ch_status rc = read_entries(w.out.at, (size_t)w.out.n, &e);
    MUST(rc == (kind == 0 ? CH_OK : CH_RESOURCE_EXHAUSTED));
    ch__sst_drop(&e.copy);
    ch__sst_drop(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static entries e, again;
    int64_t        live = ch__mem_live();
    unsigned       h = fuzz_hash(data, size);

    if (h % 16 == 0)
        with_failures(h / 16, read_once, file_of(data, size));
    if (read_entries(data, size, &e) == CH_OK && e.n > 0) {
        ch__sst_end(&e.copy);
        MUST(!e.copy.out.has_failed);
        MUST(read_entries(e.copy.out.at, (size_t)e.copy.out.n, &again) == CH_OK);
        MUST(again.n == e.n && again.hash == e.hash);
        ch__sst_drop(&again.copy);
    }
    ch__sst_drop(&e.copy);
    if (h / 16 % 64 == 1) {
        MUST(read_entries_of(data, size, 1 + h / 1024 % 60, &again) != CH_OK);
        ch__sst_drop(&again.copy);
    }
    if (h / 16 % 1024 == 0)
        write_large(h / 16384, h / 16384 % 8 < 6 ? 0 : h / 16384 % 2 + 1);
    MUST(ch__mem_live() == live);
    return 0;
}

/* Corrects the checksum of the block at `from` if the file has room for a checksum after it. */
static void mend(uint8_t *data, size_t from, size_t n)
{
    uint32_t crc = ch__crc32c_mask(ch__crc32c(0, data + from, n + 1));

    memcpy(data + from + n + 1, &crc, 4);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    dice         d = {seed};
    ch_wire      w;
    ch_wire_span s;
    uint64_t     skip[2], offset, n;

    if (roll(&d, 4) == 0)
        size = LLVMFuzzerMutate(data, size, max_size);
    if (size < 60)
        return LLVMFuzzerMutate(data, size, max_size);
    for (size_t i = 1 + roll(&d, 3); i > 0; i--) {
        uint64_t at = roll(&d, size - 48 - 5);

        data[at] = (uint8_t)(roll(&d, 2) == 0 ? roll(&d, 256) : data[at] ^ 1u << roll(&d, 8));
    }
    w = ch__wire(data + size - 48, 40);
    s = w.all;
    if (!ch__wire_varint(&w, &s, &skip[0]) || !ch__wire_varint(&w, &s, &skip[1]) ||
        !ch__wire_varint(&w, &s, &offset) || !ch__wire_varint(&w, &s, &n) || offset > size ||
        n > size - offset || size - offset - n < 5)
        return size;
    mend(data, offset, n);
    /* The handles of the data blocks are at the ends of the entries of the index block. */
    for (uint64_t i = offset, limit = offset + n; i + 4 < limit;) {
        uint64_t shared, own, bytes, from, length;

        w = ch__wire(data + i, limit - i);
        s = w.all;
        if (!ch__wire_varint(&w, &s, &shared) || !ch__wire_varint(&w, &s, &own) ||
            !ch__wire_varint(&w, &s, &bytes) || own + bytes > ch__wire_bytes(s) || own > size ||
            bytes > size)
            break;
        s.at += own;
        i = (uint64_t)(s.at - data) + bytes;
        if (!ch__wire_varint(&w, &s, &from) || !ch__wire_varint(&w, &s, &length))
            break;
        if (from < offset && length < offset - from && offset - from - length >= 5)
            mend(data, from, length);
    }
    return size;
}

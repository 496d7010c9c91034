/* fuzz/ckpt.c -- reads checkpoints with arbitrary index entries and data.
 *
 * The input: a byte of options, the size of the data file, its bytes, then entries (size of the
 * key, size of the value, key, value). The entries are sorted and written as a table. With
 * option 1 their checksums match the data. A tensor must have the same bytes whether it is read
 * whole or in parts, and the memory of the reader is limited.
 *
 * covers: src/ckpt/index.c src/ckpt/entry.c src/ckpt/read.c
 * longest: 600
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "ckpt/ckpt.h"

#include <stdio.h>

#include "base/sys.h"
#include "ckpt/entry.h"
#include "ckpt/sstable.h"
#include "file/crc32c.h"
#include "file/help.h"

enum { MOST_ENTRIES = 40 };

typedef struct entry {
    ch_str  key, value;
    uint8_t fixed[300]; /* the value, with the checksum of the data */
} entry;

static void put_file(const char *prefix, const char *suffix, const void *data, size_t n)
{
    char  path[128];
    FILE *f;

    snprintf(path, sizeof(path), "%s%s", prefix, suffix);
    f = fopen(path, "wb");
    MUST(f != NULL && fwrite(data, 1, n, f) == n);
    fclose(f);
}

static const char *const data_suffix[] = {".data-00000-of-00001", ".data-00000-of-00002",
                                          ".data-00001-of-00002"};

static void remove_files(void)
{
    char path[128];

    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof(path), "%s%s", file_to_write(),
                 i < 3 ? data_suffix[i] : ".index");
        (void)remove(path);
    }
}

/* Appends the checksum of the data that an entry names. */
static void fix_checksum(entry *e, const uint8_t *data, size_t n_data)
{
    ch_ckpt_message m;
    uint32_t        crc;

    if (ch__ckpt_parse_entry(e->value, &m) != NULL || m.offset < 0 || m.bytes < 0 ||
        m.offset > (int64_t)n_data || m.bytes > (int64_t)n_data - m.offset || m.dtype == 7)
        return;
    crc = ch__crc32c_mask(ch__crc32c(0, data + m.offset, (size_t)m.bytes));
    memcpy(e->fixed, e->value.data, e->value.size);
    e->fixed[e->value.size] = 6 << 3 | 5;
    memcpy(e->fixed + e->value.size + 1, &crc, 4);
    e->value = (ch_str){(char *)e->fixed, e->value.size + 5};
}

static int compare(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    size_t       n = x->key.size < y->key.size ? x->key.size : y->key.size;
    int          order = memcmp(x->key.data, y->key.data, n);

    return order != 0 ? order : x->key.size < y->key.size ? -1 : x->key.size > y->key.size;
}

static void write_files(const uint8_t *data, size_t size)
{
    static entry  e[MOST_ENTRIES];
    size_t        n_data = size > 1 ? data[1] : 0, at;
    int           n = 0;
    ch_sst_writer w = {0};
    bool          fixes = size > 0 && data[0] % 2 == 1;

    n_data = size < 2 ? 0 : n_data > size - 2 ? size - 2 : n_data;
    for (at = 2 + n_data; n < MOST_ENTRIES && at + 2 <= size; n++) {
        size_t key = data[at], value = data[at + 1];

        at += 2;
        key = key > size - at ? size - at : key;
        value = value > size - at - key ? size - at - key : value;
        e[n].key = (ch_str){(const char *)data + at, key};
        e[n].value = (ch_str){(const char *)data + at + key, value};
        at += key + value;
        if (fixes && key > 0)
            fix_checksum(&e[n], data + 2, n_data);
    }
    qsort(e, (size_t)n, sizeof(*e), compare);
    for (int i = 0; i < n; i++) {
        if (e[i].value.data >= (char *)e && e[i].value.data < (char *)(e + MOST_ENTRIES))
            e[i].value.data = (char *)e[i].fixed; /* sorting has moved it */
        ch__sst_add(&w, e[i].key, e[i].value.data, e[i].value.size);
    }
    ch__sst_end(&w);
    put_file(file_to_write(), ".index", w.out.at, (size_t)w.out.n);
    ch__sst_drop(&w);
    for (int i = 0; i < 3; i++)
        put_file(file_to_write(), data_suffix[i], size > 2 ? data + 2 : data, n_data);
}

/* Reads a tensor whole and in parts. */
static void read_tensor(ch_ckpt *c, int i, unsigned h)
{
    ch_ckpt_entry e;
    ch_ckpt_part  part;
    ch_region     r = {.begin = {0}};
    int64_t       bytes;
    ch_str       *strings = NULL;

    ch__ckpt_entry(c, i, &e);
    MUST(ch__ckpt_find(c, e.name) == i);
    for (int k = 0; k < e.n_parts; k++) {
        ch__ckpt_part(c, i, k, &part);
        MUST(ch__region_fits(&part.region, e.shape));
        MUST(part.offset + part.bytes <= ch__ckpt_file_bytes(c, part.file));
    }
    (void)!ch__ckpt_verify(c, i);
    if (ch__ckpt_read_strings(c, e.name, &strings) == CH_OK) {
        size_t sum = 0;

        for (int64_t k = 0; k < ch_shape_count(e.shape); k++)
            sum += fuzz_hash((const uint8_t *)strings[k].data, strings[k].size);
        MUST(sum < SIZE_MAX);
    }
    ch__free(strings);
    bytes = e.dtype < CH_DTYPE_COUNT ? ch__ckpt_bytes(e.dtype, e.shape) : 0;
    if (bytes < 0 || bytes > 1 << 16)
        return;
    char     *whole = malloc((size_t)bytes + 1), *piece = malloc((size_t)bytes + 1);
    ch_status rc = ch__ckpt_read(c, e.name, NULL, whole);
    for (int k = 0; k < e.shape.rank; k++) {
        r.begin[k] = e.shape.dim[k] > 0 ? (int64_t)(h % (uint64_t)e.shape.dim[k]) : 0;
        r.size[k] = e.shape.dim[k] > 0 ? 1 : 0;
        h = h * 17 + 5;
    }
    if (rc == CH_OK && bytes > 0) { /* a single element */
        int64_t at = 0, element = (int64_t)ch_dtype_bytes(e.dtype);

        for (int k = 0; k < e.shape.rank; k++)
            at = at * e.shape.dim[k] + r.begin[k];
        MUST(ch__ckpt_read(c, e.name, &r, piece) == CH_OK);
        MUST(memcmp(piece, whole + at * element, (size_t)element) == 0);
    }
    free(whole);
    free(piece);
}

static void open_once(const char *prefix)
{
    ch_ckpt *c = NULL;

    if (ch__ckpt_open(prefix, &c) == CH_OK)
        for (int i = 0; i < ch__ckpt_count(c); i++)
            (void)!ch__ckpt_verify(c, i);
    ch__ckpt_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool is_first = true;
    int64_t     live = ch__mem_live();
    unsigned    h = fuzz_hash(data, size);
    ch_ckpt    *c = NULL;

    if (is_first) {
        (void)file_to_write();
        atexit(remove_files);
        is_first = false;
    }
    write_files(data, size);
    if (h % 16 == 0)
        with_failures(h / 16, open_once, file_to_write());
    ch__mem_watch(true);
    if (ch__ckpt_open(file_to_write(), &c) == CH_OK)
        for (int i = 0; i < ch__ckpt_count(c); i++)
            read_tensor(c, i, h / 16);
    ch__ckpt_close(c);
    MUST(ch__mem_peak() <= (16 << 20) + 2 * (int64_t)size + 4096);
    ch__mem_watch(false);
    MUST(ch__mem_live() == live);
    return 0;
}

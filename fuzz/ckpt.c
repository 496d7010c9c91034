/* fuzz/ckpt.c -- reads checkpoints with arbitrary index entries and data.
 *
 * The input: a byte of options, the size of the data file, its bytes, then entries (size of the
 * key, size of the value, key, value). The entries are sorted and written as a table. With
 * option 1 their checksums match the data. With option 2 the checkpoint is a delta, of a base
 * that has the tensor "w". A tensor must have the same bytes whether it is read whole or in
 * parts, and the memory of the reader is limited.
 *
 * covers: src/ckpt/index.c src/ckpt/open.c src/ckpt/entry.c src/ckpt/read.c src/ckpt/delta.c
 * longest: 600
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "ckpt/ckpt.h"

#include <stdio.h>

#include "base/sys.h"
#include "ckpt/index.h"
#include "ckpt/sstable.h"
#include "file/crc32c.h"
#include "file/help.h"

enum { MOST_ENTRIES = 40, BASE_ID = 6 };

#define BASE_NAME "base"

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

static float base_values[5][2] = {{1, 2}, {3, 4}, {5, 6}, {7, 8}, {9, 10}};

static ch_status fetch_base(void *arg, int i, int64_t from, int64_t n, const void **bytes)
{
    const ch_bytes_builder *text = arg;

    *bytes = (i == 0 ? (const char *)base_values : text->at) + from;
    (void)n;
    return CH_OK;
}

/* Writes the path of the base to `path`. */
static void base_path(char path[128])
{
    snprintf(path, 128, "%.*s" BASE_NAME,
             (int)(strrchr(file_to_write(), '/') + 1 - file_to_write()), file_to_write());
}

static void write_base(void)
{
    ch_bytes_builder text = {0};
    int64_t          bytes = 0;
    char             path[128];
    ch_ckpt_metadata m = {
        .format = CH_CKPT_FORMAT, .id = BASE_ID, .n_files = 1, .file_bytes = &bytes};
    ch_ckpt_item item[2] = {{.name = "w",
                             .dtype = CH_F32,
                             .whole = ch_shape_of(5, 2),
                             .bytes = sizeof(base_values)},
                            {.name = CH_CKPT_METADATA_KEY, .dtype = CH_STR}};

    for (int i = 0; i < 2; i++) {
        ch__bytes_builder_clear(&text);
        MUST(ch__ckpt_metadata_encode(&m, &text, &item[1].crc) == CH_OK);
        item[1].bytes = (int64_t)text.n;
        bytes = ch__ckpt_layout(2, item);
    }
    base_path(path);
    MUST(ch__ckpt_write_data(path, 0, 1, 2, item, fetch_base, &text, NULL) == CH_OK);
    MUST(ch__ckpt_write_index(path, 1, 2, item, NULL) == CH_OK);
    ch__bytes_builder_drop(&text);
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
    for (int i = 0; i < 2; i++) {
        char name[160];

        base_path(path);
        snprintf(name, sizeof(name), "%s%s", path, i == 0 ? data_suffix[0] : ".index");
        (void)remove(name);
    }
}

/* Makes the checkpoint a delta: appends metadata to the data file, and sets its entry. */
static void add_metadata(ch_bytes_builder *file, entry *e)
{
    ch_bytes_builder text = {0}, message = {0};
    int64_t          bytes = 0;
    ch_ckpt_metadata m = {.format = CH_CKPT_FORMAT,
                          .id = BASE_ID + 1,
                          .n_files = 1,
                          .file_bytes = &bytes,
                          .base_id = BASE_ID,
                          .base = BASE_NAME};
    ch_ckpt_item     item = {.name = CH_CKPT_METADATA_KEY, .dtype = CH_STR};

    for (int i = 0; i < 2; i++) {
        ch__bytes_builder_clear(&text);
        MUST(ch__ckpt_metadata_encode(&m, &text, &item.crc) == CH_OK);
        bytes = (int64_t)(file->n + text.n);
    }
    item.offset = (int64_t)file->n;
    item.bytes = (int64_t)text.n;
    ch__ckpt_emit_entry(&message, &item, ch_shape_scalar());
    ch__bytes_builder_add(file, text.at, text.n);
    MUST(!message.has_failed && !file->has_failed && message.n <= sizeof(e->fixed));
    memcpy(e->fixed, message.at, message.n);
    e->key = (ch_str){item.name, strlen(item.name)};
    e->value = (ch_str){(char *)e->fixed, message.n};
    ch__bytes_builder_drop(&text);
    ch__bytes_builder_drop(&message);
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
    static entry     e[MOST_ENTRIES + 1];
    size_t           n_data = size > 1 ? data[1] : 0, at;
    int              n = 0;
    ch_sst_writer    w = {0};
    ch_bytes_builder file = {0};
    bool             fixes = size > 0 && (data[0] & 1) != 0;

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
    ch__bytes_builder_add(&file, size > 2 ? data + 2 : data, n_data);
    if (size > 0 && (data[0] & 2) != 0)
        add_metadata(&file, &e[n++]);
    qsort(e, (size_t)n, sizeof(*e), compare);
    for (int i = 0; i < n; i++) {
        if (e[i].value.data >= (char *)e && e[i].value.data < (char *)(e + MOST_ENTRIES + 1))
            e[i].value.data = (char *)e[i].fixed; /* sorting has moved it */
        ch__sst_add(&w, e[i].key, e[i].value.data, e[i].value.size);
    }
    ch__sst_end(&w);
    put_file(file_to_write(), ".index", w.out.at, (size_t)w.out.n);
    ch__sst_drop(&w);
    for (int i = 0; i < 3; i++)
        put_file(file_to_write(), data_suffix[i], file.n > 0 ? file.at : "", file.n);
    ch__bytes_builder_drop(&file);
}

/* Encodes the key of a part again, which must decode to the part. */
static void check_key(const char *name, int rank, const ch_region *region)
{
    ch_bytes_builder key = {0};
    ch_ckpt_extent   extent[CH_MAX_RANK];
    char             back[CH_CKPT_MAX_NAME + 1];
    int              back_rank;

    ch__ckpt_emit_slice_key(&key, name, rank, region);
    MUST(ch__ckpt_parse_slice_key((ch_str){key.at, key.n}, back, &back_rank, extent) == NULL);
    MUST(strcmp(back, name) == 0 && back_rank == rank);
    for (int k = 0; k < rank; k++)
        MUST(extent[k].begin == region->begin[k] && extent[k].size == region->size[k]);
    ch__bytes_builder_drop(&key);
}

/* Encodes the entry of a tensor in slices again. */
static void check_entry(const ch_ckpt *c, int i, const ch_ckpt_entry *e)
{
    ch_bytes_builder text = {0};
    ch_ckpt_message  m;
    ch_ckpt_part     part;

    ch__ckpt_emit_tensor(&text, &(ch_ckpt_item){.dtype = e->dtype, .whole = e->shape});
    for (int k = 0; k < e->n_parts; k++) {
        ch__ckpt_part(c, i, k, &part);
        ch__ckpt_emit_slice(&text, e->shape.rank, &part.region);
    }
    MUST(ch__ckpt_parse_entry((ch_str){text.at, text.n}, &m) == NULL);
    MUST(m.dtype == e->dtype_number && m.n_slices == e->n_parts);
    MUST(ch_shape_equal(m.shape, e->shape));
    ch__bytes_builder_drop(&text);
}

/* Reads elements [from, from + n), which must be those of the whole tensor. */
static void read_range(ch_ckpt *c, const ch_ckpt_entry *e, const char *whole, char *piece,
                       unsigned h)
{
    int64_t count = ch_shape_count(e->shape), element = (int64_t)ch_dtype_bytes(e->dtype);
    int64_t from = count > 0 ? h % count : 0;
    int64_t n = count > 0 ? h / 256 % (count - from + 1) : 0;

    MUST(ch__ckpt_read_range(c, e->name, NULL, from, n, piece) == CH_OK);
    MUST(memcmp(piece, whole + from * element, (size_t)(n * element)) == 0);
    MUST(ch__ckpt_read_range(c, e->name, NULL, from, count - from + 1, piece) != CH_OK);
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
        check_key(e.name, e.shape.rank, &part.region);
        if (part.bytes > 0) {
            char byte;

            (void)!ch__ckpt_read_raw(c, i, k, part.bytes - 1, 1, &byte);
        }
    }
    if (!e.is_whole && e.n_rows < 0 && e.dtype < CH_DTYPE_COUNT)
        check_entry(c, i, &e);
    MUST(ch__ckpt_dtype_name(e.dtype_number) != NULL && ch__ckpt_stored_bytes(c, i) >= 0);
    if (h % 2 == 0)
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
    char *whole = malloc((size_t)bytes + 1), *piece = malloc((size_t)bytes + 1);
    for (int k = 0; k < e.shape.rank; k++) {
        r.begin[k] = e.shape.dim[k] > 0 ? (int64_t)(h % (uint64_t)e.shape.dim[k]) : 0;
        r.size[k] = e.shape.dim[k] > 0 ? 1 : 0;
        h = h * 17 + 5;
    }
    (void)!ch__ckpt_read(c, e.name, &r, piece); /* before anything is verified */
    if (ch__ckpt_read(c, e.name, NULL, whole) == CH_OK) {
        read_range(c, &e, whole, piece, h);
        if (bytes > 0) { /* a single element */
            int64_t at = 0, element = (int64_t)ch_dtype_bytes(e.dtype);

            for (int k = 0; k < e.shape.rank; k++)
                at = at * e.shape.dim[k] + r.begin[k];
            MUST(ch__ckpt_read(c, e.name, &r, piece) == CH_OK);
            MUST(memcmp(piece, whole + at * element, (size_t)element) == 0);
        }
        r.begin[0] = INT64_MAX; /* does not fit, unless the tensor is a scalar */
        MUST((ch__ckpt_read(c, e.name, &r, piece) == CH_OK) == (e.shape.rank == 0));
    }
    free(whole);
    free(piece);
}

static void open_once(const char *prefix)
{
    ch_ckpt *c = NULL;

    if (ch__ckpt_open(prefix, &c) == CH_OK)
        for (int i = 0; i < ch__ckpt_count(c); i++) {
            ch_ckpt_entry e;
            ch_region     none = {.begin = {0}}; /* no element, unless the tensor is a scalar */
            ch_str       *strings = NULL;
            double        scalar;

            ch__ckpt_entry(c, i, &e);
            (void)!ch__ckpt_read(c, e.name, &none, &scalar);
            (void)!ch__ckpt_read_strings(c, e.name, &strings);
            (void)!ch__ckpt_verify(c, i);
            ch__free(strings);
        }
    ch__ckpt_close(c);
}

static void check_properties(ch_ckpt *c)
{
    const ch_ckpt_metadata *m = ch__ckpt_metadata(c);
    double                  number;

    MUST(strcmp(ch__ckpt_prefix(c), file_to_write()) == 0 && ch__ckpt_index_bytes(c) > 48);
    MUST((ch__ckpt_base(c) != NULL) == (m != NULL && m->base != NULL));
    MUST(m == NULL || m->n_files == ch__ckpt_n_files(c));
    MUST(ch__ckpt_read(c, "", NULL, &number) == CH_NOT_FOUND);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool is_first = true;
    int64_t     live = ch__mem_live();
    unsigned    h = fuzz_hash(data, size);
    ch_ckpt    *c = NULL;

    if (is_first) {
        (void)file_to_write();
        write_base();
        atexit(remove_files);
        is_first = false;
    }
    write_files(data, size);
    if (h % 16 == 0)
        with_failures(h / 16, open_once, file_to_write());
    ch__mem_watch(true);
    if (ch__ckpt_open(file_to_write(), &c) == CH_OK) {
        check_properties(c);
        for (int i = 0; i < ch__ckpt_count(c); i++)
            read_tensor(c, i, h / 16);
    }
    ch__ckpt_close(c);
    MUST(ch__mem_peak() <= (16 << 20) + 2 * (int64_t)size + 4096);
    ch__mem_watch(false);
    MUST(ch__mem_live() == live);
    return 0;
}

/* fuzz/ckpt.c -- reads checkpoints with arbitrary index entries and data.
 *
 * The input: a byte of options, the size of the data file, its bytes, then entries (size of the
 * key, size of the value, key, value). The entries are sorted and written as a table. A delta
 * has a base with the tensor "w" and the scalar "s". A tensor must have the same bytes whether
 * it is read whole or in parts, also if the checkpoint is opened in parts, and the memory of the
 * reader is limited.
 *
 * covers: src/ckpt/index.c src/ckpt/open.c src/ckpt/entry.c src/ckpt/read.c src/ckpt/delta.c
 * longest: 600
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "ckpt/ckpt.h"

#include <stdio.h>
#include <unistd.h>

#include "base/sys.h"
#include "ckpt/index.h"
#include "ckpt/sstable.h"
#include "file/crc32c.h"
#include "file/help.h"

enum { MOST_ENTRIES = 40, BASE_ID = 6, DELTA_ID = 7 };

/* Options in the first byte. */
enum {
    FIXES = 1,           /* the checksums match the data */
    IS_DELTA = 2,        /* the checkpoint is a delta of the base */
    IN_PARTS = 4,        /* it is opened in parts too */
    OTHER_BASE = 8,      /* the base has another id than the delta names */
    BASE_IS_DELTA = 16,  /* the base is a delta itself */
    IS_LINK = 32,        /* the data file is a symbolic link */
    IS_CUT = 64,         /* the data file is truncated while it is open */
    HAS_TWO_FILES = 128, /* there are two data files more, of a checkpoint with two */
};

/* The files of an input, and their suffixes. */
enum { INDEX, DATA, FIRST, SECOND, FILES };

static const char *const suffix[FILES] = {".index", ".data-00000-of-00001",
                                          ".data-00000-of-00002", ".data-00001-of-00002"};
static kept_file         file_of_input[FILES];

typedef struct entry {
    ch_str  key, value;
    uint8_t fixed[300]; /* the value, with the checksum of the data */
} entry;

static float base_values[5][2] = {{1, 2}, {3, 4}, {5, 6}, {7, 8}, {9, 10}};

/* The bytes of the items of a base. */
typedef struct base_items {
    const void *data[3];
} base_items;

static ch_status fetch_base(void *arg, int i, int64_t from, int64_t n, const void **bytes)
{
    const base_items *x = arg;

    *bytes = (const char *)x->data[i] + from;
    (void)n;
    return CH_OK;
}

/* Writes the path of a base, "base" or "delta", to `path`. */
static void base_path(char path[128], const char *name)
{
    snprintf(path, 128, "%.*s%s", (int)(strrchr(file_to_write(), '/') + 1 - file_to_write()),
             file_to_write(), name);
}

/* Writes a checkpoint that is a base. `base` is NULL, or the base that it has itself. */
static void write_base(const char *name, uint64_t id, const char *base)
{
    static const float number = 5;
    base_items         x = {.data = {base_values, &number, NULL}};
    ch_bytes_builder   text = {0};
    ch_ckpt_writer    *w = NULL;
    int64_t            bytes = 0;
    char               path[128];
    ch_ckpt_metadata   m = {.format = CH_CKPT_FORMAT,
                            .id = id,
                            .n_files = 1,
                            .file_bytes = &bytes,
                            .base = base,
                            .base_id = base != NULL ? BASE_ID : 0};
    ch_ckpt_item       item[3] = {{.name = "w",
                                   .dtype = CH_F32,
                                   .whole = ch_shape_of(5, 2),
                                   .bytes = sizeof(base_values)},
                                  {.name = "s", .dtype = CH_F32, .bytes = sizeof(number)},
                                  {.name = CH_CKPT_METADATA_KEY, .dtype = CH_STR}};

    for (int i = 0; i < 2; i++) {
        ch__bytes_builder_clear(&text);
        MUST(ch__ckpt_metadata_encode(&m, &text, &item[2].crc) == CH_OK);
        item[2].bytes = (int64_t)text.n;
        bytes = ch__ckpt_layout(3, item);
    }
    x.data[2] = text.at;
    base_path(path, name);
    MUST(ch__ckpt_writer_open(path, 1, NULL, &w) == CH_OK);
    MUST(ch__ckpt_writer_add_file(w, 0, 3, item, fetch_base, &x, NULL) == CH_OK);
    MUST(ch__ckpt_writer_begin_index(w) == CH_OK);
    MUST(ch__ckpt_writer_add_keys(w, 3, item, CH_CKPT_SLICES | CH_CKPT_TENSORS) == CH_OK);
    MUST(ch__ckpt_writer_commit(w) == CH_OK);
    ch__ckpt_writer_close(w);
    ch__bytes_builder_drop(&text);
}

static void remove_files(void)
{
    for (int i = 0; i < FILES; i++)
        drop_file(&file_of_input[i]);
    for (int i = 0; i < 4; i++) {
        char path[128], name[160];

        base_path(path, i < 2 ? "base" : "delta");
        snprintf(name, sizeof(name), "%s%s", path, suffix[i % 2]);
        (void)remove(name);
    }
}

static void begin(void)
{
    for (int i = 0; i < FILES; i++)
        snprintf(file_of_input[i].path, sizeof(file_of_input[i].path), "%s%s", file_to_write(),
                 suffix[i]);
    write_base("base", BASE_ID, NULL);
    write_base("delta", DELTA_ID, "base");
    atexit(remove_files);
}

/* Makes the checkpoint a delta: appends metadata to the data file, and sets its entry. */
static void add_metadata(int options, ch_bytes_builder *file, entry *e)
{
    bool             is_chain = (options & BASE_IS_DELTA) != 0;
    ch_bytes_builder text = {0}, message = {0};
    int64_t          bytes = 0;
    ch_ckpt_metadata m = {.format = CH_CKPT_FORMAT,
                          .id = 99,
                          .n_files = 1,
                          .file_bytes = &bytes,
                          .base_id = is_chain                      ? DELTA_ID
                                     : (options & OTHER_BASE) != 0 ? 98
                                                                   : BASE_ID,
                          .base = is_chain ? "delta" : "base"};
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
    int              options = size > 0 ? data[0] : 0;

    n_data = size < 2 ? 0 : n_data > size - 2 ? size - 2 : n_data;
    for (at = 2 + n_data; n < MOST_ENTRIES && at + 2 <= size; n++) {
        size_t key = data[at], value = data[at + 1];

        at += 2;
        key = key > size - at ? size - at : key;
        value = value > size - at - key ? size - at - key : value;
        e[n].key = (ch_str){(const char *)data + at, key};
        e[n].value = (ch_str){(const char *)data + at + key, value};
        at += key + value;
        if ((options & FIXES) != 0 && key > 0)
            fix_checksum(&e[n], data + 2, n_data);
    }
    ch__bytes_builder_add(&file, size > 2 ? data + 2 : data, n_data);
    if ((options & IS_DELTA) != 0)
        add_metadata(options, &file, &e[n++]);
    qsort(e, (size_t)n, sizeof(*e), compare);
    for (int i = 0; i < n; i++) {
        if (e[i].value.data >= (char *)e && e[i].value.data < (char *)(e + MOST_ENTRIES + 1))
            e[i].value.data = (char *)e[i].fixed; /* sorting has moved it */
        ch__sst_add(&w, e[i].key, e[i].value.data, e[i].value.size);
    }
    ch__sst_end(&w);
    put_file(&file_of_input[INDEX], w.out.at, (size_t)w.out.n);
    ch__sst_drop(&w);
    for (int i = DATA; i < FILES; i++)
        if (i == DATA || (options & HAS_TWO_FILES) != 0)
            put_file(&file_of_input[i], file.n > 0 ? file.at : "", file.n);
        else if (file_of_input[i].fd > 0)
            drop_file(&file_of_input[i]);
    if ((options & IS_LINK) != 0) {
        drop_file(&file_of_input[DATA]);
        MUST(symlink("base.data-00000-of-00001", file_of_input[DATA].path) == 0);
    }
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

/* Opens the checkpoint in parts. If it can be opened whole (c is not NULL), the parts have the
 * same tensors. */
static void open_parts(const ch_ckpt *c, unsigned h)
{
    char    after[CH_CKPT_MAX_NAME + 1] = "";
    int     n = 0;
    bool    has_more = true;
    int64_t bytes = 1 + h % 1000;

    while (has_more) {
        ch_ckpt  *part = NULL;
        ch_status rc = ch__ckpt_open_some(file_to_write(), n > 0 ? after : NULL, bytes, &part);

        MUST(rc == CH_OK || c == NULL);
        if (rc != CH_OK)
            return;
        if (c != NULL)
            MUST(ch__ckpt_count_all(part) == ch__ckpt_count(c));
        for (int i = 0; i < ch__ckpt_count(part); i++, n++) {
            ch_ckpt_entry x, y;

            ch__ckpt_entry(part, i, &x);
            if (c == NULL)
                continue;
            ch__ckpt_entry(c, n, &y);
            MUST(strcmp(x.name, y.name) == 0 && ch_shape_equal(x.shape, y.shape));
            MUST(x.bytes == y.bytes && x.n_parts == y.n_parts && x.n_rows == y.n_rows);
        }
        has_more = ch__ckpt_last_name(part) != NULL;
        if (has_more)
            snprintf(after, sizeof(after), "%s", ch__ckpt_last_name(part));
        MUST(!has_more || ch__ckpt_count(part) > 0);
        ch__ckpt_close(part);
    }
    MUST(c == NULL || n == ch__ckpt_count(c));
}

static void load_metadata(void)
{
    ch_ckpt_metadata m = {.id = 0};

    if (ch__ckpt_load_metadata(file_to_write(), &m) == CH_OK)
        ch__free(m.memory);
}

/* Reads and checks everything. */
static void read_all(int options, unsigned h)
{
    ch_ckpt *c = NULL;

    if (ch__ckpt_open(file_to_write(), &c) == CH_OK) {
        check_properties(c);
        if ((options & IS_CUT) != 0)
            put_file(&file_of_input[DATA], "", 0);
        for (int i = 0; i < ch__ckpt_count(c); i++)
            read_tensor(c, i, h);
    }
    if ((options & IN_PARTS) != 0 && (options & IS_CUT) == 0)
        open_parts(c, h);
    if ((options & IN_PARTS) != 0)
        load_metadata();
    ch__ckpt_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool is_first = true;
    int64_t     live = ch__mem_live();
    unsigned    h = fuzz_hash(data, size);

    if (is_first)
        begin();
    is_first = false;
    write_files(data, size);
    if (h % 16 == 0)
        with_any_failure(h / 16, 40, 20, open_once, file_to_write());
    ch__mem_watch(true);
    read_all(size > 0 ? data[0] : 0, h / 16);
    MUST(ch__mem_peak() <= (16 << 20) + 2 * (int64_t)size + 4096);
    ch__mem_watch(false);
    MUST(ch__mem_live() == live);
    return 0;
}

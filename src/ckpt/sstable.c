/* ckpt/sstable.c -- writes and reads sorted string tables (TBF-3 to TBF-8).
 *
 * The writer collects the entries of a block, appends the block to its output when the block is
 * large enough, and adds an entry for it to the index block. The reader loads the index block,
 * then one data block after the other. ckpt/index.c calls both.
 *
 * The reader trusts nothing: blocks must lie in ascending order before the index block, have a
 * correct checksum, and hold keys that ascend through the whole table. A block has at most
 * MAX_BLOCK bytes, before and after decompression.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/sstable.h"

#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/sys.h"
#include "ckpt/snappy.h"
#include "file/crc32c.h"

enum {
    BLOCK_BYTES = 262144, /* a block of this size is complete (TBF-6) */
    LARGE_BYTES = 524288, /* an entry of this size gets a block of its own */
    MAX_BLOCK = 2 << 20,
    MAX_KEY = 16384, /* a name of 4 KiB with escapes, and the extents of a slice */
    TRAILER = 5,     /* type and checksum after a block */
    FOOTER = 48
};

static const unsigned char magic[8] = {0x57, 0xfb, 0x80, 0x8b, 0x24, 0x75, 0x47, 0xdb};

/* ---- writing ---- */

static size_t block_bytes(const ch_sst_block *b)
{
    /* The first restart, 0, is not stored. */
    return b->entries.n + b->restarts.n + 4 + 4;
}

static void block_add(ch_sst_block *b, ch_str key, const void *value, size_t n)
{
    size_t shared = 0;

    if (b->n_entries > 0 && b->n_entries % b->interval == 0)
        ch__bytes_builder_fixed32(&b->restarts, (uint32_t)b->entries.n);
    if (b->n_entries % b->interval > 0)
        while (shared < key.size && shared < b->last_key.n &&
               key.data[shared] == b->last_key.at[shared])
            shared++;
    ch__bytes_builder_varint(&b->entries, shared);
    ch__bytes_builder_varint(&b->entries, key.size - shared);
    ch__bytes_builder_varint(&b->entries, n);
    ch__bytes_builder_add(&b->entries, key.data + shared, key.size - shared);
    ch__bytes_builder_add(&b->entries, value, n);
    b->last_key.n = 0;
    ch__bytes_builder_add(&b->last_key, key.data, key.size);
    b->n_entries++;
}

/* Appends the block and its trailer to the table; the block is empty afterwards. Returns its
 * offset, and in *bytes its size without the trailer. */
static size_t block_end(ch_sst_writer *w, ch_sst_block *b, size_t *bytes)
{
    size_t   from = w->out.n;
    uint32_t crc;

    if (b->entries.has_failed || b->restarts.has_failed || b->last_key.has_failed)
        w->out.has_failed = true;
    ch__bytes_builder_add(&w->out, b->entries.at, b->entries.n);
    ch__bytes_builder_fixed32(&w->out, 0);
    ch__bytes_builder_add(&w->out, b->restarts.at, b->restarts.n);
    ch__bytes_builder_fixed32(&w->out, (uint32_t)b->restarts.n / 4 + 1);
    *bytes = w->out.n - from;
    ch__bytes_builder_add(&w->out, "", 1); /* no compression */
    crc = w->out.has_failed ? 0 : ch__crc32c_mask(ch__crc32c(0, w->out.at + from, *bytes + 1));
    ch__bytes_builder_fixed32(&w->out, crc);
    b->entries.n = b->restarts.n = 0;
    b->n_entries = 0;
    return w->n_taken + from;
}

static void add_handle(ch_bytes_builder *b, size_t offset, size_t bytes)
{
    ch__bytes_builder_varint(b, offset);
    ch__bytes_builder_varint(b, bytes);
}

/* Shortens `last`, the last key of a block, to a key that is still below `next` (TBF-7). */
static void shorten_between(ch_bytes_builder *last, ch_str next)
{
    size_t n = 0, least = last->n < next.size ? last->n : next.size;

    while (n < least && last->at[n] == next.data[n])
        n++;
    if (n == least)
        return;
    unsigned char byte = (unsigned char)last->at[n];
    if (byte < 0xff && byte + 1 < (unsigned char)next.data[n]) {
        last->at[n] = (char)(byte + 1);
        last->n = n + 1;
    }
}

/* Shortens the last key of the table to a key that is not below it. */
static void shorten_last(ch_bytes_builder *last)
{
    for (size_t i = 0; i < last->n; i++)
        if ((unsigned char)last->at[i] != 0xff) {
            last->at[i]++;
            last->n = i + 1;
            return;
        }
}

static void end_data_block(ch_sst_writer *w)
{
    w->ended.n = 0;
    ch__bytes_builder_add(&w->ended, w->data.last_key.at, w->data.last_key.n);
    w->ended_offset = block_end(w, &w->data, &w->ended_bytes);
    w->has_ended = true;
}

/* Adds the block that has ended to the index block. `next` is the next key, or NULL. */
static void add_to_index(ch_sst_writer *w, const ch_str *next)
{
    ch_bytes_builder handle = {0};

    if (!w->has_ended)
        return;
    if (w->ended.has_failed)
        w->out.has_failed = true;
    if (next != NULL)
        shorten_between(&w->ended, *next);
    else
        shorten_last(&w->ended);
    add_handle(&handle, w->ended_offset, w->ended_bytes);
    if (handle.has_failed)
        w->out.has_failed = true;
    block_add(&w->index, (ch_str){w->ended.n > 0 ? w->ended.at : "", w->ended.n}, handle.at,
              handle.n);
    ch__bytes_builder_drop(&handle);
    w->has_ended = false;
}

void ch__sst_add(ch_sst_writer *w, ch_str key, const void *value, size_t n)
{
    w->data.interval = 16;
    w->index.interval = 1;
    if (key.size + n >= LARGE_BYTES && w->data.n_entries > 0)
        end_data_block(w);
    add_to_index(w, &key);
    block_add(&w->data, key, value, n);
    if (block_bytes(&w->data) >= BLOCK_BYTES)
        end_data_block(w);
}

void ch__sst_end(ch_sst_writer *w)
{
    ch_sst_block     empty = {.interval = 1};
    ch_bytes_builder foot = {0};
    size_t           offset, bytes;

    if (w->data.n_entries > 0)
        end_data_block(w);
    add_to_index(w, NULL);
    offset = block_end(w, &empty, &bytes);
    add_handle(&foot, offset, bytes);
    offset = block_end(w, &w->index, &bytes);
    add_handle(&foot, offset, bytes);
    while (foot.n < FOOTER - 8 && !foot.has_failed)
        ch__bytes_builder_add(&foot, "", 1);
    ch__bytes_builder_add(&foot, magic, 8);
    ch__bytes_builder_add(&w->out, foot.at, foot.n);
    w->out.has_failed |= foot.has_failed;
    ch__bytes_builder_drop(&foot);
}

void ch__sst_drop(ch_sst_writer *w)
{
    ch_sst_block *const blocks[] = {&w->data, &w->index};

    for (int i = 0; i < 2; i++) {
        ch__bytes_builder_drop(&blocks[i]->entries);
        ch__bytes_builder_drop(&blocks[i]->restarts);
        ch__bytes_builder_drop(&blocks[i]->last_key);
    }
    ch__bytes_builder_drop(&w->ended);
    ch__bytes_builder_drop(&w->out);
}

/* ---- reading ---- */

typedef struct sst_file {
    int         fd;
    int64_t     bytes;
    const char *path;
} sst_file;

/* A block in memory. */
typedef struct sst_block {
    char   *memory; /* owned */
    int64_t offset; /* in the file, for messages */
    size_t  n;      /* bytes of the entries, without the restarts */
} sst_block;

static ch_status fail_at(const sst_file *f, int64_t offset, const char *problem)
{
    return ch__fail(CH_DATA_LOSS, "%s: %s in the block at byte %lld", f->path, problem,
                    (long long)offset);
}

static ch_status read_bytes(const sst_file *f, int64_t offset, char *to, size_t n)
{
    while (n > 0) {
        ssize_t got = ch__sys_pread(f->fd, to, n, offset);

        if (got < 0)
            return ch__fail_errno(errno, "%s: cannot be read at byte %lld", f->path,
                                  (long long)offset);
        if (got == 0)
            return ch__fail(CH_DATA_LOSS, "%s: ends at byte %lld, while it is read", f->path,
                            (long long)offset);
        to += got;
        n -= (size_t)got;
        offset += got;
    }
    return CH_OK;
}

/* Replaces the contents of a block by their decompressed form. */
static ch_status unpack_block(const sst_file *f, sst_block *b)
{
    uint32_t n;
    char    *plain;

    if (!ch__snappy_bytes(b->memory, b->n, &n))
        return fail_at(f, b->offset, "damaged snappy data");
    if (n > MAX_BLOCK)
        return ch__fail_limit("%s: the block at byte %lld has %u bytes (at most %d are read)",
                              f->path, (long long)b->offset, n, MAX_BLOCK);
    plain = ch__malloc(n + 1);
    if (plain == NULL)
        return ch__fail_memory(f->path);
    if (!ch__snappy_decode(b->memory, b->n, plain)) {
        ch__free(plain);
        return fail_at(f, b->offset, "damaged snappy data");
    }
    ch__free(b->memory);
    b->memory = plain;
    b->n = n;
    return CH_OK;
}

/* Checks the trailer of a block of n bytes, unpacks the block, and finds the end of its
 * entries. */
static ch_status check_block(const sst_file *f, sst_block *b, size_t n)
{
    int       type = (unsigned char)b->memory[n];
    uint32_t  n_restarts;
    ch_status rc = CH_OK;

    if (ch__le32(b->memory + n + 1) != ch__crc32c_mask(ch__crc32c(0, b->memory, n + 1)))
        return fail_at(f, b->offset, "wrong checksum");
    b->n = n;
    if (type == 1)
        rc = unpack_block(f, b);
    else if (type != 0)
        rc = ch__fail(CH_DATA_LOSS, "%s: unknown compression %d of the block at byte %lld",
                      f->path, type, (long long)b->offset);
    if (rc != CH_OK)
        return rc;
    n_restarts = b->n >= 4 ? ch__le32(b->memory + b->n - 4) : 0;
    if (n_restarts == 0 || n_restarts > (b->n - 4) / 4)
        return fail_at(f, b->offset, "invalid number of restarts");
    b->n -= 4 + (size_t)n_restarts * 4;
    return CH_OK;
}

/* Reads a block that must lie in [from, to) of the file. The caller must free b->memory, also
 * after an error. */
static ch_status read_block(const sst_file *f, uint64_t offset, uint64_t n, int64_t from,
                            int64_t to, sst_block *b)
{
    ch_status rc;

    b->memory = NULL;
    if (offset < (uint64_t)from || offset > (uint64_t)to || (uint64_t)to - offset < TRAILER ||
        n > (uint64_t)to - offset - TRAILER)
        return ch__fail(CH_DATA_LOSS, "%s: a block of %llu bytes at byte %llu does not fit",
                        f->path, (unsigned long long)n, (unsigned long long)offset);
    if (n > MAX_BLOCK)
        return ch__fail_limit("%s: the block at byte %llu has %llu bytes (at most %d are read)",
                              f->path, (unsigned long long)offset, (unsigned long long)n,
                              MAX_BLOCK);
    b->offset = (int64_t)offset;
    b->memory = ch__malloc((size_t)n + TRAILER);
    if (b->memory == NULL)
        return ch__fail_memory(f->path);
    rc = read_bytes(f, b->offset, b->memory, (size_t)n + TRAILER);
    return rc == CH_OK ? check_block(f, b, (size_t)n) : rc;
}

/* Position in a block, and the key there. */
typedef struct sst_cursor {
    const sst_file  *file;
    const sst_block *block;
    ch_wire          wire;
    ch_wire_span     rest;
    char            *key; /* MAX_KEY bytes */
    size_t           n_key;
    ch_str           value;
} sst_cursor;

static void cursor_begin(sst_cursor *c, const sst_block *b)
{
    c->block = b;
    c->wire = ch__wire(b->memory, b->n);
    c->rest = c->wire.all;
}

/* Decodes the next entry. *more is false at the end of the block. Keys must ascend, also from
 * one block to the next; the first key of a table may be empty. */
static ch_status cursor_next(sst_cursor *c, bool *more)
{
    uint64_t shared, own, n_value;
    size_t   old = c->n_key;
    int      order;

    *more = c->rest.at < c->rest.end;
    if (!*more)
        return CH_OK;
    if (!ch__wire_varint(&c->wire, &c->rest, &shared) ||
        !ch__wire_varint(&c->wire, &c->rest, &own) ||
        !ch__wire_varint(&c->wire, &c->rest, &n_value))
        return fail_at(c->file, c->block->offset, "damaged entry");
    if (shared > old || own > ch__wire_bytes(c->rest) ||
        n_value > ch__wire_bytes(c->rest) - own)
        return fail_at(c->file, c->block->offset, "entry that is longer than its block");
    if (shared + own > MAX_KEY)
        return ch__fail_limit("%s: a key in the block at byte %lld has %llu bytes (at most %d "
                              "are read)",
                              c->file->path, (long long)c->block->offset,
                              (unsigned long long)(shared + own), MAX_KEY);
    order = memcmp(c->rest.at, c->key + shared, own < old - shared ? own : old - shared);
    if (order < 0 || (order == 0 && own <= old - shared && c->value.data != NULL))
        return fail_at(c->file, c->block->offset, "keys that do not ascend");
    memcpy(c->key + shared, c->rest.at, own);
    c->n_key = shared + own;
    c->value = (ch_str){(const char *)c->rest.at + own, n_value};
    c->rest.at += own + n_value;
    return CH_OK;
}

static ch_status visit_block(sst_cursor *c, const sst_block *b, ch_sst_visit visit, void *arg)
{
    bool      more = true;
    ch_status rc = CH_OK;

    cursor_begin(c, b);
    while (rc == CH_OK && more) {
        rc = cursor_next(c, &more);
        if (rc == CH_OK && more)
            rc = visit(arg, (ch_str){c->key, c->n_key}, c->value);
    }
    return rc;
}

/* Visits all data blocks in the order of the index block. */
static ch_status visit_all(const sst_file *f, const sst_block *index, ch_sst_visit visit,
                           void *arg, char *key)
{
    sst_cursor at = {.file = f, .key = key}, in = {.file = f, .key = key + MAX_KEY};
    int64_t    end = 0; /* of the last data block */
    bool       more = true;
    ch_status  rc = CH_OK;

    cursor_begin(&at, index);
    while (rc == CH_OK && more) {
        sst_block    b = {NULL};
        ch_wire      w;
        ch_wire_span handle;
        uint64_t     offset, n;

        rc = cursor_next(&at, &more);
        if (rc != CH_OK || !more)
            break;
        w = ch__wire(at.value.data, at.value.size);
        handle = w.all;
        if (!ch__wire_varint(&w, &handle, &offset) || !ch__wire_varint(&w, &handle, &n))
            return fail_at(f, index->offset, "damaged block handle");
        rc = read_block(f, offset, n, end, index->offset, &b);
        if (rc == CH_OK)
            rc = visit_block(&in, &b, visit, arg);
        end = (int64_t)(offset + n) + TRAILER;
        ch__free(b.memory);
    }
    return rc;
}

/* Reads the footer and finds the index block. */
static ch_status read_footer(const sst_file *f, uint64_t *offset, uint64_t *n)
{
    char         foot[FOOTER];
    ch_wire      w = ch__wire(foot, FOOTER - 8);
    ch_wire_span s = w.all;
    uint64_t     unused[2]; /* offset and size of the empty block */
    ch_status    rc;

    if (f->bytes < FOOTER)
        return ch__fail(CH_DATA_LOSS,
                        "%s: not an index of a checkpoint: it has %lld bytes, less than %d",
                        f->path, (long long)f->bytes, FOOTER);
    rc = read_bytes(f, f->bytes - FOOTER, foot, FOOTER);
    if (rc != CH_OK)
        return rc;
    if (memcmp(foot + FOOTER - 8, magic, 8) != 0)
        return ch__fail(CH_DATA_LOSS,
                        "%s: not an index of a checkpoint, or truncated: wrong magic number at "
                        "byte %lld",
                        f->path, (long long)f->bytes - 8);
    if (!ch__wire_varint(&w, &s, &unused[0]) || !ch__wire_varint(&w, &s, &unused[1]) ||
        !ch__wire_varint(&w, &s, offset) || !ch__wire_varint(&w, &s, n))
        return ch__fail(CH_DATA_LOSS, "%s: damaged footer at byte %lld", f->path,
                        (long long)f->bytes - FOOTER);
    return CH_OK;
}

ch_status ch__sst_read(int fd, int64_t bytes, const char *path, ch_sst_visit visit, void *arg)
{
    sst_file  f = {fd, bytes, path};
    sst_block index = {NULL};
    uint64_t  offset, n;
    char     *key = NULL;
    ch_status rc = read_footer(&f, &offset, &n);

    if (rc == CH_OK)
        rc = read_block(&f, offset, n, 0, bytes - FOOTER, &index);
    if (rc == CH_OK) {
        key = ch__malloc(2 * MAX_KEY); /* of the index block and of the data block */
        rc = key != NULL ? visit_all(&f, &index, visit, arg, key) : ch__fail_memory(path);
    }
    ch__free(key);
    ch__free(index.memory);
    return rc;
}

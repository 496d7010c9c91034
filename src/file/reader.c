/* file/reader.c -- readers: fill blocks from a file stream.
 *
 * struct ch_reader (reader.h) points into its current block. If the block has too little room
 * for the bytes that are needed, the unread bytes move to the beginning of the block or to
 * another block. The readers of formats (record.c, npy.c, idx.c) and of data sets (src/data)
 * are the callers.
 *
 *   1. While a block is shared, its consumed and buffered bytes are never overwritten. Reading
 *      continues after them or, if there is no room, in another block.
 *   2. Blocks grow as bytes arrive, so a large declared length reserves no memory.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/reader.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"

/* A block doubles up to this size and then grows in steps of this size, so that the reserved
 * memory exceeds the bytes read only by a bounded amount. */
static const size_t max_growth = (size_t)8 << 20;

static void free_name(ch_buffer *b)
{
    ch__free(b->data);
    ch__free(b);
}

/* Copies the stream's path into a buffer with one reference. Returns NULL if memory is
 * exhausted. */
static ch_buffer *name_new(const ch_file_stream *s)
{
    ch_buffer *b = ch__calloc(1, sizeof(*b));
    char      *path = ch__strdup(ch__stream_path(s));

    if (b == NULL || path == NULL) {
        ch__free(b);
        ch__free(path);
        return NULL;
    }
    *b = (ch_buffer){.data = path, .bytes = strlen(path) + 1, .release = free_name};
    atomic_init(&b->refs, 1);
    return b;
}

/* Returns a block that carries the file's name, or NULL if memory is exhausted. */
static ch_buffer *get_block(ch_reader *r)
{
    ch_buffer *b = ch__block_get(r->pool, 0);

    if (b != NULL)
        ch__block_set_name(b, r->name);
    return b;
}

ch_status ch__reader_over(ch_file_stream *s, ch_block_pool *pool, ch_reader **out)
{
    ch_reader *r = ch__calloc(1, sizeof(*r));
    ch_status  rc = r == NULL ? ch__fail_memory(ch__stream_path(s)) : CH_OK;

    if (rc != CH_OK) {
        ch__stream_close(s);
        return rc;
    }
    r->stream = s;
    if (pool != NULL)
        r->pool = ch__block_pool_ref(pool);
    else
        rc = ch__block_pool_new(&r->pool);
    if (rc == CH_OK) {
        r->name = name_new(s);
        r->block = r->name != NULL ? get_block(r) : NULL;
        if (r->block == NULL)
            rc = ch__fail_memory(ch__stream_path(s));
    }
    if (rc != CH_OK) {
        ch__reader_close(r);
        return rc;
    }
    r->at = r->block->data;
    *out = r;
    return CH_OK;
}

ch_status ch__reader_open(const char *path, const ch_load_options *opt, ch_block_pool *pool,
                          ch_reader **out)
{
    ch_file_stream *s = NULL;
    ch_status       rc = ch__stream_open(path, opt, &s);

    return rc == CH_OK ? ch__reader_over(s, pool, out) : rc;
}

void ch__reader_close(ch_reader *r)
{
    if (r == NULL)
        return;
    if (r->block != NULL)
        ch__buffer_unref(r->block);
    if (r->name != NULL)
        ch__buffer_unref(r->name);
    ch__block_pool_unref(r->pool);
    ch__stream_close(r->stream);
    ch__free(r);
}

int64_t ch__reader_offset(const ch_reader *r)
{
    return ch__stream_offset(r->stream) - (int64_t)r->left;
}

int64_t ch__reader_file_bytes(const ch_reader *r)
{
    return ch__stream_file_bytes(r->stream);
}

const char *ch__reader_path(const ch_reader *r)
{
    return ch__stream_path(r->stream);
}

/* ---- filling ---- */

static char *block_data(const ch_buffer *b)
{
    return b->data;
}

/* Returns the free bytes in the block after the buffered bytes. */
static size_t room_behind(const ch_reader *r)
{
    return r->block->bytes - (size_t)(r->at - block_data(r->block)) - r->left;
}

static bool is_shared(const ch_buffer *b)
{
    return atomic_load_explicit(&b->refs, memory_order_acquire) > 1;
}

static ch_status fail_room(const ch_reader *r, size_t n)
{
    return ch__fail(CH_RESOURCE_EXHAUSTED,
                    "%s: out of memory for the %zu bytes that are needed at byte %lld",
                    ch__reader_path(r), n, (long long)ch__reader_offset(r));
}

/* Enlarges the block, which may move. Returns false if memory is exhausted. */
static bool grow(ch_reader *r)
{
    ch_buffer *b = r->block;
    size_t     at = (size_t)(r->at - block_data(b));
    bool ok = ch__block_grow(b, b->bytes + (b->bytes < max_growth ? b->bytes : max_growth));

    r->at = block_data(b) + at;
    return ok;
}

/* Copies the unread bytes to the beginning of another block, which is not shared and has room
 * after them. Returns false if memory is exhausted; the reader is unchanged then. */
static bool move_to_new_block(ch_reader *r)
{
    ch_buffer *new_block = get_block(r);

    if (new_block == NULL)
        return false;
    if (!ch__block_grow(new_block, r->left + 1)) {
        ch__buffer_unref(new_block);
        return false;
    }
    if (r->left > 0)
        memcpy(new_block->data, r->at, r->left);
    ch__buffer_unref(r->block);
    r->block = new_block;
    r->at = new_block->data;
    return true;
}

/* Makes at least one free byte after the buffered bytes; room for all of `n` if the block is
 * large enough. */
static ch_status make_room(ch_reader *r, size_t n)
{
    bool ok = true;

    if (n - r->left <= room_behind(r))
        return CH_OK;
    if (is_shared(r->block))
        ok = move_to_new_block(r);
    else if (r->at != block_data(r->block)) {
        memmove(r->block->data, r->at, r->left);
        r->at = r->block->data;
    }
    if (ok && room_behind(r) == 0)
        ok = grow(r);
    return ok ? CH_OK : fail_room(r, n);
}

ch_status ch__reader_fill(ch_reader *r, size_t n)
{
    while (r->left < n && !r->has_ended) {
        size_t    got;
        ch_status rc = make_room(r, n);

        if (rc != CH_OK)
            return rc;
        size_t room = room_behind(r);
        rc = ch__stream_read(r->stream, block_data(r->block) + (r->block->bytes - room),
                             room < CH_BLOCK_BYTES ? room : CH_BLOCK_BYTES, &got);
        if (rc != CH_OK)
            return rc;
        r->left += got;
        r->has_ended = got == 0;
    }
    return CH_OK;
}

/* ---- moving ---- */

ch_status ch__reader_skip(ch_reader *r, int64_t n, int64_t *skipped)
{
    int64_t   here = (uint64_t)n < r->left ? n : (int64_t)r->left;
    ch_status rc = CH_OK;

    ch__reader_borrow(r, (size_t)here);
    *skipped = 0;
    if (here < n)
        rc = ch__stream_skip(r->stream, n - here, skipped);
    *skipped += here;
    return rc;
}

ch_status ch__reader_seek(ch_reader *r, int64_t offset)
{
    int64_t skipped, distance = offset - ch__reader_offset(r);

    if (distance >= 0 && (uint64_t)distance <= r->left)
        return ch__reader_skip(r, distance, &skipped);
    r->at += r->left;
    r->left = 0;
    r->has_ended = false;
    return ch__stream_seek(r->stream, offset);
}

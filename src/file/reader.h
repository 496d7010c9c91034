/* file/reader.h -- spans of a file, looked at where they were read to.
 *
 *     rc = ch__reader_want(r, 12);            // fewer than 12 are left only where the file ends
 *     if (rc == CH_OK && r->left >= 12)
 *         ... r->at[0 .. 11] ...
 *     ch__reader_borrow(r, 12);
 *
 * A span stays where it is until the reader is asked for bytes that it does not have; who keeps one
 * for longer adds a reference to r->block (ch__buffer_ref), and then it stays until that goes, on
 * any thread. A reader itself has one owner and one thread at a time.
 *
 * Memory follows the bytes that were really read, never a length that a file declares. How much may
 * be wanted at once is for the caller to bound.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_READER_H
#define FILE_READER_H

#include "file/block.h"
#include "file/stream.h"

typedef struct ch_reader {
    const char *at;    /* the next byte */
    size_t      left;  /* bytes that are there, from `at` on */
    ch_buffer  *block; /* in which they lie */
    /* The rest is the reader's own. */
    bool            has_ended; /* the stream has no more */
    ch_file_stream *stream;
    ch_block_pool  *pool;
    ch_buffer      *name; /* the path, for the blocks, which may outlive the reader */
} ch_reader;

/* `opt` may be NULL; blocks come from `pool`, which is referenced; NULL: from its own. */
CH_MUST_CHECK ch_status ch__reader_open(const char *path, const ch_load_options *opt,
                                        ch_block_pool *pool, ch_reader **out);
/* Over a stream, which it takes over, on an error too. */
CH_MUST_CHECK ch_status ch__reader_over(ch_file_stream *s, ch_block_pool *pool,
                                        ch_reader **out);
void                    ch__reader_close(ch_reader *r); /* NULL is fine */

/* As ch__stream_stop_at. */
static inline void ch__reader_stop_at(ch_reader *r, const atomic_bool *stop)
{
    ch__stream_stop_at(r->stream, stop);
}

/* Reads until there are `n` bytes, or the file has ended. After an error what was there is there. */
CH_MUST_CHECK ch_status ch__reader_fill(ch_reader *r, size_t n);

static inline CH_MUST_CHECK ch_status ch__reader_want(ch_reader *r, size_t n)
{
    return n <= r->left ? CH_OK : ch__reader_fill(r, n);
}

/* Passes over bytes that are there. */
static inline void ch__reader_borrow(ch_reader *r, size_t n)
{
    r->at += n;
    r->left -= n;
}

/* Passes over `n` bytes, there or not; *skipped is less only where the file ends. */
CH_MUST_CHECK ch_status ch__reader_skip(ch_reader *r, int64_t n, int64_t *skipped);
/* Goes to where ch__reader_offset was `offset`. Files that are not compressed seek; the others
 * begin again and read up to it. */
CH_MUST_CHECK ch_status ch__reader_seek(ch_reader *r, int64_t offset);

int64_t     ch__reader_offset(const ch_reader *r);     /* of the next byte, decompressed */
int64_t     ch__reader_file_bytes(const ch_reader *r); /* when it was opened, as on the disk */
const char *ch__reader_path(const ch_reader *r);

#endif

/* file/reader.h -- readers: buffered access to a file stream without copies.
 *
 *     rc = ch__reader_want(r, 12);         // r->left < 12 only at the end of the file
 *     if (rc == CH_OK && r->left >= 12)
 *         ... r->at[0 .. 11] ...
 *     ch__reader_borrow(r, 12);
 *
 * A reader reads the stream into blocks (file/block.h). Borrowed bytes stay valid until the
 * next call that needs bytes which are not buffered. To keep them longer, the caller must add a
 * reference to r->block (ch__buffer_ref). The bytes are then valid on any thread until that
 * reference is released. The reader itself has a single owner and must be used by one thread at
 * a time.
 *
 * Memory grows with the bytes that have been read, never with a length that a file declares.
 * The caller must limit the `n` that it passes to ch__reader_want.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_READER_H
#define FILE_READER_H

#include "file/block.h"
#include "file/stream.h"

typedef struct ch_reader {
    const char *at;    /* the next byte */
    size_t      left;  /* number of buffered bytes at `at` */
    ch_buffer  *block; /* the block that holds them */
    /* Private to the reader. */
    bool            has_ended; /* the stream is at its end */
    ch_file_stream *stream;
    ch_block_pool  *pool;
    /* the path; a buffer, because blocks refer to it and may outlive the reader */
    ch_buffer *name;
} ch_reader;

/* Opens a file. `opt` may be NULL. Adds a reference to `pool`, which provides the blocks; NULL:
 * the reader creates its own pool. The caller must close the reader. */
CH_MUST_CHECK ch_status ch__reader_open(const char *path, const ch_load_options *opt,
                                        ch_block_pool *pool, ch_reader **out);
/* Creates a reader on a stream. The reader owns `s` afterwards; on an error `s` is closed. */
CH_MUST_CHECK ch_status ch__reader_over(ch_file_stream *s, ch_block_pool *pool,
                                        ch_reader **out);
/* `r` may be NULL. */
void ch__reader_close(ch_reader *r);

/* As ch__stream_set_stop. */
static inline void ch__reader_set_stop(ch_reader *r, const atomic_bool *stop)
{
    ch__stream_set_stop(r->stream, stop);
}

/* Reads until at least `n` bytes are buffered or the file ends. The caller must check r->left.
 * After an error the bytes that were buffered are still there. */
CH_MUST_CHECK ch_status ch__reader_fill(ch_reader *r, size_t n);

/* As ch__reader_fill, but returns at once if `n` bytes are buffered. */
static inline CH_MUST_CHECK ch_status ch__reader_want(ch_reader *r, size_t n)
{
    return n <= r->left ? CH_OK : ch__reader_fill(r, n);
}

/* Consumes `n` buffered bytes; n must be at most r->left. The bytes stay valid as described
 * above. */
static inline void ch__reader_borrow(ch_reader *r, size_t n)
{
    r->at += n;
    r->left -= n;
}

/* Skips `n` bytes, buffered or not. *skipped is less than n only if the file ends. */
CH_MUST_CHECK ch_status ch__reader_skip(ch_reader *r, int64_t n, int64_t *skipped);
/* Moves to `offset`, in decompressed bytes. Uncompressed files seek; in a compressed file, a
 * smaller offset decompresses again from the beginning. OUT_OF_RANGE: the file ends before
 * `offset`. */
CH_MUST_CHECK ch_status ch__reader_seek(ch_reader *r, int64_t offset);

int64_t     ch__reader_offset(const ch_reader *r);     /* of the next byte, decompressed */
int64_t     ch__reader_file_bytes(const ch_reader *r); /* on disk, when it was opened */
const char *ch__reader_path(const ch_reader *r);

#endif

/* file/stream.h -- file streams: the bytes of a file in order, decompressed.
 *
 * Files are read, never mapped: if a file is truncated during reading, the caller gets an error
 * and not a signal. Every error names the file, and the byte if there is one. A file stream has
 * a single owner and must be used by one thread at a time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_STREAM_H
#define FILE_STREAM_H

#include <stdatomic.h>

#include "cohort/file.h"

typedef struct ch_file_stream ch_file_stream;

/* Opens a file. `opt` may be NULL. The caller must close the stream with ch__stream_close.
 * NOT_FOUND, PERMISSION_DENIED: the file cannot be opened; INVALID_ARGUMENT: not a regular
 * file. */
CH_MUST_CHECK ch_status ch__stream_open(const char *path, const ch_load_options *opt,
                                        ch_file_stream **out);
/* A part of a file, for ch__stream_open_part. */
typedef struct ch_file_part {
    const char *label; /* replaces the path in error messages */
    /* offset in the file, and size in the file; INT64_MAX: up to the end of the file */
    int64_t        from, bytes;
    ch_compression compression; /* must not be CH_BY_NAME */
    /* Size after decompression and its CRC-32 (not CRC-32C). If either differs at the end of
     * the part, reading fails with DATA_LOSS. expect_bytes -1: unknown, no check. */
    int64_t  expect_bytes;
    uint32_t expect_crc;
} ch_file_part;
/* Opens a part of a file, as ch__stream_open does for a whole file. */
CH_MUST_CHECK ch_status ch__stream_open_part(const char *path, const ch_file_part *part,
                                             const ch_load_options *opt, ch_file_stream **out);
/* `s` may be NULL. */
void ch__stream_close(ch_file_stream *s);

/* Reads at least one byte and at most `n`. *got is 0 only at the end of the file. n must not be
 * 0. RESOURCE_EXHAUSTED: a limit of the options is exceeded. DATA_LOSS: the compressed data is
 * damaged or incomplete. */
CH_MUST_CHECK ch_status ch__stream_read(ch_file_stream *s, void *to, size_t n, size_t *got);
/* Skips `n` bytes. *skipped is less than n only if the file ends. */
CH_MUST_CHECK ch_status ch__stream_skip(ch_file_stream *s, int64_t n, int64_t *skipped);
/* Moves to `offset`, in decompressed bytes. Uncompressed files seek; in a compressed file, a
 * smaller offset decompresses again from the beginning. OUT_OF_RANGE: the file ends before
 * `offset`. */
CH_MUST_CHECK ch_status ch__stream_seek(ch_file_stream *s, int64_t offset);

/* Makes reads fail with CANCELLED once *stop is true, so that a thread can end a long read of
 * another thread. `stop` must outlive the stream. NULL: no flag. */
void ch__stream_set_stop(ch_file_stream *s, const atomic_bool *stop);

int64_t ch__stream_offset(const ch_file_stream *s); /* of the next byte, decompressed */
/* Returns the size of the whole file on disk in bytes, when it was opened. */
int64_t ch__stream_file_bytes(const ch_file_stream *s);
/* Returns the path or label, for error messages. */
const char *ch__stream_path(const ch_file_stream *s);

#endif

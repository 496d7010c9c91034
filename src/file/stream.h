/* file/stream.h -- the bytes of a file in order, decompressed.
 *
 * Files are read, never mapped: one that is cut short while it is read gives an error and not a
 * signal. Every error names the file, and the byte where there is one. A stream has one owner and
 * is used by one thread at a time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_STREAM_H
#define FILE_STREAM_H

#include <stdatomic.h>

#include "cohort/file.h"

typedef struct ch_file_stream ch_file_stream;

/* `opt` may be NULL. NOT_FOUND, PERMISSION_DENIED; INVALID_ARGUMENT for what is no
 * regular file. */
CH_MUST_CHECK ch_status ch__stream_open(const char *path, const ch_load_options *opt,
                                        ch_file_stream **out);
/* The same for a part of a file, which is called `label` in errors. */
typedef struct ch_part_of_file {
    const char    *label;
    int64_t        from, bytes; /* as they are in the file */
    ch_compression compression; /* not by name */
    int64_t  expect_bytes; /* that it has when decompressed, and their CRC-32 (not C): what */
    uint32_t expect_crc;   /* differs is DATA_LOSS. -1 bytes: not known */
} ch_part_of_file;
CH_MUST_CHECK ch_status ch__stream_open_part(const char *path, const ch_part_of_file *part,
                                             const ch_load_options *opt, ch_file_stream **out);
void                    ch__stream_close(ch_file_stream *s); /* NULL is fine */

/* Up to `n` bytes: at least one, or none at the end. RESOURCE_EXHAUSTED past the limits of the
 * options; DATA_LOSS if the compressed data is damaged or ends too soon. */
CH_MUST_CHECK ch_status ch__stream_read(ch_file_stream *s, void *to, size_t n, size_t *got);
/* Passes over `n` bytes; *skipped is less only where the file ends. */
CH_MUST_CHECK ch_status ch__stream_skip(ch_file_stream *s, int64_t n, int64_t *skipped);
/* Goes to where ch__stream_offset was `offset`: OUT_OF_RANGE if that is past the end. */
CH_MUST_CHECK ch_status ch__stream_seek(ch_file_stream *s, int64_t offset);

/* Once *stop is true all that reads is CANCELLED: who waits for a long read need not. NULL: never. */
void ch__stream_stop_at(ch_file_stream *s, const atomic_bool *stop);

int64_t ch__stream_offset(const ch_file_stream *s); /* of the next byte, decompressed */
/* Of the file, as it is on the disk, when it was opened. */
int64_t     ch__stream_file_bytes(const ch_file_stream *s);
const char *ch__stream_path(const ch_file_stream *s); /* or label: for errors */

#endif

/* file/codec.h -- compression and decompression, step by step.
 *
 * A codec is an encoder or a decoder. Only codec_zlib.c and codec_zstd.c use the libraries zlib
 * and zstd. All memory of the libraries comes from base/mem.h. A codec must be used by one
 * thread at a time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_CODEC_H
#define FILE_CODEC_H

#include <stdbool.h>

#include "cohort/file.h"

/* Input and output of a step. The step advances both pointers and reduces both counts. */
typedef struct ch_codec_io {
    const char *in;
    size_t      n_in;
    char       *out;
    size_t      n_out;
} ch_codec_io;

typedef struct ch_codec {
    /* Consumes input and produces output as far as possible. `is_last` ends the data of an
     * encoder; decoders ignore it. *ended is true if an encoder has produced all output after
     * is_last, or if a decoder is at the end of a member (not before the first member).
     * DATA_LOSS: the input is damaged; the message does not name the position, and output
     * before the error is valid. */
    ch_status (*step)(struct ch_codec *c, ch_codec_io *io, bool is_last, bool *ended);
    void (*free)(struct ch_codec *c);
} ch_codec;

/* A further kind of compression, for zip members: deflate without a header or checksum. */
#define CH_RAW_DEFLATE ((ch_compression)(CH_ZSTD + 1))

/* Returns `given`, unless it is CH_BY_NAME: then the compression for the suffix of `path`. */
ch_compression ch__compression_of(const char *path, ch_compression given);

/* Creates a decoder. `window` limits the bytes of history that the decoder keeps. Only zstd
 * uses it, because a zstd file declares the size of its window. Neither this function nor
 * ch__encoder_new accepts CH_UNCOMPRESSED (INVALID_ARGUMENT). */
CH_MUST_CHECK ch_status ch__decoder_new(ch_compression kind, int64_t window, ch_codec **out);
/* Creates an encoder. `level` is the library's level; 0: the library's default. */
CH_MUST_CHECK ch_status ch__encoder_new(ch_compression kind, int level, ch_codec **out);

/* `c` may be NULL. */
void ch__codec_free(ch_codec *c);

/* Returns the CRC-32 of zip files. `crc` is the checksum of the bytes before `data`; 0: there
 * are none. Always returns 0 if the build has no zlib. */
uint32_t ch__crc32(uint32_t crc, const void *data, size_t n);

/* Constructors for each library; UNIMPLEMENTED if the build lacks the library. `bits` is zlib's
 * windowBits: 31 gzip, 15 zlib, -15 raw deflate. */
CH_MUST_CHECK ch_status ch__inflate_new(int bits, ch_codec **out);
CH_MUST_CHECK ch_status ch__deflate_new(int bits, int level, ch_codec **out);
CH_MUST_CHECK ch_status ch__zstd_decoder_new(int64_t window, ch_codec **out);
CH_MUST_CHECK ch_status ch__zstd_encoder_new(int level, ch_codec **out);

#endif

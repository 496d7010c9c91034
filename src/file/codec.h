/* file/codec.h -- compression, one step at a time.
 *
 * A codec takes bytes and gives bytes: it is an encoder or a decoder. zlib and zstd are seen by
 * the files codec_zlib.c and codec_zstd.c alone. Their memory comes from base/mem.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_CODEC_H
#define FILE_CODEC_H

#include <stdbool.h>

#include "cohort/file.h"

/* Where a step reads and writes; it moves both and takes from both counts. */
typedef struct ch_codec_io {
    const char *in;
    size_t      n_in;
    char       *out;
    size_t      n_out;
} ch_codec_io;

typedef struct ch_codec {
    /* Takes what it can and gives what it can. `is_last`: to an encoder, that nothing follows.
     * *ended: a decoder is between members (in front of the first one it is not), an encoder has
     * given everything. DATA_LOSS says what is wrong with the bytes, not where; what was given before
     * that is good. */
    ch_status (*step)(struct ch_codec *c, ch_codec_io *io, bool is_last, bool *ended);
    void (*free)(struct ch_codec *c);
} ch_codec;

/* Besides those of ch_compression: what zip files hold, deflated bytes with nothing around. */
#define CH_RAW_DEFLATE ((ch_compression)(CH_ZSTD + 1))

/* What a path's ending says; never CH_BY_NAME. */
ch_compression ch__compression_of(const char *path, ch_compression given);

/* `window` bounds the bytes that a decoder keeps of what it has given, for zstd's sake, where the
 * file says how many that are. Neither takes CH_UNCOMPRESSED. */
CH_MUST_CHECK ch_status ch__decoder_new(ch_compression kind, int64_t window, ch_codec **out);
/* `level` as the library counts them; 0: its default. */
CH_MUST_CHECK ch_status ch__encoder_new(ch_compression kind, int level, ch_codec **out);

/* NULL is fine. */
void ch__codec_free(ch_codec *c);

/* CRC-32 as zip files have it; 0 for none before. 0 always where there is no zlib. */
uint32_t ch__crc32(uint32_t crc, const void *data, size_t n);

/* What the above are made of. `bits` as zlib's windowBits: 31 gzip, 15 zlib, -15 raw. */
CH_MUST_CHECK ch_status ch__inflate_new(int bits, ch_codec **out);
CH_MUST_CHECK ch_status ch__deflate_new(int bits, int level, ch_codec **out);
CH_MUST_CHECK ch_status ch__zstd_decoder_new(int64_t window, ch_codec **out);
CH_MUST_CHECK ch_status ch__zstd_encoder_new(int level, ch_codec **out);

#endif

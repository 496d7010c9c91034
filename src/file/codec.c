/* file/codec.c -- chooses the codec for a kind of compression.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/codec.h"

#include <string.h>

#include "base/fault.h"

static bool ends_in(const char *path, const char *suffix)
{
    size_t n = strlen(path), m = strlen(suffix);

    return n >= m && memcmp(path + n - m, suffix, m) == 0;
}

ch_compression ch__compression_of(const char *path, ch_compression given)
{
    if (given != CH_BY_NAME)
        return given;
    if (ends_in(path, ".gz"))
        return CH_GZIP;
    return ends_in(path, ".zst") ? CH_ZSTD : CH_UNCOMPRESSED;
}

/* Returns zlib's windowBits for a kind, or 0 if zlib does not handle the kind. */
static int bits_of(ch_compression kind)
{
    return kind == CH_GZIP ? 16 + 15 : kind == CH_ZLIB ? 15 : kind == CH_RAW_DEFLATE ? -15 : 0;
}

static ch_status fail_kind(ch_compression kind)
{
    return ch__fail(CH_INVALID_ARGUMENT, "unknown compression %d; see ch_compression",
                    (int)kind);
}

ch_status ch__decoder_new(ch_compression kind, int64_t window, ch_codec **out)
{
    if (kind == CH_ZSTD)
        return ch__zstd_decoder_new(window, out);
    return bits_of(kind) != 0 ? ch__inflate_new(bits_of(kind), out) : fail_kind(kind);
}

ch_status ch__encoder_new(ch_compression kind, int level, ch_codec **out)
{
    if (kind == CH_ZSTD)
        return ch__zstd_encoder_new(level, out);
    return bits_of(kind) != 0 ? ch__deflate_new(bits_of(kind), level, out) : fail_kind(kind);
}

void ch__codec_free(ch_codec *c)
{
    if (c != NULL)
        c->free(c);
}

/* file/codec_zstd.c -- codecs for zstd.   SPDX-License-Identifier: Apache-2.0 */
#include "file/codec.h"

#include "base/fault.h"

#if CH_HAVE_ZSTD

#define ZSTD_STATIC_LINKING_ONLY /* for ZSTD_customMem */
#include <zstd.h>
#include <zstd_errors.h>

#include "base/mem.h"

typedef struct zstd_codec {
    ch_codec   base; /* must be the first field */
    ZSTD_DCtx *decoder;
    ZSTD_CCtx *encoder;
    bool       is_between; /* decoder: a frame has ended and the next has not begun */
} zstd_codec;

static void *zstd_alloc(void *opaque, size_t bytes)
{
    (void)opaque;
    return ch__malloc(bytes);
}

static void zstd_release(void *opaque, void *p)
{
    (void)opaque;
    ch__free(p);
}

static const ZSTD_customMem memory = {zstd_alloc, zstd_release, NULL};

static ch_status fail_zstd(size_t rc)
{
    switch (ZSTD_getErrorCode(rc)) {
    case ZSTD_error_memory_allocation:
        return ch__fail_memory("zstd");
    case ZSTD_error_frameParameter_windowTooLarge:
        return ch__fail_limit("the compression window is too large for the size of the file; "
                              "if you trust the file, raise max_expansion to INT_MAX");
    default:
        return ch__fail(CH_DATA_LOSS, "not valid compressed data: %s", ZSTD_getErrorName(rc));
    }
}

/* Advances `io` by the bytes consumed and produced. */
static void advance(ch_codec_io *io, size_t consumed, size_t produced)
{
    io->in += consumed;
    io->n_in -= consumed;
    io->out += produced;
    io->n_out -= produced;
}

static ch_status decoder_step(ch_codec *c, ch_codec_io *io, bool is_last, bool *ended)
{
    zstd_codec    *x = (zstd_codec *)c;
    ZSTD_inBuffer  in = {io->in, io->n_in, 0};
    ZSTD_outBuffer out = {io->out, io->n_out, 0};

    (void)is_last;
    *ended = x->is_between && io->n_in == 0;
    if (*ended)
        return CH_OK;
    size_t rc = ZSTD_decompressStream(x->decoder, &out, &in);
    advance(io, in.pos, out.pos);
    if (ZSTD_isError(rc))
        return fail_zstd(rc);
    x->is_between = *ended = rc == 0;
    return CH_OK;
}

static ch_status encoder_step(ch_codec *c, ch_codec_io *io, bool is_last, bool *ended)
{
    zstd_codec    *x = (zstd_codec *)c;
    ZSTD_inBuffer  in = {io->in, io->n_in, 0};
    ZSTD_outBuffer out = {io->out, io->n_out, 0};
    size_t         rc =
        ZSTD_compressStream2(x->encoder, &out, &in, is_last ? ZSTD_e_end : ZSTD_e_continue);

    if (ZSTD_isError(rc))
        return fail_zstd(rc);
    advance(io, in.pos, out.pos);
    *ended = is_last && rc == 0;
    return CH_OK;
}

static void free_zstd(ch_codec *c)
{
    zstd_codec *x = (zstd_codec *)c;

    ZSTD_freeDCtx(x->decoder);
    ZSTD_freeCCtx(x->encoder);
    ch__free(x);
}

static int log2_of(int64_t n)
{
    return n > 1 ? 63 - __builtin_clzll((unsigned long long)n) : 0;
}

/* Allows files a window of at least 8 MiB, which all levels up to 19 stay within, and of at
 * most 128 MiB, the window of the highest level. Between these limits `window` decides. */
ch_status ch__zstd_decoder_new(int64_t window, ch_codec **out)
{
    enum { MIN_LOG = 23, MAX_LOG = 27 };
    int         log = log2_of(window);
    zstd_codec *x = ch__calloc(1, sizeof(*x));

    if (x == NULL)
        return ch__fail_memory("zstd");
    x->base = (ch_codec){decoder_step, free_zstd};
    x->decoder = ZSTD_createDCtx_advanced(memory);
    log = log < MIN_LOG ? MIN_LOG : log > MAX_LOG ? MAX_LOG : log;
    if (x->decoder == NULL ||
        ZSTD_isError(ZSTD_DCtx_setParameter(x->decoder, ZSTD_d_windowLogMax, log))) {
        free_zstd(&x->base);
        return ch__fail_memory("zstd");
    }
    *out = &x->base;
    return CH_OK;
}

ch_status ch__zstd_encoder_new(int level, ch_codec **out)
{
    zstd_codec *x;

    if (level < 0 || level > ZSTD_maxCLevel())
        return ch__fail(CH_INVALID_ARGUMENT, "level %d: zstd has levels 1 to %d", level,
                        ZSTD_maxCLevel());
    x = ch__calloc(1, sizeof(*x));
    if (x == NULL)
        return ch__fail_memory("zstd");
    x->base = (ch_codec){encoder_step, free_zstd};
    x->encoder = ZSTD_createCCtx_advanced(memory);
    if (x->encoder == NULL ||
        ZSTD_isError(ZSTD_CCtx_setParameter(x->encoder, ZSTD_c_compressionLevel, level)) ||
        ZSTD_isError(ZSTD_CCtx_setParameter(x->encoder, ZSTD_c_checksumFlag, 1))) {
        free_zstd(&x->base);
        return ch__fail_memory("zstd");
    }
    *out = &x->base;
    return CH_OK;
}

#else

static ch_status fail_missing(void)
{
    return ch__fail(CH_UNIMPLEMENTED,
                    "this build of Cohort has no zstd; configure it with -Dzstd=enabled");
}

ch_status ch__zstd_decoder_new(int64_t window, ch_codec **out)
{
    (void)window, (void)out;
    return fail_missing();
}

ch_status ch__zstd_encoder_new(int level, ch_codec **out)
{
    (void)level, (void)out;
    return fail_missing();
}

#endif

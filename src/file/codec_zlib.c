/* file/codec_zlib.c -- codecs for gzip, zlib and raw deflate, by the library zlib.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/codec.h"

#include "base/fault.h"

#if CH_HAVE_ZLIB

#define ZLIB_CONST
#include <zlib.h>

#include "base/mem.h"

typedef struct zlib_codec {
    ch_codec base; /* must be the first field */
    z_stream z;
    bool     is_between; /* decoder: a member has ended and the next has not begun */
} zlib_codec;

/* Most bytes per call, because zlib counts in unsigned int. */
static const size_t max_at_once = (size_t)1 << 30;

static void *zlib_alloc(void *opaque, unsigned n, unsigned size)
{
    (void)opaque;
    return ch__calloc(n, size);
}

static void zlib_release(void *opaque, void *p)
{
    (void)opaque;
    ch__free(p);
}

typedef int (*z_step)(z_stream *z, int flush);

/* Calls inflate or deflate once and advances `io`. */
static int run_step(z_step step, z_stream *z, ch_codec_io *io, int flush)
{
    size_t n_in = io->n_in < max_at_once ? io->n_in : max_at_once;
    size_t n_out = io->n_out < max_at_once ? io->n_out : max_at_once;

    z->next_in = (const unsigned char *)io->in;
    z->avail_in = (unsigned)n_in;
    z->next_out = (unsigned char *)io->out;
    z->avail_out = (unsigned)n_out;
    int rc = step(z, flush);
    io->in += n_in - z->avail_in;
    io->n_in -= n_in - z->avail_in;
    io->out += n_out - z->avail_out;
    io->n_out -= n_out - z->avail_out;
    return rc;
}

static ch_status fail_zlib(int rc, const z_stream *z)
{
    if (rc == Z_MEM_ERROR)
        return ch__fail_memory("zlib");
    return ch__fail(CH_DATA_LOSS, "not valid compressed data: %s",
                    rc == Z_NEED_DICT ? "needs a dictionary"
                    : z->msg != NULL  ? z->msg
                                      : "zlib makes no progress");
}

static ch_status inflate_step(ch_codec *c, ch_codec_io *io, bool is_last, bool *ended)
{
    zlib_codec *x = (zlib_codec *)c;
    int         rc = Z_OK;

    if (x->is_between && io->n_in > 0) {
        rc = inflateReset(&x->z);
        x->is_between = false;
    }
    if (rc == Z_OK && !x->is_between)
        rc = run_step(inflate, &x->z, io, Z_NO_FLUSH);
    if (rc == Z_STREAM_END)
        x->is_between = true;
    else if (rc != Z_OK && rc != Z_BUF_ERROR) /* Z_BUF_ERROR: no input or no room */
        return fail_zlib(rc, &x->z);
    *ended = x->is_between;
    (void)is_last;
    return CH_OK;
}

static ch_status deflate_step(ch_codec *c, ch_codec_io *io, bool is_last, bool *ended)
{
    zlib_codec *x = (zlib_codec *)c;
    int         rc = run_step(deflate, &x->z, io, is_last ? Z_FINISH : Z_NO_FLUSH);

    if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
        return fail_zlib(rc, &x->z);
    *ended = rc == Z_STREAM_END;
    return CH_OK;
}

static void free_inflate(ch_codec *c)
{
    inflateEnd(&((zlib_codec *)c)->z);
    ch__free(c);
}

static void free_deflate(ch_codec *c)
{
    deflateEnd(&((zlib_codec *)c)->z);
    ch__free(c);
}

static zlib_codec *codec_new(void)
{
    zlib_codec *x = ch__calloc(1, sizeof(*x));

    if (x != NULL) {
        x->z.zalloc = zlib_alloc;
        x->z.zfree = zlib_release;
    }
    return x;
}

ch_status ch__inflate_new(int bits, ch_codec **out)
{
    zlib_codec *x = codec_new();

    if (x == NULL || inflateInit2(&x->z, bits) != Z_OK) {
        ch__free(x);
        return ch__fail_memory("zlib");
    }
    x->base = (ch_codec){inflate_step, free_inflate};
    *out = &x->base;
    return CH_OK;
}

ch_status ch__deflate_new(int bits, int level, ch_codec **out)
{
    static const int memory_level = 8; /* zlib's default */
    zlib_codec      *x;

    if (level < 0 || level > 9)
        return ch__fail(CH_INVALID_ARGUMENT, "level %d: deflate has levels 1 to 9", level);
    x = codec_new();
    if (x == NULL || deflateInit2(&x->z, level > 0 ? level : Z_DEFAULT_COMPRESSION, Z_DEFLATED,
                                  bits, memory_level, Z_DEFAULT_STRATEGY) != Z_OK) {
        ch__free(x);
        return ch__fail_memory("zlib");
    }
    x->base = (ch_codec){deflate_step, free_deflate};
    *out = &x->base;
    return CH_OK;
}

uint32_t ch__crc32(uint32_t crc, const void *data, size_t n)
{
    return (uint32_t)crc32_z(crc, data, n);
}

#else

uint32_t ch__crc32(uint32_t crc, const void *data, size_t n)
{
    (void)crc, (void)data, (void)n;
    return 0;
}

static ch_status fail_missing(void)
{
    return ch__fail(CH_UNIMPLEMENTED,
                    "this build of Cohort has no zlib, which gzip and deflate "
                    "need; configure it with -Dzlib=enabled");
}

ch_status ch__inflate_new(int bits, ch_codec **out)
{
    (void)bits, (void)out;
    return fail_missing();
}

ch_status ch__deflate_new(int bits, int level, ch_codec **out)
{
    (void)bits, (void)level, (void)out;
    return fail_missing();
}

#endif

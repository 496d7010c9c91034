/* file/stream.c -- file streams: read files in order and decompress them.
 *
 * A stream of an uncompressed file reads directly into the caller's memory. A compressed stream
 * reads into `in`, from which the decoder (file/codec.h) writes into the caller's memory.
 * file/reader.c is the main caller; file/zip.c opens parts of files. Files are untrusted:
 *
 *   1. Decompressed bytes are limited, absolutely and by ratio.
 *   2. Damaged data fails at the same decompressed byte for any sizes of reads; see decode().
 *   3. A file that shrinks while it is read is DATA_LOSS, never a silent end.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/sys.h"
#include "file/codec.h"

/* IN_BYTES: compressed bytes per read. SKIP_BYTES: bytes per read while skipping. */
enum { IN_BYTES = 128 << 10, SKIP_BYTES = 16 << 10 };

/* decompressed bytes per compressed byte */
static const int default_expansion = 100;
/* Decompressed bytes to which the ratio does not apply. Together with the window of a decoder
 * and the unused end of a block, this stays below 16 MiB. */
static const int64_t unlimited_bytes = (int64_t)3 << 20;
static const int64_t default_max_bytes = (int64_t)1 << 40;

struct ch_file_stream {
    char          *path; /* or the label of a part */
    int            fd;
    ch_compression kind;
    /* offset and size of the part; bytes is INT64_MAX up to the end of the file */
    int64_t from, bytes;
    int64_t n_in;       /* bytes of the part that have been read */
    int64_t file_bytes; /* size of the file when it was opened */
    int64_t n_out;      /* decompressed bytes so far: the stream's offset */
    /* Only in compressed streams: */
    int64_t     window; /* most bytes of history that the decoder may keep */
    int64_t     max_bytes;
    int         max_expansion;
    ch_codec   *codec;
    char       *in; /* buffer of IN_BYTES; n_next bytes at `next` are not decoded yet */
    const char *next;
    size_t      n_next;
    ch_fault    fault; /* a failure of the decoder; once set, reads return it */
    /* For the check at the end of a part; see ch_file_part. */
    int64_t  expect_bytes;
    uint32_t expect_crc, crc;
    /* Number of bytes in `crc`. `crc` covers the part from its beginning up to here. */
    int64_t            n_summed;
    const atomic_bool *stop; /* flag that cancels reads; NULL: none */
};

static ch_status fail_read(const ch_file_stream *s, int error)
{
    int64_t at = s->from + s->n_in;

    return ch__fail_errno(error, "%s: reading failed at byte %lld", s->path, (long long)at);
}

/* ---- opening ---- */

static ch_status open_file(ch_file_stream *s, const char *path)
{
    struct stat about;

    /* O_NONBLOCK: opening a FIFO must not block. */
    s->fd = ch__sys_open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    if (s->fd < 0)
        return ch__fail_errno(errno, "%s: cannot be opened", s->path);
    if (ch__sys_stat(s->fd, &about) != 0)
        return ch__fail_errno(errno, "%s: its attributes cannot be read", s->path);
    if (S_ISDIR(about.st_mode))
        return ch__fail(CH_INVALID_ARGUMENT, "%s: is a directory; a regular file is needed",
                        s->path);
    if (!S_ISREG(about.st_mode))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: is a FIFO, device or socket, which cannot seek and may never end; "
                        "a regular file is needed: write the data to a file first",
                        s->path);
    if (s->from > 0 && ch__sys_seek(s->fd, s->from, SEEK_SET) < 0)
        return fail_read(s, errno);
    s->file_bytes = about.st_size;
    (void)posix_fadvise(s->fd, 0, 0, POSIX_FADV_SEQUENTIAL); /* only a hint */
    /* A window up to the size of the file is allowed: it needs no more memory than the file has
     * bytes. */
    s->window = s->max_expansion == INT_MAX ? INT64_MAX : about.st_size;
    return CH_OK;
}

static ch_status open_codec(ch_file_stream *s)
{
    ch_status rc = ch__decoder_new(s->kind, s->window, &s->codec);

    if (rc != CH_OK)
        return ch__fail_at(rc, "%s", s->path);
    s->next = s->in = ch__malloc(IN_BYTES);
    return s->in != NULL ? CH_OK : ch__fail_memory(s->path);
}

ch_status ch__stream_open_part(const char *path, const ch_file_part *part,
                               const ch_load_options *opt, ch_file_stream **out)
{
    static const ch_load_options defaults;
    ch_file_stream              *s = ch__calloc(1, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory(part->label);
    opt = opt != NULL ? opt : &defaults;
    s->fd = -1;
    s->path = ch__strdup(part->label);
    s->kind = part->compression;
    s->from = part->from;
    s->bytes = part->bytes;
    s->max_bytes = opt->max_bytes > 0 ? opt->max_bytes : default_max_bytes;
    s->max_expansion = opt->max_expansion > 0 ? opt->max_expansion : default_expansion;
    s->expect_bytes = part->expect_bytes;
    s->expect_crc = part->expect_crc;
    ch_status rc = s->path != NULL ? open_file(s, path) : ch__fail_memory(part->label);
    if (rc == CH_OK && s->kind != CH_UNCOMPRESSED)
        rc = open_codec(s);
    if (rc != CH_OK) {
        ch__stream_close(s);
        return rc;
    }
    *out = s;
    return CH_OK;
}

ch_status ch__stream_open(const char *path, const ch_load_options *opt, ch_file_stream **out)
{
    if (path == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "reading a file: no name given (path is NULL)");
    return ch__stream_open_part(
        path,
        &(ch_file_part){.label = path,
                        .bytes = INT64_MAX,
                        .compression = ch__compression_of(path, opt != NULL ? opt->compression
                                                                            : CH_BY_NAME),
                        .expect_bytes = -1},
        opt, out);
}

void ch__stream_close(ch_file_stream *s)
{
    if (s == NULL)
        return;
    if (s->fd >= 0)
        ch__sys_close(s->fd);
    ch__codec_free(s->codec);
    ch__free(s->in);
    ch__free(s->path);
    ch__free(s);
}

int64_t ch__stream_offset(const ch_file_stream *s)
{
    return s->n_out;
}

int64_t ch__stream_file_bytes(const ch_file_stream *s)
{
    return s->file_bytes;
}

const char *ch__stream_path(const ch_file_stream *s)
{
    return s->path;
}

void ch__stream_set_stop(ch_file_stream *s, const atomic_bool *stop)
{
    s->stop = stop;
}

/* ---- reading ---- */

/* Called when a read returns 0 bytes. Returns DATA_LOSS if the file has become shorter since it
 * was opened. The check is needed because a truncated text file could pass for a complete
 * file. */
static ch_status check_end(const ch_file_stream *s)
{
    int64_t     at = s->from + s->n_in;
    struct stat about;

    if (at >= s->file_bytes)
        return CH_OK;
    if (ch__sys_stat(s->fd, &about) != 0)
        return fail_read(s, errno);
    if (about.st_size >= s->file_bytes)
        return CH_OK; /* st_size is not the number of readable bytes on this file system */
    return ch__fail(CH_DATA_LOSS,
                    "%s: ends at byte %lld, but had %lld bytes when it was opened; it was "
                    "changed while it was read",
                    s->path, (long long)at, (long long)s->file_bytes);
}

/* Reads bytes of the part as they are in the file, not decompressed. *got is 0 at the end. */
static ch_status read_raw(ch_file_stream *s, void *to, size_t n, size_t *got)
{
    int64_t left = s->bytes - s->n_in;

    if ((uint64_t)left < n)
        n = (size_t)left;
    ssize_t now = n > 0 ? ch__sys_read(s->fd, to, n) : 0;
    if (now < 0)
        return fail_read(s, errno);
    s->n_in += now;
    *got = (size_t)now;
    return now == 0 && n > 0 ? check_end(s) : CH_OK;
}

/* Prepends the path and the current position to the message of the failure `rc`. */
static ch_status add_position(const ch_file_stream *s, ch_status rc)
{
    return ch__fail_at(rc, "%s: at byte %lld, %lld bytes decompressed", s->path,
                       (long long)(s->from + s->n_in - (int64_t)s->n_next),
                       (long long)s->n_out);
}

static ch_status check_limits(const ch_file_stream *s)
{
    int64_t consumed_bytes = s->n_in - (int64_t)s->n_next;

    if (s->n_out > s->max_bytes)
        return add_position(
            s,
            ch__fail_limit(
                "more than the %lld bytes of max_bytes; if you trust the file, raise max_bytes",
                (long long)s->max_bytes));
    if (s->n_out > unlimited_bytes && s->n_out / s->max_expansion > consumed_bytes)
        return add_position(
            s, ch__fail_limit("more than %d bytes from each compressed byte, as in a "
                              "decompression bomb; if you trust the file, raise max_expansion",
                              s->max_expansion));
    return CH_OK;
}

static ch_status refill(ch_file_stream *s)
{
    s->next = s->in;
    return read_raw(s, s->in, IN_BYTES, &s->n_next);
}

/* Runs one step of the decoder. If the decoder fails after it has produced bytes, returns these
 * bytes, and records the failure for the next call. So a file fails at the same byte,
 * regardless of the sizes of the reads. (Exception: zstd decodes a frame at once if frame and
 * output fit. Such a frame fails as a whole.) */
static ch_status decode(ch_file_stream *s, void *to, size_t n, size_t *got, bool *ended)
{
    ch_codec_io io = {s->next, s->n_next, to, n};
    ch_status   rc = s->codec->step(s->codec, &io, false, ended);

    s->n_out += (int64_t)(n - io.n_out);
    *got = n - io.n_out;
    if (rc == CH_OK && s->n_next > 0 && io.n_in == s->n_next && *got == 0)
        rc = ch__fail(CH_DATA_LOSS, "damaged compressed data: the decoder makes no progress");
    s->next = io.in;
    s->n_next = io.n_in;
    if (rc == CH_OK)
        return check_limits(s);
    rc = add_position(s, rc);
    ch__fault_record(&s->fault, rc, -1, NULL);
    return *got > 0 ? CH_OK : rc;
}

/* Reads decompressed bytes. Runs the decoder before it reads input, because the decoder may
 * hold output that did not fit before. */
static ch_status read_decoded(ch_file_stream *s, void *to, size_t n, size_t *got)
{
    bool      ended = false;
    ch_status rc = ch__fault_raise(&s->fault);

    while (rc == CH_OK) {
        rc = decode(s, to, n, got, &ended);
        if (rc != CH_OK || *got > 0)
            return rc;
        if (s->n_next > 0)
            continue;
        rc = refill(s);
        if (rc != CH_OK)
            return rc;
        if (s->n_next == 0)
            return ended ? CH_OK
                         : add_position(
                               s, ch__fail(CH_DATA_LOSS, "the compressed data ends too soon"));
    }
    return rc;
}

/* Checks a part of which size and checksum are known. `data` is the n bytes just read, which
 * end at the stream's offset. The final read (n is 0) compares the sums. If bytes were skipped,
 * the checksum is not compared, because skipped bytes are not in the sum. */
static ch_status check_sum(ch_file_stream *s, const void *data, size_t n)
{
    if (s->n_summed == s->n_out - (int64_t)n) {
        s->crc = ch__crc32(s->crc, data, n);
        s->n_summed = s->n_out;
    }
    if (s->n_out > s->expect_bytes || (n == 0 && s->n_out < s->expect_bytes))
        return add_position(s, ch__fail(CH_DATA_LOSS, "%s bytes than the expected %lld",
                                        n > 0 ? "more" : "fewer", (long long)s->expect_bytes));
    if (n == 0 && s->n_summed == s->n_out && s->crc != s->expect_crc)
        return add_position(s, ch__fail(CH_DATA_LOSS, "its checksum is wrong"));
    return CH_OK;
}

ch_status ch__stream_read(ch_file_stream *s, void *to, size_t n, size_t *got)
{
    ch_status rc;

    if (s->stop != NULL && atomic_load_explicit(s->stop, memory_order_relaxed))
        return ch__fail(CH_CANCELLED, "%s: reading was cancelled", s->path);
    rc = s->codec != NULL ? read_decoded(s, to, n, got) : read_raw(s, to, n, got);
    if (rc != CH_OK)
        return rc;
    if (s->codec == NULL)
        s->n_out += (int64_t)*got;
    return s->expect_bytes >= 0 ? check_sum(s, to, *got) : CH_OK;
}

/* ---- moving ---- */

static ch_status skip_by_reading(ch_file_stream *s, int64_t n, int64_t *skipped)
{
    char   waste[SKIP_BYTES];
    size_t got = 1;

    for (*skipped = 0; *skipped < n && got > 0; *skipped += (int64_t)got) {
        int64_t   left = n - *skipped;
        ch_status rc =
            ch__stream_read(s, waste, left < SKIP_BYTES ? (size_t)left : SKIP_BYTES, &got);

        if (rc != CH_OK)
            return rc;
    }
    return CH_OK;
}

/* Seeks over most of the bytes and reads the last SKIP_BYTES. lseek succeeds past the end of a
 * file, so only a read shows whether the bytes exist. */
ch_status ch__stream_skip(ch_file_stream *s, int64_t n, int64_t *skipped)
{
    int64_t seek_bytes = n - SKIP_BYTES, now, size;

    if (s->codec != NULL || seek_bytes <= 0)
        return skip_by_reading(s, n, skipped);
    size = ch__sys_seek(s->fd, 0, SEEK_END);
    if (size < 0)
        return fail_read(s, errno);
    size = size - s->from < s->bytes ? size - s->from : s->bytes;
    seek_bytes = s->n_in + seek_bytes < size ? seek_bytes : size - s->n_in;
    if (seek_bytes < 0)
        seek_bytes = 0; /* the file has been truncated since */
    now = ch__sys_seek(s->fd, s->from + s->n_in + seek_bytes, SEEK_SET);
    if (now < 0)
        return fail_read(s, errno);
    s->n_in += seek_bytes;
    s->n_out += seek_bytes;
    ch_status rc = skip_by_reading(s, n - seek_bytes, skipped);
    *skipped += seek_bytes;
    return rc;
}

/* Moves to the beginning, with a new decoder and without a recorded failure. */
static ch_status rewind_stream(ch_file_stream *s)
{
    ch_codec *fresh = NULL;

    if (s->codec != NULL) {
        ch_status rc = ch__decoder_new(s->kind, s->window, &fresh);

        if (rc != CH_OK)
            return ch__fail_at(rc, "%s", s->path);
        ch__codec_free(s->codec);
        s->codec = fresh;
    }
    ch__fault_clear(&s->fault);
    s->n_next = 0;
    s->n_in = s->n_out = s->n_summed = 0;
    s->crc = 0;
    return ch__sys_seek(s->fd, s->from, SEEK_SET) < 0 ? fail_read(s, errno) : CH_OK;
}

ch_status ch__stream_seek(ch_file_stream *s, int64_t offset)
{
    int64_t   skipped;
    ch_status rc = offset < s->n_out ? rewind_stream(s) : CH_OK;

    if (rc != CH_OK)
        return rc;
    rc = ch__stream_skip(s, offset - s->n_out, &skipped);
    if (rc == CH_OK && s->n_out < offset)
        rc = ch__fail(CH_OUT_OF_RANGE,
                      "%s: cannot seek to byte %lld, because it ends at byte %lld; is it the "
                      "file that was read before?",
                      s->path, (long long)offset, (long long)s->n_out);
    return rc;
}

/* fuzz/record.c -- reads arbitrary files as TFRecord files.
 *
 * The first byte of an input selects the compression of the rest. The reader must return the
 * same records as the model, which is a simple loop over the bytes. The mutator splits a file
 * into records, changes a record, and corrects lengths, checksums and compression.
 *
 * covers: src/file/record.c src/file/stream.c src/file/reader.c
 * longest: 600
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/record.h"

#include "base/sys.h"
#include "file/codec.h"
#include "file/crc32c.h"
#include "file/help.h"

enum { MOST_RECORD = 3000, MOST_PLAIN = 1 << 16 };

static int kind_of_run; /* compression of the current input */

static const ch_compression kinds[] = {CH_UNCOMPRESSED, CH_GZIP, CH_ZLIB, CH_ZSTD};

static uint32_t load32(const uint8_t *p)
{
    uint32_t x;

    memcpy(&x, p, 4);
    return x;
}

static uint64_t load64(const uint8_t *p)
{
    uint64_t x;

    memcpy(&x, p, 8);
    return x;
}

static uint32_t masked(const uint8_t *data, size_t n)
{
    return ch__crc32c_mask(ch__crc32c(0, data, n));
}

/* ---- reading ---- */

/* Opens a file with small blocks, so that records cross their boundaries. */
static ch_status open_kind(const char *path, int kind, unsigned h, ch_reader **out)
{
    ch_load_options opt = {.compression = kinds[kind], .max_bytes = 10000};
    ch_block_pool  *pool = NULL;
    ch_status       rc = ch__block_pool_sized(1 + h % 200, &pool);

    if (rc == CH_OK)
        rc = ch__reader_open(path, &opt, pool, out);
    ch__block_pool_unref(pool);
    return rc;
}

/* The model: stores the size of the record at `at`, or returns the error of the reader. */
static ch_status model_next(const uint8_t *data, size_t size, size_t at, uint64_t *n)
{
    if (size - at < 12 || load32(data + at + 8) != masked(data + at, 8))
        return CH_DATA_LOSS;
    *n = load64(data + at);
    if (*n > MOST_RECORD)
        return CH_RESOURCE_EXHAUSTED;
    return size - at < 16 + *n ? CH_DATA_LOSS : CH_OK;
}

/* Number of records that are kept while the reader continues. */
enum { KEPT = 5 };
typedef struct kept {
    ch_buffer *block;
    ch_record  x;
} kept;

static void check_kept(kept *k, const uint8_t *data)
{
    if (k->block == NULL)
        return;
    MUST(memcmp(k->x.data, data + k->x.offset + 12, k->x.size) == 0);
    ch__buffer_unref(k->block);
    k->block = NULL;
}

static void check_against_model(ch_reader *r, const uint8_t *data, size_t size)
{
    kept      ring[KEPT] = {{0}};
    int       turn = 0;
    size_t    at = 0;
    ch_record x;
    ch_status rc = CH_OK;
    uint64_t  n;

    while (rc == CH_OK && at < size) {
        rc = model_next(data, size, at, &n);
        MUST(ch__record_next(r, MOST_RECORD, &x) == rc);
        if (rc != CH_OK)
            break;
        MUST(x.size == n && x.offset == (int64_t)at && memcmp(x.data, data + at + 12, n) == 0);
        MUST(ch__record_is_good(&x) ==
             (load32(data + at + 12 + n) == masked(data + at + 12, n)));
        MUST((ch__record_check(&x, "f") == CH_OK) == ch__record_is_good(&x));
        check_kept(&ring[turn % KEPT], data);
        if (n % 3 > 0)
            ring[turn % KEPT] = (kept){ch__buffer_ref(r->block), x};
        turn++;
        at += 16 + n;
    }
    if (rc == CH_OK)
        MUST(ch__record_next(r, MOST_RECORD, &x) == CH_OK && x.data == NULL);
    MUST(ch__reader_offset(r) == (int64_t)at);
    for (int i = 0; i < KEPT; i++)
        check_kept(&ring[i], data);
}

/* Checks that skipping k records and reading a record gives the same as reading k + 1
 * records. */
static void check_skip(ch_reader *r, int64_t k)
{
    int64_t   skipped;
    ch_record x = {0}, y = {0};
    ch_status skip, rc = CH_OK;

    MUST(ch__reader_seek(r, 0) == CH_OK);
    skip = ch__record_skip(r, k, &skipped);
    if (skip == CH_OK)
        skip = ch__record_next(r, MOST_RECORD, &y);
    if (ch__reader_seek(r, 0) != CH_OK)
        return; /* compressed data may be damaged */
    for (int64_t i = 0; i <= k && rc == CH_OK && (i == 0 || x.data != NULL); i++)
        rc = ch__record_next(r, MOST_RECORD, &x);
    if (rc == CH_OK && kind_of_run != 3)
        MUST(skip == CH_OK && x.offset == y.offset && x.size == y.size && x.crc == y.crc);
    else if (rc == CH_DATA_LOSS &&
             kind_of_run != 3) /* zstd detects damage at different points */
        MUST(skip != CH_OK);
}

static void read_all(const char *path)
{
    ch_reader *r = NULL;
    ch_buffer *block = NULL;
    ch_record  x;
    int64_t    skipped;

    if (open_kind(path, kind_of_run, 7, &r) != CH_OK)
        return;
    while (ch__record_next(r, MOST_RECORD, &x) == CH_OK && x.data != NULL)
        if (x.size % 4 == 0 && ch__record_skip(r, 1, &skipped) != CH_OK)
            break;
        else if (block == NULL)
            block = ch__buffer_ref(r->block);
    if (block != NULL)
        ch__buffer_unref(block);
    (void)(ch__reader_seek(r, 5) == CH_OK && ch__reader_skip(r, 100000, &skipped) == CH_OK);
    ch__reader_close(r);
}

/* Reads a part of a file. The expected size and checksum are right or wrong. */
static void check_part(const char *path, const uint8_t *data, size_t size, unsigned h)
{
    ch_file_part part = {
        .label = "part", .from = h % (size + 1), .compression = CH_UNCOMPRESSED};
    ch_file_stream *s = NULL;
    char            to[4096];
    size_t          got = 1;
    ch_status       rc = CH_OK;
    bool            wrong_sum = h / 8 % 4 == 0, wrong_size = h / 8 % 4 == 1;

    part.bytes = (int64_t)(h / 64 % (size - (size_t)part.from + 1));
    part.expect_bytes = part.bytes + wrong_size;
    part.expect_crc = ch__crc32(0, data + part.from, (size_t)part.bytes) ^ wrong_sum;
    MUST(ch__stream_open_part(path, &part, NULL, &s) == CH_OK);
    for (int64_t at = 0; rc == CH_OK && got > 0; at += (int64_t)got)
        rc = ch__stream_read(s, to, 1000, &got);
    MUST((rc == CH_OK) == !(wrong_sum || wrong_size));
    ch__stream_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t    live = ch__mem_live();
    unsigned   h = fuzz_hash(data, size);
    ch_reader *r = NULL;

    if (size == 0)
        return 0;
    kind_of_run = data[0] % 4;
    data++;
    size--;
    const char *path = file_of(data, size);
    ch__file_limit_io(h % 4 == 3 ? 1 + h / 4 % 50 : 0);
    if (h % 16 == 0)
        with_failures(h / 16, read_all, path);
    MUST(open_kind(path, kind_of_run, h / 4, &r) == CH_OK);
    if (kind_of_run == 0)
        check_against_model(r, data, size);
    check_skip(r, h / 4 % 4);
    ch__reader_close(r);
    if (h % 16 == 1)
        check_part(path, data, size, h / 16);
    ch__file_limit_io(0);
    MUST(ch__mem_live() == live);
    return 0;
}

/* ---- mutating ---- */

typedef struct span {
    uint8_t *data;
    size_t   n;
} span;

/* Converts `in` with a codec. Returns the size; 0 if the result does not fit or `in` is
 * damaged. */
static size_t convert(ch_codec *c, span in, bool is_last, uint8_t *out, size_t room)
{
    ch_codec_io io = {(const char *)in.data, in.n, (char *)out, room};
    bool        ended = false;
    int         idle = 0;

    while (!ended && idle < 4) {
        size_t before = io.n_in + io.n_out;

        if (c->step(c, &io, is_last, &ended) != CH_OK)
            break;
        idle = io.n_in + io.n_out < before ? 0 : idle + 1;
    }
    ch__codec_free(c);
    return is_last && !ended ? 0 : room - io.n_out;
}

static size_t unpack(int kind, span in, uint8_t *out, size_t room)
{
    ch_codec *c = NULL;

    if (kind == 0) {
        memcpy(out, in.data, in.n);
        return in.n;
    }
    return ch__decoder_new(kinds[kind], 0, &c) == CH_OK ? convert(c, in, false, out, room) : 0;
}

static size_t pack(int kind, span in, uint8_t *out, size_t room)
{
    ch_codec *c = NULL;

    if (kind == 0) {
        if (in.n <= room)
            memcpy(out, in.data, in.n);
        return in.n <= room ? in.n : 0;
    }
    return ch__encoder_new(kinds[kind], 1, &c) == CH_OK ? convert(c, in, true, out, room) : 0;
}

static size_t put_record(dice *d, span x, uint8_t *to)
{
    uint64_t n = roll(d, 40) == 0 ? some_size(d) : x.n;
    uint32_t crc;

    memcpy(to, &n, 8);
    crc = masked(to, 8) ^ (roll(d, 60) == 0);
    memcpy(to + 8, &crc, 4);
    memmove(to + 12, x.data, x.n);
    crc = masked(to + 12, x.n) ^ (roll(d, 30) == 0);
    memcpy(to + 12 + x.n, &crc, 4);
    return 16 + x.n;
}

/* Copies the records of an uncompressed file. Changes, adds, repeats or drops a record. */
static size_t alter_records(dice *d, span in, uint8_t *out, size_t room)
{
    static uint8_t one[MOST_RECORD];
    size_t         n = 0, at = 0;
    int            which = (int)roll(d, 6), what = (int)roll(d, 4), i = 0;

    for (; in.n - at >= 16 && i < 64; i++) {
        uint64_t size = load64(in.data + at);
        span     x = {one, size <= in.n - at - 16 ? (size_t)size : in.n - at - 16};

        x.n = x.n < sizeof(one) ? x.n : sizeof(one);
        memcpy(one, in.data + at + 12, x.n);
        at += 16 + x.n;
        if (i == which && what == 0)
            continue; /* dropped */
        if (i == which && what == 1)
            x.n = LLVMFuzzerMutate(one, x.n, sizeof(one) / 4);
        for (int times = i == which && what == 2 ? 2 : 1; times > 0; times--)
            if (n + 16 + x.n <= room)
                n += put_record(d, x, out + n);
    }
    if (i <= which && n + 16 + 40 <= room)
        n += put_record(d, (span){in.data, in.n < 40 ? in.n : 40}, out + n);
    return roll(d, 16) == 0 && n > 0 ? roll(d, n) : n;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    static uint8_t plain[MOST_PLAIN], altered[MOST_PLAIN];
    dice           d = {seed};

    if (size < 2 || roll(&d, 4) == 0)
        return LLVMFuzzerMutate(data, size, max_size);
    size_t n = unpack(data[0] % 4, (span){data + 1, size - 1}, plain, sizeof(plain));
    n = alter_records(&d, (span){plain, n}, altered, sizeof(altered));
    if (roll(&d, 4) == 0) /* uncompressed inputs are much faster */
        data[0] = (uint8_t)(roll(&d, 2) == 0 ? 0 : roll(&d, 4));
    size_t packed = pack(data[0] % 4, (span){altered, n}, data + 1, max_size - 1);
    return packed > 0 ? packed + 1 : LLVMFuzzerMutate(data, size, max_size);
}

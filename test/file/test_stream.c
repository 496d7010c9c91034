/* test/file/test_stream.c -- a stream gives the uncompressed bytes of a file, or an error.
 *
 * The tests cover every compression, several members in a file, short reads, files cut at any
 * byte, parts of files, and files that expand too much.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/stream.h"

#include <limits.h>

#include "../golden/files.inc"
#include "help.h"

static const ch_compression kinds[] = {CH_UNCOMPRESSED, CH_GZIP, CH_ZLIB, CH_ZSTD};
enum { KINDS = 4 };

/* Writes `data` to a file with this compression. */
static const char *write_packed(ch_compression kind, const char *data, size_t n)
{
    size_t packed = n;
    char  *out;

    if (kind == CH_UNCOMPRESSED)
        return t_write("packed", data, n);
    out = t_pack(kind, data, n, &packed);
    const char *path = t_write("packed", out, packed);
    free(out);
    return path;
}

/* Reads all bytes that follow, in pieces of up to `piece` bytes. Sets *n to their number. */
static ch_status read_rest(ch_file_stream *s, char *to, size_t room, size_t piece, size_t *n)
{
    size_t got = 1;

    for (*n = 0; got > 0; *n += got) {
        assert_true(*n < room);
        ch_status rc = ch__stream_read(s, to + *n, piece < room - *n ? piece : room - *n, &got);
        if (rc != CH_OK)
            return rc;
    }
    return CH_OK;
}

/* Opens, reads and closes a stream. */
static ch_status read_file(const char *path, const ch_load_options *opt, char *to, size_t room,
                           size_t *n)
{
    ch_file_stream *s = NULL;
    ch_status       rc = ch__stream_open(path, opt, &s);

    if (rc != CH_OK)
        return rc;
    rc = read_rest(s, to, room, 1000, n);
    ch__stream_close(s);
    return rc;
}

/* TR-4: none, gzip, zlib and zstd */
static void stream_reads_files_of_every_compression(void **state)
{
    enum { N = 300000 };
    char *data = t_noise(N, 1), *back = malloc(N + 1);

    for (int k = 0; k < KINDS; k++)
        for (size_t piece = 1 << 8; piece <= 1 << 20; piece *= 16) {
            const char     *path = write_packed(kinds[k], data, N);
            ch_file_stream *s = NULL;
            size_t          n;

            assert_int_equal(
                ch__stream_open(path, &(ch_load_options){.compression = kinds[k]}, &s), CH_OK);
            assert_string_equal(ch__stream_path(s), path);
            assert_int_equal(read_rest(s, back, N + 1, piece, &n), CH_OK);
            assert_int_equal(n, N);
            assert_memory_equal(back, data, N);
            assert_int_equal(ch__stream_offset(s), N);
            ch__stream_close(s);
        }
    free(data);
    free(back);
    (void)state;
}

static void stream_reads_the_same_after_short_and_interrupted_reads(void **state)
{
    enum { N = 3000 };
    char *data = t_noise(N, 2), *back = malloc(N + 1);

    for (int k = 0; k < KINDS; k++) {
        const char *path = write_packed(kinds[k], data, N);
        size_t      n;

        ch__file_limit_io(7);
        assert_int_equal(
            read_file(path, &(ch_load_options){.compression = kinds[k]}, back, N + 1, &n),
            CH_OK);
        ch__file_limit_io(0);
        assert_int_equal(n, N);
        assert_memory_equal(back, data, N);
    }
    free(data);
    free(back);
    (void)state;
}

/* TR-4: by the name, unless the caller says it */
static void stream_finds_the_compression_by_the_file_name(void **state)
{
    size_t packed, n;
    char  *gz = t_pack(CH_GZIP, "text", 4, &packed), back[100];

    t_write("a.gz", gz, packed);
    assert_int_equal(read_file(t_path("a.gz"), NULL, back, sizeof(back), &n), CH_OK);
    assert_int_equal(n, 4);
    t_write("a.gzip", gz, packed);
    assert_int_equal(read_file(t_path("a.gzip"), NULL, back, sizeof(back), &n), CH_OK);
    assert_int_equal(n, packed);
    free(gz);
    gz = t_pack(CH_ZSTD, "text", 4, &packed);
    t_write("a.zst", gz, packed);
    assert_int_equal(read_file(t_path("a.zst"), NULL, back, sizeof(back), &n), CH_OK);
    assert_int_equal(n, 4);
    free(gz);
    (void)state;
}

static void stream_joins_several_compressed_members(void **state)
{
    for (int k = 1; k < KINDS; k++) {
        size_t n1, n2, n;
        char  *one = t_pack(kinds[k], "one ", 4, &n1), *two = t_pack(kinds[k], "two", 3, &n2);
        char   both[200], back[100];

        memcpy(both, one, n1);
        memcpy(both + n1, two, n2);
        t_write("two", both, n1 + n2);
        assert_int_equal(read_file(t_path("two"), &(ch_load_options){.compression = kinds[k]},
                                   back, sizeof(back), &n),
                         CH_OK);
        assert_int_equal(n, 7);
        assert_memory_equal(back, "one two", 7);
        free(one);
        free(two);
    }
    (void)state;
}

static void stream_reads_files_compressed_by_python(void **state)
{
    static const char text[] = "one line\nand another\n";
    char              back[100];
    size_t            n;

    for (size_t i = 0; i < sizeof(packed_text) / sizeof(*packed_text); i++) {
        ch_compression kind = packed_text[i].name[0] == 'g' ? CH_GZIP : CH_ZLIB;

        t_write("python", packed_text[i].data, packed_text[i].n);
        assert_int_equal(read_file(t_path("python"), &(ch_load_options){.compression = kind},
                                   back, sizeof(back), &n),
                         CH_OK);
        assert_int_equal(n, sizeof(text) - 1);
        assert_memory_equal(back, text, n);
    }
    (void)state;
}

static void stream_reports_a_compressed_file_cut_at_any_byte(void **state)
{
    char *data = t_noise(500, 3), back[1000];

    for (int k = 1; k < KINDS; k++) {
        size_t packed, n;
        char  *out = t_pack(kinds[k], data, 500, &packed);

        for (size_t cut = 0; cut < packed; cut++) {
            const char *path = t_write("cut", out, cut);

            t_assert_error(read_file(path, &(ch_load_options){.compression = kinds[k]}, back,
                                     sizeof(back), &n),
                           CH_DATA_LOSS, path, "ends too soon", "at byte");
        }
        free(out);
    }
    free(data);
    (void)state;
}

static void stream_error_names_file_and_byte_of_damage(void **state)
{
    char *data = t_noise(500, 3), back[1000];

    for (int k = 1; k < KINDS; k++) {
        size_t packed, n;
        char  *out = t_pack(kinds[k], data, 500, &packed);

        for (size_t i = packed / 2; i < packed; i++) {
            out[i] ^= 0x55;
            const char *path = t_write("bad", out, packed);
            ch_status   rc = read_file(path, &(ch_load_options){.compression = kinds[k]}, back,
                                       sizeof(back), &n);

            t_assert_error(rc, CH_DATA_LOSS, path, "byte");
            out[i] ^= 0x55;
        }
        /* Other bytes behind the compressed data. */
        char *more = malloc(packed + 40);
        memcpy(more, out, packed);
        memset(more + packed, 'x', 40);
        t_write("bad", more, packed + 40);
        t_assert_error(read_file(t_path("bad"), &(ch_load_options){.compression = kinds[k]},
                                 back, sizeof(back), &n),
                       CH_DATA_LOSS, "bad");
        free(more);
        free(out);
    }
    free(data);
    (void)state;
}

static void stream_open_error_says_why(void **state)
{
    ch_file_stream *s = NULL;

    t_assert_error(ch__stream_open(t_path("nothing"), NULL, &s), CH_NOT_FOUND, "nothing",
                   "No such file");
    t_assert_error(ch__stream_open(t_folder, NULL, &s), CH_INVALID_ARGUMENT, t_folder,
                   "directory");
    t_write("f", "x", 1);
    t_assert_error(
        ch__stream_open(t_path("f"), &(ch_load_options){.compression = (ch_compression)77}, &s),
        CH_INVALID_ARGUMENT, "77");
    t_assert_error(ch__stream_open(t_path("f/g"), NULL, &s), CH_NOT_FOUND, "f/g");
    assert_null(s);
    (void)state;
}

/* The first 3 MiB are free; after that, each compressed byte may give 100 bytes. */
static void stream_rejects_a_file_that_expands_too_much(void **state)
{
    enum { N = 20 << 20 };
    char *zeros = calloc(1, N), *back = malloc(N + 1);

    for (int k = 1; k < KINDS; k++) {
        size_t          n;
        const char     *path = write_packed(kinds[k], zeros, N);
        ch_load_options opt = {.compression = kinds[k]};

        t_assert_error(read_file(path, &opt, back, N + 1, &n), CH_RESOURCE_EXHAUSTED, path,
                       "more than 100 bytes", "max_expansion");
        opt.max_expansion = INT_MAX;
        assert_int_equal(read_file(path, &opt, back, N + 1, &n), CH_OK);
        assert_int_equal(n, N);
        opt.max_bytes = N - 1;
        t_assert_error(read_file(path, &opt, back, N + 1, &n), CH_RESOURCE_EXHAUSTED, path,
                       "max_bytes");
        path = write_packed(kinds[k], zeros, 2 << 20);
        assert_int_equal(
            read_file(path, &(ch_load_options){.compression = kinds[k]}, back, N + 1, &n),
            CH_OK);
    }
    free(zeros);
    free(back);
    (void)state;
}

static void stream_skips_and_seeks_back(void **state)
{
    enum { N = 200000 };
    static const int64_t to[] = {0,      1,      5000,   4999, 0,     150000,
                                 150001, 199999, 200000, 3,    100000};
    char                *data = t_noise(N, 5), byte;
    size_t               got;
    int64_t              skipped;

    for (int k = 0; k < KINDS; k++) {
        ch_file_stream *s = NULL;

        write_packed(kinds[k], data, N);
        assert_int_equal(
            ch__stream_open(t_path("packed"), &(ch_load_options){.compression = kinds[k]}, &s),
            CH_OK);
        for (size_t i = 0; i < sizeof(to) / sizeof(*to); i++) {
            assert_int_equal(ch__stream_seek(s, to[i]), CH_OK);
            assert_int_equal(ch__stream_offset(s), to[i]);
            assert_int_equal(ch__stream_read(s, &byte, 1, &got), CH_OK);
            assert_int_equal(got, to[i] < N);
            if (got > 0)
                assert_int_equal(byte, data[to[i]]);
        }
        assert_int_equal(ch__stream_seek(s, 100), CH_OK);
        assert_int_equal(ch__stream_skip(s, 1000000, &skipped), CH_OK);
        assert_int_equal(skipped, N - 100);
        t_assert_error(ch__stream_seek(s, N + 1), CH_OUT_OF_RANGE, "200001", "200000");
        t_assert_error(ch__stream_seek(s, INT64_MAX), CH_OUT_OF_RANGE, "200000");
        ch__stream_close(s);
    }
    free(data);
    (void)state;
}

static void stream_open_part_reads_a_part_of_a_file(void **state)
{
    enum { N = 100000 };
    char           *data = t_noise(N, 5), *back = malloc(N);
    ch_file_stream *s = NULL;
    size_t          n;
    int64_t         skipped;

    t_write("whole", data, N);
    for (int64_t from = 0; from < N; from += 33333) {
        assert_int_equal(ch__stream_open_part(t_path("whole"),
                                              &(ch_file_part){.label = "part",
                                                              .from = from,
                                                              .bytes = 20000,
                                                              .compression = CH_UNCOMPRESSED,
                                                              .expect_bytes = -1},
                                              NULL, &s),
                         CH_OK);
        size_t want = from + 20000 < N ? 20000 : (size_t)(N - from);
        for (int pass = 0; pass < 2; pass++) {
            assert_int_equal(read_rest(s, back, N, 777, &n), CH_OK);
            assert_int_equal(n, want);
            assert_memory_equal(back, data + from, want);
            assert_int_equal(ch__stream_seek(s, 0), CH_OK);
        }
        assert_int_equal(ch__stream_skip(s, INT64_MAX - 10, &skipped), CH_OK);
        assert_int_equal(skipped, want);
        ch__stream_close(s);
    }
    free(data);
    free(back);
    (void)state;
}

/* Uses every feature of a stream in few calls. */
static ch_status use_all(ch_compression kind)
{
    char            to[5000];
    ch_file_stream *s = NULL;
    size_t          n;
    ch_status       rc =
        ch__stream_open(t_path("packed"), &(ch_load_options){.compression = kind}, &s);

    if (rc != CH_OK)
        return rc;
    rc = read_rest(s, to, sizeof(to), 3000, &n);
    if (rc == CH_OK)
        rc = ch__stream_seek(s, 10);
    if (rc == CH_OK)
        rc = read_rest(s, to, sizeof(to), 3000, &n);
    ch__stream_close(s);
    return rc;
}

static void stream_fails_without_leak_when_a_call_fails(void **state)
{
    char *data = t_noise(4000, 5);

    for (int k = 0; k < KINDS; k++) {
        write_packed(kinds[k], data, 4000);
        int64_t before = ch__file_calls();
        assert_int_equal(use_all(kinds[k]), CH_OK);
        int64_t n = ch__file_calls() - before;
        for (int64_t i = 1; i <= n; i++) {
            ch__file_fail_at(i, EIO);
            t_assert_error(use_all(kinds[k]), CH_DATA_LOSS, "packed", "Input/output error");
            ch__file_fail_at(0, 0);
        }
    }
    free(data);
    (void)state;
}

static void stream_fails_without_leak_when_out_of_memory(void **state)
{
    char *data = t_noise(4000, 5);

    for (int k = 0; k < KINDS; k++) {
        write_packed(kinds[k], data, 4000);
        int64_t live = ch__mem_live(), before = ch__mem_allocs();
        assert_int_equal(use_all(kinds[k]), CH_OK);
        int64_t n = ch__mem_allocs() - before;
        assert_true(n >= 2);
        for (int64_t i = 1; i <= n; i++) {
            ch__mem_fail_at(i);
            t_assert_error(use_all(kinds[k]), CH_RESOURCE_EXHAUSTED, "out of memory");
            ch__mem_fail_at(0);
            assert_int_equal(ch__mem_live(), live);
        }
    }
    free(data);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stream_reads_files_of_every_compression),
        cmocka_unit_test(stream_reads_the_same_after_short_and_interrupted_reads),
        cmocka_unit_test(stream_finds_the_compression_by_the_file_name),
        cmocka_unit_test(stream_joins_several_compressed_members),
        cmocka_unit_test(stream_reads_files_compressed_by_python),
        cmocka_unit_test(stream_reports_a_compressed_file_cut_at_any_byte),
        cmocka_unit_test(stream_error_names_file_and_byte_of_damage),
        cmocka_unit_test(stream_open_error_says_why),
        cmocka_unit_test(stream_rejects_a_file_that_expands_too_much),
        cmocka_unit_test(stream_skips_and_seeks_back),
        cmocka_unit_test(stream_open_part_reads_a_part_of_a_file),
        cmocka_unit_test(stream_fails_without_leak_when_a_call_fails),
        cmocka_unit_test(stream_fails_without_leak_when_out_of_memory),
    };

    if (!t_can_pack())
        return 77;
    return cmocka_run_group_tests(tests, t_setup, t_folder_remove);
}

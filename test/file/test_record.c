/* test/file/test_record.c -- TFRecord files: good records are returned, damaged records are
 * reported.
 *
 * The tests frame records by a second, simple implementation. They cut and change every byte of
 * a file, and declare lengths that exceed the file.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/record.h"

#include "file/crc32c.h"
#include "help.h"

enum { MOST = 1 << 20 };

/* Frames a record. This is a second, simple implementation. */
static size_t frame(char *to, const char *data, uint64_t size)
{
    uint32_t crc = ch__crc32c_mask(ch__crc32c(0, &size, 8));

    memcpy(to, &size, 8);
    memcpy(to + 8, &crc, 4);
    memcpy(to + 12, data, size);
    crc = ch__crc32c_mask(ch__crc32c(0, data, size));
    memcpy(to + 12 + size, &crc, 4);
    return size + 16;
}

/* "hello" and an empty record. */
static const unsigned char golden[] = {
    5,   0,   0,   0,    0,    0,    0,    0,    0xea, 0xb2, 0x04, 0x3e, 'h',
    'e', 'l', 'l', 'o',  0xbb, 0x1f, 0x1c, 0x19, 0,    0,    0,    0,    0,
    0,   0,   0,   0x29, 0x03, 0x98, 0x07, 0xd8, 0xea, 0x82, 0xa2,
};

static ch_reader *open_bytes(const void *data, size_t n)
{
    ch_reader *r = NULL;

    t_write("records", data, n);
    assert_int_equal(ch__reader_open(t_path("records"), NULL, NULL, &r), CH_OK);
    return r;
}

/* TR-1, TR-2, TR-3: the end of a file is where a record could begin. */
static void record_next_finds_records_in_order(void **state)
{
    ch_reader *r = open_bytes(golden, sizeof(golden));
    ch_record  x;

    assert_int_equal(ch__record_next(r, MOST, &x), CH_OK);
    assert_int_equal(x.size, 5);
    assert_memory_equal(x.data, "hello", 5);
    assert_int_equal(x.offset, 0);
    assert_int_equal(ch__record_check(&x, "f"), CH_OK);
    assert_int_equal(ch__record_next(r, MOST, &x), CH_OK);
    assert_int_equal(x.size, 0);
    assert_non_null(x.data);
    assert_int_equal(x.offset, 21);
    assert_true(ch__record_is_good(&x));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ch__record_next(r, MOST, &x), CH_OK);
        assert_null(x.data);
    }
    ch__reader_close(r);
    (void)state;
}

static void record_next_finds_no_record_in_an_empty_file(void **state)
{
    ch_reader *r = open_bytes("", 0);
    ch_record  x;

    assert_int_equal(ch__record_next(r, MOST, &x), CH_OK);
    assert_null(x.data);
    ch__reader_close(r);
    (void)state;
}

/* Reads all records. Counts good records in *good and records with corrupted data in *bad;
 * reading continues after the latter. */
static ch_status read_all(ch_reader *r, int *good, int *bad)
{
    ch_record x;
    ch_status rc;

    for (*good = *bad = 0; (rc = ch__record_next(r, MOST, &x)) == CH_OK && x.data != NULL;) {
        ch_status is = ch__record_check(&x, "f");

        assert_int_equal(is == CH_OK, ch__record_is_good(&x));
        is == CH_OK ? ++*good : ++*bad;
        if (is == CH_OK)
            continue;
        t_assert_error(is, CH_DATA_LOSS, "f: corrupted record", "checksum",
                       x.offset == 0 ? "at byte 0" : "at byte 21");
        assert_int_equal(strstr(ch_error_message(), "is this a TFRecord file?") != NULL,
                         x.offset == 0);
    }
    return rc;
}

/* TR-3 */
static void record_next_reports_a_truncated_record_at_any_byte(void **state)
{
    for (size_t cut = 1; cut < sizeof(golden); cut++) {
        int        good, bad;
        ch_reader *r = open_bytes(golden, cut);
        ch_status  rc = read_all(r, &good, &bad);

        assert_int_equal(good, cut >= 21);
        if (cut == 21)
            assert_int_equal(rc, CH_OK);
        else
            t_assert_error(rc, CH_DATA_LOSS, "records", "truncated record",
                           cut < 21 ? "at byte 0" : "at byte 21");
        if (cut != 21)
            assert_true((strstr(ch_error_message(), "is this a TFRecord file?") != NULL) ==
                        (cut < 21));
        ch__reader_close(r);
    }
    (void)state;
}

/* TR-3: no byte can change without a word. */
static void record_checksums_detect_any_changed_byte(void **state)
{
    unsigned char data[sizeof(golden)];

    for (size_t i = 0; i < sizeof(golden); i++) {
        int good, bad;

        memcpy(data, golden, sizeof(data));
        data[i] ^= 0x10;
        ch_reader *r = open_bytes(data, sizeof(data));
        ch_status  rc = read_all(r, &good, &bad);
        size_t     in = i < 21 ? i : i - 21;
        if (in < 12) {
            t_assert_error(rc, CH_DATA_LOSS, "records", "corrupted record", "length",
                           i < 21 ? "byte 0" : "byte 21");
            assert_int_equal(strstr(ch_error_message(), "is this a TFRecord file?") != NULL,
                             i < 21);
        } else { /* the data is damaged: reading continues behind it */
            assert_int_equal(rc, CH_OK);
            assert_int_equal(good, 1);
            assert_int_equal(bad, 1);
        }
        ch__reader_close(r);
    }
    (void)state;
}

static void record_check_error_names_file_and_byte(void **state)
{
    ch_record x = {"hellO", 5, 0x191c1fbbu, 1234};

    t_assert_error(ch__record_check(&x, "some/file"), CH_DATA_LOSS, "some/file", "1234",
                   "corrupted record");
    (void)state;
}

/* A length with a correct checksum must not be trusted either. */
static void record_next_of_a_huge_length_takes_no_memory(void **state)
{
    static const uint64_t sizes[] = {1000,           MOST + 1,  (uint64_t)1 << 40,
                                     INT64_MAX - 15, INT64_MAX, UINT64_MAX};

    for (int i = 0; i < 6; i++) {
        char      data[32] = {0};
        int64_t   skipped;
        ch_record x;
        uint32_t  crc = ch__crc32c_mask(ch__crc32c(0, &sizes[i], 8));

        memcpy(data, &sizes[i], 8);
        memcpy(data + 8, &crc, 4);
        ch_reader *r = open_bytes(data, sizeof(data));
        int64_t    allocs = ch__mem_allocs();
        if (i == 0)
            t_assert_error(ch__record_next(r, MOST, &x), CH_DATA_LOSS, "truncated");
        else
            t_assert_error(ch__record_next(r, MOST, &x), CH_RESOURCE_EXHAUSTED, "byte 0",
                           "max_record_bytes");
        t_assert_error(ch__record_next(r, INT64_MAX - 16, &x),
                       i < 3 ? CH_DATA_LOSS : CH_RESOURCE_EXHAUSTED, "records");
        t_assert_error(ch__record_skip(r, 1, &skipped), CH_DATA_LOSS, "truncated", "byte 0");
        assert_int_equal(ch__mem_allocs(), allocs);
        ch__reader_close(r);
    }
    (void)state;
}

static void record_next_reads_records_of_any_size(void **state)
{
    enum { RECORDS = 400 };
    char     *noise = t_noise(700000, 1), *file = malloc(16 << 20);
    size_t    n = 0, size[RECORDS];
    unsigned  dice = 1;
    ch_record x;

    for (int i = 0; i < RECORDS; i++) {
        dice = dice * 1664525u + 1013904223u;
        size[i] = i % 50 == 7 ? (dice >> 8) % 700000 : (dice >> 8) % 9000;
        n += frame(file + n, noise, size[i]);
    }
    ch_reader *r = open_bytes(file, n);
    for (int i = 0; i < RECORDS; i++) {
        assert_int_equal(ch__record_next(r, MOST, &x), CH_OK);
        assert_int_equal(x.size, size[i]);
        assert_memory_equal(x.data, noise, size[i]);
        assert_true(ch__record_is_good(&x));
    }
    assert_int_equal(ch__record_next(r, MOST, &x), CH_OK);
    assert_null(x.data);

    /* Records are skipped by their lengths. */
    for (int at = 0, step = 1; at + step < RECORDS; at += step + 1, step += 7) {
        int64_t skipped;

        if (at == 0)
            assert_int_equal(ch__reader_seek(r, 0), CH_OK);
        assert_int_equal(ch__record_skip(r, step, &skipped), CH_OK);
        assert_int_equal(skipped, step);
        assert_int_equal(ch__record_next(r, MOST, &x), CH_OK);
        assert_int_equal(x.size, size[at + step]);
    }
    int64_t skipped;
    assert_int_equal(ch__reader_seek(r, 0), CH_OK);
    assert_int_equal(ch__record_skip(r, 1000, &skipped), CH_OK);
    assert_int_equal(skipped, RECORDS);
    ch__reader_close(r);
    free(noise);
    free(file);
    (void)state;
}

/* TR-5: a record that is skipped may have any data, but not any length. */
static void record_skip_checks_lengths_only(void **state)
{
    for (size_t i = 0; i < 21; i++) {
        unsigned char data[sizeof(golden)];
        int64_t       skipped = 0;

        memcpy(data, golden, sizeof(data));
        data[i] ^= 0x10;
        ch_reader *r = open_bytes(data, sizeof(data));
        ch_status  rc = ch__record_skip(r, 1, &skipped);
        if (i < 12) {
            t_assert_error(rc, CH_DATA_LOSS, "records", "corrupted record", "length", "byte 0");
        } else {
            ch_record x;

            assert_int_equal(rc, CH_OK);
            assert_int_equal(skipped, 1);
            assert_int_equal(ch__record_next(r, MOST, &x), CH_OK);
            assert_int_equal(x.offset, 21);
        }
        ch__reader_close(r);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(record_next_finds_records_in_order),
        cmocka_unit_test(record_next_finds_no_record_in_an_empty_file),
        cmocka_unit_test(record_next_reports_a_truncated_record_at_any_byte),
        cmocka_unit_test(record_checksums_detect_any_changed_byte),
        cmocka_unit_test(record_check_error_names_file_and_byte),
        cmocka_unit_test(record_next_of_a_huge_length_takes_no_memory),
        cmocka_unit_test(record_next_reads_records_of_any_size),
        cmocka_unit_test(record_skip_checks_lengths_only),
    };

    return cmocka_run_group_tests(tests, t_setup, t_folder_remove);
}

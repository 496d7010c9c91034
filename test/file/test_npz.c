/* test/file/test_npz.c -- .npz files and the zip archives that hold them.
 *
 * Golden archives of numpy are in test/golden/files.inc. The tests change, cut and rewrite
 * archives byte by byte, and cover zip64, encrypted members and members that expand too much.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>

#include "arrays.h"
#include "base/bytes.h"
#include "file/npy.h"
#include "file/zip.h"

static ch_status load_bytes(const void *data, size_t n, ch_tuple **out)
{
    return ch_npz_load(t_write("a.npz", data, n), NULL, out);
}

static void assert_golden(const ch_tuple *t)
{
    const ch_tensor *label = ch_value_at(ch_tuple_get(t, "label"), 0);
    double           x;

    assert_int_equal(ch_tuple_count(t), 3);
    t_assert_array(ch_value_at(ch_tuple_get(t, "x"), 0), CH_F32, ch_shape_of(2, 3));
    assert_int_equal(ch_tensor_dtype(label), CH_I64);
    assert_memory_equal(ch_tensor_data(label), ((int64_t[]){0, 1, 2}), 24);
    assert_int_equal(ch_tensor_item(ch_value_at(ch_tuple_get(t, "scalar"), 0), &x), CH_OK);
    assert_true(x == -3);
}

static void npz_load_reads_files_of_numpy(void **state)
{
    ch_tuple *t = NULL;

    for (size_t i = 0; i < T_COUNT(npz_of); i++) {
        assert_int_equal(load_bytes(npz_of[i].data, npz_of[i].n, &t), CH_OK);
        assert_golden(t);
        assert_string_equal(ch_tuple_name(t, 0), "x");
        ch_tuple_unref(t);
    }
    /* Sizes behind the members; a member that is not an array. */
    assert_int_equal(load_bytes(npz_other[0].data, npz_other[0].n, &t), CH_OK);
    assert_int_equal(ch_tuple_count(t), 1);
    t_assert_array(ch_value_at(ch_tuple_get(t, "x"), 0), CH_F32, ch_shape_of(2, 3));
    ch_tuple_unref(t);
    (void)state;
}

static void npz_save_and_load_keep_names_and_arrays(void **state)
{
    ch_tensor *x = t_array(CH_F32, ch_shape_of(2, 3)),
              *big = t_array(CH_I32, ch_shape_of(90000));
    ch_value *v[3] = {NULL};
    ch_tuple *t = NULL, *back = NULL;

    assert_int_equal(ch_value_new(CH_PLAIN, 1, &x, &v[0]), CH_OK);
    assert_int_equal(ch_value_new(CH_PLAIN, 1, &big, &v[1]), CH_OK);
    assert_int_equal(ch_value_new(CH_PLAIN, 1, &x, &v[2]), CH_OK);
    assert_int_equal(ch_tuple_new(3, v, (const char *[]){"a/b", NULL, "c"}, &t), CH_OK);
    for (int k = 0; k < 2; k++) {
        ch_save_options opt = {.compression = k == 0 ? CH_BY_NAME : CH_ZLIB, .level = 9 * k};

        assert_int_equal(ch_npz_save(t_path("b.npz"), t, &opt), CH_OK);
        assert_int_equal(ch_npz_load(t_path("b.npz"), NULL, &back), CH_OK);
        assert_int_equal(ch_tuple_count(back), 3);
        t_assert_array(ch_value_at(ch_tuple_get(back, "a/b"), 0), CH_F32, ch_shape_of(2, 3));
        t_assert_array(ch_value_at(ch_tuple_get(back, "arr_1"), 0), CH_I32, ch_shape_of(90000));
        ch_tuple_unref(back);
    }
    t_assert_error(ch_npz_save(t_path("b.npz"), t, &(ch_save_options){.compression = CH_ZSTD}),
                   CH_INVALID_ARGUMENT, "b.npz", "CH_ZLIB");
    t_assert_error(ch_npz_save(t_path("b.npz"), t,
                               &(ch_save_options){.compression = CH_ZLIB, .level = 10}),
                   CH_INVALID_ARGUMENT, "b.npz", "1 to 9");
    t_assert_error(
        ch_npz_load(t_path("b.npz"), &(ch_load_options){.compression = CH_GZIP}, &back),
        CH_INVALID_ARGUMENT, "b.npz");
    ch_tuple_unref(t);
    for (int i = 0; i < 3; i++)
        ch_value_unref(v[i]);
    ch_tensor_unref(x);
    ch_tensor_unref(big);
    (void)state;
}

static void npz_saves_and_loads_an_empty_archive(void **state)
{
    ch_tuple *t = NULL, *back = NULL;

    assert_int_equal(ch_tuple_of(0, NULL, &t), CH_OK);
    assert_int_equal(ch_npz_save(t_path("none.npz"), t, NULL), CH_OK);
    assert_int_equal(ch_npz_load(t_path("none.npz"), NULL, &back), CH_OK);
    assert_int_equal(ch_tuple_count(back), 0);
    ch_tuple_unref(t);
    ch_tuple_unref(back);
    (void)state;
}

static void npz_save_rejects_per_replica_values_and_invalid_names(void **state)
{
    ch_tensor *x = t_array(CH_F32, ch_shape_of(2));
    ch_value  *v[2] = {NULL};
    ch_tuple  *t = NULL;

    assert_int_equal(ch_value_new(CH_PER_REPLICA, 1, &x, &v[0]), CH_OK);
    assert_int_equal(ch_value_new(CH_PLAIN, 1, &x, &v[1]), CH_OK);
    assert_int_equal(ch_tuple_new(1, v, NULL, &t), CH_OK);
    t_assert_error(ch_npz_save(t_path("no.npz"), t, NULL), CH_INVALID_ARGUMENT, "no.npz",
                   "replica");
    t_assert_error(ch_npz_save(NULL, t, NULL), CH_INVALID_ARGUMENT, "no name");
    ch_tuple_unref(t);
    ch_value_unref(v[0]);
    v[0] = ch_value_ref(v[1]);
    assert_int_equal(ch_tuple_new(2, v, (const char *[]){"arr_1", NULL}, &t), CH_OK);
    t_assert_error(ch_npz_save(t_path("no.npz"), t, NULL), CH_INVALID_ARGUMENT, "two members",
                   "arr_1");
    ch_tuple_unref(t);
    ch_value_unref(v[0]);
    ch_value_unref(v[1]);
    ch_tensor_unref(x);
    assert_int_not_equal(access(t_path("no.npz"), F_OK), 0);
    (void)state;
}

static void npz_load_reports_an_archive_cut_at_any_byte(void **state)
{
    ch_tuple *t = NULL;

    for (size_t k = 0; k < T_COUNT(npz_of); k++)
        for (size_t n = 0; n < npz_of[k].n; n += n < npz_of[k].n - 300 ? 7 : 1)
            t_assert_error(load_bytes(npz_of[k].data, n, &t), CH_DATA_LOSS, "a.npz");
    (void)state;
}

/* A changed byte is an error, or is in a field that the reader does not use (times, attributes,
 * versions). */
static void npz_load_never_gives_other_arrays_after_a_changed_byte(void **state)
{
    unsigned char file[2048];
    int           unseen = 0;

    for (size_t k = 0; k < T_COUNT(npz_of); k++) {
        size_t n = npz_of[k].n;

        assert_true(n <= sizeof(file));
        for (size_t i = 0; i < n; i++) {
            ch_tuple *t = NULL;

            memcpy(file, npz_of[k].data, n);
            file[i] ^= 0x21;
            if (load_bytes(file, n, &t) != CH_OK)
                continue;
            assert_golden(t);
            ch_tuple_unref(t);
            unseen++;
        }
    }
    assert_int_equal(unseen, 2 * 3 * (6 + 18 + 16)); /* of header, extra field and entry */
    (void)state;
}

/* Returns the offset of the directory of a golden file, which is that of its first entry. */
static size_t directory_of(const golden *g)
{
    return ch__le32(g->data + g->n - 6);
}

static void npz_load_checks_the_zip_directory(void **state)
{
    const golden *g = &npz_of[0];
    unsigned char file[2048];
    size_t        d = directory_of(g), end = g->n - 22;
    ch_tuple     *t = NULL;
    const struct {
        size_t      at;
        uint64_t    value;
        int         bytes;
        ch_status   rc;
        const char *word;
    } rows[] = {
        {d + 8, 1, 2, CH_DATA_LOSS, "differ"},            /* encrypted, in the directory only */
        {d + 10, 8, 2, CH_DATA_LOSS, "differ"},           /* method */
        {d + 16, 5, 4, CH_DATA_LOSS, "differ"},           /* checksum */
        {d + 20, 5, 4, CH_DATA_LOSS, "differ"},           /* packed size */
        {d + 20, 0xfffffff0, 4, CH_DATA_LOSS, "overlap"}, /* the same, huge */
        {d + 24, 0x7fffffff, 4, CH_DATA_LOSS, "differ"},  /* size */
        {d + 24, 0xffffffff, 4, CH_DATA_LOSS, "64-bit size"},
        {d + 28, 0, 2, CH_DATA_LOSS, "damaged"},  /* no name */
        {d + 28, 99, 2, CH_DATA_LOSS, "damaged"}, /* a name past the entry */
        {d + 32, 9999, 2, CH_DATA_LOSS, "damaged"},
        {d + 42, 1, 4, CH_DATA_LOSS, "header of a member is missing"},
        {d + 42, 0x7fffffff, 4, CH_DATA_LOSS, "more bytes than the file"},
        {d + 46, 'y', 1, CH_DATA_LOSS, "differ"}, /* name */
        {d + 46, 0, 1, CH_DATA_LOSS, "damaged"},
        {end + 4, 1, 2, CH_UNIMPLEMENTED, "several files"},
        {end + 8, 0x00020002, 4, CH_DATA_LOSS, "after the last entry"},
        {end + 8, 0x00040004, 4, CH_DATA_LOSS, "more members"},
        {end + 8, 0x70007000, 4, CH_DATA_LOSS, "more members"},
        {end + 8, 0xffffffff, 4, CH_DATA_LOSS, "locator"},
        {end + 12, 0x7fffffff, 4, CH_DATA_LOSS, "outside the file"},
        {end + 16, 0x7fffffff, 4, CH_DATA_LOSS, "outside the file"},
        {end + 16, 0, 4, CH_DATA_LOSS, "damaged"},
    };

    for (size_t i = 0; i < T_COUNT(rows); i++) {
        memcpy(file, g->data, g->n);
        ch__put_le(file + rows[i].at, rows[i].value, rows[i].bytes);
        t_assert_error(load_bytes(file, g->n, &t), rows[i].rc, "a.npz", rows[i].word);
    }
    (void)state;
}

static void npz_load_rejects_encrypted_and_unknown_members_by_name(void **state)
{
    const golden *g = &npz_of[0];
    unsigned char file[2048];
    ch_tuple     *t = NULL;

    memcpy(file, g->data, g->n);
    file[6] |= 1;
    file[directory_of(g) + 8] |= 1;
    t_assert_error(load_bytes(file, g->n, &t), CH_UNIMPLEMENTED, "x.npy", "encrypted");
    memcpy(file, g->data, g->n);
    file[8] = file[directory_of(g) + 10] = 14;
    t_assert_error(load_bytes(file, g->n, &t), CH_UNIMPLEMENTED, "x.npy", "method 14");
    (void)state;
}

/* An archive with a member of 64-bit sizes and a directory with a 64-bit end, as archives past
 * 4 GiB have them. */
static void npz_load_reads_zip64_archives(void **state)
{
    const golden *g = &npz_of[0];
    unsigned char file[4096], *at;
    size_t        d = directory_of(g), n_entry = 46 + ch__le16(g->data + d + 28);
    size_t        rest = g->n - 22 - d - n_entry, directory;
    ch_tuple     *t = NULL;

    memcpy(file, g->data, d + n_entry);
    assert_int_equal(ch__le16(file + d + 30), 0); /* no extra field */
    at = ch__put_le(file + d + n_entry, 1, 2);
    at = ch__put_le(at, 24, 2);
    at = ch__put_le(at, ch__le32(file + d + 24), 8);
    at = ch__put_le(at, ch__le32(file + d + 20), 8);
    at = ch__put_le(at, ch__le32(file + d + 42), 8);
    ch__put_le(file + d + 20, UINT64_MAX, 8);
    ch__put_le(file + d + 42, UINT32_MAX, 4);
    ch__put_le(file + d + 30, 28, 2);
    memcpy(at, g->data + d + n_entry, rest);
    at += rest;
    directory = (size_t)(at - file) - d;
    unsigned char *end64 = at;
    at = ch__put_le(at, 0x06064b50, 4);
    at = ch__put_le(at, 44, 8);
    at = ch__put_le(at, 0, 8);
    at = ch__put_le(at, 0, 4);
    at = ch__put_le(at, 3, 8);
    at = ch__put_le(at, 3, 8);
    at = ch__put_le(at, directory, 8);
    at = ch__put_le(at, d, 8);
    unsigned char *locator = at;
    at = ch__put_le(at, 0x07064b50, 4);
    at = ch__put_le(at, 0, 4);
    at = ch__put_le(at, (uint64_t)(end64 - file), 8);
    at = ch__put_le(at, 1, 4);
    at = ch__put_le(at, 0x06054b50, 4);
    at = ch__put_le(at, 0, 4);
    at = ch__put_le(at, UINT64_MAX, 8);
    at = ch__put_le(at, UINT64_MAX, 4);
    at = ch__put_le(at, 0, 2);
    size_t n = (size_t)(at - file);
    assert_int_equal(load_bytes(file, n, &t), CH_OK);
    assert_golden(t);
    ch_tuple_unref(t);

    ch__put_le(locator + 8, UINT64_MAX, 8);
    t_assert_error(load_bytes(file, n, &t), CH_DATA_LOSS, "locator");
    ch__put_le(locator + 8, INT64_MAX, 8);
    t_assert_error(load_bytes(file, n, &t), CH_DATA_LOSS, "more bytes than the file");
    ch__put_le(locator + 8, (uint64_t)(end64 - file), 8);
    ch__put_le(end64 + 48, UINT64_MAX, 8);
    t_assert_error(load_bytes(file, n, &t), CH_DATA_LOSS, "64-bit directory");
    ch__put_le(end64 + 48, INT64_MAX, 8);
    t_assert_error(load_bytes(file, n, &t), CH_DATA_LOSS, "outside the file");
    ch__put_le(end64 + 48, d, 8);
    ch__put_le(end64 + 24, INT64_MAX, 8);
    ch__put_le(end64 + 32, INT64_MAX, 8);
    t_assert_error(load_bytes(file, n, &t), CH_RESOURCE_EXHAUSTED, "members");
    ch__put_le(file + d + n_entry + 4, UINT64_MAX, 8);
    ch__put_le(end64 + 24, 3, 8);
    ch__put_le(end64 + 32, 3, 8);
    t_assert_error(load_bytes(file, n, &t), CH_DATA_LOSS, "64-bit size");
    (void)state;
}

static void npz_load_rejects_a_member_that_expands_too_much(void **state)
{
    ch_tensor *zeros = NULL;
    ch_tuple  *t = NULL, *back = NULL;

    assert_int_equal(ch_tensor_new(CH_U8, ch_shape_of(20 << 20), &zeros), CH_OK);
    assert_int_equal(ch_tuple_of(1, &zeros, &t), CH_OK);
    assert_int_equal(ch_npz_save(t_path("bomb.npz"), t,
                                 &(ch_save_options){.compression = CH_ZLIB, .no_sync = true}),
                     CH_OK);
    t_assert_error(ch_npz_load(t_path("bomb.npz"), NULL, &back), CH_RESOURCE_EXHAUSTED, "arr_0",
                   "max_expansion");
    assert_int_equal(
        ch_npz_load(t_path("bomb.npz"), &(ch_load_options){.max_expansion = INT_MAX}, &back),
        CH_OK);
    ch_tuple_unref(back);
    ch_tuple_unref(t);
    ch_tensor_unref(zeros);
    (void)state;
}

static void npz_members_are_read_by_rows(void **state)
{
    for (size_t k = 0; k < T_COUNT(npz_of); k++) {
        ch_zip     *z = NULL;
        ch_reader  *r = NULL;
        ch_array    a;
        const char *row;

        assert_int_equal(ch__zip_open(t_write("a.npz", npz_of[k].data, npz_of[k].n), &z),
                         CH_OK);
        assert_int_equal(z->n, 3);
        assert_int_equal(ch__zip_find(z, "none.npy"), -1);
        int x = ch__zip_find(z, "x.npy");
        assert_int_equal(ch__zip_reader(z, x, NULL, NULL, &r), CH_OK);
        assert_int_equal(ch__npy_head(r, &a), CH_OK);
        for (int pass = 0; pass < 2; pass++) {
            for (int i = 0; i < 2; i++) {
                assert_int_equal(ch__array_row(r, &a, &row), CH_OK);
                assert_true(ch__load(CH_F32, row) == t_element(CH_F32, 3 * i));
            }
            assert_int_equal(ch__array_end(r, &a), CH_OK);
            assert_int_equal(ch__reader_seek(r, a.offset), CH_OK);
        }
        ch__reader_close(r);
        ch__zip_close(z);
    }
    (void)state;
}

static void npz_load_rejects_files_that_are_no_archive(void **state)
{
    ch_tuple *t = NULL;

    t_assert_error(load_bytes("", 0, &t), CH_DATA_LOSS, "a.npz", "no end of a directory");
    t_assert_error(load_bytes("not a zip archive, but as long as its end is", 44, &t),
                   CH_DATA_LOSS, "a.npz");
    t_assert_error(ch_npz_load(t_path("none"), NULL, &t), CH_NOT_FOUND, "none");
    t_assert_error(ch_npz_load(t_folder, NULL, &t), CH_INVALID_ARGUMENT, "not a regular file");
    t_assert_error(ch_npz_load(NULL, NULL, &t), CH_INVALID_ARGUMENT, "no name");
    t_assert_error(ch_npz_load(NULL, &(ch_load_options){.compression = CH_ZLIB}, &t),
                   CH_INVALID_ARGUMENT, "no name");
    (void)state;
}

static void npz_load_rejects_a_fifo_without_blocking(void **state)
{
    ch_tuple *t = NULL;

    assert_int_equal(mkfifo(t_path("fifo.npz"), 0600), 0);
    t_assert_error(ch_npz_load(t_path("fifo.npz"), NULL, &t), CH_INVALID_ARGUMENT, "fifo.npz",
                   "not a regular file");
    assert_int_equal(unlink(t_path("fifo.npz")), 0);
    (void)state;
}

static ch_status load_and_save(void)
{
    ch_tuple *t = NULL;
    ch_status rc = ch_npz_load(t_path("a.npz"), NULL, &t);

    if (rc == CH_OK)
        rc = ch_npz_save(t_path("b.npz"), t, &(ch_save_options){.compression = CH_ZLIB});
    ch_tuple_unref(t);
    return rc;
}

static void npz_fails_without_leak_when_a_call_or_allocation_fails(void **state)
{
    t_write("a.npz", npz_of[1].data, npz_of[1].n);
    int64_t live = ch__mem_live(), calls = ch__file_calls(), allocs = ch__mem_allocs();
    assert_int_equal(load_and_save(), CH_OK);
    calls = ch__file_calls() - calls;
    allocs = ch__mem_allocs() - allocs;
    int files = t_count_files();
    for (int64_t i = 1; i <= calls + allocs; i++) {
        i <= calls ? ch__file_fail_at(i, EIO) : ch__mem_fail_at(i - calls);
        t_assert_error(load_and_save(), i <= calls ? CH_DATA_LOSS : CH_RESOURCE_EXHAUSTED, "");
        ch__file_fail_at(0, 0);
        ch__mem_fail_at(0);
        assert_int_equal(ch__mem_live(), live);
        assert_int_equal(t_count_files(), files);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(npz_load_reads_files_of_numpy),
        cmocka_unit_test(npz_save_and_load_keep_names_and_arrays),
        cmocka_unit_test(npz_saves_and_loads_an_empty_archive),
        cmocka_unit_test(npz_save_rejects_per_replica_values_and_invalid_names),
        cmocka_unit_test(npz_load_reports_an_archive_cut_at_any_byte),
        cmocka_unit_test(npz_load_never_gives_other_arrays_after_a_changed_byte),
        cmocka_unit_test(npz_load_checks_the_zip_directory),
        cmocka_unit_test(npz_load_rejects_encrypted_and_unknown_members_by_name),
        cmocka_unit_test(npz_load_reads_zip64_archives),
        cmocka_unit_test(npz_load_rejects_a_member_that_expands_too_much),
        cmocka_unit_test(npz_members_are_read_by_rows),
        cmocka_unit_test(npz_load_rejects_files_that_are_no_archive),
        cmocka_unit_test(npz_load_rejects_a_fifo_without_blocking),
        cmocka_unit_test(npz_fails_without_leak_when_a_call_or_allocation_fails),
    };

    if (!t_can_pack())
        return 77;
    return cmocka_run_group_tests(tests, t_setup, t_folder_remove);
}

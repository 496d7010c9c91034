/* test/file/test_idx.c -- IDX files.
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/idx.h"

#include "arrays.h"

static void idx_loads_and_saves_every_dtype(void **state)
{
    for (size_t i = 0; i < T_COUNT(idx_of); i++) {
        ch_tensor *t = NULL;
        ch_dtype   dtype = t_dtype_of(idx_of[i].name);
        size_t     n;

        assert_int_equal(ch_idx_load(t_write("a.idx", idx_of[i].data, idx_of[i].n), NULL, &t),
                         CH_OK);
        t_assert_array(t, dtype, ch_shape_of(2, 3));
        assert_int_equal(ch_idx_save(t_path("b.idx"), t, NULL), CH_OK);
        char *back = t_read(t_path("b.idx"), &n);
        assert_int_equal(n, idx_of[i].n);
        assert_memory_equal(back, idx_of[i].data, n);
        free(back);
        ch_tensor_unref(t);
    }
    (void)state;
}

static void idx_loads_and_saves_compressed_files(void **state)
{
    ch_tensor *t = t_array(CH_I16, ch_shape_of(20, 30, 5)), *back = NULL;

    assert_int_equal(ch_idx_save(t_path("a.idx.gz"), t, NULL), CH_OK);
    assert_int_equal(ch_idx_load(t_path("a.idx.gz"), NULL, &back), CH_OK);
    t_assert_array(back, CH_I16, ch_shape_of(20, 30, 5));
    ch_tensor_unref(t);
    ch_tensor_unref(back);
    (void)state;
}

static void idx_save_rejects_dtypes_that_idx_lacks(void **state)
{
    ch_tensor *t = t_array(CH_I64, ch_shape_of(2));

    t_assert_error(ch_idx_save(t_path("none.idx"), t, NULL), CH_UNIMPLEMENTED, "none.idx",
                   "i64");
    ch_tensor_unref(t);
    assert_int_not_equal(access(t_path("none.idx"), F_OK), 0);
    (void)state;
}

static void idx_load_rejects_files_that_are_no_idx(void **state)
{
    static const struct {
        const char *bytes;
        size_t      n;
        ch_status   rc;
        const char *word;
    } rows[] = {
        {"", 0, CH_DATA_LOSS, "ends"},
        {"\0\0\x08", 3, CH_DATA_LOSS, "ends"},
        {"\0\x01\x08\0", 4, CH_DATA_LOSS, "begin"},
        {"\x01\0\x08\0", 4, CH_DATA_LOSS, "begin"},
        {"\0\0\x0a\0", 4, CH_DATA_LOSS, "begin"},
        {"\0\0\x08\x09", 4, CH_UNIMPLEMENTED, "9 axes"},
        {"\0\0\x08\xff", 4, CH_UNIMPLEMENTED, "255 axes"},
        {"\0\0\x08\x01\0\0\0", 7, CH_DATA_LOSS, "ends"},
        {"\0\0\x08\x01\0\0\0\x02x", 9, CH_DATA_LOSS, "ends at byte 9"},
        {"\0\0\x08\x01\xff\xff\xff\xffx", 9, CH_DATA_LOSS, "4294967295"},
        {"\0\0\x08\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 16, CH_DATA_LOSS,
         "a.idx"},
        {"\0\0\x08\x01\0\0\0\x01xy", 10, CH_DATA_LOSS, "more bytes"},
    };
    ch_tensor *t = NULL;

    for (size_t i = 0; i < T_COUNT(rows); i++)
        t_assert_error(ch_idx_load(t_write("a.idx", rows[i].bytes, rows[i].n), NULL, &t),
                       rows[i].rc, "a.idx", rows[i].word);
    (void)state;
}

static void idx_load_reports_a_file_cut_at_any_byte(void **state)
{
    ch_tensor *t = NULL;

    for (size_t n = 0; n < idx_of[4].n; n++)
        t_assert_error(ch_idx_load(t_write("a.idx", idx_of[4].data, n), NULL, &t), CH_DATA_LOSS,
                       "a.idx", "ends");
    (void)state;
}

static void idx_rows_are_read_one_by_one(void **state)
{
    ch_reader  *r = NULL;
    ch_array    a;
    const char *row;

    t_write("rows.idx", idx_of[3].data, idx_of[3].n);
    assert_int_equal(ch__reader_open(t_path("rows.idx"), NULL, NULL, &r), CH_OK);
    assert_int_equal(ch__idx_head(r, &a), CH_OK);
    assert_int_equal(a.offset, 12);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(ch__array_row(r, &a, &row), CH_OK);
        for (int j = 0; j < 3; j++)
            assert_true(ch__load(a.dtype, row + 4 * j) == t_element(a.dtype, 3 * k + j));
    }
    assert_int_equal(ch__array_end(r, &a), CH_OK);
    t_assert_error(ch__array_row(r, &a, &row), CH_DATA_LOSS, "rows.idx");
    ch__reader_close(r);
    (void)state;
}

static ch_status save_and_load(void)
{
    ch_tensor *t = NULL;
    ch_status  rc = ch_idx_load(t_path("a.idx"), NULL, &t);

    if (rc == CH_OK)
        rc = ch_idx_save(t_path("b.idx"), t, NULL);
    ch_tensor_unref(t);
    return rc;
}

static void idx_fails_without_leak_when_a_call_or_allocation_fails(void **state)
{
    t_write("a.idx", idx_of[3].data, idx_of[3].n);
    int64_t live = ch__mem_live(), calls = ch__file_calls(), allocs = ch__mem_allocs();
    assert_int_equal(save_and_load(), CH_OK);
    calls = ch__file_calls() - calls;
    allocs = ch__mem_allocs() - allocs;
    for (int64_t i = 1; i <= calls + allocs; i++) {
        i <= calls ? ch__file_fail_at(i, EIO) : ch__mem_fail_at(i - calls);
        t_assert_error(save_and_load(), i <= calls ? CH_DATA_LOSS : CH_RESOURCE_EXHAUSTED, "");
        ch__file_fail_at(0, 0);
        ch__mem_fail_at(0);
        assert_int_equal(ch__mem_live(), live);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(idx_loads_and_saves_every_dtype),
        cmocka_unit_test(idx_loads_and_saves_compressed_files),
        cmocka_unit_test(idx_save_rejects_dtypes_that_idx_lacks),
        cmocka_unit_test(idx_load_rejects_files_that_are_no_idx),
        cmocka_unit_test(idx_load_reports_a_file_cut_at_any_byte),
        cmocka_unit_test(idx_rows_are_read_one_by_one),
        cmocka_unit_test(idx_fails_without_leak_when_a_call_or_allocation_fails),
    };

    if (!t_can_pack())
        return 77;
    return cmocka_run_group_tests(tests, t_setup, t_folder_remove);
}

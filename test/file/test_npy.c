/* test/file/test_npy.c -- .npy files that numpy or Cohort has written.
 *
 * Golden files of numpy are in test/golden/files.inc. The tests load and save every dtype and
 * shape, read rows, and load headers that are damaged or declare a huge shape.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/npy.h"

#include "arrays.h"

static ch_status load_bytes(const void *data, size_t n, ch_tensor **out)
{
    return ch_npy_load(t_write("a.npy", data, n), NULL, out);
}

static void npy_load_reads_every_dtype_of_numpy(void **state)
{
    for (size_t i = 0; i < T_COUNT(npy_of); i++) {
        ch_tensor *t = NULL;

        assert_int_equal(load_bytes(npy_of[i].data, npy_of[i].n, &t), CH_OK);
        t_assert_array(t, t_dtype_of(npy_of[i].name), ch_shape_of(2, 3));
        ch_tensor_unref(t);
    }
    (void)state;
}

static void npy_load_reads_fortran_order_other_versions_and_any_key_order(void **state)
{
    for (size_t i = 0; i < T_COUNT(npy_like); i++) {
        ch_tensor *t = NULL;

        assert_int_equal(load_bytes(npy_like[i].data, npy_like[i].n, &t), CH_OK);
        t_assert_array(t, CH_F32, ch_shape_of(2, 3));
        ch_tensor_unref(t);
    }
    (void)state;
}

static void npy_load_reads_scalars_vectors_cubes_and_empty_arrays(void **state)
{
    ch_tensor *t[4];
    double     x;

    for (int i = 0; i < 4; i++)
        assert_int_equal(load_bytes(npy_other[i].data, npy_other[i].n, &t[i]), CH_OK);
    assert_true(ch_shape_equal(ch_tensor_shape(t[0]), ch_shape_scalar()));
    assert_int_equal(ch_tensor_item(t[0], &x), CH_OK);
    assert_true(x == 7.5);
    assert_true(ch_shape_equal(ch_tensor_shape(t[1]), ch_shape_of(4)));
    assert_int_equal(((const int32_t *)ch_tensor_data(t[1]))[3], 3);
    assert_true(ch_shape_equal(ch_tensor_shape(t[2]), ch_shape_of(0, 3)));
    assert_true(ch_shape_equal(ch_tensor_shape(t[3]), ch_shape_of(2, 3, 4)));
    for (int i = 0; i < 24; i++)
        assert_int_equal(((const int16_t *)ch_tensor_data(t[3]))[i], i);
    for (int i = 0; i < 4; i++)
        ch_tensor_unref(t[i]);
    (void)state;
}

static void npy_load_rejects_dtypes_that_tensors_lack_by_name(void **state)
{
    static const char *const words[] = {"strings", "strings",   "complex", "times",
                                        "fields",  "raw bytes", "9 axes",  "version 4.0"};
    ch_tensor               *t = NULL;

    for (size_t i = 0; i < T_COUNT(npy_refused); i++)
        t_assert_error(load_bytes(npy_refused[i].data, npy_refused[i].n, &t), CH_UNIMPLEMENTED,
                       "a.npy", words[i]);
    (void)state;
}

static void npy_load_rejects_damaged_headers(void **state)
{
    ch_tensor *t = NULL;
    char       long_head[12] = "\x93NUMPY\x02\x00\xff\xff\xff\x7f";

    for (size_t i = 0; i < T_COUNT(npy_damaged); i++)
        t_assert_error(load_bytes(npy_damaged[i].data, npy_damaged[i].n, &t), CH_DATA_LOSS,
                       "a.npy");
    t_assert_error(load_bytes(long_head, sizeof(long_head), &t), CH_DATA_LOSS, "longer");
    t_assert_error(load_bytes("no numpy", 8, &t), CH_DATA_LOSS, "not a .npy");
    t_assert_error(load_bytes("nothing numpy wrote", 19, &t), CH_DATA_LOSS, "begin");
    (void)state;
}

static void npy_load_rejects_a_file_cut_at_any_byte_or_too_long(void **state)
{
    const golden *g = &npy_of[1];
    char          more[512] = {0};
    ch_tensor    *t = NULL;

    for (size_t n = 0; n < g->n; n++)
        t_assert_error(load_bytes(g->data, n, &t), CH_DATA_LOSS, "a.npy", "ends");
    memcpy(more, g->data, g->n);
    t_assert_error(load_bytes(more, g->n + 1, &t), CH_DATA_LOSS, "more bytes");
    (void)state;
}

static void npy_load_of_a_huge_shape_takes_no_memory(void **state)
{
    static const char *const shapes[] = {"(1000000000000000000,)", "(1000000000, 1000000000)",
                                         "(9223372036854775807,)", "(4000000000,)"};
    ch_tensor               *t = NULL;

    for (int i = 0; i < 4; i++) {
        char file[256] = "\x93NUMPY\x01", *text = file + 10;
        int  n = snprintf(text, 200, "{'descr': '|u1', 'fortran_order': False, 'shape': %s}",
                          shapes[i]);

        file[8] = (char)n;
        int64_t allocs = ch__mem_allocs();
        t_assert_error(load_bytes(file, sizeof(file), &t), CH_DATA_LOSS, "a.npy", "needs");
        assert_true(ch__mem_allocs() - allocs < 12);
    }
    (void)state;
}

static void npy_save_and_load_keep_every_dtype_and_shape(void **state)
{
    static const ch_compression kinds[] = {CH_UNCOMPRESSED, CH_GZIP, CH_ZSTD, CH_ZLIB};
    const ch_shape shapes[] = {ch_shape_scalar(), ch_shape_of(5), ch_shape_of(0, 2),
                               ch_shape_of(2, 3, 1), ch_shape_of(50, 1000)};

    for (int d = 0; d < CH_DTYPE_COUNT; d++) {
        if (d == CH_STR || d == CH_BF16)
            continue;
        for (size_t s = 0; s < T_COUNT(shapes); s++) {
            ch_compression kind = kinds[s % T_COUNT(kinds)];
            ch_tensor     *back = NULL, *t = t_array((ch_dtype)d, shapes[s]);

            if (s == 4 && ch_dtype_bytes((ch_dtype)d) < 4 && d != CH_BOOL) {
                ch_tensor_unref(t); /* the dtype has too few different values for this shape */
                continue;
            }
            assert_int_equal(
                ch_npy_save(t_path("b.npy"), t, &(ch_save_options){.compression = kind}),
                CH_OK);
            assert_int_equal(
                ch_npy_load(t_path("b.npy"), &(ch_load_options){.compression = kind}, &back),
                CH_OK);
            t_assert_array(back, (ch_dtype)d, shapes[s]);
            ch_tensor_unref(back);
            ch_tensor_unref(t);
        }
    }
    (void)state;
}

static void npy_save_writes_strided_tensors_in_row_major_order(void **state)
{
    ch_tensor *t = t_array(CH_I32, ch_shape_of(3, 2)), *turned = NULL, *back = NULL;
    int        perm[] = {1, 0};

    assert_int_equal(ch_tensor_transpose(t, perm, &turned), CH_OK);
    assert_int_equal(ch_npy_save(t_path("t.npy"), turned, NULL), CH_OK);
    assert_int_equal(ch_npy_load(t_path("t.npy"), NULL, &back), CH_OK);
    assert_true(ch_shape_equal(ch_tensor_shape(back), ch_shape_of(2, 3)));
    const int32_t *x = ch_tensor_data(back), want[] = {-4, 2, 8, -1, 5, 11};
    assert_memory_equal(x, want, sizeof(want));
    ch_tensor_unref(t);
    ch_tensor_unref(turned);
    ch_tensor_unref(back);
    (void)state;
}

static void npy_save_rejects_dtypes_that_numpy_lacks(void **state)
{
    ch_tensor *t = NULL;

    assert_int_equal(ch_tensor_new(CH_BF16, ch_shape_of(2), &t), CH_OK);
    t_assert_error(ch_npy_save(t_path("none.npy"), t, NULL), CH_UNIMPLEMENTED, "none.npy",
                   "bf16", "f32");
    ch_tensor_unref(t);
    assert_int_equal(ch_tensor_of_text("text", &t), CH_OK);
    t_assert_error(ch_npy_save(t_path("none.npy"), t, NULL), CH_UNIMPLEMENTED, "string");
    ch_tensor_unref(t);
    assert_int_not_equal(access(t_path("none.npy"), F_OK), 0);
    (void)state;
}

static void npy_load_makes_bools_zero_or_one(void **state)
{
    unsigned char file[256];
    const golden *g = &npy_of[11];
    ch_tensor    *t = NULL;

    memcpy(file, g->data, g->n);
    file[g->n - 1] = 200;
    assert_int_equal(load_bytes(file, g->n, &t), CH_OK);
    t_assert_array(t, CH_BOOL, ch_shape_of(2, 3));
    ch_tensor_unref(t);
    (void)state;
}

/* ---- by rows ---- */

static void npy_rows_are_read_in_native_byte_order(void **state)
{
    for (size_t i = 0; i < T_COUNT(npy_of); i++) {
        ch_reader  *r = NULL;
        ch_array    a;
        const char *row[2];

        t_write("rows.npy", npy_of[i].data, npy_of[i].n);
        assert_int_equal(ch__reader_open(t_path("rows.npy"), NULL, NULL, &r), CH_OK);
        assert_int_equal(ch__npy_head(r, &a), CH_OK);
        assert_int_equal(ch__array_check_rows(r, &a), CH_OK);
        assert_int_equal(a.n_rows, 2);
        assert_int_equal(a.row_bytes, 3 * (int64_t)ch_dtype_bytes(a.dtype));
        for (int pass = 0; pass < 2; pass++) {
            for (int k = 0; k < 2; k++) {
                assert_int_equal(ch__array_row(r, &a, &row[k]), CH_OK);
                for (int j = 0; j < 3; j++)
                    assert_true(ch__load(a.dtype, row[k] + j * (a.row_bytes / 3)) ==
                                t_element(a.dtype, 3 * k + j));
            }
            assert_int_equal(ch__array_end(r, &a), CH_OK);
            /* Seeks back to a row. A row whose byte order was swapped in memory is read
             * again. */
            assert_int_equal(ch__reader_seek(r, a.offset + a.row_bytes), CH_OK);
            assert_int_equal(ch__array_row(r, &a, &row[1]), CH_OK);
            assert_true(ch__load(a.dtype, row[1]) == t_element(a.dtype, 3));
            assert_int_equal(ch__reader_seek(r, a.offset), CH_OK);
        }
        ch__reader_close(r);
    }
    (void)state;
}

static void npy_check_rows_rejects_fortran_order_and_scalars(void **state)
{
    const golden *g[] = {&npy_like[0], &npy_other[0]};

    for (int i = 0; i < 2; i++) {
        ch_reader *r = NULL;
        ch_array   a;

        t_write("rows.npy", g[i]->data, g[i]->n);
        assert_int_equal(ch__reader_open(t_path("rows.npy"), NULL, NULL, &r), CH_OK);
        assert_int_equal(ch__npy_head(r, &a), CH_OK);
        t_assert_error(ch__array_check_rows(r, &a), CH_UNIMPLEMENTED, "rows.npy",
                       i == 0 ? "fortran_order" : "scalar");
        ch__reader_close(r);
    }
    (void)state;
}

/* ---- failing ---- */

static ch_status save_and_load(void)
{
    ch_tensor *t = NULL, *back = NULL;
    ch_status  rc = ch_npy_load(t_path("fortran.npy"), NULL, &t);

    if (rc == CH_OK)
        rc = ch_npy_save(t_path("again.npy"), t, NULL);
    if (rc == CH_OK)
        rc = ch_npy_load(t_path("again.npy"), NULL, &back);
    if (rc == CH_OK)
        t_assert_array(back, CH_F32, ch_shape_of(2, 3));
    ch_tensor_unref(t);
    ch_tensor_unref(back);
    return rc;
}

static void npy_fails_without_leak_when_a_call_or_allocation_fails(void **state)
{
    t_write("fortran.npy", npy_like[0].data, npy_like[0].n);
    int64_t live = ch__mem_live(), calls = ch__file_calls(), allocs = ch__mem_allocs();
    assert_int_equal(save_and_load(), CH_OK);
    calls = ch__file_calls() - calls;
    allocs = ch__mem_allocs() - allocs;
    int files = t_count_files();
    for (int64_t i = 1; i <= calls; i++) {
        ch__file_fail_at(i, EIO);
        t_assert_error(save_and_load(), CH_DATA_LOSS, ".npy");
        ch__file_fail_at(0, 0);
        assert_int_equal(ch__mem_live(), live);
        assert_int_equal(t_count_files(), files);
    }
    for (int64_t i = 1; i <= allocs; i++) {
        ch__mem_fail_at(i);
        t_assert_error(save_and_load(), CH_RESOURCE_EXHAUSTED, "out of memory");
        ch__mem_fail_at(0);
        assert_int_equal(ch__mem_live(), live);
        assert_int_equal(t_count_files(), files);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(npy_load_reads_every_dtype_of_numpy),
        cmocka_unit_test(npy_load_reads_fortran_order_other_versions_and_any_key_order),
        cmocka_unit_test(npy_load_reads_scalars_vectors_cubes_and_empty_arrays),
        cmocka_unit_test(npy_load_rejects_dtypes_that_tensors_lack_by_name),
        cmocka_unit_test(npy_load_rejects_damaged_headers),
        cmocka_unit_test(npy_load_rejects_a_file_cut_at_any_byte_or_too_long),
        cmocka_unit_test(npy_load_of_a_huge_shape_takes_no_memory),
        cmocka_unit_test(npy_save_and_load_keep_every_dtype_and_shape),
        cmocka_unit_test(npy_save_writes_strided_tensors_in_row_major_order),
        cmocka_unit_test(npy_save_rejects_dtypes_that_numpy_lacks),
        cmocka_unit_test(npy_load_makes_bools_zero_or_one),
        cmocka_unit_test(npy_rows_are_read_in_native_byte_order),
        cmocka_unit_test(npy_check_rows_rejects_fortran_order_and_scalars),
        cmocka_unit_test(npy_fails_without_leak_when_a_call_or_allocation_fails),
    };

    if (!t_can_pack())
        return 77;
    return cmocka_run_group_tests(tests, t_setup, t_folder_remove);
}

/* test/data/test_arrays.c -- datasets of npy and npz files.
 *
 * The first file decides the components, dtypes and shapes of such a dataset. Files that differ
 * from it, and archives or headers that are invalid, are rejected.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdlib.h>

#include "../file/folder.h"
#include "file/npy.h"
#include "file/zip_writer.h"
#include "pipeline.h"

static const ch_save_options quick = {.no_sync = true};

static ch_dataset *file(const char *name)
{
    const char *path = t_path(name);

    return ch_dataset_file_list(1, &path);
}

static ch_tensor *zeros(ch_shape shape)
{
    ch_tensor *t = NULL;

    t_ok(ch_tensor_new(CH_F32, shape, &t));
    return t;
}

static void add_array(ch_zip_writer *z, const char *name, ch_shape shape)
{
    ch_tensor *t = zeros(shape);
    ch_writer *w = NULL;

    t_ok(ch__zip_writer_begin(z, name, &w));
    t_ok(ch__npy_put(w, t));
    t_ok(ch__zip_writer_end(z));
    ch_tensor_unref(t);
}

static void add_text(ch_zip_writer *z, const char *name)
{
    ch_writer *w = NULL;

    t_ok(ch__zip_writer_begin(z, name, &w));
    t_ok(ch__writer_put(w, "no array", 8));
    t_ok(ch__zip_writer_end(z));
}

/* ---- the dataset of names ---- */

static void npy_idx_and_npz_reject_an_input_without_file_names(void **state)
{
    ch_dataset *(*const make[])(ch_dataset *, const ch_tensor_spec *,
                                const ch_read_options *) = {ch_dataset_npy, ch_dataset_idx};

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_null(make[i](ch_dataset_range(5, 9, 1), NULL, NULL));
        assert_non_null(strstr(ch_error_message(), "file names"));
    }
    assert_null(ch_dataset_npz(ch_dataset_range(5, 9, 1), 0, NULL, NULL));
    assert_non_null(strstr(ch_error_message(), "npz: its input must give file names"));
}

static ch_status no_names_then_one(void *arg, ch_tuple **out)
{
    int       *n = arg;
    ch_str     name = {t_path("two.npy"), strlen(t_path("two.npy"))};
    ch_tensor *t = NULL;
    ch_status  rc;

    if (*n == 3)
        return CH_OK;
    rc = ch_tensor_copy_of(CH_STR, ch_shape_of(*n == 2), &name, &t);
    ++*n;
    if (rc == CH_OK)
        rc = ch_tuple_of(1, &t, out);
    ch_tensor_unref(t);
    return rc;
}

static ch_status again(void *arg)
{
    *(int *)arg = 0;
    return CH_OK;
}

static ch_status own_count(void *arg, void **out)
{
    *out = arg;
    return again(arg);
}

static void keep(void *state)
{
    (void)state;
}

static void npy_skips_empty_vectors_of_file_names(void **state)
{
    const ch_tensor_spec names = {.dtype = CH_STR, .shape = ch_shape_of(-1)};
    const ch_generator   g = {
          .spec = &names, .n_spec = 1, .next = no_names_then_one, .restart = again};
    ch_tensor *t = zeros(ch_shape_of(2));
    int        n = 0;

    (void)state;
    t_ok(ch_npy_save(t_path("two.npy"), t, &quick));
    ch_tensor_unref(t);
    t_gives(ch_dataset_npy(ch_dataset_generator(&g, own_count, keep, &n), NULL, NULL), "0 | 0");
    assert_null(ch_dataset_npy(ch_dataset_file_list(0, NULL), NULL, NULL));
    assert_non_null(strstr(ch_error_message(), "no file to read the type of a row from"));
}

/* ---- archives ---- */

static void npz_reads_all_arrays_that_have_rows_by_default(void **state)
{
    const ch_tensor_spec *spec;
    ch_zip_writer        *z = NULL;
    ch_dataset           *d;

    (void)state;
    t_ok(ch__zip_writer_open(t_path("mixed.npz"), &quick, &z));
    add_text(z, "README.txt");
    add_array(z, "step.npy", ch_shape_scalar());
    add_array(z, "x.npy", ch_shape_of(3, 2));
    add_text(z, "npy");
    t_ok(ch__zip_writer_commit(z));
    d = ch_dataset_npz(file("mixed.npz"), 0, NULL, NULL);
    assert_int_equal(ch_dataset_element_spec(d, &spec), 1);
    assert_string_equal(spec[0].name, "x");
    t_gives(d, "0 0 | 0 0 | 0 0");

    t_ok(ch__zip_writer_open(t_path("none.npz"), &quick, &z));
    add_text(z, "README.txt");
    t_ok(ch__zip_writer_commit(z));
    assert_null(ch_dataset_npz(file("none.npz"), 0, NULL, NULL));
    assert_non_null(strstr(ch_error_message(), "no array with rows"));
}

static void npz_keeps_long_names_of_arrays(void **state)
{
    const ch_tensor_spec *spec;
    ch_zip_writer        *z = NULL;
    ch_dataset           *d;
    char                  name[2005];

    (void)state;
    memset(name, 'n', 2000);
    memcpy(name + 2000, ".npy", 5);
    t_ok(ch__zip_writer_open(t_path("long.npz"), &quick, &z));
    add_array(z, name, ch_shape_of(2));
    t_ok(ch__zip_writer_commit(z));
    d = ch_dataset_npz(file("long.npz"), 0, NULL, NULL);
    assert_int_equal(ch_dataset_element_spec(d, &spec), 1);
    assert_int_equal(strlen(spec[0].name), 2000);
    name[2000] = '\0';
    d = ch_dataset_select(d, 1, (const char *[]){name});
    assert_int_equal(ch_dataset_element_spec(d, &spec), 1);
    assert_string_equal(spec[0].name, name);
    t_gives(d, "0 | 0");
}

static void npz_expands_as_far_as_max_expansion_allows(void **state)
{
    ch_zip_writer *z = NULL;
    ch_dataset    *d;
    ch_iterator   *it = NULL;
    ch_tuple      *t = NULL;

    (void)state;
    t_ok(ch__zip_writer_open(t_path("zeros.npz"),
                             &(ch_save_options){.compression = CH_ZLIB, .no_sync = true}, &z));
    add_array(z, "x.npy", ch_shape_of(8, 1 << 20));
    t_ok(ch__zip_writer_commit(z));
    for (int any = 0; any < 2; any++) {
        int       n = 0;
        ch_status rc;

        d = ch_dataset_npz(file("zeros.npz"), 0, NULL,
                           &(ch_read_options){.max_expansion = any ? INT_MAX : 0});
        t_ok(ch_iterator_new(d, NULL, &it));
        while ((rc = ch_iterator_next(it, &t)) == CH_OK && t != NULL) {
            ch_tuple_unref(t);
            t = NULL;
            n++;
        }
        if (any)
            assert_int_equal(n, 8);
        else
            t_refused(rc, CH_RESOURCE_EXHAUSTED, "zeros.npz", "max_expansion");
        ch_iterator_unref(it);
        ch_dataset_unref(d);
    }
}

/* ---- rows without elements ---- */

static void npy_rejects_a_header_with_more_rows_than_the_file(void **state)
{
    static const char head[] =
        "\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False,"
        " 'shape': (1000000000000000000, 0), }";
    char       text[128];
    ch_tensor *t = zeros(ch_shape_of(3, 0));
    FILE      *f = fopen(t_path("endless.npy"), "wb");

    (void)state;
    memset(text, ' ', sizeof(text));
    memcpy(text, head, sizeof(head) - 1);
    text[127] = '\n';
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, sizeof(text), f), sizeof(text));
    assert_int_equal(fclose(f), 0);
    assert_null(ch_dataset_npy(file("endless.npy"), NULL, NULL));
    assert_non_null(strstr(ch_error_message(), "(1000000000000000000, 0)"));
    t_ok(ch_npy_save(t_path("empty.npy"), t, &quick));
    ch_tensor_unref(t);
    t_gives(ch_dataset_npy(file("empty.npy"), NULL, NULL), " |  | ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(npy_idx_and_npz_reject_an_input_without_file_names),
        cmocka_unit_test(npy_skips_empty_vectors_of_file_names),
        cmocka_unit_test(npz_reads_all_arrays_that_have_rows_by_default),
        cmocka_unit_test(npz_keeps_long_names_of_arrays),
        cmocka_unit_test(npz_expands_as_far_as_max_expansion_allows),
        cmocka_unit_test(npy_rejects_a_header_with_more_rows_than_the_file),
    };

    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}

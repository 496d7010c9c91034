/* test/data/test_null.c -- NULL as an object, and as a dataset that could not be made.
 * SPDX-License-Identifier: Apache-2.0 */
#include "pipeline.h"

#include "../file/folder.h"
#include "cohort/file.h"

static void refuses(ch_status rc, const char *word)
{
    t_refused(rc, CH_INVALID_ARGUMENT, word, "NULL");
}

static void iterator_functions_name_the_null_argument(void **state)
{
    const ch_tensor_spec *spec = &(ch_tensor_spec){.dtype = CH_I64};
    ch_dataset           *d = ch_dataset_range(0, 3, 1);
    ch_iterator          *it = NULL;
    ch_tuple             *t = NULL;
    void                 *bytes = NULL;
    size_t                n = 7;
    char                  text[64];

    (void)state;
    refuses(ch_iterator_new(d, NULL, NULL), "out");
    refuses(ch_iterator_next(NULL, &t), "the iterator");
    refuses(ch_iterator_get_next(NULL, &t), "the iterator");
    refuses(ch_iterator_restart(NULL), "the iterator");
    refuses(ch_iterator_save(NULL, &bytes, &n), "the iterator");
    refuses(ch_iterator_restore(NULL, "x", 1), "the iterator");
    assert_int_equal(ch_iterator_element_spec(NULL, &spec), 0);
    assert_null(spec);
    assert_int_equal(ch_iterator_element_spec(NULL, NULL), 0);
    assert_int_equal(ch_iterator_profile(NULL, NULL, 0), 0);
    assert_int_equal(ch_iterator_print_profile(NULL, text, sizeof(text)), 4);
    assert_string_equal(text, "NULL");
    assert_int_equal(ch_iterator_skipped(NULL), 0);
    assert_null(ch_iterator_ref(NULL));
    ch_iterator_unref(NULL);

    t_ok(ch_iterator_new(d, NULL, &it));
    refuses(ch_iterator_next(it, NULL), "out");
    refuses(ch_iterator_get_next(it, NULL), "out");
    refuses(ch_iterator_save(it, NULL, &n), "bytes");
    refuses(ch_iterator_save(it, &bytes, NULL), "n is");
    refuses(ch_iterator_restore(it, NULL, 5), "bytes");
    assert_int_equal(ch_iterator_element_spec(it, NULL), 1);
    t_ok(ch_iterator_get_next(it, &t)); /* the first element: none was lost */
    assert_int_equal(*(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(t, 0), 0)), 0);
    assert_true(bytes == NULL && n == 7);
    ch_tuple_unref(t);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
}

static void dataset_functions_name_the_null_argument(void **state)
{
    ch_dataset *d = ch_dataset_range(0, 3, 1), *out = NULL;
    void       *bytes = NULL;
    size_t      n = 0;
    char        text[64];

    (void)state;
    refuses(ch_dataset_encode(d, NULL, &n), "bytes");
    refuses(ch_dataset_encode(d, &bytes, NULL), "n is");
    refuses(ch_dataset_decode(NULL, 4, &out), "bytes");
    refuses(ch_dataset_decode("x", 1, NULL), "out");
    refuses(ch_dataset_distribute(d, &(ch_input_context){.n_pipelines = 1}, NULL), "out");
    refuses(ch_dataset_from_function(NULL, NULL, &(ch_input_context){.n_pipelines = 1}, NULL),
            "out");
    assert_int_equal(ch_dataset_print(NULL, text, sizeof(text)), 4);
    assert_string_equal(text, "NULL");
    assert_int_equal(ch_dataset_element_spec(NULL, NULL), 0);
    assert_int_equal(ch_dataset_element_spec(d, NULL), 1);
    assert_int_equal(ch_dataset_cardinality(NULL), CH_UNKNOWN);
    assert_null(ch_dataset_ref(NULL));
    assert_null(bytes);
    assert_null(out);
    ch_dataset_unref(NULL);
    ch_dataset_unref(d);
}

static void record_writer_functions_name_the_null_argument(void **state)
{
    ch_record_writer *w = NULL;

    (void)state;
    refuses(ch_record_writer_open(NULL, NULL, &w), "path");
    refuses(ch_record_writer_open(t_path("none"), NULL, NULL), "out");
    refuses(ch_record_writer_add(NULL, (ch_str){"x", 1}), "the writer");
    refuses(ch_record_writer_add_example(NULL, NULL), "the writer");
    refuses(ch_record_writer_close(NULL), "the writer");
    ch_record_writer_drop(NULL);
    assert_null(w);
    refuses(ch_example_new(NULL), "out");
    refuses(ch_example_set(NULL, "x", NULL), "the example");
    refuses(ch_example_encode(NULL, &(ch_str){NULL, 0}), "the example");
    ch_example_clear(NULL);
    ch_example_free(NULL);

    t_ok(ch_record_writer_open(t_path("some"), NULL, &w));
    refuses(ch_record_writer_add_example(w, NULL), "the example");
    t_ok(ch_record_writer_close(w));
}

/* ---- datasets that could not be made ---- */

static ch_dataset *missing(void)
{
    return ch_dataset_npy(ch_dataset_file_list(1, (const char *[]){t_path("is-not-there.npy")}),
                          NULL, NULL);
}

static ch_dataset *none_of(const ch_input_context *c, void *arg)
{
    (void)c;
    (void)arg;
    return missing();
}

/* After any number of further stages. */
static void dataset_functions_return_the_error_of_a_dataset_that_was_not_made(void **state)
{
    ch_iterator *it = NULL;
    ch_dataset  *out = NULL;
    void        *bytes = NULL;
    size_t       n = 0;
    FILE        *f;

    (void)state;
    for (int stages = 0; stages < 3; stages++) {
        const ch_input_context one = {.n_pipelines = 1};
        ch_dataset            *d = missing();

        for (int i = 0; i < stages; i++)
            d = ch_dataset_batch(d, 2, NULL);
        assert_null(d);
        t_refused(ch_iterator_new(d, NULL, &it), CH_NOT_FOUND, "dataset is NULL",
                  "is-not-there.npy");
        t_refused(ch_dataset_encode(d, &bytes, &n), CH_NOT_FOUND, "encoding",
                  "is-not-there.npy");
        t_refused(ch_dataset_distribute(d, &one, &out), CH_NOT_FOUND, "distributing",
                  "is-not-there.npy");
        t_refused(ch_dataset_from_function(none_of, NULL, &one, &out), CH_NOT_FOUND,
                  "worker 0 of 1", "is-not-there.npy");
    }
    f = fopen(t_path("short.npy"), "wb");
    assert_non_null(f);
    assert_true(fputs("\x93NUMPY", f) >= 0 && fclose(f) == 0);
    t_refused(ch_iterator_new(
                  ch_dataset_npy(ch_dataset_file_list(1, (const char *[]){t_path("short.npy")}),
                                 NULL, NULL),
                  NULL, &it),
              CH_DATA_LOSS, "dataset is NULL", "short.npy");
    t_refused(ch_iterator_new(ch_dataset_batch(ch_dataset_range(0, 9, 1), -2, NULL), NULL, &it),
              CH_INVALID_ARGUMENT, "dataset is NULL", "-2");
    assert_true(it == NULL && out == NULL && bytes == NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(iterator_functions_name_the_null_argument),
        cmocka_unit_test(dataset_functions_name_the_null_argument),
        cmocka_unit_test(record_writer_functions_name_the_null_argument),
        cmocka_unit_test(dataset_functions_return_the_error_of_a_dataset_that_was_not_made),
    };

    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}

/* test/data/test_arguments.c -- functions reject invalid arguments and name the argument and
 * its value.
 * SPDX-License-Identifier: Apache-2.0 */
#include "pipeline.h"

static ch_dataset *range(void)
{
    return ch_dataset_range(0, 9, 1);
}

static ch_dataset *name(void)
{
    return ch_dataset_file_list(1, (const char *[]){"x"});
}

/* Checks that `d` was not made and that the error has this text. Takes ownership of `d`. */
static void assert_refused(ch_dataset *d, const char *text)
{
    assert_null(d);
    if (strstr(ch_error_message(), text) == NULL)
        fail_msg("\"%s\" has not \"%s\"", ch_error_message(), text);
}

static void bucket_by_length_rejects_null_boundaries_and_batch_sizes(void **state)
{
    const int64_t one[] = {3}, two[] = {2, 2};

    (void)state;
    assert_refused(
        ch_dataset_bucket_by_length(ch_dataset_batch(range(), 2, NULL), 0, 1, NULL, two, NULL),
        "bucket: 1 boundaries, but their array is NULL");
    assert_refused(
        ch_dataset_bucket_by_length(ch_dataset_batch(range(), 2, NULL), 0, 1, one, NULL, NULL),
        "the batch sizes are NULL");
    assert_refused(
        ch_dataset_bucket_by_length(ch_dataset_batch(range(), 2, NULL), 0, -1, one, two, NULL),
        "-1 boundaries");
}

static void csv_column_rejects_a_field_number_below_1(void **state)
{
    (void)state;
    assert_refused(ch_dataset_csv(name(), 1,
                                  &(ch_csv_column){.name = "q", .dtype = CH_I32, .field = -3},
                                  NULL),
                   "field -3, want 1 or more");
}

/* The error names the wrong option, and no other option. */
static void dataset_errors_name_the_wrong_option(void **state)
{
    ch_feature f = {.name = NULL, .dtype = CH_I64};

    (void)state;
    assert_refused(ch_dataset_lines(name(), &(ch_read_options){.max_record_bytes = -4}),
                   "lines: max_record_bytes is -4");
    assert_refused(ch_dataset_lines(name(), &(ch_read_options){.max_expansion = -1}),
                   "lines: max_expansion is -1");
    assert_refused(ch_dataset_lines(name(), &(ch_read_options){.compression = 99}),
                   "lines: compression 99");
    assert_refused(ch_dataset_with_options(range(), &(ch_dataset_options){.shard = 9}),
                   "options: shard is 9");
    assert_refused(ch_dataset_with_options(range(), &(ch_dataset_options){.threads = -5}),
                   "options: threads is -5");
    assert_refused(ch_dataset_with_options(range(), &(ch_dataset_options){.memory_bytes = -1}),
                   "options: memory_bytes is -1");
    assert_refused(ch_dataset_parse_examples(ch_dataset_lines(name(), NULL), 1, &f), "no name");
    f = (ch_feature){.name = "f", .dtype = CH_I64, .shape.rank = CH_MAX_RANK + 1};
    assert_refused(ch_dataset_parse_examples(ch_dataset_lines(name(), NULL), 1, &f),
                   "feature \"f\" is of rank");
}

/* ---- descriptions with many stages ---- */

static void dataset_encode_writes_each_of_thousands_of_inputs_once(void **state)
{
    enum { N = 8000 };
    static ch_dataset *of[N];
    ch_dataset        *d, *back = NULL;
    void              *bytes = NULL, *again = NULL;
    size_t             size = 0, n_again = 0;

    (void)state;
    for (int i = 0; i < N; i++)
        of[i] = i % 2 == 0 ? ch_dataset_range(0, 1 + i % 7, 1) : ch_dataset_ref(of[i - 1]);
    d = ch_dataset_concatenate(N, of);
    t_ok(ch_dataset_encode(d, &bytes, &size));
    t_ok(ch_dataset_decode(bytes, size, &back));
    assert_int_equal(ch_dataset_cardinality(back), ch_dataset_cardinality(d));
    t_ok(ch_dataset_encode(back, &again, &n_again));
    assert_int_equal(n_again, size);
    assert_memory_equal(again, bytes, size);
    ch_bytes_free(bytes);
    ch_bytes_free(again);
    ch_dataset_unref(back);
    ch_dataset_unref(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bucket_by_length_rejects_null_boundaries_and_batch_sizes),
        cmocka_unit_test(csv_column_rejects_a_field_number_below_1),
        cmocka_unit_test(dataset_errors_name_the_wrong_option),
        cmocka_unit_test(dataset_encode_writes_each_of_thousands_of_inputs_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

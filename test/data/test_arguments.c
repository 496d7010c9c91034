/* test/data/test_arguments.c -- arguments that cannot be are refused, each named with its value.
 *
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

/* Nothing was made, and the error has this text. Takes `d` over. */
static void assert_refused(ch_dataset *d, const char *text)
{
    assert_null(d);
    if (strstr(ch_error_message(), text) == NULL)
        fail_msg("\"%s\" has not \"%s\"", ch_error_message(), text);
}

static void buckets_need_their_numbers(void **state)
{
    const int64_t one[] = {3}, two[] = {2, 2};

    (void)state;
    assert_refused(
        ch_dataset_bucket_by_length(ch_dataset_batch(range(), 2, NULL), 0, 1, NULL, two, NULL),
        "bucket: 1 boundaries, which are NULL");
    assert_refused(
        ch_dataset_bucket_by_length(ch_dataset_batch(range(), 2, NULL), 0, 1, one, NULL, NULL),
        "no batch sizes");
    assert_refused(
        ch_dataset_bucket_by_length(ch_dataset_batch(range(), 2, NULL), 0, -1, one, two, NULL),
        "-1 boundaries");
}

static void fields_of_lines_count_from_one(void **state)
{
    (void)state;
    assert_refused(ch_dataset_csv(name(), 1,
                                  &(ch_csv_column){.name = "q", .dtype = CH_I32, .field = -3},
                                  NULL),
                   "there is no field -3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_need_their_numbers),
        cmocka_unit_test(fields_of_lines_count_from_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test/data/test_dataset.c -- stages, one by one.   SPDX-License-Identifier: Apache-2.0 */
#include "pipeline.h"

static ch_dataset *range(int64_t n)
{
    return ch_dataset_range(0, n, 1);
}

static void a_range_counts(void **state)
{
    (void)state;
    t_gives(range(4), "0 | 1 | 2 | 3");
    t_gives(ch_dataset_range(5, -3, -3), "5 | 2 | -1");
    t_gives(ch_dataset_range(5, 5, 1), "");
}

static void batches_are_rows(void **state)
{
    (void)state;
    t_gives(ch_dataset_batch(range(7), 3, NULL), "0 1 2 | 3 4 5 | 6");
    t_gives(ch_dataset_batch(range(7), 3, &(ch_batch_options){.drop_remainder = true}),
            "0 1 2 | 3 4 5");
    t_gives(ch_dataset_batch(ch_dataset_batch(range(7), 2, NULL), 2, NULL),
            "0 1 2 3 | !INVALID_ARGUMENT");
}

static void counts_take_skip_repeat(void **state)
{
    (void)state;
    t_gives(ch_dataset_take(range(9), 2), "0 | 1");
    t_gives(ch_dataset_skip(range(4), 2), "2 | 3");
    t_gives(ch_dataset_repeat(range(2), 3), "0 | 1 | 0 | 1 | 0 | 1");
    t_gives(ch_dataset_take(ch_dataset_repeat(range(2), CH_INFINITE), 5), "0 | 1 | 0 | 1 | 0");
    t_gives(ch_dataset_repeat(range(0), CH_INFINITE), "");
    t_gives(ch_dataset_shard(range(10), 3, 1), "1 | 4 | 7");
    t_gives(ch_dataset_repeat(ch_dataset_take(ch_dataset_batch(range(100), 2, NULL), 2), 2),
            "0 1 | 2 3 | 0 1 | 2 3");
}

static void several_become_one(void **state)
{
    (void)state;
    t_gives(ch_dataset_zip(2, (ch_dataset *[]){range(3), ch_dataset_range(7, 20, 1)}),
            "0, 7 | 1, 8 | 2, 9");
    t_gives(ch_dataset_concatenate(2, (ch_dataset *[]){range(2), ch_dataset_range(7, 9, 1)}),
            "0 | 1 | 7 | 8");
    t_gives(ch_dataset_enumerate(ch_dataset_range(7, 9, 1), 3), "3, 7 | 4, 8");
}

static void a_shuffle_is_a_permutation_that_the_seed_decides(void **state)
{
    static t_given a, b, c;
    ch_dataset    *d = ch_dataset_shuffle(range(20), 8, &(ch_shuffle_options){.seed = 5});
    ch_iterator   *it = NULL;

    (void)state;
    t_ok(ch_iterator_new(d, NULL, &it));
    t_take(it, -1, &a);
    t_ok(ch_iterator_restart(it));
    t_take(it, -1, &b);
    ch_iterator_unref(it);
    t_ok(ch_iterator_new(d, NULL, &it));
    t_take(it, -1, &c);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    assert_string_equal(a.text, c.text);
    assert_string_not_equal(a.text, b.text);
}

static void a_place_is_taken_up(void **state)
{
    ch_dataset *d = ch_dataset_batch(
        ch_dataset_repeat(ch_dataset_shuffle(range(20), 8, &(ch_shuffle_options){.seed = 5}),
                          2),
        3, NULL);
    static t_given whole, rest;

    for (int n = 0; n < 15; n++) {
        ch_iterator *it = NULL, *other = NULL;
        void        *bytes = NULL;
        size_t       size = 0;
        t_given      head = {0};

        memset(&whole, 0, sizeof(whole));
        memset(&rest, 0, sizeof(rest));
        t_ok(ch_iterator_new(d, NULL, &it));
        t_take(it, n, &head);
        t_ok(ch_iterator_save(it, &bytes, &size));
        t_take(it, -1, &whole);
        t_ok(ch_iterator_new(d, NULL, &other));
        t_ok(ch_iterator_restore(other, bytes, size));
        t_take(other, -1, &rest);
        assert_string_equal(whole.text, rest.text);
        ch_bytes_free(bytes);
        ch_iterator_unref(it);
        ch_iterator_unref(other);
    }
    ch_dataset_unref(d);
    (void)state;
}

static void a_tree_is_printed(void **state)
{
    char        text[1000];
    ch_dataset *d = ch_dataset_batch(ch_dataset_shuffle(range(20), 8, NULL), 3, NULL);

    (void)state;
    ch_dataset_print(d, text, sizeof(text));
    puts(text);
    ch_dataset_unref(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_range_counts),
        cmocka_unit_test(batches_are_rows),
        cmocka_unit_test(counts_take_skip_repeat),
        cmocka_unit_test(several_become_one),
        cmocka_unit_test(a_shuffle_is_a_permutation_that_the_seed_decides),
        cmocka_unit_test(a_place_is_taken_up),
        cmocka_unit_test(a_tree_is_printed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

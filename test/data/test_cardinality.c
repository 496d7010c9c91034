/* test/data/test_cardinality.c -- ch_dataset_cardinality agrees with the number of elements.
 * SPDX-License-Identifier: Apache-2.0 */
#include "pipeline.h"

static ch_dataset *range(int64_t n)
{
    return ch_dataset_range(0, n, 1);
}

/* Takes ownership of `d`. */
static void has(ch_dataset *d, int64_t n)
{
    assert_non_null(d);
    assert_int_equal(ch_dataset_cardinality(d), n);
    if (n >= 0) {
        ch_iterator *it = NULL;
        ch_tuple    *t = NULL;

        t_ok(ch_iterator_new(d, NULL, &it));
        for (t_ok(ch_iterator_next(it, &t)); t != NULL; n--) {
            ch_tuple_unref(t);
            t_ok(ch_iterator_next(it, &t));
        }
        assert_int_equal(n, 0);
        ch_iterator_unref(it);
    }
    ch_dataset_unref(d);
}

static ch_dataset *batches(int64_t n, int64_t size)
{
    return ch_dataset_batch(range(n), size, &(ch_batch_options){.drop_remainder = true});
}

static void cardinality_of_rebatch_counts_rows(void **state)
{
    const ch_batch_options drop = {.drop_remainder = true};

    (void)state;
    for (int64_t n = 0; n < 30; n++)
        for (int64_t size = 1; size < 8; size++) {
            int64_t rows = n / 4 * 4;

            has(ch_dataset_rebatch(batches(n, 4), 1, &size, NULL), (rows + size - 1) / size);
            has(ch_dataset_rebatch(batches(n, 4), 1, &size, &drop), rows / size);
        }
    has(ch_dataset_rebatch(ch_dataset_repeat(batches(9, 4), CH_INFINITE), 2, (int64_t[]){2, 3},
                           NULL),
        CH_INFINITE);
    has(ch_dataset_rebatch(ch_dataset_batch(range(9), 4, NULL), 1, (int64_t[]){2}, NULL),
        CH_UNKNOWN); /* the last batch is short */
}

static ch_dataset *sample(int64_t a, int64_t b, const double *weight, bool stop)
{
    ch_dataset *of[] = {a < 0 ? ch_dataset_repeat(range(2), a) : range(a),
                        b < 0 ? ch_dataset_repeat(range(2), b) : range(b)};

    return ch_dataset_sample_from(2, of, weight, &(ch_sample_options){.stop_on_empty = stop});
}

static void cardinality_of_sample_from_counts_its_inputs(void **state)
{
    const double first[] = {1, 0}, second[] = {0, 1};

    (void)state;
    has(sample(3, 4, NULL, false), 7);
    has(sample(3, 4, first, false), 3);
    has(sample(3, 4, NULL, true), CH_UNKNOWN);
    has(sample(3, CH_INFINITE, NULL, false), CH_INFINITE);
    has(sample(3, CH_INFINITE, NULL, true), CH_UNKNOWN);
    has(sample(3, CH_INFINITE, second, true), CH_INFINITE);
    has(sample(3, CH_INFINITE, first, false), 3);
    has(sample(CH_INFINITE, CH_INFINITE, NULL, true), CH_INFINITE);
}

static ch_dataset *itself(ch_dataset *element, void *arg)
{
    (void)arg;
    return element;
}

static void cardinality_of_window_counts_windows(void **state)
{
    const ch_tensor_spec *spec;
    ch_dataset           *d;

    (void)state;
    for (int64_t n = 0; n < 12; n++)
        for (int64_t size = 1; size < 4; size++)
            for (int64_t k = 0; k < 16; k++) {
                ch_window_options o = {.shift = k / 4, .stride = k % 4};
                int64_t           shift = o.shift > 0 ? o.shift : size, whole = 0;

                o.drop_remainder = false;
                has(ch_dataset_window(range(n), size, NULL, NULL, &o), (n + shift - 1) / shift);
                for (int64_t at = 0; at < n; at += shift)
                    whole += at + (size - 1) * (o.stride > 0 ? o.stride : 1) < n;
                o.drop_remainder = true;
                has(ch_dataset_window(range(n), size, NULL, NULL, &o), whole);
            }
    has(ch_dataset_window(range(9), 2, itself, NULL, NULL), CH_UNKNOWN);
    has(ch_dataset_window(ch_dataset_repeat(range(9), CH_INFINITE), 2, NULL, NULL, NULL),
        CH_INFINITE);
    d = ch_dataset_window(range(9), 2, NULL, NULL,
                          &(ch_window_options){.drop_remainder = true});
    assert_int_equal(ch_dataset_element_spec(d, &spec), 1);
    assert_int_equal(spec[0].shape.dim[0], 2);
    ch_dataset_unref(d);
}

/* ---- many passes without elements ---- */

static ch_status none(void *arg, ch_tuple *in, bool *keep)
{
    (void)in;
    *keep = false;
    ++*(int *)arg;
    return CH_OK;
}

static void repeat_of_an_empty_dataset_ends(void **state)
{
    int n = 0;

    (void)state;
    t_gives(ch_dataset_repeat(ch_dataset_filter_call(range(1), none, &n), INT64_MAX - 1), "");
    assert_int_equal(n, 1);
    n = 0;
    t_gives(ch_dataset_repeat(ch_dataset_filter_call(range(1), none, &n), 20), "");
    assert_int_equal(n, 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cardinality_of_rebatch_counts_rows),
        cmocka_unit_test(cardinality_of_sample_from_counts_its_inputs),
        cmocka_unit_test(cardinality_of_window_counts_windows),
        cmocka_unit_test(repeat_of_an_empty_dataset_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

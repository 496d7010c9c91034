/* test/kernel/test_bag.c -- sums of table rows in bags: ids that are out of range.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/prefetch.h"
#include "kernel/bag.h"

/* Rows are prefetched CH_PREFETCH_ROWS positions ahead. Under the undefined-behaviour sanitizer,
 * the test also shows that no address is computed from such an id. */
static void bag_sum_ignores_ids_out_of_range(void **state)
{
    enum { N = 3 * CH_PREFETCH_ROWS, ROWS = 2, WIDTH = 3 };
    static const float   table[ROWS][WIDTH] = {{1, 2, 3}, {10, 20, 30}};
    static const int64_t wrong[] = {INT64_MAX, INT64_MIN, -1, ROWS};
    int64_t              ids[N], splits[] = {0, N};
    float                out[WIDTH];
    ch_bag               b = {CH_F32, ROWS, WIDTH, 1, N, false};

    (void)state;
    for (int i = 0; i < N; i++)
        ids[i] = wrong[i % 4];
    ids[0] = 0;
    ids[N - 1] = 1;
    ch__bag_sum(&b, ch__ids(splits, true), ch__ids(ids, true), NULL, table, 0, 1, out, NULL);
    for (int k = 0; k < WIDTH; k++)
        assert_true(out[k] == table[0][k] + table[1][k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bag_sum_ignores_ids_out_of_range),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

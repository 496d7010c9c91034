/* test/tensor/test_row_marks.c -- marks of rows, compared with an array of bool.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "tensor/row_marks.h"

enum { MOST = 70 };

static ch_row_marks *new_marks(int64_t n_rows)
{
    ch_row_marks *m = NULL;

    assert_int_equal(ch__row_marks_new(n_rows, &m), CH_OK);
    return m;
}

/* Checks that the marks list exactly the rows of `want`. */
static void check(const ch_row_marks *m, const bool *want)
{
    int64_t n = -1, *ids = NULL, at = 0;

    assert_int_equal(ch__row_marks_list(m->n_rows, m->bits, &n, &ids), CH_OK);
    for (int64_t i = 0; i < m->n_rows; i++)
        if (want[i])
            assert_true(at < n && ids[at++] == i);
    assert_int_equal(at, n);
    assert_true(n > 0 || ids == NULL);
    ch__free(ids);
}

static void marks_list_the_rows_of_ids_and_ranges(void **state)
{
    unsigned seed = 1;

    (void)state;
    for (int n_rows = 0; n_rows <= MOST; n_rows++) {
        ch_row_marks *m = new_marks(n_rows), *copy = NULL;
        bool          want[MOST] = {false};

        for (int i = 0; i < 20 && !m->all; i++) {
            int64_t wide[3];
            int32_t narrow[3];

            check(m, want);
            for (int k = 0; k < 3; k++) {
                seed = seed * 1664525u + 1013904223u;
                wide[k] = narrow[k] = (int)(seed >> 16) % (MOST + 10) - 5;
                if (wide[k] >= 0 && wide[k] < n_rows)
                    want[wide[k]] = true;
            }
            ch__row_marks_add(m, 3, i % 2 == 0 ? (void *)wide : narrow, i % 2 == 0);
            if (wide[0] >= 0 && wide[0] < n_rows && i % 5 == 4) {
                int64_t to = wide[0] + 9 < n_rows ? wide[0] + 9 : n_rows;

                ch__row_marks_add_range(m, wide[0], to);
                memset(want + wide[0], true, (size_t)(to - wide[0]));
            }
        }
        assert_int_equal(ch__row_marks_copy(m, &copy), CH_OK);
        assert_true(copy->all == m->all);
        if (!m->all)
            check(copy, want);
        ch__row_marks_add_all(copy);
        assert_true(copy->all);
        ch__row_marks_clear(copy);
        check(copy, (const bool[MOST]){false});
        assert_false(copy->all);
        ch__free(copy);
        ch__free(m);
    }
}

/* The bits come from another task. */
static void marks_behind_the_last_row_are_ignored(void **state)
{
    const uint8_t bits[] = {0xff, 0xff};
    int64_t       n = 0, *ids = NULL;

    (void)state;
    assert_int_equal(ch__row_marks_list(11, bits, &n, &ids), CH_OK);
    assert_int_equal(n, 11);
    assert_int_equal(ids[10], 10);
    ch__free(ids);
}

static void marks_of_ids_out_of_range_mark_nothing(void **state)
{
    const int64_t ids[] = {-1, INT64_MIN, INT64_MAX, 8, (int64_t)1 << 32};
    ch_row_marks *m = new_marks(8);

    (void)state;
    ch__row_marks_add(m, 5, ids, true);
    check(m, (const bool[8]){false});
    ch__free(m);
}

static void marks_fail_when_memory_is_exhausted(void **state)
{
    ch_row_marks *m = new_marks(9), *copy = NULL;
    int64_t       n = 0, *ids = NULL;

    (void)state;
    ch__row_marks_add_range(m, 3, 5);
    ch__mem_fail_from(1);
    assert_int_equal(ch__row_marks_new(9, &copy), CH_RESOURCE_EXHAUSTED);
    assert_int_equal(ch__row_marks_copy(m, &copy), CH_RESOURCE_EXHAUSTED);
    assert_int_equal(ch__row_marks_list(9, m->bits, &n, &ids), CH_RESOURCE_EXHAUSTED);
    ch__mem_fail_from(0);
    assert_null(copy);
    assert_null(ids);
    ch__free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marks_list_the_rows_of_ids_and_ranges),
        cmocka_unit_test(marks_behind_the_last_row_are_ignored),
        cmocka_unit_test(marks_of_ids_out_of_range_mark_nothing),
        cmocka_unit_test(marks_fail_when_memory_is_exhausted),
    };

    return cmocka_run_group_tests_name("row_marks", tests, NULL, NULL);
}

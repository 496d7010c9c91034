/* test/net/test_pending.c -- the table of pending calls and timers, compared with plain arrays.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "net/pending.h"

enum { N_IDS = 300, N_STEPS = 30000 };

static uint64_t dice = 1;

static int64_t below(int64_t n)
{
    uint64_t z = (dice += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (int64_t)((z ^ (z >> 31)) % (uint64_t)n);
}

/* By kind and id: the number (0: not pending), and the time. */
static uint64_t number[2][N_IDS];
static int64_t  at[2][N_IDS];

static const ch_pending_kind kind_of[] = {CH_PENDING_CALL, CH_PENDING_TIMER};

static int64_t some_time(void)
{
    return below(5) == 0 ? INT64_MAX : below(1000);
}

static void change(ch_pending_table *t, int k, int id)
{
    ch_pending *e = ch__pending_find(t, kind_of[k], (uint64_t)id);

    assert_true((e != NULL) == (number[k][id] != 0));
    if (e == NULL) {
        assert_true(ch__pending_reserve(t, 1));
        at[k][id] = some_time();
        e = ch__pending_add(t, kind_of[k], (uint64_t)id, at[k][id]);
        number[k][id] = ch__pending_number(t, e);
        return;
    }
    assert_true(ch__pending_number(t, e) == number[k][id]);
    assert_ptr_equal(ch__pending_at(t, kind_of[k], number[k][id]), e);
    assert_null(ch__pending_at(t, CH_PENDING_RECEIVED, number[k][id]));
    if (below(3) == 0) {
        at[k][id] = some_time();
        ch__pending_move(t, e, at[k][id]);
        return;
    }
    ch__pending_drop(t, e);
    assert_null(ch__pending_at(t, kind_of[k], number[k][id])); /* never used again */
    number[k][id] = 0;
}

static int64_t earliest(void)
{
    int64_t first = INT64_MAX;

    for (int k = 0; k < 2; k++)
        for (int i = 0; i < N_IDS; i++)
            if (number[k][i] != 0 && at[k][i] < first)
                first = at[k][i];
    return first;
}

static void pending_table_finds_entries_and_the_earliest(void **state)
{
    ch_pending_table t = {0};
    int64_t          live = ch__mem_live();

    assert_null(ch__pending_find(&t, CH_PENDING_CALL, 1));
    assert_null(ch__pending_add(&t, CH_PENDING_CALL, 1, 1));
    for (int i = 0; i < N_STEPS; i++) {
        change(&t, (int)below(2), (int)below(i % 10000 < 5000 ? N_IDS : 20));
        if (i % 16 == 0) {
            const ch_pending *first = ch__pending_first(&t);

            assert_true((first != NULL ? first->at : INT64_MAX) == earliest());
        }
    }
    ch__pending_free(&t);
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

static void pending_table_returns_entries_of_equal_time_in_order(void **state)
{
    ch_pending_table t = {0};

    assert_true(ch__pending_reserve(&t, 200));
    for (uint64_t i = 0; i < 200; i++)
        assert_non_null(ch__pending_add(&t, CH_PENDING_TIMER, i, 7));
    for (uint64_t i = 0; i < 200; i++) {
        assert_int_equal(ch__pending_first(&t)->id, i);
        ch__pending_drop(&t, ch__pending_first(&t));
    }
    assert_null(ch__pending_first(&t));
    ch__pending_free(&t);
    (void)state;
}

static void pending_table_is_unchanged_when_memory_is_short(void **state)
{
    ch_pending_table t = {0};

    for (int i = 1; i <= 2; i++) {
        ch__mem_fail_at(i);
        assert_false(ch__pending_reserve(&t, 1));
    }
    ch__mem_fail_at(0);
    assert_true(ch__pending_reserve(&t, 100));
    assert_non_null(ch__pending_add(&t, CH_PENDING_CALL, 4, 4));
    ch__mem_fail_at(2);
    assert_false(ch__pending_reserve(&t, 1000));
    ch__mem_fail_at(0);
    assert_non_null(ch__pending_find(&t, CH_PENDING_CALL, 4));
    assert_false(ch__pending_reserve(&t, INT32_MAX));
    ch__pending_free(&t);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pending_table_finds_entries_and_the_earliest),
        cmocka_unit_test(pending_table_returns_entries_of_equal_time_in_order),
        cmocka_unit_test(pending_table_is_unchanged_when_memory_is_short),
    };

    return cmocka_run_group_tests_name("table", tests, NULL, NULL);
}

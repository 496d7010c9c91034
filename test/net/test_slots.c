/* test/net/test_slots.c -- return paths: a path is stale when its connection has ended.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "net/slots.h"

enum { MANY = 1000 };

static void slots_do_not_move(void **state)
{
    static int     connection[MANY];
    ch_slots       s = {0};
    ch_return_path back[MANY];
    ch_slot       *slot[MANY];

    for (int i = 0; i < MANY; i++) {
        assert_true(ch__slots_add(&s, NULL, &connection[i], &back[i]));
        assert_int_equal(back[i].slot, i);
        slot[i] = ch__slots_at(&s, back[i]);
    }
    for (int i = 0; i < MANY; i++) {
        assert_ptr_equal(ch__slots_at(&s, back[i]), slot[i]);
        assert_ptr_equal(slot[i]->end, &connection[i]);
    }
    ch__slots_free(&s);
    (void)state;
}

static void path_is_stale_when_its_slot_is_used_again(void **state)
{
    ch_slots       s = {0};
    int            a, b;
    ch_return_path first, other, next;

    assert_true(ch__slots_add(&s, NULL, &a, &first));
    assert_true(ch__slots_add(&s, NULL, &a, &other));
    ch__slots_end(&s, first);
    ch__slots_end(&s, first); /* it has ended */
    assert_null(ch__slots_at(&s, first));
    assert_true(ch__slots_add(&s, NULL, &b, &next));
    assert_int_equal(next.slot, first.slot);
    assert_null(ch__slots_at(&s, first));
    assert_false(ch__return_path_is_same(first, next));
    assert_ptr_equal(ch__slots_at(&s, next)->end, &b);
    assert_ptr_equal(ch__slots_at(&s, other)->end, &a);
    next.generation = ch__slots_renew(&s, next);
    assert_ptr_equal(ch__slots_at(&s, next)->end, &b);
    ch__slots_free(&s);
    (void)state;
}

static void slots_report_lack_of_memory(void **state)
{
    ch_slots       s = {0};
    ch_return_path back;
    bool           ok = false;

    for (int64_t n = 1; !ok; n++) {
        ch__mem_fail_at(n);
        ok = ch__slots_add(&s, NULL, NULL, &back);
        ch__mem_fail_at(0);
    }
    assert_non_null(ch__slots_at(&s, back));
    ch__slots_free(&s);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_do_not_move),
        cmocka_unit_test(path_is_stale_when_its_slot_is_used_again),
        cmocka_unit_test(slots_report_lack_of_memory),
    };

    return cmocka_run_group_tests_name("slots", tests, NULL, NULL);
}

/* base/test_by_name.c -- names are found as long as they are there, whatever comes and goes.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "base/by_name.h"
#include "base/mem.h"

enum { MANY = 300 };

static char text[MANY][16];

static void fill_text(void)
{
    for (int i = 0; i < MANY; i++)
        snprintf(text[i], sizeof(text[i]), "dense_%d", i);
}

static void by_name_agrees_with_an_array_under_random_changes(void **state)
{
    ch_by_name t = {0};
    bool       is_in[MANY] = {false};
    unsigned   seed = 7;
    int64_t    live = ch__mem_live();

    fill_text();
    for (int k = 0; k < 20000; k++) {
        int i;

        seed = seed * 1664525u + 1013904223u;
        i = (int)(seed >> 8) % (k < 10000 ? MANY : 20); /* first it grows, then few change */
        if (is_in[i])
            ch__by_name_remove(&t, text[i]);
        else
            assert_true(ch__by_name_put(&t, text[i], text[i]));
        is_in[i] = !is_in[i];
        for (int j = k % 7; k % 50 == 0 && j < MANY; j++)
            assert_ptr_equal(ch__by_name_get(&t, text[j]), is_in[j] ? text[j] : NULL);
    }
    for (int i = 0; i < MANY; i++)
        if (is_in[i])
            ch__by_name_remove(&t, text[i]);
    assert_int_equal(ch__mem_live(), live);
    assert_null(ch__by_name_get(&t, "dense"));
    (void)state;
}

static void by_name_put_keeps_the_table_when_out_of_memory(void **state)
{
    ch_by_name t = {0};
    int64_t    live = ch__mem_live();
    int        n = 0;

    fill_text();
    ch__mem_fail_from(2);
    while (ch__by_name_put(&t, text[n], text[n]))
        n++;
    ch__mem_fail_from(0);
    assert_true(n > 4 && n < MANY);
    for (int i = 0; i < MANY; i++)
        assert_ptr_equal(ch__by_name_get(&t, text[i]), i < n ? text[i] : NULL);
    ch__by_name_drop(&t);
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_name_agrees_with_an_array_under_random_changes),
        cmocka_unit_test(by_name_put_keeps_the_table_when_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test/base/test_map.c -- a map finds the keys that are in it, and no others, after any
 * changes.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <stdio.h>

#include "base/map.h"
#include "base/mem.h"

enum { MANY = 300 };

static char text[MANY][16];

static void fill_text(void)
{
    for (int i = 0; i < MANY; i++)
        snprintf(text[i], sizeof(text[i]), "dense_%d", i);
}

static void map_of_names_agrees_with_an_array_under_random_changes(void **state)
{
    ch_map   t = {0};
    bool     is_in[MANY] = {false};
    unsigned seed = 7;
    int64_t  live = ch__mem_live();

    fill_text();
    for (int k = 0; k < 20000; k++) {
        int i;

        seed = seed * 1664525u + 1013904223u;
        i = (int)(seed >> 8) % (k < 10000 ? MANY : 20); /* grows, then few change */
        if (is_in[i])
            assert_ptr_equal(ch__map_remove_name(&t, text[i]), text[i]);
        else
            assert_int_equal(ch__map_set_name(&t, text[i], text[i]), CH_OK);
        is_in[i] = !is_in[i];
        for (int j = k % 7; k % 50 == 0 && j < MANY; j++)
            assert_ptr_equal(ch__map_find_name(&t, text[j]), is_in[j] ? text[j] : NULL);
    }
    for (int i = 0; i < MANY; i++)
        if (is_in[i])
            assert_ptr_equal(ch__map_remove_name(&t, text[i]), text[i]);
    assert_int_equal(t.n, 0);
    assert_null(ch__map_find_name(&t, "dense"));
    ch__map_drop(&t);
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

static void map_set_keeps_the_map_when_out_of_memory(void **state)
{
    ch_map  t = {0};
    int64_t live = ch__mem_live();
    int     n = 0;

    fill_text();
    ch__mem_fail_from(2);
    while (ch__map_set_name(&t, text[n], text[n]) == CH_OK)
        n++;
    ch__mem_fail_from(0);
    assert_true(n > 4 && n < MANY);
    for (int i = 0; i < MANY; i++)
        assert_ptr_equal(ch__map_find_name(&t, text[i]), i < n ? text[i] : NULL);
    ch__map_drop(&t);
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

static void map_of_numbers_agrees_with_an_array_under_random_changes(void **state)
{
    static char has[64][4];
    static int  thing;
    ch_map      m = {0};
    unsigned    seed = 5;
    int         n = 0;

    (void)state;
    for (int i = 0; i < 5000; i++) {
        ch_key k;

        seed = seed * 1664525u + 1013904223u;
        k = (ch_key){(seed >> 8) % 64 * 1000003, (seed >> 20) % 4};
        if (seed >> 31) {
            assert_int_equal(ch__map_remove(&m, k) != NULL, has[k.a / 1000003][k.b]);
            n -= has[k.a / 1000003][k.b];
            has[k.a / 1000003][k.b] = 0;
        } else {
            assert_int_equal(ch__map_set(&m, k, &thing), CH_OK);
            n += !has[k.a / 1000003][k.b];
            has[k.a / 1000003][k.b] = 1;
        }
        assert_int_equal(m.n, n);
    }
    for (int i = 0; i < 64; i++)
        for (int k = 0; k < 4; k++)
            assert_int_equal(ch__map_find(&m, (ch_key){(uint64_t)i * 1000003, (uint64_t)k}) !=
                                 NULL,
                             has[i][k]);
    ch__map_drop(&m);
}

static bool is_odd(void *arg, ch_key key, void *value)
{
    (void)arg;
    (void)value;
    return key.a % 2 == 1;
}

static void map_remove_if_removes_the_chosen_entries_only(void **state)
{
    static int thing;
    ch_map     m = {0};

    for (uint64_t i = 0; i < MANY; i++)
        assert_int_equal(ch__map_set(&m, ch__key(i), &thing), CH_OK);
    ch__map_remove_if(&m, is_odd, NULL);
    assert_int_equal(m.n, MANY / 2);
    for (uint64_t i = 0; i < MANY; i++)
        assert_ptr_equal(ch__map_find(&m, ch__key(i)), i % 2 == 0 ? &thing : NULL);
    ch__map_drop(&m);
    (void)state;
}

/* The map compares texts, not addresses, and set replaces the value of a name. */
static void map_of_names_finds_an_equal_text_at_another_address(void **state)
{
    char   name[] = "dense", same[] = "dense";
    int    x, y;
    ch_map m = {0};

    assert_null(ch__map_remove_name(&m, name));
    assert_int_equal(ch__map_set_name(&m, name, &x), CH_OK);
    assert_ptr_equal(ch__map_find_name(&m, same), &x);
    assert_int_equal(ch__map_set_name(&m, same, &y), CH_OK);
    assert_int_equal(m.n, 1);
    assert_ptr_equal(ch__map_remove_name(&m, name), &y);
    assert_null(ch__map_remove_name(&m, same));
    ch__map_drop(&m);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(map_of_names_agrees_with_an_array_under_random_changes),
        cmocka_unit_test(map_of_numbers_agrees_with_an_array_under_random_changes),
        cmocka_unit_test(map_of_names_finds_an_equal_text_at_another_address),
        cmocka_unit_test(map_remove_if_removes_the_chosen_entries_only),
        cmocka_unit_test(map_set_keeps_the_map_when_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test/base/test_counter.c -- striped counters.   SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>

#include "base/counter.h"

enum { THREADS = 20, TIMES = 10000 };

static ch_counter counter;

static void *add_many(void *arg)
{
    for (int i = 0; i < TIMES; i++)
        ch__counter_add(&counter, *(const int *)arg);
    return NULL;
}

static void counter_sums_additions_of_all_threads(void **state)
{
    int       up = 3, down = -1;
    pthread_t thread[THREADS];

    (void)state;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, add_many, i % 2 ? &up : &down), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    assert_int_equal(ch__counter_sum(&counter), THREADS / 2 * 2 * TIMES);
}

static void *find_stripe(void *arg)
{
    *(int *)arg = ch__counter_stripe();
    return NULL;
}

static void counter_gives_threads_different_cache_lines(void **state)
{
    int       stripe[2];
    pthread_t thread;

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&thread, NULL, find_stripe, &stripe[i]), 0);
        pthread_join(thread, NULL);
        assert_in_range(stripe[i], 0, CH_STRIPES - 1);
    }
    assert_int_not_equal(stripe[0], stripe[1]);
    assert_int_equal((uintptr_t)&counter.stripe[stripe[0]] % CH_ALIGN, 0);
    assert_int_equal((uintptr_t)&counter.stripe[stripe[1]] % CH_ALIGN, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counter_sums_additions_of_all_threads),
        cmocka_unit_test(counter_gives_threads_different_cache_lines),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

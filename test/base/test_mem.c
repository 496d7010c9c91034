/* test/base/test_mem.c -- memory is aligned, zeroed and counted, and allocations fail on
 * request.
 *
 * The tests cover base/mem.h: blocks, growable arrays, arenas, the count of live allocations,
 * and ch__mem_fail_at and its relatives, with which all other tests let an allocation fail.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>

#include "base/mem.h"

static const size_t too_many = SIZE_MAX / 2 + 1;

static bool is_zero(const unsigned char *p, size_t bytes)
{
    return bytes == 0 || (p[0] == 0 && memcmp(p, p + 1, bytes - 1) == 0);
}

static void assert_nothing_is_held_since(int64_t live)
{
    assert_int_equal(ch__mem_live(), live);
}

static void mem_live_counts_allocations_until_they_are_freed(void **state)
{
    int64_t live = ch__mem_live(), allocs = ch__mem_allocs();
    void   *p[] = {ch__malloc(10), ch__calloc(2, 5), ch__realloc(NULL, 10), ch__strdup("ten"),
                   ch__alloc_aligned(10)};

    assert_int_equal(ch__mem_live(), live + 5);
    assert_int_equal(ch__mem_allocs(), allocs + 5);
    for (int i = 0; i < 4; i++)
        ch__free(p[i]);
    ch__free_aligned(p[4]);
    ch__free(NULL);
    ch__free_aligned(NULL);
    assert_nothing_is_held_since(live);
    (void)state;
}

static void *allocate(void *arg)
{
    *(void **)arg = ch__malloc(10);
    return NULL;
}

static void allocations_of_all_threads_are_counted(void **state)
{
    int64_t   live = ch__mem_live(), allocs = ch__mem_allocs();
    void     *p = NULL;
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, allocate, &p), 0);
    pthread_join(thread, NULL);
    assert_int_equal(ch__mem_live(), live + 1);
    assert_int_equal(ch__mem_allocs(), allocs + 1);
    ch__free(p);
    assert_nothing_is_held_since(live);
    (void)state;
}

static void fail_at_counts_allocations_of_all_threads(void **state)
{
    void     *p = NULL, *q;
    pthread_t thread;

    ch__mem_fail_at(2);
    assert_int_equal(pthread_create(&thread, NULL, allocate, &p), 0);
    pthread_join(thread, NULL);
    q = ch__malloc(1);
    ch__mem_fail_at(0);
    assert_non_null(p);
    assert_null(q);
    ch__free(p);
    (void)state;
}

static void malloc_of_zero_bytes_returns_a_pointer(void **state)
{
    void *p[] = {ch__malloc(0), ch__calloc(0, 8), ch__alloc_aligned(0)};

    for (int i = 0; i < 3; i++) {
        assert_non_null(p[i]);
        ch__free(p[i]);
    }
    (void)state;
}

static void allocation_fails_when_its_size_overflows(void **state)
{
    int64_t live = ch__mem_live();

    assert_null(ch__malloc(too_many));
    assert_null(ch__calloc(too_many, 4));
    assert_null(ch__calloc(SIZE_MAX, SIZE_MAX));
    assert_null(ch__alloc_aligned(SIZE_MAX));
    assert_nothing_is_held_since(live);
    (void)state;
}

static void realloc_keeps_the_contents_when_it_fails(void **state)
{
    char *p = ch__strdup("kept");

    assert_null(ch__realloc(p, too_many));
    assert_string_equal(p, "kept");
    p = ch__realloc(p, 1000);
    assert_string_equal(p, "kept");
    ch__free(p);
    (void)state;
}

static void aligned_blocks_are_aligned_and_zeroed(void **state)
{
    static const size_t sizes[] = {1, 63, 64, 65, 4096, (2 << 20) - 1, 2 << 20, (2 << 20) + 1};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int again = 0; again < 2; again++) { /* the 2nd may reuse pages of the 1st */
            unsigned char *p = ch__alloc_aligned(sizes[i]);

            assert_non_null(p);
            assert_int_equal((uintptr_t)p % CH_ALIGN, 0);
            assert_true(is_zero(p, sizes[i]));
            memset(p, 0xff, sizes[i]);
            ch__free_aligned(p);
        }
    (void)state;
}

static void fail_at_fails_one_allocation_of_any_kind(void **state)
{
    void *p;

    ch__mem_fail_at(1);
    assert_null(ch__calloc(1, 1));
    ch__mem_fail_at(1);
    assert_null(ch__strdup("s"));
    ch__mem_fail_at(1);
    assert_null(ch__alloc_aligned(1));
    ch__mem_fail_at(2);
    p = ch__malloc(1);
    assert_non_null(p);
    assert_null(ch__realloc(p, 2));
    p = ch__realloc(p, 2);
    assert_non_null(p);
    ch__free(p);
    (void)state;
}

static void fail_from_fails_all_until_it_is_ended(void **state)
{
    void *p;

    ch__mem_fail_from(2);
    p = ch__malloc(1);
    assert_non_null(p);
    for (int i = 0; i < 3; i++)
        assert_null(ch__malloc(1));
    ch__free(p);
    ch__mem_fail_from(0);
    p = ch__malloc(1);
    assert_non_null(p);
    ch__free(p);
    (void)state;
}

static void grow_keeps_the_elements_and_rarely_allocates(void **state)
{
    int    *p = NULL, cap = 0;
    int64_t allocs = ch__mem_allocs();

    for (int i = 0; i < 1000; i++) {
        assert_true(ch__grow((void **)&p, &cap, i + 1, sizeof(*p)));
        p[i] = i;
    }
    for (int i = 0; i < 1000; i++)
        assert_int_equal(p[i], i);
    assert_true(ch__mem_allocs() - allocs <= 10);
    ch__free(p);
    (void)state;
}

static void grow_leaves_all_as_it_was_when_out_of_memory(void **state)
{
    int *p = NULL, *before, cap = 0, cap_before;

    assert_true(ch__grow((void **)&p, &cap, 1, sizeof(*p)));
    before = p;
    cap_before = cap;
    p[0] = 7;
    ch__mem_fail_at(1);
    assert_false(ch__grow((void **)&p, &cap, cap + 1, sizeof(*p)));
    assert_false(ch__grow((void **)&p, &cap, INT_MAX, SIZE_MAX / 4));
    assert_ptr_equal(p, before);
    assert_int_equal(cap, cap_before);
    assert_int_equal(p[0], 7);
    ch__free(p);
    (void)state;
}

static void an_arena_hands_out_zeroed_aligned_separate_memory(void **state)
{
    enum { N = 200 };
    ch_arena       a = {0};
    unsigned char *p[N];
    int64_t        live = ch__mem_live();

    for (int i = 0; i < N; i++) {
        p[i] = ch__arena_alloc(&a, (size_t)i * 7);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 16, 0);
        assert_true(is_zero(p[i], (size_t)i * 7));
        memset(p[i], i, (size_t)i * 7);
    }
    for (int i = 1; i < N; i++) {
        assert_int_equal(p[i][0], i);
        assert_int_equal(p[i][i * 7 - 1], i);
    }
    assert_true(a.bytes >= 7 * N * (N - 1) / 2);
    ch__arena_drop(&a);
    assert_null(a.last);
    assert_int_equal(a.bytes, 0);
    assert_nothing_is_held_since(live);
    (void)state;
}

static void an_arena_copies_text_and_data(void **state)
{
    ch_arena a = {0};
    int      data[] = {1, 2, 3};

    assert_string_equal(ch__arena_strdup(&a, "text"), "text");
    assert_null(ch__arena_strdup(&a, NULL));
    assert_memory_equal(ch__arena_copy(&a, data, sizeof(data)), data, sizeof(data));
    assert_non_null(ch__arena_copy(&a, NULL, 0));
    ch__arena_drop(&a);
    ch__arena_drop(&a); /* dropping an empty arena is allowed */
    (void)state;
}

static void an_arena_out_of_memory_can_still_be_used(void **state)
{
    ch_arena a = {0};

    ch__mem_fail_at(1);
    assert_null(ch__arena_alloc(&a, 8));
    assert_null(ch__arena_alloc(&a, SIZE_MAX));
    assert_non_null(ch__arena_alloc(&a, 8));
    ch__mem_fail_at(1);
    assert_null(ch__arena_alloc(&a, 1 << 20));
    assert_non_null(ch__arena_alloc(&a, 1 << 20));
    ch__arena_drop(&a);
    (void)state;
}

static void mul_size_detects_overflow(void **state)
{
    int64_t out = 0;

    assert_true(ch__mul_size(6, 7, &out));
    assert_int_equal(out, 42);
    assert_false(ch__mul_size(INT64_MAX, 2, &out));
    (void)state;
}

static void mem_watch_finds_the_most_bytes_held(void **state)
{
    void *kept = ch__malloc(1000), *p, *q;

    (void)state;
    ch__mem_watch(true);
    p = ch__calloc(10, 100);
    q = ch__alloc_aligned(5000);
    p = ch__realloc(p, 3000);
    ch__free_aligned(q);
    ch__free(kept);
    ch__free(p);
    assert_in_range(ch__mem_peak(), 8000, 9000);
    ch__mem_watch(false);
}

static void peak_bytes_follows_the_memory_of_the_process(void **state)
{
    const int64_t bytes = (int64_t)64 << 20;
    int64_t       before = ch__peak_bytes();
    void         *p = ch__alloc_aligned((size_t)bytes); /* every page touched */

    assert_non_null(p);
    ch__free_aligned(p);
    assert_true(before > 0);
    assert_true(ch__peak_bytes() >= bytes && ch__peak_bytes() >= before);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mem_watch_finds_the_most_bytes_held),
        cmocka_unit_test(mem_live_counts_allocations_until_they_are_freed),
        cmocka_unit_test(allocations_of_all_threads_are_counted),
        cmocka_unit_test(fail_at_counts_allocations_of_all_threads),
        cmocka_unit_test(malloc_of_zero_bytes_returns_a_pointer),
        cmocka_unit_test(allocation_fails_when_its_size_overflows),
        cmocka_unit_test(realloc_keeps_the_contents_when_it_fails),
        cmocka_unit_test(aligned_blocks_are_aligned_and_zeroed),
        cmocka_unit_test(fail_at_fails_one_allocation_of_any_kind),
        cmocka_unit_test(fail_from_fails_all_until_it_is_ended),
        cmocka_unit_test(grow_keeps_the_elements_and_rarely_allocates),
        cmocka_unit_test(grow_leaves_all_as_it_was_when_out_of_memory),
        cmocka_unit_test(an_arena_hands_out_zeroed_aligned_separate_memory),
        cmocka_unit_test(an_arena_copies_text_and_data),
        cmocka_unit_test(an_arena_out_of_memory_can_still_be_used),
        cmocka_unit_test(mul_size_detects_overflow),
        cmocka_unit_test(peak_bytes_follows_the_memory_of_the_process),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

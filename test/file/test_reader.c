/* test/file/test_reader.c -- spans of files stay valid and in place, in blocks that are used
 * again.
 *
 * A ch_reader reads a file in blocks of a pool. A span keeps its block until it is released,
 * also after the reader is closed and from any thread.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/reader.h"

#include <pthread.h>

#include "help.h"

enum { N = 3 << 20 };

static char *noise;

static int setup(void **state)
{
    if (t_setup(state) != 0)
        return -1;
    noise = t_noise(N, 9);
    t_write("noise", noise, N);
    return 0;
}

static int teardown(void **state)
{
    free(noise);
    return t_folder_remove(state);
}

static ch_reader *open_noise(ch_block_pool *pool)
{
    ch_reader *r = NULL;

    assert_int_equal(ch__reader_open(t_path("noise"), NULL, pool, &r), CH_OK);
    return r;
}

/* Returns small and large sizes in random order. */
static size_t size_of(unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    unsigned x = *seed >> 8;

    return x % 16 == 0 ? x / 16 % 600000 : x / 16 % 5000;
}

static void reader_want_of_any_size_gives_the_bytes_of_the_file(void **state)
{
    for (unsigned seed = 0; seed < 20; seed++) {
        unsigned   dice = seed;
        ch_reader *r = open_noise(NULL);
        size_t     at = 0;

        while (at < N) {
            size_t n = size_of(&dice);

            assert_int_equal(ch__reader_want(r, n), CH_OK);
            assert_true(r->left >= (n < N - at ? n : N - at));
            n = n < r->left ? n : r->left;
            assert_memory_equal(r->at, noise + at, n);
            ch__reader_borrow(r, n);
            at += n;
            assert_int_equal(ch__reader_offset(r), at);
        }
        assert_int_equal(ch__reader_want(r, 1), CH_OK);
        assert_int_equal(r->left, 0);
        ch__reader_close(r);
    }
    (void)state;
}

static void reader_spans_outlive_the_reader(void **state)
{
    enum { SPANS = 200 };
    struct {
        ch_buffer  *block;
        const char *at;
        size_t      from, n;
    } span[SPANS];
    ch_reader *r = open_noise(NULL);
    unsigned   dice = 1;
    size_t     at = 0;
    int64_t    live = ch__mem_live();

    for (int i = 0; i < SPANS; i++) {
        size_t n = size_of(&dice) % 20000;

        assert_int_equal(ch__reader_want(r, n), CH_OK);
        n = n < r->left ? n : r->left;
        span[i].block = ch__buffer_ref(r->block);
        span[i].at = r->at;
        span[i].from = at;
        span[i].n = n;
        ch__reader_borrow(r, n);
        at += n;
    }
    ch__reader_close(r);
    for (int i = 0; i < SPANS; i++) {
        assert_memory_equal(span[i].at, noise + span[i].from, span[i].n);
        ch__buffer_unref(span[i].block);
    }
    assert_true(ch__mem_live() < live); /* the pool is freed with its last block */
    (void)state;
}

static void reader_allocates_nothing_when_blocks_return_to_the_pool(void **state)
{
    ch_block_pool *pool = NULL;
    ch_buffer     *kept[8] = {NULL};

    assert_int_equal(ch__block_pool_new(&pool), CH_OK);
    for (int pass = 0; pass < 3; pass++) {
        ch_reader *r = open_noise(pool);
        int64_t    before = ch__mem_allocs();

        for (size_t at = 0; at < N; at += 3000) {
            ch_buffer **slot = &kept[at / 3000 % 8];

            assert_int_equal(ch__reader_want(r, 3000), CH_OK);
            if (*slot != NULL)
                ch__buffer_unref(*slot);
            *slot = ch__buffer_ref(r->block);
            ch__reader_borrow(r, r->left < 3000 ? r->left : 3000);
        }
        if (pass > 0)
            assert_int_equal(ch__mem_allocs(), before);
        ch__reader_close(r);
    }
    for (int i = 0; i < 8; i++)
        ch__buffer_unref(kept[i]);
    ch__block_pool_unref(pool);
    (void)state;
}

static void block_pool_gives_aligned_blocks_after_others_have_grown(void **state)
{
    ch_block_pool *pool = NULL;
    ch_buffer     *block[50];

    assert_int_equal(ch__block_pool_sized(100, &pool), CH_OK);
    for (int pass = 0; pass < 3; pass++) {
        for (size_t i = 0; i < 50; i++) {
            block[i] = ch__block_get(pool, 0);
            assert_non_null(block[i]);
            assert_int_equal((uintptr_t)block[i]->data % CH_ALIGN, 0);
            assert_true(ch__block_grow(block[i], 100 + 48 * i));
        }
        for (int i = 0; i < 50; i++)
            ch__buffer_unref(block[i]);
    }
    ch__block_pool_unref(pool);
    (void)state;
}

static void block_notes_live_as_long_as_their_block(void **state)
{
    ch_block_pool *pool = NULL;
    ch_buffer     *block[40];
    int            n_noted = 0;

    assert_int_equal(ch__block_pool_new(&pool), CH_OK);
    ch__block_pool_reserve_notes(pool, 100);
    for (int pass = 0; pass < 2; pass++) {
        int n = 0;

        for (int i = 0; i < 40; i++) {
            block[i] = ch__block_get(pool, 0);
            assert_non_null(block[i]);
            char *a = ch__block_alloc_note(block[i], 50),
                 *b = ch__block_alloc_note(block[i], 64);

            memset(block[i]->data, 0, block[i]->bytes);
            assert_null(ch__block_alloc_note(block[i], 1));
            if (a == NULL)
                continue;
            n++;
            memset(a, i, 50);
            memset(b, i, 64);
            assert_int_equal((uintptr_t)a % 16, 0);
            assert_int_equal((uintptr_t)b % 16, 0);
        }
        assert_true(n > 0 && n >= n_noted); /* a returned block has its full size again */
        n_noted = n;
        for (int i = 0; i < 40; i++)
            ch__buffer_unref(block[i]);
    }
    ch__block_pool_unref(pool);
    (void)state;
}

/* A declared length allocates no memory. */
static void reader_want_past_the_end_takes_no_memory(void **state)
{
    ch_reader *r = NULL;

    t_write("small", "small", 5);
    assert_int_equal(ch__reader_open(t_path("small"), NULL, NULL, &r), CH_OK);
    int64_t before = ch__mem_allocs();
    assert_int_equal(ch__reader_want(r, (size_t)1 << 60), CH_OK);
    assert_int_equal(r->left, 5);
    assert_memory_equal(r->at, "small", 5);
    assert_int_equal(ch__mem_allocs(), before);
    ch__reader_close(r);
    (void)state;
}

static void reader_block_grows_as_bytes_arrive(void **state)
{
    ch_reader *r = open_noise(NULL);

    assert_int_equal(ch__reader_want(r, 1000), CH_OK);
    ch__reader_borrow(r, 1000);
    ch_buffer *old = ch__buffer_ref(r->block);
    assert_int_equal(ch__reader_want(r, SIZE_MAX), CH_OK);
    assert_int_equal(r->left, N - 1000);
    assert_memory_equal(r->at, noise + 1000, N - 1000);
    assert_true(r->block->bytes <= N + (8 << 20));
    assert_memory_equal(old->data, noise, 1000);
    ch__buffer_unref(old);
    ch__reader_close(r);
    (void)state;
}

static void reader_seeks_back_and_forth(void **state)
{
    static const int64_t to[] = {0, 10, 300000, 299999, 0, 2 << 20, N - 1, N, 5, N / 2};
    size_t               packed;
    char                *gz = t_pack(CH_GZIP, noise, N, &packed);

    t_write("noise.gz", gz, packed);
    for (int k = 0; k < 2; k++) {
        ch_reader *r = NULL;

        assert_int_equal(ch__reader_open(t_path(k == 0 ? "noise" : "noise.gz"), NULL, NULL, &r),
                         CH_OK);
        for (size_t i = 0; i < sizeof(to) / sizeof(*to); i++) {
            assert_int_equal(ch__reader_seek(r, to[i]), CH_OK);
            assert_int_equal(ch__reader_offset(r), to[i]);
            assert_int_equal(ch__reader_want(r, 100), CH_OK);
            size_t n = N - to[i] < 100 ? (size_t)(N - to[i]) : 100;
            assert_true(r->left >= n);
            assert_memory_equal(r->at, noise + to[i], n);
        }
        t_assert_error(ch__reader_seek(r, N + 1), CH_OUT_OF_RANGE, "noise");
        ch__reader_close(r);
    }
    free(gz);
    (void)state;
}

static void reader_skip_skips_bytes_in_and_beyond_its_block(void **state)
{
    ch_reader *r = open_noise(NULL);
    int64_t    at = 0, skipped;
    unsigned   dice = 3;

    while (at < N) {
        int64_t n = (int64_t)size_of(&dice), want = n < N - at ? n : N - at;

        assert_int_equal(ch__reader_want(r, 1), CH_OK);
        assert_int_equal(ch__reader_skip(r, n, &skipped), CH_OK);
        assert_int_equal(skipped, want);
        at += want;
        assert_int_equal(ch__reader_offset(r), at);
        assert_int_equal(ch__reader_want(r, 1), CH_OK);
        if (at < N)
            assert_int_equal(*r->at, noise[at]);
    }
    assert_int_equal(ch__reader_skip(r, 1, &skipped), CH_OK);
    assert_int_equal(skipped, 0);
    ch__reader_close(r);
    (void)state;
}

/* A file that becomes shorter while it is read is an error and not an end of file, because a
 * truncated text would seem complete. */
static void reader_reports_a_file_that_shrinks_while_it_is_read(void **state)
{
    ch_reader *r = NULL;
    int64_t    skipped;

    t_write("shrinks", noise, N);
    assert_int_equal(ch__reader_open(t_path("shrinks"), NULL, NULL, &r), CH_OK);
    assert_int_equal(ch__reader_want(r, 1), CH_OK);
    size_t there = r->left;
    assert_int_equal(truncate(t_path("shrinks"), 10), 0);
    assert_true(there < N);
    t_assert_error(ch__reader_skip(r, N, &skipped), CH_DATA_LOSS, "shrinks", "ends at byte");
    t_assert_error(ch__reader_want(r, N), CH_DATA_LOSS, "shrinks", "ends at byte");
    assert_int_equal(r->left, 0);
    ch__reader_close(r);
    (void)state;
}

static void *drop_all(void *arg)
{
    ch_buffer **kept = arg;

    for (int i = 0; kept[i] != NULL; i++)
        ch__buffer_unref(kept[i]);
    return NULL;
}

static void reader_blocks_are_returned_from_any_thread(void **state)
{
    for (int pass = 0; pass < 20; pass++) {
        ch_buffer *kept[2][300] = {{NULL}};
        pthread_t  thread[2];
        ch_reader *r = open_noise(NULL);

        for (int i = 0; i < 250; i++) {
            assert_int_equal(ch__reader_want(r, 10000), CH_OK);
            kept[i % 2][i / 2] = ch__buffer_ref(r->block);
            ch__reader_borrow(r, 10000);
        }
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&thread[i], NULL, drop_all, kept[i]), 0);
        ch__reader_want(r, 1000000) == CH_OK ? (void)0 : fail();
        ch__reader_close(r);
        for (int i = 0; i < 2; i++)
            pthread_join(thread[i], NULL);
    }
    (void)state;
}

static ch_status use_all(void)
{
    ch_reader *r = NULL;
    int64_t    skipped;
    ch_status  rc = ch__reader_open(t_path("noise"), NULL, NULL, &r);

    if (rc != CH_OK)
        return rc;
    rc = ch__reader_want(r, 1 << 20);
    if (rc == CH_OK)
        rc = ch__reader_skip(r, 2 << 20, &skipped);
    ch_buffer *kept = ch__buffer_ref(r->block);
    if (rc == CH_OK)
        rc = ch__reader_want(r, 300000);
    if (rc == CH_OK)
        rc = ch__reader_seek(r, 1);
    ch__buffer_unref(kept);
    ch__reader_close(r);
    return rc;
}

static void reader_fails_without_leak_when_a_call_or_allocation_fails(void **state)
{
    int64_t calls = ch__file_calls(), allocs = ch__mem_allocs(), live = ch__mem_live();

    assert_int_equal(use_all(), CH_OK);
    calls = ch__file_calls() - calls;
    allocs = ch__mem_allocs() - allocs;
    for (int64_t i = 1; i <= calls; i++) {
        ch__file_fail_at(i, EIO);
        t_assert_error(use_all(), CH_DATA_LOSS, "noise");
        ch__file_fail_at(0, 0);
        assert_int_equal(ch__mem_live(), live);
    }
    for (int64_t i = 1; i <= allocs; i++) {
        ch__mem_fail_at(i);
        t_assert_error(use_all(), CH_RESOURCE_EXHAUSTED, "out of memory");
        ch__mem_fail_at(0);
        assert_int_equal(ch__mem_live(), live);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reader_want_of_any_size_gives_the_bytes_of_the_file),
        cmocka_unit_test(reader_spans_outlive_the_reader),
        cmocka_unit_test(reader_allocates_nothing_when_blocks_return_to_the_pool),
        cmocka_unit_test(block_pool_gives_aligned_blocks_after_others_have_grown),
        cmocka_unit_test(block_notes_live_as_long_as_their_block),
        cmocka_unit_test(reader_want_past_the_end_takes_no_memory),
        cmocka_unit_test(reader_block_grows_as_bytes_arrive),
        cmocka_unit_test(reader_seeks_back_and_forth),
        cmocka_unit_test(reader_skip_skips_bytes_in_and_beyond_its_block),
        cmocka_unit_test(reader_reports_a_file_that_shrinks_while_it_is_read),
        cmocka_unit_test(reader_blocks_are_returned_from_any_thread),
        cmocka_unit_test(reader_fails_without_leak_when_a_call_or_allocation_fails),
    };

    if (!t_can_pack())
        return 77;
    return cmocka_run_group_tests(tests, setup, teardown);
}

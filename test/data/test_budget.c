/* test/data/test_budget.c -- the option memory_bytes limits the memory of elements in buffers.
 *
 * The tests count the memory of the elements themselves. With any budget, a pipeline gives the
 * same elements or an error that names the stage which needs more.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "pipeline.h"

enum { BYTES = 16 << 10, N = 300 }; /* bytes of an element's memory; number of elements */

/* ---- elements whose memory is counted ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t  changed = PTHREAD_COND_INITIALIZER;
static int             n_live, most_live;

static void count(int by)
{
    pthread_mutex_lock(&lock);
    n_live += by;
    most_live = n_live > most_live ? n_live : most_live;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void released(void *block)
{
    count(-1);
    free(block);
}

static ch_status make_block(void *arg, ch_tuple *in, ch_tuple **out)
{
    int64_t    x = *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(in, 0), 0));
    float     *block = calloc(1, BYTES);
    ch_tensor *t = NULL;
    ch_status  rc;

    (void)arg;
    count(1);
    block[0] = (float)x;
    rc = ch_tensor_wrap(CH_F32, ch_shape_of(BYTES / 4), block, released, block, &t);
    if (rc == CH_OK)
        rc = ch_tuple_of(1, &t, out);
    ch_tensor_unref(t);
    return rc;
}

static ch_dataset *blocks(void)
{
    const ch_tensor_spec spec = {.dtype = CH_F32, .shape = ch_shape_of(BYTES / 4)};

    return ch_dataset_map_call(ch_dataset_range(0, N, 1), make_block, NULL, 1, &spec,
                               &(ch_map_options){.parallel = 3});
}

static ch_dataset *within(ch_dataset *d, int64_t bytes)
{
    return ch_dataset_with_options(d,
                                   &(ch_dataset_options){.threads = 3, .memory_bytes = bytes});
}

/* Waits until more than `n` elements exist at the same time, or until a time limit. */
static bool comes_to_more_than(int n)
{
    struct timespec until;
    bool            is_more;
    int             rc = 0;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 60000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&lock);
    while (most_live <= n && rc == 0)
        rc = pthread_cond_timedwait(&changed, &lock, &until);
    is_more = most_live > n;
    pthread_mutex_unlock(&lock);
    return is_more;
}

/* Reads all elements and checks their order. Waits before the first, so that threads prefetch
 * as far as they may. Returns true if more than `n` elements existed at the same time. */
static bool takes_more_than(ch_dataset *d, int n)
{
    ch_iterator *it = NULL;
    bool         is_more = false;

    n_live = most_live = 0;
    t_ok(ch_iterator_new(d, NULL, &it));
    for (int i = 0; i < N; i++) {
        ch_tuple *t = NULL;

        t_ok(ch_iterator_next(it, &t));
        assert_non_null(t);
        ch_tuple_unref(t);
        if (i < 3)
            is_more |= comes_to_more_than(n);
    }
    is_more |= most_live > n;
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    assert_int_equal(n_live, 0);
    return is_more;
}

static void prefetch_stays_within_the_budget(void **state)
{
    (void)state;
    assert_true(takes_more_than(ch_dataset_prefetch(blocks(), 64), 40));
    for (int n = 10; n <= 40; n += 10) /* n, and the element that the program holds */
        assert_false(takes_more_than(
            within(ch_dataset_prefetch(blocks(), 64), (int64_t)n * BYTES), n + 1));
}

static void prefetch_uses_most_of_the_budget(void **state)
{
    (void)state;
    assert_true(takes_more_than(
        within(ch_dataset_prefetch(blocks(), 64), (int64_t)40 * (BYTES + 400)), 20));
}

static void shuffle_buffer_counts_against_the_budget(void **state)
{
    ch_dataset *d = ch_dataset_prefetch(
        ch_dataset_shuffle(blocks(), 20, &(ch_shuffle_options){.seed = 1}), 64);

    (void)state;
    assert_false(takes_more_than(within(d, 40 * (int64_t)BYTES), 41));
}

/* ---- budgets that are too small ---- */

static void refused(ch_dataset *d, int64_t bytes, const char *stage)
{
    ch_iterator *it = NULL;
    ch_tuple    *t = NULL;
    ch_status    rc = CH_OK;

    d = within(d, bytes);
    t_ok(ch_iterator_new(d, NULL, &it));
    for (int i = 0; i < 2 * N && rc == CH_OK; i++) {
        rc = ch_iterator_next(it, &t);
        ch_tuple_unref(t);
        t = NULL;
    }
    t_refused(rc, CH_RESOURCE_EXHAUSTED, stage, "memory_bytes");
    ch_iterator_unref(it);
    ch_dataset_unref(d);
}

static void budget_error_names_the_stage_that_needs_more(void **state)
{
    (void)state;
    refused(ch_dataset_shuffle(blocks(), 100, NULL), 50 * (int64_t)BYTES, "shuffle");
    refused(ch_dataset_repeat(ch_dataset_cache(blocks(), NULL), 2), 50 * (int64_t)BYTES,
            "cache");
    refused(ch_dataset_batch(blocks(), 50, NULL), 50 * (int64_t)BYTES, "batch");
    refused(ch_dataset_prefetch(blocks(), 2), BYTES / 2, "map");
    assert_null(within(blocks(), -1));
    assert_non_null(strstr(ch_error_message(), "memory_bytes is -1"));
}

/* ---- the elements stay the same ---- */

static ch_dataset *rows_of(ch_dataset *element, void *arg)
{
    (void)arg;
    return ch_dataset_unbatch(element);
}

static ch_dataset *mixture(void)
{
    ch_dataset *d = ch_dataset_interleave(
        ch_dataset_batch(ch_dataset_range(0, 500, 1), 20, NULL), rows_of, NULL, NULL);

    d = ch_dataset_shuffle(ch_dataset_cache(d, NULL), 30, NULL);
    d = ch_dataset_zip(
        2, (ch_dataset *[]){d, ch_dataset_prefetch(ch_dataset_range(0, 900, 1), 9)});
    return ch_dataset_repeat(ch_dataset_batch(d, 7, NULL), 2);
}

/* With any budget the elements are the same, or there is an error that the budget is too small.
 * A position that was saved without a budget is restored. */
static void pipeline_gives_the_same_elements_or_an_error_with_any_budget(void **state)
{
    static t_given want, got;
    int            n_whole = 0, n_refused = 0;

    (void)state;
    for (int64_t bytes = 0; bytes < 1 << 20; bytes = bytes * 3 / 2 + 500) {
        ch_dataset  *d = within(mixture(), bytes);
        ch_iterator *it = NULL;
        t_given     *g = bytes == 0 ? &want : &got;
        void        *place = NULL;
        size_t       n = 0;

        memset(g, 0, sizeof(*g));
        t_ok(ch_iterator_new(d, NULL, &it));
        t_take(it, 40, g);
        t_ok(ch_iterator_save(it, &place, &n));
        if (ch_iterator_restore(it, place, n) == CH_OK)
            t_take(it, -1, g);
        else
            t_add(g, "!%s",
                  strstr(ch_error_message(), "memory_bytes") ? "RESOURCE_EXHAUSTED" : "");
        ch_bytes_free(place);
        ch_iterator_unref(it);
        ch_dataset_unref(d);
        if (bytes > 0 && strcmp(got.text, want.text) == 0)
            n_whole++;
        else if (bytes > 0 && strstr(got.text, "!RESOURCE_EXHAUSTED") != NULL)
            n_refused++;
        else
            assert_int_equal(bytes, 0);
    }
    assert_true(n_whole > 0 && n_refused > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefetch_stays_within_the_budget),
        cmocka_unit_test(prefetch_uses_most_of_the_budget),
        cmocka_unit_test(shuffle_buffer_counts_against_the_budget),
        cmocka_unit_test(budget_error_names_the_stage_that_needs_more),
        cmocka_unit_test(pipeline_gives_the_same_elements_or_an_error_with_any_budget),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

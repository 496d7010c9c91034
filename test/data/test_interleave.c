/* test/data/test_interleave.c -- interleave, in turn or without order, loses and repeats no
 * element.
 *
 * The model is a list of lists. T_CASES is the number of cases; T_SEED selects them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "pipeline.h"
#include "random.h"

enum { BODIES = 12, MOST = 8, STRIDE = 1000 };

/* ---- bodies: the numbers STRIDE * b, STRIDE * b + 1 ...; the input is their count ---- */

static ch_status numbers_of(void *arg, ch_tuple *in, ch_tuple **out)
{
    int64_t    x = *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(in, 0), 0));
    int64_t    n = x % STRIDE, data[MOST];
    ch_tensor *t = NULL;
    ch_status  rc;

    (void)arg;
    for (int64_t i = 0; i < n; i++)
        data[i] = x - n + i;
    rc = ch_tensor_copy_of(CH_I64, ch_shape_of(n), data, &t);
    if (rc == CH_OK)
        rc = ch_tuple_of(1, &t, out);
    ch_tensor_unref(t);
    return rc;
}

/* Returns after a varying time. */
static ch_status dawdle(void *arg, ch_tuple *in, ch_tuple **out)
{
    int64_t x = *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(in, 0), 0));

    (void)arg;
    for (volatile int i = 0; i < (int)(x * 2654435761 % 16) * 500; i++)
        ;
    *out = ch_tuple_ref(in);
    return CH_OK;
}

static ch_dataset *body(ch_dataset *element, void *arg)
{
    const ch_tensor_spec some = {.dtype = CH_I64, .shape = ch_shape_of(-1)};
    const ch_tensor_spec one = {.dtype = CH_I64};

    (void)arg;
    return ch_dataset_map_call(
        ch_dataset_unbatch(ch_dataset_map_call(element, numbers_of, NULL, 1, &some, NULL)),
        dawdle, NULL, 1, &one, NULL);
}

static ch_dataset *interleaved(int n, const int64_t *size, const ch_interleave_options *opt,
                               int threads)
{
    ch_tensor  *t = NULL;
    ch_dataset *d;

    t_ok(ch_tensor_new(CH_I64, ch_shape_of(n), &t));
    for (int b = 0; b < n; b++)
        ((int64_t *)ch_tensor_data_mut(t))[b] = STRIDE * b + size[b];
    d = ch_dataset_interleave(ch_dataset_slices(1, &t, NULL), body, NULL, opt);
    ch_tensor_unref(t);
    return ch_dataset_with_options(d, &(ch_dataset_options){.threads = threads});
}

/* ---- the model ---- */

/* Models the order in turn: `cycle` slots, each with an open body. */
static int model(int n, const int64_t *size, int cycle, int block, int64_t *out)
{
    int  place[BODIES], given[BODIES] = {0}, next = 0, at = 0, total = 0, left = n;
    bool is_open[BODIES] = {false};

    for (; left > 0; at = (at + 1) % cycle) {
        if (!is_open[at] && next < n) {
            is_open[at] = true;
            place[at] = next++;
        }
        for (int i = 0; is_open[at] && i < block; i++) {
            int b = place[at];

            if (given[b] == size[b]) {
                is_open[at] = false;
                left--;
            } else {
                out[total++] = STRIDE * b + given[b]++;
            }
        }
    }
    return total;
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? -1 : x > y;
}

/* Reads up to `most` more elements. */
static int take(ch_iterator *it, int most, int64_t *out)
{
    int n = 0;

    for (; n < most; n++) {
        ch_tuple *t = NULL;

        t_ok(ch_iterator_next(it, &t));
        if (t == NULL)
            break;
        out[n] = *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(t, 0), 0));
        ch_tuple_unref(t);
    }
    return n;
}

/* Checks that the elements of each body are in order. */
static void check_bodies(int n, const int64_t *got, int total)
{
    int64_t last[BODIES];

    for (int b = 0; b < n; b++)
        last[b] = -1;
    for (int i = 0; i < total; i++) {
        assert_true(got[i] > last[got[i] / STRIDE]);
        last[got[i] / STRIDE] = got[i];
    }
}

/* Saves a position and restores it in another iterator. */
static void one_case(uint64_t number)
{
    dice                  d = {number};
    int                   n = (int)roll(&d, BODIES), total, n_got, cut;
    int                   threads = (int)roll(&d, 5) - 1;
    int64_t               size[BODIES], want[BODIES * MOST], got[BODIES * MOST + 1];
    ch_interleave_options opt = {.cycle = 1 + (int)roll(&d, 6),
                                 .block = 1 + (int)roll(&d, 4),
                                 .unordered = roll(&d, 4) > 0};
    ch_dataset           *x;
    ch_iterator          *it = NULL, *other = NULL;
    void                 *bytes = NULL;
    size_t                n_bytes = 0;

    for (int b = 0; b < n; b++)
        size[b] = (int64_t)roll(&d, MOST);
    total = model(n, size, opt.cycle, opt.block, want);
    cut = (int)roll(&d, (uint64_t)total + 2);
    x = interleaved(n, size, &opt, threads);
    t_ok(ch_iterator_new(x, NULL, &it));
    n_got = take(it, cut, got);
    t_ok(ch_iterator_save(it, &bytes, &n_bytes));
    ch_iterator_unref(it);
    t_ok(ch_iterator_new(x, NULL, &other));
    t_ok(ch_iterator_restore(other, bytes, n_bytes));
    n_got += take(other, BODIES * MOST + 1 - n_got, got + n_got);
    ch_iterator_unref(other);
    ch_bytes_free(bytes);
    ch_dataset_unref(x);
    if (n_got == total)
        check_bodies(n, got, total);
    if (opt.unordered)
        qsort(want, (size_t)total, sizeof(want[0]), ascending);
    if (opt.unordered)
        qsort(got, (size_t)n_got, sizeof(got[0]), ascending);
    if (n_got != total || memcmp(got, want, (size_t)total * sizeof(want[0])) != 0)
        fail_msg("case %llu: %d elements, want %d, or others; cycle %d, block %d, cut at %d",
                 (unsigned long long)number, n_got, total, opt.cycle, opt.block, cut);
}

static void interleave_gives_each_element_once(void **state)
{
    int      n = getenv("T_CASES") != NULL ? atoi(getenv("T_CASES")) : 300;
    uint64_t first = getenv("T_SEED") != NULL ? strtoull(getenv("T_SEED"), NULL, 10) : 1;

    (void)state;
    for (int i = 0; i < n; i++)
        one_case(first * 1000003 + (uint64_t)i);
}

/* ---- without order ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t  changed = PTHREAD_COND_INITIALIZER;
static int             n_others; /* elements of other bodies that were read */

/* Waits until four of them were read, at most a tenth of a second. */
static void wait_for_others(void)
{
    struct timespec until;
    int             rc = 0;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 100000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&lock);
    while (n_others < 4 && rc == 0)
        rc = pthread_cond_timedwait(&changed, &lock, &until);
    pthread_mutex_unlock(&lock);
}

static void tell_of(int64_t x)
{
    pthread_mutex_lock(&lock);
    n_others += x >= STRIDE;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static ch_status wait_long(void *arg, ch_tuple *in, ch_tuple **out)
{
    int64_t x = *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(in, 0), 0));

    (void)arg;
    if (x < STRIDE)
        wait_for_others();
    *out = ch_tuple_ref(in);
    return CH_OK;
}

static ch_dataset *slow_body(ch_dataset *element, void *arg)
{
    const ch_tensor_spec some = {.dtype = CH_I64, .shape = ch_shape_of(-1)};
    const ch_tensor_spec one = {.dtype = CH_I64};

    (void)arg;
    return ch_dataset_map_call(
        ch_dataset_unbatch(ch_dataset_map_call(element, numbers_of, NULL, 1, &some, NULL)),
        wait_long, NULL, 1, &one, &(ch_map_options){.parallel = 2});
}

/* Returns the number of first elements that belong to the first body, which waits before each
 * element. */
static int slow_ones(bool unordered)
{
    const int64_t size[] = {3, 7};
    int64_t       got[11];
    int           slow = 0;
    ch_tensor    *t = NULL;
    ch_iterator  *it = NULL;
    ch_dataset   *d;

    t_ok(ch_tensor_copy_of(CH_I64, ch_shape_of(2), (int64_t[]){size[0], STRIDE + size[1]}, &t));
    d = ch_dataset_interleave(ch_dataset_slices(1, &t, NULL), slow_body, NULL,
                              &(ch_interleave_options){.cycle = 2});
    ch_tensor_unref(t);
    d = ch_dataset_with_options(d, &(ch_dataset_options){.threads = 3, .unordered = unordered});
    t_ok(ch_iterator_new(d, NULL, &it));
    n_others = 0;
    for (int i = 0; i < 10; i++) {
        assert_int_equal(take(it, 1, &got[i]), 1);
        tell_of(got[i]);
    }
    assert_int_equal(take(it, 1, &got[10]), 0);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    for (int i = 0; i < 6; i++)
        slow += got[i] < STRIDE;
    return slow;
}

static void unordered_interleave_does_not_wait_for_a_slow_input(void **state)
{
    (void)state;
    assert_int_equal(slow_ones(false), 3);
    assert_true(slow_ones(true) < 3);
}

/* ---- over workers ---- */

static void distribute_rejects_an_unordered_interleave(void **state)
{
    const int64_t size[] = {2, 2};
    ch_dataset   *d = interleaved(2, size, &(ch_interleave_options){.unordered = true}, 0);
    ch_dataset   *mine = NULL;

    (void)state;
    d = ch_dataset_batch(d, 2, NULL);
    t_refused(ch_dataset_distribute(d, &(ch_input_context){.n_pipelines = 2}, &mine),
              CH_INVALID_ARGUMENT, "same order", "unordered");
    ch_dataset_unref(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interleave_gives_each_element_once),
        cmocka_unit_test(unordered_interleave_does_not_wait_for_a_slow_input),
        cmocka_unit_test(distribute_rejects_an_unordered_interleave),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test/data/test_profile.c -- profiles attribute CPU time to stages, also on a busy machine.
 *
 * The functions of the pipelines work for a known time, by the clocks of their threads.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "../file/folder.h"
#include "base/thread.h"
#include "pipeline.h"

enum { N = 400, US = 1000 /* ns */ };

static int64_t clock_ns(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return t.tv_sec * (int64_t)1000000000 + t.tv_nsec;
}

static void work(int64_t ns)
{
    int64_t until = clock_ns(CLOCK_THREAD_CPUTIME_ID) + ns;

    while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < until)
        ;
}

static ch_status works(void *arg, ch_tuple *in, ch_tuple **out)
{
    work(*(const int64_t *)arg);
    *out = ch_tuple_ref(in);
    return CH_OK;
}

/* Waits for a condition that is never signalled, until a time limit. */
static ch_status waits(void *arg, ch_tuple *in, ch_tuple **out)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t  never = PTHREAD_COND_INITIALIZER;
    struct timespec        until;

    (void)arg;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 300 * US;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&lock);
    while (pthread_cond_timedwait(&never, &lock, &until) == 0)
        ;
    pthread_mutex_unlock(&lock);
    *out = ch_tuple_ref(in);
    return CH_OK;
}

/* Sanitizers raise the cost of the stages themselves, so the work of the functions is raised
 * too. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { DEAR = 8 };
#else
enum { DEAR = 1 };
#endif
static int64_t long_ns = 300 * US * DEAR, short_ns = 100 * US * DEAR;

static ch_dataset *that(ch_dataset *d, ch_map_fn fn, int64_t *ns)
{
    const ch_tensor_spec one = {.dtype = CH_I64};

    return ch_dataset_map_call(d, fn, ns, 1, &one, NULL);
}

/* ---- load from other threads ---- */

static atomic_bool is_over;

static void *burn(void *arg)
{
    (void)arg;
    while (!atomic_load(&is_over))
        work(50 * US);
    return NULL;
}

/* ---- profiles ---- */

/* Runs a dataset of `many` elements. Returns the number of stages in `p`, at most 8. Sets
 * *cpu_ns to the CPU time of the process. */
static int profile_many(ch_dataset *d, int threads, int64_t many, ch_stage_profile *p,
                        int64_t *cpu_ns)
{
    ch_iterator *it = NULL;
    ch_tuple    *t = NULL;
    int64_t      from = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    char         text[2000];
    int          n;

    d = ch_dataset_with_options(d, &(ch_dataset_options){.threads = threads});
    t_ok(ch_iterator_new(d, NULL, &it));
    for (t_ok(ch_iterator_next(it, &t)); t != NULL; many--) {
        ch_tuple_unref(t);
        t_ok(ch_iterator_next(it, &t));
    }
    assert_int_equal(many, 0);
    n = ch_iterator_profile(it, p, 8); /* before the clock is read, so that no work is later */
    *cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - from;
    assert_true(ch_iterator_print_profile(it, text, sizeof(text)) < (int)sizeof(text));
    assert_non_null(strstr(text, "100.0%"));
    assert_non_null(strstr(text, "all; the program"));
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    return n;
}

static int profile(ch_dataset *d, int threads, ch_stage_profile *p, int64_t *cpu_ns)
{
    return profile_many(d, threads, N, p, cpu_ns);
}

static int64_t sum_of(const ch_stage_profile *p, int n)
{
    int64_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += p[i].busy_ns;
    return sum;
}

/* Allows little less, and more for the other work of the stage. */
static void assert_about(int64_t ns, int64_t want)
{
    if (ns < want * 9 / 10 || ns > want * 16 / 10)
        fail_msg("%lld us, want about %lld", (long long)ns / US, (long long)want / US);
}

static void profile_gives_busy_time_to_the_stage_that_spends_it(void **state)
{
    (void)state;
    for (int threads = CH_OFF; threads <= 2; threads++) {
        ch_stage_profile p[8];
        int64_t          cpu_ns;
        int              n;

        if (threads == 0)
            continue;
        n = profile(
            that(that(ch_dataset_shuffle(ch_dataset_range(0, N, 1), 9, NULL), works, &long_ns),
                 works, &short_ns),
            threads, p, &cpu_ns);
        assert_int_equal(n, 5);
        assert_string_equal(p[1].stage, "map");
        assert_about(p[1].busy_ns, N * short_ns);
        assert_about(p[2].busy_ns, N * long_ns);
        assert_true(sum_of(p, n) <= cpu_ns);
        assert_true(sum_of(p, n) >= cpu_ns / 2);
    }
}

static void profile_excludes_other_threads_and_waiting(void **state)
{
    ch_stage_profile p[8];
    int64_t          cpu_ns;
    pthread_t        thread[3];

    (void)state;
    atomic_store(&is_over, false);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, burn, NULL), 0);
    profile(that(that(ch_dataset_range(0, N, 1), waits, NULL), works, &short_ns), 2, p,
            &cpu_ns);
    atomic_store(&is_over, true);
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
    assert_about(p[1].busy_ns, N * short_ns);
    assert_true(p[2].busy_ns < N * short_ns / 2); /* waited three times as long */
}

/* Reading the clock takes longer than such an element, so that few elements are timed. The time
 * of each stage is then an estimate, and may be 0 for a short stage. The test checks the
 * sum. */
static void profile_of_tiny_elements_sums_to_no_more_than_cpu_time(void **state)
{
    (void)state;
    for (int threads = CH_OFF; threads <= 2; threads += 3) {
        ch_stage_profile p[8];
        int64_t          cpu_ns;
        int              n;

        n = profile_many(ch_dataset_batch(ch_dataset_range(0, 1000000, 1), 1000, NULL), threads,
                         1000, p, &cpu_ns);
        assert_int_equal(n, 3);
        assert_string_equal(p[1].stage, "batch");
        assert_true(sum_of(p, n) <= cpu_ns);
        assert_true(sum_of(p, n) >= cpu_ns / 4);
    }
}

/* ---- rows that each take less time than reading the clock ---- */

enum { ROWS = 20000, BATCH = 100 };

static ch_dataset *rows(void)
{
    const char *path = t_path("rows.csv");
    FILE       *f = fopen(path, "w");

    assert_non_null(f);
    for (int i = 0; i < ROWS; i++)
        fprintf(f, "%d\n", i);
    fclose(f);
    return ch_dataset_csv(ch_dataset_file_list(1, &path), 1,
                          (ch_csv_column[]){{.dtype = CH_I64}},
                          &(ch_csv_options){.no_header = true});
}

static void profile_reads_the_clock_for_few_rows_when_threads_are_off(void **state)
{
    ch_stage_profile p[8];
    int64_t          cpu_ns, reads = ch__clock_reads();

    (void)state;
    profile_many(ch_dataset_batch(rows(), BATCH, NULL), CH_OFF, ROWS / BATCH, p, &cpu_ns);
    assert_in_range(ch__clock_reads() - reads, 1, ROWS / 2);
}

/* If few calls were timed, each would count for many, and the sum would depend on chance. */
static void profile_times_every_long_call_when_threads_are_off(void **state)
{
    ch_stage_profile p[8];
    int64_t          cpu_ns, reads = ch__clock_reads();

    (void)state;
    profile(that(ch_dataset_range(0, N, 1), works, &long_ns), CH_OFF, p, &cpu_ns);
    assert_true(ch__clock_reads() - reads > 2 * 3 * N); /* by options, map and the iterator */
}

/* By chance, a timed call that counts for many may be long. So the test fails only if the stage
 * has too much time in every trial. */
static void profile_of_a_stage_that_passes_rows_on_is_small(void **state)
{
    ch_stage_profile p[8];
    int64_t          cpu_ns;
    bool             is_little = false;

    (void)state;
    for (int i = 0; i < 5 && !is_little; i++) {
        profile_many(ch_dataset_skip(rows(), 0), CH_OFF, ROWS, p, &cpu_ns);
        assert_string_equal(p[1].stage, "skip");
        assert_string_equal(p[2].stage, "csv");
        is_little = p[1].busy_ns < p[2].busy_ns / 2;
    }
    assert_true(is_little);
}

/* ---- bodies ---- */

static ch_dataset *body(ch_dataset *element, void *arg)
{
    (void)arg;
    return that(ch_dataset_unbatch(element), works, &short_ns);
}

static void profile_gives_work_in_bodies_to_the_stage_that_runs_them(void **state)
{
    (void)state;
    for (int threads = CH_OFF; threads <= 2; threads += 3) {
        ch_stage_profile p[8];
        int64_t          cpu_ns;

        profile(ch_dataset_interleave(ch_dataset_batch(ch_dataset_range(0, N, 1), 20, NULL),
                                      body, NULL, NULL),
                threads, p, &cpu_ns);
        assert_string_equal(p[1].stage, "interleave");
        assert_about(p[1].busy_ns, N * short_ns);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(profile_gives_busy_time_to_the_stage_that_spends_it),
        cmocka_unit_test(profile_excludes_other_threads_and_waiting),
        cmocka_unit_test(profile_of_tiny_elements_sums_to_no_more_than_cpu_time),
        cmocka_unit_test(profile_reads_the_clock_for_few_rows_when_threads_are_off),
        cmocka_unit_test(profile_times_every_long_call_when_threads_are_off),
        cmocka_unit_test(profile_of_a_stage_that_passes_rows_on_is_small),
        cmocka_unit_test(profile_gives_work_in_bodies_to_the_stage_that_runs_them),
    };

    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}

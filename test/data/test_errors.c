/* test/data/test_errors.c -- an error of a function is reported once, in the position of its
 * element.
 *
 * The tests let a function fail for a single element, in many pipelines, and check the elements
 * around it, saved positions, zips, batches, and the message of the error. Others end iterators
 * while their threads work.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/thread.h"
#include "pipeline.h"

enum { N = 40, BAD = 17 };

static const ch_tensor_spec one_int = {.dtype = CH_I64};

static int64_t int_of(ch_tuple *t)
{
    return *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(t, 0), 0));
}

static ch_status give(int64_t x, ch_tuple **out)
{
    ch_tensor *t = NULL;
    ch_status  rc = ch_tensor_copy_of(CH_I64, ch_shape_scalar(), &x, &t);

    if (rc == CH_OK)
        rc = ch_tuple_of(1, &t, out);
    ch_tensor_unref(t);
    return rc;
}

/* ---- functions that fail for the element BAD, and return all others unchanged ---- */

static ch_status bad_map(void *arg, ch_tuple *in, ch_tuple **out)
{
    (void)arg;
    if (int_of(in) == BAD)
        return ch__fail(CH_ABORTED, "element %d is bad", BAD);
    return give(int_of(in), out);
}

/* Fails with the code that stages use for the end of the data. */
static ch_status ending_map(void *arg, ch_tuple *in, ch_tuple **out)
{
    (void)arg;
    if (int_of(in) == BAD)
        return ch__fail(CH_OUT_OF_RANGE, "element %d is bad", BAD);
    return give(int_of(in), out);
}

static ch_status bad_filter(void *arg, ch_tuple *in, bool *keep)
{
    (void)arg;
    *keep = true;
    return int_of(in) == BAD ? ch__fail(CH_ABORTED, "element %d is bad", BAD) : CH_OK;
}

static ch_status yes(void *arg, ch_tuple *in, bool *keep)
{
    (void)arg;
    (void)in;
    *keep = true;
    return CH_OK;
}

static ch_status bad_next(void *arg, ch_tuple **out)
{
    int64_t x = (*(int64_t *)arg)++;

    if (x == BAD)
        return ch__fail(CH_ABORTED, "element %d is bad", BAD);
    return x < N ? give(x, out) : CH_OK;
}

/* A step that gathers row x of a table. For BAD, it gathers a row beyond the table, which is an
 * error. */
static void bad_step(ch_step *s, void *arg)
{
    float      data[2 * N];
    ch_node   *id = ch_cast(ch_step_in(s, 0), CH_I64), *at;
    ch_tensor *t = NULL;

    (void)arg;
    for (int i = 0; i < 2 * N; i++)
        data[i] = (float)i;
    t_ok(ch_tensor_copy_of(CH_F32, ch_shape_of(2 * N), data, &t));
    /* for BAD: far beyond the table */
    at = ch_select(ch_equal(id, ch_number(s, BAD)), ch_cast(ch_number(s, 1000000), CH_I64), id);
    ch_step_out(s, NULL, ch_cast(ch_gather(ch_constant(s, t), ch_cast(at, CH_I64), 0), CH_I64));
    ch_tensor_unref(t);
}

/* ---- pipelines with such a function ---- */

static ch_dataset *range(void)
{
    return ch_dataset_range(0, N, 1);
}

static ch_dataset *p_call(bool unordered)
{
    return ch_dataset_map_call(range(), bad_map, NULL, 1, &one_int,
                               &(ch_map_options){.unordered = unordered});
}

static ch_dataset *p_parallel(bool unordered)
{
    return ch_dataset_map_call(range(), bad_map, NULL, 1, &one_int,
                               &(ch_map_options){.parallel = 4, .unordered = unordered});
}

static ch_dataset *p_step(bool unordered)
{
    return ch_dataset_map(range(), bad_step, NULL, &(ch_map_options){.unordered = unordered});
}

static ch_dataset *p_filter(bool unordered)
{
    return ch_dataset_with_options(ch_dataset_filter_call(range(), bad_filter, NULL),
                                   &(ch_dataset_options){.unordered = unordered});
}

static ch_dataset *p_take_while(bool unordered)
{
    (void)unordered;
    return ch_dataset_take_while_call(
        ch_dataset_map_call(range(), ending_map, NULL, 1, &one_int, NULL), yes, NULL);
}

static ch_dataset *p_prefetched(bool unordered)
{
    return ch_dataset_prefetch(ch_dataset_prefetch(p_parallel(unordered), 3), 2);
}

static ch_dataset *one_each(ch_dataset *element, void *arg)
{
    (void)arg;
    return ch_dataset_map_call(ch_dataset_unbatch(element), bad_map, NULL, 1, &one_int, NULL);
}

static ch_dataset *p_interleaved(bool unordered)
{
    (void)unordered;
    return ch_dataset_interleave(ch_dataset_batch(range(), 100, NULL), one_each, NULL, NULL);
}

static ch_dataset *(*const pipelines[])(bool unordered) = {
    p_call, p_parallel, p_step, p_filter, p_take_while, p_prefetched, p_interleaved,
};

enum { PIPELINES = sizeof(pipelines) / sizeof(pipelines[0]) };

static ch_dataset *with_threads(ch_dataset *d, int threads)
{
    return ch_dataset_with_options(d, &(ch_dataset_options){.threads = threads});
}

/* The elements that were read, and the position of the error among them. */
typedef struct seen {
    int  count[N]; /* of each value */
    int  n, n_errors, error_at;
    char text[256];
} seen;

static void look(ch_iterator *it, seen *s)
{
    memset(s, 0, sizeof(*s));
    for (;;) {
        ch_tuple *t = NULL;
        ch_status rc = ch_iterator_next(it, &t);

        if (rc == CH_FAILED_PRECONDITION || (rc == CH_OK && t == NULL))
            return;
        if (rc != CH_OK) {
            s->error_at = s->n;
            snprintf(s->text, sizeof(s->text), "%s", ch_error_message());
            assert_true(s->n_errors++ < N);
            continue;
        }
        assert_in_range(int_of(t), 0, N - 1);
        s->count[int_of(t)]++;
        s->n++;
        ch_tuple_unref(t);
    }
}

static void iterator_reports_an_error_once_in_order_and_continues_with_go_on(void **state)
{
    (void)state;
    for (int p = 0; p < PIPELINES; p++)
        for (int k = 0; k < 12; k++) {
            static const int threads[] = {CH_OFF, 1, 2, 3, 5, 8};
            bool             unordered = k % 2;
            ch_dataset      *d = with_threads(pipelines[p](unordered), threads[k / 2]);
            ch_iterator     *it = NULL;
            seen             s;

            t_ok(ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &it));
            look(it, &s);
            if (s.n_errors != 1 || s.n != N - 1 || s.count[BAD] != 0 ||
                strstr(s.text, "element 17") == NULL || (!unordered && s.error_at != BAD))
                fail_msg("pipeline %d, %d threads, %s: %d elements, %d errors at %d: %s", p,
                         threads[k / 2], unordered ? "unordered" : "ordered", s.n, s.n_errors,
                         s.error_at, s.text);
            for (int i = 0; i < N; i++)
                assert_int_equal(s.count[i], i != BAD);
            t_ok(ch_iterator_restart(it)); /* again once in each pass */
            look(it, &s);
            assert_int_equal(s.n_errors, 1);
            assert_int_equal(s.n, N - 1);
            ch_iterator_unref(it);
            ch_dataset_unref(d);
        }
}

static void iterator_ends_at_an_error_without_go_on(void **state)
{
    (void)state;
    for (int p = 0; p < PIPELINES; p++)
        for (int threads = CH_OFF; threads < 4; threads++) {
            ch_dataset  *d = with_threads(pipelines[p](false), threads);
            ch_iterator *it = NULL;
            ch_tuple    *t = NULL;
            seen         s;

            t_ok(ch_iterator_new(d, NULL, &it));
            look(it, &s);
            assert_int_equal(s.n_errors, 1);
            assert_int_equal(s.n, BAD);
            t_refused(ch_iterator_next(it, &t), CH_FAILED_PRECONDITION, "go_on", "restart");
            t_ok(ch_iterator_restart(it));
            look(it, &s);
            assert_int_equal(s.n, BAD);
            ch_iterator_unref(it);
            ch_dataset_unref(d);
        }
}

static void generator_continues_after_it_failed(void **state)
{
    const ch_generator g = {.spec = &one_int, .n_spec = 1, .next = bad_next};

    (void)state;
    for (int threads = CH_OFF; threads < 4; threads++) {
        int64_t      at = 0;
        ch_dataset  *d = with_threads(ch_dataset_generator(&g, NULL, NULL, &at), threads);
        ch_iterator *it = NULL;
        seen         s;

        t_ok(ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &it));
        look(it, &s);
        assert_int_equal(s.n_errors, 1);
        assert_int_equal(s.error_at, BAD);
        assert_int_equal(s.n, N - 1);
        ch_iterator_unref(it);
        ch_dataset_unref(d);
    }
}

/* A saved position contains errors that wait in buffers. A cache does not fail again for
 * these. */
static void iterator_restores_a_position_before_or_after_an_error(void **state)
{
    (void)state;
    for (int p = 0; p < PIPELINES; p++)
        for (int n = 0; n < N + 2; n += 3)
            for (int cached = 0; cached < 2; cached++) {
                ch_dataset  *d = pipelines[p](false);
                ch_iterator *it = NULL, *other = NULL;
                void        *bytes = NULL;
                size_t       size = 0;
                t_given      head, rest;

                memset(&head, 0, sizeof(head));
                memset(&rest, 0, sizeof(rest));
                d = with_threads(cached ? ch_dataset_cache(d, NULL) : d, 2);
                t_ok(ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &it));
                t_take(it, n, &head);
                t_ok(ch_iterator_save(it, &bytes, &size));
                t_take(it, -1, &head);
                t_ok(ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &other));
                t_ok(ch_iterator_restore(other, bytes, size));
                t_take(other, -1, &rest);
                assert_int_equal(head.n, N);
                assert_int_equal(rest.n, N - (n < N ? n : N));
                assert_string_equal(rest.text, head.text + head.used - rest.used);
                ch_bytes_free(bytes);
                ch_iterator_unref(it);
                ch_iterator_unref(other);
                ch_dataset_unref(d);
            }
}

/* ---- zips ---- */

/* Fails for the elements whose bits are set in the mask. */
static ch_status map_but(void *arg, ch_tuple *in, ch_tuple **out)
{
    if ((*(const unsigned *)arg >> int_of(in) & 1) != 0)
        return ch__fail(CH_ABORTED, "element %d is bad", (int)int_of(in));
    return give(int_of(in), out);
}

static ch_dataset *all_but(int n, unsigned *bad)
{
    return ch_dataset_map_call(ch_dataset_range(0, n, 1), map_but, bad, 1, &one_int, NULL);
}

/* Computes the zip of three such inputs: at each position an element of all inputs, or a single
 * error. */
static void zip_model(unsigned bad, int n, t_given *g)
{
    memset(g, 0, sizeof(*g));
    for (int i = 0; i < n; i++) {
        t_add(g, g->n++ > 0 ? " | " : "");
        if ((bad >> i & 1) != 0)
            t_add(g, "!ABORTED");
        else
            t_add(g, "%d, %d, %d", i, i, i);
    }
}

static void zip_drops_the_element_of_all_inputs_when_one_input_fails(void **state)
{
    enum { LEN = 12 };
    static unsigned masks[][3] = {{0x8, 0, 0},     {0, 0x8, 0},         {0, 0, 0x8},
                                  {0x1, 0, 0x800}, {0x18, 0x30, 0x210}, {0, 0xfff, 0}};
    static t_given  want, got;

    (void)state;
    for (size_t k = 0; k < sizeof(masks) / sizeof(masks[0]); k++)
        for (int n = 0; n <= LEN + 1; n++) {
            unsigned    *bad = masks[k];
            ch_dataset  *d = ch_dataset_zip(3, (ch_dataset *[]){all_but(LEN, &bad[0]),
                                                                all_but(LEN + 2, &bad[1]),
                                                                all_but(LEN + 1, &bad[2])});
            ch_iterator *it = NULL, *other = NULL;
            void        *bytes = NULL;
            size_t       size = 0;

            d = with_threads(d, n % 4 == 0 ? CH_OFF : n % 4);
            zip_model(bad[0] | bad[1] | bad[2], LEN, &want);
            memset(&got, 0, sizeof(got));
            t_ok(ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &it));
            t_ok(ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &other));
            t_take(it, n, &got);
            t_ok(ch_iterator_save(it, &bytes, &size));
            t_ok(ch_iterator_restore(other, bytes, size));
            t_take(other, -1, &got);
            assert_string_equal(got.text, want.text);
            memset(&got, 0, sizeof(got));
            t_ok(ch_iterator_restart(it));
            t_take(it, -1, &got);
            assert_string_equal(got.text, want.text);
            ch_bytes_free(bytes);
            ch_iterator_unref(it);
            ch_iterator_unref(other);
            ch_dataset_unref(d);
        }
}

static void zip_keeps_rows_and_labels_together_after_an_error(void **state)
{
    unsigned    bad = 1u << 3;
    ch_dataset *d =
        ch_dataset_zip(2, (ch_dataset *[]){all_but(6, &bad), ch_dataset_range(0, 6, 1)});

    (void)state;
    t_gives(ch_dataset_batch(d, 2, NULL), "0 1, 0 1 | !ABORTED | 2 4, 2 4 | 5, 5");
}

/* ---- batches ---- */

static ch_status always_bad(void *arg, ch_tuple *in, ch_tuple **out)
{
    (void)in;
    (void)out;
    atomic_fetch_add((atomic_int *)arg, 1);
    return ch__fail(CH_ABORTED, "no element is good");
}

static ch_dataset *batched(ch_dataset *d, int64_t size, bool padded)
{
    return padded ? ch_dataset_padded_batch(d, size, NULL) : ch_dataset_batch(d, size, NULL);
}

/* Also if the input is endless and no row is good. */
static void batch_reports_errors_at_once_instead_of_collecting_them(void **state)
{
    (void)state;
    for (int padded = 0; padded < 2; padded++)
        for (int threads = CH_OFF; threads < 4; threads++) {
            atomic_int   n = 0;
            ch_dataset  *d = ch_dataset_repeat(range(), CH_INFINITE);
            ch_iterator *it = NULL;
            ch_tuple    *t = NULL;

            d = batched(ch_dataset_map_call(d, always_bad, &n, 1, &one_int, NULL), 4, padded);
            d = with_threads(d, threads);
            t_ok(ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &it));
            for (int i = 0; i < 100; i++)
                t_refused(ch_iterator_next(it, &t), CH_ABORTED, "no element is good", "map");
            ch_iterator_unref(it);
            assert_true(n >= 100 && n < 100000);
            ch_dataset_unref(d);
        }
}

/* The error is reported before the batch that it interrupted. That batch is full. */
static void batch_is_filled_with_later_rows_after_an_error(void **state)
{
    static const char want[] =
        "0 1 2 3 4 5 6 7 | 8 9 10 11 12 13 14 15 | !ABORTED | 16 18 19 20 21 22 23 24 | "
        "25 26 27 28 29 30 31 32 | 33 34 35 36 37 38 39";

    (void)state;
    for (int padded = 0; padded < 2; padded++)
        for (int threads = CH_OFF; threads < 4; threads++)
            for (int n = 0; n < 6; n++) {
                ch_dataset  *d = batched(p_call(false), 8, padded), *few, *many;
                ch_iterator *it = NULL, *other = NULL;
                void        *bytes = NULL;
                size_t       size = 0;
                t_given      g;

                memset(&g, 0, sizeof(g));
                many = with_threads(ch_dataset_ref(d), threads);
                few = with_threads(d, threads == 0 ? CH_OFF : 0);
                t_ok(ch_iterator_new(many, &(ch_iterator_options){.go_on = true}, &it));
                t_take(it, n, &g);
                t_ok(ch_iterator_save(it, &bytes, &size));
                t_ok(ch_iterator_new(few, &(ch_iterator_options){.go_on = true}, &other));
                t_ok(ch_iterator_restore(other, bytes, size));
                t_take(other, -1, &g);
                assert_string_equal(g.text, want);
                t_ok(ch_iterator_restart(other)); /* no state of the last pass is left */
                memset(&g, 0, sizeof(g));
                t_take(other, 3, &g);
                t_ok(ch_iterator_restart(other));
                memset(&g, 0, sizeof(g));
                t_take(other, -1, &g);
                assert_string_equal(g.text, want);
                ch_bytes_free(bytes);
                ch_iterator_unref(it);
                ch_iterator_unref(other);
                ch_dataset_unref(many);
                ch_dataset_unref(few);
            }
}

/* ---- iterators that end while threads work ---- */

static atomic_int n_running, n_calls;

enum { NAP_MS = 10 };

/* Is fast at first, so that jobs become large, and then slow. */
static void nap(int64_t x)
{
    atomic_fetch_add(&n_calls, 1);
    if (x < 2000)
        return;
    atomic_fetch_add(&n_running, 1);
    poll(NULL, 0, NAP_MS);
    atomic_fetch_sub(&n_running, 1);
}

static ch_status slow_map(void *arg, ch_tuple *in, ch_tuple **out)
{
    (void)arg;
    nap(int_of(in));
    return give(int_of(in), out);
}

static ch_status slow_filter(void *arg, ch_tuple *in, bool *keep)
{
    (void)arg;
    nap(int_of(in));
    *keep = true;
    return CH_OK;
}

static ch_status slow_next(void *arg, ch_tuple **out)
{
    int64_t x = (*(int64_t *)arg)++;

    nap(x);
    return give(x, out);
}

static int64_t slow_at;

static ch_dataset *s_map(void)
{
    return ch_dataset_map_call(ch_dataset_range(0, 1000000, 1), slow_map, NULL, 1, &one_int,
                               &(ch_map_options){.parallel = 3});
}

static ch_dataset *s_one_at_a_time(void)
{
    return ch_dataset_map_call(ch_dataset_range(0, 1000000, 1), slow_map, NULL, 1, &one_int,
                               NULL);
}

static ch_dataset *s_unordered(void)
{
    return ch_dataset_map_call(ch_dataset_range(0, 1000000, 1), slow_map, NULL, 1, &one_int,
                               &(ch_map_options){.parallel = 3, .unordered = true});
}

static ch_dataset *s_filter(void)
{
    return ch_dataset_filter_call(ch_dataset_range(0, 1000000, 1), slow_filter, NULL);
}

static ch_dataset *s_generator(void)
{
    const ch_generator g = {.spec = &one_int, .n_spec = 1, .next = slow_next};

    slow_at = 0;
    return ch_dataset_generator(&g, NULL, NULL, &slow_at);
}

static ch_dataset *s_shuffled(void)
{
    return ch_dataset_batch(ch_dataset_shuffle(s_map(), 5000, NULL), 100, NULL);
}

static ch_dataset *slow_rows(ch_dataset *element, void *arg)
{
    (void)arg;
    return ch_dataset_map_call(ch_dataset_unbatch(element), slow_map, NULL, 1, &one_int, NULL);
}

static ch_dataset *s_interleaved(void)
{
    return ch_dataset_interleave(ch_dataset_batch(ch_dataset_range(0, 1000000, 1), 1000, NULL),
                                 slow_rows, NULL, &(ch_interleave_options){.cycle = 3});
}

static int n_threads(void)
{
    char  line[128];
    int   n = -1;
    FILE *f = fopen("/proc/self/status", "r");

    while (fgets(line, sizeof(line), f) != NULL)
        sscanf(line, "Threads: %d", &n);
    fclose(f);
    return n;
}

/* The release waits for calls in progress, and starts no other calls. */
static void iterator_unref_waits_only_for_calls_in_progress(void **state)
{
    ch_dataset *(*const make[])(void) = {s_map,       s_one_at_a_time, s_unordered,  s_filter,
                                         s_generator, s_shuffled,      s_interleaved};
    static const int n_taken[] = {800, 800, 800, 800, 800, 0, 10}; /* all of these are fast */
    int              before = n_threads();

    (void)state;
    for (size_t p = 0; p < sizeof(make) / sizeof(make[0]); p++) {
        ch_dataset  *d = with_threads(make[p](), 3);
        ch_iterator *it = NULL;
        ch_tuple    *t = NULL;
        int64_t      from, live = ch__mem_live();
        int          calls;

        t_ok(ch_iterator_new(d, NULL, &it));
        for (int i = 0; i < n_taken[p]; i++) {
            t_ok(ch_iterator_get_next(it, &t));
            ch_tuple_unref(t);
        }
        for (int i = 0; i < 30 && atomic_load(&n_running) == 0; i++)
            poll(NULL, 0, 1);
        calls = atomic_load(&n_calls);
        from = ch__now_ns();
        ch_iterator_unref(it);
        if (ch__now_ns() - from > 20 * NAP_MS * 1000000LL || atomic_load(&n_calls) - calls > 3)
            fail_msg("pipeline %zu: it took %lld ms and %d more calls", p,
                     (long long)((ch__now_ns() - from) / 1000000),
                     atomic_load(&n_calls) - calls);
        assert_int_equal(atomic_load(&n_running), 0);
        assert_int_equal(n_threads(), before);
        assert_in_range(ch__mem_live(), 0, live);
        ch_dataset_unref(d);
    }
}

/* ---- messages of functions ---- */

enum { TELLS = 1, SILENT = 4 };

/* Fails at TELLS with a reason and at SILENT with none. */
static ch_status fail_as_planned(int64_t x)
{
    if (x == TELLS)
        return ch_fail(CH_DATA_LOSS, "%d is told of", TELLS);
    return x == SILENT ? CH_UNAVAILABLE : CH_OK;
}

static ch_status planned_map(void *arg, ch_tuple *in, ch_tuple **out)
{
    ch_status rc = fail_as_planned(int_of(in));

    (void)arg;
    return rc == CH_OK ? give(int_of(in), out) : rc;
}

static ch_status planned_filter(void *arg, ch_tuple *in, bool *keep)
{
    (void)arg;
    *keep = true;
    return fail_as_planned(int_of(in));
}

static ch_status planned_next(void *arg, ch_tuple **out)
{
    int64_t   x = (*(int64_t *)arg)++;
    ch_status rc = fail_as_planned(x);

    return rc == CH_OK && x < N ? give(x, out) : rc;
}

static void check_words(ch_dataset *d, const char *told, const char *silent)
{
    ch_iterator *it = NULL;
    char         text[2][256] = {"", ""};
    int          n = 0;

    t_ok(ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &it));
    for (int i = 0; i < 8; i++) {
        ch_tuple *t = NULL;

        if (ch_iterator_next(it, &t) != CH_OK) {
            assert_in_range(n, 0, 1);
            snprintf(text[n++], sizeof(text[0]), "%s", ch_error_message());
        }
        ch_tuple_unref(t);
    }
    assert_string_equal(text[0], told);
    assert_string_equal(text[1], silent);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
}

static void error_of_a_function_without_message_shows_no_earlier_message(void **state)
{
    const ch_generator g = {.spec = &one_int, .n_spec = 1, .next = planned_next};

    (void)state;
    for (int threads = CH_OFF; threads < 3; threads++) {
        int64_t at = 0;

        check_words(
            with_threads(ch_dataset_map_call(range(), planned_map, NULL, 1, &one_int, NULL),
                         threads),
            "map, element 1: 1 is told of", "map, element 4: the peer cannot be reached");
        check_words(
            with_threads(ch_dataset_filter_call(range(), planned_filter, NULL), threads),
            "filter, element 1: 1 is told of", "filter, element 4: the peer cannot be reached");
        check_words(
            with_threads(ch_dataset_take_while_call(range(), planned_filter, NULL), threads),
            "take_while, element 1: 1 is told of",
            "take_while, element 4: the peer cannot be reached");
        check_words(with_threads(ch_dataset_generator(&g, NULL, NULL, &at), threads),
                    "generator: 1 is told of", "generator: the peer cannot be reached");
    }
}

static ch_status silent_make(void *arg, void **out)
{
    *out = NULL;
    return arg != NULL ? ch_fail(CH_NOT_FOUND, "no camera") : CH_NOT_FOUND;
}

static ch_dataset *no_dataset(const ch_input_context *context, void *arg)
{
    (void)context;
    if (arg != NULL)
        (void)ch_fail(CH_NOT_FOUND, "no camera");
    return NULL;
}

static void error_of_a_make_function_has_its_message_or_the_default(void **state)
{
    static int             says;
    const ch_generator     g = {.spec = &one_int, .n_spec = 1, .next = planned_next};
    const ch_input_context two = {.n_pipelines = 2, .pipeline = 1};

    (void)state;
    for (int k = 0; k < 2; k++) {
        void        *arg = k == 0 ? NULL : &says;
        const char  *words = k == 0 ? "no such thing" : "no camera";
        ch_dataset  *d = ch_dataset_generator(&g, silent_make, NULL, arg), *none = NULL;
        ch_iterator *it = NULL;
        ch_tuple    *t = NULL;
        ch_status    rc;

        (void)ch__fail(CH_INTERNAL, "stale");
        rc = ch_iterator_new(d, NULL, &it);
        if (rc == CH_OK)
            rc = ch_iterator_next(it, &t);
        assert_int_equal(rc, CH_NOT_FOUND);
        assert_non_null(strstr(ch_error_message(), words));
        assert_null(strstr(ch_error_message(), "stale"));
        ch_iterator_unref(it);
        ch_dataset_unref(d);
        (void)ch__fail(CH_INTERNAL, "stale");
        assert_int_not_equal(ch_dataset_from_function(no_dataset, arg, &two, &none), CH_OK);
        assert_non_null(strstr(ch_error_message(),
                               k == 0 ? "it returned NULL" : "worker 1 of 2: no camera"));
        assert_null(strstr(ch_error_message(), "stale"));
    }
}

/* ---- bodies ---- */

/* Each body numbers its elements from 0. The error names the body. */
static ch_dataset *add_map(ch_dataset *d, void *arg)
{
    (void)arg;
    return ch_dataset_map_call(d, bad_map, NULL, 1, &one_int, NULL);
}

static void error_in_a_body_names_the_outer_element(void **state)
{
    static const char *const want[] = {"flat_map, element 17: map, element 0: element 17",
                                       "interleave, element 17: map, element 0: element 17"};

    (void)state;
    for (int k = 0; k < 4; k++) {
        ch_dataset  *d = k % 2 == 0 ? ch_dataset_flat_map(range(), add_map, NULL)
                                    : ch_dataset_interleave(range(), add_map, NULL, NULL);
        ch_iterator *it = NULL, *again = NULL;
        ch_tuple    *t = NULL;
        void        *bytes = NULL;
        size_t       n = 0;
        seen         s;

        d = with_threads(d, k < 2 ? CH_OFF : 2);
        t_ok(ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &it));
        t_ok(ch_iterator_next(it, &t));
        ch_tuple_unref(t);
        t_ok(ch_iterator_save(it, &bytes, &n)); /* the position contains the number */
        t_ok(ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &again));
        t_ok(ch_iterator_restore(again, bytes, n));
        look(again, &s);
        assert_int_equal(s.n_errors, 1);
        assert_non_null(strstr(s.text, want[k % 2]));
        ch_bytes_free(bytes);
        ch_iterator_unref(again);
        ch_iterator_unref(it);
        ch_dataset_unref(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_in_a_body_names_the_outer_element),
        cmocka_unit_test(iterator_reports_an_error_once_in_order_and_continues_with_go_on),
        cmocka_unit_test(iterator_ends_at_an_error_without_go_on),
        cmocka_unit_test(generator_continues_after_it_failed),
        cmocka_unit_test(iterator_restores_a_position_before_or_after_an_error),
        cmocka_unit_test(zip_drops_the_element_of_all_inputs_when_one_input_fails),
        cmocka_unit_test(zip_keeps_rows_and_labels_together_after_an_error),
        cmocka_unit_test(batch_reports_errors_at_once_instead_of_collecting_them),
        cmocka_unit_test(batch_is_filled_with_later_rows_after_an_error),
        cmocka_unit_test(error_of_a_function_without_message_shows_no_earlier_message),
        cmocka_unit_test(error_of_a_make_function_has_its_message_or_the_default),
        cmocka_unit_test(iterator_unref_waits_only_for_calls_in_progress),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

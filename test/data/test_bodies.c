/* test/data/test_bodies.c -- bodies of flat_map, interleave and window.
 *
 * Each body draws its own random numbers, which are the same after a restore and with any
 * number of threads. C functions inside bodies run in a single thread at a time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/mem.h"
#include "pipeline.h"

static const ch_tensor_spec one_int = {.dtype = CH_I64};

/* ---- random numbers ---- */

static void noise(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_random_uniform(s, CH_F32, ch_shape_scalar(), 0, 1, 0));
}

static ch_dataset *noisy(ch_dataset *element, void *arg)
{
    (void)arg;
    return ch_dataset_map(ch_dataset_repeat(element, 3), noise, NULL, NULL);
}

static ch_dataset *nested(ch_dataset *element, void *arg)
{
    return ch_dataset_flat_map(ch_dataset_repeat(element, 2), noisy, arg);
}

static ch_dataset *shuffled(ch_dataset *element, void *arg)
{
    ch_shuffle_options opt = {.same_each_time = arg != NULL};

    ch_dataset_unref(element);
    return ch_dataset_batch(ch_dataset_shuffle(ch_dataset_range(0, 12, 1), 12, &opt), 12, NULL);
}

static ch_dataset *run(int kind)
{
    ch_dataset *d = ch_dataset_range(0, 4, 1);

    switch (kind) {
    case 0:
        d = ch_dataset_flat_map(d, noisy, NULL);
        break;
    case 1:
        d = ch_dataset_interleave(d, noisy, NULL, NULL);
        break;
    case 2:
        d = ch_dataset_interleave(d, nested, NULL, NULL);
        break;
    case 3:
        d = ch_dataset_window(d, 2, noisy, NULL, NULL);
        break;
    default:
        d = ch_dataset_flat_map(d, shuffled, NULL);
        break;
    }
    return ch_dataset_repeat(d, 2);
}

enum { KINDS = 5, MOST = 64 };

static int by_value(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Splits "a | b | c" at its bars. */
static int cut(char *text, char **out)
{
    static const char bar[] = " | ";
    int               n = 0;

    for (char *at = text, *end; at != NULL; at = end) {
        assert_true(n < MOST);
        out[n++] = at;
        end = strstr(at, bar);
        if (end == NULL)
            break;
        *end = '\0';
        end += strlen(bar);
    }
    return n;
}

static void give_all(int kind, int threads, t_given *g)
{
    ch_dataset *d =
        ch_dataset_with_options(run(kind), &(ch_dataset_options){.threads = threads});
    ch_iterator *it = NULL;

    memset(g, 0, sizeof(*g));
    t_ok(ch_iterator_new(d, NULL, &it));
    t_take(it, -1, g);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
}

static void bodies_and_passes_draw_different_random_numbers(void **state)
{
    static const int want[KINDS] = {24, 24, 48, 24, 8};

    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        static t_given g;
        char          *each[MOST];
        int            n;

        give_all(kind, 0, &g);
        n = cut(g.text, each);
        assert_int_equal(n, want[kind]);
        qsort(each, (size_t)n, sizeof(each[0]), by_value);
        for (int i = 1; i < n; i++)
            if (strcmp(each[i - 1], each[i]) == 0)
                fail_msg("kind %d: %s comes twice", kind, each[i]);
    }
}

static void random_numbers_of_bodies_are_the_same_after_restore_and_with_threads(void **state)
{
    static t_given want, g;

    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        give_all(kind, CH_OFF, &want);
        for (int n = 0; n < want.n; n += 3) {
            ch_iterator *it = NULL, *other = NULL;
            ch_dataset  *d =
                ch_dataset_with_options(run(kind), &(ch_dataset_options){.threads = 1 + n % 4});
            void  *bytes = NULL;
            size_t size = 0;

            memset(&g, 0, sizeof(g));
            t_ok(ch_iterator_new(d, NULL, &it));
            t_take(it, n, &g);
            t_ok(ch_iterator_save(it, &bytes, &size));
            ch_iterator_unref(it);
            ch_dataset_unref(d);
            d = run(kind); /* options may differ or be absent */
            if (n % 2 == 0)
                d = ch_dataset_with_options(d, &(ch_dataset_options){.threads = CH_OFF});
            t_ok(ch_iterator_new(d, NULL, &other));
            t_ok(ch_iterator_restore(other, bytes, size));
            t_take(other, -1, &g);
            assert_string_equal(g.text, want.text);
            ch_bytes_free(bytes);
            ch_iterator_unref(other);
            ch_dataset_unref(d);
        }
    }
}

static void shuffle_with_same_each_time_repeats_its_order_in_bodies(void **state)
{
    static t_given g;
    ch_dataset    *d = ch_dataset_flat_map(ch_dataset_range(0, 3, 1), shuffled, &g);
    ch_iterator   *it = NULL;
    char          *each[MOST];

    (void)state;
    memset(&g, 0, sizeof(g));
    t_ok(ch_iterator_new(d, NULL, &it));
    t_take(it, -1, &g);
    assert_int_equal(cut(g.text, each), 3);
    assert_string_equal(each[0], each[1]);
    assert_string_equal(each[1], each[2]);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
}

/* ---- functions run one at a time ---- */

static atomic_int n_inside, n_clashes;

static void be_inside(void)
{
    if (atomic_fetch_add(&n_inside, 1) > 0)
        atomic_fetch_add(&n_clashes, 1);
    poll(NULL, 0, 1);
    atomic_fetch_sub(&n_inside, 1);
}

static ch_status as_it_is(void *arg, ch_tuple *in, ch_tuple **out)
{
    (void)arg;
    be_inside();
    *out = ch_tuple_ref(in);
    return CH_OK;
}

static ch_status all(void *arg, ch_tuple *in, bool *keep)
{
    (void)arg;
    (void)in;
    be_inside();
    *keep = true;
    return CH_OK;
}

static ch_dataset *mapped(ch_dataset *element, void *arg)
{
    return ch_dataset_map_call(ch_dataset_repeat(element, 5), as_it_is, NULL, 1, &one_int, arg);
}

static ch_dataset *filtered(ch_dataset *element, void *arg)
{
    (void)arg;
    return ch_dataset_filter_call(ch_dataset_repeat(element, 5), all, NULL);
}

static ch_dataset *taken(ch_dataset *element, void *arg)
{
    (void)arg;
    return ch_dataset_take_while_call(ch_dataset_repeat(element, 5), all, NULL);
}

static int clashes(ch_dataset_fn fn, void *arg)
{
    ch_dataset  *d = ch_dataset_interleave(ch_dataset_range(0, 8, 1), fn, arg, NULL);
    ch_iterator *it = NULL;
    t_given      g;

    memset(&g, 0, sizeof(g));
    atomic_store(&n_clashes, 0);
    d = ch_dataset_with_options(d, &(ch_dataset_options){.threads = 4});
    t_ok(ch_iterator_new(d, NULL, &it));
    t_take(it, -1, &g);
    assert_int_equal(g.n, 40);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    return atomic_load(&n_clashes);
}

static void c_functions_in_bodies_run_in_one_thread_at_a_time(void **state)
{
    (void)state;
    assert_int_equal(clashes(mapped, NULL), 0);
    assert_int_equal(clashes(mapped, &(ch_map_options){.parallel = 1}), 0);
    assert_int_equal(clashes(filtered, NULL), 0);
    assert_int_equal(clashes(taken, NULL), 0);
    assert_true(clashes(mapped, &(ch_map_options){.parallel = 2}) > 0);
}

static ch_status no_next(void *arg, ch_tuple **out)
{
    (void)arg;
    *out = NULL;
    return CH_OK;
}

static ch_dataset *generated(ch_dataset *element, void *arg)
{
    const ch_generator g = {.spec = &one_int, .n_spec = 1, .next = no_next};

    (void)arg;
    return ch_dataset_concatenate(
        2, (ch_dataset *[]){element, ch_dataset_generator(&g, NULL, NULL, NULL)});
}

static void generator_without_make_is_rejected_in_a_body(void **state)
{
    (void)state;
    assert_null(ch_dataset_interleave(ch_dataset_range(0, 8, 1), generated, NULL, NULL));
    assert_non_null(strstr(ch_error_message(), "`make`"));
    assert_null(ch_dataset_flat_map(ch_dataset_range(0, 8, 1), generated, NULL));
    assert_non_null(strstr(ch_error_message(), "flat_map"));
}

/* ---- windows ---- */

/* A window takes memory for its elements only, not for its declared size. */
static void window_takes_memory_for_its_elements_only(void **state)
{
    ch_dataset  *d = ch_dataset_window(ch_dataset_range(0, 10, 1), INT32_MAX, NULL, NULL, NULL);
    ch_iterator *it = NULL;
    ch_tuple    *t = NULL;

    (void)state;
    ch__mem_watch(true);
    t_ok(ch_iterator_new(d, NULL, &it));
    t_ok(ch_iterator_next(it, &t));
    assert_true(ch__mem_peak() < 16 << 20);
    ch__mem_watch(false);
    assert_int_equal(ch_tensor_count(ch_value_at(ch_tuple_at(t, 0), 0)), 10);
    ch_tuple_unref(t);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
}

static ch_dataset *no_body(ch_dataset *element, void *arg)
{
    (void)arg;
    ch_dataset_unref(element);
    return NULL;
}

static ch_dataset *bad_body(ch_dataset *element, void *arg)
{
    (void)arg;
    return ch_dataset_batch(element, -3, NULL);
}

/* If a function returns no dataset, the error is that of the function or a default text, and
 * not an earlier error. */
static void flat_map_rejects_a_function_that_returns_no_dataset(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        ch_dataset_fn fn = i < 3 ? no_body : bad_body;
        ch_iterator  *it = NULL;
        ch_dataset   *d = ch_dataset_range(0, 3, 1);

        assert_int_not_equal(ch_iterator_next(NULL, NULL), CH_OK); /* an earlier error */
        d = i % 3 == 0   ? ch_dataset_flat_map(d, fn, NULL)
            : i % 3 == 1 ? ch_dataset_interleave(d, fn, NULL, NULL)
                         : ch_dataset_window(d, 2, fn, NULL, NULL);
        assert_null(d);
        t_refused(ch_iterator_new(d, NULL, &it), CH_INVALID_ARGUMENT,
                  i % 3 == 0   ? "flat_map"
                  : i % 3 == 1 ? "interleave"
                               : "window",
                  i < 3 ? "set no error" : "-3");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flat_map_rejects_a_function_that_returns_no_dataset),
        cmocka_unit_test(bodies_and_passes_draw_different_random_numbers),
        cmocka_unit_test(random_numbers_of_bodies_are_the_same_after_restore_and_with_threads),
        cmocka_unit_test(shuffle_with_same_each_time_repeats_its_order_in_bodies),
        cmocka_unit_test(c_functions_in_bodies_run_in_one_thread_at_a_time),
        cmocka_unit_test(generator_without_make_is_rejected_in_a_body),
        cmocka_unit_test(window_takes_memory_for_its_elements_only),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

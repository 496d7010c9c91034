/* test/data/test_restore.c -- restores of positions while threads work, and positions that are
 * rejected.
 *
 * Many tests use a generator of consecutive numbers that can refuse to restore. Others cover
 * generators below caches, prefetch, the end of take_while, and positions that an older library
 * has written.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/dataset.pb-c.h"
#include "pipeline.h"

static const ch_tensor_spec one_int = {.dtype = CH_I64};

static atomic_int n_inside, n_clashes, n_calls;

static void enter(void)
{
    atomic_fetch_add(&n_calls, 1);
    if (atomic_fetch_add(&n_inside, 1) > 0)
        atomic_fetch_add(&n_clashes, 1);
    poll(NULL, 0, 1);
}

static void leave(void)
{
    atomic_fetch_sub(&n_inside, 1);
}

/* ---- a generator with a single state ---- */

typedef struct counter {
    int64_t at;
    bool    refuses; /* refuses to restore any position but the last */
    int64_t last;
} counter;

static ch_status counter_next(void *arg, ch_tuple **out)
{
    counter   *c = arg;
    ch_tensor *t = NULL;
    ch_status  rc = CH_OK;

    enter();
    if (c->at < 1000) {
        rc = ch_tensor_copy_of(CH_I64, ch_shape_scalar(), &c->at, &t);
        c->at++;
        if (rc == CH_OK)
            rc = ch_tuple_of(1, &t, out);
        ch_tensor_unref(t);
    }
    leave();
    return rc;
}

static ch_status counter_restart(void *arg)
{
    enter();
    ((counter *)arg)->at = 0;
    leave();
    return CH_OK;
}

static ch_status counter_save(void *arg, ch_tensor **out)
{
    counter *c = arg;

    c->last = c->at;
    return ch_tensor_copy_of(CH_I64, ch_shape_scalar(), &c->at, out);
}

static ch_status counter_restore(void *arg, ch_tensor *place)
{
    counter  *c = arg;
    ch_status rc = CH_OK;

    enter();
    c->at = *(const int64_t *)ch_tensor_data(place);
    if (c->refuses && c->at != c->last)
        rc = ch__fail(CH_ABORTED, "the counter refuses");
    leave();
    return rc;
}

static ch_dataset *counting(counter *c)
{
    const ch_generator g = {.spec = &one_int,
                            .n_spec = 1,
                            .next = counter_next,
                            .restart = counter_restart,
                            .save = counter_save,
                            .restore = counter_restore};

    return ch_dataset_generator(&g, NULL, NULL, c);
}

static void expect(ch_iterator *it, int from, int n)
{
    for (int i = 0; i < n; i++) {
        ch_tuple *t = NULL;

        t_ok(ch_iterator_next(it, &t));
        assert_non_null(t);
        assert_int_equal(*(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(t, 0), 0)),
                         from + i);
        ch_tuple_unref(t);
    }
}

/* Restores the same position many times, while threads prefetch. Takes ownership of the
 * dataset. */
static void restore_often(ch_dataset *d, int times)
{
    ch_iterator *it = NULL;
    void        *bytes = NULL;
    size_t       n = 0;

    atomic_store(&n_clashes, 0);
    t_ok(ch_iterator_new(d, NULL, &it));
    expect(it, 0, 5);
    t_ok(ch_iterator_save(it, &bytes, &n));
    for (int i = 0; i < times; i++) {
        expect(it, 5, 3);
        t_ok(ch_iterator_restore(it, bytes, n));
    }
    assert_int_equal(atomic_load(&n_clashes), 0);
    ch_bytes_free(bytes);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
}

static void generator_is_not_called_during_restore(void **state)
{
    counter c = {0};

    (void)state;
    restore_often(counting(&c), 20);
}

/* Bytes that are not a position; a position with fewer states; a function that refuses. */
static void restore_keeps_the_iterator_position_when_it_fails(void **state)
{
    (void)state;
    for (int threads = CH_OFF; threads < 3; threads++) {
        counter      c = {0};
        ch_dataset  *d = ch_dataset_take(counting(&c), 500);
        ch_iterator *it = NULL;
        void        *bytes = NULL;
        size_t       n = 0;

        d = ch_dataset_with_options(d, &(ch_dataset_options){.threads = threads});
        t_ok(ch_iterator_new(d, NULL, &it));
        expect(it, 0, 5);
        t_ok(ch_iterator_save(it, &bytes, &n));
        expect(it, 5, 4);
        t_refused(ch_iterator_restore(it, "junk", 4), CH_INVALID_ARGUMENT, "restore",
                  "4 bytes");
        expect(it, 9, 4);
        for (size_t k = 0; k < n; k += 7) {
            char *bad = malloc(n);

            memcpy(bad, bytes, n);
            bad[k] ^= 1;
            if (ch_iterator_restore(it, bad, n) != CH_OK)
                expect(it, 13, 2);
            t_ok(ch_iterator_restore(it, bytes, n));
            free(bad);
            expect(it, 5, 8);
        }
        c.refuses = true;
        t_refused(ch_iterator_restore(it, bytes, n), CH_ABORTED, "the counter", "refuses");
        expect(it, 13, 4);
        ch_bytes_free(bytes);
        ch_iterator_unref(it);
        ch_dataset_unref(d);
    }
}

static void restore_rejects_a_generator_without_save_and_keeps_its_position(void **state)
{
    const ch_generator g = {
        .spec = &one_int, .n_spec = 1, .next = counter_next, .restart = counter_restart};
    counter      c = {0}, other = {0};
    ch_dataset  *with = counting(&other), *without = ch_dataset_generator(&g, NULL, NULL, &c);
    ch_iterator *it = NULL, *from = NULL;
    void        *bytes = NULL;
    size_t       n = 0;

    (void)state;
    t_ok(ch_iterator_new(with, NULL, &from));
    expect(from, 0, 2);
    t_ok(ch_iterator_save(from, &bytes, &n));
    t_ok(ch_iterator_new(without, NULL, &it));
    expect(it, 0, 5);
    t_refused(ch_iterator_restore(it, bytes, n), CH_UNIMPLEMENTED, "generator", "save");
    expect(it, 5, 5);
    ch_bytes_free(bytes);
    ch_iterator_unref(it);
    ch_iterator_unref(from);
    ch_dataset_unref(with);
    ch_dataset_unref(without);
}

static void generator_without_make_serves_one_iterator_at_a_time(void **state)
{
    counter      c = {0};
    ch_dataset  *d = counting(&c), *more = ch_dataset_batch(ch_dataset_ref(d), 2, NULL);
    ch_iterator *it = NULL, *other = NULL;
    void        *bytes = NULL;
    size_t       n = 0;

    (void)state;
    t_ok(ch_iterator_new(d, NULL, &it));
    expect(it, 0, 5);
    t_refused(ch_iterator_new(d, NULL, &other), CH_FAILED_PRECONDITION, "generator", "`make`");
    t_refused(ch_iterator_new(more, NULL, &other), CH_FAILED_PRECONDITION, "generator",
              "another iterator");
    assert_null(other);
    expect(it, 5, 5); /* the failed calls did not move it */
    t_ok(ch_iterator_restart(it));
    expect(it, 0, 5);
    t_ok(ch_iterator_save(it, &bytes, &n));
    expect(it, 5, 1);
    t_ok(ch_iterator_restore(it, bytes, n));
    c.refuses = true;
    c.last = -1;
    t_refused(ch_iterator_new(d, NULL, &other), CH_FAILED_PRECONDITION, "generator", "`make`");
    t_refused(ch_iterator_restore(it, bytes, n - 1), CH_INVALID_ARGUMENT, "restore", "");
    t_refused(ch_iterator_new(d, NULL, &other), CH_FAILED_PRECONDITION, "generator", "`make`");
    ch_iterator_unref(it);
    t_ok(ch_iterator_new(d, NULL, &it)); /* the generator is free now */
    expect(it, 0, 5);
    ch_iterator_unref(it);
    ch_bytes_free(bytes);
    ch_dataset_unref(d);
    ch_dataset_unref(more);
}

/* Two stages of a dataset cannot use the same generator either. */
static void generator_without_make_serves_one_stage(void **state)
{
    counter     c = {0};
    ch_dataset *g = counting(&c);
    ch_dataset *both[] = {
        ch_dataset_zip(2, (ch_dataset *[]){ch_dataset_ref(g), ch_dataset_ref(g)}),
        ch_dataset_concatenate(2, (ch_dataset *[]){ch_dataset_ref(g), ch_dataset_ref(g)}),
        ch_dataset_zip(2, (ch_dataset *[]){ch_dataset_take(ch_dataset_ref(g), 3),
                                           ch_dataset_take(ch_dataset_ref(g), 3)}),
    };
    ch_iterator *it = NULL;

    for (size_t i = 0; i < sizeof(both) / sizeof(both[0]); i++) {
        assert_non_null(both[i]);
        t_refused(ch_iterator_new(both[i], NULL, &it), CH_FAILED_PRECONDITION, "generator",
                  "another stage of this dataset");
        assert_null(it);
        ch_dataset_unref(both[i]);
    }
    t_ok(ch_iterator_new(g, NULL, &it)); /* the failed calls have left no state */
    expect(it, 0, 5);
    ch_iterator_unref(it);
    ch_dataset_unref(g);
    (void)state;
}

/* A cache opens the stages below it again before it closes those of the last pass. */
static void generator_below_a_cache_is_opened_again_after_restart(void **state)
{
    counter      c = {0};
    ch_dataset  *d = ch_dataset_cache(ch_dataset_take(counting(&c), 6), NULL);
    ch_iterator *it = NULL;

    (void)state;
    t_ok(ch_iterator_new(d, NULL, &it));
    for (int i = 0; i < 3; i++) {
        expect(it, 0, i == 1 ? 6 : 2);
        t_ok(ch_iterator_restart(it));
    }
    ch_iterator_unref(it);
    ch_dataset_unref(d);
}

/* ---- functions below a cache, which calls them again ---- */

static ch_status as_it_is(void *arg, ch_tuple *in, ch_tuple **out)
{
    (void)arg;
    enter();
    *out = ch_tuple_ref(in);
    leave();
    return CH_OK;
}

static void c_function_below_a_cache_is_called_by_one_thread(void **state)
{
    ch_dataset *d =
        ch_dataset_map_call(ch_dataset_range(0, 1000, 1), as_it_is, NULL, 1, &one_int, NULL);

    (void)state;
    restore_often(ch_dataset_cache(d, NULL), 5);
}

/* ---- with and without prefetch ---- */

static void iterator_reads_no_element_early_when_prefetch_is_off(void **state)
{
    counter      c = {0};
    ch_dataset  *d = counting(&c);
    ch_iterator *it = NULL;
    void        *bytes = NULL;
    size_t       n = 0;

    (void)state;
    t_ok(ch_iterator_new(d, &(ch_iterator_options){.prefetch = CH_OFF}, &it));
    atomic_store(&n_calls, 0);
    for (int i = 0; i < 5; i++) {
        expect(it, i, 1);
        poll(NULL, 0, 5);
        assert_int_equal(atomic_load(&n_calls), i + 1);
    }
    t_ok(ch_iterator_save(it, &bytes, &n));
    ch_iterator_unref(it);
    t_ok(ch_iterator_new(d, NULL, &it)); /* an iterator that prefetches */
    t_ok(ch_iterator_restore(it, bytes, n));
    expect(it, 5, 5);
    ch_bytes_free(bytes);
    t_ok(ch_iterator_save(it, &bytes, &n));
    ch_iterator_unref(it);
    t_ok(ch_iterator_new(d, &(ch_iterator_options){.prefetch = CH_OFF}, &it));
    t_ok(ch_iterator_restore(it, bytes, n));
    expect(it, 10, 5);
    ch_bytes_free(bytes);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
}

/* ---- an end that a function decides ---- */

static ch_status below_17(void *arg, ch_tuple *in, bool *keep)
{
    int64_t x = *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(in, 0), 0));

    (void)arg;
    if (x == 5)
        return ch__fail(CH_OUT_OF_RANGE, "take_while: the first that is not");
    *keep = x < 17;
    return CH_OK;
}

/* No error is mistaken for the end. After the end there are no elements. */
static void take_while_ends_at_the_first_false_and_stays_ended(void **state)
{
    static const char want[] = "0 | 1 | 2 | 3 | 4 | !OUT_OF_RANGE | 6 | 7 | 8 | 9 | 10 | 11 | "
                               "12 | 13 | 14 | 15 | 16";

    (void)state;
    for (int threads = CH_OFF; threads < 4; threads++)
        for (int k = 0; k <= 18; k++) {
            ch_dataset *d =
                ch_dataset_take_while_call(ch_dataset_range(0, 100, 1), below_17, NULL);
            ch_iterator *it = NULL, *other = NULL;
            void        *bytes = NULL;
            size_t       n = 0;
            t_given      g;

            memset(&g, 0, sizeof(g));
            d = ch_dataset_with_options(d, &(ch_dataset_options){.threads = threads});
            t_ok(ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &it));
            t_take(it, k, &g);
            t_ok(ch_iterator_save(it, &bytes, &n));
            t_ok(ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &other));
            t_ok(ch_iterator_restore(other, bytes, n));
            t_take(other, -1, &g);
            t_take(other, -1, &g);
            assert_string_equal(g.text, want);
            t_ok(ch_iterator_restart(other));
            memset(&g, 0, sizeof(g));
            t_take(other, -1, &g);
            assert_string_equal(g.text, want);
            ch_bytes_free(bytes);
            ch_iterator_unref(it);
            ch_iterator_unref(other);
            ch_dataset_unref(d);
        }
}

/* ---- passes over a repeat ---- */

enum { ROUND = 10, TIMES = 3 };

/* Reads the second pass, which begins after `n` elements of the first. */
static void second_pass(int n, int64_t *out)
{
    ch_dataset *d = ch_dataset_repeat(
        ch_dataset_shuffle(ch_dataset_range(0, ROUND, 1), ROUND, NULL), TIMES);
    ch_iterator *it = NULL;
    ch_tuple    *e = NULL;

    assert_int_equal(ch_iterator_new(d, NULL, &it), CH_OK);
    for (int i = 0; i < n; i++) {
        assert_int_equal(ch_iterator_next(it, &e), CH_OK);
        ch_tuple_unref(e);
    }
    assert_int_equal(ch_iterator_restart(it), CH_OK);
    for (int i = 0; i < ROUND * TIMES; i++) {
        assert_int_equal(ch_iterator_get_next(it, &e), CH_OK);
        out[i] = *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(e, 0), 0));
        ch_tuple_unref(e);
    }
    ch_iterator_unref(it);
    ch_dataset_unref(d);
}

static void shuffle_order_of_a_pass_depends_on_its_number_only(void **state)
{
    int64_t first[ROUND * TIMES], other[ROUND * TIMES];

    second_pass(0, first);
    for (int n = 1; n <= ROUND * TIMES; n++) {
        second_pass(n, other);
        assert_memory_equal(first, other, sizeof(first));
    }
    (void)state;
}

/* ---- positions with false counts ---- */

static ch_dataset *ten_more(ch_dataset *element, void *arg)
{
    (void)arg;
    return ch_dataset_repeat(element, 10);
}

/* Changes the position, so that a body has given `n` elements. */
static void boast(const void *place, size_t size, int64_t n, void **out, size_t *out_size)
{
    Cohort__Position *p = cohort__position__unpack(NULL, size, place);
    int               found = 0;

    assert_non_null(p);
    for (size_t i = 0; i < p->n_states; i++)
        if (strcmp(p->states[i]->stage, "body") == 0) {
            assert_int_equal(p->states[i]->numbers[2], 1);
            p->states[i]->numbers[2] = n;
            found++;
        }
    assert_true(found > 0);
    *out_size = cohort__position__get_packed_size(p);
    *out = malloc(*out_size);
    assert_non_null(*out);
    (void)cohort__position__pack(p, *out);
    cohort__position__free_unpacked(p, NULL);
}

/* Memory is allocated only for data that is in the position. */
static void restore_rejects_a_false_count_without_allocating_it(void **state)
{
    ch_dataset  *d = ch_dataset_interleave(ch_dataset_range(0, 5, 1), ten_more, NULL, NULL);
    ch_iterator *it = NULL;
    ch_tuple    *e = NULL;
    void        *place = NULL, *more = NULL;
    size_t       size = 0, more_size = 0;

    assert_non_null(d);
    assert_int_equal(ch_iterator_new(d, NULL, &it), CH_OK);
    assert_int_equal(ch_iterator_get_next(it, &e), CH_OK);
    ch_tuple_unref(e);
    assert_int_equal(ch_iterator_save(it, &place, &size), CH_OK);
    boast(place, size, INT32_MAX / 16, &more, &more_size);
    ch__mem_watch(true);
    assert_int_equal(ch_iterator_restore(it, more, more_size), CH_INVALID_ARGUMENT);
    assert_in_range(ch__mem_peak(), 0, (int64_t)more_size + (16 << 20));
    ch__mem_watch(false);
    assert_int_equal(ch_iterator_restore(it, place, size), CH_OK);
    ch_bytes_free(place);
    free(more);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    (void)state;
}

/* A position that a library wrote before streams had names (ch_stream_name), after 8 elements
 * of the pipeline below. Its meaning must not change. */
static void restore_continues_in_the_same_order_from_an_old_position(void **state)
{
    static const char place[] =
        "\x08\x02\x11\x25\x97\x5f\x76\xcc\x94\x47\x9b\x1a\x12\x0a\x08\x69\x74\x65\x72\x61"
        "\x74\x6f\x72\x12\x06\x00\x00\x00\x10\x00\x00\x1a\x0d\x0a\x06\x72\x65\x70\x65\x61"
        "\x74\x12\x03\x00\x02\x00\x1a\x48\x0a\x07\x73\x68\x75\x66\x66\x6c\x65\x12\x04\x02"
        "\x04\x00\x06\x1a\x11\x0a\x0f\x12\x03\x69\x36\x34\x22\x08\x00\x00\x00\x00\x00\x00"
        "\x00\x00\x1a\x11\x0a\x0f\x12\x03\x69\x36\x34\x22\x08\x03\x00\x00\x00\x00\x00\x00"
        "\x00\x1a\x11\x0a\x0f\x12\x03\x69\x36\x34\x22\x08\x02\x00\x00\x00\x00\x00\x00\x00"
        "\x1a\x0b\x0a\x05\x72\x61\x6e\x67\x65\x12\x02\x02\x0a";
    static const int64_t want[] = {0, 3, 5, 2, 0, 1, 5, 2, 4, 3, 1, 2, 3, 4, 0, 5};
    ch_dataset          *d =
        ch_dataset_shuffle(ch_dataset_range(0, 6, 1), 4, &(ch_shuffle_options){.seed = 5});
    ch_iterator *it = NULL;

    (void)state;
    d = ch_dataset_with_options(ch_dataset_repeat(d, CH_INFINITE),
                                &(ch_dataset_options){.threads = CH_OFF});
    t_ok(ch_iterator_new(d, NULL, &it));
    t_ok(ch_iterator_restore(it, place, sizeof(place) - 1));
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        ch_tuple *t = NULL;

        t_ok(ch_iterator_next(it, &t));
        assert_int_equal(*(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(t, 0), 0)),
                         want[i]);
        ch_tuple_unref(t);
    }
    ch_iterator_unref(it);
    ch_dataset_unref(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restore_rejects_a_false_count_without_allocating_it),
        cmocka_unit_test(shuffle_order_of_a_pass_depends_on_its_number_only),
        cmocka_unit_test(restore_continues_in_the_same_order_from_an_old_position),
        cmocka_unit_test(generator_is_not_called_during_restore),
        cmocka_unit_test(restore_keeps_the_iterator_position_when_it_fails),
        cmocka_unit_test(restore_rejects_a_generator_without_save_and_keeps_its_position),
        cmocka_unit_test(generator_without_make_serves_one_iterator_at_a_time),
        cmocka_unit_test(generator_without_make_serves_one_stage),
        cmocka_unit_test(generator_below_a_cache_is_opened_again_after_restart),
        cmocka_unit_test(c_function_below_a_cache_is_called_by_one_thread),
        cmocka_unit_test(iterator_reads_no_element_early_when_prefetch_is_off),
        cmocka_unit_test(take_while_ends_at_the_first_false_and_stays_ended),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test/data/test_position.c -- positions are small, and do not depend on the number of replicas.
 *
 * Pipelines over rows in memory, random ones and all orders of some stages, are saved at any
 * element, in any pass, and continued by another iterator. The rest must be that of an
 * uninterrupted run, and the position must have references in place of data, of some bytes each.
 * A position that an older version saved is continued too. Batches that k replicas began are continued by m replicas. The model is a
 * list of the batches that a single replica reads. T_CASES is the number of pipelines; T_SEED
 * selects them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/mem.h"
#include "pipeline.h"
#include "position.h"
#include "random.h"

/* ---- rows ---- */

enum { WIDTH = 300 }; /* values of a row, so that a row is larger than any reference to it */

/* Returns n rows: "x" of WIDTH values that depend on the row, and its number "id". */
static ch_dataset *rows(int n, int first)
{
    ch_tensor  *t[2] = {NULL, NULL};
    ch_dataset *d;

    t_ok(ch_tensor_new(CH_U8, ch_shape_of(n, WIDTH), &t[0]));
    t_ok(ch_tensor_new(CH_I64, ch_shape_of(n), &t[1]));
    for (int i = 0; i < n; i++) {
        memset((uint8_t *)ch_tensor_data_mut(t[0]) + i * WIDTH, (first + i) % 251, WIDTH);
        ((int64_t *)ch_tensor_data_mut(t[1]))[i] = first + i;
    }
    d = ch_dataset_slices(2, t, (const char *[]){"x", "id"});
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    return d;
}

static void scale(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "x", ch_mul(ch_cast(ch_step_in(s, 0), CH_F32), ch_number(s, 1.0 / 255)));
    ch_step_out(s, "id", ch_step_in(s, 1));
}

static void add_noise(ch_step *s, void *arg)
{
    ch_node *noise = ch_random_uniform(s, CH_F32, ch_shape_scalar(), 0, 1000, 7);

    (void)arg;
    ch_step_out(s, "x", ch_add(ch_cast(ch_step_in(s, 0), CH_F32), noise));
    ch_step_out(s, "id", ch_step_in(s, 1));
}

static void is_not_third(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL,
                ch_not_equal(ch_mod(ch_step_in(s, 1), ch_number(s, 3)), ch_number(s, 0)));
}

/* ---- random pipelines ---- */

static ch_dataset *any_rows(dice *d)
{
    int         n = 40 + (int)roll(d, 400);
    ch_dataset *x = rows(n, 0);

    switch (roll(d, 5)) {
    case 0:
        return ch_dataset_concatenate(2, (ch_dataset *[]){x, rows(90, 5000)});
    case 1:
        return ch_dataset_select(
            ch_dataset_zip(
                2, (ch_dataset *[]){ch_dataset_shuffle(x, 9, NULL),
                                    ch_dataset_select(rows(n, 0), 2,
                                                      (const char *[]){"y=x", "n=id"})}),
            2, (const char *[]){"x=y", "id"});
    case 2:
        return ch_dataset_sample_from(2, (ch_dataset *[]){x, rows(70, 7000)}, NULL, NULL);
    default:
        return x;
    }
}

/* Adds a stage that passes rows on. */
static ch_dataset *any_order(ch_dataset *x, dice *d)
{
    int n = 1 + (int)roll(d, 9);

    switch (roll(d, 9)) {
    case 0:
        return ch_dataset_take(x, 30 * n);
    case 1:
        return ch_dataset_skip(x, n);
    case 2:
        return ch_dataset_shard(x, n, (int64_t)roll(d, (uint64_t)n));
    case 3:
        return ch_dataset_filter(x, is_not_third, NULL);
    case 4:
        return ch_dataset_repeat(x, 1 + (int64_t)roll(d, 3));
    case 5:
        return ch_dataset_prefetch(x, (int)roll(d, 4));
    case 6:
        return ch_dataset_cache(x, NULL);
    default:
        return ch_dataset_shuffle(x, 20 * n, &(ch_shuffle_options){.seed = roll(d, 99)});
    }
}

static ch_dataset *any_map(ch_dataset *x, dice *d)
{
    return ch_dataset_map(x, roll(d, 2) ? scale : add_noise, NULL, NULL);
}

/* Adds a stage behind the batches, or behind rows that a map has changed. */
static ch_dataset *any_later(ch_dataset *x, dice *d)
{
    switch (roll(d, 10)) {
    case 0:
        return ch_dataset_take(x, 1 + (int64_t)roll(d, 12));
    case 1:
        return ch_dataset_skip(x, (int64_t)roll(d, 3));
    case 2:
        return ch_dataset_cache(x, NULL);
    case 3:
        return ch_dataset_prefetch(x, (int)roll(d, 4));
    case 4:
        return ch_dataset_select(x, 2, (const char *[]){"0", "1"});
    case 5:
    case 6:
        return any_map(x, d);
    default:
        return ch_dataset_take(ch_dataset_repeat(x, (int64_t)roll(d, 5) - 1), 400);
    }
}

/* Returns pipeline `number`: rows in some order, mapped and batched, in several passes. */
static ch_dataset *pipeline(uint64_t number, int threads)
{
    dice        d = {number};
    ch_dataset *x = any_rows(&d);
    int         size = 1 + (int)roll(&d, 20);

    for (int n = (int)roll(&d, 5); n > 0; n--)
        x = any_order(x, &d);
    if (roll(&d, 3) == 0)
        x = any_map(x, &d);
    if (roll(&d, 3) == 0)
        x = ch_dataset_padded_batch(x, size,
                                    &(ch_pad_options){.drop_remainder = roll(&d, 2) != 0});
    else if (roll(&d, 4) > 0)
        x = ch_dataset_batch(x, size, &(ch_batch_options){.drop_remainder = roll(&d, 2) != 0});
    if (roll(&d, 2) == 0)
        x = ch_dataset_take(any_map(x, &d), 1000);
    for (int n = (int)roll(&d, 6); n > 0; n--)
        x = any_later(x, &d);
    if (roll(&d, 2) == 0)
        x = ch_dataset_prefetch(x, 1 + (int)roll(&d, 3));
    return ch_dataset_with_options(x, &(ch_dataset_options){.threads = threads});
}

/* Takes a hash of an element: the sums of its values, by their places. */
static uint64_t hash_of(ch_tuple *t)
{
    uint64_t h = 14695981039346656037u;

    for (int i = 0; i < ch_tuple_count(t); i++) {
        const ch_tensor *x = ch_value_at(ch_tuple_at(t, i), 0);
        const uint8_t   *at = ch_tensor_data(x);

        for (size_t k = 0; k < ch_tensor_bytes(x); k++)
            h = (h ^ at[k]) * 1099511628211u;
    }
    return h;
}

enum { MOST = 20000 };

typedef struct trace {
    int      n;
    int64_t  n_rows; /* of all elements */
    uint64_t at[MOST];
} trace;

/* Reads up to `most` elements; -1: all. */
static void follow(ch_iterator *it, int most, trace *out)
{
    for (int i = 0; i != most; i++) {
        ch_tuple *t = NULL;

        t_ok(ch_iterator_next(it, &t));
        if (t == NULL)
            return;
        assert_true(out->n < MOST);
        out->at[out->n++] = hash_of(t);
        out->n_rows += ch_tensor_count(ch_value_at(ch_tuple_at(t, 0), 0)) / WIDTH;
        ch_tuple_unref(t);
    }
}

static void fail_case(uint64_t number, const char *what, size_t got, size_t want)
{
    ch_dataset *d = pipeline(number, 0);
    char        text[4000];

    ch_dataset_print(d, text, sizeof(text));
    ch_dataset_unref(d);
    fail_msg("pipeline %llu: %s (%zu, want %zu)\n%s", (unsigned long long)number, what, got,
             want, text);
}

/* Saves after `n` elements and twice more, each time by a new iterator. */
static void check_pipeline(uint64_t number, dice *d)
{
    static trace want, got;
    ch_dataset  *x = pipeline(number, CH_OFF);
    ch_iterator *it = NULL;

    want.n = got.n = 0;
    want.n_rows = 0;
    t_ok(ch_iterator_new(x, NULL, &it));
    follow(it, -1, &want);
    ch_iterator_unref(it);
    ch_dataset_unref(x);
    x = pipeline(number, (int)roll(d, 4) - 1);
    it = NULL;
    t_ok(ch_iterator_new(x, NULL, &it));
    for (int i = 0; i < 3; i++) {
        void  *bytes = NULL;
        size_t n = 0;

        follow(it, (int)roll(d, (uint64_t)(want.n - got.n) + 2), &got);
        t_ok(ch_iterator_save(it, &bytes, &n));
        if (!t_is_small(bytes, n))
            fail_case(number, "the position has data", n, (size_t)want.n_rows);
        ch_iterator_unref(it);
        ch_dataset_unref(x);
        x = pipeline(number, (int)roll(d, 4) - 1);
        it = NULL;
        t_ok(ch_iterator_new(x, NULL, &it));
        t_ok(ch_iterator_restore(it, bytes, n));
        ch_bytes_free(bytes);
    }
    follow(it, -1, &got);
    ch_iterator_unref(it);
    ch_dataset_unref(x);
    for (int i = 0; i < want.n && i < got.n; i++)
        if (got.at[i] != want.at[i])
            fail_case(number, "an element differs", (size_t)i, (size_t)want.n);
    if (got.n != want.n)
        fail_case(number, "elements", (size_t)got.n, (size_t)want.n);
}

static void positions_of_rows_in_memory_have_no_data_and_restore_all_elements(void **state)
{
    int      n = getenv("T_CASES") != NULL ? atoi(getenv("T_CASES")) : 120;
    uint64_t first = getenv("T_SEED") != NULL ? strtoull(getenv("T_SEED"), NULL, 10) : 1;
    dice     d = {first};

    (void)state;
    for (int i = 0; i < n; i++)
        check_pipeline(first * 1000003 + (uint64_t)i, &d);
}

/* ---- orders of stages ---- */

/* Returns a pipeline with a stage for each letter. The first shuffle stands before all stages
 * that change rows, because a buffer holds what was put into it. */
static ch_dataset *in_order(const char *stages)
{
    ch_dataset *x = rows(200, 0);

    for (; *stages != '\0'; stages++)
        x = *stages == 's'   ? ch_dataset_shuffle(x, 90, NULL)
            : *stages == 'b' ? ch_dataset_batch(x, 8, NULL)
            : *stages == 'd'
                ? ch_dataset_batch(x, 7, &(ch_batch_options){.drop_remainder = true})
            : *stages == 'm' ? ch_dataset_map(x, scale, NULL, NULL)
            : *stages == 'n' ? ch_dataset_map(x, add_noise, NULL, NULL)
            : *stages == 'p' ? ch_dataset_prefetch(x, 3)
            : *stages == 'f' ? ch_dataset_filter(x, is_not_third, NULL)
            : *stages == 'c' ? ch_dataset_cache(x, NULL)
            : *stages == 't' ? ch_dataset_take(x, 5)
            : *stages == 'k' ? ch_dataset_skip(x, 2)
            : *stages == 'e' ? ch_dataset_select(x, 2, (const char *[]){"0", "1"})
            : *stages == '2' ? ch_dataset_repeat(x, 2)
                             : ch_dataset_repeat(x, -1);
    return ch_dataset_with_options(x, &(ch_dataset_options){.threads = 2});
}

/* Saves behind each element, and restores twice behind some of them. So positions are saved in
 * each pass, at its end, directly behind a restore and before anything was read. */
static void check_order(const char *stages)
{
    enum { STEPS = 70 };
    static trace want, got;
    ch_dataset  *x = in_order(stages);
    ch_iterator *it = NULL, *other = NULL;

    want.n = got.n = 0;
    t_ok(ch_iterator_new(x, NULL, &it));
    t_ok(ch_iterator_new(x, NULL, &other));
    follow(other, STEPS, &want);
    ch_iterator_unref(other);
    assert_int_equal(want.n, STEPS);
    while (got.n < STEPS) {
        int n_restores = got.n % 7 == 6 ? 2 : 0;

        follow(it, 1, &got);
        for (int i = 0; i <= n_restores; i++) {
            void  *bytes = NULL;
            size_t n = 0;

            t_ok(ch_iterator_save(it, &bytes, &n));
            if (!t_is_small(bytes, n))
                fail_msg("stages %s: the position behind element %d has data (%zu)", stages,
                         got.n, n);
            assert_in_range(n, 1, 100000);
            if (i > 0) {
                ch_iterator_unref(it);
                it = NULL;
                t_ok(ch_iterator_new(x, NULL, &it));
                t_ok(ch_iterator_restore(it, bytes, n));
            }
            ch_bytes_free(bytes);
        }
        if (got.at[got.n - 1] != want.at[got.n - 1])
            fail_msg("stages %s: element %d differs", stages, got.n - 1);
    }
    ch_iterator_unref(it);
    ch_dataset_unref(x);
}

static void position_has_no_data_wherever_repeat_stands(void **state)
{
    static const char *const stages[] = {"sbmpn", "sdmm", "fsbm", "sfebn", "mbn", "bm", "pdn"};

    (void)state;
    for (size_t i = 0; i < sizeof(stages) / sizeof(stages[0]); i++)
        for (size_t at = 0; at <= strlen(stages[i]); at++) {
            char text[16];

            snprintf(text, sizeof(text), "%.*sr%s", (int)at, stages[i], stages[i] + at);
            check_order(text);
        }
}

/* Passes that end before the data, passes of a few elements, and repeats of repeats. */
static void position_has_no_data_in_short_and_nested_passes(void **state)
{
    static const char *const stages[] = {"sbtmr",  "sbtrm",    "sbmtrn", "sbm2r",    "sb2m2nr",
                                         "2sbm2r", "s2d2m2nr", "sbktmr", "ksbemr",   "scbmr",
                                         "sbcmr",  "bcnrm",    "ctbmrp", "sbt2m2tr", "tbmr",
                                         "stbmrn", "t2bt2mr",  "bt2nt2r"};

    (void)state;
    for (size_t i = 0; i < sizeof(stages) / sizeof(stages[0]); i++)
        check_order(stages[i]);
}

/* ---- older positions ---- */

/* Written by the version before, which saved neither the elements of a pass nor rewinds. */
static void restore_reads_a_position_of_the_version_before(void **state)
{
    static const uint8_t saved[] = {
        0x08, 0x03, 0x11, 0x6b, 0xd3, 0xc5, 0xf9, 0x7e, 0x74, 0x6b, 0x82, 0x1a, 0x13, 0x0a,
        0x08, 0x69, 0x74, 0x65, 0x72, 0x61, 0x74, 0x6f, 0x72, 0x12, 0x07, 0x00, 0x00, 0x00,
        0x1e, 0x00, 0x00, 0x00, 0x1a, 0x5a, 0x0a, 0x05, 0x62, 0x61, 0x74, 0x63, 0x68, 0x12,
        0x07, 0x00, 0x78, 0x00, 0x00, 0x88, 0x01, 0x00, 0x1a, 0x48, 0x28, 0x44, 0x3a, 0x44,
        0x26, 0x1e, 0x1a, 0x2a, 0x16, 0x08, 0x2e, 0x22, 0x20, 0x34, 0x00, 0x30, 0x3c, 0x2c,
        0x32, 0x40, 0x36, 0x28, 0x18, 0x42, 0x3a, 0x44, 0x4a, 0x3e, 0x04, 0x48, 0x56, 0x38,
        0x54, 0x46, 0x5e, 0x62, 0x50, 0x52, 0x5a, 0x4c, 0x5c, 0x58, 0x60, 0x4e, 0x10, 0x14,
        0x02, 0x08, 0x0a, 0x1c, 0x1e, 0x06, 0x22, 0x00, 0x1a, 0x20, 0x24, 0x12, 0x2c, 0x16,
        0x2e, 0x04, 0x2a, 0x0c, 0x30, 0x3c, 0x36, 0x0e, 0x32, 0x26, 0x18, 0x48, 0x1a, 0x0d,
        0x0a, 0x06, 0x72, 0x65, 0x70, 0x65, 0x61, 0x74, 0x12, 0x03, 0x00, 0x04, 0x00, 0x1a,
        0x1e, 0x0a, 0x07, 0x73, 0x68, 0x75, 0x66, 0x66, 0x6c, 0x65, 0x12, 0x04, 0x04, 0x38,
        0x00, 0x12, 0x1a, 0x0d, 0x28, 0x09, 0x3a, 0x09, 0x3e, 0x3a, 0x34, 0x28, 0x46, 0x44,
        0x38, 0x40, 0x42, 0x1a, 0x0b, 0x0a, 0x05, 0x72, 0x61, 0x6e, 0x67, 0x65, 0x12, 0x02,
        0x04, 0x4a,
    };
    ch_dataset  *x = ch_dataset_range(0, 50, 1);
    ch_iterator *it = NULL, *other = NULL;
    static trace want, got;

    (void)state;
    x = ch_dataset_shuffle(x, 10, &(ch_shuffle_options){.seed = 3});
    x = ch_dataset_batch(ch_dataset_repeat(x, 3), 4, NULL);
    t_ok(ch_iterator_new(x, NULL, &it));
    t_ok(ch_iterator_new(x, NULL, &other));
    follow(it, 15, &want);
    want.n = 0;
    follow(it, -1, &want);
    t_ok(ch_iterator_restore(other, saved, sizeof(saved)));
    while (got.n < want.n) {
        void  *bytes = NULL;
        size_t n = 0;

        t_ok(ch_iterator_save(other, &bytes, &n));
        assert_true(t_is_small(bytes, n));
        t_ok(ch_iterator_restore(other, bytes, n));
        ch_bytes_free(bytes);
        follow(other, 1, &got);
    }
    assert_int_equal(got.n, 38 - 15);
    assert_memory_equal(got.at, want.at, (size_t)got.n * sizeof(got.at[0]));
    ch_iterator_unref(it);
    ch_iterator_unref(other);
    ch_dataset_unref(x);
}

/* ---- sizes ---- */

/* Returns the size of a position of the pipeline that ./dev demo reads, and checks that the
 * rest has the same elements. Releases d. */
static size_t size_of_position(ch_dataset *d, int n_replicas, int steps)
{
    const ch_iterator_options opt = {.n_replicas = n_replicas};
    ch_dataset               *mine = NULL;
    ch_iterator              *it = NULL, *other = NULL;
    void                     *bytes = NULL;
    size_t                    n = 0;
    static trace              a, b;

    a.n = b.n = 0;
    t_ok(ch_dataset_distribute(d, &(ch_input_context){.n_replicas = n_replicas}, &mine));
    t_ok(ch_iterator_new(mine, &opt, &it));
    t_ok(ch_iterator_new(mine, &opt, &other));
    follow(it, steps, &a);
    t_ok(ch_iterator_save(it, &bytes, &n));
    t_ok(ch_iterator_restore(other, bytes, n));
    a.n = 0;
    follow(it, 9, &a);
    follow(other, 9, &b);
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.at, b.at, (size_t)a.n * sizeof(a.at[0]));
    ch_bytes_free(bytes);
    ch_iterator_unref(it);
    ch_iterator_unref(other);
    ch_dataset_unref(mine);
    ch_dataset_unref(d);
    return n;
}

static ch_dataset *pictures(int64_t buffer)
{
    ch_tensor  *t[2] = {NULL, NULL};
    ch_dataset *d;

    t_ok(ch_tensor_new(CH_U8, ch_shape_of(60000, 28, 28), &t[0]));
    t_ok(ch_tensor_new(CH_I64, ch_shape_of(60000), &t[1]));
    for (int64_t i = 0; i < 60000; i++)
        memset((char *)ch_tensor_data_mut(t[0]) + i * 784, (int)(i % 249), 784);
    d = ch_dataset_slices(2, t, NULL);
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    d = ch_dataset_batch(ch_dataset_shuffle(d, buffer, NULL), 64, NULL);
    return ch_dataset_map(d, scale, NULL, NULL);
}

/* The data of a batch is 200 KB, and a dozen of batches is prefetched. */
static void position_of_a_shuffle_over_60000_pictures_has_less_than_a_mebibyte(void **state)
{
    (void)state;
    assert_in_range(size_of_position(pictures(10000), 1, 30), 1, 80000);
    assert_in_range(size_of_position(pictures(60000), 2, 30), 1, 250000);
}

static void position_of_a_shuffle_over_a_range_has_some_bytes_for_each_number(void **state)
{
    (void)state;
    assert_in_range(
        size_of_position(
            ch_dataset_batch(ch_dataset_shuffle(ch_dataset_range(0, 50000, 1), 50000, NULL), 64,
                             NULL),
            2, 100),
        1, 200000);
}

/* ---- replicas ---- */

/* The rows of each step. */
typedef struct steps {
    int     n, n_rows[500];
    int64_t id[500][64];
} steps;

enum { SHAPES = 8 };

static ch_dataset *any_batches(int shape)
{
    const ch_shuffle_options seed = {.seed = 5};
    ch_dataset              *d = rows(100, 0);

    switch (shape) {
    case 0: /* the last batch has 4 rows */
        return ch_dataset_batch(ch_dataset_shuffle(d, 30, &seed), 12, NULL);
    case 1:
        return ch_dataset_batch(d, 12, &(ch_batch_options){.drop_remainder = true});
    case 2: /* batches of two passes */
        return ch_dataset_batch(ch_dataset_repeat(ch_dataset_shuffle(d, 200, &seed), 2), 7,
                                NULL);
    case 3: /* a short batch in the middle */
        return ch_dataset_repeat(ch_dataset_batch(d, 30, NULL), 2);
    case 4:
        return ch_dataset_map(
            ch_dataset_batch(ch_dataset_shuffle(ch_dataset_shard(d, 2, 1), 9, &seed), 5, NULL),
            scale, NULL, NULL);
    case 5:
        return ch_dataset_batch(
            ch_dataset_map(ch_dataset_shuffle(d, 9, &seed), add_noise, NULL, NULL), 16, NULL);
    case 6: /* batches of 1 and of 3 rows, fewer than replicas */
        return ch_dataset_rebatch(ch_dataset_batch(d, 8, NULL), 2, (int64_t[]){1, 3}, NULL);
    default:
        return ch_dataset_prefetch(
            ch_dataset_batch(ch_dataset_filter(d, is_not_third, NULL), 3, NULL), 2);
    }
}

static ch_dataset *batches(int shape, int threads)
{
    return ch_dataset_with_options(any_batches(shape),
                                   &(ch_dataset_options){.threads = threads});
}

/* Adds a step: the rows of all its replicas. */
static void add_step(steps *s, ch_tuple *t)
{
    ch_value *id = ch_tuple_at(t, 1);

    assert_true(s->n < 500);
    s->n_rows[s->n] = 0;
    for (int r = 0; r < ch_value_count(id); r++) {
        const ch_tensor *x = ch_value_at(id, r);

        for (int64_t i = 0; i < ch_tensor_count(x); i++)
            s->id[s->n][s->n_rows[s->n]++] = ((const int64_t *)ch_tensor_data(x))[i];
    }
    s->n++;
}

static void take_steps(ch_iterator *it, int most, steps *out)
{
    for (int i = 0; i != most; i++) {
        ch_tuple *t = NULL;

        t_ok(ch_iterator_next(it, &t));
        if (t == NULL)
            return;
        add_step(out, t);
        ch_tuple_unref(t);
    }
}

static ch_iterator *open_replicas(ch_dataset *d, int n_replicas, int n_group)
{
    ch_dataset  *mine = NULL;
    ch_iterator *it = NULL;

    t_ok(ch_dataset_distribute(d, &(ch_input_context){.n_replicas = n_replicas}, &mine));
    t_ok(ch_iterator_new(mine, &(ch_iterator_options){.n_replicas = n_group}, &it));
    ch_dataset_unref(mine);
    return it;
}

static void same_steps(const steps *got, const steps *want)
{
    assert_int_equal(got->n, want->n);
    assert_memory_equal(got->n_rows, want->n_rows, (size_t)want->n * sizeof(want->n_rows[0]));
    for (int i = 0; i < want->n; i++)
        assert_memory_equal(got->id[i], want->id[i],
                            (size_t)want->n_rows[i] * sizeof(want->id[i][0]));
}

/* Takes some steps with k replicas, the next with m, and the rest with k again. */
static void change_replicas(ch_dataset *d, int k, int m, int before, const steps *want)
{
    static steps got;
    ch_iterator *it = open_replicas(d, k, k);
    int          next[] = {m, k};

    got.n = 0;
    take_steps(it, before, &got);
    for (int i = 0; i < 2; i++) {
        void  *bytes = NULL;
        size_t n = 0;

        t_ok(ch_iterator_save(it, &bytes, &n));
        ch_iterator_unref(it);
        it = open_replicas(d, next[i], next[i]);
        t_ok(ch_iterator_restore(it, bytes, n));
        ch_bytes_free(bytes);
        take_steps(it, i == 0 ? 2 : -1, &got);
    }
    ch_iterator_unref(it);
    same_steps(&got, want);
}

/* At any batch, for all numbers of replicas up to 8. */
static void global_batches_that_k_replicas_began_are_continued_by_m(void **state)
{
    static steps want;

    (void)state;
    for (int shape = 0; shape < SHAPES; shape++) {
        ch_dataset  *d[] = {batches(shape, CH_OFF), batches(shape, 2)};
        ch_iterator *it = open_replicas(d[0], 1, 1);
        int          at = 0;

        want.n = 0;
        take_steps(it, -1, &want);
        ch_iterator_unref(it);
        for (int k = 1; k <= 8; k++)
            for (int m = 1; m <= 8; m++)
                change_replicas(d[(k + m) % 4 == 0], k, m, at++ % (want.n + 1), &want);
        ch_dataset_unref(d[0]);
        ch_dataset_unref(d[1]);
    }
}

/* Without a distribution, elements go to the replicas in turn. */
static void groups_that_k_replicas_began_are_continued_by_m(void **state)
{
    (void)state;
    for (int k = 1; k <= 4; k++)
        for (int m = 1; m <= 4; m++) {
            static steps got;
            ch_dataset *d = ch_dataset_batch(ch_dataset_shuffle(rows(50, 0), 9, NULL), 1, NULL);
            ch_iterator *it = NULL;
            void        *bytes = NULL;
            size_t       n = 0;
            int64_t      sum = 0;
            int          n_rows = 0;

            got.n = 0;
            t_ok(ch_iterator_new(d, &(ch_iterator_options){.n_replicas = k}, &it));
            take_steps(it, 3, &got);
            t_ok(ch_iterator_save(it, &bytes, &n));
            ch_iterator_unref(it);
            it = NULL;
            t_ok(ch_iterator_new(d, &(ch_iterator_options){.n_replicas = m}, &it));
            t_ok(ch_iterator_restore(it, bytes, n));
            take_steps(it, -1, &got);
            for (int i = 0; i < got.n; i++)
                for (int r = 0; r < got.n_rows[i]; r++, n_rows++)
                    sum += got.id[i][r];
            assert_int_equal(n_rows, 50);
            assert_int_equal(sum, 49 * 50 / 2);
            ch_bytes_free(bytes);
            ch_iterator_unref(it);
            ch_dataset_unref(d);
        }
}

/* The program reads piece by piece, so a position may be inside a batch. */
static void rest_of_a_batch_is_divided_anew_when_the_position_is_inside(void **state)
{
    (void)state;
    for (int k = 2; k <= 5; k++)
        for (int m = 2; m <= 5; m++)
            for (int before = 0; before < 9; before++) {
                static steps want, got;
                ch_dataset  *d = batches(0, CH_OFF);
                ch_iterator *it = open_replicas(d, 1, 1);
                void        *bytes = NULL;
                size_t       n = 0;
                int          at = 0, row = 0;

                want.n = got.n = 0;
                take_steps(it, -1, &want);
                ch_iterator_unref(it);
                it = open_replicas(d, k, 1);
                take_steps(it, before, &got);
                t_ok(ch_iterator_save(it, &bytes, &n));
                ch_iterator_unref(it);
                it = open_replicas(d, m, 1);
                t_ok(ch_iterator_restore(it, bytes, n));
                ch_bytes_free(bytes);
                take_steps(it, -1, &got);
                ch_iterator_unref(it);
                for (int i = 0; i < got.n; i++)
                    for (int r = 0; r < got.n_rows[i]; r++) {
                        if (row == want.n_rows[at])
                            at++, row = 0;
                        assert_int_equal(got.id[i][r], want.id[at][row++]);
                    }
                assert_int_equal(at, want.n - 1);
                assert_int_equal(row, want.n_rows[at]);
                ch_dataset_unref(d);
            }
}

static void restore_rejects_a_position_inside_a_batch_when_nothing_is_divided(void **state)
{
    ch_dataset  *d = batches(0, 2);
    ch_iterator *it = open_replicas(d, 4, 1), *other = open_replicas(d, 1, 1);
    void        *bytes = NULL;
    size_t       n = 0;
    steps       *got = calloc(1, sizeof(*got));

    (void)state;
    take_steps(it, 2, got);
    t_ok(ch_iterator_save(it, &bytes, &n));
    t_refused(ch_iterator_restore(other, bytes, n), CH_INVALID_ARGUMENT, "inside a batch",
              "between two batches");
    got->n = 0;
    take_steps(other, -1, got);
    assert_int_equal(got->n, 9);
    free(got);
    ch_bytes_free(bytes);
    ch_iterator_unref(it);
    ch_iterator_unref(other);
    ch_dataset_unref(d);
}

/* ---- tensors that share memory ---- */

/* Rows of another type begin at the same addresses, so references would not be clear. */
static void positions_restore_rows_of_tensors_that_share_memory(void **state)
{
    for (int i = 0; i < 3; i++) {
        ch_tensor  *t = NULL, *view = NULL;
        ch_dataset *d;

        t_ok(ch_tensor_new(CH_I64, ch_shape_of(40, 6), &t));
        for (int64_t k = 0; k < 240; k++)
            ((int64_t *)ch_tensor_data_mut(t))[k] = k;
        if (i == 0)
            t_ok(ch_tensor_reshape(t, ch_shape_of(40, 2, 3), &view));
        else
            t_ok(ch_tensor_rows(t, 0, i == 1 ? 40 : 30, &view));
        d = ch_dataset_zip(2, (ch_dataset *[]){ch_dataset_slices(1, &t, NULL),
                                               ch_dataset_slices(1, &view, NULL)});
        ch_tensor_unref(t);
        ch_tensor_unref(view);
        (void)size_of_position(ch_dataset_batch(ch_dataset_shuffle(d, 9, NULL), 3, NULL), 1, 4);
    }
    (void)state;
}

/* ---- positions that do not fit ---- */

static void restore_rejects_a_row_that_the_data_does_not_have(void **state)
{
    ch_dataset  *d = ch_dataset_shuffle(rows(100, 0), 50, NULL);
    ch_dataset  *less = ch_dataset_shuffle(rows(10, 0), 50, NULL);
    ch_iterator *it = NULL, *other = NULL;
    void        *bytes = NULL;
    size_t       n = 0;
    static trace got;

    (void)state;
    t_ok(ch_iterator_new(d, NULL, &it));
    follow(it, 20, &got);
    t_ok(ch_iterator_save(it, &bytes, &n));
    t_ok(ch_iterator_new(less, NULL, &other));
    t_refused(ch_iterator_restore(other, bytes, n), CH_INVALID_ARGUMENT, "stage",
              "a row that the data in memory does not have");
    got.n = 0;
    follow(other, -1, &got);
    assert_int_equal(got.n, 10);
    ch_bytes_free(bytes);
    ch_iterator_unref(it);
    ch_iterator_unref(other);
    ch_dataset_unref(d);
    ch_dataset_unref(less);
}

/* Makes a run of references false in some way. */
static void spoil(Cohort__Element *m, int how)
{
    static uint8_t zeros[200], large[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f};
    static uint32_t many[400];

    switch (how) {
    case 0:
        m->tensors[0] = UINT32_MAX;
        return;
    case 1: /* another type */
        m->tensors[0] = 1;
        return;
    case 2:
        m->count++;
        return;
    case 3:
        m->count = UINT32_MAX;
        return;
    case 4:
        m->count--;
        return;
    case 5:
        m->n_tensors--;
        return;
    case 6:
        m->tensors = many;
        m->n_tensors = 400;
        return;
    case 7:
        m->each_part = true;
        return;
    case 8:
        m->rows = (ProtobufCBinaryData){sizeof(large), large};
        return;
    case 9:
        m->rows.len = 0;
        return;
    default: /* a varint without an end */
        memset(zeros, 0x80, sizeof(zeros));
        m->rows = (ProtobufCBinaryData){sizeof(zeros), zeros};
    }
}

/* Restores a position in which the first run of references of state i is false. Returns false if
 * the state has none. */
static bool restore_spoiled(ch_iterator *it, const void *bytes, size_t n, size_t i, int how)
{
    Cohort__Position *p = cohort__position__unpack(NULL, n, bytes);
    Cohort__Element  *m, was;
    size_t            size;
    void             *bad;
    ch_status         rc;

    assert_non_null(p);
    m = p->states[i]->n_elements > 0 ? p->states[i]->elements[0] : NULL;
    if (m == NULL || m->count == 0) {
        cohort__position__free_unpacked(p, NULL);
        return false;
    }
    was = *m;
    spoil(m, how);
    size = cohort__position__get_packed_size(p);
    bad = malloc(size);
    assert_non_null(bad);
    (void)cohort__position__pack(p, bad);
    *m = was;
    cohort__position__free_unpacked(p, NULL);
    ch__mem_watch(true);
    rc = ch_iterator_restore(it, bad, size);
    assert_in_range(ch__mem_peak(), 0, 4 << 20);
    ch__mem_watch(false);
    /* A count that is too large does no harm if the stage reads fewer references. */
    if (rc != CH_INVALID_ARGUMENT && !(rc == CH_OK && (how == 2 || how == 3)))
        fail_msg("state %zu: false reference %d is %s", i, how, ch_status_name(rc));
    free(bad);
    return true;
}

static void restore_rejects_false_references_without_allocating_for_them(void **state)
{
    ch_dataset *d = ch_dataset_with_options(
        ch_dataset_map(ch_dataset_batch(ch_dataset_shuffle(rows(100, 0), 50, NULL), 3, NULL),
                       scale, NULL, NULL),
        &(ch_dataset_options){.threads = CH_OFF});
    ch_iterator *it = NULL;
    void        *bytes = NULL;
    size_t       n = 0;
    int          n_spoiled = 0;
    static trace got;

    (void)state;
    t_ok(ch_iterator_new(d, &(ch_iterator_options){.n_replicas = 2}, &it));
    follow(it, 2, &got);
    t_ok(ch_iterator_save(it, &bytes, &n));
    for (int how = 0; how < 11; how++)
        for (size_t i = 0; i < 5; i++) /* iterator, map, batch, shuffle, slices */
            n_spoiled += restore_spoiled(it, bytes, n, i, how);
    assert_true(n_spoiled >= 11);
    t_ok(ch_iterator_restore(it, bytes, n));
    ch_bytes_free(bytes);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
}

/* ---- memory ---- */

/* Saves and restores while an allocation fails. Returns the rows of all steps; -1: a call has
 * failed. */
static int try_to_go_on(ch_dataset *d)
{
    static steps got;
    ch_dataset  *mine = NULL;
    ch_iterator *it = NULL, *other = NULL;
    ch_tuple    *t = NULL;
    void        *bytes = NULL;
    size_t       size = 0;
    int          n = 0;
    ch_status    rc = ch_dataset_distribute(d, &(ch_input_context){.n_replicas = 3}, &mine);

    got.n = 0;
    if (rc == CH_OK)
        rc = ch_iterator_new(mine, &(ch_iterator_options){.n_replicas = 3}, &it);
    for (int i = 0; i < 2 && rc == CH_OK && (rc = ch_iterator_next(it, &t)) == CH_OK; i++) {
        add_step(&got, t);
        ch_tuple_unref(t);
        t = NULL;
    }
    if (rc == CH_OK)
        rc = ch_iterator_save(it, &bytes, &size);
    if (rc == CH_OK)
        rc = ch_iterator_new(d, NULL, &other);
    if (rc == CH_OK)
        rc = ch_iterator_restore(other, bytes, size);
    while (rc == CH_OK && (rc = ch_iterator_next(other, &t)) == CH_OK && t != NULL) {
        add_step(&got, t);
        ch_tuple_unref(t);
        t = NULL;
    }
    for (int i = 0; i < got.n; i++)
        n += got.n_rows[i];
    ch_bytes_free(bytes);
    ch_iterator_unref(it);
    ch_iterator_unref(other);
    ch_dataset_unref(mine);
    return rc == CH_OK ? n : -1;
}

static void positions_are_saved_whole_or_not_at_all_when_out_of_memory(void **state)
{
    ch_dataset *d = ch_dataset_with_options(
        ch_dataset_map(ch_dataset_batch(ch_dataset_shuffle(rows(60, 0), 20, NULL), 7, NULL),
                       scale, NULL, NULL),
        &(ch_dataset_options){.threads = CH_OFF});
    int     all = try_to_go_on(d), n_failed = 0;
    int64_t first, most, live;

    (void)state;
    assert_int_equal(all, 60);
    first = ch__mem_allocs();
    assert_int_equal(try_to_go_on(d), 60);
    most = ch__mem_allocs() - first;
    live = ch__mem_live();
    for (int64_t i = 1; i <= most; i++) {
        ch__mem_fail_at(i);
        int n = try_to_go_on(d);
        ch__mem_fail_at(0);
        assert_true(n == -1 || n == 60);
        n_failed += n == -1;
        assert_int_equal(ch__mem_live(), live);
    }
    assert_true(n_failed > 50);
    ch_dataset_unref(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(positions_of_rows_in_memory_have_no_data_and_restore_all_elements),
        cmocka_unit_test(position_has_no_data_wherever_repeat_stands),
        cmocka_unit_test(position_has_no_data_in_short_and_nested_passes),
        cmocka_unit_test(restore_reads_a_position_of_the_version_before),
        cmocka_unit_test(position_of_a_shuffle_over_60000_pictures_has_less_than_a_mebibyte),
        cmocka_unit_test(position_of_a_shuffle_over_a_range_has_some_bytes_for_each_number),
        cmocka_unit_test(global_batches_that_k_replicas_began_are_continued_by_m),
        cmocka_unit_test(groups_that_k_replicas_began_are_continued_by_m),
        cmocka_unit_test(rest_of_a_batch_is_divided_anew_when_the_position_is_inside),
        cmocka_unit_test(restore_rejects_a_position_inside_a_batch_when_nothing_is_divided),
        cmocka_unit_test(positions_restore_rows_of_tensors_that_share_memory),
        cmocka_unit_test(restore_rejects_a_row_that_the_data_does_not_have),
        cmocka_unit_test(restore_rejects_false_references_without_allocating_for_them),
        cmocka_unit_test(positions_are_saved_whole_or_not_at_all_when_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

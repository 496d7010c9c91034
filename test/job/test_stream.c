/* test/job/test_stream.c -- elements of a dataset by their numbers, compared with a plain
 * iterator.
 *
 * A stream (job/worker/stream.h) returns element n of a pipeline, for any n, and saves
 * positions from which another stream can continue. The tests request random numbers of random
 * pipelines, from several streams, with bad records and with failing allocations. T_CASES is
 * the number of cases, T_SEED the seed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../data/any.h"
#include "../data/position.h"
#include "../file/folder.h"
#include "base/mem.h"
#include "data/iterator.h"
#include "job/worker/stream.h"
#include "tensor/device.h"

enum { MOST = 700 };

static int n_cases(int usual)
{
    return getenv("T_CASES") != NULL ? atoi(getenv("T_CASES")) : usual;
}

static uint64_t seed_of(int i)
{
    return (getenv("T_SEED") != NULL ? strtoull(getenv("T_SEED"), NULL, 10) : 1) * 1000003 +
           (uint64_t)i;
}

/* ---- the elements of a plain iterator ---- */

typedef struct model {
    int   n;
    bool  has_end; /* the data has n elements */
    char *text[MOST];
} model;

/* Returns an element or its error as text, which is valid until the next call. */
static const char *text_of(ch_status rc, ch_tuple *t)
{
    static t_given g;

    g.n = 0;
    g.used = 0;
    g.text[0] = '\0';
    if (rc != CH_OK)
        t_add(&g, "!%s", ch_status_name(rc));
    else
        t_add_tuple(&g, t);
    return g.text;
}

static void read_model(model *m, ch_iterator *it)
{
    for (m->n = 0, m->has_end = false; m->n < MOST; m->n++) {
        ch_tuple *t = NULL;
        ch_status rc = ch_iterator_next(it, &t);

        m->has_end = rc == CH_OK && t == NULL;
        if (m->has_end)
            return;
        m->text[m->n] = strdup(text_of(rc, t));
        ch_tuple_unref(t);
    }
}

static void drop_model(model *m)
{
    for (int i = 0; i < m->n; i++)
        free(m->text[i]);
    m->n = 0;
}

static void model_of(ch_dataset *d, ch_stream_name name, int n_replicas, model *m)
{
    const ch_iterator_options opt = {.go_on = true, .n_replicas = n_replicas};
    ch_iterator              *it = NULL;

    t_ok(ch__iterator_new_named(d, &opt, name, &it));
    read_model(m, it);
    ch_iterator_unref(it);
}

/* ---- streams ---- */

typedef struct source {
    void  *bytes;
    size_t n;
    int    n_replicas;

    ch_stream_name name;
} source;

/* Takes over the reference to the dataset. */
static source source_of(ch_dataset *d)
{
    source s = {.n_replicas = 1};

    t_ok(ch_dataset_encode(d, &s.bytes, &s.n));
    ch_dataset_unref(d);
    return s;
}

static ch_stream *stream_at(const source *s, int64_t first, const void *position, size_t n)
{
    ch_stream *out = NULL;

    t_ok(ch__stream_new(&(ch_stream_options){.name = "stream 7",
                                             .dataset = s->bytes,
                                             .n_dataset = s->n,
                                             .reader = s->name.reader,
                                             .pass = s->name.pass,
                                             .first = first,
                                             .position = position,
                                             .n_position = n,
                                             .n_replicas = s->n_replicas},
                        &out));
    return out;
}

static ch_stream *stream_of(const source *s)
{
    return stream_at(s, 0, NULL, 0);
}

static void check_number(ch_stream *s, const model *m, int64_t number)
{
    ch_tuple *t = NULL;
    ch_status rc = ch__stream_element(s, number, &t);

    if (number < m->n) {
        const char *is = rc == CH_OK && t == NULL ? "the end" : text_of(rc, t);

        if (strcmp(is, m->text[number]) != 0)
            fail_msg("element %lld is %s, want %s (%s)", (long long)number, is, m->text[number],
                     ch_error_message());
    } else {
        t_ok(rc);
        assert_null(t);
    }
    ch_tuple_unref(t);
}

/* Returns a random next number: mostly the following number, sometimes the same, an earlier or
 * a later number. */
static int64_t wander(dice *d, int64_t at, int64_t least, int64_t n)
{
    switch (roll(d, 40)) {
    case 0:
        at = least + (int64_t)roll(d, (uint64_t)(n - least));
        break;
    case 1:
        at += (int64_t)roll(d, 150);
        break;
    case 2:
        at -= (int64_t)roll(d, 150);
        break;
    case 3:
    case 4:
        at -= (int64_t)roll(d, 8);
        break;
    case 5:
        break;
    default:
        at++;
    }
    return at < least ? least : at >= n ? n - 1 : at;
}

/* Returns the number of elements, plus 1 so that a number after the end is requested too. */
static int64_t numbers_of(const model *m)
{
    return m->n + (m->has_end ? 3 : 0);
}

static void walk(const source *from, const model *m, dice *d, int steps)
{
    ch_stream *s = stream_of(from);

    for (int64_t i = 0, at = 0; i < steps && numbers_of(m) > 0; i++) {
        check_number(s, m, at);
        at = wander(d, at, 0, numbers_of(m));
    }
    ch__stream_free(s);
}

static bool is_there(const ch_stream *s)
{
    int64_t     number;
    const void *bytes;
    size_t      n;

    return ch__stream_position(s, &number, &bytes, &n);
}

/* ---- any order ---- */

static ch_dataset *slices(int n)
{
    ch_tensor  *x = t_noise(ch_shape_of(n, 3), 5);
    ch_dataset *d = ch_dataset_slices(1, &x, NULL);

    ch_tensor_unref(x);
    return d;
}

static ch_dataset *shuffled_rows(ch_dataset *element, void *arg)
{
    (void)arg;
    return ch_dataset_shuffle(ch_dataset_unbatch(element), 5, NULL);
}

static ch_dataset *pipeline(int which, dice *d)
{
    ch_dataset *x;

    switch (which) {
    case 0:
        return ch_dataset_range(0, (int64_t)roll(d, 600), 1);
    case 1:
        return slices(1 + (int)roll(d, 300));
    case 2:
        return ch_dataset_shuffle(slices(300), 40, &(ch_shuffle_options){.seed = roll(d, 9)});
    case 3:
        return ch_dataset_repeat(ch_dataset_shuffle(ch_dataset_range(0, 70, 1), 70, NULL),
                                 CH_INFINITE);
    case 4:
        return ch_dataset_batch(ch_dataset_range(0, 999, 1), 1 + (int64_t)roll(d, 9), NULL);
    case 5:
        x = ch_dataset_map(ch_dataset_range(0, 400, 1), any_noisy, NULL, NULL);
        return ch_dataset_prefetch(x, 16);
    case 6:
        x = ch_dataset_shuffle(ch_dataset_range(0, 900, 1), 100, NULL);
        x = ch_dataset_interleave(ch_dataset_batch(x, 11, NULL), any_noisy_rows, NULL,
                                  &(ch_interleave_options){.cycle = 4, .block = 2});
        return ch_dataset_batch(x, 3, NULL);
    default:
        x = ch_dataset_repeat(ch_dataset_map(slices(100), any_twice, NULL, NULL), 3);
        return ch_dataset_batch(ch_dataset_shuffle(x, 50, NULL), 2,
                                &(ch_batch_options){.drop_remainder = true});
    }
}

enum { N_PIPELINES = 8 };

static void stream_gives_elements_by_number_in_any_order(void **state)
{
    static model m;

    (void)state;
    for (int i = 0; i < n_cases(96); i++) {
        dice        d = {seed_of(i)};
        ch_dataset *x = pipeline(i % N_PIPELINES, &d);
        source      from;
        int         n_replicas = 1 + (int)roll(&d, 3);

        x = ch_dataset_with_options(
            x, &(ch_dataset_options){.threads = (int)roll(&d, 4) - 1}); /* CH_OFF is -1 */
        model_of(x, (ch_stream_name){0}, n_replicas, &m);
        from = source_of(x);
        from.n_replicas = n_replicas;
        walk(&from, &m, &d, 200);
        ch_bytes_free(from.bytes);
        drop_model(&m);
    }
}

/* Tests a random pipeline in a random pass. Returns false if it cannot be sent, because it
 * calls C functions. */
static bool walk_any(dice *d, bool unordered)
{
    static model m;
    int          threads = unordered ? 0 : (int)roll(d, 4) - 1;
    ch_dataset  *x = any_pipeline(t_folder, roll_bits(d), unordered, threads);
    source       from = {.name = {(int64_t)roll(d, 3), (int64_t)roll(d, 4)},
                         .n_replicas = 1 + (int)roll(d, 2)};
    bool         is_sent = ch_dataset_encode(x, &from.bytes, &from.n) == CH_OK;

    if (unordered)
        x = ch_dataset_with_options(x, &(ch_dataset_options){.threads = CH_OFF});
    if (is_sent) {
        model_of(x, from.name, from.n_replicas, &m);
        walk(&from, &m, d, 60);
        drop_model(&m);
    }
    ch_bytes_free(from.bytes);
    ch_dataset_unref(x);
    return is_sent;
}

static void stream_numbers_elements_of_random_pipelines(void **state)
{
    int n = n_cases(400), n_sent = 0;

    (void)state;
    for (int i = 0; i < n; i++)
        n_sent += walk_any(&(dice){seed_of(i)}, false);
    assert_true(n_sent >= n / 5);
}

/* The numbers do not depend on the reader or on the elements that were read before. */
static void stream_numbers_elements_of_unordered_stages(void **state)
{
    int n = n_cases(200), n_sent = 0;

    (void)state;
    for (int i = 0; i < n; i++)
        n_sent += walk_any(&(dice){seed_of(i)}, true);
    assert_true(n_sent >= n / 5);
}

static void stream_puts_a_group_on_the_devices_of_its_replicas(void **state)
{
    source     from = source_of(ch_dataset_range(0, 5, 1));
    ch_device *device[2] = {NULL, NULL};
    ch_stream *s = NULL;
    ch_tuple  *t = NULL;
    ch_value  *v;

    (void)state;
    for (int i = 0; i < 2; i++)
        t_ok(ch__device_of_task("worker", 3, i, &device[i]));
    t_ok(ch__stream_new(
        &(ch_stream_options){
            .dataset = from.bytes, .n_dataset = from.n, .n_replicas = 2, .device = device},
        &s));
    t_ok(ch__stream_element(s, 1, &t));
    v = ch_tuple_at(t, 0);
    assert_int_equal(ch_value_count(v), 2);
    for (int i = 0; i < 2; i++) {
        assert_ptr_equal(ch_tensor_device(ch_value_at(v, i)), device[i]);
        assert_int_equal(*(const int64_t *)ch_tensor_data(ch_value_at(v, i)), 2 + i);
    }
    ch_tuple_unref(t);
    ch__stream_free(s);
    ch_bytes_free(from.bytes);
}

/* ---- passes ---- */

enum { N_READERS = 3, N_PASSES = 4, N_EPOCHS = 6, N_ELEMENTS = 12, N_TEXT = 160 };

/* The elements of an epoch, in order, as text. */
typedef struct order {
    char text[N_TEXT];
} order;

/* Reads the first N_EPOCHS epochs, of N_ELEMENTS each, from a stream. */
static void read_orders(const source *from, order *out)
{
    ch_stream *s = stream_of(from);

    for (int e = 0; e < N_EPOCHS; e++) {
        size_t used = 0;

        for (int i = 0; i < N_ELEMENTS; i++) {
            ch_tuple   *t = NULL;
            ch_status   rc = ch__stream_element(s, e * N_ELEMENTS + i, &t);
            const char *is = text_of(rc, t);

            used += (size_t)snprintf(out[e].text + used, N_TEXT - used, "%s", is);
            assert_true(used < N_TEXT);
            ch_tuple_unref(t);
        }
    }
    ch__stream_free(s);
}

/* Stores the order of each (reader, pass, epoch). Takes over the reference to the dataset. */
static void read_all_orders(ch_dataset *d, order *out)
{
    source from = source_of(d);

    for (from.name.reader = 0; from.name.reader < N_READERS; from.name.reader++)
        for (from.name.pass = 0; from.name.pass < N_PASSES; from.name.pass++)
            read_orders(&from, &out[(from.name.reader * N_PASSES + from.name.pass) * N_EPOCHS]);
    ch_bytes_free(from.bytes);
}

static order *all_orders(ch_dataset *d)
{
    static order is[N_READERS * N_PASSES * N_EPOCHS];

    read_all_orders(d, is);
    return is;
}

/* Returns a dataset that takes each element from a random dataset out of eight. */
static ch_dataset *sampled(void)
{
    enum { N = 8 };
    ch_dataset *d[N];

    for (int i = 0; i < N; i++)
        d[i] = ch_dataset_range(100 * i, 100 * i + N_ELEMENTS, 1);
    return ch_dataset_take(ch_dataset_sample_from(N, d, NULL, NULL), N_ELEMENTS);
}

/* Returns a pipeline that uses random numbers in each of N_EPOCHS epochs of N_ELEMENTS
 * elements. */
static ch_dataset *drawing(int which)
{
    ch_dataset *d = ch_dataset_range(0, N_ELEMENTS, 1);

    switch (which) {
    case 0:
        d = ch_dataset_shuffle(d, N_ELEMENTS, NULL);
        break;
    case 1:
        d = ch_dataset_map(d, any_noisy, NULL, NULL);
        break;
    case 2:
        d = ch_dataset_interleave(ch_dataset_batch(d, 3, NULL), any_noisy_rows, NULL, NULL);
        break;
    default:
        ch_dataset_unref(d);
        d = sampled();
    }
    return ch_dataset_repeat(d, CH_INFINITE);
}

enum { N_DRAWING = 4 };

static void stream_draws_are_distinct_for_every_reader_pass_and_epoch(void **state)
{
    (void)state;
    for (int which = 0; which < N_DRAWING; which++) {
        const order *is = all_orders(drawing(which));

        for (int i = 0; i < N_READERS * N_PASSES * N_EPOCHS; i++)
            for (int k = 0; k < i; k++)
                if (strcmp(is[i].text, is[k].text) == 0)
                    fail_msg("pipeline %d: (reader %d, pass %d, epoch %d) is (%d, %d, %d): %s",
                             which, i / N_EPOCHS / N_PASSES, i / N_EPOCHS % N_PASSES,
                             i % N_EPOCHS, k / N_EPOCHS / N_PASSES, k / N_EPOCHS % N_PASSES,
                             k % N_EPOCHS, is[i].text);
    }
}

static void stream_shuffles_alike_in_passes_and_epochs_when_same_each_time(void **state)
{
    ch_dataset  *d = ch_dataset_shuffle(ch_dataset_range(0, N_ELEMENTS, 1), N_ELEMENTS,
                                        &(ch_shuffle_options){.same_each_time = true});
    const order *is = all_orders(ch_dataset_repeat(d, CH_INFINITE));

    (void)state;
    for (int i = 0; i < N_READERS * N_PASSES * N_EPOCHS; i++)
        assert_string_equal(is[i].text,
                            is[i / (N_PASSES * N_EPOCHS) * (N_PASSES * N_EPOCHS)].text);
    for (int i = 0; i < N_READERS; i++)
        for (int k = 0; k < i; k++)
            assert_string_not_equal(is[i * N_PASSES * N_EPOCHS].text,
                                    is[k * N_PASSES * N_EPOCHS].text);
}

/* Workers that divide data by ch_dataset_shard read disjoint parts of the same order. */
static void stream_shards_of_a_shuffle_are_disjoint(void **state)
{
    (void)state;
    for (int pass = 0; pass < N_PASSES; pass++) {
        int seen[N_ELEMENTS * N_READERS] = {0};

        for (int reader = 0; reader < N_READERS; reader++) {
            ch_dataset *d = ch_dataset_range(0, N_ELEMENTS * N_READERS, 1);
            source      from;
            ch_stream  *s;

            d = ch_dataset_shuffle(d, N_ELEMENTS * N_READERS, NULL);
            from = source_of(ch_dataset_shard(d, N_READERS, reader));
            from.name = (ch_stream_name){reader, pass};
            s = stream_of(&from);
            for (int i = 0; i < N_ELEMENTS; i++) {
                ch_tuple *t = NULL;

                t_ok(ch__stream_element(s, i, &t));
                seen[*(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(t, 0), 0))]++;
                ch_tuple_unref(t);
            }
            ch__stream_free(s);
            ch_bytes_free(from.bytes);
        }
        for (int i = 0; i < N_ELEMENTS * N_READERS; i++)
            assert_int_equal(seen[i], 1);
    }
}

/* A position contains the name of its stream. A stream that continues there has the order of
 * that name, and not of its own. */
static void stream_resumes_as_the_reader_and_pass_of_its_position(void **state)
{
    static model m;
    ch_dataset  *x =
        ch_dataset_repeat(ch_dataset_shuffle(ch_dataset_range(0, 50, 1), 50, NULL), 9);
    source      from;
    int64_t     number = 0;
    const void *bytes = NULL;
    size_t      n = 0;
    ch_stream  *s, *other;

    (void)state;
    model_of(x, (ch_stream_name){2, 3}, 1, &m);
    from = source_of(x);
    from.name = (ch_stream_name){2, 3};
    s = stream_of(&from);
    check_number(s, &m, 200);
    assert_true(ch__stream_position(s, &number, &bytes, &n));
    from.name = (ch_stream_name){1, 7};
    other = stream_at(&from, number, bytes, n);
    for (int64_t i = number; i < m.n; i++)
        check_number(other, &m, i);
    ch__stream_free(other);
    ch__stream_free(s);
    drop_model(&m);
    ch_bytes_free(from.bytes);
}

/* A worker that starts again continues at the position that the last process has saved. The
 * dataset is that of a training: the batches are mapped, and then repeated. */
static void stream_positions_have_no_data_in_any_process(void **state)
{
    enum { PROCESSES = 4, ELEMENTS = 3 * CH_STREAM_POSITION_INTERVAL };
    static model m;
    ch_tensor   *t = NULL;
    ch_dataset  *d;
    source       from;
    int64_t      number = 0, before;
    void        *place = NULL;
    size_t       n = 0;

    (void)state;
    t_ok(ch_tensor_new(CH_I64, ch_shape_of(300, 20), &t));
    for (int64_t i = 0; i < 6000; i++)
        ((int64_t *)ch_tensor_data_mut(t))[i] = i;
    d = ch_dataset_shuffle(ch_dataset_slices(1, &t, NULL), 100, NULL);
    ch_tensor_unref(t);
    d = ch_dataset_map(ch_dataset_batch(d, 32, NULL), any_twice, NULL, NULL);
    d = ch_dataset_repeat(d, -1);
    model_of(d, (ch_stream_name){1, 0}, 1, &m);
    from = source_of(d);
    from.name = (ch_stream_name){1, 0};
    for (int i = 0; i < PROCESSES && number + ELEMENTS < MOST; i++) {
        ch_stream  *s = stream_at(&from, number, place, n);
        const void *bytes = NULL;

        before = number;
        for (int64_t k = 0; k < ELEMENTS; k++) {
            check_number(s, &m, before + k);
            if (ch__stream_position(s, &number, &bytes, &n))
                assert_true(t_is_small(bytes, n));
        }
        assert_true(number > before);
        free(place);
        place = malloc(n);
        memcpy(place, bytes, n);
        ch__stream_free(s);
    }
    free(place);
    drop_model(&m);
    ch_bytes_free(from.bytes);
}

/* ---- positions of other streams ---- */

/* Several streams. Each is sometimes created at a position and sometimes moved to a position
 * that another has saved. */
static void stream_resumes_from_a_position_of_another_stream(void **state)
{
    static model m;

    (void)state;
    for (int i = 0; i < n_cases(40); i++) {
        enum { N = 3 };
        dice        d = {seed_of(i)};
        ch_dataset *x = pipeline(i % N_PIPELINES, &d);
        source      from;
        ch_stream  *s[N];
        int64_t     least[N] = {0}, at = 0;

        model_of(x, (ch_stream_name){1, 2}, 1, &m);
        from = source_of(x);
        from.name = (ch_stream_name){1, 2};
        for (int k = 0; k < N; k++)
            s[k] = stream_of(&from);
        for (int step = 0, now = 0; step < 300 && numbers_of(&m) > 0; step++) {
            int64_t     number = 0;
            const void *bytes = NULL;
            size_t      n = 0;
            int         other = (now + 1) % N;

            check_number(s[now], &m, at);
            at = wander(&d, at, least[now], numbers_of(&m));
            if (roll(&d, 30) > 0 || !ch__stream_position(s[now], &number, &bytes, &n))
                continue;
            ch__stream_free(s[other]);
            s[other] = stream_at(&from, number, bytes, n);
            least[other] = number;
            now = other;
            at = at < least[now] ? least[now] : at;
        }
        for (int k = 0; k < N; k++)
            ch__stream_free(s[k]);
        ch_bytes_free(from.bytes);
        drop_model(&m);
    }
}

/* Returns a copy of the last position that a stream has saved. */
static void *copy_of_place(const ch_stream *s, int64_t *number, size_t *n)
{
    const void *bytes = NULL;
    void       *copy;

    assert_true(ch__stream_position(s, number, &bytes, n));
    copy = malloc(*n);
    memcpy(copy, bytes, *n);
    return copy;
}

static void stream_rejects_an_element_before_its_position(void **state)
{
    source       from = source_of(ch_dataset_range(0, 400, 1));
    ch_stream   *s = stream_of(&from), *later;
    static model m;
    ch_dataset  *x = ch_dataset_range(0, 400, 1);
    ch_tuple    *t = NULL;
    int64_t      early = 0, late = 0;
    size_t       n_early = 0, n_late = 0;
    void        *at_early, *at_late;

    (void)state;
    model_of(x, (ch_stream_name){0}, 1, &m);
    check_number(s, &m, 100);
    at_early = copy_of_place(s, &early, &n_early);
    check_number(s, &m, 300);
    at_late = copy_of_place(s, &late, &n_late);
    assert_int_equal(early, 64);
    assert_int_equal(late, 256);

    later = stream_at(&from, late, at_late, n_late);
    t_refused(ch__stream_element(later, 255, &t), CH_OUT_OF_RANGE, "stream 7", "256");
    check_number(later, &m, 256);
    t_refused(ch__stream_element(later, 255, &t), CH_OUT_OF_RANGE, "element 255", "256");
    ch__stream_free(later);
    later = stream_at(&from, early, at_early, n_early);
    check_number(later, &m, 255);
    check_number(later, &m, 64);
    check_number(later, &m, 399);
    t_refused(ch__stream_element(later, 63, &t), CH_OUT_OF_RANGE, "element 63", "64");
    t_refused(ch__stream_element(later, -1, &t), CH_OUT_OF_RANGE, "element -1", "64");
    ch__stream_free(later);
    ch__stream_free(s);
    free(at_early);
    free(at_late);
    ch_bytes_free(from.bytes);
    ch_dataset_unref(x);
    drop_model(&m);
}

static void stream_rejects_the_position_of_another_dataset(void **state)
{
    source     from = source_of(ch_dataset_range(0, 400, 1));
    source     others = source_of(ch_dataset_range(0, 401, 1));
    ch_stream *other = stream_of(&others), *bad;
    ch_tuple  *t = NULL;
    int64_t    number = 0;
    size_t     n = 0;
    void      *position;

    (void)state;
    t_ok(ch__stream_element(other, 200, &t));
    ch_tuple_unref(t);
    position = copy_of_place(other, &number, &n);
    bad = stream_at(&from, number, position, n);
    for (int i = 0; i < 3; i++)
        t_refused(ch__stream_element(bad, number, &t), CH_INVALID_ARGUMENT, "stream 7",
                  "another dataset");
    ch__stream_free(bad);
    ch__stream_free(other);
    free(position);
    ch_bytes_free(from.bytes);
    ch_bytes_free(others.bytes);
}

/* ---- kept positions and elements ---- */

static void stream_keeps_a_position_at_each_interval(void **state)
{
    source       from = source_of(ch_dataset_range(0, 400, 1));
    ch_stream   *s = stream_of(&from);
    static model m;
    ch_dataset  *x = ch_dataset_range(0, 400, 1);

    (void)state;
    model_of(x, (ch_stream_name){0}, 1, &m);
    assert_false(is_there(s));
    for (int64_t i = 0; i < 400; i++) {
        int64_t     number = 0;
        const void *bytes = NULL;
        size_t      n = 0;

        check_number(s, &m, i);
        assert_int_equal(ch__stream_position(s, &number, &bytes, &n),
                         i >= CH_STREAM_POSITION_INTERVAL - 1);
        assert_int_equal(number,
                         (i + 1) / CH_STREAM_POSITION_INTERVAL * CH_STREAM_POSITION_INTERVAL);
    }
    ch__stream_free(s);
    ch_bytes_free(from.bytes);
    ch_dataset_unref(x);
    drop_model(&m);
}

/* The bytes of saved positions do not exceed the bytes of the elements between them. */
static void stream_keeps_large_positions_less_often(void **state)
{
    source     from = source_of(ch_dataset_shuffle(slices(20000), 10000, NULL));
    int64_t    read = 0, kept = 0, last = 0;
    ch_stream *s = stream_of(&from);

    (void)state;
    for (int64_t i = 0; i < 2000; i++) {
        ch_tuple   *t = NULL;
        int64_t     number = 0;
        const void *bytes = NULL;
        size_t      n = 0;

        t_ok(ch__stream_element(s, i, &t));
        ch_tuple_unref(t);
        read += 1024; /* least number of bytes that an element counts */
        if (ch__stream_position(s, &number, &bytes, &n) && number != last) {
            kept += (int64_t)n;
            last = number;
        }
    }
    assert_true(last > 64 && kept < read + kept / 2);
    ch__stream_free(s);
    ch_bytes_free(from.bytes);
}

static void stream_keeps_the_last_elements(void **state)
{
    source     from = source_of(slices(100));
    ch_stream *s = stream_of(&from);
    ch_tuple  *t[8], *again = NULL;

    (void)state;
    t_ok(ch__stream_element(s, 50, &t[0]));
    for (int i = 1; i < 8; i++)
        t_ok(ch__stream_element(s, 50 + i, &t[i]));
    for (int i = 0; i < 8; i++) {
        t_ok(ch__stream_element(s, 50 + i, &again));
        assert_ptr_equal(again, t[i]);
        ch_tuple_unref(again);
    }
    t_ok(ch__stream_element(s, 49, &again));
    for (int i = 0; i < 8; i++)
        ch_tuple_unref(t[i]);
    ch_tuple_unref(again);
    ch__stream_free(s);
    ch_bytes_free(from.bytes);
}

/* Of elements of 12 MB two are kept; of larger elements only the last. */
static void stream_bounds_the_bytes_of_kept_elements(void **state)
{
    const int64_t rows[] = {1 << 20, 4 << 20};
    const int     kept[] = {2, 1};

    (void)state;
    for (int k = 0; k < 2; k++) {
        ch_tensor *large = t_noise(ch_shape_of(rows[k], 3), 1);
        source from = source_of(ch_dataset_repeat(ch_dataset_of(1, &large, NULL), CH_INFINITE));
        ch_stream *s = stream_of(&from);
        ch_tuple  *t[4], *again = NULL;

        for (int i = 0; i < 4; i++)
            t_ok(ch__stream_element(s, i, &t[i]));
        for (int i = 3; i >= 0; i--) {
            if (4 - i > kept[k])
                break;
            t_ok(ch__stream_element(s, i, &again));
            assert_ptr_equal(again, t[i]);
            ch_tuple_unref(again);
        }
        t_ok(ch__stream_element(s, 3 - kept[k], &again));
        assert_ptr_not_equal(again, t[3 - kept[k]]);
        ch_tuple_unref(again);
        for (int i = 0; i < 4; i++)
            ch_tuple_unref(t[i]);
        ch_tensor_unref(large);
        ch__stream_free(s);
        ch_bytes_free(from.bytes);
    }
}

/* ---- errors ---- */

/* Lines of a CSV file, some of which are not numbers. */
static ch_dataset *bad_csv(int n, const char *path)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fprintf(f, "x\n");
    for (int i = 0; i < n; i++)
        if (i % 37 == 5 || i % 50 == 0)
            fprintf(f, "oops\n");
        else
            fprintf(f, "%d\n", i);
    assert_int_equal(fclose(f), 0);
    return ch_dataset_csv(ch_dataset_file_list(1, &path), 1,
                          &(ch_csv_column){.name = "x", .dtype = CH_I64}, NULL);
}

/* With and without replicas: an error that interrupts a group has a number, and the group has
 * the next. */
static void stream_numbers_the_errors_of_bad_records(void **state)
{
    static model m;

    (void)state;
    for (int i = 0; i < n_cases(24); i++) {
        dice        d = {seed_of(i)};
        ch_dataset *x = bad_csv(400, t_path("bad.csv"));
        source      from;
        int         n_replicas = 1 + (int)roll(&d, 3);

        if (i % 3 == 1)
            x = ch_dataset_shuffle(x, 30, NULL);
        if (i % 3 == 2)
            x = ch_dataset_batch(ch_dataset_map(x, any_twice, NULL, NULL), 3, NULL);
        model_of(x, (ch_stream_name){0}, n_replicas, &m);
        from = source_of(x);
        from.n_replicas = n_replicas;
        walk(&from, &m, &d, 200);
        drop_model(&m);
        ch_bytes_free(from.bytes);
    }
}

static void stream_error_names_the_stream_and_the_element(void **state)
{
    source     from = source_of(bad_csv(100, t_path("bad.csv")));
    ch_stream *s = stream_of(&from);
    ch_tuple  *t = NULL;

    (void)state;
    for (int i = 0; i < 3; i++) {
        t_refused(ch__stream_element(s, 42, &t), CH_DATA_LOSS, "stream 7: element 42", "oops");
        t_ok(ch__stream_element(s, 43, &t));
        ch_tuple_unref(t);
        t_refused(ch__stream_element(s, 42, &t), CH_DATA_LOSS, "stream 7: element 42", "oops");
        t_ok(ch__stream_element(s, 41, &t));
        ch_tuple_unref(t);
        t_ok(ch__stream_element(s, 80, &t));
        ch_tuple_unref(t);
    }
    ch__stream_free(s);
    ch_bytes_free(from.bytes);
}

/* A plain iterator continues with the next file. A stream must not: if another worker can open
 * the file, numbers would belong to different elements on different workers. */
static void stream_repeats_the_error_of_a_file_that_cannot_be_opened(void **state)
{
    const char  *path[] = {t_path("one.csv"), t_path("two.csv"), t_path("three.csv")};
    ch_dataset  *x[3];
    ch_dataset  *all;
    static model m;
    source       from;
    ch_stream   *s;
    ch_tuple    *t = NULL;

    (void)state;
    for (int i = 0; i < 3; i++)
        ch_dataset_unref(bad_csv(100, path[i]));
    for (int i = 0; i < 3; i++)
        x[i] = ch_dataset_csv(ch_dataset_file_list(1, &path[i]), 1,
                              &(ch_csv_column){.name = "x", .dtype = CH_I64}, NULL);
    all = ch_dataset_concatenate(3, x);
    model_of(all, (ch_stream_name){0}, 1, &m);
    from = source_of(all);
    s = stream_of(&from);
    assert_int_equal(rename(path[1], t_path("away")), 0);
    check_number(s, &m, 90);
    for (int i = 0; i < 3; i++) {
        t_refused(ch__stream_element(s, 100, &t), CH_NOT_FOUND, "stream 7: element 100",
                  "two.csv");
        t_refused(ch__stream_element(s, 250, &t), CH_NOT_FOUND, "stream 7: element 100",
                  "two.csv");
        check_number(s, &m, 99 - i * 30);
    }
    assert_int_equal(rename(t_path("away"), path[1]), 0);
    check_number(s, &m, 100);
    check_number(s, &m, 250);
    for (int64_t i = 0; i < numbers_of(&m); i++)
        check_number(s, &m, i);
    ch__stream_free(s);
    ch_bytes_free(from.bytes);
    drop_model(&m);
}

static void stream_new_rejects_invalid_descriptions(void **state)
{
    const ch_tensor_spec one = {.dtype = CH_I64};
    ch_dataset          *calls =
        ch_dataset_map_call(ch_dataset_range(0, 9, 1), any_slow, NULL, 1, &one, NULL);
    source            from = source_of(ch_dataset_shuffle(ch_dataset_range(0, 99, 1), 9, NULL));
    ch_stream        *s = NULL;
    ch_stream_options opt = {.name = "stream 9", .dataset = "junk", .n_dataset = 4};
    void             *bytes = NULL;
    size_t            n = 0;

    (void)state;
    t_refused(ch__stream_new(&opt, &s), CH_INVALID_ARGUMENT, "stream 9", "decoding a dataset");
    t_refused(ch_dataset_encode(calls, &bytes, &n), CH_UNIMPLEMENTED, "map", "C function");
    ch_dataset_unref(calls);
    opt.dataset = from.bytes;
    for (size_t k = 0; k < from.n; k++) {
        opt.n_dataset = k;
        if (ch__stream_new(&opt, &s) == CH_OK) /* truncated between two stages */
            ch__stream_free(s);
        else
            assert_non_null(strstr(ch_error_message(), "stream 9"));
    }
    ch_bytes_free(from.bytes);
}

static void stream_new_rejects_invalid_arguments(void **state)
{
    source            from = source_of(ch_dataset_range(0, 9, 1));
    ch_stream        *s = NULL;
    ch_stream_options good = {.dataset = from.bytes, .n_dataset = from.n}, opt = good;

    (void)state;
    opt.pass = -1;
    t_refused(ch__stream_new(&opt, &s), CH_INVALID_ARGUMENT, "stream", "pass -1");
    opt = good;
    opt.reader = -3;
    t_refused(ch__stream_new(&opt, &s), CH_INVALID_ARGUMENT, "stream", "reader -3");
    opt = good;
    opt.first = 3;
    t_refused(ch__stream_new(&opt, &s), CH_INVALID_ARGUMENT, "element 3", "position");
    opt = good;
    opt.n_replicas = -2;
    t_refused(ch__stream_new(&opt, &s), CH_INVALID_ARGUMENT, "stream", "-2 replicas");
    opt = good;
    opt.dataset = NULL;
    t_refused(ch__stream_new(&opt, &s), CH_INVALID_ARGUMENT, "stream", "no dataset");
    assert_null(s);
    ch__stream_free(NULL);
    ch_bytes_free(from.bytes);
}

/* ---- failing allocations ---- */

static ch_dataset *needy(int which)
{
    ch_dataset *x;

    switch (which) {
    case 0:
        return ch_dataset_batch(ch_dataset_shuffle(slices(600), 40, NULL), 2, NULL);
    case 1:
        x = ch_dataset_interleave(slices(200), shuffled_rows, NULL, NULL);
        return ch_dataset_map(x, any_twice, NULL, NULL);
    case 2:
        x = ch_dataset_shuffle(ch_dataset_range(0, 500, 1), 20, NULL);
        return ch_dataset_cache(x, NULL);
    default:
        return bad_csv(600, t_path("bad.csv"));
    }
}

/* Whichever allocation fails, the call may fail, and the stream is unchanged after it. Threads
 * of the pipeline are included. */
static void stream_is_unchanged_when_memory_is_short(void **state)
{
    static model m;

    (void)state;
    for (int i = 0; i < n_cases(80); i++) {
        dice        d = {seed_of(i)};
        ch_dataset *x = needy(i % 4);
        source      from;
        ch_stream  *s;
        int64_t     at = 0;

        x = ch_dataset_with_options(x, &(ch_dataset_options){.threads = (int)roll(&d, 4) - 1});
        model_of(x, (ch_stream_name){0}, 1, &m);
        from = source_of(x);
        s = stream_of(&from);
        for (int k = 0; k < 12; k++) {
            ch_tuple *t = NULL;
            ch_status rc;

            ch__mem_fail_at(1 + (int64_t)roll(&d, k % 2 == 0 ? 60 : 900));
            rc = ch__stream_element(s, at, &t);
            ch__mem_fail_at(0);
            if (rc == CH_OK)
                assert_string_equal(text_of(rc, t), m.text[at]);
            ch_tuple_unref(t);
            if (roll(&d, 2) == 0)
                check_number(s, &m, at);
            at = (int64_t)roll(&d, (uint64_t)m.n);
        }
        for (int64_t k = 0; k < numbers_of(&m); k++)
            check_number(s, &m, k);
        ch__stream_free(s);
        ch_bytes_free(from.bytes);
        drop_model(&m);
    }
}

static void stream_new_leaks_nothing_when_memory_is_short(void **state)
{
    source  from = source_of(needy(0));
    int64_t live = ch__mem_live(), n = 0;

    (void)state;
    for (bool is_made = false; !is_made; n++) {
        ch_stream        *s = NULL;
        ch_tuple         *t = NULL;
        ch_stream_options opt = {.dataset = from.bytes, .n_dataset = from.n};
        ch_status         rc;

        ch__mem_fail_at(n + 1);
        rc = ch__stream_new(&opt, &s);
        ch__mem_fail_at(0);
        is_made = rc == CH_OK;
        if (is_made) {
            t_ok(ch__stream_element(s, 0, &t));
            ch_tuple_unref(t);
        }
        ch__stream_free(s);
        if (!is_made) /* after a successful call, memory may stay in pools */
            assert_int_equal(ch__mem_live(), live);
    }
    assert_true(n > 5);
    ch_bytes_free(from.bytes);
}

static int set_up(void **state)
{
    int rc = t_folder_make(state);

    any_write_files(t_folder);
    return rc;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stream_gives_elements_by_number_in_any_order),
        cmocka_unit_test(stream_numbers_elements_of_random_pipelines),
        cmocka_unit_test(stream_numbers_elements_of_unordered_stages),
        cmocka_unit_test(stream_puts_a_group_on_the_devices_of_its_replicas),
        cmocka_unit_test(stream_draws_are_distinct_for_every_reader_pass_and_epoch),
        cmocka_unit_test(stream_shuffles_alike_in_passes_and_epochs_when_same_each_time),
        cmocka_unit_test(stream_shards_of_a_shuffle_are_disjoint),
        cmocka_unit_test(stream_resumes_as_the_reader_and_pass_of_its_position),
        cmocka_unit_test(stream_positions_have_no_data_in_any_process),
        cmocka_unit_test(stream_resumes_from_a_position_of_another_stream),
        cmocka_unit_test(stream_rejects_an_element_before_its_position),
        cmocka_unit_test(stream_rejects_the_position_of_another_dataset),
        cmocka_unit_test(stream_keeps_a_position_at_each_interval),
        cmocka_unit_test(stream_keeps_large_positions_less_often),
        cmocka_unit_test(stream_keeps_the_last_elements),
        cmocka_unit_test(stream_bounds_the_bytes_of_kept_elements),
        cmocka_unit_test(stream_numbers_the_errors_of_bad_records),
        cmocka_unit_test(stream_error_names_the_stream_and_the_element),
        cmocka_unit_test(stream_repeats_the_error_of_a_file_that_cannot_be_opened),
        cmocka_unit_test(stream_new_rejects_invalid_descriptions),
        cmocka_unit_test(stream_new_rejects_invalid_arguments),
        cmocka_unit_test(stream_is_unchanged_when_memory_is_short),
        cmocka_unit_test(stream_new_leaks_nothing_when_memory_is_short),
    };

    return cmocka_run_group_tests(tests, set_up, t_folder_remove);
}

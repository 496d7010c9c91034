/* test/strategy/test_communication.c -- communication options of strategies and of calls, and
 * threads that use a strategy at the same time.
 *
 * The options choose the implementation of sums, the bytes of a pack and the timeout. The
 * numbers in comments are rows of doc/conformance.md.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>

#include "collective/collective.h"
#include "graph/step.h"
#include "help.h"

/* ---- options ---- */

static void is(ch_communication_options c, ch_cross_device way, int64_t bytes, double seconds)
{
    assert_int_equal(c.implementation, way);
    assert_int_equal(c.bytes_per_pack, bytes);
    assert_true(c.timeout_seconds == seconds);
}

static void communication_merge_prefers_the_options_that_are_merged_in(void **state) /* 4.7.2 */
{
    const ch_communication_options base = {CH_CROSS_RING, 100, 2}, none = {0};

    is(ch_communication_merge(&base, &none), CH_CROSS_RING, 100, 2);
    is(ch_communication_merge(&none, &base), CH_CROSS_RING, 100, 2);
    is(ch_communication_merge(&base,
                              &(ch_communication_options){.implementation = CH_CROSS_SHARED}),
       CH_CROSS_SHARED, 100, 2);
    is(ch_communication_merge(&base, &(ch_communication_options){.bytes_per_pack = 7}),
       CH_CROSS_RING, 7, 2);
    is(ch_communication_merge(&base, &(ch_communication_options){.timeout_seconds = 0.5}),
       CH_CROSS_RING, 100, 0.5);
    is(ch_communication_merge(&base, NULL), CH_CROSS_RING, 100, 2);
    is(ch_communication_merge(NULL, &base), CH_CROSS_RING, 100, 2);
    is(base, CH_CROSS_RING, 100, 2); /* unchanged */
    (void)state;
}

/* ---- packs ---- */

enum { ARRAYS = 4 };

typedef struct packing {
    int64_t limit;
    int     pack[ARRAYS]; /* pack of array i, from 0 */
} packing;

static void pack_them(ch_step *s, void *arg)
{
    static const int64_t bytes[] = {4, 800, 32, 128}; /* from the last to the first */
    packing             *p = arg;
    ch_node             *x[ARRAYS], *out[ARRAYS] = {NULL}, *head[ARRAYS];
    int                  n = 0;

    for (int i = 0; i < ARRAYS; i++)
        x[i] =
            ch_broadcast_to(ch_cast(ch_step_replica_id(s), CH_F32), ch_shape_of(bytes[i] / 4));
    ch_all_reduce_all_with(CH_SUM, ARRAYS, x,
                           &(ch_communication_options){.bytes_per_pack = p->limit}, out);
    for (int i = ARRAYS - 1; i >= 0; i--) {
        assert_non_null(out[i]);
        for (p->pack[i] = 0; p->pack[i] < n && head[p->pack[i]] != out[i]->head;)
            p->pack[i]++;
        if (p->pack[i] == n)
            head[n++] = out[i]->head;
        ch_step_out(s, NULL, ch_sum_all(out[i]));
    }
}

static void
all_reduce_pack_is_full_when_it_exceeds_bytes_per_pack(void **state) /* 4.7.4, 4.7.6 */
{
    static const struct {
        int64_t limit;
        int     pack[ARRAYS];
    } row[] = {{0, {0, 0, 0, 0}},     {200, {1, 0, 0, 0}},
               {128, {2, 1, 0, 0}}, /* the first array does not exceed the limit */
               {127, {2, 1, 1, 0}},   {1, {3, 2, 1, 0}},
               {100000, {0, 0, 0, 0}}};
    static const float count[] = {32, 8, 200, 1};
    ch_strategy       *st = t_mirrored(2);

    for (int i = 0; i < 6; i++) {
        packing      p = {.limit = row[i].limit};
        ch_function *f = t_function(pack_them, &p);
        ch_tuple    *out = NULL;

        t_ok(ch_strategy_run(st, f, NULL, &out));
        assert_memory_equal(p.pack, row[i].pack, sizeof(p.pack));
        for (int k = 0; k < ARRAYS; k++) /* each element is 0 + 1 */
            assert_true(t_floats(out, k, 1)[0] == count[k]);
        ch_tuple_unref(out);
        ch_function_unref(f);
    }
    ch_strategy_unref(st);
    (void)state;
}

/* ---- options of a call ---- */

enum { N = 4, SIZE = 1001, WAYS = CH_CROSS_RING + 1 };

/* Reduces with each implementation, and in between with that of the strategy; single values and
 * several values. */
static void reduce_each_way(ch_step *s, void *arg)
{
    ch_node *x[2] = {ch_step_in(s, 0), ch_step_in(s, 0)}, *sum[2];

    (void)arg;
    for (int w = CH_CROSS_AUTO; w < WAYS; w++) {
        const ch_communication_options how = {.implementation = (ch_cross_device)w};

        ch_step_out(s, NULL, ch_all_reduce_with(CH_SUM, x[0], &how));
        ch_all_reduce_all_with(CH_SUM, 2, x, &how, sum);
        ch_step_out(s, NULL, sum[1]);
        ch_all_reduce_all(CH_SUM, 2, x, sum);
        ch_step_out(s, NULL, sum[0]);
    }
}

static void reduce_the_usual_way(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_all_reduce(CH_SUM, ch_step_in(s, 0)));
}

static ch_strategy *four(ch_communication_options how)
{
    static const char *const gpu[] = {"GPU:0", "GPU:1", "GPU:2", "GPU:3"};
    ch_strategy             *st = NULL;

    t_ok(ch_strategy_mirrored(
        &(ch_mirrored_options){.n_devices = N, .device = gpu, .communication = how}, &st));
    return st;
}

static ch_value *noise_of_four(void)
{
    ch_tensor *t[N];
    ch_value  *v = NULL;

    for (int i = 0; i < N; i++)
        t[i] = t_noise(ch_shape_of(SIZE), (unsigned)i + 1);
    t_ok(ch_value_new(CH_PER_REPLICA, N, t, &v));
    for (int i = 0; i < N; i++)
        ch_tensor_unref(t[i]);
    return v;
}

static void sum_on_host(ch_strategy *st, const ch_value *v, const ch_communication_options *how,
                        const float *want)
{
    const ch_destination to = {.device = "GPU:0"};
    ch_value            *sum = NULL;

    t_ok(ch_strategy_reduce_to_with(st, CH_SUM, v, &to, how, &sum));
    assert_memory_equal(ch_tensor_data(ch_value_at(sum, 0)), want, SIZE * sizeof(float));
    ch_value_unref(sum);
    t_ok(ch_strategy_batch_reduce_to_with(st, CH_SUM, 1, &v, &to, how, &sum));
    assert_memory_equal(ch_tensor_data(ch_value_at(sum, 0)), want, SIZE * sizeof(float));
    ch_value_unref(sum);
}

static bool differ(const float *a, const float *b)
{
    for (int i = 0; i < SIZE; i++)
        if (a[i] != b[i])
            return true;
    return false;
}

/* A call with an implementation option has the bits of a strategy with that implementation.
 * Other calls are not affected. */
static void all_reduce_options_override_those_of_the_strategy(void **state) /* 4.7.3 */
{
    ch_value *v = noise_of_four();
    ch_tuple *in = NULL, *out[WAYS] = {NULL};
    int       n_different = 0;

    t_ok(ch_tuple_new(1, &v, NULL, &in));
    for (int w = CH_CROSS_AUTO; w < WAYS; w++) {
        ch_strategy *st =
            four((ch_communication_options){.implementation = (ch_cross_device)w});
        ch_function *f = t_function(reduce_the_usual_way, NULL);

        t_ok(ch_strategy_run(st, f, in, &out[w]));
        sum_on_host(st, v, NULL, t_floats(out[w], 0, 0));
        ch_function_unref(f);
        ch_strategy_unref(st);
    }
    for (int w = CH_CROSS_AUTO; w < WAYS; w++) {
        ch_strategy *st =
            four((ch_communication_options){.implementation = (ch_cross_device)w});
        ch_function *f = t_function(reduce_each_way, NULL);
        ch_tuple    *all = NULL;

        t_ok(ch_strategy_run(st, f, in, &all));
        for (int k = CH_CROSS_AUTO; k < WAYS; k++) {
            const ch_communication_options how = {.implementation = (ch_cross_device)k};
            const float *as_asked = t_floats(out[k == CH_CROSS_AUTO ? w : k], 0, 0);

            for (int r = 0; r < N; r++) {
                assert_memory_equal(t_floats(all, 3 * k, r), as_asked, SIZE * sizeof(float));
                assert_memory_equal(t_floats(all, 3 * k + 1, r), as_asked,
                                    SIZE * sizeof(float));
                assert_memory_equal(t_floats(all, 3 * k + 2, r), t_floats(out[w], 0, 0),
                                    SIZE * sizeof(float));
            }
            sum_on_host(st, v, &how, as_asked);
        }
        n_different += differ(t_floats(out[w], 0, 0), t_floats(out[0], 0, 0));
        ch_tuple_unref(all);
        ch_function_unref(f);
        ch_strategy_unref(st);
    }
    assert_true(n_different >= 2); /* otherwise the test proves nothing */
    for (int w = CH_CROSS_AUTO; w < WAYS; w++)
        ch_tuple_unref(out[w]);
    ch_tuple_unref(in);
    ch_value_unref(v);
    (void)state;
}

static void reduce_as_told(ch_step *s, void *arg)
{
    ch_node *x = ch_cast(ch_step_replica_id(s), CH_F32), *sum = NULL;

    ch_all_reduce_all_with(CH_SUM, 1, &x, arg, &sum);
    ch_step_out(s, NULL, sum);
}

static void all_reduce_and_reduce_to_reject_invalid_options(void **state) /* 4.7.1, 4.7.3 */
{
    static ch_communication_options bad[] = {{.implementation = (ch_cross_device)9},
                                             {.bytes_per_pack = -1},
                                             {.timeout_seconds = -1}};
    static const char *const        word[] = {"implementation is 9", "bytes_per_pack",
                                              "timeout_seconds"};
    ch_strategy                    *st = t_mirrored(2);
    ch_tensor *t[] = {t_noise(ch_shape_of(2), 1), t_noise(ch_shape_of(2), 2)};
    ch_value  *v = NULL, *sum = NULL;

    t_ok(ch_value_new(CH_PER_REPLICA, 2, t, &v));
    for (int i = 0; i < 3; i++) {
        ch_function *f = t_function(reduce_as_told, &bad[i]);

        t_refused(ch_strategy_run(st, f, NULL, NULL), CH_INVALID_ARGUMENT, "all_reduce",
                  word[i]);
        t_refused(ch_strategy_reduce_to_with(
                      st, CH_SUM, v, &(ch_destination){.device = "GPU:0"}, &bad[i], &sum),
                  CH_INVALID_ARGUMENT, "reduce to", word[i]);
        ch_function_unref(f);
    }
    ch_value_unref(v);
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- several threads ---- */

static void sum_of_all(ch_step *s, void *arg)
{
    ch_node *x = ch_add(ch_cast(ch_step_replica_id(s), CH_F32), ch_number(s, *(int *)arg));

    for (int i = 0; i < 3; i++)
        x = ch_add(ch_all_reduce(CH_SUM, x), ch_cast(ch_step_replica_id(s), CH_F32));
    ch_step_out(s, "x", x);
}

typedef struct runner {
    ch_strategy *st;
    int          first, n_wrong;
} runner;

static void *run_often(void *arg)
{
    runner      *r = arg;
    ch_function *f = NULL;
    float        sum = (float)(2 * r->first + 1); /* of the initial values */

    sum = 2 * (2 * sum + 1) + 1;
    if (ch_function_new("sums", sum_of_all, &r->first, &f) != CH_OK)
        r->n_wrong++;
    for (int i = 0; i < 200; i++) {
        ch_tuple *out = NULL;

        if (ch_strategy_run(r->st, f, NULL, &out) != CH_OK || t_floats(out, 0, 0)[0] != sum ||
            t_floats(out, 0, 1)[0] != sum + 1)
            r->n_wrong++;
        ch_tuple_unref(out);
    }
    ch_function_unref(f);
    return NULL;
}

/* 4.6.5: the sums of the two threads are not mixed. */
static void strategy_runs_steps_of_two_threads_at_once(void **state)
{
    ch_strategy *st = t_mirrored(2);
    runner       r[2] = {{st, 1, 0}, {st, 50, 0}};
    pthread_t    other;

    assert_int_equal(pthread_create(&other, NULL, run_often, &r[1]), 0);
    run_often(&r[0]);
    pthread_join(other, NULL);
    assert_int_equal(r[0].n_wrong, 0);
    assert_int_equal(r[1].n_wrong, 0);
    ch_strategy_unref(st);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(communication_merge_prefers_the_options_that_are_merged_in),
        cmocka_unit_test(all_reduce_pack_is_full_when_it_exceeds_bytes_per_pack),
        cmocka_unit_test(all_reduce_options_override_those_of_the_strategy),
        cmocka_unit_test(all_reduce_and_reduce_to_reject_invalid_options),
        cmocka_unit_test(strategy_runs_steps_of_two_threads_at_once),
    };

    return cmocka_run_group_tests_name("communication", tests, t_four_gpus, NULL);
}

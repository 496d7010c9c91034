/* test/strategy/test_communication.c -- what is said of how replicas meet, and threads that use
 * one strategy at once.
 *
 * Numbers at tests are those of the statements they show.
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

static void what_is_said_over_it_wins(void **state) /* 4.7.2 */
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
    is(base, CH_CROSS_RING, 100, 2); /* as it was */
    (void)state;
}

/* ---- packs ---- */

enum { ARRAYS = 4 };

typedef struct packing {
    int64_t limit;
    int     pack[ARRAYS]; /* which one array i is in, from 0 */
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
    ch__all_reduce_packs(NULL, CH_SUM, ARRAYS, x, p->limit, out);
    for (int i = ARRAYS - 1; i >= 0; i--) {
        assert_non_null(out[i]);
        for (p->pack[i] = 0; p->pack[i] < n && head[p->pack[i]] != out[i]->head;)
            p->pack[i]++;
        if (p->pack[i] == n)
            head[n++] = out[i]->head;
        ch_step_out(s, NULL, ch_sum_all(out[i]));
    }
}

static void a_pack_is_full_when_it_has_more_than_that(void **state) /* 4.7.4 4.7.6 */
{
    static const struct {
        int64_t limit;
        int     pack[ARRAYS];
    } row[] = {{0, {0, 0, 0, 0}},     {200, {1, 0, 0, 0}},
               {128, {2, 1, 0, 0}}, /* which the first does not exceed */
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
    float        sum = (float)(2 * r->first + 1); /* of what replicas 0 and 1 have at first */

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

/* 4.6.5: what they reduce does not mix. */
static void two_threads_may_use_a_strategy_at_once(void **state)
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
        cmocka_unit_test(what_is_said_over_it_wins),
        cmocka_unit_test(a_pack_is_full_when_it_has_more_than_that),
        cmocka_unit_test(two_threads_may_use_a_strategy_at_once),
    };

    return cmocka_run_group_tests_name("communication", tests, t_four_gpus, NULL);
}

/* test/collective/test_open.c -- sums that are begun and ended later, with other collectives in
 * between.
 *
 * All members run the same random list of barriers, each at its own pace, and all results are
 * compared with the expected values. Numbers are whole, so that the order of additions does not
 * matter. The same lists run on a thread for each member, and in turns on a single thread.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "collective/collective.h"
#include "collective/group.h"
#include "help.h"
#include "strategy/strategy.h"

enum { ACTS = 24, SMALL = 50, LARGE = 6000, SLOT = 2048 /* SLOT: floats that fit in a slot */ };

typedef enum kind { BEGIN, END, WHOLE, BROADCAST, GATHER, MEET, KINDS } kind;

typedef struct act {
    kind kind;
    int  count; /* floats */
} act;

typedef struct list {
    ch_group *group;
    int       n, n_acts, quits; /* the act at which the last member gives up; -1: never */
    int       way;              /* CH_CROSS_... of sums */
    bool      leaves;           /* the last member ends there without an error */
    bool      in_turns;
    uint64_t  seed;
    act       act[ACTS];
} list;

static uint64_t draw(uint64_t *x)
{
    *x += 0x9e3779b97f4a7c15u;
    uint64_t z = (*x ^ *x >> 30) * 0xbf58476d1ce4e5b9u;

    return z ^ z >> 27;
}

static float brings(int member, int at, int i)
{
    return (float)((member * 31 + at * 7 + i) % 101);
}

static float sum_of(int n, int at, int i)
{
    float sum = 0;

    for (int r = 0; r < n; r++)
        sum += brings(r, at, i);
    return sum;
}

static void make_list(list *l, uint64_t seed)
{
    uint64_t x = seed;

    l->seed = seed;
    l->n = 2 + (int)(draw(&x) % 3);
    l->n_acts = ACTS;
    l->quits = -1;
    for (int i = 0; i < ACTS; i++) {
        uint64_t d = draw(&x) % 10;

        l->act[i].kind = d < 5 ? BEGIN : (kind)(d - 5 + 1);
        l->act[i].count = (int)(1 + draw(&x) % (draw(&x) % 2 == 0 ? SMALL : LARGE));
    }
}

/* ---- a member ---- */

typedef struct member {
    list       *l;
    int         me;
    uint64_t    pace;
    ch_status   rc;
    int         wrong; /* number of wrong results */
    int         at;    /* the next act; n_acts: the end of all sums; above: done */
    int64_t     n_barriers;
    float      *data[ACTS], *joined[ACTS];
    const void *in[ACTS][1];
    void       *out[ACTS][1];
    int64_t     run[ACTS][1];
    ch_addend   array[ACTS];
    ch_addends  sum[ACTS];
    bool        is_open[ACTS];
} member;

/* The number of barriers: 1 for each sum, 1 more at the end of a large sum, and 2 for a
 * gather. */
typedef struct model {
    int64_t n_barriers;
    bool    is_closing;
} model;

static void count(model *m, const act *a)
{
    bool is_large = a->count > SLOT;

    if (a->kind == BEGIN) {
        m->n_barriers++;
        m->is_closing = is_large;
    } else if (a->kind == END) {
        m->n_barriers += m->is_closing;
        m->is_closing = false;
    } else if (a->kind == WHOLE || a->kind == BROADCAST) {
        m->n_barriers += 1 + is_large;
        m->is_closing = false;
    } else {
        m->n_barriers += a->kind == GATHER ? 2 : 1;
        m->is_closing = false;
    }
}

static void check_sum(member *m, int at)
{
    for (int i = 0; i < m->l->act[at].count; i++)
        m->wrong += m->data[at][i] != sum_of(m->l->n, at, i);
    m->is_open[at] = false;
}

static void check_open(member *m)
{
    for (int i = 0; i < ACTS; i++)
        if (m->is_open[i])
            check_sum(m, i);
}

static void dawdle(member *m)
{
    for (uint64_t k = draw(&m->pace) % 4; k > 0; k--)
        sched_yield();
}

static ch_status do_act(member *m, int at)
{
    const act *a = &m->l->act[at];
    ch_group  *g = m->l->group;
    ch_join    j = {.n = 1, .outer = 1, .run = m->run[at]};
    ch_status  rc;

    switch (a->kind) {
    case BEGIN:
        rc = ch__group_all_reduce_begin(g, m->me, &m->sum[at], m->in[at], m->out[at]);
        m->is_open[at] = rc == CH_OK;
        return rc;
    case END:
        rc = ch__group_all_reduce_end(g, m->me);
        if (rc == CH_OK)
            check_open(m);
        return rc;
    case WHOLE:
        rc = ch__group_all_reduce(g, m->me, &m->sum[at], m->in[at], m->out[at]);
        if (rc == CH_OK)
            check_sum(m, at);
        return rc;
    case BROADCAST:
        rc = ch__group_broadcast(g, m->me, 1, m->run[at], m->in[at], m->out[at]);
        for (int i = 0; rc == CH_OK && i < a->count; i++)
            m->wrong += m->data[at][i] != brings(0, at, i);
        return rc;
    case GATHER:
        rc = ch__group_all_gather(g, m->me, &j, m->in[at], (void *[]){m->joined[at]});
        for (int i = 0; rc == CH_OK && i < m->l->n * a->count; i++)
            m->wrong += m->joined[at][i] != brings(i / a->count, at, i % a->count);
        return rc;
    default:
        return ch__group_barrier(g, m->me, "nothing in particular");
    }
}

/* Runs the list to the end, to an error, or until CH__BLOCKED. */
static void member_main(void *arg)
{
    member *m = arg;
    list   *l = m->l;

    m->rc = CH_OK;
    for (; m->at < l->n_acts && m->rc == CH_OK; m->at += m->rc == CH_OK) {
        if (m->at == l->quits && m->me == l->n - 1) {
            if (!l->leaves)
                ch__group_ops.abort_run(l->group);
            return;
        }
        if (!l->in_turns)
            dawdle(m);
        m->rc = do_act(m, m->at);
    }
    if (m->rc == CH_OK)
        m->rc = ch__group_all_reduce_end(l->group, m->me);
    if (m->rc == CH_OK)
        check_open(m);
}

/* Runs blocked members in turns until none is blocked. */
static void run_in_turns(list *l, member **m)
{
    int n_blocked = l->n;

    for (int r = 0; r < l->n; r++)
        m[r]->rc = CH__BLOCKED;
    while (n_blocked > 0)
        for (int r = 0; r < l->n; r++)
            if (m[r]->rc == CH__BLOCKED) {
                member_main(m[r]);
                n_blocked -= m[r]->rc != CH__BLOCKED;
            }
}

static member *new_member(list *l, int me)
{
    member *m = test_calloc(1, sizeof(*m));

    *m = (member){.l = l, .me = me, .pace = l->seed + (uint64_t)me};
    for (int i = 0; i < l->n_acts; i++) {
        int n = l->act[i].count;

        m->data[i] = test_malloc((size_t)n * sizeof(float));
        m->joined[i] = test_malloc((size_t)(n * l->n) * sizeof(float));
        for (int k = 0; k < n; k++)
            m->data[i][k] = brings(me, i, k);
        m->in[i][0] = m->out[i][0] = m->data[i];
        m->run[i][0] = n * (int64_t)sizeof(float);
        m->array[i] = (ch_addend){CH_F32, n};
        m->sum[i] = (ch_addends){.op = CH_SUM, .n = 1, .array = &m->array[i]};
    }
    return m;
}

static void free_member(member *m)
{
    for (int i = 0; i < m->l->n_acts; i++) {
        test_free(m->data[i]);
        test_free(m->joined[i]);
    }
    test_free(m);
}

static void run_list(list *l, member **m)
{
    ch_thread *t[MOST];

    t_ok(ch__group_new(&(ch_group_options){.n = l->n, .cross = (ch_cross_device)l->way},
                       &l->group));
    ch__group_ops.reset(l->group, &(ch_group_run){.in_turns = l->in_turns});
    for (int r = 0; r < l->n; r++)
        m[r] = new_member(l, r);
    if (l->in_turns) {
        run_in_turns(l, m);
        return;
    }
    for (int r = 0; r < l->n; r++)
        t_ok(ch__thread_start("member", member_main, m[r], &t[r]));
    for (int r = 0; r < l->n; r++)
        ch__thread_join(t[r]);
}

static void drop_list(list *l, member **m)
{
    for (int r = 0; r < l->n; r++)
        free_member(m[r]);
    ch__group_free(l->group);
}

static void group_sums_are_right_between_random_collectives(void **state)
{
    for (int seed = 0; seed < 300; seed++) {
        list    l = {0};
        member *m[MOST];
        model   want = {0};

        make_list(&l, (uint64_t)seed);
        run_list(&l, m);
        for (int i = 0; i < l.n_acts; i++)
            count(&want, &l.act[i]);
        count(&want, &(act){END, 0});
        for (int r = 0; r < l.n; r++)
            if (m[r]->rc != CH_OK || m[r]->wrong > 0)
                fail_msg("seed %d: member %d: %s, %d numbers wrong", seed, r,
                         ch_status_name(m[r]->rc), m[r]->wrong);
        assert_int_equal(ch__group_barriers(l.group), want.n_barriers);
        drop_list(&l, m);
    }
    (void)state;
}

static void group_sums_in_turns_are_right_in_every_implementation(void **state)
{
    for (int seed = 0; seed < 1200; seed++) {
        list    l = {0};
        member *m[MOST];
        int64_t wakes = ch__wake_count();

        make_list(&l, (uint64_t)seed / 4);
        l.in_turns = true;
        l.way = CH_CROSS_SHARED + seed % 4;
        run_list(&l, m);
        for (int r = 0; r < l.n; r++)
            if (m[r]->rc != CH_OK || m[r]->wrong > 0)
                fail_msg("seed %d: member %d: %s, %d numbers wrong", seed, r,
                         ch_status_name(m[r]->rc), m[r]->wrong);
        assert_int_equal(ch__wake_count(), wakes);
        drop_list(&l, m);
    }
    (void)state;
}

/* The number of barriers is the same as on threads. The model counts those of the shared
 * implementation. */
static void group_in_turns_counts_as_many_barriers_as_with_threads(void **state)
{
    for (int seed = 0; seed < 100; seed++) {
        list    l = {0};
        member *m[MOST];
        model   want = {0};

        make_list(&l, (uint64_t)seed);
        l.in_turns = true;
        run_list(&l, m);
        for (int i = 0; i < l.n_acts; i++)
            count(&want, &l.act[i]);
        count(&want, &(act){END, 0});
        assert_int_equal(ch__group_barriers(l.group), want.n_barriers);
        drop_list(&l, m);
    }
    (void)state;
}

/* Only a bug in the library could cause this. The group then returns an error instead of
 * looping for ever. */
static void group_in_turns_fails_when_a_member_cannot_arrive(void **state)
{
    list    l = {.n = 3, .n_acts = 2, .quits = 1, .leaves = true, .in_turns = true};
    member *m[MOST];

    l.act[0] = l.act[1] = (act){MEET, 1};
    run_list(&l, m);
    assert_int_equal(m[2]->rc, CH_OK);
    for (int r = 0; r < 2; r++)
        assert_int_equal(m[r]->rc, CH_INTERNAL);
    t_refused(m[1]->rc, CH_INTERNAL, "replica 2 (last at ", "cannot arrive");
    drop_list(&l, m);
    (void)state;
}

static void group_members_in_turns_end_when_one_member_gives_up(void **state)
{
    for (int seed = 0; seed < 200; seed++) {
        list    l = {0};
        member *m[MOST];

        make_list(&l, (uint64_t)seed + 1000);
        l.quits = seed % ACTS;
        l.in_turns = true;
        run_list(&l, m);
        for (int r = 0; r < l.n - 1; r++)
            assert_true(m[r]->rc == CH_OK || m[r]->rc == CH_ABORTED);
        for (int r = 0; r < l.n; r++)
            assert_int_equal(m[r]->wrong, 0);
        drop_list(&l, m);
    }
    (void)state;
}

static void group_members_end_when_one_member_gives_up(void **state)
{
    for (int seed = 0; seed < 200; seed++) {
        list    l = {0};
        member *m[MOST];

        make_list(&l, (uint64_t)seed + 1000);
        l.quits = seed % ACTS;
        run_list(&l, m);
        for (int r = 0; r < l.n - 1; r++)
            assert_true(m[r]->rc == CH_OK || m[r]->rc == CH_ABORTED);
        for (int r = 0; r < l.n; r++)
            assert_int_equal(m[r]->wrong, 0);
        drop_list(&l, m);
    }
    (void)state;
}

/* ---- in a step ---- */

enum { LAYERS = 4, WIDTH = 64 };

/* Computes values from each other, and their sums. */
static void chain(ch_step *s, void *arg)
{
    ch_node *x[LAYERS], *sum[LAYERS];

    x[LAYERS - 1] = ch_add(ch_fill(s, CH_F32, ch_shape_of(WIDTH, WIDTH), 1),
                           ch_cast(ch_step_replica_id(s), CH_F32));
    for (int i = LAYERS - 2; i >= 0; i--)
        x[i] = ch_matmul(x[i + 1], false,
                         ch_fill(s, CH_F32, ch_shape_of(WIDTH, WIDTH), 1.0 / WIDTH), false);
    ch_all_reduce_all_with(CH_SUM, LAYERS, x,
                           &(ch_communication_options){.bytes_per_pack = *(const int64_t *)arg},
                           sum);
    for (int i = 0; i < LAYERS; i++)
        ch_step_out(s, NULL, sum[i]);
}

static int find(const char *text, const char *what, int nth)
{
    const char *at = text;

    for (int i = 0; at != NULL && i <= nth; i++)
        at = strstr(i > 0 ? at + 1 : at, what);
    return at != NULL ? (int)(at - text) : -1;
}

/* The sum of a value is begun before the next value is computed, and all sums are ended at the
 * end. */
static void all_reduce_pack_begins_after_its_last_value_is_computed(void **state)
{
    ch_strategy *st = t_replicas(2);
    int64_t      bytes = 1, before = ch__group_barriers(st->group);
    ch_function *f = t_function(chain, &bytes);
    ch_tuple    *out = NULL;
    char         text[8192];

    t_ok(ch_strategy_run(st, f, NULL, &out));
    for (int i = 0; i < LAYERS; i++)
        assert_true(t_number(out, i, 1, 0) == 3);
    /* A barrier for each pack, and another at the end. */
    assert_int_equal(ch__group_barriers(st->group) - before, LAYERS + 1);
    assert_true(ch_graph_print(ch_function_graph(f), text, sizeof(text)) < (int)sizeof(text));
    for (int i = 0; i < LAYERS - 1; i++) {
        assert_true(find(text, "all_reduce_begin", i) >= 0);
        assert_true(find(text, "all_reduce_begin", i) < find(text, "matmul", i));
    }
    assert_true(find(text, "all_reduce_begin", LAYERS - 1) < find(text, "all_reduce_end", 0));
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(group_sums_are_right_between_random_collectives),
        cmocka_unit_test(group_sums_in_turns_are_right_in_every_implementation),
        cmocka_unit_test(group_in_turns_counts_as_many_barriers_as_with_threads),
        cmocka_unit_test(group_in_turns_fails_when_a_member_cannot_arrive),
        cmocka_unit_test(group_members_end_when_one_member_gives_up),
        cmocka_unit_test(group_members_in_turns_end_when_one_member_gives_up),
        cmocka_unit_test(all_reduce_pack_begins_after_its_last_value_is_computed),
    };

    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "GPU=8"}));
    return cmocka_run_group_tests(tests, NULL, NULL);
}

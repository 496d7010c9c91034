/* test/collective/test_faults.c -- replicas that fail or do not arrive at a collective: the
 * caller gets the error, no replica hangs, and the next run is correct.
 *
 * `test_faults 1000` runs 1000 random failures.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/mem.h"
#include "base/thread.h"
#include "help.h"

enum { REPLICAS = 3, NODES = 9 };

static int n_runs = 100;

/* The replica and its node that fails or is late; -1: none. */
static struct {
    int at, replica, late_ms;
} plan;

static ch_gate never;
static int     numbers[NODES] = {0, 1, 2, 3, 4, 5, 6, 7, 8};

static int32_t to_int(const ch_tensor *t)
{
    return *(const int32_t *)ch_tensor_data(t);
}

/* Copies the second input to the output. */
static ch_status node_of(void *arg, int n_in, ch_tensor *const *in, int n_out,
                         ch_tensor *const *out)
{
    (void)n_in, (void)n_out;
    if (*(const int *)arg == plan.at && to_int(in[0]) == plan.replica) {
        if (plan.late_ms == 0)
            return ch_fail(CH_DATA_LOSS, "node %d was to fail", plan.at);
        if (ch__gate_wait_for(&never, 0, plan.late_ms, "what never comes") == CH_OK)
            return CH_INTERNAL;
    }
    return ch_tensor_copy(in[1], out[0]);
}

static ch_node *node(ch_step *s, int i, ch_node *x)
{
    ch_node *y = NULL;

    ch_host_call(s,
                 &(ch_host_spec){.name = "node",
                                 .fn = node_of,
                                 .arg = &numbers[i],
                                 .n_out = 1,
                                 .out = {{.dtype = CH_F32, .shape = ch_shape_of(4)}}},
                 2, (ch_node *[]){ch_step_replica_id(s), x}, &y);
    return y;
}

/* Records a node, a collective, a node, a collective, ..., and then a change of a variable. */
static void work(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *big;

    for (int i = 0; i < NODES; i++) {
        x = node(s, i, x);
        if (i % 4 == 0)
            x = ch_all_reduce(CH_MEAN, x);
        else if (i % 4 == 1)
            x = ch_broadcast(x);
        else if (i % 4 == 2)
            x = ch_mean(ch_all_gather(ch_expand_dims(x, 0), 0), 1, (int[]){0}, false);
        else {
            big = ch_all_reduce(CH_MEAN, ch_tile(x, 1, (int64_t[]){4096}));
            x = ch_slice(big, 1, (int64_t[]){0}, (int64_t[]){4});
        }
    }
    ch_var_assign_add(s, arg, x);
    ch_step_out(s, "x", x);
}

typedef struct fixture {
    ch_strategy *st;
    ch_var      *v;
    ch_function *f;
    ch_tuple    *in;
} fixture;

static fixture new_fixture(ch_communication_options how)
{
    fixture    x = {.st = t_replicas_with(REPLICAS, how)};
    ch_tensor *ones = t_f32(ch_shape_of(4), (float[]){1, 1, 1, 1});

    x.v = t_var(x.st, "sum", t_f32(ch_shape_of(4), NULL));
    x.f = t_function(work, x.v);
    x.in = t_tuple(1, &ones);
    plan.at = -1;
    plan.late_ms = 0;
    return x;
}

static void drop_fixture(fixture *x)
{
    ch_tuple_unref(x->in);
    ch_function_unref(x->f);
    ch_var_unref(x->v);
    ch_strategy_unref(x->st);
}

static void all_copies_are(const fixture *x, int want)
{
    for (int r = 0; r < REPLICAS; r++)
        for (int i = 0; i < 4; i++)
            assert_true(t_copy_of(x->v, r, i) == (float)want);
}

static void step_of_replicas_changes_no_variable_when_any_op_fails(void **state)
{
    unsigned seed = 12345;
    int      good = 0;

    for (int w = CH_CROSS_SHARED; w <= CH_CROSS_RING; w++) {
        fixture x = new_fixture((ch_communication_options){.implementation = w});

        good = 0;
        for (int i = 0; i < n_runs / 4; i++) {
            char name[32];

            seed = seed * 1664525u + 1013904223u;
            plan.at = (int)(seed >> 8) % (NODES + 1); /* NODES: no node fails */
            plan.replica = (int)(seed >> 20) % REPLICAS;
            snprintf(name, sizeof(name), "replica %d", plan.replica);
            if (plan.at == NODES) {
                t_ok(ch_strategy_run(x.st, x.f, x.in, NULL));
                good++;
            } else {
                t_refused(ch_strategy_run(x.st, x.f, x.in, NULL), CH_DATA_LOSS, name,
                          "was to fail");
            }
            all_copies_are(&x, good);
        }
        plan.at = -1;
        t_ok(ch_strategy_run(x.st, x.f, x.in, NULL));
        all_copies_are(&x, good + 1);
        drop_fixture(&x);
    }
    (void)state;
}

/* Repeats a run until it ends before its 20 ms are over, because a busy machine may stop a
 * replica for that long. A run that can never end in time fails every attempt. */
static ch_status run_patiently(ch_strategy *st, ch_function *f, ch_tuple *in)
{
    ch_status rc = CH_DEADLINE_EXCEEDED;

    for (int i = 0; i < 100 && rc == CH_DEADLINE_EXCEEDED; i++)
        rc = ch_strategy_run(st, f, in, NULL);
    return rc;
}

/* Runs the step without a late replica. */
static void run_in_time(const fixture *x)
{
    plan.at = -1;
    t_ok(run_patiently(x->st, x->f, x->in));
}

/* 4.7.5 */
static void collective_timeout_names_the_missing_replica_and_its_last_op(void **state)
{
    const struct {
        int         at;
        const char *words;
    } late[] = {{0, "replica 1 (at no barrier of this run)"},
                {1, "replica 1 (last at all_reduce, barrier "},
                {2, "replica 1 (last at broadcast, barrier "},
                {3, "replica 1 (last at all_gather, barrier "}};
    fixture x = new_fixture((ch_communication_options){.timeout_seconds = 0.02});

    plan.replica = 1;
    for (int i = 0; i < 4; i++) {
        plan.late_ms = 120;
        run_in_time(&x);
        plan.at = late[i].at;
        t_refused(ch_strategy_run(x.st, x.f, x.in, NULL), CH_DEADLINE_EXCEEDED, late[i].words,
                  "waited 20 ms");
        assert_non_null(strstr(ch_error_message(), "timeout_seconds"));
        assert_non_null(strstr(ch_error_message(), "), in host_call node, at test_faults.c:"));
        all_copies_are(&x, i + 1);
    }
    drop_fixture(&x);
    x = new_fixture((ch_communication_options){0}); /* no limit except that of every wait */
    plan.at = 1;
    plan.late_ms = 120;
    t_ok(ch_strategy_run(x.st, x.f, x.in, NULL));
    all_copies_are(&x, 1);
    drop_fixture(&x);
    (void)state;
}

/* A sparse sum for which a replica is late. */
static void sparse_and_late(ch_step *s, void *arg)
{
    ch_node *table = ch_var_read(s, arg), *x = node(s, 0, ch_step_in(s, 0));
    ch_node *ids = ch_cast(x, CH_I32);
    ch_node *d = ch_gradient(ch_sum_all(ch_gather(table, ids, 0)), table);

    ch_step_out(s, NULL, ch_all_reduce(CH_SUM, d));
}

static void sparse_all_reduce_obeys_the_timeout(void **state)
{
    ch_strategy *st = t_replicas_with(2, (ch_communication_options){.timeout_seconds = 0.02});
    ch_var      *table = t_var(st, "table", t_f32(ch_shape_of(5, 2), NULL));
    ch_function *f = t_function(sparse_and_late, table);
    ch_tensor   *x = t_f32(ch_shape_of(4), (float[]){1, 1, 2, 3});
    ch_tuple    *in = t_tuple(1, &x);

    plan.at = -1;
    t_ok(run_patiently(st, f, in));
    plan.at = 0;
    plan.replica = 0; /* on the caller's thread */
    plan.late_ms = 120;
    t_refused(ch_strategy_run(st, f, in, NULL), CH_DEADLINE_EXCEEDED, "all_gather",
              "replica 0 (at no barrier of this run)");
    plan.at = -1;
    t_ok(run_patiently(st, f, in));
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_var_unref(table);
    ch_strategy_unref(st);
    (void)state;
}

/* The options of a call that determine how long it waits. */
typedef struct waiting {
    ch_var                  *table;
    int                      kind; /* of reduction: single, several, sparse */
    ch_communication_options how;
} waiting;

static void wait_for_late(ch_step *s, void *arg)
{
    const waiting *w = arg;
    ch_node       *x = node(s, 0, ch_step_in(s, 0)), *both[2] = {x, x}, *sum[2] = {NULL};
    ch_node       *rows = ch_gather(ch_var_read(s, w->table), ch_cast(x, CH_I32), 0);

    if (w->kind == 0)
        sum[0] = ch_all_reduce_with(CH_SUM, x, &w->how);
    else if (w->kind == 1)
        ch_all_reduce_all_with(CH_SUM, 2, both, &w->how, sum);
    else
        sum[0] = ch_all_reduce_with(
            CH_SUM, ch_gradient(ch_sum_all(rows), ch_var_read(s, w->table)), &w->how);
    ch_step_out(s, NULL, sum[0]);
}

/* 4.7.3, 4.7.5 */
static void collective_timeout_of_the_call_overrides_the_strategy(void **state)
{
    for (int i = 0; i < 12; i++) {
        const double short_s = 0.02, long_s = 30;
        bool         calls = i / 3 % 2 == 0; /* short limit in the call */
        ch_strategy *st =
            t_replicas_with(2, (ch_communication_options){
                                   .timeout_seconds = calls ? long_s : short_s,
                                   .implementation = i < 6 ? CH_CROSS_SHARED : CH_CROSS_RING});
        waiting      w = {t_var(st, "table", t_f32(ch_shape_of(5, 2), NULL)),
                          i % 3,
                          {.timeout_seconds = calls ? short_s : long_s}};
        ch_function *f = t_function(wait_for_late, &w);
        ch_tensor   *x = t_f32(ch_shape_of(4), (float[]){1, 1, 2, 3});
        ch_tuple    *in = t_tuple(1, &x);

        plan.at = 0;
        plan.replica = 0;
        plan.late_ms = 120;
        if (calls)
            t_refused(ch_strategy_run(st, f, in, NULL), CH_DEADLINE_EXCEEDED, "waited 20 ms",
                      "timeout_seconds of the call's communication options");
        else
            t_ok(run_patiently(st, f, in));
        plan.at = -1;
        t_ok(run_patiently(st, f, in));
        ch_tuple_unref(in);
        ch_function_unref(f);
        ch_var_unref(w.table);
        ch_strategy_unref(st);
    }
    (void)state;
}

/* Runs a new function, so that everything is allocated again. */
static ch_status run_anew(const fixture *x)
{
    ch_function *f = NULL;
    ch_status    rc = ch_function_new("work", work, x->v, &f);

    if (rc == CH_OK)
        rc = ch_strategy_run(x->st, f, x->in, NULL);
    ch_function_unref(f);
    return rc;
}

static void step_of_replicas_changes_no_variable_when_out_of_memory(void **state)
{
    fixture   x = new_fixture((ch_communication_options){0});
    ch_status rc = CH_RESOURCE_EXHAUSTED;
    int       good = 0, n = 0;

    t_ok(run_anew(&x));
    for (good = 1; rc != CH_OK; n++) {
        ch__mem_fail_at(n + 1);
        rc = run_anew(&x);
        ch__mem_fail_at(0);
        if (rc != CH_OK && rc != CH_RESOURCE_EXHAUSTED)
            fail_msg("allocation %d: %s: %s", n + 1, ch_status_name(rc), ch_error_message());
        good += rc == CH_OK;
        if (n % 16 == 0) {
            t_ok(ch_strategy_run(x.st, x.f, x.in, NULL));
            good++;
        }
        all_copies_are(&x, good);
    }
    assert_true(n > 50);
    drop_fixture(&x);
    (void)state;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_of_replicas_changes_no_variable_when_any_op_fails),
        cmocka_unit_test(collective_timeout_names_the_missing_replica_and_its_last_op),
        cmocka_unit_test(sparse_all_reduce_obeys_the_timeout),
        cmocka_unit_test(collective_timeout_of_the_call_overrides_the_strategy),
        cmocka_unit_test(step_of_replicas_changes_no_variable_when_out_of_memory),
    };

    if (argc > 1)
        n_runs = atoi(argv[1]);
    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "GPU=8"}));
    return cmocka_run_group_tests(tests, NULL, NULL);
}

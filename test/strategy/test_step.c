/* test/strategy/test_step.c -- guarantees of a step's run, with one and with two devices.
 *
 * A small network is trained with even, short and empty shares of batches. The tests compare
 * bits and count allocations, barriers and wake-ups. Further tests let allocations and replicas
 * fail.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/config.h"
#include "base/mem.h"
#include "base/thread.h"
#include "collective/group.h"
#include "help.h"
#include "strategy/strategy.h"
#include "tensor/devices.h"

/* ---- a network on two devices ---- */

enum { IN = 5, HIDDEN = 8, OUT = 3 };

typedef struct network {
    ch_var *w1, *b1, *w2;
} network;

static void train(ch_step *s, void *arg)
{
    network *net = arg;
    ch_node *x = ch_step_in(s, 0), *y = ch_step_in(s, 1);
    ch_var  *var[] = {net->w1, net->b1, net->w2};
    ch_node *now[3], *d[3], *h, *loss;

    for (int i = 0; i < 3; i++)
        now[i] = ch_var_read(s, var[i]);
    ch_step_enter(s, "hidden");
    h = ch_relu(ch_add(ch_matmul(x, false, now[0], false), now[1]));
    ch_step_leave(s);
    loss = ch_sum_all(ch_square(ch_sub(ch_matmul(h, false, now[2], false), y)));
    loss = ch_div(loss, ch_step_global_rows(s));
    ch_gradients(loss, NULL, 3, now, d);
    for (int i = 0; i < 3; i++)
        ch_var_assign_sub(s, var[i], ch_mul(ch_number(s, 0.05), ch_all_reduce(CH_SUM, d[i])));
    ch_step_out(s, "loss", ch_all_reduce(CH_SUM, loss));
}

static network new_network(ch_strategy *st)
{
    return (network){t_var(st, "w1", t_noise(ch_shape_of(IN, HIDDEN), 1)),
                     t_var(st, "b1", t_noise(ch_shape_of(HIDDEN), 2)),
                     t_var(st, "w2", t_noise(ch_shape_of(HIDDEN, OUT), 3))};
}

static void drop_network(network *net)
{
    ch_var_unref(net->w1);
    ch_var_unref(net->b1);
    ch_var_unref(net->w2);
}

static ch_strategy *two_devices(void)
{
    ch_strategy *st = NULL;

    t_ok(ch_strategy_mirrored(
        &(ch_mirrored_options){.n_devices = 2,
                               .device = (const char *const[]){"GPU:0", "GPU:1"}},
        &st));
    return st;
}

/* Rows [from, to) of t, on a replica's device. */
static ch_tensor *share_of(ch_tensor *t, int64_t from, int64_t to, const char *device)
{
    ch_device *d = NULL;
    ch_tensor *view = NULL, *there = NULL;

    t_ok(ch_device_find(device, &d));
    t_ok(ch_tensor_rows(t, from, to, &view));
    t_ok(ch_tensor_to(view, d, &there));
    ch_tensor_unref(view);
    return there;
}

/* Returns `rows` rows of data; the first replica has `cut` of them, the second the others. */
static ch_tuple *batch_of(int64_t rows, int64_t cut)
{
    ch_tensor *x = t_noise(ch_shape_of(rows, IN), 7), *y = t_noise(ch_shape_of(rows, OUT), 8);
    ch_tensor *part[4] = {share_of(x, 0, cut, "GPU:0"), share_of(x, cut, rows, "GPU:1"),
                          share_of(y, 0, cut, "GPU:0"), share_of(y, cut, rows, "GPU:1")};
    ch_value  *v[2];
    ch_tuple  *batch = NULL;

    t_ok(ch_value_new(CH_PER_REPLICA, 2, part, &v[0]));
    t_ok(ch_value_new(CH_PER_REPLICA, 2, part + 2, &v[1]));
    t_ok(ch_tuple_new(2, v, NULL, &batch));
    for (int i = 0; i < 4; i++)
        ch_tensor_unref(part[i]);
    ch_value_unref(v[0]);
    ch_value_unref(v[1]);
    ch_tensor_unref(x);
    ch_tensor_unref(y);
    return batch;
}

static float run_for_loss(ch_strategy *st, ch_function *f, ch_tuple *batch)
{
    ch_tuple *out = NULL;
    float     loss;

    t_ok(ch_strategy_run(st, f, batch, &out));
    loss = t_floats(out, 0, 0)[0];
    ch_tuple_unref(out);
    return loss;
}

/* Trains with even, short and empty shares of the batch, and writes the weights. */
static void train_for_weights(ch_strategy *st, ch_function *f, network *net, float *weights)
{
    const int64_t cut[] = {4, 4, 6, 8, 0, 4};

    for (int i = 0; i < 6; i++) {
        ch_tuple *batch = batch_of(8, cut[i]);

        run_for_loss(st, f, batch);
        ch_tuple_unref(batch);
    }
    for (int i = 0; i < IN * HIDDEN; i++)
        weights[i] = t_copy_of(net->w1, 0, i);
}

static void replicas_train_as_one_and_stay_equal(void **state)
{
    ch_strategy *st = two_devices();
    network      net = new_network(st), alone = new_network(NULL);
    ch_function *f = t_function(train, &net), *g = t_function(train, &alone);
    ch_tensor   *x = t_noise(ch_shape_of(8, IN), 7), *y = t_noise(ch_shape_of(8, OUT), 8);
    ch_tuple    *whole = t_tuple(2, (ch_tensor *[]){x, y});
    float        weights[IN * HIDDEN];

    train_for_weights(st, f, &net, weights);
    for (int i = 0; i < 6; i++)
        run_for_loss(NULL, g, whole);
    for (int i = 0; i < IN * HIDDEN; i++) {
        assert_true(t_copy_of(net.w1, 0, i) == t_copy_of(net.w1, 1, i));
        assert_float_equal(weights[i], t_copy_of(alone.w1, 0, i), 1e-5);
    }
    assert_int_equal(ch_function_recordings(f), 1); /* for all batch sizes */
    ch_tuple_unref(whole);
    ch_function_unref(f);
    ch_function_unref(g);
    drop_network(&net);
    drop_network(&alone);
    ch_strategy_unref(st);
    (void)state;
}

static void a_decoded_step_trains_with_the_same_bits(void **state)
{
    ch_strategy *st = two_devices();
    network      net = new_network(st);
    ch_function *f = t_function(train, &net), *sent = NULL;
    ch_tuple    *batch = batch_of(2, 1);
    ch_graph    *g = NULL;
    void        *bytes = NULL;
    size_t       n = 0;
    float        here[IN * HIDDEN], there[IN * HIDDEN];

    run_for_loss(st, f, batch); /* records; the following sizes are new */
    t_ok(ch_graph_encode(ch_function_graph(f), &bytes, &n));
    t_ok(ch_graph_decode(bytes, n, &g));
    t_ok(ch_function_of_graph("sent", g, &sent));
    drop_network(&net);
    net = new_network(st);
    train_for_weights(st, f, &net, here);
    drop_network(&net);
    net = new_network(st);
    train_for_weights(st, sent, &net, there);
    assert_memory_equal(here, there, sizeof(here));
    ch_bytes_free(bytes);
    ch_graph_unref(g);
    ch_tuple_unref(batch);
    ch_function_unref(f);
    ch_function_unref(sent);
    drop_network(&net);
    ch_strategy_unref(st);
    (void)state;
}

static void repeated_step_allocates_nothing_and_wakes_each_device_once(void **state)
{
    ch_strategy *st = two_devices();
    network      net = new_network(st);
    ch_function *f = t_function(train, &net);
    ch_tuple    *batch = batch_of(8, 4);
    ch_device   *second = st->ops->devices(st->self)[1];
    int64_t      allocs, barriers, wakes;
    unsigned     calls;

    t_ok(ch__config_set("replicas", "threads"));
    for (int i = 0; i < 3; i++)
        run_for_loss(st, f, batch);
    allocs = ch__mem_allocs();
    barriers = ch__group_barriers(st->group);
    wakes = ch__wake_count();
    calls = atomic_load(&second->work);
    for (int i = 0; i < 10; i++)
        run_for_loss(st, f, batch);
    assert_int_equal(ch__mem_allocs() - allocs, 0);
    /* A barrier for each of four small all_reduces, and another before variables change. */
    assert_int_equal(ch__group_barriers(st->group) - barriers, 10 * 5);
    /* The caller runs the replica of the first device; the thread of the second device is
     * called once in each step. A thread is woken only by that call, by the end of a step, and
     * by the other thread at a barrier. */
    assert_int_equal(atomic_load(&second->work) - calls, 10);
    assert_true(ch__wake_count() - wakes <= 10 * (1 + 1 + 5));
    t_ok(ch__config_set("replicas", "auto"));
    ch_tuple_unref(batch);
    ch_function_unref(f);
    drop_network(&net);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- the check of copies ---- */

typedef struct worker {
    ch_strategy *st;
    ch_function *f;
    ch_thread   *thread;
    ch_status    rc;
} worker;

static void count_up(ch_step *s, void *v)
{
    ch_step_out(s, "now", ch_var_assign_add(s, v, ch_number(s, 1)));
}

static void run_often(void *arg)
{
    worker *w = arg;

    for (int i = 0; i < 200 && w->rc == CH_OK; i++)
        w->rc = ch_strategy_run(w->st, w->f, NULL, NULL);
}

/* Each thread compares the copies after its own step, before another step changes them. */
static void copies_are_compared_before_the_next_step(void **state)
{
    ch_strategy *st = two_devices();
    ch_var      *v = t_var(st, "v", t_noise(ch_shape_of(1000), 1));
    worker       w[3];
    float        first = t_copy_of(v, 0, 0), want = first;

    t_ok(ch__config_set("check_copies", "true"));
    for (int i = 0; i < 3; i++) {
        w[i] = (worker){st, t_function(count_up, v), NULL, CH_OK};
        t_ok(ch__thread_start("runs", run_often, &w[i], &w[i].thread));
    }
    for (int i = 0; i < 3; i++) {
        ch__thread_join(w[i].thread);
        assert_int_equal(w[i].rc, CH_OK);
        ch_function_unref(w[i].f);
    }
    for (int i = 0; i < 600; i++)
        want += 1;
    assert_true(t_copy_of(v, 0, 0) == want && t_copy_of(v, 1, 0) == want);
    t_ok(ch__config_set("check_copies", "false"));
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

static void copies_that_differ_are_an_error_without_results(void **state)
{
    ch_strategy *st = two_devices();
    ch_var      *v = t_var(st, "v", t_noise(ch_shape_of(2), 1));
    ch_function *f = t_function(count_up, v);
    ch_value    *copies = NULL;
    ch_tuple    *out = NULL;
    int64_t      live;

    t_ok(ch__config_set("check_copies", "true"));
    t_ok(ch_strategy_run(st, f, NULL, NULL));
    t_ok(ch_var_copies(v, &copies));
    live = ch__mem_live();
    ((float *)ch_tensor_data_mut(ch_value_at(copies, 1)))[1] = 99;
    t_refused(ch_strategy_run(st, f, NULL, &out), CH_INTERNAL, "variable v", "GPU:1 differ");
    assert_null(out);
    assert_int_equal(ch__mem_live(), live);
    t_ok(ch__config_set("check_copies", "false"));
    ch_value_unref(copies);
    ch_function_unref(f);
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- faults ---- */

/* A small training run that makes all kinds of allocations. */
typedef struct small_run {
    ch_strategy *st;
    ch_tensor   *t[5];
    network      net;
    ch_tuple    *batch, *out;
    ch_function *f;
} small_run;

static ch_status try_small_run(small_run *r)
{
    const ch_shape shape[] = {ch_shape_of(IN, HIDDEN), ch_shape_of(HIDDEN),
                              ch_shape_of(HIDDEN, OUT), ch_shape_of(4, IN),
                              ch_shape_of(4, OUT)};
    ch_var       **var[] = {&r->net.w1, &r->net.b1, &r->net.w2};
    ch_status      rc = ch_strategy_mirrored(
             &(ch_mirrored_options){.n_devices = 2,
                                    .device = (const char *const[]){"GPU:0", "GPU:1"}},
             &r->st);

    for (int i = 0; i < 5 && rc == CH_OK; i++)
        rc = ch_tensor_new(CH_F32, shape[i], &r->t[i]);
    for (int i = 0; i < 3 && rc == CH_OK; i++)
        rc = ch_var_new(r->st, &(ch_var_spec){.initial = r->t[i]}, var[i]);
    if (rc == CH_OK)
        rc = ch_tuple_of(2, r->t + 3, &r->batch);
    if (rc == CH_OK)
        rc = ch_function_new("train", train, &r->net, &r->f);
    for (int i = 0; i < 2 && rc == CH_OK; i++) {
        ch_tuple_unref(r->out);
        r->out = NULL;
        rc = ch_strategy_run(r->st, r->f, r->batch, &r->out);
    }
    return rc;
}

static void drop_small_run(small_run *r)
{
    ch_function_unref(r->f);
    ch_tuple_unref(r->batch);
    ch_tuple_unref(r->out);
    for (int i = 0; i < 5; i++)
        ch_tensor_unref(r->t[i]);
    drop_network(&r->net);
    ch_strategy_unref(r->st);
}

static void mirrored_step_leaks_nothing_when_any_allocation_fails(void **state)
{
    small_run first = {0};
    ch_status rc = try_small_run(&first); /* allocates objects that exist once in a process */
    int       n = 0;

    t_ok(rc);
    drop_small_run(&first);
    for (rc = CH_RESOURCE_EXHAUSTED; rc != CH_OK; n++) {
        small_run r = {0};
        int64_t   live = ch__mem_live();

        ch__mem_fail_at(n + 1);
        rc = try_small_run(&r);
        ch__mem_fail_at(0);
        if (rc != CH_OK && rc != CH_RESOURCE_EXHAUSTED)
            fail_msg("allocation %d: %s: %s", n + 1, ch_status_name(rc), ch_error_message());
        drop_small_run(&r);
        assert_int_equal(ch__mem_live(), live);
    }
    assert_true(n > 100);
    (void)state;
}

/* Fails on the replica whose first input contains a 1. */
static void fail_on_one(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0);

    ch_var_assign_add(s, arg, ch_sum(x, 1, (int[]){0}, false));
    ch_check_numerics(ch_log(ch_sub(ch_number(s, 1), ch_sum_all(x))), "log");
    ch_step_out(s, "sum", ch_all_reduce(CH_SUM, ch_sum_all(x)));
}

static ch_tuple *per_replica(float a, float b)
{
    ch_tensor *t[2] = {t_f32(ch_shape_of(1, 2), (float[]){a, 0}),
                       t_f32(ch_shape_of(1, 2), (float[]){b, 0})};
    ch_value  *v = NULL;
    ch_tuple  *tuple = NULL;

    t_ok(ch_value_new(CH_PER_REPLICA, 2, t, &v));
    t_ok(ch_tuple_new(1, &v, NULL, &tuple));
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    ch_value_unref(v);
    return tuple;
}

static void a_step_that_fails_on_one_replica_changes_no_variable_and_the_next_runs(void **state)
{
    ch_strategy *st = two_devices();
    ch_var      *v = t_var(st, "v", t_f32(ch_shape_of(2), (float[]){10, 20}));
    ch_function *f = t_function(fail_on_one, v);
    ch_tuple    *good = per_replica(0.25f, 0.5f), *bad = per_replica(0.25f, 1);

    for (int i = 0; i < 3; i++) {
        t_refused(ch_strategy_run(st, f, bad, NULL), CH_INVALID_ARGUMENT, "replica 1", "log");
        assert_true(t_copy_of(v, 0, 0) == 10 + 0.25f * (float)i);
        assert_true(t_copy_of(v, 1, 0) == 10 + 0.5f * (float)i);
        t_ok(ch_strategy_run(st, f, good, NULL));
    }
    ch_tuple_unref(good);
    ch_tuple_unref(bad);
    ch_function_unref(f);
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- variables in a step ---- */

static void swap_and_add(ch_step *s, void *arg)
{
    ch_var **v = arg;
    ch_node *a = ch_var_read(s, v[0]), *b = ch_var_read(s, v[1]);

    ch_var_assign(s, v[0], b);
    ch_var_assign(s, v[1], a);
    ch_var_assign_add(s, v[2], ch_var_read(s, v[0])); /* reads the assigned value */
    ch_step_out(s, "old", a);
    ch_step_out(s, "new", ch_var_read(s, v[0]));
    ch_step_out(s, "sum", ch_var_read(s, v[2]));
}

static void reads_see_assigns_and_two_variables_can_be_swapped(void **state)
{
    ch_var      *v[3];
    ch_function *f = t_function(swap_and_add, v);
    ch_tuple    *out = NULL;

    for (int i = 0; i < 3; i++)
        v[i] = t_var(NULL, "v", t_f32(ch_shape_of(1), (float[]){(float)(i + 1)}));
    assert_string_equal(ch_var_name(v[0]), "v");
    assert_string_equal(ch_var_name(v[1]), "v_1");
    t_ok(ch_strategy_run(NULL, f, NULL, &out));
    assert_true(t_floats(out, 0, 0)[0] == 1);
    assert_true(t_floats(out, 1, 0)[0] == 2);
    assert_true(t_floats(out, 2, 0)[0] == 5);
    assert_true(t_copy_of(v[0], 0, 0) == 2);
    assert_true(t_copy_of(v[1], 0, 0) == 1);
    assert_true(t_copy_of(v[2], 0, 0) == 5);
    ch_tuple_unref(out);
    ch_function_unref(f);
    for (int i = 0; i < 3; i++)
        ch_var_unref(v[i]);
    (void)state;
}

static void use_old_after_update(ch_step *s, void *arg)
{
    ch_node *old = ch_var_read(s, arg);

    ch_var_assign_add(s, arg, ch_number(s, 1));
    ch_step_out(s, "old", ch_mul(old, ch_number(s, 10)));
}

static void variable_read_before_an_update_keeps_its_old_value(void **state)
{
    ch_var      *v = t_var(NULL, "v", t_f32(ch_shape_of(3), (float[]){1, 2, 3}));
    ch_function *f = t_function(use_old_after_update, v);

    for (int i = 0; i < 3; i++) {
        ch_tuple *out = NULL;

        t_ok(ch_strategy_run(NULL, f, NULL, &out));
        assert_true(t_floats(out, 0, 0)[1] == 10 * (float)(2 + i));
        assert_true(t_copy_of(v, 0, 1) == (float)(3 + i));
        ch_tuple_unref(out);
    }
    ch_function_unref(f);
    ch_var_unref(v);
    (void)state;
}

static void step_results_outlive_their_function_and_variables(void **state)
{
    ch_var      *v = t_var(NULL, "v", t_f32(ch_shape_of(1), (float[]){0}));
    ch_function *f = t_function(use_old_after_update, v);
    ch_tuple    *out[4];

    for (int i = 0; i < 4; i++)
        t_ok(ch_strategy_run(NULL, f, NULL, &out[i]));
    ch_function_unref(f);
    ch_var_unref(v);
    for (int i = 3; i >= 0; i--) {
        assert_true(t_floats(out[i], 0, 0)[0] == 10 * (float)i);
        ch_tuple_unref(out[i]);
    }
    (void)state;
}

/* ---- strings ---- */

static ch_tuple *three_words(void)
{
    static const ch_str word[] = {{"one", 3}, {"", 0}, {"three", 5}};
    ch_tensor          *t = NULL;

    t_ok(ch_tensor_copy_of(CH_STR, ch_shape_of(3), word, &t));
    return t_tuple(1, &t);
}

static void give_words(ch_step *s, void *arg)
{
    ch_step_out(s, "rows", ch_rows(ch_step_in(s, 0)));
    ch_step_out(s, "words", ch_step_in(s, 0));
    (void)arg;
}

static ch_status try_words(ch_function **f, ch_tuple *in, ch_tuple **out)
{
    ch_status rc = ch_function_new("words", give_words, NULL, f);

    return rc == CH_OK ? ch_strategy_run(NULL, *f, in, out) : rc;
}

static void string_results_outlive_string_inputs(void **state)
{
    ch_tuple     *in = three_words(), *out = NULL;
    ch_function  *f = NULL;
    const ch_str *word;

    t_ok(try_words(&f, in, &out));
    ch_tuple_unref(in);
    ch_function_unref(f);
    word = ch_tensor_data(ch_value_at(ch_tuple_at(out, 1), 0));
    assert_string_equal(ch_tuple_name(out, 1), "words");
    assert_int_equal(word[2].size, 5);
    assert_memory_equal(word[2].data, "three", 5);
    assert_int_equal(word[1].size, 0);
    ch_tuple_unref(out);
    (void)state;
}

static void string_results_leak_nothing_when_memory_is_short(void **state)
{
    ch_tuple *in = three_words();
    ch_status rc = CH_RESOURCE_EXHAUSTED;

    for (int n = 1; rc != CH_OK; n++) {
        ch_function *f = NULL;
        ch_tuple    *out = NULL;
        int64_t      live = ch__mem_live();

        ch__mem_fail_at(n);
        rc = try_words(&f, in, &out);
        ch__mem_fail_at(0);
        assert_true(rc == CH_OK || rc == CH_RESOURCE_EXHAUSTED);
        ch_function_unref(f);
        ch_tuple_unref(out);
        assert_int_equal(ch__mem_live(), live);
    }
    ch_tuple_unref(in);
    (void)state;
}

static ch_node *joined(ch_node *x)
{
    return ch_concat(2, (ch_node *[]){x, x}, 0);
}

static ch_node *compared(ch_node *x)
{
    return ch_equal(x, x);
}

static ch_node *first_of(ch_node *x)
{
    return ch_gather(x, ch_range_like(x, 0, CH_I64), 0);
}

static ch_node *(*const on_words[])(ch_node *) = {
    joined, compared, first_of, ch_identity, ch_sum_all, ch_zeros_like, ch_stop_gradient};

static void compute_with_words(ch_step *s, void *arg)
{
    ch_step_out(s, NULL, on_words[*(const int *)arg](ch_step_in(s, 0)));
}

static void steps_do_not_compute_with_strings(void **state)
{
    ch_tuple *in = three_words();

    for (int i = 0; i < (int)(sizeof(on_words) / sizeof(on_words[0])); i++) {
        ch_function *f = t_function(compute_with_words, &i);

        t_refused(ch_strategy_run(NULL, f, in, NULL), CH_INVALID_ARGUMENT, "string", "step");
        ch_function_unref(f);
    }
    ch_tuple_unref(in);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replicas_train_as_one_and_stay_equal),
        cmocka_unit_test(a_decoded_step_trains_with_the_same_bits),
        cmocka_unit_test(repeated_step_allocates_nothing_and_wakes_each_device_once),
        cmocka_unit_test(copies_are_compared_before_the_next_step),
        cmocka_unit_test(copies_that_differ_are_an_error_without_results),
        cmocka_unit_test(mirrored_step_leaks_nothing_when_any_allocation_fails),
        cmocka_unit_test(
            a_step_that_fails_on_one_replica_changes_no_variable_and_the_next_runs),
        cmocka_unit_test(reads_see_assigns_and_two_variables_can_be_swapped),
        cmocka_unit_test(variable_read_before_an_update_keeps_its_old_value),
        cmocka_unit_test(step_results_outlive_their_function_and_variables),
        cmocka_unit_test(string_results_outlive_string_inputs),
        cmocka_unit_test(string_results_leak_nothing_when_memory_is_short),
        cmocka_unit_test(steps_do_not_compute_with_strings),
    };

    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "CPU=1,GPU=2"}));
    return cmocka_run_group_tests(tests, NULL, NULL);
}

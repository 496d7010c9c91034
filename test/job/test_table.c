/* test/job/test_table.c -- static tables under every strategy, on every worker, and in datasets
 * of workers.
 *
 * A table maps keys to values in a step or a pipeline. Workers receive a copy with the function
 * or dataset that uses it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/table.h"
#include "rows.h"
#include "scene.h"

/* Keys 0, 1 and 2 are mapped to themselves, all others to -2. */
static ch_table *three(void)
{
    ch_tensor *keys = t_ids(ch_shape_of(3), (int64_t[]){0, 1, 2});
    ch_table  *t = NULL;

    t_ok(ch_table_new(keys, keys, -2, &t));
    ch_tensor_unref(keys);
    return t;
}

static const ch_str text[] = {{"the", 3}, {"cat", 3}, {"sat", 3}, {"on the mat", 10}, {"", 0}};

static ch_tensor *words(int n, const int *which)
{
    ch_str     w[64];
    ch_tensor *t = NULL;

    for (int i = 0; i < n; i++)
        w[i] = text[which[i]];
    t_ok(ch_tensor_copy_of(CH_STR, ch_shape_of(n), w, &t));
    return t;
}

/* Its words are mapped to 0, 1, 2, 3; the empty word and all others to 4. */
static ch_table *vocabulary(void)
{
    ch_tensor *keys = words(4, (int[]){0, 1, 2, 3});
    ch_table  *t = NULL;

    t_ok(ch_table_new(keys, NULL, 4, &t));
    ch_tensor_unref(keys);
    return t;
}

static void look_up(ch_step *s, void *arg)
{
    ch_step_out(s, "x", ch_table_lookup(arg, ch_step_in(s, 0)));
    for (int i = 1; i < ch_step_in_count(s); i++)
        ch_step_out(s, NULL, ch_step_in(s, i));
}

static void fail_step(ch_step *s, void *arg)
{
    (void)arg;
    ch_check(ch_greater(ch_step_in(s, 0), ch_number(s, 5)), "a key is small");
}

/* Compares the values of every replica. */
static void gives(const ch_tuple *t, int n, const int64_t *want)
{
    const ch_value *v = ch_tuple_at(t, 0);

    for (int r = 0; r < ch_value_count(v); r++) {
        assert_int_equal(ch_tensor_count(ch_value_at(v, r)), n);
        assert_memory_equal(ch_tensor_data(ch_value_at(v, r)), want, (size_t)n * sizeof(*want));
    }
}

static ch_status number_of_worker(const ch_value_context *c, void *arg, ch_tuple **out)
{
    ch_tensor *t = t_ids(ch_shape_scalar(), (int64_t[]){c->replica});

    (void)arg;
    *out = t_tuple(1, &t);
    return CH_OK;
}

/* ---- on every worker ---- */

enum { WORKERS = 3, STEPS = 30 };

/* Schedules steps of `f` until every worker has run some; each must return `want`. */
static void on_all(scene *s, ch_function *f, const ch_arguments *args, int n,
                   const int64_t *want)
{
    ch_remote *r[STEPS];
    bool       ran[WORKERS] = {false};

    for (int i = 0; i < STEPS; i++)
        t_ok(ch_coordinator_schedule(s->co, f, args, &r[i]));
    for (int i = 0; i < STEPS; i++) {
        ch_tuple *out = NULL;

        t_ok(ch_remote_fetch(r[i], &out));
        gives(out, n, want);
        ran[*(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(out, 1), 0))] = true;
        ch_tuple_unref(out);
        ch_remote_unref(r[i]);
    }
    for (int i = 0; i < WORKERS; i++)
        assert_true(ran[i]);
}

/* TBL-1: in this process and on every worker. Each worker has its own copy, so the program may
 * free its table. A restarted worker receives the table again. */
static void table_find_gives_equal_values_on_every_worker(void **state)
{
    const int64_t  want[] = {0, 1, -2};
    scene          s;
    ch_per_worker *who = NULL;
    ch_tensor     *keys = t_ids(ch_shape_of(3), (int64_t[]){0, 1, -1}), *here = NULL;
    ch_tuple      *in = t_tuple(1, (ch_tensor *[]){ch_tensor_ref(keys)});
    ch_table      *t;
    ch_function   *f, *fails;
    ch_arguments   args;

    t_open(&s, &(ch_local_cluster_options){.ps = 1, .workers = WORKERS}, 10, NULL);
    t_ok(ch_strategy_enter(s.st));
    t = three();
    ch_strategy_leave();
    assert_int_equal(ch_table_count(t), 3);
    t_ok(ch_table_find(t, keys, &here));
    assert_memory_equal(ch_tensor_data(here), want, sizeof(want));
    t_ok(ch_coordinator_create_per_worker_values(s.co, number_of_worker, NULL, &who));
    args = (ch_arguments){.in = in, .n_each = 1, .each = &who};
    f = t_function(look_up, t);
    t_ok(ch_coordinator_schedule(s.co, f, &args, NULL)); /* the recording refers to the table */
    ch_table_unref(t);
    on_all(&s, f, &args, 3, want);
    fails = t_function(fail_step, NULL); /* AE-5: tables survive an error */
    t_ok(ch_coordinator_schedule(s.co, fails, &args, NULL));
    t_refused(ch_coordinator_join(s.co), CH_INVALID_ARGUMENT, "a key is small", "worker/");
    on_all(&s, f, &args, 3, want);
    ch_function_unref(fails);
    t_kill_in(&s, 5, "worker", 1);
    t_restart_in(&s, 60, "worker", 1);
    t_pass(&s, 200);
    on_all(&s, f, &args, 3, want);
    ch_tensor_unref(keys);
    ch_tensor_unref(here);
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_per_worker_unref(who);
    t_close(&s);
    (void)state;
}

static void table_lookup_in_a_step_takes_words_as_input(void **state)
{
    const int      which[] = {3, 1, 4, 0};
    scene          s;
    ch_per_worker *who = NULL;
    ch_tensor     *w = words(4, which);
    ch_tuple      *in = t_tuple(1, &w);
    ch_table      *t = vocabulary();
    ch_function   *f = t_function(look_up, t);

    t_open(&s, &(ch_local_cluster_options){.ps = 1, .workers = WORKERS}, 10, NULL);
    t_ok(ch_coordinator_create_per_worker_values(s.co, number_of_worker, NULL, &who));
    on_all(&s, f, &(ch_arguments){.in = in, .n_each = 1, .each = &who}, 4,
           (int64_t[]){3, 1, 4, 0});
    ch_tuple_unref(in);
    ch_table_unref(t);
    ch_function_unref(f);
    ch_per_worker_unref(who);
    t_close(&s);
    (void)state;
}

/* ---- in datasets of workers ---- */

static void same(ch_step *s, void *arg)
{
    (void)arg;
    for (int i = 0; i < ch_step_in_count(s); i++)
        ch_step_out(s, NULL, ch_step_in(s, i));
}

/* Reads the first element of `d` on every worker. Takes over the reference `d`. */
static void every_worker_reads(ch_dataset *d, int n, const int64_t *want)
{
    scene          s;
    ch_per_worker *data = NULL, *it = NULL, *who = NULL;
    ch_function   *f = t_function(same, NULL);

    t_open(&s, &(ch_local_cluster_options){.ps = 1, .workers = WORKERS}, 10, NULL);
    assert_non_null(d);
    t_ok(ch_coordinator_create_per_worker_dataset(s.co, d, &data));
    ch_dataset_unref(d);
    t_ok(ch_per_worker_iterate(data, &it));
    t_ok(ch_coordinator_create_per_worker_values(s.co, number_of_worker, NULL, &who));
    on_all(&s, f, &(ch_arguments){.n_each = 2, .each = (ch_per_worker *[]){it, who}}, n, want);
    ch_per_worker_unref(who);
    ch_per_worker_unref(it);
    ch_per_worker_unref(data);
    ch_function_unref(f);
    t_close(&s);
}

/* TBL-3: the table is in the description of the dataset, and each worker creates its own
 * copy. */
static void table_is_sent_with_the_dataset_that_uses_it(void **state)
{
    ch_table   *t = three();
    ch_tensor  *keys = t_ids(ch_shape_of(3), (int64_t[]){0, 1, -1});
    ch_dataset *d = ch_dataset_repeat(ch_dataset_of(1, &keys, NULL), CH_INFINITE);

    d = ch_dataset_map(d, look_up, t, NULL);
    ch_table_unref(t);
    ch_tensor_unref(keys);
    every_worker_reads(d, 3, (int64_t[]){0, 1, -2});
    (void)state;
}

static void table_lookup_of_words_runs_in_the_dataset_of_each_worker(void **state)
{
    const int   which[] = {3, 1, 4, 0};
    ch_table   *t = vocabulary();
    ch_tensor  *w = words(4, which);
    ch_dataset *d = ch_dataset_batch(
        ch_dataset_repeat(ch_dataset_slices(1, &w, NULL), CH_INFINITE), 4, NULL);

    d = ch_dataset_map(d, look_up, t, NULL);
    ch_table_unref(t);
    ch_tensor_unref(w);
    every_worker_reads(d, 4, (int64_t[]){3, 1, 4, 0});
    (void)state;
}

/* ---- under every strategy ---- */

enum { STRATEGIES = 6, ROWS = 6 };

static ch_strategy *strategy(int i)
{
    ch_strategy *st = NULL;

    switch (i) {
    case 0:
        return NULL;
    case 1:
        t_ok(ch_strategy_one_device("GPU:1", &st));
        return st;
    case 2:
        return t_mirrored(2);
    case 3:
        return t_central(3);
    case 4:
        return t_in_shards(2);
    default:
        return t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = 1, .devices = 2}, NULL,
                         NULL);
    }
}

typedef struct network {
    ch_table *words;
    ch_var   *rows; /* a row for each word, and a row for all others */
} network;

/* Maps words to ids, looks up their rows, and subtracts the gradient of the sum of their
 * squares. */
static void train(ch_step *s, void *arg)
{
    network *n = arg;
    ch_node *now = ch_var_read(s, n->rows);
    ch_node *found = ch_gather(now, ch_table_lookup(n->words, ch_step_in(s, 0)), 0);
    ch_node *loss = ch_sum_all(ch_square(found));

    ch_var_assign_sub(
        s, n->rows, ch_mul(ch_number(s, 0.25), ch_all_reduce(CH_SUM, ch_gradient(loss, now))));
    ch_step_out(s, "loss", loss);
}

static ch_tuple *batch(ch_strategy *st)
{
    int        n = ch_strategy_replicas(st);
    const int  which[ROWS] = {0, 1, 0, 4, 3, 0};
    ch_tensor *w = words(ROWS, which), *part[8] = {NULL};
    ch_value  *v = NULL;
    ch_tuple  *t = NULL;

    for (int r = 0; r < n; r++)
        t_ok(ch_tensor_rows(w, ROWS * r / n, ROWS * (r + 1) / n, &part[r]));
    t_ok(ch_value_new(n > 1 ? CH_PER_REPLICA : CH_PLAIN, n, part, &v));
    t_ok(ch_tuple_new(1, &v, NULL, &t));
    for (int r = 0; r < n; r++)
        ch_tensor_unref(part[r]);
    ch_value_unref(v);
    ch_tensor_unref(w);
    return t;
}

static void rows_of_words_are_trained_alike_under_every_strategy(void **state)
{
    float want[10];

    for (int i = 0; i < STRATEGIES; i++) {
        ch_strategy *st = strategy(i);
        network      net = {vocabulary(), t_table(st, "rows", ch_shape_of(5, 2))};
        ch_function *f = t_function(train, &net);
        ch_tuple    *in = batch(st);
        ch_tensor   *is = NULL;

        for (int k = 0; k < 3; k++)
            t_ok(ch_strategy_run(st, f, in, NULL));
        t_ok(ch_var_get(net.rows, &is));
        if (i == 0)
            memcpy(want, ch_tensor_data(is), sizeof(want));
        t_same(is, ch_shape_of(5, 2), want);
        ch_tuple_unref(in);
        ch_function_unref(f);
        ch_var_unref(net.rows);
        ch_table_unref(net.words);
        ch_strategy_unref(st);
    }
    assert_true(want[4] == 4 && want[0] == 0 && want[1] != 1); /* "sat" does not occur */
    (void)state;
}

static void a_table_is_looked_up_alike_under_every_strategy(void **state)
{
    for (int i = 0; i < STRATEGIES; i++) {
        ch_strategy *st = strategy(i);
        ch_table    *t = three();
        ch_function *f = t_function(look_up, t);
        ch_tensor   *keys = t_ids(ch_shape_of(3), (int64_t[]){0, 1, -1});
        ch_tuple    *in = t_tuple(1, &keys), *out = NULL;

        t_ok(ch_strategy_run(st, f, in, &out));
        gives(out, 3, (int64_t[]){0, 1, -2});
        ch_tuple_unref(out);
        ch_tuple_unref(in);
        ch_function_unref(f);
        ch_table_unref(t);
        ch_strategy_unref(st);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_find_gives_equal_values_on_every_worker),
        cmocka_unit_test(table_lookup_in_a_step_takes_words_as_input),
        cmocka_unit_test(table_is_sent_with_the_dataset_that_uses_it),
        cmocka_unit_test(table_lookup_of_words_runs_in_the_dataset_of_each_worker),
        cmocka_unit_test(rows_of_words_are_trained_alike_under_every_strategy),
        cmocka_unit_test(a_table_is_looked_up_alike_under_every_strategy),
    };

    return cmocka_run_group_tests(tests, t_four_gpus, NULL);
}

/* test/job/test_borrowed.c -- steps on workers that read variables of Default, and steps of
 * Default that read variables of parameter servers.
 *
 * A step on a worker reads the value that the variable of Default had when the step was
 * scheduled. The rules that need no servers are tested in test/strategy/test_borrowed.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>

#include "rows.h"
#include "scene.h"
#include "strategy/strategy.h"

static void set_number(ch_var *v, float x)
{
    ch_tensor *t = t_f32(ch_shape_scalar(), &x);

    t_ok(ch_var_set(v, t));
    ch_tensor_unref(t);
}

static float fetch_number(ch_remote *r)
{
    ch_tuple *out = NULL;
    float     x;

    t_ok(ch_remote_fetch(r, &out));
    x = *t_floats(out, 0, 0);
    ch_tuple_unref(out);
    return x;
}

/* ---- workers read a variable of Default ---- */

static void give_rows(ch_step *s, void *v)
{
    ch_step_out(s, "x", ch_mul(ch_var_read(s, v), ch_number(s, 2)));
}

/* VP-2: not changed, and its value is sent with the step. */
static void variable_of_default_is_read_by_every_worker(void **state)
{
    static const float once[] = {0, 2, 4, 6}, later[] = {10, 10, 10, 10};

    (void)state;
    for (int devices = 1; devices <= 2; devices++) {
        ch_strategy *st = t_cluster(
            &(ch_local_cluster_options){.ps = 2, .workers = 3, .devices = devices}, NULL, NULL);
        ch_var      *v = t_table(NULL, "v", ch_shape_of(4));
        ch_function *f = t_function(give_rows, v);
        ch_tensor   *five = t_f32(ch_shape_of(4), (float[]){5, 5, 5, 5});

        for (int k = 0; k < 2; k++) {
            for (int i = 0; i < 9; i++) {
                ch_tuple *out = NULL;

                t_ok(ch_strategy_run(st, f, NULL, &out));
                for (int r = 0; r < devices; r++)
                    assert_memory_equal(t_floats(out, 0, r), k == 0 ? once : later,
                                        sizeof(once));
                ch_tuple_unref(out);
            }
            t_ok(ch_var_set(v, five));
        }
        assert_int_equal(ch_function_recordings(f), 1);
        ch_tensor_unref(five);
        ch_function_unref(f);
        ch_var_unref(v);
        ch_strategy_unref(st);
    }
}

static void give_number(ch_step *s, void *v)
{
    ch_step_out(s, "x", ch_identity(ch_var_read(s, v)));
}

static void count_up(ch_step *s, void *v)
{
    ch_var_assign_add(s, v, ch_number(s, 1));
}

/* Sets a variable of Default to x, each time by another call. */
static void change_to(ch_var *v, ch_function *up, float x)
{
    ch_value *copies = NULL;

    switch ((int)x % 3) {
    case 0:
        set_number(v, x);
        break;
    case 1:
        t_ok(ch_strategy_run(NULL, up, NULL, NULL)); /* the value before was x - 1 */
        break;
    default:
        t_ok(ch_var_copies(v, &copies));
        *(float *)ch_tensor_data_mut(ch_value_at(copies, 0)) = x;
        ch_value_unref(copies);
    }
}

/* The worker needs at least 20 ms for its first step, so the other steps wait in the queue
 * while the program changes the variable. */
static void step_reads_the_value_that_default_has_when_it_is_scheduled(void **state)
{
    enum { STEPS = 30 };
    scene        s;
    ch_var      *v = t_var_in(NULL, "v", 0);
    ch_function *f = t_function(give_number, v), *up = t_function(count_up, v);
    ch_remote   *r[STEPS] = {NULL};

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.ps = 1, .workers = 1}, 20, NULL);
    for (int i = 0; i < STEPS; i++) {
        change_to(v, up, (float)i);
        t_ok(ch_coordinator_schedule(s.co, f, NULL, &r[i]));
    }
    set_number(v, -1);
    assert_false(ch_remote_has_ended(r[STEPS - 1]));
    for (int i = 0; i < STEPS; i++) {
        assert_true(fetch_number(r[i]) == (float)i);
        ch_remote_unref(r[i]);
    }
    ch_function_unref(up);
    ch_function_unref(f);
    ch_var_unref(v);
    t_close(&s);
}

typedef struct sum_up {
    ch_var *sum, *v; /* sum is on a server, v belongs to Default */
} sum_up;

static void add_value(ch_step *s, void *arg)
{
    const sum_up *a = arg;
    ch_node      *x = ch_var_read(s, a->v);

    ch_var_assign_add(s, a->sum, x);
    ch_step_out(s, "x", ch_identity(x));
}

/* The program changes the variable all the time. A repeated attempt must read the value from
 * the time of scheduling. */
static void repeated_attempt_reads_the_same_value_of_default(void **state)
{
    enum { STEPS = 40 };

    (void)state;
    for (int at = 5; at < 60; at += 9) {
        scene        s;
        sum_up       a = {.v = t_var_in(NULL, "v", 0)};
        ch_remote   *r[STEPS] = {NULL};
        ch_function *f;

        t_open(&s, &(ch_local_cluster_options){.ps = 2, .workers = 3}, 20, NULL);
        a.sum = s.n;
        f = t_function(add_value, &a);
        t_kill_in(&s, at, "worker", 1);
        t_kill_in(&s, at + 20, "worker", 2);
        t_restart_in(&s, at + 30, "worker", 1);
        for (int i = 0; i < STEPS; i++) {
            set_number(a.v, (float)(i + 1));
            t_ok(ch_coordinator_schedule(s.co, f, NULL, &r[i]));
        }
        set_number(a.v, 1e6f);
        t_ok(ch_coordinator_join(s.co));
        assert_true(t_stats(&s).repeated > 0);
        assert_true(t_value_of(s.n) == STEPS * (STEPS + 1) / 2);
        for (int i = 0; i < STEPS; i++) {
            assert_true(fetch_number(r[i]) == (float)(i + 1));
            ch_remote_unref(r[i]);
        }
        ch_function_unref(f);
        ch_var_unref(a.v);
        t_close(&s);
    }
}

static void waiting_steps_share_one_copy_of_a_variable_of_default(void **state)
{
    ch_var    *v = t_table(NULL, "v", ch_shape_of(4));
    ch_tensor *a = NULL, *b = NULL, *c = NULL, *five = t_f32(ch_shape_of(4), NULL);

    (void)state;
    t_ok(ch__var_snapshot(v, &a));
    t_ok(ch__var_snapshot(v, &b));
    assert_ptr_equal(a, b);
    t_ok(ch_var_set(v, five));
    t_ok(ch__var_snapshot(v, &c));
    assert_ptr_not_equal(a, c);
    t_same(b, ch_shape_of(4), (float[]){0, 1, 2, 3});
    t_same(c, ch_shape_of(4), (float[]){0, 0, 0, 0});
    ch_tensor_unref(a);
    ch_tensor_unref(five);
    ch_var_unref(v);
}

/* ---- beside all other kinds of arguments ---- */

enum { WORKERS = 2, DEVICES = 2 };

typedef struct mixture {
    ch_var *first, *last; /* of Default */
    ch_var *own;          /* per-worker variable */
    ch_var *table;        /* on servers, sharded */
} mixture;

/* The inputs are an input of the call, two per-worker values and an element of the per-worker
 * data. */
static void take_all(ch_step *s, void *arg)
{
    const mixture *m = arg;
    ch_node       *row;

    ch_step_out(s, "first", ch_identity(ch_var_read(s, m->first)));
    ch_step_out(s, "own", ch_identity(ch_var_read(s, m->own)));
    ch_var_assign_add(s, m->table, ch_mul(ch_var_read(s, m->last), ch_number(s, 0)));
    row = ch_mod(ch_step_in(s, 3), ch_cast(ch_number(s, 4), CH_I64));
    ch_step_out(s, "table", ch_gather(ch_var_read(s, m->table), row, 0));
    ch_step_out(s, "last", ch_identity(ch_var_read(s, m->last)));
    for (int i = 0; i < 4; i++)
        ch_step_out(s, NULL, ch_identity(ch_step_in(s, i)));
}

static ch_status two_values(const ch_value_context *c, void *arg, ch_tuple **out)
{
    ch_tensor *t[2] = {t_f32(ch_shape_scalar(), &(float){100.0f + (float)c->replica}),
                       t_f32(ch_shape_scalar(), &(float){200.0f + (float)c->replica})};

    (void)arg;
    *out = t_tuple(2, t);
    return CH_OK;
}

/* Returns an input that replicas share, or a per-replica input. */
static ch_tuple *order_input(bool each)
{
    ch_tensor *t[DEVICES] = {t_f32(ch_shape_scalar(), &(float){50}),
                             t_f32(ch_shape_scalar(), &(float){51})};
    ch_value  *v = NULL;
    ch_tuple  *in = NULL;

    t_ok(ch_value_new(each ? CH_PER_REPLICA : CH_PLAIN, each ? DEVICES : 1, t, &v));
    t_ok(ch_tuple_new(1, &v, NULL, &in));
    ch_value_unref(v);
    for (int i = 0; i < DEVICES; i++)
        ch_tensor_unref(t[i]);
    return in;
}

static void check_mixture(const ch_tuple *out, bool each)
{
    for (int r = 0; r < DEVICES; r++) {
        float   worker = *t_floats(out, 5, r) - 100;
        int64_t id;

        assert_true(*t_floats(out, 0, r) == 7);
        assert_true(*t_floats(out, 1, r) == 9);
        assert_memory_equal(t_floats(out, 3, r), ((float[]){0, 1, 2, 3}), 4 * sizeof(float));
        assert_true(*t_floats(out, 4, r) == (each ? 50 + (float)r : 50));
        assert_true(worker == 0 || worker == 1);
        assert_true(*t_floats(out, 6, r) == 200 + worker);
        assert_int_equal(ch_tuple_count(out), 8);
        id = *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(out, 7), r));
        assert_true(*t_floats(out, 2, r) == (float)(id % 4));
    }
}

static void variables_of_default_stand_beside_all_other_inputs_of_a_step(void **state)
{
    ch_strategy *st =
        t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = WORKERS, .devices = DEVICES},
                  &(ch_parameter_server_options){.partitioner = ch_partitioner_fixed(2)}, NULL);
    mixture      m = {t_var_in(NULL, "first", 7), t_table(NULL, "last", ch_shape_of(4)), NULL,
                      t_table(st, "table", ch_shape_of(4))};
    ch_dataset  *d = ch_dataset_batch(ch_dataset_range(0, 100, 1), 2, NULL);
    ch_function *f = t_function(take_all, &m);
    ch_coordinator *c = NULL;
    ch_per_worker  *data = NULL, *each[2] = {NULL};
    ch_tensor      *nine = t_f32(ch_shape_scalar(), &(float){9});

    (void)state;
    t_ok(ch_var_new(st, &(ch_var_spec){.name = "own", .initial = nine, .per_worker = true},
                    &m.own));
    t_ok(ch_coordinator_new(st, NULL, &c));
    t_ok(ch_coordinator_create_per_worker_values(c, two_values, NULL, &each[0]));
    t_ok(ch_coordinator_create_per_worker_dataset(c, d, &data));
    t_ok(ch_per_worker_iterate(data, &each[1]));
    for (int i = 0; i < 12; i++) {
        ch_tuple  *in = order_input(i % 2 == 1), *out = NULL;
        ch_remote *r = NULL;

        t_ok(ch_coordinator_schedule(c, f, &(ch_arguments){.in = in, .n_each = 2, .each = each},
                                     &r));
        t_ok(ch_remote_fetch(r, &out));
        check_mixture(out, i % 2 == 1);
        ch_tuple_unref(in);
        ch_tuple_unref(out);
        ch_remote_unref(r);
    }
    for (int i = 0; i < 2; i++)
        ch_per_worker_unref(each[i]);
    ch_per_worker_unref(data);
    ch_coordinator_unref(c);
    ch_tensor_unref(nine);
    ch_function_unref(f);
    ch_dataset_unref(d);
    ch_var_unref(m.first);
    ch_var_unref(m.last);
    ch_var_unref(m.own);
    ch_var_unref(m.table);
    ch_strategy_unref(st);
}

static void give_row_count(ch_step *s, void *v)
{
    ch_step_out(s, "v", ch_identity(ch_var_read(s, v)));
    ch_step_out(s, "rows", ch_cast(ch_step_global_rows(s), CH_F32));
}

/* The number of rows of a step is that of its first input. A variable of Default is not an
 * input. */
static void step_without_inputs_has_no_rows_when_it_reads_default(void **state)
{
    ch_strategy *st[] = {NULL, t_in_shards(1)};

    (void)state;
    for (int i = 0; i < 2; i++) {
        ch_var      *v = t_table(NULL, "v", ch_shape_of(4));
        ch_function *f = t_function(give_row_count, v);
        ch_tuple    *out = NULL;

        t_ok(ch_strategy_run(st[i], f, NULL, &out));
        assert_true(*t_floats(out, 1, 0) == 0);
        ch_tuple_unref(out);
        ch_function_unref(f);
        ch_var_unref(v);
    }
    ch_strategy_unref(st[1]);
}

typedef struct training {
    ch_var *w, *rate, *table; /* rate and table belong to Default */
} training;

static void train_on_table(ch_step *s, void *arg)
{
    const training *t = arg;
    ch_node        *x = ch_gather(ch_var_read(s, t->table), ch_step_in(s, 0), 0);
    ch_node        *w = ch_var_read(s, t->w),
            *loss = ch_sum_all(ch_square(ch_matmul(x, false, w, false)));
    ch_node *gradient = ch_gradient(loss, w);

    ch_var_assign_sub(s, t->w, ch_mul(ch_var_read(s, t->rate), gradient));
    ch_step_out(s, "loss", loss);
}

/* Returns w after three steps. The third step has another rate. */
static ch_tensor *train_on(ch_strategy *st)
{
    training t = {t_var(st, "w", t_noise(ch_shape_of(3, 5), 1)), t_var_in(NULL, "rate", 0.1),
                  t_var(NULL, "table", t_noise(ch_shape_of(20, 3), 2))};
    ch_function *f = t_function(train_on_table, &t);
    ch_tensor   *ids = t_ids(ch_shape_of(6), (int64_t[]){3, 19, 0, 7, 3, 11}), *w = NULL;
    ch_tuple    *in = t_tuple(1, &ids);

    for (int i = 0; i < 3; i++) {
        set_number(t.rate, i < 2 ? 0.1f : 0.03f);
        t_ok(ch_strategy_run(st, f, in, NULL));
    }
    t_ok(ch_var_get(t.w, &w));
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_var_unref(t.w);
    ch_var_unref(t.rate);
    ch_var_unref(t.table);
    return w;
}

static void training_with_tables_of_default_gives_the_bits_of_one_device(void **state)
{
    ch_strategy *st[] = {NULL, t_in_shards(1), t_in_shards(3)};
    ch_tensor   *w[3];

    (void)state;
    for (int i = 0; i < 3; i++) {
        w[i] = train_on(st[i]);
        assert_memory_equal(ch_tensor_data(w[0]), ch_tensor_data(w[i]), ch_tensor_bytes(w[0]));
    }
    for (int i = 0; i < 3; i++) {
        ch_tensor_unref(w[i]);
        ch_strategy_unref(st[i]);
    }
}

static void worker_function_keeps_the_variables_of_default(void **state)
{
    ch_strategy *st = t_in_shards(1);
    ch_var      *v = t_var_in(NULL, "v", 3);
    ch_function *f = t_function(give_number, v);

    (void)state;
    for (int i = 0; i < 3; i++) {
        ch_tuple *out = NULL;

        t_ok(ch_strategy_run(st, f, NULL, &out));
        assert_true(*t_floats(out, 0, 0) == 3);
        ch_tuple_unref(out);
        if (i == 0)
            ch_var_unref(v);
    }
    ch_function_unref(f);
    ch_strategy_unref(st);
}

/* ---- writes ---- */

static void add_one(ch_step *s, ch_var *v, int n, ch_node *const *in, ch_node **out, void *arg)
{
    (void)n;
    (void)in;
    (void)out;
    (void)arg;
    ch_var_assign_add(s, v, ch_number(s, 1));
}

static void write_sum(ch_step *s, void *v)
{
    ch_var_assign_add(s, v, ch_number(s, 1));
    give_number(s, v);
}

static void write_row(ch_step *s, void *v)
{
    ch_node *row = ch_reshape(ch_number(s, 0), ch_shape_of(1));

    ch_var_scatter_update(s, v, ch_cast(row, CH_I32), row);
    give_number(s, v);
}

static void write_update(ch_step *s, void *v)
{
    ch_update(s, v, add_one, NULL, 0, NULL, 0, NULL);
    give_number(s, v);
}

static void write_of_a_worker_to_default_is_refused_with_the_reason(void **state)
{
    static const struct {
        ch_step_fn  step;
        const char *call;
    } row[] = {{write_sum, "assign_add: variable v: Default made it"},
               {write_row, "scatter_update: variable v: Default made it"},
               {write_update, "update: variable v: Default made it"}};
    ch_strategy    *st = t_in_shards(1);
    ch_coordinator *c = NULL;
    ch_var         *v = t_table(NULL, "v", ch_shape_of(2));

    (void)state;
    t_ok(ch_coordinator_new(st, NULL, &c));
    for (int i = 0; i < 3; i++) {
        ch_function *f = t_function(row[i].step, v);

        t_refused(ch_strategy_run(st, f, NULL, NULL), CH_FAILED_PRECONDITION, row[i].call,
                  "which may read it but not write it");
        assert_non_null(strstr(ch_error_message(), ch_strategy_label(st)));
        t_refused(ch_coordinator_schedule(c, f, NULL, NULL), CH_FAILED_PRECONDITION,
                  row[i].call, "make the variable in this scope");
        ch_function_unref(f);
    }
    t_ok(ch_coordinator_join(c));
    t_var_is(v, (float[]){0, 1});
    ch_var_unref(v);
    ch_coordinator_unref(c);
    ch_strategy_unref(st);
}

static void variable_of_a_third_strategy_is_refused_by_workers_and_servers(void **state)
{
    ch_strategy *st[] = {t_in_shards(1), NULL};
    char         made[96], runs[96];

    (void)state;
    t_ok(ch_strategy_one_device("CPU:0", &st[1]));
    for (int i = 0; i < 2; i++) {
        ch_var      *v = t_var_in(st[i], "v", 3);
        ch_function *f = t_function(give_number, v);

        (void)snprintf(made, sizeof(made), "%s made it", ch_strategy_label(st[i]));
        (void)snprintf(runs, sizeof(runs), "under %s", ch_strategy_label(st[1 - i]));
        t_refused(ch_strategy_run(st[1 - i], f, NULL, NULL), CH_FAILED_PRECONDITION, made,
                  runs);
        assert_non_null(strstr(ch_error_message(), "mixing different strategies"));
        ch_function_unref(f);
        ch_var_unref(v);
    }
    ch_strategy_unref(st[0]);
    ch_strategy_unref(st[1]);
}

/* ---- threads ---- */

enum { THREADS = 4, EACH = 25 };

typedef struct scheduler {
    ch_coordinator *c;
    ch_function    *f;
    int             n_right;
} scheduler;

static void *schedule_some(void *arg)
{
    scheduler *t = arg;

    for (int i = 0; i < EACH; i++) {
        ch_remote *r = NULL;
        ch_tuple  *out = NULL;

        if (ch_coordinator_schedule(t->c, t->f, NULL, &r) == CH_OK &&
            ch_remote_fetch(r, &out) == CH_OK)
            t->n_right += *t_floats(out, 0, 0) == 3;
        ch_tuple_unref(out);
        ch_remote_unref(r);
    }
    return NULL;
}

static void coordinator_schedules_steps_that_read_default_from_several_threads(void **state)
{
    ch_strategy    *st = t_in_shards(1);
    ch_coordinator *c = NULL;
    sum_up          a = {t_var_in(st, "sum", 0), t_var_in(NULL, "v", 3)};
    ch_function    *f = t_function(add_value, &a);
    pthread_t       thread[THREADS];
    scheduler       t[THREADS];

    (void)state;
    t_ok(ch_coordinator_new(st, NULL, &c));
    for (int i = 0; i < THREADS; i++) {
        t[i] = (scheduler){c, f, 0};
        assert_int_equal(pthread_create(&thread[i], NULL, schedule_some, &t[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(thread[i], NULL), 0);
        assert_int_equal(t[i].n_right, EACH);
    }
    assert_true(t_value_of(a.sum) == 3 * THREADS * EACH);
    ch_function_unref(f);
    ch_var_unref(a.sum);
    ch_var_unref(a.v);
    ch_coordinator_unref(c);
    ch_strategy_unref(st);
}

/* ---- Default reads variables on servers ---- */

enum { WORDS = 7, WIDTH = 3, ROWS = 4 };

/* Returns a model with an embedding, whose table is sharded, and with layers that have all
 * kinds of variables. */
static ch_model *text_model(ch_strategy *st)
{
    ch_layer *root = ch_layer_sequential(
        "net", 4,
        (ch_layer *[]){ch_layer_embedding(WORDS, WIDTH, NULL), ch_layer_flatten(),
                       ch_layer_dense(5, NULL), ch_layer_batch_norm(NULL)});
    ch_model *m = NULL;

    t_ok(ch_model_new(
        st, root,
        &(ch_model_options){.n_inputs = 1,
                            .input = {{.dtype = CH_I64, .shape = ch_shape_of(-1, 2)}}},
        &m));
    return m;
}

static void predict(ch_step *s, void *m)
{
    ch_step_out(s, "y", ch_model_call(m, s, ch_step_in(s, 0), false));
}

static void train(ch_step *s, void *m)
{
    ch_node       *y = ch_model_call(m, s, ch_step_in(s, 0), true), *gradient[8];
    ch_var *const *var;
    int            n = ch_model_trainable(m, &var);
    ch_node       *at[8];

    assert_in_range(n, 1, 8);
    for (int i = 0; i < n; i++)
        at[i] = ch_var_read(s, var[i]);
    ch_gradients(ch_sum_all(ch_square(ch_sub(y, ch_number(s, 1)))), NULL, n, at, gradient);
    for (int i = 0; i < n; i++)
        ch_var_assign_sub(s, var[i], ch_mul(ch_number(s, 0.1), gradient[i]));
}

static void same_predictions(ch_strategy *st, ch_function *f, ch_tuple *in, float *y)
{
    ch_tuple *own = NULL, *out = NULL;

    t_ok(ch_strategy_run(st, f, in, &own));
    t_ok(ch_strategy_run(NULL, f, in, &out));
    assert_int_equal(ch_value_count(ch_tuple_at(out, 0)), 1);
    assert_memory_equal(t_floats(own, 0, 0), t_floats(out, 0, 0), ROWS * 5 * sizeof(float));
    memcpy(y, t_floats(out, 0, 0), ROWS * 5 * sizeof(float));
    ch_tuple_unref(own);
    ch_tuple_unref(out);
}

/* CX-2: the results under the model's own strategy, which looks rows up, are the expected
 * results. Default fetches the whole tables. */
static void model_on_servers_is_called_under_default(void **state)
{
    static const int64_t id[] = {0, 6, 3, 3, 1, 5, 2, 4};

    (void)state;
    for (int shards = 1; shards <= 3; shards++) {
        ch_strategy *st = t_in_shards(shards);
        ch_model    *m = text_model(st);
        ch_function *f = t_function(predict, m), *g = t_function(train, m);
        ch_tensor   *ids = t_ids(ch_shape_of(ROWS, 2), id);
        ch_tuple    *in = t_tuple(1, &ids);
        float        y[4][ROWS * 5];

        same_predictions(st, f, in, y[0]);
        for (int i = 1; i < 4; i++) {
            t_ok(ch_strategy_run(st, g, in, NULL));
            same_predictions(st, f, in, y[i]);
            assert_memory_not_equal(y[i], y[i - 1], sizeof(y[0]));
        }
        assert_int_equal(ch_function_recordings(f), 2); /* a recording for each strategy */
        t_refused(ch_strategy_run(NULL, g, in, NULL), CH_FAILED_PRECONDITION,
                  "may read it but not write it", "moving_mean");
        ch_tuple_unref(in);
        ch_function_unref(f);
        ch_function_unref(g);
        ch_model_unref(m);
        ch_strategy_unref(st);
    }
}

static void default_reads_a_shard_and_the_whole_variable_on_servers(void **state)
{
    ch_strategy *st = t_in_shards(3);
    ch_var      *v = t_table(st, "v", ch_shape_of(6)), *read[] = {v, ch_var_shard(v, 1)};
    ch_tensor   *six = t_f32(ch_shape_of(2), (float[]){60, 61});
    const float  want[2][2][6] = {{{0, 2, 4, 6, 8, 10}, {0, 2, 120, 122, 8, 10}},
                                  {{4, 6}, {120, 122}}};

    (void)state;
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 2; i++) {
            ch_function *f = t_function(give_rows, read[i]);
            ch_tuple    *out = NULL;

            t_ok(ch_strategy_run(NULL, f, NULL, &out));
            assert_memory_equal(t_floats(out, 0, 0), want[i][k],
                                (i == 0 ? 6 : 2) * sizeof(float));
            ch_tuple_unref(out);
            ch_function_unref(f);
        }
        t_ok(ch_var_set(read[1], six));
    }
    ch_tensor_unref(six);
    ch_var_unref(v);
    ch_strategy_unref(st);
}

/* Servers have a single copy of the variable, so there is nothing to add up, whatever its
 * aggregation. */
static void default_reads_a_sync_on_read_variable_of_servers(void **state)
{
    ch_strategy *st =
        t_cluster(&(ch_local_cluster_options){.ps = 1, .workers = 2, .devices = 2}, NULL, NULL);

    (void)state;
    for (int how = CH_AGGREGATE_NONE; how <= CH_AGGREGATE_FIRST; how++) {
        ch_tensor   *three = t_f32(ch_shape_scalar(), &(float){3});
        ch_var      *v = NULL;
        ch_function *f;
        ch_tuple    *out = NULL;

        t_ok(ch_var_new(st,
                        &(ch_var_spec){.initial = three,
                                       .sync = CH_SYNC_ON_READ,
                                       .aggregation = (ch_aggregation)how},
                        &v));
        f = t_function(give_number, v);
        t_ok(ch_strategy_run(NULL, f, NULL, &out));
        assert_true(*t_floats(out, 0, 0) == 3 && t_value_of(v) == 3);
        ch_tuple_unref(out);
        ch_function_unref(f);
        ch_var_unref(v);
        ch_tensor_unref(three);
    }
    ch_strategy_unref(st);
}

static void default_reads_the_programs_copy_of_a_per_worker_variable(void **state)
{
    ch_strategy *st = t_in_shards(1);
    ch_tensor   *three = t_f32(ch_shape_scalar(), &(float){3});
    ch_var      *v = NULL;
    ch_function *up, *f;
    ch_tuple    *out = NULL;

    (void)state;
    t_ok(ch_var_new(st, &(ch_var_spec){.initial = three, .per_worker = true}, &v));
    up = t_function(count_up, v);
    f = t_function(give_number, v);
    t_ok(ch_strategy_run(st, up, NULL, NULL)); /* a worker increments its own copy */
    for (int i = 0; i < 2; i++) {
        t_ok(ch_strategy_run(NULL, f, NULL, &out));
        assert_true(*t_floats(out, 0, 0) == (i == 0 ? 3 : 8));
        ch_tuple_unref(out);
        set_number(v, 8);
    }
    t_refused(ch_strategy_run(NULL, up, NULL, NULL), CH_FAILED_PRECONDITION,
              "may read it but not write it", ch_strategy_label(st));
    ch_function_unref(up);
    ch_function_unref(f);
    ch_var_unref(v);
    ch_tensor_unref(three);
    ch_strategy_unref(st);
}

static void default_says_which_server_is_lost_when_it_reads_its_variable(void **state)
{
    scene        s;
    ch_function *f;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.ps = 1, .workers = 1}, 1, NULL);
    f = t_function(give_number, s.n);
    t_ok(ch_strategy_run(NULL, f, NULL, NULL));
    t_ok(ch_local_cluster_kill(s.cluster, "ps", 0));
    t_refused(ch_strategy_run(NULL, f, NULL, NULL), CH_UNAVAILABLE, "variable n", "ps/0");
    ch_function_unref(f);
    t_close(&s);
}

typedef struct reader {
    ch_function *f;
    int          n_read;
    bool         is_right;
} reader;

/* All elements of a shard that a read returns are from the same moment, and no read returns
 * older values than the read before. */
static void *read_some(void *arg)
{
    reader *r = arg;
    float   before = 0;

    for (r->is_right = true; r->n_read < EACH && r->is_right; r->n_read++) {
        ch_tuple *out = NULL;

        r->is_right = ch_strategy_run(NULL, r->f, NULL, &out) == CH_OK;
        for (int i = 0; i < 4 && r->is_right; i++)
            r->is_right = t_floats(out, 0, 0)[i] == t_floats(out, 0, 0)[i / 2 * 2];
        if (r->is_right)
            r->is_right = t_floats(out, 0, 0)[0] >= before;
        if (r->is_right)
            before = t_floats(out, 0, 0)[0];
        ch_tuple_unref(out);
    }
    return NULL;
}

static void give_whole(ch_step *s, void *v)
{
    ch_step_out(s, "x", ch_identity(ch_var_read(s, v)));
}

static void default_reads_variables_of_servers_from_threads_while_workers_write(void **state)
{
    ch_strategy    *st = t_in_shards(2);
    ch_coordinator *c = NULL;
    ch_var         *v = t_var(st, "v", t_f32(ch_shape_of(4), NULL));
    ch_function    *up = t_function(count_up, v), *f[THREADS];
    pthread_t       thread[THREADS];
    reader          r[THREADS];

    (void)state;
    t_ok(ch_coordinator_new(st, NULL, &c));
    for (int i = 0; i < THREADS; i++) { /* two threads for each function */
        f[i] = i % 2 == 0 ? t_function(give_whole, v) : ch_function_ref(f[i - 1]);
        r[i] = (reader){.f = f[i]};
        assert_int_equal(pthread_create(&thread[i], NULL, read_some, &r[i]), 0);
    }
    for (int i = 0; i < 100; i++)
        t_ok(ch_coordinator_schedule(c, up, NULL, NULL));
    t_ok(ch_coordinator_join(c));
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(thread[i], NULL), 0);
        assert_true(r[i].is_right && r[i].n_read == EACH);
        ch_function_unref(f[i]);
    }
    t_var_is(v, (float[]){100, 100, 100, 100});
    ch_function_unref(up);
    ch_var_unref(v);
    ch_coordinator_unref(c);
    ch_strategy_unref(st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variable_of_default_is_read_by_every_worker),
        cmocka_unit_test(step_reads_the_value_that_default_has_when_it_is_scheduled),
        cmocka_unit_test(repeated_attempt_reads_the_same_value_of_default),
        cmocka_unit_test(waiting_steps_share_one_copy_of_a_variable_of_default),
        cmocka_unit_test(variables_of_default_stand_beside_all_other_inputs_of_a_step),
        cmocka_unit_test(step_without_inputs_has_no_rows_when_it_reads_default),
        cmocka_unit_test(training_with_tables_of_default_gives_the_bits_of_one_device),
        cmocka_unit_test(worker_function_keeps_the_variables_of_default),
        cmocka_unit_test(write_of_a_worker_to_default_is_refused_with_the_reason),
        cmocka_unit_test(variable_of_a_third_strategy_is_refused_by_workers_and_servers),
        cmocka_unit_test(coordinator_schedules_steps_that_read_default_from_several_threads),
        cmocka_unit_test(model_on_servers_is_called_under_default),
        cmocka_unit_test(default_reads_a_shard_and_the_whole_variable_on_servers),
        cmocka_unit_test(default_reads_a_sync_on_read_variable_of_servers),
        cmocka_unit_test(default_reads_the_programs_copy_of_a_per_worker_variable),
        cmocka_unit_test(default_says_which_server_is_lost_when_it_reads_its_variable),
        cmocka_unit_test(default_reads_variables_of_servers_from_threads_while_workers_write),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

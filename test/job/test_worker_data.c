/* test/job/test_worker_data.c -- per-worker datasets and values, and datasets that all workers
 * share.
 *
 * Steps report the element that they have read and the worker that ran them. The tests check
 * the order of elements for each worker, pass and epoch, also when workers are lost, and that
 * each element of a shared dataset is read once.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../file/folder.h"
#include "base/mem.h"
#include "job/coordinator/private.h"
#include "rows.h"
#include "scene.h"
#include "strategy/parameter_server.h"

enum { MOST = 64 };

/* Returns the number of the worker and the element that the step has read. */
static void report_step(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "x", ch_step_in(s, 0));
    if (ch_step_in_count(s) > 1)
        ch_step_out(s, "worker", ch_step_in(s, 1));
}

static ch_status number_of_worker(const ch_value_context *c, void *arg, ch_tuple **out)
{
    ch_tensor *t = t_ids(ch_shape_scalar(), (int64_t[]){c->replica});

    assert_int_equal(c->replica, *(int *)arg);
    *(int *)arg += 1;
    *out = t_tuple(1, &t);
    return CH_OK;
}

typedef struct act {
    scene          s;
    ch_function   *report;
    ch_per_worker *data, *it, *who;
    int            n_asked, n_read;
    ch_remote     *r[MOST];
} act;

static void begin_in(act *a, int workers, int step_ms)
{
    memset(a, 0, sizeof(*a));
    t_open(&a->s, &(ch_local_cluster_options){.ps = 1, .workers = workers}, step_ms, NULL);
    a->report = t_function(report_step, NULL);
}

static void ask_who(act *a)
{
    t_ok(ch_coordinator_create_per_worker_values(a->s.co, number_of_worker, &a->n_asked,
                                                 &a->who));
}

/* Takes over the reference `d`. */
static void read_each(act *a, ch_dataset *d, bool is_shared)
{
    t_ok(is_shared ? ch_coordinator_distribute_dataset(a->s.co, d, &a->data)
                   : ch_coordinator_create_per_worker_dataset(a->s.co, d, &a->data));
    t_ok(ch_per_worker_iterate(a->data, &a->it));
    ch_dataset_unref(d);
}

static void begin(act *a, ch_dataset *d, bool is_shared)
{
    begin_in(a, 3, 10);
    ask_who(a);
    read_each(a, d, is_shared);
}

static void end(act *a)
{
    for (int i = 0; i < a->n_read; i++)
        ch_remote_unref(a->r[i]);
    ch_per_worker_unref(a->it);
    ch_per_worker_unref(a->data);
    ch_per_worker_unref(a->who);
    ch_function_unref(a->report);
    t_close(&a->s);
}

static void read_on(act *a, int n)
{
    for (int i = 0; i < n; i++)
        t_ok(
            ch_coordinator_schedule(a->s.co, a->report,
                                    &(ch_arguments){.n_each = a->who != NULL ? 2 : 1,
                                                    .each = (ch_per_worker *[]){a->it, a->who}},
                                    &a->r[a->n_read++]));
}

static int64_t integer(const ch_tuple *t, int leaf)
{
    return *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(t, leaf), 0));
}

/* Returns the element that step i has read, and its worker. */
static int64_t element(act *a, int i, int *worker)
{
    ch_tuple *out = NULL;
    int64_t   x;

    t_ok(ch_remote_fetch(a->r[i], &out));
    x = integer(out, 0);
    if (worker != NULL)
        *worker = (int)integer(out, 1);
    ch_tuple_unref(out);
    return x;
}

/* ---- datasets that each worker reads whole ---- */

/* RD-1, RD-3, RD-4, RR-8, RR-10, SC-2: each worker reads the whole dataset, from its beginning. A step gets
 * the per-worker values of the worker that runs it, so it can tell which worker that is. */
static void per_worker_dataset_gives_each_worker_the_whole_data(void **state)
{
    act     a;
    int64_t next[3] = {0};

    (void)state;
    begin(&a, ch_dataset_range(0, 1000, 1), false);
    read_on(&a, 60);
    assert_int_equal(a.n_asked, 3);
    for (int i = 0; i < 60; i++) {
        int     worker = -1;
        int64_t x = element(&a, i, &worker);

        assert_in_range(worker, 0, 2);
        assert_int_equal(x, next[worker]++);
    }
    for (int i = 0; i < 3; i++)
        assert_true(next[i] > 0);
    end(&a);
}

/* ---- orders ---- */

enum { N_WORKERS = 3, N_PASSES = 4, N_EPOCHS = 4, N_IN_EPOCH = 12, N_IN_BATCH = 4 };
enum { N_STREAMS = N_WORKERS * N_PASSES, N_ORDERS = N_STREAMS * N_EPOCHS };

/* The elements that a worker has read in a pass. */
typedef struct reading {
    int     n;
    int64_t x[N_EPOCHS * N_IN_EPOCH];
} reading;

/* The pipeline of the seed page: shuffle, repeat, batch. Each element contains the number of
 * its worker, and batches are numbered. */
static ch_dataset *shuffled_batches(const ch_input_context *c, void *arg)
{
    ch_dataset *d = ch_dataset_range(100 * c->worker, 100 * c->worker + N_IN_EPOCH, 1);

    (void)arg;
    d = ch_dataset_repeat(ch_dataset_shuffle(d, N_IN_EPOCH, NULL), -1);
    return ch_dataset_enumerate(ch_dataset_batch(d, N_IN_BATCH, NULL), 0);
}

static bool is_complete(const reading *r)
{
    for (int w = 0; w < N_WORKERS; w++)
        if (r[w].n < N_EPOCHS * N_IN_EPOCH)
            return false;
    return true;
}

static void take_batch(const ch_tuple *out, reading *r)
{
    const int64_t *x = ch_tensor_data(ch_value_at(ch_tuple_at(out, 1), 0));
    reading       *to = &r[x[0] / 100];

    for (int k = 0; k < N_IN_BATCH; k++) {
        int64_t at = integer(out, 0) * N_IN_BATCH + k;

        if (at >= N_EPOCHS * N_IN_EPOCH)
            continue;
        to->x[at] = x[k] % 100;
        to->n++;
    }
}

/* Reads a pass until the stream of every worker has given N_EPOCHS epochs. */
static void read_pass(act *a, reading *r)
{
    while (!is_complete(r)) {
        enum { N_STEPS = 12 };

        a->n_read = 0;
        read_on(a, N_STEPS);
        for (int i = 0; i < N_STEPS; i++) {
            ch_tuple *out = NULL;

            t_ok(ch_remote_fetch(a->r[i], &out));
            take_batch(out, r);
            ch_tuple_unref(out);
            ch_remote_unref(a->r[i]);
        }
    }
    a->n_read = 0;
}

static void read_passes(reading *r, bool kills)
{
    act a;

    memset(r, 0, N_STREAMS * sizeof(*r));
    begin_in(&a, N_WORKERS, 10);
    t_ok(ch_coordinator_create_per_worker_dataset_from_function(a.s.co, shuffled_batches, NULL,
                                                                &a.data));
    for (int p = 0; p < N_PASSES; p++) {
        t_ok(ch_per_worker_iterate(a.data, &a.it));
        if (kills) {
            t_kill_in(&a.s, 15, "worker", p % N_WORKERS);
            t_restart_in(&a.s, 150, "worker", p % N_WORKERS);
        }
        read_pass(&a, &r[p * N_WORKERS]);
        ch_per_worker_unref(a.it);
        a.it = NULL;
    }
    assert_int_equal(t_stats(&a.s).workers_lost, kills ? N_PASSES : 0);
    end(&a);
}

/* RD-2, RD-4: each pass begins at the first element, and every (worker, pass, epoch) has its
 * own order. */
static void shuffle_orders_are_distinct_for_every_worker_pass_and_epoch(void **state)
{
    static reading r[N_STREAMS];

    (void)state;
    read_passes(r, false);
    for (int i = 0; i < N_ORDERS; i++) {
        const int64_t *x = &r[i / N_EPOCHS].x[i % N_EPOCHS * N_IN_EPOCH];
        uint64_t       seen = 0;

        for (int k = 0; k < N_IN_EPOCH; k++)
            seen |= UINT64_C(1) << x[k];
        assert_int_equal(seen, (1 << N_IN_EPOCH) - 1); /* an epoch has each element once */
        for (int k = 0; k < i; k++)
            if (memcmp(x, &r[k / N_EPOCHS].x[k % N_EPOCHS * N_IN_EPOCH],
                       N_IN_EPOCH * sizeof(*x)) == 0)
                fail_msg("pass %d, worker %d, epoch %d has the order of pass %d, worker %d, "
                         "epoch %d",
                         i / N_EPOCHS / N_WORKERS, i / N_EPOCHS % N_WORKERS, i % N_EPOCHS,
                         k / N_EPOCHS / N_WORKERS, k / N_EPOCHS % N_WORKERS, k % N_EPOCHS);
    }
}

static void shuffle_orders_are_the_same_when_workers_are_lost(void **state)
{
    static reading r[N_STREAMS], again[N_STREAMS];

    (void)state;
    read_passes(r, false);
    read_passes(again, true);
    assert_memory_equal(r, again, sizeof(r));
}

/* RD-2: a new pass begins at the first element while earlier passes continue */
static void per_worker_pass_begins_at_the_first_element(void **state)
{
    act            a;
    ch_per_worker *pass[3] = {NULL};

    (void)state;
    begin_in(&a, 1, 1);
    read_each(&a, ch_dataset_range(0, 1000, 1), false);
    ch_per_worker_unref(a.it);
    for (int k = 0; k < 3; k++) {
        t_ok(ch_per_worker_iterate(a.data, &pass[k]));
        for (int i = 0; i <= k; i++) { /* pass i is at element k - i */
            a.it = pass[i];
            read_on(&a, 1);
            assert_int_equal(element(&a, a.n_read - 1, NULL), k - i);
        }
    }
    a.it = NULL;
    for (int k = 0; k < 3; k++)
        ch_per_worker_unref(pass[k]);
    end(&a);
}

/* RD-4: workers shuffle the same data in different orders, and each reads every element once */
static void workers_shuffle_in_orders_of_their_own(void **state)
{
    enum { SIZE = 10 };
    act     a;
    int64_t order[3][MOST];
    int     n[3] = {0};

    (void)state;
    begin(&a,
          ch_dataset_repeat(ch_dataset_shuffle(ch_dataset_range(0, SIZE, 1), SIZE, NULL), -1),
          false);
    read_on(&a, 60);
    for (int i = 0; i < 60; i++) {
        int     worker = -1;
        int64_t x = element(&a, i, &worker);

        order[worker][n[worker]++] = x;
    }
    for (int w = 0; w < 3; w++) {
        bool seen[SIZE] = {false};

        assert_true(n[w] >= SIZE);
        for (int i = 0; i < SIZE; i++) {
            assert_false(seen[order[w][i]]);
            seen[order[w][i]] = true;
        }
        for (int v = 0; v < w; v++)
            assert_memory_not_equal(order[v], order[w], SIZE * sizeof(int64_t));
    }
    end(&a);
}

static ch_dataset *sharded(const ch_input_context *c, void *arg)
{
    *(int *)arg += 1;
    return ch_dataset_repeat(
        ch_dataset_shard(ch_dataset_range(0, 10, 1), c->n_workers, c->worker), -1);
}

/* RR-10, RD-1: the function is called for each worker; five workers read range(10) by their number, sums
 * 5, 7, 9, 11, 13. */
static void per_worker_dataset_function_is_called_for_each_worker(void **state)
{
    act a;
    int n_calls = 0, n[5] = {0};

    (void)state;
    begin_in(&a, 5, 10);
    ask_who(&a);
    t_ok(ch_coordinator_create_per_worker_dataset_from_function(a.s.co, sharded, &n_calls,
                                                                &a.data));
    assert_int_equal(n_calls, 5);
    t_ok(ch_per_worker_iterate(a.data, &a.it));
    read_on(&a, 60);
    for (int i = 0; i < 60; i++) {
        int     worker = -1;
        int64_t x = element(&a, i, &worker);

        assert_int_equal(x, worker + 5 * (n[worker]++ % 2));
    }
    for (int i = 0; i < 5; i++)
        assert_true(n[i] >= 2);
    end(&a);
}

static ch_dataset *names(const ch_input_context *c, void *arg)
{
    const ch_str text[] = {{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}};
    ch_tensor   *t = NULL;
    ch_dataset  *d;

    (void)c;
    (void)arg;
    t_ok(ch_tensor_copy_of(CH_STR, ch_shape_of(4), text, &t));
    d = ch_dataset_slices(1, &t, NULL);
    ch_tensor_unref(t);
    return ch_dataset_batch(ch_dataset_repeat(ch_dataset_shuffle(d, 4, NULL), -1), 2, NULL);
}

/* B24: shuffle, repeat, batch, on every worker: two batches hold each name once. */
static void per_worker_dataset_function_may_shuffle_repeat_and_batch(void **state)
{
    act  a;
    char seen[3][MOST * 2] = {{0}};
    int  n[3] = {0};

    (void)state;
    begin_in(&a, 3, 10);
    ask_who(&a);
    t_ok(ch_coordinator_create_per_worker_dataset_from_function(a.s.co, names, NULL, &a.data));
    t_ok(ch_per_worker_iterate(a.data, &a.it));
    read_on(&a, 60);
    for (int i = 0; i < 60; i++) {
        ch_tuple *out = NULL;
        int       worker;

        t_ok(ch_remote_fetch(a.r[i], &out));
        worker = (int)integer(out, 1);
        for (int64_t k = 0; k < 2; k++) {
            ch_str text;

            t_ok(ch_tensor_str(ch_value_at(ch_tuple_at(out, 0), 0), &k, &text));
            seen[worker][n[worker]++] = *text.data;
        }
        ch_tuple_unref(out);
    }
    for (int w = 0; w < 3; w++) {
        assert_true(n[w] > 0);
        for (int i = 0; i + 4 <= n[w]; i += 4)
            for (int name = 'a'; name <= 'd'; name++)
                assert_non_null(memchr(&seen[w][i], name, 4));
    }
    end(&a);
}

static ch_dataset *the_same(const ch_input_context *c, void *arg)
{
    (void)c;
    (void)arg;
    return ch_dataset_range(0, 1000, 1);
}

/* Returns the description of a worker's data in the most recent pass. */
static ch_tensor *description(act *a, int worker)
{
    ch_task         *coord = ch__ps_of(a->s.st)->coord;
    ch_coord_context t = ch__coord_enter(coord);
    ch_tensor       *is = t.c->inputs->stream[worker].dataset;

    ch__task_leave(coord);
    return is;
}

/* Data in memory is a part of the description, so equal descriptions must be shared. */
static void per_worker_dataset_of_equal_data_is_in_memory_once(void **state)
{
    act            a;
    ch_tensor     *first;
    ch_per_worker *pass = NULL;

    (void)state;
    begin(&a, ch_dataset_range(0, 1000, 1), false);
    first = description(&a, 0);
    for (int i = 1; i < 3; i++)
        assert_ptr_equal(description(&a, i), first);
    t_ok(ch_per_worker_iterate(a.data, &pass));
    assert_ptr_equal(description(&a, 1), first);
    ch_per_worker_unref(pass);
    ch_per_worker_unref(a.it);
    ch_per_worker_unref(a.data);
    t_ok(ch_coordinator_create_per_worker_dataset_from_function(a.s.co, the_same, NULL,
                                                                &a.data));
    t_ok(ch_per_worker_iterate(a.data, &a.it));
    assert_ptr_equal(description(&a, 0), description(&a, 2));
    end(&a);
}

/* RR-9, CX-9: a worker with two replicas divides its batches among them. */
static void a_worker_s_batches_are_cut_for_its_replicas(void **state)
{
    act       a;
    ch_tuple *out = NULL;

    (void)state;
    memset(&a, 0, sizeof(a));
    t_open(&a.s, &(ch_local_cluster_options){.workers = 2, .devices = 2}, 1, NULL);
    a.report = t_function(report_step, NULL);
    read_each(&a, ch_dataset_batch(ch_dataset_range(1, 11, 1), 5, NULL), false);
    read_on(&a, 1);
    t_ok(ch_remote_fetch(a.r[0], &out));
    assert_int_equal(ch_value_count(ch_tuple_at(out, 0)), 2);
    assert_int_equal(ch_tensor_count(ch_value_at(ch_tuple_at(out, 0), 0)), 3);
    assert_int_equal(ch_tensor_count(ch_value_at(ch_tuple_at(out, 0), 1)), 2);
    ch_tuple_unref(out);
    end(&a);
}

static ch_dataset *batches_of_context(const ch_input_context *c, void *arg)
{
    int64_t size = 0;

    *(ch_input_context *)arg = *c;
    t_ok(ch_input_context_batch_size(c, 4, &size));
    return ch_dataset_batch(ch_dataset_range(100 * c->worker, 100 * c->worker + 10, 1), size,
                            NULL);
}

/* RR-8, PS-10: the context has a single pipeline and the replicas of a single worker. The batch
 * size is that of a worker, and the dataset of the function is neither batched again nor
 * sharded. */
static void per_worker_dataset_function_context_describes_one_worker(void **state)
{
    act              a;
    ch_input_context seen = {0};
    ch_tuple        *out = NULL;

    (void)state;
    for (int devices = 1; devices <= 2; devices++) {
        memset(&a, 0, sizeof(a));
        t_open(&a.s, &(ch_local_cluster_options){.workers = 3, .devices = devices}, 1, NULL);
        a.report = t_function(report_step, NULL);
        t_ok(ch_coordinator_create_per_worker_dataset_from_function(a.s.co, batches_of_context,
                                                                    &seen, &a.data));
        assert_int_equal(seen.n_pipelines, 1);
        assert_int_equal(seen.pipeline, 0);
        assert_int_equal(seen.n_replicas, devices);
        assert_int_equal(seen.worker, 2);
        assert_int_equal(seen.n_workers, 3);
        t_ok(ch_per_worker_iterate(a.data, &a.it));
        read_on(&a, 1);
        t_ok(ch_remote_fetch(a.r[0], &out));
        for (int k = 0; k < devices; k++) {
            const ch_tensor *t = ch_value_at(ch_tuple_at(out, 0), k);

            assert_int_equal(ch_tensor_count(t), 4 / devices);
            assert_int_equal(*(const int64_t *)ch_tensor_data(t) % 100, k * 4 / devices);
        }
        ch_tuple_unref(out);
        end(&a);
    }
}

/* ---- several replicas ---- */

static ch_value *pair(float first, float second)
{
    ch_tensor *t[] = {t_f32(ch_shape_scalar(), &first), t_f32(ch_shape_scalar(), &second)};
    ch_value  *v = NULL;

    t_ok(ch_value_new(CH_PER_REPLICA, 2, t, &v));
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    return v;
}

static ch_value *one(float x)
{
    ch_tensor *t = t_f32(ch_shape_scalar(), &x);
    ch_value  *v = NULL;

    t_ok(ch_value_new(CH_PLAIN, 1, &t, &v));
    ch_tensor_unref(t);
    return v;
}

/* Takes over the references to the values. */
static ch_tuple *leaves(int n, ch_value **v)
{
    ch_tuple *t = NULL;

    t_ok(ch_tuple_new(n, v, NULL, &t));
    for (int i = 0; i < n; i++)
        ch_value_unref(v[i]);
    return t;
}

/* Returns a per-replica value, and a value that both replicas share. */
static ch_status own_and_shared(const ch_value_context *c, void *arg, ch_tuple **out)
{
    (void)arg;
    *out = leaves(2, (ch_value *[]){pair(100, 200), one((float)(1000 + 1000 * c->replica))});
    return CH_OK;
}

static ch_status shared(const ch_value_context *c, void *arg, ch_tuple **out)
{
    (void)c;
    (void)arg;
    *out = leaves(1, (ch_value *[]){one(7)});
    return CH_OK;
}

static ch_status too_many(const ch_value_context *c, void *arg, ch_tuple **out)
{
    ch_tensor *t[3];
    ch_value  *v = NULL;

    (void)c;
    (void)arg;
    for (int i = 0; i < 3; i++)
        t[i] = t_f32(ch_shape_scalar(), NULL);
    t_ok(ch_value_new(CH_PER_REPLICA, 3, t, &v));
    for (int i = 0; i < 3; i++)
        ch_tensor_unref(t[i]);
    *out = leaves(1, &v);
    return CH_OK;
}

static void all_step(ch_step *s, void *arg)
{
    (void)arg;
    for (int i = 0; i < ch_step_in_count(s); i++)
        ch_step_out(s, NULL, ch_step_in(s, i));
}

static ch_tuple *run_all(act *a, ch_tuple *in, int n_each, ch_per_worker **each)
{
    ch_function *f = t_function(all_step, NULL);
    ch_remote   *r = NULL;
    ch_tuple    *out = NULL;

    t_ok(ch_coordinator_schedule(
        a->s.co, f, &(ch_arguments){.in = in, .n_each = n_each, .each = each}, &r));
    t_ok(ch_remote_fetch(r, &out));
    ch_remote_unref(r);
    ch_function_unref(f);
    return out;
}

static void begin_in_pairs(act *a)
{
    memset(a, 0, sizeof(*a));
    t_open(&a->s, &(ch_local_cluster_options){.workers = 1, .devices = 2}, 1, NULL);
}

/* A per-worker value may be a per-replica value. */
static void a_worker_s_values_reach_each_of_its_replicas(void **state)
{
    act            a;
    ch_per_worker *bad = NULL;
    ch_tuple      *out;

    (void)state;
    begin_in_pairs(&a);
    t_ok(ch_coordinator_create_per_worker_values(a.s.co, own_and_shared, NULL, &a.who));
    out = run_all(&a, NULL, 1, &a.who);
    assert_true(t_floats(out, 0, 0)[0] == 100 && t_floats(out, 0, 1)[0] == 200);
    assert_true(t_floats(out, 1, 0)[0] == 1000 && t_floats(out, 1, 1)[0] == 1000);
    ch_tuple_unref(out);
    t_refused(ch_coordinator_create_per_worker_values(a.s.co, too_many, NULL, &bad),
              CH_INVALID_ARGUMENT, "value 0 has 3 components", "2 replicas");
    end(&a);
}

/* Per-replica inputs may be combined with elements and per-worker values, in any order. */
static void step_takes_replica_inputs_beside_per_worker_data_and_values(void **state)
{
    act            a;
    ch_per_worker *plain = NULL, *pass[2] = {NULL}, *each[4];
    ch_tuple      *in = leaves(2, (ch_value *[]){pair(1, 2), one(3)}), *out;

    (void)state;
    begin_in_pairs(&a);
    t_ok(ch_coordinator_create_per_worker_values(a.s.co, own_and_shared, NULL, &a.who));
    t_ok(ch_coordinator_create_per_worker_values(a.s.co, shared, NULL, &plain));
    read_each(&a, ch_dataset_batch(ch_dataset_range(10, 20, 1), 4, NULL), false);
    t_ok(ch_per_worker_iterate(a.data, &pass[0]));
    t_ok(ch_per_worker_iterate(a.data, &pass[1]));

    memcpy(each, (ch_per_worker *[]){pass[0], a.who, pass[1], plain}, sizeof(each));
    out = run_all(&a, in, 4, each);
    for (int k = 0; k < 2; k++) {
        const int64_t *x = ch_tensor_data(ch_value_at(ch_tuple_at(out, 2), k));
        const int64_t *y = ch_tensor_data(ch_value_at(ch_tuple_at(out, 5), k));

        assert_true(t_floats(out, 0, k)[0] == (float)(1 + k));
        assert_true(t_floats(out, 1, k)[0] == 3);
        assert_true(x[0] == 10 + 2 * k && x[1] == 11 + 2 * k);
        assert_true(t_floats(out, 3, k)[0] == (float)(100 + 100 * k));
        assert_true(t_floats(out, 4, k)[0] == 1000);
        assert_true(y[0] == 10 + 2 * k && y[1] == 11 + 2 * k);
        assert_true(t_floats(out, 6, k)[0] == 7);
    }
    ch_tuple_unref(out);

    out = run_all(&a, in, 1, &plain); /* shared values beside per-replica inputs */
    assert_true(t_floats(out, 0, 1)[0] == 2 && t_floats(out, 2, 1)[0] == 7);
    ch_tuple_unref(out);
    ch_tuple_unref(in);
    ch_per_worker_unref(pass[0]);
    ch_per_worker_unref(pass[1]);
    ch_per_worker_unref(plain);
    end(&a);
}

/* ---- shared datasets ---- */

/* Each element of a pass is read by a single step, on any worker. */
static void a_shared_dataset_is_read_once(void **state)
{
    act  a;
    bool seen[60] = {false};

    (void)state;
    begin(&a, ch_dataset_range(0, 60, 1), true);
    read_on(&a, 60);
    for (int i = 0; i < 60; i++) {
        int64_t x = element(&a, i, NULL);

        assert_in_range(x, 0, 59);
        assert_false(seen[x]);
        seen[x] = true;
    }
    read_on(&a, 1);
    assert_int_equal(ch_coordinator_join(a.s.co), CH_OUT_OF_RANGE);
    end(&a);
}

/* A worker first reads its own part: every third element, beginning with its number. */
static void a_worker_reads_its_own_part_first(void **state)
{
    act a;
    int next[3] = {0, 1, 2};

    (void)state;
    begin(&a, ch_dataset_range(0, 300, 1), true);
    read_on(&a, 60);
    for (int i = 0; i < 60; i++) {
        int     worker = -1;
        int64_t x = element(&a, i, &worker);

        assert_int_equal(x, next[worker]);
        next[worker] += 3;
    }
    end(&a);
}

/* ---- workers that are lost ---- */

static void same_number(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_step_in(s, 0));
}

/* RD-8, WR-10: the position is kept when the worker is lost, also if it comes back and is lost
 * again. */
static void a_position_survives_its_worker(void **state)
{
    act a;

    (void)state;
    begin_in(&a, 1, 10);
    read_each(&a, ch_dataset_range(0, 1000, 1), false);
    t_kill_in(&a.s, 55, "worker", 0);
    t_restart_in(&a.s, 75, "worker", 0);
    t_kill_in(&a.s, 95, "worker", 0);
    t_restart_in(&a.s, 150, "worker", 0);
    read_on(&a, 60);
    for (int i = 0; i < 60; i++)
        assert_int_equal(element(&a, i, NULL), i);
    assert_int_equal(t_stats(&a.s).workers_lost, 2);
    end(&a);
}

/* RD-8: late in the data, where the next incarnation begins at a saved position and not at the
 * first element */
static void a_position_survives_its_worker_far_into_the_data(void **state)
{
    enum { ROUNDS = 6, EACH = 50 };
    act     a;
    int64_t next = 0;

    (void)state;
    begin_in(&a, 1, 1);
    read_each(&a, ch_dataset_map(ch_dataset_range(0, 1000, 1), same_number, NULL, NULL), false);
    for (int k = 0; k < ROUNDS; k++) {
        t_kill_in(&a.s, 5, "worker", 0);
        t_restart_in(&a.s, 50, "worker", 0);
        read_on(&a, EACH);
        for (int i = 0; i < EACH; i++) {
            assert_int_equal(element(&a, i, NULL), next++);
            ch_remote_unref(a.r[i]);
        }
        a.n_read = 0;
    }
    assert_int_equal(t_stats(&a.s).workers_lost, ROUNDS);
    end(&a);
}

/* A worker that continues the stream at a saved position must be able to read the element of a step that was cancelled before
 * that position. */
static void stream_position_does_not_pass_the_element_of_a_cancelled_step(void **state)
{
    enum { INTERVAL = 64, FIRST = INTERVAL - 14, CANCELLED = INTERVAL - 1 - FIRST };
    act             a;
    ch_tuple       *out = NULL;
    const ch_coord *c;

    (void)state;
    begin_in(&a, 1, 10);
    c = ch__task_self(ch__local_cluster_coordinator(a.s.cluster));
    read_each(&a, ch_dataset_map(ch_dataset_range(0, 1000, 1), same_number, NULL, NULL), false);
    read_on(&a, FIRST);
    t_ok(ch_coordinator_join(a.s.co));
    for (int i = 0; i < FIRST; i++)
        ch_remote_unref(a.r[i]);
    a.n_read = 0;
    read_on(&a, INTERVAL + 1 - FIRST);
    while (c->queue.n > 0) /* until the worker has the last two steps, or more */
        ch__sim_run_until(a.s.net, ch__sim_now(a.s.net) + ms / 100);
    t_ok(ch_remote_cancel(a.r[CANCELLED]));
    t_ok(ch_coordinator_join(a.s.co));
    assert_int_equal(ch_remote_fetch(a.r[CANCELLED], &out), CH_CANCELLED);
    assert_int_equal(element(&a, CANCELLED + 1, NULL), INTERVAL);
    assert_int_equal(c->inputs->stream[0].position_at, 0);
    t_ok(ch_local_cluster_kill(a.s.cluster, "worker", 0));
    t_restart_in(&a.s, 500, "worker", 0);
    read_on(&a, 2);
    assert_int_equal(element(&a, a.n_read - 2, NULL), INTERVAL - 1);
    assert_int_equal(element(&a, a.n_read - 1, NULL), INTERVAL + 1);
    assert_int_equal(c->inputs->stream[0].position_at, INTERVAL);
    end(&a);
}

/* The coordinator may run out of memory at any point of scheduling and sending. The step is then rejected, or sent later. */
static void steps_read_each_element_once_when_scheduling_runs_out_of_memory(void **state)
{
    enum { LIMIT = 60 };
    act  a;
    bool seen[LIMIT] = {false};
    int  n = 0, n_rejected = 0;

    (void)state;
    begin_in(&a, 1, 1);
    read_each(&a, ch_dataset_range(0, LIMIT, 1), true);
    read_on(&a, 1); /* sends the step function and the stream */
    for (n = 1; n < LIMIT; n++) {
        ch_arguments args = {.n_each = 1, .each = &a.it};
        ch_status    rc;

        t_ok(ch_coordinator_join(a.s.co));
        ch__mem_fail_at(n);
        rc = ch_coordinator_schedule(a.s.co, a.report, &args, &a.r[a.n_read]);
        ch__mem_fail_at(0);
        assert_true(rc == CH_OK || rc == CH_RESOURCE_EXHAUSTED);
        n_rejected += rc != CH_OK;
        a.n_read += rc == CH_OK;
    }
    assert_true(n_rejected > 0);
    read_on(&a, LIMIT - a.n_read);
    for (int i = 0; i < LIMIT; i++) {
        int64_t x = element(&a, i, NULL);

        assert_in_range(x, 0, LIMIT - 1);
        assert_false(seen[x]);
        seen[x] = true;
    }
    end(&a);
}

static void a_shared_dataset_is_read_once_though_workers_are_lost(void **state)
{
    act  a;
    bool seen[60] = {false};

    (void)state;
    begin(&a, ch_dataset_range(0, 60, 1), true);
    t_kill_in(&a.s, 35, "worker", 0);
    t_kill_in(&a.s, 45, "worker", 1);
    t_restart_in(&a.s, 90, "worker", 0);
    read_on(&a, 60);
    for (int i = 0; i < 60; i++) {
        int64_t x = element(&a, i, NULL);

        assert_in_range(x, 0, 59);
        assert_false(seen[x]);
        seen[x] = true;
    }
    end(&a);
}

/* The part of a lost worker is read by a worker that has finished its own part, before parts
 * that other workers still read. */
static void part_of_a_lost_worker_is_read_before_parts_of_live_workers(void **state)
{
    act a;
    int n_of_lost[2] = {0};

    (void)state;
    begin(&a, ch_dataset_range(0, 60, 1), true);
    t_ok(ch_local_cluster_kill(a.s.cluster, "worker", 2));
    t_pass(&a.s, 200);
    read_on(&a, 60);
    for (int i = 0; i < 60; i++) {
        int     worker = -1;
        int64_t x = element(&a, i, &worker);

        assert_in_range(worker, 0, 1);
        assert_true(x % 3 == worker || x % 3 == 2);
        n_of_lost[worker] += x % 3 == 2;
    }
    assert_int_equal(n_of_lost[0] + n_of_lost[1], 20);
    end(&a);
}

static void twice(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_mul(ch_step_in(s, 0), ch_number(s, 2)));
}

/* Reads the rows 0 to n - 1, doubled, each once, in n_batches batches of up to 4 rows. Takes
 * over the reference `d`. */
static void read_batches_once(ch_dataset *d, int n_batches, int n)
{
    act  a;
    bool seen[2 * MOST] = {false};
    int  rows = 0;

    begin(&a, ch_dataset_batch(ch_dataset_map(d, twice, NULL, NULL), 4, NULL), true);
    t_kill_in(&a.s, 15, "worker", 0);
    t_kill_in(&a.s, 35, "worker", 1);
    t_restart_in(&a.s, 90, "worker", 0);
    read_on(&a, n_batches);
    for (int i = 0; i < n_batches; i++) {
        ch_tuple        *out = NULL;
        const ch_tensor *t;

        t_ok(ch_remote_fetch(a.r[i], &out));
        t = ch_value_at(ch_tuple_at(out, 0), 0);
        for (int64_t k = 0; k < ch_tensor_count(t); k++, rows++) {
            int64_t x = ((const int64_t *)ch_tensor_data(t))[k];

            assert_true(x % 2 == 0 && x >= 0 && x / 2 < n);
            assert_false(seen[x / 2]);
            seen[x / 2] = true;
        }
        ch_tuple_unref(out);
    }
    assert_int_equal(rows, n);
    assert_true(t_stats(&a.s).workers_lost >= 1);
    read_on(&a, 1);
    assert_int_equal(ch_coordinator_join(a.s.co), CH_OUT_OF_RANGE);
    end(&a);
}

/* The data is divided before the map and the batch: at the source, or by its files. */
static void a_shared_pipeline_is_read_once_though_workers_are_lost(void **state)
{
    ch_dataset *files;

    assert_int_equal(t_folder_make(state), 0);
    for (int f = 0; f < 7; f++) {
        char  name[32];
        FILE *file;

        snprintf(name, sizeof(name), "n-%d", f);
        file = fopen(t_path(name), "w");
        assert_non_null(file);
        fprintf(file, "n\n");
        for (int i = 0; i < 9; i++)
            fprintf(file, "%d\n", 9 * f + i);
        fclose(file);
    }
    files = ch_dataset_csv(ch_dataset_files(t_path("n-*"), NULL), 1,
                           &(ch_csv_column){.name = "n", .dtype = CH_I64}, NULL);
    read_batches_once(ch_dataset_range(0, 83, 1), 21, 83);
    read_batches_once(files, 7 + 5 + 5, 63); /* parts of 27, 18 and 18 rows */
    assert_int_equal(t_folder_remove(state), 0);
}

/* RD-9: a dataset that is created while a worker is lost reaches the worker when it returns. */
static void per_worker_dataset_reaches_a_worker_that_was_lost_at_creation(void **state)
{
    act a;

    (void)state;
    begin_in(&a, 2, 10);
    t_ok(ch_local_cluster_kill(a.s.cluster, "worker", 0));
    t_pass(&a.s, 500);
    assert_int_equal(t_stats(&a.s).ready, 1);
    read_each(&a, ch_dataset_range(0, 1000, 1), false);
    t_ok(ch_local_cluster_kill(a.s.cluster, "worker", 1));
    t_ok(ch_local_cluster_restart(a.s.cluster, "worker", 0));
    read_on(&a, 5);
    for (int i = 0; i < 5; i++)
        assert_int_equal(element(&a, i, NULL), i);
    end(&a);
}

/* RD-6, RD-7: a pass that is released while steps read it stays alive until they end; its data is sent
 * before the step that reads it. */
static void a_pass_lives_as_long_as_steps_read_it(void **state)
{
    act     a;
    bool    done = false;
    int64_t next[3] = {0};

    (void)state;
    begin(&a, ch_dataset_range(0, 1000, 1), false);
    t_ok(ch_coordinator_done(a.s.co, &done)); /* creating the pass is not a step */
    assert_true(done);
    assert_int_equal(t_stats(&a.s).queued + t_stats(&a.s).running, 0);
    read_on(&a, 20);
    ch_per_worker_unref(a.it);
    ch_per_worker_unref(a.data);
    a.it = a.data = NULL;
    for (int i = 0; i < 20; i++) {
        int     worker = -1;
        int64_t x = element(&a, i, &worker);

        assert_int_equal(x, next[worker]++);
    }
    t_ok(ch_coordinator_join(a.s.co));
    end(&a);
}

static void sum_step(ch_step *s, void *arg)
{
    ch_node *sum = ch_cast(ch_step_in(s, 0), CH_F32);

    (void)arg;
    for (int i = 1; i < ch_step_in_count(s); i++)
        sum = ch_add(sum, ch_cast(ch_step_in(s, i), CH_F32));
    ch_step_out(s, "sum", sum);
}

/* SC-2: any number of arguments, of all kinds. */
static void a_step_takes_many_arguments(void **state)
{
    enum { EACH = 20, OWN = 40 };
    act            a;
    ch_function   *f = t_function(sum_step, NULL);
    ch_per_worker *each[EACH];
    ch_tensor     *own[OWN];
    ch_remote     *r = NULL;
    ch_tuple      *in, *out = NULL;

    (void)state;
    begin(&a, ch_dataset_range(7, 10, 1), false);
    each[0] = a.it;
    for (int i = 0; i < OWN; i++)
        own[i] = t_f32(ch_shape_scalar(), (float[]){(float)i});
    in = t_tuple(OWN, own);
    each[EACH - 1] = a.who;
    for (int i = 1; i < EACH - 1; i++)
        t_ok(ch_per_worker_iterate(a.data, &each[i]));
    t_ok(ch_coordinator_schedule(a.s.co, f,
                                 &(ch_arguments){.in = in, .n_each = EACH, .each = each}, &r));
    t_ok(ch_remote_fetch(r, &out));
    assert_in_range((int)t_floats(out, 0, 0)[0], 780 + 19 * 7,
                    780 + 19 * 7 + 2); /* and the number of the worker */
    for (int i = 1; i < EACH - 1; i++)
        ch_per_worker_unref(each[i]);
    ch_tuple_unref(out);
    ch_tuple_unref(in);
    ch_remote_unref(r);
    ch_function_unref(f);
    end(&a);
}

/* ---- arguments that are rejected ---- */

static ch_status nothing(const ch_value_context *c, void *arg, ch_tuple **out)
{
    (void)c;
    (void)arg;
    (void)out;
    return CH_OK;
}

static ch_status same(void *arg, ch_tuple *in, ch_tuple **out)
{
    (void)arg;
    *out = ch_tuple_ref(in);
    return CH_OK;
}

/* SC-4, RV-5, RD-5: a dataset is not an argument, but a pass over it is; per-worker values are
 * accepted as they are; C functions cannot be sent. */
static void schedule_rejects_datasets_and_foreign_passes_as_arguments(void **state)
{
    act            a, other;
    ch_per_worker *bad = NULL;
    ch_dataset    *d;

    (void)state;
    begin(&a, ch_dataset_range(0, 10, 1), false);
    begin(&other, ch_dataset_range(0, 10, 1), false);
    t_refused(ch_coordinator_schedule(a.s.co, a.report,
                                      &(ch_arguments){.n_each = 1, .each = &a.data}, NULL),
              CH_INVALID_ARGUMENT, "each[0]", "ch_per_worker_iterate");
    t_refused(ch_coordinator_schedule(a.s.co, a.report,
                                      &(ch_arguments){.n_each = 1, .each = &bad}, NULL),
              CH_INVALID_ARGUMENT, "each[0]", "NULL");
    t_refused(ch_coordinator_schedule(a.s.co, a.report,
                                      &(ch_arguments){.n_each = 1, .each = &other.it}, NULL),
              CH_INVALID_ARGUMENT, "each[0]", "another coordinator");
    assert_int_equal(ch_per_worker_iterate(a.who, &bad), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_coordinator_create_per_worker_values(a.s.co, nothing, NULL, &bad),
                     CH_INVALID_ARGUMENT);
    d = ch_dataset_map_call(ch_dataset_range(0, 10, 1), same, NULL, 1,
                            &(ch_tensor_spec){.dtype = CH_I64, .shape = ch_shape_scalar()},
                            NULL);
    t_refused(ch_coordinator_create_per_worker_dataset(a.s.co, d, &bad), CH_UNIMPLEMENTED,
              "create_per_worker_dataset", "map");
    ch_dataset_unref(d);
    end(&other);
    end(&a);
}

/* How the data of worker 2 differs from that of worker 0. */
typedef enum difference { NOTHING, DTYPE, SIZE, RANK, COUNT, UNKNOWN_ROWS, NAME } difference;

static ch_dataset *other_dataset(const ch_input_context *c, void *arg)
{
    const difference is = c->worker == 2 ? *(difference *)arg : NOTHING;
    ch_tensor       *t[2] = {NULL};
    const char      *name[] = {is == NAME ? "y" : "x", "z"};
    ch_dataset      *d;

    t_ok(ch_tensor_new(is == DTYPE ? CH_F32 : CH_I64,
                       is == RANK ? ch_shape_of(8) : ch_shape_of(8, is == SIZE ? 3 : 2),
                       &t[0]));
    t_ok(ch_tensor_new(CH_F32, ch_shape_of(8), &t[1]));
    d = ch_dataset_slices(is == COUNT ? 2 : 1, t, name);
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    return ch_dataset_batch(d, 4, &(ch_batch_options){.drop_remainder = is != UNKNOWN_ROWS});
}

static ch_status other_values(const ch_value_context *c, void *arg, ch_tuple **out)
{
    const difference is = c->replica == 2 ? *(difference *)arg : NOTHING;
    ch_tensor       *t = NULL;

    t_ok(ch_tensor_new(is == DTYPE ? CH_F32 : CH_I64, ch_shape_of(is == SIZE ? 3 : 2), &t));
    *out = t_tuple(1, &t);
    return CH_OK;
}

/* A step is recorded once, so the data of all workers must have the same specs, except unknown
 * sizes. */
static void per_worker_data_of_unequal_specs_is_rejected(void **state)
{
    static const struct {
        difference  is;
        const char *word, *other;
    } row[] = {
        {DTYPE, "component 0 of worker 2 is x: f32(4, 2)", "of worker 0 is x: i64(4, 2)"},
        {SIZE, "component 0 of worker 2 is x: i64(4, 3)", "of worker 0 is x: i64(4, 2)"},
        {RANK, "component 0 of worker 2 is x: i64(4,)", "of worker 0 is x: i64(4, 2)"},
        {NAME, "component 0 of worker 2 is y: i64(4, 2)", "of worker 0 is x: i64(4, 2)"},
        {COUNT, "worker 2 have 2 components", "worker 0 1"}};
    act            a;
    difference     is = UNKNOWN_ROWS;
    ch_per_worker *bad = NULL;

    (void)state;
    begin_in(&a, 3, 1);
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        difference differs = row[i].is;

        t_refused(ch_coordinator_create_per_worker_dataset_from_function(a.s.co, other_dataset,
                                                                         &differs, &bad),
                  CH_INVALID_ARGUMENT, row[i].word, row[i].other);
    }
    t_ok(ch_coordinator_create_per_worker_dataset_from_function(a.s.co, other_dataset, &is,
                                                                &a.data));
    t_ok(ch_per_worker_iterate(a.data, &a.it));
    read_on(&a, 3);
    t_ok(ch_coordinator_join(a.s.co));
    is = DTYPE;
    t_refused(ch_coordinator_create_per_worker_values(a.s.co, other_values, &is, &bad),
              CH_INVALID_ARGUMENT, "value 0 of worker 2 is f32(2,)", "of worker 0 is i64(2,)");
    is = SIZE;
    t_refused(ch_coordinator_create_per_worker_values(a.s.co, other_values, &is, &bad),
              CH_INVALID_ARGUMENT, "value 0 of worker 2 is i64(3,)", "of worker 0 is i64(2,)");
    is = NOTHING;
    t_ok(ch_coordinator_create_per_worker_values(a.s.co, other_values, &is, &a.who));
    end(&a);
}

/* ---- the program of the seed page ---- */

typedef struct counting {
    ch_var *n, *iterations, *rows;
} counting;

static void count_rows_step(ch_step *s, void *arg)
{
    counting *c = arg;

    ch_var_assign_add(s, c->n, ch_number(s, 1));
    ch_var_assign_add(s, c->iterations, ch_number(s, 1));
    ch_var_assign_add(s, c->rows, ch_cast(ch_rows(ch_step_in(s, 0)), CH_F32));
}

/* Runs three epochs of four steps; if `is_killed`, a worker is killed in each epoch. */
static void run_the_program(bool is_killed)
{
    act          a;
    counting     c;
    ch_function *f;
    ch_dataset *d = ch_dataset_repeat(ch_dataset_batch(ch_dataset_range(0, 8, 1), 2, NULL), -1);
    ch_tensor  *zero = t_f32(ch_shape_scalar(), NULL);

    memset(&a, 0, sizeof(a));
    t_open(&a.s, &(ch_local_cluster_options){.ps = 2, .workers = 3}, 10, NULL);
    c = (counting){t_var_in(a.s.st, "n", 0), t_var_in(a.s.st, "iterations", 0),
                   t_var_in(a.s.st, "rows", 0)};
    f = t_function(count_rows_step, &c);
    t_ok(ch_coordinator_create_per_worker_dataset(a.s.co, d, &a.data));
    for (int epoch = 1; epoch <= 3; epoch++) {
        t_ok(ch_per_worker_iterate(a.data, &a.it));
        if (is_killed)
            t_kill_in(&a.s, 4, "worker", epoch - 1);
        if (is_killed)
            t_restart_in(&a.s, 50, "worker", epoch - 1);
        for (int i = 0; i < 4; i++)
            t_ok(ch_coordinator_schedule(a.s.co, f, &(ch_arguments){.n_each = 1, .each = &a.it},
                                         NULL));
        t_ok(ch_coordinator_join(a.s.co));
        assert_true(t_value_of(c.rows) == 8);
        t_ok(ch_var_set(c.rows, zero));
        assert_true(t_value_of(c.rows) == 0);
        assert_true(t_value_of(c.n) == 4 * epoch);
        assert_true(t_value_of(c.iterations) == 4 * epoch);
        ch_per_worker_unref(a.it);
        t_pass(&a.s, 300);
    }
    assert_true(is_killed == (t_stats(&a.s).workers_lost == 3));
    a.it = NULL;
    ch_tensor_unref(zero);
    ch_dataset_unref(d);
    ch_function_unref(f);
    ch_var_unref(c.n);
    ch_var_unref(c.iterations);
    ch_var_unref(c.rows);
    end(&a);
}

/* B25 */
static void per_worker_program_counts_steps_and_rows_of_three_epochs(void **state)
{
    (void)state;
    run_the_program(false);
}

/* B25: the numbers are the same when a worker is killed in the middle of an epoch. */
static void per_worker_program_counts_alike_when_a_worker_is_killed_in_each_epoch(void **state)
{
    (void)state;
    run_the_program(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(per_worker_dataset_gives_each_worker_the_whole_data),
        cmocka_unit_test(per_worker_pass_begins_at_the_first_element),
        cmocka_unit_test(workers_shuffle_in_orders_of_their_own),
        cmocka_unit_test(shuffle_orders_are_distinct_for_every_worker_pass_and_epoch),
        cmocka_unit_test(shuffle_orders_are_the_same_when_workers_are_lost),
        cmocka_unit_test(per_worker_dataset_function_is_called_for_each_worker),
        cmocka_unit_test(per_worker_dataset_function_may_shuffle_repeat_and_batch),
        cmocka_unit_test(per_worker_dataset_of_equal_data_is_in_memory_once),
        cmocka_unit_test(a_worker_s_batches_are_cut_for_its_replicas),
        cmocka_unit_test(per_worker_dataset_function_context_describes_one_worker),
        cmocka_unit_test(a_worker_s_values_reach_each_of_its_replicas),
        cmocka_unit_test(step_takes_replica_inputs_beside_per_worker_data_and_values),
        cmocka_unit_test(a_shared_dataset_is_read_once),
        cmocka_unit_test(a_worker_reads_its_own_part_first),
        cmocka_unit_test(part_of_a_lost_worker_is_read_before_parts_of_live_workers),
        cmocka_unit_test(a_position_survives_its_worker),
        cmocka_unit_test(a_position_survives_its_worker_far_into_the_data),
        cmocka_unit_test(stream_position_does_not_pass_the_element_of_a_cancelled_step),
        cmocka_unit_test(steps_read_each_element_once_when_scheduling_runs_out_of_memory),
        cmocka_unit_test(a_shared_dataset_is_read_once_though_workers_are_lost),
        cmocka_unit_test(a_shared_pipeline_is_read_once_though_workers_are_lost),
        cmocka_unit_test(per_worker_dataset_reaches_a_worker_that_was_lost_at_creation),
        cmocka_unit_test(a_pass_lives_as_long_as_steps_read_it),
        cmocka_unit_test(a_step_takes_many_arguments),
        cmocka_unit_test(schedule_rejects_datasets_and_foreign_passes_as_arguments),
        cmocka_unit_test(per_worker_data_of_unequal_specs_is_rejected),
        cmocka_unit_test(per_worker_program_counts_steps_and_rows_of_three_epochs),
        cmocka_unit_test(per_worker_program_counts_alike_when_a_worker_is_killed_in_each_epoch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

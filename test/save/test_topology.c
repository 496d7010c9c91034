/* test/save/test_topology.c -- saved in k shards or by k replicas, loaded by m.
 *
 * Values are compared bit by bit, for all k and m from 1 to 8, for both axes, and for dtypes
 * that TensorFlow cannot join. Trainings with slots, accumulators of rows and masters, and
 * positions of data in mid-epoch, are sampled up to 64 shards and 64 replicas.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../file/folder.h"
#include "../strategy/help.h"
#include "cohort/checkpoint.h"

enum { MOST = 8, LARGE = 64, ROWS = 13, COLUMNS = 9, DTYPES = 5 };

static const ch_write_options quick = {.wait = true, .sync = CH_OFF, .replace = true};

static const ch_dtype dtype_of[DTYPES] = {CH_F32, CH_F64, CH_BF16, CH_F16, CH_I64};

/* A job with a variable of each dtype, in shards on two servers. */
typedef struct job {
    ch_local_cluster *cluster;
    ch_strategy      *st;
    ch_var           *var[DTYPES];
    ch_checkpoint    *c;
} job;

static void begin(job *j, int shards, int axis, unsigned seed)
{
    ch_parameter_server_options opt = {.partitioner = ch_partitioner_fixed(shards)};
    char                        name[8];

    *j = (job){.cluster = NULL};
    opt.partitioner.axis = axis;
    t_ok(ch_cluster_local(&(ch_local_cluster_options){.ps = 2, .workers = 1}, &j->cluster));
    t_ok(ch_strategy_parameter_server(ch_local_cluster_resolver(j->cluster), &opt, &j->st));
    t_ok(ch_checkpoint_new(&j->c));
    for (int i = 0; i < DTYPES; i++) {
        ch_tensor *t = NULL;
        char      *bytes;

        t_ok(ch_tensor_new(dtype_of[i], ch_shape_of(ROWS, COLUMNS), &t));
        bytes = ch_tensor_data_mut(t);
        for (size_t k = 0; k < ch_tensor_bytes(t); k++)
            bytes[k] = (char)((k * 31 + (size_t)i) * seed >> 3); /* any bits, also NaNs */
        snprintf(name, sizeof(name), "v%d", i);
        j->var[i] = t_var(j->st, name, t);
        assert_int_equal(ch_var_shards(j->var[i]), shards);
        t_ok(ch_checkpoint_add_var(j->c, name, j->var[i]));
    }
}

static void end(job *j)
{
    ch_checkpoint_unref(j->c);
    for (int i = 0; i < DTYPES; i++)
        ch_var_unref(j->var[i]);
    ch_strategy_unref(j->st);
    ch_local_cluster_unref(j->cluster);
}

static void same_value(ch_var *v, const ch_tensor *want)
{
    ch_tensor *t = NULL;

    t_ok(ch_var_get(v, &t));
    assert_memory_equal(ch_tensor_data(t), ch_tensor_data(want), ch_tensor_bytes(want));
    ch_tensor_unref(t);
}

/* SS-6, SVM-1, SVM-2: any number of shards loads what any other has saved */
static void shards_of_any_number_load_under_any_other(void **state)
{
    for (int from = 2; from < 2 * MOST + 2; from++) {
        job        a;
        ch_tensor *want[DTYPES] = {NULL};

        begin(&a, from / 2, from % 2, 17);
        t_ok(ch_checkpoint_write(a.c, t_path("k"), &quick));
        for (int i = 0; i < DTYPES; i++)
            t_ok(ch_var_get(a.var[i], &want[i]));
        end(&a);
        for (int to = 2; to < 2 * MOST + 2; to++) {
            job b;

            begin(&b, to / 2, to % 2, 99);
            t_ok(ch_checkpoint_restore(b.c, t_path("k"), NULL, NULL));
            for (int i = 0; i < DTYPES; i++)
                same_value(b.var[i], want[i]);
            end(&b);
        }
        for (int i = 0; i < DTYPES; i++)
            ch_tensor_unref(want[i]);
    }
    (void)state;
}

/* ---- variables with a value for each replica ---- */

static ch_strategy *new_mirrored(int n)
{
    static char  name[LARGE][8];
    const char  *device[LARGE];
    ch_strategy *st = NULL;

    for (int i = 0; i < n; i++) {
        snprintf(name[i], sizeof(name[i]), "GPU:%d", i);
        device[i] = name[i];
    }
    t_ok(ch_strategy_mirrored(&(ch_mirrored_options){.n_devices = n, .device = device}, &st));
    return st;
}

static ch_var *new_on_read(ch_strategy *st, ch_dtype dtype, ch_aggregation how)
{
    ch_tensor *t = NULL;
    ch_var    *v = NULL;

    t_ok(ch_tensor_new(dtype, ch_shape_of(5), &t));
    t_ok(ch_var_new(
        st,
        &(ch_var_spec){.name = "v", .initial = t, .sync = CH_SYNC_ON_READ, .aggregation = how},
        &v));
    ch_tensor_unref(t);
    return v;
}

/* 3.7.3, 3.7.4, 3.7.5, 3.7.11, 3.7.12: the aggregate is saved; unlike TensorFlow, integers keep
 * their remainder */
static void aggregate_of_replicas_is_kept_by_any_number_of_replicas(void **state)
{
    static const ch_aggregation how[] = {CH_AGGREGATE_SUM, CH_AGGREGATE_MEAN,
                                         CH_AGGREGATE_FIRST};

    for (int x = 0; x < 6; x++)
        for (int k = 1; k <= MOST; k++)
            for (int m = 1; m <= MOST; m += 1 + (k % 2)) {
                ch_dtype       dtype = x < 3 ? CH_F32 : CH_I64;
                ch_strategy   *from = new_mirrored(k), *to = new_mirrored(m);
                ch_tensor     *value = NULL, *want = NULL;
                ch_checkpoint *c = NULL;
                ch_var        *v, *w;

                if (dtype == CH_I64 && how[x % 3] == CH_AGGREGATE_MEAN) {
                    ch_strategy_unref(from);
                    ch_strategy_unref(to);
                    continue; /* means are of floats */
                }
                v = new_on_read(from, dtype, how[x % 3]);
                w = new_on_read(to, dtype, how[x % 3]);
                t_ok(ch_tensor_new(dtype, ch_shape_of(5), &value));
                for (int i = 0; i < 5; i++)
                    t_ok(ch_tensor_set(value, (int64_t[]){i},
                                       dtype == CH_F32 ? i / 3.0 : 7 * i - 3));
                t_ok(ch_var_set(v, value));
                t_ok(ch_var_get(v, &want));
                t_ok(ch_checkpoint_new(&c));
                t_ok(ch_checkpoint_add_var(c, "v", v));
                t_ok(ch_checkpoint_write(c, t_path("r"), &quick));
                ch_checkpoint_unref(c);
                t_ok(ch_checkpoint_new(&c));
                t_ok(ch_checkpoint_add_var(c, "v", w));
                t_ok(ch_checkpoint_restore(c, t_path("r"), NULL, NULL));
                same_value(w, want);
                ch_checkpoint_unref(c);
                ch_tensor_unref(value);
                ch_tensor_unref(want);
                ch_var_unref(v);
                ch_var_unref(w);
                ch_strategy_unref(from);
                ch_strategy_unref(to);
            }
    (void)state;
}

/* Adds 3 plus the number of the replica to the zeros of each copy. */
static void add_id(ch_step *s, void *arg)
{
    ch_node *id = ch_cast(ch_step_replica_id(s), CH_F32);
    ch_node *zeros = ch_var_read(s, arg);

    ch_var_assign_add(s, arg, ch_add(zeros, ch_add(id, ch_number(s, 3))));
}

/* 3.7.3, 3.7.12: copies (3, 4) are saved as 7. Restored, each of n copies has 7 / n. */
static void restored_sum_is_divided_among_the_copies(void **state)
{
    static const int n[] = {2, 4, 1, 8};
    ch_strategy     *from = new_mirrored(2);
    ch_var          *v = new_on_read(from, CH_F32, CH_AGGREGATE_SUM);
    ch_function     *f = t_function(add_id, v);
    ch_checkpoint   *c = NULL;

    t_ok(ch_strategy_run(from, f, NULL, NULL));
    assert_true(t_copy_of(v, 0, 0) == 3 && t_copy_of(v, 1, 0) == 4);
    t_ok(ch_checkpoint_new(&c));
    t_ok(ch_checkpoint_add_var(c, "v", v));
    t_ok(ch_checkpoint_write(c, t_path("sum"), &quick));
    t_ok(ch_checkpoint_restore(c, t_path("sum"), NULL, NULL));
    assert_true(t_copy_of(v, 0, 0) == 3.5F && t_copy_of(v, 1, 0) == 3.5F);
    ch_checkpoint_unref(c);
    for (int i = 0; i < 4; i++) {
        ch_strategy *to = new_mirrored(n[i]);
        ch_var      *w = new_on_read(to, CH_F32, CH_AGGREGATE_SUM);
        ch_tensor   *sum = NULL;

        t_ok(ch_checkpoint_new(&c));
        t_ok(ch_checkpoint_add_var(c, "v", w));
        t_ok(ch_checkpoint_restore(c, t_path("sum"), NULL, NULL));
        for (int k = 0; k < n[i]; k++)
            assert_true(t_copy_of(w, k, 4) == 7.0F / (float)n[i]);
        t_ok(ch_var_get(w, &sum));
        assert_true(((const float *)ch_tensor_data(sum))[0] == 7);
        ch_tensor_unref(sum);
        ch_checkpoint_unref(c);
        ch_var_unref(w);
        ch_strategy_unref(to);
    }
    ch_function_unref(f);
    ch_var_unref(v);
    ch_strategy_unref(from);
    (void)state;
}

/* 3.7.5: copies that differ and have no aggregate cannot be saved */
static void copies_without_aggregate_are_not_saved(void **state)
{
    ch_strategy   *st = new_mirrored(2);
    ch_var        *v = new_on_read(st, CH_F32, CH_AGGREGATE_NONE);
    ch_checkpoint *c = NULL;

    t_ok(ch_checkpoint_new(&c));
    t_ok(ch_checkpoint_add_var(c, "v", v));
    t_refused(ch_checkpoint_write(c, t_path("n"), NULL), CH_INVALID_ARGUMENT, "variable v",
              "aggregation");
    ch_checkpoint_unref(c);
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- trainings ---- */

enum { TALL = 70, WIDE = 66, IDS = 6, MOST_VALUES = 16 };

/* A training with a table in f32, of which some rows are trained, and with two variables of 16
 * bits. Row-wise Adagrad has an accumulator for each row, and Adam has masters. */
typedef struct training {
    ch_local_cluster *cluster; /* NULL: replicas */
    ch_strategy      *st;
    ch_var           *table, *half[2];
    ch_optimizer     *adagrad, *adam;
    ch_function      *step;
    ch_checkpoint    *c;
} training;

static void train(ch_step *s, void *arg)
{
    training *t = arg;
    ch_node  *rows = ch_gather(ch_var_read(s, t->table), ch_step_in(s, 0), 0);
    ch_node  *a = ch_cast(ch_var_read(s, t->half[0]), CH_F32);
    ch_node  *b = ch_cast(ch_var_read(s, t->half[1]), CH_F32);

    ch_optimizer_minimize(t->adagrad, s, ch_mean_all(ch_square(rows)), 1, &t->table);
    ch_optimizer_minimize(t->adam, s, ch_mean_all(ch_square(ch_sub(a, b))), 2, t->half);
}

static ch_var *new_half(ch_strategy *st, ch_dtype dtype, unsigned seed)
{
    ch_tensor *from = t_noise(ch_shape_of(TALL, WIDE), seed), *t = NULL;

    t_ok(ch_tensor_new(dtype, ch_shape_of(TALL, WIDE), &t));
    for (int64_t i = 0; i < (int64_t)TALL * WIDE; i++)
        t_ok(ch_tensor_set(t, (int64_t[]){i / WIDE, i % WIDE},
                           ((const float *)ch_tensor_data(from))[i]));
    ch_tensor_unref(from);
    return t_var(st, dtype == CH_BF16 ? "bf16" : "f16", t);
}

/* Begins a training in n shards along an axis, or with n replicas if axis is -1. */
static void training_begin(training *t, int n, int axis, unsigned seed)
{
    *t = (training){.cluster = NULL};
    if (axis >= 0) {
        ch_parameter_server_options opt = {.partitioner = ch_partitioner_fixed(n)};

        opt.partitioner.axis = axis;
        t_ok(ch_cluster_local(&(ch_local_cluster_options){.ps = 3, .workers = 1}, &t->cluster));
        t_ok(ch_strategy_parameter_server(ch_local_cluster_resolver(t->cluster), &opt, &t->st));
    } else {
        t->st = new_mirrored(n);
    }
    t->table = t_var(t->st, "table", t_noise(ch_shape_of(TALL, WIDE), seed));
    t->half[0] = new_half(t->st, CH_BF16, seed + 1);
    t->half[1] = new_half(t->st, CH_F16, seed + 2);
    t_ok(ch_optimizer_adagrad(0.1, &(ch_optimizer_adagrad_options){.row_wise = true}, NULL,
                              &t->adagrad));
    t_ok(ch_optimizer_adam(0.01, NULL, NULL, &t->adam));
    t_ok(ch_optimizer_build(t->adagrad, 1, &t->table));
    t_ok(ch_optimizer_build(t->adam, 2, t->half));
    t->step = t_function(train, t);
    t_ok(ch_checkpoint_new(&t->c));
    t_ok(ch_checkpoint_add_var(t->c, "table", t->table));
    t_ok(ch_checkpoint_add_var(t->c, "bf16", t->half[0]));
    t_ok(ch_checkpoint_add_var(t->c, "f16", t->half[1]));
    t_ok(ch_checkpoint_add_optimizer(t->c, "adagrad", t->adagrad));
    t_ok(ch_checkpoint_add_optimizer(t->c, "adam", t->adam));
}

static void training_end(training *t)
{
    ch_checkpoint_unref(t->c);
    ch_function_unref(t->step);
    ch_optimizer_unref(t->adagrad);
    ch_optimizer_unref(t->adam);
    ch_var_unref(t->table);
    ch_var_unref(t->half[0]);
    ch_var_unref(t->half[1]);
    ch_strategy_unref(t->st);
    ch_local_cluster_unref(t->cluster);
}

static void training_step(training *t)
{
    static const int32_t ids[IDS] = {0, 3, 31, 32, 64, TALL - 1};
    ch_tensor           *in = NULL;
    ch_tuple            *batch;

    t_ok(ch_tensor_copy_of(CH_I32, ch_shape_of(IDS), ids, &in));
    batch = t_tuple(1, &in);
    t_ok(ch_strategy_run(t->st, t->step, batch, NULL));
    ch_tuple_unref(batch);
}

/* Lists the variables and their slots. Returns their number. */
static int training_vars(training *t, ch_var **out)
{
    static const char *const slot[] = {"m", "v", "master"};
    int                      n = 0;

    out[n++] = t->table;
    out[n++] = ch_optimizer_slot(t->adagrad, t->table, "accumulator");
    for (int i = 0; i < 2; i++) {
        out[n++] = t->half[i];
        for (int k = 0; k < 3; k++)
            out[n++] = ch_optimizer_slot(t->adam, t->half[i], slot[k]);
    }
    for (int i = 0; i < n; i++)
        assert_non_null(out[i]);
    return n;
}

/* Saves after a step with k shards or replicas, and loads with m. */
static void move_training(int k, int m, int axis_k, int axis_m)
{
    training     t;
    ch_var      *var[MOST_VALUES];
    ch_tensor   *want[MOST_VALUES] = {NULL};
    ch_restored *r = NULL;
    int          n;

    training_begin(&t, k, axis_k, 5);
    training_step(&t);
    n = training_vars(&t, var);
    for (int i = 0; i < n; i++)
        t_ok(ch_var_get(var[i], &want[i]));
    t_ok(ch_checkpoint_write(t.c, t_path("t"), &quick));
    training_end(&t);
    training_begin(&t, m, axis_m, 77);
    t_ok(ch_checkpoint_restore(t.c, t_path("t"), NULL, &r));
    t_ok(ch_restored_assert_consumed(r));
    ch_restored_unref(r);
    assert_int_equal(training_vars(&t, var), n);
    for (int i = 0; i < n; i++) {
        same_value(var[i], want[i]);
        ch_tensor_unref(want[i]);
    }
    training_step(&t);
    training_end(&t);
}

/* Gives number i of a fixed sequence of random numbers from 9 to 64. */
static int sample(int i)
{
    return 9 + (int)((unsigned)(i + 1) * 2654435761u >> 8) % (LARGE - 8);
}

/* 3.7.1, 3.7.2, SS-6, CK-14: with slots, accumulators of rows and masters */
static void training_of_many_shards_or_replicas_loads_under_any_other(void **state)
{
    for (int i = 0; i < 4; i++) {
        move_training(sample(2 * i), sample(2 * i + 1), i % 2, i / 2);    /* shards */
        move_training(sample(3 * i + 50), sample(2 * i + 60), i % 2, -1); /* shards, replicas */
    }
    move_training(LARGE, 9, -1, 0);
    move_training(sample(70), LARGE, -1, -1);
    (void)state;
}

/* ---- data ---- */

enum { EXAMPLES = 517, BATCH = 70 };

/* An iterator of n replicas over a shuffled pass, and the checkpoint of its position. */
typedef struct feed {
    ch_strategy   *st;
    ch_iterator   *it;
    ch_checkpoint *c;
} feed;

static void feed_begin(feed *f, int n_replicas)
{
    ch_dataset *d = ch_dataset_shuffle(ch_dataset_range(0, EXAMPLES, 1), 100, NULL);

    d = ch_dataset_with_options(ch_dataset_batch(d, BATCH, NULL),
                                &(ch_dataset_options){.threads = CH_OFF});
    f->st = new_mirrored(n_replicas);
    t_ok(ch_strategy_distribute_dataset(f->st, d, NULL, &f->it));
    ch_dataset_unref(d);
    f->c = NULL;
    t_ok(ch_checkpoint_new(&f->c));
    t_ok(ch_checkpoint_add_iterator(f->c, "data", f->it));
}

static void feed_end(feed *f)
{
    ch_checkpoint_unref(f->c);
    ch_iterator_unref(f->it);
    ch_strategy_unref(f->st);
}

/* Takes a batch for all replicas, and counts its examples. Returns false at the end. */
static bool feed_next(feed *f, int *n_used)
{
    ch_tuple *t = NULL;

    t_ok(ch_iterator_next(f->it, &t));
    if (t == NULL)
        return false;
    for (int r = 0; r < ch_value_count(ch_tuple_at(t, 0)); r++) {
        const ch_tensor *x = ch_value_at(ch_tuple_at(t, 0), r);

        for (int64_t i = 0; i < ch_tensor_count(x); i++)
            n_used[((const int64_t *)ch_tensor_data(x))[i]]++;
    }
    ch_tuple_unref(t);
    return true;
}

/* Reads some batches with k replicas and the rest with m. */
static void move_feed(int k, int m, int batches)
{
    int  n_used[EXAMPLES] = {0};
    feed f;

    feed_begin(&f, k);
    for (int i = 0; i < batches; i++)
        assert_true(feed_next(&f, n_used));
    t_ok(ch_checkpoint_write(f.c, t_path("d"), &quick));
    feed_end(&f);
    feed_begin(&f, m);
    t_ok(ch_checkpoint_restore(f.c, t_path("d"), NULL, NULL));
    while (feed_next(&f, n_used))
        continue;
    feed_end(&f);
    for (int i = 0; i < EXAMPLES; i++)
        if (n_used[i] != 1)
            fail_msg("example %d was used %d times (%d replicas, then %d)", i, n_used[i], k, m);
}

static void epoch_that_k_replicas_began_is_finished_by_m(void **state)
{
    for (int k = 1; k <= MOST; k++)
        for (int m = 1; m <= MOST; m++)
            move_feed(k, m, (k + m) % 8);
    for (int i = 0; i < 4; i++)
        move_feed(sample(i + 90), sample(i + 95), 1 + i);
    move_feed(LARGE, 9, 3);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_of_any_number_load_under_any_other),
        cmocka_unit_test(aggregate_of_replicas_is_kept_by_any_number_of_replicas),
        cmocka_unit_test(restored_sum_is_divided_among_the_copies),
        cmocka_unit_test(copies_without_aggregate_are_not_saved),
        cmocka_unit_test(training_of_many_shards_or_replicas_loads_under_any_other),
        cmocka_unit_test(epoch_that_k_replicas_began_is_finished_by_m),
    };

    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "GPU=64"}));
    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}

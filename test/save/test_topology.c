/* test/save/test_topology.c -- saved in k shards or by k replicas, loaded by m.
 *
 * Values are compared bit by bit, for all k and m from 1 to 8, for both axes, and for dtypes
 * that TensorFlow cannot join.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../file/folder.h"
#include "../strategy/help.h"
#include "cohort/checkpoint.h"

enum { MOST = 8, ROWS = 13, COLUMNS = 9, DTYPES = 5 };

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
        t_ok(ch_checkpoint_write(a.c, t_path("k"),
                                 &(ch_write_options){.wait = true, .replace = true}));
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

static const char *const device[MOST] = {"GPU:0", "GPU:1", "GPU:2", "GPU:3",
                                         "GPU:4", "GPU:5", "GPU:6", "GPU:7"};

static ch_strategy *new_mirrored(int n)
{
    ch_strategy *st = NULL;

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
                t_ok(ch_checkpoint_write(c, t_path("r"),
                                         &(ch_write_options){.wait = true, .replace = true}));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_of_any_number_load_under_any_other),
        cmocka_unit_test(aggregate_of_replicas_is_kept_by_any_number_of_replicas),
        cmocka_unit_test(copies_without_aggregate_are_not_saved),
    };

    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "GPU=8"}));
    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}

/* test/strategy/test_core_collectives.c -- collectives between replicas of several logical
 * devices (cores): cores of equal number exchange their parts.
 *
 * Each step has one collective, and its gradient, which is another one. The value and the result
 * are annotated in all ways: split along an axis, replicated, on one core, partial sums. The
 * results must equal those of replicas of one device, and the counted bytes must be the planned
 * ones. All numbers are whole, so sums are exact. Other tests have the all-reduce of gradients
 * (test_divided.c, spmd/test_divide.c).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/config.h"
#include "cores.h"

enum { IN = 6, OUT = 4, MOST_OUT = 6, MOST_NUMBERS = 1000 };

typedef enum collective {
    SUM,
    MEAN,
    SEVERAL, /* two sums and a mean of values that lie in different ways */
    GATHER_ROWS,
    GATHER_COLUMNS,
    BROADCAST,
    COLLECTIVES
} collective;

/* How a value lies: along an axis, or in one of these ways. */
enum { BY_ROWS, BY_COLUMNS, REPLICATED, ON_LAST_CORE, FREE, PARTIAL, WAYS };

typedef struct job {
    collective what;
    int        is, wanted; /* ways of the value and of the result */
    int        rows, next; /* of replica 0, and of the others */
} job;

static ch_node *lying(ch_node *x, int way)
{
    int n = ch_strategy_logical_devices(ch_step_strategy(ch_node_step(x)));

    switch (way) {
    case BY_ROWS:
        return ch_mesh_split(x, 2, (int[]){0, CH_OFF});
    case BY_COLUMNS:
        return ch_mesh_split(x, 2, (int[]){CH_OFF, 0});
    case REPLICATED:
        return ch_replicate_to_logical_devices(x);
    case ON_LAST_CORE:
        return ch_assign_to_logical_device(x, n - 1);
    default:
        return x;
    }
}

static void record(ch_step *s, void *arg)
{
    const job *j = arg;
    ch_node   *x = ch_step_in(s, 0), *w = ch_sum(ch_step_in(s, 1), 1, (int[]){0}, false);
    ch_node   *value, *y[3], *d[2], *loss = NULL;
    int        n = 1;

    if (j->is == PARTIAL) {
        x = ch_mesh_split(x, 2, (int[]){CH_OFF, 0});
        w = ch_mesh_split(w, 2, (int[]){0, CH_OFF});
    }
    value = lying(ch_matmul(x, false, w, false), j->is);
    switch (j->what) {
    case SUM:
        y[0] = ch_all_reduce(CH_SUM, value);
        break;
    case MEAN:
        y[0] = ch_all_reduce(CH_MEAN, value);
        break;
    case SEVERAL:
        ch_all_reduce_all(CH_SUM, 3, (ch_node *[]){value, x, lying(ch_square(w), j->wanted)},
                          y);
        n = 3;
        break;
    case BROADCAST:
        y[0] = ch_broadcast(value);
        break;
    default:
        y[0] = ch_all_gather(value, j->what == GATHER_ROWS ? 0 : 1);
    }
    y[0] = lying(y[0], j->wanted);
    for (int i = 0; i < n; i++) {
        ch_node *part = ch_sum_all(ch_square(y[i]));

        loss = loss == NULL ? part : ch_add(loss, part);
        ch_step_out(s, NULL, y[i]);
    }
    ch_gradients(loss, NULL, 2, (ch_node *[]){x, w}, d);
    ch_step_out(s, NULL, d[0]);
    ch_step_out(s, NULL, d[1]);
    ch_step_out(s, NULL, loss);
}

/* The results of one replica after the other. */
typedef struct result {
    int    n;
    double number[T_MOST_DEVICES * MOST_OUT * MOST_NUMBERS];
} result;

static ch_tuple *inputs(const job *j, int n_replicas)
{
    ch_tensor *t[2][T_MOST_DEVICES];
    ch_value  *v[2] = {NULL, NULL};
    ch_tuple  *in = NULL;

    for (int i = 0; i < 2; i++) {
        for (int r = 0; r < n_replicas; r++) {
            int rows = r == 0 ? j->rows : j->next;

            t_ok(ch_tensor_new(CH_F64, i == 0 ? ch_shape_of(rows, IN) : ch_shape_of(1, IN, OUT),
                               &t[i][r]));
            for (int64_t k = 0; k < ch_tensor_count(t[i][r]); k++)
                ((double *)ch_tensor_data_mut(t[i][r]))[k] =
                    (double)((5 * k + 3 * r + i) % 7 - 3) * 12;
        }
        t_ok(ch_value_new(CH_PER_REPLICA, n_replicas, t[i], &v[i]));
    }
    t_ok(ch_tuple_new(2, v, NULL, &in));
    for (int i = 0; i < 2; i++) {
        ch_value_unref(v[i]);
        for (int r = 0; r < n_replicas; r++)
            ch_tensor_unref(t[i][r]);
    }
    return in;
}

static void check_traffic(const job *j, ch_function *f)
{
    ch_layout_report  planned, measured;
    const ch_traffic *p = &planned.all_reduce, *m = &measured.all_reduce;

    t_ok(ch_function_report_layouts(f, &planned, &measured));
    for (int i = 0; &p[i] <= &planned.cross_replica; i++) {
        if (p[i].count != m[i].count || p[i].bytes != m[i].bytes)
            fail_msg("collective %d, ways %d and %d: traffic %d: planned %lld transfers of "
                     "%lld bytes, counted %lld of %lld",
                     j->what, j->is, j->wanted, i, (long long)p[i].count, (long long)p[i].bytes,
                     (long long)m[i].count, (long long)m[i].bytes);
    }
    assert_true(measured.cross_replica.bytes > 0 || j->rows == 0);
}

/* Takes over the reference to the strategy. */
static void run(ch_strategy *st, const job *j, result *out)
{
    job          arg = *j;
    ch_function *f = t_function(record, &arg);
    ch_tuple    *in = inputs(j, ch_strategy_replicas(st)), *got = NULL;

    t_ok(ch_strategy_run(st, f, in, &got));
    out->n = 0;
    for (int i = 0; i < ch_tuple_count(got); i++)
        for (int r = 0; r < ch_value_count(ch_tuple_at(got, i)); r++) {
            const ch_tensor *t = ch_value_at(ch_tuple_at(got, i), r);

            assert_true(out->n + ch_tensor_count(t) < T_MOST_DEVICES * MOST_OUT * MOST_NUMBERS);
            memcpy(&out->number[out->n], ch_tensor_data(t), ch_tensor_bytes(t));
            out->n += (int)ch_tensor_count(t);
        }
    if (ch_strategy_logical_devices(st) > 1)
        check_traffic(j, f);
    ch_tuple_unref(got);
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_strategy_unref(st);
}

static void collectives_of_parts_equal_those_of_replicas_of_one_device(void **state)
{
    static const struct {
        int n_replicas, n_cores;
    } sizes[] = {{2, 2}, {2, 3}, {2, 4}, {4, 2}};
    /* of replica 0 and of the others */
    static const int rows[][2] = {{3, 3}, {3, 4}, {9, 1}, {0, 4}, {5, 0}};
    static result    got, want;
    int              turn = 0;

    (void)state;
    for (int what = 0; what < COLLECTIVES; what++)
        for (int is = 0; is < WAYS; is++)
            for (int wanted = 0; wanted <= FREE; wanted++, turn++) {
                int  n = sizes[turn % 4].n_replicas, n_cores = sizes[turn % 4].n_cores;
                bool is_ragged = what == GATHER_ROWS || what == BROADCAST;
                job  j = {(collective)what, is, wanted, rows[is_ragged ? turn % 5 : 0][0],
                          rows[is_ragged ? turn % 5 : 0][1]};

                t_ok(ch__config_set("replicas", turn % 2 == 0 ? "threads" : "turns"));
                run(t_mirrored(n), &j, &want);
                run(t_cores_strategy(n, n_cores, NULL), &j, &got);
                assert_int_equal(got.n, want.n);
                for (int i = 0; i < got.n; i++)
                    if (got.number[i] != want.number[i])
                        fail_msg("collective %d, ways %d and %d, %d x %d cores: number %d is "
                                 "%g, want %g",
                                 what, is, wanted, n, n_cores, i, got.number[i],
                                 want.number[i]);
            }
}

/* ---- changes by the rows of replica 0 ---- */

static void change_rows(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0);
    ch_node *ids = ch_cast(ch_floor(ch_abs(ch_mean(x, 1, (int[]){1}, false))), CH_I64);

    ids = ch_mod(ids, ch_fill(s, CH_I64, (ch_shape){0}, IN));
    ch_var_scatter_add(s, arg, ids, x);
    ch_var_assign_add(s, arg, ch_mul(ch_sum(x, 1, (int[]){0}, true), ch_step_replica_count(s)));
}

static void train_rows(ch_strategy *st, const int *split, double *out)
{
    job          j = {.rows = 5, .next = 2};
    ch_tuple    *in = inputs(&j, 2);
    ch_var      *v = NULL;
    ch_function *f;
    ch_tensor   *t = NULL;

    t_ok(ch_var_new(st,
                    &(ch_var_spec){.name = "v",
                                   .dtype = CH_F64,
                                   .shape = ch_shape_of(IN, IN),
                                   .aggregation = CH_AGGREGATE_FIRST,
                                   .split = split,
                                   .n_split = 2},
                    &v));
    f = t_function(change_rows, v);
    for (int i = 0; i < 2; i++)
        t_ok(ch_strategy_run(st, f, in, NULL));
    t_ok(ch_var_get(v, &t));
    memcpy(out, ch_tensor_data(t), ch_tensor_bytes(t));
    ch_tensor_unref(t);
    ch_function_unref(f);
    ch_var_unref(v);
    ch_tuple_unref(in);
    ch_strategy_unref(st);
}

/* TPV-14: aggregation FIRST broadcasts ids and rows of replica 0. Replica 1 has fewer of them. */
static void rows_of_replica_0_change_all_tiles(void **state)
{
    static const int splits[][2] = {{0, CH_OFF}, {CH_OFF, 0}, {CH_OFF, CH_OFF}};

    (void)state;
    for (int i = 0; i < 3; i++)
        for (int cores = 2; cores <= 4; cores++) {
            double got[IN * IN], want[IN * IN], sum = 0;

            t_ok(ch__config_set("replicas", cores % 2 == 0 ? "threads" : "turns"));
            train_rows(t_mirrored(2), NULL, want);
            train_rows(t_cores_strategy(2, cores, NULL), splits[i], got);
            assert_memory_equal(got, want, sizeof(want));
            for (int k = 0; k < IN * IN; k++)
                sum += want[k] * want[k];
            assert_true(sum > 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_of_parts_equal_those_of_replicas_of_one_device),
        cmocka_unit_test(rows_of_replica_0_change_all_tiles),
    };

    return cmocka_run_group_tests(tests, t_eight_gpus, NULL);
}

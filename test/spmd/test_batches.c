/* test/spmd/test_batches.c -- replicas with batches of different sizes, on several logical
 * devices each.
 *
 * Layouts are decided once for a run, for the replica with the largest inputs. Devices of a
 * replica with a short batch may have no row. All replicas must have the same calls: the step
 * has collectives between them. It must train as replicas with one device do, and the bytes
 * that the kernels move must be the planned bytes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../strategy/cores.h"

#include <math.h>

enum { REPLICAS = 2, CORES = 4, STEPS = 2, WIDTH = 16, UNITS = 5, OUTPUTS = 3 };

typedef struct model {
    ch_optimizer *o;
    ch_var       *kernel, *scale;
} model;

/* p and q are partial sums of the devices that have rows of x and of z. If these are not the
 * same devices, the sum of p and q cannot stay partial. */
static void record(ch_step *s, void *arg)
{
    const model *m = arg;
    ch_node     *x = ch_mesh_split(ch_step_in(s, 0), 2, (int[]){0, CH_OFF});
    ch_node     *z = ch_mesh_split(ch_step_in(s, 1), 2, (int[]){0, CH_OFF});
    ch_node     *scale = ch_var_read(s, m->scale);
    ch_node     *y = ch_tanh(ch_matmul(x, false, ch_var_read(s, m->kernel), false));
    ch_node     *p = ch_sum(ch_mul(x, scale), 1, (int[]){0}, false);
    ch_node     *q = ch_sum(ch_tanh(z), 1, (int[]){0}, false);
    ch_node     *sum = ch_add(ch_neg(p), ch_mul(q, ch_number(s, 0.5)));

    ch_step_out(s, "sum", sum);
    ch_step_out(s, "maximum", ch_max(z, 1, (int[]){0}, false));
    sum = ch_add(ch_mean_all(ch_square(sum)), ch_sum_all(ch_square(y)));
    ch_step_out(s, "loss", sum);
    ch_optimizer_minimize(m->o, s, sum, 2, (ch_var *[]){m->kernel, m->scale});
}

static ch_value *batch(const int64_t *rows)
{
    ch_tensor *part[REPLICAS];
    ch_value  *v = NULL;

    for (int r = 0; r < REPLICAS; r++)
        part[r] = t_noise(ch_shape_of(rows[r], WIDTH), 5 + (unsigned)r);
    t_ok(ch_value_new(CH_PER_REPLICA, REPLICAS, part, &v));
    for (int r = 0; r < REPLICAS; r++)
        ch_tensor_unref(part[r]);
    return v;
}

static void same_traffic(ch_function *f)
{
    ch_layout_report  planned, measured;
    const ch_traffic *p = &planned.all_reduce, *m = &measured.all_reduce;

    t_ok(ch_function_report_layouts(f, &planned, &measured));
    for (int i = 0; &p[i] <= &planned.cross_replica; i++) {
        assert_int_equal(p[i].count, m[i].count);
        assert_int_equal(p[i].bytes, m[i].bytes);
    }
}

static ch_var *variable(ch_strategy *st, const char *name, ch_shape shape)
{
    ch_var *v = NULL;

    t_ok(ch_var_new(st,
                    &(ch_var_spec){.name = name,
                                   .shape = shape,
                                   .init = ch_init_uniform(-1, 1),
                                   .split = shape.rank == 2 ? (int[]){CH_OFF, 0} : NULL,
                                   .n_split = shape.rank == 2 ? 2 : 0},
                    &v));
    return v;
}

/* Trains with these rows of each replica, of x and then of z, and sets out[] to the results and the variables.
 * Takes over the reference to the strategy. Returns the number of arrays. */
static int train(ch_strategy *st, const int64_t *rows, ch_tensor **out)
{
    model        m;
    ch_function *f = NULL;
    ch_value    *v[2] = {batch(rows), batch(rows + REPLICAS)};
    ch_tuple    *in = NULL, *got = NULL;
    int          n = 0;

    t_ok(ch_optimizer_sgd(0.01, NULL, NULL, &m.o));
    m.kernel = variable(st, "kernel", ch_shape_of(WIDTH, UNITS));
    m.scale = variable(st, "scale", ch_shape_of(WIDTH));
    t_ok(ch_function_new("train", record, &m, &f));
    t_ok(ch_tuple_new(2, v, NULL, &in));
    for (int i = 0; i < STEPS; i++) {
        t_ok(ch_strategy_run(st, f, in, &got));
        for (int k = 0; k < OUTPUTS; k++)
            for (int r = 0; r < REPLICAS; r++)
                out[n++] = ch_tensor_ref(ch_value_at(ch_tuple_at(got, k), r));
        ch_tuple_unref(got);
        if (ch_strategy_logical_devices(st) > 1)
            same_traffic(f);
    }
    t_ok(ch_var_get(m.kernel, &out[n++]));
    t_ok(ch_var_get(m.scale, &out[n++]));
    ch_var_unref(m.kernel);
    ch_var_unref(m.scale);
    ch_optimizer_unref(m.o);
    ch_function_unref(f);
    ch_tuple_unref(in);
    ch_value_unref(v[0]);
    ch_value_unref(v[1]);
    ch_strategy_unref(st);
    return n;
}

/* TPU-3.8: a short batch is split unevenly. */
static void replicas_with_batches_of_any_sizes_train_as_on_one_device_each(void **state)
{
    static const int64_t rows[][2 * REPLICAS] = {
        {9, 9, 9, 9}, {1, 9, 1, 9}, {9, 1, 9, 1}, {0, 9, 0, 9}, {9, 0, 9, 0}, {7, 3, 7, 3},
        {1, 9, 2, 9}, {2, 9, 1, 9}, {9, 0, 9, 3}, {0, 8, 2, 8}, {5, 1, 2, 9}, {1, 1, 1, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        ch_tensor *got[20], *want[20];
        int        n = train(t_mirrored(REPLICAS), rows[i], want);

        assert_int_equal(train(t_cores_strategy(REPLICAS, CORES, NULL), rows[i], got), n);
        for (int k = 0; k < n; k++) {
            const float *a = ch_tensor_data(got[k]), *b = ch_tensor_data(want[k]);

            for (int64_t e = 0; e < ch_tensor_count(want[k]); e++)
                if (!(fabsf(a[e] - b[e]) <= 1e-5f * (1 + fabsf(b[e]))) && a[e] != b[e])
                    fail_msg("case %d, array %d: element %d is %g, want %g", (int)i, k, (int)e,
                             a[e], b[e]);
            ch_tensor_unref(got[k]);
            ch_tensor_unref(want[k]);
        }
    }
}

static void record_sum(ch_step *s, void *arg)
{
    ch_node *p =
        ch_sum(ch_mesh_split(ch_step_in(s, 0), 2, (int[]){0, CH_OFF}), 1, (int[]){0}, false);
    ch_node *q =
        ch_sum(ch_mesh_split(ch_step_in(s, 1), 2, (int[]){0, CH_OFF}), 1, (int[]){0}, false);

    (void)arg;
    ch_step_out(
        s, "sum",
        ch_replicate_to_logical_devices(ch_add(ch_neg(p), ch_mul(q, ch_number(s, 0.5)))));
}

/* The sums have 64 bytes. The layouts are those for 9 rows, for which the sum stays partial.
 * The report is of the first replica. */
static void devices_without_rows_have_no_partial_sum_in_a_short_batch(void **state)
{
    static const struct {
        int64_t rows[2 * REPLICAS], bytes;
    } cases[] = {{{9, 9, 9, 9}, (3 + 3) * 64},
                 {{3, 9, 3, 9}, (2 + 3) * 64},
                 {{2, 9, 2, 9}, (1 + 3) * 64},
                 {{1, 9, 1, 9}, 3 * 64},
                 {{0, 9, 0, 9}, 0},
                 {{1, 9, 2, 9}, 3 * 64 + (1 + 3) * 64}};
    ch_strategy *st = t_cores_strategy(REPLICAS, CORES, NULL);

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ch_value        *v[2] = {batch(cases[i].rows), batch(cases[i].rows + REPLICAS)};
        ch_function     *f = NULL;
        ch_tuple        *in = NULL;
        ch_layout_report r;
        char             text[4000];

        t_ok(ch_function_new("sum", record_sum, NULL, &f));
        t_ok(ch_tuple_new(2, v, NULL, &in));
        t_ok(ch_strategy_run(st, f, in, NULL));
        same_traffic(f);
        t_ok(ch_function_report_layouts(f, &r, NULL));
        assert_int_equal(r.all_reduce.bytes + r.all_gather.bytes, cases[i].bytes);
        assert_int_equal(r.reduce_scatter.bytes + r.other.bytes, 0);
        assert_in_range(ch_function_print_layouts(f, text, sizeof(text)), 1, sizeof(text) - 1);
        assert_null(strstr(text, "body")); /* all values are of the same step */
        ch_tuple_unref(in);
        ch_function_unref(f);
        ch_value_unref(v[0]);
        ch_value_unref(v[1]);
    }
    ch_strategy_unref(st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replicas_with_batches_of_any_sizes_train_as_on_one_device_each),
        cmocka_unit_test(devices_without_rows_have_no_partial_sum_in_a_short_batch),
    };

    return cmocka_run_group_tests(tests, t_eight_gpus, NULL);
}

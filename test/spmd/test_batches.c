/* test/spmd/test_batches.c -- replicas with batches of different sizes, on several logical
 * devices each.
 *
 * Layouts are decided once for a run, for the replica with the largest inputs. Devices of a
 * replica with a short batch may have no row. All replicas must have the same calls: the step
 * has collectives between them. It must train as replicas with one device do, and the bytes
 * that the kernels move must be the planned bytes. Random chains of calls, of which most are
 * reshapes, must do so too: T_CASES is their number, T_FIRST_SEED the first of them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../strategy/cores.h"

#include <math.h>

#include "graph/node.h"

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

/* Returns a batch of arrays of this shape, with these rows of each replica. */
static ch_value *batch_of(const int64_t *rows, ch_shape shape)
{
    ch_tensor *part[REPLICAS];
    ch_value  *v = NULL;

    for (int r = 0; r < REPLICAS; r++) {
        shape.dim[0] = rows[r];
        part[r] = t_noise(shape, 5 + (unsigned)r);
    }
    t_ok(ch_value_new(CH_PER_REPLICA, REPLICAS, part, &v));
    for (int r = 0; r < REPLICAS; r++)
        ch_tensor_unref(part[r]);
    return v;
}

static ch_value *batch(const int64_t *rows)
{
    return batch_of(rows, ch_shape_of(0, WIDTH));
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

/* Trains with these rows of each replica, of x and then of z, and sets out[] to the results and
 * the variables. Takes over the reference to the strategy. Returns the number of arrays. */
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

/* Compares arrays up to rounding, and drops them. */
static void same_arrays(int test, int n, ch_tensor **got, ch_tensor **want)
{
    for (int k = 0; k < n; k++) {
        const float *a = ch_tensor_data(got[k]), *b = ch_tensor_data(want[k]);

        assert_true(ch_shape_equal(ch_tensor_shape(got[k]), ch_tensor_shape(want[k])));
        for (int64_t e = 0; e < ch_tensor_count(want[k]); e++)
            if (!(fabsf(a[e] - b[e]) <= 1e-5f * (1 + fabsf(b[e]))) && a[e] != b[e])
                fail_msg("case %d, array %d: element %d is %g, want %g", test, k, (int)e, a[e],
                         b[e]);
        ch_tensor_unref(got[k]);
        ch_tensor_unref(want[k]);
    }
}

/* DYN-2: a short batch is split unevenly. */
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
        same_arrays((int)i, n, got, want);
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

static void record_reshapes(ch_step *s, void *arg)
{
    ch_node *x = ch_mesh_split(ch_step_in(s, 0), 3, (int[]){0, CH_OFF, CH_OFF});

    (void)arg;
    x = ch_reshape(ch_neg(x), ch_shape_of(-1, 3, 2, 4));
    x = ch_reshape(ch_tanh(x), ch_shape_of(-1, 3, 8));
    ch_step_out(s, NULL, ch_neg(x));
}

/* The rules of reshapes of 1 row have no factor of the rows, but the devices still have the
 * elements of the same rows. The report is of the first replica. */
static void reshapes_of_short_batches_move_nothing(void **state)
{
    ch_strategy *st = t_cores_strategy(REPLICAS, CORES, NULL);

    (void)state;
    for (int64_t n = 0; n < 9; n++) {
        ch_value        *v = batch_of((int64_t[]){n, 8}, ch_shape_of(0, 6, 4));
        ch_function     *f = NULL;
        ch_tuple        *in = NULL;
        ch_layout_report r;

        t_ok(ch_function_new("reshapes", record_reshapes, NULL, &f));
        t_ok(ch_tuple_new(1, &v, NULL, &in));
        t_ok(ch_strategy_run(st, f, in, NULL));
        same_traffic(f);
        t_ok(ch_function_report_layouts(f, &r, NULL));
        assert_int_equal(r.all_reduce.bytes + r.reduce_scatter.bytes + r.all_gather.bytes +
                             r.all_to_all.bytes + r.halo.bytes + r.other.bytes,
                         0);
        ch_tuple_unref(in);
        ch_function_unref(f);
        ch_value_unref(v);
    }
    ch_strategy_unref(st);
}

/* ---- random chains of calls ---- */

enum { CHAINS = 600, CALLS = 10, MOST_RANK = 5 };

/* A chain of calls on an input, made from a seed. Most of them move its elements: reshapes and
 * transposes. An axis has the rows, times a number, until they are summed. */
typedef struct chain {
    unsigned      state;
    int           n_mesh; /* axes of the mesh */
    ch_optimizer *o;
    ch_var       *scale;
    ch_step      *s; /* while it is recorded */
} chain;

static int any(unsigned *state, int n)
{
    *state = *state * 1664525u + 1013904223u;
    return (int)((*state >> 8) % (unsigned)n);
}

/* Returns the sizes of x, with -1 for the axis of the rows. */
static ch_shape sizes_of(const ch_node *x)
{
    return ch__dims_shape(&x->dims);
}

/* Merges axis k of a shape with the next one. */
static void merge(ch_shape *s, int k)
{
    s->dim[k] = s->dim[k] < 0 || s->dim[k + 1] < 0 ? -1 : s->dim[k] * s->dim[k + 1];
    s->rank--;
    for (int i = k + 1; i < s->rank; i++)
        s->dim[i] = s->dim[i + 1];
}

/* Cuts `part` positions out of axis k of a shape, before or after the rest. */
static void cut(ch_shape *s, int k, int64_t part, bool is_before)
{
    for (int i = s->rank++; i > k; i--)
        s->dim[i] = s->dim[i - 1];
    if (s->dim[k] > 0)
        s->dim[k] /= part;
    s->dim[is_before ? k + 1 : k] = s->dim[k];
    s->dim[is_before ? k : k + 1] = part;
}

static ch_node *reshaped(chain *c, ch_node *x)
{
    ch_shape to = sizes_of(x);
    int      k = any(&c->state, to.rank);
    int64_t  part = 2 + any(&c->state, 3), n = x->dims.dim[k].n;

    if (any(&c->state, 2) == 0 && k + 1 < to.rank)
        merge(&to, k);
    else if (n % part == 0 && (n > part || to.dim[k] < 0) && to.rank < MOST_RANK)
        cut(&to, k, part, any(&c->state, 2) == 0);
    return ch_reshape(x, to);
}

/* Moves the rows to another axis: (6, rows) becomes (3 rows, 2). */
static ch_node *regrouped(chain *c, ch_node *x)
{
    int64_t constant = 1, inner = 1 + any(&c->state, 4);

    for (int k = 0; k < x->dims.rank; k++)
        constant *= x->dims.dim[k].n;
    return constant % inner == 0 ? ch_reshape(x, ch_shape_of(-1, inner)) : x;
}

static ch_node *transposed(chain *c, ch_node *x)
{
    int perm[CH_MAX_RANK];

    for (int k = 0; k < x->dims.rank; k++) {
        int at = any(&c->state, k + 1);

        perm[k] = perm[at];
        perm[at] = k;
    }
    return ch_transpose(x, x->dims.rank, perm);
}

static ch_node *split(chain *c, ch_node *x)
{
    int axis[CH_MAX_RANK];

    for (int k = 0; k < x->dims.rank; k++)
        axis[k] = CH_OFF;
    for (int m = 0; m < c->n_mesh; m++)
        axis[any(&c->state, x->dims.rank)] = m;
    return ch_mesh_split(x, x->dims.rank, axis);
}

static ch_node *normalised(ch_step *s, ch_node *x, ch_node **mean, ch_node **variance)
{
    ch_shape channels = ch_shape_of(x->dims.dim[x->dims.rank - 1].n);

    return ch_batch_norm(x, ch_fill(s, CH_F32, channels, 0.5),
                         ch_fill(s, CH_F32, channels, 0.25), 0.1, mean, variance);
}

/* A call that needs the elements of an axis together, or changes its size. */
static ch_node *along_axis(chain *c, ch_node *x)
{
    int axis = any(&c->state, x->dims.rank);

    switch (any(&c->state, 9)) {
    case 0:
        return ch_softmax(x, axis);
    case 5:
        return ch_tanh(ch_logsumexp(x, 1, &axis, true));
    case 6: /* the last axis must have a known size */
        axis = x->dims.rank - 1;
        return x->dims.dim[axis].sym == 0
                   ? ch_rms_norm(
                         x, ch_fill(c->s, CH_F32, ch_shape_of(x->dims.dim[axis].n), 0.5), 0.1)
                   : x;
    case 1:
        return ch_reverse(x, 1, &axis);
    case 2:
        return ch_mul(ch_sum(x, 1, &axis, true), ch_number(c->s, 0.3));
    case 3:
        return ch_sum(ch_tanh(x), 1, &axis, x->dims.rank == 1);
    case 4:
        return ch_tanh(ch_cumsum(x, axis, false, false));
    case 7: /* so must the channels */
        axis = x->dims.rank - 1;
        return axis > 0 && x->dims.dim[axis].sym == 0 ? normalised(c->s, x, NULL, NULL) : x;
    default:
        return x->dims.dim[axis].n < 50 ? ch_concat(2, (ch_node *[]){x, ch_tanh(x)}, axis) : x;
    }
}

static ch_node *next_in_chain(chain *c, ch_node *x)
{
    switch (any(&c->state, 8)) {
    case 0:
        return transposed(c, x);
    case 1:
        return split(c, x);
    case 2:
        return ch_tanh(x);
    case 3:
        return regrouped(c, x);
    case 4:
        return along_axis(c, x);
    default:
        return reshaped(c, x);
    }
}

static void record_chain(ch_step *s, void *arg)
{
    chain    c = *(const chain *)arg; /* every recording has the same moves */
    ch_node *x = ch_mul(ch_step_in(s, 0), ch_var_read(s, c.scale)), *loss;

    c.s = s;
    for (int i = 0; i < CALLS; i++)
        x = next_in_chain(&c, x);
    ch_step_out(s, "end", x);
    loss = ch_sum_all(ch_square(x));
    ch_step_out(s, "loss", loss);
    ch_optimizer_minimize(c.o, s, loss, 1, &c.scale);
}

/* Batch norm of images whose lines are divided. */
static void record_norm(ch_step *s, void *arg)
{
    chain   *c = arg;
    ch_node *x = ch_mul(ch_step_in(s, 0), ch_var_read(s, c->scale)), *y, *mean, *variance;

    x = ch_mesh_split(x, 3, (int[]){CH_OFF, 0, CH_OFF});
    y = normalised(s, x, &mean, &variance);
    ch_step_out(s, "y", y);
    ch_step_out(s, "mean", mean);
    ch_step_out(s, "variance", variance);
    ch_optimizer_minimize(c->o, s, ch_sum_all(ch_mul(ch_tanh(y), x)), 1, &c->scale);
}

/* Runs a step with these rows of each replica, and sets out[] to the results and the variable.
 * Takes over the reference to the strategy. Returns the number of arrays. */
static int run_step(ch_strategy *st, ch_step_fn record_step, chain c, const int64_t *rows,
                    ch_tensor **out)
{
    ch_function *f = NULL;
    ch_value    *v = batch_of(rows, (ch_shape){.rank = 3, .dim = {0, 6, 4}});
    ch_tuple    *in = NULL, *got = NULL;
    int          n = 0;

    t_ok(ch_optimizer_sgd(0.01, NULL, NULL, &c.o));
    c.scale = variable(st, "scale", ch_shape_of(4));
    t_ok(ch_function_new("step", record_step, &c, &f));
    t_ok(ch_tuple_new(1, &v, NULL, &in));
    t_ok(ch_strategy_run(st, f, in, &got));
    for (int k = 0; k < ch_tuple_count(got); k++)
        for (int r = 0; r < REPLICAS; r++)
            out[n++] = ch_tensor_ref(ch_value_at(ch_tuple_at(got, k), r));
    if (ch_strategy_logical_devices(st) > 1)
        same_traffic(f);
    t_ok(ch_var_get(c.scale, &out[n++]));
    ch_tuple_unref(got);
    ch_tuple_unref(in);
    ch_value_unref(v);
    ch_var_unref(c.scale);
    ch_function_unref(f);
    ch_optimizer_unref(c.o);
    ch_strategy_unref(st);
    return n;
}

/* The step has collectives between the replicas, so the calls of a replica without rows must be
 * those of the others. */
static void batch_norm_is_divided_when_a_replica_has_no_rows(void **state)
{
    static const int64_t rows[][REPLICAS] = {{3, 0}, {0, 3}, {1, 0}, {0, 0}, {3, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (int n_cores = 2; n_cores <= 4; n_cores++) {
            ch_tensor *want[8], *got[8];
            int n = run_step(t_mirrored(REPLICAS), record_norm, (chain){0}, rows[i], want);
            ch_strategy *st = t_cores_strategy(REPLICAS, n_cores, NULL);

            assert_int_equal(run_step(st, record_norm, (chain){0}, rows[i], got), n);
            same_arrays((int)i, n, got, want);
        }
}

static void chains_of_calls_give_the_results_of_one_device_each(void **state)
{
    static const int     meshes[][3] = {{2}, {3}, {4}, {2, 2}};
    static const int64_t rows[][REPLICAS] = {{1, 0}, {0, 1}, {1, 1}, {2, 1}, {1, 2}, {3, 1},
                                             {2, 3}, {3, 0}, {0, 0}, {9, 1}, {8, 4}, {0, 9}};
    const char          *cases = getenv("T_CASES"), *seed = getenv("T_FIRST_SEED");
    int                  first = seed != NULL ? atoi(seed) : 0;
    int                  n = cases != NULL ? atoi(cases) : CHAINS;

    (void)state;
    for (int i = first; i < first + n; i++) {
        unsigned       random = (unsigned)i;
        const int     *mesh = meshes[any(&random, 4)];
        const int64_t *of = rows[any(&random, 12)];
        chain          c = {.state = random, .n_mesh = mesh[1] > 0 ? 2 : 1};
        ch_tensor     *want[8], *got[8];
        int            n_out = run_step(t_mirrored(REPLICAS), record_chain, c, of, want);
        ch_strategy   *st =
            t_cores_strategy(REPLICAS, mesh[1] > 0 ? mesh[0] * mesh[1] : mesh[0], mesh);

        printf("chain %d\n", i);
        assert_int_equal(run_step(st, record_chain, c, of, got), n_out);
        same_arrays(i, n_out, got, want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replicas_with_batches_of_any_sizes_train_as_on_one_device_each),
        cmocka_unit_test(devices_without_rows_have_no_partial_sum_in_a_short_batch),
        cmocka_unit_test(reshapes_of_short_batches_move_nothing),
        cmocka_unit_test(batch_norm_is_divided_when_a_replica_has_no_rows),
        cmocka_unit_test(chains_of_calls_give_the_results_of_one_device_each),
    };

    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* shows the chain if the program is ended */
    return cmocka_run_group_tests(tests, t_eight_gpus, NULL);
}

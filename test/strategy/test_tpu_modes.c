/* test/strategy/test_tpu_modes.c -- the same programs under TPUStrategy with and without spmd.
 *
 * Every program runs on 1, 2, 4 and 8 replicas, which divide 8 cores, in both modes, and on as
 * many replicas of one core each. The numbers are whole, so all results and variables must have
 * the same bits. All runs compare copies (COHORT_CHECK_COPIES). A program that assigns values to
 * a core runs without spmd only.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/config.h"
#include "cohort/logical.h"
#include "cohort/optimizer.h"
#include "strategy/strategy.h"
#include "tpu.h"
#include "values.h"

enum { IN = 6, UNITS = 8, CLASSES = 5, IDS = 10, WIDE = 4, STEPS = 3, VARS = 5 };

/* ---- programs ---- */

/* The variables that each program may use. */
typedef struct vars {
    ch_var *w, *u, *table, *total, *mean;
} vars;

static ch_node *columns(ch_node *x)
{
    return ch_mesh_split(x, 2, (int[]){CH_OFF, CH_MESH_ALL});
}

/* Sums the gradients over the replicas, and subtracts them. */
static void train(ch_step *s, ch_node *loss, ch_var *v)
{
    ch_node *g = ch_all_reduce(CH_SUM, ch_gradient(loss, ch_var_read(s, v)));

    ch_var_assign_sub(s, v, ch_clip(g, -2, 2));
}

static void dense(ch_step *s, void *arg)
{
    const vars *v = arg;
    ch_node    *x = ch_step_in(s, 0), *h, *loss;

    h = ch_relu(ch_matmul(x, false, ch_var_read(s, v->w), false));
    h = ch_matmul(columns(h), false, ch_var_read(s, v->u), false);
    loss = ch_sum_all(ch_mul(h, ch_number(s, 2)));
    train(s, loss, v->w);
    train(s, loss, v->u);
    ch_step_out(s, "h", h);
    ch_step_out(s, "most", ch_argmax(h, 1));
    ch_step_out(s, "loss", ch_all_reduce(CH_SUM, loss));
}

static void images(ch_step *s, void *arg)
{
    const ch_conv_options same = {.padding = CH_PAD_SAME};
    const ch_pool_options two = {.window = {2, 2}};
    const vars           *v = arg;
    ch_node              *x = ch_step_in(s, 0), *filter, *y;

    x = ch_matmul(x, false, ch_var_read(s, v->w), false);
    x = ch_reshape(x, ch_shape_of(-1, 4, 2, 1));
    x = ch_mesh_split(x, 4, (int[]){CH_OFF, 0, CH_OFF, CH_OFF});
    filter = ch_reshape(ch_var_read(s, v->u), ch_shape_of(2, 4, 1, 5));
    y = ch_max_pool2d(ch_conv2d(x, filter, &same), &two);
    train(s, ch_sum_all(y), v->u);
    ch_step_out(s, "y", y);
    ch_step_out(s, "rows", ch_identity(ch_rows(y)));
}

static void iterate(ch_step *s, void *arg, ch_node *const *carry, ch_node *const *x,
                    ch_node **next, ch_node **y)
{
    (void)s, (void)arg, (void)x;
    next[0] = ch_clip(ch_add(carry[0], ch_number(s, 3)), -9, 9);
    y[0] = ch_sum(next[0], 1, (int[]){1}, false);
}

static void loop(ch_step *s, void *arg)
{
    const ch_scan_spec spec = {.n_carry = 1, .n_y = 1, .length = 3};
    const vars        *v = arg;
    ch_node           *x = ch_matmul(ch_step_in(s, 0), false, ch_var_read(s, v->w), false);
    ch_node           *y = NULL, *all = NULL;

    x = columns(x);
    ch_scan(s, &spec, iterate, NULL, &x, NULL, &y, &all);
    ch_step_out(s, "y", y);
    ch_step_out(s, "all", all);
}

static void rows(ch_step *s, void *arg)
{
    const vars *v = arg;
    ch_node    *x = ch_step_in(s, 0), *ids;

    ids = ch_mod(ch_add(ch_argmax(x, 1), ch_cast(ch_step_replica_id(s), CH_I64)),
                 ch_number(s, IDS));
    ch_step_out(s, "rows", ch_gather(ch_var_read(s, v->table), ids, 0));
    x = ch_slice(x, 2, (int64_t[]){0, 1}, (int64_t[]){-1, WIDE});
    ch_step_out(s, "table", ch_var_scatter_add(s, v->table, ids, x));
}

/* Replicas have different numbers of rows. */
static void collectives(ch_step *s, void *arg)
{
    const vars *v = arg;
    ch_node    *x = ch_step_in(s, 0), *y = columns(ch_mul(x, ch_number(s, 3))), *sum;

    sum = ch_sum(y, 1, (int[]){0}, false);
    ch_step_out(s, "sum", ch_all_reduce(CH_SUM, sum));
    ch_step_out(s, "mean", ch_all_reduce(CH_MEAN, ch_mul(sum, ch_number(s, 8))));
    ch_step_out(s, "rows", ch_all_gather(y, 0));
    ch_step_out(s, "first", ch_broadcast(y));
    ch_step_out(s, "slope", ch_gradient(ch_sum_all(ch_all_reduce(CH_SUM, sum)), x));
    ch_step_out(s, "global", ch_identity(ch_step_global_rows(s)));
    ch_var_assign_add(s, v->total, ch_sum_all(y));
    ch_var_assign(s, v->mean, ch_mul(ch_sum_all(y), ch_number(s, 8)));
}

static void assigned(ch_step *s, void *arg)
{
    const vars *v = arg;
    int         last = ch_strategy_logical_devices(ch_step_strategy(s)) - 1;
    ch_node    *x = ch_assign_to_logical_device(ch_step_in(s, 0), last), *h;

    h = ch_relu(ch_matmul(x, false, ch_var_read(s, v->w), false));
    h = ch_assign_to_logical_device(h, last / 2);
    train(s, ch_sum_all(h), v->w);
    ch_step_out(s, "h", h);
}

static const struct {
    const char *name;
    ch_step_fn  step;
    bool        assigns;
} programs[] = {{"dense", dense, false},     {"images", images, false},
                {"loop", loop, false},       {"rows", rows, false},
                {"all", collectives, false}, {"assigned", assigned, true}};

enum { PROGRAMS = sizeof(programs) / sizeof(programs[0]) };

/* ---- runs ---- */

typedef struct bytes {
    size_t n;
    char   at[1 << 16];
} bytes;

static void add(bytes *b, const ch_tensor *t)
{
    assert_true(b->n + ch_tensor_bytes(t) <= sizeof(b->at));
    memcpy(b->at + b->n, ch_tensor_data(t), ch_tensor_bytes(t));
    b->n += ch_tensor_bytes(t);
}

static ch_tensor *whole(ch_shape shape, int step)
{
    ch_tensor *t = t_f32(shape, NULL);

    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        ((float *)ch_tensor_data_mut(t))[i] = (float)(i * step % 5 - 2);
    return t;
}

static ch_var *var(ch_strategy *st, const char *name, ch_shape shape, ch_sync sync,
                   ch_aggregation aggregation)
{
    ch_tensor *t = whole(shape, (int)name[0]);
    ch_var    *v = NULL;

    t_ok(ch_var_new(
        st,
        &(ch_var_spec){.name = name, .initial = t, .sync = sync, .aggregation = aggregation},
        &v));
    ch_tensor_unref(t);
    return v;
}

/* Replica r has r % 3 + 1 rows. */
static ch_tuple *batch(int n, int step)
{
    ch_tensor *x[T_TPUS];

    for (int r = 0; r < n; r++)
        x[r] = whole(ch_shape_of(r % 3 + 1, IN), r + step + 1);
    return t_each(n, x);
}

/* Runs a program. Collects all results of all replicas, and the values of all variables. Takes
 * over the reference to the strategy. */
static void run(ch_strategy *st, int program, bytes *out)
{
    ch_var *all[VARS] = {
        var(st, "w", ch_shape_of(IN, UNITS), CH_SYNC_AUTO, CH_AGGREGATE_MEAN),
        var(st, "u", ch_shape_of(UNITS, CLASSES), CH_SYNC_AUTO, CH_AGGREGATE_MEAN),
        var(st, "table", ch_shape_of(IDS, WIDE), CH_SYNC_AUTO, CH_AGGREGATE_SUM),
        var(st, "total", ch_shape_scalar(), CH_SYNC_ON_READ, CH_AGGREGATE_SUM),
        var(st, "mean", ch_shape_scalar(), CH_SYNC_AUTO, CH_AGGREGATE_MEAN)};
    vars         v = {all[0], all[1], all[2], all[3], all[4]};
    ch_function *f = t_function(programs[program].step, &v);

    out->n = 0;
    for (int i = 0; i < STEPS; i++) {
        ch_tuple *in = batch(ch_strategy_replicas(st), i), *results = NULL;

        t_ok(ch_strategy_run(st, f, in, &results));
        for (int k = 0; k < ch_tuple_count(results); k++)
            for (int r = 0; r < ch_strategy_replicas(st); r++)
                add(out, ch_value_at(ch_tuple_at(results, k), r));
        ch_tuple_unref(in);
        ch_tuple_unref(results);
    }
    for (int i = 0; i < VARS; i++) {
        ch_tensor *t = NULL;

        t_ok(ch_var_get(all[i], &t));
        add(out, t);
        ch_tensor_unref(t);
        ch_var_unref(all[i]);
    }
    ch_function_unref(f);
    ch_strategy_unref(st);
}

/* ANN-5, ANN-22, TPN-6, TPD-1, TPD-2, TPD-10, TPV-11, TPV-12 */
static void programs_have_the_same_bits_in_both_modes(void **state)
{
    static bytes want, got;

    for (int p = 0; p < PROGRAMS; p++)
        for (int n = 1; n <= T_TPUS; n *= 2) {
            run(t_tpu(n, 1, false), p, &want);
            for (int spmd = 0; spmd < 2; spmd++) {
                if (spmd && programs[p].assigns)
                    continue;
                run(t_tpu(n, T_TPUS / n, spmd), p, &got);
                if (got.n != want.n || memcmp(got.at, want.at, want.n) != 0)
                    fail_msg("%s on %d replicas of %d cores, spmd %d: other results",
                             programs[p].name, n, T_TPUS / n, spmd);
            }
        }
    (void)state;
}

/* ---- scatters and aggregations, as under Mirrored ---- */

typedef ch_node *(*change_fn)(ch_step *s, ch_var *v, ch_node *ids, ch_node *x);

static ch_node *assign(ch_step *s, ch_var *v, ch_node *ids, ch_node *x)
{
    (void)ids;
    return ch_var_assign(s, v, ch_mul(ch_var_read(s, v), ch_sum_all(x)));
}

static ch_node *assign_sub(ch_step *s, ch_var *v, ch_node *ids, ch_node *x)
{
    (void)ids;
    return ch_var_assign_sub(s, v, ch_mul(ch_ones_like(ch_var_read(s, v)), ch_sum_all(x)));
}

static const change_fn changes[] = {assign,
                                    assign_sub,
                                    ch_var_scatter_add,
                                    ch_var_scatter_sub,
                                    ch_var_scatter_mul,
                                    ch_var_scatter_div,
                                    ch_var_scatter_min,
                                    ch_var_scatter_max,
                                    ch_var_scatter_update};

enum { CHANGES = sizeof(changes) / sizeof(changes[0]) };

typedef struct change {
    change_fn fn;
    ch_var   *v;
} change;

static void change_var(ch_step *s, void *arg)
{
    const change *c = arg;
    ch_node      *x = ch_step_in(s, 0), *ids;

    ids = ch_mod(ch_add(ch_argmax(x, 1), ch_cast(ch_step_replica_id(s), CH_I64)),
                 ch_number(s, IDS));
    x = ch_add(ch_abs(ch_slice(x, 2, (int64_t[]){0, 0}, (int64_t[]){-1, WIDE})),
               ch_number(s, 2));
    ch_step_out(s, "v", c->fn(s, c->v, ids, ch_exp(x)));
}

static ch_status run_change(ch_strategy *st, change_fn fn, ch_aggregation aggregation,
                            ch_sync sync, bytes *out)
{
    change       c = {fn, var(st, "v", ch_shape_of(IDS, WIDE), sync, aggregation)};
    ch_function *f = t_function(change_var, &c);
    ch_tuple    *in = batch(ch_strategy_replicas(st), 0), *results = NULL;
    ch_status    rc = ch_strategy_run(st, f, in, &results);

    out->n = 0;
    for (int r = 0; rc == CH_OK && r < ch_strategy_replicas(st); r++) {
        ch_tensor *t = NULL;

        add(out, ch_value_at(ch_tuple_at(results, 0), r));
        t_ok(ch__var_get(c.v, &t));
        add(out, t);
        ch_tensor_unref(t);
    }
    ch_tuple_unref(in);
    ch_tuple_unref(results);
    ch_function_unref(f);
    ch_var_unref(c.v);
    return rc;
}

static ch_strategy *mirrored(int n)
{
    static const char *const name[] = {"TPU:0", "TPU:1", "TPU:2", "TPU:3",
                                       "TPU:4", "TPU:5", "TPU:6", "TPU:7"};
    ch_strategy             *st = NULL;

    t_ok(ch_strategy_mirrored(&(ch_mirrored_options){.n_devices = n, .device = name}, &st));
    return st;
}

/* TPV-11, TPV-12, TPV-14: every change of a variable has the result, or the error, that it has
 * under Mirrored. */
static void changes_of_variables_are_those_under_mirrored(void **state)
{
    static const struct {
        ch_sync        sync;
        ch_aggregation aggregation;
    } kind[] = {{CH_SYNC_AUTO, CH_AGGREGATE_NONE},    {CH_SYNC_AUTO, CH_AGGREGATE_SUM},
                {CH_SYNC_AUTO, CH_AGGREGATE_MEAN},    {CH_SYNC_AUTO, CH_AGGREGATE_FIRST},
                {CH_SYNC_ON_READ, CH_AGGREGATE_SUM},  {CH_SYNC_ON_READ, CH_AGGREGATE_MEAN},
                {CH_SYNC_ON_READ, CH_AGGREGATE_FIRST}};
    static bytes want, got;
    int          n_ok = 0, n_refused = 0;

    for (int n = 2; n <= 4; n += 2) {
        ch_strategy *under = mirrored(n);
        ch_strategy *st[] = {t_tpu(n, 8 / n, false), t_tpu(n, 8 / n, true), t_tpu(n, 1, true)};

        for (int k = 0; k < 7; k++)
            for (int i = 0; i < CHANGES; i++) {
                ch_status rc =
                    run_change(under, changes[i], kind[k].aggregation, kind[k].sync, &want);

                n_ok += rc == CH_OK;
                n_refused += rc != CH_OK;
                for (int m = 0; m < 3; m++) {
                    ch_status now =
                        run_change(st[m], changes[i], kind[k].aggregation, kind[k].sync, &got);

                    if (now != rc || got.n != want.n || memcmp(got.at, want.at, want.n) != 0)
                        fail_msg("change %d of kind %d under %s: %s, want %s", i, k,
                                 ch_strategy_label(st[m]), ch_status_name(now),
                                 ch_status_name(rc));
                }
            }
        for (int m = 0; m < 3; m++)
            ch_strategy_unref(st[m]);
        ch_strategy_unref(under);
    }
    assert_true(n_ok > 60 && n_refused > 20);
    (void)state;
}

/* ---- two layers on two cores ---- */

typedef struct layers {
    ch_var       *w[2];
    ch_optimizer *adam;
} layers;

static ch_node *layer(ch_step *s, const layers *l, int i, ch_node *x)
{
    ch_node *y;

    assert_int_equal(ch_logical_device_enter(NULL, i), CH_OK);
    y = ch_tanh(ch_matmul(x, false, ch_var_read(s, l->w[i]), false));
    if (i == 1)
        y = ch_loss_average(ch_sum(ch_square(y), 1, (int[]){1}, false), NULL);
    ch_logical_device_leave();
    return y;
}

static void train_layers(ch_step *s, void *arg)
{
    layers  *l = arg;
    ch_node *loss = layer(s, l, 1, layer(s, l, 0, ch_step_in(s, 0)));

    ch_optimizer_minimize(l->adam, s, loss, 2, l->w);
    ch_step_out(s, "loss", loss);
}

/* Checks that only this core of each replica has the variable, and that it has all of it. */
static void is_only_on(const ch_var *v, int core)
{
    int n_cores = v->tiles != NULL ? v->tiles->n_cores : 1;

    for (int i = 0; i < ch__var_tensors(v); i++) {
        assert_int_equal(v->copy[i] != NULL, n_cores == 1 || i % n_cores == core);
        if (v->copy[i] != NULL)
            assert_true(ch_shape_equal(ch_tensor_shape(v->copy[i]), ch_var_shape(v)));
    }
}

/* Trains 5 steps. Takes over the reference to the strategy. */
static void train_on(ch_strategy *st, bytes *out, ch_layout_report *planned,
                     ch_layout_report *measured)
{
    static const ch_shape shape[] = {{.rank = 2, .dim = {IN, UNITS}},
                                     {.rank = 2, .dim = {UNITS, CLASSES}}};
    layers                l = {.adam = NULL};
    ch_function          *f = t_function(train_layers, &l);

    out->n = 0;
    t_ok(ch_strategy_enter(st));
    for (int i = 0; i < 2; i++) {
        t_ok(ch_logical_device_enter(NULL, i));
        l.w[i] = var(NULL, i == 0 ? "w" : "u", shape[i], CH_SYNC_AUTO, CH_AGGREGATE_NONE);
        ch_logical_device_leave();
    }
    t_ok(ch_optimizer_adam(0.01, NULL, NULL, &l.adam));
    ch_strategy_leave();
    for (int i = 0; i < 5; i++) {
        ch_tuple *in = batch(ch_strategy_replicas(st), i), *results = NULL;

        t_ok(ch_strategy_run(st, f, in, &results));
        add(out, ch_value_at(ch_tuple_at(results, 0), 0));
        ch_tuple_unref(in);
        ch_tuple_unref(results);
    }
    t_ok(ch_function_report_layouts(f, planned, measured));
    for (int i = 0; i < 2; i++) {
        ch_var *all[3] = {l.w[i], ch_optimizer_slot(l.adam, l.w[i], "m"),
                          ch_optimizer_slot(l.adam, l.w[i], "v")};

        for (int k = 0; k < 3; k++) {
            ch_tensor *t = NULL;

            is_only_on(all[k], i);
            t_ok(ch_var_get(all[k], &t));
            add(out, t);
            ch_tensor_unref(t);
        }
    }
    for (int i = 0; i < 2; i++)
        ch_var_unref(l.w[i]);
    ch_optimizer_unref(l.adam);
    ch_function_unref(f);
    ch_strategy_unref(st);
}

/* ANN-10, ANN-16, ANN-17, ANN-21, TPV-4: the weights and slots of layer i are on core i and
 * nowhere else. In a step, replica 0, which has one row, moves one activation forward and one
 * gradient back. */
static void layers_on_two_cores_move_an_activation_and_a_gradient(void **state)
{
    static bytes     want, got;
    ch_layout_report planned, measured;

    for (int n = 1; n <= 4; n *= 2)
        for (int n_cores = 2; n * n_cores <= T_TPUS; n_cores *= 2) {
            const ch_traffic *t = &measured.all_reduce;

            train_on(t_tpu(n, 1, false), &want, &planned, &measured);
            train_on(t_tpu(n, n_cores, false), &got, &planned, &measured);
            assert_int_equal(got.n, want.n);
            assert_memory_equal(got.at, want.at, want.n);
            assert_int_equal(measured.other.count, 2);
            assert_int_equal(measured.other.bytes, 2 * UNITS * sizeof(float));
            assert_int_equal(planned.other.bytes, measured.other.bytes);
            for (int i = 0; i < 5; i++) /* the five patterns before `other` */
                assert_int_equal(t[i].bytes, 0);
            if (n > 1)
                assert_true(measured.cross_replica.bytes > 0);
        }
    (void)state;
}

/* ---- host calls ---- */

typedef struct host {
    atomic_int calls[T_TPUS], gradients[T_TPUS]; /* by replica */
    atomic_int wrong;
} host;

/* The first number of each input is that of the replica. */
static int replica_of(const ch_tensor *x)
{
    return (int)((const float *)ch_tensor_data(x))[0];
}

static ch_status plus_3(void *arg, int n_in, ch_tensor *const *in, int n_out,
                        ch_tensor *const *out)
{
    host        *h = arg;
    const float *x = ch_tensor_data(in[0]);
    float       *y = ch_tensor_data_mut(out[0]);

    h->calls[replica_of(in[0])]++;
    h->wrong += n_in != 2 || n_out != 1 || ch_tensor_shape(in[0]).dim[1] != UNITS;
    for (int64_t i = 0; i < ch_tensor_count(in[0]); i++)
        y[i] = x[i] + 3 * (float)((const int32_t *)ch_tensor_data(in[1]))[0];
    return CH_OK;
}

/* Triples the gradient, to show that it is this function's. */
static ch_status gradient_of_plus_3(void *arg, int n_in, ch_tensor *const *in, int n_out,
                                    ch_tensor *const *out)
{
    host        *h = arg;
    const float *dy = ch_tensor_data(in[2]);

    h->gradients[replica_of(in[0])]++;
    h->wrong += n_in != 3 || n_out != 1;
    for (int64_t i = 0; i < ch_tensor_count(out[0]); i++)
        ((float *)ch_tensor_data_mut(out[0]))[i] = 3 * dy[i];
    return CH_OK;
}

static void call_host(ch_step *s, void *h)
{
    ch_node     *x = columns(ch_step_in(s, 0)), *y = NULL;
    ch_node     *in[2] = {x, ch_cast(ch_number(s, 1), CH_I32)};
    ch_host_spec spec = {.name = "plus_3",
                         .fn = plus_3,
                         .arg = h,
                         .n_out = 1,
                         .out = {{.dtype = CH_F32, .like = x}},
                         .gradient = gradient_of_plus_3};

    ch_host_call(s, &spec, 2, in, &y);
    ch_step_out(s, "y", columns(y));
    ch_step_out(s, "d", ch_gradient(ch_sum_all(ch_square(y)), x));
}

/* HST-1, HST-3, HST-4: a host call gets the whole of a split value, once for each replica; its
 * gradient is a host call too. */
static void host_call_and_its_gradient_run_once_for_each_replica(void **state)
{
    for (int n = 1; n <= T_TPUS; n *= 2)
        for (int spmd = 0; spmd < 2; spmd++) {
            ch_strategy *st = t_tpu(n, T_TPUS / n, spmd);
            host         h = {.wrong = 0};
            ch_function *f = t_function(call_host, &h);
            ch_tensor   *x[T_TPUS];
            ch_tuple    *in, *out = NULL;

            for (int r = 0; r < n; r++) {
                x[r] = whole(ch_shape_of(r + 1, UNITS), 3);
                ((float *)ch_tensor_data_mut(x[r]))[0] = (float)r;
            }
            in = t_each(n, x);
            t_ok(ch_strategy_run(st, f, in, &out));
            for (int r = 0; r < n; r++) {
                const float *from = ch_tensor_data(ch_value_at(ch_tuple_at(in, 0), r));

                assert_int_equal(h.calls[r], 1);
                assert_int_equal(h.gradients[r], 1);
                for (int i = 0; i < (r + 1) * UNITS; i++) {
                    assert_true(t_floats(out, 0, r)[i] == from[i] + 3);
                    assert_true(t_floats(out, 1, r)[i] == 6 * (from[i] + 3));
                }
            }
            assert_int_equal(h.wrong, 0);
            ch_tuple_unref(in);
            ch_tuple_unref(out);
            ch_function_unref(f);
            ch_strategy_unref(st);
        }
    (void)state;
}

static ch_status use_var(void *v, int n_in, ch_tensor *const *in, int n_out,
                         ch_tensor *const *out)
{
    ch_tensor *t = NULL;

    (void)n_in, (void)in, (void)n_out, (void)out;
    return ch_var_get(v, &t);
}

static void call_with_var(ch_step *s, void *v)
{
    ch_host_call(s, &(ch_host_spec){.name = "use_var", .fn = use_var, .arg = v}, 0, NULL, NULL);
}

/* HST-2 */
static void host_function_must_not_use_variables(void **state)
{
    for (int spmd = 0; spmd < 2; spmd++) {
        ch_strategy *st = t_tpu(2, 4, spmd);
        ch_var      *v = var(st, "v", ch_shape_of(2), CH_SYNC_AUTO, CH_AGGREGATE_NONE);
        ch_function *f = t_function(call_with_var, v);

        t_refused(ch_strategy_run(st, f, NULL, NULL), CH_FAILED_PRECONDITION,
                  "a step is running on this thread", "use_var");
        ch_function_unref(f);
        ch_var_unref(v);
        ch_strategy_unref(st);
    }
    (void)state;
}

/* ---- batches of any size ---- */

static void means(ch_step *s, void *arg)
{
    ch_node *x = ch_cast(ch_step_in(s, 0), CH_F32);

    (void)arg;
    ch_step_out(s, "mean", ch_mean_all(x));
    ch_step_out(s, "size", ch_identity(ch_rows(x)));
    ch_step_out(s, "x", ch_identity(x));
}

/* DYN-6: [5, 6, 7] in batches of 4 on two replicas. */
static void short_batch_has_the_means_and_sizes_of_its_own_rows(void **state)
{
    for (int n_cores = 1; n_cores <= 4; n_cores *= 2)
        for (int spmd = 0; spmd < 2; spmd++) {
            ch_strategy *st = t_tpu(2, n_cores, spmd);
            ch_dataset  *d = ch_dataset_batch(ch_dataset_range(5, 8, 1), 4, NULL);
            ch_function *f = t_function(means, NULL);
            ch_iterator *it = NULL;
            ch_tuple    *in = NULL, *out = NULL;
            ch_tensor   *t = NULL;

            t_ok(ch_strategy_distribute_dataset(st, d, NULL, &it));
            t_ok(ch_iterator_next(it, &in));
            t_ok(ch_strategy_run(st, f, in, &out));
            t_is(ch_value_at(ch_tuple_at(out, 0), 0), CH_F32, ch_shape_scalar(),
                 &(double){5.5});
            t_is(ch_value_at(ch_tuple_at(out, 0), 1), CH_F32, ch_shape_scalar(), &(double){7});
            t_is(ch_value_at(ch_tuple_at(out, 1), 0), CH_I64, ch_shape_scalar(), &(double){2});
            t_is(ch_value_at(ch_tuple_at(out, 1), 1), CH_I64, ch_shape_scalar(), &(double){1});
            t_ok(ch_strategy_reduce(st, CH_MEAN, ch_tuple_at(out, 2), 0, &t));
            t_gave_number(t, CH_F32, 6);
            ch_tuple_unref(in);
            ch_tuple_unref(out);
            ch_iterator_unref(it);
            ch_function_unref(f);
            ch_dataset_unref(d);
            ch_strategy_unref(st);
        }
    (void)state;
}

/* ---- any number of cores ---- */

/* ANN-7, ANN-20: 3, 5, 6 and 7 cores, which divide neither rows nor columns. */
static void cores_of_any_number_compute_the_same(void **state)
{
    static const int at[] = {7, 2, 5, 0, 3, 6, 1};
    static bytes     want, got;

    for (int p = 0; p < PROGRAMS; p++) {
        run(t_tpu_on(1, 1, at, false), p, &want);
        for (int n = 1; n <= 7; n += n == 1 || n == 3 ? 2 : 1)
            for (int spmd = 0; spmd <= !programs[p].assigns; spmd++) {
                run(t_tpu_on(1, n, at, spmd), p, &got);
                assert_int_equal(got.n, want.n);
                assert_memory_equal(got.at, want.at, want.n);
            }
    }
    (void)state;
}

static void ignore(const ch_log_record *r, void *arg)
{
    (void)r, (void)arg;
}

static int eight_tpus_that_compare(void **state)
{
    ch_log_set_sink(ignore, NULL, CH_LOG_WARNING); /* copies-differ, many times */
    t_ok(ch__config_set("check_copies", "true"));
    return t_eight_tpus(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_have_the_same_bits_in_both_modes),
        cmocka_unit_test(changes_of_variables_are_those_under_mirrored),
        cmocka_unit_test(layers_on_two_cores_move_an_activation_and_a_gradient),
        cmocka_unit_test(host_call_and_its_gradient_run_once_for_each_replica),
        cmocka_unit_test(host_function_must_not_use_variables),
        cmocka_unit_test(short_batch_has_the_means_and_sizes_of_its_own_rows),
        cmocka_unit_test(cores_of_any_number_compute_the_same),
    };

    return cmocka_run_group_tests(tests, eight_tpus_that_compare, NULL);
}

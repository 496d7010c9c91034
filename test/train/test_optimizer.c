/* test/train/test_optimizer.c -- optimizers: rules, options, slots, schedules and 16-bit
 * training.
 *
 * The sequences of ten steps are those of test/golden/optimizers.py, which does not use Cohort.
 * Most other tests train a small model, whose table has sparse gradients and whose weights have
 * dense gradients, on one or two replicas.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../strategy/help.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../golden/optimizers.inc"
#include "base/mem.h"
#include "tensor/tensor.h"

/* ---- helpers ---- */

static ch_tensor *tensor_of(ch_dtype dtype, ch_shape shape, const double *v)
{
    ch_tensor *t = NULL;

    t_ok(ch_tensor_new(dtype, shape, &t));
    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        ch__store(dtype, (char *)ch_tensor_data_mut(t) + (size_t)i * ch_dtype_bytes(dtype),
                  v[i]);
    return t;
}

static ch_var *var_of(ch_strategy *st, const char *name, ch_dtype dtype, ch_shape shape,
                      const double *v)
{
    return t_var(st, name, tensor_of(dtype, shape, v));
}

static double value_at(ch_var *v, int64_t i)
{
    ch_tensor *t = NULL;
    double     x;

    t_ok(ch_var_get(v, &t));
    assert_true(i < ch_tensor_count(t));
    x = ch__load(ch_var_dtype(v),
                 (const char *)ch_tensor_data(t) + (size_t)i * ch_dtype_bytes(ch_var_dtype(v)));
    ch_tensor_unref(t);
    return x;
}

static void assert_values(ch_var *v, const double *want, double tolerance, const char *what,
                          int step)
{
    int64_t n = ch_shape_count(ch_var_shape(v));

    for (int64_t i = 0; i < n; i++) {
        double x = value_at(v, i);

        if (!(fabs(x - want[i]) <= tolerance * (1 + fabs(want[i]))))
            fail_msg("%s, step %d: element %d of %s is %.9g, want %.9g", what, step, (int)i,
                     ch_var_name(v), x, want[i]);
    }
}

static int64_t iterations_of(ch_optimizer *o)
{
    int64_t n = -1;

    t_ok(ch_optimizer_iterations(o, &n));
    return n;
}

static int64_t skipped_of(ch_optimizer *o)
{
    int64_t n = -1;

    t_ok(ch_optimizer_skipped(o, &n));
    return n;
}

/* ---- gradients that are inputs ---- */

typedef struct job {
    ch_optimizer *o;
    ch_var       *v[2];
    int           n;
} job;

/* Inputs: the gradient of each variable. */
static void apply_dense(ch_step *s, void *arg)
{
    job     *j = arg;
    ch_node *d[2];

    for (int i = 0; i < j->n; i++)
        d[i] = ch_step_in(s, i);
    ch_optimizer_apply(j->o, s, j->n, j->v, d);
}

/* Inputs: ids and rows. */
static void apply_sparse(ch_step *s, void *arg)
{
    job     *j = arg;
    ch_node *d =
        ch_sparse_rows(ch_step_in(s, 0), ch_step_in(s, 1), ch_var_shape(j->v[0]).dim[0]);

    ch_optimizer_apply(j->o, s, 1, j->v, &d);
}

static ch_function *static_function(ch_step_fn step, void *arg)
{
    ch_function *f = t_function(step, arg);

    ch_function_static_rows(f);
    return f;
}

static ch_status try_with(ch_function *f, int n, ch_tensor *const *t)
{
    ch_tuple *in = t_tuple(n, t);
    ch_status rc = ch_strategy_run(NULL, f, in, NULL);

    ch_tuple_unref(in);
    return rc;
}

static void run_with(ch_function *f, int n, ch_tensor *const *t)
{
    t_ok(try_with(f, n, t));
}

/* ---- ten steps ---- */

static ch_status make_case(const char *name, ch_optimizer **out)
{
    ch_optimizer_options decay = {.weight_decay = 0.05};
    double               rate = 0.1;

    if (strcmp(name, "sgd") == 0)
        return ch_optimizer_sgd(rate, NULL, NULL, out);
    if (strcmp(name, "sgd_decay") == 0)
        return ch_optimizer_sgd(rate, NULL, &decay, out);
    if (strcmp(name, "momentum") == 0)
        return ch_optimizer_sgd(rate, &(ch_optimizer_sgd_options){.momentum = 0.9}, NULL, out);
    if (strcmp(name, "nesterov") == 0)
        return ch_optimizer_sgd(
            rate, &(ch_optimizer_sgd_options){.momentum = 0.9, .nesterov = true}, NULL, out);
    if (strcmp(name, "adagrad") == 0)
        return ch_optimizer_adagrad(rate, NULL, NULL, out);
    if (strcmp(name, "adagrad_rows") == 0)
        return ch_optimizer_adagrad(
            rate,
            &(ch_optimizer_adagrad_options){.initial = 0.2, .epsilon = 1e-5, .row_wise = true},
            NULL, out);
    if (strcmp(name, "rmsprop") == 0)
        return ch_optimizer_rmsprop(rate, NULL, NULL, out);
    if (strcmp(name, "rmsprop_momentum") == 0)
        return ch_optimizer_rmsprop(
            rate, &(ch_optimizer_rmsprop_options){.rho = 0.8, .momentum = 0.7}, NULL, out);
    if (strcmp(name, "rmsprop_centered") == 0)
        return ch_optimizer_rmsprop(
            rate, &(ch_optimizer_rmsprop_options){.epsilon = 1e-3, .centered = true}, NULL,
            out);
    if (strcmp(name, "rmsprop_both") == 0)
        return ch_optimizer_rmsprop(
            rate,
            &(ch_optimizer_rmsprop_options){.epsilon = 1e-3, .centered = true, .momentum = 0.5},
            NULL, out);
    if (strcmp(name, "adam") == 0)
        return ch_optimizer_adam(rate, NULL, NULL, out);
    if (strcmp(name, "adam_other") == 0)
        return ch_optimizer_adam(
            rate, &(ch_optimizer_adam_options){.beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-4},
            NULL, out);
    if (strcmp(name, "amsgrad") == 0)
        return ch_optimizer_adam(
            rate, &(ch_optimizer_adam_options){.beta2 = 0.5, .amsgrad = true}, NULL, out);
    if (strcmp(name, "adamw") == 0)
        return ch_optimizer_adamw(rate, NULL, NULL, out);
    if (strcmp(name, "adamax") == 0)
        return ch_optimizer_adamax(rate, NULL, NULL, out);
    if (strcmp(name, "ftrl") == 0)
        return ch_optimizer_ftrl(rate, NULL, NULL, out);
    if (strcmp(name, "ftrl_other") == 0)
        return ch_optimizer_ftrl(rate,
                                 &(ch_optimizer_ftrl_options){.initial = 0.3,
                                                              .power = -0.7,
                                                              .l1 = 0.02,
                                                              .l2 = 0.03,
                                                              .l2_shrinkage = 0.04,
                                                              .beta = 0.5},
                                 NULL, out);
    assert_string_equal(name, "lamb");
    return ch_optimizer_lamb(rate, NULL, NULL, out);
}

static void check_slots(job *j, const char *const *name, const double *const *want,
                        double tolerance, const char *what)
{
    for (int i = 0; i < 3 && name[i] != NULL; i++) {
        ch_var *slot = ch_optimizer_slot(j->o, j->v[0], name[i]);

        assert_non_null(slot);
        assert_values(slot, want[i], tolerance, what, G_STEPS);
    }
}

static void ten_steps(const struct golden *c, ch_dtype dtype, bool sparse)
{
    const int    cells = G_ROWS * G_WIDTH, listed = G_IDS * G_WIDTH;
    double       tolerance = dtype == CH_F64 ? 1e-10 : 2e-5;
    job          j = {.n = 1};
    ch_function *f = static_function(sparse ? apply_sparse : apply_dense, &j);

    t_ok(make_case(c->name, &j.o));
    j.v[0] = var_of(NULL, "w", dtype, ch_shape_of(G_ROWS, G_WIDTH), g_first);
    for (int t = 0; t < G_STEPS; t++) {
        double ids[G_IDS];

        for (int i = 0; i < G_IDS; i++)
            ids[i] = (double)g_ids[t * G_IDS + i];
        if (sparse)
            run_with(f, 2,
                     (ch_tensor *[]){
                         tensor_of(t % 2 != 0 ? CH_I32 : CH_I64, ch_shape_of(G_IDS), ids),
                         tensor_of(dtype, ch_shape_of(G_IDS, G_WIDTH), g_rows + t * listed)});
        else
            run_with(f, 1,
                     (ch_tensor *[]){
                         tensor_of(dtype, ch_shape_of(G_ROWS, G_WIDTH), g_dense + t * cells)});
        assert_values(j.v[0], (sparse ? c->sparse : c->dense) + t * cells, tolerance, c->name,
                      t);
        assert_int_equal(iterations_of(j.o), t + 1);
    }
    check_slots(&j, c->slot, sparse ? c->sparse_slot : c->dense_slot, tolerance, c->name);
    ch_function_unref(f);
    ch_optimizer_unref(ch_optimizer_ref(j.o));
    ch_optimizer_unref(j.o);
    ch_var_unref(j.v[0]);
}

static void optimizer_rules_agree_with_numpy_for_ten_steps(void **state)
{
    for (size_t i = 0; i < sizeof(g_cases) / sizeof(g_cases[0]); i++) {
        ten_steps(&g_cases[i], CH_F32, false);
        ten_steps(&g_cases[i], CH_F64, false);
    }
    (void)state;
}

static void optimizer_rules_agree_with_numpy_for_ten_sparse_steps(void **state)
{
    for (size_t i = 0; i < sizeof(g_cases) / sizeof(g_cases[0]); i++) {
        ten_steps(&g_cases[i], CH_F32, true);
        ten_steps(&g_cases[i], CH_F64, true);
    }
    (void)state;
}

/* ---- a model: rows of a table, times weights ---- */

enum { TABLE = 9, WIDE = 4, OUT = 3, BATCH = 12 };

typedef struct model {
    ch_optimizer *o;
    ch_var       *v[2]; /* table and weights */
} model;

static void train(ch_step *s, void *arg)
{
    model   *m = arg;
    ch_node *x = ch_gather(ch_var_read(s, m->v[0]), ch_step_in(s, 0), 0);
    ch_node *y = ch_matmul(x, false, ch_var_read(s, m->v[1]), false);
    ch_node *miss =
        ch_cast(ch_square(ch_sub(y, ch_cast(ch_step_in(s, 1), ch_node_dtype(y)))), CH_F32);
    ch_node *loss = ch_div(ch_sum_all(miss), ch_step_global_rows(s));

    ch_optimizer_minimize(m->o, s, loss, 2, m->v);
    ch_step_out(s, "loss", ch_all_reduce(CH_SUM, loss));
}

static ch_tensor *cast_noise(ch_dtype dtype, ch_shape shape, unsigned seed)
{
    ch_tensor *t = t_noise(shape, seed), *to = NULL;

    t_ok(ch_tensor_new(dtype, shape, &to));
    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        ch__store(dtype, (char *)ch_tensor_data_mut(to) + (size_t)i * ch_dtype_bytes(dtype),
                  (double)((const float *)ch_tensor_data(t))[i]);
    ch_tensor_unref(t);
    return to;
}

static model new_model(ch_strategy *st, ch_dtype dtype, ch_optimizer *o)
{
    return (model){o,
                   {t_var(st, "table", cast_noise(dtype, ch_shape_of(TABLE, WIDE), 1)),
                    t_var(st, "w", cast_noise(dtype, ch_shape_of(WIDE, OUT), 2))}};
}

static void drop_model(model *m)
{
    ch_optimizer_unref(m->o);
    ch_var_unref(m->v[0]);
    ch_var_unref(m->v[1]);
}

/* Example i of step t: an id and its target. Row 8 is never used. */
static int64_t id_of(int t, int i)
{
    return (t * 5 + i * i) % (TABLE - 1);
}

/* Returns examples [from, to) of step t, on the device of a replica; -1: on the current
 * device. */
static void examples(int t, int from, int to, ch_tensor **out)
{
    ch_tensor *all = t_noise(ch_shape_of(BATCH, OUT), (unsigned)t + 10);
    int64_t    n = to - from, *ids;

    t_ok(ch_tensor_new(CH_I64, ch_shape_of(n), &out[0]));
    ids = ch_tensor_data_mut(out[0]);
    for (int i = from; i < to; i++)
        ids[i - from] = id_of(t, i);
    t_ok(ch_tensor_new(CH_F32, ch_shape_of(n, OUT), &out[1]));
    memcpy(ch_tensor_data_mut(out[1]), (const float *)ch_tensor_data(all) + from * OUT,
           (size_t)(n * OUT) * sizeof(float));
    ch_tensor_unref(all);
}

static float run_on(ch_function *f, int t, int from, int to)
{
    ch_tensor *x[2];
    ch_tuple  *in, *out = NULL;
    float      loss;

    examples(t, from, to, x);
    in = t_tuple(2, x);
    t_ok(ch_strategy_run(NULL, f, in, &out));
    loss = t_floats(out, 0, 0)[0];
    ch_tuple_unref(in);
    ch_tuple_unref(out);
    return loss;
}

static void assert_same_models(model *a, model *b, double tolerance)
{
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < ch_shape_count(ch_var_shape(a->v[k])); i++)
            if (!(fabs(value_at(a->v[k], i) - value_at(b->v[k], i)) <= tolerance))
                fail_msg("element %d of %s: %.9g and %.9g", (int)i, ch_var_name(a->v[k]),
                         value_at(a->v[k], i), value_at(b->v[k], i));
}

static ch_optimizer *adam_with(const ch_optimizer_options *opt)
{
    ch_optimizer *o = NULL;

    t_ok(ch_optimizer_adam(0.05, NULL, opt, &o));
    return o;
}

static ch_optimizer *sgd_with(double rate, const ch_optimizer_options *opt)
{
    ch_optimizer *o = NULL;

    t_ok(ch_optimizer_sgd(rate, NULL, opt, &o));
    return o;
}

static void optimizer_accumulate_equals_one_large_batch(void **state)
{
    const ch_optimizer_options options[] = {
        {.accumulate = 3},
        {.accumulate = 3, .nonfinite = CH_NONFINITE_SKIP, .clip_global_norm = 0.5},
        {.accumulate = 3, .clip_norm = 0.3, .loss_scale = 128},
        {.accumulate = 3, .dynamic_loss_scale = true, .average = 0.9}};

    for (int k = 0; k < 4; k++) {
        ch_optimizer_options whole = options[k];
        model                a = new_model(NULL, CH_F32, adam_with(&options[k])), b;
        ch_function         *f = t_function(train, &a), *g = t_function(train, &b);

        whole.accumulate = 0;
        b = new_model(NULL, CH_F32, adam_with(&whole));
        for (int t = 0; t < 4; t++) {
            for (int i = 0; i < 3; i++) {
                assert_int_equal(iterations_of(a.o), t);
                run_on(f, t, i * 4, i * 4 + 4);
            }
            run_on(g, t, 0, BATCH);
            assert_same_models(&a, &b, 1e-6);
        }
        assert_int_equal(iterations_of(a.o), 4);
        assert_int_equal(ch_function_recordings(f), 1);
        ch_function_unref(f);
        ch_function_unref(g);
        drop_model(&a);
        drop_model(&b);
    }
    (void)state;
}

/* ---- replicas ---- */

static ch_strategy *two_devices(void)
{
    ch_strategy *st = NULL;

    t_ok(ch_strategy_mirrored(
        &(ch_mirrored_options){.n_devices = 2,
                               .device = (const char *const[]){"GPU:0", "GPU:1"}},
        &st));
    return st;
}

static ch_tensor *moved(ch_tensor *t, const char *device)
{
    ch_device *d = NULL;
    ch_tensor *there = NULL;

    t_ok(ch_device_find(device, &d));
    t_ok(ch_tensor_to(t, d, &there));
    ch_tensor_unref(t);
    return there;
}

/* Runs the first `cut` examples on a replica and the rest on the other. */
static void run_on_two(ch_strategy *st, ch_function *f, int t, int cut)
{
    ch_tensor *a[2], *b[2];
    ch_value  *v[2];
    ch_tuple  *in = NULL;

    examples(t, 0, cut, a);
    examples(t, cut, BATCH, b);
    for (int i = 0; i < 2; i++) {
        a[i] = moved(a[i], "GPU:0");
        b[i] = moved(b[i], "GPU:1");
        t_ok(ch_value_new(CH_PER_REPLICA, 2, (ch_tensor *[]){a[i], b[i]}, &v[i]));
        ch_tensor_unref(a[i]);
        ch_tensor_unref(b[i]);
    }
    t_ok(ch_tuple_new(2, v, NULL, &in));
    ch_value_unref(v[0]);
    ch_value_unref(v[1]);
    t_ok(ch_strategy_run(st, f, in, NULL));
    ch_tuple_unref(in);
}

static void optimizer_on_two_replicas_equals_one_with_the_whole_batch(void **state)
{
    const int                  cut[] = {6, 4, 12, 0, 6, 11};
    const ch_optimizer_options options[] = {
        {0}, {.clip_global_norm = 0.5, .nonfinite = CH_NONFINITE_SKIP}, {.accumulate = 2}};

    for (int k = 0; k < 3; k++) {
        ch_strategy *st = two_devices();
        model        a = new_model(st, CH_F32, adam_with(&options[k]));
        model        b = new_model(NULL, CH_F32, adam_with(&options[k]));
        ch_function *f = t_function(train, &a), *g = t_function(train, &b);

        for (int t = 0; t < 6; t++) {
            run_on_two(st, f, t, cut[t]);
            run_on(g, t, 0, BATCH);
            assert_same_models(&a, &b, 2e-6);
        }
        for (int i = 0; i < TABLE * WIDE; i++)
            assert_true(t_copy_of(a.v[0], 0, i) == t_copy_of(a.v[0], 1, i));
        assert_int_equal(ch_function_recordings(f), 1);
        ch_function_unref(f);
        ch_function_unref(g);
        drop_model(&a);
        drop_model(&b);
        ch_strategy_unref(st);
    }
    (void)state;
}

/* ---- the rate ---- */

static void rate_out(ch_step *s, void *arg)
{
    job     *j = arg;
    ch_node *d = ch_step_in(s, 0);

    ch_step_out(s, "rate", ch_cast(ch_optimizer_rate_node(j->o, s), CH_F32));
    ch_optimizer_apply(j->o, s, 1, j->v, &d);
}

static void optimizer_set_rate_takes_effect_without_recording_again(void **state)
{
    job          j = {.o = sgd_with(0.5, NULL), .n = 1};
    ch_function *f = static_function(apply_dense, &j);
    double       rate;

    j.v[0] = var_of(NULL, "w", CH_F32, ch_shape_of(1), (double[]){8});
    t_ok(ch_optimizer_rate(j.o, &rate));
    assert_true(rate == 0.5);
    t_ok(ch_optimizer_set_rate(j.o, 0.25)); /* before the first step */
    run_with(f, 1, (ch_tensor *[]){tensor_of(CH_F32, ch_shape_of(1), (double[]){4})});
    assert_true(value_at(j.v[0], 0) == 7);
    t_ok(ch_optimizer_set_rate(j.o, 2));
    t_ok(ch_optimizer_rate(j.o, &rate));
    assert_true(rate == 2);
    run_with(f, 1, (ch_tensor *[]){tensor_of(CH_F32, ch_shape_of(1), (double[]){4})});
    assert_true(value_at(j.v[0], 0) == -1);
    assert_int_equal(ch_function_recordings(f), 1);
    t_refused(ch_optimizer_set_rate(j.o, -1), CH_INVALID_ARGUMENT, "sgd", "rate");
    ch_function_unref(f);
    ch_optimizer_unref(j.o);
    ch_var_unref(j.v[0]);
    (void)state;
}

static void optimizer_schedule_follows_the_steps_that_were_applied(void **state)
{
    ch_schedule  p = ch_schedule_warm_up(ch_schedule_polynomial(0.5, 4, 0.125, 1), 2);
    job          j = {.o = sgd_with(
                          0, &(ch_optimizer_options){.schedule = &p, .nonfinite = CH_NONFINITE_SKIP}),
                      .n = 1};
    ch_function *f = static_function(rate_out, &j);
    double       w = 8;

    j.v[0] = var_of(NULL, "w", CH_F32, ch_shape_of(1), &w);
    for (int t = 0, applied = 0; t < 9; t++) {
        bool      bad = t == 3 || t == 6;
        double    rate = ch_schedule_at(&p, applied), is;
        ch_tuple *in = t_tuple(
            1, (ch_tensor *[]){tensor_of(CH_F32, ch_shape_of(1), (double[]){bad ? NAN : 0.5})});
        ch_tuple *out = NULL;

        t_ok(ch_optimizer_rate(j.o, &is));
        assert_true(is == rate);
        t_ok(ch_strategy_run(NULL, f, in, &out));
        assert_float_equal(t_floats(out, 0, 0)[0], rate, 1e-7);
        w -= bad ? 0 : rate * 0.5;
        applied += !bad;
        assert_float_equal(value_at(j.v[0], 0), w, 1e-6);
        assert_int_equal(iterations_of(j.o), applied);
        ch_tuple_unref(in);
        ch_tuple_unref(out);
    }
    t_refused(ch_optimizer_set_rate(j.o, 1), CH_FAILED_PRECONDITION, "sgd", "schedule");
    ch_function_unref(f);
    ch_optimizer_unref(j.o);
    ch_var_unref(j.v[0]);
    (void)state;
}

/* ---- slots ---- */

static void optimizer_slots_are_variables_with_names(void **state)
{
    model          m = new_model(NULL, CH_F32,
                                 adam_with(&(ch_optimizer_options){.name = "mine", .average = 0.5}));
    ch_function   *f = t_function(train, &m);
    ch_var *const *all = NULL;
    int            n;

    assert_null(ch_optimizer_slot(m.o, m.v[0], "m"));
    assert_int_equal(ch_optimizer_vars(m.o, &all), 0);
    run_on(f, 0, 0, BATCH);
    assert_string_equal(ch_var_name(ch_optimizer_slot(m.o, m.v[0], "m")), "table/mine/m");
    assert_string_equal(ch_var_name(ch_optimizer_slot(m.o, m.v[1], "average")),
                        "w/mine/average");
    assert_null(ch_optimizer_slot(m.o, m.v[0], "master"));
    assert_null(ch_optimizer_slot(m.o, m.v[0], "none"));
    n = ch_optimizer_vars(m.o, &all);
    assert_int_equal(n, 2 + 2 * 3);
    assert_string_equal(ch_var_name(all[0]), "mine/iterations");
    assert_string_equal(ch_var_name(all[1]), "mine/rate");
    for (int i = 0; i < n; i++)
        assert_false(ch_var_is_trainable(all[i]));
    run_on(f, 1, 0, 5); /* a step of another size uses the same slots */
    assert_int_equal(ch_optimizer_vars(m.o, &all), n);
    /* Row 8 was never used: neither it nor its slots have changed. */
    for (int i = 0; i < WIDE; i++)
        assert_true(value_at(ch_optimizer_slot(m.o, m.v[0], "v"), 8 * WIDE + i) == 0);
    ch_function_unref(f);
    drop_model(&m);
    (void)state;
}

static void optimizer_average_follows_the_variable(void **state)
{
    job          j = {.o = sgd_with(
                          1, &(ch_optimizer_options){.average = 0.75, .nonfinite = CH_NONFINITE_SKIP}),
                      .n = 1};
    ch_function *f = static_function(apply_dense, &j);
    double       w = 8, average = 8;

    j.v[0] = var_of(NULL, "w", CH_F32, ch_shape_of(1), &w);
    for (int t = 0; t < 5; t++) {
        double g = t == 2 ? INFINITY : t;

        run_with(f, 1, (ch_tensor *[]){tensor_of(CH_F32, ch_shape_of(1), &g)});
        w -= t == 2 ? 0 : g;
        average = t == 2 ? average : 0.75 * average + 0.25 * w;
        assert_float_equal(value_at(ch_optimizer_slot(j.o, j.v[0], "average"), 0), average,
                           1e-6);
    }
    ch_function_unref(f);
    ch_optimizer_unref(j.o);
    ch_var_unref(j.v[0]);
    (void)state;
}

/* ---- gradients that are not finite ---- */

static void optimizer_nonfinite_policy_passes_skips_or_stops(void **state)
{
    for (int policy = CH_NONFINITE_PASS; policy <= CH_NONFINITE_STOP; policy++) {
        ch_optimizer_options opt = {.nonfinite = (ch_nonfinite)policy};
        job                  j = {.o = adam_with(&opt), .n = 2};
        ch_function         *f = static_function(apply_dense, &j);
        ch_status            rc;

        j.v[0] = var_of(NULL, "fine", CH_F32, ch_shape_of(1), (double[]){1});
        j.v[1] = var_of(NULL, "odd", CH_F32, ch_shape_of(2), (double[]){1, 1});
        run_with(f, 2,
                 (ch_tensor *[]){tensor_of(CH_F32, ch_shape_of(1), (double[]){1}),
                                 tensor_of(CH_F32, ch_shape_of(2), (double[]){1, 1})});
        rc = try_with(
            f, 2,
            (ch_tensor *[]){tensor_of(CH_F32, ch_shape_of(1), (double[]){1}),
                            tensor_of(CH_F32, ch_shape_of(2), (double[]){1, INFINITY})});
        if (policy == CH_NONFINITE_STOP) {
            t_refused(rc, CH_INVALID_ARGUMENT, "gradient of odd", "Inf at index (1)");
        } else {
            t_ok(rc);
        }
        assert_int_equal(iterations_of(j.o), policy == CH_NONFINITE_PASS ? 2 : 1);
        assert_int_equal(skipped_of(j.o), policy == CH_NONFINITE_SKIP);
        assert_float_equal(value_at(j.v[0], 0), policy == CH_NONFINITE_PASS ? 0.9 : 0.95, 1e-4);
        assert_true(isfinite(value_at(j.v[1], 1)) == (policy != CH_NONFINITE_PASS));
        ch_function_unref(f);
        ch_optimizer_unref(j.o);
        ch_var_unref(j.v[0]);
        ch_var_unref(j.v[1]);
    }
    (void)state;
}

/* ---- clipping ---- */

static void check_clipped(const ch_optimizer_options *opt, const double *a, const double *b)
{
    job          j = {.o = sgd_with(1, opt), .n = 2};
    ch_function *f = static_function(apply_dense, &j);

    j.v[0] = var_of(NULL, "a", CH_F32, ch_shape_of(2), (double[]){0, 0});
    j.v[1] = var_of(NULL, "b", CH_F64, ch_shape_of(1), (double[]){0});
    run_with(f, 2,
             (ch_tensor *[]){tensor_of(CH_F32, ch_shape_of(2), (double[]){3, -4}),
                             tensor_of(CH_F64, ch_shape_of(1), (double[]){12})});
    assert_values(j.v[0], a, 1e-6, "clipped", 0);
    assert_values(j.v[1], b, 1e-6, "clipped", 0);
    ch_function_unref(f);
    ch_optimizer_unref(j.o);
    ch_var_unref(j.v[0]);
    ch_var_unref(j.v[1]);
}

static void optimizer_clips_gradients_by_value_norm_or_global_norm(void **state)
{
    check_clipped(&(ch_optimizer_options){.clip_value = 3.5}, (double[]){-3, 3.5},
                  (double[]){-3.5});
    check_clipped(&(ch_optimizer_options){.clip_norm = 10}, (double[]){-3, 4}, (double[]){-10});
    check_clipped(&(ch_optimizer_options){.clip_norm = 2.5}, (double[]){-1.5, 2},
                  (double[]){-2.5});
    check_clipped(&(ch_optimizer_options){.clip_global_norm = 6.5}, (double[]){-1.5, 2},
                  (double[]){-6});
    check_clipped(&(ch_optimizer_options){.clip_global_norm = 14}, (double[]){-3, 4},
                  (double[]){-12});
    (void)state;
}

/* The two rows of id 1 are added: (8, 6). */
static void clip_norm_of_a_sparse_gradient_is_that_of_its_sum(void **state)
{
    const double         ids[] = {1, 0, 1}, rows[] = {5, 3, 6, 0, 3, 3}, zeros[8] = {0};
    ch_optimizer_options opt[] = {{.clip_norm = 5}, {.clip_global_norm = 5}};

    for (int k = 0; k < 2; k++) {
        job          j = {.o = sgd_with(1, &opt[k]), .n = 1};
        ch_function *f = static_function(apply_sparse, &j);
        double       norm = sqrt(8 * 8 + 6 * 6 + 6 * 6);

        j.v[0] = var_of(NULL, "w", CH_F32, ch_shape_of(4, 2), zeros);
        run_with(f, 2,
                 (ch_tensor *[]){tensor_of(CH_I64, ch_shape_of(3), ids),
                                 tensor_of(CH_F32, ch_shape_of(3, 2), rows)});
        assert_values(j.v[0],
                      (double[]){-6 * 5 / norm, 0, -8 * 5 / norm, -6 * 5 / norm, 0, 0, 0, 0},
                      1e-6, "clipped", 0);
        ch_function_unref(f);
        ch_optimizer_unref(j.o);
        ch_var_unref(j.v[0]);
    }
    (void)state;
}

/* ---- 16 bits ---- */

static void small_steps_of_a_bf16_variable_add_up_in_its_master(void **state)
{
    job          j = {.o = sgd_with(1, NULL), .n = 1};
    ch_function *f = static_function(apply_dense, &j);
    ch_var      *master;

    j.v[0] = var_of(NULL, "w", CH_BF16, ch_shape_of(2), (double[]){1, 2});
    for (int t = 0; t < 64; t++) /* each less than half a unit of bf16 */
        run_with(
            f, 1,
            (ch_tensor *[]){tensor_of(CH_BF16, ch_shape_of(2), (double[]){0x1p-10, -0x1p-10})});
    master = ch_optimizer_slot(j.o, j.v[0], "master");
    assert_non_null(master);
    assert_int_equal(ch_var_dtype(master), CH_F32);
    assert_true(value_at(master, 0) == 1 - 0x1p-4);
    assert_true(value_at(j.v[0], 0) == 1 - 0x1p-4);
    assert_true(value_at(j.v[0], 1) == 2 + 0x1p-4);
    ch_function_unref(f);
    ch_optimizer_unref(j.o);
    ch_var_unref(j.v[0]);
    (void)state;
}

static void sixteen_bit_models_train_like_wide_ones(void **state)
{
    const ch_dtype dtype[] = {CH_BF16, CH_F16};

    for (int k = 0; k < 2; k++) {
        model        a = new_model(NULL, dtype[k],
                                   adam_with(&(ch_optimizer_options){
                                       .dynamic_loss_scale = dtype[k] == CH_F16, .loss_scale = 1024}));
        model        b = new_model(NULL, CH_F32, adam_with(NULL));
        ch_function *f = t_function(train, &a), *g = t_function(train, &b);
        ch_var      *master;

        for (int t = 0; t < 8; t++) {
            run_on(f, t, 0, BATCH);
            run_on(g, t, 0, BATCH);
        }
        assert_same_models(&a, &b, 0.08);
        /* The variable equals the rounded master, in rows that were used and in others. */
        master = ch_optimizer_slot(a.o, a.v[0], "master");
        for (int i = 0; i < TABLE * WIDE; i++)
            assert_float_equal(value_at(a.v[0], i), value_at(master, i),
                               fabs(value_at(master, i)) / 256);
        ch_function_unref(f);
        ch_function_unref(g);
        drop_model(&a);
        drop_model(&b);
    }
    (void)state;
}

/* loss = sum(w * x), so the gradient is x. In f16 it is scaled during the backward pass. */
static void linear_loss(ch_step *s, void *arg)
{
    job     *j = arg;
    ch_node *x = ch_mul(ch_var_read(s, j->v[0]), ch_cast(ch_step_in(s, 0), CH_F16));

    ch_optimizer_minimize(j->o, s, ch_cast(ch_sum_all(ch_mul(x, ch_step_in(s, 1))), CH_F32), 1,
                          j->v);
}

static void run_linear(ch_function *f, double x, double y)
{
    run_with(f, 2,
             (ch_tensor *[]){tensor_of(CH_F16, ch_shape_of(1), &x),
                             tensor_of(CH_F16, ch_shape_of(1), &y)});
}

static void dynamic_loss_scale_halves_after_a_bad_step_and_doubles_after_good_ones(void **state)
{
    job j = {.o = sgd_with(1, &(ch_optimizer_options){.dynamic_loss_scale = true}), .n = 1};
    ch_function   *f = static_function(linear_loss, &j);
    ch_var        *scale;
    ch_var *const *all = NULL;

    j.v[0] = var_of(NULL, "w", CH_F16, ch_shape_of(1), (double[]){0});
    /* The product is too small for f16, but 2^15 times the product is not. */
    run_linear(f, 0x1p-13, 0x1p-13);
    assert_true(value_at(ch_optimizer_slot(j.o, j.v[0], "master"), 0) == -0x1p-26);
    scale = NULL;
    for (int i = ch_optimizer_vars(j.o, &all) - 1; i >= 0; i--)
        if (strcmp(ch_var_name(all[i]), "sgd/loss_scale") == 0)
            scale = all[i];
    assert_non_null(scale);
    assert_true(value_at(scale, 0) == 32768);
    run_linear(f, 4, 1); /* overflows */
    assert_true(value_at(scale, 0) == 16384);
    assert_int_equal(iterations_of(j.o), 1);
    assert_int_equal(skipped_of(j.o), 1);
    run_linear(f, 1, 1);
    assert_int_equal(iterations_of(j.o), 2);
    assert_float_equal(value_at(ch_optimizer_slot(j.o, j.v[0], "master"), 0), -1, 1e-7);
    for (int t = 1; t < 2000; t++) {
        assert_true(value_at(scale, 0) == 16384);
        run_linear(f, 0, 0);
    }
    assert_true(value_at(scale, 0) == 32768);
    ch_function_unref(f);
    ch_optimizer_unref(j.o);
    ch_var_unref(j.v[0]);
    (void)state;
}

/* ---- lists of variables ---- */

/* Inputs: none; the gradients are ones. A separate call trains each variable. */
static void one_by_one(ch_step *s, void *arg)
{
    job *j = arg;

    for (int i = 0; i < j->n; i++)
        ch_optimizer_minimize(j->o, s, ch_sum_all(ch_var_read(s, j->v[i])), 1, &j->v[i]);
}

static void run_alone(ch_function *f)
{
    t_ok(ch_strategy_run(NULL, f, NULL, NULL));
}

static void optimizer_accumulates_separately_for_calls_with_other_variables(void **state)
{
    job          j = {.o = sgd_with(1, &(ch_optimizer_options){.accumulate = 2}), .n = 2};
    ch_function *f = t_function(one_by_one, &j);

    for (int i = 0; i < 2; i++)
        j.v[i] = var_of(NULL, i == 0 ? "a" : "b", CH_F32, ch_shape_of(2), (double[]){8, 8});
    for (int t = 1; t <= 4; t++) {
        run_alone(f);
        for (int i = 0; i < 2; i++)
            assert_true(value_at(j.v[i], 0) == 8 - t / 2);
        assert_int_equal(iterations_of(j.o), t / 2 * 2); /* 1 more for each that is applied */
    }
    assert_non_null(ch_optimizer_slot(j.o, j.v[1], "sum"));
    ch_function_unref(f);
    drop_model(&(model){j.o, {j.v[0], j.v[1]}});
    (void)state;
}

/* ---- FTRL at rate 0 ---- */

static void ftrl_changes_nothing_at_a_rate_of_zero(void **state)
{
    static const ch_dtype dtype[] = {CH_F32, CH_F64, CH_BF16, CH_F16};
    ch_schedule           p = ch_schedule_warm_up(ch_schedule_constant(0.5), 2);

    for (int k = 0; k < 8; k++) {
        bool         sparse = k % 2 != 0;
        ch_dtype     t = dtype[k / 2];
        job          j = {.n = 1};
        ch_function *f = static_function(sparse ? apply_sparse : apply_dense, &j);

        t_ok(ch_optimizer_ftrl(0, &(ch_optimizer_ftrl_options){.beta = 0.5},
                               &(ch_optimizer_options){.schedule = &p, .weight_decay = 0.1},
                               &j.o));
        j.v[0] = var_of(NULL, "w", t, ch_shape_of(2, 1), (double[]){0.5, -0.25});
        for (int i = 0; i < 3; i++) {
            if (sparse)
                run_with(f, 2,
                         (ch_tensor *[]){tensor_of(CH_I64, ch_shape_of(1), (double[]){0}),
                                         tensor_of(t, ch_shape_of(1, 1), (double[]){0.5})});
            else
                run_with(
                    f, 1,
                    (ch_tensor *[]){tensor_of(t, ch_shape_of(2, 1), (double[]){0.5, 0.5})});
            assert_int_equal(iterations_of(j.o), i + 1); /* the schedule continues */
            assert_true(isfinite(value_at(j.v[0], 0)));
            assert_true((value_at(j.v[0], 0) == 0.5) == (i == 0));
            if (i == 0) {
                assert_true(value_at(ch_optimizer_slot(j.o, j.v[0], "linear"), 0) == 0);
                assert_float_equal(value_at(ch_optimizer_slot(j.o, j.v[0], "accumulator"), 0),
                                   0.1, 1e-7);
            }
        }
        ch_function_unref(f);
        ch_optimizer_unref(j.o);
        ch_var_unref(j.v[0]);
    }
    (void)state;
}

/* ---- the loss scale ---- */

static void dynamic_loss_scale_stays_finite(void **state)
{
    job          j = {.o = sgd_with(1, &(ch_optimizer_options){.dynamic_loss_scale = true,
                                                               .loss_scale = 0x1.8p126}),
                      .n = 1};
    ch_function *f = t_function(one_by_one, &j);
    double       scale = 0;

    j.v[0] = var_of(NULL, "w", CH_F32, ch_shape_of(1), (double[]){0});
    for (int t = 0; t < 6001; t++)
        run_alone(f);
    t_ok(ch_optimizer_loss_scale(j.o, &scale));
    assert_true(scale == 0x1.8p127);
    assert_int_equal(iterations_of(j.o), 6001);
    ch_function_unref(f);
    ch_optimizer_unref(j.o);
    ch_var_unref(j.v[0]);
    (void)state;
}

/* The gradient of w * x * y in f16, computed by the program. It is too small for f16 without
 * the loss scale. */
static void scaled_by_hand(ch_step *s, void *arg)
{
    job     *j = arg;
    ch_node *w = ch_var_read(s, j->v[0]), *d = NULL;
    ch_node *x = ch_mul(ch_mul(w, ch_step_in(s, 0)), ch_step_in(s, 1));

    ch_gradients(x, ch_mul(ch_ones_like(x), ch_optimizer_loss_scale_node(j->o, s)), 1, &w, &d);
    ch_optimizer_apply(j->o, s, 1, j->v, &d);
}

static void loss_scale_applies_to_gradients_of_the_program(void **state)
{
    for (int k = 0; k < 2; k++) {
        job          j = {.o = sgd_with(1, &(ch_optimizer_options){.loss_scale = 1024,
                                                                   .dynamic_loss_scale = k == 1}),
                          .n = 1};
        ch_function *f = static_function(scaled_by_hand, &j);
        double       scale = 0;

        j.v[0] = var_of(NULL, "w", CH_F16, ch_shape_of(1), (double[]){0});
        run_linear(f, 0x1p-13, 0x1p-13);
        assert_true(value_at(ch_optimizer_slot(j.o, j.v[0], "master"), 0) == -0x1p-26);
        t_ok(ch_optimizer_loss_scale(j.o, &scale));
        assert_true(scale == 1024);
        ch_function_unref(f);
        ch_optimizer_unref(j.o);
        ch_var_unref(j.v[0]);
    }
    (void)state;
}

/* ---- slots that are made, set and read outside of steps ---- */

static void optimizer_build_makes_slots_without_a_step(void **state)
{
    const ch_optimizer_options opt = {
        .accumulate = 2, .average = 0.5, .dynamic_loss_scale = true};
    ch_var *const *all = NULL;
    model          m = new_model(NULL, CH_BF16, adam_with(&opt));
    ch_function   *f = t_function(train, &m);
    char           name[32][64];
    int            n;

    t_ok(ch_optimizer_build(m.o, 2, m.v));
    n = ch_optimizer_vars(m.o, &all);
    assert_int_equal(n, 5 + 1 + 2 * 6); /* own, pending, m v master average sum touched */
    for (int i = 0; i < n; i++)
        snprintf(name[i], sizeof(name[i]), "%s", ch_var_name(all[i]));
    run_on(f, 0, 0, BATCH);
    assert_int_equal(ch_optimizer_vars(m.o, &all), n); /* a step makes no others */
    for (int i = 0; i < n; i++)
        assert_string_equal(name[i], ch_var_name(all[i]));
    assert_string_equal(ch_var_name(ch_optimizer_slot(m.o, m.v[1], "sum")), "w/adam/sum");
    assert_non_null(
        ch_optimizer_slot(m.o, m.v[0], "pending")); /* slot of the first, used by all */
    assert_null(ch_optimizer_slot(m.o, m.v[1], "pending"));
    t_refused(ch_optimizer_build(m.o, 0, NULL), CH_INVALID_ARGUMENT, "adam",
              "nothing to train");
    t_refused(ch_optimizer_build(NULL, 2, m.v), CH_INVALID_ARGUMENT, "optimizer", "NULL");
    ch_function_unref(f);
    drop_model(&m);
    (void)state;
}

static void optimizer_rate_is_kept_and_applied_in_f64(void **state)
{
    job          j = {.o = sgd_with(0.1, NULL), .n = 1};
    ch_function *f = static_function(apply_dense, &j);
    double       rate = 0;

    j.v[0] = var_of(NULL, "w", CH_F64, ch_shape_of(1), (double[]){0});
    run_with(f, 1, (ch_tensor *[]){tensor_of(CH_F64, ch_shape_of(1), (double[]){1})});
    assert_true(value_at(j.v[0], 0) == -0.1);
    t_ok(ch_optimizer_rate(j.o, &rate));
    assert_true(rate == 0.1);
    t_ok(ch_optimizer_set_rate(j.o, 0.3));
    t_ok(ch_optimizer_rate(j.o, &rate));
    assert_true(rate == 0.3);
    ch_function_unref(f);
    ch_optimizer_unref(j.o);
    ch_var_unref(j.v[0]);
    (void)state;
}

static void variable_of_16_bits_keeps_a_set_value_in_its_master(void **state)
{
    for (int k = 0; k < 2; k++) {
        ch_dtype     t = k == 0 ? CH_BF16 : CH_F16;
        job          j = {.o = sgd_with(0.5, NULL), .n = 1};
        ch_function *f = t_function(one_by_one, &j);
        ch_tensor   *eights, *value = NULL;
        ch_var      *master;

        j.v[0] = var_of(NULL, "w", t, ch_shape_of(2), (double[]){1, 2});
        run_alone(f);
        eights = tensor_of(t, ch_shape_of(2), (double[]){8, 1.5});
        t_ok(ch_var_set(j.v[0], eights));
        run_alone(f);
        assert_true(value_at(j.v[0], 0) == 7.5 && value_at(j.v[0], 1) == 1);
        /* If a variable is set to its own value, the master keeps its additional digits. */
        master = ch_optimizer_slot(j.o, j.v[0], "master");
        t_ok(ch_optimizer_set_rate(j.o, 0x1p-16));
        run_alone(f);
        t_ok(ch_var_get(j.v[0], &value));
        t_ok(ch_var_set(j.v[0], value));
        assert_true(value_at(j.v[0], 0) == 7.5 && value_at(master, 0) == 7.5 - 0x1p-16);
        /* A master outlives its optimizer and its variable, and is independent then. */
        ch_var_ref(master);
        ch_function_unref(f);
        ch_optimizer_unref(j.o);
        t_ok(ch_var_set(j.v[0], eights));
        assert_true(value_at(master, 0) == 8);
        ch_var_unref(j.v[0]);
        ch_var_unref(master);
        ch_tensor_unref(eights);
        ch_tensor_unref(value);
    }
    (void)state;
}

/* Two optimizers take turns on a variable, as with two losses. Both update the same exact
 * value. */
static void a_16_bit_variable_has_one_master_for_all_its_optimizers(void **state)
{
    job            a = {.o = sgd_with(0x1p-10, NULL), .n = 1}, b = a;
    ch_function   *f, *g;
    ch_var        *master;
    ch_var *const *all;

    t_ok(ch_optimizer_sgd(0x1p-9, NULL, &(ch_optimizer_options){.name = "other"}, &b.o));
    a.v[0] = b.v[0] = var_of(NULL, "w", CH_BF16, ch_shape_of(2), (double[]){1, 2});
    f = t_function(one_by_one, &a);
    g = t_function(one_by_one, &b);
    for (int t = 0; t < 32; t++) { /* each less than half a unit of bf16 */
        run_alone(f);
        run_alone(g);
    }
    master = ch_optimizer_slot(a.o, a.v[0], "master");
    assert_string_equal(ch_var_name(master), "w/master");
    assert_ptr_equal(ch_optimizer_slot(b.o, b.v[0], "master"), master);
    assert_true(value_at(master, 0) == 1 - 0x1.8p-4 && value_at(a.v[0], 0) == 1 - 0x1.8p-4);
    assert_int_equal(ch_optimizer_vars(b.o, &all), 3); /* iterations, rate, master */
    /* The master exists as long as an optimizer uses it. */
    ch_function_unref(f);
    ch_optimizer_unref(a.o);
    run_alone(g);
    assert_true(value_at(master, 0) == 1 - 0x1.8p-4 - 0x1p-9);
    ch_function_unref(g);
    ch_optimizer_unref(b.o);
    ch_var_unref(a.v[0]);
    (void)state;
}

static void optimizer_averages_are_read_and_swapped_with_variables(void **state)
{
    for (int k = 0; k < 2; k++) {
        ch_dtype t = k == 0 ? CH_F32 : CH_BF16;
        job      j = {.o = sgd_with(0x1p-12, &(ch_optimizer_options){.average = 0.5}), .n = 1};
        ch_function *f = t_function(one_by_one, &j);
        ch_tensor   *a = NULL;
        ch_var      *slot, *master;
        double       x, average, w;

        j.v[0] = var_of(NULL, "w", t, ch_shape_of(1), (double[]){1});
        t_refused(ch_optimizer_average(j.o, j.v[0], &a), CH_NOT_FOUND, "sgd", "w");
        run_alone(f);
        run_alone(f);
        slot = ch_optimizer_slot(j.o, j.v[0], "average");
        master = ch_optimizer_slot(j.o, j.v[0], "master");
        average = value_at(slot, 0);
        w = value_at(master != NULL ? master : j.v[0], 0);
        assert_true(average == 1 - 0x1.4p-12 && w == 1 - 0x1p-11);
        t_ok(ch_optimizer_average(j.o, j.v[0], &a));
        assert_int_equal(ch_tensor_dtype(a), t);
        t_ok(ch_tensor_get(a, (int64_t[]){0}, &x));
        assert_true(x == (k == 0 ? average : 1));
        t_ok(ch_optimizer_swap_averages(j.o));
        assert_true(value_at(j.v[0], 0) == x && value_at(slot, 0) == w);
        t_ok(ch_optimizer_swap_averages(j.o));
        assert_true(value_at(master != NULL ? master : j.v[0], 0) == w);
        assert_true(value_at(slot, 0) == average);
        ch_tensor_unref(a);
        ch_function_unref(f);
        ch_optimizer_unref(j.o);
        ch_var_unref(j.v[0]);
    }
    (void)state;
}

static void optimizer_slot_names_are_not_cut(void **state)
{
    static char  long_name[1501], want[1600];
    job          j = {.o = adam_with(NULL), .n = 1};
    ch_function *f = t_function(one_by_one, &j);

    memset(long_name, 'x', sizeof(long_name) - 1);
    j.v[0] = var_of(NULL, long_name, CH_F32, ch_shape_of(1), (double[]){1});
    run_alone(f);
    snprintf(want, sizeof(want), "%s/adam/v", long_name);
    assert_string_equal(ch_var_name(ch_optimizer_slot(j.o, j.v[0], "v")), want);
    ch_function_unref(f);
    ch_optimizer_unref(j.o);
    ch_var_unref(j.v[0]);
    (void)state;
}

static int n_notes;

static void count_notes(const ch_log_record *r, void *arg)
{
    (void)arg;
    n_notes += strcmp(r->code, "sparse-gradient-densified") == 0;
}

/* Gradients of the first row of each variable. */
static void first_rows(ch_step *s, void *arg)
{
    job     *j = arg;
    ch_node *d[2];

    for (int i = 0; i < j->n; i++)
        d[i] = ch_sparse_rows(ch_step_in(s, 0), ch_step_in(s, 1), 2);
    ch_optimizer_apply(j->o, s, j->n, j->v, d);
}

static void optimizer_logs_once_per_variable_when_it_makes_gradients_dense(void **state)
{
    n_notes = 0;
    ch_log_set_sink(count_notes, NULL, CH_LOG_INFO);
    for (int k = 0; k < 2; k++) {
        job          j = {.n = 2};
        ch_function *f = static_function(first_rows, &j);

        t_ok(ch_optimizer_adamax(0.5, NULL, NULL, &j.o));
        for (int i = 0; i < 2; i++)
            j.v[i] = var_of(NULL, "w", CH_F32, ch_shape_of(2, 1), (double[]){1, 2});
        for (int n = 1; n < 4; n++) /* each size makes a recording */
            run_with(
                f, 2,
                (ch_tensor *[]){tensor_of(CH_I64, ch_shape_of(n), (double[]){0, 0, 0}),
                                tensor_of(CH_F32, ch_shape_of(n, 1), (double[]){1, 1, 1})});
        assert_true(value_at(j.v[0], 0) < 0 && value_at(j.v[0], 1) == 2);
        assert_int_equal(n_notes, 2 * (k + 1));
        ch_function_unref(f);
        drop_model(&(model){j.o, {j.v[0], j.v[1]}});
    }
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    (void)state;
}

/* ---- memory, threads ---- */

static void optimizer_step_allocates_nothing_the_second_time(void **state)
{
    const ch_optimizer_options options[] = {
        {0},
        {.accumulate = 2, .clip_global_norm = 1, .average = 0.9, .dynamic_loss_scale = true},
        {.clip_norm = 1, .nonfinite = CH_NONFINITE_STOP}};

    for (int k = 0; k < 3; k++) {
        model        m = new_model(NULL, CH_F32, adam_with(&options[k]));
        ch_function *f = t_function(train, &m);
        ch_tensor   *x[2];
        ch_tuple    *in, *out = NULL;
        int64_t      allocs = 0;

        examples(0, 0, BATCH, x);
        in = t_tuple(2, x);
        for (int t = 0; t < 20; t++) {
            t_ok(ch_strategy_run(NULL, f, in, &out));
            ch_tuple_unref(out);
            if (t == 9)
                allocs = ch__mem_allocs();
        }
        assert_int_equal(ch__mem_allocs() - allocs, 0);
        ch_tuple_unref(in);
        ch_function_unref(f);
        drop_model(&m);
    }
    (void)state;
}

/* Returns all variables that training changes: those of the model, then those of the
 * optimizer. */
static int state_of(model *m, ch_var *out[32])
{
    ch_var *const *all = NULL;
    int            n = ch_optimizer_vars(m->o, &all);

    assert_true(n + 2 <= 32);
    out[0] = m->v[0];
    out[1] = m->v[1];
    for (int i = 0; i < n; i++)
        out[2 + i] = all[i];
    return n + 2;
}

static void decoded_optimizer_step_trains_with_the_same_bits(void **state)
{
    ch_strategy *st = two_devices();
    model        m = new_model(st, CH_BF16,
                               adam_with(&(ch_optimizer_options){.clip_global_norm = 1,
                                                                 .nonfinite = CH_NONFINITE_SKIP}));
    ch_function *f = t_function(train, &m), *sent = NULL;
    ch_var      *var[32];
    ch_tensor   *first[32] = {0}, *here[32] = {0}, *there = NULL;
    ch_graph    *g = NULL;
    void        *bytes = NULL;
    size_t       size = 0;
    int          n;

    run_on_two(st, f, 0, 6);
    t_ok(ch_graph_encode(ch_function_graph(f), &bytes, &size));
    t_ok(ch_graph_decode(bytes, size, &g));
    t_ok(ch_function_of_graph("sent", g, &sent));
    n = state_of(&m, var);
    for (int i = 0; i < n; i++)
        t_ok(ch_var_get(var[i], &first[i]));
    for (int t = 1; t < 5; t++)
        run_on_two(st, f, t, 3 * t);
    for (int i = 0; i < n; i++)
        t_ok(ch_var_get(var[i], &here[i]));
    for (int i = n - 1; i >= 0; i--) /* masters before their variables */
        t_ok(ch_var_set(var[i], first[i]));
    for (int t = 1; t < 5; t++)
        run_on_two(st, sent, t, 3 * t);
    for (int i = 0; i < n; i++) {
        t_ok(ch_var_get(var[i], &there));
        assert_memory_equal(ch_tensor_data(here[i]), ch_tensor_data(there),
                            (size_t)ch_tensor_count(there) *
                                ch_dtype_bytes(ch_tensor_dtype(there)));
        ch_tensor_unref(first[i]);
        ch_tensor_unref(here[i]);
        ch_tensor_unref(there);
    }
    ch_bytes_free(bytes);
    ch_graph_unref(g);
    ch_function_unref(f);
    ch_function_unref(sent);
    drop_model(&m);
    ch_strategy_unref(st);
    (void)state;
}

/* Returns the size of the largest copy of a plan, in bytes. */
static long largest_copy(const char *plan)
{
    long most = 0;

    for (const char *at = plan; (at = strstr(at, " copy ")) != NULL; at++) {
        const char *size = strchr(at, '[');
        long        n = size != NULL ? strtol(size + 1, NULL, 10) : 0;

        most = n > most ? n : most;
    }
    return most;
}

/* No value that is larger than a number is copied to its destination. */
static void optimizer_updates_variables_and_slots_in_place(void **state)
{
    const ch_optimizer_options options[] = {
        {0},
        {.accumulate = 2},
        {.clip_global_norm = 1, .nonfinite = CH_NONFINITE_SKIP, .average = 0.5},
        {.clip_norm = 1, .dynamic_loss_scale = true},
        {.nonfinite = CH_NONFINITE_STOP}};

    for (int k = 0; k < 10; k++) {
        model        m = new_model(NULL, k < 5 ? CH_F32 : CH_BF16, adam_with(&options[k % 5]));
        ch_function *f = t_function(train, &m);
        char         plan[20000];

        run_on(f, 0, 0, BATCH);
        ch_function_print_plan(f, plan, sizeof(plan));
        if (largest_copy(plan) > 8)
            fail_msg("options %d: %ld bytes are copied", k, largest_copy(plan));
        ch_function_unref(f);
        drop_model(&m);
    }
    (void)state;
}

/* Returns a hash of all bits after a few steps of a model that is large enough for several
 * tiles. */
enum { BIG_ROWS = 3000, BIG_WIDTH = 24, BIG_IDS = 20000 };

static void big_step(ch_step *s, void *arg)
{
    model   *m = arg;
    ch_node *x = ch_gather(ch_var_read(s, m->v[0]), ch_step_in(s, 0), 0);

    ch_optimizer_minimize(
        m->o, s,
        ch_add(ch_mean_all(ch_square(x)), ch_mean_all(ch_square(ch_var_read(s, m->v[1])))), 2,
        m->v);
}

static uint64_t hash_of(uint64_t h, ch_var *v)
{
    ch_tensor           *t = NULL;
    const unsigned char *at;

    t_ok(ch_var_get(v, &t));
    at = ch_tensor_data(t);
    for (int64_t i = 0; i < ch_tensor_count(t) * 4; i++)
        h = (h ^ at[i]) * 0x100000001b3u;
    ch_tensor_unref(t);
    return h;
}

static uint64_t train_big(int kind)
{
    ch_optimizer_options opt = {.clip_global_norm = 0.1, .nonfinite = CH_NONFINITE_SKIP};
    ch_optimizer        *o = NULL;
    model                m;
    ch_function         *f = t_function(big_step, &m);
    uint64_t             h = 0xcbf29ce484222325u;

    t_ok(kind == 0   ? ch_optimizer_adam(0.1, NULL, &opt, &o)
         : kind == 1 ? ch_optimizer_adagrad(
                           0.1, &(ch_optimizer_adagrad_options){.row_wise = true}, &opt, &o)
                     : ch_optimizer_lamb(0.1, NULL, &opt, &o));
    m = (model){o,
                {t_var(NULL, "table", t_noise(ch_shape_of(BIG_ROWS, BIG_WIDTH), 1)),
                 t_var(NULL, "w", t_noise(ch_shape_of(300, 301), 2))}};
    for (int t = 0; t < 3; t++) {
        ch_tensor *ids = NULL;
        unsigned   seed = (unsigned)t;

        t_ok(ch_tensor_new(CH_I64, ch_shape_of(BIG_IDS), &ids));
        for (int i = 0; i < BIG_IDS; i++) {
            seed = seed * 1664525u + 1013904223u;
            ((int64_t *)ch_tensor_data_mut(ids))[i] = (seed >> 8) % BIG_ROWS;
        }
        run_with(f, 1, &ids);
    }
    for (int i = 0; i < 2; i++)
        h = hash_of(h, m.v[i]);
    ch_function_unref(f);
    drop_model(&m);
    return h;
}

static const char *program;

static void optimizer_has_the_same_bits_with_any_number_of_threads(void **state)
{
    char line[2][256];

    for (int k = 0; k < 2; k++) {
        char  command[600];
        FILE *pipe;

        snprintf(command, sizeof(command), "COHORT_THREADS=%d '%s' bits", k == 0 ? 1 : 3,
                 program);
        pipe = popen(command, "r");
        assert_non_null(pipe);
        assert_non_null(fgets(line[k], sizeof(line[k]), pipe));
        assert_int_equal(pclose(pipe), 0);
    }
    assert_string_equal(line[0], line[1]);
    (void)state;
}

/* ---- refusals ---- */

static void integers(ch_step *s, void *arg)
{
    model *m = arg;

    ch_optimizer_minimize(m->o, s, ch_sum_all(ch_var_read(s, m->v[0])), 1, &m->v[1]);
}

static void twice(ch_step *s, void *arg)
{
    model *m = arg;

    ch_optimizer_minimize(m->o, s, ch_sum_all(ch_var_read(s, m->v[0])), 2,
                          (ch_var *[]){m->v[0], m->v[0]});
}

static void other_shape(ch_step *s, void *arg)
{
    model   *m = arg;
    ch_node *d = ch_fill(s, CH_F32, ch_shape_of(3), 1);

    ch_optimizer_apply(m->o, s, 1, m->v, &d);
}

static void no_optimizer(ch_step *s, void *arg)
{
    model *m = arg;

    ch_optimizer_minimize(NULL, s, ch_sum_all(ch_var_read(s, m->v[0])), 1, m->v);
}

static void no_lists(ch_step *s, void *arg)
{
    model *m = arg;

    ch_optimizer_apply(m->o, s, 1, m->v, NULL);
}

static void no_loss(ch_step *s, void *arg)
{
    model *m = arg;

    ch_optimizer_minimize(m->o, s, NULL, 1, m->v);
}

/* A loss with a number for each element. Their sum is probably not intended. */
static void loss_with_axes(ch_step *s, void *arg)
{
    model *m = arg;

    ch_optimizer_minimize(m->o, s, ch_square(ch_var_read(s, m->v[0])), 1, m->v);
}

static void not_trainable(ch_step *s, void *arg)
{
    model  *m = arg;
    ch_var *rate = NULL;

    t_ok(ch_var_new(NULL, &(ch_var_spec){.name = "mean", .dtype = CH_F32, .trainable = CH_OFF},
                    &rate));
    ch_optimizer_minimize(m->o, s, ch_var_read(s, rate), 1, &rate);
    ch_var_unref(rate);
}

static void nothing(ch_step *s, void *arg)
{
    model *m = arg;

    ch_optimizer_minimize(m->o, s, ch_sum_all(ch_var_read(s, m->v[0])), 0, NULL);
}

static void inside(ch_step *s, void *arg, ch_node *const *carry, ch_node *const *x,
                   ch_node **next, ch_node **y)
{
    model *m = arg;

    (void)x, (void)y;
    ch_optimizer_minimize(m->o, s, ch_sum_all(ch_var_read(s, m->v[0])), 1, m->v);
    next[0] = carry[0];
}

static void in_a_scan(ch_step *s, void *arg)
{
    ch_node *zero = ch_fill(s, CH_F32, ch_shape_scalar(), 0), *last = NULL;

    ch_scan(s, &(ch_scan_spec){.n_carry = 1, .length = 3}, inside, arg, &zero, NULL, &last,
            NULL);
}

static void optimizer_getters_reject_a_null_optimizer(void **state)
{
    ch_var *const *all = NULL;
    int64_t        n;
    double         x;

    t_refused(ch_optimizer_iterations(NULL, &n), CH_INVALID_ARGUMENT, "optimizer", "NULL");
    t_refused(ch_optimizer_skipped(NULL, &n), CH_INVALID_ARGUMENT, "optimizer", "NULL");
    t_refused(ch_optimizer_rate(NULL, &x), CH_INVALID_ARGUMENT, "optimizer", "NULL");
    t_refused(ch_optimizer_loss_scale(NULL, &x), CH_INVALID_ARGUMENT, "optimizer", "NULL");
    t_refused(ch_optimizer_set_rate(NULL, 1), CH_INVALID_ARGUMENT, "optimizer", "NULL");
    t_refused(ch_optimizer_swap_averages(NULL), CH_INVALID_ARGUMENT, "optimizer", "NULL");
    assert_int_equal(ch_optimizer_vars(NULL, &all), 0);
    assert_null(ch_optimizer_slot(NULL, NULL, "m"));
    (void)state;
}

static void optimizer_rejects_negative_and_nonfinite_rates_and_schedules(void **state)
{
    const ch_schedule bad[] = {ch_schedule_constant(NAN),
                               ch_schedule_constant(1e39),
                               ch_schedule_exponential(-0.1, 10, 0.5, false),
                               ch_schedule_exponential(0.1, 10, -0.5, false),
                               ch_schedule_exponential(0.1, INFINITY, 0.5, false),
                               ch_schedule_polynomial(0.1, 10, 0, -1),
                               ch_schedule_polynomial(0.1, 10, -1, 1),
                               ch_schedule_cosine(0.1, 10, NAN),
                               ch_schedule_cosine_restarts(0.1, 10, 2, -1, 0),
                               ch_schedule_cosine_restarts(0.1, 10, INFINITY, 1, 0),
                               ch_schedule_warm_up(ch_schedule_constant(0.1), INFINITY),
                               ch_schedule_piecewise(1, (double[]){NAN}, (double[]){1, 2}),
                               ch_schedule_piecewise(1, (double[]){1}, (double[]){1, -2}),
                               ch_schedule_piecewise(1, NULL, NULL)};
    const double      rate[] = {-1, NAN, INFINITY, 1e39, 1e300};
    ch_optimizer     *o = NULL;
    double            x;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        t_refused(ch_optimizer_sgd(0.1, NULL, &(ch_optimizer_options){.schedule = &bad[i]}, &o),
                  CH_INVALID_ARGUMENT, "schedule", "");
        assert_true(isnan(ch_schedule_at(&bad[i], 1)));
    }
    assert_true(isnan(ch_schedule_at(NULL, 1)));
    for (int i = 0; i < 5; i++)
        t_refused(ch_optimizer_sgd(rate[i], NULL, NULL, &o), CH_INVALID_ARGUMENT, "sgd",
                  "rate");
    assert_null(o);
    o = sgd_with(0.1, NULL);
    for (int i = 0; i < 5; i++)
        t_refused(ch_optimizer_set_rate(o, rate[i]), CH_INVALID_ARGUMENT, "sgd", "rate");
    t_ok(ch_optimizer_rate(o, &x));
    assert_true(x == 0.1);
    ch_optimizer_unref(o);
    (void)state;
}

static void optimizer_rejects_invalid_arguments_with_a_reason(void **state)
{
    ch_optimizer *o = NULL;
    ch_schedule   p = ch_schedule_cosine(1, 0, 0);
    model         m = {sgd_with(1, NULL),
                       {var_of(NULL, "w", CH_F32, ch_shape_of(2), (double[]){1, 2}),
                        var_of(NULL, "i", CH_I64, ch_shape_of(2), (double[]){1, 2})}};
    ch_step_fn    step[] = {integers, twice,   other_shape,    no_optimizer,  no_lists,
                            no_loss,  nothing, loss_with_axes, not_trainable, in_a_scan};
    const char   *word[] = {
          "is i64, want a float type",      "is given twice",
          "w is f32(3), want f32(2)",       "the optimizer is NULL",
          "list of gradients is NULL",      "the loss is NULL",
          "there is nothing to train",      "is f32(2), want one number; use ch_loss_average",
          "variable mean is not trainable", "not inside a cond, while or scan"};
    const int last = sizeof(step) / sizeof(step[0]) - 1;

    t_refused(ch_optimizer_sgd(-1, NULL, NULL, &o), CH_INVALID_ARGUMENT, "sgd: the rate is -1",
              "0");
    t_refused(ch_optimizer_adam(1, &(ch_optimizer_adam_options){.beta1 = 1}, NULL, &o),
              CH_INVALID_ARGUMENT, "beta1 is 1", "less than 1");
    t_refused(ch_optimizer_sgd(1, &(ch_optimizer_sgd_options){.nesterov = true}, NULL, &o),
              CH_INVALID_ARGUMENT, "nesterov", "momentum");
    t_refused(ch_optimizer_lamb(1, &(ch_optimizer_adam_options){.amsgrad = true}, NULL, &o),
              CH_INVALID_ARGUMENT, "lamb", "amsgrad");
    t_refused(ch_optimizer_adam(
                  1, NULL, &(ch_optimizer_options){.clip_norm = 1, .clip_global_norm = 1}, &o),
              CH_INVALID_ARGUMENT, "clip_norm", "set only one");
    t_refused(ch_optimizer_adam(1, NULL,
                                &(ch_optimizer_options){.dynamic_loss_scale = true,
                                                        .nonfinite = CH_NONFINITE_STOP},
                                &o),
              CH_INVALID_ARGUMENT, "dynamic", "CH_NONFINITE_STOP");
    t_refused(ch_optimizer_adam(1, NULL, &(ch_optimizer_options){.schedule = &p}, &o),
              CH_INVALID_ARGUMENT, "schedule", "steps");
    t_refused(ch_optimizer_ftrl(1, &(ch_optimizer_ftrl_options){.power = 1}, NULL, &o),
              CH_INVALID_ARGUMENT, "ftrl", "power");
    assert_null(o);
    t_refused(ch_optimizer_ftrl(1, &(ch_optimizer_ftrl_options){.power = 0.5}, NULL, &o),
              CH_INVALID_ARGUMENT, "power is 0.5", "want at most 0");
    t_refused(ch_optimizer_sgd(1, NULL, &(ch_optimizer_options){.accumulate = -1}, &o),
              CH_INVALID_ARGUMENT, "sgd: accumulate is -1", "want 0 or more");
    t_refused(ch_optimizer_sgd(1, NULL, &(ch_optimizer_options){.name = ""}, &o),
              CH_INVALID_ARGUMENT, "sgd", "name");
    for (int i = 0; i <= last; i++) {
        ch_function *f = t_function(step[i], &m);

        t_refused(ch_strategy_run(NULL, f, NULL, NULL),
                  i == last ? CH_FAILED_PRECONDITION : CH_INVALID_ARGUMENT, word[i],
                  i == last ? "sgd" : "optimizer_");
        ch_function_unref(f);
    }
    drop_model(&m);
    (void)state;
}

static void optimizer_leaks_nothing_when_out_of_memory(void **state)
{
    for (int n = 1, done = 0; !done; n++) {
        int64_t      live = ch__mem_live();
        model        m = new_model(NULL, CH_BF16, NULL);
        ch_function *f = t_function(train, &m);
        ch_tensor   *x[2];
        ch_tuple    *in;
        ch_status    rc;

        examples(0, 0, BATCH, x);
        in = t_tuple(2, x);
        ch__mem_fail_at(n);
        rc = ch_optimizer_adam(0.1, NULL,
                               &(ch_optimizer_options){
                                   .accumulate = 2, .average = 0.5, .dynamic_loss_scale = true},
                               &m.o);
        if (rc == CH_OK)
            rc = ch_strategy_run(NULL, f, in, NULL);
        ch__mem_fail_at(0);
        done = rc == CH_OK;
        if (!done && rc != CH_RESOURCE_EXHAUSTED)
            fail_msg("allocation %d: %s: %s", n, ch_status_name(rc), ch_error_message());
        ch_tuple_unref(in);
        ch_function_unref(f);
        drop_model(&m);
        if (n > 1 && ch__mem_live() != live)
            fail_msg("allocation %d leaves %lld behind", n, (long long)(ch__mem_live() - live));
    }
    (void)state;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizer_rules_agree_with_numpy_for_ten_steps),
        cmocka_unit_test(optimizer_rules_agree_with_numpy_for_ten_sparse_steps),
        cmocka_unit_test(optimizer_accumulate_equals_one_large_batch),
        cmocka_unit_test(optimizer_on_two_replicas_equals_one_with_the_whole_batch),
        cmocka_unit_test(optimizer_set_rate_takes_effect_without_recording_again),
        cmocka_unit_test(optimizer_schedule_follows_the_steps_that_were_applied),
        cmocka_unit_test(optimizer_slots_are_variables_with_names),
        cmocka_unit_test(optimizer_average_follows_the_variable),
        cmocka_unit_test(optimizer_nonfinite_policy_passes_skips_or_stops),
        cmocka_unit_test(optimizer_clips_gradients_by_value_norm_or_global_norm),
        cmocka_unit_test(clip_norm_of_a_sparse_gradient_is_that_of_its_sum),
        cmocka_unit_test(a_16_bit_variable_has_one_master_for_all_its_optimizers),
        cmocka_unit_test(small_steps_of_a_bf16_variable_add_up_in_its_master),
        cmocka_unit_test(sixteen_bit_models_train_like_wide_ones),
        cmocka_unit_test(
            dynamic_loss_scale_halves_after_a_bad_step_and_doubles_after_good_ones),
        cmocka_unit_test(optimizer_accumulates_separately_for_calls_with_other_variables),
        cmocka_unit_test(ftrl_changes_nothing_at_a_rate_of_zero),
        cmocka_unit_test(dynamic_loss_scale_stays_finite),
        cmocka_unit_test(loss_scale_applies_to_gradients_of_the_program),
        cmocka_unit_test(optimizer_build_makes_slots_without_a_step),
        cmocka_unit_test(optimizer_rate_is_kept_and_applied_in_f64),
        cmocka_unit_test(variable_of_16_bits_keeps_a_set_value_in_its_master),
        cmocka_unit_test(optimizer_averages_are_read_and_swapped_with_variables),
        cmocka_unit_test(optimizer_slot_names_are_not_cut),
        cmocka_unit_test(optimizer_logs_once_per_variable_when_it_makes_gradients_dense),
        cmocka_unit_test(optimizer_step_allocates_nothing_the_second_time),
        cmocka_unit_test(decoded_optimizer_step_trains_with_the_same_bits),
        cmocka_unit_test(optimizer_updates_variables_and_slots_in_place),
        cmocka_unit_test(optimizer_has_the_same_bits_with_any_number_of_threads),
        cmocka_unit_test(optimizer_getters_reject_a_null_optimizer),
        cmocka_unit_test(optimizer_rejects_negative_and_nonfinite_rates_and_schedules),
        cmocka_unit_test(optimizer_rejects_invalid_arguments_with_a_reason),
        cmocka_unit_test(optimizer_leaks_nothing_when_out_of_memory),
    };

    program = argv[0];
    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "CPU=1,GPU=2"}));
    if (argc > 1 && strcmp(argv[1], "bits") == 0) {
        printf("%llx %llx %llx\n", (unsigned long long)train_big(0),
               (unsigned long long)train_big(1), (unsigned long long)train_big(2));
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

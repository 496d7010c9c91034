/* test/strategy/divided.h -- trains an example on several logical devices, and compares losses
 * and weights with those of the unsharded run.
 *
 * A batch has 16 rows, every fifth batch has 7. The unsharded run is the same step on replicas
 * of one device. Each example is trained in three ways (`way`). In f64 all losses, weights and
 * variables of the optimizer must be close, in f32 with SGD losses and weights, in f32 with Adam
 * the losses: there Adam turns the rounding noise of a gradient of zero into steps.
 *
 * By default every number of devices is tested in f64 and in one of the other ways, in turn. If
 * T_CASES is 1000 or more, it is tested in all ways.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_STRATEGY_DIVIDED_H
#define TEST_STRATEGY_DIVIDED_H

#include <math.h>

#include "cores.h"

#ifndef DIVIDED_STEPS
#define DIVIDED_STEPS 50 /* of each training */
#endif

enum { ROWS = 16, SHORT = 7, MOST_VARS = 36, STEPS = DIVIDED_STEPS, MOST = 1024 };

/* How an example is trained: f64 with Adam or LAMB, f32 with SGD, f32 with Adam or LAMB. */
typedef enum way { DOUBLES, FLOATS_SGD, FLOATS, WAYS } way;

/* A variable of an example. */
typedef struct param {
    const char *name;
    ch_shape    shape;
    int         split[4]; /* by axis, as in ch_var_spec */
} param;

typedef struct example {
    int n_in, n_out; /* numbers of each row of the two inputs */
    /* The variables; if there is a layer, those of its variables that are split, by the paths
     * of ch_layer_var. */
    int          n_vars;
    const param *var;
    /* Records the loss of each row. If there is a layer, x is its output and w is NULL. */
    ch_node *(*loss)(ch_node *x, ch_node *y, ch_node *const *w);
    ch_layer *(*layer)(void);
    ch_shape             row; /* if there is a layer: the shape of a row of its input */
    ch_optimizer_options options;
    bool                 is_lamb;
} example;

typedef struct model {
    const example *e;
    ch_dtype       dtype;
    ch_optimizer  *o;
    ch_model      *net; /* NULL: the example has no layer */
    int            n;
    ch_var        *v[MOST_VARS]; /* all variables, referenced */
} model;

/* The losses, and the values of all variables: those of the example, then those of the optimizer,
 * such as slots and averages. */
typedef struct result {
    double loss[STEPS];
    int    n_weights, n;
    double value[MOST_VARS * 5][MOST];
} result;

/* Returns a tensor of numbers in [-1, 1) that depend only on the seed. */
static inline ch_tensor *noise(ch_dtype dtype, ch_shape shape, unsigned seed)
{
    ch_tensor *t = NULL;
    void      *at;

    t_ok(ch_tensor_new(dtype, shape, &t));
    at = ch_tensor_data_mut(t);
    for (int64_t i = 0; i < ch_tensor_count(t); i++) {
        double x;

        seed = seed * 1664525u + 1013904223u;
        x = (double)(seed >> 8) / (1 << 23) - 1;
        if (dtype == CH_F64)
            ((double *)at)[i] = x;
        else
            ((float *)at)[i] = (float)x;
    }
    return t;
}

static inline double number(const ch_tensor *t, int64_t i)
{
    switch (ch_tensor_dtype(t)) {
    case CH_F64:
        return ((const double *)ch_tensor_data(t))[i];
    case CH_F32:
        return (double)((const float *)ch_tensor_data(t))[i];
    default:
        assert_int_equal(ch_tensor_dtype(t), CH_I64);
        return (double)((const int64_t *)ch_tensor_data(t))[i];
    }
}

/* Records classes from 0 to 9, from the first number of each row. */
static inline ch_node *class_of(ch_node *x)
{
    ch_node *first = ch_slice(x, 2, (int64_t[]){0, 0}, (int64_t[]){-1, 1});

    first = ch_reshape(first, ch_shape_of(-1));
    return ch_cast(ch_floor(ch_mul(ch_add(first, ch_number(ch_node_step(x), 1)),
                                   ch_number(ch_node_step(x), 5))),
                   CH_I64);
}

/* ---- the step ---- */

/* Returns the shape of n rows; n -1: of a number of rows that is not known. */
static inline ch_shape with_rows(int n, ch_shape row)
{
    ch_shape shape = {.rank = row.rank + 1, .dim = {n}};

    for (int i = 0; i < row.rank; i++)
        shape.dim[i + 1] = row.dim[i];
    return shape;
}

static inline void train(ch_step *s, void *arg)
{
    model         *m = arg;
    ch_node       *x = ch_step_in(s, 0), *y = ch_step_in(s, 1), *w[MOST_VARS], *loss;
    ch_var *const *v = m->v;
    int            n = m->n;

    if (m->net != NULL) {
        x = ch_model_call(m->net, s, ch_reshape(x, with_rows(-1, m->e->row)), true);
        n = ch_model_trainable(m->net, &v);
        loss = m->e->loss(x, y, NULL);
    } else {
        for (int i = 0; i < n; i++)
            w[i] = ch_var_read(s, m->v[i]);
        loss = m->e->loss(x, y, w);
    }
    loss = ch_loss_average(loss, NULL);
    ch_optimizer_minimize(m->o, s, loss, n, v);
    ch_step_out(s, "loss", ch_all_reduce(CH_SUM, loss));
}

static inline void new_optimizer(model *m, bool sgd)
{
    if (sgd)
        t_ok(ch_optimizer_sgd(0.1, NULL, &m->e->options, &m->o));
    else if (m->e->is_lamb)
        t_ok(ch_optimizer_lamb(0.01, NULL, &m->e->options, &m->o));
    else
        t_ok(ch_optimizer_adam(0.01, NULL, &m->e->options, &m->o));
}

static inline void new_vars(ch_strategy *st, model *m, bool is_split)
{
    for (m->n = 0; m->n < m->e->n_vars; m->n++) {
        const param *p = &m->e->var[m->n];

        t_ok(ch_var_new(st,
                        &(ch_var_spec){.name = p->name,
                                       .dtype = m->dtype,
                                       .shape = p->shape,
                                       .init = ch_init_uniform(-0.3, 0.3),
                                       .split = is_split ? p->split : NULL,
                                       .n_split = p->shape.rank},
                        &m->v[m->n]));
    }
}

static inline void new_net(ch_strategy *st, model *m, bool is_split)
{
    ch_layer      *l = m->e->layer();
    ch_var *const *v;

    t_ok(ch_model_new(st, l,
                      &(ch_model_options){.n_inputs = 1,
                                          .input = {{m->dtype, with_rows(-1, m->e->row)}},
                                          .dtype = m->dtype},
                      &m->net));
    m->n = ch_model_vars(m->net, &v);
    assert_in_range(m->n, 1, MOST_VARS);
    for (int i = 0; i < m->n; i++)
        m->v[i] = ch_var_ref(v[i]);
    for (int i = 0; i < m->e->n_vars && is_split; i++) {
        ch_var *of = ch_layer_var(l, m->e->var[i].name);

        assert_non_null(of);
        t_ok(ch_var_split(of, ch_var_shape(of).rank, m->e->var[i].split));
    }
}

/* Checks that every tile of a variable and of its slot has the sizes of its split. */
static inline void check_tiles(ch_strategy *st, const model *m, const char *slot, int i)
{
    const param *p = &m->e->var[i];
    ch_var      *of = m->net != NULL ? ch_layer_var(ch_model_layer(m->net), p->name) : m->v[i];
    ch_shape     shape = ch_var_shape(of);
    int          n = ch_strategy_logical_devices(st);
    ch_var      *v[2] = {of, slot != NULL ? ch_optimizer_slot(m->o, of, slot) : NULL};

    assert_true(slot == NULL || v[1] != NULL);
    for (int k = 0; k < 2 && v[k] != NULL; k++)
        for (int c = 0; c < n; c++) {
            ch_tensor *t = NULL;

            t_ok(ch_var_get_tile(v[k], 0, c, &t));
            for (int d = 0; d < shape.rank; d++) {
                int64_t size = shape.dim[d];

                assert_int_equal(ch_tensor_shape(t).dim[d],
                                 p->split[d] == 0 ? size / n + (c < size % n) : size);
            }
            ch_tensor_unref(t);
        }
}

/* ---- runs ---- */

/* Gives each replica its share of the rows of a batch. */
static inline ch_value *batch(ch_strategy *st, ch_dtype dtype, int rows, int width,
                              unsigned seed)
{
    int        n = ch_strategy_replicas(st);
    ch_tensor *all = noise(dtype, ch_shape_of(rows, width), seed), *part[T_MOST_DEVICES];
    ch_value  *v = NULL;

    for (int r = 0, at = 0; r < n; r++) {
        int have = rows / n + (r < rows % n);

        t_ok(ch_tensor_slice(all, 0, at, at + have, 1, &part[r]));
        at += have;
    }
    t_ok(ch_value_new(n > 1 ? CH_PER_REPLICA : CH_PLAIN, n, part, &v));
    for (int r = 0; r < n; r++)
        ch_tensor_unref(part[r]);
    ch_tensor_unref(all);
    return v;
}

/* Runs the step on batch `step`. Sets *loss if the run succeeds. */
static inline ch_status try_step(ch_strategy *st, ch_function *f, const model *m, int step,
                                 double *loss)
{
    int       rows = step % 5 == 4 ? SHORT : ROWS;
    ch_value *v[2] = {batch(st, m->dtype, rows, m->e->n_in, (unsigned)step),
                      batch(st, m->dtype, rows, m->e->n_out, (unsigned)step + 1000)};
    ch_tuple *in = NULL, *out = NULL;
    ch_status rc;

    t_ok(ch_tuple_new(2, v, NULL, &in));
    rc = ch_strategy_run(st, f, in, &out);
    if (rc == CH_OK)
        *loss = number(ch_value_at(ch_tuple_at(out, 0), 0), 0);
    for (int i = 0; i < 2; i++)
        ch_value_unref(v[i]);
    ch_tuple_unref(in);
    ch_tuple_unref(out);
    return rc;
}

static inline void add_value(result *to, ch_var *v)
{
    ch_tensor *t = NULL;

    t_ok(ch_var_get(v, &t));
    assert_in_range(ch_tensor_count(t), 1, MOST);
    assert_in_range(to->n, 0, MOST_VARS * 5 - 1);
    for (int64_t k = 0; k < ch_tensor_count(t); k++)
        to->value[to->n][k] = number(t, k);
    to->n++;
    ch_tensor_unref(t);
}

/* Trains the example. Takes over the reference to the strategy. */
static inline void train_under(ch_strategy *st, const example *e, way how, bool is_split,
                               result *out)
{
    model          m = {.e = e, .dtype = how == DOUBLES ? CH_F64 : CH_F32};
    ch_function   *f = t_function(train, &m);
    ch_var *const *slot = NULL;
    int            n_slots;

    memset(out, 0, sizeof(*out));
    new_optimizer(&m, how == FLOATS_SGD);
    if (e->layer != NULL)
        new_net(st, &m, is_split);
    else
        new_vars(st, &m, is_split);
    for (int i = 0; i < STEPS; i++)
        t_ok(try_step(st, f, &m, i, &out->loss[i]));
    for (int i = 0; i < m.n; i++)
        add_value(out, m.v[i]);
    out->n_weights = out->n;
    n_slots = ch_optimizer_vars(m.o, &slot);
    for (int i = 0; i < n_slots; i++)
        add_value(out, slot[i]);
    for (int i = 0; i < e->n_vars && is_split; i++) {
        check_tiles(st, &m, how == FLOATS_SGD ? NULL : "m", i);
        check_tiles(st, &m, e->options.average > 0 ? "average" : NULL, i);
    }
    for (int i = 0; i < m.n; i++)
        ch_var_unref(m.v[i]);
    ch_function_unref(f);
    ch_optimizer_unref(m.o);
    ch_model_unref(m.net);
    ch_strategy_unref(st);
}

/* Returns a strategy with replicas of one device each. */
static inline ch_strategy *unsharded(int n_replicas)
{
    ch_strategy *st = NULL;

    if (n_replicas > 1)
        return t_mirrored(n_replicas);
    t_ok(ch_strategy_one_device("GPU:0", &st));
    return st;
}

/* Compares the losses, and the values of the first n variables. */
static inline void check_close(const result *a, const result *b, int n, double tolerance)
{
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < STEPS; i++)
        if (!(fabs(a->loss[i] - b->loss[i]) <= tolerance))
            fail_msg("loss %d is %.12g, want %.12g", i, a->loss[i], b->loss[i]);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < MOST; k++)
            if (!(fabs(a->value[i][k] - b->value[i][k]) <= tolerance))
                fail_msg("element %d of variable %d of %d and %d is %.12g, want %.12g", k, i,
                         b->n_weights, b->n - b->n_weights, a->value[i][k], b->value[i][k]);
}

/* Trains an example on replicas of several devices; mesh[0] 0: a mesh of one axis. Two runs on
 * the same devices must have the same bits. want[i] is the unsharded run in way i. */
static inline void check_against(const result *want, const example *e, int n_replicas,
                                 int n_cores, const int *mesh, bool is_split)
{
    static result got, again;
    static int    turn;
    const char   *cases = getenv("T_CASES");
    bool          all = cases != NULL && atoi(cases) >= 1000;

    turn++;
    for (way how = DOUBLES; how < WAYS; how++) {
        double tolerance = how == DOUBLES ? 1e-10 : 1e-4;
        int    n = how == DOUBLES ? want[how].n : how == FLOATS_SGD ? want[how].n_weights : 0;

        if (!all && how != DOUBLES && turn % 3 != (int)how)
            continue;
        train_under(t_cores_strategy(n_replicas, n_cores, mesh), e, how, is_split, &got);
        check_close(&got, &want[how], n, tolerance);
        if (!all && (how == FLOATS_SGD || (how == DOUBLES && turn % 3 != 0)))
            continue;
        train_under(t_cores_strategy(n_replicas, n_cores, mesh), e, how, is_split, &again);
        assert_memory_equal(&got, &again, sizeof(got));
    }
}

static inline const result *train_unsharded(const example *e, int n_replicas)
{
    static result want[WAYS];

    for (way how = DOUBLES; how < WAYS; how++)
        train_under(unsharded(n_replicas), e, how, false, &want[how]);
    assert_true(want[0].loss[STEPS - 1] > 0 && isfinite(want[0].loss[STEPS - 1]));
    return want;
}

/* Compares replicas of n_cores[0] to n_cores[n - 1] devices with replicas of one device. */
static inline void check_training(const example *e, int n_replicas, int n, const int *n_cores,
                                  bool is_split)
{
    const result *want = train_unsharded(e, n_replicas);

    for (int i = 0; i < n; i++)
        check_against(want, e, n_replicas, n_cores[i], (int[]){0}, is_split);
}

/* Trains an example on meshes of two axes. */
static inline void check_meshes(const example *e, int n, const int (*mesh)[3])
{
    const result *want = train_unsharded(e, 1);

    for (int i = 0; i < n; i++)
        check_against(want, e, 1, mesh[i][0] * mesh[i][1], mesh[i], false);
}

static const int core_numbers[] = {1, 2, 3, 4, 6, 8};

/* Trains an example, whose variables are split, on every number of cores. */
static inline void check_all_numbers(const example *e)
{
    check_training(e, 1, (int)(sizeof(core_numbers) / sizeof(core_numbers[0])), core_numbers,
                   true);
}

#endif

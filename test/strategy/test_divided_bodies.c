/* test/strategy/test_divided_bodies.c -- scan, while and cond in steps that the logical devices
 * of a replica execute together.
 *
 * Each example records a step with bodies, and its gradients. The model is the same step under
 * OneDevice: all results must be equal up to the order of summation. Variables and inputs are
 * split in ways that need exchanges inside the bodies. Sizes are small and mostly odd, so that
 * parts are uneven, and some cores have none.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "base/config.h"
#include "cores.h"
#include "graph/function.h"

enum { MOST_VARS = 8, MOST_OUT = 16, MOST = 1 << 12, ROWS = 6 };

typedef struct param {
    const char *name;
    ch_shape    shape;
    int         split[3];
} param;

typedef struct example {
    const char  *name;
    ch_shape     x; /* of the input */
    int          n_vars;
    const param *var;
    /* Records the loss, a scalar; may make further results. */
    ch_node *(*loss)(ch_step *s, ch_node *x, ch_node **w);
} example;

typedef struct model {
    const example *e;
    ch_var        *v[MOST_VARS];
} model;

typedef struct result {
    int     n;
    int64_t count[MOST_OUT];
    double  at[MOST_OUT][MOST];
} result;

static ch_tensor *noise(ch_shape shape, unsigned seed)
{
    ch_tensor *t = NULL;
    double    *at;

    t_ok(ch_tensor_new(CH_F64, shape, &t));
    at = ch_tensor_data_mut(t);
    for (int64_t i = 0; i < ch_tensor_count(t); i++) {
        seed = seed * 1664525u + 1013904223u;
        at[i] = (double)(seed >> 8) / (1 << 23) - 1;
    }
    return t;
}

/* Records the loss and its gradients. */
static void record(ch_step *s, void *arg)
{
    model   *m = arg;
    ch_node *x = ch_step_in(s, 0), *w[MOST_VARS + 1], *grad[MOST_VARS + 1], *loss;
    int      n = m->e->n_vars;

    for (int i = 0; i < n; i++)
        w[i] = ch_var_read(s, m->v[i]);
    w[n] = x;
    loss = m->e->loss(s, x, w);
    ch_step_out(s, "loss", loss);
    ch_gradients(loss, NULL, n + 1, w, grad);
    for (int i = 0; i <= n; i++)
        ch_step_out(s, NULL, grad[i]);
}

static ch_strategy *one_device(void)
{
    ch_strategy *st = NULL;

    t_ok(ch_strategy_one_device("GPU:0", &st));
    return st;
}

/* Runs an example twice, and returns the results of the second run. Takes over the reference to
 * the strategy. */
static ch_traffic_counts run_under(ch_strategy *st, const example *e, bool is_split,
                                   result *out)
{
    model             m = {.e = e};
    ch_function      *f = t_function(record, &m);
    ch_tuple         *in = t_tuple(1, (ch_tensor *[]){noise(e->x, 7)}), *got = NULL;
    ch_traffic_counts traffic;

    for (int i = 0; i < e->n_vars; i++)
        t_ok(ch_var_new(st,
                        &(ch_var_spec){.name = e->var[i].name,
                                       .dtype = CH_F64,
                                       .shape = e->var[i].shape,
                                       .init = ch_init_uniform(-0.5, 0.5),
                                       .split = is_split ? e->var[i].split : NULL,
                                       .n_split = e->var[i].shape.rank},
                        &m.v[i]));
    t_ok(ch_strategy_run(st, f, in, &got));
    ch_tuple_unref(got);
    t_ok(ch_strategy_run(st, f, in, &got));
    memset(out, 0, sizeof(*out));
    out->n = ch_tuple_count(got);
    for (int i = 0; i < out->n; i++) {
        const ch_tensor *t = ch_value_at(ch_tuple_at(got, i), 0);

        out->count[i] = ch_tensor_count(t);
        assert_int_equal(ch_tensor_dtype(t), CH_F64);
        assert_true(out->count[i] <= MOST);
        memcpy(out->at[i], ch_tensor_data(t), (size_t)out->count[i] * sizeof(double));
    }
    ch__function_traffic(f, &traffic);
    ch_tuple_unref(got);
    ch_tuple_unref(in);
    for (int i = 0; i < e->n_vars; i++)
        ch_var_unref(m.v[i]);
    ch_function_unref(f);
    ch_strategy_unref(st);
    return traffic;
}

static void check_equal(const example *e, int n_cores, const result *got, const result *want)
{
    assert_int_equal(got->n, want->n);
    for (int i = 0; i < want->n; i++) {
        assert_int_equal(got->count[i], want->count[i]);
        for (int64_t k = 0; k < want->count[i]; k++)
            if (!(fabs(got->at[i][k] - want->at[i][k]) <= 1e-11))
                fail_msg("%s on %d cores: element %d of result %d is %.15g, want %.15g",
                         e->name, n_cores, (int)k, i, got->at[i][k], want->at[i][k]);
    }
}

/* Runs an example on several numbers of cores, on threads and in turns. */
static void check(const example *e)
{
    static const int n_cores[] = {2, 3, 4, 8};
    static result    want, got, again;

    run_under(one_device(), e, false, &want);
    for (int i = 0; i < 4; i++)
        for (int is_split = 0; is_split < 2; is_split++) {
            t_ok(ch__config_set("replicas", "turns"));
            run_under(t_cores_strategy(1, n_cores[i], NULL), e, is_split, &got);
            check_equal(e, n_cores[i], &got, &want);
            t_ok(ch__config_set("replicas", "threads"));
            run_under(t_cores_strategy(1, n_cores[i], NULL), e, is_split, &again);
            assert_memory_equal(&got, &again, sizeof(got));
        }
}

/* ---- scan ---- */

enum { IN = 3, UNITS = 5, TIME = 4 };

static ch_node *zeros(ch_step *s, int64_t rows, int64_t units)
{
    return ch_fill(s, CH_F64, ch_shape_of(rows, units), 0);
}

static void rnn_cell(ch_step *s, void *arg, ch_node *const *h, ch_node *const *x,
                     ch_node **next, ch_node **y)
{
    ch_node *const *w = arg;

    (void)s;
    next[0] = ch_tanh(
        ch_add(ch_add(ch_matmul(x[0], false, w[0], false), ch_matmul(h[0], false, w[1], false)),
               w[2]));
    y[0] = next[0];
}

/* Scans x, and returns a loss of the outputs and the last carry. */
static ch_node *scan_loss(ch_step *s, ch_scan_fn cell, ch_node *x, ch_node **w)
{
    ch_scan_spec spec = {.n_carry = 1, .n_x = 1, .n_y = 1};
    ch_node     *h = zeros(s, ROWS, UNITS), *last = NULL, *ys = NULL;

    ch_scan(s, &spec, cell, w, &h, &x, &last, &ys);
    ch_step_out(s, "ys", ys);
    return ch_add(ch_sum_all(ch_square(ys)), ch_sum_all(last));
}

static ch_node *rnn_loss(ch_step *s, ch_node *x, ch_node **w)
{
    return scan_loss(s, rnn_cell, x, w);
}

#define RNN_SHAPE                                                                              \
    {                                                                                          \
        .rank = 3, .dim = { TIME, ROWS, IN }                                                   \
    }

static const example rnn_by_units = {
    .name = "rnn by units",
    .x = RNN_SHAPE,
    .n_vars = 3,
    .var = (const param[]){{"wx", {.rank = 2, .dim = {IN, UNITS}}, {CH_OFF, 0}},
                           {"wh", {.rank = 2, .dim = {UNITS, UNITS}}, {CH_OFF, 0}},
                           {"b", {.rank = 1, .dim = {UNITS}}, {0}}},
    .loss = rnn_loss};
static const example rnn_by_inputs = {
    .name = "rnn by inputs of the kernels",
    .x = RNN_SHAPE,
    .n_vars = 3,
    .var = (const param[]){{"wx", {.rank = 2, .dim = {IN, UNITS}}, {0, CH_OFF}},
                           {"wh", {.rank = 2, .dim = {UNITS, UNITS}}, {0, CH_OFF}},
                           {"b", {.rank = 1, .dim = {UNITS}}, {CH_OFF}}},
    .loss = rnn_loss};

static ch_node *rows_loss(ch_step *s, ch_node *x, ch_node **w)
{
    return rnn_loss(s, ch_mesh_split(x, 3, (int[]){CH_OFF, 0, CH_OFF}), w);
}
static ch_node *time_loss(ch_step *s, ch_node *x, ch_node **w)
{
    return rnn_loss(s, ch_mesh_split(x, 3, (int[]){0, CH_OFF, CH_OFF}), w);
}

static const example rnn_by_rows = {
    .name = "rnn by rows",
    .x = RNN_SHAPE,
    .n_vars = 3,
    .var = (const param[]){{"wx", {.rank = 2, .dim = {IN, UNITS}}, {CH_OFF, CH_OFF}},
                           {"wh", {.rank = 2, .dim = {UNITS, UNITS}}, {CH_OFF, CH_OFF}},
                           {"b", {.rank = 1, .dim = {UNITS}}, {CH_OFF}}},
    .loss = rows_loss};
static const example rnn_by_time = {
    .name = "rnn whose slices are on different cores",
    .x = RNN_SHAPE,
    .n_vars = 3,
    .var = (const param[]){{"wx", {.rank = 2, .dim = {IN, UNITS}}, {0, CH_OFF}},
                           {"wh", {.rank = 2, .dim = {UNITS, UNITS}}, {CH_OFF, 0}},
                           {"b", {.rank = 1, .dim = {UNITS}}, {0}}},
    .loss = time_loss};

static void scans_give_the_results_of_one_device(void **state)
{
    (void)state;
    check(&rnn_by_units);
    check(&rnn_by_inputs);
    check(&rnn_by_rows);
    check(&rnn_by_time);
}

/* A cell whose state has another layout inside than outside: reversed and normalised along the
 * axis that is split. */
static void mixing_cell(ch_step *s, void *arg, ch_node *const *h, ch_node *const *x,
                        ch_node **next, ch_node **y)
{
    ch_node *const *w = arg;
    ch_node        *z = ch_softmax(ch_add(h[0], ch_matmul(x[0], false, w[0], false)), -1);

    (void)s;
    z = ch_mesh_split(z, 2, (int[]){CH_OFF, 0});
    next[0] = ch_reverse(z, 1, (int[]){1});
    next[1] = ch_add(h[1], ch_sum_all(ch_mul(z, w[1])));
    y[0] = ch_mesh_split(ch_dropout(next[0], 0.3, 5), 2, (int[]){0, CH_OFF});
}

static ch_node *mixing_loss(ch_step *s, ch_node *x, ch_node **w)
{
    ch_scan_spec spec = {.n_carry = 2, .n_x = 1, .n_y = 1, .reverse = true};
    ch_node     *h[2] = {zeros(s, ROWS, UNITS), ch_fill(s, CH_F64, ch_shape_scalar(), 0)};
    ch_node     *last[2] = {NULL}, *ys = NULL;

    ch_scan(s, &spec, mixing_cell, w, h, &x, last, &ys);
    ch_step_out(s, "ys", ys);
    return ch_add(ch_sum_all(ch_mul(last[0], w[1])),
                  ch_mul(last[1], ch_sum_all(ch_square(ys))));
}

static const example mixing = {
    .name = "mixed layouts",
    .x = RNN_SHAPE,
    .n_vars = 2,
    .var = (const param[]){{"wx", {.rank = 2, .dim = {IN, UNITS}}, {CH_OFF, 0}},
                           {"m", {.rank = 2, .dim = {ROWS, UNITS}}, {0, CH_OFF}}},
    .loss = mixing_loss};

static void body_with_other_layouts_than_its_step_gives_the_results_of_one_device(void **state)
{
    (void)state;
    check(&mixing);
}

/* ---- while ---- */

typedef struct search {
    ch_node *w, *bound;
} search;

static ch_node *is_large(ch_step *s, void *arg, ch_node *const *state)
{
    search *a = arg;

    (void)s;
    return ch_greater(ch_sum_all(ch_square(state[0])), a->bound);
}

static void shrink(ch_step *s, void *arg, ch_node *const *state, ch_node **next)
{
    search *a = arg;

    next[0] = ch_mul(ch_tanh(ch_matmul(state[0], false, a->w, false)), ch_number(s, 0.9));
    next[1] = ch_add(state[1], ch_cast(ch_fill(s, CH_F64, ch_shape_scalar(), 1), CH_F64));
}

static ch_node *search_loss(ch_step *s, ch_node *x, ch_node **w)
{
    search   a = {w[0], ch_fill(s, CH_F64, ch_shape_scalar(), 0.01)};
    ch_node *state[2] = {x, ch_fill(s, CH_F64, ch_shape_scalar(), 0)}, *last[2] = {NULL};

    state[0] = ch_add(ch_mul(w[1], ch_number(s, 0.1)), x);
    ch_while(s, 2, 40, is_large, shrink, &a, state, last);
    ch_step_out(s, "iterations", last[1]);
    ch_step_out(s, "state", last[0]);
    return ch_add(ch_sum_all(ch_square(last[0])), ch_sum_all(last[0]));
}

static ch_node *search_rows_loss(ch_step *s, ch_node *x, ch_node **w)
{
    return search_loss(s, ch_mesh_split(x, 2, (int[]){0, CH_OFF}), w);
}

static const example search_by_units = {
    .name = "while, by units",
    .x = {.rank = 2, .dim = {ROWS, UNITS}},
    .n_vars = 2,
    .var = (const param[]){{"w", {.rank = 2, .dim = {UNITS, UNITS}}, {CH_OFF, 0}},
                           {"m", {.rank = 1, .dim = {UNITS}}, {0}}},
    .loss = search_loss};
static const example search_by_rows = {
    .name = "while, by rows",
    .x = {.rank = 2, .dim = {ROWS, UNITS}},
    .n_vars = 2,
    .var = (const param[]){{"w", {.rank = 2, .dim = {UNITS, UNITS}}, {CH_OFF, CH_OFF}},
                           {"m", {.rank = 1, .dim = {UNITS}}, {CH_OFF}}},
    .loss = search_rows_loss};

static void loops_with_a_condition_make_the_iterations_of_one_device(void **state)
{
    (void)state;
    check(&search_by_units);
    check(&search_by_rows);
}

/* ---- cond ---- */

typedef struct choice {
    ch_node *x, **w;
} choice;

static void product(ch_step *s, void *arg, ch_node **out)
{
    choice *c = arg;

    (void)s;
    out[0] = ch_matmul(ch_tanh(ch_matmul(c->x, false, c->w[0], false)), false, c->w[1], false);
    out[1] = ch_sum_all(c->x);
}

static void reversed(ch_step *s, void *arg, ch_node **out)
{
    choice *c = arg;

    (void)s;
    out[0] = ch_reverse(ch_mul(c->x, c->x), 1, (int[]){1});
    out[1] = ch_mean_all(ch_matmul(c->x, false, c->w[0], false));
}

/* Records both kinds of condition: the first holds, the second does not. */
static ch_node *choice_loss(ch_step *s, ch_node *x, ch_node **w)
{
    choice   c = {x, w};
    ch_node *out[2] = {NULL}, *zero = ch_fill(s, CH_F64, ch_shape_scalar(), 0);

    ch_cond(ch_greater(ch_sum_all(ch_square(x)), zero), 2, product, reversed, &c, out);
    c.x = out[0];
    ch_step_out(s, "first", out[0]);
    ch_cond(ch_less(ch_sum_all(ch_square(x)), zero), 2, product, reversed, &c, out);
    ch_step_out(s, "second", out[0]);
    return ch_add(ch_sum_all(ch_square(out[0])), out[1]);
}

static const example choice_by_units = {
    .name = "cond",
    .x = {.rank = 2, .dim = {ROWS, UNITS}},
    .n_vars = 2,
    .var = (const param[]){{"w", {.rank = 2, .dim = {UNITS, 7}}, {CH_OFF, 0}},
                           {"v", {.rank = 2, .dim = {7, UNITS}}, {0, CH_OFF}}},
    .loss = choice_loss};
static const example choice_by_columns = {
    .name = "cond, the other way",
    .x = {.rank = 2, .dim = {ROWS, UNITS}},
    .n_vars = 2,
    .var = (const param[]){{"w", {.rank = 2, .dim = {UNITS, 7}}, {0, CH_OFF}},
                           {"v", {.rank = 2, .dim = {7, UNITS}}, {CH_OFF, 0}}},
    .loss = choice_loss};

static void branches_give_the_results_of_one_device(void **state)
{
    (void)state;
    check(&choice_by_units);
    check(&choice_by_columns);
}

/* ---- nested bodies ---- */

static void inner_cell(ch_step *s, void *arg, ch_node *const *h, ch_node *const *x,
                       ch_node **next, ch_node **y)
{
    choice   c = {h[0], arg};
    ch_node *out[2] = {NULL};

    (void)x, (void)y;
    ch_cond(ch_greater(ch_sum_all(h[0]), ch_fill(s, CH_F64, ch_shape_scalar(), 0)), 2, product,
            reversed, &c, out);
    next[0] = ch_tanh(ch_add(out[0], h[0]));
}

static void outer_cell(ch_step *s, void *arg, ch_node *const *h, ch_node *const *x,
                       ch_node **next, ch_node **y)
{
    ch_node *z = ch_add(h[0], x[0]);

    ch_scan(s, &(ch_scan_spec){.n_carry = 1, .length = 2}, inner_cell, arg, &z, NULL, &next[0],
            NULL);
    y[0] = ch_sum(next[0], 1, (int[]){1}, false);
}

static ch_node *nested_loss(ch_step *s, ch_node *x, ch_node **w)
{
    return scan_loss(s, outer_cell, x, w);
}

static const example nested = {
    .name = "nested bodies",
    .x = {.rank = 3, .dim = {3, ROWS, UNITS}},
    .n_vars = 2,
    .var = (const param[]){{"w", {.rank = 2, .dim = {UNITS, 7}}, {CH_OFF, 0}},
                           {"v", {.rank = 2, .dim = {7, UNITS}}, {0, CH_OFF}}},
    .loss = nested_loss};

static void nested_bodies_give_the_results_of_one_device(void **state)
{
    (void)state;
    check(&nested);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scans_give_the_results_of_one_device),
        cmocka_unit_test(body_with_other_layouts_than_its_step_gives_the_results_of_one_device),
        cmocka_unit_test(loops_with_a_condition_make_the_iterations_of_one_device),
        cmocka_unit_test(branches_give_the_results_of_one_device),
        cmocka_unit_test(nested_bodies_give_the_results_of_one_device),
    };

    return cmocka_run_group_tests(tests, t_eight_gpus, NULL);
}

/* test/strategy/test_divided.c -- steps that the logical devices of a replica execute together:
 * training gives the weights of the unsharded run.
 *
 * Each example has variables with splits, which most numbers of logical devices do not divide
 * evenly. Batches have 16 rows, every fifth batch has 7. The unsharded run is the same step under
 * OneDevice. Weights are compared in f64 with Adam, and in f32 with SGD: in f32 Adam turns the
 * rounding noise of a gradient of zero into steps.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "cores.h"

enum { ROWS = 16, SHORT = 7, MOST_VARS = 8, STEPS = 50, MOST = 1024 };

/* A variable of an example. */
typedef struct param {
    const char *name;
    ch_shape    shape;
    int         split[4];
} param;

typedef struct example {
    int          n_in, n_out; /* numbers of each row of the two inputs */
    int          n_vars;
    const param *var;
    /* Records the loss of each row. */
    ch_node *(*loss)(ch_node *x, ch_node *y, ch_node *const *w);
    ch_optimizer_options options;
} example;

typedef struct model {
    const example *e;
    ch_dtype       dtype;
    ch_optimizer  *o;
    ch_var        *v[MOST_VARS];
} model;

typedef struct result {
    double loss[STEPS];
    double weight[MOST_VARS][MOST];
} result;

/* Returns a tensor of numbers in [-1, 1) that depend only on the seed. */
static ch_tensor *noise(ch_dtype dtype, ch_shape shape, unsigned seed)
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

static double number(const ch_tensor *t, int64_t i)
{
    return ch_tensor_dtype(t) == CH_F64 ? ((const double *)ch_tensor_data(t))[i]
                                        : (double)((const float *)ch_tensor_data(t))[i];
}

static void train(ch_step *s, void *arg)
{
    model   *m = arg;
    ch_node *x = ch_step_in(s, 0), *y = ch_step_in(s, 1), *w[MOST_VARS], *loss;

    for (int i = 0; i < m->e->n_vars; i++)
        w[i] = ch_var_read(s, m->v[i]);
    loss = ch_loss_average(m->e->loss(x, y, w), NULL);
    ch_optimizer_minimize(m->o, s, loss, m->e->n_vars, m->v);
    ch_step_out(s, "loss", ch_all_reduce(CH_SUM, loss));
}

static void new_vars(ch_strategy *st, model *m, bool is_split)
{
    for (int i = 0; i < m->e->n_vars; i++) {
        const param *p = &m->e->var[i];

        t_ok(ch_var_new(st,
                        &(ch_var_spec){.name = p->name,
                                       .dtype = m->dtype,
                                       .shape = p->shape,
                                       .init = ch_init_uniform(-0.3, 0.3),
                                       .split = is_split ? p->split : NULL,
                                       .n_split = p->shape.rank},
                        &m->v[i]));
    }
}

/* Checks that every tile of a variable and of its slot has the sizes of its split. */
static void check_tiles(ch_strategy *st, const model *m, bool adam, int i)
{
    const param *p = &m->e->var[i];
    int          n = ch_strategy_logical_devices(st);
    ch_var      *v[2] = {m->v[i], adam ? ch_optimizer_slot(m->o, m->v[i], "m") : NULL};

    for (int k = 0; k < 2 && v[k] != NULL; k++)
        for (int c = 0; c < n; c++) {
            ch_tensor *t = NULL;

            t_ok(ch_var_get_tile(v[k], 0, c, &t));
            for (int d = 0; d < p->shape.rank; d++) {
                int64_t size = p->shape.dim[d];

                assert_int_equal(ch_tensor_shape(t).dim[d],
                                 p->split[d] == 0 ? size / n + (c < size % n) : size);
            }
            ch_tensor_unref(t);
        }
}

/* Gives each replica its share of the rows of a batch. */
static ch_value *batch(ch_strategy *st, ch_dtype dtype, int rows, int width, unsigned seed)
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

static void run_step(ch_strategy *st, ch_function *f, const model *m, int step, double *loss)
{
    int       rows = step % 5 == 4 ? SHORT : ROWS;
    ch_value *v[2] = {batch(st, m->dtype, rows, m->e->n_in, (unsigned)step),
                      batch(st, m->dtype, rows, m->e->n_out, (unsigned)step + 1000)};
    ch_tuple *in = NULL, *out = NULL;

    t_ok(ch_tuple_new(2, v, NULL, &in));
    t_ok(ch_strategy_run(st, f, in, &out));
    *loss = number(ch_value_at(ch_tuple_at(out, 0), 0), 0);
    for (int i = 0; i < 2; i++)
        ch_value_unref(v[i]);
    ch_tuple_unref(in);
    ch_tuple_unref(out);
}

/* Trains the model. Takes over the reference to the strategy. */
static void train_under(ch_strategy *st, const example *e, bool adam, bool is_split,
                        result *out)
{
    model        m = {.e = e, .dtype = adam ? CH_F64 : CH_F32};
    ch_function *f = t_function(train, &m);

    memset(out, 0, sizeof(*out));
    if (adam)
        t_ok(ch_optimizer_adam(0.01, NULL, &e->options, &m.o));
    else
        t_ok(ch_optimizer_sgd(0.1, NULL, &e->options, &m.o));
    new_vars(st, &m, is_split);
    for (int i = 0; i < STEPS; i++)
        run_step(st, f, &m, i, &out->loss[i]);
    for (int i = 0; i < e->n_vars; i++) {
        ch_tensor *t = NULL;

        t_ok(ch_var_get(m.v[i], &t));
        assert_true(ch_tensor_count(t) <= MOST);
        for (int64_t k = 0; k < ch_tensor_count(t); k++)
            out->weight[i][k] = number(t, k);
        ch_tensor_unref(t);
        if (is_split)
            check_tiles(st, &m, adam, i);
        ch_var_unref(m.v[i]);
    }
    ch_function_unref(f);
    ch_optimizer_unref(m.o);
    ch_strategy_unref(st);
}

static ch_strategy *one_device(void)
{
    ch_strategy *st = NULL;

    t_ok(ch_strategy_one_device("GPU:0", &st));
    return st;
}

static void check_close(const result *a, const result *b, double tolerance)
{
    for (int i = 0; i < STEPS; i++)
        if (!(fabs(a->loss[i] - b->loss[i]) <= tolerance))
            fail_msg("loss %d is %.12g, want %.12g", i, a->loss[i], b->loss[i]);
    for (int i = 0; i < MOST_VARS; i++)
        for (int k = 0; k < MOST; k++)
            if (!(fabs(a->weight[i][k] - b->weight[i][k]) <= tolerance))
                fail_msg("weight %d of variable %d is %.12g, want %.12g", k, i, a->weight[i][k],
                         b->weight[i][k]);
}

/* Trains an example on n_replicas * n_cores[i] devices, and compares it with one device. */
static void check_training(const example *e, int n_replicas, int n, const int *n_cores,
                           bool is_split)
{
    static result want[2], got, again;

    train_under(one_device(), e, true, false, &want[0]);
    train_under(one_device(), e, false, false, &want[1]);
    assert_true(want[0].loss[STEPS - 1] > 0 && isfinite(want[0].loss[STEPS - 1]));
    for (int i = 0; i < n; i++) {
        train_under(t_cores_strategy(n_replicas, n_cores[i], NULL), e, true, is_split, &got);
        check_close(&got, &want[0], 1e-10);
        train_under(t_cores_strategy(n_replicas, n_cores[i], NULL), e, true, is_split, &again);
        assert_memory_equal(&got, &again, sizeof(got));
        train_under(t_cores_strategy(n_replicas, n_cores[i], NULL), e, false, is_split, &got);
        check_close(&got, &want[1], 1e-4);
    }
}

static const int core_numbers[] = {1, 2, 3, 4, 6, 8};

/* ---- two layers, split by units ---- */

static ch_node *mlp_loss(ch_node *x, ch_node *y, ch_node *const *w)
{
    x = ch_tanh(ch_add(ch_matmul(x, false, w[0], false), w[1]));
    return ch_loss_mse(ch_add(ch_matmul(x, false, w[2], false), w[3]), y);
}

static const example mlp = {
    .n_in = 12,
    .n_out = 5,
    .n_vars = 4,
    .var = (const param[]){{"k1", {.rank = 2, .dim = {12, 30}}, {CH_OFF, 0}},
                           {"b1", {.rank = 1, .dim = {30}}, {0}},
                           {"k2", {.rank = 2, .dim = {30, 5}}, {0, CH_OFF}},
                           {"b2", {.rank = 1, .dim = {5}}, {CH_OFF}}},
    .loss = mlp_loss};

static void layers_split_by_units_train_as_on_one_device(void **state)
{
    (void)state;
    check_training(&mlp, 1, 6, core_numbers, true);
}

static void layers_on_every_core_train_as_on_one_device(void **state)
{
    (void)state;
    check_training(&mlp, 1, 1, (int[]){4}, false);
}

static void replicas_of_two_cores_train_as_one_device(void **state)
{
    (void)state;
    check_training(&mlp, 2, 1, (int[]){2}, true);
    check_training(&mlp, 2, 1, (int[]){2}, false);
    check_training(&mlp, 2, 1, (int[]){4}, true);
}

/* ---- a classifier, split by classes, with dropout and limits of gradients ---- */

static ch_node *class_of(ch_node *x)
{
    ch_node *first = ch_slice(x, 2, (int64_t[]){0, 0}, (int64_t[]){-1, 1});

    first = ch_reshape(first, ch_shape_of(-1));
    return ch_cast(ch_floor(ch_mul(ch_add(first, ch_number(ch_node_step(x), 1)),
                                   ch_number(ch_node_step(x), 5))),
                   CH_I64);
}

static ch_node *classifier_loss(ch_node *x, ch_node *y, ch_node *const *w)
{
    x = ch_relu(ch_add(ch_matmul(x, false, w[0], false), w[1]));
    x = ch_dropout(x, 0.3, 5);
    x = ch_add(ch_matmul(x, false, w[2], false), w[3]);
    return ch_loss_sparse_categorical(x, class_of(y));
}

static const example classifier = {
    .n_in = 12,
    .n_out = 2,
    .n_vars = 4,
    .var = (const param[]){{"k1", {.rank = 2, .dim = {12, 30}}, {CH_OFF, 0}},
                           {"b1", {.rank = 1, .dim = {30}}, {0}},
                           {"k2", {.rank = 2, .dim = {30, 10}}, {CH_OFF, 0}},
                           {"b2", {.rank = 1, .dim = {10}}, {0}}},
    .loss = classifier_loss,
    .options = {.clip_global_norm = 0.5, .average = 0.9}};

static void classes_are_split_and_dropout_is_the_same(void **state)
{
    (void)state;
    check_training(&classifier, 1, 6, core_numbers, true);
}

/* ---- an image, split by rows ---- */

static ch_node *image_loss(ch_node *x, ch_node *y, ch_node *const *w)
{
    x = ch_reshape(x, ch_shape_of(-1, 8, 6, 2));
    x = ch_mesh_split(x, 4, (int[]){CH_OFF, 0, CH_OFF, CH_OFF});
    x = ch_tanh(ch_conv2d(x, w[0], &(ch_conv_options){.padding = CH_PAD_SAME}));
    x = ch_max_pool2d(x, NULL);
    x = ch_reshape(x, ch_shape_of(-1, 4 * 3 * 4));
    return ch_loss_mse(ch_matmul(x, false, w[1], false), y);
}

static const example image = {
    .n_in = 8 * 6 * 2,
    .n_out = 3,
    .n_vars = 2,
    .var =
        (const param[]){
            {"filter", {.rank = 4, .dim = {3, 3, 2, 4}}, {CH_OFF, CH_OFF, CH_OFF, CH_OFF}},
            {"k", {.rank = 2, .dim = {48, 3}}, {CH_OFF, CH_OFF}}},
    .loss = image_loss};

static void images_split_by_rows_train_as_on_one_device(void **state)
{
    (void)state;
    check_training(&image, 1, 6, core_numbers, true);
}

/* ---- a table in tiles ---- */

static ch_node *table_loss(ch_node *x, ch_node *y, ch_node *const *w)
{
    x = ch_tanh(ch_gather(w[0], class_of(x), 0));
    return ch_loss_mse(ch_matmul(x, false, w[1], false), y);
}

static const example rows_of_table = {
    .n_in = 2,
    .n_out = 3,
    .n_vars = 2,
    .var = (const param[]){{"table", {.rank = 2, .dim = {10, 6}}, {0, CH_OFF}},
                           {"k", {.rank = 2, .dim = {6, 3}}, {CH_OFF, CH_OFF}}},
    .loss = table_loss};
static const example columns_of_table = {
    .n_in = 2,
    .n_out = 3,
    .n_vars = 2,
    .var = (const param[]){{"table", {.rank = 2, .dim = {10, 6}}, {CH_OFF, 0}},
                           {"k", {.rank = 2, .dim = {6, 3}}, {0, CH_OFF}}},
    .loss = table_loss};

static void table_in_tiles_trains_as_on_one_device(void **state)
{
    (void)state;
    check_training(&rows_of_table, 1, 6, core_numbers, true);
    check_training(&columns_of_table, 1, 6, core_numbers, true);
}

/* ---- attention, split by heads ---- */

enum { TIME = 5, WIDTH = 6, HEADS = 3 };

static ch_node *heads(ch_node *x, ch_node *kernel)
{
    x = ch_reshape(ch_matmul(x, false, kernel, false), ch_shape_of(-1, TIME, HEADS, 2));
    return ch_transpose(x, 4, (int[]){0, 2, 1, 3});
}

static ch_node *attention_loss(ch_node *x, ch_node *y, ch_node *const *w)
{
    ch_node *z;

    x = ch_reshape(x, ch_shape_of(-1, TIME, WIDTH));
    z = ch_layer_norm(x, w[4], w[5], 1e-5);
    z = ch_attention(heads(z, w[0]), heads(z, w[1]), heads(z, w[2]), NULL,
                     &(ch_attention_options){.causal = true});
    z = ch_reshape(ch_transpose(z, 4, (int[]){0, 2, 1, 3}), ch_shape_of(-1, TIME, WIDTH));
    z = ch_add(x, ch_matmul(z, false, w[3], false));
    return ch_loss_mse(ch_reshape(z, ch_shape_of(-1, TIME * WIDTH)), y);
}

static const example attention = {
    .n_in = TIME * WIDTH,
    .n_out = TIME * WIDTH,
    .n_vars = 6,
    .var = (const param[]){{"q", {.rank = 2, .dim = {WIDTH, WIDTH}}, {CH_OFF, 0}},
                           {"k", {.rank = 2, .dim = {WIDTH, WIDTH}}, {CH_OFF, 0}},
                           {"v", {.rank = 2, .dim = {WIDTH, WIDTH}}, {CH_OFF, 0}},
                           {"o", {.rank = 2, .dim = {WIDTH, WIDTH}}, {0, CH_OFF}},
                           {"gamma", {.rank = 1, .dim = {WIDTH}}, {CH_OFF}},
                           {"beta", {.rank = 1, .dim = {WIDTH}}, {CH_OFF}}},
    .loss = attention_loss};

static void attention_split_by_heads_trains_as_on_one_device(void **state)
{
    (void)state;
    check_training(&attention, 1, 6, core_numbers, true);
}

static void replicas_with_cores_train_every_example(void **state)
{
    static const int cores[] = {2, 3, 4};

    (void)state;
    check_training(&rows_of_table, 2, 1, (int[]){1}, true);
    check_training(&image, 2, 3, cores, true);
    check_training(&rows_of_table, 2, 3, cores, true);
    check_training(&columns_of_table, 2, 3, cores, true);
    check_training(&attention, 2, 3, cores, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_split_by_units_train_as_on_one_device),
        cmocka_unit_test(layers_on_every_core_train_as_on_one_device),
        cmocka_unit_test(replicas_of_two_cores_train_as_one_device),
        cmocka_unit_test(classes_are_split_and_dropout_is_the_same),
        cmocka_unit_test(images_split_by_rows_train_as_on_one_device),
        cmocka_unit_test(table_in_tiles_trains_as_on_one_device),
        cmocka_unit_test(attention_split_by_heads_trains_as_on_one_device),
        cmocka_unit_test(replicas_with_cores_train_every_example),
    };

    return cmocka_run_group_tests(tests, t_eight_gpus, NULL);
}

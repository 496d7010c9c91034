/* test/train/test_golden.c -- training runs whose losses another program has computed.
 *
 * test/golden/runs.py has the same models, data, initial weights and rules in PyTorch; its
 * losses are in test/golden/runs.inc. If they differ, find the error: do not adapt a program to
 * the other.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "../golden/runs.inc"
#include "../strategy/help.h"

enum { CHARS = 11, TIME = 6, WIDTH = 8, HEADS = 2, BATCHES = 4, MOST_WEIGHTS = 20 };
#define TOLERANCE 1e-4 /* relative; f32 against f64 */

typedef struct weight {
    const char *path;
    double      scale; /* in [-scale, scale); negative: 1 is added, for gains */
} weight;

typedef struct run {
    const char   *name;
    const double *loss;
    int           n_losses;
    ch_layer *(*layer)(void);
    weight   weight[MOST_WEIGHTS]; /* weight i is made from seed 100 + i */
    int      rows;
    ch_shape x, y;             /* shape of a row */
    int      x_limit, y_limit; /* limit of ids; 0: floats */
    ch_node *(*each)(ch_node *logits, ch_node *y);
    ch_status (*optimizer)(ch_optimizer **out);
} run;

/* ---- numbers, as in runs.py ---- */

static unsigned bits(unsigned *x)
{
    *x = *x * 1664525u + 1013904223u;
    return *x >> 8;
}

static double number(unsigned *x, double scale)
{
    return ((double)bits(x) / (1 << 23) - 1) * fabs(scale) + (scale < 0 ? 1 : 0);
}

static ch_tensor *numbers(unsigned *seed, int rows, ch_shape row, int limit)
{
    ch_shape   shape = {.rank = row.rank + 1, .dim = {rows}};
    ch_tensor *t = NULL;

    for (int i = 0; i < row.rank; i++)
        shape.dim[i + 1] = row.dim[i];
    t_ok(ch_tensor_new(limit > 0 ? CH_I32 : CH_F32, shape, &t));
    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        if (limit > 0)
            ((int32_t *)ch_tensor_data_mut(t))[i] = (int32_t)(bits(seed) % (unsigned)limit);
        else
            ((float *)ch_tensor_data_mut(t))[i] = (float)number(seed, 1);
    return t;
}

/* ---- models ---- */

static ch_layer *mlp(void)
{
    return ch_layer_sequential(
        "mlp", 2,
        (ch_layer *[]){ch_layer_dense(16, &(ch_layer_dense_options){.activation = CH_RELU}),
                       ch_layer_dense(4, NULL)});
}

static ch_layer *cnn(void)
{
    ch_layer_conv_options o = {.padding = CH_PAD_SAME, .activation = CH_RELU};

    return ch_layer_sequential("cnn", 6,
                               (ch_layer *[]){ch_layer_conv2d(4, 3, 3, &o),
                                              ch_layer_max_pool(2, 2, 0, 0, CH_PAD_VALID),
                                              ch_layer_conv2d(8, 3, 3, &o),
                                              ch_layer_average_pool(2, 2, 0, 0, CH_PAD_VALID),
                                              ch_layer_flatten(), ch_layer_dense(3, NULL)});
}

static ch_layer *embedding(void)
{
    return ch_layer_sequential("rank", 3,
                               (ch_layer *[]){ch_layer_embedding(20, 4, NULL),
                                              ch_layer_flatten(), ch_layer_dense(1, NULL)});
}

static ch_layer *transformer(void)
{
    return ch_layer_sequential(
        "gpt", 3,
        (ch_layer *[]){
            ch_layer_embedding(CHARS, WIDTH, NULL),
            ch_layer_transformer_block(HEADS, &(ch_layer_transformer_options){.causal = true}),
            ch_layer_dense(CHARS, NULL)});
}

static ch_node *yes_or_no(ch_node *logits, ch_node *y)
{
    return ch_loss_binary(ch_squeeze(logits, 1, (int[]){-1}), y);
}

static ch_status sgd(ch_optimizer **out)
{
    return ch_optimizer_sgd(0.5, NULL, NULL, out);
}

static ch_status momentum(ch_optimizer **out)
{
    return ch_optimizer_sgd(0.1, &(ch_optimizer_sgd_options){.momentum = 0.9}, NULL, out);
}

static ch_status adam(ch_optimizer **out)
{
    return ch_optimizer_adam(0.01, NULL, NULL, out);
}

static ch_status adagrad(ch_optimizer **out)
{
    return ch_optimizer_adagrad(0.5, NULL, NULL, out);
}

static ch_status adamw(ch_optimizer **out)
{
    return ch_optimizer_adamw(0.01, NULL, NULL, out);
}

#define LOSSES(name) #name, name, sizeof(name) / sizeof(name[0])
#define MLP_WEIGHTS                                                                            \
    {                                                                                          \
        {"dense/kernel", 0.5}, {"dense/bias", 0.25}, {"dense_1/kernel", 0.5},                  \
        {                                                                                      \
            "dense_1/bias", 0.25                                                               \
        }                                                                                      \
    }

/* clang-format off */
static const run runs[] = {
    {LOSSES(mlp_sgd), mlp, MLP_WEIGHTS, 16, {1, {8}}, {0}, 0, 4,
     ch_loss_sparse_categorical, sgd},
    {LOSSES(mlp_adam), mlp, MLP_WEIGHTS, 16, {1, {8}}, {0}, 0, 4,
     ch_loss_sparse_categorical, adam},
    {LOSSES(cnn_momentum), cnn,
     {{"conv2d/kernel", 0.5}, {"conv2d/bias", 0.25}, {"conv2d_1/kernel", 0.25},
      {"conv2d_1/bias", 0.25}, {"dense/kernel", 0.25}, {"dense/bias", 0.25}},
     6, {3, {8, 8, 1}}, {0}, 0, 3, ch_loss_sparse_categorical, momentum},
    {LOSSES(embedding_adagrad), embedding,
     {{"embedding/table", 0.5}, {"dense/kernel", 0.5}, {"dense/bias", 0.25}},
     10, {1, {3}}, {0}, 20, 2, yes_or_no, adagrad},
    {LOSSES(transformer_adamw), transformer,
     {{"embedding/table", 0.5},
      {"transformer/norm_1/gamma", -0.25}, {"transformer/norm_1/beta", 0.25},
      {"transformer/attention/query/kernel", 0.5},
      {"transformer/attention/query/bias", 0.25},
      {"transformer/attention/key/kernel", 0.5},
      {"transformer/attention/key/bias", 0.25},
      {"transformer/attention/value/kernel", 0.5},
      {"transformer/attention/value/bias", 0.25},
      {"transformer/attention/output/kernel", 0.5},
      {"transformer/attention/output/bias", 0.25},
      {"transformer/norm_2/gamma", -0.25},
      {"transformer/norm_2/beta", 0.25},
      {"transformer/hidden/kernel", 0.5}, {"transformer/hidden/bias", 0.25},
      {"transformer/output/kernel", 0.25}, {"transformer/output/bias", 0.25},
      {"dense/kernel", 0.5}, {"dense/bias", 0.25}},
     4, {1, {TIME}}, {1, {TIME}}, CHARS, CHARS, ch_loss_sparse_categorical, adamw},
};
/* clang-format on */

/* ---- a run ---- */

typedef struct job {
    const run    *run;
    ch_model     *model;
    ch_optimizer *optimizer;
} job;

static void train(ch_step *s, void *arg)
{
    job           *j = arg;
    ch_node       *logits = ch_model_call(j->model, s, ch_step_in(s, 0), true);
    ch_node       *loss = ch_loss_average(j->run->each(logits, ch_step_in(s, 1)), NULL);
    ch_var *const *var;
    int            n = ch_model_trainable(j->model, &var);

    ch_optimizer_minimize(j->optimizer, s, loss, n, var);
    ch_step_out(s, "loss", ch_all_reduce(CH_SUM, loss));
}

static void set_weights(const run *r, ch_model *m)
{
    ch_var *const *var;
    int            n = 0;

    for (; n < MOST_WEIGHTS && r->weight[n].path != NULL; n++) {
        ch_var    *v = ch_layer_var(ch_model_layer(m), r->weight[n].path);
        unsigned   seed = 100 + (unsigned)n;
        ch_tensor *t;

        if (v == NULL)
            fail_msg("%s has no %s", r->name, r->weight[n].path);
        t = t_f32(ch_var_shape(v), NULL);
        for (int64_t i = 0; i < ch_tensor_count(t); i++)
            ((float *)ch_tensor_data_mut(t))[i] = (float)number(&seed, r->weight[n].scale);
        t_ok(ch_var_set(v, t));
        ch_tensor_unref(t);
    }
    assert_int_equal(ch_model_trainable(m, &var), n);
}

/* Divides rows unevenly: the second of two replicas gets about a third. */
static ch_value *dealt(ch_tensor *all, int rows, int n_replicas)
{
    int        cut = n_replicas == 1 ? rows : rows - rows / 3;
    ch_tensor *part[2] = {NULL};
    ch_value  *v = NULL;

    t_ok(ch_tensor_rows(all, 0, cut, &part[0]));
    t_ok(ch_tensor_rows(all, cut, rows, &part[1]));
    t_ok(ch_value_new(CH_PER_REPLICA, n_replicas, part, &v));
    ch_tensor_unref(part[0]);
    ch_tensor_unref(part[1]);
    ch_tensor_unref(all);
    return v;
}

static ch_tuple *batch_of(const run *r, int step, int n_replicas)
{
    unsigned  seed = 1000 + (unsigned)(step % BATCHES);
    ch_value *v[2];
    ch_tuple *in = NULL;

    v[0] = dealt(numbers(&seed, r->rows, r->x, r->x_limit), r->rows, n_replicas);
    v[1] = dealt(numbers(&seed, r->rows, r->y, r->y_limit), r->rows, n_replicas);
    t_ok(ch_tuple_new(2, v, NULL, &in));
    ch_value_unref(v[0]);
    ch_value_unref(v[1]);
    return in;
}

static void check_run(const run *r, int n_replicas)
{
    ch_strategy     *st = NULL;
    ch_model_options opt = {.n_inputs = 1, .input = {{.dtype = r->x_limit ? CH_I32 : CH_F32}}};
    job              j = {.run = r};
    ch_function     *f = t_function(train, &j);

    opt.input[0].shape = (ch_shape){.rank = r->x.rank + 1, .dim = {-1}};
    for (int i = 0; i < r->x.rank; i++)
        opt.input[0].shape.dim[i + 1] = r->x.dim[i];
    t_ok(ch_strategy_mirrored(
        &(ch_mirrored_options){.n_devices = n_replicas,
                               .device = (const char *const[]){"CPU:0", "CPU:1"}},
        &st));
    t_ok(ch_model_new(st, r->layer(), &opt, &j.model));
    set_weights(r, j.model);
    t_ok(r->optimizer(&j.optimizer));
    for (int i = 0; i < r->n_losses; i++) {
        ch_tuple *in = batch_of(r, i, n_replicas), *out = NULL;
        double    loss;

        t_ok(ch_strategy_run(st, f, in, &out));
        loss = t_floats(out, 0, 0)[0];
        if (!(fabs(loss - r->loss[i]) <= TOLERANCE * r->loss[i]))
            fail_msg("%s on %d replicas, step %d: loss %.7f, want %.7f", r->name, n_replicas, i,
                     loss, r->loss[i]);
        ch_tuple_unref(out);
        ch_tuple_unref(in);
    }
    ch_function_unref(f);
    ch_optimizer_unref(j.optimizer);
    ch_model_unref(j.model);
    ch_strategy_unref(st);
}

static void training_agrees_with_the_golden_runs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++)
        for (int n = 1; n <= 2; n++)
            check_run(&runs[i], n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_agrees_with_the_golden_runs),
    };

    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "CPU=2", .threads = 1}));
    return cmocka_run_group_tests(tests, NULL, NULL);
}

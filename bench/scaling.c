/* bench/scaling.c -- scaling from a single replica to two; two processes of PyTorch.
 *
 * Each replica has a core. In the scaling cases the limit is a single replica with as many rows
 * as each of the two replicas has, so the ratio is the efficiency. The cases with a peer train
 * on a batch that is divided between two replicas, or between two processes with
 * DistributedDataParallel over gloo.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "deal.h"
#include "language.h"

#define DDP(what)                                                                              \
    {                                                                                          \
        {"PyTorch DDP, 2 processes, gloo",                                                     \
         .command = "OPENBLAS_NUM_THREADS=1 exec $PYTHON $PEERS/torch_ddp.py " what},          \
    }

typedef struct network {
    const char *name;
    ch_layer *(*layer)(void);
    ch_tensor_spec input; /* -1 for the number of rows */
    int            labels;
} network;

static language gpt = {"gpt", 1000, 2, 128, 4, 8, 64};

static ch_layer *small_gpt(void)
{
    return language_layer(&gpt);
}

static network mlp(void)
{
    return (network){"mlp", perceptron, {NULL, CH_F32, ch_shape_of(-1, 784)}, 10};
}

static network cnn(void)
{
    return (network){"cnn", convolutional, {NULL, CH_F32, ch_shape_of(-1, 28, 28, 1)}, 10};
}

static network speaker(void)
{
    return (network){
        "gpt", small_gpt, {NULL, CH_I32, ch_shape_of(-1, gpt.length)}, gpt.vocabulary};
}

/* ---- batches ---- */

/* Makes a batch of `rows` rows for all replicas together. */
static void deal_batch(training *t, const network *n, int rows, int replicas)
{
    ch_shape  shape = n->input.shape, wanted;
    ch_value *v[2];

    shape.dim[0] = rows;
    wanted = n->input.dtype == CH_I32 ? shape : ch_shape_of(rows);
    v[0] = deal(n->input.dtype == CH_I32 ? labels(BATCH_X, shape, n->labels)
                                         : noise(BATCH_X, shape, 0, 1),
                replicas);
    v[1] = deal(labels(BATCH_Y, wanted, n->labels), replicas);
    must(ch_tuple_new(2, v, NULL, &t->batch));
    ch_value_unref(v[0]);
    ch_value_unref(v[1]);
}

/* ---- training ---- */

/* Records a step whose loss is the replica's share of the mean loss. Outputs the mean loss. */
static void divided(ch_step *s, void *arg)
{
    training      *t = arg;
    ch_node       *guess = ch_model_call(t->model, s, ch_step_in(s, 0), true);
    ch_node       *each = ch_loss_sparse_categorical(guess, ch_step_in(s, 1));
    ch_node       *loss = ch_loss_average(each, NULL);
    ch_var *const *var;
    int            n = ch_model_trainable(t->model, &var);

    ch_optimizer_minimize(t->opt, s, loss, n, var);
    ch_step_out(s, "loss", ch_all_reduce(CH_SUM, loss));
}

static training new_training(const network *n, int rows, int replicas)
{
    training t = {0};

    if (replicas > 1)
        must(ch_strategy_mirrored(
            &(ch_mirrored_options){.n_devices = replicas,
                                   .device = (const char *const[]){"CPU:0", "CPU:1"}},
            &t.strategy));
    must(ch_model_new(
        t.strategy, n->layer(),
        &(ch_model_options){.n_inputs = 1, .input = {{n->input.dtype, n->input.shape}}},
        &t.model));
    must(ch_optimizer_sgd(0.01, NULL, NULL, &t.opt));
    fill_model(t.model);
    deal_batch(&t, n, rows, replicas);
    return t;
}

/* ---- rows ---- */

static void measure_scaling(bench *b, network n, int rows)
{
    training one = new_training(&n, rows, 1), two = new_training(&n, 2 * rows, 2);
    char     name[80];

    must(ch_function_new(n.name, divided, &one, &one.step));
    must(ch_function_new(n.name, divided, &two, &two.step));
    snprintf(name, sizeof(name), "%s, %d rows a replica, 1 to 2", n.name, rows);
    bench_run(b, &(bench_case){.name = name,
                               .unit = "ms/step",
                               .scale = 1e3,
                               .ours = {.run = run_training, .arg = &two},
                               .limit = {.run = run_training, .arg = &one},
                               .check = learns});
    drop_training(&one);
    drop_training(&two);
}

static void measure_divided(bench *b, network n, const char *name, const bench_side *peer)
{
    training   t = new_training(&n, 128, 2);
    bench_case c = {.name = name,
                    .unit = "ms/step",
                    .scale = 1e3,
                    .ours = {.run = run_training, .arg = &t},
                    .peer = {*peer},
                    .rest = true,
                    .check = learns,
                    .result = fifth_loss,
                    .tolerance = 2e-5};

    must(ch_function_new(n.name, divided, &t, &t.step));
    bench_run(b, &c);
    drop_training(&t);
}

int main(int argc, char **argv)
{
    bench           *b = bench_open("scaling", argc, argv);
    const bench_side mlp_peer[] = DDP("mlp"), cnn_peer[] = DDP("cnn");

    must(ch_devices_configure(&(ch_devices_options){.spec = "CPU=2", .threads = 1}));
    measure_scaling(b, mlp(), 128);
    measure_scaling(b, mlp(), 500);
    measure_scaling(b, cnn(), 64);
    measure_scaling(b, speaker(), gpt.rows);
    measure_divided(b, mlp(), "mlp, 128 rows, two replicas", mlp_peer);
    measure_divided(b, cnn(), "cnn, 128 rows, two replicas", cnn_peer);
    return bench_close(b);
}

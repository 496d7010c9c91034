/* bench/spmd.c -- training steps that the cores of one replica execute together, each with one
 * thread: two cores, and in a row without limit eight.
 *
 * The limit is the same step on one device with two threads, so the ratio is the part of its
 * speed that the cores have. The peer is PyTorch in two processes with one thread each: the
 * same layers split by hand, and sums over gloo.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "language.h"
#include "logical.h"
#include "tensor/device.h"

#define TORCH_SPMD(what)                                                                       \
    {                                                                                          \
        "PyTorch, 2 processes, gloo",                                                          \
            .command = "OPENBLAS_NUM_THREADS=1 exec $PYTHON $PEERS/torch_spmd.py " what        \
    }

/* The split of the variables whose names end in `name`. */
typedef struct split {
    const char *name;
    int         n, axis[4];
} split;

typedef struct workload {
    const char *name;
    ch_layer *(*layer)(void);
    language      *text;  /* in place of `layer`; its variables are split by rules */
    ch_tensor_spec input; /* with the rows of a batch */
    bool           is_image, is_block;
    const split *splits;  /* ends with a name of NULL; variables that are not named are whole */
    int          n_cores; /* 0: CORES; other numbers have no limit */
    bench_side   peer;
} workload;

/* ---- the networks ---- */

static const split units[] = {{"dense/kernel", 2, {CH_OFF, 0}},
                              {"dense/bias", 1, {0}},
                              {"dense_1/kernel", 2, {0, CH_OFF}},
                              {NULL}};
static const split nothing[] = {{NULL}};
static const split heads[] = {{"query/kernel", 2, {CH_OFF, 0}},
                              {"query/bias", 1, {0}},
                              {"key/kernel", 2, {CH_OFF, 0}},
                              {"key/bias", 1, {0}},
                              {"value/kernel", 2, {CH_OFF, 0}},
                              {"value/bias", 1, {0}},
                              {"attention/output/kernel", 2, {0, CH_OFF}},
                              {"hidden/kernel", 2, {CH_OFF, 0}},
                              {"hidden/bias", 1, {0}},
                              {"block/output/kernel", 2, {0, CH_OFF}},
                              {NULL}};

/* The splits of a language model. */
static const ch_split_rule rules[] = {
    {"*tokens/table", 2, {0, CH_OFF}}, {"*output/kernel", 2, {0, CH_OFF}},
    {"*output/bias", 1, {CH_OFF}},     {"*attention/*/kernel", 2, {CH_OFF, 0}},
    {"*attention/*/bias", 1, {0}},     {"*hidden/kernel", 2, {CH_OFF, 0}},
    {"*hidden/bias", 1, {0}},
};

static ch_layer *block(void)
{
    return ch_layer_named("block", ch_layer_transformer_block(
                                       6, &(ch_layer_transformer_options){.causal = true}));
}

/* ---- training ---- */

typedef struct run {
    training        t; /* the first member, because the functions of training.h take it */
    const workload *w;
} run;

/* Records a training step. Under a strategy without cores an annotation changes nothing. */
static void train(ch_step *s, void *arg)
{
    run           *r = arg;
    ch_node       *x = ch_step_in(s, 0), *y = ch_step_in(s, 1), *each;
    ch_var *const *var;
    int            n = ch_model_trainable(r->t.model, &var);

    if (r->w->is_image)
        x = ch_mesh_split(x, 4, (int[]){CH_OFF, 0, CH_OFF, CH_OFF});
    x = ch_model_call(r->t.model, s, x, true);
    each = r->w->is_block ? ch_loss_mse(x, y) : ch_loss_sparse_categorical(x, y);
    ch_optimizer_minimize(r->t.opt, s, ch_loss_average(each, NULL), n, var);
    ch_step_out(s, "loss", ch_mean_all(each));
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);

    return n >= m && strcmp(text + n - m, end) == 0;
}

static void split_variables(ch_model *m, const split *splits)
{
    ch_var *const *var;
    int            n = ch_model_trainable(m, &var), n_found = 0, n_splits = 0;

    for (const split *x = splits; x->name != NULL; x++, n_splits++)
        for (int i = 0; i < n; i++)
            if (ends_with(ch_var_name(var[i]), x->name)) {
                must(ch_var_split(var[i], x->n, x->axis));
                n_found++;
            }
    if (n_found != n_splits) {
        fprintf(stderr, "%d variables have a split, want %d\n", n_found, n_splits);
        exit(1);
    }
}

static void begin(run *r, const workload *w, ch_strategy *st)
{
    ch_shape   shape = w->input.shape, any = shape;
    ch_tensor *x, *y;

    *r = (run){.t = {.strategy = st}, .w = w};
    any.dim[0] = -1;
    must(ch_model_new(st, w->text != NULL ? language_layer(w->text) : w->layer(),
                      &(ch_model_options){.n_inputs = 1, .input = {{w->input.dtype, any}}},
                      &r->t.model));
    split_variables(r->t.model, w->splits);
    fill_model(r->t.model);
    must(ch_optimizer_sgd(0.01, NULL, NULL, &r->t.opt));
    must(ch_function_new(w->name, train, r, &r->t.step));
    if (w->text != NULL) {
        x = labels(BATCH_X, shape, w->text->vocabulary);
        y = labels(BATCH_Y, shape, w->text->vocabulary);
    } else {
        x = noise(BATCH_X, shape, 0, 1);
        y = w->is_block ? noise(BATCH_Y, shape, 0, 1)
                        : labels(BATCH_Y, ch_shape_of(shape.dim[0]), 10);
    }
    take_batch(&r->t, x, y);
}

/* A strategy of its own, so that variables have the same names in every model. */
static ch_strategy *one_device(void)
{
    ch_strategy *st = NULL;

    must(ch_strategy_one_device("CPU:0", &st));
    return st;
}

static bool learns_as_on_one_device(void *arg, char *why, size_t size)
{
    run *r = arg, one;
    bool ok;

    begin(&one, r->w, one_device());
    ok = learns(&r->t, why, size) && learns(&one.t, why, size);
    if (ok && !(fabs(r->t.loss - one.t.loss) <= 1e-4 * fabs(one.t.loss))) {
        snprintf(why, size, "the loss is %g, and %g on one device", r->t.loss, one.t.loss);
        ok = false;
    }
    drop_training(&one.t);
    return ok;
}

static void measure(bench *b, const workload *w)
{
    cores             c = {.n = w->n_cores > 0 ? w->n_cores : CORES};
    ch_strategy_parts parts = {.n_rules = 0};
    run               ours, one;
    bench_case        x = {.name = w->name,
                           .unit = "ms/step",
                           .scale = 1e3,
                           .peer = {w->peer},
                           .rest = true,
                           .check = learns_as_on_one_device,
                           .result = fifth_loss,
                           .tolerance = 2e-5};

    for (int i = 0; i < c.n; i++) /* devices with one thread each */
        must(ch__device_of_task("localhost", 1, i, &c.device[i]));
    if (w->text != NULL) {
        parts.n_rules = sizeof(rules) / sizeof(rules[0]);
        parts.rule = rules;
    }
    begin(&ours, w, cores_strategy_of(&c, parts));
    begin(&one, w, one_device());
    x.ours = (bench_side){.run = run_training, .arg = &ours};
    if (c.n == CORES)
        x.limit = (bench_side){.run = run_training, .arg = &one};
    bench_run(b, &x);
    drop_training(&ours.t);
    drop_training(&one.t);
}

int main(int argc, char **argv)
{
    bench   *b = bench_open("spmd", argc, argv);
    bool     small = bench_is_small(b);
    int      rows = small ? 8 : 128, length = small ? 8 : 128;
    language gpt = {"language",    small ? 100 : 1000, small ? 1 : 6, small ? 32 : 384,
                    small ? 2 : 6, small ? 2 : 8,      length};
    workload w[] = {
        {.name = "mlp 784-512-512-10 by units, 128 rows",
         .layer = perceptron,
         .input = {NULL, CH_F32, ch_shape_of(rows, 784)},
         .splits = units,
         .peer = TORCH_SPMD("mlp")},
        {.name = "cnn by rows of the image, 128 images",
         .layer = convolutional,
         .input = {NULL, CH_F32, ch_shape_of(rows, 28, 28, 1)},
         .is_image = true,
         .splits = nothing,
         .peer = TORCH_SPMD("cnn")},
        {.name = "block of 384, 6 heads, by heads, 8x128",
         .layer = block,
         .input = {NULL, CH_F32, ch_shape_of(8, length, 384)},
         .is_block = true,
         .splits = heads,
         .peer = TORCH_SPMD("block")},
        {.name = "transformer of 6 layers by rules, 8x128 tokens",
         .text = &gpt,
         .input = {NULL, CH_I32, ch_shape_of(gpt.rows, length)},
         .splits = nothing},
        {.name = "transformer on 8 virtual cores, 8x128 tokens",
         .text = &gpt,
         .input = {NULL, CH_I32, ch_shape_of(gpt.rows, length)},
         .splits = nothing,
         .n_cores = 8},
    };

    must(ch_devices_configure(&(ch_devices_options){.spec = "CPU=1", .threads = CORES}));
    for (size_t i = 0; i < sizeof(w) / sizeof(w[0]); i++)
        if (bench_wants(b, w[i].name))
            measure(b, &w[i]);
    return bench_close(b);
}

/* bench/memory.c -- the size of planned arenas, compared with a lower bound.
 *
 * Plans a training step of three models. tools/arena-bound, which is independent of the
 * planner, replays each printed plan and computes the bytes that must be alive at the same
 * time. The last rows run many steps, also of a model with layers, optimizer options and
 * metrics, and check that the process does not grow.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "must.h"

/* ---- models: functions of a batch and of variables, which they create when recorded ---- */

enum { MAX_VARS = 32 };

typedef struct model {
    const char *name;
    ch_shape    input;
    ch_node *(*forward)(ch_step *s, struct model *m, ch_node *x);
    int      n_vars, n_read;
    ch_var  *var[MAX_VARS];
    ch_node *read[MAX_VARS];
} model;

/* Reads the next variable of the model. Creates it when the step is first recorded. */
static ch_node *param(ch_step *s, model *m, ch_shape shape)
{
    int i = m->n_read++;

    if (i == m->n_vars) {
        ch_tensor *t = NULL;

        must(ch_tensor_new(CH_F32, shape, &t));
        for (int64_t k = 0; k < ch_tensor_count(t); k++)
            ((float *)ch_tensor_data_mut(t))[k] = (float)((k * 7919) % 101 - 50) * 1e-3f;
        must(ch_var_new(NULL, &(ch_var_spec){.initial = t}, &m->var[m->n_vars++]));
        ch_tensor_unref(t);
    }
    return m->read[i] = ch_var_read(s, m->var[i]);
}

static ch_node *dense(ch_step *s, model *m, ch_node *x, int64_t in, int64_t out)
{
    return ch_add(ch_matmul(x, false, param(s, m, ch_shape_of(in, out)), false),
                  param(s, m, ch_shape_of(out)));
}

static ch_node *small_mlp(ch_step *s, model *m, ch_node *x)
{
    return dense(s, m, ch_relu(dense(s, m, x, 784, 64)), 64, 10);
}

static ch_node *mlp(ch_step *s, model *m, ch_node *x)
{
    x = ch_relu(dense(s, m, x, 784, 512));
    x = ch_relu(dense(s, m, x, 512, 512));
    return dense(s, m, x, 512, 10);
}

static ch_node *block_of_conv(ch_step *s, model *m, ch_node *x, int64_t in, int64_t out)
{
    x = ch_conv2d(x, param(s, m, ch_shape_of(3, 3, in, out)), NULL);
    x = ch_relu(ch_add(x, param(s, m, ch_shape_of(out))));
    return ch_max_pool2d(x, &(ch_pool_options){.window = {2, 2}, .stride = {2, 2}});
}

static ch_node *cnn(ch_step *s, model *m, ch_node *x)
{
    x = block_of_conv(s, m, x, 1, 32);
    x = block_of_conv(s, m, x, 32, 64);
    x = ch_reshape(x, ch_shape_of(-1, 5 * 5 * 64));
    return dense(s, m, ch_relu(dense(s, m, x, 5 * 5 * 64, 128)), 128, 10);
}

enum { WIDTH = 384, HEADS = 6, TOKENS = 128 };

static ch_node *norm(ch_step *s, model *m, ch_node *x)
{
    ch_node *gamma = param(s, m, ch_shape_of(WIDTH));

    return ch_layer_norm(x, gamma, param(s, m, ch_shape_of(WIDTH)), 1e-5);
}

/* Maps (batch, tokens, width) to (batch, heads, tokens, width / heads). */
static ch_node *heads(ch_node *x)
{
    x = ch_reshape(x, ch_shape_of(-1, TOKENS, HEADS, WIDTH / HEADS));
    return ch_transpose(x, 4, (int[]){0, 2, 1, 3});
}

static ch_node *transformer(ch_step *s, model *m, ch_node *x)
{
    ch_node *h = norm(s, m, x), *q, *k, *v;

    q = heads(dense(s, m, h, WIDTH, WIDTH));
    k = heads(dense(s, m, h, WIDTH, WIDTH));
    v = heads(dense(s, m, h, WIDTH, WIDTH));
    h = ch_transpose(ch_attention(q, k, v, NULL, &(ch_attention_options){.causal = true}), 4,
                     (int[]){0, 2, 1, 3});
    h = ch_reshape(h, ch_shape_of(-1, TOKENS, WIDTH));
    x = ch_add(x, dense(s, m, h, WIDTH, WIDTH));
    h = ch_gelu(dense(s, m, norm(s, m, x), WIDTH, 4 * WIDTH));
    return ch_add(x, dense(s, m, h, 4 * WIDTH, WIDTH));
}

static void train(ch_step *s, void *arg)
{
    model   *m = arg;
    ch_node *d[MAX_VARS], *y, *loss;

    m->n_read = 0;
    y = m->forward(s, m, ch_step_in(s, 0));
    loss = ch_div(ch_sum_all(ch_square(y)), ch_step_global_rows(s));
    ch_gradients(loss, NULL, m->n_vars, m->read, d);
    for (int i = 0; i < m->n_vars; i++)
        ch_var_assign_sub(s, m->var[i], ch_mul(ch_number(s, 1e-4), d[i]));
    ch_step_out(s, "loss", loss);
}

/* ---- measuring ---- */

/* Runs tools/arena-bound on a plan and reads its output. */
static bool ask_bound(const char *plan, double *arena, double *bound)
{
    char  path[] = "/tmp/cohort-plan-XXXXXX", command[256], answer[128] = "";
    int   fd = mkstemp(path);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    bool  ok = f != NULL && fputs(plan, f) >= 0;

    if (f != NULL)
        ok = fclose(f) == 0 && ok;
    snprintf(command, sizeof(command), "%s < %s", ARENA_BOUND, path);
    f = ok ? popen(command, "r") : NULL;
    if (f != NULL) {
        ok = fgets(answer, sizeof(answer), f) != NULL;
        pclose(f);
    }
    remove(path);
    return ok && sscanf(answer, "arena %lf bound %lf", arena, bound) == 2;
}

static void measure(bench *b, const char *name, ch_function *f)
{
    int    size = ch_function_print_plan(f, NULL, 0) + 1;
    char  *plan = malloc((size_t)size);
    double arena = 0, bound = 0;

    if (plan == NULL)
        exit(1);
    ch_function_print_plan(f, plan, (size_t)size);
    if (!ask_bound(plan, &arena, &bound))
        bench_void(b, name, "tools/arena-bound gave no answer");
    else if (arena > 1.05 * bound)
        bench_void(b, name, "the arena is more than 5 % above the bound");
    bench_add(b, name, "KiB", BENCH_LOWER, arena / 1024, bound / 1024);
    free(plan);
}

/* Counts all allocations of the process in steps that have run before. */
static void count_allocations(bench *b, const char *name, ch_function *f, ch_tuple *batch)
{
    char    row[96];
    int64_t before;

    for (int i = 0; i < 5; i++)
        must(ch_strategy_run(NULL, f, batch, NULL));
    before = bench_allocations();
    for (int i = 0; i < 20; i++)
        must(ch_strategy_run(NULL, f, batch, NULL));
    snprintf(row, sizeof(row), "%s, allocations a step", name);
    bench_add(b, row, "", BENCH_LOWER, (double)(bench_allocations() - before) / 20, 0);
}

static double resident_kib(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    long  pages = 0;

    if (f == NULL || fscanf(f, "%*d %ld", &pages) != 1)
        pages = 0;
    if (f != NULL)
        fclose(f);
    return (double)pages * 4;
}

static void grow(bench *b, const char *row, ch_function *f, ch_tuple *batch, int steps)
{
    double before, after;

    for (int i = 0; i < 20; i++)
        must(ch_strategy_run(NULL, f, batch, NULL));
    (void)resident_kib(); /* the first call allocates */
    before = resident_kib();
    for (int i = 0; i < steps; i++)
        must(ch_strategy_run(NULL, f, batch, NULL));
    after = resident_kib();
    bench_add(b, row, "KiB", BENCH_LOWER, after, before);
    if (after > before + 64)
        bench_void(b, row, "the process grew");
}

/* ---- layers, an optimizer with options, metrics ---- */

enum { IDS = 50, TIME = 4, CLASSES = 4, ROWS = 8 };

typedef struct layered {
    ch_model     *model;
    ch_optimizer *optimizer;
    ch_metric    *loss, *accuracy, *confusion;
} layered;

static void train_layers(ch_step *s, void *arg)
{
    layered       *l = arg;
    ch_node       *label = ch_step_in(s, 1);
    ch_node       *logits = ch_model_call(l->model, s, ch_step_in(s, 0), true);
    ch_node       *each = ch_loss_sparse_categorical(logits, label);
    ch_var *const *var;
    int            n = ch_model_trainable(l->model, &var);

    ch_optimizer_minimize(l->optimizer, s, ch_loss_average(each, NULL), n, var);
    ch_metric_update(l->loss, s, NULL, each, NULL);
    ch_metric_update(l->accuracy, s, label, logits, NULL);
    ch_metric_update(l->confusion, s, label, logits, NULL);
}

static void make_layers(layered *l)
{
    ch_layer *layer[] = {
        ch_layer_embedding(IDS, 8, NULL),
        ch_layer_lstm(8, &(ch_layer_recurrent_options){.return_sequence = true}),
        ch_layer_transformer_block(2, &(ch_layer_transformer_options){.dropout = 0.1}),
        ch_layer_flatten(),
        ch_layer_batch_norm(NULL),
        ch_layer_dropout(0.2),
        ch_layer_dense(CLASSES, NULL),
    };
    ch_schedule          rate = ch_schedule_cosine_restarts(1e-3, 100, 2, 0.5, 0.01);
    ch_optimizer_options opt = {.schedule = &rate,
                                .accumulate = 2,
                                .clip_global_norm = 1,
                                .average = 0.99,
                                .dynamic_loss_scale = true};

    must(ch_model_new(NULL, ch_layer_sequential("net", 7, layer), NULL, &l->model));
    must(ch_optimizer_adamw(1e-3, NULL, &opt, &l->optimizer));
    must(ch_metric_new(NULL, ch_metric_mean(), &l->loss));
    must(ch_metric_new(NULL, ch_metric_sparse_accuracy(), &l->accuracy));
    must(ch_metric_new(NULL, ch_metric_confusion(CLASSES), &l->confusion));
}

static void grow_layers(bench *b, const char *name, int steps)
{
    layered      l;
    ch_tensor   *t[2] = {NULL};
    ch_tuple    *batch = NULL;
    ch_function *f = NULL;

    make_layers(&l);
    must(ch_tensor_new(CH_I32, ch_shape_of(ROWS, TIME), &t[0]));
    must(ch_tensor_new(CH_I32, ch_shape_of(ROWS), &t[1]));
    for (int i = 0; i < ROWS * TIME; i++)
        ((int32_t *)ch_tensor_data_mut(t[0]))[i] = i * 7 % IDS;
    must(ch_tuple_of(2, t, &batch));
    must(ch_function_new(name, train_layers, &l, &f));
    count_allocations(b, name, f, batch);
    grow(b, "resident memory after many steps of layers", f, batch, steps);
    ch_function_unref(f);
    ch_tuple_unref(batch);
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    ch_metric_unref(l.loss);
    ch_metric_unref(l.accuracy);
    ch_metric_unref(l.confusion);
    ch_optimizer_unref(l.optimizer);
    ch_model_unref(l.model);
}

int main(int argc, char **argv)
{
    bench *b = bench_open("memory", argc, argv);
    bool   quick = false;
    model  models[] = {
         {.name = "MLP 784-64-10", .input = ch_shape_of(32, 784), .forward = small_mlp},
         {.name = "MLP 784-512-512-10", .input = ch_shape_of(128, 784), .forward = mlp},
         {.name = "CNN", .input = ch_shape_of(64, 28, 28, 1), .forward = cnn},
         {.name = "transformer block",
          .input = ch_shape_of(4, TOKENS, WIDTH),
          .forward = transformer},
    };

    for (int i = 1; i < argc; i++)
        quick |= strcmp(argv[i], "--quick") == 0;
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        ch_tensor   *x = NULL;
        ch_tuple    *batch = NULL;
        ch_function *f = NULL;

        if (!bench_wants(b, models[i].name))
            continue;
        must(ch_tensor_new(CH_F32, models[i].input, &x));
        must(ch_tuple_of(1, &x, &batch));
        must(ch_function_new(models[i].name, train, &models[i], &f));
        must(ch_strategy_run(NULL, f, batch, NULL));
        measure(b, models[i].name, f);
        count_allocations(b, models[i].name, f, batch);
        if (i == 0)
            grow(b, "resident memory after many steps", f, batch, quick ? 100 : 100000);
        ch_function_unref(f);
        ch_tuple_unref(batch);
        ch_tensor_unref(x);
        for (int k = 0; k < models[i].n_vars; k++)
            ch_var_unref(models[i].var[k]);
    }
    if (bench_wants(b, "layers"))
        grow_layers(b, "layers", quick ? 100 : 100000);
    return bench_close(b);
}

/* bench/spmd_plan.c -- the time to divide and plan a training step for the cores of a replica.
 *
 * Ours is the time for 64 cores, and the limit that for two cores: the ratio must not be less
 * than 0.5. Both are measured in turns, each in new functions. A run with the first batch
 * records the step; then a batch of another size needs a new plan of the same recording, which
 * is the plan that is timed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/config.h"
#include "bench.h"
#include "graph/function.h"
#include "logical.h"

enum { MOST_VARS = 16, MANY = 64, FEW = 2, WHOLE = -1, ROUNDS = 31 };

/* A model under one strategy, with a batch. */
typedef struct plan_case {
    const char *name;
    ch_shape    input;
    void (*record)(ch_step *s, struct plan_case *c);
    ch_strategy *strategy;
    ch_tuple    *batch[2]; /* of different numbers of rows */
    int          n_vars, n_read;
    ch_var      *var[MOST_VARS];
    ch_node     *read[MOST_VARS];
} plan_case;

static ch_node *var(ch_step *s, plan_case *c, ch_shape shape, int axis)
{
    int i = c->n_read++, split[CH_MAX_RANK];

    for (int k = 0; k < shape.rank; k++)
        split[k] = k == axis ? 0 : CH_OFF;
    if (i == c->n_vars) {
        char name[16];

        (void)snprintf(name, sizeof(name), "v%d", i);
        must(ch_var_new(c->strategy,
                        &(ch_var_spec){.name = name,
                                       .dtype = CH_F32,
                                       .shape = shape,
                                       .init = ch_init_uniform(-0.1, 0.1),
                                       .split = split,
                                       .n_split = shape.rank},
                        &c->var[c->n_vars++]));
    }
    return c->read[i] = ch_var_read(s, c->var[i]);
}

/* ---- the models ---- */

static ch_node *dense(ch_step *s, plan_case *c, ch_node *x, int64_t in, int64_t out, int axis)
{
    ch_node *kernel = var(s, c, ch_shape_of(in, out), axis);

    return ch_add(ch_matmul(x, false, kernel, false),
                  var(s, c, ch_shape_of(out), axis == 1 ? 0 : WHOLE));
}

static void minimize(ch_step *s, plan_case *c, ch_node *y)
{
    ch_node *loss = ch_div(ch_sum_all(ch_square(y)), ch_step_global_rows(s)), *d[MOST_VARS];

    ch_gradients(loss, NULL, c->n_vars, c->read, d);
    for (int i = 0; i < c->n_vars; i++)
        ch_var_assign_sub(s, c->var[i], ch_mul(ch_number(s, 1e-4), d[i]));
}

static void mlp(ch_step *s, plan_case *c)
{
    ch_node *x = ch_relu(dense(s, c, ch_step_in(s, 0), 64, 512, 1));

    x = ch_relu(dense(s, c, x, 512, 512, 0));
    minimize(s, c, dense(s, c, x, 512, 10, WHOLE));
}

static void cnn(ch_step *s, plan_case *c)
{
    const ch_conv_options same = {.padding = CH_PAD_SAME};
    ch_node *x = ch_mesh_split(ch_step_in(s, 0), 4, (int[]){CH_OFF, 0, CH_OFF, CH_OFF});

    x = ch_relu(ch_conv2d(x, var(s, c, ch_shape_of(3, 3, 3, 4), WHOLE), &same));
    x = ch_max_pool2d(x, NULL);
    x = ch_relu(ch_conv2d(x, var(s, c, ch_shape_of(3, 3, 4, 5), WHOLE), &same));
    x = ch_reshape(x, ch_shape_of(-1, 64 * 3 * 5));
    minimize(s, c, dense(s, c, x, 64 * 3 * 5, 10, WHOLE));
}

enum { TIME = 8, HEADS = 64, WIDTH = 128 };

static ch_node *heads(ch_node *x)
{
    x = ch_reshape(x, ch_shape_of(-1, TIME, HEADS, WIDTH / HEADS));
    return ch_transpose(x, 4, (int[]){0, 2, 1, 3});
}

static ch_node *norm(ch_step *s, plan_case *c, ch_node *x)
{
    ch_node *gamma = var(s, c, ch_shape_of(WIDTH), WHOLE);

    return ch_layer_norm(x, gamma, var(s, c, ch_shape_of(WIDTH), WHOLE), 1e-5);
}

static void block(ch_step *s, plan_case *c)
{
    ch_node *x = ch_step_in(s, 0), *h = norm(s, c, x);
    ch_node *q = heads(dense(s, c, h, WIDTH, WIDTH, 1));
    ch_node *k = heads(dense(s, c, h, WIDTH, WIDTH, 1));
    ch_node *v = heads(dense(s, c, h, WIDTH, WIDTH, 1));

    h = ch_attention(q, k, v, NULL, &(ch_attention_options){.causal = true});
    h = ch_reshape(ch_transpose(h, 4, (int[]){0, 2, 1, 3}), ch_shape_of(-1, TIME, WIDTH));
    x = ch_add(x, dense(s, c, h, WIDTH, WIDTH, 0));
    h = ch_gelu(dense(s, c, norm(s, c, x), WIDTH, 4 * WIDTH, 1));
    minimize(s, c, ch_add(x, dense(s, c, h, 4 * WIDTH, WIDTH, 0)));
}

/* ---- measuring ---- */

static void record(ch_step *s, void *arg)
{
    plan_case *c = arg;

    c->n_read = 0;
    c->record(s, c);
}

/* Records the step in a new function, and plans it twice. Returns the milliseconds that the
 * second plan took. */
static double plan(plan_case *c)
{
    ch_function *f = NULL;
    int64_t      ns;

    must(ch_function_new(c->name, record, c, &f));
    must(ch_strategy_run(c->strategy, f, c->batch[0], NULL));
    ns = ch__function_planning_ns(f);
    must(ch_strategy_run(c->strategy, f, c->batch[1], NULL));
    ns = ch__function_planning_ns(f) - ns;
    ch_function_unref(f);
    return (double)ns * 1e-6;
}

static void begin(plan_case *c, int n)
{
    cores of = {.n = n};

    for (int i = 0; i < n; i++)
        of.device[i] = ch_device_at(i);
    c->strategy = cores_strategy(&of, 0, NULL);
    for (int i = 0; i < 2; i++) {
        ch_tensor *x = NULL;
        ch_shape   shape = c->input;

        shape.dim[0] *= i + 1;
        must(ch_tensor_new(CH_F32, shape, &x));
        must(ch_tuple_of(1, &x, &c->batch[i]));
        ch_tensor_unref(x);
    }
    (void)plan(c); /* creates the variables */
}

static void end(plan_case *c)
{
    for (int i = 0; i < c->n_vars; i++)
        ch_var_unref(c->var[i]);
    for (int i = 0; i < 2; i++)
        ch_tuple_unref(c->batch[i]);
    ch_strategy_unref(c->strategy);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof(*x), by_value);
    return x[n / 2];
}

static void measure(bench *b, const plan_case *c)
{
    plan_case many = *c, few = *c;
    double    ms[2][ROUNDS];
    int       rounds = bench_is_quick(b) ? 1 : ROUNDS;

    begin(&many, MANY);
    begin(&few, FEW);
    for (int i = 0; i < rounds; i++) {
        ms[0][i] = plan(&many);
        ms[1][i] = plan(&few);
    }
    bench_add(b, c->name, "ms", BENCH_LOWER, median(ms[0], rounds), median(ms[1], rounds));
    end(&many);
    end(&few);
}

int main(int argc, char **argv)
{
    bench          *b = bench_open("spmd-plan", argc, argv);
    const plan_case cases[] = {
        {.name = "mlp 64-512-512-10, 64 cores to 2", .input = {2, {32, 64}}, .record = mlp},
        {.name = "cnn by rows of the image, 64 cores to 2",
         .input = {4, {2, 128, 6, 3}},
         .record = cnn},
        {.name = "block of 128, 64 heads, 64 cores to 2",
         .input = {3, {2, TIME, WIDTH}},
         .record = block},
    };

    must(ch_devices_configure(&(ch_devices_options){.spec = "CPU=64", .threads = 1}));
    must(ch__config_set("replicas", "turns")); /* the runs are not measured */
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (bench_wants(b, cases[i].name))
            measure(b, &cases[i]);
    return bench_close(b);
}

/* bench/spmd_search.c -- the time to find layouts for the model of bench/transformer.c on two
 * cores of one thread each.
 *
 * Ours is the planning of the first step: the search for layouts, the division and the plan.
 * The limit is the time of 20 steps, so the ratio must not be less than 1. The case is measured
 * several times, each time with a new model; the figures are medians.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/function.h"
#include "language.h"
#include "logical.h"

enum { ROUNDS = 3, STEPS = 20, MEASURED = 5 };

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

static void step(training *t, double *seconds)
{
    double began = bench_now();

    must(ch_strategy_run(t->strategy, t->step, t->batch, NULL));
    if (seconds != NULL)
        *seconds = bench_now() - began;
}

/* Trains a new model. Sets the seconds of planning and of a step. */
static void train(language *l, double *planning, double *of_step)
{
    cores             c = {.n = CORES};
    training          t = {0};
    double            seconds[MEASURED];
    ch_strategy_parts parts = {.choose_layouts = true};

    for (int i = 0; i < CORES; i++)
        c.device[i] = ch_device_at(i);
    t.strategy = cores_strategy_of(&c, parts);
    must(ch_model_new(
        t.strategy, language_layer(l),
        &(ch_model_options){.n_inputs = 1, .input = {{CH_I32, ch_shape_of(-1, l->length)}}},
        &t.model));
    must(ch_optimizer_adamw(1e-4, NULL, NULL, &t.opt));
    must(ch_function_new("language", classify, &t, &t.step));
    take_batch(&t, labels(BATCH_X, ch_shape_of(l->rows, l->length), l->vocabulary),
               labels(BATCH_Y, ch_shape_of(l->rows, l->length), l->vocabulary));
    step(&t, NULL);
    *planning = (double)ch__function_planning_ns(t.step) * 1e-9;
    for (int i = 0; i < MEASURED; i++)
        step(&t, &seconds[i]);
    *of_step = median(seconds, MEASURED);
    drop_training(&t);
}

int main(int argc, char **argv)
{
    bench   *b = bench_open("spmd-search", argc, argv);
    language l = {
        "6 layers, 384 wide, 8x128 tokens: layouts, beside 20 steps", 1000, 6, 384, 6, 8, 128};
    double planning[ROUNDS], of_step[ROUNDS];
    int    rounds = bench_is_quick(b) ? 1 : ROUNDS;

    if (bench_is_small(b))
        l = (language){l.name, 100, 2, 32, 2, 2, 16};
    must(ch_devices_configure(&(ch_devices_options){.spec = "CPU=2", .threads = 1}));
    if (!bench_wants(b, l.name))
        return bench_close(b);
    for (int i = 0; i < rounds; i++)
        train(&l, &planning[i], &of_step[i]);
    bench_add(b, l.name, "ms", BENCH_LOWER, median(planning, rounds) * 1e3,
              STEPS * median(of_step, rounds) * 1e3);
    return bench_close(b);
}

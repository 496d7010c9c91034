/* examples/tensor_parallel.c -- the GPT of gpt.c on 4 and on 8 cores, split by rules.
 *
 *     ./tensor_parallel [short]
 *
 * Seven rules split the heads of attention, the hidden units and the characters over axis 1 of
 * a logical mesh. With 4 cores the mesh is 1x4. With 8 cores it is 2x4, and each row of the
 * mesh computes half of the batch. The losses are those of a single core.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "cores.h"
#include "gpt.h"

enum { ROW = 0, COLUMN = 1, MOST_STEPS = 200 }; /* axes of the mesh */

/* The first rule that matches the name of a variable holds. */
static const ch_split_rule rule[] = {
    {"*output/kernel", 2, {COLUMN, CH_OFF}}, /* of attention, and of the hidden layer */
    {"*output/bias", 1, {CH_OFF}},
    {"*attention/*/kernel", 2, {CH_OFF, COLUMN}}, /* heads of queries, keys and values */
    {"*attention/*/bias", 1, {COLUMN}},
    {"*hidden/kernel", 2, {CH_OFF, COLUMN}},
    {"*hidden/bias", 1, {COLUMN}},
    {"*dense/kernel", 2, {CH_OFF, COLUMN}}, /* characters */
};

static void print_traffic(const char *name, ch_traffic t)
{
    if (t.count > 0)
        printf("%4lld %s, %lld bytes\n", (long long)t.count, name, (long long)t.bytes);
}

static void print_report(const ch_layout_report *r)
{
    printf("%d cores, %d calls; the busiest core computes %.0f %% of the step\n", r->devices,
           r->calls, 100 * r->work);
    print_traffic("all-reduce", r->all_reduce);
    print_traffic("reduce-scatter", r->reduce_scatter);
    print_traffic("all-gather", r->all_gather);
    print_traffic("all-to-all", r->all_to_all);
    print_traffic("others", r->other);
}

/* Trains under a strategy, and unrefs it. Sets loss[i] to the loss of step i. */
static void train_under(ch_strategy *st, int steps, double *loss)
{
    job              j = {.model = new_gpt(st), .split = (int[]){ROW, CH_OFF}};
    ch_function     *learn = NULL;
    ch_layout_report report;

    must(ch_optimizer_adamw(3e-3, NULL, NULL, &j.optimizer));
    must(ch_function_new("learn", train, &j, &learn));
    srand(1); /* the same pieces of the text */
    for (int i = 0; i < steps; i++)
        loss[i] = run(st, learn, ROWS, -1);
    must(ch_function_report_layouts(learn, NULL, &report));
    print_report(&report);
    printf("loss %.4f, then %.4f\n", loss[0], loss[steps - 1]);
    ch_function_unref(learn);
    ch_optimizer_unref(j.optimizer);
    ch_model_unref(j.model);
    ch_strategy_unref(st);
}

int main(int argc, char **argv)
{
    int              steps = is_short(argc, argv) ? 20 : MOST_STEPS;
    ch_tpu_options   opt = {.spmd = true,
                            .n_mesh = 2,
                            .mesh = {1, 4},
                            .n_rules = sizeof(rule) / sizeof(rule[0]),
                            .rule = rule};
    ch_tpu_topology *t = new_topology(0);
    double           one[MOST_STEPS], four[MOST_STEPS], eight[MOST_STEPS], far = 0;
    ch_strategy     *st = NULL;

    must(ch_strategy_one_device("TPU:0", &st));
    train_under(st, steps, one);
    train_under(new_replicas(t, 1, (int[]){2, 1, 2}, &opt), steps, four);
    opt.mesh[ROW] = 2;
    train_under(new_replicas(t, 1, (int[]){2, 2, 2}, &opt), steps, eight);
    ch_tpu_topology_unref(t);
    for (int i = 0; i < steps; i++)
        far = fmax(far, fmax(fabs(four[i] - one[i]), fabs(eight[i] - one[i])));
    printf("the losses differ by at most %g\n", far);
    return far < 0.01 && one[steps - 1] < one[0] / 1.5 ? 0 : 1;
}

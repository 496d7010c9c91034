/* examples/own_strategy.c -- two custom strategies.
 *
 *     ./own_strategy [short]
 *
 * "Alternating" has a replica on every CPU device. Every variable has a single copy. Variables
 * are placed on the devices in turn, so that each device holds a part of the model.
 *
 * "Divided" has a single replica, which computes on all CPU devices together: they are its
 * logical devices. Each holds a part of every variable, and computes a part of every layer.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "example.h"

typedef struct cpus {
    int        n_homes, next; /* devices where variables are placed; variables placed so far */
    ch_device *device[];
} cpus;

static ch_device *const *devices(void *self)
{
    return ((cpus *)self)->device;
}

/* Gives the variable a single copy. If replicas have logical devices, this is logical device 0,
 * and the others have their parts. */
static ch_status place(void *self, const ch_var_spec *spec, ch_layout *out)
{
    cpus *c = self;

    (void)spec;
    out->device[0] = c->device[c->next++ % c->n_homes];
    return CH_OK;
}

static ch_strategy *new_strategy(bool is_divided)
{
    static const ch_strategy_ops alternating = {"Alternating", devices, place, free};
    static const ch_strategy_ops divided = {"Divided", devices, place, free};
    int                          n = ch_device_count("CPU");
    cpus                        *c = calloc(1, sizeof(*c) + (size_t)n * sizeof(c->device[0]));
    ch_strategy_parts parts = {.n_replicas = is_divided ? 1 : n, .n_cores = is_divided ? n : 1};
    ch_strategy      *st = NULL;

    want(c != NULL, "memory", "none");
    for (int i = 0; i < n; i++)
        c->device[i] = ch_device_at(i); /* CPU devices come first */
    c->n_homes = is_divided ? 1 : n;
    must(ch_strategy_new(is_divided ? &divided : &alternating, c, &parts, &st));
    return st;
}

/* ---- a model, which is independent of the strategy ---- */

enum { ROWS = 64, COLUMNS = 8, LAYERS = 3 };

typedef struct model {
    ch_var       *weight[LAYERS];
    ch_optimizer *optimizer;
} model;

static void train(ch_step *s, void *arg)
{
    model   *m = arg;
    ch_node *x = ch_random_uniform(s, CH_F32, ch_shape_of(ROWS, COLUMNS), -0.5, 0.5, 1);
    ch_node *y = x, *loss; /* the target is x; each replica draws its own numbers */

    for (int i = 0; i < LAYERS; i++) {
        y = ch_matmul(y, false, ch_var_read(s, m->weight[i]), false);
        y = i < LAYERS - 1 ? ch_tanh(y) : y;
    }
    loss = ch_div(ch_mean_all(ch_square(ch_sub(y, x))), ch_step_replica_count(s));
    ch_optimizer_minimize(m->optimizer, s, loss, LAYERS, m->weight);
    ch_step_out(s, "loss", ch_all_reduce(CH_SUM, loss));
}

static double train_under(ch_strategy *st, int steps)
{
    model            m = {.optimizer = NULL};
    ch_tuple        *out = NULL;
    ch_function     *step = NULL;
    ch_layout_report report;
    double           loss = 1;

    for (int i = 0; i < LAYERS; i++) { /* logical devices have some columns each */
        ch_var_spec spec = {"weight", .shape = ch_shape_of(COLUMNS, COLUMNS),
                            .split = (int[]){CH_OFF, 0}, .n_split = 2,
                            .init = ch_init_glorot_uniform()};
        ch_tensor  *tile = NULL;

        must(ch_var_new(st, &spec, &m.weight[i]));
        must(ch_var_get_tile(m.weight[i], 0, 0, &tile));
        printf("%-10s on %s, %d columns\n", ch_var_name(m.weight[i]),
               ch_var_device(m.weight[i]), (int)ch_tensor_shape(tile).dim[1]);
        ch_tensor_unref(tile);
    }
    must(ch_optimizer_adam(0.01, NULL, NULL, &m.optimizer));
    must(ch_function_new("train", train, &m, &step));
    for (int i = 0; i < steps; i++) {
        must(ch_strategy_run(st, step, NULL, &out));
        loss = number_of(out, "loss");
        ch_tuple_unref(out);
    }
    must(ch_function_report_layouts(step, &report, NULL));
    printf("loss %.5f; a device computes %.0f %% of a step\n", loss, 100 * report.work);
    ch_function_unref(step);
    ch_optimizer_unref(m.optimizer);
    for (int i = 0; i < LAYERS; i++)
        ch_var_unref(m.weight[i]);
    ch_strategy_unref(st);
    return loss;
}

int main(int argc, char **argv)
{
    int  steps = is_short(argc, argv) ? 200 : 1000;
    bool learns = train_under(new_strategy(false), steps) < 0.02;

    return train_under(new_strategy(true), steps) < 0.02 && learns ? 0 : 1;
}

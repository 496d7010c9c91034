/* examples/own_strategy.c -- a custom strategy.
 *
 *     ./own_strategy [short]
 *
 * The strategy "Alternating" has a replica on every CPU device. Every variable has a single
 * copy. Variables are placed on the devices in turn, so that each device holds a part of the
 * model.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "example.h"

typedef struct alternating {
    int        n, next; /* devices; variables placed so far */
    ch_device *device[];
} alternating;

static ch_device *const *devices(void *self)
{
    return ((alternating *)self)->device;
}

static ch_status place(void *self, const ch_var_spec *spec, ch_layout *out)
{
    alternating *a = self;

    (void)spec;
    out->device[0] = a->device[a->next++ % a->n]; /* a single copy for all replicas */
    return CH_OK;
}

static ch_strategy *new_alternating(void)
{
    static const ch_strategy_ops ops = {"Alternating", devices, place, free};
    int                          n = ch_device_count("CPU");
    alternating                 *a = calloc(1, sizeof(*a) + (size_t)n * sizeof(a->device[0]));
    ch_strategy                 *st = NULL;

    want(a != NULL, "memory", "none");
    for (a->n = 0; a->n < n; a->n++)
        a->device[a->n] = ch_device_at(a->n); /* CPU devices come first */
    must(ch_strategy_new(&ops, a,
                         &(ch_strategy_parts){.n_replicas = n,
                                              .n_parameter = n, /* any may hold variables */
                                              .parameter = a->device,
                                              .own_pipelines = true},
                         &st));
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
    ch_step_out(s, "loss", loss);
}

int main(int argc, char **argv)
{
    static const char *const name[] = {"first", "second", "third"};
    ch_strategy             *st = new_alternating();
    model                    m = {.optimizer = NULL};
    ch_tuple                *out = NULL;
    ch_function             *step = NULL;
    ch_tensor               *sum = NULL;
    double                   loss = 1;

    for (int i = 0; i < LAYERS; i++) {
        ch_var_spec spec = {name[i], .shape = ch_shape_of(COLUMNS, COLUMNS),
                            .init = ch_init_glorot_uniform()};
        ch_value   *copy = NULL;

        must(ch_var_new(st, &spec, &m.weight[i]));
        must(ch_var_copies(m.weight[i], &copy));
        printf("%-6s on %s\n", name[i], ch_device_name(ch_tensor_device(ch_value_at(copy, 0))));
        ch_value_unref(copy);
    }
    must(ch_optimizer_adam(0.01, NULL, NULL, &m.optimizer));
    must(ch_function_new("train", train, &m, &step));
    for (int i = 1; i <= (is_short(argc, argv) ? 200 : 1000); i++) {
        must(ch_strategy_run(st, step, NULL, &out));
        must(ch_strategy_reduce(st, CH_SUM, ch_tuple_get(out, "loss"), CH_NO_AXIS, &sum));
        must(ch_tensor_item(sum, &loss));
        if (i % 50 == 0)
            printf("step %4d  loss %.5f\n", i, loss);
        ch_tensor_unref(sum);
        ch_tuple_unref(out);
    }
    ch_function_unref(step);
    ch_optimizer_unref(m.optimizer);
    for (int i = 0; i < LAYERS; i++)
        ch_var_unref(m.weight[i]);
    ch_strategy_unref(st);
    return loss < 0.02 ? 0 : 1;
}

/* examples/spirals.c -- a small network learns three spirals, on every core.
 *
 *     ./spirals [short]
 *
 * 2 -> 64 -> 64 -> 3, softmax, SGD. Each device is a replica and draws its own points. The
 * gradients are averaged over all replicas, so every copy of a variable gets the same update.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "example.h"

enum { ARMS = 3, POINTS = 300, LAYERS = 3, VARS = 2 * LAYERS };

typedef struct model {
    ch_strategy *st;
    ch_var      *var[VARS]; /* weights and biases in turn */
} model;

/* Returns noisy points (POINTS, 2) on three interleaved arms, and the arm of each point. */
static ch_node *spirals(ch_step *s, ch_node **arm)
{
    ch_node *t = ch_random_uniform(s, CH_F32, ch_shape_of(POINTS), 0, 1, 1), *angle;

    *arm = ch_random_integers(s, CH_I32, ch_shape_of(POINTS), 0, ARMS, 2);
    angle =
        ch_add(ch_mul(t, ch_number(s, 4)), ch_mul(ch_cast(*arm, CH_F32), ch_number(s, 2.1)));
    angle = ch_add(angle, ch_random_normal_like(t, 0, 0.1, 3));
    return ch_stack(2, (ch_node *[]){ch_mul(t, ch_sin(angle)), ch_mul(t, ch_cos(angle))}, 1);
}

static ch_node *forward(ch_step *s, model *m, ch_node *x)
{
    for (int i = 0; i < VARS; i += 2) {
        x = ch_add(ch_matmul(x, false, ch_var_read(s, m->var[i]), false),
                   ch_var_read(s, m->var[i + 1]));
        x = i + 2 < VARS ? ch_relu(x) : x;
    }
    return x;
}

static void train(ch_step *s, void *arg)
{
    model   *m = arg;
    ch_node *var[VARS], *d[VARS], *y, *x = spirals(s, &y), *guess = forward(s, m, x), *loss;

    loss = ch_mean_all(ch_sparse_softmax_cross_entropy(guess, y));
    for (int i = 0; i < VARS; i++)
        var[i] = ch_var_read(s, m->var[i]);
    ch_gradients(loss, NULL, VARS, var, d);
    for (int i = 0; i < VARS; i++)
        ch_var_assign_sub(s, m->var[i],
                          ch_mul(ch_all_reduce(CH_MEAN, d[i]), ch_number(s, 0.3)));
    ch_step_out(s, "loss", ch_all_reduce(CH_MEAN, loss));
    guess = ch_equal(ch_argmax(guess, -1), ch_cast(y, CH_I64));
    ch_step_out(s, "right", ch_all_reduce(CH_MEAN, ch_mean_all(ch_cast(guess, CH_F32))));
}

static ch_var *new_var(ch_strategy *st, ch_shape shape, float scale)
{
    ch_tensor *t = NULL;
    ch_var    *v = NULL;

    must(ch_tensor_new(CH_F32, shape, &t));
    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        ((float *)ch_tensor_data_mut(t))[i] = scale * (2 * (float)rand() / (float)RAND_MAX - 1);
    must(ch_var_new(st, &(ch_var_spec){.initial = t}, &v));
    ch_tensor_unref(t);
    return v;
}

int main(int argc, char **argv)
{
    int                steps = is_short(argc, argv) ? 200 : 1000;
    double             right = 0;
    static const int   size[LAYERS + 1] = {2, 64, 64, ARMS};
    static const float scale[LAYERS] = {1.73f, 0.31f, 0.31f}; /* sqrt(6 / inputs) */
    model              m = {0};
    ch_function       *step = NULL;
    ch_tuple          *out = NULL;

    must(ch_strategy_mirrored(NULL, &m.st));
    for (int i = 0; i < VARS; i++) {
        int      rows = size[i / 2], columns = size[i / 2 + 1];
        ch_shape shape = i % 2 == 0 ? ch_shape_of(rows, columns) : ch_shape_of(columns);

        m.var[i] = new_var(m.st, shape, i % 2 == 0 ? scale[i / 2] : 0);
    }
    must(ch_function_new("train", train, &m, &step));
    printf("three spirals: %d steps of %d points on each of %d replicas\n", steps, POINTS,
           ch_strategy_replicas(m.st));
    for (int i = 0; i <= steps; i++) {
        must(ch_strategy_run(m.st, step, NULL, &out));
        if (i % 200 == 0)
            printf("step %4d  loss %.4f  accuracy on new points %5.1f %%\n", i,
                   number_of(out, "loss"), 100 * number_of(out, "right"));
        right = number_of(out, "right");
        ch_tuple_unref(out);
    }
    ch_function_unref(step);
    for (int i = 0; i < VARS; i++)
        ch_var_unref(m.var[i]);
    ch_strategy_unref(m.st);
    return right > 0.9 ? 0 : 1;
}

/* examples/demo.c -- a small network learns three spirals, on every core of this machine.
 *
 * 2 -> 64 -> 64 -> 3, softmax, momentum. Each device is a replica: it takes its share of a
 * batch, the gradients are summed over all, and every copy of a variable takes the same step.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cohort/cohort.h"

enum { ARMS = 3, ROWS = 300, STEPS = 600, LAYERS = 3 };

typedef struct model {
    ch_strategy *st;
    ch_var      *w[LAYERS], *b[LAYERS], *speed[2 * LAYERS];
} model;

static void must(ch_status rc)
{
    if (rc == CH_OK)
        return;
    fprintf(stderr, "%s: %s\n", ch_status_name(rc), ch_error_message());
    exit(1);
}

static ch_node *forward(ch_step *s, model *m, ch_node *x)
{
    for (int i = 0; i < LAYERS; i++) {
        x = ch_add(ch_matmul(x, false, ch_var_read(s, m->w[i]), false),
                   ch_var_read(s, m->b[i]));
        x = i < LAYERS - 1 ? ch_relu(x) : x;
    }
    return x;
}

static void train(ch_step *s, void *arg)
{
    model   *m = arg;
    ch_node *var[2 * LAYERS], *d[2 * LAYERS], *loss;

    loss = ch_sparse_softmax_cross_entropy(forward(s, m, ch_step_in(s, 0)), ch_step_in(s, 1));
    loss = ch_div(ch_sum_all(loss), ch_step_global_rows(s));
    for (int i = 0; i < LAYERS; i++) {
        var[2 * i] = ch_var_read(s, m->w[i]);
        var[2 * i + 1] = ch_var_read(s, m->b[i]);
    }
    ch_gradients(loss, NULL, 2 * LAYERS, var, d);
    for (int i = 0; i < 2 * LAYERS; i++) {
        ch_var  *v = i % 2 == 0 ? m->w[i / 2] : m->b[i / 2];
        ch_node *speed = ch_mul(ch_var_read(s, m->speed[i]), ch_number(s, 0.9));

        speed = ch_var_assign(s, m->speed[i], ch_add(speed, ch_all_reduce(CH_SUM, d[i])));
        ch_var_assign_sub(s, v, ch_mul(speed, ch_number(s, 0.1)));
    }
    ch_step_out(s, "loss", ch_all_reduce(CH_SUM, loss));
}

static void count_right(ch_step *s, void *arg)
{
    ch_node *guess = ch_argmax(forward(s, arg, ch_step_in(s, 0)), -1);

    ch_step_out(
        s, "right",
        ch_sum_all(ch_cast(ch_equal(guess, ch_cast(ch_step_in(s, 1), CH_I64)), CH_F32)));
}

/* Points of three interleaved spiral arms; `noise` moves them off the line. */
static ch_tuple *spirals(ch_strategy *st, unsigned seed, float noise)
{
    int        n = ch_strategy_replicas(st), share = ROWS / n;
    ch_tensor *x[64], *y[64];
    ch_value  *v[2] = {0};
    ch_tuple  *batch = NULL;

    srand(seed);
    for (int r = 0; r < n; r++) {
        int rows = share + (r < ROWS % n);

        must(ch_tensor_new(CH_F32, ch_shape_of(rows, 2), &x[r]));
        must(ch_tensor_new(CH_I32, ch_shape_of(rows), &y[r]));
        for (int i = 0; i < rows; i++) {
            int   arm = i % ARMS;
            float t = (float)rand() / (float)RAND_MAX,
                  wobble = (float)rand() / (float)RAND_MAX - 0.5f;
            float angle = 4 * t + 2.1f * (float)arm + noise * wobble;

            ((float *)ch_tensor_data_mut(x[r]))[2 * i] = t * sinf(angle);
            ((float *)ch_tensor_data_mut(x[r]))[2 * i + 1] = t * cosf(angle);
            ((int32_t *)ch_tensor_data_mut(y[r]))[i] = arm;
        }
    }
    must(ch_value_new(n > 1 ? CH_PER_REPLICA : CH_PLAIN, n, x, &v[0]));
    must(ch_value_new(n > 1 ? CH_PER_REPLICA : CH_PLAIN, n, y, &v[1]));
    must(ch_tuple_new(2, v, NULL, &batch));
    for (int r = 0; r < n; r++)
        ch_tensor_unref(x[r]), ch_tensor_unref(y[r]);
    ch_value_unref(v[0]);
    ch_value_unref(v[1]);
    return batch;
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

/* What a step returned under `name`, summed or averaged over the replicas. */
static double result(ch_strategy *st, ch_function *f, ch_tuple *batch, const char *name,
                     ch_reduce_op op)
{
    ch_tuple  *out = NULL;
    ch_tensor *t = NULL;
    double     x = 0;

    must(ch_strategy_run(st, f, batch, &out));
    must(ch_strategy_reduce(st, op, ch_tuple_get(out, name), &t));
    must(ch_tensor_item(t, &x));
    ch_tensor_unref(t);
    ch_tuple_unref(out);
    return x;
}

int main(void)
{
    static const int size[LAYERS + 1] = {2, 64, 64, ARMS};
    model            m = {0};
    ch_function     *step = NULL, *test = NULL;
    ch_tuple        *unseen;

    must(ch_strategy_mirrored(NULL, &m.st));
    for (int i = 0; i < LAYERS; i++) {
        m.w[i] = new_var(m.st, ch_shape_of(size[i], size[i + 1]), sqrtf(6.0f / (float)size[i]));
        m.b[i] = new_var(m.st, ch_shape_of(size[i + 1]), 0);
        m.speed[2 * i] = new_var(m.st, ch_shape_of(size[i], size[i + 1]), 0);
        m.speed[2 * i + 1] = new_var(m.st, ch_shape_of(size[i + 1]), 0);
    }
    must(ch_function_new("train", train, &m, &step));
    must(ch_function_new("test", count_right, &m, &test));
    printf("three spirals, %d steps of %d points over %d replicas\n", STEPS, ROWS,
           ch_strategy_replicas(m.st));
    for (int i = 0; i < STEPS; i++) {
        ch_tuple *batch = spirals(m.st, (unsigned)i, 0.4f);
        double    loss = result(m.st, step, batch, "loss", CH_MEAN);

        if (i % 100 == 0 || i == STEPS - 1)
            printf("step %4d  loss %.4f\n", i, loss);
        ch_tuple_unref(batch);
    }
    unseen = spirals(m.st, 1000000, 0.4f);
    printf("accuracy on points it has not seen: %.1f %%\n",
           100 * result(m.st, test, unseen, "right", CH_SUM) / ROWS);
    ch_tuple_unref(unseen);
    ch_function_unref(step);
    ch_function_unref(test);
    for (int i = 0; i < LAYERS; i++)
        ch_var_unref(m.w[i]), ch_var_unref(m.b[i]);
    for (int i = 0; i < 2 * LAYERS; i++)
        ch_var_unref(m.speed[i]);
    ch_strategy_unref(m.st);
    return 0;
}

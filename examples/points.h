/* examples/points.h -- generated data, and a network that learns it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef EXAMPLES_POINTS_H
#define EXAMPLES_POINTS_H

#include "example.h"

static inline float between(float lo, float hi)
{
    return lo + (hi - lo) * (float)rand() / (float)RAND_MAX;
}

/* Makes points (n, 2) and labels (n): 1 inside a ring, 0 elsewhere. A share `wrong` of the
 * labels is random. */
static inline void make_points(int n, float wrong, ch_tensor **t)
{
    must(ch_tensor_new(CH_F32, ch_shape_of(n, 2), &t[0]));
    must(ch_tensor_new(CH_I32, ch_shape_of(n), &t[1]));
    for (int i = 0; i < n; i++) {
        float x = between(-1, 1), y = between(-1, 1), far = x * x + y * y;
        bool  by_lot = between(0, 1) < wrong;

        ((float *)ch_tensor_data_mut(t[0]))[2 * i] = x;
        ((float *)ch_tensor_data_mut(t[0]))[2 * i + 1] = y;
        ((int32_t *)ch_tensor_data_mut(t[1]))[i] =
            by_lot ? rand() % 2 : far > 0.2f && far < 0.7f;
    }
}

/* Returns a network for these points, with two hidden layers. */
static inline ch_model *new_network(ch_strategy *st, int width, const ch_model_options *opt)
{
    ch_layer_dense_options hidden = {.activation = CH_RELU};
    ch_layer        *layer[] = {ch_layer_dense(width, &hidden), ch_layer_dense(width, &hidden),
                                ch_layer_dense(2, NULL)};
    ch_model_options all = opt != NULL ? *opt : (ch_model_options){0};
    ch_model        *m = NULL;

    all.n_inputs = 1;
    all.input[0] = (ch_input_spec){CH_F32, ch_shape_of(-1, 2)};
    must(ch_model_new(st, ch_layer_sequential("net", 3, layer), &all, &m));
    return m;
}

/* Sets the optimizer (NULL: the model is only evaluated), the loss and the metric. */
static inline void compile_network(ch_model *m, ch_optimizer *optimizer)
{
    must(ch_compile(m, &(ch_compile_options){.optimizer = optimizer,
                                             .loss = ch_loss_sparse_categorical,
                                             .metrics = {ch_metric_sparse_accuracy()}}));
}

static inline void drop_points(ch_tensor **t)
{
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
}

#endif

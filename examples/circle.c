/* examples/circle.c -- learns which points of a square are in a circle; checks the accuracy.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "cohort/cohort.h"

enum { SIDE = 64, POINTS = SIDE * SIDE };

static float   point[POINTS][2];
static int32_t is_inside[POINTS];

int main(void)
{
    ch_layer *layer[] = {ch_layer_dense(32, &(ch_layer_dense_options){.activation = CH_RELU}),
                         ch_layer_dense(2, NULL)};
    ch_model_options input = {.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, 2)}}};
    ch_strategy     *st = NULL;
    ch_model        *model = NULL;
    ch_optimizer    *adam = NULL;
    ch_tensor       *data[2] = {NULL};
    ch_history      *history = NULL;
    ch_status        rc;
    double           right = 0;

    for (int i = 0; i < POINTS; i++) {
        int   column = i % SIDE, row = i / SIDE;
        float x = 2.0f * (float)column / SIDE - 1, y = 2.0f * (float)row / SIDE - 1;

        point[i][0] = x;
        point[i][1] = y;
        is_inside[i] = x * x + y * y < 0.6f;
    }
    if ((rc = ch_strategy_mirrored(NULL, &st)) || /* trains on every core */
        (rc = ch_tensor_copy_of(CH_F32, ch_shape_of(POINTS, 2), point, &data[0])) ||
        (rc = ch_tensor_copy_of(CH_I32, ch_shape_of(POINTS), is_inside, &data[1])) ||
        (rc = ch_model_new(st, ch_layer_sequential("net", 2, layer), &input, &model)) ||
        (rc = ch_optimizer_adam(0.01, NULL, NULL, &adam)) ||
        (rc = ch_compile(model,
                         &(ch_compile_options){.optimizer = adam,
                                               .loss = ch_loss_sparse_categorical,
                                               .metrics = {ch_metric_sparse_accuracy()}})))
        goto done;
    rc = ch_fit(model, (ch_data){.n = 2, .array = data},
                &(ch_fit_options){.epochs = 10, .progress = CH_PROGRESS_AUTO}, &history);
    if (rc == CH_OK)
        right = ch_history_last(history, "sparse_accuracy");
    printf("%.1f %% right\n", 100 * right);
done:
    if (rc != CH_OK)
        fprintf(stderr, "%s\n", ch_error_message());
    ch_history_unref(history);
    ch_tensor_unref(data[0]);
    ch_tensor_unref(data[1]);
    ch_optimizer_unref(adam);
    ch_model_unref(model);
    ch_strategy_unref(st);
    return right > 0.9 ? 0 : 1;
}

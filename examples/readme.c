/* examples/readme.c -- learns which points of a square are in a circle, on all cores.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <cohort/cohort.h>
#include <stdio.h>

int main(void)
{
    enum { SIDE = 64, POINTS = SIDE * SIDE };
    static float   point[POINTS][2];
    static int32_t inside[POINTS];
    ch_layer *hidden = ch_layer_dense(32, &(ch_layer_dense_options){.activation = CH_RELU});
    ch_layer *layer[] = {hidden, ch_layer_dense(2, NULL)};
    ch_compile_options how = {.loss = ch_loss_sparse_categorical,
                              .metrics = {ch_metric_sparse_accuracy()}};
    ch_strategy       *st = NULL;
    ch_model          *model = NULL;
    ch_tensor         *data[2] = {NULL};

    for (int i = 0; i < POINTS; i++) {
        int   row = i / SIDE, column = i % SIDE;
        float x = point[i][0] = 2.0f * (float)column / SIDE - 1;
        float y = point[i][1] = 2.0f * (float)row / SIDE - 1;
        inside[i] = x * x + y * y < 0.6f;
    }
    int failed = ch_strategy_mirrored(NULL, &st) || /* trains on all cores */
                 ch_tensor_copy_of(CH_F32, ch_shape_of(POINTS, 2), point, &data[0]) ||
                 ch_tensor_copy_of(CH_I32, ch_shape_of(POINTS), inside, &data[1]) ||
                 ch_model_new(st, ch_layer_sequential("net", 2, layer), NULL, &model) ||
                 ch_optimizer_adam(0.01, NULL, NULL, &how.optimizer) ||
                 ch_compile(model, &how) ||
                 ch_fit(model, (ch_data){.n = 2, .array = data},
                        &(ch_fit_options){.epochs = 10, .progress = CH_PROGRESS_AUTO}, NULL);
    if (failed)
        fprintf(stderr, "%s\n", ch_error_message());
    ch_tensor_unref(data[0]);
    ch_tensor_unref(data[1]);
    ch_optimizer_unref(how.optimizer);
    ch_model_unref(model);
    ch_strategy_unref(st);
    return failed;
}

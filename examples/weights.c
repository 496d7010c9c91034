/* examples/weights.c -- rare positive cases: weights of classes, and weights of examples.
 *
 *     ./weights [short]
 *
 * About 6 % of the points are positive. Without weights, a model that always answers "negative"
 * has a low loss. With weights, a missed positive case costs 20 times as much. In this example
 * the weights of classes and of examples are equal, so both give the same result. Weights of
 * examples can also express other facts, such as the reliability of a label.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "points.h"

enum { POINTS = 6000, RARE = 20 };

/* Makes points and weights (t[2]). A random part of the points in the ring is positive. */
static void make_cases(ch_tensor **t)
{
    make_points(POINTS, 0, t);
    must(ch_tensor_new(CH_F32, ch_shape_of(POINTS), &t[2]));
    for (int i = 0; i < POINTS; i++) {
        int32_t *label = (int32_t *)ch_tensor_data_mut(t[1]) + i;

        *label = *label == 1 && rand() % (RARE / 3) == 0;
        ((float *)ch_tensor_data_mut(t[2]))[i] = *label == 1 ? RARE : 1;
    }
}

/* Trains on the first n tensors. Prints the cases found and the false alarms. Returns the share
 * of positive cases that were found. */
static double train(const char *what, ch_tensor **data, int n, const double *class_weight,
                    int epochs)
{
    ch_model     *m = new_network(NULL, 32, NULL);
    ch_optimizer *adam = NULL;
    ch_metric    *confusion = NULL;
    ch_history   *h = NULL;
    ch_tensor    *counts = NULL;
    const double *count; /* [truth][guess] */
    double        found;

    must(ch_optimizer_adam(0.005, NULL, NULL, &adam));
    must(ch_metric_new(NULL, ch_metric_confusion(2), &confusion));
    must(ch_compile(m, &(ch_compile_options){.optimizer = adam,
                                             .loss = ch_loss_sparse_categorical,
                                             .weighted_metrics = {ch_metric_sparse_accuracy()},
                                             .n_own = 1,
                                             .own = &confusion}));
    must(ch_fit(m, (ch_data){.n = n, .array = data},
                &(ch_fit_options){.epochs = epochs,
                                  .batch = 64,
                                  .n_classes = class_weight != NULL ? 2 : 0,
                                  .class_weight = class_weight,
                                  .progress = CH_PROGRESS_AUTO,
                                  .catch_interrupt = true},
                &h));
    must(ch_metric_tensor(confusion, &counts)); /* counts of the last epoch */
    count = ch_tensor_data(counts);
    found = count[3] / (count[2] + count[3]);
    printf("weights: %-8s  loss %.4f  found %4.0f of %4.0f cases, with %4.0f false alarms\n",
           what, ch_history_last(h, "loss"), count[3], count[2] + count[3], count[1]);
    ch_tensor_unref(counts);
    ch_history_unref(h);
    ch_metric_unref(confusion);
    ch_optimizer_unref(adam);
    ch_model_unref(m);
    return found;
}

int main(int argc, char **argv)
{
    const double class_weight[] = {1, RARE};
    int          epochs = is_short(argc, argv) ? 3 : 20;
    ch_tensor   *data[3];
    double       found[3];

    make_cases(data);
    found[0] = train("none", data, 2, NULL, epochs);
    found[1] = train("classes", data, 2, class_weight, epochs);
    found[2] = train("examples", data, 3, NULL, epochs);
    drop_points(data);
    ch_tensor_unref(data[2]);
    return found[0] < 0.5 && found[1] > 0.7 && found[2] == found[1] ? 0 : 1;
}

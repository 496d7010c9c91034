/* examples/evaluator.c -- evaluates the checkpoints of a training that runs in another process.
 *
 *     ./parameter_server short DIRECTORY &
 *     ./evaluator short DIRECTORY
 *
 * The program waits for the next checkpoint, loads its weights, and evaluates the network on
 * points that the training does not use. It ends when no checkpoint has come for a while. The
 * training removes old checkpoints; one that is removed before it was read is left out.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "points.h"

enum { POINTS = 4000, BATCH = 200 };

int main(int argc, char **argv)
{
    bool           brief = is_short(argc, argv);
    const char    *directory = argc > 1 + brief ? argv[1 + brief] : "parameter-server-run";
    ch_model      *m = new_network(NULL, 32, NULL);
    ch_checkpoint *c = NULL;
    ch_history    *result = NULL;
    ch_tensor     *points[2];
    char           path[512] = "";
    ch_status      rc;

    srand(99); /* other points than those of the training */
    make_points(POINTS, 0, points);
    compile_network(m, NULL);
    must(ch_checkpoint_new(&c));
    must(ch_checkpoint_add_model(c, "model", m)); /* the name that the training uses */
    while ((rc = ch_checkpoint_wait_next(directory, path[0] != '\0' ? path : NULL,
                                         brief ? 2 : 60, path, sizeof(path))) == CH_OK) {
        rc = ch_checkpoint_restore(c, path, &(ch_restore_options){.partial = true}, NULL);
        if (rc == CH_NOT_FOUND) /* removed meanwhile: a newer one is there */
            continue;
        must(rc);
        must(ch_evaluate(m, (ch_data){.n = 2, .array = points},
                         &(ch_evaluate_options){.batch = BATCH}, &result));
        printf("%s: loss %.4f, accuracy %.1f %%\n", path, ch_history_last(result, "loss"),
               100 * ch_history_last(result, "accuracy"));
        ch_history_unref(result);
    }
    if (rc != CH_DEADLINE_EXCEEDED)
        must(rc);
    ch_checkpoint_unref(c);
    ch_model_unref(m);
    drop_points(points);
    return 0;
}

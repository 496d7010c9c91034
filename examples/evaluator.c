/* examples/evaluator.c -- evaluates the checkpoints of a training that runs in another process.
 *
 *     ./parameter_server short DIRECTORY &
 *     ./evaluator short DIRECTORY
 *
 * The program waits for the next checkpoint, loads its weights, and evaluates the network on
 * points that the training does not use. It evaluates every checkpoint, in the order of their
 * numbers, and ends when none has come for a while. The training removes old checkpoints; one
 * that is removed before it was read is left out.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "points.h"

enum { POINTS = 4000, BATCH = 200 };

typedef struct job {
    ch_model      *model;
    ch_checkpoint *checkpoint;
    ch_tensor     *points[2];
    long           last; /* number of the last checkpoint that was evaluated; 0: none */
} job;

/* Evaluates a checkpoint, unless it was evaluated before. */
static ch_status evaluate(void *arg, const ch_checkpoint_found *found)
{
    job        *j = arg;
    const char *number = strrchr(found->prefix, '-'); /* of "DIRECTORY/ckpt-7" */
    long        n = number != NULL ? strtol(number + 1, NULL, 10) : 0;
    ch_history *result = NULL;
    ch_status   rc;

    if (!found->has_index || n <= j->last)
        return CH_OK;
    rc = ch_checkpoint_restore(j->checkpoint, found->prefix,
                               &(ch_restore_options){.partial = true}, NULL);
    if (rc == CH_NOT_FOUND) /* removed meanwhile: newer ones are there */
        return CH_OK;
    if (rc == CH_OK)
        rc = ch_evaluate(j->model, (ch_data){.n = 2, .array = j->points},
                         &(ch_evaluate_options){.batch = BATCH}, &result);
    if (rc != CH_OK)
        return rc;
    printf("%s: loss %.4f, accuracy %.1f %%\n", found->prefix, ch_history_last(result, "loss"),
           100 * ch_history_last(result, "sparse_accuracy"));
    fflush(stdout);
    ch_history_unref(result);
    j->last = n;
    return CH_OK;
}

int main(int argc, char **argv)
{
    bool        brief = is_short(argc, argv);
    const char *directory = argc > 1 + brief ? argv[1 + brief] : NULL;
    char        path[512] = "";
    job         j = {.model = new_network(NULL, 32, NULL)};
    ch_status   rc;

    want(directory != NULL, "the DIRECTORY of parameter_server", "");
    srand(99); /* other points than those of the training */
    make_points(POINTS, 0, j.points);
    compile_network(j.model, NULL);
    must(ch_checkpoint_new(&j.checkpoint));
    must(ch_checkpoint_add_model(j.checkpoint, "model", j.model)); /* the training's name */
    while ((rc = ch_checkpoint_wait_next(directory, path[0] != '\0' ? path : NULL,
                                         brief ? 2 : 60, path, sizeof(path))) == CH_OK)
        must(ch_checkpoint_list(directory, evaluate, &j));
    if (rc != CH_DEADLINE_EXCEEDED || j.last == 0)
        must(rc);
    ch_checkpoint_unref(j.checkpoint);
    ch_model_unref(j.model);
    drop_points(j.points);
    return 0;
}

/* examples/input_function.c -- an input function: each replica reads its own files.
 *
 *     ./input_function [short]
 *
 * Measurements are in eight files. Replica r of n reads files r, r + n, ... Batches are not
 * divided among replicas, and no replica waits for the input of another replica.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "folder.h"
#include "points.h"

enum { FILES = 8, ROWS = 1000, INPUTS = 3, GLOBAL_BATCH = 840 /* divides by 1 to 8 */ };

/* Writes rows (a, b, c, y) with y = 2 a - b + 0.5 c + noise. */
static void write_files(const char *folder)
{
    for (int f = 0; f < FILES; f++) {
        ch_tensor *t = NULL;
        char       name[32];

        must(ch_tensor_new(CH_F32, ch_shape_of(ROWS, INPUTS + 1), &t));
        for (int i = 0; i < ROWS; i++) {
            float *row = (float *)ch_tensor_data_mut(t) + (INPUTS + 1) * i;

            for (int k = 0; k < INPUTS; k++)
                row[k] = between(-1, 1);
            row[INPUTS] = 2 * row[0] - row[1] + 0.5f * row[2] + between(-0.01f, 0.01f);
        }
        snprintf(name, sizeof(name), "part-%d.npy", f);
        must(ch_npy_save(in_folder(folder, name), t, NULL));
        ch_tensor_unref(t);
    }
}

/* Called once for each pipeline: with CH_EACH_REPLICA, once for each replica. */
static ch_dataset *make_input(const ch_input_context *c, void *folder)
{
    ch_dataset *d = ch_dataset_files(in_folder(folder, "part-*.npy"), NULL);
    int64_t     batch = 0; /* rows for a replica */
    char        text[80];

    ch_input_context_print(c, text, sizeof(text));
    must(ch_input_context_batch_size(c, GLOBAL_BATCH, &batch));
    printf("%s, batches of %d\n", text, (int)batch);
    d = ch_dataset_npy(ch_dataset_shard(d, c->n_pipelines, c->pipeline), NULL, NULL);
    return ch_dataset_batch(ch_dataset_shuffle(d, ROWS, NULL), batch, NULL);
}

typedef struct job {
    ch_var       *weight, *seen;
    ch_optimizer *optimizer;
} job;

static void train(ch_step *s, void *arg)
{
    job     *j = arg;
    ch_node *row = ch_step_in(s, 0);
    ch_node *x = ch_slice(row, 2, (int64_t[]){0, 0}, (int64_t[]){-1, INPUTS});
    ch_node *y = ch_slice(row, 2, (int64_t[]){0, INPUTS}, (int64_t[]){-1, 1});
    ch_node *guess = ch_matmul(x, false, ch_var_read(s, j->weight), false);

    ch_optimizer_minimize(j->optimizer, s, ch_loss_average(ch_loss_mse(guess, y), NULL), 1,
                          &j->weight);
    ch_var_assign_add(s, j->seen, ch_rows(row)); /* each replica has its own count */
}

int main(int argc, char **argv)
{
    ch_strategy *st = NULL;
    ch_iterator *it = NULL;
    ch_function *step = NULL;
    ch_tuple    *batch = NULL;
    ch_value    *seen = NULL;
    ch_tensor   *weight = NULL;
    job          j = {NULL};
    char         folder[32], text[256];
    double       number = 0;

    make_folder(folder);
    write_files(folder);
    must(ch_strategy_mirrored(NULL, &st));
    must(ch_var_new(st, &(ch_var_spec){"weight", .shape = ch_shape_of(INPUTS, 1)}, &j.weight));
    must(ch_var_new(st,
                    &(ch_var_spec){"seen", .dtype = CH_I64, .sync = CH_SYNC_ON_READ,
                                   .aggregation = CH_AGGREGATE_SUM},
                    &j.seen));
    must(ch_optimizer_adam(0.05, NULL, NULL, &j.optimizer));
    must(ch_function_new("train", train, &j, &step));
    must(ch_strategy_distribute_datasets_from_function(
        st, make_input, folder, &(ch_input_options){.replication = CH_EACH_REPLICA}, &it));
    for (int epoch = 0; epoch < (is_short(argc, argv) ? 30 : 100); epoch++) {
        for (must(ch_iterator_next(it, &batch)); batch != NULL;
             must(ch_iterator_next(it, &batch))) {
            must(ch_strategy_run(st, step, batch, NULL));
            ch_tuple_unref(batch);
        }
        must(ch_iterator_restart(it));
    }
    must(ch_var_copies(j.seen, &seen));
    for (int r = 0; r < ch_value_count(seen); r++) {
        must(ch_tensor_item(ch_value_at(seen, r), &number));
        printf("replica %d trained on %.0f rows\n", r, number);
    }
    must(ch_var_get(j.weight, &weight));
    must(ch_tensor_get(weight, (int64_t[]){0, 0}, &number));
    ch_tensor_print(weight, text, sizeof(text));
    printf("weights (want 2, -1 and 0.5): %s\n", text);
    ch_tensor_unref(weight);
    ch_value_unref(seen);
    ch_iterator_unref(it);
    ch_function_unref(step);
    ch_optimizer_unref(j.optimizer);
    ch_var_unref(j.seen);
    ch_var_unref(j.weight);
    ch_strategy_unref(st);
    drop_folder(folder);
    return number > 1.95 && number < 2.05 ? 0 : 1;
}

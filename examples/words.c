/* examples/words.c -- texts of different lengths: buckets by length, padding, a mask.
 *
 *     ./words [short]
 *
 * Classifies reviews as kind or unkind. A line becomes an id for each word. Lines of similar
 * length share a batch and are padded to 5, 10 or 15 ids. This needs little padding, and the
 * step is planned for few sizes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "folder.h"

enum { IDS = 1 << 12, WIDTH = 8, LINES = 4000, MOST_WORDS = 15 };

static const char *const said[3][4] = {{"dull", "slow", "loud", "empty"},
                                       {"warm", "clever", "fine", "lovely"},
                                       {"the", "film", "was", "and"}};

/* Writes lines such as "1 the lovely film": the label, then mostly kind (1) or unkind words. */
static void write_lines(const char *path)
{
    FILE *file = fopen(path, "w");

    want(file != NULL, "a file to write", path);
    for (int i = 0; i < LINES; i++) {
        int kind = rand() % 2;

        fprintf(file, "%d", kind);
        for (int n = 3 + rand() % 12, k = 0; k < n; k++)
            fprintf(file, " %s", said[k % 2 == 0 ? kind : rand() % 3][rand() % 4]);
        fputc('\n', file);
    }
    fclose(file);
}

/* Converts a line to the ids of its words (hashes, never 0) and its label. */
static ch_status split(void *arg, ch_tuple *in, ch_tuple **out)
{
    int64_t    id[MOST_WORDS] = {0}, n = 0;
    ch_tensor *t[2] = {NULL};
    ch_str     line;

    (void)arg;
    must(ch_tensor_str(ch_value_at(ch_tuple_at(in, 0), 0), NULL, &line));
    if (line.size < 3 || line.data[1] != ' ')
        return ch_fail(CH_INVALID_ARGUMENT, "want a label, a space and words");
    for (size_t i = 1; i < line.size; i++)
        if (line.data[i] != ' ')
            id[n - 1] = (id[n - 1] * 31 + line.data[i]) % (IDS - 1) + 1;
        else if (n++ == MOST_WORDS)
            return ch_fail(CH_INVALID_ARGUMENT, "more than %d words", MOST_WORDS);
    must(ch_tensor_copy_of(CH_I64, ch_shape_of(n), id, &t[0]));
    must(ch_tensor_copy_of(CH_F32, ch_shape_of(1), (float[]){line.data[0] == '1'}, &t[1]));
    *out = batch_of(2, t);
    return CH_OK;
}

/* Maps ids (N, T) to logits (N, 1): a dense layer on the mean row. Id 0 is padding. */
static ch_node *forward(ch_step *s, int n, ch_node *const *in, bool training,
                        ch_layer *const *layer, void *arg)
{
    ch_node *row = ch_layer_call(layer[0], s, in[0], training); /* (N, T, WIDTH) */
    ch_node *mask = ch_cast(ch_not_equal(in[0], ch_number(s, 0)), CH_F32);
    ch_node *sum = ch_sum(ch_mul(row, ch_expand_dims(mask, -1)), 1, (int[]){1}, false);

    (void)n, (void)arg;
    return ch_layer_call(layer[1], s, ch_div(sum, ch_sum(mask, 1, (int[]){1}, true)), training);
}

static ch_dataset *pipeline(const char *path)
{
    const ch_tensor_spec spec[] = {{"words", CH_I64, ch_shape_of(-1)},
                                   {"kind", CH_F32, ch_shape_of(1)}};
    const int64_t        boundary[] = {6, 11, MOST_WORDS + 1}; /* <= 5 words, <= 10, <= 15 */
    const int64_t        rows[] = {128, 64, 32, 32};           /* short lines: more */
    ch_dataset          *d = ch_dataset_lines(ch_dataset_files(path, NULL), NULL);

    d = ch_dataset_cache(ch_dataset_map_call(d, split, NULL, 2, spec, NULL), NULL);
    d = ch_dataset_shuffle(d, LINES, NULL);
    return ch_dataset_bucket_by_length(d, 0, 3, boundary, rows,
                                       &(ch_bucket_options){.pad_to_boundary = true});
}

int main(int argc, char **argv)
{
    ch_layer     *layer[] = {ch_layer_embedding(IDS, WIDTH, NULL), ch_layer_dense(1, NULL)};
    ch_strategy  *st = NULL;
    ch_dataset   *d;
    ch_model     *m = NULL;
    ch_optimizer *adagrad = NULL;
    ch_history   *h = NULL;
    char          folder[32];
    double        right;

    make_folder(folder);
    write_lines(in_folder(folder, "reviews"));
    d = pipeline(in_folder(folder, "reviews"));
    must(ch_strategy_mirrored(NULL, &st));
    must(ch_model_new(st, ch_layer_function("kind", forward, NULL, 2, layer), NULL, &m));
    must(ch_optimizer_adagrad(0.3, NULL, NULL,
                              &adagrad)); /* updates only the rows of words in the batch */
    must(ch_compile(m, &(ch_compile_options){.optimizer = adagrad,
                                             .loss = ch_loss_binary,
                                             /* logits: above 0 is yes */
                                             .metrics = {ch_metric_binary_accuracy(0)}}));
    must(ch_fit(m, (ch_data){.dataset = d},
                &(ch_fit_options){.epochs = is_short(argc, argv) ? 3 : 10,
                                  .progress = CH_PROGRESS_AUTO,
                                  .catch_interrupt = true},
                &h));
    right = ch_history_last(h, "binary_accuracy");
    printf("%.1f %% of the lines are classified correctly\n", 100 * right);
    ch_history_unref(h);
    ch_optimizer_unref(adagrad);
    ch_model_unref(m);
    ch_dataset_unref(d);
    ch_strategy_unref(st);
    drop_folder(folder);
    return right > 0.9 ? 0 : 1;
}

/* examples/reviews.c -- texts without padding: ragged batches of word ids, an embedding bag.
 *
 *     ./reviews [short] [mirrored | servers]
 *
 * Classifies reviews as kind or unkind. A vocabulary maps words to ids. A batch holds the ids
 * of all its reviews and the end of each review, without padding. The model is the mean of the
 * words' rows in a table, and a dense layer. With parameter servers the table is on the
 * servers, and workers read and update the rows of the words in their batch.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "example.h"

enum { REVIEWS = 4000, MOST_WORDS = 40, WORDS = 12, WIDTH = 8 };

/* Unkind, kind and neutral words. */
static const char *const said[3][4] = {{"dull", "slow", "loud", "empty"},
                                       {"warm", "clever", "fine", "lovely"},
                                       {"the", "film", "was", "and"}};

/* Makes review i: words (mostly kind if i is odd, mostly unkind otherwise) and the label. */
static ch_status write_review(void *arg, ch_tuple *in, ch_tuple **out)
{
    unsigned i = (unsigned)*(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(in, 0), 0));
    unsigned seed = i * 2654435761u + 1, kind = i % 2, n = 3 + (seed >> 20) % (MOST_WORDS - 3);
    ch_str   word[MOST_WORDS];
    ch_tensor *t[2] = {NULL};

    (void)arg;
    for (unsigned k = 0; k < n; k++) {
        const char *w;

        seed = seed * 1664525u + 1013904223u;
        w = said[k % 2 == 0 ? kind : (seed >> 16) % 3][(seed >> 24) % 4];
        word[k] = (ch_str){w, strlen(w)};
    }
    must(ch_tensor_copy_of(CH_STR, ch_shape_of(n), word, &t[0]));
    must(ch_tensor_copy_of(CH_F32, ch_shape_of(1), (float[]){(float)kind}, &t[1]));
    *out = batch_of(2, t);
    return CH_OK;
}

static void number_words(ch_step *s, void *vocabulary)
{
    ch_step_out(s, "words", ch_table_lookup(vocabulary, ch_step_in(s, 0)));
    ch_step_out(s, "kind", ch_step_in(s, 1));
}

/* Batches of "words/values" (ids), "words/row_splits" (ends of reviews), "kind". */
static ch_dataset *reviews(int64_t from, int64_t to)
{
    const ch_tensor_spec spec[] = {{"words", CH_STR, ch_shape_of(-1)},
                                   {"kind", CH_F32, ch_shape_of(1)}};
    ch_str               word[WORDS];
    ch_tensor           *words = NULL;
    ch_table            *vocabulary = NULL;
    ch_dataset          *d = ch_dataset_range(from, to, 1);

    for (int i = 0; i < WORDS; i++)
        word[i] = (ch_str){said[i / 4][i % 4], strlen(said[i / 4][i % 4])};
    must(ch_tensor_copy_of(CH_STR, ch_shape_of(WORDS), word, &words));
    must(ch_table_new(words, NULL, WORDS, &vocabulary)); /* unknown words: the last row */
    d = ch_dataset_map_call(d, write_review, NULL, 2, spec, NULL);
    d = ch_dataset_shuffle(ch_dataset_map(d, number_words, vocabulary, NULL), REVIEWS, NULL);
    ch_table_unref(vocabulary);
    ch_tensor_unref(words);
    return ch_dataset_batch(d, 64, &(ch_batch_options){.ragged = true});
}

/* Returns the strategy. The rest of the program is the same for both. */
static ch_strategy *strategy_of(const char *name)
{
    ch_strategy      *st = NULL;
    ch_local_cluster *cluster = NULL;

    if (strcmp(name, "servers") != 0) {
        must(ch_strategy_mirrored(NULL, &st));
        return st;
    }
    must(ch_cluster_local(&(ch_local_cluster_options){.ps = 2, .workers = 2}, &cluster));
    must(ch_strategy_parameter_server(ch_local_cluster_resolver(cluster), NULL, &st));
    ch_local_cluster_unref(cluster);
    return st;
}

int main(int argc, char **argv)
{
    ch_strategy  *st = strategy_of(argc > 1 ? argv[argc - 1] : "mirrored");
    ch_layer     *layer[] = {ch_layer_embedding_bag(WORDS + 1, WIDTH, CH_COMBINE_MEAN, NULL),
                             ch_layer_dense(1, NULL)};
    ch_dataset   *train = reviews(0, REVIEWS), *test = reviews(REVIEWS, REVIEWS + 1000);
    ch_model     *m = NULL;
    ch_optimizer *adagrad = NULL;
    ch_history   *h = NULL;
    double        right;

    must(ch_model_new(st, ch_layer_sequential("reviews", 2, layer), NULL, &m));
    must(ch_optimizer_adagrad(0.3, NULL, NULL,
                              &adagrad)); /* updates only the rows of words in the batch */
    must(ch_compile(m, &(ch_compile_options){.optimizer = adagrad,
                                             .loss = ch_loss_binary,
                                             /* logits: above 0 is yes */
                                             .metrics = {ch_metric_binary_accuracy(0)}}));
    must(ch_fit(m, (ch_data){.dataset = train},
                &(ch_fit_options){.epochs = is_short(argc, argv) ? 2 : 10,
                                  .validation = {.dataset = test},
                                  .progress = CH_PROGRESS_AUTO,
                                  .summary = !is_short(argc, argv)},
                &h));
    right = ch_history_last(h, "val_binary_accuracy");
    printf("%.1f %% of the reviews are classified correctly\n", 100 * right);
    ch_history_unref(h);
    ch_optimizer_unref(adagrad);
    ch_model_unref(m);
    ch_dataset_unref(train);
    ch_dataset_unref(test);
    ch_strategy_unref(st);
    return right > 0.9 ? 0 : 1;
}

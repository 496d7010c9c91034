/* examples/logistic.c -- logistic regression on a file in LibSVM format.
 *
 *     ./logistic [short | file]           lines such as    +1 12:0.5 503:1
 *
 * Lines have different numbers of features, so a batch is ragged. The weighted sum over a line
 * is an embedding bag with a table of width 1. FTRL with l1 keeps weights of useless features
 * at 0.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "example.h"

enum { FEATURES = 1 << 20, ROWS = 256, ROOM = 1024 * ROWS };

typedef struct job {
    ch_var       *weight; /* (FEATURES, 1) */
    ch_optimizer *optimizer;
    ch_metric    *area;
} job;

static void train(ch_step *s, void *arg)
{
    job           *j = arg;
    ch_node       *label = ch_step_in(s, 0), *ends = ch_step_in(s, 1), *ids = ch_step_in(s, 2);
    ch_bag_options bag = {.weights = ch_step_in(s, 3), .like = label};
    ch_node       *logit = ch_embedding_bag(ch_var_read(s, j->weight), ids, ends, &bag), *loss;

    logit = ch_squeeze(logit, 1, (int[]){-1});
    loss = ch_loss_average(ch_loss_binary(logit, label), NULL);
    ch_optimizer_minimize(j->optimizer, s, loss, 1, &j->weight);
    ch_metric_update(j->area, s, label, ch_sigmoid(logit), NULL);
}

/* Writes lines of 1 to 30 features. The features below 100 determine the label. */
static void make_lines(FILE *file)
{
    for (int i = 0; i < 100 * ROWS; i++) {
        int feature[30], n = 1 + rand() % 30, score = 0;

        for (int k = 0; k < n; k++) {
            feature[k] = rand() % (k % 2 == 0 ? 100 : 10000);
            score += feature[k] < 100 ? feature[k] - 50 : 0;
        }
        fprintf(file, score > 0 ? "+1" : "-1");
        for (int k = 0; k < n; k++)
            fprintf(file, " %d:1", feature[k]);
        fprintf(file, "\n");
    }
    rewind(file);
}

/* Returns the next ROWS lines; continues at the beginning after the last line. All batches have
 * the same size: elements after end[ROWS] are ignored. */
static ch_tuple *next_batch(FILE *file)
{
    static float   label[ROWS], value[ROOM];
    static int64_t end[ROWS + 1], id[ROOM];
    static char   *line; /* the buffer of getline */
    static size_t  size;
    ch_tensor     *t[4] = {NULL};
    char          *at, *colon;

    for (int i = 0; i < ROWS; i++) {
        if (getline(&line, &size, file) < 0) {
            rewind(file);
            want(getline(&line, &size, file) >= 0, "a file with lines", "");
        }
        label[i] = strtof(line, &at) > 0;
        want(at != line, "a label", line);
        end[i + 1] = end[i];
        for (; at[strspn(at, " \t\r\n")] != '\0'; end[i + 1]++) {
            long feature = strtol(at, &colon, 10);

            want(*colon == ':' && feature >= 0, "feature:value", at);
            want(end[i + 1] < ROOM, "at most ROOM features in a batch", line);
            id[end[i + 1]] = feature % FEATURES;
            value[end[i + 1]] = strtof(colon + 1, &at);
        }
    }
    must(ch_tensor_copy_of(CH_F32, ch_shape_of(ROWS), label, &t[0]));
    must(ch_tensor_copy_of(CH_I64, ch_shape_of(ROWS + 1), end, &t[1]));
    must(ch_tensor_copy_of(CH_I64, ch_shape_of(ROOM), id, &t[2]));
    must(ch_tensor_copy_of(CH_F32, ch_shape_of(ROOM), value, &t[3]));
    return batch_of(4, t);
}

int main(int argc, char **argv)
{
    bool         is_made = argc == 1 || is_short(argc, argv);
    FILE        *file = is_made ? tmpfile() : fopen(argv[1], "r");
    ch_var_spec  weight = {.name = "weight", .shape = ch_shape_of(FEATURES, 1)};
    job          j;
    ch_function *step = NULL;
    double       area = 0;

    want(file != NULL, "a file to read", is_made ? "tmpfile" : argv[1]);
    if (is_made)
        make_lines(file);
    must(ch_var_new(NULL, &weight, &j.weight));
    must(ch_optimizer_ftrl(0.5, &(ch_optimizer_ftrl_options){.l1 = 1e-4}, NULL, &j.optimizer));
    must(ch_metric_new(NULL, ch_metric_auc(0), &j.area));
    must(ch_function_new("train", train, &j, &step));
    for (int i = 1; i <= (is_short(argc, argv) ? 200 : 2000); i++) {
        ch_tuple *batch = next_batch(file);

        must(ch_strategy_run(NULL, step, batch, NULL));
        ch_tuple_unref(batch);
        if (i % 50 == 0) {
            must(ch_metric_result(j.area, &area));
            must(ch_metric_reset(j.area));
            printf("step %4d  area under the curve %.4f\n", i, area);
        }
    }
    fclose(file);
    ch_function_unref(step);
    ch_metric_unref(j.area);
    ch_optimizer_unref(j.optimizer);
    ch_var_unref(j.weight);
    return area > 0.9 ? 0 : 1;
}

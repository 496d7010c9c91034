/* examples/logistic.c -- logistic regression on lines as LibSVM has them.
 *
 *     ./logistic [short | file]           of lines such as    +1 12:0.5 503:1
 *
 * A line has as many features as it likes: the batch is ragged, and the sum over a line is an
 * embedding bag with a table of one column. FTRL with l1 leaves weights at 0 that do not help.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cohort/cohort.h"

enum { FEATURES = 1 << 20, ROWS = 256, ROOM = 64 * ROWS, LINE = 4096 };

typedef struct job {
    ch_var       *weight; /* (FEATURES, 1) */
    ch_optimizer *optimizer;
    ch_metric    *area;
} job;

static void must(ch_status rc)
{
    if (rc == CH_OK)
        return;
    fprintf(stderr, "%s: %s\n", ch_status_name(rc), ch_error_message());
    exit(1);
}

static void train(ch_step *s, void *arg)
{
    job           *j = arg;
    ch_node       *label = ch_step_in(s, 0), *ends = ch_step_in(s, 1);
    ch_node       *ids = ch_step_in(s, 2), *values = ch_step_in(s, 3), *logit, *loss;
    ch_bag_options bag = {.weights = values, .like = label};

    logit = ch_embedding_bag(ch_var_read(s, j->weight), ids, ends, &bag);
    logit = ch_squeeze(logit, 1, (int[]){-1});
    loss = ch_loss_average(ch_loss_binary(logit, label), NULL);
    ch_optimizer_minimize(j->optimizer, s, loss, 1, &j->weight);
    ch_metric_update(j->area, s, label, ch_sigmoid(logit), NULL);
}

/* A line of 1 to 30 features, of which those below 100 say what it is. */
static void make_line(char *line)
{
    int used = 2, score = 0;

    for (int i = rand() % 30, id; i >= 0; i--) {
        id = rand() % (i % 2 == 0 ? 100 : 10000);
        score += id < 100 ? id - 50 : 0;
        used += snprintf(line + used, (size_t)(LINE - used), " %d:1", id);
    }
    memcpy(line, score > 0 ? "+1" : "-1", 2);
}

/* The next ROWS lines; behind the last, the first. The ids' tensor has room to spare: what is
 * behind the last end is not looked at, and every batch has one size. */
static ch_tuple *next_batch(FILE *file)
{
    char       line[LINE] = "", *at, *end;
    ch_tensor *t[4] = {NULL};
    ch_tuple  *batch = NULL;
    int64_t    n = 0;

    must(ch_tensor_new(CH_F32, ch_shape_of(ROWS), &t[0]));
    must(ch_tensor_new(CH_I64, ch_shape_of(ROWS + 1), &t[1]));
    must(ch_tensor_new(CH_I64, ch_shape_of(ROOM), &t[2]));
    must(ch_tensor_new(CH_F32, ch_shape_of(ROOM), &t[3]));
    for (int i = 0; i < ROWS; i++) {
        if (file == NULL)
            make_line(line);
        else if (fgets(line, LINE, file) == NULL)
            rewind(file), (void)!fgets(line, LINE, file);
        ((float *)ch_tensor_data_mut(t[0]))[i] = strtol(line, &at, 10) > 0;
        for (long id; n < ROOM && (id = strtol(at, &end, 10), *end == ':'); n++) {
            ((int64_t *)ch_tensor_data_mut(t[2]))[n] = id % FEATURES;
            ((float *)ch_tensor_data_mut(t[3]))[n] = strtof(end + 1, &at);
        }
        ((int64_t *)ch_tensor_data_mut(t[1]))[i + 1] = n;
    }
    must(ch_tuple_of(4, t, &batch));
    ch_tensor_unref(t[0]), ch_tensor_unref(t[1]), ch_tensor_unref(t[2]), ch_tensor_unref(t[3]);
    return batch;
}

int main(int argc, char **argv)
{
    bool         is_short = argc > 1 && strcmp(argv[1], "short") == 0;
    FILE        *file = argc > 1 && !is_short ? fopen(argv[1], "r") : NULL;
    ch_var_spec  weight = {.name = "weight", .shape = ch_shape_of(FEATURES, 1)};
    job          j = {0};
    ch_function *step = NULL;
    double       area = 0;

    if (argc > 1 && !is_short && file == NULL)
        return perror(argv[1]), 1;
    must(ch_var_new(NULL, &weight, &j.weight));
    must(ch_ftrl(0.5, &(ch_ftrl_options){.l1 = 1e-4}, NULL, &j.optimizer));
    must(ch_metric_auc(NULL, NULL, 0, &j.area));
    must(ch_function_new("train", train, &j, &step));
    for (int i = 1; i <= (is_short ? 200 : 2000); i++) {
        ch_tuple *batch = next_batch(file);

        must(ch_strategy_run(NULL, step, batch, NULL));
        ch_tuple_unref(batch);
        if (i % 50 == 0) {
            must(ch_metric_result(j.area, &area)), must(ch_metric_reset(j.area));
            printf("step %4d  area under the curve %.4f\n", i, area);
        }
    }
    (void)(file != NULL && fclose(file));
    ch_function_unref(step);
    ch_metric_unref(j.area);
    ch_optimizer_unref(j.optimizer);
    ch_var_unref(j.weight);
    return area > 0.9 ? 0 : 1;
}

/* examples/custom_loop.c -- a custom loop over a distributed dataset with a short last batch.
 *
 *     ./custom_loop [short]
 *
 * Each element of the iterator has the rows of every replica. 1000 rows in batches of 64 leave
 * 40 rows for the last batch. If these do not divide evenly, the first replicas get more rows.
 * ch_loss_average divides by the rows of all replicas, so the division does not change the
 * result.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "points.h"

enum { POINTS = 1000, BATCH = 64 };

typedef struct job {
    ch_strategy  *strategy;
    ch_model     *model;
    ch_optimizer *optimizer;
} job;

static void train(ch_step *s, void *arg)
{
    job           *j = arg;
    ch_node       *logits = ch_model_call(j->model, s, ch_step_in(s, 0), true);
    ch_node       *each = ch_loss_sparse_categorical(logits, ch_step_in(s, 1));
    ch_var *const *var;
    int            n = ch_model_trainable(j->model, &var);

    ch_optimizer_minimize(j->optimizer, s, ch_loss_average(each, NULL), n, var);
    ch_step_out(s, "loss", each); /* a loss for each row of this replica */
}

static void test(ch_step *s, void *arg)
{
    job     *j = arg;
    ch_node *logits = ch_model_call(j->model, s, ch_step_in(s, 0), false);
    ch_node *right = ch_equal(ch_argmax(logits, -1), ch_cast(ch_step_in(s, 1), CH_I64));

    ch_step_out(s, "right", ch_cast(right, CH_F32));
}

/* Prints the number of rows that each replica has in a batch. */
static void print_rows(const job *j, ch_tuple *batch)
{
    for (int r = 0; r < ch_strategy_replicas(j->strategy); r++)
        printf(" %d", (int)ch_tensor_count(ch_value_at(ch_tuple_at(batch, 1), r)));
}

/* Runs a step on every batch. Returns the mean of its output over all rows. */
static double run_epoch(const job *j, ch_function *step, ch_iterator *it)
{
    int        n = POINTS / BATCH; /* full batches that remain */
    ch_tuple  *batch = NULL, *out = NULL;
    ch_tensor *sum = NULL;
    double     x = 0, total = 0;

    for (;; n--, ch_tuple_unref(batch)) {
        must(ch_iterator_next(it, &batch));
        if (batch == NULL)
            break;
        must(ch_strategy_run(j->strategy, step, batch, &out));
        /* Along axis 0: sums the rows of all replicas. A replica may have no rows. */
        must(ch_strategy_reduce(j->strategy, CH_SUM, ch_tuple_at(out, 0), 0, &sum));
        must(ch_tensor_item(sum, &x));
        total += x;
        if (n == 0)
            print_rows(j, batch);
        ch_tensor_unref(sum);
        ch_tuple_unref(out);
    }
    must(ch_iterator_restart(it)); /* the next pass shuffles in another order */
    return total / POINTS;
}

int main(int argc, char **argv)
{
    int          epochs = is_short(argc, argv) ? 20 : 60;
    ch_dataset  *d[2];
    ch_iterator *it[2] = {NULL};
    ch_function *step[2] = {NULL};
    job          j = {NULL};
    double       right = 0;

    must(ch_strategy_mirrored(NULL, &j.strategy));
    j.model = new_network(j.strategy, 32, NULL);
    must(ch_optimizer_adam(0.01, NULL, NULL, &j.optimizer));
    must(ch_function_new("train", train, &j, &step[0]));
    must(ch_function_new("test", test, &j, &step[1]));
    for (int i = 0; i < 2; i++) { /* training data, test data */
        ch_tensor *points[2];

        make_points(POINTS, 0, points);
        d[i] = ch_dataset_shuffle(ch_dataset_slices(2, points, NULL), POINTS, NULL);
        d[i] = ch_dataset_batch(d[i], BATCH, NULL);
        must(ch_strategy_distribute_dataset(j.strategy, d[i], NULL, &it[i]));
        drop_points(points);
    }
    for (int i = 1; i <= epochs; i++) {
        printf("epoch %2d, rows of the last batch:", i);
        printf(", loss %.4f\n", run_epoch(&j, step[0], it[0]));
    }
    printf("test points, rows of the last batch:");
    right = run_epoch(&j, step[1], it[1]);
    printf(", accuracy %.1f %%\n", 100 * right);
    for (int i = 0; i < 2; i++) {
        ch_iterator_unref(it[i]);
        ch_dataset_unref(d[i]);
        ch_function_unref(step[i]);
    }
    ch_optimizer_unref(j.optimizer);
    ch_model_unref(j.model);
    ch_strategy_unref(j.strategy);
    return right > 0.9 ? 0 : 1;
}

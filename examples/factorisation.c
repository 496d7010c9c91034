/* examples/factorisation.c -- matrix factorisation: predicts ratings of items by users.
 *
 *     ./factorisation [short]
 *
 * A rating is the dot product of a row of the user table and a row of the item table. A step
 * reads and updates 512 rows of each table. The example trains in this process, and then with
 * three asynchronous workers and the tables in shards on two parameter servers.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "example.h"

enum { USERS = 20000, ITEMS = 10000, TASTES = 3, WIDTH = 8, ROWS = 512 };

typedef struct job {
    ch_var       *table[2]; /* users, items */
    ch_optimizer *optimizer;
    ch_metric    *error;
} job;

static void train(ch_step *s, void *arg)
{
    job     *j = arg;
    ch_node *rating = ch_step_in(s, 2), *row[2], *guess;

    for (int i = 0; i < 2; i++) /* the gradient of a gather is sparse */
        row[i] = ch_gather(ch_var_read(s, j->table[i]), ch_step_in(s, i), 0);
    guess = ch_sum(ch_mul(row[0], row[1]), 1, (int[]){-1}, false);
    ch_optimizer_minimize(j->optimizer, s, ch_sum_all(ch_loss_mse(guess, rating)), 2, j->table);
    ch_metric_update(j->error, s, rating, guess, NULL);
}

/* Hidden features of users and items, from which the ratings are made. */
static float taste[2][USERS][TASTES];

static ch_tuple *next_batch(void) /* users, items and ratings */
{
    ch_tensor *t[3] = {NULL};

    must(ch_tensor_new(CH_I32, ch_shape_of(ROWS), &t[0]));
    must(ch_tensor_new(CH_I32, ch_shape_of(ROWS), &t[1]));
    must(ch_tensor_new(CH_F32, ch_shape_of(ROWS), &t[2]));
    for (int i = 0; i < ROWS; i++) {
        int    user = rand() % USERS, item = rand() % ITEMS;
        float *rating = (float *)ch_tensor_data_mut(t[2]) + i;

        ((int32_t *)ch_tensor_data_mut(t[0]))[i] = user;
        ((int32_t *)ch_tensor_data_mut(t[1]))[i] = item;
        for (int k = 0; k < TASTES; k++)
            *rating += taste[0][user][k] * taste[1][item][k];
    }
    return batch_of(3, t);
}

static job new_job(ch_strategy *st)
{
    ch_var_spec spec = {.init = ch_init_uniform(-0.3, 0.3)};
    job         j = {0};

    for (int i = 0; i < 2; i++) {
        spec.name = i == 0 ? "users" : "items";
        spec.shape = ch_shape_of(i == 0 ? USERS : ITEMS, WIDTH);
        must(ch_var_new(st, &spec, &j.table[i]));
    }
    must(ch_optimizer_adagrad(0.5, NULL, NULL, &j.optimizer));
    must(ch_metric_new(st, ch_metric_named(ch_metric_rmse(), "error"), &j.error));
    return j;
}

/* Trains on the workers of c; NULL: in this process. Returns the error of the last steps. */
static double learn(ch_strategy *st, ch_coordinator *c, int steps)
{
    job          j = new_job(st);
    ch_function *step = NULL;
    double       error = 0;

    must(ch_function_new("train", train, &j, &step));
    srand(2);
    for (int i = 1; i <= steps; i++) {
        ch_tuple *batch = next_batch();

        must(c == NULL ? ch_strategy_run(st, step, batch, NULL)
                       : ch_coordinator_schedule(c, step, &(ch_arguments){.in = batch}, NULL));
        ch_tuple_unref(batch);
        if (i % 500 != 0)
            continue;
        must(c != NULL ? ch_coordinator_join(c) : CH_OK);
        must(ch_metric_result(j.error, &error));
        must(ch_metric_reset(j.error));
        printf("step %5d  root mean square error %.4f\n", i, error);
    }
    ch_function_unref(step);
    ch_metric_unref(j.error);
    ch_optimizer_unref(j.optimizer);
    for (int i = 0; i < 2; i++)
        ch_var_unref(j.table[i]);
    return error;
}

int main(int argc, char **argv)
{
    int                               steps = is_short(argc, argv) ? 4000 : 10000;
    ch_local_cluster                 *cluster = NULL;
    ch_strategy                      *st = NULL;
    ch_coordinator                   *c = NULL;
    double                            here, there;
    const ch_parameter_server_options halves = {.partitioner = ch_partitioner_fixed(2)};
    for (int i = 0; i < USERS * TASTES; i++)
        for (int k = 0; k < 2; k++)
            taste[k][i / TASTES][i % TASTES] = 2 * (float)rand() / (float)RAND_MAX - 1;
    here = learn(NULL, NULL, steps);
    must(ch_cluster_local(&(ch_local_cluster_options){.ps = 2, .workers = 3}, &cluster));
    must(ch_strategy_parameter_server(ch_local_cluster_resolver(cluster), &halves, &st));
    must(ch_coordinator_new(st, NULL, &c));
    puts("three workers, with half of each table on each of two parameter servers");
    there = learn(st, c, steps);
    ch_coordinator_unref(c);
    ch_strategy_unref(st);
    ch_local_cluster_unref(cluster);
    return here < 0.3 && there < here + 0.01 ? 0 : 1;
}

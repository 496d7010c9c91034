/* examples/one_device.c -- a search for a learning rate: a model on each core at the same time.
 *
 *     ./one_device [short]
 *
 * OneDevice places all variables and steps on the named device. The example starts a thread for
 * each core, which trains models on that core. The threads share only the data and the list of
 * trials.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdatomic.h>

#include "points.h"

enum { TRIALS = 8 };

typedef struct trial {
    double      rate, accuracy;
    const char *device;
} trial;

static trial trials[TRIALS] = {{.rate = 1},    {.rate = 0.3},   {.rate = 0.1},  {.rate = 0.03},
                               {.rate = 0.01}, {.rate = 0.003}, {.rate = 1e-3}, {.rate = 3e-4}};
static atomic_int next;
static ch_tensor *train[2], *test[2];
static int        epochs;

static void attempt(trial *t)
{
    ch_strategy  *st = NULL;
    ch_model     *m;
    ch_optimizer *adam = NULL;
    ch_history   *h = NULL;

    must(ch_strategy_one_device(t->device, &st));
    m = new_network(st, 32, NULL);
    must(ch_optimizer_adam(t->rate, NULL, NULL, &adam));
    compile_network(m, adam);
    must(ch_fit(m, (ch_data){.n = 2, .array = train},
                &(ch_fit_options){.epochs = epochs, .batch = 64, .catch_interrupt = true},
                NULL));
    must(ch_evaluate(m, (ch_data){.n = 2, .array = test}, NULL, &h));
    t->accuracy = ch_history_last(h, "sparse_accuracy");
    ch_history_unref(h);
    ch_optimizer_unref(adam);
    ch_model_unref(m);
    ch_strategy_unref(st);
}

/* Runs on a thread for each core: executes trials until none is left. */
static void *work(void *core)
{
    for (int i; (i = atomic_fetch_add(&next, 1)) < TRIALS;) {
        trials[i].device = *(const char **)core;
        attempt(&trials[i]);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    const char *core[MOST_CORES];
    int         n = name_cores(core);
    pthread_t   thread[MOST_CORES];
    trial      *best = trials;

    epochs = is_short(argc, argv) ? 3 : 30;
    make_points(4000, 0, train);
    make_points(1000, 0, test);
    for (int i = 0; i < n; i++)
        want(pthread_create(&thread[i], NULL, work, &core[i]) == 0, "a thread", core[i]);
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < TRIALS; i++) {
        printf("rate %-7g accuracy %5.1f %%, on %s\n", trials[i].rate, 100 * trials[i].accuracy,
               strstr(trials[i].device, "CPU:"));
        best = trials[i].accuracy > best->accuracy ? &trials[i] : best;
    }
    printf("the best rate is %g\n", best->rate);
    drop_points(train);
    drop_points(test);
    return best->accuracy > 0.9 ? 0 : 1;
}

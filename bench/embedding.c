/* bench/embedding.c -- a whole step with a table of 4 million rows of 64: 2048 sums of 26 rows, their gradient, and the
 * update of those rows alone.
 *
 * The limit is what the step must move: each row read once for the sum, and read and written once for the update (with
 * Adagrad its slot too), as fast as this machine reads rows at random.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* madvise */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "training.h"

enum { IDS = 4 << 20, WIDTH = 64, ROWS = 2048, EACH = 26, TURNS = 16 };

typedef struct lookups {
    training  t;
    ch_layer *table;
    ch_tuple *turn[TURNS]; /* other ids in every step */
    int       next;
} lookups;

static void look_up(ch_step *s, void *arg)
{
    lookups       *l = arg;
    ch_node       *sum = ch_layer_call_n(l->table, s, 2,
                                         (ch_node *[]){ch_step_in(s, 0), ch_step_in(s, 1)}, true);
    ch_node       *loss = ch_sum_all(sum);
    ch_var *const *var;
    int            n = ch_layer_trainable(l->table, &var);

    ch_optimizer_minimize(l->t.opt, s, loss, n, var);
    ch_step_out(s, "loss", loss);
}

static void run_lookups(void *arg, int64_t n)
{
    lookups *l = arg;

    while (n-- > 0) {
        must(ch_strategy_run(NULL, l->t.step, l->turn[l->next], NULL));
        l->next = (l->next + 1) % TURNS;
    }
}

/* The sum goes down when it is minimised. */
static bool goes_down(void *arg, char *why, size_t size)
{
    lookups *l = arg;
    double   first, last;

    l->t.batch = l->turn[0];
    first = one_loss(&l->t);
    last = one_loss(&l->t);
    l->t.batch = NULL;
    if (last < first)
        return true;
    snprintf(why, size, "the sum went from %g to %g", first, last);
    return false;
}

/* What a core does of the limit's step: rows of its half of the ids. */
typedef struct rows {
    float   *table;
    int64_t *id; /* in two halves, for two cores */
} rows;

enum { AHEAD = 16 };

static void *touch_half(void *arg)
{
    const rows    *r = arg;
    float          sum[WIDTH] = {0};
    volatile float keep;

    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < ROWS * EACH / 2; i++) {
            float *row = r->table + r->id[i] * WIDTH;

            for (int k = 0; k < WIDTH; k += 16)
                __builtin_prefetch(r->table + r->id[i + AHEAD] * WIDTH + k);
            for (int k = 0; k < WIDTH; k++)
                sum[k] += row[k];
            for (int k = 0; k < WIDTH && pass == 1; k++)
                row[k] = row[k] * 0.5f;
        }
    keep = sum[0];
    (void)keep;
    return NULL;
}

/* As many rows as a step has, read for a sum, then read and written, at random, on both cores. */
static void touch(void *arg, int64_t n)
{
    rows *r = arg;

    for (; n > 0; n--) {
        rows      other = {r->table, r->id + ROWS * EACH / 2};
        pthread_t helper;

        if (pthread_create(&helper, NULL, touch_half, &other) != 0)
            exit(1);
        touch_half(r);
        (void)pthread_join(helper, NULL);
    }
}

/* On large pages, as the library's own memory is: else it would be the limit of page tables. */
static float *new_table(void)
{
    size_t bytes = (size_t)IDS * WIDTH * sizeof(float);
    float *table = aligned_alloc(2 << 20, bytes);

    if (table == NULL)
        exit(1);
    (void)madvise(table, bytes, MADV_HUGEPAGE);
    memset(table, 1, bytes);
    return table;
}

static int64_t *new_ids(void)
{
    int64_t *id = calloc(ROWS * EACH + AHEAD, sizeof(*id));

    if (id == NULL)
        exit(1);
    for (int i = 0; i < ROWS * EACH; i++)
        id[i] = (int64_t)next_random() % IDS;
    return id;
}

static ch_tensor *splits(void)
{
    ch_tensor *t = NULL;

    must(ch_tensor_new(CH_I32, ch_shape_of(ROWS + 1), &t));
    for (int i = 0; i <= ROWS; i++)
        ((int32_t *)ch_tensor_data_mut(t))[i] = i * EACH;
    return t;
}

static void measure(bench *b, const char *name, ch_optimizer *opt, const char *torch)
{
    lookups    l = {.t = {.opt = opt}};
    rows       r = {.table = new_table(), .id = new_ids()};
    bench_case c = {.name = name,
                    .unit = "M rows/s",
                    .better = BENCH_HIGHER,
                    .scale = 1e-6 * ROWS * EACH,
                    .ours = {.run = run_lookups, .arg = &l},
                    .limit = {.run = touch, .arg = &r},
                    .rest = true,
                    .check = goes_down};

    if (torch != NULL)
        c.peer[0] = (bench_side){.name = "PyTorch, 2 threads", .command = torch};
    l.table = ch_embedding_bag_layer(IDS, WIDTH, CH_COMBINE_SUM, NULL);
    for (int i = 0; i < TURNS; i++) {
        ch_tensor *part[2] = {random_ids(ch_shape_of(ROWS * EACH), IDS), splits()};

        must(ch_tuple_of(2, part, &l.turn[i]));
        ch_tensor_unref(part[0]);
        ch_tensor_unref(part[1]);
    }
    must(ch_function_new("lookups", look_up, &l, &l.t.step));
    bench_run(b, &c);
    drop_training(&l.t);
    for (int i = 0; i < TURNS; i++)
        ch_tuple_unref(l.turn[i]);
    ch_layer_unref(l.table);
    free(r.table);
    free(r.id);
}

int main(int argc, char **argv)
{
    bench        *b = bench_open("embedding", argc, argv);
    ch_optimizer *opt = NULL;

    must(ch_devices_configure(&(ch_devices_options){.spec = "CPU=1", .threads = CORES}));
    must(ch_sgd(0.01, NULL, NULL, &opt));
    measure(b, "4M x 64, 2048 x 26 ids, SGD", opt, "exec $PYTHON $PEERS/torch_train.py sgd 2");
    must(ch_adagrad(0.01, NULL, NULL, &opt));
    measure(b, "4M x 64, 2048 x 26 ids, Adagrad", opt,
            "exec $PYTHON $PEERS/torch_train.py adagrad 2");
    must(ch_adagrad(0.01, &(ch_adagrad_options){.row_wise = true}, NULL, &opt));
    measure(b, "4M x 64, 2048 x 26 ids, row-wise Adagrad", opt, NULL);
    return bench_close(b);
}

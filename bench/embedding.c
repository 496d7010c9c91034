/* bench/embedding.c -- a training step with an embedding table of 4 million rows of 64 numbers.
 *
 * The step computes 2048 sums of 26 rows, their gradient, and a sparse update of these rows.
 *
 * The limit is the necessary memory traffic, at the speed of random access on this machine:
 * each row is read once for the sum, and read and written once for the update. Adagrad also
 * reads and writes the slot.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* madvise */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "training.h"

static int64_t n_ids = 4 << 20; /* rows of the table */

enum { WIDTH = 64, ROWS = 2048, EACH = 26, TURNS = 16 };

#define RATE 0.01

typedef struct lookups {
    training  t;
    ch_layer *table;
    ch_tuple *turn[TURNS]; /* ids of successive steps */
    int       next;
    bool      is_adagrad;
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

static int compare_ids(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

    return (x > y) - (x < y);
}

/* Returns the decrease of the sum in the first step. If an id occurs c times, every element of
 * its row has the gradient c. SGD subtracts RATE * c; Adagrad subtracts RATE * c / sqrt(0.1 + c
 * * c). */
static double first_drop(const ch_tuple *turn, bool adagrad)
{
    static int32_t id[ROWS * EACH];
    double         drop = 0;

    memcpy(id, ch_tensor_data(ch_value_at(ch_tuple_at(turn, 0), 0)), sizeof(id));
    qsort(id, ROWS * EACH, sizeof(id[0]), compare_ids);
    for (int i = 0, c; i < ROWS * EACH; i += c) {
        for (c = 1; i + c < ROWS * EACH && id[i + c] == id[i]; c++)
            ;
        drop += RATE * WIDTH * c * c / (adagrad ? sqrt(0.1 + c * c) : 1);
    }
    return drop;
}

static bool goes_down(void *arg, char *why, size_t size)
{
    lookups *l = arg;
    double   first, last, want = first_drop(l->turn[0], l->is_adagrad);

    l->t.batch = l->turn[0];
    first = one_loss(&l->t);
    last = one_loss(&l->t);
    l->t.batch = NULL;
    if (fabs(first - last - want) < 1e-3 * want)
        return true;
    snprintf(why, size, "the sum went down by %g in the first step, want %g", first - last,
             want);
    return false;
}

/* Data of the limit. Successive runs use different ids, as the step does, because otherwise the
 * rows would stay in the cache. */
typedef struct rows {
    float   *table;
    int64_t *id; /* ids of all steps, one after the other */
    int      next;
} rows;

/* Work of a core: half of the ids of a step. */
typedef struct half {
    float         *table;
    const int64_t *id;
} half;

enum { AHEAD = 16 };

static void *touch_half(void *arg)
{
    const half    *r = arg;
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
                row[k] += 0.5f;
        }
    keep = sum[0];
    (void)keep;
    return NULL;
}

/* The limit: reads the rows of a step, then reads and writes them, on two cores. */
static void touch(void *arg, int64_t n)
{
    rows *r = arg;

    for (; n > 0; n--) {
        const int64_t *id = r->id + (ptrdiff_t)r->next * ROWS * EACH;
        half           one = {r->table, id}, other = {r->table, id + ROWS * EACH / 2};
        pthread_t      helper;

        if (pthread_create(&helper, NULL, touch_half, &other) != 0)
            exit(1);
        touch_half(&one);
        (void)pthread_join(helper, NULL);
        r->next = (r->next + 1) % TURNS;
    }
}

/* Allocates the table on large pages, as the library does, to avoid the cost of page tables. */
static float *new_table(void)
{
    size_t bytes = (size_t)n_ids * WIDTH * sizeof(float);
    float *table = aligned_alloc(2 << 20, bytes);

    if (table == NULL)
        exit(1);
    (void)madvise(table, bytes, MADV_HUGEPAGE);
    memset(table, 1, bytes);
    return table;
}

static int64_t *new_ids(void)
{
    int64_t *id = calloc(TURNS * ROWS * EACH + AHEAD, sizeof(*id));

    if (id == NULL)
        exit(1);
    for (int i = 0; i < TURNS * ROWS * EACH; i++)
        id[i] = (int64_t)((uint64_t)next_random() * (uint64_t)n_ids >> 24);
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

static void measure(bench *b, const char *name, ch_optimizer *opt, bool is_adagrad,
                    const char *torch)
{
    lookups    l = {.t = {.opt = opt}, .is_adagrad = is_adagrad};
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
    l.table = ch_layer_embedding_bag(n_ids, WIDTH, CH_COMBINE_SUM, NULL);
    for (int i = 0; i < TURNS; i++) {
        ch_tensor *part[2] = {random_ids(ch_shape_of(ROWS * EACH), n_ids), splits()};

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

    if (bench_is_small(b))
        n_ids = 1 << 16;
    must(ch_devices_configure(&(ch_devices_options){.spec = "CPU=1", .threads = CORES}));
    must(ch_optimizer_sgd(RATE, NULL, NULL, &opt));
    measure(b, "4M x 64, 2048 x 26 ids, SGD", opt, false,
            "exec $PYTHON $PEERS/torch_train.py sgd 2");
    must(ch_optimizer_adagrad(RATE, NULL, NULL, &opt));
    measure(b, "4M x 64, 2048 x 26 ids, Adagrad", opt, true,
            "exec $PYTHON $PEERS/torch_train.py adagrad 2");
    must(ch_optimizer_adagrad(RATE, &(ch_optimizer_adagrad_options){.row_wise = true}, NULL,
                              &opt));
    measure(b, "4M x 64, 2048 x 26 ids, row-wise Adagrad", opt, true, NULL);
    return bench_close(b);
}

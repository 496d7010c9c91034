/* bench/ps_embed.c -- an embedding table on two parameter servers, used by two workers.
 *
 * The table has 4 million rows of 64 numbers in two shards. A step reads and updates the rows
 * of 2048 x 26 ids. It is recorded and divided into local and remote parts (job/step_plan.h).
 * The worker sends ids to the servers, receives rows, and sends the gradient of the rows. The
 * servers subtract it, times a rate, from their rows. All tasks are in this process; two
 * servers and two workers have a thread each. The loss is half the sum of squares, so the
 * gradient of a row is the row itself; the loss is not computed. A step takes the same time
 * with a table of twice the size.
 *
 * The limit is the necessary memory traffic at random rows, on two cores: rows of the table are
 * copied to a worker, and rows are subtracted from rows of the table.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <pthread.h>

#include "base/mem.h"
#include "bench.h"
#include "graph/function.h"
#include "job/worker.h"
#include "ops/lookup.h"
#include "servers.h"

enum { WIDTH = 64, IDS = 2048 * 26, TURNS = 16, WORKERS = 2, AHEAD = 16, WINDOW = 2, VARS = 3 };

#define RATE     0.01
#define EXPONENT 1.05

typedef struct table {
    client               c;
    int64_t              rows;
    ch_var              *var;
    ch_optimizer        *opt;
    ch_function         *step;
    ch_placed_plan       sent;
    ch_plan_variable     variable[VARS];
    struct ch_plan_shard shard[VARS][SERVERS];
    uint64_t             function[16];
    ch_tensor           *ids[WORKERS][TURNS];
    int                  next[WORKERS];
    uint64_t             n_steps, open[WORKERS][WINDOW];
    int                  n_open[WORKERS];
    ch_tensor           *copy; /* rows of the worker, for the limit */
    float               *out[WORKERS];
} table;

static ch_worker_options worker_options[WORKERS];

/* ---- the step ---- */

/* Records the step. The gradient of half the sum of squares is the rows, so nothing is computed
 * between pull and push. */
static void look_up(ch_step *s, void *arg)
{
    table   *t = arg;
    ch_node *ids = ch_step_in(s, 0), *rows = ch_gather(ch_var_read(s, t->var), ids, 0);
    ch_node *gradient = ch__sparse_rows(ids, rows, ch__dim(ch_var_shape(t->var).dim[0]));

    ch_optimizer_apply(t->opt, s, 1, &t->var, &gradient);
}

static void place_variables(table *t, const ch_graph *g)
{
    uint64_t number = 0;

    for (int i = 0; i < g->n_resources; i++) {
        ch_plan_variable *v = &t->variable[i];

        *v = (ch_plan_variable){.name = g->resource[i].name,
                                .dtype = g->resource[i].dtype,
                                .shape = g->resource[i].shape,
                                .n_shards = g->resource[i].shape.rank == 2 ? SERVERS : 1,
                                .shard = t->shard[i]};
        for (int k = 0; k < v->n_shards; k++)
            t->shard[i][k] = (struct ch_plan_shard){k, ++number};
    }
}

static void create_variables(table *t, const ch_graph *g)
{
    for (int i = 0; i < g->n_resources; i++) {
        const ch_plan_variable *v = &t->variable[i];
        ch_tensor              *whole = NULL;

        must(ch_var_get(g->resource[i].key, &whole));
        for (int k = 0; k < v->n_shards; k++) {
            ch_tensor *part = NULL;

            must(ch__layout_cut(ch__layout_along(0, v->n_shards), v->shape, whole, k, &part));
            create(&t->c, v->shard[k].server, v->shard[k].variable, v->name, part);
        }
        ch_tensor_unref(whole);
    }
}

static void send_step(table *t)
{
    Cohort__WorkerFunction m;
    uint64_t               incarnation[SERVERS];
    void                  *data = NULL;
    size_t                 n = 0;

    cohort__worker_function__init(&m);
    m.function = 1;
    m.n_servers = SERVERS;
    m.servers = incarnation;
    for (int i = 0; i < SERVERS; i++)
        incarnation[i] = ch__task_incarnation(t->c.server[i]);
    must(ch__step_plan_encode(&t->sent, &data, &n));
    for (int i = 0; i < WORKERS; i++) {
        ch_message *p = NULL;
        ch_tensor  *bytes = NULL;
        char        name[16];

        must(ch_tensor_copy_of(CH_U8, ch_shape_of((int64_t)n), data, &bytes));
        must(ch__message_pack(CH_WORKER_FUNCTION, &m.base, 1, &bytes, &p));
        snprintf(name, sizeof(name), "worker/%d", i);
        ask_task(&t->c, name, p);
    }
    ch__free(data);
}

/* Records the step without running it. */
static void record(table *t)
{
    static const int place[VARS] = {0, 1, 2};
    int              axis[VARS];
    ch_step_plan    *plan = NULL;
    const ch_graph  *g;

    must(ch_function_new("look_up", look_up, t, &t->step));
    must(ch_function_declare(t->step, NULL, 1,
                             &(ch_tensor_spec){.dtype = CH_I64, .shape = ch_shape_of(IDS)}));
    g = ch_function_graph(t->step);
    place_variables(t, g);
    create_variables(t, g);
    for (int i = 0; i < VARS; i++)
        axis[i] = t->variable[i].n_shards > 1 ? 0 : -1;
    must(ch__step_plan_new(g, place, axis, &plan));
    for (int i = 0; i < plan->n_remote_parts; i++)
        t->function[i] = (uint64_t)i * SERVERS + 1;
    t->sent = (ch_placed_plan){plan, g->n_resources, t->variable, t->function};
}

/* ---- runs ---- */

/* Returns the oldest pending step. All steps below it have ended. */
static uint64_t oldest(const table *t)
{
    uint64_t least = t->n_steps;

    for (int w = 0; w < WORKERS; w++)
        for (int i = 0; i < t->n_open[w]; i++)
            least = t->open[w][i] < least ? t->open[w][i] : least;
    return least;
}

static ch_message *next_step(void *arg, int worker)
{
    table            *t = arg;
    Cohort__WorkerRun m;
    ch_message       *p = NULL;
    ch_tensor        *ids = ch_tensor_ref(t->ids[worker][t->next[worker]++ % TURNS]);

    cohort__worker_run__init(&m);
    m.step = t->open[worker][t->n_open[worker]++] = ++t->n_steps;
    m.retired = oldest(t);
    m.function = 1;
    m.registration = 1;
    must(ch__message_pack(CH_WORKER_RUN, &m.base, 1, &ids, &p));
    return p;
}

/* Removes the first pending step of a worker, because a worker runs its steps in order. */
static void step_ended(void *arg, int worker)
{
    table *t = arg;

    t->n_open[worker]--;
    memmove(t->open[worker], t->open[worker] + 1,
            (size_t)t->n_open[worker] * sizeof(t->open[0][0]));
}

static void run_some(table *t, int n_workers, const char *const *worker, int64_t n)
{
    t->c.make = next_step;
    t->c.on_end = step_ended;
    t->c.arg = t;
    ask_many(&t->c, n_workers, worker, n, WINDOW);
}

static void run_steps(void *arg, int64_t n)
{
    static const char *const worker[] = {"worker/0", "worker/1"};

    run_some(arg, WORKERS, worker, n);
}

/* ---- the check of the result ---- */

static bool same_table(table *t, char *why, size_t size)
{
    const ch_plan_variable *v = t->variable;
    ch_tensor              *want = NULL;
    bool                    is_same = true;

    while (v->n_shards == 1)
        v++;
    must(ch_var_get(t->var, &want));
    for (int k = 0; k < SERVERS && is_same; k++) {
        int64_t     from = ch__part_begin(t->rows, SERVERS, k);
        const char *at = ch_tensor_data(want);

        ask(&t->c, k, read_message(v->shard[k].variable));
        is_same = memcmp(at + (size_t)from * WIDTH * sizeof(float),
                         ch_tensor_data(t->c.answer->tensor[0]),
                         ch_tensor_bytes(t->c.answer->tensor[0])) == 0;
        if (!is_same)
            snprintf(why, size, "the rows of shard %d are not those of a run in one place", k);
    }
    ch_tensor_unref(want);
    ch__message_unref(t->c.answer);
    t->c.answer = NULL;
    return is_same;
}

/* Runs steps on the first worker only. The table must be equal, to the bit, to a variable of
 * this process after the same steps. */
static bool is_right(void *arg, char *why, size_t size)
{
    static const char *const worker[] = {"worker/0"};
    table                   *t = arg;

    for (int i = 0; i < 3; i++) {
        ch_tuple *in = NULL;

        must(ch_tuple_of(1, &t->ids[0][t->next[0] % TURNS], &in));
        must(ch_strategy_run(NULL, t->step, in, NULL));
        run_some(t, 1, worker, 1);
        ch_tuple_unref(in);
    }
    return same_table(t, why, size);
}

/* ---- ids ---- */

static uint64_t random_bits(void)
{
    static uint64_t x = 88172645463325252u;

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
}

static double random_unit(void)
{
    return (double)(random_bits() >> 11) * 0x1p-53;
}

/* Returns the partial sums of 1 / k^EXPONENT. */
static double *zipf_sums(int64_t n)
{
    double *sum = malloc((size_t)n * sizeof(*sum)), so_far = 0;

    if (sum == NULL)
        exit(1);
    for (int64_t k = 0; k < n; k++)
        sum[k] = so_far += pow((double)(k + 1), -EXPONENT);
    return sum;
}

static int64_t zipf(const double *sum, int64_t n)
{
    double  x = random_unit() * sum[n - 1];
    int64_t low = 0, high = n - 1;

    while (low < high) {
        int64_t mid = (low + high) / 2;

        if (sum[mid] < x)
            low = mid + 1;
        else
            high = mid;
    }
    return (int64_t)((uint64_t)low * 2654435761u % (uint64_t)n);
}

static void make_ids(table *t, bool is_zipf)
{
    double *sum = is_zipf ? zipf_sums(t->rows) : NULL;

    for (int w = 0; w < WORKERS; w++)
        for (int i = 0; i < TURNS; i++) {
            int64_t *id;

            must(ch_tensor_new(CH_I64, ch_shape_of(IDS), &t->ids[w][i]));
            id = ch_tensor_data_mut(t->ids[w][i]);
            for (int k = 0; k < IDS; k++)
                id[k] =
                    is_zipf ? zipf(sum, t->rows) : (int64_t)(random_bits() % (uint64_t)t->rows);
        }
    free(sum);
}

/* ---- the limit ---- */

typedef struct mover {
    table *t;
    int    worker;
    int    turn;
} mover;

static const float *row_at(const float *data, const int64_t *id, int i)
{
    return data + id[i < IDS ? i : IDS - 1] * WIDTH;
}

static void *move_rows(void *arg)
{
    const mover   *m = arg;
    float         *data = ch_tensor_data_mut(m->t->copy), *out = m->t->out[m->worker];
    const int64_t *id = ch_tensor_data(m->t->ids[m->worker][m->turn]);

    for (int i = 0; i < IDS; i++) {
        for (int k = 0; k < WIDTH; k += 16)
            __builtin_prefetch(row_at(data, id, i + AHEAD) + k);
        memcpy(out + (size_t)i * WIDTH, data + id[i] * WIDTH, WIDTH * sizeof(float));
    }
    for (int i = 0; i < IDS; i++) {
        for (int k = 0; k < WIDTH; k += 16)
            __builtin_prefetch(row_at(data, id, i + AHEAD) + k);
        for (int k = 0; k < WIDTH; k++)
            data[id[i] * WIDTH + k] -= (float)RATE * out[(size_t)i * WIDTH + k];
    }
    return NULL;
}

static void run_limit(void *arg, int64_t n)
{
    table *t = arg;

    while (n-- > 0) {
        mover     m[WORKERS] = {{t, 0, (int)(n % TURNS)}, {t, 1, (int)(n % TURNS)}};
        pthread_t other;

        if (pthread_create(&other, NULL, move_rows, &m[1]) != 0)
            exit(1);
        move_rows(&m[0]);
        (void)pthread_join(other, NULL);
    }
}

/* ---- rows ---- */

static void start_workers(table *t)
{
    for (int i = 0; i < WORKERS; i++) {
        char     name[16];
        ch_task *task = NULL;

        worker_options[i] = (ch_worker_options){.n_devices = 1};
        snprintf(name, sizeof(name), "worker/%d", i);
        must(ch__device_of_task("worker", i, 0, &worker_options[i].device[0]));
        must(ch__task_start(t->c.net,
                            &(ch_task_options){.name = name,
                                               .ops = &ch__worker_ops,
                                               .make = ch__worker_make,
                                               .arg = &worker_options[i]},
                            &task));
    }
}

static void set_up(table *t, int64_t rows, bool is_zipf)
{
    memset(t, 0, sizeof(*t));
    start_servers(&t->c);
    start_workers(t);
    t->rows = rows;
    make_ids(t, is_zipf);
    must(ch_var_new(NULL,
                    &(ch_var_spec){.name = "table",
                                   .shape = ch_shape_of(rows, WIDTH),
                                   .init = ch_init_uniform(-1, 1)},
                    &t->var));
    must(ch_optimizer_sgd(RATE, NULL, NULL, &t->opt));
    record(t);
    send_step(t);
    for (int i = 0; i < WORKERS; i++)
        t->out[i] = calloc((size_t)IDS * WIDTH, sizeof(float));
    must(ch_tensor_new(CH_F32, ch_shape_of(rows, WIDTH), &t->copy));
}

static void tear_down(table *t)
{
    ch__net_free(t->c.net);
    ch__step_plan_free(t->sent.plan);
    ch_function_unref(t->step);
    ch_optimizer_unref(t->opt);
    ch_var_unref(t->var);
    ch_tensor_unref(t->copy);
    for (int w = 0; w < WORKERS; w++) {
        for (int i = 0; i < TURNS; i++)
            ch_tensor_unref(t->ids[w][i]);
        free(t->out[w]);
    }
}

static void measure(bench *b, int64_t rows, const char *size, bool is_zipf)
{
    static table t;
    char         name[64], command[128];
    bench_case   c = {.name = name,
                      .unit = "M rows/s",
                      .better = BENCH_HIGHER,
                      .scale = 1e-6 * WORKERS * IDS,
                      .ours = {.run = run_steps, .arg = &t},
                      .limit = {.run = run_limit, .arg = &t},
                      .check = is_right};

    snprintf(name, sizeof(name), "%s x 64, 2048 x 26 ids, %s", size,
             is_zipf ? "Zipf 1.05" : "uniform");
    snprintf(command, sizeof(command), "exec $PYTHON $PEERS/torch_rpc.py %s %lld",
             is_zipf ? "zipf" : "uniform", (long long)rows);
    if (!bench_wants(b, name))
        return;
    c.peer[0] = (bench_side){.name = "PyTorch RPC, 4 processes", .command = command};
    set_up(&t, rows, is_zipf);
    bench_run(b, &c);
    tear_down(&t);
}

int main(int argc, char **argv)
{
    bench  *b = bench_open("ps-embed", argc, argv);
    int64_t rows = bench_is_quick(b) ? 1 << 16 : 4 << 20;

    must(ch_devices_configure(&(ch_devices_options){.spec = "CPU=1", .threads = 1}));
    for (int is_zipf = 0; is_zipf < 2; is_zipf++) {
        measure(b, rows, "4M", is_zipf);
        measure(b, 2 * rows, "8M", is_zipf);
    }
    return bench_close(b);
}

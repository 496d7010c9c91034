/* bench/checkpoint.c -- saving and restoring 512 MiB and 2 GiB: speed, and what training loses.
 *
 * Limits: of a save, a plain write and fsync of the same bytes into as many files; of a
 * restore, a plain read into memory that is already there; of the stalls, a memcpy by a single
 * thread. "stall" is the time that a save blocks the program, "stall ps" the longest time that
 * a parameter server takes to answer while it is saved. The peer saves and loads tensors of the
 * same sizes with torch.save and torch.load, with an fsync. The case "overhead" trains in turns
 * with and without a save every ten seconds. The case "delta" compares deltas with full saves:
 * bytes and time.
 *
 * The files are in a new folder of /var/tmp, because /tmp may be memory.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"
#include "cohort/checkpoint.h"
#include "cohort/coordinator.h"
#include "must.h"

enum { PARTS = 16, ROUNDS = 7, SECONDS = 10, TURNS = 6 };

static char folder[64];

typedef struct state {
    int64_t        bytes;
    ch_var        *var[PARTS];
    ch_checkpoint *checkpoint;
    char          *memory; /* as many bytes, touched */
    char           prefix[128], plain[128];
} state;

static void make_state(state *s, int64_t bytes)
{
    *s = (state){.bytes = bytes};
    must(ch_checkpoint_new(&s->checkpoint));
    for (int i = 0; i < PARTS; i++) {
        char        name[16];
        ch_tensor  *t = NULL;
        int64_t     count = bytes / PARTS / 4;
        ch_var_spec spec = {.name = name};

        snprintf(name, sizeof(name), "v%d", i);
        must(ch_tensor_new(CH_F32, ch_shape_of(count / 1024, 1024), &t));
        for (int64_t k = 0; k < count; k++)
            ((float *)ch_tensor_data_mut(t))[k] = (float)(k * 31 % 1021);
        spec.initial = t;
        must(ch_var_new(NULL, &spec, &s->var[i]));
        must(ch_checkpoint_add_var(s->checkpoint, name, s->var[i]));
        ch_tensor_unref(t);
    }
    s->memory = malloc((size_t)bytes);
    if (s->memory == NULL)
        exit(1);
    memset(s->memory, 1, (size_t)bytes);
    snprintf(s->prefix, sizeof(s->prefix), "%s/ckpt", folder);
    snprintf(s->plain, sizeof(s->plain), "%s/plain", folder);
}

static void drop_state(state *s)
{
    char path[160];

    ch_checkpoint_unref(s->checkpoint);
    for (int i = 0; i < PARTS; i++)
        ch_var_unref(s->var[i]);
    free(s->memory);
    snprintf(path, sizeof(path), "%s.index", s->prefix);
    unlink(path);
    snprintf(path, sizeof(path), "%s.data-00000-of-00001", s->prefix);
    unlink(path);
    unlink(s->plain);
}

/* ---- save and restore ---- */

static void save(void *arg, int64_t n)
{
    state *s = arg;

    while (n-- > 0)
        must(ch_checkpoint_write(s->checkpoint, s->prefix,
                                 &(ch_write_options){.wait = true, .replace = true}));
}

static void write_plain(void *arg, int64_t n)
{
    state *s = arg;

    while (n-- > 0) {
        int fd;

        unlink(s->plain);
        fd = open(s->plain, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        for (int64_t at = 0, put; at < s->bytes; at += put)
            if ((put = write(fd, s->memory + at, (size_t)(s->bytes - at))) <= 0)
                exit(1);
        if (fsync(fd) != 0)
            exit(1);
        close(fd);
    }
}

static void restore(void *arg, int64_t n)
{
    state *s = arg;

    while (n-- > 0)
        must(ch_checkpoint_restore(s->checkpoint, s->prefix, NULL, NULL));
}

static void read_plain(void *arg, int64_t n)
{
    state *s = arg;

    while (n-- > 0) {
        int fd = open(s->plain, O_RDONLY);

        for (int64_t at = 0, got; at < s->bytes; at += got)
            if ((got = read(fd, s->memory + at, (size_t)(s->bytes - at))) <= 0)
                exit(1);
        close(fd);
    }
}

static bool is_restored(void *arg, char *why, size_t size)
{
    state     *s = arg;
    ch_tensor *t = NULL;
    bool       is_right;

    must(ch_var_get(s->var[PARTS - 1], &t));
    is_right = ((const float *)ch_tensor_data(t))[1000] == (float)(31000 % 1021);
    ch_tensor_unref(t);
    if (!is_right)
        snprintf(why, size, "a value is wrong after the restore");
    return is_right;
}

/* ---- stall ---- */

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

static void measure_stall(bench *b, state *s, const char *name)
{
    double ours[ROUNDS], limit[ROUNDS], gib = (double)s->bytes / (1 << 30);
    int    rounds = bench_is_quick(b) ? 1 : ROUNDS;
    char  *from = malloc((size_t)s->bytes);

    if (from == NULL)
        exit(1);
    memset(from, 2, (size_t)s->bytes);
    must(ch_checkpoint_write(s->checkpoint, s->prefix,
                             &(ch_write_options){.wait = true, .replace = true}));
    for (int i = 0; i < rounds; i++) {
        double begin = bench_now();

        must(ch_checkpoint_write(s->checkpoint, s->prefix,
                                 &(ch_write_options){.replace = true}));
        ours[i] = (bench_now() - begin) * 1e3 / gib;
        must(ch_checkpoint_wait(s->checkpoint));
        begin = bench_now();
        memcpy(s->memory, from, (size_t)s->bytes);
        limit[i] = (bench_now() - begin) * 1e3 / gib;
    }
    free(from);
    qsort(ours, (size_t)rounds, sizeof(double), by_value);
    qsort(limit, (size_t)rounds, sizeof(double), by_value);
    bench_add(b, name, "ms/GiB", BENCH_LOWER, ours[rounds / 2], limit[rounds / 2]);
}

/* ---- overhead ---- */

typedef struct training {
    ch_model     *model;
    ch_optimizer *optimizer;
    ch_function  *step;
    ch_tuple     *batch;
} training;

static void train(ch_step *s, void *arg)
{
    training      *t = arg;
    ch_node       *y = ch_model_call(t->model, s, ch_step_in(s, 0), true);
    ch_var *const *var;
    int            n = ch_model_trainable(t->model, &var);

    ch_optimizer_minimize(t->optimizer, s, ch_mean_all(ch_square(y)), n, var);
}

/* Trains until a time. Returns the number of steps. */
static int64_t train_until(training *t, double end)
{
    int64_t steps = 0;

    for (; bench_now() < end; steps++)
        must(ch_strategy_run(NULL, t->step, t->batch, NULL));
    return steps;
}

/* Adam keeps two slots, so the weights are a third of the state. */
static void measure_overhead(bench *b, int64_t bytes)
{
    bool             is_quick = bench_is_quick(b);
    int64_t          width = (int64_t)sqrt((double)bytes / 3 / 4 / 4);
    double           with = 0, without = 0, seconds = is_quick ? 0.2 : SECONDS;
    ch_layer        *layer[4];
    training         t = {NULL};
    ch_model_options opt = {.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, width)}}};
    ch_checkpoint   *c = NULL;
    ch_tensor       *x = NULL;
    char             prefix[128];

    for (int i = 0; i < 4; i++)
        layer[i] = ch_layer_dense(width, &(ch_layer_dense_options){.activation = CH_TANH});
    must(ch_model_new(NULL, ch_layer_sequential("net", 4, layer), &opt, &t.model));
    must(ch_optimizer_adam(1e-4, NULL, NULL, &t.optimizer));
    must(ch_function_new("train", train, &t, &t.step));
    must(ch_tensor_new(CH_F32, ch_shape_of(64, width), &x));
    must(ch_tuple_of(1, &x, &t.batch));
    must(ch_checkpoint_new(&c));
    must(ch_checkpoint_add_model(c, "model", t.model));
    must(ch_checkpoint_add_optimizer(c, "optimizer", t.optimizer));
    snprintf(prefix, sizeof(prefix), "%s/ckpt", folder);
    (void)train_until(&t, bench_now() + seconds / 4);
    must(ch_checkpoint_write(c, prefix, &(ch_write_options){.wait = true, .replace = true}));
    for (int i = 0; i < (is_quick ? 1 : TURNS); i++) {
        double  begin = bench_now();
        int64_t steps = 0;

        must(ch_checkpoint_write(c, prefix, &(ch_write_options){.replace = true}));
        steps = train_until(&t, begin + seconds);
        with += (double)steps / (bench_now() - begin);
        must(ch_checkpoint_wait(c)); /* is over, unless the disk is slow */
        begin = bench_now();
        steps = train_until(&t, begin + seconds);
        without += (double)steps / (bench_now() - begin);
    }
    bench_add(b, "overhead, a save every 10 s", "of 1", BENCH_HIGHER, with / without, 1);
    ch_checkpoint_unref(c);
    ch_tuple_unref(t.batch);
    ch_tensor_unref(x);
    ch_function_unref(t.step);
    ch_optimizer_unref(t.optimizer);
    ch_model_unref(t.model);
}

/* ---- stall of a parameter server ---- */

/* A parameter server holds a table. Each step changes a row of it, so that the server copies
 * the table after the cut. A thread asks the server for another variable, again and again. */
typedef struct served {
    ch_strategy    *st;
    ch_coordinator *co;
    ch_var         *table, *asked;
    ch_function    *step;
    ch_checkpoint  *checkpoint;
    atomic_bool     ends;
    double          longest; /* seconds that an answer took */
} served;

static void change_row(ch_step *s, void *arg)
{
    const served *t = arg;
    ch_tensor    *id = NULL, *row = NULL;

    must(ch_tensor_copy_of(CH_I64, ch_shape_of(1), (int64_t[]){1}, &id));
    must(ch_tensor_new(CH_F32, ch_shape_of(1, 1024), &row));
    ch_var_scatter_add(s, t->table, ch_constant(s, id), ch_constant(s, row));
    ch_tensor_unref(id);
    ch_tensor_unref(row);
}

static void *ask(void *arg)
{
    served *t = arg;

    while (!atomic_load(&t->ends)) {
        double     begin = bench_now(), took;
        ch_tensor *x = NULL;

        must(ch_var_get(t->asked, &x));
        ch_tensor_unref(x);
        took = bench_now() - begin;
        t->longest = took > t->longest ? took : t->longest;
    }
    return NULL;
}

static void serve(served *t, int64_t bytes)
{
    ch_local_cluster *cluster = NULL;
    ch_tensor        *zero = NULL, *one = NULL;

    *t = (served){NULL};
    must(ch_cluster_local(&(ch_local_cluster_options){.ps = 1, .workers = 1}, &cluster));
    must(ch_strategy_parameter_server(ch_local_cluster_resolver(cluster), NULL, &t->st));
    ch_local_cluster_unref(cluster);
    must(ch_coordinator_new(t->st, &(ch_coordinator_options){.capacity = 4}, &t->co));
    must(ch_tensor_new(CH_F32, ch_shape_of(bytes / 4096, 1024), &zero));
    must(ch_tensor_scalar(CH_F32, 1, &one));
    must(ch_var_new(t->st, &(ch_var_spec){.name = "table", .initial = zero}, &t->table));
    must(ch_var_new(t->st, &(ch_var_spec){.name = "asked", .initial = one}, &t->asked));
    must(ch_function_new("change_row", change_row, t, &t->step));
    must(ch_checkpoint_new(&t->checkpoint));
    must(ch_checkpoint_add_var(t->checkpoint, "table", t->table));
    ch_tensor_unref(zero);
    ch_tensor_unref(one);
}

static void stop_serving(served *t)
{
    ch_checkpoint_unref(t->checkpoint);
    ch_function_unref(t->step);
    ch_var_unref(t->asked);
    ch_var_unref(t->table);
    ch_coordinator_unref(t->co);
    ch_strategy_unref(t->st);
}

/* Saves once while steps run. Returns the longest time that the server took to answer. */
static double stall_of_server(served *t, const char *prefix)
{
    const ch_write_options opt = {.replace = true};
    pthread_t              thread;

    t->longest = 0;
    atomic_store(&t->ends, false);
    if (pthread_create(&thread, NULL, ask, t) != 0)
        exit(1);
    for (int i = 0; i < 40; i++) {
        if (i == 20)
            must(ch_checkpoint_write(t->checkpoint, prefix, &opt));
        must(ch_coordinator_schedule(t->co, t->step, NULL, NULL));
    }
    must(ch_coordinator_join(t->co));
    must(ch_checkpoint_wait(t->checkpoint));
    atomic_store(&t->ends, true);
    pthread_join(thread, NULL);
    return t->longest;
}

static void measure_stall_of_server(bench *b, int64_t bytes, const char *name)
{
    double ours[ROUNDS], limit[ROUNDS], gib = (double)bytes / (1 << 30);
    int    rounds = bench_is_quick(b) ? 1 : ROUNDS;
    char  *from = malloc((size_t)bytes), *to = malloc((size_t)bytes), prefix[128];
    served t;

    if (from == NULL || to == NULL)
        exit(1);
    memset(from, 2, (size_t)bytes);
    memset(to, 2, (size_t)bytes);
    snprintf(prefix, sizeof(prefix), "%s/ps", folder);
    serve(&t, bytes);
    (void)stall_of_server(&t, prefix); /* prepares the memory of the copy */
    for (int i = 0; i < rounds; i++) {
        ours[i] = stall_of_server(&t, prefix) * 1e3 / gib;
        double begin = bench_now();

        memcpy(to, from, (size_t)bytes);
        limit[i] = (bench_now() - begin) * 1e3 / gib;
    }
    stop_serving(&t);
    free(from);
    free(to);
    qsort(ours, (size_t)rounds, sizeof(double), by_value);
    qsort(limit, (size_t)rounds, sizeof(double), by_value);
    bench_add(b, name, "ms/GiB", BENCH_LOWER, ours[rounds / 2], limit[rounds / 2]);
}

/* ---- deltas ---- */

/* Returns the bytes of all files of a checkpoint with one data file. */
static double bytes_of(const char *path)
{
    static const char *const suffix[] = {".index", ".data-00000-of-00001"};
    double                   bytes = 0;

    for (int i = 0; i < 2; i++) {
        char        name[300];
        struct stat about;

        snprintf(name, sizeof(name), "%s%s", path, suffix[i]);
        if (stat(name, &about) != 0)
            exit(1);
        bytes += (double)about.st_size;
    }
    return bytes;
}

/* Fills ids of a table with the Zipf distribution of exponent 1.05. Frequent ids are not
 * neighbours. */
static void draw_ids(int32_t *id, int64_t n, int64_t rows, uint64_t *seed)
{
    const double s = 0.05;

    for (int64_t i = 0; i < n; i++) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        double u = (double)(*seed >> 11) / 9007199254740992.0;
        double x = pow(1 - u * (1 - pow((double)rows, -s)), -1 / s);

        id[i] = (int32_t)((uint64_t)x * 2654435761u % (uint64_t)rows);
    }
}

/* Saves in turns a full checkpoint and, after some steps, a delta. */
static void measure_delta(bench *b, int64_t rows)
{
    enum { WIDTH = 64, BATCH = 4096, IDS = 8, STEPS = 50 };
    ch_layer              *layer = ch_layer_embedding(rows, WIDTH, NULL);
    training               t = {NULL};
    ch_model_options       opt = {.n_inputs = 1, .input = {{CH_I32, ch_shape_of(-1, IDS)}}};
    ch_checkpoint         *c = NULL;
    ch_checkpoint_manager *m = NULL;
    ch_tensor             *x = NULL;
    char                   directory[128];
    double                 bytes[2] = {0}, seconds[2] = {0};
    uint64_t               seed = 1;

    must(ch_model_new(NULL, layer, &opt, &t.model));
    must(ch_optimizer_adagrad(0.01, &(ch_optimizer_adagrad_options){.row_wise = true}, NULL,
                              &t.optimizer));
    must(ch_function_new("train", train, &t, &t.step));
    must(ch_checkpoint_new(&c));
    must(ch_checkpoint_add_model(c, "model", t.model));
    must(ch_checkpoint_add_optimizer(c, "optimizer", t.optimizer));
    snprintf(directory, sizeof(directory), "%s/delta", folder);
    must(ch_checkpoint_manager_new(
        c, directory,
        &(ch_manager_options){.max_to_keep = 1, .full_every = 2, .write = {.wait = true}}, &m));
    for (int i = 0; i < (bench_is_quick(b) ? 2 : 2 * ROUNDS); i++) {
        const char *path = NULL;
        double      begin;

        for (int k = 0; k < (bench_is_small(b) ? 1 : STEPS); k++) {
            must(ch_tensor_new(CH_I32, ch_shape_of(BATCH, IDS), &x));
            draw_ids(ch_tensor_data_mut(x), (int64_t)BATCH * IDS, rows, &seed);
            must(ch_tuple_of(1, &x, &t.batch));
            must(ch_strategy_run(NULL, t.step, t.batch, NULL));
            ch_tuple_unref(t.batch);
            ch_tensor_unref(x);
        }
        begin = bench_now();
        must(ch_checkpoint_manager_save(m, true, &path));
        seconds[i % 2] += bench_now() - begin;
        bytes[i % 2] += bytes_of(path);
    }
    bench_add(b, "delta, bytes", "of a full save", BENCH_LOWER, bytes[1] / bytes[0], 1);
    bench_add(b, "delta, time", "of a full save", BENCH_LOWER, seconds[1] / seconds[0], 1);
    ch_checkpoint_manager_unref(m);
    ch_checkpoint_unref(c);
    ch_function_unref(t.step);
    ch_optimizer_unref(t.optimizer);
    ch_model_unref(t.model);
}

int main(int argc, char **argv)
{
    bench        *b = bench_open("checkpoint", argc, argv);
    const int64_t mib[] = {512, 2048};
    char          command[160];

    snprintf(folder, sizeof(folder), "/var/tmp/cohort-bench-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 1;
    setenv("FOLDER", folder, 1);
    for (int i = 0; i < 2; i++) {
        state s;
        char  name[3][64], peer[2][160];

        snprintf(name[0], sizeof(name[0]), "save %lld MiB", (long long)mib[i]);
        snprintf(name[1], sizeof(name[1]), "restore %lld MiB", (long long)mib[i]);
        snprintf(name[2], sizeof(name[2]), "stall %lld MiB", (long long)mib[i]);
        for (int k = 0; k < 2; k++)
            snprintf(peer[k], sizeof(peer[k]),
                     "exec $PYTHON $PEERS/torch_checkpoint.py %s %lld",
                     k == 0 ? "save" : "restore", (long long)mib[i]);
        if (!bench_wants(b, name[0]) && !bench_wants(b, name[1]) && !bench_wants(b, name[2]))
            continue;
        make_state(&s, bench_is_small(b) ? 16 << 20 : mib[i] << 20);
        save(&s, 1);
        write_plain(&s, 1);
        bench_run(b, &(bench_case){.name = name[0],
                                   .unit = "GB/s",
                                   .better = BENCH_HIGHER,
                                   .scale = (double)s.bytes / 1e9,
                                   .ours = {.run = save, .arg = &s},
                                   .peer = {{"torch.save", .command = peer[0]}},
                                   .limit = {.run = write_plain, .arg = &s}});
        bench_run(b, &(bench_case){.name = name[1],
                                   .unit = "GB/s",
                                   .better = BENCH_HIGHER,
                                   .scale = (double)s.bytes / 1e9,
                                   .ours = {.run = restore, .arg = &s},
                                   .peer = {{"torch.load", .command = peer[1]}},
                                   .limit = {.run = read_plain, .arg = &s},
                                   .check = is_restored});
        if (bench_wants(b, name[2]))
            measure_stall(b, &s, name[2]);
        drop_state(&s);
    }
    for (int i = 0; i < 2; i++) {
        char name[64];

        snprintf(name, sizeof(name), "stall ps %lld MiB", (long long)mib[i]);
        if (bench_wants(b, name))
            measure_stall_of_server(b, bench_is_small(b) ? 16 << 20 : mib[i] << 20, name);
    }
    if (bench_wants(b, "overhead"))
        measure_overhead(b, bench_is_small(b) ? 12 << 20 : 512 << 20);
    if (bench_wants(b, "delta"))
        measure_delta(b, bench_is_small(b) ? 40000 : 4 << 20);
    snprintf(command, sizeof(command), "rm -r %s", folder);
    if (system(command) != 0)
        return 1;
    return bench_close(b);
}

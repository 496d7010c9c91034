/* test/save/test_sim.c -- checkpoints of jobs in the network simulator, under random faults.
 *
 * The job has two servers and three workers. Each of its STEPS steps adds 1 to two cells of its
 * own in `pairs`, which are on different servers, and to the cell of `seen` that belongs to the
 * example it has read. While steps run, the program saves checkpoints to files. A seed
 * determines the faults (../job/faults.h), the modes of the jobs, and when the program saves.
 *
 * Every checkpoint is then restored by another job, which has other numbers of servers, workers
 * and shards, and faults of its own. It runs the steps that are absent. The invariants are:
 *
 *   1. In a restored state the servers agree: each step is complete or absent on both of them.
 *   2. As many examples are used as steps are complete, and the function has as many runs.
 *   3. When the remaining steps have run, each step is there once, and each example was used
 *      once.
 *   4. Every save and every write succeeds, whatever workers and messages are lost.
 *   5. No memory leaks, and the same seed gives the same events again.
 *
 * The simulator has a single thread. So the function of the background thread of a save runs on
 * the thread of the test, at a random later step (finish_write), and without helper threads.
 *
 * Environment variables: T_SEEDS is the number of seeds (./dev sim), T_FIRST_SEED the first of
 * them. T_SEED runs a single seed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../file/folder.h"
#include "../job/faults.h"
#include "base/mem.h"
#include "base/thread.h"
#include "cohort/checkpoint.h"

enum { STEPS = 40, EXAMPLES = STEPS, MOST_SAVES = 3, MOST_SERVERS = 3, MOST_WORKERS = 4 };

typedef struct job {
    t_faults        faults; /* and the cluster */
    ch_strategy    *st;
    ch_coordinator *co;
    ch_var         *pairs, *seen;
    ch_var         *row; /* of Default: the index of the step that is scheduled next */
    ch_function    *step;
    ch_per_worker  *data, *pass;
    ch_checkpoint  *c;
    bool            is_done[STEPS]; /* in the state that was restored */
    int             n_saves;
} job;

static char wrong[256]; /* the first violation of a seed; "": none */

static void is_wrong(const char *what)
{
    if (wrong[0] == '\0')
        snprintf(wrong, sizeof(wrong), "%s", what);
}

/* ---- the background thread of a save ---- */

/* The write that has been started and has not run; run is NULL if there is none. */
static struct {
    void (*run)(void *arg);
    void *arg;
} pending;

ch_status __real_ch__thread_start(const char *name, void (*run)(void *), void *arg,
                                  ch_thread **out);
ch_status __real_ch__team_new(const char *name, int n_threads, ch_team **out);
ch_status __wrap_ch__thread_start(const char *name, void (*run)(void *), void *arg,
                                  ch_thread **out);
ch_status __wrap_ch__team_new(const char *name, int n_threads, ch_team **out);

ch_status __wrap_ch__thread_start(const char *name, void (*run)(void *), void *arg,
                                  ch_thread **out)
{
    if (strcmp(name, "save") != 0)
        return __real_ch__thread_start(name, run, arg, out);
    pending.run = run;
    pending.arg = arg;
    *out = NULL;
    return CH_OK;
}

/* Makes no team for the module save/: a loop without a team runs on its caller. */
ch_status __wrap_ch__team_new(const char *name, int n_threads, ch_team **out)
{
    if (strcmp(name, "save") != 0 && strcmp(name, "checkpoint") != 0)
        return __real_ch__team_new(name, n_threads, out);
    *out = NULL;
    return CH_OK;
}

/* Writes the files of the last save, if that has not been done. Steps run meanwhile. */
static void finish_write(job *j)
{
    if (pending.run == NULL)
        return;
    pending.run(pending.arg);
    pending.run = NULL;
    if (ch_checkpoint_wait(j->c) != CH_OK)
        is_wrong(ch_error_message());
}

/* ---- the job ---- */

static void step_of(ch_step *s, void *arg)
{
    job     *j = arg;
    ch_node *row = ch_var_read(s, j->row);
    ch_node *twin = ch_add(row, ch_cast(ch_number(s, STEPS), CH_I64));
    ch_node *example = ch_reshape(ch_step_in(s, 0), ch_shape_of(1));
    ch_node *one = ch_cast(ch_equal(row, row), CH_F32);

    ch_var_scatter_add(s, j->pairs, ch_concat(2, (ch_node *[]){row, twin}, 0),
                       ch_concat(2, (ch_node *[]){one, one}, 0));
    ch_var_scatter_add(s, j->seen, example, one);
}

static void open_job(job *j, uint64_t seed, int servers, int workers, int shards)
{
    uint64_t               r = seed * 0x9e3779b97f4a7c15u >> 32;
    ch_coordinator_options how = {.mode = (ch_coordinator_mode)(r % 3),
                                  .staleness = (int)(r / 3 % 5),
                                  .round = (int)(r / 15 % 5),
                                  .backups = r / 75 % 2 != 0,
                                  .capacity = r / 150 % 2 != 0 ? 8 : 0};
    ch_dataset            *d = ch_dataset_range(0, EXAMPLES, 1);

    *j = (job){.st = NULL};
    t_faults_open(&j->faults, seed, servers, workers, NULL, NULL);
    t_ok(ch_strategy_parameter_server(
        ch_local_cluster_resolver(j->faults.cluster),
        &(ch_parameter_server_options){.partitioner = ch_partitioner_fixed(shards)}, &j->st));
    t_ok(ch_coordinator_new(j->st, &how, &j->co));
    j->pairs = t_var(j->st, "pairs", t_f32(ch_shape_of(2 * STEPS), NULL));
    j->seen = t_var(j->st, "seen", t_f32(ch_shape_of(EXAMPLES), NULL));
    t_ok(ch_var_new(ch_strategy_current(),
                    &(ch_var_spec){.name = "row", .dtype = CH_I64, .shape = ch_shape_of(1)},
                    &j->row));
    j->step = t_function(step_of, j);
    t_ok(ch_coordinator_distribute_dataset(j->co, d, &j->data));
    ch_dataset_unref(d);
    t_ok(ch_checkpoint_new(&j->c));
    t_ok(ch_checkpoint_add_var(j->c, "pairs", j->pairs));
    t_ok(ch_checkpoint_add_var(j->c, "seen", j->seen));
    t_ok(ch_checkpoint_add_function(j->c, "step", j->step));
    t_ok(ch_checkpoint_add_per_worker(j->c, "data", j->data));
}

static void close_job(job *j)
{
    finish_write(j);
    ch_checkpoint_unref(j->c);
    ch_per_worker_unref(j->pass);
    ch_per_worker_unref(j->data);
    ch_function_unref(j->step);
    ch_var_unref(j->pairs);
    ch_var_unref(j->seen);
    ch_var_unref(j->row);
    ch_coordinator_unref(j->co);
    ch_strategy_unref(j->st);
    t_faults_close(&j->faults);
}

static void schedule(job *j, int64_t i)
{
    ch_tensor *t = NULL;

    t_ok(ch_tensor_copy_of(CH_I64, ch_shape_of(1), &i, &t));
    t_ok(ch_var_set(j->row, t));
    ch_tensor_unref(t);
    if (ch_coordinator_schedule(j->co, j->step, &(ch_arguments){.n_each = 1, .each = &j->pass},
                                NULL) != CH_OK)
        is_wrong(ch_error_message());
}

/* ---- saving and restoring ---- */

static void save(job *j)
{
    finish_write(j);
    if (ch_checkpoint_save(j->c, t_path("ckpt"),
                           &(ch_write_options){.sync = CH_OFF, .replace = true}, NULL,
                           0) == CH_OK)
        j->n_saves++;
    else
        is_wrong(ch_error_message());
}

/* Copies the values of a variable of floats. */
static void read_var(ch_var *v, float *to)
{
    ch_tensor *t = NULL;

    t_ok(ch_var_get(v, &t));
    memcpy(to, ch_tensor_data(t), ch_tensor_bytes(t));
    ch_tensor_unref(t);
}

/* Checks invariants 1 and 2. Returns the number of complete steps. */
static int check_state(job *j)
{
    float pairs[2 * STEPS], seen[EXAMPLES];
    int   n_steps = 0, n_used = 0;

    read_var(j->pairs, pairs);
    read_var(j->seen, seen);
    for (int i = 0; i < STEPS; i++) {
        if (pairs[i] != pairs[STEPS + i])
            is_wrong("the servers do not agree about a step");
        if (pairs[i] != 0 && pairs[i] != 1)
            is_wrong("a step was applied twice");
        j->is_done[i] = pairs[i] != 0;
        n_steps += j->is_done[i];
    }
    for (int i = 0; i < EXAMPLES; i++) {
        if (seen[i] != 0 && seen[i] != 1)
            is_wrong("an example was used twice");
        n_used += seen[i] != 0;
    }
    if (n_used != n_steps)
        is_wrong("steps and examples do not agree");
    if (ch_function_runs(j->step) != n_steps)
        is_wrong("steps and runs of the function do not agree");
    return n_steps;
}

static void restore(job *j, int number)
{
    char         name[32];
    ch_restored *r = NULL;

    snprintf(name, sizeof(name), "ckpt-%d", number);
    if (ch_checkpoint_restore(j->c, t_path(name), NULL, &r) != CH_OK ||
        ch_restored_assert_consumed(r) != CH_OK)
        is_wrong(ch_error_message());
    ch_restored_unref(r);
    (void)check_state(j);
}

/* Runs the steps that are not done, under faults, and saves some times. Checks invariant 3. */
static void train(job *j, int most_saves)
{
    ch_net *net = j->faults.net;

    t_faults_plan(&j->faults);
    for (int i = 0; i < STEPS && wrong[0] == '\0'; i++) {
        if (j->is_done[i])
            continue;
        schedule(j, i);
        if (j->n_saves < most_saves && ch__sim_draw(net, 8) == 0)
            save(j);
        if (ch__sim_draw(net, 4) == 0)
            finish_write(j);
        if (ch__sim_draw(net, 20) == 0 && ch_coordinator_join(j->co) != CH_OK)
            is_wrong(ch_error_message());
    }
    t_faults_heal(&j->faults);
    finish_write(j);
    if (wrong[0] == '\0' && ch_coordinator_join(j->co) != CH_OK)
        is_wrong(ch_error_message());
    if (wrong[0] == '\0' && check_state(j) != STEPS)
        is_wrong("a step or an example is missing at the end");
}

/* ---- a seed ---- */

/* Continues from a checkpoint in another job. The iteration over the data is created before the
 * restore or after it. */
static uint64_t resume(uint64_t seed, int number)
{
    static job j;
    uint64_t   other = seed + ((uint64_t)number << 32), r = other * 0x9e3779b97f4a7c15u >> 40;
    uint64_t   hash;

    open_job(&j, other, 1 + (int)(r % MOST_SERVERS), 1 + (int)(r / 3 % MOST_WORKERS),
             1 + (int)(r / 12 % 5));
    if (r / 60 % 2 != 0)
        t_ok(ch_per_worker_iterate(j.data, &j.pass));
    restore(&j, number);
    if (j.pass == NULL)
        t_ok(ch_per_worker_iterate(j.data, &j.pass));
    train(&j, 0);
    hash = ch__sim_hash(j.faults.net);
    close_job(&j);
    return hash;
}

static uint64_t run(uint64_t seed, int servers, int workers)
{
    static job j;
    uint64_t   hash;
    int        n;

    wrong[0] = '\0';
    open_job(&j, seed, servers, workers, 2);
    t_ok(ch_per_worker_iterate(j.data, &j.pass));
    train(&j, MOST_SAVES);
    hash = ch__sim_hash(j.faults.net);
    n = j.n_saves;
    close_job(&j);
    for (int i = 1; i <= n && wrong[0] == '\0'; i++)
        hash = hash * 31 + resume(seed, i);
    return hash;
}

static bool check_seed(uint64_t seed, bool replays)
{
    int64_t  live = ch__mem_live();
    uint64_t hash = run(seed, 2, 3);

    if (wrong[0] == '\0' && ch__mem_live() != live)
        is_wrong("something leaks");
    if (wrong[0] == '\0' && replays && run(seed, 2, 3) != hash)
        is_wrong("the same seed gave other events");
    if (wrong[0] == '\0')
        return true;
    print_error("seed %llu: %s\n", (unsigned long long)seed, wrong);
    return false;
}

/* PR-14: a job that is started again goes on from its last checkpoint */
static void restored_servers_agree_about_every_step(void **state)
{
    (void)state;
    /* Allocates memory that stays until the process ends: all devices are used. */
    (void)run(t_first_seed(), MOST_SERVERS, MOST_WORKERS);
    t_check_seeds(60, 50, check_seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restored_servers_agree_about_every_step)};

    t_begin_simulation();
    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}

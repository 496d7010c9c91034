/* test/job/faults.h -- a simulated cluster with random faults, which its seed determines.
 *
 * The simulator (src/net/sim.c) loses, delays and repeats messages, cuts links, kills and
 * restarts workers, and makes the clock jump. Each seed has some of these faults. Tests open a
 * cluster, plan its faults, run a job, and end the faults before they wait for its end.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_JOB_FAULTS_H
#define TEST_JOB_FAULTS_H

#include <stdlib.h>

#include "../mutant.h"
#include "help.h"
#include "job/local_cluster.h"

enum { T_FAULTS = 24 };

static const int64_t ms_ns = 1000000;

typedef struct t_faults {
    ch_sim_options    opt; /* faults of messages */
    ch_net           *net;
    ch_local_cluster *cluster; /* owned */
    int               n_servers, n_workers;
    int               n; /* kills and cuts that were planned */
    bool              is_healed;
    struct t_fault {
        struct t_faults *all;
        int              kind, worker, other;
    } fault[T_FAULTS + 1];
} t_faults;

/* Opens a cluster. Servers call `watch` for each update that they apply; it may be NULL. */
static inline void t_faults_open(t_faults *f, uint64_t seed, int servers, int workers,
                                 ch_update_watch watch, void *arg)
{
    uint64_t r = seed * 0x9e3779b97f4a7c15u >> 32;

    *f = (t_faults){.opt = {.seed = seed,
                            .encode = r / 1200 % 4 == 0,
                            .drop = r / 4800 % 2 != 0 ? (int)(r / 9600 % 60) : 0,
                            .twice = r / 19200 % 2 != 0 ? (int)(r / 38400 % 200) : 0,
                            .late = r / 76800 % 2 != 0 ? (int)(r / 153600 % 100) : 0},
                    .n_servers = servers,
                    .n_workers = workers};
    t_ok(ch__net_sim(&f->opt, &f->net));
    t_ok(ch__local_cluster_new_on(
        f->net, &(ch_local_cluster_options){.ps = servers, .workers = workers},
        &(ch_local_cluster_task_options){
            .coord =
                {.tick = 5 * ms_ns, .call = 10 * ms_ns, .retry = ms_ns, .silence = 1 << 30},
            .worker = {.call_ns = 10 * ms_ns, .retry_ns = ms_ns, .patience_ns = 60 * ms_ns},
            .server = {.watch = watch, .arg = arg}},
        &f->cluster));
}

static inline void t_faults_close(t_faults *f)
{
    ch_local_cluster_unref(f->cluster);
}

/* Returns the name of a task: workers first, then servers, then the coordinator. */
static inline const char *t_task_name(const t_faults *f, int task, char *text, size_t size)
{
    if (task < f->n_workers)
        snprintf(text, size, "worker/%d", task);
    else if (task < f->n_workers + f->n_servers)
        snprintf(text, size, "ps/%d", task - f->n_workers);
    else
        snprintf(text, size, "chief/0");
    return text;
}

enum { T_KILL, T_RESTART, T_CUT, T_HEAL, T_JUMP };

static inline void t_fault_happen(void *arg)
{
    const struct t_fault *x = arg;
    t_faults             *f = x->all;
    ch_task              *t = ch__local_cluster_task(f->cluster, "worker", x->worker);
    char                  a[32], b[32];

    if (!f->is_healed && x->kind == T_KILL)
        ch__task_kill(t);
    if (x->kind == T_RESTART && ch__task_restart(t) != CH_OK) {
        /* the worker runs, because the restart happened before the kill */
    }
    if (x->kind == T_JUMP && !f->is_healed)
        ch__sim_jump(f->net, ch__sim_draw(f->net, 3000 * ms_ns));
    if (x->kind == T_CUT || x->kind == T_HEAL)
        ch__sim_cut(f->net, t_task_name(f, x->worker, a, sizeof(a)),
                    t_task_name(f, x->other, b, sizeof(b)), x->kind == T_CUT && !f->is_healed);
}

static inline void t_fault_plan(t_faults *f, int i, int kind, int64_t at, int worker, int other)
{
    f->fault[i] = (struct t_fault){f, kind, worker, other};
    t_ok(ch__sim_at(f->net, at, t_fault_happen, &f->fault[i]));
}

/* Plans the faults of a seed. Half of the seeds have kills, half have cuts, and a quarter have
 * a jump of the clock. The struct must stay where it is. */
static inline void t_faults_plan(t_faults *f)
{
    bool    kills = ch__sim_draw(f->net, 2), cuts = ch__sim_draw(f->net, 2);
    bool    jumps = ch__sim_draw(f->net, 4) == 0;
    int64_t now = ch__sim_now(f->net), span = 150 * ms_ns;

    if (jumps)
        t_fault_plan(f, T_FAULTS, T_JUMP, now + ch__sim_draw(f->net, span), 0, 0);
    for (int i = 0; i + 1 < T_FAULTS; i += 2) {
        int64_t at = now + ch__sim_draw(f->net, span);
        int64_t until = at + ch__sim_draw(f->net, ch__sim_draw(f->net, 2) ? span : 5 * ms_ns);
        int     worker = (int)ch__sim_draw(f->net, f->n_workers);
        int     other = f->n_workers + (int)ch__sim_draw(f->net, f->n_servers + 1);

        if (i % 4 == 0 && kills) {
            t_fault_plan(f, i, T_KILL, at, worker, 0);
            t_fault_plan(f, i + 1, T_RESTART, until, worker, 0);
            f->n++;
        } else if (i % 4 == 2 && cuts) {
            t_fault_plan(f, i, T_CUT, at, worker, other);
            t_fault_plan(f, i + 1, T_HEAL, until, worker, other);
            f->n++;
        }
    }
}

/* Ends all faults, and restarts the workers that were killed. */
static inline void t_faults_heal(t_faults *f)
{
    char a[32], b[32];

    f->is_healed = true;
    ch__sim_faults(f->net, &(ch_sim_options){.encode = f->opt.encode});
    for (int i = 0; i < f->n_workers; i++) {
        if (ch__task_restart(ch__local_cluster_task(f->cluster, "worker", i)) != CH_OK) {
            /* the worker runs */
        }
        for (int k = f->n_workers; k <= f->n_workers + f->n_servers; k++)
            ch__sim_cut(f->net, t_task_name(f, i, a, sizeof(a)),
                        t_task_name(f, k, b, sizeof(b)), false);
    }
}

/* Discards the messages about lost workers, which are frequent. */
static inline void t_ignore_log(const ch_log_record *r, void *arg)
{
    (void)arg;
    (void)r;
}

/* Returns the number in an environment variable, or `usual` if it is not set. */
static inline uint64_t t_number(const char *name, uint64_t usual)
{
    const char *text = getenv(name);

    return text != NULL ? strtoull(text, NULL, 10) : usual;
}

/* Prepares a simulation. Must be called before the first job begins. */
static inline void t_begin_simulation(void)
{
    t_leave_out_a_check();
    (void)setenv("COHORT_WAIT_LIMIT_MS", "20000", 1); /* of the simulated clock */
    ch_log_set_sink(t_ignore_log, NULL, CH_LOG_ERROR);
}

/* Returns the first seed that is simulated. */
static inline uint64_t t_first_seed(void)
{
    return t_number("T_SEED", t_number("T_FIRST_SEED", 0));
}

/* Calls `check` for each seed, until five seeds are wrong: for T_SEED alone if it is set, else for
 * T_SEEDS seeds (default: `usual`). Each `every`-th is to be replayed. `check` returns false if the
 * seed is wrong. */
static inline void t_check_seeds(uint64_t usual, uint64_t every,
                                 bool (*check)(uint64_t seed, bool replays))
{
    uint64_t first = t_first_seed();
    uint64_t n = getenv("T_SEED") != NULL ? 1 : t_number("T_SEEDS", usual);
    int      n_wrong = 0;

    for (uint64_t seed = first; seed < first + n && n_wrong < 5; seed++)
        n_wrong += !check(seed, seed % every == 0);
    assert_int_equal(n_wrong, 0);
}

#endif

/* test/job/scene.h -- a simulated cluster with a coordinator: faults at chosen times, on a
 * virtual clock.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_JOB_SCENE_H
#define TEST_JOB_SCENE_H

#include "help.h"
#include "job/local_cluster.h"

enum { MOST_CUES = 16 };
static const int64_t ms = 1000000;

typedef struct scene {
    ch_net           *net;
    ch_local_cluster *cluster;
    ch_strategy      *st;
    ch_coordinator   *co;
    ch_var           *n; /* variable that every step increments */
    ch_function      *count;
    int               n_cues;
    struct cue {
        struct scene *scene;
        const char   *job;
        int           task;
    } cue[MOST_CUES];
} scene;

static inline void t_count_step(ch_step *s, void *arg)
{
    scene *c = arg;

    ch_var_assign_add(s, c->n, ch_number(s, 1));
    ch_step_out(s, "n", ch_var_read(s, c->n));
}

/* Opens a cluster without a strategy. A step takes up to step_ms. */
static inline void t_stage(scene *s, const ch_local_cluster_options *local, int step_ms)
{
    memset(s, 0, sizeof(*s));
    t_ok(ch__net_sim(&(ch_sim_options){.seed = 7, .work_us = 1000 * step_ms}, &s->net));
    t_ok(ch__local_cluster_new_on(
        s->net, local, &(ch_local_cluster_task_options){.coord.tick = 10 * ms}, &s->cluster));
}

static inline void t_open(scene *s, const ch_local_cluster_options *local, int step_ms,
                          const ch_coordinator_options *opt)
{
    t_stage(s, local, step_ms);
    t_ok(ch_strategy_parameter_server(ch_local_cluster_resolver(s->cluster), NULL, &s->st));
    t_ok(ch_coordinator_new(s->st, opt, &s->co));
    s->n = t_var_in(s->st, "n", 0);
    s->count = t_function(t_count_step, s);
}

static inline void t_close(scene *s)
{
    ch_function_unref(s->count);
    ch_var_unref(s->n);
    ch_coordinator_unref(s->co);
    ch_strategy_unref(s->st);
    ch_local_cluster_unref(s->cluster);
}

static inline void kill_on_cue(void *arg)
{
    const struct cue *c = arg;

    t_ok(ch_local_cluster_kill(c->scene->cluster, c->job, c->task));
}

static inline void restart_on_cue(void *arg)
{
    const struct cue *c = arg;

    t_ok(ch_local_cluster_restart(c->scene->cluster, c->job, c->task));
}

/* Calls fn after `us` microseconds of the virtual clock. */
static inline void t_at(scene *s, int64_t us, void (*fn)(void *arg), const char *job, int task)
{
    assert_true(s->n_cues < MOST_CUES);
    s->cue[s->n_cues] = (struct cue){s, job, task};
    t_ok(ch__sim_at(s->net, ch__sim_now(s->net) + us * 1000, fn, &s->cue[s->n_cues]));
    s->n_cues++;
}

static inline void t_kill_in(scene *s, int64_t after_ms, const char *job, int task)
{
    t_at(s, 1000 * after_ms, kill_on_cue, job, task);
}

static inline void t_restart_in(scene *s, int64_t after_ms, const char *job, int task)
{
    t_at(s, 1000 * after_ms, restart_on_cue, job, task);
}

static inline void t_pass(scene *s, int64_t for_ms)
{
    ch__sim_run_until(s->net, ch__sim_now(s->net) + for_ms * ms);
}

static inline void t_schedule(scene *s, int n)
{
    for (int i = 0; i < n; i++)
        t_ok(ch_coordinator_schedule(s->co, s->count, NULL, NULL));
}

static inline ch_coordinator_stats t_stats(scene *s)
{
    ch_coordinator_stats stats;

    t_ok(ch_coordinator_get_stats(s->co, &stats));
    return stats;
}

#endif

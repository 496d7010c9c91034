/* cluster/slurm.c -- ch_resolver_slurm: the cluster of a Slurm job step.
 *
 * struct slurm holds the options of the resolver, struct step the state of the environment,
 * which is read again for every query. Ranks are assigned to the hosts in the order of the host
 * list. SLURM_DISTRIBUTION decides the order: block (all ranks of the first host, then all of
 * the second) or cyclic (a rank for each host in turn). Task k of a host listens on port
 * port_base + k. The jobs of the options, sorted by name, get consecutive ranks.
 *
 * The resolver reports the task of this process only after the cluster was queried
 * (was_resolved).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "cluster/gpus.h"
#include "cluster/hostlist.h"
#include "cluster/resolver.h"
#include "tensor/print.h"

typedef struct slurm {
    ch_arena        arena; /* memory of the names */
    int             n_jobs;
    ch_slurm_count *job;     /* sorted by name; n_jobs is 0: all tasks are workers */
    int             n_hosts; /* 0: the hosts of SLURM_STEP_NODELIST */
    ch_slurm_count *host;
    int             port_base, tasks_per_node, gpus_per_node, gpus_per_task;
    /* True after the cluster was queried. Only then does the resolver report its own task. */
    atomic_bool was_resolved;
} slurm;

/* The location of a rank. */
typedef struct rank {
    const char *host;
    int         k; /* index among the tasks of its host */
} rank;

/* The step that the environment describes. */
typedef struct step {
    ch_arena        arena;
    int             n_hosts;
    ch_slurm_count *host;
    int             n_ranks, max_per_host; /* number of ranks, and their maximum on a host */
    rank           *rank;
    int             own; /* rank of this process */
} step;

static void drop_step(step *s)
{
    ch__arena_drop(&s->arena);
    ch__free(s->host);
    ch__free(s->rank);
}

/* ---- the environment ---- */

/* Reads an environment variable. Returns NOT_FOUND if it is not set. */
static ch_status want_variable(const char *name, const char **out)
{
    *out = ch__env(name);
    return *out != NULL ? CH_OK
                        : ch__fail(CH_NOT_FOUND,
                                   "Slurm: %s not found in environment; start the program with "
                                   "srun, or set the variable",
                                   name);
}

static ch_status want_number(const char *name, int *out)
{
    const char *text;
    ch_status   rc = want_variable(name, &text);

    if (rc == CH_OK && !ch__parse_number(text, strlen(text), CH_CLUSTER_TASKS + 1, out))
        rc = ch__fail(CH_INVALID_ARGUMENT, "Slurm: %s=\"%.40s\" is not a number from 0 to %d",
                      name, text, CH_CLUSTER_TASKS);
    return rc;
}

/* Fills in s->host with the tasks of each host: tasks_per_node, or the list of the
 * environment. */
static ch_status count_tasks(const slurm *o, step *s, const ch_hosts *hosts)
{
    const char *text;
    int        *tasks = ch__calloc((size_t)hosts->n + 1, sizeof(*tasks)), n = hosts->n;
    ch_status   rc = tasks == NULL ? ch__fail_memory("a step of Slurm") : CH_OK;

    for (int i = 0; i < hosts->n && rc == CH_OK; i++)
        tasks[i] = o->tasks_per_node;
    if (rc == CH_OK && o->tasks_per_node == 0)
        rc = want_variable("SLURM_STEP_TASKS_PER_NODE", &text);
    if (rc == CH_OK && o->tasks_per_node == 0)
        rc = ch__tasks_per_node(text, hosts->n, tasks, &n);
    if (rc == CH_OK && n != hosts->n)
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "Slurm: SLURM_STEP_NODELIST has %d hosts, SLURM_STEP_TASKS_PER_NODE "
                      "tasks for %d hosts",
                      hosts->n, n);
    for (int i = 0; i < hosts->n && rc == CH_OK; i++)
        s->host[i] = (ch_slurm_count){hosts->name[i], tasks[i]};
    ch__free(tasks);
    return rc;
}

/* Reads the hosts from the options or from the environment. */
static ch_status read_hosts(const slurm *o, step *s)
{
    const char *list;
    ch_hosts    hosts = {0};
    ch_status   rc = CH_OK;

    if (o->n_hosts == 0) {
        rc = want_variable("SLURM_STEP_NODELIST", &list);
        if (rc == CH_OK)
            rc = ch__hostlist_expand(list, &s->arena, &hosts);
    }
    if (rc != CH_OK)
        return rc;
    s->n_hosts = o->n_hosts > 0 ? o->n_hosts : hosts.n;
    s->host = ch__calloc((size_t)s->n_hosts, sizeof(*s->host));
    if (s->host == NULL)
        rc = ch__fail_memory("a step of Slurm");
    else if (o->n_hosts > 0)
        memcpy(s->host, o->host, (size_t)o->n_hosts * sizeof(*s->host));
    else
        rc = count_tasks(o, s, &hosts);
    ch__free(hosts.name);
    return rc;
}

/* ---- ranks ---- */

/* Stores true if ranks are distributed cyclically, false for block. Other distributions are
 * errors, because their order cannot be computed from the environment. */
static ch_status read_distribution(bool *is_cyclic)
{
    const char *text = ch__env_nonempty("SLURM_DISTRIBUTION");
    size_t      n = text != NULL ? strcspn(text, ":,") : 0;

    *is_cyclic = n == 6 && strncmp(text, "cyclic", n) == 0;
    if (n == 0 || *is_cyclic || (n == 5 && strncmp(text, "block", n) == 0) ||
        (n == 1 && text[0] == '*'))
        return CH_OK;
    return ch__fail(CH_FAILED_PRECONDITION,
                    "Slurm: SLURM_DISTRIBUTION=\"%.40s\" is not supported; use srun "
                    "--distribution=block or cyclic",
                    text);
}

/* Fills in s->rank. */
static void assign_ranks(step *s, bool is_cyclic)
{
    int n = 0;

    if (is_cyclic)
        for (int k = 0; k < s->max_per_host; k++)
            for (int i = 0; i < s->n_hosts; i++)
                if (k < s->host[i].tasks)
                    s->rank[n++] = (rank){s->host[i].name, k};
    if (!is_cyclic)
        for (int i = 0; i < s->n_hosts; i++)
            for (int k = 0; k < s->host[i].tasks; k++)
                s->rank[n++] = (rank){s->host[i].name, k};
}

/* Counts and assigns the ranks, and checks the rank of this process. */
static ch_status make_ranks(step *s)
{
    int64_t   total = 0;
    bool      is_cyclic = false;
    ch_status rc = read_distribution(&is_cyclic);

    for (int i = 0; i < s->n_hosts; i++) {
        total += s->host[i].tasks;
        s->max_per_host =
            s->host[i].tasks > s->max_per_host ? s->host[i].tasks : s->max_per_host;
    }
    if (rc == CH_OK && total > CH_CLUSTER_TASKS)
        rc = ch__fail(CH_RESOURCE_EXHAUSTED, "Slurm: more than %d tasks", CH_CLUSTER_TASKS);
    if (rc != CH_OK)
        return rc;
    s->n_ranks = (int)total;
    s->rank = ch__calloc((size_t)total + 1, sizeof(*s->rank));
    if (s->rank == NULL)
        return ch__fail_memory("a step of Slurm");
    assign_ranks(s, is_cyclic);
    if (s->own >= s->n_ranks)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "Slurm: SLURM_PROCID is %d, and there are %d tasks", s->own,
                        s->n_ranks);
    return CH_OK;
}

/* Reads the step. On success the caller must call drop_step. */
static ch_status read_step(const slurm *o, step *out)
{
    step      s = {0};
    ch_status rc = want_number("SLURM_PROCID", &s.own);

    if (rc == CH_OK)
        rc = read_hosts(o, &s);
    if (rc == CH_OK)
        rc = make_ranks(&s);
    if (rc == CH_OK)
        *out = s;
    else
        drop_step(&s);
    return rc;
}

/* ---- jobs ---- */

/* Stores the jobs, sorted by name, in *out, borrowed. Without jobs in the options, all tasks
 * are workers; `workers` is then the storage of that job. */
static ch_status read_jobs(const slurm *o, ch_slurm_count *workers, int *n,
                           const ch_slurm_count **out)
{
    *n = o->n_jobs;
    *out = o->job;
    if (o->n_jobs > 0)
        return CH_OK;
    *workers = (ch_slurm_count){"worker", 0};
    *n = 1;
    *out = workers;
    return want_number("SLURM_STEP_NUM_TASKS", &workers->tasks);
}

/* Returns FAILED_PRECONDITION unless the jobs have as many tasks as the step has ranks. */
static ch_status check_jobs(int n, const ch_slurm_count *job, const step *s)
{
    int64_t wanted = 0;

    for (int i = 0; i < n; i++)
        wanted += job[i].tasks;
    return wanted == s->n_ranks
               ? CH_OK
               : ch__fail(CH_FAILED_PRECONDITION,
                          "Slurm: Requested %lld tasks but %s%d were assigned: srun's --ntasks "
                          "must be the "
                          "sum of the jobs' tasks",
                          (long long)wanted, wanted > s->n_ranks ? "only " : "", s->n_ranks);
}

/* Creates the cluster. Each job gets the next ranks. */
static ch_status make_cluster(const slurm *o, step *s, int n, const ch_slurm_count *job,
                              ch_cluster **out)
{
    const char **address =
        ch__arena_alloc(&s->arena, ((size_t)s->n_ranks + 1) * sizeof(*address));
    ch_cluster_job *jobs = ch__arena_alloc(&s->arena, (size_t)n * sizeof(*jobs));
    ch_status rc = address == NULL || jobs == NULL ? ch__fail_memory("a step of Slurm") : CH_OK;

    for (int i = 0; i < s->n_ranks && rc == CH_OK; i++) {
        char text[CH_ADDRESS_BYTES + 16];

        snprintf(text, sizeof(text), "%s:%d", s->rank[i].host, o->port_base + s->rank[i].k);
        address[i] = ch__arena_strdup(&s->arena, text);
        if (address[i] == NULL)
            rc = ch__fail_memory("a step of Slurm");
    }
    for (int i = 0, at = 0; i < n && rc == CH_OK; at += job[i++].tasks)
        jobs[i] = (ch_cluster_job){job[i].name, job[i].tasks, address + at, NULL};
    return rc == CH_OK ? ch_cluster_new(n, jobs, out) : rc;
}

/* ---- the resolver ---- */

static ch_status slurm_cluster(void *self, ch_cluster **out)
{
    slurm                *o = self;
    step                  s;
    ch_slurm_count        workers;
    const ch_slurm_count *job;
    int                   n;
    ch_status             rc = read_step(o, &s);

    if (rc != CH_OK)
        return rc;
    rc = read_jobs(o, &workers, &n, &job);
    if (rc == CH_OK)
        rc = check_jobs(n, job, &s);
    if (rc == CH_OK)
        rc = make_cluster(o, &s, n, job, out);
    if (rc == CH_OK)
        atomic_store_explicit(&o->was_resolved, true, memory_order_relaxed);
    drop_step(&s);
    return rc;
}

static ch_status slurm_self(void *self, ch_resolver_self *out)
{
    slurm                *o = self;
    ch_slurm_count        workers;
    const ch_slurm_count *job;
    int                   n = 0, own = 0;
    ch_status rc = ch__copy_text("RPC layer", "grpc", out->rpc_layer, sizeof(out->rpc_layer));

    if (rc != CH_OK || !atomic_load_explicit(&o->was_resolved, memory_order_relaxed))
        return rc;
    rc = want_number("SLURM_PROCID", &own);
    if (rc == CH_OK)
        rc = read_jobs(o, &workers, &n, &job);
    for (int i = 0; i < n && rc == CH_OK; own -= job[i++].tasks)
        if (own < job[i].tasks) {
            out->task_id = own;
            return ch__copy_text("job", job[i].name, out->task_type, sizeof(out->task_type));
        }
    return rc;
}

static ch_status slurm_accelerators(void *self, const ch_resolver_self *requested,
                                    const ch_resolver_self *mine, ch_accelerators *out)
{
    (void)requested, (void)mine;
    *out = (ch_accelerators){1, {{"GPU", ((slurm *)self)->gpus_per_task}}};
    return CH_OK;
}

static void slurm_close(void *self)
{
    slurm *o = self;

    ch__arena_drop(&o->arena);
    ch__free(o->job);
    ch__free(o->host);
    ch__free(o);
}

/* `master` is NULL: the address of the requested task, or of this task. */
static const ch_resolver_ops slurm_ops = {"Slurm", slurm_cluster,      slurm_self,
                                          NULL,    slurm_accelerators, slurm_close};

ch_status ch_resolver_slurm_gpus(ch_resolver *r, char *text, size_t size)
{
    slurm    *o = ch__resolver_self_of(r, &slurm_ops);
    ch_text   t = ch__text(text, size);
    step      s;
    ch_status rc;

    if (o == NULL || text == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "GPUs of a task: %s",
                        o == NULL ? "the resolver is not Slurm's" : "text is NULL");
    rc = read_step(o, &s);
    if (rc != CH_OK)
        return rc;
    if (size > 0)
        text[0] = '\0';
    for (int i = 0; i < o->gpus_per_task; i++)
        ch__text_add(&t, "%s%d", i > 0 ? "," : "", s.rank[s.own].k * o->gpus_per_task + i);
    if (t.used >= size)
        rc = ch__fail(CH_OUT_OF_RANGE,
                      "GPUs of a task: %zu bytes are needed, and the buffer has %zu",
                      t.used + 1, size);
    drop_step(&s);
    return rc;
}

/* ---- creation ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const ch_slurm_count *)a)->name, ((const ch_slurm_count *)b)->name);
}

/* Copies a list of jobs or hosts. `label` is "job" or "host", for messages. */
static ch_status copy_counts(slurm *o, const char *label, int n, const ch_slurm_count *from,
                             ch_slurm_count **out)
{
    if (n < 0 || n > CH_CLUSTER_TASKS || (n > 0 && from == NULL))
        return ch__fail(CH_INVALID_ARGUMENT, "Slurm: %d %ss: wrong number, or the list is NULL",
                        n, label);
    *out = ch__calloc((size_t)n + 1, sizeof(**out));
    if (*out == NULL)
        return ch__fail_memory("a resolver");
    for (int i = 0; i < n; i++) {
        if (from[i].name == NULL || from[i].tasks < 0 || from[i].tasks > CH_CLUSTER_TASKS)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "Slurm: %s %d has no name, or a wrong number of tasks (%d)", label,
                            i, from[i].tasks);
        (*out)[i] = (ch_slurm_count){ch__arena_strdup(&o->arena, from[i].name), from[i].tasks};
        if ((*out)[i].name == NULL)
            return ch__fail_memory("a resolver");
    }
    return CH_OK;
}

static ch_status copy_options(slurm *o, const ch_slurm_options *opt)
{
    ch_status rc = copy_counts(o, "job", opt->n_jobs, opt->job, &o->job);

    if (rc == CH_OK)
        rc = copy_counts(o, "host", opt->n_hosts, opt->host, &o->host);
    if (rc != CH_OK)
        return rc;
    o->n_jobs = opt->n_jobs;
    o->n_hosts = opt->n_hosts;
    qsort(o->job, (size_t)o->n_jobs, sizeof(*o->job), by_name);
    o->port_base = opt->port_base != 0 ? opt->port_base : 8888;
    o->tasks_per_node = opt->tasks_per_node;
    if (o->port_base < 1 || o->port_base > 65535)
        return ch__fail(CH_INVALID_ARGUMENT, "Slurm: port_base is %d, want 1 to 65535",
                        opt->port_base);
    if (opt->tasks_per_node < 0 || opt->tasks_per_node > CH_CLUSTER_TASKS)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "Slurm: tasks_per_node is %d, which is out of range",
                        opt->tasks_per_node);
    if (opt->gpus_per_node < CH_OFF || opt->gpus_per_task < CH_OFF ||
        opt->gpus_per_node > CH_CLUSTER_TASKS || opt->gpus_per_task > CH_CLUSTER_TASKS)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "Slurm: gpus_per_node is %d and gpus_per_task is %d; want CH_OFF, or 0 or more",
            opt->gpus_per_node, opt->gpus_per_task);
    return CH_OK;
}

/* Sets the numbers of GPUs per node and per task. max_per_host is the maximum number of tasks
 * on a host. */
static ch_status divide_gpus(slurm *o, const ch_slurm_options *opt, int max_per_host)
{
    ch_status rc = CH_OK;

    if (opt->gpus_per_node > 0)
        o->gpus_per_node = opt->gpus_per_node;
    else if (opt->gpus_per_node == 0)
        rc = ch__count_gpus(&o->gpus_per_node);
    if (rc != CH_OK)
        return rc;
    if (opt->gpus_per_task > 0)
        o->gpus_per_task = opt->gpus_per_task;
    else if (opt->gpus_per_task == 0 && max_per_host > 0)
        o->gpus_per_task = o->gpus_per_node / max_per_host;
    if ((int64_t)max_per_host * o->gpus_per_task > o->gpus_per_node)
        return ch__fail(CH_FAILED_PRECONDITION,
                        "Slurm: Requested more GPUs per node than available: %d tasks of %d, "
                        "and there are %d",
                        max_per_host, o->gpus_per_task, o->gpus_per_node);
    if (o->port_base + max_per_host - 1 > 65535)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "Slurm: ports above 65535 (%d tasks on a host, port_base %d)",
                        max_per_host, o->port_base);
    return CH_OK;
}

/* Reads the step when the resolver is created, so that errors of the environment appear at
 * once. */
static ch_status check_step(slurm *o, const ch_slurm_options *opt)
{
    step                  s;
    ch_slurm_count        workers;
    const ch_slurm_count *job;
    int                   n;
    ch_status             rc = read_step(o, &s);

    if (rc != CH_OK)
        return rc;
    rc = read_jobs(o, &workers, &n, &job);
    if (rc == CH_OK)
        rc = divide_gpus(o, opt, s.max_per_host);
    if (rc == CH_OK)
        rc = check_jobs(n, job, &s);
    drop_step(&s);
    return rc;
}

ch_status ch_resolver_slurm(const ch_slurm_options *opt, ch_resolver **out)
{
    static const ch_slurm_options default_options;
    slurm                        *o;
    ch_status rc = ch__check_not_null("a resolver of Slurm", "out", out, NULL, NULL);

    if (rc != CH_OK)
        return rc;
    if (opt == NULL)
        opt = &default_options;
    o = ch__calloc(1, sizeof(*o));
    if (o == NULL)
        return ch__fail_memory("a resolver");
    rc = copy_options(o, opt);
    if (rc == CH_OK)
        rc = check_step(o, opt);
    if (rc == CH_OK)
        rc = ch_resolver_new(&slurm_ops, o, &opt->mine, out);
    if (rc != CH_OK)
        slurm_close(o);
    return rc;
}

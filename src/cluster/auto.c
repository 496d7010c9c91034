/* cluster/auto.c -- ch_resolver_auto: finds the cluster of this process in its environment.
 *
 * A source is a set of environment variables that describe the cluster: COHORT_CLUSTER,
 * TF_CONFIG, or the variables of a launcher. The table `sources` lists them in order of
 * precedence. The first source that is present and has jobs is used. Every other source that is
 * present is compared with it, by these rules:
 *
 *   1. Two sources that list the whole cluster (COHORT, TF_CONFIG) must have the same cluster
 *      and the same task.
 *   2. Otherwise the numbers of tasks are compared and, if both define a rank, the ranks.
 *   3. A launcher with fewer tasks than the winner is not compared: it started the launcher
 *      that started this process (srun, then mpirun).
 *
 * Each source is a ch_resolver_ops. A view is the cluster and the task that a source describes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "cluster/resolver.h"

/* ---- a cluster from the options ---- */

static ch_status given_cluster(void *self, ch_cluster **out)
{
    *out = ch_cluster_ref(self);
    return CH_OK;
}

/* Leaves *out empty: only the program can set the task. */
static ch_status no_own_task(void *self, ch_resolver_self *out)
{
    (void)self, (void)out;
    return CH_OK;
}

static void drop_cluster(void *self)
{
    ch_cluster_unref(self);
}

static const ch_resolver_ops given_ops = {"options", given_cluster, no_own_task,
                                          NULL,      NULL,          drop_cluster};
static const ch_resolver_ops none_ops = {"none", given_cluster, no_own_task,
                                         NULL,   NULL,          drop_cluster};

/* Makes a resolver with its own reference to the cluster. */
static ch_status make_of_cluster(const ch_resolver_ops *ops, ch_cluster *c,
                                 const ch_resolver_options *mine, ch_resolver **out)
{
    ch_status rc = ch_resolver_new(ops, c, mine, out);

    if (rc == CH_OK)
        ch_cluster_ref(c);
    return rc;
}

/* ---- COHORT_CLUSTER and COHORT_TASK ---- */

/* Parses a task: "worker/1", or "chief" for task 0. */
static ch_status read_task(const char *text, ch_resolver_self *out)
{
    const char *slash = strchr(text, '/');
    size_t      n = slash != NULL ? (size_t)(slash - text) : strlen(text);
    int         id = 0;

    if (n == 0 || n >= sizeof(out->task_type) ||
        (slash != NULL &&
         !ch__parse_number(slash + 1, strlen(slash + 1), CH_CLUSTER_INDEX, &id)))
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "COHORT_TASK=\"%.80s\" is not a task (want job/number, such as worker/1)", text);
    memcpy(out->task_type, text, n);
    out->task_type[n] = '\0';
    out->task_id = id;
    return ch__job_name_check(out->task_type);
}

/* Reads COHORT_CLUSTER and COHORT_TASK. COHORT_CLUSTER is a list of jobs, or JSON in the form
 * of TF_CONFIG, which may also have a task and an RPC layer. */
static ch_status read_cohort(ch_tf_config *out)
{
    const char  *text = ch__env_nonempty("COHORT_CLUSTER");
    const char  *task = ch__env_nonempty("COHORT_TASK");
    ch_tf_config t = {.self.task_id = -1};
    ch_status    rc;

    if (text == NULL)
        return ch__fail(CH_NOT_FOUND, "COHORT_CLUSTER not found in environment");
    if (text[strspn(text, " \t\r\n")] == '{' && strstr(text, "\"cluster\"") != NULL)
        rc = ch__tf_config_parse("COHORT_CLUSTER", text, &t);
    else
        rc = ch_cluster_parse(text, &t.cluster);
    if (rc == CH_OK && task != NULL)
        rc = read_task(task, &t.self);
    if (rc == CH_OK)
        *out = t;
    else
        ch__tf_config_drop(&t);
    return rc;
}

static ch_status cohort_cluster(void *self, ch_cluster **out)
{
    ch_tf_config t;
    ch_status    rc = read_cohort(&t);

    (void)self;
    if (rc == CH_OK)
        *out = t.cluster;
    return rc;
}

static ch_status cohort_self(void *self, ch_resolver_self *out)
{
    ch_tf_config t;
    ch_status    rc = read_cohort(&t);

    (void)self;
    if (rc == CH_OK) {
        *out = t.self;
        ch__tf_config_drop(&t);
    }
    return rc;
}

static void close_nothing(void *self)
{
    (void)self;
}

static const ch_resolver_ops cohort_ops = {"COHORT", cohort_cluster, cohort_self,
                                           NULL,     NULL,           close_nothing};

/* ---- launchers that set a rank and a size ---- */

typedef struct launcher {
    ch_resolver_ops ops;
    const char     *rank, *size; /* names of environment variables */
    const char     *host, *port; /* variables with the address of task 0; NULL: none */
} launcher;

/* Reads an environment variable as a number of at least `least`. `by` is the launcher, for
 * messages. */
static ch_status read_number(const char *by, const char *name, int least, int *out)
{
    const char *text = ch__env_nonempty(name);

    if (text == NULL)
        return ch__fail(CH_NOT_FOUND, "%s: %s not found in environment", by, name);
    if (!ch__parse_number(text, strlen(text), CH_CLUSTER_TASKS + 1, out) || *out < least)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: %s=\"%.40s\" is not a number from %d to %d",
                        by, name, text, least, CH_CLUSTER_TASKS);
    return CH_OK;
}

/* Returns the address of task 0, or "" if the launcher does not set it. */
static const char *first_address(const launcher *l, char text[CH_ADDRESS_BYTES])
{
    const char *host = l->host != NULL ? ch__env_nonempty(l->host) : NULL;
    const char *port = l->port != NULL ? ch__env_nonempty(l->port) : NULL;

    if (host == NULL || port == NULL)
        return "";
    return snprintf(text, CH_ADDRESS_BYTES, strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s",
                    host, port) < CH_ADDRESS_BYTES
               ? text
               : "";
}

/* Makes a cluster of workers. Only worker 0 has an address. */
static ch_status launcher_cluster(void *self, ch_cluster **out)
{
    const launcher *l = self;
    char            text[CH_ADDRESS_BYTES];
    const char    **address;
    int             n;
    ch_status       rc = read_number(l->ops.name, l->size, 1, &n);

    if (rc != CH_OK)
        return rc;
    address = ch__calloc((size_t)n, sizeof(*address));
    if (address == NULL)
        return ch__fail_memory("a cluster");
    for (int i = 0; i < n; i++)
        address[i] = i == 0 ? first_address(l, text) : "";
    rc = ch_cluster_new(1, &(ch_cluster_job){"worker", n, address, NULL}, out);
    ch__free(address);
    return rc;
}

static ch_status launcher_self(void *self, ch_resolver_self *out)
{
    const launcher *l = self;
    int             n;
    ch_status       rc = read_number(l->ops.name, l->rank, 0, &out->task_id);

    if (rc == CH_OK)
        rc = read_number(l->ops.name, l->size, 1, &n);
    if (rc == CH_OK && out->task_id >= n)
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s: %s is %d, and there are %d tasks", l->ops.name,
                      l->rank, out->task_id, n);
    return rc == CH_OK ? ch__copy_text("job", "worker", out->task_type, sizeof(out->task_type))
                       : rc;
}

#define LAUNCHER(name)                                                                         \
    {                                                                                          \
        name, launcher_cluster, launcher_self, NULL, NULL, close_nothing                       \
    }
static launcher torchrun = {LAUNCHER("torchrun"), "RANK", "WORLD_SIZE", "MASTER_ADDR",
                            "MASTER_PORT"};
static launcher open_mpi = {LAUNCHER("Open MPI"), "OMPI_COMM_WORLD_RANK",
                            "OMPI_COMM_WORLD_SIZE", NULL, NULL};
static launcher pmi = {LAUNCHER("PMI"), "PMI_RANK", "PMI_SIZE", NULL, NULL};

/* ---- the sources ---- */

typedef struct source {
    const char *name;
    /* The source is present if all of these variables are set. For a launcher: rank and
     * size. */
    const char *variable[2];
    launcher   *launcher; /* NULL: the source has its own resolver function */
    bool        is_whole; /* true: it lists every task with its address */
} source;

static const source sources[] = {
    {"COHORT", {"COHORT_CLUSTER", NULL}, NULL, true},
    {"TF_CONFIG", {"TF_CONFIG", NULL}, NULL, true},
    {"torchrun", {"RANK", "WORLD_SIZE"}, &torchrun, false},
    {"Open MPI", {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, &open_mpi, false},
    {"PMI", {"PMI_RANK", "PMI_SIZE"}, &pmi, false},
    {"Slurm", {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}, NULL, false},
};
enum { N_SOURCES = sizeof(sources) / sizeof(sources[0]) };

static bool is_present(const source *s)
{
    return ch__env_nonempty(s->variable[0]) != NULL &&
           (s->variable[1] == NULL || ch__env_nonempty(s->variable[1]) != NULL);
}

const char *ch__launcher(int *rank, int *copies)
{
    for (int i = 0; i < N_SOURCES; i++) {
        const source *s = &sources[i];
        const char   *rank_text, *size_text;

        if (s->is_whole || !is_present(s))
            continue;
        rank_text = ch__env_nonempty(s->variable[0]);
        size_text = ch__env_nonempty(s->variable[1]);
        if (ch__parse_number(rank_text, strlen(rank_text), CH_CLUSTER_TASKS, rank) &&
            ch__parse_number(size_text, strlen(size_text), CH_CLUSTER_TASKS + 1, copies) &&
            *copies > 1)
            return s->name;
    }
    return NULL;
}

static ch_status make_slurm(const ch_auto_options *opt, const ch_resolver_options *mine,
                            ch_resolver **out)
{
    ch_slurm_options slurm = {.gpus_per_node = CH_OFF};
    ch_cluster      *c = NULL;
    ch_resolver     *r = NULL;
    ch_status        rc;

    if (opt->slurm != NULL)
        slurm = *opt->slurm;
    if (mine != NULL)
        slurm.mine = *mine;
    rc = ch_resolver_slurm(&slurm, &r);
    if (rc == CH_OK)
        rc = ch_resolver_cluster(r, &c); /* after this call the resolver has its own task */
    ch_cluster_unref(c);
    if (rc == CH_OK)
        *out = r;
    else
        ch_resolver_unref(r);
    return rc;
}

/* Makes the resolver of a source. `mine` may be NULL. */
static ch_status make_source(const source *s, const ch_auto_options *opt,
                             const ch_resolver_options *mine, ch_resolver **out)
{
    if (s->launcher != NULL)
        return ch_resolver_new(&s->launcher->ops, s->launcher, mine, out);
    if (strcmp(s->name, "COHORT") == 0)
        return ch_resolver_new(&cohort_ops, NULL, mine, out);
    if (strcmp(s->name, "TF_CONFIG") == 0)
        return ch_resolver_tf_config(mine, out);
    return make_slurm(opt, mine, out);
}

/* ---- comparison of sources ---- */

/* The contents of a source, without the program's options. */
typedef struct view {
    const source    *source;
    ch_cluster      *cluster;
    ch_resolver_self self;
} view;

static void drop_view(view *v)
{
    ch_cluster_unref(v->cluster);
    v->cluster = NULL;
}

/* Reads a source into *out. The caller must call drop_view. */
static ch_status read_source(const source *s, const ch_auto_options *opt, view *out)
{
    ch_resolver *r = NULL;
    view         v = {.source = s};
    ch_status    rc = make_source(s, opt, NULL, &r);

    if (rc == CH_OK)
        rc = ch_resolver_cluster(r, &v.cluster);
    if (rc == CH_OK)
        rc = ch__resolver_own_task(r, &v.self);
    ch_resolver_unref(r);
    if (rc == CH_OK)
        *out = v;
    else
        drop_view(&v);
    return rc;
}

static bool has_task(const view *v)
{
    return v->self.task_type[0] != '\0' && v->self.task_id >= 0;
}

/* Returns true if both views have the same task, or if either has none. */
static bool is_same_task(const view *a, const view *b)
{
    return !has_task(a) || !has_task(b) ||
           (strcmp(a->self.task_type, b->self.task_type) == 0 &&
            a->self.task_id == b->self.task_id);
}

/* Returns the number of processes of the job, or -1 if a job lists only some of its tasks.
 * Counts an evaluator that is this task and is not in the cluster. */
static int size_of(const view *v)
{
    bool unlisted = strcmp(v->self.task_type, "evaluator") == 0 &&
                    !ch_cluster_has_job(v->cluster, "evaluator");

    for (int i = 0; i < v->cluster->n_jobs; i++)
        if (v->cluster->job[i].n > 0 && !v->cluster->job[i].is_dense)
            return -1;
    return ch__cluster_size(v->cluster) + unlisted;
}

/* Returns the rank of this task: chief first, then workers. Returns -1 if there are other jobs,
 * because then launchers may number the tasks differently. */
static int rank_of(const view *v)
{
    int chiefs = ch__cluster_count(v->cluster, "chief");

    if (!has_task(v) || chiefs + ch__cluster_count(v->cluster, "worker") != size_of(v))
        return -1;
    return strcmp(v->self.task_type, "chief") == 0 ? v->self.task_id : v->self.task_id + chiefs;
}

static ch_status fail_disagree(const view *a, const view *b, const char *text)
{
    return ch__fail(CH_FAILED_PRECONDITION,
                    "which cluster is this? %s and %s disagree: %s; unset the variables of one "
                    "of them, or choose a source in the options (ch_auto_options.from)",
                    a->source->name, b->source->name, text);
}

/* Returns FAILED_PRECONDITION unless both views have the same cluster and the same task. */
static ch_status compare_whole(const view *a, const view *b)
{
    char text[512], x[200], y[200];

    if (!ch_cluster_is_equal(a->cluster, b->cluster)) {
        ch_cluster_print(a->cluster, x, sizeof(x));
        ch_cluster_print(b->cluster, y, sizeof(y));
        snprintf(text, sizeof(text), "%s and %s", x, y);
        return fail_disagree(a, b, text);
    }
    if (!is_same_task(a, b)) {
        snprintf(text, sizeof(text), "this is %s/%d, and %s/%d", a->self.task_type,
                 a->self.task_id, b->self.task_type, b->self.task_id);
        return fail_disagree(a, b, text);
    }
    return CH_OK;
}

/* Compares the winner `a` with another source `b` by the rules at the top of the file. */
static ch_status compare(const view *a, const view *b)
{
    char text[200];
    int  n = size_of(a), m = size_of(b), i = rank_of(a), k = rank_of(b);

    if (a->source->is_whole && b->source->is_whole)
        return compare_whole(a, b);
    if (n < 0 || m < 0 || m < n)
        return CH_OK;
    snprintf(text, sizeof(text), "%d tasks, and %d tasks", n, m);
    if (n != m)
        return fail_disagree(a, b, text);
    snprintf(text, sizeof(text), "this is task %d of %d, and task %d", i, n, k);
    return i >= 0 && k >= 0 && i != k ? fail_disagree(a, b, text) : CH_OK;
}

/* Returns true if the source has a cluster. An empty TF_CONFIG, {}, has none. */
static bool has_jobs(const view *v)
{
    return v->cluster->n_jobs > 0;
}

/* Stores the first source that is present in *out, or NULL if there is none. Returns an error
 * if another source disagrees. If opt->from is set, only that source is considered. */
static ch_status choose(const ch_auto_options *opt, const source **out)
{
    view      winner = {0};
    ch_status rc = CH_OK;

    for (int i = 0; i < N_SOURCES && rc == CH_OK; i++) {
        view v = {0};

        if (!is_present(&sources[i]) ||
            (opt->from != NULL && strcmp(opt->from, sources[i].name) != 0))
            continue;
        rc = read_source(&sources[i], opt, &v);
        if (rc == CH_OK && winner.cluster == NULL && has_jobs(&v)) {
            winner = v;
            continue;
        }
        if (rc == CH_OK && winner.cluster != NULL && has_jobs(&v))
            rc = compare(&winner, &v);
        drop_view(&v);
    }
    *out = winner.source;
    drop_view(&winner);
    return rc;
}

/* ---- creation ---- */

/* Returns an error if opt->from is not the name of a source, or if its variables are not
 * set. */
static ch_status check_from(const char *from, const source *winner)
{
    for (int i = 0; i < N_SOURCES; i++)
        if (from == NULL || strcmp(from, sources[i].name) == 0)
            return from == NULL || winner != NULL
                       ? CH_OK
                       : ch__fail(CH_NOT_FOUND,
                                  "%s: its variables (%s) not found in environment", from,
                                  sources[i].variable[0]);
    return ch__fail(CH_INVALID_ARGUMENT,
                    "no source \"%.40s\"; there are COHORT, TF_CONFIG, torchrun, Open MPI, PMI "
                    "and Slurm",
                    from);
}

/* Logs the cluster and this task. */
static void log_cluster(ch_resolver *r)
{
    char             jobs[256], task[CH_JOB_BYTES + 32] = "";
    ch_cluster      *c = NULL;
    ch_resolver_self mine;

    if (!ch__log_is_enabled(CH_LOG_INFO) || ch_resolver_cluster(r, &c) != CH_OK)
        return;
    ch__cluster_describe(c, jobs, sizeof(jobs));
    if (ch__resolver_own_task(r, &mine) == CH_OK && mine.task_type[0] != '\0')
        snprintf(task, sizeof(task), "; this is %s/%d", mine.task_type, mine.task_id);
    if (c->n_jobs == 0)
        ch__log(CH_LOG_INFO, "cluster", "no cluster: this process is alone");
    else
        ch__log(CH_LOG_INFO, "cluster", "cluster from %s: %s%s", ch_resolver_name(r), jobs,
                task);
    ch_cluster_unref(c);
}

/* Sets the task in *mine from COHORT_TASK if the cluster comes from elsewhere. Returns an error
 * if the source has another task. `task` is the storage of the name. */
static ch_status add_task(const source *winner, const ch_auto_options *opt,
                          ch_resolver_options *mine, ch_resolver_self *task)
{
    const char *text = ch__env_nonempty("COHORT_TASK");
    view        v = {0};
    ch_status   rc;

    if (text == NULL || mine->task_type != NULL || mine->has_task_id || opt->from != NULL ||
        (winner != NULL && strcmp(winner->name, "COHORT") == 0))
        return CH_OK;
    if (winner == NULL && opt->cluster == NULL)
        return ch__fail(
            CH_FAILED_PRECONDITION,
            "COHORT_TASK=\"%.80s\" is set without a cluster: set COHORT_CLUSTER too", text);
    rc = read_task(text, task);
    if (rc == CH_OK && winner != NULL)
        rc = read_source(winner, opt, &v);
    if (rc == CH_OK && winner != NULL && !is_same_task(&v, &(view){.self = *task}))
        rc = ch__fail(CH_FAILED_PRECONDITION,
                      "which task is this? COHORT_TASK and %s disagree: %s/%d, and %s/%d",
                      winner->name, task->task_type, task->task_id, v.self.task_type,
                      v.self.task_id);
    drop_view(&v);
    if (rc == CH_OK) {
        mine->task_type = task->task_type;
        mine->has_task_id = true;
        mine->task_id = task->task_id;
    }
    return rc;
}

static ch_status make_none(const ch_resolver_options *mine, ch_resolver **out)
{
    ch_cluster *c = NULL;
    ch_status   rc = ch_cluster_new(0, NULL, &c);

    if (rc == CH_OK)
        rc = make_of_cluster(&none_ops, c, mine, out);
    ch_cluster_unref(c);
    return rc;
}

ch_status ch_resolver_auto(const ch_auto_options *opt, ch_resolver **out)
{
    static const ch_auto_options default_options;
    const source                *winner = NULL;
    ch_resolver_options          mine;
    ch_resolver_self             task;
    ch_resolver                 *r = NULL;
    ch_status rc = ch__check_not_null("finding the cluster", "out", out, NULL, NULL);

    if (rc != CH_OK)
        return rc;
    opt = opt != NULL ? opt : &default_options;
    mine = opt->mine;
    if (opt->cluster == NULL)
        rc = choose(opt, &winner);
    if (rc == CH_OK && opt->cluster == NULL)
        rc = check_from(opt->from, winner);
    if (rc == CH_OK)
        rc = add_task(winner, opt, &mine, &task);
    if (rc == CH_OK)
        rc = opt->cluster != NULL ? make_of_cluster(&given_ops, opt->cluster, &mine, &r)
             : winner != NULL     ? make_source(winner, opt, &mine, &r)
                                  : make_none(&mine, &r);
    if (rc != CH_OK)
        return rc;
    log_cluster(r);
    *out = r;
    return CH_OK;
}

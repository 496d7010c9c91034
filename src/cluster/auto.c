/* cluster/auto.c -- which cluster am I in?
 *
 * A source is a row: what it is called, which variable says that it is there, how a resolver of it is made, and how much it
 * knows. The first that is there wins. All others that are there are compared with it:
 *
 *   1. Two that know the whole cluster (COHORT, TF_CONFIG) say the same cluster and the same task.
 *   2. Else what is compared is how many tasks there are, and, where ranks follow from it, which one this is.
 *   3. A launcher with fewer tasks than the winner started those who started these, and is not compared.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "cluster/resolver.h"

/* ---- what the program says ---- */

static ch_status given_cluster(void *self, ch_cluster **out)
{
    *out = ch_cluster_ref(self);
    return CH_OK;
}

static ch_status says_nothing(void *self, ch_resolver_self *out)
{
    (void)self, (void)out;
    return CH_OK;
}

static void drop_cluster(void *self)
{
    ch_cluster_unref(self);
}

static const ch_resolver_ops given_ops = {"options", given_cluster, says_nothing,
                                          NULL,      NULL,          drop_cluster};
static const ch_resolver_ops none_ops = {"none", given_cluster, says_nothing,
                                         NULL,   NULL,          drop_cluster};

/* Keeps the cluster. */
static ch_status make_of_cluster(const ch_resolver_ops *ops, ch_cluster *c,
                                 const ch_resolver_options *mine, ch_resolver **out)
{
    ch_status rc = ch_resolver_new(ops, c, mine, out);

    if (rc == CH_OK)
        ch_cluster_ref(c);
    return rc;
}

/* ---- COHORT_CLUSTER and COHORT_TASK ---- */

/* "worker/1", or "chief" for task 0. */
static ch_status read_task(const char *text, ch_resolver_self *out)
{
    const char *slash = strchr(text, '/');
    size_t      n = slash != NULL ? (size_t)(slash - text) : strlen(text);
    int         id = 0;

    if (n == 0 || n >= sizeof(out->task_type) ||
        (slash != NULL &&
         !ch__parse_number(slash + 1, strlen(slash + 1), CH_CLUSTER_INDEX, &id)))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "COHORT_TASK=\"%.80s\" does not say a task, as worker/1 does", text);
    memcpy(out->task_type, text, n);
    out->task_type[n] = '\0';
    out->task_id = id;
    return ch__job_name_check(out->task_type);
}

/* Jobs by themselves, or TF_CONFIG's text with a task and an RPC layer. */
static ch_status read_cohort(ch_tf_config *out)
{
    const char  *text = ch__variable_said("COHORT_CLUSTER");
    const char  *task = ch__variable_said("COHORT_TASK");
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

static void nothing(void *self)
{
    (void)self;
}

static const ch_resolver_ops cohort_ops = {"COHORT", cohort_cluster, cohort_self,
                                           NULL,     NULL,           nothing};

/* ---- launchers that say a rank and how many there are ---- */

typedef struct launcher {
    ch_resolver_ops ops;
    const char     *rank, *size; /* variables */
    const char     *host, *port; /* of task 0; NULL: nobody says */
} launcher;

static ch_status read_number(const char *by, const char *name, int least, int *out)
{
    const char *text = ch__variable_said(name);

    if (text == NULL)
        return ch__fail(CH_NOT_FOUND, "%s: %s not found in environment", by, name);
    if (!ch__parse_number(text, strlen(text), CH_CLUSTER_TASKS + 1, out) || *out < least)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: %s=\"%.40s\" is not a number from %d to %d",
                        by, name, text, least, CH_CLUSTER_TASKS);
    return CH_OK;
}

static const char *first_address(const launcher *l, char text[CH_ADDRESS_BYTES])
{
    const char *host = l->host != NULL ? ch__variable_said(l->host) : NULL;
    const char *port = l->port != NULL ? ch__variable_said(l->port) : NULL;

    if (host == NULL || port == NULL)
        return "";
    return snprintf(text, CH_ADDRESS_BYTES, strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s",
                    host, port) < CH_ADDRESS_BYTES
               ? text
               : "";
}

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
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s: %s is %d, and there are %d", l->ops.name,
                      l->rank, out->task_id, n);
    return rc == CH_OK ? ch__take_text("job", "worker", out->task_type, sizeof(out->task_type))
                       : rc;
}

#define LAUNCHER(name)                                                                         \
    {                                                                                          \
        name, launcher_cluster, launcher_self, NULL, NULL, nothing                             \
    }
static launcher torchrun = {LAUNCHER("torchrun"), "RANK", "WORLD_SIZE", "MASTER_ADDR",
                            "MASTER_PORT"};
static launcher open_mpi = {LAUNCHER("Open MPI"), "OMPI_COMM_WORLD_RANK",
                            "OMPI_COMM_WORLD_SIZE", NULL, NULL};
static launcher pmi = {LAUNCHER("PMI"), "PMI_RANK", "PMI_SIZE", NULL, NULL};

/* ---- the sources ---- */

typedef struct source {
    const char *name;
    const char *variable[2]; /* it is there if all of these are; of a launcher: rank, size */
    launcher   *launcher;    /* NULL: it has a call of its own, below */
    bool        is_whole;    /* it knows every task and its address */
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

static bool is_there(const source *s)
{
    return ch__variable_said(s->variable[0]) != NULL &&
           (s->variable[1] == NULL || ch__variable_said(s->variable[1]) != NULL);
}

const char *ch__launcher(int *rank, int *copies)
{
    for (int i = 0; i < N_SOURCES; i++) {
        const source *s = &sources[i];
        const char   *own, *all;

        if (s->is_whole || !is_there(s))
            continue;
        own = ch__variable_said(s->variable[0]);
        all = ch__variable_said(s->variable[1]);
        if (ch__parse_number(own, strlen(own), CH_CLUSTER_TASKS, rank) &&
            ch__parse_number(all, strlen(all), CH_CLUSTER_TASKS + 1, copies) && *copies > 1)
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
        rc = ch_resolver_cluster(r, &c); /* from now on it knows which task this is */
    ch_cluster_unref(c);
    if (rc == CH_OK)
        *out = r;
    else
        ch_resolver_unref(r);
    return rc;
}

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

/* ---- comparing two ---- */

/* What a source says by itself, without the program's options. */
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

static ch_status look(const source *s, const ch_auto_options *opt, view *out)
{
    ch_resolver *r = NULL;
    view         v = {.source = s};
    ch_status    rc = make_source(s, opt, NULL, &r);

    if (rc == CH_OK)
        rc = ch_resolver_cluster(r, &v.cluster);
    if (rc == CH_OK)
        rc = ch__resolver_mine(r, &v.self);
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

static bool is_same_task(const view *a, const view *b)
{
    return !has_task(a) || !has_task(b) ||
           (strcmp(a->self.task_type, b->self.task_type) == 0 &&
            a->self.task_id == b->self.task_id);
}

/* How many processes the job has; -1: it does not say. */
static int size_of(const view *v)
{
    bool unlisted = strcmp(v->self.task_type, "evaluator") == 0 &&
                    !ch_cluster_has_job(v->cluster, "evaluator");

    for (int i = 0; i < v->cluster->n_jobs; i++)
        if (v->cluster->job[i].n > 0 && !v->cluster->job[i].is_dense)
            return -1;
    return ch__cluster_size(v->cluster) + unlisted;
}

/* Which of them this is, where that is the same for all who would number them; else -1. */
static int rank_of(const view *v)
{
    int chiefs = ch__cluster_count(v->cluster, "chief");

    if (!has_task(v) || chiefs + ch__cluster_count(v->cluster, "worker") != size_of(v))
        return -1;
    return strcmp(v->self.task_type, "chief") == 0 ? v->self.task_id : v->self.task_id + chiefs;
}

static ch_status disagree(const view *a, const view *b, const char *text)
{
    return ch__fail(CH_FAILED_PRECONDITION,
                    "which cluster is this? %s and %s disagree: %s; unset the variables of one "
                    "of them, or say in the options which counts",
                    a->source->name, b->source->name, text);
}

static ch_status compare_whole(const view *a, const view *b)
{
    char text[512], x[200], y[200];

    if (!ch_cluster_is_equal(a->cluster, b->cluster)) {
        ch_cluster_print(a->cluster, x, sizeof(x));
        ch_cluster_print(b->cluster, y, sizeof(y));
        snprintf(text, sizeof(text), "%s and %s", x, y);
        return disagree(a, b, text);
    }
    if (!is_same_task(a, b)) {
        snprintf(text, sizeof(text), "this is %s/%d, and %s/%d", a->self.task_type,
                 a->self.task_id, b->self.task_type, b->self.task_id);
        return disagree(a, b, text);
    }
    return CH_OK;
}

static ch_status compare(const view *a, const view *b)
{
    char text[200];
    int  n = size_of(a), m = size_of(b), i = rank_of(a), k = rank_of(b);

    if (a->source->is_whole && b->source->is_whole)
        return compare_whole(a, b);
    if (n < 0 || m < 0 || m < n)
        return CH_OK;
    snprintf(text, sizeof(text), "there are %d tasks, and %d", n, m);
    if (n != m)
        return disagree(a, b, text);
    snprintf(text, sizeof(text), "this is task %d of %d, and task %d", i, n, k);
    return i >= 0 && k >= 0 && i != k ? disagree(a, b, text) : CH_OK;
}

/* An empty TF_CONFIG, {}, says nothing of a cluster. */
static bool says_something(const view *v)
{
    return v->cluster->n_jobs > 0;
}

/* The first source that is there; NULL: none. */
static ch_status choose(const ch_auto_options *opt, const source **out)
{
    view      won = {0};
    ch_status rc = CH_OK;

    for (int i = 0; i < N_SOURCES && rc == CH_OK; i++) {
        view v = {0};

        if (!is_there(&sources[i]) ||
            (opt->from != NULL && strcmp(opt->from, sources[i].name) != 0))
            continue;
        rc = look(&sources[i], opt, &v);
        if (rc == CH_OK && won.cluster == NULL && says_something(&v)) {
            won = v;
            continue;
        }
        if (rc == CH_OK && won.cluster != NULL && says_something(&v))
            rc = compare(&won, &v);
        drop_view(&v);
    }
    *out = won.source;
    drop_view(&won);
    return rc;
}

/* ---- making it ---- */

static ch_status check_from(const char *from, const source *won)
{
    for (int i = 0; i < N_SOURCES; i++)
        if (from == NULL || strcmp(from, sources[i].name) == 0)
            return from == NULL || won != NULL
                       ? CH_OK
                       : ch__fail(CH_NOT_FOUND,
                                  "%s: its variables (%s) not found in environment", from,
                                  sources[i].variable[0]);
    return ch__fail(CH_INVALID_ARGUMENT,
                    "no source \"%.40s\"; there are COHORT, TF_CONFIG, torchrun, Open MPI, PMI "
                    "and Slurm",
                    from);
}

static void tell(ch_resolver *r)
{
    char             jobs[256], task[CH_JOB_BYTES + 32] = "";
    ch_cluster      *c = NULL;
    ch_resolver_self mine;

    if (!ch__log_wants(CH_LOG_INFO) || ch_resolver_cluster(r, &c) != CH_OK)
        return;
    ch__cluster_describe(c, jobs, sizeof(jobs));
    if (ch__resolver_mine(r, &mine) == CH_OK && mine.task_type[0] != '\0')
        snprintf(task, sizeof(task), "; this is %s/%d", mine.task_type, mine.task_id);
    if (c->n_jobs == 0)
        ch__log(CH_LOG_INFO, "cluster", "no cluster: this process is alone");
    else
        ch__log(CH_LOG_INFO, "cluster", "cluster from %s: %s%s", ch_resolver_name(r), jobs,
                task);
    ch_cluster_unref(c);
}

/* COHORT_TASK by itself says which task of a cluster that somebody else knows this is. */
static ch_status add_task(const source *won, const ch_auto_options *opt,
                          ch_resolver_options *mine, ch_resolver_self *task)
{
    const char *text = ch__variable_said("COHORT_TASK");
    view        v = {0};
    ch_status   rc;

    if (text == NULL || mine->task_type != NULL || mine->has_task_id || opt->from != NULL ||
        (won != NULL && strcmp(won->name, "COHORT") == 0))
        return CH_OK;
    if (won == NULL && opt->cluster == NULL)
        return ch__fail(CH_FAILED_PRECONDITION,
                        "COHORT_TASK=\"%.80s\" is a task of no cluster: set COHORT_CLUSTER too",
                        text);
    rc = read_task(text, task);
    if (rc == CH_OK && won != NULL)
        rc = look(won, opt, &v);
    if (rc == CH_OK && won != NULL && !is_same_task(&v, &(view){.self = *task}))
        rc = ch__fail(CH_FAILED_PRECONDITION,
                      "which task is this? COHORT_TASK and %s disagree: %s/%d, and %s/%d",
                      won->name, task->task_type, task->task_id, v.self.task_type,
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
    static const ch_auto_options usual;
    const source                *won = NULL;
    ch_resolver_options          mine;
    ch_resolver_self             task;
    ch_resolver                 *r = NULL;
    ch_status rc = ch__want_given("finding the cluster", "out", out, NULL, NULL);

    if (rc != CH_OK)
        return rc;
    opt = opt != NULL ? opt : &usual;
    mine = opt->mine;
    if (opt->cluster == NULL)
        rc = choose(opt, &won);
    if (rc == CH_OK && opt->cluster == NULL)
        rc = check_from(opt->from, won);
    if (rc == CH_OK)
        rc = add_task(won, opt, &mine, &task);
    if (rc == CH_OK)
        rc = opt->cluster != NULL ? make_of_cluster(&given_ops, opt->cluster, &mine, &r)
             : won != NULL        ? make_source(won, opt, &mine, &r)
                                  : make_none(&mine, &r);
    if (rc != CH_OK)
        return rc;
    tell(r);
    *out = r;
    return CH_OK;
}

/* strategy/parameter_server.c -- the parameter-server strategy: creation and connection.
 *
 * Creates a ch_ps and its ch_strategy, and replaces the storage of variables and the execution
 * of steps by those for parameter servers. The strategy starts the coordinator task, and kills
 * it when the strategy is freed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "strategy/parameter_server.h"

#include "base/fault.h"
#include "base/mem.h"
#include "tensor/device.h"

/* ---- ch_strategy_ops ---- */

static ch_device *const *devices(void *self)
{
    return ((ch_ps *)self)->device;
}

/* Kills the coordinator task and frees the ch_ps, which may be incomplete. */
static void free_ps(ch_ps *ps)
{
    if (ps->coord != NULL)
        ch__task_kill(ps->coord);
    ch__ps_functions_drop(ps);
    ch_resolver_unref(ps->cluster);
    ch__free(ps->server_device);
    ch__free(ps->bytes);
    ch__free(ps);
}

static void close_strategy(void *self)
{
    free_ps(self);
}

static const ch_strategy_ops ops = {"ParameterServer", devices, ch__ps_placement,
                                    close_strategy};

ch_ps *ch__ps_of(const ch_strategy *st)
{
    return st->ops == &ops ? st->self : NULL;
}

/* ---- creating the strategy ---- */

/* Stores the number of tasks of a job; 0 if the cluster does not have the job. */
static ch_status count(const ch_cluster *c, const char *job, int *out)
{
    *out = 0;
    return ch_cluster_has_job(c, job) ? ch_cluster_num_tasks(c, job, out) : CH_OK;
}

/* Checks the cluster, and this task in it, in the order of PS-1 and PS-2. */
static ch_status check_cluster(ch_resolver *r, int *n_servers)
{
    ch_cluster *c = NULL;
    char        type[CH_JOB_BYTES];
    int         id = -1, n_workers = 0;
    ch_status   rc = ch_resolver_cluster(r, &c);

    if (rc == CH_OK && ch_cluster_jobs(c) == 0)
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "cluster spec must be non-empty: the %s resolver gives one without jobs; "
                      "set COHORT_CLUSTER or TF_CONFIG, or start a cluster in this process "
                      "(ch_cluster_local)",
                      ch_resolver_name(r));
    if (rc == CH_OK)
        rc = ch_resolver_task_type(r, type, sizeof(type));
    if (rc == CH_OK)
        rc = ch_resolver_task_id(r, &id);
    if (rc == CH_OK)
        rc = ch_cluster_check(c, type[0] != '\0' ? type : NULL, id);
    if (rc == CH_OK)
        rc = count(c, "ps", n_servers);
    if (rc == CH_OK && *n_servers == 0)
        rc = ch__fail(CH_INVALID_ARGUMENT, "the cluster must have at least one ps");
    if (rc == CH_OK)
        rc = count(c, "worker", &n_workers);
    if (rc == CH_OK && n_workers == 0)
        rc = ch__fail(CH_INVALID_ARGUMENT, "the cluster must have at least one worker");
    ch_cluster_unref(c);
    return rc;
}

/* Creates the devices that stand for the servers, for the devices of worker 0, and for the
 * coordinator. */
static ch_status find_devices(ch_ps *ps)
{
    ch_status rc = CH_OK;

    ps->server_device = ch__calloc((size_t)ps->n_servers, sizeof(ch_device *));
    ps->bytes = ch__calloc((size_t)ps->n_servers, sizeof(int64_t));
    if (ps->server_device == NULL || ps->bytes == NULL)
        return ch__fail_memory("a strategy");
    for (int i = 0; i < ps->n_servers && rc == CH_OK; i++)
        rc = ch__device_of_task("ps", i, 0, &ps->server_device[i]);
    ps->n_devices = ch__local_cluster_devices(ps->local);
    for (int i = 0; i < ps->n_devices && rc == CH_OK; i++)
        rc = ch__device_of_task("worker", 0, i, &ps->device[i]);
    if (rc == CH_OK)
        rc = ch__device_of_task("chief", 0, 0, &ps->own_device);
    return rc;
}

/* Starts the coordinator task. Blocks until every server and at least one worker have
 * replied. */
static ch_status connect(ch_ps *ps)
{
    ch_status rc;

    ps->local = ch__local_cluster_of(ps->cluster);
    if (ps->local == NULL)
        return ch__fail(
            CH_UNIMPLEMENTED,
            "the tasks of this cluster (%s) are other processes, and no network engine "
            "is built in; ch_cluster_local makes a cluster in this process",
            ch_resolver_name(ps->cluster));
    rc = find_devices(ps);
    if (rc == CH_OK)
        rc = ch__local_cluster_start_coordinator(ps->local, &ps->coord);
    return rc == CH_OK ? ch__coord_connect(ps->coord) : rc;
}

static ch_status make(ch_resolver *cluster, const ch_parameter_server_options *opt,
                      ch_strategy **out)
{
    ch_ps       *ps = ch__calloc(1, sizeof(*ps));
    ch_strategy *st = NULL;
    ch_status    rc;

    if (ps == NULL)
        return ch__fail_memory("a strategy");
    ps->cluster = ch_resolver_ref(cluster);
    ps->partitioner = opt->partitioner;
    ps->placement = opt->placement;
    rc = check_cluster(cluster, &ps->n_servers);
    if (rc == CH_OK)
        rc = connect(ps);
    if (rc == CH_OK)
        rc = ch_strategy_new(
            &ops, ps,
            &(ch_strategy_parts){.n_replicas = ps->n_devices,
                                 .n_parameter = ps->n_servers,
                                 .parameter = ps->server_device,
                                 .traits = &(ch_strategy_traits){.is_multi_worker = true,
                                                                 .should_init = true,
                                                                 .should_checkpoint = true,
                                                                 .should_save_summary = true},
                                 .resolver = cluster},
            &st);
    if (rc != CH_OK) {
        free_ps(ps);
        return rc;
    }
    ps->strategy = st;
    st->var_ops = &ch__ps_var_ops;
    st->exec = &ch__ps_exec;
    *out = st;
    return CH_OK;
}

ch_status ch_strategy_parameter_server(ch_resolver                       *cluster,
                                       const ch_parameter_server_options *opt,
                                       ch_strategy                      **out)
{
    static const ch_parameter_server_options usual;
    ch_status                                rc =
        ch__check_not_null("parameter-server strategy", "the cluster", cluster, "out", out);

    if (rc != CH_OK)
        return rc;
    if (opt != NULL && (unsigned)opt->placement > CH_PLACE_BY_BYTES)
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "placement is %d, want CH_PLACE_ROUND_ROBIN or CH_PLACE_BY_BYTES",
                      (int)opt->placement);
    if (rc == CH_OK)
        rc = make(cluster, opt != NULL ? opt : &usual, out);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "parameter-server strategy");
}

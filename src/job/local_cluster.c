/* job/local_cluster.c -- a cluster in this process: its tasks, and the resolver for them.
 *
 * ch_local_cluster owns the network engine, and through it all tasks: servers "ps/<i>", workers
 * "worker/<i>" and the coordinator "chief/0". It is the state of a resolver (local_ops).
 * References to the cluster are references to that resolver, and closing the resolver frees the
 * cluster. The parameter-server strategy finds the cluster through its resolver
 * (ch__local_cluster_of) and starts the coordinator.
 *
 * Invariant: a cluster serves a single strategy. `coord` is set once and never cleared.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/local_cluster.h"

#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "cluster/resolver.h"
#include "job/message.h"
#include "job/server.h"
#include "job/worker.h"
#include "tensor/device.h"

struct ch_local_cluster {
    ch_resolver *resolver; /* holds the references to the cluster and owns this struct */
    ch_net      *net;
    int          n_ps, n_workers, n_devices;
    ch_task     *ps[CH_LOCAL_TASKS], *worker[CH_LOCAL_TASKS], *coord;
    /* Owned; the tasks borrow them. */
    ch_server_options            *server_options[CH_LOCAL_TASKS];
    ch_worker_options            *worker_options[CH_LOCAL_TASKS];
    ch_local_cluster_task_options how;
};

/* ---- tasks ---- */

/* Starts a task under the name "<job>/<i>". */
static ch_status start(ch_local_cluster *l, const char *job, int i, const ch_task_options *opt,
                       ch_task **out)
{
    char            name[32];
    ch_task_options own = *opt;

    (void)snprintf(name, sizeof(name), "%s/%d", job, i);
    own.name = name;
    own.methods = ch__method_callers;
    own.n_methods = CH_METHOD_END;
    return ch__task_start(l->net, &own, out);
}

/* Starts the next server. */
static ch_status start_server(ch_local_cluster *l)
{
    int                i = l->n_ps;
    ch_server_options *o = ch__calloc(1, sizeof(*o));
    ch_status          rc = o == NULL ? ch__fail_memory("a parameter server") : CH_OK;

    l->server_options[i] = o;
    if (rc == CH_OK)
        *o = l->how.server;
    if (rc == CH_OK)
        rc = ch__device_of_task("ps", i, 0, &o->device);
    if (rc == CH_OK)
        rc =
            start(l, "ps", i,
                  &(ch_task_options){.ops = &ch__server_ops, .make = ch__server_make, .arg = o},
                  &l->ps[i]);
    l->n_ps += rc == CH_OK;
    return rc;
}

/* Starts the next worker. */
static ch_status start_worker(ch_local_cluster *l)
{
    int                i = l->n_workers;
    ch_worker_options *o;
    ch_status          rc = CH_OK;

    if (i == CH_LOCAL_TASKS)
        return ch__fail(CH_RESOURCE_EXHAUSTED,
                        "local cluster: it has %d workers already, which is the maximum", i);
    if (l->worker_options[i] == NULL)
        l->worker_options[i] = ch__calloc(1, sizeof(*o));
    o = l->worker_options[i];
    if (o == NULL)
        return ch__fail_memory("a worker");
    *o = l->how.worker;
    for (o->n_devices = 0; o->n_devices < l->n_devices && rc == CH_OK; o->n_devices++)
        rc = ch__device_of_task("worker", i, o->n_devices, &o->device[o->n_devices]);
    if (rc == CH_OK)
        rc =
            start(l, "worker", i,
                  &(ch_task_options){.ops = &ch__worker_ops, .make = ch__worker_make, .arg = o},
                  &l->worker[i]);
    l->n_workers += rc == CH_OK;
    return rc;
}

ch_task *ch__local_cluster_task(const ch_local_cluster *l, const char *job, int task)
{
    if (strcmp(job, "ps") == 0 && task >= 0 && task < l->n_ps)
        return l->ps[task];
    if (strcmp(job, "worker") == 0 && task >= 0 && task < l->n_workers)
        return l->worker[task];
    return NULL;
}

ch_status ch__local_cluster_start_coordinator(ch_local_cluster *l, ch_task **out)
{
    ch_status rc;

    if (l->coord != NULL)
        return ch__fail(
            CH_FAILED_PRECONDITION,
            "a strategy uses this local cluster already, or did; create another cluster "
            "with ch_cluster_local");
    l->how.coord.n_servers = l->n_ps;
    l->how.coord.n_workers = l->n_workers;
    rc = ch__coord_start(l->net, &l->how.coord, &l->coord);
    if (rc == CH_OK)
        *out = l->coord;
    return rc;
}

ch_task *ch__local_cluster_coordinator(const ch_local_cluster *l)
{
    return l->coord;
}

int ch__local_cluster_devices(const ch_local_cluster *l)
{
    return l->n_devices;
}

ch_net *ch__local_cluster_net(const ch_local_cluster *l)
{
    return l->net;
}

/* ---- the resolver ---- */

typedef struct addresses {
    char        text[CH_LOCAL_TASKS][32];
    const char *at[CH_LOCAL_TASKS];
} addresses;

/* Writes an address for each task: its name, because there is no port. */
static const char *const *address_tasks(const char *job, int n, addresses *a)
{
    for (int i = 0; i < n; i++) {
        (void)snprintf(a->text[i], sizeof(a->text[i]), "local:%s/%d", job, i);
        a->at[i] = a->text[i];
    }
    return a->at;
}

static ch_status local_cluster(void *self, ch_cluster **out)
{
    const ch_local_cluster *l = self;
    addresses               coord, ps, worker;

    return ch_cluster_new(
        3,
        (ch_cluster_job[]){
            {"chief", 1, address_tasks("chief", 1, &coord), NULL},
            {"ps", l->n_ps, address_tasks("ps", l->n_ps, &ps), NULL},
            {"worker", l->n_workers, address_tasks("worker", l->n_workers, &worker), NULL}},
        out);
}

static ch_status local_self(void *self, ch_resolver_self *out)
{
    (void)self;
    (void)snprintf(out->task_type, sizeof(out->task_type), "chief");
    out->task_id = 0;
    return CH_OK;
}

static void local_close(void *self)
{
    ch_local_cluster *l = self;

    ch__net_free(l->net);
    for (int i = 0; i < CH_LOCAL_TASKS; i++) {
        ch__free(l->server_options[i]);
        ch__free(l->worker_options[i]);
    }
    ch__free(l);
}

static const ch_resolver_ops local_ops = {
    .name = "local", .cluster = local_cluster, .self = local_self, .close = local_close};

ch_local_cluster *ch__local_cluster_of(const ch_resolver *r)
{
    return ch__resolver_self_of(r, &local_ops);
}

static int at_least_one(int n)
{
    return n > 0 ? n : 1;
}

static ch_status check_options(const ch_local_cluster_options *o)
{
    if (o->ps < 0 || o->workers < 0 || o->devices < 0 || o->ps > CH_LOCAL_TASKS ||
        o->workers > CH_LOCAL_TASKS || o->devices > CH_WORKER_DEVICES)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "local cluster: got %d ps, %d workers and %d devices, want 0 to %d, %d and %d",
            o->ps, o->workers, o->devices, CH_LOCAL_TASKS, CH_LOCAL_TASKS, CH_WORKER_DEVICES);
    return CH_OK;
}

ch_status ch__local_cluster_new_on(ch_net *net, const ch_local_cluster_options *opt,
                                   const ch_local_cluster_task_options *how,
                                   ch_local_cluster                   **out)
{
    ch_local_cluster *l = ch__calloc(1, sizeof(*l));
    ch_status         rc = l == NULL ? ch__fail_memory("a local cluster") : check_options(opt);

    if (l == NULL) {
        ch__net_free(net);
        return rc;
    }
    l->net = net;
    l->n_devices = at_least_one(opt->devices);
    l->how = *how;
    for (int i = 0; i < at_least_one(opt->ps) && rc == CH_OK; i++)
        rc = start_server(l);
    for (int i = 0; i < at_least_one(opt->workers) && rc == CH_OK; i++)
        rc = start_worker(l);
    if (rc == CH_OK)
        rc = ch_resolver_new(&local_ops, l, NULL, &l->resolver);
    if (rc == CH_OK)
        *out = l;
    else
        local_close(l);
    return rc;
}

ch_status ch_cluster_local(const ch_local_cluster_options *opt, ch_local_cluster **out)
{
    static const ch_local_cluster_options usual;
    ch_net                               *net = NULL;
    ch_status rc = ch__check_not_null("a local cluster", "out", out, NULL, NULL);

    if (rc == CH_OK)
        rc = ch__net_inproc(NULL, &net);
    if (rc != CH_OK)
        return rc;
    /* In a single process the death of a task is noticed at once. So a silent task is only
     * slow, on a busy machine, and may be silent for a minute. */
    return ch__local_cluster_new_on(net, opt != NULL ? opt : &usual,
                                    &(ch_local_cluster_task_options){.coord.misses = 600}, out);
}

ch_local_cluster *ch_local_cluster_ref(ch_local_cluster *c)
{
    if (c != NULL)
        (void)ch_resolver_ref(c->resolver);
    return c;
}

void ch_local_cluster_unref(ch_local_cluster *c)
{
    if (c != NULL)
        ch_resolver_unref(c->resolver);
}

ch_resolver *ch_local_cluster_resolver(const ch_local_cluster *c)
{
    return c != NULL ? c->resolver : NULL;
}

/* ---- killing, restarting and adding tasks ---- */

/* Finds a task of the cluster. `call` names the public function in error messages. */
static ch_status find(const char *call, const ch_local_cluster *c, const char *job, int task,
                      ch_task **out)
{
    ch_status rc = ch__check_not_null(call, "the cluster", c, "the job", job);

    if (rc != CH_OK)
        return rc;
    *out = ch__local_cluster_task(c, job, task);
    if (*out == NULL)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: the local cluster has no %s %d; it has ps 0 to %d "
                        "and worker 0 to %d",
                        call, job, task, c->n_ps - 1, c->n_workers - 1);
    return CH_OK;
}

ch_status ch_local_cluster_kill(ch_local_cluster *c, const char *job, int task)
{
    ch_task  *t = NULL;
    ch_status rc = find("kill", c, job, task, &t);

    if (rc == CH_OK)
        ch__task_kill(t);
    return rc;
}

ch_status ch_local_cluster_restart(ch_local_cluster *c, const char *job, int task)
{
    ch_task  *t = NULL;
    ch_status rc = find("restart", c, job, task, &t);

    return rc == CH_OK ? ch__task_restart(t) : rc;
}

ch_status ch_local_cluster_add_worker(ch_local_cluster *c, int *task)
{
    ch_status rc = ch__check_not_null("add_worker", "the cluster", c, NULL, NULL);

    if (rc == CH_OK)
        rc = start_worker(c);
    if (rc == CH_OK && c->coord != NULL && ch__coord_add_worker(c->coord) < 0)
        rc = ch__fail_memory("a worker");
    if (rc == CH_OK && task != NULL)
        *task = c->n_workers - 1;
    return rc;
}

/* cluster/union.c -- ch_resolver_union: merges the clusters of several resolvers.
 *
 * All other queries are passed to the first resolver: the task of this process, the
 * accelerators, and the default master.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "cluster/resolver.h"

typedef struct merged {
    int           n;    /* number of resolvers */
    ch_resolver **part; /* referenced */
} merged;

/* ---- merging clusters ---- */

/* State of a merge. The job lists are in the arena. */
typedef struct merger {
    ch_arena        arena;
    int             n;
    ch_cluster    **cluster;
    int             n_jobs, cap;
    ch_cluster_job *job;
} merger;

/* Appends a job with the tasks of all clusters. The tasks are numbered consecutively if the
 * numbers of every part are 0 to n - 1; otherwise all tasks keep their numbers. A part without
 * tasks does not count. */
static ch_status merge_job(merger *m, const char *name)
{
    ch_cluster_job job = {.name = name};
    const char   **address;
    int           *index, n = 0, next = 0;
    bool           is_dense = true;

    for (int i = 0; i < m->n; i++) {
        const ch_job *part = ch__cluster_find(m->cluster[i], name);

        n += part != NULL ? part->n : 0;
        is_dense &= part == NULL || part->n == 0 || part->is_dense;
    }
    address = ch__arena_alloc(&m->arena, ((size_t)n + 1) * sizeof(*address));
    index = ch__arena_alloc(&m->arena, ((size_t)n + 1) * sizeof(*index));
    if (address == NULL || index == NULL ||
        !ch__grow((void **)&m->job, &m->cap, m->n_jobs + 1, sizeof(*m->job)))
        return ch__fail_memory("merging clusters");
    for (int i = 0; i < m->n; i++) {
        const ch_job *part = ch__cluster_find(m->cluster[i], name);

        for (int k = 0; part != NULL && k < part->n; k++, next++) {
            address[next] = part->address[k];
            index[next] = is_dense ? next : part->index[k];
        }
    }
    job.n = n;
    job.address = address;
    job.index = index;
    m->job[m->n_jobs++] = job;
    return CH_OK;
}

static bool has_job(const merger *m, const char *name)
{
    for (int i = 0; i < m->n_jobs; i++)
        if (strcmp(m->job[i].name, name) == 0)
            return true;
    return false;
}

/* ---- the resolver ---- */

static ch_status union_cluster(void *self, ch_cluster **out)
{
    merged   *u = self;
    merger    m = {.cluster = ch__calloc((size_t)u->n, sizeof(ch_cluster *))};
    ch_status rc = m.cluster == NULL ? ch__fail_memory("merging clusters") : CH_OK;

    for (int i = 0; i < u->n && rc == CH_OK; i++) {
        rc = ch_resolver_cluster(u->part[i], &m.cluster[i]);
        m.n += rc == CH_OK;
    }
    for (int i = 0; i < m.n && rc == CH_OK; i++)
        for (int k = 0; k < m.cluster[i]->n_jobs && rc == CH_OK; k++)
            if (!has_job(&m, m.cluster[i]->job[k].name))
                rc = merge_job(&m, m.cluster[i]->job[k].name);
    if (rc == CH_OK)
        rc = ch_cluster_new(m.n_jobs, m.job, out);
    for (int i = 0; i < m.n; i++)
        ch_cluster_unref(m.cluster[i]);
    ch__free(m.cluster);
    ch__free(m.job);
    ch__arena_drop(&m.arena);
    return rc;
}

static ch_status union_self(void *self, ch_resolver_self *out)
{
    return ch__resolver_own_task(((merged *)self)->part[0], out);
}

static ch_status union_master(void *self, const ch_resolver_self *requested,
                              const ch_resolver_self *mine, char text[CH_MASTER_BYTES])
{
    merged     *u = self;
    ch_cluster *c = NULL;
    ch_status   rc;

    (void)mine;
    if (requested->task_type[0] == '\0' || requested->task_id < 0)
        return ch_resolver_master(
            u->part[0], requested->task_type[0] != '\0' ? requested->task_type : NULL,
            requested->task_id, requested->rpc_layer, text, CH_MASTER_BYTES);
    rc = union_cluster(self, &c);
    if (rc == CH_OK)
        rc = ch__task_master(c, requested, text);
    ch_cluster_unref(c);
    return rc;
}

static ch_status union_accelerators(void *self, const ch_resolver_self *requested,
                                    const ch_resolver_self *mine, ch_accelerators *out)
{
    (void)mine;
    return ch_resolver_num_accelerators(
        ((merged *)self)->part[0],
        requested->task_type[0] != '\0' ? requested->task_type : NULL, requested->task_id, out);
}

static void union_close(void *self)
{
    merged *u = self;

    for (int i = 0; i < u->n; i++)
        ch_resolver_unref(u->part[i]);
    ch__free(u->part);
    ch__free(u);
}

static const ch_resolver_ops union_ops = {"Union",      union_cluster,      union_self,
                                          union_master, union_accelerators, union_close};

ch_status ch_resolver_union(int n, ch_resolver *const *r, const ch_resolver_options *opt,
                            ch_resolver **out)
{
    merged   *u;
    ch_status rc =
        ch__check_not_null("a union of resolvers", "out", out, n > 0 ? "r" : NULL, r);

    if (rc != CH_OK)
        return rc;
    if (n < 1)
        return ch__fail(CH_INVALID_ARGUMENT, "a union of %d resolvers: at least one is needed",
                        n);
    for (int i = 0; i < n; i++)
        if (r[i] == NULL)
            return ch__fail(CH_INVALID_ARGUMENT, "a union of %d resolvers: number %d is NULL",
                            n, i);
    u = ch__calloc(1, sizeof(*u));
    if (u != NULL)
        u->part = ch__calloc((size_t)n, sizeof(ch_resolver *));
    if (u == NULL || u->part == NULL)
        rc = ch__fail_memory("a union of resolvers");
    else
        rc = ch__resolver_make(&union_ops, u, opt, ch_resolver_environment(r[0]), out);
    if (rc != CH_OK) {
        ch__free(u != NULL ? u->part : NULL);
        ch__free(u);
        return rc;
    }
    u->n = n;
    for (int i = 0; i < n; i++)
        u->part[i] = ch_resolver_ref(r[i]);
    return CH_OK;
}

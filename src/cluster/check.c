/* cluster/check.c -- jobs that train: which tasks they have, and who leads.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "cluster/cluster.h"

static bool is(const char *type, const char *name)
{
    return type != NULL && strcmp(type, name) == 0;
}

static bool is_role(const char *type)
{
    return is(type, "chief") || is(type, "worker") || is(type, "ps") || is(type, "evaluator");
}

static ch_status check_jobs(const ch_cluster *c)
{
    for (int i = 0; i < c->n_jobs; i++)
        if (!is_role(c->job[i].name))
            return ch__fail(CH_INVALID_ARGUMENT,
                            "Disallowed task type found in cluster spec: \"%s\"; a job that "
                            "trains has chief, worker, ps and evaluator",
                            c->job[i].name);
    return CH_OK;
}

static ch_status check_type(const ch_cluster *c, const char *type)
{
    char known[256];

    if (type == NULL)
        return CH_OK;
    if (!is_role(type))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "Unrecognized task_type \"%.63s\"; there are chief, worker, ps and "
                        "evaluator",
                        type);
    if (ch_cluster_has_job(c, type) || is(type, "evaluator"))
        return CH_OK;
    ch__cluster_describe(c, known, sizeof(known));
    return ch__fail(CH_INVALID_ARGUMENT, "task_type \"%s\" not found in cluster_spec: %s", type,
                    known);
}

static ch_status check_at_most_one(const ch_cluster *c, const char *job)
{
    int n = ch__cluster_count(c, job);

    return n <= 1 ? CH_OK
                  : ch__fail(CH_INVALID_ARGUMENT,
                             "a cluster has at most one %s; this one has %d", job, n);
}

/* Of a job that knows only some of its tasks the number must be one of these. */
static ch_status check_id(const ch_cluster *c, const char *type, int id)
{
    const ch_job *j = ch__cluster_find(c, type);
    const char   *address;
    int           highest;

    if (j == NULL || id < 0)
        return CH_OK;
    highest = j->n > 0 ? j->index[j->n - 1] : -1;
    if (id > highest)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "task_id %d exceeds the maximum id of task_type \"%s\", %d", id, type,
                        highest);
    return ch__job_address(j, id, &address);
}

ch_status ch_cluster_check(const ch_cluster *c, const char *task_type, int task_id)
{
    ch_status rc = ch__want_given("checking a cluster", "the cluster", c, NULL, NULL);

    if (rc == CH_OK && task_id < -1)
        rc = ch__fail(CH_INVALID_ARGUMENT, "checking a cluster: task_id is %d", task_id);
    if (rc == CH_OK)
        rc = check_jobs(c);
    if (rc == CH_OK)
        rc = check_type(c, task_type);
    if (rc == CH_OK)
        rc = check_at_most_one(c, "chief");
    if (rc == CH_OK)
        rc = check_at_most_one(c, "evaluator");
    return rc == CH_OK ? check_id(c, task_type, task_id) : rc;
}

static ch_status check_for(const ch_cluster *c, const char *type, int id, const void *out)
{
    ch_status rc = ch__want_given("asking a cluster", "out", out, "task_type", type);

    return rc == CH_OK ? ch_cluster_check(c, type, id) : rc;
}

ch_status ch_cluster_is_chief(const ch_cluster *c, const char *task_type, int task_id,
                              bool *out)
{
    ch_status rc = check_for(c, task_type, task_id, out);

    if (rc == CH_OK)
        *out = is(task_type, "chief") || is(task_type, "evaluator") ||
               (is(task_type, "worker") && task_id == 0 && !ch_cluster_has_job(c, "chief"));
    return rc;
}

ch_status ch_cluster_worker_count(const ch_cluster *c, const char *task_type, int *out)
{
    ch_status rc = check_for(c, task_type, -1, out);

    if (rc != CH_OK)
        return rc;
    if (is(task_type, "ps"))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "worker count: Unexpected task_type \"ps\"; parameter servers are no "
                        "workers");
    if (is(task_type, "evaluator")) /* one that is not listed is alone */
        *out = ch_cluster_has_job(c, "evaluator") ? ch__cluster_count(c, "evaluator") : 1;
    else
        *out = ch__cluster_count(c, "chief") + ch__cluster_count(c, "worker");
    return CH_OK;
}

ch_status ch_cluster_id_in_cluster(const ch_cluster *c, const char *task_type, int task_id,
                                   int *out)
{
    ch_status rc = check_for(c, task_type, task_id, out);

    if (rc != CH_OK)
        return rc;
    if (is(task_type, "ps"))
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "There is no id for task_type \"ps\": parameter servers are no workers");
    if (task_id < 0 && !is(task_type, "chief"))
        return ch__fail(CH_INVALID_ARGUMENT, "id in the cluster: task_id of %s is not given",
                        task_type);
    *out = is(task_type, "chief")    ? 0
           : is(task_type, "worker") ? task_id + ch__cluster_count(c, "chief")
                                     : task_id;
    return CH_OK;
}

static const char *chief_or_worker(const ch_cluster *c)
{
    return ch_cluster_has_job(c, "chief")    ? "/job:chief/replica:0/task:0"
           : ch_cluster_has_job(c, "worker") ? "/job:worker/replica:0/task:0"
                                             : "";
}

const char *ch_cluster_collective_leader(const ch_cluster *c, const char *task_type)
{
    return is(task_type, "evaluator") ? "" : chief_or_worker(c);
}

const char *ch_cluster_coordination_leader(const ch_cluster *c)
{
    return ch_cluster_has_job(c, "ps") ? "/job:ps/replica:0/task:0" : chief_or_worker(c);
}

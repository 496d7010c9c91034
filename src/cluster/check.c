/* cluster/check.c -- rules for the clusters of training jobs: task types, chief, leaders.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "cluster/cluster.h"

/* Returns true if both names are equal. `type` may be NULL. */
static bool is_type(const char *type, const char *name)
{
    return type != NULL && strcmp(type, name) == 0;
}

/* Returns true if `type` is a task type of a training job. */
static bool is_role(const char *type)
{
    return is_type(type, "chief") || is_type(type, "worker") || is_type(type, "ps") ||
           is_type(type, "evaluator");
}

/* Returns INVALID_ARGUMENT unless `type` is NULL or a job of the cluster. An evaluator need not
 * be listed. */
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
    if (ch_cluster_has_job(c, type) || is_type(type, "evaluator"))
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

/* Returns INVALID_ARGUMENT if the job has no task with this number. If the job lists only some
 * numbers, `id` must be among them. A negative id is not checked. */
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
    ch_status rc = ch__check_not_null("cluster check", "the cluster", c, NULL, NULL);

    if (rc == CH_OK && task_id < -1)
        rc = ch__fail(CH_INVALID_ARGUMENT, "cluster check: task_id is %d, want -1 or more",
                      task_id);
    for (int i = 0; rc == CH_OK && i < c->n_jobs; i++)
        if (!is_role(c->job[i].name))
            rc = ch__fail(CH_INVALID_ARGUMENT,
                          "Disallowed task type found in cluster spec: \"%s\"; a job that "
                          "trains has chief, worker, ps and evaluator",
                          c->job[i].name);
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
    ch_status rc = ch__check_not_null("cluster query", "out", out, "task_type", type);

    return rc == CH_OK ? ch_cluster_check(c, type, id) : rc;
}

ch_status ch_cluster_is_chief(const ch_cluster *c, const char *task_type, int task_id,
                              bool *out)
{
    ch_status rc = check_for(c, task_type, task_id, out);

    if (rc == CH_OK)
        *out =
            is_type(task_type, "chief") || is_type(task_type, "evaluator") ||
            (is_type(task_type, "worker") && task_id == 0 && !ch_cluster_has_job(c, "chief"));
    return rc;
}

ch_status ch_cluster_worker_count(const ch_cluster *c, const char *task_type, int *out)
{
    ch_status rc = check_for(c, task_type, -1, out);

    if (rc != CH_OK)
        return rc;
    if (is_type(task_type, "ps"))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "worker count: Unexpected task_type \"ps\"; parameter servers are no "
                        "workers");
    if (is_type(task_type, "evaluator")) /* an evaluator that is not listed is alone */
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
    if (is_type(task_type, "ps"))
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "There is no id for task_type \"ps\": parameter servers are no workers");
    if (task_id < 0 && !is_type(task_type, "chief"))
        return ch__fail(CH_INVALID_ARGUMENT, "id in the cluster: task_id of %s is not given",
                        task_type);
    *out = is_type(task_type, "chief")    ? 0
           : is_type(task_type, "worker") ? task_id + ch__cluster_count(c, "chief")
                                          : task_id;
    return CH_OK;
}

/* Returns the device prefix of the chief, else of worker 0, else "". */
static const char *chief_or_worker(const ch_cluster *c)
{
    return ch_cluster_has_job(c, "chief")    ? "/job:chief/replica:0/task:0"
           : ch_cluster_has_job(c, "worker") ? "/job:worker/replica:0/task:0"
                                             : "";
}

const char *ch_cluster_collective_leader(const ch_cluster *c, const char *task_type)
{
    return is_type(task_type, "evaluator") ? "" : chief_or_worker(c);
}

const char *ch_cluster_coordination_leader(const ch_cluster *c)
{
    return ch_cluster_has_job(c, "ps") ? "/job:ps/replica:0/task:0" : chief_or_worker(c);
}

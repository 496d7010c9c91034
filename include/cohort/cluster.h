/* cohort/cluster.h -- clusters: the jobs of a distributed program, their tasks and addresses.
 *
 * A cluster is a list of jobs. A job is a named group of tasks, such as "worker", and a task is
 * a process with a number and an address: the ClusterSpec of TensorFlow.
 *
 *     rc = ch_cluster_parse("ps|p0:2222,worker|w0:2222;w1:2222", &c);
 *     rc = ch_cluster_check(c, "worker", 1);                  // can this process be worker 1?
 *     rc = ch_cluster_task_address(c, "worker", 1, &address); // "w1:2222"
 *
 *   - A cluster is reference counted and never changes, so several threads may read it. When
 *     tasks join or leave, a resolver (cohort/resolver.h) returns a new cluster.
 *   - The cluster owns the texts that it returns. They are valid as long as the cluster.
 *   - The tasks of a job have numbers, usually 0, 1, 2, ... A job may also list only some of
 *     its tasks, for example worker 1 and worker 7.
 *   - An address is "host:port". "" is the address of a task that has not announced its address
 *     yet.
 *   - A job name has 1 to 63 characters, an address up to 255. Both are printable ASCII without
 *     blanks, and a job name has no "/". A cluster has at most CH_CLUSTER_JOBS jobs and
 *     CH_CLUSTER_TASKS tasks.
 *
 * A cluster for training may have these jobs: `chief` (the coordinator, at most 1 task),
 * `worker`, `ps` (parameter servers) and `evaluator` (at most 1 task, which need not be
 * listed).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_CLUSTER_H
#define COHORT_CLUSTER_H

#include <stdbool.h>
#include <stddef.h>

#include "cohort/status.h"

typedef struct ch_cluster ch_cluster;

enum {
    CH_CLUSTER_JOBS = 256,      /* most jobs of a cluster */
    CH_CLUSTER_TASKS = 65536,   /* most tasks of a cluster, over all jobs */
    CH_CLUSTER_INDEX = 1048576, /* task numbers are less than this */
    CH_JOB_BYTES = 64,          /* bytes of a job name, with the final 0 */
    CH_ADDRESS_BYTES = 256      /* bytes of an address, with the final 0 */
};

/* ---- creating a cluster ---- */

typedef struct ch_cluster_job {
    const char        *name;    /* "worker" */
    int                n;       /* number of tasks */
    const char *const *address; /* address of each task */
    const int         *index;   /* number of each task; NULL: 0 to n - 1 */
} ch_cluster_job;

/* Creates a cluster with n jobs, in this order. Copies all texts. ALREADY_EXISTS: a job name,
 * or a task number within a job, occurs twice. RESOURCE_EXHAUSTED: there are too many jobs or
 * tasks. */
CH_API CH_MUST_CHECK ch_status ch_cluster_new(int n, const ch_cluster_job *job,
                                              ch_cluster **out);

/* Creates a cluster from a text, in either of two forms. The first is JSON, {"worker":
 * ["w0:2222", "w1:2222"], "ps": {"3": "p3:2222"}}: a list holds tasks 0, 1, ..., a map holds
 * tasks by number. The second is worker|w0:2222;w1:2222,ps|p0:2222. */
CH_API CH_MUST_CHECK ch_status ch_cluster_parse(const char *text, ch_cluster **out);

/* Encodes the cluster as TensorFlow's ClusterDef. The caller frees `*bytes` with ch_bytes_free.
 * Jobs are sorted by name and tasks by number, so equal clusters give equal bytes. */
CH_API CH_MUST_CHECK ch_status ch_cluster_encode(const ch_cluster *c, void **bytes, size_t *n);
/* Decodes untrusted bytes. */
CH_API CH_MUST_CHECK ch_status ch_cluster_decode(const void *bytes, size_t n, ch_cluster **out);

CH_API ch_cluster *ch_cluster_ref(ch_cluster *c);
CH_API void        ch_cluster_unref(ch_cluster *c);

/* ---- queries ---- */

CH_API int         ch_cluster_jobs(const ch_cluster *c);            /* number of jobs */
CH_API const char *ch_cluster_job_name(const ch_cluster *c, int i); /* NULL: out of range */
CH_API bool        ch_cluster_has_job(const ch_cluster *c, const char *job);
/* Returns true if both clusters have the same jobs, tasks and addresses, in any order of the
 * jobs. */
CH_API bool ch_cluster_is_equal(const ch_cluster *a, const ch_cluster *b);

/* Writes the number of tasks of a job to `out`. This call and the next three return
 * INVALID_ARGUMENT if the cluster has no such job. */
CH_API CH_MUST_CHECK ch_status ch_cluster_num_tasks(const ch_cluster *c, const char *job,
                                                    int *out);
/* Returns the task numbers of a job in ascending order, as an array that the cluster owns. */
CH_API CH_MUST_CHECK ch_status ch_cluster_task_indices(const ch_cluster *c, const char *job,
                                                       int *n, const int **out);
/* Returns the address of a task. INVALID_ARGUMENT: there is no such task. */
CH_API CH_MUST_CHECK ch_status ch_cluster_task_address(const ch_cluster *c, const char *job,
                                                       int index, const char **out);
/* Writes the addresses of tasks 0 to room - 1 to `address`, NULL for a number without a task.
 * Writes to `n` how many entries all tasks need: the highest task number plus 1, or 0.
 * `address` may be NULL if `room` is 0. */
CH_API CH_MUST_CHECK ch_status ch_cluster_job_tasks(const ch_cluster *c, const char *job,
                                                    int room, const char **address, int *n);

/* Prints the cluster as JSON that ch_cluster_parse reads, as snprintf does, and returns the
 * length of the whole text. A job with the numbers 0 to n - 1 is a list. Any other job, and a
 * job without tasks, is a map. */
CH_API int ch_cluster_print(const ch_cluster *c, char *text, size_t size);

/* ---- clusters for training ---- */

/* Checks that a process can be this task of the cluster. task_type NULL and task_id -1: not
 * known. Returns INVALID_ARGUMENT for the first of these, in this order:
 *   - The cluster has a job that is not chief, worker, ps or evaluator.
 *   - task_type is not such a job.
 *   - The cluster does not have task_type; an evaluator need not be listed.
 *   - There are two chiefs, or two evaluators.
 *   - The job has no task with the number task_id. */
CH_API CH_MUST_CHECK ch_status ch_cluster_check(const ch_cluster *c, const char *task_type,
                                                int task_id);

/* Writes true to `out` if the task is the chief: the task of job chief, or worker 0 if the
 * cluster has no job chief. An evaluator is a chief too. This call and the next two first check
 * the arguments as ch_cluster_check does; task_type must not be NULL. */
CH_API CH_MUST_CHECK ch_status ch_cluster_is_chief(const ch_cluster *c, const char *task_type,
                                                   int task_id, bool *out);
/* Writes how many tasks train together with a task of this type: the chief and all workers, or
 * for an evaluator the evaluators. INVALID_ARGUMENT for ps. */
CH_API CH_MUST_CHECK ch_status ch_cluster_worker_count(const ch_cluster *c,
                                                       const char *task_type, int *out);
/* Writes the position of the task among these tasks: the chief is 0, the workers follow.
 * INVALID_ARGUMENT for ps. */
CH_API CH_MUST_CHECK ch_status ch_cluster_id_in_cluster(const ch_cluster *c,
                                                        const char *task_type, int task_id,
                                                        int *out);

/* Returns the task that leads collectives: "/job:chief/replica:0/task:0", or worker 0 if there
 * is no chief. Returns "" for an evaluator, and if the cluster has neither a chief nor a
 * worker. */
CH_API const char *ch_cluster_collective_leader(const ch_cluster *c, const char *task_type);
/* Returns the task that keeps track of which tasks are alive: ps 0, else the chief, else worker
 * 0. Returns "" if the cluster has none of these. */
CH_API const char *ch_cluster_coordination_leader(const ch_cluster *c);

#endif

/* cohort/cluster.h -- who is in a job: names of jobs, their tasks, and where each task listens.
 *
 *     rc = ch_cluster_parse("{\"ps\": [\"ps0:2222\"], \"worker\": [\"w0:2222\", \"w1:2222\"]}", &c);
 *     rc = ch_cluster_check(c, "worker", 1);                   // is that one of them?
 *     rc = ch_cluster_task_address(c, "worker", 1, &address);  // "w1:2222"
 *
 * A cluster is counted and does not change: what is in the job now is another cluster, which a resolver
 * (cohort/resolver.h) gives when it is asked again. Texts that it hands out are its own and last as long as it.
 *
 * The tasks of a job are numbered. Usually from 0 without a gap; a job may also know only some of its
 * tasks, worker 1 and worker 7. An address is "host:port"; "" is a task that is there and has not said yet where.
 * Names of jobs have 1 to 63 characters, addresses up to 255, all of them printable ASCII without blanks, names without "/".
 * There are at most CH_CLUSTER_JOBS jobs and CH_CLUSTER_TASKS tasks in all.
 *
 * A job that trains has these: `chief` (the coordinator, at most one), `worker`, `ps` (parameter servers) and
 * `evaluator` (at most one, and it need not be listed).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_CLUSTER_H
#define COHORT_CLUSTER_H

#include <stdbool.h>
#include <stddef.h>

#include "cohort/status.h"

typedef struct ch_cluster ch_cluster;

enum {
    CH_CLUSTER_JOBS = 256,
    CH_CLUSTER_TASKS = 65536,
    CH_CLUSTER_INDEX = 1048576, /* numbers of tasks are below this */
    CH_JOB_BYTES = 64,          /* of a job's name, with its end */
    CH_ADDRESS_BYTES = 256
};

/* ---- making one ---- */

typedef struct ch_cluster_job {
    const char        *name;
    int                n;
    const char *const *address; /* n of them */
    const int         *index;   /* their numbers; NULL: 0 to n - 1 */
} ch_cluster_job;

/* Jobs stay in this order. A job or a number that comes twice is ALREADY_EXISTS. Copies all. */
CH_API CH_MUST_CHECK ch_status ch_cluster_new(int n, const ch_cluster_job *job,
                                              ch_cluster **out);

/* From text: {"worker": ["w0:2222", "w1:2222"], "ps": {"3": "p3:2222"}}, a list for a job whose tasks are
 * numbered from 0, a map for one of which some are known; or worker|w0:2222;w1:2222,ps|p0:2222. */
CH_API CH_MUST_CHECK ch_status ch_cluster_parse(const char *text, ch_cluster **out);

/* Encodes into memory that ch_bytes_free returns: TensorFlow's ClusterDef, jobs by name and tasks by
 * number, so that clusters with the same tasks are the same bytes. */
CH_API CH_MUST_CHECK ch_status ch_cluster_encode(const ch_cluster *c, void **bytes, size_t *n);
/* Decodes what came from anywhere; nothing in the bytes is trusted. */
CH_API CH_MUST_CHECK ch_status ch_cluster_decode(const void *bytes, size_t n, ch_cluster **out);

CH_API ch_cluster *ch_cluster_ref(ch_cluster *c);
CH_API void        ch_cluster_unref(ch_cluster *c);

/* ---- asking it ---- */

CH_API int         ch_cluster_jobs(const ch_cluster *c);            /* how many */
CH_API const char *ch_cluster_job_name(const ch_cluster *c, int i); /* NULL: not so many */
CH_API bool        ch_cluster_has_job(const ch_cluster *c, const char *job);
CH_API bool        ch_cluster_is_equal(const ch_cluster *a, const ch_cluster *b); /* as sets */

/* How many tasks of a job are known. These calls refuse a job that is not there, INVALID_ARGUMENT. */
CH_API CH_MUST_CHECK ch_status ch_cluster_num_tasks(const ch_cluster *c, const char *job,
                                                    int *out);
/* Their numbers, rising. */
CH_API CH_MUST_CHECK ch_status ch_cluster_task_indices(const ch_cluster *c, const char *job,
                                                       int *n, const int **out);
/* INVALID_ARGUMENT if there is no such task. */
CH_API CH_MUST_CHECK ch_status ch_cluster_task_address(const ch_cluster *c, const char *job,
                                                       int index, const char **out);
/* Addresses by number, NULL where a number is not there: writes the first `room` of them, and to `n` how
 * many there are, the highest number and one. `address` may be NULL when `room` is 0. */
CH_API CH_MUST_CHECK ch_status ch_cluster_job_tasks(const ch_cluster *c, const char *job,
                                                    int room, const char **address, int *n);

/* Writes it as ch_cluster_parse reads it, in JSON: a job whose numbers have no gap as a list, any other, and one
 * without tasks, as a map. As snprintf does; returns the length that was needed. */
CH_API int ch_cluster_print(const ch_cluster *c, char *text, size_t size);

/* ---- a job that trains ---- */

/* Whether a program can be this task of it; NULL and -1 where it does not say. Refused, INVALID_ARGUMENT, in this
 * order: a job of another name; another type; a type that the cluster has not, but for the evaluator; two
 * chiefs; two evaluators; a number that is not there. */
CH_API CH_MUST_CHECK ch_status ch_cluster_check(const ch_cluster *c, const char *task_type,
                                                int task_id);

/* These check first. The chief is the one of that name, or worker 0 where there is none; an evaluator is its own. */
CH_API CH_MUST_CHECK ch_status ch_cluster_is_chief(const ch_cluster *c, const char *task_type,
                                                   int task_id, bool *out);
/* How many work together with such a task: the chief and the workers, or the evaluator. Not for ps. */
CH_API CH_MUST_CHECK ch_status ch_cluster_worker_count(const ch_cluster *c,
                                                       const char *task_type, int *out);
/* Which of those it is: the chief comes first, then the workers. Not for ps. */
CH_API CH_MUST_CHECK ch_status ch_cluster_id_in_cluster(const ch_cluster *c,
                                                        const char *task_type, int task_id,
                                                        int *out);

/* Who leads collectives: "/job:chief/replica:0/task:0", or worker 0 where there is no chief; "" in an empty
 * cluster and for an evaluator. */
CH_API const char *ch_cluster_collective_leader(const ch_cluster *c, const char *task_type);
/* Who keeps the list of the living: ps 0, else the chief, else worker 0; "" in an empty cluster. */
CH_API const char *ch_cluster_coordination_leader(const ch_cluster *c);

#endif

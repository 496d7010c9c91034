/* cluster/cluster.h -- private definition of ch_cluster, and helpers for parsers.
 *
 * Invariants:
 *   1. A cluster does not change after ch_cluster_new has returned it.
 *   2. Every way to make a cluster (lists, text, bytes, a union) ends in ch_cluster_new, so its
 *      checks hold for all clusters.
 *   3. The tasks of a job are sorted by number, and each number occurs once.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CLUSTER_CLUSTER_H
#define CLUSTER_CLUSTER_H

#include <stdatomic.h>

#include "base/mem.h"
#include "cohort/cluster.h"

typedef struct ch_job {
    const char  *name;
    int          n;        /* number of tasks */
    int         *index;    /* numbers of the tasks, ascending */
    const char **address;  /* address of each task; "": unknown */
    bool         is_dense; /* true: n > 0 and the numbers are 0 to n - 1 */
} ch_job;

struct ch_cluster {
    atomic_int refs;
    ch_arena   arena; /* memory of the jobs, names and addresses */
    int        n_jobs;
    ch_job    *job;
};

/* Returns the job of this name, or NULL if there is none. */
const ch_job *ch__cluster_find(const ch_cluster *c, const char *job);
/* Returns the number of tasks of a job; 0 if there is no such job. */
int ch__cluster_count(const ch_cluster *c, const char *job);
/* Returns the number of tasks of all jobs. */
int ch__cluster_size(const ch_cluster *c);
/* Stores the address of a task, borrowed, in *out. Returns INVALID_ARGUMENT if there is no such
 * task. */
CH_MUST_CHECK ch_status ch__job_address(const ch_job *j, int index, const char **out);
/* Writes a summary for messages and the log: "chief 1, ps 2, worker 3". */
void ch__cluster_describe(const ch_cluster *c, char *text, size_t size);

/* Returns INVALID_ARGUMENT with the reason if the name of a job is empty, too long or not
 * printable. */
CH_MUST_CHECK ch_status ch__job_name_check(const char *name);

/* Parses decimal digits that fill all n bytes. Returns false if there is another character, if
 * n is 0, or if the number is not below `limit`. */
bool ch__parse_number(const char *text, size_t n, int limit, int *out);

/* ---- text ---- */

struct json_t;
enum { CH_CLUSTER_TEXT = 1 << 20 }; /* maximum size of a text, in bytes */

/* Parses a JSON object. The caller must release *out with json_decref. `label` is the name of
 * the text in messages: "TF_CONFIG". */
CH_MUST_CHECK ch_status ch__json_object(const char *label, const char *text,
                                        struct json_t **out);
/* Makes a cluster from the JSON object {"worker": [...], ...}. */
CH_MUST_CHECK ch_status ch__cluster_of_json(struct json_t *jobs, ch_cluster **out);

#endif

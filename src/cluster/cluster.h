/* cluster/cluster.h -- a cluster from inside.
 *
 *   1. A cluster does not change once ch_cluster_new has returned it.
 *   2. Every way to make one (lists, text, bytes, a union) ends in ch_cluster_new, so its checks hold for all.
 *   3. Tasks of a job are in the order of their numbers, each once.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CLUSTER_CLUSTER_H
#define CLUSTER_CLUSTER_H

#include <stdatomic.h>

#include "base/mem.h"
#include "cohort/cluster.h"

typedef struct ch_job {
    const char  *name;
    int          n;
    int         *index;
    const char **address;
    bool         is_dense; /* the numbers are 0 to n - 1, and there are some */
} ch_job;

struct ch_cluster {
    atomic_int refs;
    ch_arena   arena; /* all that follows */
    int        n_jobs;
    ch_job    *job;
};

/* NULL: there is none of this name. */
const ch_job *ch__cluster_find(const ch_cluster *c, const char *job);
int ch__cluster_count(const ch_cluster *c, const char *job); /* tasks; 0: no such job */
int ch__cluster_size(const ch_cluster *c);                   /* tasks of all jobs */
/* The address of a task, or why there is none. */
CH_MUST_CHECK ch_status ch__job_address(const ch_job *j, int index, const char **out);
/* "chief 1, ps 2, worker 3", for the log. */
void ch__cluster_describe(const ch_cluster *c, char *text, size_t size);

/* Whether a name or an address may be what it is: INVALID_ARGUMENT says why not. */
CH_MUST_CHECK ch_status ch__job_name_check(const char *name);

/* A number of decimal digits, below `limit`, that takes up all n bytes. */
bool ch__parse_number(const char *text, size_t n, int limit, int *out);

/* ---- text ---- */

struct json_t;
enum { CH_CLUSTER_TEXT = 1 << 20 }; /* longest text that is read, in bytes */

/* An object, to be given back with json_decref; `what` is it in messages: "TF_CONFIG". */
CH_MUST_CHECK ch_status ch__json_object(const char *what, const char *text,
                                        struct json_t **out);
/* From {"worker": [...]}. */
CH_MUST_CHECK ch_status ch__cluster_of_json(struct json_t *jobs, ch_cluster **out);

#endif

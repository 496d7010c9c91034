/* cluster/codec.c -- encodes and decodes clusters as protobuf messages (proto/cluster.proto).
 *
 * Encoded bytes are untrusted. Decoding uses at most 16 MiB plus twice the size of the message.
 * The contents are checked by ch_cluster_new, as for every cluster.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/protobuf.h"
#include "cluster/cluster.h"
#include "cluster/cluster.pb-c.h"

/* ---- encoding ---- */

/* Copies a string into the arena, because protobuf-c messages have no const strings. Returns
 * false if memory is exhausted. */
static bool copy(ch_arena *a, const char *text, char **out)
{
    *out = ch__arena_strdup(a, text);
    return *out != NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const Cohort__JobDef *const *)a)->name,
                  (*(const Cohort__JobDef *const *)b)->name);
}

/* Makes the message of a job in the arena; NULL if memory is exhausted. */
static Cohort__JobDef *job_message(ch_arena *a, const ch_job *j)
{
    Cohort__JobDef   *m = ch__arena_alloc(a, sizeof(*m));
    Cohort__TaskDef  *task = ch__arena_alloc(a, ((size_t)j->n + 1) * sizeof(*task));
    Cohort__TaskDef **tasks = ch__arena_alloc(a, ((size_t)j->n + 1) * sizeof(*tasks));

    if (m == NULL || task == NULL || tasks == NULL)
        return NULL;
    cohort__job_def__init(m);
    if (!copy(a, j->name, &m->name))
        return NULL;
    m->n_tasks = (size_t)j->n;
    m->tasks = tasks;
    for (int i = 0; i < j->n; i++) {
        tasks[i] = &task[i];
        cohort__task_def__init(&task[i]);
        task[i].key = j->index[i];
        if (!copy(a, j->address[i], &task[i].value))
            return NULL;
    }
    return m;
}

ch_status ch_cluster_encode(const ch_cluster *c, void **bytes, size_t *n)
{
    Cohort__ClusterDef m = COHORT__CLUSTER_DEF__INIT;
    ch_arena           a = {0};
    ch_status rc = ch__check_not_null("encoding a cluster", "the cluster", c, NULL, NULL);

    if (rc == CH_OK)
        rc = ch__check_not_null("encoding a cluster", "bytes", bytes, "n", n);
    if (rc != CH_OK)
        return rc;
    m.job = ch__arena_alloc(&a, ((size_t)c->n_jobs + 1) * sizeof(*m.job));
    for (int i = 0; m.job != NULL && i < c->n_jobs; i++) {
        m.job[i] = job_message(&a, &c->job[i]);
        if (m.job[i] == NULL)
            break;
        m.n_job++;
    }
    if (m.job == NULL || m.n_job < (size_t)c->n_jobs) {
        rc = ch__fail_memory("encoding a cluster");
    } else {
        qsort(m.job, m.n_job, sizeof(Cohort__JobDef *), by_name);
        rc = ch__protobuf_pack(&m.base, bytes, n);
    }
    ch__arena_drop(&a);
    return rc;
}

/* ---- decoding ---- */

/* Makes a job that points into the message and the arena. */
static ch_status read_job(ch_arena *a, const Cohort__JobDef *m, ch_cluster_job *out)
{
    const char **address = ch__arena_alloc(a, (m->n_tasks + 1) * sizeof(*address));
    int         *index = ch__arena_alloc(a, (m->n_tasks + 1) * sizeof(*index));

    if (address == NULL || index == NULL)
        return ch__fail_memory("decoding a cluster");
    if (m->n_tasks > CH_CLUSTER_TASKS)
        return ch__fail(CH_RESOURCE_EXHAUSTED, "job \"%.63s\": too many tasks (%zu)", m->name,
                        m->n_tasks);
    for (size_t i = 0; i < m->n_tasks; i++) {
        address[i] = m->tasks[i]->value;
        index[i] = m->tasks[i]->key;
    }
    *out = (ch_cluster_job){m->name, (int)m->n_tasks, address, index};
    return CH_OK;
}

ch_status ch_cluster_decode(const void *bytes, size_t n, ch_cluster **out)
{
    size_t                    budget = ((size_t)16 << 20) + 2 * n;
    ProtobufCMessage         *message = NULL;
    const Cohort__ClusterDef *m;
    ch_cluster_job           *job = NULL;
    ch_arena                  a = {0};
    ch_status                 rc =
        ch__check_not_null("decoding a cluster", n > 0 ? "bytes" : NULL, bytes, "out", out);

    if (rc != CH_OK)
        return rc;
    rc = ch__protobuf_unpack_within(&cohort__cluster_def__descriptor, bytes, n, budget,
                                    &message);
    if (rc == CH_INVALID_ARGUMENT)
        return ch__fail(
            rc,
            "decoding a cluster: the %zu bytes are not a ClusterDef message, or need "
            "more than %zu bytes of memory",
            n, budget);
    if (rc != CH_OK)
        return ch__fail_at(rc, "decoding a cluster");
    m = (const Cohort__ClusterDef *)message;
    if (m->n_job > CH_CLUSTER_JOBS)
        rc = ch__fail(CH_RESOURCE_EXHAUSTED, "%zu jobs, want at most %d", m->n_job,
                      CH_CLUSTER_JOBS);
    else if ((job = ch__arena_alloc(&a, (m->n_job + 1) * sizeof(*job))) == NULL)
        rc = ch__fail_memory("decoding a cluster");
    for (size_t i = 0; rc == CH_OK && i < m->n_job; i++)
        rc = read_job(&a, m->job[i], &job[i]);
    if (rc == CH_OK)
        rc = ch_cluster_new((int)m->n_job, job, out);
    ch__arena_drop(&a);
    ch__protobuf_free(message);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "decoding a cluster");
}

/* cluster/cluster.c -- ch_cluster: jobs, tasks and addresses.
 *
 * ch_cluster_new checks and copies the jobs; a cluster is immutable after that (invariants:
 * cluster/cluster.h). parse.c, codec.c and the resolvers create clusters with ch_cluster_new.
 * All memory of a cluster is in its arena.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cluster/cluster.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "tensor/print.h"

/* ---- creation ---- */

/* Returns true if the text is printable ASCII without blanks and without the characters of
 * `without`. So it needs no escapes in messages, device names and logs. */
static bool is_plain(const char *text, const char *without)
{
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++)
        if (*c <= ' ' || *c >= 127 || strchr(without, *c) != NULL)
            return false;
    return true;
}

ch_status ch__job_name_check(const char *name)
{
    if (name == NULL || name[0] == '\0')
        return ch__fail(CH_INVALID_ARGUMENT, "cluster: a job has no name");
    if (strlen(name) >= CH_JOB_BYTES)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "cluster: the name of job \"%.20s...\" has more than %d characters",
                        name, CH_JOB_BYTES - 1);
    if (!is_plain(name, "/"))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "cluster: the name of a job has a blank, a \"/\", or a character that "
                        "is not printable ASCII");
    return CH_OK;
}

static ch_status check_address(const char *job, int index, const char *address)
{
    if (address == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "cluster: task %d of job \"%s\" has no address",
                        index, job);
    if (strlen(address) >= CH_ADDRESS_BYTES)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "cluster: the address of task %d of job \"%s\" has more than %d "
                        "characters",
                        index, job, CH_ADDRESS_BYTES - 1);
    if (!is_plain(address, ""))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "cluster: the address of task %d of job \"%s\" has a blank, or a "
                        "character that is not printable ASCII",
                        index, job);
    return CH_OK;
}

/* A task while the tasks of a job are sorted. */
typedef struct task {
    int         index;
    const char *address;
} task;

static int by_index(const void *a, const void *b)
{
    int x = ((const task *)a)->index, y = ((const task *)b)->index;

    return (x > y) - (x < y);
}

/* Checks the tasks of a job and sorts them by number into `t`. Each number must occur once. */
static ch_status sort_tasks(const ch_cluster_job *from, task *t)
{
    for (int i = 0; i < from->n; i++) {
        int       index = from->index != NULL ? from->index[i] : i;
        ch_status rc = check_address(from->name, index, from->address[i]);

        if (rc != CH_OK)
            return rc;
        if (index < 0 || index >= CH_CLUSTER_INDEX)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "cluster: task %d of job \"%s\": numbers are from 0 to %d", index,
                            from->name, CH_CLUSTER_INDEX - 1);
        t[i] = (task){index, from->address[i]};
    }
    qsort(t, (size_t)from->n, sizeof(*t), by_index);
    for (int i = 1; i < from->n; i++)
        if (t[i].index == t[i - 1].index)
            return ch__fail(CH_ALREADY_EXISTS,
                            "cluster: task %d of job \"%s\" is listed twice, \"%.80s\" and "
                            "\"%.80s\"",
                            t[i].index, from->name, t[i - 1].address, t[i].address);
    return CH_OK;
}

/* Copies n sorted tasks into the arena. */
static ch_status copy_tasks(ch_cluster *c, ch_job *j, int n, const task *t)
{
    j->index = ch__arena_alloc(&c->arena, (size_t)n * sizeof(*j->index));
    j->address = ch__arena_alloc(&c->arena, (size_t)n * sizeof(*j->address));
    if (j->index == NULL || j->address == NULL)
        return ch__fail_memory("a cluster");
    for (int i = 0; i < n; i++) {
        j->index[i] = t[i].index;
        j->address[i] = ch__arena_strdup(&c->arena, t[i].address);
        if (j->address[i] == NULL)
            return ch__fail_memory("a cluster");
    }
    j->n = n;
    j->is_dense = n > 0 && t[n - 1].index == n - 1;
    return CH_OK;
}

/* Checks a job and appends it to the cluster. c->job must have room. */
static ch_status add_job(ch_cluster *c, const ch_cluster_job *from)
{
    ch_job   *j = &c->job[c->n_jobs];
    task     *t;
    ch_status rc = ch__job_name_check(from->name);

    if (rc != CH_OK)
        return rc;
    if (ch__cluster_find(c, from->name) != NULL)
        return ch__fail(CH_ALREADY_EXISTS, "cluster: job \"%s\" is listed twice", from->name);
    if (from->n < 0 || (from->n > 0 && from->address == NULL))
        return ch__fail(
            CH_INVALID_ARGUMENT, "cluster: job \"%s\": %d tasks; %s", from->name, from->n,
            from->address != NULL ? "want 0 or more" : "the list of addresses is NULL");
    if (from->n > CH_CLUSTER_TASKS - ch__cluster_size(c))
        return ch__fail(CH_RESOURCE_EXHAUSTED, "cluster: more than %d tasks with job \"%s\"",
                        CH_CLUSTER_TASKS, from->name);
    j->name = ch__arena_strdup(&c->arena, from->name);
    t = ch__calloc((size_t)from->n + 1, sizeof(*t));
    rc = j->name == NULL || t == NULL ? ch__fail_memory("a cluster") : sort_tasks(from, t);
    if (rc == CH_OK)
        rc = copy_tasks(c, j, from->n, t);
    if (rc == CH_OK)
        c->n_jobs++;
    ch__free(t);
    return rc;
}

ch_status ch_cluster_new(int n, const ch_cluster_job *job, ch_cluster **out)
{
    ch_cluster *c;
    ch_status   rc =
        ch__check_not_null("making a cluster", "out", out, n > 0 ? "job" : NULL, job);

    if (rc != CH_OK)
        return rc;
    if (n < 0 || n > CH_CLUSTER_JOBS)
        return ch__fail(n < 0 ? CH_INVALID_ARGUMENT : CH_RESOURCE_EXHAUSTED,
                        "cluster: %d jobs, want 0 to %d", n, CH_CLUSTER_JOBS);
    c = ch__calloc(1, sizeof(*c));
    if (c == NULL)
        return ch__fail_memory("a cluster");
    atomic_init(&c->refs, 1);
    c->job = ch__arena_alloc(&c->arena, ((size_t)n + 1) * sizeof(*c->job));
    rc = c->job == NULL ? ch__fail_memory("a cluster") : CH_OK;
    for (int i = 0; i < n && rc == CH_OK; i++)
        rc = add_job(c, &job[i]);
    if (rc == CH_OK)
        *out = c;
    else
        ch_cluster_unref(c);
    return rc;
}

ch_cluster *ch_cluster_ref(ch_cluster *c)
{
    if (c != NULL)
        atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    return c;
}

void ch_cluster_unref(ch_cluster *c)
{
    if (c == NULL || atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) != 1)
        return;
    ch__arena_drop(&c->arena);
    ch__free(c);
}

/* ---- queries ---- */

int ch_cluster_jobs(const ch_cluster *c)
{
    return c != NULL ? c->n_jobs : 0;
}

const char *ch_cluster_job_name(const ch_cluster *c, int i)
{
    return i >= 0 && i < ch_cluster_jobs(c) ? c->job[i].name : NULL;
}

const ch_job *ch__cluster_find(const ch_cluster *c, const char *job)
{
    for (int i = 0; i < ch_cluster_jobs(c) && job != NULL; i++)
        if (strcmp(c->job[i].name, job) == 0)
            return &c->job[i];
    return NULL;
}

bool ch_cluster_has_job(const ch_cluster *c, const char *job)
{
    return ch__cluster_find(c, job) != NULL;
}

int ch__cluster_count(const ch_cluster *c, const char *job)
{
    const ch_job *j = ch__cluster_find(c, job);

    return j != NULL ? j->n : 0;
}

int ch__cluster_size(const ch_cluster *c)
{
    int n = 0;

    for (int i = 0; i < ch_cluster_jobs(c); i++)
        n += c->job[i].n;
    return n;
}

static bool is_same_job(const ch_job *a, const ch_job *b)
{
    if (b == NULL || a->n != b->n)
        return false;
    for (int i = 0; i < a->n; i++)
        if (a->index[i] != b->index[i] || strcmp(a->address[i], b->address[i]) != 0)
            return false;
    return true;
}

bool ch_cluster_is_equal(const ch_cluster *a, const ch_cluster *b)
{
    if (ch_cluster_jobs(a) != ch_cluster_jobs(b))
        return false;
    for (int i = 0; i < ch_cluster_jobs(a); i++)
        if (!is_same_job(&a->job[i], ch__cluster_find(b, a->job[i].name)))
            return false;
    return true;
}

void ch__cluster_describe(const ch_cluster *c, char *text, size_t size)
{
    ch_text t = ch__text(text, size);

    for (int i = 0; i < ch_cluster_jobs(c); i++)
        ch__text_add(&t, "%s%s %d", i > 0 ? ", " : "", c->job[i].name, c->job[i].n);
    if (ch_cluster_jobs(c) == 0)
        ch__text_add(&t, "no jobs");
}

/* Finds a job. If there is none, the message lists the jobs of the cluster. */
static ch_status want_job(const ch_cluster *c, const char *job, const void *out,
                          const ch_job **found)
{
    char      known[256];
    ch_status rc = ch__check_not_null("cluster query", "the cluster", c, "the job", job);

    if (rc == CH_OK)
        rc = ch__check_not_null("cluster query", "out", out, NULL, NULL);
    if (rc != CH_OK)
        return rc;
    *found = ch__cluster_find(c, job);
    if (*found != NULL)
        return CH_OK;
    ch__cluster_describe(c, known, sizeof(known));
    return ch__fail(CH_INVALID_ARGUMENT, "No such job in cluster: \"%.63s\"; it has %s", job,
                    known);
}

ch_status ch_cluster_num_tasks(const ch_cluster *c, const char *job, int *out)
{
    const ch_job *j = NULL;
    ch_status     rc = want_job(c, job, out, &j);

    if (rc == CH_OK)
        *out = j->n;
    return rc;
}

ch_status ch_cluster_task_indices(const ch_cluster *c, const char *job, int *n, const int **out)
{
    const ch_job *j = NULL;
    ch_status     rc = want_job(c, job, n != NULL ? (const void *)out : NULL, &j);

    if (rc == CH_OK) {
        *n = j->n;
        *out = j->index;
    }
    return rc;
}

static int by_number(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;

    return (x > y) - (x < y);
}

ch_status ch__job_address(const ch_job *j, int index, const char **out)
{
    const int *at =
        j->n > 0 ? bsearch(&index, j->index, (size_t)j->n, sizeof(*at), by_number) : NULL;

    if (at == NULL)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "No task with index %d in job \"%s\", which has %d tasks%s", index,
                        j->name, j->n, j->is_dense ? " from 0" : " with other indices");
    *out = j->address[at - j->index];
    return CH_OK;
}

ch_status ch_cluster_task_address(const ch_cluster *c, const char *job, int index,
                                  const char **out)
{
    const ch_job *j = NULL;
    ch_status     rc = want_job(c, job, out, &j);

    return rc == CH_OK ? ch__job_address(j, index, out) : rc;
}

ch_status ch_cluster_job_tasks(const ch_cluster *c, const char *job, int room,
                               const char **address, int *n)
{
    const ch_job *j = NULL;
    ch_status     rc = want_job(c, job, n, &j);

    if (rc == CH_OK && room > 0)
        rc = ch__check_not_null("tasks of a job", "address", address, NULL, NULL);
    if (rc != CH_OK)
        return rc;
    for (int i = 0; i < room; i++)
        address[i] = NULL;
    for (int i = 0; i < j->n && j->index[i] < room; i++)
        address[j->index[i]] = j->address[i];
    *n = j->n > 0 ? j->index[j->n - 1] + 1 : 0;
    return CH_OK;
}

/* ---- printing ---- */

/* Prints a JSON string. Only two characters need an escape, because the text is printable
 * ASCII. */
static void print_string(ch_text *t, const char *text)
{
    ch__text_add(t, "\"");
    for (; *text != '\0'; text++)
        ch__text_add(t, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
    ch__text_add(t, "\"");
}

static void print_job(ch_text *t, const ch_job *j)
{
    print_string(t, j->name);
    ch__text_add(t, j->is_dense ? ": [" : ": {");
    for (int i = 0; i < j->n; i++) {
        ch__text_add(t, "%s", i > 0 ? ", " : "");
        if (!j->is_dense)
            ch__text_add(t, "\"%d\": ", j->index[i]);
        print_string(t, j->address[i]);
    }
    ch__text_add(t, j->is_dense ? "]" : "}");
}

int ch_cluster_print(const ch_cluster *c, char *text, size_t size)
{
    ch_text t = ch__text(text, size);

    ch__text_add(&t, "{");
    for (int i = 0; i < ch_cluster_jobs(c); i++) {
        ch__text_add(&t, "%s", i > 0 ? ", " : "");
        print_job(&t, &c->job[i]);
    }
    ch__text_add(&t, "}");
    return ch__text_length(&t);
}

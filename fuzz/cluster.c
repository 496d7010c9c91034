/* fuzz/cluster.c -- descriptions of a cluster: arbitrary messages and texts.
 *
 * The first byte selects the kind of the rest: a cluster message, the text of a cluster, of
 * TF_CONFIG, of a list of hosts, or of tasks per host. If a cluster is created, its printed
 * text and its encoded bytes must give the same cluster, and all functions that read it must
 * return. A list of hosts must stay within its limits.
 *
 * covers: src/cluster/cluster.c src/cluster/codec.c src/cluster/parse.c src/cluster/hostlist.c src/cluster/check.c
 * longest: 600
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cluster/hostlist.h"
#include "cluster/resolver.h"
#include "cohort/cohort.h"
#include "tokens.h"

enum { MESSAGE, TEXT, TF_CONFIG, HOSTS, TASKS, N_KINDS };

/* ---- checks of a cluster ---- */

static void check_same(const ch_cluster *c, const ch_cluster *again)
{
    MUST(ch_cluster_is_equal(c, again) && ch_cluster_is_equal(again, c));
    for (int i = 0; i < ch_cluster_jobs(c); i++)
        MUST(ch_cluster_has_job(again, ch_cluster_job_name(c, i)));
}

static void check_print(const ch_cluster *c)
{
    int         n = ch_cluster_print(c, NULL, 0);
    char       *text = malloc((size_t)n + 1);
    ch_cluster *again = NULL;

    MUST(ch_cluster_print(c, text, (size_t)n + 1) == n && strlen(text) == (size_t)n);
    MUST(ch_cluster_parse(text, &again) == CH_OK);
    check_same(c, again);
    ch_cluster_unref(again);
    free(text);
}

static void check_encode(const ch_cluster *c)
{
    void       *bytes = NULL, *more = NULL;
    size_t      n = 0, m = 0;
    ch_cluster *again = NULL;

    MUST(ch_cluster_encode(c, &bytes, &n) == CH_OK);
    MUST(ch_cluster_decode(bytes, n, &again) == CH_OK);
    MUST(ch_cluster_encode(again, &more, &m) == CH_OK);
    MUST(n == m && memcmp(bytes, more, n) == 0);
    check_same(c, again);
    ch_cluster_unref(again);
    ch_bytes_free(bytes);
    ch_bytes_free(more);
}

static void check_job(const ch_cluster *c, const char *job)
{
    const char *address[16], *one = NULL;
    const int  *index = NULL;
    int         n = -1, m = -1, length = -1;

    MUST(strlen(job) > 0 && strlen(job) < CH_JOB_BYTES);
    MUST(ch_cluster_num_tasks(c, job, &n) == CH_OK);
    MUST(ch_cluster_task_indices(c, job, &m, &index) == CH_OK && n == m);
    MUST(ch_cluster_job_tasks(c, job, 16, address, &length) == CH_OK && length >= n);
    for (int i = 0; i < n; i++) {
        MUST(index[i] >= 0 && index[i] < length && (i == 0 || index[i] > index[i - 1]));
        MUST(ch_cluster_task_address(c, job, index[i], &one) == CH_OK);
        MUST(strlen(one) < CH_ADDRESS_BYTES && (index[i] >= 16 || address[index[i]] == one));
    }
    MUST(ch_cluster_task_address(c, job, length, &one) == CH_INVALID_ARGUMENT);
}

static void check_roles(const ch_cluster *c)
{
    static const char *const type[] = {"chief", "worker", "ps", "evaluator", "x"};
    int                      n;
    bool                     is;

    for (size_t i = 0; i < sizeof(type) / sizeof(type[0]); i++)
        for (int id = 0; id < 3; id++) {
            bool ok = ch_cluster_check(c, type[i], id) == CH_OK;

            MUST((ch_cluster_is_chief(c, type[i], id, &is) == CH_OK) == ok);
            MUST((ch_cluster_id_in_cluster(c, type[i], id, &n) == CH_OK) == (ok && i != 2));
            MUST(ch_cluster_worker_count(c, type[i], &n) != CH_OK || n >= 0);
        }
    MUST(ch_cluster_collective_leader(c, "worker") != NULL);
    MUST(ch_cluster_coordination_leader(c) != NULL);
}

static void check_cluster(const ch_cluster *c)
{
    MUST(ch_cluster_jobs(c) <= CH_CLUSTER_JOBS);
    for (int i = 0; i < ch_cluster_jobs(c); i++)
        check_job(c, ch_cluster_job_name(c, i));
    check_roles(c);
    check_print(c);
    check_encode(c);
}

/* ---- parsing ---- */

static bool is_refusal(ch_status rc)
{
    return rc == CH_INVALID_ARGUMENT || rc == CH_ALREADY_EXISTS || rc == CH_RESOURCE_EXHAUSTED;
}

static void try_cluster(int kind, const char *text, size_t n)
{
    ch_cluster *c = NULL;
    ch_status   rc =
        kind == MESSAGE ? ch_cluster_decode(text, n, &c) : ch_cluster_parse(text, &c);

    MUST(rc == CH_OK ? c != NULL : c == NULL && is_refusal(rc));
    if (rc == CH_OK)
        check_cluster(c);
    ch_cluster_unref(c);
}

static void try_tf_config(const char *text)
{
    ch_tf_config t = {0};
    ch_status    rc = ch__tf_config_parse("TF_CONFIG", text, &t);

    MUST(rc == CH_OK || is_refusal(rc));
    if (rc != CH_OK)
        return;
    MUST(t.self.task_id >= -1 && strlen(t.self.task_type) < CH_JOB_BYTES);
    MUST(strlen(t.self.rpc_layer) < CH_RPC_LAYER_BYTES && strlen(t.master) < CH_MASTER_BYTES);
    check_cluster(t.cluster);
    ch__tf_config_drop(&t);
}

static void try_hosts(const char *text)
{
    ch_arena  arena = {0};
    ch_hosts  hosts = {0};
    ch_status rc = ch__hostlist_expand(text, &arena, &hosts);

    MUST(rc == CH_OK || is_refusal(rc));
    MUST((rc == CH_OK) == (hosts.name != NULL));
    MUST(rc != CH_OK || (hosts.n > 0 && hosts.n <= CH_CLUSTER_TASKS));
    for (int i = 0; hosts.name != NULL && i < hosts.n; i++)
        MUST(strlen(hosts.name[i]) > 0 && strlen(hosts.name[i]) < CH_ADDRESS_BYTES &&
             strpbrk(hosts.name[i], "[],") == NULL);
    ch__free(hosts.name);
    ch__arena_drop(&arena);
}

static void try_tasks(const char *text)
{
    int       tasks[8], n = 0;
    ch_status rc = ch__tasks_per_node(text, 8, tasks, &n);

    MUST(rc == CH_OK || is_refusal(rc));
    MUST(n >= 0 && n <= CH_CLUSTER_TASKS);
    for (int i = 0; rc == CH_OK && i < n && i < 8; i++)
        MUST(tasks[i] >= 0 && tasks[i] <= CH_CLUSTER_TASKS);
}

static void try_one(int kind, const char *text, size_t n)
{
    if (kind == TF_CONFIG)
        try_tf_config(text);
    else if (kind == HOSTS)
        try_hosts(text);
    else if (kind == TASKS)
        try_tasks(text);
    else
        try_cluster(kind, text, n);
}

/* Repeats the call with an allocation that fails. It must not crash or leak. */
static void try_without_memory(int kind, const char *text, size_t n, unsigned which)
{
    ch_cluster *c = NULL;

    ch__mem_fail_at(1 + which % 32);
    if (kind == HOSTS)
        try_hosts(text);
    else if (kind == MESSAGE || kind == TEXT)
        MUST((kind == MESSAGE ? ch_cluster_decode(text, n, &c) : ch_cluster_parse(text, &c)) ==
                 CH_OK ||
             c == NULL);
    ch__mem_fail_at(0);
    ch_cluster_unref(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t  live = ch__mem_live();
    unsigned h = fuzz_hash(data, size);
    char    *alone;

    if (size == 0)
        return 0;
    alone = malloc(size); /* the rest, and a zero byte */
    memcpy(alone, data + 1, size - 1);
    alone[size - 1] = '\0';
    if (h % 8 == 0)
        try_without_memory(data[0] % N_KINDS, alone, size - 1, h / 8);
    try_one(data[0] % N_KINDS, alone, size - 1);
    free(alone);
    MUST(ch__mem_live() == live);
    return 0;
}

/* ---- mutating ---- */

static const char *const json[] = {"{\"cluster\": {",
                                   "}}",
                                   "\"worker\": [",
                                   "\"ps\": {",
                                   "\"chief\"",
                                   "\"evaluator\"",
                                   "]",
                                   "}",
                                   "{",
                                   "[",
                                   ", ",
                                   ": ",
                                   "\"h:1\"",
                                   "\"0\": ",
                                   "\"7\": ",
                                   "\"1048576\": ",
                                   "\"task\": {",
                                   "\"type\": ",
                                   "\"index\": ",
                                   "3",
                                   "\"rpc_layer\": ",
                                   "null",
                                   "\"worker\"",
                                   "\"\\u0000\"",
                                   "\"\\u00e4\"",
                                   "\"session_master\": \"m\"",
                                   "worker|a:1;b:1",
                                   ",ps|c:1",
                                   "|",
                                   ";",
                                   "\"a/b\"",
                                   "1e9",
                                   "-1",
                                   NULL};
static const char *const hosts[] = {
    "n[1-2]", "[",       "]",     ",",    "-",  "0", "1",         "09-11",
    "n",      "[3,5-7]", "99999", "(x2)", "(x", ")", "3(x60000)", "r[1-2]n[1-4]",
    NULL};
static const char *const message[] = {"\x0a\x03\x0a\x01w",
                                      "\x0a\x0c\x0a\x01p\x12\x07\x08\x01\x12\x03h:1",
                                      "\x12\x05\x12\x03h:1",
                                      "\x12\x02\x08\x05",
                                      "\x0a\x06worker",
                                      "\x7f",
                                      NULL};

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    dice   d = {seed};
    int    kind = size > 0 ? data[0] % N_KINDS : 0;
    size_t n = fuzz_mutate_text(&d, data, size, max_size, 1,
                                kind == MESSAGE                  ? message
                                : kind == HOSTS || kind == TASKS ? hosts
                                                                 : json);

    return n > 0 ? n : LLVMFuzzerMutate(data, size, max_size);
}

/* cluster/parse.c -- parses clusters: JSON, or job|host:port;host:port,job|...
 *
 * The two forms collect jobs in a builder and create the cluster with ch_cluster_new. The text
 * may come from the environment and is limited to CH_CLUSTER_TEXT bytes. ch__json_object and
 * ch__cluster_of_json are also used for TF_CONFIG (tf_config.c).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "cluster/cluster.h"

bool ch__parse_number(const char *text, size_t n, int limit, int *out)
{
    int64_t value = 0;

    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        value = value * 10 + (text[i] - '0');
        if (value >= limit)
            return false;
    }
    *out = (int)value;
    return n > 0;
}

/* The jobs that were parsed. Names and addresses point into the text or into the arena. */
typedef struct builder {
    ch_arena        arena;
    int             n, cap;
    ch_cluster_job *job;
} builder;

/* Appends a job with room for n tasks, which the caller must fill in. */
static ch_status add_job(builder *b, const char *name, size_t n, const char ***address,
                         int **index)
{
    if (!ch__grow((void **)&b->job, &b->cap, b->n + 1, sizeof(*b->job)))
        return ch__fail_memory("reading a cluster");
    if (n > CH_CLUSTER_TASKS)
        return ch__fail(CH_RESOURCE_EXHAUSTED, "cluster: %zu tasks in job \"%.63s\"", n, name);
    *address = ch__arena_alloc(&b->arena, (n + 1) * sizeof(**address));
    *index = ch__arena_alloc(&b->arena, (n + 1) * sizeof(**index));
    if (*address == NULL || *index == NULL)
        return ch__fail_memory("reading a cluster");
    b->job[b->n++] = (ch_cluster_job){name, (int)n, *address, *index};
    return CH_OK;
}

/* Creates the cluster if rc is CH_OK. Frees the builder in either case. */
static ch_status finish(builder *b, ch_status rc, ch_cluster **out)
{
    if (rc == CH_OK)
        rc = ch_cluster_new(b->n, b->job, out);
    ch__free(b->job);
    ch__arena_drop(&b->arena);
    return rc;
}

/* ---- JSON ---- */

ch_status ch__json_object(const char *label, const char *text, json_t **out)
{
    json_error_t error;
    json_t      *all;

    if (strnlen(text, CH_CLUSTER_TEXT + 1) > CH_CLUSTER_TEXT)
        return ch__fail(CH_RESOURCE_EXHAUSTED, "%s: more than %d bytes", label,
                        CH_CLUSTER_TEXT);
    all = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (all == NULL && json_error_code(&error) == json_error_out_of_memory)
        return ch__fail_memory(label);
    if (all == NULL)
        return ch__fail(json_error_code(&error) == json_error_duplicate_key
                            ? CH_ALREADY_EXISTS
                            : CH_INVALID_ARGUMENT,
                        "%s is not JSON: line %d, column %d: %s", label, error.line,
                        error.column, error.text);
    if (!json_is_object(all)) {
        json_decref(all);
        return ch__fail(CH_INVALID_ARGUMENT, "%s is JSON, but not an object {...}", label);
    }
    *out = all;
    return CH_OK;
}

static ch_status fail_address(const char *job, const char *task)
{
    return ch__fail(CH_INVALID_ARGUMENT,
                    "cluster: the address of task %.20s of job \"%.63s\" is not a string", task,
                    job);
}

/* Reads a job of the form ["host:port", ...]. */
static ch_status read_list(builder *b, const char *name, const json_t *list)
{
    const char **address;
    int         *index;
    size_t       n = json_array_size(list);
    ch_status    rc = add_job(b, name, n, &address, &index);

    for (size_t i = 0; i < n && rc == CH_OK; i++) {
        char number[24];

        snprintf(number, sizeof(number), "%zu", i);
        index[i] = (int)i;
        address[i] = json_string_value(json_array_get(list, i));
        if (address[i] == NULL)
            rc = fail_address(name, number);
    }
    return rc;
}

/* Reads a job of the form {"1": "host:port", ...}. */
static ch_status read_map(builder *b, const char *name, json_t *map)
{
    const char **address;
    int         *index, i = 0;
    ch_status    rc = add_job(b, name, json_object_size(map), &address, &index);

    for (void *at = json_object_iter(map); at != NULL && rc == CH_OK;
         at = json_object_iter_next(map, at), i++) {
        const char *key = json_object_iter_key(at);

        address[i] = json_string_value(json_object_iter_value(at));
        if (address[i] == NULL)
            rc = fail_address(name, key);
        else if (!ch__parse_number(key, strlen(key), CH_CLUSTER_INDEX, &index[i]))
            rc = ch__fail(CH_INVALID_ARGUMENT,
                          "cluster: \"%.40s\" of job \"%.63s\" is not the number of a task, 0 "
                          "to %d",
                          key, name, CH_CLUSTER_INDEX - 1);
    }
    return rc;
}

ch_status ch__cluster_of_json(json_t *jobs, ch_cluster **out)
{
    builder   b = {0};
    ch_status rc = CH_OK;

    if (!json_is_object(jobs))
        rc = ch__fail(CH_INVALID_ARGUMENT, "cluster: not a map of jobs, {\"worker\": [...]}");
    for (void *at = json_object_iter(jobs); at != NULL && rc == CH_OK;
         at = json_object_iter_next(jobs, at)) {
        const char *name = json_object_iter_key(at);
        json_t     *value = json_object_iter_value(at);

        if (json_is_array(value))
            rc = read_list(&b, name, value);
        else if (json_is_object(value))
            rc = read_map(&b, name, value);
        else
            rc = ch__fail(CH_INVALID_ARGUMENT,
                          "cluster: job \"%.63s\" is neither a list of addresses nor a map of "
                          "numbers to addresses",
                          name);
    }
    return finish(&b, rc, out);
}

/* ---- job|host:port;host:port,job|... ---- */

/* Ends `text` at the first `end`, and returns the rest of the text after it. *more is false,
 * and the rest is empty, if there is no such character. */
static char *split_at(char *text, char end, bool *more)
{
    char *at = strchr(text, end);

    *more = at != NULL;
    if (at == NULL)
        return text + strlen(text);
    *at = '\0';
    return at + 1;
}

static size_t count(const char *text, char of)
{
    size_t n = 0;

    for (; *text != '\0'; text++)
        n += *text == of;
    return n;
}

/* Reads job|host:port;host:port. Changes the text. */
static ch_status read_short_job(builder *b, char *text)
{
    const char **address;
    int         *index;
    bool         more;
    char        *next = split_at(text, '|', &more);
    size_t       n = count(next, ';') + 1;
    ch_status    rc;

    if (!more)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "cluster: \"%.60s\" is not job|host:port;host:port", text);
    rc = add_job(b, text, n, &address, &index);
    for (size_t i = 0; i < n && rc == CH_OK; i++) {
        address[i] = next;
        index[i] = (int)i;
        next = split_at(next, ';', &more);
        if (address[i][0] == '\0')
            rc = ch__fail(CH_INVALID_ARGUMENT, "cluster: job \"%.63s\": an address is empty",
                          text);
    }
    return rc;
}

static ch_status read_short(const char *text, ch_cluster **out)
{
    builder   b = {0};
    bool      more = true;
    char     *next = NULL;
    ch_status rc = CH_OK;

    if (strnlen(text, CH_CLUSTER_TEXT + 1) > CH_CLUSTER_TEXT)
        rc = ch__fail(CH_RESOURCE_EXHAUSTED, "cluster: more than %d bytes of text",
                      CH_CLUSTER_TEXT);
    if (rc == CH_OK && (next = ch__arena_strdup(&b.arena, text)) == NULL)
        rc = ch__fail_memory("reading a cluster");
    while (rc == CH_OK && more) {
        char *job = next;

        next = split_at(job, ',', &more);
        rc = read_short_job(&b, job);
    }
    return finish(&b, rc, out);
}

ch_status ch_cluster_parse(const char *text, ch_cluster **out)
{
    json_t   *all = NULL;
    char      first;
    ch_status rc = ch__check_not_null("reading a cluster", "the text", text, "out", out);

    if (rc != CH_OK)
        return rc;
    first = text[strspn(text, " \t\r\n")];
    if (first == '[')
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "cluster: the text is a JSON list (got %.40s, want an object of jobs); write "
            "{\"worker\": [\"host:port\", ...]}",
            text);
    if (first != '{')
        return read_short(text, out);
    rc = ch__json_object("cluster", text, &all);
    if (rc == CH_OK)
        rc = ch__cluster_of_json(all, out);
    json_decref(all);
    return rc;
}

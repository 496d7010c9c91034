/* cluster/tf_config.c -- ch_resolver_tf_config: the environment variable TF_CONFIG.
 *
 * Nothing is cached: each query reads the variable and parses its JSON again.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "cluster/resolver.h"

/* ---- parsing ---- */

/* Copies a JSON string, or the digits of an integer, to a buffer. A missing or null value
 * leaves the buffer unchanged. */
static ch_status read_text(const char *label, const char *key, const json_t *value, char *to,
                           size_t size)
{
    char name[64], digits[32];

    snprintf(name, sizeof(name), "%s: %s", label, key);
    if (value == NULL || json_is_null(value))
        return CH_OK;
    if (json_is_integer(value)) {
        snprintf(digits, sizeof(digits), "%lld", (long long)json_integer_value(value));
        return ch__copy_text(name, digits, to, size);
    }
    if (!json_is_string(value))
        return ch__fail(CH_INVALID_ARGUMENT, "%s is not a string", name);
    return ch__copy_text(name, json_string_value(value), to, size);
}

/* Parses task.index, a number or a string of digits. A missing or null value leaves *out
 * unchanged. */
static ch_status read_index(const char *label, const json_t *value, int *out)
{
    char text[16] = "";

    if (value == NULL || json_is_null(value))
        return CH_OK;
    if (read_text(label, "task.index", value, text, sizeof(text)) == CH_OK &&
        ch__parse_number(text, strlen(text), CH_CLUSTER_INDEX, out))
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT, "%s: task.index is not a number from 0 to %d", label,
                    CH_CLUSTER_INDEX - 1);
}

static ch_status read_task(const char *label, const json_t *task, ch_resolver_self *out)
{
    ch_status rc;

    if (task == NULL || json_is_null(task))
        return CH_OK;
    if (!json_is_object(task))
        return ch__fail(CH_INVALID_ARGUMENT, "%s: task is not {\"type\": ..., \"index\": ...}",
                        label);
    rc = read_text(label, "task.type", json_object_get(task, "type"), out->task_type,
                   sizeof(out->task_type));
    return rc == CH_OK ? read_index(label, json_object_get(task, "index"), &out->task_id) : rc;
}

ch_status ch__tf_config_parse(const char *label, const char *text, ch_tf_config *out)
{
    ch_tf_config t = {.self.task_id = -1};
    json_t      *all = NULL, *cluster, *master;
    ch_status    rc = ch__json_object(label, text, &all);

    if (rc != CH_OK)
        return rc;
    cluster = json_object_get(all, "cluster");
    master = json_object_get(all, "session_master");
    t.has_master = master != NULL && !json_is_null(master);
    rc = read_task(label, json_object_get(all, "task"), &t.self);
    if (rc == CH_OK)
        rc = read_text(label, "rpc_layer", json_object_get(all, "rpc_layer"), t.self.rpc_layer,
                       sizeof(t.self.rpc_layer));
    if (rc == CH_OK)
        rc = read_text(label, "session_master", master, t.master, sizeof(t.master));
    if (rc == CH_OK) {
        rc = cluster == NULL || json_is_null(cluster)
                 ? ch_cluster_new(0, NULL, &t.cluster)
                 : ch__cluster_of_json(cluster, &t.cluster);
        if (rc != CH_OK)
            rc = ch__fail_at(rc, "%s", label);
    }
    json_decref(all);
    if (rc == CH_OK)
        *out = t;
    return rc;
}

void ch__tf_config_drop(ch_tf_config *t)
{
    ch_cluster_unref(t->cluster);
    t->cluster = NULL;
}

/* ---- the resolver ---- */

/* Reads and parses TF_CONFIG. If it is not set or empty, it counts as {}. */
static ch_status read_variable(ch_tf_config *out)
{
    const char *text = ch__env_nonempty("TF_CONFIG");

    return ch__tf_config_parse("TF_CONFIG", text != NULL ? text : "{}", out);
}

static ch_status tf_config_cluster(void *self, ch_cluster **out)
{
    ch_tf_config t;
    ch_status    rc = read_variable(&t);

    (void)self;
    if (rc == CH_OK)
        *out = t.cluster;
    return rc;
}

static ch_status tf_config_self(void *self, ch_resolver_self *out)
{
    ch_tf_config t;
    ch_status    rc = read_variable(&t);

    (void)self;
    if (rc == CH_OK) {
        *out = t.self;
        ch__tf_config_drop(&t);
    }
    return rc;
}

/* Returns true if the cluster is empty or a single task, so that there is no task to connect
 * to. */
static bool is_alone(const ch_cluster *c)
{
    return c->n_jobs == 0 || (c->n_jobs == 1 && c->job[0].is_dense && c->job[0].n == 1);
}

static ch_status tf_config_master(void *self, const ch_resolver_self *requested,
                                  const ch_resolver_self *mine, char text[CH_MASTER_BYTES])
{
    ch_resolver_self task = ch__requested_or_own(requested, mine);
    ch_tf_config     t;
    ch_status        rc = read_variable(&t);

    (void)self;
    if (rc != CH_OK)
        return rc;
    text[0] = '\0';
    if (t.has_master)
        rc = ch__copy_text("session_master", t.master, text, CH_MASTER_BYTES);
    else if (!is_alone(t.cluster))
        rc = ch__task_master(t.cluster, &task, text);
    ch__tf_config_drop(&t);
    return rc;
}

static ch_status tf_config_accelerators(void *self, const ch_resolver_self *requested,
                                        const ch_resolver_self *mine, ch_accelerators *out)
{
    ch_resolver_self task = ch__requested_or_own(requested, mine);

    (void)self;
    return ch__count_accelerators(&task, out);
}

static void tf_config_close(void *self)
{
    (void)self;
}

static const ch_resolver_ops tf_config_ops = {
    "TF_CONFIG",      tf_config_cluster,      tf_config_self,
    tf_config_master, tf_config_accelerators, tf_config_close};

ch_status ch_resolver_tf_config(const ch_resolver_options *opt, ch_resolver **out)
{
    return ch__resolver_make(&tf_config_ops, NULL, opt, NULL, out);
}

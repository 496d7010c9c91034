/* cluster/resolver.c -- the functions common to all resolvers, and access to the environment.
 *
 * A ch_resolver combines a source (ch_resolver_ops) with settings of the program (`set`), which
 * take precedence. Every query calls the source again; nothing is cached here. Several threads
 * may query a resolver, but setters must not run at the same time. A source may be written by
 * the program, so its errors get a message and its texts are terminated.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cluster/resolver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "cohort/device.h"

struct ch_resolver {
    atomic_int             refs;
    const ch_resolver_ops *ops;
    void                  *self;
    ch_resolver_self       set;           /* values set by the program; "" and -1: not set */
    bool                   has_rpc_layer; /* true: set.rpc_layer was set, perhaps to "" */
    char                  *environment;   /* note for the program; may be NULL */
};

const char *ch__env(const char *name)
{
    return getenv(name);
}

const char *ch__env_nonempty(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && value[0] != '\0' ? value : NULL;
}

ch_status ch__copy_text(const char *label, const char *from, char *to, size_t size)
{
    size_t n = strlen(from);

    if (n >= size)
        return ch__fail(CH_INVALID_ARGUMENT, "%s \"%.40s...\" has more than %zu characters",
                        label, from, size - 1);
    memcpy(to, from, n + 1);
    return CH_OK;
}

/* ---- creation and setters ---- */

ch_status ch_resolver_set_task_type(ch_resolver *r, const char *task_type)
{
    ch_status rc = ch__check_not_null("setting the task type", "the resolver", r, NULL, NULL);

    if (rc == CH_OK && task_type != NULL)
        rc = ch__job_name_check(task_type);
    if (rc == CH_OK)
        rc = ch__copy_text("task type", task_type != NULL ? task_type : "", r->set.task_type,
                           sizeof(r->set.task_type));
    return rc;
}

ch_status ch_resolver_set_task_id(ch_resolver *r, int task_id)
{
    ch_status rc = ch__check_not_null("setting the task id", "the resolver", r, NULL, NULL);

    if (rc == CH_OK && (task_id < -1 || task_id >= CH_CLUSTER_INDEX))
        rc = ch__fail(CH_INVALID_ARGUMENT, "task id %d; ids are from 0 to %d", task_id,
                      CH_CLUSTER_INDEX - 1);
    if (rc == CH_OK)
        r->set.task_id = task_id;
    return rc;
}

ch_status ch_resolver_set_rpc_layer(ch_resolver *r, const char *rpc_layer)
{
    ch_status rc = ch__check_not_null("setting the RPC layer", "the resolver", r, NULL, NULL);

    if (rc == CH_OK)
        rc = ch__copy_text("RPC layer", rpc_layer != NULL ? rpc_layer : "", r->set.rpc_layer,
                           sizeof(r->set.rpc_layer));
    if (rc == CH_OK)
        r->has_rpc_layer = rpc_layer != NULL;
    return rc;
}

/* Applies the options to a new resolver. */
static ch_status set_all(ch_resolver *r, const ch_resolver_options *opt)
{
    ch_status rc = ch_resolver_set_task_type(r, opt->task_type);

    if (rc == CH_OK && opt->has_task_id && opt->task_id < 0)
        rc = ch__fail(CH_INVALID_ARGUMENT, "task id %d, want 0 or more", opt->task_id);
    if (rc == CH_OK)
        rc = ch_resolver_set_task_id(r, opt->has_task_id ? opt->task_id : -1);
    if (rc == CH_OK)
        rc = ch_resolver_set_rpc_layer(r, opt->rpc_layer);
    if (rc == CH_OK && opt->environment != NULL) {
        r->environment = ch__strdup(opt->environment);
        rc = r->environment == NULL ? ch__fail_memory("a resolver") : CH_OK;
    }
    return rc;
}

static void drop(ch_resolver *r)
{
    ch__free(r->environment);
    ch__free(r);
}

ch_status ch__resolver_make(const ch_resolver_ops *ops, void *self,
                            const ch_resolver_options *opt, const char *environment,
                            ch_resolver **out)
{
    ch_resolver_options mine = opt != NULL ? *opt : (ch_resolver_options){0};
    ch_resolver        *r;
    ch_status           rc = ch__check_not_null("making a resolver", "ops", ops, "out", out);

    if (rc != CH_OK)
        return rc;
    if (ops->name == NULL || ops->cluster == NULL || ops->self == NULL || ops->close == NULL)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "making a resolver: its ops must have a name, cluster, self and close");
    r = ch__calloc(1, sizeof(*r));
    if (r == NULL)
        return ch__fail_memory("a resolver");
    atomic_init(&r->refs, 1);
    r->ops = ops;
    r->self = self;
    r->set.task_id = -1;
    if (mine.environment == NULL)
        mine.environment = environment;
    rc = set_all(r, &mine);
    if (rc == CH_OK)
        *out = r;
    else
        drop(r);
    return rc;
}

ch_status ch_resolver_new(const ch_resolver_ops *ops, void *self,
                          const ch_resolver_options *opt, ch_resolver **out)
{
    return ch__resolver_make(ops, self, opt, "", out);
}

ch_resolver *ch_resolver_ref(ch_resolver *r)
{
    if (r != NULL)
        atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
    return r;
}

void ch_resolver_unref(ch_resolver *r)
{
    if (r == NULL || atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1)
        return;
    r->ops->close(r->self);
    drop(r);
}

void *ch__resolver_self_of(const ch_resolver *r, const ch_resolver_ops *ops)
{
    return r != NULL && r->ops == ops ? r->self : NULL;
}

/* ---- queries ---- */

const char *ch_resolver_name(const ch_resolver *r)
{
    return r != NULL ? r->ops->name : "";
}

const char *ch_resolver_environment(const ch_resolver *r)
{
    return r != NULL ? r->environment : NULL;
}

/* Adds the resolver's name to the error of a source. If the source set no message since `mark`,
 * the message is that of the status. */
static ch_status check_callback(const ch_resolver *r, uint64_t mark, ch_status rc)
{
    return rc == CH_OK ? CH_OK : ch__fail_at(ch__fail_since(mark, rc), "%s", r->ops->name);
}

ch_status ch_resolver_cluster(ch_resolver *r, ch_cluster **out)
{
    uint64_t    mark = ch__fail_mark();
    ch_cluster *c = NULL;
    ch_status   rc = ch__check_not_null("resolver cluster", "the resolver", r, "out", out);

    if (rc != CH_OK)
        return rc;
    rc = check_callback(r, mark, r->ops->cluster(r->self, &c));
    if (rc == CH_OK && c == NULL)
        rc = ch__fail(CH_INTERNAL, "%s: it returned CH_OK and no cluster", r->ops->name);
    if (rc == CH_OK)
        *out = c;
    return rc;
}

ch_status ch__resolver_own_task(ch_resolver *r, ch_resolver_self *out)
{
    uint64_t         mark = ch__fail_mark();
    ch_resolver_self mine = {.task_id = -1};
    ch_status        rc = check_callback(r, mark, r->ops->self(r->self, &mine));

    if (rc != CH_OK)
        return rc;
    /* The program's own source may not have terminated its texts. */
    mine.task_type[sizeof(mine.task_type) - 1] = '\0';
    mine.rpc_layer[sizeof(mine.rpc_layer) - 1] = '\0';
    if (r->set.task_type[0] != '\0')
        memcpy(mine.task_type, r->set.task_type, sizeof(mine.task_type));
    if (r->set.task_id >= 0)
        mine.task_id = r->set.task_id;
    if (r->has_rpc_layer)
        memcpy(mine.rpc_layer, r->set.rpc_layer, sizeof(mine.rpc_layer));
    *out = mine;
    return CH_OK;
}

ch_status ch__store_text(const char *label, const char *from, char *text, size_t size)
{
    size_t n = strlen(from);

    if (n >= size)
        return ch__fail(CH_OUT_OF_RANGE, "%s \"%s\" needs %zu bytes, and the buffer has %zu",
                        label, from, n + 1, size);
    memcpy(text, from, n + 1);
    return CH_OK;
}

ch_status ch_resolver_task_type(ch_resolver *r, char *text, size_t size)
{
    ch_resolver_self mine;
    ch_status rc = ch__check_not_null("resolver task type", "the resolver", r, "text", text);

    if (rc == CH_OK)
        rc = ch__resolver_own_task(r, &mine);
    return rc == CH_OK ? ch__store_text("task type", mine.task_type, text, size) : rc;
}

ch_status ch_resolver_task_id(ch_resolver *r, int *out)
{
    ch_resolver_self mine;
    ch_status        rc = ch__check_not_null("resolver task id", "the resolver", r, "out", out);

    if (rc == CH_OK)
        rc = ch__resolver_own_task(r, &mine);
    if (rc == CH_OK)
        *out = mine.task_id;
    return rc;
}

ch_status ch_resolver_rpc_layer(ch_resolver *r, char *text, size_t size)
{
    ch_resolver_self mine;
    ch_status rc = ch__check_not_null("resolver RPC layer", "the resolver", r, "text", text);

    if (rc == CH_OK)
        rc = ch__resolver_own_task(r, &mine);
    return rc == CH_OK ? ch__store_text("RPC layer", mine.rpc_layer, text, size) : rc;
}

/* Stores the task arguments of a query; "" and -1 if they were not given. */
static ch_status set_requested(const char *task_type, int task_id, ch_resolver_self *requested)
{
    *requested = (ch_resolver_self){.task_id = task_id >= 0 ? task_id : -1};
    return task_type == NULL ? CH_OK
                             : ch__copy_text("task type", task_type, requested->task_type,
                                             sizeof(requested->task_type));
}

ch_resolver_self ch__requested_or_own(const ch_resolver_self *requested,
                                      const ch_resolver_self *mine)
{
    ch_resolver_self task = *requested;

    if (task.task_type[0] == '\0')
        memcpy(task.task_type, mine->task_type, sizeof(task.task_type));
    if (task.task_id < 0)
        task.task_id = mine->task_id;
    return task;
}

ch_status ch__task_master(const ch_cluster *c, const ch_resolver_self *task,
                          char text[CH_MASTER_BYTES])
{
    const char *address = NULL;
    ch_status   rc = ch_cluster_task_address(c, task->task_type, task->task_id, &address);

    if (rc == CH_OK)
        snprintf(text, CH_MASTER_BYTES, "%s%s%s", task->rpc_layer,
                 task->rpc_layer[0] != '\0' ? "://" : "", address);
    return rc;
}

/* Stores the address of the requested task, else of this task; "" if neither is complete. Used
 * if the source has no `master`. */
static ch_status default_master(ch_resolver *r, const ch_resolver_self *requested,
                                const ch_resolver_self *mine, char text[CH_MASTER_BYTES])
{
    ch_resolver_self task = ch__requested_or_own(requested, mine);
    ch_cluster      *c = NULL;
    ch_status        rc;

    text[0] = '\0';
    if (task.task_type[0] == '\0' || task.task_id < 0)
        return CH_OK;
    rc = ch_resolver_cluster(r, &c);
    if (rc == CH_OK)
        rc = ch__task_master(c, &task, text);
    ch_cluster_unref(c);
    return rc;
}

ch_status ch_resolver_master(ch_resolver *r, const char *task_type, int task_id,
                             const char *rpc_layer, char *text, size_t size)
{
    uint64_t         mark = ch__fail_mark();
    char             master[CH_MASTER_BYTES] = "";
    ch_resolver_self requested, mine;
    ch_status rc = ch__check_not_null("resolver master", "the resolver", r, "text", text);

    if (rc == CH_OK)
        rc = set_requested(task_type, task_id, &requested);
    if (rc == CH_OK)
        rc = ch__resolver_own_task(r, &mine);
    if (rc != CH_OK)
        return rc;
    rc = ch__copy_text("RPC layer", rpc_layer != NULL ? rpc_layer : mine.rpc_layer,
                       requested.rpc_layer, sizeof(requested.rpc_layer));
    if (rc == CH_OK)
        rc = r->ops->master != NULL
                 ? check_callback(r, mark, r->ops->master(r->self, &requested, &mine, master))
                 : default_master(r, &requested, &mine, master);
    master[sizeof(master) - 1] = '\0';
    return rc == CH_OK ? ch__store_text("master", master, text, size) : rc;
}

/* ---- accelerators ---- */

/* Adds a device of this type to the counts. */
static ch_status count_device(const char *type, ch_accelerators *out)
{
    int i = 0;

    while (i < out->n && strcmp(out->item[i].type, type) != 0)
        i++;
    if (i == CH_ACCELERATOR_TYPES)
        return ch__fail(CH_RESOURCE_EXHAUSTED, "devices of more than %d types", i);
    if (i == out->n) {
        snprintf(out->item[i].type, sizeof(out->item[i].type), "%s", type);
        out->n++;
    }
    out->item[i].count++;
    return CH_OK;
}

ch_status ch__count_accelerators(const ch_resolver_self *of, ch_accelerators *out)
{
    bool            of_one = of->task_type[0] != '\0' && of->task_id >= 0;
    ch_accelerators found = {0};
    ch_device      *d;

    for (int i = 0; (d = ch_device_at(i)) != NULL; i++) {
        const ch_device_spec *where = ch_device_where(d);
        ch_status             rc;

        if (strcmp(where->type, "CPU") == 0 || strcmp(where->type, "XLA_CPU") == 0 ||
            (of_one && (strcmp(where->job, of->task_type) != 0 || where->task != of->task_id)))
            continue;
        rc = count_device(where->type, &found);
        if (rc != CH_OK)
            return rc;
    }
    *out = found;
    return CH_OK;
}

ch_status ch_resolver_num_accelerators(ch_resolver *r, const char *task_type, int task_id,
                                       ch_accelerators *out)
{
    uint64_t         mark = ch__fail_mark();
    ch_resolver_self requested, mine;
    ch_accelerators  found = {0};
    ch_status rc = ch__check_not_null("counting accelerators", "the resolver", r, "out", out);

    if (rc == CH_OK)
        rc = set_requested(task_type, task_id, &requested);
    if (rc == CH_OK)
        rc = ch__resolver_own_task(r, &mine);
    if (rc != CH_OK)
        return rc;
    rc = r->ops->accelerators != NULL
             ? check_callback(r, mark, r->ops->accelerators(r->self, &requested, &mine, &found))
             : ch__count_accelerators(&requested, &found);
    if (rc == CH_OK)
        *out = found;
    return rc;
}

/* job/step_exec.c -- the execution of a step plan (step_exec.h).
 *
 * A ch_step_exec has a table of values by number and replica, and for each remote part a
 * pending remote op (struct pending) with the results that have arrived.
 * ch__step_exec_next_calls builds a request for each server and kind from all remote parts
 * that are ready. A request has a part for each shard on that server. ch__step_exec_on_reply
 * stores the results of the parts. When the last reply of a remote part has arrived,
 * set_outputs assembles its values from the shards.
 *
 * Invariants:
 *   1. A value is NULL until it is available, and then does not change.
 *   2. A remote part is sent once. It is done when it was sent and no reply is missing.
 *   3. Local parts run in order; `n_local_parts` is the index of the next.
 *   4. Reads and updates are sent once for all replicas, and updates take the inputs of replica
 *      0. Lookups are sent for each replica.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/step_exec.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "job/message.h"
#include "job/shard.h"
#include "tensor/buffer_pool.h"
#include "tensor/tensor.h"

/* A pending remote op: the progress of a remote part. */
typedef struct pending {
    bool        is_sent;   /* its calls were built */
    int         n_missing; /* parts of calls that have no reply yet */
    ch_tensor **result; /* results of shards: [(replica * outputs + output) * shards + shard] */
    ch_id_split **split;     /* of lookups: the ids of each replica; owned by the execution */
    int           n_results; /* entries of the table of results */
} pending;

/* Identifies a division of ids: the value and replica that has the ids, and the number of
 * shards and rows of the variable. */
typedef struct split_key {
    int     value, replica, n_shards;
    int64_t size;
} split_key;

typedef struct exec_split {
    split_key    key;
    ch_id_split *split;
} exec_split;

enum { MAX_CACHED = 16 }; /* divisions in a cache at most */

/* Unused ch_id_split objects, for the next execution of the plan. */
struct ch_step_exec_cache {
    int          n;
    ch_id_split *split[MAX_CACHED];
};

struct ch_step_exec {
    const ch_placed_plan *placed;
    ch_step_identity      attempt;
    int                   n_replicas;
    ch_tensor           **value; /* [value * replicas + replica] */
    pending              *pending;
    int                   n_local_parts; /* number of local parts that have run */
    int                   n_splits, cap_splits;
    exec_split           *split;
    int                   n_calls, cap_calls;
    ch_step_exec_call   **call; /* all calls so far */
};

/* ---- create and free ---- */

static ch_tensor **value_at(const ch_step_exec *t, int value, int replica)
{
    return &t->value[value * t->n_replicas + replica];
}

/* Gives a tensor for the device of a replica, without a copy. The caller must unref it. */
static ch_status to_device(const ch_step_exec *t, ch_tensor *x, int replica, ch_tensor **out)
{
    if (t->attempt.device != NULL)
        return ch__tensor_share(x, t->attempt.device[replica], out);
    *out = ch_tensor_ref(x);
    return CH_OK;
}

/* Sets the input values. If replicas share an input tensor, they share the value too. */
static ch_status set_inputs(const ch_step_exec *t, ch_tensor *const *in)
{
    int       n = t->placed->plan->n_inputs;
    ch_status rc = CH_OK;

    for (int k = 0; k < t->n_replicas; k++)
        for (int i = 0; i < n && rc == CH_OK; i++)
            if (k > 0 && in[k * n + i] == in[i])
                *value_at(t, i, k) = ch_tensor_ref(*value_at(t, i, 0));
            else
                rc = to_device(t, in[k * n + i], k, value_at(t, i, k));
    return rc;
}

ch_status ch__step_exec_new(const ch_placed_plan *r, const ch_step_identity *attempt,
                            int n_replicas, ch_tensor *const *in, ch_step_exec **out)
{
    ch_step_exec *t = ch__calloc(1, sizeof(*t));
    size_t        n_values = (size_t)r->plan->n_values * (size_t)n_replicas;
    ch_status     rc;

    if (t == NULL)
        return ch__fail_memory("a step");
    t->placed = r;
    t->attempt = *attempt;
    t->n_replicas = n_replicas;
    t->value = ch__calloc(n_values + 1, sizeof(*t->value));
    t->pending = ch__calloc((size_t)r->plan->n_remote_parts + 1, sizeof(*t->pending));
    if (t->value == NULL || t->pending == NULL) {
        ch__step_exec_free(t);
        return ch__fail_memory("a step");
    }
    rc = set_inputs(t, in);
    if (rc == CH_OK)
        *out = t;
    else
        ch__step_exec_free(t);
    return rc;
}

static void drop_call(ch_step_exec_call *c)
{
    ch__message_unref(c->message);
    ch__free(c->part);
    ch__free(c);
}

static void drop_pending(pending *e)
{
    for (int i = 0; i < e->n_results; i++)
        ch_tensor_unref(e->result[i]);
    ch__free(e->result);
    ch__free(e->split);
}

/* Puts the divisions of ids into the cache of the plan, because the next execution needs as
 * many of about the same size. Frees divisions that do not fit. */
static void cache_splits(ch_step_exec *t)
{
    ch_step_plan *r = t->placed->plan;

    if (r->cache == NULL && t->n_splits > 0)
        r->cache = ch__calloc(1, sizeof(*r->cache));
    for (int i = 0; i < t->n_splits; i++)
        if (r->cache != NULL && r->cache->n < MAX_CACHED)
            r->cache->split[r->cache->n++] = t->split[i].split;
        else
            ch__id_split_free(t->split[i].split);
}

void ch__step_exec_cache_free(struct ch_step_exec_cache *s)
{
    for (int i = 0; s != NULL && i < s->n; i++)
        ch__id_split_free(s->split[i]);
    ch__free(s);
}

void ch__step_exec_free(ch_step_exec *t)
{
    if (t == NULL)
        return;
    for (int i = 0; t->value != NULL && i < t->placed->plan->n_values * t->n_replicas; i++)
        ch_tensor_unref(t->value[i]);
    for (int i = 0; t->pending != NULL && i < t->placed->plan->n_remote_parts; i++)
        drop_pending(&t->pending[i]);
    for (int i = 0; i < t->n_calls; i++)
        drop_call(t->call[i]);
    cache_splits(t);
    ch__free(t->split);
    ch__free(t->value);
    ch__free(t->pending);
    ch__free(t->call);
    ch__free(t);
}

/* ---- remote parts ---- */

/* Returns the variable with the highest rank, with which the inputs are aligned. */
static const ch_plan_variable *main_variable(const ch_placed_plan *r,
                                             const ch_remote_part *remote)
{
    const ch_plan_variable *best = &r->variable[remote->variable[0]];

    for (int i = 1; i < remote->n_variables; i++) {
        const ch_plan_variable *v = &r->variable[remote->variable[i]];

        best = v->shape.rank > best->shape.rank ? v : best;
    }
    return best;
}

static ch_layout layout_of(const ch_plan_variable *v)
{
    return ch__layout_along(v->axis, v->n_shards);
}

/* Returns the number of replicas for which a remote part is sent: all for a lookup, else 1. */
static int replicas_of(const ch_step_exec *t, const ch_remote_part *r)
{
    return r->kind == CH_REMOTE_ROWS ? t->n_replicas : 1;
}

/* Returns true if all reads of the variables that update `r` writes have been answered. */
static bool may_write(const ch_step_exec *t, const ch_remote_part *r)
{
    const ch_step_plan *plan = t->placed->plan;

    for (int i = 0; i < plan->n_remote_parts; i++)
        if ((!t->pending[i].is_sent || t->pending[i].n_missing > 0) &&
            ch__remote_follows(r, &plan->remote[i]))
            return false;
    return true;
}

/* Returns true if a remote part can be sent now: it was not sent yet, its inputs are available,
 * and the order of updates (step_plan.h) allows it. */
static bool is_ready(const ch_step_exec *t, int remote)
{
    const ch_remote_part *r = &t->placed->plan->remote[remote];
    bool                  waits = r->kind == CH_REMOTE_UPDATE && r->n_out == 0;

    if (t->pending[remote].is_sent ||
        (waits && t->n_local_parts < t->placed->plan->n_local_parts))
        return false;
    for (int i = 0; i < r->n_in; i++)
        for (int k = 0; k < t->n_replicas; k++)
            if (*value_at(t, r->in[i].value, k) == NULL)
                return false;
    return may_write(t, r);
}

/* ---- inputs of a shard ---- */

static bool is_same_key(split_key a, split_key b)
{
    return a.value == b.value && a.replica == b.replica && a.n_shards == b.n_shards &&
           a.size == b.size;
}

static ch_status new_split(ch_step_exec *t, ch_id_split **out)
{
    struct ch_step_exec_cache *cache = t->placed->plan->cache;

    if (!ch__grow((void **)&t->split, &t->cap_splits, t->n_splits + 1, sizeof(*t->split)))
        return ch__fail_memory("a lookup");
    if (cache == NULL || cache->n == 0)
        return ch__id_split_new(out);
    *out = cache->split[--cache->n];
    return CH_OK;
}

static ch_status add_split(ch_step_exec *t, split_key key, const ch_tensor *ids,
                           ch_id_split **out)
{
    ch_status rc = new_split(t, out);

    if (rc != CH_OK)
        return rc;
    t->split[t->n_splits++] = (exec_split){key, *out};
    ch__id_split_set_device(*out,
                            t->attempt.device != NULL ? t->attempt.device[key.replica] : NULL);
    return ch__id_split(*out, ids, key.size, key.n_shards);
}

/* Finds or makes the division of the ids of an input. A lookup and the update of the same rows
 * share it. If the variable is sharded along an axis other than 0, the ids are not divided. */
static ch_status split_ids(ch_step_exec *t, int remote, int input, int replica,
                           ch_id_split **out)
{
    const ch_remote_part   *r = &t->placed->plan->remote[remote];
    const ch_plan_variable *v = main_variable(t->placed, r);
    const ch_tensor        *ids = *value_at(t, r->in[input].value, replica);
    split_key               key = {.value = r->in[input].value,
                                   .replica = replica,
                                   .n_shards = v->axis > 0 ? 1 : v->n_shards,
                                   .size = v->shape.dim[0]};

    for (int i = 0; i < t->n_splits; i++)
        if (is_same_key(t->split[i].key, key)) {
            *out = t->split[i].split;
            return CH_OK;
        }
    if ((ids->dtype != CH_I64 && ids->dtype != CH_I32) || !ids->contiguous)
        return ch__fail(CH_INTERNAL, "ids of %s are not contiguous i32 or i64", v->name);
    return add_split(t, key, ids, out);
}

/* Creates the part of an update's input that a shard receives, according to its role. */
static ch_status input_of_shard(ch_step_exec *t, int remote, int input, int shard,
                                ch_tensor **out)
{
    const ch_remote_part   *r = &t->placed->plan->remote[remote];
    const ch_plan_variable *v = main_variable(t->placed, r);
    const ch_plan_input    *in = &r->in[input];
    ch_shard_role           role = ch__shard_role(in->role, layout_of(v));
    ch_tensor              *whole = *value_at(t, in->value, 0);
    ch_id_split            *s = NULL;
    ch_status               rc;

    if (role == CH_SHARD_WHOLE) {
        *out = ch_tensor_ref(whole);
        return CH_OK;
    }
    if (role == CH_SHARD_SLICE)
        return ch__layout_cut(layout_of(v), v->shape, whole, shard, out);
    rc = split_ids(t, remote, role == CH_SHARD_IDS ? input : in->ids, 0, &s);
    if (rc != CH_OK)
        return rc;
    return role == CH_SHARD_IDS ? ch__id_split_update_ids(s, shard, out)
                                : ch__id_split_update_rows(s, whole, shard, out);
}

static ch_status fail_invalid_id(const ch_plan_variable *v, const ch_tensor *ids, int64_t at)
{
    int64_t id = ids->dtype == CH_I64 ? ((const int64_t *)(const void *)ids->data)[at]
                                      : ((const int32_t *)(const void *)ids->data)[at];

    return ch__fail(
        CH_INVALID_ARGUMENT,
        "gather: id %lld at position %lld is not in [0, %lld), the rows of table %s",
        (long long)id, (long long)at, (long long)v->shape.dim[0], v->name);
}

/* Creates the ids that a lookup requests from a shard; NULL: none. If the variable is sharded
 * along an axis other than 0, every shard has a piece of each row and gets all ids. Returns
 * INVALID_ARGUMENT for an id out of range, unless the lookup gives zeros for it. */
static ch_status lookup_ids_of_shard(ch_step_exec *t, int remote, int shard, int replica,
                                     ch_tensor **out)
{
    const ch_remote_part   *r = &t->placed->plan->remote[remote];
    const ch_plan_variable *v = main_variable(t->placed, r);
    ch_id_split            *s = NULL;
    ch_status               rc = split_ids(t, remote, 0, replica, &s);
    int64_t invalid = rc == CH_OK && !r->or_zero ? ch__id_split_first_invalid(s) : -1;

    if (rc == CH_OK && invalid >= 0)
        rc = fail_invalid_id(v, *value_at(t, r->in[0].value, replica), invalid);
    if (rc != CH_OK)
        return rc;
    t->pending[remote].split[replica] = s;
    return ch__id_split_lookup_ids(s, v->axis > 0 ? 0 : shard, out);
}

/* ---- requests ---- */

/* A call under construction. It becomes a ch_step_exec_call in finish_request. */
typedef struct request {
    struct request    *next;
    ch_remote_kind     kind;
    ch_step_exec_call *call;
    int                cap_parts, n_tensors, cap_tensors;
    ch_tensor        **tensor; /* tensors of the message; owned */
} request;

/* Finds the request for a server and kind in the list, or adds it. */
static ch_status request_for(request **list, int server, ch_remote_kind kind, request **out)
{
    request *q = *list;

    while (q != NULL && (q->call->server != server || q->kind != kind))
        q = q->next;
    if (q == NULL) {
        q = ch__calloc(1, sizeof(*q));
        if (q == NULL)
            return ch__fail_memory("a call");
        q->call = ch__calloc(1, sizeof(*q->call));
        if (q->call == NULL) {
            ch__free(q);
            return ch__fail_memory("a call");
        }
        q->call->server = server;
        q->kind = kind;
        q->next = *list;
        *list = q;
    }
    *out = q;
    return CH_OK;
}

static ch_status add_part(request *q, int remote, int shard, int replica)
{
    if (!ch__grow((void **)&q->call->part, &q->cap_parts, q->call->n + 1,
                  sizeof(*q->call->part)))
        return ch__fail_memory("a call");
    q->call->part[q->call->n++] = (struct ch_step_exec_part){remote, shard, replica};
    return CH_OK;
}

/* Takes over the tensor, on an error too. */
static ch_status add_tensor(request *q, ch_tensor *t)
{
    if (!ch__grow((void **)&q->tensor, &q->cap_tensors, q->n_tensors + 1, sizeof(*q->tensor))) {
        ch_tensor_unref(t);
        return ch__fail_memory("a call");
    }
    q->tensor[q->n_tensors++] = t;
    q->call->bytes += (double)ch_tensor_bytes(t);
    return CH_OK;
}

static void drop_requests(request *q)
{
    while (q != NULL) {
        request *next = q->next;

        for (int i = 0; i < q->n_tensors; i++)
            ch_tensor_unref(q->tensor[i]);
        if (q->call != NULL)
            drop_call(q->call);
        ch__free(q->tensor);
        ch__free(q);
        q = next;
    }
}

/* Returns the mean number of bytes of a shard of a variable. */
static double shard_bytes(const ch_plan_variable *v)
{
    return (double)ch_shape_count(v->shape) * (double)ch_dtype_bytes(v->dtype) / v->n_shards;
}

/* Estimates the bytes that a part moves in addition to its tensors: the rows of a lookup, or
 * the variables that are read or written as a whole. */
static double bytes_of_part(const ch_step_exec *t, int remote, const ch_tensor *ids)
{
    const ch_remote_part   *r = &t->placed->plan->remote[remote];
    const ch_plan_variable *v = &t->placed->variable[r->variable[0]];
    double                  bytes = 0;

    if (ids != NULL)
        return (double)ch_tensor_count(ids) * shard_bytes(v) * v->n_shards /
               ((double)v->shape.dim[0] + 1);
    for (int i = 0; i < r->n_in; i++)
        if (r->in[i].role == CH_SHARD_IDS) /* an update of rows: they are among the tensors */
            return 0;
    for (int i = 0; i < r->n_variables; i++)
        bytes += shard_bytes(&t->placed->variable[r->variable[i]]);
    return bytes;
}

/* Adds the part for a shard to the request for its server. Adds nothing if a lookup needs no
 * row of this shard. */
static ch_status request_part(ch_step_exec *t, request **list, int remote, int shard,
                              int replica)
{
    const ch_remote_part *r = &t->placed->plan->remote[remote];
    int                   server = t->placed->variable[r->variable[0]].shard[shard].server;
    ch_tensor            *ids = NULL;
    request              *q = NULL;
    ch_status             rc = CH_OK;

    if (r->kind == CH_REMOTE_ROWS) {
        rc = lookup_ids_of_shard(t, remote, shard, replica, &ids);
        if (rc != CH_OK || ids == NULL)
            return rc;
    }
    rc = request_for(list, server, r->kind, &q);
    if (rc == CH_OK)
        rc = add_part(q, remote, shard, replica);
    if (rc == CH_OK)
        q->call->bytes += bytes_of_part(t, remote, ids);
    if (rc == CH_OK && ids != NULL)
        rc = add_tensor(q, ids);
    else
        ch_tensor_unref(ids);
    for (int i = 0; r->kind == CH_REMOTE_UPDATE && i < r->n_in && rc == CH_OK; i++) {
        ch_tensor *in = NULL;

        rc = input_of_shard(t, remote, i, shard, &in);
        if (rc == CH_OK)
            rc = add_tensor(q, in);
    }
    t->pending[remote].n_missing += rc == CH_OK;
    return rc;
}

/* Adds the parts for all shards of a remote part to the requests. */
static ch_status request_remote(ch_step_exec *t, request **list, int remote)
{
    const ch_remote_part   *r = &t->placed->plan->remote[remote];
    const ch_plan_variable *v = main_variable(t->placed, r);
    pending                *e = &t->pending[remote];
    int                     n = replicas_of(t, r), n_results = n * v->n_shards * r->n_out;
    ch_status               rc = CH_OK;

    e->result = ch__calloc((size_t)n_results + 1, sizeof(*e->result));
    e->split = ch__calloc((size_t)n, sizeof(*e->split));
    if (e->result == NULL || e->split == NULL)
        return ch__fail_memory("a call");
    e->n_results = n_results;
    for (int k = 0; k < n; k++)
        for (int i = 0; i < v->n_shards && rc == CH_OK; i++)
            rc = request_part(t, list, remote, i, k);
    e->is_sent = true;
    return rc;
}

/* ---- messages ---- */

static uint64_t variable_of(const ch_step_exec *t, const struct ch_step_exec_part *p)
{
    const ch_remote_part *r = &t->placed->plan->remote[p->remote];

    return t->placed->variable[r->variable[0]].shard[p->shard].variable;
}

/* Packs the message of a request for values or rows. */
static ch_status pack_reads(const ch_step_exec *t, request *q)
{
    Cohort__PsRead m;
    Cohort__PsRows rows;
    size_t         n = (size_t)q->call->n;
    uint64_t      *variable = ch__calloc(n, sizeof(*variable));
    ch_status      rc;

    if (variable == NULL)
        return ch__fail_memory("a call");
    for (size_t i = 0; i < n; i++)
        variable[i] = variable_of(t, &q->call->part[i]);
    cohort__ps_read__init(&m);
    cohort__ps_rows__init(&rows);
    m.n_variables = rows.n_variables = n;
    m.variables = rows.variables = variable;
    m.snapshot = rows.snapshot = t->attempt.snapshot;
    rc = q->kind == CH_REMOTE_READ
             ? ch__message_pack(CH_PS_READ, &m.base, 0, NULL, &q->call->message)
             : ch__message_pack(CH_PS_ROWS, &rows.base, q->n_tensors, q->tensor,
                                &q->call->message);
    q->n_tensors = 0;
    ch__free(variable);
    return rc;
}

/* Returns the sequence number of an update in its step. It is the same in every attempt. Two
 * shards on the same server are two updates. */
static uint32_t sequence_of(const struct ch_step_exec_part *p)
{
    enum { SHARDS = 1 << 12 }; /* shards of a variable at most (step_plan/codec.c) */

    return (uint32_t)p->remote * SHARDS + (uint32_t)p->shard;
}

static void fill_one(const ch_step_exec *t, const struct ch_step_exec_part *p,
                     Cohort__PsUpdateOne *one)
{
    cohort__ps_update_one__init(one);
    one->sequence = sequence_of(p);
    one->function = t->placed->function[p->remote] + (uint64_t)p->shard;
    one->inputs = (uint32_t)t->placed->plan->remote[p->remote].n_in;
}

/* Packs the message of a request for updates. */
static ch_status pack_update(const ch_step_exec *t, request *q)
{
    Cohort__PsUpdate      m;
    size_t                n = (size_t)q->call->n;
    Cohort__PsUpdateOne  *one = ch__calloc(n, sizeof(*one));
    Cohort__PsUpdateOne **list = ch__calloc(n, sizeof(*list));
    char                 *worker = ch__strdup(t->attempt.worker);
    ch_status             rc = CH_OK;

    if (one == NULL || list == NULL || worker == NULL)
        rc = ch__fail_memory("a call");
    cohort__ps_update__init(&m);
    for (size_t i = 0; i < n && rc == CH_OK; i++) {
        list[i] = &one[i];
        fill_one(t, &q->call->part[i], &one[i]);
    }
    m.step = t->attempt.step;
    m.worker = worker;
    m.registration = t->attempt.registration;
    m.retired = t->attempt.retired;
    m.n_updates = n;
    m.updates = list;
    if (rc == CH_OK) {
        rc =
            ch__message_pack(CH_PS_UPDATE, &m.base, q->n_tensors, q->tensor, &q->call->message);
        q->n_tensors = 0;
    }
    ch__free(one);
    ch__free(list);
    ch__free(worker);
    return rc;
}

/* Packs a request and adds its call to the execution. */
static ch_status finish_request(ch_step_exec *t, request *q)
{
    ch_status rc;

    if (!ch__grow((void **)&t->call, &t->cap_calls, t->n_calls + 1, sizeof(*t->call)))
        return ch__fail_memory("a call");
    rc = q->kind == CH_REMOTE_UPDATE ? pack_update(t, q) : pack_reads(t, q);
    if (rc != CH_OK)
        return rc;
    t->call[t->n_calls++] = q->call;
    q->call = NULL;
    return CH_OK;
}

static ch_status set_outputs(ch_step_exec *t, int remote);

ch_status ch__step_exec_next_calls(ch_step_exec *t, int *n, ch_step_exec_call *const **out)
{
    request  *list = NULL;
    int       first = t->n_calls;
    ch_status rc = CH_OK;

    for (int i = 0; i < t->placed->plan->n_remote_parts && rc == CH_OK; i++)
        if (is_ready(t, i)) {
            rc = request_remote(t, &list, i);
            if (rc == CH_OK && t->pending[i].n_missing == 0) /* a lookup of no rows: no call */
                rc = set_outputs(t, i);
        }
    for (request *q = list; q != NULL && rc == CH_OK; q = q->next)
        rc = finish_request(t, q);
    drop_requests(list);
    *n = t->n_calls - first;
    *out = t->call != NULL ? t->call + first : NULL; /* NULL: no call so far */
    return rc;
}

/* ---- replies ---- */

/* Returns true if a result of a shard has the expected dtype and shape. */
static bool is_expected(const ch_step_exec *t, const struct ch_step_exec_part *p,
                        const ch_tensor *x)
{
    const ch_remote_part   *r = &t->placed->plan->remote[p->remote];
    const ch_plan_variable *v = main_variable(t->placed, r);
    ch_shape                want = ch__layout_shape(layout_of(v), v->shape, p->shard);

    if (!x->contiguous)
        return false;
    if (r->kind == CH_REMOTE_UPDATE)
        return true; /* checked by the code that uses the result */
    if (r->kind == CH_REMOTE_ROWS)
        want.dim[0] = ch__id_split_lookup_count(t->pending[p->remote].split[p->replica],
                                                v->axis > 0 ? 0 : p->shard);
    return x->dtype == v->dtype && ch_shape_equal(x->shape, want);
}

/* Assembles the result of a lookup for a replica, in the order of its ids. */
static ch_status assemble_rows(const ch_step_exec *t, int remote, int replica, ch_tensor **out)
{
    const ch_remote_part   *r = &t->placed->plan->remote[remote];
    const ch_plan_variable *v = main_variable(t->placed, r);
    const pending          *e = &t->pending[remote];
    ch_tensor *const       *part = e->result + replica * v->n_shards;
    ch_shape                row = {.rank = v->shape.rank - 1};
    ch_tensor              *joined = NULL;
    ch_status               rc = CH_OK;

    for (int k = 0; k < row.rank; k++)
        row.dim[k] = v->shape.dim[k + 1];
    if (v->n_shards > 1 && v->axis > 0 && part[0] != NULL) {
        rc = ch__layout_join(layout_of(v), part, &joined);
        part = &joined;
    }
    if (rc == CH_OK)
        rc = ch__id_split_lookup_rows(e->split[replica], v->dtype, row, part, out);
    ch_tensor_unref(joined);
    return rc;
}

/* Joins the results of all shards. */
static ch_status join_shards(const ch_step_exec *t, const ch_plan_variable *v,
                             ch_tensor *const *part, ch_tensor **out)
{
    ch_tensor *whole = NULL;
    ch_status  rc = ch__layout_join(layout_of(v), part, &whole);

    if (rc == CH_OK)
        rc = to_device(t, whole, 0, out);
    ch_tensor_unref(whole);
    return rc;
}

/* Adds the results of all shards, in shard order, so that every run gives the same bits. */
static ch_status sum_shards(const ch_step_exec *t, const ch_plan_variable *v,
                            ch_tensor *const *part, ch_tensor **out)
{
    ch_tensor *sum = NULL;
    ch_status  rc = CH_OK;

    for (int i = 0; i < v->n_shards; i++)
        if (part[i]->dtype != CH_F64 || !ch_shape_equal(part[i]->shape, part[0]->shape))
            return ch__fail(CH_INTERNAL,
                            "a server returned another dtype or shape for a sum over %s",
                            v->name);
    rc = ch_tensor_new(CH_F64, part[0]->shape, &sum);
    for (int64_t k = 0; rc == CH_OK && k < ch_tensor_count(sum); k++) {
        double x = 0;

        for (int i = 0; i < v->n_shards; i++)
            x += ((const double *)part[i]->data)[k];
        ((double *)ch_tensor_data_mut(sum))[k] = x;
    }
    if (rc == CH_OK)
        rc = to_device(t, sum, 0, out);
    ch_tensor_unref(sum);
    return rc;
}

/* Sets the output values of a remote part, of which all replies have arrived. */
static ch_status set_outputs(ch_step_exec *t, int remote)
{
    const ch_remote_part   *r = &t->placed->plan->remote[remote];
    const ch_plan_variable *v = main_variable(t->placed, r);
    const pending          *e = &t->pending[remote];
    ch_status               rc = CH_OK;

    for (int i = 0; i < r->n_out && rc == CH_OK; i++)
        for (int k = 0; k < t->n_replicas && rc == CH_OK; k++) {
            ch_tensor **to = value_at(t, r->out[i], k);

            if (r->kind == CH_REMOTE_ROWS)
                rc = assemble_rows(t, remote, k, to);
            else if (k > 0)
                *to = ch_tensor_ref(*value_at(t, r->out[i], 0));
            else if (r->is_sum)
                rc = sum_shards(t, v, e->result + i * v->n_shards, to);
            else
                rc = join_shards(t, v, e->result + i * v->n_shards, to);
        }
    return rc;
}

/* Stores the results of a part of a call. They begin at tensor `at` of the reply. */
static ch_status on_part_reply(ch_step_exec *t, const struct ch_step_exec_part *p,
                               const ch_message *reply, int at)
{
    const ch_remote_part   *r = &t->placed->plan->remote[p->remote];
    const ch_plan_variable *v = main_variable(t->placed, r);
    pending                *e = &t->pending[p->remote];

    if (at + r->n_out > reply->n_tensors)
        return ch__fail(CH_INTERNAL, "a server returned too few tensors (%d)",
                        reply->n_tensors);
    for (int i = 0; i < r->n_out; i++) {
        ch_tensor **to = &e->result[(p->replica * r->n_out + i) * v->n_shards + p->shard];

        if (!is_expected(t, p, reply->tensor[at + i]))
            return ch__fail(CH_INTERNAL, "a server returned another dtype or shape for %s",
                            v->name);
        *to = ch_tensor_ref(reply->tensor[at + i]);
    }
    return --e->n_missing == 0 ? set_outputs(t, p->remote) : CH_OK;
}

ch_status ch__step_exec_on_reply(ch_step_exec *t, ch_step_exec_call *call,
                                 const ch_message *reply)
{
    ch_status rc = CH_OK;
    int       at = 0;

    if (call->has_reply)
        return CH_OK;
    call->has_reply = true;
    for (int i = 0; i < call->n && rc == CH_OK; i++) {
        rc = on_part_reply(t, &call->part[i], reply, at);
        at += t->placed->plan->remote[call->part[i].remote].n_out;
    }
    return rc;
}

/* ---- local parts ---- */

const ch_local_part *ch__step_exec_local_part(const ch_step_exec *t)
{
    const ch_local_part *s;

    if (t->n_local_parts == t->placed->plan->n_local_parts)
        return NULL;
    s = &t->placed->plan->local_part[t->n_local_parts];
    for (int i = 0; i < s->n_in; i++)
        for (int k = 0; k < t->n_replicas; k++)
            if (*value_at(t, s->in[i], k) == NULL)
                return NULL;
    return s;
}

/* Makes a plain value if all replicas have the same tensor, otherwise a per-replica value. */
static ch_status value_of(const ch_step_exec *t, int value, ch_value **out)
{
    bool is_same = true;

    for (int k = 1; k < t->n_replicas; k++)
        is_same &= *value_at(t, value, k) == *value_at(t, value, 0);
    return ch_value_new(is_same ? CH_PLAIN : CH_PER_REPLICA, is_same ? 1 : t->n_replicas,
                        value_at(t, value, 0), out);
}

ch_status ch__step_exec_inputs(const ch_step_exec *t, ch_tuple **out)
{
    const ch_local_part *s = &t->placed->plan->local_part[t->n_local_parts];
    ch_value           **v = ch__calloc((size_t)s->n_in + 1, sizeof(*v));
    ch_status            rc = v == NULL ? ch__fail_memory("a step") : CH_OK;

    for (int i = 0; i < s->n_in && rc == CH_OK; i++)
        rc = value_of(t, s->in[i], &v[i]);
    if (rc == CH_OK)
        rc = ch_tuple_new(s->n_in, v, NULL, out);
    for (int i = 0; v != NULL && i < s->n_in; i++)
        ch_value_unref(v[i]);
    ch__free(v);
    return rc;
}

ch_status ch__step_exec_computed(ch_step_exec *t, const ch_tuple *results)
{
    const ch_local_part *s = &t->placed->plan->local_part[t->n_local_parts];

    if (ch_tuple_count(results) != s->n_out)
        return ch__fail(CH_INTERNAL, "a local part returned %d values, want %d",
                        ch_tuple_count(results), s->n_out);
    for (int i = 0; i < s->n_out; i++)
        for (int k = 0; k < t->n_replicas; k++)
            *value_at(t, s->out[i], k) = ch_tensor_ref(ch_value_at(ch_tuple_at(results, i), k));
    t->n_local_parts++;
    return CH_OK;
}

bool ch__step_exec_is_done(const ch_step_exec *t)
{
    for (int i = 0; i < t->placed->plan->n_remote_parts; i++)
        if (!t->pending[i].is_sent || t->pending[i].n_missing > 0)
            return false;
    return t->n_local_parts == t->placed->plan->n_local_parts;
}

ch_tensor *ch__step_exec_result(const ch_step_exec *t, int i, int replica)
{
    return *value_at(t, t->placed->plan->output[i], replica);
}

/* ---- definitions of updates ---- */

ch_status ch__step_exec_update(const ch_placed_plan *r, int remote, int shard,
                               uint64_t *function, ch_graph **graph)
{
    const ch_remote_part *u = &r->plan->remote[remote];
    ch_layout             l = layout_of(main_variable(r, u));

    *function = r->function[remote] + (uint64_t)shard;
    if (ch__layout_parts(l) > 1)
        return ch__shard_graph(u->graph, u->in, l, shard, graph);
    *graph = ch_graph_ref(u->graph);
    return CH_OK;
}

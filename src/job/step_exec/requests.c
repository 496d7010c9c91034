/* job/step_exec/requests.c -- builds the calls to servers for the remote parts of a step plan.
 *
 * A ch_exec_request collects the parts of a call: a part for each shard of each remote part
 * that is ready, on the same server and of the same kind. ch__requests_add adds the parts of a
 * remote part to a list of requests, with the tensors that each shard needs: ids, rows, slices
 * or whole values. ch__requests_finish packs the messages. ch__step_exec_next_calls calls both.
 *
 * A division of ids by shard (ch_id_split) is made once for each value, replica and sharding,
 * and is shared by the lookup and the update of the same rows.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "base/mem.h"
#include "job/message.h"
#include "job/shard.h"
#include "job/step_exec/private.h"
#include "tensor/tensor.h"

/* ---- inputs of a shard ---- */

static bool is_same_key(ch_split_key a, ch_split_key b)
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

static ch_status add_split(ch_step_exec *t, ch_split_key key, const ch_tensor *ids,
                           ch_id_split **out)
{
    ch_status rc = new_split(t, out);

    if (rc != CH_OK)
        return rc;
    t->split[t->n_splits++] = (ch_exec_split){key, *out};
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
    const ch_plan_variable *v = ch__exec_main_variable(t->placed, r);
    const ch_tensor        *ids = *ch__exec_value(t, r->in[input].value, replica);
    ch_split_key            key = {.value = r->in[input].value,
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
    const ch_plan_variable *v = ch__exec_main_variable(t->placed, r);
    const ch_plan_input    *in = &r->in[input];
    ch_shard_role           role = ch__shard_role(in->role, ch__exec_layout(v));
    ch_tensor              *whole = *ch__exec_value(t, in->value, 0);
    ch_id_split            *s = NULL;
    ch_status               rc;

    if (role == CH_SHARD_WHOLE) {
        *out = ch_tensor_ref(whole);
        return CH_OK;
    }
    if (role == CH_SHARD_SLICE)
        return ch__layout_cut(ch__exec_layout(v), v->shape, whole, shard, out);
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
    const ch_plan_variable *v = ch__exec_main_variable(t->placed, r);
    ch_id_split            *s = NULL;
    ch_status               rc = split_ids(t, remote, 0, replica, &s);
    int64_t invalid = rc == CH_OK && !r->or_zero ? ch__id_split_first_invalid(s) : -1;

    if (rc == CH_OK && invalid >= 0)
        rc = fail_invalid_id(v, *ch__exec_value(t, r->in[0].value, replica), invalid);
    if (rc != CH_OK)
        return rc;
    t->pending[remote].split[replica] = s;
    return ch__id_split_lookup_ids(s, v->axis > 0 ? 0 : shard, out);
}

/* ---- requests ---- */

/* A call under construction. It becomes a ch_step_exec_call in finish_request. */
struct ch_exec_request {
    ch_exec_request   *next;
    ch_remote_kind     kind;
    ch_step_exec_call *call;
    int                cap_parts, n_tensors, cap_tensors;
    ch_tensor        **tensor; /* tensors of the message; owned */
};

/* Finds the request for a server and kind in the list, or adds it. */
static ch_status request_for(ch_exec_request **list, int server, ch_remote_kind kind,
                             ch_exec_request **out)
{
    ch_exec_request *q = *list;

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

static ch_status add_part(ch_exec_request *q, int remote, int shard, int replica)
{
    if (!ch__grow((void **)&q->call->part, &q->cap_parts, q->call->n + 1,
                  sizeof(*q->call->part)))
        return ch__fail_memory("a call");
    q->call->part[q->call->n++] = (struct ch_step_exec_part){remote, shard, replica};
    return CH_OK;
}

/* Takes over the tensor, on an error too. */
static ch_status add_tensor(ch_exec_request *q, ch_tensor *t)
{
    if (!ch__grow((void **)&q->tensor, &q->cap_tensors, q->n_tensors + 1, sizeof(*q->tensor))) {
        ch_tensor_unref(t);
        return ch__fail_memory("a call");
    }
    q->tensor[q->n_tensors++] = t;
    q->call->bytes += (double)ch_tensor_bytes(t);
    return CH_OK;
}

void ch__requests_free(ch_exec_request *q)
{
    while (q != NULL) {
        ch_exec_request *next = q->next;

        for (int i = 0; i < q->n_tensors; i++)
            ch_tensor_unref(q->tensor[i]);
        if (q->call != NULL)
            ch__exec_call_free(q->call);
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
static ch_status request_part(ch_step_exec *t, ch_exec_request **list, int remote, int shard,
                              int replica)
{
    const ch_remote_part *r = &t->placed->plan->remote[remote];
    int                   server = t->placed->variable[r->variable[0]].shard[shard].server;
    ch_tensor            *ids = NULL;
    ch_exec_request      *q = NULL;
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

/* Returns the number of replicas for which a remote part is sent: all for a lookup, else 1. */
static int replicas_of(const ch_step_exec *t, const ch_remote_part *r)
{
    return r->kind == CH_REMOTE_ROWS ? t->n_replicas : 1;
}

ch_status ch__requests_add(ch_step_exec *t, ch_exec_request **list, int remote)
{
    const ch_remote_part   *r = &t->placed->plan->remote[remote];
    const ch_plan_variable *v = ch__exec_main_variable(t->placed, r);
    ch_exec_pending        *e = &t->pending[remote];
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
static ch_status pack_reads(const ch_step_exec *t, ch_exec_request *q)
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
    one->update = t->placed->update[p->remote] + (uint64_t)p->shard;
    one->inputs = (uint32_t)t->placed->plan->remote[p->remote].n_in;
}

/* Packs the message of a request for updates. */
static ch_status pack_update(const ch_step_exec *t, ch_exec_request *q)
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
    m.defer = t->attempt.defers;
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
static ch_status finish_request(ch_step_exec *t, ch_exec_request *q)
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

ch_status ch__requests_finish(ch_step_exec *t, ch_exec_request *list)
{
    ch_status rc = CH_OK;

    for (ch_exec_request *q = list; q != NULL && rc == CH_OK; q = q->next)
        rc = finish_request(t, q);
    return rc;
}

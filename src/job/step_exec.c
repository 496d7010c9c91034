/* job/step_exec.c -- one run of a route.   SPDX-License-Identifier: Apache-2.0 */
#include "job/step_exec.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "job/message.h"
#include "job/shard.h"
#include "tensor/buffer_pool.h"
#include "tensor/tensor.h"

/* What is known of a remote. */
typedef struct pending {
    bool          is_asked;
    int           n_left; /* answers to come */
    ch_tensor   **given;  /* [(replica * shards + shard) * outputs + output] */
    ch_id_split **split;  /* of lookups: the ids of each replica; of the trip */
    int           n_given;
} pending;

/* Ids by their shards: of a value of a replica, for a variable of so many rows in so many shards. */
typedef struct split_key {
    int     value, replica, n_shards;
    int64_t size;
} split_key;

typedef struct exec_split {
    split_key    key;
    ch_id_split *split;
} exec_split;

enum { STORED = 16 };

struct ch_step_exec_cache {
    int          n;
    ch_id_split *split[STORED];
};

struct ch_step_exec {
    const ch_placed_plan *r;
    ch_step_identity      attempt;
    int                   n_replicas;
    ch_tensor           **value; /* [value * replicas + replica] */
    pending              *pending;
    int                   n_local_parts; /* that have run */
    int                   n_splits, cap_splits;
    exec_split           *split;
    int                   n_calls, cap_calls;
    ch_step_exec_call   **call; /* all that were ever made */
};

/* ---- life ---- */

static ch_tensor **value_at(const ch_step_exec *t, int value, int replica)
{
    return &t->value[value * t->n_replicas + replica];
}

/* A value where a replica wants it. */
static ch_status put(const ch_step_exec *t, ch_tensor *x, int replica, ch_tensor **out)
{
    if (t->attempt.device != NULL)
        return ch__lend(x, t->attempt.device[replica], out);
    *out = ch_tensor_ref(x);
    return CH_OK;
}

/* What all replicas share is one tensor. */
static ch_status put_inputs(const ch_step_exec *t, ch_tensor *const *in)
{
    int       n = t->r->plan->n_inputs;
    ch_status rc = CH_OK;

    for (int k = 0; k < t->n_replicas; k++)
        for (int i = 0; i < n && rc == CH_OK; i++)
            if (k > 0 && in[k * n + i] == in[i])
                *value_at(t, i, k) = ch_tensor_ref(*value_at(t, i, 0));
            else
                rc = put(t, in[k * n + i], k, value_at(t, i, k));
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
    t->r = r;
    t->attempt = *attempt;
    t->n_replicas = n_replicas;
    t->value = ch__calloc(n_values + 1, sizeof(*t->value));
    t->pending = ch__calloc((size_t)r->plan->n_remote_parts + 1, sizeof(*t->pending));
    if (t->value == NULL || t->pending == NULL) {
        ch__step_exec_free(t);
        return ch__fail_memory("a step");
    }
    rc = put_inputs(t, in);
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
    for (int i = 0; i < e->n_given; i++)
        ch_tensor_unref(e->given[i]);
    ch__free(e->given);
    ch__free(e->split);
}

/* Those of the next trip are as large. */
static void store_splits(ch_step_exec *t)
{
    ch_step_plan *r = t->r->plan;

    if (r->store == NULL && t->n_splits > 0)
        r->store = ch__calloc(1, sizeof(*r->store));
    for (int i = 0; i < t->n_splits; i++)
        if (r->store != NULL && r->store->n < STORED)
            r->store->split[r->store->n++] = t->split[i].split;
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
    for (int i = 0; t->value != NULL && i < t->r->plan->n_values * t->n_replicas; i++)
        ch_tensor_unref(t->value[i]);
    for (int i = 0; t->pending != NULL && i < t->r->plan->n_remote_parts; i++)
        drop_pending(&t->pending[i]);
    for (int i = 0; i < t->n_calls; i++)
        drop_call(t->call[i]);
    store_splits(t);
    ch__free(t->split);
    ch__free(t->value);
    ch__free(t->pending);
    ch__free(t->call);
    ch__free(t);
}

/* ---- what a remote is over ---- */

/* The widest of its variables: what its inputs lie along. */
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

/* Rows of all replicas are looked up; values and updates are one for all. */
static int replicas_of(const ch_step_exec *t, const ch_remote_part *r)
{
    return r->kind == CH_REMOTE_ROWS ? t->n_replicas : 1;
}

/* True if all reads of what an update writes are answered. */
static bool may_write(const ch_step_exec *t, const ch_remote_part *r)
{
    const ch_step_plan *plan = t->r->plan;

    for (int i = 0; i < plan->n_remote_parts; i++)
        if ((!t->pending[i].is_asked || t->pending[i].n_left > 0) &&
            ch__remote_follows(r, &plan->remote[i]))
            return false;
    return true;
}

static bool is_ready(const ch_step_exec *t, int remote)
{
    const ch_remote_part *r = &t->r->plan->remote[remote];
    bool                  waits = r->kind == CH_REMOTE_UPDATE && r->n_out == 0;

    if (t->pending[remote].is_asked || (waits && t->n_local_parts < t->r->plan->n_local_parts))
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
    struct ch_step_exec_cache *store = t->r->plan->store;

    if (!ch__grow((void **)&t->split, &t->cap_splits, t->n_splits + 1, sizeof(*t->split)))
        return ch__fail_memory("a lookup");
    if (store == NULL || store->n == 0)
        return ch__id_split_new(out);
    *out = store->split[--store->n];
    return CH_OK;
}

static ch_status add_split(ch_step_exec *t, split_key key, const ch_tensor *ids,
                           ch_id_split **out)
{
    ch_status rc = new_split(t, out);

    if (rc != CH_OK)
        return rc;
    t->split[t->n_splits++] = (exec_split){key, *out};
    ch__id_split_place(*out, t->attempt.device != NULL ? t->attempt.device[key.replica] : NULL);
    return ch__id_split(*out, ids, key.size, key.n_shards);
}

/* A lookup and the update of the same rows share one. */
static ch_status split_ids(ch_step_exec *t, int remote, int input, int replica,
                           ch_id_split **out)
{
    const ch_remote_part   *r = &t->r->plan->remote[remote];
    const ch_plan_variable *v = main_variable(t->r, r);
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
        return ch__fail(CH_INTERNAL, "ids of %s are neither i32 nor i64 in one piece", v->name);
    return add_split(t, key, ids, out);
}

static ch_status input_of_shard(ch_step_exec *t, int remote, int input, int shard,
                                ch_tensor **out)
{
    const ch_remote_part   *r = &t->r->plan->remote[remote];
    const ch_plan_variable *v = main_variable(t->r, r);
    const ch_plan_input    *in = &r->in[input];
    ch_shard_role           role = ch__shard_role(in->role, layout_of(v));
    ch_tensor              *whole = *value_at(t, in->value, 0);
    ch_id_split            *s = NULL;
    ch_status               rc;

    if (role == CH_SHARD_WHOLE) {
        *out = ch_tensor_ref(whole);
        return CH_OK;
    }
    if (role == CH_SHARD_CUT)
        return ch__layout_cut(layout_of(v), v->shape, whole, shard, out);
    rc = split_ids(t, remote, role == CH_SHARD_IDS ? input : in->ids, 0, &s);
    if (rc != CH_OK)
        return rc;
    return role == CH_SHARD_IDS ? ch__id_split_sent(s, shard, out)
                                : ch__id_split_rows(s, whole, shard, out);
}

static ch_status fail_stray(const ch_plan_variable *v, const ch_tensor *ids, int64_t at)
{
    int64_t id = ids->dtype == CH_I64 ? ((const int64_t *)(const void *)ids->data)[at]
                                      : ((const int32_t *)(const void *)ids->data)[at];

    return ch__fail(
        CH_INVALID_ARGUMENT,
        "gather: id %lld at position %lld is not in [0, %lld), the rows of table %s",
        (long long)id, (long long)at, (long long)v->shape.dim[0], v->name);
}

/* The ids that a shard is asked for; NULL: none. Along another axis every shard has a piece of each row. */
static ch_status asked_of_shard(ch_step_exec *t, int remote, int shard, int replica,
                                ch_tensor **out)
{
    const ch_remote_part   *r = &t->r->plan->remote[remote];
    const ch_plan_variable *v = main_variable(t->r, r);
    ch_id_split            *s = NULL;
    ch_status               rc = split_ids(t, remote, 0, replica, &s);
    int64_t                 stray = rc == CH_OK && !r->or_zero ? ch__id_split_stray(s) : -1;

    if (rc == CH_OK && stray >= 0)
        rc = fail_stray(v, *value_at(t, r->in[0].value, replica), stray);
    if (rc != CH_OK)
        return rc;
    t->pending[remote].split[replica] = s;
    return ch__id_split_asked(s, v->axis > 0 ? 0 : shard, out);
}

/* ---- calls ---- */

/* A call that is being put together. */
typedef struct request {
    struct request    *next;
    ch_remote_kind     kind;
    ch_step_exec_call *call;
    int                cap_parts, n_tensors, cap_tensors;
    ch_tensor        **tensor; /* referenced */
} request;

static ch_status request_for(request **list, int server, ch_remote_kind kind, request **out)
{
    request *d = *list;

    while (d != NULL && (d->call->server != server || d->kind != kind))
        d = d->next;
    if (d == NULL) {
        d = ch__calloc(1, sizeof(*d));
        if (d == NULL)
            return ch__fail_memory("a call");
        d->call = ch__calloc(1, sizeof(*d->call));
        if (d->call == NULL) {
            ch__free(d);
            return ch__fail_memory("a call");
        }
        d->call->server = server;
        d->kind = kind;
        d->next = *list;
        *list = d;
    }
    *out = d;
    return CH_OK;
}

static ch_status add_part(request *d, int remote, int shard, int replica)
{
    if (!ch__grow((void **)&d->call->part, &d->cap_parts, d->call->n + 1,
                  sizeof(*d->call->part)))
        return ch__fail_memory("a call");
    d->call->part[d->call->n++] = (struct ch_step_exec_part){remote, shard, replica};
    return CH_OK;
}

/* Takes the tensor over, on an error too. */
static ch_status add_tensor(request *d, ch_tensor *t)
{
    if (!ch__grow((void **)&d->tensor, &d->cap_tensors, d->n_tensors + 1, sizeof(*d->tensor))) {
        ch_tensor_unref(t);
        return ch__fail_memory("a call");
    }
    d->tensor[d->n_tensors++] = t;
    d->call->bytes += (double)ch_tensor_bytes(t);
    return CH_OK;
}

static void drop_requests(request *d)
{
    while (d != NULL) {
        request *next = d->next;

        for (int i = 0; i < d->n_tensors; i++)
            ch_tensor_unref(d->tensor[i]);
        if (d->call != NULL)
            drop_call(d->call);
        ch__free(d->tensor);
        ch__free(d);
        d = next;
    }
}

static double shard_bytes(const ch_plan_variable *v)
{
    return (double)ch_shape_count(v->shape) * (double)ch_dtype_bytes(v->dtype) / v->n_shards;
}

/* What a part moves that is not among its tensors: values that are read, or written all over; or rows. */
static double bytes_of_part(const ch_step_exec *t, int remote, const ch_tensor *ids)
{
    const ch_remote_part   *r = &t->r->plan->remote[remote];
    const ch_plan_variable *v = &t->r->variable[r->variable[0]];
    double                  bytes = 0;

    if (ids != NULL)
        return (double)ch_tensor_count(ids) * shard_bytes(v) * v->n_shards /
               ((double)v->shape.dim[0] + 1);
    for (int i = 0; i < r->n_in; i++)
        if (r->in[i].role == CH_SHARD_IDS) /* an update of rows: they come along */
            return 0;
    for (int i = 0; i < r->n_variables; i++)
        bytes += shard_bytes(&t->r->variable[r->variable[i]]);
    return bytes;
}

/* What one shard is asked for. Of rows, if it has none of them, nothing. */
static ch_status request_part(ch_step_exec *t, request **list, int remote, int shard,
                              int replica)
{
    const ch_remote_part *r = &t->r->plan->remote[remote];
    int                   server = t->r->variable[r->variable[0]].shard[shard].server;
    ch_tensor            *ids = NULL;
    request              *d = NULL;
    ch_status             rc = CH_OK;

    if (r->kind == CH_REMOTE_ROWS) {
        rc = asked_of_shard(t, remote, shard, replica, &ids);
        if (rc != CH_OK || ids == NULL)
            return rc;
    }
    rc = request_for(list, server, r->kind, &d);
    if (rc == CH_OK)
        rc = add_part(d, remote, shard, replica);
    if (rc == CH_OK)
        d->call->bytes += bytes_of_part(t, remote, ids);
    if (rc == CH_OK && ids != NULL)
        rc = add_tensor(d, ids);
    else
        ch_tensor_unref(ids);
    for (int i = 0; r->kind == CH_REMOTE_UPDATE && i < r->n_in && rc == CH_OK; i++) {
        ch_tensor *in = NULL;

        rc = input_of_shard(t, remote, i, shard, &in);
        if (rc == CH_OK)
            rc = add_tensor(d, in);
    }
    t->pending[remote].n_left += rc == CH_OK;
    return rc;
}

static ch_status request_remote(ch_step_exec *t, request **list, int remote)
{
    const ch_remote_part   *r = &t->r->plan->remote[remote];
    const ch_plan_variable *v = main_variable(t->r, r);
    pending                *e = &t->pending[remote];
    int                     n = replicas_of(t, r), n_given = n * v->n_shards * r->n_out;
    ch_status               rc = CH_OK;

    e->given = ch__calloc((size_t)n_given + 1, sizeof(*e->given));
    e->split = ch__calloc((size_t)n, sizeof(*e->split));
    if (e->given == NULL || e->split == NULL)
        return ch__fail_memory("a call");
    e->n_given = n_given;
    for (int k = 0; k < n; k++)
        for (int i = 0; i < v->n_shards && rc == CH_OK; i++)
            rc = request_part(t, list, remote, i, k);
    e->is_asked = true;
    return rc;
}

/* ---- messages ---- */

static uint64_t variable_of(const ch_step_exec *t, const struct ch_step_exec_part *p)
{
    const ch_remote_part *r = &t->r->plan->remote[p->remote];

    return t->r->variable[r->variable[0]].shard[p->shard].variable;
}

static ch_status speak_reads(const ch_step_exec *t, request *d)
{
    Cohort__PsRead m;
    Cohort__PsRows rows;
    size_t         n = (size_t)d->call->n;
    uint64_t      *variable = ch__calloc(n, sizeof(*variable));
    ch_status      rc;

    if (variable == NULL)
        return ch__fail_memory("a call");
    for (size_t i = 0; i < n; i++)
        variable[i] = variable_of(t, &d->call->part[i]);
    cohort__ps_read__init(&m);
    cohort__ps_rows__init(&rows);
    m.n_variables = rows.n_variables = n;
    m.variables = rows.variables = variable;
    m.snapshot = rows.snapshot = t->attempt.snapshot;
    rc = d->kind == CH_REMOTE_READ
             ? ch__message_pack(CH_PS_READ, &m.base, 0, NULL, &d->call->message)
             : ch__message_pack(CH_PS_ROWS, &rows.base, d->n_tensors, d->tensor,
                                &d->call->message);
    d->n_tensors = 0;
    ch__free(variable);
    return rc;
}

/* Two shards of one variable on a server are two updates of the step. */
static uint32_t sequence_of(const struct ch_step_exec_part *p)
{
    enum { SHARDS = 1 << 12 }; /* at most */

    return (uint32_t)p->remote * SHARDS + (uint32_t)p->shard;
}

static void fill_one(const ch_step_exec *t, const struct ch_step_exec_part *p,
                     Cohort__PsUpdateOne *one)
{
    cohort__ps_update_one__init(one);
    one->sequence = sequence_of(p);
    one->function = t->r->function[p->remote] + (uint64_t)p->shard;
    one->inputs = (uint32_t)t->r->plan->remote[p->remote].n_in;
}

static ch_status speak_update(const ch_step_exec *t, request *d)
{
    Cohort__PsUpdate      m;
    size_t                n = (size_t)d->call->n;
    Cohort__PsUpdateOne  *one = ch__calloc(n, sizeof(*one));
    Cohort__PsUpdateOne **list = ch__calloc(n, sizeof(*list));
    char                 *worker = ch__strdup(t->attempt.worker);
    ch_status             rc = CH_OK;

    if (one == NULL || list == NULL || worker == NULL)
        rc = ch__fail_memory("a call");
    cohort__ps_update__init(&m);
    for (size_t i = 0; i < n && rc == CH_OK; i++) {
        list[i] = &one[i];
        fill_one(t, &d->call->part[i], &one[i]);
    }
    m.step = t->attempt.step;
    m.worker = worker;
    m.registration = t->attempt.registration;
    m.retired = t->attempt.retired;
    m.n_updates = n;
    m.updates = list;
    if (rc == CH_OK) {
        rc =
            ch__message_pack(CH_PS_UPDATE, &m.base, d->n_tensors, d->tensor, &d->call->message);
        d->n_tensors = 0;
    }
    ch__free(one);
    ch__free(list);
    ch__free(worker);
    return rc;
}

static ch_status finish_request(ch_step_exec *t, request *d)
{
    ch_status rc;

    if (!ch__grow((void **)&t->call, &t->cap_calls, t->n_calls + 1, sizeof(*t->call)))
        return ch__fail_memory("a call");
    rc = d->kind == CH_REMOTE_UPDATE ? speak_update(t, d) : speak_reads(t, d);
    if (rc != CH_OK)
        return rc;
    t->call[t->n_calls++] = d->call;
    d->call = NULL;
    return CH_OK;
}

static ch_status settle(ch_step_exec *t, int remote);

ch_status ch__step_exec_next_calls(ch_step_exec *t, int *n, ch_step_exec_call *const **out)
{
    request  *list = NULL;
    int       first = t->n_calls;
    ch_status rc = CH_OK;

    for (int i = 0; i < t->r->plan->n_remote_parts && rc == CH_OK; i++)
        if (is_ready(t, i)) {
            rc = request_remote(t, &list, i);
            if (rc == CH_OK && t->pending[i].n_left == 0) /* no rows: nobody is asked */
                rc = settle(t, i);
        }
    for (request *d = list; d != NULL && rc == CH_OK; d = d->next)
        rc = finish_request(t, d);
    drop_requests(list);
    *n = t->n_calls - first;
    *out = t->call != NULL ? t->call + first : NULL; /* nobody was ever asked */
    return rc;
}

/* ---- answers ---- */

/* Whether it looks as what a shard gives should. */
static bool fits(const ch_step_exec *t, const struct ch_step_exec_part *p, const ch_tensor *x)
{
    const ch_remote_part   *r = &t->r->plan->remote[p->remote];
    const ch_plan_variable *v = main_variable(t->r, r);
    ch_shape                want = ch__layout_shape(layout_of(v), v->shape, p->shard);

    if (!x->contiguous)
        return false;
    if (r->kind == CH_REMOTE_UPDATE)
        return true; /* the graph says what it gives; those who take it look */
    if (r->kind == CH_REMOTE_ROWS)
        want.dim[0] = ch__id_split_count(t->pending[p->remote].split[p->replica],
                                         v->axis > 0 ? 0 : p->shard);
    return x->dtype == v->dtype && ch_shape_equal(x->shape, want);
}

static ch_status spread_rows(const ch_step_exec *t, int remote, int replica, ch_tensor **out)
{
    const ch_remote_part   *r = &t->r->plan->remote[remote];
    const ch_plan_variable *v = main_variable(t->r, r);
    const pending          *e = &t->pending[remote];
    ch_tensor *const       *part = e->given + replica * v->n_shards;
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
        rc = ch__id_split_spread(e->split[replica], v->dtype, row, part, out);
    ch_tensor_unref(joined);
    return rc;
}

static ch_status join(const ch_step_exec *t, const ch_plan_variable *v, ch_tensor *const *part,
                      ch_tensor **out)
{
    ch_tensor *whole = NULL;
    ch_status  rc = ch__layout_join(layout_of(v), part, &whole);

    if (rc == CH_OK)
        rc = put(t, whole, 0, out);
    ch_tensor_unref(whole);
    return rc;
}

/* Numbers that are sums over the shards, in their order, so that the bits are the same each time. */
static ch_status add_up(const ch_step_exec *t, const ch_plan_variable *v,
                        ch_tensor *const *part, ch_tensor **out)
{
    ch_tensor *sum = NULL;
    ch_status  rc = CH_OK;

    for (int i = 0; i < v->n_shards; i++)
        if (part[i]->dtype != CH_F64 || !ch_shape_equal(part[i]->shape, part[0]->shape))
            return ch__fail(CH_INTERNAL, "a server gave something else for a sum over %s",
                            v->name);
    rc = ch_tensor_new(CH_F64, part[0]->shape, &sum);
    for (int64_t k = 0; rc == CH_OK && k < ch_tensor_count(sum); k++) {
        double x = 0;

        for (int i = 0; i < v->n_shards; i++)
            x += ((const double *)part[i]->data)[k];
        ((double *)ch_tensor_data_mut(sum))[k] = x;
    }
    if (rc == CH_OK)
        rc = put(t, sum, 0, out);
    ch_tensor_unref(sum);
    return rc;
}

/* All answers of a remote are there: its values. */
static ch_status settle(ch_step_exec *t, int remote)
{
    const ch_remote_part   *r = &t->r->plan->remote[remote];
    const ch_plan_variable *v = main_variable(t->r, r);
    const pending          *e = &t->pending[remote];
    ch_status               rc = CH_OK;

    for (int i = 0; i < r->n_out && rc == CH_OK; i++)
        for (int k = 0; k < t->n_replicas && rc == CH_OK; k++) {
            ch_tensor **to = value_at(t, r->out[i], k);

            if (r->kind == CH_REMOTE_ROWS)
                rc = spread_rows(t, remote, k, to);
            else if (k > 0)
                *to = ch_tensor_ref(*value_at(t, r->out[i], 0));
            else if (r->is_sum)
                rc = add_up(t, v, e->given + i * v->n_shards, to);
            else
                rc = join(t, v, e->given + i * v->n_shards, to);
        }
    return rc;
}

static ch_status take_part(ch_step_exec *t, const struct ch_step_exec_part *p,
                           const ch_message *answer, int at)
{
    const ch_remote_part   *r = &t->r->plan->remote[p->remote];
    const ch_plan_variable *v = main_variable(t->r, r);
    pending                *e = &t->pending[p->remote];

    if (at + r->n_out > answer->n_tensors)
        return ch__fail(CH_INTERNAL, "a server gave %d tensors, too few", answer->n_tensors);
    for (int i = 0; i < r->n_out; i++) {
        ch_tensor **to = &e->given[(p->replica * r->n_out + i) * v->n_shards + p->shard];

        if (!fits(t, p, answer->tensor[at + i]))
            return ch__fail(CH_INTERNAL, "a server gave something else for %s", v->name);
        *to = ch_tensor_ref(answer->tensor[at + i]);
    }
    return --e->n_left == 0 ? settle(t, p->remote) : CH_OK;
}

ch_status ch__step_exec_on_reply(ch_step_exec *t, ch_step_exec_call *call,
                                 const ch_message *answer)
{
    ch_status rc = CH_OK;
    int       at = 0;

    if (call->is_answered)
        return CH_OK;
    call->is_answered = true;
    for (int i = 0; i < call->n && rc == CH_OK; i++) {
        rc = take_part(t, &call->part[i], answer, at);
        at += t->r->plan->remote[call->part[i].remote].n_out;
    }
    return rc;
}

/* ---- segments ---- */

const ch_local_part *ch__step_exec_local_part(const ch_step_exec *t)
{
    const ch_local_part *s;

    if (t->n_local_parts == t->r->plan->n_local_parts)
        return NULL;
    s = &t->r->plan->local_part[t->n_local_parts];
    for (int i = 0; i < s->n_in; i++)
        for (int k = 0; k < t->n_replicas; k++)
            if (*value_at(t, s->in[i], k) == NULL)
                return NULL;
    return s;
}

/* Plain where all replicas have the same. */
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
    const ch_local_part *s = &t->r->plan->local_part[t->n_local_parts];
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
    const ch_local_part *s = &t->r->plan->local_part[t->n_local_parts];

    if (ch_tuple_count(results) != s->n_out)
        return ch__fail(CH_INTERNAL, "a segment gave %d values, not %d",
                        ch_tuple_count(results), s->n_out);
    for (int i = 0; i < s->n_out; i++)
        for (int k = 0; k < t->n_replicas; k++)
            *value_at(t, s->out[i], k) = ch_tensor_ref(ch_value_at(ch_tuple_at(results, i), k));
    t->n_local_parts++;
    return CH_OK;
}

bool ch__step_exec_is_done(const ch_step_exec *t)
{
    for (int i = 0; i < t->r->plan->n_remote_parts; i++)
        if (!t->pending[i].is_asked || t->pending[i].n_left > 0)
            return false;
    return t->n_local_parts == t->r->plan->n_local_parts;
}

ch_tensor *ch__step_exec_result(const ch_step_exec *t, int i, int replica)
{
    return *value_at(t, t->r->plan->output[i], replica);
}

/* ---- what servers are told of updates ---- */

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

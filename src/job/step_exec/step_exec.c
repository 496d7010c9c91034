/* job/step_exec/step_exec.c -- the execution of a step plan (step_exec.h).
 *
 * A ch_step_exec (private.h) has a table of values by number and replica, and for each remote
 * part a pending remote op (ch_exec_pending) with the results that have arrived.
 * ch__step_exec_next_calls builds requests from all remote parts that are ready (requests.c).
 * ch__step_exec_on_reply stores the results of the parts. When the last reply of a remote part
 * has arrived, set_outputs assembles its values from the shards.
 *
 * Invariants:
 *   1. A value is NULL until it is available, and then does not change.
 *   2. A remote part is sent once. It is done when it was sent and no reply is missing.
 *   3. Local parts run in order; `n_local_parts` is the index of the next.
 *   4. Reads and updates are sent once for all replicas, and updates take the inputs of replica
 *      0. Lookups are sent for each replica.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "base/mem.h"
#include "job/shard.h"
#include "job/step_exec/private.h"
#include "tensor/buffer_pool.h"
#include "tensor/tensor.h"

/* ---- create and free ---- */

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
                *ch__exec_value(t, i, k) = ch_tensor_ref(*ch__exec_value(t, i, 0));
            else
                rc = to_device(t, in[k * n + i], k, ch__exec_value(t, i, k));
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

void ch__exec_call_free(ch_step_exec_call *c)
{
    ch__message_unref(c->message);
    ch__free(c->part);
    ch__free(c);
}

static void drop_pending(ch_exec_pending *e)
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
        if (r->cache != NULL && r->cache->n < CH_SPLITS_CACHED)
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
        ch__exec_call_free(t->call[i]);
    cache_splits(t);
    ch__free(t->split);
    ch__free(t->value);
    ch__free(t->pending);
    ch__free(t->call);
    ch__free(t);
}

/* ---- remote parts ---- */

const ch_plan_variable *ch__exec_main_variable(const ch_placed_plan *r,
                                               const ch_remote_part *remote)
{
    const ch_plan_variable *best = &r->variable[remote->variable[0]];

    for (int i = 1; i < remote->n_variables; i++) {
        const ch_plan_variable *v = &r->variable[remote->variable[i]];

        best = v->shape.rank > best->shape.rank ? v : best;
    }
    return best;
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
            if (*ch__exec_value(t, r->in[i].value, k) == NULL)
                return false;
    return may_write(t, r);
}

/* ---- results of remote parts ---- */

/* Returns true if a result of a shard has the expected dtype and shape. */
static bool is_expected(const ch_step_exec *t, const struct ch_step_exec_part *p,
                        const ch_tensor *x)
{
    const ch_remote_part   *r = &t->placed->plan->remote[p->remote];
    const ch_plan_variable *v = ch__exec_main_variable(t->placed, r);
    ch_shape                want = ch__layout_shape(ch__exec_layout(v), v->shape, p->shard);

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
    const ch_plan_variable *v = ch__exec_main_variable(t->placed, r);
    const ch_exec_pending  *e = &t->pending[remote];
    ch_tensor *const       *part = e->result + replica * v->n_shards;
    ch_shape                row = {.rank = v->shape.rank - 1};
    ch_tensor              *joined = NULL;
    ch_status               rc = CH_OK;

    for (int k = 0; k < row.rank; k++)
        row.dim[k] = v->shape.dim[k + 1];
    if (v->n_shards > 1 && v->axis > 0 && part[0] != NULL) {
        rc = ch__layout_join(ch__exec_layout(v), part, &joined);
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
    ch_status  rc = ch__layout_join(ch__exec_layout(v), part, &whole);

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
    const ch_plan_variable *v = ch__exec_main_variable(t->placed, r);
    const ch_exec_pending  *e = &t->pending[remote];
    ch_status               rc = CH_OK;

    for (int i = 0; i < r->n_out && rc == CH_OK; i++)
        for (int k = 0; k < t->n_replicas && rc == CH_OK; k++) {
            ch_tensor **to = ch__exec_value(t, r->out[i], k);

            if (r->kind == CH_REMOTE_ROWS)
                rc = assemble_rows(t, remote, k, to);
            else if (k > 0)
                *to = ch_tensor_ref(*ch__exec_value(t, r->out[i], 0));
            else if (r->is_sum)
                rc = sum_shards(t, v, e->result + i * v->n_shards, to);
            else
                rc = join_shards(t, v, e->result + i * v->n_shards, to);
        }
    return rc;
}

/* ---- calls and replies ---- */

ch_status ch__step_exec_next_calls(ch_step_exec *t, int *n, ch_step_exec_call *const **out)
{
    ch_exec_request *list = NULL;
    int              first = t->n_calls;
    ch_status        rc = CH_OK;

    for (int i = 0; i < t->placed->plan->n_remote_parts && rc == CH_OK; i++)
        if (is_ready(t, i)) {
            rc = ch__requests_add(t, &list, i);
            if (rc == CH_OK && t->pending[i].n_missing == 0) /* a lookup of no rows: no call */
                rc = set_outputs(t, i);
        }
    if (rc == CH_OK)
        rc = ch__requests_finish(t, list);
    ch__requests_free(list);
    *n = t->n_calls - first;
    *out = t->call != NULL ? t->call + first : NULL; /* NULL: no call so far */
    return rc;
}

/* Stores the results of a part of a call. They begin at tensor `at` of the reply. */
static ch_status on_part_reply(ch_step_exec *t, const struct ch_step_exec_part *p,
                               const ch_message *reply, int at)
{
    const ch_remote_part   *r = &t->placed->plan->remote[p->remote];
    const ch_plan_variable *v = ch__exec_main_variable(t->placed, r);
    ch_exec_pending        *e = &t->pending[p->remote];

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
            if (*ch__exec_value(t, s->in[i], k) == NULL)
                return NULL;
    return s;
}

/* Makes a plain value if all replicas have the same tensor, otherwise a per-replica value. */
static ch_status value_of(const ch_step_exec *t, int value, ch_value **out)
{
    bool is_same = true;

    for (int k = 1; k < t->n_replicas; k++)
        is_same &= *ch__exec_value(t, value, k) == *ch__exec_value(t, value, 0);
    return ch_value_new(is_same ? CH_PLAIN : CH_PER_REPLICA, is_same ? 1 : t->n_replicas,
                        ch__exec_value(t, value, 0), out);
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
            *ch__exec_value(t, s->out[i], k) =
                ch_tensor_ref(ch_value_at(ch_tuple_at(results, i), k));
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
    return *ch__exec_value(t, t->placed->plan->output[i], replica);
}

/* ---- definitions of updates ---- */

ch_status ch__step_exec_update(const ch_placed_plan *r, int remote, int shard, uint64_t *number,
                               ch_graph **graph)
{
    const ch_remote_part *u = &r->plan->remote[remote];
    ch_layout             l = ch__exec_layout(ch__exec_main_variable(r, u));

    *number = r->update[remote] + (uint64_t)shard;
    if (ch__layout_parts(l) > 1)
        return ch__shard_graph(u->graph, u->in, l, shard, graph);
    *graph = ch_graph_ref(u->graph);
    return CH_OK;
}

/* strategy/merge.c -- code that speaks of one replica, of all of them, or of the copies of a variable.
 *
 * All of it records the same calls, on every replica. What differs is what may be said, which graph/step.c
 * checks, and what an assign means, which strategy/assign.c says.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "collective/collective.h"
#include "graph/step.h"
#include "strategy/strategy.h"

ch_strategy *ch_step_strategy(ch_step *s)
{
    return s != NULL ? s->owner : NULL;
}

static ch_step *outermost(ch_step *s)
{
    while (s->outer != NULL)
        s = s->outer;
    return s;
}

ch_speaks_of ch__speaks_of(const ch_step *s)
{
    while (s->outer != NULL)
        s = s->outer;
    return s->speaks_of;
}

/* Whether `call` may be recorded in s now, with n nodes at `in`: it speaks of `from`, or of `other`. */
static bool may_switch(ch_step *s, const char *call, ch_speaks_of from, ch_speaks_of other,
                       const char *where, const void *caller)
{
    ch_speaks_of now;

    if (s == NULL || s->rc != CH_OK)
        return false;
    now = ch__speaks_of(s);
    if (s->outer == NULL && (now == from || now == other))
        return true;
    ch__step_record_error(
        s,
        ch__fail(CH_FAILED_PRECONDITION, "%s: %s", call,
                 s->outer != NULL ? "not inside a cond, while or scan" : where),
        caller);
    return false;
}

static bool has_nodes(ch_step *s, const char *call, int n, ch_node *const *in, int n_out,
                      ch_node **out, const void *caller)
{
    bool ok = n >= 0 && n_out >= 0 && (n == 0 || in != NULL) && (n_out == 0 || out != NULL);

    for (int i = 0; ok && i < n; i++)
        ok = in[i] != NULL;
    return ch__step_want(s, ok, call, "a node, or where results go", caller);
}

static void clear(int n_out, ch_node **out)
{
    for (int i = 0; out != NULL && i < n_out; i++)
        out[i] = NULL;
}

/* What the function gave. One that it did not set is missed where it is used. */
static void take_back(ch_step *s, const char *call, int n_out, ch_node *const *out,
                      const void *caller)
{
    for (int i = 0; i < n_out && s->rc == CH_OK; i++)
        if (out[i] == NULL)
            ch__step_record_error(
                s, ch__fail(CH_INVALID_ARGUMENT, "%s: its result %d is not set", call, i),
                caller);
}

void ch_merge_call(ch_step *s, ch_merge_fn fn, void *arg, int n, ch_node *const *in, int n_out,
                   ch_node **out)
{
    const void *caller = __builtin_return_address(0);

    clear(n_out, out);
    if (!may_switch(s, "merge_call", CH_SPEAKS_OF_REPLICA, CH_SPEAKS_OF_REPLICA,
                    "it is for code of a replica, and this speaks of all of them already",
                    caller) ||
        !ch__step_want(s, fn != NULL, "merge_call", "its function", caller) ||
        !has_nodes(s, "merge_call", n, in, n_out, out, caller))
        return;
    s->speaks_of = CH_SPEAKS_OF_ALL;
    fn(s, n, in, out, arg);
    s->speaks_of = CH_SPEAKS_OF_REPLICA;
    take_back(s, "merge_call", n_out, out, caller);
}

void ch_replica_call(ch_step *s, ch_merge_fn fn, void *arg, int n, ch_node *const *in,
                     int n_out, ch_node **out)
{
    const void *caller = __builtin_return_address(0);

    clear(n_out, out);
    if (!may_switch(s, "replica_call", CH_SPEAKS_OF_ALL, CH_SPEAKS_OF_ALL,
                    "it is for merge calls: this is code of a replica already", caller) ||
        !ch__step_want(s, fn != NULL, "replica_call", "its function", caller) ||
        !has_nodes(s, "replica_call", n, in, n_out, out, caller))
        return;
    s->speaks_of = CH_SPEAKS_OF_REPLICA;
    fn(s, n, in, out, arg);
    s->speaks_of = CH_SPEAKS_OF_ALL;
    take_back(s, "replica_call", n_out, out, caller);
}

void ch_update(ch_step *s, ch_var *v, ch_update_fn fn, void *arg, int n, ch_node *const *in,
               int n_out, ch_node **out)
{
    const void  *caller = __builtin_return_address(0);
    ch_speaks_of before;

    clear(n_out, out);
    if (!may_switch(s, "update", CH_SPEAKS_OF_ALL, CH_SPEAKS_OF_REPLICA,
                    "an update is going on already", caller) ||
        !ch__var_may_write(s, v, "update", caller) ||
        !ch__step_want(s, fn != NULL, "update", "its function", caller) ||
        !has_nodes(s, "update", n, in, n_out, out, caller))
        return;
    before = s->speaks_of;
    s->speaks_of = CH_SPEAKS_OF_COPY;
    fn(s, v, n, in, out, arg);
    s->speaks_of = before;
    take_back(s, "update", n_out, out, caller);
}

/* ---- in a merge call ---- */

/* From now on until end_reduction the code is each replica's. */
static bool begin_reduction(ch_node *x, const char *call, const void *caller)
{
    ch_step *s = ch_node_step(x);

    if (x == NULL || s == NULL ||
        !may_switch(s, call, CH_SPEAKS_OF_ALL, CH_SPEAKS_OF_ALL,
                    "it is for merge calls; in a replica use ch_all_reduce or "
                    "ch_all_gather",
                    caller))
        return false;
    if (!x->varies && !x->is_each && ch_strategy_replicas(s->owner) > 1) {
        ch__step_record_error(
            s,
            ch__fail(CH_INVALID_ARGUMENT,
                     "%s: the value is one for all replicas, not per-replica; in a "
                     "replica, ch_identity gives each its own",
                     call),
            caller);
        return false;
    }
    s->speaks_of = CH_SPEAKS_OF_REPLICA;
    return true;
}

static ch_node *end_reduction(const ch_node *x, ch_node *y)
{
    outermost(ch_node_step(x))->speaks_of = CH_SPEAKS_OF_ALL;
    return y;
}

/* The mean of equal values is any of them. */
ch_node *ch_merge_reduce(ch_reduce_op op, ch_node *x)
{
    const void *caller = __builtin_return_address(0), *before;
    ch_step    *s = ch_node_step(x);
    ch_node    *y;

    if (x != NULL && op == CH_MEAN && !x->varies)
        return ch_dtype_is_int(x->dtype) ? ch__roles.cast_to(x, ch__mean_dtype(x->dtype)) : x;
    if (!begin_reduction(x, "merge_reduce", caller))
        return NULL;
    before = ch__step_begin_at(s, caller, "merge_reduce");
    y = end_reduction(x, ch_all_reduce(op, x));
    ch__step_end(s, before);
    return y;
}

ch_node *ch_merge_gather(ch_node *x, int axis)
{
    const void *caller = __builtin_return_address(0), *before;
    ch_step    *s = ch_node_step(x);
    ch_node    *y;

    if (!begin_reduction(x, "merge_gather", caller))
        return NULL;
    before = ch__step_begin_at(s, caller, "merge_gather");
    y = end_reduction(x, ch_all_gather(x, axis));
    ch__step_end(s, before);
    return y;
}

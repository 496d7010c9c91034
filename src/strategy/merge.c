/* strategy/merge.c -- switches of context in a step: merge calls, replica calls and updates.
 *
 * A step is recorded in replica context. ch_merge_call switches to cross-replica context,
 * ch_replica_call back, and ch_update to the update of the copies of a variable. The context
 * decides which ops are allowed (graph/step_call.c) and the meaning of an assign (assign.c). In
 * every context all replicas execute the recorded ops.
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

ch_step_context ch__step_context(const ch_step *s)
{
    return s->outer != NULL ? ch__step_outermost(s->outer)->context : s->context;
}

/* Returns true if `call` may be recorded in s now: the context must be `from` or `other`, and s
 * must not be the body of a cond, while or scan. Otherwise records an error and returns false.
 * `problem` is the text for a wrong context. */
static bool may_switch(ch_step *s, const char *call, ch_step_context from,
                       ch_step_context other, const char *problem, const void *caller)
{
    ch_step_context now;

    if (s == NULL || s->rc != CH_OK)
        return false;
    now = ch__step_context(s);
    if (s->outer == NULL && (now == from || now == other))
        return true;
    ch__step_record_error(s,
                          ch__fail(CH_FAILED_PRECONDITION, "%s: %s", call,
                                   s->outer != NULL
                                       ? "it must not be called inside a cond, while or scan"
                                       : problem),
                          caller);
    return false;
}

/* Records an error and returns false if a list or an input node is NULL or a count is
 * negative. */
static bool has_nodes(ch_step *s, const char *call, int n, ch_node *const *in, int n_out,
                      ch_node **out, const void *caller)
{
    bool ok = n >= 0 && n_out >= 0 && (n == 0 || in != NULL) && (n_out == 0 || out != NULL);

    for (int i = 0; ok && i < n; i++)
        ok = in[i] != NULL;
    return ch__step_want(s, ok, call, "an input node, or a list of nodes,", caller);
}

/* Sets all results to NULL, so that they are defined after an error. */
static void clear(int n_out, ch_node **out)
{
    for (int i = 0; out != NULL && i < n_out; i++)
        out[i] = NULL;
}

/* Records an error for a result that the function did not set. Without this check the error
 * would appear where the program uses the result. */
static void check_results(ch_step *s, const char *call, int n_out, ch_node *const *out,
                          const void *caller)
{
    for (int i = 0; i < n_out && s->rc == CH_OK; i++)
        if (out[i] == NULL)
            ch__step_record_error(s,
                                  ch__fail(CH_INVALID_ARGUMENT,
                                           "%s: the function did not set result %d", call, i),
                                  caller);
}

void ch_merge_call(ch_step *s, ch_merge_fn fn, void *arg, int n, ch_node *const *in, int n_out,
                   ch_node **out)
{
    const void *caller = __builtin_return_address(0);

    clear(n_out, out);
    if (!may_switch(s, "merge_call", CH_STEP_CONTEXT_REPLICA, CH_STEP_CONTEXT_REPLICA,
                    "it must be called in replica context, not in a merge call or an update",
                    caller) ||
        !ch__step_want(s, fn != NULL, "merge_call", "its function", caller) ||
        !has_nodes(s, "merge_call", n, in, n_out, out, caller))
        return;
    s->context = CH_STEP_CONTEXT_CROSS;
    fn(s, n, in, out, arg);
    s->context = CH_STEP_CONTEXT_REPLICA;
    check_results(s, "merge_call", n_out, out, caller);
}

void ch_replica_call(ch_step *s, ch_merge_fn fn, void *arg, int n, ch_node *const *in,
                     int n_out, ch_node **out)
{
    const void *caller = __builtin_return_address(0);

    clear(n_out, out);
    if (!may_switch(s, "replica_call", CH_STEP_CONTEXT_CROSS, CH_STEP_CONTEXT_CROSS,
                    "it must be called in a merge call", caller) ||
        !ch__step_want(s, fn != NULL, "replica_call", "its function", caller) ||
        !has_nodes(s, "replica_call", n, in, n_out, out, caller))
        return;
    s->context = CH_STEP_CONTEXT_REPLICA;
    fn(s, n, in, out, arg);
    s->context = CH_STEP_CONTEXT_CROSS;
    check_results(s, "replica_call", n_out, out, caller);
}

void ch_update(ch_step *s, ch_var *v, ch_update_fn fn, void *arg, int n, ch_node *const *in,
               int n_out, ch_node **out)
{
    const void     *caller = __builtin_return_address(0);
    ch_step_context before;

    clear(n_out, out);
    if (!may_switch(s, "update", CH_STEP_CONTEXT_CROSS, CH_STEP_CONTEXT_REPLICA,
                    "it must not be called inside another update", caller) ||
        !ch__var_may_write(s, v, "update", caller) ||
        !ch__step_want(s, fn != NULL, "update", "its function", caller) ||
        !has_nodes(s, "update", n, in, n_out, out, caller))
        return;
    before = s->context;
    s->context = CH_STEP_CONTEXT_UPDATE;
    fn(s, v, n, in, out, arg);
    s->context = before;
    check_results(s, "update", n_out, out, caller);
}

/* ---- in a merge call ---- */

/* Switches to replica context until end_reduction, because collectives are allowed only there.
 * Returns false after an error: not in a merge call, or x is the same value for all
 * replicas. */
static bool begin_reduction(ch_node *x, const char *call, const void *caller)
{
    ch_step *s = ch_node_step(x);

    if (x == NULL || s == NULL ||
        !may_switch(
            s, call, CH_STEP_CONTEXT_CROSS, CH_STEP_CONTEXT_CROSS,
            "it must be called in a merge call; in replica context use ch_all_reduce or "
            "ch_all_gather",
            caller))
        return false;
    if (!x->varies && !x->is_per_replica && ch_strategy_replicas(s->owner) > 1) {
        ch__step_record_error(
            s,
            ch__fail(CH_INVALID_ARGUMENT,
                     "%s: the value is the same for all replicas, not per-replica; in "
                     "replica context ch_identity makes it per-replica",
                     call),
            caller);
        return false;
    }
    s->context = CH_STEP_CONTEXT_REPLICA;
    return true;
}

/* Switches back to cross-replica context. Returns y. */
static ch_node *end_reduction(const ch_node *x, ch_node *y)
{
    ch__step_outermost(ch_node_step(x))->context = CH_STEP_CONTEXT_CROSS;
    return y;
}

/* A mean of equal values needs no collective: the result is x itself, in the dtype of a
 * mean. */
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

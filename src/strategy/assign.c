/* strategy/assign.c -- records reads and changes of variables in a step.
 *
 * Implements ch_var_read, ch_var_assign, ch_var_assign_add, ch_var_assign_sub and
 * ch_var_scatter_*. The graph of a step has one value of a variable on each replica. The
 * meaning of an assign depends on the context of the code (ch__step_context, merge.c):
 *
 *   - Replica context: the operand is aggregated over the replicas before it is used.
 *   - Cross-replica context (a merge call): the operand is already the same on all replicas.
 *   - Update: the operand changes only the copy of this replica.
 *
 * struct change describes a change. apply() checks it, record() aggregates the operand and
 * combines it with the current value. Errors are recorded in the step, and the function returns
 * NULL.
 *
 * Invariant: if replicas may assign different values to a mirrored variable, the log warns once
 * (copies-differ) and the copies are not compared any more. A shared variable never gets
 * different values: its operand is aggregated, or the operand of replica 0 is broadcast.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "base/log.h"
#include "collective/collective.h"
#include "graph/step.h"
#include "ops/ops.h"
#include "strategy/strategy.h"

bool ch__strategy_shares_by_device(const ch_strategy *st, const ch_strategy *of)
{
    return st != of && st->parts.shares_by_device && of->parts.shares_by_device;
}

bool ch__strategy_may_read(const ch_strategy *st, const ch_strategy *of)
{
    const ch_strategy *default_strategy = ch__strategy_default();

    return st == of || st == default_strategy || of == default_strategy ||
           ch__strategy_shares_by_device(st, of);
}

/* Returns INVALID_ARGUMENT if v is NULL, or if s has no owner: steps of a dataset pipeline must
 * not use variables. */
static ch_status check_var(const ch_step *s, const ch_var *v, const char *call)
{
    if (v == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: the variable is NULL, in %s", call,
                        s->graph->name);
    if (s->owner == NULL)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "the step uses variable \"%s\"; steps of a dataset pipeline must not use variables",
            v->name);
    return CH_OK;
}

static ch_status fail_mixed(const ch_step *s, const ch_var *v, const char *call)
{
    return ch__fail(
        CH_FAILED_PRECONDITION,
        "%s: variable %s: mixing different strategies: %s made it, and %s runs under "
        "%s; run the step under the variable's strategy",
        call, v->name, v->strategy->label, s->graph->name, ((ch_strategy *)s->owner)->label);
}

/* Returns an error unless s runs under v's strategy. Other strategies may read v but not write
 * it. */
static ch_status check_write(const ch_step *s, const ch_var *v, const char *call)
{
    const ch_strategy *st = s->owner;
    ch_status          rc = check_var(s, v, call);

    if (rc != CH_OK || st == v->strategy)
        return rc;
    if (!ch__strategy_may_read(st, v->strategy))
        return fail_mixed(s, v, call);
    return ch__fail(
        CH_FAILED_PRECONDITION,
        "%s: variable %s: %s made it, and %s runs under %s, which may read it but not "
        "write it: only its own strategy keeps its copies equal; run the step under the "
        "variable's strategy, or make the variable in this scope",
        call, v->name, v->strategy->label, s->graph->name, st->label);
}

bool ch__var_may_write(ch_step *s, const ch_var *v, const char *call, const void *caller)
{
    ch_status rc;

    if (s == NULL || s->rc != CH_OK)
        return false;
    rc = check_write(s, v, call);
    if (rc != CH_OK)
        ch__step_record_error(s, rc, caller);
    return rc == CH_OK;
}

static void release_var(void *v)
{
    ch_var_unref(v);
}

/* Returns an error unless every replica of the step has a copy of v on its devices, and the
 * step has a single value of v if it is in a merge call. */
static ch_status check_shared(const ch_step *s, const ch_var *v)
{
    const ch_strategy *st = s->owner;
    ch_device *const  *device;
    ch_status          rc = ch__strategy_devices(st, &device);

    if (rc == CH_OK)
        rc = ch__var_match_copies(v, st->n_local, st->n_cores, device, NULL);
    if (rc == CH_OK && ch__var_is_per_replica(v) &&
        ch__step_context(s) == CH_STEP_CONTEXT_CROSS)
        rc = ch__fail(
            CH_INVALID_ARGUMENT,
            "ch_var_read: variable %s: %s made it, and its copies differ: a merge call "
            "of %s has none of its own; read it outside the merge call, and pass the "
            "value",
            v->name, v->strategy->label, st->label);
    return rc;
}

/* Records the read of a variable of another strategy. Records an error unless the step may read
 * it, and unless there is a single value of it: that of cross-replica context, or, if the
 * strategies share copies by device, the copy of each replica. */
static ch_node *borrow(ch_step *s, ch_var *v, const void *caller)
{
    bool      by_device = ch__strategy_shares_by_device(s->owner, v->strategy);
    ch_node  *n;
    ch_status rc = !ch__strategy_may_read(s->owner, v->strategy) ? fail_mixed(s, v, "var_read")
                   : by_device                                   ? check_shared(s, v)
                                                                 : ch__var_check_read(v);

    if (rc != CH_OK) {
        ch__step_record_error(s, rc, caller);
        return NULL;
    }
    n = ch__step_borrow(s, ch_var_ref(v), release_var, v->name, v->dtype, v->shape);
    if (n != NULL && by_device && ch__var_is_per_replica(v))
        n->varies = true;
    return n;
}

/* Records the read of this replica's copy. Marks the node as varying if the copies differ by
 * design, and the variable as remote if it is not in this process. */
static ch_node *read_copy(ch_step *s, ch_var *v)
{
    ch_node *n = ch__step_read(s, v, v->name, v->dtype, v->shape);

    ch__var_note_use(s, v);
    if (n != NULL && ch__var_is_per_replica(v))
        n->varies = true;
    if (n != NULL && !ch__var_is_local(v))
        ch__step_mark_remote(s, v);
    return n;
}

/* ---- aggregation ---- */

/* A change of a variable that is being recorded. */
typedef struct change {
    ch_step    *s;
    ch_var     *v;
    const char *name;       /* name of the call, for messages: "assign_add" */
    bool        overwrites; /* true: the result does not depend on the current value */
    /* True: the rows of all replicas may be concatenated and applied by a single call. */
    bool     can_gather;
    ch_node *ids; /* row numbers; NULL: x changes the whole variable */
    ch_node *x;   /* the operand: the new value, the delta, or the rows */
    /* Records the new value of the variable from its current value, the ids and the operand. */
    ch_node *(*combine)(ch_node *now, ch_node *ids, ch_node *x);
} change;

/* Records the error in the step. Returns false. */
static bool fail(const change *c, ch_status rc)
{
    ch__step_record_error(c->s, rc, NULL);
    return false;
}

/* Returns true if x is a literal or an input that all replicas share. Such a value exists once,
 * not once per replica. A value that replica code computes from it counts as per-replica. */
static bool is_shared(const ch_node *x)
{
    return x->is_literal || (x->head->op == ch__roles.input && !x->varies);
}

/* Returns true if x is a constant with only zeros. */
static bool is_zero(const ch_node *x)
{
    const ch_tensor *t;

    if (x->head->op != ch__roles.constant)
        return false;
    t = ((const ch_constant_attrs *)x->head->attrs)->value;
    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        if (ch__load(t->dtype, (const char *)t->data + (size_t)i * ch_dtype_bytes(t->dtype)) !=
            0)
            return false;
    return true;
}

/* Returns true if replicas may have different operands. */
static bool may_differ(const change *c)
{
    return c->x->varies || (c->ids != NULL && c->ids->varies);
}

/* Warns that the copies will differ, once for each variable. The copies are then not compared
 * any more (COHORT_CHECK_COPIES). */
static void warn_of_copies(const change *c, const char *why)
{
    if (!atomic_exchange(&c->v->has_warned, true))
        ch__log(
            CH_LOG_WARNING, "copies-differ",
            "%s of variable %s: replicas may assign different values, and %s: its copies will "
            "differ",
            c->name, c->v->name, why);
}

/* Accepts the operand unless replicas share the variable and their operands may differ. */
static bool aggregate_none(const change *c)
{
    if (!may_differ(c))
        return true;
    if (c->v->n_copies == 1)
        return fail(c, ch__fail(CH_INVALID_ARGUMENT,
                                "%s of %s: replicas share the variable and may assign "
                                "different values: it needs an aggregation (ch_var_spec)",
                                c->name, c->v->name));
    warn_of_copies(c, "the variable has no aggregation");
    return true;
}

/* Accepts an operand that exists once. Fails for CH_AGGREGATE_SUM unless the operand is zero,
 * because a sum over the replicas would count it several times. */
static bool aggregate_shared(const change *c)
{
    if (c->v->aggregation != CH_AGGREGATE_SUM || is_zero(c->x))
        return true;
    return fail(
        c, ch__fail(CH_INVALID_ARGUMENT,
                    "%s of %s: %s is the same value for all replicas and cannot be summed over "
                    "%d replicas; ch_identity makes it per-replica",
                    c->name, c->v->name, c->x->is_literal ? "a constant" : "a plain input",
                    c->v->strategy->n_replicas));
}

/* Replaces ids and rows by the concatenated ids and rows of all replicas. For a mean the rows
 * are divided by the number of replicas. */
static bool gather_rows(change *c)
{
    ch_node *in[2] = {c->ids, c->x}, *out[2];

    if (!c->can_gather)
        return fail(c, ch__fail(CH_UNIMPLEMENTED,
                                "%s of %s: rows of several replicas cannot be summed or "
                                "averaged for this call; use CH_AGGREGATE_NONE or "
                                "CH_AGGREGATE_FIRST",
                                c->name, c->v->name));
    if (!ch__all_gather(2, in, 0, out))
        return false;
    c->ids = out[0];
    c->x = out[1];
    if (c->v->aggregation == CH_AGGREGATE_MEAN)
        c->x = ch_div(c->x, ch_step_replica_count(c->s));
    return c->x != NULL;
}

/* Replaces the operand, and the ids if there are any, by the values of replica 0. */
static bool broadcast_first(change *c)
{
    ch_node **operand[2], *in[2], *out[2];
    int       n = 0;

    if (!is_shared(c->x))
        operand[n++] = &c->x;
    if (c->ids != NULL)
        operand[n++] = &c->ids;
    for (int i = 0; i < n; i++)
        in[i] = *operand[i];
    if (n > 0 && !ch__broadcast(n, in, out))
        return false;
    for (int i = 0; i < n; i++)
        *operand[i] = out[i];
    return true;
}

static ch_reduce_op reduction_of(const ch_var *v)
{
    return v->aggregation == CH_AGGREGATE_SUM ? CH_SUM : CH_MEAN;
}

/* Prepares the operand of a change that is not aggregated: an assign in an update, or in a
 * merge call. Each copy uses the operand of its own replica, after a warning if they may
 * differ. If the replicas share a single copy, the operand of replica 0 is broadcast. */
static bool prepare_for_copy(change *c)
{
    ch_step_context before = c->s->context;
    bool            ok;

    if (!may_differ(c) || ch__var_is_per_replica(c->v))
        return true;
    if (c->v->n_copies > 1) {
        warn_of_copies(c, "each copy is assigned its own value");
        return true;
    }
    c->s->context = CH_STEP_CONTEXT_UPDATE; /* a context that allows collectives */
    ok = broadcast_first(c);
    c->s->context = before;
    return ok;
}

/* Replaces the operand by its aggregate over the replicas. */
static bool aggregate(change *c)
{
    if (c->v->aggregation == CH_AGGREGATE_NONE)
        return aggregate_none(c);
    if (c->v->aggregation == CH_AGGREGATE_FIRST)
        return broadcast_first(c);
    if (c->ids != NULL)
        return gather_rows(c);
    if (is_shared(c->x))
        return aggregate_shared(c);
    c->x = ch_all_reduce(reduction_of(c->v), c->x);
    return c->x != NULL;
}

/* ---- in a merge call ---- */

static ch_status fail_no_aggregation(const ch_var *v)
{
    return ch__fail(
        CH_INVALID_ARGUMENT,
        "variable %s: each replica has its own value, and the variable has no aggregation "
        "to combine them; set ch_var_spec.aggregation",
        v->name);
}

ch_status ch__var_check_read(const ch_var *v)
{
    return ch__var_is_per_replica(v) && v->aggregation == CH_AGGREGATE_NONE
               ? fail_no_aggregation(v)
               : CH_OK;
}

ch_status ch__var_check_change(const ch_var *v, const char *name)
{
    if (!ch__var_is_per_replica(v) || v->aggregation != CH_AGGREGATE_SUM)
        return CH_OK;
    return ch__fail(
        CH_INVALID_ARGUMENT,
        "%s of %s: not allowed outside replica context for a variable that is "
        "CH_SYNC_ON_READ and CH_AGGREGATE_SUM, because each copy would be changed; assign "
        "a value instead",
        name, v->name);
}

/* Records this replica's share of a float x. All shares are equal, except that the last replica
 * gets the rest, so that the sum is exact (as in var_local.c). If x is not finite, there is no
 * rest and all shares are equal. */
static ch_node *float_share(ch_step *s, ch_node *x, int n)
{
    ch_dtype work = ch__dtype_is_half(x->dtype) ? CH_F32 : x->dtype;
    ch_node *each = ch_div(x, ch_number(s, n)), *sum = ch_cast(each, work), *missing;
    ch_node *is_last = ch_equal(ch_step_replica_id(s), ch_cast(ch_number(s, n - 1), CH_I32));

    for (int k = 1; k < n - 1; k++)
        sum = ch_add(sum, ch_cast(each, work));
    missing = ch_cast(ch_sub(ch_cast(x, work), sum), x->dtype);
    missing = ch_select(ch_equal(ch_sub(x, x), ch_zeros_like(x)), missing, each);
    return ch_select(is_last, missing, each);
}

/* Records this replica's share of x; the shares add up to x. If an integer is not divisible by
 * the number of replicas, the first replicas get 1 more. */
static ch_node *share_of(ch_step *s, ch_node *x)
{
    ch_node *n = ch_step_replica_count(s), *id;

    if (ch_dtype_is_float(x->dtype))
        return float_share(s, x, ch_strategy_replicas(s->owner));
    id = ch_cast(ch_step_replica_id(s), x->dtype);
    n = ch_cast(n, x->dtype);
    return ch_add(ch_floordiv(x, n), ch_cast(ch_less(id, ch_mod(x, n)), x->dtype));
}

/* Records the read of a per-replica variable in cross-replica context: the aggregate of the
 * copies. */
static ch_node *read_all(ch_step *s, ch_var *v)
{
    ch_node  *own = read_copy(s, v), *all;
    ch_status rc = ch__var_check_read(v);

    if (rc != CH_OK)
        ch__step_record_error(s, rc, NULL);
    if (rc != CH_OK || own == NULL)
        return NULL;
    s->context = CH_STEP_CONTEXT_REPLICA;
    all = v->aggregation == CH_AGGREGATE_FIRST ? ch_broadcast(own)
                                               : ch_all_reduce(reduction_of(v), own);
    s->context = CH_STEP_CONTEXT_CROSS;
    return all;
}

/* ---- reads and changes ---- */

ch_node *ch_var_read(ch_step *s, ch_var *v)
{
    const void *caller = __builtin_return_address(0), *before;
    ch_node    *n;
    ch_status   rc;

    if (s == NULL || s->rc != CH_OK)
        return NULL;
    rc = check_var(s, v, "var_read");
    if (rc != CH_OK) {
        ch__step_record_error(s, rc, caller);
        return NULL;
    }
    if (s->owner != v->strategy)
        return borrow(s, v, caller);
    if (ch__step_context(s) != CH_STEP_CONTEXT_CROSS || !ch__var_is_per_replica(v))
        return read_copy(s, v);
    before = ch__step_begin_at(s, caller, "ch_var_read");
    n = read_all(s, v);
    ch__step_end(s, before);
    return n;
}

/* Prepares c->x for the combination with this replica's copy, according to the context and the
 * aggregation of the variable. */
static bool prepare_operand(change *c)
{
    ch_step_context context = ch__step_context(c->s);

    if (c->v->strategy->n_replicas == 1)
        return true;
    if (context == CH_STEP_CONTEXT_UPDATE)
        return prepare_for_copy(c);
    if (context == CH_STEP_CONTEXT_REPLICA)
        return ch__var_is_per_replica(c->v) || aggregate(c);
    if (!ch__var_is_per_replica(c->v) || c->v->aggregation != CH_AGGREGATE_SUM)
        return prepare_for_copy(c);
    return c->overwrites || fail(c, ch__var_check_change(c->v, c->name));
}

/* Checks the dtype of the operand. This must happen before the aggregation, because the mean of
 * integers has another dtype. */
static bool has_dtype(const change *c)
{
    char dims_text[160];

    if (c->x->weak || c->x->dtype == c->v->dtype)
        return true;
    ch__dims_print(&c->x->dims, dims_text, sizeof(dims_text));
    return fail(c, ch__fail(CH_INVALID_ARGUMENT, "the value is %s%s, want %s; use ch_cast",
                            ch_dtype_name(c->x->dtype), dims_text, ch_dtype_name(c->v->dtype)));
}

/* Checks the ids, and that there is a row for each id, before they are aggregated. */
static bool has_rows(const change *c)
{
    ch_dims want = ch__dims_of(c->v->shape);

    if (c->ids == NULL)
        return true;
    if ((c->ids->dtype != CH_I32 && c->ids->dtype != CH_I64) || c->ids->dims.rank != 1)
        return fail(c, ch__fail(CH_INVALID_ARGUMENT,
                                "the ids are %s, want a list of i32 or i64 (rank 1)",
                                ch__type_text(c->ids->dtype, &c->ids->dims)));
    if (want.rank == 0)
        return fail(c,
                    ch__fail(CH_INVALID_ARGUMENT, "the variable is a scalar: it has no rows"));
    want.dim[0] = c->ids->dims.dim[0];
    if (ch__dims_same(&c->x->dims, &want))
        return true;
    return fail(c,
                ch__fail(CH_INVALID_ARGUMENT, "the rows are %s, want %s: one row for each id",
                         ch__type_text(c->x->dtype, &c->x->dims),
                         ch__type_text(c->v->dtype, &want)));
}

/* Records the new value of the variable. In a merge call every copy of a per-replica variable
 * is changed from its own current value. If such a variable is CH_AGGREGATE_SUM and is
 * overwritten, each copy gets its share. */
static ch_node *record(change *c)
{
    ch_node *now = read_copy(c->s, c->v), *n;

    if (!has_dtype(c) || !has_rows(c) || !prepare_operand(c))
        return NULL;
    if (!ch__var_is_per_replica(c->v) || ch__step_context(c->s) != CH_STEP_CONTEXT_CROSS ||
        c->s->outer != NULL)
        return c->combine(now, c->ids, c->x);
    c->s->context = CH_STEP_CONTEXT_UPDATE;
    if (c->overwrites && c->v->aggregation == CH_AGGREGATE_SUM)
        c->x = share_of(c->s, c->combine(now, NULL, c->x));
    n = c->combine(now, c->ids, c->x);
    c->s->context = CH_STEP_CONTEXT_CROSS;
    return n;
}

/* Checks and records a change, and makes the result the variable's value in the step. `caller`
 * is the address in the program that an error names. */
static ch_node *apply(change *c, const void *caller)
{
    const void *before;
    ch_node    *n;

    if (!ch__var_may_write(c->s, c->v, c->name, caller))
        return NULL;
    before = ch__step_begin_at(c->s, caller, NULL);
    c->s->verb = c->name;
    c->s->object = c->v->name;
    n = c->x != NULL ? record(c) : NULL;
    if (c->x == NULL)
        (void)ch__step_want(c->s, false, c->name, "its value", caller);
    ch__var_note_use(c->s, c->v);
    n = ch__step_write(c->s, c->v, c->v->name, c->v->dtype, c->v->shape, n);
    c->s->verb = c->s->object = NULL;
    ch__step_end(c->s, before);
    return n;
}

static ch_node *add(ch_node *now, ch_node *ids, ch_node *x)
{
    (void)ids;
    return ch__is_sparse(x) ? ch__add_sparse(now, x, false) : ch_add(now, x);
}

static ch_node *subtract(ch_node *now, ch_node *ids, ch_node *x)
{
    (void)ids;
    return ch__is_sparse(x) ? ch__add_sparse(now, x, true) : ch_sub(now, x);
}

/* Casts a weak number to the variable's dtype. */
static ch_node *replace(ch_node *now, ch_node *ids, ch_node *x)
{
    (void)ids;
    return x != NULL && now != NULL && x->weak ? ch__roles.cast_to(x, now->dtype) : x;
}

ch_node *ch_var_assign(ch_step *s, ch_var *v, ch_node *value)
{
    return apply(&(change){s, v, "assign", .overwrites = true, .x = value, .combine = replace},
                 __builtin_return_address(0));
}

ch_node *ch_var_assign_add(ch_step *s, ch_var *v, ch_node *delta)
{
    return apply(&(change){s, v, "assign_add", .x = delta, .combine = add},
                 __builtin_return_address(0));
}

ch_node *ch_var_assign_sub(ch_step *s, ch_var *v, ch_node *delta)
{
    return apply(&(change){s, v, "assign_sub", .x = delta, .combine = subtract},
                 __builtin_return_address(0));
}

/* ---- rows ---- */

/* Records a change of rows. Fails if the ids are NULL or the variable is CH_SYNC_ON_READ with
 * several copies. */
static ch_node *scatter(ch_step *s, ch_var *v, const char *name, bool can_gather, ch_node *ids,
                        ch_node    *rows, ch_node *(*combine)(ch_node *, ch_node *, ch_node *),
                        const void *caller)
{
    if (ids == NULL && s != NULL && s->rc == CH_OK) {
        (void)ch__step_want(s, false, name, "its ids", caller);
        return NULL;
    }
    if (ch__var_may_write(s, v, name, caller) && ch__var_is_per_replica(v)) {
        ch__step_record_error(s,
                              ch__fail(CH_UNIMPLEMENTED,
                                       "%s of %s: rows of a variable that is CH_SYNC_ON_READ "
                                       "cannot be changed; assign "
                                       "the whole variable",
                                       name, v->name),
                              caller);
        return NULL;
    }
    return apply(&(change){s, v, name, .can_gather = can_gather, .ids = ids, .x = rows,
                           .combine = combine},
                 caller);
}

ch_node *ch_var_scatter_add(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows)
{
    return scatter(s, v, "scatter_add", true, ids, rows, ch_scatter_add,
                   __builtin_return_address(0));
}

ch_node *ch_var_scatter_sub(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows)
{
    return scatter(s, v, "scatter_sub", true, ids, rows, ch_scatter_sub,
                   __builtin_return_address(0));
}

ch_node *ch_var_scatter_mul(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows)
{
    return scatter(s, v, "scatter_mul", true, ids, rows, ch_scatter_mul,
                   __builtin_return_address(0));
}

ch_node *ch_var_scatter_div(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows)
{
    return scatter(s, v, "scatter_div", true, ids, rows, ch_scatter_div,
                   __builtin_return_address(0));
}

ch_node *ch_var_scatter_min(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows)
{
    return scatter(s, v, "scatter_min", false, ids, rows, ch_scatter_min,
                   __builtin_return_address(0));
}

ch_node *ch_var_scatter_max(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows)
{
    return scatter(s, v, "scatter_max", false, ids, rows, ch_scatter_max,
                   __builtin_return_address(0));
}

ch_node *ch_var_scatter_update(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows)
{
    return scatter(s, v, "scatter_update", false, ids, rows, ch_scatter_update,
                   __builtin_return_address(0));
}

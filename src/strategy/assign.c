/* strategy/assign.c -- what a step does to variables.
 *
 * A graph has one value of a variable on each replica. What the step's code means by an assign depends on whom
 * it speaks of: in a replica, its value is aggregated with those of the others before it is used; in a merge
 * call it is one for all already; in an update it is for this copy alone.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "base/log.h"
#include "collective/collective.h"
#include "graph/step.h"
#include "ops/ops.h"
#include "strategy/strategy.h"

bool ch__strategy_may_read(const ch_strategy *st, const ch_strategy *of)
{
    const ch_strategy *none = ch__strategy_default();

    return st == of || st == none || of == none;
}

/* Whether v is given, and s is a step that may have variables: a pipeline's have none. */
static ch_status check_var(const ch_step *s, const ch_var *v, const char *call)
{
    if (v == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: the variable is NULL, in %s", call,
                        s->graph->name);
    if (s->owner == NULL)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "its step uses variable \"%s\"; a pipeline has none", v->name);
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

/* Records the read of a variable of another strategy, which has one value here. */
static ch_node *borrow(ch_step *s, ch_var *v, const void *caller)
{
    ch_status rc = ch__strategy_may_read(s->owner, v->strategy) ? ch__var_check_read(v)
                                                                : fail_mixed(s, v, "var_read");

    if (rc != CH_OK) {
        ch__step_record_error(s, rc, caller);
        return NULL;
    }
    return ch__step_borrow(s, ch_var_ref(v), release_var, v->name, v->dtype, v->shape);
}

static ch_node *read_copy(ch_step *s, ch_var *v)
{
    ch_node *n = ch__step_read(s, v, v->name, v->dtype, v->shape);

    if (n != NULL && ch__var_is_own(v))
        n->varies = true;
    if (n != NULL && !ch__var_is_here(v))
        ch__step_mark_remote(s, v);
    return n;
}

/* ---- aggregation ---- */

/* A change of a variable, before it is recorded. */
typedef struct change {
    ch_step    *s;
    ch_var     *v;
    const char *name;       /* "assign_add" */
    bool        sets;       /* what was there before does not matter */
    bool        can_gather; /* rows of all replicas can be used one after another */
    ch_node    *ids;        /* NULL: x is for all of it */
    ch_node    *x;
    ch_node *(*combine)(ch_node *now, ch_node *ids, ch_node *x);
} change;

static bool fail(const change *c, ch_status rc)
{
    ch__step_record_error(c->s, rc, NULL);
    return false;
}

/* A number, or an input that all replicas share: one value for all, and none of each. What code of a replica
 * computes of such an input is its own. */
static bool is_shared(const ch_node *x)
{
    return x->is_literal || (x->head->op == ch__roles.input && !x->varies);
}

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

static bool may_differ(const change *c)
{
    return c->x->varies || (c->ids != NULL && c->ids->varies);
}

/* Once for a variable, whose copies are not compared any more (COHORT_CHECK_COPIES). */
static void warn_of_copies(const change *c, const char *why)
{
    if (!atomic_exchange(&c->v->has_warned, true))
        ch__log(CH_LOG_WARNING, "copies-differ",
                "%s of variable %s: replicas may have different values for it, and %s: its "
                "copies will differ",
                c->name, c->v->name, why);
}

static bool aggregate_none(const change *c)
{
    if (!may_differ(c))
        return true;
    if (c->v->n_copies == 1)
        return fail(c, ch__fail(CH_INVALID_ARGUMENT,
                                "%s of %s: replicas share the variable and may have different "
                                "values for it: it needs an aggregation (ch_var_spec)",
                                c->name, c->v->name));
    warn_of_copies(c, "it has no aggregation");
    return true;
}

static bool aggregate_shared(const change *c)
{
    if (c->v->aggregation != CH_AGGREGATE_SUM || is_zero(c->x))
        return true;
    return fail(c,
                ch__fail(CH_INVALID_ARGUMENT,
                         "%s of %s: %s is one value for all replicas, and cannot be "
                         "added up over %d of them; give each its own (ch_identity)",
                         c->name, c->v->name, c->x->is_literal ? "a constant" : "a plain input",
                         c->v->strategy->n_replicas));
}

/* Rows of all replicas, one after another; for a mean each weighs its share. */
static bool gather_rows(change *c)
{
    ch_node *in[2] = {c->ids, c->x}, *out[2];

    if (!c->can_gather)
        return fail(c, ch__fail(CH_UNIMPLEMENTED,
                                "%s of %s: rows of several replicas cannot be added up or "
                                "averaged for it; want CH_AGGREGATE_NONE or _FIRST",
                                c->name, c->v->name));
    if (!ch__all_gather(2, in, 0, out))
        return false;
    c->ids = out[0];
    c->x = out[1];
    if (c->v->aggregation == CH_AGGREGATE_MEAN)
        c->x = ch_div(c->x, ch_step_replica_count(c->s));
    return c->x != NULL;
}

/* The first replica's, rows with their ids. */
static bool take_first(change *c)
{
    ch_node **what[2], *in[2], *out[2];
    int       n = 0;

    if (!is_shared(c->x))
        what[n++] = &c->x;
    if (c->ids != NULL)
        what[n++] = &c->ids;
    for (int i = 0; i < n; i++)
        in[i] = *what[i];
    if (n > 0 && !ch__broadcast(n, in, out))
        return false;
    for (int i = 0; i < n; i++)
        *what[i] = out[i];
    return true;
}

static ch_reduce_op reduction_of(const ch_var *v)
{
    return v->aggregation == CH_AGGREGATE_SUM ? CH_SUM : CH_MEAN;
}

/* In an update, and where a merge call gives a variable what replicas have, each copy gets its own, and the only one
 * what belongs to the first. */
static bool settle_copy(change *c)
{
    ch_speaks_of before = c->s->speaks_of;
    bool         ok;

    if (!may_differ(c) || ch__var_is_own(c->v))
        return true;
    if (c->v->n_copies > 1) {
        warn_of_copies(c, "each copy is assigned its own");
        return true;
    }
    c->s->speaks_of = CH_SPEAKS_OF_COPY; /* where replicas may meet */
    ok = take_first(c);
    c->s->speaks_of = before;
    return ok;
}

/* What this replica has becomes what all of them have together. */
static bool aggregate(change *c)
{
    if (c->v->aggregation == CH_AGGREGATE_NONE)
        return aggregate_none(c);
    if (c->v->aggregation == CH_AGGREGATE_FIRST)
        return take_first(c);
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
    return ch__fail(CH_INVALID_ARGUMENT,
                    "variable %s: each replica has its own value, and it has no aggregation to "
                    "make one of them",
                    v->name);
}

ch_status ch__var_check_read(const ch_var *v)
{
    return ch__var_is_own(v) && v->aggregation == CH_AGGREGATE_NONE ? fail_no_aggregation(v)
                                                                    : CH_OK;
}

ch_status ch__var_check_change(const ch_var *v, const char *name)
{
    if (!ch__var_is_own(v) || v->aggregation != CH_AGGREGATE_SUM)
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT,
                    "%s of %s: outside a replica it is not for a variable that is "
                    "CH_SYNC_ON_READ and CH_AGGREGATE_SUM: each copy would get it",
                    name, v->name);
}

/* This replica's share of floats: as in var_value.c, all have the same and the last what is missing; of what is not
 * finite nothing is. */
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

/* This replica's share of x, so that the shares add up to it; of integers the first ones get what does not divide. */
static ch_node *share_of(ch_step *s, ch_node *x)
{
    ch_node *n = ch_step_replica_count(s), *id;

    if (ch_dtype_is_float(x->dtype))
        return float_share(s, x, ch_strategy_replicas(s->owner));
    id = ch_cast(ch_step_replica_id(s), x->dtype);
    n = ch_cast(n, x->dtype);
    return ch_add(ch_floordiv(x, n), ch_cast(ch_less(id, ch_mod(x, n)), x->dtype));
}

static ch_node *read_all(ch_step *s, ch_var *v)
{
    ch_node  *own = read_copy(s, v), *all;
    ch_status rc = ch__var_check_read(v);

    if (rc != CH_OK)
        ch__step_record_error(s, rc, NULL);
    if (rc != CH_OK || own == NULL)
        return NULL;
    s->speaks_of = CH_SPEAKS_OF_REPLICA;
    all = v->aggregation == CH_AGGREGATE_FIRST ? ch_broadcast(own)
                                               : ch_all_reduce(reduction_of(v), own);
    s->speaks_of = CH_SPEAKS_OF_ALL;
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
    if (ch__speaks_of(s) != CH_SPEAKS_OF_ALL || !ch__var_is_own(v))
        return read_copy(s, v);
    before = ch__step_begin_at(s, caller, "ch_var_read");
    n = read_all(s, v);
    ch__step_end(s, before);
    return n;
}

/* Makes c->x what is to be combined with this replica's copy. */
static bool settle(change *c)
{
    ch_speaks_of speaks_of = ch__speaks_of(c->s);

    if (c->v->strategy->n_replicas == 1)
        return true;
    if (speaks_of == CH_SPEAKS_OF_COPY)
        return settle_copy(c);
    if (speaks_of == CH_SPEAKS_OF_REPLICA)
        return ch__var_is_own(c->v) || aggregate(c);
    if (!ch__var_is_own(c->v) || c->v->aggregation != CH_AGGREGATE_SUM)
        return settle_copy(c);
    return c->sets || fail(c, ch__var_check_change(c->v, c->name));
}

/* A mean of integers would be of another type: so the value is looked at before replicas aggregate it. */
static bool has_dtype(const change *c)
{
    char is[160];

    if (c->x->weak || c->x->dtype == c->v->dtype)
        return true;
    ch__dims_print(&c->x->dims, is, sizeof(is));
    return fail(c, ch__fail(CH_INVALID_ARGUMENT, "the value is %s%s, want %s; use ch_cast",
                            ch_dtype_name(c->x->dtype), is, ch_dtype_name(c->v->dtype)));
}

/* Checks ids, and a row for each of them, before replicas aggregate them. */
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
    return fail(c, ch__fail(CH_INVALID_ARGUMENT, "the rows are %s, want %s: one for each id",
                            ch__type_text(c->x->dtype, &c->x->dims),
                            ch__type_text(c->v->dtype, &want)));
}

/* Every copy of a variable whose copies differ is changed, each from what it is. */
static ch_node *record(change *c)
{
    ch_node *now = read_copy(c->s, c->v), *n;

    if (!has_dtype(c) || !has_rows(c) || !settle(c))
        return NULL;
    if (!ch__var_is_own(c->v) || ch__speaks_of(c->s) != CH_SPEAKS_OF_ALL || c->s->outer != NULL)
        return c->combine(now, c->ids, c->x);
    c->s->speaks_of = CH_SPEAKS_OF_COPY;
    if (c->sets && c->v->aggregation == CH_AGGREGATE_SUM)
        c->x = share_of(c->s, c->combine(now, NULL, c->x));
    n = c->combine(now, c->ids, c->x);
    c->s->speaks_of = CH_SPEAKS_OF_ALL;
    return n;
}

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

/* A value that is a number takes the variable's type. */
static ch_node *replace(ch_node *now, ch_node *ids, ch_node *x)
{
    (void)ids;
    return x != NULL && now != NULL && x->weak ? ch__roles.cast_to(x, now->dtype) : x;
}

ch_node *ch_var_assign(ch_step *s, ch_var *v, ch_node *value)
{
    return apply(&(change){s, v, "assign", .sets = true, .x = value, .combine = replace},
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

static ch_node *scatter(ch_step *s, ch_var *v, const char *name, bool can_gather, ch_node *ids,
                        ch_node    *rows, ch_node *(*combine)(ch_node *, ch_node *, ch_node *),
                        const void *caller)
{
    if (ids == NULL && s != NULL && s->rc == CH_OK) {
        (void)ch__step_want(s, false, name, "its ids", caller);
        return NULL;
    }
    if (ch__var_may_write(s, v, name, caller) && ch__var_is_own(v)) {
        ch__step_record_error(
            s,
            ch__fail(CH_UNIMPLEMENTED,
                     "%s of %s: rows are not for a variable that is CH_SYNC_ON_READ; "
                     "assign all of it",
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

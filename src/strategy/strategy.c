/* strategy/strategy.c -- what all strategies do alike: scope, run, reduce.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "strategy/strategy.h"

#include "base/fault.h"
#include "base/mem.h"
#include "kernel/accumulate.h"

enum { MAX_SCOPES = 64 };

static _Thread_local ch_strategy *scope[MAX_SCOPES];
static _Thread_local int          n_scopes;

void ch__strategy_init(ch_strategy *st, const ch_strategy_ops *ops, int n_replicas)
{
    st->ops = ops;
    atomic_init(&st->refs, 1);
    st->n_replicas = st->n_local = n_replicas;
    pthread_mutex_init(&st->lock, NULL);
}

ch_strategy *ch_strategy_ref(ch_strategy *st)
{
    if (st != NULL)
        atomic_fetch_add_explicit(&st->refs, 1, memory_order_relaxed);
    return st;
}

void ch_strategy_unref(ch_strategy *st)
{
    if (st != NULL && atomic_fetch_sub_explicit(&st->refs, 1, memory_order_acq_rel) == 1)
        st->ops->close(st);
}

/* ---- scope ---- */

ch_strategy *ch_strategy_current(void)
{
    return n_scopes > 0 ? scope[n_scopes - 1] : ch__strategy_default();
}

ch_strategy *ch__strategy_of(ch_strategy *st)
{
    return st != NULL ? st : ch_strategy_current();
}

ch_status ch_strategy_enter(ch_strategy *st)
{
    if (st == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "strategy enter: the strategy is NULL");
    if (n_scopes > 0 && scope[n_scopes - 1] != st)
        return ch__fail(
            CH_FAILED_PRECONDITION,
            "strategy enter: mixing different strategies: inside the scope of a %s, "
            "another %s cannot be entered",
            scope[n_scopes - 1]->ops->name, st->ops->name);
    if (n_scopes == MAX_SCOPES)
        return ch__fail(CH_FAILED_PRECONDITION, "strategy enter: nested more than %d deep",
                        MAX_SCOPES);
    scope[n_scopes++] = ch_strategy_ref(st);
    return CH_OK;
}

void ch_strategy_leave(void)
{
    if (n_scopes > 0)
        ch_strategy_unref(scope[--n_scopes]);
}

const char *ch_strategy_name(ch_strategy *st)
{
    return ch__strategy_of(st)->ops->name;
}

int ch_strategy_replicas(ch_strategy *st)
{
    return ch__strategy_of(st)->n_replicas;
}

/* ---- run ---- */

static const ch_run_ops run_ops = {.resource = ch__var_storage};

ch_status ch_strategy_run_with(ch_strategy *st, ch_function *f, ch_tuple *in,
                               const ch_run_options *opt, ch_tuple **out)
{
    ch_run run = {.function = f, .in = in, .ops = &run_ops, .step = -1};

    if (f == NULL)
        return ch__want_given("run", "the function", f, NULL, NULL);
    if (opt != NULL && opt->has_step_number && opt->step_number < 0)
        return ch__fail(CH_INVALID_ARGUMENT, "run %s: its step number is %lld, want 0 or more",
                        ch_function_name(f), (long long)opt->step_number);
    st = ch__strategy_of(st);
    run.owner = st;
    run.generation = atomic_load(&st->generation);
    run.n_local = st->n_local;
    run.n_replicas = st->n_replicas;
    run.device = st->ops->devices(st);
    run.group = st->group;
    run.meet = &ch__group_as_meet;
    if (opt != NULL) {
        run.seed = opt->seed;
        run.step = opt->has_step_number ? opt->step_number : -1;
    }
    return ch__run(&run, out);
}

ch_status ch_strategy_run(ch_strategy *st, ch_function *f, ch_tuple *in, ch_tuple **out)
{
    return ch_strategy_run_with(st, f, in, NULL, out);
}

/* ---- reduce ---- */

static ch_status check_reduce(ch_strategy *st, ch_reduce_op op, const ch_value *v)
{
    const ch_tensor *first = ch_value_at(v, 0);

    if (st->n_replicas > 1 && ch_value_kind_of(v) == CH_PLAIN)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "reduce: a plain value cannot be reduced over %d replicas; it has one "
                        "component",
                        st->n_replicas);
    if (!ch__can_accumulate(first->dtype))
        return ch__fail(CH_INVALID_ARGUMENT, "reduce: %s cannot be added",
                        ch_dtype_name(first->dtype));
    if (op == CH_MEAN && !ch_dtype_is_float(first->dtype))
        return ch__fail(CH_INVALID_ARGUMENT, "reduce: the mean of %s is not one; cast it first",
                        ch_dtype_name(first->dtype));
    for (int i = 1; i < ch_value_count(v); i++) {
        char a[96], b[96];

        if (ch_shape_equal(first->shape, ch_value_at(v, i)->shape))
            continue;
        ch_shape_print(first->shape, a, sizeof(a));
        ch_shape_print(ch_value_at(v, i)->shape, b, sizeof(b));
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "reduce: components 0 and %d have shapes %s and %s, which cannot be added", i, a,
            b);
    }
    return CH_OK;
}

ch_status ch_strategy_reduce(ch_strategy *st, ch_reduce_op op, const ch_value *v,
                             ch_tensor **out)
{
    ch_status    rc;
    ch_tensor   *sum = NULL, **part;
    const void **data;
    int          n;

    st = ch__strategy_of(st);
    rc = ch__want_given("reduce", "the value", v, "out", out);
    if (rc == CH_OK)
        rc = check_reduce(st, op, v);
    if (rc != CH_OK)
        return rc;
    n = ch_value_count(v);
    part = ch__calloc((size_t)n, sizeof(*part));
    data = ch__calloc((size_t)n, sizeof(*data));
    rc = part == NULL || data == NULL
             ? ch__fail_memory("reduce")
             : ch_tensor_new(ch_value_at(v, 0)->dtype, ch_value_at(v, 0)->shape, &sum);
    for (int i = 0; i < n && rc == CH_OK; i++) {
        rc = ch_tensor_contiguous(ch_value_at(v, i), &part[i]);
        data[i] = rc == CH_OK ? part[i]->data : NULL;
    }
    if (rc == CH_OK) {
        ch__accumulate(sum->dtype, ch_tensor_count(sum), n, data, sum->data,
                       op == CH_MEAN ? n : 1);
        *out = sum;
    } else {
        ch_tensor_unref(sum);
    }
    for (int i = 0; part != NULL && i < n; i++)
        ch_tensor_unref(part[i]);
    ch__free(part);
    ch__free(data);
    return rc;
}

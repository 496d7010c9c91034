/* collective/all_reduce.c -- the op all_reduce: the sum or mean of values over the replicas.
 *
 * A call reduces several arrays with the same barriers. The op also exists as two ops, so that
 * a replica can compute while it would wait for others: all_reduce_begin returns arrays that
 * must not be read, and all_reduce_end returns the sums. The kernels call group.h. Without a
 * group (a single replica) the sum is the input.
 *
 * packs.c and the strategies record these ops through collective.h; ch_all_reduce is the
 * public function.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "collective/collective.h"
#include "collective/member.h"
#include "graph/step.h"
#include "kernel/accumulate.h"
#include "ops/lookup.h"
#include "ops/ops.h"

typedef struct all_reduce_attrs {
    int64_t op; /* ch_reduce_op: 0 sum, 1 mean; these numbers are encoded in graphs */
    /* Fields of ch_communication_options. 0: the group's option. */
    int64_t implementation;
    double  timeout_seconds;
} all_reduce_attrs;

static const ch_attr all_reduce_rows[] = {
    CH_ATTR_INT(all_reduce_attrs, op),
    CH_ATTR_INT(all_reduce_attrs, implementation),
    CH_ATTR_FLOAT(all_reduce_attrs, timeout_seconds),
    CH_ATTR_END,
};

static all_reduce_attrs attrs_of(ch_reduce_op op, const ch_communication_options *how)
{
    if (how == NULL)
        return (all_reduce_attrs){.op = op};
    return (all_reduce_attrs){op, how->implementation, how->timeout_seconds};
}

static ch_status check_array(const ch_infer *c, int i)
{
    const all_reduce_attrs *a = c->attrs;

    if (!ch__can_accumulate(c->dtype[i]))
        return ch__infer_fail(c, "%s cannot be added", ch_dtype_name(c->dtype[i]));
    if (a->op == CH_MEAN && !ch_dtype_is_float(c->dtype[i]))
        return ch__infer_fail(
            c, "the mean of %s values is not of that type; cast to a float type first",
            ch_dtype_name(c->dtype[i]));
    for (int r = 1; r < c->n_peers; r++)
        if (!ch__dims_same(&c->peer[0][i], &c->peer[r][i]))
            return ch__infer_fail(c,
                                  "replica 0 has %s and replica %d has %s; want the same shape",
                                  ch__type_text(c->dtype[i], &c->peer[0][i]), r,
                                  ch__type_text(c->dtype[i], &c->peer[r][i]));
    return CH_OK;
}

/* Sets the outputs to the types and shapes of the inputs. */
static ch_status like_inputs(ch_infer *c)
{
    ch_status rc = CH_OK;

    if (c->n_in < 1 || c->n_in > CH_MAX_OUT)
        return ch__infer_fail(c, "%d inputs, want 1 to %d", c->n_in, CH_MAX_OUT);
    for (int i = 0; i < c->n_in && rc == CH_OK; i++)
        rc = ch__infer_like(c, i, i);
    return rc;
}

static ch_status all_reduce_infer(ch_infer *c)
{
    const all_reduce_attrs *a = c->attrs;
    ch_status               rc = CH_OK;

    if (a->op != CH_SUM && a->op != CH_MEAN)
        return ch__infer_fail(c, "reduction %lld is neither sum (0) nor mean (1)",
                              (long long)a->op);
    if (a->implementation < CH_CROSS_AUTO || a->implementation > CH_CROSS_RING ||
        !(a->timeout_seconds >= 0))
        return ch__infer_fail(
            c, "implementation %lld and timeout %g s (want a ch_cross_device, and 0 or more)",
            (long long)a->implementation, a->timeout_seconds);
    for (int i = 0; i < c->n_in && rc == CH_OK; i++)
        rc = check_array(c, i);
    return rc == CH_OK ? like_inputs(c) : rc;
}

typedef struct all_reduce_state {
    ch_addends sum;
    ch_addend  array[];
} all_reduce_state;

/* all_reduce_end has no attributes: its kernel uses the arrays only. */
void ch__all_reduce_addends(const ch_node *n, ch_addend *array, ch_addends *out)
{
    const all_reduce_attrs *a = n->attrs;

    *out = (ch_addends){.n = n->n_in, .array = array};
    if (a != NULL) {
        out->op = (ch_reduce_op)a->op;
        out->cross = (ch_cross_device)a->implementation;
        out->limit_ms = ch__limit_ms(a->timeout_seconds);
    }
    for (int i = 0; i < n->n_in; i++)
        array[i] = (ch_addend){n[i].dtype, ch__count(&n[i])};
}

static ch_status all_reduce_prepare(const ch_node *n, ch_prep *p)
{
    all_reduce_state *s = ch__prep_state(p, sizeof(*s) + (size_t)n->n_in * sizeof(s->array[0]));

    if (s == NULL)
        return ch__fail_memory("all_reduce");
    ch__all_reduce_addends(n, s->array, &s->sum);
    for (int i = 0; i < n->n_in; i++)
        p->over[i] = i < CH_PACK_MAX ? 1u << i : 0;
    return CH_OK;
}

/* Copies the inputs to the outputs. */
static void copy_in(const ch_call *c, const ch_addends *s)
{
    for (int i = 0; i < s->n; i++)
        if (c->in[i] != c->out[i] && s->array[i].count > 0)
            memcpy(c->out[i], c->in[i],
                   (size_t)s->array[i].count * ch_dtype_bytes(s->array[i].dtype));
}

static ch_status all_reduce_run(const ch_call *c, ch_kernel_tile t)
{
    const all_reduce_state *s = c->state;

    (void)t;
    if (c->env->group != NULL)
        return ch__group_all_reduce(c->env->group, c->env->local, &s->sum, c->in, c->out);
    copy_in(c, &s->sum);
    return CH_OK;
}

/* The gradient of an input is the sum (or mean) of the gradients of the output over all
 * replicas, because every replica's output depends on it. */
static void all_reduce_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const all_reduce_attrs  *a = n->attrs;
    ch_communication_options how = {.implementation = (ch_cross_device)a->implementation,
                                    .timeout_seconds = a->timeout_seconds};
    ch_node                 *d[CH_MAX_OUT], *sum[CH_MAX_OUT] = {NULL};
    int                      wanted = 0;

    (void)s;
    for (int i = 0; i < n->n_in; i++)
        if (dout[i] != NULL)
            d[wanted++] = dout[i];
    ch__all_reduce_packs(NULL, (ch_reduce_op)a->op, wanted, d, &how, sum);
    for (int i = n->n_in - 1; i >= 0; i--)
        if (dout[i] != NULL)
            din[i] = sum[--wanted];
}

static ch_status arrays_factors(const ch_node *n, ch_factors *f)
{
    return ch__factors_of_arrays(n, f, -1);
}

static const ch_kernel all_reduce_shared = {"shared", .prepare = all_reduce_prepare,
                                            .run = all_reduce_run};

const ch_op ch__op_all_reduce = {
    .name = "all_reduce",
    .version = 1,
    .n_in = -1,
    .n_out = -1,
    .flags = CH_OP_COLLECTIVE | CH_OP_READS_ENV | CH_OP_ALONE_IS_INPUT,
    .attrs = all_reduce_rows,
    .attrs_bytes = sizeof(all_reduce_attrs),
    .infer = all_reduce_infer,
    .grad = all_reduce_grad,
    .factors = arrays_factors,
    .kernels = (const ch_kernel *const[]){&all_reduce_shared, NULL},
};

/* ---- the op in two halves ---- */

/* Copies the inputs to the outputs and reduces those in place, because the planner keeps only
 * the outputs in memory until all_reduce_end. */
static ch_status begin_run(const ch_call *c, ch_kernel_tile t)
{
    const all_reduce_state *s = c->state;

    (void)t;
    if (c->env->group != NULL)
        return ch__group_all_reduce_begin(c->env->group, c->env->local, &s->sum, c->in, c->out);
    copy_in(c, &s->sum);
    return CH_OK;
}

static const ch_kernel begin_shared = {"shared", .prepare = all_reduce_prepare,
                                       .run = begin_run};

const ch_op ch__op_all_reduce_begin = {
    .name = "all_reduce_begin",
    .version = 1,
    .n_in = -1,
    .n_out = -1,
    .flags = CH_OP_COLLECTIVE | CH_OP_READS_ENV | CH_OP_ALONE_IS_INPUT,
    .attrs = all_reduce_rows,
    .attrs_bytes = sizeof(all_reduce_attrs),
    .infer = all_reduce_infer,
    .grad = all_reduce_grad,
    .factors = arrays_factors,
    .kernels = (const ch_kernel *const[]){&begin_shared, NULL},
};

static ch_status end_run(const ch_call *c, ch_kernel_tile t)
{
    ch_status rc = CH_OK;

    (void)t;
    if (c->env->group != NULL)
        rc = ch__group_all_reduce_end(c->env->group, c->env->local);
    if (rc == CH_OK)
        copy_in(c, &((const all_reduce_state *)c->state)->sum);
    return rc;
}

/* Passes the gradients on to all_reduce_begin. */
static void end_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    for (int i = 0; i < n->n_in; i++)
        din[i] = dout[i];
}

static const ch_kernel end_shared = {"shared", .prepare = all_reduce_prepare, .run = end_run};

const ch_op ch__op_all_reduce_end = {
    .name = "all_reduce_end",
    .version = 1,
    .n_in = -1,
    .n_out = -1,
    .flags = CH_OP_COLLECTIVE | CH_OP_READS_ENV | CH_OP_ALONE_IS_INPUT,
    .infer = like_inputs,
    .grad = end_grad,
    .factors = arrays_factors,
    .kernels = (const ch_kernel *const[]){&end_shared, NULL},
};

/* ---- recording ---- */

/* Divides a sum by the number of replicas. A sum of integers is exact, and is rounded once,
 * by the division. */
static ch_node *divide_sum(ch_node *sum, ch_dtype to)
{
    ch_node *n = ch_step_replica_count(ch_node_step(sum));

    if (ch_dtype_is_float(sum != NULL ? sum->dtype : CH_F32))
        return ch_div(sum, n);
    return ch_cast(ch_div(ch_cast(sum, CH_F64), n), to);
}

/* Reduces a sparse gradient, which stays sparse: gathers the ids and rows of all replicas. */
static ch_node *all_reduce_sparse(ch_reduce_op op, const ch_node *x, double timeout_seconds)
{
    ch_node *in[2] = {x->head->in[0], x->head->in[1]}, *out[2];

    if (!ch__all_gather(2, in, timeout_seconds, out))
        return NULL;
    if (op == CH_MEAN)
        out[1] = divide_sum(out[1], ch__mean_dtype(x->dtype));
    return ch__sparse_rows(out[0], out[1], x->dims.dim[0]);
}

ch_node *ch__all_reduce_one(const void *caller, ch_reduce_op op, ch_node *x,
                            const ch_communication_options *how)
{
    all_reduce_attrs a = attrs_of(op, how);
    const void      *before;
    ch_node         *y;

    if ((!ch__is_sparse(x) && !ch__is_mean_of_integers(op, x)) ||
        (op != CH_SUM && op != CH_MEAN))
        return ch__node_at(caller, &ch__op_all_reduce, &a, 1, &x);
    before = ch__step_begin_at(ch_node_step(x), caller, "all_reduce");
    if (ch__is_sparse(x)) {
        y = all_reduce_sparse(op, x, a.timeout_seconds);
    } else {
        y = ch__all_reduce_one(NULL, CH_SUM, ch_cast(x, CH_I64), how);
        y = divide_sum(y, ch__mean_dtype(x->dtype));
    }
    ch__step_end(ch_node_step(x), before);
    return y;
}

ch_node *ch_all_reduce(ch_reduce_op op, ch_node *x)
{
    return ch__all_reduce_one(__builtin_return_address(0), op, x, NULL);
}

void ch__all_reduce_dense(const void *caller, ch_reduce_op op, int n, ch_node *const *x,
                          const ch_communication_options *how, ch_node **out)
{
    all_reduce_attrs a = attrs_of(op, how);
    ch_node         *y = ch__node_at(caller, &ch__op_all_reduce_begin, &a, n, x);
    ch_node         *begun[CH_PACK_MAX];

    for (int i = 0; y != NULL && i < n; i++)
        begun[i] = ch__out(y, i);
    if (y != NULL) {
        ch__graph_hoist(y);
        y = ch__node_at(caller, &ch__op_all_reduce_end, NULL, n, begun);
    }
    for (int i = 0; i < n; i++)
        out[i] = y != NULL ? ch__out(y, i) : NULL;
}

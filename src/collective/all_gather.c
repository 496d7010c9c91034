/* collective/all_gather.c -- the op all_gather, and reduce_scatter, which is its gradient.
 *
 * all_gather concatenates the values of all replicas along an axis, on every replica.
 * reduce_scatter adds the values of all replicas, and returns this replica's part of the sum.
 * The kernels call group.h.
 *
 * A call gathers several arrays. They must have equal sizes along the axis, before and after.
 * The gathered size is known when the sizes of all replicas are; while the step is recorded it
 * is a new symbol.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "collective/collective.h"
#include "collective/group.h"
#include "graph/graph.h"
#include "graph/step.h"
#include "kernel/accumulate.h"
#include "ops/box.h"
#include "ops/ops.h"

typedef struct all_gather_attrs {
    int64_t axis;
    ch_dims total;           /* rank 1: the gathered size, if known; rank 0: unknown */
    double  timeout_seconds; /* 0: the group's option */
} all_gather_attrs;

static const ch_attr all_gather_rows[] = {
    CH_ATTR_INT(all_gather_attrs, axis),
    CH_ATTR_DIMS(all_gather_attrs, total),
    CH_ATTR_FLOAT(all_gather_attrs, timeout_seconds),
    CH_ATTR_END,
};

/* Returns the gathered size of the axis. While the step is recorded, that is attrs.total or
 * else a new symbol. Later it is the sum over the replicas, which must equal attrs.total. */
static ch_status size_of_all(ch_infer *c, int axis, ch_dim *out)
{
    const ch_dims *total = &((const all_gather_attrs *)c->attrs)->total;
    int64_t        sum = 0;

    if (!c->graph->is_concrete || c->n_peers == 0) {
        *out = total->rank == 1        ? total->dim[0]
               : c->graph->is_concrete ? c->in[0].dim[axis]
                                       : ch__infer_symbol(c);
        return CH_OK;
    }
    for (int r = 0; r < c->n_peers; r++)
        if (__builtin_add_overflow(sum, c->peer[r][0].dim[axis].n, &sum))
            return ch__infer_fail(c, "the gathered size of axis %d does not fit in 63 bits",
                                  axis);
    *out = ch__dim(sum);
    if (total->rank == 1 && !ch__dim_same(*out, total->dim[0]))
        return ch__infer_fail(c, "the sizes of axis %d add up to %lld (want %s)", axis,
                              (long long)sum, ch__dim_text(c, total->dim[0]));
    return CH_OK;
}

/* Checks that input i has the axis, with the size of input 0, and that the replicas' shapes of
 * input i are equal except in the axis. */
static ch_status check_array(const ch_infer *c, int i, int64_t axis)
{
    if (c->in[i].rank == 0)
        return ch__infer_fail(c,
                              "axis %lld of a scalar, which has rank 0; give it an axis first "
                              "(ch_expand_dims)",
                              (long long)axis);
    if (axis < 0 || axis >= c->in[i].rank)
        return ch__infer_fail(c, "axis %lld of an array of rank %d; want 0 to %d",
                              (long long)axis, c->in[i].rank, c->in[i].rank - 1);
    if (!ch__dim_same(c->in[i].dim[axis], c->in[0].dim[axis]))
        return ch__infer_fail(c, "inputs 0 and %d differ in the size of axis %lld", i,
                              (long long)axis);
    for (int r = 1; r < c->n_peers; r++)
        for (int k = 0; k < c->in[i].rank; k++)
            if (k != axis && !ch__dim_same(c->peer[0][i].dim[k], c->peer[r][i].dim[k]))
                return ch__infer_fail(
                    c,
                    "replica 0 has %s and replica %d has %s; they may differ in axis %d only",
                    ch__type_text(c->dtype[i], &c->peer[0][i]), r,
                    ch__type_text(c->dtype[i], &c->peer[r][i]), (int)axis);
    return CH_OK;
}

static ch_status all_gather_infer(ch_infer *c)
{
    const all_gather_attrs *a = c->attrs;
    int64_t                 axis = a->axis;
    ch_dim                  size;
    ch_status               rc = ch__infer_check_dims(c, &a->total);

    if (rc == CH_OK && (c->n_in < 1 || c->n_in > CH_MAX_OUT))
        rc = ch__infer_fail(c, "%d inputs, want 1 to %d", c->n_in, CH_MAX_OUT);
    if (rc == CH_OK && a->total.rank > 1)
        rc = ch__infer_fail(c, "total has %d sizes (want 0 or 1)", a->total.rank);
    if (rc == CH_OK && !(a->timeout_seconds >= 0))
        rc = ch__infer_fail(c, "timeout of %g s (want 0 or more)", a->timeout_seconds);
    for (int i = 0; i < c->n_in && rc == CH_OK; i++)
        rc = check_array(c, i, axis);
    if (rc == CH_OK)
        rc = size_of_all(c, (int)axis, &size);
    for (int i = 0; i < c->n_in && rc == CH_OK; i++) {
        ch_dims d = c->in[i];

        d.dim[axis] = size;
        rc = ch__infer_dims(c, i, c->dtype[i], &d);
    }
    return rc;
}

/* ---- kernels ---- */

typedef struct join_state {
    ch_join join;
    int64_t total; /* reduce_scatter: bytes of a segment of the input */
    int64_t run[]; /* ch_join.run: bytes of a segment of each array */
} join_state;

/* Returns the number of segments: the product of the axes before the gathered axis. */
static int64_t runs_of(const ch_dims *d, int axis)
{
    int64_t runs = 1;

    for (int k = 0; k < axis; k++)
        runs *= d->dim[k].n;
    return runs;
}

/* Returns the bytes of a segment: the product of the gathered axis and the axes after it. */
static int64_t run_bytes(const ch_node *x, int axis)
{
    int64_t bytes = (int64_t)ch_dtype_bytes(x->dtype);

    for (int k = axis; k < x->dims.rank; k++)
        bytes *= x->dims.dim[k].n;
    return bytes;
}

static join_state *new_state(ch_prep *p, int n)
{
    join_state *s = ch__prep_state(p, sizeof(*s) + (size_t)n * sizeof(s->run[0]));

    if (s != NULL)
        s->join = (ch_join){.n = n, .outer = 1, .run = s->run};
    return s;
}

/* Lets output i use the memory of input i. The planner does so only if both have the same size,
 * which means that the other replicas have no elements. */
static ch_status all_gather_prepare(const ch_node *n, ch_prep *p)
{
    const all_gather_attrs *a = n->attrs;
    int                     axis = (int)a->axis;
    join_state             *s = new_state(p, n->n_in);

    if (s == NULL)
        return ch__fail_memory("all_gather");
    s->join.limit_ms = ch__limit_ms(a->timeout_seconds);
    s->join.outer = runs_of(&n->dims, axis);
    for (int i = 0; i < n->n_in; i++) {
        s->run[i] = run_bytes(n->in[i], axis);
        p->over[i] = i < 32 ? 1u << i : 0;
    }
    return CH_OK;
}

static ch_status all_gather_run(const ch_call *c, ch_kernel_tile t)
{
    const join_state *s = c->state;

    (void)t;
    if (c->env->group != NULL)
        return ch__group_all_gather(c->env->group, c->env->local, &s->join, c->in, c->out);
    for (int i = 0; i < s->join.n; i++)
        if (c->in[i] != c->out[i])
            memcpy(c->out[i], c->in[i], (size_t)ch__bytes(c->node->in[i]));
    return CH_OK;
}

static void all_gather_grad(ch_step *s, const ch_node *n, ch_node *const dout[],
                            ch_node *din[]);

static ch_status all_gather_factors(const ch_node *n, ch_factors *f)
{
    return ch__factors_of_arrays(n, f, (int)((const all_gather_attrs *)n->attrs)->axis);
}

static const ch_kernel all_gather_shared = {"shared", .prepare = all_gather_prepare,
                                            .run = all_gather_run};

const ch_op ch__op_all_gather = {
    .name = "all_gather",
    .version = 1,
    .n_in = -1,
    .n_out = -1,
    .flags = CH_OP_COLLECTIVE | CH_OP_READS_ENV | CH_OP_ALONE_IS_INPUT,
    .attrs = all_gather_rows,
    .attrs_bytes = sizeof(all_gather_attrs),
    .infer = all_gather_infer,
    .grad = all_gather_grad,
    .factors = all_gather_factors,
    .kernels = (const ch_kernel *const[]){&all_gather_shared, NULL},
};

/* ---- reduce_scatter: this replica's part of the sum over the replicas ---- */

typedef struct scatter_attrs {
    int64_t axis;
    ch_dims size; /* rank 1: size of this replica's share along the axis */
} scatter_attrs;

static const ch_attr scatter_rows[] = {
    CH_ATTR_INT(scatter_attrs, axis),
    CH_ATTR_DIMS(scatter_attrs, size),
    CH_ATTR_END,
};

/* ch__group_reduce_scatter checks that the shares add up to the input, because shape inference
 * has the inputs of the other replicas, but not their shares. */
static ch_status reduce_scatter_infer(ch_infer *c)
{
    const scatter_attrs *a = c->attrs;
    ch_dims              d = c->in[0];
    ch_status            rc = ch__infer_check_dims(c, &a->size);

    if (rc != CH_OK)
        return rc;
    if (!ch__can_accumulate(c->dtype[0]))
        return ch__infer_fail(c, "%s cannot be added", ch_dtype_name(c->dtype[0]));
    if (a->axis < 0 || a->axis >= d.rank || a->size.rank != 1)
        return ch__infer_fail(
            c, "axis %lld of an array of rank %d is invalid, or `size` is not a single size",
            (long long)a->axis, d.rank);
    for (int r = 1; r < c->n_peers; r++)
        if (!ch__dims_same(&c->peer[0][0], &c->peer[r][0]))
            return ch__infer_fail(c,
                                  "replica 0 has %s and replica %d has %s; want the same shape",
                                  ch__type_text(c->dtype[0], &c->peer[0][0]), r,
                                  ch__type_text(c->dtype[0], &c->peer[r][0]));
    d.dim[a->axis] = a->size.dim[0];
    return ch__infer_dims(c, 0, c->dtype[0], &d);
}

static ch_status reduce_scatter_prepare(const ch_node *n, ch_prep *p)
{
    int         axis = (int)((const scatter_attrs *)n->attrs)->axis;
    join_state *s = new_state(p, 1);

    if (s == NULL)
        return ch__fail_memory("reduce_scatter");
    s->run[0] = run_bytes(n, axis);
    s->total = run_bytes(n->in[0], axis);
    s->join.outer = runs_of(&n->dims, axis);
    return CH_OK;
}

static ch_status reduce_scatter_run(const ch_call *c, ch_kernel_tile t)
{
    const join_state *s = c->state;

    (void)t;
    if (c->env->group != NULL)
        return ch__group_reduce_scatter(c->env->group, c->env->local, c->node->dtype, &s->join,
                                        s->total, c->in, c->out[0]);
    memcpy(c->out[0], c->in[0], (size_t)ch__bytes(c->node));
    return CH_OK;
}

static void reduce_scatter_grad(ch_step *s, const ch_node *n, ch_node *const dout[],
                                ch_node *din[])
{
    int64_t          axis = ((const scatter_attrs *)n->attrs)->axis;
    all_gather_attrs a = {.axis = axis,
                          .total = {.rank = 1, .dim = {n->in[0]->dims.dim[axis]}}};

    (void)s;
    din[0] = ch__node(&ch__op_all_gather, &a, 1, dout);
}

static ch_status reduce_scatter_factors(const ch_node *n, ch_factors *f)
{
    return ch__factors_of_arrays(n, f, (int)((const scatter_attrs *)n->attrs)->axis);
}

static const ch_kernel reduce_scatter_shared = {"shared", .prepare = reduce_scatter_prepare,
                                                .run = reduce_scatter_run};

const ch_op ch__op_reduce_scatter = {
    .name = "reduce_scatter",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .flags = CH_OP_COLLECTIVE | CH_OP_READS_ENV | CH_OP_ALONE_IS_INPUT | CH_OP_VARIES,
    .attrs = scatter_rows,
    .attrs_bytes = sizeof(scatter_attrs),
    .infer = reduce_scatter_infer,
    .grad = reduce_scatter_grad,
    .factors = reduce_scatter_factors,
    .kernels = (const ch_kernel *const[]){&reduce_scatter_shared, NULL},
};

/* Every replica's output contains the input of each replica. So the gradient of an input is its
 * share of the sum of the output gradients. */
static void all_gather_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    int64_t axis = ((const all_gather_attrs *)n->attrs)->axis;

    (void)s;
    for (int i = 0; i < n->n_in; i++) {
        scatter_attrs a = {axis, {.rank = 1, .dim = {n->in[i]->dims.dim[axis]}}};

        if (dout[i] != NULL && ch_dtype_is_float(n->in[i]->dtype))
            din[i] = ch__node(&ch__op_reduce_scatter, &a, 1, &dout[i]);
    }
}

/* ---- recording ---- */

/* Records the error in the step. */
static void fail_sparse(const void *caller, const ch_node *x)
{
    ch__step_record_error(
        ch_node_step(x),
        ch__fail(CH_UNIMPLEMENTED,
                 "all_gather does not support sparse gradients (ids and rows); "
                 "all_reduce adds them up"),
        caller);
}

ch_node *ch_all_gather(ch_node *x, int axis)
{
    if (ch__is_sparse(x)) {
        fail_sparse(__builtin_return_address(0), x);
        return NULL;
    }
    return ch__node(&ch__op_all_gather, &(all_gather_attrs){.axis = axis}, 1, &x);
}

/* Returns true if the sizes along the axis are known to be equal on every replica. */
static bool go_together(const ch_node *a, const ch_node *b, int axis)
{
    return a != NULL && b != NULL && !ch__is_sparse(b) && axis >= 0 && axis < a->dims.rank &&
           axis < b->dims.rank && ch__dim_same(a->dims.dim[axis], b->dims.dim[axis]);
}

/* Gathers array `first` together with the later arrays of equal size along the axis. */
static void gather_from(const void *caller, int first, int n, ch_node *const *x, int axis,
                        ch_node **out)
{
    ch_node *in[CH_MAX_OUT] = {x[first]}, *y;
    int      index[CH_MAX_OUT] = {first}, m = 1;

    for (int i = first + 1; i < n && m < CH_MAX_OUT; i++)
        if (out[i] == NULL && go_together(x[first], x[i], axis)) {
            in[m] = x[i];
            index[m++] = i;
        }
    y = ch__node_at(caller, &ch__op_all_gather, &(all_gather_attrs){.axis = axis}, m, in);
    for (int k = 0; k < m && y != NULL; k++)
        out[index[k]] = ch__out(y, k);
}

void ch_all_gather_all(int n, ch_node *const *x, int axis, ch_node **out)
{
    const void *caller = __builtin_return_address(0);

    if (n <= 0 || x == NULL || out == NULL)
        return;
    for (int i = 0; i < n; i++)
        out[i] = NULL;
    for (int i = 0; i < n; i++)
        if (ch__is_sparse(x[i]))
            fail_sparse(caller, x[i]);
        else if (out[i] == NULL)
            gather_from(caller, i, n, x, axis, out);
}

bool ch__all_gather(int n, ch_node *const *in, double timeout_seconds, ch_node **out)
{
    all_gather_attrs a = {.timeout_seconds = timeout_seconds};
    ch_node         *y = ch__node(&ch__op_all_gather, &a, n, in);

    for (int i = 0; i < n; i++)
        out[i] = y != NULL ? ch__out(y, i) : NULL;
    return y != NULL;
}

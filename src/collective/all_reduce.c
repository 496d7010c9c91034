/* collective/all_reduce.c -- the op: the sum or mean of a value over the replicas, on each.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "collective/collective.h"
#include "collective/group.h"
#include "graph/step.h"
#include "kernel/accumulate.h"
#include "ops/lookup.h"
#include "ops/ops.h"

typedef struct all_reduce_attrs {
    int64_t op; /* ch_reduce_op: 0 sum, 1 mean, on the wire too */
} all_reduce_attrs;

static const ch_attr all_reduce_rows[] = {
    CH_ATTR_INT(all_reduce_attrs, op),
    CH_ATTR_END,
};

static ch_status all_reduce_infer(ch_infer *c)
{
    const all_reduce_attrs *a = c->attrs;

    if (a->op != CH_SUM && a->op != CH_MEAN)
        return ch__infer_fail(c, "reduction %lld is neither sum (0) nor mean (1)",
                              (long long)a->op);
    if (!ch__can_accumulate(c->dtype[0]))
        return ch__infer_fail(c, "%s cannot be added", ch_dtype_name(c->dtype[0]));
    if (a->op == CH_MEAN && !ch_dtype_is_float(c->dtype[0]))
        return ch__infer_fail(c, "the mean of %s is not one; cast to a float type first",
                              ch_dtype_name(c->dtype[0]));
    for (int r = 1; r < c->n_peers; r++)
        if (!ch__dims_same(&c->peer[0][0], &c->peer[r][0]))
            return ch__infer_fail(c, "replicas 0 and %d have different shapes", r);
    return ch__infer_like(c, 0, 0);
}

typedef struct all_reduce_state {
    ch_reduce_op op;
    ch_dtype     dtype;
    int64_t      count;
} all_reduce_state;

static bool all_reduce_fits(const ch_node *n)
{
    (void)n;
    return true;
}

static ch_status all_reduce_prepare(const ch_node *n, ch_prep *p)
{
    all_reduce_state *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("all_reduce");
    s->op = (ch_reduce_op)((const all_reduce_attrs *)n->attrs)->op;
    s->dtype = n->dtype;
    s->count = ch__count(n);
    p->over[0] = 1;
    return CH_OK;
}

static ch_status all_reduce_run(const ch_call *c, ch_piece t)
{
    const all_reduce_state *s = c->state;

    (void)t;
    if (c->env->group != NULL)
        return ch__group_all_reduce(c->env->group, c->env->local, s->op, s->dtype, s->count,
                                    c->in[0], c->out[0]);
    if (c->in[0] != c->out[0])
        memcpy(c->out[0], c->in[0], (size_t)s->count * ch_dtype_bytes(s->dtype));
    return CH_OK;
}

/* The sum's derivative with respect to any one replica's value is what all of them ask for. */
static void all_reduce_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch_all_reduce((ch_reduce_op)((const all_reduce_attrs *)n->attrs)->op, dout[0]);
}

static const ch_kernel all_reduce_shared = {"shared", all_reduce_fits, all_reduce_prepare,
                                            all_reduce_run, NULL};

const ch_op ch__op_all_reduce = {
    .name = "all_reduce",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .flags = CH_OP_COLLECTIVE | CH_OP_READS_ENV | CH_OP_ALONE_IS_INPUT,
    .attrs = all_reduce_rows,
    .attrs_bytes = sizeof(all_reduce_attrs),
    .infer = all_reduce_infer,
    .grad = all_reduce_grad,
    .factors = ch__factors_elementwise,
    .kernels = (const ch_kernel *const[]){&all_reduce_shared, NULL},
};

/* A sparse one stays so: the sum has the rows of all. */
static ch_node *all_reduce_sparse(ch_reduce_op op, const ch_node *x)
{
    ch_step *s = ch_node_step(x);
    ch_node *in[2] = {x->head->in[0], x->head->in[1]}, *out[2];

    if (!ch__all_gather(2, in, out))
        return NULL;
    if (op == CH_MEAN)
        out[1] = ch_div(out[1], ch_step_replica_count(s));
    return ch__sparse_rows(out[0], out[1], x->dims.dim[0]);
}

ch_node *ch_all_reduce(ch_reduce_op op, ch_node *x)
{
    const void *caller = __builtin_return_address(0), *before;
    ch_node    *y;

    if (!ch__is_sparse(x) || (op != CH_SUM && op != CH_MEAN))
        return ch__node_at(caller, &ch__op_all_reduce, &(all_reduce_attrs){op}, 1, &x);
    before = ch__step_begin_at(ch_node_step(x), caller, "all_reduce");
    y = all_reduce_sparse(op, x);
    ch__step_end(ch_node_step(x), before);
    return y;
}

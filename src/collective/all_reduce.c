/* collective/all_reduce.c -- the op: the sum or mean of values over the replicas, on each.
 *
 * Several arrays go together: replicas meet once for all of them.
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

/* As many as a kernel can say of that they may be written over their inputs. */
enum { TOGETHER = 32 };

static ch_status check_array(const ch_infer *c, int i)
{
    const all_reduce_attrs *a = c->attrs;

    if (!ch__can_accumulate(c->dtype[i]))
        return ch__infer_fail(c, "%s cannot be added", ch_dtype_name(c->dtype[i]));
    if (a->op == CH_MEAN && !ch_dtype_is_float(c->dtype[i]))
        return ch__infer_fail(c, "the mean of %s is not one; cast to a float type first",
                              ch_dtype_name(c->dtype[i]));
    for (int r = 1; r < c->n_peers; r++)
        if (!ch__dims_same(&c->peer[0][i], &c->peer[r][i]))
            return ch__infer_fail(c,
                                  "replica 0 has %s and replica %d has %s; want the same shape",
                                  ch__type_text(c->dtype[i], &c->peer[0][i]), r,
                                  ch__type_text(c->dtype[i], &c->peer[r][i]));
    return CH_OK;
}

static ch_status all_reduce_infer(ch_infer *c)
{
    const all_reduce_attrs *a = c->attrs;
    ch_status               rc = CH_OK;

    if (a->op != CH_SUM && a->op != CH_MEAN)
        return ch__infer_fail(c, "reduction %lld is neither sum (0) nor mean (1)",
                              (long long)a->op);
    if (c->n_in < 1 || c->n_in > CH_MAX_OUT)
        return ch__infer_fail(c, "%d inputs, want 1 to %d", c->n_in, CH_MAX_OUT);
    for (int i = 0; i < c->n_in && rc == CH_OK; i++) {
        rc = check_array(c, i);
        if (rc == CH_OK)
            rc = ch__infer_like(c, i, i);
    }
    return rc;
}

typedef struct all_reduce_state {
    ch_addends sum;
    ch_addend  array[];
} all_reduce_state;

static ch_status all_reduce_prepare(const ch_node *n, ch_prep *p)
{
    all_reduce_state *s = ch__prep_state(p, sizeof(*s) + (size_t)n->n_in * sizeof(s->array[0]));

    if (s == NULL)
        return ch__fail_memory("all_reduce");
    s->sum =
        (ch_addends){(ch_reduce_op)((const all_reduce_attrs *)n->attrs)->op, n->n_in, s->array};
    for (int i = 0; i < n->n_in; i++) {
        s->array[i] = (ch_addend){n[i].dtype, ch__count(&n[i])};
        p->over[i] = i < TOGETHER ? 1u << i : 0;
    }
    return CH_OK;
}

static ch_status all_reduce_run(const ch_call *c, ch_piece t)
{
    const all_reduce_state *s = c->state;

    (void)t;
    if (c->env->group != NULL)
        return ch__group_all_reduce(c->env->group, c->env->local, &s->sum, c->in, c->out);
    for (int i = 0; i < s->sum.n; i++)
        if (c->in[i] != c->out[i])
            memcpy(c->out[i], c->in[i],
                   (size_t)s->array[i].count * ch_dtype_bytes(s->array[i].dtype));
    return CH_OK;
}

/* The sum's derivative with respect to any one replica's value is what all of them ask for. */
static void all_reduce_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *d[CH_MAX_OUT], *sum[CH_MAX_OUT] = {NULL};
    int      wanted = 0;

    (void)s;
    for (int i = 0; i < n->n_in; i++)
        if (dout[i] != NULL)
            d[wanted++] = dout[i];
    ch_all_reduce_all((ch_reduce_op)((const all_reduce_attrs *)n->attrs)->op, wanted, d, sum);
    for (int i = n->n_in - 1; i >= 0; i--)
        if (dout[i] != NULL)
            din[i] = sum[--wanted];
}

/* Of one array: several have nothing to do with each other. */
static ch_status all_reduce_factors(const ch_node *n, ch_factors *f)
{
    return n->n_in == 1 ? ch__factors_elementwise(n, f) : CH_OK;
}

static const ch_kernel all_reduce_shared = {"shared", ch__always, all_reduce_prepare,
                                            all_reduce_run, NULL};

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
    .factors = all_reduce_factors,
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

static ch_node *all_reduce_one(const void *caller, ch_reduce_op op, ch_node *x)
{
    const void *before;
    ch_node    *y;

    if (!ch__is_sparse(x) || (op != CH_SUM && op != CH_MEAN))
        return ch__node_at(caller, &ch__op_all_reduce, &(all_reduce_attrs){op}, 1, &x);
    before = ch__step_begin_at(ch_node_step(x), caller, "all_reduce");
    y = all_reduce_sparse(op, x);
    ch__step_end(ch_node_step(x), before);
    return y;
}

ch_node *ch_all_reduce(ch_reduce_op op, ch_node *x)
{
    return all_reduce_one(__builtin_return_address(0), op, x);
}

/* ---- several at once ---- */

/* Bytes of an array; 0 where a run says how large it is. */
static int64_t bytes_of(const ch_node *x)
{
    int64_t bytes = (int64_t)ch_dtype_bytes(x->dtype);

    for (int i = 0; i < x->dims.rank; i++)
        bytes = x->dims.dim[i].sym == 0 ? bytes * x->dims.dim[i].n : 0;
    return bytes;
}

/* What goes together: arrays, and their places in the list. */
typedef struct pack {
    int      n;
    int64_t  bytes;
    ch_node *in[TOGETHER];
    int      place[TOGETHER];
} pack;

static void reduce_pack(const void *caller, ch_reduce_op op, pack *p, ch_node **out)
{
    ch_node *y = ch__node_at(caller, &ch__op_all_reduce, &(all_reduce_attrs){op}, p->n, p->in);

    for (int i = 0; i < p->n; i++)
        out[p->place[i]] = y != NULL ? ch__out(y, i) : NULL;
    p->n = 0;
    p->bytes = 0;
}

/* From the last to the first, as gradients are made. A pack is full when it has more than
 * `bytes_per_pack`. */
static void reduce_dense(const void *caller, ch_reduce_op op, int n, ch_node *const *x,
                         int64_t bytes_per_pack, ch_node **out)
{
    pack p = {0};

    for (int i = n - 1; i >= 0; i--) {
        if (x[i] == NULL || ch__is_sparse(x[i]))
            continue;
        if (p.n == TOGETHER || (bytes_per_pack > 0 && p.bytes > bytes_per_pack))
            reduce_pack(caller, op, &p, out);
        p.in[p.n] = x[i];
        p.place[p.n++] = i;
        p.bytes += bytes_of(x[i]);
    }
    if (p.n > 0)
        reduce_pack(caller, op, &p, out);
}

void ch__all_reduce_packs(const void *caller, ch_reduce_op op, int n, ch_node *const *x,
                          int64_t bytes_per_pack, ch_node **out)
{
    for (int i = 0; i < n; i++)
        out[i] = x[i] == NULL || ch__is_sparse(x[i]) ? all_reduce_one(caller, op, x[i]) : NULL;
    reduce_dense(caller, op, n, x, bytes_per_pack, out);
}

void ch_all_reduce_all(ch_reduce_op op, int n, ch_node *const *x, ch_node **out)
{
    if (n > 0 && x != NULL && out != NULL)
        ch__all_reduce_packs(__builtin_return_address(0), op, n, x, 0, out);
}

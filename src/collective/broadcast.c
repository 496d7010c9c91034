/* collective/broadcast.c -- the op broadcast, and reduce_to_first, which is its gradient.
 *
 * broadcast returns replica 0's values on every replica. The other replicas' inputs are not
 * read, so they may have other shapes. A call broadcasts several arrays: inputs with equal
 * numbers of rows have outputs with equal numbers of rows. reduce_to_first returns the sum over
 * the replicas on replica 0, and zeros on the others. The kernels call group.h.
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

typedef struct broadcast_attrs {
    bool    is_known; /* `size` is replica 0's shape of the single input */
    bool    is_part;  /* of a core: only the partitioner knows the sizes of replica 0's part */
    ch_dims size;
} broadcast_attrs;

static const ch_attr broadcast_rows[] = {
    CH_ATTR_BOOL(broadcast_attrs, is_known),
    CH_ATTR_BOOL(broadcast_attrs, is_part),
    CH_ATTR_DIMS(broadcast_attrs, size),
    CH_ATTR_END,
};

/* Returns the size of an output axis while the step is recorded. A symbol of the input
 * becomes a new symbol, because replica 0's size may differ from this replica's. Equal
 * symbols become equal symbols. */
static ch_dim size_at_first(ch_infer *c, const ch_dim *in_dim, const ch_dim *out_dim, int n,
                            ch_dim d)
{
    if (((const broadcast_attrs *)c->attrs)->is_part)
        return ch__infer_symbol(c);
    if (d.sym == 0)
        return d;
    for (int i = 0; i < n; i++)
        if (in_dim[i].sym == d.sym)
            return (ch_dim){d.n, out_dim[i].sym};
    return (ch_dim){d.n, ch__infer_symbol(c).sym};
}

static ch_status infer_recorded(ch_infer *c)
{
    ch_dim    in_dim[CH_PACK_MAX * CH_MAX_RANK], out_dim[CH_PACK_MAX * CH_MAX_RANK];
    int       n = 0;
    ch_status rc = CH_OK;

    for (int i = 0; i < c->n_in && rc == CH_OK; i++) {
        ch_dims d = c->in[i];

        for (int k = 0; k < d.rank; k++, n++) {
            in_dim[n] = d.dim[k];
            out_dim[n] = d.dim[k] = size_at_first(c, in_dim, out_dim, n, d.dim[k]);
        }
        rc = ch__infer_dims(c, i, c->dtype[i], &d);
    }
    return rc;
}

static ch_status broadcast_infer(ch_infer *c)
{
    const broadcast_attrs *a = c->attrs;
    const ch_dims         *first = c->n_peers > 0 ? c->peer[0] : c->in;
    ch_status              rc = ch__infer_check_dims(c, &a->size);

    if (rc == CH_OK && (c->n_in < 1 || c->n_in > (a->is_known ? 1 : CH_PACK_MAX)))
        rc = ch__infer_fail(c, "%d inputs, want 1 to %d", c->n_in,
                            a->is_known ? 1 : CH_PACK_MAX);
    if (rc != CH_OK)
        return rc;
    if (!c->graph->is_concrete)
        return a->is_known ? ch__infer_dims(c, 0, c->dtype[0], &a->size) : infer_recorded(c);
    if (a->is_known && !ch__dims_same(first, &a->size))
        return ch__infer_fail(c, "replica 0 has %s (want %s)",
                              ch__type_text(c->dtype[0], first),
                              ch__type_text(c->dtype[0], &a->size));
    for (int i = 0; i < c->n_in && rc == CH_OK; i++)
        rc = ch__infer_dims(c, i, c->dtype[i], &first[i]);
    return rc;
}

typedef struct broadcast_state {
    int64_t bytes[CH_PACK_MAX]; /* of each array */
} broadcast_state;

static ch_status broadcast_prepare(const ch_node *n, ch_prep *p)
{
    broadcast_state *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("broadcast");
    for (int i = 0; i < n->n_in; i++) {
        s->bytes[i] = ch__bytes(&n[i]);
        p->over[i] = 1u << i;
    }
    return CH_OK;
}

static ch_status broadcast_run(const ch_call *c, ch_kernel_tile t)
{
    const broadcast_state *s = c->state;

    (void)t;
    if (c->env->group != NULL)
        return ch__group_broadcast(c->env->group, c->env->local, c->node->n_in, s->bytes, c->in,
                                   c->out);
    for (int i = 0; i < c->node->n_in; i++)
        if (c->in[i] != c->out[i] && s->bytes[i] > 0)
            memcpy(c->out[i], c->in[i], (size_t)s->bytes[i]);
    return CH_OK;
}

static void broadcast_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[]);

static const ch_kernel broadcast_shared = {"shared", .prepare = broadcast_prepare,
                                           .run = broadcast_run};

static ch_status arrays_factors(const ch_node *n, ch_factors *f)
{
    return ch__factors_of_arrays(n, f, -1);
}

static ch_status broadcast_local(const ch_node *n, const ch_call_part *part, void *attrs)
{
    broadcast_attrs *a = attrs;

    a->is_part = !a->is_known;
    return a->is_known ? ch__local_dims(n, part, attrs) : CH_OK;
}

const ch_op ch__op_broadcast = {
    .name = "broadcast",
    .version = 1,
    .n_in = -1,
    .n_out = -1,
    .flags = CH_OP_COLLECTIVE | CH_OP_READS_ENV | CH_OP_ALONE_IS_INPUT,
    .attrs = broadcast_rows,
    .attrs_bytes = sizeof(broadcast_attrs),
    .infer = broadcast_infer,
    .grad = broadcast_grad,
    .factors = arrays_factors,
    .local = broadcast_local,
    .kernels = (const ch_kernel *const[]){&broadcast_shared, NULL},
};

/* ---- reduce_to_first: the sum over the replicas on replica 0, and zeros on the others ---- */

typedef struct to_first_attrs {
    ch_dims size; /* shape of this replica's output; on replica 0 that of the input */
} to_first_attrs;

static const ch_attr to_first_rows[] = {
    CH_ATTR_DIMS(to_first_attrs, size),
    CH_ATTR_END,
};

static ch_status to_first_infer(ch_infer *c)
{
    const to_first_attrs *a = c->attrs;
    ch_status             rc = ch__infer_check_dims(c, &a->size);

    if (rc != CH_OK)
        return rc;
    if (!ch__can_accumulate(c->dtype[0]))
        return ch__infer_fail(c, "%s cannot be added", ch_dtype_name(c->dtype[0]));
    for (int r = 1; r < c->n_peers; r++)
        if (!ch__dims_same(&c->peer[0][0], &c->peer[r][0]))
            return ch__infer_fail(c,
                                  "replica 0 has %s and replica %d has %s; want the same shape",
                                  ch__type_text(c->dtype[0], &c->peer[0][0]), r,
                                  ch__type_text(c->dtype[0], &c->peer[r][0]));
    return ch__infer_dims(c, 0, c->dtype[0], &a->size);
}

/* Bytes of the sum that replica 0 gets, and that each other replica gets (0). */
typedef struct to_first_state {
    int64_t run[2];
} to_first_state;

static ch_status to_first_prepare(const ch_node *n, ch_prep *p)
{
    to_first_state *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("reduce_to_first");
    s->run[0] = ch__bytes(n->in[0]);
    return CH_OK;
}

static ch_status to_first_run(const ch_call *c, ch_kernel_tile t)
{
    const to_first_state *s = c->state;
    int64_t               bytes = ch__bytes(c->node);
    bool                  is_first = c->env->replica == 0;
    ch_status             rc = CH_OK;

    (void)t;
    if (is_first && bytes != s->run[0])
        return ch__call_fail(
            c, CH_INVALID_ARGUMENT,
            "replica 0: the output has %lld bytes, which is not the size of the input",
            (long long)bytes);
    if (c->env->group != NULL)
        rc = ch__group_reduce_scatter(c->env->group, c->env->local, c->node->dtype,
                                      &(ch_join){1, 1, &s->run[!is_first], 0}, s->run[0], c->in,
                                      c->out[0]);
    else if (is_first && bytes > 0)
        memcpy(c->out[0], c->in[0], (size_t)bytes);
    if (rc == CH_OK && !is_first && bytes > 0)
        memset(c->out[0], 0, (size_t)bytes);
    return rc;
}

static void to_first_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch__node(&ch__op_broadcast,
                      &(broadcast_attrs){.is_known = true, .size = n->in[0]->dims}, 1, dout);
}

static const ch_kernel to_first_shared = {"shared", .prepare = to_first_prepare,
                                          .run = to_first_run};

const ch_op ch__op_reduce_to_first = {
    .name = "reduce_to_first",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .flags = CH_OP_COLLECTIVE | CH_OP_READS_ENV | CH_OP_ALONE_IS_INPUT | CH_OP_VARIES,
    .attrs = to_first_rows,
    .attrs_bytes = sizeof(to_first_attrs),
    .infer = to_first_infer,
    .grad = to_first_grad,
    .factors = arrays_factors,
    .local = ch__local_dims,
    .kernels = (const ch_kernel *const[]){&to_first_shared, NULL},
};

/* Every replica's output is replica 0's input. So the gradient of that input is the sum of all
 * output gradients, and the gradients of the other inputs are 0. */
static void broadcast_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    for (int i = 0; i < n->n_in; i++)
        if (dout[i] != NULL && ch_dtype_is_float(n->in[i]->dtype))
            din[i] = ch__node(&ch__op_reduce_to_first, &(to_first_attrs){n->in[i]->dims}, 1,
                              &dout[i]);
}

/* ---- recording ---- */

ch_node *ch_broadcast(ch_node *x)
{
    return ch__node(&ch__op_broadcast, &(broadcast_attrs){0}, 1, &x);
}

bool ch__broadcast(int n, ch_node *const *in, ch_node **out)
{
    ch_node *y = ch__node(&ch__op_broadcast, &(broadcast_attrs){0}, n, in);

    for (int i = 0; i < n; i++)
        out[i] = y != NULL ? ch__out(y, i) : NULL;
    return y != NULL;
}

/* collective/packs.c -- all-reduces many values in packs, which take one barrier each.
 *
 * A pack begins as soon as its last value is computed, and ends where the first of its sums is
 * used. Gradients are computed from the last variable to the first, and packed in that order.
 * So the sums of the last layers are computed while the gradients of the first layers are.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "collective/collective.h"
#include "graph/step.h"
#include "ops/ops.h"

/* The bytes_per_pack that is used if the options have 0. */
static const int64_t default_pack_bytes = (int64_t)1 << 20;

/* Returns the bytes of an array, or 0 if its size is known only when the step runs. */
static int64_t bytes_of(const ch_node *x)
{
    int64_t bytes = (int64_t)ch_dtype_bytes(x->dtype);

    for (int i = 0; i < x->dims.rank; i++)
        bytes = x->dims.dim[i].sym == 0 ? bytes * x->dims.dim[i].n : 0;
    return bytes;
}

/* Nodes that are reduced together. */
typedef struct pack {
    int      n;
    int64_t  bytes;
    ch_node *in[CH_PACK_MAX];
    int      index[CH_PACK_MAX]; /* of each node in the caller's list */
} pack;

/* Returns true if a node cannot be in a pack: sparse gradients are gathered instead, and
 * integers of a mean are cast first. */
static bool is_reduced_alone(ch_reduce_op op, const ch_node *x)
{
    return x == NULL || ch__is_sparse(x) || ch__is_mean_of_integers(op, x);
}

/* Reduces a pack, and empties it. */
static void reduce_pack(const void *caller, ch_reduce_op op, pack *p,
                        const ch_communication_options *how, ch_node **out)
{
    ch_node *sum[CH_PACK_MAX];

    ch__all_reduce_dense(caller, op, p->n, p->in, how, sum);
    for (int i = 0; i < p->n; i++)
        out[p->index[i]] = sum[i];
    p->n = 0;
    p->bytes = 0;
}

void ch__all_reduce_packs(const void *caller, ch_reduce_op op, int n, ch_node *const *x,
                          const ch_communication_options *how, ch_node **out)
{
    int64_t full =
        how != NULL && how->bytes_per_pack > 0 ? how->bytes_per_pack : default_pack_bytes;
    pack p = {0};

    for (int i = 0; i < n; i++)
        out[i] = is_reduced_alone(op, x[i]) ? ch__all_reduce_one(caller, op, x[i], how) : NULL;
    /* Packs from the last node to the first, the order in which gradients are computed. A pack
     * is full when it has more than `full` bytes, or CH_PACK_MAX nodes. */
    for (int i = n - 1; i >= 0; i--) {
        if (is_reduced_alone(op, x[i]))
            continue;
        if (p.n == CH_PACK_MAX || p.bytes > full)
            reduce_pack(caller, op, &p, how, out);
        p.in[p.n] = x[i];
        p.index[p.n++] = i;
        p.bytes += bytes_of(x[i]);
    }
    if (p.n > 0)
        reduce_pack(caller, op, &p, how, out);
}

void ch_all_reduce_all(ch_reduce_op op, int n, ch_node *const *x, ch_node **out)
{
    if (n > 0 && x != NULL && out != NULL)
        ch__all_reduce_packs(__builtin_return_address(0), op, n, x, NULL, out);
}

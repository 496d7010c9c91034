/* collective/packs.c -- many values over the replicas: in packs, for each of which replicas meet once.
 *
 * A pack is begun as soon as the last of its values is there, and ended where the first of its sums is asked for. Gradients are
 * made from the last variable's to the first's, and packed in that order: while those of the first layers are
 * computed, the sums of the others are under way.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "collective/collective.h"
#include "graph/step.h"
#include "ops/ops.h"

/* Bytes after which a pack is full, if nothing is said. */
static const int64_t enough = (int64_t)1 << 20;

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
    ch_node *in[CH_TOGETHER];
    int      place[CH_TOGETHER];
} pack;

/* Packs are of arrays that are added as they are. */
static bool goes_alone(ch_reduce_op op, const ch_node *x)
{
    return x == NULL || ch__is_sparse(x) || ch__is_mean_of_integers(op, x);
}

static void reduce_pack(const void *caller, ch_reduce_op op, pack *p,
                        const ch_communication_options *how, ch_node **out)
{
    ch_node *sum[CH_TOGETHER];

    ch__all_reduce_dense(caller, op, p->n, p->in, how, sum);
    for (int i = 0; i < p->n; i++)
        out[p->place[i]] = sum[i];
    p->n = 0;
    p->bytes = 0;
}

/* From the last to the first, as gradients are made. A pack is full when it has more than
 * `bytes_per_pack`. */
static void reduce_dense(const void *caller, ch_reduce_op op, int n, ch_node *const *x,
                         const ch_communication_options *how, ch_node **out)
{
    int64_t full = how != NULL && how->bytes_per_pack > 0 ? how->bytes_per_pack : enough;
    pack    p = {0};

    for (int i = n - 1; i >= 0; i--) {
        if (goes_alone(op, x[i]))
            continue;
        if (p.n == CH_TOGETHER || p.bytes > full)
            reduce_pack(caller, op, &p, how, out);
        p.in[p.n] = x[i];
        p.place[p.n++] = i;
        p.bytes += bytes_of(x[i]);
    }
    if (p.n > 0)
        reduce_pack(caller, op, &p, how, out);
}

void ch__all_reduce_packs(const void *caller, ch_reduce_op op, int n, ch_node *const *x,
                          const ch_communication_options *how, ch_node **out)
{
    for (int i = 0; i < n; i++)
        out[i] = goes_alone(op, x[i]) ? ch__all_reduce_one(caller, op, x[i], how) : NULL;
    reduce_dense(caller, op, n, x, how, out);
}

void ch_all_reduce_all(ch_reduce_op op, int n, ch_node *const *x, ch_node **out)
{
    if (n > 0 && x != NULL && out != NULL)
        ch__all_reduce_packs(__builtin_return_address(0), op, n, x, NULL, out);
}

/* ops/apply_whole.c -- reductions of several arrays to a scalar: all_finite, sum_squares.
 *
 * Phase 0: every input is divided into tiles, and each tile writes its result to scratch.
 * Phase 1: a single tile combines these results in order.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "graph/step.h"
#include "kernel/block.h"
#include "kernel/finite.h"
#include "ops/apply.h"
#include "ops/ops.h"

static ch_status whole_check(const ch_infer *c)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < c->n_in && rc == CH_OK; i++)
        rc = ch__infer_want_float(c, i);
    return rc;
}

static ch_status all_finite_infer(ch_infer *c)
{
    ch_status rc = whole_check(c);

    return rc != CH_OK ? rc : ch__infer_out(c, 0, CH_BOOL, 0, NULL);
}

static ch_status sum_squares_infer(ch_infer *c)
{
    ch_status rc = whole_check(c);

    return rc != CH_OK ? rc : ch__infer_out(c, 0, CH_F64, 0, NULL);
}

typedef struct whole_state {
    int  tiles;
    int *first; /* first tile of each input; first[n_in] is the number of tiles */
} whole_state;

static ch_status whole_prepare(const ch_node *n, ch_prep *p)
{
    whole_state *s = ch__prep_state(p, sizeof(*s));

    if (s != NULL)
        s->first = ch__arena_alloc(p->arena, (size_t)(n->n_in + 1) * sizeof(*s->first));
    if (s == NULL || s->first == NULL)
        return ch__fail_memory(n->op->name);
    for (int i = 0; i < n->n_in; i++)
        s->first[i + 1] = s->first[i] + ch__tile_count(ch__count(n->in[i]), 2);
    s->tiles = s->first[n->n_in];
    p->scratch_bytes = (size_t)s->tiles * sizeof(double);
    p->n_phases = 2;
    p->tiles[0] = s->tiles;
    p->tiles[1] = 1;
    return CH_OK;
}

/* Returns the elements of a tile; sets *dtype and *n to their dtype and number. */
static const void *tile_of(const ch_call *c, int tile, ch_dtype *dtype, int64_t *n)
{
    const whole_state *s = c->state;
    const ch_node     *x;
    int                i = 0;
    int64_t            from, to;

    while (tile >= s->first[i + 1])
        i++;
    x = c->node->in[i];
    ch__tile_range(ch__count(x), s->first[i + 1] - s->first[i], tile - s->first[i], &from, &to);
    *dtype = x->dtype;
    *n = to - from;
    return (const char *)c->in[i] + (size_t)from * ch_dtype_bytes(x->dtype);
}

/* ---- partition rule and plain ops ---- */

/* An array is divided along any axis. A call of several arrays has no rule, because a part
 * would count the whole of the arrays that are not divided; whole_expand separates them. */
static ch_status whole_factors(const ch_node *n, ch_factors *f)
{
    ch_partial_op combiner = n->op == &ch__op_all_finite ? CH_PARTIAL_AND : CH_PARTIAL_SUM;
    int           x[CH_MAX_RANK];

    if (n->n_in != 1)
        return CH_OK;
    for (int k = 0; k < n->in[0]->dims.rank; k++)
        x[k] = ch__factor_red(f, combiner);
    ch__factor_map(f, 0, n->in[0]->dims.rank, x);
    return ch__factor_out(f, 0, NULL);
}

/* Records a call for each array, and combines their results in order. */
static bool whole_expand(ch_step *s, const ch_node *n, ch_node *const *in, ch_node **out)
{
    (void)s;
    if (n->n_in < 2)
        return false;
    for (int i = 0; i < n->n_in; i++) {
        ch_node *y = ch__node(n->op, NULL, 1, &in[i]);

        out[0] = i == 0                        ? y
                 : n->op == &ch__op_all_finite ? ch_logical_and(out[0], y)
                                               : ch_add(out[0], y);
    }
    return out[0] != NULL;
}

/* ---- all_finite ---- */

static ch_status all_finite_run(const ch_call *c, ch_kernel_tile t)
{
    const whole_state *s = c->state;
    double            *each = c->scratch;
    const void        *x;
    ch_dtype           dtype;
    int64_t            n;
    bool               all = true;

    if (t.phase == 0) {
        x = tile_of(c, t.index, &dtype, &n);
        each[t.index] = ch__all_finite(dtype, n, x);
        return CH_OK;
    }
    for (int i = 0; i < s->tiles; i++)
        all &= each[i] != 0;
    *(bool *)c->out[0] = all;
    return CH_OK;
}

static const ch_kernel all_finite_plain = {"plain", .prepare = whole_prepare,
                                           .run = all_finite_run};

const ch_op ch__op_all_finite = {
    .name = "all_finite",
    .version = 1,
    .n_in = -1,
    .n_out = 1,
    .flags = CH_OP_NO_GRAD,
    .infer = all_finite_infer,
    .factors = whole_factors,
    .expand = whole_expand,
    .kernels = (const ch_kernel *const[]){&all_finite_plain, NULL},
};

/* Records `op` with n inputs; without inputs the call is a source of step s. */
static ch_node *whole_node(const void *caller, ch_step *s, const ch_op *op, int n,
                           ch_node *const *x)
{
    return n > 0 ? ch__node_at(caller, op, NULL, n, x) : ch__source_at(caller, s, op, NULL);
}

ch_node *ch__are_finite(ch_step *s, int n, ch_node *const *x)
{
    return whole_node(__builtin_return_address(0), s, &ch__op_all_finite, n, x);
}

/* ---- sum_squares ---- */

/* Returns the sum of squares of n elements; 16-bit floats are widened in pieces. */
static double squares_of(ch_dtype dtype, int64_t n, const void *x)
{
    enum { PIECE = 512 };
    const uint16_t *half = x;
    float           wide[PIECE];
    double          sum = 0;

    if (dtype == CH_F32 || dtype == CH_F64)
        return ch__sum_of_squares(dtype, n, x);
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t k = n - i < PIECE ? n - i : PIECE;

        ch__blocks()->widen[dtype](k, (const void *[]){half + i}, wide, NULL);
        sum += ch__sum_of_squares(CH_F32, k, wide);
    }
    return sum;
}

static ch_status sum_squares_run(const ch_call *c, ch_kernel_tile t)
{
    const whole_state *s = c->state;
    double            *each = c->scratch, sum = 0;
    const void        *x;
    ch_dtype           dtype;
    int64_t            n;

    if (t.phase == 0) {
        x = tile_of(c, t.index, &dtype, &n);
        each[t.index] = squares_of(dtype, n, x);
        return CH_OK;
    }
    for (int i = 0; i < s->tiles; i++)
        sum += each[i];
    *(double *)c->out[0] = sum;
    return CH_OK;
}

/* The derivative for each x is 2 x. */
static void sum_squares_grad(ch_step *s, const ch_node *n, ch_node *const dout[],
                             ch_node *din[])
{
    for (int i = 0; i < n->n_in; i++)
        din[i] = ch_mul(ch_mul(n->in[i], ch_number(s, 2)), ch_cast(dout[0], n->in[i]->dtype));
}

static const ch_kernel sum_squares_plain = {"plain", .prepare = whole_prepare,
                                            .run = sum_squares_run};

const ch_op ch__op_sum_squares = {
    .name = "sum_squares",
    .version = 1,
    .n_in = -1,
    .n_out = 1,
    .infer = sum_squares_infer,
    .factors = whole_factors,
    .expand = whole_expand,
    .grad = sum_squares_grad,
    .kernels = (const ch_kernel *const[]){&sum_squares_plain, NULL},
};

ch_node *ch__sum_squares(ch_step *s, int n, ch_node *const *x)
{
    return whole_node(__builtin_return_address(0), s, &ch__op_sum_squares, n, x);
}

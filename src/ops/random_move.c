/* ops/random_move.c -- dropout and shuffle.
 *
 * Both ops are linear in x, and the gradient of each is the same op with the random numbers of
 * the forward call. The attribute `ordinal` names that call, so a gradient can be
 * differentiated again. Random words come from ops/draw.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "graph/step.h"
#include "kernel/widen.h"
#include "ops/draw.h"
#include "ops/ops.h"
#include "tensor/tensor.h"

/* ---- dropout ---- */

typedef struct dropout_attrs {
    double  rate;
    int64_t seed;
    int64_t ordinal; /* the call that has the random numbers; 0: this one, k: call k - 1 */
} dropout_attrs;

static const ch_attr dropout_rows[] = {
    CH_ATTR_FLOAT(dropout_attrs, rate),
    CH_ATTR_INT(dropout_attrs, seed),
    CH_ATTR_INT(dropout_attrs, ordinal),
    CH_ATTR_END,
};

static ch_status dropout_infer(ch_infer *c)
{
    const dropout_attrs *a = c->attrs;
    ch_status            rc = ch__infer_want_float(c, 0);

    if (rc != CH_OK)
        return rc;
    if (!(a->rate >= 0 && a->rate < 1))
        return ch__infer_fail(c, "rate is %g, want 0 <= rate < 1", a->rate);
    return ch__infer_like(c, 0, 0);
}

typedef struct dropout_state {
    const ch_philox_table *t;
    ch_chunks              c;
    int64_t                seed, ordinal;
    ch_dtype               dtype;
    uint32_t               least; /* an element is kept if its word is at least this */
    double                 scale; /* of the elements that are kept */
} dropout_state;

static ch_status dropout_prepare(const ch_node *n, ch_prep *p)
{
    const dropout_attrs *a = ch__attrs(n);
    dropout_state       *s = ch__prep_state(p, sizeof(*s));
    int64_t              limit = llround(a->rate * 0x1p32);

    if (s == NULL)
        return ch__fail_memory("dropout");
    s->t = ch__philox();
    s->c = ch__draw_cut(n, 1, 6, p);
    s->seed = a->seed;
    s->ordinal = a->ordinal;
    s->dtype = n->dtype;
    s->least = limit > UINT32_MAX ? UINT32_MAX : (uint32_t)limit;
    s->scale = 1 / (1 - a->rate);
    p->over[0] = 1;
    return CH_OK;
}

static ch_status dropout_run(const ch_call *call, ch_kernel_tile tile)
{
    const dropout_state *s = call->state;
    ch_philox            key = ch__draw_stream(call, s->seed, s->ordinal);
    uint32_t             w[CH_PHILOX_CHUNK];
    float                wide[CH_PHILOX_CHUNK];
    int64_t              from, to;

    ch__tile_range(s->c.count, s->c.tiles, tile.index, &from, &to);
    for (int64_t k = from; k < to; k++) {
        int64_t n = ch__draw(call, s->t, &key, &s->c, k, w), at = k * s->c.each;

        if (s->dtype == CH_F64) {
            s->t->keep_f64(n, w, s->least, s->scale, (const double *)call->in[0] + at,
                           (double *)call->out[0] + at);
        } else if (s->dtype == CH_F32) {
            s->t->keep_f32(n, w, s->least, (float)s->scale, (const float *)call->in[0] + at,
                           (float *)call->out[0] + at);
        } else {
            ch__widen(s->dtype, n, (const uint16_t *)call->in[0] + at, wide);
            s->t->keep_f32(n, w, s->least, (float)s->scale, wide, wide);
            ch__narrow(s->dtype, n, wide, (uint16_t *)call->out[0] + at);
        }
    }
    return CH_OK;
}

static void dropout_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    dropout_attrs a = *(const dropout_attrs *)ch__attrs(n);

    (void)s;
    if (a.ordinal == 0)
        a.ordinal = (int64_t)n->ordinal + 1;
    din[0] = ch__node(&ch__op_dropout, &a, 1, &dout[0]);
}

static const ch_kernel dropout_kernel = {"philox", .prepare = dropout_prepare,
                                         .run = dropout_run};

const ch_op ch__op_dropout = {
    .name = "dropout",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = dropout_rows,
    .attrs_bytes = sizeof(dropout_attrs),
    .infer = dropout_infer,
    .grad = dropout_grad,
    .factors = ch__factors_elementwise,
    .flags = CH_OP_RANDOM | CH_OP_ORIGIN,
    .kernels = (const ch_kernel *const[]){&dropout_kernel, NULL},
    .room = 1,
};

ch_node *ch_dropout(ch_node *x, double rate, uint64_t seed)
{
    dropout_attrs a = {.rate = rate, .seed = (int64_t)seed};

    if (rate == 0)
        return x;
    return ch__node(&ch__op_dropout, &a, 1, &x);
}

/* ---- shuffle ---- */

typedef struct shuffle_attrs {
    int64_t seed;
    int64_t ordinal; /* as in dropout_attrs */
    bool    inverse; /* the inverse permutation: the gradient moves the rows back */
} shuffle_attrs;

static const ch_attr shuffle_rows[] = {
    CH_ATTR_INT(shuffle_attrs, seed),
    CH_ATTR_INT(shuffle_attrs, ordinal),
    CH_ATTR_BOOL(shuffle_attrs, inverse),
    CH_ATTR_END,
};

static ch_status shuffle_infer(ch_infer *c)
{
    if (c->in[0].rank == 0)
        return ch__infer_fail(c, "a scalar has no rows");
    return ch__infer_like(c, 0, 0);
}

typedef struct shuffle_state {
    int64_t       rows;
    size_t        row_bytes;
    int           tiles;
    shuffle_attrs a;
} shuffle_state;

/* Phases: 0 computes the permutation in scratch; 1 copies the rows. */
static ch_status shuffle_prepare(const ch_node *n, ch_prep *p)
{
    shuffle_state *s = ch__prep_state(p, sizeof(*s));
    int64_t        all = ch__bytes(n);

    if (s == NULL)
        return ch__fail_memory("shuffle");
    s->rows = n->dims.dim[0].n;
    s->row_bytes = s->rows > 0 ? (size_t)(all / s->rows) : 0;
    s->a = *(const shuffle_attrs *)ch__attrs(n);
    s->tiles = ch__tile_count(s->rows, 8 + (int64_t)s->row_bytes / 4);
    p->scratch_bytes = (size_t)s->rows * sizeof(int64_t);
    p->n_phases = 2;
    p->tiles[0] = 1;
    p->tiles[1] = s->tiles;
    return CH_OK;
}

static ch_status shuffle_run(const ch_call *call, ch_kernel_tile tile)
{
    const shuffle_state *s = call->state;
    int64_t             *order = call->scratch, from, to;
    const char          *in = call->in[0];
    char                *out = call->out[0];

    if (tile.phase == 0) {
        ch_philox key = ch__draw_stream(call, s->a.seed, s->a.ordinal);

        ch__philox_permutation(&key, s->rows, order);
        return CH_OK;
    }
    ch__tile_range(s->rows, s->tiles, tile.index, &from, &to);
    for (int64_t i = from; i < to; i++) {
        size_t here = (size_t)i * s->row_bytes, there = (size_t)order[i] * s->row_bytes;

        memcpy(out + (s->a.inverse ? there : here), in + (s->a.inverse ? here : there),
               s->row_bytes);
    }
    return CH_OK;
}

static void shuffle_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    shuffle_attrs a = *(const shuffle_attrs *)ch__attrs(n);

    (void)s;
    if (a.ordinal == 0)
        a.ordinal = (int64_t)n->ordinal + 1;
    a.inverse = !a.inverse;
    din[0] = ch__node(&ch__op_shuffle, &a, 1, &dout[0]);
}

static ch_status shuffle_factors(const ch_node *n, ch_factors *f)
{
    return ch__factors_along(n, f, 0);
}

static const ch_kernel shuffle_kernel = {"plain", .prepare = shuffle_prepare,
                                         .run = shuffle_run};

const ch_op ch__op_shuffle = {
    .name = "shuffle",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = shuffle_rows,
    .attrs_bytes = sizeof(shuffle_attrs),
    .infer = shuffle_infer,
    .grad = shuffle_grad,
    .factors = shuffle_factors,
    .flags = CH_OP_RANDOM,
    .kernels = (const ch_kernel *const[]){&shuffle_kernel, NULL},
};

ch_node *ch_shuffle(ch_node *x, uint64_t seed)
{
    shuffle_attrs a = {.seed = (int64_t)seed};

    return ch__node(&ch__op_shuffle, &a, 1, &x);
}

/* ops/random.c -- random numbers, dropout, shuffle.
 *
 * A kernel draws words in chunks and turns them into elements. Chunk i of an output holds the
 * same words whoever draws it (kernel/philox.h), so tiles are chunks.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "graph/step.h"
#include "kernel/block.h"
#include "kernel/philox.h"
#include "ops/ops.h"
#include "tensor/tensor.h"

enum { WORDS = CH_PHILOX_CHUNK, GROUP = CH_PHILOX_GROUP };

/* ---- what all have in common ---- */

/* The stream of a call. `ordinal` is of the call whose numbers are drawn; 0: its own, else one
 * more than that. */
static ch_philox stream_of(const ch_call *c, int64_t own, int64_t ordinal)
{
    ch_philox_name name = {
        .seed = c->env->seed,
        .own = (uint64_t)own,
        .step = c->env->step,
        .iteration = c->env->iteration,
        .ordinal = ordinal > 0 ? (uint32_t)(ordinal - 1) : (uint32_t)c->node->ordinal,
        .replica = (uint32_t)c->env->replica,
    };

    return ch__philox_stream(&name);
}

/* How the elements of an output fall into chunks and those into tiles. */
typedef struct chunks {
    int64_t n, each, count; /* elements; of a chunk; chunks */
    int     tiles, words;   /* words of an element */
} chunks;

static chunks cut(const ch_node *n, int words, int64_t cost, ch_prep *p)
{
    chunks c = {.n = ch__count(n), .each = WORDS / words, .words = words};

    c.count = (c.n + c.each - 1) / c.each;
    c.tiles = ch__tile_count(c.count, c.each * cost);
    p->n_phases = 1;
    p->tiles[0] = c.tiles;
    return c;
}

/* Draws the words of a chunk and returns how many elements it has. */
static int64_t draw(const ch_philox_table *t, const ch_philox *s, const chunks *c,
                    int64_t chunk, uint32_t *w)
{
    int64_t left = c->n - chunk * c->each, n = left < c->each ? left : c->each;

    t->words(s, chunk * (WORDS / GROUP), (n * c->words + GROUP - 1) / GROUP, w);
    return n;
}

/* f32 to a 16-bit float, and back. */
static void narrow(ch_dtype dtype, int64_t n, const float *x, void *out)
{
    ch__blocks()->narrow[dtype](n, (const void *[]){x}, out, NULL);
}

static void widen(ch_dtype dtype, int64_t n, const void *x, float *out)
{
    ch__blocks()->widen[dtype](n, &x, out, NULL);
}

static bool is_half(ch_dtype t)
{
    return t == CH_BF16 || t == CH_F16;
}

/* A number as a dtype holds it. */
static double held(ch_dtype dtype, double x)
{
    double room = 0;

    ch__store(dtype, &room, x);
    return ch__load(dtype, &room);
}

static ch_status want_float(const ch_infer *c, ch_dtype dtype)
{
    return ch_dtype_is_float(dtype)
               ? CH_OK
               : ch__infer_fail(c, "dtype is %s, want a float type", ch_dtype_name(dtype));
}

/* A rank that is none stays so, for infer to refuse. */
static ch_dims dims_of(ch_shape shape)
{
    return shape.rank > CH_MAX_RANK ? (ch_dims){.rank = shape.rank} : ch__dims_of(shape);
}

/* ---- uniform ---- */

typedef struct uniform_attrs {
    ch_dtype dtype;
    ch_dims  dims;
    double   lo, hi;
    int64_t  seed;
} uniform_attrs;

static const ch_attr uniform_rows[] = {
    CH_ATTR_DTYPE(uniform_attrs, dtype), CH_ATTR_DIMS(uniform_attrs, dims),
    CH_ATTR_FLOAT(uniform_attrs, lo),    CH_ATTR_FLOAT(uniform_attrs, hi),
    CH_ATTR_INT(uniform_attrs, seed),    CH_ATTR_END,
};

static ch_status uniform_infer(ch_infer *c)
{
    const uniform_attrs *a = c->attrs;
    ch_status            rc = want_float(c, a->dtype);

    if (rc != CH_OK)
        return rc;
    if (!(a->lo < a->hi) || !isfinite(held(a->dtype, a->hi) - held(a->dtype, a->lo)))
        return ch__infer_fail(c, "lo is %g and hi %g, want lo < hi, both within %s", a->lo,
                              a->hi, ch_dtype_name(a->dtype));
    return ch__infer_dims(c, 0, a->dtype, &a->dims);
}

typedef struct uniform_state {
    const ch_philox_table *t;
    chunks                 c;
    int64_t                seed;
    ch_dtype               dtype;
    double                 lo, size, top;
} uniform_state;

/* The largest number of a dtype that is less than hi: what rounding must not go beyond. */
static double below(ch_dtype dtype, double hi)
{
    uint16_t half;

    if (dtype == CH_F64)
        return nextafter(hi, -INFINITY);
    if (dtype == CH_F32)
        return nextafterf((float)hi, -INFINITY);
    ch__store(dtype, &half, hi);
    if ((half & 0x7fff) == 0)
        half = 0x8001;
    else
        half = (uint16_t)((half & 0x8000) != 0 ? half + 1 : half - 1);
    return ch__load(dtype, &half);
}

static ch_status uniform_prepare(const ch_node *n, ch_prep *p)
{
    const uniform_attrs *a = ch__attrs(n);
    uniform_state       *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("random_uniform");
    s->t = ch__philox();
    s->c = cut(n, a->dtype == CH_F64 ? 2 : 1, 6, p);
    s->seed = a->seed;
    s->dtype = a->dtype;
    s->lo = held(a->dtype, a->lo);
    s->size = held(a->dtype, a->hi) - s->lo;
    s->top = fmax(below(a->dtype, held(a->dtype, a->hi)), s->lo);
    return CH_OK;
}

static ch_status uniform_run(const ch_call *call, ch_piece tile)
{
    const uniform_state *s = call->state;
    ch_philox            key = stream_of(call, s->seed, 0);
    uint32_t             w[WORDS];
    float                wide[WORDS];
    int64_t              from, to;

    ch__tile_range(s->c.count, s->c.tiles, tile.index, &from, &to);
    for (int64_t k = from; k < to; k++) {
        int64_t n = draw(s->t, &key, &s->c, k, w), at = k * s->c.each;
        float  *out = s->dtype == CH_F32 ? (float *)call->out[0] + at : wide;

        if (s->dtype == CH_F64)
            s->t->uniform_f64(n, w, s->lo, s->size, s->top, (double *)call->out[0] + at);
        else
            s->t->uniform_f32(n, w, (float)s->lo, (float)s->size, (float)s->top, out);
        if (is_half(s->dtype))
            narrow(s->dtype, n, wide, (uint16_t *)call->out[0] + at);
    }
    return CH_OK;
}

static const ch_kernel uniform_kernel = {"philox", ch__always, uniform_prepare, uniform_run,
                                         NULL};

const ch_op ch__op_random_uniform = {
    .name = "random_uniform",
    .version = 1,
    .n_in = 0,
    .n_out = 1,
    .attrs = uniform_rows,
    .attrs_bytes = sizeof(uniform_attrs),
    .infer = uniform_infer,
    .flags = CH_OP_RANDOM | CH_OP_NO_GRAD,
    .kernels = (const ch_kernel *const[]){&uniform_kernel, NULL},
};

ch_node *ch_random_uniform(ch_step *s, ch_dtype dtype, ch_shape shape, double lo, double hi,
                           uint64_t seed)
{
    uniform_attrs a = {dtype, dims_of(shape), lo, hi, (int64_t)seed};

    return ch__source(s, &ch__op_random_uniform, &a);
}

ch_node *ch_random_uniform_like(ch_node *x, double lo, double hi, uint64_t seed)
{
    uniform_attrs a;

    if (x == NULL)
        return NULL;
    a = (uniform_attrs){x->dtype, x->dims, lo, hi, (int64_t)seed};
    return ch__source(ch_node_step(x), &ch__op_random_uniform, &a);
}

/* ---- normal, truncated normal ---- */

typedef struct normal_attrs {
    ch_dtype dtype;
    ch_dims  dims;
    double   mean, deviation;
    int64_t  seed;
} normal_attrs;

static const ch_attr normal_rows[] = {
    CH_ATTR_DTYPE(normal_attrs, dtype), CH_ATTR_DIMS(normal_attrs, dims),
    CH_ATTR_FLOAT(normal_attrs, mean),  CH_ATTR_FLOAT(normal_attrs, deviation),
    CH_ATTR_INT(normal_attrs, seed),    CH_ATTR_END,
};

static ch_status normal_infer(ch_infer *c)
{
    const normal_attrs *a = c->attrs;
    ch_status           rc = want_float(c, a->dtype);

    if (rc != CH_OK)
        return rc;
    if (!isfinite(held(a->dtype, a->mean)) || !(held(a->dtype, a->deviation) < INFINITY) ||
        !(a->deviation >= 0))
        return ch__infer_fail(c,
                              "mean is %g and deviation %g, want numbers within %s, the "
                              "second not negative",
                              a->mean, a->deviation, ch_dtype_name(a->dtype));
    return ch__infer_dims(c, 0, a->dtype, &a->dims);
}

typedef struct normal_state {
    const ch_philox_table *t;
    chunks                 c;
    int64_t                seed;
    ch_dtype               dtype;
    ch_normal              p;
} normal_state;

static ch_status normal_prepare(const ch_node *n, ch_prep *p)
{
    const normal_attrs *a = ch__attrs(n);
    normal_state       *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory(n->op->name);
    s->t = ch__philox();
    s->c = cut(n, a->dtype == CH_F64 ? 2 : 1, 40, p);
    s->seed = a->seed;
    s->dtype = a->dtype;
    s->p = (ch_normal){a->mean, a->deviation, 0, 1};
    if (n->op == &ch__op_truncated_normal) { /* the part of (0, 1) within two deviations */
        s->p.from = 0.022750131948179207;
        s->p.width = 1 - 2 * s->p.from;
    }
    return CH_OK;
}

static ch_status normal_run(const ch_call *call, ch_piece tile)
{
    const normal_state *s = call->state;
    ch_philox           key = stream_of(call, s->seed, 0);
    uint32_t            w[WORDS];
    float               wide[WORDS];
    int64_t             from, to;

    ch__tile_range(s->c.count, s->c.tiles, tile.index, &from, &to);
    for (int64_t k = from; k < to; k++) {
        int64_t n = draw(s->t, &key, &s->c, k, w), at = k * s->c.each;
        float  *out = s->dtype == CH_F32 ? (float *)call->out[0] + at : wide;

        if (s->dtype == CH_F64)
            s->t->normal_f64(n, w, &s->p, (double *)call->out[0] + at);
        else
            s->t->normal_f32(n, w, &s->p, out);
        if (is_half(s->dtype))
            narrow(s->dtype, n, wide, (uint16_t *)call->out[0] + at);
    }
    return CH_OK;
}

static const ch_kernel normal_kernel = {"philox", ch__always, normal_prepare, normal_run, NULL};

const ch_op ch__op_random_normal = {
    .name = "random_normal",
    .version = 1,
    .n_in = 0,
    .n_out = 1,
    .attrs = normal_rows,
    .attrs_bytes = sizeof(normal_attrs),
    .infer = normal_infer,
    .flags = CH_OP_RANDOM | CH_OP_NO_GRAD,
    .kernels = (const ch_kernel *const[]){&normal_kernel, NULL},
};

const ch_op ch__op_truncated_normal = {
    .name = "truncated_normal",
    .version = 1,
    .n_in = 0,
    .n_out = 1,
    .attrs = normal_rows,
    .attrs_bytes = sizeof(normal_attrs),
    .infer = normal_infer,
    .flags = CH_OP_RANDOM | CH_OP_NO_GRAD,
    .kernels = (const ch_kernel *const[]){&normal_kernel, NULL},
};

ch_node *ch_random_normal(ch_step *s, ch_dtype dtype, ch_shape shape, double mean,
                          double deviation, uint64_t seed)
{
    normal_attrs a = {dtype, dims_of(shape), mean, deviation, (int64_t)seed};

    return ch__source(s, &ch__op_random_normal, &a);
}

ch_node *ch_random_normal_like(ch_node *x, double mean, double deviation, uint64_t seed)
{
    normal_attrs a;

    if (x == NULL)
        return NULL;
    a = (normal_attrs){x->dtype, x->dims, mean, deviation, (int64_t)seed};
    return ch__source(ch_node_step(x), &ch__op_random_normal, &a);
}

ch_node *ch_truncated_normal(ch_step *s, ch_dtype dtype, ch_shape shape, double mean,
                             double deviation, uint64_t seed)
{
    normal_attrs a = {dtype, dims_of(shape), mean, deviation, (int64_t)seed};

    return ch__source(s, &ch__op_truncated_normal, &a);
}

ch_node *ch_truncated_normal_like(ch_node *x, double mean, double deviation, uint64_t seed)
{
    normal_attrs a;

    if (x == NULL)
        return NULL;
    a = (normal_attrs){x->dtype, x->dims, mean, deviation, (int64_t)seed};
    return ch__source(ch_node_step(x), &ch__op_truncated_normal, &a);
}

/* ---- bernoulli ---- */

typedef struct bernoulli_attrs {
    ch_dtype dtype;
    ch_dims  dims;
    double   p;
    int64_t  seed;
} bernoulli_attrs;

static const ch_attr bernoulli_rows[] = {
    CH_ATTR_DTYPE(bernoulli_attrs, dtype),
    CH_ATTR_DIMS(bernoulli_attrs, dims),
    CH_ATTR_FLOAT(bernoulli_attrs, p),
    CH_ATTR_INT(bernoulli_attrs, seed),
    CH_ATTR_END,
};

static ch_status bernoulli_infer(ch_infer *c)
{
    const bernoulli_attrs *a = c->attrs;

    if (a->dtype > CH_BOOL)
        return ch__infer_fail(c, "dtype is %s, want one to calculate with",
                              ch_dtype_name(a->dtype));
    if (!(a->p >= 0 && a->p <= 1))
        return ch__infer_fail(c, "p is %g, want a probability: 0 to 1", a->p);
    return ch__infer_dims(c, 0, a->dtype, &a->dims);
}

typedef struct bernoulli_state {
    const ch_philox_table *t;
    chunks                 c;
    int64_t                seed;
    uint64_t               one;   /* in the bits of its dtype */
    int64_t                limit; /* words below it are ones: p in units of 2^-32 */
    size_t                 size;
} bernoulli_state;

static ch_status bernoulli_prepare(const ch_node *n, ch_prep *p)
{
    const bernoulli_attrs *a = ch__attrs(n);
    bernoulli_state       *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("bernoulli");
    s->t = ch__philox();
    s->c = cut(n, 1, 6, p);
    s->seed = a->seed;
    s->size = ch_dtype_bytes(a->dtype);
    s->limit = llround(a->p * 0x1p32);
    ch__store(a->dtype, &s->one, 1);
    return CH_OK;
}

static void pick(const bernoulli_state *s, int64_t n, const uint32_t *w, void *out)
{
    uint32_t most = (uint32_t)(s->limit - 1);
    uint8_t  one1;
    uint16_t one2;
    uint32_t one4;

    memcpy(&one1, &s->one, sizeof(one1));
    memcpy(&one2, &s->one, sizeof(one2));
    memcpy(&one4, &s->one, sizeof(one4));
    if (s->size == 1)
        s->t->pick_1(n, w, most, one1, out);
    else if (s->size == 2)
        s->t->pick_2(n, w, most, one2, out);
    else if (s->size == 4)
        s->t->pick_4(n, w, most, one4, out);
    else
        s->t->pick_8(n, w, most, s->one, out);
}

static ch_status bernoulli_run(const ch_call *call, ch_piece tile)
{
    const bernoulli_state *s = call->state;
    ch_philox              key = stream_of(call, s->seed, 0);
    uint32_t               w[WORDS];
    int64_t                from, to;

    ch__tile_range(s->c.count, s->c.tiles, tile.index, &from, &to);
    for (int64_t k = from; k < to; k++) {
        int64_t n = draw(s->t, &key, &s->c, k, w);
        char   *out = (char *)call->out[0] + (size_t)(k * s->c.each) * s->size;

        if (s->limit > 0)
            pick(s, n, w, out);
        else
            memset(out, 0, (size_t)n * s->size);
    }
    return CH_OK;
}

static const ch_kernel bernoulli_kernel = {"philox", ch__always, bernoulli_prepare,
                                           bernoulli_run, NULL};

const ch_op ch__op_bernoulli = {
    .name = "bernoulli",
    .version = 1,
    .n_in = 0,
    .n_out = 1,
    .attrs = bernoulli_rows,
    .attrs_bytes = sizeof(bernoulli_attrs),
    .infer = bernoulli_infer,
    .flags = CH_OP_RANDOM | CH_OP_NO_GRAD,
    .kernels = (const ch_kernel *const[]){&bernoulli_kernel, NULL},
};

ch_node *ch_bernoulli(ch_step *s, ch_dtype dtype, ch_shape shape, double p, uint64_t seed)
{
    bernoulli_attrs a = {dtype, dims_of(shape), p, (int64_t)seed};

    return ch__source(s, &ch__op_bernoulli, &a);
}

ch_node *ch_bernoulli_like(ch_node *x, double p, uint64_t seed)
{
    bernoulli_attrs a;

    if (x == NULL)
        return NULL;
    a = (bernoulli_attrs){x->dtype, x->dims, p, (int64_t)seed};
    return ch__source(ch_node_step(x), &ch__op_bernoulli, &a);
}

/* ---- integers ---- */

typedef struct integers_attrs {
    ch_dtype dtype;
    ch_dims  dims;
    int64_t  lo, hi, seed;
} integers_attrs;

static const ch_attr integers_rows[] = {
    CH_ATTR_DTYPE(integers_attrs, dtype), CH_ATTR_DIMS(integers_attrs, dims),
    CH_ATTR_INT(integers_attrs, lo),      CH_ATTR_INT(integers_attrs, hi),
    CH_ATTR_INT(integers_attrs, seed),    CH_ATTR_END,
};

static ch_status integers_infer(ch_infer *c)
{
    const integers_attrs *a = c->attrs;
    int64_t               least, most;

    switch (a->dtype) {
    case CH_I8:
        least = INT8_MIN, most = INT8_MAX;
        break;
    case CH_U8:
        least = 0, most = UINT8_MAX;
        break;
    case CH_I32:
        least = INT32_MIN, most = INT32_MAX;
        break;
    case CH_I64:
        least = INT64_MIN, most = INT64_MAX;
        break;
    default:
        return ch__infer_fail(c, "dtype is %s, want i8, u8, i32 or i64",
                              ch_dtype_name(a->dtype));
    }
    if (a->lo >= a->hi || a->lo < least || a->hi - 1 > most)
        return ch__infer_fail(c, "lo is %lld and hi %lld, want lo < hi, both within %s",
                              (long long)a->lo, (long long)a->hi, ch_dtype_name(a->dtype));
    return ch__infer_dims(c, 0, a->dtype, &a->dims);
}

typedef struct integers_state {
    const ch_philox_table *t;
    chunks                 c;
    int64_t                seed;
    ch_dtype               dtype;
    uint64_t               lo, range;
} integers_state;

static ch_status integers_prepare(const ch_node *n, ch_prep *p)
{
    const integers_attrs *a = ch__attrs(n);
    integers_state       *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("random_integers");
    s->t = ch__philox();
    s->lo = (uint64_t)a->lo;
    s->range = (uint64_t)a->hi - (uint64_t)a->lo;
    s->c = cut(n, s->range <= (uint64_t)1 << 32 ? 2 : 4, 10, p);
    s->seed = a->seed;
    s->dtype = a->dtype;
    return CH_OK;
}

/* lo + x, in two's complement. */
static void store_integers(const integers_state *s, int64_t n, const uint64_t *x, int64_t at,
                           void *to)
{
    int8_t  *i8 = (int8_t *)to + at;
    int32_t *i32 = (int32_t *)to + at;
    int64_t *i64 = (int64_t *)to + at;

    if (s->dtype == CH_I64)
        for (int64_t i = 0; i < n; i++)
            i64[i] = (int64_t)(s->lo + x[i]);
    else if (s->dtype == CH_I32)
        for (int64_t i = 0; i < n; i++)
            i32[i] = (int32_t)(s->lo + x[i]);
    else
        for (int64_t i = 0; i < n; i++)
            i8[i] = (int8_t)(s->lo + x[i]);
}

static ch_status integers_run(const ch_call *call, ch_piece tile)
{
    const integers_state *s = call->state;
    ch_philox             key = stream_of(call, s->seed, 0);
    uint32_t              w[WORDS];
    uint64_t              x[WORDS / 2];
    int64_t               from, to;

    ch__tile_range(s->c.count, s->c.tiles, tile.index, &from, &to);
    for (int64_t k = from; k < to; k++) {
        int64_t n = draw(s->t, &key, &s->c, k, w);

        if (s->c.words == 2)
            ch__philox_below_2(n, w, s->range, x);
        else
            ch__philox_below_4(n, w, s->range, x);
        store_integers(s, n, x, k * s->c.each, call->out[0]);
    }
    return CH_OK;
}

static const ch_kernel integers_kernel = {"philox", ch__always, integers_prepare, integers_run,
                                          NULL};

const ch_op ch__op_random_integers = {
    .name = "random_integers",
    .version = 1,
    .n_in = 0,
    .n_out = 1,
    .attrs = integers_rows,
    .attrs_bytes = sizeof(integers_attrs),
    .infer = integers_infer,
    .flags = CH_OP_RANDOM | CH_OP_NO_GRAD,
    .kernels = (const ch_kernel *const[]){&integers_kernel, NULL},
};

ch_node *ch_random_integers(ch_step *s, ch_dtype dtype, ch_shape shape, int64_t lo, int64_t hi,
                            uint64_t seed)
{
    integers_attrs a = {dtype, dims_of(shape), lo, hi, (int64_t)seed};

    return ch__source(s, &ch__op_random_integers, &a);
}

ch_node *ch_random_integers_like(ch_node *x, ch_dtype dtype, int64_t lo, int64_t hi,
                                 uint64_t seed)
{
    integers_attrs a;

    if (x == NULL)
        return NULL;
    a = (integers_attrs){dtype, x->dims, lo, hi, (int64_t)seed};
    return ch__source(ch_node_step(x), &ch__op_random_integers, &a);
}

/* ---- dropout ---- */

/* Linear in x: its gradient is the same op, with the numbers of the call that it is of. */
typedef struct dropout_attrs {
    double  rate;
    int64_t seed;
    int64_t ordinal; /* whose numbers: 0, its own; else of call ordinal - 1 */
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
    chunks                 c;
    int64_t                seed, ordinal;
    ch_dtype               dtype;
    uint32_t               least;
    double                 scale;
} dropout_state;

static ch_status dropout_prepare(const ch_node *n, ch_prep *p)
{
    const dropout_attrs *a = ch__attrs(n);
    dropout_state       *s = ch__prep_state(p, sizeof(*s));
    int64_t              limit = llround(a->rate * 0x1p32);

    if (s == NULL)
        return ch__fail_memory("dropout");
    s->t = ch__philox();
    s->c = cut(n, 1, 6, p);
    s->seed = a->seed;
    s->ordinal = a->ordinal;
    s->dtype = n->dtype;
    s->least = limit > UINT32_MAX ? UINT32_MAX : (uint32_t)limit;
    s->scale = 1 / (1 - a->rate);
    p->over[0] = 1;
    return CH_OK;
}

static ch_status dropout_run(const ch_call *call, ch_piece tile)
{
    const dropout_state *s = call->state;
    ch_philox            key = stream_of(call, s->seed, s->ordinal);
    uint32_t             w[WORDS];
    float                wide[WORDS];
    int64_t              from, to;

    ch__tile_range(s->c.count, s->c.tiles, tile.index, &from, &to);
    for (int64_t k = from; k < to; k++) {
        int64_t n = draw(s->t, &key, &s->c, k, w), at = k * s->c.each;

        if (s->dtype == CH_F64) {
            s->t->keep_f64(n, w, s->least, s->scale, (const double *)call->in[0] + at,
                           (double *)call->out[0] + at);
        } else if (s->dtype == CH_F32) {
            s->t->keep_f32(n, w, s->least, (float)s->scale, (const float *)call->in[0] + at,
                           (float *)call->out[0] + at);
        } else {
            widen(s->dtype, n, (const uint16_t *)call->in[0] + at, wide);
            s->t->keep_f32(n, w, s->least, (float)s->scale, wide, wide);
            narrow(s->dtype, n, wide, (uint16_t *)call->out[0] + at);
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

static const ch_kernel dropout_kernel = {"philox", ch__always, dropout_prepare, dropout_run,
                                         NULL};

const ch_op ch__op_dropout = {
    .name = "dropout",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = dropout_rows,
    .attrs_bytes = sizeof(dropout_attrs),
    .infer = dropout_infer,
    .grad = dropout_grad,
    .flags = CH_OP_RANDOM,
    .kernels = (const ch_kernel *const[]){&dropout_kernel, NULL},
};

ch_node *ch_dropout(ch_node *x, double rate, uint64_t seed)
{
    dropout_attrs a = {.rate = rate, .seed = (int64_t)seed};

    if (rate == 0)
        return x;
    return ch__node(&ch__op_dropout, &a, 1, &x);
}

/* ---- shuffle ---- */

/* The gradient puts the rows back: the inverse order, of the same call. */
typedef struct shuffle_attrs {
    int64_t seed;
    int64_t ordinal; /* as dropout's */
    bool    inverse;
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
    if (c->dtype[0] == CH_STR)
        return ch__infer_fail(c, "input 0 is string, want numbers");
    return ch__infer_like(c, 0, 0);
}

typedef struct shuffle_state {
    int64_t       rows;
    size_t        row_bytes;
    int           tiles;
    shuffle_attrs a;
} shuffle_state;

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

static ch_status shuffle_run(const ch_call *call, ch_piece tile)
{
    const shuffle_state *s = call->state;
    int64_t             *order = call->scratch, from, to;
    const char          *in = call->in[0];
    char                *out = call->out[0];

    if (tile.phase == 0) {
        ch_philox key = stream_of(call, s->a.seed, s->a.ordinal);

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

static const ch_kernel shuffle_kernel = {"plain", ch__always, shuffle_prepare, shuffle_run,
                                         NULL};

const ch_op ch__op_shuffle = {
    .name = "shuffle",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = shuffle_rows,
    .attrs_bytes = sizeof(shuffle_attrs),
    .infer = shuffle_infer,
    .grad = shuffle_grad,
    .flags = CH_OP_RANDOM,
    .kernels = (const ch_kernel *const[]){&shuffle_kernel, NULL},
};

ch_node *ch_shuffle(ch_node *x, uint64_t seed)
{
    shuffle_attrs a = {.seed = (int64_t)seed};

    return ch__node(&ch__op_shuffle, &a, 1, &x);
}

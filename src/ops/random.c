/* ops/random.c -- random numbers: uniform, normal, truncated normal, bernoulli, integers.
 *
 * All ops are sources: dtype, dims, parameters and seed are attributes. A kernel draws random
 * words in chunks (ops/draw.h) and converts them to elements with the loops of kernel/philox.h.
 * The numbers are a function of the seeds, the step, the replica and the ordinal of the call.
 * So they do not depend on the number of threads. A part of a call has the numbers of its
 * positions in the whole call, so they do not depend on the number of cores either.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "graph/step.h"
#include "kernel/widen.h"
#include "ops/draw.h"
#include "ops/ops.h"
#include "tensor/tensor.h"

/* Returns x rounded to the dtype. */
static double rounded_to(ch_dtype dtype, double x)
{
    double memory = 0;

    ch__store(dtype, &memory, x);
    return ch__load(dtype, &memory);
}

static ch_status want_float(const ch_infer *c, ch_dtype dtype)
{
    return ch_dtype_is_float(dtype)
               ? CH_OK
               : ch__infer_fail(c, "dtype is %s, want a float type", ch_dtype_name(dtype));
}

/* Returns the dims of a shape. Keeps a rank that is too large; the shape rule then fails. */
static ch_dims dims_of(ch_shape shape)
{
    return shape.rank > CH_MAX_RANK ? (ch_dims){.rank = shape.rank} : ch__dims_of(shape);
}

/* Returns the dims of x. If x is NULL the result does not matter, because there is no step to
 * record in. */
static ch_dims dims_like(const ch_node *x)
{
    return x != NULL ? x->dims : (ch_dims){0};
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
    if (!(a->lo < a->hi) ||
        !isfinite(rounded_to(a->dtype, a->hi) - rounded_to(a->dtype, a->lo)))
        return ch__infer_fail(c, "lo is %g and hi %g, want lo < hi, both within %s", a->lo,
                              a->hi, ch_dtype_name(a->dtype));
    return ch__infer_dims(c, 0, a->dtype, &a->dims);
}

typedef struct uniform_state {
    const ch_philox_table *t;
    ch_chunks              c;
    int64_t                seed;
    ch_dtype               dtype;
    double                 lo, size, top; /* top: the largest result, below hi */
} uniform_state;

/* Returns the largest number of a dtype that is less than hi. Rounding must not exceed it. */
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
    s->c = ch__draw_cut(n, a->dtype == CH_F64 ? 2 : 1, 6, p);
    s->seed = a->seed;
    s->dtype = a->dtype;
    s->lo = rounded_to(a->dtype, a->lo);
    s->size = rounded_to(a->dtype, a->hi) - s->lo;
    s->top = fmax(below(a->dtype, rounded_to(a->dtype, a->hi)), s->lo);
    return CH_OK;
}

static ch_status uniform_run(const ch_call *call, ch_kernel_tile tile)
{
    const uniform_state *s = call->state;
    ch_philox            key = ch__draw_stream(call, s->seed, 0);
    uint32_t             w[CH_PHILOX_CHUNK];
    float                wide[CH_PHILOX_CHUNK];
    int64_t              from, to;

    ch__tile_range(s->c.count, s->c.tiles, tile.index, &from, &to);
    for (int64_t k = from; k < to; k++) {
        int64_t n = ch__draw(call, s->t, &key, &s->c, k, w), at = k * s->c.each;
        float  *out = s->dtype == CH_F32 ? (float *)call->out[0] + at : wide;

        if (s->dtype == CH_F64)
            s->t->uniform_f64(n, w, s->lo, s->size, s->top, (double *)call->out[0] + at);
        else
            s->t->uniform_f32(n, w, (float)s->lo, (float)s->size, (float)s->top, out);
        if (ch__dtype_is_half(s->dtype))
            ch__narrow(s->dtype, n, wide, (uint16_t *)call->out[0] + at);
    }
    return CH_OK;
}

static const ch_kernel uniform_kernel = {"philox", .prepare = uniform_prepare,
                                         .run = uniform_run};

const ch_op ch__op_random_uniform = {
    .name = "random_uniform",
    .version = 1,
    .n_in = 0,
    .n_out = 1,
    .attrs = uniform_rows,
    .attrs_bytes = sizeof(uniform_attrs),
    .infer = uniform_infer,
    .factors = ch__factors_elementwise,
    .local = ch__local_dims,
    .flags = CH_OP_RANDOM | CH_OP_NO_GRAD | CH_OP_ORIGIN,
    .kernels = (const ch_kernel *const[]){&uniform_kernel, NULL},
    .room = CH_ROOM_ANY,
};

ch_node *ch_random_uniform(ch_step *s, ch_dtype dtype, ch_shape shape, double lo, double hi,
                           uint64_t seed)
{
    uniform_attrs a = {dtype, dims_of(shape), lo, hi, (int64_t)seed};

    return ch__source(s, &ch__op_random_uniform, &a);
}

ch_node *ch_random_uniform_like(ch_node *x, double lo, double hi, uint64_t seed)
{
    uniform_attrs a = {ch_node_dtype(x), dims_like(x), lo, hi, (int64_t)seed};

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
    if (!isfinite(rounded_to(a->dtype, a->mean)) ||
        !(rounded_to(a->dtype, a->deviation) < INFINITY) || !(a->deviation >= 0))
        return ch__infer_fail(c,
                              "mean is %g and deviation %g, want numbers within %s and a "
                              "deviation of 0 or more",
                              a->mean, a->deviation, ch_dtype_name(a->dtype));
    return ch__infer_dims(c, 0, a->dtype, &a->dims);
}

typedef struct normal_state {
    const ch_philox_table *t;
    ch_chunks              c;
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
    s->c = ch__draw_cut(n, a->dtype == CH_F64 ? 2 : 1, 40, p);
    s->seed = a->seed;
    s->dtype = a->dtype;
    s->p = (ch_normal){a->mean, a->deviation, 0, 1};
    if (n->op == &ch__op_truncated_normal) { /* the probabilities within two deviations */
        s->p.from = 0.022750131948179207;
        s->p.width = 1 - 2 * s->p.from;
    }
    return CH_OK;
}

static ch_status normal_run(const ch_call *call, ch_kernel_tile tile)
{
    const normal_state *s = call->state;
    ch_philox           key = ch__draw_stream(call, s->seed, 0);
    uint32_t            w[CH_PHILOX_CHUNK];
    float               wide[CH_PHILOX_CHUNK];
    int64_t             from, to;

    ch__tile_range(s->c.count, s->c.tiles, tile.index, &from, &to);
    for (int64_t k = from; k < to; k++) {
        int64_t n = ch__draw(call, s->t, &key, &s->c, k, w), at = k * s->c.each;
        float  *out = s->dtype == CH_F32 ? (float *)call->out[0] + at : wide;

        if (s->dtype == CH_F64)
            s->t->normal_f64(n, w, &s->p, (double *)call->out[0] + at);
        else
            s->t->normal_f32(n, w, &s->p, out);
        if (ch__dtype_is_half(s->dtype))
            ch__narrow(s->dtype, n, wide, (uint16_t *)call->out[0] + at);
    }
    return CH_OK;
}

static const ch_kernel normal_kernel = {"philox", .prepare = normal_prepare, .run = normal_run};

const ch_op ch__op_random_normal = {
    .name = "random_normal",
    .version = 1,
    .n_in = 0,
    .n_out = 1,
    .attrs = normal_rows,
    .attrs_bytes = sizeof(normal_attrs),
    .infer = normal_infer,
    .factors = ch__factors_elementwise,
    .local = ch__local_dims,
    .flags = CH_OP_RANDOM | CH_OP_NO_GRAD | CH_OP_ORIGIN,
    .kernels = (const ch_kernel *const[]){&normal_kernel, NULL},
    .room = CH_ROOM_ANY,
};

const ch_op ch__op_truncated_normal = {
    .name = "truncated_normal",
    .version = 1,
    .n_in = 0,
    .n_out = 1,
    .attrs = normal_rows,
    .attrs_bytes = sizeof(normal_attrs),
    .infer = normal_infer,
    .factors = ch__factors_elementwise,
    .local = ch__local_dims,
    .flags = CH_OP_RANDOM | CH_OP_NO_GRAD | CH_OP_ORIGIN,
    .kernels = (const ch_kernel *const[]){&normal_kernel, NULL},
    .room = CH_ROOM_ANY,
};

ch_node *ch_random_normal(ch_step *s, ch_dtype dtype, ch_shape shape, double mean,
                          double deviation, uint64_t seed)
{
    normal_attrs a = {dtype, dims_of(shape), mean, deviation, (int64_t)seed};

    return ch__source(s, &ch__op_random_normal, &a);
}

ch_node *ch_random_normal_like(ch_node *x, double mean, double deviation, uint64_t seed)
{
    normal_attrs a = {ch_node_dtype(x), dims_like(x), mean, deviation, (int64_t)seed};

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
    normal_attrs a = {ch_node_dtype(x), dims_like(x), mean, deviation, (int64_t)seed};

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
        return ch__infer_fail(c, "dtype is %s, want a float type, i8, i32, i64, u8 or bool",
                              ch_dtype_name(a->dtype));
    if (!(a->p >= 0 && a->p <= 1))
        return ch__infer_fail(c, "p is %g, want a probability: 0 to 1", a->p);
    return ch__infer_dims(c, 0, a->dtype, &a->dims);
}

typedef struct bernoulli_state {
    const ch_philox_table *t;
    ch_chunks              c;
    int64_t                seed;
    uint64_t               one;   /* the number 1 in the dtype of the output */
    int64_t                limit; /* a word below it gives 1: p in units of 2^-32 */
    size_t                 size;  /* bytes of an element */
} bernoulli_state;

static ch_status bernoulli_prepare(const ch_node *n, ch_prep *p)
{
    const bernoulli_attrs *a = ch__attrs(n);
    bernoulli_state       *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("bernoulli");
    s->t = ch__philox();
    s->c = ch__draw_cut(n, 1, 6, p);
    s->seed = a->seed;
    s->size = ch_dtype_bytes(a->dtype);
    s->limit = llround(a->p * 0x1p32);
    ch__store(a->dtype, &s->one, 1);
    return CH_OK;
}

/* Writes n elements: 1 where the word is below the limit, which must not be 0, otherwise 0. */
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

static ch_status bernoulli_run(const ch_call *call, ch_kernel_tile tile)
{
    const bernoulli_state *s = call->state;
    ch_philox              key = ch__draw_stream(call, s->seed, 0);
    uint32_t               w[CH_PHILOX_CHUNK];
    int64_t                from, to;

    ch__tile_range(s->c.count, s->c.tiles, tile.index, &from, &to);
    for (int64_t k = from; k < to; k++) {
        int64_t n = ch__draw(call, s->t, &key, &s->c, k, w);
        char   *out = (char *)call->out[0] + (size_t)(k * s->c.each) * s->size;

        if (s->limit > 0)
            pick(s, n, w, out);
        else
            memset(out, 0, (size_t)n * s->size);
    }
    return CH_OK;
}

static const ch_kernel bernoulli_kernel = {"philox", .prepare = bernoulli_prepare,
                                           .run = bernoulli_run};

const ch_op ch__op_bernoulli = {
    .name = "bernoulli",
    .version = 1,
    .n_in = 0,
    .n_out = 1,
    .attrs = bernoulli_rows,
    .attrs_bytes = sizeof(bernoulli_attrs),
    .infer = bernoulli_infer,
    .factors = ch__factors_elementwise,
    .local = ch__local_dims,
    .flags = CH_OP_RANDOM | CH_OP_NO_GRAD | CH_OP_ORIGIN,
    .kernels = (const ch_kernel *const[]){&bernoulli_kernel, NULL},
    .room = CH_ROOM_ANY,
};

ch_node *ch_bernoulli(ch_step *s, ch_dtype dtype, ch_shape shape, double p, uint64_t seed)
{
    bernoulli_attrs a = {dtype, dims_of(shape), p, (int64_t)seed};

    return ch__source(s, &ch__op_bernoulli, &a);
}

ch_node *ch_bernoulli_like(ch_node *x, double p, uint64_t seed)
{
    bernoulli_attrs a = {ch_node_dtype(x), dims_like(x), p, (int64_t)seed};

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
    ch_chunks              c;
    int64_t                seed;
    ch_dtype               dtype;
    uint64_t               lo, range; /* range: hi - lo */
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
    s->c = ch__draw_cut(n, s->range <= (uint64_t)1 << 32 ? 2 : 4, 10, p);
    s->seed = a->seed;
    s->dtype = a->dtype;
    return CH_OK;
}

/* Writes lo + x, in two's complement, to elements `at` and after of `to`. */
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

static ch_status integers_run(const ch_call *call, ch_kernel_tile tile)
{
    const integers_state *s = call->state;
    ch_philox             key = ch__draw_stream(call, s->seed, 0);
    uint32_t              w[CH_PHILOX_CHUNK];
    uint64_t              x[CH_PHILOX_CHUNK / 2];
    int64_t               from, to;

    ch__tile_range(s->c.count, s->c.tiles, tile.index, &from, &to);
    for (int64_t k = from; k < to; k++) {
        int64_t n = ch__draw(call, s->t, &key, &s->c, k, w);

        if (s->c.words == 2)
            ch__philox_below_2(n, w, s->range, x);
        else
            ch__philox_below_4(n, w, s->range, x);
        store_integers(s, n, x, k * s->c.each, call->out[0]);
    }
    return CH_OK;
}

static const ch_kernel integers_kernel = {"philox", .prepare = integers_prepare,
                                          .run = integers_run};

const ch_op ch__op_random_integers = {
    .name = "random_integers",
    .version = 1,
    .n_in = 0,
    .n_out = 1,
    .attrs = integers_rows,
    .attrs_bytes = sizeof(integers_attrs),
    .infer = integers_infer,
    .factors = ch__factors_elementwise,
    .local = ch__local_dims,
    .flags = CH_OP_RANDOM | CH_OP_NO_GRAD | CH_OP_ORIGIN,
    .kernels = (const ch_kernel *const[]){&integers_kernel, NULL},
    .room = CH_ROOM_ANY,
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
    integers_attrs a = {dtype, dims_like(x), lo, hi, (int64_t)seed};

    return ch__source(ch_node_step(x), &ch__op_random_integers, &a);
}

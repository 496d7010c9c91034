/* kernel/init.c -- initial values of variables.
 *
 * The public constructors of ch_init are first. ch_init_tensor fills a whole variable,
 * ch__init_part a part; the caller of the latter is job/server/init.c. `struct distribution`
 * says how to turn random words into numbers, ch_region_runs where a part lies in the whole.
 *
 * Invariant: a random number belongs to a position of the whole variable. So a part computes
 * the chunks of the stream that it touches and keeps its own numbers. Along axis 0 that is
 * hardly more than needed; along another axis it may be the whole stream.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/init.h"

#include <math.h>
#include <string.h>

#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"
#include "kernel/ortho.h"
#include "kernel/philox.h"
#include "tensor/layout.h"
#include "tensor/tensor.h"

ch_init ch_init_zeros(void)
{
    return (ch_init){.kind = CH_INIT_ZEROS};
}

ch_init ch_init_constant(double value)
{
    return (ch_init){.kind = CH_INIT_CONSTANT, .a = value};
}

ch_init ch_init_uniform(double lo, double hi)
{
    return (ch_init){.kind = CH_INIT_UNIFORM, .a = lo, .b = hi};
}

ch_init ch_init_normal(double mean, double deviation)
{
    return (ch_init){.kind = CH_INIT_NORMAL, .a = mean, .b = deviation};
}

ch_init ch_init_truncated_normal(double mean, double deviation)
{
    return (ch_init){.kind = CH_INIT_TRUNCATED_NORMAL, .a = mean, .b = deviation};
}

ch_init ch_init_glorot_uniform(void)
{
    return (ch_init){.kind = CH_INIT_FAN_UNIFORM, .a = 1, .fan = CH_FAN_AVERAGE};
}

ch_init ch_init_glorot_normal(void)
{
    return (ch_init){.kind = CH_INIT_FAN_NORMAL, .a = 1, .fan = CH_FAN_AVERAGE};
}

ch_init ch_init_he_uniform(void)
{
    return (ch_init){.kind = CH_INIT_FAN_UNIFORM, .a = 2, .fan = CH_FAN_IN};
}

ch_init ch_init_he_normal(void)
{
    return (ch_init){.kind = CH_INIT_FAN_NORMAL, .a = 2, .fan = CH_FAN_IN};
}

ch_init ch_init_orthogonal(double gain)
{
    return (ch_init){.kind = CH_INIT_ORTHOGONAL, .a = gain};
}

ch_init ch_init_identity(double gain)
{
    return (ch_init){.kind = CH_INIT_IDENTITY, .a = gain};
}

/* ---- random numbers ---- */

/* A normal distribution truncated at two deviations: the probability of each tail that is cut
 * off, and the standard deviation of the rest. */
static const double truncated_from = 0.022750131948179207;
static const double truncated_deviation = 0.87962566103423978;

typedef struct distribution {
    bool      is_uniform;
    double    lo, hi;
    ch_normal normal;
} distribution;

/* Returns the random stream of a variable. Streams differ by the name of the variable. */
static ch_philox stream_of(const ch_init *init, const char *name)
{
    return ch__philox_stream(&(ch_philox_name){.seed = init->seed, .own = ch__hash_text(name)});
}

/* Turn n draws of a stream into numbers. An f64 number needs two words, an f32 number a single
 * word. */
static void draw_f32(const distribution *d, const uint32_t *w, int64_t n, float *out)
{
    const ch_philox_table *t = ch__philox();

    if (d->is_uniform)
        t->uniform_f32(n, w, (float)d->lo, (float)d->hi - (float)d->lo,
                       fmaxf(nextafterf((float)d->hi, -INFINITY), (float)d->lo), out);
    else
        t->normal_f32(n, w, &d->normal, out);
}

static void draw_f64(const distribution *d, const uint32_t *w, int64_t n, double *out)
{
    const ch_philox_table *t = ch__philox();

    if (d->is_uniform)
        t->uniform_f64(n, w, d->lo, d->hi - d->lo, fmax(nextafter(d->hi, -INFINITY), d->lo),
                       out);
    else
        t->normal_f64(n, w, &d->normal, out);
}

enum { CHUNK_BYTES = CH_PHILOX_CHUNK * sizeof(float) }; /* 16-bit numbers need half of it */

static void draw_chunk(const distribution *d, const ch_philox *stream, ch_dtype dtype,
                       int64_t k, char *out)
{
    enum { WORDS = CH_PHILOX_CHUNK, GROUPS = WORDS / CH_PHILOX_GROUP };
    uint32_t w[WORDS];
    float    wide[WORDS];

    ch__philox()->words(stream, k * GROUPS, GROUPS, w);
    if (dtype == CH_F64) {
        draw_f64(d, w, WORDS / 2, (double *)(void *)out);
        return;
    }
    draw_f32(d, w, WORDS, dtype == CH_F32 ? (float *)(void *)out : wide);
    for (int64_t i = 0; dtype != CH_F32 && i < WORDS; i++)
        ch__store(dtype, out + (size_t)i * ch_dtype_bytes(dtype), wide[i]);
}

static void fill_drawn(const distribution *d, const ch_philox *stream, ch_dtype dtype,
                       const ch_region_runs *r, char *out)
{
    int64_t each = dtype == CH_F64 ? CH_PHILOX_CHUNK / 2 : CH_PHILOX_CHUNK, drawn = -1;
    size_t  size = ch_dtype_bytes(dtype);
    _Alignas(CH_ALIGN) char chunk[CHUNK_BYTES];

    for (int64_t i = 0; i < r->n; i++)
        for (int64_t at = ch__region_run(r, i), end = at + r->length; at < end;) {
            int64_t k = at / each, last = (k + 1) * each, n = (last < end ? last : end) - at;

            if (k != drawn)
                draw_chunk(d, stream, dtype, k, chunk);
            drawn = k;
            memcpy(out, chunk + (size_t)(at - k * each) * size, (size_t)n * size);
            out += (size_t)n * size;
            at += n;
        }
}

/* ---- fan in, fan out ---- */

static double fan_of(ch_fan kind, ch_shape s)
{
    int    k = s.rank;
    double window = 1, in, out;

    for (int i = 0; i < k - 2; i++)
        window *= (double)s.dim[i];
    in = k == 0 ? 1 : window * (double)s.dim[k > 1 ? k - 2 : 0];
    out = k == 0 ? 1 : window * (double)s.dim[k - 1];
    return fmax(kind == CH_FAN_IN ? in : kind == CH_FAN_OUT ? out : (in + out) / 2, 1);
}

static distribution distribution_of(const ch_init *init, ch_shape shape)
{
    distribution d = {
        .is_uniform = init->kind == CH_INIT_UNIFORM, .lo = init->a, .hi = init->b};
    double part = init->a / fan_of(init->fan, shape);

    d.normal = (ch_normal){init->a, init->b, 0, 1};
    if (init->kind == CH_INIT_FAN_UNIFORM) {
        d.is_uniform = true;
        d.hi = sqrt(3 * part);
        d.lo = -d.hi;
    }
    if (init->kind == CH_INIT_FAN_NORMAL)
        d.normal = (ch_normal){0, sqrt(part) / truncated_deviation, 0, 1};
    if (init->kind == CH_INIT_FAN_NORMAL || init->kind == CH_INIT_TRUNCATED_NORMAL) {
        d.normal.from = truncated_from;
        d.normal.width = 1 - 2 * truncated_from;
    }
    return d;
}

/* ---- orthogonal ---- */

/* Fills t, seen as a matrix (rows, columns) in which all axes except the last are rows. The
 * shorter side gets the orthonormal vectors, which are the rows of q. They are the Q of a
 * matrix of normal numbers, as if by QR with a positive diagonal in R. */
static ch_status fill_orthogonal(const ch_init *init, const char *name, ch_tensor *t)
{
    distribution d = {.normal = {0, 1, 0, 1}};
    ch_philox    stream = stream_of(init, name);
    int64_t      columns = t->shape.dim[t->shape.rank - 1];
    int64_t      rows = columns > 0 ? ch_tensor_count(t) / columns : 0;
    int64_t      few = rows < columns ? rows : columns, many = rows < columns ? columns : rows;
    double      *q, *scratch;

    if (few == 0)
        return CH_OK;
    q = ch__malloc((size_t)(few * many) * sizeof(*q));
    scratch = ch__malloc(ch__orthonormalise_scratch(few));
    if (q == NULL || scratch == NULL) {
        ch__free(q);
        ch__free(scratch);
        return ch__fail_memory("initialiser: orthogonal matrix");
    }
    fill_drawn(&d, &stream, CH_F64, &(ch_region_runs){.n = 1, .length = few * many}, (char *)q);
    ch__orthonormalise(few, many, q, scratch);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            ch__store(t->dtype, t->data + (size_t)(i * columns + j) * ch_dtype_bytes(t->dtype),
                      init->a * (rows < columns ? q[i * many + j] : q[j * many + i]));
    ch__free(q);
    ch__free(scratch);
    return CH_OK;
}

/* ---- all initialisers ---- */

static bool is_random(ch_init_kind kind)
{
    return kind != CH_INIT_ZEROS && kind != CH_INIT_CONSTANT && kind != CH_INIT_IDENTITY;
}

ch_status ch__init_check(const ch_init *init, ch_dtype dtype, ch_shape shape)
{
    bool has_fan = init->kind == CH_INIT_FAN_UNIFORM || init->kind == CH_INIT_FAN_NORMAL;

    if ((unsigned)init->kind > CH_INIT_IDENTITY || (unsigned)init->fan > CH_FAN_AVERAGE)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "initialiser: unknown kind %d or fan %d; use the ch_init_ functions",
                        (int)init->kind, (int)init->fan);
    if (dtype == CH_STR || (is_random(init->kind) && !ch_dtype_is_float(dtype)))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "initialiser: %s cannot have %s values; want a float type",
                        ch_dtype_name(dtype), is_random(init->kind) ? "random" : "numeric");
    if (!isfinite(init->a) || !isfinite(init->b))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "initialiser: the parameters %g and %g must both be finite", init->a,
                        init->b);
    if (init->kind == CH_INIT_UNIFORM && !(init->a < init->b))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "initialiser: uniform in [%g, %g): the lower bound must be less than "
                        "the upper bound",
                        init->a, init->b);
    if ((init->kind == CH_INIT_NORMAL || init->kind == CH_INIT_TRUNCATED_NORMAL) && init->b < 0)
        return ch__fail(CH_INVALID_ARGUMENT, "initialiser: the deviation is %g, want 0 or more",
                        init->b);
    if (has_fan && !(init->a > 0))
        return ch__fail(CH_INVALID_ARGUMENT, "initialiser: the scale is %g, want more than 0",
                        init->a);
    if (init->kind == CH_INIT_ORTHOGONAL && shape.rank < 2)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "initialiser: orthogonal needs at least 2 axes (got %d)", shape.rank);
    if (init->kind == CH_INIT_IDENTITY && shape.rank != 2)
        return ch__fail(CH_INVALID_ARGUMENT, "initialiser: the identity needs 2 axes (got %d)",
                        shape.rank);
    return CH_OK;
}

static void fill_diagonal(ch_tensor *t, const int64_t *begin, double value)
{
    int64_t columns = t->shape.dim[1];

    for (int64_t i = 0; i < t->shape.dim[0]; i++) {
        int64_t j = begin[0] + i - begin[1];

        if (j >= 0 && j < columns)
            ch__store(t->dtype, t->data + (size_t)(i * columns + j) * ch_dtype_bytes(t->dtype),
                      value);
    }
}

bool ch__init_has_parts(const ch_init *init)
{
    return init->kind != CH_INIT_ORTHOGONAL;
}

void ch__init_part(const ch_init *init, const char *name, ch_shape whole, const int64_t *begin,
                   ch_tensor *t)
{
    if (ch_tensor_count(t) == 0)
        return; /* its other sizes may be large */
    if (init->kind == CH_INIT_CONSTANT) {
        ch__tensor_fill(t, init->a);
    } else if (init->kind == CH_INIT_IDENTITY) {
        fill_diagonal(t, begin, init->a);
    } else if (is_random(init->kind)) {
        distribution   d = distribution_of(init, whole);
        ch_philox      stream = stream_of(init, name);
        ch_region_runs r;

        ch__region_runs(begin, t->shape, whole, &r);
        fill_drawn(&d, &stream, t->dtype, &r, t->data);
    }
}

ch_status ch_init_tensor(const ch_init *init, const char *name, ch_dtype dtype, ch_shape shape,
                         ch_tensor **out)
{
    ch_init       given = init != NULL ? *init : ch_init_zeros();
    ch_status     rc = ch__check_not_null("init", "out", out, NULL, NULL);
    ch_tensor    *t = NULL;
    const int64_t begin[CH_MAX_RANK] = {0};

    name = name != NULL ? name : "";
    if (rc == CH_OK)
        rc = ch__init_check(&given, dtype, shape);
    if (rc == CH_OK)
        rc = ch_tensor_new(dtype, shape, &t); /* zeros */
    if (rc != CH_OK)
        return rc;
    if (ch__init_has_parts(&given))
        ch__init_part(&given, name, shape, begin, t);
    else
        rc = fill_orthogonal(&given, name, t);
    if (rc != CH_OK) {
        ch_tensor_unref(t);
        return rc;
    }
    *out = t;
    return CH_OK;
}

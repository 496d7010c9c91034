/* kernel/scan.c -- running sums, and products of all other elements.
 *
 * ch_axis_view is an array seen along an axis (kernel/scan.h). ch__cumsum computes lines or
 * strips of lines; ch__product_of_others computes lines. The caller is ops/along.c;
 * kernel/sort.c uses ch_axis_view too.
 *
 * Invariant: a unit is computed by a single call, in order, so results do not depend on the
 * number of threads.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/scan.h"

#include <math.h>
#include <string.h>

#include "kernel/widen.h"
#include "tensor/tensor.h"

ch_axis_view ch__axis_view(ch_dtype dtype, ch_shape shape, int axis)
{
    ch_axis_view a = {.dtype = dtype, .outer = 1, .n = shape.dim[axis], .inner = 1};

    for (int k = 0; k < axis; k++)
        a.outer *= shape.dim[k];
    for (int k = axis + 1; k < shape.rank; k++)
        a.inner *= shape.dim[k];
    return a;
}

static int64_t strips_of(const ch_axis_view *a)
{
    return (a->inner + CH_SCAN_STRIP - 1) / CH_SCAN_STRIP;
}

int64_t ch__axis_view_units(const ch_axis_view *a)
{
    return a->outer * strips_of(a);
}

int64_t ch__axis_view_unit(const ch_axis_view *a, int64_t unit, int64_t n, int64_t *width)
{
    int64_t strips = strips_of(a), first = unit % strips * CH_SCAN_STRIP;

    *width = a->inner - first < CH_SCAN_STRIP ? a->inner - first : CH_SCAN_STRIP;
    return unit / strips * n * a->inner + first;
}

static const char *at(const ch_axis_view *a, const void *x, int64_t i)
{
    return (const char *)x + (size_t)i * ch_dtype_bytes(a->dtype);
}

static char *at_mut(const ch_axis_view *a, void *x, int64_t i)
{
    return (char *)x + (size_t)i * ch_dtype_bytes(a->dtype);
}

/* ---- running sums ---- */

/* How a sum runs: `reverse` starts at the end, `exclusive` excludes the element itself. */
typedef struct direction {
    bool exclusive, reverse;
} direction;

/* Returns the element that step k of n handles. */
static int64_t element_of_step(direction c, int64_t n, int64_t k)
{
    return c.reverse ? n - 1 - k : k;
}

static double line_f64(direction c, int64_t n, const double *x, double sum, double *out)
{
    for (int64_t k = 0; k < n; k++) {
        int64_t i = element_of_step(c, n, k);
        double  next = sum + x[i];

        out[i] = c.exclusive ? sum : next;
        sum = next;
    }
    return sum;
}

static uint64_t line_i64(direction c, int64_t n, const int64_t *x, uint64_t sum, int64_t *out)
{
    for (int64_t k = 0; k < n; k++) {
        int64_t  i = element_of_step(c, n, k);
        uint64_t next = sum + (uint64_t)x[i];

        out[i] = (int64_t)(c.exclusive ? sum : next);
        sum = next;
    }
    return sum;
}

/* Computes a line of contiguous elements, a part at a time. */
static void cumsum_line(const ch_axis_view *a, direction c, const char *x, char *out)
{
    double   buffer[CH_SCAN_STRIP], part[CH_SCAN_STRIP], sum = 0;
    int64_t  int_buffer[CH_SCAN_STRIP], int_part[CH_SCAN_STRIP];
    uint64_t int_sum = 0;

    for (int64_t k = 0, n; k < a->n; k += n) {
        int64_t first;

        n = a->n - k < CH_SCAN_STRIP ? a->n - k : CH_SCAN_STRIP;
        first = c.reverse ? a->n - k - n : k;
        if (ch_dtype_is_float(a->dtype)) {
            sum = line_f64(c, n, ch__as_f64(a->dtype, n, at(a, x, first), buffer), sum, part);
            ch__from_f64(a->dtype, n, part, at_mut(a, out, first));
        } else {
            int_sum = line_i64(c, n, ch__as_i64(a->dtype, n, at(a, x, first), int_buffer),
                               int_sum, int_part);
            ch__from_i64(a->dtype, n, int_part, at_mut(a, out, first));
        }
    }
}

static void strip_f64(const ch_axis_view *a, direction c, int64_t width, const char *x,
                      char *out)
{
    double sums[2][CH_SCAN_STRIP] = {{0}}, buffer[CH_SCAN_STRIP];

    for (int64_t k = 0; k < a->n; k++) {
        double       *sum = sums[k & 1], *next = sums[~k & 1];
        int64_t       row = element_of_step(c, a->n, k) * a->inner;
        const double *v = ch__as_f64(a->dtype, width, at(a, x, row), buffer);

        for (int64_t j = 0; j < width; j++)
            next[j] = sum[j] + v[j];
        ch__from_f64(a->dtype, width, c.exclusive ? sum : next, at_mut(a, out, row));
    }
}

static void strip_i64(const ch_axis_view *a, direction c, int64_t width, const char *x,
                      char *out)
{
    int64_t sums[2][CH_SCAN_STRIP] = {{0}}, buffer[CH_SCAN_STRIP];

    for (int64_t k = 0; k < a->n; k++) {
        int64_t       *sum = sums[k & 1], *next = sums[~k & 1];
        int64_t        row = element_of_step(c, a->n, k) * a->inner;
        const int64_t *v = ch__as_i64(a->dtype, width, at(a, x, row), buffer);

        for (int64_t j = 0; j < width; j++)
            next[j] = (int64_t)((uint64_t)sum[j] + (uint64_t)v[j]);
        ch__from_i64(a->dtype, width, c.exclusive ? sum : next, at_mut(a, out, row));
    }
}

void ch__cumsum(const ch_axis_view *a, bool exclusive, bool reverse, int64_t from,
                int64_t to_unit, const void *in, void *out)
{
    direction c = {exclusive, reverse};

    for (int64_t u = from; u < to_unit; u++) {
        int64_t width, first = ch__axis_view_unit(a, u, a->n, &width);

        if (a->inner == 1)
            cumsum_line(a, c, at(a, in, first), at_mut(a, out, first));
        else if (ch_dtype_is_float(a->dtype))
            strip_f64(a, c, width, at(a, in, first), at_mut(a, out, first));
        else
            strip_i64(a, c, width, at(a, in, first), at_mut(a, out, first));
    }
}

/* ---- products of all other elements ---- */

/* The partial results before element j: p is the product of the elements before, s is the sum
 * of d[i] times the product of the elements before except x[i]. The results after j are the
 * same from the other end. Then
 *     product of all except j:                  p_before * p_after
 *     sum of d[i] * product except i and j:     s_before * p_after + p_before * s_after */
typedef struct partial {
    double p, s;
} partial;

static partial extend(partial v, double x, double d)
{
    return (partial){v.p * x, v.s * x + v.p * d};
}

static void others_line(const ch_axis_view *a, const char *x, const char *d, char *out,
                        partial *buffer)
{
    partial v = {1, 0};

    for (int64_t j = 0; j < a->n; j++) {
        buffer[j] = v;
        v = extend(v, ch__load(a->dtype, at(a, x, j * a->inner)),
                   d != NULL ? ch__load(a->dtype, at(a, d, j * a->inner)) : 0);
    }
    v = (partial){1, 0};
    for (int64_t j = a->n - 1; j >= 0; j--) {
        double y = d != NULL ? buffer[j].s * v.p + buffer[j].p * v.s : buffer[j].p * v.p;

        v = extend(v, ch__load(a->dtype, at(a, x, j * a->inner)),
                   d != NULL ? ch__load(a->dtype, at(a, d, j * a->inner)) : 0);
        ch__store(a->dtype, at_mut(a, out, j * a->inner), y);
    }
}

void ch__product_of_others(const ch_axis_view *a, int64_t from, int64_t to_line, const void *x,
                           const void *d, void *out, void *buffer)
{
    for (int64_t line = from; line < to_line; line++) {
        int64_t first = line / a->inner * a->n * a->inner + line % a->inner;

        others_line(a, at(a, x, first), d != NULL ? at(a, d, first) : NULL,
                    at_mut(a, out, first), buffer);
    }
}

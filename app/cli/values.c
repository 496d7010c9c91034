/* app/cli/values.c -- statistics of the values of a tensor, and differences between two tensors.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "values.h"

#include <math.h>
#include <string.h>

enum { PIECE = 1 << 18 }; /* elements that are read at a time */

/* ---- numbers ---- */

static double from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float    x;

    memcpy(&x, &wide, sizeof(x));
    return x;
}

static double from_f16(uint16_t bits)
{
    int    exponent = bits >> 10 & 31, fraction = bits & 1023;
    double x = exponent == 31  ? (fraction != 0 ? NAN : INFINITY)
               : exponent == 0 ? ldexp(fraction, -24)
                               : ldexp(fraction + 1024, exponent - 25);

    return bits >> 15 != 0 ? -x : x;
}

/* Converts n elements to double. */
static void to_doubles(ch_dtype dtype, const void *data, int64_t n, double *to)
{
#define CONVERT(code, type, value)                                                             \
    case code:                                                                                 \
        for (int64_t i = 0; i < n; i++) {                                                      \
            type x = ((const type *)data)[i];                                                  \
            to[i] = (double)(value);                                                           \
        }                                                                                      \
        break

    switch (dtype) {
        CONVERT(CH_F32, float, x);
        CONVERT(CH_F64, double, x);
        CONVERT(CH_BF16, uint16_t, from_bf16(x));
        CONVERT(CH_F16, uint16_t, from_f16(x));
        CONVERT(CH_I8, int8_t, x);
        CONVERT(CH_I16, int16_t, x);
        CONVERT(CH_I32, int32_t, x);
        CONVERT(CH_I64, int64_t, x);
        CONVERT(CH_U8, uint8_t, x);
        CONVERT(CH_U16, uint16_t, x);
        CONVERT(CH_U32, uint32_t, x);
        CONVERT(CH_U64, uint64_t, x);
        CONVERT(CH_BOOL, uint8_t, x != 0);
    default:
        break;
    }
#undef CONVERT
}

static double numbers_a[PIECE], numbers_b[PIECE];

/* ---- statistics ---- */

static void add(cli_stats *s, double *sum, int64_t *n, const double *x, int64_t n_x)
{
    for (int64_t i = 0; i < n_x; i++)
        if (isnan(x[i])) {
            s->n_nan++;
        } else {
            s->min = *n == 0 || x[i] < s->min ? x[i] : s->min;
            s->max = *n == 0 || x[i] > s->max ? x[i] : s->max;
            *sum += x[i];
            (*n)++;
        }
}

ch_status cli_stats_of(ch_checkpoint_reader *r, const ch_checkpoint_item *item, cli_stats *out)
{
    int64_t   count = ch_shape_count(item->shape), n = 0;
    double    sum = 0;
    ch_status rc = CH_OK;

    *out = (cli_stats){.min = NAN, .max = NAN, .mean = NAN};
    for (int64_t at = 0; at < count && rc == CH_OK; at += PIECE) {
        ch_tensor *t = NULL;
        int64_t    end = count - at < PIECE ? count : at + PIECE;

        rc = ch_checkpoint_read_range(r, item->name, at, end, &t);
        if (rc == CH_OK) {
            to_doubles(item->dtype, ch_tensor_data(t), end - at, numbers_a);
            add(out, &sum, &n, numbers_a, end - at);
        }
        ch_tensor_unref(t);
    }
    if (n > 0)
        out->mean = sum / (double)n;
    return rc;
}

/* ---- differences ---- */

/* Compares n elements, of which the first has the number `at` in the tensor. */
static void compare_piece(const ch_tensor *a, const ch_tensor *b, int64_t at, int64_t n,
                          cli_difference *d)
{
    ch_dtype    dtype = ch_tensor_dtype(a);
    size_t      element = ch_dtype_bytes(dtype);
    const char *x = ch_tensor_data(a), *y = ch_tensor_data(b);

    if (memcmp(x, y, (size_t)n * element) == 0)
        return;
    to_doubles(dtype, x, n, numbers_a);
    to_doubles(dtype, y, n, numbers_b);
    for (int64_t i = 0; i < n; i++) {
        double difference = fabs(numbers_a[i] - numbers_b[i]);

        if (memcmp(x + (size_t)i * element, y + (size_t)i * element, element) == 0)
            continue;
        if (d->n++ == 0)
            d->first = at + i;
        if (!isnan(difference) && !(difference <= d->most))
            d->most = difference;
    }
}

ch_status cli_compare(ch_checkpoint_reader *a, ch_checkpoint_reader *b,
                      const ch_checkpoint_item *item, cli_difference *out)
{
    int64_t   count = ch_shape_count(item->shape);
    ch_status rc = CH_OK;

    *out = (cli_difference){.most = NAN};
    for (int64_t at = 0; at < count && rc == CH_OK; at += PIECE) {
        ch_tensor *x = NULL, *y = NULL;
        int64_t    end = count - at < PIECE ? count : at + PIECE;

        rc = ch_checkpoint_read_range(a, item->name, at, end, &x);
        if (rc == CH_OK)
            rc = ch_checkpoint_read_range(b, item->name, at, end, &y);
        if (rc == CH_OK)
            compare_piece(x, y, at, end - at, out);
        ch_tensor_unref(x);
        ch_tensor_unref(y);
    }
    return rc;
}

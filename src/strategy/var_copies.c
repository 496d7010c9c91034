/* strategy/var_copies.c -- arithmetic of the copies of a variable in this process.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "strategy/var_copies.h"

#include <math.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "kernel/accumulate.h"
#include "strategy/strategy.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

ch_status ch__copy_new(const ch_var *v, ch_device *d, ch_shape shape, ch_tensor **out)
{
    size_t    bytes = (size_t)ch_shape_count(shape) * ch_dtype_bytes(v->dtype);
    ch_status rc = ch__device_reserve(d, bytes, v->name);

    if (rc != CH_OK)
        return rc;
    rc = ch_tensor_new_on(d, v->dtype, shape, out);
    if (rc != CH_OK)
        ch__device_unreserve(d, bytes);
    return rc;
}

void ch__copy_leave_device(ch_tensor *t)
{
    if (t != NULL)
        ch__device_unreserve(ch_tensor_device(t), ch_tensor_bytes(t));
}

void ch__copy_return_to_device(ch_tensor *t)
{
    if (t != NULL)
        ch__device_reserve_again(ch_tensor_device(t), ch_tensor_bytes(t));
}

void ch__copy_free(ch_tensor *t)
{
    ch__copy_leave_device(t);
    ch_tensor_unref(t);
}

ch_status ch__copies_check_sync(const ch_strategy *st, const ch_var *v, ch_sync sync)
{
    if (sync != CH_SYNC_NONE || v->n_copies == 1)
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT,
                    "NONE variable synchronization mode is not supported with %s", st->label);
}

/* Sets the elements that are equal in all copies: their mean is that element, without the
 * rounding of a sum and a division. So a mean that was written reads back to the same bits. */
static void keep_equal(int n, ch_tensor *const *copy, ch_tensor *mean)
{
    size_t bytes = ch_dtype_bytes(mean->dtype), end = ch_tensor_bytes(mean);

    for (size_t at = 0; at < end; at += bytes) {
        const char *first = (const char *)copy[0]->data + at;
        int         i = 1;

        while (i < n && memcmp(first, (const char *)copy[i]->data + at, bytes) == 0)
            i++;
        if (i == n)
            memcpy((char *)mean->data + at, first, bytes);
    }
}

ch_status ch__copies_combine(ch_aggregation aggregation, int n, ch_tensor *const *copy,
                             ch_tensor *out)
{
    const void **data = ch__calloc((size_t)n, sizeof(*data));

    if (data == NULL)
        return ch__fail_memory("the value of a variable");
    for (int i = 0; i < n; i++)
        data[i] = copy[i]->data;
    ch__accumulate(out->dtype, ch_tensor_count(out), n, data, out->data,
                   aggregation == CH_AGGREGATE_MEAN ? n : 1);
    if (aggregation == CH_AGGREGATE_MEAN)
        keep_equal(n, copy, out);
    ch__free(data);
    return CH_OK;
}

/* Loads an integer. 8-byte integers are not converted to double, which would round large
 * values. */
static int64_t load_integer(ch_dtype dtype, const void *at)
{
    int64_t x = 0;

    if (ch_dtype_bytes(dtype) < sizeof(x))
        return (int64_t)ch__load(dtype, at);
    memcpy(&x, at, sizeof(x));
    return x;
}

static void store_integer(ch_dtype dtype, void *at, int64_t x)
{
    if (ch_dtype_bytes(dtype) < sizeof(x))
        ch__store(dtype, at, (double)x);
    else
        memcpy(at, &x, sizeof(x));
}

/* Returns x rounded to a float dtype. */
static double rounded(ch_dtype dtype, double x)
{
    double bytes;

    ch__store(dtype, &bytes, x);
    return ch__load(dtype, &bytes);
}

/* Returns the share of x for copy i of n. All shares are equal, except that the last is the
 * rest after the others were added in the order of a read. The rest is at least half of x, so
 * it is exact. If x is not finite, all shares are equal. */
static double share_of(ch_dtype dtype, double x, int n, int i)
{
    ch_dtype work = ch__dtype_is_half(dtype) ? CH_F32 : dtype;
    double   each = rounded(dtype, x / n), sum = each;

    if (i < n - 1 || !isfinite(x))
        return each;
    for (int k = 1; k < n - 1; k++)
        sum = rounded(work, sum + each);
    return x - sum;
}

void ch__copies_share(const ch_tensor *value, int n, int i, ch_tensor *to)
{
    size_t bytes = ch_dtype_bytes(to->dtype);

    for (int64_t k = 0; k < ch_tensor_count(value); k++) {
        const char *from = (const char *)value->data + (size_t)k * bytes;
        char       *at = (char *)to->data + (size_t)k * bytes;

        if (ch_dtype_is_float(to->dtype)) {
            ch__store(to->dtype, at, share_of(to->dtype, ch__load(to->dtype, from), n, i));
        } else {
            int64_t x = load_integer(to->dtype, from), rest = (x % n + n) % n;

            store_integer(to->dtype, at, (x - rest) / n + (i < rest));
        }
    }
}

void ch__copy_add(ch_tensor *copy, const ch_tensor *delta, bool subtract)
{
    size_t bytes = ch_dtype_bytes(copy->dtype);
    int    sign = subtract ? -1 : 1;

    for (int64_t k = 0; k < ch_tensor_count(delta); k++) {
        const char *from = (const char *)delta->data + (size_t)k * bytes;
        char       *to = (char *)copy->data + (size_t)k * bytes;

        if (ch_dtype_is_float(copy->dtype))
            ch__store(copy->dtype, to,
                      ch__load(copy->dtype, to) + sign * ch__load(copy->dtype, from));
        else
            store_integer(copy->dtype, to,
                          load_integer(copy->dtype, to) +
                              sign * load_integer(copy->dtype, from));
    }
}

/* tensor/view.c -- other shapes and orders of the same elements.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "tensor/view.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "tensor/print.h"

/* Why [from, to) by `step` is no range of an axis. Going down, `to` may be -1 and
 * `from` at most the last; both are ends of an empty axis. */
static ch_status slice_check(const ch_tensor *t, int axis, int64_t from, int64_t to,
                             int64_t step)
{
    if (axis < 0 || axis >= t->shape.rank)
        return ch__fail(CH_INVALID_ARGUMENT, "tensor slice: %s has no axis %d",
                        ch__tensor_label(t).text, axis);
    if (step == 0)
        return ch__fail(CH_INVALID_ARGUMENT, "tensor slice: the step over axis %d of %s is 0",
                        axis, ch__tensor_label(t).text);

    int64_t     first = step > 0 ? 0 : -1, end = t->shape.dim[axis] + first;
    int64_t     which = from < first || from > end ? from : to, limit;
    const char *why;

    if (which < first) {
        why = "before the start";
        limit = first;
    } else if (which > end) {
        why = "past the end";
        limit = end;
    } else if (step > 0 ? to < from : to > from) {
        why = step > 0 ? "before the first," : "past the first,";
        limit = from;
    } else {
        return CH_OK;
    }
    return ch__fail(CH_INVALID_ARGUMENT,
                    "tensor slice: rows [%lld, %lld) of axis %d of %s: %lld is %s %lld",
                    (long long)from, (long long)to, axis, ch__tensor_label(t).text,
                    (long long)which, why, (long long)limit);
}

ch_status ch_tensor_slice(ch_tensor *t, int axis, int64_t from, int64_t to, int64_t step,
                          ch_tensor **out)
{
    ch_status st = ch__want_given("tensor slice", "the tensor", t, "out", out);

    if (st == CH_OK)
        st = slice_check(t, axis, from, to, step);
    if (st != CH_OK)
        return st;

    uint64_t span = step > 0 ? (uint64_t)(to - from) : (uint64_t)(from - to);
    uint64_t stride = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    int64_t  count = span == 0 ? 0 : (int64_t)((span - 1) / stride + 1);
    int64_t  strides[CH_MAX_RANK];
    ch_shape shape = t->shape;
    char    *data = t->data;

    memcpy(strides, t->stride, sizeof(strides));
    shape.dim[axis] = count;
    if (count > 0)
        data += from * t->stride[axis] * (int64_t)ch_dtype_bytes(t->dtype);
    if (count > 1) /* else the step, which may be huge, is never taken */
        strides[axis] *= step;
    return ch__tensor_view(t->buffer, t->dtype, shape, strides, data, out);
}

ch_status ch_tensor_rows(ch_tensor *t, int64_t from, int64_t to, ch_tensor **out)
{
    return ch_tensor_slice(t, 0, from, to, 1, out);
}

/* A NULL `perm` reverses the axes. */
ch_status ch_tensor_transpose(ch_tensor *t, const int *perm, ch_tensor **out)
{
    const int rank = t != NULL ? t->shape.rank : 0;
    ch_shape  shape = {.rank = rank};
    int64_t   strides[CH_MAX_RANK] = {0};
    unsigned  seen = 0;
    ch_status st = ch__want_given("tensor transpose", "the tensor", t, "out", out);

    if (st != CH_OK)
        return st;
    for (int i = 0; i < rank; i++) {
        int axis = perm != NULL ? perm[i] : rank - 1 - i;

        if (axis < 0 || axis >= rank || (seen >> axis & 1) != 0)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "tensor transpose: axis %d of %s at place %d of the order is %s",
                            axis, ch__tensor_label(t).text, i,
                            axis < 0 || axis >= rank ? "none of its axes" : "there already");
        seen |= 1u << axis;
        shape.dim[i] = t->shape.dim[axis];
        strides[i] = t->stride[axis];
    }
    return ch__tensor_view(t->buffer, t->dtype, shape, strides, t->data, out);
}

/* Strides that show `t` in another shape of as many elements, if there are any.
 *
 * Old and new axes are cut into the smallest groups with equal products. A group can be cut
 * anew exactly if its old axes lie in memory as one: each steps over the whole of the next. */
static bool reshape_strides(const ch_tensor *t, ch_shape shape, int64_t *stride)
{
    int old = 0, new = 0;

    ch__strides(shape, stride);
    if (t->contiguous)
        return true;
    while (old < t->shape.rank && new < shape.rank) {
        int     old_end = old + 1, new_end = new + 1;
        int64_t old_n = t->shape.dim[old], new_n = shape.dim[new];

        while (old_n != new_n) {
            if (old_n < new_n)
                old_n *= t->shape.dim[old_end++];
            else
                new_n *= shape.dim[new_end++];
        }

        int64_t step = 0, n = 1; /* of the axes of the group so far, from the last */
        for (int i = old_end - 1; i >= old; i--) {
            if (t->shape.dim[i] == 1)
                continue;
            if (n == 1)
                step = t->stride[i];
            else if (t->stride[i] != step * n)
                return false;
            n *= t->shape.dim[i];
        }
        for (int i = new_end - 1; i >= new; i--) {
            stride[i] = step;
            step *= shape.dim[i];
        }
        old = old_end;
        new = new_end;
    }
    return true; /* axes left over on either side have one element */
}

/* Replaces one size of -1 by the one that makes as many elements as t has. */
static ch_status fill_in(const ch_tensor *t, ch_shape *shape)
{
    int64_t rest = 1, have = ch_tensor_count(t);
    int     open = -1;

    for (int i = 0; i < shape->rank && i < CH_MAX_RANK; i++) {
        if (shape->dim[i] == -1 && open >= 0)
            return ch__fail(
                CH_INVALID_ARGUMENT,
                "tensor reshape: %s: two sizes of -1, at most one can be worked out",
                ch__tensor_label(t).text);
        if (shape->dim[i] == -1)
            open = i;
        else if (!ch__mul_size(rest, shape->dim[i], &rest))
            return CH_OK; /* too large in any case, as will be said */
    }
    if (open < 0)
        return CH_OK;
    if (rest <= 0 || have % rest != 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "tensor reshape: %s has %lld elements, which no size for the -1 gives",
                        ch__tensor_label(t).text, (long long)have);
    shape->dim[open] = have / rest;
    return CH_OK;
}

ch_status ch_tensor_reshape(ch_tensor *t, ch_shape shape, ch_tensor **out)
{
    int64_t    count, bytes, stride[CH_MAX_RANK];
    ch_status  st = ch__want_given("tensor reshape", "the tensor", t, "out", out);
    ch_tensor *dense;

    if (st == CH_OK)
        st = fill_in(t, &shape);
    if (st == CH_OK)
        st = ch__tensor_size(t->dtype, shape, &count, &bytes);
    if (st != CH_OK)
        return st;
    if (count != ch_tensor_count(t))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "tensor reshape: %s has %lld elements, %s would have %lld",
                        ch__tensor_label(t).text, (long long)ch_tensor_count(t),
                        ch__label(t->dtype, shape).text, (long long)count);
    if (reshape_strides(t, shape, stride))
        return ch__tensor_view(t->buffer, t->dtype, shape, stride, t->data, out);
    st = ch_tensor_contiguous(t, &dense);
    if (st != CH_OK)
        return st;
    ch__strides(shape, stride);
    st = ch__tensor_view(dense->buffer, dense->dtype, shape, stride, dense->data, out);
    ch_tensor_unref(dense);
    return st;
}

static ch_status copy_to(ch_tensor *t, ch_device *device, ch_tensor **out)
{
    ch_tensor *copy;
    ch_status  st = ch_tensor_new_on(device, t->dtype, t->shape, &copy);

    if (st != CH_OK)
        return st;
    st = ch_tensor_copy(t, copy);
    if (st != CH_OK) {
        ch_tensor_unref(copy);
        return st;
    }
    *out = copy;
    return CH_OK;
}

ch_status ch_tensor_contiguous(ch_tensor *t, ch_tensor **out)
{
    ch_status st = ch__want_given("tensor contiguous", "the tensor", t, "out", out);

    if (st != CH_OK)
        return st;
    if (!t->contiguous)
        return copy_to(t, ch_tensor_device(t), out);
    *out = ch_tensor_ref(t);
    return CH_OK;
}

ch_status ch_tensor_to(ch_tensor *t, ch_device *device, ch_tensor **out)
{
    ch_status st = ch__want_given("tensor to", "the tensor", t, "out", out);

    if (st == CH_OK)
        st = ch__want_given("tensor to", "the device", device, NULL, NULL);
    if (st != CH_OK)
        return st;
    if (ch_tensor_device(t) != device)
        return copy_to(t, device, out);
    *out = ch_tensor_ref(t);
    return CH_OK;
}

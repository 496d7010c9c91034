/* tensor/view.c -- views: slices, transposes and reshapes of the same elements.
 *
 * Each function makes a new ch_tensor over the buffer of another, with other sizes and strides.
 * Only ch_tensor_reshape, ch_tensor_contiguous and ch_tensor_to may have to copy. Callers are
 * programs, through cohort/tensor.h, and most modules of the library.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "tensor/view.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "tensor/print.h"

/* Returns INVALID_ARGUMENT if [from, to) with this step is not a range of the axis. If the step
 * is negative, `from` is at most the last element and `to` may be -1. Both may be the ends of
 * an empty axis. */
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
    int64_t     bound = from < first || from > end ? from : to, limit;
    const char *why;

    if (bound < first) {
        why = "before the start";
        limit = first;
    } else if (bound > end) {
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
                    (long long)bound, why, (long long)limit);
}

ch_status ch_tensor_slice(ch_tensor *t, int axis, int64_t from, int64_t to, int64_t step,
                          ch_tensor **out)
{
    ch_status st = ch__check_not_null("tensor slice", "the tensor", t, "out", out);

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
    if (count > 1) /* otherwise the step, which may be huge, is not used */
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
    ch_status st = ch__check_not_null("tensor transpose", "the tensor", t, "out", out);

    if (st != CH_OK)
        return st;
    for (int i = 0; i < rank; i++) {
        int axis = perm != NULL ? perm[i] : rank - 1 - i;

        if (axis < 0 || axis >= rank || (seen >> axis & 1) != 0)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "tensor transpose: axis %d of %s at index %d of the order %s", axis,
                            ch__tensor_label(t).text, i,
                            axis < 0 || axis >= rank ? "does not exist" : "occurs twice");
        seen |= 1u << axis;
        shape.dim[i] = t->shape.dim[axis];
        strides[i] = t->stride[axis];
    }
    return ch__tensor_view(t->buffer, t->dtype, shape, strides, t->data, out);
}

/* Computes the strides of a view of `t` in another shape with the same number of elements.
 * Returns false if there is no such view.
 *
 * Old and new axes are divided into the smallest groups with equal products. A group can be
 * divided anew if and only if its old axes are contiguous with each other: the stride of each
 * axis is the stride of the next axis times its size. */
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

        int64_t step = 0, n = 1; /* stride and size of the group so far, from its last axis */
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
    return true; /* the remaining axes on either side have size 1 */
}

/* Replaces a size of -1 by the size that gives as many elements as `t` has. */
static ch_status resolve_size(const ch_tensor *t, ch_shape *shape)
{
    int64_t rest = 1, count = ch_tensor_count(t);
    int     unknown = -1;

    for (int i = 0; i < shape->rank && i < CH_MAX_RANK; i++) {
        if (shape->dim[i] == -1 && unknown >= 0)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "tensor reshape: %s: two sizes of -1; at most one can be computed",
                            ch__tensor_label(t).text);
        if (shape->dim[i] == -1)
            unknown = i;
        else if (!ch__mul_size(rest, shape->dim[i], &rest))
            return CH_OK; /* too large: ch__tensor_size returns the error */
    }
    if (unknown < 0)
        return CH_OK;
    if (rest <= 0 || count % rest != 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "tensor reshape: %s has %lld elements, which no size for the -1 gives",
                        ch__tensor_label(t).text, (long long)count);
    shape->dim[unknown] = count / rest;
    return CH_OK;
}

ch_status ch_tensor_reshape(ch_tensor *t, ch_shape shape, ch_tensor **out)
{
    int64_t    count, bytes, stride[CH_MAX_RANK];
    ch_status  st = ch__check_not_null("tensor reshape", "the tensor", t, "out", out);
    ch_tensor *contiguous;

    if (st == CH_OK)
        st = resolve_size(t, &shape);
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
    st = ch_tensor_contiguous(t, &contiguous);
    if (st != CH_OK)
        return st;
    ch__strides(shape, stride);
    st = ch__tensor_view(contiguous->buffer, contiguous->dtype, shape, stride, contiguous->data,
                         out);
    ch_tensor_unref(contiguous);
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
    ch_status st = ch__check_not_null("tensor contiguous", "the tensor", t, "out", out);

    if (st != CH_OK)
        return st;
    if (!t->contiguous)
        return copy_to(t, ch_tensor_device(t), out);
    *out = ch_tensor_ref(t);
    return CH_OK;
}

ch_status ch_tensor_to(ch_tensor *t, ch_device *device, ch_tensor **out)
{
    ch_status st = ch__check_not_null("tensor to", "the tensor", t, "out", out);

    if (st == CH_OK)
        st = ch__check_not_null("tensor to", "the device", device, NULL, NULL);
    if (st != CH_OK)
        return st;
    if (ch_tensor_device(t) != device)
        return copy_to(t, device, out);
    *out = ch_tensor_ref(t);
    return CH_OK;
}

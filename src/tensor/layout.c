/* tensor/layout.c -- arithmetic of layouts and regions (layout.h).
 *
 * The functions compute which elements of a tensor belong to a part of a layout (ch_region),
 * cut tensors into parts, join parts, and divide regions into pieces. Parts are numbered in
 * row-major order. Callers are the partitioner, parameter servers and variables.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "tensor/layout.h"

#include "base/fault.h"
#include "tensor/tensor.h"

/* ---- one axis ---- */

int64_t ch__part_begin(int64_t size, int n, int i)
{
    int64_t base = size / n, extra = size % n;

    return i * base + (i < extra ? i : extra);
}

int ch__part_of(int64_t size, int n, int64_t element)
{
    int64_t base = size / n, extra = size % n;

    if (element < extra * (base + 1))
        return (int)(element / (base + 1));
    return (int)((element - extra) / base); /* base > 0, because the element is in range */
}

/* ---- layouts ---- */

int ch__layout_parts(ch_layout l)
{
    int n = 1;

    for (int k = 0; k < CH_MAX_RANK; k++)
        n *= ch__layout_parts_of(l, k);
    return n;
}

int ch__layout_copies(ch_layout l)
{
    return l.n_copies > 1 ? l.n_copies : 1;
}

int ch__layout_axis(ch_layout l)
{
    for (int k = 0; k < CH_MAX_RANK; k++)
        if (l.parts[k] > 1)
            return k;
    return 0;
}

bool ch__layout_same_parts(ch_layout a, ch_layout b)
{
    for (int k = 0; k < CH_MAX_RANK; k++)
        if (ch__layout_parts_of(a, k) != ch__layout_parts_of(b, k))
            return false;
    return true;
}

void ch__layout_region(ch_layout l, ch_shape whole, int i, ch_region *out)
{
    *out = (ch_region){.begin = {0}};
    for (int k = CH_MAX_RANK - 1; k >= 0; k--) {
        int n = ch__layout_parts_of(l, k), part = i % n;

        i /= n;
        if (k >= whole.rank)
            continue;
        out->begin[k] = ch__part_begin(whole.dim[k], n, part);
        out->size[k] = ch__part_begin(whole.dim[k], n, part + 1) - out->begin[k];
    }
}

ch_shape ch__layout_shape(ch_layout l, ch_shape whole, int i)
{
    ch_region region;

    ch__layout_region(l, whole, i, &region);
    for (int k = 0; k < whole.rank; k++)
        whole.dim[k] = region.size[k];
    return whole;
}

/* ---- regions ---- */

bool ch__region_intersect(const ch_region *a, const ch_region *b, int rank, ch_region *out)
{
    bool is_empty = false;

    *out = (ch_region){.begin = {0}};
    for (int k = 0; k < rank; k++) {
        int64_t a_end = a->begin[k] + a->size[k], b_end = b->begin[k] + b->size[k];

        out->begin[k] = a->begin[k] > b->begin[k] ? a->begin[k] : b->begin[k];
        out->size[k] = (a_end < b_end ? a_end : b_end) - out->begin[k];
        is_empty |= out->size[k] <= 0;
    }
    return !is_empty;
}

bool ch__region_fits(const ch_region *b, ch_shape whole)
{
    for (int k = 0; k < whole.rank; k++)
        if (b->begin[k] < 0 || b->size[k] < 0 || b->begin[k] > whole.dim[k] ||
            b->size[k] > whole.dim[k] - b->begin[k])
            return false;
    return true;
}

int64_t ch__region_count(const ch_region *r, int rank)
{
    int64_t n = 1;

    for (int k = 0; k < rank; k++)
        n *= r->size[k];
    return n;
}

void ch__region_runs(const int64_t *begin, ch_shape part, ch_shape whole, ch_region_runs *out)
{
    int64_t stride = 1;
    int     k = part.rank - 1;

    *out = (ch_region_runs){.n = 1, .length = 1};
    for (; k >= 0 && part.dim[k] == whole.dim[k]; k--)
        stride *= whole.dim[k];
    out->length = k >= 0 ? stride * part.dim[k] : stride;
    out->rank = k > 0 ? k : 0; /* axis k is the outermost axis of a run */
    for (; k >= 0; k--) {
        out->first += begin[k] * stride;
        if (k < out->rank) {
            out->n *= part.dim[k];
            out->size[k] = part.dim[k];
            out->stride[k] = stride;
        }
        stride *= whole.dim[k];
    }
}

int64_t ch__region_run(const ch_region_runs *r, int64_t i)
{
    int64_t at = r->first;

    for (int k = r->rank - 1; k >= 0; k--) {
        at += i % r->size[k] * r->stride[k];
        i /= r->size[k];
    }
    return at;
}

int64_t ch__region_piece(const ch_region *r, int rank, int64_t most, int64_t done,
                         ch_region *out)
{
    int     axis = rank - 1; /* the axis that is cut; in a piece, axes before it have size 1 */
    int64_t inner = 1;       /* elements of a single index of that axis */
    int64_t index, n;

    *out = *r;
    if (rank == 0)
        return 1;
    while (axis > 0 && inner * r->size[axis] <= most)
        inner *= r->size[axis--];
    index = done / inner;
    for (int k = axis; k >= 0; k--) {
        out->begin[k] = r->begin[k] + index % r->size[k];
        out->size[k] = 1;
        index /= r->size[k];
    }
    n = r->begin[axis] + r->size[axis] - out->begin[axis];
    out->size[axis] = n < most / inner ? n : most / inner;
    return out->size[axis] * inner;
}

ch_status ch__tensor_region(ch_tensor *t, const ch_region *r, ch_tensor **out)
{
    ch_tensor *view = ch_tensor_ref(t);
    ch_status  rc = CH_OK;

    for (int k = 0; k < t->shape.rank && rc == CH_OK; k++) {
        ch_tensor *larger = view;

        if (r->size[k] == t->shape.dim[k])
            continue;
        rc = ch_tensor_slice(larger, k, r->begin[k], r->begin[k] + r->size[k], 1, &view);
        if (rc == CH_OK)
            ch_tensor_unref(larger);
    }
    if (rc == CH_OK)
        *out = view;
    else
        ch_tensor_unref(view);
    return rc;
}

void ch__region_write(ch_tensor *to, const ch_region *r, const ch_tensor *value)
{
    char *at = to->data;

    for (int k = 0; k < to->shape.rank; k++)
        at += r->begin[k] * to->stride[k] * (int64_t)ch_dtype_bytes(to->dtype);
    if (ch_tensor_count(value) > 0)
        ch__copy_strided(to->dtype, value->shape, value->data, value->stride, at, to->stride);
}

ch_status ch__layout_cut(ch_layout l, ch_shape whole, ch_tensor *t, int i, ch_tensor **out)
{
    int before = whole.rank - t->shape.rank; /* number of axes that the value does not have */
    ch_tensor *view = NULL;
    ch_region  region, own = {.begin = {0}};
    ch_status  rc;

    ch__layout_region(l, whole, i, &region);
    for (int k = 0; k < t->shape.rank; k++) {
        bool is_divided = k + before >= 0 && t->shape.dim[k] == whole.dim[k + before];

        own.begin[k] = is_divided ? region.begin[k + before] : 0;
        own.size[k] = is_divided ? region.size[k + before] : t->shape.dim[k];
    }
    rc = ch__tensor_region(t, &own, &view);
    if (rc == CH_OK)
        rc = ch_tensor_contiguous(view, out);
    ch_tensor_unref(view);
    return rc;
}

ch_status ch__layout_join(ch_layout l, ch_tensor *const *part, ch_tensor **out)
{
    ch_shape   shape = part[0]->shape;
    ch_layout  own = l; /* the divisions along axes that the parts have */
    ch_tensor *whole = NULL;
    int        step = 1; /* index distance of neighbouring parts along an axis */
    ch_status  rc;

    for (int k = CH_MAX_RANK - 1; k >= shape.rank; k--) {
        step *= ch__layout_parts_of(l, k); /* these parts are equal: only the first is used */
        own.parts[k] = 1;
    }
    if (ch__layout_parts(own) == 1) {
        *out = ch_tensor_ref(part[0]);
        return CH_OK;
    }
    for (int k = shape.rank - 1, next = step; k >= 0; k--) {
        for (int i = 1; i < ch__layout_parts_of(l, k); i++)
            shape.dim[k] += part[i * next]->shape.dim[k];
        next *= ch__layout_parts_of(l, k);
    }
    rc = ch_tensor_new(part[0]->dtype, shape, &whole);
    for (int i = 0; i < ch__layout_parts(own) && rc == CH_OK; i++) {
        ch_tensor *view = NULL;
        ch_region  region;

        ch__layout_region(own, shape, i, &region);
        rc = ch__tensor_region(whole, &region, &view);
        if (rc == CH_OK)
            rc = ch_tensor_copy(part[i * step], view);
        ch_tensor_unref(view);
    }
    if (rc == CH_OK)
        *out = whole;
    else
        ch_tensor_unref(whole);
    return rc;
}

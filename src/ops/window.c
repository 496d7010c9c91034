/* ops/window.c -- windows that slide over images.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ops/window.h"

#include <stdio.h>

#include "base/mem.h"

const ch_attr ch__window_rows[] = {
    CH_ATTR_INTS(ch_window_attrs, stride),    CH_ATTR_INTS(ch_window_attrs, dilation),
    CH_ATTR_BOOL(ch_window_attrs, same),      CH_ATTR_INTS(ch_window_attrs, pad),
    CH_ATTR_INT(ch_window_attrs, groups),     CH_ATTR_INTS(ch_window_attrs, size),
    CH_ATTR_INT(ch_window_attrs, activation), CH_ATTR_END,
};

ch_window_attrs ch__window_attrs(const int64_t stride[2], const int64_t dilation[2],
                                 ch_padding padding, const int64_t pad[4])
{
    ch_window_attrs a = {.same = padding == CH_PAD_SAME, .groups = 1};

    a.stride.n = a.dilation.n = 2;
    a.pad.n = (unsigned)padding <= CH_PAD_EXPLICIT ? 4 : -1; /* -1: the shape rule fails */
    for (int i = 0; i < 2; i++) {
        a.stride.at[i] = stride[i] != 0 ? stride[i] : 1;
        a.dilation.at[i] = dilation[i] != 0 ? dilation[i] : 1;
    }
    for (int i = 0; i < 4 && padding == CH_PAD_EXPLICIT; i++)
        a.pad.at[i] = pad[i];
    return a;
}

/* Sets, for an axis, the number of outputs and the padding before the image. Returns NULL, or
 * the reason why the arguments are invalid. The limit keeps all later products within 64
 * bits. */
static const char *layout_axis(const ch_window_attrs *a, int axis, int64_t size, int64_t window,
                               int64_t *outputs, int64_t *before)
{
    const int64_t limit = (int64_t)1 << 40;
    int64_t       stride = a->stride.at[axis], step = a->dilation.at[axis], extent, padded;
    int64_t       first = a->pad.at[2 * axis], last = a->pad.at[2 * axis + 1];

    if (window < 1 || window > limit)
        return "a window must be 1 or more, up to 2^40";
    if (stride < 1 || stride > limit || step < 1 || step > limit)
        return "strides and dilations must be 1 or more, up to 2^40";
    if (!ch__mul_size(window - 1, step, &extent) || ++extent > limit || size < 0 ||
        size > limit)
        return "sizes are out of range";
    if (a->same) {
        *outputs = size / stride + (size % stride != 0);
        padded = (*outputs - 1) * stride + extent - size;
        *before = padded > 0 && *outputs > 0 ? padded / 2 : 0;
        return NULL;
    }
    if (first < 0 || last < 0 || first > limit || last > limit)
        return "paddings must be 0 or more";
    padded = size + first + last;
    if (padded < extent)
        return "the window is larger than the image with its padding";
    *outputs = (padded - extent) / stride + 1;
    *before = first;
    return NULL;
}

bool ch__window_layout(const ch_window_attrs *a, int64_t h, int64_t w, int64_t kh, int64_t kw,
                       ch_window *out, char *why, size_t why_size)
{
    const char *reason = NULL;
    ch_window   p = {.h = h, .w = w, .kh = kh, .kw = kw};

    if (a->pad.n < 0)
        reason = "the padding is none of CH_PAD_VALID, CH_PAD_SAME, CH_PAD_EXPLICIT";
    else if (a->stride.n != 2 || a->dilation.n != 2 || a->pad.n != 4)
        reason = "the numbers of strides, dilations and paddings must be 2, 2 and 4";
    if (reason == NULL)
        reason = layout_axis(a, 0, h, kh, &p.oh, &p.pad[0]);
    if (reason == NULL)
        reason = layout_axis(a, 1, w, kw, &p.ow, &p.pad[1]);
    if (reason != NULL) {
        snprintf(why, why_size, "%s (image %lldx%lld, window %lldx%lld)", reason, (long long)h,
                 (long long)w, (long long)kh, (long long)kw);
        return false;
    }
    for (int i = 0; i < 2; i++) {
        p.stride[i] = a->stride.at[i];
        p.dilation[i] = a->dilation.at[i];
    }
    *out = p;
    return true;
}

/* Returns the number of pixels from the first tap of a window to the last. */
static int64_t extent_of(const ch_window *w, int axis)
{
    return ((axis == 0 ? w->kh : w->kw) - 1) * w->dilation[axis] + 1;
}

ch_axis_map ch__window_map(const ch_window *w, int axis)
{
    return (ch_axis_map){w->stride[axis], 1, -w->pad[axis],
                         extent_of(w, axis) - 1 - w->pad[axis]};
}

ch_axis_map ch__window_map_back(const ch_window *w, int axis)
{
    return (ch_axis_map){1, w->stride[axis], w->pad[axis] - extent_of(w, axis) + 1,
                         w->pad[axis]};
}

void ch__window_part(const ch_window *w, int axis, int64_t from, int64_t size, int64_t first,
                     int64_t count, ch_window_attrs *part)
{
    int64_t begin = first * w->stride[axis] - w->pad[axis];
    int64_t end = begin + (count - 1) * w->stride[axis] + extent_of(w, axis);
    int64_t before = size > 0 ? from - begin : end - begin;
    int64_t after = size > 0 ? end - (from + size) : 0;

    part->same = false;
    part->pad.n = 4;
    part->pad.at[(ptrdiff_t)2 * axis] = before;
    part->pad.at[2 * axis + 1] = after > 0 ? after : 0;
}

ch_status ch__window_want_image(const ch_infer *c, int i)
{
    ch_status rc = ch__infer_want_float(c, i);

    if (rc == CH_OK && c->in[i].rank != 4)
        rc = ch__infer_fail(c, "input %d has rank %d, want 4: (batch, rows, columns, channels)",
                            i, c->in[i].rank);
    for (int k = 1; k < 4 && rc == CH_OK; k++)
        rc = ch__infer_want_number(c, c->in[i].dim[k]);
    return rc;
}

/* ops/window.h -- windows that slide over images, for convolution and pooling.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_WINDOW_H
#define OPS_WINDOW_H

#include "cohort/nn.h"
#include "graph/op.h"

/* The attributes of every op with a window. */
typedef struct ch_window_attrs {
    ch_ints stride, dilation; /* of rows and columns */
    bool    same;             /* padding so that there is an output for each stride */
    ch_ints pad;              /* unless `same`: top, bottom, left, right */
    int64_t groups;
    ch_ints size;       /* rows and columns of an array that is not an input of the call */
    int64_t activation; /* conv2d_fused: an activation of kernel/epilogue.h; otherwise 0 */
} ch_window_attrs;

extern const ch_attr ch__window_rows[];

/* The layout of a window on an image. */
typedef struct ch_window {
    int64_t h, w, kh, kw, oh, ow; /* rows and columns of the image, the window, the output */
    int64_t stride[2], dilation[2];
    int64_t pad[2]; /* rows above and columns to the left of the image */
} ch_window;

/* Returns the attributes for a user's options. A stride or dilation of 0 means 1. */
ch_window_attrs ch__window_attrs(const int64_t stride[2], const int64_t dilation[2],
                                 ch_padding padding, const int64_t pad[4]);

/* Computes the layout of a window (kh, kw) on an image (h, w). The arguments may be untrusted.
 * Returns false and writes a reason to `why` if they are invalid. */
bool ch__window_layout(const ch_window_attrs *a, int64_t h, int64_t w, int64_t kh, int64_t kw,
                       ch_window *out, char *why, size_t why_size);

/* ---- for partition rules ---- */

/* Returns the map from the rows (axis 0) or columns (1) of the result to those of the image,
 * and the map from the image to the result: the outputs whose windows contain a pixel. */
ch_axis_map ch__window_map(const ch_window *w, int axis);
ch_axis_map ch__window_map_back(const ch_window *w, int axis);
/* Sets the padding of *part along an axis for a part of the call, with `size` pixels of the
 * image from `from` on, and `count` outputs, at least 1, from `first` on. Sets `same` to
 * false. If the part has no pixel of the image, its windows cover padding only. */
void ch__window_part(const ch_window *w, int axis, int64_t from, int64_t size, int64_t first,
                     int64_t count, ch_window_attrs *part);

/* Fails unless input i is a float array (batch, rows, columns, channels) whose sizes are
 * numbers; the batch may be a symbol. */
ch_status ch__window_want_image(const ch_infer *c, int i);

#endif

/* ops/window.h -- windows that slide over images: what convolution and pooling have in common.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_WINDOW_H
#define OPS_WINDOW_H

#include "cohort/nn.h"
#include "graph/op.h"

/* The attributes of every op with a window; `size` is a size that no input has. */
typedef struct ch_window_attrs {
    ch_ints stride, dilation; /* of rows and columns */
    bool    same;             /* pads so that there is an output for each stride */
    ch_ints pad;              /* else: top, bottom, left, right */
    int64_t groups;
    ch_ints size;       /* rows and columns */
    int64_t activation; /* of conv2d_fused: one of kernel/epilogue.h; else 0 */
} ch_window_attrs;

extern const ch_attr ch__window_rows[];

/* How a window lies over an image. */
typedef struct ch_window {
    int64_t h, w, kh, kw, oh, ow;
    int64_t stride[2], dilation[2];
    int64_t pad[2]; /* rows above, columns to the left */
} ch_window;

/* The attributes that a user asked for; zeros are defaults. */
ch_window_attrs ch__window_attrs(const int64_t stride[2], const int64_t dilation[2],
                                 ch_padding padding, const int64_t pad[4]);

/* Where a window of (kh, kw) goes on an image of (h, w). Any numbers may come in; if they make
 * no sense, false and a reason. */
bool ch__window_place(const ch_window_attrs *a, int64_t h, int64_t w, int64_t kh, int64_t kw,
                      ch_window *out, char *why, size_t why_size);

/* Of an op whose input i is (batch, rows, columns, channels), all but the batch numbers. */
ch_status ch__window_want_image(const ch_infer *c, int i);

#endif

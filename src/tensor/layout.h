/* tensor/layout.h -- arithmetic of layouts: sizes and regions of parts.
 *
 * The functions below use only the field `parts` of a layout, except ch__layout_copies, and
 * accept layouts without devices. Callers are the partitioner, parameter servers (shards of
 * variables) and all code that stores a value in parts.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TENSOR_LAYOUT_H
#define TENSOR_LAYOUT_H

#include "cohort/layout.h"
#include "cohort/tensor.h"

/* A rectangular region of a tensor: size[k] elements from begin[k], along each axis k. */
typedef struct ch_region {
    int64_t begin[CH_MAX_RANK], size[CH_MAX_RANK];
} ch_region;

/* ---- an axis of `size` elements in n parts; the first size % n parts are larger by 1 ---- */

/* Returns the first element of part i. Part n begins at `size`. */
int64_t ch__part_begin(int64_t size, int n, int i);
/* Returns the part that holds an element, which must be in [0, size). */
int ch__part_of(int64_t size, int n, int64_t element);

/* ---- layouts ---- */

/* Returns the layout that divides a single axis into n parts. */
static inline ch_layout ch__layout_along(int axis, int n)
{
    ch_layout l = {.parts = {0}};

    l.parts[axis] = n;
    return l;
}

/* Returns the number of parts of an axis. */
static inline int ch__layout_parts_of(ch_layout l, int axis)
{
    return l.parts[axis] > 1 ? l.parts[axis] : 1;
}
/* Returns the number of parts of the whole layout, and the number of copies of each part. */
int ch__layout_parts(ch_layout l);
int ch__layout_copies(ch_layout l);
/* Returns the first axis that is divided; 0 if no axis is divided. */
int ch__layout_axis(ch_layout l);
/* Returns true if both layouts divide every axis into the same number of parts. */
bool ch__layout_same_parts(ch_layout a, ch_layout b);

/* Writes the region of part i of a tensor of this shape. */
void ch__layout_region(ch_layout l, ch_shape whole, int i, ch_region *out);
/* Returns the shape of part i of a tensor of this shape. */
ch_shape ch__layout_shape(ch_layout l, ch_shape whole, int i);

/* Writes the region that a and b share. Returns false if they share no element. */
bool ch__region_intersect(const ch_region *a, const ch_region *b, int rank, ch_region *out);
/* Returns true if the region lies inside a tensor of this shape. */
bool ch__region_fits(const ch_region *b, ch_shape whole);
/* Returns the number of elements of a region. */
int64_t ch__region_count(const ch_region *r, int rank);
/* Writes the next piece of a region that is cut into pieces of at most `most` elements, which
 * must be positive. Returns the number of elements of the piece. `done` is the number of
 * elements of all pieces before, and must be smaller than that of the region.
 *
 * The pieces are in row-major order. So the elements of a piece are adjacent in a contiguous
 * tensor that holds the region: they begin at element `done`. */
int64_t ch__region_piece(const ch_region *r, int rank, int64_t most, int64_t done,
                         ch_region *out);
/* A region of a contiguous tensor as runs of adjacent elements, in row-major order. */
typedef struct ch_region_runs {
    int64_t n, length; /* number of runs; elements of each */
    int64_t first;     /* position of the first run in the tensor */
    int     rank;      /* axes that enumerate the runs, with their sizes and strides */
    int64_t size[CH_MAX_RANK], stride[CH_MAX_RANK];
} ch_region_runs;

/* Describes the region of shape `part` that begins at begin[k] along each axis k. The region
 * must fit. */
void ch__region_runs(const int64_t *begin, ch_shape part, ch_shape whole, ch_region_runs *out);
/* Returns the position of run i in the tensor. */
int64_t ch__region_run(const ch_region_runs *r, int64_t i);

/* Bytes of the largest piece in which values are read from a source outside steps. The slices
 * of a tensor in a checkpoint have the same limit (ckpt/ckpt.h), so that a piece is a slice. */
enum { CH_PIECE_BYTES = 64 << 20 };
/* Returns the number of elements of such a piece. `dtype` must be a dtype of numbers. */
static inline int64_t ch__piece_elements(ch_dtype dtype)
{
    return CH_PIECE_BYTES / (int64_t)ch_dtype_bytes(dtype);
}
/* Gives a view of the region, which must fit. */
CH_MUST_CHECK ch_status ch__tensor_region(ch_tensor *t, const ch_region *r, ch_tensor **out);

/* Copies a tensor of numbers to a region of another tensor; the region must fit. Cannot fail,
 * because it does not allocate. */
void ch__region_write(ch_tensor *to, const ch_region *r, const ch_tensor *value);

/* Gives part i of a value that is aligned with a variable of shape `whole`. The value's axes
 * are the last axes of the variable. An axis is not divided if the value does not have it, or
 * if the value is broadcast along it (its size differs from the variable's). The result is a
 * view if that is contiguous, otherwise a copy. */
CH_MUST_CHECK ch_status ch__layout_cut(ch_layout l, ch_shape whole, ch_tensor *t, int i,
                                       ch_tensor **out);
/* Joins all parts to a new tensor. Parts along an axis that the tensors do not have are equal;
 * the first is used. If no axis is divided, the result is a reference to the first part. */
CH_MUST_CHECK ch_status ch__layout_join(ch_layout l, ch_tensor *const *part, ch_tensor **out);

#endif

/* tensor/layout.h -- arithmetic of layouts: sizes of parts, and the part of a tensor that belongs to each.
 *
 * The functions below look at `parts` of a layout only; they accept layouts without devices. Users are the
 * partitioner, parameter servers (shards of variables) and everything that stores a value in parts.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TENSOR_LAYOUT_H
#define TENSOR_LAYOUT_H

#include "cohort/layout.h"
#include "cohort/tensor.h"

/* A rectangular region of a tensor: size[k] elements from begin[k] on, along each axis k. */
typedef struct ch_region {
    int64_t begin[CH_MAX_RANK], size[CH_MAX_RANK];
} ch_region;

/* ---- one axis of `size` elements in n parts: the first size % n parts have one element more ---- */

/* Returns where part i begins. Part n begins at `size`. */
int64_t ch__part_begin(int64_t size, int n, int i);
/* Returns the part that holds an element, which must be in [0, size). */
int ch__part_of(int64_t size, int n, int64_t element);

/* ---- layouts ---- */

/* Returns the layout that divides one axis into n parts. */
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
/* Returns the first axis that is divided; 0 if none is. */
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
/* Makes a view of the region, which must fit. */
CH_MUST_CHECK ch_status ch__tensor_region(ch_tensor *t, const ch_region *r, ch_tensor **out);

/* Copies a tensor of numbers to the region of another one, which must fit. Takes no memory, so it cannot fail. */
void ch__region_write(ch_tensor *to, const ch_region *r, const ch_tensor *value);

/* Gives part i of a value that lies along a variable of shape `whole`. The value's axes are aligned with the last
 * axes of the variable. An axis that the value does not have, or where its size is not the variable's (it is
 * broadcast there), is not divided. The result is a view if that is contiguous, else a copy. */
CH_MUST_CHECK ch_status ch__layout_cut(ch_layout l, ch_shape whole, ch_tensor *t, int i,
                                       ch_tensor **out);
/* Joins all parts to a new tensor. Parts along an axis that they do not have are equal, and the first counts. If
 * nothing is divided, the result is a reference to the first part. */
CH_MUST_CHECK ch_status ch__layout_join(ch_layout l, ch_tensor *const *part, ch_tensor **out);

#endif

/* kernel/scan.h -- scans along an axis: running sums, and products of all other elements.
 *
 * An array seen along an axis is (outer, n, inner): `outer` blocks of n rows of `inner`
 * elements. Lines along the axis are independent. If inner is 1, they are computed one by one;
 * otherwise in strips of CH_SCAN_STRIP side by side. A unit is a line or a strip.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_SCAN_H
#define KERNEL_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cohort/shape.h"

enum { CH_SCAN_STRIP = 256, CH_OTHERS_BYTES = 16 };

typedef struct ch_axis_view {
    ch_dtype dtype;
    int64_t  outer, n, inner;
} ch_axis_view;

/* Returns the view of an array along an axis. */
ch_axis_view ch__axis_view(ch_dtype dtype, ch_shape shape, int axis);
/* Returns the number of units. */
int64_t ch__axis_view_units(const ch_axis_view *a);
/* Returns the offset of the first element of a unit, in an array with n rows along the axis.
 * Sets *width to the number of lines of the unit. */
int64_t ch__axis_view_unit(const ch_axis_view *a, int64_t unit, int64_t n, int64_t *width);

/* Computes running sums of units [from, to). Sums of floats are kept in f64, sums of integers
 * in i64. They are rounded or wrapped when they are stored. */
void ch__cumsum(const ch_axis_view *a, bool exclusive, bool reverse, int64_t from, int64_t to,
                const void *in, void *out);
/* Computes lines [from, to) of outer * inner: out[j] is the product of all x[i] except x[j].
 * With d, out[j] is the sum over i != j of d[i] times the product of all elements except x[i]
 * and x[j]. There is no division, so zeros are handled correctly. `buffer` has CH_OTHERS_BYTES
 * * n bytes. Floats only. */
void ch__product_of_others(const ch_axis_view *a, int64_t from, int64_t to, const void *x,
                           const void *d, void *out, void *buffer);

#endif

/* kernel/scan.h -- one axis, element after element: running sums, and products of all but one.
 *
 * An array seen along an axis is (outer, n, inner): `outer` blocks of n rows of `inner`
 * elements. Lines along the axis are independent of each other. They are done one by one where
 * inner is 1, else in strips of CH_SCAN_STRIP side by side; a unit is a line or a strip.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_SCAN_H
#define KERNEL_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cohort/shape.h"

enum { CH_SCAN_STRIP = 256, CH_OTHERS_ROOM = 16 };

typedef struct ch_along {
    ch_dtype dtype;
    int64_t  outer, n, inner;
} ch_along;

ch_along ch__along(ch_dtype dtype, ch_shape shape, int axis);
int64_t  ch__along_units(const ch_along *a);
/* A unit's first element in an array of n rows along the axis, and how many lines it is. */
int64_t ch__along_unit(const ch_along *a, int64_t unit, int64_t n, int64_t *width);

/* Units [from, to) of each. Running sums of floats are kept in f64, of integers in i64, and
 * rounded or wrapped when they are stored. */
void ch__cumsum(const ch_along *a, bool exclusive, bool reverse, int64_t from, int64_t to,
                const void *in, void *out);
/* Lines [from, to) of outer * inner: out[j] is the product of all x[i] but x[j]. With d, the
 * sum over i, i not j, of d[i] times the product of all but x[i] and x[j]. Right for zeros too:
 * no division. `room` has CH_OTHERS_ROOM bytes for each of n. Floats only. */
void ch__others(const ch_along *a, int64_t from, int64_t to, const void *x, const void *d,
                void *out, void *room);

#endif

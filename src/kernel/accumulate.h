/* kernel/accumulate.h -- adding up arrays.   SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_ACCUMULATE_H
#define KERNEL_ACCUMULATE_H

#include <stdbool.h>

#include "cohort/shape.h"

/* True for the types that can be added. */
bool ch__can_accumulate(ch_dtype t);
/* dst[i] = (src[0][i] + src[1][i] + ...) / divisor, added in this order; 16-bit floats are
 * added in f32 and rounded once. dst may be one of the sources. Integers take divisor 1 only.
 */
void ch__accumulate(ch_dtype t, int64_t n, int n_src, const void *const *src, void *dst,
                    int divisor);

#endif

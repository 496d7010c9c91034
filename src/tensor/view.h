/* tensor/view.h -- what the files of this module share to make and copy views.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TENSOR_VIEW_H
#define TENSOR_VIEW_H

#include "tensor/tensor.h"

/* Replaces an element of a CH_STR tensor that owns its strings by a copy of `s`. */
CH_MUST_CHECK ch_status ch__str_set(ch_str *at, ch_str s);
void                    ch__str_drop(ch_str *at); /* the element is empty again */

/* As ch__copy_strided, for strings: each is copied, and what stood in its place freed. On
 * failure some are copied and the rest as they were. */
CH_MUST_CHECK ch_status ch__copy_strings(ch_shape shape, const char *from,
                                         const int64_t *from_stride, char *to,
                                         const int64_t *to_stride);

#endif

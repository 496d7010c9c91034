/* tensor/view.h -- functions on the memory of views: strings, and memory of the caller.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TENSOR_VIEW_H
#define TENSOR_VIEW_H

#include "tensor/tensor.h"

/* Replaces an element of a CH_STR tensor that owns its strings by a copy of `s`. */
CH_MUST_CHECK ch_status ch__str_set(ch_str *at, ch_str s);
/* Frees the bytes of an element, which is empty afterwards. */
void ch__str_drop(ch_str *at);

/* Like ch__copy_strided, for strings: copies the bytes of each string and frees the string that
 * it replaces. On failure some elements are copied and the others are unchanged. */
CH_MUST_CHECK ch_status ch__copy_strings(ch_shape shape, const char *from,
                                         const int64_t *from_stride, char *to,
                                         const int64_t *to_stride);

/* Returns true if the memory of a tensor is its creator's (ch_tensor_wrap), who may change it.
 */
bool ch__tensor_is_wrapped(const ch_tensor *t);

#endif

/* fuzz/element.h -- checks of elements that a parser has made.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FUZZ_ELEMENT_H
#define FUZZ_ELEMENT_H

#include "data/element.h"
#include "fuzz.h"

static inline unsigned fuzz_touch(const void *data, size_t size)
{
    return size > 0 ? fuzz_hash(data, size) : 0;
}

/* Checks that the parts match the spec and that all their bytes are readable. */
static inline void fuzz_check_element(const ch_element *e, int n, const ch_tensor_spec *spec)
{
    static volatile unsigned sink;

    MUST(e->n == n);
    for (int i = 0; i < n; i++) {
        const ch_part *p = &e->part[i];
        int64_t        count = ch_shape_count(p->shape);

        MUST(p->dtype == spec[i].dtype && p->shape.rank == spec[i].shape.rank && count >= 0);
        for (int k = 0; k < p->shape.rank; k++)
            MUST(p->shape.dim[k] == spec[i].shape.dim[k] || spec[i].shape.dim[k] == -1);
        sink += fuzz_touch(p->data, (size_t)count * ch_dtype_bytes(p->dtype));
        for (int64_t k = 0; k < count && p->dtype == CH_STR; k++) {
            ch_str s = ((const ch_str *)p->data)[k];

            sink += fuzz_touch(s.data, s.size);
        }
    }
}

#endif

/* kernel/norm.c -- rows of any float dtype.   SPDX-License-Identifier: Apache-2.0 */
#include "kernel/norm.h"

#include "base/mem.h"
#include "kernel/widen.h"

static const ch_norm_table *const levels[] = CH_SIMD_LIST(ch__norm_table);

ch_rows_of ch__rows_of(ch_dtype dtype, int64_t rows, int64_t n)
{
    const ch_norm_table *t = levels[ch__simd_level()];

    return (ch_rows_of){.dtype = dtype,
                        .rows = rows,
                        .n = n,
                        .row_bytes = (size_t)n * ch_dtype_bytes(dtype),
                        .is_direct = dtype == CH_F32 || dtype == CH_F64,
                        .loops = dtype == CH_F64 ? &t->f64 : &t->f32};
}

size_t ch__row_buffer_bytes(const ch_rows_of *r)
{
    size_t bytes = (size_t)r->n * (r->dtype == CH_F64 ? sizeof(double) : sizeof(float));

    return ch__aligned(bytes);
}

const void *ch__row(const ch_rows_of *r, const void *x, int64_t i, void *buffer)
{
    const char *at = (const char *)x + (size_t)i * r->row_bytes;

    return r->is_direct ? at : (const void *)ch__as_f32(r->dtype, r->n, at, buffer);
}

void *ch__row_to(const ch_rows_of *r, void *y, int64_t i, void *buffer)
{
    return r->is_direct ? (char *)y + (size_t)i * r->row_bytes : buffer;
}

void ch__row_done(const ch_rows_of *r, void *y, int64_t i, const void *buffer)
{
    if (!r->is_direct)
        ch__from_f32(r->dtype, r->n, buffer, (char *)y + (size_t)i * r->row_bytes);
}

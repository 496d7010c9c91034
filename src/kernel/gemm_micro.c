/* kernel/gemm_micro.c -- blocks of a product in registers; built once for each SIMD level.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/gemm_micro.h"

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

#define ELEMENT float
#define NAME(x) f32_##x
#include "kernel/gemm_micro.inc"

#define ELEMENT double
#define NAME(x) f64_##x
#include "kernel/gemm_micro.inc"

#define ELEMENT uint32_t
#define NAME(x) u32_##x
#include "kernel/gemm_micro.inc"

#define ELEMENT uint64_t
#define NAME(x) u64_##x
#include "kernel/gemm_micro.inc"

#define ROWS(t)                                                                                \
    {                                                                                          \
        {t##_1_1, t##_1_2}, {t##_2_1, t##_2_2}, {t##_3_1, t##_3_2}, {t##_4_1, t##_4_2},        \
            {t##_5_1, t##_5_2}, {t##_6_1, t##_6_2},                                            \
    }

const ch_micro CH_SIMD_NAME(ch__micro) = {VECTOR_BYTES,
                                          {ROWS(f32), ROWS(f64), ROWS(u32), ROWS(u64)}};

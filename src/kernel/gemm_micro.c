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

/* ---- to and from the type that is computed in ---- */

#define AS_IS(x) (x)

#define STORED   float
#define COMPUTED float
#define WIDEN    AS_IS
#define NARROW   AS_IS
#define NAME(x)  f32_##x
#include "kernel/gemm_move.inc"

#define STORED   double
#define COMPUTED double
#define WIDEN    AS_IS
#define NARROW   AS_IS
#define NAME(x)  f64_##x
#include "kernel/gemm_move.inc"

#define STORED   int8_t
#define COMPUTED uint32_t
#define WIDEN    (uint32_t)
#define NARROW   (int8_t)
#define NAME(x)  i8_##x
#include "kernel/gemm_move.inc"

#define STORED   uint8_t
#define COMPUTED uint32_t
#define WIDEN    (uint32_t)
#define NARROW   (uint8_t)
#define NAME(x)  u8_##x
#include "kernel/gemm_move.inc"

#define STORED   int32_t
#define COMPUTED uint32_t
#define WIDEN    (uint32_t)
#define NARROW   (int32_t)
#define NAME(x)  i32_##x
#include "kernel/gemm_move.inc"

#define STORED   int64_t
#define COMPUTED uint64_t
#define WIDEN    (uint64_t)
#define NARROW   (int64_t)
#define NAME(x)  i64_##x
#include "kernel/gemm_move.inc"

#define ROWS(t)                                                                                \
    {                                                                                          \
        {t##_1_1, t##_1_2}, {t##_2_1, t##_2_2}, {t##_3_1, t##_3_2}, {t##_4_1, t##_4_2},        \
            {t##_5_1, t##_5_2}, {t##_6_1, t##_6_2},                                            \
    }

const ch_micro CH_SIMD_NAME(ch__micro) = {
    VECTOR_BYTES,
    {ROWS(f32), ROWS(f64), ROWS(u32), ROWS(u64)},
    {
        [CH_F32] = {CH_MICRO_F32, 4, true, f32_widen, f32_narrow},
        [CH_F64] = {CH_MICRO_F64, 8, true, f64_widen, f64_narrow},
        [CH_I8] = {CH_MICRO_U32, 4, false, i8_widen, i8_narrow},
        [CH_U8] = {CH_MICRO_U32, 4, false, u8_widen, u8_narrow},
        [CH_I32] = {CH_MICRO_U32, 4, true, i32_widen, i32_narrow},
        [CH_I64] = {CH_MICRO_U64, 8, true, i64_widen, i64_narrow},
    },
};

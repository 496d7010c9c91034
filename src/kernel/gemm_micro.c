/* kernel/gemm_micro.c -- blocks of a product in registers; compiled for each SIMD level.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/gemm_micro.h"

/* Lets the compiler fuse a product and a sum into a single operation if the CPU has it. */
#if defined(__clang__)
#pragma clang fp contract(fast)
#else
#pragma GCC optimize("fp-contract=fast")
#endif

/* For loops over values in registers. `rows` and `vectors` are constants in these loops. */
#define UNROLL _Pragma("GCC unroll 12")

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define FULL_ROWS    12 /* 24 of 32 registers hold sums */
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#define FULL_ROWS    6 /* 12 of 16 registers */
#elif defined(__x86_64__)
#define VECTOR_BYTES 16
#define FULL_ROWS    6
#else
#define VECTOR_BYTES 16
#define FULL_ROWS    12
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

/* ---- conversion to and from the compute type ---- */

#define STORED   float
#define COMPUTED float
#define NAME(x)  f32_##x
#include "kernel/gemm_move.inc"

#define STORED   double
#define COMPUTED double
#define NAME(x)  f64_##x
#include "kernel/gemm_move.inc"

#define STORED   int8_t
#define COMPUTED uint32_t
#define NAME(x)  i8_##x
#include "kernel/gemm_move.inc"

#define STORED   uint8_t
#define COMPUTED uint32_t
#define NAME(x)  u8_##x
#include "kernel/gemm_move.inc"

#define STORED   int32_t
#define COMPUTED uint32_t
#define NAME(x)  i32_##x
#include "kernel/gemm_move.inc"

#define STORED   int64_t
#define COMPUTED uint64_t
#define NAME(x)  i64_##x
#include "kernel/gemm_move.inc"

#define UP_TO_6(t)                                                                             \
    {t##_1_1, t##_1_2}, {t##_2_1, t##_2_2}, {t##_3_1, t##_3_2}, {t##_4_1, t##_4_2},            \
        {t##_5_1, t##_5_2},                                                                    \
    {                                                                                          \
        t##_6_1, t##_6_2                                                                       \
    }
#if FULL_ROWS == 12
#define ROWS(t)                                                                                \
    {                                                                                          \
        UP_TO_6(t), {t##_7_1, t##_7_2}, {t##_8_1, t##_8_2}, {t##_9_1, t##_9_2},                \
            {t##_10_1, t##_10_2}, {t##_11_1, t##_11_2}, {t##_12_1, t##_12_2},                  \
    }
#else
#define ROWS(t)                                                                                \
    {                                                                                          \
        UP_TO_6(t)                                                                             \
    }
#endif

const ch_micro CH_SIMD_NAME(ch__micro) = {
    VECTOR_BYTES,
    FULL_ROWS,
    {ROWS(f32), ROWS(f64), ROWS(u32), ROWS(u64)},
    {
        [CH_F32] = {CH_MICRO_F32, 4, true, f32_pack, f32_unpack},
        [CH_F64] = {CH_MICRO_F64, 8, true, f64_pack, f64_unpack},
        [CH_I8] = {CH_MICRO_U32, 4, false, i8_pack, i8_unpack},
        [CH_U8] = {CH_MICRO_U32, 4, false, u8_pack, u8_unpack},
        [CH_I32] = {CH_MICRO_U32, 4, true, i32_pack, i32_unpack},
        [CH_I64] = {CH_MICRO_U64, 8, true, i64_pack, i64_unpack},
    },
};

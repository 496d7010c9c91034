/* kernel/simd.h -- which vector instructions kernels use, chosen when the program runs.
 *
 * A kernel is plain C that the compiler vectorises. Its source is compiled once for each level
 * and the best one that the machine has is taken, once. No level contracts or reassociates, so
 * all of them give the same bits; only products of matrices do (kernel/gemm_micro.h).
 *
 * How a family uses it, with kernel/block.c as the example:
 *
 *   1. kernel/x.h declares a table of functions and who picks it:
 *          typedef struct ch_x_table { void (*f)(...); } ch_x_table;
 *          CH_SIMD_DECLARE(ch_x_table, ch__x_table)
 *          const ch_x_table *ch__x(void);
 *   2. kernel/x.c, in `simd_sources` of kernel/meson.build, has static functions and ends with
 *          const ch_x_table CH_SIMD_NAME(ch__x_table) = {...};
 *   3. a file in `cohort_sources` (kernel/x_pick.c, or wherever it is used) has
 *          static const ch_x_table *const levels[] = CH_SIMD_LIST(ch__x_table);
 *          const ch_x_table *ch__x(void) { return levels[ch__simd_level()]; }
 *
 * Sums must have a fixed number of lanes (an array of 16 partial sums, added in a fixed order)
 * so that their result does not depend on the level. A loop that may write over what it reads,
 * element by element, says CH_SIMD_LOOP before `for`.
 *
 * Integers: sums and products that wrap are computed in an unsigned type, from load to store.
 * GCC 12.2 at -O3 loses lanes of a signed array that is added to as unsigned, if the array is
 * shorter than a vector: lane[j] = (int64_t)((uint64_t)lane[j] + x[i + j]) (its PR 107212).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_SIMD_H
#define KERNEL_SIMD_H

/* On machines other than x86-64 there is one level, what the compiler's default is: base. */
typedef enum ch_simd { CH_SIMD_BASE, CH_SIMD_AVX2, CH_SIMD_AVX512 } ch_simd;

/* The level to use: the best of the machine, or the lower one that the setting `simd` names.
 * Decided on first use; then it costs a load. */
ch_simd ch__simd_level(void);
/* For tests: sets the level of all that is planned or run from now on. The machine must have
 * it. */
void ch__simd_set(ch_simd level);
/* The best level that this machine and this build have. */
ch_simd     ch__simd_best(void);
const char *ch__simd_name(ch_simd level);

/* In a source that is compiled for each level: the name with the level's at its end. */
#define CH_SIMD_PASTE(name, level)  name##_##level
#define CH_SIMD_EXPAND(name, level) CH_SIMD_PASTE(name, level)
#define CH_SIMD_NAME(name)          CH_SIMD_EXPAND(name, CH_SIMD_SUFFIX)

#if defined(__x86_64__)
#define CH_SIMD_LEVELS              3
#define CH_SIMD_DECLARE(type, name) extern const type name##_base, name##_avx2, name##_avx512;
#define CH_SIMD_LIST(name)                                                                     \
    {                                                                                          \
        &name##_base, &name##_avx2, &name##_avx512                                             \
    }
#else
#define CH_SIMD_LEVELS              1
#define CH_SIMD_DECLARE(type, name) extern const type name##_base;
#define CH_SIMD_LIST(name)                                                                     \
    {                                                                                          \
        &name##_base                                                                           \
    }
#endif

/* The iterations of the loop that follows do not depend on each other: an output is either
 * apart from the inputs or exactly over one. So no check at run time is needed. */
#if defined(__clang__)
#define CH_SIMD_LOOP _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define CH_SIMD_LOOP _Pragma("GCC ivdep")
#else
#define CH_SIMD_LOOP
#endif

/* A small function that must become part of the loop that calls it. */
#define CH_SIMD_INLINE static inline __attribute__((always_inline, unused))

#endif

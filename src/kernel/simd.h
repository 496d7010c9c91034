/* kernel/simd.h -- SIMD levels: which vector instructions kernels use, chosen at run time.
 *
 * A kernel is plain C that the compiler vectorises. Its source is compiled once for each level,
 * and the best level of the machine is chosen once. No level contracts or reassociates
 * floating-point operations, so all levels give the same bits. The only exception is the matrix
 * multiply (kernel/gemm_micro.h).
 *
 * How a kernel uses it, with kernel/block.c as the example:
 *
 *   1. kernel/x.h declares a table of functions and the function that chooses it:
 *          typedef struct ch_x_table { void (*f)(...); } ch_x_table;
 *          CH_SIMD_DECLARE(ch_x_table, ch__x_table)
 *          const ch_x_table *ch__x(void);
 *   2. kernel/x.c, in `simd_sources` of kernel/meson.build, has static functions and ends with
 *          const ch_x_table CH_SIMD_NAME(ch__x_table) = {...};
 *   3. a file in `cohort_sources` (kernel/x_pick.c, or the file that uses the table) has
 *          static const ch_x_table *const levels[] = CH_SIMD_LIST(ch__x_table);
 *          const ch_x_table *ch__x(void) { return levels[ch__simd_level()]; }
 *
 * Sums must have a fixed number of lanes (an array of 16 partial sums, added in a fixed order),
 * so that their result does not depend on the level. A loop that may write over its inputs,
 * element by element, must have CH_SIMD_LOOP before `for`.
 *
 * Integers: sums and products that wrap must be computed in an unsigned type, from load to
 * store. GCC 12.2 at -O3 loses lanes of a signed array that is added to as unsigned, if the
 * array is shorter than a vector: lane[j] = (int64_t)((uint64_t)lane[j] + x[i + j]) (GCC PR
 * 107212).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_SIMD_H
#define KERNEL_SIMD_H

/* On machines other than x86-64 there is only CH_SIMD_BASE, the default of the compiler. */
typedef enum ch_simd { CH_SIMD_BASE, CH_SIMD_AVX2, CH_SIMD_AVX512 } ch_simd;

/* Returns the level to use: the best of the machine, or the lower level that the setting `simd`
 * names. The first call decides; later calls cost a load. */
ch_simd ch__simd_level(void);
/* Sets the level of everything that is planned or run from now on. The machine must support it.
 * For tests. */
void ch__simd_set(ch_simd level);
/* Returns the best level that this machine and this build support. */
ch_simd     ch__simd_best(void);
const char *ch__simd_name(ch_simd level);

/* In a source that is compiled for each level: the name with the level as suffix. */
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

/* Declares that the iterations of the next loop are independent: an output is either separate
 * from the inputs or exactly the same array as an input. So the compiler needs no check at run
 * time. */
#if defined(__clang__)
#define CH_SIMD_LOOP _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define CH_SIMD_LOOP _Pragma("GCC ivdep")
#else
#define CH_SIMD_LOOP
#endif

/* A small function that must be inlined into the loop that calls it. */
#define CH_SIMD_INLINE static inline __attribute__((always_inline, unused))

#endif

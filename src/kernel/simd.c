/* kernel/simd.c -- the SIMD level of this machine.   SPDX-License-Identifier: Apache-2.0 */
#include "kernel/simd.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "base/config.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const char *const names[] = {"base", "avx2", "avx512"};

const char *ch__simd_name(ch_simd level)
{
    return names[level];
}

#if defined(__x86_64__)
/* Returns true if the CPU has f16 conversions and fused multiply-add. All CPUs with AVX2 that
 * we know have them, but they have separate flags. */
static bool has_f16c_and_fma(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0 && (c & bit_FMA) != 0;
}
#endif

ch_simd ch__simd_best(void)
{
#if defined(__x86_64__)
    if (!has_f16c_and_fma())
        return CH_SIMD_BASE;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return CH_SIMD_AVX512;
    if (__builtin_cpu_supports("avx2"))
        return CH_SIMD_AVX2;
#endif
    return CH_SIMD_BASE;
}

static ch_simd choose(void)
{
    const char *setting = ch__config()->simd;
    ch_simd     best = ch__simd_best();

    for (ch_simd level = CH_SIMD_BASE; level < best; level++)
        if (strcmp(setting, names[level]) == 0)
            return level;
    return best;
}

static atomic_int chosen = -1; /* threads that decide at the same time decide the same */

ch_simd ch__simd_level(void)
{
    int now = atomic_load_explicit(&chosen, memory_order_relaxed);

    if (now < 0) {
        now = (int)choose();
        atomic_store_explicit(&chosen, now, memory_order_relaxed);
    }
    return (ch_simd)now;
}

void ch__simd_set(ch_simd level)
{
    atomic_store_explicit(&chosen, (int)level, memory_order_relaxed);
}

/* kernel/reduce_loops.c -- the loops of all folds and types; compiled for each SIMD level.
 *
 * The file defines the functions of two elements and includes reduce_loops.inc once for each
 * pair of fold and type. It ends with the table ch_fold_table, which kernel/reduce.c reads.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernel/math32.h"
#include "kernel/reduce.h"

CH_SIMD_INLINE float add_f32(float a, float b)
{
    return a + b;
}
CH_SIMD_INLINE float max_f32(float a, float b)
{
    return ((b > a) | (b != b)) ? b : a;
}
CH_SIMD_INLINE float min_f32(float a, float b)
{
    return ((b < a) | (b != b)) ? b : a;
}
CH_SIMD_INLINE double add_f64(double a, double b)
{
    return a + b;
}
CH_SIMD_INLINE double mul_f64(double a, double b)
{
    return a * b;
}
CH_SIMD_INLINE double max_f64(double a, double b)
{
    return ((b > a) | (b != b)) ? b : a;
}
CH_SIMD_INLINE double min_f64(double a, double b)
{
    return ((b < a) | (b != b)) ? b : a;
}
/* Integer sums and products are unsigned from load to store (see "Integers" in simd.h). */
CH_SIMD_INLINE uint64_t add_u64(uint64_t a, uint64_t b)
{
    return a + b;
}
CH_SIMD_INLINE uint64_t mul_u64(uint64_t a, uint64_t b)
{
    return a * b;
}
CH_SIMD_INLINE int64_t max_i64(int64_t a, int64_t b)
{
    return b > a ? b : a;
}
CH_SIMD_INLINE int64_t min_i64(int64_t a, int64_t b)
{
    return b < a ? b : a;
}

#define T       float
#define FIELD   f
#define LANES   32
#define EXACT   0
#define FIRST   0
#define STEP    add_f32
#define JOIN    add_f64
#define NAME(x) sum_f32_##x
#include "kernel/reduce_loops.inc"

#define T       float
#define FIELD   f
#define LANES   32
#define EXACT   0
#define FIRST   -INFINITY
#define STEP    max_f32
#define JOIN    max_f64
#define NAME(x) max_f32_##x
#include "kernel/reduce_loops.inc"

#define T       float
#define FIELD   f
#define LANES   32
#define EXACT   0
#define FIRST   INFINITY
#define STEP    min_f32
#define JOIN    min_f64
#define NAME(x) min_f32_##x
#include "kernel/reduce_loops.inc"

#define T       double
#define FIELD   f
#define LANES   16
#define EXACT   0
#define FIRST   0
#define STEP    add_f64
#define JOIN    add_f64
#define NAME(x) sum_f64_##x
#include "kernel/reduce_loops.inc"

#define T       double
#define FIELD   f
#define LANES   16
#define EXACT   0
#define FIRST   1
#define STEP    mul_f64
#define JOIN    mul_f64
#define NAME(x) prod_f64_##x
#include "kernel/reduce_loops.inc"

#define T       double
#define FIELD   f
#define LANES   16
#define EXACT   0
#define FIRST   -INFINITY
#define STEP    max_f64
#define JOIN    max_f64
#define NAME(x) max_f64_##x
#include "kernel/reduce_loops.inc"

#define T       double
#define FIELD   f
#define LANES   16
#define EXACT   0
#define FIRST   INFINITY
#define STEP    min_f64
#define JOIN    min_f64
#define NAME(x) min_f64_##x
#include "kernel/reduce_loops.inc"

#define T       uint64_t
#define FIELD   u
#define LANES   16
#define EXACT   1
#define FIRST   0
#define STEP    add_u64
#define JOIN    add_u64
#define NAME(x) sum_i64_##x
#include "kernel/reduce_loops.inc"

#define T       uint64_t
#define FIELD   u
#define LANES   16
#define EXACT   1
#define FIRST   1
#define STEP    mul_u64
#define JOIN    mul_u64
#define NAME(x) prod_i64_##x
#include "kernel/reduce_loops.inc"

#define T       int64_t
#define FIELD   i
#define LANES   16
#define EXACT   1
#define FIRST   INT64_MIN
#define STEP    max_i64
#define JOIN    max_i64
#define NAME(x) max_i64_##x
#include "kernel/reduce_loops.inc"

#define T       int64_t
#define FIELD   i
#define LANES   16
#define EXACT   1
#define FIRST   INT64_MAX
#define STEP    min_i64
#define JOIN    min_i64
#define NAME(x) min_i64_##x
#include "kernel/reduce_loops.inc"

#define LOOPS(x)                                                                               \
    {                                                                                          \
        x##_first, x##_run, x##_rows, x##_flush, x##_join                                      \
    }

/* Computes exp(x - shift). A run has a single shift; a row has a shift for each column. */
static void exp_f32(int64_t n, const void *from, const ch_fold_acc *shift, bool is_row,
                    void *to)
{
    const float *x = from;
    float       *y = to, first = (float)shift[0].f;

    if (is_row)
        for (int64_t j = 0; j < n; j++)
            y[j] = ch__exp32(x[j] - (float)shift[j].f);
    else
        for (int64_t j = 0; j < n; j++)
            y[j] = ch__exp32(x[j] - first);
}

static void exp_f64(int64_t n, const void *from, const ch_fold_acc *shift, bool is_row,
                    void *to)
{
    const double *x = from;
    double       *y = to;

    for (int64_t j = 0; j < n; j++)
        y[j] = exp(x[j] - shift[is_row ? j : 0].f);
}

/* Products of f32 are computed in f64. */
const ch_fold_table CH_SIMD_NAME(ch__fold_table) = {
    {
        {LOOPS(sum_f32), LOOPS(sum_f64), LOOPS(sum_i64)},
        {LOOPS(prod_f64), LOOPS(prod_f64), LOOPS(prod_i64)},
        {LOOPS(max_f32), LOOPS(max_f64), LOOPS(max_i64)},
        {LOOPS(min_f32), LOOPS(min_f64), LOOPS(min_i64)},
    },
    {exp_f32, exp_f64, NULL},
};

/* kernel/reduce.h -- folding some axes of a contiguous array: sums, products, extremes.
 *
 * Axes that lie together and share their fate (kept or folded) are one; then the innermost one
 * decides the loop. If it is folded, an output is the fold of runs of elements; if it is kept,
 * a run of outputs is the fold of rows:
 *
 *     (64, 1000) over the last      64 runs of 1000
 *     (64, 1000) over the first     64 rows, added up in strips of CH_FOLD_STRIP columns
 *
 * Invariants:
 *   1. The order of additions depends on the shape alone: not on threads, not on the CPU.
 *   2. f32 and 16-bit floats are added in f32 over short stretches, and those in f64; products
 * are computed in f64. Integers are folded in i64 and wrap to their type at the end.
 *   3. The largest and the smallest of values with a NaN among them is NaN.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_REDUCE_H
#define KERNEL_REDUCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cohort/shape.h"
#include "kernel/simd.h"

typedef enum ch_fold_kind {
    CH_FOLD_SUM,
    CH_FOLD_PROD,
    CH_FOLD_MAX,
    CH_FOLD_MIN,
    CH_FOLD_MEAN,     /* the sum, divided by the count at the end */
    CH_FOLD_LOGSUMEXP /* floats only: two passes, the largest first */
} ch_fold_kind;

/* What elements are turned into before they are folded. */
typedef enum ch_fold_type { CH_FOLD_F32, CH_FOLD_F64, CH_FOLD_I64 } ch_fold_type;

/* Outputs that are done side by side; rows and elements that are folded before the wide type
 * takes over. */
enum { CH_FOLD_STRIP = 1024, CH_FOLD_ROWS = 128, CH_FOLD_RUN = 4096, CH_FOLD_WIDE = 256 };

/* The result so far of one output. */
typedef union ch_fold_acc {
    double   f;
    int64_t  i; /* of the extremes of integers */
    uint64_t u; /* of their sums and products, which wrap */
} ch_fold_acc;

/* The loops of one kind and type; `x` and `block` are of that type. */
typedef struct ch_fold_loops {
    void (*first)(int64_t n, void *block, ch_fold_acc *acc); /* either may be NULL */
    void (*run)(int64_t n, const void *x, ch_fold_acc *acc); /* n elements into one */
    /* m rows, `step` apart: element j into block[j] */
    void (*rows)(int64_t m, int64_t n, const void *x, int64_t step, void *block);
    void (*flush)(int64_t n, const void *block, ch_fold_acc *acc);
    void (*join)(int64_t n, const ch_fold_acc *part, ch_fold_acc *acc);
} ch_fold_loops;

/* Of sums, products and extremes; by kind, then type. (kernel/reduce_loops.c) */
typedef struct ch_fold_table {
    ch_fold_loops loops[4][3];
    /* exp(x - shift), by type; a row has a shift for each element, a run one for all. */
    void (*exp[3])(int64_t n, const void *x, const ch_fold_acc *shift, bool is_row, void *y);
} ch_fold_table;

CH_SIMD_DECLARE(ch_fold_table, ch__fold_table)

/* A fold, laid out once: read-only while it runs. */
typedef struct ch_fold {
    ch_fold_kind         kind;
    ch_fold_type         type;
    ch_dtype             dtype;
    size_t               size; /* bytes of an element */
    const ch_fold_loops *loops;
    bool                 is_direct;        /* elements are of that type as they are */
    bool                 inner_kept;       /* the innermost axis is kept */
    int64_t              inner;            /* its size */
    int                  n_kept, n_folded; /* the other axes, outermost first */
    int64_t              kept[CH_MAX_RANK], kept_stride[CH_MAX_RANK];
    int64_t              folded[CH_MAX_RANK], folded_stride[CH_MAX_RANK];
    int64_t              count; /* elements folded into each output */
    int64_t              outputs;
    int64_t              units; /* outputs, or strips of outputs: what tiles are made of */
    int64_t              depth; /* folded elements, or rows, of each unit */
    int64_t              group; /* narrow rows that are taken as one wide row; 1: none */
    int                  parts; /* that a unit's depth is cut into */
    int                  tiles;
} ch_fold;

/* Lays out the fold of those axes k of `shape` with is_folded[k], for about `tiles` threads. */
void ch__fold_init(ch_fold *f, ch_fold_kind kind, ch_dtype dtype, ch_shape shape,
                   const bool *is_folded, int tiles);
/* With more than one part, a second phase adds up the parts: this much memory between them. */
static inline size_t ch__fold_scratch(const ch_fold *f)
{
    return f->parts > 1 ? (size_t)f->parts * (size_t)f->outputs * sizeof(ch_fold_acc) : 0;
}
/* One tile of the first phase, and all of the second. */
void ch__fold_tile(const ch_fold *f, int tile, const void *in, void *out, void *scratch);
void ch__fold_join(const ch_fold *f, const void *scratch, void *out);

#endif

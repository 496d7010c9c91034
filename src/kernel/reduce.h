/* kernel/reduce.h -- reduction (fold) of some axes of a contiguous array: sums, products,
 * extremes.
 *
 * Neighbouring axes that are all kept, or all folded, are merged. Then the innermost axis
 * decides the loop. If it is folded, an output is the fold of runs of elements. If it is kept,
 * a run of outputs is the fold of rows:
 *
 *     (64, 1000) over the last      64 runs of 1000
 *     (64, 1000) over the first     64 rows, added up in strips of CH_FOLD_STRIP columns
 *
 * Invariants:
 *   1. The order of additions depends on the shape alone, not on the threads and not on the
 *      CPU.
 *   2. f32 and 16-bit floats are added in f32 over short stretches, and the stretches in f64.
 *      Products are computed in f64. Integers are folded in i64 and wrap to their type at the
 *      end.
 *   3. The largest and the smallest of values that include NaN is NaN.
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

/* The type in which elements are folded. */
typedef enum ch_fold_type { CH_FOLD_F32, CH_FOLD_F64, CH_FOLD_I64 } ch_fold_type;

/* STRIP: outputs that are computed side by side. ROWS and RUN: rows and elements that are
 * folded before the wide type takes over. WIDE: columns of a row that is made of several narrow
 * rows. */
enum { CH_FOLD_STRIP = 1024, CH_FOLD_ROWS = 128, CH_FOLD_RUN = 4096, CH_FOLD_WIDE = 256 };

/* The partial result of an output. */
typedef union ch_fold_acc {
    double   f;
    int64_t  i; /* extremes of integers */
    uint64_t u; /* sums and products of integers, which wrap */
} ch_fold_acc;

/* The loops of a kind and type. `x` and `block` have this type. */
typedef struct ch_fold_loops {
    /* Sets n elements of block and acc to the initial value of the fold. Either may be NULL. */
    void (*first)(int64_t n, void *block, ch_fold_acc *acc);
    void (*run)(int64_t n, const void *x, ch_fold_acc *acc); /* folds n elements into *acc */
    /* Folds m rows, `step` elements apart: element j into block[j]. */
    void (*rows)(int64_t m, int64_t n, const void *x, int64_t step, void *block);
    /* Folds block[j] into acc[j]. */
    void (*flush)(int64_t n, const void *block, ch_fold_acc *acc);
    /* Folds part[j] into acc[j]. */
    void (*join)(int64_t n, const ch_fold_acc *part, ch_fold_acc *acc);
} ch_fold_loops;

/* The loops of sums, products and extremes, by kind and type (kernel/reduce_loops.c). */
typedef struct ch_fold_table {
    ch_fold_loops loops[4][3];
    /* Compute exp(x - shift), by type. A row has a shift for each element; a run has a single
     * shift. */
    void (*exp[3])(int64_t n, const void *x, const ch_fold_acc *shift, bool is_row, void *y);
} ch_fold_table;

CH_SIMD_DECLARE(ch_fold_table, ch__fold_table)

/* The plan of a fold, read-only while it runs. */
typedef struct ch_fold {
    ch_fold_kind         kind;
    ch_fold_type         type;
    ch_dtype             dtype;
    size_t               size; /* bytes of an element */
    const ch_fold_loops *loops;
    bool                 is_direct;        /* elements are stored in the type `type` */
    bool                 inner_kept;       /* the innermost axis is kept */
    int64_t              inner;            /* size of the innermost axis */
    int                  n_kept, n_folded; /* the other axes, outermost first */
    int64_t              kept[CH_MAX_RANK], kept_stride[CH_MAX_RANK];
    int64_t              folded[CH_MAX_RANK], folded_stride[CH_MAX_RANK];
    int64_t              count; /* elements folded into each output */
    int64_t              outputs;
    int64_t              units; /* units of work: outputs, or strips of outputs */
    int64_t              depth; /* folded elements, or rows, of each unit */
    int64_t              group; /* narrow rows that are folded as a wide row; 1: none */
    int                  parts; /* parts into which the depth of a unit is cut */
    int                  tiles;
} ch_fold;

/* Plans the fold of the axes k of `shape` with is_folded[k], for about `tiles` tiles. */
void ch__fold_init(ch_fold *f, ch_fold_kind kind, ch_dtype dtype, ch_shape shape,
                   const bool *is_folded, int tiles);
/* Returns the bytes of scratch memory. Not 0 if there are several parts, which a second phase
 * adds up. */
static inline size_t ch__fold_scratch(const ch_fold *f)
{
    return f->parts > 1 ? (size_t)f->parts * (size_t)f->outputs * sizeof(ch_fold_acc) : 0;
}
/* Computes a tile of the first phase, and the whole second phase. If f->parts is 1 there is no
 * second phase. */
void ch__fold_tile(const ch_fold *f, int tile, const void *in, void *out, void *scratch);
void ch__fold_join(const ch_fold *f, const void *scratch, void *out);

#endif

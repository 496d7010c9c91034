/* kernel/product.h -- matmul of whole arrays, with batch axes that broadcast, cut into tiles.
 *
 * a (..., m, k) . b (..., k, n), where the axes before the last two broadcast as in numpy.
 * Batch axes are merged if the memory layout permits. If b has no batch axes, those of a become
 * rows, and a single large product remains.
 *
 * The result is cut so that several threads can share it: into batches if there are many,
 * otherwise into blocks of rows and columns. Our own gemm gives the same bits for every cut.
 * bf16, which oneDNN may compute, is cut by the shapes alone.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_PRODUCT_H
#define KERNEL_PRODUCT_H

#include "kernel/gemm.h"

/* A size of piece. The last piece along an axis may be smaller than the others. */
typedef struct ch_product_part {
    const ch_gemm_engine *engine;
    void                 *state;
    ch_gemm_dims          dims;
} ch_product_part;

typedef struct ch_product {
    ch_gemm_dims dims; /* of the whole, for a step of the outer axes */
    int          n_outer;
    /* Sizes and steps of the outer axes. */
    int64_t         outer[CH_MAX_RANK], a_outer[CH_MAX_RANK], b_outer[CH_MAX_RANK];
    int64_t         c_outer;             /* elements of c between two steps of the outer axes */
    int64_t         batches, rows, cols; /* size of a piece */
    int64_t         n_batch, n_row, n_col; /* number of pieces along each axis */
    int64_t         n_pieces;              /* total number of pieces */
    int             n_tiles;               /* each computes a range of consecutive pieces */
    size_t          tile_scratch_bytes;
    ch_product_part part[2][2][2]; /* [last batches][last rows][last columns] */
} ch_product;

/* Plans the sizes. `p` needs no close. The shapes must be compatible. */
void ch__product_plan(ch_product *p, ch_dtype dtype, ch_shape a, bool ta, ch_shape b, bool tb,
                      int threads);
/* Returns true if an engine supports the pieces of a plan. */
bool ch__product_fits(const ch_product *p, const ch_gemm_engine *e);
/* Opens the engine for a planned product. After an error the caller must not call
 * ch__product_close. */
CH_MUST_CHECK ch_status ch__product_open(ch_product *p, const ch_gemm_engine *e);
void                    ch__product_close(ch_product *p);
size_t                  ch__product_scratch_bytes(const ch_product *p); /* of all tiles */

/* Computes the pieces of a tile of [0, n_tiles). Tiles may run in parallel on the same scratch
 * memory. */
CH_MUST_CHECK ch_status ch__product_run(const ch_product *p, int tile, const void *a,
                                        const void *b, void *c, void *scratch);
/* Returns the rows and columns of c that a tile computes. The product must have no batches, so
 * that a tile is a single piece. */
void ch__product_region(const ch_product *p, int tile, int64_t *row, int64_t *rows,
                        int64_t *col, int64_t *cols);

#endif

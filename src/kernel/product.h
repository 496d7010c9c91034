/* kernel/product.h -- matmul of whole arrays: batch axes that broadcast, cut into tiles.
 *
 * a (..., m, k) . b (..., k, n), where the axes before the last two broadcast by numpy's rule.
 * Batch axes are merged as far as memory allows; where b has none, those of a become rows, and
 * one large product remains. The result is cut so that a team can share it: into batches if
 * there are many, else into blocks of rows and columns. Our own gemm gives the same bits however it
 * is cut; for bf16, which may be oneDNN's, the cut depends on the shapes alone.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_PRODUCT_H
#define KERNEL_PRODUCT_H

#include "kernel/gemm.h"

/* One size of piece: the last along an axis may be smaller than the others. */
typedef struct ch_product_part {
    const ch_gemm_engine *engine;
    void                 *state;
    ch_gemm_dims          dims;
} ch_product_part;

typedef struct ch_product {
    ch_gemm_dims dims; /* of the whole, for one step of the outer axes */
    int          n_outer;
    int64_t outer[CH_MAX_RANK], a_outer[CH_MAX_RANK], b_outer[CH_MAX_RANK]; /* sizes, steps */
    int64_t c_outer;               /* from one step of the outer axes to the next */
    int64_t batches, rows, cols;   /* of a piece */
    int64_t n_batch, n_row, n_col; /* pieces along each axis */
    int64_t n_pieces;              /* in all */
    int     n_tiles;               /* each takes a row of pieces */
    size_t  tile_scratch_bytes;
    ch_product_part part[2][2][2]; /* [last batches][last rows][last columns] */
} ch_product;

/* Sizes only: `p` needs no close. The shapes must fit together. */
void ch__product_plan(ch_product *p, ch_dtype dtype, ch_shape a, bool ta, ch_shape b, bool tb,
                      int threads);
/* Whether an engine takes the tiles of a plan. */
bool ch__product_fits(const ch_product *p, const ch_gemm_engine *e);
/* Makes a planned product ready to run; after a failure there is nothing to close. */
CH_MUST_CHECK ch_status ch__product_open(ch_product *p, const ch_gemm_engine *e);
void                    ch__product_close(ch_product *p);
size_t                  ch__product_scratch_bytes(const ch_product *p); /* of all tiles */

CH_MUST_CHECK ch_status ch__product_run(const ch_product *p, int tile, const void *a,
                                        const void *b, void *c, void *scratch);
/* Where a tile of a product without batches, which is one piece, lies in c. */
void ch__product_region(const ch_product *p, int tile, int64_t *row, int64_t *rows,
                        int64_t *col, int64_t *cols);

#endif

/* kernel/epilogue.h -- a bias and an activation, applied to a tile of a product while it is in
 * the cache.
 *
 * The epilogue calls the same block functions in the same order as the separate ops, and rounds
 * 16-bit floats after each. So the bits are the same.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_EPILOGUE_H
#define KERNEL_EPILOGUE_H

#include "kernel/block.h"

/* Values of the activation attribute; 0 is none. The others are block functions of one input
 * without parameters. */
#define CH_ACTIVATIONS(X)        X(relu) X(gelu) X(gelu_tanh) X(silu) X(tanh) X(sigmoid)

#define CH_ACTIVATION_CODE(name) CH_ACTIVATION_##name,
typedef enum ch_epilogue_activation {
    CH_ACTIVATION_none,
    CH_ACTIVATIONS(CH_ACTIVATION_CODE) CH_ACTIVATION_COUNT
} ch_epilogue_activation;
#undef CH_ACTIVATION_CODE

typedef struct ch_epilogue {
    ch_dtype    dtype;
    bool        has_bias;
    ch_block_fn add, activate;        /* NULL: none */
    ch_block_fn widen, round, narrow; /* for 16-bit floats; otherwise NULL */
} ch_epilogue;

/* Returns false if the activation does not exist, or not for this dtype. */
bool ch__epilogue_make(ch_dtype dtype, bool has_bias, int64_t activation, ch_epilogue *out);
/* Applies the epilogue to `rows` rows of `cols` elements of c, which are `step` elements apart.
 * `bias` has `cols` elements. */
void ch__epilogue_run(const ch_epilogue *e, int64_t rows, int64_t cols, int64_t step, void *c,
                      const void *bias);

#endif

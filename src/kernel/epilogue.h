/* kernel/epilogue.h -- a bias and an activation, done to a tile of a product while it is in
 * cache.
 *
 * The same block functions in the same order as the ops by themselves, 16-bit floats rounded
 * after each: so the same bits.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_EPILOGUE_H
#define KERNEL_EPILOGUE_H

#include "kernel/block.h"

/* As an attribute has it; 0 is none. The rest are blocks of one input without parameters. */
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
    ch_block_fn widen, round, narrow; /* of 16-bit floats; else NULL */
} ch_epilogue;

/* False if there is no such activation of this type. */
bool ch__epilogue_make(ch_dtype dtype, bool has_bias, int64_t activation, ch_epilogue *out);
/* On `rows` rows of `cols` elements, `step` apart, and as many of the bias. */
void ch__epilogue_run(const ch_epilogue *e, int64_t rows, int64_t cols, int64_t step, void *c,
                      const void *bias);

#endif

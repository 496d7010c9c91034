/* ops/blockwise.h -- what elementwise ops are written with.
 *
 * Most are a line: name, shape rule, gradient. Its arithmetic is the block function of its name
 * (kernel/block.h), its kernel is everybody's (ops/fused.c), and the line defines the public
 * function too.
 *
 *     UNARY(exp, ch__infer_floats, exp_grad)
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_BLOCKWISE_H
#define OPS_BLOCKWISE_H

#include "graph/step.h"
#include "kernel/block.h"
#include "ops/ops.h"

/* The block function for the dtype of `like`; 16-bit floats compute in f32. */
bool ch__find_block(ch_block_code code, const ch_node *like, ch_block *b);
extern const ch_kernel *const ch__elementwise_kernels[];

/* Shape rules: all inputs of one dtype, broadcast together. What they may be, and the result: */
ch_status ch__infer_arith(ch_infer *c);    /* types to compute in: the same */
ch_status ch__infer_floats(ch_infer *c);   /* floats: the same */
ch_status ch__infer_compared(ch_infer *c); /* anything: bool */
ch_status ch__infer_truths(ch_infer *c);   /* bool: bool */
/* Parts of such rules. */
ch_status ch__infer_want_bool(const ch_infer *c, int i);

/* For gradients: d where y is above 0, and where `condition` holds; else 0. */
ch_node *ch__relu_mask(ch_node *y, ch_node *d);
ch_node *ch__masked(ch_step *s, ch_node *condition, ch_node *d);
/* For linear ops of a gradient of a few rows: the op of the rows, and of `scale` if that is not
 * NULL, at the same ids. */
ch_node *ch__of_rows(const void *caller, const ch_op *op, const void *attrs, ch_node *sparse,
                     ch_node *scale);

#define ELEMENTWISE(name_, n_in_, infer_, grad_, flags_)                                       \
    static bool name_##_block(const ch_node *n, ch_block *b)                                   \
    {                                                                                          \
        return ch__find_block(CH_BLOCK_##name_, n->in[0], b);                                  \
    }                                                                                          \
    const ch_op ch__op_##name_ = {.name = #name_,                                              \
                                  .version = 1,                                                \
                                  .n_in = n_in_,                                               \
                                  .n_out = 1,                                                  \
                                  .flags = flags_,                                             \
                                  .infer = infer_,                                             \
                                  .kernels = ch__elementwise_kernels,                          \
                                  .block = name_##_block,                                      \
                                  .grad = grad_,                                               \
                                  .factors = ch__factors_elementwise};

#define RECORD_UNARY(name)                                                                     \
    ch_node *ch_##name(ch_node *x)                                                             \
    {                                                                                          \
        return ch__node(&ch__op_##name, NULL, 1, &x);                                          \
    }
#define RECORD_BINARY(name)                                                                    \
    ch_node *ch_##name(ch_node *a, ch_node *b)                                                 \
    {                                                                                          \
        return ch__node(&ch__op_##name, NULL, 2, ((ch_node *[]){a, b}));                       \
    }

#define UNARY(name, infer, grad) ELEMENTWISE(name, 1, infer, grad, 0) RECORD_UNARY(name)
#define BINARY(name, infer, grad)                                                              \
    ELEMENTWISE(name, 2, infer, grad, CH_OP_SAME_DTYPE) RECORD_BINARY(name)
/* Those without a gradient: it is zero wherever it exists. */
#define UNARY_FLAT(name, infer)                                                                \
    ELEMENTWISE(name, 1, infer, NULL, CH_OP_NO_GRAD) RECORD_UNARY(name)
#define BINARY_FLAT(name, infer)                                                               \
    ELEMENTWISE(name, 2, infer, NULL, CH_OP_SAME_DTYPE | CH_OP_NO_GRAD) RECORD_BINARY(name)

#endif

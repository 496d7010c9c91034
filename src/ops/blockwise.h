/* ops/blockwise.h -- macros and helpers for the definition of elementwise ops.
 *
 * Most elementwise ops are defined by one macro line: name, shape rule, gradient. The macro
 * defines the op and the public function ch_<name>. The arithmetic of the op is the block
 * function of the same name (kernel/block.h). All these ops share the kernel of ops/fused.c.
 *
 *     UNARY(exp, ch__infer_floats, exp_grad)
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_BLOCKWISE_H
#define OPS_BLOCKWISE_H

#include "graph/step.h"
#include "kernel/block.h"
#include "ops/ops.h"

/* Sets *b to the block function `code` for the dtype of `like`; 16-bit floats compute in f32.
 * Returns false if there is none for that dtype. */
bool ch__find_block(ch_block_code code, const ch_node *like, ch_block *b);
extern const ch_kernel *const ch__elementwise_kernels[];

/* Shape rules. All inputs must have the same dtype; they are broadcast together. */
ch_status ch__infer_arith(ch_infer *c);    /* float, i8, i32, i64 or u8 -> the same dtype */
ch_status ch__infer_floats(ch_infer *c);   /* float -> the same dtype */
ch_status ch__infer_compared(ch_infer *c); /* any dtype -> bool */
ch_status ch__infer_logical(ch_infer *c);  /* bool -> bool */
/* Fails unless input i is bool. */
ch_status ch__infer_want_bool(const ch_infer *c, int i);

/* Returns d where y > 0, and 0 elsewhere: the gradient of relu. */
ch_node *ch__relu_mask(ch_node *y, ch_node *d);
/* Returns d where `condition` is true, and 0 elsewhere. */
ch_node *ch__masked(ch_step *s, ch_node *condition, ch_node *d);
/* Applies a linear op to the rows of a sparse gradient, and returns a sparse gradient with the
 * same ids. `scale` is the second input of the op; NULL if the op has one input. */
ch_node *ch__map_rows(const void *caller, const ch_op *op, const void *attrs, ch_node *sparse,
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
/* Ops without a gradient function, because the derivative is zero wherever it exists. */
#define UNARY_FLAT(name, infer)                                                                \
    ELEMENTWISE(name, 1, infer, NULL, CH_OP_NO_GRAD) RECORD_UNARY(name)
#define BINARY_FLAT(name, infer)                                                               \
    ELEMENTWISE(name, 2, infer, NULL, CH_OP_SAME_DTYPE | CH_OP_NO_GRAD) RECORD_BINARY(name)

#endif

/* ops/matmul.h -- the list of ops of this family.   SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_MATMUL_H
#define OPS_MATMUL_H

/* matmul_fused and conv2d_fused are what ch__pass_absorb makes of a product and the bias and
 * activation behind it; nobody records them. */
/* clang-format off */
#define CH_OPS_MATMUL(X)                                                                      \
    X(matmul) X(matmul_fused) X(conv2d) X(conv2d_input_grad) X(conv2d_filter_grad)            \
    X(conv2d_fused) X(attention) X(attention_grad)                                            \
    X(max_pool2d) X(max_pool2d_pick) X(max_pool2d_grad) X(avg_pool2d) X(avg_pool2d_grad)
/* clang-format on */

#include "graph/op.h"

/* Which activation of kernel/epilogue.h a call is; 0: none. */
int64_t ch__activation_of(const ch_node *call);
/* One number for each of the last axis of `dims`. */
bool ch__is_bias(const ch_dims *bias, const ch_dims *dims);
/* If `user` adds to n one number for each of its last axis: that; else NULL. */
ch_node *ch__bias_of(const ch_node *n, const ch_node *user);

#endif

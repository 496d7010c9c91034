/* ops/matmul.h -- matrix products, convolution, attention and pooling: the list of ops and
 * their shared functions.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_MATMUL_H
#define OPS_MATMUL_H

/* matmul_fused and conv2d_fused are created by ch__pass_absorb: a product with the bias and the
 * activation that follow it. They are never recorded. */
/* clang-format off */
#define CH_OPS_MATMUL(X)                                                                      \
    X(matmul) X(matmul_fused) X(conv2d) X(conv2d_input_grad) X(conv2d_filter_grad)            \
    X(conv2d_fused) X(attention) X(attention_grad)                                            \
    X(max_pool2d) X(max_pool2d_pick) X(max_pool2d_grad) X(avg_pool2d) X(avg_pool2d_grad)
/* clang-format on */

#include "graph/op.h"

/* Returns the activation of kernel/epilogue.h that a call computes; 0: none. (ops/matmul.c) */
int64_t ch__activation_of(const ch_node *call);
/* Returns true if `bias` has one number for each element of the last axis of `dims`, and all
 * its other sizes are 1. (ops/matmul.c) */
bool ch__is_bias(const ch_dims *bias, const ch_dims *dims);
/* Returns the bias if `user` is n + bias, with one number for each element of n's last axis.
 * Returns NULL otherwise. (ops/matmul.c) */
ch_node *ch__bias_of(const ch_node *n, const ch_node *user);

#endif

/* ops/matmul.h -- the list of ops of this family.   SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_MATMUL_H
#define OPS_MATMUL_H

/* clang-format off */
#define CH_OPS_MATMUL(X)                                                                      \
    X(matmul) X(conv2d) X(conv2d_input_grad) X(conv2d_filter_grad)                            \
    X(max_pool2d) X(max_pool2d_pick) X(max_pool2d_grad) X(avg_pool2d) X(avg_pool2d_grad)
/* clang-format on */

#endif

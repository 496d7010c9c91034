/* ops/elementwise.h -- the list of elementwise ops.   SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_ELEMENTWISE_H
#define OPS_ELEMENTWISE_H

/* clang-format off */
#define CH_OPS_ELEMENTWISE(X)                                                                 \
    X(add) X(sub) X(mul) X(div) X(floordiv) X(mod) X(pow) X(minimum) X(maximum)               \
    X(neg) X(abs) X(sign) X(square) X(sqrt) X(rsqrt) X(exp) X(expm1) X(log) X(log1p) X(sin)   \
    X(cos) X(tanh) X(sigmoid) X(erf) X(floor) X(ceil) X(round) X(clip)                        \
    X(relu) X(relu_mask) X(leaky_relu) X(elu) X(gelu) X(silu) X(softplus)                     \
    X(equal) X(not_equal) X(less) X(less_equal) X(greater) X(greater_equal)                   \
    X(logical_and) X(logical_or) X(logical_xor) X(logical_not) X(select) X(cast)
/* clang-format on */

#endif

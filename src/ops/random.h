/* ops/random.h -- the list of random ops.   SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_RANDOM_H
#define OPS_RANDOM_H

/* clang-format off */
#define CH_OPS_RANDOM(X) \
    X(random_uniform) X(random_normal) X(truncated_normal) X(bernoulli) X(random_integers) \
    X(dropout) X(shuffle)
/* clang-format on */

#endif

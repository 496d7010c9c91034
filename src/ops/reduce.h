/* ops/reduce.h -- the list of ops of this family.   SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_REDUCE_H
#define OPS_REDUCE_H

#define CH_OPS_REDUCE(X)

#endif

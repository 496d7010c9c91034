/* ops/elementwise.h -- the list of ops of this family.   SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_ELEMENTWISE_H
#define OPS_ELEMENTWISE_H

#define CH_OPS_ELEMENTWISE(X)

#endif

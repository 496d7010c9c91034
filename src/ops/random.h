/* ops/random.h -- the list of ops of this family.   SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_RANDOM_H
#define OPS_RANDOM_H

#define CH_OPS_RANDOM(X)

#endif

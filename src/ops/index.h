/* ops/index.h -- the list of ops of this family.   SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_INDEX_H
#define OPS_INDEX_H

#define CH_OPS_INDEX(X)

#endif

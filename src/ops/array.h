/* ops/array.h -- the list of ops of this family.   SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_ARRAY_H
#define OPS_ARRAY_H

#define CH_OPS_ARRAY(X)

#endif

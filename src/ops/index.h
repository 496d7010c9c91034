/* ops/index.h -- the list of ops of this family.   SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_INDEX_H
#define OPS_INDEX_H

/* clang-format off */
#define CH_OPS_INDEX(X) \
    X(check_ids) X(sparse_rows) X(gather)
/* clang-format on */

#endif

/* ops/index.h -- the list of index ops.   SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_INDEX_H
#define OPS_INDEX_H

/* clang-format off */
#define CH_OPS_INDEX(X) \
    X(check_ids) X(sparse_rows) X(gather) X(flat_ids) X(one_hot) X(scatter_add) \
    X(scatter_fold) X(scatter_update) X(last_ids) X(embedding_bag) X(bag_entries) \
    X(bag_live) X(bag_fill) \
    X(table_lookup)
/* clang-format on */

#endif

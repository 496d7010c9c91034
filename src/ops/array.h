/* ops/array.h -- the list of array ops.   SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_ARRAY_H
#define OPS_ARRAY_H

/* clang-format off */
#define CH_OPS_ARRAY(X) \
    X(reshape) X(transpose) X(broadcast_to) X(concat) X(part) X(split) X(slice) X(pad) \
    X(reverse) X(tile) X(fill) X(range) X(eye) X(fill_room)
/* clang-format on */

#endif

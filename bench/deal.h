/* bench/deal.h -- divides a batch among replicas.   SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_DEAL_H
#define BENCH_DEAL_H

#include "must.h"

/* Returns a copy of rows [from, to) of the first axis. */
static inline ch_tensor *rows_of(const ch_tensor *t, int64_t from, int64_t to)
{
    ch_shape   shape = ch_tensor_shape(t);
    size_t     bytes;
    ch_tensor *part = NULL;

    shape.dim[0] = 1;
    bytes = (size_t)ch_shape_count(shape) * ch_dtype_bytes(ch_tensor_dtype(t));
    shape.dim[0] = to - from;
    must(ch_tensor_copy_of(ch_tensor_dtype(t), shape,
                           (const char *)ch_tensor_data(t) + (size_t)from * bytes, &part));
    return part;
}

/* Gives each of at most 8 replicas its share of the rows. Unrefs the tensor. */
static inline ch_value *deal(ch_tensor *t, int replicas)
{
    ch_tensor *part[8];
    ch_value  *v = NULL;
    int64_t    rows = ch_tensor_shape(t).dim[0];

    for (int r = 0; r < replicas; r++)
        part[r] = rows_of(t, rows * r / replicas, rows * (r + 1) / replicas);
    must(ch_value_new(replicas > 1 ? CH_PER_REPLICA : CH_PLAIN, replicas, part, &v));
    for (int r = 0; r < replicas; r++)
        ch_tensor_unref(part[r]);
    ch_tensor_unref(t);
    return v;
}

#endif

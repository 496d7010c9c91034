/* tensor/buffer_pool.h -- reuses the memory of tensors that every step allocates and frees.
 *
 * New memory is expensive, because the kernel clears each page. A pool keeps a reference to
 * every buffer that it has returned. When that is the only reference left, the pool reuses the
 * buffer. Other threads may release their references at any time; only one thread at a time may
 * call the functions of a pool.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TENSOR_BUFFER_POOL_H
#define TENSOR_BUFFER_POOL_H

#include "tensor/tensor.h"

enum { CH_BUFFER_POOL_SIZE = 16 };

/* Zero-initialise a pool before its first use. */
typedef struct ch_buffer_pool {
    struct {
        ch_buffer *buffer; /* NULL: the slot is free */
        uint64_t   last;   /* value of `now` when the buffer was last returned */
    } slot[CH_BUFFER_POOL_SIZE];
    uint64_t now; /* number of requests so far */
} ch_buffer_pool;

/* Returns a contiguous tensor of numbers with undefined contents. Tensors that are small, very
 * large or of strings are not pooled; they are allocated as usual. */
CH_MUST_CHECK ch_status ch__buffer_pool_get(ch_buffer_pool *pool, ch_device *device,
                                            ch_dtype dtype, ch_shape shape, ch_tensor **out);
/* Releases the pool's references. Tensors that others hold stay valid. */
void ch__buffer_pool_drop(ch_buffer_pool *pool);

/* Returns a tensor on `device` that shares the memory of `t`, for reading. No copy is needed,
 * because the tasks of a process share its memory. The result holds a reference to `t`. If `t`
 * is on `device` or has strings, the result is `t` itself. */
CH_MUST_CHECK ch_status ch__tensor_share(ch_tensor *t, ch_device *device, ch_tensor **out);

#endif

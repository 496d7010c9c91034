/* tensor/buffer_pool.h -- memory of tensors that come and go in every step.
 *
 * Fresh memory costs more than what is done with it: the system clears each page. A shelf holds on to what it gave out, and
 * gives it out again when nobody else has it any more, whoever had it and on whichever thread.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TENSOR_BUFFER_POOL_H
#define TENSOR_BUFFER_POOL_H

#include "tensor/tensor.h"

enum { CH_BUFFER_POOL_SIZE = 16 };

/* Zero-initialise one to begin. */
typedef struct ch_buffer_pool {
    struct {
        ch_buffer *buffer; /* NULL: free */
        uint64_t   last;   /* time of its last use */
    } place[CH_BUFFER_POOL_SIZE];
    uint64_t now; /* counts what was asked for */
} ch_buffer_pool;

/* A contiguous tensor of numbers, in which there is anything. What is small, very large or not asked for any more is not kept. */
CH_MUST_CHECK ch_status ch__buffer_pool_get(ch_buffer_pool *s, ch_device *device,
                                            ch_dtype dtype, ch_shape shape, ch_tensor **out);
void ch__buffer_pool_drop(ch_buffer_pool *s); /* what others have stays theirs */

/* A tensor of another task's as one of this device, to be read: tasks of one process have the same memory. */
CH_MUST_CHECK ch_status ch__lend(ch_tensor *t, ch_device *device, ch_tensor **out);

#endif

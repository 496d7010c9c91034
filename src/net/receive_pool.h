/* net/receive_pool.h -- memory for received tensors, which is used again.
 *
 * New memory is expensive, because the kernel clears each page. A pool keeps the blocks of
 * tensors that were freed, up to a number of bytes, and gives them to later frames. Blocks of
 * less than 64 KiB are not kept.
 *
 * Any thread may call these functions. A tensor may outlive the pool's owner: the pool is freed
 * with its last block.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_RECEIVE_POOL_H
#define NET_RECEIVE_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "cohort/status.h"

typedef struct ch_receive_pool ch_receive_pool;

/* Creates a pool that keeps at most max_bytes. */
CH_MUST_CHECK ch_status ch__receive_pool_new(size_t max_bytes, ch_receive_pool **out);
/* Ends the pool: it keeps no blocks from now on. NULL is allowed. */
void ch__receive_pool_close(ch_receive_pool *p);
/* Returns the bytes that the pool keeps now. */
size_t ch__receive_pool_kept(ch_receive_pool *p);

/* Returns memory for `want` bytes in the end: a kept block of that size, or else a new block
 * of `first` bytes. Sets *cap to its size. `p` may be NULL. Returns NULL if memory is
 * exhausted. */
void *ch__receive_block(ch_receive_pool *p, size_t first, size_t want, size_t *cap);
/* Makes a block larger, and keeps its contents. Returns the block, which may have moved, or
 * NULL if memory is exhausted; the block is unchanged then. */
void *ch__receive_block_grow(void *block, size_t cap);
/* Gives a block back. For ch_tensor_wrap. NULL is allowed. */
void ch__receive_block_release(void *block);

#endif

/* file/block.h -- block pools: reusable memory that files are read into.
 *
 * A block is a reference-counted buffer. Code that keeps bytes of a block must hold a
 * reference. When the last reference is released, on any thread, the block returns to its pool.
 * So continued reading allocates nothing and causes no page faults. A pool lives until its last
 * reference is released and all its blocks have been returned.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_BLOCK_H
#define FILE_BLOCK_H

#include "tensor/tensor.h"

#define CH_BLOCK_BYTES ((size_t)256 << 10) /* default size of a block */

typedef struct ch_block_pool ch_block_pool;

/* Creates a pool with one reference. Threads may share a pool. */
CH_MUST_CHECK ch_status ch__block_pool_new(ch_block_pool **out);
/* Creates a pool with another block size, for tests of block boundaries. */
CH_MUST_CHECK ch_status ch__block_pool_sized(size_t block_bytes, ch_block_pool **out);
/* Sets the block size of all pools that are created later, for tests; 0: CH_BLOCK_BYTES. */
void ch__block_pool_set_default_bytes(size_t block_bytes);
/* Reserves `bytes` per block for notes (ch__block_alloc_note). Must be called before the first
 * ch__block_get. Only blocks in slabs have notes: a pool creates slabs when many blocks are in
 * use. */
void           ch__block_pool_reserve_notes(ch_block_pool *p, size_t bytes);
ch_block_pool *ch__block_pool_ref(ch_block_pool *p);
void           ch__block_pool_unref(ch_block_pool *p); /* `p` may be NULL */

/* Returns a block with one reference, aligned to CH_ALIGN. Its size is at least `bytes` and at
 * least the pool's block size. The contents are undefined. Returns NULL if memory is
 * exhausted. */
ch_buffer *ch__block_get(ch_block_pool *p, size_t bytes);
/* Sets the name of the file that the block holds. `name` is a text that ends in NUL; the block
 * adds a reference to it. ch__block_name returns NULL if no name is set. Must be called at
 * most once, before the block is shared. */
void        ch__block_set_name(ch_buffer *b, ch_buffer *name);
const char *ch__block_name(const ch_buffer *b);
/* Allocates memory for data about the contents of the block, aligned to 16. Only the thread
 * that fills the block may call this. The memory is valid until the last reference to the block
 * is released. Returns NULL if the block has no room for notes or not enough is left. */
void *ch__block_alloc_note(ch_buffer *b, size_t bytes);
/* Enlarges a block to `bytes` and keeps its contents; the data may move. The block must have
 * only one reference. Returns false if memory is exhausted; the block is unchanged then. */
bool ch__block_grow(ch_buffer *b, size_t bytes);

#endif

/* file/block.h -- blocks of memory that files are read into, used again and again.
 *
 * A block is a counted buffer; whoever keeps a span of it adds a reference. When the last one
 * goes, on whatever thread, the block returns to its pool, so that reading on allocates nothing
 * and takes no page fault. A pool outlives its owner while blocks of it are out.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_BLOCK_H
#define FILE_BLOCK_H

#include "tensor/tensor.h"

#define CH_BLOCK_BYTES ((size_t)256 << 10) /* what a block has at first */

typedef struct ch_block_pool ch_block_pool;

CH_MUST_CHECK ch_status ch__block_pool_new(ch_block_pool **out);
/* The same with blocks of that size, for tests of what happens at their ends. */
CH_MUST_CHECK ch_status ch__block_pool_sized(size_t block_bytes, ch_block_pool **out);
/* Pools that are made from now on have blocks of that size, for tests that make many; 0: as ever. */
void ch__block_pool_usual(size_t block_bytes);
/* Before the first block is taken: such blocks as many are out of have room for notes. */
void           ch__block_pool_notes(ch_block_pool *p, size_t bytes);
ch_block_pool *ch__block_pool_ref(ch_block_pool *p);
void           ch__block_pool_unref(ch_block_pool *p); /* NULL is fine */

/* A block with one reference, of at least `bytes` and the pool's size, CH_ALIGN-aligned; what
 * is in it is left from who had it before. NULL: no memory. Threads may share a pool. */
ch_buffer *ch__block_get(ch_block_pool *p, size_t bytes);
/* Says which file is in it, to all who hold it; `name`, a text, is referenced. NULL where it was not said. */
void        ch__block_set_name(ch_buffer *b, ch_buffer *name);
const char *ch__block_name(const ch_buffer *b);
/* Memory for what is said about the content, by the thread that fills it in; aligned to 16, and there until the
 * last reference goes. NULL: there is none, or no more. */
void *ch__block_note(ch_buffer *b, size_t bytes);
/* Makes it larger, in place or elsewhere, with what it holds: only while it has one reference.
 * False: no memory. */
bool ch__block_grow(ch_buffer *b, size_t bytes);

#endif

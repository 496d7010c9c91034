/* data/element_pool.h -- pool of memory for small elements.
 *
 * Pipelines allocate and free elements by the million, and often one thread allocates an
 * element and another frees it, which is the slowest case for malloc. So each thread keeps some
 * free elements, and passes those in excess to a common store, a bundle at a time. The pool
 * works while an iterator exists; when the last iterator is freed, the memory of the store is
 * freed too.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_ELEMENT_POOL_H
#define DATA_ELEMENT_POOL_H

enum { CH_ELEMENT_POOL_BYTES = 512 };

/* Returns CH_ELEMENT_POOL_BYTES, aligned as malloc does; NULL: out of memory. */
void *ch__element_pool_get(void);
/* Returns memory of ch__element_pool_get to the pool. Any thread may call it. */
void ch__element_pool_put(void *p);

/* Each iterator calls open when it is created and close when it is freed. */
void ch__element_pool_open(void);
void ch__element_pool_close(void);
/* Empties the part of the pool that belongs to this thread. A thread calls it when it ends, or
 * when it will use no more elements. */
void ch__element_pool_flush(void);

#endif

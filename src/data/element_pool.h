/* data/element_pool.h -- memory of small elements, kept for the next ones.
 *
 * Elements come and go by the million, and are often made by one thread and let go by another, which
 * is what malloc is slowest at. So each thread keeps some, and what it has too much of it gives to a
 * common store, in bundles. All this is while there are iterators: with the last one it is freed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_ELEMENT_POOL_H
#define DATA_ELEMENT_POOL_H

enum { CH_ELEMENT_POOL_BYTES = 512 };

/* CH_ELEMENT_POOL_BYTES, aligned as malloc does; NULL: no memory. */
void *ch__element_pool_get(void);
void  ch__element_pool_put(void *p);

/* From one to the other there is an iterator. */
void ch__element_pool_open(void);
void ch__element_pool_close(void);
/* A thread that ends, or will have no use for them, gives away what it kept. */
void ch__element_pool_flush(void);

#endif

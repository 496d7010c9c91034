/* file/block.c -- blocks and their pools.
 *
 * A pool counts its owners and the blocks that are out; who takes the count to zero frees it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/block.h"

#include <pthread.h>
#include <stdint.h>

#include "base/fault.h"
#include "base/mem.h"

/* What a pool keeps for later: this, and as much as is out, which comes and goes. The rest goes back to
 * the system. */
static const size_t idle_bytes = (size_t)16 << 20;

typedef struct block {
    ch_buffer      base; /* first */
    ch_block_pool *pool;
    struct block  *next;        /* while it is idle */
    size_t         taken_bytes; /* that it had when it was taken */
} block;

struct ch_block_pool {
    atomic_int      refs;
    size_t          block_bytes;
    pthread_mutex_t lock; /* of what follows */
    block          *idle;
    size_t          idle_bytes, out_bytes;
};

ch_status ch__block_pool_sized(size_t block_bytes, ch_block_pool **out)
{
    ch_block_pool *p = ch__calloc(1, sizeof(*p));

    if (p == NULL)
        return ch__fail_memory("blocks to read into");
    atomic_init(&p->refs, 1);
    p->block_bytes = block_bytes;
    pthread_mutex_init(&p->lock, NULL);
    *out = p;
    return CH_OK;
}

static atomic_size_t usual_bytes; /* 0: CH_BLOCK_BYTES */

ch_status ch__block_pool_new(ch_block_pool **out)
{
    size_t bytes = atomic_load_explicit(&usual_bytes, memory_order_relaxed);

    return ch__block_pool_sized(bytes > 0 ? bytes : CH_BLOCK_BYTES, out);
}

void ch__block_pool_usual(size_t block_bytes)
{
    atomic_store_explicit(&usual_bytes, block_bytes, memory_order_relaxed);
}

ch_block_pool *ch__block_pool_ref(ch_block_pool *p)
{
    atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    return p;
}

static void block_free(block *b)
{
    ch__free_aligned(b->base.data);
    ch__free(b);
}

void ch__block_pool_unref(ch_block_pool *p)
{
    if (p == NULL || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (block *b = p->idle, *next; b != NULL; b = next) {
        next = b->next;
        block_free(b);
    }
    pthread_mutex_destroy(&p->lock);
    ch__free(p);
}

/* The last reference is gone: back to the pool, if that has room. */
static void block_release(ch_buffer *base)
{
    block         *b = (block *)base;
    ch_block_pool *p = b->pool;

    pthread_mutex_lock(&p->lock);
    p->out_bytes -= b->taken_bytes;
    bool keep = p->idle_bytes + base->bytes <= idle_bytes + p->out_bytes &&
                (uintptr_t)base->data % CH_ALIGN == 0; /* one that has grown may not be */
    if (keep) {
        b->next = p->idle;
        p->idle = b;
        p->idle_bytes += base->bytes;
    }
    pthread_mutex_unlock(&p->lock);
    if (!keep)
        block_free(b);
    ch__block_pool_unref(p);
}

static block *block_new(ch_block_pool *p, size_t bytes)
{
    block *b = ch__calloc(1, sizeof(*b));

    if (b == NULL)
        return NULL;
    b->base = (ch_buffer){.data = ch__alloc_aligned(bytes),
                          .bytes = bytes,
                          .device = ch_device_current(),
                          .release = block_release};
    if (b->base.data == NULL || b->base.device == NULL) {
        block_free(b);
        return NULL;
    }
    b->pool = p;
    return b;
}

/* With the lock held: the first that is large enough. */
static block *take_idle(ch_block_pool *p, size_t bytes)
{
    for (block **at = &p->idle; *at != NULL; at = &(*at)->next)
        if ((*at)->base.bytes >= bytes) {
            block *b = *at;

            *at = b->next;
            p->idle_bytes -= b->base.bytes;
            return b;
        }
    return NULL;
}

ch_buffer *ch__block_take(ch_block_pool *p, size_t bytes)
{
    block *b;

    bytes = bytes > p->block_bytes ? bytes : p->block_bytes;
    pthread_mutex_lock(&p->lock);
    b = take_idle(p, bytes);
    pthread_mutex_unlock(&p->lock);
    if (b == NULL && (b = block_new(p, bytes)) == NULL)
        return NULL;
    b->taken_bytes = b->base.bytes;
    pthread_mutex_lock(&p->lock);
    p->out_bytes += b->taken_bytes;
    pthread_mutex_unlock(&p->lock);
    atomic_store_explicit(&b->base.refs, 1, memory_order_relaxed);
    ch__block_pool_ref(p);
    return &b->base;
}

bool ch__block_grow(ch_buffer *b, size_t bytes)
{
    void *larger = bytes > b->bytes ? ch__realloc(b->data, bytes) : b->data;

    if (larger == NULL)
        return false;
    b->data = larger;
    b->bytes = bytes > b->bytes ? bytes : b->bytes;
    return true;
}

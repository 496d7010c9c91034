/* net/receive_pool.c -- the blocks of a pool: a header in front of the memory.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/receive_pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"

enum { MOST_KEPT = 64, LEAST_BYTES = 64 << 10 };

typedef struct block {
    ch_receive_pool *pool; /* NULL: of none */
    size_t           cap;
} block;

/* The memory of a block begins here, as aligned as the block. */
enum { HEADER = 32 };
_Static_assert(sizeof(block) <= HEADER, "the header fits");

struct ch_receive_pool {
    pthread_mutex_t lock;
    size_t          max_bytes, n_bytes; /* kept, at most; now */
    block          *kept[MOST_KEPT];    /* the oldest first */
    int             n_kept;
    int64_t         refs; /* the owner, and blocks that are in use */
};

static void *memory_of(block *b)
{
    return (char *)b + HEADER;
}

static block *block_of(void *memory)
{
    return (block *)(void *)((char *)memory - HEADER);
}

ch_status ch__receive_pool_new(size_t max_bytes, ch_receive_pool **out)
{
    ch_receive_pool *p = ch__calloc(1, sizeof(*p));

    if (p == NULL)
        return ch__fail_memory("pool of receive memory");
    if (pthread_mutex_init(&p->lock, NULL) != 0) {
        ch__free(p);
        return ch__fail(CH_RESOURCE_EXHAUSTED, "pool of receive memory: cannot create a mutex");
    }
    p->max_bytes = max_bytes;
    p->refs = 1;
    *out = p;
    return CH_OK;
}

/* Removes a kept block from the list. */
static block *remove_kept(ch_receive_pool *p, int at)
{
    block *b = p->kept[at];

    p->n_bytes -= b->cap;
    memmove(&p->kept[at], &p->kept[at + 1], (size_t)(--p->n_kept - at) * sizeof(p->kept[0]));
    return b;
}

/* Frees the oldest kept blocks until `bytes` more, in one block, may be kept. */
static void make_room(ch_receive_pool *p, size_t bytes)
{
    while (p->n_kept > 0 && (p->n_bytes + bytes > p->max_bytes || p->n_kept == MOST_KEPT))
        ch__free(remove_kept(p, 0));
}

/* Drops a reference. Needs the lock, and releases it. */
static void unref(ch_receive_pool *p)
{
    bool is_last = --p->refs == 0;

    pthread_mutex_unlock(&p->lock);
    if (!is_last)
        return;
    pthread_mutex_destroy(&p->lock);
    ch__free(p);
}

void ch__receive_pool_close(ch_receive_pool *p)
{
    if (p == NULL)
        return;
    pthread_mutex_lock(&p->lock);
    p->max_bytes = 0;
    make_room(p, 1);
    unref(p);
}

size_t ch__receive_pool_kept(ch_receive_pool *p)
{
    size_t n;

    pthread_mutex_lock(&p->lock);
    n = p->n_bytes;
    pthread_mutex_unlock(&p->lock);
    return n;
}

/* Removes and returns the smallest kept block of at least `want` bytes, and at most twice that,
 * so that a small tensor does not hold the memory of a large one. Needs the lock. */
static block *find_kept(ch_receive_pool *p, size_t want)
{
    int best = -1;

    for (int i = 0; i < p->n_kept; i++)
        if (p->kept[i]->cap >= want && p->kept[i]->cap / 2 <= want &&
            (best < 0 || p->kept[i]->cap < p->kept[best]->cap))
            best = i;
    return best >= 0 ? remove_kept(p, best) : NULL;
}

void *ch__receive_block(ch_receive_pool *p, size_t first, size_t want, size_t *cap)
{
    block *b = NULL;

    if (want < LEAST_BYTES)
        p = NULL;
    if (p != NULL) {
        pthread_mutex_lock(&p->lock);
        b = find_kept(p, want);
        p->refs++;
        pthread_mutex_unlock(&p->lock);
    }
    if (b == NULL) {
        b = ch__malloc(HEADER + first);
        if (b != NULL)
            b->cap = first;
    }
    if (b == NULL) {
        if (p != NULL) {
            pthread_mutex_lock(&p->lock);
            unref(p);
        }
        return NULL;
    }
    b->pool = p;
    *cap = b->cap;
    return memory_of(b);
}

void *ch__receive_block_grow(void *memory, size_t cap)
{
    block *b = ch__realloc(block_of(memory), HEADER + cap);

    if (b == NULL)
        return NULL;
    b->cap = cap;
    return memory_of(b);
}

void ch__receive_block_release(void *memory)
{
    block           *b = memory != NULL ? block_of(memory) : NULL;
    ch_receive_pool *p = b != NULL ? b->pool : NULL;

    if (p == NULL) {
        ch__free(b);
        return;
    }
    pthread_mutex_lock(&p->lock);
    if (b->cap >= LEAST_BYTES && b->cap <= p->max_bytes) {
        make_room(p, b->cap);
        p->n_bytes += b->cap;
        p->kept[p->n_kept++] = b;
        b = NULL;
    }
    unref(p);
    ch__free(b);
}

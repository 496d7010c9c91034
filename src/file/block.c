/* file/block.c -- blocks and their pools.
 *
 * struct ch_block_pool keeps a list of idle blocks. file/reader.c and the stages of src/data
 * get blocks from it.
 *
 *   1. A pool's reference count is the number of its owners plus the number of blocks in use.
 *      The release of the last reference frees the pool.
 *   2. The first blocks are allocated separately. If at least slab_bytes are in use, as after
 *      a shuffle, further blocks are pieces of slabs on huge pages. Such blocks are read in
 *      random order, and with small pages each access would cost a TLB miss.
 *   3. The notes of a block lie directly after its piece of the slab, on the same huge page.
 *   4. A slab lives as long as the pool, and its blocks are never freed separately.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/block.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"

/* The idle blocks of a pool together have at most this size plus the bytes in use, because the
 * number of blocks in use varies. Further blocks are freed; blocks of slabs always stay. */
static const size_t idle_bytes = (size_t)16 << 20;

/* The size of a huge page. Blocks of more than half of it are allocated separately. */
static const size_t slab_bytes = (size_t)2 << 20;

enum { NOTE_GRAIN = 16 };

typedef struct block {
    ch_buffer      base; /* must be the first field */
    ch_block_pool *pool;
    struct block  *next;          /* next idle block */
    size_t         initial_bytes; /* size at the last ch__block_get */
    void          *slab_piece;    /* piece of a slab; NULL: allocated separately */
    ch_buffer     *name;          /* name of the file; NULL: not set */
    char          *notes;         /* memory after the slab piece; NULL: no room for notes */
    size_t         note_used;     /* bytes of notes in use */
} block;

/* A huge page, cut into blocks. */
typedef struct slab {
    struct slab *next;
    void        *memory;
    block        block[];
} slab;

struct ch_block_pool {
    atomic_int      refs;
    size_t          block_bytes, note_bytes;
    pthread_mutex_t lock; /* protects the fields below */
    block          *idle;
    slab           *slabs;
    /* size of the idle blocks, and initial size of the blocks in use */
    size_t idle_bytes, used_bytes;
};

ch_status ch__block_pool_sized(size_t block_bytes, ch_block_pool **out)
{
    ch_block_pool *p = ch__calloc(1, sizeof(*p));

    if (p == NULL)
        return ch__fail_memory("blocks for reading");
    atomic_init(&p->refs, 1);
    p->block_bytes = block_bytes;
    pthread_mutex_init(&p->lock, NULL);
    *out = p;
    return CH_OK;
}

static atomic_size_t default_bytes; /* 0: CH_BLOCK_BYTES */

ch_status ch__block_pool_new(ch_block_pool **out)
{
    size_t bytes = atomic_load_explicit(&default_bytes, memory_order_relaxed);

    return ch__block_pool_sized(bytes > 0 ? bytes : CH_BLOCK_BYTES, out);
}

void ch__block_pool_set_default_bytes(size_t block_bytes)
{
    atomic_store_explicit(&default_bytes, block_bytes, memory_order_relaxed);
}

void ch__block_pool_reserve_notes(ch_block_pool *p, size_t bytes)
{
    p->note_bytes = (bytes + CH_ALIGN - 1) / CH_ALIGN * CH_ALIGN;
}

ch_block_pool *ch__block_pool_ref(ch_block_pool *p)
{
    atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    return p;
}

/* Frees the memory of a block. A block of a slab only loses the memory that it has grown
 * into. */
static void block_free(block *b)
{
    if (b->base.data != b->slab_piece)
        ch__free_aligned(b->base.data);
    if (b->slab_piece == NULL)
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
    for (slab *s = p->slabs, *next; s != NULL; s = next) {
        next = s->next;
        ch__free_aligned(s->memory);
        ch__free(s);
    }
    pthread_mutex_destroy(&p->lock);
    ch__free(p);
}

/* Adds a block to the idle list. The lock must be held. */
static void push_idle(ch_block_pool *p, block *b)
{
    b->next = p->idle;
    p->idle = b;
    p->idle_bytes += b->base.bytes;
}

/* Called when the last reference is released: returns the block to the pool, or frees it if the
 * pool has enough idle blocks. */
static void block_release(ch_buffer *base)
{
    block         *b = (block *)base;
    ch_block_pool *p = b->pool;
    bool           keep = b->slab_piece != NULL;

    if (b->name != NULL)
        ch__buffer_unref(b->name);
    b->name = NULL;
    b->note_used = 0;
    if (keep && base->data != b->slab_piece) {
        ch__free_aligned(base->data);
        base->data = b->slab_piece;
        base->bytes = b->initial_bytes;
    }
    pthread_mutex_lock(&p->lock);
    p->used_bytes -= b->initial_bytes;
    if (!keep)
        keep = p->idle_bytes + base->bytes <= idle_bytes + p->used_bytes &&
               (uintptr_t)base->data % CH_ALIGN == 0; /* ch__realloc does not align */
    if (keep)
        push_idle(p, b);
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

/* Adds a slab and puts its blocks on the idle list. The lock must be held. Returns false if
 * memory is exhausted. */
static bool add_slab(ch_block_pool *p, size_t bytes)
{
    size_t     n = slab_bytes / (bytes + p->note_bytes);
    size_t     piece = (slab_bytes / n - p->note_bytes) / CH_ALIGN * CH_ALIGN;
    slab      *s = ch__calloc(1, sizeof(*s) + n * sizeof(block));
    ch_device *device = ch_device_current();

    if (s == NULL || device == NULL || (s->memory = ch__alloc_aligned(slab_bytes)) == NULL) {
        ch__free(s);
        return false;
    }
    s->next = p->slabs;
    p->slabs = s;
    for (size_t i = 0; i < n; i++) {
        char *at = (char *)s->memory + i * (piece + p->note_bytes);

        s->block[i] = (block){
            .base = {.data = at, .bytes = piece, .device = device, .release = block_release},
            .pool = p,
            .slab_piece = at,
            .notes = p->note_bytes > 0 ? at + piece : NULL};
        push_idle(p, &s->block[i]);
    }
    return true;
}

/* Removes the first idle block of at least `bytes` from the list. The lock must be held.
 * Returns NULL if there is none. */
static block *pop_idle(ch_block_pool *p, size_t bytes)
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

ch_buffer *ch__block_get(ch_block_pool *p, size_t bytes)
{
    block *b;

    bytes = bytes > p->block_bytes ? bytes : p->block_bytes;
    pthread_mutex_lock(&p->lock);
    b = pop_idle(p, bytes);
    if (b == NULL && p->used_bytes >= slab_bytes && bytes + p->note_bytes <= slab_bytes / 2 &&
        add_slab(p, bytes))
        b = pop_idle(p, bytes);
    pthread_mutex_unlock(&p->lock);
    if (b == NULL && (b = block_new(p, bytes)) == NULL)
        return NULL;
    b->initial_bytes = b->base.bytes;
    pthread_mutex_lock(&p->lock);
    p->used_bytes += b->initial_bytes;
    pthread_mutex_unlock(&p->lock);
    atomic_store_explicit(&b->base.refs, 1, memory_order_relaxed);
    ch__block_pool_ref(p);
    return &b->base;
}

void ch__block_set_name(ch_buffer *b, ch_buffer *name)
{
    ((block *)b)->name = ch__buffer_ref(name);
}

const char *ch__block_name(const ch_buffer *b)
{
    const ch_buffer *name = ((const block *)b)->name;

    return name != NULL ? name->data : NULL;
}

bool ch__block_grow(ch_buffer *b, size_t bytes)
{
    bool  is_in_slab = b->data == ((block *)b)->slab_piece;
    void *larger =
        bytes <= b->bytes ? b->data : ch__realloc(is_in_slab ? NULL : b->data, bytes);

    if (larger == NULL)
        return false;
    if (is_in_slab && larger != b->data)
        memcpy(larger, b->data, b->bytes);
    b->data = larger;
    b->bytes = bytes > b->bytes ? bytes : b->bytes;
    return true;
}

void *ch__block_alloc_note(ch_buffer *base, size_t bytes)
{
    block *b = (block *)base;
    void  *note;

    bytes = (bytes + NOTE_GRAIN - 1) / NOTE_GRAIN * NOTE_GRAIN;
    if (b->notes == NULL || bytes > b->pool->note_bytes - b->note_used)
        return NULL;
    note = b->notes + b->note_used;
    b->note_used += bytes;
    return note;
}

/* data/element_pool.c -- pool of memory for small elements.
 *
 * A bundle is an array of pointers to free elements. A thread has two bundles: an open one,
 * which it gets elements from and puts them into, and a full one. So it takes the lock of the
 * store at most once in BUNDLE calls. A bundle is an array and not a list through the free
 * elements, because these are no longer in the cache: with an array they can be prefetched
 * before they are needed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/element_pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/mem.h"
#include "base/prefetch.h"

enum {
    BUNDLE = CH_ELEMENT_POOL_BYTES / sizeof(void *) - 2, /* elements of a bundle */
    MOST_BUNDLES = 1024,                                 /* limit of the store */
    PREFETCH_CALLS = 2, /* an element is prefetched this many calls ahead */
    PREFETCH_BYTES = CH_ELEMENT_POOL_BYTES / 2 /* the part that most elements use */
};

/* A bundle lies in the memory of a free element, which is returned last. */
typedef struct bundle {
    struct bundle *next; /* link of the store's list */
    int64_t        n;    /* elements in `at` */
    void          *at[BUNDLE];
} bundle;

_Static_assert(sizeof(bundle) <= CH_ELEMENT_POOL_BYTES, "a bundle fits a free element");

static _Thread_local struct {
    bundle *open, *full;   /* either may be NULL */
    bool    has_exit_hook; /* flush_at_exit will run when the thread ends */
} local;

static struct {
    pthread_mutex_t lock;
    bundle         *first;
    int             n_bundles;
    atomic_int      n_users; /* iterators */
} store = {.lock = PTHREAD_MUTEX_INITIALIZER};

static pthread_key_t  exit_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void free_bundle(bundle *b)
{
    for (int64_t i = 0; b != NULL && i < b->n; i++)
        ch__free(b->at[i]);
    ch__free(b);
}

/* ---- the store ---- */

/* Takes ownership of the bundle. Frees it if the store is full or there is no iterator. */
static void store_put(bundle *b)
{
    pthread_mutex_lock(&store.lock);
    bool fits = atomic_load(&store.n_users) > 0 && store.n_bundles < MOST_BUNDLES;
    if (fits) {
        b->next = store.first;
        store.first = b;
        store.n_bundles++;
    }
    pthread_mutex_unlock(&store.lock);
    if (!fits)
        free_bundle(b);
}

/* Returns a bundle of the store; NULL: the store is empty. */
static bundle *store_get(void)
{
    pthread_mutex_lock(&store.lock);
    bundle *b = store.first;
    if (b != NULL) {
        store.first = b->next;
        store.n_bundles--;
    }
    pthread_mutex_unlock(&store.lock);
    return b;
}

void ch__element_pool_open(void)
{
    atomic_fetch_add(&store.n_users, 1);
}

void ch__element_pool_close(void)
{
    ch__element_pool_flush();
    if (atomic_fetch_sub(&store.n_users, 1) > 1)
        return;
    for (bundle *b; (b = store_get()) != NULL;)
        free_bundle(b);
}

/* ---- the bundles of a thread ---- */

/* Moves the full bundle to the store. Frees the open bundle, because it is not worth
 * keeping. */
void ch__element_pool_flush(void)
{
    if (local.full != NULL)
        store_put(local.full);
    free_bundle(local.open);
    local.full = local.open = NULL;
}

static void flush_at_exit(void *arg)
{
    (void)arg;
    ch__element_pool_flush();
}

static void make_key(void)
{
    (void)pthread_key_create(&exit_key, flush_at_exit);
}

/* Returns true if this thread may keep free elements: an iterator exists, and flush_at_exit is
 * registered to free them when the thread ends. */
static bool may_keep(void)
{
    if (!local.has_exit_hook) {
        pthread_once(&once, make_key);
        local.has_exit_hook = pthread_setspecific(exit_key, &local) == 0;
    }
    return local.has_exit_hook &&
           atomic_load_explicit(&store.n_users, memory_order_relaxed) > 0;
}

void *ch__element_pool_get(void)
{
    bundle *b = local.open;

    if (b == NULL && may_keep()) {
        b = local.full != NULL ? local.full : store_get();
        local.full = NULL;
        local.open = b;
    }
    if (b == NULL)
        return ch__alloc_aligned(CH_ELEMENT_POOL_BYTES);
    if (b->n == 0) {
        local.open = NULL;
        return b;
    }
    if (b->n > PREFETCH_CALLS)
        ch__prefetch_write(b->at[b->n - 1 - PREFETCH_CALLS], PREFETCH_BYTES);
    return b->at[--b->n];
}

void ch__element_pool_put(void *p)
{
    if (!may_keep()) {
        ch__free(p);
        return;
    }
    if (local.open != NULL && local.open->n == BUNDLE) {
        if (local.full != NULL)
            store_put(local.full);
        local.full = local.open;
        local.open = NULL;
    }
    if (local.open == NULL) {
        local.open = p;
        local.open->n = 0;
    } else {
        local.open->at[local.open->n++] = p;
    }
}

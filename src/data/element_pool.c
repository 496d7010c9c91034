/* data/element_pool.c -- memory of small elements, kept for the next ones.
 *
 * A thread has two bundles: one that it takes from and gives to, and a full one. So it goes to the
 * store once in BUNDLE times at most. A bundle is a list by itself, not one through its members:
 * those have been away for long, and are asked for before they are needed.
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
    BUNDLE = CH_ELEMENT_POOL_BYTES / sizeof(void *) - 2,
    MOST_BUNDLES = 1024,
    SOON = 2,                           /* takes between asking for one and giving it */
    TOUCHED = CH_ELEMENT_POOL_BYTES / 2 /* bytes of one that most elements use */
};

/* In the memory of a spare, which is given last. */
typedef struct bundle {
    struct bundle *next; /* in the store */
    int64_t        n;
    void          *at[BUNDLE];
} bundle;

_Static_assert(sizeof(bundle) <= CH_ELEMENT_POOL_BYTES, "a bundle is a spare");

static _Thread_local struct {
    bundle *open, *full; /* either may be NULL */
    bool    is_known;    /* the end of the thread will be told */
} mine;

static struct {
    pthread_mutex_t lock;
    bundle         *first;
    int             n_bundles;
    atomic_int      n_users;
} store = {.lock = PTHREAD_MUTEX_INITIALIZER};

static pthread_key_t  at_exit;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void free_bundle(bundle *b)
{
    for (int64_t i = 0; b != NULL && i < b->n; i++)
        ch__free(b->at[i]);
    ch__free(b);
}

/* ---- the store ---- */

static void store_give(bundle *b)
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

static bundle *store_take(void)
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
    for (bundle *b; (b = store_take()) != NULL;)
        free_bundle(b);
}

/* ---- a thread's own ---- */

/* What is not a whole bundle is not worth keeping. */
void ch__element_pool_flush(void)
{
    if (mine.full != NULL)
        store_give(mine.full);
    free_bundle(mine.open);
    mine.full = mine.open = NULL;
}

static void flush_at_exit(void *arg)
{
    (void)arg;
    ch__element_pool_flush();
}

static void make_key(void)
{
    (void)pthread_key_create(&at_exit, flush_at_exit);
}

/* Whether this thread may keep any: somebody wants them, and its end will be told. */
static bool may_keep(void)
{
    if (!mine.is_known) {
        pthread_once(&once, make_key);
        mine.is_known = pthread_setspecific(at_exit, &mine) == 0;
    }
    return mine.is_known && atomic_load_explicit(&store.n_users, memory_order_relaxed) > 0;
}

void *ch__element_pool_get(void)
{
    bundle *b = mine.open;

    if (b == NULL && may_keep()) {
        b = mine.full != NULL ? mine.full : store_take();
        mine.full = NULL;
        mine.open = b;
    }
    if (b == NULL)
        return ch__alloc_aligned(CH_ELEMENT_POOL_BYTES);
    if (b->n == 0) {
        mine.open = NULL;
        return b;
    }
    if (b->n > SOON)
        ch__prefetch_write(b->at[b->n - 1 - SOON], TOUCHED);
    return b->at[--b->n];
}

void ch__element_pool_put(void *p)
{
    if (!may_keep()) {
        ch__free(p);
        return;
    }
    if (mine.open != NULL && mine.open->n == BUNDLE) {
        if (mine.full != NULL)
            store_give(mine.full);
        mine.full = mine.open;
        mine.open = NULL;
    }
    if (mine.open == NULL) {
        mine.open = p;
        mine.open->n = 0;
    } else {
        mine.open->at[mine.open->n++] = p;
    }
}

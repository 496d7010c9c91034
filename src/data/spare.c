/* data/spare.c -- memory of small elements, kept for the next ones.
 *
 * A thread has two lists: one that it takes from and gives to, and a full one. So it goes to the
 * store once in BUNDLE times at most, and never walks a list.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/spare.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/mem.h"

enum { BUNDLE = 128, MOST_BUNDLES = 512 };

typedef struct spare {
    struct spare *next;   /* in its list */
    struct spare *bundle; /* of the first of a bundle: the next bundle in the store */
} spare;

static _Thread_local struct {
    spare *list, *full; /* full: a bundle, or NULL */
    int    n;           /* in the list */
    bool   is_known;    /* the end of the thread will be told */
} mine;

static struct {
    pthread_mutex_t lock;
    spare          *bundle;
    int             n_bundles;
    atomic_int      n_users;
} store = {.lock = PTHREAD_MUTEX_INITIALIZER};

static pthread_key_t  at_exit;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void free_list(spare *s)
{
    for (spare *next; s != NULL; s = next) {
        next = s->next;
        ch__free(s);
    }
}

/* ---- the store ---- */

static void store_give(spare *bundle)
{
    pthread_mutex_lock(&store.lock);
    bool fits = atomic_load(&store.n_users) > 0 && store.n_bundles < MOST_BUNDLES;
    if (fits) {
        bundle->bundle = store.bundle;
        store.bundle = bundle;
        store.n_bundles++;
    }
    pthread_mutex_unlock(&store.lock);
    if (!fits)
        free_list(bundle);
}

static spare *store_take(void)
{
    pthread_mutex_lock(&store.lock);
    spare *s = store.bundle;
    if (s != NULL) {
        store.bundle = s->bundle;
        store.n_bundles--;
    }
    pthread_mutex_unlock(&store.lock);
    return s;
}

void ch__spares_begin(void)
{
    atomic_fetch_add(&store.n_users, 1);
}

void ch__spares_end(void)
{
    ch__spares_flush();
    if (atomic_fetch_sub(&store.n_users, 1) > 1)
        return;
    for (spare *s; (s = store_take()) != NULL;)
        free_list(s);
}

/* ---- a thread's own ---- */

/* What is not a whole bundle is not worth keeping. */
void ch__spares_flush(void)
{
    if (mine.full != NULL)
        store_give(mine.full);
    free_list(mine.list);
    mine.full = mine.list = NULL;
    mine.n = 0;
}

static void flush_at_exit(void *arg)
{
    (void)arg;
    ch__spares_flush();
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

void *ch__spare_take(void)
{
    spare *s;

    if (mine.list == NULL && may_keep()) {
        mine.list = mine.full != NULL ? mine.full : store_take();
        mine.n = mine.list != NULL ? BUNDLE : 0;
        mine.full = NULL;
    }
    s = mine.list;
    if (s == NULL)
        return ch__malloc(CH_SPARE_BYTES);
    mine.list = s->next;
    __builtin_prefetch(s->next); /* it may have been away for long */
    mine.n--;
    return s;
}

void ch__spare_give(void *p)
{
    spare *s = p;

    if (!may_keep()) {
        ch__free(p);
        return;
    }
    if (mine.n == BUNDLE) {
        if (mine.full != NULL)
            store_give(mine.full);
        mine.full = mine.list;
        mine.list = NULL;
        mine.n = 0;
    }
    s->next = mine.list;
    mine.list = s;
    mine.n++;
}

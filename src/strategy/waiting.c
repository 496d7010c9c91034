/* strategy/waiting.c -- the registry of restores whose values wait for variables.
 *
 * The registry is a list of the process, the newest restore first. `lock` protects the list.
 * Invariants:
 *
 *   1. A restore has a reference of the list, and a reference of each ch_waiting with a value
 *      of it. The last reference frees it.
 *   2. `newest` is changed under the lock. It is read without the lock only to see whether
 *      there is any restore.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "strategy/waiting.h"

#include <pthread.h>

#include "base/fault.h"
#include "base/mem.h"

struct ch_waiting_restore {
    atomic_int            refs;
    const ch_waiting_ops *ops;
    void                 *arg;
    ch_waiting_restore   *older;
};

static pthread_mutex_t               lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(ch_waiting_restore *) newest;

static void restore_unref(ch_waiting_restore *r)
{
    if (atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1)
        return;
    r->ops->free(r->arg);
    ch__free(r);
}

ch_status ch__waiting_add(const ch_waiting_ops *ops, void *arg, ch_waiting_restore **out)
{
    ch_waiting_restore *r = ch__calloc(1, sizeof(*r));

    if (r == NULL)
        return ch__fail_memory("a restore");
    atomic_init(&r->refs, 1);
    r->ops = ops;
    r->arg = arg;
    pthread_mutex_lock(&lock);
    r->older = newest;
    newest = r;
    pthread_mutex_unlock(&lock);
    *out = r;
    return CH_OK;
}

void ch__waiting_remove(ch_waiting_restore *r)
{
    pthread_mutex_lock(&lock);
    if (newest == r) {
        newest = r->older;
    } else {
        ch_waiting_restore *newer = newest;

        while (newer->older != r)
            newer = newer->older;
        newer->older = r->older;
    }
    pthread_mutex_unlock(&lock);
    restore_unref(r);
}

ch_waiting ch__waiting_find(const void *object, ch_var *of, const char *name)
{
    ch_waiting          p = {.object = object, .of = of, .name = name};
    ch_waiting_restore *r;

    if (atomic_load_explicit(&newest, memory_order_acquire) == NULL)
        return p;
    pthread_mutex_lock(&lock);
    r = newest;
    while (r != NULL && !r->ops->find(r->arg, object, of, name, &p.source))
        r = r->older;
    if (r != NULL)
        atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
    p.restore = r;
    return p;
}

ch_status ch__waiting_create(ch_waiting *p, ch_strategy *st, const ch_var_spec *spec,
                             const ch_var *beside, ch_var **out)
{
    ch_waiting_restore *r = p->restore;
    ch_status rc = ch__var_new_from(st, spec, beside, r != NULL ? &p->source : NULL, out);

    p->restore = NULL;
    if (r == NULL)
        return rc;
    if (rc == CH_OK && r->ops->created != NULL)
        r->ops->created(r->arg, p->object, p->of, p->name, *out);
    restore_unref(r);
    return rc;
}

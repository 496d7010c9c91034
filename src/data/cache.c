/* data/cache.c -- the stages `cache` (in memory) and `prefetch`.
 *
 * A cache reads each element of its input once and keeps it. It fills up while elements are
 * read: if a pass ends early, the next pass continues to fill it.
 *
 * An element that failed cannot be kept, and may succeed the next time. Every pass must return
 * the elements of the first pass of the input. So after a pass with an error the cache is
 * emptied and its input is opened again.
 *
 * A saved position holds the number of elements, not the elements. A restore reads them from
 * the input again; they are the same (data/data.h, invariant 3). If stages below the cache are
 * unordered, the elements themselves are saved.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "base/mem.h"
#include "data/iterator.h"

typedef struct caching {
    ch_cursor   base;
    bool        is_whole; /* the input has ended: all elements are in `kept` */
    int         at;       /* index in `kept` of the next element */
    int64_t     n_failed; /* errors of the input since the cache was last empty */
    ch_elements kept;
} caching;

/* Reads the next element of the input into the cache. At the end of the input, sets
 * is_whole. */
static ch_status cache_read(caching *x)
{
    ch_element *e = NULL;
    ch_status   rc = ch__cursor_next(x->base.in[0], &e);

    x->n_failed += rc != CH_OK;
    if (rc != CH_OK)
        return rc;
    x->is_whole = e == NULL;
    if (e != NULL)
        rc = ch__elements_add(&x->kept, e, "cache");
    x->n_failed += rc != CH_OK;
    return rc;
}

static ch_status cache_next(ch_cursor *c, ch_element **out)
{
    caching  *x = (caching *)c;
    ch_status rc = CH_OK;

    if (x->at == x->kept.n && !x->is_whole)
        rc = cache_read(x);
    if (rc != CH_OK || x->at == x->kept.n)
        return rc;
    return ch__element_share(x->kept.at[x->at++], out);
}

static ch_status cache_rewind(ch_cursor *c)
{
    caching *x = (caching *)c;

    x->at = 0;
    if (x->n_failed == 0)
        return CH_OK;
    ch__elements_empty(&x->kept);
    ch__budget_refund_all(c);
    x->n_failed = 0;
    x->is_whole = false;
    return ch__cursor_reopen(c);
}

/* Elements of an earlier pass are those of this pass: after an error in between, no earlier
 * place is asked for. */
static bool cache_can_step_back(ch_cursor *c, ch_back to)
{
    const caching *x = (const caching *)c;

    return to.passes > 0 ? to.n <= x->kept.n && x->n_failed == 0 : to.n <= x->at;
}

static void cache_save(ch_cursor *c, ch_saver *s)
{
    caching *x = (caching *)c;
    bool     by_value = c->it->unordered || c->dataset->is_unordered;
    ch_back  to = ch__save_place(s);

    ch__save_int(s, x->is_whole);
    ch__save_int(s, x->kept.n);
    ch__save_int(s, to.passes > 0 ? to.n : x->at - to.n);
    ch__save_int(s, x->n_failed);
    ch__save_int(s, by_value);
    if (!by_value)
        return;
    ch__save_elements(s, &x->kept);
    ch__save_inputs(c, s);
}

/* Fills the cache with n elements after a restore. The first n_failed errors of the input were
 * returned before the position was saved, so they are ignored. Any further error is
 * returned. */
static ch_status cache_refill(caching *x, int n, int64_t n_failed)
{
    ch_status rc = CH_OK;

    while (rc == CH_OK && !x->is_whole && (x->kept.n < n || x->n_failed < n_failed)) {
        int64_t before = x->n_failed;

        rc = cache_read(x);
        if (rc != CH_CANCELLED && x->n_failed > before && x->n_failed <= n_failed)
            rc = CH_OK;
    }
    if (rc == CH_OK && x->kept.n != n)
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "restore: cache: its input has %d elements and %lld errors, but had %d "
                      "and %lld when the position was saved; the data has changed",
                      x->kept.n, (long long)x->n_failed, n, (long long)n_failed);
    return rc;
}

static ch_status cache_load(ch_cursor *c, ch_loader *l)
{
    caching  *x = (caching *)c;
    bool      is_whole = ch__load_int(l, 0, 1) != 0, by_value;
    int       n = (int)ch__load_int(l, 0, INT32_MAX), at = (int)ch__load_int(l, 0, n);
    int64_t   n_failed = ch__load_count(l);
    ch_status rc = CH_OK;

    by_value = ch__load_int(l, 0, 1) != 0;
    if (ch__load_fails(l))
        return ch__load_status(l);
    if (by_value)
        rc = ch__load_elements(l, n, c->dataset, &x->kept);
    if (by_value && rc == CH_OK)
        rc = ch__load_inputs(c, l);
    if (!by_value)
        rc = cache_refill(x, n, n_failed);
    x->n_failed = n_failed;
    x->at = at;
    x->is_whole = is_whole;
    return rc;
}

static void cache_close(ch_cursor *c)
{
    ch__elements_drop(&((caching *)c)->kept);
}

const ch_stage ch__stage_cache = {
    .name = "cache",
    .version = 1,
    .traits =
        CH_KEEPS_BATCHES | CH_KEEPS_NAMES | CH_DIVIDES | CH_ONE_BY_ONE | CH_HOLDS_ELEMENTS,
    .n_in = 1,
    .cursor_bytes = sizeof(caching),
    .infer = ch__infer_like_input,
    .open = ch__open_nothing,
    .next = cache_next,
    .rewind = cache_rewind,
    .can_step_back = cache_can_step_back,
    .save = cache_save,
    .load = cache_load,
    .close = cache_close,
};

ch_dataset *ch_dataset_cache(ch_dataset *d, const char *path)
{
    if (path != NULL)
        return ch__dataset_cache_file(d, path);
    return ch__dataset_new(&ch__stage_cache, &(ch_dataset_make){.n_in = 1, .in = &d});
}

/* ---- prefetch ---- */

static ch_status prefetch_infer(ch_dataset *d)
{
    if (CH_ATTRS_OF(d, Cohort__Count)->count < 0 ||
        CH_ATTRS_OF(d, Cohort__Count)->count > 65536)
        return ch__dataset_fail(d, "%lld elements, want 0 to 65536",
                                (long long)CH_ATTRS_OF(d, Cohort__Count)->count);
    return ch__dataset_like(d, d->in[0]);
}

static ch_status prefetch_open(ch_cursor *c)
{
    static const ch_workqueue_ops ops = {ch__workqueue_pull_input, NULL};
    int                           n = (int)CH_ATTRS(c, Cohort__Count)->count;

    return ch__workqueue_open(
        c, &ops, &(ch_workqueue_options){.want = 1, .prefetch = n, .per_result = 1});
}

const ch_stage ch__stage_prefetch = {
    .name = "prefetch",
    .version = 1,
    .traits = CH_KEEPS_BATCHES | CH_KEEPS_NAMES | CH_DIVIDES | CH_ONE_BY_ONE,
    .n_in = 1,
    .attrs = &cohort__count__descriptor,
    .cursor_bytes = sizeof(ch_cursor),
    .infer = prefetch_infer,
    .open = prefetch_open,
    CH_QUEUED_STAGE,
    .close = ch__close_nothing,
};

ch_dataset *ch_dataset_prefetch(ch_dataset *d, int n)
{
    Cohort__Count a = COHORT__COUNT__INIT;

    a.count = n;
    return ch__dataset_new(&ch__stage_prefetch,
                           &(ch_dataset_make){.attrs = &a.base, .n_in = 1, .in = &d});
}

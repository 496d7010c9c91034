/* data/shard.c -- the stage shard: every n-th element, or every n-th block of elements.
 *
 * Programs create it with ch_dataset_shard. A distribution (data/distribute.c, data/divide.c,
 * data/parts.c) adds it to give each worker its own files or elements. Invariants:
 *
 *   1. All shards count the same elements, so each element is in exactly one shard. A failed
 *      element counts like any other.
 *   2. If a distribution made the shard, no worker has an element before every worker has one
 *      (needs_full_round).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/fault.h"
#include "data/iterator.h"

typedef struct sharding {
    ch_cursor base;
    int64_t   n; /* elements read, of all shards */
    /* The element of this shard in the first round, until the whole round was read; or NULL. */
    ch_element *kept;
} sharding;

/* Returns the number of consecutive elements that belong to the same shard. */
static int64_t shard_block(const Cohort__Shard *a)
{
    return a->block > 1 ? a->block : 1;
}

/* Returns the number of elements of this shard, of n in all. */
static int64_t shard_count(const Cohort__Shard *a, int64_t n)
{
    int64_t block = shard_block(a), round = block * a->n;
    int64_t last = n % round - a->index * block; /* elements of the last, incomplete round */

    return n / round * block + (last < 0 ? 0 : last < block ? last : block);
}

static ch_status shard_infer(ch_dataset *d)
{
    const Cohort__Shard *a = CH_ATTRS_OF(d, Cohort__Shard);
    ch_status            rc = ch__dataset_like(d, d->in[0]);

    if (rc != CH_OK || a->n == CH_BY_HINT)
        return rc;
    if (a->n < 1 || a->index < 0 || a->index >= a->n)
        return ch__dataset_fail(
            d,
            "shard %lld of %lld: want 1 or more shards, and an index from 0 "
            "to their number less 1",
            (long long)a->index, (long long)a->n);
    if (a->block < 0 || a->block > INT64_MAX / a->n)
        return ch__dataset_fail(d,
                                "%lld shards in blocks of %lld elements: the block is negative "
                                "or too large",
                                (long long)a->n, (long long)a->block);
    if (d->cardinality >= 0)
        d->cardinality = shard_count(a, d->cardinality);
    return CH_OK;
}

static ch_status shard_open(ch_cursor *c)
{
    if (CH_ATTRS(c, Cohort__Shard)->n != CH_BY_HINT)
        return CH_OK;
    return ch__fail(CH_FAILED_PRECONDITION,
                    "shard: the number of shards is CH_BY_HINT, but the dataset was not "
                    "distributed with policy CH_SHARD_HINT; set that policy and distribute the "
                    "dataset");
}

/* Returns true if the shard was made by a distribution. A distribution needs at least an
 * element for each shard; if there are fewer, every worker gets the error, once (5.5.10). */
static bool needs_full_round(const Cohort__Shard *a)
{
    return a->why[0] != '\0';
}

static void drop_kept(ch_cursor *c)
{
    sharding *x = (sharding *)c;

    if (x->kept != NULL)
        ch__element_free(x->kept);
    x->kept = NULL;
}

static ch_status fail_too_few(ch_cursor *c)
{
    const Cohort__Shard *a = CH_ATTRS(c, Cohort__Shard);
    sharding            *x = (sharding *)c;
    int64_t              n = x->n;

    drop_kept(c);
    x->n = a->n; /* the error is returned once; the next call returns the end */
    return ch__fail(CH_INVALID_ARGUMENT,
                    "could not divide the data by %s: there are %lld of them, which is not "
                    "enough for %lld workers; use fewer workers, or another policy",
                    a->why, (long long)n, (long long)a->n);
}

/* Reads the whole first round before it returns the first element (`kept`). So if the data is
 * too short, every worker fails before any worker has had an element. Errors of the input are
 * returned before the kept element.
 *
 * A failed element is counted like any other. Only the shard that would have had the element
 * returns its error. An error between elements (ch__error_between) is returned by every
 * shard. */
static ch_status shard_next(ch_cursor *c, ch_element **out)
{
    const Cohort__Shard *a = CH_ATTRS(c, Cohort__Shard);
    sharding            *x = (sharding *)c;
    int64_t             *n = &x->n;

    while (x->kept == NULL || *n < a->n) {
        ch_element *e = NULL;
        ch_status   rc = ch__cursor_next(c->in[0], &e);

        if (rc != CH_OK && (ch__error_is_between() || atomic_load(&c->it->stops)))
            return rc;
        if (rc == CH_OK && e == NULL)
            return needs_full_round(a) && *n > 0 && *n < a->n ? fail_too_few(c) : CH_OK;
        if ((*n)++ / shard_block(a) % a->n != a->index) {
            ch__element_free(e);
        } else if (rc != CH_OK) {
            return rc;
        } else if (needs_full_round(a) && *n <= a->n) {
            x->kept = e;
        } else {
            *out = e;
            return CH_OK;
        }
    }
    *out = x->kept;
    x->kept = NULL;
    return CH_OK;
}

static ch_status shard_rewind(ch_cursor *c)
{
    drop_kept(c);
    ((sharding *)c)->n = 0;
    return ch__rewind_inputs(c);
}

static void shard_save(ch_cursor *c, ch_saver *s)
{
    const sharding *x = (const sharding *)c;

    ch__save_int(s, x->kept != NULL);
    if (x->kept != NULL)
        ch__save_element(s, x->kept);
    ch__save_int(s, x->n);
    ch__save_inputs(c, s);
}

static ch_status shard_load(ch_cursor *c, ch_loader *l)
{
    sharding *x = (sharding *)c;

    drop_kept(c);
    if (ch__load_int(l, 0, 1) == 1)
        x->kept = ch__load_element(l, c->dataset);
    x->n = ch__load_count(l);
    return ch__load_inputs(c, l);
}

const ch_stage ch__stage_shard = {
    .name = "shard",
    .version = 1,
    .traits = CH_KEEPS_BATCHES | CH_DIVIDES_IF_ASKED,
    .n_in = 1,
    .attrs = &cohort__shard__descriptor,
    .cursor_bytes = sizeof(sharding),
    .infer = shard_infer,
    .open = shard_open,
    .next = shard_next,
    .rewind = shard_rewind,
    .save = shard_save,
    .load = shard_load,
    .close = drop_kept,
};

bool ch__dataset_is_shard(const ch_dataset *d)
{
    return d->stage == &ch__stage_shard && CH_ATTRS_OF(d, Cohort__Shard)->n > 1;
}

ch_dataset *ch__dataset_shard_blocks(ch_dataset *d, int64_t n, int64_t index, int64_t block)
{
    Cohort__Shard a;

    cohort__shard__init(&a);
    a.n = n;
    a.index = index;
    a.block = block > 1 ? block : 0;
    return ch__dataset_new(&ch__stage_shard,
                           &(ch_dataset_make){.attrs = &a.base, .n_in = 1, .in = &d});
}

ch_dataset *ch__dataset_shard(ch_dataset *d, int64_t n, int64_t index, const char *why)
{
    Cohort__Shard a;
    char          text[64];

    cohort__shard__init(&a);
    snprintf(text, sizeof(text), "%s", why);
    a.n = n;
    a.index = index;
    a.why = text;
    return ch__dataset_new(&ch__stage_shard,
                           &(ch_dataset_make){.attrs = &a.base, .n_in = 1, .in = &d});
}

ch_dataset *ch_dataset_shard(ch_dataset *d, int64_t n, int64_t index)
{
    return ch__dataset_shard(d, n, index, "");
}

/* data/batch.c -- batches: elements as the rows of one, and rows as elements.
 *
 * Rows are copied once, from where they are, a block of a file perhaps, into the batch. That is
 * most of what a pipeline does, so it is done on belts: one thread collects the elements of the
 * next batch while others copy.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/iterator.h"
#include "data/rows.h"
#include "file/block.h"

typedef struct batching {
    ch_cursor      base;
    ch_block_pool *pool; /* of the batches' memory */
} batching;

static ch_status batch_infer(ch_dataset *d)
{
    const Cohort__Batch *a = CH_ATTRS_OF(d, Cohort__Batch);
    const ch_dataset    *in = d->in[0];
    ch_status            rc;

    if (a->size < 1 || a->size > INT32_MAX)
        return ch__dataset_fail(d, "a size of %lld, want 1 to %d", (long long)a->size,
                                INT32_MAX);
    rc = ch__rows_spec(d, in, a->drop_remainder ? a->size : -1, a->ragged);
    d->same_rows = true;
    d->cardinality = ch__rows_batches(in->cardinality, a->size, a->drop_remainder);
    return rc;
}

static void batch_pull(ch_cursor *c, ch_item *i)
{
    const Cohort__Batch *a = CH_ATTRS(c, Cohort__Batch);

    ch__rows_pull(i, c->in[0], (int)a->size, a->drop_remainder);
}

static void batch_make(ch_cursor *c, ch_item *i)
{
    batching         *b = (batching *)c;
    const ch_rows_how how = {
        CH_ATTRS(c, Cohort__Batch)->ragged ? CH_ROWS_RAGGED : CH_ROWS_EQUAL, NULL, NULL};

    ch__rows_make(c->dataset, &how, b->pool, i);
}

static ch_status batch_open(ch_cursor *c)
{
    static const ch_belt_ops ops = {batch_pull, batch_make};
    batching                *b = (batching *)c;
    ch_status                rc = ch__block_pool_new(&b->pool);

    if (rc != CH_OK)
        return rc;
    return ch__belt_open(c, &ops, &(ch_belt_options){.want = 1});
}

static void batch_close(ch_cursor *c)
{
    ch__block_pool_unref(((batching *)c)->pool);
}

const ch_stage ch__stage_batch = {
    .name = "batch",
    .version = 1,
    .n_in = 1,
    .attrs = &cohort__batch__descriptor,
    .cursor_bytes = sizeof(batching),
    .infer = batch_infer,
    .open = batch_open,
    CH_BELTED,
    .close = batch_close,
};

ch_dataset *ch_dataset_batch(ch_dataset *d, int64_t size, const ch_batch_options *opt)
{
    Cohort__Batch a = COHORT__BATCH__INIT;

    a.size = size;
    if (opt != NULL) {
        a.drop_remainder = opt->drop_remainder;
        a.ragged = opt->ragged;
    }
    return ch__dataset_new(&ch__stage_batch,
                           &(ch_dataset_make){.attrs = &a.base, .n_in = 1, .in = &d});
}

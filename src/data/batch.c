/* data/batch.c -- the stage `batch`: joins elements as the rows of a larger element.
 *
 * Each row is copied once, from its present location (for example a block of a file) into the
 * batch. Copying is most of the work of many pipelines, so it runs on a workqueue: a thread
 * collects the elements of the next batch while other threads copy. data/rows.c does the work.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/rows.h"

static ch_rows_kind kind_of(const Cohort__Batch *a)
{
    return a->ragged ? CH_ROWS_RAGGED : CH_ROWS_EQUAL;
}

static ch_status batch_infer(ch_dataset *d)
{
    const Cohort__Batch *a = CH_ATTRS_OF(d, Cohort__Batch);
    const ch_dataset    *in = d->in[0];
    ch_status            rc;

    if (a->size < 1 || a->size > INT32_MAX)
        return ch__dataset_fail(d, "a size of %lld, want 1 to %d", (long long)a->size,
                                INT32_MAX);
    rc = ch__rows_spec(d, in, a->drop_remainder ? a->size : -1, kind_of(a));
    d->same_rows = true;
    d->cardinality = ch__rows_batches(in->cardinality, a->size, a->drop_remainder);
    return rc;
}

static void batch_pull(ch_cursor *c, ch_data_job *job)
{
    const Cohort__Batch *a = CH_ATTRS(c, Cohort__Batch);

    ch__rows_pull((ch_batching *)c, job, (int)a->size, a->drop_remainder);
}

static void batch_make(ch_cursor *c, ch_data_job *job)
{
    const ch_rows_how how = {.kind = kind_of(CH_ATTRS(c, Cohort__Batch))};

    ch__rows_make((ch_batching *)c, &how, job);
}

static ch_status batch_open(ch_cursor *c)
{
    static const ch_workqueue_ops ops = {batch_pull, batch_make};

    return ch__rows_open((ch_batching *)c, &ops, (int)CH_ATTRS(c, Cohort__Batch)->size);
}

const ch_stage ch__stage_batch = {
    .name = "batch",
    .version = 1,
    .traits = CH_DIVIDES,
    .n_in = 1,
    .attrs = &cohort__batch__descriptor,
    .cursor_bytes = sizeof(ch_batching),
    .infer = batch_infer,
    .open = batch_open,
    CH_BATCHED,
    .close = ch__rows_close,
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

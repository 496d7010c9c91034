/* data/distribute.c -- divides a dataset among workers.
 *
 * ch_dataset_distribute returns the dataset of a worker; strategies and programs call it. The
 * stage `split` (data/rebatch.c) cuts its batches for the replicas of the whole job. The shard
 * policy decides the division:
 *   DATA   each worker reads all data and keeps its own pieces of every batch
 *   FILE   each worker reads its own files and keeps all their elements
 *   HINT   each worker reads its own shard of every `shard` stage with n = CH_BY_HINT
 *   OFF    each worker reads all data and keeps all of it
 *   AUTO   FILE or DATA; data/divide.c chooses
 * data/divide.h rewrites the tree of stages. data/parts.c divides a dataset in another way, for
 * workers that fetch elements at their own pace.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/fault.h"
#include "base/log.h"
#include "data/call.h"
#include "data/divide.h"
#include "data/rows.h"
#include "data/stages.h"

/* ---- the size of batches ---- */

/* Returns true if `d` is a map with as many output rows as input rows. */
static bool maps_row_by_row(const ch_dataset *d)
{
    return d->stage == &ch__stage_map && d->graph != NULL && ch__call_keeps_rows(d);
}

/* Follows 5.2.1, except for maps: if a map keeps the number of rows, the size of a full batch
 * is still known behind it (doc/differences.md; 5.2.2 differs). So a short batch is cut in
 * the same way before and behind the map. */
int64_t ch_dataset_batch_size(const ch_dataset *d)
{
    int64_t size = d != NULL ? ch__rows_known(d) : -2;

    if (size >= 0)
        return size;
    if (size == -2)
        return CH_UNKNOWN;
    if (d->stage == &ch__stage_batch)
        return CH_ATTRS_OF(d, Cohort__Batch)->size;
    if (d->stage == &ch__stage_padded_batch)
        return CH_ATTRS_OF(d, Cohort__PaddedBatch)->size;
    if (!ch__dataset_has_trait(d, CH_KEEPS_BATCHES) && !maps_row_by_row(d))
        return CH_UNKNOWN;
    size = ch_dataset_batch_size(d->in[0]);
    for (int i = 1; i < d->n_in; i++)
        if (ch_dataset_batch_size(d->in[i]) != size)
            return CH_UNKNOWN;
    return size;
}

/* ---- the distribution ---- */

/* Returns the context with zero fields replaced by their defaults. */
static ch_input_context with_defaults(const ch_input_context *context)
{
    ch_input_context c = context != NULL ? *context : (ch_input_context){0};

    c.n_pipelines = c.n_pipelines == 0 ? 1 : c.n_pipelines;
    c.n_replicas = c.n_replicas == 0 ? c.n_pipelines : c.n_replicas;
    return c;
}

static ch_status check_context(const ch_input_context *c)
{
    if (c->n_pipelines < 1 || c->pipeline < 0 || c->pipeline >= c->n_pipelines)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "distributing a dataset: worker %d of %d: want an index from 0 to the "
                        "number of workers less 1",
                        c->pipeline, c->n_pipelines);
    if (c->n_replicas < 1 || c->n_replicas % c->n_pipelines != 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "distributing a dataset: %d replicas on %d workers; every worker must "
                        "have the same number of replicas",
                        c->n_replicas, c->n_pipelines);
    if (c->split != CH_SPLIT_NOMINAL && c->split != CH_SPLIT_EVEN)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "distributing a dataset: split is %d, want "
                        "CH_SPLIT_NOMINAL or CH_SPLIT_EVEN",
                        (int)c->split);
    return CH_OK;
}

/* Returns the index of a scalar component; -1: all components have rows. An element with a
 * scalar component cannot be cut. */
static int scalar_of(const ch_dataset *d)
{
    for (int i = 0; i < d->n_parts; i++)
        if (d->spec[i].shape.rank == 0)
            return i;
    return -1;
}

/* Returns an error if elements must be cut for several replicas of a worker but have a scalar
 * component. Elements that cannot be cut may only be divided among workers with a single
 * replica (8.6). */
static ch_status check_can_be_cut(const ch_dataset *d, const ch_input_context *c)
{
    int scalar = scalar_of(d);

    if (scalar < 0 || c->n_replicas == c->n_pipelines)
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT,
                    "distributing a dataset: component %d of its elements is a scalar and "
                    "cannot be cut for %d replicas; add a batch (ch_dataset_batch)",
                    scalar, c->n_replicas);
}

/* Returns an error if the order of elements may differ between workers. With policy DATA each
 * worker identifies its own pieces by their order. */
static ch_status check_order(const ch_dataset *d)
{
    if (!d->is_unordered)
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT,
                    "distributing a dataset: with CH_SHARD_DATA all workers must read the data "
                    "in the same order, but the dataset has unordered stages; make them "
                    "ordered, or divide the data by file (CH_SHARD_FILE)");
}

/* Cuts the batches of `d` for the replicas. `batch` is the size of a full batch; 0 or less: not
 * known. With `all`, the worker keeps all pieces, else only those of its own replicas. */
static ch_dataset *split(ch_dataset *d, const ch_input_context *c, int64_t batch, bool all)
{
    Cohort__Split a = COHORT__SPLIT__INIT;
    int           local = c->n_replicas / c->n_pipelines;

    a.batch = batch > 0 && c->split == CH_SPLIT_NOMINAL ? batch : 0;
    a.n = (uint32_t)c->n_replicas;
    a.first = (uint32_t)(c->pipeline * local);
    a.count = (uint32_t)local;
    a.all = all;
    return ch__dataset_new(&ch__stage_split,
                           &(ch_dataset_make){.attrs = &a.base, .n_in = 1, .in = &d});
}

/* Selects the share of the worker in the data that it reads: its pieces of each batch, or every
 * n-th element if elements are not batches (5.5.9). `d` is the original dataset. Takes
 * ownership of `divided`. */
static ch_dataset *select_share(const ch_dataset *d, ch_dataset *divided,
                                const ch_input_context *c, ch_shard_policy policy)
{
    if (c->n_replicas == 1)
        return divided;
    if (scalar_of(d) < 0)
        divided = split(divided, c, ch_dataset_batch_size(d), policy != CH_SHARD_DATA);
    else if (policy == CH_SHARD_DATA)
        divided = ch__dataset_shard(divided, c->n_pipelines, c->pipeline, "elements");
    return ch_dataset_prefetch(divided, c->n_replicas);
}

/* Logs the policy and its reason. If AUTO became DATA, logs a warning, once for each dataset,
 * because every worker then does unnecessary work that the program did not ask for. */
static void log_policy(ch_dataset *d, const ch_input_context *c, ch_shard_policy policy,
                       const char *why, const char *remedy)
{
    static const char *const name[] = {"OFF", "AUTO", "FILE", "DATA", "HINT"};
    bool is_wasteful = d->options.shard == CH_SHARD_AUTO && policy == CH_SHARD_DATA &&
                       c->n_pipelines > 1 &&
                       !atomic_exchange_explicit(&d->has_warned, true, memory_order_relaxed);

    ch__log(is_wasteful ? CH_LOG_WARNING : CH_LOG_INFO, "autoshard",
            "input of worker %d of %d: policy %s, because %s%s%s", c->pipeline, c->n_pipelines,
            name[policy + 1], why,
            is_wasteful ? "; every worker reads and maps all data and keeps only its share; "
                        : "",
            is_wasteful ? remedy : "");
}

ch_status ch_dataset_distribute(ch_dataset *d, const ch_input_context *context,
                                ch_dataset **out)
{
    ch_input_context c = with_defaults(context);
    ch_status        rc;

    if (d == NULL)
        return ch__fail_earlier(
            "distributing a dataset: the dataset is NULL, because an earlier call failed");
    if ((rc = ch__check_not_null("distributing a dataset", "out", out, NULL, NULL)) != CH_OK ||
        (rc = check_context(&c)) != CH_OK || (rc = check_can_be_cut(d, &c)) != CH_OK)
        return rc;
    ch_division     v = {.n = c.n_pipelines, .index = c.pipeline};
    ch_dataset     *divided = NULL;
    const char     *why;
    ch_shard_policy policy = ch__division_choose(&v, d, d->options.shard, &divided, &why);
    rc = policy == CH_SHARD_DATA && v.n > 1 ? check_order(d) : CH_OK;
    if (rc == CH_OK)
        rc = ch__divide(&v, d, policy, &divided);
    if (rc == CH_OK)
        log_policy(d, &c, policy, why, v.remedy);
    ch__division_free(&v);
    if (rc != CH_OK)
        return rc;
    divided = select_share(d, divided, &c, policy);
    if (divided == NULL)
        return ch__fail_earlier("distributing a dataset");
    *out = divided;
    return CH_OK;
}

/* ---- functions that create a dataset for each worker ---- */

ch_status ch_input_context_batch_size(const ch_input_context *context, int64_t global,
                                      int64_t *out)
{
    ch_input_context c = with_defaults(context);
    ch_status        rc = check_context(&c);

    if (rc == CH_OK)
        rc = ch__check_not_null("input_context_batch_size", "out", out, NULL, NULL);
    if (rc != CH_OK)
        return rc;
    if (global < 0 || global % c.n_replicas != 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "a global batch of %lld rows cannot be divided evenly over %d replicas",
                        (long long)global, c.n_replicas);
    *out = global / c.n_replicas;
    return CH_OK;
}

int ch_input_context_print(const ch_input_context *context, char *text, size_t size)
{
    ch_input_context c = with_defaults(context);

    return snprintf(text, text != NULL ? size : 0,
                    "InputContext(input pipeline id %d, total: %d)", c.pipeline, c.n_pipelines);
}

ch_status ch_dataset_from_function(ch_input_fn fn, void *arg, const ch_input_context *context,
                                   ch_dataset **out)
{
    ch_input_context c = with_defaults(context);
    int              n = c.n_workers > 0 ? c.n_workers : c.n_pipelines;
    int              worker = c.n_workers > 0 ? c.worker : c.pipeline;
    ch_status        rc = ch__check_not_null("dataset of a function", "out", out, NULL, NULL);
    uint64_t         mark;

    if (rc == CH_OK)
        rc = check_context(&c);
    if (rc != CH_OK)
        return rc;
    if (fn == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "dataset of worker %d of %d: the function is NULL",
                        worker, n);
    mark = ch__fail_mark();
    *out = fn(&c, arg);
    if (*out != NULL)
        return CH_OK;
    if (mark == ch__fail_mark())
        (void)ch__fail(CH_INVALID_ARGUMENT,
                       "it returned NULL without an error; call ch_fail to give the reason");
    return ch__fail_earlier("the function's dataset for worker %d of %d", worker, n);
}

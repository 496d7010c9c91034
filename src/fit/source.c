/* fit/source.c -- input data of any kind, read as batches for the replicas.
 *
 * Opens a dataset, arrays or an iterator as a ch_source, for the loops in fit.c and evaluate.c.
 * Arrays become a dataset of rows, which is shuffled and batched. If ch_array_options.is_direct
 * is set and the rows fit in one batch, there is no pipeline: the source returns the rows as
 * its only batch.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "fit/source.h"

#include "base/fault.h"
#include "base/mem.h"
#include "data/data.h"
#include "data/iterator.h"
#include "strategy/strategy.h"

bool ch__data_is_given(const ch_data *d)
{
    return d->dataset != NULL || d->iterator != NULL || d->n > 0 || d->array != NULL;
}

static ch_status check_data(const char *call, const ch_data *d)
{
    int kinds = (d->dataset != NULL) + (d->iterator != NULL) + (d->n > 0 || d->array != NULL);

    if (kinds == 0 && ch__dataset_was_not_made())
        return ch__fail_earlier("%s: there is no data, because a dataset could not be made",
                                call);
    if (kinds == 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: there is no data; give a dataset, arrays or an iterator", call);
    if (kinds > 1)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "%s: data of %d kinds is given, want 1: a dataset, arrays or an iterator", call,
            kinds);
    if (d->n < 0 || (d->n > 0) != (d->array != NULL))
        return ch__fail(CH_INVALID_ARGUMENT, "%s: the number of arrays is %d%s", call, d->n,
                        d->array == NULL ? ", but array is NULL" : "");
    return CH_OK;
}

/* ---- arrays ---- */

static ch_status check_arrays(const char *call, const ch_data *d)
{
    for (int i = 0; i < d->n; i++) {
        if (d->array[i] == NULL || ch_tensor_shape(d->array[i]).rank < 1)
            return ch__fail(CH_INVALID_ARGUMENT, "%s: array %d %s", call, i,
                            d->array[i] == NULL
                                ? "is NULL"
                                : "is a scalar and has no rows; want a rank of 1 or more");
        if (ch_tensor_shape(d->array[i]).dim[0] != ch_tensor_shape(d->array[0]).dim[0])
            return ch__fail(CH_INVALID_ARGUMENT,
                            "%s: arrays 0 and %d have %lld and %lld rows, want the same number",
                            call, i, (long long)ch_tensor_shape(d->array[0]).dim[0],
                            (long long)ch_tensor_shape(d->array[i]).dim[0]);
    }
    return CH_OK;
}

/* Makes a dataset of rows from the rows [from, to) of each array. */
static ch_status slice(const ch_data *d, int64_t from, int64_t to, ch_dataset **out)
{
    ch_tensor **part = ch__calloc((size_t)d->n, sizeof(ch_tensor *));
    ch_status   rc = part == NULL ? ch__fail_memory("arrays") : CH_OK;

    for (int i = 0; i < d->n && rc == CH_OK; i++)
        rc = ch_tensor_rows(d->array[i], from, to, &part[i]);
    if (rc == CH_OK) {
        *out = ch_dataset_slices(d->n, part, NULL);
        rc = *out == NULL ? ch__fail_earlier("arrays") : CH_OK;
    }
    for (int i = 0; part != NULL && i < d->n; i++)
        ch_tensor_unref(part[i]);
    ch__free(part);
    return rc;
}

/* Returns the number of rows of a share, rounded down. The small addend corrects the rounding
 * of the share: 1 - 0.8 is a little less than 0.2, but 0.2 of 10 rows must be 2. */
static int64_t rows_of(double share, int64_t rows)
{
    return (int64_t)(share * (double)rows + 1e-6);
}

/* Makes a dataset of batches from the chosen rows of the arrays. */
static ch_status make_batches(const char *call, const ch_data *d, const ch_array_options *how,
                              ch_dataset **out)
{
    int64_t     rows = ch_tensor_shape(d->array[0]).dim[0];
    int64_t     from = rows_of(how->from, rows), to = rows_of(how->to, rows);
    ch_dataset *x = NULL;
    ch_status   rc = CH_OK;

    if (rows > 0 && from == to)
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s: validation_split leaves none of %lld rows",
                      call, (long long)rows);
    if (rc == CH_OK)
        rc = slice(d, from, to, &x);
    if (rc != CH_OK)
        return rc;
    if (how->shuffles && to - from > 1)
        x = ch_dataset_shuffle(x, to - from, &(ch_shuffle_options){.seed = how->seed});
    *out = ch_dataset_batch(x, how->batch, NULL);
    return *out != NULL ? CH_OK
                        : ch__fail_earlier("%s: batches of %lld", call, (long long)how->batch);
}

/* ---- arrays that fit in one batch ---- */

/* Splits the rows of an array among n replicas, as the pipeline splits a batch of the nominal
 * size `batch`. All replicas get equal shares; the first batch % n replicas get a row more. A
 * batch with fewer rows fills the replicas in order. If `batch` is 0, no replica gets a row. */
static ch_status split_batch(ch_tensor *t, int64_t batch, int n, ch_value **out)
{
    ch_tensor **part = ch__calloc((size_t)n, sizeof(ch_tensor *));
    int64_t     rows = ch_tensor_shape(t).dim[0], at = 0;
    ch_status   rc = part == NULL ? ch__fail_memory("arrays") : CH_OK;

    for (int r = 0; r < n && rc == CH_OK; r++) {
        int64_t share = batch / n + (r < batch % n);
        int64_t end = at + share < rows ? at + share : rows;

        rc = ch_tensor_rows(t, at, end, &part[r]);
        at = end;
    }
    if (rc == CH_OK)
        rc = ch_value_new(n > 1 ? CH_PER_REPLICA : CH_PLAIN, n, part, out);
    for (int r = 0; part != NULL && r < n; r++)
        ch_tensor_unref(part[r]);
    ch__free(part);
    return rc;
}

/* Opens arrays as a source with a single batch. */
static ch_status open_whole(const ch_compiled *c, const ch_data *d, int64_t batch,
                            ch_source *out)
{
    ch_value **v = ch__calloc((size_t)d->n, sizeof(ch_value *));
    ch_status  rc = v == NULL ? ch__fail_memory("arrays") : CH_OK;

    for (int i = 0; i < d->n && rc == CH_OK; i++)
        rc = split_batch(d->array[i], batch, ch_strategy_local_replicas(c->strategy), &v[i]);
    if (rc == CH_OK)
        rc = ch_tuple_new(d->n, v, NULL, &out->whole);
    for (int i = 0; v != NULL && i < d->n; i++)
        ch_value_unref(v[i]);
    ch__free(v);
    out->steps = 1;
    return rc;
}

/* Returns true if all rows are used as one batch, without a pipeline. */
static bool is_whole(const ch_data *d, const ch_array_options *how)
{
    int64_t rows = ch_tensor_shape(d->array[0]).dim[0];

    return how->is_direct && rows > 0 && rows <= how->batch;
}

/* ---- all kinds ---- */

static ch_status open_iterator(const char *call, const ch_compiled *c, ch_iterator *it,
                               ch_source *out)
{
    ch_strategy *of = ch__iterator_strategy(it);

    if (of != c->strategy)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "%s: the data was distributed by %s, but the model belongs to %s; distribute the "
            "data with ch_model_strategy(model)",
            call, of != NULL ? ch_strategy_label(of) : "no strategy",
            ch_strategy_label(c->strategy));
    out->it = ch_iterator_ref(it);
    out->steps = ch_dataset_cardinality(it->dataset) == CH_INFINITE ? CH_INFINITE : CH_UNKNOWN;
    out->is_callers = true;
    return CH_OK;
}

ch_status ch__source_open(const char *call, const ch_compiled *c, const ch_data *d,
                          const ch_array_options *how, ch_source *out)
{
    ch_dataset *batches = NULL, *x;
    ch_status   rc = check_data(call, d);

    *out = (ch_source){.it = NULL};
    if (rc == CH_OK && d->iterator != NULL)
        return open_iterator(call, c, d->iterator, out);
    if (rc == CH_OK && d->dataset == NULL)
        rc = check_arrays(call, d);
    if (rc == CH_OK && d->dataset == NULL && is_whole(d, how))
        return open_whole(c, d, how->batch, out);
    if (rc == CH_OK && d->dataset == NULL)
        rc = make_batches(call, d, how, &batches);
    if (rc == CH_OK) {
        x = batches != NULL ? batches : d->dataset;
        out->steps = ch_dataset_cardinality(x);
        rc = ch_strategy_distribute_dataset(c->strategy, x, NULL, &out->it);
    }
    ch_dataset_unref(batches);
    return rc;
}

ch_status ch__source_check_end(const char *call, const ch_source *s, int64_t steps)
{
    if (steps > 0 || s->steps != CH_INFINITE)
        return CH_OK;
    return ch__fail(
        CH_INVALID_ARGUMENT,
        "%s: the data is infinite; set the number of steps in the options, or limit "
        "the data with ch_dataset_take",
        call);
}

ch_status ch__source_restart(ch_source *s)
{
    if (!s->was_read)
        return CH_OK;
    s->was_read = false;
    return s->whole != NULL ? CH_OK : ch_iterator_restart(s->it);
}

ch_status ch__source_next(ch_source *s, ch_tuple **out)
{
    bool      is_first = !s->was_read;
    ch_status rc;

    *out = NULL;
    s->was_read = true;
    if (s->whole != NULL) {
        *out = is_first ? ch_tuple_ref(s->whole) : NULL;
        return CH_OK;
    }
    rc = ch_iterator_next(s->it, out);
    if (rc != CH_OK || *out != NULL || !is_first || !s->is_callers)
        return rc;
    rc = ch_iterator_restart(s->it);
    return rc == CH_OK ? ch_iterator_next(s->it, out) : rc;
}

/* Makes a batch like `whole` in which no replica has a row. */
static ch_status whole_without_rows(const ch_tuple *whole, ch_tuple **out)
{
    int        n = ch_tuple_count(whole);
    ch_value **v = ch__calloc((size_t)n, sizeof(ch_value *));
    ch_status  rc = v == NULL ? ch__fail_memory("arrays") : CH_OK;

    for (int i = 0; i < n && rc == CH_OK; i++)
        rc = split_batch(ch_value_at(ch_tuple_at(whole, i), 0), 0,
                         ch_value_count(ch_tuple_at(whole, i)), &v[i]);
    if (rc == CH_OK)
        rc = ch_tuple_new(n, v, NULL, out);
    for (int i = 0; v != NULL && i < n; i++)
        ch_value_unref(v[i]);
    ch__free(v);
    return rc;
}

ch_status ch__source_no_rows(ch_source *s, ch_tuple **out)
{
    const ch_tensor_spec *spec = NULL;
    int                   n;

    *out = NULL;
    if (s->whole != NULL)
        return whole_without_rows(s->whole, out);
    n = ch_iterator_element_spec(s->it, &spec);
    for (int i = 0; i < n; i++)
        for (int k = 1; k < spec[i].shape.rank; k++)
            if (spec[i].shape.dim[k] < 0)
                return CH_OK;
    return ch__iterator_no_rows(s->it, out);
}

void ch__source_close(ch_source *s)
{
    ch_iterator_unref(s->it);
    ch_tuple_unref(s->whole);
    *s = (ch_source){.it = NULL};
}

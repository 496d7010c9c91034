/* data/pad.c -- batches of elements of unequal sizes: padded_batch, bucket_by_length.
 *
 * Both stages join elements with ch__rows_join (data/rows.h), which pads. `padding` is the
 * cursor of padded_batch; it has a workqueue, which joins batches in worker threads.
 * `bucketing` is the cursor of bucket_by_length; it collects elements in buckets by length and
 * joins a bucket when it is full.
 *
 * Invariants:
 *   1. infer checks the attributes, because a description may be untrusted. The cursors rely on
 *      these checks.
 *   2. A bucket has fewer elements than its batch size, except while it is joined.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/iterator.h"
#include "data/rows.h"

/* Sets *out to the padding that the attributes describe. Its shapes are allocated in the arena;
 * `values` is borrowed. `n_shapes` 0: no shapes are given; a size that is not fixed is padded
 * to the largest of the batch. */
static ch_status pad_how(ch_arena *a, const ch_dataset *in, size_t n_shapes,
                         Cohort__Sizes *const *shapes, const double *values, ch_rows_how *out)
{
    ch_shape *shape = ch__arena_alloc(a, ((size_t)in->n_parts + 1) * sizeof(*shape));

    if (shape == NULL)
        return ch__fail_memory("padding");
    for (int i = 0; i < in->n_parts; i++)
        shape[i] = n_shapes > 0 ? ch_shape_make((int)shapes[i]->n_at, shapes[i]->at)
                                : in->spec[i].shape;
    *out = (ch_rows_how){CH_ROWS_PADDED, shape, values};
    return CH_OK;
}

static ch_status check_values(const ch_dataset *d, size_t n_values, const double *values)
{
    const ch_dataset *in = d->in[0];

    if (n_values > 0 && n_values != (size_t)in->n_parts)
        return ch__dataset_fail(
            d, "padding values: wrong number (got %zu, want %d, one for each component)",
            n_values, in->n_parts);
    for (size_t i = 0; i < n_values; i++)
        if (in->spec[i].dtype != CH_STR && !ch__dtype_holds(in->spec[i].dtype, values[i]))
            return ch__dataset_fail(
                d, "component %zu: the padding value %g is out of range of its dtype %s", i,
                values[i], ch_dtype_name(in->spec[i].dtype));
    return CH_OK;
}

/* ---- padded_batch ---- */

typedef struct padding {
    ch_batching base;
    ch_arena    arena; /* memory of how.shape */
    ch_rows_how how;
} padding;

static ch_status check_shapes(const ch_dataset *d, const Cohort__PaddedBatch *a)
{
    const ch_dataset *in = d->in[0];

    if (a->n_shapes > 0 && a->n_shapes != (size_t)in->n_parts)
        return ch__dataset_fail(
            d, "padded shapes: wrong number (got %zu, want %d, one for each component)",
            a->n_shapes, in->n_parts);
    for (size_t i = 0; i < a->n_shapes; i++) {
        const Cohort__Sizes *s = a->shapes[i];

        if (s->n_at != (size_t)in->spec[i].shape.rank)
            return ch__dataset_fail(d, "component %zu has %d axes, its padded shape has %zu", i,
                                    in->spec[i].shape.rank, s->n_at);
        for (size_t k = 0; k < s->n_at; k++)
            if (s->at[k] < -1 || s->at[k] > INT32_MAX ||
                (s->at[k] >= 0 && s->at[k] < in->spec[i].shape.dim[k]))
                return ch__dataset_fail(
                    d,
                    "component %zu: cannot pad to %lld on axis %zu; want -1, or at least the "
                    "size of the component",
                    i, (long long)s->at[k], k);
    }
    return check_values(d, a->n_values, a->values);
}

static ch_status padded_infer(ch_dataset *d)
{
    const Cohort__PaddedBatch *a = CH_ATTRS_OF(d, Cohort__PaddedBatch);
    const ch_dataset          *in = d->in[0];
    ch_status                  rc = check_shapes(d, a);

    if (rc == CH_OK && (a->size < 1 || a->size > INT32_MAX))
        rc = ch__dataset_fail(d, "size is %lld, want 1 to %d", (long long)a->size, INT32_MAX);
    if (rc == CH_OK)
        rc = ch__rows_spec(d, in, a->drop_remainder ? a->size : -1, CH_ROWS_PADDED);
    for (size_t i = 0; rc == CH_OK && i < a->n_shapes; i++)
        for (size_t k = 0; k < a->shapes[i]->n_at; k++)
            if (d->spec[i].shape.dim[k + 1] < 0)
                d->spec[i].shape.dim[k + 1] = a->shapes[i]->at[k];
            else if (a->shapes[i]->at[k] >= 0)
                d->spec[i].shape.dim[k + 1] = a->shapes[i]->at[k];
    d->same_rows = true;
    if (rc == CH_OK)
        d->cardinality = ch__rows_batches(in->cardinality, a->size, a->drop_remainder);
    return rc;
}

static void padded_pull(ch_cursor *c, ch_data_job *job)
{
    const Cohort__PaddedBatch *a = CH_ATTRS(c, Cohort__PaddedBatch);

    ch__rows_pull((ch_batching *)c, job, (int)a->size, a->drop_remainder);
}

static void padded_make(ch_cursor *c, ch_data_job *job)
{
    padding *p = (padding *)c;

    ch__rows_make(&p->base, &p->how, job);
}

static ch_status padded_open(ch_cursor *c)
{
    static const ch_workqueue_ops ops = {padded_pull, padded_make};
    const Cohort__PaddedBatch    *a = CH_ATTRS(c, Cohort__PaddedBatch);
    padding                      *p = (padding *)c;
    ch_status rc = pad_how(&p->arena, c->dataset->in[0], a->n_shapes, a->shapes,
                           a->n_values > 0 ? a->values : NULL, &p->how);

    return rc == CH_OK ? ch__rows_open(&p->base, &ops, (int)a->size) : rc;
}

static void padded_close(ch_cursor *c)
{
    ch__arena_drop(&((padding *)c)->arena);
    ch__rows_close(c);
}

const ch_stage ch__stage_padded_batch = {
    .name = "padded_batch",
    .version = 1,
    .traits = CH_DIVIDES,
    .n_in = 1,
    .attrs = &cohort__padded_batch__descriptor,
    .cursor_bytes = sizeof(padding),
    .infer = padded_infer,
    .open = padded_open,
    CH_BATCHED,
    .close = padded_close,
};

/* Sets the shapes of the message. Their memory belongs to the arena. */
static ch_status shapes_message(ch_arena *a, int n, const ch_shape *shape,
                                Cohort__PaddedBatch *m)
{
    m->shapes = ch__arena_alloc(a, ((size_t)n + 1) * sizeof(*m->shapes));
    if (m->shapes == NULL)
        return ch__fail_memory("padded_batch");
    for (int i = 0; i < n; i++) {
        Cohort__Sizes *s = ch__arena_alloc(a, sizeof(*s));

        if (s == NULL)
            return ch__fail_memory("padded_batch");
        if (shape[i].rank < 0 || shape[i].rank > CH_MAX_RANK)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "padded_batch: a padded shape has the invalid rank %d",
                            shape[i].rank);
        cohort__sizes__init(s);
        s->n_at = (size_t)shape[i].rank;
        s->at = ch__arena_copy(a, shape[i].dim, sizeof(shape[i].dim));
        if (s->at == NULL)
            return ch__fail_memory("padded_batch");
        m->shapes[m->n_shapes++] = s;
    }
    return CH_OK;
}

ch_dataset *ch_dataset_padded_batch(ch_dataset *d, int64_t size, const ch_pad_options *opt)
{
    Cohort__PaddedBatch a = COHORT__PADDED_BATCH__INIT;
    ch_arena            arena = {0};
    ch_status           rc = CH_OK;

    if (d == NULL)
        return NULL;
    a.size = size;
    a.drop_remainder = opt != NULL && opt->drop_remainder;
    if (opt != NULL && opt->shape != NULL)
        rc = shapes_message(&arena, d->n_parts, opt->shape, &a);
    if (opt != NULL && opt->value != NULL) {
        a.values = ch__arena_copy(&arena, opt->value, (size_t)d->n_parts * sizeof(double));
        a.n_values = a.values != NULL ? (size_t)d->n_parts : 0;
        if (a.values == NULL)
            rc = ch__fail_memory("padded_batch");
    }
    d = ch__dataset_new(&ch__stage_padded_batch,
                        &(ch_dataset_make){.rc = rc, .attrs = &a.base, .n_in = 1, .in = &d});
    ch__arena_drop(&arena);
    return d;
}

/* ---- bucket_by_length ---- */

typedef struct bucketing {
    ch_cursor      base;
    ch_block_pool *pool;      /* memory of the batches */
    ch_arena       arena;     /* memory of `shape` */
    ch_rows_how    how;       /* how to join a bucket */
    ch_shape      *shape;     /* how.shape; changed for each batch if pad_to_boundary is set */
    bool           has_ended; /* the input has ended */
    int            n_buckets;
    ch_elements   *bucket; /* n_buckets; the elements collected so far */
} bucketing;

static ch_status bucket_infer(ch_dataset *d)
{
    const Cohort__Bucket *a = CH_ATTRS_OF(d, Cohort__Bucket);
    const ch_dataset     *in = d->in[0];
    ch_status             rc = check_values(d, a->n_values, a->values);

    if (rc != CH_OK)
        return rc;
    if (a->component >= (uint32_t)in->n_parts || in->spec[a->component].shape.rank == 0)
        return ch__dataset_fail(
            d, "component %u does not exist or is a scalar, so it has no length", a->component);
    if (a->n_batch_sizes != a->n_boundaries + 1)
        return ch__dataset_fail(
            d,
            "%zu boundaries and %zu batch sizes; want one batch size more than "
            "boundaries",
            a->n_boundaries, a->n_batch_sizes);
    for (size_t i = 0; i < a->n_boundaries; i++)
        if (a->boundaries[i] < 0 || (i > 0 && a->boundaries[i] <= a->boundaries[i - 1]))
            return ch__dataset_fail(d, "boundary %lld: want boundaries of 0 or more that rise",
                                    (long long)a->boundaries[i]);
    for (size_t i = 0; i < a->n_batch_sizes; i++)
        if (a->batch_sizes[i] < 1 || a->batch_sizes[i] > INT32_MAX)
            return ch__dataset_fail(d, "batch size %lld is out of range, want 1 or more",
                                    (long long)a->batch_sizes[i]);
    rc = ch__rows_spec(d, in, -1, CH_ROWS_PADDED);
    d->same_rows = true;
    d->cardinality = in->cardinality == 0 ? 0 : CH_UNKNOWN;
    return rc;
}

static ch_status bucket_open(ch_cursor *c)
{
    const Cohort__Bucket *a = CH_ATTRS(c, Cohort__Bucket);
    bucketing            *x = (bucketing *)c;
    const ch_dataset     *in = c->dataset->in[0];
    ch_status             rc = ch__block_pool_new(&x->pool);

    x->bucket = ch__calloc(a->n_batch_sizes, sizeof(*x->bucket));
    x->shape = ch__arena_alloc(&x->arena, ((size_t)in->n_parts + 1) * sizeof(*x->shape));
    if (rc != CH_OK || x->bucket == NULL || x->shape == NULL)
        return ch__fail_memory("bucket");
    x->n_buckets = (int)a->n_batch_sizes;
    for (int i = 0; i < in->n_parts; i++)
        x->shape[i] = in->spec[i].shape;
    x->how = (ch_rows_how){a->no_padding ? CH_ROWS_EQUAL : CH_ROWS_PADDED, x->shape,
                           a->n_values > 0 ? a->values : NULL};
    return CH_OK;
}

/* Returns the bucket of an element: the first bucket with a boundary above the element's
 * length. */
static int bucket_of(const Cohort__Bucket *a, const ch_element *e)
{
    int64_t length = e->part[a->component].shape.dim[0];
    size_t  i = 0;

    while (i < a->n_boundaries && length >= a->boundaries[i])
        i++;
    return (int)i;
}

/* Joins the elements of bucket `at` into a batch, and empties the bucket. */
static ch_status join_bucket(bucketing *x, int at, ch_element **out)
{
    const Cohort__Bucket *a = CH_ATTRS(&x->base, Cohort__Bucket);
    ch_elements          *b = &x->bucket[at];
    ch_status             rc;

    if (a->pad_to_boundary)
        x->shape[a->component].dim[0] = at < (int)a->n_boundaries ? a->boundaries[at] - 1 : -1;
    rc = ch__rows_join(x->base.dataset, &x->how, b->n, b->at, x->pool, out);
    ch__elements_empty(b);
    return rc;
}

/* Returns the next bucket that is not empty, after the input has ended. *out stays NULL if
 * there is none, or if the remainder is dropped. */
static ch_status join_rest(bucketing *x, ch_element **out)
{
    bool drop = CH_ATTRS(&x->base, Cohort__Bucket)->drop_remainder;

    for (int i = 0; i < x->n_buckets; i++) {
        if (x->bucket[i].n > 0 && !drop)
            return join_bucket(x, i, out);
        ch__elements_empty(&x->bucket[i]);
    }
    return CH_OK;
}

static ch_status bucket_next(ch_cursor *c, ch_element **out)
{
    const Cohort__Bucket *a = CH_ATTRS(c, Cohort__Bucket);
    bucketing            *x = (bucketing *)c;

    while (!x->has_ended) {
        ch_element  *e = NULL;
        ch_elements *b;
        ch_status    rc = ch__cursor_next(c->in[0], &e);

        if (rc != CH_OK)
            return ch__error_between(rc);
        if (e == NULL) {
            x->has_ended = true;
            break;
        }
        b = &x->bucket[bucket_of(a, e)];
        if ((rc = ch__elements_add(b, e, "bucket")) != CH_OK)
            return ch__error_between(rc);
        if (b->n == a->batch_sizes[b - x->bucket])
            return join_bucket(x, (int)(b - x->bucket), out);
    }
    return join_rest(x, out);
}

static ch_status bucket_rewind(ch_cursor *c)
{
    bucketing *x = (bucketing *)c;

    for (int i = 0; i < x->n_buckets; i++)
        ch__elements_empty(&x->bucket[i]);
    x->has_ended = false;
    return ch__rewind_inputs(c);
}

static void bucket_save(ch_cursor *c, ch_saver *s)
{
    bucketing *x = (bucketing *)c;

    ch__save_int(s, x->has_ended);
    for (int i = 0; i < x->n_buckets; i++)
        ch__save_elements(s, &x->bucket[i]);
    ch__save_inputs(c, s);
}

static ch_status bucket_load(ch_cursor *c, ch_loader *l)
{
    const Cohort__Bucket *a = CH_ATTRS(c, Cohort__Bucket);
    bucketing            *x = (bucketing *)c;
    ch_status             rc = CH_OK;

    x->has_ended = ch__load_int(l, 0, 1) != 0;
    for (int i = 0; i < x->n_buckets && rc == CH_OK; i++)
        rc = ch__load_elements(l, a->batch_sizes[i] - 1, c->dataset->in[0], &x->bucket[i]);
    return rc == CH_OK ? ch__load_inputs(c, l) : rc;
}

static void bucket_close(ch_cursor *c)
{
    bucketing *x = (bucketing *)c;

    for (int i = 0; i < x->n_buckets; i++)
        ch__elements_drop(&x->bucket[i]);
    ch__free(x->bucket);
    ch__block_pool_unref(x->pool);
    ch__arena_drop(&x->arena);
}

const ch_stage ch__stage_bucket = {
    .name = "bucket",
    .version = 1,
    .traits = CH_DIVIDES,
    .n_in = 1,
    .attrs = &cohort__bucket__descriptor,
    .cursor_bytes = sizeof(bucketing),
    .infer = bucket_infer,
    .open = bucket_open,
    .next = bucket_next,
    .rewind = bucket_rewind,
    .save = bucket_save,
    .load = bucket_load,
    .close = bucket_close,
};

ch_dataset *ch_dataset_bucket_by_length(ch_dataset *d, int component, int n,
                                        const int64_t *boundary, const int64_t *batch_size,
                                        const ch_bucket_options *opt)
{
    static const ch_bucket_options none;
    Cohort__Bucket                 a = COHORT__BUCKET__INIT;
    ch_arena                       arena = {0};
    ch_status                      rc = CH_OK;

    if (d == NULL)
        return NULL;
    if (n < 0 || (n > 0 && boundary == NULL) || batch_size == NULL) {
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "bucket: %d boundaries%s%s; want n boundaries and n + 1 batch sizes", n,
                      n > 0 && boundary == NULL ? ", but their array is NULL" : "",
                      batch_size == NULL ? ", but the batch sizes are NULL" : "");
        return ch__dataset_new(&ch__stage_bucket,
                               &(ch_dataset_make){.rc = rc, .n_in = 1, .in = &d});
    }
    opt = opt != NULL ? opt : &none;
    a.component = (uint32_t)component;
    a.drop_remainder = opt->drop_remainder;
    a.no_padding = opt->no_padding;
    a.pad_to_boundary = opt->pad_to_boundary;
    a.n_boundaries = (size_t)n;
    a.n_batch_sizes = a.n_boundaries + 1;
    a.boundaries = ch__arena_copy(&arena, boundary, a.n_boundaries * sizeof(*boundary));
    a.batch_sizes = ch__arena_copy(&arena, batch_size, a.n_batch_sizes * sizeof(*batch_size));
    if (opt->value != NULL) {
        a.n_values = (size_t)d->n_parts;
        a.values = ch__arena_copy(&arena, opt->value, a.n_values * sizeof(double));
    }
    if ((a.boundaries == NULL && a.n_boundaries > 0) || a.batch_sizes == NULL ||
        (opt->value != NULL && a.values == NULL))
        rc = ch__fail_memory("bucket");
    d = ch__dataset_new(&ch__stage_bucket,
                        &(ch_dataset_make){.rc = rc, .attrs = &a.base, .n_in = 1, .in = &d});
    ch__arena_drop(&arena);
    return d;
}

/* graph/result_set.c -- result sets: the memory of the results of a run, which later runs
 * reuse.
 *
 * A ch_result_set has the tuple, values, tensors and buffers of the results of a prepared
 * graph. graph/run.c gets a set for each run and returns its tuple to the program.
 *
 * Invariants:
 *   1. Every object of a result set (tuple, values, tensors, buffers) is reference counted by
 *      itself. When the count of an object reaches 0, the object decrements n_held. When n_held
 *      reaches 0, the set returns to the pool. So a run with known shapes allocates no results.
 *   2. A result set in use holds a reference to its ch_prepared. A result set in the pool does
 *      not.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/function.h"

/* The results of a run. */
typedef struct ch_result_set {
    struct ch_result_set *next;
    ch_prepared          *prepared; /* owner of the pool */
    atomic_int            n_held;   /* number of objects of the set that are still referenced */
    ch_tuple             *tuple;
    ch_value            **value;  /* [output] */
    ch_tensor            *tensor; /* [replica * n_out + output] */
    ch_buffer            *buffer; /* same order */
} ch_result_set;

static void result_set_free(ch_result_set *k)
{
    ch_prepared *p = k->prepared;

    for (int i = 0; k->buffer != NULL && i < p->n_local * p->n_out; i++)
        if (k->buffer[i].data != NULL)
            ch__device_free(k->buffer[i].device, k->buffer[i].data, k->buffer[i].bytes);
    for (int i = 0; k->value != NULL && i < p->n_out; i++)
        ch__free_aligned(k->value[i]);
    for (int i = 0; k->tuple != NULL && i < p->n_out; i++)
        ch__free(k->tuple->leaf[i].name);
    ch__free_aligned(k->tuple);
    ch__free(k->value);
    ch__free_aligned(k->tensor);
    ch__free_aligned(k->buffer);
    ch__free_aligned(k);
}

/* Called when an object of the set has no more references. */
static void result_set_release(ch_result_set *k)
{
    ch_prepared *p = k->prepared;

    if (atomic_fetch_sub_explicit(&k->n_held, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_lock(&p->lock);
    k->next = p->free_result_sets;
    p->free_result_sets = k;
    pthread_mutex_unlock(&p->lock);
    ch__prepared_unref(p);
}

static void recycle_buffer(ch_buffer *b)
{
    result_set_release(b->arg);
}

static void recycle_tensor(ch_tensor *t)
{
    ch_result_set *k = t->home;

    ch__buffer_unref(t->buffer);
    result_set_release(k);
}

static void recycle_value(ch_value *v)
{
    ch_result_set *k = v->home;

    for (int i = 0; i < v->n; i++)
        ch_tensor_unref(v->tensor[i]);
    result_set_release(k);
}

static void recycle_tuple(ch_tuple *t)
{
    ch_result_set *k = t->home;

    for (int i = 0; i < t->n; i++)
        ch_value_unref(t->leaf[i].value);
    result_set_release(k);
}

static ch_status fill_tensor(ch_result_set *k, int r, int o)
{
    ch_prepared *p = k->prepared;
    ch_shape     shape = p->out[p->variant[r] * p->n_out + o];
    ch_dtype     dtype = p->graph->output[o].node->dtype;
    ch_buffer   *b = &k->buffer[r * p->n_out + o];
    ch_tensor   *t = &k->tensor[r * p->n_out + o];

    b->bytes = (size_t)ch_shape_count(shape) * ch_dtype_bytes(dtype);
    b->device = p->device[r * p->n_cores];
    b->data = ch__device_alloc(b->device, b->bytes);
    if (b->data == NULL)
        return ch__fail(CH_RESOURCE_EXHAUSTED, "result %d of %s: no memory for %zu bytes", o,
                        p->graph->name, b->bytes);
    b->release = recycle_buffer;
    b->arg = k;
    t->dtype = dtype;
    t->shape = shape;
    t->contiguous = true;
    ch__strides(t->shape, t->stride);
    t->data = b->data;
    t->buffer = b;
    t->recycle = recycle_tensor;
    t->home = k;
    return CH_OK;
}

static ch_status fill_value(ch_result_set *k, int o)
{
    ch_prepared *p = k->prepared;
    const char  *name = p->graph->output[o].name;
    ch_value    *v = ch__alloc_aligned(sizeof(*v) + (size_t)p->n_local * sizeof(v->tensor[0]));

    k->value[o] = v;
    k->tuple->leaf[o].value = v;
    if (v == NULL || (name != NULL && (k->tuple->leaf[o].name = ch__strdup(name)) == NULL))
        return ch__fail_memory("results");
    v->kind = p->kind;
    v->n = p->n_local;
    v->recycle = recycle_value;
    v->home = k;
    for (int r = 0; r < p->n_local; r++)
        v->tensor[r] = &k->tensor[r * p->n_out + o];
    return CH_OK;
}

/* Allocates a result set. The objects are CH_ALIGN-aligned, so that counters of different sets
 * are not in the same cache line: runs on other devices would slow each other down. */
static ch_status result_set_new(ch_prepared *p, ch_result_set **out)
{
    size_t         n = (size_t)(p->n_local * p->n_out) + 1;
    ch_result_set *k = ch__alloc_aligned(sizeof(*k));
    ch_status      rc = CH_OK;

    if (k == NULL)
        return ch__fail_memory("results");
    k->prepared = p;
    k->tuple =
        ch__alloc_aligned(sizeof(*k->tuple) + (size_t)p->n_out * sizeof(k->tuple->leaf[0]));
    k->value = ch__calloc((size_t)p->n_out + 1, sizeof(*k->value));
    k->tensor = ch__alloc_aligned(n * sizeof(*k->tensor));
    k->buffer = ch__alloc_aligned(n * sizeof(*k->buffer));
    if (k->tuple == NULL || k->value == NULL || k->tensor == NULL || k->buffer == NULL)
        rc = ch__fail_memory("results");
    for (int o = 0; o < p->n_out && rc == CH_OK; o++) {
        rc = fill_value(k, o);
        for (int r = 0; r < p->n_local && rc == CH_OK; r++)
            rc = fill_tensor(k, r, o);
    }
    if (rc != CH_OK) {
        result_set_free(k);
        return rc;
    }
    k->tuple->n = p->n_out;
    k->tuple->recycle = recycle_tuple;
    k->tuple->home = k;
    *out = k;
    return CH_OK;
}

ch_status ch__result_set_get(ch_prepared *p, ch_result_set **out)
{
    int            n = p->n_local * p->n_out;
    ch_result_set *k;
    ch_status      rc;

    pthread_mutex_lock(&p->lock);
    k = p->free_result_sets;
    if (k != NULL)
        p->free_result_sets = k->next;
    pthread_mutex_unlock(&p->lock);
    if (k == NULL && (rc = result_set_new(p, &k)) != CH_OK)
        return rc;
    atomic_store(&k->n_held, 1 + p->n_out + 2 * n);
    atomic_store(&k->tuple->refs, 1);
    for (int o = 0; o < p->n_out; o++)
        atomic_store(&k->value[o]->refs, 1);
    for (int i = 0; i < n; i++) {
        atomic_store(&k->tensor[i].refs, 1);
        atomic_store(&k->buffer[i].refs, 1);
    }
    ch__prepared_ref(p);
    *out = k;
    return CH_OK;
}

ch_tuple *ch__result_set_tuple(ch_result_set *k)
{
    return k->tuple;
}

ch_tensor *ch__result_set_tensor(ch_result_set *k, int replica, int output)
{
    return &k->tensor[replica * k->prepared->n_out + output];
}

void *ch__result_set_data(ch_result_set *k, int replica, int output)
{
    return ch__result_set_tensor(k, replica, output)->data;
}

void ch__result_sets_free(ch_prepared *p)
{
    while (p->free_result_sets != NULL) {
        ch_result_set *k = p->free_result_sets;

        p->free_result_sets = k->next;
        result_set_free(k);
    }
}

/* graph/prepared.c -- prepared graphs: programs for given input shapes and devices, and their
 * result sets.
 *
 * graph/function.c creates a ch_prepared and caches it. graph/run.c uses it and gets a result
 * set from it for each run.
 *
 * Invariants:
 *   1. A result set in use holds a reference to its ch_prepared. A result set in the pool does
 *      not.
 *   2. Every object of a result set (tuple, values, tensors, buffers) is reference counted by
 *      itself. When the count of an object reaches 0, the object decrements n_held. When n_held
 *      reaches 0, the set returns to the pool. So a run with known shapes allocates no results.
 *   3. Programs, shapes, devices and variants do not change after ch__prepared_new.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/config.h"
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

/* ---- result sets ---- */

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
    ch_prepared   *p = k->prepared;
    const ch_node *n = p->program[p->variant[r]]->graph->output[o].node;
    ch_buffer     *b = &k->buffer[r * p->n_out + o];
    ch_tensor     *t = &k->tensor[r * p->n_out + o];

    b->bytes = (size_t)ch__bytes(n);
    b->device = p->device[r];
    b->data = ch__device_alloc(b->device, b->bytes);
    if (b->data == NULL)
        return ch__fail(CH_RESOURCE_EXHAUSTED, "result %d of %s: no memory for %zu bytes", o,
                        p->graph->name, b->bytes);
    b->release = recycle_buffer;
    b->arg = k;
    t->dtype = n->dtype;
    t->shape = ch__shape(n);
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

/* ---- prepared graphs ---- */

/* Sets variant[r]. Replicas with equal shapes share a variant. */
static void find_variants(ch_prepared *p)
{
    for (int r = 0; r < p->n_local; r++) {
        int same = 0;

        while (same < r && memcmp(&p->shape[same * p->n_in], &p->shape[r * p->n_in],
                                  (size_t)p->n_in * sizeof(ch_shape)) != 0)
            same++;
        p->variant[r] = same < r ? p->variant[same] : p->n_variants++;
    }
}

/* Sets variant[v] to the specialised graph of each variant. */
static ch_status specialise(ch_prepared *p, ch_graph **variant)
{
    const ch_shape **shape = ch__calloc((size_t)p->n_variants, sizeof(*shape));
    ch_signature     sig = {.n_replicas = p->n_local,
                            .n_variants = p->n_variants,
                            .variant = p->variant,
                            .shape = shape};
    ch_status        rc;

    if (shape == NULL)
        return ch__fail_memory("a program");
    for (int r = 0; r < p->n_local; r++)
        shape[p->variant[r]] = &p->shape[r * p->n_in];
    rc = ch__specialise(p->graph, &sig, variant);
    ch__free(shape);
    return rc;
}

static int most_threads(const ch_prepared *p)
{
    int most = 1;

    for (int r = 0; r < p->n_local; r++)
        if (ch_device_threads(p->device[r]) > most)
            most = ch_device_threads(p->device[r]);
    return most;
}

/* Sets shared[i] for resources that have the same storage on all replicas, and *any if there is
 * such a resource. Comparing two replicas is enough: storage is shared by all replicas or by
 * none. */
static ch_status find_shared(const ch_prepared *p, const ch_run *run, bool *shared, bool *any)
{
    for (int i = 0; i < p->graph->n_resources && p->n_local > 1; i++) {
        void *storage[2];

        if (ch__is_borrowed(&p->graph->resource[i]))
            continue; /* read only, so no barrier is needed before a write */
        for (int r = 0; r < 2; r++) {
            ch_status rc =
                run->ops->resource(run->owner, &p->graph->resource[i], r, &storage[r]);

            if (rc != CH_OK)
                return ch__fail_at(rc, "%s", run->function->name);
        }
        shared[i] = storage[0] == storage[1];
        *any |= shared[i];
    }
    return CH_OK;
}

static ch_status make_programs(ch_prepared *p, const ch_run *run)
{
    ch_graph      **variant = ch__calloc((size_t)p->n_variants, sizeof(*variant));
    bool           *shared = ch__calloc((size_t)p->graph->n_resources + 1, sizeof(*shared));
    bool            any = false;
    ch_plan_options opt = {.keep_all = p->watched, .threads = most_threads(p)};
    ch_status       rc = variant == NULL || shared == NULL ? ch__fail_memory("a program")
                                                           : specialise(p, variant);

    if (rc == CH_OK)
        rc = find_shared(p, run, shared, &any);
    opt.shared = any ? shared : NULL;
    for (int i = 0; i < p->n_variants && rc == CH_OK; i++)
        rc = ch__program_new(variant[i], &opt, &p->program[i]);
    for (int r = 0; r < p->n_local && rc == CH_OK; r++)
        rc = ch__instance_new(p->program[p->variant[r]], &p->instance[r]);
    for (int i = 0; variant != NULL && i < p->n_variants; i++)
        ch_graph_unref(variant[i]);
    ch__free(variant);
    ch__free(shared);
    return rc;
}

/* Copies the shapes of the inputs, with zeros after their rank, so that equal shapes have equal
 * bytes. */
static void copy_shapes(ch_prepared *p, const ch_args *a)
{
    for (int i = 0; i < a->n_local * a->n_in; i++)
        p->shape[i] = ch_shape_make(a->shape[i].rank, a->shape[i].dim);
}

/* Sets live_input: for each output that is as long as flat values, the input with these
 * values. */
static void find_live_inputs(ch_prepared *p)
{
    for (int o = 0; o < p->n_out; o++) {
        const ch_dims *out = &p->graph->output[o].node->dims;

        p->live_input[o] = -1;
        for (int i = 0; i < p->n_in && out->rank > 0 && out->dim[0].sym != 0; i++) {
            const ch_input_attrs *in = ch__attrs(p->graph->input[i]);

            if (in->splits != 0 && in->dims.dim[0].sym == out->dim[0].sym)
                p->live_input[o] = i;
        }
    }
}

static ch_status check_dtypes(const ch_graph *g, const ch_args *a)
{
    for (int i = 0; i < a->n_local * a->n_in; i++)
        if (a->tensor[i]->dtype != g->input[i % a->n_in]->dtype)
            return ch__fail(CH_INVALID_ARGUMENT, "input %d is %s, but was recorded as %s",
                            i % a->n_in, ch_dtype_name(a->tensor[i]->dtype),
                            ch_dtype_name(g->input[i % a->n_in]->dtype));
    return CH_OK;
}

/* Guess for the first run: programs with an arena of at most this size, in bytes, run in
 * turns. */
static const size_t small_arena = (size_t)1 << 20;

/* Decides whether replicas may run in turns, and starts the threads of the devices if
 * needed. */
static ch_status init_turns(ch_prepared *p)
{
    size_t most = 0;

    for (int i = 0; i < p->n_variants; i++)
        if (p->program[i]->arena_bytes > most)
            most = p->program[i]->arena_bytes;
    p->needs_threads = p->watched || ch__graph_calls_host(p->graph);
    ch__turns_init(&p->turns, most <= small_arena);
    /* Start now, so that no later run allocates. */
    return ch__config()->replicas != CH_REPLICAS_TURNS || p->needs_threads
               ? ch__devices_start(p->n_local, p->device)
               : CH_OK;
}

ch_status ch__prepared_new(ch_graph *g, const ch_run *run, const ch_args *a, bool watched,
                           ch_prepared **out)
{
    size_t       n = (size_t)run->n_local, n_in = (size_t)a->n_in;
    ch_prepared *p = ch__calloc(1, sizeof(*p));
    ch_status    rc = check_dtypes(g, a);

    if (p == NULL)
        return ch__fail_memory("a program");
    atomic_init(&p->refs, 1);
    pthread_mutex_init(&p->lock, NULL);
    p->graph = ch_graph_ref(g);
    p->watched = watched;
    p->n_local = run->n_local;
    p->kind = run->n_local == 1                        ? CH_PLAIN
              : run->context == CH_STEP_CONTEXT_UPDATE ? CH_MIRRORED
                                                       : CH_PER_REPLICA;
    p->n_in = a->n_in;
    p->n_out = g->n_outputs;
    p->device = ch__calloc(n, sizeof(*p->device));
    p->shape = ch__calloc(n * n_in + 1, sizeof(*p->shape));
    p->staged = ch__calloc(n * n_in + 1, sizeof(*p->staged));
    p->live_input = ch__calloc((size_t)p->n_out + 1, sizeof(*p->live_input));
    p->variant = ch__calloc(n, sizeof(*p->variant));
    p->program = ch__calloc(n, sizeof(*p->program));
    p->instance = ch__calloc(n, sizeof(*p->instance));
    p->resource = ch__calloc(n * (size_t)g->n_resources + 1, sizeof(*p->resource));
    if (rc == CH_OK && (p->device == NULL || p->shape == NULL || p->staged == NULL ||
                        p->live_input == NULL || p->variant == NULL || p->program == NULL ||
                        p->instance == NULL || p->resource == NULL))
        rc = ch__fail_memory("a program");
    if (rc == CH_OK) {
        memcpy(p->device, run->device, n * sizeof(*p->device));
        copy_shapes(p, a);
        find_live_inputs(p);
        find_variants(p);
        rc = make_programs(p, run);
    }
    if (rc == CH_OK)
        rc = init_turns(p);
    if (rc != CH_OK) {
        ch__prepared_unref(p);
        return rc;
    }
    *out = p;
    return CH_OK;
}

ch_prepared *ch__prepared_ref(ch_prepared *p)
{
    atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    return p;
}

void ch__prepared_unref(ch_prepared *p)
{
    if (p == NULL || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1)
        return;
    while (p->free_result_sets != NULL) {
        ch_result_set *k = p->free_result_sets;

        p->free_result_sets = k->next;
        result_set_free(k);
    }
    for (int r = 0; p->instance != NULL && r < p->n_local; r++)
        ch__instance_free(p->instance[r]);
    for (int i = 0; p->program != NULL && i < p->n_variants; i++)
        ch__program_unref(p->program[i]);
    for (int i = 0; p->staged != NULL && i < p->n_local * p->n_in; i++)
        if (p->staged[i] != NULL)
            ch__device_free(p->device[i / p->n_in], p->staged[i],
                            (size_t)ch_shape_count(p->shape[i]) *
                                ch_dtype_bytes(p->graph->input[i % p->n_in]->dtype));
    ch__free(p->staged);
    ch__free(p->live_input);
    ch__free(p->device);
    ch__free(p->shape);
    ch__free(p->variant);
    ch__free(p->program);
    ch__free(p->instance);
    ch__free(p->resource);
    ch__free_aligned(p->run_memory);
    ch_graph_unref(p->graph);
    pthread_mutex_destroy(&p->lock);
    ch__free(p);
}

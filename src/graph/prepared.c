/* graph/prepared.c -- prepared graphs: programs for given input shapes and devices.
 *
 * graph/function.c creates a ch_prepared and caches it. graph/run.c and graph/launch.c run it.
 * The results of runs are in result sets (graph/result_set.c), which a ch_prepared pools.
 *
 * Invariants:
 *   1. Programs, shapes, devices and variants do not change after ch__prepared_new.
 *   2. A result set in use holds a reference to its ch_prepared. A result set in the pool does
 *      not.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/config.h"
#include "graph/function.h"

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
static ch_status specialise(ch_prepared *p, const bool *may_have_room, ch_graph **variant)
{
    const ch_shape **shape = ch__calloc((size_t)p->n_variants, sizeof(*shape));
    ch_signature     sig = {.n_replicas = p->n_local,
                            .n_variants = p->n_variants,
                            .variant = p->variant,
                            .shape = shape,
                            .may_have_room = may_have_room};
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

static ch_status make_programs(ch_prepared *p, const bool *may_have_room, const ch_run *run)
{
    ch_graph      **variant = ch__calloc((size_t)p->n_variants, sizeof(*variant));
    bool           *shared = ch__calloc((size_t)p->graph->n_resources + 1, sizeof(*shared));
    bool            any = false;
    ch_plan_options opt = {.keep_all = p->watched, .threads = most_threads(p)};
    ch_status       rc = variant == NULL || shared == NULL ? ch__fail_memory("a program")
                                                           : specialise(p, may_have_room, variant);

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

/* Sets live_input: for each output that is as long as flat values, the input with these
 * values. */
static void find_live_inputs(ch_prepared *p)
{
    for (int o = 0; o < p->n_out; o++) {
        const ch_dims *out = &p->graph->output[o].node->dims;

        p->live_input[o] = -1;
        for (int i = 0; i < p->n_in && out->rank > 0 && out->dim[0].sym != 0; i++) {
            const ch_input_attrs *in = ch__attrs(p->graph->input[i]);

            if (in->splits_input != 0 && in->dims.dim[0].sym == out->dim[0].sym)
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

ch_status ch__prepared_new(ch_graph *g, const bool *may_have_room, const ch_run *run,
                           const ch_args *a, bool watched, ch_prepared **out)
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
    p->marks = ch__calloc((size_t)g->n_resources + 1, sizeof(ch_row_marks *));
    if (rc == CH_OK && (p->device == NULL || p->shape == NULL || p->staged == NULL ||
                        p->live_input == NULL || p->variant == NULL || p->program == NULL ||
                        p->instance == NULL || p->resource == NULL || p->marks == NULL))
        rc = ch__fail_memory("a program");
    if (rc == CH_OK) {
        memcpy(p->device, run->device, n * sizeof(*p->device));
        /* with zeros after their rank, so that equal shapes have equal bytes */
        for (int i = 0; i < a->n_local * a->n_in; i++)
            p->shape[i] = ch_shape_make(a->shape[i].rank, a->shape[i].dim);
        find_live_inputs(p);
        find_variants(p);
        rc = make_programs(p, may_have_room, run);
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
    ch__result_sets_free(p);
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
    ch__free(p->marks);
    ch__free_aligned(p->run_memory);
    ch_graph_unref(p->graph);
    pthread_mutex_destroy(&p->lock);
    ch__free(p);
}

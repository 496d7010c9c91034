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

    for (int m = 0; m < p->n_members; m++)
        if (ch_device_threads(p->device[m]) > most)
            most = ch_device_threads(p->device[m]);
    return most;
}

/* Sets *out to the storage of resource i for every member. */
static ch_status find_storage(const ch_prepared *p, const ch_run *run, int i, void **out)
{
    ch_status rc = CH_OK;

    for (int m = 0; m < p->n_members && rc == CH_OK; m++)
        rc = run->ops->resource(run->owner, &p->graph->resource[i], m / p->n_cores,
                                m % p->n_cores, &out[m]);
    return rc;
}

/* Returns the first member that has the storage of member m. */
static int first_with(void *const *storage, int m)
{
    int first = 0;

    while (storage[first] != storage[m])
        first++;
    return first;
}

/* Finds the members that share the storage of resource i. *shares: by member: it shares the
 * storage of an earlier member. */
static bool find_sharing(int n, void *const *storage, bool *shares)
{
    bool any = false;

    for (int m = 0; m < n; m++) {
        shares[m] = storage[m] != NULL && first_with(storage, m) < m;
        any |= shares[m];
    }
    return any;
}

/* Sets shared[i] for resources whose storage is shared by several members, *any if there is
 * such a resource, and is_first of the members that write it. A member that writes a shared
 * resource for others must do so for all shared resources that it uses, because the barriers
 * around the writes are the same. */
static ch_status find_shared(ch_prepared *p, const ch_run *run, bool *shared, bool *any)
{
    size_t n = (size_t)p->n_members;
    void **storage = ch__calloc(n, sizeof(*storage));
    bool  *shares = ch__calloc(n, sizeof(*shares)), *decided = ch__calloc(n, sizeof(*decided));
    ch_status rc = storage == NULL || shares == NULL || decided == NULL
                       ? ch__fail_memory("a program")
                       : CH_OK;

    for (int m = 0; m < p->n_members; m++)
        p->is_first[m] = true;
    for (int i = 0; i < p->graph->n_resources && p->n_members > 1 && rc == CH_OK; i++) {
        if (ch__is_borrowed(&p->graph->resource[i]))
            continue; /* read only, so no barrier is needed before a write */
        rc = find_storage(p, run, i, storage);
        if (rc != CH_OK || !find_sharing(p->n_members, storage, shares))
            continue;
        for (int m = 0; m < p->n_members && rc == CH_OK; m++) {
            if (storage[m] == NULL)
                continue;
            if (decided[m] && p->is_first[m] == shares[m])
                rc = ch__fail(CH_UNIMPLEMENTED,
                              "variable %s is shared by other replicas or cores than the "
                              "variables before it",
                              p->graph->resource[i].name);
            p->is_first[m] = !shares[m];
            decided[m] = true;
        }
        shared[i] = *any = true;
    }
    ch__free(storage);
    ch__free(shares);
    ch__free(decided);
    return rc;
}

/* Sets core[m] to the graph of member m, referenced. */
static ch_status divide(ch_prepared *p, const ch_run *run, ch_graph *const *variant,
                        ch_graph **core)
{
    ch_graph **by_replica = ch__calloc((size_t)p->n_local, sizeof(ch_graph *));
    ch_status  rc = CH_OK;

    if (by_replica == NULL)
        return ch__fail_memory("a program");
    for (int r = 0; r < p->n_local; r++)
        by_replica[r] = variant[p->variant[r]];
    p->report_free = run->ops->report_free;
    if (p->n_cores > 1)
        rc = run->ops->partition(run->owner, run, by_replica, core, &p->report);
    else
        for (int r = 0; r < p->n_local; r++)
            core[r] = ch_graph_ref(by_replica[r]);
    ch__free(by_replica);
    return rc;
}

static ch_status check_core(const ch_prepared *p, const ch_graph *core)
{
    if (core == NULL || core->n_inputs != p->n_in || core->n_outputs != p->n_out ||
        core->n_resources != p->graph->n_resources)
        return ch__fail(CH_INTERNAL,
                        "%s: the graph of a core must have the inputs, outputs and variables "
                        "of the step",
                        p->graph->name);
    return CH_OK;
}

/* Plans a program for each different graph. */
static ch_status make_programs(ch_prepared *p, ch_graph *const *core, const bool *shared)
{
    ch_plan_options opt = {
        .keep_all = p->watched, .threads = most_threads(p), .shared = shared};
    ch_status rc = CH_OK;

    for (int m = 0; m < p->n_members && rc == CH_OK; m++) {
        int first = 0;

        while (core[first] != core[m])
            first++;
        p->which[m] = first < m ? p->which[first] : p->n_programs;
        if (first == m)
            rc = check_core(p, core[m]);
        if (rc == CH_OK && first == m)
            rc = ch__program_new(core[m], &opt, &p->program[p->n_programs]);
        if (rc == CH_OK && first == m)
            p->writes |= p->program[p->n_programs++]->writes;
    }
    return rc;
}

/* Makes the instances of all members, in a single block of memory. */
static ch_status make_instances(ch_prepared *p)
{
    size_t bytes = 0;
    char  *at;

    for (int m = 0; m < p->n_members; m++)
        bytes += ch__aligned(ch__instance_bytes(p->program[p->which[m]]));
    at = p->instances = ch__alloc_untouched(bytes);
    if (at == NULL)
        return ch__fail_memory("a program");
    for (int m = 0; m < p->n_members; m++) {
        ch_program *own = p->program[p->which[m]];

        p->instance[m] = ch__instance_at(own, at);
        at += ch__aligned(ch__instance_bytes(own));
    }
    return CH_OK;
}

/* Returns INTERNAL if programs pass different numbers of barriers. */
static ch_status check_barriers(const ch_prepared *p)
{
    int want = -1;

    for (int i = 0; i < p->n_programs; i++) {
        int n = 0;

        for (int k = 0; k < p->program[i]->n_instrs; k++)
            n += p->program[i]->instr[k].is_barrier;
        if (want >= 0 && n != want)
            return ch__fail(CH_UNIMPLEMENTED,
                            "%s: replicas share variables that only some of their cores change",
                            p->graph->name);
        want = n;
    }
    return CH_OK;
}

static int count_calls(const ch_graph *g)
{
    int n = 0;

    for (const ch_node *call = g->first; call != NULL; call = call->next)
        n += call->op != ch__roles.input && call->op != ch__roles.constant &&
             call->op != ch__roles.read;
    return n;
}

/* Adds up what the collectives between replicas will count. A core may have no part in a call,
 * so the number of calls is that of the core with most of them. */
static void count_cross(ch_prepared *p, const ch_run *run, ch_graph *const *core)
{
    for (int m = 0; m < p->n_members && run->group != NULL && run->n_local > 1; m++) {
        const void *group = p->n_cores > 1 ? run->groups.replicas[m % p->n_cores] : run->group;
        int64_t     n_calls = 0;

        for (const ch_node *n = core[m]->first; n != NULL; n = n->next) {
            int64_t bytes = (n->op->flags & CH_OP_COLLECTIVE) != 0
                                ? run->group_ops->cross_bytes(group, m / p->n_cores, n)
                                : -1;

            p->cross_bytes += bytes > 0 ? bytes : 0;
            n_calls += bytes >= 0;
        }
        if (n_calls > p->cross_calls)
            p->cross_calls = n_calls;
    }
}

/* Sets the shapes of the results. */
static void find_results(ch_prepared *p, ch_graph *const *variant)
{
    for (int v = 0; v < p->n_variants; v++)
        for (int o = 0; o < p->n_out; o++)
            p->out[v * p->n_out + o] = ch__shape(variant[v]->output[o].node);
}

static ch_status specialise_and_plan(ch_prepared *p, const bool *may_have_room,
                                     const ch_run *run)
{
    ch_graph **variant = ch__calloc((size_t)p->n_variants, sizeof(*variant));
    ch_graph **core = ch__calloc((size_t)p->n_members, sizeof(*core));
    bool      *shared = ch__calloc((size_t)p->graph->n_resources + 1, sizeof(*shared));
    bool       any = false;
    ch_status  rc = variant == NULL || core == NULL || shared == NULL
                        ? ch__fail_memory("a program")
                        : specialise(p, may_have_room, variant);

    if (rc == CH_OK) {
        p->out = ch__calloc((size_t)(p->n_variants * p->n_out) + 1, sizeof(*p->out));
        rc = p->out == NULL ? ch__fail_memory("a program") : find_shared(p, run, shared, &any);
    }
    if (rc == CH_OK) {
        find_results(p, variant);
        p->n_calls = count_calls(variant[p->variant[0]]);
        rc = divide(p, run, variant, core);
    }
    if (rc == CH_OK)
        count_cross(p, run, core);
    for (int i = 0; i < p->graph->n_resources && rc == CH_OK; i++)
        p->layout[i] = core[0]->resource[i].layout;
    if (rc == CH_OK)
        rc = make_programs(p, core, any ? shared : NULL);
    if (rc == CH_OK)
        rc = make_instances(p);
    if (rc == CH_OK)
        rc = check_barriers(p);
    for (int i = 0; variant != NULL && i < p->n_variants; i++)
        ch_graph_unref(variant[i]);
    for (int m = 0; core != NULL && m < p->n_members; m++)
        ch_graph_unref(core[m]);
    ch__free(variant);
    ch__free(core);
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

/* Decides whether members may run in turns, and starts the threads of the devices if
 * needed. */
static ch_status init_turns(ch_prepared *p)
{
    size_t most = 0;

    for (int i = 0; i < p->n_programs; i++)
        if (p->program[i]->arena_bytes > most)
            most = p->program[i]->arena_bytes;
    p->needs_threads = p->watched || ch__graph_calls_host(p->graph);
    ch__turns_init(&p->turns, most <= small_arena);
    /* Start now, so that no later run allocates. */
    return ch__config()->replicas != CH_REPLICAS_TURNS || p->needs_threads
               ? ch__devices_start(p->n_members, p->device)
               : CH_OK;
}

ch_status ch__prepared_new(ch_graph *g, const bool *may_have_room, const ch_run *run,
                           const ch_args *a, bool watched, ch_prepared **out)
{
    size_t       n = (size_t)run->n_local, n_in = (size_t)a->n_in;
    size_t       n_members = (size_t)ch__run_members(run);
    ch_prepared *p = ch__calloc(1, sizeof(*p));
    ch_status    rc = check_dtypes(g, a);

    if (p == NULL)
        return ch__fail_memory("a program");
    atomic_init(&p->refs, 1);
    pthread_mutex_init(&p->lock, NULL);
    pthread_mutex_init(&p->marking, NULL);
    p->graph = ch_graph_ref(g);
    p->watched = watched;
    p->n_local = run->n_local;
    p->n_cores = ch__run_cores(run);
    p->n_members = (int)n_members;
    p->kind = run->n_local == 1                        ? CH_PLAIN
              : run->context == CH_STEP_CONTEXT_UPDATE ? CH_MIRRORED
                                                       : CH_PER_REPLICA;
    p->n_in = a->n_in;
    p->n_out = g->n_outputs;
    p->device = ch__calloc(n_members, sizeof(*p->device));
    p->shape = ch__calloc(n * n_in + 1, sizeof(*p->shape));
    p->staged = ch__calloc(n * n_in + 1, sizeof(*p->staged));
    p->live_input = ch__calloc((size_t)p->n_out + 1, sizeof(*p->live_input));
    p->variant = ch__calloc(n, sizeof(*p->variant));
    p->program = ch__calloc(n_members, sizeof(*p->program));
    p->which = ch__calloc(n_members, sizeof(*p->which));
    p->instance = ch__calloc(n_members, sizeof(*p->instance));
    p->is_first = ch__calloc(n_members, sizeof(*p->is_first));
    p->resource = ch__calloc(n_members * (size_t)g->n_resources + 1, sizeof(*p->resource));
    p->marks = ch__calloc((size_t)g->n_resources + 1, sizeof(ch_row_marks *));
    p->layout = ch__calloc((size_t)g->n_resources + 1, sizeof(*p->layout));
    if (rc == CH_OK &&
        (p->device == NULL || p->shape == NULL || p->staged == NULL || p->live_input == NULL ||
         p->variant == NULL || p->program == NULL || p->which == NULL || p->instance == NULL ||
         p->is_first == NULL || p->resource == NULL || p->marks == NULL || p->layout == NULL))
        rc = ch__fail_memory("a program");
    if (rc == CH_OK) {
        memcpy(p->device, run->device, n_members * sizeof(*p->device));
        /* with zeros after their rank, so that equal shapes have equal bytes */
        for (int i = 0; i < a->n_local * a->n_in; i++)
            p->shape[i] = ch_shape_make(a->shape[i].rank, a->shape[i].dim);
        find_live_inputs(p);
        find_variants(p);
        rc = specialise_and_plan(p, may_have_room, run);
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
    if (p->report != NULL)
        p->report_free(p->report);
    ch__free_aligned(p->instances);
    for (int i = 0; p->program != NULL && i < p->n_programs; i++)
        ch__program_unref(p->program[i]);
    for (int i = 0; p->staged != NULL && i < p->n_local * p->n_in; i++)
        if (p->staged[i] != NULL)
            ch__device_free(p->device[i / p->n_in * p->n_cores], p->staged[i],
                            (size_t)ch_shape_count(p->shape[i]) *
                                ch_dtype_bytes(p->graph->input[i % p->n_in]->dtype));
    ch__free(p->staged);
    ch__free(p->live_input);
    ch__free(p->device);
    ch__free(p->shape);
    ch__free(p->variant);
    ch__free(p->out);
    ch__free(p->program);
    ch__free(p->which);
    ch__free(p->instance);
    ch__free(p->is_first);
    ch__free(p->layout);
    ch__free(p->resource);
    ch__free(p->marks);
    ch__free_aligned(p->run_memory);
    ch_graph_unref(p->graph);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->marking);
    ch__free(p);
}

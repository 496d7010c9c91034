/* graph/plan.c -- plans a program for a specialised graph: kernels, order of calls, memory.
 *
 * ch__program_new runs the passes over the graph, then these steps: 1 kernels, 2 root values
 * and fixed locations, 3 updates in place and the order of calls (plan_update.c,
 * plan_shared.c), 4 outputs and parts of them, 5 the arena, 6 instructions (plan_emit.c). Main
 * struct: ch_planner (plan.h).
 *
 * Terms:
 *   root value  the value that owns the memory: the root of a view is the root of its input
 *   location    where a root value is stored: arena, input, output, constant or resource
 *   buffer      a part of the arena, used by values that overwrite each other in turn
 *   late call   a call that overwrites a resource, or depends on such a call
 *   position    index of a call in the schedule, the order of execution
 *
 * Invariants:
 *   1. Inputs and constants are never written.
 *   2. No resource is written before n_commit, and no call from n_commit on can fail. So a step
 *      that fails changes no variable.
 *   3. A resource is overwritten only after the last read of its old value.
 *   4. Two values share arena memory only if their lifetimes do not overlap, or if a kernel
 *      computes its output in place of an input that no later call reads.
 *
 * The schedule is the recorded order with an exception: late calls run after all calls that can
 * fail, but then as early as possible.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "graph/plan.h"

const ch_kernel *ch__kernel_for(const ch_node *n)
{
    for (const ch_kernel *const *k = n->op->kernels; *k != NULL; k++)
        if (ch__kernel_fits(*k, n))
            return *k;
    return NULL;
}

void *ch__prep_state(ch_prep *p, size_t bytes)
{
    p->state = ch__arena_alloc(p->arena, bytes);
    return p->state;
}

int ch__tile_count(int64_t n, int64_t cost)
{
    const int64_t enough = 64 << 10; /* smallest number of operations for a tile */
    int64_t       work, tiles;

    if (!ch__mul_size(n, cost, &work))
        work = INT64_MAX;
    tiles = work / enough;
    if (tiles > 64)
        tiles = 64;
    if (tiles > n)
        tiles = n;
    return tiles < 1 ? 1 : (int)tiles;
}

/* ---- step 1: kernels ---- */

/* Marks every value that a call or a root reads. */
static void find_used(ch_planner *pl)
{
    for (int i = 0; i < pl->n_calls; i++)
        for (int k = 0; k < pl->call[i]->n_in; k++)
            pl->used[pl->call[i]->in[k]->id] = true;
    for (int i = 0; i < pl->g->n_outputs; i++)
        pl->used[pl->g->output[i].node->id] = true;
    for (int i = 0; i < pl->g->n_resources; i++)
        if (pl->g->resource[i].value != NULL)
            pl->used[pl->g->resource[i].value->id] = true;
}

/* Chooses the kernel of the call at position i, and calls its `prepare`. */
static ch_status prepare_call(ch_planner *pl, int i)
{
    ch_node  *n = pl->call[i];
    ch_prep  *p = &pl->prep[i];
    ch_status rc;

    if (n->op->kernels == NULL)
        return CH_OK; /* input, constant or read: the program binds its memory */
    pl->kernel[i] = ch__kernel_for(n);
    if (pl->kernel[i] == NULL)
        return ch__fail(CH_UNIMPLEMENTED, "%s: no kernel for %s", n->op->name,
                        ch_dtype_name(n->n_in > 0 ? n->in[0]->dtype : n->dtype));
    p->node = n;
    p->arg = pl->kernel[i]->arg;
    p->threads = pl->opt->threads;
    p->arena = &pl->p->arena;
    p->watched = pl->opt->keep_all;
    for (int k = 0; k < n->n_out; k++)
        p->unused[k] = !pl->used[n[k].id] && !pl->opt->keep_all;
    rc = pl->kernel[i]->prepare != NULL ? pl->kernel[i]->prepare(n, p) : CH_OK;
    pl->p->touches_part |= p->touches_part;
    return rc;
}

/* ---- step 2: root values and fixed locations ---- */

static void locate_sources(ch_planner *pl, const ch_node *n)
{
    ch_planned_value *v = &pl->value[n->id];

    if (n->op == ch__roles.input) {
        const ch_input_attrs *a = n->attrs;
        v->location = (ch_location){.kind = CH_AT_INPUT, .index = (int)a->index};
    } else if (n->op == ch__roles.constant) {
        const ch_constant_attrs *a = n->attrs;
        v->location = (ch_location){.kind = CH_AT_CONSTANT, .data = ch_tensor_data(a->value)};
    } else if (n->op == ch__roles.read) {
        const ch_read_attrs *a = n->attrs;
        v->location = (ch_location){.kind = CH_AT_RESOURCE, .index = (int)a->resource};
    }
}

static void find_roots(ch_planner *pl)
{
    for (int i = 0; i < pl->n_calls; i++) {
        ch_node *n = pl->call[i];

        for (int k = 0; k < n->n_out; k++) {
            ch_planned_value *v = &pl->value[n[k].id];

            v->node = &n[k];
            v->root = n[k].id;
            v->buffer = -1;
        }
        locate_sources(pl, n);
        if (pl->prep[i].is_view && !pl->opt->keep_all) {
            ch_planned_value *in = &pl->value[n->in[0]->id];

            pl->value[n->id].root = in->root;
            pl->value[n->id].offset = in->offset + pl->prep[i].view_offset;
            pl->value[n->id].by_core = in->by_core;
            if (pl->prep[i].view_by_core != NULL)
                pl->value[n->id].by_core = pl->prep[i].view_by_core;
        }
    }
}

/* ---- step 4: outputs, and parts of them, that can be computed in the result's memory ---- */

static void locate_outputs(ch_planner *pl)
{
    for (int i = 0; i < pl->g->n_outputs; i++) {
        ch_node          *n = pl->g->output[i].node;
        ch_planned_value *v = &pl->value[n->id];

        if (v->root == n->id && v->location.kind == CH_AT_NOWHERE)
            v->location = (ch_location){.kind = CH_AT_OUTPUT, .index = i};
    }
}

static void count_in_place(ch_planner *pl, const ch_node *part)
{
    pl->p->n_parts_in_place += ch__bytes(part) > 0;
    pl->p->bytes_in_place += ch__bytes(part);
}

/* Lets a value be computed in its part of a result, in place of a copy by the call at position
 * i. The value must own its memory, and have no location yet. */
static void locate_part(ch_planner *pl, int i)
{
    ch_node          *c = pl->call[i];
    ch_planned_value *to = &pl->value[c->id], *part = ch__plan_root(pl, c->in[0]);

    if (to->location.kind != CH_AT_OUTPUT || part->location.kind != CH_AT_NOWHERE ||
        pl->value[c->in[0]->id].offset != 0 || ch__bytes(part->node) != ch__bytes(c->in[0]))
        return;
    part->location = to->location;
    part->location.by_core = pl->prep[i].put_by_core;
    pl->kernel[i] = NULL;
    count_in_place(pl, c->in[0]);
}

/* Locates the parts that the core reads from inputs, and writes to results, in place. */
static void locate_parts(ch_planner *pl)
{
    for (int i = 0; i < pl->n_calls && !pl->opt->keep_all; i++) {
        if (pl->prep[i].view_by_core != NULL)
            count_in_place(pl, pl->call[i]);
        else if (pl->prep[i].put_by_core != NULL)
            locate_part(pl, i);
    }
}

/* ---- step 5: the arena ---- */

int ch__plan_buffer(ch_planner *pl, int64_t bytes, int from, int to)
{
    int end = to > pl->n_calls ? pl->n_calls : to;

    return ch__buffers_add(&pl->buffers, (size_t)bytes, from, end);
}

/* Returns the buffer of an input that output k of the call at position i may overwrite; -1:
 * none. */
static int buffer_to_reuse(ch_planner *pl, int i, int k)
{
    ch_node *c = pl->call[i];

    for (int j = 0; j < c->n_in && !pl->opt->keep_all; j++) {
        ch_planned_value *in = ch__plan_root(pl, c->in[j]);

        if (in->buffer >= 0 && ch__plan_may_overwrite(pl, c, k, j) &&
            pl->buffers.at[in->buffer].to == i && !pl->buffers.at[in->buffer].is_reused)
            return in->buffer;
    }
    return -1;
}

/* Gives the outputs and the scratch of the call at position i their buffers. */
static ch_status allocate_buffers(ch_planner *pl, int i)
{
    ch_node *c = pl->call[i];

    pl->scratch[i] = -1;
    for (int k = 0; k < c->n_out; k++) {
        ch_planned_value *v = &pl->value[c[k].id];
        int               end = pl->opt->keep_all ? CH_AT_END : v->last_use;

        if (v->root != c[k].id || v->location.kind != CH_AT_NOWHERE || pl->kernel[i] == NULL ||
            (pl->prep[i].skips_unused && pl->prep[i].unused[k]))
            continue;
        v->buffer = buffer_to_reuse(pl, i, k);
        if (v->buffer >= 0) {
            pl->buffers.at[v->buffer].to = end > pl->n_calls ? pl->n_calls : end;
            pl->buffers.at[v->buffer].is_reused = end == i;
            continue;
        }
        v->buffer = ch__plan_buffer(pl, ch__bytes(&c[k]), i, end);
        if (v->buffer < 0)
            return ch__fail_memory("a program");
    }
    if (pl->prep[i].scratch_bytes > 0) {
        pl->scratch[i] = ch__plan_buffer(pl, (int64_t)pl->prep[i].scratch_bytes, i, i);
        if (pl->scratch[i] < 0)
            return ch__fail_memory("a program");
    }
    return CH_OK;
}

/* ---- all steps ---- */

static ch_status new_planner(ch_planner *pl)
{
    ch_graph *g = pl->g;
    size_t    calls = (size_t)g->n_calls + 1, values = (size_t)g->n_values + 1;

    pl->n_calls = g->n_calls;
    pl->n_values = g->n_values;
    pl->call = ch__calloc(calls, sizeof(*pl->call));
    pl->prep = ch__calloc(calls, sizeof(*pl->prep));
    pl->kernel = ch__calloc(calls, sizeof(*pl->kernel));
    pl->scratch = ch__calloc(calls, sizeof(*pl->scratch));
    pl->position = ch__calloc(values, sizeof(*pl->position));
    pl->value = ch__calloc(values, sizeof(*pl->value));
    pl->late = ch__calloc(values, sizeof(*pl->late));
    pl->first_only = ch__calloc(values, sizeof(*pl->first_only));
    pl->used = ch__calloc(values, sizeof(*pl->used));
    pl->in_place = ch__calloc((size_t)g->n_resources + 1, sizeof(*pl->in_place));
    pl->p->writes_all = ch__arena_alloc(&pl->p->arena, (size_t)g->n_resources + 1);
    if (pl->call == NULL || pl->prep == NULL || pl->kernel == NULL || pl->scratch == NULL ||
        pl->position == NULL || pl->value == NULL || pl->late == NULL || pl->used == NULL ||
        pl->first_only == NULL || pl->in_place == NULL || pl->p->writes_all == NULL)
        return ch__fail_memory("a program");
    ch__graph_calls(g, pl->call);
    return CH_OK;
}

static void drop_planner(ch_planner *pl, bool failed)
{
    for (int i = 0; failed && pl->kernel != NULL && pl->prep != NULL && i < pl->n_calls; i++)
        if (pl->kernel[i] != NULL && pl->kernel[i]->drop != NULL && pl->prep[i].state != NULL)
            pl->kernel[i]->drop(pl->prep[i].state);
    ch__free(pl->call);
    ch__free(pl->prep);
    ch__free(pl->kernel);
    ch__free(pl->scratch);
    ch__free(pl->position);
    ch__free(pl->value);
    ch__free(pl->late);
    ch__free(pl->first_only);
    ch__free(pl->used);
    ch__free(pl->in_place);
    ch__buffers_drop(&pl->buffers);
}

static ch_status plan(ch_planner *pl)
{
    ch_status rc = new_planner(pl);

    if (rc == CH_OK)
        find_used(pl);
    for (int i = 0; i < pl->n_calls && rc == CH_OK; i++)
        rc = prepare_call(pl, i);
    if (rc != CH_OK)
        return rc;
    find_roots(pl);
    rc = ch__plan_updates(pl);
    if (rc != CH_OK)
        return rc;
    locate_outputs(pl);
    locate_parts(pl);
    for (int i = 0; i < pl->n_calls && rc == CH_OK; i++)
        rc = allocate_buffers(pl, i);
    return rc == CH_OK ? ch__plan_emit(pl) : rc;
}

static ch_status run_passes(ch_graph *g)
{
    ch_status rc = ch__pass_fold(g);

    if (rc == CH_OK)
        rc = ch__pass_cse(g);
    if (rc == CH_OK && ch__config()->epilogue)
        rc = ch__pass_absorb(g);
    if (rc == CH_OK && ch__config()->fuse)
        rc = ch__pass_fuse(g);
    return rc;
}

ch_status ch__program_new(ch_graph *g, const ch_plan_options *opt, ch_program **out)
{
    ch_planner pl = {.g = g, .opt = opt};
    ch_status  rc = pl.opt->keep_all ? CH_OK : run_passes(g);

    if (rc != CH_OK)
        return rc;
    pl.p = ch__calloc(1, sizeof(*pl.p));
    if (pl.p == NULL)
        return ch__fail_memory("a program");
    atomic_init(&pl.p->refs, 1);
    rc = plan(&pl);
    drop_planner(&pl, rc != CH_OK);
    if (rc != CH_OK) {
        ch__arena_drop(&pl.p->arena);
        ch__free(pl.p);
        return rc;
    }
    pl.p->graph = ch_graph_ref(g);
    *out = pl.p;
    return CH_OK;
}

ch_program *ch__program_ref(ch_program *p)
{
    if (p != NULL)
        atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    return p;
}

void ch__program_unref(ch_program *p)
{
    if (p == NULL || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (int i = 0; i < p->n_instrs; i++)
        if (p->instr[i].kernel != NULL && p->instr[i].kernel->drop != NULL &&
            p->instr[i].state != NULL)
            p->instr[i].kernel->drop(p->instr[i].state);
    ch_graph_unref(p->graph);
    ch__arena_drop(&p->arena);
    ch__free(p);
}

/* graph/plan_emit.c -- step 6 of planning: writes the instructions of a program, with the
 * locations of their slots.
 *
 * ch__plan_emit is called when every value has a root value, a buffer or a location, and the
 * calls are in their final order. It assigns the offsets of the arena, emits an instruction for
 * each call, marks of the rows that calls write (ch_row_write), barriers for shared resources,
 * and copies of outputs and resources. At the end it lists the slots whose addresses a run must
 * set.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/plan.h"

/* Moves a location by a number of bytes. */
static void advance(ch_location *at, size_t bytes)
{
    if (at->kind == CH_AT_CONSTANT)
        at->data = (const char *)at->data + bytes;
    else
        at->offset += bytes;
}

static ch_location location_of(ch_planner *pl, const ch_node *n)
{
    const ch_planned_value *v = &pl->value[n->id];
    const ch_planned_value *root = &pl->value[v->root];
    ch_location             at = root->location;

    if (root->buffer >= 0)
        at = (ch_location){.kind = CH_AT_ARENA, .offset = pl->buffers.at[root->buffer].offset};
    advance(&at, v->offset);
    if (v->by_core != NULL)
        at.by_core = v->by_core;
    return at;
}

/* Returns true if the call has no effect and all its outputs are empty. */
static bool has_empty_outputs(const ch_node *n)
{
    if (ch__call_is_root(n) || n->n_out == 0)
        return false;
    for (int k = 0; k < n->n_out; k++)
        if (ch__count(&n[k]) > 0)
            return false;
    return true;
}

/* Returns the resource that output n is stored in, if all its writes change rows of ids only;
 * -1: none. */
static int resource_written_by_rows(const ch_planner *pl, const ch_node *n)
{
    const ch_location *at = &pl->value[n->id].location;

    return at->kind == CH_AT_RESOURCE && !pl->p->writes_all[at->index] ? at->index : -1;
}

/* Emits a mark of the rows that call n is about to write, if it writes rows of resources. */
static ch_status emit_row_write(ch_planner *pl, const ch_node *n)
{
    ch_program    *p = pl->p;
    const ch_node *ids;
    ch_row_write  *w;
    int            most = 0;

    for (int k = 0; k < n->n_out && n->op->changed_rows != 0; k++)
        most += resource_written_by_rows(pl, &n[k]) >= 0;
    if (most == 0)
        return CH_OK;
    w = ch__arena_alloc(&p->arena, sizeof(*w) + (size_t)most * sizeof(w->resource[0]));
    if (w == NULL)
        return ch__fail_memory("a program");
    ids = n->in[n->op->changed_rows - 1];
    w->n_ids = ch__count(ids);
    w->wide = ids->dtype == CH_I64;
    for (int k = 0; k < n->n_out; k++)
        if (resource_written_by_rows(pl, &n[k]) >= 0)
            w->resource[w->n++] = resource_written_by_rows(pl, &n[k]);
    p->instr[p->n_instrs++] = (ch_instr){.row_write = w,
                                         .n_in = 1,
                                         .first_slot = p->n_slots,
                                         .work = n->work,
                                         .first_only = pl->first_only[n->id]};
    p->slot[p->n_slots++] = location_of(pl, ids);
    p->slot[p->n_slots++] = (ch_location){0};
    return CH_OK;
}

static ch_status emit_call(ch_planner *pl, int i)
{
    ch_program  *p = pl->p;
    ch_node     *n = pl->call[i];
    ch_instr    *x;
    ch_location *slot;
    ch_status    rc;

    if (pl->kernel[i] == NULL)
        return CH_OK;
    if ((pl->prep[i].is_view && !pl->opt->keep_all) || has_empty_outputs(n)) {
        if (pl->kernel[i]->drop != NULL && pl->prep[i].state != NULL)
            pl->kernel[i]->drop(pl->prep[i].state);
        pl->prep[i].state = NULL;
        return CH_OK;
    }
    rc = emit_row_write(pl, n);
    if (rc != CH_OK)
        return rc;
    x = &p->instr[p->n_instrs];
    slot = &p->slot[p->n_slots];
    *x = (ch_instr){.node = n,
                    .kernel = pl->kernel[i],
                    .state = pl->prep[i].state,
                    .n_in = n->n_in,
                    .n_out = n->n_out,
                    .first_slot = p->n_slots,
                    .scratch_bytes = pl->prep[i].scratch_bytes,
                    .n_phases = pl->prep[i].n_phases > 0 ? pl->prep[i].n_phases : 1,
                    .work = n->work,
                    .first_only = pl->first_only[n->id]};
    for (int k = 0; k < CH_MAX_PHASES; k++)
        x->tiles[k] = pl->prep[i].n_phases > 0 ? pl->prep[i].tiles[k] : 1;
    if (pl->prep[i].is_view) { /* observed run: a view is copied */
        x->kernel = NULL;
        x->copy_bytes = (size_t)ch__bytes(n);
    }
    for (int k = 0; k < n->n_in; k++)
        *slot++ = location_of(pl, n->in[k]);
    if (pl->prep[i].is_view) {
        advance(&slot[-n->n_in], pl->prep[i].view_offset);
        slot[-n->n_in].by_core = pl->prep[i].view_by_core;
    }
    for (int k = 0; k < n->n_out; k++)
        *slot++ = location_of(pl, &n[k]);
    *slot = (ch_location){0};
    if (pl->scratch[i] >= 0)
        *slot =
            (ch_location){.kind = CH_AT_ARENA, .offset = pl->buffers.at[pl->scratch[i]].offset};
    p->n_slots += n->n_in + n->n_out + 1;
    p->n_instrs++;
    p->has_collective |= (ch__call_effects(n) & CH_OP_COLLECTIVE) != 0;
    return CH_OK;
}

/* Emits a barrier if there are shared resources and the program writes resources. */
static void emit_barrier(ch_planner *pl)
{
    ch_program *p = pl->p;

    if (pl->opt->shared != NULL && p->writes)
        p->instr[p->n_instrs++] =
            (ch_instr){.is_barrier = true, .first_slot = p->n_slots, .work = CH_WORK_REDUCE};
}

static void emit_copy(ch_planner *pl, ch_work_kind work, ch_location from, ch_location to,
                      size_t bytes)
{
    ch_program *p = pl->p;

    if (bytes == 0)
        return;
    p->instr[p->n_instrs++] = (ch_instr){.copy_bytes = bytes,
                                         .n_in = 1,
                                         .n_out = 1,
                                         .first_slot = p->n_slots,
                                         .n_phases = 1,
                                         .work = work,
                                         .tiles = {1, 1, 1}};
    p->slot[p->n_slots++] = from;
    p->slot[p->n_slots++] = to;
    p->slot[p->n_slots++] = (ch_location){0};
}

/* Copies outputs that could not be computed in the result's memory, after all calls. */
static void emit_outputs(ch_planner *pl)
{
    for (int i = 0; i < pl->g->n_outputs; i++) {
        ch_node    *n = pl->g->output[i].node;
        ch_location from = location_of(pl, n);

        pl->p->output_bytes[i] = (size_t)ch__bytes(n);
        if (from.kind != CH_AT_OUTPUT || from.index != i || from.offset != 0 ||
            from.by_core != NULL)
            emit_copy(pl, n->head->work, from, (ch_location){.kind = CH_AT_OUTPUT, .index = i},
                      pl->p->output_bytes[i]);
    }
}

/* Copies new values that were not computed in place into their resources. A value that is
 * stored in another resource is first copied to the arena, because that resource may be
 * overwritten too. */
static void emit_writes(ch_planner *pl, const int *temp)
{
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1)
            emit_barrier(pl); /* after this, no replica reads old values of shared resources */
        for (int r = 0; r < pl->g->n_resources; r++) {
            const ch_resource *res = &pl->g->resource[r];
            ch_location        to = {.kind = CH_AT_RESOURCE, .index = r}, from;
            int                before = pl->p->n_instrs;

            if (res->value == res->read || pl->in_place[r])
                continue;
            from = location_of(pl, res->value);
            if (temp[r] >= 0) {
                ch_location at = {.kind = CH_AT_ARENA,
                                  .offset = pl->buffers.at[temp[r]].offset};

                emit_copy(pl, CH_WORK_UPDATE, pass == 0 ? from : at, pass == 0 ? at : to,
                          (size_t)ch__bytes(res->value));
            } else if (pass == 1) {
                emit_copy(pl, CH_WORK_UPDATE, from, to, (size_t)ch__bytes(res->value));
            }
            if (pl->p->n_instrs > before && ch__plan_is_shared(pl, r))
                pl->p->instr[before].first_only = true;
        }
    }
}

/* Allocates buffers for new values that are stored in another resource. temp[r] is -1 if none
 * is needed. */
static ch_status allocate_temps(ch_planner *pl, int *temp)
{
    for (int r = 0; r < pl->g->n_resources; r++) {
        const ch_resource *res = &pl->g->resource[r];

        temp[r] = -1;
        if (res->value == res->read || pl->in_place[r] ||
            ch__plan_root(pl, res->value)->location.kind != CH_AT_RESOURCE)
            continue;
        temp[r] = ch__plan_buffer(pl, ch__bytes(res->value), pl->n_calls, pl->n_calls);
        if (temp[r] < 0)
            return ch__fail_memory("a program");
    }
    return CH_OK;
}

/* Lists the slots with this kind of location. */
static ch_status find_patches(ch_program *p, ch_location_kind kind, ch_patches *out)
{
    for (int i = 0; i < p->n_slots; i++)
        out->n += p->slot[i].kind == kind;
    out->at = ch__arena_alloc(&p->arena, (size_t)(out->n + 1) * sizeof(*out->at));
    if (out->at == NULL)
        return ch__fail_memory("a program");
    for (int i = 0, k = 0; i < p->n_slots; i++)
        if (p->slot[i].kind == kind)
            out->at[k++] =
                (struct ch_patch){i, p->slot[i].index, p->slot[i].offset, p->slot[i].by_core};
    return CH_OK;
}

/* Allocates the lists of the program. A call that writes rows may need a second instruction,
 * which has two slots (emit_row_write). */
static ch_status new_lists(ch_planner *pl)
{
    ch_program *p = pl->p;
    int         extra = pl->g->n_outputs + 2 * pl->g->n_resources + 2;
    int         n_instrs = pl->n_calls + extra + 1, n_slots = 3 * extra + 1;

    for (int i = 0; i < pl->n_calls; i++) {
        bool writes_rows = pl->call[i]->op->changed_rows != 0;

        n_instrs += writes_rows;
        n_slots += pl->call[i]->n_in + pl->call[i]->n_out + 1 + 2 * writes_rows;
    }
    p->instr = ch__arena_alloc(&p->arena, (size_t)n_instrs * sizeof(*p->instr));
    p->slot = ch__arena_alloc(&p->arena, (size_t)n_slots * sizeof(*p->slot));
    p->output_bytes =
        ch__arena_alloc(&p->arena, ((size_t)pl->g->n_outputs + 1) * sizeof(size_t));
    return p->instr == NULL || p->slot == NULL || p->output_bytes == NULL
               ? ch__fail_memory("a program")
               : CH_OK;
}

static ch_status emit_calls(ch_planner *pl)
{
    ch_program *p = pl->p;
    int         commit = p->n_commit;
    ch_status   rc = CH_OK;

    for (int i = 0; i < pl->n_calls && rc == CH_OK; i++) {
        if (i == commit)
            p->n_commit = p->n_instrs;
        if (i == pl->shared_end)
            emit_barrier(pl);
        rc = emit_call(pl, i);
    }
    if (commit >= pl->n_calls)
        p->n_commit = p->n_instrs;
    if (pl->shared_end >= pl->n_calls)
        emit_barrier(pl);
    return rc;
}

ch_status ch__plan_emit(ch_planner *pl)
{
    ch_program *p = pl->p;
    int        *temp = ch__calloc((size_t)pl->g->n_resources + 1, sizeof(*temp));
    ch_status   rc = temp == NULL ? ch__fail_memory("a program") : allocate_temps(pl, temp);

    if (rc == CH_OK)
        rc = ch__buffers_assign(&pl->buffers, &p->arena_bytes, &p->live_bytes);
    if (rc == CH_OK)
        rc = new_lists(pl);
    if (rc == CH_OK)
        rc = emit_calls(pl);
    if (rc == CH_OK) {
        emit_outputs(pl);
        emit_writes(pl, temp);
        rc = find_patches(p, CH_AT_INPUT, &p->inputs);
    }
    if (rc == CH_OK)
        rc = find_patches(p, CH_AT_OUTPUT, &p->outputs);
    if (rc == CH_OK)
        rc = find_patches(p, CH_AT_RESOURCE, &p->resources);
    ch__free(temp);
    return rc;
}

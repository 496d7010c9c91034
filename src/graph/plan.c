/* graph/plan.c -- from a specialised graph to a program: order, places, memory.
 *
 * Words:
 *   root value  the value whose memory a value is: a view's root is its input's root
 *   home        where a root value lives: the arena, or an input, output, constant, resource
 *   buffer      a piece of the arena, shared by values that overwrite each other in turn
 *
 * Invariants:
 *   1. Inputs and constants are never written.
 *   2. No resource is written before n_commit, and no call from n_commit on can fail: so a
 *      step that fails changes no variable.
 *   3. A resource is overwritten only when nobody will read its old value any more.
 *   4. Two values share arena memory only if one is dead before the other is born, or the
 * kernel that makes the one said it may write over the other and is the last to read it.
 *
 * Order is the recorded order, except that calls which overwrite a resource, and what
 * depends on them, come after everything that can fail.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "graph/memory.h"
#include "graph/program.h"

enum { NEVER = -1, AT_END = 1 << 30 };

typedef struct value {
    ch_node *node;
    int      root;           /* value id */
    size_t   offset;         /* in the root */
    int      born, last_use; /* positions in the schedule; of roots */
    int      buffer;         /* -1: not in the arena */
    int      claim;          /* 1 + the resource in whose storage it is to be; 0: none */
    ch_place home;
} value;

typedef struct planner {
    ch_graph              *g;
    const ch_plan_options *opt;
    ch_program            *p;
    int                    n_calls, n_values;
    ch_node              **call;     /* in order of the schedule */
    int                   *position; /* of a call, by its head's value id */
    ch_prep               *prep;     /* by schedule position at first; moves with call */
    const ch_kernel      **kernel;
    value                 *value;
    bool                  *in_place; /* by resource: its new value is computed in its storage */
    bool                  *late;     /* by head id: comes after the point of no return */
    bool                  *used;     /* by value id: somebody reads it */
    ch_buffers             buffers;
    int                   *scratch; /* buffer of each call's scratch; -1: none */
} planner;

const ch_kernel *ch__kernel_for(const ch_node *n)
{
    for (const ch_kernel *const *k = n->op->kernels; *k != NULL; k++)
        if (k[1] == NULL || (*k)->fits(n))
            return (*k)->fits(n) ? *k : NULL;
    return NULL;
}

void *ch__prep_state(ch_prep *p, size_t bytes)
{
    p->state = ch__arena_alloc(p->arena, bytes);
    return p->state;
}

int ch__tile_count(int64_t n, int64_t cost)
{
    const int64_t enough = 64 << 10; /* operations that are worth a thread's attention */
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
static void find_used(planner *pl)
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

static ch_status prepare_call(planner *pl, int i)
{
    ch_node *n = pl->call[i];
    ch_prep *p = &pl->prep[i];

    if (n->op->kernels == NULL)
        return CH_OK; /* a source that the program binds: input, constant, read */
    pl->kernel[i] = ch__kernel_for(n);
    if (pl->kernel[i] == NULL)
        return ch__fail(CH_UNIMPLEMENTED, "%s: no kernel for %s", n->op->name,
                        ch_dtype_name(n->n_in > 0 ? n->in[0]->dtype : n->dtype));
    p->node = n;
    p->threads = pl->opt->threads;
    p->arena = &pl->p->arena;
    for (int k = 0; k < n->n_out; k++)
        p->unused[k] = !pl->used[n[k].id] && !pl->opt->keep_all;
    return pl->kernel[i]->prepare(n, p);
}

/* ---- step 2: roots and homes that are not the planner's choice ---- */

static void settle_sources(planner *pl, const ch_node *n)
{
    value *v = &pl->value[n->id];

    if (n->op == ch__roles.input) {
        const ch_input_attrs *a = n->attrs;
        v->home = (ch_place){.kind = CH_AT_INPUT, .index = (int)a->index};
    } else if (n->op == ch__roles.constant) {
        const ch_constant_attrs *a = n->attrs;
        v->home = (ch_place){.kind = CH_AT_CONSTANT, .data = ch_tensor_data(a->value)};
    } else if (n->op == ch__roles.read) {
        const ch_read_attrs *a = n->attrs;
        v->home = (ch_place){.kind = CH_AT_RESOURCE, .index = (int)a->resource};
    }
}

static void settle_roots(planner *pl)
{
    for (int i = 0; i < pl->n_calls; i++) {
        ch_node *n = pl->call[i];

        for (int k = 0; k < n->n_out; k++) {
            value *v = &pl->value[n[k].id];

            v->node = &n[k];
            v->root = n[k].id;
            v->buffer = -1;
        }
        settle_sources(pl, n);
        if (pl->prep[i].is_view && !pl->opt->keep_all) {
            value *in = &pl->value[n->in[0]->id];

            pl->value[n->id].root = in->root;
            pl->value[n->id].offset = in->offset + pl->prep[i].view_offset;
        }
    }
}

static value *root_of(planner *pl, const ch_node *n)
{
    return &pl->value[pl->value[n->id].root];
}

/* ---- step 3: which resources are updated in place, and the order that follows ---- */

static bool is_fallible(const ch_node *n)
{
    return (n->op->flags & (CH_OP_CAN_FAIL | CH_OP_COLLECTIVE | CH_OP_EFFECT)) != 0;
}

static void find_lifetimes(planner *pl)
{
    for (int i = 0; i < pl->n_values; i++)
        pl->value[i].last_use = NEVER;
    for (int i = 0; i < pl->n_calls; i++) {
        ch_node *n = pl->call[i];

        pl->position[n->id] = i;
        for (int k = 0; k < n->n_out; k++) {
            pl->value[n[k].id].born = i;
            if (root_of(pl, &n[k])->last_use < i)
                root_of(pl, &n[k])->last_use = i;
        }
        for (int k = 0; k < n->n_in; k++)
            root_of(pl, n->in[k])->last_use = i;
    }
    for (int i = 0; i < pl->g->n_outputs; i++)
        root_of(pl, pl->g->output[i].node)->last_use = AT_END;
    for (int i = 0; i < pl->g->n_resources; i++) {
        const ch_resource *r = &pl->g->resource[i];

        if (r->value != r->read && !pl->in_place[i])
            root_of(pl, r->value)->last_use = AT_END;
    }
}

/* True if another input of call c is the same memory, and what the kernel said of overwriting
 * input j with output k does not hold for that one too, or it sees the memory in another way. */
static bool is_seen_twice(planner *pl, const ch_node *c, int k, int j)
{
    unsigned over = pl->prep[pl->position[c->id]].over[k];

    for (int i = 0; i < c->n_in; i++)
        if (i != j && root_of(pl, c->in[i]) == root_of(pl, c->in[j]) &&
            ((over >> i & 1) == 0 ||
             pl->value[c->in[i]->id].offset != pl->value[c->in[j]->id].offset ||
             !ch__dims_same(&c->in[i]->dims, &c->in[j]->dims)))
            return true;
    return false;
}

/* True if call c may write output k over the whole of input j and is the last to use it. */
static bool may_overwrite(planner *pl, const ch_node *c, int k, int j)
{
    const value *in = &pl->value[c->in[j]->id];

    return !is_seen_twice(pl, c, k, j) &&
           (pl->prep[pl->position[c->id]].over[k] >> j & 1) != 0 && in->offset == 0 &&
           root_of(pl, c->in[j])->last_use == pl->position[c->id] &&
           ch__bytes(c->in[j]) == ch__bytes(&c[k]) &&
           ch__bytes(root_of(pl, c->in[j])->node) == ch__bytes(&c[k]);
}

/* True if resource r's storage may be the value's. */
static bool may_claim(planner *pl, int r, const ch_node *v)
{
    int claim = pl->value[v->id].claim;

    return pl->value[v->id].root == v->id && pl->value[v->id].home.kind == CH_AT_NOWHERE &&
           (claim == 0 || claim == r + 1);
}

/* The input that v may be written over on the way back from resource r's new value: its read if
 * that can be, else one that nobody else claims; -1: none. */
static int input_before(planner *pl, int r, const ch_node *v)
{
    const ch_node *c = v->head, *read = pl->g->resource[r].read;

    for (int j = 0; j < c->n_in; j++)
        if (c->in[j] == read && may_overwrite(pl, c, v->index, j))
            return j;
    for (int j = 0; j < c->n_in; j++)
        if (may_claim(pl, r, c->in[j]) && may_overwrite(pl, c, v->index, j))
            return j;
    return -1;
}

/* Follows the new value of resource r back, over calls that can write in place, to its read. If
 * that works, `each` is called for every call on the way. */
static bool chain_to_read(planner *pl, int r, void (*each)(planner *, int r, ch_node *v))
{
    ch_node *v = pl->g->resource[r].value;

    for (;;) {
        ch_node *c = v->head;
        int      j;

        if (pl->kernel[pl->position[c->id]] == NULL || !may_claim(pl, r, v))
            return false;
        j = input_before(pl, r, v);
        if (j < 0)
            return false;
        if (each != NULL)
            each(pl, r, v);
        v = c->in[j];
        if (v == pl->g->resource[r].read)
            return true;
    }
}

static void claim(planner *pl, int r, ch_node *v)
{
    pl->value[v->id].claim = r + 1;
}

/* Gives up on resources that have no way back, or only one that meets another's. True if there
 * was one. */
static bool drop_broken_chains(planner *pl)
{
    bool any = false;

    find_lifetimes(pl);
    for (int i = 0; i < pl->n_values; i++)
        pl->value[i].claim = 0;
    for (int r = 0; r < pl->g->n_resources; r++) {
        if (pl->in_place[r] && chain_to_read(pl, r, NULL)) {
            chain_to_read(pl, r, claim);
        } else {
            any |= pl->in_place[r];
            pl->in_place[r] = false;
        }
    }
    return any;
}

static void mark_late(planner *pl, int r, ch_node *v)
{
    (void)r;
    pl->late[v->head->id] = true;
}

/* Marks what depends on a late call; false if something that can fail does. */
static bool spread_late(planner *pl)
{
    for (int i = 0; i < pl->n_calls; i++) {
        ch_node *n = pl->call[i];

        for (int k = 0; k < n->n_in && !pl->late[n->id]; k++)
            pl->late[n->id] = pl->late[n->in[k]->head->id];
        if (pl->late[n->id] && is_fallible(n))
            return false;
    }
    return true;
}

static void mark_all_late(planner *pl)
{
    memset(pl->late, 0, (size_t)pl->n_values);
    for (int r = 0; r < pl->g->n_resources; r++)
        if (pl->in_place[r])
            chain_to_read(pl, r, mark_late);
}

/* Puts late calls after the others; both keep their order. */
static ch_status reorder(planner *pl)
{
    int               n = pl->n_calls, k = 0;
    ch_node         **call = ch__calloc((size_t)n + 1, sizeof(*call));
    ch_prep          *prep = ch__calloc((size_t)n + 1, sizeof(*prep));
    const ch_kernel **kernel = ch__calloc((size_t)n + 1, sizeof(*kernel));

    if (call == NULL || prep == NULL || kernel == NULL) {
        ch__free(call);
        ch__free(prep);
        ch__free(kernel);
        return ch__fail_memory("a program");
    }
    for (int late = 0; late <= 1; late++) {
        for (int i = 0; i < n; i++)
            if (pl->late[pl->call[i]->id] == (late == 1)) {
                call[k] = pl->call[i];
                prep[k] = pl->prep[i];
                kernel[k++] = pl->kernel[i];
            }
        if (late == 0)
            pl->p->n_commit = k;
    }
    ch__free(pl->call);
    ch__free(pl->prep);
    ch__free(pl->kernel);
    pl->call = call;
    pl->prep = prep;
    pl->kernel = kernel;
    return CH_OK;
}

/* Starts from hoping that every written resource can be updated in place, and gives up on those
 * that cannot until the rest holds. */
static ch_status choose_in_place(planner *pl)
{
    ch_status rc;

    for (int r = 0; r < pl->g->n_resources; r++) {
        const ch_resource *res = &pl->g->resource[r];

        pl->in_place[r] = res->read != NULL && res->value != res->read && !pl->opt->keep_all;
        pl->p->writes |= res->value != res->read;
    }
    for (bool changed = true; changed;) {
        changed = drop_broken_chains(pl);
        mark_all_late(pl);
        for (int r = pl->g->n_resources - 1; r >= 0 && !spread_late(pl); r--) {
            changed |= pl->in_place[r];
            pl->in_place[r] = false;
            mark_all_late(pl);
        }
    }
    rc = reorder(pl);
    if (rc != CH_OK)
        return rc;
    /* The new order may have put a reader of the old value behind its writer. */
    while (drop_broken_chains(pl))
        ;
    return CH_OK;
}

static void live_in_resource(planner *pl, int r, ch_node *v)
{
    pl->value[v->id].home = (ch_place){.kind = CH_AT_RESOURCE, .index = r};
}

/* ---- step 4: outputs that can be computed where they are wanted ---- */

static void settle_outputs(planner *pl)
{
    for (int i = 0; i < pl->g->n_outputs; i++) {
        ch_node *n = pl->g->output[i].node;
        value   *v = &pl->value[n->id];

        if (v->root == n->id && v->home.kind == CH_AT_NOWHERE)
            v->home = (ch_place){.kind = CH_AT_OUTPUT, .index = i};
    }
}

/* ---- step 5: the arena ---- */

static int new_buffer(planner *pl, int64_t bytes, int from, int to)
{
    int end = to > pl->n_calls ? pl->n_calls : to;

    return ch__buffers_add(&pl->buffers, (size_t)bytes, from, end);
}

/* The buffer of an input that output k of call i may take over; -1: none. */
static int buffer_to_reuse(planner *pl, int i, int k)
{
    ch_node *c = pl->call[i];

    for (int j = 0; j < c->n_in && !pl->opt->keep_all; j++) {
        value *in = root_of(pl, c->in[j]);

        if (in->buffer >= 0 && may_overwrite(pl, c, k, j) &&
            pl->buffers.at[in->buffer].to == i && !pl->buffers.at[in->buffer].taken)
            return in->buffer;
    }
    return -1;
}

static ch_status give_buffers(planner *pl, int i)
{
    ch_node *c = pl->call[i];

    pl->scratch[i] = -1;
    for (int k = 0; k < c->n_out; k++) {
        value *v = &pl->value[c[k].id];
        int    end = pl->opt->keep_all ? AT_END : v->last_use;

        if (v->root != c[k].id || v->home.kind != CH_AT_NOWHERE || pl->kernel[i] == NULL ||
            (pl->prep[i].skips_unused && pl->prep[i].unused[k]))
            continue;
        v->buffer = buffer_to_reuse(pl, i, k);
        if (v->buffer >= 0) {
            pl->buffers.at[v->buffer].to = end > pl->n_calls ? pl->n_calls : end;
            pl->buffers.at[v->buffer].taken = end == i;
            continue;
        }
        v->buffer = new_buffer(pl, ch__bytes(&c[k]), i, end);
        if (v->buffer < 0)
            return ch__fail_memory("a program");
    }
    if (pl->prep[i].scratch_bytes > 0) {
        pl->scratch[i] = new_buffer(pl, (int64_t)pl->prep[i].scratch_bytes, i, i);
        if (pl->scratch[i] < 0)
            return ch__fail_memory("a program");
    }
    return CH_OK;
}

/* ---- step 6: instructions ---- */

static void move_on(ch_place *at, size_t bytes)
{
    if (at->kind == CH_AT_CONSTANT)
        at->data = (const char *)at->data + bytes;
    else
        at->offset += bytes;
}

static ch_place place_of(planner *pl, const ch_node *n)
{
    const value *v = &pl->value[n->id];
    const value *root = &pl->value[v->root];
    ch_place     at = root->home;

    if (root->buffer >= 0)
        at = (ch_place){.kind = CH_AT_ARENA, .offset = pl->buffers.at[root->buffer].offset};
    move_on(&at, v->offset);
    return at;
}

static bool is_nothing(const ch_node *n)
{
    if (ch__call_is_root(n) || n->n_out == 0)
        return false;
    for (int k = 0; k < n->n_out; k++)
        if (ch__count(&n[k]) > 0)
            return false;
    return true;
}

static void emit_call(planner *pl, int i)
{
    ch_program *p = pl->p;
    ch_node    *n = pl->call[i];
    ch_instr   *x = &p->instr[p->n_instrs];
    ch_place   *slot = &p->slot[p->n_slots];

    if (pl->kernel[i] == NULL)
        return;
    if ((pl->prep[i].is_view && !pl->opt->keep_all) || is_nothing(n)) {
        if (pl->kernel[i]->drop != NULL && pl->prep[i].state != NULL)
            pl->kernel[i]->drop(pl->prep[i].state);
        pl->prep[i].state = NULL;
        return;
    }
    *x = (ch_instr){.node = n,
                    .kernel = pl->kernel[i],
                    .state = pl->prep[i].state,
                    .n_in = n->n_in,
                    .n_out = n->n_out,
                    .first_slot = p->n_slots,
                    .scratch_bytes = pl->prep[i].scratch_bytes,
                    .n_phases = pl->prep[i].n_phases > 0 ? pl->prep[i].n_phases : 1};
    for (int k = 0; k < CH_MAX_PHASES; k++)
        x->tiles[k] = pl->prep[i].n_phases > 0 ? pl->prep[i].tiles[k] : 1;
    if (pl->prep[i].is_view) { /* watched: a view is a copy */
        x->kernel = NULL;
        x->copy_bytes = (size_t)ch__bytes(n);
    }
    for (int k = 0; k < n->n_in; k++)
        *slot++ = place_of(pl, n->in[k]);
    if (pl->prep[i].is_view)
        move_on(&slot[-n->n_in], pl->prep[i].view_offset);
    for (int k = 0; k < n->n_out; k++)
        *slot++ = place_of(pl, &n[k]);
    *slot = (ch_place){0};
    if (pl->scratch[i] >= 0)
        *slot =
            (ch_place){.kind = CH_AT_ARENA, .offset = pl->buffers.at[pl->scratch[i]].offset};
    p->n_slots += n->n_in + n->n_out + 1;
    p->n_instrs++;
    p->has_collective |= (n->op->flags & CH_OP_COLLECTIVE) != 0;
}

static void emit_copy(planner *pl, ch_place from, ch_place to, size_t bytes)
{
    ch_program *p = pl->p;

    if (bytes == 0)
        return;
    p->instr[p->n_instrs++] = (ch_instr){.copy_bytes = bytes,
                                         .n_in = 1,
                                         .n_out = 1,
                                         .first_slot = p->n_slots,
                                         .n_phases = 1,
                                         .tiles = {1, 1, 1}};
    p->slot[p->n_slots++] = from;
    p->slot[p->n_slots++] = to;
    p->slot[p->n_slots++] = (ch_place){0};
}

/* Outputs that are something else as well are copied once everything is computed. */
static void emit_outputs(planner *pl)
{
    for (int i = 0; i < pl->g->n_outputs; i++) {
        ch_node *n = pl->g->output[i].node;
        ch_place from = place_of(pl, n);

        pl->p->output_bytes[i] = (size_t)ch__bytes(n);
        if (from.kind != CH_AT_OUTPUT || from.index != i || from.offset != 0)
            emit_copy(pl, from, (ch_place){.kind = CH_AT_OUTPUT, .index = i},
                      pl->p->output_bytes[i]);
    }
}

/* New values that were not computed in place. A value that is another resource's old value goes
 * first through the arena: that resource may be written too. */
static void emit_writes(planner *pl, const int *aside)
{
    for (int pass = 0; pass < 2; pass++)
        for (int r = 0; r < pl->g->n_resources; r++) {
            const ch_resource *res = &pl->g->resource[r];
            ch_place           to = {.kind = CH_AT_RESOURCE, .index = r}, from;

            if (res->value == res->read || pl->in_place[r])
                continue;
            from = place_of(pl, res->value);
            if (aside[r] >= 0) {
                ch_place at = {.kind = CH_AT_ARENA, .offset = pl->buffers.at[aside[r]].offset};

                emit_copy(pl, pass == 0 ? from : at, pass == 0 ? at : to,
                          (size_t)ch__bytes(res->value));
            } else if (pass == 1) {
                emit_copy(pl, from, to, (size_t)ch__bytes(res->value));
            }
        }
}

/* Buffers for values that must be put aside before resources are written. */
static ch_status give_asides(planner *pl, int *aside)
{
    for (int r = 0; r < pl->g->n_resources; r++) {
        const ch_resource *res = &pl->g->resource[r];

        aside[r] = -1;
        if (res->value == res->read || pl->in_place[r] ||
            root_of(pl, res->value)->home.kind != CH_AT_RESOURCE)
            continue;
        aside[r] = new_buffer(pl, ch__bytes(res->value), pl->n_calls, pl->n_calls);
        if (aside[r] < 0)
            return ch__fail_memory("a program");
    }
    return CH_OK;
}

static ch_status find_patches(ch_program *p, ch_place_kind kind, ch_patches *out)
{
    for (int i = 0; i < p->n_slots; i++)
        out->n += p->slot[i].kind == kind;
    out->at = ch__arena_alloc(&p->arena, (size_t)(out->n + 1) * sizeof(*out->at));
    if (out->at == NULL)
        return ch__fail_memory("a program");
    for (int i = 0, k = 0; i < p->n_slots; i++)
        if (p->slot[i].kind == kind)
            out->at[k++] = (struct ch_patch){i, p->slot[i].index, p->slot[i].offset};
    return CH_OK;
}

static ch_status emit(planner *pl)
{
    ch_program *p = pl->p;
    int         n_slots = 0, extra = pl->g->n_outputs + 2 * pl->g->n_resources;
    int        *aside = ch__calloc((size_t)pl->g->n_resources + 1, sizeof(*aside));
    ch_status   rc = aside == NULL ? ch__fail_memory("a program") : give_asides(pl, aside);

    if (rc == CH_OK)
        rc = ch__buffers_place(&pl->buffers, &p->arena_bytes, &p->live_bytes);
    for (int i = 0; i < pl->n_calls; i++)
        n_slots += pl->call[i]->n_in + pl->call[i]->n_out + 1;
    p->instr =
        ch__arena_alloc(&p->arena, (size_t)(pl->n_calls + extra + 1) * sizeof(*p->instr));
    p->slot = ch__arena_alloc(&p->arena, (size_t)(n_slots + 3 * extra + 1) * sizeof(*p->slot));
    p->output_bytes =
        ch__arena_alloc(&p->arena, ((size_t)pl->g->n_outputs + 1) * sizeof(size_t));
    if (rc == CH_OK && (p->instr == NULL || p->slot == NULL || p->output_bytes == NULL))
        rc = ch__fail_memory("a program");
    if (rc == CH_OK) {
        int commit = p->n_commit;

        for (int i = 0; i < pl->n_calls; i++) {
            if (i == commit)
                p->n_commit = p->n_instrs;
            emit_call(pl, i);
        }
        if (commit >= pl->n_calls)
            p->n_commit = p->n_instrs;
        emit_outputs(pl);
        emit_writes(pl, aside);
        rc = find_patches(p, CH_AT_INPUT, &p->inputs);
    }
    if (rc == CH_OK)
        rc = find_patches(p, CH_AT_OUTPUT, &p->outputs);
    if (rc == CH_OK)
        rc = find_patches(p, CH_AT_RESOURCE, &p->resources);
    ch__free(aside);
    return rc;
}

/* ---- all of it ---- */

static ch_status new_planner(planner *pl)
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
    pl->used = ch__calloc(values, sizeof(*pl->used));
    pl->in_place = ch__calloc((size_t)g->n_resources + 1, sizeof(*pl->in_place));
    if (pl->call == NULL || pl->prep == NULL || pl->kernel == NULL || pl->scratch == NULL ||
        pl->position == NULL || pl->value == NULL || pl->late == NULL || pl->used == NULL ||
        pl->in_place == NULL)
        return ch__fail_memory("a program");
    ch__graph_calls(g, pl->call);
    return CH_OK;
}

static void drop_planner(planner *pl, bool failed)
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
    ch__free(pl->used);
    ch__free(pl->in_place);
    ch__buffers_drop(&pl->buffers);
}

static ch_status plan(planner *pl)
{
    ch_status rc = new_planner(pl);

    if (rc == CH_OK)
        find_used(pl);
    for (int i = 0; i < pl->n_calls && rc == CH_OK; i++)
        rc = prepare_call(pl, i);
    if (rc != CH_OK)
        return rc;
    settle_roots(pl);
    rc = choose_in_place(pl);
    if (rc != CH_OK)
        return rc;
    for (int r = 0; r < pl->g->n_resources; r++)
        if (pl->in_place[r])
            chain_to_read(pl, r, live_in_resource);
    settle_outputs(pl);
    for (int i = 0; i < pl->n_calls && rc == CH_OK; i++)
        rc = give_buffers(pl, i);
    return rc == CH_OK ? emit(pl) : rc;
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
    planner   pl = {.g = g, .opt = opt};
    ch_status rc = pl.opt->keep_all ? CH_OK : run_passes(g);

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

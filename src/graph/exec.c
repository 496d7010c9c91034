/* graph/exec.c -- runs a program on a device.
 *
 * An instance (ch_instance) is a program with addresses. graph/prepared.c creates one for each
 * member of a run, graph/launch.c runs it; ops/body.c creates instances of loop and branch
 * bodies in scratch memory.
 *
 * Invariants:
 *   1. run_instrs is the only code between two kernels. It takes no lock, allocates nothing and
 *      does no lookup.
 *   2. If any program of the run writes variables, all members pass a barrier before their
 *      instruction n_commit. If any member fails before it, no member writes.
 *   3. After CH__BLOCKED, x->at is the instruction to repeat.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "graph/program.h"
#include "graph/run.h"
#include "graph/where.h"

/* A single block of memory: this struct, then the calls, then the addresses of all slots,
 * twice. Kernels read through `from` and write through `to`. Constants and inputs have no
 * address in `to`. */
struct ch_instance {
    ch_program  *program;
    const void **from;
    void       **to;
    unsigned     generation; /* arena_generation of the bound arena */
    bool         is_bound;
    bool         has_committed; /* the barrier before the writes of this run was passed */
    bool         is_blocked;    /* instruction `at` was begun and returned CH__BLOCKED */
    int64_t      began_ns;      /* its start time, if the run is timed */
    int          at;            /* index of the next instruction */
    ch_call      call[]; /* one for each instruction, with pointers into `from` and `to` */
};

size_t ch__instance_bytes(const ch_program *p)
{
    return sizeof(ch_instance) + (size_t)p->n_instrs * sizeof(ch_call) +
           2 * (size_t)p->n_slots * sizeof(void *);
}

ch_instance *ch__instance_at(ch_program *p, void *memory)
{
    ch_instance *x = memory;

    memset(x, 0, ch__instance_bytes(p));
    x->program = p;
    x->to = (void **)(void *)&x->call[p->n_instrs];
    x->from = (const void **)(void *)(x->to + p->n_slots);
    for (int i = 0; i < p->n_instrs; i++) {
        const ch_instr *in = &p->instr[i];

        x->call[i].in = &x->from[in->first_slot];
        x->call[i].out = &x->to[in->first_slot + in->n_in];
        x->call[i].state = in->state;
        x->call[i].node = in->node;
    }
    return x;
}

ch_status ch__instance_new(ch_program *p, ch_instance **out)
{
    void *memory = ch__alloc_untouched(ch__instance_bytes(p));

    if (memory == NULL)
        return ch__fail_memory("a program");
    *out = ch__instance_at(ch__program_ref(p), memory);
    return CH_OK;
}

void ch__instance_free(ch_instance *x)
{
    if (x == NULL)
        return;
    ch__program_unref(x->program);
    ch__free_aligned(x);
}

/* The scratch of kernels that requested none. A valid pointer, because such a kernel may add 0
 * to it. */
static _Alignas(CH_ALIGN) char no_scratch[CH_ALIGN];

/* Returns the further offset of a location on a core. */
static size_t offset_on_core(const size_t *by_core, const ch_bind *b)
{
    return by_core != NULL ? by_core[b->env->core] : 0;
}

/* Sets the addresses of arena and constant slots. */
static void bind_arena(ch_instance *x, const ch_bind *b)
{
    const ch_program *p = x->program;

    for (int i = 0; i < p->n_slots; i++) {
        const ch_location *at = &p->slot[i];

        if (at->kind == CH_AT_ARENA)
            x->from[i] = x->to[i] = b->arena + at->offset;
        else if (at->kind == CH_AT_CONSTANT)
            x->from[i] = (const char *)at->data + offset_on_core(at->by_core, b);
    }
    for (int i = 0; i < p->n_instrs; i++) {
        const ch_instr *in = &p->instr[i];
        void           *scratch = x->to[in->first_slot + in->n_in + in->n_out];

        x->call[i].scratch = scratch != NULL ? scratch : no_scratch;
    }
}

/* Sets the addresses of slots that differ in every run. */
static void patch(ch_instance *x, const ch_patches *p, void *const *base, const ch_bind *b)
{
    for (int i = 0; i < p->n; i++) {
        const struct ch_patch *at = &p->at[i];

        x->from[at->slot] = x->to[at->slot] =
            (char *)base[at->index] + at->offset + offset_on_core(at->by_core, b);
    }
}

static void patch_inputs(ch_instance *x, const ch_patches *p, const ch_bind *b)
{
    for (int i = 0; i < p->n; i++) {
        const struct ch_patch *at = &p->at[i];

        x->from[at->slot] =
            (const char *)b->input[at->index] + at->offset + offset_on_core(at->by_core, b);
    }
}

static void bind(ch_instance *x, const ch_bind *b)
{
    if (!x->is_bound || x->generation != b->arena_generation) {
        bind_arena(x, b);
        x->generation = b->arena_generation;
        x->is_bound = true;
    }
    patch_inputs(x, &x->program->inputs, b);
    patch(x, &x->program->outputs, b->output, b);
    patch(x, &x->program->resources, b->resource, b);
}

/* Counts the bytes of the parts of inputs and results that the program uses in place. */
static void count_parts(const ch_program *p, ch_traffic_counts *count)
{
    count->calls[CH_TRAFFIC_HOST] += p->n_parts_in_place;
    count->bytes[CH_TRAFFIC_HOST] += p->bytes_in_place;
}

/* ---- tiles ---- */

typedef struct tiled {
    const ch_kernel *kernel;
    const ch_call   *call;
    int              phase;
    ch_fault        *fault;
} tiled;

static void run_tile(void *arg, int i)
{
    tiled    *t = arg;
    ch_status rc = t->kernel->run(t->call, (ch_kernel_tile){t->phase, i});

    if (rc != CH_OK)
        ch__fault_record(t->fault, rc, -1, NULL);
}

static ch_status run_on_team(ch_team *team, const ch_kernel *k, const ch_call *c, int n_phases,
                             const int *tiles)
{
    ch_fault fault;
    tiled    t = {k, c, 0, &fault};

    ch__fault_clear(&fault);
    for (; t.phase < n_phases; t.phase++) {
        ch__team_run(team, tiles[t.phase], run_tile, &t);
        if (ch__fault_is_set(&fault))
            return ch__fault_raise(&fault);
    }
    return CH_OK;
}

static ch_status run_tiles(ch_team *team, const ch_kernel *k, const ch_call *c, int n_phases,
                           const int *tiles)
{
    int most = 0;

    for (int ph = 0; ph < n_phases; ph++)
        most = tiles[ph] > most ? tiles[ph] : most;
    if (team != NULL && most > 1)
        return run_on_team(team, k, c, n_phases, tiles);
    for (int ph = 0; ph < n_phases; ph++)
        for (int i = 0; i < tiles[ph]; i++) {
            ch_status rc = k->run(c, (ch_kernel_tile){ph, i});

            if (rc != CH_OK)
                return rc;
        }
    return CH_OK;
}

/* ---- instructions ---- */

/* Returns true if only the first of several members executes the instruction, and this is
 * another. */
static inline bool is_left_to_first(const ch_instr *in, const ch_bind *b)
{
    return in->first_only && !b->is_first;
}

/* Marks the rows that the next instruction writes, serially: ids are few compared with the
 * elements of their rows. */
static void mark_rows(const ch_row_write *w, const void *ids, const ch_bind *b)
{
    if (b->marking != NULL)
        pthread_mutex_lock(b->marking);
    for (int i = 0; i < w->n; i++)
        if (b->marks[w->resource[i]] != NULL)
            ch__row_marks_add(b->marks[w->resource[i]], w->n_ids, ids, w->wide);
    if (b->marking != NULL)
        pthread_mutex_unlock(b->marking);
}

/* Runs an instruction that the planner added: a barrier, a mark of rows or a copy. */
static ch_status run_added(const ch_instr *in, const ch_call *c, const ch_bind *b)
{
    if (in->is_barrier)
        return b->barrier != NULL ? b->barrier(b->barrier_arg) : CH_OK;
    if (in->row_write == NULL)
        memcpy(c->out[0], c->in[0], in->copy_bytes);
    else if (b->marks != NULL)
        mark_rows(in->row_write, c->in[0], b);
    return CH_OK;
}

static inline ch_status run_instr(const ch_instr *in, ch_call *c, const ch_bind *b)
{
    ch_status rc;

    if (b->doing != NULL)
        atomic_store_explicit(b->doing, in->node, memory_order_relaxed);
    if (in->kernel == NULL) {
        rc = run_added(in, c, b);
    } else {
        c->env = b->env;
        if (in->n_phases == 1 && in->tiles[0] == 1)
            rc = in->kernel->run(c, (ch_kernel_tile){0, 0});
        else
            rc = run_tiles(b->team, in->kernel, c, in->n_phases, in->tiles);
    }
    if (rc == CH_OK && b->see != NULL && in->node != NULL)
        b->see(b->see_arg, in, c);
    return rc;
}

static inline bool is_stopped(const atomic_bool *stop)
{
    return stop != NULL && atomic_load_explicit(stop, memory_order_relaxed);
}

static ch_status fail_stopped(void)
{
    return ch__fail(CH_CANCELLED, "the run was stopped between two kernels");
}

/* Runs the instructions up to `to`. If an instruction fails or returns CH__BLOCKED, x->at is
 * its index afterwards. */
static ch_status run_instrs(ch_instance *x, const ch_bind *b, int to)
{
    const ch_instr    *in = x->program->instr + x->at;
    const atomic_bool *stop = b->env->stop;
    ch_call           *c = x->call + x->at;
    ch_status          rc;

    x->is_blocked = false;
    for (int i = x->at; i < to; i++, in++, c++) {
        if (is_stopped(stop))
            return fail_stopped();
        if (is_left_to_first(in, b))
            continue;
        rc = run_instr(in, c, b);
        if (rc != CH_OK) {
            x->at = i;
            x->is_blocked = rc == CH__BLOCKED;
            return rc;
        }
    }
    x->at = to;
    return CH_OK;
}

/* The same for a timed run. */
static ch_status run_instrs_timed(ch_instance *x, const ch_bind *b, int to)
{
    for (; x->at < to; x->at++) {
        const ch_instr *in = &x->program->instr[x->at];
        int64_t         begin;
        ch_status       rc;

        if (is_stopped(b->env->stop))
            return fail_stopped();
        if (is_left_to_first(in, b))
            continue;
        (void)ch__clock_switch(b->clock, in->work);
        begin = x->is_blocked ? x->began_ns : ch__clock_begin_span(b->clock);
        rc = run_instr(in, &x->call[x->at], b);
        x->is_blocked = rc == CH__BLOCKED;
        x->began_ns = begin;
        if (x->is_blocked)
            return rc;
        if (in->node != NULL)
            ch__clock_end_span(b->clock, begin, in->node->scope, in->node->op->name);
        else
            ch__clock_end_span(b->clock, begin, NULL,
                               in->is_barrier          ? "barrier"
                               : in->row_write != NULL ? "mark rows"
                                                       : "copy");
        if (rc != CH_OK)
            return rc;
    }
    return CH_OK;
}

static ch_status run_to(ch_instance *x, const ch_bind *b, int to)
{
    return b->clock != NULL ? run_instrs_timed(x, b, to) : run_instrs(x, b, to);
}

static ch_status run_on(ch_instance *x, const ch_bind *b)
{
    const ch_program *p = x->program;
    ch_status         rc = CH_OK;

    if (!x->has_committed) {
        rc = run_to(x, b, p->n_commit);
        if (rc == CH_OK && b->barrier != NULL) {
            if (b->clock != NULL)
                (void)ch__clock_switch(b->clock, CH_WORK_REDUCE);
            rc = b->barrier(b->barrier_arg);
        }
        if (rc != CH_OK)
            return rc;
        x->has_committed = true;
    }
    return run_to(x, b, p->n_instrs);
}

ch_status ch__instance_continue(ch_instance *x, const ch_bind *b)
{
    ch_call  *repeated = x->is_blocked ? &x->call[x->at] : NULL;
    ch_status rc;

    if (repeated != NULL)
        repeated->is_repeated = true;
    rc = run_on(x, b);
    if (repeated != NULL)
        repeated->is_repeated = false;
    return rc;
}

ch_status ch__instance_run(ch_instance *x, const ch_bind *b)
{
    bind(x, b);
    if (b->env->traffic != NULL)
        count_parts(x->program, b->env->traffic);
    x->at = 0;
    x->has_committed = x->is_blocked = false;
    return run_on(x, b);
}

/* ---- single calls ---- */

/* Returns true if all outputs are empty. Then, as in a program, the kernel is not called. */
static bool is_empty(const ch_node *n)
{
    for (int i = 0; i < n->n_out; i++)
        if (ch__count(&n[i]) > 0)
            return false;
    return n->n_out > 0;
}

ch_status ch__call_run(const ch_node *n, const ch_kernel *k, const void *const *in,
                       void *const *out, const ch_env *env, ch_team *team)
{
    static const int one[CH_MAX_PHASES] = {1, 1, 1};
    ch_arena         arena = {0};
    ch_prep   p = {.node = n, .arg = k->arg, .threads = ch__team_size(team), .arena = &arena};
    ch_call   c = {.in = in, .out = out, .env = env, .node = n};
    ch_status rc = k->prepare != NULL ? k->prepare(n, &p) : CH_OK;

    if (rc == CH_OK && p.is_view) {
        size_t from = p.view_by_core != NULL ? p.view_by_core[env->core] : p.view_offset;

        memcpy(out[0], (const char *)in[0] + from, (size_t)ch__bytes(n));
    } else if (rc == CH_OK && !is_empty(n)) {
        c.state = p.state;
        c.scratch = p.scratch_bytes > 0 ? ch__alloc_aligned(p.scratch_bytes) : no_scratch;
        if (c.scratch == NULL)
            rc = ch__fail_memory(n->op->name);
        else
            rc = run_tiles(team, k, &c, p.n_phases > 0 ? p.n_phases : 1,
                           p.n_phases > 0 ? p.tiles : one);
        if (p.scratch_bytes > 0)
            ch__free_aligned(c.scratch);
    }
    if (k->drop != NULL && p.state != NULL)
        k->drop(p.state);
    ch__arena_drop(&arena);
    return rc;
}

ch_status ch__fail_in_call(ch_status rc, const ch_node *call)
{
    return ch__fail_in(rc, call->composite, call->scope, call->caller);
}

ch_status ch__call_fail(const ch_call *c, ch_status rc, const char *format, ...)
{
    char    why[512], dims[160], types[512] = "";
    size_t  used = 0;
    va_list args;

    va_start(args, format);
    vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    for (int i = 0; i < c->node->n_in && used < sizeof(types) - 1; i++) {
        ch__dims_print(&c->node->in[i]->dims, dims, sizeof(dims));
        used += (size_t)snprintf(types + used, sizeof(types) - used, "%s%s%s",
                                 i > 0 ? ", " : "", ch_dtype_name(c->node->in[i]->dtype), dims);
    }
    (void)ch__fail(rc, "%s(%s): %s", c->node->op->name, types, why);
    return ch__fail_in_call(rc, c->node);
}

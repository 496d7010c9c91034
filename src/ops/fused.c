/* ops/fused.c -- the kernel of all elementwise ops, alone or as a fused chain.
 *
 * A chain is a list of instructions (ch_fused_step); a single op is a chain of length 1. The
 * pass ch__pass_fuse builds longer chains. The elements are divided into blocks. A block is so
 * small that all its values stay in the first-level cache. Each block goes through all
 * instructions before the next block begins. So a chain reads its inputs and writes its outputs
 * once, and intermediate values stay in the cache.
 *
 *     input --locate--> block of its own type --widen--> f32 --\
 *                                                               instruction --round--> value
 *     ...                                                       --------------narrow--> output
 *
 * Main structs: `chain` is the kernel's state, `operand` an input of the call, `instruction` a
 * step with its buffers assigned. elementwise_prepare and fused_prepare build a chain;
 * elementwise_run runs a tile of it.
 *
 * Invariants:
 *   1. An instruction computes the same in a chain as alone, and its 16-bit results are rounded
 *      after each instruction. So fused and unfused calls give the same bits.
 *   2. The division into blocks depends on shapes only, and elements are independent of each
 *      other. So tiles may run in any order.
 *   3. An output may be written over an input only if no later instruction reads that input's
 *      block (allow_over).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "graph/graph.h"
#include "kernel/block.h"
#include "ops/ops.h"

enum {
    STACK_BYTES = 48 << 10, /* bytes of all buffers, on the stack */
    CACHE_BYTES = 16 << 10, /* share of the L1 cache for buffers; the rest: inputs, outputs */
    BLOCK = 2048,           /* largest block, in elements */
    LEAST_BLOCK = 64,
    MAX_VALUES = CH_FUSED_INPUTS + CH_FUSED_STEPS
};

/* How an instruction gets the elements of an input as a contiguous block. A row is the last
 * axis after collapsing. */
typedef enum access_kind {
    DIRECT, /* reads input memory: the input has as many elements as the outputs */
    ROW,    /* reads input memory: the input is a single row, a block is part of a row */
    ONCE,   /* copied once a tile: a scalar, or a single row when blocks are whole rows */
    SPREAD  /* copied for each block: every other broadcast */
} access_kind;

typedef struct operand {
    access_kind  how;
    size_t       bytes; /* of an element */
    ch_repeat_fn repeat;
    ch_block_fn  widen;               /* 16-bit float to f32; NULL for other dtypes */
    int          buffer;              /* buffer for the copy; unused if DIRECT */
    int          wide;                /* buffer for the widened elements; -1: none */
    int64_t      stride[CH_MAX_RANK]; /* in elements; 0: repeated */
} operand;

typedef struct instruction {
    ch_block_fn fn;
    double      param[4];
    int         n_in, in[4];
    bool        is_once;   /* no inputs: the result is the same for every block */
    int         buffer;    /* buffer of the result; -1: written directly to the output */
    int         result;    /* index of the output; -1: not an output */
    size_t      out_bytes; /* of an element of that output */
    ch_block_fn round;     /* for 16-bit results that a later step reads; else NULL */
    ch_block_fn narrow;    /* for 16-bit results that are an output; else NULL */
} instruction;

typedef struct chain {
    bool         is_plain; /* one instruction, all inputs DIRECT: runs without buffers */
    int          n_in, n_steps, n_tiles;
    int64_t      count; /* elements of each output */
    int          rank;  /* number of dims after collapsing */
    int64_t      dim[CH_MAX_RANK];
    int64_t      inner; /* elements of a row */
    int64_t      parts; /* blocks in a row; 0: a block is one or more whole rows */
    int64_t      block; /* elements of the largest block */
    int64_t      n_blocks;
    size_t       buffer_bytes;
    operand     *input;
    instruction *step;
} chain;

/* ---- shapes ---- */

/* Returns true if x has its own elements along axis d of the output, false if x is repeated. */
static bool is_full(const ch_node *x, const ch_dims *out, int d)
{
    int k = d - (out->rank - x->dims.rank);

    return k >= 0 && x->dims.dim[k].n == out->dim[d].n;
}

static bool same_fullness(const ch_node *n, int d, int e)
{
    for (int j = 0; j < n->n_in; j++)
        if (is_full(n->in[j], &n->dims, d) != is_full(n->in[j], &n->dims, e))
            return false;
    return true;
}

/* Drops axes of size 1, and merges neighbouring axes if every input is repeated along both or
 * along neither. Sets the chain's dims and the strides of its inputs. */
static void collapse(chain *c, const ch_node *n)
{
    int axis[CH_MAX_RANK] = {0}; /* for each collapsed dim, an axis that was merged into it */

    for (int d = 0; d < n->dims.rank; d++) {
        if (n->dims.dim[d].n == 1)
            continue;
        if (c->rank > 0 && same_fullness(n, axis[c->rank - 1], d)) {
            c->dim[c->rank - 1] *= n->dims.dim[d].n;
            continue;
        }
        axis[c->rank] = d;
        c->dim[c->rank++] = n->dims.dim[d].n;
    }
    c->inner = c->rank > 0 ? c->dim[c->rank - 1] : 1;
    for (int j = 0; j < n->n_in; j++) {
        int64_t stride = 1;

        for (int k = c->rank - 1; k >= 0; k--) {
            bool full = is_full(n->in[j], &n->dims, axis[k]);

            c->input[j].stride[k] = full ? stride : 0;
            stride *= full ? c->dim[k] : 1;
        }
    }
}

/* ---- preparing: from steps to instructions ---- */

/* Returns the bytes of an element while a chain computes: 16-bit floats are held as f32. */
static size_t live_bytes(ch_dtype t)
{
    return ch__dtype_is_half(t) ? sizeof(float) : ch_dtype_bytes(t);
}

/* Returns true if the step copies its input unchanged, as a broadcast does in a chain. `in` is
 * the dtype of its input. */
static bool is_copy(const ch_fused_step *s, ch_dtype in)
{
    ch_dtype t = ch__dtype_is_half(in) ? CH_F32 : in;

    return s->n_in == 1 && s->out == in && s->block.fn == ch__blocks()->cast[t][t];
}

/* Writes the steps to `to`, without the copies that are not outputs. Steps that read a dropped
 * copy read its input instead. Returns the number of steps written. */
static int drop_copies(const ch_node *n, int n_steps, const ch_fused_step *step,
                       ch_fused_step *to)
{
    int now[MAX_VALUES], kept = 0;

    for (int j = 0; j < n->n_in; j++)
        now[j] = j;
    for (int i = 0; i < n_steps; i++) {
        int      x = step[i].in[0];
        ch_dtype in = CH_STR;

        if (step[i].n_in > 0)
            in = x < n->n_in ? n->in[x]->dtype : step[x - n->n_in].out;
        if (step[i].result < 0 && is_copy(&step[i], in)) {
            now[n->n_in + i] = now[x];
            continue;
        }
        now[n->n_in + i] = n->n_in + kept;
        to[kept] = step[i];
        for (int k = 0; k < step[i].n_in; k++)
            to[kept].in[k] = now[step[i].in[k]];
        kept++;
    }
    return kept;
}

/* The allocation of buffers, while preparing. `n` is the number of buffers created. */
typedef struct buffers {
    int  n;
    bool busy[MAX_VALUES * 2];
} buffers;

static int alloc_buffer(buffers *b)
{
    int i = 0;

    while (i < b->n && b->busy[i])
        i++;
    b->busy[i] = true;
    b->n += i == b->n;
    return i;
}

/* The values of the chain while preparing: inputs first, then the results of the steps. */
typedef struct values {
    ch_dtype dtype[MAX_VALUES];
    int      last_use[MAX_VALUES]; /* the last step that reads the value; -1: none */
    int      buffer[MAX_VALUES];   /* the value's own buffer; -1: none, or released */
} values;

static void find_uses(values *v, const ch_node *n, int n_steps, const ch_fused_step *step)
{
    for (int j = 0; j < n->n_in + n_steps; j++) {
        v->dtype[j] = j < n->n_in ? n->in[j]->dtype : step[j - n->n_in].out;
        v->last_use[j] = v->buffer[j] = -1;
    }
    for (int i = 0; i < n_steps; i++)
        for (int k = 0; k < step[i].n_in; k++)
            v->last_use[step[i].in[k]] = i;
}

/* Releases the buffers of the inputs that step i is the last to read. */
static void release_inputs(values *v, buffers *b, const ch_fused_step *s, int i)
{
    for (int k = 0; k < s->n_in; k++)
        if (v->last_use[s->in[k]] == i && v->buffer[s->in[k]] >= 0) {
            b->busy[v->buffer[s->in[k]]] = false;
            v->buffer[s->in[k]] = -1;
        }
}

/* Returns true if the result of s may be written over the buffer of an input of s. All elements
 * must have the same width, because a block function goes through them one by one. */
static bool can_replace(const values *v, const ch_fused_step *s)
{
    for (int k = 0; k < s->n_in; k++)
        if (live_bytes(v->dtype[s->in[k]]) != live_bytes(s->out))
            return false;
    return true;
}

/* Makes instruction i from step s, and assigns its buffer. `once` is the buffer of a result
 * that is the same for every block; -1 if the result differs. */
static void lower_step(chain *c, values *v, buffers *b, const ch_fused_step *s, int i, int once)
{
    const ch_block_table *t = ch__blocks();
    instruction          *x = &c->step[i];
    int                   self = c->n_in + i;
    bool                  replaces = can_replace(v, s);

    x->fn = s->block.fn;
    memcpy(x->param, s->block.param, sizeof(x->param));
    x->n_in = s->n_in;
    memcpy(x->in, s->in, sizeof(x->in));
    x->result = s->result;
    x->out_bytes = ch_dtype_bytes(s->out);
    x->is_once = once >= 0;
    x->buffer = -1;
    if (ch__dtype_is_half(s->out)) {
        x->round = v->last_use[self] >= 0 ? t->round[s->out] : NULL;
        x->narrow = s->result >= 0 ? t->narrow[s->out] : NULL;
    }
    if (replaces)
        release_inputs(v, b, s, i);
    if (x->is_once)
        x->buffer = once;
    else if (s->result < 0 || ch__dtype_is_half(s->out))
        v->buffer[self] = x->buffer = alloc_buffer(b);
    if (!replaces)
        release_inputs(v, b, s, i);
    if (v->buffer[self] >= 0 &&
        v->last_use[self] < 0) { /* an output that no later step reads */
        b->busy[v->buffer[self]] = false;
        v->buffer[self] = -1;
    }
}

/* Decides how instructions get the elements of input j, and assigns its buffers. */
static void lower_input(chain *c, const ch_node *n, buffers *b, int j)
{
    operand *x = &c->input[j];
    int      last = c->rank - 1;
    bool     is_row = c->rank > 0 && x->stride[last] == 1;

    for (int k = 0; k < last; k++)
        is_row &= x->stride[k] == 0;
    x->bytes = ch_dtype_bytes(n->in[j]->dtype);
    x->repeat = ch__blocks()->repeat[x->bytes];
    if (ch__count(n->in[j]) == c->count)
        x->how = DIRECT;
    else if (ch__count(n->in[j]) == 1)
        x->how = ONCE;
    else if (is_row)
        x->how = ROW; /* `cut` changes it to ONCE if blocks are whole rows */
    else
        x->how = SPREAD;
    x->buffer = x->how == DIRECT ? 0 : alloc_buffer(b);
    x->wide = -1;
    if (ch__dtype_is_half(n->in[j]->dtype)) {
        x->widen = ch__blocks()->widen[n->in[j]->dtype];
        x->wide = alloc_buffer(b);
    }
}

/* Chooses the size of blocks so that all buffers fit CACHE_BYTES: a long row is divided into
 * parts, several short rows make a block. `width` is the bytes of the widest element. */
static void cut(chain *c, int n_buffers, size_t width)
{
    int64_t most = BLOCK;

    if (n_buffers > 0)
        most = CACHE_BYTES / ((int64_t)width * n_buffers) / LEAST_BLOCK * LEAST_BLOCK;
    most = most > BLOCK ? BLOCK : most < LEAST_BLOCK ? LEAST_BLOCK : most;
    if (c->inner > most / 2) {
        c->parts = (c->inner + most - 1) / most;
        c->block = (c->inner + c->parts - 1) / c->parts;
        c->block = (c->block + 15) / 16 * 16;
        c->parts = (c->inner + c->block - 1) / c->block;
        c->n_blocks = c->count / c->inner * c->parts;
    } else {
        c->parts = 0;
        c->block = most / c->inner * c->inner;
        c->n_blocks = (c->count + c->block - 1) / c->block;
        for (int j = 0; j < c->n_in; j++)
            if (c->input[j].how == ROW)
                c->input[j].how = ONCE;
    }
    c->buffer_bytes = ch__aligned((size_t)c->block * width);
}

/* Allows each output to be written over every DIRECT input that no later instruction reads. An
 * input that is widened counts as read before the first instruction. */
static void allow_over(const chain *c, const values *v, const ch_fused_step *step, ch_prep *p)
{
    for (int i = 0; i < c->n_steps; i++)
        for (int j = 0; j < c->n_in && step[i].result >= 0; j++)
            if (c->input[j].how == DIRECT && c->input[j].bytes == ch_dtype_bytes(step[i].out) &&
                (c->input[j].widen != NULL || v->last_use[j] <= i))
                p->over[step[i].result] |= 1u << j;
}

/* Returns true if the step reads inputs 0, 1, 2, ... in order. This can be false in a chain of
 * one step, because equal inputs of the call are merged: mul(x, x) has one input. */
static bool reads_inputs_in_order(const ch_fused_step *s)
{
    for (int i = 0; i < s->n_in; i++)
        if (s->in[i] != i)
            return false;
    return true;
}

/* Builds the chain of call n from its n_all steps, and sets p. */
static ch_status prepare_steps(const ch_node *n, ch_prep *p, int n_all,
                               const ch_fused_step *all)
{
    ch_fused_step step[CH_FUSED_STEPS];
    int           once[CH_FUSED_STEPS], n_steps = drop_copies(n, n_all, all, step);
    buffers       b = {0};
    values        v = {0};
    size_t        width = 1; /* bytes of the widest element */
    int64_t       cost = 1;  /* of an element: reading and writing, then every step */
    chain        *c = ch__prep_state(p, sizeof(*c));

    if (c == NULL ||
        (c->input = ch__arena_alloc(p->arena, (size_t)(n->n_in + 1) * sizeof(*c->input))) ==
            NULL ||
        (c->step = ch__arena_alloc(p->arena, (size_t)n_steps * sizeof(*c->step))) == NULL)
        return ch__fail_memory(n->op->name);
    c->n_in = n->n_in;
    c->n_steps = n_steps;
    c->count = ch__count(n);
    c->n_tiles = 1;
    if (c->count == 0)
        return CH_OK; /* a call with empty outputs does not run */
    collapse(c, n);
    find_uses(&v, n, n_steps, step);
    for (int j = 0; j < n->n_in; j++)
        lower_input(c, n, &b, j);
    for (int i = 0; i < n_steps; i++) /* first, because these buffers are never released */
        once[i] = step[i].n_in == 0 && step[i].result < 0 ? alloc_buffer(&b) : -1;
    for (int i = 0; i < n_steps; i++)
        lower_step(c, &v, &b, &step[i], i, once[i]);
    c->is_plain = b.n == 0 && n_steps == 1 && reads_inputs_in_order(&step[0]);
    for (int j = 0; j < n->n_in + n_steps; j++)
        width = live_bytes(v.dtype[j]) > width ? live_bytes(v.dtype[j]) : width;
    cut(c, b.n, width);
    allow_over(c, &v, step, p);
    for (int i = 0; i < n_steps; i++)
        cost += ch__block_cost(step[i].block.fn);
    c->n_tiles = p->tiles[0] = ch__tile_count(c->n_blocks, c->block * cost);
    p->n_phases = 1;
    return CH_OK;
}

static ch_status elementwise_prepare(const ch_node *n, ch_prep *p)
{
    ch_fused_step one = {.out = n->dtype, .n_in = n->n_in, .in = {0, 1, 2, 3}, .result = 0};

    if (n->n_in > 4 || !n->op->block(n, &one.block))
        return ch__fail(CH_UNIMPLEMENTED, "%s: no block function for %s", n->op->name,
                        ch_dtype_name(n->dtype));
    return prepare_steps(n, p, 1, &one);
}

/* ---- running ---- */

/* Returns the offset in input x of row `row` of the output, in elements. */
static int64_t row_offset(const chain *c, const operand *x, int64_t row)
{
    int64_t at = 0;

    for (int k = c->rank - 2; k >= 0; k--) {
        at += row % c->dim[k] * x->stride[k];
        row /= c->dim[k];
    }
    return at;
}

/* Copies n whole rows of x, broadcast to the output's shape, to `to`. Rows along the axis
 * before the last are a fixed distance apart in x, so a run of them is copied together. */
static void spread_rows(const chain *c, const operand *x, const char *from, int64_t row,
                        int64_t n, char *to)
{
    int64_t run = c->rank > 1 ? c->dim[c->rank - 2] : 1;
    int64_t step = c->rank > 1 ? x->stride[c->rank - 2] : 0;
    size_t  row_bytes = (size_t)c->inner * x->bytes;

    while (n > 0) {
        int64_t     some = run - row % run < n ? run - row % run : n;
        const char *at = from + (size_t)row_offset(c, x, row) * x->bytes;

        if (x->stride[c->rank - 1] == 0)
            x->repeat(some, c->inner, at, step, to);
        else
            for (int64_t i = 0; i < some; i++)
                memcpy(to + (size_t)i * row_bytes, at + (size_t)(i * step) * x->bytes,
                       row_bytes);
        row += some;
        n -= some;
        to += (size_t)some * row_bytes;
    }
}

/* Returns n elements of row `row` of x, from element `skip` on. They are in x's own memory or,
 * if x is repeated along the row, a copy in `to`. */
static const char *spread_part(const chain *c, const operand *x, const char *from, int64_t row,
                               int64_t skip, int64_t n, char *to)
{
    const char *at = from + (size_t)row_offset(c, x, row) * x->bytes;

    if (x->stride[c->rank - 1] != 0)
        return at + (size_t)skip * x->bytes;
    x->repeat(1, n, at, 0, to);
    return to;
}

typedef struct block {
    int64_t row, skip; /* if blocks are parts of rows: the row and the first element in it */
    int64_t start, n;  /* first element of the output, number of elements */
} block;

static block block_at(const chain *c, int64_t i)
{
    block b;

    if (c->parts > 0) {
        b.row = i / c->parts;
        b.skip = i % c->parts * c->block;
        b.start = b.row * c->inner + b.skip;
        b.n = c->inner - b.skip < c->block ? c->inner - b.skip : c->block;
    } else {
        b.row = b.skip = 0;
        b.start = i * c->block;
        b.n = c->count - b.start < c->block ? c->count - b.start : c->block;
    }
    return b;
}

static const char *widened(const operand *x, const char *from, int64_t n, char *to)
{
    const void *in = from;

    x->widen(n, &in, to, NULL);
    return to;
}

/* Returns input x, which is ONCE, as a block that serves for all blocks. `memory` holds all
 * buffers. */
static const char *locate_once(const chain *c, const operand *x, const char *from, char *memory)
{
    int64_t n = c->block < c->count ? c->block : c->count;
    char   *to = memory + (size_t)x->buffer * c->buffer_bytes;

    if (c->rank == 0 || x->stride[c->rank - 1] == 0)
        x->repeat(1, n, from, 0, to);
    else
        for (int64_t i = 0; i < n; i += c->inner)
            memcpy(to + (size_t)i * x->bytes, from, (size_t)c->inner * x->bytes);
    if (x->widen != NULL)
        return widened(x, to, n, memory + (size_t)x->wide * c->buffer_bytes);
    return to;
}

/* Returns block b of input x, which is not ONCE: in its own memory or in a buffer. */
static const char *locate_block(const chain *c, const operand *x, const char *from,
                                const block *b, char *memory)
{
    char       *to = memory + (size_t)x->buffer * c->buffer_bytes;
    const char *at = from;

    if (x->how == DIRECT) {
        at += (size_t)b->start * x->bytes;
    } else if (x->how == ROW) {
        at += (size_t)b->skip * x->bytes;
    } else if (c->parts > 0) {
        at = spread_part(c, x, from, b->row, b->skip, b->n, to);
    } else {
        spread_rows(c, x, from, b->start / c->inner, b->n / c->inner, to);
        at = to;
    }
    if (x->widen != NULL)
        return widened(x, at, b->n, memory + (size_t)x->wide * c->buffer_bytes);
    return at;
}

/* Runs x on block b, and sets value[self] to the result. */
static void run_instruction(const chain *c, const instruction *x, const block *b,
                            const void **value, void *const *out, char *memory, int self)
{
    const void *in[4];
    char       *end = NULL, *to;

    for (int k = 0; k < x->n_in; k++)
        in[k] = value[x->in[k]];
    if (x->result >= 0)
        end = (char *)out[x->result] + (size_t)b->start * x->out_bytes;
    to = x->buffer >= 0 ? memory + (size_t)x->buffer * c->buffer_bytes : end;
    x->fn(b->n, in, to, x->param);
    value[self] = in[0] = to;
    if (x->round != NULL)
        x->round(b->n, in, to, NULL);
    if (x->narrow != NULL)
        x->narrow(b->n, in, end, NULL);
}

static void run_blocks(const chain *c, const ch_call *call, int64_t from, int64_t to)
{
    _Alignas(CH_ALIGN) char memory[STACK_BYTES];
    const void             *value[MAX_VALUES];
    block                   whole = {.n = c->block < c->count ? c->block : c->count};

    for (int j = 0; j < c->n_in; j++)
        if (c->input[j].how == ONCE)
            value[j] = locate_once(c, &c->input[j], call->in[j], memory);
    for (int k = 0; k < c->n_steps; k++)
        if (c->step[k].is_once)
            run_instruction(c, &c->step[k], &whole, value, call->out, memory, c->n_in + k);
    for (int64_t i = from; i < to; i++) {
        block b = block_at(c, i);

        for (int j = 0; j < c->n_in; j++)
            if (c->input[j].how != ONCE)
                value[j] = locate_block(c, &c->input[j], call->in[j], &b, memory);
        for (int k = 0; k < c->n_steps; k++)
            if (!c->step[k].is_once)
                run_instruction(c, &c->step[k], &b, value, call->out, memory, c->n_in + k);
    }
}

static void run_plain(const chain *c, const ch_call *call, int64_t from, int64_t to)
{
    const instruction *x = &c->step[0];
    int64_t            start = from * c->block, end = to * c->block;
    const void        *in[4];

    if (end > c->count)
        end = c->count;
    for (int j = 0; j < c->n_in; j++)
        in[j] = (const char *)call->in[j] + (size_t)start * c->input[j].bytes;
    x->fn(end - start, in, (char *)call->out[0] + (size_t)start * x->out_bytes, x->param);
}

static ch_status elementwise_run(const ch_call *call, ch_kernel_tile t)
{
    const chain *c = call->state;
    int64_t      from, to;

    if (c->n_tiles == 1 && c->is_plain) {
        c->step[0].fn(c->count, call->in, call->out[0], c->step[0].param);
        return CH_OK;
    }
    ch__tile_range(c->n_blocks, c->n_tiles, t.index, &from, &to);
    if (c->is_plain)
        run_plain(c, call, from, to);
    else
        run_blocks(c, call, from, to);
    return CH_OK;
}

const ch_kernel ch__kernel_elementwise = {"blocks", .prepare = elementwise_prepare,
                                          .run = elementwise_run};

/* ---- fused: calls that ch__pass_fuse creates; recorded graphs contain none ---- */

static const ch_attr fused_rows[] = {
    CH_ATTR_INT(ch_fused_attrs, n_steps),
    CH_ATTR_HOST(ch_fused_attrs, step),
    CH_ATTR_END,
};

static ch_status fused_infer(ch_infer *c)
{
    return ch__infer_fail(c, "this op is created by the planner and cannot be recorded");
}

static ch_status fused_prepare(const ch_node *n, ch_prep *p)
{
    const ch_fused_attrs *a = n->attrs;

    return prepare_steps(n, p, (int)a->n_steps, a->step);
}

static const ch_kernel fused_blocks = {"blocks", .prepare = fused_prepare,
                                       .run = elementwise_run};

const ch_op ch__op_fused = {
    .name = "fused",
    .version = 1,
    .n_in = -1,
    .n_out = -1,
    .flags = CH_OP_HOST | CH_OP_NO_GRAD,
    .attrs = fused_rows,
    .attrs_bytes = sizeof(ch_fused_attrs),
    .infer = fused_infer,
    .replicated = CH_MADE_BY_PASS,
    .kernels = (const ch_kernel *const[]){&fused_blocks, NULL},
};

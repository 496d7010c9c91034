/* spmd/parts.c -- the ops take_part and put_part: a core reads its part of an input, and writes
 * its part of a result.
 *
 * All cores of a replica have the same inputs and write to the same results. The positions of
 * the parts are in tables by core, so that cores that differ in nothing else share a program.
 * put_part is always the node of an output: the planner then gives it the memory of the result,
 * and it leaves the parts of other cores as they are.
 *
 * A part that is contiguous in the whole array, such as some rows, is used in place: take_part
 * is a view of the input, and the value that put_part would copy is computed in the memory of
 * the result. Other parts are copied, because kernels need contiguous arrays.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "base/mutant.h"
#include "graph/step.h"
#include "kernel/move.h"
#include "spmd/core_ops.h"

typedef struct part_attrs {
    void    *at;      /* ch_region by core: the part in the whole value */
    int64_t  n_cores; /* length of `at` */
    int64_t  cores;   /* bit c: core c has a part */
    ch_dtype dtype;
    ch_dims  dims; /* of the output */
    /* of put_part: */
    int64_t index;    /* the number of the output */
    bool    puts_all; /* every core of the graph writes all of its input */
} part_attrs;

static const ch_attr part_rows[] = {
    CH_ATTR_HOST(part_attrs, at),       CH_ATTR_INT(part_attrs, n_cores),
    CH_ATTR_DTYPE(part_attrs, dtype),   CH_ATTR_DIMS(part_attrs, dims),
    CH_ATTR_INT(part_attrs, index),     CH_ATTR_INT(part_attrs, cores),
    CH_ATTR_BOOL(part_attrs, puts_all), CH_ATTR_END,
};

static ch_status part_infer(ch_infer *c)
{
    const part_attrs *a = c->attrs;

    if (c->n_in > 1)
        return ch__infer_fail(c, "%d inputs, want at most 1", c->n_in);
    return ch__infer_dims(c, 0, a->dtype, &a->dims);
}

static const ch_region *region_of(const ch_call *c)
{
    const part_attrs *a = c->node->attrs;

    return &((const ch_region *)a->at)[c->env->core];
}

/* Sets stride[k] to the elements between neighbours along axis k, and *first to the index of
 * the first element of the region. */
static void strides_in(const ch_dims *whole, const ch_region *r, int64_t *stride,
                       int64_t *first)
{
    int64_t n = 1;

    *first = 0;
    for (int k = whole->rank - 1; k >= 0; k--) {
        stride[k] = n;
        *first += r->begin[k] * n;
        n *= whole->dim[k].n;
    }
    if (!CH_KEEPS(OFFSET))
        *first = 0;
}

static void strides_of(const ch_region *r, int rank, int64_t *stride)
{
    int64_t n = 1;

    for (int k = rank - 1; k >= 0; k--) {
        stride[k] = n;
        n *= r->size[k];
    }
}

int64_t ch__core_part_bytes(const ch_node *call, int core)
{
    const part_attrs *a = ch__attrs(call);
    const ch_region  *r = &((const ch_region *)a->at)[core];

    return call->n_in > 0 && ch__has_core((uint64_t)a->cores, core)
               ? ch__region_count(r, a->dims.rank) * (int64_t)ch_dtype_bytes(a->dtype)
               : 0;
}

/* Counts the bytes that a core reads from an input, or writes to a result. */
static void count_bytes(const ch_call *c, const ch_region *r, size_t each)
{
    if (c->env->traffic == NULL || ch__region_count(r, c->node->dims.rank) == 0)
        return;
    c->env->traffic->calls[CH_TRAFFIC_HOST]++;
    c->env->traffic->bytes[CH_TRAFFIC_HOST] +=
        ch__region_count(r, c->node->dims.rank) * (int64_t)each;
}

/* Returns true if a part with these sizes is contiguous in the whole array. */
static bool is_contiguous(const ch_dims *whole, const ch_dims *part)
{
    int k = whole->rank - 1;

    while (k > 0 && part->dim[k].n == whole->dim[k].n)
        k--;
    while (--k >= 0)
        if (part->dim[k].n > 1)
            return false;
    return true;
}

/* Returns the byte at which the part of each core begins. NULL: out of memory. */
static const size_t *offsets_of(const part_attrs *a, const ch_dims *whole, ch_arena *arena)
{
    size_t *offset = ch__arena_alloc(arena, (size_t)a->n_cores * sizeof(*offset));

    for (int c = 0; offset != NULL && c < a->n_cores; c++) {
        int64_t stride[CH_MAX_RANK], first;

        strides_in(whole, &((const ch_region *)a->at)[c], stride, &first);
        offset[c] = (size_t)first * ch_dtype_bytes(a->dtype);
    }
    return offset;
}

static ch_status take_prepare(const ch_node *n, ch_prep *p)
{
    const ch_node *whole = n->in[0];

    if (!is_contiguous(&whole->dims, &n->dims) ||
        (whole->head->op != ch__roles.input && whole->head->op != ch__roles.constant))
        return CH_OK;
    p->is_view = true;
    p->view_by_core = offsets_of(n->attrs, &whole->dims, p->arena);
    return p->view_by_core != NULL ? CH_OK : ch__fail_memory("a program");
}

static ch_status put_prepare(const ch_node *n, ch_prep *p)
{
    const part_attrs *a = n->attrs;

    if (n->n_in == 0 || !a->puts_all || !is_contiguous(&n->dims, &n->in[0]->dims))
        return CH_OK;
    p->put_by_core = offsets_of(a, &n->dims, p->arena);
    return p->put_by_core != NULL ? CH_OK : ch__fail_memory("a program");
}

static ch_status take_run(const ch_call *c, ch_kernel_tile t)
{
    const ch_dims   *whole = &c->node->in[0]->dims;
    const ch_region *r = region_of(c);
    int64_t          from[CH_MAX_RANK], to[CH_MAX_RANK], first;
    size_t           each = ch_dtype_bytes(c->node->dtype);
    ch_move          m;

    (void)t;
    strides_in(whole, r, from, &first);
    strides_of(r, whole->rank, to);
    ch__move_make(&m, whole->rank, r->size, from, to, each);
    ch__move_pieces(&m, (const char *)c->in[0] + first * (int64_t)each, c->out[0], 0,
                    m.n_pieces);
    count_bytes(c, r, each);
    return CH_OK;
}

static ch_status put_run(const ch_call *c, ch_kernel_tile t)
{
    const part_attrs *a = c->node->attrs;
    const ch_dims    *whole = &c->node->dims;
    const ch_region  *r = region_of(c);
    int64_t           from[CH_MAX_RANK], to[CH_MAX_RANK], first;
    size_t            each = ch_dtype_bytes(c->node->dtype);
    ch_move           m;

    (void)t;
    if (c->node->n_in == 0 || !ch__has_core((uint64_t)a->cores, c->env->core) ||
        ch__region_count(r, whole->rank) == 0)
        return CH_OK;
    strides_of(r, whole->rank, from);
    strides_in(whole, r, to, &first);
    ch__move_make(&m, whole->rank, r->size, from, to, each);
    ch__move_pieces(&m, c->in[0], (char *)c->out[0] + first * (int64_t)each, 0, m.n_pieces);
    count_bytes(c, r, each);
    return CH_OK;
}

static const ch_kernel take_kernel = {"take", .prepare = take_prepare, .run = take_run};
static const ch_kernel put_kernel = {"put", .prepare = put_prepare, .run = put_run};

const ch_op ch__op_take_part = {
    .name = "take_part",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .flags = CH_OP_HOST | CH_OP_READS_ENV | CH_OP_MOVES,
    .attrs = part_rows,
    .attrs_bytes = sizeof(part_attrs),
    .infer = part_infer,
    .replicated = "it is in the graphs of cores only",
    .kernels = (const ch_kernel *const[]){&take_kernel, NULL},
};

const ch_op ch__op_put_part = {
    .name = "put_part",
    .version = 1,
    .n_in = -1,
    .n_out = 1,
    .flags = CH_OP_HOST | CH_OP_READS_ENV,
    .attrs = part_rows,
    .attrs_bytes = sizeof(part_attrs),
    .infer = part_infer,
    .replicated = "it is in the graphs of cores only",
    .kernels = (const ch_kernel *const[]){&put_kernel, NULL},
};

/* Records a call whose output has the dtype and dims of the attributes. */
static ch_node *record(ch_step *s, const ch_op *op, part_attrs *a, ch_node *in, int n_cores,
                       const ch_core_regions *at, const ch_node *origin)
{
    ch_region *own =
        ch__arena_copy(&s->graph->arena, at->at, (size_t)n_cores * sizeof(at->at[0]));
    ch_node *n = NULL;

    a->at = own;
    a->n_cores = n_cores;
    a->cores = (int64_t)at->cores;
    if (own != NULL)
        n = ch__graph_add(s->graph, op, a, in != NULL, &in, 1);
    if (n == NULL) {
        ch__step_record_error(s, ch__fail_memory("the graph of a core"), NULL);
        return NULL;
    }
    ch__call_copy_origin(n, origin->head);
    n->dtype = a->dtype;
    n->dims = a->dims;
    return n;
}

ch_node *ch__take_part(ch_step *s, ch_node *whole, int n_cores, int c,
                       const ch_core_regions *at)
{
    part_attrs a = {.dtype = whole->dtype, .dims = whole->dims};

    for (int k = 0; k < whole->dims.rank; k++)
        a.dims.dim[k] = ch__dim(at->at[c].size[k]);
    return record(s, &ch__op_take_part, &a, whole, n_cores, at, whole);
}

ch_node *ch__put_part(ch_step *s, ch_node *part, const ch_node *whole, int n_cores,
                      uint64_t cores, const ch_core_regions *at)
{
    part_attrs a = {.dtype = whole->dtype,
                    .dims = whole->dims,
                    .index = s->graph->n_outputs,
                    .puts_all = true};

    for (int c = 0; c < n_cores && part != NULL; c++)
        if (ch__has_core(cores, c) &&
            (!ch__has_core(at->cores, c) ||
             ch__region_count(&at->at[c], whole->dims.rank) != ch__count(part)))
            a.puts_all = false;
    return record(s, &ch__op_put_part, &a, part, n_cores, at, whole);
}

/* spmd/exchange.c -- the op exchange: gives the cores of a replica the regions of a value that
 * they need.
 *
 * A call has an input if the core has a part of the value, and an output if the core needs one.
 * A call without either takes part too, because all cores of the replica pass the barriers of
 * the exchange (collective/exchange.c).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "graph/step.h"
#include "spmd/core_ops.h"

struct ch_exchange_table {
    ch_exchange x;
    ch_reshard  plan;         /* `from` is NULL: the layout does not live as long */
    int64_t     middle_bytes; /* memory that a core needs between two stages */
};

typedef struct exchange_attrs {
    const char
            *value; /* ch__origin_name of the value: a core may not have what it is made of */
    void    *table; /* const ch_exchange_table *: that of the calls of all cores */
    bool     wants; /* the call has an output */
    ch_dtype dtype;
    ch_dims  dims; /* of the output */
} exchange_attrs;

static const ch_attr exchange_rows[] = {
    CH_ATTR_TEXT(exchange_attrs, value), CH_ATTR_HOST(exchange_attrs, table),
    CH_ATTR_BOOL(exchange_attrs, wants), CH_ATTR_DTYPE(exchange_attrs, dtype),
    CH_ATTR_DIMS(exchange_attrs, dims),  CH_ATTR_END,
};

static ch_status exchange_infer(ch_infer *c)
{
    const exchange_attrs *a = c->attrs;

    if (c->n_in > 1)
        return ch__infer_fail(c, "%d inputs, want at most 1", c->n_in);
    return a->wants ? ch__infer_dims(c, 0, a->dtype, &a->dims) : CH_OK;
}

static ch_status exchange_prepare(const ch_node *n, ch_prep *p)
{
    const exchange_attrs    *a = ch__attrs(n);
    const ch_exchange_table *t = a->table;

    p->scratch_bytes = t->x.is_small ? 0 : (size_t)t->middle_bytes;
    /* In the last stage no core reads the input of another: it reads slots, or the results of
     * the first stage. */
    if (n->n_in > 0 && n->n_out > 0 && t->x.kind != CH_TRAFFIC_NONE &&
        (t->x.is_small || t->x.n_stages == 2))
        p->over[0] = 1;
    return CH_OK;
}

static ch_status exchange_run(const ch_call *c, ch_kernel_tile t)
{
    const exchange_attrs    *a = c->node->attrs;
    const ch_exchange_table *at = a->table;
    ch_status                rc;

    (void)t;
    rc = ch__group_exchange(c->env->cores, c->env->core, &at->x,
                            c->node->n_in > 0 ? c->in[0] : NULL, c->scratch,
                            c->node->n_out > 0 ? c->out[0] : NULL, c->env->traffic);
    return rc == CH_OK || rc == CH__BLOCKED ? rc : ch__fail_in_call(rc, c->node);
}

static const ch_kernel exchange_kernel = {"exchange", .prepare = exchange_prepare,
                                          .run = exchange_run};

const ch_op ch__op_exchange = {
    .name = "exchange",
    .version = 1,
    .n_in = -1,
    .n_out = -1,
    .flags = CH_OP_COLLECTIVE | CH_OP_HOST | CH_OP_READS_ENV | CH_OP_MOVES,
    .attrs = exchange_rows,
    .attrs_bytes = sizeof(exchange_attrs),
    .infer = exchange_infer,
    .replicated = "it is in the graphs of cores only",
    .kernels = (const ch_kernel *const[]){&exchange_kernel, NULL},
};

ch_status ch__exchange_table_new(ch_arena *arena, const ch_reshard *plan, ch_dtype dtype,
                                 const ch_exchange_table **out)
{
    ch_exchange_table *t = ch__arena_alloc(arena, sizeof(*t));
    ch_region         *from = ch__arena_alloc(arena, (size_t)plan->n_cores * sizeof(*from));
    bool               has[CH_MAX_CORES];
    int                rank = plan->whole.rank;

    if (t == NULL || from == NULL)
        return ch__fail_memory("plan of a reshard");
    (void)ch__core_regions(plan->from, plan->whole, from);
    for (int c = 0; c < plan->n_cores; c++)
        has[c] = ch__layout_has(plan->from, c);
    t->plan = *plan;
    t->plan.from = NULL;
    t->x = (ch_exchange){.label = "exchange",
                         .rank = rank,
                         .dtype = dtype,
                         .combiner = plan->combiner,
                         .kind = plan->kind,
                         .n_stages = plan->n_stages,
                         .from = from};
    for (int i = 0; i < plan->n_stages; i++)
        t->x.stage[i] = plan->stage[i];
    t->x.is_small = ch__exchange_is_small(&t->x, plan->n_cores, has);
    for (int c = 0; c < plan->n_cores && plan->n_stages == 2; c++) {
        const ch_reshard_work *w = &plan->stage[0][c];
        int64_t                bytes =
            w->has ? ch__region_count(&w->held, rank) * (int64_t)ch_dtype_bytes(dtype) : 0;

        t->middle_bytes = bytes > t->middle_bytes ? bytes : t->middle_bytes;
    }
    *out = t;
    return CH_OK;
}

ch_status ch__exchange(ch_step *s, const ch_exchange_table *t, const ch_node *value,
                       ch_node *in, const ch_dims *dims, ch_node **result)
{
    exchange_attrs a = {.wants = dims != NULL, .dtype = value->dtype};
    char           name[160];
    ch_node       *call;

    if (t->plan.n_stages == 0) { /* every core has the region that it needs */
        *result = dims != NULL ? in : NULL;
        return CH_OK;
    }
    memcpy(&a.table, &t, sizeof(t));                      /* attributes do not know const */
    a.value = ch__origin_name(value, name, sizeof(name)); /* the graph copies it */
    if (dims != NULL)
        a.dims = *dims;
    call = ch__graph_add(s->graph, &ch__op_exchange, &a, in != NULL, &in, dims != NULL);
    if (call == NULL)
        return ch__fail_memory("the graph of a core");
    ch__call_copy_origin(call, value->head);
    if (call->caller == NULL)
        call->caller = s->caller;
    call->work = CH_WORK_REDUCE;
    call->dtype = a.dtype;
    call->dims = a.dims;
    *result = dims != NULL ? call : NULL;
    return CH_OK;
}

const ch_reshard *ch__exchange_plan(const ch_node *call)
{
    const exchange_attrs *a = ch__attrs(call);

    return &((const ch_exchange_table *)a->table)->plan;
}

ch_dtype ch__exchange_dtype(const ch_node *call)
{
    const exchange_attrs *a = ch__attrs(call);

    return a->dtype;
}

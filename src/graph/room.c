/* graph/room.c -- decides which inputs of a graph may have room.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/room.h"

#include <math.h>
#include <string.h>

#include "graph/attr.h"
#include "tensor/tensor.h"

/* Disallows room for every symbol in axes `from` and up of the dims. has_room is an array by
 * symbol. */
static void disallow(bool *has_room, const ch_dims *d, int from)
{
    for (int k = from; k < d->rank; k++)
        if (d->dim[k].n > 0)
            has_room[d->dim[k].sym] = false;
}

static void disallow_graph(bool *has_room, const ch_graph *g);

static void disallow_attrs(bool *has_room, const ch_node *n, int from)
{
    for (const ch_attr *row = n->op->attrs; row != NULL && row->name != NULL; row++) {
        const void *at = (const char *)n->attrs + row->offset;

        if (row->kind == CH_ATTR_KIND_DIMS)
            disallow(has_room, at, from);
        if (row->kind == CH_ATTR_KIND_GRAPH && *(ch_graph *const *)at != NULL)
            disallow_graph(has_room, *(ch_graph *const *)at);
    }
}

/* Disallows room for every symbol in a body. */
static void disallow_graph(bool *has_room, const ch_graph *g)
{
    for (const ch_node *n = g->first; n != NULL; n = n->next) {
        for (int i = 0; i < n->n_out; i++)
            disallow(has_room, &n[i].dims, 0);
        disallow_attrs(has_room, n, 0);
    }
}

/* Returns true if `splits` are the row splits of a component whose number of values is the
 * symbol `sym`: an input of the graph, or the input converted to another integer dtype. */
static bool splits_divide(const ch_graph *g, const ch_node *splits, int sym)
{
    while (splits->head->op == ch__roles.cast &&
           (splits->dtype == CH_I32 || splits->dtype == CH_I64))
        splits = splits->head->in[0];
    for (int i = 0; i < g->n_inputs && splits->head->op == ch__roles.input; i++) {
        const ch_input_attrs *a = ch__attrs(g->input[i]);

        if (a->dims.rank > 0 && a->dims.dim[0].sym == sym &&
            a->splits_input == ((const ch_input_attrs *)ch__attrs(splits))->index + 1)
            return true;
    }
    return false;
}

static bool is_by_element(const ch_op *op)
{
    return op->block != NULL && (op->flags & CH_OP_CAN_FAIL) == 0;
}

static bool has_bit(unsigned bits, int i)
{
    return i < 32 && (bits >> i & 1) != 0;
}

ch_room_use ch__room_use(const ch_graph *g, const ch_node *n, int i)
{
    const ch_op   *op = n->op;
    const ch_dims *d = &n->in[i]->dims;
    int            splits = op->room_splits - 1;

    if (is_by_element(op))
        return CH_ROOM_KEPT;
    if (has_bit(op->room, i) && (splits < 0 || d->rank == 0 || d->dim[0].sym == 0 ||
                                 splits_divide(g, n->in[splits], d->dim[0].sym)))
        return CH_ROOM_KEPT;
    if (has_bit(op->room_rows, i) && d->rank > 1 && n->dims.rank > 0 &&
        ch__dim_same(d->dim[0], n->dims.dim[0]))
        return CH_ROOM_KEPT;
    return has_bit(op->room_filled, i) ? CH_ROOM_FILLED : CH_ROOM_REFUSED;
}

/* Disallows room for the symbols that the call cannot handle. Axis 0 in an attribute is a size
 * of an output, except in an op that can fail: there it may be a limit, which room would
 * raise. */
static void check_call(bool *has_room, const ch_graph *g, const ch_node *n)
{
    const ch_op *op = n->op;
    bool accepts = is_by_element(op) || (op->room | op->room_rows | op->room_filled) != 0;

    for (int i = 0; i < n->n_in; i++)
        disallow(has_room, &n->in[i]->dims, ch__room_use(g, n, i) == CH_ROOM_REFUSED ? 0 : 1);
    for (int i = 0; i < n->n_out; i++)
        disallow(has_room, &n[i].dims, accepts ? 1 : 0);
    disallow_attrs(has_room, n, op->room != 0 && (op->flags & CH_OP_CAN_FAIL) == 0 ? 1 : 0);
}

bool ch__is_ragged(const ch_node *n)
{
    const ch_graph *g = n->graph;

    for (int i = 0; i < g->n_inputs && g->outer == NULL && n->dims.rank > 0; i++) {
        const ch_input_attrs *a = ch__attrs(g->input[i]);

        if (a->splits_input != 0 && a->dims.dim[0].sym != 0 &&
            a->dims.dim[0].sym == n->dims.dim[0].sym)
            return true;
    }
    return false;
}

int64_t ch__live_rows(const ch_call *c, int64_t rows)
{
    const ch_node *n = c->node->head;
    int64_t        live = rows;

    if (n->live_input != 0 && c->env->input != NULL)
        live = c->env->input[n->live_input - 1]->shape.dim[0] * n->live_each;
    return live < rows ? live : rows;
}

ch_status ch__graph_room(const ch_graph *g, bool *may)
{
    unsigned char *live = ch__calloc((size_t)g->n_values + 1, 1);
    bool          *has_room = ch__calloc((size_t)g->n_symbols + 1, sizeof(*has_room));
    bool           any = false;
    ch_status      rc = live == NULL || has_room == NULL ? ch__fail_memory("a program") : CH_OK;

    for (int i = 0; i < g->n_inputs && rc == CH_OK; i++) {
        const ch_input_attrs *a = ch__attrs(g->input[i]);
        int                   sym = a->dims.rank > 0 ? a->dims.dim[0].sym : 0;

        may[i] = a->splits_input != 0 && a->dtype != CH_STR && sym > 0 && sym <= g->n_symbols &&
                 a->dims.dim[0].n == 1;
        any |= may[i];
        if (may[i])
            has_room[sym] = true;
    }
    if (any)
        rc = ch__graph_mark(g, live);
    for (int i = 0; i < g->n_inputs && any; i++) /* all values of a length have room, or none */
        disallow(has_room, &g->input[i]->dims, may[i] ? 1 : 0);
    for (const ch_node *n = g->first; n != NULL && any && rc == CH_OK; n = n->next)
        if (live[n->id] && n->op != ch__roles.input)
            check_call(has_room, g, n);
    for (int i = 0; i < g->n_inputs && any && rc == CH_OK; i++)
        may[i] = may[i] && has_room[g->input[i]->dims.dim[0].sym];
    ch__free(has_room);
    ch__free(live);
    return rc;
}

int64_t ch__live_items(const ch_call *c, int64_t n)
{
    int64_t rows = c->node->head->live_input != 0 ? c->node->head->dims.dim[0].n : 0;

    return rows > 0 ? n / rows * ch__live_rows(c, rows) : n;
}

/* ---- for tests ---- */

static atomic_bool is_poisoned;

void ch__room_poison(bool on)
{
    atomic_store(&is_poisoned, on);
}

bool ch__room_is_poisoned(void)
{
    return atomic_load_explicit(&is_poisoned, memory_order_relaxed);
}

void ch__room_fill(ch_dtype dtype, void *at, int64_t n)
{
    size_t bytes = ch_dtype_bytes(dtype);

    for (int64_t i = 0; i < n; i++)
        if (ch_dtype_is_float(dtype))
            ch__store(dtype, (char *)at + (size_t)i * bytes, NAN);
        else
            memset((char *)at + (size_t)i * bytes, dtype == CH_BOOL ? 1 : 0x6b, bytes);
}

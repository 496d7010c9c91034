/* graph/room.c -- decides which inputs of a graph may have room.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/room.h"

#include <math.h>
#include <string.h>

#include "graph/attr.h"

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

/* Returns true if axis 0 of input i of the call may have room. */
static bool accepts_room(const ch_graph *g, const ch_node *n, unsigned accepts, int i)
{
    const ch_dims *d = &n->in[i]->dims;
    int            splits = n->op->room_splits - 1;

    return i < 32 && (accepts >> i & 1) != 0 &&
           (splits < 0 || d->rank == 0 || d->dim[0].sym == 0 ||
            splits_divide(g, n->in[splits], d->dim[0].sym));
}

/* Disallows room for the symbols that the call cannot handle. */
static void check_call(bool *has_room, const ch_graph *g, const ch_node *n)
{
    bool     by_element = n->op->block != NULL && (n->op->flags & CH_OP_CAN_FAIL) == 0;
    unsigned accepts = by_element ? CH_ROOM_ANY : n->op->room;

    for (int i = 0; i < n->n_in; i++)
        disallow(has_room, &n->in[i]->dims, accepts_room(g, n, accepts, i) ? 1 : 0);
    for (int i = 0; i < n->n_out; i++)
        disallow(has_room, &n[i].dims, accepts != 0 ? 1 : 0);
    disallow_attrs(has_room, n, n->op->room != 0 ? 1 : 0);
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

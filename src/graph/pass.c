/* graph/pass.c -- passes over a specialised graph: dead calls, common subexpressions,
 * constants.
 *
 * graph/plan.c runs the passes before planning. The results of the graph do not change. A pass
 * replaces inputs of later calls, and ch__pass_dead then removes the calls that are no longer
 * needed. Calls with effects, collectives and random calls are not changed. Parts of calls
 * (ch_node.origins) are merged only if they have the same positions on every core, and are
 * never computed in advance, because the cores that share the program may have other positions.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "graph/attr.h"
#include "graph/program.h"

/* Replaces value `from` by `to` in outputs and writes. */
static void redirect_roots(ch_graph *g, const ch_node *from, ch_node *to)
{
    for (int i = 0; i < g->n_outputs; i++)
        if (g->output[i].node == from)
            g->output[i].node = to;
    for (int i = 0; i < g->n_resources; i++)
        if (g->resource[i].value == from && g->resource[i].read != from)
            g->resource[i].value = to;
}

/* Replaces the inputs of the call by to[id], where that is not NULL. */
static void redirect(ch_node *call, ch_node *const *to)
{
    for (int i = 0; i < call->n_in; i++)
        if (to[call->in[i]->id] != NULL)
            call->in[i] = to[call->in[i]->id];
}

ch_status ch__pass_dead(ch_graph *g)
{
    unsigned char *live = ch__calloc((size_t)g->n_values + 1, 1);
    ch_node      **link = &g->first;
    ch_status      rc;

    if (live == NULL)
        return ch__fail_memory("a program");
    rc = ch__graph_mark(g, live);
    g->last = NULL;
    while (*link != NULL) {
        ch_node *n = *link;

        if (rc == CH_OK && !live[n->id]) {
            *link = n->next;
            ch__attrs_drop(n->op, n->attrs);
            g->n_calls--;
            /* if it was a read, the resource is now only written, or not used */
            for (int i = 0; i < g->n_resources; i++)
                if (g->resource[i].read == n) {
                    if (g->resource[i].value == n)
                        g->resource[i].value = NULL;
                    g->resource[i].read = NULL;
                }
        } else {
            g->last = n;
            link = &n->next;
        }
    }
    ch__free(live);
    return rc;
}

/* ---- common subexpressions ---- */

static bool is_pure(const ch_node *n)
{
    return (n->op->flags & (CH_OP_RANDOM | CH_OP_HOST)) == 0 && ch__call_effects(n) == 0;
}

static uint64_t call_hash(const ch_node *n)
{
    uint64_t h = ch__attrs_hash(n->op, n->attrs) ^ (uint64_t)(uintptr_t)n->op;

    for (int i = 0; i < n->n_in; i++)
        h = (h ^ (uint64_t)n->in[i]->id) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 32);
}

/* Returns true if both calls are whole, or parts with the same positions. */
static bool same_origins(const ch_origins *a, const ch_origins *b)
{
    size_t bytes;

    if (a == NULL || b == NULL)
        return a == b;
    bytes = (size_t)a->n_cores * sizeof(a->in[0]);
    return a->n_cores == b->n_cores && ch__dims_same(&a->whole_in, &b->whole_in) &&
           ch__dims_same(&a->whole_out, &b->whole_out) && memcmp(a->in, b->in, bytes) == 0 &&
           memcmp(a->out, b->out, bytes) == 0;
}

static bool same_call(const ch_node *a, const ch_node *b)
{
    if (a->op != b->op || a->n_in != b->n_in || a->n_out != b->n_out ||
        !same_origins(a->origins, b->origins))
        return false;
    for (int i = 0; i < a->n_in; i++)
        if (a->in[i] != b->in[i])
            return false;
    return ch__attrs_equal(a->op, a->attrs, b->attrs);
}

/* Returns the first call that is equal to n, which may be n itself. */
static ch_node *first_equal(ch_node **table, size_t size, ch_node *n)
{
    size_t at = (size_t)call_hash(n) % size;

    while (table[at] != NULL && !same_call(table[at], n))
        at = (at + 1) % size;
    if (table[at] == NULL)
        table[at] = n;
    return table[at];
}

ch_status ch__pass_cse(ch_graph *g)
{
    size_t    size = (size_t)g->n_calls * 2 + 1;
    ch_node **table = ch__calloc(size, sizeof(*table));
    ch_node **to = ch__calloc((size_t)g->n_values + 1, sizeof(*to));
    ch_status rc = CH_OK;

    if (table == NULL || to == NULL)
        rc = ch__fail_memory("a program");
    for (ch_node *n = g->first; n != NULL && rc == CH_OK; n = n->next) {
        ch_node *same;

        redirect(n, to);
        if (!is_pure(n) || n->op == ch__roles.input || n->op == ch__roles.read)
            continue;
        same = first_equal(table, size, n);
        for (int i = 0; i < n->n_out && same != n; i++) {
            to[n[i].id] = &same[i];
            redirect_roots(g, &n[i], &same[i]);
        }
    }
    ch__free(table);
    ch__free(to);
    return rc == CH_OK ? ch__pass_dead(g) : rc;
}

/* ---- constants ---- */

#define FOLD_BYTES (64 << 10) /* a larger result is cheaper to compute than to store */

static bool can_fold(const ch_node *n)
{
    if (!is_pure(n) || (n->op->flags & (CH_OP_READS_ENV | CH_OP_CAN_FAIL)) != 0 ||
        n->origins != NULL || n->live_input != 0 || n->op == ch__roles.input ||
        n->op == ch__roles.read || n->op == ch__roles.constant)
        return false;
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i]->head->op != ch__roles.constant)
            return false;
    for (int i = 0; i < n->n_out; i++)
        if (ch__bytes(&n[i]) > FOLD_BYTES || n[i].dtype == CH_STR)
            return false;
    return ch__kernel_for(n) != NULL;
}

static const void *constant_data(const ch_node *n)
{
    const ch_constant_attrs *a = ch__attrs(n);

    return ch_tensor_data(a->value);
}

/* Inserts a constant with the type of `like` after call `after`. References `value`. */
static ch_status insert_constant(ch_graph *g, ch_node *after, const ch_node *like,
                                 ch_tensor *value, ch_node **out)
{
    ch_constant_attrs a = {.value = value};
    ch_node          *tail = after->next, *last = g->last;
    ch_node          *c = ch__graph_add(g, ch__roles.constant, &a, 0, NULL, 1);

    if (c == NULL)
        return ch__fail_memory("a program");
    c->dtype = like->dtype;
    c->dims = like->dims;
    if (after != last) { /* move it from the end of the list */
        last->next = NULL;
        g->last = last;
        after->next = c;
        c->next = tail;
    }
    *out = c;
    return CH_OK;
}

/* Computes call n, and inserts a constant for each of its outputs. Sets to[id] to the
 * constants. */
static ch_status fold_call(ch_graph *g, ch_node *n, ch_node **to)
{
    const void *few[16], **in = few;
    void       *data[CH_MAX_OUT];
    ch_tensor  *value[CH_MAX_OUT] = {0};
    ch_node    *after = n, *c = NULL;
    ch_env      env = {.n_replicas = 1};
    ch_status   rc = CH_OK;

    if (n->n_in > 16)
        return CH_OK; /* a concat of many constants is not worth folding */
    for (int i = 0; i < n->n_in; i++)
        in[i] = constant_data(n->in[i]);
    for (int i = 0; i < n->n_out && rc == CH_OK; i++) {
        rc = ch_tensor_new(n[i].dtype, ch__shape(&n[i]), &value[i]);
        data[i] = rc == CH_OK ? ch_tensor_data_mut(value[i]) : NULL;
    }
    if (rc == CH_OK)
        rc = ch__call_run(n, ch__kernel_for(n), in, data, &env, NULL);
    for (int i = 0; i < n->n_out && rc == CH_OK; i++) {
        rc = insert_constant(g, after, &n[i], value[i], &c);
        if (rc != CH_OK)
            break;
        after = c;
        to[n[i].id] = c;
        redirect_roots(g, &n[i], c);
    }
    for (int i = 0; i < n->n_out; i++)
        ch_tensor_unref(value[i]);
    return rc;
}

ch_status ch__pass_fold(ch_graph *g)
{
    int       n_before = g->n_values;
    ch_node **to = ch__calloc((size_t)n_before + 1, sizeof(*to));
    ch_status rc = to == NULL ? ch__fail_memory("a program") : CH_OK;

    for (ch_node *n = g->first; n != NULL && rc == CH_OK; n = n->next) {
        if (n->id >= n_before)
            continue; /* a constant that this pass has inserted */
        for (int i = 0; i < n->n_in; i++)
            if (n->in[i]->id < n_before && to[n->in[i]->id] != NULL)
                n->in[i] = to[n->in[i]->id];
        if (can_fold(n))
            rc = fold_call(g, n, to);
    }
    ch__free(to);
    return rc == CH_OK ? ch__pass_dead(g) : rc;
}

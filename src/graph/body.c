/* graph/body.c -- bodies of cond, while and scan: recording, captured nodes, and inlining.
 *
 * A body is a graph of its own, recorded by a ch_step whose `outer` is the step that contains
 * it. ops/cond.c and ops/loop.c call ch__step_body. A node of an outer graph that a call in the
 * body uses becomes an input of the body (ch__step_capture), and the call of the op gets that
 * node as an input. ch__step_inline records the calls of a body in another step.
 *
 * Invariants:
 *   1. An error in a body becomes the error of the step that contains the body.
 *   2. capture[i] of a body represents captured[i], a node of the next outer graph.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "graph/step.h"

/* ---- recording ---- */

bool ch__step_can_use(const ch_step *s, const ch_node *n)
{
    for (; s != NULL; s = s->outer)
        if (s == n->graph->step)
            return true;
    return false;
}

ch_node *ch__step_capture(ch_step *s, ch_node *outer)
{
    int      cap = s->cap_captures;
    ch_node *in;

    if (outer == NULL || outer->graph == s->graph)
        return outer;
    for (int i = 0; i < s->n_captures; i++)
        if (s->captured[i] == outer)
            return s->capture[i];
    if (outer->graph != s->outer->graph && (outer = ch__step_capture(s->outer, outer)) == NULL)
        return NULL;
    if (!ch__grow((void **)&s->captured, &cap, s->n_captures + 1, sizeof(*s->captured)) ||
        (cap = s->cap_captures,
         !ch__grow((void **)&s->capture, &cap, s->n_captures + 1, sizeof(*s->capture)))) {
        ch__step_record_error(s, ch__fail_memory("recording a step"), NULL);
        return NULL;
    }
    s->cap_captures = cap;
    in = ch__step_add_input(s, NULL, outer->dtype, &outer->dims);
    if (in == NULL)
        return NULL;
    in->weak = outer->weak;
    in->varies = outer->varies;
    in->is_literal = outer->is_literal;
    s->captured[s->n_captures] = outer;
    s->capture[s->n_captures++] = in;
    return in;
}

ch_graph *ch__step_body(ch_step *outer, const char *name, int n, const ch_dtype *dtype,
                        const ch_dims *dims, ch_body_fn record, void *arg, int *n_captures,
                        ch_node ***captures)
{
    ch_step  *s = NULL;
    ch_graph *g = NULL;
    ch_node **in = ch__arena_alloc(&outer->graph->arena, (size_t)(n + 1) * sizeof(*in));
    ch_step  *before = ch__step_outermost(outer)->active;
    ch_status rc = in == NULL ? ch__fail_memory(name) : ch__step_new(name, outer, &s);

    for (int i = 0; i < n && rc == CH_OK; i++)
        if ((in[i] = ch__step_add_input(s, NULL, dtype[i], &dims[i])) == NULL)
            rc = ch_step_status(s);
    if (rc == CH_OK) {
        ch__step_outermost(outer)->active = s;
        record(s, n, in, arg);
        ch__step_outermost(outer)->active = before;
        rc = ch_step_status(s);
    }
    if (rc == CH_OK) {
        *n_captures = s->n_captures;
        *captures = ch__arena_alloc(&outer->graph->arena,
                                    (size_t)(s->n_captures + 1) * sizeof(ch_node *));
        rc = *captures == NULL ? ch__fail_memory(name) : CH_OK;
    }
    if (rc == CH_OK) {
        for (int i = 0; i < s->n_captures; i++)
            (*captures)[i] = s->captured[i];
        rc = ch__step_finish(s, &g);
    }
    /* the message contains the source line already */
    if (s != NULL && s->rc != CH_OK && outer->rc == CH_OK) {
        outer->rc = s->rc;
        memcpy(outer->error, s->error, sizeof(outer->error));
    } else if (rc != CH_OK) {
        ch__step_record_error(outer, rc, NULL);
    }
    ch__step_free(s);
    return g;
}

/* ---- inlining ---- */

/* Records a copy of call n in s. `map` has the new node of each value of the body. Returns
 * false if an error is recorded in s. */
static bool copy_call(ch_step *s, const ch_node *n, ch_node **map)
{
    ch_node *few[16], **in = few, *to;

    if (n->n_in > 16 && (in = ch__calloc((size_t)n->n_in, sizeof(*in))) == NULL) {
        ch__step_record_error(s, ch__fail_memory(n->op->name), n->caller);
        return false;
    }
    for (int i = 0; i < n->n_in; i++)
        in[i] = map[n->in[i]->id];
    to = n->n_in > 0 ? ch__node_at(n->caller, n->op, n->attrs, n->n_in, in)
                     : ch__source_at(n->caller, s, n->op, n->attrs);
    if (in != few)
        ch__free(in);
    if (to == NULL)
        return false;
    to->ordinal = n->ordinal;
    to->caller = n->caller;
    to->composite = n->composite;
    to->scope = n->scope; /* memory of the body, which outlives the copy */
    for (int i = 0; i < n->n_out; i++) {
        to[i].weak = n[i].weak;
        map[n[i].id] = &to[i];
    }
    return true;
}

bool ch__step_inline(ch_step *s, const ch_graph *body, ch_node *const *in, ch_node **out)
{
    ch_node **map = ch__calloc((size_t)body->n_values + 1, sizeof(*map));
    bool      ok = map != NULL;

    if (!ok)
        ch__step_record_error(s, ch__fail_memory(body->name), NULL);
    for (int i = 0; ok && i < body->n_inputs; i++)
        map[body->input[i]->id] = in[i];
    for (const ch_node *n = body->first; ok && n != NULL; n = n->next)
        if (n->op != ch__roles.input)
            ok = copy_call(s, n, map);
    for (int i = 0; ok && i < body->n_outputs; i++)
        out[i] = map[body->output[i].node->id];
    ch__free(map);
    return ok;
}

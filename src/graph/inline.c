/* graph/inline.c -- records copies of the calls of a body.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/step.h"

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

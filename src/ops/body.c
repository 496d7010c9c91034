/* ops/body.c -- bodies: the subgraphs of cond and scan.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ops/body.h"

#include <string.h>

#include "graph/run.h"
#include "ops/ops.h"

size_t ch__scratch_alloc(size_t *used, size_t bytes)
{
    size_t at = *used;

    *used += ch__aligned(bytes);
    return at;
}

ch_status ch__body_prepare(ch_body *b, ch_graph *g, ch_prep *p, size_t *used)
{
    ch_status rc = ch__program_new(g, &(ch_plan_options){.threads = p->threads}, &b->program);

    if (rc != CH_OK)
        return rc;
    p->touches_part |= b->program->touches_part;
    b->n_in = g->n_inputs;
    b->n_out = g->n_outputs;
    b->run_at = ch__scratch_alloc(used, sizeof(ch_body_run));
    b->instance_at = ch__scratch_alloc(used, ch__instance_bytes(b->program));
    b->arena_at = ch__scratch_alloc(used, b->program->arena_bytes);
    b->pointers_at = ch__scratch_alloc(used, (size_t)(b->n_in + b->n_out) * sizeof(void *));
    return CH_OK;
}

ch_body_run *ch__body_start(const ch_body *b, const ch_call *c)
{
    char        *scratch = c->scratch;
    ch_body_run *r = (ch_body_run *)(void *)(scratch + b->run_at);
    void       **out = (void **)(void *)(scratch + b->pointers_at);

    if (c->is_repeated)
        return r;
    *r = (ch_body_run){.instance = ch__instance_at(b->program, scratch + b->instance_at),
                       .in = (const void **)(void *)(out + b->n_out),
                       .out = out,
                       .env = *c->env};
    r->bind = (ch_bind){.input = r->in,
                        .output = r->out,
                        .arena = scratch + b->arena_at,
                        .env = &r->env,
                        .team = c->env->team};
    return r;
}

ch_status ch__body_run(ch_body_run *r)
{
    ch_status rc = r->is_blocked ? ch__instance_continue(r->instance, &r->bind)
                                 : ch__instance_run(r->instance, &r->bind);

    r->is_blocked = rc == CH__BLOCKED;
    return rc;
}

ch_status ch__body_check(const ch_infer *c, const ch_graph *g, int from, int at, int n,
                         bool cut)
{
    for (int i = 0; i < n; i++) {
        ch_dims have = c->in[from + i];
        bool    ok = c->dtype[from + i] == g->input[at + i]->dtype;

        if (cut) { /* a slice along axis 0 */
            ok = ok && have.rank > 0;
            have.rank -= have.rank > 0;
            memmove(have.dim, have.dim + 1, (CH_MAX_RANK - 1) * sizeof(have.dim[0]));
        }
        if (!ok || !ch__dims_same(&have, &g->input[at + i]->dims))
            return ch__infer_fail(
                c, "input %d does not have the dtype and shape of the body's input", from + i);
    }
    return CH_OK;
}

ch_node **ch__step_nodes(ch_step *s, const char *what, int n)
{
    ch_node **x = ch__arena_alloc(&s->graph->arena, (size_t)n * sizeof(*x));

    if (x == NULL)
        ch__step_record_error(s, ch__fail_memory(what), NULL);
    return x;
}

void ch__record_call(ch_step *s, const ch_op *op, const void *attrs, int n0,
                     ch_node *const *in0, int n1, ch_node *const *in1, int n2,
                     ch_node *const *in2, int n_out, ch_node **out)
{
    int       n_in = n0 + n1 + n2;
    ch_node **in = ch__step_nodes(s, op->name, n_in + 1), *n = NULL;

    if (in == NULL)
        return;
    for (int i = 0; i < n0; i++)
        in[i] = in0[i];
    for (int i = 0; i < n1; i++)
        in[n0 + i] = in1[i];
    for (int i = 0; i < n2; i++)
        in[n0 + n1 + i] = in2[i];
    n = n_in > 0 ? ch__node_at(NULL, op, attrs, n_in, in) : ch__source_at(NULL, s, op, attrs);
    for (int i = 0; i < n_out && n != NULL; i++)
        out[i] = &n[i];
}

bool ch__fits_outputs(ch_step *s, const char *what, int n)
{
    if (n >= 1 && n <= CH_MAX_OUT)
        return true;
    ch__step_record_error(
        s, ch__fail(CH_INVALID_ARGUMENT, "%s: %d outputs, want 1 to %d", what, n, CH_MAX_OUT),
        NULL);
    return false;
}

int ch__count_floats(const ch_graph *g, int from, int to)
{
    int n = 0;

    for (int i = from; i < to; i++)
        n += ch_dtype_is_float(g->input[i]->dtype);
    return n;
}

void ch__body_gradient(ch_step *s, const ch_graph *g, ch_node *const *in, ch_node *const *dout,
                       ch_node **d)
{
    ch_node  *out[CH_MAX_OUT] = {0}, *sum = ch_number(s, 0);
    ch_node **x = ch__step_nodes(s, "gradient", g->n_inputs + 1);
    int       n = 0;

    if (x == NULL)
        return;
    for (int i = 0; i < g->n_inputs; i++)
        if (ch_dtype_is_float(g->input[i]->dtype))
            x[n++] = in[i];
    if (ch__step_inline(s, g, in, out))
        for (int i = 0; i < g->n_outputs; i++)
            if (dout[i] != NULL)
                sum = ch_add(sum, ch_cast(ch_sum_all(ch_mul(out[i], dout[i])), CH_F64));
    ch_gradients(sum, NULL, n, x, d);
}

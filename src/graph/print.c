/* graph/print.c -- graphs and programs for people.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "graph/attr.h"
#include "graph/program.h"
#include "tensor/print.h"

static void print_type(ch_text *t, const ch_node *n)
{
    char dims[160];

    ch__dims_print(&n->dims, dims, sizeof(dims));
    ch__text_add(t, "%s%s", ch_dtype_name(n->dtype), dims);
}

/* "%3, %4 = top_k %2 k=5". Attributes that the type shows anyway are left out of sources. */
static void print_call(ch_text *t, const ch_graph *g, const ch_node *n)
{
    char attrs[512] = "";

    for (int i = 0; i < n->n_out; i++)
        ch__text_add(t, "%s%%%d", i > 0 ? ", " : "", n[i].id);
    ch__text_add(t, "%s%s", n->n_out > 0 ? " = " : "", n->op->name);
    for (int i = 0; i < n->n_in; i++)
        ch__text_add(t, " %%%d", n->in[i]->id);
    if (n->op == ch__roles.read)
        ch__text_add(t, " %s", g->resource[((const ch_read_attrs *)n->attrs)->resource].name);
    else if (n->op != ch__roles.input)
        ch__attrs_print(n->op, n->attrs, attrs, sizeof(attrs));
    ch__text_add(t, "%s", attrs);
}

static void print_types(ch_text *t, const ch_node *n)
{
    for (int i = 0; i < n->n_out; i++) {
        ch__text_add(t, i > 0 ? ", " : "  ");
        print_type(t, &n[i]);
    }
}

static void print_head(ch_text *t, const ch_graph *g)
{
    ch__text_add(t, "step %s(", g->name);
    for (int i = 0; i < g->n_inputs; i++) {
        ch__text_add(t, "%s%%%d", i > 0 ? ", " : "", g->input[i]->id);
        if (g->input_name[i] != NULL)
            ch__text_add(t, " %s", g->input_name[i]);
        ch__text_add(t, ": ");
        print_type(t, g->input[i]);
    }
    ch__text_add(t, ")\n");
}

static void print_roots(ch_text *t, const ch_graph *g)
{
    for (int i = 0; i < g->n_resources; i++)
        if (g->resource[i].value != g->resource[i].read)
            ch__text_add(t, "  write %s = %%%d\n", g->resource[i].name,
                         g->resource[i].value->id);
    for (int i = 0; i < g->n_outputs; i++) {
        ch__text_add(t, "  return ");
        if (g->output[i].name != NULL)
            ch__text_add(t, "%s = ", g->output[i].name);
        ch__text_add(t, "%%%d\n", g->output[i].node->id);
    }
}

int ch_graph_print(const ch_graph *g, char *text, size_t size)
{
    ch_text     t = ch__text(text, size);
    const char *scope = "";

    print_head(&t, g);
    for (const ch_node *n = g->first; n != NULL; n = n->next) {
        const char *here = n->scope != NULL ? n->scope : "";
        size_t      before;

        if (n->op == ch__roles.input)
            continue;
        if (strcmp(scope, here) != 0)
            ch__text_add(&t, "  # %s\n", here);
        scope = here;
        before = t.used;
        ch__text_add(&t, "  ");
        print_call(&t, g, n);
        ch__text_add(&t, "%*s", (int)(before + 44 > t.used ? before + 44 - t.used : 0), "");
        print_types(&t, n);
        ch__text_add(&t, "\n");
    }
    print_roots(&t, g);
    return ch__text_length(&t);
}

static void print_place(ch_text *t, const ch_place *p)
{
    static const char *const name[] = {"-", "arena", "constant", "input", "output", "variable"};

    ch__text_add(t, " %s", name[p->kind]);
    if (p->kind == CH_AT_ARENA)
        ch__text_add(t, "+%zu", p->offset);
    else if (p->kind > CH_AT_CONSTANT)
        ch__text_add(t, " %d%s%zu", p->index, "+", p->offset);
}

/* One line a call: what, by which kernel, from where to where, and in how many tiles. The
 * numbers after "arena+" with the bytes in brackets are what tools/arena-bound reads. */
static void print_instr(ch_text *t, const ch_program *p, const ch_instr *x, int i)
{
    const ch_place *slot = &p->slot[x->first_slot];

    ch__text_add(t, "%4d  %-14s %-8s", i, x->node != NULL ? x->node->op->name : "copy",
                 x->kernel != NULL ? x->kernel->name : "memcpy");
    for (int k = 0; k < x->n_out; k++) {
        print_place(t, &slot[x->n_in + k]);
        ch__text_add(t, "[%lld]",
                     x->node != NULL ? (long long)ch__bytes(&x->node[k])
                                     : (long long)x->copy_bytes);
    }
    ch__text_add(t, " <-");
    for (int k = 0; k < x->n_in; k++) {
        print_place(t, &slot[k]);
        ch__text_add(t, "[%lld]",
                     x->node != NULL ? (long long)ch__bytes(x->node->in[k])
                                     : (long long)x->copy_bytes);
    }
    if (slot[x->n_in + x->n_out].kind == CH_AT_ARENA)
        ch__text_add(t, "  scratch%s%zu[%zu]", "+", slot[x->n_in + x->n_out].offset,
                     x->scratch_bytes);
    if (x->n_phases > 1 || x->tiles[0] > 1)
        ch__text_add(t, "  tiles %d", x->tiles[0]);
    ch__text_add(t, "\n");
}

int ch__program_print(const ch_program *p, char *text, size_t size)
{
    ch_text t = ch__text(text, size);

    print_head(&t, p->graph);
    for (int i = 0; i < p->n_instrs; i++) {
        if (i == p->n_commit && p->writes)
            ch__text_add(&t, "      -- from here on nothing fails, and variables change --\n");
        print_instr(&t, p, &p->instr[i], i);
    }
    ch__text_add(&t, "arena %zu bytes, %zu alive at the most\n", p->arena_bytes, p->live_bytes);
    return ch__text_length(&t);
}

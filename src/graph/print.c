/* graph/print.c -- prints graphs and programs as text.
 *
 * ch_graph_print prints a graph with its bodies, ch__program_print a planned program,
 * ch__call_print a call for messages. tools/arena-bound reads printed programs.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "graph/attr.h"
#include "graph/program.h"
#include "graph/where.h"
#include "tensor/print.h"

static void print_type(ch_text *t, const ch_node *n)
{
    char dims[160];

    ch__dims_print(&n->dims, dims, sizeof(dims));
    ch__text_add(t, "%s%s", ch_dtype_name(n->dtype), dims);
}

/* Prints "(%0 x: f32(rows, 4), %1: f32())". */
static void print_inputs(ch_text *t, const ch_graph *g)
{
    ch__text_add(t, "(");
    for (int i = 0; i < g->n_inputs; i++) {
        ch__text_add(t, "%s%%%d", i > 0 ? ", " : "", g->input[i]->id);
        if (g->input_name[i] != NULL)
            ch__text_add(t, " %s", g->input_name[i]);
        ch__text_add(t, ": ");
        print_type(t, g->input[i]);
    }
    ch__text_add(t, ")\n");
}

/* Prints "%3, %4 = top_k %2 k=5". */
static void print_call(ch_text *t, const ch_graph *g, const ch_node *n)
{
    for (int i = 0; i < n->n_out; i++)
        ch__text_add(t, "%s%%%d", i > 0 ? ", " : "", n[i].id);
    ch__text_add(t, "%s%s", n->n_out > 0 ? " = " : "", n->op->name);
    for (int i = 0; i < n->n_in; i++)
        ch__text_add(t, " %%%d", n->in[i]->id);
    if (n->op == ch__roles.read)
        ch__text_add(t, " %s", g->resource[((const ch_read_attrs *)n->attrs)->resource].name);
    else
        ch__attrs_print(n, t);
}

static void print_types(ch_text *t, const ch_node *n)
{
    for (int i = 0; i < n->n_out; i++) {
        ch__text_add(t, "%s", i > 0 ? ", " : "");
        print_type(t, &n[i]);
    }
}

/* Adds the name of the op and its attributes of text. */
static void print_name(ch_text *t, const ch_op *op, const void *attrs)
{
    ch__text_add(t, "%s", op->name);
    for (const ch_attr *row = attrs != NULL ? op->attrs : NULL;
         row != NULL && row->name != NULL; row++) {
        const char *name =
            row->kind == CH_ATTR_KIND_TEXT
                ? *(char *const *)(const void *)((const char *)attrs + row->offset)
                : NULL;

        if (name != NULL)
            ch__text_add(t, " %s", name);
    }
}

const char *ch__call_name(const ch_op *op, const void *attrs, char *text, size_t size)
{
    ch_text t = ch__text(text, size);

    print_name(&t, op, attrs);
    return text;
}

/* Adds the scope of a call, and the line of the user's program. */
static void print_place(ch_text *t, const ch_node *n)
{
    char where[256];

    if (n->scope != NULL)
        ch__text_add(t, ", in %s", n->scope);
    ch__where(n->caller, where, sizeof(where));
    if (where[0] != '\0')
        ch__text_add(t, ", at %s", where);
}

int ch__call_print(const ch_node *n, char *text, size_t size)
{
    ch_text t = ch__text(text, size);

    print_name(&t, n->op, n->attrs);
    print_place(&t, n);
    return ch__text_length(&t);
}

/* Returns the first attribute of text. */
static const char *text_of(const ch_node *n)
{
    const ch_attr *row = n->op->attrs;

    while (row->kind != CH_ATTR_KIND_TEXT)
        row++;
    return *(char *const *)(const void *)((const char *)n->attrs + row->offset);
}

static void print_origin(ch_text *t, const ch_node *n)
{
    const ch_graph *g = n->graph;

    if (n->op == ch__roles.input) {
        int i = (int)((const ch_input_attrs *)n->attrs)->index;

        if (g->input_name[i] != NULL)
            ch__text_add(t, "input %s", g->input_name[i]);
        else
            ch__text_add(t, "input %d", i);
    } else if (n->op == ch__roles.read) {
        ch__text_add(t, "variable %s",
                     g->resource[((const ch_read_attrs *)n->attrs)->resource].name);
    } else if ((n->op->flags & CH_OP_MOVES) == 0) {
        print_name(t, n->op, n->attrs);
    } else if (n->n_in > 0) {
        print_origin(t, n->in[0]->head);
    } else {
        ch__text_add(t, "%s", text_of(n));
    }
}

const char *ch__origin_name(const ch_node *n, char *text, size_t size)
{
    ch_text t = ch__text(text, size);

    print_origin(&t, n->head);
    return text;
}

int ch__origin_print(const ch_node *n, char *text, size_t size)
{
    ch_text t = ch__text(text, size);

    n = n->head;
    print_origin(&t, n);
    if ((n->op->flags & CH_OP_MOVES) != 0)
        ch__text_add(&t, ", moved");
    print_place(&t, n);
    return ch__text_length(&t);
}

/* Returns the column of the types: after the longest call, at most 56. */
static int type_column(const ch_graph *g)
{
    int widest = 24;

    for (const ch_node *n = g->first; n != NULL; n = n->next) {
        ch_text t = ch__text(NULL, 0);

        print_call(&t, g, n);
        if (ch__text_length(&t) > widest && n->op != ch__roles.input)
            widest = ch__text_length(&t);
    }
    return widest < 56 ? widest : 56;
}

static void print_roots(ch_text *t, const ch_graph *g, int indent)
{
    for (int i = 0; i < g->n_resources; i++)
        if (g->resource[i].value != g->resource[i].read)
            ch__text_add(t, "%*swrite %s = %%%d\n", indent, "", g->resource[i].name,
                         g->resource[i].value->id);
    if (g->n_outputs == 0)
        return;
    ch__text_add(t, "%*sreturn ", indent, "");
    for (int i = 0; i < g->n_outputs; i++) {
        const char *name = g->output[i].name;

        ch__text_add(t, "%s%s%s%%%d", i > 0 ? ", " : "", name != NULL ? name : "",
                     name != NULL ? " = " : "", g->output[i].node->id);
    }
    ch__text_add(t, "\n");
}

static void print_calls(ch_text *t, const ch_graph *g, int indent);

/* Prints the bodies of a call below it, each under the name of its attribute. Values are
 * numbered anew in each body. Recursive: the depth is that of the recorded program. */
static void print_bodies(ch_text *t, const ch_node *n, int indent)
{
    for (const ch_attr *row = n->op->attrs; row != NULL && row->name != NULL; row++) {
        const void *at = (const char *)n->attrs + row->offset;

        if (row->kind != CH_ATTR_KIND_GRAPH || *(ch_graph *const *)at == NULL)
            continue;
        ch__text_add(t, "%*s%s", indent, "", row->name);
        print_inputs(t, *(ch_graph *const *)at);
        print_calls(t, *(ch_graph *const *)at, indent + 2);
    }
}

static void print_calls(ch_text *t, const ch_graph *g, int indent)
{
    size_t      column = (size_t)type_column(g);
    const char *scope = "";

    for (const ch_node *n = g->first; n != NULL; n = n->next) {
        const char *here = n->scope != NULL ? n->scope : "";
        size_t      end;

        if (n->op == ch__roles.input)
            continue;
        if (strcmp(scope, here) != 0)
            ch__text_add(t, "%*s#%s%s\n", indent, "", here[0] != '\0' ? " " : "", here);
        scope = here;
        ch__text_add(t, "%*s", indent, "");
        end = t->used + column + 2;
        print_call(t, g, n);
        if (n->n_out > 0)
            ch__text_add(t, "%*s", end > t->used + 2 ? (int)(end - t->used) : 2, "");
        print_types(t, n);
        ch__text_add(t, "\n");
        print_bodies(t, n, indent + 4);
    }
    print_roots(t, g, indent);
}

int ch_graph_print(const ch_graph *g, char *text, size_t size)
{
    ch_text t = ch__text(text, size);

    if (g == NULL) {
        ch__text_add(&t, "NULL");
        return ch__text_length(&t);
    }
    ch__text_add(&t, "step %s", g->name);
    print_inputs(&t, g);
    print_calls(&t, g, 2);
    return ch__text_length(&t);
}

static void print_location(ch_text *t, const ch_location *p)
{
    static const char *const name[] = {"-", "arena", "constant", "input", "output", "variable"};

    ch__text_add(t, " %s", name[p->kind]);
    if (p->kind == CH_AT_ARENA)
        ch__text_add(t, "+%zu", p->offset);
    else if (p->kind > CH_AT_CONSTANT)
        ch__text_add(t, " %d%s%zu", p->index, "+", p->offset);
    if (p->by_core != NULL)
        ch__text_add(t, " by core");
}

/* Prints a mark of rows: the resources, and the location of the ids. */
static void print_row_write(ch_text *t, const ch_instr *x, int i, const ch_location *ids)
{
    const ch_row_write *w = x->row_write;

    ch__text_add(t, "%4d  mark_rows", i);
    for (int k = 0; k < w->n; k++)
        ch__text_add(t, " variable %d", w->resource[k]);
    ch__text_add(t, " <-");
    print_location(t, ids);
    ch__text_add(t, "[%lld]%s\n", (long long)w->n_ids * (w->wide ? 8 : 4),
                 x->first_only ? "  first replica only" : "");
}

/* Prints an instruction on a line: op, kernel, locations of outputs and inputs, number of
 * tiles. tools/arena-bound reads the numbers after "arena+" and the bytes in brackets. */
static void print_instr(ch_text *t, const ch_program *p, const ch_instr *x, int i)
{
    const ch_location *slot = &p->slot[x->first_slot];

    if (x->is_barrier) {
        ch__text_add(t, "%4d  barrier\n", i);
        return;
    }
    if (x->row_write != NULL) {
        print_row_write(t, x, i, slot);
        return;
    }
    ch__text_add(t, "%4d  %-14s %-8s", i, x->node != NULL ? x->node->op->name : "copy",
                 x->kernel != NULL ? x->kernel->name : "memcpy");
    for (int k = 0; k < x->n_out; k++) {
        print_location(t, &slot[x->n_in + k]);
        ch__text_add(t, "[%lld]",
                     x->node != NULL ? (long long)ch__bytes(&x->node[k])
                                     : (long long)x->copy_bytes);
    }
    ch__text_add(t, " <-");
    for (int k = 0; k < x->n_in; k++) {
        print_location(t, &slot[k]);
        ch__text_add(t, "[%lld]",
                     x->node != NULL ? (long long)ch__bytes(x->node->in[k])
                                     : (long long)x->copy_bytes);
    }
    if (slot[x->n_in + x->n_out].kind == CH_AT_ARENA)
        ch__text_add(t, "  scratch%s%zu[%zu]", "+", slot[x->n_in + x->n_out].offset,
                     x->scratch_bytes);
    if (x->n_phases > 1 || x->tiles[0] > 1)
        ch__text_add(t, "  tiles %d", x->tiles[0]);
    ch__text_add(t, x->first_only ? "  first replica only\n" : "\n");
}

int ch__program_print(const ch_program *p, char *text, size_t size)
{
    ch_text t = ch__text(text, size);

    ch__text_add(&t, "step %s", p->graph->name);
    print_inputs(&t, p->graph);
    for (int i = 0; i < p->n_instrs; i++) {
        if (i == p->n_commit && p->writes)
            ch__text_add(&t, "      -- from here on nothing fails, and variables change --\n");
        print_instr(&t, p, &p->instr[i], i);
    }
    ch__text_add(&t, "arena %zu bytes, %zu alive at the most\n", p->arena_bytes, p->live_bytes);
    return ch__text_length(&t);
}

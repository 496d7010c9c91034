/* save/match.c -- finds the object of each node of a file's object graph, and the tensor of
 * each value of a program.
 *
 * ch__match_make decodes the object graph of the file, pairs its nodes with those of a tree
 * along edges of the same name, then the slots of paired optimizers, and then matches values
 * (struct ch_match). A file without an object graph has no nodes: its tensors are matched by
 * name only. restore.c and restored.c are the callers.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "save/match.h"

#include <string.h>

#include "base/fault.h"
#include "base/log.h"

/* Reads the object graph, if there is one. */
static ch_status read_graph(ch_match *m)
{
    const char   *prefix = ch__ckpt_prefix(m->file);
    int           entry = ch__ckpt_find(m->file, CH_OBJECT_GRAPH_KEY);
    ch_ckpt_entry e;
    ch_str       *text = NULL;
    ch_status     rc;

    if (entry < 0)
        return CH_OK;
    ch__ckpt_entry(m->file, entry, &e);
    if (e.dtype != CH_STR || ch_shape_count(e.shape) != 1)
        return ch__fail(CH_DATA_LOSS, "%s.index: tensor \"%s\" is not a single string", prefix,
                        e.name);
    rc = ch__ckpt_read_strings(m->file, CH_OBJECT_GRAPH_KEY, &text);
    if (rc == CH_OK)
        rc = ch__object_graph_decode(text[0], &m->graph);
    ch__free(text);
    if (rc != CH_OK)
        rc = ch__fail_at(ch__failed_at_limit() ? CH_DATA_LOSS : rc, "%s", prefix);
    return rc;
}

int ch__match_child(const ch_match *m, int node, const char *name)
{
    const ch_object_node *n = &m->graph.node[node];

    for (int i = 0; i < n->n_children; i++)
        if (strcmp(n->child[i].name, name) == 0)
            return n->child[i].node;
    return -1;
}

int ch__match_slot(const ch_match *m, int node, int of, const char *name)
{
    const ch_object_node *n = &m->graph.node[node];

    for (int i = 0; i < n->n_slots; i++)
        if (n->slot[i].variable == of && strcmp(n->slot[i].name, name) == 0)
            return n->slot[i].slot;
    return -1;
}

int ch__match_value(const ch_match *m, int node, const char *attribute)
{
    const ch_object_node *n = &m->graph.node[node];

    for (int i = 0; i < n->n_values; i++)
        if (strcmp(n->value[i].name, attribute) == 0)
            return ch__ckpt_find(m->file, n->value[i].key);
    return -1;
}

int ch__match_object(const ch_match *m, const void *object)
{
    const int *node = ch__map_find(&m->objects, ch__key((uintptr_t)object));

    return node != NULL ? *node : -1;
}

/* Pairs a node of the graph with a node of the tree, and appends it to the queue. Each node of
 * the graph gets one object: a second object stays as it is (CK-7). An object may have several
 * nodes of the graph; its values are those of the first. */
static ch_status pair(ch_match *m, const ch_tree *t, int node, int live, int *queue, int *n)
{
    const ch_saved_node *at = &t->node[live];

    if (m->live[node] == live)
        return CH_OK;
    if (m->live[node] >= 0) {
        ch__log(
            CH_LOG_WARNING, "checkpoint",
            "restore: \"%s\" and \"%s\" are one object in the checkpoint; the second is not "
            "restored",
            t->node[m->live[node]].path, at->path);
        return CH_OK;
    }
    m->live[node] = live;
    queue[(*n)++] = node;
    if (m->node_of[live] >= 0)
        return CH_OK;
    m->node_of[live] = node;
    return at->kind != CH_SAVED_VAR || at->added != NULL
               ? ch__map_set(&m->objects, ch__key((uintptr_t)at->object), &m->node_of[live])
               : CH_OK;
}

static ch_status pair_nodes(ch_match *m, const ch_tree *t)
{
    int      *queue = ch__malloc((size_t)m->graph.n * sizeof(*queue) + 1);
    int       n = 0;
    ch_status rc = queue != NULL ? CH_OK : ch__fail_memory("a restore");

    if (rc == CH_OK && m->graph.n > 0)
        rc = pair(m, t, 0, 0, queue, &n);
    for (int i = 0; i < n && rc == CH_OK; i++) {
        const ch_object_node *node = &m->graph.node[queue[i]];

        for (int k = 0; k < node->n_children && rc == CH_OK; k++) {
            int live = ch__tree_child(t, m->live[queue[i]], node->child[k].name);

            if (live >= 0)
                rc = pair(m, t, node->child[k].node, live, queue, &n);
        }
    }
    /* Slots last: their variables are paired by now. Slots have no children. */
    for (int i = 0, n_objects = n; i < n_objects && rc == CH_OK; i++) {
        const ch_object_node *node = &m->graph.node[queue[i]];
        const ch_saved_node  *of = &t->node[m->live[queue[i]]];

        for (int k = 0; k < of->n_slots && rc == CH_OK; k++) {
            int var = m->node_of[of->slot[k].var];
            int slot =
                var < 0 ? -1
                        : ch__match_slot(m, (int)(node - m->graph.node), var, of->slot[k].name);

            if (slot >= 0)
                rc = pair(m, t, slot, of->slot[k].node, queue, &n);
        }
    }
    ch__free(queue);
    return rc;
}

/* Returns the tensor of a value that the graph names with this full name; -1: none. */
static int find_full_name(const ch_match *m, const char *name)
{
    for (int i = 0; i < m->graph.n; i++)
        for (int k = 0; k < m->graph.node[i].n_values; k++) {
            const ch_object_value *v = &m->graph.node[i].value[k];
            int                    entry;

            if (strcmp(v->full_name, name) != 0)
                continue;
            entry = ch__ckpt_find(m->file, v->key);
            if (entry >= 0 && !m->is_used[entry])
                return entry;
        }
    return -1;
}

/* Finds the tensor of a variable by its name: as full name of a value, as key, as path. */
static int find_name(const ch_match *m, const ch_tree *t, const ch_saved_value *v)
{
    int entry = find_full_name(m, ch_var_name(v->var));

    if (entry < 0)
        entry = ch__ckpt_find(m->file, ch_var_name(v->var));
    if (entry < 0)
        entry = ch__ckpt_find(m->file, t->node[v->node].path);
    return entry;
}

/* Matches the values of paired nodes first, so that names match only what is left. */
static void match_values(ch_match *m, const ch_tree *t, const bool *by_name)
{
    for (int i = 0; i < t->n_values; i++) {
        int node = m->node_of[t->value[i].node];
        int entry = node >= 0 ? ch__match_value(m, node, t->value[i].attribute) : -1;

        m->entry_of[i] = entry;
        if (entry >= 0)
            m->is_used[entry] = true;
    }
    for (int i = 0; i < t->n_values; i++) {
        int entry =
            m->entry_of[i] < 0 && t->value[i].var != NULL ? find_name(m, t, &t->value[i]) : -1;

        if (entry < 0 || m->is_used[entry] || (by_name != NULL && !by_name[entry]))
            continue;
        m->entry_of[i] = entry;
        m->is_used[entry] = true;
    }
}

static int *new_nodes(int n)
{
    int *node = ch__malloc(((size_t)n + 1) * sizeof(*node));

    for (int i = 0; node != NULL && i < n; i++)
        node[i] = -1;
    return node;
}

ch_status ch__match_make(ch_ckpt *file, const ch_tree *t, const bool *by_name, ch_match *out)
{
    ch_status rc;

    *out = (ch_match){.file = file};
    rc = read_graph(out);
    if (rc != CH_OK)
        return rc;
    out->live = new_nodes(out->graph.n);
    out->node_of = new_nodes(t->n_nodes);
    out->entry_of = new_nodes(t->n_values);
    out->is_used = ch__calloc((size_t)ch__ckpt_count(file) + 1, sizeof(*out->is_used));
    if (out->live == NULL || out->node_of == NULL || out->entry_of == NULL ||
        out->is_used == NULL)
        return ch__fail_memory("a restore");
    rc = pair_nodes(out, t);
    if (rc == CH_OK)
        match_values(out, t, by_name);
    return rc;
}

void ch__match_drop(ch_match *m)
{
    ch__free(m->graph.memory);
    ch__free(m->live);
    ch__free(m->node_of);
    ch__free(m->is_used);
    ch__free(m->entry_of);
    ch__map_drop(&m->objects);
    *m = (ch_match){.file = NULL};
}

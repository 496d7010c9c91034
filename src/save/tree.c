/* save/tree.c -- builds the graph of the objects of a checkpoint.
 *
 * ch__tree_build adds the root and walks the nodes in the order in which they were added, which
 * is breadth-first, because expanding a node appends its children. Slots come last. The struct
 * `building` has the first error; after it nothing more is added.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "save/tree.h"

#include <stdio.h>
#include <string.h>

#include "base/bytes_builder.h"
#include "base/fault.h"
#include "ckpt/object_graph.h"
#include "cohort/function.h"
#include "cohort/iterator.h"
#include "strategy/cut.h"
#include "train/model.h"
#include "train/parts.h"

typedef struct building {
    ch_tree  *tree;
    int       node; /* the node that is being expanded */
    ch_status rc;   /* first error */
} building;

static bool failed(building *b, ch_status rc)
{
    if (b->rc == CH_OK)
        b->rc = rc;
    return b->rc != CH_OK;
}

/* Appends escaped names to a path: "<path>/<middle>/<name>". `middle` is not escaped and may be
 * NULL. The tree owns the result; NULL if memory is exhausted. */
static const char *join(ch_tree *t, const char *path, const char *middle, const char *name)
{
    ch_bytes_builder b = {NULL};
    const char      *joined;

    ch__bytes_builder_text(&b, path);
    if (b.n > 0)
        ch__bytes_builder_text(&b, "/");
    if (middle != NULL) {
        ch__bytes_builder_text(&b, middle);
        ch__bytes_builder_text(&b, "/");
    }
    ch__object_key_add(&b, name);
    ch__bytes_builder_add(&b, "", 1);
    joined = b.has_failed ? NULL : ch__arena_strdup(&t->memory, b.at);
    ch__bytes_builder_drop(&b);
    return joined;
}

/* Adds a value of a node. Takes ownership of `state`. */
static void add_value(building *b, int node, const char *attribute, ch_var *var,
                      ch_tensor *state)
{
    ch_tree       *t = b->tree;
    ch_saved_node *of = &t->node[node];
    const char    *name = ch__arena_strdup(&t->memory, attribute);
    const char    *key = join(t, of->path, ".ATTRIBUTES", attribute);

    if (name == NULL || key == NULL ||
        !ch__grow((void **)&t->value, &t->cap_values, t->n_values + 1, sizeof(*t->value))) {
        ch_tensor_unref(state);
        (void)failed(b, ch__fail_memory("a checkpoint"));
        return;
    }
    if (of->n_values++ == 0)
        of->first_value = t->n_values;
    t->value[t->n_values++] = (ch_saved_value){node, name, key, var, state};
}

/* Returns the index of the node of an object, which is added if the tree has none yet; -1 after
 * an error. */
static int node_of(building *b, ch_saved_kind kind, void *object, const char *path)
{
    ch_tree *t = b->tree;
    int      found = ch__tree_find(t, object);
    int     *index;

    if (found >= 0)
        return found;
    index = ch__arena_alloc(&t->memory, sizeof(*index));
    if (path == NULL || index == NULL ||
        !ch__grow((void **)&t->node, &t->cap_nodes, t->n_nodes + 1, sizeof(*t->node)))
        (void)failed(b, ch__fail_memory("a checkpoint"));
    else
        (void)failed(b, ch__map_set(&t->nodes, ch__key((uintptr_t)object), index));
    if (b->rc != CH_OK)
        return -1;
    *index = t->n_nodes;
    t->node[t->n_nodes] = (ch_saved_node){.kind = kind, .object = object, .path = path};
    if (kind == CH_SAVED_VAR)
        add_value(b, t->n_nodes, CH_ATTRIBUTE_VALUE, object, NULL);
    return t->n_nodes++;
}

/* Adds an edge from the node that is being expanded. Returns the node that it leads to, or -1
 * after an error. */
static int add_edge(building *b, const char *name, ch_saved_kind kind, void *object)
{
    ch_tree *t = b->tree;
    int      to;

    if (b->rc != CH_OK)
        return -1;
    if (ch__tree_child(t, b->node, name) >= 0) {
        (void)failed(b, ch__fail(CH_INVALID_ARGUMENT,
                                 "checkpoint: two parts of \"%s\" are named \"%s\"; rename one",
                                 t->node[b->node].path, name));
        return -1;
    }
    to = node_of(b, kind, object, join(t, t->node[b->node].path, NULL, name));
    if (to < 0)
        return -1;
    ch_saved_node *from = &t->node[b->node];
    const char    *copy = ch__arena_strdup(&t->memory, name);

    if (copy == NULL || !ch__grow((void **)&from->edge, &from->cap_edges, from->n_edges + 1,
                                  sizeof(*from->edge))) {
        (void)failed(b, ch__fail_memory("a checkpoint"));
        return -1;
    }
    from->edge[from->n_edges++] = (ch_saved_edge){copy, to};
    return to;
}

/* ---- state ---- */

static void add_number(building *b, int node, const char *attribute, int64_t number)
{
    ch_tensor *t = NULL;

    if (!failed(b, ch_tensor_copy_of(CH_I64, ch_shape_scalar(), &number, &t)))
        add_value(b, node, attribute, NULL, t);
}

/* Adds a position, which is stored as a string. Frees the bytes. */
static void add_position(building *b, int node, ch_status rc, void *bytes, size_t n)
{
    ch_tensor *t = NULL;
    ch_str     text = {bytes, n};

    if (rc == CH_OK)
        rc = ch_tensor_copy_of(CH_STR, ch_shape_scalar(), &text, &t);
    ch_bytes_free(bytes);
    if (!failed(b, rc))
        add_value(b, node, CH_ATTRIBUTE_POSITION, NULL, t);
}

/* Adds the leaves of a program's own state. */
static void add_leaves(building *b, int node, const ch_added *a)
{
    ch_tuple *state = NULL;
    uint64_t  mark = ch__fail_mark();
    ch_status rc = a->ops->save(a->object, &state);

    if (failed(b, ch__fail_since(mark, rc))) {
        b->rc = ch__fail_at(b->rc, "checkpoint: saving \"%s\"", a->name);
        return;
    }
    for (int i = 0; i < ch_tuple_count(state) && b->rc == CH_OK; i++) {
        const char *name = ch_tuple_name(state, i);
        ch_tensor  *t = ch_value_at(ch_tuple_at(state, i), 0);

        add_value(b, node, name != NULL ? name : CH_ATTRIBUTE_STATE, NULL, ch_tensor_ref(t));
    }
    ch_tuple_unref(state);
}

/* Returns the runs of a function, without those that are queued for workers: they are not in
 * the cut. */
static int64_t runs_of(const ch_tree *t, const ch_function *f)
{
    int64_t runs = ch_function_runs(f);

    for (int i = 0; i < t->n_values; i++)
        if (t->value[i].var != NULL && ch__cut_is_needed(ch_var_strategy(t->value[i].var)))
            return ch__cut_function_runs(ch_var_strategy(t->value[i].var), f);
    return runs;
}

/* Adds the values of a node that are not variables. */
static void add_state(building *b, int node)
{
    const ch_saved_node at = b->tree->node[node];
    void               *object = at.object, *bytes = NULL;
    size_t              n = 0;
    ch_status           rc;

    switch (at.kind) {
    case CH_SAVED_LAYER:
        if (at.added != NULL)
            add_number(b, node, CH_ATTRIBUTE_STEPS, ch__model_steps(at.added->owner));
        break;
    case CH_SAVED_FUNCTION:
        add_number(b, node, CH_ATTRIBUTE_RUNS, runs_of(b->tree, object));
        break;
    case CH_SAVED_COUNTER:
        add_number(b, node, CH_ATTRIBUTE_VALUE, *(const int64_t *)object);
        break;
    case CH_SAVED_ITERATOR:
        rc = ch_iterator_save(object, &bytes, &n);
        add_position(b, node, rc, bytes, n);
        break;
    case CH_SAVED_PER_WORKER:
        rc = ch__per_worker_save(object, &bytes, &n);
        add_position(b, node, rc, bytes, n);
        break;
    case CH_SAVED_STATE:
        if (at.added->ops->save != NULL)
            add_leaves(b, node, at.added);
        break;
    default:
        break;
    }
}

/* ---- nodes ---- */

static bool add_part(void *arg, ch_var *of, const char *name, ch_var *v)
{
    building *b = arg;

    if (of == NULL)
        (void)add_edge(b, name, CH_SAVED_VAR, v);
    return b->rc == CH_OK;
}

/* Adds the edges of the node that is being expanded. */
static void expand(building *b)
{
    const ch_saved_node node = b->tree->node[b->node];
    void               *object = node.object;
    ch_layer *const    *child = NULL;

    if (node.kind == CH_SAVED_LAYER) {
        ch__layer_visit(object, add_part, b);
        for (int i = 0, n = ch_layer_children(object, &child); i < n && b->rc == CH_OK; i++)
            (void)add_edge(b, ch_layer_name(child[i]), CH_SAVED_LAYER, child[i]);
    } else if (node.kind == CH_SAVED_OPTIMIZER) {
        ch__optimizer_visit(object, add_part, b);
    } else if (node.kind == CH_SAVED_METRIC) {
        ch__metric_visit(object, add_part, b);
    }
}

/* Adds a slot of the optimizer that is being expanded, if its variable is in the tree. */
static bool add_slot(void *arg, ch_var *of, const char *name, ch_var *v)
{
    building *b = arg;
    ch_tree  *t = b->tree;
    int       var = of != NULL ? ch__tree_find(t, of) : -1;
    char     *middle;
    int       node;

    if (var < 0)
        return true;
    size_t size = strlen(t->node[b->node].path) + sizeof(".OPTIMIZER_SLOT/");
    middle = ch__arena_alloc(&t->memory, size);
    if (middle != NULL)
        snprintf(middle, size, ".OPTIMIZER_SLOT/%s", t->node[b->node].path);
    node = node_of(b, CH_SAVED_VAR, v,
                   middle != NULL ? join(t, t->node[var].path, middle, name) : NULL);
    if (node < 0)
        return false;
    ch_saved_node *from = &t->node[b->node];
    const char    *copy = ch__arena_strdup(&t->memory, name);

    if (copy == NULL || !ch__grow((void **)&from->slot, &from->cap_slots, from->n_slots + 1,
                                  sizeof(*from->slot)))
        return !failed(b, ch__fail_memory("a checkpoint"));
    from->slot[from->n_slots++] = (ch_saved_slot){var, copy, node};
    return true;
}

ch_status ch__tree_build(int n, const ch_added *added, int64_t *counter, ch_tree *out)
{
    building b = {.tree = out};

    *out = (ch_tree){.n_nodes = 0};
    (void)node_of(&b, CH_SAVED_ROOT, out, "");
    for (int i = 0; i < n && b.rc == CH_OK; i++) {
        int node = add_edge(&b, added[i].name, added[i].kind, added[i].object);

        if (node >= 0)
            out->node[node].added = &added[i];
    }
    (void)add_edge(&b, CH_COUNTER_NAME, CH_SAVED_COUNTER, counter);
    for (b.node = 1; b.node < out->n_nodes && b.rc == CH_OK; b.node++)
        expand(&b);
    for (b.node = 1; b.node < out->n_nodes && b.rc == CH_OK; b.node++)
        if (out->node[b.node].kind == CH_SAVED_OPTIMIZER)
            ch__optimizer_visit(out->node[b.node].object, add_slot, &b);
    return b.rc;
}

ch_status ch__tree_add_state(ch_tree *t)
{
    building b = {.tree = t};

    for (int i = 0; i < t->n_nodes && b.rc == CH_OK; i++)
        add_state(&b, i);
    return b.rc;
}

int ch__tree_find(const ch_tree *t, const void *object)
{
    const int *index = ch__map_find(&t->nodes, ch__key((uintptr_t)object));

    return index != NULL ? *index : -1;
}

int ch__tree_child(const ch_tree *t, int node, const char *name)
{
    for (int i = 0; i < t->node[node].n_edges; i++)
        if (strcmp(t->node[node].edge[i].name, name) == 0)
            return t->node[node].edge[i].node;
    return -1;
}

void ch__tree_drop(ch_tree *t)
{
    for (int i = 0; i < t->n_nodes; i++) {
        ch__free(t->node[i].edge);
        ch__free(t->node[i].slot);
    }
    for (int i = 0; i < t->n_values; i++)
        ch_tensor_unref(t->value[i].state);
    ch__free(t->node);
    ch__free(t->value);
    ch__map_drop(&t->nodes);
    ch__arena_drop(&t->memory);
    *t = (ch_tree){.n_nodes = 0};
}

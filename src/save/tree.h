/* save/tree.h -- the objects of a checkpoint as a graph of named edges, with their values.
 *
 * A tree is built for each save and each restore from the objects that the program has added
 * (ch_added). It has a node for each object, in breadth-first order from the root, and a value
 * for each tensor that an object has. An object that is reached by several edges has a single
 * node, and the first path to it gives the keys of its values (CK-6, CK-13). Slots of
 * optimizers follow after all other nodes (CK-14, CK-15). checkpoint.c and restore.c use trees.
 *
 * A tree borrows the objects and owns everything else.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SAVE_TREE_H
#define SAVE_TREE_H

#include "base/map.h"
#include "base/mem.h"
#include "cohort/checkpoint.h"

/* Names of values in the files (attributes of the object graph). */
#define CH_ATTRIBUTE_VALUE "VARIABLE_VALUE" /* of a variable, and of the counter of saves */
#define CH_ATTRIBUTE_STEPS "STEPS"          /* i64: training steps of a model */
#define CH_ATTRIBUTE_RUNS  "RUNS"           /* i64: runs of a function */
#define CH_ATTRIBUTE_POSITION                                                                  \
    "POSITION"                     /* string: position of an iterator or of per-worker data */
#define CH_ATTRIBUTE_STATE "STATE" /* a program's state without a name */
/* Edge from the root to the counter of saves (CK-3). */
#define CH_COUNTER_NAME "save_counter"

typedef enum ch_saved_kind {
    CH_SAVED_ROOT,
    CH_SAVED_LAYER,
    CH_SAVED_OPTIMIZER,
    CH_SAVED_METRIC,
    CH_SAVED_VAR,
    CH_SAVED_COUNTER, /* an int64_t: number of saves */
    CH_SAVED_FUNCTION,
    CH_SAVED_ITERATOR,
    CH_SAVED_PER_WORKER,
    CH_SAVED_STATE
} ch_saved_kind;

/* An object that the program has added to a checkpoint. */
typedef struct ch_added {
    char               *name;   /* owned */
    ch_saved_kind       kind;   /* a model is added as its outermost layer */
    void               *object; /* of CH_SAVED_STATE: the argument of `ops` */
    void               *owner;  /* referenced: the object, or the model of the layer */
    const ch_state_ops *ops;    /* of CH_SAVED_STATE */
} ch_added;

/* A tensor that an object has. */
typedef struct ch_saved_value {
    int         node;
    const char *attribute; /* "VARIABLE_VALUE", or the name of a part of a state */
    const char *key;       /* "model/dense/kernel/.ATTRIBUTES/VARIABLE_VALUE" */
    ch_var     *var;       /* NULL: state */
    ch_tensor  *state;     /* owned; NULL: a variable */
} ch_saved_value;

typedef struct ch_saved_edge {
    const char *name;
    int         node;
} ch_saved_edge;

typedef struct ch_saved_slot {
    int         var; /* node of the variable that the slot belongs to */
    const char *name;
    int         node;
} ch_saved_slot;

typedef struct ch_saved_node {
    ch_saved_kind   kind;
    void           *object;
    const ch_added *added; /* NULL: the object belongs to an added object */
    const char     *path;  /* escaped names of edges, joined by "/"; "": the root */
    int             n_edges, cap_edges;
    ch_saved_edge  *edge;
    int             n_slots, cap_slots; /* of an optimizer */
    ch_saved_slot  *slot;
    int             first_value, n_values; /* in ch_tree.value */
} ch_saved_node;

typedef struct ch_tree {
    ch_arena        memory; /* of names, paths and keys */
    ch_map          nodes;  /* by object: its index in `node`, an int of `memory` */
    int             n_nodes, cap_nodes;
    ch_saved_node  *node;
    int             n_values, cap_values;
    ch_saved_value *value;
} ch_tree;

/* Builds the tree of n added objects and of the counter of saves, with the variables. The
 * caller must drop the tree, also on an error. INVALID_ARGUMENT: two parts of an object have
 * the same name. */
CH_MUST_CHECK ch_status ch__tree_build(int n, const ch_added *added, int64_t *counter,
                                       ch_tree *out);
/* Asks the objects for their values that are not variables, and adds these. If the tree has
 * variables of strategies with parameter servers, a cut of each strategy must be in progress
 * (strategy/cut.h), so that the values agree with the variables. */
CH_MUST_CHECK ch_status ch__tree_add_state(ch_tree *t);
void                    ch__tree_drop(ch_tree *t);

/* Returns the node of an object; -1: it has none. */
int ch__tree_find(const ch_tree *t, const void *object);
/* Returns the node that an edge of a node leads to; -1: there is no such edge. */
int ch__tree_child(const ch_tree *t, int node, const char *name);

#endif

/* save/match.h -- matches the values of a checkpoint file with the objects of a program.
 *
 * A match pairs nodes of the checkpoint's object graph with nodes of a tree, breadth-first from
 * the root, along edges of the same name (CK-6, CK-7). A value is then matched by the name of
 * its attribute. Variables that are left are matched by their full names, and then by their
 * paths (CK-12). restore.c makes a match, and keeps it while values wait for variables.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SAVE_MATCH_H
#define SAVE_MATCH_H

#include "ckpt/ckpt.h"
#include "ckpt/object_graph.h"
#include "save/tree.h"

typedef struct ch_match {
    ch_ckpt        *file;    /* borrowed */
    ch_object_graph graph;   /* n = 0: the checkpoint has none */
    int            *live;    /* for each node of the graph: node of the tree, or -1 */
    int            *node_of; /* for each node of the tree: node of the graph, or -1 */
    /* The same by object: address to an element of node_of. Has no variables, except those that
     * the program has added: a layer may free a variable, and its address may be used again. */
    ch_map objects;
    bool  *is_used;  /* for each tensor of the file: an object has it */
    int   *entry_of; /* for each value of the tree: tensor of the file, or -1 */
} ch_match;

/* Matches a checkpoint with a tree that was built without state. If by_name is not NULL, names
 * are used only for tensors i with by_name[i]. The caller must drop the match, also on an
 * error. */
CH_MUST_CHECK ch_status ch__match_make(ch_ckpt *file, const ch_tree *t, const bool *by_name,
                                       ch_match *out);
void                    ch__match_drop(ch_match *m);

/* Returns the tensor of the file that holds an attribute of a node of the graph; -1: none. */
int ch__match_value(const ch_match *m, int node, const char *attribute);
/* Returns the node of the graph that belongs to an object of `objects`; -1: none. */
int ch__match_object(const ch_match *m, const void *object);
/* Returns the node that an edge of a node leads to; -1: there is no such edge. */
int ch__match_child(const ch_match *m, int node, const char *name);
/* Returns the node of a slot of the optimizer `node` for the variable `of`; -1: none. */
int ch__match_slot(const ch_match *m, int node, int of, const char *name);

#endif

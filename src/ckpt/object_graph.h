/* ckpt/object_graph.h -- the object graph of a checkpoint, and the keys of its values.
 *
 * The graph says which object held which value: nodes with named edges to children, values
 * (attributes) and optimizer slots. Node 0 is the root. It is stored as a string under the key
 * CH_OBJECT_GRAPH_KEY (CK-15). A value is found by the names of the edges that lead to it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_OBJECT_GRAPH_H
#define CKPT_OBJECT_GRAPH_H

#include "base/bytes_builder.h"
#include "cohort/shape.h"

#define CH_OBJECT_GRAPH_KEY "_CHECKPOINTABLE_OBJECT_GRAPH"

typedef struct ch_object_child {
    int         node;
    const char *name; /* of the edge */
} ch_object_child;

typedef struct ch_object_value {
    const char *name;      /* such as "VARIABLE_VALUE" */
    const char *full_name; /* name of the variable; "": none */
    const char *key;       /* of the tensor */
} ch_object_value;

typedef struct ch_object_slot {
    int         variable; /* node of the variable */
    const char *name;     /* of the slot, such as "m" */
    int         slot;     /* node of the slot variable */
} ch_object_slot;

typedef struct ch_object_node {
    int                    n_children, n_values, n_slots;
    const ch_object_child *child;
    const ch_object_value *value;
    const ch_object_slot  *slot;
} ch_object_node;

typedef struct ch_object_graph {
    int                   n;
    const ch_object_node *node;
    void                 *memory; /* of a decoded graph: all of its memory; else NULL */
} ch_object_graph;

/* Appends the encoded graph. On exhausted memory out->has_failed is set. */
void ch__object_graph_encode(const ch_object_graph *g, ch_bytes_builder *out);
/* Decodes an untrusted graph. The caller must free out->memory with ch__free. DATA_LOSS: the
 * message is damaged, or names a node that does not exist. RESOURCE_EXHAUSTED: the graph needs
 * more than 8 MiB plus twice the size of the message. */
CH_MUST_CHECK ch_status ch__object_graph_decode(ch_str message, ch_object_graph *out);

/* Appends the name of an edge to a key, with its escapes: "." is "..", "/" is ".S" (CK-13). */
void ch__object_key_add(ch_bytes_builder *key, const char *edge);
/* Reverses the escapes in place. Returns false if the text is not an escaped name. */
bool ch__object_key_unescape(char *text);

#endif

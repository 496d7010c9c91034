/* graph/extract.h -- a part of a graph as a graph of its own.
 *
 * For those who run the parts of a step in several places: what crosses from one part to another is an output of
 * the one and an input of the other.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_EXTRACT_H
#define GRAPH_EXTRACT_H

#include "graph/graph.h"

typedef struct ch_extract {
    const char *name;
    /* By the id of a call's head: the calls that are copied. Of others, those that ch__call_is_free are copied where they are
     * needed, and the rest must be among `in`. */
    const unsigned char  *take;
    int                   n_in, n_out;
    const ch_node *const *in;  /* become its inputs */
    const ch_node *const *out; /* become its outputs */
    /* Resources of the graph that the part has: it reads them, and writes those that are written. Others' reads must be
     * among `in`. */
    int        n_resources;
    const int *resource;
    bool       only_reads; /* it writes none of them, whatever the graph does */
    /* Of a shard: other sizes for its inputs and resources, from which all else follows. NULL: as they are. */
    const ch_dims  *in_dims;
    const ch_shape *shape;
} ch_extract;

/* True for a source that gives the same wherever it runs: it takes nothing, and is cheaper to copy than to send. */
bool ch__call_is_free(const ch_node *call);

ch_status ch__graph_extract(const ch_graph *g, const ch_extract *e, ch_graph **out);

#endif

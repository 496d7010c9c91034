/* graph/extract.h -- copies a part of a graph to a graph of its own.
 *
 * job/ runs the parts of a step in several tasks. A value that one part computes and another
 * part uses is an output of the first graph and an input of the second.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_EXTRACT_H
#define GRAPH_EXTRACT_H

#include "graph/graph.h"

/* A single use of a value: input `k` of a call. */
typedef struct ch_use {
    const ch_node *call; /* head; NULL: every use that has no input of its own */
    int            k;
} ch_use;

/* The definition of a part. */
typedef struct ch_extract {
    const char *name; /* name of the new graph */
    /* By head id: the calls that are copied. A call that is not taken is copied too if the part
     * needs it and ch__call_is_copyable returns true. The result of any other call must be in
     * `in`. */
    const unsigned char  *take;
    int                   n_in, n_out;
    const ch_node *const *in; /* values that become inputs */
    /* For each input: the use that it is for, if a value is in `in` several times, because a
     * shard gives its uses different parts of it. NULL: each value is there once, for all
     * uses. */
    const ch_use         *use;
    const ch_node *const *out; /* values that become outputs */
    /* Indices of the graph's resources that belong to the part. The part reads them, and writes
     * those that the graph writes. Reads of other resources must be in `in`. */
    int        n_resources;
    const int *resource;
    bool       only_reads; /* the part writes no resource */
    /* Other sizes of inputs and resources, for a shard; the shape rules compute all other
     * sizes. NULL: the sizes do not change. */
    const ch_dims  *in_dims;
    const ch_shape *shape;
} ch_extract;

/* Returns true for a small source that gives the same result in every task, such as a constant.
 * Copying it is cheaper than sending its value. */
bool ch__call_is_copyable(const ch_node *call);

/* Creates the graph of a part, which the caller must unref. */
ch_status ch__graph_extract(const ch_graph *g, const ch_extract *e, ch_graph **out);

#endif

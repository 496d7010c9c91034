/* cohort/graph.h -- graphs: recorded steps, which can be printed, stored and sent.
 *
 * A graph is a step after recording and differentiation, and before planning.
 *
 *     ch_graph_print(g, text, sizeof text);
 *
 *         step train(%0 x: f32(rows, 4), %1 y: f32(rows, 1))
 *           %2 = read w                f32(4, 1)
 *           %3 = matmul %0 %2          f32(rows, 1)
 *           ...
 *           write w = %19
 *           return loss = %10
 *
 *   - Graphs are reference counted and never change, so several threads may read them.
 *   - A graph is encoded as protobuf (proto/graph.proto), by op names and versions. On another
 *     machine it runs for any number of rows, with results of the same bits.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_GRAPH_H
#define COHORT_GRAPH_H

#include <stddef.h>

#include "cohort/status.h"

typedef struct ch_graph ch_graph;

CH_API ch_graph *ch_graph_ref(ch_graph *g);
CH_API void      ch_graph_unref(ch_graph *g);

/* Encodes the graph. The caller frees `*bytes` with ch_bytes_free. UNIMPLEMENTED: a node cannot
 * be sent, such as a call of a host function; the error names it. A graph that is too large to
 * be decoded is an error too. */
CH_API CH_MUST_CHECK ch_status ch_graph_encode(const ch_graph *g, void **bytes, size_t *n);
/* Decodes untrusted bytes. INVALID_ARGUMENT: the bytes are not a valid graph; the error says
 * where, and why. UNIMPLEMENTED: this library does not have the op or version.
 * RESOURCE_EXHAUSTED: the graph needs more memory than 16 MiB plus twice the bytes. */
CH_API CH_MUST_CHECK ch_status ch_graph_decode(const void *bytes, size_t n, ch_graph **out);

/* Frees memory that an encode or save function of the library returned. NULL is fine. Must not
 * be used for other memory. */
CH_API void ch_bytes_free(void *bytes);

/* Prints the graph as snprintf does, and returns the length of the whole text. */
CH_API int ch_graph_print(const ch_graph *g, char *text, size_t size);

CH_API int ch_graph_nodes(const ch_graph *g); /* number of nodes */

#endif

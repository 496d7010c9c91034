/* cohort/graph.h -- a recorded step: it can be read, stored and sent.
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
 * Encoding is protobuf (proto/graph.proto), by op name and version, after differentiation and
 * before planning: it runs elsewhere, for any number of rows, and gives the same bits.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_GRAPH_H
#define COHORT_GRAPH_H

#include <stddef.h>

#include "cohort/status.h"

typedef struct ch_graph ch_graph;

CH_API ch_graph *ch_graph_ref(ch_graph *g);
CH_API void      ch_graph_unref(ch_graph *g);

/* Encodes into memory that ch_bytes_free returns. UNIMPLEMENTED names a node that cannot be
 * sent (a call of a host function); what a reader would refuse for its size is refused here. */
CH_API CH_MUST_CHECK ch_status ch_graph_encode(const ch_graph *g, void **bytes, size_t *n);
/* Decodes what came from anywhere; nothing in the bytes is trusted. INVALID_ARGUMENT says what
 * is wrong and where, UNIMPLEMENTED which op or version this library does not know,
 * RESOURCE_EXHAUSTED that it would take more memory than 16 MiB and twice the bytes. */
CH_API CH_MUST_CHECK ch_status ch_graph_decode(const void *bytes, size_t n, ch_graph **out);

/* Frees memory that the library gave. Precondition: no other memory; NULL is fine. */
CH_API void ch_bytes_free(void *bytes);

/* Writes the graph for people, as snprintf does and returns the length that was needed. */
CH_API int ch_graph_print(const ch_graph *g, char *text, size_t size);

CH_API int ch_graph_nodes(const ch_graph *g);

#endif

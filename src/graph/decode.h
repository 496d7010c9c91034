/* graph/decode.h -- the state and functions that decode.c (graphs and calls) and decode_part.c
 * (parts of calls, memory) share.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_DECODE_H
#define GRAPH_DECODE_H

#include "graph/codec.h"
#include "graph/graph.h"
#include "graph/graph.pb-c.h"

enum {
    CH_DECODE_NUMBERS = 64, /* size of the cache of scalars */
    /* bytes reserved for memory that is not counted: partly filled blocks, growing arrays */
    CH_DECODE_SLACK = 2 << 20,
    /* bytes counted for each entry of the table of values, which doubles when it grows */
    CH_DECODE_VALUE = 16
};

/* A symbol that a shape rule has just created, and its number in the message. */
typedef struct ch_renamed {
    int made, recorded;
} ch_renamed;

/* The state of decoding a message. */
typedef struct ch_decoder {
    ProtobufCAllocator allocator;
    size_t             live, limit;      /* bytes counted so far, and their limit */
    bool               is_over_limit;    /* an allocation exceeded the limit */
    bool               is_out_of_memory; /* an allocation failed */
    int                depth, n_calls; /* nesting of the current body; number of calls so far */
    ch_graph          *root;
    unsigned char     *defined; /* by symbol: an input or call has defined it */
    int                n_symbols;
    ch_node          **in; /* inputs of the current call */
    int                cap_in;
    ch_dims            dims[CH_MAX_OUT]; /* dims and dtypes of its outputs, as inferred */
    ch_dtype           dtype[CH_MAX_OUT];
    ch_renamed fresh[CH_MAX_OUT * CH_MAX_RANK]; /* symbols that the current call defines */
    int        n_fresh;
    ch_tensor *number[CH_DECODE_NUMBERS]; /* cache of scalars, by a hash of their bytes */
} ch_decoder;

/* Counts bytes against the limit. Returns false and sets d->is_over_limit if the limit is
 * exceeded. */
bool ch__decode_charge(ch_decoder *d, size_t bytes);

/* Allocator functions for protobuf-c, which count memory; `arg` is the decoder. */
void *ch__decode_alloc(void *arg, size_t bytes);
void  ch__decode_free(void *arg, void *p);

/* Frees bytes of the message that are no longer needed. */
void ch__decode_release(ch_decoder *d, ProtobufCBinaryData *b);

/* Return an error. no_memory: RESOURCE_EXHAUSTED, for the limit or for the machine.
 * fail_unpack: the same if memory was the reason, else INVALID_ARGUMENT: the n bytes are not a
 * valid `what`. */
ch_status ch__decode_no_memory(const ch_decoder *d);
ch_status ch__decode_fail_unpack(const ch_decoder *d, const char *what, size_t n);

/* Text of the message for use in an error: truncated, without control characters. */
typedef struct ch_quote {
    char text[48];
} ch_quote;
ch_quote ch__quoted(const char *s);

/* Decode and check parts of a call. `what` is a label for errors. A name is copied to the arena
 * of the graph; *out is NULL for "". */
ch_status ch__decode_name(ch_decoder *d, ch_graph *g, const char *what, const char *name,
                          const char **out);
ch_status ch__decode_dtype(const char *name, ch_dtype *out);
ch_status ch__decode_shape(size_t rank, const int64_t *dim, ch_shape *out);
ch_status ch__decode_dims(const ch_decoder *d, size_t n_sizes, const int64_t *sizes,
                          size_t n_symbols, const uint32_t *symbols, ch_dims *out);
ch_status ch__decode_attrs(ch_decoder *d, ch_graph *g, const ch_op *op, Cohort__Call *m,
                           void *attrs);

/* Decodes a graph, or a body of `outer`. The caller must unref *out. (decode.c) */
ch_status ch__decode_graph(ch_decoder *d, Cohort__Outline *m, ch_graph *outer, ch_graph **out);

#endif

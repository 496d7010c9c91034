/* graph/decode.h -- what decoding calls (decode.c) and their parts (decode_part.c) share.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_DECODE_H
#define GRAPH_DECODE_H

#include "graph/codec.h"
#include "graph/graph.h"
#include "graph/graph.pb-c.h"

enum {
    CH_DECODE_NUMBERS = 64,
    CH_DECODE_SLACK = 2 << 20, /* for what is not counted: half-filled blocks, growing arrays */
    CH_DECODE_VALUE = 16       /* of the table of values, for each: it doubles */
};

/* A symbol that a shape rule has just made, and what it is called in the message. */
typedef struct ch_renamed {
    int made, recorded;
} ch_renamed;

typedef struct ch_decoder {
    ProtobufCAllocator allocator;
    size_t             live, limit; /* bytes: see 1 in decode.c */
    bool               is_over_limit;     /* the limit has been hit */
    bool               is_out_of_memory;      /* so has that of the machine */
    int                depth, n_calls;
    ch_graph          *root;
    unsigned char     *defined; /* by symbol: an input or a call has made it */
    int                n_symbols;
    ch_node          **in; /* of the call at hand */
    int                cap_in;
    ch_dims            dims[CH_MAX_OUT]; /* of its outputs, as worked out */
    ch_dtype           dtype[CH_MAX_OUT];
    ch_renamed         fresh[CH_MAX_OUT * CH_MAX_RANK];
    int                n_fresh;
    ch_tensor         *number[CH_DECODE_NUMBERS]; /* scalars, by a hash of their bytes */
} ch_decoder;

/* Counts bytes against the limit; false, and d->is_over_limit, if they are too many. */
bool ch__decode_charge(ch_decoder *d, size_t bytes);

/* As protobuf-c wants them, `arg` the decoder: counted. */
void *ch__decode_alloc(void *arg, size_t bytes);
void  ch__decode_free(void *arg, void *p);

/* Lets go of bytes that have been read. */
void ch__decode_release(ch_decoder *d, ProtobufCBinaryData *b);

/* RESOURCE_EXHAUSTED: of the limit, or of the machine. And what a message that does not unpack
 * is: that, or INVALID_ARGUMENT. */
ch_status ch__decode_no_memory(const ch_decoder *d);
ch_status ch__decode_fail_unpack(const ch_decoder *d, const char *what, size_t n);

/* Text of the message as it may stand in an error: short, and without control characters. */
typedef struct ch_quote {
    char text[48];
} ch_quote;
ch_quote ch__quoted(const char *s);

/* Parts of calls, each checked: names, types, sizes, attributes. */
ch_status ch__decode_name(ch_decoder *d, ch_graph *g, const char *what, const char *name,
                          const char **out);
ch_status ch__decode_dtype(const char *name, ch_dtype *out);
ch_status ch__decode_shape(size_t rank, const int64_t *dim, ch_shape *out);
ch_status ch__decode_dims(const ch_decoder *d, size_t n_sizes, const int64_t *sizes,
                          size_t n_symbols, const uint32_t *symbols, ch_dims *out);
ch_status ch__decode_attrs(ch_decoder *d, ch_graph *g, const ch_op *op, Cohort__Call *m,
                           void *attrs);

/* A graph, or a body of `outer`, out of its message. (decode.c) */
ch_status ch__decode_graph(ch_decoder *d, Cohort__Outline *m, ch_graph *outer, ch_graph **out);

#endif

/* graph/node.h -- nodes of a graph: sizes, values and calls, and tables of attributes.
 *
 * ch_dim is a size, which may be a symbol. ch_node is a value of a graph and, if it is the
 * first output of its call, also the description of the call. ch_attr is a row of a table that
 * lists the attributes of an op. graph/op.h includes this header and describes ops;
 * graph/graph.h describes graphs. Nodes and attributes are in the arena of their graph, and
 * live as long as the graph.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_NODE_H
#define GRAPH_NODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cohort/graph.h"
#include "cohort/step.h"
#include "graph/timing.h"

typedef struct ch_op      ch_op;
typedef struct ch_origins ch_origins;

/* ---- sizes ---- */

/* The size of an axis: a number, or a multiple of a symbol. A symbol stands for a size that is
 * not known until the graph is specialised, such as the number of rows of a batch. */
typedef struct ch_dim {
    int64_t n;
    int     sym; /* 0: the size is n; else the size is n times the symbol with this number */
} ch_dim;

typedef struct ch_dims {
    int    rank;
    ch_dim dim[CH_MAX_RANK];
} ch_dims;

static inline ch_dim ch__dim(int64_t n)
{
    return (ch_dim){n, 0};
}
/* Returns true if the sizes are equal for every value of the symbols. */
static inline bool ch__dim_same(ch_dim a, ch_dim b)
{
    return a.n == b.n && (a.sym == b.sym || a.n == 0);
}
/* Returns true if the size is certainly n. Returns false for a symbol, even if it is n in a
 * later run. */
static inline bool ch__dim_is(ch_dim a, int64_t n)
{
    return a.sym == 0 && a.n == n;
}
bool ch__dims_same(const ch_dims *a, const ch_dims *b);
/* Returns the shape as dims without symbols. The shape must not contain -1. */
ch_dims ch__dims_of(ch_shape s);
/* Returns the dims as a shape, with -1 for every symbol. */
ch_shape ch__dims_shape(const ch_dims *d);
/* Sets *out to the product of the sizes of axes [from, to). Returns false if more than one of
 * them has a symbol, or if the product overflows. */
bool ch__dims_product(const ch_dims *d, int from, int to, ch_dim *out);
/* Return the shape, the number of elements and the number of bytes of a specialised node. */
ch_shape ch__shape(const ch_node *n);
int64_t  ch__count(const ch_node *n);
int64_t  ch__bytes(const ch_node *n);
/* Converts an axis as users write it, where -1 is the last axis, to an index in [0, rank).
 * Returns false if the axis is out of range. */
bool ch__axis(int64_t axis, int rank, int *out);

/* ---- nodes ---- */

/* A value in a graph: an output of a call. A call with n outputs is an array of n nodes. The
 * first node of the array, the head, also describes the call. A call without outputs has a head
 * too. The arena of the graph owns nodes. */
struct ch_node {
    ch_node *head;  /* the first node of the call; the node itself if index is 0 */
    int      index; /* index of this output in its call */
    int      id;    /* number of the value in its graph, in order of creation */
    ch_dtype dtype;
    /* The dtype is a default: with CH_OP_SAME_DTYPE, the node is cast to the dtype of the
     * inputs that are not weak. Number literals are weak. */
    bool weak;
    /* Set while recording: replicas may have different values. */
    bool varies;
    /* Set while recording: computed from constants only, by ops that give every replica the
     * same result. */
    bool is_literal;
    /* Set while recording: computed in replica context, so a sum over replicas counts the value
     * once per replica, even if all values are equal. */
    bool      is_per_replica;
    ch_dims   dims;
    ch_graph *graph;

    /* The members below are set in heads only. */
    const ch_op *op;
    /* op->attrs_bytes bytes in the arena of the graph; NULL if the op has no attributes */
    void       *attrs;
    int         n_in, n_out;
    ch_node   **in;
    ch_node    *next;  /* next call of the graph in execution order; NULL: last */
    const char *scope; /* scope path, such as "block/dense"; NULL: no scope */
    /* return address in the user's code, for error messages; NULL: unknown */
    const void *caller;
    /* name of the composite function that recorded the call, such as "ch_stack"; NULL: none */
    const char *composite;
    /* 1 plus the logical device that the user chose for the outputs; 0: none was chosen */
    int          chosen_device;
    int          ordinal; /* number of the call in the recording: a key of its random numbers */
    ch_work_kind work;    /* kind of work, for time measurement */
    /* of a part of a call: its positions in the whole call, in the arena of the graph; NULL:
     * the call is whole */
    const ch_origins *origins;
    /* Set in specialised graphs for a call on flat values with room (graph/room.h): 1 plus the
     * input of the graph whose size in a run, times live_each, is the number of live rows. 0:
     * all rows are live. */
    int     live_input;
    int64_t live_each;
};

/* Returns the attributes of the call of n; NULL if the op has none. */
static inline const void *ch__attrs(const ch_node *n)
{
    return n->head->attrs;
}
/* Returns output i of the call of n. */
static inline ch_node *ch__out(const ch_node *n, int i)
{
    return n->head + i;
}

/* ---- attributes ----
 *
 * The attributes of an op are the fields of a C struct. A table of rows (ch_attr) lists the
 * fields. graph/attr.c, encode.c and decode.c use the table to copy, compare, hash, print,
 * encode and decode attributes of every op. */

typedef enum ch_attr_kind {
    CH_ATTR_KIND_BOOL,   /* bool */
    CH_ATTR_KIND_INT,    /* int64_t */
    CH_ATTR_KIND_FLOAT,  /* double */
    CH_ATTR_KIND_DTYPE,  /* ch_dtype */
    CH_ATTR_KIND_INTS,   /* ch_ints */
    CH_ATTR_KIND_DIMS,   /* ch_dims; specialisation replaces symbols by numbers */
    CH_ATTR_KIND_TEXT,   /* const char *, may be NULL */
    CH_ATTR_KIND_TENSOR, /* ch_tensor *, referenced, contiguous */
    CH_ATTR_KIND_TABLE,  /* ch_table *, referenced */
    /* ch_graph *, referenced: the body of a branch or loop; specialised with its call */
    CH_ATTR_KIND_GRAPH,
    CH_ATTR_KIND_HOST /* void *: valid in this process only; cannot be encoded */
} ch_attr_kind;

#define CH_MAX_INTS 16
typedef struct ch_ints {
    int     n;
    int64_t at[CH_MAX_INTS];
} ch_ints;

/* A row of an attribute table: the field at `offset` of the attribute struct. */
typedef struct ch_attr {
    const char  *name; /* NULL ends the table */
    ch_attr_kind kind;
    size_t       offset;
} ch_attr;

/* A row for `field` of struct `type`. */
#define CH_ATTR_BOOL(type, field)                                                              \
    {                                                                                          \
#field, CH_ATTR_KIND_BOOL, offsetof(type, field)                                       \
    }
#define CH_ATTR_INT(type, field)                                                               \
    {                                                                                          \
#field, CH_ATTR_KIND_INT, offsetof(type, field)                                        \
    }
#define CH_ATTR_FLOAT(type, field)                                                             \
    {                                                                                          \
#field, CH_ATTR_KIND_FLOAT, offsetof(type, field)                                      \
    }
#define CH_ATTR_DTYPE(type, field)                                                             \
    {                                                                                          \
#field, CH_ATTR_KIND_DTYPE, offsetof(type, field)                                      \
    }
#define CH_ATTR_INTS(type, field)                                                              \
    {                                                                                          \
#field, CH_ATTR_KIND_INTS, offsetof(type, field)                                       \
    }
#define CH_ATTR_DIMS(type, field)                                                              \
    {                                                                                          \
#field, CH_ATTR_KIND_DIMS, offsetof(type, field)                                       \
    }
#define CH_ATTR_TEXT(type, field)                                                              \
    {                                                                                          \
#field, CH_ATTR_KIND_TEXT, offsetof(type, field)                                       \
    }
#define CH_ATTR_TENSOR(type, field)                                                            \
    {                                                                                          \
#field, CH_ATTR_KIND_TENSOR, offsetof(type, field)                                     \
    }
#define CH_ATTR_TABLE(type, field)                                                             \
    {                                                                                          \
#field, CH_ATTR_KIND_TABLE, offsetof(type, field)                                      \
    }
#define CH_ATTR_GRAPH(type, field)                                                             \
    {                                                                                          \
#field, CH_ATTR_KIND_GRAPH, offsetof(type, field)                                      \
    }
#define CH_ATTR_HOST(type, field)                                                              \
    {                                                                                          \
#field, CH_ATTR_KIND_HOST, offsetof(type, field)                                       \
    }
#define CH_ATTR_END                                                                            \
    {                                                                                          \
        NULL, CH_ATTR_KIND_BOOL, 0                                                             \
    }

#endif

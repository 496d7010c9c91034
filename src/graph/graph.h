/* graph/graph.h -- the one representation: what a recorded step is made of.
 *
 * Words used throughout:
 *   call    one use of an op: its attributes, its inputs, its outputs
 *   node    one output of a call, that is, a value. A call with n outputs is an array of n
 *           nodes; the first, its head, holds what belongs to the call
 *   symbol  a size that is not known while recording: the rows of a batch
 *   root    what a graph is for: its outputs, its writes, its calls with effects
 *
 * Invariants:
 *   1. Calls are in order: every input of a call comes before it.
 *   2. A size is n, or n times one symbol. Equal symbols are equal sizes. In a specialised
 *      graph (g->is_concrete) there are no symbols.
 *   3. A resource (a variable, by name) has at most one read, the value it has when the step
 *      begins, and at most one write, the value it has when the step has gone well. What is
 *      read after an assign is the assigned node itself. So a graph is a function from
 *      (inputs, resources) to (outputs, resources), and nothing in it changes anything.
 *   4. Effects (host calls, prints, collectives) keep their recorded order.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_GRAPH_H
#define GRAPH_GRAPH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "cohort/graph.h"
#include "cohort/step.h"
#include "graph/op.h"
#include "tensor/tensor.h"

/* Whom the code that is being recorded speaks of. */
typedef enum ch_speaks_of {
    CH_SPEAKS_OF_REPLICA,
    CH_SPEAKS_OF_ALL, /* in a merge call */
    CH_SPEAKS_OF_COPY /* of a variable: in an update */
} ch_speaks_of;

/* The call that somebody is in; NULL: none that was recorded. */
typedef _Atomic(const ch_node *) ch_doing;

typedef struct ch_resource {
    const char *name;
    ch_dtype    dtype;
    ch_shape    shape;
    void       *key; /* the ch_var while recording; NULL in a decoded graph */
    /* Set if the variable belongs to another owner than the run's: the graph only reads it, references
     * `key` and releases it with this. Only a recorded graph has such resources, not its copies. */
    void (*release)(void *key);
    bool
        is_remote; /* of the owner's, but in another task: reading a few rows is cheaper than all */
    ch_node *read;  /* its value at the beginning; NULL: not read */
    ch_node *value; /* its value now; equals read unless it was assigned */
} ch_resource;

/* Returns whether the variable belongs to another owner than the run's. */
static inline bool ch__is_borrowed(const ch_resource *r)
{
    return r->release != NULL;
}

typedef struct ch_output {
    const char *name; /* NULL: none */
    ch_node    *node;
} ch_output;

struct ch_graph {
    atomic_int  refs;
    ch_arena    arena;
    const char *name;
    bool        is_concrete;
    ch_step    *step; /* while it is being recorded */

    ch_node *first, *last; /* calls */
    int      n_calls, n_values, n_ordinals;

    ch_node    **input; /* nodes of the op `input`, by index */
    const char **input_name;
    int          n_inputs, cap_inputs;
    ch_output   *output;
    int          n_outputs, cap_outputs;
    ch_resource *resource;
    int          n_resources, cap_resources;

    int  n_symbols;     /* symbols are 1 .. n_symbols */
    bool wants_numbers; /* recording failed only because a size is a symbol */
    ch_graph
        *outer; /* of a body: the graph it stands in, while recording; symbols are its root's */
};

/* Attributes of the ops that graph/ makes itself (ch_roles). */
typedef struct ch_input_attrs {
    int64_t  index;
    ch_dtype dtype;
    ch_dims  dims;
    /* Of the halves of a ragged component (tensor/ragged.h). Row splits: one size, the rows, of
     * which they have one more. Flat values: the symbol of their splits; 0: no such values. */
    ch_dims rows;
    int64_t splits;
} ch_input_attrs;

typedef struct ch_read_attrs {
    int64_t  resource;
    ch_dtype dtype;
    ch_dims  dims;
} ch_read_attrs;

typedef struct ch_constant_attrs {
    ch_tensor *value;
    bool       weak;
} ch_constant_attrs;

/* A fused chain: instruction i computes value n_in + i from earlier values with `block`. */
enum { CH_FUSED_STEPS = 64, CH_FUSED_INPUTS = 16 }; /* at most */

typedef struct ch_fused_step {
    ch_block block;
    ch_dtype out; /* what the op would have given: 16-bit floats are rounded to it */
    int      n_in;
    int      in[4];  /* inputs of the call first, then results of earlier instructions */
    int      result; /* which output of the call it is; -1: none */
} ch_fused_step;

typedef struct ch_fused_attrs {
    int64_t        n_steps;
    ch_fused_step *step; /* in the graph's arena */
} ch_fused_attrs;

ch_status ch__graph_new(const char *name, ch_graph **out);

static inline ch_node *ch__next(const ch_node *call)
{
    return call->next;
}

/* Runs an op's shape rule on nodes; c->out and c->out_dtype have room for CH_MAX_OUT. */
ch_status ch__call_infer(ch_graph *g, const ch_op *op, const void *attrs, int n_in,
                         ch_node *const *in, ch_infer *c);

/* Adds a call without looking at it: for copying and decoding. Outputs have no dims yet.
 * `attrs` is copied by its rows. NULL when out of memory. */
ch_node *ch__graph_add(ch_graph *g, const ch_op *op, const void *attrs, int n_in,
                       ch_node *const *in, int n_out);

/* Moves the last call up, to behind the last of those whose results it takes. */
void ch__graph_hoist(ch_node *call);

/* Room for one more, zeroed; NULL when out of memory. */
ch_output   *ch__graph_add_output(ch_graph *g);
ch_resource *ch__graph_add_resource(ch_graph *g);

/* Finds the rows of row splits: those of the graph's input that has as many splits. False if
 * `splits` is a list of another length, or the graph has no such input. */
bool ch__splits_rows(const ch_node *splits, ch_dim *rows);

/* The root of nested bodies: who owns the symbols. */
ch_graph *ch__graph_root(ch_graph *g);

/* All calls in order, into room for n_calls. */
void ch__graph_calls(const ch_graph *g, ch_node **call);
/* True for a call that stays even if nobody uses its results. */
bool ch__call_is_root(const ch_node *call);
/* True if it calls functions of the program, in bodies too. Such a function may wait for its call on
 * another replica, so replicas of the graph must not run in turns. */
bool ch__graph_calls_host(const ch_graph *g);
/* Marks, by value id, every value that a root needs, and the head of every call that is
 * needed for any of its outputs. `live` holds n_values zeros. */
ch_status ch__graph_mark(const ch_graph *g, unsigned char *live);

/* A copy with every symbol a number, for each different signature of a run's replicas.
 * Replica r has variant[r] and the input shapes in[r]; out[v] gets variant v's graph. */
typedef struct ch_signature {
    int              n_replicas, n_variants;
    const int       *variant; /* of each replica */
    const ch_shape **shape;   /* of each variant: n_inputs shapes */
} ch_signature;
ch_status ch__specialise(const ch_graph *g, const ch_signature *sig, ch_graph **out);

/* Passes over a specialised graph, each of which leaves the same results, to the bit. */
ch_status ch__pass_fold(ch_graph *g);   /* calls of constants only become constants */
ch_status ch__pass_cse(ch_graph *g);    /* equal calls become one */
ch_status ch__pass_dead(ch_graph *g);   /* calls that no root needs go */
ch_status ch__pass_absorb(ch_graph *g); /* what follows a call becomes part of it */
ch_status ch__pass_fuse(ch_graph *g);   /* chains of elementwise calls become one */

/* Text for people: "%12 = matmul %3 %4  f32(rows, 64)"; and the dims alone. */
/* "host_call save, in block/dense, at train.c:41": a call, for messages of others. (print.c) */
int ch__call_print(const ch_node *n, char *text, size_t size);
int ch__dims_print(const ch_dims *d, char *text, size_t size);

#endif

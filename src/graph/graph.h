/* graph/graph.h -- graphs: the representation of a recorded step.
 *
 * graph/step.c, step_call.c and body.c record graphs, gradient.c and the passes extend and
 * rewrite them, specialise.c copies them with numbers for symbols, and plan.c turns them into
 * programs.
 *
 * Terms:
 *   call      a use of an op, with attributes, inputs and outputs
 *   node      an output of a call, that is, a value. A call with n outputs is an array of n
 *             nodes; the first node, the head, also describes the call
 *   symbol    a size that is not known while recording, such as the number of rows of a batch
 *   resource  a variable, identified by its name
 *   root      a reason to compute a value: an output, a write, or a call with an effect
 *
 * Invariants:
 *   1. Every input of a call is an output of an earlier call.
 *   2. A size is n, or n times a symbol. Equal symbols are equal sizes. A specialised graph
 *      (is_concrete) has no symbols.
 *   3. A resource has at most one read and at most one write. The read is its value when the
 *      step begins. The write is its value after the step has succeeded. A read that follows an
 *      assignment gives the assigned node. So a graph is a pure function from (inputs,
 *      resources) to (outputs, resources).
 *   4. Calls with effects (host calls, prints, collectives) keep their recorded order.
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

/* The context in which code is recorded. */
typedef enum ch_step_context {
    CH_STEP_CONTEXT_REPLICA, /* replica context: the code of each replica */
    CH_STEP_CONTEXT_CROSS,   /* cross-replica context: a merge call */
    CH_STEP_CONTEXT_UPDATE   /* update context: the code for each copy of a variable */
} ch_step_context;

/* The call that a replica is executing, for messages of other threads. NULL: no recorded
 * call. */
typedef _Atomic(const ch_node *) ch_current_call;

/* A variable that the graph reads or writes. */
typedef struct ch_resource {
    const char *name;
    ch_dtype    dtype;
    ch_shape    shape;
    void       *key; /* the ch_var in a graph recorded here; NULL in a decoded graph */
    /* Set if the variable is borrowed: it belongs to another owner than the run's. The graph
     * only reads it, holds a reference to `key`, and gives the reference up with this function.
     * Specialised copies of the graph do not have it. */
    void (*release)(void *key);
    /* In graphs of cores: identifies the layout of the variable for which the step was divided,
     * so that a variable that was created later with this name is not used in another layout.
     * 0: the step was not divided. */
    uint64_t layout;
    bool is_borrowed; /* as `release` says, also in specialised copies and graphs of cores */
    /* The variable belongs to the owner, but is stored in another task. Reading a few rows is
     * cheaper than reading all of them. */
    bool     is_remote;
    ch_node *read;  /* value at the beginning of the step; NULL: not read */
    ch_node *value; /* current value; equals `read` unless the variable was assigned */
} ch_resource;

/* Returns true if the variable belongs to another owner than the run's. */
static inline bool ch__is_borrowed(const ch_resource *r)
{
    return r->release != NULL;
}

typedef struct ch_output {
    const char *name; /* NULL: no name */
    ch_node    *node;
} ch_output;

/* Memory that several graphs share, such as tables for the graphs of the cores of a replica. It
 * lives until the last of them is freed. */
typedef struct ch_shared_memory {
    atomic_int refs;
    ch_arena   arena;
} ch_shared_memory;

struct ch_graph {
    atomic_int        refs;
    ch_arena          arena;
    ch_shared_memory *shared; /* referenced; NULL: none */
    const char       *name;
    bool              is_concrete;
    /* The recording. After its end, a step that rejects further calls. NULL in a specialised or
     * decoded graph. */
    ch_step *step;

    ch_node *first, *last; /* list of calls, linked by ch_node.next */
    int      n_calls, n_values, n_ordinals;

    ch_node    **input; /* by index: the node of the op `input` */
    const char **input_name;
    int          n_inputs, cap_inputs;
    ch_output   *output;
    int          n_outputs, cap_outputs;
    ch_resource *resource;
    int          n_resources, cap_resources;

    int n_symbols; /* symbols are numbered 1 to n_symbols */
    /* recording failed only because a size is a symbol: record again with numbers */
    bool wants_numbers;
    /* Of a body, while recording: the graph that contains it. The outermost graph, the root,
     * owns the symbols. NULL: not a body. */
    ch_graph *outer;
};

/* ---- attributes of the ops that graph/ creates itself (ch_roles) ---- */

typedef struct ch_input_attrs {
    int64_t  index;
    ch_dtype dtype;
    ch_dims  dims;
    /* Set for the halves of a ragged component (tensor/ragged.h). Row splits: `rows` has rank 1
     * and is the number of rows; there is one more split than rows. Flat values: `splits_input`
     * is 1 plus the index of the input with their row splits; -1: the graph does not have this
     * input; 0: not flat values. */
    ch_dims rows;
    int64_t splits_input;
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

/* Of fill_room (ops/room.c). */
typedef struct ch_fill_attrs {
    double  value;        /* contents of the rows that are not live */
    bool    without_room; /* axis 0 of the output has a size symbol of its own */
    ch_dims rows;         /* rank 1: the size of axis 0 of the output; rank 0: see above */
} ch_fill_attrs;

/* The largest number of steps and inputs of a fused chain. */
enum { CH_FUSED_STEPS = 64, CH_FUSED_INPUTS = 16 };

/* A step of a fused chain. Step i computes value n_in + i from earlier values with `block`;
 * values 0 to n_in - 1 are the inputs of the call. */

typedef struct ch_fused_step {
    ch_block block;
    ch_dtype out; /* dtype of the original call; 16-bit floats are rounded to it */
    int      n_in;
    int      in[4];  /* numbers of values */
    int      result; /* index of the output that holds the value; -1: intermediate value */
} ch_fused_step;

typedef struct ch_fused_attrs {
    int64_t        n_steps;
    ch_fused_step *step; /* array in the arena of the graph */
} ch_fused_attrs;

/* Return a new shared memory, or NULL if memory is exhausted; another reference to one; and
 * drop a reference to one, which may be NULL. */
ch_shared_memory *ch__shared_memory_new(void);
ch_shared_memory *ch__shared_memory_ref(ch_shared_memory *m);
void              ch__shared_memory_unref(ch_shared_memory *m);

/* Creates an empty graph, which the caller must unref. The name is copied. */
ch_status ch__graph_new(const char *name, ch_graph **out);

/* Returns the call after `call`; NULL: last. */
static inline ch_node *ch__next(const ch_node *call)
{
    return call->next;
}

/* Runs the shape rule of an op on nodes of g. The caller sets c->out and c->out_dtype to arrays
 * of CH_MAX_OUT. */
ch_status ch__call_infer(ch_graph *g, const ch_op *op, const void *attrs, int n_in,
                         ch_node *const *in, ch_infer *c);

/* Appends a call without running its shape rule: for copying and decoding. The caller must set
 * dtype and dims of the outputs. `attrs` is copied row by row. NULL: out of memory. */
ch_node *ch__graph_add(ch_graph *g, const ch_op *op, const void *attrs, int n_in,
                       ch_node *const *in, int n_out);

/* Appends a copy of call n to g, without running its shape rule. map[id] is the copy of the
 * value with this id; the function sets those of the outputs. NULL: out of memory. */
ch_node *ch__graph_copy_call(ch_graph *g, const ch_node *n, ch_node **map);
/* Gives a call the scope, source line, chosen device, ordinal and kind of work of another
 * one. */
void ch__call_copy_origin(ch_node *to, const ch_node *n);
/* Adds the names of inputs, the outputs and the resources of g to a copy of its calls. */
ch_status ch__graph_copy_roots(ch_graph *to, const ch_graph *g, ch_node *const *map);

/* Moves the last call of its graph to the earliest position: directly after the last call whose
 * results it uses. */
void ch__graph_hoist(ch_node *call);

/* Append a zeroed entry. NULL: out of memory. */
ch_output   *ch__graph_add_output(ch_graph *g);
ch_resource *ch__graph_add_resource(ch_graph *g);

/* Sets *rows to the number of rows of row splits: that of the graph's input of row splits with
 * the same length. Returns false if there is no such input, or if the rank of `splits` is not
 * 1. */
bool ch__splits_rows(const ch_node *splits, ch_dim *rows);

/* Returns the outermost graph of nested bodies, which owns the symbols. */
ch_graph *ch__graph_root(ch_graph *g);

/* Writes all calls in order to an array of n_calls. */
void ch__graph_calls(const ch_graph *g, ch_node **call);
/* Sets body[0 .. n - 1] to the bodies of a call, in the order of its attributes, and returns n,
 * at most CH_MAX_BODIES. */
int ch__call_bodies(const ch_node *call, ch_graph **body);
/* Replaces the bodies of a call, which must have `n`. References the new ones. */
void ch__call_set_bodies(ch_node *call, int n, ch_graph *const *body);
/* Returns which of CH_OP_EFFECT and CH_OP_COLLECTIVE the op of the call has, or an op of a call
 * in its bodies. */
unsigned ch__call_effects(const ch_node *call);
/* Returns true if the call must be kept even if its results are not used. */
bool ch__call_is_root(const ch_node *call);
/* Returns true if the graph, or a body in it, calls functions of the program. Such a function
 * may wait for its call on another replica. So replicas of the graph must not run in turns. */
bool ch__graph_calls_host(const ch_graph *g);
/* Sets live[id] for every value that a root needs, and for the head of every call that is
 * needed for any of its outputs. `live` has n_values elements. The caller must set them to 0,
 * except for values that it needs itself. */
ch_status ch__graph_mark(const ch_graph *g, unsigned char *live);

/* The input shapes of a run. Replicas with equal shapes share a variant: replica r has
 * variant[r], and variant v has the input shapes shape[v]. */
typedef struct ch_signature {
    int              n_replicas, n_variants;
    const int       *variant;       /* by replica */
    const ch_shape **shape;         /* by variant: array of n_inputs shapes */
    const bool      *may_have_room; /* by input (graph/room.h); NULL: no input */
} ch_signature;
/* Copies g for every variant, with a number for every symbol. Sets out[v], which the caller
 * must unref. */
ch_status ch__specialise(const ch_graph *g, const ch_signature *sig, ch_graph **out);

/* Passes over a specialised graph. They do not change results, except ch__pass_absorb, which
 * may change the last place (ch_op.absorb). */
ch_status ch__pass_fold(ch_graph *g);   /* computes calls whose inputs are all constants */
ch_status ch__pass_cse(ch_graph *g);    /* merges equal calls */
ch_status ch__pass_dead(ch_graph *g);   /* removes calls that no root needs */
ch_status ch__pass_absorb(ch_graph *g); /* merges calls with their next call (ch_op.absorb) */
ch_status ch__pass_fuse(ch_graph *g);   /* merges chains of elementwise calls */

/* Print a call, as "host_call save, in block/dense, at train.c:41"; the origin of a value, as
 * "variable w", "matmul, in block, at train.c:41" or "matmul, moved, in block, at train.c:41"
 * (print.c); and sizes, as "(rows, 64)" (dims.c). All truncate and return the whole length, as
 * snprintf does. */
int ch__call_print(const ch_node *n, char *text, size_t size);
int ch__origin_print(const ch_node *n, char *text, size_t size);
/* Prints the first part of ch__origin_print, such as "variable w" or "matmul". Returns text. */
const char *ch__origin_name(const ch_node *n, char *text, size_t size);
int         ch__dims_print(const ch_dims *d, char *text, size_t size);
/* Prints the op of a call and its attributes of text, as "host_call save". `attrs` may be NULL.
 * Truncates. Returns `text`. (print.c) */
const char *ch__call_name(const ch_op *op, const void *attrs, char *text, size_t size);

#endif

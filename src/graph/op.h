/* graph/op.h -- the description of an op: its attributes, shape rule, kernels and gradient.
 *
 * An op is a constant of type ch_op. It is defined in a file of src/ops/ or src/collective/,
 * together with the public function that records it; src/ops/matmul.c is an example.
 * src/cohort.c lists all ops. Ops are found by name and version, so that stored graphs stay
 * valid.
 *
 * The members of ch_op are called in this order:
 *   1. Recording. The public function calls ch__node, which calls `infer` (the shape rule) and
 *      appends a call to the graph. Sizes may be symbols.
 *   2. Differentiation. `grad` records the calls that compute the gradient.
 *   3. Specialisation. The graph is copied with a number for every symbol, and `infer` is
 *      called again for each call.
 *   4. Passes. `absorb` merges a call with the next one; `block` allows fusion of elementwise
 *      calls.
 *   5. Planning. For each call the planner takes the first kernel of `kernels` that `fits`, and
 *      calls its `prepare`.
 *   6. Running. The executor calls `run` of the kernel once for each tile.
 *
 * Invariants:
 *   1. `infer` is the only source of output shapes and dtypes. It also runs on untrusted graphs
 *      (graph/decode.c), so it must check its inputs and attributes.
 *   2. Results do not depend on the number of threads.
 *   3. A kernel must not allocate memory while it runs: `prepare` requests the memory that the
 *      kernel needs. The exception are small allocations inside oneDNN.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_OP_H
#define GRAPH_OP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/fault.h"
#include "base/mem.h"
#include "graph/factors.h"
#include "graph/node.h"
#include "graph/traffic.h"

/* ---- shape rules ---- */

/* The arguments and results of a shape rule (ch_op.infer).
 *
 * A shape rule checks the inputs and attributes, and sets the dtype and dims of every output.
 * The rule is called while recording, where sizes may be symbols, and again for every
 * specialised graph, where all sizes are numbers. Inputs may come from an untrusted graph, so
 * the rule must not assume that they make sense. */
typedef struct ch_infer {
    const ch_op    *op;
    const void     *attrs;
    int             n_in;
    const ch_dims  *in;
    const ch_dtype *dtype;
    ch_graph *graph; /* the graph that the call belongs to; its root graph owns the symbols */
    /* number of outputs set so far; must equal ch_op.n_out in the end unless that is -1 */
    int n_out;
    /* array of CH_MAX_OUT, set by the rule with ch__infer_out or ch__infer_dims */
    ch_dims  *out;
    ch_dtype *out_dtype;
    /* Set for collectives in specialised graphs only: peer[r] are the dims of the inputs on
     * replica r. */
    int                   n_peers;
    const ch_dims *const *peer;
} ch_infer;

#define CH_MAX_OUT 64

/* Set the dtype and dims of output i. INVALID_ARGUMENT: more than CH_MAX_OUT outputs, a rank
 * out of range, or a negative size. */
ch_status ch__infer_out(ch_infer *c, int i, ch_dtype dtype, int rank, const ch_dim *dim);
ch_status ch__infer_dims(ch_infer *c, int i, ch_dtype dtype, const ch_dims *dims);
/* Gives output i the dtype and dims of input j. */
ch_status ch__infer_like(ch_infer *c, int i, int j);
/* Returns INVALID_ARGUMENT with a message that names the op and the types of its inputs, then
 * the given reason. */
ch_status ch__infer_fail(const ch_infer *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Checks that many shape rules begin with. Each returns CH_OK, or an error that states the
 * accepted values. want_ids: i32 or i64. want_same: all inputs have the same dtype. */
ch_status ch__infer_want_float(const ch_infer *c, int i);
ch_status ch__infer_want_ids(const ch_infer *c, int i);
ch_status ch__infer_want_rank(const ch_infer *c, int i, int rank);
ch_status ch__infer_want_same(const ch_infer *c);
/* Returns an error if d has a symbol. For an op that needs the number while recording. The step
 * is then recorded again, for the sizes of this run only. */
ch_status ch__infer_want_number(const ch_infer *c, ch_dim d);
/* Broadcasts inputs [from, to) by the rules of numpy. A symbol fits itself and 1, but no other
 * number. */
ch_status ch__infer_broadcast(const ch_infer *c, int from, int to, ch_dims *out);
/* Returns a + b. If the sizes have different symbols, the sum is a new symbol. */
ch_dim ch__infer_add(ch_infer *c, ch_dim a, ch_dim b);
/* Returns false for a value of 2^48 bytes or more. Such values are rejected, so that sums and
 * products of a few sizes cannot overflow. An axis of size 0 is ignored, and a symbol counts as
 * 1. */
bool ch__size_is_supported(ch_dtype dtype, const ch_dims *d);
/* Returns a new symbol, for a size that only the shapes of a run determine. While recording
 * only. */
ch_dim ch__infer_symbol(ch_infer *c);
/* Returns the size as text for messages: "64", "rows", "3*rows". The text is in a ring of four
 * buffers of this thread, so the fourth call after this one overwrites it. */
const char *ch__dim_text(const ch_infer *c, ch_dim d);
/* Returns "f32(rows, 3)" in such a ring of buffers. */
const char *ch__type_text(ch_dtype dtype, const ch_dims *d);

/* ---- kernels ---- */

/* A unit of work of a kernel: tile `index` of phase `phase`.
 *
 * A kernel runs in up to CH_MAX_PHASES phases, one after the other. A phase is a number of
 * tiles. The tiles of a phase may run in any order and on any threads. A division into tiles
 * that could change results must depend on shapes only. Then results do not depend on the
 * number of threads. */
typedef struct ch_kernel_tile {
    int phase, index;
} ch_kernel_tile;

#define CH_MAX_PHASES 3

/* The properties of a run that kernels may read. */
typedef struct ch_env {
    int     replica;    /* index in the job */
    int     n_replicas; /* number in the job */
    int64_t step;       /* number of the run */
    /* iteration number of the loops around the call, a key of random numbers; 0: no loop */
    int64_t  iteration;
    uint64_t seed;
    int64_t  global_rows; /* number of rows over all replicas of the job */
    /* the ch_group of collectives: of the replicas or, if replicas have cores, of the cores
     * with this number; NULL: a single replica */
    void *group;
    void *cores; /* the ch_group of the cores of this replica; NULL: the replica has one core */
    /* receives the bytes that the core moves; NULL: the replica has one core */
    ch_traffic_counts *traffic;
    /* threads of the device, for kernels that run bodies; NULL: one thread */
    struct ch_team *team;
    int             local; /* index of the replica in this process */
    int             core;  /* index of the core in its replica; 0: the replica has one core */
    /* inputs of the replica in this run, by index; NULL: a run without room */
    struct ch_tensor *const *input;
    /* Becomes true when another thread stops the run: the run then ends before the next
     * instruction. NULL: the run cannot be stopped. */
    const atomic_bool *stop;
} ch_env;

/* The arguments of ch_kernel.run. */
typedef struct ch_call {
    const void *const *in;
    void *const       *out;
    /* CH_ALIGN-aligned memory for the duration of the call; contents undefined unless the call
     * is repeated */
    void          *scratch;
    const void    *state; /* ch_prep.state; read-only, because tiles run in parallel */
    const ch_env  *env;
    const ch_node *node; /* the call, for error messages */
    /* The call returned CH__BLOCKED before (graph/run.h), and is repeated: its scratch is as it
     * was. */
    bool is_repeated;
} ch_call;

/* The interface between the planner and ch_kernel.prepare. The planner sets node, arg, threads,
 * unused, watched and arena. The other members are zero and may be set by the kernel. */
typedef struct ch_prep {
    const ch_node *node; /* head of the specialised call */
    const void    *arg;  /* ch_kernel.arg */
    int threads; /* number of threads of the device, at least 1; must not influence results */
    /* state of the kernel: memory of ch__prep_state, or any memory that ch_kernel.drop frees */
    void  *state;
    size_t scratch_bytes;
    int    n_phases;             /* 0: one phase of one tile */
    int    tiles[CH_MAX_PHASES]; /* number of tiles of each phase */
    /* Bit j of over[i]: output i may be computed in place, in the memory of input j. The
     * planner does so only if no later call reads input j, and if both have the same number of
     * bytes. */
    unsigned over[CH_MAX_OUT];
    bool     unused[CH_MAX_OUT]; /* true for an output that no call or root reads */
    bool     skips_unused; /* the kernel does not write unused outputs, so they get no memory */
    /* A user observes all outputs (ch_function_watch), so the kernel must write all of them. */
    bool watched;
    /* The kernel may write only the beginning of a large output or scratch. Then the pages of
     * the arena are not touched in advance. */
    bool touches_part;
    /* Output 0 is the memory of input 0 from byte view_offset on. The program contains no
     * instruction for the call. */
    bool   is_view;
    size_t view_offset;
    /* Of a part that begins at another byte on each core. The arrays are by core, in `arena`.
     * NULL: the kernel has no such part.
     * view_by_core: output 0 is a view, and begins at this byte of input 0, which must be an
     * input or a constant of the graph. */
    const size_t *view_by_core;
    /* put_by_core: the kernel copies input 0 to output 0, from this byte on, and writes nothing
     * else. The planner lets the call that computes input 0 write there, and leaves the copy
     * out, if input 0 can have this memory. */
    const size_t *put_by_core;
    ch_arena     *arena; /* memory that lives as long as the program */
} ch_prep;

/* Allocates zeroed memory for p->state, which is freed with the program. NULL: out of
 * memory. */
void *ch__prep_state(ch_prep *p, size_t bytes);

/* An implementation of an op. Kernels are stateless constants; the state of a call is
 * ch_prep.state. Members that a definition does not name are NULL. */
typedef struct ch_kernel {
    const char *name; /* name in printed plans */
    /* Returns true if the kernel supports the dtypes and shapes of the call, and this CPU.
     * NULL: the kernel supports all calls that the shape rule accepts. */
    bool (*fits)(const ch_node *n, const void *arg);
    /* Plans a call. Called once for each program. NULL: one tile, without state. */
    ch_status (*prepare)(const ch_node *n, ch_prep *p);
    /* Computes a tile. Called by several threads at the same time if there are several
     * tiles. */
    ch_status (*run)(const ch_call *c, ch_kernel_tile t);
    /* Frees the state. NULL: the state is only arena memory. */
    void (*drop)(void *state);
    /* constant for `fits` and for `prepare` (ch_prep.arg) that distinguishes kernels with the
     * same functions, such as the engine of a product; NULL: not used */
    const void *arg;
} ch_kernel;

/* Returns true if kernel k supports call n. */
static inline bool ch__kernel_fits(const ch_kernel *k, const ch_node *n)
{
    return k->fits == NULL || k->fits(n, k->arg);
}

/* Returns the first position of output 0, or of input 0, in the whole call that c is a part of.
 * NULL: the call is whole. An op whose kernels call these functions must have CH_OP_ORIGIN. */
static inline const int64_t *ch__out_origin(const ch_call *c)
{
    const ch_origins *o = c->node->origins;

    return o != NULL ? o->out[c->env->core] : NULL;
}
static inline const int64_t *ch__in_origin(const ch_call *c)
{
    const ch_origins *o = c->node->origins;

    return o != NULL ? o->in[c->env->core] : NULL;
}

/* Appends the origin of a call to this thread's error message, as ", in block/dense, at
 * train.c:41". Returns rc. */
ch_status ch__fail_in_call(ch_status rc, const ch_node *call);
/* Returns rc with a message for an error in a kernel: the op's name, the types of its inputs,
 * the given reason, the scope and the user's source line. */
ch_status ch__call_fail(const ch_call *c, ch_status rc, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));

/* Returns how many rows of axis 0 are live in this run, that is, not room (graph/room.h).
 * ch_op.room_counted says of which value. Returns `rows`, the planned number of rows, if the
 * value has no room. (graph/room.c) */
int64_t ch__live_rows(const ch_call *c, int64_t rows);
/* Returns how many of n items are live. Each row of output 0 has the same number of them.
 * (graph/room.c) */
int64_t ch__live_items(const ch_call *c, int64_t n);
/* Returns true if n belongs to a graph, not to a body, and is as long as the flat values of a
 * ragged input of the graph, or a multiple of them. (graph/room.c) */
bool ch__is_ragged(const ch_node *n);

/* Returns the number of tiles for n items of `cost` elementary operations each: 1 to 64. The
 * number depends on n and cost only. 1: the work is too small to share. */
int ch__tile_count(int64_t n, int64_t cost);
/* Sets [*from, *to) to the items of tile i. */
static inline void ch__tile_range(int64_t n, int tiles, int i, int64_t *from, int64_t *to)
{
    *from = n * i / tiles;
    *to = n * (i + 1) / tiles;
}

/* ---- elementwise ops ---- */

/* Computes n contiguous elements of an elementwise op.
 *
 * An op is elementwise if ch_op.block is set: output element i depends only on element i of
 * each input, after broadcasting. The kernel of a single op and a fused chain call the same
 * block functions, so fusion does not change the results. For 16-bit floats the caller converts
 * the inputs to f32 before the call and rounds the result after it; then ch_block.compute is
 * CH_F32. */
typedef void (*ch_block_fn)(int64_t n, const void *const *in, void *out, const double *param);

typedef struct ch_block {
    ch_block_fn fn;
    ch_dtype    compute;  /* dtype of the inputs of fn */
    double      param[4]; /* attributes as numbers, passed to fn */
} ch_block;

/* ---- absorbing the next call ---- */

/* The call that replaces a call and its only user (ch_op.absorb). */
typedef struct ch_rewrite {
    const ch_op *op;
    int          n_in;
    ch_node     *in[8];
    /* the first op->attrs_bytes bytes are the attributes */
    _Alignas(16) unsigned char attrs[1024];
} ch_rewrite;

/* ---- the op ---- */

enum {
    /* draws random numbers with the key (seed, ordinal, step, replica, iteration) */
    CH_OP_RANDOM = 1 << 0,
    /* has an effect outside the graph: calls are never removed, merged or reordered */
    CH_OP_EFFECT = 1 << 1,
    CH_OP_COLLECTIVE = 1 << 2, /* communicates with the same call on all other replicas */
    CH_OP_CAN_FAIL = 1 << 3,   /* kernels may return an error that depends on values */
    /* all inputs must have the same dtype; weak inputs are cast to it */
    CH_OP_SAME_DTYPE = 1 << 4,
    CH_OP_NO_GRAD = 1 << 5, /* the gradient with respect to all inputs is zero */
    CH_OP_HOST = 1 << 6,    /* refers to objects of this process: cannot be encoded */
    /* differs between runs or replicas: never folded into a constant */
    CH_OP_READS_ENV = 1 << 7,
    /* with a single replica, output i equals input i: the call is removed */
    CH_OP_ALONE_IS_INPUT = 1 << 8,
    CH_OP_VARIES = 1 << 9,   /* outputs may differ between replicas even if inputs do not */
    CH_OP_STRINGS = 1 << 10, /* accepts string inputs; outputs are never strings */
    /* linear in all inputs together: applied to summands of all inputs, it gives summands of
     * the outputs */
    CH_OP_LINEAR = 1 << 11,
    /* the kernels need the positions of a part in the whole call (ch_node.origins) */
    CH_OP_ORIGIN = 1 << 12,
    /* calls get no ordinal of their own, so that random numbers do not depend on them: only
     * some strategies record such calls */
    CH_OP_UNNUMBERED = 1 << 13,
    /* linear in input 0, in input 1: applied to summands of this input and the other inputs, it
     * gives summands of the outputs */
    CH_OP_LINEAR_0 = 1 << 14,
    CH_OP_LINEAR_1 = 1 << 15,
    /* moves a value to the device: the result is input 0, or the value that its attribute of
     * text names, in part or whole */
    CH_OP_MOVES = 1 << 16
};

struct ch_op {
    const char    *name; /* unique with the version; also identifies the op in encoded graphs */
    int            version, n_in, n_out; /* n_in, n_out: -1: any number */
    unsigned       flags;                /* CH_OP_ */
    const ch_attr *attrs;                /* table that CH_ATTR_END ends; NULL: no attributes */
    size_t         attrs_bytes;          /* size of the attribute struct */
    /* The shape rule; see ch_infer. */
    ch_status (*infer)(ch_infer *c);
    /* Kernels in order of preference, ended by NULL. The last kernel is the reference
     * implementation. NULL: the call has no instruction, because the program binds existing
     * memory (input, constant, read). */
    const ch_kernel *const *kernels;
    /* Sets *b for the dtype of the call; returns false if the dtype has no block function.
     * NULL: the op is not elementwise. */
    bool (*block)(const ch_node *n, ch_block *b);
    /* Records the gradient of call n. dout[i] is the gradient with respect to output i, or NULL
     * if the result does not depend on output i. Sets din[j] for the float inputs; din[j] stays
     * NULL if no output depends on input j. If `grad` is NULL, the gradient is zero with
     * CH_OP_NO_GRAD, and an error without. */
    void (*grad)(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[]);
    /* The partition rule (graph/factors.h). NULL: the call must not be divided, and
     * `replicated` says why. */
    ch_status (*factors)(const ch_node *n, ch_factors *f);
    const char *replicated; /* reason why the op has no partition rule; NULL: it has a rule */
    /* Lists the ties of a call with bodies (ch__tie_in, ch__tie_out), and sets t->iterations if
     * it is known. The bodies are divided call by call. NULL: the op has no bodies. */
    void (*ties)(const ch_node *n, ch_body_ties *t);
    /* Changes `attrs`, a copy of the attributes of call n, to those of a part of the call:
     * sizes, padding. ch__local_dims serves ops with the attribute `dims`. NULL: parts have the
     * attributes of the whole call. */
    ch_status (*local)(const ch_node *n, const ch_call_part *part, void *attrs);
    /* Records the computation of call n in plain ops, with the inputs `in`, and sets out[i] for
     * every output. Used if an axis is divided that the kernels need whole (CH_FIX), or any
     * axis of a call without a rule (ch_factors.n_set_out is 0). Returns false if this call
     * cannot be expanded, or if an error is recorded in the step. NULL: no call can be. The
     * return value and the number and order of the recorded calls must not depend on the sizes,
     * because the graphs of all replicas are expanded alike. */
    bool (*expand)(ch_step *s, const ch_node *n, ch_node *const *in, ch_node **out);
    /* Returns true if the kernel of call n can also do the work of `user`, the only call that
     * reads n: add a bias, apply an activation. Sets *out to a call with the outputs of `user`.
     * The results may differ in the last place, so this happens in specialised graphs only, and
     * COHORT_EPILOGUE=0 disables it. NULL: never. */
    bool (*absorb)(const ch_node *n, const ch_node *user, ch_rewrite *out);
    /* Bit i: axis 0 of input i may have room (graph/room.h). Then the live rows of the outputs
     * must not depend on the contents of the room, and the call must not fail because of them.
     * An elementwise op without CH_OP_CAN_FAIL accepts room in every input and need not set
     * this. */
    unsigned room;
    /* Bit i: input i may have room if it has rank 2 or more and output 0 has the same axis 0.
     * Then row r of the outputs must depend on row r of the input only. */
    unsigned room_rows;
    /* Bit i: input i may have room that is filled with room_fill, in cases that `room` and
     * room_rows do not permit. Then the live rows of the outputs, and outputs of another
     * length, must not depend on the number of these rows. The specialised graph has a call
     * that fills the room. */
    unsigned room_filled;
    int      room_fill;
    /* 1 plus the index of the input whose live rows the kernel needs (ch__live_rows). 0: those
     * of output 0 or, if it is not as long as flat values, of the first input that is. */
    int room_counted;
    /* 1 plus the index of the input whose last element is the number of live rows: the row
     * splits. Then inputs may have room only if they are divided by these row splits. 0: the
     * call treats all rows alike. */
    int room_splits;
    /* 1 plus the index of an input of ids (i32 or i64): an output that is written over an input
     * differs from it in the rows of these ids only. Ids out of range name no row. 0: outputs
     * may differ in any row. */
    int changed_rows;
};

/* Value of ch_op.room: every input may have room. For an op without inputs: the output may have
 * the length of a value with room. */
#define CH_ROOM_ANY (~0u)

/* Ops and functions of ops/ that graph/ uses itself. src/cohort.c defines ch__roles. */
typedef struct ch_roles {
    const ch_op *input, *constant, *read, *cast, *identity, *fused, *fill_room;
    /* sum of two gradients; the sum of two sparse gradients is sparse */
    ch_node *(*add)(ch_node *a, ch_node *b);
    ch_node *(*zeros_like)(ch_node *x);
    ch_node *(*ones_like)(ch_node *x);
    ch_node *(*cast_to)(ch_node *x, ch_dtype t);
} ch_roles;
extern const ch_roles ch__roles;

/* Returns the op with this name and version; NULL: there is none. */
const ch_op *ch__op_find(const char *name, int version);
/* Returns all ops; NULL ends the list. */
const ch_op *const *ch__op_table(void);

/* ---- recording ---- */

/* Records a call and returns its output 0; output i is ch__out(n, i). The call is added to the
 * graph of its inputs, or to the body that is being recorded in it. `attrs` is copied. Returns
 * NULL if an input is NULL or belongs to another recording, or if infer fails; the step then
 * keeps the error. Public functions use the macro ch__node, which passes the address of their
 * caller for error messages. */
ch_node *ch__node_at(const void *caller, const ch_op *op, const void *attrs, int n_in,
                     ch_node *const *in);
#define ch__node(...) ch__node_at(__builtin_return_address(0), __VA_ARGS__)
/* Records a call without inputs, in step s. Otherwise as ch__node_at. */
ch_node *ch__source_at(const void *caller, ch_step *s, const ch_op *op, const void *attrs);
#define ch__source(...) ch__source_at(__builtin_return_address(0), __VA_ARGS__)
/* Records the error that an input of a composite op is NULL, as ch__node_at does for an op. One
 * of the n inputs must be NULL. Returns NULL. */
ch_node *ch__null_input_at(const void *caller, const char *op, int n, ch_node *const *in);
#define ch__null_input(...) ch__null_input_at(__builtin_return_address(0), __VA_ARGS__)

#endif

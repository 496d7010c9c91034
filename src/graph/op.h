/* graph/op.h -- what an op is: everything about it in one struct.
 *
 * An op lives in one file of ops/ (or collective/): its attributes as rows, its shape rule,
 * its kernels, its gradient, its partition rule, and the public function that records it.
 * Ops are found by name and version, never by number; src/cohort.c lists them.
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
#include "cohort/graph.h"
#include "cohort/step.h"
#include "graph/timing.h"

typedef struct ch_op ch_op;

/* ---- sizes ---- */

typedef struct ch_dim {
    int64_t n;
    int     sym; /* 0: the size is n; else n times that symbol */
} ch_dim;

typedef struct ch_dims {
    int    rank;
    ch_dim dim[CH_MAX_RANK];
} ch_dims;

static inline ch_dim ch__dim(int64_t n)
{
    return (ch_dim){n, 0};
}
static inline bool ch__dim_same(ch_dim a, ch_dim b)
{
    return a.n == b.n && (a.sym == b.sym || a.n == 0);
}
/* True for a size that is known to be n. A symbol never is, though it may turn out so. */
static inline bool ch__dim_is(ch_dim a, int64_t n)
{
    return a.sym == 0 && a.n == n;
}
bool     ch__dims_same(const ch_dims *a, const ch_dims *b);
ch_dims  ch__dims_of(ch_shape s);          /* a size of -1 is not allowed */
ch_shape ch__dims_shape(const ch_dims *d); /* symbols become -1 */
/* The product of all sizes; false if two symbols would meet or it overflows. */
bool ch__dims_product(const ch_dims *d, int from, int to, ch_dim *out);
/* Of a specialised node: its sizes, elements and bytes. */
ch_shape ch__shape(const ch_node *n);
int64_t  ch__count(const ch_node *n);
int64_t  ch__bytes(const ch_node *n);
/* An axis as users write it: -1 is the last. False if out of range. */
bool ch__axis(int64_t axis, int rank, int *out);

/* ---- nodes ---- */

/* One output of a call, that is, a value. A call with n outputs is an array of n nodes; the
 * first, its head, holds what belongs to the call. */
struct ch_node {
    ch_node  *head;  /* the call: itself for output 0 */
    int       index; /* which output of the call */
    int       id;    /* of this value in its graph: dense, in order */
    ch_dtype  dtype;
    bool      weak;       /* takes the dtype of what it meets */
    bool      varies;     /* while recording: replicas may have different values */
    bool      is_literal; /* ... it is made of constants alone, and nobody's own */
    bool      is_each; /* ... code of a replica computed it: each has its own, equal or not */
    ch_dims   dims;
    ch_graph *graph;

    /* Of heads only. */
    const ch_op *op;
    void        *attrs; /* op->attrs_bytes in the arena; NULL if the op has none */
    int          n_in, n_out;
    ch_node    **in;
    ch_node     *next;    /* call */
    const char  *scope;   /* "block/dense"; NULL at the top */
    const void  *caller;  /* the user's calling address, for errors */
    const char  *composite;  /* the composite op that recorded it, "ch_stack"; NULL: none */
    int          ordinal; /* of the call at recording: the key of its random numbers */
    ch_work_kind work;    /* what it is for */
};

static inline const void *ch__attrs(const ch_node *n)
{
    return n->head->attrs;
}
static inline ch_node *ch__out(const ch_node *n, int i)
{
    return n->head + i;
}

/* ---- attributes: rows that copying, encoding, printing, comparing and hashing read ---- */

typedef enum ch_attr_kind {
    CH_ATTR_KIND_BOOL,   /* bool */
    CH_ATTR_KIND_INT,    /* int64_t */
    CH_ATTR_KIND_FLOAT,  /* double */
    CH_ATTR_KIND_DTYPE,  /* ch_dtype */
    CH_ATTR_KIND_INTS,   /* ch_ints */
    CH_ATTR_KIND_DIMS,   /* ch_dims: symbols become numbers when specialised */
    CH_ATTR_KIND_TEXT,   /* const char *, NULL allowed */
    CH_ATTR_KIND_TENSOR, /* ch_tensor *, counted, contiguous */
    CH_ATTR_KIND_TABLE,  /* ch_table *, counted */
    CH_ATTR_KIND_GRAPH,  /* ch_graph *, counted: a body; specialised with its call */
    CH_ATTR_KIND_HOST    /* void *: means something in this process only; cannot be encoded */
} ch_attr_kind;

#define CH_MAX_INTS 16
typedef struct ch_ints {
    int     n;
    int64_t at[CH_MAX_INTS];
} ch_ints;

typedef struct ch_attr {
    const char  *name; /* NULL ends the rows */
    ch_attr_kind kind;
    size_t       offset;
} ch_attr;

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

/* ---- shape rules ---- */

/* What infer sees: the inputs as they are known now. It runs while recording, where a size may
 * be a symbol, and again for every specialised graph, where none is. It must not assume that an
 * input which comes from a decoder makes any sense. */
typedef struct ch_infer {
    const ch_op    *op;
    const void     *attrs;
    int             n_in;
    const ch_dims  *in;
    const ch_dtype *dtype;
    ch_graph       *graph; /* whose symbols they are */
    int             n_out; /* outputs set so far; an op of a fixed number must set all */
    ch_dims        *out;   /* room for CH_MAX_OUT */
    ch_dtype       *out_dtype;
    /* Collectives only, when specialised: the inputs' dims of replica r are peer[r]. */
    int                   n_peers;
    const ch_dims *const *peer;
} ch_infer;

#define CH_MAX_OUT 64

/* Sets output i; returns CH_OK. */
ch_status ch__infer_out(ch_infer *c, int i, ch_dtype dtype, int rank, const ch_dim *dim);
ch_status ch__infer_dims(ch_infer *c, int i, ch_dtype dtype, const ch_dims *dims);
/* Output i is like input j. */
ch_status ch__infer_like(ch_infer *c, int i, int j);
/* INVALID_ARGUMENT with the op's name, the inputs' types and this reason. */
ch_status ch__infer_fail(const ch_infer *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Checks that come first in many rules; each fails with a reason that says what is wanted. */
ch_status ch__infer_want_float(const ch_infer *c, int i);
ch_status ch__infer_want_ids(const ch_infer *c, int i); /* i32 or i64 */
ch_status ch__infer_want_rank(const ch_infer *c, int i, int rank);
ch_status ch__infer_want_same(const ch_infer *c); /* all inputs of one dtype */
/* For an op that needs a size as a number now: then the step is recorded again, for the sizes
 * of this run alone. */
ch_status ch__infer_want_number(const ch_infer *c, ch_dim d);
/* numpy's rule over all inputs [from, to); a symbol equals only itself. */
ch_status ch__infer_broadcast(const ch_infer *c, int from, int to, ch_dims *out);
/* The sum of two sizes: the same symbol adds up, different ones make a new symbol. */
ch_dim ch__infer_add(ch_infer *c, ch_dim a, ch_dim b);
/* False for 2^48 bytes or more. No machine has so many: such results are refused, so that sums
 * and products of a few sizes cannot overflow. The other sizes of an empty result count too; a
 * symbol counts as 1. */
bool ch__is_countable(ch_dtype dtype, const ch_dims *d);
/* A size that nobody knows before the run's signatures do. Only while recording. */
ch_dim ch__infer_symbol(ch_infer *c);
/* "64", "rows", "3*rows": in one of a few buffers of this thread, for messages. */
const char *ch__dim_text(const ch_infer *c, ch_dim d);
/* "f32(rows, 3)", likewise. */
const char *ch__type_text(ch_dtype dtype, const ch_dims *d);

/* ---- kernels ---- */

/* One call of a kernel does one tile of one phase. A kernel is a short row of phases, each a
 * grid of tiles that may run in any order and on any thread; a phase begins when the one before
 * it is done. Grids that could change results depend on shapes only, so results do not depend on
 * the threads. */
typedef struct ch_piece {
    int phase, index;
} ch_piece;

#define CH_MAX_PHASES 3

/* What a run is, for kernels that ask. */
typedef struct ch_env {
    int      replica;    /* in the job */
    int      n_replicas; /* in the job */
    int64_t  step;
    int64_t  iteration; /* of the loops around the call: 0 outside of any; for random keys */
    uint64_t seed;
    int64_t  global_rows;
    void    *group;        /* a collective kernel's way to the other replicas; NULL: alone */
    struct ch_team *team;  /* the device's threads, for kernels of bodies; NULL: one */
    int             local; /* this replica among those of this process */
    /* Set by another thread: the run ends before its next instruction. NULL: the run cannot be stopped. */
    const atomic_bool *stop;
} ch_env;

typedef struct ch_call {
    const void *const *in;
    void *const       *out;
    void         *scratch; /* CH_ALIGN-aligned; the kernel's for the call, contents undefined */
    const void   *state;   /* what prepare made; read-only while running */
    const ch_env *env;
    const ch_node *node; /* for messages */
} ch_call;

/* What a kernel asks of the planner. Zeroed before prepare, but for what it is told. */
typedef struct ch_prep {
    const ch_node *node; /* specialised */
    int       threads; /* of the device, 1 or more; may only decide what results do not tell */
    void     *state;   /* from ch__prep_state, or the kernel's own with drop */
    size_t    scratch_bytes;
    int       n_phases; /* 0 means one phase of one tile */
    int       tiles[CH_MAX_PHASES];
    unsigned  over[CH_MAX_OUT];   /* bit j: output i may be written over input j, if it is
                                        the last to read it; both have as many bytes */
    bool      unused[CH_MAX_OUT]; /* nobody reads output i; set before prepare */
    bool      skips_unused;       /* the kernel does not write those: they need no memory */
    bool      watched; /* a user looks at all outputs, so all must be written; set before */
    bool      touches_part; /* the kernel may write only the beginning of a large output or
                                  scratch; the memory of the rest should stay untouched */
    bool      is_view;      /* output 0 is input 0's memory, from this byte on: no call */
    size_t    view_offset;
    ch_arena *arena; /* lives as long as the program */
} ch_prep;

/* Zeroed memory for the kernel's state, freed with the program; NULL when out of memory. */
void *ch__prep_state(ch_prep *p, size_t bytes);

typedef struct ch_kernel {
    const char *name;
    bool (*fits)(const ch_node *n); /* dtype, shape, CPU */
    ch_status (*prepare)(const ch_node *n, ch_prep *p);
    ch_status (*run)(const ch_call *c, ch_piece t);
    void (*drop)(void *state); /* NULL: nothing but arena memory */
} ch_kernel;

/* Adds to this thread's message where a call was recorded: ", in block/dense, at train.c:41". */
ch_status ch__fail_in_call(ch_status rc, const ch_node *call);
/* Fails a run: the message gets the op's name, shapes, scope and the user's line. */
ch_status ch__call_fail(const ch_call *c, ch_status rc, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));

/* How many tiles to cut n pieces of `cost` elementary operations each into: depends on nothing
 * else; 1 for what is too small to share. And tile i's part of n. */
int                ch__tile_count(int64_t n, int64_t cost);
static inline void ch__tile_range(int64_t n, int tiles, int i, int64_t *from, int64_t *to)
{
    *from = n * i / tiles;
    *to = n * (i + 1) / tiles;
}

/* ---- elementwise ops ---- */

/* An op is elementwise if it has `block`: output element i depends on element i of the inputs,
 * after broadcasting. A block function does `n` contiguous elements; it is what the op's kernel
 * and a fused chain both call, so both give the same bits. 16-bit floats are widened before
 * and rounded after each call by whoever calls it: then `compute` is CH_F32. */
typedef void (*ch_block_fn)(int64_t n, const void *const *in, void *out, const double *param);

typedef struct ch_block {
    ch_block_fn fn;
    ch_dtype    compute;  /* of the inputs as fn takes them */
    double      param[4]; /* attributes as numbers */
} ch_block;

/* ---- partition rules (how an op may be cut over logical devices) ---- */

typedef enum ch_factor_kind {
    CH_PAR, /* independent: cutting it costs nothing */
    CH_RED, /* summed (or maxed) over: cutting it leaves partial results */
    CH_WIN, /* a window slides over it: cutting it exchanges edges */
    CH_IDX, /* looked up by id */
    CH_FIX  /* must be whole */
} ch_factor_kind;

#define CH_MAX_FACTORS 16
typedef struct ch_factors {
    int            n;
    ch_factor_kind kind[CH_MAX_FACTORS];
    int            n_in, n_out;
    signed char    in[8][CH_MAX_RANK]; /* the factor of each input dim; -1: none (broadcast) */
    signed char    out[8][CH_MAX_RANK];
} ch_factors;

int       ch__factor(ch_factors *f, ch_factor_kind kind); /* a new factor's number */
void      ch__factor_map(ch_factors *f, int input, int rank, const int *factor);
ch_status ch__factor_out(ch_factors *f, int rank, const int *factor); /* the next output */
/* Rules that many ops share. */
ch_status ch__factors_elementwise(const ch_node *n, ch_factors *f);

/* ---- taking in what follows ---- */

/* What one call could be in the place of two. */
typedef struct ch_rewrite {
    const ch_op *op;
    int          n_in;
    ch_node     *in[8];
    _Alignas(16) unsigned char attrs[1024]; /* op->attrs_bytes of it */
} ch_rewrite;

/* ---- the op ---- */

enum {
    CH_OP_RANDOM = 1 << 0,     /* draws numbers keyed by (seed, ordinal, step, replica) */
    CH_OP_EFFECT = 1 << 1,     /* is seen from outside: never dropped, merged or moved */
    CH_OP_COLLECTIVE = 1 << 2, /* meets the same call on the other replicas */
    CH_OP_CAN_FAIL = 1 << 3,   /* its kernels may return an error for some inputs */
    CH_OP_SAME_DTYPE = 1 << 4, /* all inputs have one dtype: weak ones are cast to it */
    CH_OP_NO_GRAD = 1 << 5,   /* its outputs do not depend smoothly on its inputs: gradient 0 */
    CH_OP_HOST = 1 << 6,      /* means something in this process only: cannot be encoded */
    CH_OP_READS_ENV = 1 << 7, /* differs between runs or replicas: never folded */
    CH_OP_ALONE_IS_INPUT = 1 << 8, /* with one replica its outputs are its inputs */
    CH_OP_VARIES = 1 << 9,         /* is each replica's own, whatever it is made of */
    CH_OP_STRINGS = 1 << 10        /* its inputs may be strings; its outputs never are */
};

struct ch_op {
    const char    *name;                 /* also its name on the wire and on disk */
    int            version, n_in, n_out; /* -1: any number */
    unsigned       flags;
    const ch_attr *attrs; /* NULL: none */
    size_t         attrs_bytes;
    ch_status (*infer)(ch_infer *c);
    const ch_kernel *const *kernels; /* ordered candidates, the plain reference last */
    bool (*block)(const ch_node *n, ch_block *b); /* elementwise ops; else NULL */
    /* Sets din[j] for every float input it can; leaves NULL what does not depend. dout[i] is
     * NULL where nothing depends on output i. NULL with CH_OP_NO_GRAD, or an error to ask for.
     */
    void (*grad)(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[]);
    ch_status (*factors)(const ch_node *n, ch_factors *f); /* NULL: replicated */
    /* True if `user`, the only one who reads n, can be done by the same kernel: a bias, an
     * activation; what is returned has the outputs of `user`. The result may differ in the last place (COHORT_EPILOGUE=0 turns it off), so
     * it stands in specialised graphs only. NULL: never. */
    bool (*absorb)(const ch_node *n, const ch_node *user, ch_rewrite *out);
    /* Bit i: axis 0 of input i may end with room (graph/room.h). The live rows of the outputs must
     * not depend on it, whatever it holds, and the call must not fail because of it. An op with
     * `block` that cannot fail takes room in every input, and says nothing here. */
    unsigned room;
};

#define CH_ROOM_ANY                                                                            \
    (~0u) /* in every input; of a source: it may be as long as a value with room */

/* Ops that graph/ must make itself, handed over by role: src/cohort.c fills this in. */
typedef struct ch_roles {
    const ch_op *input, *constant, *read, *cast, *identity, *fused;
    ch_node *(*add)(ch_node *a, ch_node *b); /* of gradients: sparse ones stay so */
    ch_node *(*zeros_like)(ch_node *x);
    ch_node *(*ones_like)(ch_node *x);
    ch_node *(*cast_to)(ch_node *x, ch_dtype t);
} ch_roles;
extern const ch_roles ch__roles;

/* The op of a name and version; NULL if there is none. And all of them, NULL at the end. */
const ch_op        *ch__op_find(const char *name, int version);
const ch_op *const *ch__op_table(void);

/* ---- recording ---- */

/* Records a call in the graph of its inputs and returns its output 0; output i is ch__out(n,
 * i). NULL, and the step keeps the error, if an input is NULL, of another step, or refused by
 * infer. Public functions call the macro, which notes their caller's address for error
 * messages. */
ch_node *ch__node_at(const void *caller, const ch_op *op, const void *attrs, int n_in,
                     ch_node *const *in);
#define ch__node(...) ch__node_at(__builtin_return_address(0), __VA_ARGS__)
/* The same for sources, which have no inputs to tell the step. */
ch_node *ch__source_at(const void *caller, ch_step *s, const ch_op *op, const void *attrs);
#define ch__source(...) ch__source_at(__builtin_return_address(0), __VA_ARGS__)

#endif

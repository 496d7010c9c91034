/* graph/factors.h -- partition rules: how a call may be divided into parts.
 *
 * A rule (ch_op.factors) describes a call as a nest of loops, as an einsum does. A factor is a
 * loop: a range of positions, such as the rows or the inner sizes of a matrix product. Every
 * axis of an input or output depends on factors. If the range of a factor is divided, every
 * part of the call needs the corresponding regions of the inputs, and computes the
 * corresponding regions of the outputs. For the product c[m,w] = a[m,k] b[k,w]:
 *
 *     factor   kind      a      b      c
 *     m        CH_PAR    axis 0        axis 0
 *     k        CH_RED    axis 1 axis 0
 *     w        CH_PAR           axis 1 axis 1
 *
 * job/step_plan/ uses the rules to run updates on the shards of a variable, and spmd/ to divide
 * steps among the cores of a replica. Sizes are numbers for spmd/ and may be symbols for
 * job/step_plan/.
 *
 * A part of a call is a call of the same op. Its attributes may differ (ch_op.local): the sizes
 * of a fill, the padding of a convolution. Some kernels must know which positions of the whole
 * call a part has (ch_origins): random numbers depend on the position in the whole value.
 *
 * Invariants:
 *   1. The axis of an output is the concatenation of its factors, without a map. So any ranges
 *      of the factors of which only the first is divided are a range of the axis.
 *   2. A factor of kind CH_PAR is a factor of every output. Collectives of several arrays are
 *      an exception: each array has its own factors.
 *   3. An axis without factors is needed whole by every part.
 *   4. A factor of kind CH_FIX stands for an axis that the kernel needs whole, although an
 *      expansion of the call (ch_op.expand) may divide it. An axis that no form of the call
 *      divides has no factor.
 *   5. A partial result does not depend on inputs that other parts count too: an input without
 *      a reduced factor is multiplied into the result, not added to it.
 *
 * Empty parts. If the range of a factor has no positions, the part has no call: it contributes
 * no region and no partial result. A part may have a region of an input without positions,
 * although its output has elements: windows cover padding only, or a part of a concatenation
 * has no rows of an input. Then the input of the call has the size 0, and
 * the kernel must accept it. A rule whose kernel does not must have maps that always leave a
 * position.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_FACTORS_H
#define GRAPH_FACTORS_H

#include "base/mem.h"
#include "cohort/status.h"
#include "graph/node.h"
#include "tensor/layout.h"

typedef enum ch_factor_kind {
    CH_PAR, /* independent: parts need no communication */
    /* Reduced: an output that does not have the factor is a partial result in each part. The
     * combiner of the factor makes the output from them. */
    CH_RED,
    /* An axis of input 0 that is indexed by ids. A part ignores ids outside its range. An
     * output without the factor is a partial result. */
    CH_IDX,
    CH_FIX /* must not be divided */
} ch_factor_kind;

/* The operation that makes a result from partial results. */
typedef enum ch_partial_op {
    CH_PARTIAL_SUM,
    CH_PARTIAL_MAX,
    CH_PARTIAL_MIN,
    CH_PARTIAL_PRODUCT,
    CH_PARTIAL_AND,
    CH_PARTIAL_OR
} ch_partial_op;

typedef struct ch_factor_info {
    ch_factor_kind kind;
    ch_partial_op  combiner; /* of CH_RED and CH_IDX */
    ch_dim         size;
} ch_factor_info;

/* The positions of an input that a range of a factor needs: for positions [a, b) of the factor
 *     [ceil((a mul + low) / div), floor(((b - 1) mul + high) / div) + 1)
 * clipped to the size of the axis. If mul is negative, a and b - 1 change places. div is
 * positive. Examples:
 *     a window of k positions, stride s, p positions of padding   {s, 1, -p, k - 1 - p}
 *     its gradient                                                {1, s, p - k + 1, p}
 *     a slice that begins at position f, with step s              {s, 1, f, f}
 *     the positions reversed, of n                                {-1, 1, n - 1, n - 1}
 *     an input of concat that begins at position o                {1, 1, -o, -o} */
typedef struct ch_axis_map {
    int64_t mul, div, low, high;
} ch_axis_map;

enum { CH_MAX_FACTORS = 24, CH_AXIS_FACTORS = 8 };

/* The factors of an axis of an input or output. */
typedef struct ch_axis_rule {
    int           n;                       /* 0: every part has the whole axis */
    unsigned char factor[CH_AXIS_FACTORS]; /* outermost first */
    bool          is_mapped;               /* only if n is 1, and not for outputs */
    ch_axis_map   map;
    /* The map gives windows, and the part needs the positions in these windows, by the map
     * {div, mul, -high, -low}, and its own positions. */
    bool    by_windows;
    int64_t n_windows;
} ch_axis_rule;

/* The rule of a call. */
typedef struct ch_factors {
    int            n;
    ch_factor_info factor[CH_MAX_FACTORS];
    /* Numbers of inputs and outputs of the call, and their axes; set before ch_op.factors is
     * called. Axes have no factors until the rule sets them. */
    int n_in, n_out;
    ch_axis_rule (*in)[CH_MAX_RANK];
    ch_axis_rule (*out)[CH_MAX_RANK];
    int n_set_out; /* number of outputs with factors; 0: the call must not be divided */
} ch_factors;

/* Calls ch_op.factors, and sets the sizes of factors that the rule does not set: the size of
 * the first axis without a map that consists of this factor alone. f->n_set_out is 0 if the op
 * has no rule, or if this call must not be divided. The arrays of *f are in `arena`. */
ch_status ch__factors_of(const ch_node *n, ch_arena *arena, ch_factors *f);

typedef struct ch_call_part ch_call_part;

/* ---- for rules ---- */

/* Add a factor and return its number. ch__factor_red: of kind CH_RED with this combiner. Other
 * kinds have the combiner CH_PARTIAL_SUM. */
int ch__factor(ch_factors *f, ch_factor_kind kind);
int ch__factor_red(ch_factors *f, ch_partial_op combiner);
/* Sets the factors of the axes of an input, one for each axis; -1: every part has the whole
 * axis. */
void ch__factor_map(ch_factors *f, int input, int rank, const int *factor);
/* Sets the map of an axis of an input that has one factor. */
void ch__factor_window(ch_factors *f, int input, int axis, ch_axis_map map);
/* Lets a part need its own positions of such an axis, and all that are in a window with one of
 * them. `map` gives the windows that contain a position, of n windows; mul is positive. */
void ch__factor_neighbours(ch_factors *f, int input, int axis, ch_axis_map map, int64_t n);
/* Sets the factors of the axes of the next output. Returns CH_OK. */
ch_status ch__factor_out(ch_factors *f, int rank, const int *factor);
/* The rule of elementwise ops, and of ops without inputs: every axis of the output is an
 * independent factor. */
ch_status ch__factors_elementwise(const ch_node *n, ch_factors *f);
/* The rule of collectives: output i depends on input i only, and each has its own factors.
 * `axis` is not divided (-1: none). The rule does not depend on sizes, because those of other
 * replicas may be others. If the rule has no room for more factors, the last arrays are not
 * divided. */
ch_status ch__factors_of_arrays(const ch_node *n, ch_factors *f, int axis);

/* ---- for ops with bodies ---- */

enum { CH_MAX_BODIES = 2 }; /* of a call */

/* A value of a call and a value of one of its bodies that lie alike on the parts of the call:
 * the same value, a value of another iteration, or a slice. Bodies are numbered in the order of
 * the attributes. */
typedef struct ch_body_tie {
    int  body;        /* number of the body */
    bool is_call_out; /* call_at is an output of the call, not an input */
    bool is_body_out;
    int  call_at, body_at;
    bool is_slice; /* the value of the body is a slice along axis 0 of that of the call */
} ch_body_tie;

/* The ties of a call. Every input of a body is tied to exactly one input of the call, and every
 * output of a body to one output. A value of the call without a tie is whole on every part. */
typedef struct ch_body_ties {
    int          n;
    ch_body_tie *tie; /* n_in + 2 n_out of the call at most */
    /* how often each body runs; -1: only a run knows */
    int64_t iterations;
} ch_body_ties;

/* Sets *out to the ties of a call with bodies, in `arena`. */
ch_status ch__ties_of(const ch_node *n, ch_arena *arena, ch_body_ties *out);
/* Returns how often the bodies of a call run; -1: only a run knows. */
int64_t ch__body_iterations(const ch_node *n);
/* Add a tie of the input or output `call_at` of the call; for ch_op.ties. */
void ch__tie_in(ch_body_ties *t, int call_at, int body, int body_in, bool is_slice);
void ch__tie_out(ch_body_ties *t, int call_at, int body, bool is_body_out, int body_at,
                 bool is_slice);

/* A `local` (ch_op.local) of ops whose first attribute of kind CH_ATTR_KIND_DIMS is the
 * shape of output 0. */
ch_status ch__local_dims(const ch_node *n, const ch_call_part *part, void *attrs);

/* ---- for users of rules ---- */

/* Returns the factor of an axis that consists of a single factor, without a map; otherwise
 * -1. */
static inline int ch__axis_factor(const ch_axis_rule *a)
{
    return a->n == 1 && !a->is_mapped ? a->factor[0] : -1;
}

/* Sets axis `axis` of *out to the positions of an axis of `size` positions that a part with the
 * ranges [from[i], to[i]) of the factors needs or computes. An empty range of any factor of the
 * axis gives an empty region. Returns false if the positions are no range: two factors of the
 * axis are divided, and the first of them has more than one position. */
bool ch__axis_range(const ch_factors *f, const ch_axis_rule *a, int64_t size,
                    const int64_t *from, const int64_t *to, int axis, ch_region *out);

/* A part of a specialised call, for ch_op.local. */
struct ch_call_part {
    const ch_factors *rule;
    const int64_t    *from, *to; /* by factor: the part has positions [from, to) */
    /* regions of the inputs that the part has, and regions of the outputs that it computes. The
     * region of an output is empty only if the output is. That of an input may be empty: see
     * "Empty parts" above. */
    const ch_region *in, *out;
};

/* The positions of the parts of a call in the whole call, for ops with CH_OP_ORIGIN. Cores that
 * share a program differ only in these. Other calls have no origins, so that passes may merge
 * and fuse their parts. */
struct ch_origins {
    int     n_cores;
    ch_dims whole_in, whole_out; /* dims of input 0 and output 0 of the whole call */
    /* by core: first position of the part of input 0 and of output 0 */
    int64_t (*in)[CH_MAX_RANK], (*out)[CH_MAX_RANK];
};

#endif

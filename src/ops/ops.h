/* ops/ops.h -- the op table for src/cohort.c, and the functions that op families share.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_OPS_H
#define OPS_OPS_H

#include "cohort/ops.h"
#include "graph/op.h"

/* Each family lists its ops as X(name). The op of that name is the constant ch__op_<name>. */
#include "ops/apply.h"
#include "ops/array.h"
#include "ops/control.h"
#include "ops/effect.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/nn.h"
#include "ops/random.h"
#include "ops/reduce.h"

/* clang-format off */
#define CH_OPS_SOURCE(X) \
    X(input) X(read) X(constant) X(replica_id) X(replica_count) X(global_rows) X(step_number) \
    X(rows)

#define CH_OPS(X) \
    CH_OPS_SOURCE(X) CH_OPS_ELEMENTWISE(X) CH_OPS_REDUCE(X) CH_OPS_MATMUL(X) CH_OPS_NN(X) \
    CH_OPS_ARRAY(X) CH_OPS_INDEX(X) CH_OPS_RANDOM(X) CH_OPS_EFFECT(X) CH_OPS_CONTROL(X) \
    CH_OPS_APPLY(X)
/* clang-format on */

#define CH_OP_DECLARE(name) extern const ch_op ch__op_##name;
CH_OPS(CH_OP_DECLARE)
#undef CH_OP_DECLARE

/* ---- functions shared by several families ----
 *
 * Functions that return a node record calls in the step of their inputs. They return NULL if an
 * input is NULL or a call fails; the step keeps the error. */

/* Returns a zeroed array of n nodes that lives as long as the graph of the step. Returns NULL
 * if memory is exhausted; the step keeps the error, which begins with `what`. (ops/body.c) */
ch_node **ch__step_nodes(ch_step *s, const char *what, int n);
/* Part of shape rules. Fails unless input i is a float type, i8, i32, i64 or u8.
 * (ops/elementwise.c) */
ch_status ch__infer_want_arith(const ch_infer *c, int i);
/* Returns the gradient of broadcasting `like` to d's dims: d summed over the axes along which
 * `like` was repeated. Returns d itself if no axis was repeated. (ops/reduce.c) */
ch_node *ch__unbroadcast(ch_node *d, const ch_node *like);
/* Returns the sum of x over its last axis. If `keep`, that axis stays, with size 1.
 * (ops/reduce.c) */
ch_node *ch__sum_last(ch_node *x, bool keep);
/* Returns x, which is f32 or f64, limited to the range of finite numbers. (ops/reduce.c) */
ch_node *ch__finite(ch_node *x);
/* Returns x with the given dims, which may contain symbols. The number of elements must be the
 * same. (ops/array.c) */
ch_node *ch__reshape_dims(ch_node *x, const ch_dims *dims);
/* Returns x broadcast to the given dims by numpy's rule. (ops/array.c) */
ch_node *ch__broadcast_dims(ch_node *x, const ch_dims *dims);
/* Returns an array of x's dtype and dims, filled with `value`. (ops/array_make.c) */
ch_node *ch__full_like(ch_node *x, double value);
/* Returns true if n is a sparse gradient: a call of ch__op_sparse_rows, with the ids as in[0]
 * and the rows as in[1]. (ops/index_sparse.c) */
bool ch__is_sparse(const ch_node *n);
/* Returns a sparse gradient as a dense array. Unlike an implicit conversion, this writes no log
 * line, because the caller reports the cost itself. (ops/index_sparse.c) */
ch_node *ch__dense(const ch_node *sparse);
/* Returns the sum of two gradients. The sum is sparse if both are sparse and have the same
 * dtypes and dims. (ops/index_sparse.c) */
ch_node *ch__add_gradients(ch_node *a, ch_node *b);
/* Returns x plus a sparse gradient, or x minus the gradient if `negative`. Writes only the rows
 * that the ids name. An id out of range names no row; unused positions of an id list hold -1.
 * (ops/index_scatter.c) */
ch_node *ch__add_sparse(ch_node *x, const ch_node *sparse, bool negative);

/* ch_op.replicated of ops that passes create, after the graph has been divided. */
#define CH_MADE_BY_PASS "a pass makes it of calls that are divided already"

/* The kernel of every op that has a block function, and the op of a fused chain of such ops.
 * ch__op_fused is in no op list, because only the planner creates calls of it. (ops/fused.c) */
extern const ch_kernel ch__kernel_elementwise;
extern const ch_op     ch__op_fused;
/* Casts x to `dtype`. If x is weak, so is the result: its dtype may still change when it is
 * combined with another node. (ops/cast.c) */
ch_node *ch__cast_weak(ch_node *x, ch_dtype dtype);

/* The kernel of ops whose output 0 is the memory of input 0: reshape, identity, stop_gradient.
 * (ops/source.c) */
extern const ch_kernel ch__kernel_view;

#endif

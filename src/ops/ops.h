/* ops/ops.h -- the op table, for src/cohort.c; and what ops lend each other.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_OPS_H
#define OPS_OPS_H

#include "cohort/ops.h"
#include "graph/op.h"

/* Each family lists its ops as X(name): its op is ch__op_name. */
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

/* ---- what families lend each other ---- */

/* Sums d over what broadcasting `like` to d's dims repeated: the gradient of a broadcast.
 * d itself where nothing was repeated. (ops/reduce.c) */
ch_node *ch__unbroadcast(ch_node *d, const ch_node *like);
/* The sum over the last axis, which stays as 1 if it is to be kept. (ops/reduce.c) */
ch_node *ch__sum_last(ch_node *x, bool keep);
/* x as an array of these dims, symbols included; the product must be the same. (ops/array.c) */
ch_node *ch__reshape_dims(ch_node *x, const ch_dims *dims);
/* x repeated to these dims by numpy's rule. (ops/array.c) */
ch_node *ch__broadcast_dims(ch_node *x, const ch_dims *dims);
/* `value` everywhere, of x's dtype and dims. (ops/array_make.c) */
ch_node *ch__full_like(ch_node *x, double value);
/* True for a gradient held as ids and rows; then in[0] are the ids and in[1] the rows of
 * ch__op_sparse_rows. (ops/index_sparse.c) */
bool ch__is_sparse(const ch_node *n);
/* A sparse gradient made dense by who knows what that costs: the log is not told.
 * (ops/index_sparse.c) */
ch_node *ch__dense(const ch_node *sparse);
/* The sum of two gradients: sparse if both are. (ops/index_sparse.c) */
ch_node *ch__add_gradients(ch_node *a, ch_node *b);
/* x plus a sparse gradient, or minus it: only its rows are written. An id that is not in range
 * stands for no row; -1 fills up lists. (ops/index_scatter.c) */
ch_node *ch__add_sparse(ch_node *x, const ch_node *sparse, bool negative);

/* The kernel of every op that has a block function, and the op of a chain of them. It is in no
 * list: a recorded graph never has one. (ops/fused.c) */
extern const ch_kernel ch__kernel_elementwise;
extern const ch_op     ch__op_fused;
/* A cast that stays weak if x is: for dtypes that settle themselves. (ops/cast.c) */
ch_node *ch__cast_weak(ch_node *x, ch_dtype dtype);

/* A kernel for ops that fit always or have nothing to prepare. (ops/source.c) */
bool      ch__always(const ch_node *n);
ch_status ch__prepare_nothing(const ch_node *n, ch_prep *p);
/* Output 0 is input 0's memory: reshape, identity, stop_gradient. (ops/source.c) */
extern const ch_kernel ch__kernel_view;

#endif

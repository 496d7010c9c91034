/* ops/source.c -- values from outside the graph: step inputs, variables, constants, run values.
 *
 * Every graph begins with calls of these ops. The program binds `input`, `read` and `constant`
 * to memory, so they have no kernel. The kernels of replica_id, replica_count, global_rows and
 * step_number read ch_env at run time; CH_OP_READS_ENV keeps the planner from folding them.
 * `rows` is the size of axis 0 as a value.
 *
 * Also here: ch__kernel_view, the kernel of ops whose output is the memory of their input.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "graph/graph.h"
#include "graph/step.h"
#include "ops/ops.h"

/* ---- input, read: bound to memory by the program, so they have no kernel ---- */

static const ch_attr input_rows[] = {
    CH_ATTR_INT(ch_input_attrs, index),        CH_ATTR_DTYPE(ch_input_attrs, dtype),
    CH_ATTR_DIMS(ch_input_attrs, dims),        CH_ATTR_DIMS(ch_input_attrs, rows),
    CH_ATTR_INT(ch_input_attrs, splits_input), CH_ATTR_END,
};

static ch_status input_infer(ch_infer *c)
{
    const ch_input_attrs *a = c->attrs;

    if (a->rows.rank > 1 || (a->rows.rank == 1 && a->dims.rank != 1))
        return ch__infer_fail(c,
                              "rows has %d sizes and the input rank %d, want 0 sizes, or 1 "
                              "for splits of rank 1",
                              a->rows.rank, a->dims.rank);
    return ch__infer_dims(c, 0, a->dtype, &a->dims);
}

const ch_op ch__op_input = {
    .name = "input",
    .version = 1,
    .n_in = 0,
    .n_out = 1,
    .attrs = input_rows,
    .attrs_bytes = sizeof(ch_input_attrs),
    .infer = input_infer,
    .replicated = "the program binds it to memory, of which a core reads its region",
    .flags = CH_OP_NO_GRAD,
};

static const ch_attr read_rows[] = {
    CH_ATTR_INT(ch_read_attrs, resource),
    CH_ATTR_DTYPE(ch_read_attrs, dtype),
    CH_ATTR_DIMS(ch_read_attrs, dims),
    CH_ATTR_END,
};

static ch_status read_infer(ch_infer *c)
{
    const ch_read_attrs *a = c->attrs;

    return ch__infer_dims(c, 0, a->dtype, &a->dims);
}

const ch_op ch__op_read = {
    .name = "read",
    .version = 1,
    .n_in = 0,
    .n_out = 1,
    .attrs = read_rows,
    .attrs_bytes = sizeof(ch_read_attrs),
    .infer = read_infer,
    .replicated = "the program binds it to memory, of which a core reads its region",
    .flags = CH_OP_NO_GRAD,
};

/* ---- constant ---- */

static const ch_attr constant_rows[] = {
    CH_ATTR_TENSOR(ch_constant_attrs, value),
    CH_ATTR_BOOL(ch_constant_attrs, weak),
    CH_ATTR_END,
};

static ch_status constant_infer(ch_infer *c)
{
    const ch_constant_attrs *a = c->attrs;
    ch_dims                  d;

    if (a->value == NULL)
        return ch__infer_fail(c, "the constant has no value");
    d = ch__dims_of(ch_tensor_shape(a->value));
    return ch__infer_dims(c, 0, ch_tensor_dtype(a->value), &d);
}

const ch_op ch__op_constant = {
    .name = "constant",
    .version = 1,
    .n_in = 0,
    .n_out = 1,
    .attrs = constant_rows,
    .attrs_bytes = sizeof(ch_constant_attrs),
    .infer = constant_infer,
    .replicated = "the program binds it to memory, of which a core reads its region",
    .flags = CH_OP_NO_GRAD,
};

static ch_node *constant_at(const void *caller, ch_step *s, ch_tensor *t, bool weak)
{
    ch_constant_attrs a = {.value = t, .weak = weak};
    ch_node          *n = ch__source_at(caller, s, &ch__op_constant, &a);

    if (n != NULL)
        n->weak = weak;
    return n;
}

ch_node *ch_constant(ch_step *s, ch_tensor *t)
{
    const void *caller = __builtin_return_address(0);
    ch_tensor  *whole = NULL;
    ch_node    *n;
    ch_status   rc = t == NULL ? ch__fail(CH_INVALID_ARGUMENT, "constant: the tensor is NULL")
                               : ch_tensor_contiguous(t, &whole);

    if (rc != CH_OK) {
        ch__step_record_error(s, rc, caller);
        return NULL;
    }
    n = constant_at(caller, s, whole, false);
    ch_tensor_unref(whole);
    return n;
}

ch_node *ch_number(ch_step *s, double value)
{
    const void *caller = __builtin_return_address(0);
    ch_tensor  *t = NULL;
    ch_node    *n;
    ch_status   rc = ch_tensor_scalar(CH_F64, value, &t);

    if (rc != CH_OK) {
        ch__step_record_error(s, rc, caller);
        return NULL;
    }
    n = constant_at(caller, s, t, true);
    ch_tensor_unref(t);
    return n;
}

/* ---- numbers that are known only at run time ---- */

static ch_status view_prepare(const ch_node *n, ch_prep *p)
{
    (void)n;
    p->is_view = true;
    return CH_OK;
}

/* Never called, because the planner emits no instruction for a view. */
static ch_status view_run(const ch_call *c, ch_kernel_tile t)
{
    (void)c, (void)t;
    return CH_OK;
}

const ch_kernel ch__kernel_view = {"view", .prepare = view_prepare, .run = view_run};

static ch_status i32_scalar(ch_infer *c)
{
    return ch__infer_out(c, 0, CH_I32, 0, NULL);
}

static ch_status i64_scalar(ch_infer *c)
{
    return ch__infer_out(c, 0, CH_I64, 0, NULL);
}

static ch_status replica_id_run(const ch_call *c, ch_kernel_tile t)
{
    (void)t;
    *(int32_t *)c->out[0] = c->env->replica;
    return CH_OK;
}

static ch_status replica_count_run(const ch_call *c, ch_kernel_tile t)
{
    (void)t;
    *(int32_t *)c->out[0] = c->env->n_replicas;
    return CH_OK;
}

static ch_status global_rows_run(const ch_call *c, ch_kernel_tile t)
{
    (void)t;
    *(int64_t *)c->out[0] = c->env->global_rows;
    return CH_OK;
}

static ch_status step_number_run(const ch_call *c, ch_kernel_tile t)
{
    (void)t;
    *(int64_t *)c->out[0] = c->env->step;
    return CH_OK;
}

static const ch_kernel replica_id_plain = {"plain", .run = replica_id_run};
static const ch_kernel replica_count_plain = {"plain", .run = replica_count_run};
static const ch_kernel global_rows_plain = {"plain", .run = global_rows_run};
static const ch_kernel step_number_plain = {"plain", .run = step_number_run};

const ch_op ch__op_replica_id = {
    .name = "replica_id",
    .version = 1,
    .n_in = 0,
    .n_out = 1,
    .infer = i32_scalar,
    .replicated = "it is a number",
    .flags = CH_OP_NO_GRAD | CH_OP_READS_ENV | CH_OP_VARIES,
    .kernels = (const ch_kernel *const[]){&replica_id_plain, NULL},
};
const ch_op ch__op_replica_count = {
    .name = "replica_count",
    .version = 1,
    .n_in = 0,
    .n_out = 1,
    .infer = i32_scalar,
    .replicated = "it is a number",
    .flags = CH_OP_NO_GRAD | CH_OP_READS_ENV,
    .kernels = (const ch_kernel *const[]){&replica_count_plain, NULL},
};
const ch_op ch__op_global_rows = {
    .name = "global_rows",
    .version = 1,
    .n_in = 0,
    .n_out = 1,
    .infer = i64_scalar,
    .replicated = "it is a number",
    .flags = CH_OP_NO_GRAD | CH_OP_READS_ENV,
    .kernels = (const ch_kernel *const[]){&global_rows_plain, NULL},
};
const ch_op ch__op_step_number = {
    .name = "step_number",
    .version = 1,
    .n_in = 0,
    .n_out = 1,
    .infer = i64_scalar,
    .replicated = "it is a number",
    .flags = CH_OP_NO_GRAD | CH_OP_READS_ENV,
    .kernels = (const ch_kernel *const[]){&step_number_plain, NULL},
};

ch_node *ch_step_replica_id(ch_step *s)
{
    return ch__source(s, &ch__op_replica_id, NULL);
}

ch_node *ch_step_number(ch_step *s)
{
    return ch__source(s, &ch__op_step_number, NULL);
}

/* Marks n as weak: its dtype follows the node that it is combined with. n may be NULL. */
static ch_node *weak(ch_node *n)
{
    if (n != NULL)
        n->weak = true;
    return n;
}

ch_node *ch_step_replica_count(ch_step *s)
{
    return weak(ch__source(s, &ch__op_replica_count, NULL));
}

ch_node *ch_step_global_rows(ch_step *s)
{
    return weak(ch__source(s, &ch__op_global_rows, NULL));
}

/* ---- rows: the size of axis 0 as a value ---- */

static ch_status rows_infer(ch_infer *c)
{
    if (c->in[0].rank == 0)
        return ch__infer_fail(c, "a scalar has no rows");
    return ch__infer_out(c, 0, CH_I64, 0, NULL);
}

static ch_status rows_prepare(const ch_node *n, ch_prep *p)
{
    int64_t *rows = ch__prep_state(p, sizeof(*rows));

    if (rows == NULL)
        return ch__fail_memory("rows");
    *rows = n->in[0]->dims.dim[0].n;
    return CH_OK;
}

static ch_status rows_run(const ch_call *c, ch_kernel_tile t)
{
    (void)t;
    *(int64_t *)c->out[0] = ch__live_rows(c, *(const int64_t *)c->state);
    return CH_OK;
}

/* A core that has a part of x gets the rows of the whole x as a constant, because the number
 * does not depend on the elements of x. */
static bool rows_expand(ch_step *s, const ch_node *n, ch_node *const *in, ch_node **out)
{
    (void)in;
    if (n->in[0]->dims.dim[0].sym != 0)
        return false;
    out[0] = ch_fill(s, CH_I64, ch_shape_scalar(), (double)n->in[0]->dims.dim[0].n);
    return out[0] != NULL;
}

static const ch_kernel rows_plain = {"plain", .prepare = rows_prepare, .run = rows_run};

const ch_op ch__op_rows = {
    .name = "rows",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .infer = rows_infer,
    .replicated = "it is a number that belongs to the whole value",
    .expand = rows_expand,
    .flags = CH_OP_NO_GRAD | CH_OP_STRINGS,
    .kernels = (const ch_kernel *const[]){&rows_plain, NULL},
    .room = 1,
};

ch_node *ch_rows(ch_node *x)
{
    return weak(ch__node(&ch__op_rows, NULL, 1, &x));
}

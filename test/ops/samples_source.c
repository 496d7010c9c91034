/* test/ops/samples_source.c -- samples of ops whose result depends on the run: sizes, step,
 * replica.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sample.h"

static void replica_id(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)in;
    out[0] = ch_step_replica_id(s);
}

static void replica_count(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)in;
    out[0] = ch_step_replica_count(s);
}

static void global_rows(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)in;
    out[0] = ch_step_global_rows(s);
}

static void step_number(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)in;
    out[0] = ch_step_number(s);
}

static void rows(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_rows(in[0]);
}

static void is_zero(const t_array *in, t_array *out)
{
    (void)in;
    t_out(&out[0], ch_shape_scalar());
}

static void is_one(const t_array *in, t_array *out)
{
    (void)in;
    t_out(&out[0], ch_shape_scalar());
    out[0].v[0] = 1;
}

static void is_rows(const t_array *in, t_array *out)
{
    t_out(&out[0], ch_shape_scalar());
    out[0].v[0] = (double)in[0].shape.dim[0];
}

/* clang-format off */
static const t_sample samples[] = {
    {.op = "replica_id", .name = "of one", .dtypes = 1 << CH_F32, .record = replica_id,
     .reference = is_zero, .flags = T_NO_GRAD},
    {.op = "replica_count", .name = "of one", .dtypes = 1 << CH_F32, .record = replica_count,
     .reference = is_one, .flags = T_NO_GRAD},
    {.op = "step_number", .name = "of the first", .dtypes = 1 << CH_F32, .record = step_number,
     .reference = is_zero, .flags = T_NO_GRAD},
    {.op = "global_rows", .name = "of one replica", .dtypes = 1 << CH_F32, .n_in = 1,
     .in = {{.shape = {2, {5, 3}}}}, .record = global_rows, .reference = is_rows,
     .flags = T_NO_GRAD},
    {.op = "rows", .name = "of a matrix", .dtypes = T_FLOATS | T_INTS, .n_in = 1,
     .in = {{.shape = {2, {5, 3}}}}, .record = rows, .reference = is_rows, .flags = T_NO_GRAD},
    {.op = "rows", .name = "none", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {2, {0, 3}}}}, .record = rows, .reference = is_rows, .flags = T_NO_GRAD},
    {0},
};

static const t_refusal refusals[] = {
    {.op = "rows", .name = "of a scalar", .n_in = 1, .in = {{.shape = {0}}}, .dtype = CH_F32,
     .record = rows, .code = CH_INVALID_ARGUMENT, .words = {"rows(f32())", "scalar"}},
    {0},
};
/* clang-format on */

const t_family t_source = {"source", samples, refusals};

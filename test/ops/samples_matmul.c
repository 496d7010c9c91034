/* test/ops/samples_matmul.c -- products of matrices.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sample.h"

/* ---- matmul ---- */

static void nn(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_matmul(in[0], false, in[1], false);
}

static void tn(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_matmul(in[0], true, in[1], false);
}

static void nt(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_matmul(in[0], false, in[1], true);
}

static void tt(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_matmul(in[0], true, in[1], true);
}

/* The element of a batched matrix at the batch that out's batch number i stands for. */
static double element(const t_array *x, const ch_shape *out, int64_t batch, int64_t r,
                      int64_t c)
{
    int64_t at = 0, step = x->shape.dim[x->shape.rank - 1] * x->shape.dim[x->shape.rank - 2];

    for (int k = 3; k <= out->rank; k++) {
        int64_t i = batch % out->dim[out->rank - k];

        batch /= out->dim[out->rank - k];
        if (k <= x->shape.rank) {
            at += x->shape.dim[x->shape.rank - k] == 1 ? 0 : i * step;
            step *= x->shape.dim[x->shape.rank - k];
        }
    }
    return x->v[at + r * x->shape.dim[x->shape.rank - 1] + c];
}

static void product(const t_array *in, t_array *out, bool ta, bool tb)
{
    const ch_shape *a = &in[0].shape, *b = &in[1].shape;
    ch_shape        s = a->rank >= b->rank ? *a : *b;
    int64_t         m = a->dim[a->rank - (ta ? 1 : 2)], n = b->dim[b->rank - (tb ? 2 : 1)];
    int64_t         inner = a->dim[a->rank - (ta ? 2 : 1)], batches = 1;

    for (int k = 3; k <= s.rank; k++) {
        int64_t x = k <= a->rank ? a->dim[a->rank - k] : 1,
                y = k <= b->rank ? b->dim[b->rank - k] : 1;

        s.dim[s.rank - k] = x == 1 ? y : x;
        batches *= s.dim[s.rank - k];
    }
    s.dim[s.rank - 2] = m;
    s.dim[s.rank - 1] = n;
    t_out(&out[0], s);
    for (int64_t i = 0; i < batches; i++)
        for (int64_t r = 0; r < m; r++)
            for (int64_t c = 0; c < n; c++) {
                double sum = 0;

                for (int64_t p = 0; p < inner; p++)
                    sum += element(&in[0], &s, i, ta ? p : r, ta ? r : p) *
                           element(&in[1], &s, i, tb ? c : p, tb ? p : c);
                out[0].v[(i * m + r) * n + c] = sum;
            }
}

static void nn_is(const t_array *in, t_array *out)
{
    product(in, out, false, false);
}

static void tn_is(const t_array *in, t_array *out)
{
    product(in, out, true, false);
}

static void nt_is(const t_array *in, t_array *out)
{
    product(in, out, false, true);
}

static void tt_is(const t_array *in, t_array *out)
{
    product(in, out, true, true);
}

/* clang-format off */
static const t_sample samples[] = {
    {.op = "matmul", .name = "plain", .dtypes = T_FLOATS | T_INTS, .n_in = 2,
     .in = {{.shape = {2, {3, 5}}, .fill = T_SMALL}, {.shape = {2, {5, 4}}, .fill = T_SMALL, .is_static = true}},
     .record = nn, .reference = nn_is},
    {.op = "matmul", .name = "a transposed", .dtypes = T_FLOATS | T_INTS, .n_in = 2,
     .in = {{.shape = {2, {5, 3}}, .fill = T_SMALL}, {.shape = {2, {5, 4}}, .fill = T_SMALL}},
     .record = tn, .reference = tn_is},
    {.op = "matmul", .name = "b transposed", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {2, {7, 5}}}, {.shape = {2, {4, 5}}, .is_static = true}},
     .record = nt, .reference = nt_is},
    {.op = "matmul", .name = "both transposed", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {2, {5, 3}}, .is_static = true}, {.shape = {2, {4, 5}}, .is_static = true}},
     .record = tt, .reference = tt_is},
    {.op = "matmul", .name = "no rows", .dtypes = T_FLOATS | T_INTS, .n_in = 2,
     .in = {{.shape = {2, {0, 5}}}, {.shape = {2, {5, 4}}, .is_static = true}},
     .record = nn, .reference = nn_is},
    {.op = "matmul", .name = "a sum over nothing", .dtypes = T_FLOATS | T_INTS, .n_in = 2,
     .in = {{.shape = {2, {3, 0}}}, {.shape = {2, {0, 4}}, .is_static = true}},
     .record = nn, .reference = nn_is},
    {.op = "matmul", .name = "odd sizes", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {2, {37, 61}}}, {.shape = {2, {61, 43}}, .is_static = true}},
     .record = nn, .reference = nn_is},
    {.op = "matmul", .name = "one row", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {2, {1, 300}}}, {.shape = {2, {300, 77}}, .is_static = true}},
     .record = nn, .reference = nn_is, .tolerance = 2e-5},
    {.op = "matmul", .name = "one column", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {2, {70, 300}}}, {.shape = {2, {300, 1}}, .is_static = true}},
     .record = nn, .reference = nn_is, .tolerance = 2e-5},
    {.op = "matmul", .name = "blocks of every kind", .dtypes = T_FLOATS | 1 << CH_I32, .n_in = 2,
     .in = {{.shape = {2, {101, 270}}, .fill = T_SMALL},
            {.shape = {2, {270, 263}}, .fill = T_SMALL, .is_static = true}},
     .record = nn, .reference = nn_is, .tolerance = 2e-5},
    {.op = "matmul", .name = "several tiles", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {2, {300, 130}}}, {.shape = {2, {350, 130}}, .is_static = true}},
     .record = nt, .reference = nt_is, .tolerance = 2e-5},
    {.op = "matmul", .name = "several tiles, a transposed", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {2, {130, 300}}, .is_static = true}, {.shape = {2, {130, 350}}, .is_static = true}},
     .record = tn, .reference = tn_is, .tolerance = 2e-5},
    {.op = "matmul", .name = "batched", .dtypes = T_FLOATS | T_INTS, .n_in = 2,
     .in = {{.shape = {3, {4, 3, 5}}, .fill = T_SMALL}, {.shape = {3, {4, 5, 2}}, .fill = T_SMALL}},
     .record = nn, .reference = nn_is},
    {.op = "matmul", .name = "batched, transposed", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {4, {2, 3, 5, 4}}}, {.shape = {4, {2, 3, 6, 5}}}},
     .record = tt, .reference = tt_is},
    {.op = "matmul", .name = "a batch by one matrix", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {4, {2, 3, 4, 5}}}, {.shape = {2, {5, 6}}, .is_static = true}},
     .record = nn, .reference = nn_is},
    {.op = "matmul", .name = "a batch by one matrix, transposed", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {3, {3, 4, 5}}}, {.shape = {2, {6, 5}}, .is_static = true}},
     .record = nt, .reference = nt_is},
    {.op = "matmul", .name = "a transposed batch by one matrix", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {3, {3, 5, 4}}}, {.shape = {2, {5, 6}}, .is_static = true}},
     .record = tn, .reference = tn_is},
    {.op = "matmul", .name = "one matrix by a batch", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {2, {4, 5}}, .is_static = true}, {.shape = {3, {3, 5, 6}}}},
     .record = nn, .reference = nn_is},
    {.op = "matmul", .name = "batches that broadcast", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {4, {2, 1, 3, 4}}, .is_static = true}, {.shape = {4, {1, 3, 4, 5}}, .is_static = true}},
     .record = nn, .reference = nn_is},
    {.op = "matmul", .name = "batches that broadcast both ways", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {5, {2, 1, 2, 3, 4}}}, {.shape = {4, {3, 1, 5, 4}}, .is_static = true}},
     .record = nt, .reference = nt_is},
    {.op = "matmul", .name = "a batch of tiles", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {3, {40, 48, 64}}}, {.shape = {3, {40, 64, 80}}}},
     .record = nn, .reference = nn_is, .tolerance = 2e-5},
    {.op = "matmul", .name = "an empty batch", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {3, {0, 3, 4}}}, {.shape = {3, {0, 4, 5}}}},
     .record = nn, .reference = nn_is},
    {0},
};

static const t_refusal refusals[] = {
    {.op = "matmul", .name = "inner sizes differ", .n_in = 2, .dtype = CH_F32,
     .in = {{.shape = {2, {2, 3}}}, {.shape = {2, {4, 5}}}},
     .record = nn, .code = CH_INVALID_ARGUMENT, .words = {"matmul(", "inner sizes 3 and"}},
    {.op = "matmul", .name = "transposed inner sizes differ", .n_in = 2, .dtype = CH_F32,
     .in = {{.shape = {2, {2, 3}}, .is_static = true}, {.shape = {2, {3, 5}}, .is_static = true}},
     .record = nt, .code = CH_INVALID_ARGUMENT, .words = {"inner sizes 3 and 5", "transposed"}},
    {.op = "matmul", .name = "a vector", .n_in = 2, .dtype = CH_F32,
     .in = {{.shape = {1, {3}}}, {.shape = {2, {3, 5}}}},
     .record = nn, .code = CH_INVALID_ARGUMENT, .words = {"ranks 1 and 2", "want 2 or more", "expand"}},
    {.op = "matmul", .name = "batches that do not broadcast", .n_in = 2, .dtype = CH_F32,
     .in = {{.shape = {3, {2, 3, 4}}, .is_static = true}, {.shape = {3, {3, 4, 5}}, .is_static = true}},
     .record = nn, .code = CH_INVALID_ARGUMENT, .words = {"batch sizes 2 and 3"}},
    {.op = "matmul", .name = "bool", .n_in = 2, .dtype = CH_BOOL,
     .in = {{.shape = {2, {2, 3}}, .fill = T_BOOL}, {.shape = {2, {3, 5}}, .fill = T_BOOL, .is_static = true}},
     .record = nn, .code = CH_INVALID_ARGUMENT, .words = {"bool", "cast"}},
    {.op = "matmul", .name = "two types", .n_in = 2, .dtype = CH_F32,
     .in = {{.shape = {2, {2, 3}}}, {.shape = {2, {3, 5}}, .is_ids = true, .is_static = true}},
     .record = nn, .code = CH_INVALID_ARGUMENT, .words = {"f32", "cast"}},
    {0},
};
/* clang-format on */

const t_family t_matmul = {"matmul", samples, refusals};

/* test/ops/samples_array.c -- samples of ops on shapes and parts, and of ops that create
 * arrays.
 *
 * Every reference visits each element of the result and computes from its index the input and
 * the element that it comes from. Only this computation differs.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "graph/step.h"
#include "ops/lookup.h"
#include "sample.h"

enum {
    T_MOVES =
        T_FLOATS | T_INTS | 1 << CH_BOOL | 1 << CH_I16 | 1 << CH_U16 | 1 << CH_U32 | 1 << CH_U64
};

/* ---- indices ---- */

static void index_of(ch_shape s, int64_t flat, int64_t *index)
{
    for (int i = s.rank - 1; i >= 0; i--) {
        index[i] = flat % s.dim[i];
        flat /= s.dim[i];
    }
}

static int64_t flat_of(ch_shape s, const int64_t *index)
{
    int64_t flat = 0;

    for (int i = 0; i < s.rank; i++)
        flat = flat * s.dim[i] + index[i];
    return flat;
}

/* ---- reshape ---- */

static void to_rows(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_reshape(in[0], ch_shape_of(-1, 12));
}

static void is_rows_of_12(const t_array *in, t_array *out)
{
    int64_t n = ch_shape_count(in[0].shape);

    t_out(&out[0], ch_shape_of(n / 12, 12));
    memcpy(out[0].v, in[0].v, (size_t)n * sizeof(double));
}

static void to_halves(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_reshape(in[0], ch_shape_of(-1, 6));
}

static void is_rows_of_6(const t_array *in, t_array *out)
{
    int64_t n = ch_shape_count(in[0].shape);

    t_out(&out[0], ch_shape_of(n / 6, 6));
    memcpy(out[0].v, in[0].v, (size_t)n * sizeof(double));
}

static void to_line(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_reshape(in[0], ch_shape_of(-1));
}

static void is_line(const t_array *in, t_array *out)
{
    int64_t n = ch_shape_count(in[0].shape);

    t_out(&out[0], ch_shape_of(n));
    memcpy(out[0].v, in[0].v, (size_t)n * sizeof(double));
}

static void to_scalar(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_reshape(ch_reshape(in[0], ch_shape_scalar()), ch_shape_of(1, 1, 1));
}

static void is_ones(const t_array *in, t_array *out)
{
    t_out(&out[0], ch_shape_of(1, 1, 1));
    out[0].v[0] = in[0].v[0];
}

/* Whether a size divides evenly is known only when the number of rows is known. */
static void pair_rows(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_reshape(in[0], ch_shape_of(2, -1));
}

static void is_pair(const t_array *in, t_array *out)
{
    int64_t n = ch_shape_count(in[0].shape);

    t_out(&out[0], ch_shape_of(2, n / 2));
    memcpy(out[0].v, in[0].v, (size_t)n * sizeof(double));
}

static void expand_and_squeeze(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *x = ch_expand_dims(in[0], -1);

    (void)s;
    x = ch_expand_dims(x, 0);
    out[0] = ch_expand_dims(x, 2);
    out[1] = ch_squeeze(out[0], 1, (int[]){0});
    out[2] = ch_squeeze(out[0], 0, NULL);
}

static void is_expanded(const t_array *in, t_array *out)
{
    int64_t a = in[0].shape.dim[0], b = in[0].shape.dim[1];
    size_t  bytes = (size_t)(a * b) * sizeof(double);

    t_out(&out[0], ch_shape_of(1, a, 1, b, 1));
    t_out(&out[1], ch_shape_of(a, 1, b, 1));
    t_out(&out[2], ch_shape_of(a, b));
    for (int i = 0; i < 3; i++)
        memcpy(out[i].v, in[0].v, bytes);
}

static void squeeze_rows(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *one = ch_slice(in[0], 1, (int64_t[]){1}, (int64_t[]){1});

    (void)s;
    out[0] = ch_squeeze(one, 1, (int[]){0});
}

static void is_second_row(const t_array *in, t_array *out)
{
    int64_t n = in[0].shape.dim[1];

    t_out(&out[0], ch_shape_of(n));
    memcpy(out[0].v, in[0].v + n, (size_t)n * sizeof(double));
}

/* ---- transpose ---- */

static void transposed(const t_array *in, t_array *out, const int *perm)
{
    ch_shape x = in[0].shape, y = {.rank = x.rank};
    int64_t  from[CH_MAX_RANK], to[CH_MAX_RANK];

    for (int i = 0; i < x.rank; i++)
        y.dim[i] = x.dim[perm[i]];
    t_out(&out[0], y);
    for (int64_t k = 0; k < ch_shape_count(x); k++) {
        index_of(x, k, from);
        for (int i = 0; i < x.rank; i++)
            to[i] = from[perm[i]];
        out[0].v[flat_of(y, to)] = in[0].v[k];
    }
}

static const int perm_10[] = {1, 0}, perm_021[] = {0, 2, 1}, perm_210[] = {2, 1, 0},
                 perm_1203[] = {1, 2, 0, 3}, perm_3021[] = {3, 0, 2, 1};

static void transpose_10(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_transpose(in[0], 0, NULL);
}

static void is_transposed_10(const t_array *in, t_array *out)
{
    transposed(in, out, perm_10);
}

static void transpose_021(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_transpose(in[0], 3, (int[]){0, -1, -2});
}

static void is_transposed_021(const t_array *in, t_array *out)
{
    transposed(in, out, perm_021);
}

static void transpose_210(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_transpose(in[0], 3, perm_210);
}

static void is_transposed_210(const t_array *in, t_array *out)
{
    transposed(in, out, perm_210);
}

static void transpose_1203(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_transpose(in[0], 4, perm_1203);
}

static void is_transposed_1203(const t_array *in, t_array *out)
{
    transposed(in, out, perm_1203);
}

static void transpose_3021(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_transpose(in[0], 4, perm_3021);
}

static void is_transposed_3021(const t_array *in, t_array *out)
{
    transposed(in, out, perm_3021);
}

/* ---- broadcast_to ---- */

static void broadcasted(const t_array *in, t_array *out, ch_shape y)
{
    ch_shape x = in[0].shape;
    int64_t  to[CH_MAX_RANK], from[CH_MAX_RANK];

    t_out(&out[0], y);
    for (int64_t k = 0; k < ch_shape_count(y); k++) {
        index_of(y, k, to);
        for (int i = 0; i < x.rank; i++)
            from[i] = x.dim[i] == 1 ? 0 : to[y.rank - x.rank + i];
        out[0].v[k] = in[0].v[flat_of(x, from)];
    }
}

static void broadcast_rows(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_broadcast_to(in[0], ch_shape_of(2, -1, 3, 5));
}

static void is_broadcast_rows(const t_array *in, t_array *out)
{
    broadcasted(in, out, ch_shape_of(2, in[0].shape.dim[0], 3, 5));
}

static void broadcast_columns(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_broadcast_to(in[0], ch_shape_of(-1, 700));
}

static void is_broadcast_columns(const t_array *in, t_array *out)
{
    broadcasted(in, out, ch_shape_of(in[0].shape.dim[0], 700));
}

static void broadcast_scalar(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_broadcast_to(in[0], ch_shape_of(3, 0, 2));
    out[1] = ch_broadcast_to(in[0], ch_shape_of(3, 2));
}

static void is_broadcast_scalar(const t_array *in, t_array *out)
{
    broadcasted(in, &out[0], ch_shape_of(3, 0, 2));
    broadcasted(in, &out[1], ch_shape_of(3, 2));
}

/* ---- concat, stack ---- */

static void joined(int n, const t_array *in, t_array *out, int axis)
{
    ch_shape y = in[0].shape;
    int64_t  index[CH_MAX_RANK], begin = 0;

    for (int i = 1; i < n; i++)
        y.dim[axis] += in[i].shape.dim[axis];
    t_out(&out[0], y);
    for (int i = 0; i < n; i++) {
        for (int64_t k = 0; k < ch_shape_count(in[i].shape); k++) {
            index_of(in[i].shape, k, index);
            index[axis] += begin;
            out[0].v[flat_of(y, index)] = in[i].v[k];
        }
        begin += in[i].shape.dim[axis];
    }
}

static void concat_rows(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_concat(3, in, 0);
}

static void is_concat_rows(const t_array *in, t_array *out)
{
    joined(3, in, out, 0);
}

static void concat_columns(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_concat(3, in, -1);
}

static void is_concat_columns(const t_array *in, t_array *out)
{
    joined(3, in, out, in[0].shape.rank - 1);
}

static void concat_middle(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_concat(2, in, 1);
}

static void is_concat_middle(const t_array *in, t_array *out)
{
    joined(2, in, out, 1);
}

static void concat_one(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_concat(1, in, 1);
}

static void is_concat_one(const t_array *in, t_array *out)
{
    joined(1, in, out, 1);
}

/* More inputs than the fixed lists of the library hold. */
static void concat_many(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *x[40];

    (void)s;
    for (int i = 0; i < 40; i++)
        x[i] = in[i % 2];
    out[0] = ch_concat(40, x, 1);
}

static void is_concat_many(const t_array *in, t_array *out)
{
    t_array x[40];

    for (int i = 0; i < 40; i++)
        x[i] = in[i % 2];
    joined(40, x, out, 1);
}

static void stack_middle(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_stack(2, in, 1);
    out[1] = ch_stack(2, in, -1);
}

static void is_stacked(const t_array *in, t_array *out)
{
    int64_t a = in[0].shape.dim[0], b = in[0].shape.dim[1];

    t_out(&out[0], ch_shape_of(a, 2, b));
    t_out(&out[1], ch_shape_of(a, b, 2));
    for (int64_t i = 0; i < a; i++)
        for (int64_t j = 0; j < b; j++)
            for (int k = 0; k < 2; k++)
                out[0].v[(i * 2 + k) * b + j] = out[1].v[(i * b + j) * 2 + k] =
                    in[k].v[i * b + j];
}

/* ---- part: the gradient of concat ---- */

static void grad_of_concat(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *y = ch_concat(3, in, 0);

    (void)s;
    ch_gradients(y, y, 3, in, out);
}

static void is_grad_of_concat(const t_array *in, t_array *out)
{
    for (int i = 0; i < 3; i++) {
        t_out(&out[i], in[i].shape);
        memcpy(out[i].v, in[i].v, (size_t)ch_shape_count(in[i].shape) * sizeof(double));
    }
}

/* ---- split ---- */

static void parted(const t_array *in, t_array *out, int axis, int n, const int64_t *sizes)
{
    int64_t begin = 0, index[CH_MAX_RANK];

    for (int i = 0; i < n; i++) {
        ch_shape y = in[0].shape;

        y.dim[axis] = sizes[i];
        t_out(&out[i], y);
        for (int64_t k = 0; k < ch_shape_count(y); k++) {
            index_of(y, k, index);
            index[axis] += begin;
            out[i].v[k] = in[0].v[flat_of(in[0].shape, index)];
        }
        begin += sizes[i];
    }
}

static const int64_t sizes_7[] = {3, 0, 4}, sizes_equal[] = {200, 200, 200};

static void split_uneven(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    ch_split(in[0], 1, 3, sizes_7, out);
}

static void is_split_uneven(const t_array *in, t_array *out)
{
    parted(in, out, 1, 3, sizes_7);
}

static void split_equal(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    ch_split(in[0], -1, 3, NULL, out);
}

static void is_split_equal(const t_array *in, t_array *out)
{
    parted(in, out, 1, 3, sizes_equal);
}

/* Only a single part is used: the gradient of the others is zeros. */
static void split_one(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *part[3];

    (void)s;
    ch_split(in[0], 0, 3, sizes_7, part);
    out[0] = part[2];
}

static void is_split_one(const t_array *in, t_array *out)
{
    t_array part[3];

    parted(in, part, 0, 3, sizes_7);
    out[0] = part[2];
}

static void split_many(ch_step *s, ch_node *const *in, ch_node **out)
{
    int64_t ones[20];

    (void)s;
    for (int i = 0; i < 20; i++)
        ones[i] = 1;
    ch_split(in[0], 1, 20, ones, out);
}

static void is_split_many(const t_array *in, t_array *out)
{
    int64_t ones[20];

    for (int i = 0; i < 20; i++)
        ones[i] = 1;
    parted(in, out, 1, 20, ones);
}

/* ---- slice ---- */

static void cut(const t_array *in, t_array *out, const int64_t *begin, const int64_t *size,
                const int64_t *step)
{
    ch_shape y = in[0].shape;
    int64_t  index[CH_MAX_RANK];

    for (int i = 0; i < y.rank; i++)
        y.dim[i] = size[i] < 0 ? y.dim[i] - begin[i] : size[i];
    t_out(&out[0], y);
    for (int64_t k = 0; k < ch_shape_count(y); k++) {
        index_of(y, k, index);
        for (int i = 0; i < y.rank; i++)
            index[i] = begin[i] + index[i] * step[i];
        out[0].v[k] = in[0].v[flat_of(in[0].shape, index)];
    }
}

static const int64_t ones[] = {1, 1, 1, 1}, slice_begin[] = {0, 1, 2},
                     slice_size[] = {-1, 2, -1};

static void slice_inner(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_slice(in[0], 3, slice_begin, slice_size);
}

static void is_slice_inner(const t_array *in, t_array *out)
{
    cut(in, out, slice_begin, slice_size, ones);
}

static void slice_rows(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_slice(in[0], 1, (int64_t[]){1}, (int64_t[]){2});
}

static void is_slice_rows(const t_array *in, t_array *out)
{
    cut(in, out, (int64_t[]){1, 0, 0}, (int64_t[]){2, -1, -1}, ones);
}

/* Slices a constant. If the graph is run node by node, without constant folding, the slice is a
 * copy. */
static void slice_constant(ch_step *s, ch_node *const *in, ch_node **out)
{
    static const double v[] = {1, 2, 3, 4, 5, 6};
    ch_tensor          *t = NULL;

    (void)in;
    if (ch_tensor_copy_of(CH_F64, ch_shape_of(3, 2), v, &t) != CH_OK)
        return ch_step_fail(s, "no memory for a constant");
    out[0] = ch_slice(ch_constant(s, t), 1, (int64_t[]){1}, (int64_t[]){2});
    ch_tensor_unref(t);
}

static void is_slice_constant(const t_array *in, t_array *out)
{
    (void)in;
    t_out(&out[0], ch_shape_of(2, 2));
    for (int i = 0; i < 4; i++)
        out[0].v[i] = 3 + i;
}

static void slice_none(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_slice(in[0], 2, (int64_t[]){0, 4}, (int64_t[]){-1, 0});
}

static void is_slice_none(const t_array *in, t_array *out)
{
    cut(in, out, (int64_t[]){0, 4}, (int64_t[]){-1, 0}, ones);
}

/* x[:, 5:0:-2, 1::3] of (rows, 6, 8). */
static void strided(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_strided_slice(in[0], 3, (int64_t[]){0, -1, 1}, (int64_t[]){CH_END, 0, CH_END},
                              (int64_t[]){1, -2, 3});
}

static void is_strided(const t_array *in, t_array *out)
{
    cut(in, out, (int64_t[]){0, 5, 1}, (int64_t[]){-1, 3, 3}, (int64_t[]){1, -2, 3});
}

/* x[::-1, -100:100] with a known number of rows, and x[3:1], which is empty. */
static void strided_back(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_strided_slice(in[0], 2, (int64_t[]){-1, -100}, (int64_t[]){CH_END, 100},
                              (int64_t[]){-1, 1});
    out[1] = ch_strided_slice(in[0], 2, (int64_t[]){0, 3}, (int64_t[]){CH_END, 1}, NULL);
}

static void is_strided_back(const t_array *in, t_array *out)
{
    int64_t n = in[0].shape.dim[0];

    cut(in, &out[0], (int64_t[]){n - 1, 0}, (int64_t[]){n, 5}, (int64_t[]){-1, 1});
    cut(in, &out[1], (int64_t[]){0, 0}, (int64_t[]){-1, 0}, ones);
}

/* ---- pad ---- */

static void padded(const t_array *in, t_array *out, const int64_t *before, const int64_t *after,
                   double value)
{
    ch_shape y = in[0].shape;
    int64_t  index[CH_MAX_RANK];

    for (int i = 0; i < y.rank; i++)
        y.dim[i] += before[i] + after[i];
    t_out(&out[0], y);
    for (int64_t k = 0; k < ch_shape_count(y); k++)
        out[0].v[k] = value;
    for (int64_t k = 0; k < ch_shape_count(in[0].shape); k++) {
        index_of(in[0].shape, k, index);
        for (int i = 0; i < y.rank; i++)
            index[i] += before[i];
        out[0].v[flat_of(y, index)] = in[0].v[k];
    }
}

static const int64_t pad_before[] = {0, 1, 2}, pad_after[] = {0, 3, 0}, pad_all[] = {1, 2, 3};

static void pad_inner(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_pad(in[0], 3, pad_before, pad_after, 0);
}

static void is_pad_inner(const t_array *in, t_array *out)
{
    padded(in, out, pad_before, pad_after, 0);
}

static void pad_rows(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_pad(in[0], 3, pad_all, pad_before, 1);
}

static void is_pad_rows(const t_array *in, t_array *out)
{
    padded(in, out, pad_all, pad_before, 1);
}

static void pad_nothing(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_pad(in[0], 2, (int64_t[]){0, 0}, (int64_t[]){0, 0}, 1);
}

static void is_pad_nothing(const t_array *in, t_array *out)
{
    padded(in, out, (int64_t[]){0, 0}, (int64_t[]){0, 0}, 1);
}

/* ---- tile, reverse ---- */

static void tiled(const t_array *in, t_array *out, const int64_t *times)
{
    ch_shape x = in[0].shape, y = x;
    int64_t  index[CH_MAX_RANK];

    for (int i = 0; i < y.rank; i++)
        y.dim[i] *= times[i];
    t_out(&out[0], y);
    for (int64_t k = 0; k < ch_shape_count(y); k++) {
        index_of(y, k, index);
        for (int i = 0; i < y.rank; i++)
            index[i] %= x.dim[i];
        out[0].v[k] = in[0].v[flat_of(x, index)];
    }
}

static const int64_t tile_231[] = {2, 3, 1}, tile_115[] = {1, 1, 5}, tile_102[] = {1, 0, 2};

static void tile_rows(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_tile(in[0], 3, tile_231);
}

static void is_tile_rows(const t_array *in, t_array *out)
{
    tiled(in, out, tile_231);
}

static void tile_columns(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_tile(in[0], 3, tile_115);
}

static void is_tile_columns(const t_array *in, t_array *out)
{
    tiled(in, out, tile_115);
}

static void tile_none(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_tile(in[0], 3, tile_102);
}

static void is_tile_none(const t_array *in, t_array *out)
{
    tiled(in, out, tile_102);
}

static void reversed(const t_array *in, t_array *out, unsigned axes)
{
    int64_t index[CH_MAX_RANK];

    t_out(&out[0], in[0].shape);
    for (int64_t k = 0; k < ch_shape_count(in[0].shape); k++) {
        index_of(in[0].shape, k, index);
        for (int i = 0; i < in[0].shape.rank; i++)
            if ((axes >> i & 1) != 0)
                index[i] = in[0].shape.dim[i] - 1 - index[i];
        out[0].v[k] = in[0].v[flat_of(in[0].shape, index)];
    }
}

static void reverse_rows(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_reverse(in[0], 1, (int[]){0});
}

static void is_reverse_rows(const t_array *in, t_array *out)
{
    reversed(in, out, 1);
}

static void reverse_two(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_reverse(in[0], 2, (int[]){-1, 0});
}

static void is_reverse_two(const t_array *in, t_array *out)
{
    reversed(in, out, 1u | 1u << (in[0].shape.rank - 1));
}

/* ---- arrays without inputs ---- */

/* Returns the dtype of a node, or f32 if recording has failed before. */
static ch_dtype dtype_of(const ch_node *n)
{
    return n != NULL ? ch_node_dtype(n) : CH_F32;
}

static void fills(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_dtype t = dtype_of(in[0]);

    out[0] = ch_fill(s, t, ch_shape_of(2, 3), 3);
    out[1] = ch_full_like(in[0], 2);
    out[2] = ch_zeros_like(in[0]);
    out[3] = ch_ones_like(in[0]);
    out[4] = ch_fill(s, t, ch_shape_of(300, 301), 1);
}

static void are_filled(const t_array *in, t_array *out)
{
    static const double value[] = {3, 2, 0, 1, 1};

    t_out(&out[0], ch_shape_of(2, 3));
    for (int i = 1; i < 4; i++)
        t_out(&out[i], in[0].shape);
    t_out(&out[4], ch_shape_of(300, 301));
    for (int i = 0; i < 5; i++)
        for (int64_t k = 0; k < ch_shape_count(out[i].shape); k++)
            out[i].v[k] = value[i];
}

static void ranges(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_dtype t = dtype_of(in[0]);

    out[0] = ch_range(s, t, 2, 12, 3);
    out[1] = ch_range(s, t, 9, 4, -2);
    out[2] = ch_range(s, t, 4, 4, 1);
    out[3] = ch_range_like(in[0], 0, t);
}

static void are_ranges(const t_array *in, t_array *out)
{
    t_out(&out[0], ch_shape_of(4));
    t_out(&out[1], ch_shape_of(3));
    t_out(&out[2], ch_shape_of(0));
    t_out(&out[3], ch_shape_of(in[0].shape.dim[0]));
    for (int i = 0; i < 4; i++)
        out[0].v[i] = 2 + 3 * i;
    for (int i = 0; i < 3; i++)
        out[1].v[i] = 9 - 2 * i;
    for (int64_t i = 0; i < in[0].shape.dim[0]; i++)
        out[3].v[i] = (double)i;
}

static void range_halves(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_range(s, dtype_of(in[0]), -1, 1, 0.25);
}

static void is_range_halves(const t_array *in, t_array *out)
{
    (void)in;
    t_out(&out[0], ch_shape_of(8));
    for (int i = 0; i < 8; i++)
        out[0].v[i] = -1 + 0.25 * i;
}

static void eyes(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_dtype t = dtype_of(in[0]);

    out[0] = ch_eye(s, t, 3, 3);
    out[1] = ch_eye(s, t, 2, 5);
    out[2] = ch_eye(s, t, 4, 0);
}

static void are_eyes(const t_array *in, t_array *out)
{
    (void)in;
    t_out(&out[0], ch_shape_of(3, 3));
    t_out(&out[1], ch_shape_of(2, 5));
    t_out(&out[2], ch_shape_of(4, 0));
    out[0].v[0] = out[0].v[4] = out[0].v[8] = 1;
    out[1].v[0] = out[1].v[6] = 1;
}

/* ---- fill_room ---- */

static void without_room(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch__resize_rows(ch__without_room(in[0], 1), 1, in[0]->dims.dim[0]);
}

static void is_same(const t_array *in, t_array *out)
{
    t_out(&out[0], in[0].shape);
    memcpy(out[0].v, in[0].v, (size_t)ch_shape_count(in[0].shape) * sizeof(double));
}

static void to_eight_rows(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch__resize_rows(in[0], 3, ch__dim(8));
}

static void is_eight_rows(const t_array *in, t_array *out)
{
    int64_t width = in[0].shape.dim[1], n = ch_shape_count(in[0].shape);

    t_out(&out[0], ch_shape_of(8, width));
    for (int64_t i = 0; i < 8 * width; i++)
        out[0].v[i] = i < n ? in[0].v[i] : 3;
}

/* clang-format off */
#define ONE(...) {{.shape = {__VA_ARGS__}, .fill = T_SMALL}}
#define ONE_STATIC(...) {{.shape = {__VA_ARGS__}, .fill = T_SMALL, .is_static = true}}

static const t_sample samples[] = {
    {.op = "reshape", .name = "rows", .dtypes = T_MOVES, .n_in = 1, .in = ONE(3, {5, 3, 4}),
     .record = to_rows, .reference = is_rows_of_12},
    {.op = "reshape", .name = "two rows for each", .dtypes = T_WIDE, .n_in = 1,
     .in = ONE(3, {5, 3, 4}), .record = to_halves, .reference = is_rows_of_6},
    {.op = "reshape", .name = "a line", .dtypes = T_WIDE, .n_in = 1, .in = ONE(3, {5, 3, 4}),
     .record = to_line, .reference = is_line},
    {.op = "reshape", .name = "nothing", .dtypes = T_WIDE, .n_in = 1, .in = ONE(3, {5, 0, 4}),
     .record = to_line, .reference = is_line},
    {.op = "reshape", .name = "scalar", .dtypes = T_WIDE, .n_in = 1, .in = ONE_STATIC(1, {1}),
     .record = to_scalar, .reference = is_ones},
    {.op = "reshape", .name = "needs numbers", .dtypes = T_WIDE, .n_in = 1,
     .in = ONE(2, {3, 10}), .record = pair_rows, .reference = is_pair},
    {.op = "reshape", .name = "expand and squeeze", .dtypes = T_WIDE, .n_in = 1,
     .in = ONE(2, {5, 3}), .n_out = 3, .record = expand_and_squeeze, .reference = is_expanded},

    {.op = "reshape", .name = "squeeze rows", .dtypes = T_WIDE, .n_in = 1,
     .in = ONE_STATIC(2, {5, 3}), .record = squeeze_rows, .reference = is_second_row},

    {.op = "transpose", .name = "matrix", .dtypes = T_MOVES, .n_in = 1, .in = ONE(2, {5, 7}),
     .record = transpose_10, .reference = is_transposed_10},
    {.op = "transpose", .name = "matrix of blocks", .dtypes = T_MOVES, .n_in = 1,
     .in = ONE(2, {131, 77}), .record = transpose_10, .reference = is_transposed_10,
     .flags = T_NO_GRAD},
    {.op = "transpose", .name = "large matrix", .dtypes = T_WIDE, .n_in = 1,
     .in = ONE(2, {517, 403}), .record = transpose_10, .reference = is_transposed_10,
     .flags = T_NO_GRAD},
    {.op = "transpose", .name = "narrow", .dtypes = T_FLOATS | T_INTS, .n_in = 1,
     .in = ONE(2, {200, 3}), .record = transpose_10, .reference = is_transposed_10,
     .flags = T_NO_GRAD},
    {.op = "transpose", .name = "flat", .dtypes = T_FLOATS | T_INTS, .n_in = 1,
     .in = ONE_STATIC(2, {3, 200}), .record = transpose_10, .reference = is_transposed_10,
     .flags = T_NO_GRAD},
    {.op = "transpose", .name = "a row is a view", .dtypes = T_WIDE, .n_in = 1,
     .in = ONE(2, {6, 1}), .record = transpose_10, .reference = is_transposed_10},
    {.op = "transpose", .name = "nothing", .dtypes = T_WIDE, .n_in = 1, .in = ONE(2, {6, 0}),
     .record = transpose_10, .reference = is_transposed_10},
    {.op = "transpose", .name = "planes", .dtypes = T_MOVES, .n_in = 1, .in = ONE(3, {3, 4, 5}),
     .record = transpose_021, .reference = is_transposed_021},
    {.op = "transpose", .name = "back to front", .dtypes = T_MOVES, .n_in = 1,
     .in = ONE(3, {3, 4, 5}), .record = transpose_210, .reference = is_transposed_210},
    {.op = "transpose", .name = "runs", .dtypes = T_MOVES, .n_in = 1,
     .in = ONE(4, {2, 3, 4, 5}), .record = transpose_1203, .reference = is_transposed_1203},
    {.op = "transpose", .name = "many runs", .dtypes = T_WIDE, .n_in = 1,
     .in = ONE(4, {20, 16, 12, 32}), .record = transpose_1203, .reference = is_transposed_1203,
     .flags = T_NO_GRAD},
    {.op = "transpose", .name = "all axes", .dtypes = T_FLOATS | T_INTS, .n_in = 1,
     .in = ONE(4, {5, 17, 9, 18}), .record = transpose_3021, .reference = is_transposed_3021,
     .flags = T_NO_GRAD},

    {.op = "broadcast_to", .name = "rows", .dtypes = T_MOVES, .n_in = 1,
     .in = ONE(3, {4, 1, 5}), .record = broadcast_rows, .reference = is_broadcast_rows},
    {.op = "broadcast_to", .name = "columns", .dtypes = T_MOVES, .n_in = 1,
     .in = ONE(2, {300, 1}), .record = broadcast_columns, .reference = is_broadcast_columns,
     .flags = T_NO_GRAD},
    {.op = "broadcast_to", .name = "few columns", .dtypes = T_WIDE, .n_in = 1,
     .in = ONE(2, {2, 1}), .record = broadcast_columns, .reference = is_broadcast_columns,
     .flags = T_GRAD_ONCE},
    {.op = "broadcast_to", .name = "scalar", .dtypes = T_WIDE, .n_in = 1, .in = ONE(0, {0}),
     .n_out = 2, .record = broadcast_scalar, .reference = is_broadcast_scalar},

    {.op = "concat", .name = "rows of different symbols", .dtypes = T_MOVES, .n_in = 3,
     .in = {{.shape = {2, {4, 3}}, .fill = T_SMALL}, {.shape = {2, {2, 3}}, .fill = T_SMALL},
            {.shape = {2, {5, 3}}, .fill = T_SMALL}},
     .record = concat_rows, .reference = is_concat_rows},
    {.op = "concat", .name = "rows of one symbol", .dtypes = T_WIDE, .n_in = 3,
     .in = {{.shape = {2, {4, 3}}, .fill = T_SMALL}, {.shape = {2, {4, 3}}, .fill = T_SMALL},
            {.shape = {2, {4, 3}}, .fill = T_SMALL}},
     .record = concat_rows, .reference = is_concat_rows},
    {.op = "concat", .name = "columns", .dtypes = T_MOVES, .n_in = 3,
     .in = {{.shape = {2, {4, 3}}, .fill = T_SMALL}, {.shape = {2, {4, 0}}, .fill = T_SMALL},
            {.shape = {2, {4, 2}}, .fill = T_SMALL}},
     .record = concat_columns, .reference = is_concat_columns},
    {.op = "concat", .name = "many columns", .dtypes = T_WIDE, .n_in = 3,
     .in = {{.shape = {2, {700, 101}}, .fill = T_SMALL},
            {.shape = {2, {700, 7}}, .fill = T_SMALL},
            {.shape = {2, {700, 230}}, .fill = T_SMALL}},
     .record = concat_columns, .reference = is_concat_columns, .flags = T_NO_GRAD},
    {.op = "concat", .name = "middle", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {3, {2, 3, 2}}, .fill = T_SMALL},
            {.shape = {3, {2, 1, 2}}, .fill = T_SMALL}},
     .record = concat_middle, .reference = is_concat_middle},
    {.op = "concat", .name = "one", .dtypes = T_WIDE, .n_in = 1, .in = ONE(2, {4, 3}),
     .record = concat_one, .reference = is_concat_one},
    {.op = "concat", .name = "forty", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {2, {3, 2}}, .fill = T_SMALL}, {.shape = {2, {3, 1}}, .fill = T_SMALL}},
     .record = concat_many, .reference = is_concat_many, .flags = T_GRAD_ONCE},
    {.op = "concat", .name = "stack", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {2, {4, 3}}, .fill = T_SMALL}, {.shape = {2, {4, 3}}, .fill = T_SMALL}},
     .n_out = 2, .record = stack_middle, .reference = is_stacked},
    {.op = "part", .name = "of rows", .dtypes = T_FLOATS, .n_in = 3,
     .in = {{.shape = {2, {4, 3}}, .fill = T_SMALL}, {.shape = {2, {2, 3}}, .fill = T_SMALL},
            {.shape = {2, {5, 3}}, .fill = T_SMALL}},
     .n_out = 3, .record = grad_of_concat, .reference = is_grad_of_concat},

    {.op = "split", .name = "uneven", .dtypes = T_MOVES, .n_in = 1, .in = ONE(2, {4, 7}),
     .n_out = 3, .record = split_uneven, .reference = is_split_uneven},
    {.op = "split", .name = "equal", .dtypes = T_WIDE, .n_in = 1, .in = ONE(2, {300, 600}),
     .n_out = 3, .record = split_equal, .reference = is_split_equal, .flags = T_NO_GRAD},
    {.op = "split", .name = "one of them", .dtypes = T_WIDE, .n_in = 1,
     .in = ONE_STATIC(2, {7, 3}), .record = split_one, .reference = is_split_one},
    {.op = "slice", .name = "split into twenty", .dtypes = T_WIDE, .n_in = 1,
     .in = ONE(2, {2, 20}), .n_out = 20, .record = split_many, .reference = is_split_many,
     .flags = T_NO_GRAD},

    {.op = "slice", .name = "inner axes", .dtypes = T_MOVES, .n_in = 1, .in = ONE(3, {3, 4, 5}),
     .record = slice_inner, .reference = is_slice_inner},
    {.op = "slice", .name = "rows are a view", .dtypes = T_MOVES, .n_in = 1,
     .in = ONE_STATIC(3, {4, 2, 3}), .record = slice_rows, .reference = is_slice_rows},
    {.op = "slice", .name = "of a constant", .dtypes = 1 << CH_F32, .n_in = 1,
     .in = ONE(1, {1}), .record = slice_constant, .reference = is_slice_constant,
     .flags = T_NO_GRAD},
    {.op = "slice", .name = "nothing", .dtypes = T_WIDE, .n_in = 1, .in = ONE(2, {3, 4}),
     .record = slice_none, .reference = is_slice_none},
    {.op = "slice", .name = "strides", .dtypes = T_MOVES, .n_in = 1, .in = ONE(3, {3, 6, 8}),
     .record = strided, .reference = is_strided},
    {.op = "slice", .name = "many strides", .dtypes = T_WIDE, .n_in = 1,
     .in = ONE(3, {9000, 6, 8}), .record = strided, .reference = is_strided,
     .flags = T_NO_GRAD},
    {.op = "slice", .name = "backwards", .dtypes = T_WIDE, .n_in = 1, .in = ONE_STATIC(2, {4, 5}),
     .n_out = 2, .record = strided_back, .reference = is_strided_back},

    {.op = "pad", .name = "inner axes", .dtypes = T_MOVES, .n_in = 1, .in = ONE(3, {3, 2, 4}),
     .record = pad_inner, .reference = is_pad_inner},
    {.op = "pad", .name = "many", .dtypes = T_WIDE, .n_in = 1, .in = ONE(3, {500, 40, 9}),
     .record = pad_inner, .reference = is_pad_inner, .flags = T_NO_GRAD},
    {.op = "pad", .name = "all axes", .dtypes = T_MOVES, .n_in = 1,
     .in = ONE_STATIC(3, {3, 2, 4}), .record = pad_rows, .reference = is_pad_rows},
    {.op = "pad", .name = "around nothing", .dtypes = T_WIDE, .n_in = 1,
     .in = ONE_STATIC(3, {3, 0, 4}), .record = pad_rows, .reference = is_pad_rows},
    {.op = "pad", .name = "with nothing", .dtypes = T_WIDE, .n_in = 1, .in = ONE(2, {3, 4}),
     .record = pad_nothing, .reference = is_pad_nothing},

    {.op = "tile", .name = "rows", .dtypes = T_MOVES, .n_in = 1, .in = ONE(3, {3, 2, 4}),
     .record = tile_rows, .reference = is_tile_rows},
    {.op = "tile", .name = "columns", .dtypes = T_MOVES, .n_in = 1, .in = ONE(3, {3, 2, 4}),
     .record = tile_columns, .reference = is_tile_columns},
    {.op = "tile", .name = "many columns", .dtypes = T_WIDE, .n_in = 1,
     .in = ONE(3, {300, 20, 11}), .record = tile_columns, .reference = is_tile_columns,
     .flags = T_NO_GRAD},
    {.op = "tile", .name = "no times", .dtypes = T_WIDE, .n_in = 1, .in = ONE(3, {3, 2, 4}),
     .record = tile_none, .reference = is_tile_none},

    {.op = "reverse", .name = "rows", .dtypes = T_MOVES, .n_in = 1, .in = ONE(2, {5, 3}),
     .record = reverse_rows, .reference = is_reverse_rows},
    {.op = "reverse", .name = "two axes", .dtypes = T_MOVES, .n_in = 1, .in = ONE(3, {3, 2, 4}),
     .record = reverse_two, .reference = is_reverse_two},
    {.op = "reverse", .name = "many", .dtypes = T_WIDE, .n_in = 1, .in = ONE(3, {300, 20, 31}),
     .record = reverse_two, .reference = is_reverse_two, .flags = T_NO_GRAD},

    {.op = "fill", .name = "numbers", .dtypes = T_FLOATS | T_INTS, .n_in = 1,
     .in = ONE(2, {5, 3}), .n_out = 5, .record = fills, .reference = are_filled,
     .flags = T_NO_GRAD},
    {.op = "range", .name = "whole numbers", .dtypes = T_FLOATS | T_INTS, .n_in = 1,
     .in = ONE(2, {5, 3}), .n_out = 4, .record = ranges, .reference = are_ranges,
     .flags = T_NO_GRAD},
    {.op = "range", .name = "fractions", .dtypes = T_FLOATS, .n_in = 1, .in = ONE(1, {1}),
     .record = range_halves, .reference = is_range_halves, .flags = T_NO_GRAD},
    {.op = "eye", .name = "square, wide, empty", .dtypes = T_FLOATS | T_INTS, .n_in = 1,
     .in = ONE(1, {1}), .n_out = 3, .record = eyes, .reference = are_eyes, .flags = T_NO_GRAD},
    {.op = "fill_room", .name = "there and back", .dtypes = T_MOVES, .n_in = 1,
     .in = ONE(2, {5, 3}), .record = without_room, .reference = is_same},
    {.op = "fill_room", .name = "more rows", .dtypes = T_MOVES & ~(1 << CH_BOOL), .n_in = 1,
     .in = ONE(2, {5, 3}), .record = to_eight_rows, .reference = is_eight_rows},
    {.op = "fill_room", .name = "fewer rows", .dtypes = T_WIDE, .n_in = 1,
     .in = ONE(2, {11, 3}), .record = to_eight_rows, .reference = is_eight_rows},
    {0},
};
/* clang-format on */

/* ---- refusals ---- */

static void reshape_wrong(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_reshape(in[0], ch_shape_of(4, 5));
}

static void reshape_twice(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_reshape(in[0], ch_shape_of(-1, 2, -1));
}

static void reshape_ragged(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_reshape(in[0], ch_shape_of(-1, 7));
}

static void reshape_negative(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_reshape(in[0], ch_shape_of(-3, 4));
}

static void reshape_deep(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_reshape(in[0], ch_shape_of(1, 1, 1, 1, 1, 1, 1, 3, 4));
}

static void expand_too_far(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_expand_dims(in[0], 3);
}

static void squeeze_wide(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_squeeze(in[0], 1, (int[]){1});
}

static void transpose_short(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_transpose(in[0], 1, (int[]){0});
}

static void transpose_twice(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_transpose(in[0], 2, (int[]){1, 1});
}

static void transpose_far(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_transpose(in[0], 2, (int[]){0, 5});
}

static void broadcast_wrong(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_broadcast_to(in[0], ch_shape_of(-1, 5));
}

static void broadcast_down(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_broadcast_to(in[0], ch_shape_of(4));
}

static void concat_axis(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_concat(2, in, 2);
}

static void concat_two(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_concat(2, in, 0);
}

static void concat_null(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_concat(2, (ch_node *[]){in[0], NULL}, 0);
}

static void concat_cast(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_concat(2, (ch_node *[]){in[0], ch_fill(s, CH_I8, ch_shape_of(2, 4), 0)}, 0);
}

static void split_short(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *part[2];

    (void)s;
    ch_split(in[0], 1, 2, (int64_t[]){1, 2}, part);
    out[0] = part[0];
}

static void split_thirds(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *part[3];

    (void)s;
    ch_split(in[0], 1, 3, NULL, part);
    out[0] = part[0];
}

static void split_negative(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *part[2];

    (void)s;
    ch_split(in[0], 1, 2, (int64_t[]){-1, 5}, part);
    out[0] = part[0];
}

static void slice_far(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_slice(in[0], 2, (int64_t[]){0, 2}, (int64_t[]){-1, 3});
}

static void slice_deep(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_slice(in[0], 3, (int64_t[]){0, 0, 0}, (int64_t[]){-1, -1, -1});
}

static void stride_zero(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_strided_slice(in[0], 2, (int64_t[]){0, 0}, (int64_t[]){CH_END, 3},
                              (int64_t[]){1, 0});
}

static void pad_negative(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_pad(in[0], 2, (int64_t[]){0, -1}, (int64_t[]){0, 0}, 0);
}

static void pad_short(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_pad(in[0], 1, (int64_t[]){0}, (int64_t[]){0}, 0);
}

static void pad_huge(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_pad(in[0], 2, (int64_t[]){0, INT64_MAX}, (int64_t[]){0, 0}, 0);
}

static void tile_negative(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_tile(in[0], 2, (int64_t[]){1, -2});
}

static void tile_huge(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_tile(in[0], 2, (int64_t[]){1, INT64_MAX / 2});
}

static void reverse_far(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_reverse(in[0], 1, (int[]){2});
}

static void reverse_twice(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_reverse(in[0], 2, (int[]){1, -1});
}

static void fill_negative(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)in;
    out[0] = ch_fill(s, CH_F32, ch_shape_of(2, -1), 0);
}

static void fill_huge(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)in;
    out[0] = ch_fill(s, CH_F32, ch_shape_of(INT64_MAX / 2, 3), 0);
}

static void fill_strings(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)in;
    out[0] = ch_fill(s, CH_STR, ch_shape_of(2), 0);
}

static void range_still(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)in;
    out[0] = ch_range(s, CH_F32, 0, 3, 0);
}

static void range_small(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)in;
    out[0] = ch_range(s, CH_U8, 0, 300, 1);
}

static void range_fraction(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)in;
    out[0] = ch_range(s, CH_I32, 0, 3, 0.5);
}

static void eye_negative(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)in;
    out[0] = ch_eye(s, CH_F32, 2, -1);
}

/* clang-format off */
#define BAD(op_, name_, record_, ...) \
    {.op = op_, .name = name_, .n_in = 1, .in = {{.shape = {2, {3, 4}}}}, .dtype = CH_F32, \
     .record = record_, .code = CH_INVALID_ARGUMENT, .words = {__VA_ARGS__}}
#define BAD_TWO(op_, name_, a, b, record_, ...) \
    {.op = op_, .name = name_, .n_in = 2, .in = {{.shape = a}, {.shape = b}}, .dtype = CH_F32, \
     .record = record_, .code = CH_INVALID_ARGUMENT, .words = {__VA_ARGS__}}
#define SHAPE(...) {__VA_ARGS__}

static const t_refusal refusals[] = {
    BAD("reshape", "other number of elements", reshape_wrong, "reshape(f32(3, 4))", "(4, 5)"),
    BAD("reshape", "two sizes to tell", reshape_twice, "2 sizes are -1"),
    BAD("reshape", "does not divide", reshape_ragged, "do not fit", "(-1, 7)"),
    BAD("reshape", "negative size", reshape_negative, "size -3 of axis 0"),
    BAD("reshape", "rank 9", reshape_deep, "rank -1", "8"),
    BAD("reshape", "expand behind the end", expand_too_far, "expand_dims", "axis 3", "-3 to 2"),
    BAD("reshape", "squeeze what is wide", squeeze_wide, "squeeze", "axis 1 is 4"),
    BAD("transpose", "too few axes", transpose_short, "1 axes, want 2"),
    BAD("transpose", "an axis twice", transpose_twice, "axis 1 is listed twice"),
    BAD("transpose", "no such axis", transpose_far, "axis 5 does not exist"),
    BAD("broadcast_to", "wrong size", broadcast_wrong, "size 4 of axis 1 cannot become 5"),
    BAD("broadcast_to", "fewer axes", broadcast_down, "rank 2"),
    BAD_TWO("concat", "no such axis", SHAPE(2, {3, 4}), SHAPE(2, {3, 4}), concat_axis, "axis 2",
            "-2 to 1"),
    BAD_TWO("concat", "other sizes", SHAPE(2, {3, 4}), SHAPE(2, {3, 5}), concat_two,
            "sizes 4 and 5 of axis 1"),
    BAD_TWO("concat", "other rank", SHAPE(2, {3, 4}), SHAPE(1, {3}), concat_two, "ranks 2 and 1"),
    BAD_TWO("concat", "scalars", SHAPE(0, {0}), SHAPE(0, {0}), concat_two, "scalar"),
    BAD("concat", "NULL", concat_null, "input 1 is NULL"),
    BAD("concat", "other dtype", concat_cast, "f32 and i8"),
    BAD("split", "too few elements", split_short, "3 elements in all", "axis 1 has 4"),
    BAD("split", "no equal parts", split_thirds, "size 4 of axis 1", "3 equal parts"),
    BAD("split", "negative", split_negative, "part 0 has size -1"),
    BAD("slice", "behind the end", slice_far, "3 elements from 2 on", "axis 1 has 4"),
    BAD("slice", "more axes", slice_deep, "3 beginnings, want 2"),
    BAD("slice", "stride of zero", stride_zero, "stride of axis 1 is 0"),
    BAD("pad", "negative", pad_negative, "-1 elements", "slice"),
    BAD("pad", "too few axes", pad_short, "1 sizes before, want 2"),
    BAD("pad", "overflow", pad_huge, "63 bits"),
    BAD("tile", "negative", tile_negative, "axis 1 is repeated -2 times"),
    BAD("tile", "overflow", tile_huge, "axis 1"),
    BAD("reverse", "no such axis", reverse_far, "axis 2", "-2 to 1"),
    BAD("reverse", "an axis twice", reverse_twice, "axis 1 is listed twice"),
    BAD("fill", "negative size", fill_negative, "size -1 of axis 1"),
    BAD("fill", "overflow", fill_huge, "2^48 bytes"),
    BAD("fill", "strings", fill_strings, "string"),
    BAD("range", "no step", range_still, "steps of 0"),
    BAD("range", "too many for u8", range_small, "u8 does not hold 300 numbers"),
    BAD("range", "fractions of integers", range_fraction, "i32 does not hold"),
    BAD("eye", "negative", eye_negative, "size -1 of axis 1"),
    {0},
};
/* clang-format on */

const t_family t_array_ops = {"array", samples, refusals};

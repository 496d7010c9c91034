/* test/ops/samples_index.c -- samples of ops that read, write and add rows by id.
 *
 * The samples cover check_ids, gather, gather_nd, one_hot, table_lookup, scatters, segment sums
 * and embedding bags, with ids that are out of range, repeated or unused.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "graph/step.h"
#include "sample.h"
#include "tensor/tensor.h"

enum {
    T_MOVES = T_FLOATS | T_INTS | 1 << CH_BOOL | 1 << CH_I16 | 1 << CH_U16 | 1 << CH_U32 |
              1 << CH_U64,
    T_ADDS = T_FLOATS | T_INTS
};

/* Returns the elements of a row: all axes but the first. */
static int64_t width_of(ch_shape s)
{
    int64_t n = 1;

    for (int i = 1; i < s.rank; i++)
        n *= s.dim[i];
    return n;
}

/* Returns the dtype of a node, or f32 if recording has failed before. */
static ch_dtype dtype_of(const ch_node *n)
{
    return n != NULL ? ch_node_dtype(n) : CH_F32;
}

/* ---- check_ids ---- */

static void check(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_check_ids(in[0], 9);
}

static void is_same(const t_array *in, t_array *out)
{
    t_out(&out[0], in[0].shape);
    memcpy(out[0].v, in[0].v, (size_t)ch_shape_count(in[0].shape) * sizeof(double));
}

/* ---- gather ---- */

static void gathered(const t_array *x, const t_array *ids, t_array *out, int axis)
{
    ch_shape y = {0};
    int64_t  pre = 1, post = 1, n = ch_shape_count(ids->shape), size = x->shape.dim[axis];

    for (int i = 0; i < axis; i++)
        pre *= y.dim[y.rank++] = x->shape.dim[i];
    for (int i = 0; i < ids->shape.rank; i++)
        y.dim[y.rank++] = ids->shape.dim[i];
    for (int i = axis + 1; i < x->shape.rank; i++)
        post *= y.dim[y.rank++] = x->shape.dim[i];
    t_out(out, y);
    for (int64_t p = 0; p < pre; p++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t q = 0; q < post; q++)
                out->v[(p * n + i) * post + q] =
                    x->v[(p * size + (int64_t)ids->v[i]) * post + q];
}

static void gather_0(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_gather(in[0], in[1], 0);
}

static void is_gather_0(const t_array *in, t_array *out)
{
    gathered(&in[0], &in[1], &out[0], 0);
}

static void gather_1(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_gather(in[0], in[1], 1);
}

static void is_gather_1(const t_array *in, t_array *out)
{
    gathered(&in[0], &in[1], &out[0], 1);
}

static void gather_last(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_gather(in[0], in[1], -1);
}

static void is_gather_last(const t_array *in, t_array *out)
{
    gathered(&in[0], &in[1], &out[0], in[0].shape.rank - 1);
}

/* Two lookups in the same table: their gradients are joined. */
static void gather_twice(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] =
        ch_concat(2, (ch_node *[]){ch_gather(in[0], in[1], 0), ch_gather(in[0], in[2], 0)}, 0);
}

static void is_gather_twice(const t_array *in, t_array *out)
{
    t_array both = {.shape = ch_shape_of(in[1].shape.dim[0] + in[2].shape.dim[0])};

    t_out(&both, both.shape);
    memcpy(both.v, in[1].v, (size_t)in[1].shape.dim[0] * sizeof(double));
    memcpy(both.v + in[1].shape.dim[0], in[2].v, (size_t)in[2].shape.dim[0] * sizeof(double));
    gathered(&in[0], &both, &out[0], 0);
}

/* ---- gather_nd ---- */

static void nd(ch_step *s, ch_node *const *in, ch_node **out)
{
    /* ids (rows, 2, 1) of [0, 3): pairs that fit into (3, 4) */
    ch_node *a =
        ch_squeeze(ch_slice(in[1], 2, (int64_t[]){0, 0}, (int64_t[]){-1, 1}), 1, (int[]){1});
    ch_node *b =
        ch_squeeze(ch_slice(in[1], 2, (int64_t[]){0, 1}, (int64_t[]){-1, 1}), 1, (int[]){1});

    (void)s;
    out[0] = ch_gather_nd(in[0], ch_concat(2, (ch_node *[]){a, b}, 1));
}

static void is_nd(const t_array *in, t_array *out)
{
    int64_t n = in[1].shape.dim[0], post = in[0].shape.dim[2];

    t_out(&out[0], ch_shape_of(n, post));
    for (int64_t i = 0; i < n; i++)
        for (int64_t q = 0; q < post; q++)
            out[0].v[i * post + q] =
                in[0].v[((int64_t)in[1].v[i * 2] * 4 + (int64_t)in[1].v[i * 2 + 1]) * post + q];
}

static void nd_all(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_gather_nd(in[0], in[1]);
}

static void is_nd_all(const t_array *in, t_array *out)
{
    int64_t n = in[1].shape.dim[0], columns = in[0].shape.dim[1];

    t_out(&out[0], ch_shape_of(n));
    for (int64_t i = 0; i < n; i++)
        out[0].v[i] = in[0].v[(int64_t)in[1].v[i * 2] * columns + (int64_t)in[1].v[i * 2 + 1]];
}

/* ---- one_hot ---- */

static void hot(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_one_hot(in[0], 5, 1, 0, dtype_of(in[1]));
    out[1] = ch_one_hot(in[0], 4, 2, 1, dtype_of(in[1])); /* id 4 is out of range */
}

static void are_hot(const t_array *in, t_array *out)
{
    int64_t n = ch_shape_count(in[0].shape);

    for (int k = 0; k < 2; k++) {
        ch_shape y = in[0].shape;
        int64_t  depth = 5 - k;

        y.dim[y.rank++] = depth;
        t_out(&out[k], y);
        for (int64_t i = 0; i < n * depth; i++)
            out[k].v[i] = (i % depth == (int64_t)in[0].v[i / depth] ? 1 : 0) + k;
    }
}

static void hot_wide(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_one_hot(in[0], 700, 1, 0, CH_F32);
}

static void is_hot_wide(const t_array *in, t_array *out)
{
    int64_t n = in[0].shape.dim[0];

    t_out(&out[0], ch_shape_of(n, 700));
    for (int64_t i = 0; i < n; i++)
        out[0].v[i * 700 + (int64_t)in[0].v[i]] = 1;
}

/* ---- table_lookup ---- */

/* Makes a table of keys 0, 3, 6, ... below `limit`. It maps key k to k mod 7, in this dtype,
 * and all other keys to 9. */
static ch_status make_table(int64_t limit, ch_dtype dtype, ch_table **out)
{
    ch_tensor *keys = NULL, *values = NULL;
    ch_status  rc = ch_tensor_new(CH_I64, ch_shape_of((limit + 2) / 3), &keys);

    if (rc == CH_OK)
        rc = ch_tensor_new(dtype, ch_shape_of((limit + 2) / 3), &values);
    for (int64_t i = 0; rc == CH_OK && i < (limit + 2) / 3; i++) {
        ((int64_t *)ch_tensor_data_mut(keys))[i] = 3 * i;
        ch__store(dtype, (char *)ch_tensor_data_mut(values) + (size_t)i * ch_dtype_bytes(dtype),
                  (double)(3 * i % 7));
    }
    if (rc == CH_OK)
        rc = ch_table_new(keys, values, 9, out);
    ch_tensor_unref(keys);
    ch_tensor_unref(values);
    return rc;
}

/* The step keeps a reference to the table. */
static void look_up(ch_step *s, ch_node *keys, int64_t limit, ch_dtype dtype, ch_node **out)
{
    ch_table *t = NULL;
    ch_status rc = make_table(limit, dtype, &t);

    if (rc != CH_OK)
        ch__step_record_error(s, rc, NULL);
    else
        out[0] = ch_table_lookup(t, keys);
    ch_table_unref(t);
}

static void look_up_few(ch_step *s, ch_node *const *in, ch_node **out)
{
    look_up(s, in[0], 10, dtype_of(in[1]), out);
}

static void look_up_many(ch_step *s, ch_node *const *in, ch_node **out)
{
    look_up(s, in[0], 20000, CH_F32, out);
}

static void are_looked_up(const t_array *in, t_array *out)
{
    t_out(&out[0], in[0].shape);
    for (int64_t i = 0; i < ch_shape_count(in[0].shape); i++) {
        int64_t key = (int64_t)in[0].v[i];

        out[0].v[i] = key % 3 == 0 ? (double)(key % 7) : 9;
    }
}

/* ---- scatter ---- */

static void scatter_add(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_scatter_add(in[0], in[1], in[2]);
}

static void is_scatter_add(const t_array *in, t_array *out)
{
    int64_t width = width_of(in[0].shape);

    is_same(in, out);
    for (int64_t i = 0; i < in[1].shape.dim[0]; i++)
        for (int64_t k = 0; k < width; k++)
            out[0].v[(int64_t)in[1].v[i] * width + k] += in[2].v[i * width + k];
}

/* Replaces row ids[i] of x by f of it and rows[i], for each i in order. */
static void folded(const t_array *in, t_array *out, double (*f)(double, double))
{
    int64_t width = width_of(in[0].shape);

    is_same(in, out);
    for (int64_t i = 0; i < in[1].shape.dim[0]; i++)
        for (int64_t k = 0; k < width; k++) {
            double *x = &out[0].v[(int64_t)in[1].v[i] * width + k];

            *x = f(*x, in[2].v[i * width + k]);
        }
}

static double minus(double a, double b)
{
    return a - b;
}

static double times(double a, double b)
{
    return a * b;
}

static double over(double a, double b)
{
    return a / b;
}

static double whole_over(double a, double b)
{
    return b == 0 ? 0 : trunc(a / b);
}

static double smaller(double a, double b)
{
    return isnan(a) || isnan(b) ? NAN : a < b ? a : b;
}

static double larger(double a, double b)
{
    return isnan(a) || isnan(b) ? NAN : a > b ? a : b;
}

static void scatter_sub(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_scatter_sub(in[0], in[1], in[2]);
}

static void is_scatter_sub(const t_array *in, t_array *out)
{
    folded(in, out, minus);
}

/* Subtracts from large numbers, so that no result is negative: a u8 would wrap around. */
static void scatter_sub_40(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_scatter_sub(ch_add(in[0], ch_number(s, 40)), in[1], in[2]);
}

static void is_scatter_sub_40(const t_array *in, t_array *out)
{
    folded(in, out, minus);
    for (int64_t k = 0; k < ch_shape_count(out[0].shape); k++)
        out[0].v[k] += 40;
}

static void scatter_mul(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_scatter_mul(in[0], in[1], in[2]);
}

static void is_scatter_mul(const t_array *in, t_array *out)
{
    folded(in, out, times);
}

static void scatter_div(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_scatter_div(in[0], in[1], in[2]);
}

static void is_scatter_div(const t_array *in, t_array *out)
{
    folded(in, out, over);
}

static void scatter_min(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_scatter_min(in[0], in[1], in[2]);
}

static void is_scatter_min(const t_array *in, t_array *out)
{
    folded(in, out, smaller);
}

static void scatter_max(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_scatter_max(in[0], in[1], in[2]);
}

static void is_scatter_max(const t_array *in, t_array *out)
{
    folded(in, out, larger);
}

static void is_scatter_whole(const t_array *in, t_array *out)
{
    folded(in, out, whole_over);
}

/* NaN, the logarithm of negative numbers, on either side and on both. */
static void scatter_odd(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *x = ch_log(in[0]), *rows = ch_log(in[2]);

    (void)s;
    out[0] = ch_scatter_min(x, in[1], rows);
    out[1] = ch_scatter_max(x, in[1], rows);
}

static void are_odd(const t_array *in, t_array *out)
{
    t_array y[3];

    for (int i = 0; i < 3; i++)
        is_same(&in[i], &y[i]);
    for (int i = 0; i < 3; i += 2)
        for (int64_t k = 0; k < ch_shape_count(y[i].shape); k++)
            y[i].v[k] = log(y[i].v[k]);
    folded(y, &out[0], smaller);
    folded(y, &out[1], larger);
}

static void scatter_update(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_scatter_update(in[0], in[1], in[2]);
}

static void is_scatter_update(const t_array *in, t_array *out)
{
    int64_t width = width_of(in[0].shape);

    is_same(in, out);
    for (int64_t i = 0; i < in[1].shape.dim[0]; i++)
        for (int64_t k = 0; k < width; k++)
            out[0].v[(int64_t)in[1].v[i] * width + k] = in[2].v[i * width + k];
}

/* If several rows are written to the same id, only the last has a gradient. */
static void grad_of_update(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *y = ch_scatter_update(in[0], in[1], in[2]);

    (void)s;
    ch_gradients(y, in[0], 1, &in[2], out);
}

static void is_grad_of_update(const t_array *in, t_array *out)
{
    int64_t width = width_of(in[0].shape), n = in[1].shape.dim[0];

    t_out(&out[0], in[2].shape);
    for (int64_t i = 0; i < n; i++) {
        bool last = true;

        for (int64_t j = i + 1; j < n; j++)
            last = last && in[1].v[j] != in[1].v[i];
        for (int64_t k = 0; k < width && last; k++)
            out[0].v[i * width + k] = in[0].v[(int64_t)in[1].v[i] * width + k];
    }
}

/* ---- sparse_rows, segment_sum ---- */

static void summed(const t_array *rows, const t_array *ids, t_array *out, int64_t n_rows)
{
    int64_t  width = width_of(rows->shape);
    ch_shape y = rows->shape;

    y.dim[0] = n_rows;
    t_out(out, y);
    for (int64_t i = 0; i < ids->shape.dim[0]; i++)
        for (int64_t k = 0; k < width; k++)
            out->v[(int64_t)ids->v[i] * width + k] += rows->v[i * width + k];
}

static void sparse(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_sparse_rows(in[1], in[0], 7);
}

static void segments(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_segment_sum(in[0], in[1], 7);
}

static void is_summed_7(const t_array *in, t_array *out)
{
    summed(&in[0], &in[1], &out[0], 7);
}

static void segments_many(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_segment_sum(in[0], in[1], 1000);
}

static void is_summed_1000(const t_array *in, t_array *out)
{
    summed(&in[0], &in[1], &out[0], 1000);
}

/* ---- embedding_bag ---- */

/* Computes bags of table rows. Splits, weights and ids may have unused elements at their
 * ends. */
static void bagged(const t_array *table, const t_array *ids, const t_array *splits,
                   const t_array *weights, bool mean, t_array *out)
{
    int64_t  width = width_of(table->shape), n_splits = splits->shape.dim[0];
    ch_shape y = table->shape;

    y.dim[0] = n_splits > 0 ? n_splits - 1 : 0;
    t_out(out, y);
    for (int64_t r = 0; r < y.dim[0]; r++) {
        double all = 0;

        for (int64_t i = (int64_t)splits->v[r]; i < (int64_t)splits->v[r + 1]; i++) {
            double w = weights != NULL ? weights->v[i] : 1;

            all += w;
            for (int64_t k = 0; k < width; k++)
                out->v[r * width + k] += w * table->v[(int64_t)ids->v[i] * width + k];
        }
        for (int64_t k = 0; k < width && mean && all != 0; k++)
            out->v[r * width + k] /= all;
    }
}

static void bag_sum(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_embedding_bag(in[0], in[1], in[2], NULL);
}

static void is_bag_sum(const t_array *in, t_array *out)
{
    bagged(&in[0], &in[1], &in[2], NULL, false, &out[0]);
}

static void bag_mean(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] =
        ch_embedding_bag(in[0], in[1], in[2], &(ch_bag_options){.combiner = CH_COMBINE_MEAN});
}

static void is_bag_mean(const t_array *in, t_array *out)
{
    bagged(&in[0], &in[1], &in[2], NULL, true, &out[0]);
}

static void bag_weighted(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_embedding_bag(in[0], in[1], in[2], &(ch_bag_options){.weights = in[3]});
}

static void is_bag_weighted(const t_array *in, t_array *out)
{
    bagged(&in[0], &in[1], &in[2], &in[3], false, &out[0]);
}

static void bag_weighted_mean(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_embedding_bag(in[0], in[1], in[2],
                              &(ch_bag_options){.weights = in[3], .combiner = CH_COMBINE_MEAN});
}

static void is_bag_weighted_mean(const t_array *in, t_array *out)
{
    bagged(&in[0], &in[1], &in[2], &in[3], true, &out[0]);
}

/* The number of bags is the symbol of another input, so the result can be joined with that
 * input. */
static void bag_beside(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *bag;

    (void)s;
    bag = ch_embedding_bag(in[0], in[1], in[2], &(ch_bag_options){.like = in[3]});
    out[0] = ch_concat(2, (ch_node *[]){bag, in[3]}, 1);
}

static void is_bag_beside(const t_array *in, t_array *out)
{
    t_array bag;
    int64_t n = in[3].shape.dim[0], a = in[0].shape.dim[1], b = in[3].shape.dim[1];

    bagged(&in[0], &in[1], &in[2], NULL, false, &bag);
    t_out(&out[0], ch_shape_of(n, a + b));
    for (int64_t i = 0; i < n; i++) {
        memcpy(out[0].v + i * (a + b), bag.v + i * a, (size_t)a * sizeof(double));
        memcpy(out[0].v + i * (a + b) + a, in[3].v + i * b, (size_t)b * sizeof(double));
    }
}

/* Weighted outputs, so that the parts of the gradient differ. */
static void grad_of_bag(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *y =
        ch_embedding_bag(in[0], in[1], in[2], &(ch_bag_options){.combiner = CH_COMBINE_MEAN});

    (void)s;
    ch_gradients(y, y, 1, &in[0], out);
}

static void is_grad_of_bag(const t_array *in, t_array *out)
{
    t_array y;
    int64_t width = width_of(in[0].shape);

    bagged(&in[0], &in[1], &in[2], NULL, true, &y);
    t_out(&out[0], in[0].shape);
    for (int64_t r = 0; r < y.shape.dim[0]; r++) {
        int64_t first = (int64_t)in[2].v[r], last = (int64_t)in[2].v[r + 1];

        for (int64_t i = first; i < last; i++)
            for (int64_t k = 0; k < width; k++)
                out[0].v[(int64_t)in[1].v[i] * width + k] +=
                    y.v[r * width + k] / (double)(last - first);
    }
}

/* The gradients with respect to the table and to the weights. */
static void grad_of_weighted_bag(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *y = ch_embedding_bag(in[0], in[1], in[2], &(ch_bag_options){.weights = in[3]});

    (void)s;
    ch_gradients(y, y, 2, ((ch_node *[]){in[0], in[3]}), out);
}

static void is_grad_of_weighted_bag(const t_array *in, t_array *out)
{
    t_array y;
    int64_t width = width_of(in[0].shape);

    bagged(&in[0], &in[1], &in[2], &in[3], false, &y);
    t_out(&out[0], in[0].shape);
    t_out(&out[1], in[3].shape);
    for (int64_t r = 0; r < y.shape.dim[0]; r++)
        for (int64_t i = (int64_t)in[2].v[r]; i < (int64_t)in[2].v[r + 1]; i++)
            for (int64_t k = 0; k < width; k++) {
                int64_t at = (int64_t)in[1].v[i] * width + k;

                out[0].v[at] += y.v[r * width + k] * in[3].v[i];
                out[1].v[i] += y.v[r * width + k] * in[0].v[at];
            }
}

/* clang-format off */
#define IDS(limit_, ...) {.shape = {__VA_ARGS__}, .fill = T_IDS, .limit = limit_, .is_ids = true}
#define SORTED(limit_, ...) \
    {.shape = {__VA_ARGS__}, .fill = T_SORTED, .limit = limit_, .is_ids = true}
#define SPLITS(limit_, ...) \
    {.shape = {__VA_ARGS__}, .fill = T_SPLITS, .limit = limit_, .is_ids = true}
#define SMALL(...) {.shape = {__VA_ARGS__}, .fill = T_SMALL}
#define DIGITS(limit_, ...) \
    {.shape = {__VA_ARGS__}, .fill = T_IDS, .limit = limit_}
#define TABLE(...) {.shape = {__VA_ARGS__}, .fill = T_SMALL, .is_static = true}
#define UNITS(...) {.shape = {__VA_ARGS__}, .fill = T_UNIT, .is_static = true}
#define UNIT(...) {.shape = {__VA_ARGS__}, .fill = T_UNIT}

static const t_sample samples[] = {
    {.op = "check_ids", .name = "good ones", .dtypes = 1 << CH_F32, .n_in = 1,
     .in = {IDS(9, 2, {5, 3})}, .record = check, .reference = is_same, .flags = T_NO_GRAD},

    {.op = "gather", .name = "rows", .dtypes = T_MOVES, .n_in = 2,
     .in = {TABLE(2, {7, 3}), IDS(7, 1, {11})}, .record = gather_0, .reference = is_gather_0},
    {.op = "gather", .name = "rows of rows", .dtypes = T_MOVES, .n_in = 2,
     .in = {SMALL(2, {7, 3}), IDS(7, 1, {7})}, .record = gather_0, .reference = is_gather_0},
    {.op = "gather", .name = "by a table of ids", .dtypes = T_WIDE, .n_in = 2,
     .in = {TABLE(3, {5, 2, 3}), IDS(5, 2, {4, 2})}, .record = gather_0,
     .reference = is_gather_0},
    {.op = "gather", .name = "by one id", .dtypes = T_WIDE, .n_in = 2,
     .in = {TABLE(2, {5, 3}), IDS(5, 0, {0})}, .record = gather_0, .reference = is_gather_0},
    {.op = "gather", .name = "elements", .dtypes = T_MOVES, .n_in = 2,
     .in = {TABLE(1, {9}), IDS(9, 1, {20})}, .record = gather_0, .reference = is_gather_0},
    {.op = "gather", .name = "many wide rows", .dtypes = T_WIDE, .n_in = 2,
     .in = {TABLE(2, {1000, 65}), IDS(1000, 1, {3000})}, .record = gather_0,
     .reference = is_gather_0, .flags = T_NO_GRAD},
    {.op = "gather", .name = "middle axis", .dtypes = T_MOVES, .n_in = 2,
     .in = {SMALL(3, {3, 4, 2}), {.shape = {1, {5}}, .fill = T_IDS, .limit = 4, .is_ids = true,
                                  .is_static = true}},
     .record = gather_1, .reference = is_gather_1},
    {.op = "gather", .name = "last axis", .dtypes = T_WIDE, .n_in = 2,
     .in = {SMALL(2, {3, 4}), {.shape = {2, {2, 3}}, .fill = T_IDS, .limit = 4, .is_ids = true,
                               .is_static = true}},
     .record = gather_last, .reference = is_gather_last},
    {.op = "gather", .name = "empty rows", .dtypes = T_WIDE, .n_in = 2,
     .in = {TABLE(2, {5, 0}), IDS(5, 1, {4})}, .record = gather_0, .reference = is_gather_0},
    {.op = "gather", .name = "twice from one table", .dtypes = T_WIDE, .n_in = 3,
     .in = {TABLE(2, {5, 3}), IDS(5, 1, {4}), IDS(5, 1, {6})}, .record = gather_twice,
     .reference = is_gather_twice},
    {.op = "flat_ids", .name = "rows at pairs", .dtypes = T_MOVES, .n_in = 2,
     .in = {TABLE(3, {3, 4, 2}), IDS(3, 3, {5, 2, 1})}, .record = nd, .reference = is_nd},
    {.op = "flat_ids", .name = "elements at pairs", .dtypes = T_WIDE, .n_in = 2,
     .in = {TABLE(2, {3, 4}), IDS(3, 2, {5, 2})}, .record = nd_all, .reference = is_nd_all},
    {.op = "one_hot", .name = "of a table of ids", .dtypes = T_FLOATS | T_INTS, .n_in = 2,
     .in = {IDS(5, 2, {4, 3}), TABLE(1, {1})}, .n_out = 2, .record = hot, .reference = are_hot,
     .flags = T_NO_GRAD},
    {.op = "one_hot", .name = "deep", .dtypes = 1 << CH_F32, .n_in = 1,
     .in = {IDS(700, 1, {400})}, .record = hot_wide, .reference = is_hot_wide,
     .flags = T_NO_GRAD},

    {.op = "table_lookup", .name = "a few keys", .dtypes = T_MOVES & ~(1 << CH_BOOL), .n_in = 2,
     .in = {IDS(10, 2, {4, 3}), TABLE(1, {1})}, .record = look_up_few,
     .reference = are_looked_up, .flags = T_NO_GRAD},
    {.op = "table_lookup", .name = "very many, on several threads", .dtypes = 1 << CH_F32,
     .n_in = 1, .in = {IDS(20000, 1, {30000})}, .record = look_up_many,
     .reference = are_looked_up, .flags = T_NO_GRAD},

    {.op = "scatter_add", .name = "duplicates add up", .dtypes = T_ADDS, .n_in = 3,
     .in = {TABLE(2, {4, 3}), IDS(4, 1, {9}), SMALL(2, {9, 3})}, .record = scatter_add,
     .reference = is_scatter_add},
    {.op = "scatter_add", .name = "elements", .dtypes = T_WIDE, .n_in = 3,
     .in = {TABLE(1, {6}), IDS(6, 1, {9}), SMALL(1, {9})}, .record = scatter_add,
     .reference = is_scatter_add},
    {.op = "scatter_add", .name = "into rows", .dtypes = T_WIDE, .n_in = 3,
     .in = {SMALL(2, {5, 2}), IDS(5, 1, {5}), SMALL(2, {5, 2})}, .record = scatter_add,
     .reference = is_scatter_add},
    {.op = "scatter_add", .name = "many, on several threads", .dtypes = T_WIDE, .n_in = 3,
     .in = {UNITS(2, {50, 64}), IDS(50, 1, {3000}), {.shape = {2, {3000, 64}}}},
     .record = scatter_add, .reference = is_scatter_add, .flags = T_NO_GRAD,
     .tolerance = 1e-4},
    {.op = "scatter_add", .name = "very many ids", .dtypes = T_WIDE, .n_in = 3,
     .in = {UNITS(2, {300, 9}), IDS(300, 1, {20000}), {.shape = {2, {20000, 9}}}},
     .record = scatter_add, .reference = is_scatter_add, .flags = T_NO_GRAD,
     .tolerance = 1e-4},
    {.op = "scatter_add", .name = "duplicates are taken away", .dtypes = T_ADDS, .n_in = 3,
     .in = {TABLE(2, {4, 3}), IDS(4, 1, {9}), SMALL(2, {9, 3})}, .record = scatter_sub_40,
     .reference = is_scatter_sub_40},
    {.op = "scatter_add", .name = "wide rows taken away", .dtypes = T_FLOATS, .n_in = 3,
     .in = {TABLE(2, {3, 700}), IDS(3, 1, {5}), SMALL(2, {5, 700})},
     .record = scatter_sub, .reference = is_scatter_sub, .flags = T_NO_GRAD},
    {.op = "scatter_add", .name = "many taken away, on several threads", .dtypes = T_WIDE,
     .n_in = 3,
     .in = {UNITS(2, {50, 64}), IDS(50, 1, {3000}), {.shape = {2, {3000, 64}}}},
     .record = scatter_sub, .reference = is_scatter_sub, .flags = T_NO_GRAD,
     .tolerance = 1e-4},
    {.op = "scatter_fold", .name = "duplicates multiply", .dtypes = T_FLOATS, .n_in = 3,
     .in = {TABLE(2, {4, 3}), IDS(4, 1, {9}), SMALL(2, {9, 3})},
     .record = scatter_mul, .reference = is_scatter_mul, .flags = T_NO_GRAD},
    {.op = "scatter_fold", .name = "whole numbers multiply", .dtypes = T_INTS, .n_in = 3,
     .in = {TABLE(2, {4, 3}), IDS(4, 1, {5}), DIGITS(3, 2, {5, 3})},
     .record = scatter_mul, .reference = is_scatter_mul, .flags = T_NO_GRAD},
    {.op = "scatter_fold", .name = "elements multiply", .dtypes = T_WIDE, .n_in = 3,
     .in = {TABLE(1, {6}), IDS(6, 1, {9}), SMALL(1, {9})},
     .record = scatter_mul, .reference = is_scatter_mul, .flags = T_NO_GRAD},
    {.op = "scatter_fold", .name = "into rows", .dtypes = T_WIDE, .n_in = 3,
     .in = {SMALL(2, {5, 2}), IDS(5, 1, {5}), SMALL(2, {5, 2})},
     .record = scatter_mul, .reference = is_scatter_mul, .flags = T_NO_GRAD},
    {.op = "scatter_fold", .name = "wide rows multiply", .dtypes = T_FLOATS, .n_in = 3,
     .in = {TABLE(2, {3, 700}), IDS(3, 1, {5}), SMALL(2, {5, 700})},
     .record = scatter_mul, .reference = is_scatter_mul, .flags = T_NO_GRAD},
    {.op = "scatter_fold", .name = "many multiply, on several threads", .dtypes = T_WIDE,
     .n_in = 3,
     .in = {UNITS(2, {50, 64}), IDS(50, 1, {3000}),
            {.shape = {2, {3000, 64}}, .fill = T_POSITIVE}},
     .record = scatter_mul, .reference = is_scatter_mul, .flags = T_NO_GRAD, .tolerance = 1e-4},
    {.op = "scatter_fold", .name = "duplicates divide", .dtypes = T_FLOATS, .n_in = 3,
     .in = {TABLE(2, {4, 3}), IDS(4, 1, {9}), SMALL(2, {9, 3})},
     .record = scatter_div, .reference = is_scatter_div, .flags = T_NO_GRAD},
    {.op = "scatter_fold", .name = "whole numbers divide, also by 0", .dtypes = T_INTS,
     .n_in = 3,
     .in = {DIGITS(120, 2, {4, 50}), IDS(4, 1, {4}), DIGITS(4, 2, {4, 50})},
     .record = scatter_div, .reference = is_scatter_whole, .flags = T_NO_GRAD},
    {.op = "scatter_fold", .name = "negative numbers divide", .dtypes = T_INTS, .n_in = 3,
     .in = {TABLE(2, {4, 50}), IDS(4, 1, {6}), SMALL(2, {6, 50})},
     .record = scatter_div, .reference = is_scatter_whole, .flags = T_NO_GRAD},
    {.op = "scatter_fold", .name = "many divide, on several threads", .dtypes = T_WIDE,
     .n_in = 3,
     .in = {UNITS(2, {50, 64}), IDS(50, 1, {3000}),
            {.shape = {2, {3000, 64}}, .fill = T_POSITIVE}},
     .record = scatter_div, .reference = is_scatter_div, .flags = T_NO_GRAD, .tolerance = 1e-4},
    {.op = "scatter_fold", .name = "the smallest wins", .dtypes = T_ADDS, .n_in = 3,
     .in = {TABLE(2, {4, 3}), IDS(4, 1, {9}), SMALL(2, {9, 3})},
     .record = scatter_min, .reference = is_scatter_min, .flags = T_NO_GRAD},
    {.op = "scatter_fold", .name = "the smallest of wide rows", .dtypes = T_ADDS, .n_in = 3,
     .in = {TABLE(2, {3, 700}), IDS(3, 1, {5}), SMALL(2, {5, 700})},
     .record = scatter_min, .reference = is_scatter_min, .flags = T_NO_GRAD},
    {.op = "scatter_fold", .name = "the smallest of very many", .dtypes = T_WIDE, .n_in = 3,
     .in = {UNITS(2, {300, 9}), IDS(300, 1, {20000}), {.shape = {2, {20000, 9}}}},
     .record = scatter_min, .reference = is_scatter_min, .flags = T_NO_GRAD},
    {.op = "scatter_fold", .name = "the largest wins", .dtypes = T_ADDS, .n_in = 3,
     .in = {TABLE(2, {4, 3}), IDS(4, 1, {9}), SMALL(2, {9, 3})},
     .record = scatter_max, .reference = is_scatter_max, .flags = T_NO_GRAD},
    {.op = "scatter_fold", .name = "the largest of wide rows", .dtypes = T_ADDS, .n_in = 3,
     .in = {TABLE(2, {3, 700}), IDS(3, 1, {5}), SMALL(2, {5, 700})},
     .record = scatter_max, .reference = is_scatter_max, .flags = T_NO_GRAD},
    {.op = "scatter_fold", .name = "the largest of very many", .dtypes = T_WIDE, .n_in = 3,
     .in = {UNITS(2, {300, 9}), IDS(300, 1, {20000}), {.shape = {2, {20000, 9}}}},
     .record = scatter_max, .reference = is_scatter_max, .flags = T_NO_GRAD},
    {.op = "scatter_fold", .name = "NaN wins", .dtypes = T_FLOATS, .n_in = 3,
     .in = {TABLE(2, {4, 3}), IDS(4, 1, {9}), SMALL(2, {9, 3})},
     .record = scatter_odd, .reference = are_odd, .flags = T_NO_GRAD, .n_out = 2},
    {.op = "scatter_fold", .name = "no ids", .dtypes = T_ADDS, .n_in = 3,
     .in = {TABLE(2, {4, 3}), IDS(4, 1, {0}), SMALL(2, {0, 3})},
     .record = scatter_mul, .reference = is_scatter_mul, .flags = T_NO_GRAD},
    {.op = "scatter_fold", .name = "no rows", .dtypes = T_WIDE, .n_in = 3,
     .in = {TABLE(2, {0, 3}), IDS(1, 1, {0}), SMALL(2, {0, 3})},
     .record = scatter_min, .reference = is_scatter_min, .flags = T_NO_GRAD},
    {.op = "scatter_fold", .name = "empty rows", .dtypes = T_WIDE, .n_in = 3,
     .in = {TABLE(2, {5, 0}), IDS(5, 1, {4}), SMALL(2, {4, 0})},
     .record = scatter_max, .reference = is_scatter_max, .flags = T_NO_GRAD},
    {.op = "scatter_update", .name = "the last wins", .dtypes = T_MOVES, .n_in = 3,
     .in = {TABLE(2, {4, 3}), IDS(4, 1, {6}), SMALL(2, {6, 3})}, .record = scatter_update,
     .reference = is_scatter_update},
    {.op = "scatter_update", .name = "many, on several threads", .dtypes = T_WIDE, .n_in = 3,
     .in = {TABLE(2, {50, 64}), IDS(50, 1, {3000}), SMALL(2, {3000, 64})},
     .record = scatter_update, .reference = is_scatter_update, .flags = T_NO_GRAD},
    {.op = "scatter_update", .name = "very many ids", .dtypes = T_WIDE, .n_in = 3,
     .in = {TABLE(2, {300, 9}), IDS(300, 1, {20000}), SMALL(2, {20000, 9})},
     .record = scatter_update, .reference = is_scatter_update, .flags = T_NO_GRAD},
    {.op = "last_ids", .name = "gradient of what was put", .dtypes = T_FLOATS, .n_in = 3,
     .in = {TABLE(2, {4, 3}), IDS(4, 1, {6}), SMALL(2, {6, 3})}, .record = grad_of_update,
     .reference = is_grad_of_update},

    {.op = "sparse_rows", .name = "duplicates add up", .dtypes = T_ADDS, .n_in = 2,
     .in = {SMALL(2, {9, 3}), IDS(7, 1, {9})}, .record = sparse, .reference = is_summed_7},
    {.op = "sparse_rows", .name = "sorted segments", .dtypes = T_ADDS, .n_in = 2,
     .in = {SMALL(3, {9, 2, 2}), SORTED(7, 1, {9})}, .record = segments,
     .reference = is_summed_7},
    {.op = "sparse_rows", .name = "elements", .dtypes = T_WIDE, .n_in = 2,
     .in = {SMALL(1, {9}), IDS(7, 1, {9})}, .record = segments, .reference = is_summed_7},
    {.op = "sparse_rows", .name = "many, on several threads", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {2, {2500, 80}}}, IDS(1000, 1, {2500})}, .record = segments_many,
     .reference = is_summed_1000, .flags = T_NO_GRAD, .tolerance = 1e-4},

    {.op = "embedding_bag", .name = "sum", .dtypes = T_FLOATS, .n_in = 3,
     .in = {TABLE(2, {5, 3}), IDS(5, 1, {9}), SPLITS(9, 1, {6})}, .record = bag_sum,
     .reference = is_bag_sum},
    {.op = "embedding_bag", .name = "mean", .dtypes = T_FLOATS, .n_in = 3,
     .in = {TABLE(2, {5, 3}), IDS(5, 1, {9}), SPLITS(9, 1, {6})}, .record = bag_mean,
     .reference = is_bag_mean},
    {.op = "embedding_bag", .name = "weighted", .dtypes = T_FLOATS, .n_in = 4,
     .in = {TABLE(2, {5, 3}), IDS(5, 1, {9}), SPLITS(9, 1, {6}), SMALL(1, {9})},
     .record = bag_weighted, .reference = is_bag_weighted},
    {.op = "embedding_bag", .name = "weighted mean", .dtypes = T_FLOATS, .n_in = 4,
     .in = {TABLE(2, {5, 3}), IDS(5, 1, {9}), SPLITS(9, 1, {6}),
            {.shape = {1, {9}}, .fill = T_POSITIVE}},
     .record = bag_weighted_mean, .reference = is_bag_weighted_mean, .tolerance = 4e-5},
    {.op = "embedding_bag", .name = "rows with a name", .dtypes = T_WIDE, .n_in = 4,
     .in = {TABLE(2, {5, 3}), IDS(5, 1, {9}), {.shape = {1, {6}}, .fill = T_SPLITS, .limit = 9,
            .is_ids = true, .is_static = true}, {.shape = {2, {5, 2}}, .fill = T_SMALL,
            .is_static = true}},
     .record = bag_beside, .reference = is_bag_beside},
    {.op = "embedding_bag", .name = "many, on several threads", .dtypes = T_FLOATS, .n_in = 3,
     .in = {UNITS(2, {500, 48}), IDS(500, 1, {3000}), SPLITS(3000, 1, {700})},
     .record = bag_mean, .reference = is_bag_mean, .flags = T_NO_GRAD, .tolerance = 4e-5},
    {.op = "bag_entries", .name = "gradient of a mean", .dtypes = T_WIDE, .n_in = 3,
     .in = {TABLE(2, {5, 3}), IDS(5, 1, {9}), SPLITS(9, 1, {6})}, .record = grad_of_bag,
     .reference = is_grad_of_bag},
    {.op = "bag_entries", .name = "gradient of a mean, many", .dtypes = T_FLOATS, .n_in = 3,
     .in = {TABLE(2, {500, 48}), IDS(500, 1, {3000}), SPLITS(2900, 1, {700})},
     .record = grad_of_bag, .reference = is_grad_of_bag, .flags = T_NO_GRAD,
     .tolerance = 4e-5},
    {.op = "bag_live", .name = "gradient of weighted bags", .dtypes = T_WIDE, .n_in = 4,
     .in = {TABLE(2, {5, 3}), IDS(5, 1, {9}), SPLITS(8, 1, {6}), SMALL(1, {9})},
     .record = grad_of_weighted_bag, .n_out = 2, .reference = is_grad_of_weighted_bag},
    {.op = "bag_fill", .name = "gradient of weighted bags", .dtypes = T_WIDE, .n_in = 4,
     .in = {TABLE(2, {5, 3}), IDS(5, 1, {9}), SPLITS(8, 1, {6}), SMALL(1, {9})},
     .record = grad_of_weighted_bag, .n_out = 2, .reference = is_grad_of_weighted_bag},
    {.op = "bag_fill", .name = "gradient of weighted bags, many", .dtypes = T_FLOATS, .n_in = 4,
     .in = {TABLE(2, {500, 48}), IDS(500, 1, {3000}), SPLITS(2900, 1, {700}), UNIT(1, {3000})},
     .record = grad_of_weighted_bag, .n_out = 2, .reference = is_grad_of_weighted_bag,
     .flags = T_NO_GRAD, .tolerance = 4e-4},
    {0},
};
/* clang-format on */

/* ---- refusals ---- */

static void check_5(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)in;
    out[0] = ch_check_ids(ch_range(s, CH_I32, 2, 8, 1), 5);
}

static void gather_range(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_gather(in[0], ch_range(s, CH_I64, 4, -4, -2), 0);
}

static void gather_range_1(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_gather(in[0], ch_range(s, CH_I32, 1, 9, 2), 1);
}

static void gather_floats(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_gather(in[0], in[0], 0);
}

static void gather_axis_2(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_gather(in[0], ch_range(s, CH_I64, 0, 2, 1), 2);
}

static void nd_deep(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_gather_nd(in[0], ch_fill(s, CH_I64, ch_shape_of(2, 3), 0));
}

static void nd_far(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_gather_nd(in[0], ch_fill(s, CH_I64, ch_shape_of(2, 2), 3));
}

static void hot_negative(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)in;
    out[0] = ch_one_hot(ch_range(s, CH_I64, 0, 2, 1), -1, 1, 0, CH_F32);
}

static void look_up_floats(ch_step *s, ch_node *const *in, ch_node **out)
{
    look_up(s, in[0], 3, CH_I64, out);
}

static void look_up_nowhere(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)in;
    out[0] = ch_table_lookup(NULL, ch_range(s, CH_I64, 0, 2, 1));
}

static void scatter_far(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_scatter_add(in[0], ch_range(s, CH_I64, 1, 4, 1), in[0]);
}

static void scatter_sub_far(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_scatter_sub(in[0], ch_range(s, CH_I32, -1, 2, 1), in[0]);
}

static void scatter_mul_far(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_scatter_mul(in[0], ch_range(s, CH_I32, 1, 4, 1), in[0]);
}

static void scatter_min_uneven(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_scatter_min(in[0], ch_range(s, CH_I64, 0, 2, 1), in[0]);
}

static void scatter_max_bools(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *x = ch_fill(s, CH_BOOL, ch_shape_of(2), 0);

    (void)in;
    out[0] = ch_scatter_max(x, ch_range(s, CH_I64, 0, 2, 1), x);
}

static void scatter_div_gradient(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *y = ch_scatter_div(in[0], ch_range(s, CH_I64, 0, 3, 1), in[0]);

    ch_gradients(y, y, 1, &in[0], out);
}

static void scatter_uneven(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_scatter_update(in[0], ch_range(s, CH_I64, 0, 2, 1), in[0]);
}

static void scatter_narrow(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_scatter_add(in[0], ch_range(s, CH_I64, 0, 2, 1),
                            ch_fill(s, CH_F32, ch_shape_of(2, 3), 0));
}

static void scatter_cast(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_scatter_add(in[0], ch_range(s, CH_I64, 0, 2, 1),
                            ch_fill(s, CH_F64, ch_shape_of(2, 4), 0));
}

static void scatter_bools(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *x = ch_fill(s, CH_BOOL, ch_shape_of(2), 0);

    (void)in;
    out[0] = ch_scatter_add(x, ch_range(s, CH_I64, 0, 2, 1), x);
}

static void segment_far(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_segment_sum(in[0], ch_range(s, CH_I64, 0, 3, 1), 2);
}

static void segment_table(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_segment_sum(in[0], ch_fill(s, CH_I64, ch_shape_of(3, 4), 0), 2);
}

static void bag_splits_fall(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_embedding_bag(in[0], ch_fill(s, CH_I64, ch_shape_of(6), 0),
                              ch_concat(2,
                                        (ch_node *[]){ch_fill(s, CH_I64, ch_shape_of(1), 0),
                                                      ch_range(s, CH_I64, 3, 1, -1)},
                                        0),
                              NULL);
}

static void bag_splits_late(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_embedding_bag(in[0], ch_fill(s, CH_I64, ch_shape_of(6), 0),
                              ch_range(s, CH_I64, 1, 4, 1), NULL);
}

static void bag_splits_far(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_embedding_bag(in[0], ch_fill(s, CH_I64, ch_shape_of(6), 0),
                              ch_range(s, CH_I64, 0, 9, 4), NULL);
}

static void bag_far(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_embedding_bag(in[0], ch_range(s, CH_I64, 0, 6, 1), ch_range(s, CH_I32, 0, 5, 1),
                              NULL);
}

static void bag_weights_short(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_bag_options opt = {.weights = ch_fill(s, CH_F32, ch_shape_of(5), 1)};

    out[0] = ch_embedding_bag(in[0], ch_range(s, CH_I64, 0, 6, 1), ch_range(s, CH_I32, 0, 5, 1),
                              &opt);
}

static void bag_rows_wrong(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_bag_options opt = {.like = ch_fill(s, CH_F32, ch_shape_of(9), 1)};

    out[0] = ch_embedding_bag(in[0], ch_range(s, CH_I64, 0, 6, 1), ch_range(s, CH_I32, 0, 5, 1),
                              &opt);
}

/* clang-format off */
#define BAD(op_, name_, record_, ...) \
    {.op = op_, .name = name_, .n_in = 1, .in = {{.shape = {2, {3, 4}}}}, .dtype = CH_F32, \
     .record = record_, .code = CH_INVALID_ARGUMENT, .words = {__VA_ARGS__}}

static const t_refusal refusals[] = {
    BAD("check_ids", "out of range", check_5, "id 5 at position 3", "not in [0, 5)"),
    BAD("gather", "out of range", gather_range, "gather(f32(3, 4), i64(4))", "id 4 at position 0",
        "not in [0, 3)"),
    BAD("gather", "out of range of axis 1", gather_range_1, "id 5 at position 2", "[0, 4)"),
    BAD("gather", "by floats", gather_floats, "input 1 holds ids and is f32"),
    BAD("gather", "no such axis", gather_axis_2, "axis 2", "-2 to 1"),
    BAD("flat_ids", "more axes than there are", nd_deep, "gather_nd", "size 3", "1 to 2"),
    BAD("flat_ids", "out of range", nd_far, "id 3 at position 0", "[0, 3)"),
    BAD("one_hot", "negative depth", hot_negative, "depth is -1"),
    BAD("table_lookup", "floats", look_up_floats, "f32(rows, 4)", "keys of the table are i32 or i64"),
    BAD("table_lookup", "no table", look_up_nowhere, "the table is NULL"),
    BAD("scatter_add", "out of range", scatter_far, "id 3 at position 2", "[0, 3)"),
    BAD("scatter_update", "not a row for each", scatter_uneven, "2 ids and 3 rows"),
    BAD("scatter_add", "rows of another width", scatter_narrow, "sizes 4 and 3 in axis 1"),
    BAD("scatter_add", "rows of another dtype", scatter_cast, "rows are f64 and x is f32"),
    BAD("scatter_add", "bools", scatter_bools, "is bool, want a float type"),
    BAD("scatter_add", "taken away out of range", scatter_sub_far, "scatter_sub",
        "id -1 at position 0", "[0, 3)"),
    BAD("scatter_fold", "out of range", scatter_mul_far, "scatter_mul", "id 3 at position 2",
        "[0, 3)"),
    BAD("scatter_fold", "not a row for each", scatter_min_uneven, "scatter_min",
        "2 ids and 3 rows"),
    BAD("scatter_fold", "bools", scatter_max_bools, "scatter_max", "is bool, want a float type"),
    {.op = "scatter_fold", .name = "its gradient", .n_in = 1, .in = {{.shape = {2, {3, 4}}}},
     .dtype = CH_F32, .record = scatter_div_gradient, .code = CH_UNIMPLEMENTED,
     .words = {"scatter_fold of ch_scatter_div has no gradient", "ch_stop_gradient"}},
    BAD("sparse_rows", "segment out of range", segment_far, "id 2 at position 2", "[0, 2)"),
    BAD("sparse_rows", "a table of segments", segment_table, "rank 2, want 1"),
    BAD("embedding_bag", "splits that fall", bag_splits_fall, "row split 2 at position 2, after 3"),
    BAD("embedding_bag", "splits that begin late", bag_splits_late, "row split 1 at position 0, want 0"),
    BAD("embedding_bag", "splits behind the end", bag_splits_far, "row split 8 at position 2",
        "6 ids"),
    BAD("embedding_bag", "out of range", bag_far, "id 3 at position 3", "[0, 3)"),
    BAD("embedding_bag", "too few weights", bag_weights_short, "each of the 6 ids"),
    BAD("embedding_bag", "rows that do not fit", bag_rows_wrong, "5 row splits for 9 rows"),
    {0},
};
/* clang-format on */

const t_family t_index = {"index", samples, refusals};

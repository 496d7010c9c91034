/* test/ops/samples_elementwise.c -- samples of elementwise ops, alone, broadcast and in chains.
 *
 * The references compute in doubles, element by element.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "sample.h"

/* ---- a reference that broadcasts ---- */

/* Returns the element of `a` that is broadcast to index k of a result of this shape. */
static double at(const t_array *a, ch_shape shape, int64_t k)
{
    int64_t from = 0, step = 1;

    for (int d = shape.rank - 1; d >= 0; d--) {
        int     e = d - (shape.rank - a->shape.rank);
        int64_t i = k % shape.dim[d];

        k /= shape.dim[d];
        if (e < 0)
            continue;
        if (a->shape.dim[e] != 1)
            from += i * step;
        step *= a->shape.dim[e];
    }
    return a->v[from];
}

static ch_shape together(const t_array *in, int n)
{
    ch_shape s = {0};

    for (int i = 0; i < n; i++)
        s.rank = in[i].shape.rank > s.rank ? in[i].shape.rank : s.rank;
    for (int d = 0; d < s.rank; d++) {
        s.dim[d] = 1;
        for (int i = 0; i < n; i++) {
            int e = d - (s.rank - in[i].shape.rank);

            if (e >= 0 && in[i].shape.dim[e] != 1)
                s.dim[d] = in[i].shape.dim[e];
        }
    }
    return s;
}

static void refer1(const t_array *in, t_array *out, double (*f)(double))
{
    t_out(&out[0], in[0].shape);
    for (int64_t k = 0; k < ch_shape_count(in[0].shape); k++)
        out[0].v[k] = f(in[0].v[k]);
}

static void refer2(const t_array *in, t_array *out, double (*f)(double, double))
{
    ch_shape s = together(in, 2);

    t_out(&out[0], s);
    for (int64_t k = 0; k < ch_shape_count(s); k++)
        out[0].v[k] = f(at(&in[0], s, k), at(&in[1], s, k));
}

/* ---- definitions of the ops ---- */

#define UNARY(op, expression)                                                                  \
    static void record_##op(ch_step *s, ch_node *const *in, ch_node **out)                     \
    {                                                                                          \
        (void)s;                                                                               \
        out[0] = ch_##op(in[0]);                                                               \
    }                                                                                          \
    static double value_##op(double x)                                                         \
    {                                                                                          \
        return expression;                                                                     \
    }                                                                                          \
    static void reference_##op(const t_array *in, t_array *out)                                \
    {                                                                                          \
        refer1(in, out, value_##op);                                                           \
    }
UNARY(neg, -x)
UNARY(abs, x < 0 ? -x : x)
UNARY(sign, x<0 ? -1 : x> 0 ? 1 : 0)
UNARY(square, x *x)
UNARY(sqrt, sqrt(x))
UNARY(rsqrt, pow(x, -0.5))
UNARY(exp, pow(M_E, x))
UNARY(expm1, 2 * exp(x / 2) * sinh(x / 2))
UNARY(log, log2(x) * M_LN2)
UNARY(log1p, 2 * atanh(x / (2 + x)))
UNARY(sin, 2 * sin(x / 2) * cos(x / 2))
UNARY(cos, 1 - 2 * sin(x / 2) * sin(x / 2))
UNARY(tanh, (exp(2 * x) - 1) / (exp(2 * x) + 1))
UNARY(sigmoid, 0.5 + 0.5 * tanh(x / 2))
UNARY(erf, 1 - erfc(x))
UNARY(floor, trunc(x) - (x < trunc(x)))
UNARY(ceil, trunc(x) + (x > trunc(x)))
UNARY(round, fabs(x - trunc(x)) == 0.5 ? 2 * trunc((x + (x < 0 ? -0.5 : 0.5)) / 2)
                                       : trunc(x + (x < 0 ? -0.5 : 0.5)))
UNARY(relu, fmax(x, 0))
UNARY(gelu, x * 0.5 * erfc(-x / sqrt(2)))
UNARY(gelu_tanh, 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))))
UNARY(silu, x / (1 + exp(-x)))
UNARY(softplus, log(1 + exp(x)))
UNARY(logical_not, x == 0)
#undef UNARY

#define BINARY(op, expression)                                                                 \
    static void record_##op(ch_step *s, ch_node *const *in, ch_node **out)                     \
    {                                                                                          \
        (void)s;                                                                               \
        out[0] = ch_##op(in[0], in[1]);                                                        \
    }                                                                                          \
    static double value_##op(double a, double b)                                               \
    {                                                                                          \
        return expression;                                                                     \
    }                                                                                          \
    static void reference_##op(const t_array *in, t_array *out)                                \
    {                                                                                          \
        refer2(in, out, value_##op);                                                           \
    }
ch_node *ch__relu_mask(ch_node *y, ch_node *d); /* of ops/blockwise.h */
#define ch_relu_mask ch__relu_mask
BINARY(relu_mask, a > 0 ? b : 0)
BINARY(add, a + b)
BINARY(sub, a - b)
BINARY(mul, a *b)
BINARY(div, a / b)
BINARY(floordiv, floor(a / b))
BINARY(mod, a - floor(a / b) * b)
BINARY(pow, exp(b *log(a)))
BINARY(minimum, a < b ? a : b)
BINARY(maximum, a < b ? b : a)
BINARY(equal, a == b)
BINARY(not_equal, a != b)
BINARY(less, a < b)
BINARY(less_equal, a <= b)
BINARY(greater, a > b)
BINARY(greater_equal, a >= b)
BINARY(logical_and, a != 0 && b != 0)
BINARY(logical_or, a != 0 || b != 0)
BINARY(logical_xor, (a != 0) != (b != 0))
#undef BINARY

/* ---- ops with attributes ---- */

static void record_clip(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_clip(in[0], -0.5, 0.5);
}

static double value_clip(double x)
{
    return fmin(fmax(x, -0.5), 0.5);
}

static void reference_clip(const t_array *in, t_array *out)
{
    refer1(in, out, value_clip);
}

static void record_clip_whole(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_clip(in[0], -2.5, 3.5);
}

/* For integers: the range from -2.5 to 3.5. */
static double value_clip_whole(double x)
{
    return x < -2 ? -2 : x > 3 ? 3 : x;
}

static void reference_clip_whole(const t_array *in, t_array *out)
{
    refer1(in, out, value_clip_whole);
}

static void record_leaky_relu(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_leaky_relu(in[0], 0.125);
}

static double value_leaky_relu(double x)
{
    return x < 0 ? x / 8 : x;
}

static void reference_leaky_relu(const t_array *in, t_array *out)
{
    refer1(in, out, value_leaky_relu);
}

static void record_elu(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_elu(in[0], 1.5);
}

static double value_elu(double x)
{
    return x < 0 ? 1.5 * (exp(x) - 1) : x;
}

static void reference_elu(const t_array *in, t_array *out)
{
    refer1(in, out, value_elu);
}

/* ---- select, cast ---- */

static void record_select(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_select(in[0], in[1], in[2]);
}

static void reference_select(const t_array *in, t_array *out)
{
    ch_shape s = together(in, 3);

    t_out(&out[0], s);
    for (int64_t k = 0; k < ch_shape_count(s); k++)
        out[0].v[k] = at(&in[0], s, k) != 0 ? at(&in[1], s, k) : at(&in[2], s, k);
}

static void record_select_number(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_select(in[0], in[1], ch_number(s, 7));
}

static void reference_select_number(const t_array *in, t_array *out)
{
    t_out(&out[0], in[1].shape);
    for (int64_t k = 0; k < ch_shape_count(in[1].shape); k++)
        out[0].v[k] = in[0].v[k] != 0 ? in[1].v[k] : 7;
}

static double same(double x)
{
    return x;
}

static double to_bool(double x)
{
    return x != 0;
}

#define CAST(name, dtype, f)                                                                   \
    static void record_to_##name(ch_step *s, ch_node *const *in, ch_node **out)                \
    {                                                                                          \
        (void)s;                                                                               \
        out[0] = ch_cast(in[0], dtype);                                                        \
    }                                                                                          \
    static void reference_to_##name(const t_array *in, t_array *out)                           \
    {                                                                                          \
        refer1(in, out, f);                                                                    \
    }
CAST(f32, CH_F32, same)
CAST(f64, CH_F64, same)
CAST(bf16, CH_BF16, same)
CAST(f16, CH_F16, same)
CAST(i8, CH_I8, trunc)
CAST(i16, CH_I16, trunc)
CAST(i32, CH_I32, trunc)
CAST(i64, CH_I64, trunc)
CAST(u8, CH_U8, trunc)
CAST(u16, CH_U16, trunc)
CAST(u32, CH_U32, trunc)
CAST(u64, CH_U64, trunc)
CAST(bool, CH_BOOL, to_bool)
#undef CAST

/* ---- chains ---- */

/* Several results, a result that is used again, and broadcast scalars. */
static void record_chain(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *m = ch_mul(in[0], in[1]);
    ch_node *e = ch_exp(ch_mul(m, ch_number(s, 0.5)));

    out[0] = ch_add(e, in[2]);
    out[1] = m;
    out[2] = ch_tanh(ch_sub(out[0], m));
}

static void reference_chain(const t_array *in, t_array *out)
{
    ch_shape s = together(in, 3);

    for (int i = 0; i < 3; i++)
        t_out(&out[i], s);
    for (int64_t k = 0; k < ch_shape_count(s); k++) {
        double m = at(&in[0], s, k) * at(&in[1], s, k), e = exp(m / 2);

        out[0].v[k] = e + at(&in[2], s, k);
        out[1].v[k] = m;
        out[2].v[k] = tanh(out[0].v[k] - m);
    }
}

/* A chain in which the dtype changes. */
static void record_mixed(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *is_low = ch_less(in[0], in[1]);
    ch_node *n = ch_cast(is_low, CH_I32);

    out[0] = ch_select(is_low, ch_mul(in[0], ch_cast(n, ch_node_dtype(in[0]))),
                       ch_add(in[1], ch_number(s, 2)));
    out[1] = ch_logical_not(is_low);
}

static void reference_mixed(const t_array *in, t_array *out)
{
    ch_shape s = together(in, 2);

    t_out(&out[0], s);
    t_out(&out[1], s);
    for (int64_t k = 0; k < ch_shape_count(s); k++) {
        double a = at(&in[0], s, k), b = at(&in[1], s, k);

        out[0].v[k] = a < b ? a : b + 2;
        out[1].v[k] = !(a < b);
    }
}

/* A chain with values that are broadcast and filled inside it. */
static void record_spread(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *wide = ch_broadcast_to(in[1], ch_shape_of(4, 6));
    ch_node *twos = ch_fill(s, ch_node_dtype(in[0]), ch_shape_of(4, 6), 2);

    out[0] = ch_mul(ch_add(in[0], wide), twos);
    out[1] = wide;
}

static void reference_spread(const t_array *in, t_array *out)
{
    t_out(&out[0], in[0].shape);
    t_out(&out[1], in[0].shape);
    for (int64_t k = 0; k < 24; k++) {
        out[1].v[k] = in[1].v[k % 6];
        out[0].v[k] = (in[0].v[k] + out[1].v[k]) * 2;
    }
}

/* Too large to be folded into a constant. */
static void record_filled(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_dtype t = ch_node_dtype(in[0]);
    ch_node *a = ch_fill(s, t, ch_shape_of(40, 1703), 2),
            *b = ch_fill(s, t, ch_shape_of(40, 1703), 3);

    out[0] = ch_mul(ch_add(in[0], a), b);
    out[1] = ch_sub(b, ch_broadcast_to(in[1], ch_shape_of(40, 1703)));
}

static void reference_filled(const t_array *in, t_array *out)
{
    t_out(&out[0], in[0].shape);
    t_out(&out[1], in[0].shape);
    for (int64_t k = 0; k < 40 * 1703; k++) {
        out[0].v[k] = (in[0].v[k] + 2) * 3;
        out[1].v[k] = 3 - in[1].v[k / 1703];
    }
}

/* A gradient of few rows, scaled; ids repeat. */
static void record_sparse(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *rows = ch_sparse_rows(in[0], in[1], 5);

    out[0] = ch_neg(ch_div(ch_mul(ch_number(s, 3), ch_mul(rows, ch_number(s, 2))), in[2]));
    out[1] = ch_mul(rows, in[3]); /* multiplied by a row: not a scale */
}

static void reference_sparse(const t_array *in, t_array *out)
{
    ch_shape s = ch_shape_of(5, 3);

    t_out(&out[0], s);
    t_out(&out[1], s);
    for (int64_t i = 0; i < in[0].shape.dim[0]; i++)
        for (int64_t k = 0; k < 3; k++) {
            int64_t to = (int64_t)in[0].v[i] * 3 + k;
            double  x = in[1].v[i * 3 + k];

            out[0].v[to] -= 6 * x / in[2].v[0];
            out[1].v[to] += x * in[3].v[k];
        }
}

static void record_sparse_cast(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_cast(ch_sparse_rows(in[0], in[1], 5), CH_F64);
}

static void reference_sparse_cast(const t_array *in, t_array *out)
{
    t_out(&out[0], ch_shape_of(5, 3));
    for (int64_t i = 0; i < in[0].shape.dim[0] * 3; i++)
        out[0].v[(int64_t)in[0].v[i / 3] * 3 + i % 3] += in[1].v[i];
}

/* More instructions than a chain holds, all on the same input. */
static void record_long(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *x = in[0];

    for (int i = 0; i < 200; i++)
        x = ch_add(x, in[i % 2]);
    (void)s;
    out[0] = x;
}

static void reference_long(const t_array *in, t_array *out)
{
    t_out(&out[0], in[0].shape);
    for (int64_t k = 0; k < ch_shape_count(in[0].shape); k++)
        out[0].v[k] = 101 * in[0].v[k] + 100 * in[1].v[k];
}

/* More inputs than a chain takes: each row of a table by itself, like slices of different
 * values. */
static void record_wide(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *x = in[0];

    for (int i = 1; i < 8; i++)
        for (int k = 1; k < 8; k++)
            x = ch_maximum(x, ch_add(in[i], ch_mul(in[k], ch_number(s, i * 8 + k))));
    out[0] = x;
}

static void reference_wide(const t_array *in, t_array *out)
{
    t_out(&out[0], in[0].shape);
    for (int64_t e = 0; e < ch_shape_count(in[0].shape); e++) {
        out[0].v[e] = in[0].v[e];
        for (int i = 1; i < 8; i++)
            for (int k = 1; k < 8; k++)
                out[0].v[e] = fmax(out[0].v[e], in[i].v[e] + in[k].v[e] * (i * 8 + k));
    }
}

/* ---- refusals ---- */

static void record_clip_backwards(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_clip(in[0], 1, -1);
}

static void record_clip_nan(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_clip(in[0], NAN, 1);
}

static void record_to_text(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_cast(in[0], CH_STR);
}

static void record_half_of_ids(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_mul(in[0], ch_number(s, 0.5));
}

static void record_select_by_number(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_select(in[0], in[0], in[0]);
}

/* clang-format off */
#define ARITH (T_FLOATS | T_INTS)
#define SIGNED (ARITH & ~(1 << CH_U8))
#define EVERY (ARITH | 1 << CH_BOOL | 1 << CH_I16 | 1 << CH_U16 | 1 << CH_U32 | 1 << CH_U64)

#define OF(op) record_##op, .reference = reference_##op

/* A matrix, no rows, a scalar, several tiles. */
#define UNARY_ROWS(name_, types, fill_, flags_)                                               \
    {.op = #name_, .name = "of a matrix", .dtypes = types, .n_in = 1,                         \
     .in = {{.shape = {2, {5, 3}}, .fill = fill_}}, .record = OF(name_), .flags = flags_},    \
    {.op = #name_, .name = "of nothing", .dtypes = (types) & T_WIDE, .n_in = 1,               \
     .in = {{.shape = {3, {0, 3, 2}}, .fill = fill_}}, .record = OF(name_), .flags = flags_}, \
    {.op = #name_, .name = "of one number", .dtypes = types, .n_in = 1,                       \
     .in = {{.shape = {0}, .fill = fill_, .is_static = true}}, .record = OF(name_),           \
     .flags = flags_},                                                                        \
    {.op = #name_, .name = "of many", .dtypes = (types) & 1 << CH_F32, .n_in = 1,             \
     .in = {{.shape = {2, {61, 2003}}, .fill = fill_}}, .record = OF(name_),                  \
     .flags = T_NO_GRAD}

/* Two matrices, a row, a column, an empty matrix, and scalars. */
#define BINARY_ROWS(name_, types, fill_a, fill_b, flags_)                                     \
    {.op = #name_, .name = "of two matrices", .dtypes = types, .n_in = 2,                     \
     .in = {{.shape = {2, {5, 3}}, .fill = fill_a}, {.shape = {2, {5, 3}}, .fill = fill_b}},  \
     .record = OF(name_), .flags = flags_},                                                   \
    {.op = #name_, .name = "with a row", .dtypes = types, .n_in = 2,                          \
     .in = {{.shape = {2, {5, 3}}, .fill = fill_a},                                           \
            {.shape = {1, {3}}, .fill = fill_b, .is_static = true}},                          \
     .record = OF(name_), .flags = flags_},                                                   \
    {.op = #name_, .name = "of a column and a matrix", .dtypes = types, .n_in = 2,            \
     .in = {{.shape = {2, {5, 1}}, .fill = fill_a}, {.shape = {2, {5, 4}}, .fill = fill_b}},  \
     .record = OF(name_), .flags = flags_},                                                   \
    {.op = #name_, .name = "of a number and nothing", .dtypes = types, .n_in = 2,             \
     .in = {{.shape = {0}, .fill = fill_a, .is_static = true},                                \
            {.shape = {2, {0, 3}}, .fill = fill_b}},                                          \
     .record = OF(name_), .flags = flags_},                                                   \
    {.op = #name_, .name = "of two numbers", .dtypes = types, .n_in = 2,                      \
     .in = {{.shape = {0}, .fill = fill_a, .is_static = true},                                \
            {.shape = {0}, .fill = fill_b, .is_static = true}},                               \
     .record = OF(name_), .flags = flags_},                                                   \
    {.op = #name_, .name = "of many", .dtypes = (types) & (1 << CH_F32 | 1 << CH_BOOL),       \
     .n_in = 2,                                                                               \
     .in = {{.shape = {1, {70001}}, .fill = fill_a}, {.shape = {1, {70001}}, .fill = fill_b}},\
     .record = OF(name_), .flags = T_NO_GRAD}

#define CAST_ROWS(to, types, fill_, flags_)                                                   \
    {.op = "cast", .name = "to " #to, .dtypes = types, .n_in = 1,                             \
     .in = {{.shape = {2, {9, 7}}, .fill = fill_}}, .record = OF(to_##to), .flags = flags_}

static const t_sample samples[] = {
    BINARY_ROWS(add, ARITH, T_SMALL, T_SMALL, 0),
    {.op = "add", .name = "short rows and a column", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {2, {3000, 4}}}, {.shape = {2, {3000, 1}}}}, .record = OF(add)},
    {.op = "add", .name = "short rows and a row", .dtypes = ARITH, .n_in = 2,
     .in = {{.shape = {2, {3001, 5}}, .fill = T_SMALL},
            {.shape = {1, {5}}, .fill = T_SMALL, .is_static = true}}, .record = OF(add)},
    {.op = "add", .name = "long rows and a row", .dtypes = ARITH, .n_in = 2,
     .in = {{.shape = {2, {3, 5003}}, .fill = T_SMALL},
            {.shape = {1, {5003}}, .fill = T_SMALL, .is_static = true}}, .record = OF(add)},
    {.op = "add", .name = "long rows and a column", .dtypes = ARITH, .n_in = 2,
     .in = {{.shape = {2, {3, 5003}}, .fill = T_SMALL}, {.shape = {2, {3, 1}}, .fill = T_SMALL}},
     .record = OF(add)},
    {.op = "add", .name = "channels first", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {4, {3, 4, 5, 2}}}, {.shape = {3, {4, 1, 1}}, .is_static = true}},
     .record = OF(add)},
    {.op = "add", .name = "both repeated", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {3, {3, 1, 1201}}}, {.shape = {2, {4, 1}}, .is_static = true}},
     .record = OF(add)},
    {.op = "add", .name = "in turns", .dtypes = ARITH, .n_in = 2,
     .in = {{.shape = {5, {2, 1, 3, 1, 2}}, .fill = T_SMALL},
            {.shape = {4, {4, 1, 5, 1}}, .fill = T_SMALL, .is_static = true}},
     .record = OF(add)},
    {.op = "add", .name = "a matrix for each", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {3, {70, 11, 13}}}, {.shape = {2, {11, 13}}, .is_static = true}},
     .record = OF(add)},

    BINARY_ROWS(sub, SIGNED, T_SMALL, T_SMALL, 0),
    BINARY_ROWS(mul, ARITH, T_SMALL, T_SMALL, 0),
    BINARY_ROWS(div, T_FLOATS, T_UNIT, T_POSITIVE, 0),
    BINARY_ROWS(floordiv, ARITH, T_SMALL, T_SMALL, T_NO_GRAD),
    BINARY_ROWS(mod, ARITH, T_SMALL, T_SMALL, T_NO_GRAD),
    {.op = "mod", .name = "of fractions", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {2, {5, 3}}}, {.shape = {2, {5, 3}}, .fill = T_POSITIVE}},
     .record = OF(mod)},
    BINARY_ROWS(pow, T_FLOATS, T_POSITIVE, T_UNIT, 0),
    BINARY_ROWS(minimum, ARITH, T_SMALL, T_SMALL, T_NO_GRAD),
    {.op = "minimum", .name = "of different numbers", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {2, {5, 3}}}, {.shape = {2, {5, 3}}}}, .record = OF(minimum)},
    BINARY_ROWS(maximum, ARITH, T_SMALL, T_SMALL, T_NO_GRAD),
    {.op = "maximum", .name = "of different numbers", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {2, {5, 3}}}, {.shape = {2, {5, 3}}}}, .record = OF(maximum)},

    UNARY_ROWS(neg, SIGNED, T_SMALL, 0),
    UNARY_ROWS(abs, ARITH, T_SMALL, 0),
    UNARY_ROWS(sign, ARITH, T_SMALL, T_NO_GRAD),
    UNARY_ROWS(square, ARITH, T_SMALL, 0),
    UNARY_ROWS(sqrt, T_FLOATS, T_POSITIVE, 0),
    UNARY_ROWS(rsqrt, T_FLOATS, T_POSITIVE, 0),
    UNARY_ROWS(exp, T_FLOATS, T_UNIT, 0),
    UNARY_ROWS(expm1, T_FLOATS, T_UNIT, 0),
    UNARY_ROWS(log, T_FLOATS, T_POSITIVE, 0),
    UNARY_ROWS(log1p, T_FLOATS, T_POSITIVE, 0),
    UNARY_ROWS(sin, T_FLOATS, T_UNIT, 0),
    UNARY_ROWS(cos, T_FLOATS, T_UNIT, 0),
    UNARY_ROWS(tanh, T_FLOATS, T_UNIT, 0),
    UNARY_ROWS(sigmoid, T_FLOATS, T_UNIT, 0),
    UNARY_ROWS(erf, T_FLOATS, T_UNIT, 0),
    UNARY_ROWS(floor, T_FLOATS, T_DISTINCT, T_NO_GRAD),
    UNARY_ROWS(ceil, T_FLOATS, T_DISTINCT, T_NO_GRAD),
    UNARY_ROWS(round, T_FLOATS, T_DISTINCT, T_NO_GRAD),
    UNARY_ROWS(clip, T_FLOATS, T_UNIT, 0),
    {.op = "clip", .name = "of integers", .dtypes = T_INTS, .n_in = 1,
     .in = {{.shape = {2, {9, 7}}, .fill = T_SMALL}}, .record = OF(clip_whole),
     .flags = T_NO_GRAD},

    BINARY_ROWS(relu_mask, T_FLOATS, T_UNIT, T_UNIT, 0),
    UNARY_ROWS(relu, T_FLOATS, T_UNIT, 0),
    {.op = "relu", .name = "of integers", .dtypes = T_INTS, .n_in = 1,
     .in = {{.shape = {2, {9, 7}}, .fill = T_SMALL}}, .record = OF(relu), .flags = T_NO_GRAD},
    UNARY_ROWS(leaky_relu, T_FLOATS, T_UNIT, 0),
    UNARY_ROWS(elu, T_FLOATS, T_UNIT, 0),
    UNARY_ROWS(gelu, T_FLOATS, T_UNIT, 0),
    {.op = "gelu", .name = "by tanh", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {2, {5, 3}}}}, .record = OF(gelu_tanh)},
    UNARY_ROWS(silu, T_FLOATS, T_UNIT, 0),
    UNARY_ROWS(softplus, T_FLOATS, T_UNIT, 0),

    BINARY_ROWS(equal, EVERY, T_SMALL, T_SMALL, T_NO_GRAD),
    BINARY_ROWS(not_equal, EVERY, T_SMALL, T_SMALL, T_NO_GRAD),
    BINARY_ROWS(less, EVERY, T_SMALL, T_SMALL, T_NO_GRAD),
    BINARY_ROWS(less_equal, EVERY, T_SMALL, T_SMALL, T_NO_GRAD),
    BINARY_ROWS(greater, EVERY, T_SMALL, T_SMALL, T_NO_GRAD),
    BINARY_ROWS(greater_equal, EVERY, T_SMALL, T_SMALL, T_NO_GRAD),
    BINARY_ROWS(logical_and, 1 << CH_BOOL, T_BOOL, T_BOOL, T_NO_GRAD),
    BINARY_ROWS(logical_or, 1 << CH_BOOL, T_BOOL, T_BOOL, T_NO_GRAD),
    BINARY_ROWS(logical_xor, 1 << CH_BOOL, T_BOOL, T_BOOL, T_NO_GRAD),
    UNARY_ROWS(logical_not, 1 << CH_BOOL, T_BOOL, T_NO_GRAD),

    {.op = "select", .name = "of two matrices", .dtypes = EVERY, .n_in = 3,
     .in = {{.shape = {2, {5, 3}}, .fill = T_BOOL}, {.shape = {2, {5, 3}}, .fill = T_SMALL},
            {.shape = {2, {5, 3}}, .fill = T_SMALL}}, .record = OF(select)},
    {.op = "select", .name = "of a row, a column and a number", .dtypes = EVERY, .n_in = 3,
     .in = {{.shape = {1, {3}}, .fill = T_BOOL, .is_static = true},
            {.shape = {2, {5, 1}}, .fill = T_SMALL},
            {.shape = {0}, .fill = T_SMALL, .is_static = true}}, .record = OF(select)},
    {.op = "select", .name = "of nothing", .dtypes = EVERY, .n_in = 3,
     .in = {{.shape = {2, {0, 3}}, .fill = T_BOOL}, {.shape = {2, {0, 3}}, .fill = T_SMALL},
            {.shape = {2, {0, 3}}, .fill = T_SMALL}}, .record = OF(select)},
    {.op = "select", .name = "of a weak number", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {2, {5, 3}}, .fill = T_BOOL}, {.shape = {2, {5, 3}}}},
     .record = OF(select_number)},
    {.op = "select", .name = "of many", .dtypes = 1 << CH_F32, .n_in = 3,
     .in = {{.shape = {2, {40, 2001}}, .fill = T_BOOL}, {.shape = {2, {40, 2001}}},
            {.shape = {2, {40, 2001}}}}, .record = OF(select), .flags = T_NO_GRAD},

    CAST_ROWS(f32, EVERY & ~(1 << CH_F32), T_SMALL, T_NO_GRAD),
    CAST_ROWS(f64, EVERY & ~(1 << CH_F64), T_SMALL, T_NO_GRAD),
    CAST_ROWS(bf16, EVERY & ~(1 << CH_BF16), T_SMALL, T_NO_GRAD),
    CAST_ROWS(f16, EVERY & ~(1 << CH_F16), T_SMALL, T_NO_GRAD),
    CAST_ROWS(i8, EVERY & ~(1 << CH_I8), T_SMALL, T_NO_GRAD),
    CAST_ROWS(i16, EVERY & ~(1 << CH_I16), T_SMALL, T_NO_GRAD),
    CAST_ROWS(i32, EVERY & ~(1 << CH_I32), T_SMALL, T_NO_GRAD),
    CAST_ROWS(i64, EVERY & ~(1 << CH_I64), T_SMALL, T_NO_GRAD),
    CAST_ROWS(u8, T_FLOATS | 1 << CH_U16 | 1 << CH_BOOL, T_POSITIVE, T_NO_GRAD),
    CAST_ROWS(u16, T_FLOATS | 1 << CH_U8, T_POSITIVE, T_NO_GRAD),
    CAST_ROWS(u32, T_FLOATS | 1 << CH_U8, T_POSITIVE, T_NO_GRAD),
    CAST_ROWS(u64, T_FLOATS | 1 << CH_U8, T_POSITIVE, T_NO_GRAD),
    CAST_ROWS(bool, EVERY & ~(1 << CH_BOOL), T_SMALL, T_NO_GRAD),
    {.op = "cast", .name = "of fractions to i32", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {2, {9, 7}}, .fill = T_DISTINCT}}, .record = OF(to_i32),
     .flags = T_NO_GRAD},
    {.op = "cast", .name = "of fractions to bf16", .dtypes = 1 << CH_F64, .n_in = 1,
     .in = {{.shape = {2, {70, 700}}}}, .record = OF(to_bf16), .flags = T_NO_GRAD},
    {.op = "cast", .name = "of fractions to f16", .dtypes = 1 << CH_F64, .n_in = 1,
     .in = {{.shape = {2, {70, 700}}}}, .record = OF(to_f16), .flags = T_NO_GRAD},

    {.op = "add", .name = "a chain with several results", .dtypes = T_FLOATS, .n_in = 3,
     .in = {{.shape = {2, {5, 3}}}, {.shape = {2, {5, 3}}},
            {.shape = {1, {3}}, .is_static = true}},
     .n_out = 3, .record = OF(chain), .tolerance = 4e-5},
    {.op = "add", .name = "a chain over many", .dtypes = T_FLOATS, .n_in = 3,
     .in = {{.shape = {2, {45, 1501}}}, {.shape = {2, {45, 1}}},
            {.shape = {1, {1501}}, .is_static = true}},
     .n_out = 3, .record = OF(chain), .tolerance = 4e-5, .flags = T_NO_GRAD},
    {.op = "select", .name = "a chain of several types", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {2, {9, 7}}}, {.shape = {2, {9, 7}}}}, .n_out = 2, .record = OF(mixed),
     .flags = T_NO_GRAD},
    {.op = "select", .name = "a chain of several types over many", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {2, {60, 1201}}}, {.shape = {1, {1201}}, .is_static = true}}, .n_out = 2,
     .record = OF(mixed), .flags = T_NO_GRAD},
    {.op = "add", .name = "a chain with a broadcast and a fill", .dtypes = ARITH, .n_in = 2,
     .in = {{.shape = {2, {4, 6}}, .fill = T_SMALL, .is_static = true},
            {.shape = {1, {6}}, .fill = T_SMALL, .is_static = true}},
     .n_out = 2, .record = OF(spread)},
    {.op = "add", .name = "a chain with large fills", .dtypes = SIGNED, .n_in = 2,
     .in = {{.shape = {2, {40, 1703}}, .fill = T_SMALL, .is_static = true},
            {.shape = {2, {40, 1}}, .fill = T_SMALL, .is_static = true}},
     .n_out = 2, .record = OF(filled), .flags = T_NO_GRAD},
    {.op = "mul", .name = "of a few rows by a number", .dtypes = T_WIDE, .n_in = 4,
     .in = {{.shape = {1, {7}}, .fill = T_IDS, .limit = 5, .is_ids = true}, {.shape = {2, {7, 3}}},
            {.shape = {2, {1, 1}}, .fill = T_POSITIVE, .is_static = true},
            {.shape = {1, {3}}, .is_static = true}},
     .n_out = 2, .record = OF(sparse)},
    {.op = "cast", .name = "of a few rows", .dtypes = 1 << CH_F32, .n_in = 2,
     .in = {{.shape = {1, {7}}, .fill = T_IDS, .limit = 5, .is_ids = true}, {.shape = {2, {7, 3}}}},
     .record = OF(sparse_cast), .flags = T_NO_GRAD},
    {.op = "add", .name = "a long chain", .dtypes = T_WIDE | 1 << CH_I32, .n_in = 2,
     .in = {{.shape = {1, {3}}}, {.shape = {1, {3}}}}, .record = OF(long),
     .flags = T_NO_GRAD},
    {.op = "maximum", .name = "a wide chain", .dtypes = T_WIDE, .n_in = 8,
     .in = {{.shape = {1, {300}}}, {.shape = {1, {300}}}, {.shape = {1, {300}}},
            {.shape = {1, {300}}}, {.shape = {1, {300}}}, {.shape = {1, {300}}},
            {.shape = {1, {300}}}, {.shape = {1, {300}}}},
     .record = OF(wide), .flags = T_NO_GRAD},
    {0},
};

static const t_refusal refusals[] = {
    {.op = "add", .name = "two dtypes", .n_in = 2,
     .in = {{.shape = {1, {3}}}, {.shape = {1, {3}}, .fill = T_IDS, .limit = 3, .is_ids = true}},
     .dtype = CH_F32, .record = record_add, .code = CH_INVALID_ARGUMENT,
     .words = {"add(f32(rows), i64(rows))", "f32 and i64", "cast"}},
    {.op = "sub", .name = "sizes that do not fit", .n_in = 2,
     .in = {{.shape = {2, {2, 3}}}, {.shape = {1, {4}}, .is_static = true}}, .dtype = CH_F32,
     .record = record_sub, .code = CH_INVALID_ARGUMENT, .words = {"sub", "3 and 4"}},
    {.op = "mul", .name = "rows do not broadcast", .n_in = 2,
     .in = {{.shape = {1, {1}}}, {.shape = {1, {4}}, .is_static = true}}, .dtype = CH_F32,
     .record = record_mul, .code = CH_INVALID_ARGUMENT, .words = {"mul", "rows and 4"}},
    {.op = "mul", .name = "half of an integer", .n_in = 1, .in = {{.shape = {1, {4}}}},
     .dtype = CH_I32, .record = record_half_of_ids, .code = CH_INVALID_ARGUMENT,
     .words = {"mul", "i32 and f64", "cast"}},
    {.op = "div", .name = "integers", .n_in = 2,
     .in = {{.shape = {1, {4}}}, {.shape = {1, {4}}}}, .dtype = CH_I32, .record = record_div,
     .code = CH_INVALID_ARGUMENT, .words = {"div", "i32", "float"}},
    {.op = "neg", .name = "truth", .n_in = 1, .in = {{.shape = {1, {4}}}}, .dtype = CH_BOOL,
     .record = record_neg, .code = CH_INVALID_ARGUMENT, .words = {"neg", "bool", "cast"}},
    {.op = "abs", .name = "a type that is only moved", .n_in = 1, .in = {{.shape = {1, {4}}}},
     .dtype = CH_U32, .record = record_abs, .code = CH_INVALID_ARGUMENT,
     .words = {"abs", "u32", "cast"}},
    {.op = "exp", .name = "integers", .n_in = 1, .in = {{.shape = {1, {4}}}}, .dtype = CH_I64,
     .record = record_exp, .code = CH_INVALID_ARGUMENT, .words = {"exp", "i64", "float"}},
    {.op = "logical_and", .name = "numbers", .n_in = 2,
     .in = {{.shape = {1, {4}}}, {.shape = {1, {4}}}}, .dtype = CH_F32,
     .record = record_logical_and, .code = CH_INVALID_ARGUMENT,
     .words = {"logical_and", "f32", "bool"}},
    {.op = "select", .name = "by a number", .n_in = 1, .in = {{.shape = {1, {4}}}},
     .dtype = CH_F32, .record = record_select_by_number, .code = CH_INVALID_ARGUMENT,
     .words = {"select", "f32", "want bool"}},
    {.op = "select", .name = "of two dtypes", .n_in = 3,
     .in = {{.shape = {1, {3}}, .fill = T_BOOL}, {.shape = {1, {3}}},
            {.shape = {1, {3}}, .fill = T_IDS, .limit = 3, .is_ids = true}},
     .dtype = CH_F32, .record = record_select, .code = CH_INVALID_ARGUMENT,
     .words = {"select", "f32 and i64"}},
    {.op = "clip", .name = "backwards", .n_in = 1, .in = {{.shape = {1, {4}}}}, .dtype = CH_F32,
     .record = record_clip_backwards, .code = CH_INVALID_ARGUMENT,
     .words = {"clip", "least is 1", "most -1"}},
    {.op = "clip", .name = "by NaN", .n_in = 1, .in = {{.shape = {1, {4}}}}, .dtype = CH_F32,
     .record = record_clip_nan, .code = CH_INVALID_ARGUMENT, .words = {"clip", "nan"}},
    {.op = "cast", .name = "to text", .n_in = 1, .in = {{.shape = {1, {4}}}}, .dtype = CH_F32,
     .record = record_to_text, .code = CH_INVALID_ARGUMENT, .words = {"cast", "string"}},
    {0},
};
/* clang-format on */

const t_family t_elementwise = {"elementwise", samples, refusals};

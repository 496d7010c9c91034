/* test/ops/samples_effect.c -- samples of ops that pass values on, check them, print them, or
 * call C functions.
 *
 * The samples cover identity, stop_gradient, with_layout, check_numerics, check, print and host_call.
 * test_effects.c tests their effects outside of the graph.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "sample.h"

#include <math.h>
#include <string.h>

#include "spmd/annotate.h"

static void copy(const t_array *in, t_array *out)
{
    t_out(out, in->shape);
    memcpy(out->v, in->v, (size_t)ch_shape_count(in->shape) * sizeof(double));
}

static void identity(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_identity(in[0]);
}

static void identity_twice(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_identity(in[0]);
    out[1] = ch_identity(out[0]);
}

static void copy_twice(const t_array *in, t_array *out)
{
    copy(in, out);
    copy(in, out + 1);
}

static void stop_gradient(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_stop_gradient(in[0]);
}

/* The gradient is 0 for any value. */
static void gradient_of_stopped(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_gradient(ch_stop_gradient(in[0]), in[0]);
}

static void zeros(const t_array *in, t_array *out)
{
    t_out(out, in->shape);
}

/* ---- with_layout ---- */

static void replicated(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch__annotate(NULL, in[0], CH_ANNOTATION_REPLICATE, 0, NULL);
}

static void by_rows(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch__annotate(NULL, in[0], CH_ANNOTATION_MESH, 2, (int[]){0, CH_OFF});
}

static void unknown_kind(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch__annotate(NULL, in[0], (ch_annotation)4, 0, NULL);
}

static void another_rank(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch__annotate(NULL, in[0], CH_ANNOTATION_SPLIT, 3, (int[]){1, 1, 1});
}

static void negative_parts(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch__annotate(NULL, in[0], CH_ANNOTATION_SPLIT, 2, (int[]){-1, -1});
}

static void distant_core(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch__annotate(NULL, in[0], CH_ANNOTATION_ASSIGN, 1, (int[]){64});
}

static void distant_axis(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch__annotate(NULL, in[0], CH_ANNOTATION_MESH, 2, (int[]){CH_OFF, 4});
}

/* ---- check_numerics ---- */

static void check(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_check_numerics(in[0], "x");
}

static void check_unnamed(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_check_numerics(in[0], NULL);
}

/* Returns a constant of two rows of three numbers, with x in place of number `at`. */
static ch_node *odd(ch_step *s, double x, int64_t at)
{
    float      v[6] = {1, 2, 3, 4, 5, 6};
    ch_tensor *t = NULL;
    ch_node   *n = NULL;

    v[at] = (float)x;
    if (ch_tensor_copy_of(CH_F32, ch_shape_of(2, 3), v, &t) == CH_OK)
        n = ch_constant(s, t);
    ch_tensor_unref(t);
    return n;
}

static void check_nan(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)in;
    ch_step_enter(s, "block");
    out[0] = ch_check_numerics(odd(s, NAN, 4), "logits");
    ch_step_leave(s);
}

static void check_inf(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)in;
    out[0] = ch_check_numerics(odd(s, INFINITY, 0), "logits");
}

static void check_minus_inf(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)in;
    out[0] = ch_check_numerics(odd(s, -INFINITY, 2), NULL);
}

/* The check runs although its result is not used. */
static void check_unused(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)ch_check_numerics(odd(s, NAN, 5), "aside");
    out[0] = in[0];
}

/* Computes the gradient of an infinite sum. */
static void check_gradient(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *y = ch_check_numerics(in[0], "x"), *weight = odd(s, INFINITY, 3);

    ch_gradients(y, weight, 1, in, out);
}

/* ---- check ---- */

static void claim(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    ch_check(ch_equal(in[0], in[0]), "equal to itself");
    out[0] = in[0];
}

static void claim_false(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_check(ch_less(in[0], ch_number(s, -10)), "too large; use less");
    out[0] = in[0];
}

static void claim_unnamed(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_check(ch_less(in[0], ch_number(s, -10)), NULL);
    out[0] = in[0];
}

static void claim_float(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    ch_check(in[0], "x");
    out[0] = in[0];
}

/* ---- print ---- */

static void print(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_print(in[0], "x");
}

/* ---- host_call ---- */

/* Computes sums and counts by the public functions of tensors. */
static ch_status sum_and_negate(void *arg, int n_in, ch_tensor *const *in, int n_out,
                                ch_tensor *const *out)
{
    double  sum = *(const double *)arg;
    int64_t n = ch_tensor_count(in[0]), cols = ch_tensor_shape(in[0]).dim[1];

    if (n_in != 1 || n_out != 2)
        return CH_INTERNAL;
    for (int64_t i = 0; i < n; i++) {
        int64_t   at[] = {i / cols, i % cols};
        double    x;
        ch_status rc = ch_tensor_get(in[0], at, &x);

        if (rc == CH_OK)
            rc = ch_tensor_set(out[0], at, -x);
        if (rc != CH_OK)
            return rc;
        sum += x;
    }
    return ch_tensor_set(out[1], NULL, sum);
}

static double offset = 3;

static void host(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_host_spec spec = {
        .name = "sum_and_negate", .fn = sum_and_negate, .arg = &offset, .n_out = 2};

    spec.out[0] = (ch_host_out){.dtype = ch_node_dtype(in[0]), .like = in[0]};
    spec.out[1] = (ch_host_out){.dtype = CH_F64};
    ch_host_call(s, &spec, 1, in, out);
}

static void sum_and_negated(const t_array *in, t_array *out)
{
    t_out(&out[0], in->shape);
    t_out(&out[1], ch_shape_scalar());
    out[1].v[0] = 3;
    for (int64_t i = 0; i < ch_shape_count(in->shape); i++) {
        out[0].v[i] = -in->v[i];
        out[1].v[0] += in->v[i];
    }
}

static ch_status count_up(void *arg, int n_in, ch_tensor *const *in, int n_out,
                          ch_tensor *const *out)
{
    int32_t *v = n_out == 1 ? ch_tensor_data_mut(out[0]) : NULL;

    (void)arg, (void)n_in, (void)in;
    for (int32_t i = 0; v != NULL && i < 4; i++)
        v[i] = i;
    return CH_OK;
}

static void host_source(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_host_spec spec = {.fn = count_up, .n_out = 1};

    (void)in;
    spec.out[0] = (ch_host_out){.dtype = CH_I32, .shape = ch_shape_of(4)};
    ch_host_call(s, &spec, 0, NULL, out);
}

static void counted(const t_array *in, t_array *out)
{
    (void)in;
    t_out(out, ch_shape_of(4));
    for (int i = 0; i < 4; i++)
        out->v[i] = i;
}

static ch_status refuse(void *arg, int n_in, ch_tensor *const *in, int n_out,
                        ch_tensor *const *out)
{
    (void)arg, (void)n_in, (void)in, (void)n_out, (void)out;
    return CH_OUT_OF_RANGE;
}

static ch_status misread(void *arg, int n_in, ch_tensor *const *in, int n_out,
                         ch_tensor *const *out)
{
    double x;

    (void)arg, (void)n_in, (void)n_out, (void)out;
    return ch_tensor_get(in[0], (int64_t[]){7, 0}, &x);
}

static void host_refuses(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_host_call(s, &(ch_host_spec){.name = "lookup", .fn = refuse}, 1, in, NULL);
    out[0] = in[0];
}

static void host_fails(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_host_call(s, &(ch_host_spec){.name = "lookup", .fn = misread}, 1, in, NULL);
    out[0] = in[0];
}

static void host_without_function(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_host_call(s, &(ch_host_spec){.name = "lookup"}, 1, in, NULL);
    out[0] = in[0];
}

static void host_with_nine(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_host_call(s, &(ch_host_spec){.fn = refuse, .n_out = 9}, 1, in, out);
}

static void host_without_room(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_host_call(s, &(ch_host_spec){.fn = refuse, .n_out = 1}, 1, in, NULL);
    out[0] = in[0];
}

static void host_makes_text(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_host_spec spec = {.fn = refuse, .n_out = 1, .out = {{.dtype = CH_STR}}};

    ch_host_call(s, &spec, 1, in, out);
}

static void host_gradient(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_host_spec spec = {.fn = count_up, .n_out = 1, .out = {{.dtype = CH_F32, .like = in[0]}}};
    ch_node     *y = NULL;

    ch_host_call(s, &spec, 1, in, &y);
    out[0] = ch_gradient(y, in[0]);
}

#define ALL (T_FLOATS | T_INTS | 1 << CH_BOOL)
#define SIX                                                                                    \
    {                                                                                          \
        {                                                                                      \
            .shape = { 2, {2, 3} }                                                             \
        }                                                                                      \
    }

/* clang-format off */
static const t_sample samples[] = {
    {.op = "identity", .name = "of a matrix", .dtypes = ALL, .n_in = 1,
     .in = {{.shape = {2, {5, 3}}, .fill = T_SMALL}}, .record = identity, .reference = copy},
    {.op = "identity", .name = "of a scalar", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {0}}}, .record = identity, .reference = copy},
    {.op = "identity", .name = "of nothing", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {2, {0, 3}}}}, .record = identity, .reference = copy},
    {.op = "identity", .name = "of weights, twice", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {2, {5, 3}}, .is_static = true}}, .n_out = 2, .record = identity_twice,
     .reference = copy_twice},

    {.op = "stop_gradient", .name = "of a matrix", .dtypes = ALL, .n_in = 1,
     .in = {{.shape = {2, {5, 3}}, .fill = T_SMALL}}, .record = stop_gradient,
     .reference = copy, .flags = T_NO_GRAD},
    {.op = "stop_gradient", .name = "of nothing", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {2, {5, 0}}}}, .record = stop_gradient, .reference = copy,
     .flags = T_NO_GRAD},
    {.op = "stop_gradient", .name = "its gradient", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {2, {5, 3}}}}, .record = gradient_of_stopped, .reference = zeros,
     .flags = T_NO_GRAD},

    {.op = "with_layout", .name = "replicated", .dtypes = ALL, .n_in = 1,
     .in = {{.shape = {2, {5, 3}}, .fill = T_SMALL}}, .record = replicated,
     .reference = copy},
    {.op = "with_layout", .name = "by rows", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {2, {7, 3}}}}, .record = by_rows, .reference = copy},

    {.op = "check_numerics", .name = "of a matrix", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {2, {5, 3}}}}, .record = check, .reference = copy},
    {.op = "check_numerics", .name = "several tiles", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {2, {201, 1001}}}}, .record = check_unnamed, .reference = copy},
    {.op = "check_numerics", .name = "of nothing", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {1, {0}}}}, .record = check, .reference = copy},

    {.op = "check", .name = "of a matrix", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {2, {5, 3}}}}, .record = claim, .reference = copy},
    {.op = "check", .name = "of nothing", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {2, {0, 3}}}}, .record = claim_false, .reference = copy},

    {.op = "print", .name = "of a matrix", .dtypes = ALL, .n_in = 1,
     .in = {{.shape = {2, {5, 3}}, .fill = T_SMALL}}, .record = print, .reference = copy},
    {.op = "print", .name = "of nothing", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {2, {0, 3}}}}, .record = print, .reference = copy},

    {.op = "host_call", .name = "two results", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {2, {5, 3}}}}, .n_out = 2, .record = host, .reference = sum_and_negated,
     .flags = T_NO_GRAD | T_NO_ENCODE | T_ALLOCATES},
    {.op = "host_call", .name = "of nothing", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {2, {0, 3}}}}, .n_out = 2, .record = host, .reference = sum_and_negated,
     .flags = T_NO_GRAD | T_NO_ENCODE | T_ALLOCATES},
    {.op = "host_call", .name = "without inputs", .dtypes = 1 << CH_F32,
     .record = host_source, .reference = counted,
     .flags = T_NO_GRAD | T_NO_ENCODE | T_ALLOCATES},
    {0},
};

static const t_refusal refusals[] = {
    {.op = "with_layout", .name = "unknown kind", .n_in = 1, .in = {{.shape = {2, {2, 3}}}},
     .record = unknown_kind, .code = CH_INVALID_ARGUMENT, .words = {"kind 4"}},
    {.op = "with_layout", .name = "another rank", .n_in = 1, .in = {{.shape = {2, {2, 3}}}},
     .record = another_rank, .code = CH_INVALID_ARGUMENT, .words = {"3 numbers", "rank 2"}},
    {.op = "with_layout", .name = "negative parts", .n_in = 1, .in = {{.shape = {2, {2, 3}}}},
     .record = negative_parts, .code = CH_INVALID_ARGUMENT, .words = {"kind 0"}},
    {.op = "with_layout", .name = "distant core", .n_in = 1, .in = {{.shape = {2, {2, 3}}}},
     .record = distant_core, .code = CH_INVALID_ARGUMENT, .words = {"kind 2"}},
    {.op = "with_layout", .name = "distant axis", .n_in = 1, .in = {{.shape = {2, {2, 3}}}},
     .record = distant_axis, .code = CH_INVALID_ARGUMENT, .words = {"kind 3"}},
    {.op = "check_numerics", .name = "NaN", .dtype = CH_F32, .record = check_nan,
     .code = CH_INVALID_ARGUMENT,
     .words = {"check_numerics(f32(2, 3)): logits: NaN at index (1, 1)", "in block"}},
    {.op = "check_numerics", .name = "Inf", .dtype = CH_F32, .record = check_inf,
     .code = CH_INVALID_ARGUMENT, .words = {"logits: Inf at index (0, 0)"}},
    {.op = "check_numerics", .name = "minus Inf", .dtype = CH_F32, .record = check_minus_inf,
     .code = CH_INVALID_ARGUMENT, .words = {"check_numerics(f32(2, 3)): -Inf at index (0, 2)"}},
    {.op = "check_numerics", .name = "of what nobody uses", .n_in = 1, .in = SIX,
     .dtype = CH_F32, .record = check_unused, .code = CH_INVALID_ARGUMENT,
     .words = {"aside: NaN at index (1, 2)"}},
    {.op = "check_numerics", .name = "of a gradient", .n_in = 1,
     .in = {{.shape = {2, {2, 3}}, .is_static = true}}, .dtype = CH_F32,
     .record = check_gradient, .code = CH_INVALID_ARGUMENT,
     .words = {"gradient of x: Inf at index (1, 0)"}},
    {.op = "check_numerics", .name = "of integers", .n_in = 1, .in = SIX, .dtype = CH_I32,
     .record = check, .code = CH_INVALID_ARGUMENT, .words = {"check_numerics", "i32", "float"}},
    {.op = "check", .name = "that does not hold", .n_in = 1, .in = SIX, .dtype = CH_F32,
     .record = claim_false, .code = CH_INVALID_ARGUMENT,
     .words = {"check(bool(2, 3)): too large; use less"}},
    {.op = "check", .name = "without a message", .n_in = 1, .in = SIX, .dtype = CH_F32,
     .record = claim_unnamed, .code = CH_INVALID_ARGUMENT, .words = {"does not hold"}},
    {.op = "check", .name = "of floats", .n_in = 1, .in = SIX, .dtype = CH_F32,
     .record = claim_float, .code = CH_INVALID_ARGUMENT, .words = {"f32", "want bool"}},
    {.op = "host_call", .name = "that refuses", .n_in = 1, .in = SIX, .dtype = CH_F32,
     .record = host_refuses, .code = CH_OUT_OF_RANGE,
     .words = {"host_call(f32(2, 3)): lookup returned OUT_OF_RANGE"}},
    {.op = "host_call", .name = "that fails inside", .n_in = 1, .in = SIX, .dtype = CH_F32,
     .record = host_fails, .code = CH_INVALID_ARGUMENT, .words = {"host_call", "lookup: ", "7"}},
    {.op = "host_call", .name = "of no function", .n_in = 1, .in = SIX, .dtype = CH_F32,
     .record = host_without_function, .code = CH_INVALID_ARGUMENT,
     .words = {"host_call lookup: there is no function"}},
    {.op = "host_call", .name = "with nine outputs", .n_in = 1, .in = SIX, .dtype = CH_F32,
     .record = host_with_nine, .code = CH_INVALID_ARGUMENT, .words = {"9 outputs", "0 to 8"}},
    {.op = "host_call", .name = "without room for its output", .n_in = 1, .in = SIX,
     .dtype = CH_F32, .record = host_without_room, .code = CH_INVALID_ARGUMENT,
     .words = {"out is NULL", "1 outputs"}},
    {.op = "host_call", .name = "that makes text", .n_in = 1, .in = SIX, .dtype = CH_F32,
     .record = host_makes_text, .code = CH_INVALID_ARGUMENT, .words = {"output 0 is string"}},
    {.op = "host_call", .name = "differentiated", .n_in = 1, .in = SIX, .dtype = CH_F32,
     .record = host_gradient, .code = CH_UNIMPLEMENTED,
     .words = {"host_call has no gradient", "ch_stop_gradient"}},
    {0},
};
/* clang-format on */

const t_family t_effect = {"effect", samples, refusals};

/* test/ops/samples_control.c -- samples of branches and loops: cond, scan and while.
 *
 * The references run the same branches and loops in doubles.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "sample.h"

/* ---- cond ---- */

static void exp_branch(ch_step *s, void *arg, ch_node **out)
{
    ch_node **in = arg;

    (void)s;
    out[0] = ch_exp(ch_mul(in[0], in[1]));
    out[1] = in[1];
}

static void sin_branch(ch_step *s, void *arg, ch_node **out)
{
    ch_node **in = arg;

    out[0] = ch_add(ch_sin(in[0]), ch_number(s, 1));
    out[1] = ch_mul(in[0], in[0]);
}

static void record_cond(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *both[] = {in[0], in[1]};

    (void)s;
    ch_cond(ch_greater(ch_sum_all(in[2]), ch_number(s, 0)), 2, exp_branch, sin_branch, both,
            out);
}

static void reference_cond(const t_array *in, t_array *out)
{
    double sum = 0;

    for (int64_t i = 0; i < ch_shape_count(in[2].shape); i++)
        sum += in[2].v[i];
    t_out(&out[0], in[0].shape);
    t_out(&out[1], in[0].shape);
    for (int64_t i = 0; i < ch_shape_count(in[0].shape); i++) {
        double a = in[0].v[i], b = in[1].v[i];

        out[0].v[i] = sum > 0 ? exp(a * b) : sin(a) + 1;
        out[1].v[i] = sum > 0 ? b : a * a;
    }
}

/* ---- scan: h = tanh(h * w + x), y = h * h, over the slices of x ---- */

static void cell(ch_step *s, void *arg, ch_node *const *h, ch_node *const *x, ch_node **next,
                 ch_node **y)
{
    (void)s;
    next[0] = ch_tanh(ch_add(ch_mul(h[0], arg), x[0]));
    y[0] = ch_mul(next[0], next[0]);
}

static void record_scan(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_scan(s, &(ch_scan_spec){.n_carry = 1, .n_x = 1, .n_y = 1}, cell, in[2], &in[0], &in[1],
            &out[0], &out[1]);
}

static void record_scan_back(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_scan(s, &(ch_scan_spec){.n_carry = 1, .n_x = 1, .n_y = 1, .reverse = true}, cell, in[2],
            &in[0], &in[1], &out[0], &out[1]);
}

static void scan_by_hand(const t_array *in, t_array *out, bool reverse)
{
    int64_t length = in[1].shape.dim[0], n = in[0].shape.dim[0];

    t_out(&out[0], in[0].shape);
    t_out(&out[1], in[1].shape);
    for (int64_t i = 0; i < n; i++) {
        double h = in[0].v[i];

        for (int64_t t = 0; t < length; t++) {
            int64_t at = (reverse ? length - 1 - t : t) * n + i;

            h = tanh(h * in[2].v[i] + in[1].v[at]);
            out[1].v[at] = h * h;
        }
        out[0].v[i] = h;
    }
}

static void reference_scan(const t_array *in, t_array *out)
{
    scan_by_hand(in, out, false);
}

static void reference_scan_back(const t_array *in, t_array *out)
{
    scan_by_hand(in, out, true);
}

/* ---- while: doubles x until its sum is at least 20, at most 8 times ---- */

static ch_node *is_small(ch_step *s, void *arg, ch_node *const *x)
{
    (void)arg;
    return ch_less(ch_sum_all(x[0]), ch_number(s, 20));
}

static void grow(ch_step *s, void *arg, ch_node *const *x, ch_node **next)
{
    next[0] = ch_add(ch_mul(x[0], ch_number(s, 2)), arg);
}

static void record_while(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_while(s, 1, 8, is_small, grow, in[1], &in[0], out);
}

static void reference_while(const t_array *in, t_array *out)
{
    int64_t n = ch_shape_count(in[0].shape);

    t_out(&out[0], in[0].shape);
    for (int64_t i = 0; i < n; i++)
        out[0].v[i] = in[0].v[i];
    for (int t = 0; t < 8; t++) {
        double sum = 0;

        for (int64_t i = 0; i < n; i++)
            sum += out[0].v[i];
        if (sum >= 20)
            break;
        for (int64_t i = 0; i < n; i++)
            out[0].v[i] = 2 * out[0].v[i] + in[1].v[i];
    }
}

/* ---- refusals ---- */

static void unequal_branch(ch_step *s, void *arg, ch_node **out)
{
    (void)arg;
    out[0] = ch_number(s, 1);
    out[1] = ch_number(s, 1);
}

static void record_unequal(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *both[] = {in[0], in[0]};

    ch_cond(ch_less(ch_number(s, 0), ch_number(s, 1)), 2, exp_branch,
            in[0] != NULL ? unequal_branch : NULL, both, out);
}

static void record_float_condition(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *both[] = {in[0], in[0]};

    ch_cond(ch_sum_all(in[0]), 2, exp_branch, sin_branch, both, out);
    (void)s;
}

static void widening_cell(ch_step *s, void *arg, ch_node *const *h, ch_node *const *x,
                          ch_node **next, ch_node **y)
{
    (void)s, (void)arg, (void)x, (void)y;
    next[0] = ch_sum_all(h[0]);
}

static void record_widening(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_scan(s, &(ch_scan_spec){.n_carry = 1, .length = 3}, widening_cell, NULL, &in[0], NULL,
            out, NULL);
}

static void all_reduce_cell(ch_step *s, void *arg, ch_node *const *h, ch_node *const *x,
                            ch_node **next, ch_node **y)
{
    (void)s, (void)arg, (void)x, (void)y;
    next[0] = ch_all_reduce(CH_SUM, h[0]);
}

static void record_all_reduce(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_scan(s, &(ch_scan_spec){.n_carry = 1, .length = 3}, all_reduce_cell, NULL, &in[0], NULL,
            out, NULL);
}

#define VEC(n)                                                                                 \
    {                                                                                          \
        {1, {n}}, T_UNIT, 0, false, false                                                      \
    }
#define FIXED(n)                                                                               \
    {                                                                                          \
        {1, {n}}, T_UNIT, 0, false, true                                                       \
    }
#define POS(n)                                                                                 \
    {                                                                                          \
        {1, {n}}, T_POSITIVE, 0, false, false                                                  \
    }
#define MAT(m, n)                                                                              \
    {                                                                                          \
        {2, {m, n}}, T_UNIT, 0, false, false                                                   \
    }

static const t_sample samples[] = {
    {.op = "cond",
     .name = "the first branch",
     .dtypes = T_WIDE,
     .n_in = 3,
     .in = {VEC(4), VEC(4), POS(3)},
     .n_out = 2,
     .record = record_cond,
     .reference = reference_cond},
    {.op = "cond",
     .name = "the second branch, no rows",
     .dtypes = T_WIDE,
     .n_in = 3,
     .in = {VEC(0), VEC(0), {{1, {0}}, T_UNIT, 0, false, true}},
     .n_out = 2,
     .record = record_cond,
     .reference = reference_cond},
    {.op = "scan",
     .name = "a recurrence",
     .dtypes = T_WIDE,
     .n_in = 3,
     .in = {FIXED(3), MAT(5, 3), FIXED(3)},
     .n_out = 2,
     .record = record_scan,
     .reference = reference_scan},
    {.op = "scan",
     .name = "from the end",
     .dtypes = T_WIDE,
     .n_in = 3,
     .in = {FIXED(2), MAT(4, 2), FIXED(2)},
     .n_out = 2,
     .record = record_scan_back,
     .reference = reference_scan_back},
    {.op = "scan",
     .name = "no iterations",
     .dtypes = T_WIDE,
     .n_in = 3,
     .in = {FIXED(2), MAT(0, 2), FIXED(2)},
     .n_out = 2,
     .record = record_scan,
     .reference = reference_scan},
    {.op = "scan",
     .name = "while, ends early",
     .dtypes = T_WIDE,
     .n_in = 2,
     .in = {POS(3), POS(3)},
     .record = record_while,
     .reference = reference_while},
    {0},
};

static const t_refusal refusals[] = {
    {.op = "cond",
     .name = "branches that differ",
     .n_in = 1,
     .in = {VEC(3)},
     .dtype = CH_F32,
     .record = record_unequal,
     .code = CH_INVALID_ARGUMENT,
     .words = {"cond", "branches"}},
    {.op = "cond",
     .name = "a condition that is a float",
     .n_in = 1,
     .in = {VEC(3)},
     .dtype = CH_F32,
     .record = record_float_condition,
     .code = CH_INVALID_ARGUMENT,
     .words = {"cond", "bool scalar"}},
    {.op = "scan",
     .name = "a carry that changes shape",
     .n_in = 1,
     .in = {VEC(3)},
     .dtype = CH_F32,
     .record = record_widening,
     .code = CH_INVALID_ARGUMENT,
     .words = {"scan", "carry 0"}},
    {.op = "scan",
     .name = "a collective inside",
     .n_in = 1,
     .in = {VEC(3)},
     .dtype = CH_F32,
     .record = record_all_reduce,
     .code = CH_FAILED_PRECONDITION,
     .words = {"all_reduce", "scan"}},
    {0},
};

const t_family t_control = {"control", samples, refusals};

/* ops/apply_hyper.c -- the numbers that an update rule needs in a run, from those that change.
 *
 * All of it in f64, in one call: the powers of Adam's betas lose most of their digits in f32 in
 * the first steps.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "ops/apply.h"
#include "ops/ops.h"

enum { ITERATIONS, RATE, APPLY, DIVISOR, SQUARES, GLOBAL, INPUTS };

typedef struct hyper_attrs {
    const char     *rule;
    ch_dtype        dtype;
    ch_rule_numbers set;
} hyper_attrs;

static const ch_attr hyper_rows[] = {
    CH_ATTR_TEXT(hyper_attrs, rule),
    CH_ATTR_DTYPE(hyper_attrs, dtype),
    {"beta1", CH_ATTR_KIND_FLOAT, offsetof(hyper_attrs, set.beta1)},
    {"beta2", CH_ATTR_KIND_FLOAT, offsetof(hyper_attrs, set.beta2)},
    {"epsilon", CH_ATTR_KIND_FLOAT, offsetof(hyper_attrs, set.epsilon)},
    {"momentum", CH_ATTR_KIND_FLOAT, offsetof(hyper_attrs, set.momentum)},
    {"power", CH_ATTR_KIND_FLOAT, offsetof(hyper_attrs, set.power)},
    {"l1", CH_ATTR_KIND_FLOAT, offsetof(hyper_attrs, set.l1)},
    {"l2", CH_ATTR_KIND_FLOAT, offsetof(hyper_attrs, set.l2)},
    {"shrink", CH_ATTR_KIND_FLOAT, offsetof(hyper_attrs, set.shrink)},
    {"beta", CH_ATTR_KIND_FLOAT, offsetof(hyper_attrs, set.beta)},
    {"decay", CH_ATTR_KIND_FLOAT, offsetof(hyper_attrs, set.decay)},
    {"clip_value", CH_ATTR_KIND_FLOAT, offsetof(hyper_attrs, set.clip_value)},
    {"clip_norm", CH_ATTR_KIND_FLOAT, offsetof(hyper_attrs, set.clip_norm)},
    {"clip_global_norm", CH_ATTR_KIND_FLOAT, offsetof(hyper_attrs, set.clip_global_norm)},
    {"scale", CH_ATTR_KIND_FLOAT, offsetof(hyper_attrs, set.scale)},
    CH_ATTR_END,
};

static ch_status hyper_infer(ch_infer *c)
{
    static const ch_dtype want[INPUTS] = {CH_I64, CH_F64, CH_BOOL, CH_F32, CH_F64, CH_F64};
    const hyper_attrs    *a = c->attrs;

    if (ch__rule_find(a->rule) == NULL)
        return ch__infer_fail(c, "there is no rule \"%s\"", a->rule != NULL ? a->rule : "");
    if (a->dtype != CH_F32 && a->dtype != CH_F64)
        return ch__infer_fail(c, "%s is asked for, want f32 or f64", ch_dtype_name(a->dtype));
    for (int i = 0; i < INPUTS; i++)
        if (c->in[i].rank != 0 || c->dtype[i] != want[i])
            return ch__infer_fail(c, "input %d is not a scalar of %s", i,
                                  ch_dtype_name(want[i]));
    return ch__infer_out(c, 0, a->dtype, 1, (ch_dim[]){ch__dim(CH_HYPERS)});
}

/* What brings a norm down to `most`. */
static double shorten(double scale, double squares, double most)
{
    double norm = sqrt(squares) * fabs(scale);

    return most > 0 && norm > most ? scale * (most / norm) : scale;
}

/* 1 - beta^t, exact also where beta is close to 1. */
static double rest_of(double beta, double t)
{
    return beta > 0 ? -expm1(t * log(beta)) : 1;
}

/* Whether FTRL, which divides by the rate, can do so. At a rate of 0 nothing moves. */
static bool divides(const hyper_attrs *a, double rate)
{
    return isfinite(a->dtype == CH_F64 ? 1 / rate : (double)(1 / (float)rate));
}

static void fill(const hyper_attrs *a, const ch_call *c, double *h)
{
    const ch_rule_numbers *set = &a->set;
    double                 t = (double)*(const int64_t *)c->in[ITERATIONS] + 1;
    double                 rate = *(const double *)c->in[RATE];
    double                 scale = set->scale / (double)*(const float *)c->in[DIVISOR];
    double                 right1 = rest_of(set->beta1, t), right2 = rest_of(set->beta2, t);
    ch_rule_kind           kind = ch__rule_find(a->rule)->kind;

    scale = shorten(scale, *(const double *)c->in[SQUARES], set->clip_norm);
    scale = shorten(scale, *(const double *)c->in[GLOBAL], set->clip_global_norm);
    h[CH_HYPER_APPLY] =
        *(const bool *)c->in[APPLY] && (kind != CH_RULE_FTRL || divides(a, rate));
    h[CH_HYPER_SCALE] = scale;
    h[CH_HYPER_CLIP] = set->clip_value > 0 ? set->clip_value : INFINITY;
    h[CH_HYPER_RATE] = rate;
    if (kind == CH_RULE_ADAM || kind == CH_RULE_AMSGRAD)
        h[CH_HYPER_RATE] = rate * sqrt(right2) / right1;
    else if (kind == CH_RULE_ADAMAX)
        h[CH_HYPER_RATE] = rate / right1;
    h[CH_HYPER_DECAY] = kind == CH_RULE_LAMB ? set->decay : rate * set->decay;
    h[CH_HYPER_BETA1] = set->beta1;
    h[CH_HYPER_REST1] = 1 - set->beta1;
    h[CH_HYPER_BETA2] = set->beta2;
    h[CH_HYPER_REST2] = 1 - set->beta2;
    h[CH_HYPER_EPSILON] = set->epsilon;
    h[CH_HYPER_MOMENTUM] = set->momentum;
    h[CH_HYPER_POWER] = set->power;
    h[CH_HYPER_L1] = set->l1;
    h[CH_HYPER_L2] = set->l2 + (set->beta != 0 ? set->beta / (2 * rate) : 0);
    h[CH_HYPER_SHRINK] = set->shrink;
    h[CH_HYPER_RIGHT1] = 1 / right1;
    h[CH_HYPER_RIGHT2] = 1 / right2;
}

static ch_status hyper_run(const ch_call *c, ch_piece t)
{
    const hyper_attrs *a = ch__attrs(c->node);
    double             h[CH_HYPERS];

    (void)t;
    fill(a, c, h);
    for (int i = 0; i < CH_HYPERS; i++)
        if (a->dtype == CH_F64)
            ((double *)c->out[0])[i] = h[i];
        else
            ((float *)c->out[0])[i] = (float)h[i];
    return CH_OK;
}

static const ch_kernel hyper_plain = {"plain", ch__always, ch__prepare_nothing, hyper_run,
                                      NULL};

const ch_op ch__op_hyper = {
    .name = "hyper",
    .version = 1,
    .n_in = INPUTS,
    .n_out = 1,
    .attrs = hyper_rows,
    .attrs_bytes = sizeof(hyper_attrs),
    .infer = hyper_infer,
    .kernels = (const ch_kernel *const[]){&hyper_plain, NULL},
};

ch_node *ch__hyper(ch_rule_kind rule, ch_dtype dtype, const ch_rule_numbers *numbers,
                   const ch_rule_inputs *in)
{
    hyper_attrs a = {ch__rule(rule)->name, dtype, *numbers};

    return ch__node(&ch__op_hyper, &a, INPUTS,
                    ((ch_node *[]){in->iterations, in->rate, in->apply, in->divisor,
                                   in->squares, in->squares_of_global}));
}

/* ops/apply_hyper.c -- the op hyper: computes the hyperparameters of a rule (kernel/hyper.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
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
        return ch__infer_fail(c, "rule \"%s\" does not exist", a->rule != NULL ? a->rule : "");
    if (a->dtype != CH_F32 && a->dtype != CH_F64)
        return ch__infer_fail(c, "dtype is %s, want f32 or f64", ch_dtype_name(a->dtype));
    for (int i = 0; i < INPUTS; i++)
        if (c->in[i].rank != 0 || c->dtype[i] != want[i])
            return ch__infer_fail(c, "input %d must be a scalar of dtype %s", i,
                                  ch_dtype_name(want[i]));
    return ch__infer_out(c, 0, a->dtype, 1, (ch_dim[]){ch__dim(CH_HYPERS)});
}

static ch_status hyper_run(const ch_call *c, ch_kernel_tile t)
{
    const hyper_attrs *a = ch__attrs(c->node);
    ch_rule_run        run = {.iterations = *(const int64_t *)c->in[ITERATIONS],
                              .rate = *(const double *)c->in[RATE],
                              .apply = *(const bool *)c->in[APPLY],
                              .divisor = (double)*(const float *)c->in[DIVISOR],
                              .squares = *(const double *)c->in[SQUARES],
                              .squares_of_global = *(const double *)c->in[GLOBAL]};

    (void)t;
    ch__hyper_fill(ch__rule_find(a->rule), a->dtype, &a->set, &run, c->out[0]);
    return CH_OK;
}

static const ch_kernel hyper_plain = {"plain", .run = hyper_run};

const ch_op ch__op_hyper = {
    .name = "hyper",
    .version = 1,
    .n_in = INPUTS,
    .n_out = 1,
    .attrs = hyper_rows,
    .attrs_bytes = sizeof(hyper_attrs),
    .infer = hyper_infer,
    .replicated = "it computes a few numbers from scalars",
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

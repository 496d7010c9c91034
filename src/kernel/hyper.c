/* kernel/hyper.c -- the hyperparameters that an update rule needs in a step.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/hyper.h"

#include <math.h>

/* Returns the scale, reduced if necessary so that the norm of the scaled gradient is at most
 * `most`. A `most` of 0 means no limit. */
static double clip_scale(double scale, double squares, double most)
{
    double norm = sqrt(squares) * fabs(scale);

    return most > 0 && norm > most ? scale * (most / norm) : scale;
}

/* Returns 1 - beta^t, exact even if beta is close to 1. */
static double one_minus_power(double beta, double t)
{
    return beta > 0 ? -expm1(t * log(beta)) : 1;
}

/* Returns true if 1 / rate is finite in `dtype`. FTRL divides by the rate, so at a rate of 0 it
 * changes nothing. */
static bool can_divide_by(ch_dtype dtype, double rate)
{
    return isfinite(dtype == CH_F64 ? 1 / rate : (double)(1 / (float)rate));
}

static void fill(ch_rule_kind kind, ch_dtype dtype, const ch_rule_numbers *set,
                 const ch_rule_run *run, double *h)
{
    double t = (double)run->iterations + 1, rate = run->rate;
    double scale = set->scale / run->divisor;
    double correction1 = one_minus_power(set->beta1, t),
           correction2 = one_minus_power(set->beta2, t);

    scale = clip_scale(scale, run->squares, set->clip_norm);
    scale = clip_scale(scale, run->squares_of_global, set->clip_global_norm);
    h[CH_HYPER_APPLY] = run->apply && (kind != CH_RULE_FTRL || can_divide_by(dtype, rate));
    h[CH_HYPER_SCALE] = scale;
    h[CH_HYPER_CLIP] = set->clip_value > 0 ? set->clip_value : INFINITY;
    h[CH_HYPER_RATE] = rate;
    if (kind == CH_RULE_ADAM || kind == CH_RULE_AMSGRAD)
        h[CH_HYPER_RATE] = rate * sqrt(correction2) / correction1;
    else if (kind == CH_RULE_ADAMAX)
        h[CH_HYPER_RATE] = rate / correction1;
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
    h[CH_HYPER_CORRECTION1] = 1 / correction1;
    h[CH_HYPER_CORRECTION2] = 1 / correction2;
}

void ch__hyper_fill(const ch_rule *rule, ch_dtype dtype, const ch_rule_numbers *set,
                    const ch_rule_run *run, void *out)
{
    double h[CH_HYPERS];

    fill(rule->kind, dtype, set, run, h);
    for (int i = 0; i < CH_HYPERS; i++)
        if (dtype == CH_F64)
            ((double *)out)[i] = h[i];
        else
            ((float *)out)[i] = (float)h[i];
}

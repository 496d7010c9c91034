/* train/optimizer.c -- creation of optimizers.
 *
 * Each ch_optimizer function checks its options, describes the rule in a rule_spec, and calls
 * new_optimizer. The variables of an optimizer are created later, in optimizer_vars.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "train/optimizer.h"

#include <math.h>

#include "base/fault.h"
#include "base/mem.h"
#include "train/schedule.h"

#define INITIAL_LOSS_SCALE 32768.0

/* ---- options ---- */

typedef struct bound {
    const char *option;
    /* `value` must be at least 0 and less than `below`, which is 1 or INFINITY. */
    double value, below;
} bound;

/* Checks the bounds. The numbers must also be finite in f32, because they are cast to f32 for
 * f32 variables. */
static ch_status check_bounds(const char *name, int n, const bound *b)
{
    for (int i = 0; i < n; i++)
        if (!(b[i].value >= 0 && b[i].value < b[i].below) || isinf((float)b[i].value))
            return ch__fail(CH_INVALID_ARGUMENT, "%s: %s is %g, want at least 0%s", name,
                            b[i].option, b[i].value,
                            isinf(b[i].below) ? ", and finite in f32" : " and less than 1");
    return CH_OK;
}

static ch_status check_options(const char *name, double rate, const ch_optimizer_options *opt)
{
    bound     b[] = {{"the rate", rate, INFINITY},
                     {"weight_decay", opt->weight_decay, INFINITY},
                     {"clip_value", opt->clip_value, INFINITY},
                     {"clip_norm", opt->clip_norm, INFINITY},
                     {"clip_global_norm", opt->clip_global_norm, INFINITY},
                     {"average", opt->average, 1},
                     {"loss_scale", opt->loss_scale, INFINITY}};
    ch_status rc;

    if (opt->weight_decay == CH_OFF)
        b[1].value = 0;
    rc = check_bounds(name, sizeof(b) / sizeof(b[0]), b);
    if (rc == CH_OK && opt->schedule != NULL)
        rc = ch__schedule_check(opt->schedule);
    if (rc != CH_OK)
        return rc;
    if (opt->name != NULL && opt->name[0] == '\0')
        return ch__fail(CH_INVALID_ARGUMENT, "%s: the name is \"\", want a name or NULL", name);
    if (opt->accumulate < 0)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: accumulate is %d, want 0 or more", name,
                        opt->accumulate);
    if (opt->clip_norm > 0 && opt->clip_global_norm > 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: clip_norm and clip_global_norm are both set; set only one of them",
                        name);
    if ((int)opt->nonfinite < 0 || opt->nonfinite > CH_NONFINITE_STOP)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: nonfinite is %d, want a value of ch_nonfinite", name,
                        (int)opt->nonfinite);
    if (opt->dynamic_loss_scale && opt->nonfinite == CH_NONFINITE_STOP)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: dynamic_loss_scale skips steps that are not finite; it cannot be "
                        "combined with CH_NONFINITE_STOP",
                        name);
    return CH_OK;
}

static void apply_options(ch_optimizer *o, const ch_optimizer_options *opt, double decay)
{
    o->numbers.decay = opt->weight_decay == CH_OFF ? 0
                       : opt->weight_decay > 0     ? opt->weight_decay
                                                   : decay;
    o->numbers.clip_value = opt->clip_value;
    o->numbers.clip_norm = opt->clip_norm;
    o->numbers.clip_global_norm = opt->clip_global_norm;
    o->accumulate = opt->accumulate > 1 ? opt->accumulate : 1;
    o->numbers.scale = 1.0 / o->accumulate;
    o->average = opt->average;
    o->nonfinite = opt->dynamic_loss_scale ? CH_NONFINITE_SKIP : opt->nonfinite;
    o->is_dynamic = opt->dynamic_loss_scale;
    o->loss_scale = opt->loss_scale > 0 ? opt->loss_scale
                    : o->is_dynamic     ? INITIAL_LOSS_SCALE
                                        : 0;
    o->has_schedule = opt->schedule != NULL;
    if (o->has_schedule)
        o->schedule = *opt->schedule;
}

/* ---- creation ---- */

typedef struct rule_spec {
    const char     *name;
    ch_rule_kind    rule;
    double          rate, decay, initial;
    ch_rule_numbers numbers;
} rule_spec;

static ch_status new_optimizer(const rule_spec *w, const ch_optimizer_options *opt,
                               ch_optimizer **out)
{
    static const ch_optimizer_options none;
    ch_optimizer                     *o;
    ch_status                         rc;

    opt = opt != NULL ? opt : &none;
    rc = ch__check_not_null(w->name, "out", out, NULL, NULL);
    if (rc == CH_OK)
        rc = check_options(w->name, w->rate, opt);
    if (rc != CH_OK)
        return rc;
    o = ch__calloc(1, sizeof(*o));
    if (o == NULL)
        return ch__fail_memory("an optimizer");
    o->name = ch__strdup(opt->name != NULL ? opt->name : w->name);
    if (o->name == NULL) {
        ch__free(o);
        return ch__fail_memory("an optimizer");
    }
    atomic_init(&o->refs, 1);
    o->rule = ch__rule(w->rule);
    o->numbers = w->numbers;
    o->initial = w->initial;
    o->rate = w->rate;
    apply_options(o, opt, w->decay);
    *out = o;
    return CH_OK;
}

static double or_default(double x, double otherwise)
{
    return x != 0 ? x : otherwise;
}

ch_status ch_optimizer_sgd(double rate, const ch_optimizer_sgd_options *rule,
                           const ch_optimizer_options *opt, ch_optimizer **out)
{
    ch_optimizer_sgd_options r = rule != NULL ? *rule : (ch_optimizer_sgd_options){0};
    ch_rule_kind             kind = r.momentum == 0 ? CH_RULE_SGD
                                    : r.nesterov    ? CH_RULE_NESTEROV
                                                    : CH_RULE_MOMENTUM;
    ch_status rc = check_bounds("sgd", 1, (bound[]){{"momentum", r.momentum, 1}});

    if (rc == CH_OK && r.nesterov && r.momentum == 0)
        rc = ch__fail(CH_INVALID_ARGUMENT, "sgd: nesterov needs a momentum above 0");
    return rc != CH_OK ? rc
                       : new_optimizer(&(rule_spec){"sgd", kind, rate,
                                                    .numbers = {.momentum = r.momentum}},
                                       opt, out);
}

ch_status ch_optimizer_adagrad(double rate, const ch_optimizer_adagrad_options *rule,
                               const ch_optimizer_options *opt, ch_optimizer **out)
{
    ch_optimizer_adagrad_options r = rule != NULL ? *rule : (ch_optimizer_adagrad_options){0};
    ch_status                    rc = check_bounds(
                           "adagrad", 2,
                           (bound[]){{"initial", r.initial, INFINITY}, {"epsilon", r.epsilon, INFINITY}});

    return rc != CH_OK ? rc
                       : new_optimizer(
                             &(rule_spec){"adagrad",
                                          r.row_wise ? CH_RULE_ADAGRAD_ROWS : CH_RULE_ADAGRAD,
                                          rate, .initial = or_default(r.initial, 0.1),
                                          .numbers = {.epsilon = or_default(r.epsilon, 1e-7)}},
                             opt, out);
}

ch_status ch_optimizer_rmsprop(double rate, const ch_optimizer_rmsprop_options *rule,
                               const ch_optimizer_options *opt, ch_optimizer **out)
{
    static const ch_rule_kind kind[2][2] = {
        {CH_RULE_RMSPROP, CH_RULE_RMSPROP_MOMENTUM},
        {CH_RULE_RMSPROP_CENTERED, CH_RULE_RMSPROP_CENTERED_MOMENTUM}};
    ch_optimizer_rmsprop_options r = rule != NULL ? *rule : (ch_optimizer_rmsprop_options){0};
    ch_status                    rc = check_bounds("rmsprop", 3,
                                                   (bound[]){{"rho", r.rho, 1},
                                                             {"momentum", r.momentum, 1},
                                                             {"epsilon", r.epsilon, INFINITY}});

    return rc != CH_OK ? rc
                       : new_optimizer(
                             &(rule_spec){"rmsprop", kind[r.centered][r.momentum != 0], rate,
                                          .numbers = {.beta2 = or_default(r.rho, 0.9),
                                                      .momentum = r.momentum,
                                                      .epsilon = or_default(r.epsilon, 1e-7)}},
                             opt, out);
}

/* Creates Adam and its variants: AdamW, AMSGrad, Adamax and LAMB. */
static ch_status new_adam(const char *name, ch_rule_kind kind, double rate, double decay,
                          double epsilon, const ch_optimizer_adam_options *rule,
                          const ch_optimizer_options *opt, ch_optimizer **out)
{
    ch_optimizer_adam_options r = rule != NULL ? *rule : (ch_optimizer_adam_options){0};
    ch_status                 rc = check_bounds(name, 3,
                                                (bound[]){{"beta1", r.beta1, 1},
                                                          {"beta2", r.beta2, 1},
                                                          {"epsilon", r.epsilon, INFINITY}});

    if (rc == CH_OK && r.amsgrad && kind != CH_RULE_ADAM)
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s: amsgrad is supported by adam and adamw only",
                      name);
    return rc != CH_OK
               ? rc
               : new_optimizer(
                     &(rule_spec){name, r.amsgrad ? CH_RULE_AMSGRAD : kind, rate, decay,
                                  .numbers = {.beta1 = or_default(r.beta1, 0.9),
                                              .beta2 = or_default(r.beta2, 0.999),
                                              .epsilon = or_default(r.epsilon, epsilon)}},
                     opt, out);
}

ch_status ch_optimizer_adam(double rate, const ch_optimizer_adam_options *rule,
                            const ch_optimizer_options *opt, ch_optimizer **out)
{
    return new_adam("adam", CH_RULE_ADAM, rate, 0, 1e-7, rule, opt, out);
}

ch_status ch_optimizer_adamw(double rate, const ch_optimizer_adam_options *rule,
                             const ch_optimizer_options *opt, ch_optimizer **out)
{
    return new_adam("adamw", CH_RULE_ADAM, rate, 0.01, 1e-7, rule, opt, out);
}

ch_status ch_optimizer_adamax(double rate, const ch_optimizer_adam_options *rule,
                              const ch_optimizer_options *opt, ch_optimizer **out)
{
    return new_adam("adamax", CH_RULE_ADAMAX, rate, 0, 1e-7, rule, opt, out);
}

ch_status ch_optimizer_lamb(double rate, const ch_optimizer_adam_options *rule,
                            const ch_optimizer_options *opt, ch_optimizer **out)
{
    return new_adam("lamb", CH_RULE_LAMB, rate, 0.01, 1e-6, rule, opt, out);
}

ch_status ch_optimizer_ftrl(double rate, const ch_optimizer_ftrl_options *rule,
                            const ch_optimizer_options *opt, ch_optimizer **out)
{
    ch_optimizer_ftrl_options r = rule != NULL ? *rule : (ch_optimizer_ftrl_options){0};
    ch_status                 rc = check_bounds("ftrl", 5,
                                                (bound[]){{"initial", r.initial, INFINITY},
                                                          {"l1", r.l1, INFINITY},
                                                          {"l2", r.l2, INFINITY},
                                                          {"l2_shrinkage", r.l2_shrinkage, INFINITY},
                                                          {"beta", r.beta, INFINITY}});

    if (rc == CH_OK && !(r.power <= 0 && isfinite((float)r.power)))
        rc = ch__fail(CH_INVALID_ARGUMENT, "ftrl: power is %g, want at most 0, and finite",
                      r.power);
    return rc != CH_OK
               ? rc
               : new_optimizer(&(rule_spec){"ftrl", CH_RULE_FTRL, rate,
                                            .initial = or_default(r.initial, 0.1),
                                            .numbers = {.power = or_default(r.power, -0.5),
                                                        .l1 = r.l1,
                                                        .l2 = r.l2,
                                                        .shrink = r.l2_shrinkage,
                                                        .beta = r.beta}},
                               opt, out);
}

ch_optimizer *ch_optimizer_ref(ch_optimizer *o)
{
    if (o != NULL)
        atomic_fetch_add_explicit(&o->refs, 1, memory_order_relaxed);
    return o;
}

void ch_optimizer_unref(ch_optimizer *o)
{
    if (o == NULL || atomic_fetch_sub_explicit(&o->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (int i = 0; i < o->n_all; i++)
        ch_var_unref(o->all[i]);
    for (int i = 0; i < o->n_entries; i++)
        ch_var_unref(o->entry[i].var);
    for (int i = 0; i < o->n_lists; i++)
        /* The references to their variables are in o->all and o->entry. */
        ch__free(o->list[i].entry);
    ch__free(o->list);
    ch__free(o->all);
    ch__free(o->entry);
    ch__free(o->name);
    ch__free(o);
}

ch_status ch_optimizer_set_rate(ch_optimizer *o, double rate)
{
    ch_tensor *t = NULL;
    ch_status  rc;

    if (o == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "optimizer: the optimizer is NULL");
    if (o->has_schedule)
        return ch__fail(CH_FAILED_PRECONDITION,
                        "%s: the rate cannot be set, because the optimizer has a schedule",
                        o->name);
    rc = check_bounds(o->name, 1, (bound[]){{"the rate", rate, INFINITY}});
    if (rc == CH_OK)
        o->rate = rate;
    if (rc != CH_OK || o->own[CH_OPT_RATE] == NULL)
        return rc;
    rc = ch_tensor_scalar(CH_F64, rate, &t);
    if (rc == CH_OK)
        rc = ch_var_set(o->own[CH_OPT_RATE], t);
    ch_tensor_unref(t);
    return rc;
}

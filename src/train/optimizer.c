/* train/optimizer.c -- optimizers: making them, and the variables that they keep.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "train/optimizer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "tensor/tensor.h"
#include "train/schedule.h"

#define FIRST_LOSS_SCALE 32768.0

/* ---- options ---- */

typedef struct bound {
    const char *what;
    double      value, least, below; /* 1 or INFINITY */
} bound;

static ch_status check_bounds(const char *name, int n, const bound *b)
{
    for (int i = 0; i < n; i++)
        if (!(b[i].value >= b[i].least && b[i].value < b[i].below))
            return ch__fail(CH_INVALID_ARGUMENT, "%s: %s is %g, want at least %g%s", name,
                            b[i].what, b[i].value, b[i].least,
                            isinf(b[i].below) ? ", and finite" : " and less than 1");
    return CH_OK;
}

static ch_status check_options(const char *name, double rate, const ch_optimizer_options *opt)
{
    bound     b[] = {{"the rate", rate, 0, INFINITY},
                     {"weight_decay", opt->weight_decay, 0, INFINITY},
                     {"clip_value", opt->clip_value, 0, INFINITY},
                     {"clip_norm", opt->clip_norm, 0, INFINITY},
                     {"clip_global_norm", opt->clip_global_norm, 0, INFINITY},
                     {"accumulate", opt->accumulate, 0, INFINITY},
                     {"average", opt->average, 0, 1},
                     {"loss_scale", opt->loss_scale, 0, INFINITY}};
    ch_status rc;

    if (opt->weight_decay == CH_OFF)
        b[1].value = 0;
    rc = check_bounds(name, sizeof(b) / sizeof(b[0]), b);
    if (rc == CH_OK && opt->schedule != NULL)
        rc = ch__schedule_check(opt->schedule);
    if (rc != CH_OK)
        return rc;
    if (opt->clip_norm > 0 && opt->clip_global_norm > 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: clip_norm and clip_global_norm: choose one of them", name);
    if ((int)opt->nonfinite < 0 || opt->nonfinite > CH_NONFINITE_STOP)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: there is no policy %d for what is not finite",
                        name, (int)opt->nonfinite);
    if (opt->dynamic_loss_scale && opt->nonfinite == CH_NONFINITE_STOP)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: a dynamic loss scale skips steps that are not finite; it cannot "
                        "stop at them",
                        name);
    return CH_OK;
}

static void take_options(ch_optimizer *o, const ch_optimizer_options *opt, double decay)
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
                    : o->is_dynamic     ? FIRST_LOSS_SCALE
                                        : 0;
    o->has_schedule = opt->schedule != NULL;
    if (o->has_schedule)
        o->schedule = *opt->schedule;
}

/* ---- making one ---- */

typedef struct wish {
    const char     *name;
    ch_rule_kind    rule;
    double          rate, decay, initial;
    ch_rule_numbers numbers;
} wish;

static ch_status new_optimizer(const wish *w, const ch_optimizer_options *opt,
                               ch_optimizer **out)
{
    static const ch_optimizer_options none;
    ch_optimizer                     *o;
    ch_status                         rc;

    opt = opt != NULL ? opt : &none;
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
    take_options(o, opt, w->decay);
    *out = o;
    return CH_OK;
}

static double or_else(double x, double otherwise)
{
    return x != 0 ? x : otherwise;
}

ch_status ch_sgd(double rate, const ch_sgd_options *rule, const ch_optimizer_options *opt,
                 ch_optimizer **out)
{
    ch_sgd_options r = rule != NULL ? *rule : (ch_sgd_options){0};
    ch_rule_kind   kind = r.momentum == 0 ? CH_RULE_SGD
                          : r.nesterov    ? CH_RULE_NESTEROV
                                          : CH_RULE_MOMENTUM;
    ch_status      rc = check_bounds("sgd", 1, (bound[]){{"momentum", r.momentum, 0, 1}});

    if (rc == CH_OK && r.nesterov && r.momentum == 0)
        rc = ch__fail(CH_INVALID_ARGUMENT, "sgd: nesterov wants a momentum");
    return rc != CH_OK
               ? rc
               : new_optimizer(&(wish){"sgd", kind, rate, .numbers = {.momentum = r.momentum}},
                               opt, out);
}

ch_status ch_adagrad(double rate, const ch_adagrad_options *rule,
                     const ch_optimizer_options *opt, ch_optimizer **out)
{
    ch_adagrad_options r = rule != NULL ? *rule : (ch_adagrad_options){0};
    ch_status          rc = check_bounds(
                 "adagrad", 2,
                 (bound[]){{"initial", r.initial, 0, INFINITY}, {"epsilon", r.epsilon, 0, INFINITY}});

    return rc != CH_OK
               ? rc
               : new_optimizer(&(wish){"adagrad",
                                       r.row_wise ? CH_RULE_ADAGRAD_ROWS : CH_RULE_ADAGRAD,
                                       rate, .initial = or_else(r.initial, 0.1),
                                       .numbers = {.epsilon = or_else(r.epsilon, 1e-7)}},
                               opt, out);
}

ch_status ch_rmsprop(double rate, const ch_rmsprop_options *rule,
                     const ch_optimizer_options *opt, ch_optimizer **out)
{
    static const ch_rule_kind kind[2][2] = {
        {CH_RULE_RMSPROP, CH_RULE_RMSPROP_MOMENTUM},
        {CH_RULE_RMSPROP_CENTERED, CH_RULE_RMSPROP_CENTERED_MOMENTUM}};
    ch_rmsprop_options r = rule != NULL ? *rule : (ch_rmsprop_options){0};
    ch_status          rc = check_bounds("rmsprop", 3,
                                         (bound[]){{"rho", r.rho, 0, 1},
                                                   {"momentum", r.momentum, 0, 1},
                                                   {"epsilon", r.epsilon, 0, INFINITY}});

    return rc != CH_OK
               ? rc
               : new_optimizer(&(wish){"rmsprop", kind[r.centered][r.momentum != 0], rate,
                                       .numbers = {.beta2 = or_else(r.rho, 0.9),
                                                   .momentum = r.momentum,
                                                   .epsilon = or_else(r.epsilon, 1e-7)}},
                               opt, out);
}

/* Adam and those who are like it. */
static ch_status new_adam(const char *name, ch_rule_kind kind, double rate, double decay,
                          double epsilon, const ch_adam_options *rule,
                          const ch_optimizer_options *opt, ch_optimizer **out)
{
    ch_adam_options r = rule != NULL ? *rule : (ch_adam_options){0};
    ch_status       rc = check_bounds(name, 3,
                                      (bound[]){{"beta1", r.beta1, 0, 1},
                                                {"beta2", r.beta2, 0, 1},
                                                {"epsilon", r.epsilon, 0, INFINITY}});

    if (rc == CH_OK && r.amsgrad && kind != CH_RULE_ADAM)
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s: amsgrad is of adam and adamw", name);
    return rc != CH_OK
               ? rc
               : new_optimizer(&(wish){name, r.amsgrad ? CH_RULE_AMSGRAD : kind, rate, decay,
                                       .numbers = {.beta1 = or_else(r.beta1, 0.9),
                                                   .beta2 = or_else(r.beta2, 0.999),
                                                   .epsilon = or_else(r.epsilon, epsilon)}},
                               opt, out);
}

ch_status ch_adam(double rate, const ch_adam_options *rule, const ch_optimizer_options *opt,
                  ch_optimizer **out)
{
    return new_adam("adam", CH_RULE_ADAM, rate, 0, 1e-7, rule, opt, out);
}

ch_status ch_adamw(double rate, const ch_adam_options *rule, const ch_optimizer_options *opt,
                   ch_optimizer **out)
{
    return new_adam("adamw", CH_RULE_ADAM, rate, 0.01, 1e-7, rule, opt, out);
}

ch_status ch_adamax(double rate, const ch_adam_options *rule, const ch_optimizer_options *opt,
                    ch_optimizer **out)
{
    return new_adam("adamax", CH_RULE_ADAMAX, rate, 0, 1e-7, rule, opt, out);
}

ch_status ch_lamb(double rate, const ch_adam_options *rule, const ch_optimizer_options *opt,
                  ch_optimizer **out)
{
    return new_adam("lamb", CH_RULE_LAMB, rate, 0.01, 1e-6, rule, opt, out);
}

ch_status ch_ftrl(double rate, const ch_ftrl_options *rule, const ch_optimizer_options *opt,
                  ch_optimizer **out)
{
    ch_ftrl_options r = rule != NULL ? *rule : (ch_ftrl_options){0};
    ch_status       rc = check_bounds("ftrl", 6,
                                      (bound[]){{"-power", -r.power, 0, INFINITY},
                                                {"initial", r.initial, 0, INFINITY},
                                                {"l1", r.l1, 0, INFINITY},
                                                {"l2", r.l2, 0, INFINITY},
                                                {"l2_shrinkage", r.l2_shrinkage, 0, INFINITY},
                                                {"beta", r.beta, 0, INFINITY}});

    return rc != CH_OK ? rc
                       : new_optimizer(&(wish){"ftrl", CH_RULE_FTRL, rate,
                                               .initial = or_else(r.initial, 0.1),
                                               .numbers = {.power = or_else(r.power, -0.5),
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
    ch__free(o->all);
    ch__free(o->entry);
    ch__free(o->name);
    ch__free(o);
}

/* ---- what it keeps ---- */

/* A variable of this name and first value; takes over the reference to it. */
static ch_status keep(ch_optimizer *o, ch_strategy *st, const char *name, ch_tensor *initial,
                      ch_var **out)
{
    ch_var_spec spec = {.name = name, .initial = initial, .trainable = CH_OFF};
    ch_status   rc = CH_OK;

    if (!ch__grow((void **)&o->all, &o->cap_all, o->n_all + 1, sizeof(*o->all)))
        rc = ch__fail_memory("an optimizer");
    if (rc == CH_OK)
        rc = ch_var_new(st, &spec, out);
    if (rc == CH_OK)
        o->all[o->n_all++] = *out;
    ch_tensor_unref(initial);
    return rc;
}

static ch_status full(ch_dtype dtype, ch_shape shape, double value, ch_tensor **out)
{
    ch_status rc = ch_tensor_new(dtype, shape, out);
    char     *at = rc == CH_OK ? ch_tensor_data_mut(*out) : NULL;
    int64_t   n = rc == CH_OK && value != 0 ? ch_tensor_count(*out) : 0;

    for (int64_t i = 0; i < n; i++)
        ch__store(dtype, at + (size_t)i * ch_dtype_bytes(dtype), value);
    return rc;
}

ch_status ch__opt_own(ch_optimizer *o, ch_strategy *st, ch_opt_own which, ch_var **out)
{
    static const struct {
        const char *name;
        ch_dtype    dtype;
    } own[CH_OPT_OWN] = {{"iterations", CH_I64}, {"rate", CH_F32},
                         {"skipped", CH_I64},    {"pending", CH_I64},
                         {"loss_scale", CH_F32}, {"good_steps", CH_I64}};
    char       name[256];
    ch_tensor *t = NULL;
    double     value = which == CH_OPT_RATE         ? o->rate
                       : which == CH_OPT_LOSS_SCALE ? o->loss_scale
                                                    : 0;
    ch_status  rc = CH_OK;

    if (o->own[which] == NULL) {
        snprintf(name, sizeof(name), "%s/%s", o->name, own[which].name);
        rc = full(own[which].dtype, ch_shape_scalar(), value, &t);
        if (rc == CH_OK)
            rc = keep(o, st, name, t, &o->own[which]);
    }
    *out = o->own[which];
    return rc;
}

ch_opt_entry *ch__opt_entry(const ch_optimizer *o, const ch_var *v)
{
    for (int i = 0; i < o->n_entries; i++)
        if (o->entry[i].var == v)
            return &o->entry[i];
    return NULL;
}

static const char *slot_name(const ch_optimizer *o, int i)
{
    static const char *const more[] = {"master", "average", "sum", "touched"};

    return i < CH_RULE_SLOTS ? o->rule->slot[i] : more[i - CH_RULE_SLOTS];
}

/* The variable's value now, as the slot wants it. */
static ch_status value_of(ch_var *v, ch_tensor **out)
{
    ch_dtype   from = ch_var_dtype(v), to = ch__opt_dtype(v);
    ch_tensor *now = NULL;
    ch_status  rc = ch_var_get(v, &now);

    if (rc != CH_OK || from == to) {
        *out = now;
        return rc;
    }
    rc = ch_tensor_new(to, ch_var_shape(v), out);
    for (int64_t i = 0; rc == CH_OK && i < ch_tensor_count(now); i++)
        ch__store(to, (char *)ch_tensor_data_mut(*out) + (size_t)i * ch_dtype_bytes(to),
                  ch__load(from, (const char *)ch_tensor_data(now) +
                                     (size_t)i * ch_dtype_bytes(from)));
    ch_tensor_unref(now);
    return rc;
}

static ch_status first_value(const ch_optimizer *o, ch_var *v, int i, ch_tensor **out)
{
    ch_shape shape = ch_var_shape(v);
    bool     accumulator =
        i == 0 && o->rule->n_slots > 0 && strcmp(o->rule->slot[0], "accumulator") == 0;

    if (i == CH_OPT_MASTER || i == CH_OPT_AVERAGE)
        return value_of(v, out);
    if ((i == CH_OPT_TOUCHED || (i == 0 && o->rule->by_row)) && shape.rank > 0)
        shape.rank = 1;
    return full(i == CH_OPT_TOUCHED ? CH_BOOL : ch__opt_dtype(v), shape,
                accumulator ? o->initial : 0, out);
}

ch_status ch__opt_slot(ch_optimizer *o, ch_var *v, int i, ch_var **out)
{
    ch_opt_entry *e = ch__opt_entry(o, v);
    char          name[1024];
    ch_tensor    *t = NULL;
    ch_status     rc = CH_OK;

    if (e == NULL) {
        if (!ch__grow((void **)&o->entry, &o->cap_entries, o->n_entries + 1, sizeof(*o->entry)))
            return ch__fail_memory("an optimizer");
        e = &o->entry[o->n_entries++];
        *e = (ch_opt_entry){.var = ch_var_ref(v)};
    }
    if (e->slot[i] == NULL) {
        snprintf(name, sizeof(name), "%s/%s/%s", ch_var_name(v), o->name, slot_name(o, i));
        rc = first_value(o, v, i, &t);
        if (rc == CH_OK)
            rc = keep(o, ch_var_strategy(v), name, t, &e->slot[i]);
    }
    *out = e->slot[i];
    return rc;
}

/* ---- questions ---- */

/* A scalar of the optimizer's; `otherwise` as long as no step was recorded. */
static ch_status get_scalar(ch_optimizer *o, ch_opt_own which, double otherwise, double *out)
{
    ch_tensor *t = NULL;
    ch_status  rc;

    *out = otherwise;
    if (o->own[which] == NULL)
        return CH_OK;
    rc = ch_var_get(o->own[which], &t);
    if (rc == CH_OK)
        rc = ch_tensor_get(t, NULL, out);
    ch_tensor_unref(t);
    return rc;
}

static ch_status get_count(ch_optimizer *o, ch_opt_own which, int64_t *out)
{
    ch_tensor *t = NULL;
    ch_status  rc;

    *out = 0;
    if (o->own[which] == NULL)
        return CH_OK;
    rc = ch_var_get(o->own[which], &t);
    if (rc == CH_OK)
        *out = *(const int64_t *)ch_tensor_data(t);
    ch_tensor_unref(t);
    return rc;
}

ch_status ch_optimizer_rate(ch_optimizer *o, double *out)
{
    int64_t   done = 0;
    ch_status rc;

    if (!o->has_schedule)
        return get_scalar(o, CH_OPT_RATE, o->rate, out);
    rc = get_count(o, CH_OPT_ITERATIONS, &done);
    if (rc == CH_OK)
        *out = ch_schedule_at(&o->schedule, done);
    return rc;
}

ch_status ch_optimizer_set_rate(ch_optimizer *o, double rate)
{
    ch_tensor *t = NULL;
    ch_status  rc;

    if (o->has_schedule)
        return ch__fail(CH_FAILED_PRECONDITION,
                        "%s: its rate is a schedule's, and cannot be set", o->name);
    rc = check_bounds(o->name, 1, (bound[]){{"the rate", rate, 0, INFINITY}});
    if (rc == CH_OK)
        o->rate = rate;
    if (rc != CH_OK || o->own[CH_OPT_RATE] == NULL)
        return rc;
    rc = full(CH_F32, ch_shape_scalar(), rate, &t);
    if (rc == CH_OK)
        rc = ch_var_set(o->own[CH_OPT_RATE], t);
    ch_tensor_unref(t);
    return rc;
}

ch_status ch_optimizer_iterations(ch_optimizer *o, int64_t *out)
{
    return get_count(o, CH_OPT_ITERATIONS, out);
}

ch_status ch_optimizer_skipped(ch_optimizer *o, int64_t *out)
{
    return get_count(o, CH_OPT_SKIPPED, out);
}

int ch_optimizer_vars(ch_optimizer *o, ch_var *const **out)
{
    *out = o->all;
    return o->n_all;
}

ch_var *ch_optimizer_slot(ch_optimizer *o, const ch_var *v, const char *slot)
{
    const ch_opt_entry *e = ch__opt_entry(o, v);

    for (int i = 0; i < CH_OPT_SLOTS && e != NULL && slot != NULL; i++)
        if (e->slot[i] != NULL && strcmp(slot_name(o, i), slot) == 0)
            return e->slot[i];
    return NULL;
}

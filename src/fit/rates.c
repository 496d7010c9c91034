/* fit/rates.c -- callbacks that set the learning rate.
 *
 * Two callbacks: rate_schedule (a function of the epoch) and reduce_on_plateau (a log has
 * stopped improving). Both check at CH_ON_BEGIN that the rate can be set. The rate is part of
 * their saved state, because they have set it. Error messages here do not name the callback,
 * because ch__callbacks_notify adds the name.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <math.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "fit/callback.h"

#define PLATEAU_FACTOR   0.1
#define PLATEAU_DELTA    1e-4
#define PLATEAU_PATIENCE 10

static ch_status get_rate(ch_optimizer *o, double *rate)
{
    if (o == NULL)
        return ch__fail(
            CH_FAILED_PRECONDITION,
            "there is no learning rate to set, because the model was compiled without "
            "an optimizer");
    return ch_optimizer_rate(o, rate);
}

static ch_status set_rate(ch_optimizer *o, double rate)
{
    ch_status rc = ch_optimizer_set_rate(o, rate);

    if (rc == CH_FAILED_PRECONDITION)
        return ch__fail(
            rc, "the learning rate cannot be set, because the optimizer has a schedule; "
                "create it without a schedule, or do not use this callback");
    return rc;
}

static ch_status set_rate_in_epoch(const ch_training *t, double rate)
{
    ch_status rc = set_rate(ch_training_optimizer(t), rate);

    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "epoch %d", ch_training_epoch(t) + 1);
}

/* Sets the rate to its current value, so that a rate that cannot be set is an error before the
 * first step and not after hours. */
static ch_status try_rate(ch_optimizer *o)
{
    double    rate;
    ch_status rc = get_rate(o, &rate);

    return rc == CH_OK ? set_rate(o, rate) : rc;
}

static void put_rate(ch_state *s, ch_optimizer *o)
{
    double rate = 0;

    if (s->rc == CH_OK)
        s->rc = get_rate(o, &rate);
    ch__state_put_number(s, "rate", rate);
}

static ch_status load_rate(const ch_tuple *state, ch_optimizer *o)
{
    double    rate = 0, now;
    ch_status rc = ch__state_get_number(state, "rate", &rate);

    if (rc == CH_OK)
        rc = get_rate(o, &now);
    return rc == CH_OK ? set_rate(o, rate) : rc;
}

/* ---- rate_schedule ---- */

typedef struct schedule {
    ch_rate_fn    fn;
    void         *arg;
    ch_optimizer *optimizer; /* of the running training; borrowed */
} schedule;

static ch_status schedule_on(void *self, ch_training *t, ch_event event)
{
    schedule *s = self;
    double    rate;
    ch_status rc;

    if (ch_training_is_evaluation(t))
        return CH_OK;
    s->optimizer = event != CH_ON_END ? ch_training_optimizer(t) : NULL;
    if (event == CH_ON_BEGIN)
        return try_rate(s->optimizer);
    if (event == CH_ON_END)
        return CH_OK;
    rc = get_rate(s->optimizer, &rate);
    if (rc != CH_OK)
        return rc;
    return set_rate_in_epoch(t, s->fn(ch_training_epoch(t), rate, s->arg));
}

static ch_status schedule_save(void *self, ch_tuple **out)
{
    ch_state s = {0};

    put_rate(&s, ((schedule *)self)->optimizer);
    return ch__state_end(&s, out);
}

static ch_status schedule_load(void *self, ch_tuple *state)
{
    return load_rate(state, ((schedule *)self)->optimizer);
}

static const ch_callback_ops schedule_ops = {.name = "rate_schedule",
                                             .events =
                                                 CH_ON_BEGIN | CH_ON_EPOCH_BEGIN | CH_ON_END,
                                             .on = schedule_on,
                                             .drop = ch__free,
                                             .save = schedule_save,
                                             .load = schedule_load};

ch_status ch_callback_rate_schedule(ch_rate_fn fn, void *arg, ch_callback **out)
{
    schedule *s;

    if (fn == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "rate_schedule: fn is NULL");
    s = ch__malloc(sizeof(*s));
    if (s != NULL)
        *s = (schedule){.fn = fn, .arg = arg};
    return ch__callback_make(&schedule_ops, s, out);
}

/* ---- reduce_on_plateau ---- */

typedef struct plateau {
    ch_monitor monitor;
    double     factor, min_rate;
    int        patience, cooldown;
    int        wait;    /* epochs since the last improvement */
    int        cooling; /* remaining epochs of the cooldown */

    ch_optimizer *optimizer; /* of the running training; borrowed */
} plateau;

static ch_status reduce(plateau *p, const ch_training *t)
{
    double    rate, less;
    ch_status rc = get_rate(ch_training_optimizer(t), &rate);

    if (rc != CH_OK || !(rate > p->min_rate))
        return rc;
    less = fmax(rate * p->factor, p->min_rate);
    rc = set_rate_in_epoch(t, less);
    if (rc != CH_OK)
        return rc;
    ch__log(CH_LOG_INFO, "plateau", "epoch %d: the learning rate is now %g; it was %g",
            ch_training_epoch(t) + 1, less, rate);
    p->cooling = p->cooldown;
    p->wait = 0;
    return CH_OK;
}

/* Handles the end of an epoch by the rules of Keras: the epoch in which the cooldown ends
 * counts again. */
static ch_status plateau_epoch(plateau *p, ch_training *t)
{
    double value;

    if (!ch__monitor_read(&p->monitor, t, &value))
        return CH_OK;
    if (p->cooling > 0) {
        p->cooling--;
        p->wait = 0;
    }
    if (ch__monitor_is_better(&p->monitor, value, p->monitor.best)) {
        p->monitor.best = value;
        p->wait = 0;
        return CH_OK;
    }
    return p->cooling == 0 && ++p->wait >= p->patience ? reduce(p, t) : CH_OK;
}

static ch_status plateau_on(void *self, ch_training *t, ch_event event)
{
    plateau *p = self;

    if (ch_training_is_evaluation(t))
        return CH_OK;
    if (event == CH_ON_EPOCH_END)
        return plateau_epoch(p, t);
    ch__monitor_reset(&p->monitor);
    p->wait = p->cooling = 0;
    p->optimizer = event == CH_ON_BEGIN ? ch_training_optimizer(t) : NULL;
    return event == CH_ON_BEGIN ? try_rate(p->optimizer) : CH_OK;
}

static ch_status plateau_save(void *self, ch_tuple **out)
{
    const plateau *p = self;
    ch_state       s = {0};

    ch__monitor_save(&p->monitor, &s);
    ch__state_put_int(&s, "wait", p->wait);
    ch__state_put_int(&s, "cooling", p->cooling);
    put_rate(&s, p->optimizer);
    return ch__state_end(&s, out);
}

static ch_status plateau_load(void *self, ch_tuple *state)
{
    plateau  *p = self;
    ch_status rc = ch__monitor_load(&p->monitor, state);

    if (rc == CH_OK)
        rc = ch__state_get_int_in(state, "wait", 0, INT_MAX, &p->wait);
    if (rc == CH_OK)
        rc = ch__state_get_int_in(state, "cooling", 0, INT_MAX, &p->cooling);
    return rc == CH_OK ? load_rate(state, p->optimizer) : rc;
}

static void plateau_drop(void *self)
{
    plateau *p = self;

    ch__monitor_drop(&p->monitor);
    ch__free(p);
}

static const ch_callback_ops plateau_ops = {.name = "reduce_on_plateau",
                                            .events = CH_ON_BEGIN | CH_ON_EPOCH_END | CH_ON_END,
                                            .on = plateau_on,
                                            .drop = plateau_drop,
                                            .save = plateau_save,
                                            .load = plateau_load};

static ch_status check_plateau(const ch_callback_plateau_options *opt)
{
    if (!(opt->factor >= 0 && opt->factor < 1))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "reduce_on_plateau: the factor is %g, want more than 0 and less than 1",
                        opt->factor);
    if (!(opt->min_rate >= 0) || isinf(opt->min_rate))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "reduce_on_plateau: min_rate is %g, want a finite number that is not "
                        "negative",
                        opt->min_rate);
    if (opt->patience < 0 || opt->cooldown < 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "reduce_on_plateau: patience is %d and cooldown %d, want 0 or more",
                        opt->patience, opt->cooldown);
    return CH_OK;
}

static double delta_of(const ch_callback_plateau_options *opt)
{
    if (opt->min_delta == CH_OFF)
        return 0;
    return opt->min_delta != 0 ? opt->min_delta : PLATEAU_DELTA;
}

ch_status ch_callback_reduce_on_plateau(const ch_callback_plateau_options *opt,
                                        ch_callback                      **out)
{
    static const ch_callback_plateau_options none;
    plateau                                 *p;
    ch_status                                rc;

    opt = opt != NULL ? opt : &none;
    rc = check_plateau(opt);
    if (rc != CH_OK)
        return rc;
    p = ch__calloc(1, sizeof(*p));
    if (p == NULL)
        return ch__fail_memory("reduce_on_plateau");
    p->factor = opt->factor > 0 ? opt->factor : PLATEAU_FACTOR;
    p->min_rate = opt->min_rate;
    p->patience = opt->patience > 0 ? opt->patience : PLATEAU_PATIENCE;
    p->cooldown = opt->cooldown;
    rc = ch__monitor_init(&p->monitor, "reduce_on_plateau",
                          opt->monitor != NULL ? opt->monitor : "val_loss", opt->goal,
                          delta_of(opt));
    if (rc != CH_OK) {
        plateau_drop(p);
        return rc;
    }
    return ch__callback_make(&plateau_ops, p, out);
}

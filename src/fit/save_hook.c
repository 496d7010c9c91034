/* fit/save_hook.c -- the callback that calls a function when something should be saved.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "base/fault.h"
#include "base/mem.h"
#include "fit/callback.h"

typedef struct hook {
    /* Own copy, because `events` has CH_ON_STEP only if steps or seconds count. */
    ch_callback_ops ops;
    int64_t         every_steps;
    int             every_epochs; /* 0: not by epochs */
    double          every_seconds;
    bool            has_monitor;
    ch_monitor      monitor;
    ch_save_fn      fn;
    void           *arg;

    int64_t saved_step; /* step of the last save; 0: none in this training */
    /* Time when `every_seconds` were last over, in seconds of the training. */
    double saved_seconds;
} hook;

static ch_status save(hook *h, ch_training *t, bool best)
{
    h->saved_step = ch_training_step(t);
    return h->fn(t, best, h->arg);
}

/* Returns true if the monitored log is the best so far, and records it. Returns true if there
 * is no monitor. */
static bool is_best(hook *h, ch_training *t)
{
    double value;

    if (!h->has_monitor)
        return true;
    if (!ch__monitor_read(&h->monitor, t, &value) ||
        !ch__monitor_is_better(&h->monitor, value, h->monitor.best))
        return false;
    h->monitor.best = value;
    return true;
}

/* Returns true if it is time to save. The interval of every_seconds restarts when it is over,
 * even if nothing is saved because the log is not the best. */
static bool is_time(hook *h, ch_training *t, ch_event event)
{
    double now;

    if (event == CH_ON_EPOCH_END)
        return h->every_epochs > 0 && (ch_training_epoch(t) + 1) % h->every_epochs == 0;
    if (h->every_steps > 0 && ch_training_step(t) % h->every_steps == 0)
        return true;
    if (!(h->every_seconds > 0))
        return false;
    now = ch_training_seconds(t);
    if (now - h->saved_seconds < h->every_seconds)
        return false;
    h->saved_seconds = now;
    return true;
}

/* Does not save twice after the same step, except with a monitor: at the end of an epoch the
 * log of the validation may make it the best. */
static ch_status hook_on(void *self, ch_training *t, ch_event event)
{
    hook     *h = self;
    ch_status rc;

    if (ch_training_is_evaluation(t))
        return CH_OK;
    if (event == CH_ON_BEGIN) {
        h->saved_step = 0;
        h->saved_seconds = 0;
        if (h->has_monitor)
            ch__monitor_reset(&h->monitor);
        return CH_OK;
    }
    if (event == CH_ON_END)
        return h->saved_step < ch_training_step(t) ? save(h, t, is_best(h, t)) : CH_OK;
    if (!is_time(h, t, event) || (!h->has_monitor && h->saved_step == ch_training_step(t)) ||
        !is_best(h, t))
        return CH_OK;
    rc = ch__training_drain(t); /* the saved state must include all steps so far */
    return rc == CH_OK ? save(h, t, true) : rc;
}

/* saved_seconds is not saved, because the seconds of a training begin with its process. */
static ch_status hook_save(void *self, ch_tuple **out)
{
    const hook *h = self;
    ch_state    s = {0};

    ch__state_put_int(&s, "saved_step", h->saved_step);
    if (h->has_monitor)
        ch__monitor_save(&h->monitor, &s);
    return ch__state_end(&s, out);
}

static ch_status hook_load(void *self, ch_tuple *state)
{
    hook     *h = self;
    ch_status rc = ch__state_get_int(state, "saved_step", &h->saved_step);

    return rc == CH_OK && h->has_monitor ? ch__monitor_load(&h->monitor, state) : rc;
}

static void hook_drop(void *self)
{
    hook *h = self;

    ch__monitor_drop(&h->monitor);
    ch__free(h);
}

static ch_status check_hook(const ch_callback_save_hook_options *opt, ch_save_fn fn)
{
    if (fn == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "save_hook: fn is NULL");
    if (opt->every_steps < 0 || opt->every_epochs < 0 || !(opt->every_seconds >= 0))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "save_hook: every %lld steps, %d epochs, %g seconds: want 0 or more",
                        (long long)opt->every_steps, opt->every_epochs, opt->every_seconds);
    return CH_OK;
}

ch_status ch_callback_save_hook(const ch_callback_save_hook_options *opt, ch_save_fn fn,
                                void *arg, ch_callback **out)
{
    static const ch_callback_save_hook_options none;
    hook                                      *h;
    ch_status                                  rc;
    bool                                       by_steps;

    opt = opt != NULL ? opt : &none;
    rc = check_hook(opt, fn);
    if (rc != CH_OK)
        return rc;
    by_steps = opt->every_steps > 0 || opt->every_seconds > 0;
    h = ch__calloc(1, sizeof(*h));
    if (h == NULL)
        return ch__fail_memory("save_hook");
    *h = (hook){.ops = {.name = "save_hook",
                        .events = CH_ON_BEGIN | CH_ON_EPOCH_END | CH_ON_END,
                        .on = hook_on,
                        .drop = hook_drop,
                        .save = hook_save,
                        .load = hook_load},
                .every_steps = opt->every_steps,
                .every_epochs = opt->every_epochs == 0 && !by_steps ? 1 : opt->every_epochs,
                .every_seconds = opt->every_seconds,
                .has_monitor = opt->monitor != NULL,
                .fn = fn,
                .arg = arg};
    if (by_steps)
        h->ops.events |= CH_ON_STEP;
    if (h->has_monitor)
        rc = ch__monitor_init(&h->monitor, "save_hook", opt->monitor, opt->goal, 0);
    if (rc != CH_OK) {
        hook_drop(h);
        return rc;
    }
    return ch__callback_make(&h->ops, h, out);
}

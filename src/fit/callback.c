/* fit/callback.c -- the callback object, sending events to callbacks, and monitors.
 *
 * A ch_callback is a reference-counted pair of a table of functions and a state. The loops of
 * fit/ send events with ch__callbacks_notify. A ch_monitor is the part that callbacks which
 * follow a log have in common: early stopping, plateau, save hook.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "fit/callback.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "tensor/print.h"

struct ch_callback {
    atomic_int             refs;
    const ch_callback_ops *ops;
    void                  *self;
};

enum { ALL_EVENTS = (CH_ON_END << 1) - 1, ALL_WITH_SAVE_POINTS = (CH_SAVE_POINT_END << 1) - 1 };

/* ---- creation ---- */

static ch_status check_ops(const ch_callback_ops *ops, unsigned allowed)
{
    if (ops->name == NULL || ops->name[0] == '\0')
        return ch__fail(CH_INVALID_ARGUMENT,
                        "callback: ops->name is NULL or empty; give the callback a name");
    if (ops->on == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "callback %s: ops->on is NULL; give it a function",
                        ops->name);
    if (ops->events == 0 || (ops->events & ~allowed) != 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "callback %s: events are 0x%x, want one or more of CH_ON_BEGIN to "
                        "CH_ON_END, combined by |",
                        ops->name, ops->events);
    return CH_OK;
}

static ch_status new_callback(const ch_callback_ops *ops, void *self, unsigned allowed,
                              ch_callback **out)
{
    ch_callback *c;
    ch_status    rc = ch__check_not_null("callback", "ops", ops, "out", out);

    if (rc == CH_OK)
        rc = check_ops(ops, allowed);
    if (rc != CH_OK)
        return rc;
    c = ch__calloc(1, sizeof(*c));
    if (c == NULL)
        return ch__fail_memory("a callback");
    atomic_init(&c->refs, 1);
    c->ops = ops;
    c->self = self;
    *out = c;
    return CH_OK;
}

ch_status ch_callback_new(const ch_callback_ops *ops, void *self, ch_callback **out)
{
    return new_callback(ops, self, ALL_EVENTS, out);
}

ch_callback *ch_callback_ref(ch_callback *c)
{
    if (c != NULL)
        atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    return c;
}

/* The table may be part of the state (struct function is an example), so `ops` must not be read
 * after `drop`. */
void ch_callback_unref(ch_callback *c)
{
    if (c == NULL || atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (c->ops->drop != NULL)
        c->ops->drop(c->self);
    ch__free(c);
}

ch_status ch__callback_make(const ch_callback_ops *ops, void *self, ch_callback **out)
{
    ch_status rc = self != NULL ? new_callback(ops, self, ALL_WITH_SAVE_POINTS, out)
                                : ch__fail_memory(ops->name);

    if (rc != CH_OK && self != NULL)
        ops->drop(self);
    return rc;
}

void *ch__callback_self(const ch_callback *c,
                        ch_status (*on)(void *self, ch_training *t, ch_event event))
{
    return c != NULL && c->ops->on == on ? c->self : NULL;
}

const char *ch__callback_name(const ch_callback *c)
{
    return c->ops->name;
}

unsigned ch__callback_events(const ch_callback *c)
{
    return c->ops->events;
}

/* ---- state ---- */

/* `save` may be a function of the program, so its result is not trusted. */
static ch_status check_state(const ch_tuple *state)
{
    int n = ch_tuple_count(state);

    if (state == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "its `save` returned CH_OK but stored no tuple");
    for (int i = 0; i < n; i++) {
        bool is_plain = ch_value_kind_of(ch_tuple_at(state, i)) == CH_PLAIN;

        if (!is_plain || (n > 1 && ch_tuple_name(state, i) == NULL))
            return ch__fail(CH_INVALID_ARGUMENT,
                            "leaf %d of its state %s; want plain values with names", i,
                            is_plain ? "has no name" : "is not a plain value");
    }
    return CH_OK;
}

ch_status ch__callback_save(const ch_callback *c, ch_tuple **out)
{
    ch_tuple *state = NULL;
    uint64_t  mark = ch__fail_mark();
    ch_status rc;

    *out = NULL;
    if (c->ops->save == NULL)
        return CH_OK;
    rc = ch__fail_since(mark, c->ops->save(c->self, &state));
    if (rc == CH_OK)
        rc = check_state(state);
    if (rc == CH_OK)
        *out = state;
    else
        ch_tuple_unref(state);
    return rc == CH_OK
               ? CH_OK
               : ch__fail_at(rc, "callback %s: its state cannot be saved", c->ops->name);
}

ch_status ch__callback_load(const ch_callback *c, ch_tuple *state)
{
    uint64_t  mark = ch__fail_mark();
    ch_status rc = c->ops->load != NULL ? c->ops->load(c->self, state) : CH_OK;

    return rc == CH_OK ? CH_OK
                       : ch__fail_at(ch__fail_since(mark, rc),
                                     "callback %s: its state cannot be loaded", c->ops->name);
}

/* ---- callbacks made from a function ---- */

typedef struct function {
    ch_callback_ops ops;
    ch_callback_fn  fn;
    void           *arg;
} function;

static ch_status function_on(void *self, ch_training *t, ch_event event)
{
    function *f = self;

    return f->fn(t, event, f->arg);
}

ch_status ch_callback_of(unsigned events, ch_callback_fn fn, void *arg, ch_callback **out)
{
    function *f;
    ch_status rc;

    if (fn == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "callback: fn is NULL");
    f = ch__calloc(1, sizeof(*f));
    if (f == NULL)
        return ch__fail_memory("a callback");
    *f = (function){
        .ops = {.name = "function", .events = events, .on = function_on, .drop = ch__free},
        .fn = fn,
        .arg = arg};
    rc = ch_callback_new(&f->ops, f, out);
    if (rc != CH_OK)
        ch__free(f);
    return rc;
}

/* ---- events ---- */

/* Sends the event to callback number i of the list, if its mask has the event. */
static ch_status notify(int i, const ch_callback *c, ch_training *t, ch_event event)
{
    uint64_t  mark;
    ch_status rc;

    if (c == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "callback %d of the list is NULL", i);
    if ((c->ops->events & (unsigned)event) == 0)
        return CH_OK;
    mark = ch__fail_mark();
    rc = c->ops->on(c->self, t, event);
    if (rc == CH_OK)
        return CH_OK;
    return ch__fail_at(ch__fail_since(mark, rc), "callback %s", c->ops->name);
}

ch_status ch__callbacks_notify(int n, ch_callback *const *c, ch_training *t, ch_event event)
{
    ch_fault first = {0};

    for (int i = 0; i < n; i++) {
        ch_status rc = notify(i, c[i], t, event);

        if (rc != CH_OK && event != CH_ON_END)
            return rc;
        if (rc != CH_OK)
            ch__fault_record(&first, rc, -1, NULL);
    }
    return ch__fault_raise(&first);
}

/* ---- monitors ---- */

ch_status ch__monitor_init(ch_monitor *m, const char *callback, const char *name, ch_goal goal,
                           double delta)
{
    *m = (ch_monitor){.callback = callback, .goal = goal, .delta = delta};
    if ((int)goal < CH_GOAL_AUTO || goal > CH_GOAL_MAX)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: goal is %d, want a value of ch_goal",
                        callback, (int)goal);
    if (!(delta >= 0) || isinf(delta))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: min_delta is %g, want a finite number that is not negative",
                        callback, delta);
    if (name[0] == '\0')
        return ch__fail(CH_INVALID_ARGUMENT, "%s: monitor is \"\"; want a name, or NULL",
                        callback);
    m->name = ch__strdup(name);
    if (m->name == NULL)
        return ch__fail_memory(callback);
    ch__monitor_reset(m);
    return CH_OK;
}

void ch__monitor_drop(ch_monitor *m)
{
    ch__free(m->name);
    m->name = NULL;
}

void ch__monitor_reset(ch_monitor *m)
{
    m->best = ch__worst(m->name, m->goal);
    m->has_warned = false;
}

void ch__training_names(ch_training *t, char *text, size_t size)
{
    ch_text        o = ch__text(text, size);
    const ch_logs *logs = ch__training_logs(t);

    for (int i = 0; i < logs->n; i++)
        ch__text_add(&o, "%s%s", i > 0 ? ", " : "", logs->at[i].name);
    if (o.used == 0)
        ch__text_add(&o, "none");
}

/* Warns once that the monitored log is missing. It is a warning and not an error because a
 * validation need not run in every epoch. A log that never appears is probably a wrong name. */
static void warn_once(ch_monitor *m, ch_training *t)
{
    char names[256];

    if (m->has_warned)
        return;
    m->has_warned = true;
    ch__training_names(t, names, sizeof(names));
    ch__log(CH_LOG_WARNING, "monitor",
            "%s: epoch %d has no log named \"%s\" and is ignored; its logs are: %s",
            m->callback, ch_training_epoch(t) + 1, m->name, names);
}

bool ch__monitor_find(const ch_monitor *m, ch_training *t, double *out)
{
    const double *value = ch__logs_find(ch__training_logs(t), m->name);

    if (value != NULL)
        *out = *value;
    return value != NULL;
}

bool ch__monitor_read(ch_monitor *m, ch_training *t, double *out)
{
    if (ch__monitor_find(m, t, out))
        return true;
    warn_once(m, t);
    return false;
}

bool ch__monitor_is_better(const ch_monitor *m, double value, double than)
{
    return ch__is_better(m->name, m->goal, value, than, m->delta);
}

void ch__monitor_save(const ch_monitor *m, ch_state *s)
{
    ch__state_put_text(s, "monitor", m->name);
    ch__state_put_number(s, "best", m->best);
}

ch_status ch__monitor_load(ch_monitor *m, const ch_tuple *state)
{
    char      name[256];
    ch_status rc = ch__state_get_text(state, "monitor", name, sizeof(name));

    if (rc == CH_OK && strncmp(name, m->name, sizeof(name) - 1) != 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "the saved state is of the log \"%s\", but \"%s\" is monitored now; "
                        "monitor the same log, or begin a new training",
                        name, m->name);
    return rc == CH_OK ? ch__state_get_number(state, "best", &m->best) : rc;
}

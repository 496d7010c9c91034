/* strategy/scope.c -- the scopes of strategies, and the current context of a thread.
 *
 * All state is thread-local. A step that is being recorded comes before the scopes: its
 * strategy is the current strategy.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "base/log.h"
#include "graph/step.h"
#include "strategy/strategy.h"
#include "tensor/device.h"

enum { MAX_SCOPES = 64 };

/* The open scopes. Scopes of Default can only be the outermost ones: another strategy may be
 * entered inside Default, but not Default inside another strategy. */
static _Thread_local ch_strategy *scope[MAX_SCOPES];
static _Thread_local int          n_scopes;
/* Numbers of open device, colocation, creator and logical device scopes when a strategy's scope
 * was entered. Leaving the scope also leaves the scopes above these numbers. */
typedef struct depths {
    int devices, colocations, creators, logical_devices;
} depths;
static _Thread_local depths       depths_at_enter[MAX_SCOPES];
static _Thread_local ch_strategy *chosen; /* set by ch_strategy_set; NULL: none */

/* Returns the strategy of the innermost scope, else that of ch_strategy_set; NULL if there is
 * neither. */
static ch_strategy *innermost(void)
{
    return n_scopes > 0 ? scope[n_scopes - 1] : chosen;
}

ch_strategy *ch_strategy_current(void)
{
    const ch_step *s = ch__step_recording();
    ch_strategy   *st = s != NULL && s->owner != NULL ? s->owner : innermost();

    return st != NULL ? st : ch__strategy_default();
}

bool ch_strategy_is_set(void)
{
    return ch_strategy_current() != ch__strategy_default();
}

ch_context ch_context_now(void)
{
    const ch_step *s = ch__step_recording();

    if (s != NULL)
        return s->context == CH_STEP_CONTEXT_CROSS    ? CH_CONTEXT_CROSS
               : s->context == CH_STEP_CONTEXT_UPDATE ? CH_CONTEXT_UPDATE
                                                      : CH_CONTEXT_REPLICA;
    return innermost() != NULL && innermost() != ch__strategy_default() ? CH_CONTEXT_CROSS
                                                                        : CH_CONTEXT_DEFAULT;
}

ch_strategy *ch__strategy_or_current(ch_strategy *st)
{
    return st != NULL ? st : ch_strategy_current();
}

static ch_status fail_mixed(const char *call, const ch_strategy *in, const ch_strategy *st)
{
    return ch__fail(CH_FAILED_PRECONDITION,
                    "%s: mixing different strategies: inside the scope of %s, %s cannot be "
                    "used",
                    call, in->label, st->label);
}

ch_status ch__strategy_check_cross(ch_strategy **st, const char *call, const char *instead)
{
    const ch_step *s = ch__step_recording();
    ch_strategy   *in = innermost();

    *st = ch__strategy_or_current(*st);
    if (s != NULL && s->owner != NULL) {
        if (s->owner != *st)
            return fail_mixed(call, s->owner, *st);
        return ch__fail(
            CH_FAILED_PRECONDITION,
            "%s: it must be called outside steps, and %s is being recorded; in a step "
            "use %s",
            call, s->graph->name, instead != NULL ? instead : "ch_merge_call");
    }
    if (in != NULL && in != *st && in != ch__strategy_default())
        return fail_mixed(call, in, *st);
    return CH_OK;
}

ch_status ch_strategy_enter(ch_strategy *st)
{
    ch_strategy *in = innermost();
    ch_status    rc;

    if (st == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "strategy enter: the strategy is NULL");
    if (in != NULL && in != st && st == ch__strategy_default())
        return ch__fail(CH_FAILED_PRECONDITION,
                        "strategy enter: Default's scope cannot be entered inside that of %s",
                        in->label);
    rc = ch__strategy_check_cross(&st, "strategy enter", NULL);
    if (rc != CH_OK)
        return rc;
    if (n_scopes == MAX_SCOPES)
        return ch__fail(CH_FAILED_PRECONDITION, "strategy enter: nested more than %d deep",
                        MAX_SCOPES);
    depths_at_enter[n_scopes] = (depths){ch__device_depth(), ch__colocate_depth(),
                                         ch__creator_depth(), ch__logical_device_depth()};
    scope[n_scopes++] = ch_strategy_ref(st);
    return CH_OK;
}

/* Leaves the scopes of a kind that were entered in the strategy's scope and not left, with a
 * warning. */
static void leave_open(const char *scope_kind, int (*depth)(void), void (*leave)(void), int to)
{
    if (depth() <= to)
        return;
    ch__log(CH_LOG_WARNING, "scope-nesting",
            "strategy leave: %s that was entered in the scope of %s is still open, and ends "
            "with it; leave it first",
            scope_kind, scope[n_scopes - 1]->label);
    while (depth() > to)
        leave();
}

void ch_strategy_leave(void)
{
    const depths *d;

    if (n_scopes == 0)
        return;
    d = &depths_at_enter[n_scopes - 1];
    leave_open("a logical device", ch__logical_device_depth, ch_logical_device_leave,
               d->logical_devices);
    leave_open("a creator", ch__creator_depth, ch_var_creator_leave, d->creators);
    leave_open("a colocation", ch__colocate_depth, ch_colocate_leave, d->colocations);
    leave_open("a device", ch__device_depth, ch_device_leave, d->devices);
    ch_strategy_unref(scope[--n_scopes]);
}

ch_status ch_strategy_set(ch_strategy *st)
{
    if (n_scopes > 0 || ch__step_recording() != NULL)
        return ch__fail(CH_FAILED_PRECONDITION,
                        "strategy set: must not be called inside a scope; leave that of the %s "
                        "first",
                        ch_strategy_name(NULL));
    ch_strategy_ref(st);
    ch_strategy_unref(chosen);
    chosen = st;
    return CH_OK;
}

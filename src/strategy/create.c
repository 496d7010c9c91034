/* strategy/create.c -- scopes that affect new variables: creator hooks, colocation and logical
 * devices.
 *
 * The scopes belong to a thread and are nested. ch__var_apply_scopes applies them to the spec
 * of a new variable. A logical device is also that of the calls that a step records.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "cohort/logical.h"
#include "graph/step.h"
#include "strategy/strategy.h"

enum { MAX_DEPTH = 64 };

static _Thread_local struct {
    ch_var *colocated[MAX_DEPTH]; /* referenced */
    int     n_colocated;
    struct {
        ch_var_creator fn;
        void          *arg;
    } creator[MAX_DEPTH];
    int n_creators;
    struct {
        const ch_strategy *strategy;
        int                device;
        ch_step           *step;   /* the recording that was entered in; NULL: outside steps */
        int                before; /* its chosen device before */
    } chosen[MAX_DEPTH];
    int n_chosen;
} scopes;

ch_status ch_colocate_enter(ch_strategy *st, ch_var *v)
{
    ch_strategy *current = ch_strategy_current();

    if (v == NULL)
        return ch__check_not_null("colocate", "the variable", v, NULL, NULL);
    if (!ch_strategy_is_set())
        return ch__fail(CH_FAILED_PRECONDITION,
                        "colocate with %s: must be called in a strategy's scope "
                        "(ch_strategy_enter) or step",
                        v->name);
    if (st != NULL && st != current)
        return ch__fail(
            CH_FAILED_PRECONDITION,
            "colocate with %s: mixing different strategies: this is the scope of %s", v->name,
            current->label);
    if (v->strategy != current)
        return ch__fail(CH_INVALID_ARGUMENT, "colocate with %s: another strategy made it: %s",
                        v->name, v->strategy->label);
    if (scopes.n_colocated == MAX_DEPTH)
        return ch__fail(CH_FAILED_PRECONDITION, "colocate: nested more than %d deep",
                        MAX_DEPTH);
    scopes.colocated[scopes.n_colocated++] = ch_var_ref(v);
    return CH_OK;
}

int ch__colocate_depth(void)
{
    return scopes.n_colocated;
}

int ch__creator_depth(void)
{
    return scopes.n_creators;
}

void ch_colocate_leave(void)
{
    if (scopes.n_colocated > 0)
        ch_var_unref(scopes.colocated[--scopes.n_colocated]);
}

ch_status ch_var_creator_enter(ch_var_creator fn, void *arg)
{
    if (fn == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "creator: the function is NULL");
    if (scopes.n_creators == MAX_DEPTH)
        return ch__fail(CH_FAILED_PRECONDITION, "creator: nested more than %d deep", MAX_DEPTH);
    scopes.creator[scopes.n_creators].fn = fn;
    scopes.creator[scopes.n_creators++].arg = arg;
    return CH_OK;
}

void ch_var_creator_leave(void)
{
    if (scopes.n_creators > 0)
        scopes.n_creators--;
}

/* ---- logical devices ---- */

/* Returns the recording to which this thread adds calls; NULL: none. */
static ch_step *active_step(void)
{
    ch_step *s = ch__step_recording();

    return s != NULL ? s->active : NULL;
}

ch_status ch_logical_device_enter(ch_strategy *st, int device)
{
    ch_strategy *current = ch_strategy_current();
    ch_step     *s = active_step();
    int          n;

    if (st != NULL && st != current)
        return ch__fail(CH_FAILED_PRECONDITION,
                        "logical device %d: mixing different strategies: this is the scope of "
                        "%s, not of %s",
                        device, current->label, st->label);
    n = ch__strategy_cores(current);
    if (n > 1 && current->parts.forbids_single_devices)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "logical device %d: all logical devices of %s compute every value "
                        "together; use a strategy without ch_tpu_options.spmd",
                        device, current->label);
    if (device < 0 || (n > 1 && device >= n))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "logical device %d: the replicas of %s have devices 0 to %d", device,
                        current->label, n - 1);
    if (scopes.n_chosen == MAX_DEPTH)
        return ch__fail(CH_FAILED_PRECONDITION, "logical device %d: nested more than %d deep",
                        device, MAX_DEPTH);
    scopes.chosen[scopes.n_chosen].strategy = current;
    scopes.chosen[scopes.n_chosen].device = device;
    scopes.chosen[scopes.n_chosen].step = s;
    scopes.chosen[scopes.n_chosen].before = s != NULL ? s->chosen_device : 0;
    scopes.n_chosen++;
    if (s != NULL && n > 1)
        s->chosen_device = device + 1;
    return CH_OK;
}

void ch_logical_device_leave(void)
{
    if (scopes.n_chosen == 0)
        return;
    scopes.n_chosen--;
    /* A step that has ended in the scope no longer exists. */
    if (scopes.chosen[scopes.n_chosen].step != NULL &&
        scopes.chosen[scopes.n_chosen].step == active_step())
        active_step()->chosen_device = scopes.chosen[scopes.n_chosen].before;
}

int ch__logical_device_depth(void)
{
    return scopes.n_chosen;
}

int ch__logical_device_chosen(const ch_strategy *st)
{
    int n = scopes.n_chosen;

    return n > 0 && scopes.chosen[n - 1].strategy == st ? scopes.chosen[n - 1].device : -1;
}

ch_status ch__var_apply_scopes(ch_strategy *st, ch_var_spec *spec, const ch_var **colocated)
{
    ch_strategy *current = ch_strategy_current();

    if (current != st && current != ch__strategy_default())
        return ch__fail(CH_FAILED_PRECONDITION,
                        "variable %s: mixing different strategies: inside the scope of %s, %s "
                        "cannot create variables",
                        spec->name != NULL ? spec->name : "Variable", current->label,
                        st->label);
    for (int i = scopes.n_creators - 1; i >= 0; i--) {
        uint64_t  mark = ch__fail_mark();
        ch_status rc = ch__fail_since(mark, scopes.creator[i].fn(spec, scopes.creator[i].arg));

        if (rc != CH_OK)
            return ch__fail_at(rc, "variable %s", spec->name != NULL ? spec->name : "Variable");
    }
    if (scopes.n_colocated > 0 && scopes.colocated[scopes.n_colocated - 1]->strategy == st)
        *colocated = scopes.colocated[scopes.n_colocated - 1];
    return CH_OK;
}

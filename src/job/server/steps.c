/* job/server/steps.c -- the steps and workers from which a parameter server accepts updates.
 *
 * The three checks return CH_ABORTED: the registration of the worker is fenced, the step has
 * ended, or the step is held because it is being cancelled. state.c calls them before it
 * applies an update. The functions of state.h in this file change the fences, the list of live
 * steps and the holds. Applied updates of a step that has ended are forgotten here too, because
 * no message of that step is accepted any more.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/mutant.h"
#include "job/server/private.h"

/* ---- fences ---- */

ch_status ch__server_state_fence(ch_server_state *s, const Cohort__PsFence *m)
{
    ch_fence *f = s->fences;

    while (f != NULL && strcmp(f->worker, m->worker) != 0)
        f = f->next;
    if (f == NULL) {
        f = ch__calloc(1, sizeof(*f) + strlen(m->worker) + 1);
        if (f == NULL)
            return ch__fail_memory("a fence");
        memcpy(f->worker, m->worker, strlen(m->worker) + 1);
        f->next = s->fences;
        s->fences = f;
    }
    f->oldest = m->registration > f->oldest ? m->registration : f->oldest;
    return CH_OK;
}

ch_status ch__server_check_fence(const ch_server_state *s, const Cohort__PsUpdate *m)
{
    for (const ch_fence *f = s->fences; f != NULL; f = f->next)
        if (strcmp(f->worker, m->worker) == 0 && m->registration < f->oldest && CH_KEEPS(FENCE))
            return ch__fail(
                CH_ABORTED,
                "step %llu: update from %s rejected: registration %llu is fenced (oldest "
                "accepted: %llu)",
                (unsigned long long)m->step, m->worker, (unsigned long long)m->registration,
                (unsigned long long)f->oldest);
    return CH_OK;
}

/* ---- steps that have ended ---- */

/* Returns true if a rising list contains a number (binary search). */
static bool is_in_list(size_t n, const uint64_t *list, uint64_t wanted)
{
    size_t from = 0;

    while (from < n) {
        size_t at = from + (n - from) / 2;

        if (list[at] == wanted)
            return true;
        if (list[at] < wanted)
            from = at + 1;
        else
            n = at;
    }
    return false;
}

static bool has_ended(const ch_server_state *s, uint64_t step)
{
    return step < s->retired || (step < s->below && !is_in_list(s->n_live, s->live, step));
}

ch_status ch__server_check_step(const ch_server_state *s, uint64_t step)
{
    return !has_ended(s, step) || !CH_KEEPS(RETIRE)
               ? CH_OK
               : ch__fail(CH_ABORTED,
                          "step %llu has ended, as have all steps below %llu; its "
                          "updates are rejected",
                          (unsigned long long)step, (unsigned long long)s->retired);
}

void ch__server_drop_applied(ch_server_state *s, ch_applied *a)
{
    for (int i = 0; i < a->n; i++) {
        s->result_bytes -= (int64_t)ch_tensor_bytes(a->result[i]);
        ch_tensor_unref(a->result[i]);
    }
    ch__free(a);
}

static bool drop_if_ended(void *arg, ch_key k, void *value)
{
    ch_server_state *s = arg;

    if (!has_ended(s, k.a))
        return false;
    ch__server_drop_applied(s, value);
    return true;
}

/* Drops the deferred updates of steps that have ended: of steps that failed before all servers
 * had their updates. */
static void drop_deferred_if_ended(ch_server_state *s)
{
    ch_deferred **at = &s->deferred;

    while (*at != NULL) {
        ch_deferred *d = *at;

        if (has_ended(s, d->step)) {
            *at = d->next;
            ch__server_drop_deferred(d);
        } else {
            at = &d->next;
        }
    }
}

/* Drops the remembered updates of steps that have ended. Scans the table only if more than a
 * quarter of it is in use, or if the results take more than twice the bytes that they took
 * after the last scan. */
static void drop_if_large(ch_server_state *s)
{
    enum { FEW_BYTES = 1 << 20 };

    if (4 * s->applied.n <= s->applied.cap &&
        s->result_bytes <= 2 * s->bytes_before + FEW_BYTES)
        return;
    ch__map_remove_if(&s->applied, drop_if_ended, s);
    s->bytes_before = s->result_bytes;
}

void ch__server_state_retire(ch_server_state *s, uint64_t below)
{
    if (below <= s->retired)
        return;
    s->retired = below;
    drop_deferred_if_ended(s);
    drop_if_large(s);
}

ch_status ch__server_check_rising(size_t n, const uint64_t *step)
{
    for (size_t i = 1; i < n; i++)
        if (step[i] <= step[i - 1])
            return ch__fail(CH_INVALID_ARGUMENT, "the list of steps is not in rising order");
    return CH_OK;
}

/* Messages may arrive out of order, so the old and the new list are merged. The list with the
 * larger `below` is kept, without the steps that have ended according to either list. */
ch_status ch__server_state_live(ch_server_state *s, uint64_t below, size_t n,
                                const uint64_t *live)
{
    const uint64_t *from = below >= s->below ? live : s->live;
    size_t          n_from = below >= s->below ? n : s->n_live, n_new = 0;
    uint64_t       *list;

    if (below == 0)
        return CH_OK; /* the message has no list */
    if (ch__server_check_rising(n, live) != CH_OK)
        return CH_INVALID_ARGUMENT;
    list = ch__calloc(n_from + 1, sizeof(*list));
    if (list == NULL)
        return ch__fail_memory("the list of live steps");
    for (size_t i = 0; i < n_from; i++)
        if (!has_ended(s, from[i]) && (from[i] >= below || is_in_list(n, live, from[i])))
            list[n_new++] = from[i];
    ch__free(s->live);
    s->live = list;
    s->n_live = n_new;
    s->below = below > s->below ? below : s->below;
    drop_deferred_if_ended(s);
    drop_if_large(s);
    return CH_OK;
}

/* ---- holds: steps that may be cancelled ---- */

static bool was_applied(const ch_server_state *s, uint64_t step)
{
    for (int i = 0; i < s->applied.cap; i++)
        if (s->applied.entry[i].value != NULL && s->applied.entry[i].key.a == step)
            return true;
    return false;
}

ch_status ch__server_state_hold(ch_server_state *s, const Cohort__PsHold *m, uint64_t *begun,
                                size_t *n_begun)
{
    ch_status rc = ch__server_check_rising(m->n_steps, m->steps);
    uint64_t *held;

    if (rc != CH_OK)
        return rc;
    if (m->round > s->round) {
        held = ch__calloc(m->n_steps + 1, sizeof(*held));
        if (held == NULL)
            return ch__fail_memory("the list of held steps");
        memcpy(held, m->steps, m->n_steps * sizeof(*held));
        ch__free(s->held);
        s->held = held;
        s->n_held = m->n_steps;
        s->round = m->round;
    }
    *n_begun = 0;
    for (size_t i = 0; i < m->n_steps; i++)
        if (was_applied(s, m->steps[i]))
            begun[(*n_begun)++] = m->steps[i];
    return CH_OK;
}

void ch__server_state_release(ch_server_state *s, uint64_t round)
{
    if (round < s->round)
        return;
    s->round = round; /* so that a late hold of this round holds nothing */
    s->n_held = 0;
}

ch_status ch__server_check_hold(const ch_server_state *s, uint64_t step)
{
    return !is_in_list(s->n_held, s->held, step) || !CH_KEEPS(HOLD)
               ? CH_OK
               : ch__fail(CH_ABORTED, "step %llu: update rejected: the step is being cancelled",
                          (unsigned long long)step);
}

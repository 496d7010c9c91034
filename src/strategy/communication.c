/* strategy/communication.c -- communication options of a strategy, and of single calls.
 *
 * The options of a call override those of its strategy. ch_all_reduce_with and
 * ch_all_reduce_all_with are the calls with options in a step; move.c uses the options for
 * reductions on the host.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "collective/collective.h"
#include "strategy/strategy.h"

ch_status ch__communication_check(const char *name, const ch_communication_options *c)
{
    if (c->bytes_per_pack < 0)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: bytes_per_pack is %lld, want 0 or more", name,
                        (long long)c->bytes_per_pack);
    if (!(c->timeout_seconds >= 0))
        return ch__fail(CH_INVALID_ARGUMENT, "%s: timeout_seconds is %g, want 0 or more", name,
                        c->timeout_seconds);
    if ((unsigned)c->implementation > CH_CROSS_RING)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: implementation is %d, want a ch_cross_device",
                        name, (int)c->implementation);
    return CH_OK;
}

ch_communication_options ch_communication_merge(const ch_communication_options *base,
                                                const ch_communication_options *over)
{
    ch_communication_options c = base != NULL ? *base : (ch_communication_options){0};

    if (over == NULL)
        return c;
    if (over->implementation != CH_CROSS_AUTO)
        c.implementation = over->implementation;
    if (over->bytes_per_pack != 0)
        c.bytes_per_pack = over->bytes_per_pack;
    if (over->timeout_seconds != 0)
        c.timeout_seconds = over->timeout_seconds;
    return c;
}

ch_status ch__communication_of(const ch_strategy *st, const char *call,
                               const ch_communication_options *over,
                               ch_communication_options       *out)
{
    ch_status rc = over != NULL ? ch__communication_check(call, over) : CH_OK;

    if (rc == CH_OK)
        *out = ch_communication_merge(&st->parts.communication, over);
    return rc;
}

/* ---- in a step ---- */

ch_communication_options ch__communication_of_step(const ch_step *s)
{
    const ch_strategy *st = s->owner;

    return (ch_communication_options){.bytes_per_pack = st->parts.communication.bytes_per_pack};
}

/* Stores the options of a collective in *how: those of the call, and bytes_per_pack of the call
 * or the strategy. The other options of the strategy are omitted because the group already has
 * them. Records an error in s and returns false if the options are invalid. */
static bool merge_options(ch_step *s, const ch_communication_options *over, const void *caller,
                          ch_communication_options *how)
{
    ch_communication_options all;
    ch_status                rc;

    if (s == NULL || s->rc != CH_OK)
        return false;
    rc = ch__communication_of(s->owner, "all_reduce", over, &all);
    if (rc != CH_OK) {
        ch__step_record_error(s, rc, caller);
        return false;
    }
    *how = over != NULL ? *over : (ch_communication_options){0};
    how->bytes_per_pack = all.bytes_per_pack;
    return true;
}

ch_node *ch_all_reduce_with(ch_reduce_op op, ch_node *x, const ch_communication_options *opt)
{
    const void              *caller = __builtin_return_address(0);
    ch_communication_options how = {0};

    if (x != NULL && !merge_options(ch_node_step(x), opt, caller, &how))
        return NULL;
    return ch__all_reduce_one(caller, op, x, &how);
}

/* Returns the step of the first node that is not NULL; NULL if all are. */
static ch_step *step_of(int n, ch_node *const *x)
{
    for (int i = 0; i < n; i++)
        if (x[i] != NULL)
            return ch_node_step(x[i]);
    return NULL;
}

void ch_all_reduce_all_with(ch_reduce_op op, int n, ch_node *const *x,
                            const ch_communication_options *opt, ch_node **out)
{
    const void              *caller = __builtin_return_address(0);
    ch_communication_options how = {0};

    if (n <= 0 || x == NULL || out == NULL)
        return;
    for (int i = 0; i < n; i++)
        out[i] = NULL;
    if (step_of(n, x) == NULL || merge_options(step_of(n, x), opt, caller, &how))
        ch__all_reduce_packs(caller, op, n, x, &how, out);
}

/* strategy/away.c -- runs in other tasks.   SPDX-License-Identifier: Apache-2.0 */
#include "strategy/strategy.h"

int ch__strategy_workers(ch_strategy *st)
{
    return st->away_runs != NULL ? st->away_runs->workers(st) : 0;
}

ch_status ch__away_run(const ch_run *run, ch_tuple **out)
{
    const ch_strategy *st = run->owner;
    ch_away_run       *r = NULL;
    ch_status          rc = st->away_runs->begin(run, 0, true, &r);

    if (rc == CH_OK)
        rc = st->away_runs->fetch(r, out);
    ch__away_leave(st, r);
    return rc;
}

ch_status ch__away_fetch(const ch_strategy *st, ch_away_run *r, ch_tuple **out)
{
    return st->away_runs->fetch(r, out);
}

bool ch__away_has_ended(const ch_strategy *st, const ch_away_run *r)
{
    return st->away_runs->has_ended(r);
}

void ch__away_leave(const ch_strategy *st, ch_away_run *r)
{
    if (r != NULL)
        st->away_runs->leave(r);
}

ch_status ch__strategy_room(ch_strategy *st, uint64_t pin)
{
    return st->away_runs->room(st, pin != 0);
}

ch_status ch__strategy_settle(ch_strategy *st)
{
    return st->away_runs->settle(st);
}

ch_status ch__strategy_pin(ch_strategy *st, uint64_t *out)
{
    return st->away_vars->pin(st, out);
}

void ch__strategy_unpin(ch_strategy *st, uint64_t pin)
{
    if (pin != 0)
        st->away_vars->unpin(st, pin);
}

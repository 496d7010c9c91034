/* strategy/away.c -- runs ahead, in other tasks.   SPDX-License-Identifier: Apache-2.0 */
#include "strategy/strategy.h"

int ch__strategy_workers(ch_strategy *st)
{
    return st->away != NULL ? st->away->workers(st) : 0;
}

ch_status ch__away_fetch(const ch_strategy *st, ch_away_run *r, ch_tuple **out)
{
    return st->away->fetch(r, out);
}

bool ch__away_has_ended(const ch_strategy *st, const ch_away_run *r)
{
    return st->away->has_ended(r);
}

void ch__away_leave(const ch_strategy *st, ch_away_run *r)
{
    if (r != NULL)
        st->away->leave(r);
}

ch_status ch__strategy_room(ch_strategy *st)
{
    return st->away->room(st);
}

ch_status ch__strategy_settle(ch_strategy *st)
{
    return st->away->settle(st);
}

ch_status ch__strategy_pin(ch_strategy *st, uint64_t *out)
{
    return st->away->pin(st, out);
}

void ch__strategy_unpin(ch_strategy *st, uint64_t pin)
{
    if (pin != 0)
        st->away->unpin(st, pin);
}

/* data/budget.c -- limit of the bytes that the buffers of a pipeline hold.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/budget.h"

#include "base/fault.h"
#include "data/iterator.h"
#include "data/stages.h"

/* ---- workqueues ---- */

int64_t ch__charge_least(const ch_charge *c)
{
    return c->element_bytes * c->least_want;
}

/* Recomputes c->charged after a change of `held` or `element_bytes`. */
static void recharge(ch_budget *b, ch_charge *c)
{
    int64_t least = ch__charge_least(c), charged = c->held > least ? c->held : least;

    b->charged += charged - c->charged;
    c->charged = charged;
}

void ch__charge_open(ch_budget *b, ch_charge *c, int least_want)
{
    *c = (ch_charge){.least_want = least_want};
    b->n_unknown++;
}

void ch__charge_close(ch_budget *b, ch_charge *c)
{
    b->least -= ch__charge_least(c);
    b->charged -= c->charged;
    b->n_unknown -= !c->is_known;
}

void ch__charge_add(ch_budget *b, ch_charge *c, int64_t held)
{
    c->held += held;
    recharge(b, c);
}

void ch__charge_measured(ch_budget *b, ch_charge *c, int want, int64_t bytes)
{
    int64_t each = (bytes + want - 1) / want;

    b->n_unknown -= !c->is_known;
    c->is_known = true;
    b->least -= ch__charge_least(c);
    if (each > c->element_bytes)
        c->element_bytes = each;
    b->least += ch__charge_least(c);
    recharge(b, c);
}

bool ch__charge_fits(const ch_budget *b, const ch_charge *c, int want)
{
    int64_t held = c->held + c->element_bytes * want;
    int64_t more = held > c->charged ? held - c->charged : 0;

    return b->n_unknown == 0 &&
           b->charged + atomic_load_explicit(&b->kept, memory_order_relaxed) + more <=
               ch__budget_limit(b);
}

/* ---- shuffles and caches ---- */

/* Returns true if the stage of `c` holds elements besides those in its workqueue. */
static bool holds_elements(const ch_cursor *c)
{
    return c != NULL && (c->stage->traits & CH_HOLDS_ELEMENTS) != 0;
}

/* Adds bytes, which may be negative, to the charge of `c`. Returns the total of all cursors. */
static int64_t add_kept(ch_cursor *c, int64_t bytes)
{
    c->kept += bytes;
    return atomic_fetch_add_explicit(&c->it->budget.kept, bytes, memory_order_relaxed) + bytes;
}

ch_status ch__budget_charge(ch_cursor *c, const ch_element *e)
{
    ch_budget *b = &c->it->budget;
    int64_t    all;

    if (!holds_elements(c))
        return CH_OK;
    all = add_kept(c, ch__element_bytes(e));
    if (c->kept > all / 2)
        b->keeper = c->stage->name;
    if (all + b->least <= ch__budget_limit(b))
        return CH_OK;
    add_kept(c, -ch__element_bytes(e));
    return ch__fail(
        CH_RESOURCE_EXHAUSTED,
        "%s: it holds %lld bytes of elements, and one more element would exceed memory_bytes "
        "(%lld for all buffers together); %s, or raise memory_bytes",
        c->stage->name, (long long)c->kept, (long long)b->most,
        c->stage == &ch__stage_cache ? "give the cache a file" : "let it hold fewer elements");
}

void ch__budget_refund(ch_cursor *c, const ch_element *e)
{
    /* A cache still holds the elements that it has returned. */
    if ((c->stage->traits & CH_GIVES_UP_ELEMENTS) != 0)
        add_kept(c, -ch__element_bytes(e));
}

void ch__budget_refund_all(ch_cursor *c)
{
    add_kept(c, -c->kept);
}

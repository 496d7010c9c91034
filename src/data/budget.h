/* data/budget.h -- how many bytes the buffers of a pipeline may hold.
 *
 * Each belt is charged for what it holds, and at least for one item, as small as they can be, which it
 * must be able to hold for the pipeline to move at all; so an item that is needed never takes the budget
 * by surprise. How large an item is shows when the first one is made: until every belt knows, none works
 * further ahead than it must. Shuffles and caches in memory keep what they were asked to; that is counted too.
 *
 * All but what is atomic is guarded by the iterator's lock. Without a limit nothing is counted.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_BUDGET_H
#define DATA_BUDGET_H

#include "data/data.h"

typedef struct ch_budget {
    int64_t         most;      /* bytes; 0: no limit */
    _Atomic int     n_more;    /* trees of cursors that are there for a while, beside the one */
    int64_t         charged;   /* of all belts: what they hold, but at least an item each */
    int             n_unknown; /* belts that made no item yet */
    _Atomic int64_t least;     /* of all belts: an item each */
    _Atomic int64_t kept;      /* by shuffles and caches */
    const char *_Atomic keeper; /* the stage that keeps the most of that */
} ch_budget;

/* How many bytes there may be now: each tree has `most`. */
static inline int64_t ch__budget_limit(const ch_budget *b)
{
    return b->most * (1 + atomic_load_explicit(&b->n_more, memory_order_relaxed));
}

/* What a belt is charged for. */
typedef struct ch_charge {
    int64_t element_bytes; /* at most so far, while an item is made, for each that was wanted */
    int64_t charged, held;
    int     least_want; /* elements of the smallest item there can be */
    bool    is_known;
} ch_charge;

void ch__charge_open(ch_budget *b, ch_charge *c, int least_want);
void ch__charge_close(ch_budget *b, ch_charge *c);
/* More bytes are held, or fewer. */
void ch__charge_add(ch_budget *b, ch_charge *c, int64_t held);
/* An item of `want` elements was made, which took `bytes` at most. */
void ch__charge_learn(ch_budget *b, ch_charge *c, int want, int64_t bytes);
/* Whether there is room for one more item, of `want` elements. */
bool ch__charge_fits(const ch_budget *b, const ch_charge *c, int want);
/* What the smallest item takes. */
int64_t ch__charge_least(const ch_charge *c);

/* A cursor took an element from an input, and gave one: RESOURCE_EXHAUSTED if it keeps more than there
 * may be. */
ch_status ch__budget_charge(ch_cursor *c, const ch_element *e);
void      ch__budget_refund(ch_cursor *c, const ch_element *e);
/* It keeps nothing any more. */
void ch__budget_forget(ch_cursor *c);

#endif

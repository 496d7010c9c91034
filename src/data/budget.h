/* data/budget.h -- limit of the bytes that the buffers of a pipeline hold.
 *
 * Each workqueue is charged for the bytes that it holds, and at least for its smallest possible
 * job. The pipeline stops unless every queue can hold a job. With this charge, a job that is
 * needed always fits. The size of a job is known only after the first has been made. Until
 * every queue has made a job, no queue prefetches more than it must. Elements in shuffle
 * buffers and in caches in memory are counted too.
 *
 * The iterator's lock guards all fields that are not atomic. Without a limit nothing is
 * counted.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_BUDGET_H
#define DATA_BUDGET_H

#include "data/data.h"

/* The budget of an iterator. All sizes are in bytes. */
typedef struct ch_budget {
    int64_t     most;    /* limit for a tree of cursors; 0: no limit */
    _Atomic int n_more;  /* additional trees that exist while a position is restored */
    int64_t     charged; /* by all queues: bytes held, but at least the smallest job of each */
    int         n_unknown;      /* queues that have made no job yet */
    _Atomic int64_t     least;  /* sum of the smallest jobs of all queues */
    _Atomic int64_t     kept;   /* held by shuffles and caches */
    const char *_Atomic keeper; /* name of the stage that holds most of `kept` */
} ch_budget;

/* Returns the number of bytes that all trees together may hold now. Each tree may hold
 * `most`. */
static inline int64_t ch__budget_limit(const ch_budget *b)
{
    return b->most * (1 + atomic_load_explicit(&b->n_more, memory_order_relaxed));
}

/* The charge of a workqueue. */
typedef struct ch_charge {
    /* Peak of the bytes used while a job was made, divided by the job's `want`; the largest so
     * far. */
    int64_t element_bytes;
    int64_t charged, held; /* bytes; charged is the larger of held and the smallest job */
    int     least_want;    /* elements of the smallest possible job */
    bool    is_known;      /* element_bytes was measured */
} ch_charge;

void ch__charge_open(ch_budget *b, ch_charge *c, int least_want);
void ch__charge_close(ch_budget *b, ch_charge *c);
/* Adds `held` bytes, which may be negative. */
void ch__charge_add(ch_budget *b, ch_charge *c, int64_t held);
/* Records that a job of `want` elements used at most `bytes` while it was made. */
void ch__charge_measured(ch_budget *b, ch_charge *c, int want, int64_t bytes);
/* Returns true if there is room for another job of `want` elements. */
bool ch__charge_fits(const ch_budget *b, const ch_charge *c, int want);
/* Returns the bytes of the smallest job. */
int64_t ch__charge_least(const ch_charge *c);

/* Charges the cursor for an element that it received from an input. Has no effect unless the
 * stage has CH_HOLDS_ELEMENTS. Returns CH_RESOURCE_EXHAUSTED if the limit is exceeded. */
ch_status ch__budget_charge(ch_cursor *c, const ch_element *e);
/* Refunds the charge when the cursor returns an element. Has no effect unless the stage has
 * CH_GIVES_UP_ELEMENTS. */
void ch__budget_refund(ch_cursor *c, const ch_element *e);
/* Refunds all charges of the cursor. */
void ch__budget_refund_all(ch_cursor *c);

#endif

/* base/counter.c -- striped counters.   SPDX-License-Identifier: Apache-2.0 */
#include "base/counter.h"

static atomic_uint       n_threads;   /* number of threads that have added to a counter */
static _Thread_local int stripe = -1; /* -1: not assigned yet */

int ch__counter_stripe(void)
{
    if (stripe < 0) {
        unsigned nth = atomic_fetch_add_explicit(&n_threads, 1, memory_order_relaxed);

        stripe = nth < CH_OWNED_STRIPES
                     ? (int)nth
                     : (int)(CH_OWNED_STRIPES + nth % (CH_STRIPES - CH_OWNED_STRIPES));
    }
    return stripe;
}

void ch__counter_add(ch_counter *c, int64_t n)
{
    int                   i = ch__counter_stripe();
    atomic_int_least64_t *sum = &c->stripe[i].n;

    if (i < CH_OWNED_STRIPES)
        atomic_store_explicit(sum, atomic_load_explicit(sum, memory_order_relaxed) + n,
                              memory_order_relaxed);
    else
        atomic_fetch_add_explicit(sum, n, memory_order_relaxed);
}

int64_t ch__counter_sum(const ch_counter *c)
{
    int64_t sum = 0;

    for (int i = 0; i < CH_STRIPES; i++)
        sum += atomic_load_explicit(&c->stripe[i].n, memory_order_relaxed);
    return sum;
}

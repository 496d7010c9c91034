/* base/counter.h -- striped counters, for statistics that many threads add to.
 *
 * If threads on different cores add to the same number, its cache line moves between the cores,
 * and each addition waits for the line. A striped counter is several numbers in different cache
 * lines, and the value is the sum of all stripes. The first threads that count own a stripe
 * each and add without an atomic read-modify-write; later threads share the other stripes.
 * Zero-initialise a counter before its first use.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_COUNTER_H
#define BASE_COUNTER_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/mem.h"

enum { CH_STRIPES = 24, CH_OWNED_STRIPES = 16 };

/* Memory that holds a counter must be aligned to CH_ALIGN. */
typedef struct ch_counter {
    struct {
        alignas(CH_ALIGN) atomic_int_least64_t n; /* may be negative */
        char unused[CH_ALIGN];                    /* CPUs fetch cache lines in pairs */
    } stripe[CH_STRIPES];
} ch_counter;

/* Adds n, which may be negative. The addition is relaxed: it orders no other memory access. */
void ch__counter_add(ch_counter *c, int64_t n);
/* Returns the sum of all additions. If other threads add at the same time, the sum may include
 * any of their additions. */
int64_t ch__counter_sum(const ch_counter *c);
/* Returns the index of this thread's stripe. The first CH_OWNED_STRIPES threads that call this
 * function get stripes of their own; later threads get the other stripes in turn. */
int ch__counter_stripe(void);

#endif

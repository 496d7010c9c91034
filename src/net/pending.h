/* net/pending.h -- what a task waits for: calls it made, calls it owes an answer, timers.
 *
 * Each has a number, which is never given again, and a time at which it ends by itself. Looked up by number, by kind
 * and id, and by time. Nothing is allocated but by ch__pending_reserve, and that only to grow.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_PENDING_H
#define NET_PENDING_H

#include <stdbool.h>
#include <stdint.h>

typedef enum ch_pending_kind {
    CH_PENDING_FREE,
    CH_PENDING_CALL,
    CH_PENDING_TIMER,
    CH_PENDING_RECEIVED
} ch_pending_kind;

typedef struct ch_pending {
    ch_pending_kind kind;
    uint32_t        round; /* how often this place was used */
    int             heap;  /* its place among the times; -1: it has none */
    uint64_t
            id; /* of a call or timer: as the task gave it; of one asked: the caller's number */
    int64_t at; /* INT64_MAX: never */
    uint64_t    sequence;    /* of all that were added or moved */
    int64_t     bytes;       /* of a call: that it takes of its link */
    uint64_t    incarnation; /* of one asked: the caller's */
    void       *link;        /* of a call: its ch_link; of one asked: where the answer goes */
    const char *name;        /* of one asked: whose it is */
} ch_pending;

typedef struct ch_pending_table {
    ch_pending *place;
    int        *spare;  /* places that are free, the next one last */
    int        *heap;   /* places by time, then sequence */
    int        *bucket; /* places by kind and id, -1: none; twice as many as places */
    int         cap, n, n_heap, n_spare;
    uint64_t    sequence;
} ch_pending_table;

/* Room for `more`. False: no memory, and all is as it was. */
bool ch__pending_reserve(ch_pending_table *t, int more);
void ch__pending_free(ch_pending_table *t);

/* NULL: there is no room. Places move when there is made more. */
ch_pending *ch__pending_add(ch_pending_table *t, ch_pending_kind kind, uint64_t id, int64_t at);
void        ch__pending_move(ch_pending_table *t, ch_pending *e, int64_t at);
void        ch__pending_drop(ch_pending_table *t, ch_pending *e);
/* Not for what was asked: two callers may have the same number. */
ch_pending *ch__pending_find(const ch_pending_table *t, ch_pending_kind kind, uint64_t id);
uint64_t    ch__pending_number(const ch_pending_table *t, const ch_pending *e);
ch_pending *ch__pending_at(const ch_pending_table *t, ch_pending_kind kind, uint64_t number);
ch_pending *ch__pending_first(const ch_pending_table *t); /* by time; NULL: none has one */

#endif

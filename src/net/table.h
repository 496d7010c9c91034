/* net/table.h -- what a task waits for: calls it made, calls it owes an answer, timers.
 *
 * Each has a number, which is never given again, and a time at which it ends by itself. Looked up by number, by kind
 * and id, and by time. Nothing is allocated but by ch__opens_reserve, and that only to grow.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_TABLE_H
#define NET_TABLE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum ch_open_kind {
    CH_OPEN_FREE,
    CH_OPEN_CALL,
    CH_OPEN_TIMER,
    CH_OPEN_ASKED
} ch_open_kind;

typedef struct ch_open {
    ch_open_kind kind;
    uint32_t     round; /* how often this place was used */
    int          heap;  /* its place among the times; -1: it has none */
    uint64_t
            id; /* of a call or timer: as the task gave it; of one asked: the caller's number */
    int64_t at; /* INT64_MAX: never */
    uint64_t    sequence;    /* of all that were added or moved */
    int64_t     bytes;       /* of a call: that it takes of its link */
    uint64_t    incarnation; /* of one asked: the caller's */
    void       *link;        /* of a call: its ch_link; of one asked: where the answer goes */
    const char *name;        /* of one asked: whose it is */
} ch_open;

typedef struct ch_opens {
    ch_open *place;
    int     *spare;  /* places that are free, the next one last */
    int     *heap;   /* places by time, then sequence */
    int     *bucket; /* places by kind and id, -1: none; twice as many as places */
    int      cap, n, n_heap, n_spare;
    uint64_t sequence;
} ch_opens;

/* Room for `more`. False: no memory, and all is as it was. */
bool ch__opens_reserve(ch_opens *t, int more);
void ch__opens_free(ch_opens *t);

/* NULL: there is no room. Places move when there is made more. */
ch_open *ch__opens_add(ch_opens *t, ch_open_kind kind, uint64_t id, int64_t at);
void     ch__opens_move(ch_opens *t, ch_open *e, int64_t at);
void     ch__opens_drop(ch_opens *t, ch_open *e);
/* Not for what was asked: two callers may have the same number. */
ch_open *ch__opens_find(const ch_opens *t, ch_open_kind kind, uint64_t id);
uint64_t ch__opens_number(const ch_opens *t, const ch_open *e);
ch_open *ch__opens_at(const ch_opens *t, ch_open_kind kind, uint64_t number);
ch_open *ch__opens_first(const ch_opens *t); /* by time; NULL: none has one */

#endif

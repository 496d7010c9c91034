/* net/pending.h -- the table of a task's pending calls and timers.
 *
 * An entry is a call that the task made, a call that the task received and has not replied to,
 * or a timer. Each entry has a number, which is never reused, and a time at which the entry
 * expires. Entries are found by number, by (kind, id) and by time. Only ch__pending_reserve
 * allocates memory, and only if the table must grow.
 *
 * The core of net/ owns a table per task and uses it with the task's lock held.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_PENDING_H
#define NET_PENDING_H

#include <stdbool.h>
#include <stdint.h>

#include "net/slots.h"

typedef enum ch_pending_kind {
    CH_PENDING_FREE,    /* the slot holds no entry */
    CH_PENDING_CALL,    /* a call that the task made */
    CH_PENDING_TIMER,   /* a timer of the task */
    CH_PENDING_RECEIVED /* a call that the task received and has not replied to */
} ch_pending_kind;

typedef struct ch_pending {
    ch_pending_kind kind;
    uint32_t        generation; /* number of entries that this slot has held */
    int             heap;       /* index in the table's heap; -1: the entry never expires */
    /* Call or timer: the id that the task chose. Received call: the number that
     * the caller gave. */
    uint64_t id;
    int64_t  at;       /* time of expiry in ns; INT64_MAX: never */
    uint64_t sequence; /* the table's sequence when the entry was added or last moved */
    /* Call: ns that the caller waits while no bulk bytes move; the time in ns at which the call
     * is late even if they do. */
    int64_t timeout, last;
    union {
        struct {
            struct ch_link *link;
            int64_t         bytes; /* of the link's room that the call takes */
        } made;
        struct {
            ch_return_path back;
            uint64_t       incarnation; /* of the caller */
            const char    *name;        /* of the caller */
        } received;
    };
} ch_pending;

/* Zero-initialise a table to begin. */
typedef struct ch_pending_table {
    ch_pending *entry;
    int        *free_slot; /* stack of the slots without an entry */
    int        *heap;      /* slots of the entries that expire, by time, then by sequence */
    int        *bucket;    /* hash table of 2 * cap slots by (kind, id); -1: empty bucket */
    int         cap, n, n_heap, n_free;
    uint64_t    sequence; /* additions and moves so far */
} ch_pending_table;

/* Makes room for `more` further entries. Returns false and leaves the table unchanged if memory
 * is exhausted. Entries may move in memory, so pointers to them become invalid. */
bool ch__pending_reserve(ch_pending_table *t, int more);
void ch__pending_free(ch_pending_table *t);

/* Adds an entry that expires at `at`. Returns NULL if the table has no room: the caller must
 * reserve first. */
ch_pending *ch__pending_add(ch_pending_table *t, ch_pending_kind kind, uint64_t id, int64_t at);
/* Changes the time of expiry. */
void ch__pending_move(ch_pending_table *t, ch_pending *e, int64_t at);
/* Sets a later time of expiry, and keeps the sequence. */
void ch__pending_defer(ch_pending_table *t, ch_pending *e, int64_t at);
/* Removes an entry. */
void ch__pending_drop(ch_pending_table *t, ch_pending *e);
/* Returns the call or timer with this id, or NULL. Received calls cannot be found this way,
 * because two callers may use the same number. */
ch_pending *ch__pending_find(const ch_pending_table *t, ch_pending_kind kind, uint64_t id);
/* Returns the number of an entry: its generation in the upper 32 bits, its
 * slot in the lower. */
uint64_t ch__pending_number(const ch_pending_table *t, const ch_pending *e);
/* Returns the entry with this number, or NULL if it was dropped or is of another kind. */
ch_pending *ch__pending_at(const ch_pending_table *t, ch_pending_kind kind, uint64_t number);
/* Returns the entry that expires first, or NULL if no entry expires. */
ch_pending *ch__pending_first(const ch_pending_table *t);

#endif

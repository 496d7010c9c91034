/* net/slots.h -- return paths of calls, as values, and the slots that they name.
 *
 * A wire gives each connection over which calls arrive a slot. The return path of a call is the
 * wire, the slot and the slot's generation. When the connection ends, the generation grows, so
 * the return paths of its calls are stale: replies to them are ignored. So a task may keep a
 * return path for any time, and the wire may end the connection at any time.
 *
 * Slots do not move. A slot is used again when its connection has ended. A wire changes its
 * slots with ch__slots_add and ch__slots_end; any thread may read them at any time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_SLOTS_H
#define NET_SLOTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mutant.h"

struct ch_net_wire;

/* The return path of a call. */
typedef struct ch_return_path {
    struct ch_net_wire *wire;
    uint32_t            slot, generation;
} ch_return_path;

/* A connection over which calls arrive. */
typedef struct ch_slot {
    atomic_uint generation; /* number of connections that this slot has had before */
    /* Received calls that have not ended at this task: the wire adds them (ch__slots_deliver),
     * the core subtracts them. 0 if the wire does not count (ch_net_wire.counts_calls). */
    atomic_int           n_calls;
    atomic_int_least64_t reply_bytes; /* of replies that the wire has not sent yet */
    atomic_int_least64_t moved_at;    /* ns; when bulk bytes last moved over the connection */
    void                *end;         /* the wire's data of the connection */
} ch_slot;

/* Chunk i has CH_SLOT_FIRST << i slots. */
enum { CH_SLOT_FIRST = 32, CH_SLOT_CHUNKS = 20 };

/* Zero-initialise to begin. */
typedef struct ch_slots {
    ch_slot *_Atomic chunk[CH_SLOT_CHUNKS];
    uint32_t         n;    /* slots so far */
    uint32_t        *idle; /* slots without a connection */
    int              n_idle, cap_idle;
} ch_slots;

/* Adds a connection and returns its path in *out. Returns false if memory is exhausted. One
 * thread at a time may call this function or ch__slots_end. */
bool ch__slots_add(ch_slots *s, struct ch_net_wire *wire, void *end, ch_return_path *out);
/* Ends the connection of this path: the path is stale from now on, and the slot is free. */
void ch__slots_end(ch_slots *s, ch_return_path back);
/* Makes the path stale, and leaves the slot to the same owner. Returns its new generation. */
uint32_t ch__slots_renew(ch_slots *s, ch_return_path back);
void     ch__slots_free(ch_slots *s);

/* Returns a slot by its number, whatever its generation. */
static inline ch_slot *ch__slots_get(ch_slots *s, uint32_t slot)
{
    int      log = 31 - __builtin_clz(slot + CH_SLOT_FIRST), chunk = log - 5;
    uint32_t at = slot + CH_SLOT_FIRST - (1u << log);

    _Static_assert(CH_SLOT_FIRST == 1 << 5, "the first chunk has 2^5 slots");
    return &atomic_load_explicit(&s->chunk[chunk], memory_order_acquire)[at];
}

/* Records that the wire has put a call from this path into a mailbox. */
void ch__slots_deliver(ch_slots *s, ch_return_path back);
/* Records that a received call has ended. */
void ch__slots_call_ended(ch_slots *s, ch_return_path back);

/* Returns true if both paths are the same connection. */
static inline bool ch__return_path_is_same(ch_return_path a, ch_return_path b)
{
    return a.wire == b.wire && a.slot == b.slot &&
           (a.generation == b.generation || !CH_KEEPS(GENERATION));
}

/* Returns the slot of a path, or NULL if the path is stale. */
static inline ch_slot *ch__slots_at(ch_slots *s, ch_return_path back)
{
    ch_slot *slot = ch__slots_get(s, back.slot);

    return atomic_load_explicit(&slot->generation, memory_order_acquire) == back.generation ||
                   !CH_KEEPS(GENERATION)
               ? slot
               : NULL;
}

#endif

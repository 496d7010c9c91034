/* net/slots.c -- the slots of a wire: chunks that grow and never move.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/slots.h"

#include "base/mem.h"

/* Allocates the chunk of the next slot, if it is the first of its chunk. */
static bool grow(ch_slots *s)
{
    int      i = 31 - __builtin_clz(s->n + CH_SLOT_FIRST) - 5;
    ch_slot *chunk;

    if (i == CH_SLOT_CHUNKS)
        return false;
    if (atomic_load_explicit(&s->chunk[i], memory_order_relaxed) != NULL)
        return true;
    chunk = ch__calloc((size_t)CH_SLOT_FIRST << i, sizeof(*chunk));
    atomic_store_explicit(&s->chunk[i], chunk, memory_order_release);
    return chunk != NULL;
}

bool ch__slots_add(ch_slots *s, struct ch_net_wire *wire, void *end, ch_return_path *out)
{
    uint32_t number;
    ch_slot *slot;

    /* Room for all idle slots, so that ch__slots_end cannot fail. */
    if (s->n_idle == 0 && (!grow(s) || !ch__grow((void **)&s->idle, &s->cap_idle, (int)s->n + 1,
                                                 sizeof(s->idle[0]))))
        return false;
    number = s->n_idle > 0 ? s->idle[--s->n_idle] : s->n++;
    slot = ch__slots_get(s, number);
    slot->end = end;
    atomic_store_explicit(&slot->n_calls, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->reply_bytes, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->moved_at, 0, memory_order_relaxed);
    *out = (ch_return_path){wire, number,
                            atomic_load_explicit(&slot->generation, memory_order_relaxed)};
    return true;
}

void ch__slots_end(ch_slots *s, ch_return_path back)
{
    ch_slot *slot = ch__slots_get(s, back.slot);

    if (atomic_load_explicit(&slot->generation, memory_order_relaxed) != back.generation)
        return;
    atomic_fetch_add_explicit(&slot->generation, 1, memory_order_release);
    s->idle[s->n_idle++] = back.slot;
}

uint32_t ch__slots_renew(ch_slots *s, ch_return_path back)
{
    return atomic_fetch_add_explicit(&ch__slots_get(s, back.slot)->generation, 1,
                                     memory_order_release) +
           1;
}

void ch__slots_deliver(ch_slots *s, ch_return_path back)
{
    ch_slot *slot = ch__slots_at(s, back);

    if (slot != NULL)
        atomic_fetch_add_explicit(&slot->n_calls, 1, memory_order_relaxed);
}

/* If the slot is given to another connection at this moment, the new one may have one call more
 * than its limit. */
void ch__slots_call_ended(ch_slots *s, ch_return_path back)
{
    ch_slot *slot = ch__slots_at(s, back);

    if (slot != NULL)
        atomic_fetch_sub_explicit(&slot->n_calls, 1, memory_order_relaxed);
}

void ch__slots_free(ch_slots *s)
{
    for (int i = 0; i < CH_SLOT_CHUNKS; i++)
        ch__free(s->chunk[i]);
    ch__free(s->idle);
    *s = (ch_slots){0};
}

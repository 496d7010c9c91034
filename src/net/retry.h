/* net/retry.h -- calls that are repeated until the peer replies.
 *
 * A call may be lost, be late or find no room on its link (net.h). A task that needs the reply
 * makes a retried call instead: the same message is sent again after a pause, until the peer
 * replies, the task cancels the call, or the time limit has passed. The peer may receive the
 * message several times, so it must handle a repeated message without further effect.
 *
 * A ch_retry is embedded in a record of the task, which owns the memory. A ch_retries list
 * holds the retried calls of a task by id. It has no thread, lock or clock: the task
 * passes its events to the functions below.
 *
 *     case CH_EVENT_REPLY:
 *         if (ch__retries_on_reply(&task->retries, e, now, outbox, &ended) && ended != NULL)
 *             finish(task, ended, e);
 *         break;
 *     case CH_EVENT_TIMER:
 *         (void)ch__retries_on_timer(&task->retries, e->id, now, outbox);
 *         break;
 *
 * Invariants:
 *   1. A retried call is in its list from ch__retries_add until ch__retries_on_reply returns it
 *      as ended, or a cancel function returns it. The task frees the record after that.
 *   2. A retried call has an open attempt, or a timer, or neither if it was not called yet.
 *   3. No function calls the task back. While the task handles the end of a call it may add and
 *      cancel others.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_RETRY_H
#define NET_RETRY_H

#include "base/map.h"
#include "net/net.h"

/* The time limits of the attempts, in ns. */
typedef struct ch_retry_policy {
    int64_t timeout;          /* of the first attempt */
    int     doublings;        /* how often the timeout is doubled, once per attempt */
    int64_t pause;            /* from the end of an attempt to the next attempt */
    int64_t patience;         /* since the first attempt; a later failure ends the call */
    bool    ends_if_replaced; /* false: CH_ENDED_REPLACED is retried like CH_ENDED_LOST */
} ch_retry_policy;

/* The task sets the first five fields before ch__retries_add. */
typedef struct ch_retry {
    uint64_t        id;          /* of the attempts and of the timer; unique in the task */
    ch_link        *link;        /* to the peer */
    uint64_t        incarnation; /* of the peer; 0: any */
    ch_message     *message;     /* the task keeps its reference until the call is removed */
    ch_retry_policy policy;
    int             n_attempts;
    int64_t         since;   /* time of the first attempt */
    bool            is_open; /* an attempt is pending */
} ch_retry;

/* Zero-initialise a list to begin. */
typedef struct ch_retries {
    ch_map by_id; /* ch_retry */
} ch_retries;

/* Adds a call to the list, without sending it. Returns RESOURCE_EXHAUSTED, and leaves the list
 * unchanged, if memory is exhausted. */
CH_MUST_CHECK ch_status ch__retries_add(ch_retries *l, ch_retry *r);
/* Makes the first attempt. */
void ch__retry_call(ch_retry *r, int64_t now, ch_outbox *outbox);

/* Handles the end of an attempt (CH_EVENT_REPLY). Returns false if the list has no such call.
 *
 * If the call has ended, removes it from the list and sets *ended to it. The event is then
 * the outcome: CH_ENDED_OK, CH_ENDED_ERROR, CH_ENDED_REPLACED if policy.ends_if_replaced, or
 * any other ending if policy.patience has passed. If the call is to be repeated, sets *ended to
 * NULL and a timer. */
bool ch__retries_on_reply(ch_retries *l, const ch_net_event *e, int64_t now, ch_outbox *outbox,
                          ch_retry **ended);
/* Makes the next attempt of a call by its id. Returns false if the list has no such call. */
bool ch__retries_on_timer(ch_retries *l, uint64_t id, int64_t now, ch_outbox *outbox);

/* Cancels a call by its id, removes it from the list and returns it. Returns NULL if the list
 * has no such call. */
ch_retry *ch__retries_cancel(ch_retries *l, uint64_t id, ch_outbox *outbox);
/* Cancels any call to this peer, removes it from the list and returns it. Returns NULL if there
 * is none. A `link` of NULL stands for all peers. If the task has ended, the caller must pass
 * NULL as `outbox`; nothing is sent then. */
ch_retry *ch__retries_cancel_to(ch_retries *l, const ch_link *link, ch_outbox *outbox);
/* Frees the memory of an empty list. */
void ch__retries_free(ch_retries *l);

#endif

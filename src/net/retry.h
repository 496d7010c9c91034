/* net/retry.h -- a call that is made again until the peer replies.
 *
 * A call may be lost, be late or find no room on its link (net.h). A task that needs the reply
 * makes a retried call instead: the same message is sent again after a pause, until the peer
 * replies, the task cancels the call, or its patience is used up. The peer may receive the
 * message several times, so a repeated message must change nothing.
 *
 * A ch_retry is embedded in a record of the task, which owns the memory. A ch_retries list
 * holds the retried calls of a task by id. It has no thread, lock or clock: the task passes its
 * events on.
 *
 *     case CH_EVENT_REPLY:
 *         if (ch__retries_on_reply(&task->retries, e, now, post, &ended) && ended != NULL)
 *             finish(task, ended, e);
 *         break;
 *     case CH_EVENT_TIMER:
 *         (void)ch__retries_on_timer(&task->retries, e->id, now, post);
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

#include "base/id_map.h"
#include "net/net.h"

/* When an attempt has failed, and when the next is made. Times are in ns. */
typedef struct ch_retry_policy {
    int64_t timeout;   /* of the first attempt */
    int     doublings; /* further attempts that double the timeout; 0: it stays */
    int64_t pause;     /* from the end of an attempt to the next */
    int64_t patience;  /* since the first attempt; an attempt that fails later is the last */
    bool ends_if_replaced; /* false: a peer that was started again counts as a lost attempt */
} ch_retry_policy;

/* The task sets the first five fields before ch__retries_add. */
typedef struct ch_retry {
    uint64_t        id;          /* of the attempts and of the timer; unique in the task */
    ch_link        *link;        /* to the peer */
    uint64_t        incarnation; /* of the peer; 0: any */
    ch_message     *message;     /* the task's reference, until the call has left the list */
    ch_retry_policy policy;
    int             n_attempts;
    int64_t         since;   /* time of the first attempt */
    bool            is_open; /* an attempt has not ended */
} ch_retry;

/* Zero-initialise a list to begin. */
typedef struct ch_retries {
    ch_map by_id; /* ch_retry */
} ch_retries;

/* Adds a call to the list and sends nothing yet. RESOURCE_EXHAUSTED: the list is as it was. */
CH_MUST_CHECK ch_status ch__retries_add(ch_retries *l, ch_retry *r);
/* Makes the first attempt. */
void ch__retry_call(ch_retry *r, int64_t now, ch_outbox *outbox);

/* Handles the end of an attempt (CH_EVENT_REPLY). Returns false if the list has no such call.
 *
 * Sets *ended to the call if it has ended, which removes it from the list. The event is then
 * the outcome: CH_ENDED_OK, CH_ENDED_ERROR, CH_ENDED_REPLACED if the policy says so, or any
 * other ending if the patience is used up. If the call is made again, *ended is NULL. */
bool ch__retries_on_reply(ch_retries *l, const ch_net_event *e, int64_t now, ch_outbox *outbox,
                          ch_retry **ended);
/* Makes the next attempt if the timer is of a call in the list; else returns false. */
bool ch__retries_on_timer(ch_retries *l, uint64_t id, int64_t now, ch_outbox *outbox);

/* Cancels a call by its id, removes it from the list and returns it. NULL: there is none. */
ch_retry *ch__retries_cancel(ch_retries *l, uint64_t id, ch_outbox *outbox);
/* Cancels a call to this peer, removes it from the list and returns it. NULL: none is left. A
 * `link` of NULL stands for all peers. If `outbox` is NULL, because the task has ended, sends
 * nothing. */
ch_retry *ch__retries_cancel_to(ch_retries *l, const ch_link *link, ch_outbox *outbox);
/* Frees the memory of an empty list. */
void ch__retries_free(ch_retries *l);

#endif

/* job/coordinator/heartbeat.h -- pings to a task, and the count of ticks without a reply.
 *
 * Anything that was received on the link to the task is a sign of life: a reply to a large call
 * may be on its way for long. Missed heartbeats are counted in ticks, not measured in seconds,
 * so that a pause of this process is not mistaken for the death of its peers. A ping stays open
 * after the next tick, so that a busy task that replies late still counts as alive. Meanwhile
 * more pings are sent, so that a lost ping does no harm: at first at each tick, then less
 * often, to spare a busy task.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_COORDINATOR_HEARTBEAT_H
#define JOB_COORDINATOR_HEARTBEAT_H

#include "net/net.h"

enum { CH_HEARTBEAT_PINGS = 48 }; /* open pings to a task, at most */

typedef struct ch_heartbeat {
    int     n_silent;    /* ticks since the last sign of life; the coordinator resets it too */
    int     n;           /* open pings */
    int64_t received_at; /* of the link, at the last tick */
    struct ch_heartbeat_ping {
        uint64_t id; /* of the call */
        int64_t  at; /* time in ns when it was sent */
    } ping[CH_HEARTBEAT_PINGS];
} ch_heartbeat;

/* Counts a tick in which nothing was received on the link. Returns true if a ping must be sent
 * in this tick. The task will be declared lost after more than `limit` such ticks. If
 * `is_urgent` is true, a ping is due at each tick: for a task that is not connected. */
bool ch__heartbeat_tick(ch_heartbeat *p, const ch_link *link, int64_t limit, bool is_urgent);
/* Sends a ping. Takes the message over. The caller must have checked ch__heartbeat_tick or that
 * p->n < CH_HEARTBEAT_PINGS. `deadline` is in ns, in the task's time. */
void ch__heartbeat_ping(ch_heartbeat *p, ch_outbox *outbox, ch_link *link, ch_message *message,
                        struct ch_heartbeat_ping ping, int64_t deadline);
/* Handles the end of a call. Returns false if it is not an open ping of this task. Otherwise
 * removes the ping and sets *at to the time when it was sent. */
bool ch__heartbeat_on_reply(ch_heartbeat *p, uint64_t id, int64_t *at);
/* Cancels all open pings. */
void ch__heartbeat_cancel(ch_heartbeat *p, ch_outbox *outbox);

#endif

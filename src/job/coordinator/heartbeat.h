/* job/coordinator/heartbeat.h -- whether a task is there: it is asked at each beat, and beats are counted in which it says nothing.
 *
 * Counted, not timed: who stood still himself must not blame others for it. A ping outlives the beat, so that one who is busy and
 * answers late has answered; he is asked again meanwhile, at first at each beat and then less often: one ping that is lost
 * does not matter, and who is busy has not more to do.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_COORDINATOR_HEARTBEAT_H
#define JOB_COORDINATOR_HEARTBEAT_H

#include "net/net.h"

enum { CH_HEARTBEAT_PINGS = 48 };

typedef struct ch_heartbeat {
    int n_silent; /* beats since it was last heard */
    int n;        /* pings that are open */
    struct ch_heartbeat_ping {
        uint64_t id;
        int64_t  at; /* when it was made */
    } ping[CH_HEARTBEAT_PINGS];
} ch_heartbeat;

/* Another beat; after so many that are silent it will be given up. True: it is to be asked. Urgent: at each, as one that has not come
 * yet. */
bool ch__heartbeat_tick(ch_heartbeat *p, int64_t most, bool is_urgent);
/* Asks it, which takes the parcel over. */
void ch__heartbeat_ping(ch_heartbeat *p, ch_outbox *outbox, ch_link *link, ch_message *message,
                        struct ch_heartbeat_ping ping, int64_t deadline);
/* Whether it is one of its pings that has ended; *at is when it was made. */
bool ch__heartbeat_on_reply(ch_heartbeat *p, uint64_t id, int64_t *at);
/* No answer to what was asked is wanted any more. */
void ch__heartbeat_cancel(ch_heartbeat *p, ch_outbox *outbox);

#endif

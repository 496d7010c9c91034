/* job/coordinator/heartbeat.c -- pings to a task.   SPDX-License-Identifier: Apache-2.0 */
#include "job/coordinator/heartbeat.h"

bool ch__heartbeat_tick(ch_heartbeat *p, const ch_link *link, int64_t limit, bool is_urgent)
{
    /* Pings at each of the first ticks; then about this number of pings up to the limit. */
    enum { FIRST = 8, PINGS = 64 };
    int64_t received_at = ch__link_received_at(link);
    int     n;

    if (received_at != p->received_at)
        p->n_silent = 0;
    p->received_at = received_at;
    n = ++p->n_silent;
    return p->n < CH_HEARTBEAT_PINGS &&
           (is_urgent || n < FIRST || n % (limit / PINGS + 1) == 0);
}

void ch__heartbeat_ping(ch_heartbeat *p, ch_outbox *outbox, ch_link *link, ch_message *message,
                        struct ch_heartbeat_ping ping, int64_t deadline)
{
    p->ping[p->n++] = ping;
    ch__outbox_call(outbox, link, message,
                    &(ch_call_options){.id = ping.id, .deadline = deadline});
}

bool ch__heartbeat_on_reply(ch_heartbeat *p, uint64_t id, int64_t *at)
{
    for (int i = 0; i < p->n; i++)
        if (p->ping[i].id == id) {
            *at = p->ping[i].at;
            p->ping[i] = p->ping[--p->n];
            return true;
        }
    return false;
}

void ch__heartbeat_cancel(ch_heartbeat *p, ch_outbox *outbox)
{
    while (p->n > 0)
        ch__outbox_cancel(outbox, p->ping[--p->n].id);
}

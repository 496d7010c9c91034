/* job/coordinator/heartbeat.c -- whether a task is there, in beats.   SPDX-License-Identifier: Apache-2.0 */
#include "job/coordinator/heartbeat.h"

bool ch__pulse_beat(ch_pulse *p, int64_t most, bool is_urgent)
{
    enum { EACH = 8, TIMES = 64 }; /* at so many beats it is asked at each; then so often */
    int n = ++p->n_silent;

    return p->n < CH_PULSE_PINGS && (is_urgent || n < EACH || n % (most / TIMES + 1) == 0);
}

void ch__pulse_ask(ch_pulse *p, ch_post *post, ch_link *link, ch_parcel *parcel,
                   struct ch_pulse_ping ping, int64_t deadline)
{
    p->ping[p->n++] = ping;
    ch__post_call(post, link, parcel, &(ch_call_options){.id = ping.id, .deadline = deadline});
}

bool ch__pulse_take(ch_pulse *p, uint64_t id, int64_t *at)
{
    for (int i = 0; i < p->n; i++)
        if (p->ping[i].id == id) {
            *at = p->ping[i].at;
            p->ping[i] = p->ping[--p->n];
            return true;
        }
    return false;
}

void ch__pulse_drop(ch_pulse *p, ch_post *post)
{
    while (p->n > 0)
        ch__post_cancel(post, p->ping[--p->n].id);
}

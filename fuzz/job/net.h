/* fuzz/job/net.h -- tasks without delays: what is sent arrives at once, and what is computed is done at once.
 *
 * An engine under net/wire.h, for who asks very many calls. Time passes only when nothing else can happen.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FUZZ_JOB_NET_H
#define FUZZ_JOB_NET_H

#include "net/net.h"

ch_net *direct_net(void); /* ch__net_free frees it */
/* Asks from outside, and returns when the call has ended; CH_ENDED_TIMEOUT: nobody will ever answer. Takes the parcel over. */
ch_ending direct_ask(ch_task *to, ch_message *p);
/* Ends the life of a task, and begins its first one once more: quicker than another net. */
void direct_end(ch_task *t);
void direct_begin(ch_task *t);

#endif

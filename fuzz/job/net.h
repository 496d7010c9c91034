/* fuzz/job/net.h -- tasks without delays: what is sent arrives at once, and what is computed is done at once.
 *
 * An engine under net/wire.h for programs that make very many calls. Time passes only when nothing else can happen.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FUZZ_JOB_NET_H
#define FUZZ_JOB_NET_H

#include "net/net.h"

ch_net *direct_net(void); /* ch__net_free frees it */
/* Calls a task and returns when the call has ended; CH_ENDED_TIMEOUT: the task never replies. Takes the message over. */
ch_ending direct_ask(ch_task *to, ch_message *p);
/* Ends a task, and starts it again as its first incarnation: quicker than another net. */
void direct_end(ch_task *t);
void direct_begin(ch_task *t);

#endif

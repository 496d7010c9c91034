/* fuzz/job/net.h -- tasks without delays: messages arrive and work ends at once.
 *
 * An implementation of net/wire.h for programs that make many calls. Time advances only when no
 * message and no work is left.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FUZZ_JOB_NET_H
#define FUZZ_JOB_NET_H

#include "net/net.h"

ch_net *direct_net(void); /* ch__net_free frees it */
/* Calls a task and returns when the call has ended. CH_ENDED_TIMEOUT: the task never replies.
 * Consumes the message. */
ch_ending direct_ask(ch_task *to, ch_message *p);
/* End a task, and start it again as its first incarnation. This is faster than a new net. */
void direct_end(ch_task *t);
void direct_begin(ch_task *t);

#endif

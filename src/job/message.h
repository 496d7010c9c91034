/* job/message.h -- messages of a job as parcels.   SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_MESSAGE_H
#define JOB_MESSAGE_H

#include <protobuf-c/protobuf-c.h>

#include "job/job.pb-c.h"
#include "net/net.h"

/* What can be asked: the methods of parcels. */
enum {
    CH_PS_CREATE = 1,
    CH_PS_FREE,
    CH_PS_DEFINE,
    CH_PS_READ,
    CH_PS_ROWS,
    CH_PS_UPDATE,
    CH_PS_FENCE,
    CH_PS_PIN,
    CH_PS_PING,
    CH_PS_ASSIGN,
    CH_PS_HOLD,
    CH_WORKER_FUNCTION = 32,
    CH_WORKER_RUN,
    CH_WORKER_PING,
    CH_WORKER_STREAM,
    CH_WORKER_DROP,
    CH_WORKER_READ,
};

/* References to the tensors are taken over, on an error too. */
CH_MUST_CHECK ch_status ch__speak(uint32_t method, const ProtobufCMessage *m, int n,
                                  ch_tensor *const *tensor, ch_parcel **out);
/* The message of a parcel from anywhere, which ch__message_free frees; INVALID_ARGUMENT if it is none of that type. */
CH_MUST_CHECK ch_status ch__hear(const ch_parcel *p, const ProtobufCMessageDescriptor *type,
                                 ProtobufCMessage **out);

/* Answers with this thread's error. */
void ch__refuse(ch_post *post, ch_call_id call, ch_status rc, const char *op);

#endif

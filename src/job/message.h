/* job/message.h -- the methods of a job, and their messages as parcels.
 *
 * Servers and workers are called by the methods below. A call carries the method's request, a
 * protobuf message (proto/job.proto) with tensors beside it, and the reply carries its reply.
 * job/dispatch.h is the callee's side.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_MESSAGE_H
#define JOB_MESSAGE_H

#include <protobuf-c/protobuf-c.h>

#include "job/job.pb-c.h"
#include "net/net.h"

/* Numbers of methods. They are in frames and do not change. */
enum {
    CH_PS_CREATE = 1,
    CH_PS_FREE,
    CH_PS_DEFINE,
    CH_PS_READ,
    CH_PS_ROWS,
    CH_PS_UPDATE,
    CH_PS_FENCE,
    CH_PS_SNAPSHOT,
    CH_PS_PING,
    CH_PS_ASSIGN,
    CH_PS_HOLD,
    CH_WORKER_FUNCTION = 32,
    CH_WORKER_RUN,
    CH_WORKER_PING,
    CH_WORKER_STREAM,
    CH_WORKER_DROP,
    CH_WORKER_READ,
    CH_METHOD_END
};

/* The facts about a method that callers and callees share. */
typedef struct ch_method {
    const char                       *name; /* for errors and traces */
    const ProtobufCMessageDescriptor *request, *reply;
    /* A call may move so many bytes that the coordinator gives a repeated call more time. (A
     * worker counts the bytes of its calls instead.) */
    bool may_be_large;
} ch_method;

/* Returns NULL if there is no method of this number. */
const ch_method *ch__method(uint32_t number);

/* Packs a request or a reply. Takes references to the tensors over, on an error too. */
CH_MUST_CHECK ch_status ch__message_pack(uint32_t method, const ProtobufCMessage *m, int n,
                                         ch_tensor *const *tensor, ch_message **out);
/* Unpacks the message of a parcel of any origin; ch__protobuf_free frees it. INVALID_ARGUMENT if
 * the bytes are not a message of this type. */
CH_MUST_CHECK ch_status ch__message_parse(const ch_message                 *p,
                                          const ProtobufCMessageDescriptor *type,
                                          ProtobufCMessage                **out);

/* Replies with this thread's error, which is about `op`. */
void ch__reply_error(ch_outbox *outbox, ch_call_id call, ch_status rc, const char *op);

#endif

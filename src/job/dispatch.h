/* job/dispatch.h -- how servers and workers receive calls: a table of handlers for each role.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_DISPATCH_H
#define JOB_DISPATCH_H

#include "job/message.h"

/* A call that a task received. */
typedef struct ch_received {
    void       *self;    /* the task's state */
    ch_message *message; /* borrowed; its message is unpacked */
    ch_call_id  call;
    int64_t     now;
    ch_outbox  *outbox;
} ch_received;

/* Handles a call: replies (ch__reply), or keeps the call and replies later. If it returns an
 * error, the caller receives that error and the handler must not reply. */
typedef ch_status (*ch_handler)(const ch_received *r, const void *request);

typedef struct ch_role {
    const char *name;                   /* for errors: "a worker" */
    ch_handler  handler[CH_METHOD_END]; /* by method; NULL: the role does not have it */
} ch_role;

/* Unpacks the request of a call (CH_EVENT_CALL) and passes it to the handler of its method. If
 * there is no handler, if the request is not valid, or if the handler fails, replies with an
 * error that names the method. */
void ch__dispatch(const ch_role *role, void *self, const ch_net_event *e, int64_t now,
                  ch_outbox *outbox);
/* Replies with a message of the method's reply type. Takes references to the tensors over, on
 * an error too. If it returns an error, it has not replied. */
CH_MUST_CHECK ch_status ch__reply(const ch_received *r, const ProtobufCMessage *reply, int n,
                                  ch_tensor *const *tensor);

#endif

/* job/dispatch.h -- how servers and workers receive calls: a table of handlers for each role.
 *
 * A task passes each call that it receives to ch__dispatch. It parses the request and calls the
 * handler of the method in the task's role: a server or a worker. The coordinator has a role
 * without handlers, because no task calls it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_DISPATCH_H
#define JOB_DISPATCH_H

#include "job/message.h"

/* A call that a task has received. */
typedef struct ch_received {
    void       *self;    /* the task's state */
    ch_message *message; /* borrowed; the handler receives its request parsed */
    ch_call_id  call;    /* for the reply */
    int64_t     now;     /* time in ns */
    ch_outbox  *outbox;
} ch_received;

/* Handles a call: replies (ch__reply), or keeps the call and replies later. `request` is the
 * parsed message of the method's request type, borrowed. If the handler returns an error, it
 * must not reply: ch__dispatch replies with that error. */
typedef ch_status (*ch_handler)(const ch_received *r, const void *request);

typedef struct ch_role {
    const char *name;                   /* for error messages: "a worker" */
    ch_handler  handler[CH_METHOD_END]; /* by method; NULL: the role does not have the method */
} ch_role;

/* Parses the request of a call (CH_EVENT_CALL) and passes it to the handler of its method.
 * Replies with an error that names the method if there is no handler, if the request is not
 * valid, or if the handler fails. */
void ch__dispatch(const ch_role *role, void *self, const ch_net_event *e, int64_t now,
                  ch_outbox *outbox);
/* Replies with a message of the method's reply type and n tensors. Takes over the references to
 * the tensors, on an error too. If it returns an error, it has not replied. */
CH_MUST_CHECK ch_status ch__reply(const ch_received *r, const ProtobufCMessage *reply, int n,
                                  ch_tensor *const *tensor);

#endif

/* job/message.h -- the methods of a job, and packing and parsing of their messages.
 *
 * The coordinator and the workers call servers, and the coordinator calls workers, by the
 * methods below. A call carries the method's request: a protobuf message (proto/job.proto),
 * with tensors beside it. The reply carries the method's reply in the same way. proto/job.proto
 * describes each message. The callee's side is job/dispatch.h; net/ checks the roles of
 * callers. Callers repeat lost calls with net/retry.h, except CH_WORKER_RUN and pings.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_MESSAGE_H
#define JOB_MESSAGE_H

#include <protobuf-c/protobuf-c.h>

#include "job/job.pb-c.h"
#include "net/net.h"

/* Numbers of methods. They are part of frames, so they must not change. C: the
 * coordinator is the caller. W: a worker is the caller. */
enum {
    CH_PS_CREATE = 1, /* C: creates a variable or a shard */
    CH_PS_FREE,       /* C: frees variables and updates */
    CH_PS_DEFINE,     /* W: defines an update: a graph */
    CH_PS_READ,       /* C, W: reads variables, or regions of them */
    CH_PS_ROWS,       /* C, W: reads rows of variables by id */
    CH_PS_UPDATE,     /* W: applies the updates of a step */
    CH_PS_FENCE,      /* C: rejects updates of a worker's old registrations from now on */
    CH_PS_SNAPSHOT,   /* C: takes or releases a snapshot of all variables */
    CH_PS_PING,       /* C: replies if alive; carries ended steps, releases holds */
    CH_PS_ASSIGN,     /* C: sets variables, or regions of them */
    CH_PS_HOLD,       /* C: rejects updates of steps that are being cancelled */
    CH_PS_RESERVE,    /* C: prepares or frees the memory for copies of variables */
    CH_PS_SETTLE,     /* C: applies deferred updates in the order of their steps */
    CH_WORKER_FUNCTION = 32, /* C: sends a step function: a step plan */
    CH_WORKER_RUN,           /* C: runs an attempt of a step; replies when it has ended */
    CH_WORKER_PING,          /* C: replies if alive, with the list of its steps */
    CH_WORKER_STREAM,        /* C: sends a data stream */
    CH_WORKER_DROP,          /* C: drops steps, step functions, streams, per-worker variables */
    CH_WORKER_READ,          /* C: reads a per-worker variable */
    CH_METHOD_END
};

/* The facts about a method that callers and callees share. */
typedef struct ch_method {
    const char                       *name;            /* for error messages and traces */
    const ProtobufCMessageDescriptor *request, *reply; /* types of the messages */
    /* A call may carry many bytes, so the coordinator doubles the timeout when it repeats the
     * call. (Workers compute the timeout from the bytes of a call instead.) */
    bool may_be_large;
} ch_method;

/* The roles that may call each method, for ch_task_options.methods. */
extern const ch_net_method ch__method_callers[CH_METHOD_END];
/* Returns the method of a number, which may be untrusted, or NULL if there is none. */
const ch_method *ch__method(uint32_t number);

/* Packs a request or a reply and n tensors into a new message. Takes over the references to the
 * tensors, on an error too. */
CH_MUST_CHECK ch_status ch__message_pack(uint32_t method, const ProtobufCMessage *m, int n,
                                         ch_tensor *const *tensor, ch_message **out);
/* Parses the protobuf message of an untrusted message. The caller must free *out with
 * ch__protobuf_free. Returns CH_INVALID_ARGUMENT if the bytes are not a message of this type,
 * or if memory is exhausted. */
CH_MUST_CHECK ch_status ch__message_parse(const ch_message                 *p,
                                          const ProtobufCMessageDescriptor *type,
                                          ProtobufCMessage                **out);

/* Replies to a call with this thread's error. `op` names the failed operation in the
 * message. */
void ch__reply_error(ch_outbox *outbox, ch_call_id call, ch_status rc, const char *op);

#endif

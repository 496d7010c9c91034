/* job/dispatch.c -- parses calls and passes them to the handler of a role.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/dispatch.h"

#include <assert.h>

#include "base/fault.h"
#include "base/protobuf.h"

void ch__dispatch(const ch_role *role, void *self, const ch_net_event *e, int64_t now,
                  ch_outbox *outbox)
{
    const ch_method  *method = ch__method(e->message->method);
    ch_handler        handler = method != NULL ? role->handler[e->message->method] : NULL;
    ProtobufCMessage *request = NULL;
    ch_status rc = handler != NULL ? ch__message_parse(e->message, method->request, &request)
                                   : ch__fail(CH_UNIMPLEMENTED, "%s has no method %u",
                                              role->name, e->message->method);

    if (rc == CH_OK)
        rc = handler(&(ch_received){self, e->message, e->call, now, outbox}, request);
    if (rc != CH_OK)
        ch__reply_error(outbox, e->call, rc, method != NULL ? method->name : "call");
    ch__protobuf_free(request);
}

ch_status ch__reply(const ch_received *r, const ProtobufCMessage *reply, int n,
                    ch_tensor *const *tensor)
{
    ch_message *p = NULL;
    ch_status   rc;

    assert(reply->descriptor == ch__method(r->message->method)->reply);
    rc = ch__message_pack(r->message->method, reply, n, tensor, &p);
    if (rc == CH_OK)
        ch__outbox_reply(r->outbox, r->call, p);
    return rc;
}

/* job/dispatch.c -- how servers and workers receive calls.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/dispatch.h"

#include <assert.h>

#include "base/fault.h"
#include "base/protobuf.h"

void ch__dispatch(const ch_role *role, void *self, const ch_net_event *e, int64_t now,
                  ch_post *post)
{
    const ch_method  *method = ch__method(e->parcel->method);
    ch_handler        handler = method != NULL ? role->handler[e->parcel->method] : NULL;
    ProtobufCMessage *request = NULL;
    ch_status         rc = handler != NULL ? ch__hear(e->parcel, method->request, &request)
                                           : ch__fail(CH_UNIMPLEMENTED, "%s has no method %u",
                                                      role->name, e->parcel->method);

    if (rc == CH_OK)
        rc = handler(&(ch_received){self, e->parcel, e->call, now, post}, request);
    if (rc != CH_OK)
        ch__refuse(post, e->call, rc, method != NULL ? method->name : "call");
    ch__message_free(request);
}

ch_status ch__reply(const ch_received *r, const ProtobufCMessage *reply, int n,
                    ch_tensor *const *tensor)
{
    ch_parcel *p = NULL;
    ch_status  rc;

    assert(reply->descriptor == ch__method(r->parcel->method)->reply);
    rc = ch__speak(r->parcel->method, reply, n, tensor, &p);
    if (rc == CH_OK)
        ch__post_answer(r->post, r->call, p);
    return rc;
}

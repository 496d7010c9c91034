/* job/message.c -- messages of a job as parcels.   SPDX-License-Identifier: Apache-2.0 */
#include "job/message.h"

#include "base/fault.h"
#include "base/protobuf.h"

ch_status ch__speak(uint32_t method, const ProtobufCMessage *m, int n, ch_tensor *const *tensor,
                    ch_parcel **out)
{
    size_t    bytes = protobuf_c_message_get_packed_size(m);
    void     *at = NULL;
    ch_status rc = ch__parcel_new(method, bytes, &at, n, tensor, out);

    if (rc == CH_OK && bytes > 0)
        (void)protobuf_c_message_pack(m, at);
    return rc;
}

ch_status ch__hear(const ch_parcel *p, const ProtobufCMessageDescriptor *type,
                   ProtobufCMessage **out)
{
    enum {
        LEAST = 1 << 16,
        TIMES = 8
    }; /* what a message takes, and one of many small fields */

    *out = ch__message_unpack_within(type, p->bytes, p->n_bytes, LEAST + TIMES * p->n_bytes);
    return *out != NULL ? CH_OK
                        : ch__fail(CH_INVALID_ARGUMENT, "%zu bytes are no message %s",
                                   p->n_bytes, type->short_name);
}

void ch__refuse(ch_post *post, ch_call_id call, ch_status rc, const char *op)
{
    ch_fault why;

    ch__fault_clear(&why);
    (void)ch__fault_take(&why, rc, -1, op);
    ch__post_refusal(post, call, &why);
}

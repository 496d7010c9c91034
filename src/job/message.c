/* job/message.c -- the methods of a job, and packing and parsing of their messages.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/message.h"

#include "base/fault.h"
#include "base/protobuf.h"

/* clang-format off */
#define TYPE(name) &cohort__##name##__descriptor
static const ch_method methods[CH_METHOD_END] = {
    [CH_PS_CREATE]       = {"create",   TYPE(ps_create),       TYPE(ps_reply), true},
    [CH_PS_FREE]         = {"free",     TYPE(ps_free),         TYPE(ps_reply), false},
    [CH_PS_DEFINE]       = {"define",   TYPE(ps_define),       TYPE(ps_reply), false},
    [CH_PS_READ]         = {"read",     TYPE(ps_read),         TYPE(ps_reply), true},
    [CH_PS_ROWS]         = {"rows",     TYPE(ps_rows),         TYPE(ps_reply), true},
    [CH_PS_UPDATE]       = {"update",   TYPE(ps_update),       TYPE(ps_reply), false},
    [CH_PS_FENCE]        = {"fence",    TYPE(ps_fence),        TYPE(ps_reply), false},
    [CH_PS_SNAPSHOT]     = {"snapshot", TYPE(ps_snapshot),     TYPE(ps_reply), false},
    [CH_PS_PING]         = {"ping",     TYPE(ps_ping),         TYPE(ps_reply), false},
    [CH_PS_ASSIGN]       = {"assign",   TYPE(ps_assign),       TYPE(ps_reply), true},
    [CH_PS_HOLD]         = {"hold",     TYPE(ps_hold),         TYPE(ps_reply), false},
    [CH_PS_RESERVE]      = {"reserve",  TYPE(ps_reserve),      TYPE(ps_reply), true},
    [CH_PS_SETTLE]       = {"settle",   TYPE(ps_settle),       TYPE(ps_reply), true},
    [CH_WORKER_FUNCTION] = {"function", TYPE(worker_function), TYPE(worker_reply), true},
    [CH_WORKER_RUN]      = {"run",      TYPE(worker_run),      TYPE(worker_reply), false},
    [CH_WORKER_PING]     = {"ping",     TYPE(worker_ping),     TYPE(worker_reply), false},
    [CH_WORKER_STREAM]   = {"stream",   TYPE(worker_stream),   TYPE(worker_reply), true},
    [CH_WORKER_DROP]     = {"drop",     TYPE(worker_drop),     TYPE(worker_reply), false},
    [CH_WORKER_READ]     = {"read",     TYPE(worker_read),     TYPE(worker_reply), false},
};
#undef TYPE
/* clang-format on */

const ch_method *ch__method(uint32_t number)
{
    return number < CH_METHOD_END && methods[number].name != NULL ? &methods[number] : NULL;
}

ch_status ch__message_pack(uint32_t method, const ProtobufCMessage *m, int n,
                           ch_tensor *const *tensor, ch_message **out)
{
    size_t    bytes = protobuf_c_message_get_packed_size(m);
    void     *at = NULL;
    ch_status rc = ch__message_new(method, bytes, &at, n, tensor, out);

    if (rc == CH_OK && bytes > 0)
        (void)protobuf_c_message_pack(m, at);
    return rc;
}

ch_status ch__message_parse(const ch_message *p, const ProtobufCMessageDescriptor *type,
                            ProtobufCMessage **out)
{
    /* The limit of memory for a parsed message: bytes for any message, and bytes for each
     * packed byte, because small fields take more memory than packed bytes. Protects against
     * hostile input. */
    enum { BASE = 1 << 16, PER_BYTE = 8 };

    return ch__protobuf_unpack_within(type, p->bytes, p->n_bytes, BASE + PER_BYTE * p->n_bytes,
                                      out);
}

void ch__reply_error(ch_outbox *outbox, ch_call_id call, ch_status rc, const char *op)
{
    ch_fault why;

    ch__fault_clear(&why);
    (void)ch__fault_record(&why, rc, -1, op);
    ch__outbox_reply_error(outbox, call, &why);
}

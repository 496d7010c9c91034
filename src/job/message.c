/* job/message.c -- the methods of a job, and packing and parsing of their messages.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/message.h"

#include "base/fault.h"
#include "base/protobuf.h"

/* The methods: number, name, type of the request, type of the reply, whether a call may be
 * large, and the roles that may call it. */
/* clang-format off */
#define C  CH_ROLE_COORDINATOR
#define W  CH_ROLE_WORKER
#define METHODS(X)                                                         \
    X(CH_PS_CREATE,       "create",   ps_create,       ps_reply,     true,  C)     \
    X(CH_PS_FREE,         "free",     ps_free,         ps_reply,     false, C)     \
    X(CH_PS_DEFINE,       "define",   ps_define,       ps_reply,     false, W)     \
    X(CH_PS_READ,         "read",     ps_read,         ps_reply,     true,  C | W) \
    X(CH_PS_ROWS,         "rows",     ps_rows,         ps_reply,     true,  C | W) \
    X(CH_PS_UPDATE,       "update",   ps_update,       ps_reply,     false, W)     \
    X(CH_PS_FENCE,        "fence",    ps_fence,        ps_reply,     false, C)     \
    X(CH_PS_SNAPSHOT,     "snapshot", ps_snapshot,     ps_reply,     false, C)     \
    X(CH_PS_PING,         "ping",     ps_ping,         ps_reply,     false, C)     \
    X(CH_PS_ASSIGN,       "assign",   ps_assign,       ps_reply,     true,  C)     \
    X(CH_PS_HOLD,         "hold",     ps_hold,         ps_reply,     false, C)     \
    X(CH_PS_RESERVE,      "reserve",  ps_reserve,      ps_reply,     true,  C)     \
    X(CH_PS_SETTLE,       "settle",   ps_settle,       ps_reply,     true,  C)     \
    X(CH_WORKER_FUNCTION, "function", worker_function, worker_reply, true,  C)     \
    X(CH_WORKER_RUN,      "run",      worker_run,      worker_reply, false, C)     \
    X(CH_WORKER_PING,     "ping",     worker_ping,     worker_reply, false, C)     \
    X(CH_WORKER_STREAM,   "stream",   worker_stream,   worker_reply, true,  C)     \
    X(CH_WORKER_DROP,     "drop",     worker_drop,     worker_reply, false, C)     \
    X(CH_WORKER_READ,     "read",     worker_read,     worker_reply, false, C)

#define TYPE(name) &cohort__##name##__descriptor
#define METHOD(number, name, request, reply, large, callers) \
    [number] = {name, TYPE(request), TYPE(reply), large},
static const ch_method methods[CH_METHOD_END] = {METHODS(METHOD)};

#define CALLERS(number, name, request, reply, large, callers) [number] = {name, callers},
const ch_net_method ch__method_callers[CH_METHOD_END] = {METHODS(CALLERS)};
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

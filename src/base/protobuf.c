/* base/protobuf.c -- protobuf messages in memory of base/mem.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/protobuf.h"

#include "base/fault.h"
#include "base/mem.h"

static void *allocate(void *arg, size_t bytes)
{
    (void)arg;
    return ch__malloc(bytes);
}

static void release(void *arg, void *p)
{
    (void)arg;
    ch__free(p);
}

static ProtobufCAllocator memory = {allocate, release, NULL};

/* Memory for a message from untrusted bytes. */
typedef struct limited_memory {
    size_t left;       /* bytes that may still be allocated */
    bool   has_failed; /* memory is exhausted */
} limited_memory;

static void *allocate_within(void *arg, size_t bytes)
{
    limited_memory *m = arg;
    void           *p;

    if (bytes > m->left)
        return NULL;
    m->left -= bytes;
    p = ch__malloc(bytes);
    m->has_failed |= p == NULL;
    return p;
}

ch_status ch__protobuf_unpack_within(const ProtobufCMessageDescriptor *type, const void *bytes,
                                     size_t n, size_t budget, ProtobufCMessage **out)
{
    limited_memory    m = {.left = budget};
    ProtobufCMessage *unpacked = protobuf_c_message_unpack(
        type, &(ProtobufCAllocator){allocate_within, release, &m}, n, bytes);

    if (m.has_failed)
        return ch__fail_memory(type->short_name);
    if (unpacked == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "%zu bytes are not a valid %s message", n,
                        type->short_name);
    *out = unpacked;
    return CH_OK;
}

ch_status ch__protobuf_unpack(const ProtobufCMessageDescriptor *type, const void *bytes,
                              size_t n, ProtobufCMessage **out)
{
    return ch__protobuf_unpack_within(type, bytes, n, SIZE_MAX, out);
}

void ch__protobuf_free(ProtobufCMessage *m)
{
    if (m != NULL)
        protobuf_c_message_free_unpacked(m, &memory);
}

ch_status ch__protobuf_pack(const ProtobufCMessage *m, void **bytes, size_t *n)
{
    size_t size = protobuf_c_message_get_packed_size(m);
    void  *p = ch__malloc(size + 1);

    if (p == NULL)
        return ch__fail_memory(m->descriptor->short_name);
    *n = protobuf_c_message_pack(m, p);
    *bytes = p;
    return CH_OK;
}

ch_status ch__protobuf_copy(const ProtobufCMessageDescriptor *type,
                            const ProtobufCMessage *from, ProtobufCMessage **out)
{
    void     *bytes = NULL;
    size_t    n = 0;
    ch_status rc = from != NULL ? ch__protobuf_pack(from, &bytes, &n) : CH_OK;

    if (rc == CH_OK)
        rc = ch__protobuf_unpack(type, bytes, n, out);
    ch__free(bytes);
    return rc;
}

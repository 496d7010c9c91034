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

/* Allocates at most *arg bytes in total. */
static void *allocate_within(void *arg, size_t bytes)
{
    size_t *left = arg;

    if (bytes > *left)
        return NULL;
    *left -= bytes;
    return ch__malloc(bytes);
}

ProtobufCMessage *ch__protobuf_unpack_within(const ProtobufCMessageDescriptor *type,
                                             const void *bytes, size_t n, size_t budget)
{
    ProtobufCAllocator limited = {allocate_within, release, &budget};

    return protobuf_c_message_unpack(type, &limited, n, bytes);
}

ProtobufCMessage *ch__protobuf_unpack(const ProtobufCMessageDescriptor *type, const void *bytes,
                                      size_t n)
{
    return protobuf_c_message_unpack(type, &memory, n, bytes);
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
    void  *bytes = NULL;
    size_t n = 0;

    if (from != NULL) {
        ch_status rc = ch__protobuf_pack(from, &bytes, &n);

        if (rc != CH_OK)
            return rc;
    }
    *out = ch__protobuf_unpack(type, bytes, n);
    ch__free(bytes);
    return *out == NULL ? ch__fail_memory(type->short_name) : CH_OK;
}

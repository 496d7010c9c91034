/* base/protobuf.h -- packs, unpacks and copies protobuf messages.
 *
 * Messages are allocated with base/mem.h, so that their memory is counted and tests can make an
 * allocation fail. The functions work for every message type, because protobuf-c describes each
 * type by a table of its fields.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_PROTOBUF_H
#define BASE_PROTOBUF_H

#include <protobuf-c/protobuf-c.h>

#include "cohort/status.h"

/* Copies a message. If `from` is NULL, every field of the copy has its default. The caller must
 * free the copy with ch__protobuf_free. */
ch_status ch__protobuf_copy(const ProtobufCMessageDescriptor *type,
                            const ProtobufCMessage *from, ProtobufCMessage **out);
/* Unpacks untrusted bytes. INVALID_ARGUMENT: they are not a message of this type. The caller
 * must free the message with ch__protobuf_free. */
CH_MUST_CHECK ch_status ch__protobuf_unpack(const ProtobufCMessageDescriptor *type,
                                            const void *bytes, size_t n,
                                            ProtobufCMessage **out);
/* The same. Also INVALID_ARGUMENT if the message needs more than `budget` bytes of memory. */
CH_MUST_CHECK ch_status ch__protobuf_unpack_within(const ProtobufCMessageDescriptor *type,
                                                   const void *bytes, size_t n, size_t budget,
                                                   ProtobufCMessage **out);
/* Frees a message that was copied or unpacked here. `m` may be NULL. */
void ch__protobuf_free(ProtobufCMessage *m);
/* Packs a message into new memory, which the caller must free with ch__free. */
ch_status ch__protobuf_pack(const ProtobufCMessage *m, void **bytes, size_t *n);

#endif

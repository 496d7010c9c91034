/* fuzz/message.h -- fields of protobuf messages, for mutators.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FUZZ_MESSAGE_H
#define FUZZ_MESSAGE_H

#include <protobuf-c/protobuf-c.h>

/* Bytes of a value of this type in its message, or in the array of a repeated field. */
static inline size_t field_bytes(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    default:
        return 4;
    }
}

#endif

/* data/message.h -- protobuf messages as attributes: copied, printed, packed, by their rows.
 *
 * protobuf-c describes each message by a table of its fields; these functions read that table, so
 * a stage says nothing about how it is copied, sent or printed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_MESSAGE_H
#define DATA_MESSAGE_H

#include <protobuf-c/protobuf-c.h>

#include "data/dataset.pb-c.h"
#include "tensor/print.h"

/* NULL gives the message with every field at its default. */
ch_status ch__message_copy(const ProtobufCMessageDescriptor *type, const ProtobufCMessage *from,
                           ProtobufCMessage **out);
/* From bytes that nobody vouches for; NULL: they are no such message, or there is no memory. */
ProtobufCMessage *ch__message_unpack(const ProtobufCMessageDescriptor *type, const void *bytes,
                                     size_t n);
/* The same, in at most `budget` bytes of memory. */
ProtobufCMessage *ch__message_unpack_within(const ProtobufCMessageDescriptor *type,
                                            const void *bytes, size_t n, size_t budget);
void              ch__message_free(ProtobufCMessage *m); /* one of the above; NULL is fine */
/* As memory that ch__free returns. */
ch_status ch__message_pack(const ProtobufCMessage *m, void **bytes, size_t *n);

/* " size=256 drop_remainder"; fields at their defaults are left out. */
void ch__message_print(const ProtobufCMessage *m, ch_text *t);

#endif

/* data/print.h -- prints the attributes of dataset stages.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_PRINT_H
#define DATA_PRINT_H

#include <protobuf-c/protobuf-c.h>

#include "tensor/print.h"

/* Appends the fields of `m` that differ from their defaults: " size=256 drop_remainder". */
void ch__protobuf_print(const ProtobufCMessage *m, ch_text *t);

#endif

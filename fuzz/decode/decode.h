/* fuzz/decode/decode.h -- the mutators of fuzz/decode.c and fuzz/step_plan.c.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FUZZ_DECODE_H
#define FUZZ_DECODE_H

#include <protobuf-c/protobuf-c.h>

#include "../fuzz.h"
#include "graph/graph.h"

/* Returns a small number most of the time, otherwise a boundary value. */
int64_t some_integer(dice *d);
double  some_number(dice *d);

/* Change the message, or the encoded graph, in `data`. Return its new size; 0 if that is not
 * possible. */
size_t alter(dice *d, const ProtobufCMessageDescriptor *type, uint8_t *data, size_t size,
             size_t max_size);
size_t grow(dice *d, uint8_t *data, size_t size, size_t max_size);

#endif

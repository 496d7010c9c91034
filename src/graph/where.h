/* graph/where.h -- finds the source line of an address, for error messages.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_WHERE_H
#define GRAPH_WHERE_H

#include <stddef.h>

#include "base/fault.h"

/* Writes "train.c:41" for a return address in this process. Without debug information, writes
 * "train_step+0x2c" or "train+0x1a2c" and a remedy. Writes "" for NULL. */
void ch__where(const void *address, char *text, size_t size);

/* Adds the location of an error to this thread's message: the composite op, unless the message
 * begins with its name, the scope, and the source line of `caller`. All three may be NULL.
 * Example: "stack: concat(...): ranks 1 and 2 differ, in block/dense, at train.c:41". Returns
 * rc. */
ch_status ch__fail_in(ch_status rc, const char *composite, const char *scope,
                      const void *caller);

#endif

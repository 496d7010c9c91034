/* graph/where.h -- the source line of an address.   SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_WHERE_H
#define GRAPH_WHERE_H

#include <stddef.h>

#include "base/fault.h"

/* Writes "train.c:41" for a return address of this process; where there is no debug
 * information, "train_step+0x2c" or "train+0x1a2c", and what to do about it; "" for NULL. */
void ch__where(const void *address, char *text, size_t size);

/* Adds to this thread's message where it happened: in which composite op (NULL: none), unless
 * the message begins with its name, in which scope and at which address (both may be NULL).
 * "stack: concat(...): ranks 1 and 2 differ, in block/dense, at train.c:41". Returns rc. */
ch_status ch__fail_in(ch_status rc, const char *composite, const char *scope,
                      const void *caller);

#endif

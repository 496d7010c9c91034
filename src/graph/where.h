/* graph/where.h -- the source line of an address.   SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_WHERE_H
#define GRAPH_WHERE_H

#include <stddef.h>

/* Writes "train.c:41" for a return address of this process; where there is no debug
 * information, "train_step+0x2c"; "" for NULL or what cannot be found. */
void ch__where(const void *address, char *text, size_t size);

#endif

/* net/wire.h -- what an engine does: eight calls, and no more.
 *
 * net/task.c has what all engines have in common: calls with their deadlines and the room they take, timers, turns. Engines carry
 * frames between tasks and say when it is a task's turn. doc/transport.md says how gRPC and UCX fit.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_WIRE_H
#define NET_WIRE_H

#include "net/net.h"

/* (Whoever writes net/task.c decides its fields, and keeps to at most eight calls.) */

#endif

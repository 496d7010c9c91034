/* cluster/hostlist.h -- Slurm's short forms: lists of hosts, and of tasks on each.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CLUSTER_HOSTLIST_H
#define CLUSTER_HOSTLIST_H

#include "base/mem.h"
#include "cohort/status.h"

/* Names in an arena. */
typedef struct ch_hosts {
    int    n, cap;
    char **name;
} ch_hosts;

/* "n[1-2],m5,r[1-2]n[01-04]": each host, in this order, the last bracket turning fastest. A number is as
 * wide as the first of its range. INVALID_ARGUMENT, "Invalid hostlist format"; RESOURCE_EXHAUSTED for more than
 * CH_CLUSTER_TASKS. Give `name` back with ch__free, the names with the arena. */
CH_MUST_CHECK ch_status ch__hostlist_expand(const char *text, ch_arena *arena, ch_hosts *out);

/* "3(x2),2,1" is 3 3 2 1: writes at most `room`, and how many there are. */
CH_MUST_CHECK ch_status ch__tasks_per_node(const char *text, int room, int *tasks, int *n);

#endif

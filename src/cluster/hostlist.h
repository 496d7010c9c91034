/* cluster/hostlist.h -- Slurm's compact lists: hosts, and tasks per node.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CLUSTER_HOSTLIST_H
#define CLUSTER_HOSTLIST_H

#include "base/mem.h"
#include "cohort/status.h"

/* A list of host names. The names are in an arena; the list is freed with ch__free. */
typedef struct ch_hosts {
    int    n, cap;
    char **name;
} ch_hosts;

/* Expands a host list such as "n[1-2],m5,r[1-2]n[01-04]" in the order of the text; the last
 * bracket changes fastest. Numbers have at least the width of the first number of their range.
 * Returns INVALID_ARGUMENT with "Invalid hostlist format", or RESOURCE_EXHAUSTED for more than
 * CH_CLUSTER_TASKS hosts. The caller must free out->name with ch__free; the names belong to the
 * arena. */
CH_MUST_CHECK ch_status ch__hostlist_expand(const char *text, ch_arena *arena, ch_hosts *out);

/* Parses a list of tasks per node: "3(x2),2,1" is 3 3 2 1. Stores at most `room` numbers in
 * `tasks`, and the length of the list in *n. */
CH_MUST_CHECK ch_status ch__tasks_per_node(const char *text, int room, int *tasks, int *n);

#endif

/* graph/traffic.h -- counts of the bytes that the cores of a replica move.
 *
 * Kernels count in ch_env.traffic, which belongs to a member of the run; graph/launch.c adds up
 * the members.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_TRAFFIC_H
#define GRAPH_TRAFFIC_H

#include <stdint.h>

/* What a transfer does, for reports. */
typedef enum ch_traffic_kind {
    CH_TRAFFIC_NONE,           /* no core reads from another */
    CH_TRAFFIC_ALL_REDUCE,     /* cores need all elements of their partial results */
    CH_TRAFFIC_REDUCE_SCATTER, /* other reshards of partial values */
    CH_TRAFFIC_ALL_GATHER,     /* groups of cores need the same region: all that they have */
    CH_TRAFFIC_ALL_TO_ALL,     /* the same along some axes; less than they have along others */
    CH_TRAFFIC_HALO,           /* cores keep elements and need others of neighbouring parts */
    CH_TRAFFIC_OTHER,          /* permutations, values for one core, and the rest */
    CH_TRAFFIC_HOST,           /* as ch_layout_report.host */
    CH_TRAFFIC_CROSS,          /* collectives between replicas */
    CH_TRAFFIC_COUNT
} ch_traffic_kind;

/* The bytes that a member received, and the calls that received them. Between replicas also the
 * bytes that it wrote to the arrays of other members. */
typedef struct ch_traffic_counts {
    int64_t calls[CH_TRAFFIC_COUNT], bytes[CH_TRAFFIC_COUNT];
} ch_traffic_counts;

#endif

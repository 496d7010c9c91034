/* examples/cores.h -- replicas of several TPU cores.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef EXAMPLES_CORES_H
#define EXAMPLES_CORES_H

#include "example.h"

/* Gives the process eight virtual TPU devices, in place of its CPU devices, and returns their
 * topology: 2x2 chips of two cores. `memory` are the bytes of each device; 0: no limit. */
static inline ch_tpu_topology *new_topology(size_t memory)
{
    ch_tpu_topology *t = NULL;

    must(ch_devices_configure(
        &(ch_devices_options){.spec = "TPU=8", .threads = 1, .memory_bytes = memory}));
    must(ch_tpu_initialize(NULL, &t));
    return t;
}

/* Creates a TPUStrategy with `replicas` replicas of x * y * cores cores each. */
static inline ch_strategy *new_replicas(ch_tpu_topology *t, int replicas, const int shape[3],
                                        const ch_tpu_options *opt)
{
    ch_tpu_build build = {
        .n = 3, .shape = {shape[0], shape[1], shape[2]}, .replicas = replicas};
    ch_tpu_assignment *a = NULL;
    ch_strategy       *st = NULL;

    must(ch_tpu_assignment_build(t, &build, &a));
    must(ch_strategy_tpu(NULL, a, opt, &st));
    ch_tpu_assignment_unref(a);
    return st;
}

#endif

/* cluster/tpu.h -- helpers shared by topologies, assignments, the TPU resolver and the system.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CLUSTER_TPU_H
#define CLUSTER_TPU_H

#include "cluster/tpu_system.h"

enum { X, Y, Z, CORE }; /* the axes of a mesh */

/* Copies a vector of 3 or 4 entries to `out`. With 3 entries, `z` is the entry of the missing
 * axis. Returns INVALID_ARGUMENT for another number of entries; `call` begins the message. */
CH_MUST_CHECK ch_status ch__tpu_vector(const char *call, int n, const int *v, int z,
                                       int out[CH_TPU_AXES]);
/* Returns the product of the sizes of a mesh. Returns INVALID_ARGUMENT if a size is less than 1
 * or the product exceeds CH_TPU_CORES_MAX. */
CH_MUST_CHECK ch_status ch__tpu_mesh_cores(const char *call, const int size[CH_TPU_AXES],
                                           int *out);

/* Parses a mesh: "2x2x1x2"; "2x2x2", which has no z; "8", the cores of a single chip. `call`
 * begins the message of an error. */
CH_MUST_CHECK ch_status ch__tpu_mesh_parse(const char *call, const char *text,
                                           int size[CH_TPU_AXES]);

/* Allocates an assignment, whose coordinates the caller must fill in. Takes a reference to the
 * topology. Returns NULL if memory is exhausted. */
ch_tpu_assignment *ch__tpu_assignment_alloc(ch_tpu_topology *t, int replicas, int cores);
/* Returns the coordinates of a core, CH_TPU_AXES numbers. Those of the next core follow. */
int *ch__tpu_assignment_core(ch_tpu_assignment *a, int replica, int core);

/* Sets the topology of a TPU resolver, and takes a reference. `t` may be NULL. */
void ch__resolver_tpu_set_topology(ch_resolver *r, ch_tpu_topology *t);

#endif

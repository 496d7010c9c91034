/* cluster/tpu_system.h -- the TPU system of this process, for strategy/.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CLUSTER_TPU_SYSTEM_H
#define CLUSTER_TPU_SYSTEM_H

#include "cohort/tpu.h"

/* Checks that `r` is a resolver of ch_resolver_tpu for the devices of this process. Returns
 * INVALID_ARGUMENT if it is another resolver, and UNIMPLEMENTED with the name or the address if
 * it is for another TPU. Stores the mesh of the resolver's name in *mesh, or NULL if the name
 * has none. */
CH_MUST_CHECK ch_status ch__resolver_tpu_local(const ch_resolver *r, const char *call,
                                               const int **mesh);
/* Sets *out to a reference to the topology that is known for the TPU system of a resolver, or
 * to NULL: that of ch_tpu_initialize with this resolver; else of the mesh in its name; else of
 * the last ch_tpu_initialize of this process; else of COHORT_TPU_MESH. Fails as
 * ch__resolver_tpu_local does, and if a mesh has not as many cores as this process has TPU
 * devices. */
CH_MUST_CHECK ch_status ch__tpu_system_topology(const ch_resolver *r, const char *call,
                                                ch_tpu_topology **out);
/* Returns NOT_FOUND: this process has no TPU devices. The message says how to get them. */
CH_MUST_CHECK ch_status ch__tpu_no_devices(const char *call);

enum { CH_TPU_VECTOR_TEXT = 4 * 12 };
/* Prints a vector: "2x2x1x2". Returns `text`. */
const char *ch__tpu_vector_text(const int v[CH_TPU_AXES], char text[CH_TPU_VECTOR_TEXT]);

#endif

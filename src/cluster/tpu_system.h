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
/* Returns NOT_FOUND: this process has no TPU devices. The message says how to get them. */
CH_MUST_CHECK ch_status ch__tpu_no_devices(const char *call);

enum { CH_TPU_VECTOR_TEXT = 4 * 12 };
/* Prints a vector: "2x2x1x2". Returns `text`. */
const char *ch__tpu_vector_text(const int v[CH_TPU_AXES], char text[CH_TPU_VECTOR_TEXT]);

#endif

/* cluster/gpus.h -- how many GPUs a machine has.   SPDX-License-Identifier: Apache-2.0 */
#ifndef CLUSTER_GPUS_H
#define CLUSTER_GPUS_H

#include "cohort/status.h"

/* Items of CUDA_VISIBLE_DEVICES, none if that is empty; where it is not set, what nvidia-smi lists. No
 * such program: 0. FAILED_PRECONDITION if it fails. */
CH_MUST_CHECK ch_status ch__count_gpus(int *out);

#endif

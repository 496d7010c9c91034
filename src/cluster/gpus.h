/* cluster/gpus.h -- counts the GPUs of the machine.   SPDX-License-Identifier: Apache-2.0 */
#ifndef CLUSTER_GPUS_H
#define CLUSTER_GPUS_H

#include "cohort/status.h"

/* Stores the number of items of CUDA_VISIBLE_DEVICES (0 if it is empty). If the variable is not
 * set, stores the number of GPUs that nvidia-smi lists, or 0 if that program does not exist.
 * Returns FAILED_PRECONDITION if nvidia-smi fails. Blocks until it has ended. */
CH_MUST_CHECK ch_status ch__count_gpus(int *out);

#endif

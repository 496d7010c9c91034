/* job/worker/per_worker.h -- a variable of which this worker keeps its own: what it is now, and what it began as.
 *
 * What was given of it is never changed: who has the value goes on having that one when there is another.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_WORKER_PER_WORKER_H
#define JOB_WORKER_PER_WORKER_H

#include "tensor/tensor.h"

typedef struct ch_per_worker_var ch_per_worker_var;

/* `initial`, which nobody may change, is referenced. */
CH_MUST_CHECK ch_status ch__per_worker_new(ch_device *device, ch_tensor *initial,
                                           ch_per_worker_var **out);
void                    ch__per_worker_free(ch_per_worker_var *k); /* NULL is fine */

ch_tensor *ch__per_worker_value(const ch_per_worker_var *k); /* borrowed */
/* A new value, in two steps, so that of several variables all change or none: it is copied, and then it is the value. */
CH_MUST_CHECK ch_status ch__per_worker_prepare(ch_per_worker_var *k, const ch_tensor *next);
void                    ch__per_worker_commit(ch_per_worker_var *k);
void                    ch__per_worker_reset(ch_per_worker_var *k); /* it is as it began */

#endif

/* job/worker/per_worker.h -- a variable of which this worker keeps its own: what it is now, and what it began as.
 *
 * What was given of it is never changed: who has the value goes on having that one when there is another.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_WORKER_PER_WORKER_H
#define JOB_WORKER_PER_WORKER_H

#include "tensor/tensor.h"

typedef struct ch_kept ch_kept;

/* `initial`, which nobody may change, is referenced. */
CH_MUST_CHECK ch_status ch__kept_new(ch_device *device, ch_tensor *initial, ch_kept **out);
void                    ch__kept_free(ch_kept *k); /* NULL is fine */

ch_tensor *ch__kept_value(const ch_kept *k); /* borrowed */
/* A new value, in two steps, so that of several variables all change or none: it is copied, and then it is the value. */
CH_MUST_CHECK ch_status ch__kept_prepare(ch_kept *k, const ch_tensor *next);
void                    ch__kept_change(ch_kept *k);
void                    ch__kept_reset(ch_kept *k); /* it is as it began */

#endif

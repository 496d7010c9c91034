/* job/worker/per_worker.h -- the worker's copy of a per-worker variable.
 *
 * A step assigns a new value in two phases, prepare and commit, so that of several variables
 * all change or none. A tensor that ch__per_worker_value returned is never changed: a new value
 * gets its own memory as long as the old tensor is referenced.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_WORKER_PER_WORKER_H
#define JOB_WORKER_PER_WORKER_H

#include "tensor/tensor.h"

typedef struct ch_per_worker_var ch_per_worker_var;

/* Creates a variable with this initial value. References `initial`, which must not be changed.
 * New values are placed on `device`. */
CH_MUST_CHECK ch_status ch__per_worker_new(ch_device *device, ch_tensor *initial,
                                           ch_per_worker_var **out);
/* Frees the variable. NULL is allowed. */
void ch__per_worker_free(ch_per_worker_var *k);

/* Returns the current value, borrowed. */
ch_tensor *ch__per_worker_value(const ch_per_worker_var *k);
/* Copies the next value, which is not visible yet. INVALID_ARGUMENT if its dtype or shape is
 * not that of the variable. */
CH_MUST_CHECK ch_status ch__per_worker_prepare(ch_per_worker_var *k, const ch_tensor *next);
/* Makes the prepared value the current value. Cannot fail. */
void ch__per_worker_commit(ch_per_worker_var *k);
/* Sets the variable back to its initial value. */
void ch__per_worker_reset(ch_per_worker_var *k);

#endif

/* strategy/var_copies.h -- arithmetic of the copies of a variable in this process.
 *
 * Each replica has its own value of a variable that is CH_SYNC_ON_READ. The value outside steps
 * is the sum or the mean of these copies, and a value that is written to a sum is divided into
 * shares. Callers are var_local.c, whose copies are whole, and var_cores.c, whose copies are in
 * tiles: they pass the same region of all copies. All tensors are contiguous.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef STRATEGY_VAR_COPIES_H
#define STRATEGY_VAR_COPIES_H

#include "cohort/var.h"

/* Creates a copy of a variable, or a tile of it, on a device, and frees it. It counts for the
 * limit of the memory of its device (ch_devices_options.memory_bytes). `t` may be NULL. */
ch_status ch__copy_new(const ch_var *v, ch_device *d, ch_shape shape, ch_tensor **out);
void      ch__copy_free(ch_tensor *t);
/* Takes a copy out of the count, as if it were moved to host memory, and counts it again, also
 * beyond the limit. A copy that is not counted must be freed with ch_tensor_unref. `t` may be
 * NULL. */
void ch__copy_leave_device(ch_tensor *t);
void ch__copy_return_to_device(ch_tensor *t);
/* Rejects CH_SYNC_NONE for several copies. A single copy is always consistent, so every mode is
 * accepted for it. */
ch_status ch__copies_check_sync(const ch_strategy *st, const ch_var *v, ch_sync sync);
/* Sets `out` to the sum of n copies, or to their mean. */
ch_status ch__copies_combine(ch_aggregation aggregation, int n, ch_tensor *const *copy,
                             ch_tensor *out);
/* Sets `to` to the share of copy i of n: the shares of all copies add up to the value. If an
 * integer is not divisible by n, the first copies get 1 more. */
void ch__copies_share(const ch_tensor *value, int n, int i, ch_tensor *to);
/* Computes copy += delta, or copy -= delta. Float sums are computed in double, so an f32 sum is
 * rounded once. */
void ch__copy_add(ch_tensor *copy, const ch_tensor *delta, bool subtract);

#endif

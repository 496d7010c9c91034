/* ckpt/fold.h -- makes a full checkpoint from a delta and its base.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_FOLD_H
#define CKPT_FOLD_H

#include "ckpt/ckpt.h"

/* Writes the state of an open delta as a full checkpoint with one data file at `prefix`. The
 * new checkpoint has the step and time of the delta, an id of its own, and the slices of the
 * base. Verifies all checksums first. Creates the folder of `prefix`. Copies in pieces of at
 * most 4 MiB. On an error no file is left.
 *
 * All tensors are folded, also if `c` is open in part (ch__ckpt_open_some). The call then opens
 * the tensors in parts too, and needs 4 bytes of memory for each tensor.
 *
 * INVALID_ARGUMENT: c is no delta. ALREADY_EXISTS: there is a checkpoint at `prefix`.
 * DATA_LOSS: the delta or its base is damaged. `opt` may be NULL. */
CH_MUST_CHECK ch_status ch__ckpt_fold(ch_ckpt *c, const char *prefix,
                                      const ch_ckpt_write_options *opt);

#endif

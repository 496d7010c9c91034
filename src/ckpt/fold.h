/* ckpt/fold.h -- makes a full checkpoint from a delta and its base.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_FOLD_H
#define CKPT_FOLD_H

#include "ckpt/ckpt.h"

/* Writes the state of an open delta as a full checkpoint with one data file at `prefix`. The
 * new checkpoint has the step and time of the delta, an id of its own, and the slices of the
 * base. Verifies all checksums first. Copies in pieces of at most 4 MiB. If `c` is open in part
 * (ch__ckpt_open_some), all tensors are folded, and the call opens them in parts too, so that
 * the memory does not depend on their number except for 4 bytes each. On an error no file is
 * left.
 *
 * INVALID_ARGUMENT: c is no delta. ALREADY_EXISTS: there is a checkpoint at `prefix`.
 * DATA_LOSS: the delta or its base is damaged. `opt` may be NULL. */
CH_MUST_CHECK ch_status ch__ckpt_fold(ch_ckpt *c, const char *prefix,
                                      const ch_ckpt_write_options *opt);

#endif

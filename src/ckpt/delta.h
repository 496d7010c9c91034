/* ckpt/delta.h -- reads deltas, for ckpt/index.c and ckpt/read.c.
 *
 * ckpt/ckpt.h describes how a delta stores tensors, and shows them to all other callers as if
 * they were stored themselves.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_DELTA_H
#define CKPT_DELTA_H

#include "ckpt/index.h"

/* Replaces the tensors of ids and values of an open delta by the tensors that they belong to.
 * c->base must be open. DATA_LOSS: the base is another checkpoint than the delta names, or the
 * tensors do not match. */
CH_MUST_CHECK ch_status ch__delta_link(ch_ckpt *c);
/* Read and verify a tensor with rows >= 0, as ch__ckpt_read and ch__ckpt_verify do. */
CH_MUST_CHECK ch_status ch__delta_read(ch_ckpt *c, const ckpt_tensor *t,
                                       const ch_region *region, void *to);
CH_MUST_CHECK ch_status ch__delta_verify(ch_ckpt *c, const ckpt_tensor *t);

#endif

/* kernel/init.h -- initial values of variables, of a whole variable or of a part.
 *
 * A part has the same bits as in the whole variable. So a task that creates a shard never needs
 * memory for the whole variable.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_INIT_H
#define KERNEL_INIT_H

#include "cohort/init.h"

/* Returns CH_INVALID_ARGUMENT if a variable of this dtype and shape cannot have these initial
 * values. */
CH_MUST_CHECK ch_status ch__init_check(const ch_init *init, ch_dtype dtype, ch_shape whole);
/* Returns false if parts cannot be computed separately: the rows of an orthogonal matrix depend
 * on each other. */
bool ch__init_has_parts(const ch_init *init);
/* Fills a part of a variable of shape `whole`: the region that begins at begin[k] along each
 * axis k and has the shape of `part`. The part must be contiguous and zero. */
void ch__init_part(const ch_init *init, const char *name, ch_shape whole, const int64_t *begin,
                   ch_tensor *part);

#endif

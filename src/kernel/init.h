/* kernel/init.h -- first values of variables, all of one or a part, wherever they are wanted.
 *
 * A part has the numbers that it has in the whole, to the bit, so that who makes a variable in shards need never have all of it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_INIT_H
#define KERNEL_INIT_H

#include "cohort/init.h"

/* INVALID_ARGUMENT where a variable cannot begin so. */
CH_MUST_CHECK ch_status ch__init_check(const ch_init *init, ch_dtype dtype, ch_shape whole);
/* Whether parts can be made one by one: rows of an orthogonal matrix depend on each other. */
bool ch__init_has_parts(const ch_init *init);
/* Fills a part, which is zeros and contiguous: along `axis` it has whole's places from `begin` on, along the others all. */
void ch__init_part(const ch_init *init, const char *name, ch_shape whole, int axis,
                   int64_t begin, ch_tensor *part);

#endif

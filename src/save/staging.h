/* save/staging.h -- memory that holds a copy of the state while it is written.
 *
 * The memory is kept between saves, and its pages are touched when it is allocated: fresh
 * memory would cost several times the copy. All cores touch it and copy.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SAVE_STAGING_H
#define SAVE_STAGING_H

#include "base/thread.h"
#include "save/plan.h"

typedef struct ch_staging {
    void   *memory; /* owned */
    char   *at;     /* first byte; a multiple of 4096, for direct I/O */
    int64_t bytes;
} ch_staging;

/* Makes room for at least `bytes`. The contents are lost if the memory grows.
 * RESOURCE_EXHAUSTED: there is not enough memory; the old memory stays. */
CH_MUST_CHECK ch_status ch__staging_reserve(ch_staging *s, ch_team *team, int64_t bytes);
/* Copies the staged items of a plan, for which there must be room. */
void ch__staging_copy(ch_staging *s, ch_team *team, const ch_save_plan *p);
void ch__staging_drop(ch_staging *s);

#endif

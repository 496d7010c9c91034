/* save/manager.h -- managers, for fit/ and tests.   SPDX-License-Identifier: Apache-2.0 */
#ifndef SAVE_MANAGER_H
#define SAVE_MANAGER_H

#include "cohort/checkpoint.h"

/* Creates a manager with a clock that gives seconds since 1970. Does not check its
 * arguments. */
CH_MUST_CHECK ch_status ch__manager_new(ch_checkpoint *c, const char *directory,
                                        const ch_manager_options *opt, double (*now)(void),
                                        ch_checkpoint_manager   **out);
/* Keeps a checkpoint beside the newest ones (ch_manager_options.max_to_keep), instead of the one
 * that was kept before. `name` may be a path; NULL: none is kept. Must not be called while a
 * write is in progress. */
CH_MUST_CHECK ch_status ch__manager_keep(ch_checkpoint_manager *m, const char *name);

#endif

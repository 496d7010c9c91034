/* save/manager.h -- managers of checkpoints: calls for ch_callback_backup and for tests.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SAVE_MANAGER_H
#define SAVE_MANAGER_H

#include "cohort/checkpoint.h"

/* Creates a manager with a clock that gives seconds since 1970. Does not check its
 * arguments. */
CH_MUST_CHECK ch_status ch__manager_new(ch_checkpoint *c, const char *directory,
                                        const ch_manager_options *opt, double (*now)(void),
                                        ch_checkpoint_manager   **out);
/* Keeps a checkpoint beside the newest ones (ch_manager_options.max_to_keep). The checkpoint of
 * the last call is not kept any more. `name` may be a path; NULL: no checkpoint is kept. Must
 * not be called while a write is in progress. */
CH_MUST_CHECK ch_status ch__manager_keep(ch_checkpoint_manager *m, const char *name);

/* Makes the next save, if it is committed, the checkpoint that is kept in that way. */
void ch__manager_keep_next(ch_checkpoint_manager *m);

/* Forces a save at a cut that was prepared (ch__cut_prepare), as ch_checkpoint_manager_save
 * does. */
CH_MUST_CHECK ch_status ch__manager_save_prepared(ch_checkpoint_manager *m, const char **path);
/* Measures the step that has ended, and returns true if the caller must save with `force`: if
 * `is_forced` is true, or if `is_wanted` is true, the overhead allows a save, and no write is
 * in progress. Callers with intervals of their own call this function after every step. A save
 * that is due while a write is in progress, and is not forced, is counted as skipped. The
 * caller must wait for the end of a round (ch__cut_divides_round). */
bool ch__manager_is_due(ch_checkpoint_manager *m, bool is_wanted, bool is_forced);
/* Blocks until no write is in progress, at most until `until`, a time of ch__now_ns (INT64_MAX:
 * as ch_checkpoint_wait). Returns the error of the write, once. *is_ended is false if the write
 * is still in progress. */
CH_MUST_CHECK ch_status ch__manager_wait(ch_checkpoint_manager *m, int64_t until,
                                         bool *is_ended);
/* Adds the numbers of saves that have begun, and of saves that were skipped because another was
 * being written. */
void ch__manager_count_saves(const ch_checkpoint_manager *m, int64_t *saves, int64_t *skipped);
/* Limits all waits for writes of later saves: no such wait goes on after the time `until(arg)`
 * of ch__now_ns, which is called again and again (INT64_MAX: no limit). A call that waits then
 * returns DEADLINE_EXCEEDED. The caller must end the training and call ch__manager_abandon. */
void ch__manager_limit_waits(ch_checkpoint_manager *m, int64_t (*until)(void *arg), void *arg);
/* Makes the write in progress fail when it needs its next bytes, and does not wait for it. The
 * manager and its checkpoint must not be freed afterwards, because the write uses them: for
 * processes that are about to end. */
void ch__manager_abandon(ch_checkpoint_manager *m);

#endif

/* ckpt/directory.h -- a directory of checkpoints: listing, removal, leftovers, its lock.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_DIRECTORY_H
#define CKPT_DIRECTORY_H

#include <stdbool.h>

#include "cohort/status.h"

/* Names of checkpoints in a directory, without the directory. A checkpoint exists if its index
 * exists. */
typedef struct ch_ckpt_list {
    int    n, capacity;
    char **name; /* owned */
} ch_ckpt_list;

/* Lists the checkpoints of a directory: in the order of their names, and names that differ only
 * in the number at their end in the order of these numbers. The list must be zeros. The caller
 * must call ch__ckpt_list_drop, also after an error. */
CH_MUST_CHECK ch_status ch__ckpt_list(const char *directory, ch_ckpt_list *out);
void                    ch__ckpt_list_drop(ch_ckpt_list *l);

/* Removes a checkpoint: the index, durably, and then the data files of any number that belong
 * to the prefix. Succeeds if there is none. */
CH_MUST_CHECK ch_status ch__ckpt_remove(const char *prefix, bool no_sync);
/* Removes the files that killed processes have left: temporary files of the state file and of
 * checkpoints whose name begins with `name`, and data files of such checkpoints that have no
 * index. The caller must hold the lock of the directory, because data files of a checkpoint
 * that is being written have no index either. Errors are ignored. */
void ch__ckpt_remove_leftovers(const char *directory, const char *name);

/* The lock of a directory: at most one manager may write checkpoints there. */
typedef struct ch_ckpt_lock ch_ckpt_lock;

/* Locks a directory. FAILED_PRECONDITION: another process, or this one, holds the lock; the
 * message names its process id. */
CH_MUST_CHECK ch_status ch__ckpt_lock(const char *directory, ch_ckpt_lock **out);
/* Ends the lock and removes its file. l may be NULL. */
void ch__ckpt_unlock(ch_ckpt_lock *l);

#endif

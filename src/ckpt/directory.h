/* ckpt/directory.h -- a directory of checkpoints: listing, finding, removal, its lock.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_DIRECTORY_H
#define CKPT_DIRECTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* The files of a checkpoint in a directory. */
typedef struct ch_ckpt_file {
    char   *name; /* of the checkpoint, without the directory; owned */
    bool    has_index;
    int64_t bytes; /* of all files */
} ch_ckpt_file;

typedef struct ch_ckpt_files {
    int           n, capacity;
    ch_ckpt_file *file;
} ch_ckpt_files;

/* Lists the checkpoints of a directory in the same order, including those that have data files
 * and no index. The list must be zeros. The caller must call ch__ckpt_files_drop, also after an
 * error. */
CH_MUST_CHECK ch_status ch__ckpt_list_files(const char *directory, ch_ckpt_files *out);
void                    ch__ckpt_files_drop(ch_ckpt_files *l);

/* Writes "directory/name". INVALID_ARGUMENT: the path does not fit `size` bytes. */
CH_MUST_CHECK ch_status ch__ckpt_join(const char *directory, const char *name, char *path,
                                      size_t size);
/* Writes the prefix of the newest checkpoint of a directory, which its state file names (CM-4).
 * NOT_FOUND: there is no state file, or its checkpoint does not exist. Other errors are those
 * of ch__state_file_read, and INVALID_ARGUMENT if the prefix does not fit `size` bytes. */
CH_MUST_CHECK ch_status ch__ckpt_find_latest(const char *directory, char *prefix, size_t size);
/* Writes the prefix that a path of the user means: a prefix, an index, a directory (its newest
 * checkpoint), or a directory of a SavedModel (CK-5). The checkpoint need not exist. */
CH_MUST_CHECK ch_status ch__ckpt_resolve(const char *path, char *prefix, size_t size);

/* Refuses a prefix without a name, such as "run/" (INVALID_ARGUMENT). */
CH_MUST_CHECK ch_status ch__ckpt_check_name(const char *prefix);
/* Creates the folder of a prefix. */
CH_MUST_CHECK ch_status ch__ckpt_make_folder(const char *prefix);
/* ALREADY_EXISTS, with the remedy: there is a checkpoint at the prefix. */
CH_MUST_CHECK ch_status ch__ckpt_check_free(const char *prefix, const char *remedy);

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
/* Returns false if the file of the lock was removed or replaced, so that another process may
 * lock the directory. */
bool ch__ckpt_is_locked(const ch_ckpt_lock *l);
/* Ends the lock and removes its file. l may be NULL. */
void ch__ckpt_unlock(ch_ckpt_lock *l);

#endif

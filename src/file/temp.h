/* file/temp.h -- temporary files that replace a file by a rename.
 *
 *     rc = ch__temp_open(&t, "a/b");             // creates a/.b.tmp-PID-COUNTER and locks it
 *     ... write to t.fd, sync ...
 *     rc = ch__temp_rename(&t);                  // the file is a/b now
 *     ch__temp_drop(&t);                         // removes the temporary file if there is one
 *
 * The temporary file is in the folder of the destination, so that the rename is atomic. Its
 * lock is held until ch__temp_drop. ch__temp_tidy uses the lock to tell the temporary file of a
 * killed process from a file that is being written. Callers are file/writer.c and ckpt/.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_TEMP_H
#define FILE_TEMP_H

#include <stdbool.h>

#include "cohort/status.h"

typedef struct ch_temp {
    const char *path; /* destination; the caller keeps the text valid until ch__temp_drop */
    char       *name; /* path of the temporary file; owned */
    /* length of the folder in `path` and `name`, with its slash; 0: the current folder */
    int  folder_bytes;
    int  fd;     /* the temporary file, open for writing; -1: closed */
    int  lock;   /* duplicate of `fd`: keeps the lock after `fd` is closed; -1: none */
    bool exists; /* the temporary file exists */
} ch_temp;

/* Creates and locks a temporary file for `path`. The caller must call ch__temp_drop, also after
 * an error. */
CH_MUST_CHECK ch_status ch__temp_open(ch_temp *t, const char *path);
/* Gives the temporary file, which was private until now, its final mode; -1: the mode that the
 * umask leaves. Must precede the sync, so that the mode is durable too. */
CH_MUST_CHECK ch_status ch__temp_set_mode(const ch_temp *t, int mode);
/* Renames the temporary file to its destination. Does not sync. */
CH_MUST_CHECK ch_status ch__temp_rename(ch_temp *t);
/* Syncs the folder, so that the rename is durable. */
CH_MUST_CHECK ch_status ch__temp_sync_folder(const ch_temp *t);
/* Closes the file, removes it unless it was renamed, and ends the lock. */
void ch__temp_drop(ch_temp *t);

/* Removes temporary files for `path` that killed processes have left. Errors are ignored. */
void ch__temp_tidy(const char *path);
/* The same for all destinations in a folder whose name begins with `prefix`. */
void ch__temp_tidy_folder(const char *folder, const char *prefix);

#endif

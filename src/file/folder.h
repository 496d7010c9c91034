/* file/folder.h -- creates, lists and syncs folders.   SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_FOLDER_H
#define FILE_FOLDER_H

#include <stdbool.h>

#include "cohort/status.h"

/* Creates a folder and its missing parents. Syncs the parent of each folder that it creates, so
 * that a power failure does not lose the folder. Succeeds if the folder exists already.
 * NOT_FOUND: `path` exists but is not a folder. */
CH_MUST_CHECK ch_status ch__folder_make(const char *path);
/* Calls `visit` with each name in a folder, except "." and "..", in no particular order. Ends
 * early if `visit` returns false. Returns 0 or an errno; the function sets no message. */
int ch__folder_list(const char *path, bool (*visit)(void *arg, const char *name), void *arg);
/* Syncs the folder that contains `path`, so that names created or removed there are durable.
 * Returns 0 or an errno; the function sets no message. Succeeds on file systems that cannot
 * sync a folder. */
int ch__folder_sync(const char *path);

#endif

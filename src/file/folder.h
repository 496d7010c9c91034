/* file/folder.h -- creates folders.   SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_FOLDER_H
#define FILE_FOLDER_H

#include "cohort/status.h"

/* Creates a folder and its missing parents. Syncs the parent of each folder that it creates, so
 * that a power failure does not lose the folder. Succeeds if the folder exists already.
 * NOT_FOUND: `path` exists but is not a folder. */
CH_MUST_CHECK ch_status ch__folder_make(const char *path);

#endif

/* file/folder.h -- folders, made.   SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_FOLDER_H
#define FILE_FOLDER_H

#include "cohort/status.h"

/* Makes a folder, and those that it is in; what is there already is fine, if it is a folder. */
CH_MUST_CHECK ch_status ch__folder_make(const char *path);

#endif

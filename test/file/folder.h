/* test/file/folder.h -- a temporary folder for the tests of a group.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_FILE_FOLDER_H
#define TEST_FILE_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The folder exists from t_folder_make, the set-up of a group, to t_folder_remove, its
 * teardown. */
static char t_folder[64];

static inline int t_folder_make(void **state)
{
    (void)state;
    snprintf(t_folder, sizeof(t_folder), "/tmp/cohort-test-XXXXXX");
    return mkdtemp(t_folder) != NULL ? 0 : -1;
}

/* Removes the folder and its contents. */
static inline int t_folder_remove(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof(command), "rm -r %s", t_folder);
    return system(command);
}

/* Returns a path in the folder. The text is valid until the fourth next call. */
static inline const char *t_path(const char *name)
{
    static char text[4][512];
    static int  next;

    next = (next + 1) % 4;
    snprintf(text[next], sizeof(text[next]), "%s/%s", t_folder, name);
    return text[next];
}

#endif

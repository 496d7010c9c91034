/* test/file/folder.h -- a folder that a test has for itself.   SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_FILE_FOLDER_H
#define TEST_FILE_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* There from t_folder_make to t_folder_remove, which are a group's set-up and its end. */
static char t_folder[64];

static inline int t_folder_make(void **state)
{
    (void)state;
    snprintf(t_folder, sizeof(t_folder), "/tmp/cohort-test-XXXXXX");
    return mkdtemp(t_folder) != NULL ? 0 : -1;
}

/* With all that is in it. */
static inline int t_folder_remove(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof(command), "rm -r %s", t_folder);
    return system(command);
}

/* A path in it; the text is good until the fourth call from now. */
static inline const char *t_path(const char *name)
{
    static char text[4][512];
    static int  next;

    next = (next + 1) % 4;
    snprintf(text[next], sizeof(text[next]), "%s/%s", t_folder, name);
    return text[next];
}

#endif

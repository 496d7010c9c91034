/* examples/folder.h -- a temporary folder for the files of an example.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef EXAMPLES_FOLDER_H
#define EXAMPLES_FOLDER_H

#include <fts.h>

#include "example.h"

/* Returns the path of a file in a folder. It stays valid until the fourth call after this. */
static inline const char *in_folder(const char *folder, const char *name)
{
    static char path[4][256];
    static int  next;
    char       *p = path[next++ % 4];

    snprintf(p, sizeof(path[0]), "%s/%s", folder, name);
    return p;
}

static inline void make_folder(char folder[32])
{
    snprintf(folder, 32, "/tmp/cohort-XXXXXX");
    want(mkdtemp(folder) != NULL, "a folder in /tmp", folder);
}

/* Removes the folder and its files. */
static inline void drop_folder(char folder[32])
{
    FTS    *tree = fts_open((char *[]){folder, NULL}, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    FTSENT *e;

    while (tree != NULL && (e = fts_read(tree)) != NULL)
        if (e->fts_info != FTS_D) /* FTS_DP follows the files of a folder */
            remove(e->fts_path);
    if (tree != NULL)
        fts_close(tree);
}

#endif

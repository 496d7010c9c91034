/* file/folder.c -- creates folders, durably, and lists and syncs them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/mutant.h"
#include "base/sys.h"

static bool is_folder(const char *path)
{
    int fd = ch__sys_open(path, O_RDONLY | O_DIRECTORY, 0);

    if (fd >= 0)
        ch__sys_close(fd);
    return fd >= 0;
}

/* Syncs the folder that contains `path`, a new folder. Changes `path` and restores it. */
static ch_status sync_parent(char *path)
{
    char *slash = strrchr(path, '/');
    int   rc;

    if (!CH_KEEPS(PARENTSYNC))
        return CH_OK;
    if (slash == NULL || slash == path) {
        rc = ch__sys_sync_folder(slash == NULL ? "." : "/");
    } else {
        *slash = '\0';
        rc = ch__sys_sync_folder(path);
        *slash = '/';
    }
    if (rc == 0)
        return CH_OK;
    return ch__fail_errno(errno,
                          "%s: created, but the folder that contains it cannot be synced; a "
                          "power failure may lose it",
                          path);
}

/* Ignores errors of creating the parents: a parent may exist in a folder that this process may
 * not write to. If a parent is really missing, creating the folder itself fails. */
ch_status ch__folder_make(const char *path)
{
    char     *part;
    int       error = 0;
    ch_status rc = CH_OK;

    if (path == NULL || path[0] == '\0')
        return ch__fail(CH_INVALID_ARGUMENT,
                        "creating a folder: no name given (path is NULL or empty)");
    part = ch__strdup(path);
    if (part == NULL)
        return ch__fail_memory(path);
    for (char *slash = strchr(part + 1, '/'); slash != NULL && rc == CH_OK;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (ch__sys_mkdir(part) == 0)
            rc = sync_parent(part);
        *slash = '/';
    }
    if (rc == CH_OK && ch__sys_mkdir(part) == 0)
        rc = sync_parent(part);
    else if (rc == CH_OK)
        error = errno;
    if (error != 0 && !((error == EEXIST || error == EROFS) && is_folder(part)))
        rc = ch__fail_errno(error == EEXIST ? ENOTDIR : error,
                            "%s: the folder does not exist and cannot be created", path);
    ch__free(part);
    return rc;
}

int ch__folder_list(const char *path, bool (*visit)(void *arg, const char *name), void *arg)
{
    DIR           *d = ch__sys_opendir(path);
    struct dirent *e;
    int            error;

    if (d == NULL)
        return errno;
    while ((e = ch__sys_readdir(d)) != NULL)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
            !visit(arg, e->d_name))
            break;
    error = e == NULL ? errno : 0;
    ch__sys_closedir(d);
    return error;
}

/* Does not allocate, because the file is already in place when the folder is synced. */
int ch__folder_sync(const char *path)
{
    const char *slash = strrchr(path, '/');
    char        folder[PATH_MAX] = ".";

    if (slash != NULL && slash - path + 1 >= PATH_MAX)
        return ENAMETOOLONG;
    if (slash != NULL)
        snprintf(folder, sizeof(folder), "%.*s", (int)(slash - path) + 1, path);
    return ch__sys_sync_folder(folder) == 0 ? 0 : errno;
}

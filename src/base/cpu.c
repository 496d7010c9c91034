/* base/cpu.c -- how many cores this process may use.
 *
 * Three things limit it: the machine, the affinity of the process, and the CPU quota of its control group
 * (cgroup), which containers and batch systems set. A quota is a time per period: 150000 of 100000
 * microseconds are one and a half cores. Every ancestor of a group limits it too.
 *
 * Linux has two interfaces. In version 2 a group's folder has a file cpu.max; in version 1 the hierarchy
 * of the cpu controller has cpu.cfs_quota_us and cpu.cfs_period_us. /proc/self/cgroup has the group's path
 * in each hierarchy, and /proc/self/mountinfo says where a hierarchy is mounted.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"

enum { LINE = 4096, PATH = 2048 };

/* One hierarchy of groups, as it is mounted. */
typedef struct hierarchy {
    int  version;
    char root[PATH];  /* the group that is mounted, */
    char point[PATH]; /* there */
} hierarchy;

/* True if `word` is one of the comma-separated words of `list`. */
static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);

    for (const char *at = list; (at = strstr(at, word)) != NULL; at += n)
        if ((at == list || at[-1] == ',') && (at[n] == ',' || at[n] == '\0' || at[n] == '\n'))
            return true;
    return false;
}

/* A line of mountinfo: "ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELDS...] - TYPE SOURCE OPTIONS".
 * False: it mounts nothing that could have a CPU quota. */
static bool parse_mount(const char *line, hierarchy *out)
{
    const char *end = strstr(line, " - ");
    char        type[32], options[512];

    if (end == NULL || sscanf(end, " - %31s %*s %511s", type, options) != 2 ||
        sscanf(line, "%*s %*s %*s %2047s %2047s", out->root, out->point) != 2)
        return false;
    out->version = strcmp(type, "cgroup2") == 0 ? 2 : 1;
    return out->version == 2 || (strcmp(type, "cgroup") == 0 && has_word(options, "cpu"));
}

static FILE *open_in(const char *root, const char *folder, const char *name)
{
    char full[3 * PATH];

    if (snprintf(full, sizeof(full), "%s%s/%s", root, folder, name) >= (int)sizeof(full))
        return NULL;
    return fopen(full, "re");
}

/* The path of this process's group in a hierarchy. A line is "ID:CONTROLLERS:PATH"; in version 2 there
 * are no controllers. */
static bool find_group(const char *root, int version, char *path)
{
    FILE *f = open_in(root, "/proc/self", "cgroup");
    char  line[LINE], list[512];
    bool  found = false;

    while (f != NULL && !found && fgets(line, sizeof(line), f) != NULL) {
        list[0] = '\0';
        if (version == 2)
            found = sscanf(line, "0::%2047[^\n]", path) == 1;
        else
            found = sscanf(line, "%*d:%511[^:]:%2047[^\n]", list, path) == 2 &&
                    has_word(list, "cpu");
    }
    if (f != NULL)
        (void)fclose(f);
    return found;
}

/* Reads two numbers from a file "A B", or one each from two. False: there is no quota. */
static bool read_quota(const char *root, int version, const char *folder, double *quota,
                       double *period)
{
    static const char *const names[][2] = {{"cpu.cfs_quota_us", "cpu.cfs_period_us"},
                                           {"cpu.max", NULL}};
    double                   value[2] = {0, 0};
    int                      n = 0;

    for (int i = 0; i < 2 && names[version - 1][i] != NULL; i++) {
        FILE *f = open_in(root, folder, names[version - 1][i]);

        if (f == NULL)
            return false;
        n += version == 2 ? fscanf(f, "%lf %lf", &value[0], &value[1])
                          : fscanf(f, "%lf", &value[i]);
        (void)fclose(f);
    }
    *quota = value[0];
    *period = value[1];
    return n == 2 && *quota > 0 && *period > 0; /* "max" is no number; -1 is no quota */
}

/* The least number of cores that the group or an ancestor of it allows; 0: none limits it. */
static double least_quota(const char *root, const hierarchy *h, const char *group)
{
    char   folder[2 * PATH];
    size_t begin = strlen(h->point), skip = strcmp(h->root, "/") != 0 ? strlen(h->root) : 0;
    double least = 0, quota, period;

    if (strncmp(group, h->root, skip) != 0)
        skip = strlen(
            group); /* it is outside of what is mounted: look at the mounted group alone */
    snprintf(folder, sizeof(folder), "%s%s", h->point, group + skip);
    for (;;) {
        char *slash;

        if (read_quota(root, h->version, folder, &quota, &period) &&
            (least == 0 || quota / period < least))
            least = quota / period;
        slash = strrchr(folder + begin, '/');
        if (slash == NULL)
            return least;
        *slash = '\0';
    }
}

double ch__cpu_quota(const char *root)
{
    FILE  *f = open_in(root, "/proc/self", "mountinfo");
    char   line[LINE], group[PATH];
    double least = 0;

    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        hierarchy h;
        double    quota = 0;

        if (parse_mount(line, &h) && find_group(root, h.version, group))
            quota = least_quota(root, &h, group);
        if (quota > 0 && (least == 0 || quota < least))
            least = quota;
    }
    if (f != NULL)
        (void)fclose(f);
    return least;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static double         quota_here;

static void read_quota_here(void)
{
    quota_here = ch__cpu_quota("");
}

static int count_allowed(void)
{
    cpu_set_t allowed;
    long      online;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0)
        return CPU_COUNT(&allowed);
    online = sysconf(_SC_NPROCESSORS_ONLN); /* more cores than a cpu_set_t holds */
    return online > 0 ? (int)online : 1;
}

/* A part of a core is left out: threads that wait for each other would all wait for the one that is out of
 * quota. */
int ch__cpu_count(void)
{
    int n = count_allowed();

    pthread_once(&once, read_quota_here);
    if (quota_here > 0 && quota_here < n)
        n = quota_here >= 1 ? (int)quota_here : 1;
    return n;
}

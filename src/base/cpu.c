/* base/cpu.c -- the number of cores that this process may use.
 *
 * Three things limit the number: the machine, the affinity of the process, and the CPU quota of
 * its control group (cgroup), which containers and batch systems set. A quota is a time per
 * period: 150000 of 100000 microseconds are one and a half cores. The quotas of all ancestors
 * of a group apply too.
 *
 * Linux has two interfaces. In version 2 a group's folder has a file cpu.max. In version 1 the
 * hierarchy of the cpu controller has cpu.cfs_quota_us and cpu.cfs_period_us.
 * /proc/self/cgroup lists the group's path in each hierarchy. /proc/self/mountinfo lists where
 * hierarchies are mounted.
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

/* A mounted hierarchy of control groups. */
typedef struct hierarchy {
    int  version;     /* 1 or 2 */
    char root[PATH];  /* path of the mounted group within the hierarchy */
    char point[PATH]; /* mount point */
} hierarchy;

/* Returns true if the comma-separated list contains `word`. */
static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);

    for (const char *at = list; (at = strstr(at, word)) != NULL; at += n)
        if ((at == list || at[-1] == ',') && (at[n] == ',' || at[n] == '\0' || at[n] == '\n'))
            return true;
    return false;
}

/* Parses a line of mountinfo, which has the form "ID PARENT MAJOR:MINOR ROOT POINT OPTIONS
 * [FIELDS...] - TYPE SOURCE OPTIONS". Returns false if the line mounts no hierarchy that can
 * have a CPU quota. */
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

/* Writes the path of this process's group in a hierarchy to `path`. A line of the file is
 * "ID:CONTROLLERS:PATH"; in version 2 the list of controllers is empty. Returns false if there
 * is no such group. */
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

/* Reads the quota and the period of a group, both in microseconds. Version 2 has both in a
 * file, version 1 has a file for each. Returns false if the group has no quota. */
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
    return n == 2 && *quota > 0 && *period > 0; /* "max" and -1 mean no quota */
}

/* Returns the smallest quota of the group and its ancestors, in cores; 0: there is no quota. */
static double least_quota(const char *root, const hierarchy *h, const char *group)
{
    char   folder[2 * PATH];
    size_t begin = strlen(h->point), skip = strcmp(h->root, "/") != 0 ? strlen(h->root) : 0;
    double least = 0, quota, period;

    /* A group outside the mounted subtree has no folder here: read the mounted group only. */
    if (strncmp(group, h->root, skip) != 0)
        skip = strlen(group);
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
static double         process_quota;

static void read_process_quota(void)
{
    process_quota = ch__cpu_quota("");
}

static int count_allowed(void)
{
    cpu_set_t allowed;
    long      online;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0)
        return CPU_COUNT(&allowed);
    /* The machine has more cores than a cpu_set_t holds. */
    online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

/* Rounds a quota down to whole cores. With a thread more than whole cores, all threads of a
 * team would wait for the thread that has used up its quota. */
int ch__cpus_within(int n, double quota)
{
    if (quota <= 0 || quota >= n)
        return n;
    return quota >= 1 ? (int)quota : 1;
}

int ch__cpu_count(void)
{
    pthread_once(&once, read_process_quota);
    return ch__cpus_within(count_allowed(), process_quota);
}

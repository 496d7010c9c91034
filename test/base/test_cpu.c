/* test/base/test_cpu.c -- CPU quotas of control groups, in simulated trees of /proc and /sys.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sched.h>
#include <string.h>

#include "../file/folder.h"
#include "base/thread.h"

/* Writes a file below the tree's folder, and makes the folders of its path. */
static void put(const char *tree, const char *path, const char *text)
{
    char  command[1024], full[512];
    FILE *f;

    snprintf(full, sizeof(full), "%s%s", t_path(tree), path);
    snprintf(command, sizeof(command), "mkdir -p $(dirname %s)", full);
    assert_int_equal(system(command), 0);
    f = fopen(full, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void v2(const char *tree, const char *group)
{
    char line[256];

    put(tree, "/proc/self/mountinfo",
        "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "30 21 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
    snprintf(line, sizeof(line), "0::%s\n", group);
    put(tree, "/proc/self/cgroup", line);
}

static void v1(const char *tree, const char *root, const char *group)
{
    char line[512];

    snprintf(line, sizeof(line),
             "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
             "32 31 0:29 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
             "33 31 0:30 %s /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpuacct,cpu\n",
             root);
    put(tree, "/proc/self/mountinfo", line);
    snprintf(line, sizeof(line), "9:cpuset:/elsewhere\n4:cpuacct,cpu:%s\n0::/\n", group);
    put(tree, "/proc/self/cgroup", line);
}

static void v1_quota(const char *tree, const char *folder, const char *quota)
{
    char path[256];

    snprintf(path, sizeof(path), "/sys/fs/cgroup/cpu%s/cpu.cfs_quota_us", folder);
    put(tree, path, quota);
    snprintf(path, sizeof(path), "/sys/fs/cgroup/cpu%s/cpu.cfs_period_us", folder);
    put(tree, path, "100000\n");
}

static double quota_of(const char *tree)
{
    return ch__cpu_quota(t_path(tree));
}

static void quota_of_version_2_is_the_least_of_the_group_and_its_ancestors(void **state)
{
    v2("v2", "/user.slice/job/step");
    assert_true(quota_of("v2") == 0);
    put("v2", "/sys/fs/cgroup/user.slice/job/step/cpu.max", "max 100000\n");
    assert_true(quota_of("v2") == 0);
    put("v2", "/sys/fs/cgroup/user.slice/cpu.max", "400000 100000\n");
    assert_true(quota_of("v2") == 4);
    put("v2", "/sys/fs/cgroup/user.slice/job/step/cpu.max", "150000 100000\n");
    assert_true(quota_of("v2") == 1.5);
    put("v2", "/sys/fs/cgroup/user.slice/job/cpu.max", "25000 50000\n");
    assert_true(quota_of("v2") == 0.5);
    put("v2", "/sys/fs/cgroup/other/cpu.max", "1000 100000\n");
    assert_true(quota_of("v2") == 0.5);
    (void)state;
}

/* In a container, the group may be mounted as the root of the visible tree. */
static void quota_of_version_1_is_found_below_the_mounted_group(void **state)
{
    v1("v1", "/docker/abc", "/docker/abc/inner");
    assert_true(quota_of("v1") == 0);
    v1_quota("v1", "", "-1\n");
    assert_true(quota_of("v1") == 0);
    v1_quota("v1", "", "300000\n");
    assert_true(quota_of("v1") == 3);
    v1_quota("v1", "/inner", "200000\n");
    assert_true(quota_of("v1") == 2);
    (void)state;
}

static void quota_of_the_mounted_group_counts_when_the_path_is_outside(void **state)
{
    v1("outside", "/docker/abc", "/system.slice");
    v1_quota("outside", "", "250000\n");
    v1_quota("outside", "/system.slice", "100000\n");
    assert_true(quota_of("outside") == 2.5);
    (void)state;
}

static void quota_is_none_without_proc_or_with_nonsense(void **state)
{
    assert_true(quota_of("nothing") == 0);
    v2("nonsense", "/a");
    put("nonsense", "/sys/fs/cgroup/a/cpu.max", "many cores\n");
    assert_true(quota_of("nonsense") == 0);
    put("nonsense", "/sys/fs/cgroup/a/cpu.max", "100000 0\n");
    assert_true(quota_of("nonsense") == 0);
    put("nonsense", "/proc/self/mountinfo", "- - -\n - cgroup2\n 1 2 3 - cgroup2 x y\n");
    assert_true(quota_of("nonsense") == 0);
    (void)state;
}

static void cpu_count_follows_the_affinity(void **state)
{
    cpu_set_t before, one;
    int       cpu = 0;

    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    while (!CPU_ISSET(cpu, &before))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    assert_int_equal(ch__cpu_count(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
    assert_true(ch__cpu_count() >= 1 && ch__cpu_count() <= CPU_COUNT(&before));
    (void)state;
}

static void cpu_count_is_the_quota_in_whole_cores(void **state)
{
    assert_int_equal(ch__cpus_within(8, 0), 8);
    assert_int_equal(ch__cpus_within(8, 0.25), 1);
    assert_int_equal(ch__cpus_within(8, 1), 1);
    assert_int_equal(ch__cpus_within(8, 3.9), 3);
    assert_int_equal(ch__cpus_within(8, 8.5), 8);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quota_of_version_2_is_the_least_of_the_group_and_its_ancestors),
        cmocka_unit_test(quota_of_version_1_is_found_below_the_mounted_group),
        cmocka_unit_test(quota_of_the_mounted_group_counts_when_the_path_is_outside),
        cmocka_unit_test(quota_is_none_without_proc_or_with_nonsense),
        cmocka_unit_test(cpu_count_follows_the_affinity),
        cmocka_unit_test(cpu_count_is_the_quota_in_whole_cores),
    };

    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}

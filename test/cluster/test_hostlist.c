/* test/cluster/test_hostlist.c -- Slurm's short forms of lists of hosts and of tasks per node.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cluster/hostlist.h"
#include "help.h"

static void expands(const char *text, const char *want)
{
    ch_arena arena = {0};
    ch_hosts hosts = {0};
    char     all[512] = "";

    t_ok(ch__hostlist_expand(text, &arena, &hosts));
    for (int i = 0; i < hosts.n; i++) {
        size_t at = strlen(all);

        snprintf(all + at, sizeof(all) - at, "%s%s", i > 0 ? " " : "", hosts.name[i]);
    }
    assert_string_equal(all, want);
    ch__free(hosts.name);
    ch__arena_drop(&arena);
}

static void hostlist_expands_ranges_in_brackets(void **state) /* SL-3 */
{
    expands("n[1-2],m5,o[3-4,6,7-9]", "n1 n2 m5 o3 o4 o6 o7 o8 o9");
    expands("n[0001-0003],m5,o[009-011]", "n0001 n0002 n0003 m5 o009 o010 o011");
    expands("a", "a");
    expands("a,a,a", "a a a");
    expands("n[9-11]", "n9 n10 n11");
    expands("n[08-11]", "n08 n09 n10 n11");
    expands("n[5]", "n5");
    expands("n[3,1-2]", "n3 n1 n2");
    (void)state;
}

/* The reference rejects names with two brackets, which Slurm writes. */
static void hostlist_expands_names_with_several_brackets(void **state) /* SL-4 */
{
    expands("r[1-2]n[1-4]", "r1n1 r1n2 r1n3 r1n4 r2n1 r2n2 r2n3 r2n4");
    expands("r[1-2]n[08-09]x,q", "r1n08x r1n09x r2n08x r2n09x q");
    expands("[1-2]", "1 2");
    expands("[1-2][3,5]", "13 15 23 25");
    expands("n[1-2]-ib", "n1-ib n2-ib");
    (void)state;
}

static void hostlist_rejects_malformed_text(void **state) /* SL-4 */
{
    static const char *const bad[] = {
        "",         ",",
        "a,",       ",a",
        "a,,b",     "n[1-2",
        "n1-2]",    "n[]",
        "n[1-2-3]", "n[[1]]",
        "n[1[2]]",  "n[a]",
        "n[1-]",    "n[-1]",
        "n[2-1]",   "n[1,]",
        "n[,1]",    "n[1 - 2]",
        "n[1]]",    "n[1234567890]",
        "n]1[",     "n[1-2],[",
        "n[+1-2]",  "a[1][2][3][4][5][6][7][8][9]b[1][2][3][4][5][6][7][8][9]"};
    ch_arena arena = {0};
    ch_hosts hosts = {0};
    char     longer[300];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        t_refused(ch__hostlist_expand(bad[i], &arena, &hosts), CH_INVALID_ARGUMENT,
                  "Invalid hostlist format");
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    t_refused(ch__hostlist_expand(longer, &arena, &hosts), CH_INVALID_ARGUMENT,
              "Invalid hostlist format");
    t_refused(ch__hostlist_expand("n[0-999999999]", &arena, &hosts), CH_RESOURCE_EXHAUSTED,
              "65536 hosts");
    t_refused(ch__hostlist_expand("n[0-999][0-999]", &arena, &hosts), CH_RESOURCE_EXHAUSTED,
              "65536 hosts");
    assert_null(hosts.name);
    ch__arena_drop(&arena);
    (void)state;
}

static void tasks_per_node_expands_repeat_counts(void **state) /* SL-5 */
{
    static const char *const bad[] = {"",     ",",      "3,",   "3(x2",   "3(2)",
                                      "3(x)", "3x2",    "(x2)", "3(x2)4", "-1",
                                      "3 ",   "3(x-1)", "a",    "3(y2)",  "99999"};
    int                      tasks[12], n = 0;

    t_ok(ch__tasks_per_node("3(x2),2,1", 12, tasks, &n));
    assert_int_equal(n, 4);
    assert_memory_equal(tasks, ((int[]){3, 3, 2, 1}), 4 * sizeof(int));
    t_ok(ch__tasks_per_node("13(x10)", 12, tasks, &n));
    assert_int_equal(n, 10);
    for (int i = 0; i < n; i++)
        assert_int_equal(tasks[i], 13);
    t_ok(ch__tasks_per_node("1(x60000)", 0, NULL, &n));
    assert_int_equal(n, 60000);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        t_refused(ch__tasks_per_node(bad[i], 12, tasks, &n), CH_INVALID_ARGUMENT,
                  "tasks per node");
    t_refused(ch__tasks_per_node("1(x60000),1(x60000)", 12, tasks, &n), CH_RESOURCE_EXHAUSTED,
              "65536");
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostlist_expands_ranges_in_brackets),
        cmocka_unit_test(hostlist_expands_names_with_several_brackets),
        cmocka_unit_test(hostlist_rejects_malformed_text),
        cmocka_unit_test(tasks_per_node_expands_repeat_counts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

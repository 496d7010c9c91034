/* test/cluster/test_check.c -- checks of clusters for training: allowed jobs and tasks, the
 * chief, and ids of workers.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

static const char *const usual = "chief|c:1,worker|w0:1;w1:1,ps|p0:1;p1:1";

static void check_refused(const char *cluster, const char *type, int id, const char *words)
{
    ch_cluster *c = t_cluster(cluster);

    t_refused(ch_cluster_check(c, type, id), CH_INVALID_ARGUMENT, words);
    ch_cluster_unref(c);
}

static void check_ok(const char *cluster, const char *type, int id)
{
    ch_cluster *c = t_cluster(cluster);

    t_ok(ch_cluster_check(c, type, id));
    ch_cluster_unref(c);
}

static void cluster_check_rejects_unknown_job_names(void **state) /* CV-1, 6.6.4 */
{
    check_ok("chief|a:1,worker|a:2,ps|a:3,evaluator|a:4", NULL, -1);
    check_ok(usual, "chief", 0);
    check_ok(usual, "worker", 1);
    check_ok(usual, "ps", -1);
    check_refused("worker|a:1,master|b:1", "worker", 0,
                  "Disallowed task type found in cluster spec: \"master\"");
    (void)state;
}

static void cluster_check_rejects_unknown_task_types(void **state) /* CV-2 */
{
    check_refused(usual, "master", 0, "Unrecognized task_type \"master\"");
    check_refused(usual, "", 0, "Unrecognized task_type");
    (void)state;
}

static void
cluster_check_rejects_a_task_whose_job_is_not_in_the_cluster(void **state) /* CV-3, 6.6.4 */
{
    check_refused("worker|a:1", "chief", 0, "not found in cluster_spec: worker 1");
    check_ok("worker|a:1", "evaluator", 0);
    check_ok("worker|a:1", "evaluator", 7);
    check_ok("{}", "evaluator", 0);
    check_refused("{}", "worker", 0, "not found in cluster_spec: no jobs");
    (void)state;
}

static void cluster_check_rejects_a_second_chief_or_evaluator(void **state) /* CV-4, 6.6.4 */
{
    check_refused("chief|a:1;b:1,worker|c:1", "worker", 0, "at most one chief");
    check_refused("evaluator|a:1;b:1,worker|c:1", "worker", 0, "at most one evaluator");
    check_ok("evaluator|a:1,chief|b:1", "evaluator", 0);
    (void)state;
}

/* If a job lists only some of its tasks, the id must be in the list. */
static void
cluster_check_rejects_a_task_id_that_is_not_in_the_job(void **state) /* CV-5, 6.6.4 */
{
    check_refused(usual, "worker", 2, "task_id 2 exceeds the maximum id");
    check_refused("{\"chief\": []}", "chief", 0, "exceeds the maximum id");
    check_refused("{\"worker\": {\"3\": \"a:1\"}}", "worker", 4, "exceeds the maximum id");
    check_refused("{\"worker\": {\"3\": \"a:1\"}}", "worker", 0, "No task with index 0");
    check_ok("{\"worker\": {\"3\": \"a:1\"}}", "worker", 3);
    check_refused(usual, "worker", -2, "task_id is -2");
    (void)state;
}

static void cluster_check_reports_the_first_of_several_faults(void **state) /* CV-6 */
{
    check_refused("chief|a:1;b:1,evaluator|a:1;b:1,x|y:1", "z", 9, "Disallowed");
    check_refused("chief|a:1;b:1,evaluator|a:1;b:1", "z", 9, "Unrecognized");
    check_refused("chief|a:1;b:1,evaluator|a:1;b:1", "ps", 9, "not found");
    check_refused("chief|a:1;b:1,evaluator|a:1;b:1", "chief", 9, "at most one chief");
    check_refused("chief|a:1,evaluator|a:1;b:1", "chief", 9, "at most one evaluator");
    check_refused("chief|a:1,evaluator|a:1", "chief", 9, "exceeds");
    (void)state;
}

static void cluster_is_chief_is_true_for_the_chief_or_worker_0(void **state) /* CV-7, 6.6.6 */
{
    static const struct {
        const char *cluster, *type;
        int         id;
        bool        is;
    } row[] = {
        {usual, "chief", 0, true},
        {usual, "worker", 0, false},
        {usual, "worker", 1, false},
        {usual, "ps", 0, false},
        {usual, "evaluator", 0, true},
        {"worker|a:1;b:1", "worker", 0, true},
        {"worker|a:1;b:1", "worker", 1, false},
        {"worker|a:1,ps|b:1", "ps", 0, false},
    };

    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        ch_cluster *c = t_cluster(row[i].cluster);
        bool        is = !row[i].is;

        t_ok(ch_cluster_is_chief(c, row[i].type, row[i].id, &is));
        assert_int_equal(is, row[i].is);
        t_refused(ch_cluster_is_chief(c, "x", 0, &is), CH_INVALID_ARGUMENT, "Unrecognized");
        t_refused(ch_cluster_is_chief(c, NULL, 0, &is), CH_INVALID_ARGUMENT, "task_type");
        ch_cluster_unref(c);
    }
    (void)state;
}

static void cluster_worker_count_includes_the_chief(void **state) /* CV-8, 6.6.5, 8.18 */
{
    ch_cluster *c = t_cluster(usual), *e = t_cluster("worker|a:1,evaluator|b:1");
    int         n = 0;

    t_ok(ch_cluster_worker_count(c, "chief", &n));
    assert_int_equal(n, 3);
    t_ok(ch_cluster_worker_count(c, "worker", &n));
    assert_int_equal(n, 3);
    t_ok(ch_cluster_worker_count(c, "evaluator", &n)); /* not listed: the evaluator is alone */
    assert_int_equal(n, 1);
    t_ok(ch_cluster_worker_count(e, "evaluator", &n));
    assert_int_equal(n, 1);
    t_ok(ch_cluster_worker_count(e, "worker", &n));
    assert_int_equal(n, 1);
    t_refused(ch_cluster_worker_count(c, "ps", &n), CH_INVALID_ARGUMENT,
              "Unexpected task_type");
    t_refused(ch_cluster_worker_count(e, "chief", &n), CH_INVALID_ARGUMENT, "not found");
    ch_cluster_unref(c);
    ch_cluster_unref(e);
    (void)state;
}

static void cluster_id_in_cluster_counts_the_chief_first(void **state) /* CV-9, 6.6.5 */
{
    ch_cluster *with = t_cluster(usual), *without = t_cluster("worker|a:1;b:1");
    int         id = -1;

    t_ok(ch_cluster_id_in_cluster(with, "chief", 0, &id));
    assert_int_equal(id, 0);
    t_ok(ch_cluster_id_in_cluster(with, "worker", 1, &id));
    assert_int_equal(id, 2);
    t_ok(ch_cluster_id_in_cluster(without, "worker", 1, &id));
    assert_int_equal(id, 1);
    t_ok(ch_cluster_id_in_cluster(without, "evaluator", 0, &id));
    assert_int_equal(id, 0);
    t_refused(ch_cluster_id_in_cluster(with, "ps", 1, &id), CH_INVALID_ARGUMENT,
              "There is no id for task_type \"ps\"");
    t_refused(ch_cluster_id_in_cluster(with, "worker", 2, &id), CH_INVALID_ARGUMENT, "exceeds");
    t_refused(ch_cluster_id_in_cluster(with, "worker", -1, &id), CH_INVALID_ARGUMENT,
              "not given");
    ch_cluster_unref(with);
    ch_cluster_unref(without);
    (void)state;
}

static void cluster_leaders_are_the_first_tasks_of_chief_ps_or_worker(
    void **state) /* CV-10, CV-11, 6.6.6 */
{
    static const struct {
        const char *cluster, *collective, *coordination;
    } row[] = {
        {usual, "/job:chief/replica:0/task:0", "/job:ps/replica:0/task:0"},
        {"worker|a:1,chief|b:1", "/job:chief/replica:0/task:0", "/job:chief/replica:0/task:0"},
        {"worker|a:1;b:1", "/job:worker/replica:0/task:0", "/job:worker/replica:0/task:0"},
        {"{}", "", ""},
    };

    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        ch_cluster *c = t_cluster(row[i].cluster);

        assert_string_equal(ch_cluster_collective_leader(c, "worker"), row[i].collective);
        assert_string_equal(ch_cluster_collective_leader(c, NULL), row[i].collective);
        assert_string_equal(ch_cluster_collective_leader(c, "evaluator"), "");
        assert_string_equal(ch_cluster_coordination_leader(c), row[i].coordination);
        ch_cluster_unref(c);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cluster_check_rejects_unknown_job_names),
        cmocka_unit_test(cluster_check_rejects_unknown_task_types),
        cmocka_unit_test(cluster_check_rejects_a_task_whose_job_is_not_in_the_cluster),
        cmocka_unit_test(cluster_check_rejects_a_second_chief_or_evaluator),
        cmocka_unit_test(cluster_check_rejects_a_task_id_that_is_not_in_the_job),
        cmocka_unit_test(cluster_check_reports_the_first_of_several_faults),
        cmocka_unit_test(cluster_is_chief_is_true_for_the_chief_or_worker_0),
        cmocka_unit_test(cluster_worker_count_includes_the_chief),
        cmocka_unit_test(cluster_id_in_cluster_counts_the_chief_first),
        cmocka_unit_test(cluster_leaders_are_the_first_tasks_of_chief_ps_or_worker),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

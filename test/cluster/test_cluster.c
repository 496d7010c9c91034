/* test/cluster/test_cluster.c -- ch_cluster: creation, parsing, queries.
 *
 * The tests parse lists, maps, JSON text and the short form, print clusters, look up tasks, and
 * check the message of every invalid input.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

static const char *const three[] = {"w0:1", "w1:1", "w2:1"};

/* ---- creation ---- */

static void cluster_is_made_of_lists_maps_text_bytes_or_another_cluster(void **state) /* CS-1 */
{
    static const int number[] = {7, 3};
    ch_cluster      *c = NULL, *same = NULL, *other, *back = NULL;
    void            *bytes = NULL;
    size_t           n = 0;

    t_ok(ch_cluster_new(
        2, (ch_cluster_job[]){{"worker", 3, three, NULL}, {"ps", 2, three, number}}, &c));
    t_prints(c, "{\"worker\": [\"w0:1\", \"w1:1\", \"w2:1\"], \"ps\": {\"3\": \"w1:1\", \"7\": "
                "\"w0:1\"}}");
    t_ok(ch_cluster_parse("{\"ps\": {\"3\": \"w1:1\", \"7\": \"w0:1\"}, \"worker\": [\"w0:1\", "
                          "\"w1:1\", \"w2:1\"]}",
                          &same));
    assert_true(ch_cluster_is_equal(c, same));
    other = ch_cluster_ref(c);
    assert_ptr_equal(other, c);
    t_ok(ch_cluster_encode(c, &bytes, &n));
    t_ok(ch_cluster_decode(bytes, n, &back));
    assert_true(ch_cluster_is_equal(c, back));
    ch_bytes_free(bytes);
    ch_cluster_unref(other);
    ch_cluster_unref(c);
    ch_cluster_unref(same);
    ch_cluster_unref(back);
    (void)state;
}

static void cluster_parse_rejects_text_that_is_no_cluster(void **state) /* CS-1, CS-2 */
{
    static const struct {
        const char *text, *words;
        ch_status   rc;
    } bad[] = {
        {"{\"worker\": \"w0:1\"}", "job \"worker\" is neither", CH_INVALID_ARGUMENT},
        {"{\"worker\": 3}", "job \"worker\" is neither", CH_INVALID_ARGUMENT},
        {"{\"worker\": [\"a:1\", 2]}", "task 1 of job \"worker\" is not a string",
         CH_INVALID_ARGUMENT},
        {"{\"ps\": {\"4\": null}}", "task 4 of job \"ps\" is not a string",
         CH_INVALID_ARGUMENT},
        {"{\"ps\": {\"x\": \"a:1\"}}", "\"x\" of job \"ps\" is not the number",
         CH_INVALID_ARGUMENT},
        {"{\"ps\": {\"-1\": \"a:1\"}}", "not the number", CH_INVALID_ARGUMENT},
        {"{\"ps\": {\"1048576\": \"a:1\"}}", "not the number", CH_INVALID_ARGUMENT},
        {"{\"ps\": {\"1\": \"a:1\", \"01\": \"b:1\"}}", "task 1 of job \"ps\" is listed twice",
         CH_ALREADY_EXISTS},
        {"{\"ps\": [], \"ps\": []}", "duplicate", CH_ALREADY_EXISTS},
        {"{\"\": []}", "no name", CH_INVALID_ARGUMENT},
        {"{\"a b\": []}", "blank", CH_INVALID_ARGUMENT},
        {"{\"a/b\": []}", "\"/\"", CH_INVALID_ARGUMENT},
        {"{\"a\": [\"h\\u00e4:1\"]}", "printable", CH_INVALID_ARGUMENT},
        {"{\"a\": [\"h 1\"]}", "blank", CH_INVALID_ARGUMENT},
        {"{", "not JSON: line 1", CH_INVALID_ARGUMENT},
        {"{} {}", "not JSON", CH_INVALID_ARGUMENT},
        {"[]", "JSON list (got [], want an object of jobs)", CH_INVALID_ARGUMENT},
        {" [\"a:1\"]", "{\"worker\": [\"host:port\", ...]}", CH_INVALID_ARGUMENT},
        {" ", "is not job|host:port", CH_INVALID_ARGUMENT},
        {"", "is not job|host:port", CH_INVALID_ARGUMENT},
    };
    ch_cluster *c = NULL;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        t_refused(ch_cluster_parse(bad[i].text, &c), bad[i].rc, bad[i].words);
    assert_null(c);
    (void)state;
}

static void cluster_new_rejects_invalid_lists(void **state) /* CS-2 */
{
    static const int         below[] = {-1}, same[] = {4, 4};
    static const char *const hole[] = {"a:1", NULL};
    char                     name[CH_JOB_BYTES + 1], address[CH_ADDRESS_BYTES + 1];
    const char              *at = address;
    ch_cluster              *c = NULL;

    memset(name, 'j', CH_JOB_BYTES);
    memset(address, 'a', CH_ADDRESS_BYTES);
    name[CH_JOB_BYTES] = address[CH_ADDRESS_BYTES] = '\0';
    t_refused(ch_cluster_new(1, &(ch_cluster_job){NULL, 0, NULL, NULL}, &c),
              CH_INVALID_ARGUMENT, "no name");
    t_refused(ch_cluster_new(1, &(ch_cluster_job){name, 0, NULL, NULL}, &c),
              CH_INVALID_ARGUMENT, "more than 63");
    t_refused(ch_cluster_new(1, &(ch_cluster_job){"a", 1, &at, NULL}, &c), CH_INVALID_ARGUMENT,
              "more than 255");
    t_refused(ch_cluster_new(1, &(ch_cluster_job){"a", 2, hole, NULL}, &c), CH_INVALID_ARGUMENT,
              "task 1 of job \"a\" has no address");
    t_refused(ch_cluster_new(1, &(ch_cluster_job){"a", 2, NULL, NULL}, &c), CH_INVALID_ARGUMENT,
              "2 tasks; the list of addresses is NULL");
    t_refused(ch_cluster_new(1, &(ch_cluster_job){"a", -1, three, NULL}, &c),
              CH_INVALID_ARGUMENT, "-1 tasks");
    t_refused(ch_cluster_new(1, &(ch_cluster_job){"a", 1, three, below}, &c),
              CH_INVALID_ARGUMENT, "task -1");
    t_refused(ch_cluster_new(1, &(ch_cluster_job){"a", 2, three, same}, &c), CH_ALREADY_EXISTS,
              "task 4");
    t_refused(ch_cluster_new(2, (ch_cluster_job[]){{.name = "a"}, {.name = "a"}}, &c),
              CH_ALREADY_EXISTS, "job \"a\" is listed twice");
    t_refused(ch_cluster_new(-1, NULL, &c), CH_INVALID_ARGUMENT, "-1 jobs");
    t_refused(ch_cluster_new(1, NULL, &c), CH_INVALID_ARGUMENT, "job is NULL");
    t_refused(ch_cluster_new(0, NULL, NULL), CH_INVALID_ARGUMENT, "out is NULL");
    t_refused(ch_cluster_parse(NULL, &c), CH_INVALID_ARGUMENT, "the text is NULL");
    assert_null(c);
    (void)state;
}

static void cluster_new_limits_jobs_and_tasks(void **state)
{
    static ch_cluster_job job[CH_CLUSTER_JOBS + 1];
    static char           name[CH_CLUSTER_JOBS + 1][8];
    static const char    *address[CH_CLUSTER_TASKS];
    ch_cluster           *c = NULL;
    int                   n = 0;

    for (int i = 0; i <= CH_CLUSTER_JOBS; i++) {
        snprintf(name[i], sizeof(name[i]), "j%d", i);
        job[i].name = name[i];
    }
    for (int i = 0; i < CH_CLUSTER_TASKS; i++)
        address[i] = "h:1";
    t_refused(ch_cluster_new(CH_CLUSTER_JOBS + 1, job, &c), CH_RESOURCE_EXHAUSTED, "257 jobs");
    job[0] = (ch_cluster_job){"a", CH_CLUSTER_TASKS, address, NULL};
    t_ok(ch_cluster_new(CH_CLUSTER_JOBS, job, &c));
    t_ok(ch_cluster_num_tasks(c, "a", &n));
    assert_int_equal(n, CH_CLUSTER_TASKS);
    ch_cluster_unref(c);
    c = NULL;
    job[1] = (ch_cluster_job){"b", 1, address, NULL};
    t_refused(ch_cluster_new(CH_CLUSTER_JOBS, job, &c), CH_RESOURCE_EXHAUSTED, "65536 tasks");
    assert_null(c);
    (void)state;
}

static void cluster_parse_accepts_task_indices_as_text(void **state) /* CS-3 */
{
    ch_cluster *c = t_cluster("{\"worker\": {\"1\": \"h:1\"}}");
    const int  *index = NULL;
    int         n = 0;

    t_ok(ch_cluster_task_indices(c, "worker", &n, &index));
    assert_int_equal(n, 1);
    assert_int_equal(index[0], 1);
    ch_cluster_unref(c);
    (void)state;
}

static void cluster_jobs_keep_their_order(void **state) /* CS-4 */
{
    ch_cluster *c = t_cluster("{\"worker\": [\"w:1\"], \"chief\": [\"c:1\"], \"ps\": []}");

    assert_int_equal(ch_cluster_jobs(c), 3);
    assert_string_equal(ch_cluster_job_name(c, 0), "worker");
    assert_string_equal(ch_cluster_job_name(c, 1), "chief");
    assert_string_equal(ch_cluster_job_name(c, 2), "ps");
    assert_null(ch_cluster_job_name(c, 3));
    assert_null(ch_cluster_job_name(c, -1));
    ch_cluster_unref(c);
    (void)state;
}

static void cluster_parse_reads_the_short_form(void **state) /* SRV-21 */
{
    static const char *const bad[] = {
        "worker", "worker|", "worker|a:1;",  "worker|;a:1", "|a:1",
        "a|x:1,", ",a|x:1",  "a|x:1,,b|y:1", "a|x:1;y:1,b", "a|x:1|y:1,b"};
    ch_cluster *c = t_cluster("ps|p0:1;p1:1,worker|w0:1");

    t_prints(c, "{\"ps\": [\"p0:1\", \"p1:1\"], \"worker\": [\"w0:1\"]}");
    ch_cluster_unref(c);
    c = NULL;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        t_refused(ch_cluster_parse(bad[i], &c), CH_INVALID_ARGUMENT, "cluster: ");
    t_refused(ch_cluster_parse("a|x:1,a|y:1", &c), CH_ALREADY_EXISTS, "job \"a\"");
    assert_null(c);
    (void)state;
}

/* ---- queries ---- */

static void cluster_print_writes_lists_for_jobs_without_gaps(void **state) /* CS-5 */
{
    ch_cluster *c =
        t_cluster("{\"a\": {\"1\": \"y:1\", \"0\": \"x:1\"}, \"b\": {\"1\": \"y:1\"},"
                  "\"c\": [], \"d\": {}, \"e\": [\"q\\\"\\\\:1\"]}");
    ch_cluster *again;
    char        text[256], little[8];
    int         n = ch_cluster_print(c, text, sizeof(text));

    t_prints(c, "{\"a\": [\"x:1\", \"y:1\"], \"b\": {\"1\": \"y:1\"}, \"c\": {}, \"d\": {}, "
                "\"e\": [\"q\\\"\\\\:1\"]}");
    again = t_cluster(text);
    assert_true(ch_cluster_is_equal(c, again));
    assert_int_equal(ch_cluster_print(c, little, sizeof(little)), n);
    assert_string_equal(little, "{\"a\": [");
    assert_int_equal(ch_cluster_print(c, NULL, 0), n);
    ch_cluster_unref(c);
    ch_cluster_unref(again);
    (void)state;
}

static void cluster_tasks_are_counted_listed_and_found(void **state) /* CS-6 */
{
    ch_cluster *c = t_cluster("{\"ps\": {\"4\": \"p4:1\", \"1\": \"p1:1\"}, \"worker\": "
                              "[\"w0:1\", \"w1:1\"], \"chief\": []}");
    const int  *index = NULL;
    const char *address[6] = {"?", "?", "?", "?", "?", "?"}, *one = NULL;
    int         n = 0;

    t_ok(ch_cluster_num_tasks(c, "ps", &n));
    assert_int_equal(n, 2);
    t_ok(ch_cluster_task_indices(c, "ps", &n, &index));
    assert_int_equal(n, 2);
    assert_int_equal(index[0], 1);
    assert_int_equal(index[1], 4);
    t_ok(ch_cluster_job_tasks(c, "ps", 6, address, &n));
    assert_int_equal(n, 5);
    assert_null(address[0]);
    assert_string_equal(address[1], "p1:1");
    assert_null(address[2]);
    assert_null(address[3]);
    assert_string_equal(address[4], "p4:1");
    assert_null(address[5]);
    t_ok(ch_cluster_job_tasks(c, "ps", 2, address, &n));
    assert_int_equal(n, 5);
    t_ok(ch_cluster_job_tasks(c, "chief", 0, NULL, &n));
    assert_int_equal(n, 0);
    t_ok(ch_cluster_task_address(c, "worker", 1, &one));
    assert_string_equal(one, "w1:1");
    ch_cluster_unref(c);
    (void)state;
}

static void cluster_queries_reject_a_job_or_task_that_is_not_there(void **state) /* CS-7 */
{
    ch_cluster *c =
        t_cluster("{\"ps\": {\"4\": \"p4:1\"}, \"worker\": [\"w0:1\"], \"chief\": []}");
    const char *address = NULL;
    const int  *index;
    int         n;

    t_refused(ch_cluster_num_tasks(c, "evaluator", &n), CH_INVALID_ARGUMENT,
              "No such job in cluster: \"evaluator\"; it has ps 1, worker 1, chief 0");
    t_refused(ch_cluster_task_indices(c, "", &n, &index), CH_INVALID_ARGUMENT,
              "No such job in cluster");
    t_refused(ch_cluster_job_tasks(c, "x", 0, NULL, &n), CH_INVALID_ARGUMENT,
              "No such job in cluster");
    t_refused(ch_cluster_task_address(c, "x", 0, &address), CH_INVALID_ARGUMENT,
              "No such job in cluster");
    t_refused(ch_cluster_task_address(c, "worker", 1, &address), CH_INVALID_ARGUMENT,
              "No task with index 1");
    t_refused(ch_cluster_task_address(c, "worker", -1, &address), CH_INVALID_ARGUMENT,
              "No task with index -1");
    t_refused(ch_cluster_task_address(c, "ps", 0, &address), CH_INVALID_ARGUMENT,
              "No task with index 0");
    t_refused(ch_cluster_task_address(c, "chief", 0, &address), CH_INVALID_ARGUMENT,
              "No task with index 0");
    t_refused(ch_cluster_num_tasks(NULL, "x", &n), CH_INVALID_ARGUMENT, "the cluster is NULL");
    t_refused(ch_cluster_num_tasks(c, NULL, &n), CH_INVALID_ARGUMENT, "the job is NULL");
    t_refused(ch_cluster_num_tasks(c, "ps", NULL), CH_INVALID_ARGUMENT, "out is NULL");
    t_refused(ch_cluster_task_indices(c, "ps", NULL, &index), CH_INVALID_ARGUMENT, "out");
    t_refused(ch_cluster_job_tasks(c, "ps", 3, NULL, &n), CH_INVALID_ARGUMENT, "address");
    assert_null(address);
    ch_cluster_unref(c);
    (void)state;
}

static void cluster_has_a_job_without_tasks(void **state) /* CS-8 */
{
    ch_cluster *none = t_cluster("{}"), *one = t_cluster("{\"worker\": []}");

    assert_int_equal(ch_cluster_jobs(none), 0);
    assert_int_equal(ch_cluster_jobs(one), 1);
    assert_true(ch_cluster_has_job(one, "worker"));
    assert_false(ch_cluster_has_job(none, "worker"));
    assert_false(ch_cluster_is_equal(none, one));
    t_prints(none, "{}");
    ch_cluster_unref(none);
    ch_cluster_unref(one);
    (void)state;
}

static void cluster_is_equal_compares_jobs_indices_and_addresses(void **state)
{
    static const char *const other[] = {
        "{\"a\": [\"x:1\"]}", "{\"a\": [\"x:1\", \"z:1\"]}", "{\"b\": [\"x:1\", \"y:1\"]}",
        "{\"a\": {\"0\": \"x:1\", \"2\": \"y:1\"}}", "{\"a\": [\"x:1\", \"y:1\"], \"b\": []}"};
    ch_cluster *c = t_cluster("{\"a\": [\"x:1\", \"y:1\"]}");

    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
        ch_cluster *d = t_cluster(other[i]);

        assert_false(ch_cluster_is_equal(c, d));
        assert_false(ch_cluster_is_equal(d, c));
        ch_cluster_unref(d);
    }
    assert_true(ch_cluster_is_equal(c, c));
    ch_cluster_unref(c);
    (void)state;
}

static void cluster_queries_accept_a_null_cluster(void **state)
{
    assert_int_equal(ch_cluster_jobs(NULL), 0);
    assert_null(ch_cluster_job_name(NULL, 0));
    assert_false(ch_cluster_has_job(NULL, "worker"));
    assert_true(ch_cluster_is_equal(NULL, NULL));
    assert_null(ch_cluster_ref(NULL));
    ch_cluster_unref(NULL);
    t_prints(NULL, "{}");
    (void)state;
}

static ch_status parse(void *arg)
{
    ch_cluster *c = NULL;
    ch_status   rc = ch_cluster_parse(arg, &c);

    ch_cluster_unref(c);
    return rc;
}

static void cluster_parse_leaks_nothing_when_out_of_memory(void **state)
{
    char json[] = "{\"worker\": [\"a:1\", \"b:1\"], \"ps\": {\"3\": \"c:1\"}}";
    char brief[] = "worker|a:1;b:1,ps|c:1";

    t_out_of_memory(parse, json);
    t_out_of_memory(parse, brief);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cluster_is_made_of_lists_maps_text_bytes_or_another_cluster),
        cmocka_unit_test(cluster_parse_rejects_text_that_is_no_cluster),
        cmocka_unit_test(cluster_new_rejects_invalid_lists),
        cmocka_unit_test(cluster_new_limits_jobs_and_tasks),
        cmocka_unit_test(cluster_parse_accepts_task_indices_as_text),
        cmocka_unit_test(cluster_jobs_keep_their_order),
        cmocka_unit_test(cluster_parse_reads_the_short_form),
        cmocka_unit_test(cluster_print_writes_lists_for_jobs_without_gaps),
        cmocka_unit_test(cluster_tasks_are_counted_listed_and_found),
        cmocka_unit_test(cluster_queries_reject_a_job_or_task_that_is_not_there),
        cmocka_unit_test(cluster_has_a_job_without_tasks),
        cmocka_unit_test(cluster_is_equal_compares_jobs_indices_and_addresses),
        cmocka_unit_test(cluster_queries_accept_a_null_cluster),
        cmocka_unit_test(cluster_parse_leaks_nothing_when_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

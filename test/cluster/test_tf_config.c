/* test/cluster/test_tf_config.c -- the resolver for the environment variable TF_CONFIG.
 *
 * The tests set the variable to valid and invalid JSON, and check the cluster, the task, the
 * master and the accelerators.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

#define TWO_AND_THREE                                                                          \
    "\"cluster\": {\"ps\": [\"ps0:2222\", \"ps1:2222\"], "                                     \
    "\"worker\": [\"worker0:2222\", \"worker1:2222\", \"worker2:2222\"]}"

static ch_resolver *resolver(const char *text, const ch_resolver_options *opt)
{
    ch_resolver *r = NULL;

    setenv("TF_CONFIG", text, 1);
    t_ok(ch_resolver_tf_config(opt, &r));
    return r;
}

static void tf_config_is_read_on_every_call(void **state) /* TC-1 */
{
    ch_resolver *r = resolver("{", NULL); /* not read yet, so no error */
    ch_cluster  *c = NULL;
    char         text[64];
    int          id;

    t_refused(ch_resolver_cluster(r, &c), CH_INVALID_ARGUMENT, "TF_CONFIG is not JSON: line 1");
    t_refused(ch_resolver_task_type(r, text, 64), CH_INVALID_ARGUMENT, "TF_CONFIG is not JSON");
    t_refused(ch_resolver_task_id(r, &id), CH_INVALID_ARGUMENT, "TF_CONFIG is not JSON");
    t_refused(ch_resolver_rpc_layer(r, text, 64), CH_INVALID_ARGUMENT, "TF_CONFIG is not JSON");
    t_refused(ch_resolver_master(r, NULL, -1, NULL, text, 64), CH_INVALID_ARGUMENT,
              "TF_CONFIG is not JSON");
    assert_null(c);
    setenv("TF_CONFIG", "{\"task\": {\"type\": \"ps\", \"index\": 1}}", 1);
    t_is_task(r, "ps", 1);
    setenv("TF_CONFIG", "{\"cluster\": {\"ps\": [\"a:1\"]}}", 1);
    t_is_task(r, "", -1);
    t_gives(r, "{\"ps\": [\"a:1\"]}");
    unsetenv("TF_CONFIG");
    t_gives(r, "{}");
    t_is_task(r, "", -1);
    t_master(r, NULL, -1, NULL, "");
    ch_resolver_unref(r);
    (void)state;
}

static void tf_config_fields_cluster_task_and_rpc_layer_are_read(void **state) /* TC-2 */
{
    ch_resolver *r =
        resolver("{" TWO_AND_THREE ", \"task\": {\"type\": \"ps\", \"index\": 1, \"x\": 2},"
                 "\"rpc_layer\": \"grpc\", \"environment\": \"cloud\", \"y\": []}",
                 NULL);

    t_gives(r, "{\"ps\": [\"ps0:2222\", \"ps1:2222\"], \"worker\": [\"worker0:2222\", "
               "\"worker1:2222\", \"worker2:2222\"]}");
    t_is_task(r, "ps", 1);
    t_has_layer(r, "grpc");
    assert_null(ch_resolver_environment(r));
    ch_resolver_unref(r);
    (void)state;
}

static void tf_config_resolver_prefers_options_and_set_values(void **state) /* TC-3 */
{
    ch_resolver *r = resolver("{" TWO_AND_THREE ", \"task\": {\"type\": \"ps\", \"index\": 1},"
                              "\"rpc_layer\": \"grpc\"}",
                              &(ch_resolver_options){"worker", true, 0, "http", "lab"});

    t_is_task(r, "worker", 0);
    t_has_layer(r, "http");
    assert_string_equal(ch_resolver_environment(r), "lab");
    t_master(r, NULL, -1, NULL, "http://worker0:2222");
    t_ok(ch_resolver_set_task_type(r, "ps"));
    t_ok(ch_resolver_set_task_id(r, 1));
    t_ok(ch_resolver_set_rpc_layer(r, ""));
    t_master(r, NULL, -1, NULL, "ps1:2222");
    ch_resolver_unref(r);
    (void)state;
}

static void tf_config_converts_task_type_and_index_or_rejects_them(void **state) /* TC-4 */
{
    static const char *const bad[] = {"{\"task\": {\"index\": \"one\"}}",
                                      "{\"task\": {\"index\": -1}}",
                                      "{\"task\": {\"index\": 1.5}}",
                                      "{\"task\": {\"index\": []}}",
                                      "{\"task\": {\"type\": []}}",
                                      "{\"task\": 3}",
                                      "{\"rpc_layer\": {}}",
                                      "[]"};
    ch_resolver             *r =
        resolver("{\"task\": {\"type\": 123456, \"index\": \"1\"}, \"rpc_layer\": null}", NULL);
    int id;

    t_is_task(r, "123456", 1);
    setenv("TF_CONFIG", "{\"task\": {}}", 1);
    t_is_task(r, "", -1);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        setenv("TF_CONFIG", bad[i], 1);
        t_refused(ch_resolver_task_id(r, &id), CH_INVALID_ARGUMENT, "TF_CONFIG");
    }
    ch_resolver_unref(r);
    (void)state;
}

static void tf_config_resolver_has_no_environment_by_default(void **state) /* TC-5 */
{
    ch_resolver *r = resolver("{}", NULL);

    assert_null(ch_resolver_environment(r));
    ch_resolver_unref(r);
    r = resolver("{}", &(ch_resolver_options){.environment = ""});
    assert_string_equal(ch_resolver_environment(r), "");
    ch_resolver_unref(r);
    (void)state;
}

static void tf_config_without_cluster_gives_an_empty_cluster(void **state) /* TC-6 */
{
    ch_resolver *r = resolver("{\"task\": {\"type\": \"worker\", \"index\": 0}}", NULL);

    t_gives(r, "{}");
    ch_resolver_unref(r);
    (void)state;
}

static void tf_config_master_prefers_session_master_and_checks_the_task(void **state) /* TC-7 */
{
    ch_resolver *r = resolver("{" TWO_AND_THREE ", \"task\": {\"type\": \"ps\", \"index\": 0}, "
                              "\"rpc_layer\": \"grpc\", \"session_master\": \"here\"}",
                              NULL);
    char         text[CH_MASTER_BYTES];

    t_master(r, "worker", 1, "http", "here"); /* returned unchanged */
    setenv("TF_CONFIG",
           "{\"cluster\": {\"worker\": {\"1\": \"w1:1\"}}, \"task\": {\"type\": "
           "\"worker\", \"index\": 1}}",
           1);
    t_master(r, NULL, -1, NULL, "w1:1"); /* a map with a single task, not a list */
    setenv("TF_CONFIG", "{\"cluster\": {\"worker\": []}}", 1);
    t_refused(ch_resolver_master(r, "worker", 0, NULL, text, sizeof(text)), CH_INVALID_ARGUMENT,
              "No task with index 0");
    setenv("TF_CONFIG", "{" TWO_AND_THREE "}", 1);
    t_refused(ch_resolver_master(r, "worker", 3, NULL, text, sizeof(text)), CH_INVALID_ARGUMENT,
              "No task with index 3");
    t_refused(ch_resolver_master(r, "chief", 0, NULL, text, sizeof(text)), CH_INVALID_ARGUMENT,
              "No such job in cluster");
    t_refused(ch_resolver_master(r, NULL, -1, NULL, text, sizeof(text)), CH_INVALID_ARGUMENT,
              "No such job in cluster"); /* the task of this process is not given */
    ch_resolver_unref(r);
    (void)state;
}

static void tf_config_master_is_the_address_of_the_task(void **state) /* TC-8 */
{
    ch_resolver *r =
        resolver("{" TWO_AND_THREE ", \"task\": {\"type\": \"ps\", \"index\": 0}}", NULL);

    t_master(r, NULL, -1, NULL, "ps0:2222");
    t_master(r, NULL, -1, "grpc", "grpc://ps0:2222");
    t_master(r, "worker", 1, NULL, "worker1:2222");
    setenv("TF_CONFIG",
           "{" TWO_AND_THREE ", \"task\": {\"type\": \"ps\", \"index\": 0}, \"rpc_layer\": "
           "\"grpc\"}",
           1);
    t_master(r, NULL, -1, NULL, "grpc://ps0:2222");
    setenv("TF_CONFIG", "{}", 1);
    t_master(r, NULL, -1, NULL, "");
    setenv("TF_CONFIG", "{\"cluster\": {\"worker\": [\"w:1\"]}}", 1);
    t_master(r, NULL, -1, NULL, "");
    ch_resolver_unref(r);
    (void)state;
}

static void tf_config_worker_need_not_list_its_peers(void **state) /* TC-9 */
{
    ch_resolver *r = resolver("{\"cluster\": {\"ps\": [\"ps0:2222\"], \"worker\": {\"1\": "
                              "\"worker1:2222\"}}, \"task\": {\"type\": \"worker\", \"index\": "
                              "1}}",
                              NULL);
    ch_cluster  *c = NULL;

    t_gives(r, "{\"ps\": [\"ps0:2222\"], \"worker\": {\"1\": \"worker1:2222\"}}");
    t_master(r, NULL, -1, NULL, "worker1:2222");
    t_ok(ch_resolver_cluster(r, &c));
    t_ok(ch_cluster_check(c, "worker", 1));
    ch_cluster_unref(c);
    ch_resolver_unref(r);
    (void)state;
}

static void tf_config_accelerators_are_those_of_this_task(void **state) /* TC-10 */
{
    ch_resolver    *r = resolver("{\"task\": {\"type\": \"worker\", \"index\": 3}}", NULL);
    ch_accelerators a;

    t_ok(ch_resolver_num_accelerators(r, NULL, -1, &a));
    assert_int_equal(a.n, 1);
    assert_int_equal(a.item[0].count, 2);
    t_ok(ch_resolver_num_accelerators(r, "worker", 1, &a));
    assert_int_equal(a.n, 0);
    setenv("TF_CONFIG", "{\"task\": {\"type\": \"worker\", \"index\": 1}}", 1);
    t_ok(ch_resolver_num_accelerators(r, NULL, -1, &a));
    assert_int_equal(a.n, 0);
    ch_resolver_unref(r);
    (void)state;
}

static void tf_config_evaluator_need_not_be_listed(void **state) /* TC-11 */
{
    ch_resolver *r =
        resolver("{\"cluster\": {\"chief\": [\"c:1\"], \"ps\": [\"p:1\"], \"worker\": "
                 "[\"w:1\"]}, \"task\": {\"type\": \"evaluator\", \"index\": 0}}",
                 NULL);
    ch_cluster *c = NULL;

    t_ok(ch_resolver_cluster(r, &c));
    t_is_task(r, "evaluator", 0);
    t_ok(ch_cluster_check(c, "evaluator", 0));
    t_ok(ch_cluster_check(c, "chief", 0));
    ch_cluster_unref(c);
    ch_resolver_unref(r);
    (void)state;
}

/* A parameter server of the job on the page. */
static void tf_config_resolves_a_task_of_a_parameter_server_job(void **state) /* B17 */
{
    ch_resolver *r =
        resolver("{\"cluster\": {\"worker\": [\"worker0.example.com:2222\", "
                 "\"worker1.example.com:2222\", \"worker2.example.com:2222\"], \"ps\": "
                 "[\"ps0.example.com:2222\", \"ps1.example.com:2222\"], \"chief\": "
                 "[\"chief0.example.com:2222\"]}, \"task\": {\"type\": \"ps\", \"index\": 1}}",
                 NULL);
    ch_cluster *c = NULL;
    const char *address = NULL;
    int         n = 0;

    t_is_task(r, "ps", 1);
    t_ok(ch_resolver_cluster(r, &c));
    t_ok(ch_cluster_num_tasks(c, "chief", &n));
    assert_int_equal(n, 1);
    t_ok(ch_cluster_num_tasks(c, "ps", &n));
    assert_int_equal(n, 2);
    t_ok(ch_cluster_num_tasks(c, "worker", &n));
    assert_int_equal(n, 3);
    t_ok(ch_cluster_task_address(c, "ps", 1, &address));
    assert_string_equal(address, "ps1.example.com:2222");
    t_master(r, NULL, -1, NULL, "ps1.example.com:2222");
    t_master(r, NULL, -1, "grpc", "grpc://ps1.example.com:2222");
    t_ok(ch_cluster_task_address(c, "worker", 2, &address));
    assert_string_equal(address, "worker2.example.com:2222");
    t_refused(ch_cluster_task_address(c, "worker", 3, &address), CH_INVALID_ARGUMENT,
              "No task with index 3");
    t_ok(ch_cluster_check(c, "ps", 1));
    ch_cluster_unref(c);
    ch_resolver_unref(r);
    (void)state;
}

static int configure(void **state)
{
    (void)state;
    t_ok(ch_devices_configure(
        &(ch_devices_options){.spec = "CPU=1,GPU=2", .job = "worker", .task = 3}));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tf_config_is_read_on_every_call),
        cmocka_unit_test(tf_config_fields_cluster_task_and_rpc_layer_are_read),
        cmocka_unit_test(tf_config_resolver_prefers_options_and_set_values),
        cmocka_unit_test(tf_config_converts_task_type_and_index_or_rejects_them),
        cmocka_unit_test(tf_config_resolver_has_no_environment_by_default),
        cmocka_unit_test(tf_config_without_cluster_gives_an_empty_cluster),
        cmocka_unit_test(tf_config_master_prefers_session_master_and_checks_the_task),
        cmocka_unit_test(tf_config_master_is_the_address_of_the_task),
        cmocka_unit_test(tf_config_worker_need_not_list_its_peers),
        cmocka_unit_test(tf_config_accelerators_are_those_of_this_task),
        cmocka_unit_test(tf_config_evaluator_need_not_be_listed),
        cmocka_unit_test(tf_config_resolves_a_task_of_a_parameter_server_job),
    };

    return cmocka_run_group_tests(tests, configure, NULL);
}

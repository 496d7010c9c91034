/* test/cluster/test_tpu_resolver.c -- the resolver of TPU systems: names, the environment,
 * clusters and masters.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "tpu_help.h"

static ch_resolver *tpu(const char *name, const ch_tpu_resolver_options *opt)
{
    ch_resolver *r = NULL;

    t_ok(ch_resolver_tpu(name, opt, &r));
    assert_string_equal(ch_resolver_name(r), "TPU");
    return r;
}

/* Checks that all calls that need the system of the resolver are UNIMPLEMENTED, with these
 * words. Drops the resolver. */
static void is_remote(ch_resolver *r, const char *words)
{
    ch_accelerators  a = {.n = -7};
    ch_tpu_system    s = {.cores = -7};
    ch_tpu_topology *t = NULL;

    t_refused(ch_resolver_connect(r), CH_UNIMPLEMENTED, words);
    t_refused(ch_resolver_num_accelerators(r, NULL, -1, &a), CH_UNIMPLEMENTED, words);
    t_refused(ch_resolver_tpu_system(r, &s, 0, NULL), CH_UNIMPLEMENTED, words);
    t_refused(ch_tpu_initialize(r, &t), CH_UNIMPLEMENTED, words);
    t_refused(ch_tpu_shutdown(r), CH_UNIMPLEMENTED, words);
    assert_int_equal(a.n, -7);
    assert_int_equal(s.cores, -7);
    assert_null(t);
    assert_null(ch_resolver_tpu_topology(r));
    ch_resolver_unref(r);
}

/* Checks that the resolver is that of this process. Drops it. */
static void is_local(ch_resolver *r)
{
    t_ok(ch_resolver_connect(r));
    t_gives(r, "{}");
    t_master(r, NULL, -1, NULL, "");
    ch_resolver_unref(r);
}

/* ---- names ---- */

static void tpu_resolver_named_local_has_an_empty_cluster_and_no_master(void **state)
{
    /* TPR-1, TPR-2, TPR-11, TPR-12, TPR-14, TPR-19, TP-1, TP-4 */
    ch_resolver    *r = tpu("local", NULL);
    ch_accelerators a;

    t_is_task(r, "worker", 0);
    assert_string_equal(ch_resolver_environment(r), "");
    t_master(r, "worker", 3, "http", "");
    t_ok(ch_resolver_num_accelerators(r, NULL, -1, &a));
    assert_int_equal(a.n, 1);
    assert_string_equal(a.item[0].type, "TPU");
    assert_int_equal(a.item[0].count, ch_device_count("TPU"));
    is_local(r);
    r = tpu("local", &(ch_tpu_resolver_options){.job = "tpu",
                                                .mine = {.has_task_id = true, .task_id = 2}});
    t_is_task(r, "tpu", 2);
    is_local(r);
    is_local(tpu("local", &(ch_tpu_resolver_options){.coordinator = "c"}));
    (void)state;
}

static void tpu_resolver_takes_a_virtual_mesh(void **state)
{
    /* SYS-10: the mesh is used by ch_tpu_initialize */
    static const char *const bad[] = {
        "virtual:",          "virtual:2x2",      "virtual:2x2x1x",
        "virtual:2x2x1x2x2", "virtual:2,2,1,2",  "virtual:ax2x1x2",
        "virtual: 2x2x1x2",  "virtual:-2x2x1x2", "virtual:2x2x1x2 "};
    ch_resolver *r = NULL;

    is_local(tpu("virtual:4x4x1x2", NULL));
    is_local(tpu("virtual:2x2x2", NULL));
    is_local(tpu("virtual:8", NULL));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        t_refused(ch_resolver_tpu(bad[i], NULL, &r), CH_INVALID_ARGUMENT,
                  "is not a mesh of TPU cores");
    t_refused(ch_resolver_tpu("virtual:2x0x1x2", NULL, &r), CH_INVALID_ARGUMENT,
              "the size of axis 1 is 0");
    t_refused(ch_resolver_tpu("virtual:1024x1024x1x2", NULL, &r), CH_INVALID_ARGUMENT,
              "more than 1048576 cores");
    assert_null(r);
    (void)state;
}

static void tpu_resolver_takes_a_list_of_one_name(void **state)
{
    /* TPR-3 */
    ch_resolver *r = NULL;

    is_local(tpu("[\"local\"]", NULL));
    is_remote(tpu("[\"x\"]", NULL), "the TPU \"x\"");
    setenv("TPU_NAME", "of-env", 1);
    is_remote(tpu("[\"\"]", NULL), "the TPU \"of-env\" from TPU_NAME");
    t_no_environment(NULL);
    t_refused(ch_resolver_tpu("[]", NULL, &r), CH_INVALID_ARGUMENT,
              "the list of names is empty");
    t_refused(ch_resolver_tpu("[\"a\", \"b\"]", NULL, &r), CH_UNIMPLEMENTED,
              "a list of 2 names, want a single name");
    t_refused(ch_resolver_tpu("[7]", NULL, &r), CH_INVALID_ARGUMENT, "not a name");
    t_refused(ch_resolver_tpu("[\"a\"", NULL, &r), CH_INVALID_ARGUMENT, "is not JSON");
    assert_null(r);
    (void)state;
}

static void tpu_resolver_of_a_cloud_name_is_unimplemented_with_the_name(void **state)
{
    /* TPR-8, TPR-9, TP-3 */
    ch_resolver *r = tpu("my-tpu", NULL);
    ch_cluster  *c = NULL;
    char         text[CH_MASTER_BYTES];

    t_is_task(r, "worker", 0);
    t_refused(ch_resolver_cluster(r, &c), CH_UNIMPLEMENTED, "the TPU \"my-tpu\"");
    t_refused(ch_resolver_master(r, NULL, -1, NULL, text, sizeof(text)), CH_UNIMPLEMENTED,
              "Google's API");
    assert_null(c);
    is_remote(r, "the TPU \"my-tpu\" (projects/-/locations/-/nodes/my-tpu)");
    is_remote(tpu("n", &(ch_tpu_resolver_options){.project = "p", .zone = "z"}),
              "the TPU \"n\" (projects/p/locations/z/nodes/n) can only be found with Google's");
    (void)state;
}

/* ---- addresses ---- */

static void tpu_resolver_of_addresses_adds_the_default_port(void **state)
{
    /* TPR-7, TPR-11, TPR-12, TP-3, TP-4, TP-6, SYS-11 */
    ch_resolver *r = tpu("grpc://10.0.0.1,grpc://10.0.0.2:8471,h,[::1],[::2]:7", NULL);

    t_gives(r,
            "{\"worker\": [\"10.0.0.1:8470\", \"10.0.0.2:8471\", \"h:8470\", \"[::1]:8470\", "
            "\"[::2]:7\"]}");
    t_is_task(r, "worker", 0);
    t_has_layer(r, "grpc");
    t_master(r, NULL, -1, NULL, "grpc://10.0.0.1:8470");
    t_master(r, "worker", 1, "http", "grpc://10.0.0.2:8471"); /* always grpc */
    t_ok(ch_resolver_set_task_id(r, 2));
    t_ok(ch_resolver_set_rpc_layer(r, "http"));
    t_master(r, NULL, -1, NULL, "grpc://h:8470");
    is_remote(r, "the TPU at grpc://10.0.0.1:8470 is in another process");
    (void)state;
}

static void tpu_resolver_adds_the_coordinator_to_the_cluster(void **state)
{
    /* TPR-12, TPR-13 */
    ch_resolver *r = tpu("grpc://a", &(ch_tpu_resolver_options){.job = "tpu",
                                                                .coordinator = "chief",
                                                                .coordinator_address = "c:1"});
    char         text[CH_MASTER_BYTES];

    t_gives(r, "{\"tpu\": [\"a:8470\"], \"chief\": [\"c:1\"]}");
    t_is_task(r, "tpu", 0);
    t_master(r, "chief", 0, NULL, "grpc://c:1");
    t_refused(ch_resolver_master(r, "tpu", 1, NULL, text, sizeof(text)), CH_INVALID_ARGUMENT,
              "No task with index 1 in job \"tpu\"");
    ch_resolver_unref(r);
    r = NULL;
    t_refused(
        ch_resolver_tpu("grpc://a", &(ch_tpu_resolver_options){.coordinator = "chief"}, &r),
        CH_UNIMPLEMENTED, "set coordinator_address");
    t_refused(ch_resolver_tpu("grpc://a",
                              &(ch_tpu_resolver_options){.coordinator_address = "c:1"}, &r),
              CH_INVALID_ARGUMENT, "coordinator is NULL");
    assert_null(r);
    (void)state;
}

static void tpu_resolver_rejects_malformed_addresses_and_jobs(void **state) /* TPR-7 */
{
    static const char *const bad[] = {"grpc://",      "grpc://a,",      "grpc://a,,b",
                                      "grpc://:8470", "grpc://a:",      "grpc://a:0",
                                      "grpc://a:b",   "grpc://a:65536", "grpc://a:1:2",
                                      "grpc://a/b",   "grpc://::1"};
    ch_resolver             *r = NULL;
    char                     longer[2 * CH_ADDRESS_BYTES] = "grpc://";

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        t_refused(ch_resolver_tpu(bad[i], NULL, &r), CH_INVALID_ARGUMENT, "is not an address");
    memset(longer + 7, 'a', sizeof(longer) - 8);
    t_refused(ch_resolver_tpu(longer, NULL, &r), CH_INVALID_ARGUMENT, "255");
    t_refused(ch_resolver_tpu("grpc://a b", NULL, &r), CH_INVALID_ARGUMENT, "blank");
    t_refused(ch_resolver_tpu("local", &(ch_tpu_resolver_options){.job = "a/b"}, &r),
              CH_INVALID_ARGUMENT, "the name of a job");
    t_refused(ch_resolver_tpu("local", NULL, NULL), CH_INVALID_ARGUMENT, "out is NULL");
    assert_null(r);
    (void)state;
}

/* ---- the environment ---- */

static void tpu_resolver_without_a_name_reads_the_environment_in_this_order(void **state)
{
    /* TPR-4, TPR-5, TPR-10, TP-2 */
    static const char *const none[] = {NULL, ""};

    for (int i = 0; i < 2; i++) {
        t_no_environment(NULL);
        setenv("COLAB_TPU_ADDR", "10.0.0.9:8470", 1);
        setenv("TPU_CONFIG", "{\"tpu_node_name\": \"n\", \"project\": \"p\", \"zone\": \"z\"}",
               1);
        is_remote(tpu(none[i], NULL),
                  "the TPU \"n\" from TPU_CONFIG (projects/p/locations/z/nodes/n)");
        is_remote(tpu(none[i], &(ch_tpu_resolver_options){.project = "q"}),
                  "(projects/q/locations/z/nodes/n)");
        is_remote(tpu("m", NULL), "the TPU \"m\" (projects/-/"); /* the argument comes first */
        setenv("TPU_NAME", "tpu-of-env", 1);
        is_remote(tpu(none[i], NULL), "the TPU \"tpu-of-env\" from TPU_NAME");
        setenv("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "grpc://k:1", 1);
        is_remote(tpu(none[i], NULL), "the TPU at grpc://k:1 (from "
                                      "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS) is in another process");
        setenv("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "", 1); /* counts as unset */
        setenv("TPU_NAME", "virtual:2x2x1x2", 1);
        is_local(tpu(none[i], NULL));
    }
    (void)state;
}

static void tpu_resolver_without_any_name_is_local(void **state)
{
    /* TPR-6, SYS-10: TensorFlow refuses this */
    t_no_environment(NULL);
    setenv("COLAB_TPU_ADDR", "10.0.0.9:8470", 1);
    is_local(tpu(NULL, NULL));
    is_local(tpu("", NULL));
    unsetenv("COLAB_TPU_ADDR");
    (void)state;
}

static void tpu_resolver_rejects_an_invalid_tpu_config(void **state) /* TPR-5 */
{
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"{", "TPU_CONFIG is not JSON"},
        {"[]", "TPU_CONFIG is JSON, but not an object"},
        {"{}", "TPU_CONFIG: there is no tpu_node_name"},
        {"{\"tpu_node_name\": null}", "there is no tpu_node_name"},
        {"{\"tpu_node_name\": 7}", "tpu_node_name is not a string"},
        {"{\"tpu_node_name\": \"n\", \"zone\": []}", "zone is not a string"},
    };
    ch_resolver *r = NULL;

    t_no_environment(NULL);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        setenv("TPU_CONFIG", bad[i].text, 1);
        t_refused(ch_resolver_tpu("", NULL, &r), CH_INVALID_ARGUMENT, bad[i].words);
    }
    assert_null(r);
    t_no_environment(NULL);
    (void)state;
}

/* The environment is read once, by ch_resolver_tpu. */
static void tpu_resolver_keeps_the_name_that_it_was_made_with(void **state)
{
    ch_resolver *r;

    t_no_environment(NULL);
    setenv("TPU_NAME", "grpc://a", 1);
    r = tpu(NULL, NULL);
    setenv("TPU_NAME", "grpc://b", 1);
    t_gives(r, "{\"worker\": [\"a:8470\"]}");
    ch_resolver_unref(r);
    t_no_environment(NULL);
    (void)state;
}

/* ---- other resolvers ---- */

static void resolver_connect_needs_no_network_for_an_empty_cluster(void **state)
{
    ch_resolver *r = t_simple("{}", NULL);

    t_ok(ch_resolver_connect(r));
    ch_resolver_unref(r);
    r = t_simple("worker|a:1;b:1", NULL);
    t_refused(ch_resolver_connect(r), CH_UNIMPLEMENTED,
              "the tasks (worker 2) are in other processes");
    ch_resolver_unref(r);
    t_refused(ch_resolver_connect(NULL), CH_INVALID_ARGUMENT, "the resolver is NULL");
    (void)state;
}

static ch_status make_resolver(void *name)
{
    ch_resolver *r = NULL;
    ch_cluster  *c = NULL;
    ch_status    rc = ch_resolver_tpu(name, NULL, &r);

    if (rc == CH_OK)
        rc = ch_resolver_cluster(r, &c);
    ch_cluster_unref(c);
    ch_resolver_unref(r);
    return rc;
}

static void tpu_resolver_leaks_nothing_when_out_of_memory(void **state)
{
    char addresses[] = "grpc://a,b:1", local[] = "", list[] = "[\"virtual:2x2x1x2\"]";

    t_no_environment(NULL);
    t_out_of_memory(make_resolver, addresses);
    t_out_of_memory(make_resolver, local);
    t_out_of_memory(make_resolver, list);
    setenv("TPU_CONFIG", "{\"tpu_node_name\": \"local\", \"project\": \"p\"}", 1);
    t_out_of_memory(make_resolver, local);
    t_no_environment(NULL);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tpu_resolver_named_local_has_an_empty_cluster_and_no_master),
        cmocka_unit_test(tpu_resolver_takes_a_virtual_mesh),
        cmocka_unit_test(tpu_resolver_takes_a_list_of_one_name),
        cmocka_unit_test(tpu_resolver_of_a_cloud_name_is_unimplemented_with_the_name),
        cmocka_unit_test(tpu_resolver_of_addresses_adds_the_default_port),
        cmocka_unit_test(tpu_resolver_adds_the_coordinator_to_the_cluster),
        cmocka_unit_test(tpu_resolver_rejects_malformed_addresses_and_jobs),
        cmocka_unit_test(tpu_resolver_without_a_name_reads_the_environment_in_this_order),
        cmocka_unit_test(tpu_resolver_without_any_name_is_local),
        cmocka_unit_test(tpu_resolver_rejects_an_invalid_tpu_config),
        cmocka_unit_test(tpu_resolver_keeps_the_name_that_it_was_made_with),
        cmocka_unit_test(resolver_connect_needs_no_network_for_an_empty_cluster),
        cmocka_unit_test(tpu_resolver_leaks_nothing_when_out_of_memory),
    };

    return cmocka_run_group_tests(tests, t_no_environment, NULL);
}

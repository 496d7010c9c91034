/* test/cluster/test_simple.c -- the simple resolver: a cluster that the program gives.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

static const char *const three =
    "{\"worker\": [\"worker0:2222\", \"worker1:2222\", \"worker2:2222\"]}";

static void simple_resolver_returns_its_options(void **state) /* SR-1 */
{
    ch_resolver *r = t_simple(
        three, &(ch_simple_options){.mine = {"worker", true, 1, "grpc", "lab"}, .master = "m"});

    assert_string_equal(ch_resolver_name(r), "Simple");
    t_gives(r, three);
    t_is_task(r, "worker", 1);
    t_has_layer(r, "grpc");
    assert_string_equal(ch_resolver_environment(r), "lab");
    t_ok(ch_resolver_set_task_id(r, 0));
    t_is_task(r, "worker", 0);
    ch_resolver_unref(r);
    r = t_simple(three, NULL);
    t_is_task(r, "", -1);
    t_has_layer(r, "");
    assert_string_equal(ch_resolver_environment(r), "");
    ch_resolver_unref(r);
    (void)state;
}

static void simple_resolver_rejects_a_null_cluster_and_a_long_master(void **state) /* SR-1 */
{
    ch_cluster  *c = t_cluster("{}");
    ch_resolver *r = NULL;
    char         longer[CH_MASTER_BYTES + 1];

    memset(longer, 'm', CH_MASTER_BYTES);
    longer[CH_MASTER_BYTES] = '\0';
    t_refused(ch_resolver_simple(NULL, NULL, &r), CH_INVALID_ARGUMENT, "the cluster is NULL");
    t_refused(ch_resolver_simple(c, NULL, NULL), CH_INVALID_ARGUMENT, "out is NULL");
    t_refused(ch_resolver_simple(c, &(ch_simple_options){.master = longer}, &r),
              CH_INVALID_ARGUMENT, "master");
    t_refused(ch_resolver_simple(c, &(ch_simple_options){.accelerators.n = 9}, &r),
              CH_INVALID_ARGUMENT, "accelerators.n is 9");
    assert_null(r);
    ch_cluster_unref(c);
    (void)state;
}

static void simple_resolver_master_is_the_given_task_or_the_option(void **state) /* SR-2 */
{
    ch_resolver *r = t_simple(three, NULL);

    t_master(r, "worker", 2, NULL, "worker2:2222");
    t_master(r, "worker", 0, "grpc", "grpc://worker0:2222");
    t_master(r, NULL, -1, NULL, "");
    ch_resolver_unref(r);
    r = t_simple(
        three, &(ch_simple_options){.mine = {"worker", true, 1, "grpc", NULL}, .master = "m"});
    t_master(r, NULL, -1, NULL, "m"); /* its own task is not used */
    t_master(r, "worker", -1, NULL, "m");
    t_master(r, NULL, 2, NULL, "m");
    t_master(r, "worker", 2, NULL, "grpc://worker2:2222");
    ch_resolver_unref(r);
    (void)state;
}

static void simple_resolver_returns_the_accelerators_of_its_options(void **state) /* SR-3 */
{
    ch_resolver *r =
        t_simple(three, &(ch_simple_options){.accelerators = {2, {{"GPU", 4}, {"TPU", 8}}}});
    ch_accelerators a;

    t_ok(ch_resolver_num_accelerators(r, "ps", 9, &a));
    assert_int_equal(a.n, 2);
    assert_string_equal(a.item[1].type, "TPU");
    assert_int_equal(a.item[1].count, 8);
    ch_resolver_unref(r);
    r = t_simple(three, NULL);
    t_ok(ch_resolver_num_accelerators(r, NULL, -1, &a));
    assert_int_equal(a.n, 0);
    ch_resolver_unref(r);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simple_resolver_returns_its_options),
        cmocka_unit_test(simple_resolver_rejects_a_null_cluster_and_a_long_master),
        cmocka_unit_test(simple_resolver_master_is_the_given_task_or_the_option),
        cmocka_unit_test(simple_resolver_returns_the_accelerators_of_its_options),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

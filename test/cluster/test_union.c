/* test/cluster/test_union.c -- a resolver that combines several resolvers.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

static ch_resolver *union_of(ch_resolver *a, ch_resolver *b, const ch_resolver_options *opt)
{
    ch_resolver *r = NULL;

    t_ok(ch_resolver_union(2, (ch_resolver *[]){a, b}, opt, &r));
    ch_resolver_unref(a); /* the union has its own references */
    ch_resolver_unref(b);
    return r;
}

static void union_resolver_rejects_no_resolvers_and_null(void **state) /* UN-1 */
{
    ch_resolver *r = NULL, *one = t_simple("{}", NULL);

    t_refused(ch_resolver_union(0, NULL, NULL, &r), CH_INVALID_ARGUMENT, "at least one");
    t_refused(ch_resolver_union(-1, NULL, NULL, &r), CH_INVALID_ARGUMENT, "at least one");
    t_refused(ch_resolver_union(1, NULL, NULL, &r), CH_INVALID_ARGUMENT, "r is NULL");
    t_refused(ch_resolver_union(2, (ch_resolver *[]){one, NULL}, NULL, &r), CH_INVALID_ARGUMENT,
              "number 1 is NULL");
    t_refused(ch_resolver_union(1, &one, NULL, NULL), CH_INVALID_ARGUMENT, "out is NULL");
    assert_null(r);
    t_ok(ch_resolver_union(1, &one, NULL, &r));
    assert_string_equal(ch_resolver_name(r), "Union");
    t_gives(r, "{}");
    ch_resolver_unref(r);
    ch_resolver_unref(one);
    (void)state;
}

static void union_resolver_appends_lists_and_keeps_task_indices(void **state) /* UN-2 */
{
    ch_resolver *r =
        union_of(t_simple("worker|worker4:1;worker5:1", NULL),
                 t_simple("worker|worker0:1;worker1:1;worker2:1,ps|p:1", NULL), NULL);
    ch_cluster *c = NULL;

    t_gives(r, "{\"worker\": [\"worker4:1\", \"worker5:1\", \"worker0:1\", \"worker1:1\", "
               "\"worker2:1\"], \"ps\": [\"p:1\"]}");
    ch_resolver_unref(r);
    r = union_of(t_simple("{\"w\": {\"5\": \"a:1\", \"9\": \"b:1\"}}", NULL),
                 t_simple("{\"w\": {\"3\": \"c:1\", \"6\": \"d:1\", \"7\": \"e:1\"}}", NULL),
                 NULL);
    t_gives(r,
            "{\"w\": {\"3\": \"c:1\", \"5\": \"a:1\", \"6\": \"d:1\", \"7\": \"e:1\", \"9\": "
            "\"b:1\"}}");
    ch_resolver_unref(r);
    r = union_of(t_simple("w|a:1;b:1", NULL), t_simple("{\"w\": {\"4\": \"c:1\"}}", NULL),
                 NULL);
    t_gives(r, "{\"w\": {\"0\": \"a:1\", \"1\": \"b:1\", \"4\": \"c:1\"}}");
    ch_resolver_unref(r);
    r = union_of(t_simple("w|a:1;b:1", NULL),
                 t_simple("{\"w\": {\"1\": \"c:1\", \"2\": \"d:1\", \"3\": \"e:1\"}}", NULL),
                 NULL);
    t_refused(ch_resolver_cluster(r, &c), CH_ALREADY_EXISTS,
              "task 1 of job \"w\" is listed twice");
    assert_null(c);
    ch_resolver_unref(r);
    r = union_of(t_simple("{\"w\": []}", NULL), t_simple("w|a:1", NULL), NULL);
    t_gives(r, "{\"w\": [\"a:1\"]}"); /* a job without tasks counts as a list */
    ch_resolver_unref(r);
    (void)state;
}

/* Also if the task id is 0. */
static void union_resolver_prefers_its_options_over_the_first_resolver(void **state) /* UN-3 */
{
    ch_simple_options one = {.mine = {"worker", true, 3, "grpc", NULL}};
    ch_simple_options two = {.mine = {"ps", true, 4, "http", NULL}};
    ch_resolver      *r = union_of(t_simple("w|a:1", &one), t_simple("w|a:1", &two), NULL);

    t_is_task(r, "worker", 3);
    t_has_layer(r, "grpc");
    t_ok(ch_resolver_set_task_id(r, 1));
    t_is_task(r, "worker", 1);
    ch_resolver_unref(r);
    r = union_of(t_simple("w|a:1", &one), t_simple("w|a:1", &two),
                 &(ch_resolver_options){"chief", true, 0, "ucx", NULL});
    t_is_task(r, "chief", 0);
    t_has_layer(r, "ucx");
    ch_resolver_unref(r);
    r = union_of(t_simple("w|a:1", NULL), t_simple("w|a:1", &two), NULL);
    t_is_task(r, "", -1); /* the second resolver is not called */
    ch_resolver_unref(r);
    (void)state;
}

static void union_resolver_takes_master_and_accelerators_from_the_first(void **state) /* UN-4 */
{
    ch_simple_options one = {.mine = {.rpc_layer = "grpc", .environment = "lab"},
                             .master = "m",
                             .accelerators = {1, {{"GPU", 4}}}};
    ch_simple_options two = {
        .mine.environment = "other", .master = "n", .accelerators = {1, {{"TPU", 4}}}};
    ch_resolver    *r = union_of(t_simple("w|a:1", &one), t_simple("w|b:1", &two), NULL);
    ch_accelerators a;
    char            text[CH_MASTER_BYTES];

    t_master(r, "w", 1, NULL, "grpc://b:1");
    t_master(r, "w", 1, "", "b:1");
    t_master(r, NULL, -1, NULL, "m");
    t_master(r, "w", -1, NULL, "m");
    t_refused(ch_resolver_master(r, "w", 2, NULL, text, sizeof(text)), CH_INVALID_ARGUMENT,
              "No task with index 2");
    assert_string_equal(ch_resolver_environment(r), "lab");
    t_ok(ch_resolver_num_accelerators(r, NULL, -1, &a));
    assert_int_equal(a.n, 1);
    assert_string_equal(a.item[0].type, "GPU");
    ch_resolver_unref(r);
    (void)state;
}

static ch_status ask(void *arg)
{
    ch_resolver *r = NULL;
    ch_cluster  *c = NULL;
    ch_status    rc = ch_resolver_union(2, arg, NULL, &r);

    if (rc == CH_OK)
        rc = ch_resolver_cluster(r, &c);
    ch_cluster_unref(c);
    ch_resolver_unref(r);
    return rc;
}

static void union_resolver_leaks_nothing_when_out_of_memory(void **state)
{
    ch_resolver *part[] = {t_simple("w|a:1;b:1,ps|c:1", NULL),
                           t_simple("{\"w\": {\"4\": \"c:1\"}}", NULL)};

    t_out_of_memory(ask, part);
    ch_resolver_unref(part[0]);
    ch_resolver_unref(part[1]);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(union_resolver_rejects_no_resolvers_and_null),
        cmocka_unit_test(union_resolver_appends_lists_and_keeps_task_indices),
        cmocka_unit_test(union_resolver_prefers_its_options_over_the_first_resolver),
        cmocka_unit_test(union_resolver_takes_master_and_accelerators_from_the_first),
        cmocka_unit_test(union_resolver_leaks_nothing_when_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

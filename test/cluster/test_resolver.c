/* test/cluster/test_resolver.c -- the behaviour that all resolvers share, and resolvers that a
 * program implements.
 *
 * The test implements resolvers with ch_resolver_ops: a cluster that grows with each call, and
 * a source without any data about its own task.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

/* A resolver of the program: its cluster grows with each call. */
typedef struct growing {
    int  n_asked, n_closed;
    bool fails, is_silent;
} growing;

static ch_status growing_cluster(void *self, ch_cluster **out)
{
    static const char *const address[] = {"w0:1", "w1:1", "w2:1", "w3:1"};
    growing                 *g = self;

    if (g->fails)
        return g->is_silent ? CH_UNAVAILABLE : ch_fail(CH_UNAVAILABLE, "nobody is at home");
    g->n_asked++;
    return ch_cluster_new(1, &(ch_cluster_job){"worker", g->n_asked, address, NULL}, out);
}

static ch_status growing_self(void *self, ch_resolver_self *out)
{
    (void)self;
    memset(out->task_type, 'w', sizeof(out->task_type)); /* not terminated */
    memset(out->rpc_layer, 'r', sizeof(out->rpc_layer));
    out->task_id = 2;
    return CH_OK;
}

static void growing_close(void *self)
{
    ((growing *)self)->n_closed++;
}

static const ch_resolver_ops growing_ops = {"growing", growing_cluster, growing_self, NULL,
                                            NULL,      growing_close};

/* Returns no data about the task. */
static ch_status nothing_self(void *self, ch_resolver_self *out)
{
    (void)self, (void)out;
    return CH_OK;
}

static const ch_resolver_ops quiet_ops = {"quiet", growing_cluster, nothing_self, NULL,
                                          NULL,    growing_close};

static void resolver_getters_return_options_and_set_values(void **state) /* CR-1 */
{
    growing         g = {0};
    ch_resolver    *r = NULL;
    ch_accelerators a;

    t_ok(ch_resolver_new(&growing_ops, &g,
                         &(ch_resolver_options){"worker", true, 0, "grpc", "HPC"}, &r));
    assert_string_equal(ch_resolver_name(r), "growing");
    t_gives(r, "{\"worker\": [\"w0:1\"]}");
    t_master(r, NULL, -1, NULL, "grpc://w0:1");
    t_is_task(r, "worker", 0);
    t_has_layer(r, "grpc");
    assert_string_equal(ch_resolver_environment(r), "HPC");
    t_ok(ch_resolver_num_accelerators(r, NULL, -1, &a));
    t_ok(ch_resolver_set_task_type(r, "ps"));
    t_ok(ch_resolver_set_task_id(r, 5));
    t_ok(ch_resolver_set_rpc_layer(r, ""));
    t_is_task(r, "ps", 5);
    t_has_layer(r, "");
    assert_ptr_equal(ch_resolver_ref(r), r);
    ch_resolver_unref(r);
    assert_int_equal(g.n_closed, 0);
    ch_resolver_unref(r);
    assert_int_equal(g.n_closed, 1);
    (void)state;
}

static void resolver_uses_its_source_when_an_option_is_unset(void **state) /* CR-1 */
{
    growing      g = {0};
    ch_resolver *r = NULL;
    char         type[CH_JOB_BYTES], layer[CH_RPC_LAYER_BYTES];

    t_ok(
        ch_resolver_new(&growing_ops, &g, &(ch_resolver_options){"ps", true, 0, "", NULL}, &r));
    t_ok(ch_resolver_set_task_type(r, NULL));
    t_ok(ch_resolver_set_task_id(r, -1));
    t_ok(ch_resolver_set_rpc_layer(r, NULL));
    memset(type, 'w', sizeof(type) - 1);
    memset(layer, 'r', sizeof(layer) - 1);
    type[sizeof(type) - 1] = layer[sizeof(layer) - 1] = '\0';
    t_is_task(r, type, 2);
    t_has_layer(r, layer);
    ch_resolver_unref(r);
    (void)state;
}

static void resolver_master_has_the_rpc_layer_before_the_address(void **state) /* CR-2 */
{
    growing      g = {0};
    ch_resolver *r = NULL;

    t_ok(ch_resolver_new(&quiet_ops, &g, NULL, &r));
    t_master(r, "worker", 0, NULL, "w0:1");
    t_master(r, "worker", 0, "grpc", "grpc://w0:1");
    t_ok(ch_resolver_set_rpc_layer(r, "ucx"));
    t_master(r, "worker", 0, NULL, "ucx://w0:1");
    t_master(r, "worker", 0, "", "w0:1");
    ch_resolver_unref(r);
    (void)state;
}

static void resolver_getters_return_empty_text_and_no_id_by_default(void **state) /* CR-3 */
{
    growing      g = {0};
    ch_resolver *r = NULL;

    t_ok(ch_resolver_new(&quiet_ops, &g, NULL, &r));
    assert_string_equal(ch_resolver_environment(r), "");
    t_is_task(r, "", -1);
    t_has_layer(r, "");
    t_master(r, NULL, -1, NULL, "");
    t_master(r, "worker", -1, NULL, "");
    t_master(r, NULL, 0, NULL, "");
    ch_resolver_unref(r);
    (void)state;
}

static void resolver_reads_its_source_on_every_call(void **state) /* CR-4 */
{
    growing      g = {0};
    ch_resolver *r = NULL;

    t_ok(ch_resolver_new(&growing_ops, &g, NULL, &r));
    t_gives(r, "{\"worker\": [\"w0:1\"]}");
    t_gives(r, "{\"worker\": [\"w0:1\", \"w1:1\"]}");
    t_master(r, "worker", 2, "", "w2:1");
    t_gives(r, "{\"worker\": [\"w0:1\", \"w1:1\", \"w2:1\", \"w3:1\"]}");
    ch_resolver_unref(r);
    (void)state;
}

/* The devices belong to task 10 of worker2, and not to task 1 or to job worker. */
static void resolver_counts_accelerators_by_type(void **state) /* CR-5 */
{
    growing         g = {0};
    ch_resolver    *r = NULL;
    ch_accelerators a;

    t_ok(ch_resolver_new(&quiet_ops, &g, NULL, &r));
    t_ok(ch_resolver_num_accelerators(r, NULL, -1, &a));
    assert_int_equal(a.n, 2);
    assert_string_equal(a.item[0].type, "GPU");
    assert_int_equal(a.item[0].count, 3);
    assert_string_equal(a.item[1].type, "TPU");
    assert_int_equal(a.item[1].count, 1);
    t_ok(ch_resolver_num_accelerators(r, "worker2", 10, &a));
    assert_int_equal(a.n, 2);
    t_ok(ch_resolver_num_accelerators(r, "worker2", 1, &a));
    assert_int_equal(a.n, 0);
    t_ok(ch_resolver_num_accelerators(r, "worker", 10, &a));
    assert_int_equal(a.n, 0);
    t_ok(ch_resolver_num_accelerators(r, "worker", -1, &a)); /* no index: not a task */
    assert_int_equal(a.n, 2);
    ch_resolver_unref(r);
    (void)state;
}

static void resolver_error_begins_with_the_resolver_name(void **state)
{
    growing      g = {.fails = true};
    ch_resolver *r = NULL;
    ch_cluster  *c = NULL;

    t_ok(ch_resolver_new(&growing_ops, &g, NULL, &r));
    t_refused(ch_resolver_cluster(r, &c), CH_UNAVAILABLE, "growing: nobody is at home");
    g.is_silent = true;
    t_refused(ch_resolver_cluster(r, &c), CH_UNAVAILABLE,
              "growing: the peer cannot be reached");
    assert_null(c);
    ch_resolver_unref(r);
    (void)state;
}

static void resolver_rejects_text_that_does_not_fit(void **state)
{
    growing      g = {0};
    ch_resolver *r = NULL;
    char         text[CH_MASTER_BYTES], longer[80];

    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    t_ok(ch_resolver_new(&quiet_ops, &g, &(ch_resolver_options){.task_type = "worker"}, &r));
    t_refused(ch_resolver_task_type(r, text, 6), CH_OUT_OF_RANGE, "7 bytes");
    t_refused(ch_resolver_master(r, "worker", 0, NULL, text, 4), CH_OUT_OF_RANGE, "5 bytes");
    t_refused(ch_resolver_set_task_type(r, longer), CH_INVALID_ARGUMENT, "63");
    t_refused(ch_resolver_set_task_type(r, ""), CH_INVALID_ARGUMENT, "no name");
    t_refused(ch_resolver_set_rpc_layer(r, longer), CH_INVALID_ARGUMENT, "31");
    t_refused(ch_resolver_set_task_id(r, -2), CH_INVALID_ARGUMENT, "-2");
    t_refused(ch_resolver_master(r, longer, 0, NULL, text, sizeof(text)), CH_INVALID_ARGUMENT,
              "63");
    t_refused(ch_resolver_master(r, "worker", 0, longer, text, sizeof(text)),
              CH_INVALID_ARGUMENT, "31");
    g.n_asked = 0;
    t_refused(ch_resolver_master(r, "ps", 0, NULL, text, sizeof(text)), CH_INVALID_ARGUMENT,
              "No such job");
    t_is_task(r, "worker", -1);
    ch_resolver_unref(r);
    (void)state;
}

static void resolver_rejects_null_and_invalid_arguments(void **state)
{
    ch_resolver_ops no_name = growing_ops, no_close = growing_ops;
    ch_resolver    *r = NULL;
    ch_cluster     *c = NULL;
    char            text[8];
    int             id;

    no_name.name = NULL;
    no_close.close = NULL;
    t_refused(ch_resolver_new(NULL, NULL, NULL, &r), CH_INVALID_ARGUMENT, "ops");
    t_refused(ch_resolver_new(&no_name, NULL, NULL, &r), CH_INVALID_ARGUMENT, "a name");
    t_refused(ch_resolver_new(&no_close, NULL, NULL, &r), CH_INVALID_ARGUMENT, "close");
    t_refused(ch_resolver_new(&growing_ops, NULL, NULL, NULL), CH_INVALID_ARGUMENT, "out");
    t_refused(ch_resolver_new(&growing_ops, NULL,
                              &(ch_resolver_options){.has_task_id = true, .task_id = -1}, &r),
              CH_INVALID_ARGUMENT, "task id -1");
    t_refused(ch_resolver_cluster(NULL, &c), CH_INVALID_ARGUMENT, "the resolver");
    t_refused(ch_resolver_task_type(NULL, text, 8), CH_INVALID_ARGUMENT, "the resolver");
    t_refused(ch_resolver_task_id(NULL, &id), CH_INVALID_ARGUMENT, "the resolver");
    t_refused(ch_resolver_rpc_layer(NULL, text, 8), CH_INVALID_ARGUMENT, "the resolver");
    t_refused(ch_resolver_master(NULL, NULL, -1, NULL, text, 8), CH_INVALID_ARGUMENT,
              "the resolver");
    t_refused(ch_resolver_num_accelerators(NULL, NULL, -1, NULL), CH_INVALID_ARGUMENT,
              "the resolver");
    t_refused(ch_resolver_set_task_type(NULL, "x"), CH_INVALID_ARGUMENT, "the resolver");
    t_refused(ch_resolver_set_task_id(NULL, 0), CH_INVALID_ARGUMENT, "the resolver");
    t_refused(ch_resolver_set_rpc_layer(NULL, "x"), CH_INVALID_ARGUMENT, "the resolver");
    assert_string_equal(ch_resolver_name(NULL), "");
    assert_null(ch_resolver_environment(NULL));
    assert_null(ch_resolver_ref(NULL));
    ch_resolver_unref(NULL);
    assert_null(r);
    (void)state;
}

static int configure(void **state)
{
    (void)state;
    t_ok(ch_devices_configure(
        &(ch_devices_options){.spec = "CPU=2,GPU=3,TPU=1", .job = "worker2", .task = 10}));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resolver_getters_return_options_and_set_values),
        cmocka_unit_test(resolver_uses_its_source_when_an_option_is_unset),
        cmocka_unit_test(resolver_master_has_the_rpc_layer_before_the_address),
        cmocka_unit_test(resolver_getters_return_empty_text_and_no_id_by_default),
        cmocka_unit_test(resolver_reads_its_source_on_every_call),
        cmocka_unit_test(resolver_counts_accelerators_by_type),
        cmocka_unit_test(resolver_error_begins_with_the_resolver_name),
        cmocka_unit_test(resolver_rejects_text_that_does_not_fit),
        cmocka_unit_test(resolver_rejects_null_and_invalid_arguments),
    };

    return cmocka_run_group_tests(tests, configure, NULL);
}

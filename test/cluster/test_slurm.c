/* test/cluster/test_slurm.c -- the resolver for steps that Slurm has started.
 *
 * The tests set Slurm's environment variables and replace nvidia-smi by scripts.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <sys/stat.h>
#include <unistd.h>

#include "help.h"

static void step(const char *rank, const char *n, const char *hosts, const char *tasks)
{
    t_no_environment(NULL);
    setenv("SLURM_PROCID", rank, 1);
    setenv("SLURM_STEP_NUM_TASKS", n, 1);
    setenv("SLURM_STEP_NODELIST", hosts, 1);
    setenv("SLURM_STEP_TASKS_PER_NODE", tasks, 1);
}

static ch_resolver *resolver(const ch_slurm_options *opt)
{
    ch_resolver *r = NULL;

    t_ok(ch_resolver_slurm(opt, &r));
    return r;
}

static void refused(const ch_slurm_options *opt, ch_status rc, const char *words)
{
    ch_resolver *r = NULL;

    t_refused(ch_resolver_slurm(opt, &r), rc, words);
    assert_null(r);
}

static void gpus_are(ch_resolver *r, const char *want)
{
    char text[64];

    t_ok(ch_resolver_slurm_gpus(r, text, sizeof(text)));
    assert_string_equal(text, want);
}

static int per_task(ch_resolver *r)
{
    ch_accelerators a;

    t_ok(ch_resolver_num_accelerators(r, NULL, -1, &a));
    assert_int_equal(a.n, 1);
    assert_string_equal(a.item[0].type, "GPU");
    return a.item[0].count;
}

/* Makes a script the program nvidia-smi, and the only program in PATH. */
static void nvidia_smi(const char *script)
{
    static char folder[64], path[96];
    FILE       *f;

    if (folder[0] == '\0') {
        snprintf(folder, sizeof(folder), "/tmp/cohort-slurm-XXXXXX");
        assert_non_null(mkdtemp(folder));
        snprintf(path, sizeof(path), "%s/nvidia-smi", folder);
        setenv("PATH", folder, 1);
    }
    remove(path);
    if (script == NULL) {
        rmdir(folder);
        return;
    }
    mkdir(folder, 0700);
    f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "#!/bin/sh\n%s\n", script);
    fclose(f);
    chmod(path, 0700);
}

/* The default: a job of workers, whose ports begin at 8888, and GPUs that are detected. */
static void slurm_resolver_gives_workers_from_port_8888_by_default(void **state) /* SL-1 */
{
    ch_resolver *r;

    step("1", "3", "n[1-2]", "2,1");
    setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3", 1);
    r = resolver(NULL);
    assert_string_equal(ch_resolver_name(r), "Slurm");
    t_gives(r, "{\"worker\": [\"n1:8888\", \"n1:8889\", \"n2:8888\"]}");
    t_has_layer(r, "grpc");
    t_is_task(r, "worker", 1);
    gpus_are(r, "2,3");
    assert_string_equal(getenv("CUDA_VISIBLE_DEVICES"), "0,1,2,3"); /* not changed */
    ch_resolver_unref(r);
    (void)state;
}

static void slurm_resolver_requires_only_the_variables_it_needs(void **state) /* SL-2 */
{
    ch_slurm_count   job[] = {{"worker", 2}}, host[] = {{"h", 2}};
    ch_slurm_options opt = {.gpus_per_node = CH_OFF};
    ch_resolver     *r;

    t_no_environment(NULL);
    refused(&opt, CH_NOT_FOUND, "SLURM_PROCID not found in environment");
    setenv("SLURM_PROCID", "0", 1);
    refused(&opt, CH_NOT_FOUND, "SLURM_STEP_NODELIST not found in environment");
    setenv("SLURM_STEP_NODELIST", "a,b", 1);
    refused(&opt, CH_NOT_FOUND, "SLURM_STEP_TASKS_PER_NODE not found in environment");
    setenv("SLURM_STEP_TASKS_PER_NODE", "1(x2)", 1);
    refused(&opt, CH_NOT_FOUND, "SLURM_STEP_NUM_TASKS not found in environment");
    opt.job = job;
    opt.n_jobs = 1;
    r = resolver(&opt);
    ch_resolver_unref(r);
    unsetenv("SLURM_STEP_TASKS_PER_NODE");
    opt.tasks_per_node = 1;
    r = resolver(&opt);
    ch_resolver_unref(r);
    unsetenv("SLURM_STEP_NODELIST");
    opt.host = host;
    opt.n_hosts = 1;
    r = resolver(&opt);
    t_gives(r, "{\"worker\": [\"h:8888\", \"h:8889\"]}");
    ch_resolver_unref(r);
    setenv("SLURM_PROCID", "one", 1);
    refused(&opt, CH_INVALID_ARGUMENT, "SLURM_PROCID=\"one\"");
    setenv("SLURM_PROCID", "2", 1);
    refused(&opt, CH_INVALID_ARGUMENT, "SLURM_PROCID is 2, and there are 2 tasks");
    (void)state;
}

static void slurm_resolver_takes_tasks_per_node_and_hosts_from_options(void **state) /* SL-6 */
{
    ch_slurm_count   host[] = {{"b", 2}, {"a", 1}};
    ch_slurm_options opt = {.gpus_per_node = CH_OFF, .tasks_per_node = 2};
    ch_resolver     *r;

    step("0", "4", "b,a", "1(x2)");
    r = resolver(&opt);
    t_gives(r, "{\"worker\": [\"b:8888\", \"b:8889\", \"a:8888\", \"a:8889\"]}");
    ch_resolver_unref(r);
    setenv("SLURM_STEP_NUM_TASKS", "3", 1);
    opt = (ch_slurm_options){.gpus_per_node = CH_OFF, .n_hosts = 2, .host = host};
    r = resolver(&opt);
    t_gives(r, "{\"worker\": [\"b:8888\", \"b:8889\", \"a:8888\"]}");
    ch_resolver_unref(r);
    setenv("SLURM_STEP_TASKS_PER_NODE", "1(x3)", 1);
    refused(&(ch_slurm_options){.gpus_per_node = CH_OFF}, CH_INVALID_ARGUMENT,
            "2 hosts, SLURM_STEP_TASKS_PER_NODE tasks for 3");
    (void)state;
}

/* If CUDA_VISIBLE_DEVICES is empty, or there is no nvidia-smi, there are no GPUs. */
static void slurm_resolver_counts_visible_gpus(void **state) /* SL-7 */
{
    static const struct {
        const char *visible;
        int         n;
    } row[] = {{"0,1,2", 3}, {"GPU-8f2e", 1}, {"", 0}};
    ch_resolver *r;

    step("0", "1", "a", "1");
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        setenv("CUDA_VISIBLE_DEVICES", row[i].visible, 1);
        r = resolver(NULL);
        assert_int_equal(per_task(r), row[i].n);
        ch_resolver_unref(r);
    }
    unsetenv("CUDA_VISIBLE_DEVICES");
    nvidia_smi(
        "[ \"$*\" = --list-gpus ] && echo 'GPU 0: A (UUID: GPU 9)'; echo 'A GPU 1'; echo "
        "'GPUS 1'; echo 'GPU 1: B'");
    r = resolver(NULL);
    assert_int_equal(per_task(r), 2);
    ch_resolver_unref(r);
    nvidia_smi("echo 'GPU 0: A'; exit 9");
    refused(NULL, CH_FAILED_PRECONDITION, "nvidia-smi --list-gpus failed, status 9");
    nvidia_smi("kill -9 $$");
    refused(NULL, CH_FAILED_PRECONDITION, "signal 9");
    nvidia_smi(NULL);
    r = resolver(NULL);
    assert_int_equal(per_task(r), 0);
    ch_resolver_unref(r);
    (void)state;
}

static void slurm_resolver_divides_the_gpus_of_a_node_among_its_tasks(void **state) /* SL-8 */
{
    ch_resolver *r;

    step("0", "4", "a,b", "3,1");
    r = resolver(&(ch_slurm_options){.gpus_per_node = 8});
    assert_int_equal(per_task(r), 2);
    ch_resolver_unref(r);
    (void)state;
}

static void slurm_resolver_rejects_more_gpus_or_tasks_than_there_are(void **state) /* SL-9 */
{
    ch_slurm_count job[] = {{"worker", 3}, {"ps", 2}};

    step("0", "4", "a,b", "3,1");
    refused(&(ch_slurm_options){.gpus_per_node = 8, .gpus_per_task = 3}, CH_FAILED_PRECONDITION,
            "3 tasks of 3, and there are 8");
    refused(&(ch_slurm_options){.gpus_per_node = CH_OFF, .n_jobs = 2, .job = job},
            CH_FAILED_PRECONDITION, "Requested 5 tasks but only 4 were assigned");
    job[0].tasks = 1;
    refused(&(ch_slurm_options){.gpus_per_node = CH_OFF, .n_jobs = 2, .job = job},
            CH_FAILED_PRECONDITION, "Requested 3 tasks but 4 were assigned");
    refused(&(ch_slurm_options){.gpus_per_node = CH_OFF, .port_base = 65534},
            CH_INVALID_ARGUMENT, "3 tasks on a host, port_base 65534");
    refused(&(ch_slurm_options){.gpus_per_node = CH_OFF, .port_base = -1}, CH_INVALID_ARGUMENT,
            "port_base is -1");
    refused(&(ch_slurm_options){.gpus_per_node = -2}, CH_INVALID_ARGUMENT,
            "gpus_per_node is -2");
    refused(&(ch_slurm_options){.tasks_per_node = -2}, CH_INVALID_ARGUMENT, "tasks_per_node");
    refused(&(ch_slurm_options){.n_jobs = 1}, CH_INVALID_ARGUMENT, "1 jobs");
    refused(&(ch_slurm_options){.n_jobs = 1, .job = &(ch_slurm_count){NULL, 1}},
            CH_INVALID_ARGUMENT, "no name");
    t_refused(ch_resolver_slurm(NULL, NULL), CH_INVALID_ARGUMENT, "out");
    (void)state;
}

static void slurm_jobs_take_their_tasks_in_the_order_of_their_names(void **state) /* SL-10 */
{
    static const struct {
        const char *rank, *type;
        int         id;
        const char *gpus;
    } row[] = {
        {"0", "a", 0, "0,1"}, {"1", "a", 1, "2,3"}, {"2", "b", 0, "0,1"}, {"3", "c", 0, "2,3"}};
    ch_slurm_count job[] = {{"c", 1}, {"b", 1}, {"a", 2}};

    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        ch_resolver *r;

        step(row[i].rank, "4", "y,x", "2(x2)");
        r = resolver(&(ch_slurm_options){
            .n_jobs = 3, .job = job, .port_base = 5000, .gpus_per_node = 4});
        t_gives(r,
                "{\"a\": [\"y:5000\", \"y:5001\"], \"b\": [\"x:5000\"], \"c\": [\"x:5001\"]}");
        t_is_task(r, row[i].type, row[i].id);
        gpus_are(r, row[i].gpus);
        ch_resolver_unref(r);
    }
    (void)state;
}

static void slurm_resolver_knows_its_task_after_the_cluster_is_read(void **state) /* SL-11 */
{
    ch_resolver *r;

    step("1", "2", "a,b", "1(x2)");
    r = resolver(&(ch_slurm_options){.gpus_per_node = CH_OFF});
    t_is_task(r, "", -1);
    t_gives(r, "{\"worker\": [\"a:8888\", \"b:8888\"]}");
    t_is_task(r, "worker", 1);
    ch_resolver_unref(r);
    (void)state;
}

static void slurm_resolver_returns_master_and_accelerators(void **state) /* SL-12 */
{
    ch_resolver *r;
    char         text[4];

    step("1", "2", "a,b", "1(x2)");
    r = resolver(&(ch_slurm_options){.gpus_per_node = 2});
    t_master(r, NULL, -1, NULL, "");
    t_master(r, "worker", 0, NULL, "grpc://a:8888");
    t_master(r, NULL, -1, NULL, "grpc://b:8888");
    t_master(r, "worker", 0, "", "a:8888");
    assert_int_equal(per_task(r), 2);
    t_refused(ch_resolver_slurm_gpus(r, text, 3), CH_OUT_OF_RANGE, "4 bytes");
    t_ok(ch_resolver_slurm_gpus(r, text, 4));
    assert_string_equal(text, "0,1");
    t_refused(ch_resolver_slurm_gpus(NULL, text, 4), CH_INVALID_ARGUMENT, "not Slurm's");
    ch_resolver_unref(r);
    r = t_simple("{}", NULL);
    t_refused(ch_resolver_slurm_gpus(r, text, 4), CH_INVALID_ARGUMENT, "not Slurm's");
    ch_resolver_unref(r);
    (void)state;
}

static void slurm_resolver_gives_one_parameter_server_and_four_workers(void **state) /* SL-13 */
{
    ch_slurm_count job[] = {{"ps", 1}, {"worker", 4}};
    ch_resolver   *r;

    step("1", "5", "t02n13,t02n41,t02n43", "2(x2),1");
    r = resolver(
        &(ch_slurm_options){.n_jobs = 2, .job = job, .gpus_per_node = 4, .gpus_per_task = 2});
    t_gives(r, "{\"ps\": [\"t02n13:8888\"], \"worker\": [\"t02n13:8889\", \"t02n41:8888\", "
               "\"t02n41:8889\", \"t02n43:8888\"]}");
    t_is_task(r, "worker", 0);
    gpus_are(r, "2,3");
    ch_resolver_unref(r);
    (void)state;
}

/* The reference fails in this case. */
static void slurm_resolver_accepts_nodes_without_gpus(void **state) /* SL-14 */
{
    ch_resolver *r;

    step("0", "2", "a", "2");
    r = resolver(&(ch_slurm_options){.gpus_per_node = 4, .gpus_per_task = CH_OFF});
    t_gives(r, "{\"worker\": [\"a:8888\", \"a:8889\"]}");
    assert_int_equal(per_task(r), 0);
    gpus_are(r, "");
    ch_resolver_unref(r);
    (void)state;
}

/* The reference sorts hosts by name, so ranks get the addresses of other hosts. */
static void slurm_hosts_are_in_the_order_of_their_ranks(void **state) /* SL-15 */
{
    ch_resolver *r;

    step("0", "2", "n[9-10]", "1(x2)");
    r = resolver(&(ch_slurm_options){.gpus_per_node = CH_OFF});
    t_gives(r, "{\"worker\": [\"n9:8888\", \"n10:8888\"]}");
    ch_resolver_unref(r);
    step("1", "3", "a,b", "2,1");
    setenv("SLURM_DISTRIBUTION", "cyclic:block", 1);
    r = resolver(&(ch_slurm_options){.gpus_per_node = 2});
    t_gives(r, "{\"worker\": [\"a:8888\", \"b:8888\", \"a:8889\"]}");
    gpus_are(r, "0");
    ch_resolver_unref(r);
    setenv("SLURM_DISTRIBUTION", "block", 1);
    r = resolver(&(ch_slurm_options){.gpus_per_node = 2});
    t_gives(r, "{\"worker\": [\"a:8888\", \"a:8889\", \"b:8888\"]}");
    ch_resolver_unref(r);
    setenv("SLURM_DISTRIBUTION", "plane=2", 1);
    refused(&(ch_slurm_options){.gpus_per_node = CH_OFF}, CH_FAILED_PRECONDITION, "plane=2");
    (void)state;
}

static ch_status ask(void *arg)
{
    ch_slurm_count job[] = {{"ps", 1}, {"worker", 4}};
    ch_resolver   *r = NULL;
    ch_cluster    *c = NULL;
    ch_status      rc = ch_resolver_slurm(
             &(ch_slurm_options){.n_jobs = 2, .job = job, .gpus_per_node = CH_OFF}, &r);

    (void)arg;
    if (rc == CH_OK)
        rc = ch_resolver_cluster(r, &c);
    ch_cluster_unref(c);
    ch_resolver_unref(r);
    return rc;
}

static void slurm_resolver_leaks_nothing_when_out_of_memory(void **state)
{
    step("1", "5", "t02n[13,41,43]", "2(x2),1");
    t_out_of_memory(ask, NULL);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slurm_resolver_gives_workers_from_port_8888_by_default),
        cmocka_unit_test(slurm_resolver_requires_only_the_variables_it_needs),
        cmocka_unit_test(slurm_resolver_takes_tasks_per_node_and_hosts_from_options),
        cmocka_unit_test(slurm_resolver_counts_visible_gpus),
        cmocka_unit_test(slurm_resolver_divides_the_gpus_of_a_node_among_its_tasks),
        cmocka_unit_test(slurm_resolver_rejects_more_gpus_or_tasks_than_there_are),
        cmocka_unit_test(slurm_jobs_take_their_tasks_in_the_order_of_their_names),
        cmocka_unit_test(slurm_resolver_knows_its_task_after_the_cluster_is_read),
        cmocka_unit_test(slurm_resolver_returns_master_and_accelerators),
        cmocka_unit_test(slurm_resolver_gives_one_parameter_server_and_four_workers),
        cmocka_unit_test(slurm_resolver_accepts_nodes_without_gpus),
        cmocka_unit_test(slurm_hosts_are_in_the_order_of_their_ranks),
        cmocka_unit_test(slurm_resolver_leaks_nothing_when_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

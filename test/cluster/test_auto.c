/* test/cluster/test_auto.c -- the resolver that finds the cluster in the environment.
 *
 * The tests set the variables of COHORT_CLUSTER, TF_CONFIG, Slurm, MPI and torchrun, alone and
 * together, and check the cluster, the task, and the errors if they contradict each other.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

static char told[512]; /* the last record of the log */

static void keep(const ch_log_record *r, void *arg)
{
    if (strcmp(r->code, "cluster") == 0)
        snprintf(told, sizeof(told), "%s", r->text);
    (void)arg;
}

/* Sets variables, "NAME=value" each; the last is NULL. */
static void environment(const char *const *entry)
{
    t_no_environment(NULL);
    for (; *entry != NULL; entry++) {
        char name[64];

        snprintf(name, sizeof(name), "%.*s", (int)strcspn(*entry, "="), *entry);
        setenv(name, *entry + strlen(name) + 1, 1);
    }
}

#define ENVIRONMENT(...) environment((const char *const[]){__VA_ARGS__, NULL})

static ch_resolver *resolver(const ch_auto_options *opt)
{
    ch_resolver *r = NULL;

    t_ok(ch_resolver_auto(opt, &r));
    return r;
}

/* Checks that the cluster is found in the source `name`, with this task. */
static void found(const char *name, const char *cluster, const char *type, int id)
{
    ch_resolver *r = resolver(NULL);

    assert_string_equal(ch_resolver_name(r), name);
    t_gives(r, cluster);
    t_is_task(r, type, id);
    ch_resolver_unref(r);
}

static void disagree(const char *one, const char *other)
{
    ch_resolver *r = NULL;

    t_refused(ch_resolver_auto(NULL, &r), CH_FAILED_PRECONDITION, one);
    t_refused(ch_resolver_auto(NULL, &r), CH_FAILED_PRECONDITION, other);
    t_refused(ch_resolver_auto(NULL, &r), CH_FAILED_PRECONDITION, "disagree");
    assert_null(r);
}

static const char *const json = "{\"cluster\": {\"worker\": [\"a:1\", \"b:1\"]}, \"task\": "
                                "{\"type\": \"worker\", \"index\": 1}}";

static void auto_resolver_finds_no_cluster_when_no_variable_is_set(void **state)
{
    t_no_environment(NULL);
    found("none", "{}", "", -1);
    assert_string_equal(told, "no cluster: this process is alone");
    setenv("TF_CONFIG", "{}", 1);
    found("none", "{}", "", -1);
    setenv("TF_CONFIG", "", 1);
    found("none", "{}", "", -1);
    (void)state;
}

static void auto_resolver_prefers_options_over_the_environment(void **state)
{
    ch_cluster  *c = t_cluster("ps|x:1,worker|y:1");
    ch_resolver *r;

    ENVIRONMENT("COHORT_CLUSTER=worker|z:1", "RANK=3", "WORLD_SIZE=8");
    r = resolver(&(ch_auto_options){.cluster = c, .mine = {"worker", true, 0, "grpc", NULL}});
    assert_string_equal(ch_resolver_name(r), "options");
    t_gives(r, "{\"ps\": [\"x:1\"], \"worker\": [\"y:1\"]}");
    t_is_task(r, "worker", 0);
    t_master(r, NULL, -1, NULL, "grpc://y:1");
    ch_resolver_unref(r);
    ENVIRONMENT("COHORT_TASK=ps/0", "COHORT_CLUSTER=worker|z:1");
    r = resolver(&(ch_auto_options){.cluster = c});
    t_is_task(r, "ps", 0);
    ch_resolver_unref(r);
    r = resolver(&(ch_auto_options){.cluster = c, .mine.task_type = "worker"});
    t_is_task(r, "worker", -1);
    ch_resolver_unref(r);
    ch_cluster_unref(c);
    (void)state;
}

static void auto_resolver_reads_cohort_cluster_and_cohort_task(void **state) /* SRV-21 */
{
    ch_resolver *r;

    ENVIRONMENT("COHORT_CLUSTER=chief|c:1,worker|a:1;b:1", "COHORT_TASK=worker/1");
    found("COHORT", "{\"chief\": [\"c:1\"], \"worker\": [\"a:1\", \"b:1\"]}", "worker", 1);
    assert_string_equal(told, "cluster from COHORT: chief 1, worker 2; this is worker/1");
    ENVIRONMENT("COHORT_CLUSTER=chief|c:1,worker|a:1", "COHORT_TASK=chief");
    found("COHORT", "{\"chief\": [\"c:1\"], \"worker\": [\"a:1\"]}", "chief", 0);
    ENVIRONMENT("COHORT_CLUSTER= {\"worker\": {\"4\": \"a:1\"}}");
    found("COHORT", "{\"worker\": {\"4\": \"a:1\"}}", "", -1);
    t_no_environment(NULL);
    setenv("COHORT_CLUSTER", json, 1);
    found("COHORT", "{\"worker\": [\"a:1\", \"b:1\"]}", "worker", 1);
    setenv("COHORT_TASK", "worker/0", 1);
    found("COHORT", "{\"worker\": [\"a:1\", \"b:1\"]}", "worker", 0);
    r = resolver(&(ch_auto_options){.mine = {"worker", true, 1, NULL, NULL}});
    t_is_task(r, "worker", 1);
    setenv("COHORT_CLUSTER", "worker|a:1;n:1", 1); /* the environment is read each time */
    t_master(r, NULL, -1, NULL, "n:1");
    ch_resolver_unref(r);
    (void)state;
}

static void auto_resolver_rejects_malformed_cohort_variables(void **state)
{
    static const char *const bad[] = {"COHORT_TASK=worker/x", "COHORT_TASK=/1",
                                      "COHORT_TASK=worker/-1", "COHORT_TASK=a b/1"};
    ch_resolver             *r = NULL;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ENVIRONMENT("COHORT_CLUSTER=worker|a:1", bad[i]);
        assert_int_equal(ch_resolver_auto(NULL, &r), CH_INVALID_ARGUMENT);
    }
    ENVIRONMENT("COHORT_CLUSTER=worker");
    t_refused(ch_resolver_auto(NULL, &r), CH_INVALID_ARGUMENT, "COHORT: cluster: \"worker\"");
    ENVIRONMENT("COHORT_TASK=worker/1");
    t_refused(ch_resolver_auto(NULL, &r), CH_FAILED_PRECONDITION, "COHORT_TASK");
    ENVIRONMENT("TF_CONFIG={");
    t_refused(ch_resolver_auto(NULL, &r), CH_INVALID_ARGUMENT, "TF_CONFIG");
    ENVIRONMENT("RANK=two", "WORLD_SIZE=3");
    t_refused(ch_resolver_auto(NULL, &r), CH_INVALID_ARGUMENT, "torchrun: RANK=\"two\"");
    ENVIRONMENT("RANK=3", "WORLD_SIZE=3");
    t_refused(ch_resolver_auto(NULL, &r), CH_INVALID_ARGUMENT, "RANK is 3, and there are 3");
    t_refused(ch_resolver_auto(NULL, NULL), CH_INVALID_ARGUMENT, "out");
    assert_null(r);
    (void)state;
}

static void auto_resolver_reads_the_variables_of_each_launcher(void **state)
{
    t_no_environment(NULL);
    setenv("TF_CONFIG", json, 1);
    found("TF_CONFIG", "{\"worker\": [\"a:1\", \"b:1\"]}", "worker", 1);
    ENVIRONMENT("RANK=2", "WORLD_SIZE=3", "MASTER_ADDR=h", "MASTER_PORT=29500");
    found("torchrun", "{\"worker\": [\"h:29500\", \"\", \"\"]}", "worker", 2);
    ENVIRONMENT("RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=::1", "MASTER_PORT=29500");
    found("torchrun", "{\"worker\": [\"[::1]:29500\"]}", "worker", 0);
    ENVIRONMENT("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2");
    found("Open MPI", "{\"worker\": [\"\", \"\"]}", "worker", 1);
    ENVIRONMENT("PMI_RANK=1", "PMI_SIZE=2");
    found("PMI", "{\"worker\": [\"\", \"\"]}", "worker", 1);
    ENVIRONMENT("SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NODELIST=n[1-2]",
                "SLURM_STEP_TASKS_PER_NODE=1(x2)");
    found("Slurm", "{\"worker\": [\"n1:8888\", \"n2:8888\"]}", "worker", 1);
    assert_string_equal(told, "cluster from Slurm: worker 2; this is worker/1");
    ENVIRONMENT("SLURM_PROCID=0", "SLURM_JOB_ID=7"); /* a batch script is not a step */
    found("none", "{}", "", -1);
    (void)state;
}

static void auto_resolver_passes_slurm_options_on(void **state)
{
    ch_slurm_count job[] = {{"worker", 1}, {"ps", 1}};
    ch_resolver   *r;

    ENVIRONMENT("SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NODELIST=n[1-2]",
                "SLURM_STEP_TASKS_PER_NODE=1(x2)");
    r = resolver(&(ch_auto_options){
        .slurm = &(ch_slurm_options){.n_jobs = 2, .job = job, .gpus_per_node = CH_OFF}});
    t_gives(r, "{\"ps\": [\"n1:8888\"], \"worker\": [\"n2:8888\"]}");
    t_is_task(r, "ps", 0);
    ch_resolver_unref(r);
    (void)state;
}

static void auto_resolver_uses_the_first_of_several_sources_that_agree(void **state)
{
    ENVIRONMENT("RANK=1", "WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2",
                "PMI_RANK=1", "PMI_SIZE=2", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2",
                "SLURM_STEP_NODELIST=n[1-2]", "SLURM_STEP_TASKS_PER_NODE=1(x2)");
    found("torchrun", "{\"worker\": [\"\", \"\"]}", "worker", 1);
    setenv("TF_CONFIG", json, 1);
    found("TF_CONFIG", "{\"worker\": [\"a:1\", \"b:1\"]}", "worker", 1);
    setenv("COHORT_CLUSTER", "worker|a:1;b:1", 1);
    setenv("COHORT_TASK", "worker/1", 1);
    found("COHORT", "{\"worker\": [\"a:1\", \"b:1\"]}", "worker", 1);
    unsetenv("COHORT_CLUSTER"); /* only the task, equal to that of the other sources */
    found("TF_CONFIG", "{\"worker\": [\"a:1\", \"b:1\"]}", "worker", 1);
    (void)state;
}

static void auto_resolver_names_two_sources_that_disagree(void **state)
{
    ENVIRONMENT("COHORT_CLUSTER=worker|a:1;b:2");
    setenv("TF_CONFIG", json, 1);
    disagree("COHORT", "TF_CONFIG");
    ENVIRONMENT("COHORT_CLUSTER=worker|a:1;b:1", "COHORT_TASK=worker/0");
    setenv("TF_CONFIG", json, 1);
    disagree("COHORT", "worker/0, and worker/1");
    unsetenv("COHORT_CLUSTER");
    disagree("COHORT_TASK", "TF_CONFIG");
    ENVIRONMENT("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "PMI_RANK=0", "PMI_SIZE=2");
    disagree("Open MPI", "PMI");
    ENVIRONMENT("RANK=0", "WORLD_SIZE=2", "PMI_RANK=0", "PMI_SIZE=3");
    disagree("torchrun", "2 tasks, and 3 tasks");
    t_no_environment(NULL);
    setenv("TF_CONFIG", json, 1);
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "2", 1);
    disagree("TF_CONFIG", "task 1 of 2, and task 0");
    (void)state;
}

/* If the sources number the ranks in different ways, only the counts are compared. */
static void auto_resolver_compares_only_counts_when_ranks_are_ambiguous(void **state)
{
    ENVIRONMENT("COHORT_CLUSTER=ps|p:1,worker|a:1;b:1", "COHORT_TASK=worker/0", "RANK=2",
                "WORLD_SIZE=3");
    found("COHORT", "{\"ps\": [\"p:1\"], \"worker\": [\"a:1\", \"b:1\"]}", "worker", 0);
    setenv("WORLD_SIZE", "4", 1);
    disagree("COHORT", "3 tasks, and 4 tasks");
    setenv("COHORT_TASK", "evaluator", 1); /* counted, though not listed */
    found("COHORT", "{\"ps\": [\"p:1\"], \"worker\": [\"a:1\", \"b:1\"]}", "evaluator", 0);
    ENVIRONMENT("COHORT_CLUSTER={\"worker\": {\"4\": \"a:1\"}}", "COHORT_TASK=worker/4",
                "RANK=4", "WORLD_SIZE=8");
    found("COHORT", "{\"worker\": {\"4\": \"a:1\"}}", "worker", 4);
    (void)state;
}

/* srun starts an mpirun or torchrun on each node, which starts the processes. */
static void auto_resolver_does_not_compare_srun_with_the_launcher_it_started(void **state)
{
    ENVIRONMENT("RANK=5", "WORLD_SIZE=8", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2",
                "SLURM_STEP_NODELIST=n[1-2]", "SLURM_STEP_TASKS_PER_NODE=1(x2)");
    found("torchrun", "{\"worker\": [\"\", \"\", \"\", \"\", \"\", \"\", \"\", \"\"]}",
          "worker", 5);
    (void)state;
}

static void auto_resolver_reads_only_the_source_named_in_options(void **state)
{
    ch_resolver *r;

    ENVIRONMENT("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "PMI_RANK=0", "PMI_SIZE=2",
                "COHORT_TASK=ps/0");
    r = resolver(&(ch_auto_options){.from = "PMI"});
    t_is_task(r, "worker", 0);
    ch_resolver_unref(r);
    r = NULL;
    t_refused(ch_resolver_auto(&(ch_auto_options){.from = "torchrun"}, &r), CH_NOT_FOUND,
              "RANK) not found in environment");
    t_refused(ch_resolver_auto(&(ch_auto_options){.from = "mpi"}, &r), CH_INVALID_ARGUMENT,
              "no source \"mpi\"");
    assert_null(r);
    (void)state;
}

static ch_status ask(void *arg)
{
    ch_resolver *r = NULL;
    ch_cluster  *c = NULL;
    ch_status    rc = ch_resolver_auto(NULL, &r);

    (void)arg;
    if (rc == CH_OK)
        rc = ch_resolver_cluster(r, &c);
    ch_cluster_unref(c);
    ch_resolver_unref(r);
    return rc;
}

static void auto_resolver_leaks_nothing_when_out_of_memory(void **state)
{
    ENVIRONMENT("RANK=1", "WORLD_SIZE=2", "COHORT_CLUSTER=worker|a:1;b:1", "SLURM_PROCID=1",
                "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NODELIST=n[1-2]",
                "SLURM_STEP_TASKS_PER_NODE=1(x2)");
    t_out_of_memory(ask, NULL);
    t_no_environment(NULL);
    t_out_of_memory(ask, NULL);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(auto_resolver_finds_no_cluster_when_no_variable_is_set),
        cmocka_unit_test(auto_resolver_prefers_options_over_the_environment),
        cmocka_unit_test(auto_resolver_reads_cohort_cluster_and_cohort_task),
        cmocka_unit_test(auto_resolver_rejects_malformed_cohort_variables),
        cmocka_unit_test(auto_resolver_reads_the_variables_of_each_launcher),
        cmocka_unit_test(auto_resolver_passes_slurm_options_on),
        cmocka_unit_test(auto_resolver_uses_the_first_of_several_sources_that_agree),
        cmocka_unit_test(auto_resolver_names_two_sources_that_disagree),
        cmocka_unit_test(auto_resolver_compares_only_counts_when_ranks_are_ambiguous),
        cmocka_unit_test(auto_resolver_does_not_compare_srun_with_the_launcher_it_started),
        cmocka_unit_test(auto_resolver_reads_only_the_source_named_in_options),
        cmocka_unit_test(auto_resolver_leaks_nothing_when_out_of_memory),
    };

    ch_log_set_sink(keep, NULL, CH_LOG_INFO);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test/save/test_servers.c -- checkpoints of jobs with parameter servers: the program of the
 * seed page, and servers that are lost.
 *
 * The program of row B25 runs in child processes, because it is started again. It leaves its
 * numbers as text in the file "numbers".
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <sys/wait.h>

#include "help.h"

enum { EPOCHS = 3, EPOCH_STEPS = 4 };

/* ---- the program ---- */

typedef struct program {
    ch_local_cluster      *cluster;
    ch_strategy           *st;
    ch_coordinator        *coordinator;
    ch_var                *n, *w;
    ch_optimizer          *optimizer;
    ch_metric             *rows;
    ch_function           *step;
    ch_per_worker         *data;
    ch_checkpoint         *checkpoint;
    ch_checkpoint_manager *manager;
} program;

static void count_step(ch_step *s, void *arg)
{
    program *p = arg;
    ch_node *batch = ch_step_in(s, 0);

    ch_var_assign_add(s, p->n, ch_number(s, 1));
    ch_optimizer_minimize(p->optimizer, s, ch_var_read(s, p->w), 1, &p->w);
    ch_metric_update(p->rows, s, NULL, ch_cast(ch_rows(batch), CH_F32), NULL);
}

static ch_var *new_scalar(ch_strategy *st, const char *name)
{
    ch_var *v = NULL;

    t_ok(ch_var_new(st, &(ch_var_spec){.name = name}, &v));
    return v;
}

static void begin_program(program *p, const char *directory)
{
    ch_dataset *d = ch_dataset_repeat(ch_dataset_batch(ch_dataset_range(0, 8, 1), 2, NULL), -1);

    *p = (program){.cluster = NULL};
    t_ok(ch_cluster_local(&(ch_local_cluster_options){.ps = 2, .workers = 3}, &p->cluster));
    t_ok(ch_strategy_parameter_server(ch_local_cluster_resolver(p->cluster), NULL, &p->st));
    t_ok(ch_coordinator_new(p->st, NULL, &p->coordinator));
    p->n = new_scalar(p->st, "n");
    p->w = new_scalar(p->st, "w");
    t_ok(ch_optimizer_sgd(0.5, NULL, NULL, &p->optimizer));
    t_ok(ch_optimizer_build(p->optimizer, 1, &p->w));
    t_ok(ch_metric_new(p->st, ch_metric_named(ch_metric_sum(), "rows"), &p->rows));
    t_ok(ch_function_new("count", count_step, p, &p->step));
    t_ok(ch_coordinator_create_per_worker_dataset(p->coordinator, d, &p->data));
    t_ok(ch_checkpoint_new(&p->checkpoint));
    t_ok(ch_checkpoint_add_var(p->checkpoint, "n", p->n));
    t_ok(ch_checkpoint_add_var(p->checkpoint, "w", p->w));
    t_ok(ch_checkpoint_add_optimizer(p->checkpoint, "optimizer", p->optimizer));
    t_ok(ch_checkpoint_add_metric(p->checkpoint, "rows", p->rows));
    t_ok(ch_checkpoint_add_function(p->checkpoint, "step", p->step));
    t_ok(ch_checkpoint_add_per_worker(p->checkpoint, "data", p->data));
    t_ok(ch_checkpoint_manager_new(p->checkpoint, directory,
                                   &(ch_manager_options){.max_to_keep = 2}, &p->manager));
    ch_dataset_unref(d);
}

static void end_program(program *p)
{
    ch_checkpoint_manager_unref(p->manager);
    ch_checkpoint_unref(p->checkpoint);
    ch_per_worker_unref(p->data);
    ch_function_unref(p->step);
    ch_metric_unref(p->rows);
    ch_optimizer_unref(p->optimizer);
    ch_var_unref(p->n);
    ch_var_unref(p->w);
    ch_coordinator_unref(p->coordinator);
    ch_strategy_unref(p->st);
    ch_local_cluster_unref(p->cluster);
}

static double value_of(ch_var *v)
{
    ch_tensor *t = NULL;
    double     x;

    t_ok(ch_var_get(v, &t));
    x = *(const float *)ch_tensor_data(t);
    ch_tensor_unref(t);
    return x;
}

static int64_t iterations_of(const program *p)
{
    int64_t n = 0;

    t_ok(ch_optimizer_iterations(p->optimizer, &n));
    return n;
}

/* Runs an epoch up to its join. If `is_killed`, a worker is killed in the middle. */
static void run_epoch(program *p, int epoch, bool is_killed)
{
    ch_per_worker *it = NULL;

    t_ok(ch_per_worker_iterate(p->data, &it));
    for (int i = 0; i < EPOCH_STEPS; i++) {
        t_ok(ch_coordinator_schedule(p->coordinator, p->step,
                                     &(ch_arguments){.n_each = 1, .each = &it}, NULL));
        if (is_killed && i == EPOCH_STEPS / 2)
            t_ok(ch_local_cluster_kill(p->cluster, "worker", epoch % 3));
    }
    t_ok(ch_coordinator_join(p->coordinator));
    if (is_killed)
        t_ok(ch_local_cluster_restart(p->cluster, "worker", epoch % 3));
    ch_per_worker_unref(it);
}

/* The program of the seed page: epochs of steps, a checkpoint after each. */
static void run_program(bool is_killed)
{
    program p;
    FILE   *f = fopen(t_path("numbers"), "w");
    int     epoch;
    double  rows = 0;

    assert_non_null(f);
    begin_program(&p, t_path("run"));
    t_ok(ch_checkpoint_manager_restore(p.manager, NULL, NULL));
    epoch = (int)(ch_function_runs(p.step) / EPOCH_STEPS);
    fprintf(f, "initial epoch %d\n", epoch);
    for (; epoch < EPOCHS; epoch++) {
        run_epoch(&p, epoch, is_killed);
        t_ok(ch_metric_result(p.rows, &rows));
        t_ok(ch_metric_reset(p.rows));
        fprintf(f, "rows %g n %g iterations %lld", rows, value_of(p.n),
                (long long)iterations_of(&p));
        t_ok(ch_metric_result(p.rows, &rows));
        fprintf(f, " reset %g\n", rows);
        t_ok(ch_checkpoint_manager_save(p.manager, false, NULL));
    }
    t_ok(ch_checkpoint_wait(p.checkpoint));
    fprintf(f, "n %g iterations %lld\n", value_of(p.n), (long long)iterations_of(&p));
    fclose(f);
    end_program(&p);
}

/* ---- its processes ---- */

static char numbers[1024];

/* Runs the program in a child process and reads its numbers. */
static void start_program(bool is_killed)
{
    int    status = 0;
    pid_t  id;
    FILE  *f;
    size_t n;

    fflush(NULL);
    id = fork();
    if (id == 0) {
        setenv("CMOCKA_TEST_ABORT", "1", 1);
        alarm(60);
        run_program(is_killed);
        _exit(0);
    }
    assert_true(id > 0 && waitpid(id, &status, 0) == id);
    assert_int_equal(status, 0);
    f = fopen(t_path("numbers"), "r");
    assert_non_null(f);
    n = fread(numbers, 1, sizeof(numbers) - 1, f);
    numbers[n] = '\0';
    fclose(f);
}

/* Fails unless the directory has the files of ckpt-2 and ckpt-3, and of no other checkpoint. */
static void check_files(void)
{
    static const char *const name[] = {
        "ckpt-2.index", "ckpt-2.data-00000-of-00002", "ckpt-2.data-00001-of-00002",
        "ckpt-3.index", "ckpt-3.data-00000-of-00002", "ckpt-3.data-00001-of-00002"};
    DIR                 *d = opendir(t_path("run"));
    const struct dirent *e;
    char                 latest[600];
    unsigned             found = 0;

    assert_non_null(d);
    while ((e = readdir(d)) != NULL) {
        unsigned which = 0;

        for (unsigned i = 0; i < 6; i++)
            which |= (unsigned)(strcmp(e->d_name, name[i]) == 0) << i;
        if (which == 0 && strstr(e->d_name, "ckpt-") != NULL)
            fail_msg("a file is left: %s", e->d_name);
        found |= which;
    }
    closedir(d);
    assert_int_equal(found, 63);
    t_ok(ch_checkpoint_find_latest(t_path("run"), latest, sizeof(latest)));
    assert_string_equal(strrchr(latest, '/'), "/ckpt-3");
}

static void run_twice(bool is_killed)
{
    start_program(is_killed);
    assert_string_equal(numbers, "initial epoch 0\n"
                                 "rows 8 n 4 iterations 4 reset 0\n"
                                 "rows 8 n 8 iterations 8 reset 0\n"
                                 "rows 8 n 12 iterations 12 reset 0\n"
                                 "n 12 iterations 12\n");
    check_files();
    start_program(is_killed);
    assert_string_equal(numbers, "initial epoch 3\nn 12 iterations 12\n");
    check_files();
}

static int remove_run(void **state)
{
    char command[256];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", t_path("run"));
    return system(command);
}

/* B25: the program of the coordinator keeps ckpt-2 and ckpt-3 of three epochs. Started again, it
 * begins at epoch 3, runs no step, and has n = 12. */
static void
server_program_keeps_two_checkpoints_and_runs_no_step_when_it_has_ended(void **state)
{
    (void)state;
    run_twice(false);
}

/* B25: the same when a worker is killed in the middle of each epoch. */
static void server_program_leaves_the_same_checkpoints_when_workers_are_killed(void **state)
{
    (void)state;
    run_twice(true);
}

/* ---- lost servers ---- */

/* Failures: a parameter server is lost during the cut. The job fails as it does without
 * checkpoints. The error names the last checkpoint, with which the program can be started
 * again. */
static void manager_names_the_last_checkpoint_when_a_server_is_lost(void **state)
{
    program p;

    (void)state;
    begin_program(&p, t_path("run"));
    run_epoch(&p, 0, false);
    t_ok(ch_checkpoint_manager_save(p.manager, true, NULL));
    t_ok(ch_checkpoint_wait(p.checkpoint));
    run_epoch(&p, 1, false);
    t_ok(ch_local_cluster_kill(p.cluster, "ps", 1));
    t_refused(ch_checkpoint_manager_save(p.manager, true, NULL), CH_UNAVAILABLE,
              "the last checkpoint is", "/run/ckpt-1");
    assert_non_null(strstr(ch_error_message(), "ps/1"));
    t_refused(ch_coordinator_join(p.coordinator), CH_UNAVAILABLE, "ps/1", "lost");
    end_program(&p);
    begin_program(&p, t_path("run")); /* the job is started again */
    t_ok(ch_checkpoint_manager_restore(p.manager, NULL, NULL));
    assert_int_equal(ch_function_runs(p.step), EPOCH_STEPS);
    assert_true(value_of(p.n) == EPOCH_STEPS);
    end_program(&p);
}

/* The same if a step or a join notices first. */
static void join_names_the_last_checkpoint_when_a_server_is_lost(void **state)
{
    program        p;
    ch_per_worker *it = NULL;
    const char    *at;

    (void)state;
    for (int run = 0; run < 2; run++) { /* saved, then restored */
        begin_program(&p, t_path("run"));
        if (run > 0)
            t_ok(ch_checkpoint_manager_restore(p.manager, NULL, NULL));
        for (int i = 0; i < 2 - 2 * run; i++) {
            run_epoch(&p, i, false);
            t_ok(ch_checkpoint_manager_save(p.manager, true, NULL));
        }
        t_ok(ch_checkpoint_wait(p.checkpoint));
        t_ok(ch_local_cluster_kill(p.cluster, "ps", 1));
        t_ok(ch_per_worker_iterate(p.data, &it));
        (void)!ch_coordinator_schedule(p.coordinator, p.step,
                                       &(ch_arguments){.n_each = 1, .each = &it}, NULL);
        t_refused(ch_coordinator_join(p.coordinator), CH_UNAVAILABLE, "ps/1",
                  "the last checkpoint is");
        assert_non_null(strstr(ch_error_message(), "/run/ckpt-2"));
        t_refused(ch_checkpoint_manager_save(p.manager, true, NULL), CH_UNAVAILABLE,
                  "not saved", "ps/1");
        at = strstr(ch_error_message(), "/run/ckpt-2");
        assert_true(at != NULL && strstr(at + 1, "/run/ckpt-2") == NULL); /* once */
        ch_per_worker_unref(it);
        end_program(&p);
    }
}

static void manager_says_that_there_is_no_checkpoint_when_a_server_is_lost(void **state)
{
    program p;

    (void)state;
    begin_program(&p, t_path("run"));
    run_epoch(&p, 0, false);
    t_ok(ch_local_cluster_kill(p.cluster, "ps", 0));
    t_refused(ch_checkpoint_manager_save(p.manager, true, NULL), CH_UNAVAILABLE, "ps/0",
              "has no checkpoint yet");
    end_program(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(
            server_program_keeps_two_checkpoints_and_runs_no_step_when_it_has_ended,
            remove_run),
        cmocka_unit_test_teardown(
            server_program_leaves_the_same_checkpoints_when_workers_are_killed, remove_run),
        cmocka_unit_test_teardown(manager_names_the_last_checkpoint_when_a_server_is_lost,
                                  remove_run),
        cmocka_unit_test_teardown(join_names_the_last_checkpoint_when_a_server_is_lost,
                                  remove_run),
        cmocka_unit_test_teardown(
            manager_says_that_there_is_no_checkpoint_when_a_server_is_lost, remove_run)};

    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}

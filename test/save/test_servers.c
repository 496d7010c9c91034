/* test/save/test_servers.c -- checkpoints of jobs with parameter servers: the program of the
 * seed page, servers that are lost, and variables with a copy on each worker.
 *
 * The program of row B25 runs in child processes, because it is started again. It leaves its
 * numbers as text in the file "numbers".
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <pthread.h>
#include <sys/wait.h>

#include "ckpt/ckpt.h"
#include "fail.h"

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

/* ---- data files of many servers ---- */

/* The threads that write data files. */
typedef struct writers {
    int       n_files, n_threads;
    int       fd[16];
    pthread_t of_file[16], thread[16];
    bool      is_shared; /* two threads have written to a file */
} writers;

static void note_writer(void *arg, const ch_file_op *op)
{
    writers  *w = arg;
    pthread_t self = pthread_self();
    int       i;

    if (op->kind == CH_FILE_OPEN && strstr(op->path, "many.data-") != NULL) {
        for (i = 0; i < w->n_files && w->fd[i] != op->fd; i++)
            ;
        assert_true(i < 16);
        w->fd[i] = op->fd;
        w->of_file[i] = self;
        w->n_files += i == w->n_files;
        for (i = 0; i < w->n_threads && !pthread_equal(w->thread[i], self); i++)
            ;
        assert_true(i < 16);
        w->thread[i] = self;
        w->n_threads += i == w->n_threads;
    }
    for (i = 0; i < w->n_files; i++) {
        if (w->fd[i] == op->fd && op->kind == CH_FILE_WRITE)
            w->is_shared = w->is_shared || !pthread_equal(w->of_file[i], self);
        else if (w->fd[i] == op->fd && op->kind == CH_FILE_CLOSE)
            w->fd[i] = -1; /* the number may be given to another file */
    }
}

/* A checkpoint has a data file for each server. A thread writes a file, and at most four write at
 * a time. */
static void data_files_are_written_by_at_most_four_threads(void **state)
{
    enum { SERVERS_OF_MANY = 7 };
    ch_local_cluster *cluster = NULL;
    ch_strategy      *st = NULL;
    ch_checkpoint    *c = NULL;
    ch_var           *v = NULL;
    writers           w = {.n_files = 0};
    char              name[40];

    t_ok(ch_cluster_local(&(ch_local_cluster_options){.ps = SERVERS_OF_MANY, .workers = 1},
                          &cluster));
    t_ok(ch_strategy_parameter_server(
        ch_local_cluster_resolver(cluster),
        &(ch_parameter_server_options){.partitioner = ch_partitioner_fixed(SERVERS_OF_MANY)},
        &st));
    v = t_var(st, "v", t_noise(ch_shape_of(SERVERS_OF_MANY * 300, 40), 1));
    t_ok(ch_checkpoint_new(&c));
    t_ok(ch_checkpoint_add_var(c, "v", v));
    ch__file_observe(note_writer, &w);
    t_ok(ch_checkpoint_write(c, t_path("many"), &(ch_write_options){.wait = true}));
    ch__file_observe(NULL, NULL);
    for (int i = 0; i < SERVERS_OF_MANY; i++) {
        snprintf(name, sizeof(name), "many.data-%05d-of-%05d", i, SERVERS_OF_MANY);
        assert_int_equal(access(t_path(name), F_OK), 0);
    }
    assert_false(w.is_shared);
    assert_in_range(w.n_threads, 1, 4);
    ch_checkpoint_unref(c);
    ch_var_unref(v);
    ch_strategy_unref(st);
    ch_local_cluster_unref(cluster);
    (void)state;
}

/* ---- variables with a copy on each worker ---- */

enum { OWN = 3, OWN_WORKERS = 2 };

/* A job with variables that are per_worker, a variable on a server and per-worker data. Each step
 * adds 1 to the worker's copies. */
typedef struct copies_job {
    ch_local_cluster *cluster;
    ch_strategy      *st;
    ch_coordinator   *coordinator;
    ch_var           *own[OWN], *n;
    ch_per_worker    *data, *pass;
    ch_function      *step;
    ch_checkpoint    *checkpoint;
} copies_job;

static void add_to_copies(ch_step *s, void *arg)
{
    copies_job *j = arg;

    for (int i = 0; i < OWN; i++)
        ch_var_assign_add(s, j->own[i], ch_number(s, 1));
    ch_var_assign_add(s, j->n, ch_number(s, 1));
}

/* Variable i has the program's copy `value + i`. */
static void begin_copies(copies_job *j, float value)
{
    ch_dataset *d = ch_dataset_range(0, 100, 1);

    *j = (copies_job){.cluster = NULL};
    t_ok(ch_cluster_local(&(ch_local_cluster_options){.ps = 1, .workers = OWN_WORKERS},
                          &j->cluster));
    t_ok(ch_strategy_parameter_server(ch_local_cluster_resolver(j->cluster), NULL, &j->st));
    t_ok(ch_coordinator_new(j->st, NULL, &j->coordinator));
    t_ok(ch_checkpoint_new(&j->checkpoint));
    for (int i = 0; i < OWN; i++) {
        ch_tensor *t = t_f32(ch_shape_scalar(), &(float){value + (float)i});
        char       name[8];

        snprintf(name, sizeof(name), "own%d", i);
        t_ok(ch_var_new(j->st, &(ch_var_spec){.name = name, .initial = t, .per_worker = true},
                        &j->own[i]));
        t_ok(ch_checkpoint_add_var(j->checkpoint, name, j->own[i]));
        ch_tensor_unref(t);
    }
    j->n = new_scalar(j->st, "n");
    t_ok(ch_checkpoint_add_var(j->checkpoint, "n", j->n));
    t_ok(ch_coordinator_create_per_worker_dataset(j->coordinator, d, &j->data));
    t_ok(ch_checkpoint_add_per_worker(j->checkpoint, "data", j->data));
    t_ok(ch_per_worker_iterate(j->data, &j->pass));
    ch_dataset_unref(d);
    t_ok(ch_function_new("add", add_to_copies, j, &j->step));
}

static void end_copies(copies_job *j)
{
    ch_checkpoint_unref(j->checkpoint);
    ch_function_unref(j->step);
    for (int i = 0; i < OWN; i++)
        ch_var_unref(j->own[i]);
    ch_var_unref(j->n);
    ch_per_worker_unref(j->pass);
    ch_per_worker_unref(j->data);
    ch_coordinator_unref(j->coordinator);
    ch_strategy_unref(j->st);
    ch_local_cluster_unref(j->cluster);
}

static void add_steps(copies_job *j, int n)
{
    for (int i = 0; i < n; i++)
        t_ok(ch_coordinator_schedule(j->coordinator, j->step, NULL, NULL));
    t_ok(ch_coordinator_join(j->coordinator));
}

/* Returns the value of a worker's copy of variable i. */
static double copy_of(const copies_job *j, int i, int worker)
{
    ch_tuple *all = NULL;
    double    x;

    t_ok(ch_var_get_all(j->own[i], &all));
    assert_int_equal(ch_tuple_count(all), OWN_WORKERS);
    x = *t_floats(all, worker, 0);
    ch_tuple_unref(all);
    return x;
}

/* Fails unless all workers' copies, and the program's, have the values of begin_copies. */
static void check_copies(const copies_job *j, double value)
{
    for (int i = 0; i < OWN; i++) {
        assert_true(value_of(j->own[i]) == value + i);
        for (int worker = 0; worker < OWN_WORKERS; worker++)
            assert_true(copy_of(j, i, worker) == value + i);
    }
}

/* Save writes the program's copy of a variable that is per_worker. Restore sets it and the value
 * that the workers start with, whether or not they have copies, and however small the staging
 * memory. */
static void restore_sets_the_value_that_workers_start_with(void **state)
{
    copies_job j;

    begin_copies(&j, 100);
    add_steps(&j, 6); /* changes the workers' copies, not the program's */
    t_ok(ch_checkpoint_write(j.checkpoint, t_path("own"), &(ch_write_options){.wait = true}));
    end_copies(&j);
    for (int has_steps = 0; has_steps < 2; has_steps++)
        for (int64_t staging = 0; staging < 2; staging++) {
            begin_copies(&j, 0);
            add_steps(&j, 4 * has_steps);
            for (int again = 0; again < 2; again++) {
                double sum = 0;

                t_ok(ch_checkpoint_restore(j.checkpoint, t_path("own"),
                                           &(ch_restore_options){.staging_bytes = staging},
                                           NULL));
                check_copies(&j, 100);
                assert_true(value_of(j.n) == 6);
                add_steps(&j, 5);
                for (int worker = 0; worker < OWN_WORKERS; worker++)
                    sum += copy_of(&j, 1, worker);
                assert_true(sum == 101 * OWN_WORKERS + 5);
            }
            end_copies(&j);
        }
    (void)state;
}

/* The values of a job: the program's copies, those of the workers, that on the server, and the
 * position in the data. */
typedef struct copies_values {
    double own[OWN], copy[OWN][OWN_WORKERS], n;
    char   position[256];
} copies_values;

/* Stores the position that a checkpoint has now. */
static void read_position(const copies_job *j, char position[256])
{
    ch_ckpt *c = NULL;
    ch_str  *text = NULL;

    t_ok(ch_checkpoint_write(
        j->checkpoint, t_path("probe"),
        &(ch_write_options){.wait = true, .sync = CH_OFF, .replace = true}));
    t_ok(ch__ckpt_open(t_path("probe"), &c));
    t_ok(ch__ckpt_read_strings(c, "data/.ATTRIBUTES/POSITION", &text));
    assert_in_range(text->size, 1, 256);
    memcpy(position, text->data, text->size);
    ch__free(text);
    ch__ckpt_close(c);
}

static void read_copies(const copies_job *j, copies_values *out)
{
    *out = (copies_values){.n = value_of(j->n)};
    read_position(j, out->position);
    for (int i = 0; i < OWN; i++) {
        out->own[i] = value_of(j->own[i]);
        for (int worker = 0; worker < OWN_WORKERS; worker++)
            out->copy[i][worker] = copy_of(j, i, worker);
    }
}

/* Makes all values of a job differ from those of the checkpoint. */
static void change_copies(copies_job *j)
{
    ch_tensor *t = t_f32(ch_shape_scalar(), &(float){7});

    for (int i = 0; i < OWN; i++)
        t_ok(ch_var_set(j->own[i], t));
    ch_tensor_unref(t);
    add_steps(j, 1);
    ch_per_worker_unref(j->pass);
    t_ok(ch_per_worker_iterate(j->data, &j->pass)); /* another pass */
}

/* Each call of a restore fails in turn. After an error, all values are as before. */
static void fail_restores_of_copies(t_failure what, int64_t staging)
{
    copies_job    j;
    copies_values before, have;
    char          saved[256] = "";
    int           n_failed = 0;
    bool          is_over = false;

    begin_copies(&j, 0);
    t_ok(ch_checkpoint_restore(j.checkpoint, t_path("own"), NULL, NULL));
    read_position(&j, saved);
    change_copies(&j);
    read_copies(&j, &before);
    assert_memory_not_equal(before.position, saved, sizeof(saved));
    for (int64_t n = 1; !is_over; n++) {
        int64_t   calls = t_fail_at(what, n);
        ch_status rc = ch_checkpoint_restore(
            j.checkpoint, t_path("own"), &(ch_restore_options){.staging_bytes = staging}, NULL);

        is_over = t_fail_at(what, 0) - calls < n;
        t_check_failure(what, n, rc);
        if (rc == CH_OK) {
            check_copies(&j, 100);
            read_copies(&j, &have);
            assert_memory_equal(have.position, saved, sizeof(saved));
            change_copies(&j);
            read_copies(&j, &before);
        } else {
            n_failed++;
            read_copies(&j, &have);
            assert_memory_equal(&have, &before, sizeof(have));
        }
    }
    assert_true(n_failed > 5);
    end_copies(&j);
}

/* The plan counts the variables with copies on workers as those of this process. */
static void plan_says_what_servers_hold_for_a_save(void **state)
{
    char       text[2000];
    copies_job j;

    begin_copies(&j, 0);
    ch_checkpoint_print_plan(j.checkpoint, text, sizeof(text));
    assert_int_equal(t_plan_row(text, "variables of this process", "3"), OWN * 4);
    assert_int_equal(t_plan_row(text, "variables on servers", "1"), 4);
    assert_int_equal(t_plan_row(text, "servers hold for it", NULL), 4);
    end_copies(&j);
    (void)state;
}

static void failed_restore_leaves_the_copies_of_workers(void **state)
{
    for (int64_t staging = 0; staging < 2; staging++) {
        fail_restores_of_copies(T_IO_ONCE, staging);
        fail_restores_of_copies(T_IO_ON, staging);
        fail_restores_of_copies(T_MEMORY, staging);
    }
    (void)state;
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
            manager_says_that_there_is_no_checkpoint_when_a_server_is_lost, remove_run),
        cmocka_unit_test(data_files_are_written_by_at_most_four_threads),
        cmocka_unit_test(restore_sets_the_value_that_workers_start_with),
        cmocka_unit_test(failed_restore_leaves_the_copies_of_workers),
        cmocka_unit_test(plan_says_what_servers_hold_for_a_save)};

    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}

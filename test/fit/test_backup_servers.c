/* test/fit/test_backup_servers.c -- the backup callback with parameter servers: saves do not
 * wait for the steps in flight, and agree with the steps that they hold.
 *
 * Each program is a child process that trains on two servers and three workers. It leaves its
 * weights and history as text in the file "outcome".
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "resume_help.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "../job/help.h"
#include "cohort/checkpoint_reader.h"

enum { KILLED = 1000, EPOCH_STEPS = 12, WORKERS = 3 };

typedef struct program {
    ch_coordinator_mode mode;
    int                 epoch_steps;  /* 0: EPOCH_STEPS */
    bool                is_custom;    /* with a step that has an output */
    int                 every_steps;  /* of the backup */
    int                 kill_at;      /* step after which the process is killed; 0: none */
    int                 round;        /* steps of a round; 0: 2 */
    int               signal_at, sig; /* step after which the program gets a signal; 0: none */
    double            limit, grace;   /* seconds of a time limit, of grace; 0: none, 10 */
    int               stop, start_at; /* steps between which no worker runs; 0: none */
    int               lose_at;        /* step after which a server is killed; 0: none */
    int               drain_at;       /* step after which a callback reads the logs; 0: none */
    ch_local_cluster *cluster;
} program;

static ch_status on_step(ch_training *t, ch_event event, void *arg)
{
    const program *p = arg;
    int            step = (int)ch_training_step(t);

    (void)event;
    if (step == p->kill_at)
        raise(SIGKILL);
    if (step == p->signal_at)
        raise(p->sig);
    for (int i = 0; i < WORKERS; i++) {
        if (step == p->stop)
            t_ok(ch_local_cluster_kill(p->cluster, "worker", i));
        if (step == p->start_at)
            t_ok(ch_local_cluster_restart(p->cluster, "worker", i));
    }
    if (step == p->lose_at)
        t_ok(ch_local_cluster_kill(p->cluster, "ps", 1));
    if (step == p->drain_at)
        (void)ch_training_get(t, "loss");
    return CH_OK;
}

static char got[TEXT], want[TEXT];

/* Writes the message of an error, or the weights and the history. */
static void write_outcome(ch_status rc, ch_model *m, const ch_history *h)
{
    FILE *f = fopen(t_path("outcome"), "w");
    float w[MOST];

    assert_non_null(f);
    if (rc != CH_OK)
        fprintf(f, "%s\n", ch_error_message());
    for (int i = 0, n = rc == CH_OK ? vars_of(m, w) : 0; i < n; i++)
        fprintf(f, "%a ", (double)w[i]);
    for (int i = 0; rc == CH_OK && i < ch_history_count(h); i++)
        for (int e = 0; e < ch_history_epochs(h); e++)
            fprintf(f, "%s %a\n", ch_history_name(h, i),
                    ch_history_at(h, ch_history_name(h, i), e));
    fclose(f);
}

static void train(program *p)
{
    job          j = {.epochs = 2,
                      .steps_per_epoch = p->epoch_steps > 0 ? p->epoch_steps : EPOCH_STEPS,
                      .is_custom = p->is_custom};
    arrays       a = new_arrays(ROWS);
    ch_strategy *st =
        t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = WORKERS}, NULL, &p->cluster);
    ch_coordinator *coordinator = NULL;
    ch_model       *m;
    ch_callback    *c[3] = {NULL};
    int             n = 2;
    ch_history     *h = NULL;
    ch_status       rc;

    t_ok(ch_coordinator_new(
        st, &(ch_coordinator_options){.mode = p->mode, .round = p->round > 0 ? p->round : 2},
        &coordinator));
    m = new_network(&j, st);
    t_ok(ch_callback_backup(t_path("run"),
                            &(ch_backup_options){.every_steps = p->every_steps,
                                                 .max_to_keep = 100,
                                                 .signals = p->sig != 0,
                                                 .grace_seconds = p->grace},
                            &c[0]));
    t_ok(ch_callback_of(CH_ON_STEP, on_step, p, &c[1]));
    if (p->limit > 0)
        t_ok(ch_callback_time_limit(p->limit, &c[n++]));
    rc = fit(&j, m, &a, NULL, n, c, &h);
    write_outcome(rc, m, h);
    ch_history_unref(h);
    ch_callback_unref(c[0]);
    ch_callback_unref(c[1]);
    ch_callback_unref(c[2]);
    ch_model_unref(m);
    ch_coordinator_unref(coordinator);
    ch_strategy_unref(st);
    ch_local_cluster_unref(p->cluster);
    drop_arrays(&a);
}

/* Runs the program in a child, and reads its outcome. Returns its exit code, or KILLED plus the
 * signal that ended it. */
static int run(program p)
{
    int    status = 0;
    size_t n;
    pid_t  id;
    FILE  *f;

    (void)unlink(t_path("outcome"));
    fflush(NULL);
    id = fork();
    if (id == 0) {
        setenv("CMOCKA_TEST_ABORT", "1", 1);
        alarm(60);
        train(&p);
        _exit(0);
    }
    assert_true(id > 0 && waitpid(id, &status, 0) == id);
    if (WIFSIGNALED(status))
        return KILLED + WTERMSIG(status);
    f = fopen(t_path("outcome"), "r");
    assert_non_null(f);
    n = fread(got, 1, sizeof(got) - 1, f);
    got[n] = '\0';
    fclose(f);
    return WEXITSTATUS(status);
}

static int remove_run(void **state)
{
    char command[256];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", t_path("run"));
    return system(command);
}

static int64_t read_number(ch_checkpoint_reader *r, const char *name)
{
    ch_tensor *t = NULL;
    int64_t    x;

    t_ok(ch_checkpoint_read(r, name, 0, NULL, NULL, &t));
    x = *(const int64_t *)ch_tensor_data(t);
    ch_tensor_unref(t);
    return x;
}

/* Returns the steps of the training in a checkpoint, which must be the number of updates in the
 * cut. */
static int64_t read_steps(const char *path)
{
    ch_checkpoint_reader *r = NULL;
    int64_t               steps;

    t_ok(ch_checkpoint_open(path, &r));
    steps = read_number(r, "training/.ATTRIBUTES/step");
    assert_int_equal(read_number(r, "optimizer/iterations/.ATTRIBUTES/VARIABLE_VALUE"), steps);
    ch_checkpoint_close(r);
    return steps;
}

/* Returns the steps of a checkpoint, or -1 if it does not exist. Reads it in a child, because
 * this process must not use devices before the next fork. */
static int steps_in(int number)
{
    char  name[64];
    int   status = 0;
    pid_t id;

    snprintf(name, sizeof(name), "run/ckpt-%d.index", number);
    if (access(t_path(name), F_OK) != 0)
        return -1;
    snprintf(name, sizeof(name), "run/ckpt-%d", number);
    fflush(NULL);
    id = fork();
    if (id == 0) {
        setenv("CMOCKA_TEST_ABORT", "1", 1);
        _exit((int)read_steps(t_path(name)));
    }
    assert_true(id > 0 && waitpid(id, &status, 0) == id && WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* In rounds, a training that is killed and started again has the bits of a training that was
 * never killed. */
static void backup_in_rounds_goes_on_after_a_kill_with_the_same_bits(void **state)
{
    program p = {.mode = CH_SYNCHRONOUS, .every_steps = 2};

    (void)state;
    for (int i = 0; i < 2; i++) {
        p.is_custom = i != 0;
        p.kill_at = 0;
        assert_int_equal(run(p), 0);
        snprintf(want, sizeof(want), "%s", got);
        remove_run(NULL);
        for (p.kill_at = 5; p.kill_at < 2 * EPOCH_STEPS; p.kill_at += 7) {
            program whole = p;

            assert_int_equal(run(p), KILLED + SIGKILL);
            whole.kill_at = 0;
            assert_int_equal(run(whole), 0);
            assert_string_equal(got, want);
            remove_run(NULL);
        }
    }
}

/* Returns the number of checkpoints, numbered from 1, that were saved. Each must be at the end
 * of a round. */
static int count_rounds(const program *p)
{
    int n = 1;

    for (int steps; (steps = steps_in(n)) >= 0; n++)
        assert_int_equal(steps % EPOCH_STEPS % p->round, 0);
    return n - 1;
}

/* PR-3, PR-4: a signal or a time limit in the middle of a round. The save waits for the end of
 * the round, because the steps after it would read other values. */
static void backup_in_rounds_saves_at_their_end_when_a_signal_comes_before(void **state)
{
    static const int sig[] = {SIGTERM, SIGUSR1, SIGINT};
    program          p = {.mode = CH_SYNCHRONOUS, .every_steps = 1000, .round = 3};

    (void)state;
    assert_int_equal(run(p), 0);
    snprintf(want, sizeof(want), "%s", got);
    remove_run(NULL);
    for (int k = 0; k < 3; k++)
        for (int step = 4; step <= EPOCH_STEPS + 2; step += 3 + step / 7) {
            p.sig = sig[k];
            p.signal_at = step;
            assert_int_equal(run(p), 0);
            if (p.sig == SIGTERM)
                assert_non_null(strstr(got, "saved as"));
            if (p.sig == SIGUSR1)
                assert_string_equal(got, want);
            assert_int_equal(count_rounds(&p), p.sig == SIGUSR1 ? 2 : 1); /* and the end */
            p.signal_at = 0;
            assert_int_equal(run(p), 0);
            assert_string_equal(got, want);
            remove_run(NULL);
        }
    p.sig = 0;
    p.limit = 1e-9; /* after the first step: each program has one round */
    for (int i = 0; i < 2 * EPOCH_STEPS / p.round; i++)
        assert_int_equal(run(p), 0);
    assert_string_equal(got, want);
    (void)count_rounds(&p);
}

/* PR-4: the round is longer than the time of grace. The state is not saved, and the next program
 * begins with the last checkpoint. */
static void backup_in_rounds_is_not_saved_when_the_round_outlasts_the_grace(void **state)
{
    program p = {.mode = CH_SYNCHRONOUS, .every_steps = 1000, .round = 4};

    (void)state;
    assert_int_equal(run(p), 0);
    snprintf(want, sizeof(want), "%s", got);
    remove_run(NULL);
    p.sig = SIGTERM;
    p.grace = 1e-9;
    p.signal_at = 6;
    assert_int_equal(run(p), 0);
    assert_non_null(strstr(got, "the round of the coordinator did not end"));
    assert_non_null(strstr(got, "there is no checkpoint"));
    p.signal_at = 0;
    assert_int_equal(run(p), 0);
    assert_string_equal(got, want);
}

/* A checkpoint has as many steps in its numbers as in its variables, although steps are in
 * flight. */
static void backup_on_servers_agrees_with_the_steps_of_its_cut(void **state)
{
    program p = {.every_steps = 3, .drain_at = 7};
    int     n = 1;

    (void)state;
    assert_int_equal(run(p), 0);
    for (int steps, last = 0; (steps = steps_in(n)) >= 0; n++, last = steps)
        assert_true(steps >= last); /* the end of an epoch is saved too */
    assert_int_equal(steps_in(n - 1), 2 * EPOCH_STEPS);
}

/* A save is due while no worker runs. The training goes on, and starts further steps, which are
 * not in the checkpoint. The epoch has more steps than the queue has room for, so that it does
 * not end before the save. */
static void backup_on_servers_does_not_wait_for_steps_in_flight(void **state)
{
    program p = {.epoch_steps = 60, .every_steps = 5, .stop = 4, .start_at = 8};

    (void)state;
    assert_int_equal(run(p), 0);
    assert_int_equal(steps_in(1), 5);
}

/* Failures: a parameter server is lost. The training fails as it does without checkpoints. */
static void
training_fails_when_a_server_is_lost_and_goes_on_when_it_is_started_again(void **state)
{
    program p = {.every_steps = 3, .lose_at = 16};

    (void)state;
    assert_int_equal(run(p), 0);
    assert_non_null(strstr(got, "ps/1"));
    assert_non_null(strstr(got, "is lost"));
    p.lose_at = 0;
    assert_int_equal(run(p), 0);
    assert_null(strstr(got, "is lost"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(backup_in_rounds_goes_on_after_a_kill_with_the_same_bits,
                                  remove_run),
        cmocka_unit_test_teardown(
            backup_in_rounds_saves_at_their_end_when_a_signal_comes_before, remove_run),
        cmocka_unit_test_teardown(
            backup_in_rounds_is_not_saved_when_the_round_outlasts_the_grace, remove_run),
        cmocka_unit_test_teardown(backup_on_servers_agrees_with_the_steps_of_its_cut,
                                  remove_run),
        cmocka_unit_test_teardown(backup_on_servers_does_not_wait_for_steps_in_flight,
                                  remove_run),
        cmocka_unit_test_teardown(
            training_fails_when_a_server_is_lost_and_goes_on_when_it_is_started_again,
            remove_run)};

    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}

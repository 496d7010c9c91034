/* test/fit/test_backup.c -- the backup callback: programs that are killed and started again.
 *
 * Each program is a child process that trains with ch_callback_backup, and that a signal ends
 * after a given step. The last program must leave the weights, history and log files of a
 * program that was never killed, to the byte.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "resume_help.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/mem.h"
#include "base/sys.h"
#include "base/thread.h"
#include "cohort/checkpoint_reader.h"
#include "save/staging.h"
#include "training_help.h"

enum { KILLED = 1000 };

typedef struct program {
    job               j;
    ch_backup_options o;
    int               stop_at;       /* step after which `sig` is sent; 0: none */
    bool              in_validation; /* the signal is sent in the validation after that step */
    int               sig, n_sigs;   /* signal, and how often it is sent */
    int  fail_from;      /* file operation from which on all fail with ENOSPC; 0: none */
    bool has_no_staging; /* there is no memory for a copy of the state */
    int  slow_until; /* step before which no write of a checkpoint ends; 0: the disk is fast */
    bool is_slow;    /* the first write takes longer than an epoch */
    const char *killed_after; /* file of a checkpoint; the program is killed when it appears */
    const char *loads;        /* a checkpoint that is loaded into the model at the end */
    int         stuck_sync, stuck_write; /* call in the background that hangs; 0: none */
    int         signals_at_sync;         /* such a call during which `sig` comes; 0: none */
    bool        signals_at_end;          /* `sig` comes in CH_ON_END */
} program;

/* ---- a program ---- */

static ch_gate     disk; /* opens when a slow disk begins to write */
static atomic_bool is_fast;
static pthread_t   program_thread;

enum { SLOW_NS = 100000000 };

/* Makes the first write in the background wait for a while. */
static void slow_down(void *arg, const ch_file_op *op)
{
    int64_t until = ch__now_ns() + SLOW_NS;

    (void)arg;
    if (op->kind == CH_FILE_WRITE && !pthread_equal(pthread_self(), program_thread) &&
        !atomic_exchange(&is_fast, true))
        while (ch__now_ns() < until)
            ch__gate_idle_until(&disk, atomic_load(&disk), until);
}

/* Makes the background writes of a slow disk wait. */
static void wait_for_disk(void *arg, const ch_file_op *op)
{
    (void)arg;
    while (op->kind == CH_FILE_WRITE && !pthread_equal(pthread_self(), program_thread) &&
           !atomic_load(&is_fast)) {
        unsigned seen = atomic_load(&disk);

        if (!atomic_load(&is_fast))
            ch__gate_idle_until(&disk, seen, INT64_MAX);
    }
}

/* Kills the program when a file has got its name. */
static void kill_at_file(void *arg, const ch_file_op *op)
{
    const program *p = arg;

    if (op->kind == CH_FILE_RENAME && strcmp(strrchr(op->to, '/') + 1, p->killed_after) == 0)
        raise(SIGKILL);
}

static program *running;

/* Sends the signal of the program after a while, in which the program begins to wait. */
static void *signal_later(void *arg)
{
    enum { NS = 200000000 };
    const program *p = arg;
    ch_gate        never = 0;

    ch__gate_idle_until(&never, 0, ch__now_ns() + NS);
    kill(getpid(), p->sig);
    return NULL;
}

/* Hangs in call `stuck` of the background, from 1, until the process ends. */
static void hang_at(int *n_calls, int stuck)
{
    ch_gate   never = 0;
    pthread_t thread;

    if (running == NULL || pthread_equal(pthread_self(), program_thread) || ++*n_calls != stuck)
        return;
    assert_int_equal(pthread_create(&thread, NULL, signal_later, running), 0);
    ch__gate_idle(&never, 0, 0);
}

/* Linked instead of the functions of base/sys.h, which they call. */
int     __wrap_ch__sys_sync(int fd);
int     __real_ch__sys_sync(int fd);
ssize_t __wrap_ch__sys_pwrite(int fd, const void *from, size_t n, int64_t offset);
ssize_t __real_ch__sys_pwrite(int fd, const void *from, size_t n, int64_t offset);

int __wrap_ch__sys_sync(int fd)
{
    static int n_calls, n_signals;

    if (running != NULL && !pthread_equal(pthread_self(), program_thread) &&
        ++n_signals == running->signals_at_sync)
        kill(getpid(), running->sig);
    hang_at(&n_calls, running != NULL ? running->stuck_sync : 0);
    return __real_ch__sys_sync(fd);
}

ssize_t __wrap_ch__sys_pwrite(int fd, const void *from, size_t n, int64_t offset)
{
    static int n_calls;

    hang_at(&n_calls, running != NULL ? running->stuck_write : 0);
    return __real_ch__sys_pwrite(fd, from, n, offset);
}

static ch_status send_signal(ch_training *t, ch_event event, void *arg)
{
    const program *p = arg;

    if (event == CH_ON_END) {
        if (p->signals_at_end)
            kill(getpid(), p->sig);
        return CH_OK;
    }
    if (ch_training_step(t) == p->slow_until) {
        atomic_store(&is_fast, true);
        ch__gate_open(&disk);
    }
    if (ch_training_step(t) == p->stop_at &&
        (event == CH_ON_VALIDATION_STEP) == p->in_validation)
        for (int i = 0; i < p->n_sigs; i++)
            raise(p->sig);
    return CH_OK;
}

static bool has_no_staging;

/* Linked instead of the function of save/staging.h, which it calls: without memory for more bytes
 * than any machine has. */
ch_status __wrap_ch__staging_reserve(ch_staging *s, ch_team *team, int64_t bytes);
ch_status __real_ch__staging_reserve(ch_staging *s, ch_team *team, int64_t bytes);

ch_status __wrap_ch__staging_reserve(ch_staging *s, ch_team *team, int64_t bytes)
{
    return __real_ch__staging_reserve(s, team, has_no_staging ? INT64_MAX / 4 : bytes);
}

static int new_callbacks(program *p, ch_callback **c)
{
    int n = 0;

    t_ok(ch_callback_of(CH_ON_STEP | CH_ON_VALIDATION_STEP | CH_ON_END, send_signal, p,
                        &c[n++]));
    if (p->slow_until == 0) /* a log file would wait for the disk too */
        t_ok(ch_callback_csv_log(t_path("log.csv"),
                                 &(ch_callback_log_file_options){.every_steps = 2}, &c[n++]));
    t_ok(ch_callback_backup(t_path("run"), &p->o, &c[n++]));
    t_ok(ch_callback_reduce_on_plateau(
        &(ch_callback_plateau_options){.monitor = "loss", .patience = 1, .min_delta = CH_OFF},
        &c[n++]));
    t_ok(ch_callback_early_stopping(&(ch_callback_early_stopping_options){.monitor = "val_loss",
                                                                          .patience = 5,
                                                                          .restore_best = true},
                                    &c[n++]));
    return n;
}

static outcome  want, got;
static char     message[1024];
static t_logged logged; /* the warnings of the child */

/* Loads the model of a checkpoint, and nothing else. */
static void load_model(ch_model *m, const char *path)
{
    ch_checkpoint *c = NULL;
    ch_restored   *r = NULL;

    t_ok(ch_checkpoint_new(&c));
    t_ok(ch_checkpoint_add_model(c, "model", m));
    t_ok(ch_checkpoint_restore(c, path, &(ch_restore_options){.partial = true}, &r));
    t_ok(ch_restored_assert_existing(r));
    ch_restored_unref(r);
    ch_checkpoint_unref(c);
}

/* Runs the program in this process, and writes its outcome to the file "outcome". */
static int train(program *p)
{
    arrays       a = new_arrays(ROWS), test = new_arrays(2 * BATCH + 3);
    ch_strategy *st = strategy_of(p->j.strategy);
    ch_model    *m = new_network(&p->j, st);
    ch_callback *c[8] = {0};
    ch_history  *h = NULL;
    int          n = new_callbacks(p, c);
    FILE        *f;

    if (p->fail_from > 0)
        ch__file_fail_from(p->fail_from, ENOSPC);
    has_no_staging = p->has_no_staging;
    program_thread = pthread_self();
    running = p;
    if (p->slow_until > 0)
        ch__file_observe(wait_for_disk, NULL);
    if (p->is_slow)
        ch__file_observe(slow_down, NULL);
    if (p->killed_after != NULL)
        ch__file_observe(kill_at_file, p);
    got.rc = fit(&p->j, m, &a, &test, n, c, &h);
    ch__file_fail_from(0, 0);
    ch__file_observe(NULL, NULL);
    if (p->slow_until > 0) {
        assert_true(ch_history_time(h).saves > 1);
        assert_true(ch_history_time(h).skipped_saves >= p->slow_until - 2);
    }
    if (p->is_slow) {
        assert_int_equal(ch_history_time(h).saves, p->j.epochs);
        assert_int_equal(ch_history_time(h).skipped_saves, 0);
    }
    if (p->has_no_staging) {
        assert_true(logged.n >= p->j.epochs); /* a warning for each save */
        assert_non_null(strstr(logged.text, "was not saved: checkpoint: no memory for a copy"));
        assert_non_null(strstr(logged.text, "set staging_bytes to less (ch_write_options, "
                                            "ch_backup_options)"));
    } else if (p->o.staging_bytes > 0) {
        assert_int_equal(logged.n, 1);
        assert_non_null(strstr(logged.text, "staging_bytes is smaller than the state"));
    }
    snprintf(message, sizeof(message), "%s", got.rc != CH_OK ? ch_error_message() : "");
    assert_true(ch_history_time(h).seconds[CH_TIME_SAVE] > 0);
    if (p->loads != NULL)
        load_model(m, t_path(p->loads));
    describe(&p->j, m, h, &got);
    f = fopen(t_path("outcome"), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(message, 1, sizeof(message), f), sizeof(message));
    fputs(got.text, f);
    fclose(f);
    ch_history_unref(h);
    for (int i = 0; i < n; i++)
        ch_callback_unref(c[i]);
    ch_model_unref(m);
    ch_strategy_unref(st);
    drop_arrays(&a);
    drop_arrays(&test);
    return got.rc == CH_OK ? 0 : got.rc == CH_CANCELLED ? CH_EXIT_RESTART : 1;
}

/* The file begins with the message, in its fixed size. */
static void read_outcome(void)
{
    FILE  *f = fopen(t_path("outcome"), "rb");
    size_t n;

    assert_non_null(f);
    assert_int_equal(fread(message, 1, sizeof(message), f), sizeof(message));
    n = fread(got.text, 1, sizeof(got.text) - 1, f);
    got.text[n] = '\0';
    fclose(f);
}

/* Runs the program in a child. Returns its exit code, or KILLED plus the signal that ended it. */
static int run(program *p)
{
    int   status = 0;
    pid_t id;

    (void)unlink(t_path("outcome"));
    fflush(NULL);
    id = fork();
    if (id == 0) {
        setenv("CMOCKA_TEST_ABORT", "1", 1);
        alarm(60);
        t_four_gpus(NULL);
        ch_log_set_sink(t_sink, &logged, CH_LOG_WARNING);
        _exit(train(p));
    }
    assert_true(id > 0 && waitpid(id, &status, 0) == id);
    if (WIFSIGNALED(status))
        return KILLED + WTERMSIG(status);
    read_outcome();
    return WEXITSTATUS(status);
}

static void remove_run(void)
{
    char command[256];

    snprintf(command, sizeof(command), "rm -rf %s", t_path("run"));
    assert_int_equal(system(command), 0);
}

static bool exists(const char *name)
{
    char path[128];

    snprintf(path, sizeof(path), "run/%s.index", name);
    return access(t_path(path), F_OK) == 0;
}

static program usual(void)
{
    return (program){.j = {.strategy = MIRRORED_2, .epochs = 3, .is_validated = true},
                     .o = {.every_steps = 1, .signals = true},
                     .n_sigs = 1};
}

/* Trains without a signal and without checkpoints on disk. */
static void train_whole(program p)
{
    remove_run();
    p.stop_at = 0;
    assert_int_equal(run(&p), 0);
    want = got;
    remove_run();
}

/* ---- tests ---- */

/* PR-2, PR-9 */
static void backup_goes_on_after_a_kill_with_the_same_bits(void **state)
{
    program p = usual();

    train_whole(p);
    for (int step = 1; step <= 16; step += 5) {
        p.stop_at = step;
        p.sig = SIGKILL;
        assert_int_equal(run(&p), KILLED + SIGKILL);
        p.stop_at = 0;
        assert_int_equal(run(&p), 0);
        assert_string_equal(got.text, want.text);
        remove_run();
    }
    (void)state;
}

/* By seconds, by the overhead, and in ch_train_and_evaluate. */
static void backup_goes_on_with_every_kind_of_interval(void **state)
{
    static const ch_backup_options each[] = {{.every_seconds = 1e-6}, {.overhead = 0.9}};
    program                        p = usual();

    for (int i = 0; i < 4; i++) {
        p.j.is_evaluating = i >= 2;
        p.o = each[i % 2];
        train_whole(p);
        p.stop_at = 5;
        p.sig = SIGKILL;
        assert_int_equal(run(&p), KILLED + SIGKILL);
        p.stop_at = 0;
        assert_int_equal(run(&p), 0);
        assert_string_equal(got.text, want.text);
        remove_run();
    }
    (void)state;
}

/* Ctrl-C cuts the epoch short. The next program goes on in its middle. */
static void backup_goes_on_after_ctrl_c(void **state)
{
    program p = usual();

    p.o.every_steps = 0;
    train_whole(p);
    for (int step = 3; step <= 12; step += 9) {
        p.stop_at = step;
        p.sig = SIGINT;
        p.in_validation = step == 12;
        assert_int_equal(run(&p), 0);
        assert_non_null(strstr(got.text, "stopped: interrupted"));
        p.stop_at = 0;
        assert_int_equal(run(&p), 0);
        assert_string_equal(got.text, want.text);
        remove_run();
    }
    (void)state;
}

/* PR-12: a training that ended trains no step when it is started again. Row B25: of three epochs
 * the last two checkpoints stay. */
static void backup_keeps_two_checkpoints_and_a_finished_training_trains_no_step(void **state)
{
    program p = usual();

    p.o = (ch_backup_options){.every_steps = 0};
    train_whole(p);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(run(&p), 0);
        assert_string_equal(got.text, want.text);
        assert_false(exists("ckpt-1"));
        assert_true(exists("ckpt-2") && exists("ckpt-3"));
        assert_false(exists("ckpt-4"));
    }
    p.j.epochs = 4; /* it goes on if there are more epochs */
    assert_int_equal(run(&p), 0);
    assert_non_null(strstr(got.text, "4 epochs"));
    assert_true(exists("ckpt-4") && !exists("ckpt-2"));
    remove_run();
    (void)state;
}

/* PR-3, PR-4, PR-6, PR-7, PR-8: unlike in TensorFlow, there is one save, and a second signal ends
 * the process */
static void backup_saves_and_ends_at_sigterm(void **state)
{
    program p = usual();

    p.o.every_steps = 0; /* only the signal saves in mid-epoch */
    train_whole(p);
    for (int step = 2; step <= 12; step += 5) {
        p.stop_at = step;
        p.sig = SIGTERM;
        p.in_validation = step == 12;
        assert_int_equal(run(&p), CH_EXIT_RESTART);
        assert_non_null(strstr(message, "terminated in epoch"));
        assert_non_null(strstr(message, "/run/ckpt-"));
        assert_non_null(strstr(message, "start it again to go on"));
        p.stop_at = 0;
        assert_int_equal(run(&p), 0);
        assert_string_equal(got.text, want.text);
        remove_run();
    }
    p.stop_at = 2;
    p.n_sigs = 2;
    p.in_validation = false;
    assert_int_equal(run(&p), KILLED + SIGTERM);
    remove_run();
    p.n_sigs = 1;
    p.o.signals = false;
    assert_int_equal(run(&p), KILLED + SIGTERM);
    remove_run();
    (void)state;
}

/* The same in ch_train_and_evaluate: after a step, and in an evaluation. */
static void backup_saves_and_ends_at_sigterm_in_train_and_evaluate(void **state)
{
    program p = usual();

    p.o.every_steps = 0;
    p.j.is_evaluating = true;
    train_whole(p);
    for (int step = 3; step <= 4; step++) {
        p.stop_at = step;
        p.sig = SIGTERM;
        p.in_validation = step == 4;
        assert_int_equal(run(&p), CH_EXIT_RESTART);
        assert_non_null(strstr(message, "terminated in epoch"));
        p.stop_at = 0;
        assert_int_equal(run(&p), 0);
        assert_string_equal(got.text, want.text);
        remove_run();
    }
    (void)state;
}

/* A save without memory for its copy of the state is a warning. With little memory, values are
 * written while the training waits. */
static void backup_needs_little_memory_and_the_training_none(void **state)
{
    program p = usual();

    p.o = (ch_backup_options){.staging_bytes = 1};
    train_whole(p);
    p.has_no_staging = true;
    assert_int_equal(run(&p), 0);
    assert_string_equal(got.text, want.text);
    assert_false(exists("ckpt-1") || exists("ckpt-2") || exists("ckpt-3"));
    p.has_no_staging = false;
    p.stop_at = 8;
    p.sig = SIGKILL;
    assert_int_equal(run(&p), KILLED + SIGKILL);
    p.stop_at = 0;
    assert_int_equal(run(&p), 0);
    assert_string_equal(got.text, want.text);
    remove_run();
    (void)state;
}

/* PR-4: the time of grace is over before the write has ended */
static void backup_abandons_a_save_that_takes_too_long(void **state)
{
    program p = usual();

    p.o = (ch_backup_options){.signals = true, .grace_seconds = 1e-9};
    train_whole(p);
    p.stop_at = 8;
    p.sig = SIGTERM;
    assert_int_equal(run(&p), CH_EXIT_RESTART);
    assert_non_null(strstr(message, "terminated in epoch 2, step 2"));
    assert_non_null(strstr(message, "abandoned"));
    p.stop_at = 0;
    assert_int_equal(run(&p), 0);
    assert_string_equal(got.text, want.text);
    remove_run();
    p.stop_at = 2; /* before the first save */
    assert_int_equal(run(&p), CH_EXIT_RESTART);
    assert_non_null(strstr(message, "there is no checkpoint"));
    remove_run();
    (void)state;
}

/* The disk hangs in the first save, and then SIGTERM comes. Whatever the training waits for, it
 * ends with the time of grace: the end of its last save, the write before a forced save, or a
 * value without a copy. */
static void backup_ends_within_the_grace_when_the_disk_hangs(void **state)
{
    static const struct {
        int     epochs, stuck_sync, stuck_write;
        int64_t staging_bytes;
    } row[] = {{1, 1, 0, 0}, {3, 1, 0, 0}, {3, 2, 0, 0}, {3, 0, 1, 1}};

    for (int i = 0; i < 4; i++) {
        program p = usual();

        p.o = (ch_backup_options){.signals = true,
                                  .grace_seconds = 0.1,
                                  .every_epochs = 1,
                                  .staging_bytes = row[i].staging_bytes};
        p.j.epochs = row[i].epochs;
        p.stuck_sync = row[i].stuck_sync;
        p.stuck_write = row[i].stuck_write;
        p.sig = SIGTERM;
        remove_run();
        assert_int_equal(run(&p), CH_EXIT_RESTART);
        assert_non_null(strstr(message, "terminated in epoch"));
        assert_non_null(strstr(message, "abandoned; there is no checkpoint"));
        remove_run();
    }
    (void)state;
}

/* SIGTERM comes while the last save is being written, or when everything is saved. */
static void backup_ends_at_sigterm_at_the_end_of_the_training(void **state)
{
    for (int i = 0; i < 2; i++) {
        program p = usual();

        p.o = (ch_backup_options){.signals = true, .every_epochs = 3};
        train_whole(p);
        p.sig = SIGTERM;
        p.signals_at_sync = i == 0;
        p.signals_at_end = i == 1;
        assert_int_equal(run(&p), CH_EXIT_RESTART);
        assert_non_null(strstr(message, "terminated in epoch 3"));
        assert_non_null(strstr(message, "saved as"));
        p.signals_at_sync = 0;
        p.signals_at_end = false;
        p.stop_at = 1; /* no step is trained */
        assert_int_equal(run(&p), 0);
        assert_string_equal(got.text, want.text);
        remove_run();
    }
    (void)state;
}

static void backup_saves_and_goes_on_at_sigusr1(void **state)
{
    program p = usual();

    p.o.every_steps = 1000;
    train_whole(p);
    p.stop_at = 5;
    p.sig = SIGUSR1;
    p.n_sigs = 3;
    assert_int_equal(run(&p), 0);
    assert_string_equal(got.text, want.text);
    assert_true(exists("ckpt-1") && exists("ckpt-2") && !exists("ckpt-3")); /* and the end */
    remove_run();
    (void)state;
}

/* The save after the first step is being written until step 5, so the saves between are
 * skipped. The time table counts them. */
static void backup_counts_the_saves_that_a_slow_disk_makes_it_skip(void **state)
{
    program p = usual();

    p.o = (ch_backup_options){.every_steps = 1};
    train_whole(p);
    p.slow_until = 5;
    assert_int_equal(run(&p), 0);
    assert_string_equal(got.text, want.text);
    remove_run();
    (void)state;
}

/* With the default options, the save of an epoch waits for the write of the epoch before, so no
 * save is skipped. */
static void backup_of_epochs_skips_no_save_when_the_disk_is_slow(void **state)
{
    program p = usual();

    p.o = (ch_backup_options){.every_steps = 0};
    train_whole(p);
    p.is_slow = true;
    assert_int_equal(run(&p), 0);
    assert_string_equal(got.text, want.text);
    remove_run();
    (void)state;
}

/* The best epoch's checkpoint stays beside the newest, also after a restart. */
static void backup_keeps_the_checkpoint_of_the_best_epoch(void **state)
{
    program p = usual();

    p.j.epochs = 3;
    p.o = (ch_backup_options){.monitor = "loss", .goal = CH_GOAL_MAX, .max_to_keep = 1};
    remove_run();
    assert_int_equal(run(&p), 0); /* the loss falls, so the first epoch has the largest */
    assert_true(exists("ckpt-1") && !exists("ckpt-2") && exists("ckpt-3"));
    p.j.epochs = 5;
    p.loads = "run/ckpt-1";
    assert_int_equal(run(&p), 0);
    assert_true(exists("ckpt-1") && !exists("ckpt-3") && !exists("ckpt-4") && exists("ckpt-5"));
    remove_run();
    (void)state;
}

/* The write of checkpoint 1, that of the best epoch, fails. So the best of the later epochs is the
 * best. If no step has changed the state meanwhile, it is saved again as that of the best epoch. */
static void backup_forgets_the_best_epoch_when_its_write_fails(void **state)
{
    program p = usual();

    p.o = (ch_backup_options){.monitor = "loss", .goal = CH_GOAL_MAX, .max_to_keep = 1};
    for (p.j.epochs = 1; p.j.epochs <= 4; p.j.epochs += 3) {
        remove_run();
        assert_int_equal(mkdir(t_path("run"), 0777), 0);
        assert_int_equal(mkdir(t_path("run/ckpt-1.data-00000-of-00001"), 0777), 0);
        assert_int_equal(run(&p), 0);
        assert_true(!exists("ckpt-1") && exists("ckpt-2"));
        if (p.j.epochs == 1) {
            p.j.epochs = 4; /* goes on after the first epoch, which is the best */
            assert_int_equal(run(&p), 0);
            p.j.epochs = 1;
        }
        assert_true(exists("ckpt-2") && !exists("ckpt-3"));
        assert_true(exists(p.j.epochs == 1 ? "ckpt-5" : "ckpt-4"));
    }
    remove_run();
    (void)state;
}

/* Each epoch is the best so far, so that one checkpoint is the newest and the best. */
static void backup_keeps_no_checkpoint_of_an_epoch_that_was_the_best(void **state)
{
    program p = usual();

    p.o = (ch_backup_options){.monitor = "loss", .goal = CH_GOAL_MIN, .max_to_keep = 1};
    remove_run();
    assert_int_equal(run(&p), 0);
    assert_true(!exists("ckpt-1") && !exists("ckpt-2") && exists("ckpt-3"));
    remove_run();
    (void)state;
}

/* The program was killed after the commit of its last checkpoint, before the state file. Started
 * again it trains no step, but names this checkpoint in the state file and removes the one that
 * is too old, not that of the best epoch. */
static void backup_finishes_a_save_that_was_killed_after_its_commit(void **state)
{
    char    latest[600];
    program p = usual();

    p.o = (ch_backup_options){.monitor = "loss", .goal = CH_GOAL_MAX, .max_to_keep = 1};
    remove_run();
    p.killed_after = "ckpt-3.index";
    assert_int_equal(run(&p), KILLED + SIGKILL);
    assert_true(exists("ckpt-1") && exists("ckpt-2") && exists("ckpt-3"));
    t_ok(ch_checkpoint_find_latest(t_path("run"), latest, sizeof(latest)));
    assert_string_equal(strrchr(latest, '/'), "/ckpt-2");
    p.killed_after = NULL;
    assert_int_equal(run(&p), 0);
    assert_true(exists("ckpt-1") && !exists("ckpt-2") && exists("ckpt-3") && !exists("ckpt-4"));
    t_ok(ch_checkpoint_find_latest(t_path("run"), latest, sizeof(latest)));
    assert_string_equal(strrchr(latest, '/'), "/ckpt-3");
    remove_run();
    (void)state;
}

static void backup_error_is_a_warning_when_the_disk_is_full(void **state)
{
    program p = usual();

    p.o.every_steps = 3;
    train_whole(p);
    for (int n = 40; n < 400; n += 120) {
        p.fail_from = n;
        /* The log file fails too, so the training may end with its error. */
        if (run(&p) == 0)
            assert_string_equal(got.text, want.text);
        else
            assert_non_null(strstr(message, "log.csv"));
        p.fail_from = 0;
        assert_int_equal(run(&p), 0);
        assert_string_equal(got.text, want.text);
        remove_run();
    }
    (void)state;
}

/* PR-2 */
static void backup_rejects_invalid_options(void **state)
{
    ch_callback *c = NULL;

    t_refused(ch_callback_backup(NULL, NULL, &c), CH_INVALID_ARGUMENT, "backup", "directory");
    t_refused(ch_callback_backup("", NULL, &c), CH_INVALID_ARGUMENT, "backup", "empty");
    t_refused(ch_callback_backup("x", NULL, NULL), CH_INVALID_ARGUMENT, "out", "NULL");
    t_refused(ch_callback_backup("x", &(ch_backup_options){.every_steps = -1}, &c),
              CH_INVALID_ARGUMENT, "every -1 steps", "");
    t_refused(ch_callback_backup("x", &(ch_backup_options){.overhead = 1}, &c),
              CH_INVALID_ARGUMENT, "overhead", "less than 1");
    t_refused(ch_callback_backup("x", &(ch_backup_options){.max_to_keep = -1}, &c),
              CH_INVALID_ARGUMENT, "max_to_keep", "-1");
    t_refused(ch_callback_backup("x", &(ch_backup_options){.staging_bytes = -1}, &c),
              CH_INVALID_ARGUMENT, "staging_bytes is -1", "");
    t_refused(ch_callback_backup("x", &(ch_backup_options){.monitor = ""}, &c),
              CH_INVALID_ARGUMENT, "monitor", "");
    assert_null(c);
    (void)state;
}

static void backup_keeps_no_memory_when_it_cannot_be_created(void **state)
{
    int64_t   live = ch__mem_live();
    ch_status rc = CH_RESOURCE_EXHAUSTED;

    for (int n = 1; rc != CH_OK; n++) {
        ch_callback *c = NULL;

        ch__mem_fail_at(n);
        rc = ch_callback_backup(t_path("new/run"), &(ch_backup_options){.monitor = "loss"}, &c);
        ch__mem_fail_at(0);
        assert_true(rc == CH_OK || rc == CH_RESOURCE_EXHAUSTED);
        ch_callback_unref(c);
        assert_int_equal(ch__mem_live(), live);
    }
    assert_int_equal(access(t_path("new/run"), W_OK), 0);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backup_goes_on_after_a_kill_with_the_same_bits),
        cmocka_unit_test(backup_goes_on_with_every_kind_of_interval),
        cmocka_unit_test(backup_goes_on_after_ctrl_c),
        cmocka_unit_test(backup_keeps_two_checkpoints_and_a_finished_training_trains_no_step),
        cmocka_unit_test(backup_saves_and_ends_at_sigterm),
        cmocka_unit_test(backup_saves_and_ends_at_sigterm_in_train_and_evaluate),
        cmocka_unit_test(backup_needs_little_memory_and_the_training_none),
        cmocka_unit_test(backup_abandons_a_save_that_takes_too_long),
        cmocka_unit_test(backup_ends_within_the_grace_when_the_disk_hangs),
        cmocka_unit_test(backup_ends_at_sigterm_at_the_end_of_the_training),
        cmocka_unit_test(backup_saves_and_goes_on_at_sigusr1),
        cmocka_unit_test(backup_counts_the_saves_that_a_slow_disk_makes_it_skip),
        cmocka_unit_test(backup_of_epochs_skips_no_save_when_the_disk_is_slow),
        cmocka_unit_test(backup_keeps_the_checkpoint_of_the_best_epoch),
        cmocka_unit_test(backup_forgets_the_best_epoch_when_its_write_fails),
        cmocka_unit_test(backup_keeps_no_checkpoint_of_an_epoch_that_was_the_best),
        cmocka_unit_test(backup_finishes_a_save_that_was_killed_after_its_commit),
        cmocka_unit_test(backup_error_is_a_warning_when_the_disk_is_full),
        cmocka_unit_test(backup_rejects_invalid_options),
        cmocka_unit_test(backup_keeps_no_memory_when_it_cannot_be_created),
    };

    return cmocka_run_group_tests_name("backup", tests, t_folder_make, t_folder_remove);
}

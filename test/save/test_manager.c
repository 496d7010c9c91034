/* test/save/test_manager.c -- managers: numbers, intervals, removal of old checkpoints.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "base/sys.h"
#include "base/thread.h"
#include "cohort/checkpoint_reader.h"
#include "help.h"
#include "save/manager.h"

static double clock_seconds = 10000;

static double test_clock(void)
{
    return clock_seconds;
}

typedef struct counted {
    ch_checkpoint         *c;
    ch_var                *step;
    ch_checkpoint_manager *m;
} counted;

static void begin(counted *x, const char *directory, ch_manager_options opt)
{
    ch_tensor *zero = NULL;

    t_ok(ch_tensor_scalar(CH_I64, 0, &zero));
    x->step = t_var(NULL, "step", zero);
    t_ok(ch_checkpoint_new(&x->c));
    t_ok(ch_checkpoint_add_var(x->c, "step", x->step));
    if (opt.interval > 0)
        opt.step = x->step;
    t_ok(ch__manager_new(x->c, t_path(directory), &opt, test_clock, &x->m));
}

static void end(counted *x)
{
    ch_checkpoint_manager_unref(x->m);
    ch_checkpoint_unref(x->c);
    ch_var_unref(x->step);
}

static void set_step(counted *x, int64_t step)
{
    ch_tensor *t = NULL;

    t_ok(ch_tensor_scalar(CH_I64, (double)step, &t));
    t_ok(ch_var_set(x->step, t));
    ch_tensor_unref(t);
}

static int64_t get_step(counted *x)
{
    ch_tensor *t = NULL;
    int64_t    step;

    t_ok(ch_var_get(x->step, &t));
    step = *(const int64_t *)ch_tensor_data(t);
    ch_tensor_unref(t);
    return step;
}

static bool exists(const char *name)
{
    struct stat about;
    char        path[600];

    snprintf(path, sizeof(path), "%s.index", t_path(name));
    return stat(path, &about) == 0;
}

/* Saves, and returns the name of the checkpoint, or NULL if no save was due. */
static const char *save(counted *x, bool force)
{
    const char *path = NULL;

    t_ok(ch_checkpoint_manager_save(x->m, force, &path));
    t_ok(ch_checkpoint_wait(x->c));
    return path != NULL ? strrchr(path, '/') + 1 : NULL;
}

/* CM-6, CM-7, CM-10 */
static void oldest_checkpoints_are_removed(void **state)
{
    counted x;

    begin(&x, "a", (ch_manager_options){.max_to_keep = 2});
    for (int i = 1; i <= 4; i++) {
        char name[20];

        snprintf(name, sizeof(name), "ckpt-%d", i);
        set_step(&x, i);
        assert_string_equal(save(&x, false), name);
    }
    assert_false(exists("a/ckpt-1") || exists("a/ckpt-2"));
    assert_true(exists("a/ckpt-3") && exists("a/ckpt-4"));
    end(&x);

    begin(&x, "a", (ch_manager_options){.max_to_keep = 1});
    assert_true(exists("a/ckpt-3")); /* removed by the first save only */
    t_ok(ch_checkpoint_manager_restore(x.m, NULL, NULL));
    assert_int_equal(get_step(&x), 4);
    assert_string_equal(save(&x, false), "ckpt-5");
    assert_false(exists("a/ckpt-3") || exists("a/ckpt-4"));
    end(&x);
    (void)state;
}

/* CM-13: the timeline of TensorFlow's test */
static void checkpoints_of_some_hours_are_preserved(void **state)
{
    static const struct {
        double      time;
        const char *present, *absent;
    } at[] = {{14330, "b/ckpt-1", "b/ckpt-4"},
              {16130, "b/ckpt-1", "b/ckpt-2"},
              {17930, "b/ckpt-4", "b/ckpt-3"},
              {19730, "b/ckpt-4", "b/ckpt-2"}};
    counted x;

    clock_seconds = 3;
    begin(&x, "b", (ch_manager_options){.max_to_keep = 2});
    clock_seconds = 10000;
    assert_string_equal(save(&x, false), "ckpt-1");
    clock_seconds = 13610;
    assert_string_equal(save(&x, false), "ckpt-2");
    end(&x);
    begin(&x, "b", (ch_manager_options){.max_to_keep = 2, .keep_every_hours = 1.5});
    for (int i = 0; i < 4; i++) {
        clock_seconds = at[i].time;
        save(&x, false);
        assert_true(exists(at[i].present));
        assert_false(exists(at[i].absent));
    }
    assert_true(exists("b/ckpt-1"));
    end(&x);
    (void)state;
}

/* CM-3: if the state file is missing, empty or damaged, the directory is searched */
static void directory_is_searched_when_the_state_file_is_lost(void **state)
{
    static const char *const text[] = {NULL, "", "model_checkpoint_path: ckpt-1", "\xff\x01"};
    char                     latest[600];

    for (size_t i = 0; i < sizeof(text) / sizeof(text[0]); i++) {
        FILE   *f;
        counted x;

        begin(&x, "lost", (ch_manager_options){.max_to_keep = 2});
        set_step(&x, 5 + (int64_t)i);
        save(&x, false);
        end(&x);
        assert_int_equal(unlink(t_path("lost/checkpoint")), 0);
        if (text[i] != NULL) {
            f = fopen(t_path("lost/checkpoint"), "w");
            assert_non_null(f);
            fputs(text[i], f);
            fclose(f);
        }
        assert_int_equal(ch_checkpoint_find_latest(t_path("lost"), latest, sizeof(latest)),
                         text[i] == NULL ? CH_NOT_FOUND
                         : i == 1        ? CH_INVALID_ARGUMENT
                                         : CH_DATA_LOSS);
        begin(&x, "lost", (ch_manager_options){.max_to_keep = 2});
        t_ok(ch_checkpoint_manager_restore(x.m, NULL, NULL));
        assert_int_equal(get_step(&x), 5 + (int64_t)i);
        end(&x);
    }
    (void)state;
}

/* CM-8: if the clock is behind, checkpoints of earlier managers are not removed */
static void clock_that_is_behind_removes_nothing_old(void **state)
{
    counted x;

    clock_seconds = 20000;
    begin(&x, "clock", (ch_manager_options){.max_to_keep = 1});
    save(&x, false);
    clock_seconds = 20010;
    save(&x, false);
    assert_false(exists("clock/ckpt-1"));
    end(&x);
    clock_seconds = 15000;
    begin(&x, "clock", (ch_manager_options){.max_to_keep = 1});
    for (int i = 0; i < 3; i++) {
        clock_seconds += 1;
        save(&x, false);
    }
    assert_true(exists("clock/ckpt-2") && exists("clock/ckpt-5"));
    assert_false(exists("clock/ckpt-3") || exists("clock/ckpt-4"));
    end(&x);
    clock_seconds = 20000;
    (void)state;
}

/* ---- slow disks ---- */

/* A disk that writes nothing before the gate is opened. The program's own thread does not
 * wait. */
typedef struct slow_disk {
    ch_gate     gate;
    atomic_bool is_open;
    pthread_t   program;
} slow_disk;

static void wait_for_disk(void *arg, const ch_file_op *op)
{
    slow_disk *d = arg;

    while (op->kind == CH_FILE_WRITE && !pthread_equal(pthread_self(), d->program) &&
           !atomic_load(&d->is_open)) {
        unsigned seen = atomic_load(&d->gate);

        if (!atomic_load(&d->is_open))
            ch__gate_idle_until(&d->gate, seen, INT64_MAX);
    }
}

/* A save that is due while the last one is being written is skipped and counted. A forced save
 * waits instead. */
static void save_is_skipped_and_counted_when_the_last_is_being_written(void **state)
{
    slow_disk   disk = {.program = pthread_self()};
    const char *path = NULL;
    char        text[2000];
    counted     x;

    begin(&x, "slow", (ch_manager_options){.interval = 1});
    ch__file_observe(wait_for_disk, &disk);
    for (int i = 1; i <= 3; i++) {
        set_step(&x, i);
        t_ok(ch_checkpoint_manager_save(x.m, false, &path));
        assert_int_equal(path != NULL, i == 1);
    }
    ch_checkpoint_print_plan(x.c, text, sizeof(text));
    assert_non_null(strstr(
        text, "saves 1, of these deltas 0, skipped because another was being written 2"));
    atomic_store(&disk.is_open, true);
    ch__gate_open(&disk.gate);
    t_ok(ch_checkpoint_manager_save(x.m, true, &path));
    assert_non_null(path);
    t_ok(ch_checkpoint_wait(x.c));
    ch__file_observe(NULL, NULL);
    assert_true(exists("slow/ckpt-1") && exists("slow/ckpt-2"));
    ch_checkpoint_print_plan(x.c, text, sizeof(text));
    assert_non_null(strstr(
        text, "saves 2, of these deltas 0, skipped because another was being written 2"));
    end(&x);
    (void)state;
}

/* CM-11 */
static void saves_wait_for_the_interval(void **state)
{
    counted x;

    begin(&x, "c", (ch_manager_options){.interval = 10});
    assert_string_equal(save(&x, false), "ckpt-1"); /* no step is known yet */
    set_step(&x, 9);
    assert_null(save(&x, false));
    set_step(&x, 10);
    assert_string_equal(save(&x, false), "ckpt-2");
    assert_null(save(&x, true)); /* the same step is never saved again */
    set_step(&x, 11);
    assert_null(save(&x, false));
    assert_string_equal(save(&x, true), "ckpt-3");
    end(&x);

    begin(&x, "c", (ch_manager_options){.interval = 10});
    t_ok(ch_checkpoint_manager_restore(x.m, NULL, NULL));
    assert_int_equal(get_step(&x), 11);
    assert_null(save(&x, false)); /* CM-12: the restored step counts */
    end(&x);
    (void)state;
}

static ch_status count_call(void *arg)
{
    ++*(int *)arg;
    return CH_OK;
}

/* CM-12 */
static void init_is_called_without_checkpoint(void **state)
{
    counted     x;
    int         calls = 0;
    const char *path = "";

    begin(&x, "d", (ch_manager_options){.init = count_call, .init_arg = &calls});
    t_ok(ch_checkpoint_manager_restore(x.m, NULL, &path));
    assert_null(path);
    assert_int_equal(calls, 1);
    save(&x, false);
    t_ok(ch_checkpoint_manager_restore(x.m, NULL, &path));
    assert_string_equal(path, t_path("d/ckpt-1"));
    assert_int_equal(calls, 1);
    end(&x);
    (void)state;
}

/* CM-5, CM-14: unlike TensorFlow, Cohort refuses the second manager */
static void wrong_options_are_refused(void **state)
{
    counted                x;
    ch_checkpoint_manager *m = NULL;
    char                   pid[40];

    begin(&x, "e", (ch_manager_options){.max_to_keep = 1});
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    t_refused(ch_checkpoint_manager_new(x.c, t_path("e"), NULL, &m), CH_FAILED_PRECONDITION,
              pid, "e");
    const ch_manager_options wrong[] = {
        {.max_to_keep = -1}, {.interval = 3}, {.interval = -1},         {.overhead = 1.5},
        {.overhead = -1},    {.name = "a/b"}, {.keep_every_hours = -2}, {.name = ""}};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        t_refused(ch_checkpoint_manager_new(x.c, t_path("f"), &wrong[i], &m),
                  CH_INVALID_ARGUMENT, "manager", "f");
    assert_null(m);
    end(&x);
    (void)state;
}

/* Changes a byte in the middle of a file. */
static void damage(const char *name)
{
    int  fd = open(t_path(name), O_RDWR);
    char byte = 0;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, 0), 1);
    byte ^= 0x40;
    assert_int_equal(pwrite(fd, &byte, 1, 0), 1);
    close(fd);
}

/* PR-13: the newest checkpoint that verifies is restored */
static void damaged_checkpoints_are_skipped(void **state)
{
    counted     x;
    const char *path = NULL;

    begin(&x, "g", (ch_manager_options){.max_to_keep = 0});
    for (int i = 1; i <= 4; i++) {
        set_step(&x, 10 * i);
        save(&x, false);
    }
    damage("g/ckpt-4.data-00000-of-00001");
    unlink(t_path("g/ckpt-3.data-00000-of-00001"));
    t_ok(ch_checkpoint_manager_restore(x.m, NULL, &path));
    assert_string_equal(path, t_path("g/ckpt-2"));
    assert_int_equal(get_step(&x), 20);
    assert_string_equal(save(&x, false), "ckpt-5"); /* no number is used twice */
    damage("g/ckpt-5.index");
    damage("g/ckpt-2.data-00000-of-00001");
    assert_int_equal(truncate(t_path("g/ckpt-1.data-00000-of-00001"), 1), 0);
    set_step(&x, 77);
    t_refused(ch_checkpoint_manager_restore(x.m, NULL, &path), CH_DATA_LOSS, "ckpt-1",
              "ckpt-5");
    assert_int_equal(get_step(&x), 77); /* nothing has changed */
    assert_null(path);
    end(&x);
    (void)state;
}

/* CM-9: paths of a plain save are not removed */
static void checkpoints_of_a_plain_save_stay(void **state)
{
    counted x;
    char    path[600];

    begin(&x, "h", (ch_manager_options){.max_to_keep = 1});
    ch_checkpoint_manager_unref(x.m);
    for (int i = 1; i <= 2; i++) {
        t_ok(ch_checkpoint_save(x.c, t_path("h/ckpt"), &(ch_write_options){.wait = true}, path,
                                sizeof(path)));
        assert_int_equal(path[strlen(path) - 1], '0' + i);
    }
    t_ok(ch__manager_new(x.c, t_path("h"), &(ch_manager_options){.max_to_keep = 1}, test_clock,
                         &x.m));
    assert_string_equal(save(&x, false), "ckpt-3");
    assert_string_equal(save(&x, false), "ckpt-4");
    assert_true(exists("h/ckpt-1") && exists("h/ckpt-2") && exists("h/ckpt-4"));
    assert_false(exists("h/ckpt-3"));
    end(&x);
    (void)state;
}

/* A checkpoint that stays beside the newest, as the best of a training does. */
static void kept_checkpoint_stays(void **state)
{
    counted x;

    begin(&x, "i", (ch_manager_options){.max_to_keep = 2});
    save(&x, false);
    t_ok(ch__manager_keep(x.m, t_path("i/ckpt-1")));
    for (int i = 0; i < 4; i++)
        save(&x, false);
    assert_true(exists("i/ckpt-1") && exists("i/ckpt-4") && exists("i/ckpt-5"));
    assert_false(exists("i/ckpt-2") || exists("i/ckpt-3"));
    t_ok(ch__manager_keep(x.m, "ckpt-5"));
    save(&x, false);
    assert_false(exists("i/ckpt-1") || exists("i/ckpt-4"));
    assert_true(exists("i/ckpt-5") && exists("i/ckpt-6"));
    end(&x);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oldest_checkpoints_are_removed),
        cmocka_unit_test(checkpoints_of_some_hours_are_preserved),
        cmocka_unit_test(directory_is_searched_when_the_state_file_is_lost),
        cmocka_unit_test(clock_that_is_behind_removes_nothing_old),
        cmocka_unit_test(save_is_skipped_and_counted_when_the_last_is_being_written),
        cmocka_unit_test(saves_wait_for_the_interval),
        cmocka_unit_test(init_is_called_without_checkpoint),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(damaged_checkpoints_are_skipped),
        cmocka_unit_test(checkpoints_of_a_plain_save_stay),
        cmocka_unit_test(kept_checkpoint_stays),
    };

    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}

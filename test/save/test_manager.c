/* test/save/test_manager.c -- managers: numbers, intervals, removal of old checkpoints.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <math.h>

#include "base/sys.h"
#include "base/thread.h"
#include "ckpt/directory.h"
#include "ckpt/state_file.h"
#include "cohort/checkpoint_reader.h"
#include "counted.h"
#include "save/save.h"
#include "slow_disk.h"

/* Saves, and returns the name of the checkpoint, or NULL if no save was due. */
static const char *save(t_counted *x, bool force)
{
    const char *path = NULL;

    t_ok(ch_checkpoint_manager_save(x->m, force, &path));
    t_ok(ch_checkpoint_wait(x->c));
    return path != NULL ? strrchr(path, '/') + 1 : NULL;
}

/* Checks that the state file lists the checkpoints "ckpt-<from>" to "ckpt-<to>", saved at these
 * seconds and each second after, and names the last as the newest. */
static void check_state_file(const char *directory, int from, int to, double seconds)
{
    ch_state_file s;
    char          name[20];

    t_ok(ch__state_file_read(t_path(directory), &s));
    assert_int_equal(s.n, to - from + 1);
    for (int i = 0; i < s.n; i++) {
        snprintf(name, sizeof(name), "ckpt-%d", from + i);
        assert_string_equal(s.path[i], name);
        assert_true(s.time[i] == seconds + i);
    }
    assert_string_equal(s.latest, name);
    ch__free(s.memory);
}

/* CM-6, CM-7, CM-10 */
static void oldest_checkpoints_are_removed(void **state)
{
    t_counted x;
    double    began = t_clock_seconds + 1;

    t_begin_counted(&x, "a", (ch_manager_options){.max_to_keep = 2});
    for (int i = 1; i <= 4; i++) {
        char name[20];

        snprintf(name, sizeof(name), "ckpt-%d", i);
        t_set_number(&x, i);
        t_clock_seconds += 1;
        assert_string_equal(save(&x, false), name);
        assert_int_equal(x.c->counter, i);
        if (i <= 2)
            check_state_file("a", 1, i, began);
        else
            check_state_file("a", i - 1, i, began + i - 2); /* written again after the sweep */
    }
    assert_false(t_has_checkpoint("a/ckpt-1") || t_has_checkpoint("a/ckpt-2"));
    assert_true(t_has_checkpoint("a/ckpt-3") && t_has_checkpoint("a/ckpt-4"));
    t_end_counted(&x);

    t_begin_counted(&x, "a", (ch_manager_options){.max_to_keep = 1});
    assert_true(t_has_checkpoint("a/ckpt-3")); /* removed by the first save only */
    t_ok(ch_checkpoint_manager_restore(x.m, NULL, NULL));
    assert_int_equal(t_get_number(&x), 4);
    assert_string_equal(save(&x, false), "ckpt-5");
    assert_false(t_has_checkpoint("a/ckpt-3") || t_has_checkpoint("a/ckpt-4"));
    t_end_counted(&x);
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
    t_counted x;

    t_clock_seconds = 3;
    t_begin_counted(&x, "b", (ch_manager_options){.max_to_keep = 2});
    t_clock_seconds = 10000;
    assert_string_equal(save(&x, false), "ckpt-1");
    t_clock_seconds = 13610;
    assert_string_equal(save(&x, false), "ckpt-2");
    t_end_counted(&x);
    t_begin_counted(&x, "b", (ch_manager_options){.max_to_keep = 2, .keep_every_hours = 1.5});
    for (int i = 0; i < 4; i++) {
        t_clock_seconds = at[i].time;
        save(&x, false);
        assert_true(t_has_checkpoint(at[i].present));
        assert_false(t_has_checkpoint(at[i].absent));
    }
    assert_true(t_has_checkpoint("b/ckpt-1"));
    t_end_counted(&x);
    (void)state;
}

/* CM-3: if the state file is missing, empty or damaged, the directory is searched */
static void directory_is_searched_when_the_state_file_is_lost(void **state)
{
    static const char *const text[] = {NULL, "", "model_checkpoint_path: ckpt-1", "\xff\x01"};
    char                     latest[600];

    for (size_t i = 0; i < sizeof(text) / sizeof(text[0]); i++) {
        FILE     *f;
        t_counted x;

        t_begin_counted(&x, "lost", (ch_manager_options){.max_to_keep = 2});
        t_set_number(&x, 5 + (int64_t)i);
        save(&x, false);
        t_end_counted(&x);
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
        t_begin_counted(&x, "lost", (ch_manager_options){.max_to_keep = 2});
        t_ok(ch_checkpoint_manager_restore(x.m, NULL, NULL));
        assert_int_equal(t_get_number(&x), 5 + (int64_t)i);
        t_end_counted(&x);
    }
    (void)state;
}

/* The state that a program leaves that is killed after the commit of ckpt-3 and before the state
 * file: a manager of two checkpoints has made the others. */
static void leave_interrupted_save(const char *directory)
{
    char      path[40];
    t_counted x;

    t_begin_counted(&x, directory, (ch_manager_options){.max_to_keep = 2});
    for (int i = 1; i <= 3; i++) {
        snprintf(path, sizeof(path), "%s/ckpt-%d", directory, i);
        t_set_number(&x, i);
        t_clock_seconds += 1;
        if (i < 3)
            assert_string_equal(save(&x, false), strchr(path, '/') + 1);
        else
            t_ok(ch_checkpoint_write(x.c, t_path(path), &(ch_write_options){.wait = true}));
    }
    t_end_counted(&x);
}

/* The rest of a save that a kill has interrupted is done when its checkpoint has been restored:
 * the state file names it, and what is too old is removed. */
static void restore_finishes_a_save_that_was_killed_before_the_state_file(void **state)
{
    char      latest[600];
    t_counted x;

    leave_interrupted_save("half");
    t_begin_counted(&x, "half", (ch_manager_options){.max_to_keep = 2});
    check_state_file("half", 1, 2, t_clock_seconds - 2); /* ckpt-3 is not verified yet */
    assert_true(t_has_checkpoint("half/ckpt-1"));
    t_ok(ch_checkpoint_manager_restore(x.m, NULL, NULL));
    assert_int_equal(t_get_number(&x), 3);
    t_ok(ch_checkpoint_find_latest(t_path("half"), latest, sizeof(latest)));
    assert_string_equal(strrchr(latest, '/'), "/ckpt-3");
    assert_false(t_has_checkpoint("half/ckpt-1"));
    assert_true(t_has_checkpoint("half/ckpt-2") && t_has_checkpoint("half/ckpt-3"));
    t_end_counted(&x);
    (void)state;
}

/* If the checkpoint of such a save is damaged, the state file names the one before, and the
 * damaged one takes nobody's place. */
static void restore_leaves_a_damaged_checkpoint_out_of_the_state_file(void **state)
{
    char       latest[600];
    t_counted  x;
    t_warnings w;

    leave_interrupted_save("bad");
    assert_int_equal(truncate(t_path("bad/ckpt-3.data-00000-of-00001"), 1), 0);
    t_begin_counted(&x, "bad", (ch_manager_options){.max_to_keep = 1});
    t_keep_warnings(&w);
    t_ok(ch_checkpoint_manager_restore(x.m, NULL, NULL));
    t_show_warnings();
    assert_int_equal(w.n, 1);
    assert_int_equal(t_get_number(&x), 2);
    t_ok(ch_checkpoint_find_latest(t_path("bad"), latest, sizeof(latest)));
    assert_string_equal(strrchr(latest, '/'), "/ckpt-2");
    assert_false(t_has_checkpoint("bad/ckpt-1"));
    assert_true(t_has_checkpoint("bad/ckpt-2"));
    assert_string_equal(save(&x, false), "ckpt-4");
    t_ok(ch_checkpoint_find_latest(t_path("bad"), latest, sizeof(latest)));
    assert_string_equal(strrchr(latest, '/'), "/ckpt-4");
    assert_false(t_has_checkpoint("bad/ckpt-2") || t_has_checkpoint("bad/ckpt-3"));
    t_end_counted(&x);
    (void)state;
}

/* CM-8: if the clock is behind, checkpoints of earlier managers are not removed */
static void clock_that_is_behind_removes_nothing_old(void **state)
{
    t_counted  x;
    t_warnings w;

    t_clock_seconds = 20000;
    t_begin_counted(&x, "clock", (ch_manager_options){.max_to_keep = 1});
    save(&x, false);
    t_clock_seconds = 20010;
    save(&x, false);
    assert_false(t_has_checkpoint("clock/ckpt-1"));
    t_end_counted(&x);
    t_clock_seconds = 15000;
    t_keep_warnings(&w);
    t_begin_counted(&x, "clock", (ch_manager_options){.max_to_keep = 1});
    t_show_warnings();
    assert_int_equal(w.n, 1);
    assert_non_null(strstr(w.text, "the clock is behind"));
    for (int i = 0; i < 3; i++) {
        t_clock_seconds += 1;
        save(&x, false);
    }
    assert_true(t_has_checkpoint("clock/ckpt-2") && t_has_checkpoint("clock/ckpt-5"));
    assert_false(t_has_checkpoint("clock/ckpt-3") || t_has_checkpoint("clock/ckpt-4"));
    t_end_counted(&x);
    t_clock_seconds = 20000;
    (void)state;
}

/* ---- slow disks ---- */

/* A save that is due while the last one is being written is skipped and t_counted. A forced save
 * waits instead. */
static void save_is_skipped_and_counted_when_the_last_is_being_written(void **state)
{
    t_slow_disk disk;
    const char *path = NULL;
    char        text[2000];
    t_warnings  w;
    t_counted   x;

    t_keep_warnings(&w);
    t_begin_counted(&x, "slow", (ch_manager_options){.interval = 1});
    t_slow_disk_begin(&disk);
    for (int i = 1; i <= 3; i++) {
        t_set_number(&x, i);
        t_ok(ch_checkpoint_manager_save(x.m, false, &path));
        assert_int_equal(path != NULL, i == 1);
    }
    t_show_warnings();
    assert_int_equal(w.n, 1); /* of two skipped saves */
    assert_non_null(strstr(w.text, "it is skipped; save less often, or use a faster disk"));
    ch_checkpoint_print_plan(x.c, text, sizeof(text));
    assert_non_null(strstr(
        text, "saves: 1, of these deltas: 0; skipped because another was being written: 2"));
    t_open_disk(&disk);
    t_ok(ch_checkpoint_manager_save(x.m, true, &path));
    assert_non_null(path);
    t_ok(ch_checkpoint_wait(x.c));
    ch__file_observe(NULL, NULL);
    assert_true(t_has_checkpoint("slow/ckpt-1") && t_has_checkpoint("slow/ckpt-2"));
    ch_checkpoint_print_plan(x.c, text, sizeof(text));
    assert_non_null(strstr(
        text, "saves: 2, of these deltas: 0; skipped because another was being written: 2"));
    t_end_counted(&x);
    (void)state;
}

static void *open_disk_later(void *arg)
{
    enum { NS = 50000000 };
    t_slow_disk *d = arg;
    ch_gate      never = 0;

    for (int64_t end = ch__now_ns() + NS; ch__now_ns() < end;)
        ch__gate_idle_until(&never, 0, end);
    t_open_disk(d);
    return NULL;
}

/* A step whose write has failed is not saved: a save with force, and one that is due by the
 * interval, try again. The error is returned by the next call of the manager, or of the
 * checkpoint. */
static void step_whose_write_failed_is_saved_again(void **state)
{
    t_counted x;

    t_begin_counted(&x, "again", (ch_manager_options){.interval = 10});
    for (int i = 1; i <= 4; i++) {
        bool        asks_manager = i % 2 == 0, force = i > 2;
        t_slow_disk disk;
        char        in_the_way[80];

        snprintf(in_the_way, sizeof(in_the_way), "again/ckpt-%d.data-00000-of-00001",
                 2 * i - 1);
        t_set_number(&x, i * 10);
        t_slow_disk_begin(&disk);
        t_ok(ch_checkpoint_manager_save(x.m, false, NULL));
        assert_int_equal(mkdir(t_path(in_the_way), 0777), 0); /* the rename fails */
        atomic_store(&disk.is_open, true);
        ch__gate_open(&disk.gate);
        ch__save_wait_until(x.c->save, INT64_MAX);
        ch__file_observe(NULL, NULL);
        assert_int_not_equal(asks_manager ? ch_checkpoint_manager_save(x.m, force, NULL)
                                          : ch_checkpoint_wait(x.c),
                             CH_OK);
        assert_int_equal(rmdir(t_path(in_the_way)), 0);
        assert_non_null(save(&x, force));
        assert_null(save(&x, true)); /* it is saved */
    }
    t_end_counted(&x);
    (void)state;
}

/* CK-16: values are copied first, and there is one write at a time */
static void save_copies_first_and_writes_one_at_a_time(void **state)
{
    t_slow_disk    disk;
    ch_checkpoint *c;
    pthread_t      opener;
    t_counted      x;

    t_begin_counted(&x, "async", (ch_manager_options){.max_to_keep = 0});
    ch_checkpoint_manager_unref(x.m);
    x.m = NULL;
    c = x.c;
    t_slow_disk_begin(&disk);
    t_set_number(&x, 7);
    t_ok(ch_checkpoint_save(c, t_path("async/x"), NULL, NULL, 0));
    t_set_number(&x, 8); /* the program goes on, and nothing of the save is on disk */
    assert_false(t_has_checkpoint("async/x-1"));
    assert_int_equal(pthread_create(&opener, NULL, open_disk_later, &disk), 0);
    t_ok(ch_checkpoint_save(c, t_path("async/x"), NULL, NULL, 0));
    assert_true(t_has_checkpoint("async/x-1")); /* the second save has waited for the first */
    t_ok(ch_checkpoint_restore(c, t_path("async/x-1"), NULL, NULL));
    assert_int_equal(t_get_number(&x), 7);
    t_ok(ch_checkpoint_restore(c, t_path("async/x-2"), NULL, NULL));
    assert_int_equal(t_get_number(&x), 8);
    assert_int_equal(pthread_join(opener, NULL), 0);
    ch__file_observe(NULL, NULL);
    t_end_counted(&x);
    (void)state;
}

/* Without an interval, each save is a request of the program. It waits for the last write, and
 * the plan shows the wait. */
static void save_waits_for_the_last_write_and_shows_it_when_there_is_no_interval(void **state)
{
    t_slow_disk disk;
    const char *path = NULL;
    int64_t     began, total;
    pthread_t   opener;
    t_counted   x;

    t_begin_counted(&x, "request", (ch_manager_options){.max_to_keep = 0});
    t_slow_disk_begin(&disk);
    t_ok(ch_checkpoint_manager_save(x.m, false, NULL));
    assert_int_equal(pthread_create(&opener, NULL, open_disk_later, &disk), 0);
    began = ch__now_ns();
    t_ok(ch_checkpoint_manager_save(x.m, false, &path));
    total = ch__now_ns() - began;
    assert_non_null(path);
    assert_int_equal(x.c->costs.n_skipped, 0);
    assert_true(x.c->costs.blocked_ns <= total && 2 * x.c->costs.blocked_ns > total);
    assert_int_equal(pthread_join(opener, NULL), 0);
    t_ok(ch_checkpoint_wait(x.c));
    ch__file_observe(NULL, NULL);
    t_end_counted(&x);
    (void)state;
}

/* CM-11 */
static void saves_wait_for_the_interval(void **state)
{
    t_counted x;

    t_begin_counted(&x, "c", (ch_manager_options){.interval = 10});
    assert_string_equal(save(&x, false), "ckpt-1"); /* no step is known yet */
    t_set_number(&x, 9);
    assert_null(save(&x, false));
    t_set_number(&x, 10);
    assert_string_equal(save(&x, false), "ckpt-2");
    assert_null(save(&x, true)); /* the same step is never saved again */
    t_set_number(&x, 11);
    assert_null(save(&x, false));
    assert_string_equal(save(&x, true), "ckpt-3");
    t_end_counted(&x);

    t_begin_counted(&x, "c", (ch_manager_options){.interval = 10});
    t_ok(ch_checkpoint_manager_restore(x.m, NULL, NULL));
    assert_int_equal(t_get_number(&x), 11);
    assert_null(save(&x, false)); /* CM-12: the restored step counts */
    t_end_counted(&x);
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
    t_counted   x;
    int         calls = 0;
    const char *path = "";

    t_begin_counted(&x, "d", (ch_manager_options){.init = count_call, .init_arg = &calls});
    t_ok(ch_checkpoint_manager_restore(x.m, NULL, &path));
    assert_null(path);
    assert_int_equal(calls, 1);
    save(&x, false);
    t_ok(ch_checkpoint_manager_restore(x.m, NULL, &path));
    assert_string_equal(path, t_path("d/ckpt-1"));
    assert_int_equal(calls, 1);
    t_end_counted(&x);
    (void)state;
}

/* CM-5, CM-14: unlike TensorFlow, Cohort refuses the second manager */
static void wrong_options_are_refused(void **state)
{
    t_counted              x;
    ch_checkpoint_manager *m = NULL;
    char                   pid[40], long_name[152];

    memset(long_name, 'n', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = '\0';
    t_begin_counted(&x, "e", (ch_manager_options){.max_to_keep = 1});
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    t_refused(ch_checkpoint_manager_new(x.c, t_path("e"), NULL, &m), CH_FAILED_PRECONDITION,
              pid, "e");
    const ch_manager_options wrong[] = {
        {.name = ".x"},           {.name = long_name}, {.max_to_keep = -1}, {.interval = 3},
        {.interval = -1},         {.overhead = 1.5},   {.overhead = -1},    {.name = "a/b"},
        {.keep_every_hours = -2}, {.name = ""}};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        t_refused(ch_checkpoint_manager_new(x.c, t_path("f"), &wrong[i], &m),
                  CH_INVALID_ARGUMENT, "manager", "f");
    t_refused(ch_checkpoint_manager_new(x.c, t_path("f"),
                                        &(ch_manager_options){.keep_every_hours = NAN}, &m),
              CH_INVALID_ARGUMENT, "manager", "keep_every_hours is not 0 or more");
    assert_null(m);
    t_end_counted(&x);
    (void)state;
}

/* The longest name: files have names of their own beside it. */
static void manager_with_the_longest_name_finds_its_checkpoints(void **state)
{
    char        name[151], path[200];
    const char *found = NULL;
    t_counted   x;

    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    for (int i = 0; i < 2; i++) {
        t_begin_counted(&x, "long", (ch_manager_options){.name = name});
        t_ok(ch_checkpoint_manager_restore(x.m, NULL, &found));
        assert_int_equal(found != NULL, i > 0);
        snprintf(path, sizeof(path), "%s-%d", name, i + 1);
        assert_string_equal(save(&x, false), path);
        t_end_counted(&x);
    }
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
    t_counted   x;
    const char *path = NULL;

    t_begin_counted(&x, "g", (ch_manager_options){.max_to_keep = 0});
    for (int i = 1; i <= 4; i++) {
        t_set_number(&x, 10 * i);
        save(&x, false);
    }
    damage("g/ckpt-4.data-00000-of-00001");
    unlink(t_path("g/ckpt-3.data-00000-of-00001"));
    t_ok(ch_checkpoint_manager_restore(x.m, NULL, &path));
    assert_string_equal(path, t_path("g/ckpt-2"));
    assert_int_equal(t_get_number(&x), 20);
    assert_string_equal(save(&x, false), "ckpt-5"); /* no number is used twice */
    damage("g/ckpt-5.index");
    damage("g/ckpt-2.data-00000-of-00001");
    assert_int_equal(truncate(t_path("g/ckpt-1.data-00000-of-00001"), 1), 0);
    t_set_number(&x, 77);
    t_refused(ch_checkpoint_manager_restore(x.m, NULL, &path), CH_DATA_LOSS, "ckpt-1",
              "ckpt-5");
    assert_int_equal(t_get_number(&x), 77); /* nothing has changed */
    assert_null(path);
    t_end_counted(&x);
    (void)state;
}

/* Damaged checkpoints do not take the place of the one that a restore has gone back to. They
 * are removed when newer ones have been saved. */
static void checkpoint_with_a_file_that_is_not_regular_is_skipped(void **state)
{
    static const char *const file[] = {"not-regular/ckpt-%d.index",
                                       "not-regular/ckpt-%d.data-00000-of-00001"};
    t_counted                x;
    t_warnings               w;
    char                     path[80];

    t_begin_counted(&x, "not-regular", (ch_manager_options){.max_to_keep = 1});
    for (int i = 0; i < 4; i++) {
        t_set_number(&x, 10);
        save(&x, false);
        t_set_number(&x, 20);
        t_ok(ch_checkpoint_manager_restore(x.m, NULL, NULL));
        t_ok(ch_checkpoint_write(x.c, t_path("not-regular/ckpt-99"),
                                 &(ch_write_options){.wait = true}));
        snprintf(path, sizeof(path), file[i % 2], 99);
        assert_int_equal(unlink(t_path(path)), 0);
        assert_int_equal(i < 2 ? mkdir(t_path(path), 0777) : mkfifo(t_path(path), 0666), 0);
        t_set_number(&x, 20);
        t_keep_warnings(&w);
        t_ok(ch_checkpoint_manager_restore(x.m, NULL, NULL));
        t_show_warnings();
        assert_non_null(strstr(w.text, "byte 0: not a regular file"));
        assert_int_equal(t_get_number(&x), 10);
        if (i < 2)
            assert_int_equal(rmdir(t_path(path)), 0);
        t_ok(ch__ckpt_remove(t_path("not-regular/ckpt-99"), true));
    }
    t_end_counted(&x);
    (void)state;
}

/* A directory that has the name of a file of an old checkpoint stays, and no save fails. */
static void directory_in_the_place_of_an_old_checkpoint_stays(void **state)
{
    t_counted x;

    t_begin_counted(&x, "in-the-way", (ch_manager_options){.max_to_keep = 1});
    save(&x, false);
    assert_int_equal(unlink(t_path("in-the-way/ckpt-1.index")), 0);
    assert_int_equal(mkdir(t_path("in-the-way/ckpt-1.index"), 0777), 0);
    for (int i = 0; i < 2; i++)
        save(&x, false);
    assert_int_equal(rmdir(t_path("in-the-way/ckpt-1.index")), 0);
    t_end_counted(&x);
    (void)state;
}

static void damaged_checkpoints_do_not_count_as_the_newest(void **state)
{
    t_counted   x;
    const char *path = NULL;

    for (int is_index = 0; is_index < 2; is_index++) {
        const char *folder = is_index ? "count-index" : "count-data";
        char        name[64];

        t_begin_counted(&x, folder, (ch_manager_options){.max_to_keep = 3});
        for (int i = 1; i <= 3; i++) {
            t_set_number(&x, i);
            save(&x, false);
        }
        t_end_counted(&x);
        for (int i = 2; i <= 3; i++) {
            snprintf(name, sizeof(name), "%s/ckpt-%d%s", folder, i,
                     is_index ? ".index" : ".data-00000-of-00001");
            damage(name);
        }
        t_begin_counted(&x, folder, (ch_manager_options){.max_to_keep = 3});
        t_ok(ch_checkpoint_manager_restore(x.m, NULL, &path));
        snprintf(name, sizeof(name), "%s/ckpt-1", folder);
        assert_string_equal(path, t_path(name));
        for (int i = 4; i <= 6; i++) {
            snprintf(name, sizeof(name), "%s/ckpt-1", folder);
            assert_true(t_has_checkpoint(name)); /* with ckpt-4 and ckpt-5 it is the third */
            save(&x, false);
        }
        for (int i = 1; i <= 6; i++) {
            snprintf(name, sizeof(name), "%s/ckpt-%d", folder, i);
            assert_int_equal(t_has_checkpoint(name), i >= 4);
        }
        t_end_counted(&x);
    }
    (void)state;
}

/* The directory is removed while the training runs. The next save makes it again, and locks
 * it. */
static void manager_locks_its_directory_again_when_it_was_removed(void **state)
{
    ch_checkpoint_manager *second = NULL;
    char                   command[256];
    t_counted              x;

    t_begin_counted(&x, "removed", (ch_manager_options){.max_to_keep = 2});
    save(&x, false);
    snprintf(command, sizeof(command), "rm -r %s", t_path("removed"));
    assert_int_equal(system(command), 0);
    assert_string_equal(save(&x, false), "ckpt-2");
    assert_true(t_has_checkpoint("removed/ckpt-2"));
    t_refused(ch_checkpoint_manager_new(x.c, t_path("removed"), NULL, &second),
              CH_FAILED_PRECONDITION, "another checkpoint manager", "removed");
    /* Another manager takes the directory. */
    snprintf(command, sizeof(command), "mv %s %s", t_path("removed"), t_path("moved"));
    assert_int_equal(system(command), 0);
    t_ok(ch_checkpoint_manager_new(x.c, t_path("removed"), NULL, &second));
    t_refused(ch_checkpoint_manager_save(x.m, true, NULL), CH_FAILED_PRECONDITION,
              "another checkpoint manager", "removed");
    ch_checkpoint_manager_unref(second);
    assert_string_equal(save(&x, true), "ckpt-3");
    t_end_counted(&x);
    (void)state;
}

/* CM-9: paths of a plain save are not removed */
static void checkpoints_of_a_plain_save_stay(void **state)
{
    t_counted x;
    char      path[600];

    t_begin_counted(&x, "h", (ch_manager_options){.max_to_keep = 1});
    ch_checkpoint_manager_unref(x.m);
    for (int i = 1; i <= 2; i++) {
        t_ok(ch_checkpoint_save(x.c, t_path("h/ckpt"), &(ch_write_options){.wait = true}, path,
                                sizeof(path)));
        assert_int_equal(path[strlen(path) - 1], '0' + i);
    }
    t_ok(ch__manager_new(x.c, t_path("h"), &(ch_manager_options){.max_to_keep = 1}, t_clock,
                         &x.m));
    assert_string_equal(save(&x, false), "ckpt-3");
    assert_string_equal(save(&x, false), "ckpt-4");
    assert_true(t_has_checkpoint("h/ckpt-1") && t_has_checkpoint("h/ckpt-2") &&
                t_has_checkpoint("h/ckpt-4"));
    assert_false(t_has_checkpoint("h/ckpt-3"));
    t_end_counted(&x);
    (void)state;
}

/* A checkpoint that stays beside the newest, as the best of a training does. */
static void kept_checkpoint_stays(void **state)
{
    t_counted x;

    t_begin_counted(&x, "i", (ch_manager_options){.max_to_keep = 2});
    save(&x, false);
    t_ok(ch__manager_keep(x.m, t_path("i/ckpt-1")));
    for (int i = 0; i < 4; i++)
        save(&x, false);
    assert_true(t_has_checkpoint("i/ckpt-1") && t_has_checkpoint("i/ckpt-4") &&
                t_has_checkpoint("i/ckpt-5"));
    assert_false(t_has_checkpoint("i/ckpt-2") || t_has_checkpoint("i/ckpt-3"));
    t_ok(ch__manager_keep(x.m, "ckpt-5"));
    save(&x, false);
    assert_false(t_has_checkpoint("i/ckpt-1") || t_has_checkpoint("i/ckpt-4"));
    assert_true(t_has_checkpoint("i/ckpt-5") && t_has_checkpoint("i/ckpt-6"));
    t_end_counted(&x);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oldest_checkpoints_are_removed),
        cmocka_unit_test(checkpoints_of_some_hours_are_preserved),
        cmocka_unit_test(directory_is_searched_when_the_state_file_is_lost),
        cmocka_unit_test(restore_finishes_a_save_that_was_killed_before_the_state_file),
        cmocka_unit_test(restore_leaves_a_damaged_checkpoint_out_of_the_state_file),
        cmocka_unit_test(clock_that_is_behind_removes_nothing_old),
        cmocka_unit_test(save_is_skipped_and_counted_when_the_last_is_being_written),
        cmocka_unit_test(step_whose_write_failed_is_saved_again),
        cmocka_unit_test(save_copies_first_and_writes_one_at_a_time),
        cmocka_unit_test(save_waits_for_the_last_write_and_shows_it_when_there_is_no_interval),
        cmocka_unit_test(saves_wait_for_the_interval),
        cmocka_unit_test(init_is_called_without_checkpoint),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(damaged_checkpoints_are_skipped),
        cmocka_unit_test(checkpoint_with_a_file_that_is_not_regular_is_skipped),
        cmocka_unit_test(directory_in_the_place_of_an_old_checkpoint_stays),
        cmocka_unit_test(manager_with_the_longest_name_finds_its_checkpoints),
        cmocka_unit_test(damaged_checkpoints_do_not_count_as_the_newest),
        cmocka_unit_test(manager_locks_its_directory_again_when_it_was_removed),
        cmocka_unit_test(checkpoints_of_a_plain_save_stay),
        cmocka_unit_test(kept_checkpoint_stays),
    };

    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}

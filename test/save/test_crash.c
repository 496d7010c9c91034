/* test/save/test_crash.c -- checkpoints after simulated power failures.
 *
 * Three saves of a manager, with the removal of old checkpoints between them, are recorded. In
 * every state that a crash may leave, a new manager restores the newest committed checkpoint or
 * the one before it, and removes leftovers. T_STATES in the environment is the number of states.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "crash.h"

#include <dirent.h>
#include <sys/stat.h>

#include "../mutant.h"
#include "base/mem.h"
#include "ckpt/ckpt.h"
#include "ckpt/directory.h"
#include "ckpt/state_file.h"
#include "help.h"

enum { SAVES = 3, COUNT = 700, MAX_BYTES = 64 << 20 };

/* Variables of which all elements have the number of the save. */
typedef struct holder {
    ch_var        *small, *large;
    ch_checkpoint *checkpoint;
} holder;

static ch_var *new_var(const char *name, int rows)
{
    return t_var(NULL, name, t_f32(ch_shape_of(rows, COUNT), NULL));
}

static void begin(holder *h)
{
    h->small = new_var("small", 1);
    h->large = new_var("large", 20);
    t_ok(ch_checkpoint_new(&h->checkpoint));
    t_ok(ch_checkpoint_add_var(h->checkpoint, "small", h->small));
    t_ok(ch_checkpoint_add_var(h->checkpoint, "large", h->large));
}

static void end(holder *h)
{
    ch_checkpoint_unref(h->checkpoint);
    ch_var_unref(h->small);
    ch_var_unref(h->large);
}

static void set(ch_var *v, float x)
{
    ch_tensor *t = t_f32(ch_var_shape(v), NULL);

    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        ((float *)ch_tensor_data_mut(t))[i] = x;
    t_ok(ch_var_set(v, t));
    ch_tensor_unref(t);
}

/* Returns the number that all elements have; -1 if they differ. */
static int number_in(ch_var *v)
{
    ch_tensor   *t = NULL;
    const float *x;
    int          number;

    t_ok(ch_var_get(v, &t));
    x = ch_tensor_data(t);
    number = (int)x[0];
    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        if (x[i] != x[0])
            number = -1;
    ch_tensor_unref(t);
    return number;
}

/* Counts the files in a folder that belong to no checkpoint. */
static int count_leftovers(const char *folder)
{
    DIR *d = opendir(folder);
    int  n = 0;

    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        char        path[600];
        const char *dot = strchr(e->d_name, '.');
        struct stat about;

        if (e->d_name[0] == '.')
            n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
        else if (strstr(e->d_name, ".data-") != NULL) {
            snprintf(path, sizeof(path), "%s/%.*s.index", folder, (int)(dot - e->d_name),
                     e->d_name);
            n += stat(path, &about) != 0;
        }
    }
    if (d != NULL)
        closedir(d);
    return n;
}

/* Returns the number of a checkpoint "ckpt-<number>". */
static int number_of(const char *name)
{
    return (int)strtol(strrchr(name, '-') + 1, NULL, 10);
}

/* Checks that all checkpoints of a folder are whole, and that the state file names only those that
 * were not removed before. */
static bool is_consistent(const char *run, int n_marks)
{
    ch_ckpt_list  all = {.n = 0};
    ch_state_file state;
    bool          is_good = true;
    char          path[600];
    ch_status     rc = ch__state_file_read(run, &state);

    if (rc == CH_OK) {
        for (int i = 0; i < state.n; i++)
            is_good = is_good && number_of(state.path[i]) >= n_marks;
        snprintf(path, sizeof(path), "%s/%s.index", run, state.latest);
        is_good = is_good && access(path, F_OK) == 0;
        ch__free(state.memory);
    } else {
        is_good = rc == CH_NOT_FOUND && n_marks == 0;
    }
    if (access(run, F_OK) != 0)
        return n_marks == 0;
    t_ok(ch__ckpt_list(run, &all));
    for (int i = 0; i < all.n; i++) {
        ch_ckpt *c = NULL;

        snprintf(path, sizeof(path), "%s/%s", run, all.name[i]);
        rc = ch__ckpt_open(path, &c);
        for (int k = 0; rc == CH_OK && k < ch__ckpt_count(c); k++)
            rc = ch__ckpt_verify(c, k);
        is_good = is_good && rc == CH_OK;
        ch__ckpt_close(c);
    }
    ch__ckpt_list_drop(&all);
    return is_good;
}

static bool is_newest_or_one_before(void *arg, const char *folder, int n_marks)
{
    holder                *h = arg;
    ch_checkpoint_manager *m = NULL;
    const char            *path = NULL;
    char                   run[300];
    int                    small, large, left;
    ch_status              rc;

    set(h->small, 0);
    set(h->large, 0);
    snprintf(run, sizeof(run), "%s/run", folder);
    if (!is_consistent(run, n_marks))
        return false;
    rc = ch_checkpoint_manager_new(h->checkpoint, run,
                                   &(ch_manager_options){.write = {.sync = CH_OFF}}, &m);
    if (rc == CH_OK)
        rc = ch_checkpoint_manager_restore(m, NULL, &path);
    left = count_leftovers(run);
    ch_checkpoint_manager_unref(m);
    if (rc != CH_OK)
        return false;
    small = number_in(h->small);
    large = number_in(h->large);
    /* The lock file is the manager's own. */
    return small == large && (small == n_marks || small == n_marks + 1) && left <= 1;
}

static t_crash *record_saves(holder *h)
{
    static char            folder[80];
    char                   command[200];
    t_crash               *c;
    ch_checkpoint_manager *m = NULL;

    snprintf(folder, sizeof(folder), "%s/r", t_folder);
    snprintf(command, sizeof(command), "rm -rf %s && mkdir %s", folder, folder);
    assert_int_equal(system(command), 0);
    c = t_crash_record(folder, MAX_BYTES);
    t_ok(ch_checkpoint_manager_new(h->checkpoint, t_path("r/run"),
                                   &(ch_manager_options){.max_to_keep = 1}, &m));
    for (int i = 1; i <= SAVES; i++) {
        set(h->small, (float)i);
        set(h->large, (float)i);
        t_ok(ch_checkpoint_manager_save(m, true, NULL));
        t_ok(ch_checkpoint_wait(h->checkpoint));
        t_crash_mark(c);
    }
    t_crash_stop(c);
    ch_checkpoint_manager_unref(m);
    return c;
}

static void crash_leaves_the_newest_checkpoint_or_the_one_before(void **state)
{
    holder   h, again;
    t_crash *c;

    begin(&h);
    c = record_saves(&h);
    end(&h);
    begin(&again);
    assert_true(t_crash_run(c, &(t_crash_options){.states = t_crash_states(1500), .seed = 7},
                            is_newest_or_one_before, &again, NULL));
    end(&again);
    t_crash_free(c);
    (void)state;
}

static void crash_test_notices_every_missing_sync(void **state)
{
    holder   h, again;
    t_crash *c;

    begin(&h);
    c = record_saves(&h);
    end(&h);
    begin(&again);
    assert_true(t_crash_misses_syncs(c, &(t_crash_options){.states = 1500, .is_quiet = true},
                                     is_newest_or_one_before, &again));
    end(&again);
    t_crash_free(c);
    (void)state;
}

static void ignore(const ch_log_record *r, void *arg)
{
    (void)arg;
    (void)r;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crash_leaves_the_newest_checkpoint_or_the_one_before),
        cmocka_unit_test(crash_test_notices_every_missing_sync),
    };

    t_leave_out_a_check();
    ch_log_set_sink(ignore, NULL,
                    CH_LOG_WARNING); /* states with damaged checkpoints are logged */
    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}

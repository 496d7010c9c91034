/* test/save/test_crash.c -- checkpoints after simulated power failures.
 *
 * Saves of a manager, with the removal of old checkpoints between them, are recorded: three full
 * ones, and five with deltas. In every state that a crash may leave, a new manager restores the
 * newest committed checkpoint or the one before it, and removes leftovers. Saves that replace a
 * checkpoint are recorded too: a crash leaves the old one, the new one or none. T_STATES in the
 * environment is the number of states.
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

enum { SAVES = 3, DELTA_SAVES = 5, FULL_EVERY = 3, COUNT = 700, ROWS_OF_LARGE = 20 };
enum { MAX_BYTES = 64 << 20 };

/* Variables of which all elements have the number of the save. With deltas, a save changes some
 * rows of `large` only. */
typedef struct holder {
    bool           has_deltas;
    ch_var        *small, *large;
    ch_function   *update; /* of rows of `large` */
    ch_checkpoint *checkpoint;
} holder;

static ch_var *new_var(const char *name, int rows)
{
    return t_var(NULL, name, t_f32(ch_shape_of(rows, COUNT), NULL));
}

/* Stores rows, the second input, at the ids in the first. */
static void update_rows(ch_step *s, void *arg)
{
    holder *h = arg;

    (void)ch_var_scatter_update(s, h->large, ch_step_in(s, 0), ch_step_in(s, 1));
}

static void begin(holder *h, bool has_deltas)
{
    *h = (holder){.has_deltas = has_deltas};
    h->small = new_var("small", 1);
    h->large = new_var("large", ROWS_OF_LARGE);
    t_ok(ch_function_new("update", update_rows, h, &h->update));
    t_ok(ch_checkpoint_new(&h->checkpoint));
    t_ok(ch_checkpoint_add_var(h->checkpoint, "small", h->small));
    t_ok(ch_checkpoint_add_var(h->checkpoint, "large", h->large));
}

static void end(holder *h)
{
    ch_checkpoint_unref(h->checkpoint);
    ch_function_unref(h->update);
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

/* Returns the last save, up to save k, that has changed a row of `large`. The first changes
 * all. */
static int last_save(int row, int k)
{
    while (k > 1 && (row + k) % 4 != 0)
        k--;
    return k;
}

/* Changes the variables before save k. */
static void change(holder *h, int k)
{
    ch_tensor *in[2] = {NULL, t_f32(ch_shape_of(ROWS_OF_LARGE / 4, COUNT), NULL)};
    ch_tuple  *both = NULL;
    int        n = 0;

    set(h->small, (float)k);
    if (!h->has_deltas || k == 1)
        set(h->large, (float)k);
    t_ok(ch_tensor_new(CH_I32, ch_shape_of(ROWS_OF_LARGE / 4), &in[0]));
    for (int row = 0; row < ROWS_OF_LARGE; row++)
        if ((row + k) % 4 == 0)
            ((int32_t *)ch_tensor_data_mut(in[0]))[n++] = row;
    for (int64_t i = 0; i < ch_tensor_count(in[1]); i++)
        ((float *)ch_tensor_data_mut(in[1]))[i] = (float)k;
    t_ok(ch_tuple_of(2, in, &both));
    t_ok(ch_strategy_run(NULL, h->update, both, NULL));
    ch_tuple_unref(both);
    ch_tensor_unref(in[0]);
    ch_tensor_unref(in[1]);
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

/* Returns true if `large` is as it was when save k was made. */
static bool is_large_of(const holder *h, int k)
{
    ch_tensor *t = NULL;
    bool       is_same = true;

    t_ok(ch_var_get(h->large, &t));
    for (int64_t i = 0; i < ch_tensor_count(t); i++) {
        int want = h->has_deltas && k > 0 ? last_save((int)(i / COUNT), k) : k;

        is_same = is_same && ((const float *)ch_tensor_data(t))[i] == (float)want;
    }
    ch_tensor_unref(t);
    return is_same;
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

/* Returns the number of the full checkpoint that save k is based on, or k itself. */
static int base_number(const holder *h, int k)
{
    return h->has_deltas && k > 0 ? (k - 1) / FULL_EVERY * FULL_EVERY + 1 : k;
}

/* Checks that all checkpoints of a folder are whole, and that the state file names only those that
 * were not removed before. */
static bool is_consistent(const holder *h, const char *run, int n_marks)
{
    ch_ckpt_list  all = {.n = 0};
    ch_state_file state;
    bool          is_good = true;
    char          path[600];
    ch_status     rc = ch__state_file_read(run, &state);

    if (rc == CH_OK) {
        for (int i = 0; i < state.n; i++)
            is_good = is_good && (number_of(state.path[i]) >= n_marks ||
                                  number_of(state.path[i]) == base_number(h, n_marks));
        snprintf(path, sizeof(path), "%s/%s.index", run, state.latest);
        is_good = is_good && access(path, F_OK) == 0 && number_of(state.latest) >= n_marks;
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
    int                    small, left, n_left = 1;
    bool                   is_large;
    ch_ckpt_list           all = {.n = 0};
    ch_status              rc;

    set(h->small, 0);
    set(h->large, 0);
    snprintf(run, sizeof(run), "%s/run", folder);
    if (!is_consistent(h, run, n_marks))
        return false;
    rc = ch_checkpoint_manager_new(
        h->checkpoint, run,
        &(ch_manager_options){.max_to_keep = h->has_deltas, .write = {.sync = CH_OFF}}, &m);
    if (rc == CH_OK)
        rc = ch_checkpoint_manager_restore(m, NULL, &path);
    left = count_leftovers(run);
    small = number_in(h->small);
    is_large = is_large_of(h, small);
    if (rc == CH_OK && h->has_deltas) { /* no base is forgotten */
        rc = ch_checkpoint_manager_save(m, true, NULL);
        if (rc == CH_OK)
            rc = ch_checkpoint_wait(h->checkpoint);
        t_ok(ch__ckpt_list(run, &all));
        n_left = all.n;
        ch__ckpt_list_drop(&all);
    }
    ch_checkpoint_manager_unref(m);
    /* The lock file is the manager's own. */
    return rc == CH_OK && is_large && (small == n_marks || small == n_marks + 1) && left <= 1 &&
           n_left == 1;
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
    t_ok(ch_checkpoint_manager_new(
        h->checkpoint, t_path("r/run"),
        &(ch_manager_options){.max_to_keep = 1, .full_every = h->has_deltas ? FULL_EVERY : 0},
        &m));
    for (int i = 1; i <= (h->has_deltas ? DELTA_SAVES : SAVES); i++) {
        change(h, i);
        t_ok(ch_checkpoint_manager_save(m, true, NULL));
        t_ok(ch_checkpoint_wait(h->checkpoint));
        t_crash_mark(c);
    }
    t_crash_stop(c);
    ch_checkpoint_manager_unref(m);
    return c;
}

static void check_crashes(bool has_deltas, int64_t states)
{
    holder   h, again;
    t_crash *c;

    begin(&h, has_deltas);
    c = record_saves(&h);
    end(&h);
    begin(&again, has_deltas);
    assert_true(t_crash_run(c, &(t_crash_options){.states = states, .seed = 7},
                            is_newest_or_one_before, &again, NULL));
    end(&again);
    t_crash_free(c);
}

static void crash_leaves_the_newest_checkpoint_or_the_one_before(void **state)
{
    check_crashes(false, t_crash_states(1500));
    (void)state;
}

static void crash_leaves_the_newest_delta_with_its_base_or_the_one_before(void **state)
{
    check_crashes(true, t_crash_states(1000));
    (void)state;
}

/* ---- saves that replace a checkpoint ---- */

/* Saves to the same prefix. */
static t_crash *record_replacements(holder *h)
{
    static char folder[80];
    char        command[200];
    t_crash    *c;

    snprintf(folder, sizeof(folder), "%s/p", t_folder);
    snprintf(command, sizeof(command), "rm -rf %s && mkdir %s", folder, folder);
    assert_int_equal(system(command), 0);
    c = t_crash_record(folder, MAX_BYTES);
    for (int i = 1; i <= SAVES; i++) {
        set(h->small, (float)i);
        set(h->large, (float)i);
        t_ok(ch_checkpoint_write(h->checkpoint, t_path("p/run/x"),
                                 &(ch_write_options){.wait = true, .replace = true}));
        t_crash_mark(c);
    }
    t_crash_stop(c);
    return c;
}

/* A crash between two saves leaves one of them or none, and never a mixture. A save that has
 * returned stays, unless the next has begun. */
static bool is_one_or_none(void *arg, const char *folder, int n_marks)
{
    holder   *h = arg;
    char      prefix[300], index[320];
    int       small;
    bool      is_whole, is_there;
    ch_status rc;

    set(h->small, 0);
    set(h->large, 0);
    snprintf(prefix, sizeof(prefix), "%s/run/x", folder);
    snprintf(index, sizeof(index), "%s.index", prefix);
    is_there = access(index, F_OK) == 0;
    rc = ch_checkpoint_restore(h->checkpoint, prefix, NULL, NULL);
    small = number_in(h->small);
    is_whole = small >= 0 && is_large_of(h, small);
    if (rc != CH_OK) /* there is none */
        return rc == CH_NOT_FOUND && !is_there && is_whole && small == 0 && n_marks < SAVES;
    return is_whole && (small == n_marks || small == n_marks + 1);
}

/* A save that replaces a checkpoint syncs the data file, the index, and the folder three times: after
 * the old index is removed, the data file renamed, and the index renamed. Before the first save, the
 * parent of a new folder is synced. */
enum { SYNCS_OF_SAVE = 5, SYNC_OF_REMOVAL = 3, SYNCS = 1 + SAVES * SYNCS_OF_SAVE };

/* Returns true if a crash shows that sync k, from 1, is missing. The first save removes no index.
 * The last sync of a save makes it last; the check sees that only of the save that no other
 * replaces. */
static bool is_seen(int k)
{
    return k != 1 + SYNC_OF_REMOVAL && (k == SYNCS || k == 1 || (k - 1) % SYNCS_OF_SAVE != 0);
}

static void crash_during_a_replacement_leaves_one_checkpoint_or_none(void **state)
{
    t_crash_options opt = {.states = t_crash_states(700), .seed = 7};
    holder          h, again;
    t_crash        *c;

    begin(&h, false);
    c = record_replacements(&h);
    end(&h);
    begin(&again, false);
    assert_true(t_crash_run(c, &opt, is_one_or_none, &again, NULL));
    end(&again);
    t_crash_free(c);
    (void)state;
}

static void crash_test_of_replacements_notices_every_missing_sync(void **state)
{
    t_crash_options opt = {.states = 1500, .seed = 7, .is_quiet = true};
    holder          h, again;
    t_crash        *c;

    begin(&h, false);
    c = record_replacements(&h);
    end(&h);
    begin(&again, false);
    assert_int_equal(t_crash_syncs(c), SYNCS);
    for (opt.without_sync = 1; opt.without_sync <= SYNCS; opt.without_sync++)
        if (is_seen(opt.without_sync) && t_crash_run(c, &opt, is_one_or_none, &again, NULL))
            fail_msg("sync %d of %d is not missed", opt.without_sync, SYNCS);
    end(&again);
    t_crash_free(c);
    (void)state;
}

/* ---- missing syncs ---- */

static void check_missing_syncs(bool has_deltas)
{
    holder   h, again;
    t_crash *c;

    begin(&h, has_deltas);
    c = record_saves(&h);
    end(&h);
    begin(&again, has_deltas);
    assert_true(t_crash_misses_syncs(c, &(t_crash_options){.states = 1500, .is_quiet = true},
                                     is_newest_or_one_before, &again));
    end(&again);
    t_crash_free(c);
}

static void crash_test_notices_every_missing_sync(void **state)
{
    check_missing_syncs(false);
    (void)state;
}

static void crash_test_of_deltas_notices_every_missing_sync(void **state)
{
    check_missing_syncs(true);
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
        cmocka_unit_test(crash_leaves_the_newest_delta_with_its_base_or_the_one_before),
        cmocka_unit_test(crash_during_a_replacement_leaves_one_checkpoint_or_none),
        cmocka_unit_test(crash_test_notices_every_missing_sync),
        cmocka_unit_test(crash_test_of_deltas_notices_every_missing_sync),
        cmocka_unit_test(crash_test_of_replacements_notices_every_missing_sync),
    };

    if (t_leave_out_a_check()) /* the states must show it, not the number of syncs */
        cmocka_set_test_filter("*leaves*");
    ch_log_set_sink(ignore, NULL,
                    CH_LOG_WARNING); /* states with damaged checkpoints are logged */
    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}

/* test/save/test_delta_faults.c -- every call on files and every allocation of deltas fails in turn,
 * under strategies with and without parameter servers.
 *
 * With servers every third allocation of half of the strategies fails; with `./dev test --long` every
 * one of all.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "fail.h"
#include "table.h"

static void check_all(const char *directory)
{
    ch_ckpt_list all = {.n = 0};
    char         name[80];

    t_ok(ch__ckpt_list(t_path(directory), &all));
    assert_true(all.n > 0);
    for (int i = 0; i < all.n; i++) {
        snprintf(name, sizeof(name), "%s/%s", directory, all.name[i]);
        ch__ckpt_close(t_open_ckpt(t_path(name)));
    }
    ch__ckpt_list_drop(&all);
}

enum { FAULTS_PER_CHECK = 10 };

/* Saves without faults until the last checkpoint is a delta, which must equal a full checkpoint: no
 * changed row was lost. All checkpoints must be whole. */
static void check_saves(t_table_job *x, ch_checkpoint_manager *m, const char *directory)
{
    const char *path;

    do
        path = t_save(m, x->job.checkpoint);
    while (t_base_of(path) == 0);
    check_all(directory);
    t_check_delta(x, path);
}

/* Each call of a save fails in turn: of a full save, or of a delta. */
static void fail_saves(int kind, bool is_delta, t_failure what)
{
    static t_table_job     x;
    ch_checkpoint_manager *m = NULL;
    char                   directory[40];
    int                    n_failed = 0, n_faults = 0;
    bool                   is_over = false;

    snprintf(directory, sizeof(directory), "save-%d-%d-%d", kind, is_delta, what);
    x = (t_table_job){.rows = 3000, .width = 3, .batch = 4};
    t_begin_table(&x, kind, false);
    t_ok(ch_checkpoint_manager_new(x.job.checkpoint, t_path(directory),
                                   &(ch_manager_options){.full_every = is_delta ? 1000 : 2,
                                                         .max_to_keep = 1,
                                                         .write = {.wait = true}},
                                   &m));
    check_saves(&x, m, directory);
    for (int64_t n = 1; !is_over; n += t_fail_stride(kind, what)) {
        int64_t   before;
        ch_status rc;

        if (n_faults++ % FAULTS_PER_CHECK == 0)
            t_table_steps(&x, 1);
        before = t_fail_at(what, n);
        rc = ch_checkpoint_manager_save(m, true, NULL);
        is_over = t_fail_at(what, 0) - before < n;
        t_check_failure(what, n, rc);
        n_failed += rc != CH_OK;
        t_ok(ch_checkpoint_wait(x.job.checkpoint)); /* the error is reported once */
        if (is_over || n_faults % FAULTS_PER_CHECK == 0)
            check_saves(&x, m, directory);
        else if (rc == CH_OK && !is_delta) /* the next save is a delta */
            t_save(m, x.job.checkpoint);
    }
    assert_true(n_failed > 10);
    ch_checkpoint_manager_unref(m);
    t_end(&x.job);
}

static const int kind[] = {DEFAULT, SERVERS, SHARDED, SHARDED_1};

enum { KINDS = sizeof(kind) / sizeof(kind[0]) };

static void failing_files_cost_only_that_delta(void **state)
{
    for (int i = 0; i < KINDS; i++)
        for (int is_delta = 0; is_delta < 2; is_delta++) {
            fail_saves(kind[i], is_delta, T_IO_ONCE);
            fail_saves(kind[i], is_delta, T_SPACE_ON);
        }
    (void)state;
}

static void failing_memory_loses_no_changed_row(void **state)
{
    for (int i = 0; i < KINDS; i += t_fails_every_call() ? 1 : 2)
        for (int is_delta = 0; is_delta < 2; is_delta++)
            fail_saves(kind[i], is_delta, T_MEMORY);
    (void)state;
}

/* Each call of a restore fails in turn. A restore that fails has changed nothing. */
static void fail_restores(int kind_of_job, t_failure what)
{
    static t_table_job     x;
    static t_bits          saved, before, have;
    ch_checkpoint_manager *m = NULL;
    char                   directory[40], last[600];
    int                    n_failed = 0;
    bool                   is_over = false;

    snprintf(directory, sizeof(directory), "restore-%d-%d", kind_of_job, what);
    x = (t_table_job){.rows = 300, .width = 3, .batch = 4};
    t_begin_table(&x, kind_of_job, false);
    t_ok(ch_checkpoint_manager_new(
        x.job.checkpoint, t_path(directory),
        &(ch_manager_options){.full_every = 10, .write = {.sync = CH_OFF}}, &m));
    for (int i = 0; i < 2; i++) {
        t_table_steps(&x, 1);
        snprintf(last, sizeof(last), "%s", t_save(m, x.job.checkpoint));
    }
    t_read_bits(&x.job, &saved);
    t_table_steps(&x, 1);
    t_read_bits(&x.job, &before);
    for (int64_t n = 1; !is_over; n += t_fail_stride(kind_of_job, what)) {
        int64_t   calls = t_fail_at(what, n);
        ch_status rc = ch_checkpoint_restore(x.job.checkpoint, last, NULL, NULL);

        is_over = t_fail_at(what, 0) - calls < n;
        t_check_failure(what, n, rc);
        n_failed += rc != CH_OK;
        t_read_bits(&x.job, &have);
        t_same_bits(&have, rc == CH_OK ? &saved : &before);
        if (rc == CH_OK && !is_over) {
            t_table_steps(&x, 1);
            t_read_bits(&x.job, &before);
        }
    }
    t_same_bits(&have, &saved);
    assert_true(n_failed > 5);
    ch_checkpoint_manager_unref(m);
    t_end(&x.job);
}

static void restore_of_a_delta_that_fails_changes_nothing(void **state)
{
    for (int i = 0; i < KINDS; i++) {
        fail_restores(kind[i], T_IO_ONCE);
        fail_restores(kind[i], T_IO_ON);
        if (i % 2 == 0 || t_fails_every_call())
            fail_restores(kind[i], T_MEMORY);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failing_files_cost_only_that_delta),
        cmocka_unit_test(failing_memory_loses_no_changed_row),
        cmocka_unit_test(restore_of_a_delta_that_fails_changes_nothing),
    };

    if (t_four_gpus(NULL) != 0)
        return 1;
    ch_log_set_sink(t_ignore_log, NULL, CH_LOG_WARNING);
    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}

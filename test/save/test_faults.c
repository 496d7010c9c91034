/* test/save/test_faults.c -- every call on files and every allocation fails in turn.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>

#include "base/mem.h"
#include "base/sys.h"
#include "help.h"

static int count_files(const char *folder, const char *part)
{
    DIR *d = opendir(folder);
    int  n = 0;

    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        n += strstr(e->d_name, part) != NULL;
    if (d != NULL)
        closedir(d);
    return n;
}

typedef struct run {
    t_job                  job;
    ch_checkpoint_manager *m;
} run;

static void begin(run *r, const char *directory)
{
    t_begin(&r->job, MIRRORED_2, &(t_options){.is_half = true});
    t_steps(&r->job, 1);
    t_ok(ch_checkpoint_manager_new(r->job.checkpoint, t_path(directory),
                                   &(ch_manager_options){.max_to_keep = 2}, &r->m));
}

static void end(run *r)
{
    ch_checkpoint_manager_unref(r->m);
    t_end(&r->job);
}

/* Fails each call on files of a save and of the removal of old checkpoints. `from_then_on`: all
 * calls after it fail too. */
static void fail_saves(const char *directory, int error, bool from_then_on)
{
    run r;
    int n_failed = 0;

    begin(&r, directory);
    for (int i = 0; i < 2; i++)
        t_ok(ch_checkpoint_manager_save(r.m, true, NULL));
    t_ok(ch_checkpoint_wait(r.job.checkpoint));
    for (int64_t n = 1;; n++) {
        int64_t   before = ch__file_calls();
        ch_status rc;
        bool      is_over;

        if (from_then_on)
            ch__file_fail_from(n, error);
        else
            ch__file_fail_at(n, error);
        rc = ch_checkpoint_manager_save(r.m, true, NULL);
        if (rc == CH_OK)
            rc = ch_checkpoint_wait(r.job.checkpoint);
        is_over = ch__file_calls() - before < n;
        ch__file_fail_at(0, 0);
        n_failed += rc != CH_OK;
        t_ok(ch_checkpoint_wait(r.job.checkpoint)); /* the error is reported once */
        if (is_over)
            break;
        t_ok(ch_checkpoint_manager_restore(r.m, NULL, NULL)); /* older ones are as before */
        assert_int_equal(count_files(t_path(directory), ".tmp"), 0);
        t_ok(ch_checkpoint_manager_save(r.m, true, NULL)); /* the next save tries again */
        t_ok(ch_checkpoint_wait(r.job.checkpoint));
    }
    assert_true(n_failed > 10);
    end(&r);
}

static void failing_files_cost_only_that_save(void **state)
{
    fail_saves("a", EIO, false);
    fail_saves("b", ENOSPC, true);
    (void)state;
}

static void failing_reads_change_nothing(void **state)
{
    static t_bits saved, before, have;
    run           r;

    begin(&r, "c");
    t_ok(ch_checkpoint_manager_save(r.m, true, NULL));
    t_ok(ch_checkpoint_wait(r.job.checkpoint));
    t_read_bits(&r.job, &saved);
    t_steps(&r.job, 1);
    t_read_bits(&r.job, &before);
    for (int64_t n = 1;; n++) {
        int64_t   calls = ch__file_calls();
        ch_status rc;
        bool      is_over;

        ch__file_fail_at(n, EIO);
        rc = ch_checkpoint_restore(r.job.checkpoint, t_path("c/ckpt-1"), NULL, NULL);
        is_over = ch__file_calls() - calls < n;
        ch__file_fail_at(0, 0);
        t_read_bits(&r.job, &have);
        t_same_bits(&have, rc == CH_OK ? &saved : &before);
        if (is_over)
            break;
        if (rc == CH_OK) {
            t_steps(&r.job, 1);
            t_read_bits(&r.job, &before);
        }
    }
    t_same_bits(&have, &saved);
    end(&r);
    (void)state;
}

/* Fails each allocation of a save, or of a restore. */
static void failing_memory_is_an_error(void **state)
{
    static t_bits saved, before, have;
    run           r;
    int           n_failed[2] = {0};

    begin(&r, "d");
    t_ok(ch_checkpoint_write(r.job.checkpoint, t_path("m"), &(ch_write_options){.wait = true}));
    t_read_bits(&r.job, &saved);
    t_steps(&r.job, 1);
    t_read_bits(&r.job, &before);
    for (int64_t n = 1;; n++) {
        int64_t   allocs = ch__mem_allocs();
        ch_status rc;
        bool      is_over;

        ch__mem_fail_at(n);
        rc = ch_checkpoint_write(r.job.checkpoint, t_path("n"),
                                 &(ch_write_options){.wait = true, .replace = true});
        ch__mem_fail_at(0);
        is_over = ch__mem_allocs() - allocs < n;
        n_failed[0] += rc != CH_OK;
        if (rc != CH_OK)
            assert_int_equal(rc, CH_RESOURCE_EXHAUSTED);
        if (is_over)
            break;
    }
    for (int64_t n = 1;; n++) {
        int64_t   allocs = ch__mem_allocs();
        ch_status rc;
        bool      is_over;

        ch__mem_fail_at(n);
        rc = ch_checkpoint_restore(r.job.checkpoint, t_path("m"), NULL, NULL);
        ch__mem_fail_at(0);
        is_over = ch__mem_allocs() - allocs < n;
        n_failed[1] += rc != CH_OK;
        t_read_bits(&r.job, &have);
        t_same_bits(&have, rc == CH_OK ? &saved : &before);
        if (is_over)
            break;
        if (rc == CH_OK) {
            t_steps(&r.job, 1);
            t_read_bits(&r.job, &before);
        }
    }
    assert_true(n_failed[0] > 10 && n_failed[1] > 10);
    end(&r);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failing_files_cost_only_that_save),
        cmocka_unit_test(failing_reads_change_nothing),
        cmocka_unit_test(failing_memory_is_an_error),
    };

    if (t_four_gpus(NULL) != 0)
        return 1;
    ch_log_set_sink(t_ignore_log, NULL, CH_LOG_WARNING);
    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}

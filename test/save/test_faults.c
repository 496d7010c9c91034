/* test/save/test_faults.c -- every call on files and every allocation fails in turn.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <sys/stat.h>

#include "fail.h"

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

/* Each call of a save and of the removal of old checkpoints fails in turn. */
static void fail_saves(t_failure what)
{
    char directory[20];
    run  r;
    int  n_failed = 0;
    bool is_over = false;

    snprintf(directory, sizeof(directory), "save-%d", what);
    begin(&r, directory);
    for (int i = 0; i < 2; i++)
        t_ok(ch_checkpoint_manager_save(r.m, true, NULL));
    t_ok(ch_checkpoint_wait(r.job.checkpoint));
    for (int64_t n = 1; !is_over; n++) {
        int64_t   before = t_fail_at(what, n);
        ch_status rc = ch_checkpoint_manager_save(r.m, true, NULL);

        if (rc == CH_OK)
            rc = ch_checkpoint_wait(r.job.checkpoint);
        is_over = t_fail_at(what, 0) - before < n;
        t_check_failure(what, n, rc);
        n_failed += rc != CH_OK;
        t_ok(ch_checkpoint_wait(r.job.checkpoint)); /* the error is reported once */
        if (rc == CH_OK)
            continue;
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
    fail_saves(T_IO_ONCE);
    fail_saves(T_SPACE_ON);
    (void)state;
}

static void failing_memory_costs_only_that_save(void **state)
{
    fail_saves(T_MEMORY);
    (void)state;
}

/* ---- restores ---- */

/* Each call of a restore fails in turn. A restore that fails has changed nothing. With one byte
 * of staging memory it may have changed variables, and the next restore sets all. */
static void fail_restores(t_failure what, int64_t staging_bytes)
{
    static t_bits            saved, before, have;
    const ch_restore_options opt = {.staging_bytes = staging_bytes};
    char                     directory[30], prefix[40];
    run                      r;
    int                      n_failed = 0;
    bool                     is_over = false;

    snprintf(directory, sizeof(directory), "restore-%d-%d", what, (int)staging_bytes);
    snprintf(prefix, sizeof(prefix), "%s/ckpt-1", directory);
    begin(&r, directory);
    t_ok(ch_checkpoint_manager_save(r.m, true, NULL));
    t_ok(ch_checkpoint_wait(r.job.checkpoint));
    t_read_bits(&r.job, &saved);
    t_steps(&r.job, 1);
    t_read_bits(&r.job, &before);
    for (int64_t n = 1; !is_over; n++) {
        int64_t   calls = t_fail_at(what, n);
        ch_status rc = ch_checkpoint_restore(r.job.checkpoint, t_path(prefix), &opt, NULL);

        is_over = t_fail_at(what, 0) - calls < n;
        t_check_failure(what, n, rc);
        n_failed += rc != CH_OK;
        if (rc != CH_OK && staging_bytes > 0) {
            t_ok(ch_checkpoint_restore(r.job.checkpoint, t_path(prefix), &opt, NULL));
            rc = CH_OK;
        }
        t_read_bits(&r.job, &have);
        t_same_bits(&have, rc == CH_OK ? &saved : &before);
        if (rc == CH_OK) {
            t_steps(&r.job, 1);
            t_read_bits(&r.job, &before);
        }
    }
    t_same_bits(&have, &saved);
    assert_int_equal(n_failed > 10, what != T_SPACE_ON); /* it needs no space */
    end(&r);
}

static void restore_that_fails_changes_nothing(void **state)
{
    for (t_failure what = 0; what < T_FAILURES; what++) {
        fail_restores(what, 0);
        fail_restores(what, 1);
    }
    (void)state;
}

/* The checkpoint has 16-bit weights, and not the optimizer, whose masters follow the weights. Each
 * call of a restore fails in turn. */
static void fail_restores_of_weights(int kind, t_failure what)
{
    static t_bits  before, have;
    t_job          j;
    ch_checkpoint *weights = NULL;
    char           path[40];
    int            n_failed = 0;
    bool           is_over = false;

    snprintf(path, sizeof(path), "weights-%d-%d", kind, what);
    t_begin(&j, kind, &(t_options){.is_half = true});
    t_steps(&j, 1);
    t_ok(ch_checkpoint_new(&weights));
    t_ok(ch_checkpoint_add_model(weights, "model", j.model));
    t_ok(ch_checkpoint_write(weights, t_path(path), &(ch_write_options){.wait = true}));
    t_steps(&j, 2);
    t_read_bits(&j, &before);
    for (int64_t n = 1; !is_over; n += t_fail_stride(kind, what)) {
        int64_t   calls = t_fail_at(what, n);
        ch_status rc = ch_checkpoint_restore(weights, t_path(path), NULL, NULL);

        is_over = t_fail_at(what, 0) - calls < n;
        t_check_failure(what, n, rc);
        n_failed += rc != CH_OK;
        if (rc != CH_OK) {
            t_read_bits(&j, &have);
            t_same_bits(&have, &before);
        } else {
            t_steps(&j, 1);
            t_read_bits(&j, &before);
        }
    }
    assert_true(n_failed > 10);
    ch_checkpoint_unref(weights);
    t_end(&j);
}

static void restore_of_weights_that_fails_leaves_the_masters(void **state)
{
    static const int kind[] = {DEFAULT, MIRRORED_2, SHARDED};

    for (int i = 0; i < 3; i++) {
        fail_restores_of_weights(kind[i], T_IO_ONCE);
        fail_restores_of_weights(kind[i], T_MEMORY);
    }
    (void)state;
}

/* The values wait for the variables, which the first step creates. Each call of that step fails
 * in turn. The step can be run again. */
static void fail_waiting_values(t_failure what)
{
    static t_bits want, have;
    run           r;
    int           n_failed = 0;
    bool          is_over = false;
    char          directory[20];

    snprintf(directory, sizeof(directory), "wait-%d", what);
    begin(&r, directory);
    t_ok(ch_checkpoint_manager_save(r.m, true, NULL));
    t_steps(&r.job, 1);
    t_read_bits(&r.job, &want);
    end(&r);
    for (int64_t n = 1; !is_over; n++) {
        ch_tuple    *batch = NULL;
        t_job        j;
        ch_restored *restored = NULL;
        int64_t      calls;
        ch_status    rc;

        t_begin(&j, MIRRORED_2, &(t_options){.is_half = true, .is_lazy = true});
        t_ok(ch_checkpoint_restore(j.checkpoint, t_path(directory), NULL, &restored));
        t_ok(ch_iterator_next(j.it, &batch));
        calls = t_fail_at(what, n);
        rc = ch_strategy_run(j.st, j.step, batch, NULL);
        is_over = t_fail_at(what, 0) - calls < n;
        t_check_failure(what, n, rc);
        n_failed += rc != CH_OK;
        if (rc != CH_OK)
            t_ok(ch_strategy_run(j.st, j.step, batch, NULL));
        ch_tuple_unref(batch);
        t_read_bits(&j, &have);
        t_same_bits(&have, &want);
        t_ok(ch_restored_assert_consumed(restored));
        ch_restored_unref(restored);
        t_end(&j);
    }
    assert_true(n_failed > 10);
}

static void step_that_fails_to_read_a_waiting_value_can_be_run_again(void **state)
{
    fail_waiting_values(T_IO_ONCE);
    fail_waiting_values(T_IO_ON);
    (void)state;
}

/* ---- managers ---- */

/* Writes a file in the folder of the test. */
static void put_file(const char *name, const char *bytes, size_t n)
{
    FILE *f = fopen(t_path(name), "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

/* Removes the files of a folder of the test, or copies them to another. */
static void for_files(const char *folder, const char *to)
{
    DIR *d = opendir(t_path(folder));

    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        static char bytes[1 << 16];
        char        from[300], name[300];
        FILE       *f;
        size_t      n;

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        snprintf(from, sizeof(from), "%s/%s", folder, e->d_name);
        if (to == NULL) {
            assert_int_equal(unlink(t_path(from)), 0);
            continue;
        }
        f = fopen(t_path(from), "rb");
        assert_non_null(f);
        n = fread(bytes, 1, sizeof(bytes), f);
        assert_true(n < sizeof(bytes));
        fclose(f);
        snprintf(name, sizeof(name), "%s/%s", to, e->d_name);
        put_file(name, bytes, n);
    }
    if (d != NULL)
        closedir(d);
}

/* Makes the directory "m" as a program leaves it that was killed after the commit of ckpt-3, before
 * the state file names it, with leftovers of a save. */
static void leave_killed_program(void)
{
    for_files("m", NULL);
    (void)mkdir(t_path("m"), 0777);
    for_files("killed", "m");
    put_file("m/ckpt-4.data-00000-of-00001", "x", 1);
    put_file("m/.ckpt-4.index.tmp-99-9", "x", 1);
}

enum { STARTS_PER_SAVE = 4 };

/* Each call fails in turn while a program is started: its manager takes the directory, restores the
 * newest checkpoint that it can read, and finishes the save. */
static void fail_starts(t_failure what)
{
    static t_bits saved[4], before, have;
    run           r;
    int           n_failed = 0, n_starts = 0;
    bool          is_over = false;
    int           stride = what == T_MEMORY && !t_fails_every_call() ? 5 : 1;

    begin(&r, "killed");
    for (int i = 1; i <= 3; i++) {
        char path[40];

        t_steps(&r.job, 1);
        t_read_bits(&r.job, &saved[i]);
        snprintf(path, sizeof(path), "killed/ckpt-%d", i);
        if (i < 3)
            t_ok(ch_checkpoint_manager_save(r.m, true, NULL));
        else
            t_ok(ch_checkpoint_write(r.job.checkpoint, t_path(path), NULL));
    }
    t_ok(ch_checkpoint_wait(r.job.checkpoint));
    ch_checkpoint_manager_unref(r.m);
    r.m = NULL;
    for (int64_t n = 1; !is_over; n += stride) {
        const char *path = NULL;
        int64_t     calls;
        ch_status   rc;
        int         newest;

        leave_killed_program();
        t_steps(&r.job, 1);
        t_read_bits(&r.job, &before);
        calls = t_fail_at(what, n);
        rc = ch_checkpoint_manager_new(r.job.checkpoint, t_path("m"),
                                       &(ch_manager_options){.max_to_keep = 2}, &r.m);
        if (rc == CH_OK)
            rc = ch_checkpoint_manager_restore(r.m, NULL, &path);
        is_over = t_fail_at(what, 0) - calls < n;
        t_check_failure(what, n, rc);
        n_failed += rc != CH_OK;
        t_read_bits(&r.job, &have);
        t_same_bits(&have, path != NULL ? &saved[strrchr(path, '-')[1] - '0'] : &before);
        ch_checkpoint_manager_unref(r.m);
        r.m = NULL;
        /* The next program has all that this one could have had. */
        t_ok(ch_checkpoint_manager_new(r.job.checkpoint, t_path("m"),
                                       &(ch_manager_options){.max_to_keep = 2}, &r.m));
        t_ok(ch_checkpoint_manager_restore(r.m, NULL, &path));
        newest = strrchr(path, '-')[1] - '0';
        assert_int_equal(newest, 3);
        t_read_bits(&r.job, &have);
        t_same_bits(&have, &saved[newest]);
        assert_int_equal(count_files(t_path("m"), ".tmp"), 0);
        assert_int_equal(count_files(t_path("m"), "ckpt-4"), 0);
        if (n_starts++ % STARTS_PER_SAVE == 0 || is_over) {
            t_ok(ch_checkpoint_manager_save(r.m, true, NULL));
            t_ok(ch_checkpoint_wait(r.job.checkpoint));
            assert_int_equal(count_files(t_path("m"), ".index"), 2);
        }
        ch_checkpoint_manager_unref(r.m);
        r.m = NULL;
    }
    assert_true(n_failed > 5);
    t_end(&r.job);
    for_files("killed", NULL);
}

static void start_that_fails_loses_no_checkpoint(void **state)
{
    for (t_failure what = 0; what < T_FAILURES; what++)
        fail_starts(what);
    (void)state;
}

/* ---- replacements ---- */

/* What a save does after it has removed the index of the checkpoint that it replaces. */
typedef struct removal {
    bool is_done;
    int  n_writes; /* calls that write bytes, afterwards */
} removal;

static void watch_removal(void *arg, const ch_file_op *op)
{
    removal    *r = arg;
    const char *name = op->kind == CH_FILE_UNLINK ? strrchr(op->path, '/') : NULL;

    r->is_done = r->is_done || (name != NULL && strcmp(name, "/x.index") == 0);
    r->n_writes += r->is_done && op->kind == CH_FILE_WRITE;
}

/* Each call of a save that replaces a checkpoint fails in turn. The old checkpoint stays as it was
 * until its index is removed, and that happens when no bytes are left to be written. */
static void fail_replacements(t_failure what)
{
    static t_bits old, now, have;
    const char   *folder = "replaced";
    run           r;
    int           n_whole = 0;
    bool          is_over = false;

    begin(&r, "manager-of-replaced");
    for (int64_t n = 1; !is_over; n++) {
        const ch_write_options opt = {.wait = true, .replace = true};
        removal                seen = {.is_done = false};
        int64_t                calls;
        ch_status              rc;
        bool                   is_there;

        for_files(folder, NULL); /* temporary files that could not be removed */
        t_ok(ch_checkpoint_write(r.job.checkpoint, t_path("replaced/x"), &opt));
        t_read_bits(&r.job, &old);
        t_steps(&r.job, 1);
        t_read_bits(&r.job, &now);
        ch__file_observe(watch_removal, &seen);
        calls = t_fail_at(what, n);
        rc = ch_checkpoint_write(r.job.checkpoint, t_path("replaced/x"), &opt);
        is_over = t_fail_at(what, 0) - calls < n;
        ch__file_observe(NULL, NULL);
        t_check_failure(what, n, rc);
        assert_int_equal(seen.n_writes, 0);
        is_there = access(t_path("replaced/x.index"), F_OK) == 0;
        if (rc == CH_OK || !seen.is_done)
            assert_true(is_there);
        if (is_there) {
            t_ok(ch_checkpoint_restore(r.job.checkpoint, t_path("replaced/x"), NULL, NULL));
            t_read_bits(&r.job, &have);
            t_same_bits(&have, seen.is_done ? &now : &old);
        }
        n_whole += !seen.is_done;
        if (what != T_IO_ON)
            assert_int_equal(count_files(t_path(folder), ".tmp"), 0);
    }
    assert_true(n_whole > 10);
    end(&r);
    for_files(folder, NULL);
}

static void
replacement_that_fails_leaves_the_old_checkpoint_until_no_bytes_are_left(void **state)
{
    for (t_failure what = 0; what < T_FAILURES; what++)
        fail_replacements(what);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failing_files_cost_only_that_save),
        cmocka_unit_test(failing_memory_costs_only_that_save),
        cmocka_unit_test(
            replacement_that_fails_leaves_the_old_checkpoint_until_no_bytes_are_left),
        cmocka_unit_test(restore_that_fails_changes_nothing),
        cmocka_unit_test(restore_of_weights_that_fails_leaves_the_masters),
        cmocka_unit_test(step_that_fails_to_read_a_waiting_value_can_be_run_again),
        cmocka_unit_test(start_that_fails_loses_no_checkpoint),
    };

    if (t_four_gpus(NULL) != 0)
        return 1;
    ch_log_set_sink(t_ignore_log, NULL, CH_LOG_WARNING);
    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}

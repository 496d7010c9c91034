/* test/save/test_deltas.c -- deltas: which saves they are, what they hold, and how long their base
 * stays.
 *
 * A delta with its base must equal a full checkpoint that was written at the same moment. The
 * changed rows are compared with the ids that the test has fed. Directories are compared with a
 * second implementation of the sweep.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/sys.h"
#include "ckpt/fold.h"
#include "ckpt/state_file.h"
#include "counted.h"
#include "table.h"

static int count_changed(const t_table_job *x)
{
    int n = 0;

    for (int i = 0; i < x->rows; i++)
        n += x->is_changed[i];
    return n;
}

/* Checks that a delta holds the rows that have changed of the table and its slots, and no
 * others. */
static void check_rows(const t_table_job *x, const char *path)
{
    ch_ckpt *c = t_open_ckpt(path);
    int      n_tables = 0;

    for (int i = 0; i < ch__ckpt_count(c); i++) {
        ch_ckpt_entry e;

        ch__ckpt_entry(c, i, &e);
        if (e.shape.rank == 0 || e.shape.dim[0] != x->rows)
            continue;
        n_tables++;
        assert_int_equal(e.n_rows, count_changed(x));
        assert_int_equal(e.bytes, e.n_rows * (8 + ch__ckpt_bytes(e.dtype, e.shape) / x->rows));
    }
    assert_true(n_tables >= 2); /* the table and its slots */
    ch__ckpt_close(c);
}

static int64_t file_bytes(const char *path)
{
    struct stat about;

    return stat(path, &about) == 0 ? (int64_t)about.st_size : 0;
}

static void compare_nine_deltas(int kind, bool is_adam, int64_t staging_bytes)
{
    static t_table_job     x;
    ch_checkpoint_manager *m = NULL;
    char                   directory[40];

    x = (t_table_job){.rows = 2000, .width = 6, .batch = 6};
    snprintf(directory, sizeof(directory), "nine-%d-%d-%d", kind, is_adam, (int)staging_bytes);
    t_begin_table(&x, kind, is_adam);
    t_table_steps(&x, 2);
    t_ok(ch_checkpoint_manager_new(
        x.job.checkpoint, t_path(directory),
        &(ch_manager_options){.full_every = 10,
                              .write = {.sync = CH_OFF, .staging_bytes = staging_bytes}},
        &m));
    assert_int_equal(t_base_of(t_save(m, x.job.checkpoint)), 0);
    memset(x.is_changed, 0, sizeof(x.is_changed));
    for (int i = 0; i < 9; i++) {
        const char *path;

        if (i > 0) /* the first delta has no changed row */
            t_table_steps(&x, 1 + i % 2);
        path = t_save(m, x.job.checkpoint);
        assert_int_equal(t_base_of(path), 1);
        check_rows(&x, path);
        t_check_delta(&x, path);
    }
    t_table_steps(&x, 1);
    assert_int_equal(t_base_of(t_save(m, x.job.checkpoint)), 0);
    ch_checkpoint_manager_unref(m);
    t_end(&x.job);
}

static void delta_with_its_base_equals_a_full_checkpoint(void **state)
{
    static const int kind[] = {DEFAULT, MIRRORED_2, CENTRAL, SERVERS, SHARDED, SHARDED_1};

    for (size_t i = 0; i < sizeof(kind) / sizeof(kind[0]); i++) {
        compare_nine_deltas(kind[i], false, 0);
        compare_nine_deltas(kind[i], true, 0);
    }
    (void)state;
}

/* Rows that do not fit are gathered while the program waits. */
static void delta_needs_no_more_than_its_staging_memory(void **state)
{
    compare_nine_deltas(DEFAULT, true, 700);
    compare_nine_deltas(MIRRORED_2, false, 1);
    (void)state;
}

/* Returns the bytes of the ids and rows that have changed of a table and its slots, and of all dense
 * variables. Each variable has ids of its own. */
static int64_t bytes_of_changes(const t_table_job *x)
{
    ch_var *const *var[2];
    int            n[2] = {ch_model_vars(x->job.model, &var[0]),
                           ch_optimizer_vars(x->job.optimizer, &var[1])};
    int64_t        bytes = 0;
    int            n_tables = 0;

    for (int k = 0; k < 2; k++)
        for (int i = 0; i < n[k]; i++) {
            ch_shape shape = ch_var_shape(var[k][i]);
            int64_t  all = ch__ckpt_bytes(ch_var_dtype(var[k][i]), shape);
            bool     is_table = shape.rank > 0 && shape.dim[0] == x->rows;

            bytes += is_table ? count_changed(x) * (8 + all / x->rows) : all;
            n_tables += is_table;
        }
    assert_true(n_tables >= 2); /* the table and its slots */
    return bytes;
}

/* Returns the bytes of all files of a checkpoint, the index included. */
static int64_t bytes_on_disk(const char *path, int n_files)
{
    char    name[600];
    int64_t bytes;

    snprintf(name, sizeof(name), "%s.index", path);
    bytes = file_bytes(name);
    for (int f = 0; f < n_files; f++) {
        snprintf(name, sizeof(name), "%s.data-%05d-of-%05d", path, f, n_files);
        assert_true(file_bytes(name) > 0);
        bytes += file_bytes(name);
    }
    return bytes;
}

/* Bytes: at most 1.05 times (ids and rows that changed + dense variables). All files count. Index,
 * object graph, positions and padding are 4 to 10 KiB here, so changes of 200 KiB leave room for
 * them. */
static void delta_is_as_small_as_its_changes(void **state)
{
    static const int kind[] = {DEFAULT, MIRRORED_2, SERVERS, SHARDED, SHARDED_1};
    static const struct {
        int  rows, width, batch;
        bool is_adam;
    } table[] = {{20000, 32, 1200, false}, {20000, 8, 2000, true}, {3000, 120, 300, false}};

    for (size_t i = 0; i < sizeof(kind) / sizeof(kind[0]); i++)
        for (size_t k = 0; k < sizeof(table) / sizeof(table[0]); k++) {
            static t_table_job     x;
            ch_checkpoint_manager *m = NULL;
            char                   directory[40];
            const char            *path;

            x = (t_table_job){
                .rows = table[k].rows, .width = table[k].width, .batch = table[k].batch};
            snprintf(directory, sizeof(directory), "small-%d-%d", kind[i], (int)k);
            t_begin_table(&x, kind[i], table[k].is_adam);
            t_ok(ch_checkpoint_manager_new(
                x.job.checkpoint, t_path(directory),
                &(ch_manager_options){.full_every = 10, .write = {.sync = CH_OFF}}, &m));
            t_table_steps(&x, 1);
            t_save(m, x.job.checkpoint);
            memset(x.is_changed, 0, sizeof(x.is_changed));
            for (int n = 0; n < 2; n++) {
                t_table_steps(&x, 1);
                path = t_save(m, x.job.checkpoint);
                check_rows(&x, path);
                assert_true((double)bytes_on_disk(path, kind[i] >= SERVERS ? 2 : 1) <=
                            1.05 * (double)bytes_of_changes(&x));
            }
            ch_checkpoint_manager_unref(m);
            t_end(&x.job);
        }
    (void)state;
}

/* A delta loads under another strategy, and `cohort ckpt fold` makes it full. */
static void delta_loads_under_another_strategy(void **state)
{
    static t_table_job     x, y;
    static t_bits          want, have;
    ch_checkpoint_manager *m = NULL;
    ch_restored           *r = NULL;
    char                   path[600];
    ch_ckpt               *c;

    x = y = (t_table_job){.rows = 700, .width = 6, .batch = 6};
    t_begin_table(&x, SHARDED, true);
    t_ok(ch_checkpoint_manager_new(
        x.job.checkpoint, t_path("other"),
        &(ch_manager_options){.full_every = 4, .write = {.sync = CH_OFF}}, &m));
    for (int i = 0; i < 3; i++) {
        t_table_steps(&x, 2);
        snprintf(path, sizeof(path), "%s", t_save(m, x.job.checkpoint));
    }
    t_read_bits(&x.job, &want);
    t_check_delta(&x, path);
    c = t_open_ckpt(path);
    t_ok(ch__ckpt_fold(c, t_path("folded"), NULL));
    ch__ckpt_close(c);
    t_same_checkpoints(t_path("folded"), t_path("full"));
    ch_checkpoint_manager_unref(m);
    t_end(&x.job);

    t_begin_table(&y, MIRRORED_2, true);
    t_table_steps(&y, 1);
    t_ok(ch_checkpoint_restore(y.job.checkpoint, t_path("other"), NULL, &r));
    t_ok(ch_restored_assert_consumed(r));
    ch_restored_unref(r);
    t_read_bits(&y.job, &have);
    t_same_bits(&have, &want);
    t_end(&y.job);
    (void)state;
}

/* The marks serve one manager at a time: the other stores variables whole, and is right too. */
static void managers_of_the_same_variables_do_not_disturb_each_other(void **state)
{
    static const int kind[] = {DEFAULT, SHARDED};

    for (int k = 0; k < 2; k++) {
        static t_table_job     x;
        ch_checkpoint         *other = NULL;
        ch_checkpoint_manager *m[2] = {NULL};
        char                   directory[40];

        x = (t_table_job){.rows = 500, .width = 3, .batch = 4};
        t_begin_table(&x, kind[k], false);
        t_ok(ch_checkpoint_new(&other));
        t_ok(ch_checkpoint_add_model(other, "weights", x.job.model));
        for (int i = 0; i < 2; i++) {
            snprintf(directory, sizeof(directory), "two-%d-%d", k, i);
            t_ok(ch_checkpoint_manager_new(
                i == 0 ? x.job.checkpoint : other, t_path(directory),
                &(ch_manager_options){.full_every = 4, .write = {.sync = CH_OFF}}, &m[i]));
        }
        for (int i = 0; i < 12; i++) {
            int            one = i * 5 % 7 % 2;
            ch_checkpoint *c = one == 0 ? x.job.checkpoint : other;
            const char    *path = t_save(m[one], c);

            t_ok(ch_checkpoint_write(
                c, t_path("full"),
                &(ch_write_options){.wait = true, .sync = CH_OFF, .replace = true}));
            t_same_checkpoints(path, t_path("full"));
            if (i == 9) { /* the first manager ends */
                ch_checkpoint_manager_unref(m[1]);
                snprintf(directory, sizeof(directory), "two-%d-again", k);
                t_ok(ch_checkpoint_manager_new(
                    other, t_path(directory),
                    &(ch_manager_options){.full_every = 4, .write = {.sync = CH_OFF}}, &m[1]));
            }
            t_table_steps(&x, 1);
        }
        ch_checkpoint_manager_unref(m[0]);
        ch_checkpoint_manager_unref(m[1]);
        ch_checkpoint_unref(other);
        t_end(&x.job);
    }
    (void)state;
}

/* A key that changes is not in the base: the variable is stored whole. */
static void variable_with_another_key_is_stored_whole(void **state)
{
    static t_table_job     x;
    ch_checkpoint_manager *m = NULL;
    ch_var *const         *var;

    x = (t_table_job){.rows = 500, .width = 3, .batch = 4};
    t_begin_table(&x, DEFAULT, false);
    t_ok(ch_checkpoint_manager_new(
        x.job.checkpoint, t_path("key"),
        &(ch_manager_options){.full_every = 4, .write = {.sync = CH_OFF}}, &m));
    t_save(m, x.job.checkpoint);
    assert_true(ch_model_vars(x.job.model, &var) > 0);
    t_ok(ch_checkpoint_add_var(x.job.checkpoint, "table", var[0]));
    t_table_steps(&x, 1);
    t_check_delta(&x, t_save(m, x.job.checkpoint));
    ch_checkpoint_manager_unref(m);
    t_end(&x.job);
    (void)state;
}

/* ---- full or delta ---- */

/* Saves, and returns the number of the base; 0: the checkpoint is full. */
static int next_base(t_counted *x)
{
    return t_base_of(t_save(x->m, x->c));
}

static const char *path_of(const t_counted *x, int number)
{
    char name[80];

    snprintf(name, sizeof(name), "%s/ckpt-%d", x->directory, number);
    return t_path(name);
}

static bool exists(const t_counted *x, int number)
{
    char name[80];

    snprintf(name, sizeof(name), "%s/ckpt-%d", x->directory, number);
    return t_has_checkpoint(name);
}

static void checkpoint_is_full_once_in_k(void **state)
{
    t_counted              x;
    char                   text[2000];
    ch_checkpoint_manager *m = NULL;

    t_begin_counted(&x, "a", (ch_manager_options){.full_every = 3});
    for (int i = 0; i < 7; i++)
        assert_int_equal(next_base(&x), i % 3 == 0 ? 0 : i / 3 * 3 + 1);
    ch_checkpoint_print_plan(x.c, text, sizeof(text));
    assert_non_null(strstr(text, "deltas: 4"));
    assert_non_null(strstr(text, "the last delta wrote"));
    ch_checkpoint_manager_unref(x.m);
    t_open_manager(&x); /* marks do not survive a manager */
    assert_int_equal(next_base(&x), 0);
    assert_int_equal(next_base(&x), 8);
    t_ok(ch_checkpoint_manager_restore(x.m, NULL, NULL)); /* all rows have changed */
    assert_int_equal(next_base(&x), 0);
    t_end_counted(&x);

    for (int k = 0; k < 2; k++) {
        t_begin_counted(&x, k == 0 ? "b" : "c", (ch_manager_options){.full_every = k});
        for (int i = 0; i < 3; i++)
            assert_int_equal(next_base(&x), 0);
        t_end_counted(&x);
    }
    t_begin_counted(&x, "d", (ch_manager_options){.full_every = 0});
    t_refused(ch_checkpoint_manager_new(x.c, t_path("e"),
                                        &(ch_manager_options){.full_every = -1}, &m),
              CH_INVALID_ARGUMENT, "full_every", "negative");
    t_end_counted(&x);
    (void)state;
}

static int n_warnings;

static void count_warnings(const ch_log_record *r, void *arg)
{
    (void)arg;
    n_warnings += strstr(r->text, "base of a delta") != NULL;
}

static void base_that_is_not_there_makes_the_next_checkpoint_full(void **state)
{
    t_counted x;

    t_begin_counted(&x, "g", (ch_manager_options){.full_every = 9});
    ch__file_fail_from(4, EIO); /* a full save that fails is no base */
    assert_true(ch_checkpoint_manager_save(x.m, true, NULL) != CH_OK ||
                ch_checkpoint_wait(x.c) != CH_OK);
    ch__file_fail_from(0, 0);
    assert_int_equal(next_base(&x), 0); /* 2 */
    assert_int_equal(next_base(&x), 2);
    t_ok(ch_checkpoint_manager_save(x.m, true,
                                    NULL)); /* 4: a delta that fails changes nothing */
    ch__manager_abandon(x.m);
    (void)!ch_checkpoint_wait(x.c);
    assert_int_equal(next_base(&x), 2);
    t_ok(ch_checkpoint_write(x.c, t_path("g/other"),
                             &(ch_write_options){.wait = true, .sync = CH_OFF}));
    assert_int_equal(next_base(&x), 2);

    n_warnings = 0;
    ch_log_set_sink(count_warnings, NULL, CH_LOG_WARNING);
    t_ok(ch__ckpt_remove(path_of(&x, 2), true));
    assert_int_equal(next_base(&x), 0); /* 7 */
    assert_int_equal(n_warnings, 1);
    /* Another checkpoint at the same place is not the base. */
    t_ok(ch_checkpoint_write(
        x.c, path_of(&x, 7),
        &(ch_write_options){.wait = true, .sync = CH_OFF, .replace = true}));
    assert_int_equal(next_base(&x), 0); /* 8 */
    assert_int_equal(n_warnings, 2);
    ch_log_set_sink(t_ignore_log, NULL, CH_LOG_WARNING);
    t_end_counted(&x);
    (void)state;
}

/* ---- removal ---- */

enum { MOST = 400 };

/* A second implementation of the sweep: the numbers of the checkpoints that stay, in order. */
typedef struct model {
    int n, number[MOST], base[MOST];
    int kept; /* 0: none */
} model;

static void model_sweep(model *x, int max_to_keep)
{
    bool stays[MOST] = {false};
    int  n = 0;

    for (int i = 0; i < x->n; i++)
        stays[i] = max_to_keep == 0 || i >= x->n - max_to_keep || x->number[i] == x->kept;
    for (int i = 0; i < x->n; i++)
        for (int k = 0; k < x->n; k++)
            if (x->base[k] == x->number[i] && stays[k])
                stays[i] = true;
    for (int i = 0; i < x->n; i++)
        if (stays[i]) {
            x->number[n] = x->number[i];
            x->base[n++] = x->base[i];
        }
    x->n = n;
}

/* Checks that the directory and its state file have the checkpoints of the model, all whole. */
static void check_directory(const t_counted *x, const model *want)
{
    ch_ckpt_list  all = {.n = 0};
    ch_state_file state = {.n = 0};
    char          name[40];

    t_ok(ch__ckpt_list(t_path(x->directory), &all));
    t_ok(ch__state_file_read(t_path(x->directory), &state));
    assert_int_equal(all.n, want->n);
    assert_int_equal(state.n, want->n);
    for (int i = 0; i < all.n; i++) {
        snprintf(name, sizeof(name), "ckpt-%d", want->number[i]);
        assert_string_equal(all.name[i], name);
        assert_string_equal(state.path[i], name);
        ch__ckpt_close(t_open_ckpt(path_of(x, want->number[i])));
        assert_int_equal(t_base_of(path_of(x, want->number[i])), want->base[i]);
    }
    assert_string_equal(state.latest, name);
    ch__free(state.memory);
    ch__ckpt_list_drop(&all);
}

/* CM-7: the newest stay, and the bases that they need beside them */
static void base_stays_as_long_as_a_delta_needs_it(void **state)
{
    uint32_t random = 1;

    for (int round = 0; round < 12; round++) {
        t_counted x;
        model     want = {.n = 0};
        char      directory[20];
        int       full_every = 1 + round % 4, max_to_keep = round / 4 + (round != 0);
        int       since_full = full_every;

        snprintf(directory, sizeof(directory), "sweep-%d", round);
        t_begin_counted(
            &x, directory,
            (ch_manager_options){.full_every = full_every, .max_to_keep = max_to_keep});
        for (int i = 1; i <= 24; i++) {
            random = random * 1664525u + 1013904223u;
            if (random >> 24 < 40 && want.n > 0) {
                ch_checkpoint_manager_unref(x.m);
                t_open_manager(&x);
                want.kept = 0;
                since_full = full_every;
            } else if (random >> 24 < 90 && want.n > 0) {
                char name[20];

                want.kept = want.number[random % 7 % (unsigned)want.n];
                snprintf(name, sizeof(name), "ckpt-%d", want.kept);
                t_ok(ch__manager_keep(x.m, name));
            }
            since_full = since_full >= full_every ? 1 : since_full + 1;
            want.number[want.n] = i;
            want.base[want.n++] = since_full == 1 ? 0 : i - since_full + 1;
            t_set_number(&x, i);
            t_save(x.m, x.c);
            model_sweep(&want, max_to_keep);
            check_directory(&x, &want);
        }
        t_end_counted(&x);
    }
    (void)state;
}

/* CM-7, CM-13: a delta that is preserved for its hour needs its base */
static void preserved_delta_keeps_its_base(void **state)
{
    t_counted x;

    t_clock_seconds = 10000;
    t_begin_counted(
        &x, "hours",
        (ch_manager_options){.full_every = 3, .max_to_keep = 1, .keep_every_hours = 1});
    for (int i = 1; i <= 9; i++) {
        t_clock_seconds += 2000; /* 12000, 14000, ... */
        assert_int_equal(next_base(&x), (i - 1) % 3 == 0 ? 0 : (i - 1) / 3 * 3 + 1);
    }
    /* 2, 4, 6 and 8 are preserved: the first after each hour. 1 and 7 are bases of 2, 8 and 9. */
    for (int i = 1; i <= 9; i++)
        assert_int_equal(exists(&x, i), i != 3 && i != 5);
    t_end_counted(&x);
    for (int i = 0; i < 2; i++) { /* the next managers remove no base of these */
        t_begin_counted(&x, "hours", (ch_manager_options){.max_to_keep = 1});
        t_ok(ch_checkpoint_manager_restore(x.m, NULL, NULL));
        t_clock_seconds += 10;
        next_base(&x);
        t_end_counted(&x);
    }
    for (int i = 1; i <= 8; i++)
        if (i != 3 && i != 5)
            ch__ckpt_close(t_open_ckpt(path_of(&x, i)));
    assert_false(exists(&x, 9) || exists(&x, 10));
    (void)state;
}

/* The newest checkpoint that verifies is restored; a delta verifies with its base only. */
static void delta_without_its_base_is_skipped(void **state)
{
    t_counted   x;
    const char *path = NULL;

    t_begin_counted(&x, "skip", (ch_manager_options){.full_every = 2});
    for (int i = 1; i <= 4; i++) {
        t_set_number(&x, 10 * i);
        t_save(x.m, x.c);
    }
    t_ok(ch_checkpoint_manager_restore(x.m, NULL, &path));
    assert_string_equal(path, path_of(&x, 4));
    assert_int_equal(t_get_number(&x), 40);
    t_ok(ch__ckpt_remove(path_of(&x, 3), true)); /* the base of 4 */
    t_ok(ch_checkpoint_manager_restore(x.m, NULL, &path));
    assert_string_equal(path, path_of(&x, 2));
    assert_int_equal(t_get_number(&x), 20);
    t_ok(ch__ckpt_remove(path_of(&x, 1), true));
    t_refused(ch_checkpoint_manager_restore(x.m, NULL, &path), CH_DATA_LOSS, "ckpt-2",
              "ckpt-4");
    assert_int_equal(t_get_number(&x), 20);
    t_end_counted(&x);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpoint_is_full_once_in_k),
        cmocka_unit_test(base_that_is_not_there_makes_the_next_checkpoint_full),
        cmocka_unit_test(base_stays_as_long_as_a_delta_needs_it),
        cmocka_unit_test(preserved_delta_keeps_its_base),
        cmocka_unit_test(delta_without_its_base_is_skipped),
        cmocka_unit_test(delta_with_its_base_equals_a_full_checkpoint),
        cmocka_unit_test(delta_needs_no_more_than_its_staging_memory),
        cmocka_unit_test(delta_is_as_small_as_its_changes),
        cmocka_unit_test(delta_loads_under_another_strategy),
        cmocka_unit_test(managers_of_the_same_variables_do_not_disturb_each_other),
        cmocka_unit_test(variable_with_another_key_is_stored_whole),
    };

    if (t_four_gpus(NULL) != 0)
        return 1;
    ch_log_set_sink(t_ignore_log, NULL, CH_LOG_WARNING);
    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}

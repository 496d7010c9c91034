/* test/file/test_crash.c -- files, folders and saves after simulated crashes.
 *
 * The first tests show that crash.h builds the states that its model describes. The others
 * apply it to the saves of file/writer.c and the folders of file/folder.c. T_STATES in the
 * environment is the number of states of the saves.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "crash.h"

#include <fcntl.h>

#include "../mutant.h"
#include "file/folder.h"
#include "file/temp.h"
#include "file/writer.h"
#include "help.h"

enum { MAX_BYTES = 16 << 20 };

/* ---- the model ---- */

/* The states of file "f", or of names, that a check has seen. */
typedef struct sights {
    int  n;
    char text[256][64];
} sights;

static void add_sight(sights *seen, const char *text)
{
    for (int i = 0; i < seen->n; i++)
        if (strcmp(seen->text[i], text) == 0)
            return;
    assert_true(seen->n < 256);
    snprintf(seen->text[seen->n++], sizeof(seen->text[0]), "%s", text);
}

static bool has_seen(const sights *seen, const char *text)
{
    for (int i = 0; i < seen->n; i++)
        if (strcmp(seen->text[i], text) == 0)
            return true;
    return false;
}

/* Adds "marks:contents", where each 512 bytes are shown as their first letter and a zero byte
 * as "0". "-": there is no file. */
static bool note_file(void *arg, const char *folder, int n_marks)
{
    char        path[256], text[64];
    struct stat about;
    int         n = snprintf(text, sizeof(text), "%d:", n_marks);

    snprintf(path, sizeof(path), "%s/f", folder);
    if (stat(path, &about) != 0) {
        snprintf(text + n, sizeof(text) - (size_t)n, "-");
    } else {
        size_t size;
        char  *bytes = t_read(path, &size);

        for (size_t i = 0; i < size; i += 512)
            n += snprintf(text + n, sizeof(text) - (size_t)n, "%c",
                          bytes[i] != '\0' ? bytes[i] : '0');
        free(bytes);
    }
    add_sight(arg, text);
    return true;
}

static void put(int fd, char letter, size_t n, int64_t offset)
{
    char bytes[4096];

    memset(bytes, letter, sizeof(bytes));
    assert_int_equal(ch__sys_pwrite(fd, bytes, n, offset), n);
}

static int create(const char *path)
{
    int fd = ch__sys_open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);

    assert_true(fd >= 0);
    return fd;
}

/* An empty folder for a recording. */
static const char *empty_folder(void)
{
    static char path[80];
    char        command[160];

    snprintf(path, sizeof(path), "%s/r", t_folder);
    snprintf(command, sizeof(command), "rm -rf %s/r && mkdir %s/r", t_folder, t_folder);
    assert_int_equal(system(command), 0);
    return path;
}

static void crash_loses_and_tears_writes_until_the_file_is_synced(void **state)
{
    const char *folder = empty_folder();
    sights      seen = {0};
    t_crash    *c;
    int         fd;

    t_write("r/f", "", 0);
    c = t_crash_record(folder, MAX_BYTES);
    fd = ch__sys_open(t_path("r/f"), O_WRONLY, 0);
    put(fd, 'a', 1024, 0);
    put(fd, 'b', 512, 1024);
    assert_int_equal(ch__sys_sync(fd), 0);
    t_crash_mark(c);
    put(fd, 'c', 512, 0);
    assert_int_equal(ch__sys_truncate(fd, 512), 0);
    assert_int_equal(ch__sys_sync(fd), 0);
    t_crash_mark(c);
    ch__sys_close(fd);
    t_crash_stop(c);
    assert_true(t_crash_run(c, &(t_crash_options){.states = 1000}, note_file, &seen, NULL));
    /* lost, torn, as zeros, the second before the first */
    static const char *const all[] = {"0:",    "0:aa",  "0:aab", "0:00b", "0:a",   "0:0a",
                                      "0:00",  "0:000", "0:a0b", "0:0ab", "0:aa0", "0:a00",
                                      "0:0a0", "1:aab", "1:cab", "1:a",   "1:c",   "2:c"};
    int                      n = (int)(sizeof(all) / sizeof(all[0]));

    for (int i = 0; i < n; i++)
        if (!has_seen(&seen, all[i]))
            fail_msg("state %s was not built", all[i]);
    for (int i = 0; i < seen.n; i++) {
        bool is_right = false;

        for (int k = 0; k < n; k++)
            is_right = is_right || strcmp(seen.text[i], all[k]) == 0;
        if (!is_right)
            fail_msg("state %s was built", seen.text[i]);
    }
    t_crash_free(c);
    (void)state;
}

static bool note_names(void *arg, const char *folder, int n_marks)
{
    static const char *const names[] = {"a", "b", "s", "s/c"};
    char                     text[64], path[256];
    int                      n = snprintf(text, sizeof(text), "%d:", n_marks);

    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        if (access(path, F_OK) == 0)
            n += snprintf(text + n, sizeof(text) - (size_t)n, " %s", names[i]);
    }
    add_sight(arg, text);
    return true;
}

static void assert_sights(const sights *seen, int n, const char *const *all)
{
    for (int i = 0; i < n; i++)
        if (!has_seen(seen, all[i]))
            fail_msg("state %s was not built", all[i]);
    if (seen->n != n)
        for (int i = 0; i < seen->n; i++)
            print_error("state %s\n", seen->text[i]);
    assert_int_equal(seen->n, n);
}

static void crash_loses_names_until_their_folder_is_synced(void **state)
{
    static const char *const all[] = {"0:", "0: a", "0: b", "0: a b", "1: b", "1:", "2:"};
    const char              *folder = empty_folder();
    sights                   seen = {0};
    t_crash                 *c = t_crash_record(folder, MAX_BYTES);
    int                      fd = create(t_path("r/a"));

    assert_int_equal(ch__sys_sync(fd), 0); /* a sync of the file: its name is not durable */
    ch__sys_close(fd);
    assert_int_equal(ch__sys_rename(t_path("r/a"), t_path("r/b")), 0);
    assert_int_equal(ch__sys_sync_folder(folder), 0);
    t_crash_mark(c);
    assert_int_equal(ch__sys_unlink(t_path("r/b")), 0);
    assert_int_equal(ch__sys_sync_folder(folder), 0);
    t_crash_mark(c);
    t_crash_stop(c);
    assert_true(t_crash_run(c, &(t_crash_options){.states = 1000}, note_names, &seen, NULL));
    assert_sights(&seen, 7, all);
    t_crash_free(c);
    (void)state;
}

static void crash_loses_a_folder_with_its_files_until_the_parent_is_synced(void **state)
{
    static const char *const all[] = {"0:", "0: s", "0: s s/c", "1:", "1: s s/c", "2: s s/c"};
    const char              *folder = empty_folder();
    sights                   seen = {0};
    t_crash                 *c = t_crash_record(folder, MAX_BYTES);

    assert_int_equal(ch__sys_mkdir(t_path("r/s")), 0);
    ch__sys_close(create(t_path("r/s/c")));
    assert_int_equal(ch__sys_sync_folder(t_path("r/s")), 0);
    t_crash_mark(c);
    assert_int_equal(ch__sys_sync_folder(folder), 0);
    t_crash_mark(c);
    t_crash_stop(c);
    assert_true(t_crash_run(c, &(t_crash_options){.states = 1000}, note_names, &seen, NULL));
    assert_sights(&seen, 6, all);
    t_crash_free(c);
    (void)state;
}

/* Writes over the file in place and removes it. */
static bool spoil(void *arg, const char *folder, int n_marks)
{
    char  path[256];
    FILE *f;

    assert_true(note_file(arg, folder, n_marks));
    snprintf(path, sizeof(path), "%s/f", folder);
    f = fopen(path, "r+b");
    if (f != NULL) {
        fputs("spoiled", f);
        fclose(f);
    }
    return true;
}

static void crash_states_are_fresh_when_a_check_changes_files(void **state)
{
    const char *folder = empty_folder();
    sights      seen = {0};
    t_crash    *c;
    int         fd;

    t_write("r/f", "f", 1);
    c = t_crash_record(folder, MAX_BYTES);
    for (int i = 0; i < 10; i++)
        t_crash_mark(c);
    fd = create(t_path("r/other"));
    put(fd, 'x', 4096, 0);
    ch__sys_close(fd);
    t_crash_stop(c);
    assert_true(t_crash_run(c, &(t_crash_options){.states = 1000}, spoil, &seen, NULL));
    assert_int_equal(seen.n, 11);
    for (int i = 0; i < seen.n; i++)
        assert_string_equal(strchr(seen.text[i], ':'), ":f");
    t_crash_free(c);
    (void)state;
}

/* ---- saves ---- */

enum { SAVES = 3, SAVE_BYTES = 100000 };

static char  *version[SAVES + 1]; /* contents of each save; NULL: there is no file */
static size_t version_bytes[SAVES + 1];

static void save(const char *path, int v)
{
    ch_writer *w = NULL;

    assert_int_equal(ch__writer_open(path, NULL, &w), CH_OK);
    assert_int_equal(ch__writer_put(w, version[v], version_bytes[v] / 2), CH_OK);
    assert_int_equal(ch__writer_patch(w, 700, version[v] + 700, 5000), CH_OK);
    assert_int_equal(ch__writer_put(w, version[v] + version_bytes[v] / 2,
                                    version_bytes[v] - version_bytes[v] / 2),
                     CH_OK);
    assert_int_equal(ch__writer_commit(w), CH_OK);
}

/* Returns true if the file is that of the last save that had returned, or of the next save, and
 * if ch__temp_tidy leaves no other file. */
static bool is_old_or_new(void *arg, const char *folder, int n_marks)
{
    static char bytes[SAVE_BYTES * 2];
    char        path[256];
    int         fd, n_files = 0;
    ssize_t     n = -1;
    DIR        *d;

    (void)arg;
    snprintf(path, sizeof(path), "%s/file", folder);
    fd = open(path, O_RDONLY);
    if (fd >= 0) {
        n = read(fd, bytes, sizeof(bytes));
        close(fd);
    }
    ch__temp_tidy(path);
    d = opendir(folder);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        n_files += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    if (n_files != (n >= 0))
        return false;
    for (int v = n_marks; v <= n_marks + 1 && v <= SAVES; v++)
        if (v == 0 ? n < 0
                   : n == (ssize_t)version_bytes[v] &&
                         memcmp(bytes, version[v], version_bytes[v]) == 0)
            return true;
    return false;
}

static t_crash *record_saves(void)
{
    const char *folder = empty_folder();
    t_crash    *c = t_crash_record(folder, MAX_BYTES);

    ch__file_limit_io(30000);
    for (int v = 1; v <= SAVES; v++) {
        free(version[v]);
        version_bytes[v] = (size_t)(SAVE_BYTES - 7000 * v);
        version[v] = t_noise(version_bytes[v], (unsigned)v);
        save(t_path("r/file"), v);
        t_crash_mark(c);
    }
    ch__file_limit_io(0);
    t_crash_stop(c);
    return c;
}

/* After a crash, a file is the old or the new version, never a mixture. */
static void saved_file_is_old_or_new_after_any_crash(void **state)
{
    t_crash_options opt = {.states = t_crash_states(3000), .seed = 1};
    t_crash        *c = record_saves();
    int64_t         n;

    assert_true(t_crash_run(c, &opt, is_old_or_new, NULL, &n));
    print_message("%lld states\n", (long long)n);
    assert_int_equal(n, opt.states);
    t_crash_free(c);
    (void)state;
}

/* The test fails if any of the syncs is left out. */
static void saved_file_is_bad_after_a_crash_when_any_sync_is_left_out(void **state)
{
    t_crash *c = record_saves();

    assert_int_equal(t_crash_syncs(c), 2 * SAVES);
    assert_true(
        t_crash_misses_syncs(c, &(t_crash_options){.states = 2000}, is_old_or_new, NULL));
    t_crash_free(c);
    (void)state;
}

/* ---- folders ---- */

static bool has_folders(void *arg, const char *folder, int n_marks)
{
    char path[256];

    (void)arg;
    snprintf(path, sizeof(path), "%s/%s", folder, n_marks == 2 ? "x/y/z" : "x");
    return n_marks == 0 || access(path, F_OK) == 0;
}

static t_crash *record_folders(void)
{
    const char *folder = empty_folder();
    t_crash    *c = t_crash_record(folder, MAX_BYTES);

    assert_int_equal(ch__folder_make(t_path("r/x")), CH_OK);
    t_crash_mark(c);
    assert_int_equal(ch__folder_make(t_path("r/x/y/z")), CH_OK);
    t_crash_mark(c);
    assert_int_equal(ch__folder_make(t_path("r/x/y/z")), CH_OK);
    t_crash_stop(c);
    return c;
}

static void created_folder_is_there_after_any_crash(void **state)
{
    t_crash *c = record_folders();

    assert_true(t_crash_run(c, &(t_crash_options){.states = 1000}, has_folders, NULL, NULL));
    t_crash_free(c);
    (void)state;
}

static void created_folder_is_lost_in_a_crash_when_any_sync_is_left_out(void **state)
{
    t_crash *c = record_folders();

    assert_int_equal(t_crash_syncs(c), 3);
    assert_true(t_crash_misses_syncs(c, &(t_crash_options){.states = 1000}, has_folders, NULL));
    t_crash_free(c);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crash_loses_and_tears_writes_until_the_file_is_synced),
        cmocka_unit_test(crash_loses_names_until_their_folder_is_synced),
        cmocka_unit_test(crash_loses_a_folder_with_its_files_until_the_parent_is_synced),
        cmocka_unit_test(crash_states_are_fresh_when_a_check_changes_files),
        cmocka_unit_test(saved_file_is_old_or_new_after_any_crash),
        cmocka_unit_test(saved_file_is_bad_after_a_crash_when_any_sync_is_left_out),
        cmocka_unit_test(created_folder_is_there_after_any_crash),
        cmocka_unit_test(created_folder_is_lost_in_a_crash_when_any_sync_is_left_out),
    };
    int failed;

    if (t_leave_out_a_check()) /* the states must show it, not the number of syncs */
        cmocka_set_test_filter("*after_any_crash");
    failed = cmocka_run_group_tests(tests, t_setup, t_folder_remove);
    for (int v = 1; v <= SAVES; v++)
        free(version[v]);
    return failed;
}

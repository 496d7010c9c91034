/* test/file/test_writer.c -- a file is complete or does not appear.
 *
 * A ch_writer writes a temporary file and renames it at commit. The tests check the rights of
 * files, links at their names, and that a failure of any call leaves the old or the new file
 * and no temporary file.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/writer.h"

#include <errno.h>
#include <fcntl.h>

#include "file/stream.h"
#include "help.h"

static void assert_file(const char *name, const void *data, size_t n)
{
    size_t have;
    char  *back = t_read(t_path(name), &have);

    assert_int_equal(have, n);
    assert_memory_equal(back, data, n);
    free(back);
}

static ch_status write_file(const char *name, const ch_save_options *opt, const char *data,
                            size_t n, size_t piece)
{
    ch_writer *w = NULL;
    ch_status  rc = ch__writer_open(t_path(name), opt, &w);

    for (size_t at = 0; at < n && rc == CH_OK; at += piece)
        rc = ch__writer_put(w, data + at, piece < n - at ? piece : n - at);
    if (rc == CH_OK)
        return ch__writer_commit(w);
    ch__writer_drop(w);
    return rc;
}

static void writer_puts_all_bytes_into_the_file(void **state)
{
    enum { N = 700000 };
    char *data = t_noise(N, 1);

    for (size_t piece = 100; piece <= N; piece = piece * 20 + 7) {
        assert_int_equal(write_file("a", NULL, data, N, piece), CH_OK);
        assert_file("a", data, N);
    }
    ch__file_limit_io(1000);
    assert_int_equal(write_file("a", NULL, data, N, 100000), CH_OK);
    ch__file_limit_io(0);
    assert_file("a", data, N);
    assert_int_equal(write_file("a", NULL, data, 0, 1), CH_OK);
    assert_file("a", data, 0);
    assert_int_equal(t_count_files(), 1);
    free(data);
    (void)state;
}

static void writer_compresses_files_that_read_back_the_same(void **state)
{
    enum { N = 700000 };
    static const ch_compression kinds[] = {CH_GZIP, CH_ZLIB, CH_ZSTD};
    char                       *data = t_noise(N, 1), *back = malloc(N);

    for (int k = 0; k < 3; k++)
        for (int level = 0; level < 3; level++) {
            struct stat     about;
            ch_file_stream *s = NULL;
            size_t          n = 0, got = 1;

            assert_int_equal(write_file("a",
                                        &(ch_save_options){.compression = kinds[k],
                                                           .level = level,
                                                           .no_sync = true},
                                        data, N, 1234),
                             CH_OK);
            stat(t_path("a"), &about);
            assert_true(about.st_size < N);
            assert_int_equal(
                ch__stream_open(t_path("a"), &(ch_load_options){.compression = kinds[k]}, &s),
                CH_OK);
            for (; got > 0; n += got)
                assert_int_equal(ch__stream_read(s, back + n, N - n + (n == N), &got), CH_OK);
            assert_int_equal(n, N);
            assert_memory_equal(back, data, N);
            ch__stream_close(s);
        }
    t_assert_error(
        write_file("a", &(ch_save_options){.compression = CH_GZIP, .level = 10}, data, 1, 1),
        CH_INVALID_ARGUMENT, "level 10");
    t_assert_error(
        write_file("a", &(ch_save_options){.compression = CH_ZSTD, .level = 99}, data, 1, 1),
        CH_INVALID_ARGUMENT, "level 99");
    t_assert_error(
        write_file("a", &(ch_save_options){.compression = CH_ZSTD, .level = -1}, data, 1, 1),
        CH_INVALID_ARGUMENT, "level -1");
    free(data);
    free(back);
    (void)state;
}

static void writer_changes_no_file_before_commit(void **state)
{
    ch_writer *w = NULL;

    t_write("old", "old", 3);
    assert_int_equal(ch__writer_open(t_path("old"), NULL, &w), CH_OK);
    assert_int_equal(ch__writer_put(w, "new", 3), CH_OK);
    assert_file("old", "old", 3);
    ch__writer_drop(w);
    assert_file("old", "old", 3);
    assert_int_equal(write_file("old", NULL, "new", 3, 1), CH_OK);
    assert_file("old", "new", 3);
    assert_int_equal(t_count_files(), 2);
    (void)state;
}

/* A link at the name of the file is replaced, and not followed. */
static void writer_replaces_a_link_instead_of_following_it(void **state)
{
    struct stat about;

    t_write("target", "target", 6);
    assert_int_equal(symlink("target", t_path("link")), 0);
    assert_int_equal(write_file("link", NULL, "new", 3, 3), CH_OK);
    assert_file("target", "target", 6);
    assert_file("link", "new", 3);
    assert_int_equal(lstat(t_path("link"), &about), 0);
    assert_true(S_ISREG(about.st_mode));
    (void)state;
}

static void writer_gives_a_new_file_the_rights_of_the_umask(void **state)
{
    struct stat about;
    mode_t      old = umask(027);

    assert_int_equal(write_file("rights", NULL, "x", 1, 1), CH_OK);
    umask(old);
    assert_int_equal(stat(t_path("rights"), &about), 0);
    assert_int_equal(about.st_mode & 0777, 0640);
    (void)state;
}

static void writer_keeps_the_rights_of_a_replaced_file(void **state)
{
    struct stat about;

    for (mode_t mode = 0600; mode <= 0666; mode += 022) {
        t_write("mine", "old", 3);
        assert_int_equal(chmod(t_path("mine"), mode), 0);
        assert_int_equal(write_file("mine", NULL, "new", 3, 3), CH_OK);
        assert_int_equal(stat(t_path("mine"), &about), 0);
        assert_int_equal(about.st_mode & 0777, mode);
        assert_int_equal(unlink(t_path("mine")), 0);
    }
    (void)state;
}

/* Returns the path of the only temporary file of `name`. */
static const char *find_temp(const char *name)
{
    char        prefix[64];
    const char *found = NULL;
    DIR        *d = opendir(t_folder);

    snprintf(prefix, sizeof(prefix), ".%s.tmp-", name);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (strncmp(e->d_name, prefix, strlen(prefix)) == 0) {
            assert_null(found);
            found = t_path(e->d_name);
        }
    closedir(d);
    assert_non_null(found);
    return found;
}

static mode_t mode_of(const char *path)
{
    struct stat about;

    assert_int_equal(lstat(path, &about), 0);
    return about.st_mode & 07777;
}

/* No other user can open a file before it is complete. */
static void writer_keeps_the_temporary_file_private_until_commit(void **state)
{
    mode_t old = umask(0);

    for (int replaces = 0; replaces < 2; replaces++) {
        ch_writer *w = NULL;

        if (replaces)
            assert_int_equal(chmod(t_path("private"), 0644), 0);
        assert_int_equal(ch__writer_open(t_path("private"), NULL, &w), CH_OK);
        assert_int_equal(mode_of(find_temp("private")), 0600);
        assert_int_equal(ch__writer_put(w, "new", 3), CH_OK);
        assert_int_equal(mode_of(find_temp("private")), 0600);
        assert_int_equal(ch__writer_commit(w), CH_OK);
        assert_int_equal(mode_of(t_path("private")), replaces ? 0644 : 0666);
    }
    umask(old);
    assert_int_equal(unlink(t_path("private")), 0);
    (void)state;
}

/* Links at the names of temporary files are not followed. */
static void writer_creates_no_file_through_a_link_at_a_temporary_name(void **state)
{
    ch_writer *w = NULL;
    char       first[512], link[600];
    unsigned   counter;
    int        n;

    assert_int_equal(ch__writer_open(t_path("linked"), NULL, &w), CH_OK);
    snprintf(first, sizeof(first), "%s", find_temp("linked"));
    ch__writer_drop(w);
    n = (int)(strrchr(first, '-') - first) + 1;
    counter = (unsigned)strtoul(first + n, NULL, 10);
    for (unsigned i = 1; i <= 3; i++) {
        snprintf(link, sizeof(link), "%.*s%u", n, first, counter + i);
        assert_int_equal(symlink(t_path("victim"), link), 0);
    }
    assert_int_equal(write_file("linked", NULL, "new", 3, 3), CH_OK);
    assert_file("linked", "new", 3);
    assert_int_equal(access(t_path("victim"), F_OK), -1);
    for (unsigned i = 1; i <= 3; i++) {
        snprintf(link, sizeof(link), "%.*s%u", n, first, counter + i);
        assert_int_equal(unlink(link), 0);
    }
    (void)state;
}

static void writer_rejects_fifos_and_directories(void **state)
{
    struct stat about;
    int64_t     n;

    assert_int_equal(mkfifo(t_path("fifo"), 0600), 0);
    assert_int_equal(mkdir(t_path("folder"), 0700), 0);
    n = t_count_files();
    t_assert_error(write_file("fifo", NULL, "new", 3, 3), CH_INVALID_ARGUMENT, "fifo", "FIFO");
    t_assert_error(write_file("folder", NULL, "new", 3, 3), CH_INVALID_ARGUMENT, "folder",
                   "a directory");
    assert_int_equal(lstat(t_path("fifo"), &about), 0);
    assert_true(S_ISFIFO(about.st_mode));
    assert_int_equal(t_count_files(), n);
    assert_int_equal(unlink(t_path("fifo")), 0);
    assert_int_equal(rmdir(t_path("folder")), 0);
    (void)state;
}

/* Whichever call fails, the old or the new file is there, and no other file. */
static void writer_leaves_the_old_or_the_new_file_when_a_call_fails(void **state)
{
    char *data = t_noise(600000, 1);

    for (int k = 0; k < 2; k++) {
        ch_save_options opt = {.compression = k == 0 ? CH_UNCOMPRESSED : CH_GZIP};
        int64_t         live = ch__mem_live(), calls = ch__file_calls();

        assert_int_equal(write_file("f", &opt, data, 600000, 50000), CH_OK);
        calls = ch__file_calls() - calls;
        t_write("f", "old", 3);
        int files = t_count_files();
        for (int64_t i = 1; i <= calls; i++) {
            ch__file_fail_at(i, EIO);
            t_assert_error(write_file("f", &opt, data, 600000, 50000), CH_DATA_LOSS, "/f",
                           "Input/output error");
            ch__file_fail_at(0, 0);
            assert_int_equal(ch__mem_live(), live);
            assert_int_equal(t_count_files(), files);
            if (i < calls - 1) /* the last two syncs are of the folder */
                assert_file("f", "old", 3);
        }
    }
    free(data);
    (void)state;
}

/* The disk stays full. */
static void writer_leaves_no_temporary_file_when_the_disk_is_full(void **state)
{
    char   *data = t_noise(600000, 1);
    int64_t calls;
    int     files;

    t_write("full", "old", 3);
    calls = ch__file_calls();
    assert_int_equal(write_file("full", NULL, data, 600000, 50000), CH_OK);
    calls = ch__file_calls() - calls;
    t_write("full", "old", 3);
    files = t_count_files();
    for (int64_t i = 1; i <= calls; i++) {
        ch__file_fail_from(i, ENOSPC);
        t_assert_error(write_file("full", NULL, data, 600000, 50000), CH_RESOURCE_EXHAUSTED,
                       "/full", "No space left");
        ch__file_fail_from(0, 0);
        assert_int_equal(t_count_files(), files);
        if (i < calls - 1) /* the last two syncs are of the folder */
            assert_file("full", "old", 3);
    }
    free(data);
    (void)state;
}

static void writer_fails_without_leak_when_out_of_memory(void **state)
{
    for (int k = 0; k < 3; k++) {
        ch_save_options opt = {.compression =
                                   (ch_compression[]){CH_UNCOMPRESSED, CH_GZIP, CH_ZSTD}[k]};
        int64_t         live = ch__mem_live(), allocs = ch__mem_allocs();

        assert_int_equal(write_file("g", &opt, "data", 4, 4), CH_OK);
        allocs = ch__mem_allocs() - allocs;
        int files = t_count_files();
        for (int64_t i = 1; i <= allocs; i++) {
            ch__mem_fail_at(i);
            t_assert_error(write_file("g", &opt, "data", 4, 4), CH_RESOURCE_EXHAUSTED,
                           "out of memory");
            ch__mem_fail_at(0);
            assert_int_equal(ch__mem_live(), live);
            assert_int_equal(t_count_files(), files);
        }
    }
    (void)state;
}

static void writer_writes_nothing_after_a_failure(void **state)
{
    ch_writer *w = NULL;
    char      *data = t_noise(300000, 1);

    assert_int_equal(ch__writer_open(t_path("failed"), NULL, &w), CH_OK);
    ch__file_fail_at(1, EIO);
    t_assert_error(ch__writer_put(w, data, 300000), CH_DATA_LOSS, "failed", "byte 0");
    ch__file_fail_at(0, 0);
    t_assert_error(ch__writer_put(w, data, 1), CH_DATA_LOSS, "failed before");
    t_assert_error(ch__writer_patch(w, 0, data, 1), CH_DATA_LOSS, "failed before");
    t_assert_error(ch__writer_commit(w), CH_DATA_LOSS, "failed before");
    assert_int_not_equal(access(t_path("failed"), F_OK), 0);
    free(data);
    (void)state;
}

static int try_mkdir(int *error)
{
    int rc = ch__sys_mkdir(t_path("made"));

    *error = errno;
    if (rc == 0)
        assert_int_equal(ch__sys_rmdir(t_path("made")), 0);
    return rc;
}

static void file_call_fails_once_or_from_then_on_with_any_errno(void **state)
{
    int error;

    ch__file_fail_at(2, EDQUOT);
    assert_int_equal(access(t_path("made"), F_OK), -1);
    assert_int_equal(try_mkdir(&error), 0); /* also calls rmdir, which needs no space */
    assert_int_equal(try_mkdir(&error), -1);
    assert_int_equal(error, EDQUOT);
    assert_int_equal(try_mkdir(&error), 0);
    ch__file_fail_from(1, EROFS);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(try_mkdir(&error), -1);
        assert_int_equal(error, EROFS);
        assert_int_equal(ch__sys_unlink(t_path("none")), -1);
        assert_int_equal(errno, EROFS);
        assert_null(ch__sys_opendir(t_folder));
    }
    ch__file_fail_from(0, 0);
    assert_int_equal(try_mkdir(&error), 0);
    (void)state;
}

static void listing_tells_its_end_from_a_failure(void **state)
{
    DIR *d = ch__sys_opendir(t_folder);
    int  n = 0;

    assert_non_null(d);
    while (ch__sys_readdir(d) != NULL)
        n++;
    assert_int_equal(errno, 0);
    assert_int_equal(n, t_count_files() + 2);
    ch__file_fail_at(1, EIO);
    assert_null(ch__sys_readdir(d));
    assert_int_equal(errno, EIO);
    ch__sys_closedir(d);
    assert_null(ch__sys_opendir(t_path("no/folder")));
    assert_int_equal(errno, ENOENT);
    (void)state;
}

static void fail_errno_reports_a_full_disk(void **state)
{
    int fd = open("/dev/full", O_WRONLY);

    if (fd < 0) /* there is no such device here: nothing to test */
        return;
    assert_int_equal(ch__sys_write(fd, "x", 1), -1);
    t_assert_error(ch__fail_errno(errno, "%s", "file"), CH_RESOURCE_EXHAUSTED,
                   "file: No space");
    close(fd);
    (void)state;
}

static void writer_open_error_says_why(void **state)
{
    ch_writer *w = NULL;
    char       name[300];

    t_assert_error(ch__writer_open(t_path("no/folder"), NULL, &w), CH_NOT_FOUND, "no/folder");
    t_assert_error(ch__writer_open("", NULL, &w), CH_INVALID_ARGUMENT, "no name");
    t_assert_error(ch__writer_open(NULL, NULL, &w), CH_INVALID_ARGUMENT, "no name");
    mkdir(t_path("folder"), 0777);
    t_assert_error(write_file("folder", NULL, "x", 1, 1), CH_INVALID_ARGUMENT, "folder",
                   "a directory");
    rmdir(t_path("folder"));
    /* A name of the largest length, although the name of its temporary file would be longer. */
    memset(name, 'n', 255);
    name[255] = '\0';
    assert_int_equal(write_file(name, NULL, "x", 1, 1), CH_OK);
    assert_file(name, "x", 1);
    (void)state;
}

static void writer_patches_bytes_and_compresses_sections(void **state)
{
    ch_writer *w = NULL;
    ch_section section;
    size_t     n, packed;

    assert_int_equal(ch__writer_open(t_path("parts"), NULL, &w), CH_OK);
    assert_int_equal(ch__writer_put(w, "????", 4), CH_OK);
    assert_int_equal(ch__writer_begin(w, CH_ZLIB, 0), CH_OK);
    assert_int_equal(ch__writer_put(w, "123456789", 9), CH_OK);
    assert_int_equal(ch__writer_end(w, &section), CH_OK);
    assert_int_equal(section.bytes, 9);
    assert_int_equal(section.crc, 0xcbf43926u);
    assert_int_equal(ch__writer_offset(w), 4 + section.packed_bytes);
    assert_int_equal(ch__writer_put(w, "end", 3), CH_OK);
    ch__file_limit_io(1);
    assert_int_equal(ch__writer_patch(w, 1, "abc", 3), CH_OK);
    ch__file_limit_io(0);
    assert_int_equal(ch__writer_commit(w), CH_OK);
    char *back = t_read(t_path("parts"), &n), *zlib = t_pack(CH_ZLIB, "123456789", 9, &packed);
    assert_int_equal(packed, section.packed_bytes);
    assert_int_equal(n, 4 + packed + 3);
    assert_memory_equal(back, "?abc", 4);
    assert_memory_equal(back + 4, zlib, packed);
    assert_memory_equal(back + 4 + packed, "end", 3);
    free(back);
    free(zlib);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writer_puts_all_bytes_into_the_file),
        cmocka_unit_test(writer_compresses_files_that_read_back_the_same),
        cmocka_unit_test(writer_changes_no_file_before_commit),
        cmocka_unit_test(writer_replaces_a_link_instead_of_following_it),
        cmocka_unit_test(writer_gives_a_new_file_the_rights_of_the_umask),
        cmocka_unit_test(writer_keeps_the_rights_of_a_replaced_file),
        cmocka_unit_test(writer_keeps_the_temporary_file_private_until_commit),
        cmocka_unit_test(writer_creates_no_file_through_a_link_at_a_temporary_name),
        cmocka_unit_test(writer_rejects_fifos_and_directories),
        cmocka_unit_test(writer_leaves_the_old_or_the_new_file_when_a_call_fails),
        cmocka_unit_test(writer_leaves_no_temporary_file_when_the_disk_is_full),
        cmocka_unit_test(writer_fails_without_leak_when_out_of_memory),
        cmocka_unit_test(writer_writes_nothing_after_a_failure),
        cmocka_unit_test(file_call_fails_once_or_from_then_on_with_any_errno),
        cmocka_unit_test(listing_tells_its_end_from_a_failure),
        cmocka_unit_test(fail_errno_reports_a_full_disk),
        cmocka_unit_test(writer_open_error_says_why),
        cmocka_unit_test(writer_patches_bytes_and_compresses_sections),
    };

    if (!t_can_pack())
        return 77;
    return cmocka_run_group_tests(tests, t_setup, t_folder_remove);
}

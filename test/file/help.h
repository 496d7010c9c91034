/* test/file/help.h -- functions shared by the tests of files: a temporary folder, and test
 * bytes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_FILE_HELP_H
#define TEST_FILE_HELP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/sys.h"
#include "cohort/file.h"
#include "file/codec.h"
#include "folder.h"

static inline int t_setup(void **state)
{
    ch_device_current(); /* made once, so that tests which count allocations do not count it */
    return t_folder_make(state);
}

static inline int t_count_files(void)
{
    DIR *d = opendir(t_folder);
    int  n = 0;

    for (struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.' || strlen(e->d_name) > 2;
    closedir(d);
    return n;
}

static inline const char *t_write(const char *name, const void *data, size_t n)
{
    const char *path = t_path(name);
    FILE       *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
    return path;
}

/* Returns the contents of a file. The caller must free() them. */
static inline char *t_read(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *data;

    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    data = malloc(*n + 1);
    assert_int_equal(fread(data, 1, *n, f), *n);
    fclose(f);
    return data;
}

/* Returns bytes that do not repeat soon, and compress a little. */
static inline char *t_noise(size_t n, unsigned seed)
{
    char *data = malloc(n + 1);

    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        data[i] = (char)(seed >> 28 < 12 ? seed >> 24 & 15 : seed >> 24);
    }
    return data;
}

/* Returns compressed `data`. The caller must free() it. */
static inline char *t_pack(ch_compression kind, const void *data, size_t n, size_t *packed)
{
    size_t      room = n + n / 8 + 4096;
    char       *out = malloc(room);
    ch_codec   *c = NULL;
    ch_codec_io io = {data, n, out, room};
    bool        ended = false;

    assert_int_equal(ch__encoder_new(kind, 0, &c), CH_OK);
    while (!ended)
        assert_int_equal(c->step(c, &io, true, &ended), CH_OK);
    ch__codec_free(c);
    *packed = room - io.n_out;
    return out;
}

/* Returns false, and prints a message, if the build lacks a compression library. Such tests are
 * skipped. */
static inline bool t_can_pack(void)
{
#if CH_HAVE_ZLIB && CH_HAVE_ZSTD
    return true;
#else
    printf("built without zlib or zstd\n");
    return false;
#endif
}

/* Checks that the call failed with this status, and that its message contains these words. */
#define t_assert_error(rc, code, ...)                                                          \
    t_check_error(rc, code, (const char *[]){__VA_ARGS__, NULL}, __FILE__, __LINE__)

static inline void t_check_error(ch_status rc, ch_status code, const char *const *words,
                                 const char *file, int line)
{
    if (rc != code) {
        print_error("%s, not %s: %s\n", ch_status_name(rc), ch_status_name(code),
                    rc != CH_OK ? ch_error_message() : "");
        _fail(file, line);
    }
    for (; *words != NULL; words++)
        if (strstr(ch_error_message(), *words) == NULL) {
            print_error("\"%s\" has no \"%s\"\n", ch_error_message(), *words);
            _fail(file, line);
        }
}

#endif

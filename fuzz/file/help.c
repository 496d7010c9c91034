/* fuzz/file/help.c -- files in memory, injected failures.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "help.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/sys.h"
#include "cohort/log.h"
#include "file/block.h"

uint64_t some_size(dice *d)
{
    static const uint64_t edges[] = {UINT64_MAX,
                                     INT64_MAX,
                                     (uint64_t)INT64_MAX + 1,
                                     (uint64_t)1 << 32,
                                     UINT32_MAX,
                                     INT32_MAX,
                                     65536,
                                     65535,
                                     1000000000000000000u,
                                     (uint64_t)1 << 61};

    return roll(d, 3) > 0 ? roll(d, 40) : edges[roll(d, sizeof(edges) / sizeof(*edges))];
}

const char *file_of(const uint8_t *data, size_t size)
{
    static int  fd = -1;
    static char path[64];

    if (fd < 0) {
        fd = memfd_create("input", MFD_CLOEXEC);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    }
    MUST(ftruncate(fd, 0) == 0);
    MUST(pwrite(fd, data, size, 0) == (ssize_t)size);
    return path;
}

static char folder[64];

static void remove_folder(void)
{
    (void)remove(file_to_write());
    (void)remove(folder);
}

const char *file_to_write(void)
{
    static char path[80];

    if (folder[0] == '\0') {
        snprintf(folder, sizeof(folder), "/dev/shm/cohort-fuzz-XXXXXX");
        MUST(mkdtemp(folder) != NULL);
        snprintf(path, sizeof(path), "%s/out", folder);
        atexit(remove_folder);
    }
    return path;
}

void put_file(kept_file *f, const void *data, size_t n)
{
    if (f->fd == 0) {
        (void)remove(f->path);
        f->fd = open(f->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    }
    MUST(f->fd > 0 && ftruncate(f->fd, 0) == 0 && pwrite(f->fd, data, n, 0) == (ssize_t)n);
}

void drop_file(kept_file *f)
{
    if (f->fd > 0)
        close(f->fd);
    (void)remove(f->path);
    f->fd = 0;
}

void with_any_failure(unsigned which, unsigned n_allocations, unsigned n_operations,
                      void (*body)(const char *path), const char *path)
{
    if (which % 2 == 0)
        ch__mem_fail_at(1 + which / 2 % n_allocations);
    else
        ch__file_fail_at(1 + which / 2 % n_operations, EIO);
    body(path);
    ch__mem_fail_at(0);
    ch__file_fail_at(0, 0);
}

void with_failures(unsigned which, void (*body)(const char *path), const char *path)
{
    with_any_failure(which, 16, 8, body, path);
}

bool same_tensors(const ch_tensor *a, const ch_tensor *b)
{
    return ch_tensor_dtype(a) == ch_tensor_dtype(b) &&
           ch_shape_equal(ch_tensor_shape(a), ch_tensor_shape(b)) &&
           (ch_tensor_bytes(a) == 0 ||
            memcmp(ch_tensor_data(a), ch_tensor_data(b), ch_tensor_bytes(a)) == 0);
}

static void no_log(const ch_log_record *record, void *arg)
{
    (void)record, (void)arg;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    ch_log_set_sink(no_log, NULL, CH_LOG_ERROR);
    ch_device_current();                    /* creates the devices */
    ch__block_pool_set_default_bytes(1000); /* clearing large blocks would be slow */
    (void)argc, (void)argv;
    return 0;
}

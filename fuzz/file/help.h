/* fuzz/file/help.h -- helpers of targets that read files.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FUZZ_FILE_HELP_H
#define FUZZ_FILE_HELP_H

#include "base/mem.h"
#include "cohort/file.h"
#include "fuzz.h"

/* Returns a small size most of the time, otherwise a boundary value. */
uint64_t some_size(dice *d);

/* Returns the path of a file in memory with these bytes. It is valid until the next call. */
const char *file_of(const uint8_t *data, size_t size);
/* Returns a path for a file to write, in a folder that is removed at the end of the process. */
const char *file_to_write(void);

/* A file that changes with each input. It stays open, because creating files takes more time
 * than reading them. Begins as zeros. */
typedef struct kept_file {
    char path[128];
    int  fd; /* 0: not open */
} kept_file;

/* Gives a file other bytes. Creates the file if it is not open. */
void put_file(kept_file *f, const void *data, size_t n);
/* Closes and removes a file. */
void drop_file(kept_file *f);

/* Runs `body` while an allocation or a file operation fails; `which` selects it, among the first
 * of `body`. */
void with_failures(unsigned which, void (*body)(const char *path), const char *path);
/* The same, among the first n_allocations or n_operations. */
void with_any_failure(unsigned which, unsigned n_allocations, unsigned n_operations,
                      void (*body)(const char *path), const char *path);

bool same_tensors(const ch_tensor *a, const ch_tensor *b);

/* Changes a .npy file so that its parts still fit. Returns its size; 0 if that is not
 * possible. */
size_t alter_npy(dice *d, uint8_t *data, size_t size, size_t max_size);

#endif

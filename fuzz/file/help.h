/* fuzz/file/help.h -- what the targets that read files share.   SPDX-License-Identifier: Apache-2.0
 */
#ifndef FUZZ_FILE_HELP_H
#define FUZZ_FILE_HELP_H

#include "base/mem.h"
#include "cohort/file.h"
#include "fuzz.h"

/* Small most of the time, else where things break. */
uint64_t some_size(dice *d);

/* A file in memory that holds these bytes, until the next call. */
const char *file_of(const uint8_t *data, size_t size);
/* Another, to be written to: a path in a folder that goes with the process. */
const char *file_to_write(void);

/* Runs `body` with some allocation, or some call on a file, failing. */
void with_failures(unsigned which, void (*body)(const char *path), const char *path);

bool same_tensors(const ch_tensor *a, const ch_tensor *b);

/* A .npy file changed so that its parts still fit; 0: it was none, or has no room. */
size_t alter_npy(dice *d, uint8_t *data, size_t size, size_t max_size);

#endif

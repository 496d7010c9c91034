/* ckpt/state_file.h -- the state file of a directory of checkpoints (CM-1 to CM-4).
 *
 * The file DIRECTORY/checkpoint lists the checkpoints that a program has saved, the newest
 * last. It is text that TensorFlow reads too. Paths in it are relative to the directory; a path
 * that leads out of the directory is refused.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_STATE_FILE_H
#define CKPT_STATE_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "cohort/status.h"

#define CH_STATE_FILE "checkpoint"

typedef struct ch_state_file {
    const char   *latest; /* prefix of the newest checkpoint, relative to the directory */
    int           n;
    const char  **path;          /* prefixes, the oldest first, relative to the directory */
    const double *time;          /* seconds since 1970 for each path; NULL: not known */
    bool          has_preserved; /* last_preserved is known */
    double        last_preserved;
    void         *memory; /* of a file that was read: all of its memory; else NULL */
} ch_state_file;

/* Reads the state file of a directory. The caller must free out->memory with ch__free.
 * NOT_FOUND: there is none. DATA_LOSS: its text is no state file. INVALID_ARGUMENT: it names no
 * checkpoint, or a path leads out of the directory. */
CH_MUST_CHECK ch_status ch__state_file_read(const char *directory, ch_state_file *out);
/* Replaces the state file, atomically. INVALID_ARGUMENT: a path leads out of the directory, or
 * is that of the state file. */
CH_MUST_CHECK ch_status ch__state_file_write(const char *directory, const ch_state_file *s,
                                             bool no_sync);
/* Parses the text of a state file, for ch__state_file_read and tests. Absolute paths must begin
 * with `directory`. */
CH_MUST_CHECK ch_status ch__state_file_parse(const char *directory, const char *text, size_t n,
                                             ch_state_file *out);

#endif

/* file/writer.h -- writes files atomically: a file appears complete or not at all.
 *
 * A writer creates a temporary file in the folder of the destination and compresses into it.
 * The commit syncs the temporary file, renames it to the destination, and syncs the folder.
 * If any step fails, the destination holds either the old file or the new file.
 *
 * A writer holds a lock on its temporary file (file/temp.h). ch__temp_tidy removes the
 * temporary files of killed processes.
 *
 * The temporary file is private (mode 0600) until the commit. The new file has the mode of the
 * file that it replaces, or else the mode that the umask leaves. A symbolic link is replaced,
 * and not followed. A directory, FIFO or device is not replaced. A writer must be used by one
 * thread at a time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_WRITER_H
#define FILE_WRITER_H

#include "cohort/file.h"

typedef struct ch_writer ch_writer;

/* Creates the temporary file for `path`. `opt` may be NULL. The caller must end the writer with
 * ch__writer_commit or ch__writer_drop. */
CH_MUST_CHECK ch_status ch__writer_open(const char *path, const ch_save_options *opt,
                                        ch_writer **out);
/* Appends n bytes. After a failure, all further calls on the writer fail with the same
 * status. */
CH_MUST_CHECK ch_status ch__writer_put(ch_writer *w, const void *data, size_t n);
/* Overwrites bytes that have been written. The file must not be compressed, and no section may
 * be open. */
CH_MUST_CHECK ch_status ch__writer_patch(ch_writer *w, int64_t offset, const void *data,
                                         size_t n);
/* Returns the size of the file so far in bytes, as on disk, including buffered bytes. */
int64_t     ch__writer_offset(const ch_writer *w);
const char *ch__writer_path(const ch_writer *w);
/* Marks the writer as failed, because its caller could not make the bytes to put: all further
 * calls fail with `rc`, also ch__writer_commit. Returns `rc`. */
ch_status ch__writer_fail(ch_writer *w, ch_status rc);

/* A section: the bytes that are put between ch__writer_begin and ch__writer_end. They are
 * compressed on their own (`kind` may be CH_UNCOMPRESSED). The file itself must be
 * uncompressed. */
typedef struct ch_section {
    int64_t bytes, packed_bytes; /* as put, and in the file */
    /* CRC-32 (not CRC-32C) of the bytes as put; 0 if the build has no zlib */
    uint32_t crc;
} ch_section;
CH_MUST_CHECK ch_status ch__writer_begin(ch_writer *w, ch_compression kind, int level);
CH_MUST_CHECK ch_status ch__writer_end(ch_writer *w, ch_section *out);

/* Completes the file and frees the writer, also on an error. If this fails, the old file is
 * unchanged, except when only the sync of the folder failed: the new file is in place then. In
 * both cases the temporary file is gone. */
CH_MUST_CHECK ch_status ch__writer_commit(ch_writer *w);
/* Removes the temporary file and frees the writer. `w` may be NULL. */
void ch__writer_drop(ch_writer *w);

#endif

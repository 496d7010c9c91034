/* file/writer.h -- a file that appears whole or not at all.
 *
 * It is written under another name in the folder of its own, compressed on the way, synced,
 * renamed, and the folder synced too (PROMISES F12, F13, S8). Whatever fails, the file of
 * that name is the old one or the new one. Who writes holds a lock on the other name, so that
 * what a process left there when it was killed is known from what is being written. The
 * mode of an old file is kept; a link is replaced, not followed; what is neither is not touched.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_WRITER_H
#define FILE_WRITER_H

#include "cohort/file.h"

typedef struct ch_writer ch_writer;

/* `opt` may be NULL. */
CH_MUST_CHECK ch_status ch__writer_open(const char *path, const ch_save_options *opt,
                                        ch_writer **out);
/* Removes what writers of `path` that are no more left beside it. */
void ch__writer_tidy(const char *path);
/* After one that failed all fail. */
CH_MUST_CHECK ch_status ch__writer_put(ch_writer *w, const void *data, size_t n);
/* Writes over bytes that are in the file; not where it is compressed. */
CH_MUST_CHECK ch_status ch__writer_patch(ch_writer *w, int64_t offset, const void *data,
                                         size_t n);
int64_t                 ch__writer_offset(const ch_writer *w); /* in the file, so far */
const char             *ch__writer_path(const ch_writer *w);

/* What is put between the two is compressed for itself, in a file that is not compressed. */
typedef struct ch_section {
    int64_t  bytes, packed_bytes; /* as given, and in the file */
    uint32_t crc;                 /* CRC-32 (not C) of the former */
} ch_section;
CH_MUST_CHECK ch_status ch__writer_begin(ch_writer *w, ch_compression kind, int level);
CH_MUST_CHECK ch_status ch__writer_end(ch_writer *w, ch_section *out);

/* Either ends the writer. A commit that fails has left the old file or, if it was the folder that
 * could not be synced, the new one; no other trace. */
CH_MUST_CHECK ch_status ch__writer_commit(ch_writer *w);
void                    ch__writer_drop(ch_writer *w); /* NULL is fine */

#endif

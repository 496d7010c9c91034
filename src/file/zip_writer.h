/* file/zip_writer.h -- writes zip archives, member by member.
 *
 * A caller opens an archive and writes each member between ch__zip_writer_begin and
 * ch__zip_writer_end. ch__zip_writer_commit then completes the file. The archive appears under
 * its path only after the commit (see file/writer.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_ZIP_WRITER_H
#define FILE_ZIP_WRITER_H

#include "file/writer.h"

typedef struct ch_zip_writer ch_zip_writer;

/* Opens an archive for writing. `opt` may be NULL. Its compression applies to the members:
 * CH_ZLIB deflates them, CH_BY_NAME and CH_UNCOMPRESSED store them. INVALID_ARGUMENT: another
 * compression; UNIMPLEMENTED: the build has no zlib. */
CH_MUST_CHECK ch_status ch__zip_writer_open(const char *path, const ch_save_options *opt,
                                            ch_zip_writer **out);
/* Begins a member. The caller must write the member's bytes to *w with ch__writer_put and then
 * call ch__zip_writer_end. The zip writer owns *w. INVALID_ARGUMENT: the name is empty, too
 * long or already used in the archive. */
CH_MUST_CHECK ch_status ch__zip_writer_begin(ch_zip_writer *z, const char *name, ch_writer **w);
/* Ends the current member: writes its sizes and checksum into its header. */
CH_MUST_CHECK ch_status ch__zip_writer_end(ch_zip_writer *z);

/* Completes the file and frees the writer, also on an error. */
CH_MUST_CHECK ch_status ch__zip_writer_commit(ch_zip_writer *z);
/* Frees the writer and removes the incomplete file. `z` may be NULL. */
void ch__zip_writer_drop(ch_zip_writer *z);

#endif

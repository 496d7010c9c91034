/* file/zip_writer.h -- zip archives, written member by member.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_ZIP_WRITER_H
#define FILE_ZIP_WRITER_H

#include "file/writer.h"

typedef struct ch_zip_writer ch_zip_writer;

/* `opt` says how members are compressed: CH_ZLIB deflates them. */
CH_MUST_CHECK ch_status ch__zip_writer_open(const char *path, const ch_save_options *opt,
                                            ch_zip_writer **out);
/* A member: what is put to *w between the two. Names are each used once. */
CH_MUST_CHECK ch_status ch__zip_writer_begin(ch_zip_writer *z, const char *name, ch_writer **w);
CH_MUST_CHECK ch_status ch__zip_writer_end(ch_zip_writer *z);

/* Either ends the writer, as those of ch_writer do. */
CH_MUST_CHECK ch_status ch__zip_writer_commit(ch_zip_writer *z);
void                    ch__zip_writer_drop(ch_zip_writer *z); /* NULL is fine */

#endif

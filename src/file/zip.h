/* file/zip.h -- zip archives: what is in them, and each member as a reader.
 *
 * Members are stored or deflated. All that the archive says of itself is checked against the file
 * when it is opened: its directory against the headers in front of the members, sizes and places
 * against the file's. A member's size and checksum are checked as it is read to its end.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_ZIP_H
#define FILE_ZIP_H

#include "file/reader.h"

typedef struct ch_zip_member {
    const char *name;
    int64_t     offset;              /* of its bytes in the file */
    int64_t     packed_bytes, bytes; /* in the file, and decompressed */
    uint32_t    crc;
    bool        is_deflated;
} ch_zip_member;

typedef struct ch_zip {
    const char          *path;
    int                  n;
    const ch_zip_member *member; /* in the order of the directory */
} ch_zip;

/* UNIMPLEMENTED in builds without zlib. */
CH_MUST_CHECK ch_status ch__zip_check_build(const char *path);

/* DATA_LOSS if it is no zip archive or a damaged one, UNIMPLEMENTED for encrypted members, other
 * compressions and archives in several files, and in builds without zlib. */
CH_MUST_CHECK ch_status ch__zip_open(const char *path, ch_zip **out);
void                    ch__zip_close(ch_zip *z); /* NULL is fine */

int ch__zip_find(const ch_zip *z, const char *name); /* -1: has none of that name */
/* Of `opt`, the limits hold; both it and `pool` may be NULL. */
CH_MUST_CHECK ch_status ch__zip_reader(const ch_zip *z, int i, const ch_load_options *opt,
                                       ch_block_pool *pool, ch_reader **out);

#endif

/* file/zip.h -- reads zip archives: lists the members and opens each as a reader.
 *
 * Members may be stored or deflated. ch__zip_open checks the archive completely except for the
 * contents of the members: the directory must agree with the local headers, and all sizes and
 * offsets must lie inside the file. A member's size and checksum are checked when a reader
 * reaches the member's end.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_ZIP_H
#define FILE_ZIP_H

#include "file/reader.h"

typedef struct ch_zip_member {
    const char *name;
    int64_t     offset;              /* of the member's first byte in the file */
    int64_t     packed_bytes, bytes; /* size in the file, and size after decompression */
    uint32_t    crc;                 /* CRC-32 of the decompressed bytes */
    bool        is_deflated;
} ch_zip_member;

typedef struct ch_zip {
    const char          *path;
    int                  n;
    const ch_zip_member *member; /* in directory order */
} ch_zip;

/* Returns UNIMPLEMENTED if the build has no zlib, else CH_OK. `path` is for the message. */
CH_MUST_CHECK ch_status ch__zip_check_build(const char *path);

/* Reads the directory of an archive and closes the file again. The caller must free the result
 * with ch__zip_close. DATA_LOSS: the file is not a zip archive, or it is damaged.
 * UNIMPLEMENTED: a member is encrypted or uses another compression, the archive is split into
 * several files, or the build has no zlib. */
CH_MUST_CHECK ch_status ch__zip_open(const char *path, ch_zip **out);
/* `z` may be NULL. */
void ch__zip_close(ch_zip *z);

/* Returns the index of the member, or -1 if no member has this name. */
int ch__zip_find(const ch_zip *z, const char *name);
/* Opens member i. The reader does not need `z` after this call. `opt` may be NULL; only its
 * limits are used. If `pool` is NULL, the reader creates its own block pool. */
CH_MUST_CHECK ch_status ch__zip_reader(const ch_zip *z, int i, const ch_load_options *opt,
                                       ch_block_pool *pool, ch_reader **out);

#endif

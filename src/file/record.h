/* file/record.h -- TFRecord files: records with their length before them and checksums.
 *
 *     while ((rc = ch__record_next(r, max_bytes, &x)) == CH_OK && x.data != NULL)
 *         if (ch__record_is_good(&x)) ...
 *
 * The checksum of the length is checked always, since nothing can be trusted behind a length that
 * is wrong; the data's is for whoever wants it checked, on any thread that has the block. So a
 * reader can go on behind a record whose data is damaged, and cannot behind a damaged length or at
 * a file's ragged end: there next fails again and again.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_RECORD_H
#define FILE_RECORD_H

#include "file/reader.h"

typedef struct ch_record {
    const char *data; /* in the reader's block; NULL: the file has ended */
    size_t      size;
    uint32_t    crc;    /* of the data, as the file has it */
    int64_t     offset; /* of the record's first byte in the file */
} ch_record;

/* The next record. DATA_LOSS if it is cut short or the checksum of its length is wrong;
 * RESOURCE_EXHAUSTED if it has more than `max_bytes`. Either leaves the reader in front of it. */
CH_MUST_CHECK ch_status ch__record_next(ch_reader *r, int64_t max_bytes, ch_record *out);
/* Passes over up to `n` records; fewer only at the end. Of each, the length's checksum is checked;
 * the data may have any size. */
CH_MUST_CHECK ch_status ch__record_skip(ch_reader *r, int64_t n, int64_t *skipped);

/* What stands before a record's data, and behind it (TR-1): for those who write them on their own. */
typedef struct ch_record_frame {
    unsigned char head[12], foot[4];
} ch_record_frame;
ch_record_frame ch__record_frame(const void *data, size_t n);

/* Whether the data has its checksum. */
bool ch__record_is_good(const ch_record *x);
/* The same as an error: DATA_LOSS, which names the file and the byte. */
CH_MUST_CHECK ch_status ch__record_check(const ch_record *x, const char *path);

#endif

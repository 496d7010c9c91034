/* file/record.h -- TFRecord files: records with a length and checksums.
 *
 *     while ((rc = ch__record_next(r, max_bytes, &x)) == CH_OK && x.data != NULL)
 *         if (ch__record_is_good(&x)) ...
 *
 * ch__record_next always checks the checksum of the length, because the next record cannot be
 * found with a wrong length. It does not check the data: the caller may do so with
 * ch__record_is_good, on any thread that holds a reference to the block. Therefore a caller can
 * continue after a record with damaged data. After a damaged length or a truncated record,
 * ch__record_next keeps failing.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_RECORD_H
#define FILE_RECORD_H

#include "file/reader.h"

typedef struct ch_record {
    const char *data; /* in the reader's block; NULL: end of the file */
    size_t      size;
    uint32_t    crc;    /* masked CRC-32C of the data, from the file */
    int64_t     offset; /* of the record's first byte in the file, decompressed */
} ch_record;

/* Reads the next record. The data is borrowed: valid until the next call on the reader, unless
 * the caller holds a reference to r->block. DATA_LOSS: the record is truncated, or the checksum
 * of its length is wrong. RESOURCE_EXHAUSTED: the record has more than `max_bytes`. After these
 * errors the reader is still at the beginning of the record. */
CH_MUST_CHECK ch_status ch__record_next(ch_reader *r, int64_t max_bytes, ch_record *out);
/* Skips up to `n` records. *skipped is less than n only at the end of the file. Checks only the
 * checksums of the lengths; records may have any size. */
CH_MUST_CHECK ch_status ch__record_skip(ch_reader *r, int64_t n, int64_t *skipped);

/* The bytes before and after the data of a record (TR-1), for callers that write records
 * themselves. */
typedef struct ch_record_frame {
    unsigned char head[12], foot[4];
} ch_record_frame;
ch_record_frame ch__record_frame(const void *data, size_t n);

/* Returns whether the data matches its checksum. */
bool ch__record_is_good(const ch_record *x);
/* Returns DATA_LOSS with the file and the byte in the message if the data does not match its
 * checksum, else CH_OK. */
CH_MUST_CHECK ch_status ch__record_check(const ch_record *x, const char *path);

#endif

/* file/record.c -- reads the framing of TFRecord files (TR-1 to TR-5).
 *
 *     length   u64, little endian, as all numbers here
 *     u32      masked CRC-32C of the 8 bytes of the length
 *     data     length bytes
 *     u32      masked CRC-32C of the data
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "file/record.h"

#include <string.h>

#include "base/bytes.h"
#include "base/fault.h"
#include "file/crc32c.h"

enum { HEAD_BYTES = 12, FOOT_BYTES = 4 };

static ch_status fail_record(const ch_reader *r, const char *problem)
{
    int64_t offset = ch__reader_offset(r);

    return ch__fail(CH_DATA_LOSS, "%s: %s at byte %lld%s", ch__reader_path(r), problem,
                    (long long)offset, offset == 0 ? "; is this a TFRecord file?" : "");
}

/* Reads the length of the next record without consuming it. *has_record is false at the end of
 * the file. */
static ch_status read_head(ch_reader *r, uint64_t *size, bool *has_record)
{
    ch_status rc = ch__reader_want(r, HEAD_BYTES);

    if (rc != CH_OK)
        return rc;
    *has_record = r->left > 0;
    if (!*has_record)
        return CH_OK;
    if (r->left < HEAD_BYTES)
        return fail_record(r, "truncated record");
    if (ch__crc32c_mask(ch__crc32c(0, r->at, 8)) != ch__le32(r->at + 8))
        return fail_record(r, "corrupted record (the checksum of its length is wrong, so the "
                              "next record cannot be found)");
    *size = ch__le64(r->at);
    return CH_OK;
}

ch_status ch__record_next(ch_reader *r, int64_t max_bytes, ch_record *out)
{
    uint64_t  size = 0;
    bool      has_record;
    ch_status rc = read_head(r, &size, &has_record);

    if (rc != CH_OK)
        return rc;
    if (!has_record) {
        *out = (ch_record){.offset = ch__reader_offset(r)};
        return CH_OK;
    }
    if (size > (uint64_t)max_bytes)
        return ch__fail_limit(
            "%s: the record at byte %lld has %llu bytes, more than the %lld of "
            "max_record_bytes",
            ch__reader_path(r), (long long)ch__reader_offset(r), (unsigned long long)size,
            (long long)max_bytes);
    size_t whole = HEAD_BYTES + (size_t)size + FOOT_BYTES;
    rc = ch__reader_want(r, whole);
    if (rc != CH_OK)
        return rc;
    if (r->left < whole)
        return fail_record(r, "truncated record");
    *out = (ch_record){r->at + HEAD_BYTES, (size_t)size, ch__le32(r->at + HEAD_BYTES + size),
                       ch__reader_offset(r)};
    ch__reader_borrow(r, whole);
    return CH_OK;
}

/* Skips a record of any size, without holding its bytes in memory. */
static ch_status skip_record(ch_reader *r, bool *has_record)
{
    uint64_t  size = 0;
    int64_t   passed, offset = ch__reader_offset(r);
    ch_status rc = read_head(r, &size, has_record);

    if (rc != CH_OK || !*has_record)
        return rc;
    if (size > INT64_MAX - HEAD_BYTES - FOOT_BYTES)
        return fail_record(r, "truncated record");
    int64_t whole = HEAD_BYTES + (int64_t)size + FOOT_BYTES;
    rc = ch__reader_skip(r, whole, &passed);
    if (rc != CH_OK || passed == whole)
        return rc;
    return ch__fail(CH_DATA_LOSS, "%s: truncated record at byte %lld%s", ch__reader_path(r),
                    (long long)offset, offset == 0 ? "; is this a TFRecord file?" : "");
}

ch_status ch__record_skip(ch_reader *r, int64_t n, int64_t *skipped)
{
    ch_status rc = CH_OK;
    bool      has_record = true;

    for (*skipped = 0; *skipped < n && rc == CH_OK; *skipped += has_record) {
        rc = skip_record(r, &has_record);
        if (rc != CH_OK || !has_record)
            break;
    }
    return rc;
}

bool ch__record_is_good(const ch_record *x)
{
    return ch__crc32c_mask(ch__crc32c(0, x->data, x->size)) == x->crc;
}

ch_status ch__record_check(const ch_record *x, const char *path)
{
    if (ch__record_is_good(x))
        return CH_OK;
    return ch__fail(CH_DATA_LOSS,
                    "%s: corrupted record at byte %lld (the checksum of its %zu bytes is "
                    "wrong)%s",
                    path, (long long)x->offset, x->size,
                    x->offset == 0 ? "; is this a TFRecord file?" : "");
}

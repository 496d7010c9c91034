/* data/format/lines.c -- reads the lines of a file.   SPDX-License-Identifier: Apache-2.0 */
#include "data/format/lines.h"

#include <string.h>

#include "base/fault.h"

ch_status ch__line_next(ch_reader *r, int64_t max_bytes, ch_str *out)
{
    const char *end = NULL;
    size_t      seen = 0;

    for (;;) {
        if (r->left > seen)
            end = memchr(r->at + seen, '\n', r->left - seen);
        seen = r->left;
        if (end != NULL || seen > (size_t)max_bytes + 1) /* the line may end in \r\n */
            break;
        ch_status rc = ch__reader_fill(r, seen + 1);
        if (rc != CH_OK)
            return rc;
        if (r->left == seen)
            break;
    }
    size_t size = end != NULL ? (size_t)(end - r->at) : seen, whole = size + (end != NULL);
    if (whole == 0) {
        *out = (ch_str){NULL, 0};
        return CH_OK;
    }
    size -= end != NULL && size > 0 && end[-1] == '\r';
    if (size > (size_t)max_bytes)
        return ch__fail_limit("%s: the line at byte %lld is longer than max_record_bytes, "
                              "%lld bytes",
                              ch__reader_path(r), (long long)ch__reader_offset(r),
                              (long long)max_bytes);
    *out = (ch_str){r->at, size};
    ch__reader_borrow(r, whole);
    return CH_OK;
}

ch_status ch__line_skip(ch_reader *r, int64_t most, bool *has_end)
{
    const char *end = NULL;

    for (int64_t n = 0; end == NULL && n < most;) {
        ch_status rc = ch__reader_want(r, 1);

        *has_end = rc == CH_OK && r->left == 0;
        if (rc != CH_OK || r->left == 0)
            return rc;
        end = memchr(r->at, '\n', r->left);
        size_t now = end != NULL ? (size_t)(end - r->at) + 1 : r->left;
        n += (int64_t)now;
        ch__reader_borrow(r, now);
    }
    *has_end = end != NULL;
    return CH_OK;
}
